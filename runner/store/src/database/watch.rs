//! The state of all sessions: how long each waits, whether the data plane gets answers, and which were closed.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::SUSPICIOUS_AFTER;
use super::disk_space::DiskSpace;
use super::pulse::Pulse;

/// How many sessions may wait to be ended at the server; the server detects the others by itself.
const BURIED_MAX: usize = 256;

/// Closes idle sessions of a pool: those whose last answer came at or before a time, and those that are not needed.
/// `false`: the pool does not exist any more.
type Sweep = Arc<dyn Fn(Option<u64>) -> bool + Send + Sync>;

pub(crate) struct Watch {
    started: Instant,
    pulses: Mutex<Vec<Weak<Pulse>>>,
    pools: Mutex<Vec<Sweep>>,
    /// Sessions that were closed at this end, to be ended at the server.
    pub(super) buried: Mutex<Vec<(i32, String)>>,
    /// When the data plane first asked something after its last answer; 0: it waits for nothing.
    unanswered: AtomicU64,
    /// After how many milliseconds of waiting sessions are suspected, and when one was last given up.
    pub(super) suspicious: AtomicU64,
    pub(super) given_up: AtomicU64,
    /// Whether the server's disk is full.
    pub(super) disk_space: DiskSpace,
}

pub(super) fn millis(span: Duration) -> u64 {
    span.as_millis() as u64
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            pulses: Mutex::default(),
            pools: Mutex::default(),
            buried: Mutex::default(),
            unanswered: AtomicU64::new(0),
            suspicious: AtomicU64::new(millis(SUSPICIOUS_AFTER)),
            given_up: AtomicU64::new(0),
            disk_space: DiskSpace::default(),
        })
    }

    /// Milliseconds since the watch began; never 0.
    pub(crate) fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64 + 1
    }

    pub(crate) fn observe(&self, pulse: &Arc<Pulse>) {
        let mut pulses = self.pulses.lock();
        pulses.retain(|known| known.strong_count() > 0);
        pulses.push(Arc::downgrade(pulse));
    }

    pub(crate) fn observe_pool(&self, sweep: Sweep) {
        self.pools.lock().push(sweep);
    }

    /// The data plane asks something.
    pub(crate) fn asked(&self, at: u64) {
        let _ = self
            .unanswered
            .compare_exchange(0, at, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The data plane has got an answer.
    pub(crate) fn answered(&self) {
        self.unanswered.store(0, Ordering::Relaxed);
    }

    /// How long the data plane has been asking without any answer.
    pub(crate) fn stalled_for(&self) -> Duration {
        match self.unanswered.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_millis(self.now().saturating_sub(since)),
        }
    }

    /// How long the server has been refusing writes because its disk is full.
    pub(crate) fn full_for(&self) -> Duration {
        match self.disk_space.lacks_since() {
            None => Duration::ZERO,
            Some(since) => Duration::from_millis(self.now().saturating_sub(since)),
        }
    }

    /// Lets the server end a session that is closed at this end.
    pub(crate) fn bury(&self, pulse: &Pulse) {
        let mut buried = self.buried.lock();
        if buried.len() < BURIED_MAX {
            buried.push((pulse.process, pulse.born.clone()));
        }
    }

    /// Closes idle sessions whose last answer came at or before this time.
    pub(crate) fn distrust(&self, heard: u64) {
        self.sweep(Some(heard));
    }

    /// Closes those idle sessions, and those that nobody needs.
    pub(super) fn sweep(&self, distrusted: Option<u64>) {
        // Not under the lock: a closing session may wake somebody who asks the pool for one. And from a copy: who sweeps at
        // the same time must find all pools, too.
        let sweeps = self.pools.lock().clone();
        let gone: Vec<Sweep> = sweeps.into_iter().filter(|sweep| !sweep(distrusted)).collect();
        if !gone.is_empty() {
            let is_gone = |sweep: &Sweep| gone.iter().any(|gone| Arc::ptr_eq(gone, sweep));
            self.pools.lock().retain(|sweep| !is_gone(sweep));
        }
    }

    pub(super) fn observed(&self) -> Vec<Arc<Pulse>> {
        self.pulses.lock().iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn give_up(&self, pulse: &Pulse, waited: u64, why: &str) {
        tracing::warn!(
            process = pulse.process,
            waited_ms = waited,
            why,
            "closing a connection on which Postgres does not answer"
        );
        pulse.give_up();
        // Sessions whose last answer is older than the begin of this wait may be lost too.
        if let Some(since) = pulse.waiting_since() {
            self.distrust(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn sweeps_at_the_same_time_find_all_pools() {
        let (watch, swept) = (Watch::new(), Arc::new(AtomicU32::new(0)));
        let (other, count) = (Arc::downgrade(&watch), swept.clone());
        watch.observe_pool(Arc::new(move |_| {
            // Another request finds a cut connection while the pool is swept for the first one.
            if count.fetch_add(1, Ordering::Relaxed) == 0 {
                other.upgrade().unwrap().distrust(1);
            }
            true
        }));
        watch.distrust(1);
        assert_eq!(swept.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_pool_that_is_gone_is_forgotten() {
        let (watch, swept) = (Watch::new(), Arc::new(AtomicU32::new(0)));
        for stays in [false, true] {
            let count = swept.clone();
            watch.observe_pool(Arc::new(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                stays
            }));
        }
        watch.sweep(None);
        watch.sweep(None);
        assert_eq!(swept.load(Ordering::Relaxed), 3);
    }
}
