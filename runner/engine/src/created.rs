//! What follows from the creation of runs, once it is committed: the same whoever made them (submissions, schedules,
//! upstream groups, backfills, scripts).

use std::sync::Arc;

use heddle_store::live::{Created, NewRun};

use crate::apply::After;
use crate::{Inner, RunContext};

impl Inner {
    /// What was handed to this node begins; whoever else is concerned is woken. `created` tells of each of `runs` what
    /// became of it.
    pub(crate) fn created(
        self: &Arc<Self>,
        runs: impl IntoIterator<Item = (NewRun, Arc<RunContext>)>,
        created: &[Created],
    ) {
        let mut after = After::default();
        for ((run, context), created) in runs.into_iter().zip(created) {
            self.note_created(&run, context, created, &mut after);
        }
        self.acted(after);
    }

    /// The same of one run among others that a transaction makes; acted upon after its commit.
    pub(crate) fn note_created(&self, run: &NewRun, context: Arc<RunContext>, created: &Created, after: &mut After) {
        let Created::Made { handed } = created else { return };
        // Those that wait for upstream groups are looked at by the links, the others by the gate, mostly on this node.
        let in_turn = run.gated && !run.follows;
        after.inbox |= in_turn;
        after.followed |= run.follows;
        if in_turn || !run.ready.is_empty() || !run.queued.is_empty() {
            self.contexts.insert(run.id, context);
        }
        run.queued.iter().for_each(|row| after.rings.add(&row.place));
        for row in &run.ready {
            if row.pools.is_some() {
                after.pooled = true;
            } else if *handed && row.is_handed() {
                after.taken.push((run.id, row.at));
            } else {
                after.left = true;
            }
        }
    }
}
