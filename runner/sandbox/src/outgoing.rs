//! How many HTTP requests scripts may have under way at the same time: each takes a connection, and so an open file.
//!
//! A request has a slot of its attempt and one of the node, from before it connects until its response has been read, or
//! nobody wants it any more. Further requests wait for a slot, within their own timeout: so a script that holds as many
//! responses as it may, and never reads them, only fails its own next request, and the error says why. The slot of the
//! attempt comes first: what waits for it takes none from others. An attempt has at most a quarter of the node's slots, and as
//! many as a component can have requests: its resources end before.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long to wait for a response's first byte, and for the next ones, unless the guest wants less; and how long a whole
/// response to the `fetch` of a source script may take, from the first byte sent to the last one received.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(600);
/// The maximum of requests of one attempt, on a node with at least four times as many slots.
const ATTEMPT_REQUESTS_MAX: usize = 256;
/// So many attempts can have all slots of a node, if they are few.
const ATTEMPTS_MIN: usize = 4;
/// The maximum of requests of all attempts of a node, if its limit of open files is small.
const NODE_REQUESTS_MIN: usize = 64;
/// A node's share of its limit of open files. The connections of its API take up to three quarters.
const FILES_SHARE: u64 = 8;

/// The maximum of requests of all attempts in a process with this limit of open files.
pub(crate) fn requests_of_files(files: u64) -> usize {
    let share = usize::try_from(files / FILES_SHARE).unwrap_or(usize::MAX);
    share.clamp(NODE_REQUESTS_MIN, Semaphore::MAX_PERMITS)
}

/// So many slots, as long as they are free.
#[derive(Clone)]
struct Slots {
    free: Arc<Semaphore>,
    max: usize,
}

impl Slots {
    fn new(max: usize) -> Self {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(max)),
            max,
        }
    }

    /// A slot, when one is free. (They are never closed, so it is always there.)
    async fn take(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free).acquire_owned().await.ok()
    }
}

/// The slots of a node.
pub(crate) struct NodeRequests(Slots);

impl NodeRequests {
    pub fn new(max: usize) -> Self {
        Self(Slots::new(max))
    }

    /// Those of one more attempt.
    pub fn of_attempt(&self) -> Outgoing {
        Outgoing {
            attempt: Slots::new(ATTEMPT_REQUESTS_MAX.min(self.0.max / ATTEMPTS_MIN)),
            node: self.0.clone(),
        }
    }
}

/// The slots of an attempt.
#[derive(Clone)]
pub(crate) struct Outgoing {
    attempt: Slots,
    node: Slots,
}

/// A request that may be under way until this is dropped.
pub(crate) struct Slot {
    _attempt: Option<OwnedSemaphorePermit>,
    _node: Option<OwnedSemaphorePermit>,
}

impl Outgoing {
    /// Waits until one more request may be sent. `turn` knows what it waits for.
    pub async fn slot(&self, turn: &Turn) -> Slot {
        turn.set(Waits::Attempt(self.attempt.max));
        let attempt = self.attempt.take().await;
        turn.set(Waits::Node(self.node.max));
        let node = self.node.take().await;
        turn.set(Waits::Response);
        Slot {
            _attempt: attempt,
            _node: node,
        }
    }
}

/// What a request waits for, for whoever gives up on it.
#[derive(Default)]
pub(crate) struct Turn(Mutex<Waits>);

#[derive(Clone, Copy, Default)]
enum Waits {
    /// The answer of the host that was asked.
    #[default]
    Response,
    /// The end of one of so many requests of its attempt, or of its node.
    Attempt(usize),
    Node(usize),
}

impl Turn {
    fn set(&self, waits: Waits) {
        *self.0.lock() = waits;
    }

    /// Why a request was not sent within so much time; `None`: it was sent.
    pub fn late(&self, wait: Duration) -> Option<String> {
        let waits = *self.0.lock();
        let (max, whose) = match waits {
            Waits::Response => return None,
            Waits::Attempt(max) => (max, "an attempt"),
            Waits::Node(max) => (max, "all attempts of a node together"),
        };
        Some(format!(
            "not sent within {wait:?}: {whose} may have {max} requests at the same time, and a request ends when its \
             response has been read"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn a_node_has_a_share_of_its_files() {
        for (files, expect) in [(0, 64), (1_024, 128), (2_048, 256), (1 << 20, 1 << 17)] {
            assert_eq!(requests_of_files(files), expect, "{files}");
        }
        assert_eq!(requests_of_files(u64::MAX), Semaphore::MAX_PERMITS);
    }

    #[test]
    fn an_attempt_has_a_share_of_the_slots() {
        for (node, expect) in [(64, 16), (128, 32), (1_024, 256), (1 << 17, 256)] {
            assert_eq!(NodeRequests::new(node).of_attempt().attempt.max, expect, "{node}");
        }
    }

    #[test]
    fn what_waits_for_its_attempt_takes_nothing_from_others() {
        let node = NodeRequests::new(2 * ATTEMPTS_MIN);
        let wait = Duration::from_secs(7);
        let take = |of: &Outgoing, turn: &Turn| of.slot(turn).now_or_never();
        let taken = |of: &Outgoing| take(of, &Turn::default()).expect("a slot");
        let (one, other) = (node.of_attempt(), node.of_attempt());
        let mut slots = vec![taken(&one), taken(&one)];
        let turn = Turn::default();
        assert!(take(&one, &turn).is_none());
        let why = turn.late(wait).expect("it waits");
        assert!(why.contains("within 7s: an attempt may have 2 requests"), "{why}");
        // It waits without a slot of the node: others have all of them.
        let rest = [node.of_attempt(), node.of_attempt()];
        let mut others: Vec<Slot> = rest.iter().flat_map(|of| [taken(of), taken(of)]).collect();
        let turn = Turn::default();
        others.push(take(&other, &turn).expect("a slot"));
        assert_eq!(turn.late(wait), None);
        let last = taken(&other);
        let turn = Turn::default();
        let waits = node.of_attempt();
        assert!(take(&waits, &turn).is_none());
        let why = turn.late(wait).expect("it waits");
        assert!(
            why.contains("all attempts of a node together may have 8 requests"),
            "{why}"
        );
        // What has waited in vain has taken nothing.
        slots.pop();
        slots.push(taken(&one));
        drop(last);
        drop(taken(&waits));
    }
}
