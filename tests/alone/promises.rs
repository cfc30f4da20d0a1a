//! What is promised in seconds of scripts and of the API beside them.

use std::time::Duration;

use heddle_tests::{World, eventually, id, items_in, seconds, task, within};
use serde_json::json;
use tokio::time::Instant;

use crate::{alone, one};

/// A loop that never yields stops within 1 s of its timeout.
#[tokio::test]
async fn timeouts() {
    let _alone = alone().await;
    let (_world, node) = World::with_node().await;
    for (mode, timeout, seconds_most) in [("spin", "700ms", 1.7), ("sleep", "300ms", 1.3)] {
        let spec = json!({"script": "hostile", "params": {"mode": mode}, "timeout": timeout});
        node.put_group("g", one(spec)).await;
        let run = node.run("g", json!({})).await;
        let found = node.attempts(&id(&run), "t").await;
        assert_eq!(run["state"], "failed");
        assert_eq!(found[0]["state"], "timed_out", "{mode}");
        assert_eq!(found[0]["error"]["kind"], "timeout", "{mode}");
        let took = seconds(&found[0]["started_at"], &found[0]["finished_at"]);
        assert!(
            took <= seconds_most,
            "{mode} was stopped after {took} s, with a timeout of {timeout}"
        );
    }
}

/// While loops spin that never yield, the API answers and light scripts run.
#[tokio::test]
async fn hostile_beside_light() {
    let _alone = alone().await;
    let (_world, node) = World::with_node().await;
    let modes = [
        "spin",
        "spin",
        "spin",
        "spin",
        "spin",
        "spin",
        "memory",
        "recursion",
        "log_flood",
        "host_flood",
    ];
    let retry = json!({"strategy": "forever", "interval": "10ms"});
    node.put_group(
        "hostile",
        one(json!({
            "script": "hostile", "for_each": modes, "params": {"mode": "{{ item }}"}, "timeout": "10s", "retry": retry,
        })),
    )
    .await;
    node.put_group("light", one(json!({"script": "hello"}))).await;
    let bad = node.start("hostile", json!({})).await;
    node.task_becomes(&bad, "t", "running").await;
    eventually("items under way", async || {
        let found = node.run_now(&bad).await;
        (items_in(&found, "t", "running") >= 6).then_some(())
    })
    .await;
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let start = Instant::now();
        node.get("/v1/groups/light").await.expect_status(200);
        slowest = slowest.max(start.elapsed());
        let run = node.run("light", json!({})).await;
        assert_eq!(run["state"], "succeeded");
        let waited = seconds(&run["created_at"], &task(&run, "t")["started_at"]);
        assert!(waited < 1.0, "a light run waited for {waited} s beside hostile ones");
    }
    assert!(
        slowest < Duration::from_secs(1),
        "the API took {slowest:?} beside spinning scripts"
    );
    node.post(&format!("/v1/runs/{bad}/cancel"), json!({}))
        .await
        .expect_status(200);
}

/// Cancelling interrupts running wasm within a second, and ends a statement on its server within two.
#[tokio::test]
async fn what_is_cancelled_stops_within_a_second() {
    let _alone = alone().await;
    let (world, node) = World::with_node().await;
    let hostile = |mode: &str| json!({"script": "hostile", "params": {"mode": mode}});
    node.put("/v1/connections/own", json!({"url": world.url(), "groups": ["g"]}))
        .await
        .expect_status(201);
    let query = json!({"connection": "own", "sql": "select pg_sleep(600)::text as slept -- patience"});
    let tasks = json!({"spin": hostile("spin"), "sleep": hostile("sleep"), "asks": {"query": query}});
    node.put_group("g", json!({"tasks": tasks})).await;
    let sql = world.sql().await;
    let at_work = async || {
        let statements = "SELECT FROM pg_stat_activity
                           WHERE state = 'active' AND query LIKE '%-- patience' AND pid <> pg_backend_pid()";
        sql.query(statements, &[]).await.expect("sessions").len()
    };
    let run = node.start("g", json!({})).await;
    node.task_becomes(&run, "spin", "running").await;
    node.task_becomes(&run, "sleep", "running").await;
    eventually("the statement's beginning", async || {
        (at_work().await == 1).then_some(())
    })
    .await;
    let since = Instant::now();
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    // The node counts what it still has in hand.
    within(Duration::from_secs(1), "idle node", async || {
        let stats = node.get("/v1/stats").await.expect_status(200);
        (stats["node"]["in_hand"] == 0).then_some(())
    })
    .await;
    eventually("the statement's end", async || (at_work().await == 0).then_some(())).await;
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
}

/// A change made on one node is followed by all within 2 s: of a group, of a token.
#[tokio::test]
async fn changes_reach_all_nodes_within_two_seconds() {
    let _alone = alone().await;
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    for round in 0..3 {
        let name = format!("round {round}");
        nodes[0]
            .put_group("g", one(json!({"script": "hello", "params": {"name": name}})))
            .await;
        let wanted = format!("Hello, {name}!");
        within(Duration::from_secs(3), "change on the other node", async || {
            let there = nodes[1].run("g", json!({})).await;
            (task(&there, "t")["output"]["greeting"] == *wanted).then_some(())
        })
        .await;
        let made = nodes[0]
            .post("/v1/tokens", json!({"name": "x", "role": "viewer"}))
            .await
            .expect_status(201);
        let token = made["token"].as_str();
        nodes[1].with_token(token).get("/v1/groups").await.expect_status(200);
        nodes[0].delete("/v1/tokens/x").await.expect_status(204);
        assert_eq!(nodes[0].with_token(token).get("/v1/groups").await.status, 401);
        within(Duration::from_secs(2), "revocation on the other node", async || {
            (nodes[1].with_token(token).get("/v1/groups").await.status == 401).then_some(())
        })
        .await;
    }
}
