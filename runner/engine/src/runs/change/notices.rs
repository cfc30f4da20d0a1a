//! Notices about runs, written in the runs' own transactions; the notifier decides about recipients and channels.

use heddle_domain::id::RunId;
use heddle_domain::notify::rules::{Announcements, Moves, Notice, notices};
use heddle_domain::run::{Actions, AttemptKey, Progress};
use heddle_domain::spec::NotifyEvent;
use heddle_domain::state::RunState;
use heddle_store::notice::NewNotices;

use crate::node::Node;
use crate::node::catalog::Revision;
use crate::node::signals::Signal;
use crate::{EngineError, RunContext};

/// Whether a rule asks for a notification when a task begins (once for a mapped task, not for each item).
/// [`tell_started`] checks whether the notice has been written already.
pub(crate) fn tells_start(context: &RunContext, at: AttemptKey) -> bool {
    at.key.item.is_none() && context.revision.subscriptions.task(at.key.task, NotifyEvent::Started)
}

/// The notices about the changes of a run, to be written in the same transaction. `begins`: whether it begins;
/// `ends`: the state in which it ends.
pub(crate) fn notices_of(
    context: &RunContext,
    actions: &Actions,
    begins: bool,
    ends: Option<RunState>,
    progress: &Progress,
) -> Option<Box<NewNotices>> {
    let revision = &context.revision;
    if !revision.subscriptions.any() && !context.facts.callback {
        return None;
    }
    let moves = Moves {
        started: begins,
        settled: &actions.settled,
        retries: &actions.timers,
        finished: ends,
        progress,
        callback: context.facts.callback,
    };
    let announcements = notices(&revision.plan, &revision.subscriptions, &moves);
    (!announcements.is_empty()).then(|| Box::new(new_notices(revision, Some(context.facts.id), announcements, None)))
}

/// Whether a rule asks for a notification of a single-task run that ends like this.
pub(crate) fn tells_end(context: &RunContext, state: RunState) -> bool {
    let subscriptions = &context.revision.subscriptions;
    let end = match state {
        RunState::Succeeded => NotifyEvent::Succeeded,
        _ => NotifyEvent::Failed,
    };
    context.facts.callback || subscriptions.anywhere(end) || subscriptions.anywhere(NotifyEvent::Recovered)
}

/// Writes the notice that a task begins, before its attempt does anything. Only the first attempt writes it,
/// because retries have their own notices. If that attempt was lost before it could write the notice, the next one
/// does.
pub(crate) async fn tell_started(node: &Node, context: &RunContext, at: AttemptKey) -> Result<(), EngineError> {
    let notice = Notice::of_task(NotifyEvent::Started, at.key.task);
    let announcements = Announcements {
        notices: vec![notice],
        troubled: Vec::new(),
    };
    let run = context.facts.id;
    let notices = new_notices(&context.revision, Some(run), announcements, None);
    if node.store.tell_start(run, at.key.task, notices, node.now()).await? {
        node.signals.raise(Signal::Notices);
    }
    Ok(())
}

/// Notices with the names of the tasks that they are about.
pub(crate) fn new_notices(
    revision: &Revision,
    run: Option<RunId>,
    announcements: Announcements,
    about: Option<String>,
) -> NewNotices {
    let tasks = announcements.notices.iter().filter_map(|notice| notice.task);
    let names = tasks
        .chain(announcements.troubled.iter().flatten().copied())
        .filter_map(|task| Some((task, revision.plan.task(task)?.name.as_str().to_owned())))
        .collect();
    NewNotices {
        group_id: revision.group_id,
        revision_id: revision.id,
        run,
        announcements,
        names,
        about,
    }
}
