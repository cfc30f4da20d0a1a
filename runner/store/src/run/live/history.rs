//! The history of attempts, and their logs.

use uuid::Uuid;

use super::{AttemptRow, Completion, LogRow};
use crate::StoreError;
use crate::database::{PgSession, column};

impl Completion {
    pub async fn insert_attempts(&mut self, rows: &[AttemptRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        sqlx::query!(
            "INSERT INTO heddle.attempts (run, task, item, attempt, state, skipped, started_at, finished_at, node,
                 output, error_kind, error_message, error_trace, memory_bytes, cpu_micros, worker)
             SELECT run, task, item, attempt, state, skipped, started_at, greatest(finished_at, started_at), node,
                    output, error_kind, error_message, error_trace, memory_bytes, cpu_micros, worker
               FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::smallint[], $6::boolean[],
                           $7::timestamptz[], $8::timestamptz[], $9::uuid[], $10::text[], $11::smallint[],
                           $12::text[], $13::text[], $14::bigint[], $15::bigint[], $16::text[])
                 AS a (run, task, item, attempt, state, skipped, started_at, finished_at, node, output, error_kind,
                       error_message, error_trace, memory_bytes, cpu_micros, worker)",
            &column(rows, |row| row.run.0),
            &column(rows, |row| row.at.key.task as i16),
            &column(rows, |row| row.at.key.item_number()),
            &column(rows, |row| row.at.attempt as i32),
            &column(rows, |row| row.state.number()),
            &column(rows, |row| row.skipped),
            &column(rows, |row| row.started_at),
            &column(rows, |row| row.finished_at),
            &column(rows, |row| row.node) as &[Option<Uuid>],
            &column(rows, |row| row.output.as_deref()) as &[Option<&str>],
            &column(rows, |row| row.error.as_ref().map(|error| error.0.number())) as &[Option<i16>],
            &column(rows, |row| row.error.as_ref().map(|error| error.1.as_str())) as &[Option<&str>],
            &column(rows, |row| row.error.as_ref().and_then(|error| error.2.as_deref())) as &[Option<&str>],
            &column(rows, |row| row.memory_bytes) as &[Option<i64>],
            &column(rows, |row| row.cpu_micros) as &[Option<i64>],
            &column(rows, |row| row.worker.as_deref()) as &[Option<&str>],
        )
        .execute(&mut *self.tx)
        .await?;
        Ok(())
    }

    pub async fn insert_logs(&mut self, rows: &[LogRow]) -> Result<(), StoreError> {
        if rows.is_empty() {
            Ok(())
        } else {
            insert_logs_in(&mut self.tx, rows).await
        }
    }
}

pub(crate) async fn insert_logs_in(connection: &mut PgSession, rows: &[LogRow]) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO heddle.logs (run, task, item, attempt, line, at, level, message, fields)
         SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::integer[],
                              $6::timestamptz[], $7::smallint[], $8::text[], $9::text[])
         ON CONFLICT DO NOTHING",
        &column(rows, |row| row.run.0),
        &column(rows, |row| row.at.key.task as i16),
        &column(rows, |row| row.at.key.item_number()),
        &column(rows, |row| row.at.attempt as i32),
        &column(rows, |row| row.line),
        &column(rows, |row| row.time),
        &column(rows, |row| row.level.number()),
        &column(rows, |row| row.message.as_str()) as &[&str],
        &column(rows, |row| row.fields.as_deref()) as &[Option<&str>],
    )
    .execute(connection)
    .await?;
    Ok(())
}
