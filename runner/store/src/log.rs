//! Logs of attempts: insert-only, partitioned with their runs.

use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};

use crate::live::LogRow;
use crate::{Store, StoreError};

/// Where a reader stands in a task run's log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition {
    /// The attempt.
    pub attempt: u16,
    /// The line last read; -1 before the first.
    pub line: i32,
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

    /// Lines of a task run after a position, in order.
    pub async fn logs(
        &self,
        run: RunId,
        key: TaskKey,
        after: LogPosition,
        limit: i64,
    ) -> Result<Vec<LogRow>, StoreError> {
        let rows = sqlx::query!(
            "SELECT attempt, line, at, level, message, fields FROM heddle.logs
              WHERE run = $1 AND task = $2 AND item = $3 AND (attempt, line) > ($4, $5)
              ORDER BY attempt, line LIMIT $6",
            run.0,
            key.task as i16,
            key.item_number(),
            after.attempt as i16,
            after.line,
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| LogRow {
                run,
                at: AttemptKey { key, attempt: row.attempt as u16 },
                line: row.line,
                time: row.at,
                level: row.level,
                message: row.message,
                fields: row.fields,
            })
            .collect())
    }
}
