//! What a submission must be like: its bounds, and its params against the scripts of its group.

use std::collections::BTreeMap;

use heddle_domain::executor::Executor;
use heddle_domain::fault::pointer_token;
use heddle_domain::message::check_key;
use heddle_domain::plan::Plan;
use heddle_domain::spec::SubmissionSpec;
use heddle_domain::spec::bounds::{PARAMS_BYTES_MAX, check_labels, check_priority};
use heddle_domain::{Faults, Name, params};
use serde_json::{Map, Value};

use crate::node::catalog::{Group, Resolution};

/// The submission against the group: bounds, unknown tasks, params against schemas.
pub(super) fn check(group: &Group, spec: &SubmissionSpec) -> Result<(), Faults> {
    let mut faults = Faults::default();
    let plan = &group.revision.plan;
    check_bounds(spec, &mut faults);
    let size = |value: &Map<String, Value>| serde_json::to_string(value).map_or(0, |text| text.len());
    if !spec.params.is_empty() && size(&spec.params) > PARAMS_BYTES_MAX {
        faults.add(
            "/params",
            format!("`params` must have at most {PARAMS_BYTES_MAX} bytes as JSON"),
        );
        return Err(faults);
    }
    if !spec.task_params.is_empty() && spec.task_params.values().map(size).sum::<usize>() > PARAMS_BYTES_MAX {
        faults.add(
            "/task_params",
            format!("`task_params` must have at most {PARAMS_BYTES_MAX} bytes as JSON"),
        );
        return Err(faults);
    }
    for task in spec.task_params.keys() {
        if plan.index(task.as_str()).is_none() {
            let pointer = format!("/task_params/{}", pointer_token(task.as_str()));
            faults.add(pointer, format!("the group has no task `{task}`"));
        }
    }
    if let Some(template) = &group.template {
        for fault in template.check(&Value::Object(spec.params.clone())).0 {
            faults.push(fault.below("/params"));
        }
    }
    // The group's own params were checked when its spec was put; only params of the run need checks.
    if spec.params.is_empty() && spec.task_params.is_empty() && group.complete {
        return faults.or(());
    }
    check_schemas(
        plan,
        &group.resolution,
        &spec.params,
        |task| spec.task_params.get(task),
        &mut faults,
    );
    faults.0.dedup();
    faults.or(())
}

/// The params of a run, and those for single tasks, against scripts that they were not given for.
pub(crate) fn check_params(
    plan: &Plan,
    resolution: &Resolution,
    params: &Map<String, Value>,
    task_params: &BTreeMap<String, Map<String, Value>>,
) -> Result<(), Faults> {
    let mut faults = Faults::default();
    check_schemas(
        plan,
        resolution,
        params,
        |task| task_params.get(task.as_str()),
        &mut faults,
    );
    faults.0.dedup();
    faults.or(())
}

/// The bounds of a submission that do not depend on the group.
fn check_bounds(spec: &SubmissionSpec, faults: &mut Faults) {
    if let Some(Err(detail)) = spec.key.as_deref().map(check_key) {
        faults.add("/key", detail);
    }
    if let Some(Err(detail)) = spec.priority.map(check_priority) {
        faults.add("/priority", detail);
    }
    check_labels(&spec.labels, "/labels", faults);
    if let Some(callback) = &spec.callback
        && (callback.is_empty() || callback.len() > 2048)
    {
        faults.add(
            "/callback",
            "`callback` must be the name of a channel, or a URL of at most 2048 bytes",
        );
    }
}

/// Checks whether each script is for tasks, and its params against its schema, as far as they are known before
/// templates are rendered. A name may mean another version now than when the spec was put. `task_params`: those of the run
/// for a task.
fn check_schemas<'a>(
    plan: &Plan,
    resolution: &Resolution,
    params: &'a Map<String, Value>,
    task_params: impl Fn(&Name) -> Option<&'a Map<String, Value>>,
    faults: &mut Faults,
) {
    let none = Map::new();
    for (task, script) in plan.tasks.iter().zip(&resolution.scripts) {
        let (Executor::Script(_), Some(script)) = (&task.executor, script) else {
            continue;
        };
        if !script.runs {
            let detail = format!(
                "the task `{}` cannot run `{}@{}`: it exports no `run`, only `handle`, which is for the messages of a topic",
                task.name, script.name, script.version
            );
            faults.add("", detail);
            continue;
        }
        let Some(schema) = &script.schema else { continue };
        let own = task_params(&task.name);
        let layers = params::Layers {
            defaults: &script.defaults,
            group: &plan.spec.params,
            task: &task.spec.params,
            run: params,
            task_run: own.unwrap_or(&none),
        };
        let (value, unknown) = layers.constant();
        for fault in schema.check_except(&Value::Object(value), &unknown).0 {
            let first = fault
                .pointer
                .trim_start_matches('/')
                .split('/')
                .next()
                .unwrap_or_default();
            let key = first.replace("~1", "/").replace("~0", "~");
            let prefix = if own.is_some_and(|own| own.contains_key(&key)) {
                format!("/task_params/{}", pointer_token(task.name.as_str()))
            } else {
                "/params".to_owned()
            };
            faults.push(fault.below(&prefix));
        }
    }
}

#[cfg(test)]
mod tests {
    use heddle_domain::spec::parse_submission;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_group_and_a_message_also_have_is_judged_in_the_same_way() {
        let judged = |spec: Value| {
            let mut faults = Faults::default();
            check_bounds(&parse_submission(&spec).unwrap(), &mut faults);
            faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
        };
        let long = "x".repeat(256);
        assert_eq!(
            judged(json!({"labels": {&long: &long}, "key": "k", "priority": -1000})),
            [""; 0]
        );
        assert_eq!(judged(json!({"labels": {"a\nb": "v"}})), ["/labels"]);
        assert_eq!(judged(json!({"labels": {"k": "a\nb"}})), ["/labels/k"]);
        assert_eq!(judged(json!({"key": "x".repeat(513)})), ["/key"]);
    }
}
