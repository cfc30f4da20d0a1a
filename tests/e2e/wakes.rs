//! Wake-ups between nodes that fail: what they announce comes a little later, and nothing is refused because of them.

use heddle_tests::{World, eventually, id};
use serde_json::json;

use crate::one;

/// The server's queue of notifications is full, because some session listens and does not go on. (The real server refuses the
/// commit of the notification; here, its statement is refused.)
async fn with_full_queue() -> World {
    let world = World::new().await;
    world
        .sql()
        .await
        .batch_execute(
            "ALTER FUNCTION pg_catalog.pg_notify(text, text) RENAME TO real_notify;
             CREATE FUNCTION pg_catalog.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$
             BEGIN
                 RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000';
             END
             $$",
        )
        .await
        .unwrap();
    world
}

/// Changes are accepted all the same, and other nodes find them.
#[tokio::test]
async fn a_full_queue_of_notifications_refuses_no_change() {
    let world = with_full_queue().await;
    let nodes = world.nodes(2).await;
    nodes[0].put_group("g", one(json!({"script": "hello"}))).await;
    assert_eq!(nodes[1].run("g", json!({})).await["state"], "succeeded");
    // The other node knows the group by now, and learns of its new task.
    let changed = json!({"tasks": {"t": {"script": "hello"}, "u": {"script": "hello"}}});
    nodes[0].put_group("g", changed).await;
    eventually("a run with both tasks", async || {
        let run = nodes[1].run("g", json!({})).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        run["tasks"]
            .as_array()
            .is_some_and(|tasks| tasks.len() == 2)
            .then_some(())
    })
    .await;
    let log = nodes[0].log();
    assert_eq!(log.matches("other nodes were not told of a change").count(), 1, "{log}");
}

/// Ended runs go on all the same, by a restart, a clear, or an override of one of their task runs.
#[tokio::test]
async fn a_full_queue_of_notifications_refuses_no_ended_run() {
    let world = with_full_queue().await;
    let nodes = world.nodes(2).await;
    nodes[0].put_group("g", one(json!({"script": "flaky"}))).await;
    let fails = async || {
        let failed = nodes[0].run("g", json!({})).await;
        assert_eq!(failed["state"], "failed", "{failed:#}");
        id(&failed)
    };
    let run = fails().await;
    for (node, control) in [(&nodes[0], "restart"), (&nodes[1], "tasks/t/clear")] {
        let path = format!("/v1/runs/{run}/{control}");
        node.post(&path, json!({})).await.expect_status(200);
        assert_eq!(node.ended(&run).await["state"], "succeeded", "{control}");
    }
    let path = format!("/v1/runs/{}/tasks/t/state", fails().await);
    let body = json!({"state": "succeeded", "reason": "by a test"});
    nodes[0].put(&path, body).await.expect_status(200);
    for node in &nodes {
        let log = node.log();
        assert_eq!(
            log.matches("other nodes were not told that runs go on").count(),
            1,
            "{log}"
        );
    }
}
