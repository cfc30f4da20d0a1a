//! Controls of many runs at once: their effects, their answers, and what happens when the caller goes away.

use std::time::Duration;

use heddle_tests::{Node, World, eventually, id};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{alone, beside, one};

/// To a group whose task waits for workers that never come.
async fn submit(node: &Node, group: &str, count: usize) {
    node.put_group(group, one(json!({"queue": "nobody"}))).await;
    let runs = json!({"runs": vec![json!({}); count]});
    let reply = node.post(&format!("/v1/groups/{group}/runs/batch"), runs).await;
    assert_eq!(reply.expect_status(202)["accepted"], count);
}

async fn count(sql: &tokio_postgres::Client, what: &str) -> usize {
    let count: i64 = sql.query_one(what, &[]).await.expect("a count").get(0);
    count as usize
}

const CANCELLED: &str = "SELECT count(*) FROM heddle.runs_done WHERE state = 5";
const ON_RECORD: &str = "SELECT count(*) FROM heddle.audit WHERE kind = 'run' AND action = 'cancel'";

#[tokio::test]
async fn thousands_are_cancelled_while_the_node_answers_others() {
    const RUNS: usize = 6_000;
    let _alone = alone().await;
    let (world, node) = World::with_node().await;
    submit(&node, "g", RUNS).await;
    // One that has ended already, and one that no control of the filter's group concerns.
    let ended = node.post("/v1/groups/g/runs", json!({})).await.expect_status(202);
    node.post(&format!("/v1/runs/{}/cancel", id(&ended)), json!({}))
        .await
        .expect_status(200);
    submit(&node, "other", 1).await;
    let api = node.api().clone();
    let cancel = tokio::spawn(async move {
        let body = json!({"filter": {"group": "g"}, "action": "cancel"});
        api.post("/v1/runs/bulk", body).await.expect_status(200)
    });
    let (mut slowest, mut asked) = (Duration::ZERO, 0);
    while !cancel.is_finished() {
        let since = Instant::now();
        node.get("/v1/groups/other").await.expect_status(200);
        slowest = slowest.max(since.elapsed());
        asked += 1;
    }
    let report = cancel.await.expect("a report");
    assert!(
        slowest < Duration::from_secs(2) && asked > 3,
        "{asked} requests beside it, the slowest took {slowest:?}"
    );
    assert_eq!(
        (&report["matched"], &report["changed"]),
        (&json!(RUNS + 1), &json!(RUNS))
    );
    // The newest first, whatever was done together.
    assert_eq!(report["ids"].as_array().map(Vec::len), Some(1_000));
    assert_eq!(report["ids"][0], ended["id"]);
    let refused = json!([{"id": ended["id"], "detail": "the run is cancelled"}]);
    assert_eq!((&report["refused"], &report["refused_total"]), (&refused, &json!(1)));
    let sql = world.sql().await;
    assert_eq!(count(&sql, CANCELLED).await, RUNS + 1);
    assert_eq!(count(&sql, ON_RECORD).await, RUNS + 1, "each is on record once");
    assert_eq!(count(&sql, "SELECT count(*) FROM heddle.queue_ready").await, 1);
    assert_eq!(node.all("/v1/runs?group=other&state=running").await.len(), 1);
    // All of them ended: each is refused for what it is.
    let body = json!({"filter": {"group": "g"}, "action": "pause"});
    let again = node.post("/v1/runs/bulk", body).await.expect_status(200);
    assert_eq!((&again["matched"], &again["changed"]), (&json!(RUNS + 1), &json!(0)));
    let details: Vec<&Value> = again["refused"].as_array().expect("refusals").iter().collect();
    assert_eq!(details.len(), 1_000);
    assert_eq!(again["refused_total"], RUNS + 1, "of which it names the first");
    assert!(details.iter().all(|one| one["detail"] == "the run is cancelled"));
}

#[tokio::test]
async fn it_goes_on_without_its_caller() {
    const RUNS: usize = 8_000;
    let _beside = beside().await;
    let (world, node) = World::with_node().await;
    submit(&node, "g", RUNS).await;
    let sql = world.sql().await;
    let api = node.api().clone();
    let caller = tokio::spawn(async move {
        let body = json!({"filter": {"group": "g"}, "action": "cancel"});
        api.post("/v1/runs/bulk", body).await
    });
    eventually("the first of them", async || {
        (count(&sql, CANCELLED).await > 0).then_some(())
    })
    .await;
    // It hangs up.
    caller.abort();
    assert!(
        caller.await.is_err_and(|error| error.is_cancelled()),
        "it was answered too soon"
    );
    assert!(count(&sql, CANCELLED).await < RUNS, "it was done too soon");
    eventually("all of them", async || {
        (count(&sql, CANCELLED).await == RUNS).then_some(())
    })
    .await;
    assert_eq!(count(&sql, ON_RECORD).await, RUNS);
}
