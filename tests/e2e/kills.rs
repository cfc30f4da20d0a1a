//! Things that are written together with their cause: after a kill -9 in between, there are both or neither.
//!
//! Each test holds a lock that the second of two writes needs, waits until the node waits for it, and kills the node.
//! The node's backend is ended before the lock is released: otherwise the server would still execute what the node had
//! asked for, although the node is dead.

use heddle_tests::{Answer, Node, NodeOptions, Receiver, World, eventually, id};
use serde_json::{Value, json};

use crate::notifications::{settled, webhook};
use crate::{one, with};

/// A lock that somebody is made to wait for.
pub(crate) struct Held {
    holder: tokio_postgres::Client,
    looker: tokio_postgres::Client,
}

impl Held {
    /// Takes it, by a statement.
    pub(crate) async fn take(world: &World, statement: &str) -> Self {
        let holder = world.sql().await;
        holder.batch_execute(&format!("BEGIN; {statement}")).await.unwrap();
        Self {
            holder,
            looker: world.sql().await,
        }
    }

    /// Kills the node as soon as it waits for the lock, and gives the lock back.
    pub(crate) async fn kill(self, node: &mut Node) {
        eventually("somebody who waits for the lock", async || {
            let waiting: i64 = self.looker.query_one(WAITING, &[]).await.unwrap().get(0);
            (waiting > 0).then_some(())
        })
        .await;
        node.kill();
        node.end().await;
        eventually("the end of the node's backends", async || {
            let left: i64 = self.looker.query_one(OTHERS, &[]).await.unwrap().get(0);
            (left == 0).then_some(())
        })
        .await;
        self.holder.batch_execute("ROLLBACK").await.unwrap();
    }
}

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// Ends what a node that is gone has left: all that is not idle outside of a transaction of this test's.
const OTHERS: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                       WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle in transaction'
                         AND backend_type = 'client backend'";

/// In one directory: a node that starts there takes over at once.
pub(crate) fn options(world: &World) -> NodeOptions {
    world
        .options()
        .data_dir(&world.directory().join("node"))
        .env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1")
}

fn calls(receiver: &Receiver) -> Value {
    one(json!({"http": {"method": "POST", "url": receiver.url}}))
}

/// A run that somebody made by `rerun` is in the audit, or was never made.
#[tokio::test]
async fn a_rerun_and_its_audit() {
    let world = World::new().await;
    let mut node = options(&world).start().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let run = id(&node.run("g", json!({})).await);
    let held = Held::take(&world, "LOCK TABLE heddle.audit IN SHARE MODE").await;
    let api = node.with_token(Some(heddle_tests::TOKEN));
    let path = format!("/v1/runs/{run}/rerun");
    let asked = tokio::spawn({
        let path = path.clone();
        async move { api.try_post(&path, json!({})).await }
    });
    held.kill(&mut node).await;
    let _ = asked.await;
    let node = options(&world).start().await;
    let made = node.all("/v1/runs?trigger=rerun").await;
    let audit = node.all("/v1/audit?action=rerun").await;
    assert_eq!(made.len(), audit.len(), "{made:#?} {audit:#?}");
    let again = node.post(&path, json!({})).await.expect_status(202);
    let audit = node.all("/v1/audit?action=rerun").await;
    assert_eq!(audit[0]["name"], again["id"], "{audit:#?}");
    assert_eq!(audit[0]["after"]["rerun_of"], run, "{audit:#?}");
}

/// The timer of a deadline is taken by the transaction that cancels the run.
#[tokio::test]
async fn a_deadline_and_its_cancel() {
    let world = World::new().await;
    let silent = Receiver::start(Answer::Silence).await;
    let mut node = options(&world).start().await;
    let spec = with(calls(&silent), json!({"deadline": "1s", "deadline_action": "cancel"}));
    node.put_group("g", spec).await;
    let run = node.start("g", json!({})).await;
    let held = Held::take(
        &world,
        &format!("SELECT FROM heddle.runs_live WHERE id = '{run}' FOR UPDATE"),
    )
    .await;
    held.kill(&mut node).await;
    let node = options(&world).start().await;
    let run = node.run_becomes(&run, "cancelled").await;
    let why = run["error"]["message"].as_str().unwrap_or_default();
    assert!(why.contains("deadline"), "{run:#}");
}

/// If an attempt is lost before it has announced its task's begin, the next one announces it.
#[tokio::test]
async fn a_beginning_and_its_notice() {
    let world = World::new().await;
    let hook = Receiver::start(Answer::Status(200)).await;
    let mut node = options(&world).start().await;
    webhook(&node, "hook", &hook.url, json!({})).await;
    let rules = json!({"on": ["started"], "channels": ["hook"]});
    node.put_group("g", one(json!({"script": "hello", "notify": rules})))
        .await;
    let held = Held::take(&world, "LOCK TABLE heddle.notices IN SHARE MODE").await;
    let run = node.start("g", json!({})).await;
    held.kill(&mut node).await;
    let node = options(&world).start().await;
    node.run_becomes(&run, "succeeded").await;
    let attempts = node.attempts(&run, "t").await;
    assert_eq!(attempts[0]["state"], "lost", "{attempts:#?}");
    let told = settled(&node, "event=started", 1).await;
    assert_eq!(told.len(), 1, "{told:#?}");
}

/// If one is lost after it has announced it, the next one does not announce it again.
#[tokio::test]
async fn a_beginning_is_told_once() {
    let world = World::new().await;
    let hook = Receiver::start(Answer::Status(200)).await;
    let called = Receiver::start(Answer::Silence).await;
    let mut node = options(&world).start().await;
    webhook(&node, "hook", &hook.url, json!({})).await;
    let mut spec = calls(&called);
    spec["tasks"]["t"]["notify"] = json!({"on": ["started", "succeeded"], "channels": ["hook"]});
    node.put_group("g", spec).await;
    let run = node.start("g", json!({})).await;
    settled(&node, "event=started", 1).await;
    eventually("the first call", async || (!called.requests().is_empty()).then_some(())).await;
    node.kill();
    node.end().await;
    called.answers(Answer::Json(200, "{}".to_owned()));
    let node = options(&world).start().await;
    node.run_becomes(&run, "succeeded").await;
    assert_eq!(node.attempts(&run, "t").await.len(), 2);
    settled(&node, "event=succeeded", 1).await;
    let told = node.all("/v1/notifications?event=started").await;
    assert_eq!(told.len(), 1, "{told:#?}");
}
