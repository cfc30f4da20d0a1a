//! Controls of runs by operators. Each is one transaction over one run: [`Runs::lock`] begins it, the control plans what
//! happens to the run, and [`Runs::commit_controls`] decides, writes and commits (`controlled.rs`). A control of many runs
//! (`bulk.rs`) plans in the same way, and controls of task runs (`task_control.rs`) are carried out in the same way.

use std::collections::HashMap;
use std::sync::Arc;

use heddle_domain::id::RunId;
use heddle_domain::run::{Control, Event, TaskKey};
use heddle_domain::state::{RunState, TaskState};
use heddle_store::StoreError;
use heddle_store::live::{Completion, NewOverride};

pub use crate::runs::controlled::ControlError;
use crate::runs::controlled::{Act, Answers, ControlledRun, Planned, Step};
use crate::runs::create::batch_run::check_again;
use crate::runs::task_control::{Clear, not_cleared};
use crate::{EngineError, Runs};

/// A control of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkAction {
    /// Ends the run, and cancels its attempts.
    Cancel,
    /// As `Cancel`, but Heddle itself cancels the run, for this reason.
    CancelFor(String),
    /// As `CancelFor`, because a later run replaces it (`overlap: cancel_previous`): no follower waits for its instant.
    CancelPrevious,
    /// The run starts nothing new.
    Pause,
    /// All that was paused continues.
    Resume,
    /// Continues where it failed; `true`: with the scripts that are active now.
    Restart(bool),
    /// Sets the state of a run, for this reason. A live run is cancelled first.
    Override(RunState, String),
    /// Runs a task run of an ended run again.
    Clear(Clear),
}

impl BulkAction {
    /// The kind of control, for the check whether the state of the run allows it.
    pub(crate) fn control(&self) -> Control {
        match self {
            Self::Cancel | Self::CancelFor(_) | Self::CancelPrevious => Control::Cancel,
            Self::Pause => Control::Pause,
            Self::Resume => Control::Resume,
            Self::Restart(_) => Control::Restart,
            Self::Override(..) => Control::Override,
            Self::Clear(_) => Control::Clear,
        }
    }

    /// The refusal, if a run in this state does not allow it, or if it sets a state that cannot be set.
    pub(crate) fn check(&self, state: RunState) -> Result<(), ControlError> {
        match self {
            Self::Clear(_) if !Control::Clear.is_allowed(state) => Err(ControlError::Refused(not_cleared(state))),
            Self::Override(to, _) => Ok(Control::check_override_to(*to)?),
            _ => Ok(self.control().check(state)?),
        }
    }

    /// The refusal, if a run of this group in this state does not allow it.
    fn check_run(&self, state: RunState, group: &str) -> Result<(), ControlError> {
        self.check(state)?;
        match self.control().is_again() {
            true => check_again(group).map_err(ControlError::Refused),
            false => Ok(()),
        }
    }

    /// The action's name in the audit; `None` for what Heddle does by itself.
    fn word(&self) -> Option<&'static str> {
        match self {
            Self::Cancel => Some("cancel"),
            Self::CancelFor(_) | Self::CancelPrevious => None,
            Self::Pause => Some("pause"),
            Self::Resume => Some("resume"),
            Self::Restart(_) => Some("restart"),
            Self::Override(..) => Some("override"),
            Self::Clear(_) => Some("clear"),
        }
    }

    /// The action as it is recorded.
    pub(super) fn act<'a>(&'a self, actor: &'a str) -> Act<'a> {
        Act {
            actor,
            word: self.word(),
            reason: match self {
                Self::Override(_, reason) => reason.as_str(),
                Self::Clear(clear) => clear.reason.as_str(),
                _ => "",
            },
            why: match self {
                Self::CancelFor(why) => Some(why.clone()),
                Self::CancelPrevious => Some("cancelled because of a later run (overlap: cancel_previous)".into()),
                _ => None,
            },
            leaves_out: *self == Self::CancelPrevious,
        }
    }
}

/// The override of a run as a whole, in the form of one of a task run.
fn override_of_run(state: RunState) -> NewOverride {
    NewOverride {
        // This number means the run itself.
        key: TaskKey::whole(u16::MAX),
        state: match state {
            RunState::Succeeded => TaskState::Succeeded,
            RunState::Failed => TaskState::Failed,
            _ => TaskState::Cancelled,
        },
        output: None,
    }
}

impl Runs {
    /// Controls a run; returns after the commit.
    pub(crate) async fn control(
        self: &Arc<Self>,
        run: RunId,
        action: &BulkAction,
        actor: &str,
    ) -> Result<(), ControlError> {
        self.retried(|| self.control_once(run, action, actor)).await
    }

    async fn control_once(self: &Arc<Self>, run: RunId, action: &BulkAction, actor: &str) -> Result<(), ControlError> {
        let (mut completion, locked) = self.lock("control", run).await?;
        let mut answers = Answers::new();
        let planned = self.plan(&mut completion, vec![locked], action, &mut answers).await?;
        self.commit_controls(completion, &action.act(actor), planned, &mut answers)
            .await?;
        answers.remove(&run).unwrap_or(Ok(()))
    }

    /// What an action does to locked runs. Those that do not allow it get their answers.
    pub(super) async fn plan(
        &self,
        completion: &mut Completion,
        locked: Vec<ControlledRun>,
        action: &BulkAction,
        answers: &mut Answers,
    ) -> Result<Vec<Planned>, EngineError> {
        let mut allowed = Vec::with_capacity(locked.len());
        for one in locked {
            match action.check_run(one.live.state, &one.context.revision.group_name) {
                Ok(()) => allowed.push(one),
                Err(refused) => drop(answers.insert(one.run, Err(refused))),
            }
        }
        match action {
            BulkAction::Cancel | BulkAction::CancelFor(_) | BulkAction::CancelPrevious => {
                let cancel = |withdrawn| Step::Event(Event::Cancel { withdrawn });
                Ok(plan_withdrawing(completion, allowed, cancel).await?)
            }
            BulkAction::Pause => {
                let pause = |withdrawn| Step::Event(Event::Pause { withdrawn });
                Ok(plan_withdrawing(completion, allowed, pause).await?)
            }
            BulkAction::Resume => Ok(allowed.into_iter().map(resumed).collect()),
            BulkAction::Restart(active) => self.plan_restart(allowed, *active).await,
            BulkAction::Override(state, _) => {
                let set = |withdrawn| Step::Set(*state, withdrawn);
                let mut planned = plan_withdrawing(completion, allowed, set).await?;
                for one in &mut planned {
                    one.sets.push(override_of_run(*state));
                }
                Ok(planned)
            }
            BulkAction::Clear(clear) => self.plan_clear(completion, allowed, clear, answers).await,
        }
    }

    /// `active`: with the scripts that are active now, the same ones for all runs of a revision.
    async fn plan_restart(&self, locked: Vec<ControlledRun>, active: bool) -> Result<Vec<Planned>, EngineError> {
        let mut resolved: HashMap<i64, i64> = HashMap::new();
        let mut planned = Vec::with_capacity(locked.len());
        for locked in locked {
            let revision = locked.context.revision.clone();
            let mut one = Planned::of(locked, Step::Event(Event::Restart));
            if active {
                let id = match resolved.get(&revision.id) {
                    Some(id) => *id,
                    None => self.node.catalog.resolve(&revision).await?.id,
                };
                resolved.insert(revision.id, id);
                one.resolution_id = Some(id);
            }
            planned.push(one);
        }
        Ok(planned)
    }
}

fn resumed(locked: ControlledRun) -> Planned {
    let waits = locked.live.waits;
    Planned::of(locked, Step::Event(Event::Resume { waits }))
}

/// A step that gets what the live ones of the runs have ready: it is taken back, of all of them in one statement.
async fn plan_withdrawing(
    completion: &mut Completion,
    locked: Vec<ControlledRun>,
    step: impl Fn(Vec<TaskKey>) -> Step,
) -> Result<Vec<Planned>, StoreError> {
    let live = locked.iter().filter(|one| !one.live.state.is_final());
    let live: Vec<RunId> = live.map(|one| one.run).collect();
    let mut withdrawn: HashMap<RunId, Vec<TaskKey>> = HashMap::new();
    if !live.is_empty() {
        for (run, key) in completion.withdraw(&live).await? {
            withdrawn.entry(run).or_default().push(key);
        }
    }
    let mut planned = Vec::with_capacity(locked.len());
    for locked in locked {
        let withdrawn = withdrawn.remove(&locked.run).unwrap_or_default();
        planned.push(Planned::of(locked, step(withdrawn)));
    }
    Ok(planned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_is_refused_for_a_state_that_no_operator_sets() {
        let refused = |action: BulkAction, state: RunState| action.check(state).err().map(|error| error.to_string());
        let set = |to: RunState| refused(BulkAction::Override(to, "why".to_owned()), RunState::Failed);
        assert_eq!(set(RunState::Succeeded), None);
        for to in [RunState::Running, RunState::Cancelled] {
            assert_eq!(set(to), Some(format!("the state of a run cannot be set to {to}")));
        }
        assert_eq!(refused(BulkAction::Pause, RunState::Running), None);
    }

    #[test]
    fn a_clear_is_refused_with_what_to_do_instead() {
        let clear = BulkAction::Clear(Clear {
            task: "t".parse().expect("a name"),
            item: None,
            downstream: true,
            reason: String::new(),
        });
        assert!(clear.check(RunState::Cancelled).is_ok());
        let refused = clear.check(RunState::Paused).expect_err("it has not ended");
        assert_eq!(refused.to_string(), not_cleared(RunState::Paused));
    }
}
