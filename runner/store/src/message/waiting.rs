//! Batches that wait in a queue: no worker holds them, so a cancel may still remove messages from them.

use std::collections::HashSet;

use chrono::NaiveDate;
use uuid::Uuid;

use super::batch::{Tried, read_tried, write_tried};
use crate::StoreError;
use crate::database::PgSession;

/// A batch that is the params of a run.
pub(super) struct QueuedBatch {
    pub(super) id: Uuid,
    pub(super) run: Uuid,
    pub(super) ids: Vec<Uuid>,
    /// Parallel to `ids`; empty if none of them has been tried before.
    pub(super) tried: Vec<Tried>,
}

impl QueuedBatch {
    /// Removes messages from it. The topic's lock is held.
    pub(super) async fn lose(&mut self, connection: &mut PgSession, gone: &[Uuid]) -> Result<(), StoreError> {
        let gone: HashSet<&Uuid> = gone.iter().collect();
        let mut ids = self.ids.iter();
        self.tried.retain(|_| ids.next().is_some_and(|id| !gone.contains(id)));
        self.ids.retain(|id| !gone.contains(id));
        sqlx::query!(
            "UPDATE heddle.message_batches SET ids = $2, retries = $3 WHERE id = $1",
            self.id,
            &self.ids,
            write_tried(&self.tried)?
        )
        .execute(connection)
        .await?;
        Ok(())
    }
}

/// The batches of a day that wait in a queue, locked: their runs are live, and no worker holds them.
///
/// Locking: under the topic's lock: batches in id order; then shared locks of their runs, skipping locked ones. This
/// must not wait for a run: a transaction that has locked the run may be waiting for the topic.
pub(super) async fn waiting_in(
    connection: &mut PgSession,
    topic: i32,
    day: NaiveDate,
) -> Result<Vec<QueuedBatch>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT id, run AS "run!", ids, retries FROM heddle.message_batches
            WHERE topic = $1 AND day = $2 AND run IS NOT NULL ORDER BY id FOR UPDATE"#,
        topic,
        day
    )
    .fetch_all(&mut *connection)
    .await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let runs: Vec<Uuid> = rows.iter().map(|row| row.run).collect();
    let live = sqlx::query_scalar!(
        "SELECT id FROM heddle.runs_live WHERE id = ANY ($1) FOR SHARE SKIP LOCKED",
        &runs
    )
    .fetch_all(&mut *connection)
    .await?;
    // A separate statement, after both locks, so that it sees earlier claims.
    let waiting: HashSet<Uuid> = sqlx::query_scalar!(
        r#"SELECT r.id AS "id!" FROM UNNEST($1::uuid[]) AS r (id)
            WHERE (SELECT c.run FROM heddle.queue_claims c WHERE c.run = r.id LIMIT 1) IS NULL"#,
        &live
    )
    .fetch_all(connection)
    .await?
    .into_iter()
    .collect();
    rows.into_iter()
        .filter(|row| waiting.contains(&row.run))
        .map(|row| {
            Ok(QueuedBatch {
                id: row.id,
                run: row.run,
                ids: row.ids,
                tried: read_tried(row.id, row.retries)?,
            })
        })
        .collect()
}
