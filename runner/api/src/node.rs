//! Nodes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Moment;

/// A Heddle process of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// Its id, the same after a restart.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Where it listens.
    pub address: Option<String>,
    /// `active`; `draining`: it takes nothing new; `fenced`: it cannot reach the database; `stopped`; `lost`: its lease has
    /// run out.
    #[schemars(extend("enum" = ["active", "draining", "fenced", "stopped", "lost"]))]
    pub state: String,
    /// Its Heddle's version.
    pub version: String,
    /// Since when it is up.
    pub started_at: Moment,
    /// When it was last heard of.
    pub heartbeat_at: Moment,
    /// How far it has followed the log of changes.
    pub position: i64,
    /// The newest position of that log.
    pub position_newest: i64,
    /// How many attempts it may have under way.
    pub slots: i32,
    /// How many it has.
    pub running: i32,
}
