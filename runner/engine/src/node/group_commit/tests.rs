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
const LOCKED: u32 = 1_000;

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
        if batch.iter().any(|number| *number >= LOCKED) {
            return Err(EngineError::Contended);
        }
        if batch.iter().any(|number| POISON.contains(number)) {
            return Err(EngineError::unreadable("poison"));
        }
        self.written.lock().push(batch.to_vec());
        Ok((batch.iter().map(|number| number * 2).collect(), ()))
    }

    fn may_wait(number: &u32) -> bool {
        *number >= LOCKED
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

/// The same, but what is refused is written as [`REPLACEMENT`], unless that is what is refused.
#[derive(Default)]
struct Replacing {
    numbers: Numbers,
    refuses_all: bool,
    given_up: AtomicUsize,
}

const REPLACEMENT: u32 = 999;

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
            true => Err(EngineError::unreadable("poison")),
            false => self.numbers.commit(batch).await,
        }
    }

    async fn refused(&self, number: u32, _: &EngineError) -> Option<u32> {
        let again = number == REPLACEMENT;
        self.given_up.fetch_add(usize::from(again), Ordering::Relaxed);
        (!again).then_some(REPLACEMENT)
    }
}

#[tokio::test]
async fn what_is_refused_may_be_replaced() {
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
    let answers = commit(&numbers, [LOCKED, 1, LOCKED + 1, 2, LOCKED + 2, LOCKED + 3]).await;
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

#[test]
fn all_hear_why_a_batch_was_refused() {
    let (gathered, answers): (Vec<_>, Vec<_>) = (0..2).map(asked::<Numbers>).unzip();
    let cause = "x".parse::<u8>().expect_err("no number");
    refuse(gathered, EngineError::unreadable_in("revision 7", cause));
    for mut answer in answers {
        let error = answer.try_recv().expect("an answer").expect_err("it was refused");
        let chain = Chain(&error).to_string();
        assert_eq!(
            chain,
            "stored data cannot be read: revision 7: invalid digit found in string"
        );
    }
}

#[tokio::test]
async fn a_full_queue_refuses() {
    let (numbers, _gathering) = GroupCommit::<Numbers>::new();
    let _answers: Vec<_> = (0..3)
        .map(|number| numbers.send(number).expect("room in the queue"))
        .collect();
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

#[test]
fn halves_leave_only_what_is_wrong() {
    let mut halves = Halves::<u32>::of((0..200).collect());
    let (mut alone, mut written) = (Vec::new(), Vec::new());
    while let Some(batch) = halves.take() {
        let refused = batch.iter().any(|number| POISON.contains(number));
        let result = if refused {
            Err(EngineError::unreadable("poison"))
        } else {
            written.extend_from_slice(&batch);
            Ok(())
        };
        let found = halves.done(batch, result).expect("no error may pass");
        alone.extend(found.map(|(number, _)| number));
    }
    assert_eq!((alone, written.len()), (POISON.to_vec(), 198));
    let passing = Halves::of(vec![1, 2]).done(vec![1, 2], Err(EngineError::Contended));
    assert!(matches!(passing, Err(EngineError::Contended)));
}
