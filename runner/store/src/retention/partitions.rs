//! Partitions: one for each day, created ahead of time and dropped as a whole.

use heddle_domain::Time;

use super::rules::{Day, RunRules};
use crate::database::{PgSession, Transaction};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// How long dropping and creating partitions wait for a table.
const LOCK_WAIT: &str = "300ms";

/// The result of an attempt to drop a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Its partitions were dropped.
    Gone,
    /// Some of its rows have not ended or are not due.
    Needed,
    /// They did not exist any more.
    Before,
    /// Somebody has locked one of its tables; it is tried again later.
    Busy,
}

/// The statement that takes an exclusive lock on a table's parent. Partitions are named after these tables, and nothing
/// else has such names.
///
/// Locking: the tables in the order of [`OF_RUNS`], each waited for only for a moment ([`LOCK_WAIT`]): if somebody has
/// one of them, the transaction gives up all of them.
fn lock_statement(table: Partitioned) -> &'static str {
    match table {
        Partitioned::Logs => "LOCK TABLE ONLY heddle.logs IN ACCESS EXCLUSIVE MODE",
        Partitioned::Attempts => "LOCK TABLE ONLY heddle.attempts IN ACCESS EXCLUSIVE MODE",
        Partitioned::Maps => "LOCK TABLE ONLY heddle.maps IN ACCESS EXCLUSIVE MODE",
        Partitioned::Runs => "LOCK TABLE ONLY heddle.runs_done IN ACCESS EXCLUSIVE MODE",
        Partitioned::Events => "LOCK TABLE ONLY heddle.events IN ACCESS EXCLUSIVE MODE",
        Partitioned::Assignments => "LOCK TABLE ONLY heddle.assignments IN ACCESS EXCLUSIVE MODE",
    }
}

/// A table with a partition for each day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partitioned {
    Logs,
    Attempts,
    Maps,
    Runs,
    Events,
    Assignments,
}

impl Partitioned {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Logs => "logs",
            Self::Attempts => "attempts",
            Self::Maps => "maps",
            Self::Runs => "runs_done",
            Self::Events => "events",
            Self::Assignments => "assignments",
        }
    }
}

/// The tables whose partitions of a day are dropped together with the runs of that day.
pub(crate) const OF_RUNS: [Partitioned; 4] = [
    Partitioned::Logs,
    Partitioned::Attempts,
    Partitioned::Maps,
    Partitioned::Runs,
];

/// The conditions that are checked again before partitions are dropped.
#[derive(Clone, Copy)]
struct Recheck<'a> {
    rules: &'a RunRules,
    now: Time,
    /// Whether the runs themselves are dropped; otherwise only their logs.
    runs: bool,
}

impl Store {
    /// The days for which a table has a partition, oldest first.
    pub async fn partition_days(&self, table: Partitioned) -> Result<Vec<Day>, StoreError> {
        Ok(
            sqlx::query_scalar!(r#"SELECT heddle.partition_days($1) AS "day!""#, table.name())
                .fetch_all(&self.pool)
                .await?
                .into_iter()
                .map(Day)
                .collect(),
        )
    }

    /// Creates the partitions of the next days, unless another transaction keeps the tables locked for too long.
    ///
    /// Locking: an advisory lock (in the database's function), so that nodes do so one after another; then the tables,
    /// each waited for only for a moment.
    pub async fn make_all_partitions(&self, days: i32) -> Result<(), StoreError> {
        transaction!(self, pool, "make_partitions", once, |tx| {
            wait_little(&mut tx).await?;
            sqlx::query!(
                r#"SELECT heddle.make_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date - 1, $1) AS "made!""#,
                days
            )
            .fetch_one(&mut *tx)
            .await?;
            Ok(tx.commit().await?)
        })?;
        transaction!(self, pool, "make_dispatch_partitions", once, |tx| {
            wait_little(&mut tx).await?;
            sqlx::query!(
            r#"SELECT heddle.make_dispatch_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date - 1, $1) AS "made!""#,
                days
            )
            .fetch_one(&mut *tx)
            .await?;
            Ok(tx.commit().await?)
        })
    }

    /// Whether a run of a day is live or to be kept; `logs`: whether its logs are.
    pub async fn is_day_needed(&self, rules: &RunRules, day: Day, now: Time, logs: bool) -> Result<bool, StoreError> {
        let recheck = Recheck {
            rules,
            now,
            runs: !logs,
        };
        let mut connection = self.pool.acquire().await?;
        is_needed(&mut connection, recheck, day).await
    }

    /// Drops a day's runs, attempts, logs and maps, if all of its runs have ended and are due.
    pub async fn drop_run_day(&self, rules: &RunRules, day: Day, now: Time) -> Result<Dropped, StoreError> {
        let recheck = Recheck { rules, now, runs: true };
        self.drop_partitions(&OF_RUNS, day, Some(recheck)).await
    }

    /// Drops a day's logs, if those of all its runs are due.
    pub async fn drop_log_day(&self, rules: &RunRules, day: Day, now: Time) -> Result<Dropped, StoreError> {
        let recheck = Recheck {
            rules,
            now,
            runs: false,
        };
        self.drop_partitions(&[Partitioned::Logs], day, Some(recheck)).await
    }

    /// Drops a day of a table whose rows are due by their day alone: events, assignments.
    pub async fn drop_day(&self, table: Partitioned, day: Day) -> Result<Dropped, StoreError> {
        self.drop_partitions(&[table], day, None).await
    }

    async fn drop_partitions(
        &self,
        tables: &[Partitioned],
        day: Day,
        recheck: Option<Recheck<'_>>,
    ) -> Result<Dropped, StoreError> {
        let dropped = transaction!(self, pool, "drop_partitions", once, |tx| {
            wait_little(&mut tx).await?;
            for &table in tables {
                sqlx::query(lock_statement(table)).execute(&mut *tx).await?;
            }
            if let Some(recheck) = recheck {
                if is_needed(&mut tx, recheck, day).await? {
                    return Ok(Dropped::Needed);
                }
                if recheck.runs {
                    sqlx::query!(
                        "INSERT INTO heddle.pruned_days (day, at) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                        day.0,
                        recheck.now
                    )
                    .execute(&mut *tx)
                    .await?;
                }
            }
            let mut any = false;
            for table in tables {
                any |= sqlx::query_scalar!(
                    r#"SELECT heddle.drop_partition($1, $2) AS "dropped!""#,
                    table.name(),
                    day.0
                )
                .fetch_one(&mut *tx)
                .await?;
            }
            if !any {
                // Another node was faster.
                return Ok(Dropped::Before);
            }
            tx.commit().await?;
            Ok(Dropped::Gone)
        });
        match dropped {
            // A lock was not available in time.
            Err(StoreError::Conflict(_)) => Ok(Dropped::Busy),
            done => done,
        }
    }
}

/// Limits the transaction's waits for tables, so that it delays nobody behind it.
async fn wait_little(tx: &mut Transaction) -> Result<(), StoreError> {
    tx.patiently();
    sqlx::query!("SELECT set_config('lock_timeout', $1, true)", LOCK_WAIT)
        .fetch_one(&mut **tx)
        .await?;
    Ok(())
}

/// Whether a run of a day is live, or is to be kept.
async fn is_needed(connection: &mut PgSession, recheck: Recheck<'_>, day: Day) -> Result<bool, StoreError> {
    let Recheck { rules, now, runs } = recheck;
    let keep_micros = if runs { &rules.runs_micros } else { &rules.logs_micros };
    let (first, behind) = day.ids();
    Ok(sqlx::query_file_scalar!(
        "src/sql/day_needed.sql",
        &rules.groups,
        &rules.states,
        keep_micros,
        first,
        behind,
        now
    )
    .fetch_one(connection)
    .await?)
}
