//! Topics whose batches workers of a queue send.

use heddle_tests::{Node, World, eventually};
use serde_json::{Value, json};

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
    let world = World::new().await;
    let node = world.node().await;
    let retry = json!({"strategy": "fixed", "retries": 2, "interval": "20ms"});
    put_topic(
        &node,
        "outgoing",
        json!({"queue": "senders", "granularity": "instant", "batch": 20, "retry": retry}),
    )
    .await;
    let messages: Vec<Value> = (0..30).map(|n| due_now(n, json!({"n": n}))).collect();
    let answer = send(&node, "outgoing", &messages).await;
    // Two runs of one moment stand in the queue in one order or the other.
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
