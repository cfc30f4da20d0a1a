//! What a submission must be like: its bounds, and its params against the scripts of its group.

use std::collections::BTreeMap;

use heddle_domain::executor::Executor;
use heddle_domain::fault::pointer_token;
use heddle_domain::plan::Plan;
use heddle_domain::spec::SubmissionSpec;
use heddle_domain::{Faults, Name, params};
use serde_json::{Map, Value};

use crate::node::catalog::{Group, Resolution};

/// The largest `params`, and the largest `task_params`, of a run, as JSON text.
pub const PARAMS_BYTES_MAX: usize = 256 * 1024;

/// The longest key of a run, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 512;

/// How many labels a run has at most, and how long they are.
const LABELS_MAX: usize = 64;
const LABEL_CHARS_MAX: usize = 256;

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

/// The bounds of a key.
pub(crate) fn check_key(key: &str, bytes_max: usize, faults: &mut Faults) {
    if key.is_empty() || key.len() > bytes_max || key.contains('\0') {
        let detail = format!("`key` must have 1 to {bytes_max} bytes and no zero byte");
        faults.add("/key", detail);
    }
}

/// The bounds of a submission that do not depend on the group.
fn check_bounds(spec: &SubmissionSpec, faults: &mut Faults) {
    if let Some(key) = &spec.key {
        check_key(key, KEY_BYTES_MAX, faults);
    }
    if let Some(priority) = spec.priority
        && !(-1000..=1000).contains(&priority)
    {
        faults.add("/priority", "`priority` must be a number from -1000 to 1000");
    }
    if spec.labels.len() > LABELS_MAX {
        faults.add("/labels", format!("a run must have at most {LABELS_MAX} labels"));
    }
    for (key, value) in spec.labels.iter().take(LABELS_MAX) {
        if key.is_empty() || key.chars().count() > LABEL_CHARS_MAX || value.chars().count() > LABEL_CHARS_MAX {
            let pointer = format!("/labels/{}", pointer_token(key));
            faults.add(
                pointer,
                format!(
                    "the key of a label must have 1 to {LABEL_CHARS_MAX} characters, its value at most the same \
                    number"
                ),
            );
        }
    }
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
