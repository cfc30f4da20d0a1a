//! The admitter: gives free slots of pools to those that wait for them; `heddle_store::live` tells the story (pools).
//!
//! What wakes it is a move of a run that uses pools, a change of a pool, or a look once in a while.

use std::sync::Arc;
use std::time::Duration;

use crate::Inner;
use crate::node::news::News;
use crate::node::signals::Signal;
use heddle_domain::Chain;

/// How often to look without being told.
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(crate) async fn run(inner: Arc<Inner>) {
    loop {
        tokio::select! {
            () = inner.node.stop.cancelled() => return,
            () = inner.node.signals.raised(Signal::Pools) => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        if inner.node.is_fenced() {
            continue;
        }
        match inner.node.store.admit_pooled().await {
            Ok(0) => {}
            Ok(_) => {
                inner.node.signals.raise(Signal::Work);
                inner.node.outbox.tell(News::Work);
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "slots of pools cannot be given out; trying again");
            }
        }
    }
}
