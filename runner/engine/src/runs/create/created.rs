//! What has to be done after the commit that creates runs; the same for submissions, schedules, upstream groups,
//! backfills and scripts.

use std::sync::Arc;

use heddle_store::live::{Created, NewRun};

use crate::node::signals::Signal;
use crate::runs::change::apply::After;
use crate::{RunContext, Runs};

impl Runs {
    /// Attempts that this node was given begin; others are woken. `created` has the result for each of `runs`.
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

    /// The same for one run among others of a transaction; handled after its commit.
    pub(crate) fn note_created(&self, run: &NewRun, context: Arc<RunContext>, created: &Created, after: &mut After) {
        if after.created(run, created) {
            self.contexts.insert(run.id, context);
        }
    }
}

impl After {
    /// Notes what follows; returns whether a node will soon need the facts of the run.
    fn created(&mut self, run: &NewRun, created: &Created) -> bool {
        let Created::Made { handed, .. } = created else {
            return false;
        };
        // Runs that wait for upstream groups are handled by the links, the others by the gate, usually on this node.
        let waits_at_gate = run.gated && !run.follows;
        self.signals.add_if(waits_at_gate, Signal::Inbox);
        self.signals.add_if(run.follows, Signal::Links);
        run.queued.iter().for_each(|row| self.filled.add(&row.target));
        for row in &run.ready {
            if row.pools.is_some() {
                self.signals.add(Signal::Pools);
            } else if *handed && row.is_handed() {
                self.own_attempts.push((run.id, row.at));
            } else {
                self.signals.add(Signal::Work);
            }
        }
        waits_at_gate || !run.ready.is_empty() || !run.queued.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use heddle_domain::Time;
    use heddle_domain::id::RunId;
    use heddle_domain::run::{AttemptKey, TaskKey};
    use heddle_store::live::{ReadyRow, Room};

    use super::*;
    use crate::node::signals::SignalSet;

    fn run() -> NewRun {
        NewRun::plain(RunId(uuid::Uuid::from_u128(7)), 1, Time::default())
    }

    fn at(task: u16) -> AttemptKey {
        AttemptKey {
            key: TaskKey { task, item: None },
            attempt: 1,
        }
    }

    /// Rows of which this node gets the first and not the second; the third waits for slots of pools.
    fn rows(count: usize) -> Vec<ReadyRow> {
        let room = Room {
            free: 1,
            share: 9,
            backlog: false,
        };
        let mut grant = room.grant();
        let mut rows: Vec<ReadyRow> = (0..3)
            .map(|task| ReadyRow::new(at(task), 1, (task == 2).then(Arc::default)))
            .collect();
        rows.iter_mut().for_each(|row| row.hand(&mut grant));
        rows.truncate(count);
        rows
    }

    #[track_caller]
    fn check(run: &NewRun, created: &Created, signals: &[Signal], own: usize, known: bool) {
        let mut after = After::default();
        assert_eq!(after.created(run, created), known, "whether it will be asked for soon");
        let mut expect = SignalSet::default();
        signals.iter().for_each(|signal| expect.add(*signal));
        assert_eq!(after.signals, expect);
        assert_eq!(after.own_attempts.len(), own);
        assert!(after.own_attempts.iter().all(|own| *own == (run.id, at(0))));
    }

    #[test]
    fn whoever_is_concerned_is_woken() {
        let made = |handed| Created::Made {
            handed,
            at: Time::default(),
        };
        // All given to this node; the lease expired meanwhile; more rows than were given; slots of pools.
        let ready = |count| NewRun {
            ready: rows(count),
            ..run()
        };
        check(&ready(1), &made(true), &[], 1, true);
        check(&ready(1), &made(false), &[Signal::Work], 0, true);
        check(&ready(2), &made(true), &[Signal::Work], 1, true);
        check(&ready(3), &made(true), &[Signal::Work, Signal::Pools], 1, true);
        // At a gate; waiting for upstream groups; with nothing to do at all.
        let gated = |follows| NewRun {
            gated: true,
            follows,
            ..run()
        };
        check(&gated(false), &made(true), &[Signal::Inbox], 0, true);
        check(&gated(true), &made(true), &[Signal::Links], 0, false);
        check(&run(), &made(true), &[], 0, false);
        // A run that was not created has no consequences.
        for refused in [Created::Exists(run().id), Created::Fenced] {
            check(&ready(3), &refused, &[], 0, false);
            check(&gated(false), &refused, &[], 0, false);
        }
    }
}
