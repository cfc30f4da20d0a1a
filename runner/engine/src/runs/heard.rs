//! How runs and attempts react to events of their node: changes of objects, news of other nodes, a lost lease.

use futures::FutureExt;
use futures::future::BoxFuture;
use heddle_store::change::{Change, Noun};

use crate::node::news::News;
use crate::node::part::Part;
use crate::node::signals::Signal;
use crate::{EngineError, Runs};

impl Part for Runs {
    fn changed<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<(), EngineError>> {
        let signals = &self.node.signals;
        async move {
            match change.noun {
                // Its scripts now have another runtime: the facts about their runs are read again.
                Some(Noun::Runtime) => self.contexts.clear(),
                // Its bounds may have changed, so other runs may begin.
                Some(Noun::Group) if self.node.store.wake_gate(&change.name).await? => signals.raise(Signal::Inbox),
                Some(Noun::Pool) => signals.raise(Signal::Pools),
                _ => {}
            }
            Ok(())
        }
        .boxed()
    }

    fn forget(&self) {
        self.contexts.clear();
    }

    fn heard(&self, news: &News) {
        match news {
            News::Ended(run) => {
                // If it goes on later, and this node does not hear that, it reads its facts again all the same.
                self.contexts.remove(run);
                self.waiters.runs.wake(*run);
            }
            News::ManyEnded => self.waiters.runs.wake_all(),
            News::Reopened(run) => drop(self.contexts.remove(run)),
            News::Filled(_) | News::Work | News::Stopped => {}
        }
    }

    /// Runs may have been reopened with other script versions.
    fn missed_news(&self) {
        self.contexts.clear();
    }

    fn attempts_in_hand(&self) -> usize {
        self.held.len()
    }

    fn claimed_to(&self) -> i64 {
        self.queue.last_claimed()
    }

    fn others_claimed_to(&self, position: i64) {
        self.queue.has_come_to(position);
    }

    /// Also those that have ended: an outcome that this node does not record before it leaves makes its attempt a lost one.
    fn in_hand(&self) -> usize {
        self.held.known()
    }

    fn stop_in_hand(&self) {
        self.held.cancel_all();
    }
}
