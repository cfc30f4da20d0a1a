//! Runs that SQL submits, and that people control before a node begins them.

use heddle_tests::{Node, World, eventually, states, task};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::cli::{DONE, ends};
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

/// Params, as text, that are nested so many levels deep.
fn nested(levels: usize) -> String {
    format!("{{\"a\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1))
}

/// Params of so many bytes, as the API counts them: one long text, many numbers, or many texts that look like JSON. Postgres
/// writes a space after each comma that is in no text.
fn of_bytes(bytes: usize) -> [String; 3] {
    let filled = |items: &str| {
        let rest = bytes - items.len() - r#"{"":[]}"#.len();
        format!("{{\"{}\":[{items}]}}", "k".repeat(rest))
    };
    [
        format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - r#"{"a":""}"#.len())),
        filled(&["1"; 131_000].join(",")),
        filled(&[r#""x, \" [y: \\""#; 16_000].join(",")),
    ]
}

/// `heddle.submit` takes the params that the API takes, and no others: a run with others could not be read again.
#[tokio::test]
async fn params_within_the_bounds_of_the_api() {
    let (world, node) = World::with_node().await;
    node.put_group("g", one(json!({"queue": "nobody"}))).await;
    let sql = world.sql().await;
    let api = async |params: &str| {
        let body = format!("{{\"params\":{params}}}");
        let request = node.request(Method::POST, "/v1/groups/g/runs");
        let request = request.header("content-type", "application/json").body(body);
        node.send(request).await.status
    };
    let in_sql = async |params: &str| {
        let submit = "SELECT heddle.submit('g', $1::text::jsonb)::text";
        let row = sql.query_one(submit, &[&params]).await;
        row.map(|row| row.get::<_, String>(0))
    };
    let mut fine: Vec<String> = of_bytes(262_144).into();
    let brackets = format!("{{\"a\":\"{}\"}}", "[{".repeat(1_000));
    fine.extend([nested(126), brackets, format!("{{\"a\":\"{}\"}}", "9".repeat(400))]);
    for number in ["1.7976931348623157e308", "-1.7976931348623157e308", "1e-400"] {
        fine.push(format!("{{\"a\":[{number}]}}"));
    }
    for params in &fine {
        let shown: String = params.chars().take(100).collect();
        assert_eq!(api(params).await, 202, "{shown}");
        let run = in_sql(params)
            .await
            .unwrap_or_else(|error| panic!("{shown}: {error:?}"));
        let run = node.run_now(&run).await;
        assert_eq!(run.get("params_error"), None, "{shown}");
    }
    let mut wrong: Vec<String> = of_bytes(262_145).into();
    wrong.extend([nested(127), nested(300), format!("{{\"a\":{}}}", "9".repeat(400))]);
    wrong.extend(of_bytes(500_000));
    for number in ["1e400", "-1e400", "1.8e308"] {
        wrong.push(format!("{{\"a\":[{number}]}}"));
    }
    for params in &wrong {
        let shown: String = params.chars().take(100).collect();
        let status = api(params).await;
        assert!(matches!(status, 400 | 422), "{shown}: {status}");
        let refused = in_sql(params).await.expect_err(&shown);
        assert_eq!(
            refused.code(),
            Some(&SqlState::INVALID_PARAMETER_VALUE),
            "{shown}: {refused:?}"
        );
    }
    assert_eq!(node.all("/v1/runs?group=g&limit=5").await.len(), 2 * fine.len());
}

/// A run whose params somebody has stored past all checks is shown and controlled like any other. Its tasks cannot run.
#[tokio::test]
async fn params_that_cannot_be_read() {
    let (world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "echo"}))).await;
    let mut sql = world.sql().await;
    for (stored, why) in [
        (r#"{"a": 1e400}"#.to_owned(), "number out of range"),
        (nested(200), "nested more than 192 levels deep"),
        (nested(300), "nested more than 256 levels deep"),
    ] {
        let run = submit(&mut sql, "g").await;
        let store = "UPDATE heddle.runs_live SET params = $2 WHERE id = $1::text::uuid";
        assert_eq!(sql.execute(store, &[&run, &stored]).await.unwrap(), 1);
        let check = |shown: &Value| {
            assert_eq!((&shown["id"], &shown["params"]), (&json!(run), &json!({})), "{shown:#}");
            let error = shown["params_error"].as_str().unwrap_or_default();
            assert!(error.contains(why), "{shown:#}");
        };
        let is_shown = async || {
            check(&node.run_now(&run).await);
            check(&node.get("/v1/runs/latest?group=g").await.expect_status(200));
            check(&node.get("/v1/runs?group=g&limit=1").await.expect_status(200)["items"][0]);
            node.get("/v1/runs?param=a").await.expect_status(200);
            assert!(ends(&node, DONE, &["run", "list"]).contains(&run[..8]));
            assert!(ends(&node, DONE, &["run", "show", &run]).contains(why));
        };
        is_shown().await;
        check(&control(&node, &run, "pause").await);
        check(&control(&node, &run, "resume").await);
        let fails = async || {
            let ended = node.ended(&run).await;
            check(&ended);
            assert_eq!(ended["state"], "failed", "{ended:#}");
            let error = &task(&ended, "t")["error"];
            assert_eq!(error["kind"], "invalid", "{ended:#}");
            assert!(error["message"].as_str().unwrap_or_default().contains(why), "{ended:#}");
        };
        fails().await;
        is_shown().await;
        check(&control(&node, &run, "restart").await);
        fails().await;
        let refused = node.post(&format!("/v1/runs/{run}/rerun"), json!({})).await;
        refused.expect_said(409, why);
        let bulk = json!({"filter": {"ids": [run]}, "action": "rerun"});
        let report = node.post("/v1/runs/bulk", bulk).await.expect_status(200);
        assert_eq!(report["changed"], 0, "{report:#}");
        assert!(report["refused"].to_string().contains(why), "{report:#}");
        node.delete(&format!("/v1/runs/{run}")).await.expect_status(204);
        node.get(&format!("/v1/runs/{run}")).await.expect_problem(404, &[]);

        let run = submit(&mut sql, "g").await;
        assert_eq!(sql.execute(store, &[&run, &stored]).await.unwrap(), 1);
        let cancelled = control(&node, &run, "cancel").await;
        assert_eq!(
            (&cancelled["id"], &cancelled["state"]),
            (&json!(run), &json!("cancelled"))
        );
        assert!(cancelled["params_error"].as_str().unwrap_or_default().contains(why));
    }
}
