//! Which control a run allows: by its state, and by what it carries.

use super::Refused;
use crate::state::RunState;
use crate::topic::topic_of;

/// Whether a run of this group may run again, all of it or a part, or another run like it. The run of a batch of messages
/// may not: its topic has recorded what became of each message, and puts the failed ones into new batches. So the run
/// would send all of them a second time. For the same reason, nobody sets its state or that of its task run by hand: only
/// its worker knows which messages were sent.
///
/// This is the only place that says so: the engine asks it to decide, and the pages ask it to know in advance.
pub fn runs_again(group: &str) -> bool {
    topic_of(group).is_none()
}

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
    /// Sets its state by hand, or that of one of its task runs, with a reason.
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

    /// Whether it makes a run end a second time, or makes another run like it. Only a run that may run again allows it
    /// ([`runs_again`]).
    pub fn is_again(self) -> bool {
        match self {
            Self::Restart | Self::Clear | Self::Override | Self::Rerun => true,
            Self::Cancel | Self::Pause | Self::Resume | Self::Delete => false,
        }
    }

    /// Whether a run of this group allows it in this state.
    pub fn is_allowed_of(self, group: &str, state: RunState) -> bool {
        self.is_allowed(state) && (runs_again(group) || !self.is_again())
    }

    /// The refusal, if a run in this state does not allow it.
    pub fn check(self, state: RunState) -> Result<(), Refused> {
        match self.is_allowed(state) {
            true => Ok(()),
            false => Err(Refused::RunState(state)),
        }
    }

    /// The refusal, if an override cannot set a run to this state.
    pub fn check_override_to(to: RunState) -> Result<(), Refused> {
        match RunState::OVERRIDES.contains(&to) {
            true => Ok(()),
            false => Err(Refused::Target(to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topic::group_name;

    #[test]
    fn a_run_is_set_only_to_an_end_that_its_tasks_can_give_it() {
        for &to in RunState::ALL {
            let expect = match to {
                RunState::Succeeded | RunState::Failed => Ok(()),
                RunState::Waiting | RunState::Running | RunState::Paused | RunState::Cancelled => {
                    Err(Refused::Target(to))
                }
            };
            assert_eq!(Control::check_override_to(to), expect);
        }
        let refused = Refused::Target(RunState::Cancelled);
        assert_eq!(refused.to_string(), "the state of a run cannot be set to cancelled");
    }

    #[test]
    fn what_carries_a_batch_does_not_run_again() {
        use Control::{Cancel, Clear, Delete, Override, Pause, Rerun, Restart, Resume};
        let batch = group_name(7);
        assert!(!runs_again(&batch) && runs_again("weather") && runs_again("_topic-x"));
        for (control, state, of_batch) in [
            (Restart, RunState::Failed, false),
            (Clear, RunState::Failed, false),
            (Override, RunState::Failed, false),
            (Rerun, RunState::Succeeded, false),
            (Delete, RunState::Failed, true),
            (Cancel, RunState::Running, true),
            (Pause, RunState::Running, true),
            (Resume, RunState::Paused, true),
        ] {
            assert!(control.is_allowed_of("weather", state), "{control:?}");
            assert_eq!(control.is_allowed_of(&batch, state), of_batch, "{control:?}");
        }
        assert!(!Restart.is_allowed_of("weather", RunState::Running));
    }
}
