//! Attempts that nobody has claimed in time (`queue_timeout`), wherever they wait: for slots of pools, for a node, for a
//! worker, for a user of their audience.
//!
//! The time counts from `ready`, and a timer of the transition that made them ready keeps it. Task runs that enter
//! *queue_ready* with that transition have their time there (`queue.rs`), and no timer.

use std::collections::HashMap;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::ErrorKind;
use uuid::Uuid;

use super::keys::Keys;
use super::timers::TimerKind;
use super::{Completion, Locked};
use crate::StoreError;
use crate::database::column;

/// An attempt whose `queue_timeout` has passed.
#[derive(Clone, Copy, Debug)]
pub struct Unclaimed {
    pub run: RunId,
    pub at: AttemptKey,
    /// When it became ready.
    pub since: Time,
    /// A node holds it only to give it to workers or to an audience; this does not count as claimed.
    pub handed_on: bool,
}

fn key_of(run: Uuid, task: i16, item: i32, attempt: i32) -> (RunId, AttemptKey) {
    (RunId(run), AttemptKey::from_numbers(task, item, attempt))
}

/// Executes a statement with the columns of these keys; gives the keys of the rows that it returns.
macro_rules! taken {
    ($completion:expr, $by:ident, $statement:tt) => {
        sqlx::query!($statement, &$by.runs, &$by.tasks, &$by.items, &$by.attempts)
            .fetch_all($completion.connection())
            .await?
            .into_iter()
            .map(|row| key_of(row.run, row.task, row.item, row.attempt))
    };
}

impl Completion {
    /// Locks the runs of these attempts, and takes those that still wait.
    ///
    /// Each statement waits for transactions that move rows of its table, and the next statement sees the rows at their
    /// new place: an admission moves rows from *ready_pooled* to *ready*, a claim from *ready* to *running*. What a
    /// node passes on, it moves under the run's lock.
    pub async fn take_unclaimed(&mut self, late: &[Unclaimed]) -> Result<Locked, StoreError> {
        let ids = column(late, |one| one.run);
        let mut locked = Locked {
            runs: self.lock_runs(&ids).await?,
            ..Locked::default()
        };
        let by = Keys::of(late, |one| (one.run, one.at));
        let mut gone: Vec<(RunId, AttemptKey)> = taken!(
            self,
            by,
            "DELETE FROM heddle.ready_pooled r
              USING UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[]) AS l (run, task, item, attempt)
              WHERE r.run = ANY (ARRAY[l.run]) AND r.task = l.task AND r.item = l.item AND r.attempt = l.attempt
             RETURNING r.run, r.task, r.item, r.attempt"
        )
        .collect();
        gone.extend(taken!(
            self,
            by,
            r#"WITH late AS (
                   SELECT * FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[])
                       AS l (run, task, item, attempt)
               ),
               unclaimed AS (
                   DELETE FROM heddle.ready r USING late l
                    WHERE r.run = ANY (ARRAY[l.run]) AND r.task = l.task AND r.item = l.item AND r.attempt = l.attempt
                   RETURNING r.run, r.task, r.item, r.attempt
               ),
               queued AS (
                   DELETE FROM heddle.queue_ready r USING late l
                    WHERE r.run = ANY (ARRAY[l.run]) AND r.task = l.task AND r.item = l.item AND r.attempt = l.attempt
                   RETURNING r.run, r.task, r.item, r.attempt
               )
               SELECT run AS "run!", task AS "task!", item AS "item!", attempt AS "attempt!" FROM unclaimed
               UNION ALL SELECT run, task, item, attempt FROM queued"#
        ));
        gone.extend(self.take_handed_on(late).await?);
        let since: HashMap<(RunId, AttemptKey), Time> = late.iter().map(|one| ((one.run, one.at), one.since)).collect();
        locked.owned = gone
            .into_iter()
            .filter_map(|key| Some((key, *since.get(&key)?)))
            .collect();
        self.dated(locked.owned.values().copied());
        Ok(locked)
    }

    /// Takes attempts that a node would only give to workers or to an audience; that node finds that they do not belong
    /// to it any more.
    async fn take_handed_on(&mut self, late: &[Unclaimed]) -> Result<Vec<(RunId, AttemptKey)>, StoreError> {
        let late: Vec<&Unclaimed> = late.iter().filter(|one| one.handed_on).collect();
        if late.is_empty() {
            return Ok(Vec::new());
        }
        let by = Keys::of(&late, |one| (one.run, one.at));
        Ok(taken!(
            self,
            by,
            "DELETE FROM heddle.running r
              USING UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[]) AS l (run, task, item, attempt)
              WHERE r.run = ANY (ARRAY[l.run]) AND r.task = l.task AND r.item = l.item AND r.attempt = l.attempt
                AND r.lease > 0
             RETURNING r.run, r.task, r.item, r.attempt"
        )
        .collect())
    }

    /// Closes the offers of those of these attempts that nobody has taken since they became ready, and lets the
    /// attempts be settled with this reason; returns how many.
    ///
    /// After the runs' locks, as for giving an attempt to its offer. A user may get such an offer at this very moment:
    /// holds of ended task runs are revoked.
    pub async fn close_untaken(&mut self, late: &[Unclaimed], why: &str) -> Result<u64, StoreError> {
        let late: Vec<&Unclaimed> = late.iter().filter(|one| one.handed_on).collect();
        if late.is_empty() {
            return Ok(0);
        }
        let by = Keys::of(&late, |one| (one.run, one.at));
        let since = column(&late, |one| one.since);
        Ok(sqlx::query!(
            "WITH closed AS (
                 UPDATE heddle.offers o SET enabled = false, overdue_at = NULL
                   FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::timestamptz[])
                       AS l (run, task, item, attempt, since)
                  WHERE o.run = ANY (ARRAY[l.run]) AND o.task = l.task AND o.item = l.item AND o.attempt = l.attempt
                    AND o.enabled AND o.deleted_at IS NULL
                    AND NOT EXISTS (SELECT FROM heddle.holds h WHERE h.offer_id = o.id)
                    AND NOT EXISTS (SELECT FROM heddle.assignments a
                                     WHERE a.offer_id = o.id AND a.assigned_at >= l.since)
                 RETURNING o.id, o.run, o.task, o.item, o.attempt)
             INSERT INTO heddle.offer_settlements (offer_id, run, task, item, attempt, error_kind, error)
             SELECT id, run, task, item, attempt, $6, $7 FROM closed",
            &by.runs,
            &by.tasks,
            &by.items,
            &by.attempts,
            &since,
            ErrorKind::Timeout.number(),
            why
        )
        .execute(self.connection())
        .await?
        .rows_affected())
    }

    /// Takes the timers of attempts that enter their queue now, which keeps their time from then on; returns when each
    /// is due.
    ///
    /// Locking: the caller holds the runs. Timers that the inbox is taking (`timers.rs`) are skipped: the inbox waits for
    /// the run, and then finds the attempt in its queue.
    pub async fn take_claim_timers(
        &mut self,
        keys: &[(RunId, AttemptKey)],
    ) -> Result<HashMap<(RunId, AttemptKey), Time>, StoreError> {
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let by = Keys::of(keys, |&key| key);
        // The kind is part of each key: as a separate condition, it would let the planner begin with all timers.
        let kinds = vec![TimerKind::Claim as i16; keys.len()];
        Ok(sqlx::query!(
            "DELETE FROM heddle.timers t
              WHERE t.ctid = ANY (ARRAY(
                    SELECT t.ctid
                      FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::smallint[])
                           AS d (run, task, item, attempt, kind)
                      JOIN heddle.timers t ON t.run = ANY (ARRAY[d.run]) AND t.task = d.task AND t.item = d.item
                       AND t.kind = d.kind AND t.attempt = d.attempt
                       FOR UPDATE OF t SKIP LOCKED))
             RETURNING t.run, t.task, t.item, t.attempt, t.due_at",
            &by.runs,
            &by.tasks,
            &by.items,
            &by.attempts,
            &kinds
        )
        .fetch_all(self.connection())
        .await?
        .into_iter()
        .map(|row| (key_of(row.run, row.task, row.item, row.attempt), row.due_at))
        .collect())
    }
}
