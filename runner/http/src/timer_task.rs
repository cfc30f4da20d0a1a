//! Timer tasks, as the compatibility calls send them: reading a tree of any depth, and the group that it means.
//!
//! The root is in `taskInfoConf`, its timers next to it in `taskScheduleConf`; in the older format, all of it is on the
//! top level.
//!
//! A tree may be nested deeper than any parser recurses, so it is read level by level: what is below a node is a part of the
//! text until its level is read. `parts.rs` finds these parts, so that a level does not read again all levels below it.

mod fields;
mod parts;
mod places;
mod timers;

use std::collections::{BTreeMap, HashSet, VecDeque};

use chrono_tz::Tz;
use heddle_domain::fault::pointer_token;
use heddle_domain::plan::TASKS_MAX;
use heddle_domain::template::verbatim;
use heddle_domain::{Name, Time};
use heddle_store::group::GroupRow;
use heddle_store::schedule::ScheduleRow;
use heddle_store::timer_task::TimerTaskRow;
use serde_json::{Map, Value, json};

use crate::problem::Problem;
pub(crate) use fields::{DISABLED, whole};
use fields::{ENABLED, invalid, is_enabled, number, status, text, timeout};
use parts::{Part, Parts};
pub(crate) use places::Origin;
use places::Place;

/// How deep a tree may be. Its group has a chain of as many tasks, and the place of an error as many steps.
pub(crate) const DEPTH_MAX: usize = 2_000;

/// How often an attempt that timed out is tried again, and after how long.
const TIMEOUT_RETRIES: u32 = 3;
const TIMEOUT_RETRY_INTERVAL: &str = "1s";

/// A node as it was sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TimerTask {
    /// Its number, if it has one.
    pub(crate) task_id: Option<i64>,
    /// The index of its parent in the list of the tree; none: it is the root.
    pub(crate) parent: Option<usize>,
    /// Its fields, without `taskId` and `subTaskList`.
    pub(crate) fields: Map<String, Value>,
    /// Where it was in the body.
    pub(crate) place: Place,
}

type Fields = BTreeMap<String, Part>;

/// Reads a tree: parents come before children, the root before all.
pub(crate) fn read_tree(text: &str) -> Result<Vec<TimerTask>, Problem> {
    let parts = Parts::of(text).map_err(|error| Problem::malformed(format!("the body is not JSON: {error}")))?;
    let mut tree: Vec<TimerTask> = Vec::new();
    let mut waiting: VecDeque<(Part, Option<usize>, usize, usize)> = VecDeque::from([(parts.root(), None, 0, 1)]);
    while let Some((part, parent, index, depth)) = waiting.pop_front() {
        if depth > DEPTH_MAX {
            let detail = format!("tasks are nested more than {DEPTH_MAX} levels deep");
            return Err(too_much(&tree, detail));
        }
        if tree.len() == TASKS_MAX {
            return Err(too_much(&tree, format!("a tree must have at most {TASKS_MAX} tasks")));
        }
        let mut task = TimerTask {
            parent,
            place: Place {
                index,
                ..Place::default()
            },
            ..TimerTask::default()
        };
        let below = match read_node(&parts, part, &mut task) {
            Ok(below) => below,
            Err(problem) => return Err(in_body(problem, &places::node(&tree, &task))),
        };
        let parent = Some(tree.len());
        waiting.extend(
            below
                .into_iter()
                .enumerate()
                .map(|(index, part)| (part, parent, index, depth + 1)),
        );
        tree.push(task);
    }
    let mut seen = HashSet::new();
    for task in &tree {
        if let Some(id) = task.task_id
            && !seen.insert(id)
        {
            let pointer = places::field(&tree, task, "/taskId");
            return Err(Problem::invalid_at(pointer, format!("{id} occurs twice")));
        }
    }
    Ok(tree)
}

/// The field that holds the nodes below.
const BELOW: &str = "subTaskList";
/// The field that holds the root, without its timers.
const WRAPPER: &str = "taskInfoConf";
/// The field that holds the timers.
const TIMERS: &str = "taskScheduleConf";
/// The field of [`TIMERS`] that lists them.
const TIMER_LIST: &str = "timerList";

/// The fields of a node that mean something, except those that contain nodes or timers.
const KNOWN: [&str; 8] = [
    "taskId",
    "taskName",
    "name",
    "appServiceName",
    "apiServiceName",
    "apiMethodName",
    "timeout",
    "status",
];

/// The error of a tree that is too large. (The pointer of its last node could be very long.)
fn too_much(tree: &[TimerTask], detail: String) -> Problem {
    let below = format!("/{BELOW}");
    let pointer = tree
        .first()
        .map_or_else(String::new, |root| places::field(tree, root, &below));
    Problem::invalid_at(pointer, detail)
}

/// A problem of a node, whose pointers go into the node, as a problem of the body. The detail of a problem without errors
/// begins with a pointer.
fn in_body(mut problem: Problem, node: &str) -> Problem {
    if problem.errors.is_empty() {
        problem.detail.insert_str(0, node);
        return problem;
    }
    problem.below(node)
}

fn unreadable(pointer: &str, error: &serde_json::Error) -> Problem {
    Problem::malformed(format!("{pointer}: {error}"))
}

/// Reads the fields of a node; returns the nodes below it.
fn read_node(parts: &Parts<'_>, node: Part, task: &mut TimerTask) -> Result<Vec<Part>, Problem> {
    let fields = fields_of(parts, node, &mut task.place)?;
    let place = task.place;
    let wrong = |problem: Problem| {
        places::changed(problem, |mut fault| {
            fault.pointer = place.field(&fault.pointer);
            fault
        })
    };
    let mut below = Vec::new();
    for (name, part) in fields {
        if name == BELOW {
            if parts.text(part) != "null" {
                let list = parts.items(part);
                below = list.ok_or_else(|| wrong(invalid(BELOW, "expected a list of tasks".to_owned())))?;
            }
            continue;
        }
        let value: Value = serde_json::from_str(parts.text(part))
            .map_err(|error| unreadable(&place.field(&format!("/{}", pointer_token(&name))), &error))?;
        if name == "taskId" {
            // Clients whose number is never absent send 0 for a new one.
            task.task_id = number(&value, "taskId").map_err(wrong)?.filter(|id| *id != 0);
            continue;
        }
        refuse_children(&name, &value).map_err(wrong)?;
        task.fields.insert(name, value);
    }
    crate::json::check(&Value::Object(task.fields.clone())).map_err(wrong)?;
    Ok(below)
}

/// The fields of a node; those of `taskInfoConf` together with the timers next to it. Also notes where they are.
fn fields_of(parts: &Parts<'_>, node: Part, place: &mut Place) -> Result<Fields, Problem> {
    let object = |part: Part, pointer: &str| {
        Problem::invalid_at(
            pointer.to_owned(),
            format!("a task must be an object, not `{}`", shown_start(parts.text(part))),
        )
    };
    let mut fields = parts.fields(node).ok_or_else(|| object(node, ""))?;
    let Some(inner) = fields.remove(WRAPPER).filter(|inner| parts.text(*inner) != "null") else {
        return Ok(fields);
    };
    let mut task = parts
        .fields(inner)
        .ok_or_else(|| object(inner, &format!("/{WRAPPER}")))?;
    place.is_wrapped = true;
    for (name, part) in fields {
        match name.as_str() {
            TIMERS if task.contains_key(&name) => {
                return Err(invalid(
                    TIMERS,
                    "`taskScheduleConf` is beside `taskInfoConf` and inside it; give it only once".to_owned(),
                ));
            }
            TIMERS => {
                place.timers_beside = true;
                task.insert(name, part);
            }
            BELOW => {
                return Err(invalid(
                    BELOW,
                    "`subTaskList` must be inside `taskInfoConf`, not beside it".to_owned(),
                ));
            }
            _ => {
                let value: Value = serde_json::from_str(parts.text(part))
                    .map_err(|error| unreadable(&format!("/{}", pointer_token(&name)), &error))?;
                refuse_children(&name, &value)?;
                refuse_beside(&name, &value)?;
            }
        }
    }
    Ok(task)
}

/// Refuses a field of a task beside `taskInfoConf`: if it were ignored, the tree would mean something else. A `taskId` that
/// is ignored, for example, makes a second tree.
fn refuse_beside(name: &str, value: &Value) -> Result<(), Problem> {
    let says_nothing = match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        // A number that is never absent says with 0 that there is none.
        value => name == "taskId" && whole(value) == Ok(Some(0)),
    };
    if says_nothing || !KNOWN.contains(&name) {
        return Ok(());
    }
    Err(invalid(
        name,
        format!("`{name}` must be inside `{WRAPPER}`, not beside it"),
    ))
}

fn shown_start(text: &str) -> String {
    text.chars().take(40).collect()
}

/// Refuses fields that seem to contain tasks: if they were ignored, whole branches would be dropped silently.
fn refuse_children(name: &str, value: &Value) -> Result<(), Problem> {
    if name == TIMERS {
        return refuse_lists_of_timers(value);
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
    let where_else = match name {
        TIMER_LIST => format!("only the root may have timers, in its `{TIMERS}`"),
        _ => format!("the child tasks must be in `{BELOW}`"),
    };
    Err(invalid(&pointer_token(name), format!("unknown field; {where_else}")))
}

/// Refuses fields beside the list of timers that seem to contain timers, or tasks.
fn refuse_lists_of_timers(conf: &Value) -> Result<(), Problem> {
    let mut others = conf.as_object().into_iter().flatten().filter(|(name, value)| {
        let holds = value.as_array().is_some_and(|items| items.iter().any(Value::is_object));
        holds && name.as_str() != TIMER_LIST
    });
    let Some((name, _)) = others.next() else { return Ok(()) };
    Err(invalid(
        &format!("{TIMERS}/{}", pointer_token(name)),
        format!("unknown field; the timers must be in `{TIMER_LIST}`"),
    ))
}

/// The name of a tree's group.
pub(crate) fn group_name(root: i64) -> Result<Name, Problem> {
    Name::new(&format!("timer-task-{root}")).map_err(|error| Problem::internal(&error))
}

/// The key of a node among its group's tasks begins with this; its number follows.
const TASK_PREFIX: &str = "task-";
/// The key of a timer among its group's schedules begins with this; its number follows, from 1.
const TIMER_PREFIX: &str = "timer-";

/// The key of a node among its group's tasks.
fn task_key(id: i64) -> String {
    format!("{TASK_PREFIX}{id}")
}

/// What a tree that was sent says of its group: enabled, disabled, or nothing.
pub(crate) fn said_enabled(tree: &[TimerTask]) -> Result<Option<bool>, Problem> {
    let Some(root) = tree.first() else { return Ok(None) };
    status(&root.fields).map_err(|problem| Origin::Sent(tree).of_row(&[], 0, problem))
}

/// Writes into the rows of a tree that is sent again what they do not say: what was disabled `before`, and what is sent
/// without a status, is still disabled. The root is what its group is: `enabled`, or not.
pub(crate) fn keep_disabled(rows: &mut [TimerTaskRow], before: &[TimerTaskRow], enabled: bool) {
    fn says(row: &TimerTaskRow, wanted: Option<bool>) -> bool {
        let fields = row.definition.as_object();
        fields.is_some_and(|fields| status(fields).is_ok_and(|said| said == wanted))
    }
    let disabled: HashSet<i64> = before
        .iter()
        .filter(|row| says(row, Some(false)))
        .map(|row| row.task_id)
        .collect();
    for row in rows {
        let was_disabled = match row.parent {
            None => !enabled,
            Some(_) => disabled.contains(&row.task_id),
        };
        if was_disabled && says(row, None) {
            row.definition["status"] = json!(DISABLED);
        }
    }
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
pub(crate) fn group_spec(rows: &[TimerTaskRow], origin: Origin<'_>, zone: Tz, now: Time) -> Result<Meant, Problem> {
    let mut notes = Vec::new();
    let mut tasks = Map::new();
    let mut queues: BTreeMap<i64, &str> = BTreeMap::new();
    let mut schedules = Map::new();
    let mut spec = json!({
        "category": "timer-tasks", "description": "", "history": true, "timezone": zone.name(),
        // As their clients know it: a timer never starts what still runs.
        "overlap": "skip",
    });
    for (index, row) in rows.iter().enumerate() {
        let Value::Object(fields) = &row.definition else {
            continue;
        };
        let wrong = |problem: Problem| origin.of_row(rows, index, problem);
        let inherited = row.parent.and_then(|parent| queues.get(&parent).copied());
        let queue = text(fields, "appServiceName").or(inherited).ok_or_else(|| {
            wrong(invalid(
                "appServiceName",
                "`appServiceName` is missing; it is the name of the task's queue".to_owned(),
            ))
        })?;
        queues.insert(row.task_id, queue);
        let task = task_spec(row, fields, queue, origin.is_stored()).map_err(wrong)?;
        if row.parent.is_none() {
            spec["description"] = task.get("description").cloned().unwrap_or_default();
            for (index, timer) in timers::list(fields).map_err(wrong)?.into_iter().enumerate() {
                let number = index + 1;
                let timers::Read { schedule, is_over } = timers::schedule(timer, zone, now, origin.is_stored())
                    .map_err(|problem| wrong(problem.below(&format!("/{TIMERS}/{TIMER_LIST}/{index}"))))?;
                schedules.insert(format!("{TIMER_PREFIX}{number}"), schedule);
                if is_over {
                    notes.push(format!(
                        "timer {number} was saved but never fires: its window is in the past"
                    ));
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

/// Notes about the timers of an enabled tree that have had their only instant. `now`: when the group was put. A timer that
/// counts from then has just begun.
pub(crate) fn over(group: &GroupRow, schedules: &[ScheduleRow], now: Time) -> Vec<String> {
    let is_over = |row: &&ScheduleRow| {
        let schedule = &group.spec["schedules"][row.name.as_str()];
        let is_on = group.enabled && schedule["enabled"] != json!(false);
        let begins = group.schedule_anchors.get(&row.name) == Some(&json!(now));
        is_on && !begins && !schedule["once"].is_null() && row.next_fire_at.is_none()
    };
    let over = schedules.iter().filter(is_over);
    over.filter_map(|row| row.name.strip_prefix(TIMER_PREFIX))
        .map(|number| {
            format!(
                "timer {number} was saved but never fires: its delay is over; submit the tree again to begin it anew"
            )
        })
        .collect()
}

/// The task that a node means. A `stored` node may have what is refused today.
fn task_spec(row: &TimerTaskRow, fields: &Map<String, Value>, queue: &str, stored: bool) -> Result<Value, Problem> {
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
    match timeout(fields, stored)? {
        Some(timeout) => {
            task["timeout"] = json!(timeout);
            task["retry"] = json!({
                "strategy": "fixed", "retries": TIMEOUT_RETRIES, "interval": TIMEOUT_RETRY_INTERVAL,
            });
        }
        None => task["timeout"] = json!("never"),
    }
    if let Some(parent) = row.parent {
        task["depends_on"] = json!([task_key(parent)]);
        // The root's status is the group's; a branch that is switched off is skipped with all below it.
        if !is_enabled(fields)? {
            task["when"] = json!("false");
        }
        if !timers::list(fields)?.is_empty() {
            return Err(invalid(TIMERS, "only the root of a tree can have timers".to_owned()));
        }
    }
    Ok(task)
}

/// A tree as it is answered: each node with its number, and with its status. Whoever leaves out the status of a new node
/// means 1; [`keep_disabled`] has written out what an existing one keeps.
pub(crate) fn shown(rows: &[TimerTaskRow]) -> Value {
    let is_disabled = |row: &TimerTaskRow| {
        let fields = row.definition.as_object();
        fields.is_some_and(|fields| status(fields).is_ok_and(|said| said == Some(false)))
    };
    let node = |row: &TimerTaskRow| {
        json!({
            "taskId": row.task_id,
            "parentTaskId": row.parent,
            "taskName": row.definition.get("taskName").or(row.definition.get("name")).cloned().unwrap_or_default(),
            "status": if is_disabled(row) { DISABLED } else { ENABLED },
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
