//! Examples of bodies, for the OpenAPI description: those of a shop whose orders are loaded each night, as a node has
//! taken and answered them.
//!
//! The files have them by name. An example has the name of its schema (`Run`), or, where one schema serves several
//! purposes, of the operation and the position: `post_runs_id_pause.200` is that operation's answer with this status,
//! `ID.body` would be its body. A dot and a word distinguish several of one name (`Run.failed`). A page of a list needs
//! no example, unless its items lack fields that a single answer has.
//!
//! Each is put once among the components; the operations refer to it. Streams of lines, wasm and source text have none:
//! their bodies are no JSON value.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::problem::PROBLEM_JSON;

const FILES: [&str; 12] = [
    include_str!("examples/access.json"),
    include_str!("examples/backfills.json"),
    include_str!("examples/compatibility.json"),
    include_str!("examples/dispatch.json"),
    include_str!("examples/groups.json"),
    include_str!("examples/messages.json"),
    include_str!("examples/nodes.json"),
    include_str!("examples/notifications.json"),
    include_str!("examples/queues.json"),
    include_str!("examples/run_controls.json"),
    include_str!("examples/runs.json"),
    include_str!("examples/scripts.json"),
];

/// The media types whose bodies are JSON values, or can be written as such: JSON is YAML, a line of NDJSON is a value, and
/// a form has fields.
const SHOWN: [&str; 4] = [
    "application/json",
    "application/yaml",
    "application/x-ndjson",
    "application/x-www-form-urlencoded",
];

/// All examples, and which of them were asked for.
pub struct Examples {
    known: BTreeMap<String, Value>,
    used: BTreeSet<String>,
}

impl Examples {
    pub fn new() -> Self {
        // A test reads each file; one that could not be read would leave its operations without examples.
        let files = FILES
            .iter()
            .filter_map(|text| serde_json::from_str::<BTreeMap<String, Value>>(text).ok());
        Self {
            known: files.flatten().collect(),
            used: BTreeSet::new(),
        }
    }

    /// Gives an operation's bodies their examples.
    pub fn put_into(&mut self, operation: &mut Value) {
        let id = operation["operationId"].as_str().unwrap_or_default().to_owned();
        if let Some(body) = operation.get_mut("requestBody") {
            self.put(&format!("{id}.body"), body, &SHOWN);
        }
        let answers = operation.get_mut("responses").and_then(Value::as_object_mut);
        for (status, answer) in answers.into_iter().flatten() {
            // One problem is an example for all: they differ only in words.
            let shown: &[&str] = match status.as_str() {
                "default" => &[PROBLEM_JSON],
                status if status.starts_with('2') => &SHOWN,
                _ => &[],
            };
            self.put(&format!("{id}.{status}"), answer, shown);
        }
    }

    /// Those that were asked for, as components.
    pub fn finish(mut self) -> Map<String, Value> {
        let used = self.used.into_iter();
        used.filter_map(|name| Some((name.clone(), json!({"value": self.known.remove(&name)?}))))
            .collect()
    }

    fn put(&mut self, body_name: &str, described: &mut Value, shown: &[&str]) {
        let content = described.get_mut("content").and_then(Value::as_object_mut);
        for (media_type, body) in content.into_iter().flatten() {
            if !shown.contains(&media_type.as_str()) {
                continue;
            }
            let schema = body["schema"]["$ref"]
                .as_str()
                .and_then(|target| target.rsplit('/').next());
            let names = self.of(body_name, schema.unwrap_or_default());
            if !names.is_empty() {
                let refer = |name: &String| (name.clone(), json!({"$ref": format!("#/components/examples/{name}")}));
                body["examples"] = names.iter().map(refer).collect::<Map<_, _>>().into();
            }
            self.used.extend(names);
        }
    }

    /// The names of the examples of a body (`operation.body`, `operation.200`) with a schema.
    fn of(&mut self, body_name: &str, schema: &str) -> Vec<String> {
        let own = self.named(body_name);
        if !own.is_empty() {
            return own;
        }
        let shared = self.named(schema);
        if !shared.is_empty() {
            return shared;
        }
        let item = schema.strip_suffix("List").unwrap_or_default();
        let Some(item) = self.named(item).first().and_then(|name| self.known.get(name)) else {
            return Vec::new();
        };
        let page = json!({"items": [item], "next_cursor": null});
        self.known.insert(schema.to_owned(), page);
        vec![schema.to_owned()]
    }

    fn named(&self, name: &str) -> Vec<String> {
        let is_named = |known: &&String| {
            let rest = known.strip_prefix(name);
            !name.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.known.keys().filter(is_named).cloned().collect()
    }
}

#[cfg(test)]
mod tests;
