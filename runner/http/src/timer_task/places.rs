//! Where the parts of a tree are in the body that a client sent. Errors name these places, also the errors that are found
//! only in the group that the tree means.

use heddle_domain::{Fault, Faults};
use heddle_store::timer_task::TimerTaskRow;
use serde_json::Value;

use super::fields::text;
use super::{BELOW, TASK_PREFIX, TIMER_LIST, TIMER_PREFIX, TIMERS, TimerTask, WRAPPER};
use crate::problem::Problem;

/// Where the fields of a node are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The index of the node in the list of its parent.
    pub(super) index: usize,
    /// The fields are in a `taskInfoConf`.
    pub(super) is_wrapped: bool,
    /// The timers are beside this `taskInfoConf`, not in it.
    pub(super) timers_beside: bool,
}

impl Place {
    /// A pointer into the fields of the node, as a pointer into the node as it was sent.
    pub(super) fn field(self, pointer: &str) -> String {
        let timers = pointer
            .strip_prefix('/')
            .and_then(|pointer| pointer.strip_prefix(TIMERS))
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if self.is_wrapped && !(timers && self.timers_beside) {
            format!("/{WRAPPER}{pointer}")
        } else {
            pointer.to_owned()
        }
    }
}

/// The pointer of a node.
pub(super) fn node(tree: &[TimerTask], task: &TimerTask) -> String {
    let mut steps = Vec::new();
    let mut task = task;
    while let Some(parent) = task.parent.and_then(|parent| tree.get(parent)) {
        let list = parent.place.field(&format!("/{BELOW}"));
        steps.push(format!("{list}/{}", task.place.index));
        task = parent;
    }
    steps.reverse();
    steps.concat()
}

/// The pointer of a field of a node.
pub(super) fn field(tree: &[TimerTask], task: &TimerTask, pointer: &str) -> String {
    node(tree, task) + &task.place.field(pointer)
}

/// The same problem with other errors. Errors that become the same are one.
pub(super) fn changed(problem: Problem, change: impl Fn(Fault) -> Fault) -> Problem {
    if problem.errors.is_empty() {
        return problem;
    }
    let mut faults = Faults::default();
    for fault in problem.errors.into_iter().map(change) {
        if !faults.0.contains(&fault) {
            faults.push(fault);
        }
    }
    Problem::invalid(faults)
}

/// Where the rows of a tree come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin<'a> {
    /// A client sent them: this tree, in the same order.
    Sent(&'a [TimerTask]),
    /// The database. What was accepted once, and is refused today, continues as before.
    Stored,
}

impl Origin<'_> {
    pub(super) fn is_stored(self) -> bool {
        matches!(self, Self::Stored)
    }

    /// A problem of a row, whose pointers go into the fields of the row: with the places in the body.
    pub(super) fn of_row(self, rows: &[TimerTaskRow], row: usize, problem: Problem) -> Problem {
        changed(problem, |fault| self.placed(rows, row, fault))
    }

    /// A problem of the group that the rows mean: with the places in the body, and the words of the body.
    pub(crate) fn of_group(self, rows: &[TimerTaskRow], problem: Problem) -> Problem {
        changed(problem, |mut fault| {
            let source = Source::of(rows, &fault.pointer);
            for (ours, theirs) in source.words {
                fault.detail = fault.detail.replace(&format!("`{ours}`"), &format!("`{theirs}`"));
            }
            fault.pointer = source.pointer;
            self.placed(rows, source.row, fault)
        })
    }

    fn placed(self, rows: &[TimerTaskRow], row: usize, mut fault: Fault) -> Fault {
        match self {
            Self::Sent(tree) => {
                if let Some(task) = tree.get(row) {
                    fault.pointer = field(tree, task, &fault.pointer);
                }
                fault
            }
            Self::Stored => {
                let id = rows.get(row).map_or(0, |row| row.task_id);
                Fault::at("", format!("the stored task {id} is no longer valid: {fault}"))
            }
        }
    }
}

/// What a part of a group was made from.
struct Source {
    /// The index of the row.
    row: usize,
    /// A pointer into the fields of the row.
    pointer: String,
    /// Words of groups, and the words of the body for them.
    words: Vec<(&'static str, &'static str)>,
}

impl Source {
    fn of(rows: &[TimerTaskRow], pointer: &str) -> Self {
        let mut parts = pointer.splitn(4, '/').skip(1);
        let section = parts.next().unwrap_or_default();
        let key = parts.next().unwrap_or_default();
        let rest = parts.next().unwrap_or_default();
        match section {
            "tasks" => Self::of_task(rows, key, rest),
            "schedules" => Self::of_timer(rows, key, rest),
            "description" => Self::of_task(rows, "", section),
            _ => Self::of_task(rows, "", ""),
        }
    }

    /// A part of a task; without a key, of the root's.
    fn of_task(rows: &[TimerTaskRow], key: &str, rest: &str) -> Self {
        let id: Option<i64> = key.strip_prefix(TASK_PREFIX).and_then(|id| id.parse().ok());
        let row = rows.iter().position(|row| Some(row.task_id) == id).unwrap_or(0);
        let name = match rows.get(row).and_then(|row| given(&row.definition, "taskName")) {
            None => "name",
            Some(_) => "taskName",
        };
        let (row, pointer) = match rest.split('/').next().unwrap_or_default() {
            "queue" => (queue_giver(rows, row), "/appServiceName"),
            "description" if name == "name" => (row, "/name"),
            "description" => (row, "/taskName"),
            "timeout" | "retry" => (row, "/timeout"),
            "when" => (row, "/status"),
            "params" => (row, rest.strip_prefix("params").unwrap_or_default()),
            _ => (row, ""),
        };
        Self {
            row,
            pointer: pointer.to_owned(),
            words: vec![("queue", "appServiceName"), ("description", name)],
        }
    }

    /// A part of a timer. Only the root has timers.
    fn of_timer(rows: &[TimerTaskRow], key: &str, rest: &str) -> Self {
        let number: Option<usize> = key.strip_prefix(TIMER_PREFIX).and_then(|number| number.parse().ok());
        let place = format!("/{TIMERS}/{TIMER_LIST}/{}", number.unwrap_or(1).saturating_sub(1));
        let timer = rows.first().and_then(|row| row.definition.pointer(&place));
        let is_given = |field: &str| timer.and_then(|timer| given(timer, field)).is_some();
        let first = |one: &'static str, other: &'static str| match is_given(one) || !is_given(other) {
            true => one,
            false => other,
        };
        let words = vec![
            ("every", "period"),
            ("after", first("delay", "period")),
            ("once", first("delay", "initDelay")),
            ("initial_delay", "initDelay"),
            ("starts_at", "startDateTime"),
            ("ends_at", "endDateTime"),
            ("timezone", first("timezone", "timeZone")),
            ("enabled", "status"),
            ("cron", "cron"),
        ];
        let ours = rest.split('/').next().unwrap_or_default();
        let field = words.iter().find(|(word, _)| *word == ours).map(|(_, field)| *field);
        Self {
            row: 0,
            pointer: field.map_or_else(|| place.clone(), |field| format!("{place}/{field}")),
            words,
        }
    }
}

/// A field that says something: neither null nor an empty text.
fn given<'a>(fields: &'a Value, field: &str) -> Option<&'a Value> {
    fields.get(field).filter(|value| match value {
        Value::Null => false,
        Value::String(text) => !text.trim().is_empty(),
        _ => true,
    })
}

/// The row that says the queue of a row: the nearest one above it, or itself.
fn queue_giver(rows: &[TimerTaskRow], row: usize) -> usize {
    let mut found = row;
    while let Some(row) = rows.get(found) {
        let fields = row.definition.as_object();
        if fields.is_some_and(|fields| text(fields, "appServiceName").is_some()) {
            break;
        }
        // Parents come before their children.
        match rows[..found]
            .iter()
            .rposition(|above| Some(above.task_id) == row.parent)
        {
            Some(above) => found = above,
            None => break,
        }
    }
    found
}
