//! What there is to be told of runs, written in their own transactions; who is told, and how, the notifier sees to.

use heddle_domain::id::RunId;
use heddle_domain::notify::rules::{Moves, Notice, Telling, notices};
use heddle_domain::run::{Actions, AttemptKey, Progress};
use heddle_domain::spec::NotifyEvent;
use heddle_domain::state::RunState;
use heddle_store::notice::NewNotices;

use crate::node::catalog::Revision;
use crate::node::signals::Signal;
use crate::{EngineError, RunContext, Runs};

/// Whether somebody wants to hear that a task begins; not that each of its items does. Whether it has been told already
/// [`Runs::tell_started`] finds out.
pub(crate) fn tells_start(context: &RunContext, at: AttemptKey) -> bool {
    at.key.item.is_none() && context.revision.subscriptions.task(at.key.task, NotifyEvent::Started)
}

impl Runs {
    /// What there is to be told of a run's moves, to be written in the transaction of these moves.
    pub(crate) fn notices_of(
        &self,
        context: &RunContext,
        actions: &Actions,
        state: RunState,
        progress: &Progress,
    ) -> Option<Box<NewNotices>> {
        let revision = &context.revision;
        if !revision.subscriptions.any() && !context.facts.callback {
            return None;
        }
        let moves = Moves {
            started: actions.started,
            settled: &actions.settled,
            retries: &actions.timers,
            finished: state.is_final().then_some(state),
            progress,
            callback: context.facts.callback,
        };
        let telling = notices(&revision.plan, &revision.subscriptions, &moves);
        (!telling.is_empty()).then(|| Box::new(new_notices(revision, Some(context.facts.id), telling, None)))
    }

    /// Whether somebody wants to hear of a run of one task that ends so.
    pub(crate) fn tells_end(&self, context: &RunContext, state: RunState) -> bool {
        let subscriptions = &context.revision.subscriptions;
        let end = match state {
            RunState::Succeeded => NotifyEvent::Succeeded,
            _ => NotifyEvent::Failed,
        };
        context.facts.callback || subscriptions.anywhere(end) || subscriptions.anywhere(NotifyEvent::Recovered)
    }

    /// An attempt of a task begins: whoever wants to hear of it is told before it does anything, unless an earlier attempt
    /// told: of what is tried again people hear as such. An attempt that was lost before it could tell leaves it to this
    /// one.
    pub(crate) async fn tell_started(&self, context: &RunContext, at: AttemptKey) -> Result<(), EngineError> {
        let notice = Notice::of_task(NotifyEvent::Started, at.key.task);
        let telling = Telling {
            notices: vec![notice],
            troubled: Vec::new(),
        };
        let run = context.facts.id;
        let notices = new_notices(&context.revision, Some(run), telling, None);
        if self
            .node
            .store
            .tell_start(run, at.key.task, notices, self.now())
            .await?
        {
            self.node.signals.raise(Signal::Notices);
        }
        Ok(())
    }
}

/// Notices with the names of the tasks that they are about.
pub(crate) fn new_notices(
    revision: &Revision,
    run: Option<RunId>,
    telling: Telling,
    about: Option<String>,
) -> NewNotices {
    let tasks = telling.notices.iter().filter_map(|notice| notice.task);
    let names = tasks
        .chain(telling.troubled.iter().flatten().copied())
        .filter_map(|task| Some((task, revision.plan.task(task)?.name.as_str().to_owned())))
        .collect();
    NewNotices {
        group_id: revision.group_id,
        revision_id: revision.id,
        run,
        telling,
        names,
        about,
    }
}
