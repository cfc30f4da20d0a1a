//! Cancels: by every filter, before and in the middle; the counts stay true.

use std::collections::BTreeSet;

use heddle_tests::{Node, World, eventually};
use serde_json::{Value, json};

use super::{count, day_ahead, days, delivered, due_now, ended, kept, only_day, postbox, put_topic, send};

async fn cancel(node: &Node, topic: &str, filter: Value) -> i64 {
    let answer = node
        .post(&format!("/v1/topics/{topic}/cancel"), filter)
        .await
        .expect_status(200);
    answer["cancelled"].as_i64().expect("a number")
}

/// Each filter takes what it names, once; what comes later for a cancelled day is taken and kept.
#[tokio::test]
async fn by_every_filter() {
    let (world, node) = World::with_node().await;
    put_topic(&node, "days", json!({"script": "postbox"})).await;
    let (day, next) = (day_ahead(&world, 2).await, day_ahead(&world, 3).await);
    let mut messages = Vec::new();
    for due in [&day, &next] {
        for sender in 0..20 {
            messages.push(json!({"sender": sender, "receiver": 100 + sender % 4, "due": due}));
            messages.push(json!({"sender": sender + 10_000, "receiver": 200, "due": due}));
        }
    }
    let answer = send(&node, "days", &messages).await;
    let path = "/v1/topics/days";
    let id = answer["ids"][0].as_str().unwrap();
    node.delete(&format!("{path}/messages/{id}")).await.expect_status(204);
    let audit = node.all("/v1/audit?kind=topic&name=days&action=cancel").await;
    let said = |state: &str| json!({"id": id, "state": state});
    assert_eq!(
        (audit.len(), &audit[0]["before"], &audit[0]["after"]),
        (1, &said("scheduled"), &said("cancelled")),
        "{audit:#?}"
    );
    node.delete(&format!("{path}/messages/{id}"))
        .await
        .expect_said(409, "cancelled");
    node.delete(&format!("{path}/messages/{}", uuid::Uuid::max()))
        .await
        .expect_problem(404, &[]);
    // Sender 0 of bucket 0 is cancelled on one day already.
    assert_eq!(cancel(&node, "days", json!({"sender": 0})).await, 1);
    assert_eq!(cancel(&node, "days", json!({"sender": 0})).await, 0);
    assert_eq!(cancel(&node, "days", json!({"sender": 1, "bucket": 2})).await, 0);
    assert_eq!(cancel(&node, "days", json!({"receiver": 101, "day": day})).await, 5);
    assert_eq!(cancel(&node, "days", json!({"day": day, "bucket": 7})).await, 2);
    // What is cancelled is not what is sent: neither the day nor a bucket has begun.
    let found = node.get(&format!("{path}/days/{day}")).await.expect_status(200);
    assert_eq!(found["state"], "scheduled");
    let states = |bucket: usize| found["buckets"][bucket]["state"].as_str().unwrap().to_owned();
    assert_eq!(
        (states(0).as_str(), states(1).as_str(), states(7).as_str()),
        ("scheduled", "scheduled", "drained")
    );
    let counts = async |day: &str| {
        let found = node.get(&format!("{path}/days/{day}")).await.expect_status(200);
        (found["total"].as_i64().unwrap(), found["cancelled"].as_i64().unwrap())
    };
    assert_eq!(counts(&day).await, (40, 8));
    assert_eq!(counts(&next).await, (40, 1));
    assert_eq!(cancel(&node, "days", json!({"day": day})).await, 32);
    assert_eq!(cancel(&node, "days", json!({"day": day})).await, 0);
    assert_eq!(counts(&day).await, (40, 40));
    send(&node, "days", &[json!({"sender": 7, "receiver": 1, "due": day})]).await;
    let found = node.all(&format!("{path}/messages?day={day}&sender=7")).await;
    let states: Vec<&str> = found.iter().map(|found| found["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["cancelled", "scheduled"]);
    assert_eq!(counts(&day).await, (41, 40));
    assert_eq!(cancel(&node, "days", json!({"day": day})).await, 1);
    assert_eq!(counts(&next).await, (40, 1));

    node.post(&format!("{path}/cancel"), json!({}))
        .await
        .expect_problem(422, &[""]);
    node.post(
        &format!("{path}/cancel"),
        json!({"day": "soon", "bucket": 10_000, "sender": -1}),
    )
    .await
    .expect_problem(422, &["/bucket", "/day", "/sender"]);
    node.post(&format!("{path}/cancel"), json!({"dya": day}))
        .await
        .expect_problem(422, &["/dya"]);
    node.post("/v1/topics/none/cancel", json!({"sender": 1}))
        .await
        .expect_problem(404, &[]);
}

/// In the middle of a drain, nothing is sent after the batches in hand, and each message is accounted for.
#[tokio::test]
async fn in_the_middle_of_a_drain() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let node = &nodes[0];
    postbox(&world, node).await;
    put_topic(node, "kept-stop", kept(json!({"batch": 5, "concurrency": 4}))).await;
    // Each message takes a while: all of them would take minutes.
    let wait = json!({"do": "wait", "ms": 20});
    let messages: Vec<Value> = (0..20_000u64).map(|n| due_now(n * 37, wait.clone())).collect();
    for part in messages.chunks(5_000) {
        send(node, "kept-stop", part).await;
    }
    eventually("a beginning", async || {
        (count(node, "kept-stop", "sent").await > 20).then_some(())
    })
    .await;
    // The emergency of one sender, then of all.
    let last = 19_999 * 37;
    assert_eq!(cancel(&nodes[1], "kept-stop", json!({"sender": last})).await, 1);
    let mut cancelled = 0;
    for (day, _) in days(node, "kept-stop").await {
        cancelled += cancel(&nodes[1], "kept-stop", json!({"day": day})).await;
    }
    let before = delivered(&world).await.len();
    ended(node, "kept-stop", 20_000).await;
    let found = days(node, "kept-stop").await;
    let field = |name: &str| found.iter().map(|(_, day)| day[name].as_i64().unwrap()).sum::<i64>();
    assert_eq!(field("cancelled"), cancelled + 1);
    assert_eq!(field("sent") + field("cancelled"), 20_000, "{} sent", field("sent"));
    let ids = delivered(&world).await;
    assert_eq!(ids.len() as i64, field("sent"), "what was sent is what was handed over");
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    assert!(
        ids.len() <= before + 4 * 5,
        "no more than the batches in hand were sent after the answer"
    );
    for bucket in found.iter().flat_map(|(_, day)| day["buckets"].as_array().unwrap()) {
        let of = |name: &str| bucket[name].as_i64().unwrap();
        assert_eq!(of("sent") + of("cancelled"), of("total"), "{bucket}");
    }
    let states: BTreeSet<String> = node
        .all(&format!("/v1/topics/kept-stop/messages?sender={last}"))
        .await
        .iter()
        .map(|found| found["state"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(states, BTreeSet::from(["cancelled".to_owned()]));
}

/// What waits for its next attempt is cancelled, and what is in hand is not tried again.
#[tokio::test]
async fn what_is_tried_again() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 1000, "interval": "1h"});
    let spec = |more: Value| crate::with(json!({"script": "postbox", "granularity": "instant"}), more);
    put_topic(&node, "waiting", spec(json!({"retry": retry}))).await;
    let messages: Vec<Value> = (0..6).map(|n| due_now(n, json!({"do": "fail"}))).collect();
    send(&node, "waiting", &messages).await;
    eventually("six retries", async || {
        (count(&node, "waiting", "retrying").await == 6).then_some(())
    })
    .await;
    assert_eq!(cancel(&node, "waiting", json!({"sender": 3})).await, 1);
    assert_eq!(cancel(&node, "waiting", json!({"receiver": 5})).await, 1);
    let (day, _) = only_day(&node, "waiting").await;
    assert_eq!(cancel(&node, "waiting", json!({"day": day})).await, 4);
    ended(&node, "waiting", 6).await;
    assert_eq!(count(&node, "waiting", "cancelled").await, 6);

    put_topic(
        &node,
        "held",
        spec(json!({"retry": {"strategy": "fixed", "retries": 1000, "interval": "10ms"}})),
    )
    .await;
    // The batch waits long enough for it to be cancelled while it is in hand, and then fails.
    let messages = [
        due_now(1, json!({"do": "wait", "ms": 3_000})),
        due_now(2, json!({"do": "fail"})),
    ];
    send(&node, "held", &messages).await;
    eventually("a batch in hand", async || {
        (count(&node, "held", "in_hand").await == 2).then_some(())
    })
    .await;
    assert_eq!(cancel(&node, "held", json!({"sender": 2})).await, 0, "it is in hand");
    ended(&node, "held", 2).await;
    assert_eq!(
        (
            count(&node, "held", "sent").await,
            count(&node, "held", "cancelled").await
        ),
        (1, 1)
    );
}

/// A receiver's messages are found, and cancelled, in any bucket and any state; others are not touched.
#[tokio::test]
async fn by_receiver() {
    let (world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 1000, "interval": "1h"});
    let spec = json!({"script": "postbox", "granularity": "instant", "retry": retry, "batch": 50});
    put_topic(&node, "wall", spec).await;
    // Of three receivers in turn: a third is sent, a third waits for its next attempt, a third is due in an hour.
    let sql = world.sql().await;
    let later: String = sql
        .query_one(
            "SELECT to_char(now() AT TIME ZONE 'UTC' + interval '1 hour', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    let message =
        |n: u64, due: &str, payload: Value| json!({"sender": n, "receiver": n % 3, "due": due, "payload": payload});
    let past = "2013-07-01T00:00:00Z";
    let mut messages: Vec<Value> = (0..300).map(|n| message(n, past, json!({}))).collect();
    messages.extend((300..600).map(|n| message(n, past, json!({"do": "fail"}))));
    messages.extend((600..900).map(|n| message(n, &later, json!({}))));
    send(&node, "wall", &messages).await;
    eventually("three hundred sent, three hundred to be tried again", async || {
        let counts = (
            count(&node, "wall", "sent").await,
            count(&node, "wall", "retrying").await,
        );
        (counts == (300, 300)).then_some(())
    })
    .await;
    let of_two = async || {
        let found = node.all("/v1/topics/wall/messages?receiver=2&limit=70").await;
        let senders: Vec<u64> = found.iter().map(|found| found["sender"].as_u64().unwrap()).collect();
        let states: Vec<String> = found
            .iter()
            .map(|found| found["state"].as_str().unwrap().to_owned())
            .collect();
        (senders, states)
    };
    let expected: Vec<u64> = (0..900).filter(|n| n % 3 == 2).collect();
    let (senders, states) = of_two().await;
    assert_eq!(senders, expected, "by bucket, over pages");
    let as_they_stand = |sender: u64| match sender {
        0..300 => "sent",
        300..600 => "retrying",
        _ => "scheduled",
    };
    assert!(
        senders
            .iter()
            .zip(&states)
            .all(|(sender, state)| as_they_stand(*sender) == state)
    );
    assert_eq!(cancel(&node, "wall", json!({"receiver": 2})).await, 200);
    assert_eq!(cancel(&node, "wall", json!({"receiver": 2})).await, 0);
    let (_, states) = of_two().await;
    assert!(states.iter().zip(&expected).all(|(state, sender)| match sender {
        0..300 => state == "sent",
        _ => state == "cancelled",
    }));
    assert_eq!(
        (
            count(&node, "wall", "cancelled").await,
            count(&node, "wall", "retrying").await
        ),
        (200, 200)
    );
}
