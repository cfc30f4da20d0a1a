//! Removing what has been kept for long enough. `docs/retention.md` tells what; here is how.
//!
//! # Days
//!
//! A run, and what belongs to it, lies in the partitions of the day in its id: the day on which it was made. A day whose
//! runs have all ended and are all due is dropped as a whole, in one transaction: lock the four tables, look once more,
//! drop their partitions, and note the day in *pruned_days*. What belongs to these runs in tables without days (keys,
//! dedupes, overrides, instants) follows in bounded deletes, by the range of ids, until the note is struck out: a node
//! that dies in between leaves the note, not the rows.
//!
//! A day of which some runs live, or are to be kept for longer than others, loses its due runs by bounded deletes, with
//! all that belongs to them, one transaction for each batch.
//!
//! # Locks
//!
//! Dropping needs its tables alone for a moment. It waits for them `LOCK_WAIT` at most, less than what Postgres takes to
//! look for deadlocks: if a long transaction (a dump) is in the way, nothing queues up behind us, and a later round tries
//! again. Looking once more happens under these locks, so a run that is restarted meanwhile is either seen among the
//! living, or finds nothing to restart.
//!
//! Bounded deletes lock the runs' rows in *runs_done* first, skipping those that a control or another node has.
//!
//! # Instants
//!
//! Groups that follow others ask for instants that may lie further back than any run is kept (the last one of a yearly
//! group). So before a run goes, its success is noted in *successes*; of each group the newest instant stays in
//! *run_instants*, and so do instants that the overlap left out. These small rows go after [`INSTANTS_KEPT`], except for
//! each group's newest.

use chrono::{DateTime, Days, NaiveDate, NaiveTime, TimeDelta, Utc};
use heddle_domain::Time;
use heddle_domain::retention::{EndState, GroupRetention, Kept, Retention};
use serde_json::Value;
use sqlx::{PgConnection, Postgres, Transaction};
use uuid::Uuid;

use crate::{Store, StoreError};

/// How long dropping and making partitions wait for a table.
const LOCK_WAIT: &str = "300ms";

/// How long instants are remembered beyond their runs.
pub const INSTANTS_KEPT: TimeDelta = TimeDelta::days(400);

/// Partitions are made from yesterday on; only what lies before that is dropped.
const OVER_AFTER: TimeDelta = TimeDelta::days(1);

/// Up to how many rows a preview counts.
pub const COUNT_MAX: i64 = 1_000_000;

/// The day of ids and of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(pub NaiveDate);

impl Day {
    /// The first instant.
    pub fn start(self) -> Time {
        DateTime::<Utc>::from_naive_utc_and_offset(self.0.and_time(NaiveTime::MIN), Utc)
    }

    /// The first instant of the next day.
    pub fn end(self) -> Time {
        Self(self.0.checked_add_days(Days::new(1)).unwrap_or(NaiveDate::MAX)).start()
    }

    /// Whether it has been over for long enough that nobody makes its partitions again.
    pub fn is_over(self, now: Time) -> bool {
        self.end() + OVER_AFTER <= now
    }

    fn ids(self) -> (Uuid, Uuid) {
        (id_floor(self.start()), id_floor(self.end()))
    }
}

/// The smallest id of an instant's millisecond, as `heddle.uuid_floor` has it: where partitions begin.
fn id_floor(at: Time) -> Uuid {
    let millis = u128::try_from(at.timestamp_millis()).unwrap_or(0);
    Uuid::from_u128(millis << 80)
}

/// Which runs are due: for each group that says something of its own, and for the others.
#[derive(Clone, Debug, Default)]
pub struct RunRules {
    /// 0 stands for all groups without a rule of their own.
    groups: Vec<i64>,
    states: Vec<i16>,
    runs_micros: Vec<i64>,
    logs_micros: Vec<i64>,
    /// Groups that keep some runs for a shorter time than the others do.
    pub shorter: Vec<i64>,
    /// The shortest that runs are kept by the cluster's rules, and by any.
    cluster_min: TimeDelta,
    shorter_min: TimeDelta,
    logs_min: TimeDelta,
}

impl RunRules {
    /// The cluster's rules, and those of groups that have some.
    pub fn new(cluster: &Retention, groups: &[(i64, GroupRetention)]) -> Self {
        let mut rules = Self {
            cluster_min: TimeDelta::MAX,
            shorter_min: TimeDelta::MAX,
            logs_min: TimeDelta::MAX,
            ..Self::default()
        };
        for state in EndState::ALL {
            let kept = cluster.kept(None, state);
            rules.cluster_min = rules.cluster_min.min(kept.runs.chrono());
            rules.add(0, state, kept);
        }
        for (group, own) in groups {
            let mut shorter = false;
            for state in EndState::ALL {
                let kept = cluster.kept(Some(own), state);
                if kept.runs < cluster.kept(None, state).runs {
                    shorter = true;
                    rules.shorter_min = rules.shorter_min.min(kept.runs.chrono());
                }
                rules.add(*group, state, kept);
            }
            if shorter {
                rules.shorter.push(*group);
            }
        }
        rules
    }

    fn add(&mut self, group: i64, state: EndState, kept: Kept) {
        self.groups.push(group);
        self.states.push(state.state().number());
        self.runs_micros.push(micros(kept.runs.chrono()));
        self.logs_micros.push(micros(kept.logs.chrono()));
        self.logs_min = self.logs_min.min(kept.logs.chrono());
    }

    /// Whether runs of a day may be due by the cluster's rules.
    pub fn may_be_due(&self, day: Day, now: Time) -> bool {
        day.start() < now - self.cluster_min
    }

    /// Whether some logs are kept for a shorter time than their runs.
    pub fn logs_go_first(&self) -> bool {
        self.logs_micros != self.runs_micros
    }

    /// Whether logs of a day may be due.
    pub fn logs_may_be_due(&self, day: Day, now: Time) -> bool {
        day.start() < now - self.logs_min
    }

    /// Before what instant a run of a group with a shorter rule must have been made to be due.
    fn shorter_before(&self, now: Time) -> Time {
        now.checked_sub_signed(self.shorter_min).unwrap_or(Time::MIN_UTC)
    }
}

fn micros(span: TimeDelta) -> i64 {
    span.num_microseconds().unwrap_or(i64::MAX)
}

/// What came of an attempt to drop a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Its partitions are gone.
    Gone,
    /// Not all that is in it has ended and is due.
    Needed,
    /// They were gone already.
    Before,
    /// Somebody has one of its tables; later.
    Busy,
}

/// The statement that takes a table's parent alone. Partitions are named after these tables, and nobody else names them.
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
    fn name(self) -> &'static str {
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

/// What is looked at once more before partitions are dropped.
#[derive(Clone, Copy)]
struct Look<'a> {
    rules: &'a RunRules,
    keep_micros: &'a [i64],
    now: Time,
    /// Whether the runs themselves go.
    runs: bool,
}

impl Store {
    /// Whether this node is the one that does what is due now; it will be due again `after` that. With `early`, even if it
    /// is not due yet.
    pub async fn take_upkeep(&self, name: &str, now: Time, after: TimeDelta, early: bool) -> Result<bool, StoreError> {
        Ok(sqlx::query!(
            "UPDATE heddle.upkeep SET due_at = $2::timestamptz + $3::bigint * interval '1 microsecond'
              WHERE name = $1 AND (due_at <= $2 OR $4)",
            name,
            now,
            micros(after),
            early,
        )
        .execute(&self.pool)
        .await?
        .rows_affected()
            > 0)
    }

    /// The rules by which runs are kept now.
    pub async fn run_rules(&self, cluster: &Retention) -> Result<RunRules, StoreError> {
        let rows = sqlx::query!(
            r#"WITH ruled AS MATERIALIZED (
                   SELECT r.id, r.group_id, r.spec -> 'retention' AS retention FROM heddle.revisions r
                    WHERE jsonb_typeof(r.spec -> 'retention') = 'object')
               SELECT r.group_id AS id, r.retention AS "retention!: Value" FROM ruled r
                CROSS JOIN LATERAL (SELECT FROM heddle.groups g
                                     WHERE g.id = r.group_id AND g.revision_id = r.id OFFSET 0) AS current"#
        )
        .fetch_all(&self.pool)
        .await?;
        let mut groups = Vec::with_capacity(rows.len());
        for row in rows {
            let own = serde_json::from_value(row.retention).map_err(|error| StoreError::Unreadable {
                table: "revisions",
                detail: format!("retention of group {}: {error}", row.id),
            })?;
            groups.push((row.id, own));
        }
        Ok(RunRules::new(cluster, &groups))
    }

    /// The days of which a table has a partition, oldest first.
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

    /// Makes the partitions of the next days, unless somebody has the tables for long.
    pub async fn make_all_partitions(&self, days: i32) -> Result<(), StoreError> {
        let mut tx = self.with_lock_wait().await?;
        sqlx::query!(
            r#"SELECT heddle.make_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date - 1, $1) AS "made!""#,
            days
        )
        .fetch_one(&mut *tx)
        .await?;
        tx.commit().await?;
        let mut tx = self.with_lock_wait().await?;
        sqlx::query!(
            r#"SELECT heddle.make_dispatch_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date - 1, $1) AS "made!""#,
            days
        )
        .fetch_one(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(())
    }

    /// A transaction that does not wait for tables, and so holds nobody up who comes after it.
    async fn with_lock_wait(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query!("SELECT set_config('lock_timeout', $1, true)", LOCK_WAIT)
            .fetch_one(&mut *tx)
            .await?;
        Ok(tx)
    }

    /// Removes up to `limit` due runs of a day, or of the default partition, with all that belongs to them.
    pub async fn prune_runs(
        &self,
        rules: &RunRules,
        day: Option<Day>,
        now: Time,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let ids = if let Some(day) = day {
            let (first, behind) = day.ids();
            sqlx::query_file_scalar!(
                "src/sql/due_runs.sql",
                &rules.groups,
                &rules.states,
                &rules.runs_micros,
                first,
                behind,
                now,
                limit
            )
            .fetch_all(&mut *tx)
            .await?
        } else {
            sqlx::query_file_scalar!(
                "src/sql/due_runs_default.sql",
                &rules.groups,
                &rules.states,
                &rules.runs_micros,
                now,
                limit
            )
            .fetch_all(&mut *tx)
            .await?
        };
        remove_runs(&mut tx, &ids).await?;
        tx.commit().await?;
        Ok(ids.len() as u64)
    }

    /// Removes up to `limit` due runs of a group that keeps them for a shorter time than the others.
    pub async fn prune_runs_of(
        &self,
        rules: &RunRules,
        group_id: i64,
        now: Time,
        limit: i64,
    ) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let ids = sqlx::query_file_scalar!(
            "src/sql/due_runs_of.sql",
            &rules.groups,
            &rules.states,
            &rules.runs_micros,
            group_id,
            id_floor(rules.shorter_before(now)),
            now,
            limit
        )
        .fetch_all(&mut *tx)
        .await?;
        remove_runs(&mut tx, &ids).await?;
        tx.commit().await?;
        Ok(ids.len() as u64)
    }

    /// Removes the logs of up to `limit` runs of a day that are due before their runs.
    pub async fn prune_logs(&self, rules: &RunRules, day: Day, now: Time, limit: i64) -> Result<u64, StoreError> {
        let (first, behind) = day.ids();
        let mut tx = self.begin().await?;
        let ids = sqlx::query_file_scalar!(
            "src/sql/due_logs.sql",
            &rules.groups,
            &rules.states,
            &rules.logs_micros,
            first,
            behind,
            now,
            limit
        )
        .fetch_all(&mut *tx)
        .await?;
        sqlx::query!("DELETE FROM heddle.logs WHERE run = ANY ($1)", &ids)
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(ids.len() as u64)
    }

    /// Notes the successes of a day's runs that belong to instants, `limit` at a time behind `after`; answers where the
    /// next batch begins.
    pub async fn note_day_successes(
        &self,
        day: Day,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Option<Uuid>, StoreError> {
        let (first, behind) = day.ids();
        Ok(sqlx::query_scalar!(
            r#"WITH batch AS (
                   SELECT i.run, i.group_id, i.logical_time FROM heddle.run_instants i
                    WHERE i.run >= $1 AND i.run < $2 AND ($3::uuid IS NULL OR i.run > $3) AND NOT i.skipped
                    ORDER BY i.run LIMIT $4
               ), noted AS (
                   INSERT INTO heddle.successes (group_id, logical_time, run)
                   SELECT b.group_id, b.logical_time, b.run
                     FROM batch b JOIN heddle.runs_done d ON d.id = b.run AND d.state = 3
                    ORDER BY 1, 2
                   ON CONFLICT DO NOTHING
               )
               SELECT run FROM batch ORDER BY run DESC LIMIT 1"#,
            first,
            behind,
            after,
            limit
        )
        .fetch_optional(&self.pool)
        .await?)
    }

    /// Whether a run of a day lives or is to be kept; `logs`: for its logs.
    pub async fn is_day_needed(&self, rules: &RunRules, day: Day, now: Time, logs: bool) -> Result<bool, StoreError> {
        let keep_micros = if logs { &rules.logs_micros } else { &rules.runs_micros };
        let mut connection = self.pool.acquire().await?;
        is_needed(&mut connection, rules, keep_micros, day, now).await
    }

    /// Drops a day's runs, attempts, logs and maps, if all of its runs have ended and are due.
    pub async fn drop_run_day(&self, rules: &RunRules, day: Day, now: Time) -> Result<Dropped, StoreError> {
        let look = Look {
            rules,
            keep_micros: &rules.runs_micros,
            now,
            runs: true,
        };
        let tables = [
            Partitioned::Logs,
            Partitioned::Attempts,
            Partitioned::Maps,
            Partitioned::Runs,
        ];
        self.drop_partitions(&tables, day, Some(look)).await
    }

    /// Drops a day's logs, if those of all its runs are due.
    pub async fn drop_log_day(&self, rules: &RunRules, day: Day, now: Time) -> Result<Dropped, StoreError> {
        let look = Look {
            rules,
            keep_micros: &rules.logs_micros,
            now,
            runs: false,
        };
        self.drop_partitions(&[Partitioned::Logs], day, Some(look)).await
    }

    /// Drops a day of a table whose rows are due by their day alone: events, assignments.
    pub async fn drop_day(&self, table: Partitioned, day: Day) -> Result<Dropped, StoreError> {
        self.drop_partitions(&[table], day, None).await
    }

    async fn drop_partitions(
        &self,
        tables: &[Partitioned],
        day: Day,
        look: Option<Look<'_>>,
    ) -> Result<Dropped, StoreError> {
        match self.drop_partitions_once(tables, day, look).await {
            // A lock was not to be had in time.
            Err(StoreError::Conflict(_)) => Ok(Dropped::Busy),
            done => done,
        }
    }

    async fn drop_partitions_once(
        &self,
        tables: &[Partitioned],
        day: Day,
        look: Option<Look<'_>>,
    ) -> Result<Dropped, StoreError> {
        let mut tx = self.with_lock_wait().await?;
        for &table in tables {
            sqlx::query(lock_statement(table)).execute(&mut *tx).await?;
        }
        if let Some(look) = look {
            if is_needed(&mut tx, look.rules, look.keep_micros, day, look.now).await? {
                return Ok(Dropped::Needed);
            }
            if look.runs {
                sqlx::query!(
                    "INSERT INTO heddle.pruned_days (day, at) VALUES ($1, $2) ON CONFLICT DO NOTHING",
                    day.0,
                    look.now
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
            // Another node was quicker.
            return Ok(Dropped::Before);
        }
        tx.commit().await?;
        Ok(Dropped::Gone)
    }

    /// Goes on with what dropped days have left in tables without days; answers whether there is more.
    pub async fn clear_pruned_days(&self, limit: i64) -> Result<bool, StoreError> {
        let day = sqlx::query_scalar!("SELECT day FROM heddle.pruned_days ORDER BY day LIMIT 1")
            .fetch_optional(&self.pool)
            .await?;
        let Some(day) = day else { return Ok(false) };
        let (first, behind) = Day(day).ids();
        let mut gone = 0;
        macro_rules! clear {
            ($statement:literal) => {
                gone += sqlx::query!($statement, first, behind, limit)
                    .execute(&self.pool)
                    .await?
                    .rows_affected();
            };
        }
        clear!(
            "DELETE FROM heddle.run_keys WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM heddle.run_keys WHERE run >= $1 AND run < $2 LIMIT $3))"
        );
        clear!(
            "DELETE FROM heddle.run_dedupes WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM heddle.run_dedupes WHERE run >= $1 AND run < $2 LIMIT $3))"
        );
        clear!(
            "DELETE FROM heddle.told_starts WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM heddle.told_starts WHERE run >= $1 AND run < $2 LIMIT $3))"
        );
        clear!(
            "DELETE FROM heddle.overrides WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM heddle.overrides WHERE run >= $1 AND run < $2 LIMIT $3))"
        );
        clear!(
            "DELETE FROM heddle.run_instants WHERE ctid = ANY (ARRAY(
                 SELECT i.ctid FROM heddle.run_instants i WHERE i.run >= $1 AND i.run < $2 AND NOT i.skipped
                    AND EXISTS (SELECT FROM heddle.run_instants n
                                 WHERE n.group_id = i.group_id AND n.logical_time > i.logical_time)
                  LIMIT $3))"
        );
        if gone == 0 {
            sqlx::query!("DELETE FROM heddle.pruned_days WHERE day = $1", day)
                .execute(&self.pool)
                .await?;
        }
        Ok(true)
    }

    /// Removes up to `limit` instants, and as many successes, that are older than `before` and not their group's newest.
    pub async fn prune_instants(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        let successes = sqlx::query!(
            "DELETE FROM heddle.successes WHERE ctid = ANY (ARRAY(
                 SELECT s.ctid FROM heddle.successes s
                  WHERE s.logical_time < $1
                    AND NOT EXISTS (SELECT FROM heddle.runs_done d WHERE d.id = s.run)
                    AND EXISTS (SELECT FROM heddle.successes n
                                 WHERE n.group_id = s.group_id AND n.logical_time > s.logical_time)
                  LIMIT $2))",
            before,
            limit
        )
        .execute(&self.pool)
        .await?;
        let instants = sqlx::query!(
            "DELETE FROM heddle.run_instants WHERE ctid = ANY (ARRAY(
                 SELECT i.ctid FROM heddle.run_instants i
                  WHERE i.logical_time < $1
                    AND NOT EXISTS (SELECT FROM heddle.runs_done d WHERE d.id = i.run)
                    AND NOT EXISTS (SELECT FROM heddle.runs_live l WHERE l.id = i.run OFFSET 0)
                    AND EXISTS (SELECT FROM heddle.run_instants n
                                 WHERE n.group_id = i.group_id AND n.logical_time > i.logical_time)
                  LIMIT $2))",
            before,
            limit
        )
        .execute(&self.pool)
        .await?;
        Ok(successes.rows_affected() + instants.rows_affected())
    }

    /// How many runs are due, by the number of their state; each up to [`COUNT_MAX`].
    pub async fn count_due_runs(&self, rules: &RunRules, now: Time) -> Result<Vec<(i16, i64)>, StoreError> {
        let mut counts = Vec::new();
        for state in EndState::ALL {
            let number = state.state().number();
            let count = sqlx::query_scalar!(
                r#"SELECT count(*) AS "count!" FROM (
                     SELECT FROM heddle.runs_done d
                       JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS every (group_id, state, keep)
                         ON every.group_id = 0 AND every.state = d.state
                       LEFT JOIN UNNEST($1::bigint[], $2::smallint[], $3::bigint[]) AS own (group_id, state, keep)
                         ON own.group_id = d.group_id AND own.state = d.state
                      WHERE d.state = $4
                        AND d.finished_at < $5::timestamptz
                            - coalesce(own.keep, every.keep) * interval '1 microsecond'
                      LIMIT $6) AS due"#,
                &rules.groups,
                &rules.states,
                &rules.runs_micros,
                number,
                now,
                COUNT_MAX
            )
            .fetch_one(&self.pool)
            .await?;
            counts.push((number, count));
        }
        Ok(counts)
    }

    /// How many audit rows, events and ended assignments are due; each up to [`COUNT_MAX`].
    pub async fn count_due_rows(&self, retention: &Retention, now: Time) -> Result<DueRows, StoreError> {
        Ok(sqlx::query_as!(
            DueRows,
            r#"SELECT (SELECT count(*) FROM (SELECT FROM heddle.audit WHERE at < $1 LIMIT $4) AS a) AS "audit!",
                      (SELECT count(*) FROM (SELECT FROM heddle.events WHERE at < $2 LIMIT $4) AS e) AS "events!",
                      (SELECT count(*) FROM (SELECT FROM heddle.assignments WHERE id < $3 LIMIT $4) AS s)
                          AS "assignments!""#,
            now - retention.audit.chrono(),
            now - retention.events.chrono(),
            id_floor(now - retention.assignments.chrono()),
            COUNT_MAX
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Drops at most `limit` nodes that were last seen before `before`.
    pub async fn prune_nodes(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.nodes WHERE id IN (
                 SELECT n.id FROM heddle.nodes n
                  WHERE n.heartbeat_at < $1 AND NOT EXISTS (SELECT FROM heddle.running r WHERE r.lease = n.lease)
                  LIMIT $2)",
            before,
            limit
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }

    /// Drops at most `limit` leases that nobody has any more, and under which nothing runs.
    pub async fn prune_leases(&self, limit: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.leases WHERE lease IN (
                 SELECT l.lease FROM heddle.leases l
                  WHERE NOT EXISTS (SELECT FROM heddle.nodes n WHERE n.lease = l.lease)
                    AND NOT EXISTS (SELECT FROM heddle.running r WHERE r.lease = l.lease)
                  LIMIT $1)",
            limit
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }
}

/// What is due of tables that are no runs.
#[derive(Clone, Copy, Debug)]
pub struct DueRows {
    pub audit: i64,
    pub events: i64,
    pub assignments: i64,
}

/// Whether a run of a day lives, or is to be kept.
async fn is_needed(
    connection: &mut PgConnection,
    rules: &RunRules,
    keep_micros: &[i64],
    day: Day,
    now: Time,
) -> Result<bool, StoreError> {
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

/// Removes runs, whose rows the caller has locked, with all that belongs to them.
async fn remove_runs(tx: &mut PgConnection, ids: &[Uuid]) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    sqlx::query!(
        "INSERT INTO heddle.successes (group_id, logical_time, run)
         SELECT i.group_id, i.logical_time, i.run
           FROM heddle.run_instants i JOIN heddle.runs_done d ON d.id = i.run AND d.state = 3
          WHERE i.run = ANY ($1) AND NOT i.skipped
          ORDER BY 1, 2
         ON CONFLICT DO NOTHING",
        ids
    )
    .execute(&mut *tx)
    .await?;
    macro_rules! remove {
        ($($statement:literal),+ $(,)?) => {
            $(sqlx::query!($statement, ids).execute(&mut *tx).await?;)+
        };
    }
    remove!(
        "DELETE FROM heddle.runs_done WHERE id = ANY ($1)",
        "DELETE FROM heddle.attempts WHERE run = ANY ($1)",
        "DELETE FROM heddle.logs WHERE run = ANY ($1)",
        "DELETE FROM heddle.maps WHERE run = ANY ($1)",
        "DELETE FROM heddle.overrides WHERE run = ANY ($1)",
        "DELETE FROM heddle.told_starts WHERE run = ANY ($1)",
        "DELETE FROM heddle.run_keys WHERE run = ANY ($1)",
        "DELETE FROM heddle.run_dedupes WHERE run = ANY ($1)",
        "DELETE FROM heddle.run_instants i WHERE i.run = ANY ($1) AND NOT i.skipped
            AND EXISTS (SELECT FROM heddle.run_instants n
                         WHERE n.group_id = i.group_id AND n.logical_time > i.logical_time)",
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_its_ids() {
        let day = Day(NaiveDate::from_ymd_opt(2026, 11, 20).unwrap());
        assert_eq!(day.start().to_rfc3339(), "2026-11-20T00:00:00+00:00");
        assert_eq!(day.end().to_rfc3339(), "2026-11-21T00:00:00+00:00");
        let (first, behind) = day.ids();
        assert!(!day.is_over(day.end()) && day.is_over(day.end() + TimeDelta::days(1)));
        assert!(first < behind && behind == Day(day.0.succ_opt().unwrap()).ids().0);
    }

    #[test]
    fn groups_that_keep_less_are_looked_after_by_themselves() {
        let cluster = Retention::default();
        let own = |text: &str| serde_json::from_str::<GroupRetention>(text).unwrap();
        let rules = RunRules::new(
            &cluster,
            &[
                (7, own(r#"{"runs": "1d"}"#)),
                (8, own(r#"{"runs": "1000d", "logs": "2d"}"#)),
            ],
        );
        assert_eq!(rules.shorter, [7]);
        let now = Day(NaiveDate::from_ymd_opt(2026, 11, 20).unwrap()).start();
        assert_eq!(rules.shorter_before(now), now - TimeDelta::days(1));
        let day = |ago: i64| Day((now - TimeDelta::days(ago)).date_naive());
        assert!(rules.may_be_due(day(91), now) && !rules.may_be_due(day(90), now));
        assert!(rules.logs_may_be_due(day(2), now) && !rules.logs_may_be_due(day(1), now));
        assert_eq!(RunRules::new(&cluster, &[]).shorter_before(now), Time::MIN_UTC);
    }
}
