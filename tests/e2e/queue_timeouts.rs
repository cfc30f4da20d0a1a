//! `queue_timeout`: from `ready` to the claim, whatever an attempt waits for.

use heddle_tests::{Api, Node, World, eventually, id, seconds, task};
use serde_json::{Value, json};

use crate::dispatch::{complete, given, poll};
use crate::{one, sleeps, with};

async fn pool(api: &Api, name: &str) {
    api.put(&format!("/v1/pools/{name}"), json!({"slots": 1}))
        .await
        .expect_status(201);
}

/// A node, and a run that keeps the only slot of the pool `db`.
async fn with_a_full_pool() -> (World, Node, String) {
    let (world, node) = World::with_node().await;
    pool(&node, "db").await;
    node.put_group("long", one(with(sleeps(600.0), json!({"pools": {"db": 1}}))))
        .await;
    let holder = node.start("long", json!({})).await;
    node.task_becomes(&holder, "t", "running").await;
    (world, node, holder)
}

/// A run whose only task `t` has waited for too long: it failed for that, once, about then, and on its own.
async fn waited_too_long(api: &Api, run: &str, at_least: f64) -> Value {
    let ended = api.ended(run).await;
    assert_eq!(ended["state"], "failed", "{ended:#}");
    let error = &task(&ended, "t")["error"];
    assert_eq!(error["kind"], "timeout", "{ended:#}");
    assert!(
        error["message"].as_str().expect("a message").contains("queue_timeout"),
        "{ended:#}"
    );
    let attempts = api.attempts(run, "t").await;
    assert_eq!(attempts.len(), 1, "{attempts:#?}");
    assert_eq!(attempts[0]["state"], "timed_out", "{attempts:#?}");
    let lasted = seconds(&ended["created_at"], &ended["finished_at"]);
    assert!((at_least..30.0).contains(&lasted), "{lasted} s: {ended:#}");
    ended
}

/// Timers of this kind that are left.
async fn timers(world: &World) -> i64 {
    world
        .sql()
        .await
        .query_one("SELECT count(*) FROM heddle.timers WHERE kind = 3", &[])
        .await
        .expect("a count")
        .get(0)
}

/// Waiting for a pool counts, also for what goes to a worker afterwards.
#[tokio::test]
async fn slots_of_pools() {
    let (world, node, holder) = with_a_full_pool().await;
    let limited = json!({"pools": {"db": 1}, "queue_timeout": "400ms"});
    node.put_group("script", one(with(sleeps(0.0), limited.clone()))).await;
    node.put_group("queue", one(with(json!({"queue": "q"}), limited.clone())))
        .await;
    node.put_group("called", one(sleeps(0.0))).await;
    node.put_group("group", one(with(json!({"group": "called"}), limited.clone())))
        .await;
    node.put_group(
        "mapped",
        one(with(sleeps(0.0), with(limited.clone(), json!({"shards": 3})))),
    )
    .await;
    let mut runs = Vec::new();
    for group in ["script", "queue", "group"] {
        runs.push(node.start(group, json!({})).await);
    }
    let mapped = node.start("mapped", json!({})).await;
    for run in &runs {
        waited_too_long(&node, run, 0.4).await;
    }
    // Each item has its own time; finding them out takes no slot.
    let ended = node.ended(&mapped).await;
    let items = ended["tasks"].as_array().expect("task runs");
    let failed = items
        .iter()
        .filter(|one| one["item"].is_number() && one["error"]["kind"] == "timeout")
        .count();
    assert_eq!(failed, 3, "{ended:#}");
    // Retried as the policy says: the next attempt has its own time, and begins when the slot is free.
    let retry = json!({"retry": {"strategy": "fixed", "retries": 50, "interval": "1ms"}});
    node.put_group("again", one(with(sleeps(0.0), with(limited, retry))))
        .await;
    let again = node.start("again", json!({})).await;
    eventually("second attempt", async || {
        (task(&node.run_now(&again).await, "t")["attempt"].as_u64()? >= 2).then_some(())
    })
    .await;
    node.post(&format!("/v1/runs/{holder}/cancel"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(node.ended(&again).await["state"], "succeeded");
    eventually("no timer left", async || (timers(&world).await == 0).then_some(())).await;
}

/// The time of a task run that waits for a pool and then for a worker is one, from `ready` on.
#[tokio::test]
async fn from_a_pool_into_a_queue() {
    let (world, node, holder) = with_a_full_pool().await;
    node.put_group(
        "g",
        one(json!({"queue": "nobody", "pools": {"db": 1}, "queue_timeout": "4s"})),
    )
    .await;
    let run = node.start("g", json!({})).await;
    let sql = world.sql().await;
    let due = async || -> Option<chrono::DateTime<chrono::Utc>> {
        let row = sql
            .query_opt(
                "SELECT due_at FROM heddle.timers WHERE kind = 3
                 UNION ALL SELECT expires_at FROM heddle.queue_ready",
                &[],
            )
            .await
            .expect("a timer or a row");
        row.map(|row| row.get(0))
    };
    let before = eventually("timer", due).await;
    node.post(&format!("/v1/runs/{holder}/cancel"), json!({}))
        .await
        .expect_status(200);
    eventually("row in the queue", async || {
        let rows: i64 = sql
            .query_one("SELECT count(*) FROM heddle.queue_ready", &[])
            .await
            .expect("a count")
            .get(0);
        (rows == 1).then_some(())
    })
    .await;
    assert_eq!(due().await, Some(before));
    assert_eq!(timers(&world).await, 0);
    waited_too_long(&node, &run, 4.0).await;
}

/// A node without a free slot.
#[tokio::test]
async fn slots_of_nodes() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_SLOTS", "1").start().await;
    node.put_group("long", one(sleeps(600.0))).await;
    let holder = node.start("long", json!({})).await;
    node.task_becomes(&holder, "t", "running").await;
    node.put_group("g", one(with(sleeps(0.0), json!({"queue_timeout": "500ms"}))))
        .await;
    let run = node.start("g", json!({})).await;
    waited_too_long(&node, &run, 0.5).await;
    // What starts at once has no use for its time, and leaves nothing.
    node.post(&format!("/v1/runs/{holder}/cancel"), json!({}))
        .await
        .expect_status(200);
    node.put_group("hour", one(with(sleeps(0.0), json!({"queue_timeout": "1h"}))))
        .await;
    let done = node.run("hour", json!({})).await;
    assert_eq!(done["state"], "succeeded", "{done:#}");
    eventually("no timer left", async || (timers(&world).await == 0).then_some(())).await;
}

/// The time goes on while every node is dead, and another node ends what has waited for too long.
#[tokio::test]
async fn over_the_death_of_nodes() {
    let (world, mut node) = World::with_node().await;
    pool(&node, "db").await;
    // Held by an offer, the slot outlives the node.
    node.put_group("holds", one(json!({"audience": "uid_slow", "pools": {"db": 1}})))
        .await;
    let holder = node.start("holds", json!({})).await;
    eventually("assignment", async || given(&node, "slow").await).await;
    node.put_group(
        "g",
        one(with(sleeps(0.0), json!({"pools": {"db": 1}, "queue_timeout": "2s"}))),
    )
    .await;
    let run = node.start("g", json!({})).await;
    node.kill();
    let node = world.node().await;
    waited_too_long(&node, &run, 2.0).await;
    assert_eq!(task(&node.run_now(&holder).await, "t")["state"], "running");
}

/// A pause takes the time away, a resume gives a new one.
#[tokio::test]
async fn paused_meanwhile() {
    let (world, node, _holder) = with_a_full_pool().await;
    node.put_group(
        "g",
        one(with(
            sleeps(0.0),
            json!({"pools": {"db": 1}, "queue_timeout": "1500ms"}),
        )),
    )
    .await;
    let run = node.start("g", json!({})).await;
    node.post(&format!("/v1/runs/{run}/pause"), json!({}))
        .await
        .expect_status(200);
    eventually("end of its timer", async || (timers(&world).await == 0).then_some(())).await;
    assert_eq!(node.run_now(&run).await["state"], "paused");
    node.post(&format!("/v1/runs/{run}/resume"), json!({}))
        .await
        .expect_status(200);
    waited_too_long(&node, &run, 3.0).await;
}

/// An offer that nobody takes; one that is taken in time stands, however long its user needs.
#[tokio::test]
async fn audiences() {
    let (world, node) = World::with_node().await;
    let offered = |to: &str, limit: &str| one(json!({"audience": {"audience": to}, "queue_timeout": limit}));
    node.put_group("ignored", offered("uid_nobody", "500ms")).await;
    let run = node.start("ignored", json!({})).await;
    waited_too_long(&node, &run, 0.5).await;
    assert_eq!(poll(&node, "nobody").await.status, 204);
    node.put_group("taken", offered("uid_quick", "3s")).await;
    let run = node.start("taken", json!({})).await;
    let held = eventually("assignment", async || given(&node, "quick").await).await;
    eventually("end of its timer", async || (timers(&world).await == 0).then_some(())).await;
    assert_eq!(task(&node.run_now(&run).await, "t")["state"], "running");
    complete(&node, &held).await;
    let ended = node.ended(&run).await;
    assert_eq!(ended["state"], "succeeded", "{ended:#}");
    assert_eq!(id(&ended), run);
}
