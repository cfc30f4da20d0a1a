//! What has been kept for long enough.

use chrono::{NaiveDate, TimeDelta};
use heddle_domain::retention::{GroupRetention, Retention};
use heddle_domain::state::LogLevel;
use heddle_domain::{Clock, Span};
use heddle_store::change::By;
use heddle_store::live::LogRow;
use heddle_store::retention::{Day, Dropped, Partitioned, RunRules};
use heddle_store::{Store, StoreError};
use heddle_tests::eventually;
use tokio_postgres::Client;
use uuid::Uuid;

use super::{Wall, close, count, first, group, meanwhile, reopening, set_up, unhindered, waiting};

/// A day of long ago that has its partitions, and one that has none.
const KEPT_APART: &str = "2020-01-01";
const BY_DEFAULT: &str = "2020-03-01";

const HOUR: Span = Span::from_secs(3_600);

fn day(text: &str) -> Day {
    Day(text.parse::<NaiveDate>().expect("a day"))
}

/// Three runs of a group of a day that ended on it, the first, second and third.
async fn ended(sql: &Client, day: &str) -> [Uuid; 3] {
    sql.batch_execute(&format!(
        "SET search_path = public;
         SELECT heddle.make_partitions('{KEPT_APART}', 1);
         INSERT INTO heddle.runs_done (id, group_id, revision_id, state, trigger, priority, logical_time, interval_start,
                                       interval_end, params, created_at, started_at, progress, finished_at)
              SELECT (left(heddle.uuid_floor('{day} 12:00Z')::text, 24) || lpad(n::text, 12, '0'))::uuid, 1, 1, 3, 1, 0,
                     '{day} 12:00Z', now(), now(), '{{}}', '{day} 12:00Z', '{day} 12:00Z', '', '{day} 12:00Z'
                FROM generate_series(1, 3) AS n"
    ))
    .await
    .expect("runs");
    let rows = sql
        .query("SELECT id FROM heddle.runs_done ORDER BY id", &[])
        .await
        .expect("their ids");
    let ids: Vec<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    ids.try_into().expect("three")
}

/// What removes runs, and the day of the runs that it removes.
#[derive(Clone, Copy, Debug)]
enum Remove {
    OfDay,
    ByDefault,
    OfGroup,
}

impl Remove {
    fn day(self) -> &'static str {
        match self {
            Self::OfDay | Self::OfGroup => KEPT_APART,
            Self::ByDefault => BY_DEFAULT,
        }
    }

    /// How many were removed.
    async fn carried_out(self, store: &Store) -> usize {
        let own = GroupRetention {
            runs: Some(HOUR),
            ..GroupRetention::default()
        };
        let rules = RunRules::new(&Retention::default(), &[(1, own)]);
        let now = Wall.now();
        let removed = match self {
            Self::OfDay => store.prune_runs(&rules, Some(day(KEPT_APART)), now, 10).await,
            Self::ByDefault => store.prune_runs(&rules, None, now, 10).await,
            Self::OfGroup => store.prune_runs_of(&rules, 1, now, 10).await,
        };
        removed.expect("an answer").len()
    }
}

/// `due_runs`, `due_runs_default`, `due_runs_of`: a run that somebody has locked, to restart it or to remove it, is
/// skipped, and nobody waits. A run that is live again is not removed; one that was only read is.
#[tokio::test]
async fn runs_that_somebody_has() {
    for remove in [Remove::OfDay, Remove::ByDefault, Remove::OfGroup] {
        let (_world, store, sql, mut other) = set_up().await;
        let [restarted, looked_at, _] = ended(&sql, remove.day()).await;
        let restart = reopening(&store, heddle_domain::id::RunId(restarted)).await;
        let look = other.transaction().await.unwrap();
        let hold = "SELECT FROM heddle.runs_done WHERE id = $1 FOR UPDATE";
        look.execute(hold, &[&looked_at]).await.unwrap();
        assert_eq!(unhindered(remove.carried_out(&store)).await, 1, "{remove:?}");
        assert_eq!(count(&sql, "runs_done").await, 2, "{remove:?}");
        restart.commit().await.unwrap();
        look.rollback().await.unwrap();
        assert_eq!(remove.carried_out(&store).await, 1, "{remove:?}");
        assert_eq!(
            (count(&sql, "runs_done").await, count(&sql, "runs_live").await),
            (0, 1),
            "{remove:?}"
        );
    }
}

/// `due_logs`: the log of a run that somebody has is kept, and nobody waits; that of a run that was restarted stays.
#[tokio::test]
async fn logs_of_runs_that_somebody_has() {
    let (_world, store, sql, _) = set_up().await;
    let ids = ended(&sql, KEPT_APART).await;
    let lines: Vec<LogRow> = ids
        .iter()
        .map(|id| LogRow {
            run: heddle_domain::id::RunId(*id),
            at: first(),
            line: 0,
            time: Wall.now(),
            level: LogLevel::Info,
            message: "x".into(),
            fields: None,
        })
        .collect();
    store.insert_logs(&lines).await.unwrap();
    let cluster = Retention {
        logs: Some(HOUR),
        ..Retention::default()
    };
    let rules = RunRules::new(&cluster, &[]);
    let prune = async || {
        store
            .prune_logs(&rules, day(KEPT_APART), Wall.now(), 10)
            .await
            .expect("an answer")
    };
    let restart = reopening(&store, heddle_domain::id::RunId(ids[0])).await;
    assert_eq!(unhindered(prune()).await, 2);
    assert_eq!(count(&sql, "logs").await, 1);
    restart.commit().await.unwrap();
    assert_eq!(prune().await, 0);
    let kept = format!("logs WHERE run = '{}'", ids[0]);
    assert_eq!((count(&sql, "logs").await, count(&sql, &kept).await), (1, 1));
}

/// `day_needed`: a day that seems unneeded is checked again by whoever has locked its tables exclusively; a run that
/// has come back by then keeps it. While somebody writes to the tables, the day is left for later.
#[tokio::test]
async fn days_that_are_needed_after_all() {
    let (_world, store, sql, _) = set_up().await;
    let [restarted, ..] = ended(&sql, KEPT_APART).await;
    let rules = RunRules::new(&Retention::default(), &[]);
    let (day, now) = (day(KEPT_APART), Wall.now());
    let restart = reopening(&store, heddle_domain::id::RunId(restarted)).await;
    assert!(!unhindered(store.is_day_needed(&rules, day, now, false)).await.unwrap());
    assert_eq!(store.drop_run_day(&rules, day, now).await.unwrap(), Dropped::Busy);
    restart.commit().await.unwrap();
    assert_eq!(store.drop_run_day(&rules, day, now).await.unwrap(), Dropped::Needed);
    assert_eq!((count(&sql, "runs_done").await, count(&sql, "runs_live").await), (2, 1));
    sql.batch_execute("DELETE FROM heddle.runs_live").await.unwrap();
    assert_eq!(store.drop_run_day(&rules, day, now).await.unwrap(), Dropped::Gone);
    assert_eq!(count(&sql, "runs_done").await, 0);
}

/// A run that somebody has is waited for by who deletes it: one that was restarted is not deleted, one that was only looked at
/// is.
#[tokio::test]
async fn runs_that_are_deleted() {
    let (_world, store, sql, _) = set_up().await;
    let [restarted, looked_at, _] = ended(&sql, KEPT_APART).await;
    let group = group(&sql, "g").await;
    let of_group = "UPDATE heddle.runs_done SET group_id = $1";
    assert_eq!(sql.execute(of_group, &[&group]).await.unwrap(), 3);
    for (run, restarts) in [(restarted, true), (looked_at, false)] {
        let run = heddle_domain::id::RunId(run);
        let restart = reopening(&store, run).await;
        let deleting = store.clone();
        let deleting = tokio::spawn(async move {
            let by = By {
                actor: "test",
                at: Wall.now(),
            };
            deleting.delete_runs(by, &[run]).await.expect("an answer")
        });
        waiting(&sql, 1).await;
        match restarts {
            true => restart.commit().await.unwrap(),
            false => drop(restart),
        }
        assert_eq!(deleting.await.unwrap().len(), usize::from(!restarts));
    }
    assert_eq!((count(&sql, "runs_done").await, count(&sql, "runs_live").await), (1, 1));
}

/// `make_partitions`, `make_dispatch_partitions`: who makes partitions waits for who makes them, and makes those that are
/// missing then.
/// Without the lock in these functions, the second would find no tables, wait for the first at the parent table, and fail
/// because the tables exist.
#[tokio::test]
async fn partitions_that_two_make() {
    let (world, _, sql, mut other) = set_up().await;
    let second = world.sql().await;
    for (function, all) in [("make_partitions", 8), ("make_dispatch_partitions", 4)] {
        for (day, commits, left) in [(KEPT_APART, false, all), (BY_DEFAULT, true, 0)] {
            let make = format!("SELECT heddle.{function}('{day}', 2)");
            let first = other.transaction().await.unwrap();
            let made: i32 = first.query_one(&make, &[]).await.unwrap().get(0);
            assert_eq!(made, all, "{function}");
            let making = second.query_one(&make, &[]);
            let made: i32 = meanwhile(&sql, making, close(first, commits)).await.unwrap().get(0);
            assert_eq!(made, left, "{function} {commits}");
        }
    }
}

/// `make_all_partitions`: gives up after a moment while another node is at it, and changes nothing. Two who do so at once
/// make what is missing once.
/// Without the lock, it would make partitions beside the other; without the limit of its waits, it would wait here for ever.
#[tokio::test]
async fn partitions_while_another_makes_them() {
    let (world, store, _sql, mut other) = set_up().await;
    let again = super::store(&world).await;
    // Those of yesterday and of the next seven days are there already.
    let days = 12;
    let last = Day(Wall.now().date_naive() + TimeDelta::days(10));
    let tables = [
        Partitioned::Runs,
        Partitioned::Logs,
        Partitioned::Events,
        Partitioned::Assignments,
    ];
    let holder = other.transaction().await.unwrap();
    let hold = "SELECT pg_advisory_xact_lock(hashtext('heddle.make_partitions'))";
    holder.batch_execute(hold).await.unwrap();
    let made = unhindered(store.make_all_partitions(days)).await;
    assert!(matches!(made, Err(StoreError::Conflict(_))), "{made:?}");
    for table in tables {
        assert!(!store.partition_days(table).await.unwrap().contains(&last), "{table:?}");
    }
    close(holder, false).await;

    let (one, two) =
        unhindered(async { tokio::join!(store.make_all_partitions(days), again.make_all_partitions(days)) }).await;
    for made in [one, two] {
        // Whoever waits for longer than a moment tries again later.
        assert!(matches!(made, Ok(()) | Err(StoreError::Conflict(_))), "{made:?}");
    }
    eventually("node that has made them", async || {
        let made = store.make_all_partitions(days).await;
        if matches!(made, Err(StoreError::Conflict(_))) {
            return None;
        }
        made.expect("partitions");
        Some(())
    })
    .await;
    for table in tables {
        assert!(store.partition_days(table).await.unwrap().contains(&last), "{table:?}");
    }
}
