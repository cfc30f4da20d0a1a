//! Timer tasks, as the compatibility calls send them: reading a tree of any depth, and the group that it means.
//!
//! The root is in `taskInfoConf`, its timers next to it in `taskScheduleConf`; in the older format, all of it is on the
//! top level.
//!
//! A tree may be nested deeper than any parser recurses, so it is read level by level: the text below a node is kept
//! until its level is read.

mod fields;
mod timers;

use std::collections::{BTreeMap, HashSet, VecDeque};

use chrono_tz::Tz;
use heddle_domain::fault::pointer_token;
use heddle_domain::plan::TASKS_MAX;
use heddle_domain::template::verbatim;
use heddle_domain::{Name, Time};
use heddle_store::timer_task::TimerTaskRow;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::problem::Problem;
pub(crate) use fields::{DISABLED, is_enabled, number};
use fields::{invalid, millis, text};

/// How deep a tree may be. Each level is read once for every level above it, which is what bounds this.
pub(crate) const DEPTH_MAX: usize = 2_000;

/// How often an attempt that timed out is tried again, and after how long.
const TIMEOUT_RETRIES: u32 = 3;
const TIMEOUT_RETRY_INTERVAL: &str = "1s";

/// A node as it was sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TimerTask {
    /// Its number, if it has one.
    pub(crate) task_id: Option<i64>,
    /// The index of its parent in the list of the tree; none: it is the root.
    pub(crate) parent: Option<usize>,
    /// Its fields, without `taskId` and `subTaskList`.
    pub(crate) fields: Map<String, Value>,
}

type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Reads a tree: parents come before children, the root before all.
pub(crate) fn read_tree(text: &str) -> Result<Vec<TimerTask>, Problem> {
    let root: &RawValue =
        serde_json::from_str(text).map_err(|error| Problem::malformed(format!("the body is not JSON: {error}")))?;
    let mut tree = Vec::new();
    let mut waiting: VecDeque<(&RawValue, Option<usize>, usize)> = VecDeque::from([(root, None, 1)]);
    while let Some((raw, parent, depth)) = waiting.pop_front() {
        if depth > DEPTH_MAX {
            return Err(invalid(
                "subTaskList",
                format!("tasks are nested more than {DEPTH_MAX} levels deep"),
            ));
        }
        if tree.len() == TASKS_MAX {
            return Err(invalid(
                "subTaskList",
                format!("a tree must have at most {TASKS_MAX} tasks"),
            ));
        }
        let fields = fields_of(raw)?;
        let index = tree.len();
        let mut task = TimerTask {
            task_id: None,
            parent,
            fields: Map::new(),
        };
        for (name, raw) in fields {
            if name == BELOW {
                let below: Option<Vec<&RawValue>> = serde_json::from_str(raw.get())
                    .map_err(|_| invalid(BELOW, "expected a list of tasks".to_owned()))?;
                waiting.extend(below.into_iter().flatten().map(|raw| (raw, Some(index), depth + 1)));
                continue;
            }
            let value: Value =
                serde_json::from_str(raw.get()).map_err(|error| Problem::malformed(format!("`{name}`: {error}")))?;
            if name == "taskId" {
                // Clients whose number is never absent send 0 for a new one.
                task.task_id = number(&value, "taskId")?.filter(|id| *id != 0);
                continue;
            }
            refuse_children(&name, &value)?;
            task.fields.insert(name, value);
        }
        crate::json::check(&Value::Object(task.fields.clone()))?;
        tree.push(task);
    }
    let mut seen = HashSet::new();
    for id in tree.iter().filter_map(|task| task.task_id) {
        if !seen.insert(id) {
            return Err(invalid("taskId", format!("{id} occurs twice")));
        }
    }
    Ok(tree)
}

/// The field that holds the nodes below.
const BELOW: &str = "subTaskList";

/// The fields of a node; those of `taskInfoConf` together with the timers next to it.
fn fields_of(raw: &RawValue) -> Result<Fields<'_>, Problem> {
    let object = |raw: &RawValue, pointer: &str| {
        Problem::invalid_at(
            pointer.to_owned(),
            format!("a task must be an object, not `{}`", shown_start(raw)),
        )
    };
    let mut fields: Fields = serde_json::from_str(raw.get()).map_err(|_| object(raw, ""))?;
    let Some(inner) = fields.remove("taskInfoConf").filter(|inner| inner.get() != "null") else {
        return Ok(fields);
    };
    let mut task: Fields = serde_json::from_str(inner.get()).map_err(|_| object(inner, "/taskInfoConf"))?;
    for (name, raw) in fields {
        match name.as_str() {
            "taskScheduleConf" if task.contains_key(&name) => {
                return Err(invalid(
                    "taskScheduleConf",
                    "`taskScheduleConf` is beside `taskInfoConf` and inside it; give it only once".to_owned(),
                ));
            }
            "taskScheduleConf" => drop(task.insert(name, raw)),
            BELOW => {
                return Err(invalid(
                    BELOW,
                    "`subTaskList` must be inside `taskInfoConf`, not beside it".to_owned(),
                ));
            }
            _ => {
                let value: Value = serde_json::from_str(raw.get())
                    .map_err(|error| Problem::malformed(format!("`{name}`: {error}")))?;
                refuse_children(&name, &value)?;
            }
        }
    }
    Ok(task)
}

fn shown_start(raw: &RawValue) -> String {
    raw.get().chars().take(40).collect()
}

/// Refuses fields that seem to contain tasks: if they were ignored, whole branches would be dropped silently.
fn refuse_children(name: &str, value: &Value) -> Result<(), Problem> {
    if name == "taskScheduleConf" {
        return Ok(());
    }
    let word = name.to_lowercase();
    let named = ["child", "subtask", "tasklist", "taskinfo"]
        .iter()
        .any(|part| word.contains(part))
        || word == "tasks";
    let holds = match value {
        Value::Array(items) => items.iter().any(Value::is_object) || (named && !items.is_empty()),
        Value::Object(fields) => named && !fields.is_empty(),
        _ => false,
    };
    if !holds {
        return Ok(());
    }
    Err(invalid(
        &pointer_token(name),
        format!("unknown field; the child tasks must be in `{BELOW}`"),
    ))
}

/// The name of a tree's group.
pub(crate) fn group_name(root: i64) -> Result<Name, Problem> {
    Name::new(&format!("timer-task-{root}")).map_err(|error| Problem::internal(&error))
}

/// The key of a node among its group's tasks.
fn task_key(id: i64) -> String {
    format!("task-{id}")
}

/// The meaning of a tree.
#[derive(Debug)]
pub(crate) struct Meant {
    /// The spec of its group.
    pub(crate) spec: Value,
    /// Notes for the sender, each a sentence.
    pub(crate) notes: Vec<String>,
}

/// The group that a tree means; its clients tell times in `zone`.
pub(crate) fn group_spec(rows: &[TimerTaskRow], zone: Tz, now: Time) -> Result<Meant, Problem> {
    let mut notes = Vec::new();
    let mut tasks = Map::new();
    let mut queues: BTreeMap<i64, &str> = BTreeMap::new();
    let mut schedules = Map::new();
    let mut spec = json!({
        "category": "timer-tasks", "description": "", "history": true, "timezone": zone.name(),
        // As their clients know it: a timer never starts what still runs.
        "overlap": "skip",
    });
    for row in rows {
        let Value::Object(fields) = &row.definition else {
            continue;
        };
        let inherited = row.parent.and_then(|parent| queues.get(&parent).copied());
        let queue = text(fields, "appServiceName").or(inherited).ok_or_else(|| {
            invalid(
                "appServiceName",
                "`appServiceName` is missing; it is the name of the task's queue".to_owned(),
            )
        })?;
        queues.insert(row.task_id, queue);
        let mut task = json!({
            "queue": queue,
            "params": {
                "apiServiceName": verbatim(fields.get("apiServiceName").cloned().unwrap_or_default()),
                "apiMethodName": verbatim(fields.get("apiMethodName").cloned().unwrap_or_default()),
                "taskId": row.task_id,
            },
        });
        if let Some(name) = text(fields, "taskName").or_else(|| text(fields, "name")) {
            task["description"] = json!(name);
        }
        match millis(fields, "timeout")?.filter(|timeout| timeout != "0ms") {
            Some(timeout) => {
                task["timeout"] = json!(timeout);
                task["retry"] = json!({
                    "strategy": "fixed", "retries": TIMEOUT_RETRIES, "interval": TIMEOUT_RETRY_INTERVAL,
                });
            }
            None => task["timeout"] = json!("never"),
        }
        match row.parent {
            Some(parent) => {
                task["depends_on"] = json!([task_key(parent)]);
                // The root's status is the group's; a branch that is switched off is skipped with all below it.
                if !is_enabled(fields)? {
                    task["when"] = json!("false");
                }
                if !timers::list(fields)?.is_empty() {
                    return Err(invalid(
                        "taskScheduleConf",
                        "only the root of a tree can have timers".to_owned(),
                    ));
                }
            }
            None => {
                spec["description"] = task.get("description").cloned().unwrap_or_default();
                for (index, timer) in timers::list(fields)?.iter().enumerate() {
                    let number = index + 1;
                    let timers::Read { schedule, is_over } = timers::schedule(timer, zone, now)
                        .map_err(|problem| problem.below(&format!("/taskScheduleConf/timerList/{index}")))?;
                    schedules.insert(format!("timer-{number}"), schedule);
                    if is_over {
                        notes.push(format!(
                            "timer {number} was saved but never fires: its window is in the past"
                        ));
                    }
                }
            }
        }
        tasks.insert(task_key(row.task_id), task);
    }
    if spec["description"].is_null() {
        spec["description"] = json!("a tree of timer tasks");
    }
    spec["tasks"] = Value::Object(tasks);
    spec["schedules"] = Value::Object(schedules);
    Ok(Meant { spec, notes })
}

/// A tree as it is answered: each node with its number.
pub(crate) fn shown(rows: &[TimerTaskRow]) -> Value {
    let node = |row: &TimerTaskRow| {
        let field = |name: &str| row.definition.get(name).cloned().unwrap_or_default();
        json!({
            "taskId": row.task_id,
            "parentTaskId": row.parent,
            "taskName": row.definition.get("taskName").or(row.definition.get("name")).cloned().unwrap_or_default(),
            "status": field("status"),
        })
    };
    let Some(root) = rows.first() else { return Value::Null };
    let mut shown = node(root);
    // Flat: a tree of any depth would be an answer of any depth.
    shown["taskList"] = rows.iter().map(node).collect();
    shown
}

#[cfg(test)]
mod tests;
