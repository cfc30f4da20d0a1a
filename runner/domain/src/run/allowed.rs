//! Which control a run allows in which state.

use super::Refused;
use crate::state::RunState;

/// A control of a run as a whole: the state of the run decides whether it is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Ends it and what runs in it.
    Cancel,
    /// It starts nothing new.
    Pause,
    /// Whatever was paused goes on.
    Resume,
    /// Goes on where it failed.
    Restart,
    /// Runs a task run of it again.
    Clear,
    /// Removes the run with all its data.
    Delete,
    /// Sets its state by hand, with a reason.
    Override,
    /// Makes a new run like it.
    Rerun,
}

impl Control {
    /// Whether a run in this state allows it. This is the only place that says so: the state machine asks it to
    /// decide, and all others ask it to know in advance.
    pub fn is_allowed(self, state: RunState) -> bool {
        match self {
            Self::Cancel => !state.is_final(),
            Self::Pause => matches!(state, RunState::Waiting | RunState::Running),
            Self::Resume => state == RunState::Paused,
            Self::Restart => matches!(state, RunState::Failed | RunState::Cancelled),
            Self::Clear | Self::Delete => state.is_final(),
            Self::Override | Self::Rerun => true,
        }
    }

    /// The refusal, if a run in this state does not allow it.
    pub fn check(self, state: RunState) -> Result<(), Refused> {
        match self.is_allowed(state) {
            true => Ok(()),
            false => Err(Refused::RunState(state)),
        }
    }
}
