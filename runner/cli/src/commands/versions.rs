//! Comparing versions of scripts: with each other (`heddle script diff`), and with the result of this program's
//! compiler and runtimes (`heddle script check`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use heddle_client::{Runtime, ScriptVersion};
use heddle_domain::schema::changes as schema;
use heddle_sandbox::{CompileError, Compiled, Language, has_interface};
use heddle_ui::difference::patch;
use serde_json::{Value, json};

use super::apply::painted;
use super::local::Local;
use crate::document;
use crate::exit::{NO, done, usage};
use crate::output::{self, Rows, cell, items};
use crate::session::Session;
use crate::terminal;

/// The options of `heddle script diff`.
#[derive(Args, Debug)]
pub struct ScriptDiff {
    /// The name of the script
    pub name: String,
    /// A version, to compare with the newest version, or a file, to compare with the active version [default: the
    /// version before the newest]
    #[arg(value_name = "VERSION|FILE")]
    pub from: Option<String>,
    /// Another version or a file
    #[arg(value_name = "VERSION|FILE")]
    pub to: Option<String>,
}

/// The options of `heddle script check`.
#[derive(Args, Debug)]
pub struct Check {
    /// Only these scripts [default: all]
    pub names: Vec<String>,
}

/// The bytes of a script, and what is known about them.
struct Side {
    label: String,
    bytes: Bytes,
    language: Option<Language>,
    facts: Option<Value>,
}

/// What is known about a version without its bytes.
fn facts_of(version: &ScriptVersion) -> Value {
    json!({
        "world": version.world,
        "digest": version.digest.trim_start_matches("sha256:"),
        "size": version.size,
        "description": version.description,
        "defaults": version.defaults,
        "params_schema": version.params_schema,
    })
}

/// The same for a script that was compiled here.
fn facts_here(compiled: &Compiled) -> Value {
    json!({
        "world": compiled.world.as_str(),
        "digest": compiled.digest.trim_start_matches("sha256:"),
        "size": compiled.size,
        "description": compiled.description.as_deref().unwrap_or_default(),
        "defaults": compiled.defaults,
        "params_schema": compiled.params_schema,
    })
}

pub(super) async fn bytes_of(session: &Session, version: &ScriptVersion) -> Result<Bytes> {
    Ok(match Language::of_world(&version.world) {
        Some(_) => session.client.script_source(&version.name, version.version).await?,
        None => session.client.script_wasm(&version.name, version.version).await?,
    })
}

async fn versions_of(session: &Session, name: &str) -> Result<Vec<ScriptVersion>> {
    let request = session.client.get(&["v1", "scripts", name, "versions"]);
    session.all(request).await
}

/// The two that are to be compared.
#[derive(Debug, PartialEq)]
enum Meant<'a> {
    Version(i32),
    File(&'a str),
}

fn meant(text: &str) -> Meant<'_> {
    text.parse().map_or(Meant::File(text), Meant::Version)
}

fn pair<'a>(diff: &'a ScriptDiff, numbers: &[i32], active: Option<i32>) -> Result<(i32, Meant<'a>)> {
    let name = &diff.name;
    let newest = numbers.iter().max().copied();
    let newest = newest.with_context(|| format!("the script `{name}` has no versions"))?;
    Ok(match (diff.from.as_deref().map(meant), diff.to.as_deref().map(meant)) {
        (None, _) => {
            let before = numbers.iter().copied().filter(|number| *number < newest).max();
            let before = before
                .ok_or_else(|| usage(format!("`{name}` has only one version; give a file to compare it with")))?;
            (before, Meant::Version(newest))
        }
        (Some(Meant::File(file)), None) => (active.unwrap_or(newest), Meant::File(file)),
        (Some(Meant::Version(from)), to) => (from, to.unwrap_or(Meant::Version(newest))),
        (Some(Meant::File(file)), Some(_)) => {
            return Err(usage(format!("`{file}` is not a version; write VERSION FILE")));
        }
    })
}

pub(super) async fn diff(session: &Session, wanted: &ScriptDiff) -> Result<ExitCode> {
    let versions = versions_of(session, &wanted.name).await?;
    let numbers: Vec<i32> = versions.iter().map(|version| version.version).collect();
    let active = versions
        .iter()
        .find(|version| version.active)
        .map(|version| version.version);
    let (from, to) = pair(wanted, &numbers, active)?;
    let side = async |number: i32| {
        let found = versions.iter().find(|version| version.version == number);
        let found = found.with_context(|| format!("`{}` has no version {number}", wanted.name))?;
        anyhow::Ok(Side {
            label: format!("{}@{number}", wanted.name),
            bytes: bytes_of(session, found).await?,
            language: Language::of_world(&found.world),
            facts: Some(facts_of(found)),
        })
    };
    let old = side(from).await?;
    let new = match to {
        Meant::Version(number) => side(number).await?,
        Meant::File(file) => Side {
            label: file.to_owned(),
            bytes: document::read_bytes(Path::new(file))?.into(),
            language: Language::of_file(file),
            facts: None,
        },
    };
    let kind = if old.language.is_some() && new.language.is_some() {
        "source"
    } else {
        "facts"
    };
    // The schema of a source file is only known after compiling it, and it is not compiled for a comparison.
    let params: Vec<String> = match (&old.facts, &new.facts) {
        (Some(old), Some(new)) => schema::changes(&old["params_schema"], &new["params_schema"])
            .iter()
            .map(ToString::to_string)
            .collect(),
        _ => Vec::new(),
    };
    let text = between(old, new, kind).await?;
    let differ = !text.is_empty();
    let difference = json!({"name": wanted.name, "kind": kind, "diff": text, "params": params});
    let colours = terminal::has_colours();
    session.output.print(&difference, |difference| {
        let lines = difference["diff"].as_str().unwrap_or_default().lines();
        let mut lines: Vec<String> = lines.map(|line| painted(line, colours)).collect();
        if !params.is_empty() {
            lines.push("\nParams:".to_owned());
            lines.extend(params.iter().map(|change| format!("  {change}")));
        }
        lines.join("\n")
    })?;
    if differ { Ok(ExitCode::from(NO)) } else { done() }
}

/// The difference of two texts, line by line; otherwise, of what is known about both.
async fn between(old: Side, new: Side, kind: &str) -> Result<String> {
    if old.bytes == new.bytes && old.language == new.language {
        return Ok(String::new());
    }
    let (from, to) = (old.label.clone(), new.label.clone());
    let (old, new) = match kind {
        "source" => {
            let text = |side: &Side| String::from_utf8_lossy(&side.bytes).into_owned();
            (text(&old), text(&new))
        }
        _ => (output::yaml(&known(old).await?)?, output::yaml(&known(new).await?)?),
    };
    Ok(patch([&from, &to], &old, &new))
}

async fn known(side: Side) -> Result<Value> {
    match side.facts {
        Some(facts) => Ok(facts),
        None => {
            let compiled = Local::new()?.compile(side.language, side.bytes).await;
            let compiled = compiled.map_err(|error| usage(format!("{}: {error}", side.label)))?;
            Ok(facts_here(&compiled))
        }
    }
}

/// Names with versions, as groups and topics name scripts.
fn named(value: &Value, found: &mut BTreeSet<(String, i32)>) {
    match value {
        Value::Object(fields) => {
            if let Some((name, version)) = fields
                .get("script")
                .and_then(Value::as_str)
                .and_then(|text| text.split_once('@'))
                && let Ok(version) = version.parse()
            {
                found.insert((name.to_owned(), version));
            }
            fields.values().for_each(|value| named(value, found));
        }
        Value::Array(all) => all.iter().for_each(|value| named(value, found)),
        _ => {}
    }
}

/// The versions that can still run: the active ones, those that groups and topics name, and those that live runs have
/// pinned.
async fn in_use(session: &Session, names: &[String]) -> Result<BTreeSet<(String, i32)>> {
    let mut used = BTreeSet::new();
    let list = async |path: &[&str]| session.all::<Value>(session.client.get(path)).await;
    let scripts = list(&["v1", "scripts"]).await?;
    for script in &scripts {
        if let (Some(name), Some(active)) = (script["name"].as_str(), script["active_version"].as_i64()) {
            used.insert((name.to_owned(), i32::try_from(active)?));
        }
    }
    for kind in ["groups", "topics"] {
        for thing in list(&["v1", kind]).await? {
            named(&thing, &mut used);
        }
    }
    let known = |name: &String| scripts.iter().any(|script| script["name"] == **name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        anyhow::bail!("there is no script `{unknown}`");
    }
    used.retain(|(name, _)| names.is_empty() || names.contains(name));
    for script in &scripts {
        let Some(name) = script["name"].as_str() else { continue };
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            add_pinned(session, name, &mut used).await?;
        }
    }
    Ok(used)
}

/// Whether a live run has pinned a script: any version of it (`name`), or one (`name@version`).
async fn is_under_way(session: &Session, script: &str) -> Result<bool> {
    let mut request = session.client.get(&["v1", "runs"]).query("script", script);
    for state in ["waiting", "running", "paused"] {
        request = request.query("state", state);
    }
    let found: Value = request.query("limit", 1).send_for_list().await?;
    Ok(items(&found).next().is_some())
}

/// Adds the versions of a script that live runs have pinned. For each version, it asks the server whether there is such
/// a run, so the number of runs does not matter.
async fn add_pinned(session: &Session, name: &str, used: &mut BTreeSet<(String, i32)>) -> Result<()> {
    if !is_under_way(session, name).await? {
        return Ok(());
    }
    for version in versions_of(session, name).await? {
        let version = (name.to_owned(), version.version);
        if !used.contains(&version) && is_under_way(session, &format!("{name}@{}", version.1)).await? {
            used.insert(version);
        }
    }
    Ok(())
}

/// How a version differs when it is compiled here.
fn changes(version: &ScriptVersion, compiled: &Compiled) -> Vec<&'static str> {
    let (there, here) = (facts_of(version), facts_here(compiled));
    ["world", "description", "defaults", "params_schema"]
        .into_iter()
        .filter(|fact| there[*fact] != here[*fact])
        .collect()
}

/// The version of the host interface that each stored runtime needs, by the runtime's tag.
async fn kept_runtimes(session: &Session) -> Result<BTreeMap<String, i32>> {
    let request = session.client.get(&["v1", "runtimes"]);
    let all: Vec<Runtime> = session.all(request).await?;
    Ok(all
        .into_iter()
        .map(|runtime| (runtime.tag, runtime.interface))
        .collect())
}

pub(super) async fn check(session: &Session, wanted: &Check) -> Result<ExitCode> {
    let used = in_use(session, &wanted.names).await?;
    let local = Local::new()?;
    let mut results = Vec::new();
    // Read only when a version names a runtime: an older server has none.
    let mut kept: Option<BTreeMap<String, i32>> = None;
    for (name, number) in used {
        let found: ScriptVersion = session
            .client
            .get(&["v1", "scripts", &name, "versions", &number.to_string()])
            .send()
            .await?;
        let language = Language::of_world(&found.world);
        let own = match language {
            Some(language) => Some(local.own_runtime(language).await?),
            None => None,
        };
        // Whether this program would keep running the version on the older runtime with which it was checked.
        let keeps = match (&found.runtime_tag, own) {
            (Some(tag), Some(own)) if *tag != own.tag => {
                if kept.is_none() {
                    kept = Some(kept_runtimes(session).await?);
                }
                let interface = kept.as_ref().and_then(|kept| kept.get(tag)).copied();
                interface.is_some_and(|interface| u32::try_from(interface).is_ok_and(has_interface))
            }
            _ => false,
        };
        let compiled = local.compile(language, bytes_of(session, &found).await?).await;
        let (result, changed, error) = match &compiled {
            Ok(compiled) => match changes(&found, compiled) {
                same if same.is_empty() => ("same", same, None),
                changed => ("changes", changed, None),
            },
            // An error of this machine says nothing about the script.
            Err(error @ (CompileError::Internal(_) | CompileError::NotNow(_))) => {
                anyhow::bail!("{name}@{number} cannot be checked: {error}")
            }
            Err(error) => ("fails", Vec::new(), Some(error.to_string())),
        };
        results.push(json!({
            "name": name, "version": number, "world": found.world,
            "checked_with": found.runtime, "runtime": own.map(ToString::to_string),
            "runtime_tag": found.runtime_tag, "own_tag": own.map(|own| &own.tag), "keeps": keeps,
            "result": result, "changed": changed, "error": error,
        }));
    }
    let good = results.iter().all(|script| script["result"] == "same");
    session.output.print(&json!({ "items": results }), |list| {
        let mut rows = Rows::new(["SCRIPT", "WORLD", "RUNTIME", "RESULT"]);
        for script in items(list) {
            let runtime = match (&script["checked_with"], &script["runtime"]) {
                (Value::String(before), Value::String(now)) if before != now => match script["keeps"] == true {
                    true => format!("{now} (stays on {before} until that is retired)"),
                    false => format!("{now} (was {before})"),
                },
                (_, Value::String(now)) => now.clone(),
                _ => "-".into(),
            };
            let changed: Vec<&str> = script["changed"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let result = match script["error"].as_str() {
                Some(error) => format!("fails: {error}"),
                None if changed.is_empty() => "same".into(),
                None => format!("changes: {}", changed.join(", ")),
            };
            rows.add([
                format!("{}@{}", cell(script, "/name"), cell(script, "/version")),
                cell(script, "/world"),
                runtime,
                result,
            ]);
        }
        rows.to_string()
    })?;
    if good { done() } else { Ok(ExitCode::from(NO)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::code;

    fn wanted(from: Option<&str>, to: Option<&str>) -> ScriptDiff {
        ScriptDiff {
            name: "clean".into(),
            from: from.map(str::to_owned),
            to: to.map(str::to_owned),
        }
    }

    #[test]
    fn two_are_meant() {
        let numbers = [4, 3, 1];
        for (from, to, expected) in [
            (None, None, (3, Meant::Version(4))),
            (Some("1"), None, (1, Meant::Version(4))),
            (Some("4"), Some("1"), (4, Meant::Version(1))),
            (Some("clean.ts"), None, (3, Meant::File("clean.ts"))),
            (Some("1"), Some("clean.ts"), (1, Meant::File("clean.ts"))),
        ] {
            assert_eq!(pair(&wanted(from, to), &numbers, Some(3)).unwrap(), expected);
        }
        assert!(pair(&wanted(Some("a.ts"), Some("1")), &numbers, None).is_err());
        assert!(pair(&wanted(None, None), &[1], None).is_err());
        // A script without versions is no error of usage.
        assert_eq!(code(&pair(&wanted(None, None), &[], None).unwrap_err()), NO);
    }

    #[test]
    fn versions_that_specs_name_are_found() {
        let mut found = BTreeSet::new();
        let group = json!({"tasks": {"a": {"script": "x@3"}, "b": {"script": "y"}}, "on_end": [{"script": "z@2"}], "script": "odd@v"});
        named(&group, &mut found);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [("x".to_owned(), 3), ("z".to_owned(), 2)]
        );
    }
}
