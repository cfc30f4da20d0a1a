//! What people do to runs and task runs: to one, or to all that a filter finds.

use std::collections::BTreeMap;
use std::fmt;

use heddle_domain::Name;
use heddle_domain::state::{RunState, TaskState};
use schemars::{JsonSchema, Schema};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use uuid::Uuid;

/// The longest reason of an override, in characters.
pub const REASON_CHARS_MAX: usize = 2_000;

/// The shortest beginning of an id by which runs are found, in characters without hyphens.
pub const ID_CHARS_MIN: usize = 8;

/// The script versions of a repeated run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scripts {
    /// The versions that are recorded on the run.
    #[default]
    Pinned,
    /// The versions that are active now.
    Active,
}

/// The options of a restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScriptsChoice {
    /// The script versions to use.
    pub scripts: Scripts,
}

/// The options of a rerun.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RerunOptions {
    /// The script versions to use.
    pub scripts: Scripts,
    /// Create the run even if the group is disabled.
    pub force: bool,
    /// Your own id for the new run, unique within the group, 1 to 512 bytes. If a run of the group has it, no run is created,
    /// and the answer is 409 with that run's id. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A reason is required: without one, the request is read, and refused with its pointer.
fn without_default(schema: &mut Schema) {
    schema.remove("default");
}

/// An override: the state that an operator sets for a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["state", "reason"]))]
pub struct StateOverride {
    /// The new state: `succeeded` or `failed`.
    #[schemars(extend("enum" = ["succeeded", "failed"]))]
    pub state: RunState,
    /// The reason, 1 to 2,000 characters, shown on the run.
    #[serde(default)]
    #[schemars(length(min = 1, max = 2_000), transform = without_default)]
    pub reason: String,
}

/// An override: the state that an operator sets for a task run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["state", "reason"]))]
pub struct TaskOverride {
    /// The new state: `succeeded`, `failed` or `skipped`.
    #[schemars(extend("enum" = ["succeeded", "failed", "skipped"]))]
    pub state: TaskState,
    /// The reason, 1 to 2,000 characters, shown on the task run.
    #[serde(default)]
    #[schemars(length(min = 1, max = 2_000), transform = without_default)]
    pub reason: String,
    /// For `succeeded`: the output that dependent tasks read, at most the task's `max_output` (default: 256KiB). For a mapped
    /// task as a whole and an `audience` task: at most 8MiB. Default: null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
}

/// The options of a clear: run a task of an ended run again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClearTask {
    /// Whether the tasks that depend on it run again too. Default: true.
    pub downstream: bool,
    /// The reason, at most 2,000 characters. Default: empty.
    pub reason: String,
}

impl Default for ClearTask {
    fn default() -> Self {
        Self {
            downstream: true,
            reason: String::new(),
        }
    }
}

/// A string, or an array of strings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words(pub Vec<String>);

impl Words {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Into<String>> FromIterator<T> for Words {
    fn from_iter<I: IntoIterator<Item = T>>(words: I) -> Self {
        Self(words.into_iter().map(Into::into).collect())
    }
}

impl Serialize for Words {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => serializer.serialize_str(one),
            many => many.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Words;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or an array of strings")
            }
            fn visit_unit<E: serde::de::Error>(self) -> Result<Words, E> {
                Ok(Words::default())
            }
            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Words, E> {
                Ok(Words(vec![word.to_owned()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Words, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = seq.next_element()? {
                    words.push(word);
                }
                Ok(Words(words))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl JsonSchema for Words {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Words".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
    }
}

/// A filter for runs. All fields are optional; the given ones must all match. Where several values are allowed, use an
/// array or commas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunFilter {
    /// Runs of these groups.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub group: Words,
    /// Runs in these states.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub state: Words,
    /// Runs with these triggers.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub trigger: Words,
    /// Runs with all of these labels: `name=value`, or `name` for any value.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub label: Words,
    /// Runs with all of these labels, as an object.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Runs with this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Runs created at or after this time, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Runs created at or before this time, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Runs with a logical time at or after this time, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logical_from: Option<String>,
    /// Runs with a logical time at or before this time, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logical_to: Option<String>,
    /// Runs with these ids.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<Uuid>,
    /// Runs of groups with a task for one of these queues.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub queue: Words,
    /// Runs of groups with a task for one of these scripts: `name`, or `name@version` for runs that resolved the script
    /// to this version.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub script: Words,
    /// Runs that this backfill created, those of dependent groups included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backfill: Option<Uuid>,
}

/// What to do with each run that matches a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BulkAction {
    /// Cancels the run and interrupts its running attempts.
    Cancel,
    /// Pauses the run: no new task run starts.
    Pause,
    /// Resumes the paused run.
    Resume,
    /// Restarts the failed or cancelled run from where it failed.
    Restart,
    /// Creates a new run with the same params and logical time.
    Rerun,
    /// Overrides the state of the run; needs `state` and `reason`.
    State,
    /// The same as `state`.
    Override,
    /// Runs a task of the ended run again; needs `task`, optionally `item`, `downstream` and `reason`.
    Clear,
    /// Deletes the run, if it has ended.
    Delete,
}

impl BulkAction {
    /// The word in a request.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Restart => "restart",
            Self::Rerun => "rerun",
            Self::State => "state",
            Self::Override => "override",
            Self::Clear => "clear",
            Self::Delete => "delete",
        }
    }
}

/// A control of all runs that match a filter. A field that means nothing for the action is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bulk {
    /// The runs. An empty filter is refused.
    pub filter: RunFilter,
    /// What to do with each run.
    pub action: BulkAction,
    /// Change nothing, and answer what would happen. Default: false.
    #[serde(default)]
    pub dry_run: bool,
    /// For `restart` and `rerun`: the script versions. Default: `pinned`.
    #[serde(default)]
    pub scripts: Scripts,
    /// For `rerun`: your own id for this call, 1 to 475 bytes. Each new run gets the key `KEY/ID`, with the id of the run that
    /// it repeats. Where a run of the group has this key, no run is created, and the run is in `refused`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// For `state` and `override`: the new state, `succeeded` or `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    /// For `state`, `override` and `clear`: the reason, at most 2,000 characters.
    #[serde(default)]
    pub reason: String,
    /// For `clear`: the name of the task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Name>,
    /// For `clear`: the item of a mapped task, counted from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// For `clear`: whether the tasks that depend on it run again too. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub downstream: Option<bool>,
}

impl Bulk {
    /// An action that needs no more than a name.
    pub fn new(filter: RunFilter, action: BulkAction) -> Self {
        Self {
            filter,
            action,
            dry_run: false,
            scripts: Scripts::default(),
            key: None,
            state: None,
            reason: String::new(),
            task: None,
            item: None,
            downstream: None,
        }
    }
}

/// The result of a bulk control.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BulkReport {
    /// The number of runs that match. One call processes at most 100,000; call again for the rest.
    pub matched: u64,
    /// The number of runs that were changed; 0 in a dry run.
    pub changed: u64,
    /// The ids of the first 1,000 matching runs.
    pub ids: Vec<Uuid>,
    /// The runs that were not changed, or in a dry run would not be changed, and why: their state does not allow it, or
    /// Heddle cannot read or write them. At most 1,000.
    pub refused: Vec<BulkRefusal>,
    /// The number of all runs that were not changed, or in a dry run would not be changed. (A node of an earlier version does
    /// not say it: 0.)
    #[serde(default)]
    pub refused_total: u64,
    /// Whether this was a dry run.
    pub dry_run: bool,
}

impl BulkReport {
    /// The maximum number of runs in `ids` and in `refused`.
    pub const IDS_MAX: usize = 1_000;

    /// How many runs were refused, whatever the version of the node that says it.
    pub fn refusals(&self) -> u64 {
        self.refused_total.max(self.refused.len() as u64)
    }
}

/// A run that a bulk control did not change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BulkRefusal {
    /// The id of the run.
    pub id: Uuid,
    /// Why it was not changed.
    pub detail: String,
    /// The id of the run that exists already: for `rerun` with a `key` the one that this key has made, for `restart` and
    /// `clear` the unfinished one with the same params and `dedupe`. Missing if no other run is the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub existing: Option<Uuid>,
}
