//! Scheduled messages: ingest, claims, ends, and look-ups.

use chrono::{NaiveDate, TimeDelta};
use heddle_domain::Clock;
use heddle_domain::message::{bucket_of, message_id};
use heddle_store::message::{
    BatchTerms, CancelFilter, Claimed, DaySlice, Finish, Finished, MessageIngest, MessageSearch, MessageState,
    NewMessage,
};
use heddle_store::topic::TopicDelete;
use heddle_store::{Store, StoreError};
use heddle_tests::World;
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use uuid::Uuid;

use super::{HOUR, NODE, Wall, by, close, count, lease, meanwhile, set_up, unhindered, waiting};

/// A topic that is drained on this machine's day, and who drains it.
pub(super) struct Drained {
    pub(super) store: Store,
    pub(super) topic: i32,
    pub(super) day: NaiveDate,
    pub(super) lease: i64,
}

impl Drained {
    /// The topic in place of the store alone, with the other things that [`set_up`] gives.
    pub(super) async fn set_up() -> (World, Self, Client, Client) {
        let (world, store, sql, other) = set_up().await;
        let lease = lease(&store, NODE, None).await.expect("a lease");
        let made = sql
            .query_one(
                "WITH made AS (INSERT INTO heddle.topics (name, script, spec, created_at, updated_at)
                               VALUES ('t', 's', '{}', now(), now()) RETURNING id),
                 drain AS (INSERT INTO heddle.topic_drains (topic) SELECT id FROM made)
                 SELECT id FROM made",
                &[],
            )
            .await
            .expect("a topic");
        let drained = Self {
            store,
            topic: made.get(0),
            day: Wall.now().date_naive(),
            lease,
        };
        (world, drained, sql, other)
    }

    /// A message to this receiver, the nth of its sender.
    pub(super) fn message(&self, slice: i64, sender: i64, receiver: i64, nth: u64) -> NewMessage {
        let bucket = bucket_of(sender);
        NewMessage {
            id: message_id(Wall.now(), nth, self.day, bucket),
            sender,
            receiver,
            day: self.day,
            bucket,
            slice,
            due_at: None,
            payload: "{}".into(),
            key: None,
        }
    }

    /// Messages of these senders to one receiver, of the day, which are due; their ids.
    pub(super) async fn of_day(&self, senders: &[i64]) -> Vec<Uuid> {
        let due = Wall.now() - HOUR;
        self.store
            .prepare_day(self.topic, self.day, Some(due))
            .await
            .expect("a day");
        let mut ingest = self.store.ingest(self.topic).await.expect("a transaction");
        let DaySlice::Open(slice) = ingest.open_day(self.day).await.expect("an answer") else {
            panic!("the day is closed")
        };
        let nth = 1..;
        let messages: Vec<NewMessage> = senders
            .iter()
            .zip(nth)
            .map(|(one, nth)| self.message(slice, *one, 7, nth))
            .collect();
        ingest.write(&messages).await.expect("a copy");
        assert!(ingest.commit().await.expect("a commit"));
        messages.iter().map(|message| message.id).collect()
    }

    /// The same of an instant.
    async fn of_instant(&self, slice: i64, senders: &[i64]) -> Vec<Uuid> {
        self.store.prepare_day(self.topic, self.day, None).await.expect("a day");
        let mut ingest = self.store.ingest(self.topic).await.expect("a transaction");
        let nth = 1..;
        let messages: Vec<NewMessage> = senders
            .iter()
            .zip(nth)
            .map(|(one, nth)| self.message(slice, *one, 7, nth))
            .collect();
        ingest.write(&messages).await.expect("a copy");
        ingest.note_slice(self.day, slice, Wall.now() - HOUR + TimeDelta::seconds(slice));
        assert!(ingest.commit().await.expect("a commit"));
        messages.iter().map(|message| message.id).collect()
    }

    /// The topic's lock, as a claim takes it.
    pub(super) fn claim_lock(&self) -> String {
        format!(
            "SELECT FROM heddle.topic_drains WHERE topic = {} FOR NO KEY UPDATE",
            self.topic
        )
    }

    /// The same, as a cancel has it.
    pub(super) fn stop(&self) -> String {
        format!(
            "SELECT FROM heddle.topic_drains WHERE topic = {} FOR UPDATE",
            self.topic
        )
    }

    /// These are in hand: a batch of them.
    pub(super) fn in_hand(&self, batch: u128, ids: &[Uuid]) -> String {
        let ids: Vec<String> = ids.iter().map(Uuid::to_string).collect();
        format!(
            "INSERT INTO heddle.message_batches (id, topic, day, lease, ids)
             VALUES ('{}', {}, '{}', {}, '{{{}}}')",
            Uuid::from_u128(batch),
            self.topic,
            self.day,
            self.lease,
            ids.join(",")
        )
    }

    /// Another node's claim: the topic's lock, the frontier of a slice after its first message, and that message in
    /// hand.
    pub(super) fn claims_first(&self, slice: i64, first: Uuid) -> String {
        let bucket = heddle_domain::message::bucket_in(first);
        format!(
            "{}; UPDATE heddle.message_slices SET bucket = {bucket}, id = '{first}', sealed = true WHERE slice = {slice}; {}",
            self.claim_lock(),
            self.in_hand(99, &[first])
        )
    }

    fn terms(&self, batch: u128) -> BatchTerms {
        BatchTerms {
            topic: self.topic,
            lease: self.lease,
            id: Uuid::from_u128(batch),
            messages_max: 100,
            bytes_max: 1 << 20,
            concurrency: None,
            rate: None,
            queued: false,
            retries_first: false,
        }
    }

    /// Claims what comes next.
    pub(super) fn claim(&self, batch: u128) -> JoinHandle<Result<Vec<Uuid>, StoreError>> {
        let (store, topic, terms) = (self.store.clone(), self.topic, self.terms(batch));
        tokio::spawn(async move {
            match store.next_batch(topic, None, Some(&terms)).await? {
                (_, Claimed::Batch(batch)) => Ok(batch.messages.iter().map(|message| message.id).collect()),
                (_, other) => panic!("{other:?}"),
            }
        })
    }

    /// Takes these keys, each for a separate message; returns the transaction, and how many of them are new.
    fn take_keys(&self, keys: &[&str]) -> JoinHandle<(MessageIngest, usize)> {
        let (store, topic) = (self.store.clone(), self.topic);
        let keyed = |(key, nth): (&&str, u64)| NewMessage {
            key: Some((*key).into()),
            ..self.message(0, 1, 7, nth)
        };
        let messages: Vec<NewMessage> = keys.iter().zip(1..).map(keyed).collect();
        tokio::spawn(async move {
            let mut ingest = store.ingest(topic).await.expect("a transaction");
            let new = ingest.take_keys(&messages).await.expect("an answer").len();
            (ingest, new)
        })
    }

    fn finish(&self, batch: u128) -> JoinHandle<Finished> {
        let (store, topic) = (self.store.clone(), self.topic);
        let finish = Finish {
            batch: Uuid::from_u128(batch),
            day: self.day,
            lease: self.lease,
            sent: vec![(1, 1)],
            failed: Vec::new(),
            effects: Vec::new(),
        };
        tokio::spawn(async move { store.finish_plain(topic, &finish).await.expect("an answer") })
    }
}

/// `message_lock`, `message_work`, `messages_of_day`: claims of one topic wait for each other, and the later sees how
/// far the earlier has come and what it has in hand.
#[tokio::test]
async fn claims_of_a_day() {
    let (_world, drained, sql, mut other) = Drained::set_up().await;
    let ids = drained.of_day(&[1, 2, 3]).await;
    let first = other.transaction().await.unwrap();
    first.batch_execute(&drained.claims_first(0, ids[0])).await.unwrap();
    let second = drained.claim(1);
    waiting(&sql, 1).await;
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap().unwrap(), ids[1..]);
    // That makes two in hand, the maximum of a node for a topic.
    let full = drained
        .store
        .next_batch(drained.topic, None, Some(&drained.terms(2)))
        .await
        .unwrap();
    assert_eq!(full.1, Claimed::Full);
}

/// `messages_of_slices`: the same of slices of instants, of which some have been claimed in part.
#[tokio::test]
async fn claims_of_instants() {
    let (_world, drained, sql, mut other) = Drained::set_up().await;
    let early = drained.of_instant(1, &[1, 2]).await;
    let late = drained.of_instant(2, &[1, 2]).await;
    let first = other.transaction().await.unwrap();
    first.batch_execute(&drained.claims_first(1, early[0])).await.unwrap();
    let second = drained.claim(1);
    waiting(&sql, 1).await;
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap().unwrap(), [early[1], late[0], late[1]]);
    assert_eq!(count(&sql, "message_slices WHERE state = 1").await, 2);
}

/// `message_advance`: a frontier and the batch of the messages that it has passed become visible together, or neither
/// does.
#[tokio::test]
async fn frontiers_and_batches() {
    let (_world, drained, sql, mut other) = Drained::set_up().await;
    let ids = drained.of_day(&[1, 2]).await;
    let untouched = async || {
        let stands = "message_slices WHERE bucket = -1 AND state = 0";
        (count(&sql, stands).await, count(&sql, "message_batches").await)
    };
    // Somebody has the batch's number: it is waited for in the middle of the statement.
    let taker = other.transaction().await.unwrap();
    taker.batch_execute(&drained.in_hand(1, &[Uuid::nil()])).await.unwrap();
    let claim = drained.claim(1);
    waiting(&sql, 1).await;
    assert_eq!(untouched().await, (1, 0));
    taker.commit().await.unwrap();
    assert!(claim.await.unwrap().is_err(), "the number is taken");
    assert_eq!(
        untouched().await,
        (1, 1),
        "the frontier has not moved without its batch"
    );

    let taker = other.transaction().await.unwrap();
    taker.batch_execute(&drained.in_hand(2, &[Uuid::nil()])).await.unwrap();
    let claim = drained.claim(2);
    waiting(&sql, 1).await;
    taker.rollback().await.unwrap();
    assert_eq!(claim.await.unwrap().unwrap(), ids);
    assert_eq!(untouched().await, (0, 2));
}

/// `message_finish`: a batch that was sent is recorded concurrently with a claim, but not with a cancel. Of two who
/// have the batch, the later waits, and counts nothing if the earlier has taken it.
#[tokio::test]
async fn ends_of_batches() {
    let (_world, drained, sql, mut other) = Drained::set_up().await;
    let ids = drained.of_day(&[1, 1, 1]).await;
    for (batch, id) in (1..).zip(&ids) {
        sql.batch_execute(&drained.in_hand(batch, &[*id])).await.unwrap();
    }
    let sent = "message_outcomes WHERE bucket = 1 AND sent = ";
    let claim = other.transaction().await.unwrap();
    claim.batch_execute(&drained.claim_lock()).await.unwrap();
    assert_eq!(unhindered(drained.finish(1)).await.unwrap(), Finished::Done);
    claim.rollback().await.unwrap();
    assert_eq!(count(&sql, &format!("{sent}1")).await, 1);

    let cancel = other.transaction().await.unwrap();
    cancel.batch_execute(&drained.stop()).await.unwrap();
    let finish = drained.finish(2);
    waiting(&sql, 1).await;
    cancel.rollback().await.unwrap();
    assert_eq!(finish.await.unwrap(), Finished::Done);
    assert_eq!(count(&sql, &format!("{sent}2")).await, 1);

    let taker = other.transaction().await.unwrap();
    assert_eq!(
        taker.execute("DELETE FROM heddle.message_batches", &[]).await.unwrap(),
        1
    );
    let finish = drained.finish(3);
    waiting(&sql, 1).await;
    taker.commit().await.unwrap();
    assert_eq!(finish.await.unwrap(), Finished::Lost);
    assert_eq!(count(&sql, &format!("{sent}2")).await, 1);
}

/// `message_keys`: waits for a key that somebody has taken and not committed; it is new if that was rolled back.
#[tokio::test]
async fn keys() {
    let (_world, drained, sql, _) = Drained::set_up().await;
    drained.of_day(&[1]).await;
    let (first, new) = drained.take_keys(&["k"]).await.unwrap();
    assert_eq!(new, 1);
    let second = drained.take_keys(&["k"]);
    waiting(&sql, 1).await;
    drop(first);
    let (second, new) = second.await.unwrap();
    assert_eq!(new, 1);
    let third = drained.take_keys(&["k"]);
    waiting(&sql, 1).await;
    assert!(second.commit().await.unwrap());
    assert_eq!(third.await.unwrap().1, 0);
    assert_eq!(count(&sql, "message_keys").await, 1);
}

/// `message_keys`: keys are taken in one order, whatever the order of the messages: whoever waits for one has no later
/// key, so that there is no deadlock.
#[tokio::test]
async fn the_order_of_keys() {
    let (_world, drained, sql, mut other) = Drained::set_up().await;
    drained.of_day(&[1]).await;
    let in_order = "SELECT key FROM UNNEST('{a,b}'::text[]) AS key
                    ORDER BY ('x' || substr(md5(key), 1, 7))::bit(28)::integer % 10000";
    let in_order = sql.query(in_order, &[]).await.unwrap();
    let [low, high]: [&str; 2] = [in_order[0].get(0), in_order[1].get(0)];
    // A session of the node would be ended after six seconds without a statement; this one waits for the test.
    let first = other.transaction().await.unwrap();
    let takes = "INSERT INTO heddle.message_keys (day, topic, bucket, key, id)
                 VALUES ($1::text::date, $2, ('x' || substr(md5($3), 1, 7))::bit(28)::integer % 10000, $3, gen_random_uuid())";
    let day = drained.day.to_string();
    first.execute(takes, &[&day, &drained.topic, &low]).await.unwrap();
    let both = drained.take_keys(&[high, low]);
    waiting(&sql, 1).await;
    let (another, new) = unhindered(drained.take_keys(&[high])).await.unwrap();
    assert_eq!(new, 1);
    drop(another);
    first.rollback().await.unwrap();
    assert_eq!(both.await.unwrap().1, 2);
}

/// `message_directory`: the counts of two transactions with messages of one bucket add up.
#[tokio::test]
async fn counts_of_buckets() {
    let (_world, drained, sql, mut other) = Drained::set_up().await;
    let first = other.transaction().await.unwrap();
    let brings = "INSERT INTO heddle.message_buckets (topic, day, bucket, total) VALUES ($1, $2::text::date, 1, 5)";
    let day = drained.day.to_string();
    first.execute(brings, &[&drained.topic, &day]).await.unwrap();
    let (store, topic, message) = (drained.store.clone(), drained.topic, drained.message(1, 1, 7, 1));
    store.prepare_day(topic, drained.day, None).await.unwrap();
    let second = tokio::spawn(async move {
        let mut ingest = store.ingest(topic).await.expect("a transaction");
        ingest.write(&[message]).await.expect("a copy");
        ingest.commit().await.expect("a commit")
    });
    waiting(&sql, 1).await;
    first.commit().await.unwrap();
    assert!(second.await.unwrap());
    assert_eq!(count(&sql, "message_buckets WHERE total = 6").await, 1);
}

/// `messages_search`, `messages_named`, `messages_to`: look-ups of messages wait for nobody, and see them as last
/// committed.
#[tokio::test]
async fn looks() {
    let (_world, drained, _, mut other) = Drained::set_up().await;
    let ids = drained.of_day(&[1, 1]).await;
    let cancel = other.transaction().await.unwrap();
    let stops = format!("{}; UPDATE heddle.messages SET state = 1", drained.stop());
    cancel.batch_execute(&stops).await.unwrap();
    let states = async |filter: MessageSearch| {
        let page = drained
            .store
            .messages(drained.topic, filter, None, 10)
            .await
            .expect("a page");
        let page = page.expect("in time");
        page.items.iter().map(|one| (one.id, one.state)).collect::<Vec<_>>()
    };
    let by_sender = MessageSearch {
        sender: Some(1),
        ..MessageSearch::default()
    };
    let by_receiver = MessageSearch {
        receiver: Some(7),
        ..MessageSearch::default()
    };
    let all = |state: MessageState| vec![(ids[0], state), (ids[1], state)];
    for filter in [by_sender, by_receiver] {
        assert_eq!(unhindered(states(filter)).await, all(MessageState::Scheduled));
    }
    let one = unhindered(drained.store.message(drained.topic, ids[0])).await.unwrap();
    assert_eq!(one.map(|one| one.state), Some(MessageState::Scheduled));
    cancel.commit().await.unwrap();
    for filter in [by_sender, by_receiver] {
        assert_eq!(states(filter).await, all(MessageState::Cancelled));
    }
}

/// The deletion of a topic waits for a cancel before it locks the topic's own row: ingest for which that cancel waits is
/// committed. Ingest that comes after a deletion finds no topic.
#[tokio::test]
async fn deletions_of_topics() {
    let (_world, drained, sql, mut other) = Drained::set_up().await;
    drained.of_day(&[1]).await;
    let ingest = async || {
        let mut ingest = drained.store.ingest(drained.topic).await.expect("a transaction");
        assert_eq!(
            ingest.open_day(drained.day).await.expect("an answer"),
            DaySlice::Open(0)
        );
        ingest.write(&[drained.message(0, 2, 7, 9)]).await.expect("a copy");
        ingest
    };
    let open = ingest().await;
    let cancel = other.transaction().await.unwrap();
    cancel.batch_execute(&drained.stop()).await.unwrap();
    let deleted = meanwhile(&sql, drained.store.delete_topic(by(), "t"), async {
        assert!(unhindered(open.commit()).await.expect("a commit"), "the topic is there");
        assert_eq!(count(&sql, "messages").await, 2);
        close(cancel, false).await;
    })
    .await;
    assert!(matches!(deleted.unwrap(), TopicDelete::Deleted { .. }));

    let (_world, drained, sql, mut other) = Drained::set_up().await;
    drained.of_day(&[1]).await;
    for commits in [false, true] {
        let mut ingest = drained.store.ingest(drained.topic).await.unwrap();
        assert_eq!(ingest.open_day(drained.day).await.unwrap(), DaySlice::Open(0));
        ingest.write(&[drained.message(0, 2, 7, 9)]).await.unwrap();
        let deletion = other.transaction().await.unwrap();
        assert_eq!(deletion.execute("DELETE FROM heddle.topics", &[]).await.unwrap(), 1);
        let stored = meanwhile(&sql, ingest.commit(), close(deletion, commits)).await;
        assert_eq!(stored.unwrap(), !commits);
        assert_eq!(count(&sql, "messages").await, 2);
    }
}

/// A claim does not wait for ingest that writes to the day: it claims the day later.
#[tokio::test]
async fn days_that_are_written_to() {
    let (_world, drained, _, _) = Drained::set_up().await;
    let first = drained.of_day(&[1]).await;
    let mut ingest = drained.store.ingest(drained.topic).await.unwrap();
    assert_eq!(ingest.open_day(drained.day).await.unwrap(), DaySlice::Open(0));
    let second = drained.message(0, 2, 7, 9);
    ingest.write(std::slice::from_ref(&second)).await.unwrap();
    let terms = drained.terms(1);
    let claim = drained.store.next_batch(drained.topic, None, Some(&terms));
    assert!(matches!(unhindered(claim).await.unwrap().1, Claimed::Later(_)));
    assert!(ingest.commit().await.unwrap());
    assert_eq!(drained.claim(1).await.unwrap().unwrap(), [first[0], second.id]);
}

/// Days whose rest somebody is deleting are passed over.
#[tokio::test]
async fn days_that_somebody_deletes() {
    let (_world, drained, sql, mut other) = Drained::set_up().await;
    let (store, topic) = (&drained.store, drained.topic);
    sql.batch_execute(&format!(
        "INSERT INTO heddle.message_days (topic, day, drained_at)
              SELECT {topic}, date '2026-01-01' + n, now() - interval '1 hour' FROM generate_series(0, 1) AS n"
    ))
    .await
    .unwrap();
    let hold = "SELECT FROM heddle.message_days WHERE day = '2026-01-01' FOR UPDATE";
    let holder = other.transaction().await.unwrap();
    assert_eq!(holder.execute(hold, &[]).await.unwrap(), 1);
    assert_eq!(unhindered(store.release_days(topic, 0, 10)).await.unwrap(), 1);
    close(holder, false).await;
    assert_eq!(store.release_days(topic, 0, 10).await.unwrap(), 1);

    sql.batch_execute("DELETE FROM heddle.topics").await.unwrap();
    let holder = other.transaction().await.unwrap();
    assert_eq!(holder.execute(hold, &[]).await.unwrap(), 1);
    for found in [true, false] {
        assert_eq!(unhindered(store.forget_deleted_topic()).await.unwrap(), found);
    }
    close(holder, false).await;
    assert!(store.forget_deleted_topic().await.unwrap());
    assert_eq!(count(&sql, "message_days").await, 0);
}

/// `release_days`: an ingest is open while its day is noted as drained. Its messages are left to send: the day is kept for
/// them, and a cancel finds them.
#[tokio::test]
async fn messages_that_come_to_a_drained_day() {
    let (_world, drained, sql, _) = Drained::set_up().await;
    let today = drained.day;
    let drained = Drained {
        day: today.pred_opt().expect("a day"),
        ..drained
    };
    let (store, topic, day) = (&drained.store, drained.topic, drained.day);
    store.prepare_day(topic, day, None).await.unwrap();
    let mut ingest = store.ingest(topic).await.unwrap();
    ingest.write(&[drained.message(5, 1, 7, 1)]).await.unwrap();
    ingest.note_slice(day, 5, Wall.now());
    assert_eq!(store.close_days(topic, today).await.unwrap(), 1);
    assert!(ingest.commit().await.unwrap());
    assert_eq!(unhindered(store.release_days(topic, 0, 10)).await.unwrap(), 0);
    assert_eq!(count(&sql, "message_slices WHERE state = 0").await, 1);
    let of_day = CancelFilter {
        day: Some(day),
        ..CancelFilter::default()
    };
    let report = store.cancel_messages(by(), topic, "t", of_day).await.unwrap();
    assert_eq!(report.cancelled, 1);
    // The retention begins when the last message has ended.
    let hour = HOUR.num_milliseconds();
    sql.batch_execute("UPDATE heddle.message_days SET drained_at = drained_at - interval '2 hours'")
        .await
        .unwrap();
    assert_eq!(store.release_days(topic, hour, 10).await.unwrap(), 0);
    assert_eq!(store.release_days(topic, 0, 10).await.unwrap(), 1);
}
