//! Logs of attempts: insert-only, partitioned with their runs.

use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};

use crate::live::LogRow;
use crate::{Store, StoreError};

/// Where a reader stands in a run's log: lines are in the order of their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition {
    /// Microseconds since 1970.
    pub at_micros: i64,
    /// The task's number.
    pub task: i16,
    /// The item; -1 for none.
    pub item: i32,
    /// The attempt.
    pub attempt: i32,
    /// The line within the attempt.
    pub line: i32,
}

/// Which lines.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogFilter {
    /// Of this task.
    pub task: Option<i16>,
    /// Of this item.
    pub item: Option<i32>,
    /// Of this attempt.
    pub attempt: Option<i32>,
    /// Behind this one.
    pub after: Option<LogPosition>,
}

impl Store {
    /// Writes lines of attempts that are under way; lines that are there already are left alone.
    pub async fn insert_logs(&self, rows: &[LogRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut connection = self.pool.acquire().await?;
        crate::live::insert_logs_in(&mut connection, rows).await
    }

    /// Lines of a run, in the order of their time.
    pub async fn logs(&self, run: RunId, filter: &LogFilter, limit: i64) -> Result<Vec<LogRow>, StoreError> {
        let after = filter.after.unwrap_or_default();
        let at = chrono::DateTime::from_timestamp_micros(after.at_micros).unwrap_or_default();
        let rows = sqlx::query!(
            "SELECT task, item, attempt, line, at, level, message, fields FROM heddle.logs
              WHERE run = $1 AND ($2::smallint IS NULL OR task = $2) AND ($3::integer IS NULL OR item = $3)
                AND ($4::integer IS NULL OR attempt = $4)
                AND ($5::boolean OR (at, task, item, attempt, line) > ($6, $7, $8, $9, $10))
              ORDER BY at, task, item, attempt, line LIMIT $11",
            run.0,
            filter.task,
            filter.item,
            filter.attempt,
            filter.after.is_none(),
            at,
            after.task,
            after.item,
            after.attempt,
            after.line,
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| LogRow {
                run,
                at: AttemptKey {
                    key: TaskKey::from_numbers(row.task, row.item),
                    attempt: row.attempt as u32,
                },
                line: row.line,
                time: row.at,
                level: row.level,
                message: row.message,
                fields: row.fields,
            })
            .collect())
    }
}
