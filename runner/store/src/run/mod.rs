//! Reading runs, wherever they stand.

pub mod live;
pub mod log;

use std::collections::BTreeMap;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::TaskKey;
use heddle_domain::state::{AttemptState, ErrorKind, RunState, Skip, TaskState, Trigger};
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{Postgres, QueryBuilder, Row};
use uuid::Uuid;

use crate::{Store, StoreError};

/// A run, live or ended.
#[derive(Clone, Debug)]
pub struct RunRow {
    /// Its id.
    pub id: Uuid,
    /// Of which group.
    pub group_id: i64,
    /// The group's name.
    pub group_name: String,
    /// Which revision, as a number.
    pub revision: i32,
    /// Which revision, as an id.
    pub revision_id: i64,
    /// Which script versions.
    pub resolution_id: Option<i64>,
    /// How it stands.
    pub state: RunState,
    /// Why it was made.
    pub trigger: Trigger,
    /// Its place among others.
    pub priority: i16,
    /// What time it is about.
    pub logical_time: Time,
    /// From the previous instant …
    pub interval_start: Time,
    /// … to this one.
    pub interval_end: Time,
    /// JSON object.
    pub params: String,
    /// JSON object of objects.
    pub task_params: Option<String>,
    /// Free words.
    pub labels: Option<Value>,
    /// The caller's key.
    pub key: Option<String>,
    /// Who is told.
    pub callback: Option<String>,
    /// When it was made.
    pub created_at: Time,
    /// When it began.
    pub started_at: Option<Time>,
    /// When it must have ended.
    pub deadline_at: Option<Time>,
    /// The run that it is a sub-run of.
    pub parent_run: Option<Uuid>,
    /// The backfill or run that it was made by.
    pub source: Option<Uuid>,
    /// What it waits for.
    pub waiting_for: Option<Value>,
    /// Its progress as bytes.
    pub progress: Vec<u8>,
    /// When it ended.
    pub finished_at: Option<Time>,
    /// What went wrong.
    pub error: Option<String>,
    /// Why it was never begun.
    pub skipped: Option<Skip>,
}

impl RunRow {
    /// Reads what [`LIVE_COLUMNS`] or [`DONE_COLUMNS`] give.
    fn read(row: &PgRow) -> Result<Self, StoreError> {
        let id: Uuid = row.try_get("id")?;
        let state = row.try_get("state")?;
        let trigger = row.try_get("trigger")?;
        let skipped: Option<i16> = row.try_get("skipped")?;
        let skipped =
            skipped.map(|skipped| StoreError::known(Skip::from_number, skipped, ("runs_done", "skipped"), id));
        Ok(Self {
            id,
            group_id: row.try_get("group_id")?,
            group_name: row.try_get("group_name")?,
            revision: row.try_get("revision")?,
            revision_id: row.try_get("revision_id")?,
            resolution_id: row.try_get("resolution_id")?,
            state: StoreError::known(RunState::from_number, state, ("runs", "state"), id)?,
            trigger: StoreError::known(Trigger::from_number, trigger, ("runs", "trigger"), id)?,
            priority: row.try_get("priority")?,
            logical_time: row.try_get("logical_time")?,
            interval_start: row.try_get("interval_start")?,
            interval_end: row.try_get("interval_end")?,
            params: row.try_get("params")?,
            task_params: row.try_get("task_params")?,
            labels: row.try_get("labels")?,
            key: row.try_get("key")?,
            callback: row.try_get("callback")?,
            created_at: row.try_get("created_at")?,
            started_at: row.try_get("started_at")?,
            deadline_at: row.try_get("deadline_at")?,
            parent_run: row.try_get("parent_run")?,
            source: row.try_get("source")?,
            waiting_for: row.try_get("waiting_for")?,
            progress: row.try_get("progress")?,
            finished_at: row.try_get("finished_at")?,
            error: row.try_get("error")?,
            skipped: skipped.transpose()?,
        })
    }
}

/// An attempt, under way or ended.
#[derive(Clone, Debug)]
pub struct AttemptView {
    /// Of what.
    pub key: TaskKey,
    /// From 1.
    pub attempt: u32,
    /// How it ended, if it has.
    pub state: AttemptState,
    /// Whether it said that there was nothing to do.
    pub skipped: bool,
    /// From.
    pub started_at: Time,
    /// To.
    pub finished_at: Option<Time>,
    /// Where.
    pub node: Option<Uuid>,
    /// JSON text.
    pub output: Option<String>,
    /// What kind of failure.
    pub error_kind: Option<ErrorKind>,
    /// What went wrong.
    pub error_message: Option<String>,
    /// Where in the wasm.
    pub error_trace: Option<String>,
    /// Peak of linear memory.
    pub memory_bytes: Option<i64>,
    /// Time on a processor.
    pub cpu_micros: Option<i64>,
    /// The worker that claimed it.
    pub worker: Option<String>,
    /// While a worker holds it: how far it says that it has come.
    pub progress: Option<f64>,
    /// The same in words.
    pub note: Option<String>,
}

/// What an operator set by hand.
#[derive(Clone, Debug)]
pub struct OverrideView {
    /// Of what.
    pub key: TaskKey,
    /// When.
    pub at: Time,
    /// To which state.
    pub state: TaskState,
    /// Why.
    pub reason: String,
    /// Who.
    pub actor: String,
    /// What it stands for instead of an attempt's output.
    pub output: Option<String>,
}

/// A run with what belongs to it, of one moment.
#[derive(Clone, Debug)]
pub struct RunDetail {
    /// The run.
    pub run: RunRow,
    /// For each task run, its first attempt's beginning is the first row, its state the last.
    pub attempts: Vec<AttemptView>,
    /// In the order in which they were made. Those of the run itself have [`OverrideView::RUN`] for a task; `pending`
    /// means that the task run was cleared.
    pub overrides: Vec<OverrideView>,
    /// When task runs are tried again.
    pub due: BTreeMap<TaskKey, Time>,
    /// What task runs wait for that are ready.
    pub waits: BTreeMap<TaskKey, WaitView>,
}

/// What a task run waits for that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitView {
    /// Slots of these pools.
    Pools(Vec<String>),
    /// A worker of a queue.
    Queue {
        /// Which.
        queue: String,
        /// Nothing is claimed from it at present.
        paused: bool,
        /// Its rate limit gives the next claim then.
        limited_until: Option<Time>,
    },
}

impl OverrideView {
    /// The number that stands for the run itself.
    pub const RUN: u16 = u16::MAX;
}

/// Which runs; empty and `None` mean any.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// Of these groups.
    pub groups: Vec<String>,
    /// In one of these states, by number.
    pub states: Vec<i16>,
    /// By one of these triggers, by number.
    pub triggers: Vec<i16>,
    /// With these labels, all of them; `None`: whatever the value.
    pub labels: Vec<(String, Option<String>)>,
    /// Created from here, inclusive.
    pub from: Option<Time>,
    /// Created to here, inclusive.
    pub to: Option<Time>,
    /// With a logical time from here, inclusive.
    pub logical_from: Option<Time>,
    /// With a logical time to here, inclusive.
    pub logical_to: Option<Time>,
    /// Created before this run (the cursor).
    pub before: Option<RunId>,
    /// These.
    pub ids: Vec<Uuid>,
    /// With ids between these, both included.
    pub id_range: Option<(Uuid, Uuid)>,
    /// Of revisions with a task for one of these queues.
    pub queues: Vec<String>,
    /// Of revisions with a task for one of these scripts, `name` or `name@version`.
    pub scripts: Vec<String>,
    /// By this backfill, or reruns of this run.
    pub source: Option<Uuid>,
    /// Sub-runs of this run.
    pub parent: Option<RunId>,
    /// With this key.
    pub key: Option<String>,
    /// Of those that have ended, only if they did so since then.
    pub ended_since: Option<Time>,
}

/// What uses the queues and scripts of a filter. There are as many revisions as specs have been changed, however many
/// runs; with the groups the index of their runs is used.
struct Users {
    groups: Vec<i64>,
    revisions: Vec<i64>,
    /// Where a version is asked for: sets of resolved scripts that have it.
    resolutions: Option<Vec<i64>>,
}

const LIVE_COLUMNS: &str = "l.id, l.group_id, g.name AS group_name, r.revision, l.revision_id, l.resolution_id, l.state, l.trigger, \
    l.priority, l.logical_time, l.interval_start, l.interval_end, l.params, l.task_params, l.labels, l.key, l.callback, \
    l.created_at, l.started_at, l.deadline_at, l.parent_run, l.source, l.waiting_for, l.progress, \
    NULL::timestamptz AS finished_at, NULL::text AS error, NULL::smallint AS skipped";

const DONE_COLUMNS: &str = "l.id, l.group_id, g.name AS group_name, r.revision, l.revision_id, l.resolution_id, l.state, l.trigger, \
    l.priority, l.logical_time, l.interval_start, l.interval_end, l.params, l.task_params, l.labels, l.key, l.callback, \
    l.created_at, l.started_at, l.deadline_at, l.parent_run, l.source, NULL::jsonb AS waiting_for, l.progress, \
    l.finished_at, l.error, l.skipped";

const JOINS: &str = " JOIN heddle.groups g ON g.id = l.group_id JOIN heddle.revisions r ON r.id = l.revision_id ";

/// The attempts of run `$1`, ended and under way, as a JSON array of arrays: short, and parsed in one go.
const ATTEMPTS_OF_RUN: &str = "(SELECT json_agg(a.columns)::text FROM (
    SELECT json_build_array(task, item, attempt, state, skipped, started_at, finished_at, node, output, error_kind,
                            error_message, error_trace, memory_bytes, cpu_micros, worker, NULL, NULL) AS columns
      FROM heddle.attempts WHERE run = $1
    UNION ALL
    SELECT json_build_array(w.task, w.item, w.attempt, 0, false, w.started_at, NULL, l.node, NULL, NULL, NULL, NULL, NULL,
                            NULL, c.worker, c.progress, c.note)
      FROM heddle.running w
      LEFT JOIN heddle.leases l ON l.lease = w.lease
      LEFT JOIN heddle.queue_claims c ON w.lease < 0 AND c.run = $1 AND c.task = w.task AND c.item = w.item
                                     AND c.lease = w.lease
     WHERE w.run = $1) AS a)";

/// When retries of run `$1` are due, as a JSON array of arrays; an ended run has none, and is not looked for.
const TIMERS_OF_RUN: &str = "(SELECT json_agg(json_build_array(t.task, t.item, t.due_at))::text
      FROM heddle.timers t WHERE runs.finished_at IS NULL AND t.run = $1 AND t.kind = 0)";

/// What the ready task runs of run `$1` wait for, as a JSON array of arrays; likewise.
const WAITS_OF_RUN: &str = "(SELECT json_agg(json_build_array(w.task, w.item, w.pools, w.queue, w.paused, w.until))::text
      FROM (SELECT p.task, p.item, p.pools, NULL::text AS queue, false AS paused, NULL::timestamptz AS until
              FROM heddle.ready_pooled p WHERE p.run = $1
            UNION ALL
            SELECT r.task, r.item, NULL, r.queue, coalesce(q.paused, false), clock_timestamp() + b.missing_ms * interval '1 ms'
              FROM heddle.queue_ready r
              LEFT JOIN heddle.queues q ON q.name = r.queue
              LEFT JOIN LATERAL (
                   SELECT (1 - q.allowance) * q.rate_per_ms / q.rate_count
                          - extract(epoch FROM clock_timestamp() - q.allowed_at)::double precision * 1000 AS missing_ms
              ) b ON b.missing_ms > 0
             WHERE r.run = $1) AS w
     WHERE runs.finished_at IS NULL)";

/// What [`WAITS_OF_RUN`] gives, in its order.
#[derive(serde::Deserialize)]
struct WaitColumns(i16, i32, Option<Vec<String>>, Option<String>, bool, Option<Time>);

impl WaitColumns {
    fn view(self) -> (TaskKey, WaitView) {
        let Self(task, item, pools, queue, paused, limited_until) = self;
        let waits = match queue {
            Some(queue) => WaitView::Queue {
                queue,
                paused,
                limited_until,
            },
            None => WaitView::Pools(pools.unwrap_or_default()),
        };
        (TaskKey::from_numbers(task, item), waits)
    }
}

const OVERRIDES_OF_RUN: &str = "(SELECT json_agg(json_build_array(task, item, at, state, reason, actor, output))::text
      FROM heddle.overrides WHERE run = $1)";

/// What [`ATTEMPTS_OF_RUN`] gives, in its order.
#[derive(serde::Deserialize)]
struct AttemptColumns(
    i16,
    i32,
    i16,
    i16,
    bool,
    Time,
    Option<Time>,
    Option<Uuid>,
    Option<String>,
    Option<i16>,
    Option<String>,
    Option<String>,
    Option<i64>,
    Option<i64>,
    Option<String>,
    Option<f64>,
    Option<String>,
);

impl AttemptColumns {
    fn view(self, run: RunId) -> Result<AttemptView, StoreError> {
        let columns = self;
        let row = || format!("{run}/{}/{}/{}", columns.0, columns.1, columns.2);
        let kind = columns
            .9
            .map(|kind| StoreError::known(ErrorKind::from_number, kind, ("attempts", "error_kind"), row()));
        Ok(AttemptView {
            key: TaskKey::from_numbers(columns.0, columns.1),
            attempt: columns.2 as u32,
            state: StoreError::known(AttemptState::from_number, columns.3, ("attempts", "state"), row())?,
            skipped: columns.4,
            started_at: columns.5,
            finished_at: columns.6,
            node: columns.7,
            output: columns.8,
            error_kind: kind.transpose()?,
            error_message: columns.10,
            error_trace: columns.11,
            memory_bytes: columns.12,
            cpu_micros: columns.13,
            worker: columns.14,
            progress: columns.15,
            note: columns.16,
        })
    }
}

/// What [`OVERRIDES_OF_RUN`] gives, in its order.
#[derive(serde::Deserialize)]
struct OverrideColumns(i16, i32, Time, i16, String, String, Option<String>);

impl OverrideColumns {
    fn view(self, run: RunId) -> Result<OverrideView, StoreError> {
        let columns = self;
        let row = format!("{run}/{}/{}", columns.0, columns.1);
        Ok(OverrideView {
            key: TaskKey::from_numbers(columns.0, columns.1),
            at: columns.2,
            state: StoreError::known(TaskState::from_number, columns.3, ("overrides", "state"), row)?,
            reason: columns.4,
            actor: columns.5,
            output: columns.6,
        })
    }
}

impl Store {
    /// A run, without its attempts.
    pub async fn run(&self, id: RunId) -> Result<Option<RunRow>, StoreError> {
        let mut query = QueryBuilder::<Postgres>::new("");
        for (table, columns) in [("heddle.runs_live", LIVE_COLUMNS), ("heddle.runs_done", DONE_COLUMNS)] {
            if table == "heddle.runs_done" {
                query.push(" UNION ALL ");
            }
            query
                .push("SELECT ")
                .push(columns)
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

    /// A run with its attempts, all of one moment: one statement, so one snapshot and one round trip.
    pub async fn run_detail(&self, id: RunId) -> Result<Option<RunDetail>, StoreError> {
        let mut query = QueryBuilder::<Postgres>::new("SELECT runs.*, ");
        query
            .push(ATTEMPTS_OF_RUN)
            .push(" AS attempts, ")
            .push(OVERRIDES_OF_RUN)
            .push(" AS overrides, ")
            .push(TIMERS_OF_RUN)
            .push(" AS timers, ")
            .push(WAITS_OF_RUN)
            .push(" AS waits FROM (SELECT ");
        query
            .push(LIVE_COLUMNS)
            .push(" FROM heddle.runs_live l")
            .push(JOINS)
            .push("WHERE l.id = ")
            .push_bind(id.0);
        query
            .push(" UNION ALL SELECT ")
            .push(DONE_COLUMNS)
            .push(" FROM heddle.runs_done l")
            .push(JOINS);
        query.push("WHERE l.id = ").push_bind(id.0).push(") AS runs");
        let Some(row) = query.build().fetch_optional(&self.pool).await? else {
            return Ok(None);
        };
        let run = RunRow::read(&row)?;
        let unreadable = |table| move |error: serde_json::Error| StoreError::unreadable(table, "of run", id, error);
        let attempts: Option<String> = row.try_get("attempts")?;
        let attempts: Vec<AttemptColumns> =
            serde_json::from_str(attempts.as_deref().unwrap_or("[]")).map_err(unreadable("attempts"))?;
        let overrides: Option<String> = row.try_get("overrides")?;
        let overrides: Vec<OverrideColumns> =
            serde_json::from_str(overrides.as_deref().unwrap_or("[]")).map_err(unreadable("overrides"))?;
        let timers: Option<String> = row.try_get("timers")?;
        let timers: Vec<(i16, i32, Time)> = match timers {
            Some(timers) => serde_json::from_str(&timers).map_err(unreadable("timers"))?,
            None => Vec::new(),
        };
        let due = timers
            .into_iter()
            .map(|(task, item, at)| (TaskKey::from_numbers(task, item), at))
            .collect();
        let waits: Option<String> = row.try_get("waits")?;
        let waits: Vec<WaitColumns> = match waits {
            Some(waits) => serde_json::from_str(&waits).map_err(unreadable("queue_ready"))?,
            None => Vec::new(),
        };
        let waits = waits.into_iter().map(WaitColumns::view).collect();
        let attempts: Result<Vec<AttemptView>, StoreError> = attempts.into_iter().map(|row| row.view(id)).collect();
        let mut attempts = attempts?;
        attempts.sort_by_key(|attempt| (attempt.key, attempt.attempt));
        let overrides: Result<Vec<OverrideView>, StoreError> = overrides.into_iter().map(|row| row.view(id)).collect();
        let mut overrides = overrides?;
        overrides.sort_by_key(|by_hand| by_hand.at);
        Ok(Some(RunDetail {
            run,
            attempts,
            overrides,
            due,
            waits,
        }))
    }

    /// Runs, newest first, up to `limit`.
    pub async fn runs(&self, filter: &RunFilter, limit: i64) -> Result<Vec<RunRow>, StoreError> {
        let used = self.users_of(filter).await?;
        let mut query = QueryBuilder::<Postgres>::new("SELECT * FROM (");
        self.push_runs(
            &mut query,
            "heddle.runs_live",
            LIVE_COLUMNS,
            (filter, used.as_ref()),
            limit,
        );
        query.push(" UNION ALL ");
        self.push_runs(
            &mut query,
            "heddle.runs_done",
            DONE_COLUMNS,
            (filter, used.as_ref()),
            limit,
        );
        query.push(") AS runs ORDER BY id DESC LIMIT ").push_bind(limit);
        query
            .build()
            .fetch_all(&self.pool)
            .await?
            .iter()
            .map(RunRow::read)
            .collect()
    }

    /// Ids, states and revisions only, newest first, up to `limit`: for bulk actions.
    pub async fn run_states(&self, filter: &RunFilter, limit: i64) -> Result<Vec<(RunId, RunState, i64)>, StoreError> {
        let used = self.users_of(filter).await?;
        let filter = (filter, used.as_ref());
        let mut query = QueryBuilder::<Postgres>::new("SELECT id, state, revision_id FROM (");
        self.push_runs(
            &mut query,
            "heddle.runs_live",
            "l.id, l.state, l.revision_id",
            filter,
            limit,
        );
        query.push(" UNION ALL ");
        self.push_runs(
            &mut query,
            "heddle.runs_done",
            "l.id, l.state, l.revision_id",
            filter,
            limit,
        );
        query.push(") AS runs ORDER BY id DESC LIMIT ").push_bind(limit);
        let rows = query.build().fetch_all(&self.pool).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in rows {
            let number: i16 = row.try_get(1)?;
            let id = RunId(row.try_get(0)?);
            let state = StoreError::known(RunState::from_number, number, ("runs", "state"), id)?;
            found.push((id, state, row.try_get(2)?));
        }
        Ok(found)
    }

    /// The revisions that a filter's queues and scripts mean; `None`: it names none.
    async fn users_of(&self, filter: &RunFilter) -> Result<Option<Users>, StoreError> {
        if filter.queues.is_empty() && filter.scripts.is_empty() {
            return Ok(None);
        }
        // `name` means every version; `name@3` what a run resolved to it, whether its spec pins it or not.
        let names: Vec<String> = filter
            .scripts
            .iter()
            .map(|script| script.split('@').next().unwrap_or_default().to_owned())
            .collect();
        let rows = sqlx::query!(
            r#"SELECT r.id, r.group_id
                 FROM heddle.revisions r
                WHERE (cardinality($1::text[]) = 0 OR EXISTS (
                          SELECT FROM jsonb_each(r.spec->'tasks') AS t WHERE t.value->>'queue' = ANY ($1)))
                  AND (cardinality($2::text[]) = 0 OR EXISTS (
                          SELECT FROM jsonb_each(r.spec->'tasks') AS t
                           WHERE split_part(t.value->>'script', '@', 1) = ANY ($2)))"#,
            &filter.queues,
            &names
        )
        .fetch_all(&self.pool)
        .await?;
        let revisions: Vec<i64> = rows.iter().map(|row| row.id).collect();
        let mut groups: Vec<i64> = rows.iter().map(|row| row.group_id).collect();
        groups.sort_unstable();
        groups.dedup();
        let resolutions = match filter.scripts.iter().any(|script| script.contains('@')) {
            false => None,
            true => Some(
                sqlx::query_scalar!(
                    r#"SELECT o.id FROM heddle.resolutions o
                        WHERE o.revision_id = ANY ($1)
                          AND EXISTS (SELECT FROM jsonb_each(o.scripts) AS t
                                       WHERE t.value->>'script' = ANY ($2)
                                          OR (t.value->>'script') || '@' || (t.value->>'version') = ANY ($2))"#,
                    &revisions,
                    &filter.scripts
                )
                .fetch_all(&self.pool)
                .await?,
            ),
        };
        Ok(Some(Users {
            groups,
            revisions,
            resolutions,
        }))
    }

    fn push_runs(
        &self,
        query: &mut QueryBuilder<Postgres>,
        table: &'static str,
        columns: &'static str,
        (filter, used): (&RunFilter, Option<&Users>),
        limit: i64,
    ) {
        query
            .push("(SELECT ")
            .push(columns)
            .push(format!(" FROM {table} l"))
            .push(JOINS)
            .push("WHERE true");
        if !filter.groups.is_empty() {
            // The group's id first: the index on (group_id, id) then gives the order.
            query.push(" AND l.group_id IN (SELECT id FROM heddle.groups WHERE name = ANY (");
            query.push_bind(filter.groups.clone()).push("))");
        }
        if let Some(Users {
            groups,
            revisions,
            resolutions,
        }) = used
        {
            query.push(" AND l.group_id = ANY (").push_bind(groups.clone());
            query
                .push(") AND l.revision_id = ANY (")
                .push_bind(revisions.clone())
                .push(")");
            if let Some(resolutions) = resolutions {
                query
                    .push(" AND l.resolution_id = ANY (")
                    .push_bind(resolutions.clone())
                    .push(")");
            }
        }
        if let Some((first, last)) = filter.id_range {
            query
                .push(" AND l.id BETWEEN ")
                .push_bind(first)
                .push(" AND ")
                .push_bind(last);
        }
        if !filter.ids.is_empty() {
            query.push(" AND l.id = ANY (").push_bind(filter.ids.clone()).push(")");
        }
        if !filter.states.is_empty() {
            query
                .push(" AND l.state = ANY (")
                .push_bind(filter.states.clone())
                .push(")");
        }
        if !filter.triggers.is_empty() {
            query
                .push(" AND l.trigger = ANY (")
                .push_bind(filter.triggers.clone())
                .push(")");
        }
        let valued = filter
            .labels
            .iter()
            .filter_map(|(key, value)| Some((key.clone(), Value::from(value.clone()?))));
        let valued: serde_json::Map<String, Value> = valued.collect();
        if !valued.is_empty() {
            query
                .push(" AND l.labels IS NOT NULL AND l.labels @> ")
                .push_bind(Value::Object(valued));
        }
        for (key, _) in filter.labels.iter().filter(|(_, value)| value.is_none()) {
            query
                .push(" AND l.labels IS NOT NULL AND l.labels ? ")
                .push_bind(key.clone());
        }
        // Ids begin with the millisecond of their creation: bounds on them prune partitions.
        if let Some(from) = filter.from {
            query
                .push(" AND l.id >= heddle.uuid_floor(")
                .push_bind(from)
                .push(") AND l.created_at >= ")
                .push_bind(from);
        }
        if let Some(to) = filter.to {
            let after = to + chrono::TimeDelta::milliseconds(1);
            query
                .push(" AND l.id < heddle.uuid_floor(")
                .push_bind(after)
                .push(") AND l.created_at <= ")
                .push_bind(to);
        }
        if let Some(from) = filter.logical_from {
            query.push(" AND l.logical_time >= ").push_bind(from);
        }
        if let Some(to) = filter.logical_to {
            query.push(" AND l.logical_time <= ").push_bind(to);
        }
        if let Some(before) = filter.before {
            query.push(" AND l.id < ").push_bind(before.0);
        }
        if let Some(source) = filter.source {
            query.push(" AND l.source = ").push_bind(source);
        }
        if let Some(parent) = filter.parent {
            query.push(" AND l.parent_run = ").push_bind(parent.0);
        }
        if let Some(key) = &filter.key {
            query.push(" AND l.key = ").push_bind(key.clone());
        }
        if let (Some(since), "heddle.runs_done") = (filter.ended_since, table) {
            query.push(" AND l.finished_at >= ").push_bind(since);
        }
        query.push(" ORDER BY l.id DESC LIMIT ").push_bind(limit).push(")");
    }

    /// Outputs of tasks of a run: per task run that of its last attempt or override, none where that was no success, and
    /// since when it stands. Of items only successes count: whoever asks knows which of them have succeeded. Ordered by
    /// task and item.
    pub async fn outputs(&self, run: RunId, tasks: &[i16]) -> Result<Vec<(TaskKey, Time, Option<String>)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT DISTINCT ON (task, item) task AS "task!", item AS "item!", at AS "at!", output
                 FROM (SELECT task, item, finished_at AS at, CASE WHEN state = 1 THEN output END AS output, 0 AS by_hand
                         FROM heddle.attempts
                        WHERE run = $1 AND task = ANY ($2) AND (state = 1 OR item = -1)
                       UNION ALL
                       SELECT task, item, at, CASE WHEN state = 5 THEN output END, 1 FROM heddle.overrides
                        WHERE run = $1 AND task = ANY ($2) AND (state = 5 OR item = -1)) AS outputs
                ORDER BY task, item, at DESC, by_hand DESC"#,
            run.0,
            tasks
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

    /// The array that a mapped task maps over.
    pub async fn map_items(&self, run: RunId, task: u16) -> Result<Option<String>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT items FROM heddle.maps WHERE run = $1 AND task = $2",
            run.0,
            task as i16
        )
        .fetch_optional(&self.pool)
        .await?)
    }

    /// How many runs there are in each state, of runs that live.
    pub async fn live_counts(&self) -> Result<Vec<(i16, i64)>, StoreError> {
        let rows = sqlx::query!(r#"SELECT state, count(*) AS "count!" FROM heddle.runs_live GROUP BY state"#)
            .fetch_all(&self.pool)
            .await?;
        Ok(rows.into_iter().map(|row| (row.state, row.count)).collect())
    }

    /// The row that stands for a set of resolved scripts; made if there is none.
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
               FROM UNNEST($1::bigint[], $2::jsonb[]) WITH ORDINALITY AS n (revision_id, scripts, place)
               JOIN heddle.resolutions r ON r.revision_id = n.revision_id
                AND md5(r.scripts::text) = md5(n.scripts::text) AND r.scripts = n.scripts
              ORDER BY n.place",
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

    /// How much waits, and how much is under way.
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
    /// Attempts under way, those of workers among them.
    pub running: i64,
    /// Retries due later.
    pub timers: i64,
}
