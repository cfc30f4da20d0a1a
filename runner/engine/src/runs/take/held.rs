//! The current attempts of this node: those that it has claimed or was given, and has not reported.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use heddle_domain::{Chain, Time};
use heddle_sandbox::AttemptHandle;
use heddle_store::live::{EndedAttempt, Grant, LogRow};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::runs::Worker;
use crate::runs::ending::{Applied, End, Ending};
use crate::runs::record::log_buffer::{Backlog, LogBuffer};
use crate::scripts::redact::Redactor;
use crate::{EngineError, RunContext, Runs};

/// How many short attempts a node should hold: so many that one transaction of the recorder records some hundred of
/// them.
pub(crate) const SHORT_TARGET: usize = 800;

/// How many reports may wait to be recorded, or for their logs to be written. An attempt keeps its slot until its
/// report is taken, so there are at most as many as slots, plus those that concurrent transactions were each allowed to
/// give to this node.
pub(crate) fn reports_max(slots: usize) -> usize {
    slots + 4 * SHORT_TARGET
}

/// The effects of scripts whose attempts have ended count in no memory limit any more. When so many bytes of them wait for a
/// transaction, further such attempts count as busy: a database that is slower than the scripts makes the node take fewer.
const EFFECT_BYTES_PARKED_MAX: usize = 64 << 20;

/// For how much processor time a node takes attempts in advance.
const AHEAD: Duration = Duration::from_millis(50);

/// The pause before a node asks again after the database did not answer.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// One current attempt of this node.
#[derive(Clone)]
pub(crate) struct HeldAttempt {
    pub(crate) attempt: u32,
    /// It has ended and waits for its outcome to be recorded.
    pub(crate) released: bool,
    pub(crate) log: Arc<LogBuffer>,
    /// Stops what is not a script: an HTTP call, preparation.
    pub(crate) stop: CancellationToken,
    /// If it is stopped because of an error of Heddle itself: that error.
    pub(crate) trouble: Arc<Mutex<Option<Ending>>>,
    /// Stops the script of the attempt.
    pub(crate) handle: Arc<Mutex<Option<AttemptHandle>>>,
    /// When it was taken, by [`NodeClock::elapsed`](crate::node::clock::NodeClock::elapsed).
    pub(crate) since: Duration,
    /// Its progress, for people.
    pub(crate) progress: Arc<Mutex<Option<(f64, String)>>>,
    /// The secrets that its log must not show.
    pub(crate) secrets: Arc<Redactor>,
}

/// A current attempt has ended.
pub(crate) struct Report {
    pub(crate) run: RunId,
    pub(crate) at: AttemptKey,
    pub(crate) context: Arc<RunContext>,
    pub(crate) held: HeldAttempt,
    pub(crate) end: End,
    pub(crate) finished_at: Time,
    /// How long it took, by the node's own monotonic clock.
    pub(crate) lasted: Duration,
    /// Log lines that are not written yet.
    pub(crate) lines: Vec<LogRow>,
}

impl HeldAttempt {
    /// Ends it with an error of Heddle itself.
    pub(crate) fn end_as(&self, ours: Ending) {
        *self.trouble.lock() = Some(ours);
        self.cancel();
    }

    pub(crate) fn cancel(&self) {
        self.stop.cancel();
        if let Some(handle) = self.handle.lock().as_ref() {
            handle.cancel();
        }
    }
}

/// The current attempts, and the worker that carries them out.
pub(crate) struct HeldAttempts {
    /// The maximum number of attempts, and how many threads run guests.
    slots: usize,
    threads: usize,
    worker: OnceLock<Weak<dyn Worker>>,
    attempts: Mutex<HashMap<(RunId, TaskKey), HeldAttempt>>,
    count: AtomicUsize,
    /// Of these, those that wait for something outside: HTTP calls, preparation, room in a transaction. The sandbox counts
    /// the scripts that wait.
    parked: AtomicUsize,
    /// The bytes of effects of those that wait for room in a transaction.
    effect_bytes: AtomicUsize,
    /// How many of their log lines wait.
    logs_waiting: Arc<Backlog>,
    /// Moving average of the processor time of an attempt, in microseconds.
    cpu_micros: AtomicU64,
}

impl HeldAttempts {
    pub(crate) fn new(slots: usize, threads: usize) -> Self {
        Self {
            slots,
            threads,
            worker: OnceLock::new(),
            attempts: Mutex::default(),
            count: AtomicUsize::new(0),
            parked: AtomicUsize::new(0),
            effect_bytes: AtomicUsize::new(0),
            logs_waiting: Arc::default(),
            cpu_micros: AtomicU64::new(0),
        }
    }

    /// Sets the worker that carries out attempts; called once, when the node is put together. The worker knows the
    /// runs, so these hold only a weak reference.
    pub(crate) fn carried_out_by(&self, worker: &Arc<dyn Worker>) {
        let _ = self.worker.set(Arc::downgrade(worker));
    }

    pub(crate) fn add(&self, run: RunId, at: AttemptKey, since: Duration) -> HeldAttempt {
        let held = HeldAttempt {
            attempt: at.attempt,
            released: false,
            log: Arc::new(LogBuffer::new(Arc::clone(&self.logs_waiting))),
            stop: CancellationToken::new(),
            trouble: Arc::default(),
            handle: Arc::default(),
            since,
            progress: Arc::default(),
            secrets: Arc::default(),
        };
        let before = self.attempts.lock().insert((run, at.key), held.clone());
        if before.is_none_or(|before| before.released) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        held
    }

    /// The attempt has ended: its slot is free. It stays known until its outcome is recorded, see
    /// [`HeldAttempts::forget`].
    pub(crate) fn release(&self, run: RunId, at: AttemptKey) {
        let mut attempts = self.attempts.lock();
        if let Some(held) = attempts
            .get_mut(&(run, at.key))
            .filter(|held| held.attempt == at.attempt && !held.released)
        {
            held.released = true;
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The attempt's outcome is recorded, or not needed.
    pub(crate) fn forget(&self, run: RunId, at: AttemptKey) {
        self.release(run, at);
        let mut attempts = self.attempts.lock();
        if attempts
            .get(&(run, at.key))
            .is_some_and(|held| held.attempt == at.attempt)
        {
            attempts.remove(&(run, at.key));
        }
    }

    /// Whether the attempt is known here.
    pub(crate) fn knows(&self, run: RunId, at: AttemptKey) -> bool {
        self.attempts
            .lock()
            .get(&(run, at.key))
            .is_some_and(|held| held.attempt == at.attempt)
    }

    pub(crate) fn get(&self, run: RunId, key: TaskKey) -> Option<HeldAttempt> {
        self.attempts.lock().get(&(run, key)).cloned()
    }

    pub(crate) fn cancel(&self, run: RunId, at: AttemptKey) {
        if let Some(held) = self.get(run, at.key).filter(|held| held.attempt == at.attempt) {
            held.cancel();
        }
    }

    pub(crate) fn cancel_all(&self) {
        for held in self.attempts.lock().values() {
            held.cancel();
        }
    }

    /// The attempts that were taken at or before an instant.
    pub(crate) fn taken_until(&self, until: Duration) -> Vec<(RunId, AttemptKey)> {
        self.attempts
            .lock()
            .iter()
            .filter(|(_, held)| !held.released && held.since <= until)
            .map(|(&(run, key), held)| {
                (
                    run,
                    AttemptKey {
                        key,
                        attempt: held.attempt,
                    },
                )
            })
            .collect()
    }

    /// The logs of all current attempts.
    pub(crate) fn logs(&self) -> Vec<Arc<LogBuffer>> {
        self.attempts.lock().values().map(|held| held.log.clone()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// How many attempts are known here: those that run, and those that have ended and whose outcome is not recorded yet.
    pub(crate) fn known(&self) -> usize {
        self.attempts.lock().len()
    }

    pub(crate) fn park(&self) {
        self.parked.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unpark(&self) {
        self.parked.fetch_sub(1, Ordering::Relaxed);
    }

    /// An attempt has ended, and a transaction had no room for its effects of so many bytes: it counts as parked until
    /// [`HeldAttempts::unpark_effects`]. `false`: too many bytes wait so, and it goes on counting as busy.
    pub(crate) fn park_effects(&self, bytes: usize) -> bool {
        let more = |waiting: usize| waiting.checked_add(bytes).filter(|sum| *sum <= EFFECT_BYTES_PARKED_MAX);
        let parks = self
            .effect_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok();
        if parks {
            self.park();
        }
        parks
    }

    pub(crate) fn unpark_effects(&self, bytes: usize) {
        self.effect_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.unpark();
    }

    /// An attempt has ended after this much processor time.
    pub(crate) fn observe(&self, cpu: Duration) {
        let old = self.cpu_micros.load(Ordering::Relaxed);
        let new = (old * 15 + cpu.min(AHEAD).as_micros() as u64) / 16;
        self.cpu_micros.store(new, Ordering::Relaxed);
    }

    /// How many more attempts this node should take: enough to keep its threads busy for a moment, but not so many that
    /// they wait here while other nodes are idle. `aside`: how many scripts wait for I/O or run on the threads for long
    /// scripts. They hold a slot, but take no processor time from the others.
    pub(crate) fn room(&self, aside: usize) -> usize {
        let held = self.len();
        let threads = self.threads;
        let average = self.cpu_micros.load(Ordering::Relaxed).max(1);
        let ahead = AHEAD.as_micros() as u64 * threads as u64 / average;
        let target = (ahead as usize).clamp(threads * 2, SHORT_TARGET);
        let busy = held.saturating_sub(aside + self.parked.load(Ordering::Relaxed));
        self.slots.saturating_sub(held).min(target.saturating_sub(busy))
    }
}

impl Runs {
    /// Begins to work on attempts that are this node's now.
    pub(crate) fn take(self: &Arc<Self>, taken: Vec<(RunId, AttemptKey)>) {
        let mut unknown = Vec::new();
        let now = self.node.clock.elapsed();
        for (run, at) in taken {
            let held = self.held.add(run, at, now);
            match self.contexts.get(&run) {
                Some(context) => self.begin(context, at, held),
                None => unknown.push((run, at, held)),
            }
        }
        if !unknown.is_empty() {
            let own = self.clone();
            self.node.tracker.spawn(async move { own.begin_unknown(unknown).await });
        }
    }

    async fn begin_unknown(self: Arc<Self>, unknown: Vec<(RunId, AttemptKey, HeldAttempt)>) {
        let mut runs: Vec<RunId> = unknown.iter().map(|entry| entry.0).collect();
        runs.sort_unstable();
        runs.dedup();
        let contexts = loop {
            match self.contexts.of(&runs).await {
                Ok(contexts) => break contexts,
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), runs = runs.len(), "cannot read claimed runs; trying again");
                    tokio::select! {
                        () = tokio::time::sleep(ASK_AGAIN) => {}
                        () = self.node.stop.cancelled() => return,
                    }
                }
            }
        };
        for (run, at, held) in unknown {
            match contexts.get(&run) {
                Some(context) => self.begin(context.clone(), at, held),
                // It has ended meanwhile: another node has it, or it was cancelled.
                None => self.held.forget(run, at),
            }
        }
    }

    fn begin(&self, context: Arc<RunContext>, at: AttemptKey, held: HeldAttempt) {
        // When the node has ended, there is no worker any more.
        if let Some(worker) = self.held.worker.get().and_then(Weak::upgrade) {
            worker.begin(context, at, held);
        }
    }

    /// At the end of a drain, stops the remaining attempts and puts them back into the queue. They are not lost, so
    /// they do not count against `max_lost`.
    pub(crate) async fn hand_back(self: &Arc<Self>) -> Result<(), EngineError> {
        let left = self.held.taken_until(self.node.clock.elapsed());
        if left.is_empty() {
            return Ok(());
        }
        tracing::info!(attempts = left.len(), "releasing attempts that did not end in time");
        let mut runs: Vec<_> = left.iter().map(|entry| entry.0).collect();
        runs.sort_unstable();
        runs.dedup();
        let contexts = self.contexts.of(&runs).await?;
        let lease = self.lease();
        let outcomes = left
            .into_iter()
            .map(|(run, at)| Applied {
                ended: EndedAttempt { run, at, lease },
                end: End::Dropped,
                finished_at: None,
                node: Some(self.node.identity.id),
            })
            .collect();
        let mut completion = self.node.completion("release_held").await?;
        let after = self
            .apply(&mut completion, &contexts, outcomes, &mut Grant::none())
            .await?;
        completion.commit().await?;
        self.held.cancel_all();
        self.acted(after);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outcomes that wait for room in a transaction let the node take other attempts, but only while their effects are few
    /// bytes: each beyond counts as busy, so that a slow database fills no memory.
    #[test]
    fn effects_that_wait_stop_the_node_from_taking_more() {
        let held = HeldAttempts::new(10_000, 8);
        held.observe(AHEAD);
        let all = held.room(0);
        assert!(all > 8, "{all}");
        let bytes = EFFECT_BYTES_PARKED_MAX / 8;
        let waiting: Vec<AttemptKey> = (0..all as i32)
            .map(|item| AttemptKey::from_numbers(0, item, 1))
            .collect();
        let run = RunId(uuid::Uuid::nil());
        let mut parked = 0;
        for (at, others) in waiting.iter().zip(0_usize..) {
            held.add(run, *at, Duration::ZERO);
            parked += usize::from(held.park_effects(bytes));
            assert_eq!(parked, (others + 1).min(8));
            assert_eq!(held.room(0), all - (others + 1 - parked));
        }
        assert_eq!(held.room(0), 8);
        // They are recorded.
        held.unpark_effects(bytes);
        held.release(run, waiting[0]);
        assert_eq!(held.room(0), 8);
        assert!(held.park_effects(bytes));
        assert_eq!(held.room(0), 9);
    }
}
