//! How much one transaction may hand to this node: the numbers that `heddle_store::live::Room` makes its one rule of.

use heddle_store::live::{Grant, NewRun, Room};

use crate::Runs;

/// How many task runs a node takes at once while other nodes are alive: enough to be busy for a moment, not so many that
/// the others stand idle beside it.
const SHARE_WITH_OTHERS: usize = 128;

impl Runs {
    /// What this node can take at this moment. Nothing, if it is to stop or has lost its lease.
    pub(crate) fn room(&self) -> Room {
        let idle = self.node.is_draining() || self.node.is_fenced();
        Room {
            free: if idle { 0 } else { self.free_slots() },
            share: match self.node.has_others() {
                true => SHARE_WITH_OTHERS,
                false => usize::MAX,
            },
            backlog: self.queue.has_backlog(),
        }
    }

    /// What the transaction that begins now may hand to this node.
    pub(crate) fn grant(&self) -> Grant {
        self.room().grant()
    }

    /// Hands what may start at once of new runs to this node, as far as one transaction may.
    pub(crate) fn hand_out<'a>(&self, runs: impl IntoIterator<Item = &'a mut NewRun>) {
        let mut grant = self.grant();
        for row in runs.into_iter().flat_map(|run| run.ready.iter_mut()) {
            row.hand(&mut grant);
        }
    }

    fn free_slots(&self) -> usize {
        let load = self.scripts.sandbox.load_now();
        self.held.room((load.parked + load.long) as usize)
    }
}
