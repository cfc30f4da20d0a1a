//! Scheduled messages: when they are sent, when they are tried again, and how long they are kept.

use heddle_domain::spec::parse_group;
use heddle_domain::topic::{Topic, TopicSpec};
use heddle_store::message::{BatchTerms, CancelFilter, Claimed};
use heddle_store::topic::{TopicPut, TopicWrite};

use super::*;
use crate::messages::{Days, Drain};
use crate::put_group::check_group;
use crate::queues::ClaimEnd;
use crate::topic_group;

/// A topic whose messages go to workers of queue `q`, on a node that tends it.
struct Sending {
    world: World,
    node: Simulated,
    messages: Arc<Messages>,
    queues: Arc<Queues>,
    topic: i32,
}

impl Sending {
    async fn begun(start: &str, more: Value) -> Self {
        Self::begun_in(World::at(start).await, more).await
    }

    async fn begun_in(world: World, more: Value) -> Self {
        let spec = with(json!({"queue": "q", "granularity": "instant"}), more);
        let spec: TopicSpec = serde_json::from_value(spec).expect("a topic");
        let topic = Topic::compile(spec).expect("a topic");
        let group = parse_group(&topic_group("t", &topic)).expect("a group");
        let name: Name = "t".parse().expect("a name");
        let group = check_group(&world.store, &name, group, world.now())
            .await
            .expect("a group");
        let write = TopicWrite {
            name: "t",
            script: None,
            queue: Some("q"),
            spec: &serde_json::to_value(&topic.spec).expect("JSON"),
        };
        let put = world
            .store
            .put_topic(world.by(), write, &[], Some(group.write("")))
            .await;
        let Ok(TopicPut::Done(put)) = put else {
            panic!("a topic: {put:?}");
        };
        let mut node = world.node(1).await;
        let queues = node.queues();
        drop(node.records());
        Self {
            messages: node.messages(),
            queues,
            world,
            node,
            topic: put.row.id,
        }
    }

    async fn ingest(&self, due: &[&str]) {
        let mut stream = self.messages.ingest("t").await.expect("a topic");
        let lines: Vec<String> = (1..)
            .zip(due)
            .map(|(sender, due)| json!({"sender": sender, "receiver": 1, "due": due}).to_string())
            .collect();
        let numbered = (1..).zip(lines.iter().map(String::as_str));
        stream.push(numbered).await.expect("messages");
        let report = stream.finish().await.expect("a report");
        assert_eq!((report.accepted, report.rejected), (due.len() as u64, Vec::new()));
    }

    /// Whether a message with this key is new.
    async fn is_new(&self, due: &str, key: &str) -> bool {
        let mut stream = self.messages.ingest("t").await.expect("a topic");
        let line = json!({"sender": 1, "receiver": 1, "due": due, "key": key}).to_string();
        let lines = [(1, line.as_str())];
        stream.push(lines.into_iter()).await.expect("a message");
        let report = stream.finish().await.expect("a report");
        assert_eq!((report.accepted, report.rejected), (1, Vec::new()));
        report.repeated == 0
    }

    /// What a worker gets: the senders of the messages of each batch.
    async fn claim(&self) -> Vec<(QueueClaim, Vec<u64>)> {
        let claims = claim(&self.queues, Duration::from_secs(60)).await;
        let senders = |claim: &QueueClaim| {
            let params: Value = serde_json::from_str(claim.params.get()).expect("params");
            let messages = params["messages"].as_array().expect("messages").iter();
            let mut senders: Vec<u64> = messages.map(|one| one["sender"].as_u64().expect("a sender")).collect();
            senders.sort_unstable();
            senders
        };
        claims
            .into_iter()
            .map(|claim| (claim.clone(), senders(&claim)))
            .collect()
    }

    /// The same, when it is one batch.
    async fn only_claim(&self) -> (QueueClaim, Vec<u64>) {
        let mut claims = self.claim().await;
        assert_eq!(claims.len(), 1, "{claims:?}");
        claims.remove(0)
    }

    /// The worker has sent a batch, all but the first of its messages if `all` is not set.
    async fn end(&self, claim: &QueueClaim, all: bool) {
        let params: Value = serde_json::from_str(claim.params.get()).expect("params");
        let output = match all {
            true => json!(null),
            false => json!({"failed": [params["messages"][0]["id"]]}),
        };
        let ends = vec![(claim.claim, ClaimEnd::Completed(output.to_string()))];
        let mut ended = self.queues.end_claims(ends).await;
        ended.remove(0).expect("an end");
    }

    /// How many messages of a day are sent, failed, and tried again later.
    async fn counts(&self, day: &str) -> (i64, i64, i64) {
        let day = self
            .world
            .store
            .message_day(self.topic, day.parse().expect("a day"))
            .await;
        let counts = day.expect("an answer").expect("a day").counts;
        (counts.sent, counts.failed, counts.retrying)
    }
}

/// A message is in its queue when the tenth of a second is over in which it is due, with all others of it, and not a moment
/// before. What its worker reports as failed comes again after the interval of the topic, exactly, and as often as it says.
#[tokio::test]
async fn a_message_is_sent_at_its_time_and_again_after_its_interval() {
    let retry = json!({"strategy": "exponential", "retries": 1, "interval": "10m"});
    let sending = Sending::begun("2026-03-01T00:00:00Z", json!({"retry": retry})).await;
    let (world, node) = (&sending.world, &sending.node);
    let (day, pause) = ("2026-03-01", Duration::from_millis(200));
    sending
        .ingest(&[
            "2026-03-01T00:10:00.05Z",
            "2026-03-01T00:10:00.1Z",
            "2026-03-01T00:10:00.100001Z",
        ])
        .await;
    let mut drain = Drain::of(sending.messages.clone());
    world
        .pass_for(node, TimeDelta::minutes(10) + TimeDelta::milliseconds(100) - MOMENT)
        .await;
    assert_eq!(node.tick(&mut drain).await, pause);
    assert!(sending.claim().await.is_empty());
    world.pass_for(node, MOMENT).await;
    assert_eq!(node.tick(&mut drain).await, pause);
    let (first, senders) = sending.only_claim().await;
    assert_eq!(senders, [1, 2]);
    world.pass_for(node, TimeDelta::milliseconds(100)).await;
    node.tick(&mut drain).await;
    let (second, senders) = sending.only_claim().await;
    assert_eq!(senders, [3]);
    sending.end(&second, true).await;
    sending.end(&first, false).await;
    assert_eq!(sending.counts(day).await, (0, 0, 0), "nobody has looked");
    node.tick(&mut drain).await;
    assert_eq!(sending.counts(day).await, (2, 0, 1));
    world.pass_for(node, TimeDelta::minutes(10) - MOMENT).await;
    node.tick(&mut drain).await;
    assert!(sending.claim().await.is_empty());
    world.pass_for(node, MOMENT).await;
    node.tick(&mut drain).await;
    let (again, senders) = sending.only_claim().await;
    assert_eq!(senders.len(), 1);
    sending.end(&again, false).await;
    node.tick(&mut drain).await;
    assert_eq!(sending.counts(day).await, (2, 1, 0), "one retry is all");
    world.pass_for(node, TimeDelta::days(1)).await;
    node.tick(&mut drain).await;
    assert!(sending.claim().await.is_empty());
}

/// A batch that this node holds by mistake, because the answer to its claim was lost, is given back when it is older than
/// three seconds. That is looked for every two seconds. Then it is sent like that of a dead node.
#[tokio::test]
async fn a_batch_that_nobody_works_on_is_given_back() {
    let sending = Sending::begun("2026-03-01T00:00:00Z", json!({})).await;
    let (world, node) = (&sending.world, &sending.node);
    sending.ingest(&["2026-03-01T00:10:00Z"]).await;
    world.pass_for(node, TimeDelta::minutes(10)).await;
    let mut drain = Drain::of(sending.messages.clone());
    let terms = BatchTerms {
        topic: sending.topic,
        lease: node.node.lease(),
        id: node.node.new_id(world.now()),
        messages_max: 10,
        bytes_max: 1 << 20,
        concurrency: Some(16),
        rate: None,
        queued: true,
        retries_first: true,
    };
    let claimed = world.store.next_batch(sending.topic, None, Some(&terms)).await;
    assert!(matches!(claimed, Ok((_, Claimed::Batch(_)))), "{claimed:?}");
    let two = TimeDelta::seconds(2);
    for time in [two, two - MOMENT, MOMENT] {
        world.pass(time).await;
        node.tick(&mut drain).await;
        assert!(sending.claim().await.is_empty(), "at {}", world.now());
    }
    node.tick(&mut drain).await;
    assert_eq!(sending.only_claim().await.1, [1]);
}

/// A batch that cannot be recorded is looked for again ten seconds later, and not before: with each look, a hundred of them
/// would hide all others of their topic.
#[tokio::test]
async fn a_batch_that_cannot_be_recorded_is_passed_over_for_a_while() {
    let sending = Sending::begun("2026-03-01T00:00:00Z", json!({})).await;
    let (world, node, day) = (&sending.world, &sending.node, "2026-03-01");
    sending.ingest(&["2026-03-01T00:10:00Z"]).await;
    world.pass_for(node, TimeDelta::minutes(10)).await;
    let mut drain = Drain::of(sending.messages.clone());
    node.tick(&mut drain).await;
    let (claimed, _) = sending.only_claim().await;
    sending.end(&claimed, true).await;
    world.execute("UPDATE heddle.message_batches SET retries = '5'").await;
    node.tick(&mut drain).await;
    world.execute("UPDATE heddle.message_batches SET retries = NULL").await;
    world.pass_for(node, TimeDelta::seconds(10) - MOMENT).await;
    node.tick(&mut drain).await;
    assert_eq!(sending.counts(day).await, (0, 0, 0));
    world.pass_for(node, MOMENT).await;
    node.tick(&mut drain).await;
    assert_eq!(sending.counts(day).await, (1, 0, 0));
}

/// A node dies after it has put a batch into its queue, and before it has noted the batch's run. Then the day is cancelled: no
/// worker gets anything, whether the batch has been taken over before or not, and whoever did that.
#[tokio::test]
async fn a_batch_of_a_dead_node_is_not_sent_when_it_is_cancelled() {
    let (day, no_node) = ("2026-03-01", 77);
    let noted = format!("UPDATE heddle.message_batches SET run = NULL, lease = {no_node}");
    // As a node does that finds nothing left of the batch, and does not know the run.
    let taken_over = "DELETE FROM heddle.message_batches".to_owned();
    for (died, left, cancelled) in [(noted, 1, 1), (taken_over, 0, 0)] {
        let sending = Sending::begun("2026-03-01T00:00:00Z", json!({})).await;
        let (world, node) = (&sending.world, &sending.node);
        sending.ingest(&["2026-03-01T00:10:00Z"]).await;
        world.pass_for(node, TimeDelta::minutes(10)).await;
        let mut drain = Drain::of(sending.messages.clone());
        node.tick(&mut drain).await;
        world.execute(&died).await;
        if left > 0 {
            let filter = CancelFilter {
                day: Some(day.parse().expect("a day")),
                ..CancelFilter::default()
            };
            let report = world
                .store
                .cancel_messages(world.by(), sending.topic, "t", filter)
                .await
                .expect("a report");
            assert_eq!((report.cancelled, report.emptied.len()), (0, 0), "it is in hand");
        }
        node.tick(&mut drain).await;
        let batches = "SELECT count(*) FROM heddle.message_batches WHERE run IS NOT NULL";
        assert_eq!(world.one::<i64>(batches).await, left, "the run has it");
        assert!(sending.claim().await.is_empty(), "{died}");
        assert_eq!(world.runs("succeeded").await.len(), 1, "{died}");
        node.tick(&mut drain).await;
        assert_eq!(world.one::<i64>("SELECT count(*) FROM heddle.message_batches").await, 0);
        let found = world
            .store
            .message_day(sending.topic, day.parse().expect("a day"))
            .await;
        let counts = found.expect("an answer").expect("a day").counts;
        assert_eq!((counts.sent, counts.cancelled), (0, cancelled), "{died}");
    }
}

/// A worker has sent a batch when it is cancelled: its messages count as sent, although the node that put it into the queue died
/// before it noted the run.
#[tokio::test]
async fn a_batch_of_a_dead_node_counts_as_its_worker_says() {
    let sending = Sending::begun("2026-03-01T00:00:00Z", json!({})).await;
    let (world, node) = (&sending.world, &sending.node);
    sending.ingest(&["2026-03-01T00:10:00Z"]).await;
    world.pass_for(node, TimeDelta::minutes(10)).await;
    let mut drain = Drain::of(sending.messages.clone());
    node.tick(&mut drain).await;
    world
        .execute("UPDATE heddle.message_batches SET run = NULL, lease = 77")
        .await;
    let (claimed, _) = sending.only_claim().await;
    sending.end(&claimed, true).await;
    let filter = CancelFilter {
        day: Some("2026-03-01".parse().expect("a day")),
        ..CancelFilter::default()
    };
    let cancelled = world
        .store
        .cancel_messages(world.by(), sending.topic, "t", filter)
        .await;
    cancelled.expect("a report");
    for _ in 0..2 {
        node.tick(&mut drain).await;
    }
    assert_eq!(sending.counts("2026-03-01").await, (1, 0, 0));
}

/// A batch that this node takes over while its look for lost batches waits for the database is not lost: the look does not
/// know of it, and it is older than three seconds when the look goes on.
#[tokio::test]
async fn a_batch_that_comes_during_the_look_for_lost_ones_is_kept() {
    let sending = Sending::begun("2026-03-01T00:00:00Z", json!({})).await;
    let (world, node) = (&sending.world, &sending.node);
    let mut drain = Drain::of(sending.messages.clone());
    world.pass_for(node, TimeDelta::seconds(2)).await;
    let lease = node.node.lease();
    // Who reads the batches does not wait for this, but who releases some does.
    world
        .execute("BEGIN; LOCK TABLE heddle.message_batches IN SHARE MODE")
        .await;
    let comes = async {
        until(async || world.has_to_wait_for("heddle.message_batches").await).await;
        world
            .execute(&format!(
                "INSERT INTO heddle.message_batches (id, topic, day, lease, ids)
                     VALUES (gen_random_uuid(), {}, '2026-03-01', {lease}, '{{}}');
                 UPDATE public.simulated_clock SET at = at + interval '4 seconds';
                 COMMIT",
                sending.topic
            ))
            .await;
    };
    tokio::join!(node.tick(&mut drain), comes);
    let kept = "SELECT lease FROM heddle.message_batches";
    assert_eq!(world.one::<i64>(kept).await, lease);
    // Later looks know that nobody works on it.
    world.set(world.now() + TimeDelta::seconds(4)).await;
    node.tick(&mut drain).await;
    assert_eq!(world.one::<i64>(kept).await, -1);
}

/// A day is drained when it is over in the topic's zone, and all its messages are sent. They are kept for the topic's
/// retention, to the moment; then the partition goes. (The clock may say any year.)
#[tokio::test]
async fn messages_are_kept_for_the_retention_of_their_topic() {
    let more = json!({"timezone": "America/New_York", "retention": "1d"});
    let sending = Sending::begun("2030-06-01T01:50:00Z", more).await;
    let (world, node) = (&sending.world, &sending.node);
    // The last day of May, in New York.
    sending.ingest(&["2030-06-01T02:00:00Z"]).await;
    let mut drain = Drain::of(sending.messages.clone());
    let mut days = Days::of(node.node.clone());
    let drained_at = async || world.instant("SELECT drained_at AS at FROM heddle.message_days").await;
    let is_kept = async || {
        let kept = "SELECT EXISTS (SELECT FROM heddle.message_partitions WHERE day = '2030-05-31')";
        world.one::<bool>(kept).await
    };
    world.pass_for(node, TimeDelta::minutes(10)).await;
    node.tick(&mut drain).await;
    let (claimed, _) = sending.only_claim().await;
    sending.end(&claimed, true).await;
    node.tick(&mut drain).await;
    assert_eq!(sending.counts("2030-05-31").await, (1, 0, 0));
    let midnight = at("2030-06-01T04:00:00Z");
    world.pass_for(node, midnight - world.now() - MOMENT).await;
    assert_eq!(node.tick(&mut days).await, Duration::from_secs(2));
    assert_eq!(drained_at().await, None, "there may be more until midnight");
    world.pass_for(node, MOMENT).await;
    node.tick(&mut days).await;
    assert_eq!(drained_at().await, Some(midnight));
    world.pass_for(node, TimeDelta::days(1) - MOMENT).await;
    node.tick(&mut days).await;
    assert!(is_kept().await);
    world.pass_for(node, MOMENT).await;
    node.tick(&mut days).await;
    assert!(!is_kept().await);
    assert_eq!(
        sending.counts("2030-05-31").await,
        (1, 0, 0),
        "what became of them stays known"
    );
}

/// Partitions exist for nine days ahead. That is checked every ten minutes, whatever day it is.
#[tokio::test]
async fn there_are_partitions_for_messages_of_the_next_days() {
    let world = World::at("2030-05-31T23:55:00Z").await;
    let node = world.node(1).await;
    let mut days = Days::of(node.node.clone());
    let last = async || {
        world
            .one::<String>("SELECT max(day)::text FROM heddle.message_partitions")
            .await
    };
    node.tick(&mut days).await;
    assert_eq!(last().await, "2030-06-09");
    world.pass_for(&node, TimeDelta::minutes(10) - MOMENT).await;
    node.tick(&mut days).await;
    assert_eq!(last().await, "2030-06-09");
    world.pass_for(&node, MOMENT).await;
    node.tick(&mut days).await;
    assert_eq!(last().await, "2030-06-10");
}

/// A past message is stored with the present day. Its repeat on a later day is a repeat all the same, also if it was due long
/// before it came first; a message of the same key that was due on another day is another message.
#[tokio::test]
async fn a_repeat_after_midnight_is_a_repeat() {
    let sending = Sending::begun("2030-06-01T23:59:58Z", json!({"retention": "3d"})).await;
    let (world, node) = (&sending.world, &sending.node);
    let (now, long_ago) = ("2030-06-01T23:59:58Z", "2030-05-20T12:00:00Z");
    assert!(sending.is_new(now, "a").await && sending.is_new(long_ago, "b").await);
    assert!(!sending.is_new(now, "a").await && !sending.is_new(long_ago, "b").await);
    world.pass_for(node, TimeDelta::seconds(4)).await;
    assert!(!sending.is_new(now, "a").await, "it was stored yesterday");
    assert!(!sending.is_new(long_ago, "b").await);
    assert!(sending.is_new("2030-06-02T00:00:01Z", "a").await, "it is due today");
    assert!(
        sending.is_new("2030-05-31T12:00:00Z", "b").await,
        "it was due on another day"
    );
    world.pass_for(node, TimeDelta::days(2)).await;
    assert!(!sending.is_new(now, "a").await && !sending.is_new(long_ago, "b").await);
    assert!(sending.is_new(now, "c").await);
}

/// More topics than one look finds: with something to send, with batches that workers have, and with days that are kept.
/// Their specs are not valid, so nothing becomes of them.
async fn crowded(start: &str) -> World {
    let world = World::at(start).await;
    world
        .execute(
            "INSERT INTO heddle.topics (name, queue, spec, created_at, updated_at)
                 SELECT 'crowd-' || n, 'q', '{}', clock_timestamp(), clock_timestamp() FROM generate_series(1, 1000) AS n;
             INSERT INTO heddle.message_batches (id, topic, day, lease, run, ids)
                 SELECT gen_random_uuid(), id, '2030-01-01', 0, gen_random_uuid(), '{}' FROM heddle.topics;
             INSERT INTO heddle.message_days (topic, day) SELECT id, '2030-01-01' FROM heddle.topics",
        )
        .await;
    world
}

/// A thousand topics whose batches wait for workers, or whose messages cannot be sent, keep none of another topic waiting for
/// longer than a look. Each look finds so many that have something to send, and so many others.
#[tokio::test]
async fn topics_beyond_the_first_thousand_have_their_turn() {
    let sending = Sending::begun_in(crowded("2030-06-01T00:00:00Z").await, json!({})).await;
    let (world, node) = (&sending.world, &sending.node);
    sending.ingest(&["2030-06-01T00:10:00Z", "2030-06-01T00:20:00Z"]).await;
    let mut drain = Drain::of(sending.messages.clone());
    world.pass_for(node, TimeDelta::minutes(10)).await;
    node.tick(&mut drain).await;
    let (first, senders) = sending.only_claim().await;
    assert_eq!(senders, [1], "those that wait for workers are not before it");
    sending.end(&first, true).await;
    node.tick(&mut drain).await;
    assert_eq!(
        sending.counts("2030-06-01").await.0,
        1,
        "the second page of those that wait"
    );
    world
        .execute(
            "INSERT INTO heddle.message_slices (topic, day, slice, due_at, sealed)
                 SELECT id, '2030-01-01', 1, '2030-01-01', true FROM heddle.topics WHERE name LIKE 'crowd-%'",
        )
        .await;
    world.pass_for(node, TimeDelta::minutes(10)).await;
    node.tick(&mut drain).await;
    assert!(sending.claim().await.is_empty(), "a page is full without it");
    node.tick(&mut drain).await;
    assert_eq!(sending.only_claim().await.1, [2]);
}

/// The days of a topic beyond the first thousand are drained and released, too.
#[tokio::test]
async fn days_of_topics_beyond_the_first_thousand_are_released() {
    let more = json!({"retention": "1d"});
    let sending = Sending::begun_in(crowded("2030-06-01T00:00:00Z").await, more).await;
    let (world, node) = (&sending.world, &sending.node);
    world
        .execute(&format!(
            "INSERT INTO heddle.message_days (topic, day, drained_at) VALUES ({}, '2030-05-01', '2030-05-02')",
            sending.topic
        ))
        .await;
    let mut days = Days::of(node.node.clone());
    let released = "SELECT count(*) FROM heddle.message_days WHERE dropped_at IS NOT NULL";
    for count in [0, 1, 1] {
        node.tick(&mut days).await;
        assert_eq!(world.one::<i64>(released).await, count);
    }
}

/// Days whose partitions cannot be dropped, or cannot be made, keep no other days waiting. They are tried again.
#[tokio::test]
async fn a_day_that_fails_stops_no_others() {
    let world = World::at("2030-06-01T00:00:00Z").await;
    let node = world.node(1).await;
    let past: Vec<chrono::NaiveDate> = ["2030-05-01", "2030-05-02"]
        .map(|day| day.parse().expect("a day"))
        .to_vec();
    world.store.make_message_days(&past).await.expect("partitions");
    world
        .execute(
            "CREATE VIEW public.of_the_first AS SELECT id FROM heddle.messages_20300501;
             CREATE TABLE heddle.messages_20300603 (of_somebody integer)",
        )
        .await;
    let mut days = Days::of(node.node.clone());
    let left = async || {
        let days = "SELECT string_agg(to_char(day, 'MMDD'), ' ' ORDER BY day) FROM heddle.message_partitions";
        world.one::<String>(days).await
    };
    node.tick(&mut days).await;
    assert_eq!(left().await, "0501 0601 0602 0604 0605 0606 0607 0608 0609 0610");
    world
        .execute("DROP VIEW public.of_the_first; DROP TABLE heddle.messages_20300603")
        .await;
    node.tick(&mut days).await;
    assert_eq!(left().await, "0601 0602 0603 0604 0605 0606 0607 0608 0609 0610");
}
