//! `apply`, `diff` and `export`: the cluster as files.

mod brought;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use heddle_domain::Time;
use heddle_domain::dispatch::{Offer, OfferSpec};
use heddle_domain::notify::channel::ChannelSpec;
use heddle_domain::spec::{GroupSpec, ScheduleSpec, TaskSpec};
use heddle_domain::topic::{GROUP_PREFIX, Topic, TopicSpec};
use heddle_ui::difference::patch;
use serde_json::{Map, Value, json};

use super::prune;
use crate::document::{self, Document, Kind, name_of};
use crate::exit::{NO, done, usage};
use crate::output::{self, Format, yaml};
use crate::session::Session;
use crate::terminal::{self, tell};

/// Each paragraph is one line: it is wrapped as wide as the terminal is.
const FILES_HELP: &str = "Files contain YAML (or JSON) documents, separated by `---`, of this form:

  kind: group      # the default, or see below
  name: nightly
  spec: { ... }    # or the fields of the spec beside kind and name

Kinds: group, category, template, secret, connection, pool, channel, topic, offer. For a channel or an offer, `kind` can \
also be its own kind (email, webhook, ...; once, interval, daily). A secret can have `from_env: NAME` instead of `value`.

The documents are sorted: each object comes after the objects that it refers to.";

/// The options of `heddle apply`.
#[derive(Args, Debug)]
#[command(after_help = FILES_HELP)]
pub struct Apply {
    /// A file, a directory (all YAML and JSON files below it), or `-` for stdin. Can be repeated
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Change nothing; let the server check the groups
    #[arg(long)]
    pub dry_run: bool,
    /// Delete objects that are on the server but not in the files, for each kind that the files contain. Needs a
    /// directory. Shows the objects and asks first
    #[arg(long)]
    pub prune: bool,
    /// With --prune: delete without asking
    #[arg(long, requires = "prune")]
    pub yes: bool,
}

/// The options of `heddle diff`.
#[derive(Args, Debug)]
#[command(after_help = FILES_HELP)]
pub struct Diff {
    /// A file, a directory (all YAML and JSON files below it), or `-` for stdin. Can be repeated
    #[arg(short, long = "file", required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

/// The options of `heddle export`.
#[derive(Args, Debug)]
pub struct Export {
    /// Only the groups with these names
    pub groups: Vec<String>,
    /// Only the groups in this category
    #[arg(long)]
    pub category: Option<String>,
    /// With names or --category: also channels, topics, offers, categories, templates and pools
    #[arg(long)]
    pub all: bool,
}

pub(crate) async fn apply(session: &Session, apply: &Apply) -> Result<ExitCode> {
    if apply.prune && !apply.files.iter().any(|file| file.is_dir()) {
        return Err(usage(
            "--prune needs a directory, because it deletes everything that the files do not contain",
        ));
    }
    let documents = document::read_all(&apply.files)?;
    let surplus = match apply.prune {
        true => prune::surplus(session, &documents).await?,
        false => Vec::new(),
    };
    // The deletions are shown and confirmed before anything is changed.
    let prunes = !surplus.is_empty() && !apply.dry_run && {
        if !prune::agreed(&surplus, apply.yes)? {
            return Ok(ExitCode::from(NO));
        }
        true
    };
    let mut results = Vec::new();
    let mut refused = false;
    for document in &documents {
        let result = if apply.dry_run {
            brought::check(session, document, &documents).await
        } else {
            put(session, document).await
        };
        match result {
            Ok(what) => results.push(json!({ "kind": document.kind.as_str(), "name": document.name, "result": what })),
            Err(error) if error.status().is_some_and(|status| status < 500 && status != 401) => {
                // The other files may be valid, and people who fix one error want to see all errors.
                refused = true;
                tell!("error: {document}: {error}");
                let refusal = error.problem().map(|problem| json!(problem)).unwrap_or_default();
                results.push(json!({
                    "kind": document.kind.as_str(), "name": document.name, "result": "refused", "problem": refusal
                }));
            }
            Err(error) => return Err(error).with_context(|| document.to_string()),
        }
    }
    if apply.dry_run {
        results.extend(surplus.iter().map(
            |(kind, name)| json!({ "kind": kind.as_str(), "name": name, "result": "would be deleted (dry run)" }),
        ));
    } else if refused && prunes {
        tell!("nothing was deleted, because the server refused a document");
    } else if prunes {
        let (deleted, some_refused) = prune::delete(session, surplus).await?;
        results.extend(deleted);
        refused = some_refused;
    }
    session.output.print(&json!({ "items": results }), |list| {
        let lines = output::items(list).map(|item| {
            format!(
                "{} {} {}",
                output::plain(&item["kind"]),
                output::plain(&item["name"]),
                output::plain(&item["result"])
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    })?;
    if session.output == Format::Table
        && let Some(page) = page(session, &results)
    {
        // On stderr, because programs read the lines on stdout.
        tell!("{page}");
    }
    if refused { Ok(ExitCode::from(NO)) } else { done() }
}

/// The page of the group that is new or changed; of several, the page that lists the groups.
fn page(session: &Session, results: &[Value]) -> Option<String> {
    let mut groups = results
        .iter()
        .filter(|one| one["kind"] == "group" && (one["result"] == "created" || one["result"] == "changed"));
    let name = groups.next()?["name"].as_str()?;
    Some(match groups.next() {
        None => session.page(&["groups", name]),
        Some(_) => session.page(&["groups"]),
    })
}

async fn put(session: &Session, document: &Document) -> heddle_client::Result<&'static str> {
    let before = match document.kind {
        Kind::Secret => None,
        _ => existing(session, document).await?,
    };
    let kind = document.kind;
    let mut after = session
        .client
        .put_named(kind.path(), &document.name, &document.spec)
        .await?;
    if let Value::Object(after) = &mut after
        && let Some(warnings) = after.remove("warnings")
    {
        for warning in output::items(&warnings) {
            let (pointer, detail) = (output::plain(&warning["pointer"]), output::plain(&warning["detail"]));
            tell!(
                "warning: {} {}: {pointer}: {detail}",
                document.kind.as_str(),
                document.name
            );
        }
    }
    Ok(match before {
        None if kind == Kind::Secret => "set",
        None => "created",
        Some(before) if same(kind, &before, &after) => "unchanged",
        Some(_) => "changed",
    })
}

/// Whether nothing differs except the time of the change. For a channel, that time alone may show a change, because its
/// secret parts are not shown.
fn same(kind: Kind, before: &Value, after: &Value) -> bool {
    if kind == Kind::Channel {
        return before == after;
    }
    if let (Some(was), Some(is)) = (before.get("revision"), after.get("revision")) {
        return was == is && before.get("enabled") == after.get("enabled");
    }
    let without_time = |value: &Value| {
        let mut value = value.clone();
        if let Value::Object(fields) = &mut value {
            fields.remove("updated_at");
        }
        value
    };
    without_time(before) == without_time(after)
}

async fn existing(session: &Session, document: &Document) -> heddle_client::Result<Option<Value>> {
    match session.client.get_named(document.kind.path(), &document.name).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.status() == Some(404) => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) async fn diff(session: &Session, diff: &Diff) -> Result<ExitCode> {
    let documents = document::read_all(&diff.files)?;
    let mut differences = Vec::new();
    for document in documents.iter().filter(|document| document.kind != Kind::Secret) {
        let found = existing(session, document)
            .await
            .with_context(|| document.to_string())?;
        let (ours, theirs) = compared(document, found);
        if theirs.as_ref() == Some(&ours) {
            continue;
        }
        let text = unified(document, theirs.as_ref(), &ours)?;
        differences.push(json!({ "kind": document.kind.as_str(), "name": document.name, "diff": text }));
    }
    let any = !differences.is_empty();
    let colours = terminal::has_colours();
    session.output.print(&json!({ "items": differences }), |list| {
        let lines = output::items(list)
            .filter_map(|item| item["diff"].as_str())
            .flat_map(str::lines);
        lines.map(|line| painted(line, colours) + "\n").collect()
    })?;
    if any { Ok(ExitCode::from(NO)) } else { done() }
}

/// A file and the object on the server, reduced to what `apply` would change. So an answer of the server can be applied
/// again, with the fields that only answers have.
fn compared(document: &Document, found: Option<Value>) -> (Value, Option<Value>) {
    let kind = document.kind;
    let mut ours = normal(kind, &strip(kind, document.spec.clone()));
    let theirs = found.map(|found| {
        let enabled = found["enabled"].clone();
        let mut theirs = without_creation(kind, normal(kind, &strip(kind, found)), &ours);
        // This is no part of a group's spec, but `apply` sets it.
        if kind == Kind::Group && document.spec["enabled"].is_boolean() {
            theirs["enabled"] = enabled;
        }
        theirs
    });
    if kind == Kind::Group && document.spec["enabled"].is_boolean() {
        ours["enabled"] = document.spec["enabled"].clone();
    }
    (ours, theirs)
}

fn unified(document: &Document, theirs: Option<&Value>, ours: &Value) -> Result<String> {
    let (old, new) = (theirs.map(yaml).transpose()?.unwrap_or_default(), yaml(ours)?);
    let what = format!("{} {}", document.kind.as_str(), document.name);
    let (from, to) = (format!("server: {what}"), format!("{}: {what}", document.source));
    Ok(patch([&from, &to], &old, &new))
}

pub(super) fn painted(line: &str, colours: bool) -> String {
    let colour = match line.as_bytes().first() {
        Some(b'+') => "32",
        Some(b'-') => "31",
        Some(b'@') => "36",
        _ => return line.to_owned(),
    };
    terminal::coloured(line, colour, colours)
}

/// Whether the server does not have what was asked for.
fn is_missing(error: &anyhow::Error) -> bool {
    let refused = error.downcast_ref::<heddle_client::Error>();
    refused.and_then(heddle_client::Error::status) == Some(404)
}

pub(crate) async fn export(session: &Session, export: &Export) -> Result<ExitCode> {
    let mut things: Vec<(Kind, Value)> = Vec::new();
    let only_some_groups = !export.groups.is_empty() || export.category.is_some();
    if export.all || !only_some_groups {
        for kind in [
            Kind::Category,
            Kind::Template,
            Kind::Pool,
            Kind::Channel,
            Kind::Topic,
            Kind::Offer,
        ] {
            let request = session.client.get(&["v1", kind.path()]);
            let items: Vec<Value> = match session.all(request).await {
                // An older server does not know this kind, and so has none.
                Err(error) if is_missing(&error) => continue,
                listed => listed?,
            };
            for item in items {
                // A template's list may leave its schema out. Offers of runs' tasks go with their runs.
                let Some(name) = name_of(&item).filter(|_| kind != Kind::Offer || item["run"].is_null()) else {
                    continue;
                };
                match session.client.get_named(kind.path(), &name).await {
                    // It was deleted in between.
                    Err(error) if error.status() == Some(404) => {}
                    found => things.push((kind, found.with_context(|| format!("{} {name}", kind.as_str()))?)),
                }
            }
        }
    }
    if export.groups.is_empty() {
        let request = session
            .client
            .get(&["v1", "groups"])
            .query_if("category", export.category.as_deref());
        let groups: Vec<Value> = session.all(request).await?;
        session
            .has_to_be(&groups, "categories", export.category.as_deref())
            .await?;
        for group in groups {
            // Groups that Heddle creates for its topics are left out: they come with the topics.
            let Some(name) = name_of(&group).filter(|name| !name.starts_with(GROUP_PREFIX)) else {
                continue;
            };
            match session.client.get_named("groups", &name).await {
                Err(error) if error.status() == Some(404) => {}
                found => things.push((Kind::Group, found.with_context(|| format!("group {name}"))?)),
            }
        }
    }
    for name in &export.groups {
        let group = session
            .client
            .get_named("groups", name)
            .await
            .with_context(|| format!("group {name}"))?;
        things.push((Kind::Group, group));
    }
    things.sort_by_key(|(kind, _)| *kind);
    let mut documents = Vec::new();
    for (kind, thing) in things {
        let Some(name) = name_of(&thing) else { continue };
        let spec = normal(kind, &strip(kind, thing));
        documents.push(json!({ "kind": kind.as_str(), "name": name, "spec": spec }));
    }
    if session.output == output::Format::Json {
        output::print(&serde_json::to_string_pretty(&json!({ "items": documents }))?)?;
    } else {
        let texts = documents.iter().map(yaml).collect::<Result<Vec<_>>>()?;
        output::print(&texts.join("---\n"))?;
    }
    done()
}

/// The spec within the answer about an object.
fn strip(kind: Kind, thing: Value) -> Value {
    let Value::Object(mut fields) = thing else { return thing };
    match kind {
        Kind::Group => {
            // Specs may get new fields, so this lists the fields that only answers have.
            for field in ["name", "revision", "enabled", "created_at", "updated_at"] {
                fields.remove(field);
            }
            for schedule in fields
                .get_mut("schedules")
                .and_then(Value::as_object_mut)
                .into_iter()
                .flatten()
            {
                if let Some(schedule) = schedule.1.as_object_mut() {
                    schedule.remove("next");
                    if schedule.remove("fired_at").is_some_and(|fired_at| !fired_at.is_null()) {
                        // A schedule that has disabled itself was written as enabled.
                        schedule.remove("enabled");
                    }
                }
            }
        }
        Kind::Template => {
            if let Some(schema) = fields.remove("schema") {
                return schema;
            }
            fields.retain(|field, _| !matches!(field.as_str(), "name" | "created_at" | "updated_at" | "revision"));
        }
        _ => {
            let servers = [
                "name",
                "id",
                "created_at",
                "updated_at",
                "revision",
                "next",
                "used",
                "taken",
                "waiting",
                "counts",
                "problem",
            ];
            fields.retain(|field, value| !servers.contains(&field.as_str()) && !value.is_null());
        }
    }
    Value::Object(fields)
}

/// A spec as the server would write it, without what is at its default, so that two can be compared.
fn normal(kind: Kind, spec: &Value) -> Value {
    if kind == Kind::Offer {
        // A spec of a newer server, or a wrong one, is compared as it is.
        return normal_offer(spec).unwrap_or_else(|| spec.clone());
    }
    if kind == Kind::Topic {
        return normal_topic(spec);
    }
    if kind == Kind::Channel {
        // Write-only fields cannot be compared.
        return match serde_json::from_value::<ChannelSpec>(spec.clone()) {
            Ok(known) => serde_json::to_value(known.shown()).unwrap_or_else(|_| spec.clone()),
            Err(_) => spec.clone(),
        };
    }
    if kind != Kind::Group && kind != Kind::Template {
        return normal_small(kind, spec);
    }
    if kind == Kind::Template {
        return spec.clone();
    }
    let mut spec = match serde_json::from_value::<GroupSpec>(without_nulls(spec)) {
        Ok(known) => serde_json::to_value(known).unwrap_or_else(|_| spec.clone()),
        // A spec of a newer server, or a wrong one, is compared as it is.
        Err(_) => without_nulls(spec),
    };
    if let Value::Object(fields) = &mut spec {
        drop_defaults(fields, &fields_of(&GroupSpec::default()));
        // The server returns the default.
        if fields.get("timezone").is_some_and(|zone| zone == "UTC") {
            fields.remove("timezone");
        }
        for (section, defaults) in [
            ("tasks", fields_of(&TaskSpec::default())),
            ("schedules", fields_of(&ScheduleSpec::default())),
        ] {
            for thing in fields
                .get_mut(section)
                .and_then(Value::as_object_mut)
                .into_iter()
                .flatten()
            {
                if let Some(thing) = thing.1.as_object_mut() {
                    drop_defaults(thing, &defaults);
                }
            }
        }
    }
    spec
}

/// Objects with a few fields: without fields that have their default, and without write-only fields.
fn normal_small(kind: Kind, spec: &Value) -> Value {
    let Value::Object(fields) = spec else {
        return spec.clone();
    };
    let mut fields = fields.clone();
    let defaults = match kind {
        Kind::Connection => {
            fields.remove("url");
            json!({"groups": [], "categories": [], "max_connections": 4, "read_only": false})
        }
        _ => json!({"description": ""}),
    };
    if let Value::Object(defaults) = &defaults {
        drop_defaults(&mut fields, defaults);
    }
    Value::Object(fields)
}

fn normal_offer(spec: &Value) -> Option<Value> {
    let dated = OFFER_STARTS.into_iter().any(|field| !spec[field].is_null());
    let known: OfferSpec = serde_json::from_value(without_nulls(spec)).ok()?;
    let offer = Offer::compile(known, Time::UNIX_EPOCH).ok()?;
    let mut spec = heddle_store::offer::written_out(&offer);
    let defaults = json!({"params": {}, "dispatch_times": 1, "mode": "single", "priority": 0, "return_failed": false,
                          "enabled": true, "every_days": 1, "timezone": "UTC"});
    let fields = spec.as_object_mut()?;
    drop_defaults(fields, defaults.as_object()?);
    if !dated {
        OFFER_STARTS.into_iter().for_each(|field| drop(fields.remove(field)));
    }
    Some(spec)
}

/// Fields of an offer that the server sets to the time of creation if they are left out.
const OFFER_STARTS: [&str; 2] = ["starts_at", "anchor"];

/// The server's answer about an offer, without the instant that the file leaves to the server.
fn without_creation(kind: Kind, mut theirs: Value, ours: &Value) -> Value {
    if kind == Kind::Offer
        && let Some(fields) = theirs.as_object_mut()
    {
        fields.retain(|field, _| !OFFER_STARTS.contains(&field.as_str()) || !ours[field.as_str()].is_null());
    }
    theirs
}

/// A topic as the server would write it, with every default.
fn normal_topic(spec: &Value) -> Value {
    let given = without_nulls(spec);
    let read = serde_json::from_value::<TopicSpec>(given.clone()).ok();
    let Some(Ok(topic)) = read.map(Topic::compile) else {
        return given;
    };
    serde_json::to_value(&topic.spec).map_or(given, |written| without_nulls(&written))
}

fn fields_of(value: &impl serde::Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

fn drop_defaults(fields: &mut Map<String, Value>, defaults: &Map<String, Value>) {
    fields.retain(|name, value| !value.is_null() && defaults.get(name) != Some(value));
}

/// Fields that are null at the places where that means *not set*: params and request bodies keep theirs.
fn without_nulls(spec: &Value) -> Value {
    let mut spec = spec.clone();
    if let Value::Object(fields) = &mut spec {
        fields.retain(|_, value| !value.is_null());
        for section in ["tasks", "schedules"] {
            for thing in fields
                .get_mut(section)
                .and_then(Value::as_object_mut)
                .into_iter()
                .flatten()
            {
                if let Some(thing) = thing.1.as_object_mut() {
                    thing.retain(|_, value| !value.is_null());
                }
            }
        }
    }
    spec
}

#[cfg(test)]
mod tests;
