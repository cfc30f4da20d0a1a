//! Callers that wait for runs on this node.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use heddle_domain::id::RunId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Waiters;
use crate::EngineError;

/// How often a waiting caller checks by itself.
const WAIT_POLL: Duration = Duration::from_millis(500);

/// The callers that wait for each run.
#[derive(Default)]
pub(crate) struct Watches {
    runs: Mutex<HashMap<RunId, Arc<Notify>>>,
    watched: AtomicUsize,
}

impl Watches {
    fn moved(&self, moved: &[RunId]) {
        if self.watched.load(Ordering::Acquire) > 0 {
            let runs = self.runs.lock();
            for run in moved {
                if let Some(wakeup) = runs.get(run) {
                    wakeup.notify_waiters();
                }
            }
        }
    }

    /// A run has ended on another node.
    pub(crate) fn wake(&self, run: RunId) {
        if let Some(wakeup) = self.runs.lock().get(&run) {
            wakeup.notify_waiters();
        }
    }

    /// Any run may have ended.
    pub(crate) fn wake_all(&self) {
        self.runs.lock().values().for_each(|wakeup| wakeup.notify_waiters());
    }
}

impl Waiters {
    /// Runs have changed; some have ended. The callers that wait for them are woken, here and on other nodes.
    pub(crate) fn moved(&self, moved: &[RunId], ended: &[RunId]) {
        self.runs.moved(moved);
        self.node.outbox.tell_ended(ended);
    }

    /// Begins to listen for a run's changes: call it before reading the run, so that none is missed.
    pub(crate) fn watch(self: &Arc<Self>, run: RunId) -> RunWatch {
        self.runs.watched.fetch_add(1, Ordering::AcqRel);
        let wakeup = self.runs.runs.lock().entry(run).or_default().clone();
        RunWatch {
            waiters: self.clone(),
            run,
            wakeup,
        }
    }

    /// Waits until a run has ended, for at most `at_most`; `None`: there is no such run.
    pub(crate) async fn wait(self: &Arc<Self>, run: RunId, at_most: Duration) -> Result<Option<bool>, EngineError> {
        let watch = self.watch(run);
        let until = tokio::time::Instant::now() + at_most;
        loop {
            let wakeup = watch.wakeup.notified();
            tokio::pin!(wakeup);
            wakeup.as_mut().enable();
            match self.node.store.run_ended(run).await? {
                Some(false) => {}
                other => return Ok(other),
            }
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            if left.is_zero() || self.node.stop.is_cancelled() {
                return Ok(Some(false));
            }
            tokio::select! {
                () = wakeup => {}
                () = tokio::time::sleep(left.min(WAIT_POLL)) => {}
                () = self.node.stop.cancelled() => {}
            }
        }
    }
}

/// Notified when a run changes.
pub struct RunWatch {
    waiters: Arc<Waiters>,
    run: RunId,
    wakeup: Arc<Notify>,
}

impl RunWatch {
    /// Waits until the run changes on this node, or another node reports its end.
    pub async fn rung(&self) {
        tokio::select! {
            () = self.wakeup.notified() => {}
            () = self.waiters.node.stop.cancelled() => {}
        }
    }

    /// Waits until the run may have changed, for at most `at_most`.
    pub async fn moved(&self, at_most: Duration) {
        tokio::select! {
            () = self.wakeup.notified() => {}
            () = tokio::time::sleep(at_most.min(WAIT_POLL)) => {}
            () = self.waiters.node.stop.cancelled() => {}
        }
    }
}

impl Drop for RunWatch {
    fn drop(&mut self) {
        let mut runs = self.waiters.runs.runs.lock();
        // Two references are this watch and the map: nobody else listens.
        if Arc::strong_count(&self.wakeup) <= 2 {
            runs.remove(&self.run);
        }
        self.waiters.runs.watched.fetch_sub(1, Ordering::AcqRel);
    }
}
