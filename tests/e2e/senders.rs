//! Which node sends a notification: one at a time, however many could.

use std::collections::BTreeSet;
use std::time::Duration;

use heddle_tests::{Answer, Node, Receiver, World, eventually, id};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::notifications::{becomes, metric, requests, settled, webhook};
use crate::{fails, one, with};

/// Two nodes tell each failure once.
#[tokio::test]
async fn two_nodes_tell_once() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&nodes[0], "hook", &receiver.url, json!({"burst": 100000})).await;
    let rules = json!({"on": ["failed"], "channels": ["hook"]});
    nodes[0]
        .put_group("g", with(one(fails()), json!({"notify": rules})))
        .await;
    for node in &nodes {
        let runs: Vec<Value> = (0..50).map(|_| json!({})).collect();
        node.post("/v1/groups/g/runs/batch", json!({"runs": runs})).await;
    }
    let told = settled(&nodes[0], "group=g", 100).await;
    assert_eq!(told.len(), 100);
    let runs: BTreeSet<String> = receiver
        .requests()
        .iter()
        .map(|request| request.body["data"]["run"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!((runs.len(), receiver.requests().len()), (100, 100));
}

/// Waits until this node has taken and sent something: it would have taken by now what another node still has in hand.
async fn has_sent(node: &Node) {
    eventually("what the second node sends", async || {
        node.run("quick", json!({})).await;
        let text = node.get("/metrics").await.body;
        let sent = metric(text.as_str()?, "heddle_notifications_sent_total{kind=\"webhook\"}")?;
        (sent >= 3).then_some(())
    })
    .await;
}

/// Two receivers, of which the second is quick, each with a webhook and a group whose failing runs are told there.
async fn told_to(node: &Node, slow: Answer) -> (Receiver, Receiver) {
    let (slow, quick) = (Receiver::start(slow).await, Receiver::start(Answer::Status(200)).await);
    webhook(node, "slow", &slow.url, json!({})).await;
    webhook(node, "quick", &quick.url, json!({"burst": 100000})).await;
    for name in ["slow", "quick"] {
        let rules = json!({"notify": {"on": ["failed"], "channels": [name]}});
        node.put_group(name, with(one(fails()), rules)).await;
    }
    node.run("slow", json!({})).await;
    requests(&slow, 1).await;
    (slow, quick)
}

/// What a node has in hand is taken by no other as long as the node lives, however long it takes.
#[tokio::test]
async fn what_is_in_hand_is_left_alone() {
    let world = World::new().await;
    let first = world.node().await;
    let (slow, _quick) = told_to(&first, Answer::Silence).await;
    let second = world.node().await;
    has_sent(&second).await;
    let waiting = becomes(&first, "channel=slow", |_| true).await;
    // Unless its time was over meanwhile.
    if waiting["attempts"] == 0 {
        assert_eq!(slow.requests().len(), 1, "{waiting:#}");
    }
}

/// A node that stops ends what it is sending: nobody takes it meanwhile, and nobody is told twice.
#[tokio::test]
async fn a_node_that_stops_ends_what_it_sends() {
    let world = World::new().await;
    let mut first = world.node().await;
    let (slow, _quick) = told_to(&first, Answer::Held).await;
    let since = tokio::time::Instant::now();
    let second = world.node().await;
    first.terminate();
    has_sent(&second).await;
    // Unless its time was over meanwhile.
    let in_time = since.elapsed() < Duration::from_secs(15);
    slow.answers(Answer::Status(200));
    assert!(first.end().await.success(), "{}", first.log());
    let told = becomes(&second, "channel=slow", |item| item["state"] == "sent").await;
    if in_time {
        assert_eq!(told["attempts"], 1, "{told:#}");
        assert_eq!(slow.requests().len(), 1);
    }
}

/// A caller that asks for a test and goes away leaves nothing behind: neither a used slot of the channel, nor a pending
/// row.
#[tokio::test]
async fn tests_that_nobody_waits_for_end_all_the_same() {
    /// As many as a node sends through a channel at once.
    const AT_ONCE: usize = 4;
    let (_world, node) = World::with_node().await;
    let receiver = Receiver::start(Answer::Held).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    let tests = futures::future::join_all((0..AT_ONCE).map(|_| node.post("/v1/channels/hook/test", json!({}))));
    tokio::select! {
        _ = tests => panic!("nobody has answered yet"),
        _ = requests(&receiver, AT_ONCE) => {}
    }
    // The connections are closed, and the node goes on with those of others.
    node.get("/v1/channels/hook").await.expect_status(200);
    receiver.answers(Answer::Status(200));
    for told in settled(&node, "channel=hook", AT_ONCE).await {
        assert_eq!(
            (&told["state"], &told["attempts"]),
            (&json!("sent"), &json!(1)),
            "{told:#}"
        );
    }
    let rules = json!({"notify": {"on": ["failed"], "channels": ["hook"]}});
    node.put_group("g", with(one(fails()), rules)).await;
    node.run("g", json!({})).await;
    becomes(&node, "group=g", |item| item["state"] == "sent").await;
    assert_eq!(receiver.requests().len(), AT_ONCE + 1);
}

/// Callbacks that hang take no slot of a channel, and those of one submitter leave slots to another one, even for the same
/// host.
#[tokio::test]
async fn callbacks_that_hang_delay_nobody_else() {
    const HANGING: usize = 20;
    /// As many as a node sends at once for one submitter.
    const OF_SUBMITTER: usize = 8;
    let world = World::new().await;
    let node = world.options().env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1").start().await;
    let good = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &good.url, json!({})).await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let rules = json!({"notify": {"on": ["failed"], "channels": ["hook"]}});
    node.put_group("bad", with(one(fails()), rules)).await;
    let (mut hanging, mut runs) = (Vec::new(), Vec::new());
    for _ in 0..HANGING {
        let receiver = Receiver::start(Answer::Silence).await;
        runs.extend((0..4).map(|_| json!({"callback": receiver.url})));
        hanging.push(receiver);
    }
    let began = Instant::now();
    node.post("/v1/groups/g/runs/batch", json!({"runs": runs}))
        .await
        .expect_status(202);
    let called = || hanging.iter().map(|receiver| receiver.requests().len()).sum::<usize>();
    eventually("callbacks that hang", async || (called() >= OF_SUBMITTER).then_some(())).await;
    node.run("bad", json!({})).await;
    becomes(&node, "channel=hook", |item| item["state"] == "sent").await;
    let token = json!({"name": "other", "role": "operator"});
    let token = node.post("/v1/tokens", token).await.expect_status(201);
    let other = node.with_token(token["token"].as_str());
    let shared = format!("{}/good", hanging[0].url);
    for url in [&good.url, &shared] {
        other.run("g", json!({"callback": url})).await;
    }
    becomes(&node, "event=callback&state=sent", |item| {
        item["channel"] == format!("{}/…", good.url)
    })
    .await;
    eventually("the callback to the shared host", async || {
        let requests = hanging[0].requests();
        requests.iter().any(|request| request.path == "/good").then_some(())
    })
    .await;
    // None of those that hang had to end for that. (They end by themselves after 20 s, which a slow machine may need for this.)
    if began.elapsed() > Duration::from_secs(15) {
        return;
    }
    let callbacks = node
        .all("/v1/notifications?event=callback&state=pending&limit=500")
        .await;
    assert!(callbacks.iter().all(|item| item["attempts"] == 0), "{callbacks:#?}");
    assert_eq!(called(), OF_SUBMITTER + 1);
}

/// Tests of a channel that hangs leave places for tests of others.
#[tokio::test]
async fn tests_of_a_channel_that_hangs_delay_no_others() {
    /// As many as a node sends through a channel at once.
    const AT_ONCE: usize = 4;
    let (_world, node) = World::with_node().await;
    let (held, good) = (
        Receiver::start(Answer::Held).await,
        Receiver::start(Answer::Status(200)).await,
    );
    webhook(&node, "held", &held.url, json!({})).await;
    webhook(&node, "good", &good.url, json!({})).await;
    let tests = futures::future::join_all((0..16).map(|_| node.post("/v1/channels/held/test", json!({}))));
    let other = async {
        requests(&held, AT_ONCE).await;
        let told = node.post("/v1/channels/good/test", json!({})).await.expect_status(200);
        assert_eq!(told["state"], "sent", "{told:#}");
        let pending = node.all("/v1/notifications?channel=held").await;
        assert!(pending.iter().all(|item| item["state"] == "pending"), "{pending:#?}");
        assert_eq!(held.requests().len(), AT_ONCE);
        held.answers(Answer::Status(200));
    };
    let (tests, ()) = tokio::join!(tests, other);
    for test in tests {
        assert_eq!(test.expect_status(200)["state"], "sent");
    }
}

/// Who resends what is just being sent waits for nobody who waits for them.
#[tokio::test]
async fn resending_what_is_being_sent() {
    let (_world, node) = World::with_node().await;
    let receiver = Receiver::start(Answer::Status(503)).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    let told = node.post("/v1/channels/hook/test", json!({})).await.expect_status(200);
    let path = format!("/v1/notifications/{}/resend", id(&told));
    for _ in 0..10 {
        let resends = (0..8).map(|_| node.post(&path, json!({})));
        for reply in futures::future::join_all(resends).await {
            assert_eq!(reply.status, 200, "{:#}", reply.body);
        }
    }
    receiver.answers(Answer::Status(200));
    node.post(&path, json!({})).await.expect_status(200);
    becomes(&node, "channel=hook", |item| item["state"] == "sent").await;
    // A deadlock that Postgres had to end.
    assert!(!node.log().contains("cannot record"), "{}", node.log());
}

/// A resend during a try, through the node that sends and through another one: what the old address answers then ends nothing,
/// and the notification goes to the new one.
#[tokio::test]
async fn a_resend_during_a_try_is_sent_after_it() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    for (name, answer) in [("ok", 200), ("hopeless", 410), ("later", 503)] {
        let (old, new) = (
            Receiver::start(Answer::Held).await,
            Receiver::start(Answer::Status(200)).await,
        );
        webhook(&nodes[0], name, &old.url, json!({})).await;
        let rules = json!({"notify": {"on": ["failed"], "channels": [name]}});
        nodes[0].put_group(name, with(one(fails()), rules)).await;
        nodes[0].run(name, json!({})).await;
        requests(&old, 1).await;
        webhook(&nodes[0], name, &new.url, json!({})).await;
        let query = format!("channel={name}");
        let told = becomes(&nodes[0], &query, |_| true).await;
        for node in &nodes {
            let path = format!("/v1/notifications/{}/resend", id(&told));
            let again = node.post(&path, json!({})).await.expect_status(200);
            assert_eq!((&again["state"], &again["attempts"]), (&json!("pending"), &json!(0)));
        }
        old.answers(Answer::Status(answer));
        let sent = requests(&new, 1).await;
        assert_eq!(sent[0].header("webhook-id"), told["id"].as_str());
        let told = becomes(&nodes[0], &query, |item| item["state"] == "sent").await;
        assert_eq!(
            (&told["attempts"], &told["last_error"]),
            (&json!(1), &Value::Null),
            "{told:#}"
        );
        assert_eq!((old.requests().len(), new.requests().len()), (1, 1));
    }
}

/// Of an error, the status and the beginning of the body are shown, however long the body is, and however long it takes.
#[tokio::test]
async fn errors_are_shown_by_their_beginning() {
    let (_world, node) = World::with_node().await;
    let long = |bytes: usize| Answer::Json(500, format!("the cause {}", "x".repeat(bytes)));
    let receiver = Receiver::start(long(0)).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    for answer in [
        long(1_000),
        long(3_000),
        long(1_000_000),
        Answer::Drips(500, "the cause".into()),
    ] {
        receiver.answers(answer);
        let told = node.post("/v1/channels/hook/test", json!({})).await.expect_status(200);
        let error = told["last_error"].as_str().unwrap();
        assert!(error.starts_with("500 Internal Server Error: the cause"), "{error}");
        assert!(error.chars().count() < 350, "{error}");
    }
}
