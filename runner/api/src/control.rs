//! What people do to runs and task runs: to one, or to all that a filter finds.

use std::collections::BTreeMap;
use std::fmt;

use heddle_domain::Name;
use heddle_domain::state::{RunState, TaskState};
use schemars::JsonSchema;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use uuid::Uuid;

/// Which script versions a repeated run takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scripts {
    /// Those recorded on the run.
    #[default]
    Pinned,
    /// Those that are active now.
    Active,
}

/// What a restart or a rerun takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScriptsChoice {
    /// Which versions of scripts.
    pub scripts: Scripts,
}

/// The state that a run is set to by hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["state", "reason"]))]
pub struct StateOverride {
    /// `succeeded` or `failed`.
    pub state: RunState,
    /// Why: 1 to 2,000 characters, shown with the run.
    #[serde(default)]
    pub reason: String,
}

/// The state that a task run is set to by hand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("required" = ["state", "reason"]))]
pub struct TaskOverride {
    /// `succeeded`, `failed` or `skipped`.
    pub state: TaskState,
    /// Why: 1 to 2,000 characters, shown with the task run.
    #[serde(default)]
    pub reason: String,
    /// For `succeeded`: what dependants read as its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
}

/// How a task run of an ended run is done again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ClearTask {
    /// Whether what depends on it is done again as well.
    pub downstream: bool,
    /// Why: up to 2,000 characters.
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

/// A word, or an array of words.
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

/// Which runs are meant; what is left out does not matter. Where several words may be given, each may be several with
/// commas.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RunFilter {
    /// Of these groups.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub group: Words,
    /// In these states.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub state: Words,
    /// Made for these reasons.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub trigger: Words,
    /// With all of these labels: `name=value`, or `name` alone for whatever value.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub label: Words,
    /// With all of these labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// With this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Created at or after this time, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Created at or before this time, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// With a logical time at or after this, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logical_from: Option<String>,
    /// With a logical time at or before this, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logical_to: Option<String>,
    /// Of these ids.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<Uuid>,
    /// With a task for one of these queues.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub queue: Words,
    /// With a task for one of these scripts: `name`, or `name@version` for runs that resolved it to that.
    #[serde(skip_serializing_if = "Words::is_empty")]
    pub script: Words,
}

/// What is done to each run of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BulkAction {
    /// Ends it and what runs in it.
    Cancel,
    /// Starts nothing new in it.
    Pause,
    /// Lets it go on.
    Resume,
    /// Goes on where it failed.
    Restart,
    /// Makes a new run like it.
    Rerun,
    /// Sets its state: with `state` and `reason`.
    State,
    /// The same as `state`.
    Override,
    /// Does a task run of it again: with `task`, and `item`, `downstream` and `reason` as for one run.
    Clear,
    /// Forgets it, once it has ended.
    Delete,
}

/// A control of all runs that a filter finds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bulk {
    /// Which runs; an empty filter, which would mean all, is refused.
    pub filter: RunFilter,
    /// What is done to them.
    pub action: BulkAction,
    /// Only says what would happen.
    #[serde(default)]
    pub dry_run: bool,
    /// `restart` and `rerun`: which versions of scripts.
    #[serde(default)]
    pub scripts: Scripts,
    /// `state`: `succeeded` or `failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<RunState>,
    /// `state` and `clear`: why, up to 2,000 characters.
    #[serde(default)]
    pub reason: String,
    /// `clear`: the task's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<Name>,
    /// `clear`: which item of a mapped task, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// `clear`: whether what depends on the task is done again as well; default true.
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
            state: None,
            reason: String::new(),
            task: None,
            item: None,
            downstream: None,
        }
    }
}

/// What a bulk control did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BulkReport {
    /// How many runs the filter matches; of more than 100,000 the rest is left for the next call.
    pub matched: u64,
    /// How many were changed; 0 in a dry run.
    pub changed: u64,
    /// The matching runs, the first 1,000.
    pub ids: Vec<Uuid>,
    /// Those that could not be changed, or in a dry run could not be (1,000 at most), and why.
    pub refused: Vec<BulkRefusal>,
    /// Whether it was only asked what would happen.
    pub dry_run: bool,
}

impl BulkReport {
    /// How many runs are named.
    pub const IDS_MAX: usize = 1_000;
}

/// A run that a bulk control left as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BulkRefusal {
    /// The run's id.
    pub id: Uuid,
    /// Why it was left.
    pub detail: String,
}
