//! How many task runs one transaction gives to its node: a bounded number, and none that would overtake waiting ones.

use std::collections::BTreeMap;

use heddle_tests::{Node, World, seconds, task};
use serde_json::{Value, json};

use crate::notifications::metric;
use crate::{one, sleeps, with};

/// The task runs that a node's claims got: in all, the number of claims, and how many of these got 200 or fewer.
async fn claims(node: &Node) -> [u64; 3] {
    let text = node.get("/metrics").await.body;
    let text = text.as_str().expect("text");
    ["_sum", "_count", "_bucket{le=\"200\"}"].map(|part| {
        let name = format!("heddle_claimed_task_runs{part}");
        metric(text, &name).unwrap_or_else(|| panic!("{name} is missing"))
    })
}

/// A node knows of others as of its last heartbeat: waits for one of each after both are there.
async fn know_each_other(node: &Node) {
    let heartbeats = async || -> Vec<String> {
        let nodes = node.all("/v1/nodes").await;
        let at = |node: &Value| node["heartbeat_at"].as_str().expect("a time").to_owned();
        nodes.iter().map(at).collect()
    };
    let both = heartbeats().await;
    assert_eq!(both.len(), 2);
    let newest = both.into_iter().max().expect("a heartbeat");
    heddle_tests::eventually("a heartbeat of each", async || {
        heartbeats().await.iter().all(|at| *at > newest).then_some(())
    })
    .await;
}

/// Task runs that a schedule makes ready at one instant are not all taken by the node that happened to fire it: while
/// other nodes are alive, it takes at most 128 task runs with the transaction that makes them ready, and as many with
/// each claim. Any node may claim the others.
#[tokio::test]
async fn what_is_due_at_once_is_shared() {
    const TASKS: u64 = 800;
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    know_each_other(&nodes[0]).await;
    let tasks: BTreeMap<String, Value> = (0..TASKS).map(|n| (format!("t{n:03}"), sleeps(0.5))).collect();
    let schedules = json!({"s": {"once": {"delay": "1s"}}});
    nodes[0]
        .put_group("g", json!({"tasks": tasks, "schedules": schedules}))
        .await;
    let run = heddle_tests::eventually("the run of the schedule", async || {
        let runs = nodes[1].all("/v1/runs?group=g").await;
        runs.first().map(heddle_tests::id)
    })
    .await;
    let run = nodes[1].ended(&run).await;
    assert_eq!(run["state"], "succeeded");
    let mut claimed = 0;
    for node in &nodes {
        let [sum, count, small] = claims(node).await;
        assert_eq!(small, count, "a claim brought more than 200 task runs");
        claimed += sum;
    }
    assert!(
        (TASKS - 128..=TASKS).contains(&claimed),
        "{claimed} of {TASKS} task runs were claimed: one transaction took the others as it made them ready"
    );
}

async fn batch(node: &Node, group: &str, runs: Vec<Value>) -> Vec<String> {
    let reply = node
        .post(&format!("/v1/groups/{group}/runs/batch"), json!({"runs": runs}))
        .await
        .expect_status(202);
    let items = reply["items"].as_array().expect("items");
    items
        .iter()
        .map(|item| item["id"].as_str().expect("an id").to_owned())
        .collect()
}

/// While task runs wait for a free slot, no task run that becomes ready later overtakes them, whatever makes it ready:
/// a gate that lets runs through, a due retry, the end of a sub-run.
#[tokio::test]
async fn nothing_overtakes_what_has_waited() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_SLOTS", "2").start().await;
    node.put_group("first", one(sleeps(0.04))).await;
    let hello = one(json!({"script": "hello"}));
    // Its runs wait at a gate, which is checked after each submission.
    node.put_group("gated", with(hello.clone(), json!({"max_active_runs": 1_000})))
        .await;
    let first = batch(&node, "first", vec![json!({"priority": 5}); 150]).await;
    let mut later = Vec::new();
    for _ in 0..60 {
        later.push(node.start("gated", json!({})).await);
    }
    let started = async |runs: &[String]| {
        let mut times = Vec::new();
        for run in runs {
            let run = node.ended(run).await;
            times.push(task(&run, "t")["started_at"].clone());
        }
        times.sort_by(|one, other| one.as_str().cmp(&other.as_str()));
        times
    };
    let (first, later) = (started(&first).await, started(&later).await);
    let (last, next) = (first.last().unwrap(), &later[0]);
    assert!(
        seconds(last, next) >= 0.0,
        "a task run of lower priority that became ready later began {} s before the last of those that had waited",
        -seconds(last, next)
    );
}
