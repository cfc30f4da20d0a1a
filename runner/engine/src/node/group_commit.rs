//! Group commit: requests that come during one transaction go into the next one, together.
//!
//! There is no timer. Under little load, each request goes alone and at once; under much load, up to
//! [`Policy::batch_max`] requests share a commit. All such queues use this module (submissions, outcomes of attempts,
//! ends of claims, task runs for workers, the dispatcher's look-ups, takes and ends), and it handles a batch that
//! cannot be committed in the same way for all:
//!
//! | error | what happens with the batch |
//! |---|---|
//! | one that may pass (another transaction, no database) | tried again unchanged, after a pause, up to [`Policy::tries_max`] |
//! | another transaction, repeatedly | requests that may wait for others ([`Commits::may_wait`]) are tried alone, after the others, and only a few of them; then all get the error |
//! | the batch was made from what the database does not have (any more) | all get the error; who sent them makes them again |
//! | one that does not pass (a value that Postgres refuses) | halved, until the refused request is alone; only that gets the error, unless it has a replacement ([`Commits::refused`]) |
//!
//! # Invariants
//!
//! * An answer comes after the commit.
//! * The queue is bounded: if it is full, the caller gets the error at once that the node is overloaded.
//! * A batch is answered as a whole: one answer for each request, in their order.

use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_store::StoreError;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::EngineError;
use crate::node::{Node, seldom};

/// How a queue's batches are committed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// The name of its requests, for the log.
    pub(crate) what: &'static str,
    /// How many messages may wait (see [`GroupCommit::send`] and [`GroupCommit::send_all`]).
    pub(crate) queue_max: usize,
    /// How many requests one transaction takes.
    pub(crate) batch_max: usize,
    /// How many batches are committed at once.
    pub(crate) workers: usize,
    /// How often a batch is tried when its error may pass; `None`: until the node stops or loses its lease.
    pub(crate) tries_max: Option<u32>,
    /// The pause between two tries.
    pub(crate) again_after: Duration,
    /// Whether the batch may be committed twice without harm. If not, it is not tried again after the connection was
    /// lost: the commit may have succeeded, and only its answer may be lost.
    pub(crate) repeatable: bool,
}

/// How many requests of one batch wait, one after another, for a lock of an open transaction. All later requests wait
/// meanwhile. If there are more such requests, the others get the error at once.
const WAITED_FOR_MAX: usize = 2;

/// What the batches of a queue do.
pub(crate) trait Commits: Send + Sync + 'static {
    type Request: Send + 'static;
    type Answer: Send + 'static;
    /// The follow-up of a commit after its answers; `()` if there is none.
    type Then: Send;
    const POLICY: Policy;

    /// The node that it works for.
    fn node(&self) -> &Node;

    /// Commits all of these in one transaction; the answers are in their order.
    fn commit(&self, batch: &mut [Self::Request]) -> impl Future<Output = Committed<Self>> + Send;

    /// Does the follow-up of a commit, after its answers: nobody waits for it.
    fn follow(&self, _batch: Vec<Self::Request>, _then: Self::Then) {}

    /// Divides the gathered requests into batches, each with its own commit, in this order.
    fn batches(&self, gathered: Vec<Asked<Self>>) -> Vec<Vec<Asked<Self>>> {
        chunks(gathered, Self::POLICY.batch_max)
    }

    /// Whether the request may have to wait for the end of somebody else's open transaction.
    fn may_wait(_request: &Self::Request) -> bool {
        false
    }

    /// The replacement of a request that was refused when it was alone; `None`: its answer is the error.
    fn refused(
        &self,
        _request: Self::Request,
        _error: &EngineError,
    ) -> impl Future<Output = Option<Self::Request>> + Send {
        std::future::ready(None)
    }
}

/// The result of a transaction.
pub(crate) type Committed<C> = Result<(Vec<<C as Commits>::Answer>, <C as Commits>::Then), EngineError>;

/// A request that waits for its answer.
pub(crate) struct Asked<C: Commits + ?Sized> {
    pub(crate) request: C::Request,
    answer: oneshot::Sender<Result<C::Answer, EngineError>>,
}

/// Where the caller of a group commit receives its answer.
pub(crate) type Answered<A> = oneshot::Receiver<Result<A, EngineError>>;

/// Waits for an answer. A node that stops gives none.
pub(crate) async fn answer<A>(answered: Answered<A>) -> Result<A, EngineError> {
    answered.await.unwrap_or(Err(EngineError::Stopping))
}

enum Message<C: Commits> {
    One(Asked<C>),
    /// These requests stay together, if they fit into one batch.
    Many(Vec<Asked<C>>),
}

/// The queue in which requests wait for the next transaction.
pub(crate) struct GroupCommit<C: Commits>(mpsc::Sender<Message<C>>);

impl<C: Commits> Clone for GroupCommit<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The receiving end of the queue.
pub(crate) struct Gathering<C: Commits>(mpsc::Receiver<Message<C>>);

fn full<T>(error: mpsc::error::TrySendError<T>) -> EngineError {
    match error {
        mpsc::error::TrySendError::Full(_) => EngineError::Overloaded,
        mpsc::error::TrySendError::Closed(_) => EngineError::Stopping,
    }
}

fn asked<C: Commits>(request: C::Request) -> (Asked<C>, Answered<C::Answer>) {
    let (answer, answered) = oneshot::channel();
    (Asked { request, answer }, answered)
}

impl<C: Commits> GroupCommit<C> {
    pub(crate) fn new() -> (Self, Gathering<C>) {
        Self::sized(C::POLICY.queue_max)
    }

    /// The same with a queue whose bound is known when the node starts.
    pub(crate) fn sized(queue_max: usize) -> (Self, Gathering<C>) {
        let (sender, receiver) = mpsc::channel(queue_max);
        (Self(sender), Gathering(receiver))
    }

    /// Puts a request into the next batch; refused if too many wait.
    pub(crate) fn send(&self, request: C::Request) -> Result<Answered<C::Answer>, EngineError> {
        let (asked, answered) = asked(request);
        self.0.try_send(Message::One(asked)).map_err(full)?;
        Ok(answered)
    }

    /// Puts all requests into the queue as one entry. The answers are in the order of the requests.
    pub(crate) fn send_all(
        &self,
        requests: impl IntoIterator<Item = C::Request>,
    ) -> Result<Vec<Answered<C::Answer>>, EngineError> {
        let (many, answered): (Vec<_>, Vec<_>) = requests.into_iter().map(asked).unzip();
        if !many.is_empty() {
            self.0.try_send(Message::Many(many)).map_err(full)?;
        }
        Ok(answered)
    }

    /// The same as [`GroupCommit::send`], but waits for a slot.
    pub(crate) async fn send_patiently(&self, request: C::Request) -> Result<Answered<C::Answer>, EngineError> {
        let (asked, answered) = asked(request);
        let sent = self.0.send(Message::One(asked)).await;
        sent.map_err(|_| EngineError::Stopping)?;
        Ok(answered)
    }

    /// Puts a request into the next batch without waiting for an answer. Gives it back if too many wait; a node that
    /// stops accepts none.
    pub(crate) fn put(&self, request: C::Request) -> Result<(), C::Request> {
        match self.0.try_send(Message::One(asked(request).0)) {
            Err(mpsc::error::TrySendError::Full(Message::One(asked))) => Err(asked.request),
            _ => Ok(()),
        }
    }

    /// Sends a request, and waits for the answer.
    pub(crate) async fn ask(&self, request: C::Request) -> Result<C::Answer, EngineError> {
        answer(self.send(request)?).await
    }
}

impl<C: Commits> Gathering<C> {
    /// Commits the gathered requests, batch after batch, until the node stops.
    pub(crate) fn start(self, commits: C) {
        let (commits, receiver) = (Arc::new(commits), Arc::new(Mutex::new(self.0)));
        for _ in 0..C::POLICY.workers {
            let tracker = commits.node().tracker.clone();
            tracker.spawn(run(commits.clone(), receiver.clone()));
        }
    }
}

async fn run<C: Commits>(commits: Arc<C>, receiver: Arc<Mutex<mpsc::Receiver<Message<C>>>>) {
    let stop = commits.node().stop.clone();
    let mut messages = Vec::new();
    loop {
        let received = async {
            receiver
                .lock()
                .await
                .recv_many(&mut messages, C::POLICY.batch_max)
                .await
        };
        tokio::select! {
            count = received => if count == 0 { return },
            () = stop.cancelled() => return,
        }
        let mut gathered = Vec::with_capacity(messages.len());
        for message in messages.drain(..) {
            match message {
                Message::One(asked) => gathered.push(asked),
                Message::Many(many) => gathered.extend(many),
            }
        }
        let over = || {
            let node = commits.node();
            node.stop.is_cancelled() || node.is_fenced()
        };
        settle(&*commits, gathered, over).await;
    }
}

/// Divides into batches of at most `max`.
pub(crate) fn chunks<T>(mut gathered: Vec<T>, max: usize) -> Vec<Vec<T>> {
    let mut batches = Vec::with_capacity(gathered.len().div_ceil(max));
    while gathered.len() > max {
        let rest = gathered.split_off(max);
        batches.push(std::mem::replace(&mut gathered, rest));
    }
    if !gathered.is_empty() {
        batches.push(gathered);
    }
    batches
}

/// A batch, and how often it was tried.
struct Tried<C: Commits + ?Sized> {
    times: u32,
    batch: Vec<Asked<C>>,
}

/// Commits the gathered requests, and answers. `over` returns whether further tries would be useless.
async fn settle<C: Commits>(commits: &C, gathered: Vec<Asked<C>>, over: impl Fn() -> bool) {
    let policy = C::POLICY;
    let fresh = |batch| Tried { times: 0, batch };
    // Reversed, because `pop` takes the last one.
    let mut batches: Vec<Tried<C>> = commits.batches(gathered).into_iter().rev().map(fresh).collect();
    let mut waited_for = 0;
    while let Some(Tried { times, batch }) = batches.pop() {
        let alone = batch.len() == 1;
        if alone && waited_for >= WAITED_FOR_MAX && C::may_wait(&batch[0].request) {
            refuse(batch, EngineError::Contended);
            continue;
        }
        let (mut requests, answers): (Vec<C::Request>, Vec<_>) =
            batch.into_iter().map(|asked| (asked.request, asked.answer)).unzip();
        let error = match commits.commit(&mut requests).await {
            Ok((made, then)) => {
                debug_assert_eq!(made.len(), answers.len(), "{}", policy.what);
                for (answer, made) in answers.into_iter().zip(made) {
                    // A caller that has gone finds the result when it asks again.
                    let _ = answer.send(Ok(made));
                }
                commits.follow(requests, then);
                continue;
            }
            Err(error) => error,
        };
        if policy.tries_max.is_none() && over() {
            // Such a batch needs the lease of the node. Without it, the batch is neither committed nor answered.
            continue;
        }
        let mut batch: Vec<Asked<C>> = requests
            .into_iter()
            .zip(answers)
            .map(|(request, answer)| Asked { request, answer })
            .collect();
        let times = times + 1;
        log_failure(policy.what, &error, batch.len());
        if matches!(error, EngineError::Store(StoreError::Outdated)) {
            // Others of them may be outdated, too: who sent them makes all of them again, from what is read then.
            refuse(batch, error);
            continue;
        }
        let met = Met::of(&error);
        if met == Met::Others && batch.iter().any(|asked| C::may_wait(&asked.request)) {
            // The other requests must not wait for the same lock.
            waited_for += usize::from(alone);
            if alone {
                refuse(batch, error);
                continue;
            }
            let (waiting, others): (Vec<_>, Vec<_>) = batch.into_iter().partition(|asked| C::may_wait(&asked.request));
            batches.extend(waiting.into_iter().rev().map(|asked| fresh(vec![asked])));
            if !others.is_empty() {
                batches.push(fresh(others));
            }
        } else if met != Met::Itself {
            let lost = met == Met::NoDatabase && !policy.repeatable;
            if lost || policy.tries_max.is_some_and(|max| times >= max) {
                refuse(batch, error);
                continue;
            }
            tokio::time::sleep(policy.again_after).await;
            batches.push(Tried { times, batch });
        } else if alone && let Some(Asked { request, answer }) = batch.pop() {
            match commits.refused(request, &error).await {
                Some(request) => batches.push(fresh(vec![Asked { request, answer }])),
                None => {
                    let _ = answer.send(Err(error));
                }
            }
        } else {
            batches.extend(halved(batch).map(fresh));
        }
    }
}

/// The kind of an error of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// Another transaction, or its load.
    Others,
    /// The database is lost; the commit may have succeeded or not.
    NoDatabase,
    /// The request itself: a second try would give the same result.
    Itself,
}

impl Met {
    pub(crate) fn of(error: &EngineError) -> Self {
        match error {
            EngineError::Store(StoreError::Conflict(_)) | EngineError::Contended | EngineError::NotComputed(_) => {
                Self::Others
            }
            EngineError::Store(StoreError::Unavailable(_) | StoreError::ReadOnly(_)) | EngineError::Unavailable => {
                Self::NoDatabase
            }
            _ => Self::Itself,
        }
    }
}

/// Whether another try may succeed.
pub(crate) fn is_passing(error: &EngineError) -> bool {
    Met::of(error) != Met::Itself
}

/// Divides a batch; the first half is the last of the two, because `pop` takes the last one.
fn halved<T>(mut batch: Vec<T>) -> [Vec<T>; 2] {
    let second = batch.split_off(batch.len() / 2);
    [second, batch]
}

/// Batches without answers. A batch that cannot be committed is halved, until the item that causes the error is alone.
pub(crate) struct Halves<T>(Vec<Vec<T>>);

impl<T> Halves<T> {
    pub(crate) fn of(batch: Vec<T>) -> Self {
        Self(vec![batch])
    }

    /// The next batch to commit.
    pub(crate) fn take(&mut self) -> Option<Vec<T>> {
        self.0.pop()
    }

    /// Takes the result of a batch. Returns what cannot be committed even alone, and why. `Err`: an error that may
    /// pass.
    pub(crate) fn done(
        &mut self,
        mut batch: Vec<T>,
        result: Result<(), EngineError>,
    ) -> Result<Option<(T, EngineError)>, EngineError> {
        match result {
            Ok(()) => Ok(None),
            Err(error) if is_passing(&error) => Err(error),
            Err(error) if batch.len() == 1 => Ok(batch.pop().map(|one| (one, error))),
            Err(_) => {
                self.0.extend(halved(batch));
                Ok(None)
            }
        }
    }
}

fn log_failure(what: &'static str, error: &EngineError, requests: usize) {
    let error_chain = Chain(error);
    match Met::of(error) {
        // A conflict with another transaction is no error of a request.
        Met::Others => tracing::debug!(error = %error_chain, what, requests, "a batch conflicts with another \
            transaction"),
        Met::Itself => tracing::warn!(error = %error_chain, what, requests, "a batch was not committed"),
        Met::NoDatabase => match seldom::line_due(what) {
            Some(0) => tracing::warn!(error = %error_chain, what, requests, "a batch was not committed"),
            Some(omitted) => tracing::warn!(error = %error_chain, what, requests, omitted, "a batch was not committed"),
            None => tracing::debug!(error = %error_chain, what, requests, "a batch was not committed"),
        },
    }
}

/// All requests of the batch get the same error.
fn refuse<C: Commits + ?Sized>(batch: Vec<Asked<C>>, error: EngineError) {
    let mut answers = batch.into_iter().map(|asked| asked.answer);
    let first = answers.next();
    for answer in answers {
        let _ = answer.send(Err(error.clone()));
    }
    if let Some(answer) = first {
        let _ = answer.send(Err(error));
    }
}

#[cfg(test)]
mod tests;
