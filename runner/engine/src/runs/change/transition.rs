//! The next step of one run, within the transaction that holds its lock: the decision about events, together with the
//! task runs that the store must withdraw.
//!
//! Some decisions depend on which task runs nobody has claimed yet (a run that fails with `on_failure: stop` cancels
//! those). Only the tables contain that. So `decide` requests a withdrawal, gets the withdrawn task runs as one more
//! event, and both results are carried out together.
//!
//! Only this module makes a [`Transition`], in one of two ways:
//!
//! * [`Runs::transition`] applies events by `decide`: outcomes, timers, gates, controls.
//! * Two ends come from no event. An operator sets the state of a run ([`Transition::set_by_hand`],
//!   [`Transition::then_set_by_hand`]), which does not change its progress. A run is given up
//!   ([`Transition::given_up`]) and gets a new progress, because its own one may be unreadable.
//!
//! The short way of `single_task.rs` makes no `Transition`. It calls `decide` itself, because it reads no progress.

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{Actions, Event, Progress, Refused, decide};
use heddle_domain::state::RunState;
use heddle_store::StoreError;
use heddle_store::live::{Completion, LiveRun, LockedRun};

use crate::{EngineError, RunContext, Runs};

/// What happens to a run: the state that follows, and what has to be done. The head of this module says who makes one.
#[derive(Debug)]
pub(crate) struct Transition(Parts);

/// The content of a [`Transition`].
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) actions: Actions,
    pub(crate) state: RunState,
    pub(crate) progress: Progress,
    /// Whether the run begins.
    pub(crate) begins: bool,
    /// Whether the run had ended in this state before, and has done nothing since: its end has been announced.
    pub(crate) told: bool,
    /// Whether no notices are written, although it changes: the database refuses them.
    pub(crate) silent: bool,
}

impl Transition {
    /// An operator sets a run that has ended to this state: it ends again, without any work. Its progress stays.
    pub(crate) fn set_by_hand(ended: Snapshot, state: RunState) -> Self {
        Self(Parts {
            actions: Actions::default(),
            state,
            told: state == ended.state,
            progress: ended.progress,
            begins: false,
            silent: false,
        })
    }

    /// An operator sets a live run to this state. `self` is its cancel, which may lead to another state: the run gets
    /// the state that the operator gave.
    pub(crate) fn then_set_by_hand(self, state: RunState) -> Self {
        Self(Parts { state, ..self.0 })
    }

    /// A run is given up: it ends as failed, with this progress instead of its own. `tells`: with its notices. The feed
    /// says in any case that it has ended.
    pub(crate) fn given_up(progress: Progress, tells: bool) -> Self {
        let state = RunState::Failed;
        Self(Parts {
            actions: Actions {
                finished: Some(state),
                ..Actions::default()
            },
            state,
            progress,
            begins: false,
            told: false,
            silent: !tells,
        })
    }

    /// The state of the run afterwards.
    pub(crate) fn state(&self) -> RunState {
        self.0.state
    }

    /// The progress of the run after the transition.
    pub(crate) fn progress(&self) -> &Progress {
        &self.0.progress
    }

    /// Which outcomes were accepted, in the order of the events.
    pub(crate) fn accepted(&self) -> &[bool] {
        &self.0.actions.accepted
    }

    /// For the rows that are written.
    pub(crate) fn into_parts(self) -> Parts {
        self.0
    }
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
        Ok(Transition(Parts {
            actions,
            state,
            progress,
            // The states of its tasks do not decide this: an operator may have set some of them before.
            // `Completion::write` dates the begin by the same rule.
            begins: !begun && state == RunState::Running,
            told: state.is_final() && state == was,
            silent: false,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that is locked in this state.
    fn locked(state: RunState) -> Snapshot {
        Snapshot {
            state,
            progress: Progress::default(),
            begun: true,
        }
    }

    #[test]
    fn a_state_that_is_set_by_hand_is_told_only_if_it_is_another_one() {
        for (before, told) in [
            (RunState::Succeeded, false),
            (RunState::Failed, true),
            (RunState::Cancelled, false),
        ] {
            let set = Transition::set_by_hand(locked(before), RunState::Failed);
            assert_eq!(set.state(), RunState::Failed);
            let parts = set.into_parts();
            assert_eq!((parts.told, parts.begins), (told, false), "{before}");
            assert_eq!(parts.actions, Actions::default(), "{before}");
            assert_eq!(parts.progress, Progress::default(), "{before}");
        }
    }

    #[test]
    fn a_cancel_is_followed_by_the_state_of_the_operator() {
        let key = heddle_domain::run::TaskKey::whole(0);
        let cancelled = Transition(Parts {
            actions: Actions {
                interrupt: vec![key],
                ..Actions::default()
            },
            state: RunState::Cancelled,
            progress: Progress::default(),
            begins: false,
            told: false,
            silent: false,
        });
        let parts = cancelled.then_set_by_hand(RunState::Succeeded).into_parts();
        assert_eq!((parts.state, parts.told), (RunState::Succeeded, false));
        assert_eq!(parts.actions.interrupt, [key], "the attempts are still stopped");
    }

    #[test]
    fn a_run_that_is_given_up_has_failed_and_tells_it_if_it_can() {
        for tells in [true, false] {
            let parts = Transition::given_up(Progress::default(), tells).into_parts();
            assert_eq!(
                (parts.state, parts.told, parts.begins, parts.silent),
                (RunState::Failed, false, false, !tells)
            );
            assert_eq!(parts.actions.finished, Some(RunState::Failed));
        }
    }
}
