//! Runs with a single task run, whose outcome is the outcome of the run. Most runs of most groups are such runs. The
//! recorder writes their end with one statement, which reads no progress.

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::decide;
use heddle_domain::state::{RunState, Trigger};
use heddle_store::live::{EndedAttempt, SingleTaskEnd};
use uuid::Uuid;

use crate::RunContext;
use crate::node::signals::Signal;
use crate::runs::change::apply::{After, attempt_row, event_of};
use crate::runs::change::notices::tells_end;
use crate::runs::change::transition::bytes_of;
use crate::runs::ending::End;

/// The end of a run with this outcome, if the outcome alone decides it: the run consists of one task run, this is its
/// first attempt, and no other run or gate waits for its end.
pub(crate) fn end_of(
    context: &RunContext,
    ended: EndedAttempt,
    end: &End,
    finished_at: Time,
    node: Uuid,
) -> Option<SingleTaskEnd> {
    let plan = &context.revision.plan;
    let End::Done(done) = end else { return None };
    let alone = plan.tasks.len() == 1
        && !plan.tasks[0].mapped
        && ended.at.attempt == 1
        && done.effects.is_empty()
        // With a `queue_timeout`, it may have a timer, which the statement does not delete.
        && plan.tasks[0].spec.queue_timeout.is_none()
        && !context.facts.has_parent
        && context.facts.deadline_at.is_none()
        && !context
            .revision
            .is_gated(context.facts.trigger, context.facts.source.is_some());
    if !alone {
        return None;
    }
    let mut progress = context.revision.start.1.clone();
    let mut state = RunState::Running;
    let events = [event_of(ended.at, end)];
    let actions = decide(plan, &mut state, &mut progress, &events, finished_at, &mut || 0).ok()?;
    let state = actions.finished.filter(|state| !tells_end(context, *state))?;
    let error = match state {
        RunState::Failed => progress.error().map(str::to_owned),
        _ => None,
    };
    Some(SingleTaskEnd {
        attempt: attempt_row(ended, done.clone(), finished_at, finished_at, Some(node)),
        state,
        // If it cannot be encoded, the general way reports that.
        progress: bytes_of(ended.run, &progress).ok()?,
        error,
    })
}

/// What has to be done after the commit of such ends.
pub(crate) fn after<'a>(owned: Vec<RunId>, followed: bool, contexts: impl Iterator<Item = &'a RunContext>) -> After {
    let mut after = After {
        moved: owned.clone(),
        finished: owned,
        ..After::default()
    };
    after.signals.add_if(followed, Signal::Links);
    for context in contexts {
        after.signals.add_if(context.revision.pooled, Signal::Pools);
        if context.facts.trigger == Trigger::Backfill {
            after.backfilled.extend(context.facts.source);
        }
    }
    after
}
