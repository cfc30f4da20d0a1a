//! Groups as they stand, their revisions, their graphs, their next instants. What people write of one is a
//! [`heddle_domain::spec::GroupSpec`].

use std::collections::BTreeMap;

use heddle_domain::Fault;
use heddle_domain::spec::{GroupSpec, Need, ScheduleSpec, TriggerRule};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Moment;

/// A schedule, and what has become of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "GroupSchedule")]
struct ShownSchedule {
    /// As it was written.
    #[serde(flatten)]
    written: ScheduleSpec,
    /// The next instant that it makes a run for; null: there is none.
    #[serde(default)]
    next: Option<Moment>,
    /// Of `once`, when it has fired: since then it is disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    fired_at: Option<Moment>,
}

/// A spec whose schedules tell what has become of them.
fn shown_spec(generator: &mut SchemaGenerator) -> Schema {
    let schedule = generator.subschema_for::<ShownSchedule>();
    let mut spec = GroupSpec::json_schema(generator);
    if let Some(schedules) = spec.pointer_mut("/properties/schedules/additionalProperties") {
        *schedules = schedule.to_value();
    }
    spec
}

/// A group as it stands: its spec, with what Heddle knows of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// The number of its newest revision, from 1.
    pub revision: i32,
    /// Whether schedules and upstreams make runs of it.
    pub enabled: bool,
    /// Its spec, as it was written with what is always told: `category`, `timezone`, `max_active_runs`.
    #[serde(flatten)]
    #[schemars(schema_with = "shown_spec")]
    pub spec: Map<String, Value>,
    /// When it was made.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
    /// In the answer to a change: what is allowed, but most likely not meant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Fault>,
}

/// A group as it is put: its spec. What only answers have is ignored, so that a group that was read can be put again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupPut {
    /// The name in the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Enables or disables the group; what is left out stays as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The spec.
    #[serde(flatten)]
    #[schemars(schema_with = "shown_spec")]
    pub spec: Map<String, Value>,
}

/// Any part of a spec, with null for what is to go: a JSON merge patch (RFC 7396).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct GroupPatch(pub Map<String, Value>);

/// The groups that followed one that was deleted, and no longer name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Detached {
    /// Their names.
    pub detached: Vec<String>,
}

/// A spec that would be taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Validation {
    /// True: what is not is answered as a problem.
    pub valid: bool,
    /// None.
    pub errors: Vec<Fault>,
    /// What is allowed, but most likely not meant.
    pub warnings: Vec<Fault>,
    /// Whether a PUT would make a revision.
    pub changed: bool,
    /// The spec as it would be kept.
    #[schemars(with = "GroupSpec")]
    pub spec: Value,
}

/// A revision of a group, which never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Revision {
    /// The group's name.
    pub group: String,
    /// From 1.
    pub revision: i32,
    /// The spec as it was put then.
    #[schemars(with = "GroupSpec")]
    pub spec: Value,
    /// When it was made.
    pub created_at: Moment,
    /// Who made it: the token's name.
    pub created_by: String,
}

/// A group's tasks, and the groups around it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Graph {
    /// The group's name.
    pub group: String,
    /// The revision that this is of.
    pub revision: i32,
    /// The tasks.
    pub nodes: Vec<GraphNode>,
    /// Who waits for whom.
    pub edges: Vec<GraphEdge>,
    /// The groups that it follows, or whose runs its tasks start.
    pub upstream: Vec<GraphLink>,
    /// The groups that follow it, or whose tasks start runs of it.
    pub downstream: Vec<GraphLink>,
}

/// A task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphNode {
    /// Its name.
    pub task: String,
    /// `script`, `queue`, `http`, `audience`, `group` or `query`.
    pub executor: Option<String>,
    /// What of its dependencies it waits for.
    pub trigger_rule: TriggerRule,
    /// Whether it has several items.
    pub mapped: bool,
}

/// One task waits for another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GraphEdge {
    /// The one that goes first.
    pub from: String,
    /// The one that waits.
    pub to: String,
}

/// A link to another group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GraphLink {
    /// The other group's name.
    pub group: String,
    /// `depends_on`, or `sub_run`: a task starts its runs.
    #[schemars(extend("enum" = ["depends_on", "sub_run"]))]
    pub kind: String,
    /// Which instants of the upstream group are needed.
    #[schemars(with = "Need")]
    pub need: String,
}

/// How a group is disabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DisableRequest {
    /// What becomes of its active runs.
    pub mode: DisableMode,
}

/// What becomes of the active runs of a group that is disabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DisableMode {
    /// They end as they may.
    #[default]
    Drain,
    /// They are cancelled.
    Stop,
}

/// When a group's schedules are due next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NextInstants {
    /// The next instants of all schedules together.
    pub instants: Vec<Moment>,
    /// The same, with the schedules that are due then.
    pub items: Vec<NextInstant>,
    /// The next instant of each schedule; null: there is none.
    pub schedules: BTreeMap<String, Option<Moment>>,
}

/// An instant at which schedules are due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NextInstant {
    /// The instant.
    pub at: Moment,
    /// The names of the schedules.
    pub schedules: Vec<String>,
}
