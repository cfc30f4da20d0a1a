//! What nodes hear of each other: the log of changes, and news.

use std::sync::atomic::{AtomicI64, AtomicUsize};

use futures::FutureExt;
use futures::future::BoxFuture;
use heddle_store::change::Change;

use super::*;
use crate::EngineError;
use crate::node::changes::{Follower, NewsListener, follow_own_change};
use crate::node::news::{CHANNEL, News, NewsSender};
use crate::node::service::NEVER;
use crate::node::signals::Signal;

/// A service that remembers what its node has told it.
#[derive(Default)]
struct Hears {
    changes: Mutex<Vec<i64>>,
    news: Mutex<Vec<News>>,
    /// A change that it cannot handle.
    stumbles_over: AtomicI64,
    /// How often it may have missed news.
    missed: AtomicUsize,
}

impl Part for Hears {
    fn changed<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<(), EngineError>> {
        let stumbles = change.id == self.stumbles_over.load(Ordering::Relaxed);
        if !stumbles {
            self.changes.lock().push(change.id);
        }
        Box::pin(std::future::ready(match stumbles {
            true => Err(EngineError::Contended),
            false => Ok(()),
        }))
    }

    fn heard(&self, news: &News) {
        self.news.lock().push(news.clone());
    }

    fn missed_news(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
    }
}

fn hears() -> (Arc<Hears>, Parts) {
    let hears = Arc::new(Hears::default());
    (hears.clone(), Parts::new([hears as Arc<dyn Part>]))
}

/// What was changed on another node is known after the next look, a second later at most. The log is read to its end,
/// however long it is; numbers that are missing are passed over, and nothing is told twice, except what a service could not
/// handle.
#[tokio::test]
async fn changes_of_other_nodes_are_known_after_a_look() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", json!({"history": true})).await;
    let node = world.node(1).await;
    let (hears, parts) = hears();
    let mut follower = Follower::of(node.node.clone(), parts);
    let second = Duration::from_secs(1);
    assert_eq!(node.tick(&mut follower).await, second);
    hears.changes.lock().clear();
    let revision = async || {
        let group = node.node.catalog.group("g").await.expect("an answer");
        group.expect("a group").revision.number
    };
    assert_eq!(revision().await, 1);
    world
        .group("g", json!({"history": true, "description": "another"}))
        .await;
    assert_eq!(revision().await, 1, "nobody has said so");
    node.tick(&mut follower).await;
    assert_eq!((revision().await, hears.changes.lock().len()), (2, 1));
    // More than a page holds. Of every third number, the transaction was rolled back.
    world
        .execute(
            "INSERT INTO heddle.changes (kind, name, at) SELECT 'pool', n::text, clock_timestamp() FROM generate_series(1, 1800) AS n;
             DELETE FROM heddle.changes WHERE kind = 'pool' AND name::int % 3 = 0",
        )
        .await;
    let rows = world
        .sql
        .query("SELECT id FROM heddle.changes WHERE kind = 'pool' ORDER BY id", &[]);
    let ids: Vec<i64> = rows.await.expect("changes").iter().map(|row| row.get(0)).collect();
    hears.changes.lock().clear();
    hears.stumbles_over.store(ids[700], Ordering::Relaxed);
    for _ in 0..2 {
        assert!(follower.tick(world.now()).await.is_err());
        assert_eq!(*hears.changes.lock(), ids[..700]);
    }
    hears.stumbles_over.store(0, Ordering::Relaxed);
    for _ in 0..2 {
        assert_eq!(node.tick(&mut follower).await, second);
        assert_eq!(*hears.changes.lock(), ids);
    }
}

/// Whoever changed a group is answered after this node has read the log. If the connection is cut meanwhile, it is read again;
/// if it cannot be read, names are looked up in the database.
#[tokio::test]
async fn a_change_counts_here_although_connections_are_cut() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", json!({"history": true})).await;
    let node = world.node(1).await;
    let (hears, parts) = hears();
    let revision = async || {
        let group = node.node.catalog.group("g").await.expect("an answer");
        group.expect("a group").revision.number
    };
    follow_own_change(&node.node, &parts).await.expect("no cut");
    assert_eq!(revision().await, 1);
    // Whoever reads the log is cut, so often.
    world
        .execute(
            "ALTER TABLE heddle.changes RENAME TO changes_kept;
             CREATE TABLE heddle.cuts (most bigint NOT NULL);
             INSERT INTO heddle.cuts VALUES (1);
             CREATE SEQUENCE heddle.cut_now;
             CREATE FUNCTION heddle.cut() RETURNS boolean LANGUAGE sql VOLATILE AS $$
                 SELECT CASE WHEN nextval('heddle.cut_now') <= (SELECT most FROM heddle.cuts)
                             THEN pg_terminate_backend(pg_backend_pid()) ELSE true END $$;
             CREATE VIEW heddle.changes AS SELECT id, kind, name, at FROM heddle.changes_kept WHERE (SELECT heddle.cut())",
        )
        .await;
    hears.changes.lock().clear();
    world.group("g", json!({"history": true, "description": "one"})).await;
    follow_own_change(&node.node, &parts).await.expect("the second look");
    assert_eq!((revision().await, hears.changes.lock().len()), (2, 1));
    world.execute("UPDATE heddle.cuts SET most = 100").await;
    world.group("g", json!({"history": true, "description": "two"})).await;
    assert!(follow_own_change(&node.node, &parts).await.is_err());
    assert_eq!((revision().await, hears.changes.lock().len()), (3, 1));
}

/// When the connection of the lease was opened again, the server may be another one: what the node has cached is forgotten, and
/// if the log lacks the last entry that the node has read, it is read from its begin. Otherwise nothing is told twice.
#[tokio::test]
async fn a_log_that_has_lost_its_end_is_read_again() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", json!({"history": true})).await;
    let node = world.node(1).await;
    let (hears, parts) = hears();
    let mut follower = Follower::of(node.node.clone(), parts);
    node.tick(&mut follower).await;
    let known = async || {
        let group = node.node.catalog.group("g").await.expect("an answer");
        group.expect("a group").revision.plan.spec.history
    };
    assert!(known().await);
    let newest = world.store.changes_position().await.expect("a position");
    // What no entry of the log says.
    world
        .execute("UPDATE heddle.revisions SET spec = spec - 'history'")
        .await;
    hears.changes.lock().clear();
    node.tick(&mut follower).await;
    assert!(known().await, "it is cached");
    let connections = world.store.lease_connections();
    world
        .execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
              WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        .await;
    until(async || node.node.register().await.is_ok()).await;
    assert!(world.store.lease_connections() > connections);
    until(async || follower.tick(world.now()).await.is_ok()).await;
    // All connections were cut, so this may take several tries.
    until(async || node.node.catalog.group("g").await.is_ok()).await;
    assert!(!known().await, "what was cached is read again");
    assert_eq!(*hears.changes.lock(), [0; 0], "the log has nothing new");
    // The number of the last entry is given out again.
    world
        .execute(&format!(
            "UPDATE heddle.revisions SET spec = spec || '{{\"history\": true}}';
             DELETE FROM heddle.changes WHERE id = {newest};
             ALTER TABLE heddle.changes ALTER COLUMN id RESTART WITH {newest};
             INSERT INTO heddle.changes (kind, name, at) VALUES ('pool', 'p', clock_timestamp())"
        ))
        .await;
    assert!(!known().await, "it is cached");
    until(async || follower.tick(world.now()).await.is_ok()).await;
    until(async || node.node.catalog.group("g").await.is_ok()).await;
    assert_eq!(hears.changes.lock().last(), Some(&newest));
    assert!(known().await, "what was cached is read again");
}

/// A look at the log counts from its begin, once its end is found and every service has handled it.
#[tokio::test]
async fn a_look_at_the_log_counts_from_its_begin() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let node = world.node(1).await;
    let (hears, parts) = hears();
    let mut follower = Follower::of(node.node.clone(), parts);
    node.tick(&mut follower).await;
    let looked = node.node.clock.elapsed();
    assert_eq!(node.node.changes.looked(), looked);
    world.pass(TimeDelta::seconds(3)).await;
    assert_eq!(node.node.changes.looked(), looked, "nobody has looked since");
    world
        .execute("INSERT INTO heddle.changes (kind, name, at) VALUES ('pool', 'p', clock_timestamp())")
        .await;
    let newest = world.store.changes_position().await.expect("a position");
    hears.stumbles_over.store(newest, Ordering::Relaxed);
    assert!(follower.tick(world.now()).await.is_err());
    assert_eq!(node.node.changes.looked(), looked, "a change is not handled");
    hears.stumbles_over.store(0, Ordering::Relaxed);
    node.tick(&mut follower).await;
    assert_eq!(node.node.changes.looked(), looked + Duration::from_secs(3));
}

/// News gather for five milliseconds, and go to the other nodes as one notification. What comes meanwhile goes with it; and
/// nothing goes twice.
#[tokio::test]
async fn news_gather_and_are_heard_once() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let (one, other) = (world.node(1).await, world.node(2).await);
    let (hears, parts) = hears();
    let (mut sender, mut listener) = (
        NewsSender::of(one.node.clone()),
        NewsListener::of(other.node.clone(), parts),
    );
    let changed = || other.node.signals.raised(Signal::Changes).now_or_never().is_some();
    assert_eq!(other.tick(&mut listener).await, Duration::from_secs(1));
    assert!(changed(), "there may be changes from before it listened");
    assert!(sender.first_after() == NEVER && sender.woken().now_or_never().is_none());
    let (first, second) = (RunId(Uuid::from_u128(1)), RunId(Uuid::from_u128(2)));
    one.node.outbox.tell_ended(&[first]);
    soon(sender.woken()).await;
    assert_eq!(one.tick(&mut sender).await, Duration::from_millis(5));
    one.node.outbox.tell_ended(&[second]);
    one.node.outbox.tell(News::Work);
    assert!(sender.woken().now_or_never().is_none(), "it waits to the end");
    assert_eq!(one.tick(&mut sender).await, NEVER);
    // Nothing is left, so the next that is heard is what comes after.
    for _ in 0..2 {
        one.tick(&mut sender).await;
    }
    world.execute(&format!("NOTIFY {CHANNEL}, ' *'")).await;
    let work = || other.node.signals.raised(Signal::Work).now_or_never().is_some();
    soon(listener.woken()).await;
    assert!(!work() && hears.news.lock().is_empty(), "it is heard with a tick");
    other.tick(&mut listener).await;
    assert!(work());
    assert_eq!(*hears.news.lock(), [News::Ended(first), News::Ended(second)]);
    soon(listener.woken()).await;
    other.tick(&mut listener).await;
    assert_eq!(hears.news.lock().last(), Some(&News::ManyEnded));
    assert_eq!(hears.news.lock().len(), 3);
    // A change of the log is heard too, and another tick without anything heard says nothing.
    assert!(!changed());
    world.group("g", json!({})).await;
    soon(listener.woken()).await;
    other.tick(&mut listener).await;
    assert!(changed());
    other.tick(&mut listener).await;
    assert!(!changed() && hears.news.lock().len() == 3);
}

/// A node that is alone tells nobody, except that it has stopped attempts: a node that came since its last heartbeat may
/// hold them.
#[tokio::test]
async fn a_node_that_is_alone_tells_only_stops() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let mut node = world.node(1).await;
    let parts = Parts::new([node.runs.clone() as Arc<dyn Part>]);
    node.keeper = Keeper::of(node.node.clone(), parts);
    node.keeper.tick(world.now()).await.expect("a heartbeat");
    let mut sender = NewsSender::of(node.node.clone());
    node.node.outbox.tell(News::Work);
    assert_eq!(node.tick(&mut sender).await, NEVER);
    node.node.outbox.tell(News::Stopped);
    assert_eq!(node.tick(&mut sender).await, Duration::from_millis(5));
    let mut listener = world.store.listen(&[CHANNEL]).await.expect("a listener");
    assert_eq!(node.tick(&mut sender).await, NEVER);
    let (_, payload) = soon(listener.next()).await.expect("a notification");
    assert_eq!(payload, "s ", "what was told to nobody is gone");
}

/// A listener whose connection is lost listens again with the next tick, and has the log of changes read: it may have missed
/// something.
#[tokio::test]
async fn an_ear_that_has_lost_its_connection_listens_again() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let node = world.node(1).await;
    let (hears, parts) = hears();
    let mut listener = NewsListener::of(node.node.clone(), parts);
    let changed = || node.node.signals.raised(Signal::Changes).now_or_never().is_some();
    let missed = || hears.missed.load(Ordering::Relaxed);
    node.tick(&mut listener).await;
    assert!(changed());
    assert_eq!(missed(), 1);
    let listens = "datname = current_database() AND query LIKE 'LISTEN%'";
    let cut: bool = world
        .one(&format!(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE {listens}"
        ))
        .await;
    assert!(cut);
    soon(listener.woken()).await;
    assert!(
        listener.woken().now_or_never().is_none(),
        "it hears nothing until it listens again"
    );
    assert_eq!(node.tick(&mut listener).await, Duration::from_secs(1));
    assert!(changed());
    assert_eq!(missed(), 2, "what it knows of runs may be out of date");
    world.execute(&format!("NOTIFY {CHANNEL}, ' *'")).await;
    soon(listener.woken()).await;
    node.tick(&mut listener).await;
    assert_eq!(*hears.news.lock(), [News::ManyEnded]);
    assert_eq!(missed(), 2, "it has listened all the time");
}

/// What a node knows of a run is forgotten when it hears that the run has ended or goes on, and when it may have missed that.
#[tokio::test]
async fn facts_of_runs_are_forgotten_with_news_and_without() {
    let (_world, node) = with_one_attempt().await;
    let (run, _) = node.only_begun();
    let contexts = &node.runs.contexts;
    let parts = Parts::new([node.runs.clone() as Arc<dyn Part>]);
    let mut listener = NewsListener::of(node.node.clone(), parts);
    let others = RunId(Uuid::from_u128(7));
    for (news, forgotten) in [
        (News::Ended(run), true),
        (News::Reopened(run), true),
        (News::Ended(others), false),
        (News::Reopened(others), false),
    ] {
        contexts.of(&[run]).await.expect("a context");
        assert!(contexts.get(&run).is_some());
        node.runs.heard(&news);
        assert_eq!(contexts.get(&run).is_none(), forgotten, "{news:?}");
    }
    contexts.of(&[run]).await.expect("a context");
    node.tick(&mut listener).await;
    assert!(contexts.get(&run).is_none(), "it has not listened before");
}
