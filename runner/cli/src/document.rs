//! The files of `apply`, `diff` and `export`: YAML with one thing per document.
//!
//! ```yaml
//! kind: group            # the default; see Kind for the others
//! name: nightly
//! schedules: { ... }     # the spec's fields right here, or below `spec:`
//! tasks: { ... }
//! ---
//! kind: email            # a channel's or an offer's own kind names the kind of document as well
//! name: ops-mail
//! smtp: { ... }
//! ```

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use heddle_domain::notify::channel::ChannelKind;
use heddle_domain::spec::{parse_yaml_documents, parse_yaml_strict};
use serde_json::{Map, Value};

use crate::exit::usage;
use crate::terminal;

/// The maximum size of a file in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// How deep directories are searched.
const MAX_DEPTH: usize = 16;
/// How many files are read at most.
const MAX_FILES: usize = 10_000;

/// The kinds of documents, in the order in which objects are put: each may refer to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Category,
    Template,
    Secret,
    Connection,
    Pool,
    Channel,
    Group,
    Topic,
    Offer,
}

impl Kind {
    pub(crate) const ALL: [Self; 9] = [
        Self::Category,
        Self::Template,
        Self::Secret,
        Self::Connection,
        Self::Pool,
        Self::Channel,
        Self::Group,
        Self::Topic,
        Self::Offer,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Category => "category",
            Self::Template => "template",
            Self::Secret => "secret",
            Self::Connection => "connection",
            Self::Pool => "pool",
            Self::Channel => "channel",
            Self::Group => "group",
            Self::Topic => "topic",
            Self::Offer => "offer",
        }
    }

    /// The path of this kind in the API.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Category => "categories",
            Self::Template => "templates",
            Self::Secret => "secrets",
            Self::Connection => "connections",
            Self::Pool => "pools",
            Self::Channel => "channels",
            Self::Group => "groups",
            Self::Topic => "topics",
            Self::Offer => "offers",
        }
    }

    /// The kind of document that a word means, and whether the word is also part of the spec.
    fn of_word(word: &str) -> Option<(Self, bool)> {
        match word {
            _ if ChannelKind::parse(word).is_some() => Some((Self::Channel, true)),
            "once" | "interval" | "daily" => Some((Self::Offer, true)),
            _ => Self::ALL
                .into_iter()
                .find(|kind| kind.as_str() == word)
                .map(|kind| (kind, false)),
        }
    }
}

/// Other kinds that `show` prints, and what to do instead of applying one.
const NOT_APPLIED: [(&str, &str); 5] = [
    ("queue", "use `heddle queue limit`, `pause` or `resume`"),
    ("script", "use `heddle script push`"),
    ("run", "use `heddle run start` or `heddle run rerun`"),
    ("backfill", "use `heddle backfill GROUP`"),
    ("notification", "use `heddle notification resend`"),
];

/// One object to be put.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) spec: Value,
    /// File and number of the document, for errors.
    pub(crate) source: String,
}

impl std::fmt::Display for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} {}", self.source, self.kind.as_str(), self.name)
    }
}

/// Reads files, all YAML and JSON files below directories, and stdin for `-`. Returns the objects in the order in which
/// they must be put.
pub(crate) fn read_all(paths: &[PathBuf]) -> Result<Vec<Document>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            collect(path, 0, &mut files)?
        } else {
            files.push(path.clone())
        }
    }
    let mut documents = Vec::new();
    for file in &files {
        let text = String::from_utf8(read_bytes(file)?).map_err(|_| usage(format!("{} is not UTF-8", shown(file))))?;
        documents.extend(parse(&text, &shown(file))?);
    }
    for (index, document) in documents.iter().enumerate() {
        if let Some(twin) = documents[..index]
            .iter()
            .find(|d| (d.kind, &d.name) == (document.kind, &document.name))
        {
            return Err(usage(format!("{document} is also in {}", twin.source)));
        }
    }
    if documents.is_empty() {
        let files: Vec<String> = paths.iter().map(|path| shown(path)).collect();
        return Err(usage(format!(
            "nothing to do: there is no document in {}",
            files.join(", ")
        )));
    }
    Ok(in_order(documents))
}

fn collect(dir: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(usage(format!(
            "{} is nested deeper than {MAX_DEPTH} directories",
            dir.display()
        )));
    }
    let mut entries = std::fs::read_dir(dir)
        .and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>())
        .map_err(|error| usage(format!("cannot read the directory {}: {error}", dir.display())))?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if path.is_dir() {
            collect(&path, depth + 1, files)?;
        } else if path
            .extension()
            .is_some_and(|ext| ext == "yaml" || ext == "yml" || ext == "json")
        {
            if files.len() == MAX_FILES {
                return Err(usage(format!("more than {MAX_FILES} files")));
            }
            files.push(path);
        }
    }
    Ok(())
}

fn shown(path: &Path) -> String {
    if path == Path::new("-") {
        "stdin".into()
    } else {
        path.display().to_string()
    }
}

/// A file's bytes, or stdin's for `-`.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        terminal::says_that_stdin_is_read();
        std::io::stdin().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| usage(format!("cannot read {}: {error}", shown(path))))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(usage(format!(
            "{} is larger than the maximum of {MAX_FILE_BYTES} bytes",
            shown(path)
        )));
    }
    Ok(bytes)
}

/// One YAML or JSON value.
pub(crate) fn read_value(path: &Path) -> Result<Value> {
    let bytes = read_bytes(path)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| usage(format!("{} is not UTF-8", shown(path))))?;
    if text.trim().is_empty() {
        return Err(usage(format!("{} is empty", shown(path))));
    }
    parse_yaml_strict(text).map_err(|error| usage(format!("{}: {error}", shown(path))))
}

/// The spec in a file, without the kind that `show` adds to it.
pub(crate) fn read_spec(kind: Kind, path: &Path) -> Result<Value> {
    let mut value = read_value(path)?;
    if let Value::Object(fields) = &mut value
        && fields.get("kind").is_some_and(|word| word == kind.as_str())
    {
        fields.remove("kind");
    }
    Ok(value)
}

/// The documents of a text.
pub(crate) fn parse(text: &str, source: &str) -> Result<Vec<Document>> {
    let read = parse_yaml_documents(text).map_err(|error| usage(format!("{source} is not YAML: {error}")))?;
    let values: Vec<Value> = read.into_iter().flat_map(listed).collect();
    let several = values.len() > 1;
    let mut documents = Vec::with_capacity(values.len());
    for (index, value) in values.into_iter().enumerate() {
        let source = if several {
            format!("{source} (document {})", index + 1)
        } else {
            source.to_owned()
        };
        if value.is_null() {
            continue;
        }
        documents.push(of_value(value, &source).with_context(|| source.clone())?);
    }
    Ok(documents)
}

/// The objects of a list: an array, or the output of `export -o json`.
fn listed(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        Value::Object(mut fields) if !fields.contains_key("name") && !fields.contains_key("kind") => {
            match fields.remove("items") {
                Some(Value::Array(items)) => items,
                Some(other) => {
                    fields.insert("items".into(), other);
                    vec![Value::Object(fields)]
                }
                None => vec![Value::Object(fields)],
            }
        }
        other => vec![other],
    }
}

fn of_value(value: Value, source: &str) -> Result<Document> {
    let Value::Object(mut fields) = value else {
        return Err(usage("must be a mapping"));
    };
    let given = fields.remove("kind");
    let is_given = given.is_some();
    let word = match given {
        None => "group".to_owned(),
        Some(Value::String(word)) => word,
        Some(_) => return Err(usage("/kind: must be a string")),
    };
    let Some((kind, in_spec)) = Kind::of_word(&word) else {
        if let Some((_, instead)) = NOT_APPLIED.iter().find(|(kind, _)| *kind == word) {
            return Err(usage(format!("/kind: a {word} cannot be applied; {instead}")));
        }
        let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        return Err(usage(format!("/kind: `{word}` is not one of {}", known.join(", "))));
    };
    let name = match fields.remove("name") {
        // This is the form in which the server shows an offer.
        None if kind == Kind::Offer => fields.remove("id"),
        name => name,
    };
    let name = match name {
        Some(Value::String(name)) if !name.is_empty() => name,
        Some(Value::Number(number)) => number.to_string(),
        Some(_) => return Err(usage("/name: must be a string")),
        None if is_given => return Err(usage(format!("/name: the {} has no name", kind.as_str()))),
        None => {
            return Err(usage(
                "/name: the document has no name, and no `kind`; without a kind, it is a group",
            ));
        }
    };
    let mut spec = match fields.remove("spec") {
        Some(spec) if fields.is_empty() => spec,
        Some(_) => {
            let others: Vec<&str> = fields.keys().map(String::as_str).collect();
            return Err(usage(format!(
                "/spec: there are other fields beside it: {}; move them into `spec`",
                others.join(", ")
            )));
        }
        None => Value::Object(fields),
    };
    if kind == Kind::Template {
        spec = bare_schema(spec);
    }
    if in_spec && let Value::Object(spec) = &mut spec {
        spec.insert("kind".into(), Value::String(word));
    }
    if kind == Kind::Secret {
        fill_from_env(&mut spec, |name| std::env::var(name).ok())?;
    }
    Ok(Document {
        kind,
        name,
        spec,
        source: source.to_owned(),
    })
}

/// The schema within a template as the server shows it. A PUT takes the schema alone. (`schema` is no keyword of JSON
/// Schema.)
fn bare_schema(mut spec: Value) -> Value {
    const SHOWN: [&str; 3] = ["schema", "created_at", "updated_at"];
    let is_shown = |fields: &Map<String, Value>| fields.keys().all(|field| SHOWN.contains(&field.as_str()));
    if spec["schema"].is_object() && spec.as_object().is_some_and(is_shown) {
        spec["schema"].take()
    } else {
        spec
    }
}

/// Reads `from_env: NAME` in place of `value`, so that files need not contain secrets. An empty variable counts as not set:
/// it would replace a secret with nothing.
fn fill_from_env(spec: &mut Value, variable_of: impl Fn(&str) -> Option<String>) -> Result<()> {
    let Some(variable) = spec.as_object_mut().and_then(|spec| spec.remove("from_env")) else {
        return Ok(());
    };
    let name = variable.as_str().unwrap_or_default();
    let value = variable_of(name).filter(|value| !value.is_empty()).ok_or_else(|| {
        usage(format!(
            "/from_env: the environment variable `{name}` is not set or empty"
        ))
    })?;
    spec["value"] = Value::String(value);
    Ok(())
}

/// Orders objects by kind, and groups after those that they refer to; otherwise, the order of the files stays.
fn in_order(mut documents: Vec<Document>) -> Vec<Document> {
    documents.sort_by_key(|document| document.kind);
    let first = documents
        .iter()
        .position(|document| document.kind == Kind::Group)
        .unwrap_or(documents.len());
    let end = documents
        .iter()
        .rposition(|document| document.kind == Kind::Group)
        .map_or(first, |last| last + 1);
    let mut waiting: Vec<Document> = documents.drain(first..end).collect();
    let mut sorted = Vec::with_capacity(waiting.len());
    while !waiting.is_empty() {
        let names: Vec<String> = waiting.iter().map(|document| document.name.clone()).collect();
        let ready = waiting.iter().position(|document| {
            group_references(&document.spec)
                .iter()
                .all(|name| *name == document.name || !names.iter().any(|n| n == name))
        });
        // In a cycle, the first one stays first; the server then reports the cycle.
        sorted.push(waiting.remove(ready.unwrap_or(0)));
    }
    documents.splice(first..first, sorted);
    documents
}

/// The groups that a group's spec names.
fn group_references(spec: &Value) -> Vec<&str> {
    let upstreams = spec["depends_on"].as_array().into_iter().flatten();
    let upstreams = upstreams.filter_map(|up| up.as_str().or_else(|| up["group"].as_str()));
    let tasks = spec["tasks"]
        .as_object()
        .into_iter()
        .flat_map(Map::values)
        .filter_map(|task| task["group"].as_str());
    upstreams.chain(tasks).collect()
}

/// The name of an object that the server has; its id if it has none.
pub(crate) fn name_of(thing: &Value) -> Option<String> {
    ["name", "id"]
        .iter()
        .find_map(|field| thing[*field].as_str())
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(text: &str) -> String {
        format!("{:#}", parse(text, "f.yaml").unwrap_err())
    }

    #[test]
    fn specs_stand_at_the_top_or_below_spec() {
        let text = "name: a\ntasks: {t: {script: x}}\n---\nkind: group\nname: b\nspec: {tasks: {}}\n---\n---\nkind: email\nname: ops\nfrom: x@y\n---\n{\"kind\": \"pool\", \"name\": \"db\", \"slots\": 2}\n";
        let found = parse(text, "f.yaml").unwrap();
        let kinds: Vec<_> = found.iter().map(|d| (d.kind, d.name.as_str())).collect();
        assert_eq!(
            kinds,
            [
                (Kind::Group, "a"),
                (Kind::Group, "b"),
                (Kind::Channel, "ops"),
                (Kind::Pool, "db")
            ]
        );
        assert_eq!(found[0].spec, json!({"tasks": {"t": {"script": "x"}}}));
        assert_eq!(found[1].spec, json!({"tasks": {}}));
        assert_eq!(found[2].spec, json!({"kind": "email", "from": "x@y"}));
        assert_eq!(found[3].spec, json!({"slots": 2}));
    }

    #[test]
    fn what_the_server_shows_is_read() {
        let offer = "kind: interval\nid: o\naudience: gid_a\nevery: 1h\n";
        let template =
            "kind: template\nname: t\nschema: {type: object}\ncreated_at: 2026-11-20T08:00:00Z\nupdated_at: null\n";
        let bare = "kind: template\nname: u\ntype: object\n";
        let found = parse(&format!("{offer}---\n{template}---\n{bare}"), "f.yaml").unwrap();
        assert_eq!((found[0].kind, found[0].name.as_str()), (Kind::Offer, "o"));
        assert_eq!(found[1].spec, json!({"type": "object"}));
        assert_eq!(found[2].spec, json!({"type": "object"}));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        assert!(said("tasks: {}").contains("f.yaml: /name"), "{}", said("tasks: {}"));
        assert!(said("tasks: {}").contains("without a kind, it is a group"));
        assert!(said("kind: pool").contains("/name: the pool has no name"));
        assert!(said("name: a\n---\nkind: groop\nname: b").contains("f.yaml (document 2): /kind"));
        let queue = said("kind: queue\nname: s1\ndepth: 0");
        assert!(queue.contains("f.yaml: /kind: a queue cannot be applied; "), "{queue}");
        assert!(said("name: a\nspec: {}\ntasks: {}").contains("/spec"));
        assert!(said("- a").contains("mapping"));
        assert!(said("name: [").contains("not YAML"));
    }

    #[test]
    fn things_come_after_what_they_refer_to() {
        let text = "kind: offer\nname: o\n---\nname: c\ndepends_on: [{group: b}]\n---\nname: b\ntasks: {t: {group: a}}\n---\nname: a\n---\nkind: template\nname: t\n";
        let names: Vec<String> = in_order(parse(text, "f").unwrap())
            .into_iter()
            .map(|d| d.name)
            .collect();
        assert_eq!(names, ["t", "a", "b", "c", "o"]);
    }

    #[test]
    fn an_empty_variable_is_no_secret() {
        let filled = |value: Option<&str>| {
            let mut spec = json!({"from_env": "API_KEY", "groups": ["g"]});
            fill_from_env(&mut spec, |name| {
                assert_eq!(name, "API_KEY");
                value.map(str::to_owned)
            })
            .map(|()| spec)
        };
        assert_eq!(filled(Some("hush")).unwrap(), json!({"value": "hush", "groups": ["g"]}));
        for none in [None, Some("")] {
            let said = filled(none).unwrap_err().to_string();
            assert!(
                said.contains("/from_env") && said.contains("`API_KEY` is not set or empty"),
                "{said}"
            );
        }
    }

    #[test]
    fn a_cycle_is_left_to_the_server() {
        let text = "name: a\ndepends_on: [b]\n---\nname: b\ndepends_on: [a]\n---\nname: c\ndepends_on: [c]";
        assert_eq!(in_order(parse(text, "f").unwrap()).len(), 3);
    }

    #[test]
    fn what_export_writes_is_read_back_as_it_was() {
        let spec = json!({"schedules": {"n": {"cron": "0 2 * * *"}}, "params": {
            "number": 1, "text": "1", "exp": "1e3", "null": "null", "yes": "yes", "date": "2026-01-01", "empty": "",
            "template": "{{ logical_time | date }}", "lines": "a\n b\n", "none": null, "list": [[], {}], "key: x": "#",
        }});
        let text = crate::output::yaml(&json!({"kind": "group", "name": "1", "spec": spec})).unwrap();
        let read = parse(&format!("{text}---\n{}", text.replace("name: \"1\"", "name: b")), "f").unwrap();
        assert_eq!(
            (read[0].name.as_str(), &read[0].spec, &read[1].spec),
            ("1", &spec, &spec),
            "{text}"
        );
    }
}
