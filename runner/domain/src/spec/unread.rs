//! Params that nobody reads, as far as that is known: `nme` instead of `name` passes every schema that does not forbid
//! unknown fields. This is a warning, never an error: a script may read params that its schema does not name.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::{GroupSpec, SubmissionSpec, TaskSpec};
use crate::fault::pointer_token;
use crate::template::is_template;
use crate::{Fault, Faults};

/// How many letters may be wrong in a name that somebody meant.
const MISTAKES_MAX: usize = 2;

/// What a script declares of its params.
#[derive(Clone, Debug, Default)]
pub struct ScriptParams {
    pub schema: Option<Value>,
    /// The params with default values.
    pub defaults: Map<String, Value>,
}

/// The params that a script names; `None` if its schema leaves room for others.
fn named(script: &ScriptParams) -> Option<BTreeSet<String>> {
    const OPEN: [&str; 8] = [
        "$ref",
        "$dynamicRef",
        "allOf",
        "anyOf",
        "oneOf",
        "if",
        "patternProperties",
        "unevaluatedProperties",
    ];
    let schema = script.schema.as_ref()?.as_object()?;
    let closed = !schema.contains_key("additionalProperties") && OPEN.iter().all(|word| !schema.contains_key(*word));
    let properties = schema
        .get("properties")?
        .as_object()
        .filter(|all| closed && !all.is_empty())?;
    Some(properties.keys().chain(script.defaults.keys()).cloned().collect())
}

/// Whether somebody who wrote one name may have meant another.
pub(super) fn could_mean(written: &str, name: &str) -> bool {
    let mistakes = strsim::damerau_levenshtein(name, written);
    mistakes <= MISTAKES_MAX && mistakes < name.chars().count()
}

/// The params of a spec, or of a submission to it, that are in no task's schema and in no template. `script` returns
/// what is known of a script, by the `name` or `name@version` of a task.
pub fn unread(
    spec: &GroupSpec,
    submission: Option<&SubmissionSpec>,
    mut script: impl FnMut(&str) -> Option<ScriptParams>,
) -> Vec<Fault> {
    let mut scripts: BTreeMap<&str, Option<BTreeSet<String>>> = BTreeMap::new();
    for reference in spec.tasks.values().filter_map(|task| task.script.as_deref()) {
        scripts
            .entry(reference)
            .or_insert_with(|| script(reference).as_ref().and_then(named));
    }
    let of_task = |task: &TaskSpec| scripts.get(task.script.as_deref()?)?.as_ref();
    let templates = templates_of(spec);
    let mentioned = |key: &str| templates.iter().any(|text| text.contains(key));
    let mut found = Faults::default();
    let mut check = |keys: &Map<String, Value>, pointer: &str, known: Option<&BTreeSet<String>>, who: &str| {
        let Some(known) = known else { return };
        for key in keys.keys().filter(|key| !known.contains(*key) && !mentioned(key)) {
            let meant = known
                .iter()
                .filter(|name| could_mean(key, name))
                .min_by_key(|name| strsim::damerau_levenshtein(name, key));
            let meant = meant.map_or(String::new(), |name| format!("; did you mean `{name}`?"));
            let shown: String = key.chars().take(60).collect();
            found.add(
                format!("{pointer}/{}", pointer_token(key)),
                format!("{who} a param named `{shown}`{meant}"),
            );
        }
    };
    // A task without a schema may read anything.
    let everybody: Option<BTreeSet<String>> = spec
        .tasks
        .values()
        .map(|task| of_task(task).cloned())
        .try_fold(BTreeSet::new(), |all, names| Some(&all | &names?));
    let all = everybody.as_ref();
    match submission {
        None => {
            check(&spec.params, "/params", all, "no script of this group has");
            for (name, task) in &spec.tasks {
                let pointer = format!("/tasks/{}/params", pointer_token(name));
                check(
                    &task.params,
                    &pointer,
                    of_task(task),
                    "the script of this task does not have",
                );
            }
        }
        Some(submission) => {
            check(&submission.params, "/params", all, "no script of this group has");
            for (name, params) in &submission.task_params {
                let pointer = format!("/task_params/{}", pointer_token(name));
                let known = spec.tasks.get(name).and_then(of_task);
                check(params, &pointer, known, "the script of this task does not have");
            }
        }
    }
    found.0
}

/// The texts of a spec in which params may be named.
fn templates_of(spec: &GroupSpec) -> Vec<String> {
    fn collect(value: Value, texts: &mut Vec<String>) {
        match value {
            Value::String(text) if is_template(&text) => texts.push(text),
            Value::Array(items) => items.into_iter().for_each(|item| collect(item, texts)),
            Value::Object(fields) => fields.into_iter().for_each(|(_, field)| collect(field, texts)),
            _ => {}
        }
    }
    let mut texts: Vec<String> = spec.tasks.values().filter_map(|task| task.when.clone()).collect();
    collect(serde_json::to_value(spec).unwrap_or_default(), &mut texts);
    texts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(spec: Value, submission: Option<Value>, expect: &[(&str, &str)]) {
        let spec: GroupSpec = serde_json::from_value(spec).unwrap();
        let submission: Option<SubmissionSpec> = submission.map(|value| serde_json::from_value(value).unwrap());
        let script = |reference: &str| {
            let schema = match reference {
                "greet" => json!({"properties": {"name": {}, "times": {}}}),
                "open" => json!({"properties": {"a": {}}, "additionalProperties": true}),
                "one-of" => json!({"properties": {"a": {}}, "oneOf": [{}]}),
                _ => return None,
            };
            Some(ScriptParams {
                schema: Some(schema),
                defaults: Map::new(),
            })
        };
        let found = unread(&spec, submission.as_ref(), script);
        let found: Vec<_> = found
            .iter()
            .map(|fault| (fault.pointer.as_str(), fault.detail.as_str()))
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn what_nobody_reads_is_named() {
        let greet = |params: Value| json!({"tasks": {"t": {"script": "greet", "params": params}}});
        check(
            greet(json!({"nme": "Ada", "times": 1})),
            None,
            &[(
                "/tasks/t/params/nme",
                "the script of this task does not have a param named `nme`; did you mean `name`?",
            )],
        );
        check(
            greet(json!({"colour": 1})),
            None,
            &[(
                "/tasks/t/params/colour",
                "the script of this task does not have a param named `colour`",
            )],
        );
        check(greet(json!({"name": "{{ params.day }}", "day": 1})), None, &[]);
        let given = json!({"params": {"nme": 1, "name": 2}, "task_params": {"t": {"tmes": 1}}});
        check(
            greet(json!({})),
            Some(given.clone()),
            &[
                (
                    "/params/nme",
                    "no script of this group has a param named `nme`; did you mean `name`?",
                ),
                (
                    "/task_params/t/tmes",
                    "the script of this task does not have a param named `tmes`; did you mean `times`?",
                ),
            ],
        );
        // A reader of anything may read this.
        for other in [
            json!({"queue": "q"}),
            json!({"script": "open"}),
            json!({"script": "one-of"}),
            json!({"script": "x"}),
        ] {
            let spec = json!({"params": {"z": 1}, "tasks": {"t": {"script": "greet"}, "u": other}});
            check(spec, Some(json!({"params": {"nme": 1}})), &[]);
        }
    }
}
