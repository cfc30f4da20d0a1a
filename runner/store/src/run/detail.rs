//! A run with what belongs to it, as of one moment.

use std::collections::BTreeMap;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{JOINED_OUTPUT_BYTES_MAX, TaskKey};
use heddle_domain::state::{AttemptState, ErrorKind, TaskState};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Postgres, Row};
use uuid::Uuid;

use super::Outputs;
use super::outputs_asked::ERROR_BYTES_MAX;
use super::row::{DONE, JOINS, LIVE, NAMES, RunRow};
use crate::{Store, StoreError};

/// An attempt, running or ended.
#[derive(Clone, Debug)]
pub struct AttemptView {
    pub key: TaskKey,
    /// The first one is 1.
    pub attempt: u32,
    /// Its state when it ended, if it has.
    pub state: AttemptState,
    /// Whether it reported that there was nothing to do.
    pub skipped: bool,
    pub started_at: Time,
    pub finished_at: Option<Time>,
    pub node: Option<Uuid>,
    /// The value as JSON text. `None` also if it was not asked for, or is beyond the bounds ([`Outputs`]).
    pub output: Option<String>,
    /// The bytes of its output, whether that was read or not.
    pub output_bytes: Option<i32>,
    /// The kind of the failure.
    pub error_kind: Option<ErrorKind>,
    /// `None` also if it is beyond the bound of errors ([`Outputs`]).
    pub error_message: Option<String>,
    /// Where in the wasm code it failed. `None` also if it is beyond the bound of errors.
    pub error_trace: Option<String>,
    /// The bytes of the message, whether that was read or not.
    pub error_message_bytes: Option<i32>,
    /// The bytes of the trace, whether that was read or not.
    pub error_trace_bytes: Option<i32>,
    /// Peak of linear memory.
    pub memory_bytes: Option<i64>,
    /// Time on a processor.
    pub cpu_micros: Option<i64>,
    /// The worker that claimed it.
    pub worker: Option<String>,
    /// The progress that its worker reports, while it holds it.
    pub progress: Option<f64>,
    /// The worker's note on that.
    pub note: Option<String>,
}

impl AttemptView {
    /// Whether its error is not whole, because the errors that were asked for are too many bytes together.
    pub fn is_error_omitted(&self) -> bool {
        (self.error_message.is_none() && self.error_message_bytes.is_some())
            || (self.error_trace.is_none() && self.error_trace_bytes.is_some())
    }
}

/// A state that an operator has set.
#[derive(Clone, Debug)]
pub struct OverrideView {
    pub key: TaskKey,
    pub at: Time,
    pub state: TaskState,
    /// Shortened if the reasons of the run are too many bytes together.
    pub reason: String,
    pub actor: String,
    /// It replaces an attempt's output. `None` also in the cases of [`AttemptView::output`].
    pub output: Option<String>,
    /// The bytes of its output, whether that was read or not.
    pub output_bytes: Option<i32>,
}

/// A run with what belongs to it, as of one moment.
#[derive(Clone, Debug)]
pub struct RunDetail {
    pub run: RunRow,
    /// The first row of a task run has its begin, and the last row its state.
    pub attempts: Vec<AttemptView>,
    /// In the order of their creation; of each task run, the last one of each state. Those of the run itself have
    /// [`OverrideView::RUN`] as task; `pending` means that the task run was cleared.
    pub overrides: Vec<OverrideView>,
    /// When task runs are retried.
    pub due: BTreeMap<TaskKey, Time>,
    /// For what ready task runs wait.
    pub waits: BTreeMap<TaskKey, WaitView>,
    /// For an ended run: a text that changes when anything of it changes ([`Store::ended_mark`]).
    pub mark: Option<String>,
}

/// For what a ready task run waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitView {
    /// Slots of these pools.
    Pools(Vec<String>),
    /// A worker of a queue.
    Queue {
        queue: String,
        /// The queue is paused.
        paused: bool,
        /// When its rate limit allows the next claim.
        limited_until: Option<Time>,
    },
}

impl OverrideView {
    /// The task number that means the run itself.
    pub const RUN: u16 = u16::MAX;
}

/// Whether a task run is asked for: `$2` and `$3` are a task and an item, or null for all ([`Outputs::asked`]).
macro_rules! asked {
    () => {
        "($2::smallint IS NULL OR task = $2) AND ($3::integer IS NULL OR item = $3)"
    };
}

/// The output, if its task run is asked for, it has at most `$4` bytes, and all such outputs are short together.
macro_rules! output {
    () => {
        concat!(
            "CASE WHEN (SELECT outputs_are_few FROM bytes) AND octet_length(output) <= $4 AND ",
            asked!(),
            " THEN output END"
        )
    };
}

/// A text of an error, if its task run is asked for and all such texts are short together.
macro_rules! of_error {
    ($column:literal) => {
        concat!(
            "CASE WHEN (SELECT errors_are_few FROM bytes) AND ",
            asked!(),
            " THEN ",
            $column,
            " END AS ",
            $column
        )
    };
}

/// Whether the outputs of run `$1` that are asked for have at most `$5` bytes together, and the errors of its attempts at
/// most `$6` bytes. The lengths are known without reading the texts.
const BYTES: &str = concat!(
    "(SELECT coalesce(sum(of_output) FILTER (WHERE of_output <= $4), 0) <= $5 AS outputs_are_few,
             coalesce(sum(of_error), 0) <= $6 AS errors_are_few
        FROM (SELECT octet_length(output) AS of_output,
                     coalesce(octet_length(error_message), 0) + coalesce(octet_length(error_trace), 0) AS of_error
                FROM heddle.attempts WHERE run = $1 AND ",
    asked!(),
    "  UNION ALL
              SELECT octet_length(output), 0 FROM heddle.overrides WHERE run = $1 AND ",
    asked!(),
    ") AS o)"
);

/// The attempts of run `$1`, ended and running, as one array for each column: in the binary form, ten thousand attempts
/// take a tenth of the time that they take as JSON.
const ATTEMPTS_OF_RUN: &str = concat!(
    "(SELECT array_agg(task) AS tasks, array_agg(item) AS items, array_agg(attempt) AS numbers,
           array_agg(state) AS states, array_agg(skipped) AS skips, array_agg(started_at) AS starts,
           array_agg(finished_at) AS ends, array_agg(node) AS nodes, array_agg(output) AS outputs,
           array_agg(output_bytes) AS sizes, array_agg(error_kind) AS error_kinds,
           array_agg(error_message) AS error_messages, array_agg(error_trace) AS error_traces,
           array_agg(message_bytes) AS message_sizes, array_agg(trace_bytes) AS trace_sizes,
           array_agg(memory_bytes) AS memories, array_agg(cpu_micros) AS cpus,
           array_agg(worker) AS workers, array_agg(progress) AS progresses, array_agg(note) AS notes
      FROM (SELECT task, item, attempt, state, skipped, started_at, finished_at, node, ",
    output!(),
    " AS output,
                   octet_length(output) AS output_bytes, error_kind, ",
    of_error!("error_message"),
    ", ",
    of_error!("error_trace"),
    ",
                   octet_length(error_message) AS message_bytes, octet_length(error_trace) AS trace_bytes,
                   memory_bytes, cpu_micros, worker, NULL::double precision AS progress, NULL::text AS note
              FROM heddle.attempts WHERE run = $1
            UNION ALL
            SELECT w.task, w.item, w.attempt, 0::smallint, false, w.started_at, NULL, l.node, NULL, NULL, NULL, NULL, NULL,
                   NULL, NULL, NULL, NULL, c.worker, c.progress, c.note
              FROM heddle.running w
              LEFT JOIN heddle.leases l ON l.lease = w.lease
              LEFT JOIN heddle.queue_claims c ON w.lease < 0 AND c.run = $1 AND c.task = w.task AND c.item = w.item
                                             AND c.lease = w.lease
             WHERE w.run = $1) AS a)"
);

/// When retries of run `$1` are due, as a JSON array of arrays; an ended run has none, and no timers are read.
const TIMERS_OF_RUN: &str = "(SELECT json_agg(json_build_array(t.task, t.item, t.due_at))::text
      FROM heddle.timers t WHERE runs.finished_at IS NULL AND t.run = $1 AND t.kind = 0)";

/// For what the ready task runs of run `$1` wait, as a JSON array of arrays; the same holds for ended runs.
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

/// The columns of [`WAITS_OF_RUN`], in its order.
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

/// How many bytes of reasons of overrides are read with a run. If there are more, each reason is shortened, to so many
/// characters: each of ten thousand items may have been set by hand.
const REASON_BYTES_MAX: i64 = 4 << 20;
const REASON_SHORT_CHARS: i32 = 200;

/// The overrides of run `$1`, with at most `$7` bytes of reasons, or with reasons of at most `$8` characters.
const OVERRIDES_OF_RUN: &str = concat!(
    "(SELECT json_agg(json_build_array(task, item, at, state,
                     CASE WHEN reasons_are_few OR char_length(reason) <= $8 THEN reason ELSE left(reason, $8) || '…' END,
                     actor, octet_length(output), ",
    output!(),
    "))::text
      FROM (SELECT task, item, at, state, reason, actor, output,
                   sum(octet_length(reason)) OVER () <= $7 AS reasons_are_few
              FROM heddle.overrides WHERE run = $1) AS o)"
);

/// A column of [`ATTEMPTS_OF_RUN`].
fn column<T>(row: &PgRow, name: &str) -> Result<std::vec::IntoIter<T>, StoreError>
where
    T: for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres> + sqlx::postgres::PgHasArrayType,
{
    // Without attempts there are no arrays.
    let column: Option<Vec<T>> = row.try_get(name)?;
    Ok(column.unwrap_or_default().into_iter())
}

/// The attempts of a run, in the order of their keys and numbers.
fn attempts_of(row: &PgRow, run: RunId) -> Result<Vec<AttemptView>, StoreError> {
    let tasks = column::<i16>(row, "tasks")?;
    let mut attempts = Vec::with_capacity(tasks.len());
    let mut items = column::<i32>(row, "items")?;
    let mut numbers = column::<i32>(row, "numbers")?;
    let mut states = column::<i16>(row, "states")?;
    let mut skips = column::<bool>(row, "skips")?;
    let mut starts = column::<Time>(row, "starts")?;
    let mut ends = column::<Option<Time>>(row, "ends")?;
    let mut nodes = column::<Option<Uuid>>(row, "nodes")?;
    let mut outputs = column::<Option<String>>(row, "outputs")?;
    let mut sizes = column::<Option<i32>>(row, "sizes")?;
    let mut error_kinds = column::<Option<i16>>(row, "error_kinds")?;
    let mut error_messages = column::<Option<String>>(row, "error_messages")?;
    let mut error_traces = column::<Option<String>>(row, "error_traces")?;
    let mut message_sizes = column::<Option<i32>>(row, "message_sizes")?;
    let mut trace_sizes = column::<Option<i32>>(row, "trace_sizes")?;
    let mut memories = column::<Option<i64>>(row, "memories")?;
    let mut cpus = column::<Option<i64>>(row, "cpus")?;
    let mut workers = column::<Option<String>>(row, "workers")?;
    let mut progresses = column::<Option<f64>>(row, "progresses")?;
    let mut notes = column::<Option<String>>(row, "notes")?;
    for task in tasks {
        // All arrays are equally long: each row has a value, or a null, in each of them.
        let (Some(item), Some(number), Some(state), Some(skipped), Some(started_at)) =
            (items.next(), numbers.next(), states.next(), skips.next(), starts.next())
        else {
            return Err(StoreError::unreadable(
                "attempts",
                "of run",
                run,
                "some columns are shorter than others",
            ));
        };
        let at = || format!("{run}/{task}/{item}/{number}");
        let kind = error_kinds
            .next()
            .flatten()
            .map(|kind| StoreError::known(ErrorKind::from_number, kind, ("attempts", "error_kind"), at()));
        attempts.push(AttemptView {
            key: TaskKey::from_numbers(task, item),
            attempt: number as u32,
            state: StoreError::known(AttemptState::from_number, state, ("attempts", "state"), at())?,
            skipped,
            started_at,
            finished_at: ends.next().flatten(),
            node: nodes.next().flatten(),
            output: outputs.next().flatten(),
            output_bytes: sizes.next().flatten(),
            error_kind: kind.transpose()?,
            error_message: error_messages.next().flatten(),
            error_trace: error_traces.next().flatten(),
            error_message_bytes: message_sizes.next().flatten(),
            error_trace_bytes: trace_sizes.next().flatten(),
            memory_bytes: memories.next().flatten(),
            cpu_micros: cpus.next().flatten(),
            worker: workers.next().flatten(),
            progress: progresses.next().flatten(),
            note: notes.next().flatten(),
        });
    }
    attempts.sort_by_key(|attempt| (attempt.key, attempt.attempt));
    Ok(attempts)
}

/// The columns of [`OVERRIDES_OF_RUN`], in its order.
#[derive(serde::Deserialize)]
struct OverrideColumns(i16, i32, Time, i16, String, String, Option<i32>, Option<String>);

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
            output_bytes: columns.6,
            output: columns.7,
        })
    }
}

impl Store {
    /// A run with its attempts, as of one moment: one statement, so one snapshot and one round trip. Only if its outputs
    /// or its errors are many bytes, those that are shown are read afterwards.
    pub async fn run_detail(&self, id: RunId, outputs: Outputs) -> Result<Option<RunDetail>, StoreError> {
        let (task, item, bytes_max) = outputs.asked();
        let (live, done) = (&*LIVE, &*DONE);
        let statement = format!(
            "WITH bytes AS MATERIALIZED {BYTES}
             SELECT runs.*, attempts.*, {OVERRIDES_OF_RUN} AS overrides, {TIMERS_OF_RUN} AS timers, {WAITS_OF_RUN} AS waits,
                    (SELECT outputs_are_few FROM bytes) AS outputs_are_few, (SELECT errors_are_few FROM bytes) AS errors_are_few
               FROM (SELECT {live}{NAMES}, NULL::text AS version FROM heddle.runs_live l{JOINS}WHERE l.id = $1
                      UNION ALL
                     SELECT {done}{NAMES}, l.xmin::text AS version FROM heddle.runs_done l{JOINS}WHERE l.id = $1) AS runs
              CROSS JOIN LATERAL {ATTEMPTS_OF_RUN} AS attempts"
        );
        let query = sqlx::query(AssertSqlSafe(statement))
            .bind(id.0)
            .bind(task)
            .bind(item)
            .bind(bytes_max)
            .bind(JOINED_OUTPUT_BYTES_MAX as i64)
            .bind(ERROR_BYTES_MAX as i64)
            .bind(REASON_BYTES_MAX)
            .bind(REASON_SHORT_CHARS);
        let Some(row) = query.fetch_optional(&self.pool).await? else {
            return Ok(None);
        };
        let run = RunRow::read(&row)?;
        let unreadable = |table| move |error: serde_json::Error| StoreError::unreadable(table, "of run", id, error);
        let attempts = attempts_of(&row, id)?;
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
        let overrides: Result<Vec<OverrideView>, StoreError> = overrides.into_iter().map(|row| row.view(id)).collect();
        let mut overrides = overrides?;
        overrides.sort_by_key(|one| one.at);
        let version: Option<String> = row.try_get("version")?;
        let mark = version.map(|version| format!("{version}-{}", overrides.len()));
        let mut detail = RunDetail {
            run,
            attempts,
            overrides,
            due,
            waits,
            mark,
        };
        if !row.try_get::<bool, _>("outputs_are_few")? {
            self.read_outputs(&mut detail, outputs).await?;
        }
        if !row.try_get::<bool, _>("errors_are_few")? {
            self.read_errors(&mut detail, outputs).await?;
        }
        Ok(Some(detail))
    }

    /// For an ended run: a text that changes when anything of it changes: it runs again, or somebody has controlled it.
    /// `None`: it has not ended, or does not exist.
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
