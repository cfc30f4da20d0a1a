//! Looks, takes and ends of many users in one statement or transaction: what comes while one is under way goes with the
//! next. No timer: under little load everyone goes alone and at once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Time;
use heddle_store::StoreError;
use heddle_store::assignment::{BATCH_MAX, End, Ended, Proposal, UserFacts, Verdict};
use tokio::sync::{Mutex as AsyncMutex, Notify, mpsc, oneshot};

use super::DispatchError;
use crate::Inner;

/// How many requests of a kind may wait; more are turned away.
const QUEUE_MAX: usize = 16_384;

/// How many batches of a kind are under way at once.
const WORKERS: usize = 2;

/// How often a batch is tried again that met another in the database.
const TRIES_MAX: usize = 5;

type Sender<R, A> = mpsc::Sender<(R, oneshot::Sender<A>)>;
type Receiver<R, A> = mpsc::Receiver<(R, oneshot::Sender<A>)>;

/// Where requests wait.
pub(crate) struct Batches {
    looks: Sender<String, UserFacts>,
    takes: Sender<Proposal, (Verdict, Time)>,
    ends: Sender<End, Option<Ended>>,
    pub(super) reaper: Notify,
}

/// Their other ends.
pub(crate) struct Receivers {
    looks: Receiver<String, UserFacts>,
    takes: Receiver<Proposal, (Verdict, Time)>,
    ends: Receiver<End, Option<Ended>>,
}

async fn ask<R, A>(sender: &Sender<R, A>, request: R) -> Result<A, DispatchError> {
    let (answer, answered) = oneshot::channel();
    sender.try_send((request, answer)).map_err(|error| match error {
        mpsc::error::TrySendError::Full(_) => DispatchError::Overloaded,
        mpsc::error::TrySendError::Closed(_) => DispatchError::Unavailable,
    })?;
    // An answer that never comes is one that the database refused; the batch has said so in the log.
    answered.await.map_err(|_| DispatchError::Unavailable)
}

impl Batches {
    pub(super) fn new() -> (Self, Receivers) {
        let (looks, looks_receiver) = mpsc::channel(QUEUE_MAX);
        let (takes, takes_receiver) = mpsc::channel(QUEUE_MAX);
        let (ends, ends_receiver) = mpsc::channel(QUEUE_MAX);
        let batches = Self {
            looks,
            takes,
            ends,
            reaper: Notify::new(),
        };
        (
            batches,
            Receivers {
                looks: looks_receiver,
                takes: takes_receiver,
                ends: ends_receiver,
            },
        )
    }

    pub(super) async fn look(&self, uid: &str) -> Result<UserFacts, DispatchError> {
        ask(&self.looks, uid.to_owned()).await
    }

    /// What the database says of a proposal, and since when it is the user's if it was given.
    pub(super) async fn take(&self, proposal: Proposal) -> Result<(Verdict, Time), DispatchError> {
        ask(&self.takes, proposal).await
    }

    pub(super) async fn end(&self, end: End) -> Result<Option<Ended>, DispatchError> {
        ask(&self.ends, end).await
    }

    pub(super) fn wake_reaper(&self) {
        self.reaper.notify_one();
    }
}

/// Starts the workers.
pub(crate) fn start(inner: &Arc<Inner>, receivers: Receivers) {
    workers(inner, receivers.looks, look);
    workers(inner, receivers.takes, take);
    workers(inner, receivers.ends, end);
}

fn workers<R, A, W, F>(inner: &Arc<Inner>, receiver: Receiver<R, A>, work: W)
where
    R: Send + 'static,
    A: Send + 'static,
    W: Fn(Arc<Inner>, Vec<(R, oneshot::Sender<A>)>) -> F + Copy + Send + 'static,
    F: Future<Output = ()> + Send,
{
    let receiver = Arc::new(AsyncMutex::new(receiver));
    for _ in 0..WORKERS {
        let (inner, receiver) = (inner.clone(), receiver.clone());
        inner.tracker.clone().spawn(async move {
            loop {
                let mut batch = Vec::new();
                let received = async { receiver.lock().await.recv_many(&mut batch, BATCH_MAX).await };
                tokio::select! {
                    count = received => if count == 0 { return },
                    () = inner.stop.cancelled() => return,
                }
                work(inner.clone(), batch).await;
            }
        });
    }
}

/// Tries again what met another transaction; `None`, and said so, if it cannot be done.
async fn retried<T, F>(what: &'static str, mut once: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut tries = 1;
    loop {
        match once().await {
            Ok(done) => return Some(done),
            Err(StoreError::Conflict(_)) if tries < TRIES_MAX => tries += 1,
            Err(error) => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, source, what, "a batch of the dispatcher failed");
                tokio::time::sleep(Duration::from_millis(10)).await;
                return None;
            }
        }
    }
}

async fn look(inner: Arc<Inner>, batch: Vec<(String, oneshot::Sender<UserFacts>)>) {
    let mut uids: Vec<String> = batch.iter().map(|(uid, _)| uid.clone()).collect();
    uids.sort_unstable();
    uids.dedup();
    let Some(facts) = retried("look", || inner.look_up(&uids)).await else {
        return;
    };
    let facts: HashMap<String, UserFacts> = facts.into_iter().map(|facts| (facts.uid.clone(), facts)).collect();
    for (uid, answer) in batch {
        if let Some(facts) = facts.get(&uid) {
            let _ = answer.send(facts.clone());
        }
    }
}

async fn take(inner: Arc<Inner>, batch: Vec<(Proposal, oneshot::Sender<(Verdict, Time)>)>) {
    let (proposals, answers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
    let horizon = inner.dispatch.config.horizon;
    let now = inner.now();
    let Some(verdicts) = retried("take", || inner.store.take(&proposals, horizon, now)).await else {
        return;
    };
    for (answer, verdict) in answers.into_iter().zip(verdicts) {
        // Whoever has gone meanwhile finds it by polling again.
        let _ = answer.send((verdict, now));
    }
}

async fn end(inner: Arc<Inner>, batch: Vec<(End, oneshot::Sender<Option<Ended>>)>) {
    let mut seen = HashSet::new();
    let mut ends = Vec::with_capacity(batch.len());
    let mut answers = Vec::with_capacity(batch.len());
    for (end, answer) in batch {
        // By user and id: that of another user's request, with an id it has heard of, says nothing of this one's.
        let key = (end.uid.clone(), end.id);
        if seen.insert(key.clone()) {
            answers.push((Some(key), answer));
            ends.push(end);
        } else {
            // The same twice at once: the second finds the first in the history, where it is once this is committed.
            answers.push((None, answer));
        }
    }
    let now = inner.now();
    let Some(ended) = retried("end", || inner.store.end_holds(&ends, now)).await else {
        return;
    };
    let mut ended: HashMap<(String, uuid::Uuid), Ended> = ended
        .into_iter()
        .map(|one| ((one.assignment.uid.clone(), one.assignment.id), one))
        .collect();
    for (key, answer) in answers {
        let _ = answer.send(key.and_then(|key| ended.remove(&key)));
    }
}
