//! The state of queues, minute by minute, for some hours: the data of a queue's chart.
//!
//! The numbers are not exact. A depth is that of one moment of its minute. Ends are counted in the memory of nodes,
//! which store them a few times a minute: the counts of a node that dies in between are missing. Queues in which
//! nothing happens have no minutes, and if there are more than [`QUEUES_MAX`] in a minute, the others have none either.

use chrono::{DurationRound, TimeDelta};
use heddle_domain::Time;

use crate::{Store, StoreError};

/// For how long minutes are kept.
pub const KEPT: TimeDelta = TimeDelta::hours(3);

/// Of how many queues a minute has depths, and a node counts ends at once.
pub const QUEUES_MAX: usize = 500;

/// How many old minutes one statement deletes.
const FORGOTTEN_MAX: i64 = 10_000;

/// A minute of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueMinute {
    pub at: Time,
    /// Task runs that waited in it; `None`: nobody has counted them.
    pub depth: Option<i64>,
    /// Task runs that workers completed or failed in it.
    pub ended: i64,
}

/// The beginning of the minute.
fn minute(at: Time) -> Time {
    at.duration_trunc(TimeDelta::minutes(1)).unwrap_or(at)
}

impl Store {
    /// Stores the depths of queues in which something waits, is held, or has happened within the last hour.
    pub async fn note_queue_depths(&self, now: Time) -> Result<(), StoreError> {
        let at = minute(now);
        let names = sqlx::query_scalar!(
            r#"WITH RECURSIVE waiting AS (
                   (SELECT queue FROM heddle.queue_ready ORDER BY queue LIMIT 1)
                   UNION ALL
                   SELECT (SELECT r.queue FROM heddle.queue_ready r WHERE r.queue > w.queue ORDER BY r.queue LIMIT 1)
                     FROM waiting w WHERE w.queue IS NOT NULL
               ),
               names AS (
                   SELECT queue FROM waiting WHERE queue IS NOT NULL
                   UNION SELECT queue FROM heddle.queue_claims
                   UNION SELECT queue FROM heddle.queue_minutes
                          WHERE at > $1::timestamptz - interval '1 hour' AND (depth > 0 OR ended > 0)
               )
               SELECT queue AS "queue!" FROM names ORDER BY queue LIMIT $2"#,
            at,
            QUEUES_MAX as i64
        )
        .fetch_all(&self.pool)
        .await?;
        let views = self.queue_views(&names).await?;
        let depths: Vec<i64> = views.iter().map(|view| view.depth).collect();
        let names: Vec<String> = views.into_iter().map(|view| view.name).collect();
        sqlx::query!(
            "INSERT INTO heddle.queue_minutes (queue, at, depth)
             SELECT queue, $1, depth FROM UNNEST($2::text[], $3::bigint[]) AS given (queue, depth) ORDER BY queue
             ON CONFLICT (queue, at) DO UPDATE SET depth = excluded.depth",
            at,
            &names,
            &depths
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Adds ends of task runs to the minute of `now`, by queue.
    pub async fn add_queue_ends(&self, now: Time, queues: &[String], ended: &[i64]) -> Result<(), StoreError> {
        // In the order of the names, as above: nodes that add to the same minutes do not deadlock.
        sqlx::query!(
            "INSERT INTO heddle.queue_minutes AS m (queue, at, ended)
             SELECT queue, $1, ended FROM UNNEST($2::text[], $3::bigint[]) AS given (queue, ended) ORDER BY queue
             ON CONFLICT (queue, at) DO UPDATE SET ended = m.ended + excluded.ended",
            minute(now),
            queues,
            ended
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Deletes minutes that are older than [`KEPT`], a bounded number of them.
    pub async fn forget_queue_minutes(&self, now: Time) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.queue_minutes WHERE ctid = ANY (ARRAY(
                 SELECT ctid FROM heddle.queue_minutes WHERE at < $1 ORDER BY at LIMIT $2))",
            now - KEPT,
            FORGOTTEN_MAX
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }

    /// What is known of a queue's minutes from an instant on, oldest first; minutes without any record are missing.
    pub async fn queue_minutes(&self, queue: &str, from: Time) -> Result<Vec<QueueMinute>, StoreError> {
        Ok(sqlx::query_as!(
            QueueMinute,
            "SELECT at, depth, ended FROM heddle.queue_minutes WHERE queue = $1 AND at >= $2 ORDER BY at LIMIT $3",
            queue,
            minute(from),
            KEPT.num_minutes() + 2
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// How many task runs of these queues ended from an instant on; queues without any may be missing.
    pub async fn queue_ends(&self, queues: &[String], from: Time) -> Result<Vec<(String, i64)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT queue, sum(ended)::bigint AS "ended!" FROM heddle.queue_minutes
                WHERE queue = ANY ($1) AND at >= $2 GROUP BY queue"#,
            queues,
            minute(from)
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(|row| (row.queue, row.ended)).collect())
    }
}
