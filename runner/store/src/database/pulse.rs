//! What the watch sees of a session.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

/// What the watch sees of a session.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// The server's process, and when it began: together they identify it.
    pub(crate) process: i32,
    pub(crate) born: String,
    /// Whether it is one of the data plane's.
    pub(crate) data: bool,
    /// Whether its statements are small.
    pub(super) small: AtomicBool,
    /// Since when it waits for an answer, in the watch's milliseconds; 0: it does not wait.
    pub(super) waiting: AtomicU64,
    /// When the last answer came.
    pub(super) heard: AtomicU64,
    /// The longest that an answer may take.
    pub(super) bound: AtomicU64,
    /// Cancelled when the session is given up.
    pub(super) given_up: CancellationToken,
}

impl Pulse {
    /// Since when it waits for an answer, if it does.
    pub(crate) fn waiting_since(&self) -> Option<u64> {
        match self.waiting.load(Ordering::Acquire) {
            0 => None,
            since => Some(since),
        }
    }

    pub(crate) fn is_small(&self) -> bool {
        self.small.load(Ordering::Relaxed)
    }

    pub(crate) fn bound(&self) -> u64 {
        self.bound.load(Ordering::Acquire)
    }

    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Acquire)
    }

    pub(crate) fn give_up(&self) {
        self.given_up.cancel();
    }
}
