//! Nodes that die, freeze, drain and come back: every accepted run ends, no outcome twice. Each of these tests uses a
//! whole machine, and some measure how quickly nodes notice things.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use heddle_tests::{Answer, Node, Receiver, World, eventually, id, seconds, task};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{alone, calls, one, sleeps, with};

/// Task runs that have succeeded other than once, in the whole database.
const SUCCEEDED_OTHER_THAN_ONCE: &str = "
    SELECT d.id::text || ' ' || coalesce(a.task::text, '-') || '/' || coalesce(a.item::text, '-') || ': ' || count(a.run)
      FROM heddle.runs_done d
      LEFT JOIN heddle.attempts a ON a.run = d.id AND a.state = 1
     GROUP BY d.id, a.task, a.item
    HAVING count(a.run) <> 1";

async fn check_history(world: &World) {
    let sql = world.sql().await;
    let wrong: Vec<String> = sql
        .query(SUCCEEDED_OTHER_THAN_ONCE, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(wrong, Vec::<String>::new());
    for table in ["runs_live", "ready", "running", "timers", "settlements", "starts"] {
        let left: i64 = sql
            .query_one(&format!("SELECT count(*) FROM heddle.{table}"), &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(left, 0, "rows are left in {table}");
    }
}

/// Waits until nothing is under way.
async fn all_ended(world: &World) {
    let sql = world.sql().await;
    eventually("end of all runs", async || {
        let left: i64 = sql
            .query_one("SELECT count(*) FROM heddle.runs_live", &[])
            .await
            .unwrap()
            .get(0);
        (left == 0).then_some(())
    })
    .await;
}

/// A DAG with a bit of everything.
fn work() -> Value {
    json!({"tasks": {
        "first": sleeps(0.05),
        "map": with(json!({"script": "sum", "params": {"numbers": ["{{ item }}"]}}), json!({"shards": 3, "depends_on": ["first"]})),
        "side": with(sleeps(0.1), json!({"depends_on": ["first"]})),
        "last": {"script": "sum", "params": {"upstream": ["map"]}, "depends_on": ["map", "side"]},
    }})
}

/// Submits runs by key until it is told to stop; what was accepted is in the map. No answer means: maybe.
async fn submit_until(nodes: &[&heddle_tests::Api], client: usize, stop: &AtomicBool) -> BTreeMap<String, String> {
    let mut accepted = BTreeMap::new();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{client}-{n}");
        let node = nodes[(client + n) % nodes.len()];
        if let Some(reply) = node.try_post("/v1/groups/steady/runs", json!({"key": key})).await
            && reply.status == 202
        {
            accepted.insert(key, id(&reply.body));
        }
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    accepted
}

/// kill -9 of one of three nodes under load.
#[tokio::test]
async fn kill_one_of_three() {
    let _alone = alone().await;
    let world = World::new().await;
    let mut nodes = world.nodes(3).await;
    nodes[0].put_group("steady", work()).await;
    let apis: Vec<heddle_tests::Api> = nodes.iter().map(|node| node.api().clone()).collect();
    let apis: Vec<&heddle_tests::Api> = apis.iter().collect();
    let stop = AtomicBool::new(false);
    let sql = world.sql().await;
    let victim = nodes[2].node_id();
    let murder = async {
        // Once the victim holds work.
        let held = "SELECT count(*) FROM heddle.running r JOIN heddle.nodes n ON n.lease = r.lease WHERE n.id = $1::text::uuid";
        eventually("work in the victim's hands", async || {
            let held: i64 = sql.query_one(held, &[&victim]).await.unwrap().get(0);
            (held > 3).then_some(())
        })
        .await;
        nodes[2].kill();
        // The others continue under load for longer than the dead node's lease lasts.
        eventually("a lost attempt", async || {
            let lost: i64 = sql
                .query_one("SELECT count(*) FROM heddle.attempts WHERE state = 4", &[])
                .await
                .unwrap()
                .get(0);
            (lost > 0).then_some(())
        })
        .await;
        stop.store(true, Ordering::Relaxed);
    };
    let clients = futures::future::join_all((0..4).map(|client| submit_until(&apis, client, &stop)));
    let (accepted, ()) = tokio::join!(clients, murder);
    let accepted: BTreeMap<String, String> = accepted.into_iter().flatten().collect();
    assert!(accepted.len() > 50, "only {} runs were accepted", accepted.len());
    all_ended(&world).await;
    for (key, run) in &accepted {
        let found = nodes[0].run_now(run).await;
        assert_eq!(
            (&found["state"], &found["key"]),
            (&json!("succeeded"), &json!(key)),
            "{found:#}"
        );
        assert_eq!(task(&found, "last")["output"]["sum"], 12.0, "{found:#}");
    }
    let failed: i64 = sql
        .query_one("SELECT count(*) FROM heddle.runs_done WHERE state <> 3", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(failed, 0, "an attempt lost with its node uses up no retry");
    check_history(&world).await;
    let shown = nodes[0].get("/v1/nodes").await.expect_status(200);
    let states: BTreeMap<&str, &str> = shown["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|n| Some((n["id"].as_str()?, n["state"].as_str()?)))
        .collect();
    assert_eq!(states[victim.as_str()], "lost");
}

/// A node that was frozen beyond its lease and wakes up: fences refuse the zombie, and it becomes of use again.
#[tokio::test]
async fn fences_refuse_the_zombie() {
    let _alone = alone().await;
    let world = World::new().await;
    let zombie = world.node().await;
    zombie.put_group("target", one(json!({"script": "hello"}))).await;
    // Each writes state and asks for a run: what a late outcome would do twice.
    let spec = json!({
        "script": "stateful",
        // The first attempts end while the node is frozen, and not before.
        "params": {
            "key": "{{ run.key }}", "pause_ms": "{{ 5000 if run.attempt == 1 else 0 }}", "enqueue": {"group": "target"},
        },
    });
    zombie.put_group("g", one(spec)).await;
    let mut runs = Vec::new();
    for n in 0..10 {
        runs.push(zombie.start("g", json!({"key": format!("k{n}")})).await);
    }
    for run in &runs {
        zombie.task_becomes(run, "t", "running").await;
    }
    zombie.freeze();
    let other = world.node().await;
    for run in &runs {
        let found = other.ended(run).await;
        assert_eq!(found["state"], "succeeded", "{found:#}");
        assert_eq!(task(&found, "t")["node"], other.node_id());
    }
    zombie.thaw();
    // It wakes with ten unreported outcomes. Once it works again, it has tried to report them.
    let zombie_id = zombie.node_id();
    eventually("return of the zombie", async || {
        let nodes = other.get("/v1/nodes").await.expect_status(200);
        nodes["items"]
            .as_array()?
            .iter()
            .find(|node| node["id"] == *zombie_id && node["state"] == "active")
            .map(drop)
    })
    .await;
    zombie.put_group("light", one(json!({"script": "hello"}))).await;
    drop(other);
    eventually("work done by the former zombie", async || {
        let run = zombie.run("light", json!({})).await;
        (task(&run, "t")["node"] == *zombie_id).then_some(())
    })
    .await;
    for run in &runs {
        let attempts = zombie.attempts(run, "t").await;
        let states: Vec<&str> = attempts
            .iter()
            .filter_map(|attempt| attempt["state"].as_str())
            .collect();
        assert_eq!(states, ["lost", "succeeded"], "{attempts:#?}");
        let found = zombie.run_now(run).await;
        assert_eq!(task(&found, "t")["output"]["count"], 1, "the state was written twice");
    }
    all_ended(&world).await;
    assert_eq!(zombie.all("/v1/runs?group=target").await.len(), 10);
    check_history(&world).await;
}

/// Restart of the single node with 1,000 runs in flight: it takes its former self's work over at once.
#[tokio::test]
async fn restart_with_a_thousand_runs() {
    let _alone = alone().await;
    let world = World::new().await;
    let directory = world.directory().join("node");
    let options = world.options().data_dir(&directory);
    let mut node = options.start().await;
    node.put_group(
        "g",
        json!({"tasks": {"t": sleeps(3.0), "after": {"script": "hello", "depends_on": ["t"]}}}),
    )
    .await;
    let batch = json!({"runs": (0..1000).map(|n| json!({"key": n.to_string()})).collect::<Vec<_>>()});
    let reply = node.post("/v1/groups/g/runs/batch", batch).await.expect_status(202);
    assert_eq!(reply["accepted"], 1000);
    let sql = world.sql().await;
    eventually("many running attempts", async || {
        let running: i64 = sql
            .query_one("SELECT count(*) FROM heddle.running", &[])
            .await
            .unwrap()
            .get(0);
        (running >= 500).then_some(())
    })
    .await;
    node.kill();
    let start = Instant::now();
    let node = options.start().await;
    let up = start.elapsed();
    eventually("all taken over", async || {
        let query = "SELECT count(*) FROM heddle.running r WHERE r.lease <> (SELECT lease FROM heddle.nodes)";
        let old: i64 = sql.query_one(query, &[]).await.unwrap().get(0);
        (old == 0).then_some(())
    })
    .await;
    let taken = start.elapsed() - up;
    assert!(
        taken < Duration::from_secs(4),
        "taken over {taken:?} after the start: that is as if by another node"
    );
    all_ended(&world).await;
    let done: i64 = sql
        .query_one("SELECT count(*) FROM heddle.runs_done WHERE state = 3", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(done, 1000);
    check_history(&world).await;
    let lost: i64 = sql
        .query_one("SELECT count(*) FROM heddle.attempts WHERE state = 4", &[])
        .await
        .unwrap()
        .get(0);
    assert!(lost >= 500, "{lost} attempts were lost");
    assert_eq!(node.all("/v1/runs?group=g&state=succeeded&limit=500").await.len(), 1000);
}

/// What was accepted survives the death of every node, also right after the answer.
#[tokio::test]
async fn accepted_means_committed() {
    let _alone = alone().await;
    let world = World::new().await;
    let directory = world.directory().join("node");
    let options = world.options().data_dir(&directory);
    let mut node = options.start().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let mut accepted = Vec::new();
    for round in 0..3 {
        let posts = (0..40).map(|n| node.start("g", json!({"key": format!("{round}-{n}")})));
        accepted.extend(futures::future::join_all(posts).await);
        node.kill();
        node = options.start().await;
    }
    for run in &accepted {
        let found = node.ended(run).await;
        assert_eq!(found["state"], "succeeded", "{found:#}");
    }
    assert_eq!(accepted.len(), 120);
    check_history(&world).await;
}

/// SIGTERM: what is in hand ends, the rest goes to others, the process ends well.
#[tokio::test]
async fn graceful_drain() {
    let _alone = alone().await;
    let world = World::new().await;
    let options = world.options().at_home();
    let mut nodes = [options.start().await, options.start().await];
    let gate = Receiver::start(Answer::Held).await;
    nodes[0]
        .put_group(
            "g",
            json!({"tasks": {"t": calls(&gate), "after": {"script": "hello", "depends_on": ["t"]}}}),
        )
        .await;
    let mut runs = Vec::new();
    for _ in 0..20 {
        runs.push(nodes[1].start("g", json!({})).await);
    }
    for run in &runs {
        nodes[0].task_becomes(run, "t", "running").await;
    }
    nodes[1].terminate();
    eventually("a node that drains", async || {
        let ready = nodes[1].try_get("/readyz").await?;
        (ready.status == 503).then_some(())
    })
    .await;
    gate.answers(Answer::Json(200, "{}".into()));
    let status = nodes[1].end().await;
    assert!(status.success(), "{status}");
    for run in &runs {
        let found = nodes[0].ended(run).await;
        assert_eq!(found["state"], "succeeded", "{found:#}");
        assert_eq!(
            task(&found, "t")["attempt"],
            1,
            "an attempt was cut off by a graceful stop: {found:#}"
        );
        let gap = seconds(&task(&found, "t")["finished_at"], &task(&found, "after")["started_at"]);
        assert!(gap < 2.0, "nobody took over for {gap} s");
    }
    check_history(&world).await;
}

/// `max_lost` bounds how often a task run may take its node with it.
#[tokio::test]
async fn max_lost() {
    let _alone = alone().await;
    let world = World::new().await;
    let directory = world.directory().join("node");
    let options = world.options().data_dir(&directory);
    let mut node = options.start().await;
    node.put_group("g", one(with(sleeps(3600.0), json!({"max_lost": 1}))))
        .await;
    let run = node.start("g", json!({})).await;
    for attempt in 1..=2 {
        eventually("running attempt", async || {
            let found = node.run_now(&run).await;
            let found = task(&found, "t");
            (found["state"] == "running" && found["attempt"] == attempt).then_some(())
        })
        .await;
        node.kill();
        node = options.start().await;
    }
    let found = node.ended(&run).await;
    let failed = task(&found, "t");
    assert_eq!(
        (&found["state"], &failed["error"]["kind"]),
        (&json!("failed"), &json!("lost")),
        "{found:#}"
    );
    let attempts = node.attempts(&run, "t").await;
    assert_eq!(attempts.len(), 2);
    // The node came back each time with another lease: the attempts still name the node that had them.
    let is_lost_here = |attempt: &Value| attempt["state"] == "lost" && attempt["node"] == node.node_id();
    assert!(attempts.iter().all(is_lost_here), "{attempts:#?}");
    assert_eq!(failed["node"], node.node_id());
}

/// A control that reaches another node than the one that works interrupts all the same, within a second. Guests have
/// the lowest priority there is, so a machine that is busy with other tests may make one of them wait for the moment
/// in which it is stopped: the median counts.
#[tokio::test]
async fn controls_across_nodes() {
    let _alone = alone().await;
    let world = World::new().await;
    let worker = world.node().await;
    worker
        .put_group("g", one(json!({"script": "hostile", "params": {"mode": "spin"}})))
        .await;
    let mut took = Vec::new();
    for _ in 0..5 {
        let run = worker.start("g", json!({})).await;
        worker.task_becomes(&run, "t", "running").await;
        // One that has just come, of which the worker has not heard yet.
        let other: Node = world.node().await;
        let start = Instant::now();
        other
            .post(&format!("/v1/runs/{run}/cancel"), json!({}))
            .await
            .expect_status(200);
        eventually("idle worker", async || {
            let mut held = 0;
            for node in [&worker, &other] {
                let stats = node.get("/v1/stats").await.expect_status(200);
                held += stats["node"]["in_hand"].as_u64()?;
            }
            (held == 0).then_some(())
        })
        .await;
        took.push(start.elapsed());
    }
    took.sort();
    assert!(
        took[2] < Duration::from_secs(1),
        "wasm ran on after it was cancelled: {took:?}"
    );
}
