//! Statements whose correctness rests on locks, each with a second connection that comes in between. No node is run here:
//! the store does what nodes do, side by side, and whoever has to wait is seen to wait by Postgres itself.

use std::sync::Arc;

use chrono::TimeDelta;
use heddle_domain::clock::to_micros;
use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use heddle_domain::state::{AttemptState, RunState};
use heddle_domain::{Clock, Time};
use heddle_store::Store;
use heddle_store::change::By;
use heddle_store::live::{AttemptRow, Completion, EndedAttempt, Room, SingleTaskEnd};
use heddle_tests::{World, eventually};
use tokio_postgres::Client;
use uuid::Uuid;

const NODE: Uuid = Uuid::from_u128(0xa);
const HOUR: TimeDelta = TimeDelta::hours(1);

async fn store(world: &World) -> Store {
    Store::connect(world.url(), 4).await.expect("a store")
}

/// The machine's time, which is the database's as well.
#[derive(Debug)]
struct Wall;

impl Clock for Wall {
    fn now(&self) -> Time {
        to_micros(crate::dispatch::wall_clock())
    }
}

async fn begin(store: &Store, lease: i64) -> Completion {
    store.completion(lease, Arc::new(Wall)).await.expect("a transaction")
}

/// A lease of one hour.
async fn lease(store: &Store, node: Uuid, former: Option<i64>) -> Option<i64> {
    let registered = store.register_node(node, "n", "", "", 10, HOUR, former).await;
    registered.expect("an answer").map(|(lease, _)| lease)
}

fn run(number: u128) -> RunId {
    RunId(Uuid::from_u128(number))
}

/// The first attempt of a run's only task.
fn first() -> AttemptKey {
    AttemptKey {
        key: TaskKey::from_numbers(0, -1),
        attempt: 1,
    }
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

async fn ready(sql: &Client, runs: &[u128]) {
    for number in runs {
        let run = run(*number);
        sql.batch_execute(&format!(
            "INSERT INTO heddle.ready VALUES ('{run}', 0, -1, 1, 0, {number})"
        ))
        .await
        .expect("a row");
    }
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

async fn claim(store: &Store, lease: i64, free: usize) -> Vec<u128> {
    let room = Room {
        free,
        share: usize::MAX,
        backlog: false,
    };
    let claimed = store.claim(lease, room, &Wall).await.expect("an answer");
    let mut runs: Vec<u128> = claimed.iter().map(|claimed| claimed.run.0.as_u128()).collect();
    runs.sort_unstable();
    runs
}

/// `claim`: what another claimer holds is passed over, not waited for; nothing is claimed twice, and nothing without a lease.
#[tokio::test]
async fn claims() {
    let world = World::new().await;
    let store = store(&world).await;
    let sql = world.sql().await;
    let lease = lease(&store, NODE, None).await.expect("a lease");
    ready(&sql, &[1, 2, 3, 4]).await;
    let mut other = world.sql().await;
    let claimer = other.transaction().await.unwrap();
    let front = "DELETE FROM heddle.ready WHERE turn IN (1, 2)";
    assert_eq!(claimer.execute(front, &[]).await.unwrap(), 2);
    assert_eq!(claim(&store, lease, 4).await, [3, 4]);
    claimer.rollback().await.unwrap();
    let (one, two) = tokio::join!(claim(&store, lease, 1), claim(&store, lease, 1));
    let mut both = [one, two].concat();
    // The second may have come while the first held the front, and have found it locked; what is left it gets now.
    both.extend(claim(&store, lease, 4).await);
    both.sort_unstable();
    assert_eq!(both, [1, 2]);
    assert_eq!((count(&sql, "ready").await, count(&sql, "running").await), (0, 4));

    ready(&sql, &[5]).await;
    store.release_node(lease).await.unwrap();
    assert_eq!(claim(&store, lease, 4).await, [0; 0]);
    assert_eq!(count(&sql, "ready").await, 1);
}

/// `lock_ended`: runs are locked before any attempt is taken, in the order of their ids, and what is written is dated behind
/// the locks; of two who report one attempt the second waits, and finds it gone if the first has committed.
#[tokio::test]
async fn outcomes() {
    let world = World::new().await;
    let store = store(&world).await;
    let sql = world.sql().await;
    under_way(&sql, &[1, 2], 7).await;
    let ended = |number: u128| EndedAttempt {
        run: run(number),
        at: first(),
        lease: 7,
    };
    let report = |runs: &'static [u128]| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut completion = begin(&store, 7).await;
            let ended: Vec<EndedAttempt> = runs.iter().map(|run| ended(*run)).collect();
            let locked = completion.lock(&ended).await.expect("an answer");
            (completion, locked)
        })
    };

    // Somebody holds the run that comes first: the one behind it is not locked yet, nor is any attempt taken.
    let mut other = world.sql().await;
    let holder = other.transaction().await.unwrap();
    let hold = format!("SELECT FROM heddle.runs_live WHERE id = '{}' FOR UPDATE", run(1));
    holder.execute(&hold, &[]).await.unwrap();
    let both = report(&[2, 1]);
    waiting(&sql, 1).await;
    sql.batch_execute(&format!(
        "BEGIN;
         SELECT FROM heddle.runs_live WHERE id = '{two}' FOR UPDATE NOWAIT;
         SELECT FROM heddle.running FOR UPDATE NOWAIT;
         ROLLBACK",
        two = run(2)
    ))
    .await
    .expect("nothing else is locked");
    let released = Wall.now();
    holder.rollback().await.unwrap();
    let (completion, locked) = both.await.unwrap();
    assert_eq!((locked.runs.len(), locked.owned.len()), (2, 2));
    assert!(completion.now() >= released, "what it writes is dated behind the locks");

    // It gives up: whoever waits gets what it had taken.
    let second = report(&[1]);
    waiting(&sql, 1).await;
    drop(completion);
    let (completion, locked) = second.await.unwrap();
    assert_eq!(locked.owned.len(), 1);

    // It commits: whoever waits finds the run, but nothing that is its own to end.
    let zombie = report(&[1]);
    waiting(&sql, 1).await;
    completion.commit().await.unwrap();
    let (_, locked) = zombie.await.unwrap();
    assert_eq!((locked.runs.len(), locked.owned.len()), (1, 0));
    assert_eq!(count(&sql, "running").await, 1);
}

/// `complete_single_task`: of two who end one run, one does, and what is written is written once.
#[tokio::test]
async fn ends_of_runs() {
    let world = World::new().await;
    let store = store(&world).await;
    let sql = world.sql().await;
    under_way(&sql, &[1], 7).await;
    let now = store.now().await.unwrap();
    let row = SingleTaskEnd {
        attempt: AttemptRow {
            run: run(1),
            at: first(),
            state: AttemptState::Succeeded,
            skipped: false,
            started_at: now,
            finished_at: now,
            node: Some(NODE),
            worker: None,
            output: Some("1".into()),
            error: None,
            memory_bytes: None,
            cpu_micros: None,
        },
        state: RunState::Succeeded,
        progress: Vec::new(),
        error: None,
    };
    let mut other = world.sql().await;
    let holder = other.transaction().await.unwrap();
    holder
        .execute("SELECT FROM heddle.runs_live FOR UPDATE", &[])
        .await
        .unwrap();
    let end = || {
        let (store, row) = (store.clone(), row.clone());
        tokio::spawn(async move {
            store
                .complete_single_task(&[row], &[], 7, NODE)
                .await
                .expect("an answer")
                .0
        })
    };
    let (one, two) = (end(), end());
    waiting(&sql, 2).await;
    holder.rollback().await.unwrap();
    assert_eq!([one.await.unwrap(), two.await.unwrap()].concat(), [run(1)]);
    let mut rows = Vec::new();
    for table in ["runs_live", "running", "attempts", "runs_done"] {
        rows.push(count(&sql, table).await);
    }
    assert_eq!(rows, [0, 0, 1, 1]);
}

/// `register_node`: of two who take a lease over from the one that they know, one does; a heartbeat of the old one that
/// comes late extends nothing, and what was held under it is lost.
#[tokio::test]
async fn leases() {
    let world = World::new().await;
    // Each has a connection of its own for its lease.
    let (one, two, late) = (store(&world).await, store(&world).await, store(&world).await);
    let sql = world.sql().await;
    let old = lease(&one, NODE, None).await.expect("a lease");
    under_way(&sql, &[1], old).await;
    assert_eq!(one.lost_attempts().await.unwrap().len(), 0);
    for store in [&two, &late] {
        // What they connect by is there before anybody waits.
        store.reach_lease().await.unwrap();
    }
    let mut other = world.sql().await;
    let holder = other.transaction().await.unwrap();
    holder
        .execute("SELECT FROM heddle.nodes FOR UPDATE", &[])
        .await
        .unwrap();
    let taking = tokio::spawn(async move { lease(&one, NODE, Some(old)).await });
    waiting(&sql, 1).await;
    let second = two.clone();
    let taking_too = tokio::spawn(async move { lease(&second, NODE, Some(old)).await });
    waiting(&sql, 2).await;
    let beat = tokio::spawn(async move { late.heartbeat(old, 0, 0, 0, HOUR, TimeDelta::zero()).await.unwrap() });
    waiting(&sql, 3).await;
    holder.rollback().await.unwrap();
    let new = taking.await.unwrap().expect("the first takes it");
    assert!(new > old);
    assert_eq!(taking_too.await.unwrap(), None);
    assert!(beat.await.unwrap().is_none());
    assert_eq!(two.lease_of(NODE).await.unwrap(), Some(new));
    let lost = two.lost_attempts().await.unwrap();
    assert_eq!(lost.len(), 1);
    assert_eq!((lost[0].ended.lease, lost[0].node), (old, Some(NODE)));
    // What the old lease claims late it does not get.
    ready(&sql, &[2]).await;
    assert_eq!(claim(&two, old, 1).await, [0; 0]);
    assert_eq!(claim(&two, new, 1).await, [2]);
}

/// `take_turnstiles`: a group's gate is held until the end of the transaction, the gates of other groups are not; whoever
/// comes next sees what was decided there.
#[tokio::test]
async fn gates() {
    let world = World::new().await;
    let store = store(&world).await;
    let sql = world.sql().await;
    sql.batch_execute(
        "INSERT INTO heddle.groups (name, revision, revision_id, created_at, updated_at)
         VALUES ('one', 1, 1, now(), now()), ('two', 1, 1, now(), now())",
    )
    .await
    .unwrap();
    let id = async |name: &str| -> i64 {
        let row = sql
            .query_one("SELECT id FROM heddle.groups WHERE name = $1", &[&name])
            .await;
        row.unwrap().get(0)
    };
    let (group, other) = (id("one").await, id("two").await);
    for (number, group) in [(1, group), (2, other)] {
        let run = run(number);
        sql.batch_execute(&format!(
            "INSERT INTO heddle.runs_live (id, group_id, revision_id, state, trigger, priority, logical_time,
                 interval_start, interval_end, params, created_at, progress)
             VALUES ('{run}', {group}, 1, 0, 1, 0, now(), now(), now(), '{{}}', now(), '');
             INSERT INTO heddle.waits (run, group_id) VALUES ('{run}', {group})"
        ))
        .await
        .unwrap();
    }
    let wake = async |group: i64| {
        let woken = "INSERT INTO heddle.turnstiles (group_id) VALUES ($1)";
        sql.execute(woken, &[&group]).await.unwrap();
    };

    wake(group).await;
    let mut first = begin(&store, 1).await;
    assert_eq!(first.take_turnstiles().await.unwrap(), [group]);
    let before = first.gates(&[group], 10).await.unwrap();
    assert_eq!(before[0].waiting.len(), 1);
    wake(group).await;
    let mut second = begin(&store, 1).await;
    let second = tokio::spawn(async move {
        let taken = second.take_turnstiles().await.expect("an answer");
        let gates = second.gates(&taken, 10).await.expect("an answer");
        (taken, gates.len())
    });
    waiting(&sql, 1).await;
    wake(other).await;
    let mut third = begin(&store, 1).await;
    assert_eq!(third.take_turnstiles().await.unwrap(), [other]);
    first.unwait(&[run(1)]).await.unwrap();
    first.commit().await.unwrap();
    // Nobody waits there any more.
    assert_eq!(second.await.unwrap(), (vec![group], 0));
    assert_eq!(third.gates(&[other], 10).await.unwrap()[0].waiting.len(), 1);
}

/// What people change is tried again when it met another transaction, and how long each try took is counted.
#[tokio::test]
async fn repeated() {
    let world = World::new().await;
    let store = store(&world).await;
    let sql = world.sql().await;
    // The first try is told that it has to be repeated, as the victim of a deadlock is.
    sql.batch_execute(
        "CREATE SEQUENCE public.tries;
         CREATE FUNCTION public.meets_another() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF nextval('public.tries') = 1 THEN RAISE EXCEPTION 'in the way' USING ERRCODE = '40P01'; END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER meets BEFORE INSERT ON heddle.categories FOR EACH ROW EXECUTE FUNCTION public.meets_another()",
    )
    .await
    .unwrap();
    let at = store.now().await.unwrap();
    let by = By { actor: "test", at };
    let put = store.put_category(by, "c", "").await.expect("the second try");
    assert!(put.created);
    let metrics = store.transaction_metrics();
    let families: Vec<_> = metrics.iter().flat_map(|metric| metric.collect()).collect();
    let text = prometheus::TextEncoder::new().encode_to_string(&families).unwrap();
    for line in [
        "heddle_transaction_seconds_count{transaction=\"put_category\"} 2",
        "heddle_transactions_repeated_total{transaction=\"put_category\"} 1",
    ] {
        assert!(text.contains(line), "{text}");
    }
}
