//! Topics whose batches workers of a queue send.

use heddle_tests::{Node, World, eventually};
use serde_json::{Value, json};

use super::ingest::send_lines;
use super::{count, due_now, ended, put_topic, send};

async fn claim(node: &Node, lease: &str) -> Value {
    let body = json!({"worker": "w", "max": 1, "lease": lease, "wait": "20s"});
    eventually("a batch on the queue", async || {
        let answer = node
            .post("/v1/queues/senders/claims", body.clone())
            .await
            .expect_status(200);
        answer["items"].as_array().and_then(|items| items.first().cloned())
    })
    .await
}

fn ids(claim: &Value) -> Vec<String> {
    let messages = claim["params"]["messages"].as_array().expect("messages");
    messages
        .iter()
        .map(|message| message["id"].as_str().unwrap().to_owned())
        .collect()
}

async fn complete(node: &Node, claim: &Value, output: Value) {
    let path = format!("/v1/claims/{}/complete", claim["id"].as_str().unwrap());
    node.post(&path, json!({"token": claim["token"], "output": output}))
        .await
        .expect_status(200);
}

/// A worker is given the topic and its messages, and says which of them failed; those come again.
#[tokio::test]
async fn workers_send_batches() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 2, "interval": "20ms"});
    put_topic(
        &node,
        "outgoing",
        json!({"queue": "senders", "granularity": "instant", "batch": 20, "retry": retry}),
    )
    .await;
    let messages: Vec<Value> = (0..30).map(|n| due_now(n, json!({"n": n}))).collect();
    let answer = send(&node, "outgoing", &messages).await;
    // Two runs of one moment may be in the queue in either order.
    let (one, other) = (claim(&node, "30s").await, claim(&node, "30s").await);
    let (first, second) = if ids(&one).len() == 20 {
        (one, other)
    } else {
        (other, one)
    };
    assert_eq!(first["params"]["topic"], "outgoing");
    let message = &first["params"]["messages"][1];
    assert_eq!(
        (
            &message["id"],
            &message["sender"],
            &message["receiver"],
            &message["payload"]
        ),
        (&answer["ids"][1], &json!(1), &json!(2), &json!({"n": 1}))
    );
    assert_eq!(message["due"], "2013-07-01T00:00:00.000000Z");
    assert_eq!(ids(&first).len(), 20);
    let failed = ids(&first)[3].clone();
    complete(&node, &first, json!({"failed": [failed]})).await;
    assert_eq!(ids(&second).len(), 10);
    complete(&node, &second, json!(null)).await;
    let again = claim(&node, "30s").await;
    assert_eq!(ids(&again), [failed], "what failed comes again, alone");
    complete(&node, &again, json!({"failed": []})).await;
    ended(&node, "outgoing", 30).await;
    assert_eq!(count(&node, "outgoing", "sent").await, 30);
}

/// An unreadable answer of a worker is refused, and loses nothing: its messages do not count as sent, and the claim is
/// not over.
#[tokio::test]
async fn what_cannot_be_read_is_refused() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 2, "interval": "20ms"});
    let spec = json!({"queue": "senders", "granularity": "instant", "retry": retry});
    put_topic(&node, "outgoing", spec).await;
    send(&node, "outgoing", &[due_now(1, json!({})), due_now(2, json!({}))]).await;
    let held = claim(&node, "60s").await;
    let (one, other) = (ids(&held)[0].clone(), ids(&held)[1].clone());
    let path = format!("/v1/claims/{}/complete", held["id"].as_str().unwrap());
    for (output, pointer) in [
        (json!([one]), "/output"),
        (json!({"failed": true}), "/output/failed"),
        (json!({"failed": {&one: "why"}}), "/output/failed"),
        (json!({"failed": [{"id": one}]}), "/output/failed/0"),
        (json!({"failed": [one, held["id"]]}), "/output/failed/1"),
    ] {
        node.post(&path, json!({"token": held["token"], "output": output}))
            .await
            .expect_problem(422, &[pointer]);
    }
    let item = json!({"id": held["id"], "token": held["token"], "output": [one]});
    let many = node
        .post("/v1/claims/complete", json!({"items": [item]}))
        .await
        .expect_status(200);
    assert_eq!(many["items"][0]["status"], 422, "{many:#}");
    assert_eq!(count(&node, "outgoing", "sent").await, 0);
    complete(&node, &held, json!({"failed": [other]})).await;
    let again = claim(&node, "60s").await;
    assert_eq!(ids(&again), [other]);
    complete(&node, &again, json!("done")).await;
    ended(&node, "outgoing", 2).await;
    assert_eq!(count(&node, "outgoing", "sent").await, 2);
}

/// A batch whose end cannot be recorded keeps no other waiting, of its topic or of others. It is recorded when somebody has
/// repaired it.
#[tokio::test]
async fn a_batch_that_cannot_be_settled_holds_nobody_up() {
    let (world, node) = World::with_node().await;
    let spec = json!({"queue": "senders", "granularity": "instant", "batch": 1});
    for topic in ["first", "second"] {
        put_topic(&node, topic, spec.clone()).await;
    }
    let answer = send(&node, "first", &[due_now(1, json!({})), due_now(2, json!({}))]).await;
    send(&node, "second", &[due_now(3, json!({}))]).await;
    let mut claims = Vec::new();
    for _ in 0..3 {
        claims.push(claim(&node, "60s").await);
    }
    let sql = world.sql().await;
    let bad = answer["ids"][0].as_str().unwrap();
    let damage = "UPDATE heddle.message_batches SET retries = '1' WHERE ids = ARRAY[$1::text::uuid]";
    assert_eq!(sql.execute(damage, &[&bad]).await.unwrap(), 1);
    for claim in &claims {
        complete(&node, claim, json!(null)).await;
    }
    ended(&node, "second", 1).await;
    eventually("the other batch of the topic", async || {
        (count(&node, "first", "sent").await == 1).then_some(())
    })
    .await;
    let logged = async || node.log().contains("cannot record batches of messages").then_some(());
    eventually("a line in the log", logged).await;
    let repair = "UPDATE heddle.message_batches SET retries = NULL WHERE ids = ARRAY[$1::text::uuid]";
    assert_eq!(sql.execute(repair, &[&bad]).await.unwrap(), 1);
    ended(&node, "first", 2).await;
}

/// A worker that is lost, and a node that dies: the batch comes again, with the same ids, and is settled once.
#[tokio::test]
async fn workers_and_nodes_are_lost() {
    let world = World::new().await;
    let mut nodes = world.nodes(2).await;
    put_topic(
        &nodes[0],
        "outgoing",
        json!({"queue": "senders", "granularity": "instant"}),
    )
    .await;
    let messages: Vec<Value> = (0..10).map(|n| due_now(n, json!({}))).collect();
    send(&nodes[0], "outgoing", &messages).await;
    let lost = claim(&nodes[1], "200ms").await;
    let again = claim(&nodes[1], "60s").await;
    assert_eq!((ids(&again), &again["run"]), (ids(&lost), &lost["run"]));
    nodes[0].kill();
    complete(&nodes[1], &again, json!({"failed": [ids(&again)[0]]})).await;
    ended(&nodes[1], "outgoing", 10).await;
    let counts = (
        count(&nodes[1], "outgoing", "sent").await,
        count(&nodes[1], "outgoing", "failed").await,
    );
    assert_eq!(counts, (9, 1), "without retries, what failed is given up");
}

/// A batch fits into a run's params, whatever the payloads, however long they become when they are written out, and
/// although retries come from many batches. A message that fits into no run fails alone.
#[tokio::test]
async fn batches_are_cut_for_their_runs() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 3, "interval": "10ms"});
    let spec = json!({"queue": "senders", "granularity": "instant", "retry": retry, "max_payload": "128KiB"});
    put_topic(&node, "outgoing", spec).await;
    let due = "2013-07-01T00:00:00Z";
    let line = |n: i64, payload: &str| {
        let id = i64::MAX - n;
        format!("{{\"sender\":{id},\"receiver\":{id},\"due\":\"{due}\",\"payload\":{payload}}}\n")
    };
    let mut lines: String = (0..1_000)
        .map(|n| line(n, &format!("\"{}\"", "x".repeat(118))))
        .collect();
    let numbers = |count: usize| format!("[{}]", vec!["1e15"; count].join(","));
    lines.extend((0..30).map(|n| line(n, &numbers(1_500))));
    lines.extend((0..60).map(|n| line(n, &format!("\"{}\"", "y".repeat(8_000)))));
    lines.push_str(&line(0, &numbers(25_000)));
    let answer = send_lines(&node, "outgoing", lines).await.expect_status(200);
    assert_eq!(answer["accepted"], 1_091, "{answer:#}");
    // Everything fails once, and comes again.
    let mut tried: std::collections::HashMap<String, u32> = std::collections::HashMap::new();
    while tried.len() < 1_090 || tried.values().any(|times| *times < 2) {
        let claimed = claim(&node, "30s").await;
        let mut failed = Vec::new();
        for id in ids(&claimed) {
            let times = tried.entry(id.clone()).or_default();
            *times += 1;
            if *times == 1 {
                failed.push(id);
            }
        }
        complete(&node, &claimed, json!({"failed": failed})).await;
    }
    ended(&node, "outgoing", 1_091).await;
    let counts = (
        count(&node, "outgoing", "sent").await,
        count(&node, "outgoing", "failed").await,
    );
    assert_eq!(counts, (1_090, 1));
    let messages = node
        .all(&format!("/v1/topics/outgoing/messages?sender={}", i64::MAX))
        .await;
    let failed: Vec<&Value> = messages.iter().filter(|message| message["state"] == "failed").collect();
    assert_eq!(failed.len(), 1, "{failed:#?}");
    let said = failed[0]["error"].as_str().unwrap_or_default();
    assert!(said.contains("bytes"), "{said}");
}

/// A topic that goes to a script from now on: what workers have is theirs to end, and what they say still counts.
#[tokio::test]
async fn a_topic_leaves_its_queue() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "10ms"});
    let spec = |takes: &str, name: &str| json!({takes: name, "granularity": "instant", "retry": retry});
    put_topic(&node, "outgoing", spec("queue", "senders")).await;
    let messages: Vec<Value> = (0..3).map(|n| due_now(n, json!({}))).collect();
    send(&node, "outgoing", &messages).await;
    let held = claim(&node, "60s").await;
    put_topic(&node, "outgoing", spec("script", "postbox")).await;
    send(&node, "outgoing", &[due_now(7, json!({}))]).await;
    eventually("the script to have sent its own", async || {
        (count(&node, "outgoing", "sent").await == 1).then_some(())
    })
    .await;
    complete(&node, &held, json!({"failed": [ids(&held)[0]]})).await;
    ended(&node, "outgoing", 4).await;
    assert_eq!(
        count(&node, "outgoing", "sent").await,
        4,
        "what the worker failed, the script has sent"
    );
}

/// A topic that is deleted takes its batches with it: those that wait in the queue, and those that a worker has.
#[tokio::test]
async fn a_deleted_topic_leaves_nothing_in_its_queue() {
    let (_world, node) = World::with_node().await;
    let spec = json!({"queue": "senders", "granularity": "instant", "batch": 2});
    put_topic(&node, "outgoing", spec).await;
    let messages: Vec<Value> = (0..6).map(|n| due_now(n, json!({}))).collect();
    send(&node, "outgoing", &messages).await;
    let held = claim(&node, "60s").await;
    eventually("the other batches in the queue", async || {
        (node.get("/v1/queues/senders").await.body["depth"] == 2).then_some(())
    })
    .await;
    node.delete("/v1/topics/outgoing").await.expect_status(204);
    let body = json!({"worker": "w", "max": 10, "lease": "60s"});
    let answer = node.post("/v1/queues/senders/claims", body).await.expect_status(200);
    assert_eq!(answer["items"], json!([]), "{answer:#}");
    assert_eq!(node.ended(held["run"].as_str().unwrap()).await["state"], "cancelled");
    let cancelled = node.all("/v1/runs?state=cancelled").await;
    assert_eq!(cancelled.len(), 3, "{cancelled:#?}");
}

/// The state of a batch's task run is not set by hand, whether the batch waits, is in hand or has ended: only its worker
/// knows which messages were sent.
#[tokio::test]
async fn a_batch_is_not_set_by_hand() {
    let (_world, node) = World::with_node().await;
    let spec = json!({"queue": "senders", "granularity": "instant"});
    put_topic(&node, "outgoing", spec).await;
    send(&node, "outgoing", &[due_now(1, json!({})), due_now(2, json!({}))]).await;
    let run = eventually("the run of the batch", async || {
        node.all("/v1/runs")
            .await
            .first()
            .map(|run| run["id"].as_str().unwrap().to_owned())
    })
    .await;
    let refused = async || {
        let path = format!("/v1/runs/{run}/tasks/batch/state");
        for state in ["succeeded", "skipped", "failed"] {
            let set = json!({"state": state, "reason": "by hand"});
            node.put(&path, set)
                .await
                .expect_said(409, "only the worker knows which messages were sent");
        }
    };
    refused().await;
    let held = claim(&node, "60s").await;
    assert_eq!(held["run"], run);
    refused().await;
    assert_eq!(count(&node, "outgoing", "sent").await, 0);
    // The claim has not been revoked, and its worker says what became of the messages.
    complete(&node, &held, json!({"failed": [ids(&held)[0]]})).await;
    ended(&node, "outgoing", 2).await;
    refused().await;
    let counts = (
        count(&node, "outgoing", "sent").await,
        count(&node, "outgoing", "failed").await,
    );
    assert_eq!(counts, (1, 1));
    assert_eq!(node.ended(&run).await["state"], "succeeded");
}

/// The run of a batch does not run again, whoever wants it: its topic has recorded what became of the messages.
#[tokio::test]
async fn a_batch_runs_once() {
    let (_world, node) = World::with_node().await;
    let spec = json!({"queue": "senders", "granularity": "instant"});
    put_topic(&node, "outgoing", spec).await;
    send(&node, "outgoing", &[due_now(1, json!({})), due_now(2, json!({}))]).await;
    let held = claim(&node, "60s").await;
    let path = format!("/v1/claims/{}/fail", held["id"].as_str().unwrap());
    let body = json!({"token": held["token"], "error": "no line", "fatal": true});
    node.post(&path, body).await.expect_status(200);
    ended(&node, "outgoing", 2).await;
    let run = held["run"].as_str().unwrap();
    for again in ["restart", "rerun", "tasks/batch/retry", "tasks/batch/clear"] {
        node.post(&format!("/v1/runs/{run}/{again}"), json!({}))
            .await
            .expect_said(409, "the topic sends failed messages again by itself");
    }
    let group = format!("/v1/groups/{}/runs", held["group"].as_str().unwrap());
    node.post(&group, json!({"params": held["params"]}))
        .await
        .expect_said(409, "topic `outgoing`");
    for (action, dry_run) in [("restart", true), ("rerun", true), ("restart", false), ("rerun", false)] {
        let body = json!({"filter": {"state": "failed"}, "action": action, "dry_run": dry_run});
        let report = node.post("/v1/runs/bulk", body).await.expect_status(200);
        assert_eq!(
            (&report["matched"], &report["changed"]),
            (&json!(1), &json!(0)),
            "{report:#}"
        );
        assert_eq!(report["refused"][0]["id"], run, "{report:#}");
    }
    let set = json!({"state": "succeeded", "reason": "by hand"});
    node.put(&format!("/v1/runs/{run}/state"), set)
        .await
        .expect_said(409, "the topic sends failed messages again by itself");
    for bulk in [
        json!({"filter": {"state": "failed"}, "action": "clear", "task": "batch", "dry_run": true}),
        json!({"filter": {"state": "failed"}, "action": "state", "state": "succeeded", "reason": "by hand", "dry_run": true}),
    ] {
        let report = node.post("/v1/runs/bulk", bulk).await.expect_status(200);
        assert_eq!(report["refused"][0]["id"], run, "{report:#}");
    }
    assert_eq!(node.get("/v1/queues/senders").await.body["depth"], 0);
    assert_eq!(count(&node, "outgoing", "failed").await, 2);
}

/// If batches do not get into their queue, their topic says why; a PUT of the topic mends its group.
#[tokio::test]
async fn a_group_that_takes_no_batches() {
    let (world, node) = World::with_node().await;
    let spec = json!({"queue": "senders", "granularity": "instant"});
    put_topic(&node, "outgoing", spec.clone()).await;
    let disable = "UPDATE heddle.groups SET enabled = false";
    world.sql().await.batch_execute(disable).await.unwrap();
    send(&node, "outgoing", &[due_now(1, json!({}))]).await;
    eventually("a problem", async || {
        let found = node.get("/v1/topics/outgoing").await.expect_status(200);
        found["problem"]
            .as_str()
            .map(|problem| assert!(problem.contains("is disabled"), "{problem}"))
    })
    .await;
    put_topic(&node, "outgoing", spec).await;
    let held = claim(&node, "60s").await;
    assert_eq!(ids(&held).len(), 1);
}

/// What a worker says of a batch as a whole is true of each of its messages: they are tried again, or given up.
#[tokio::test]
async fn batches_fail() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 5, "interval": "10ms"});
    let spec = json!({"queue": "senders", "granularity": "instant", "retry": retry});
    put_topic(&node, "outgoing", spec).await;
    let answer = send(&node, "outgoing", &[due_now(1, json!({})), due_now(2, json!({}))]).await;
    for fatal in [false, true] {
        let held = claim(&node, "60s").await;
        assert_eq!(ids(&held).len(), 2);
        let path = format!("/v1/claims/{}/fail", held["id"].as_str().unwrap());
        let body = json!({"token": held["token"], "error": "no line", "fatal": fatal});
        node.post(&path, body).await.expect_status(200);
    }
    ended(&node, "outgoing", 2).await;
    assert_eq!(count(&node, "outgoing", "failed").await, 2);
    let path = format!("/v1/topics/outgoing/messages/{}", answer["ids"][0].as_str().unwrap());
    let found = node.get(&path).await.expect_status(200);
    assert_eq!(
        (&found["state"], &found["attempts"]),
        (&json!("failed"), &json!(2)),
        "{found:#}"
    );
    assert!(
        found["error"].as_str().unwrap_or_default().contains("no line"),
        "{found:#}"
    );
}

/// What is cancelled while its batch waits in the queue is not given to the worker who comes; a batch of which nothing is
/// left is given to nobody.
#[tokio::test]
async fn cancelled_in_the_queue() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 3, "interval": "10ms"});
    let spec = json!({"queue": "senders", "granularity": "instant", "batch": 4, "concurrency": 2, "retry": retry});
    put_topic(&node, "outgoing", spec).await;
    let messages: Vec<Value> = (0..8).map(|n| due_now(n, json!({}))).collect();
    let answer = send(&node, "outgoing", &messages).await;
    let id = |n: usize| answer["ids"][n].as_str().expect("an id").to_owned();
    eventually("two batches in the queue", async || {
        (node.get("/v1/queues/senders").await.body["depth"] == 2).then_some(())
    })
    .await;
    let cancel = async |filter: Value| {
        let path = "/v1/topics/outgoing/cancel";
        node.post(path, filter).await.expect_status(200)["cancelled"].clone()
    };
    assert_eq!(cancel(json!({"sender": 1})).await, 1);
    let second = format!("/v1/topics/outgoing/messages/{}", id(2));
    node.delete(&second).await.expect_status(204);
    node.delete(&second).await.expect_said(409, "already cancelled");
    for sender in 4..8 {
        assert_eq!(cancel(json!({"sender": sender})).await, 1);
    }
    // Of the second batch nothing is left: nobody has to come for it.
    eventually("one batch in the queue", async || {
        (node.get("/v1/queues/senders").await.body["depth"] == 1).then_some(())
    })
    .await;
    assert_eq!(count(&node, "outgoing", "cancelled").await, 6);
    let first = claim(&node, "200ms").await;
    assert_eq!(ids(&first), [id(0), id(3)]);
    // A worker has these in hand. It is lost; the next one is given the same, but for what was cancelled since.
    assert_eq!(cancel(json!({"receiver": 1})).await, 0);
    let again = claim(&node, "60s").await;
    assert_eq!((ids(&again), &again["run"]), (vec![id(3)], &first["run"]));
    // The run's params still contain what was cancelled, but this worker was not given it.
    let path = format!("/v1/claims/{}/complete", again["id"].as_str().unwrap());
    for cancelled in [0, 1] {
        let output = json!({"failed": [id(3), id(cancelled)]});
        node.post(&path, json!({"token": again["token"], "output": output}))
            .await
            .expect_problem(422, &["/output/failed/1"]);
    }
    // The lost worker learns that it is lost, and not that it was given something else.
    let path = format!("/v1/claims/{}/complete", first["id"].as_str().unwrap());
    node.post(&path, json!({"token": first["token"], "output": {"failed": [id(0)]}}))
        .await
        .expect_problem(409, &[]);
    complete(&node, &again, json!({"failed": [id(3)]})).await;
    let last = claim(&node, "60s").await;
    assert_eq!(ids(&last), [id(3)]);
    complete(&node, &last, json!(null)).await;
    ended(&node, "outgoing", 8).await;
    let counts = (
        count(&node, "outgoing", "sent").await,
        count(&node, "outgoing", "cancelled").await,
    );
    assert_eq!(counts, (1, 7));
    let states = node.all("/v1/topics/outgoing/messages").await;
    let states: Vec<&str> = states.iter().filter_map(|message| message["state"].as_str()).collect();
    assert_eq!(
        states.iter().filter(|state| **state == "cancelled").count(),
        7,
        "{states:?}"
    );
}

/// A day that is stopped while all of it waits in the queue is over at once, without a worker; messages that were tried
/// before are among them.
#[tokio::test]
async fn a_day_is_stopped_in_the_queue() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let retry = json!({"strategy": "fixed", "retries": 3, "interval": "10ms"});
    let spec = json!({"queue": "senders", "granularity": "instant", "batch": 4, "retry": retry});
    put_topic(&nodes[0], "outgoing", spec).await;
    let messages: Vec<Value> = (0..10).map(|n| due_now(n, json!({}))).collect();
    send(&nodes[0], "outgoing", &messages).await;
    let held = claim(&nodes[0], "60s").await;
    let failed = ids(&held);
    complete(&nodes[0], &held, json!({"failed": failed})).await;
    eventually("what failed, beside the rest, in the queue", async || {
        let days = nodes[0].all("/v1/topics/outgoing/days").await;
        (days[0]["in_hand"] == 10 && days[0]["retrying"] == 0).then_some(())
    })
    .await;
    // A batch is a node's until its run is known to carry it.
    eventually("all of it to be cancelled", async || {
        for day in nodes[1].all("/v1/topics/outgoing/days").await {
            let filter = json!({"day": day["day"]});
            nodes[1]
                .post("/v1/topics/outgoing/cancel", filter)
                .await
                .expect_status(200);
        }
        (count(&nodes[1], "outgoing", "cancelled").await == 10).then_some(())
    })
    .await;
    ended(&nodes[0], "outgoing", 10).await;
    eventually("an empty queue", async || {
        let queue = nodes[0].get("/v1/queues/senders").await.body;
        (queue["depth"] == 0 && queue["claimed"] == 0).then_some(())
    })
    .await;
}

/// Workers claim while messages are cancelled one by one, on two nodes: what a cancel answered 204 for is given to nobody,
/// and all that was given is sent; the counts say so.
#[tokio::test]
async fn cancels_and_claims_meet() {
    const MESSAGES: u64 = 60;
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let spec = json!({"queue": "senders", "granularity": "instant", "batch": 2, "concurrency": 100});
    put_topic(&nodes[0], "outgoing", spec).await;
    let messages: Vec<Value> = (0..MESSAGES).map(|n| due_now(n, json!({}))).collect();
    let answer = send(&nodes[0], "outgoing", &messages).await;
    let all: Vec<String> = answer["ids"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_str().unwrap().to_owned())
        .collect();
    eventually("batches in the queue", async || {
        (nodes[0].get("/v1/queues/senders").await.body["depth"].as_u64()? > 10).then_some(())
    })
    .await;
    let over = async |node: &Node| {
        let days = node.all("/v1/topics/outgoing/days").await;
        let of = |field: &str| days.iter().map(|day| day[field].as_u64().unwrap_or(0)).sum::<u64>();
        of("sent") + of("failed") + of("cancelled") == MESSAGES
    };
    let works = async |node: &Node| {
        let mut given = Vec::new();
        while !over(node).await {
            let body = json!({"worker": "w", "max": 3, "lease": "60s", "wait": "100ms"});
            let claims = node.post("/v1/queues/senders/claims", body).await.expect_status(200);
            for held in claims["items"].as_array().unwrap() {
                given.extend(ids(held));
                complete(node, held, json!(null)).await;
            }
        }
        given
    };
    let cancels = async |node: &Node, mine: usize| {
        let mut cancelled = Vec::new();
        for id in all.iter().skip(mine).step_by(3) {
            match node.delete(&format!("/v1/topics/outgoing/messages/{id}")).await.status {
                204 => cancelled.push(id.clone()),
                status => assert_eq!(status, 409),
            }
        }
        cancelled
    };
    let (given, more, cancelled, others) = tokio::join!(
        works(&nodes[0]),
        works(&nodes[1]),
        cancels(&nodes[0], 0),
        cancels(&nodes[1], 1)
    );
    let given: Vec<String> = given.into_iter().chain(more).collect();
    for id in cancelled.iter().chain(&others) {
        assert!(!given.contains(id), "{id} was cancelled, and given to a worker");
    }
    ended(&nodes[0], "outgoing", MESSAGES as i64).await;
    assert_eq!(count(&nodes[0], "outgoing", "sent").await, given.len() as i64);
    assert_eq!(count(&nodes[1], "outgoing", "failed").await, 0);
}
