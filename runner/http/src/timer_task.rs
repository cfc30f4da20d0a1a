//! Timer tasks, as the compatibility calls send them: reading a tree of any depth, and the group that it means.
//!
//! A tree may be nested deeper than any parser recurses, so it is read level by level: the text of what lies below a
//! node is kept as it is until its turn comes.

use std::collections::{BTreeMap, HashSet, VecDeque};

use heddle_domain::plan::TASKS_MAX;
use heddle_domain::{Fault, Name};
use heddle_store::timer_task::TimerTaskRow;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::problem::Problem;

/// How deep a tree may be. Each level is read once for every level above it, which is what bounds this.
pub(crate) const DEPTH_MAX: usize = 2_000;

/// How many timers a root may have.
const TIMERS_MAX: usize = 100;

/// How often an attempt that timed out is tried again, and after how long.
const TIMEOUT_RETRIES: u32 = 3;
const TIMEOUT_RETRY_INTERVAL: &str = "1s";

/// What `status` says of something that is switched off.
pub(crate) const DISABLED: i64 = -1;

/// A node as it was sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TimerTask {
    /// Its number, if it has one.
    pub(crate) task_id: Option<i64>,
    /// The place of the node above in the tree; none: it is the root.
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
                format!("tasks are nested more than {DEPTH_MAX} deep"),
            ));
        }
        if tree.len() == TASKS_MAX {
            return Err(invalid("subTaskList", format!("a tree has at most {TASKS_MAX} tasks")));
        }
        let fields: Fields =
            serde_json::from_str(raw.get()).map_err(|_| Problem::invalid_at("", "a task is an object"))?;
        let place = tree.len();
        let mut task = TimerTask {
            task_id: None,
            parent,
            fields: Map::new(),
        };
        for (name, raw) in fields {
            if name == "subTaskList" {
                let below: Option<Vec<&RawValue>> = serde_json::from_str(raw.get())
                    .map_err(|_| invalid("subTaskList", "a list of tasks is expected".to_owned()))?;
                waiting.extend(below.into_iter().flatten().map(|raw| (raw, Some(place), depth + 1)));
                continue;
            }
            let value: Value =
                serde_json::from_str(raw.get()).map_err(|error| Problem::malformed(format!("`{name}`: {error}")))?;
            match name.as_str() {
                "taskId" => task.task_id = number(&value, "taskId")?,
                _ => drop(task.fields.insert(name, value)),
            }
        }
        crate::json::check(&Value::Object(task.fields.clone()))?;
        tree.push(task);
    }
    let mut seen = HashSet::new();
    for id in tree.iter().filter_map(|task| task.task_id) {
        if !seen.insert(id) {
            return Err(invalid("taskId", format!("{id} stands there twice")));
        }
    }
    Ok(tree)
}

fn invalid(field: &str, detail: String) -> Problem {
    Problem::invalid(Fault::at(format!("/{field}"), detail))
}

/// A whole number, also as text; null and empty text are none.
pub(crate) fn number(value: &Value, field: &str) -> Result<Option<i64>, Problem> {
    let found = match value {
        Value::Null => return Ok(None),
        Value::String(text) if text.trim().is_empty() => return Ok(None),
        Value::String(text) => text.trim().parse().ok(),
        Value::Number(number) => number.as_i64(),
        _ => None,
    };
    found
        .map(Some)
        .ok_or_else(|| invalid(field, format!("a whole number is expected, not {value}")))
}

fn text<'a>(fields: &'a Map<String, Value>, field: &str) -> Option<&'a str> {
    fields
        .get(field)
        .and_then(Value::as_str)
        .map(str::trim)
        .filter(|text| !text.is_empty())
}

fn count(fields: &Map<String, Value>, field: &str) -> Result<Option<i64>, Problem> {
    fields.get(field).map_or(Ok(None), |value| number(value, field))
}

/// A span in milliseconds; negative ones are none.
fn millis(fields: &Map<String, Value>, field: &str) -> Result<Option<String>, Problem> {
    Ok(count(fields, field)?
        .filter(|millis| *millis >= 0)
        .map(|millis| format!("{millis}ms")))
}

/// Whether a node, or a timer, is switched on.
pub(crate) fn is_enabled(fields: &Map<String, Value>) -> Result<bool, Problem> {
    Ok(count(fields, "status")? != Some(DISABLED))
}

/// The name of a tree's group.
pub(crate) fn group_name(root: i64) -> Result<Name, Problem> {
    Name::new(&format!("timer-task-{root}")).map_err(|error| Problem::internal(&error))
}

/// The key of a node among its group's tasks.
fn task_key(id: i64) -> String {
    format!("task-{id}")
}

/// The group that a tree means.
pub(crate) fn group_spec(rows: &[TimerTaskRow]) -> Result<Value, Problem> {
    let mut tasks = Map::new();
    let mut queues: BTreeMap<i64, &str> = BTreeMap::new();
    let mut schedules = Map::new();
    let mut spec = json!({"category": "timer-tasks", "description": "", "history": true});
    for row in rows {
        let Value::Object(fields) = &row.definition else {
            continue;
        };
        let inherited = row.parent.and_then(|parent| queues.get(&parent).copied());
        let queue = text(fields, "appServiceName")
            .or(inherited)
            .ok_or_else(|| invalid("appServiceName", "it names the queue that the task goes to".to_owned()))?;
        queues.insert(row.task_id, queue);
        let mut task = json!({
            "queue": queue,
            "params": {
                "apiServiceName": fields.get("apiServiceName").cloned().unwrap_or_default(),
                "apiMethodName": fields.get("apiMethodName").cloned().unwrap_or_default(),
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
                if !timers(fields)?.is_empty() {
                    return Err(invalid(
                        "taskScheduleConf",
                        "only the root of a tree has timers".to_owned(),
                    ));
                }
            }
            None => {
                spec["description"] = task.get("description").cloned().unwrap_or_default();
                for (index, timer) in timers(fields)?.iter().enumerate() {
                    schedules.insert(format!("timer-{}", index + 1), schedule(timer)?);
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
    Ok(spec)
}

fn timers(fields: &Map<String, Value>) -> Result<Vec<&Map<String, Value>>, Problem> {
    let list = match fields.get("taskScheduleConf") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(conf)) => conf.get("timerList"),
        Some(_) => return Err(invalid("taskScheduleConf", "an object is expected".to_owned())),
    };
    match list {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(timers)) if timers.len() <= TIMERS_MAX => timers
            .iter()
            .map(|timer| {
                timer
                    .as_object()
                    .ok_or_else(|| invalid("taskScheduleConf/timerList", "a timer is an object".to_owned()))
            })
            .collect(),
        Some(_) => Err(invalid(
            "taskScheduleConf/timerList",
            format!("a list of at most {TIMERS_MAX} timers is expected"),
        )),
    }
}

/// The schedule that a timer means. Its spans are milliseconds, its window's times are UTC unless they say otherwise.
fn schedule(timer: &Map<String, Value>) -> Result<Value, Problem> {
    let missing = |field: &str, kind: i64| {
        invalid(
            "taskScheduleConf/timerList",
            format!("a timer of type {kind} has a `{field}`"),
        )
    };
    let kind = count(timer, "type")?.or(count(timer, "timerType")?);
    let mut schedule = Map::new();
    let initial = millis(timer, "initDelay")?;
    match kind {
        Some(1) => {
            let cron = text(timer, "cron").ok_or_else(|| missing("cron", 1))?;
            schedule.insert("cron".into(), json!(cron));
        }
        Some(2) => {
            let period = millis(timer, "period")?.ok_or_else(|| missing("period", 2))?;
            schedule.insert("every".into(), json!(period));
        }
        Some(3) => {
            let delay = millis(timer, "delay")?
                .or(millis(timer, "period")?)
                .ok_or_else(|| missing("delay", 3))?;
            schedule.insert("after".into(), json!(delay));
        }
        Some(4) => {
            let delay = millis(timer, "delay")?
                .or(initial.clone())
                .ok_or_else(|| missing("delay", 4))?;
            schedule.insert("once".into(), json!({"delay": delay}));
        }
        _ => {
            return Err(invalid(
                "taskScheduleConf/timerList",
                "`type` is 1 (cron), 2 (fixed rate), 3 (fixed delay) or 4 (one-shot delay)".to_owned(),
            ));
        }
    }
    if matches!(kind, Some(2 | 3))
        && let Some(initial) = initial
    {
        schedule.insert("initial_delay".into(), json!(initial));
    }
    for (field, ours) in [("startDateTime", "starts_at"), ("endDateTime", "ends_at")] {
        if let Some(at) = moment(timer, field)? {
            schedule.insert(ours.into(), json!(at));
        }
    }
    if let Some(zone) = text(timer, "timezone").or_else(|| text(timer, "timeZone")) {
        schedule.insert("timezone".into(), json!(zone));
    }
    if !is_enabled(timer)? {
        schedule.insert("enabled".into(), json!(false));
    }
    Ok(Value::Object(schedule))
}

/// A time as text, or as milliseconds since 1970.
fn moment(timer: &Map<String, Value>, field: &str) -> Result<Option<String>, Problem> {
    match timer.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(at)) => Ok(Some(at.trim().to_owned()).filter(|at| !at.is_empty())),
        Some(Value::Number(millis)) => millis
            .as_i64()
            .and_then(chrono::DateTime::from_timestamp_millis)
            .map(|at| Some(at.to_rfc3339()))
            .ok_or_else(|| invalid(field, "no such time".to_owned())),
        Some(other) => Err(invalid(field, format!("a time is expected, not {other}"))),
    }
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
mod tests {
    use super::*;

    fn rows(text: &str) -> Vec<TimerTaskRow> {
        let tree = read_tree(text).expect("a tree");
        let id = |place: usize| 100 + place as i64;
        tree.into_iter()
            .enumerate()
            .map(|(place, task)| TimerTaskRow {
                task_id: id(place),
                parent: task.parent.map(id),
                definition: Value::Object(task.fields),
            })
            .collect()
    }

    #[test]
    fn a_tree_becomes_a_group() {
        let rows = rows(
            r#"{"taskName": "root", "appServiceName": "bill", "apiServiceName": "S", "apiMethodName": "m", "timeout": -1,
                "what": {"is": "this"},
                "taskScheduleConf": {"timerList": [
                  {"type": 1, "cron": "0/5 * * * * * ?", "startDateTime": "2026-01-01 00:00:00", "status": 1},
                  {"type": "2", "initDelay": 1000, "period": "5000"},
                  {"type": 3, "delay": 300, "status": -1, "endDateTime": 1893456000000},
                  {"type": 4, "delay": 60000}]},
                "subTaskList": [
                  {"taskName": "same", "apiMethodName": "a", "timeout": 2000,
                   "subTaskList": [{"taskName": "same", "appServiceName": "mail", "status": -1, "subTaskList": null}]},
                  {"taskName": "same", "apiMethodName": "b", "subTaskList": []}]}"#,
        );
        let spec = group_spec(&rows).unwrap();
        assert_eq!(
            spec["schedules"],
            json!({
                "timer-1": {"cron": "0/5 * * * * * ?", "starts_at": "2026-01-01 00:00:00"},
                "timer-2": {"every": "5000ms", "initial_delay": "1000ms"},
                "timer-3": {"after": "300ms", "enabled": false, "ends_at": "2030-01-01T00:00:00+00:00"},
                "timer-4": {"once": {"delay": "60000ms"}},
            })
        );
        let task = |id: i64| &spec["tasks"][format!("task-{id}")];
        assert_eq!(
            *task(100),
            json!({"queue": "bill", "timeout": "never", "description": "root",
                   "params": {"apiServiceName": "S", "apiMethodName": "m", "taskId": 100}})
        );
        assert_eq!(
            (&task(101)["queue"], &task(101)["timeout"]),
            (&json!("bill"), &json!("2000ms"))
        );
        assert_eq!(task(101)["retry"]["retries"], TIMEOUT_RETRIES);
        assert_eq!(task(101)["depends_on"], json!(["task-100"]));
        assert_eq!(task(102)["depends_on"], json!(["task-100"]));
        assert_eq!(
            (&task(103)["depends_on"], &task(103)["queue"], &task(103)["when"]),
            (&json!(["task-101"]), &json!("mail"), &json!("false"))
        );
        assert!(
            heddle_domain::spec::parse_group(&spec).is_ok(),
            "{:?}",
            heddle_domain::spec::parse_group(&spec)
        );
    }

    #[test]
    fn trees_may_be_deep_but_not_without_end() {
        let deep = |depth: usize| {
            let mut text = r#"{"appServiceName":"q""#.to_owned();
            for _ in 1..depth {
                text.push_str(r#","subTaskList":[{"taskName":"x""#);
            }
            text.push('}');
            for _ in 1..depth {
                text.push_str("]}");
            }
            text
        };
        let rows = rows(&deep(1_500));
        assert_eq!(rows.len(), 1_500);
        assert_eq!(group_spec(&rows).unwrap()["tasks"].as_object().unwrap().len(), 1_500);
        assert_eq!(read_tree(&deep(DEPTH_MAX + 1)).unwrap_err().status.as_u16(), 422);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let check = |text: &str, status: u16| {
            let found = read_tree(text).and_then(|tree| {
                let rows: Vec<TimerTaskRow> = tree
                    .into_iter()
                    .enumerate()
                    .map(|(place, task)| TimerTaskRow {
                        task_id: place as i64,
                        parent: task.parent.map(|parent| parent as i64),
                        definition: Value::Object(task.fields),
                    })
                    .collect();
                group_spec(&rows)
            });
            assert_eq!(found.unwrap_err().status.as_u16(), status, "{text}");
        };
        check("{", 400);
        check("[]", 422);
        check("{}", 422);
        check(r#"{"taskId": "x"}"#, 422);
        check(r#"{"appServiceName": "q", "subTaskList": {}}"#, 422);
        check(r#"{"appServiceName": "q", "subTaskList": [7]}"#, 422);
        check(
            r#"{"appServiceName": "q", "taskId": 1, "subTaskList": [{"taskId": 1}]}"#,
            422,
        );
        check(
            r#"{"appServiceName": "q", "taskScheduleConf": {"timerList": [{"type": 5}]}}"#,
            422,
        );
        check(
            r#"{"appServiceName": "q", "taskScheduleConf": {"timerList": [{"type": 1}]}}"#,
            422,
        );
        let timers = r#""taskScheduleConf": {"timerList": [{"type": 2, "period": 1000}]}"#;
        check(
            &format!(r#"{{"appServiceName": "q", "subTaskList": [{{{timers}}}]}}"#),
            422,
        );
    }
}
