//! Group commit: what gathers while one transaction is under way goes into the next one, together.
//!
//! No timer: under little load each request goes alone and at once, under much load up to [`Policy::batch_max`] share a
//! commit. Every queue of that kind is one of these (submissions, outcomes of attempts, ends of claims, task runs on their
//! way to workers, the dispatcher's looks, takes and ends), and what happens to a batch that cannot be committed is the
//! same for all:
//!
//! | what it met | what becomes of the batch |
//! |---|---|
//! | what passes (another transaction, no database) | tried again as it is, after a pause, up to [`Policy::tries_max`] |
//! | another transaction, again and again | those that may wait for others ([`Commits::may_wait`]) are tried alone, behind the others, and few of them; then all hear of it |
//! | what does not pass (a value that Postgres refuses) | halved, until what is refused stands alone; only that hears of it, unless something else takes its place ([`Commits::refused`]) |
//!
//! # Invariants
//!
//! * An answer comes after the commit.
//! * The queue is bounded: who finds it full is told at once that the node is overloaded.
//! * A batch is answered for as a whole: in the order of its requests, one answer each.

use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_store::StoreError;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::EngineError;
use crate::node::Node;

/// How a queue's batches are committed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// What gathers in it, for the log.
    pub(crate) what: &'static str,
    /// How many messages may wait (see [`GroupCommit::send`] and [`GroupCommit::send_all`]).
    pub(crate) queue_max: usize,
    /// How many requests one transaction takes.
    pub(crate) batch_max: usize,
    /// How many batches are under way at once.
    pub(crate) workers: usize,
    /// How often a batch is tried that meets what passes; `None`: until the node stops or loses its lease.
    pub(crate) tries_max: Option<u32>,
    /// The pause between two tries.
    pub(crate) again_after: Duration,
    /// Whether doing it twice does no harm. Else it is not tried again when the database was lost: the commit may have
    /// been made, and only its answer lost.
    pub(crate) repeatable: bool,
}

/// How many requests of one batch wait, one after another, for what somebody's open transaction holds: all that comes
/// later waits as long. Those beyond it are told to come again.
const WAITED_FOR_MAX: usize = 2;

/// What a queue's batches are.
pub(crate) trait Commits: Send + Sync + 'static {
    /// What is asked.
    type Request: Send + 'static;
    /// What is answered.
    type Answer: Send + 'static;
    /// What follows from a commit once it is answered for; `()` where nothing does.
    type Then: Send;
    const POLICY: Policy;

    /// The node that it works for.
    fn node(&self) -> &Node;

    /// One transaction for all of these; the answers are in their order.
    fn commit(&self, batch: &mut [Self::Request]) -> impl Future<Output = Committed<Self>> + Send;

    /// Carries out what follows from a commit, behind its answers: nobody waits for it.
    fn follow(&self, _batch: Vec<Self::Request>, _then: Self::Then) {}

    /// Divides what has gathered into batches, each committed by itself, in this order.
    fn batches(&self, gathered: Vec<Asked<Self>>) -> Vec<Vec<Asked<Self>>> {
        chunks(gathered, Self::POLICY.batch_max)
    }

    /// Whether it may have to wait until somebody else's open transaction has ended.
    fn may_wait(_request: &Self::Request) -> bool {
        false
    }

    /// What takes the place of a request that was refused as it stood alone; `None`: its answer is the error.
    fn refused(
        &self,
        _request: Self::Request,
        _error: &EngineError,
    ) -> impl Future<Output = Option<Self::Request>> + Send {
        std::future::ready(None)
    }
}

/// What came of a transaction.
pub(crate) type Committed<C> = Result<(Vec<<C as Commits>::Answer>, <C as Commits>::Then), EngineError>;

/// A request that waits for its answer.
pub(crate) struct Asked<C: Commits + ?Sized> {
    pub(crate) request: C::Request,
    answer: oneshot::Sender<Result<C::Answer, EngineError>>,
}

/// Where an answer will come.
pub(crate) type Answered<A> = oneshot::Receiver<Result<A, EngineError>>;

/// Waits for an answer; there is none from a node that stops.
pub(crate) async fn answer<A>(answered: Answered<A>) -> Result<A, EngineError> {
    answered.await.unwrap_or(Err(EngineError::Stopping))
}

enum Message<C: Commits> {
    One(Asked<C>),
    /// These stay together, as far as a batch holds them.
    Many(Vec<Asked<C>>),
}

/// Where requests wait.
pub(crate) struct GroupCommit<C: Commits>(mpsc::Sender<Message<C>>);

impl<C: Commits> Clone for GroupCommit<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Its other end.
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

    /// The same, in one piece; the answers are in their order.
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

    /// The same as [`GroupCommit::send`], but waits for a place.
    pub(crate) async fn send_patiently(&self, request: C::Request) -> Result<Answered<C::Answer>, EngineError> {
        let (asked, answered) = asked(request);
        let sent = self.0.send(Message::One(asked)).await;
        sent.map_err(|_| EngineError::Stopping)?;
        Ok(answered)
    }

    /// Puts a request into the next batch whose answer nobody waits for; gives it back if too many wait. A node that stops
    /// takes none.
    pub(crate) fn put(&self, request: C::Request) -> Result<(), C::Request> {
        match self.0.try_send(Message::One(asked(request).0)) {
            Err(mpsc::error::TrySendError::Full(Message::One(asked))) => Err(asked.request),
            _ => Ok(()),
        }
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn ask(&self, request: C::Request) -> Result<C::Answer, EngineError> {
        answer(self.send(request)?).await
    }
}

impl<C: Commits> Gathering<C> {
    /// Commits what gathers, until the node stops.
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

/// Batches of at most so many.
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

/// A batch that has been tried so often.
struct Tried<C: Commits + ?Sized> {
    times: u32,
    batch: Vec<Asked<C>>,
}

/// Commits what has gathered, and answers; `over` tells when nobody needs to try any longer.
async fn settle<C: Commits>(commits: &C, gathered: Vec<Asked<C>>, over: impl Fn() -> bool) {
    let policy = C::POLICY;
    let fresh = |batch| Tried { times: 0, batch };
    // The last is tried first.
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
                    // Whoever has gone meanwhile finds it by asking again.
                    let _ = answer.send(Ok(made));
                }
                commits.follow(requests, then);
                continue;
            }
            Err(error) => error,
        };
        if policy.tries_max.is_none() && over() {
            // What a node does for as long as it has its lease is not its to do any more, nor to answer for.
            continue;
        }
        let mut batch: Vec<Asked<C>> = requests
            .into_iter()
            .zip(answers)
            .map(|(request, answer)| Asked { request, answer })
            .collect();
        let times = times + 1;
        tell(policy.what, &error, batch.len());
        let met = Met::of(&error);
        if met == Met::Others && batch.iter().any(|asked| C::may_wait(&asked.request)) {
            // Nobody else suffers for what one of them waits for.
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
            let second = batch.split_off(batch.len() / 2);
            batches.push(fresh(second));
            batches.push(fresh(batch));
        }
    }
}

/// What a transaction met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// Another transaction, or others' work.
    Others,
    /// No database; whether the commit was made is not known.
    NoDatabase,
    /// What it was itself: the same again would come to the same.
    Itself,
}

impl Met {
    pub(crate) fn of(error: &EngineError) -> Self {
        match error {
            EngineError::Store(StoreError::Conflict(_)) | EngineError::Contended | EngineError::NotComputed(_) => {
                Self::Others
            }
            EngineError::Store(StoreError::Unavailable(_) | StoreError::ReadOnly(_))
            | EngineError::Unavailable
            | EngineError::ReadOnly => Self::NoDatabase,
            _ => Self::Itself,
        }
    }
}

/// Whether trying the same again may help.
pub(crate) fn is_passing(error: &EngineError) -> bool {
    Met::of(error) != Met::Itself
}

fn tell(what: &'static str, error: &EngineError, requests: usize) {
    let error_chain = Chain(error);
    match Met::of(error) {
        // What another transaction holds is nobody's fault.
        Met::Others => tracing::debug!(error = %error_chain, what, requests, "a batch conflicts with another \
            transaction"),
        _ => tracing::warn!(error = %error_chain, what, requests, "a batch was not committed"),
    }
}

/// What became of one of them is what became of all.
fn refuse<C: Commits + ?Sized>(batch: Vec<Asked<C>>, error: EngineError) {
    let mut answers = batch.into_iter().map(|asked| asked.answer);
    let first = answers.next();
    for answer in answers {
        let _ = answer.send(Err(error.again()));
    }
    if let Some(answer) = first {
        let _ = answer.send(Err(error));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Numbers that are written down; some of them cannot be.
    #[derive(Default)]
    struct Numbers {
        /// What was committed, batch by batch.
        written: parking_lot::Mutex<Vec<Vec<u32>>>,
        /// How often the database is not there before it is.
        lost: AtomicUsize,
        tries: AtomicUsize,
    }

    /// What Postgres refuses, and what somebody else's open transaction holds for ever.
    const POISON: [u32; 2] = [13, 113];
    const HELD: u32 = 1_000;

    impl Commits for Numbers {
        type Request = u32;
        type Answer = u32;
        type Then = ();
        const POLICY: Policy = Policy {
            what: "numbers",
            queue_max: 3,
            batch_max: 100,
            workers: 1,
            tries_max: Some(3),
            again_after: Duration::ZERO,
            repeatable: true,
        };

        fn node(&self) -> &Node {
            unreachable!("no node is needed")
        }

        async fn commit(&self, batch: &mut [u32]) -> Committed<Self> {
            self.tries.fetch_add(1, Ordering::Relaxed);
            let lost = self.lost.load(Ordering::Relaxed);
            if lost > 0 {
                self.lost.store(lost - 1, Ordering::Relaxed);
                return Err(EngineError::Unavailable);
            }
            if batch.iter().any(|number| *number >= HELD) {
                return Err(EngineError::Contended);
            }
            if batch.iter().any(|number| POISON.contains(number)) {
                return Err(EngineError::Unreadable("poison".into()));
            }
            self.written.lock().push(batch.to_vec());
            Ok((batch.iter().map(|number| number * 2).collect(), ()))
        }

        fn may_wait(number: &u32) -> bool {
            *number >= HELD
        }
    }

    /// The same, tried without end.
    #[derive(Default)]
    struct Patient(Numbers);

    impl Commits for Patient {
        type Request = u32;
        type Answer = u32;
        type Then = ();
        const POLICY: Policy = Policy {
            tries_max: None,
            ..Numbers::POLICY
        };

        fn node(&self) -> &Node {
            self.0.node()
        }

        async fn commit(&self, batch: &mut [u32]) -> Committed<Self> {
            self.0.commit(batch).await
        }
    }

    /// The same, but what is refused is written as [`IN_ITS_PLACE`], unless that is what is refused.
    #[derive(Default)]
    struct Replacing {
        numbers: Numbers,
        refuses_all: bool,
        given_up: AtomicUsize,
    }

    const IN_ITS_PLACE: u32 = 999;

    impl Commits for Replacing {
        type Request = u32;
        type Answer = u32;
        type Then = ();
        const POLICY: Policy = Numbers::POLICY;

        fn node(&self) -> &Node {
            self.numbers.node()
        }

        async fn commit(&self, batch: &mut [u32]) -> Committed<Self> {
            match self.refuses_all {
                true => Err(EngineError::Unreadable("poison".into())),
                false => self.numbers.commit(batch).await,
            }
        }

        async fn refused(&self, number: u32, _: &EngineError) -> Option<u32> {
            let again = number == IN_ITS_PLACE;
            self.given_up.fetch_add(usize::from(again), Ordering::Relaxed);
            (!again).then_some(IN_ITS_PLACE)
        }
    }

    #[tokio::test]
    async fn something_else_may_take_the_place_of_what_is_refused() {
        let replacing = Replacing::default();
        let (gathered, answers): (Vec<_>, Vec<_>) = (12..15).map(asked::<Replacing>).unzip();
        settle(&replacing, gathered, || false).await;
        let answers: Vec<_> = answers.into_iter().map(|mut answer| answer.try_recv().ok()).collect();
        // 13 is poison.
        assert!(
            matches!(answers[..], [Some(Ok(24)), Some(Ok(1_998)), Some(Ok(28))]),
            "{answers:?}"
        );
        let replacing = Replacing {
            refuses_all: true,
            ..Replacing::default()
        };
        let (asked, mut answer) = asked::<Replacing>(1);
        settle(&replacing, vec![asked], || false).await;
        assert!(matches!(answer.try_recv(), Ok(Err(EngineError::Unreadable(_)))));
        assert_eq!(replacing.given_up.load(Ordering::Relaxed), 1);
    }

    async fn commit(numbers: &Numbers, given: impl IntoIterator<Item = u32>) -> Vec<Option<Result<u32, EngineError>>> {
        let (gathered, answers): (Vec<_>, Vec<_>) = given.into_iter().map(asked::<Numbers>).unzip();
        settle(numbers, gathered, || false).await;
        answers.into_iter().map(|mut answer| answer.try_recv().ok()).collect()
    }

    #[tokio::test]
    async fn what_is_refused_stands_alone_and_all_others_are_committed() {
        let numbers = Numbers::default();
        let answers = commit(&numbers, 0..250).await;
        for (number, answer) in answers.into_iter().enumerate() {
            let number = number as u32;
            match answer.expect("an answer") {
                Ok(made) => assert_eq!(made, number * 2),
                Err(error) => assert!(POISON.contains(&number), "{number}: {error}"),
            }
        }
        let mut written = numbers.written.lock().concat();
        assert!(numbers.written.lock().iter().all(|batch| batch.len() <= 100));
        assert_eq!(written.len(), 248);
        let given = written.clone();
        written.sort_unstable();
        assert_eq!(written, given, "in their order");
    }

    #[tokio::test]
    async fn what_passes_is_tried_again_but_not_for_ever() {
        let numbers = Numbers::default();
        numbers.lost.store(2, Ordering::Relaxed);
        let answers = commit(&numbers, [1, 2]).await;
        assert!(
            answers.iter().all(|answer| matches!(answer, Some(Ok(_)))),
            "{answers:?}"
        );
        assert_eq!(*numbers.written.lock(), [[1, 2]]);
        numbers.lost.store(3, Ordering::Relaxed);
        let answers = commit(&numbers, [3, 4]).await;
        assert!(
            matches!(
                answers[..],
                [Some(Err(EngineError::Unavailable)), Some(Err(EngineError::Unavailable))]
            ),
            "{answers:?}"
        );
    }

    #[tokio::test]
    async fn nobody_waits_for_what_others_hold_and_few_of_those_who_want_it() {
        let numbers = Numbers::default();
        let answers = commit(&numbers, [HELD, 1, HELD + 1, 2, HELD + 2, HELD + 3]).await;
        assert_eq!(*numbers.written.lock(), [[1, 2]]);
        let turned_away = |answer: &&Option<_>| matches!(answer, Some(Err(EngineError::Contended)));
        assert_eq!(answers.iter().filter(turned_away).count(), 4);
        // The batch, the two that do not wait, and those that may.
        assert_eq!(numbers.tries.load(Ordering::Relaxed), 2 + WAITED_FOR_MAX);
    }

    #[tokio::test]
    async fn what_is_tried_without_end_ends_with_the_lease() {
        let patient = Patient::default();
        patient.0.lost.store(100, Ordering::Relaxed);
        let (asked, mut answer) = asked::<Patient>(1);
        // It is lost after ten tries.
        let tries = || patient.0.tries.load(Ordering::Relaxed);
        settle(&patient, vec![asked], || tries() == 10).await;
        assert_eq!(tries(), 10);
        assert!(answer.try_recv().is_err(), "nobody is answered");
    }

    #[tokio::test]
    async fn a_full_queue_refuses() {
        let (numbers, _gathering) = GroupCommit::<Numbers>::new();
        let _answers: Vec<_> = (0..3).map(|number| numbers.send(number).expect("a place")).collect();
        assert!(matches!(numbers.send(4), Err(EngineError::Overloaded)));
        assert!(matches!(numbers.send_all([5, 6]), Err(EngineError::Overloaded)));
        assert_eq!(numbers.send_all([]).expect("nothing to wait for").len(), 0);
        drop(_gathering);
        assert!(matches!(numbers.send(7), Err(EngineError::Stopping)));
    }

    #[test]
    fn chunks_hold_everything_in_order() {
        for (count, expect) in [(0, 0), (1, 1), (100, 1), (101, 2), (350, 4)] {
            let given: Vec<u32> = (0..count).collect();
            let made = chunks(given.clone(), 100);
            assert_eq!(made.len(), expect);
            assert_eq!(made.concat(), given);
        }
    }
}
