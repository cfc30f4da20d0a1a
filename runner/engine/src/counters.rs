//! What a node counts, for its metrics: gathered from its parts.

use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus::Histogram;

use crate::Engine;
use crate::node::short_ways::ShortWay;
use crate::runs::inbox::aside::Kind;

/// What a node counts, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    /// Runs that this node has ended.
    pub runs_ended: u64,
    /// Of these, runs that never began: because of the overlap, or because too many waited.
    pub runs_skipped: [u64; 2],
    /// Attempts that this node has ended.
    pub attempts_ended: u64,
    pub in_hand: usize,
    /// Runs that this node has failed because one of their outcomes could not be recorded.
    pub given_up: u64,
    /// Attempts whose outcome cannot be recorded and whose run cannot be ended.
    pub set_aside: usize,
    /// Runs with rows that the engine cannot handle, by table.
    pub rows_set_aside: [(&'static str, usize); Kind::ALL.len()],
    /// Whether the node holds its lease.
    pub lease_held: bool,
    /// How often it has lost one.
    pub leases_lost: u64,
    /// How long the database has not answered the data plane.
    pub stalled_for: Duration,
    /// How often each short way was taken, by its name.
    pub short_ways: [(&'static str, u64); ShortWay::ALL.len()],
}

impl Engine {
    pub fn counters(&self) -> Counters {
        Counters {
            runs_ended: self.runs.counts.ended.load(Ordering::Relaxed),
            runs_skipped: [0, 1].map(|why: usize| self.runs.counts.skipped[why].load(Ordering::Relaxed)),
            attempts_ended: self.runs.counts.attempts_ended.load(Ordering::Relaxed),
            in_hand: self.runs.held.len(),
            given_up: self.runs.reports.given_up.runs(),
            set_aside: self.runs.reports.given_up.set_aside(),
            rows_set_aside: Kind::ALL.map(|kind| (kind.name(), self.runs.pending.aside.of(kind).len())),
            lease_held: self.is_healthy(),
            leases_lost: self.runs.node.state.now().leases_lost,
            stalled_for: self.runs.node.store.stalled_for(),
            short_ways: self.runs.node.short_ways.counts(),
        }
    }

    /// The histograms: how long runs and attempts took, and how many task runs one claim brought.
    pub fn histograms(&self) -> [&Histogram; 5] {
        self.runs.counts.histograms()
    }
}
