//! Callers that wait on this node: for a run to change (`watch.rs`), or for a queue to be filled (`queued.rs`).
//!
//! Each is woken by this node when it changes a run or fills a queue, and by news of other nodes, which this node sends
//! for them. Nothing depends on that: whoever waits also checks by itself.

pub(crate) mod queued;
pub(crate) mod watch;

use std::sync::Arc;

use crate::node::Node;
use queued::Queued;
use watch::Watches;

/// Who waits for something on this node.
pub(crate) struct Waiters {
    node: Arc<Node>,
    pub(crate) runs: Watches,
    pub(crate) queues: Queued,
}

impl Waiters {
    pub(crate) fn of(node: Arc<Node>) -> Self {
        Self {
            node,
            runs: Watches::default(),
            queues: Queued::default(),
        }
    }
}
