//! What a store keeps for the C library's system.

use bytes::Bytes;

#[derive(Default)]
pub(crate) struct State {
    pub archive: Option<Bytes>,
    /// The input that our module reads when it begins.
    pub input: Option<String>,
    /// The positions of streams in the archive.
    pub(super) streams: Vec<Option<u64>>,
    /// How many nanoseconds timers wait.
    pub(super) timers: Vec<Option<u64>>,
}

impl State {
    pub(super) fn archive(&self) -> &[u8] {
        self.archive.as_deref().unwrap_or_default()
    }
}
