//! Removes what has been kept for long enough. `docs/retention.md` says what; this module is how.
//!
//! # Days
//!
//! A run, and what belongs to it, is in the partitions of the day in its id: the day of its creation. A day whose runs
//! have all ended and are all due is dropped as a whole, in one transaction: lock the four tables, check again, drop
//! their partitions, and note the day in *pruned_days*. What belongs to these runs in tables without days (keys,
//! dedupes, overrides, instants) is then deleted in bounded steps, by the range of ids, until the note is deleted: if a
//! node dies in between, the note stays, and no rows are forgotten.
//!
//! If some runs of a day are live, or are kept for longer than others, its due runs are deleted in bounded steps: one
//! transaction deletes a batch of runs with all of their data.
//!
//! # Locks
//!
//! A drop needs exclusive locks on its tables for a moment. It waits at most `LOCK_WAIT` for them, which is less than
//! the time after which Postgres searches for deadlocks: if a long transaction (a dump) holds them, nothing queues up
//! behind us, and a later round tries again. The check is repeated under these locks. So if a run is restarted
//! meanwhile, either the check finds it live, or the restart finds no run.
//!
//! Bounded deletes first lock the runs' rows in *runs_done*, and skip those that a control or another node has locked.
//!
//! # Instants
//!
//! Small rows of instants remain after their runs are deleted (`run/remove.rs`). They are deleted [`INSTANTS_KEPT`] after
//! the creation of these runs, except for the newest of each group, and for those that a waiting run may need.

mod due;
mod oldest;
pub mod others;
mod partitions;
mod rules;

use chrono::TimeDelta;
use heddle_domain::Time;
use heddle_domain::retention::Retention;
use heddle_domain::state::RunState;
use serde_json::Value;
use uuid::Uuid;

pub use self::due::DueRows;
pub use self::oldest::OldestDue;
#[cfg(test)]
pub(crate) use self::partitions::OF_RUNS;
pub use self::partitions::{Dropped, Partitioned};
pub use self::rules::{COUNT_MAX, Day, RunRules};
use self::rules::{id_floor, micros};
use crate::run::remove::{remove_left, remove_runs};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// How long instants are kept at least, from the creation of their runs. They are never deleted before these.
pub const INSTANTS_KEPT: TimeDelta = TimeDelta::days(400);

impl Store {
    /// Whether this node does the round of upkeep that is due now. The next round is due `after` that. `early`: the
    /// round may begin before it is due.
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

    /// The current rules for keeping runs.
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
            let own = serde_json::from_value(row.retention).map_err(|error| {
                let row = format!("of group {}", row.id);
                StoreError::unreadable("revisions", "spec.retention", row, error)
            })?;
            groups.push((row.id, own));
        }
        Ok(RunRules::new(cluster, &groups))
    }

    /// Removes up to `limit` due runs of a day, or of the default partition, with all that belongs to them; returns the
    /// state of each one.
    pub async fn prune_runs(
        &self,
        rules: &RunRules,
        day: Option<Day>,
        now: Time,
        limit: i64,
    ) -> Result<Vec<RunState>, StoreError> {
        transaction!(self, pool, "prune_runs", |tx| {
            tx.patiently();
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
            let states = remove_runs(&mut tx, &ids).await?;
            tx.commit().await?;
            Ok(states)
        })
    }

    /// Removes up to `limit` due runs of a group that keeps them for a shorter time than the others; returns the state
    /// of each one.
    pub async fn prune_runs_of(
        &self,
        rules: &RunRules,
        group_id: i64,
        now: Time,
        limit: i64,
    ) -> Result<Vec<RunState>, StoreError> {
        transaction!(self, pool, "prune_runs_of", |tx| {
            tx.patiently();
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
            let states = remove_runs(&mut tx, &ids).await?;
            tx.commit().await?;
            Ok(states)
        })
    }

    /// Removes the logs of up to `limit` runs of a day that are due before their runs.
    pub async fn prune_logs(&self, rules: &RunRules, day: Day, now: Time, limit: i64) -> Result<u64, StoreError> {
        let (first, behind) = day.ids();
        transaction!(self, pool, "prune_logs", |tx| {
            tx.patiently();
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
        })
    }

    /// Notes the successes of a day's runs that belong to instants, `limit` at a time after `after`; returns where the
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

    /// Continues to delete the rows of dropped days in tables without partitions; returns whether there is more.
    pub async fn clear_pruned_days(&self, limit: i64) -> Result<bool, StoreError> {
        let day = sqlx::query_scalar!("SELECT day FROM heddle.pruned_days ORDER BY day LIMIT 1")
            .fetch_optional(&self.pool)
            .await?;
        let Some(day) = day else { return Ok(false) };
        let gone = remove_left(&self.pool, Day(day).ids(), limit).await?;
        if gone == 0 {
            sqlx::query!("DELETE FROM heddle.pruned_days WHERE day = $1", day)
                .execute(&self.pool)
                .await?;
        }
        Ok(true)
    }

    /// Removes up to `limit` instants, and as many successes, whose runs are gone and were created before `before`. The
    /// age of the instant itself says nothing: a backfill may have written it today. For each group, the newest instant
    /// stays, and so does all that a waiting run may need: what is in its interval or later, and the last before that.
    pub async fn prune_instants(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        let needed_from = self.needed_from().await?;
        let successes = sqlx::query!(
            "DELETE FROM heddle.successes WHERE ctid = ANY (ARRAY(
                 SELECT s.ctid FROM heddle.successes s
                  WHERE s.run < $1
                    AND NOT EXISTS (SELECT FROM heddle.runs_done d WHERE d.id = s.run)
                    AND EXISTS (SELECT FROM heddle.successes n
                                 WHERE n.group_id = s.group_id AND n.logical_time > s.logical_time
                                   AND ($3::timestamptz IS NULL OR n.logical_time <= $3))
                  LIMIT $2))",
            id_floor(before),
            limit,
            needed_from
        )
        .execute(&self.pool)
        .await?;
        let instants = sqlx::query!(
            "DELETE FROM heddle.run_instants WHERE ctid = ANY (ARRAY(
                 SELECT i.ctid FROM heddle.run_instants i
                  WHERE i.run < $1
                    AND NOT EXISTS (SELECT FROM heddle.runs_done d WHERE d.id = i.run)
                    AND NOT EXISTS (SELECT FROM heddle.runs_live l WHERE l.id = i.run OFFSET 0)
                    AND EXISTS (SELECT FROM heddle.run_instants n
                                 WHERE n.group_id = i.group_id AND n.logical_time > i.logical_time
                                   AND ($3::timestamptz IS NULL OR n.logical_time <= $3))
                  LIMIT $2))",
            id_floor(before),
            limit,
            needed_from
        )
        .execute(&self.pool)
        .await?;
        Ok(successes.rows_affected() + instants.rows_affected())
    }

    /// Where the first interval begins for whose instants a run waits.
    async fn needed_from(&self) -> Result<Option<Time>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT min(interval_start) FROM heddle.runs_live
              WHERE id = ANY (ARRAY(SELECT run FROM heddle.waits WHERE upstreams))"
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Deletes at most `limit` nodes that were last seen before `before`.
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

    /// Deletes at most `limit` leases that no node has any more, and under which nothing runs.
    pub async fn prune_leases(&self, limit: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.leases WHERE lease IN (
                 SELECT l.lease FROM heddle.leases l
                  -- Read once: what runs is no more than the slots of all nodes.
                  WHERE l.lease <> ALL (ARRAY(SELECT n.lease FROM heddle.nodes n
                                               UNION SELECT r.lease FROM heddle.running r WHERE r.lease IS NOT NULL))
                  LIMIT $1)",
            limit
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }
}
