//! What this node has in hand: attempts that it claimed or was handed and has not reported.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use heddle_sandbox::AttemptHandle;
use heddle_store::live::LogRow;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::redact::Redactor;
use crate::work::Ending;

/// What is wanted under way when tasks are short; FACTS of batching: some hundred rows a transaction.
pub(crate) const SHORT_TARGET: usize = 800;

/// How much processor time a node takes in advance.
const AHEAD: Duration = Duration::from_millis(50);

/// Lines of one attempt's log that have not been written.
#[derive(Debug, Default)]
pub(crate) struct LogBuffer {
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    unwritten: VecDeque<LogRow>,
    next: i32,
    /// Some were taken by the log writer and are not committed yet.
    under_way: bool,
}

impl LogBuffer {
    /// Adds the line that `row` makes of its number.
    pub(crate) fn push(&self, row: impl FnOnce(i32) -> LogRow) {
        let mut lines = self.lines.lock();
        let number = lines.next;
        lines.next += 1;
        lines.unwritten.push_back(row(number));
    }

    /// Adds a line of Heddle's own.
    pub(crate) fn say(&self, run: RunId, at: AttemptKey, time: Time, message: String) {
        self.push(|line| LogRow {
            run,
            at,
            line,
            time,
            // Info.
            level: 2,
            // Postgres keeps no zero bytes in text.
            message: message.replace('\0', "\u{fffd}"),
            fields: None,
        });
    }

    /// What is left to be written with the attempt's outcome; `None` when that is more than `max`, or lines before it
    /// are not committed: the log writer has to come first.
    pub(crate) fn rest(&self, max: usize) -> Option<Vec<LogRow>> {
        let mut lines = self.lines.lock();
        if lines.under_way || lines.unwritten.len() > max {
            return None;
        }
        Some(std::mem::take(&mut lines.unwritten).into())
    }

    /// Takes up to `max` lines to write them; [`LogBuffer::written`] says that they are.
    pub(crate) fn take(&self, max: usize) -> Vec<LogRow> {
        let mut lines = self.lines.lock();
        let count = lines.unwritten.len().min(max);
        lines.under_way = count > 0;
        lines.unwritten.drain(..count).collect()
    }

    pub(crate) fn written(&self) {
        self.lines.lock().under_way = false;
    }

    pub(crate) fn is_written(&self) -> bool {
        let lines = self.lines.lock();
        lines.unwritten.is_empty() && !lines.under_way
    }
}

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
    /// Moving average of an attempt's processor time, microseconds.
    cpu_micros: AtomicU64,
}

impl Hands {
    pub(crate) fn add(&self, run: RunId, at: AttemptKey) -> Hand {
        let hand = Hand {
            attempt: at.attempt,
            released: false,
            log: Arc::default(),
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

#[cfg(test)]
mod tests {
    use heddle_domain::Time;

    use super::*;

    fn log_of(lines: usize) -> LogBuffer {
        let log = LogBuffer::default();
        let at = AttemptKey {
            key: TaskKey::from_numbers(0, -1),
            attempt: 1,
        };
        for number in 0..lines {
            log.say(RunId(uuid::Uuid::nil()), at, Time::default(), number.to_string());
        }
        log
    }

    #[test]
    fn few_lines_go_with_the_outcome() {
        let log = log_of(3);
        let numbers: Vec<i32> = log.rest(3).into_iter().flatten().map(|row| row.line).collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert!(log.is_written());
        assert_eq!(log.rest(0).map(|rest| rest.len()), Some(0));
    }

    #[test]
    fn many_lines_are_written_first() {
        let log = log_of(5);
        assert!(log.rest(4).is_none());
        assert_eq!(log.take(3).len(), 3);
        // What is left would fit, but it must not overtake.
        assert!(log.rest(4).is_none());
        assert!(!log.is_written());
        log.written();
        let numbers: Vec<i32> = log.rest(4).into_iter().flatten().map(|row| row.line).collect();
        assert_eq!(numbers, [3, 4]);
    }

    #[test]
    fn nothing_to_take_holds_nothing_up() {
        let log = log_of(0);
        assert!(log.take(3).is_empty());
        assert!(log.is_written());
        assert!(log.rest(0).is_some());
    }
}
