//! Nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
}
