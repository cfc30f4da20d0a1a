//! One run's next step, within the transaction that holds its lock: what `decide` makes of events, with what the store
//! has to take back for it.
//!
//! Some decisions need to know which task runs nobody has claimed yet (a run that fails with `on_failure: stop` cancels
//! those). Only the tables know. `decide` then asks for a withdrawal; what was withdrawn is told to it as one more event,
//! and both answers are carried out as one. Every transition goes through [`Runs::transition`], whoever causes it: an
//! outcome, a timer, a gate, an operator.

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{Actions, Event, Progress, Refused, decide};
use heddle_domain::state::RunState;
use heddle_store::StoreError;
use heddle_store::live::{Completion, LockedRun};

use crate::runs::apply::progress_of;
use crate::{ControlError, EngineError, RunContext, Runs};

/// Where a run stands after its events, and what has to be done for it.
pub(crate) struct Transition {
    pub(crate) actions: Actions,
    pub(crate) state: RunState,
    pub(crate) progress: Progress,
}

/// Why there was none.
#[derive(Debug)]
pub(crate) enum NoTransition {
    /// An event does not go with how the run stands.
    Refused(Refused),
    /// Not the caller's fault.
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

/// To an operator, who may have asked for what cannot be.
impl From<NoTransition> for ControlError {
    fn from(none: NoTransition) -> Self {
        match none {
            NoTransition::Refused(refused) => refused.into(),
            NoTransition::Engine(error) => error.into(),
        }
    }
}

/// To the engine's own loops, which tell a run only what goes with its state.
impl From<NoTransition> for EngineError {
    fn from(none: NoTransition) -> Self {
        match none {
            NoTransition::Refused(refused) => Self::Unreadable(format!(
                "an event that is not possible in this state: \
                {refused}"
            )),
            NoTransition::Engine(error) => error,
        }
    }
}

/// Where a locked run stands.
pub(crate) fn standing(run: RunId, found: &LockedRun) -> Result<(RunState, Progress), EngineError> {
    Ok((found.state, progress_of(run, &found.progress)?))
}

impl Runs {
    /// Takes a locked run from where it stands to where its events lead.
    pub(crate) async fn transition(
        &self,
        context: &RunContext,
        (mut state, mut progress): (RunState, Progress),
        events: &[Event],
        completion: &mut Completion,
        now: Time,
    ) -> Result<Transition, NoTransition> {
        let plan = &context.revision.plan;
        let mut bits = || self.node.chance.bits();
        let mut actions = decide(plan, &mut state, &mut progress, events, now, &mut bits)?;
        if actions.withdraw {
            let withdrawn = completion.withdraw(&[context.facts.id]).await?;
            let keys = withdrawn.into_iter().map(|(_, key)| key).collect();
            let withdrawn = [Event::Withdrawn(keys)];
            actions.and_then(decide(plan, &mut state, &mut progress, &withdrawn, now, &mut bits)?);
        }
        Ok(Transition {
            actions,
            state,
            progress,
        })
    }
}
