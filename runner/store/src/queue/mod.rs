//! Queues, as people see them: their settings, their depth, their workers.

pub mod minutes;
pub mod peek;

use std::time::Duration;

use heddle_domain::{Span, Time};
use serde_json::{Value, json};

use crate::change::{By, Noun, Page, Put};
use crate::config::named::{Named, PutAudit, Stop};
use crate::database::{PgSession, Pool};
use crate::{Store, StoreError, audit};

/// How long after its last poll a worker counts as connected; one that holds a claim always does.
pub const CONNECTED_FOR: Duration = Duration::from_secs(60);

/// How long after its last poll a worker is remembered.
pub const REMEMBERED_FOR: Duration = Duration::from_secs(24 * 3600);

/// Up to this many task runs, a queue's depth is counted. Beyond that it is estimated from the planner's statistics, so
/// that looking at a deep queue does not cost as much as draining it.
pub const COUNTED_MAX: i64 = 100_000;

/// In a queue that is not counted, the oldest task run is searched among this many at the front of each priority:
/// within a priority, the order is by age, apart from the fairness between runs.
const FRONT_ROWS: i64 = 1_000;

/// How many workers of a queue are shown.
const WORKERS_SHOWN_MAX: i64 = 1_000;

/// At most this many claims in this time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// From 1 to 1,000,000 claims.
    pub count: i32,
    /// In milliseconds: up to a day.
    pub per_ms: i64,
}

/// The settings of a queue that operators make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSettings {
    /// Nothing can be claimed.
    pub paused: bool,
    pub rate: Option<Rate>,
}

/// A change of these settings; `None` changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueChange {
    /// Whether nothing can be claimed.
    pub paused: Option<bool>,
    /// The rate limit, or none.
    pub rate: Option<Option<Rate>>,
}

/// A queue with its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueView {
    pub name: String,
    pub settings: QueueSettings,
    /// Task runs that may be claimed.
    pub depth: i64,
    /// Whether the depth was counted: it is at most [`COUNTED_MAX`].
    pub depth_exact: bool,
    /// Since when the oldest of them has been waiting.
    pub oldest: Option<Time>,
    /// Task runs that workers hold.
    pub claimed: i64,
    /// Workers that are connected.
    pub workers: i64,
}

/// A worker with its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    pub worker: String,
    pub tags: Vec<String>,
    /// When it last polled.
    pub seen_at: Option<Time>,
    /// Task runs that it holds.
    pub claimed: i64,
}

/// The settings for the audit, as the API shows them.
fn shown(settings: &QueueSettings) -> Value {
    let per = |ms: i64| Span::from_std(Duration::from_millis(ms.unsigned_abs()));
    let rate = settings
        .rate
        .map(|rate| json!({"count": rate.count, "per": per(rate.per_ms)}));
    json!({"paused": settings.paused, "rate": rate})
}

fn settings_of(paused: bool, count: Option<i32>, per_ms: Option<i64>) -> QueueSettings {
    let rate = count.zip(per_ms).map(|(count, per_ms)| Rate { count, per_ms });
    QueueSettings { paused, rate }
}

/// A change of a queue.
struct QueueWrite<'a> {
    name: &'a str,
    given: QueueChange,
}

impl QueueWrite<'_> {
    /// A setting that is left out does not change.
    fn settings(&self, kept: Option<&QueueSettings>) -> QueueSettings {
        let kept = kept.copied().unwrap_or_default();
        QueueSettings {
            paused: self.given.paused.unwrap_or(kept.paused),
            rate: self.given.rate.unwrap_or(kept.rate),
        }
    }
}

impl Named for QueueWrite<'_> {
    const PUT: &'static str = "put_queue";
    const NOUN: Noun = Noun::Queue;
    type Kept = QueueSettings;
    type Row = QueueSettings;
    type Answer = Put<QueueSettings>;

    fn pool(store: &Store) -> &Pool {
        &store.pool
    }

    fn name(&self) -> &str {
        self.name
    }

    /// The row is not locked, so that claims of a queue with a rate can go on; the name's lock is enough for concurrent
    /// PUTs.
    async fn locked(&self, tx: &mut PgSession) -> Result<Option<QueueSettings>, StoreError> {
        Ok(sqlx::query!(
            "SELECT paused, rate_count, rate_per_ms FROM heddle.queues WHERE name = $1",
            self.name
        )
        .fetch_optional(tx)
        .await?
        .map(|row| settings_of(row.paused, row.rate_count, row.rate_per_ms)))
    }

    fn is_same(&self, kept: &QueueSettings) -> bool {
        self.settings(Some(kept)) == *kept
    }

    async fn write(
        &self,
        tx: &mut PgSession,
        at: Time,
        kept: Option<&QueueSettings>,
    ) -> Result<QueueSettings, Stop<Self::Answer>> {
        let settings = self.settings(kept);
        sqlx::query!(
            "INSERT INTO heddle.queues (name, paused, rate_count, rate_per_ms, allowance, created_at, updated_at)
             VALUES ($1, $2, $3, $4, coalesce($3, 0), $5, $5)
             ON CONFLICT (name) DO UPDATE
             SET paused = excluded.paused, rate_count = excluded.rate_count, rate_per_ms = excluded.rate_per_ms,
                 allowance = CASE WHEN queues.rate_count IS NOT DISTINCT FROM excluded.rate_count
                                   AND queues.rate_per_ms IS NOT DISTINCT FROM excluded.rate_per_ms
                                  THEN queues.allowance ELSE excluded.allowance END,
                 updated_at = excluded.updated_at",
            self.name,
            settings.paused,
            settings.rate.map(|rate| rate.count),
            settings.rate.map(|rate| rate.per_ms),
            at
        )
        .execute(tx)
        .await?;
        Ok(settings)
    }

    fn shown(row: &QueueSettings) -> Result<Value, StoreError> {
        Ok(shown(row))
    }

    /// A queue that nobody has changed has the defaults, so it is always updated and never created.
    async fn record(&self, tx: &mut PgSession, by: By<'_>, entry: PutAudit<'_>) -> Result<(), StoreError> {
        let default = shown(&QueueSettings::default());
        let before = Some(entry.before.unwrap_or(&default));
        audit::record(tx, by, "update", Noun::Queue, self.name, before, Some(entry.after)).await
    }
}

impl Store {
    /// Changes the settings of a queue; creates its row the first time. A new rate limit begins with a full bucket.
    pub async fn put_queue(
        &self,
        by: By<'_>,
        name: &str,
        given: QueueChange,
    ) -> Result<Put<QueueSettings>, StoreError> {
        self.put(by, &QueueWrite { name, given }).await
    }

    /// Queues by name, after `cursor`: all that have settings, hold something, are polled, or are named by a group.
    pub async fn queues(&self, cursor: Option<&str>, limit: i64) -> Result<Page<QueueView>, StoreError> {
        let names = sqlx::query_scalar!(
            r#"WITH RECURSIVE waiting AS (
                   (SELECT queue FROM heddle.queue_ready ORDER BY queue LIMIT 1)
                   UNION ALL
                   SELECT (SELECT r.queue FROM heddle.queue_ready r WHERE r.queue > w.queue ORDER BY r.queue LIMIT 1)
                     FROM waiting w WHERE w.queue IS NOT NULL
               ),
               names AS (
                   SELECT queue AS name FROM waiting WHERE queue IS NOT NULL
                   UNION SELECT name FROM heddle.queues
                   UNION SELECT queue FROM heddle.queue_claims
                   UNION SELECT queue FROM heddle.queue_workers
                   UNION SELECT t.queue #>> '{}'
                           FROM heddle.revisions r, jsonb_path_query(r.spec, '$.tasks.*.queue') AS t (queue)
                          WHERE jsonb_path_exists(r.spec, '$.tasks.*.queue')
                            -- OFFSET keeps this a look-up for each revision: as a join it may read all groups.
                            AND EXISTS (SELECT FROM heddle.groups g
                                         WHERE g.id = r.group_id AND g.revision_id = r.id AND g.deleted_at IS NULL OFFSET 0)
               )
               SELECT name AS "name!" FROM names
                WHERE name IS NOT NULL AND ($1::text IS NULL OR name > $1) ORDER BY name LIMIT $2"#,
            cursor,
            limit + 1
        )
        .fetch_all(&self.pool)
        .await?;
        let page = Page::of(names, limit, |name| name.clone());
        Ok(Page {
            items: self.queue_views(&page.items).await?,
            next: page.next,
        })
    }

    /// A queue; `None` if nothing is known of it.
    pub async fn queue(&self, name: &str) -> Result<Option<QueueView>, StoreError> {
        let known = sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM heddle.queues WHERE name = $1)
                   OR EXISTS (SELECT FROM heddle.queue_ready WHERE queue = $1)
                   OR EXISTS (SELECT FROM heddle.queue_claims WHERE queue = $1)
                   OR EXISTS (SELECT FROM heddle.queue_workers WHERE queue = $1)
                   OR EXISTS (SELECT FROM heddle.revisions r
                                JOIN heddle.groups g ON g.id = r.group_id AND g.revision_id = r.id AND g.deleted_at IS NULL
                               WHERE jsonb_path_query_array(r.spec, '$.tasks.*.queue') ? $1) AS "known!""#,
            name
        )
        .fetch_one(&self.pool)
        .await?;
        if !known {
            return Ok(None);
        }
        Ok(self.queue_views(&[name.to_owned()]).await?.pop())
    }

    async fn queue_views(&self, names: &[String]) -> Result<Vec<QueueView>, StoreError> {
        let connected_ms = CONNECTED_FOR.as_millis() as i64;
        let rows = sqlx::query!(
            r#"SELECT n.name AS "name!", coalesce(q.paused, false) AS "paused!", q.rate_count AS "rate_count?",
                      q.rate_per_ms AS "rate_per_ms?", w.depth AS "depth!", w.oldest,
                      (SELECT count(*) FROM heddle.queue_claims c WHERE c.queue = n.name) AS "claimed!",
                      (SELECT count(*) FROM (
                           SELECT worker FROM heddle.queue_workers
                            WHERE queue = n.name AND seen_at > clock_timestamp() - $2 * interval '1 millisecond'
                           UNION SELECT worker FROM heddle.queue_claims c WHERE c.queue = n.name) AS u) AS "workers!"
                 FROM UNNEST($1::text[]) AS n (name)
                 LEFT JOIN heddle.queues q ON q.name = n.name
                CROSS JOIN LATERAL (SELECT count(*) AS depth, min(c.ready_at) AS oldest
                                      FROM (SELECT r.ready_at FROM heddle.queue_ready r
                                             WHERE r.queue = n.name LIMIT $3) AS c) AS w
                ORDER BY n.name"#,
            names,
            connected_ms as f64,
            COUNTED_MAX + 1
        )
        .fetch_all(&self.pool)
        .await?;
        let mut views: Vec<QueueView> = rows
            .into_iter()
            .map(|row| QueueView {
                name: row.name,
                settings: settings_of(row.paused, row.rate_count, row.rate_per_ms),
                depth: row.depth,
                depth_exact: row.depth <= COUNTED_MAX,
                oldest: row.oldest,
                claimed: row.claimed,
                workers: row.workers,
            })
            .collect();
        for view in views.iter_mut().filter(|view| !view.depth_exact) {
            self.reckon_depth(view).await?;
        }
        Ok(views)
    }

    /// Depth and oldest task run of a queue that is too deep to be counted.
    async fn reckon_depth(&self, view: &mut QueueView) -> Result<(), StoreError> {
        let reckoned = sqlx::query!(
            r#"WITH RECURSIVE priorities AS (
                   (SELECT priority FROM heddle.queue_ready WHERE queue = $1 ORDER BY priority DESC LIMIT 1)
                   UNION ALL
                   SELECT (SELECT r.priority FROM heddle.queue_ready r
                            WHERE r.queue = $1 AND r.priority < p.priority ORDER BY r.priority DESC LIMIT 1)
                     FROM priorities p WHERE p.priority IS NOT NULL
               )
               SELECT heddle.reckoned_queue_depth($1) AS "depth!",
                      (SELECT min(f.ready_at) FROM priorities p, LATERAL (
                           SELECT r.ready_at FROM heddle.queue_ready r
                            WHERE r.queue = $1 AND r.priority = p.priority ORDER BY r.turn, r.run LIMIT $2) AS f) AS oldest"#,
            view.name,
            FRONT_ROWS
        )
        .fetch_one(&self.pool)
        .await?;
        view.depth = reckoned.depth.max(view.depth);
        view.oldest = reckoned.oldest.or(view.oldest);
        Ok(())
    }

    /// The workers that are connected to a queue.
    pub async fn queue_workers(&self, name: &str) -> Result<Vec<WorkerView>, StoreError> {
        let connected_ms = CONNECTED_FOR.as_millis() as i64;
        let rows = sqlx::query!(
            r#"SELECT coalesce(w.worker, c.worker) AS "worker!", coalesce(w.tags, '{}') AS "tags!",
                      w.seen_at AS "seen_at?", coalesce(c.claimed, 0) AS "claimed!"
                 FROM (SELECT * FROM heddle.queue_workers WHERE queue = $1) AS w
                 FULL JOIN (SELECT worker, count(*) AS claimed FROM heddle.queue_claims WHERE queue = $1 GROUP BY worker) AS c
                   ON c.worker = w.worker
                WHERE c.claimed > 0 OR w.seen_at > clock_timestamp() - $2 * interval '1 millisecond'
                ORDER BY 1 LIMIT $3"#,
            name,
            connected_ms as f64,
            WORKERS_SHOWN_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| WorkerView {
                worker: row.worker,
                tags: row.tags,
                seen_at: row.seen_at,
                claimed: row.claimed,
            })
            .collect())
    }

    /// How many workers are connected to a queue and have all of the tags.
    pub async fn connected_workers(&self, queue: &str, tags: &[String]) -> Result<i64, StoreError> {
        let connected_ms = CONNECTED_FOR.as_millis() as i64;
        Ok(sqlx::query_scalar!(
            r#"SELECT count(*) AS "count!" FROM heddle.queue_workers w
                WHERE w.queue = $1 AND w.tags @> $2
                  AND (w.seen_at > clock_timestamp() - $3 * interval '1 millisecond'
                       OR EXISTS (SELECT FROM heddle.queue_claims c WHERE c.queue = $1 AND c.worker = w.worker))"#,
            queue,
            tags,
            connected_ms as f64
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Notes that a worker polls.
    pub async fn worker_seen(&self, queue: &str, worker: &str, tags: &[String]) -> Result<(), StoreError> {
        sqlx::query!(
            "INSERT INTO heddle.queue_workers (queue, worker, tags, seen_at) VALUES ($1, $2, $3, clock_timestamp())
             ON CONFLICT (queue, worker) DO UPDATE SET tags = excluded.tags, seen_at = excluded.seen_at",
            queue,
            worker,
            tags
        )
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Forgets workers that have not polled for long, at most `limit`.
    pub async fn prune_workers(&self, limit: i64) -> Result<u64, StoreError> {
        let remembered_ms = REMEMBERED_FOR.as_millis() as i64;
        Ok(sqlx::query!(
            "DELETE FROM heddle.queue_workers WHERE (queue, worker) IN (
                 SELECT queue, worker FROM heddle.queue_workers
                  WHERE seen_at < clock_timestamp() - $1 * interval '1 millisecond' LIMIT $2)",
            remembered_ms as f64,
            limit
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }
}
