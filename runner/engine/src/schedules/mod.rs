//! Schedules, and what else creates runs automatically: groups that follow groups, backfills.
//!
//! What is due is in the database, and every node checks it: there is no leader. A tick finds out what is due, lays the
//! runs out, and creates them in the transaction that advances the schedule (or the link, or the backfill).

mod backfill;
mod links;
mod scheduler;

use std::sync::Arc;

use futures::future::BoxFuture;
use heddle_store::change::{Change, Noun};
use quick_cache::sync::Cache;
use uuid::Uuid;

use crate::node::Node;
use crate::node::part::Part;
use crate::node::signals::Signal;
use crate::{EngineError, Runs};

pub(crate) use backfill::Backfiller;
pub use backfill::Started;
pub(crate) use links::Links;
pub(crate) use scheduler::{LookAhead, ScheduleReleaser, Scheduler};

/// Creates runs that are due.
pub(crate) struct Schedules {
    node: Arc<Node>,
    runs: Arc<Runs>,
    /// The sources of the instants of backfills that go on, or whose dependants do.
    sources: Cache<Uuid, Arc<backfill::Source>>,
    /// Events between groups that are left for later.
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
        if change.noun == Some(Noun::Group) {
            self.node.signals.raise(Signal::Schedules);
            self.node.signals.raise(Signal::Links);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn forget(&self) {
        self.sources.clear();
        self.node.signals.raise(Signal::Schedules);
        self.node.signals.raise(Signal::Links);
    }
}
