//! Schedules, and what else makes runs without being asked each time: groups that follow groups, backfills.
//!
//! What is due is in the database, and every node looks for it: there is no leader. A tick finds out what is due, lays the
//! runs out, and creates them in the transaction that moves the schedule (or the link, or the backfill) on.

mod backfill;
mod links;
mod scheduler;

use std::sync::Arc;

use futures::future::BoxFuture;
use heddle_store::change::Change;
use quick_cache::sync::Cache;
use uuid::Uuid;

use crate::node::Node;
use crate::node::part::Part;
use crate::node::signals::Signal;
use crate::{EngineError, Runs};

pub(crate) use backfill::Backfiller;
pub use backfill::Started;
pub(crate) use links::Links;
pub(crate) use scheduler::{LookAhead, Scheduler};

/// Makes runs that are due.
pub(crate) struct Schedules {
    node: Arc<Node>,
    runs: Arc<Runs>,
    /// Where the instants of open backfills come from.
    sources: Cache<Uuid, Arc<backfill::Source>>,
    /// Events between groups that are left for another time.
    left_events: links::Left,
}

impl Schedules {
    pub(crate) fn new(node: Arc<Node>, runs: Arc<Runs>) -> Self {
        Self {
            node,
            runs,
            sources: Cache::new(backfill::SOURCES_MAX),
            left_events: links::Left::default(),
        }
    }
}

impl Part for Schedules {
    fn changed<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<(), EngineError>> {
        if change.kind == "group" {
            self.node.signals.raise(Signal::Schedules);
            self.node.signals.raise(Signal::Links);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
