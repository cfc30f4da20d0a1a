//! Events of a node that concern all of its services.

use std::sync::Arc;

use futures::future::BoxFuture;
use heddle_store::change::Change;

use super::news::News;
use crate::EngineError;

/// The events of its node that a service handles, in addition to its own loop. Most services implement only a few of
/// these.
pub(crate) trait Part: Send + Sync {
    /// An object was changed, on this node or another: what the service has cached of it is out of date. After an
    /// error, the node calls this again.
    fn changed<'a>(&'a self, _change: &'a Change) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The server may be another one, which lacks commits of the former one: what the service has cached of the database may
    /// not be there.
    fn forget(&self) {}

    /// Another node has sent this news.
    fn heard(&self, _news: &News) {}

    /// News of other nodes may have been missed, because this one did not listen for a while.
    fn missed_news(&self) {}

    /// How many attempts of task runs the service is working on.
    fn attempts_in_hand(&self) -> usize {
        0
    }

    /// The highest position in *ready* that the service knows to be claimed.
    fn claimed_to(&self) -> i64 {
        0
    }

    /// Some node has claimed this position in *ready*.
    fn others_claimed_to(&self, _position: i64) {}

    /// How many attempts, batches or sends of the service a stopping node waits for.
    fn in_hand(&self) -> usize {
        self.attempts_in_hand()
    }

    /// Stops all current work of the service: it does not belong to this node any more.
    fn stop_in_hand(&self) {}

    /// The node has been asked to stop: callers that wait here are answered, so that they go to another node.
    fn leaves(&self) {}
}

/// The services of a node, as the node sees them.
#[derive(Clone)]
pub(crate) struct Parts(Arc<[Arc<dyn Part>]>);

impl Parts {
    pub(crate) fn new(parts: impl IntoIterator<Item = Arc<dyn Part>>) -> Self {
        Self(parts.into_iter().collect())
    }

    pub(super) async fn changed(&self, change: &Change) -> Result<(), EngineError> {
        for part in self.0.iter() {
            part.changed(change).await?;
        }
        Ok(())
    }

    pub(super) fn forget(&self) {
        self.0.iter().for_each(|part| part.forget());
    }

    pub(super) fn heard(&self, news: &News) {
        self.0.iter().for_each(|part| part.heard(news));
    }

    pub(super) fn missed_news(&self) {
        self.0.iter().for_each(|part| part.missed_news());
    }

    pub(super) fn attempts_in_hand(&self) -> usize {
        self.0.iter().map(|part| part.attempts_in_hand()).sum()
    }

    pub(super) fn claimed_to(&self) -> i64 {
        self.0.iter().map(|part| part.claimed_to()).max().unwrap_or(0)
    }

    pub(super) fn others_claimed_to(&self, position: i64) {
        self.0.iter().for_each(|part| part.others_claimed_to(position));
    }

    pub(crate) fn in_hand(&self) -> usize {
        self.0.iter().map(|part| part.in_hand()).sum()
    }

    pub(crate) fn stop_in_hand(&self) {
        self.0.iter().for_each(|part| part.stop_in_hand());
    }
    pub(crate) fn leaves(&self) {
        self.0.iter().for_each(|part| part.leaves());
    }
}
