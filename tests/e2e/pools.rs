//! Pools: slots that tasks take, across the cluster, whichever node dies.

use std::collections::BTreeMap;

use heddle_tests::{Answer, Api, Receiver, World, calls, eventually, seconds, states, task};
use serde_json::{Value, json};

use crate::with;

fn tasks(count: usize, seconds: f64, pools: Value) -> Value {
    let task = json!({"script": "sleep", "params": {"seconds": seconds}, "pools": pools, "max_lost": 50});
    let tasks: BTreeMap<String, Value> = (0..count).map(|n| (format!("t{n:02}"), task.clone())).collect();
    json!({"tasks": tasks})
}

async fn pool(api: &Api, name: &str, slots: u32) {
    let status = api
        .put(&format!("/v1/pools/{name}"), json!({"slots": slots}))
        .await
        .status;
    assert!([200, 201].contains(&status), "{status}");
}

/// The most attempts under way at once until these runs have ended, of what the database says.
async fn most_at_once(world: &World, api: &Api, runs: &[String]) -> i64 {
    let sql = world.sql().await;
    let mut most = 0;
    eventually("end of the runs", async || {
        // Attempts of a dead node count until they are taken from it. Finding out the items of a map takes no slot.
        let count: i64 = sql
            .query_one(
                "SELECT count(*) FROM heddle.running r
                   JOIN heddle.runs_live l ON l.id = r.run JOIN heddle.groups g ON g.id = l.group_id
                  WHERE g.name <> 'mapped' OR r.item >= 0",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        most = most.max(count);
        for run in runs {
            let state = api.run_now(run).await["state"].clone();
            if !["succeeded", "failed", "cancelled"].contains(&state.as_str().unwrap()) {
                return None;
            }
        }
        Some(())
    })
    .await;
    most
}

#[tokio::test]
async fn slots_bound_what_runs_at_once() {
    let (world, node) = World::with_node().await;
    pool(&node, "db", 2).await;
    pool(&node, "gpu", 1).await;
    node.put_group("one", tasks(8, 0.1, json!({"db": 1}))).await;
    node.put_group("both", tasks(4, 0.1, json!({"db": 1, "gpu": 1}))).await;
    node.put_group("wide", tasks(3, 0.1, json!({"db": 2}))).await;
    let mapped =
        json!({"tasks": {"m": {"script": "sleep", "params": {"seconds": 0.05}, "shards": 10, "pools": {"db": 1}}}});
    node.put_group("mapped", mapped).await;
    for (group, expect) in [("one", 2), ("both", 1), ("wide", 1), ("mapped", 2)] {
        let runs = [node.start(group, json!({})).await, node.start(group, json!({})).await];
        assert_eq!(most_at_once(&world, &node, &runs).await, expect, "{group}");
    }
    // Together they are served in turn, and none is forgotten.
    let mut runs = Vec::new();
    for group in ["wide", "one", "both", "mapped"] {
        runs.push(node.start(group, json!({})).await);
    }
    assert!(most_at_once(&world, &node, &runs).await <= 2);
    for run in &runs {
        assert_eq!(node.run_now(run).await["state"], "succeeded");
    }
    node.refused_group("none", tasks(1, 0.1, json!({"nothing": 1})))
        .await
        .expect_problem(422, &["/tasks/t00/pools/nothing"]);
    node.refused_group("much", tasks(1, 0.1, json!({"db": 3})))
        .await
        .expect_problem(422, &["/tasks/t00/pools/db"]);
}

#[tokio::test]
async fn slots_come_back() {
    let (_world, node) = World::with_node().await;
    pool(&node, "db", 1).await;
    node.put_group("long", tasks(3, 600.0, json!({"db": 1}))).await;
    node.put_group("short", tasks(1, 0.0, json!({"db": 1}))).await;
    node.put_group("flaky", {
        let retry = json!({"strategy": "fixed", "retries": 2, "interval": "10ms"});
        json!({"tasks": {"t": {"script": "flaky", "params": {"fail_times": 2}, "retry": retry, "pools": {"db": 1}}}})
    })
    .await;
    // Cancelled, whether running or waiting.
    let long = node.start("long", json!({})).await;
    node.task_becomes(&long, "t00", "running").await;
    let short = node.start("short", json!({})).await;
    assert_eq!(states(&node.run_now(&short).await), states(&node.run_now(&short).await));
    assert_eq!(task(&node.run_now(&short).await, "t00")["state"], "ready");
    node.post(&format!("/v1/runs/{long}/cancel"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(node.ended(&short).await["state"], "succeeded");
    // Paused while it waits, and resumed.
    let long = node.start("long", json!({})).await;
    node.task_becomes(&long, "t00", "running").await;
    let short = node.start("short", json!({})).await;
    node.post(&format!("/v1/runs/{short}/pause"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(task(&node.run_now(&short).await, "t00")["state"], "paused");
    node.post(&format!("/v1/runs/{short}/resume"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(task(&node.run_now(&short).await, "t00")["state"], "ready");
    // An override of what holds them, and of what waits for them.
    let reason = json!({"state": "succeeded", "reason": "test"});
    node.put(&format!("/v1/runs/{long}/tasks/t01/state"), reason.clone())
        .await
        .expect_status(200);
    node.put(&format!("/v1/runs/{long}/tasks/t02/state"), reason.clone())
        .await
        .expect_status(200);
    node.put(&format!("/v1/runs/{long}/tasks/t00/state"), reason)
        .await
        .expect_status(200);
    assert_eq!(node.ended(&short).await["state"], "succeeded");
    assert_eq!(node.ended(&long).await["state"], "succeeded");
    // Failures, one after the other.
    assert_eq!(node.run("flaky", json!({})).await["state"], "succeeded");
    // A pool without slots starts nothing, and one that grows does at once.
    pool(&node, "db", 0).await;
    let short = node.start("short", json!({})).await;
    assert_eq!(task(&node.run_now(&short).await, "t00")["state"], "ready");
    pool(&node, "db", 5).await;
    assert_eq!(node.ended(&short).await["state"], "succeeded");
    // A pool that is gone bounds nothing.
    let long = node.start("long", json!({})).await;
    // One that groups name stays.
    node.delete("/v1/pools/db")
        .await
        .expect_said(409, "is used by groups `flaky`, `long`, `short`");
    for name in ["flaky", "long", "short"] {
        node.put_group(name, crate::one(json!({"script": "hello"}))).await;
    }
    node.delete("/v1/pools/db").await.expect_status(204);
    node.task_becomes(&long, "t02", "running").await;
}

#[tokio::test]
async fn slots_are_the_clusters_and_outlive_nodes() {
    let world = World::new().await;
    let mut nodes = world.nodes(3).await;
    pool(&nodes[0], "db", 3).await;
    nodes[0].put_group("g", tasks(12, 0.2, json!({"db": 1}))).await;
    let mut runs = Vec::new();
    for node in &nodes {
        for _ in 0..3 {
            runs.push(node.start("g", json!({})).await);
        }
    }
    nodes[1].kill();
    nodes[2].kill();
    let most = most_at_once(&world, &nodes[0], &runs).await;
    assert_eq!(most, 3);
    for run in &runs {
        let run = nodes[0].run_now(run).await;
        assert_eq!(
            run["state"],
            "succeeded",
            "{}",
            with(run.clone(), json!({"tasks": null}))
        );
    }
}

/// Tasks of queues take slots like all others: from when workers may claim them until a worker has ended them.
#[tokio::test]
async fn tasks_of_queues_take_slots() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    pool(&nodes[0], "db", 2).await;
    let task = json!({"queue": "q", "pools": {"db": 1}, "params": {"n": 1}});
    let rendered = with(task.clone(), json!({"params": {"at": "{{ logical_time }}"}}));
    nodes[0]
        .put_group(
            "g",
            json!({"tasks": {"a": task, "b": task, "c": rendered, "d": rendered}}),
        )
        .await;
    let run = nodes[0].start("g", json!({})).await;
    let claim = async |max: usize, wait: &str| -> Vec<Value> {
        let asked = json!({"worker": "w", "max": max, "lease": "60s", "wait": wait});
        let answer = nodes[1].post("/v1/queues/q/claims", asked).await.expect_status(200);
        answer["items"].as_array().unwrap().clone()
    };
    let mut ended = Vec::new();
    let mut held: Vec<Value> = Vec::new();
    while ended.len() < 4 {
        // Two at most, however many are asked for, and both as soon as there are two.
        let wanted = 2.min(4 - ended.len());
        while held.len() < wanted {
            held.extend(claim(10, "20s").await);
            assert!(held.len() <= 2, "{held:#?}");
        }
        assert_eq!(claim(10, "0s").await, [] as [Value; 0]);
        let one = held.remove(0);
        let outcome = json!({"token": one["token"], "output": null});
        let path = format!("/v1/claims/{}/complete", one["id"].as_str().unwrap());
        nodes[0].post(&path, outcome).await.expect_status(200);
        ended.push(one["task"].as_str().unwrap().to_owned());
    }
    ended.sort();
    assert_eq!(ended, ["a", "b", "c", "d"]);
    assert_eq!(nodes[1].ended(&run).await["state"], "succeeded");
    // All slots are free again.
    let run = nodes[0].start("g", json!({})).await;
    let mut held = claim(10, "20s").await;
    while held.len() < 2 {
        held.extend(claim(10, "20s").await);
    }
    nodes[0]
        .post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
}

/// Two task runs of which each needs the only slot: one is under way, until `release` lets it end, and the other one waits for
/// the pool and begins after it.
async fn takes_turns(node: &Api, group: &str, release: impl AsyncFnOnce()) {
    let run = node.start(group, json!({})).await;
    eventually("a task run that waits for the pool", async || {
        let found = node.run_now(&run).await;
        let [a, b] = ["a", "b"].map(|name| task(&found, name));
        let (running, ready) = if a["state"] == "running" { (a, b) } else { (b, a) };
        assert_ne!(ready["state"], "running", "both have the only slot: {found:#}");
        (running["state"] == "running" && ready["waiting_for"]["reason"] == "pool").then_some(())
    })
    .await;
    release().await;
    let ended = node.ended(&run).await;
    assert_eq!(states(&ended), "a=succeeded b=succeeded", "{ended:#}");
    let mut both = ["a", "b"].map(|name| task(&ended, name));
    both.sort_by_key(|task| heddle_tests::time(&task["started_at"]));
    let between = seconds(&both[0]["finished_at"], &both[1]["started_at"]);
    assert!(
        between >= 0.0,
        "{between} s from the end of one to the start of the other: {ended:#}"
    );
}

/// Tasks that a node carries out without a script take slots, too: HTTP requests and SQL statements.
#[tokio::test]
async fn requests_and_statements_take_slots() {
    let world = World::new().await;
    let node = world.options().at_home().start().await;
    pool(&node, "db", 1).await;
    let two = |task: Value| {
        let task = with(task, json!({"pools": {"db": 1}}));
        json!({"tasks": {"a": task, "b": task}})
    };
    let receiver = Receiver::start(Answer::Held).await;
    node.put_group("requests", two(calls(&receiver))).await;
    takes_turns(&node, "requests", async || {
        eventually("the request", async || (!receiver.requests().is_empty()).then_some(())).await;
        assert_eq!(receiver.requests().len(), 1);
        receiver.answers(Answer::Status(200));
    })
    .await;
    assert_eq!(receiver.requests().len(), 2);

    let connection = json!({"url": world.url(), "groups": ["statements"]});
    node.put("/v1/connections/shop", connection).await.expect_status(201);
    // The statements wait for a lock of this test.
    let sql = world.sql().await;
    sql.batch_execute("SELECT pg_advisory_lock(4711)").await.unwrap();
    let statement = "select pg_advisory_xact_lock_shared(4711)::text as locked -- takes a slot";
    let query = json!({"query": {"connection": "shop", "sql": statement}});
    node.put_group("statements", two(query)).await;
    takes_turns(&node, "statements", async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                        WHERE query LIKE '%-- takes a slot%' AND wait_event_type = 'Lock' AND datname = current_database()";
        let count = async || sql.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0);
        eventually("the statement", async || (count().await > 0).then_some(())).await;
        assert_eq!(count().await, 1);
        sql.batch_execute("SELECT pg_advisory_unlock(4711)").await.unwrap();
    })
    .await;
}
