//! The existing objects, which specs name.

use serde_json::{Map, Value};

use crate::spec::{GroupSpec, ScheduleSpec};
use crate::state::NOT_GRANTED;
use crate::{Faults, Name};

/// The existing objects, as far as specs name them.
pub trait Catalog {
    /// A script, in a version or the active one.
    fn script(&self, name: &Name, version: Option<u32>) -> ScriptLookup;
    /// Another group's links; `None` if there is no such group. (Of the group that is validated, its spec counts.)
    fn group(&self, name: &Name) -> Option<GroupLinks>;
    /// A named template's JSON Schema.
    fn template(&self, name: &Name) -> Option<Value>;
    /// Whether there is such a category.
    fn category(&self, name: &Name) -> bool;
    /// Whether there is such a channel.
    fn channel(&self, name: &Name) -> bool;
    /// Whether the group, of that category, may use a SQL connection.
    fn connection(&self, name: &Name, group: &Name, category: Option<&Name>) -> Grant;
    /// Whether the group, of that category, may read a secret.
    fn secret(&self, name: &Name, group: &Name, category: Option<&Name>) -> Grant;
    /// A pool's slots; `None` if there is no such pool.
    fn pool(&self, name: &Name) -> Option<u32>;
    /// Whether the group that is validated has this very schedule already.
    fn has_schedule(&self, _name: &Name, _schedule: &ScheduleSpec) -> bool {
        false
    }
    /// Whether its current spec has this very value there already, by JSON pointer.
    fn has_value(&self, _pointer: &str, _value: &Value) -> bool {
        false
    }
}

/// What a catalog knows of a script.
#[derive(Clone, Debug, PartialEq)]
pub enum ScriptLookup {
    /// There is no script of that name.
    NoScript,
    /// There is such a script, but not in that version.
    NoVersion,
    /// There are versions, but none is active.
    NoActiveVersion,
    /// It is not for tasks, but for this (such as `consumer`).
    OtherWorld(String),
    /// It has no function for tasks, only one for messages.
    OnlyHandles,
    Found(ScriptFacts),
}

/// A version of a script, as far as specs depend on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScriptFacts {
    /// The schema of its params, if it has one.
    pub params_schema: Option<Value>,
    /// Its params with default values.
    pub defaults: Map<String, Value>,
}

/// A group's links to others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupLinks {
    /// The groups in its `depends_on`.
    pub depends_on: Vec<Name>,
    /// The groups that its tasks run (executor `group`).
    pub sub_runs: Vec<Name>,
}

impl GroupLinks {
    /// The links in a spec.
    pub fn of(spec: &GroupSpec) -> Self {
        Self {
            depends_on: spec
                .depends_on
                .iter()
                .map(|dependency| dependency.group().clone())
                .collect(),
            sub_runs: spec.tasks.values().filter_map(|task| task.group.clone()).collect(),
        }
    }
}

/// Whether something may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// There is no such thing.
    Unknown,
    /// It is not granted to this group nor its category.
    Refused,
    Granted,
}

impl Grant {
    pub(crate) fn check(self, what: &str, name: &Name, pointer: String, faults: &mut Faults) {
        match self {
            Self::Unknown => faults.add(pointer, format!("there is no {what} `{name}`")),
            Self::Refused => faults.add(
                pointer,
                format!("{NOT_GRANTED}{what} `{name}`: this group may not use it"),
            ),
            Self::Granted => {}
        }
    }
}
