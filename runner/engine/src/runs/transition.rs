//! The next step of one run, within the transaction that holds its lock: the decision about events, together with the
//! task runs that the store must withdraw.
//!
//! Some decisions depend on which task runs nobody has claimed yet (a run that fails with `on_failure: stop` cancels
//! those). Only the tables contain that. So `decide` requests a withdrawal, gets the withdrawn task runs as one more
//! event, and both results are carried out together. Every transition of a run that has been created goes through
//! [`Runs::transition`], whether an outcome, a timer, a gate or an operator causes it. The one exception is the short
//! way of `single_task.rs`, which calls `decide` itself, because it reads no progress.

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{Actions, Event, Progress, Refused, decide};
use heddle_domain::state::RunState;
use heddle_store::StoreError;
use heddle_store::live::{Completion, LiveRun, LockedRun};

use crate::{EngineError, RunContext, Runs};

/// The state of a run after its events, and what has to be done.
pub(crate) struct Transition {
    pub(crate) actions: Actions,
    pub(crate) state: RunState,
    pub(crate) progress: Progress,
    /// Whether the run begins.
    pub(crate) begins: bool,
    /// Whether the run had ended in this state before, and has done nothing since: its end has been announced.
    pub(crate) told: bool,
}

/// Why there was no transition.
#[derive(Debug)]
pub(crate) enum NoTransition {
    /// The state of the run does not allow an event.
    Refused(Refused),
    /// An error that the caller did not cause.
    Engine(EngineError),
}

impl From<Refused> for NoTransition {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl From<StoreError> for NoTransition {
    fn from(error: StoreError) -> Self {
        Self::Engine(error.into())
    }
}

/// For the engine's own loops, which only send events that the run's state allows.
impl From<NoTransition> for EngineError {
    fn from(none: NoTransition) -> Self {
        match none {
            NoTransition::Refused(refused) => {
                Self::unreadable_in("an event that is not possible in this state", refused)
            }
            NoTransition::Engine(error) => error,
        }
    }
}

/// A run's progress from the database's bytes.
pub(crate) fn progress_of(run: RunId, bytes: &[u8]) -> Result<Progress, EngineError> {
    Progress::from_bytes(bytes).map_err(|error| EngineError::Progress { run, error })
}

/// The same as bytes for the database.
pub(crate) fn bytes_of(run: RunId, progress: &Progress) -> Result<Vec<u8>, EngineError> {
    progress
        .to_bytes()
        .map_err(|error| EngineError::Progress { run, error })
}

/// A locked run, from its row: what a transition begins with.
pub(crate) struct Snapshot {
    pub(crate) state: RunState,
    pub(crate) progress: Progress,
    /// Whether it has begun at some time.
    begun: bool,
}

impl Snapshot {
    /// The snapshot of a live run that a completion has locked.
    pub(crate) fn of(run: RunId, found: &LockedRun) -> Result<Self, EngineError> {
        Ok(Self {
            state: found.state,
            progress: progress_of(run, &found.progress)?,
            begun: found.begun,
        })
    }

    /// The snapshot of a run that was locked for a control.
    pub(crate) fn of_live(run: RunId, live: &LiveRun) -> Result<Self, EngineError> {
        Ok(Self {
            state: live.state,
            progress: progress_of(run, &live.progress)?,
            begun: live.begun,
        })
    }
}

impl Runs {
    /// Applies events to a locked run.
    pub(crate) async fn transition(
        &self,
        context: &RunContext,
        snapshot: Snapshot,
        events: &[Event],
        completion: &mut Completion,
        now: Time,
    ) -> Result<Transition, NoTransition> {
        let plan = &context.revision.plan;
        let Snapshot {
            mut state,
            mut progress,
            begun,
        } = snapshot;
        let was = state;
        let mut bits = || self.node.chance.bits();
        let mut actions = decide(plan, &mut state, &mut progress, events, now, &mut bits)?;
        if actions.withdraw {
            let withdrawn = [Event::Withdrawn(completion.withdraw_of(context.facts.id).await?)];
            actions.and_then(decide(plan, &mut state, &mut progress, &withdrawn, now, &mut bits)?);
        }
        Ok(Transition {
            actions,
            state,
            progress,
            // The states of its tasks do not decide this: an operator may have set some of them before.
            // `Completion::write` dates the begin by the same rule.
            begins: !begun && state == RunState::Running,
            told: state.is_final() && state == was,
        })
    }
}
