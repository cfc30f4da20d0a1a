//! The transaction that puts task runs into queues, and wakes the polls of workers after its commit.

use std::sync::Arc;

use heddle_domain::id::RunId;
use heddle_store::live::{Completion, Grant, Locked, QueueRow};

use crate::runs::change::apply::After;
use crate::runs::contexts::Contexts;
use crate::runs::ending::Applied;
use crate::runs::waiters::queued::FilledQueues;
use crate::{EngineError, Runs};

/// Task runs that are put into queues, in a transaction that has locked their runs.
pub(crate) struct Put {
    /// The runs, their priorities, and the rows for their queues.
    pub(crate) rows: Vec<(RunId, i16, QueueRow)>,
    /// Attempts that are given back, because their runs are paused, stopping or over.
    pub(crate) back: Vec<Applied>,
    pub(crate) filled: FilledQueues,
}

impl Runs {
    /// Writes the rows that go into queues and those that go back, commits, and wakes polls.
    pub(crate) async fn put_into_queues(
        self: &Arc<Self>,
        mut completion: Completion,
        contexts: &Contexts,
        locked: Locked,
        put: Put,
    ) -> Result<(), EngineError> {
        let rows = put.rows.iter().map(|(run, priority, row)| (*run, *priority, row));
        completion.put_queued(&rows.collect::<Vec<_>>()).await?;
        let after = match put.back.is_empty() {
            true => After::default(),
            false => {
                self.apply_locked(&mut completion, contexts, put.back, locked, &mut Grant::none())
                    .await?
            }
        };
        completion.commit().await?;
        self.acted(after);
        self.waiters.wake_claimers(&put.filled);
        Ok(())
    }
}
