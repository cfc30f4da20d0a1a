//! Offers that belong to task runs: an attempt creates or opens one, and is settled when its stock is completed.

use heddle_domain::Time;
use heddle_domain::dispatch::{AssignmentState, Mode, Offer};
use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use heddle_domain::state::ErrorKind;
use serde_json::Value;

use super::assignment::{End, announce_returned, close_done, end_in};
use crate::change::{self, Noun};
use crate::database::PgSession;
use crate::live::{BATCH_MAX, Completion, EndedAttempt, Take, Taken};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// An offer of a task run that somebody holds.
#[derive(Clone, Debug)]
pub struct HeldOffer {
    pub id: i64,
    pub version: i32,
    pub run: RunId,
    pub key: TaskKey,
    /// The run's progress as bytes.
    pub progress: Vec<u8>,
}

/// A task run's offer, as its attempt requests it.
#[derive(Clone, Debug)]
pub struct TaskOffer {
    pub ended: EndedAttempt,
    /// For an offer that does not exist yet.
    pub name: String,
    pub offer: Offer,
    pub spec: Value,
    /// For an item of a mapped task: the SHA-256 of its value as JSON text.
    pub item_hash: Option<Vec<u8>>,
    /// When the attempt times out.
    pub overdue_at: Option<Time>,
}

/// An attempt of an audience task that is over.
#[derive(Clone, Debug)]
pub struct OfferSettlement {
    pub offer_id: i64,
    /// The attempt that is over. No node holds it, so its lease is 0.
    pub ended: EndedAttempt,
    /// `None`: its stock is completed.
    pub error: Option<(ErrorKind, String)>,
}

/// How many offers without a run are withdrawn at a time.
const WITHDRAWN_MAX: i64 = 200;

/// Opens a task run's offer again for a new attempt; `None`: it has none yet that goes on.
///
/// The instant is still that of the first attempt, because stock and the users' history are counted for that
/// occurrence. Completed assignments stay too, even if the run ended, and the offer with it, before it was restarted. The
/// offer of a task run that was cleared ([`super::forgotten::forget_offers`]) is not opened again: clearing means to ask again.
/// Neither is the offer of an item that now has another value, because its map was expanded again. An offer without a hash,
/// which an older node has made, counts as the offer of any value.
///
/// During an upgrade, an older node may open an offer again, and leaves the hash that it has. That is right for each value
/// but one: if the older node asked about another value, and the value has changed back since, what was completed for the
/// other one counts. To forget the hash there would be worse: the offer would then count as that of any value, also after an
/// ordinary retry by an older node.
async fn open_again(tx: &mut PgSession, task: &TaskOffer, now: Time) -> Result<Option<(i64, i32)>, StoreError> {
    let (run, at, key) = (task.ended.run.0, task.ended.at, task.ended.at.key);
    let offer = &task.offer;
    let opened = sqlx::query!(
            "UPDATE heddle.offers
                SET version = version + 1, enabled = true, attempt = $4, overdue_at = $5, updated_at = $6, stock = $7,
                    audience = $8, repeats = $9, max_hold = $10, item_hash = $12,
                    deleted_at = NULL, spec = $11::jsonb || jsonb_build_object('starts_at', spec -> 'starts_at')
              WHERE id = (SELECT id FROM heddle.offers WHERE run = $1 AND task = $2 AND item = $3 ORDER BY id DESC LIMIT 1)
                AND attempt > 0 AND (item_hash IS NULL OR item_hash = $12)
             RETURNING id, version",
            run,
            key.task as i16,
            key.item_number(),
            at.attempt as i32,
            task.overdue_at,
            now,
            offer.stock,
            offer.audience,
            offer.mode == Mode::Repeat,
            offer.max_hold.map(|hold| hold.micros() as i64),
            task.spec,
            task.item_hash.as_deref() as Option<&[u8]>
        )
        .fetch_optional(tx)
    .await?;
    Ok(opened.map(|row| (row.id, row.version)))
}

/// Withdraws the offer that a task run has from before it was cleared, or from before its item got another value.
async fn replace(tx: &mut PgSession, task: &TaskOffer, now: Time) -> Result<(), StoreError> {
    let key = task.ended.at.key;
    let former = sqlx::query!(
        "SELECT id, version FROM heddle.offers WHERE run = $1 AND task = $2 AND item = $3 AND deleted_at IS NULL",
        task.ended.run.0,
        key.task as i16,
        key.item_number()
    )
    .fetch_optional(&mut *tx)
    .await?;
    if let Some(former) = former {
        withdraw_in(tx, former.id, former.version, now).await?;
    }
    Ok(())
}

/// Withdraws an offer within a transaction. Returns the audience, unless another transaction has withdrawn the offer
/// first, or opened it again: its version is not this one any more.
async fn withdraw_in(tx: &mut PgSession, id: i64, version: i32, now: Time) -> Result<Option<String>, StoreError> {
    revoke_holds(tx, id, now).await?;
    let audience = sqlx::query_scalar!(
        "UPDATE heddle.offers SET enabled = false, deleted_at = $2, overdue_at = NULL
          WHERE id = $1 AND version = $3 AND deleted_at IS NULL RETURNING audience",
        id,
        now,
        version
    )
    .fetch_optional(&mut *tx)
    .await?;
    if let Some(audience) = &audience {
        change::announce(tx, now, Noun::Audience, audience);
    }
    Ok(audience)
}

/// Creates the offer of a task run.
async fn make(tx: &mut PgSession, task: &TaskOffer, now: Time) -> Result<i64, StoreError> {
    let (run, at, key) = (task.ended.run.0, task.ended.at, task.ended.at.key);
    let offer = &task.offer;
    let id = sqlx::query_scalar!(
                    "INSERT INTO heddle.offers (name, audience, version, kind, starts_at, stock, repeats, return_failed,
                         max_hold, enabled, template, spec, run, task, item, attempt, overdue_at, created_at, updated_at,
                         item_hash)
                     VALUES ($1, $2, 1, 0, $3, $4, $5, true, $6, true, $7, $8, $9, $10, $11, $12, $13, $14, $14, $15)
                     RETURNING id",
                    task.name,
                    offer.audience,
                    offer.starts_at,
                    offer.stock,
                    offer.mode == Mode::Repeat,
                    offer.max_hold.map(|hold| hold.micros() as i64),
                    offer.template.as_ref().map(|name| name.as_str()),
                    task.spec,
                    run,
                    key.task as i16,
                    key.item_number(),
                    at.attempt as i32,
                    task.overdue_at,
                    now,
                    task.item_hash.as_deref() as Option<&[u8]>
                )
                .fetch_one(tx)
    .await?;
    Ok(id)
}

impl Store {
    /// Gives an attempt of an audience task to its offer, which is created, or opened again for a new attempt. `false`:
    /// the attempt is not this node's any more.
    pub async fn hand_to_offer(&self, task: &TaskOffer, now: Time) -> Result<bool, StoreError> {
        let (run, at, key) = (task.ended.run.0, task.ended.at, task.ended.at.key);
        let offer = &task.offer;
        transaction!(self, pool, "hand_to_offer", |tx| {
            let handed = sqlx::query!(
            "UPDATE heddle.running SET lease = 0 WHERE run = $1 AND task = $2 AND item = $3 AND attempt = $4 AND lease = $5",
            run,
            key.task as i16,
            key.item_number(),
            at.attempt as i32,
            task.ended.lease
        )
        .execute(&mut *tx)
        .await?
        .rows_affected()
            == 1;
            if !handed {
                return Ok(false);
            }
            let (id, version) = match open_again(&mut tx, task, now).await? {
                Some(opened) => opened,
                None => {
                    replace(&mut tx, task, now).await?;
                    (make(&mut tx, task, now).await?, 1)
                }
            };
            sqlx::query!(
                "INSERT INTO heddle.offer_versions (offer_id, version, params) VALUES ($1, $2, $3)",
                id,
                version,
                Value::Object(offer.params.clone())
            )
            .execute(&mut *tx)
            .await?;
            change::announce(&mut tx, now, Noun::Audience, &offer.audience);
            tx.commit().await?;
            Ok(true)
        })
    }

    /// Fails attempts of audience tasks whose timeout has passed; returns how many.
    ///
    /// Locking: offers that are due, skipping locked ones, and no other lock: this never waits.
    pub async fn settle_overdue_offers(&self) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "WITH late AS (
                 UPDATE heddle.offers SET enabled = false, overdue_at = NULL
                  WHERE id = ANY (ARRAY(
                        SELECT id FROM heddle.offers
                         WHERE overdue_at <= clock_timestamp() AND deleted_at IS NULL
                         ORDER BY overdue_at LIMIT $1 FOR UPDATE SKIP LOCKED))
                 RETURNING id, run, task, item, attempt)
             INSERT INTO heddle.offer_settlements (offer_id, run, task, item, attempt, error_kind, error)
             SELECT id, run, task, item, attempt, $2, 'nobody completed it in time' FROM late",
            BATCH_MAX as i64,
            ErrorKind::Timeout.number()
        )
        .execute(&self.pool)
        .await?
        .rows_affected())
    }

    /// Settles attempts whose completed offer nobody has reported: members were removed, or the last completion came
    /// during the opening of a new attempt. A slow sweep; a completion normally settles its attempt.
    pub async fn settle_completed_offers(&self) -> Result<u64, StoreError> {
        let open = sqlx::query_scalar!(
            "SELECT id FROM heddle.offers WHERE run IS NOT NULL AND deleted_at IS NULL AND enabled"
        )
        .fetch_all(&self.pool)
        .await?;
        let mut connection = self.pool.acquire().await?;
        let mut settled = 0;
        for ids in open.chunks(BATCH_MAX) {
            settled += close_done(&mut connection, ids).await?;
        }
        Ok(settled)
    }

    /// How many bytes the results of an offer's completed assignments have as a JSON array.
    pub async fn offer_results_bytes(&self, offer_id: i64) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT (1 + count(*) + coalesce(sum(coalesce(octet_length(result), 4)), 0))::bigint AS "bytes!"
                 FROM heddle.assignments WHERE offer_id = $1 AND state = 1"#,
            offer_id
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// The results of an offer's completed assignments, in the order in which they were completed: JSON texts. The caller
    /// has asked how large they are.
    pub async fn offer_results(&self, offer_id: i64) -> Result<Vec<Option<String>>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT result FROM heddle.assignments WHERE offer_id = $1 AND state = 1 ORDER BY finished_at, id",
            offer_id
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Withdraws offers whose task run has gone on without them (cancelled, overridden, ended, cleared): their holds are
    /// revoked. Returns the audiences.
    ///
    /// Locking: each offer in its own transaction, after its holds and its occurrence, in the order of ends. A restart can
    /// open the offer again between the choice and these locks. Then its version is another one, and the transaction is
    /// rolled back with what it has revoked.
    pub async fn withdraw_offers(&self, now: Time) -> Result<Vec<String>, StoreError> {
        let gone = sqlx::query!(
            "SELECT o.id, o.version FROM heddle.offers o
              WHERE o.run IS NOT NULL AND o.deleted_at IS NULL
                AND CASE WHEN o.enabled OR o.attempt = 0
                         THEN NOT EXISTS (SELECT FROM heddle.running r
                                           WHERE r.run = o.run AND r.task = o.task AND r.item = o.item
                                             AND r.attempt = o.attempt AND r.lease = 0)
                         ELSE NOT EXISTS (SELECT FROM heddle.runs_live l WHERE l.id = o.run) END
              LIMIT $1",
            WITHDRAWN_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        let mut audiences = Vec::new();
        for row in gone {
            let withdrawn = self.withdraw_offer(row.id, row.version, now).await?;
            audiences.extend(withdrawn);
        }
        Ok(audiences)
    }

    /// Returns the audience, unless another transaction has withdrawn the offer first, or opened it again.
    async fn withdraw_offer(&self, id: i64, version: i32, now: Time) -> Result<Option<String>, StoreError> {
        transaction!(self, pool, "withdraw_offer", |tx| {
            let audience = withdraw_in(&mut tx, id, version, now).await?;
            match audience {
                Some(_) => tx.commit().await?,
                // The users keep what they hold of an offer that is open again.
                None => tx.rollback().await?,
            }
            Ok(audience)
        })
    }

    /// Held offers of task runs without an attempt: the task run has failed for good, or it waits for its next attempt.
    /// Only the progress of its run shows which of the two.
    pub async fn held_without_attempt(&self) -> Result<Vec<HeldOffer>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT o.id, o.version, o.run AS "run!", o.task AS "task!", o.item AS "item!", l.progress
                 FROM heddle.offers o JOIN heddle.runs_live l ON l.id = ANY (ARRAY[o.run])
                WHERE o.run IS NOT NULL AND o.deleted_at IS NULL AND NOT o.enabled
                  AND EXISTS (SELECT FROM heddle.holds h WHERE h.offer_id = o.id)
                LIMIT $1"#,
            WITHDRAWN_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        let held = rows.into_iter().map(|row| HeldOffer {
            id: row.id,
            version: row.version,
            run: RunId(row.run),
            key: TaskKey::from_numbers(row.task, row.item),
            progress: row.progress,
        });
        Ok(held.collect())
    }

    /// Revokes all holds of an offer, unless it was opened again: its version is not this one any more.
    ///
    /// Locking: the holds and their occurrence, then the offer, in the order of ends. Nobody opens the offer again before
    /// the commit.
    pub async fn revoke_held(&self, offer_id: i64, version: i32, now: Time) -> Result<(), StoreError> {
        transaction!(self, pool, "revoke_held", |tx| {
            revoke_holds(&mut tx, offer_id, now).await?;
            let unchanged = sqlx::query_scalar!(
                "SELECT id FROM heddle.offers WHERE id = $1 AND version = $2 FOR NO KEY UPDATE",
                offer_id,
                version
            )
            .fetch_optional(&mut *tx)
            .await?;
            match unchanged {
                Some(_) => tx.commit().await?,
                // The users keep what they hold of an offer that is open again.
                None => tx.rollback().await?,
            }
            Ok(())
        })
    }

    /// Revokes what was taken of offers of task runs while they were withdrawn: the withdrawal does not see a hold that is
    /// not committed yet, and the take does not see the withdrawal. Nobody could complete it, so its user would hold it for
    /// ever. A take is over in seconds, so only offers that were withdrawn in the last two minutes are read.
    pub async fn revoke_late_holds(&self, now: Time) -> Result<(), StoreError> {
        let late = sqlx::query!(
            "SELECT o.id, o.version FROM heddle.offers o
              WHERE o.run IS NOT NULL AND o.deleted_at > clock_timestamp() - interval '2 minutes'
                AND EXISTS (SELECT FROM heddle.holds h WHERE h.offer_id = o.id)
              LIMIT $1",
            WITHDRAWN_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        for offer in late {
            self.revoke_held(offer.id, offer.version, now).await?;
        }
        Ok(())
    }
}

/// Revokes all holds of a task run's offer.
///
/// Locking: all these holds, in the order of users, before the first of them is ended. They are ended a few at a time,
/// and the first end locks the offer's only occurrence: a user who ends a hold of it has that hold, and waits for the
/// occurrence.
async fn revoke_holds(connection: &mut PgSession, offer_id: i64, now: Time) -> Result<(), StoreError> {
    let held = sqlx::query!(
        "SELECT id, uid FROM heddle.holds WHERE offer_id = $1 ORDER BY uid FOR UPDATE",
        offer_id
    )
    .fetch_all(&mut *connection)
    .await?;
    let ends: Vec<End> = held
        .into_iter()
        .map(|hold| End {
            id: hold.id,
            uid: hold.uid,
            state: AssignmentState::Revoked,
            result: None,
        })
        .collect();
    for ends in ends.chunks(crate::assignment::BATCH_MAX) {
        let ended = end_in(connection, ends, now).await?;
        announce_returned(connection, &ended, now);
    }
    Ok(())
}

impl Completion {
    /// Takes attempts of audience tasks that are over.
    ///
    /// Locking: rows of *offer_settlements*, skipping those that another node is taking: nobody waits for them. Their
    /// runs are locked afterwards, in id order.
    pub async fn take_offer_settlements(&mut self, take: Take<'_>) -> Result<Vec<Taken<OfferSettlement>>, StoreError> {
        let (runs, among) = take.parameters();
        let rows = sqlx::query!(
            "DELETE FROM heddle.offer_settlements s
              WHERE s.ctid = ANY (ARRAY(
                    SELECT ctid FROM heddle.offer_settlements
                     WHERE (run = ANY ($2)) = $3 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
             RETURNING s.offer_id, s.run, s.task, s.item, s.attempt, s.error_kind, s.error",
            BATCH_MAX as i64,
            &runs,
            among
        )
        .fetch_all(self.connection())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let run = RunId(row.run);
                let column = ("offer_settlements", "error_kind");
                let kind = row
                    .error_kind
                    .map(|kind| StoreError::known(ErrorKind::from_number, kind, column, format!("of run {run}")))
                    .transpose();
                let settlement = kind.map(|kind| OfferSettlement {
                    offer_id: row.offer_id,
                    ended: EndedAttempt {
                        run,
                        at: AttemptKey::from_numbers(row.task, row.item, row.attempt),
                        lease: 0,
                    },
                    error: kind.map(|kind| (kind, row.error.unwrap_or_default())),
                });
                (run, settlement)
            })
            .collect())
    }
}
