//! How many connections a node serves, and how long each may take.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// The maximum of open connections. Beyond it the longest silent ones are closed, and further ones wait in the
    /// kernel's queue while none is silent.
    pub connections_max: usize,
    /// Of these, the maximum of connections without a known caller; beyond it the longest silent ones of these are
    /// closed.
    pub strangers_max: usize,
    /// The same of one address.
    pub strangers_of_one_max: usize,
    /// How long the head of a request may take (an idle connection, too, is closed after it).
    pub header_timeout: Duration,
    /// The same for those that nobody knows yet.
    pub stranger_head_timeout: Duration,
    /// How long a request of theirs may take, from its head to the end of its answer.
    pub stranger_request_timeout: Duration,
    /// How long a connection may take nothing of an answer that is to be written: whoever reads slowly is served, whoever
    /// reads nothing, or next to nothing, is closed.
    pub unread_timeout: Duration,
    /// Bytes of a request's head.
    pub header_bytes_max: usize,
    /// How long requests under way may go on once the node shuts down.
    pub drain_timeout: Duration,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            connections_max: 16_384,
            strangers_max: 8_192,
            strangers_of_one_max: 4_096,
            header_timeout: Duration::from_secs(30),
            stranger_head_timeout: Duration::from_secs(10),
            stranger_request_timeout: Duration::from_secs(60),
            unread_timeout: Duration::from_secs(30),
            header_bytes_max: 64 * 1024,
            drain_timeout: Duration::from_secs(25),
        }
    }
}

impl ServeLimits {
    /// For a process with this limit of open files, of which connections take up to three quarters.
    pub fn of_files(files: u64) -> Self {
        let limits = Self::default();
        let connections_max = usize::try_from(files / 4 * 3).unwrap_or(usize::MAX);
        let connections_max = limits.connections_max.min(connections_max.max(16));
        Self {
            connections_max,
            strangers_max: limits.strangers_max.min(connections_max / 2),
            strangers_of_one_max: limits.strangers_of_one_max.min(connections_max / 4),
            ..limits
        }
    }
}
