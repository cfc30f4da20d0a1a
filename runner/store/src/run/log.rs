//! Logs of attempts: insert-only, partitioned with their runs.

use std::collections::HashMap;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::LogLevel;

use crate::live::LogRow;
use crate::{Store, StoreError};

/// The position of a reader in a run's log: lines are in the order of their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition {
    /// Microseconds since the beginning of 1970.
    pub at_micros: i64,
    pub task: i16,
    /// The item; -1 for none.
    pub item: i32,
    /// The number of the attempt.
    pub attempt: i32,
    /// The line within the attempt.
    pub line: i32,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct LogFilter {
    pub task: Option<i16>,
    pub item: Option<i32>,
    pub attempt: Option<i32>,
    /// After this one; or before it, if the last lines are wanted.
    pub after: Option<LogPosition>,
    /// The last lines instead of the first.
    pub last: bool,
}

/// How far a reader has come in the log of each attempt: its next line.
///
/// A follower needs more than a position in time: running attempts write concurrently, on several nodes, so a line may
/// become visible after later lines of another attempt. The lines of one attempt are committed in order.
pub type LogsSeen = HashMap<AttemptKey, i32>;

/// A line as a row of the table.
struct Line {
    task: i16,
    item: i32,
    attempt: i32,
    line: i32,
    at: Time,
    level: i16,
    message: String,
    fields: Option<String>,
}

impl Line {
    fn of(self, run: RunId) -> Result<LogRow, StoreError> {
        let level = StoreError::known(
            LogLevel::from_number,
            self.level,
            ("logs", "level"),
            format_args!(
                "of run {run}, task {}, item {}, attempt {}, line {}",
                self.task, self.item, self.attempt, self.line
            ),
        )?;
        Ok(LogRow {
            run,
            at: AttemptKey::from_numbers(self.task, self.item, self.attempt),
            line: self.line,
            time: self.at,
            level,
            message: self.message,
            fields: self.fields,
        })
    }
}

impl Store {
    /// Writes lines of running attempts; skips lines that are there already.
    pub async fn insert_logs(&self, rows: &[LogRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut connection = self.pool.acquire().await?;
        crate::live::insert_logs_in(&mut connection, rows).await
    }

    /// Lines of a run, in the order of their time.
    pub async fn logs(&self, run: RunId, filter: &LogFilter, limit: i64) -> Result<Vec<LogRow>, StoreError> {
        if filter.last {
            return self.last_logs(run, filter, limit).await;
        }
        let after = filter.after.unwrap_or_default();
        let at = chrono::DateTime::from_timestamp_micros(after.at_micros).unwrap_or_default();
        let rows = sqlx::query_as!(
            Line,
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
        rows.into_iter().map(|line| line.of(run)).collect()
    }

    async fn last_logs(&self, run: RunId, filter: &LogFilter, limit: i64) -> Result<Vec<LogRow>, StoreError> {
        let before = filter.after.unwrap_or_default();
        let at = chrono::DateTime::from_timestamp_micros(before.at_micros).unwrap_or_default();
        let rows = sqlx::query_as!(
            Line,
            "SELECT task, item, attempt, line, at, level, message, fields FROM heddle.logs
              WHERE run = $1 AND ($2::smallint IS NULL OR task = $2) AND ($3::integer IS NULL OR item = $3)
                AND ($4::integer IS NULL OR attempt = $4)
                AND ($5::boolean OR (at, task, item, attempt, line) < ($6, $7, $8, $9, $10))
              ORDER BY at DESC, task DESC, item DESC, attempt DESC, line DESC LIMIT $11",
            run.0,
            filter.task,
            filter.item,
            filter.attempt,
            filter.after.is_none(),
            at,
            before.task,
            before.item,
            before.attempt,
            before.line,
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter().rev().map(|line| line.of(run)).collect()
    }

    /// How far a reader is in the log of each attempt, if it has read all lines up to a position: to its first line behind
    /// that. (The times of an attempt's lines need not ascend: a worker says them.)
    pub async fn logs_seen(&self, run: RunId, until: LogPosition) -> Result<LogsSeen, StoreError> {
        let at = chrono::DateTime::from_timestamp_micros(until.at_micros).unwrap_or_default();
        let rows = sqlx::query!(
            r#"SELECT l.task AS "task!", l.item AS "item!", l.attempt AS "attempt!",
                      coalesce(min(l.line) FILTER (WHERE NOT l.is_read), max(l.line) + 1) AS "next!"
                 FROM (SELECT task, item, attempt, line,
                              (at, task, item, attempt, line) <= ($2::timestamptz, $3::smallint, $4::integer, $5::integer,
                                                                  $6::integer) AS is_read
                         FROM heddle.logs WHERE run = $1) AS l
                GROUP BY l.task, l.item, l.attempt HAVING bool_or(l.is_read)"#,
            run.0,
            at,
            until.task,
            until.item,
            until.attempt,
            until.line,
        )
        .fetch_all(&self.pool)
        .await?;
        let key = AttemptKey::from_numbers;
        Ok(rows
            .into_iter()
            .map(|row| (key(row.task, row.item, row.attempt), row.next))
            .collect())
    }

    /// The first lines that a reader has not seen, in the order of their time. `filter.after` does not count.
    ///
    /// Of each attempt, these are its first lines, even if others have an earlier time: an attempt's line counts from when
    /// all its lines before have been said, so none of them is skipped. (No more than the first `limit` lines of an attempt
    /// can be among them.)
    ///
    /// Attempts of which it has seen something are read by key, and `NOT IN` hashes them for the others. A join of lines
    /// with attempts would be a nested loop here: quadratic, for a run with many items.
    pub async fn logs_unseen(
        &self,
        run: RunId,
        filter: &LogFilter,
        seen: &LogsSeen,
        limit: i64,
    ) -> Result<Vec<LogRow>, StoreError> {
        let (mut tasks, mut items, mut attempts, mut nexts) = (vec![], vec![], vec![], vec![]);
        for (at, next) in seen {
            tasks.push(at.key.task as i16);
            items.push(at.key.item_number());
            attempts.push(at.attempt as i32);
            nexts.push(*next);
        }
        let rows = sqlx::query_as!(
            Line,
            r#"SELECT f.task AS "task!", f.item AS "item!", f.attempt AS "attempt!", f.line AS "line!", f.at AS "at!",
                      f.level AS "level!", f.message AS "message!", f.fields
                 FROM (SELECT l.*
                         FROM (SELECT l.*
                                 FROM UNNEST($5::smallint[], $6::integer[], $7::integer[], $8::integer[])
                                        AS s (task, item, attempt, next),
                                      LATERAL (SELECT k.*, max(k.at) OVER (ORDER BY k.line) AS said_by
                                                 FROM (SELECT * FROM heddle.logs l
                                                        WHERE l.run = $1 AND l.task = s.task AND l.item = s.item
                                                          AND l.attempt = s.attempt AND l.line >= s.next
                                                        ORDER BY l.line LIMIT $9) AS k) AS l
                               UNION ALL
                               SELECT l.*, max(l.at) OVER (PARTITION BY l.task, l.item, l.attempt ORDER BY l.line)
                                 FROM heddle.logs l
                                WHERE l.run = $1 AND (l.task, l.item, l.attempt)
                                      NOT IN (SELECT * FROM UNNEST($5::smallint[], $6::integer[], $7::integer[]))) AS l
                        WHERE ($2::smallint IS NULL OR l.task = $2) AND ($3::integer IS NULL OR l.item = $3)
                          AND ($4::integer IS NULL OR l.attempt = $4)
                        ORDER BY l.said_by, l.task, l.item, l.attempt, l.line LIMIT $9) AS f
                ORDER BY f.at, f.task, f.item, f.attempt, f.line"#,
            run.0,
            filter.task,
            filter.item,
            filter.attempt,
            &tasks,
            &items,
            &attempts,
            &nexts,
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        rows.into_iter().map(|line| line.of(run)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_level_is_an_error_that_names_the_line() {
        let line = |level: i16| Line {
            task: 1,
            item: -1,
            attempt: 2,
            line: 3,
            at: Time::UNIX_EPOCH,
            level,
            message: "said".into(),
            fields: None,
        };
        let run = RunId(uuid::Uuid::nil());
        assert_eq!(line(3).of(run).unwrap().level, LogLevel::Warn);
        let refused = line(5).of(run).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!("cannot read row of run {run}, task 1, item -1, attempt 2, line 3 in logs: level is 5")
        );
    }
}
