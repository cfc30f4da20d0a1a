//! Statements whose correctness depends on locks, each with a second connection that intervenes. No node runs here: the
//! store does what nodes do, concurrently, and Postgres itself shows which connection waits.
//!
//! A test names the statements that it is about, files of `runner/store/src/sql`, in its comment: a statement with a locking
//! note that none of them names fails a test of `runner/cli/tests/architecture/locks.rs`. So does a public function of the
//! store with a locking note that none of them calls.

mod closed;
mod cuts;
mod dispatch;
mod ends;
mod inbox;
mod message_days;
mod messages;
mod named;
mod nodes;
mod notices;
mod order;
mod pools;
mod queues;
mod retention;
mod runs;
mod runtimes;
mod schedules;
mod state;
mod stopped_messages;
mod task_offers;

use std::sync::Arc;

use chrono::TimeDelta;
use heddle_domain::clock::to_micros;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::RunState;
use heddle_domain::{Clock, Time};
use heddle_store::Store;
use heddle_store::change::By;
use heddle_store::group::GroupWrite;
use heddle_store::live::{Completion, EndedAttempt, NewRun, RunWrite};
use heddle_store::node::NewNode;
use heddle_tests::{PATIENCE, World, eventually};
use serde_json::Value;
use tokio_postgres::{Client, Transaction};
use uuid::Uuid;

const NODE: Uuid = Uuid::from_u128(0xa);
const HOUR: TimeDelta = TimeDelta::hours(1);

/// The machine's time, which is the database's as well.
#[derive(Debug)]
struct Wall;

impl Clock for Wall {
    fn now(&self) -> Time {
        to_micros(crate::dispatch::wall_clock())
    }
}

fn by() -> By<'static> {
    By {
        actor: "test",
        at: Wall.now(),
    }
}

async fn store(world: &World) -> Store {
    Store::connect(world.url(), 4).await.expect("a store")
}

/// What most tests begin with: the store under test, a connection that observes, and one that intervenes. The database
/// is dropped with the world, so a test keeps that until its end.
async fn set_up() -> (World, Store, Client, Client) {
    let world = World::new().await;
    let store = store(&world).await;
    let (sql, other) = (world.sql().await, world.sql().await);
    (world, store, sql, other)
}

/// The first of these writes is told that it has to be repeated, as the victim of a deadlock is.
async fn meets_another(sql: &Client, write: &str) {
    sql.batch_execute(&format!(
        "CREATE SEQUENCE public.tries;
         CREATE FUNCTION public.meets_another() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF nextval('public.tries') = 1 THEN RAISE EXCEPTION 'in the way' USING ERRCODE = '40P01'; END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER meets BEFORE {write} FOR EACH ROW EXECUTE FUNCTION public.meets_another()"
    ))
    .await
    .expect("a trigger");
}

/// The transaction of this name was tried twice, and each of the tries was counted.
fn assert_repeated_once(store: &Store, name: &str) {
    let metrics = store.transaction_metrics();
    let families: Vec<_> = metrics.iter().flat_map(|metric| metric.collect()).collect();
    let text = prometheus::TextEncoder::new().encode_to_string(&families).unwrap();
    for line in [
        format!("heddle_transaction_seconds_count{{transaction=\"{name}\"}} 2"),
        format!("heddle_transactions_repeated_total{{transaction=\"{name}\"}} 1"),
    ] {
        assert!(text.contains(&line), "{text}");
    }
}

async fn begin(store: &Store, lease: i64) -> Completion {
    store
        .completion("test", lease, Arc::new(Wall))
        .await
        .expect("a transaction")
}

/// A control that has locked an ended run and made it live again, and has not committed that yet.
async fn reopening(store: &Store, run: RunId) -> Completion {
    let mut restart = begin(store, 7).await;
    restart.lock_one(run).await.expect("an answer").expect("a run");
    restart.reopen(&[run]).await.expect("a live run");
    restart
}

/// A node that wants a lease of one hour.
fn new_node(id: Uuid) -> NewNode<'static> {
    NewNode {
        id,
        name: "n",
        address: "",
        version: "",
        slots: 10,
        lease_for: HOUR,
        warming: false,
    }
}

/// A lease of one hour.
async fn lease(store: &Store, node: Uuid, former: Option<i64>) -> Option<i64> {
    let registered = store.register_node(new_node(node), former).await;
    registered.expect("an answer").map(|registered| registered.lease)
}

fn run(number: u128) -> RunId {
    RunId(Uuid::from_u128(number))
}

/// The first attempt of a run's task.
fn attempt_of(task: i16) -> AttemptKey {
    AttemptKey::from_numbers(task, -1, 1)
}

/// The first attempt of a run's only task.
fn first() -> AttemptKey {
    attempt_of(0)
}

/// That of a run, held under this lease.
fn ended(number: u128, lease: i64) -> EndedAttempt {
    EndedAttempt {
        run: run(number),
        at: first(),
        lease,
    }
}

/// What a PUT of a group writes that has a spec and nothing else.
fn bare_group<'a>(name: &'a str, spec: &'a Value) -> GroupWrite<'a> {
    GroupWrite {
        name,
        spec,
        category: None,
        links: &[],
        scripts: &[],
        enabled: None,
        if_match: None,
        begins_anew: false,
    }
}

/// A group without anything.
async fn group(sql: &Client, name: &str) -> i64 {
    let make = "INSERT INTO heddle.groups (name, revision, revision_id, created_at, updated_at)
                VALUES ($1, 1, 1, now(), now()) RETURNING id";
    let id = sql.query_one(make, &[&name]).await.expect("a group").get(0);
    first_revision(sql, id).await;
    id
}

/// The revision that new runs name ([`NewRun::plain`]), whichever group they have. The first group gets it.
async fn first_revision(sql: &Client, group: i64) {
    let make = "INSERT INTO heddle.revisions (id, group_id, revision, spec, created_at, created_by)
                OVERRIDING SYSTEM VALUE VALUES (1, $1, 1, '{}', now(), 'test') ON CONFLICT (id) DO NOTHING";
    sql.execute(make, &[&group]).await.expect("a revision");
}

/// Runs that are under way, each with an attempt held under this lease.
async fn under_way(sql: &Client, runs: &[u128], lease: i64) {
    for run in runs.iter().map(|number| run(*number)) {
        sql.batch_execute(&format!(
            "INSERT INTO heddle.runs_live (id, group_id, revision_id, state, trigger, priority, logical_time,
                 interval_start, interval_end, params, created_at, started_at, progress)
             VALUES ('{run}', 1, 1, 1, 0, 0, now(), now(), now(), '{{}}', now(), now(), '');
             INSERT INTO heddle.running VALUES ('{run}', 0, -1, 1, {lease}, now())"
        ))
        .await
        .expect("a run");
    }
}

/// A live run without changes; tests change a field.
fn going(number: u128) -> RunWrite {
    RunWrite {
        run: run(number),
        state: RunState::Running,
        progress: Vec::new(),
        priority: 0,
        ready: Vec::new(),
        queued: Vec::new(),
        timers: Vec::new(),
        drop_timers: Vec::new(),
        interrupt: Vec::new(),
        maps: Vec::new(),
        error: None,
        skipped: None,
        told: false,
        gated: false,
        timed: false,
        notices: None,
    }
}

/// A run to be created, which begins at once; tests change a field.
fn new_run(number: u128, group_id: i64) -> NewRun {
    NewRun::plain(run(number), group_id, Wall.now())
}

async fn count(sql: &Client, table: &str) -> i64 {
    let counted = sql
        .query_one(&format!("SELECT count(*) FROM heddle.{table}"), &[])
        .await;
    counted.expect("a count").get(0)
}

/// Waits until so many sessions wait for a lock.
async fn waiting(sql: &Client, many: i64) {
    let what = format!("{many} that wait for a lock");
    eventually(&what, async || {
        let row = sql
            .query_one(
                "SELECT count(*) FROM pg_stat_activity
                  WHERE datname = current_database() AND wait_event_type = 'Lock'",
                &[],
            )
            .await
            .expect("an answer");
        (row.get::<_, i64>(0) == many).then_some(())
    })
    .await;
}

/// For work that must wait for nobody: otherwise it would wait for ever, because the test holds the lock.
async fn unhindered<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it waits for nobody")
}

/// Does work that waits for a lock; `then`, what happens once it waits, ends that.
async fn meanwhile<T>(sql: &Client, work: impl Future<Output = T>, then: impl Future<Output = ()>) -> T {
    let release = async {
        waiting(sql, 1).await;
        then.await;
    };
    unhindered(async { tokio::join!(work, release) }).await.0
}

/// Ends a transaction.
async fn close(transaction: Transaction<'_>, commits: bool) {
    let ended = match commits {
        true => transaction.commit().await,
        false => transaction.rollback().await,
    };
    ended.expect("an end");
}
