//! The contents of a queue: what workers have claimed, and what waits.

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use uuid::Uuid;

use crate::{Store, StoreError};

/// A task run of a queue.
#[derive(Clone, Debug, PartialEq)]
pub struct QueuedTask {
    pub run: RunId,
    /// Its current or next attempt.
    pub at: AttemptKey,
    pub revision_id: i64,
    /// A higher number goes first.
    pub priority: i16,
    /// Since when it waits, or is claimed.
    pub since: Time,
    /// Tags that a worker needs for it.
    pub tags: Vec<String>,
    /// When it fails unless it is claimed before.
    pub expires_at: Option<Time>,
    /// Its position among those that wait: the column `turn`.
    pub position: i64,
    /// The worker that has claimed it, and until when unless that is extended; `None`: it waits.
    pub claim: Option<(String, Time)>,
}

/// Where a page of waiting task runs begins: after this one, in the order in which workers get them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCursor {
    pub priority: i16,
    pub position: i64,
    pub key: (Uuid, i16, i32),
}

impl Store {
    /// Task runs that wait in a queue, in the order in which workers get them (whatever tags they need).
    pub async fn queue_waiting(
        &self,
        queue: &str,
        after: Option<QueueCursor>,
        limit: i64,
    ) -> Result<Vec<QueuedTask>, StoreError> {
        // By the index on (queue, priority DESC, turn, run): each priority is read in its order.
        let rows = sqlx::query!(
            r#"SELECT q.run, q.task, q.item, q.attempt, q.priority, q.turn, q.tags, q.ready_at, q.expires_at,
                      l.revision_id
                 FROM (SELECT * FROM heddle.queue_ready r
                        WHERE r.queue = $1
                          AND ($2::smallint IS NULL OR r.priority < $2
                               OR (r.priority = $2 AND (r.turn, r.run, r.task, r.item) > ($3, $4, $5, $6)))
                        ORDER BY r.queue, r.priority DESC, r.turn, r.run, r.task, r.item LIMIT $7) AS q
                CROSS JOIN LATERAL (SELECT revision_id FROM heddle.runs_live WHERE id = q.run OFFSET 0) AS l
                ORDER BY q.priority DESC, q.turn, q.run, q.task, q.item"#,
            queue,
            after.map(|after| after.priority),
            after.map(|after| after.position),
            after.map(|after| after.key.0),
            after.map(|after| after.key.1),
            after.map(|after| after.key.2),
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| QueuedTask {
                run: RunId(row.run),
                at: AttemptKey::from_numbers(row.task, row.item, row.attempt),
                revision_id: row.revision_id,
                priority: row.priority,
                since: row.ready_at,
                tags: row.tags,
                expires_at: row.expires_at,
                position: row.turn,
                claim: None,
            })
            .collect())
    }

    /// Task runs of a queue that workers have claimed, by run.
    pub async fn queue_claimed(
        &self,
        queue: &str,
        after: Option<(Uuid, i16, i32)>,
        limit: i64,
    ) -> Result<Vec<QueuedTask>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT q.run, q.task, q.item, q.attempt, q.claimed_at, q.worker, q.lease_expires_at, l.revision_id,
                      l.priority
                 FROM (SELECT * FROM heddle.queue_claims c
                        WHERE c.queue = $1 AND ($2::uuid IS NULL OR (c.run, c.task, c.item) > ($2, $3, $4))
                        ORDER BY c.run, c.task, c.item LIMIT $5) AS q
                CROSS JOIN LATERAL (SELECT revision_id, priority FROM heddle.runs_live WHERE id = q.run OFFSET 0) AS l
                ORDER BY q.run, q.task, q.item"#,
            queue,
            after.map(|after| after.0),
            after.map(|after| after.1),
            after.map(|after| after.2),
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| QueuedTask {
                run: RunId(row.run),
                at: AttemptKey::from_numbers(row.task, row.item, row.attempt),
                revision_id: row.revision_id,
                priority: row.priority,
                since: row.claimed_at,
                tags: Vec::new(),
                expires_at: None,
                position: 0,
                claim: Some((row.worker, row.lease_expires_at)),
            })
            .collect())
    }
}
