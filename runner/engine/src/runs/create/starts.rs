//! Runs that were submitted in SQL: what their group adds to them, and their begin.
//!
//! `heddle.submit` writes a waiting run and a row of *starts*, and no more: only the engine knows the rest. A node that
//! has locked the run *completes* it: it pins the versions of its scripts, and adds data interval, labels and deadline.
//! A run without pinned versions is not complete.
//!
//! Usually this is done by the node that takes the row of *starts*, which then begins the run. But an operator may be
//! faster. So every control completes the runs that it has locked before it changes them: one that is paused, cancelled
//! or set by hand before a node began it is then like any other, and it is resumed or restarted like any other. The
//! node that takes the row later begins the run only if it still waits. Nothing depends on the row after a control: runs
//! whose row an older node has dropped are resumed and restarted as well.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::Event;
use heddle_domain::state::RunState;
use heddle_store::StoreError;
use heddle_store::live::{Completion, SqlStart, Take};

use crate::node::signals::Signal;
use crate::runs::change::apply::After;
use crate::runs::change::transition::Snapshot;
use crate::runs::contexts::Contexts;
use crate::runs::create::submit::labels_of;
use crate::{EngineError, RunContext, Runs};

impl Runs {
    /// Runs that were submitted in SQL: completes them, and begins those that still wait and have no gate.
    pub(crate) async fn starts(
        self: &Arc<Self>,
        take: Take<'_>,
        taken: &mut BTreeSet<RunId>,
    ) -> Result<(), EngineError> {
        let mut completion = self.node.completion("starts").await?;
        let runs = completion.take_starts(take).await?;
        if runs.is_empty() {
            return Ok(());
        }
        taken.extend(&runs);
        let locked = completion.lock_runs(&runs).await?;
        // One that has ended is not among them: whoever ended it has completed it.
        let live: Vec<RunId> = runs.into_iter().filter(|run| locked.contains_key(run)).collect();
        // Read under the locks: a control may have completed some of them.
        let mut contexts = self.contexts.of(&live).await?;
        complete(&mut completion, &mut contexts, |run| locked[&run].state).await?;
        let mut after = After::default();
        let mut writes = Vec::new();
        let mut grant = self.grant();
        for run in live {
            let (found, context) = (&locked[&run], self.contexts.known(&contexts, run).await?);
            if found.state != RunState::Waiting || is_gated(&context) {
                continue;
            }
            let snapshot = Snapshot::of(run, found)?;
            let now = completion.now();
            let transition = self
                .transition(&context, snapshot, &[Event::Start], &mut completion, now)
                .await?;
            writes.push(self.write_of(&context, transition, &mut grant, &mut after)?);
        }
        self.write(&mut completion, &writes, &mut after).await?;
        completion.commit().await?;
        for (run, context) in contexts {
            self.contexts.insert(run, context);
        }
        self.acted(after);
        // There may be more of them, and runs at their gates.
        self.node.signals.raise(Signal::Inbox);
        Ok(())
    }
}

fn is_gated(context: &RunContext) -> bool {
    let facts = &context.facts;
    context.revision.is_gated(facts.trigger, facts.source.is_some())
}

/// Completes the locked runs that nobody has completed yet, and puts those that have not begun at their groups' gates.
/// Returns the runs that now wait there.
pub(crate) async fn complete(
    completion: &mut Completion,
    contexts: &mut Contexts,
    state_of: impl Fn(RunId) -> RunState,
) -> Result<HashSet<RunId>, StoreError> {
    let now = completion.now();
    let (mut starts, mut gated) = (Vec::new(), Vec::new());
    for (&run, context) in contexts.iter_mut() {
        if context.facts.resolution_id.is_some() {
            continue;
        }
        let state = state_of(run);
        // A deadline that has passed has no effect on a run that is reopened.
        let (start, completed) = completed(context, state.is_final().then_some(now));
        *context = completed;
        starts.push(start);
        if matches!(state, RunState::Waiting | RunState::Paused) && is_gated(context) {
            gated.push((run, context.facts.group_id));
        }
    }
    completion.complete_starts(&starts).await?;
    completion.wait_at_gate(&gated).await?;
    Ok(gated.into_iter().map(|(run, _)| run).collect())
}

/// A run that was submitted in SQL, with what its group adds to every run. Deadlines until `passed` are left out.
fn completed(context: &RunContext, passed: Option<Time>) -> (SqlStart, Arc<RunContext>) {
    let (revision, resolution) = (&context.revision, &context.resolution);
    let mut facts = context.facts.clone();
    facts.resolution_id = Some(resolution.id);
    facts.interval = revision.calendar.data_interval(facts.logical_time);
    let deadline_at = revision.plan.deadline.map(|span| facts.created_at + span.chrono());
    facts.deadline_at = deadline_at.filter(|at| passed.is_none_or(|passed| *at > passed));
    let start = SqlStart {
        run: facts.id,
        resolution_id: resolution.id,
        interval: facts.interval,
        labels: labels_of(revision, &Default::default()),
        deadline_at: facts.deadline_at,
    };
    let context = RunContext {
        facts,
        revision: revision.clone(),
        resolution: resolution.clone(),
        maps: Default::default(),
    };
    (start, Arc::new(context))
}
