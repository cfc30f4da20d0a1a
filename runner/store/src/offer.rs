//! Offers: what audiences are offered, and the offers that task runs stand behind.

use std::collections::HashMap;

use heddle_domain::Time;
use heddle_domain::dispatch::{AssignmentState, Mode, Offer, OfferKind};
use heddle_domain::id::RunId;
use heddle_domain::run::{AttemptKey, TaskKey};
use heddle_domain::state::ErrorKind;
use serde_json::Value;
use uuid::Uuid;

use crate::assignment::{End, announce_returned, end_in};
use crate::change::{self, By, Noun, Page, Put};
use crate::database::PgSession;
use crate::live::{BATCH_MAX, Completion, EndedAttempt};
use crate::transaction::transaction;
use crate::used_up::{TakenEnd, UsedUp};
use crate::{Store, StoreError, audit};

/// An offer.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferRow {
    pub id: i64,
    pub name: String,
    pub audience: String,
    pub version: i32,
    pub starts_at: Time,
    /// With every default written out.
    pub spec: Value,
    /// The task run that it stands for.
    pub run: Option<Uuid>,
    pub created_at: Time,
    pub updated_at: Time,
}

/// An offer of a task run that somebody holds.
#[derive(Clone, Debug)]
pub struct HeldOffer {
    pub id: i64,
    pub run: RunId,
    pub key: TaskKey,
    /// The run's progress as bytes.
    pub progress: Vec<u8>,
}

/// What came of putting an offer.
#[derive(Clone, Debug, PartialEq)]
pub enum OfferPut {
    Done(Put<OfferRow>),
    /// The audience has so many repeating offers already.
    TooMany(i64),
    /// It belongs to a task run, which alone may change it.
    OfTask,
    /// There is one already, and it was to be made.
    Exists,
    /// Its template has been deleted.
    NoTemplate,
}

/// What came of deleting an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferDelete {
    Missing,
    OfTask,
    Deleted,
}

/// What a node needs to give out an audience's offers.
#[derive(Clone, Debug, Default)]
pub struct AudienceOffers {
    pub offers: Vec<OfferRow>,
    /// What is used up of those that repeat, the newest of each.
    pub used_up: Vec<UsedUp>,
    /// `once` offers that are due from here on were left out: there are very many.
    pub complete_until: Option<Time>,
}

/// How an occurrence that somebody has taken stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OccurrenceCounts {
    pub taken: i32,
    pub completed: i32,
    pub failed: i32,
}

/// A task run's offer, as its attempt makes it.
#[derive(Clone, Debug)]
pub struct TaskOffer {
    pub ended: EndedAttempt,
    /// If it is not there yet.
    pub name: String,
    pub offer: Offer,
    pub spec: Value,
    /// Until when the attempt may take.
    pub overdue_at: Option<Time>,
}

/// An attempt of an audience task that is over.
#[derive(Clone, Debug)]
pub struct OfferSettlement {
    pub offer_id: i64,
    /// Held by lease 0.
    pub ended: EndedAttempt,
    /// `None`: its stock is completed.
    pub error: Option<(ErrorKind, String)>,
}

/// How many `once` offers of an audience a node reads at a time.
const ONCE_MAX: i64 = 5_000;

/// How many offers without a run are withdrawn at a time.
const WITHDRAWN_MAX: i64 = 200;

/// A spec with the defaults, as it stands in the table and in the API.
pub fn written_out(offer: &Offer) -> Value {
    let moment = |at: Time| at.format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
    let mut spec = serde_json::json!({
        "kind": offer.kind,
        "audience": offer.audience,
        "template": offer.template,
        "params": offer.params,
        "dispatch_times": offer.stock.map_or(Value::from("each"), Value::from),
        "mode": offer.mode,
        "priority": offer.priority,
        "max_hold": offer.max_hold,
        "return_failed": offer.return_failed,
        "enabled": offer.enabled,
        "ends_at": offer.ends_at.map(moment),
    });
    match &offer.rhythm {
        heddle_domain::dispatch::Rhythm::Once(at) => spec["starts_at"] = moment(*at).into(),
        heddle_domain::dispatch::Rhythm::Interval { anchor, every } => {
            spec["anchor"] = moment(*anchor).into();
            spec["every"] = serde_json::json!(every);
        }
        heddle_domain::dispatch::Rhythm::Daily(_) => {
            spec["starts_at"] = moment(offer.starts_at).into();
            spec["every_days"] = serde_json::json!(offer.every_days);
            spec["at"] = serde_json::json!(offer.at);
            spec["timezone"] = serde_json::json!(offer.timezone);
        }
    }
    spec
}

/// See [`Store::dispatch_news`].
#[derive(Clone, Copy, Debug)]
pub struct DispatchNews {
    /// Holds have lasted too long.
    pub overdue: bool,
    /// Attempts of audience tasks wait to be settled.
    pub settlements: bool,
    /// Returns of stock wait to be told of.
    pub returns: bool,
    /// There are offers of task runs, over which to sweep.
    pub of_tasks: bool,
}

/// An offer, as far as somebody looks at it who asks why a user is not given it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferTo {
    pub id: i64,
    pub name: String,
    pub audience: String,
    pub enabled: bool,
    /// It does not repeat.
    pub once: bool,
    pub starts_at: Time,
}

impl Store {
    /// Makes or changes an offer. `only_new`: it must not be there. At most `repeating_max` repeating ones per audience.
    pub async fn put_offer(
        &self,
        by: By<'_>,
        name: &str,
        offer: &Offer,
        only_new: bool,
        repeating_max: i64,
    ) -> Result<OfferPut, StoreError> {
        let spec = written_out(offer);
        let mut tx = self.pool.begin().await?;
        change::lock_name(&mut tx, Noun::Offer, name).await?;
        let before = sqlx::query_as!(
            OfferRow,
            "SELECT id, name, audience, version, starts_at, spec, run, created_at, updated_at
               FROM heddle.offers WHERE name = $1 AND deleted_at IS NULL FOR UPDATE",
            name
        )
        .fetch_optional(&mut *tx)
        .await?;
        match &before {
            Some(_) if only_new => return Ok(OfferPut::Exists),
            Some(row) if row.run.is_some() => return Ok(OfferPut::OfTask),
            Some(row) if row.spec == spec => {
                return Ok(OfferPut::Done(Put {
                    row: row.clone(),
                    created: false,
                    changed: false,
                }));
            }
            _ => {}
        }
        if let Some(template) = &offer.template {
            // Held until the commit: whoever deletes the template waits, and then finds this offer.
            let there = sqlx::query_scalar!(
                r#"SELECT true AS "there!" FROM heddle.templates WHERE name = $1 FOR SHARE"#,
                template.as_str()
            )
            .fetch_optional(&mut *tx)
            .await?;
            if there.is_none() {
                return Ok(OfferPut::NoTemplate);
            }
        }
        if offer.kind != OfferKind::Once {
            change::lock_name(&mut tx, Noun::Audience, &offer.audience).await?;
            let others = sqlx::query_scalar!(
                r#"SELECT count(*) AS "count!" FROM heddle.offers
                    WHERE audience = $1 AND kind <> 0 AND deleted_at IS NULL AND name <> $2"#,
                offer.audience,
                name
            )
            .fetch_one(&mut *tx)
            .await?;
            if others >= repeating_max {
                return Ok(OfferPut::TooMany(others));
            }
        }
        let (id, version) = before.as_ref().map_or((None, 1), |row| (Some(row.id), row.version + 1));
        let row = match id {
            None => {
                sqlx::query_as!(
                    OfferRow,
                    "INSERT INTO heddle.offers (name, audience, version, kind, starts_at, stock, repeats, return_failed,
                         max_hold, enabled, template, spec, created_at, updated_at)
                     VALUES ($1, $2, 1, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12)
                     RETURNING id, name, audience, version, starts_at, spec, run, created_at, updated_at",
                    name,
                    offer.audience,
                    offer.kind.number(),
                    offer.starts_at,
                    offer.stock,
                    offer.mode == Mode::Repeat,
                    offer.return_failed,
                    offer.max_hold.map(|hold| hold.micros() as i64),
                    offer.enabled,
                    offer.template.as_ref().map(|name| name.as_str()),
                    spec,
                    by.at
                )
                .fetch_one(&mut *tx)
                .await?
            }
            Some(id) => {
                sqlx::query_as!(
                    OfferRow,
                    "UPDATE heddle.offers
                        SET audience = $2, version = $3, kind = $4, starts_at = $5, stock = $6, repeats = $7,
                            return_failed = $8, max_hold = $9, enabled = $10, template = $11, spec = $12, updated_at = $13
                      WHERE id = $1
                     RETURNING id, name, audience, version, starts_at, spec, run, created_at, updated_at",
                    id,
                    offer.audience,
                    version,
                    offer.kind.number(),
                    offer.starts_at,
                    offer.stock,
                    offer.mode == Mode::Repeat,
                    offer.return_failed,
                    offer.max_hold.map(|hold| hold.micros() as i64),
                    offer.enabled,
                    offer.template.as_ref().map(|name| name.as_str()),
                    spec,
                    by.at
                )
                .fetch_one(&mut *tx)
                .await?
            }
        };
        sqlx::query!(
            "INSERT INTO heddle.offer_versions (offer_id, version, params) VALUES ($1, $2, $3)",
            row.id,
            version,
            Value::Object(offer.params.clone())
        )
        .execute(&mut *tx)
        .await?;
        let action = if before.is_none() { "create" } else { "update" };
        let was = before.as_ref().map(|row| &row.spec);
        audit::write(&mut tx, by, action, Noun::Offer, name, was, Some(&spec)).await?;
        if let Some(row) = before.as_ref().filter(|row| row.audience != offer.audience) {
            change::announce(&mut tx, by.at, Noun::Audience, &row.audience).await?;
        }
        change::announce(&mut tx, by.at, Noun::Audience, &offer.audience).await?;
        tx.commit().await?;
        Ok(OfferPut::Done(Put {
            row,
            created: before.is_none(),
            changed: true,
        }))
    }

    /// An offer.
    pub async fn offer(&self, name: &str) -> Result<Option<OfferRow>, StoreError> {
        Ok(sqlx::query_as!(
            OfferRow,
            "SELECT id, name, audience, version, starts_at, spec, run, created_at, updated_at
               FROM heddle.offers WHERE name = $1 AND deleted_at IS NULL",
            name
        )
        .fetch_optional(&self.pool)
        .await?)
    }

    /// Offers by name, behind `cursor`.
    pub async fn offers(
        &self,
        audience: Option<&str>,
        cursor: Option<&str>,
        limit: i64,
    ) -> Result<Page<OfferRow>, StoreError> {
        let rows = sqlx::query_as!(
            OfferRow,
            "SELECT id, name, audience, version, starts_at, spec, run, created_at, updated_at
               FROM heddle.offers
              WHERE deleted_at IS NULL AND ($1::text IS NULL OR name > $1) AND ($2::text IS NULL OR audience = $2)
              ORDER BY name LIMIT $3",
            cursor,
            audience,
            limit + 1
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(Page::of(rows, limit, |row| row.name.clone()))
    }

    /// Offers that may have an occurrence in some time, by their number, behind one.
    pub async fn offers_due(
        &self,
        audience: Option<&str>,
        (from, to): (Time, Time),
        behind: i64,
        limit: i64,
    ) -> Result<Vec<OfferRow>, StoreError> {
        Ok(sqlx::query_as!(
            OfferRow,
            "SELECT id, name, audience, version, starts_at, spec, run, created_at, updated_at
               FROM heddle.offers
              WHERE deleted_at IS NULL AND id > $1 AND ($2::text IS NULL OR audience = $2)
                AND starts_at <= $4 AND (kind <> 0 OR starts_at >= $3)
              ORDER BY id LIMIT $5",
            behind,
            audience,
            from,
            to,
            limit
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Deletes an offer. What is held of it stays so, and may be completed.
    pub async fn delete_offer(&self, by: By<'_>, name: &str) -> Result<OfferDelete, StoreError> {
        transaction!(self, pool, "delete_offer", |tx| {
            let row = sqlx::query!(
                "SELECT id, audience, spec, run FROM heddle.offers WHERE name = $1 AND deleted_at IS NULL FOR UPDATE",
                name
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(row) = row else {
                return Ok(OfferDelete::Missing);
            };
            if row.run.is_some() {
                return Ok(OfferDelete::OfTask);
            }
            sqlx::query!(
                "UPDATE heddle.offers SET deleted_at = $2, enabled = false WHERE id = $1",
                row.id,
                by.at
            )
            .execute(&mut *tx)
            .await?;
            audit::write(&mut tx, by, "delete", Noun::Offer, name, Some(&row.spec), None).await?;
            change::announce(&mut tx, by.at, Noun::Audience, &row.audience).await?;
            tx.commit().await?;
            Ok(OfferDelete::Deleted)
        })
    }

    /// What an audience may be given from `reach` on: its enabled offers that are not all used up.
    pub async fn offers_of_audience(&self, audience: &str, reach: Time) -> Result<AudienceOffers, StoreError> {
        let mut offers = sqlx::query_as!(
            OfferRow,
            "SELECT id, name, audience, version, starts_at, spec, run, created_at, updated_at
               FROM heddle.offers WHERE audience = $1 AND enabled AND deleted_at IS NULL AND kind <> 0",
            audience
        )
        .fetch_all(&self.pool)
        .await?;
        let once = sqlx::query_as!(
            OfferRow,
            "SELECT o.id, name, audience, version, starts_at, spec, run, created_at, updated_at
               FROM heddle.offers o
              WHERE audience = $1 AND enabled AND deleted_at IS NULL AND kind = 0
                AND (starts_at >= $2 OR run IS NOT NULL)
                AND NOT EXISTS (SELECT FROM heddle.occurrences c
                                 WHERE c.offer_id = o.id AND c.occurrence = o.starts_at AND c.taken >= o.stock)
              ORDER BY starts_at LIMIT $3",
            audience,
            reach,
            ONCE_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        let complete_until = if once.len() as i64 == ONCE_MAX {
            once.last().map(|offer| offer.starts_at)
        } else {
            None
        };
        let repeating: Vec<i64> = offers.iter().map(|offer| offer.id).collect();
        offers.extend(once);
        let used_up = self
            .used_up(&repeating, repeating.len(), reach, TakenEnd::Newest)
            .await?;
        Ok(AudienceOffers {
            offers,
            used_up,
            complete_until,
        })
    }

    /// Offers to some audiences, whether they are given out or not, for people to look at: those that repeat first, of the
    /// others the newest, none that was due before `since`.
    pub async fn offers_to(&self, audiences: &[String], since: Time, limit: i64) -> Result<Vec<OfferTo>, StoreError> {
        Ok(sqlx::query_as!(
            OfferTo,
            r#"SELECT id, name, audience, enabled, kind = 0 AS "once!", starts_at
                 FROM heddle.offers
                WHERE audience = ANY ($1) AND deleted_at IS NULL AND (kind <> 0 OR starts_at >= $2 OR run IS NOT NULL)
                ORDER BY kind = 0, starts_at DESC, id LIMIT $3"#,
            audiences,
            since,
            limit,
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// How occurrences stand that somebody has taken.
    pub async fn occurrence_counts(
        &self,
        offers: &[i64],
        from: Time,
        to: Time,
    ) -> Result<HashMap<(i64, Time), OccurrenceCounts>, StoreError> {
        let rows = sqlx::query!(
            "SELECT offer_id, occurrence, taken, completed, failed FROM heddle.occurrences
              WHERE offer_id = ANY ($1) AND occurrence >= $2 AND occurrence <= $3",
            offers,
            from,
            to
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let counts = OccurrenceCounts {
                    taken: row.taken,
                    completed: row.completed,
                    failed: row.failed,
                };
                ((row.offer_id, row.occurrence), counts)
            })
            .collect())
    }

    /// Hands an attempt of an audience task over to its offer, which is made, or opened again for a new attempt.
    /// `false`: the attempt is not this node's any more.
    pub async fn hand_to_offer(&self, task: &TaskOffer, now: Time) -> Result<bool, StoreError> {
        let (run, at, key) = (task.ended.run.0, task.ended.at, task.ended.at.key);
        let offer = &task.offer;
        let mut tx = self.pool.begin().await?;
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
        // The instant stays the first attempt's: stock is counted, and users have had it, by that occurrence. So does
        // what was completed when the run ended, and the offer with it, before it was restarted.
        let opened = sqlx::query!(
            "UPDATE heddle.offers
                SET version = version + 1, enabled = true, attempt = $4, overdue_at = $5, updated_at = $6, stock = $7,
                    audience = $8, repeats = $9, max_hold = $10,
                    deleted_at = NULL, spec = $11::jsonb || jsonb_build_object('starts_at', spec -> 'starts_at')
              WHERE id = (SELECT id FROM heddle.offers WHERE run = $1 AND task = $2 AND item = $3 ORDER BY id DESC LIMIT 1)
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
            task.spec
        )
        .fetch_optional(&mut *tx)
        .await?
        .map(|row| (row.id, row.version));
        let (id, version) = match opened {
            Some(opened) => opened,
            None => {
                let id = sqlx::query_scalar!(
                    "INSERT INTO heddle.offers (name, audience, version, kind, starts_at, stock, repeats, return_failed,
                         max_hold, enabled, template, spec, run, task, item, attempt, overdue_at, created_at, updated_at)
                     VALUES ($1, $2, 1, 0, $3, $4, $5, true, $6, true, $7, $8, $9, $10, $11, $12, $13, $14, $14)
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
                    now
                )
                .fetch_one(&mut *tx)
                .await?;
                (id, 1)
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
        change::announce(&mut tx, now, Noun::Audience, &offer.audience).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// What there is to be done that nobody asks for, at one look.
    pub async fn dispatch_news(&self) -> Result<DispatchNews, StoreError> {
        Ok(sqlx::query_as!(
            DispatchNews,
            r#"SELECT EXISTS (SELECT FROM heddle.holds WHERE expires_at <= clock_timestamp()) AS "overdue!",
                      EXISTS (SELECT FROM heddle.offer_settlements) AS "settlements!",
                      EXISTS (SELECT FROM heddle.stock_returns) AS "returns!",
                      EXISTS (SELECT FROM heddle.offers WHERE run IS NOT NULL AND deleted_at IS NULL) AS "of_tasks!""#
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Fails attempts of audience tasks whose timeout has passed; answers how many.
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

    /// Settles attempts whose offer is completed although nobody has said so: members were removed, or the last
    /// completion met the opening of a new attempt. A slow sweep behind the settlement that comes with a completion.
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

    /// The results of an offer's completed assignments, in the order in which they were completed: JSON texts.
    pub async fn offer_results(&self, offer_id: i64, limit: i64) -> Result<Vec<Option<String>>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT result FROM heddle.assignments WHERE offer_id = $1 AND state = 1 ORDER BY finished_at, id LIMIT $2",
            offer_id,
            limit
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Withdraws offers whose task run has gone on without them (cancelled, overridden, ended): what is held of them is
    /// revoked. Answers the audiences.
    pub async fn withdraw_offers(&self, now: Time) -> Result<Vec<String>, StoreError> {
        let gone = sqlx::query!(
            "SELECT o.id FROM heddle.offers o
              WHERE o.run IS NOT NULL AND o.deleted_at IS NULL
                AND CASE WHEN o.enabled
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
            let mut tx = self.pool.begin().await?;
            revoke_holds(&mut tx, row.id, now).await?;
            let audience = sqlx::query_scalar!(
                "UPDATE heddle.offers SET enabled = false, deleted_at = $2, overdue_at = NULL
                  WHERE id = $1 AND deleted_at IS NULL RETURNING audience",
                row.id,
                now
            )
            .fetch_optional(&mut *tx)
            .await?;
            if let Some(audience) = audience {
                change::announce(&mut tx, now, Noun::Audience, &audience).await?;
                audiences.push(audience);
            }
            tx.commit().await?;
        }
        Ok(audiences)
    }

    /// Offers of task runs that are held although no attempt stands behind them: the task run has failed for good, or it
    /// waits for its next attempt, which only its run's progress tells.
    pub async fn held_without_attempt(&self) -> Result<Vec<HeldOffer>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT o.id, o.run AS "run!", o.task AS "task!", o.item AS "item!", l.progress
                 FROM heddle.offers o JOIN heddle.runs_live l ON l.id = ANY (ARRAY[o.run])
                WHERE o.run IS NOT NULL AND o.deleted_at IS NULL AND NOT o.enabled
                  AND EXISTS (SELECT FROM heddle.holds h WHERE h.offer_id = o.id)
                LIMIT $1"#,
            WITHDRAWN_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        let held = |id, run, task, item, progress| HeldOffer {
            id,
            run: RunId(run),
            key: TaskKey::from_numbers(task, item),
            progress,
        };
        Ok(rows
            .into_iter()
            .map(|row| held(row.id, row.run, row.task, row.item, row.progress))
            .collect())
    }

    /// Takes an offer back from all who hold it.
    pub async fn revoke_held(&self, offer_id: i64, now: Time) -> Result<(), StoreError> {
        let mut tx = self.pool.begin().await?;
        revoke_holds(&mut tx, offer_id, now).await?;
        tx.commit().await?;
        Ok(())
    }
}

async fn revoke_holds(connection: &mut PgSession, offer_id: i64, now: Time) -> Result<(), StoreError> {
    let held = sqlx::query!("SELECT id, uid FROM heddle.holds WHERE offer_id = $1", offer_id)
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
        announce_returned(connection, &ended, now).await?;
    }
    Ok(())
}

/// Ends those of the offers of task runs whose stock is completed; answers how many. See `sql/close_offers.sql`.
pub(crate) async fn close_done(connection: &mut PgSession, ids: &[i64]) -> Result<u64, StoreError> {
    let done = sqlx::query_file!("src/sql/close_offers.sql", ids)
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}

impl Completion {
    /// Takes attempts of audience tasks that are over.
    pub async fn take_offer_settlements(&mut self) -> Result<Vec<OfferSettlement>, StoreError> {
        let rows = sqlx::query!(
            "DELETE FROM heddle.offer_settlements s
              WHERE s.ctid = ANY (ARRAY(
                    SELECT ctid FROM heddle.offer_settlements ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
             RETURNING s.offer_id, s.run, s.task, s.item, s.attempt, s.error_kind, s.error",
            BATCH_MAX as i64
        )
        .fetch_all(self.connection())
        .await?;
        rows.into_iter()
            .map(|row| {
                let place = ("offer_settlements", "error_kind");
                let kind = row
                    .error_kind
                    .map(|kind| StoreError::known(ErrorKind::from_number, kind, place, format!("of run {}", row.run)));
                Ok(OfferSettlement {
                    offer_id: row.offer_id,
                    ended: EndedAttempt {
                        run: RunId(row.run),
                        at: AttemptKey {
                            key: TaskKey::from_numbers(row.task, row.item),
                            attempt: row.attempt as u32,
                        },
                        lease: 0,
                    },
                    error: kind.transpose()?.map(|kind| (kind, row.error.unwrap_or_default())),
                })
            })
            .collect()
    }
}
