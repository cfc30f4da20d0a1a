//! The connection between a node and its database breaks when the database has done what it was asked for, and before the node
//! knows it.

use heddle_tests::{Node, NodeOptions, Wire, World, eventually, task};
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::one;

/// A node that reaches its database through a wire, with a task run in queue `q`.
async fn with_a_queued_task() -> (World, Wire, Node, String) {
    let world = World::new().await;
    let wire = Wire::new(world.url()).await;
    let node = NodeOptions::new(wire.url()).start().await;
    node.put_group("g", one(json!({"queue": "q"}))).await;
    let run = node.start("g", json!({})).await;
    (world, wire, node, run)
}

/// Lets statements wait, with this trigger, while somebody holds the lock 77. It is held from now on.
async fn hold(sql: &Client, trigger: &str) {
    let holds = format!(
        "CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NULL; END $$;
         CREATE {trigger} EXECUTE FUNCTION public.wait();
         SELECT pg_advisory_lock(77)"
    );
    sql.batch_execute(&holds).await.expect("a trigger");
}

/// Breaks all connections of the node when a statement of it waits; then the statement goes on, and nobody hears of it.
async fn break_off(sql: &Client, wire: &Wire) {
    let waiting = "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                    WHERE d.datname = current_database() AND l.locktype = 'advisory' AND l.objid = 77 AND NOT l.granted";
    eventually("a statement that waits", async || {
        let found = sql.query(waiting, &[]).await.expect("the locks");
        (!found.is_empty()).then_some(())
    })
    .await;
    wire.close();
    let goes_on = "SELECT pg_advisory_unlock(77)";
    sql.batch_execute(goes_on).await.expect("the end of the lock");
}

/// A claim that the node knows nothing of is given back: the same poll gets the task run, and not after the lease of an hour.
#[tokio::test]
async fn a_claim_that_nobody_got_is_given_back() {
    let (world, wire, node, run) = with_a_queued_task().await;
    let sql = world.sql().await;
    hold(
        &sql,
        "TRIGGER waits BEFORE INSERT ON heddle.queue_claims FOR EACH STATEMENT",
    )
    .await;
    let polls = node.post(
        "/v1/queues/q/claims",
        json!({"worker": "w", "lease": "1h", "wait": "30s"}),
    );
    let (answer, ()) = tokio::join!(polls, break_off(&sql, &wire));
    let answer = answer.expect_status(200);
    assert_eq!(answer["items"][0]["run"], run, "{answer:#}");
}

/// An outcome that was recorded by a commit without an answer is not refused: the node finds at its second try that the
/// claim has ended, and how.
#[tokio::test]
async fn an_outcome_is_accepted_although_its_commit_had_no_answer() {
    let (world, wire, node, run) = with_a_queued_task().await;
    let asks = json!({"worker": "w", "lease": "1h", "wait": "30s"});
    let claims: Value = node.post("/v1/queues/q/claims", asks).await.expect_status(200);
    let claim = &claims["items"][0];
    let sql = world.sql().await;
    // It waits in the commit.
    hold(
        &sql,
        "CONSTRAINT TRIGGER waits AFTER DELETE ON heddle.queue_claims DEFERRABLE INITIALLY DEFERRED FOR EACH ROW",
    )
    .await;
    let path = format!("/v1/claims/{}/complete", claim["id"].as_str().expect("an id"));
    let completes = node.post(&path, json!({"token": claim["token"], "output": "done"}));
    let (answer, ()) = tokio::join!(completes, break_off(&sql, &wire));
    answer.expect_status(200);
    let ended = node.ended(&run).await;
    assert_eq!(task(&ended, "t")["output"], "done", "{ended:#}");
    assert_eq!(node.attempts(&run, "t").await.len(), 1);
}
