//! Removes old objects, such as ended backfills and deleted offers. Except for notifications, nothing here belongs to a
//! run.
//!
//! * An *occurrence* that is too old for any poll only counts how often it was taken, and is removed with the
//!   assignments.
//! * An *assignment* records which occurrence its user has had, and is one of the results of an `audience` task: it
//!   stays as long as polls consider it, and as long as the task is open or a restart of its run may open it again. The
//!   view *needed_offers* says for which offers that is so.
//! * A deleted *offer* stays for its assignments, and is removed after the last one. Heddle deletes offers of
//!   `audience` tasks when their task has ended, so without this each such task would leave a row for ever.
//! * A *backfill* stays as long as one of its runs.
//! * A revoked or expired *token* stays as long as the audit that names it.
//! * The *state* of scripts of a deleted group, and what is noted of its failures, stay as long as any of its runs may.
//!
//! Deletes are bounded, and each finds its rows by an index. If two nodes delete the same row at once, the second one
//! waits for the row and finds it gone.

use heddle_domain::Time;
use heddle_domain::id::uuid_v7_floor;
use heddle_domain::retention::{EndState, Retention};
use uuid::Uuid;

use super::rules::{COUNT_MAX, Day};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// The shortest time for which occurrences and ended assignments are kept: polls consider less than a day, and clocks
/// differ. Without its row, an occurrence would be given more often than its stock allows; without the assignment, to
/// the same user again.
const DISPATCH_KEPT_MIN: chrono::TimeDelta = chrono::TimeDelta::days(2);

/// By how much the clocks of nodes differ at most, as far as it matters here: between the creation of an offer, its
/// assignments and its deletion.
const CLOCKS_DIFFER: chrono::TimeDelta = chrono::TimeDelta::days(1);

/// Up to how many offers, and backfills, a preview counts: each is looked up in every partition that may refer to it.
pub const OTHERS_COUNT_MAX: i64 = 10_000;

/// Rows that are older than these instants are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cutoffs {
    /// Notifications, by their creation.
    pub notifications: Time,
    /// Ended assignments, by their ids.
    pub assignments: Time,
    /// Occurrences, by their instant.
    pub occurrences: Time,
    /// Offers, by their deletion.
    pub offers: Time,
    /// Backfills, by their end.
    pub backfills: Time,
    /// Tokens, by their revocation or expiry.
    pub tokens: Time,
    /// What belongs to groups, by the deletion of the group.
    pub groups: Time,
}

impl Cutoffs {
    pub fn of(retention: &Retention, now: Time) -> Self {
        let assignments = retention.assignments.chrono();
        let dispatch = now - assignments.max(DISPATCH_KEPT_MIN);
        // The shortest time of any of its runs: as long as one run exists, the backfill stays in any case.
        let runs = EndState::ALL.map(|state| retention.kept(None, state).runs.chrono());
        let longest = runs.into_iter().max().unwrap_or_default();
        Self {
            notifications: now - retention.notifications.chrono(),
            assignments: dispatch,
            occurrences: dispatch,
            offers: now - assignments,
            backfills: now - runs.into_iter().min().unwrap_or_default(),
            tokens: now - retention.audit.chrono(),
            groups: now - longest,
        }
    }
}

/// How many rows are due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherRows {
    pub notifications: i64,
    pub occurrences: i64,
    pub offers: i64,
    pub backfills: i64,
    pub tokens: i64,
}

/// What became of a number of rows in the order of their ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// How many of them were removed.
    pub gone: i64,
    /// The last one of them; `None`: there are no others behind them.
    pub go_on_after: Option<Uuid>,
}

impl Store {
    /// Removes what is due of the next `limit` ended assignments behind an id that began before an instant: all but those
    /// of offers that are needed. A failed run may keep very many of these for a long time, so the caller passes them batch by
    /// batch. Each offer of a batch is looked up once, and only the partitions of the batch are read.
    pub async fn prune_assignments(&self, after: Uuid, before: Time, limit: i64) -> Result<Passed, StoreError> {
        Ok(sqlx::query_as!(
            Passed,
            r#"WITH looked AS MATERIALIZED (
                   SELECT a.id, a.offer_id FROM heddle.assignments a
                    WHERE a.id > $1 AND a.id < $2 ORDER BY a.id LIMIT $3
               ), kept AS MATERIALIZED (
                   SELECT o.id FROM heddle.needed_offers o
                    WHERE o.id = ANY (ARRAY(SELECT DISTINCT l.offer_id FROM looked l))
               ), gone AS (
                   DELETE FROM heddle.assignments a
                    WHERE a.id >= (SELECT l.id FROM looked l ORDER BY l.id LIMIT 1)
                      AND a.id <= (SELECT l.id FROM looked l ORDER BY l.id DESC LIMIT 1)
                      AND a.id = ANY (ARRAY(
                          SELECT l.id FROM looked l WHERE l.offer_id NOT IN (SELECT k.id FROM kept k)))
                   RETURNING a.id
               )
               SELECT (SELECT count(*) FROM gone) AS "gone!",
                      (SELECT id FROM looked ORDER BY id OFFSET $3::bigint - 1) AS "go_on_after?""#,
            after,
            uuid_v7_floor(before),
            limit
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Whether offers that are needed have assignments of a day, ended or held: a held one is stored in that day when it
    /// ends.
    pub async fn have_tasks_assignments(&self, day: Day) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            // Only offers that existed on that day are looked up, give or take what clocks differ.
            r#"SELECT EXISTS (
                   SELECT FROM heddle.needed_offers o
                    WHERE o.created_at < $4 AND (o.deleted_at IS NULL OR o.deleted_at >= $3)
                      AND (EXISTS (SELECT FROM heddle.assignments a
                                    WHERE a.offer_id = o.id AND a.id >= $1 AND a.id < $2 OFFSET 0)
                           OR EXISTS (SELECT FROM heddle.holds h
                                       WHERE h.offer_id = o.id AND h.id >= $1 AND h.id < $2 OFFSET 0))) AS "needed!""#,
            uuid_v7_floor(day.start()),
            uuid_v7_floor(day.end()),
            day.start() - CLOCKS_DIFFER,
            day.end() + CLOCKS_DIFFER
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Removes up to `limit` occurrences that nobody holds, except those of offers that are needed.
    pub async fn prune_occurrences(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.occurrences WHERE ctid = ANY (ARRAY(
                 SELECT c.ctid FROM heddle.occurrences c
                  WHERE c.occurrence < $1
                    AND NOT EXISTS (SELECT FROM heddle.holds h
                                     WHERE h.offer_id = c.offer_id AND h.occurrence = c.occurrence OFFSET 0)
                    AND NOT EXISTS (SELECT FROM heddle.needed_offers o WHERE o.id = c.offer_id OFFSET 0)
                  ORDER BY c.occurrence LIMIT $2))",
            before,
            limit
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }

    /// Removes up to `limit` deleted offers without assignments, with their versions.
    ///
    /// Locking: deleted offers, skipping locked ones. Their occurrences and versions are deleted under these locks.
    pub async fn prune_offers(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        transaction!(self, pool, "prune_offers", |tx| {
            tx.patiently();
            let ids = sqlx::query_scalar!(
                "SELECT o.id FROM heddle.offers o
              WHERE o.deleted_at < $1
                AND NOT EXISTS (SELECT FROM heddle.holds h WHERE h.offer_id = o.id OFFSET 0)
                AND NOT EXISTS (SELECT FROM heddle.offer_settlements s WHERE s.offer_id = o.id OFFSET 0)
                AND NOT EXISTS (SELECT FROM heddle.assignments a WHERE a.offer_id = o.id OFFSET 0)
              ORDER BY o.deleted_at LIMIT $2 FOR UPDATE SKIP LOCKED",
                before,
                limit
            )
            .fetch_all(&mut *tx)
            .await?;
            if ids.is_empty() {
                return Ok(0);
            }
            sqlx::query!("DELETE FROM heddle.occurrences WHERE offer_id = ANY ($1)", &ids)
                .execute(&mut *tx)
                .await?;
            sqlx::query!("DELETE FROM heddle.offer_versions WHERE offer_id = ANY ($1)", &ids)
                .execute(&mut *tx)
                .await?;
            sqlx::query!("DELETE FROM heddle.offers WHERE id = ANY ($1)", &ids)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok(ids.len() as u64)
        })
    }

    /// Removes up to `limit` ended backfills without any kept run.
    pub async fn prune_backfills(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.backfills WHERE id IN (
                 SELECT b.id FROM heddle.backfills b
                  WHERE b.finished_at < $1
                    AND NOT EXISTS (SELECT FROM heddle.runs_live l WHERE l.source = b.id OFFSET 0)
                    AND NOT EXISTS (SELECT FROM heddle.runs_done d WHERE d.source = b.id OFFSET 0)
                  ORDER BY b.finished_at LIMIT $2)",
            before,
            limit
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }

    /// Removes up to `limit` tokens that were revoked or expired.
    pub async fn prune_tokens(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.tokens WHERE id IN (
                 SELECT id FROM heddle.tokens WHERE least(revoked_at, expires_at) < $1 LIMIT $2)",
            before,
            limit
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }

    /// Removes up to `limit` values of script state, and as many notes of what has failed, of groups that were deleted before
    /// an instant and have no live run. A deleted group never comes back: one of the same name has another id.
    pub async fn prune_groups_rows(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        let state = sqlx::query!(
            "DELETE FROM heddle.script_state WHERE ctid = ANY (ARRAY(
                 SELECT s.ctid FROM heddle.groups g
                  CROSS JOIN LATERAL (SELECT ctid FROM heddle.script_state WHERE group_id = g.id OFFSET 0) AS s
                  WHERE g.deleted_at < $1
                    AND NOT EXISTS (SELECT FROM heddle.runs_live l WHERE l.group_id = g.id OFFSET 0)
                  LIMIT $2))",
            before,
            limit
        )
        .execute(&self.pool)
        .await?;
        let troubles = sqlx::query!(
            "DELETE FROM heddle.troubles WHERE ctid = ANY (ARRAY(
                 SELECT t.ctid FROM heddle.groups g
                  CROSS JOIN LATERAL (SELECT ctid FROM heddle.troubles WHERE group_id = g.id OFFSET 0) AS t
                  WHERE g.deleted_at < $1
                    AND NOT EXISTS (SELECT FROM heddle.runs_live l WHERE l.group_id = g.id OFFSET 0)
                  LIMIT $2))",
            before,
            limit
        )
        .execute(&self.pool)
        .await?;
        Ok(state.rows_affected().max(troubles.rows_affected()))
    }

    /// How many of these are due; each up to [`COUNT_MAX`], offers and backfills up to [`OTHERS_COUNT_MAX`].
    pub async fn count_due_others(&self, before: &Cutoffs) -> Result<OtherRows, StoreError> {
        Ok(sqlx::query_as!(
            OtherRows,
            r#"SELECT (SELECT count(*) FROM (SELECT FROM heddle.notifications
                         WHERE created_at < $1 AND state <> 0 LIMIT $6) AS n) AS "notifications!",
                      (SELECT count(*) FROM (SELECT FROM heddle.occurrences c
                         WHERE c.occurrence < $2
                           AND NOT EXISTS (SELECT FROM heddle.holds h
                                            WHERE h.offer_id = c.offer_id AND h.occurrence = c.occurrence OFFSET 0)
                           AND NOT EXISTS (SELECT FROM heddle.needed_offers o WHERE o.id = c.offer_id OFFSET 0)
                         LIMIT $6) AS c) AS "occurrences!",
                      (SELECT count(*) FROM (SELECT FROM heddle.offers o
                         WHERE o.deleted_at < $3
                           AND NOT EXISTS (SELECT FROM heddle.holds h WHERE h.offer_id = o.id OFFSET 0)
                           AND NOT EXISTS (SELECT FROM heddle.offer_settlements s WHERE s.offer_id = o.id OFFSET 0)
                           AND NOT EXISTS (SELECT FROM heddle.assignments a WHERE a.offer_id = o.id OFFSET 0)
                         LIMIT $7) AS o) AS "offers!",
                      (SELECT count(*) FROM (SELECT FROM heddle.backfills b
                         WHERE b.finished_at < $4
                           AND NOT EXISTS (SELECT FROM heddle.runs_live l WHERE l.source = b.id OFFSET 0)
                           AND NOT EXISTS (SELECT FROM heddle.runs_done d WHERE d.source = b.id OFFSET 0)
                         LIMIT $7) AS b) AS "backfills!",
                      (SELECT count(*) FROM (SELECT FROM heddle.tokens
                         WHERE least(revoked_at, expires_at) < $5 LIMIT $6) AS t) AS "tokens!""#,
            before.notifications,
            before.occurrences,
            before.offers,
            before.backfills,
            before.tokens,
            COUNT_MAX,
            OTHERS_COUNT_MAX,
        )
        .fetch_one(&self.pool)
        .await?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_outlasts_what_polls_look_back() {
        let now = Time::UNIX_EPOCH + chrono::TimeDelta::days(20_000);
        let retention: Retention =
            serde_json::from_str(r#"{"assignments": "1h", "runs": "90d", "states": {"succeeded": "7d"}}"#).unwrap();
        let before = Cutoffs::of(&retention, now);
        assert_eq!(before.occurrences, now - chrono::TimeDelta::days(2));
        assert_eq!(before.assignments, now - chrono::TimeDelta::days(2));
        assert_eq!(before.offers, now - chrono::TimeDelta::hours(1));
        assert_eq!(before.backfills, now - chrono::TimeDelta::days(7));
        assert_eq!(before.groups, now - chrono::TimeDelta::days(90));
    }
}
