//! Days: their work, their progress, and their end.

use chrono::NaiveDate;
use heddle_domain::Time;
use uuid::Uuid;

use crate::topic::TopicRow;
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// How many topics one page has.
const TOPICS_MAX: i64 = 1_000;

/// A bucket of a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketRow {
    pub bucket: i16,
    pub total: i64,
    pub sent: i64,
    pub failed: i64,
    pub cancelled: i64,
}

/// Counts of a day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DayCounts {
    pub total: i64,
    pub sent: i64,
    pub failed: i64,
    pub cancelled: i64,
    pub in_hand: i64,
    pub retrying: i64,
}

/// A day of a topic.
#[derive(Clone, Debug, PartialEq)]
pub struct DayRow {
    pub day: NaiveDate,
    pub counts: DayCounts,
    /// When the last of its messages ended: when it was drained, if it is.
    pub drained_at: Option<Time>,
    pub dropped_at: Option<Time>,
}

/// After which topics the next look for work begins: more may have work than one look finds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkFrom {
    due: i32,
    runs: i32,
}

/// Topics with work, each list in the order of their ids. A topic may be in both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopicsWithWork {
    /// They are enabled, and have something to claim, or a batch that was left behind.
    pub due: Vec<TopicRow>,
    /// Some of their batches are in queues, as params of runs.
    pub runs: Vec<TopicRow>,
    /// Where the next look begins.
    pub next: WorkFrom,
}

/// The id after which the next page begins: that of the last topic of a full page. After the last page, the first one
/// is next.
fn next_after(page: &[TopicRow]) -> i32 {
    match page.last() {
        Some(last) if page.len() as i64 >= TOPICS_MAX => last.id,
        _ => 0,
    }
}

impl Store {
    /// Topics with work. Nodes ask this all the time, so it is one statement. Of each kind of work, it finds the first
    /// topics after those of the last look: topics whose batches only wait for their workers take no place of topics
    /// with something to send, and none waits for ever behind others.
    pub async fn topics_with_work(&self, from: WorkFrom) -> Result<TopicsWithWork, StoreError> {
        let rows = sqlx::query!(
            r#"(SELECT t.id AS "id!", t.name AS "name!", t.spec AS "spec!", t.created_at AS "created_at!",
                       t.updated_at AS "updated_at!", true AS "due!"
                  FROM heddle.topics t
                 WHERE t.id > $1 AND (t.spec ->> 'enabled')::boolean IS NOT FALSE
                   AND (EXISTS (SELECT FROM heddle.message_slices s
                                 WHERE s.topic = t.id AND s.state = 0 AND s.due_at <= clock_timestamp() OFFSET 0)
                     OR EXISTS (SELECT FROM heddle.message_retries r
                                 WHERE r.topic = t.id AND r.due_at <= clock_timestamp() OFFSET 0)
                     OR EXISTS (SELECT FROM heddle.message_batches b
                                 WHERE b.topic = t.id AND b.run IS NULL
                                   AND NOT EXISTS (SELECT FROM heddle.nodes n
                                                    WHERE n.lease = b.lease AND n.expires_at > clock_timestamp())
                                OFFSET 0))
                 ORDER BY t.id LIMIT $3)
               UNION ALL
               (SELECT t.id, t.name, t.spec, t.created_at, t.updated_at, false
                  FROM heddle.topics t
                 WHERE t.id > $2
                   AND EXISTS (SELECT FROM heddle.message_batches b
                                WHERE b.topic = t.id AND b.run IS NOT NULL OFFSET 0)
                 ORDER BY t.id LIMIT $3)"#,
            from.due,
            from.runs,
            TOPICS_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        let mut found = TopicsWithWork::default();
        for row in rows {
            let list = match row.due {
                true => &mut found.due,
                false => &mut found.runs,
            };
            list.push(TopicRow {
                id: row.id,
                name: row.name,
                spec: row.spec,
                created_at: row.created_at,
                updated_at: row.updated_at,
                problem: None,
            });
        }
        // UNION ALL returns the rows of each part in their order only by the grace of its plan.
        for list in [&mut found.due, &mut found.runs] {
            list.sort_unstable_by_key(|topic| topic.id);
        }
        found.next = WorkFrom {
            due: next_after(&found.due),
            runs: next_after(&found.runs),
        };
        Ok(found)
    }

    /// Notes for people why nothing is sent on a topic; returns whether that is new.
    pub async fn note_problem(&self, topic: i32, problem: &str) -> Result<bool, StoreError> {
        let done = sqlx::query!(
            "UPDATE heddle.topic_drains SET problem = $2 WHERE topic = $1 AND problem IS DISTINCT FROM $2",
            topic,
            problem
        )
        .execute(&self.pool)
        .await?;
        Ok(done.rows_affected() == 1)
    }

    /// Releases a lease's batches on which nobody works: all except those that the node held at `held_at`, unless they
    /// were claimed or taken over since then, or shortly before: the node may not have known yet. They are taken over like
    /// those of a dead node.
    pub async fn disown_batches(&self, lease: i64, held: &[Uuid], held_at: Time) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "UPDATE heddle.message_batches SET lease = -1
              WHERE lease = $1 AND id <> ALL ($2)
                AND claimed_at < least(clock_timestamp(), $3::timestamptz) - interval '3 seconds'",
            lease,
            held,
            held_at
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }

    /// Returns a batch that was not sent.
    pub async fn give_batch_back(&self, batch: Uuid, lease: i64) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE heddle.message_batches SET lease = -1, losses = losses - 1 WHERE id = $1 AND lease = $2",
            batch,
            lease
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Notes days, before `before`, on which nothing is left to send and nothing new can come.
    pub async fn close_days(&self, topic: i32, before: NaiveDate) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "UPDATE heddle.message_days d SET drained_at = clock_timestamp()
              WHERE d.topic = $1 AND d.day < $2 AND d.drained_at IS NULL AND d.dropped_at IS NULL
                AND NOT EXISTS (SELECT FROM heddle.message_slices s WHERE s.topic = $1 AND s.day = d.day AND s.state = 0)
                AND NOT EXISTS (SELECT FROM heddle.message_batches b WHERE b.topic = $1 AND b.day = d.day)
                AND NOT EXISTS (SELECT FROM heddle.message_retries r
                                 WHERE r.topic = $1 AND r.day = d.day AND r.due_at IS NOT NULL)",
            topic,
            before
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }

    /// Topics with days whose messages are still kept: the first ones after the id `after`. Also returns after which id
    /// the next page begins; 0: at the first one.
    pub async fn topics_with_open_days(
        &self,
        until: NaiveDate,
        after: i32,
    ) -> Result<(Vec<TopicRow>, i32), StoreError> {
        let page = sqlx::query_as!(
            TopicRow,
            "SELECT t.id, t.name, t.spec, t.created_at, t.updated_at, NULL::text AS problem
               FROM heddle.topics t
              WHERE t.id > $2
                AND EXISTS (SELECT FROM heddle.message_days d
                             WHERE d.topic = t.id AND d.dropped_at IS NULL AND d.day <= $1)
              ORDER BY t.id LIMIT $3",
            until,
            after,
            TOPICS_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        let next = next_after(&page);
        Ok((page, next))
    }

    /// The buckets of a day that are not empty, in order: at most as many as there are buckets.
    pub async fn day_buckets(&self, topic: i32, day: NaiveDate) -> Result<Vec<BucketRow>, StoreError> {
        Ok(sqlx::query_as!(
            BucketRow,
            // One look-up for each bucket: a plain join may become ten thousand scans of ten thousand rows, as long as
            // the planner believes that a day has one row.
            r#"SELECT b.bucket, b.total, coalesce(o.sent, 0) AS "sent!", coalesce(o.failed, 0) AS "failed!",
                      coalesce(o.cancelled, 0) AS "cancelled!"
                 FROM heddle.message_buckets b
                 LEFT JOIN LATERAL (SELECT o.sent, o.failed, o.cancelled FROM heddle.message_outcomes o
                                     WHERE o.topic = $1 AND o.day = $2 AND o.bucket = b.bucket LIMIT 1) AS o ON true
                WHERE b.topic = $1 AND b.day = $2 ORDER BY b.bucket"#,
            topic,
            day
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// A day of a topic; `None`: it never had a message.
    pub async fn message_day(&self, topic: i32, day: NaiveDate) -> Result<Option<DayRow>, StoreError> {
        Ok(self
            .days_from(topic, Some(day), 1)
            .await?
            .into_iter()
            .find(|row| row.day == day))
    }

    /// Days of a topic in order, from one on.
    pub async fn message_days(
        &self,
        topic: i32,
        from: Option<NaiveDate>,
        limit: i64,
    ) -> Result<Vec<DayRow>, StoreError> {
        self.days_from(topic, from, limit).await
    }

    async fn days_from(&self, topic: i32, from: Option<NaiveDate>, limit: i64) -> Result<Vec<DayRow>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT d.day, coalesce(o.last_at, d.drained_at) AS drained_at, d.dropped_at,
                      coalesce(d.total, b.total, 0)::bigint AS "total!", coalesce(d.sent, o.sent, 0)::bigint AS "sent!",
                      coalesce(d.failed, o.failed, 0)::bigint AS "failed!",
                      coalesce(d.cancelled, o.cancelled, 0)::bigint AS "cancelled!",
                      coalesce(h.count, 0)::bigint AS "in_hand!", coalesce(r.count, 0)::bigint AS "retrying!"
                 FROM heddle.message_days d
                 LEFT JOIN LATERAL (SELECT sum(b.total) AS total FROM heddle.message_buckets b
                                     WHERE b.topic = d.topic AND b.day = d.day) AS b ON true
                 LEFT JOIN LATERAL (SELECT sum(o.sent) AS sent, sum(o.failed) AS failed, sum(o.cancelled) AS cancelled,
                                           max(o.last_at) AS last_at
                                      FROM heddle.message_outcomes o WHERE o.topic = d.topic AND o.day = d.day) AS o ON true
                 LEFT JOIN LATERAL (SELECT sum(cardinality(h.ids)) AS count FROM heddle.message_batches h
                                     WHERE h.topic = d.topic AND h.day = d.day) AS h ON true
                 LEFT JOIN LATERAL (SELECT count(*) AS count FROM heddle.message_retries r
                                     WHERE r.topic = d.topic AND r.day = d.day AND r.due_at IS NOT NULL) AS r ON true
                WHERE d.topic = $1 AND ($2::date IS NULL OR d.day >= $2) ORDER BY d.day LIMIT $3"#,
            topic,
            from,
            limit
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| DayRow {
                day: row.day,
                counts: DayCounts {
                    total: row.total,
                    sent: row.sent,
                    failed: row.failed,
                    cancelled: row.cancelled,
                    in_hand: row.in_hand,
                    retrying: row.retrying,
                },
                drained_at: row.drained_at,
                dropped_at: row.dropped_at,
            })
            .collect())
    }

    /// Stores the counts of a topic's drained days whose retention (in milliseconds) is over, and deletes all that is
    /// kept of them except the messages. At most `limit` days; returns how many.
    ///
    /// [`Store::close_days`] does not see messages whose transaction is open at that moment: they come to a day that is
    /// noted as drained. So what is left to send is looked for once more, and the retention begins when the last message
    /// has ended.
    ///
    /// Locking: drained days, in order, skipping locked ones. What belongs to a day is deleted under its row's lock.
    pub async fn release_days(&self, topic: i32, retention_ms: i64, limit: i64) -> Result<u64, StoreError> {
        transaction!(self, pool, "release_message_days", |tx| {
            tx.patiently();
            let days = sqlx::query_scalar!(
                "UPDATE heddle.message_days d
                SET dropped_at = clock_timestamp(),
                    drained_at = coalesce((SELECT max(o.last_at) FROM heddle.message_outcomes o
                                            WHERE o.topic = d.topic AND o.day = d.day), d.drained_at),
                    total = coalesce((SELECT sum(b.total) FROM heddle.message_buckets b
                                       WHERE b.topic = d.topic AND b.day = d.day), 0),
                    sent = coalesce((SELECT sum(o.sent) FROM heddle.message_outcomes o
                                      WHERE o.topic = d.topic AND o.day = d.day), 0),
                    failed = coalesce((SELECT sum(o.failed) FROM heddle.message_outcomes o
                                        WHERE o.topic = d.topic AND o.day = d.day), 0),
                    cancelled = coalesce((SELECT sum(o.cancelled) FROM heddle.message_outcomes o
                                           WHERE o.topic = d.topic AND o.day = d.day), 0)
              WHERE (d.topic, d.day) IN (
                    SELECT e.topic, e.day FROM heddle.message_days e
                     WHERE e.topic = $1 AND e.dropped_at IS NULL
                       AND e.drained_at <= clock_timestamp() - $2::bigint * interval '1 millisecond'
                       AND NOT EXISTS (SELECT FROM heddle.message_slices s
                                        WHERE s.topic = $1 AND s.day = e.day AND s.state = 0)
                       AND NOT EXISTS (SELECT FROM heddle.message_batches b WHERE b.topic = $1 AND b.day = e.day)
                       AND NOT EXISTS (SELECT FROM heddle.message_retries r
                                        WHERE r.topic = $1 AND r.day = e.day AND r.due_at IS NOT NULL)
                       AND NOT EXISTS (SELECT FROM heddle.message_outcomes o
                                        WHERE o.topic = $1 AND o.day = e.day
                                          AND o.last_at > clock_timestamp() - $2::bigint * interval '1 millisecond')
                     ORDER BY e.day LIMIT $3 FOR UPDATE SKIP LOCKED)
             RETURNING d.day",
                topic,
                retention_ms,
                limit
            )
            .fetch_all(&mut *tx)
            .await?;
            for day in &days {
                forget_day(&mut tx, topic, *day).await?;
            }
            tx.commit().await?;
            Ok(days.len() as u64)
        })
    }

    /// Days with partitions that no topic needs any more: all before `before` whose messages were released.
    pub async fn unneeded_days(&self, before: NaiveDate) -> Result<Vec<NaiveDate>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT p.day FROM heddle.message_partitions p
              WHERE p.day < $1
                AND NOT EXISTS (SELECT FROM heddle.message_days d JOIN heddle.topics t ON t.id = d.topic
                                 WHERE d.day = p.day AND d.dropped_at IS NULL)
              ORDER BY p.day",
            before
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Drops a day's partitions; `false`: another node has, or somebody is reading messages.
    ///
    /// Locking: an advisory lock (in the database's function), so that a day is made or dropped by one node at a time; then
    /// the partitions, each waited for only for a moment.
    pub async fn drop_message_day(&self, day: NaiveDate) -> Result<bool, StoreError> {
        match sqlx::query_scalar!(r#"SELECT heddle.drop_message_day($1) AS "dropped!""#, day)
            .fetch_one(&self.pool)
            .await
            .map_err(StoreError::from)
        {
            Err(StoreError::Conflict(_)) => Ok(false),
            other => other,
        }
    }

    /// Creates the missing partitions of days.
    ///
    /// Locking: the advisory lock of [`Self::drop_message_day`], for each day anew; it is released with the day.
    pub async fn make_message_days(&self, days: &[NaiveDate]) -> Result<(), StoreError> {
        for day in days {
            let known = sqlx::query_scalar!("SELECT day FROM heddle.message_partitions WHERE day = $1", day)
                .fetch_optional(&self.pool)
                .await?;
            if known.is_none() {
                sqlx::query!("SELECT heddle.make_message_day($1)", day)
                    .fetch_one(&self.pool)
                    .await?;
            }
        }
        Ok(())
    }

    /// Deletes the rest of a deleted topic, one day at a time; returns whether there was one.
    ///
    /// Locking: a day of a topic that is gone, skipping locked ones. What belongs to the day is deleted under its row's
    /// lock.
    pub async fn forget_deleted_topic(&self) -> Result<bool, StoreError> {
        transaction!(self, pool, "forget_deleted_topic", |tx| {
            tx.patiently();
            let left = sqlx::query!(
                "SELECT d.topic, d.day FROM heddle.message_days d
              WHERE NOT EXISTS (SELECT FROM heddle.topics t WHERE t.id = d.topic)
              LIMIT 1 FOR UPDATE SKIP LOCKED"
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(left) = left else { return Ok(false) };
            forget_day(&mut tx, left.topic, left.day).await?;
            sqlx::query!(
                "DELETE FROM heddle.message_days WHERE topic = $1 AND day = $2",
                left.topic,
                left.day
            )
            .execute(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(true)
        })
    }
}

/// Deletes what is kept of a day besides its messages.
async fn forget_day(connection: &mut crate::database::PgSession, topic: i32, day: NaiveDate) -> Result<(), StoreError> {
    sqlx::query!(
        "DELETE FROM heddle.message_buckets WHERE topic = $1 AND day = $2",
        topic,
        day
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query!(
        "DELETE FROM heddle.message_outcomes WHERE topic = $1 AND day = $2",
        topic,
        day
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query!(
        "DELETE FROM heddle.message_retries WHERE topic = $1 AND day = $2",
        topic,
        day
    )
    .execute(&mut *connection)
    .await?;
    sqlx::query!(
        "DELETE FROM heddle.message_slices WHERE topic = $1 AND day = $2",
        topic,
        day
    )
    .execute(&mut *connection)
    .await?;
    Ok(())
}
