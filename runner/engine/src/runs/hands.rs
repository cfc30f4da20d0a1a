//! What this node has in hand: attempts that it claimed or was handed and has not reported.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use heddle_sandbox::AttemptHandle;
use heddle_store::live::{EndedAttempt, Grant};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::runs::apply::Applied;
use crate::runs::ending::{End, Ending};
use crate::runs::log_buffer::{Backlog, LogBuffer};
use crate::runs::redact::Redactor;
use crate::{EngineError, RunContext, Runs};

/// What is wanted under way when tasks are short: so many that a transaction of the recorder has some hundred of them.
pub(crate) const SHORT_TARGET: usize = 800;

/// How much processor time a node takes in advance.
const AHEAD: Duration = Duration::from_millis(50);

/// How long a node waits before it asks again for what the database did not give.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// One attempt in hand.
#[derive(Clone)]
pub(crate) struct Hand {
    pub(crate) attempt: u32,
    /// It has ended and waits for its outcome to be recorded.
    pub(crate) released: bool,
    pub(crate) log: Arc<LogBuffer>,
    /// Stops what is not a script: an HTTP call, preparation.
    pub(crate) stop: CancellationToken,
    /// Why it is stopped, if that is Heddle's own fault.
    pub(crate) trouble: Arc<Mutex<Option<Ending>>>,
    /// Stops a script.
    pub(crate) handle: Arc<Mutex<Option<AttemptHandle>>>,
    /// When it was taken, by the monotonic clock.
    pub(crate) since: tokio::time::Instant,
    /// How far it has come, for people.
    pub(crate) progress: Arc<Mutex<Option<(f64, String)>>>,
    /// What it must not show.
    pub(crate) secrets: Arc<Redactor>,
}

impl Hand {
    /// Ends it by Heddle's own fault.
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

/// The attempts in hand.
#[derive(Default)]
pub(crate) struct Hands {
    held: Mutex<HashMap<(RunId, TaskKey), Hand>>,
    count: AtomicUsize,
    /// Of these, waiting for something outside: HTTP calls, preparation. Scripts that are parked the sandbox counts.
    parked: AtomicUsize,
    /// How many lines of their logs wait.
    logs_waiting: Arc<Backlog>,
    /// Moving average of an attempt's processor time, microseconds.
    cpu_micros: AtomicU64,
}

impl Hands {
    pub(crate) fn add(&self, run: RunId, at: AttemptKey) -> Hand {
        let hand = Hand {
            attempt: at.attempt,
            released: false,
            log: Arc::new(LogBuffer::new(Arc::clone(&self.logs_waiting))),
            stop: CancellationToken::new(),
            trouble: Arc::default(),
            handle: Arc::default(),
            since: tokio::time::Instant::now(),
            progress: Arc::default(),
            secrets: Arc::default(),
        };
        let before = self.held.lock().insert((run, at.key), hand.clone());
        if before.is_none_or(|before| before.released) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        hand
    }

    /// The attempt has ended: its place is free. It stays known until its outcome is recorded, see [`Hands::forget`].
    pub(crate) fn release(&self, run: RunId, at: AttemptKey) {
        let mut held = self.held.lock();
        if let Some(hand) = held
            .get_mut(&(run, at.key))
            .filter(|hand| hand.attempt == at.attempt && !hand.released)
        {
            hand.released = true;
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The attempt's outcome is recorded, or is not wanted.
    pub(crate) fn forget(&self, run: RunId, at: AttemptKey) {
        self.release(run, at);
        let mut held = self.held.lock();
        if held.get(&(run, at.key)).is_some_and(|hand| hand.attempt == at.attempt) {
            held.remove(&(run, at.key));
        }
    }

    /// Whether the attempt is known here.
    pub(crate) fn knows(&self, run: RunId, at: AttemptKey) -> bool {
        self.held
            .lock()
            .get(&(run, at.key))
            .is_some_and(|hand| hand.attempt == at.attempt)
    }

    pub(crate) fn get(&self, run: RunId, key: TaskKey) -> Option<Hand> {
        self.held.lock().get(&(run, key)).cloned()
    }

    pub(crate) fn cancel(&self, run: RunId, at: AttemptKey) {
        if let Some(hand) = self.get(run, at.key).filter(|hand| hand.attempt == at.attempt) {
            hand.cancel();
        }
    }

    pub(crate) fn cancel_all(&self) {
        for hand in self.held.lock().values() {
            hand.cancel();
        }
    }

    /// Everything held for longer than `age`.
    pub(crate) fn older_than(&self, age: Duration) -> Vec<(RunId, AttemptKey)> {
        self.held
            .lock()
            .iter()
            .filter(|(_, hand)| !hand.released && hand.since.elapsed() > age)
            .map(|(&(run, key), hand)| {
                (
                    run,
                    AttemptKey {
                        key,
                        attempt: hand.attempt,
                    },
                )
            })
            .collect()
    }

    /// The logs of all attempts in hand.
    pub(crate) fn logs(&self) -> Vec<Arc<LogBuffer>> {
        self.held.lock().values().map(|hand| hand.log.clone()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn park(&self) {
        self.parked.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn unpark(&self) {
        self.parked.fetch_sub(1, Ordering::Relaxed);
    }

    /// An attempt ended after so much processor time.
    pub(crate) fn observe(&self, cpu: Duration) {
        let old = self.cpu_micros.load(Ordering::Relaxed);
        let new = (old * 15 + cpu.min(AHEAD).as_micros() as u64) / 16;
        self.cpu_micros.store(new, Ordering::Relaxed);
    }

    /// `aside` are scripts that wait for I/O or run in the long lane: they hold a slot, but take nothing from others.
    ///
    /// How many more attempts this node should take: so many that its threads have work for a moment, not so many
    /// that they wait here while other nodes idle.
    pub(crate) fn room(&self, aside: usize, threads: usize, slots: usize) -> usize {
        let held = self.len();
        let average = self.cpu_micros.load(Ordering::Relaxed).max(1);
        let ahead = AHEAD.as_micros() as u64 * threads as u64 / average;
        let target = (ahead as usize).clamp(threads * 2, SHORT_TARGET);
        let busy = held.saturating_sub(aside + self.parked.load(Ordering::Relaxed));
        slots.saturating_sub(held).min(target.saturating_sub(busy))
    }
}

impl Runs {
    /// Begins to work on attempts that are this node's now.
    pub(crate) fn take(self: &Arc<Self>, taken: Vec<(RunId, AttemptKey)>) {
        let mut unknown = Vec::new();
        for (run, at) in taken {
            let hand = self.hands.add(run, at);
            match self.contexts.get(&run) {
                Some(context) => self.begin(context, at, hand),
                None => unknown.push((run, at, hand)),
            }
        }
        if !unknown.is_empty() {
            let own = self.clone();
            self.node.tracker.spawn(async move { own.begin_unknown(unknown).await });
        }
    }

    async fn begin_unknown(self: Arc<Self>, unknown: Vec<(RunId, AttemptKey, Hand)>) {
        let mut runs: Vec<RunId> = unknown.iter().map(|entry| entry.0).collect();
        runs.sort_unstable();
        runs.dedup();
        let contexts = loop {
            match self.contexts_of(&runs).await {
                Ok(contexts) => break contexts,
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), runs = runs.len(), "cannot read the facts of claimed runs; asking again");
                    tokio::select! {
                        () = tokio::time::sleep(ASK_AGAIN) => {}
                        () = self.node.stop.cancelled() => return,
                    }
                }
            }
        };
        for (run, at, hand) in unknown {
            match contexts.get(&run) {
                Some(context) => self.begin(context.clone(), at, hand),
                // It has ended meanwhile: somebody took the attempt away.
                None => self.hands.forget(run, at),
            }
        }
    }

    fn begin(&self, context: Arc<RunContext>, at: AttemptKey, hand: Hand) {
        // There is none when the node has ended.
        if let Some(worker) = self.worker.get().and_then(Weak::upgrade) {
            worker.begin(context, at, hand);
        }
    }

    /// Stops what is still in hand and puts it back into the queue, at the end of a drain: not lost, so not counted
    /// against `max_lost`.
    pub(crate) async fn hand_back(self: &Arc<Self>) -> Result<(), EngineError> {
        let left = self.hands.older_than(Duration::ZERO);
        if left.is_empty() {
            return Ok(());
        }
        tracing::info!(attempts = left.len(), "giving back attempts that did not end in time");
        let now = self.now();
        let mut runs: Vec<_> = left.iter().map(|entry| entry.0).collect();
        runs.sort_unstable();
        runs.dedup();
        let contexts = self.contexts_of(&runs).await?;
        let lease = self.lease();
        let outcomes = left
            .into_iter()
            .map(|(run, at)| Applied {
                ended: EndedAttempt { run, at, lease },
                end: End::Dropped,
                finished_at: now,
                node: Some(self.node.identity.id),
            })
            .collect();
        let mut completion = self.node.store.completion(lease, now).await?;
        let after = self
            .apply(&mut completion, &contexts, outcomes, &mut Grant::none(), now)
            .await?;
        completion.commit().await?;
        self.hands.cancel_all();
        self.acted(after);
        Ok(())
    }
}
