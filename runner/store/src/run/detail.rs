//! A run with what belongs to it, of one moment.

use std::collections::BTreeMap;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::TaskKey;
use heddle_domain::state::{AttemptState, ErrorKind, TaskState};
use sqlx::{Postgres, QueryBuilder, Row};
use uuid::Uuid;

use super::{DONE, JOINS, LIVE, NAMES, RunRow};
use crate::{Store, StoreError};

/// An attempt, under way or ended.
#[derive(Clone, Debug)]
pub struct AttemptView {
    pub key: TaskKey,
    /// The first one is 1.
    pub attempt: u32,
    /// How it ended, if it has.
    pub state: AttemptState,
    /// Whether it said that there was nothing to do.
    pub skipped: bool,
    pub started_at: Time,
    pub finished_at: Option<Time>,
    pub node: Option<Uuid>,
    /// The value as JSON text.
    pub output: Option<String>,
    /// What kind of failure.
    pub error_kind: Option<ErrorKind>,
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
    pub key: TaskKey,
    pub at: Time,
    pub state: TaskState,
    pub reason: String,
    pub actor: String,
    /// What it stands for instead of an attempt's output.
    pub output: Option<String>,
}

/// A run with what belongs to it, of one moment.
#[derive(Clone, Debug)]
pub struct RunDetail {
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
    /// Of a run that has ended: another one as soon as anything of it is ([`Store::ended_mark`]).
    pub mark: Option<String>,
}

/// What a task run waits for that is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitView {
    /// Slots of these pools.
    Pools(Vec<String>),
    /// A worker of a queue.
    Queue {
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
            .push(LIVE)
            .push(NAMES)
            .push(", NULL::text AS version FROM heddle.runs_live l")
            .push(JOINS)
            .push("WHERE l.id = ")
            .push_bind(id.0);
        query
            .push(" UNION ALL SELECT ")
            .push(DONE)
            .push(NAMES)
            .push(", l.xmin::text AS version FROM heddle.runs_done l")
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
        let version: Option<String> = row.try_get("version")?;
        let mark = version.map(|version| format!("{version}-{}", overrides.len()));
        Ok(Some(RunDetail {
            run,
            attempts,
            overrides,
            due,
            waits,
            mark,
        }))
    }

    /// Of a run that has ended, a text that is another one as soon as anything of it is: it runs again, somebody has done
    /// something to it. `None`: it has not ended, or is gone.
    pub async fn ended_mark(&self, id: RunId) -> Result<Option<String>, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT concat_ws('-', l.xmin::text, (SELECT count(*) FROM heddle.overrides o WHERE o.run = $1)) AS "mark!"
                 FROM heddle.runs_done l WHERE l.id = $1"#,
            id.0
        )
        .fetch_optional(&self.pool)
        .await?)
    }
}
