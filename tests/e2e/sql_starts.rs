//! Runs that SQL submits, and that people control before a node begins them.

use heddle_tests::{Node, World, eventually, states};
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::events::lines;
use crate::{one, sleeps, with};

async fn control(node: &Node, run: &str, action: &str) -> Value {
    node.post(&format!("/v1/runs/{run}/{action}"), json!({}))
        .await
        .expect_status(200)
}

/// Submits a run that no node begins: the row that tells them of it is missing, as if all were slow.
async fn submit(sql: &mut Client, group: &str) -> String {
    let transaction = sql.transaction().await.unwrap();
    let submitted = "SELECT heddle.submit($1)::text";
    let run: String = transaction.query_one(submitted, &[&group]).await.unwrap().get(0);
    let hide = "DELETE FROM heddle.starts WHERE run = $1::text::uuid";
    assert_eq!(transaction.execute(hide, &[&run]).await.unwrap(), 1);
    transaction.commit().await.unwrap();
    run
}

/// A node takes that row after all.
async fn taken(sql: &Client, run: &str) {
    let show = "INSERT INTO heddle.starts (run) VALUES ($1::text::uuid)";
    sql.execute(show, &[&run]).await.unwrap();
    eventually("a node that takes the row", async || {
        let left = sql.query("SELECT FROM heddle.starts", &[]).await.unwrap();
        left.is_empty().then_some(())
    })
    .await;
}

/// How often the feed says that a run has begun.
async fn begins(node: &Node, run: &str) -> usize {
    let events = lines(node, "kinds=run.started").await;
    events.iter().filter(|event| event["run"] == run).count()
}

/// A run that is paused before a node begins it begins when it is resumed, whether a node finds it in between or never.
/// It has what its group adds to every run.
#[tokio::test]
async fn paused() {
    let (world, node) = World::with_node().await;
    let adds = json!({"labels": {"team": "x"}, "deadline": "1h"});
    node.put_group("g", with(one(json!({"script": "echo"})), adds)).await;
    let mut sql = world.sql().await;
    for found in [true, false] {
        let run = submit(&mut sql, "g").await;
        let paused = control(&node, &run, "pause").await;
        assert_eq!(
            (&paused["state"], &paused["started_at"]),
            (&json!("paused"), &Value::Null)
        );
        assert_eq!(paused["labels"], json!({"team": "x"}), "{paused:#}");
        assert!(paused["scripts"]["t"].is_string(), "{paused:#}");
        if found {
            taken(&sql, &run).await;
        }
        let still = node.run_now(&run).await;
        assert_eq!(
            (&still["state"], &still["started_at"]),
            (&json!("paused"), &Value::Null)
        );
        assert_eq!(begins(&node, &run).await, 0);
        control(&node, &run, "resume").await;
        let ended = node.ended(&run).await;
        assert_eq!(ended["state"], "succeeded", "{ended:#}");
        assert_eq!(ended["scripts"], paused["scripts"]);
        assert_eq!(begins(&node, &run).await, 1);
    }
    // Many at once; and resumed before a node finds them.
    let runs = [submit(&mut sql, "g").await, submit(&mut sql, "g").await];
    let bulk = json!({"filter": {"group": "g", "state": "waiting"}, "action": "pause"});
    let report = node.post("/v1/runs/bulk", bulk).await.expect_status(200);
    assert_eq!(report["changed"], 2, "{report:#}");
    for run in &runs {
        assert_eq!(node.run_now(run).await["labels"], json!({"team": "x"}));
        control(&node, run, "resume").await;
        taken(&sql, run).await;
        assert_eq!(node.ended(run).await["state"], "succeeded");
        assert_eq!(begins(&node, run).await, 1);
    }
    // One that an older node has left behind: paused, and complete in nothing.
    let run = submit(&mut sql, "g").await;
    let left = "UPDATE heddle.runs_live SET state = 2 WHERE id = $1::text::uuid";
    assert_eq!(sql.execute(left, &[&run]).await.unwrap(), 1);
    control(&node, &run, "resume").await;
    let ended = node.ended(&run).await;
    assert_eq!(
        (&ended["state"], &ended["labels"]),
        (&json!("succeeded"), &json!({"team": "x"}))
    );
}

/// Resumed, it waits for its turn as every run of its group.
#[tokio::test]
async fn paused_before_a_gate() {
    let (world, node) = World::with_node().await;
    let bound = json!({"max_active_runs": 1});
    node.put_group("turns", with(one(sleeps(3_600.0)), bound)).await;
    let mut sql = world.sql().await;
    for found in [true, false] {
        let first = node.start("turns", json!({})).await;
        node.task_becomes(&first, "t", "running").await;
        let run = submit(&mut sql, "turns").await;
        control(&node, &run, "pause").await;
        if found {
            taken(&sql, &run).await;
        }
        let resumed = control(&node, &run, "resume").await;
        assert_eq!(resumed["state"], "waiting", "{resumed:#}");
        if !found {
            taken(&sql, &run).await;
        }
        let waits = node.run_now(&run).await;
        assert_eq!(
            (&waits["state"], &waits["started_at"]),
            (&json!("waiting"), &Value::Null)
        );
        assert_ne!(waits["waiting_for"], json!([]), "{waits:#}");
        control(&node, &first, "cancel").await;
        node.task_becomes(&run, "t", "running").await;
        control(&node, &run, "cancel").await;
        node.ended(&run).await;
    }
}

/// What people set before a node begins it stays.
#[tokio::test]
async fn set_by_hand() {
    let (world, node) = World::with_node().await;
    let echo = json!({"script": "echo"});
    let after = with(echo.clone(), json!({"depends_on": ["a"]}));
    node.put_group("g", json!({"tasks": {"a": echo, "b": after}})).await;
    let mut sql = world.sql().await;
    for pauses in [false, true] {
        let run = submit(&mut sql, "g").await;
        if pauses {
            control(&node, &run, "pause").await;
        }
        let by_hand = json!({"state": "succeeded", "reason": "done elsewhere"});
        node.put(&format!("/v1/runs/{run}/tasks/a/state"), by_hand)
            .await
            .expect_status(200);
        taken(&sql, &run).await;
        if pauses {
            control(&node, &run, "resume").await;
        }
        let ended = node.ended(&run).await;
        assert_eq!(states(&ended), "a=succeeded b=succeeded");
        assert!(node.attempts(&run, "a").await.is_empty());
    }
}

/// Cancelled before a node begins it, it can be restarted, and begins then; also one that an older node cancelled.
#[tokio::test]
async fn cancelled() {
    let (world, node) = World::with_node().await;
    let adds = json!({"labels": {"team": "x"}, "deadline": "1h"});
    node.put_group("g", with(one(json!({"script": "echo"})), adds)).await;
    let mut sql = world.sql().await;
    for found in [true, false] {
        let run = submit(&mut sql, "g").await;
        let cancelled = control(&node, &run, "cancel").await;
        assert_eq!(
            (&cancelled["state"], &cancelled["started_at"]),
            (&json!("cancelled"), &Value::Null)
        );
        assert_eq!(cancelled["labels"], json!({"team": "x"}));
        let timers = "SELECT FROM heddle.timers WHERE run = $1::text::uuid";
        assert!(
            sql.query(timers, &[&run]).await.unwrap().is_empty(),
            "a deadline is left"
        );
        if found {
            taken(&sql, &run).await;
        } else {
            let old = "UPDATE heddle.runs_done SET resolution_id = NULL, labels = NULL, deadline_at = NULL
                        WHERE id = $1::text::uuid";
            assert_eq!(sql.execute(old, &[&run]).await.unwrap(), 1);
        }
        control(&node, &run, "restart").await;
        let ended = node.ended(&run).await;
        assert_eq!(
            (&ended["state"], &ended["labels"]),
            (&json!("succeeded"), &json!({"team": "x"}))
        );
        assert!(ended["scripts"]["t"].is_string(), "{ended:#}");
        assert_eq!(begins(&node, &run).await, 1);
    }
}
