//! Nodes as the API shows them, and the counts of the cluster and of one node.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Moment;

/// A node: one Heddle process of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// The id, the same after a restart.
    pub id: String,
    /// The name of the node for people.
    pub name: String,
    /// The address on which it listens.
    pub address: Option<String>,
    /// `active`; `draining`: it takes nothing new; `fenced`: it has lost its lease and requests a new one; `stopped`;
    /// `lost`: its lease has expired.
    #[schemars(extend("enum" = ["active", "draining", "fenced", "stopped", "lost"]))]
    pub state: String,
    /// The version of Heddle that it runs.
    pub version: String,
    /// When the process started.
    pub started_at: Moment,
    /// When it last reported to the database.
    pub heartbeat_at: Moment,
    /// The last change that it has applied, as a position in the log of changes.
    pub position: i64,
    /// The newest position in the log of changes.
    pub position_newest: i64,
    /// The maximum number of attempts that it runs at the same time.
    pub slots: i32,
    /// The number of attempts that it runs now.
    pub running: i32,
    /// Whether it has started and still compiles scripts. Until it has them, for at most five minutes, it leaves task runs
    /// to nodes that are not warming, if there are any.
    #[serde(default)]
    pub warming: bool,
}

/// Counts: of the whole cluster, and of the node that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stats {
    /// The number of runs that have not ended, by state. A state without runs is left out.
    pub runs: BTreeMap<String, i64>,
    /// The number of task runs that are ready for a node.
    pub ready: i64,
    /// The number of task runs that wait in queues to be claimed by workers.
    pub queued: i64,
    /// The number of task runs that workers hold.
    pub claimed: i64,
    /// The number of running attempts, including those of workers.
    pub running: i64,
    /// The number of task runs that wait for a retry.
    pub retrying: i64,
    /// Notifications that are not sent yet.
    pub notifications: NotificationStats,
    /// The node that answers.
    pub node: NodeStats,
}

/// Notifications that are not sent yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotificationStats {
    /// The number of notifications that wait to be sent, by kind of channel.
    pub waiting: BTreeMap<String, i64>,
    /// The number of events that have not been processed for notifications yet.
    pub notices: i64,
}

/// Counts of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeStats {
    /// The id of the node.
    pub id: Uuid,
    /// The number of attempts that it runs now.
    pub in_hand: usize,
    /// The number of runs that it has ended since it started.
    pub runs_ended: u64,
    /// The number of attempts that it has ended since it started.
    pub attempts_ended: u64,
    /// The number of requests that wait or follow on it now.
    pub waiting: usize,
}
