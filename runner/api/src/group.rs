//! Groups as they stand, their revisions, their graphs, their next instants. What people write of one is a
//! [`heddle_domain::spec::GroupSpec`].

use std::collections::BTreeMap;

use heddle_domain::Fault;
use heddle_domain::spec::{GroupSpec, Need, ScheduleSpec, TriggerRule};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Moment;

/// A schedule with its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "GroupSchedule")]
struct ShownSchedule {
    /// The spec of the schedule.
    #[serde(flatten)]
    written: ScheduleSpec,
    /// The next instant at which it creates a run. null: there is none.
    #[serde(default)]
    next: Option<Moment>,
    /// For `once`: when it fired. Since then it is disabled. It has not fired if its instant was missed and `misfire` is
    /// `skip`.
    #[serde(skip_serializing_if = "Option::is_none")]
    fired_at: Option<Moment>,
}

/// The spec of a group, with the states of its schedules.
fn shown_spec(generator: &mut SchemaGenerator) -> Schema {
    let schedule = generator.subschema_for::<ShownSchedule>();
    let mut spec = GroupSpec::json_schema(generator);
    if let Some(schedules) = spec.pointer_mut("/properties/schedules/additionalProperties") {
        *schedules = schedule.to_value();
    }
    spec
}

/// A group: its spec with its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// The name, 1 to 63 characters.
    pub name: String,
    /// The number of its newest revision, counted from 1.
    pub revision: i32,
    /// Whether schedules and upstream groups start runs of the group.
    pub enabled: bool,
    /// The spec as it was saved; always with `category`, `timezone` and `max_active_runs`.
    #[serde(flatten)]
    #[schemars(schema_with = "shown_spec")]
    pub spec: Map<String, Value>,
    /// When it was created.
    pub created_at: Moment,
    /// When it was last changed.
    pub updated_at: Moment,
    /// In the answer to a change: parts of the spec that are allowed but probably a mistake.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Fault>,
}

/// The spec of a group. Fields that only answers have are ignored, so you can send a group as you have read it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupPut {
    /// The name, the same as in the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Enables or disables the group. Default: no change; a new group is enabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The fields of the spec.
    #[serde(flatten)]
    #[schemars(schema_with = "shown_spec")]
    pub spec: Map<String, Value>,
}

/// A part of a spec, as a JSON merge patch (RFC 7396): null removes a field.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct GroupPatch(pub Map<String, Value>);

/// The groups that depended on a deleted group and were detached from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Detached {
    /// The names of these groups.
    pub detached: Vec<String>,
}

/// The result of the check of a valid spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Validation {
    /// Always true: the answer to an invalid spec is a problem.
    pub valid: bool,
    /// Always empty: the answer to an invalid spec is a problem.
    pub errors: Vec<Fault>,
    /// Parts of the spec that are allowed but probably a mistake.
    pub warnings: Vec<Fault>,
    /// Whether a PUT would create a new revision.
    pub changed: bool,
    /// The spec as it would be saved.
    #[schemars(with = "GroupSpec")]
    pub spec: Value,
}

/// A revision of a group. It never changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Revision {
    /// The name of the group.
    pub group: String,
    /// The number of the revision, counted from 1.
    pub revision: i32,
    /// The spec of this revision.
    #[schemars(with = "GroupSpec")]
    pub spec: Value,
    /// When it was created.
    pub created_at: Moment,
    /// Who created it: the name of a token or a person.
    pub created_by: String,
}

/// The graph of a group's tasks, with the groups upstream and downstream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Graph {
    /// The name of the group.
    pub group: String,
    /// The number of the revision that the graph shows.
    pub revision: i32,
    /// The tasks of the group.
    pub nodes: Vec<GraphNode>,
    /// The dependencies between the tasks.
    pub edges: Vec<GraphEdge>,
    /// The groups that it depends on, or whose runs its tasks start.
    pub upstream: Vec<GraphLink>,
    /// The groups that depend on it, or whose tasks start its runs.
    pub downstream: Vec<GraphLink>,
}

/// A task in the graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphNode {
    /// The name, 1 to 63 characters.
    pub task: String,
    /// `script`, `queue`, `http`, `audience`, `group` or `query`.
    pub executor: Option<String>,
    /// When the task starts, depending on the states of its dependencies.
    pub trigger_rule: TriggerRule,
    /// Whether it is a mapped task, which has several items.
    pub mapped: bool,
}

/// A dependency between two tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GraphEdge {
    /// The task that runs first.
    pub from: String,
    /// The task that depends on it.
    pub to: String,
}

/// A link between this group and another group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GraphLink {
    /// The name of the other group.
    pub group: String,
    /// The kind of link: `depends_on`, or `sub_run` (a task starts its runs).
    #[schemars(extend("enum" = ["depends_on", "sub_run"]))]
    pub kind: String,
    /// For `depends_on`: which instants of the upstream group must have succeeded.
    #[schemars(with = "Need")]
    pub need: String,
}

/// The options of disabling a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DisableRequest {
    /// What happens with its active runs. Default: `drain`.
    pub mode: DisableMode,
}

/// What happens with the active runs of a group that is disabled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DisableMode {
    /// Active runs continue until they end.
    #[default]
    Drain,
    /// Active runs are cancelled.
    Stop,
}

/// The next instants of the schedules of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NextInstants {
    /// The next instants of all schedules together.
    pub instants: Vec<Moment>,
    /// The same instants, with the schedules that are due at them.
    pub items: Vec<NextInstant>,
    /// The next instant of each schedule. null: there is none.
    pub schedules: BTreeMap<String, Option<Moment>>,
}

/// An instant at which schedules are due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NextInstant {
    /// The instant, in UTC.
    pub at: Moment,
    /// The names of the schedules that are due.
    pub schedules: Vec<String>,
}
