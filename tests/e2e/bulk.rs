//! Controls of many runs at once: they answer and write what as many single controls do, in few transactions. (That thousands
//! hold up nobody: `tests/alone/bulk.rs`.)

use std::collections::BTreeMap;

use heddle_tests::{Node, Reply, World, eventually, id};
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::one;
use crate::ways::counts;

/// The states of the runs that [`populate`] makes; also the values of their label `is`.
const STATES: [&str; 3] = ["cancelled", "paused", "running"];

/// How many there are of each: three batches in all.
const MANY: [usize; 3] = [150, 50, 50];

/// As many as can be controlled singly.
const FEW: [usize; 3] = [1, 1, 1];

async fn bulk(node: &Node, body: Value) -> Value {
    node.post("/v1/runs/bulk", body).await.expect_status(200)
}

/// A group whose task waits for workers that never come, with so many runs in each state.
async fn populate(node: &Node, group: &str, many: [usize; 3]) {
    node.put_group(group, one(json!({"queue": "nobody"}))).await;
    for (is, count) in STATES.into_iter().zip(many) {
        let runs = json!({"runs": vec![json!({"labels": {"is": is}}); count]});
        let reply = node.post(&format!("/v1/groups/{group}/runs/batch"), runs).await;
        assert_eq!(reply.expect_status(202)["accepted"], count);
    }
    for (action, is) in [("cancel", "cancelled"), ("pause", "paused")] {
        let filter = json!({"group": group, "label": format!("is={is}")});
        bulk(node, json!({"filter": filter, "action": action})).await;
    }
}

/// The runs of a group that were made to be in this state.
async fn made(node: &Node, group: &str, is: &str) -> Vec<Value> {
    node.all(&format!("/v1/runs?group={group}&label=is%3D{is}&limit=500"))
        .await
}

fn ids(runs: &[Value]) -> Vec<String> {
    runs.iter().map(id).collect()
}

/// What was written about these runs: entries of the audit and overrides, each as a text, and how often.
async fn written(sql: &Client, runs: &[String]) -> BTreeMap<String, i64> {
    let rows = sql
        .query(
            "SELECT what, count(*) FROM (
                 SELECT concat_ws(' ', action, actor, (before - 'group')::text, after::text) AS what
                   FROM heddle.audit WHERE kind = 'run' AND name = ANY ($1)
                 UNION ALL
                 SELECT concat_ws(' ', 'set', task, item, state, reason, actor)
                   FROM heddle.overrides WHERE run::text = ANY ($1)) AS written
              GROUP BY what",
            &[&runs],
        )
        .await
        .expect("what was written");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// The control of one run.
async fn alone(node: &Node, run: &str, action: &str) -> Reply {
    match action {
        "delete" => node.delete(&format!("/v1/runs/{run}")).await,
        "state" => {
            let set = json!({"state": "failed", "reason": "by a test"});
            node.put(&format!("/v1/runs/{run}/state"), set).await
        }
        "clear" => {
            let body = json!({"downstream": false, "reason": "by a test"});
            node.post(&format!("/v1/runs/{run}/tasks/t/clear"), body).await
        }
        _ => node.post(&format!("/v1/runs/{run}/{action}"), json!({})).await,
    }
}

/// The same control of all runs of a group.
fn of_all(group: &str, action: &str, dry_run: bool) -> Value {
    let mut body = json!({"filter": {"group": group}, "action": action, "dry_run": dry_run});
    if action == "state" {
        body["state"] = json!("failed");
        body["reason"] = json!("by a test");
    }
    if action == "clear" {
        body["task"] = json!("t");
        body["downstream"] = json!(false);
        body["reason"] = json!("by a test");
    }
    body
}

/// What single controls answer and write, for each state of a run.
struct Single {
    /// Why it was refused, if it was.
    refused: Option<String>,
    written: BTreeMap<String, i64>,
    /// The state afterwards; `None`: it is gone.
    state: Option<Value>,
}

async fn singly(node: &Node, sql: &Client, group: &str, action: &str) -> Vec<Single> {
    let mut single = Vec::new();
    for is in STATES {
        let run = made(node, group, is).await.remove(0);
        let reply = alone(node, &id(&run), action).await;
        single.push(Single {
            refused: (reply.status == 409).then(|| reply.body["detail"].as_str().expect("a reason").to_owned()),
            written: written(sql, &[id(&run)]).await,
            state: made(node, group, is).await.first().map(|run| run["state"].clone()),
        });
        assert!(reply.status < 300 || reply.status == 409, "{:#}", reply.body);
    }
    single
}

/// Runs that refuse a control are told apart from those that do not, in a batch as alone; what is written is the same; and
/// a hundred runs are one transaction.
#[tokio::test]
async fn many_are_controlled_as_one() {
    let (world, node) = World::with_node().await;
    let sql = world.sql().await;
    for (action, transaction) in [
        ("restart", "control_together"),
        ("clear", "control_together"),
        ("state", "control_together"),
        ("resume", "control_together"),
        ("delete", "delete_runs"),
    ] {
        let (few, many) = (format!("{action}-few"), format!("{action}-many"));
        populate(&node, &few, FEW).await;
        populate(&node, &many, MANY).await;
        let single = singly(&node, &sql, &few, action).await;
        let mut runs = Vec::new();
        for is in STATES {
            runs.push(ids(&made(&node, &many, is).await));
        }
        let dry = bulk(&node, of_all(&many, action, true)).await;
        let before = counts(&node, "heddle_transaction_seconds_count", "transaction").await;
        let done = bulk(&node, of_all(&many, action, false)).await;
        let after = counts(&node, "heddle_transaction_seconds_count", "transaction").await;
        let begun = |name: &str| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
        assert_eq!(begun(transaction), 3, "{action}: {after:?}");
        assert_eq!(begun("control"), 0, "{action}: {after:?}");

        // What each of them answers.
        assert_eq!(
            (&dry["changed"], &dry["refused"]),
            (&json!(0), &done["refused"]),
            "{action}"
        );
        let mut refused: BTreeMap<String, String> = BTreeMap::new();
        for one in done["refused"].as_array().expect("refusals") {
            let detail = one["detail"].as_str().expect("a reason").to_owned();
            refused.insert(one["id"].as_str().expect("an id").to_owned(), detail);
        }
        assert_eq!(done["changed"], 250 - refused.len(), "{action}: {done:#}");
        for ((single, runs), is) in single.iter().zip(&runs).zip(STATES) {
            for run in runs {
                assert_eq!(refused.get(run), single.refused.as_ref(), "{action} of {is}");
            }
            // What is written about them.
            let expect: BTreeMap<String, i64> = single
                .written
                .iter()
                .map(|(what, count)| (what.clone(), count * runs.len() as i64))
                .collect();
            assert_eq!(written(&sql, runs).await, expect, "{action} of {is}");
            // What becomes of them.
            let left = made(&node, &many, is).await;
            let expect = if single.state.is_some() { runs.len() } else { 0 };
            assert_eq!(left.len(), expect, "{action} of {is}");
            assert!(
                left.iter().all(|run| Some(&run["state"]) == single.state.as_ref()),
                "{action} of {is}"
            );
        }
        if action == "state" {
            let told = "SELECT count(*) FROM heddle.events e, jsonb_array_elements(e.data) AS one
                         WHERE e.kind = 'run.failed' AND one ->> 'group' = $1";
            let told: i64 = sql.query_one(told, &[&many]).await.expect("events").get(0);
            assert_eq!(told, 250, "each end is told once");
        }
        // Nothing of it goes on beside the next one.
        bulk(&node, of_all(&many, "cancel", false)).await;
    }
}

/// Reruns share transactions with each other, and each of them is on record.
#[tokio::test]
async fn many_are_rerun() {
    let (_world, node) = World::with_node().await;
    populate(&node, "g", MANY).await;
    let before = counts(&node, "heddle_transaction_seconds_count", "transaction").await;
    let done = bulk(&node, of_all("g", "rerun", false)).await;
    let after = counts(&node, "heddle_transaction_seconds_count", "transaction").await;
    assert_eq!((&done["changed"], &done["refused"]), (&json!(250), &json!([])));
    let begun = after.get("create_runs").unwrap_or(&0) - before.get("create_runs").unwrap_or(&0);
    assert!((1..=125).contains(&begun), "{begun} transactions");
    let reruns = node.all("/v1/runs?group=g&trigger=rerun&limit=500").await;
    assert_eq!(reruns.len(), 250);
    assert!(reruns.iter().all(|run| run["state"] == "running"));
    let audit = node.all("/v1/audit?action=rerun&limit=500").await;
    assert_eq!(audit.len(), 250);
}

/// How many sessions of this database wait for a lock.
async fn waiting(sql: &Client) -> i64 {
    let query = "SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event_type = 'Lock'";
    sql.query_one(query, &[]).await.expect("a count").get(0)
}

/// How many requests the node has not answered yet, with the one that asks.
async fn in_flight(node: &Node) -> f64 {
    let metrics = node.get("/metrics").await.expect_status(200);
    let mut lines = metrics.as_str().expect("text").lines();
    let value = lines.find_map(|line| line.strip_prefix("heddle_http_requests_in_flight "));
    value.expect("the gauge").parse().expect("a number")
}

/// Whoever sends many bulk controls waits for itself: another caller is not behind them.
#[tokio::test]
async fn callers_do_not_wait_for_each_other() {
    const SENT: usize = 8;
    let (world, node) = World::with_node().await;
    let mut runs = Vec::new();
    for group in ["slow", "quick"] {
        node.put_group(group, one(json!({"queue": "nobody"}))).await;
        runs.push(node.start(group, json!({})).await);
    }
    let made = node
        .post("/v1/tokens", json!({"name": "busy", "role": "operator"}))
        .await;
    let busy = node.with_token(made.expect_status(201)["token"].as_str());
    let lock = world.sql().await;
    let held = format!(
        "BEGIN; SELECT FROM heddle.runs_live WHERE id = '{}' FOR UPDATE",
        runs[0]
    );
    lock.batch_execute(&held).await.expect("the run's row");
    let sent: Vec<_> = (0..SENT)
        .map(|_| {
            let busy = busy.clone();
            tokio::spawn(async move { busy.post("/v1/runs/bulk", of_all("slow", "cancel", false)).await })
        })
        .collect();
    let sql = world.sql().await;
    eventually("bulk controls that wait for the run", async || {
        let all_sent = in_flight(&node).await > SENT as f64;
        (all_sent && waiting(&sql).await >= 2).then_some(())
    })
    .await;
    let done = bulk(&node, of_all("quick", "cancel", false)).await;
    assert_eq!(done["changed"], 1, "{done:#}");
    assert!(waiting(&sql).await <= 2, "two of one caller at the same time");
    lock.batch_execute("COMMIT").await.expect("an end");
    for one in sent {
        one.await.expect("no panic").expect_status(200);
    }
    assert_eq!(node.run_now(&runs[0]).await["state"], "cancelled");
}

/// Reruns with a key can be repeated: a call that ended early leaves some, and the same call again makes only these.
#[tokio::test]
async fn many_are_rerun_once_with_a_key() {
    let (_world, node) = World::with_node().await;
    populate(&node, "g", FEW).await;
    let all = ids(&node.all("/v1/runs?group=g").await);
    let rerun = async |ids: &[String], key: &str| {
        let body = json!({"filter": {"ids": ids}, "action": "rerun", "key": key});
        node.post("/v1/runs/bulk", body).await
    };
    let first = rerun(&all[..2], "k").await.expect_status(200);
    assert_eq!((&first["changed"], &first["refused"]), (&json!(2), &json!([])));
    let second = rerun(&all[..], "k").await.expect_status(200);
    assert_eq!((&second["matched"], &second["changed"]), (&json!(3), &json!(1)));
    let refused = second["refused"].as_array().expect("refusals");
    assert_eq!(refused.len(), 2, "{second:#}");
    for one in refused {
        let detail = one["detail"].as_str().expect("a detail");
        assert!(detail.contains("already has this key"), "{detail}");
    }
    let reruns = node.all("/v1/runs?group=g&trigger=rerun").await;
    assert_eq!(reruns.len(), 3);
    for one in refused {
        let made = reruns
            .iter()
            .find(|run| run["source"] == one["id"])
            .expect("its new run");
        assert_eq!(one["existing"], made["id"], "{one:#}");
    }
    for run in &reruns {
        assert_eq!(run["key"], format!("k/{}", run["source"].as_str().expect("a source")));
    }
    let long = "k".repeat(476);
    rerun(&all[..], long.as_str()).await.expect_problem(422, &["/key"]);
}

/// Of runs that were submitted with the same params and `dedupe`, one comes back, and the others say which one.
#[tokio::test]
async fn params_are_taken_once() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"queue": "nobody"}))).await;
    let mut runs = Vec::new();
    for n in [1, 1, 1, 2] {
        let run = node.start("g", json!({"dedupe": "params", "params": {"n": n}})).await;
        node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
            .await
            .expect_status(200);
        runs.push(run);
    }
    for action in ["restart", "clear"] {
        let done = bulk(&node, of_all("g", action, false)).await;
        assert_eq!(done["changed"], 2, "{done:#}");
        let back = ids(&node.all("/v1/runs?group=g&state=running").await);
        assert_eq!(back.len(), 2);
        // The newest of those with the same params is the first one of the list.
        assert_eq!(back, [runs[3].clone(), runs[2].clone()], "{action}");
        let refused = done["refused"].as_array().expect("refusals");
        assert_eq!(refused.len(), 2, "{done:#}");
        for one in refused {
            let detail = one["detail"].as_str().expect("a reason");
            assert!(
                detail.starts_with(&format!("run {} has the same params", runs[2])),
                "{detail}"
            );
        }
        bulk(&node, of_all("g", "cancel", false)).await;
    }
}

/// Runs that come back together wait for their turns as each would alone. So do those that were paused while they waited.
#[tokio::test]
async fn turns_are_waited_for() {
    let (_world, node) = World::with_node().await;
    let spec = json!({"tasks": {"t": {"queue": "nobody"}}, "max_active_runs": 2});
    node.put_group("g", spec).await;
    for _ in 0..5 {
        node.start("g", json!({})).await;
    }
    let in_state = async |state: &str| node.all(&format!("/v1/runs?group=g&state={state}")).await.len();
    let settled = async |what: &str| {
        eventually(what, async || {
            let states = (in_state("running").await, in_state("waiting").await);
            (states == (2, 3)).then_some(())
        })
        .await;
    };
    settled("two runs at work").await;
    bulk(&node, of_all("g", "cancel", false)).await;
    assert_eq!(in_state("cancelled").await, 5);
    let done = bulk(&node, of_all("g", "restart", false)).await;
    assert_eq!(done["changed"], 5, "{done:#}");
    settled("two restarted runs at work").await;
    let done = bulk(&node, of_all("g", "pause", false)).await;
    assert_eq!(done["changed"], 5, "{done:#}");
    let done = bulk(&node, of_all("g", "resume", false)).await;
    assert_eq!(done["changed"], 5, "{done:#}");
    settled("the same two at work again").await;
}

/// The only refusal of a bulk control: the run and the reason.
fn only_refusal(done: &Value) -> (String, String) {
    let refused = done["refused"].as_array().expect("refusals");
    assert_eq!(refused.len(), 1, "{done:#}");
    let text = |field: &str| refused[0][field].as_str().expect("a text").to_owned();
    (text("id"), text("detail"))
}

/// A run that cannot be read is refused by each bulk control, and does not keep the others from it.
#[tokio::test]
async fn an_unreadable_run_holds_up_no_others() {
    let (world, node) = World::with_node().await;
    let sql = world.sql().await;
    node.put_group("g", one(json!({"queue": "nobody"}))).await;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.push(node.start("g", json!({})).await);
    }
    let garble = "UPDATE heddle.runs_live SET progress = '\\xff'::bytea || progress WHERE id = $1::text::uuid";
    assert_eq!(sql.execute(garble, &[&runs[1]]).await.expect("an update"), 1);
    for (action, changed) in [("pause", 3), ("cancel", 3), ("cancel", 0)] {
        // Those that are cancelled are final: each repetition refuses them because of their state.
        let mut body = of_all("g", action, false);
        body["filter"]["state"] = json!(["running", "paused"]);
        let done = bulk(&node, body).await;
        assert_eq!(done["changed"], changed, "{action}: {done:#}");
        let (run, detail) = only_refusal(&done);
        assert_eq!(run, runs[1], "{action}");
        assert!(detail.contains("progress of run"), "{action}: {detail}");
    }
    // The same of a whole group says that one is left.
    let disabled = node.post("/v1/groups/g/disable", json!({"mode": "stop"})).await;
    disabled.expect_status(500);
    node.post("/v1/groups/g/enable", json!({})).await.expect_status(200);

    // A state that there is none of, as a newer node may write it.
    sql.batch_execute(&format!(
        "DO $$
         DECLARE found record;
         BEGIN
             FOR found IN SELECT conname FROM pg_constraint
                           WHERE conrelid = 'heddle.runs_done'::regclass AND contype = 'c' LOOP
                 EXECUTE format('ALTER TABLE heddle.runs_done DROP CONSTRAINT %I', found.conname);
             END LOOP;
         END $$;
         UPDATE heddle.runs_done SET state = 99 WHERE id = '{}'",
        runs[2]
    ))
    .await
    .expect("a state");
    let ids = json!({"ids": [runs[0], runs[2], runs[3]]});
    for action in ["restart", "rerun", "cancel", "delete"] {
        for dry_run in [true, false] {
            let body = json!({"filter": ids, "action": action, "dry_run": dry_run});
            let done = bulk(&node, body).await;
            let expect = if dry_run { 0 } else { 2 };
            assert_eq!(
                (&done["matched"], &done["changed"]),
                (&json!(3), &json!(expect)),
                "{action}: {done:#}"
            );
            let (run, detail) = only_refusal(&done);
            assert_eq!(run, runs[2], "{action}");
            assert!(detail.contains("state is 99"), "{action}: {detail}");
        }
    }
}
