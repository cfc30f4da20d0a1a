//! Whose clock it is that decides, and what a node does that cannot ask it: the database's, and nothing.

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use heddle_tests::{Api, NodeOptions, Wire, World, eventually, runs, task, time};
use serde_json::json;

use crate::{beside, one, sleeps, with};

/// How far nodes' own clocks are off, in milliseconds: an hour.
const SKEW_MS: i64 = 3_600_000;

async fn states(api: &Api) -> Vec<String> {
    let nodes = api.get("/v1/nodes").await.expect_status(200);
    let mut states: Vec<String> = nodes["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["state"].as_str().unwrap().to_owned())
        .collect();
    states.sort();
    states
}

/// One node's clock is an hour fast, another's an hour slow: schedules fire when the database says so, once, and nobody
/// takes the others' leases for dead ones.
#[tokio::test]
async fn nodes_whose_clocks_differ_agree() {
    let _beside = beside().await;
    let world = World::new().await;
    let skewed = |ms: i64| world.options().env("HEDDLE_CLOCK_SKEW_MS", &ms.to_string());
    let nodes = [skewed(SKEW_MS).start().await, skewed(-SKEW_MS).start().await];
    let before = world.now().await;
    // Longer than a lease: who believed a wrong clock would take it away.
    nodes[0].put_group("long", one(sleeps(12.0))).await;
    let long = [
        nodes[0].start("long", json!({})).await,
        nodes[1].start("long", json!({})).await,
    ];
    let from = world.now().await + TimeDelta::seconds(4);
    let text = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Micros, true);
    nodes[1]
        .put_group(
            "g",
            with(
                one(json!({"script": "hello"})),
                json!({"overlap": "allow", "schedules": {"s": {
                    "every": "250ms", "anchor": text(from), "starts_at": text(from),
                    "ends_at": text(from + TimeDelta::seconds(10)),
                }}}),
            ),
        )
        .await;
    // A delay counts from the change, by the same clock.
    let once = with(
        one(json!({"script": "hello"})),
        json!({"schedules": {"s": {"once": {"delay": "1s"}}}}),
    );
    nodes[0].put_group("fast", once.clone()).await;
    nodes[1].put_group("slow", once).await;
    // So does a retry's interval.
    let flaky = json!({"script": "flaky", "params": {"fail_times": 1}, "retry": {"strategy": "fixed", "retries": 1, "interval": "1s"}});
    nodes[0].put_group("retries", one(flaky)).await;
    let retried = [
        nodes[0].start("retries", json!({})).await,
        nodes[1].start("retries", json!({})).await,
    ];
    let all = eventually("40 ended runs", async || {
        let all = runs(&nodes[0], "g").await;
        (all.len() >= 40 && all.iter().all(|run| run["state"] == "succeeded")).then_some(all)
    })
    .await;
    let expect: Vec<DateTime<Utc>> = (0..40).map(|n| from + TimeDelta::milliseconds(250 * n)).collect();
    let found: Vec<DateTime<Utc>> = all.iter().map(|run| time(&run["logical_time"])).collect();
    assert_eq!(found, expect);
    for group in ["fast", "slow"] {
        eventually("the one run", async || runs(&nodes[0], group).await.pop()).await;
    }
    for run in retried {
        let run = nodes[1].ended(&run).await;
        assert_eq!(
            (&run["state"], &task(&run, "t")["attempt"]),
            (&json!("succeeded"), &json!(2))
        );
    }
    for run in long {
        let run = nodes[0].ended(&run).await;
        assert_eq!(
            (&run["state"], &task(&run, "t")["attempt"]),
            (&json!("succeeded"), &json!(1)),
            "{run:#}"
        );
    }
    assert_eq!(states(&nodes[1]).await, ["active", "active"]);
    // Stored times are the database's too: a node's own would be an hour off.
    let (from, until) = (
        before - TimeDelta::minutes(5),
        world.now().await + TimeDelta::minutes(5),
    );
    for group in ["g", "fast", "slow", "long", "retries"] {
        for run in runs(&nodes[0], group).await {
            for field in ["created_at", "started_at", "finished_at"] {
                let at = time(&run[field]);
                assert!(from < at && at < until, "{group}: {field} {at}, it is {until}: {run:#}");
            }
        }
    }
}

/// A node that is cut off from Postgres claims nothing, fires nothing, and stops what it has in hand. What it sent
/// before it noticed arrives late, and changes nothing.
#[tokio::test]
async fn a_node_that_is_cut_off_fences_itself() {
    let _beside = beside().await;
    let world = World::new().await;
    let wire = Wire::new(world.url()).await;
    let cut_off = NodeOptions::new(wire.url()).start().await;
    cut_off
        .put_group(
            "g",
            json!({"overlap": "allow", "tasks": {
                // Ends while the node does not know yet, so its outcome is on its way when the lease ends.
                "counts": {"script": "stateful", "params": {"pause_ms": 4_000}},
                // Would go on for ever if nobody stopped it.
                "long": with(sleeps(3_600.0), json!({"max_lost": 0})),
            }}),
        )
        .await;
    let run = cut_off.start("g", json!({})).await;
    cut_off.task_becomes(&run, "counts", "running").await;
    cut_off.task_becomes(&run, "long", "running").await;
    let other = world.node().await;
    other
        .put_group(
            "timed",
            with(
                one(json!({"script": "hello"})),
                json!({"overlap": "allow", "schedules": {"s": {"every": "500ms"}}}),
            ),
        )
        .await;
    wire.cut();
    // Its database is away, and it says so; that it fenced itself it says in its log.
    eventually("a fence", async || {
        cut_off.log().contains("has lost its lease").then_some(())
    })
    .await;
    let node = cut_off.node_id();
    let found = eventually("takeover", async || {
        let found = other.run_now(&run).await;
        (task(&found, "counts")["state"] == "succeeded" && task(&found, "long")["state"] == "failed").then_some(found)
    })
    .await;
    assert_eq!(task(&found, "long")["error"]["kind"], "lost", "{found:#}");
    // All goes on without it.
    let seen = runs(&other, "timed").await.len();
    eventually("more runs", async || {
        (runs(&other, "timed").await.len() > seen + 3).then_some(())
    })
    .await;
    wire.mend();
    eventually("its return", async || {
        let nodes = other.get("/v1/nodes").await.expect_status(200);
        let back = nodes["items"].as_array()?.iter().find(|one| one["id"] == *node)?;
        (back["state"] == "active").then_some(())
    })
    .await;
    eventually("an answer", async || {
        cut_off
            .try_get("/readyz")
            .await
            .filter(|reply| reply.status == 200)
            .map(drop)
    })
    .await;
    // It does new work. (The other one has to go for that: it would take it all.)
    drop(other);
    let after = cut_off
        .run(
            "g",
            json!({"task_params": {"long": {"seconds": 0.0}, "counts": {"pause_ms": 0}}}),
        )
        .await;
    assert_eq!(after["state"], "succeeded", "{after:#}");
    // The late outcome of the first attempt is nowhere: one was lost, one succeeded, and the counter says so.
    let attempts = cut_off.attempts(&run, "counts").await;
    let states: Vec<&str> = attempts
        .iter()
        .filter_map(|attempt| attempt["state"].as_str())
        .collect();
    assert_eq!(states, ["lost", "succeeded"], "{attempts:#?}");
    assert_eq!(
        (&attempts[0]["node"], attempts[1]["node"] == *node),
        (&json!(node), false)
    );
    assert_eq!(task(&cut_off.run_now(&run).await, "counts")["output"]["count"], 1);
    assert_eq!(task(&after, "counts")["output"]["count"], 2, "{after:#}");
    // No instant was made twice.
    let mut instants: Vec<DateTime<Utc>> = runs(&cut_off, "timed")
        .await
        .iter()
        .map(|run| time(&run["logical_time"]))
        .collect();
    let count = instants.len();
    instants.dedup();
    assert_eq!(instants.len(), count);
}
