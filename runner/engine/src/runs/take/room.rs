//! How many task runs one transaction may give to this node: the numbers for the rule in `heddle_store::live::Room`.

use heddle_store::live::{Grant, NewRun, Room};

use crate::Runs;

/// How many task runs a node takes at once while other nodes are alive: enough to be busy for a moment, but not so many
/// that the others are idle.
const SHARE_WITH_OTHERS: usize = 128;

impl Runs {
    /// How many task runs this node can take now. None, if it is to stop, has lost its lease, or still compiles scripts
    /// while another node can do the work.
    pub(crate) fn room(&self) -> Room {
        let takes = self.node.state.now().takes_work();
        Room {
            free: if takes { self.free_slots() } else { 0 },
            share: match self.node.has_others() {
                true => SHARE_WITH_OTHERS,
                false => usize::MAX,
            },
            backlog: self.queue.has_backlog(),
        }
    }

    /// How many task runs a transaction that begins now may give to this node.
    pub(crate) fn grant(&self) -> Grant {
        self.room().grant()
    }

    /// Gives the ready task runs of new runs to this node, as many as one transaction may.
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
