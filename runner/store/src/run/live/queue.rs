//! Task runs on queues, from ready to claimed to ended.
//!
//! A worker's claim has its own lease: a random negative number in *running*, where attempts of nodes have the node's
//! lease. Whoever deletes that row owns the outcome, as everywhere; *queue_claims* says how long the worker's lease
//! holds.

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::{AttemptState, RunState};
use uuid::Uuid;

use super::BATCH_MAX;
use super::complete::{Completion, Locked};
use super::keys::Keys;
use crate::database::{PgSession, column};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// Joins tags in a text; no tag contains it.
const TAG_JOINT: &str = "\u{1f}";

/// The queue of a queued task run, and its terms; the same for all runs of a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueTarget {
    pub queue: String,
    /// Tags that a worker needs, all of them.
    pub tags: Vec<String>,
    /// The attempt's timeout, from its claim.
    pub timeout_ms: Option<i64>,
    /// The longest time from ready to claimed.
    pub queue_timeout_ms: Option<i64>,
}

/// A task run that workers may claim.
#[derive(Clone, Debug)]
pub struct QueueRow {
    pub at: AttemptKey,
    /// Its number among the new rows of its run, from 1: it stands so far behind the head of its queue. 0: it returns to its
    /// former position, which is `floor`.
    pub ordinal: i64,
    /// The highest position that was claimed, as far as this node knows: it counts as the head if nothing waits in the queue
    /// that everybody can claim who can claim this one, unless what was passed over stands further back.
    pub floor: i64,
    pub target: QueueTarget,
    /// Rendered; `None`: they follow from the plan and the run.
    pub params: Option<String>,
    /// When it became ready, if it was ready earlier: it was in its queue before, or was being prepared.
    pub ready_at: Option<Time>,
}

/// The token by which a worker proves that a claim belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimKey {
    pub id: Uuid,
    pub run: RunId,
    pub at: AttemptKey,
    /// The lease of the claim, which every end of the claim must name.
    pub lease: i64,
}

/// A claim to be made.
#[derive(Clone, Debug)]
pub struct ClaimTerms<'a> {
    pub queue: &'a str,
    pub worker: &'a str,
    /// The tags of the worker.
    pub tags: &'a [String],
    /// How long the lease holds until the first heartbeat, in milliseconds.
    pub lease_ms: i64,
    /// Ids and leases for as many task runs as are wanted.
    pub fresh: &'a [(Uuid, i64)],
    /// The maximum bytes of their params together; the first is given however large it is.
    pub bytes_max: i64,
}

/// A claimed task run.
#[derive(Clone, Debug)]
pub struct QueueClaimed {
    pub claim: ClaimKey,
    /// Its position in the queue: the column `turn`.
    pub position: i64,
    /// Since when it was ready.
    pub ready_at: Time,
    /// Since when it is the worker's.
    pub claimed_at: Time,
    /// The rendered params, a JSON object as text.
    pub params: Option<String>,
    /// When the token expires.
    pub lease_expires_at: Time,
    /// When the attempt times out.
    pub deadline_at: Option<Time>,
}

/// The result of a claim.
#[derive(Clone, Debug, Default)]
pub struct QueueClaims {
    /// What the worker has claimed.
    pub claimed: Vec<QueueClaimed>,
    /// There is more, which would exceed the maximum of bytes.
    pub cut: bool,
    /// The rate limit allows nothing for this many milliseconds.
    pub limited_ms: Option<u64>,
}

/// A claim whose lease has expired.
#[derive(Clone, Debug)]
pub struct ExpiredClaim {
    pub claim: ClaimKey,
    pub worker: String,
    /// The attempt has timed out.
    pub timed_out: bool,
}

/// What is overdue in queues, and when something is next.
#[derive(Clone, Debug, Default)]
pub struct Overdue {
    /// Claims whose leases have expired.
    pub claims: Vec<ExpiredClaim>,
    /// Task runs that nobody claimed in time, with their queues.
    pub waiting: Vec<(RunId, AttemptKey, String)>,
    /// Milliseconds until the next lease expires, or the next task run has waited too long.
    pub next_ms: Option<i64>,
}

/// Why a token is not valid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimStatus {
    /// The run's state; `None`: there is no such run.
    pub run: Option<RunState>,
    /// How the attempt ended, if it has.
    pub attempt: Option<AttemptState>,
    /// The claim exists and its lease has expired.
    pub expired_at: Option<Time>,
}

/// Inserts rows for workers; see `sql/queue_put.sql`.
pub(crate) async fn put_in(connection: &mut PgSession, rows: &[(RunId, i16, &QueueRow)]) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    sqlx::query_file!(
        "src/sql/queue_put.sql",
        &column(rows, |(run, ..)| run.0),
        &column(rows, |(_, _, row)| row.at.key.task as i16),
        &column(rows, |(_, _, row)| row.at.key.item_number()),
        &column(rows, |(_, _, row)| row.at.attempt as i32),
        &column(rows, |(_, _, row)| row.target.queue.as_str()) as &[&str],
        &column(rows, |(_, priority, _)| *priority),
        &column(rows, |(_, _, row)| row.ordinal),
        &column(rows, |(_, _, row)| row.target.tags.join(TAG_JOINT)),
        &column(rows, |(_, _, row)| row.target.timeout_ms) as &[Option<i64>],
        &column(rows, |(_, _, row)| row.target.queue_timeout_ms) as &[Option<i64>],
        &column(rows, |(_, _, row)| row.params.as_deref()) as &[Option<&str>],
        &column(rows, |(_, _, row)| row.floor),
        &column(rows, |(_, _, row)| row.ready_at) as &[Option<Time>]
    )
    .execute(connection)
    .await?;
    Ok(())
}

async fn claim_in(
    connection: &mut PgSession,
    terms: &ClaimTerms<'_>,
    limit: i64,
    rated: bool,
) -> Result<QueueClaims, StoreError> {
    let ids: Vec<Uuid> = terms.fresh.iter().map(|fresh| fresh.0).collect();
    let leases: Vec<i64> = terms.fresh.iter().map(|fresh| fresh.1).collect();
    let rows = sqlx::query_file!(
        "src/sql/queue_claim.sql",
        terms.queue,
        terms.tags,
        limit,
        &ids,
        &leases,
        terms.worker,
        terms.lease_ms,
        rated,
        terms.bytes_max
    )
    .fetch_all(connection)
    .await?;
    let cut = rows.iter().any(|row| row.cut);
    let claimed = rows
        .into_iter()
        .map(|row| QueueClaimed {
            claim: ClaimKey {
                id: row.id,
                run: RunId(row.run),
                at: AttemptKey::from_numbers(row.task, row.item, row.attempt),
                lease: row.lease,
            },
            position: row.turn,
            ready_at: row.ready_at,
            claimed_at: row.claimed_at,
            params: row.params,
            lease_expires_at: row.lease_expires_at,
            deadline_at: row.deadline_at,
        })
        .collect();
    Ok(QueueClaims {
        claimed,
        cut,
        limited_ms: None,
    })
}

impl Store {
    /// Claims the next task runs of a queue, within its rate limit.
    pub async fn claim_queued(&self, terms: &ClaimTerms<'_>) -> Result<QueueClaims, StoreError> {
        let mut connection = self.pool.acquire().await?;
        let claims = claim_in(&mut connection, terms, terms.fresh.len() as i64, false).await?;
        if claims.claimed.is_empty() {
            // Nothing was claimed: the queue is empty, or has a rate limit.
            let rated = sqlx::query_scalar!(
                r#"SELECT true AS "rated!" FROM heddle.queues WHERE name = $1 AND rate_count IS NOT NULL AND NOT paused"#,
                terms.queue
            )
            .fetch_optional(&mut *connection)
            .await?;
            if rated.is_some() {
                drop(connection);
                return self.claim_rated(terms).await;
            }
        }
        Ok(claims)
    }

    /// Takes from the queue's bucket, whose row serialises the claims of all nodes.
    async fn claim_rated(&self, terms: &ClaimTerms<'_>) -> Result<QueueClaims, StoreError> {
        transaction!(self, pool, "claim_rated", once, |tx| {
            let bucket = sqlx::query!(
                r#"UPDATE heddle.queues q
                  SET allowance = least(q.rate_count,
                          q.allowance + extract(epoch FROM clock_timestamp() - q.allowed_at)::double precision * 1000
                                        * q.rate_count / q.rate_per_ms),
                      allowed_at = clock_timestamp()
                WHERE q.name = $1 AND q.rate_count IS NOT NULL
               RETURNING q.allowance, q.rate_count AS "rate_count!", q.rate_per_ms AS "rate_per_ms!""#,
                terms.queue
            )
            .fetch_optional(&mut *tx)
            .await?;
            let limit = match &bucket {
                Some(bucket) => (bucket.allowance.floor().max(0.0) as i64).min(terms.fresh.len() as i64),
                None => terms.fresh.len() as i64,
            };
            let mut claims = QueueClaims::default();
            if limit > 0 {
                claims = claim_in(&mut tx, terms, limit, true).await?;
            } else if let Some(bucket) = bucket {
                let missing = (1.0 - bucket.allowance) * bucket.rate_per_ms as f64 / f64::from(bucket.rate_count);
                claims.limited_ms = Some(missing.ceil().max(1.0) as u64);
            }
            if !claims.claimed.is_empty() {
                sqlx::query!(
                    "UPDATE heddle.queues SET allowance = allowance - $2 WHERE name = $1",
                    terms.queue,
                    claims.claimed.len() as f64
                )
                .execute(&mut *tx)
                .await?;
            }
            tx.commit().await?;
            Ok(claims)
        })
    }

    /// Extends leases; returns those that were extended, with the times at which they now expire.
    pub async fn heartbeat_claims(
        &self,
        keys: &[ClaimKey],
        lease_ms: &[Option<i64>],
    ) -> Result<Vec<(Uuid, Time)>, StoreError> {
        transaction!(self, pool, "heartbeat_claims", alone, |connection| {
            heartbeat_in(&mut connection, keys, lease_ms).await
        })
    }

    /// What is overdue in queues, by the database's clock, except the claims of the first runs, and what waits of the others.
    pub async fn overdue(&self, claims_aside: &[RunId], waiting_aside: &[RunId]) -> Result<Overdue, StoreError> {
        let claims_aside = column(claims_aside, |run| run.0);
        let waiting_aside = column(waiting_aside, |run| run.0);
        let claims = sqlx::query!(
            r#"SELECT run, task, item, attempt, id, lease, worker, coalesce(deadline_at <= lease_expires_at, false) AS "timed_out!"
                 FROM heddle.queue_claims WHERE lease_expires_at <= clock_timestamp() AND run <> ALL ($2) LIMIT $1"#,
            BATCH_MAX as i64,
            &claims_aside
        )
        .fetch_all(&self.pool)
        .await?;
        let waiting = sqlx::query!(
            "SELECT run, task, item, attempt, queue FROM heddle.queue_ready
              WHERE expires_at <= clock_timestamp() AND run <> ALL ($2) ORDER BY expires_at LIMIT $1",
            BATCH_MAX as i64,
            &waiting_aside
        )
        .fetch_all(&self.pool)
        .await?;
        let next_ms = sqlx::query_scalar!(
            "SELECT (extract(epoch FROM least(
                     (SELECT min(lease_expires_at) FROM heddle.queue_claims WHERE run <> ALL ($1)),
                     (SELECT min(expires_at) FROM heddle.queue_ready
                       WHERE expires_at IS NOT NULL AND run <> ALL ($2)))
                     - clock_timestamp()) * 1000)::bigint",
            &claims_aside,
            &waiting_aside
        )
        .fetch_one(&self.pool)
        .await?;
        let at = AttemptKey::from_numbers;
        Ok(Overdue {
            claims: claims
                .into_iter()
                .map(|row| ExpiredClaim {
                    claim: ClaimKey {
                        id: row.id,
                        run: RunId(row.run),
                        at: at(row.task, row.item, row.attempt),
                        lease: row.lease,
                    },
                    worker: row.worker,
                    timed_out: row.timed_out,
                })
                .collect(),
            waiting: waiting
                .into_iter()
                .map(|row| (RunId(row.run), at(row.task, row.item, row.attempt), row.queue))
                .collect(),
            next_ms,
        })
    }

    /// The task runs of one run that nobody claimed in time, with their queues: those of [`Overdue::waiting`].
    pub async fn overdue_of(&self, run: RunId) -> Result<Vec<(RunId, AttemptKey, String)>, StoreError> {
        let rows = sqlx::query!(
            "SELECT task, item, attempt, queue FROM heddle.queue_ready
              WHERE run = $1 AND expires_at <= clock_timestamp() LIMIT $2",
            run.0,
            BATCH_MAX as i64
        )
        .fetch_all(&self.pool)
        .await?;
        let key = AttemptKey::from_numbers;
        Ok(rows
            .into_iter()
            .map(|row| (run, key(row.task, row.item, row.attempt), row.queue))
            .collect())
    }

    /// The state of a claim whose token was refused.
    pub async fn claim_status(&self, claim: &ClaimKey) -> Result<ClaimStatus, StoreError> {
        let row = sqlx::query!(
            r#"SELECT (SELECT state FROM heddle.runs_live WHERE id = $1
                       UNION ALL SELECT state FROM heddle.runs_done WHERE id = $1 LIMIT 1) AS run_state,
                      (SELECT state FROM heddle.attempts
                        WHERE run = $1 AND task = $2 AND item = $3 AND attempt = $4) AS attempt_state,
                      (SELECT lease_expires_at FROM heddle.queue_claims
                        WHERE run = $1 AND task = $2 AND item = $3 AND attempt = $4 AND lease = $5 AND id = $6)
                          AS lease_expires_at,
                      clock_timestamp() AS "now!""#,
            claim.run.0,
            claim.at.key.task as i16,
            claim.at.key.item_number(),
            claim.at.attempt as i32,
            claim.lease,
            claim.id
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(ClaimStatus {
            run: row.run_state.and_then(RunState::from_number),
            attempt: row.attempt_state.and_then(AttemptState::from_number),
            expired_at: row.lease_expires_at.filter(|&at| at <= row.now),
        })
    }

    /// The claims with these ids, each with its queue. It reads all claims: their ids have no index.
    pub async fn claims_of_ids(&self, ids: &[Uuid]) -> Result<Vec<(ClaimKey, String)>, StoreError> {
        let rows = sqlx::query!(
            "SELECT run, task, item, attempt, id, lease, queue FROM heddle.queue_claims WHERE id = ANY ($1)",
            ids
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let claim = ClaimKey {
                    id: row.id,
                    run: RunId(row.run),
                    at: AttemptKey::from_numbers(row.task, row.item, row.attempt),
                    lease: row.lease,
                };
                (claim, row.queue)
            })
            .collect())
    }

    /// The queues of claims that are held.
    pub async fn queues_of_claims(&self, keys: &[ClaimKey]) -> Result<Vec<(Uuid, String)>, StoreError> {
        let by = Keys::of(keys, |key| (key.run, key.at));
        let rows = sqlx::query!(
            "SELECT c.id, c.queue FROM heddle.queue_claims c
               JOIN UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::uuid[]) AS k (run, task, item, id)
                 ON c.run = ANY (ARRAY[k.run]) AND c.task = k.task AND c.item = k.item AND c.id = k.id",
            &by.runs,
            &by.tasks,
            &by.items,
            &column(keys, |key| key.id)
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().map(|row| (row.id, row.queue)).collect())
    }

    /// Those of the queues with something that somebody can claim.
    pub async fn queues_with_work(&self, names: &[String]) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT n.name AS "name!" FROM UNNEST($1::text[]) AS n (name)
                WHERE (SELECT true FROM heddle.queue_ready r WHERE r.queue = n.name
                        ORDER BY r.queue, r.priority DESC, r.turn, r.run LIMIT 1)
                  AND NOT EXISTS (SELECT FROM heddle.queues q WHERE q.name = n.name AND q.paused)"#,
            names
        )
        .fetch_all(&self.pool)
        .await?)
    }
}

impl Completion {
    /// Locks the runs of claims that end, and takes the claims; see `sql/queue_lock_claims.sql`.
    pub async fn lock_claims(&mut self, keys: &[ClaimKey], expired: bool) -> Result<Locked, StoreError> {
        let by = Keys::of(keys, |key| (key.run, key.at));
        let rows = sqlx::query_file!(
            "src/sql/queue_lock_claims.sql",
            &by.runs,
            &by.tasks,
            &by.items,
            &by.attempts,
            &column(keys, |key| key.lease),
            &column(keys, |key| key.id),
            expired
        )
        .fetch_all(self.connection())
        .await?;
        let mut locked = Locked::default();
        for row in rows {
            if let (Some(task), Some(item), Some(attempt), Some(worker)) = (row.task, row.item, row.attempt, row.worker)
            {
                let at = AttemptKey::from_numbers(task, item, attempt);
                locked.workers.insert((RunId(row.run), at), worker);
            }
            let at = (row.task, row.item, row.attempt);
            locked.note(RunId(row.run), (row.state, row.progress), at, row.started_at)?;
        }
        self.dated(locked.owned.values().copied());
        Ok(locked)
    }

    /// Locks the runs of task runs that nobody claimed in time, and takes these; see `sql/queue_lock_overdue.sql`.
    pub async fn lock_overdue(&mut self, keys: &[(RunId, AttemptKey)]) -> Result<Locked, StoreError> {
        let by = Keys::of(keys, |&key| key);
        let rows = sqlx::query_file!(
            "src/sql/queue_lock_overdue.sql",
            &by.runs,
            &by.tasks,
            &by.items,
            &by.attempts
        )
        .fetch_all(self.connection())
        .await?;
        let mut locked = Locked::default();
        for row in rows {
            let at = (row.task, row.item, row.attempt);
            locked.note(RunId(row.run), (row.state, row.progress), at, row.started_at)?;
        }
        self.dated(locked.owned.values().copied());
        Ok(locked)
    }

    /// Inserts task runs into queues. The caller holds the runs' rows.
    pub async fn put_queued(&mut self, rows: &[(RunId, i16, &QueueRow)]) -> Result<(), StoreError> {
        put_in(self.connection(), rows).await
    }

    /// Task runs that were claimed with a rate limit and return unseen are given back to the bucket too.
    pub async fn refund_queue(&mut self, queue: &str, count: usize) -> Result<(), StoreError> {
        sqlx::query!(
            "UPDATE heddle.queues SET allowance = least(rate_count, allowance + $2)
              WHERE name = $1 AND rate_count IS NOT NULL",
            queue,
            count as f64
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }
}

/// Extends leases within a transaction; see `sql/queue_heartbeat.sql`.
pub(super) async fn heartbeat_in(
    connection: &mut crate::database::PgSession,
    keys: &[ClaimKey],
    lease_ms: &[Option<i64>],
) -> Result<Vec<(Uuid, Time)>, StoreError> {
    let by = Keys::of(keys, |key| (key.run, key.at));
    let rows = sqlx::query_file!(
        "src/sql/queue_heartbeat.sql",
        &by.runs,
        &by.tasks,
        &by.items,
        &by.attempts,
        &column(keys, |key| key.lease),
        &column(keys, |key| key.id),
        lease_ms as &[Option<i64>]
    )
    .fetch_all(connection)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.lease_expires_at)).collect())
}
