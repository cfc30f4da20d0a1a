//! Reads runs, live and ended.

mod detail;
mod errors;
mod kept;
mod list;
pub mod live;
pub mod log;
mod outputs;
mod outputs_asked;
pub(crate) mod remove;
mod row;
mod terms;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::TaskKey;
use heddle_domain::state::RunState;
use serde_json::Value;
use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

use crate::{Store, StoreError};

pub use detail::{AttemptView, OverrideView, RunDetail, WaitView};
pub use list::{RunFilter, StateOfRun};
pub use outputs_asked::Outputs;
pub use row::RunRow;
use row::{DONE, JOINS, LIVE, NAMES};
pub use terms::RunTerms;

impl Store {
    /// A run, without its attempts.
    pub async fn run(&self, id: RunId) -> Result<Option<RunRow>, StoreError> {
        let mut query = QueryBuilder::<Postgres>::new("");
        for (table, columns) in [("heddle.runs_live", &*LIVE), ("heddle.runs_done", &*DONE)] {
            if table == "heddle.runs_done" {
                query.push(" UNION ALL ");
            }
            query
                .push("SELECT ")
                .push(columns.as_str())
                .push(NAMES)
                .push(format!(" FROM {table} l"))
                .push(JOINS)
                .push("WHERE l.id = ");
            query.push_bind(id.0);
        }
        let row = query.build().fetch_optional(&self.pool).await?;
        row.as_ref().map(RunRow::read).transpose()
    }

    /// Whether a run has ended; `None`: there is no such run.
    pub async fn run_ended(&self, id: RunId) -> Result<Option<bool>, StoreError> {
        let row = sqlx::query!(
            r#"SELECT true AS "ended!" FROM heddle.runs_done WHERE id = $1
               UNION ALL SELECT false FROM heddle.runs_live WHERE id = $1"#,
            id.0
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(row.map(|row| row.ended))
    }

    /// Outputs of tasks of a run: for each task run, that of its last attempt or override, `None` if that was no
    /// success, and its time. Of items only successes are returned: the caller knows which of them have succeeded. Of the
    /// items of `large` tasks, only the times are read. Ordered by task and item.
    pub async fn outputs(
        &self,
        run: RunId,
        tasks: &[i16],
        large: &[i16],
    ) -> Result<Vec<(TaskKey, Time, Option<String>)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT DISTINCT ON (task, item) task AS "task!", item AS "item!", at AS "at!", output
                 FROM (SELECT task, item, finished_at AS at,
                              CASE WHEN state = 1 AND (item = -1 OR task <> ALL ($3)) THEN output END AS output,
                              0 AS overridden
                         FROM heddle.attempts
                        WHERE run = $1 AND task = ANY ($2) AND (state = 1 OR item = -1)
                       UNION ALL
                       SELECT task, item, at,
                              CASE WHEN state = 5 AND (item = -1 OR task <> ALL ($3)) THEN output END, 1
                         FROM heddle.overrides
                        WHERE run = $1 AND task = ANY ($2) AND (state = 5 OR item = -1)) AS outputs
                ORDER BY task, item, at DESC, overridden DESC"#,
            run.0,
            tasks,
            large
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| (TaskKey::from_numbers(row.task, row.item), row.at, row.output))
            .collect())
    }

    /// The progress of a live run, as bytes.
    pub async fn progress(&self, run: RunId) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(
            sqlx::query_scalar!("SELECT progress FROM heddle.runs_live WHERE id = $1", run.0)
                .fetch_optional(&self.pool)
                .await?,
        )
    }

    /// The progress of runs as bytes, of those that have ended.
    pub async fn ended_progress(&self, runs: &[RunId]) -> Result<Vec<(RunId, Vec<u8>)>, StoreError> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        let rows = sqlx::query!("SELECT id, progress FROM heddle.runs_done WHERE id = ANY ($1)", &ids)
            .fetch_all(&self.pool)
            .await?;
        Ok(rows.into_iter().map(|row| (RunId(row.id), row.progress)).collect())
    }

    /// The items of a mapped task.
    pub async fn map_items(&self, run: RunId, task: u16) -> Result<Option<String>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT items FROM heddle.maps WHERE run = $1 AND task = $2",
            run.0,
            task as i16
        )
        .fetch_optional(&self.pool)
        .await?)
    }

    /// How many live runs there are in each state.
    pub async fn live_counts(&self) -> Result<Vec<(RunState, i64)>, StoreError> {
        let rows = sqlx::query!(r#"SELECT state, count(*) AS "count!" FROM heddle.runs_live GROUP BY state"#)
            .fetch_all(&self.pool)
            .await?;
        let known = |state| StoreError::known(RunState::from_number, state, ("runs_live", "state"), "any run");
        rows.into_iter().map(|row| Ok((known(row.state)?, row.count))).collect()
    }

    /// The row of a set of resolved scripts; created if needed.
    pub async fn resolution(&self, revision_id: i64, scripts: &Value) -> Result<i64, StoreError> {
        let found = sqlx::query_scalar!(
            "SELECT id FROM heddle.resolutions
              WHERE revision_id = $1 AND md5(scripts::text) = md5($2::jsonb::text) AND scripts = $2",
            revision_id,
            scripts
        )
        .fetch_optional(&self.pool)
        .await?;
        if let Some(id) = found {
            return Ok(id);
        }
        Ok(sqlx::query_scalar!(
            "INSERT INTO heddle.resolutions (revision_id, scripts) VALUES ($1, $2)
             ON CONFLICT (revision_id, md5(scripts::text)) DO UPDATE SET scripts = excluded.scripts RETURNING id",
            revision_id,
            scripts
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// The same for many revisions at once; the ids are in the order of `revisions`.
    pub async fn resolutions(&self, revisions: &[i64], scripts: &[Value]) -> Result<Vec<i64>, StoreError> {
        sqlx::query!(
            "INSERT INTO heddle.resolutions (revision_id, scripts)
             SELECT n.revision_id, n.scripts FROM UNNEST($1::bigint[], $2::jsonb[]) AS n (revision_id, scripts)
              WHERE NOT EXISTS (SELECT FROM heddle.resolutions r
                                 WHERE r.revision_id = n.revision_id AND r.scripts = n.scripts)
              ORDER BY n.revision_id
             ON CONFLICT DO NOTHING",
            revisions,
            scripts
        )
        .execute(&self.pool)
        .await?;
        Ok(sqlx::query_scalar!(
            "SELECT r.id
               FROM UNNEST($1::bigint[], $2::jsonb[]) WITH ORDINALITY AS n (revision_id, scripts, ordinal)
               JOIN heddle.resolutions r ON r.revision_id = n.revision_id
                AND md5(r.scripts::text) = md5(n.scripts::text) AND r.scripts = n.scripts
              ORDER BY n.ordinal",
            revisions,
            scripts
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Which script versions a resolution names.
    pub async fn resolved_scripts(&self, resolution_id: i64) -> Result<Option<Value>, StoreError> {
        Ok(
            sqlx::query_scalar!("SELECT scripts FROM heddle.resolutions WHERE id = $1", resolution_id)
                .fetch_optional(&self.pool)
                .await?,
        )
    }

    /// A value of a group's script state, with its version.
    pub async fn script_state(&self, group_id: i64, key: &str) -> Result<Option<(String, u64)>, StoreError> {
        let row = sqlx::query!(
            "SELECT value, version FROM heddle.script_state WHERE group_id = $1 AND key = $2",
            group_id,
            key
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(row.map(|row| (row.value, row.version as u64)))
    }

    /// How many task runs wait, and how many are running.
    pub async fn depths(&self) -> Result<Depths, StoreError> {
        Ok(sqlx::query_as!(
            Depths,
            r#"SELECT (SELECT count(*) FROM heddle.ready) + (SELECT count(*) FROM heddle.ready_pooled) AS "ready!",
                      (SELECT count(*) FROM heddle.queue_ready) AS "queued!",
                      (SELECT count(*) FROM heddle.queue_claims) AS "claimed!",
                      (SELECT count(*) FROM heddle.running) AS "running!",
                      (SELECT count(*) FROM heddle.timers WHERE kind = 0) AS "timers!""#
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// A group's runs that have not ended.
    pub async fn live_runs_of(&self, group_id: i64) -> Result<Vec<RunId>, StoreError> {
        let ids = sqlx::query_scalar!(
            "SELECT id FROM heddle.runs_live WHERE group_id = $1 ORDER BY id",
            group_id
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(ids.into_iter().map(RunId).collect())
    }
}

/// How many rows the small tables have.
#[derive(Clone, Copy, Debug)]
pub struct Depths {
    /// Task runs that nodes may claim.
    pub ready: i64,
    /// Task runs that workers may claim, over all queues.
    pub queued: i64,
    /// Task runs that workers hold.
    pub claimed: i64,
    /// Running attempts, including those of workers.
    pub running: i64,
    /// Retries that are not due yet.
    pub timers: i64,
}
