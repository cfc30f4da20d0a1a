//! Offers: what audiences are offered. `task_offer.rs` creates and ends those that belong to task runs.

use std::collections::HashMap;

use heddle_domain::Time;
use heddle_domain::dispatch::{Mode, Offer, OfferKind};
use heddle_domain::spec::write_as_jsonb;
use serde_json::Value;
use uuid::Uuid;

use crate::change::{self, By, Noun, PAGE_BYTES_MAX, Page, Put};
use crate::config::named::{Named, PutAudit, Stop};
use crate::database::{PgSession, Pool};
use crate::exhausted::{Exhausted, TakenEnd};
use crate::transaction::transaction;
use crate::{Store, StoreError, audit};

pub use super::task_offer::{HeldOffer, OfferSettlement, TaskOffer};

#[derive(Clone, Debug, PartialEq)]
pub struct OfferRow {
    pub id: i64,
    pub name: String,
    pub audience: String,
    pub version: i32,
    pub starts_at: Time,
    /// With all defaults written out.
    pub spec: Value,
    /// The task run to which it belongs.
    pub run: Option<Uuid>,
    pub created_at: Time,
    pub updated_at: Time,
}

/// The result of putting an offer.
#[derive(Clone, Debug, PartialEq)]
pub enum OfferPut {
    Done(Put<OfferRow>),
    /// The audience has this many repeating offers already.
    TooMany(i64),
    /// It belongs to a task run, and only that may change it.
    OfTask,
    /// It exists already, although it was to be created.
    Exists,
    /// Its template has been deleted.
    NoTemplate,
}

/// The result of deleting an offer.
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
    /// The exhausted occurrences of repeating offers, the newest of each.
    pub exhausted: Vec<Exhausted>,
    /// `once` offers that are due from here on were left out, because there are very many.
    pub complete_until: Option<Time>,
}

/// The counts of an occurrence that somebody has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OccurrenceCounts {
    pub taken: i32,
    pub completed: i32,
    pub failed: i32,
}

/// How many `once` offers of an audience a node reads at a time.
const ONCE_MAX: i64 = 5_000;

/// A spec with its defaults, as in the table and in the API.
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
    write_as_jsonb(&mut spec);
    spec
}

impl From<Put<OfferRow>> for OfferPut {
    fn from(put: Put<OfferRow>) -> Self {
        Self::Done(put)
    }
}

/// An offer to be put.
struct OfferWrite<'a> {
    name: &'a str,
    offer: &'a Offer,
    /// The same, [written out](written_out).
    spec: Value,
    /// It must not exist yet.
    only_new: bool,
    /// How many repeating offers its audience may have.
    repeating_max: i64,
}

impl OfferWrite<'_> {
    /// Locks the objects that the offer needs, until the commit.
    ///
    /// Locking: after the offer's own name and row: its template, shared, so that a deletion of that waits, and then
    /// finds this offer; then the name of its audience, so that the audience's repeating offers are put one after
    /// another. A deletion of a template locks only that, and a change of members no offer.
    async fn hold(&self, tx: &mut PgSession) -> Result<(), Stop<OfferPut>> {
        let offer = self.offer;
        if let Some(template) = &offer.template {
            let there = sqlx::query_scalar!(
                r#"SELECT true AS "there!" FROM heddle.templates WHERE name = $1 FOR SHARE"#,
                template.as_str()
            )
            .fetch_optional(&mut *tx)
            .await?;
            if there.is_none() {
                return Err(Stop::Refused(OfferPut::NoTemplate));
            }
        }
        if offer.kind != OfferKind::Once {
            change::lock_name(&mut *tx, Noun::Audience, &offer.audience).await?;
            let others = sqlx::query_scalar!(
                r#"SELECT count(*) AS "count!" FROM heddle.offers
                    WHERE audience = $1 AND kind <> 0 AND deleted_at IS NULL AND name <> $2"#,
                offer.audience,
                self.name
            )
            .fetch_one(tx)
            .await?;
            if others >= self.repeating_max {
                return Err(Stop::Refused(OfferPut::TooMany(others)));
            }
        }
        Ok(())
    }
}

impl Named for OfferWrite<'_> {
    const PUT: &'static str = "put_offer";
    const NOUN: Noun = Noun::Offer;
    type Kept = OfferRow;
    type Row = OfferRow;
    type Answer = OfferPut;

    fn pool(store: &Store) -> &Pool {
        &store.pool
    }

    fn name(&self) -> &str {
        self.name
    }

    /// Locking: the same lock as [`Named::locked`] describes.
    async fn locked(&self, tx: &mut PgSession) -> Result<Option<OfferRow>, StoreError> {
        Ok(sqlx::query_as!(
            OfferRow,
            "SELECT id, name, audience, version, starts_at, spec, run, created_at, updated_at
               FROM heddle.offers WHERE name = $1 AND deleted_at IS NULL FOR UPDATE",
            self.name
        )
        .fetch_optional(tx)
        .await?)
    }

    async fn check(&self, _tx: &mut PgSession, kept: Option<&OfferRow>) -> Result<(), Stop<OfferPut>> {
        match kept {
            Some(_) if self.only_new => Err(Stop::Refused(OfferPut::Exists)),
            Some(row) if row.run.is_some() => Err(Stop::Refused(OfferPut::OfTask)),
            _ => Ok(()),
        }
    }

    fn is_same(&self, kept: &OfferRow) -> bool {
        kept.spec == self.spec
    }

    async fn write(&self, tx: &mut PgSession, at: Time, kept: Option<&OfferRow>) -> Result<OfferRow, Stop<OfferPut>> {
        self.hold(tx).await?;
        let offer = self.offer;
        let row = match kept {
            None => {
                sqlx::query_as!(
                    OfferRow,
                    "INSERT INTO heddle.offers (name, audience, version, kind, starts_at, stock, repeats, return_failed,
                         max_hold, enabled, template, spec, created_at, updated_at)
                     VALUES ($1, $2, 1, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12)
                     RETURNING id, name, audience, version, starts_at, spec, run, created_at, updated_at",
                    self.name,
                    offer.audience,
                    offer.kind.number(),
                    offer.starts_at,
                    offer.stock,
                    offer.mode == Mode::Repeat,
                    offer.return_failed,
                    offer.max_hold.map(|hold| hold.micros() as i64),
                    offer.enabled,
                    offer.template.as_ref().map(|name| name.as_str()),
                    self.spec,
                    at
                )
                .fetch_one(&mut *tx)
                .await?
            }
            Some(kept) => {
                sqlx::query_as!(
                    OfferRow,
                    "UPDATE heddle.offers
                        SET audience = $2, version = $3, kind = $4, starts_at = $5, stock = $6, repeats = $7,
                            return_failed = $8, max_hold = $9, enabled = $10, template = $11, spec = $12, updated_at = $13
                      WHERE id = $1
                     RETURNING id, name, audience, version, starts_at, spec, run, created_at, updated_at",
                    kept.id,
                    offer.audience,
                    kept.version + 1,
                    offer.kind.number(),
                    offer.starts_at,
                    offer.stock,
                    offer.mode == Mode::Repeat,
                    offer.return_failed,
                    offer.max_hold.map(|hold| hold.micros() as i64),
                    offer.enabled,
                    offer.template.as_ref().map(|name| name.as_str()),
                    self.spec,
                    at
                )
                .fetch_one(&mut *tx)
                .await?
            }
        };
        sqlx::query!(
            "INSERT INTO heddle.offer_versions (offer_id, version, params) VALUES ($1, $2, $3)",
            row.id,
            row.version,
            Value::Object(offer.params.clone())
        )
        .execute(tx)
        .await?;
        Ok(row)
    }

    fn shown(row: &OfferRow) -> Result<Value, StoreError> {
        Ok(row.spec.clone())
    }

    /// Nodes follow the offers of an audience, so the change is recorded for the old and for the new audience.
    async fn record(&self, tx: &mut PgSession, by: By<'_>, entry: PutAudit<'_>) -> Result<(), StoreError> {
        let PutAudit { action, before, after } = entry;
        let about = Noun::Offer.quiet();
        audit::record(&mut *tx, by, action, about, self.name, before, Some(after)).await?;
        let had = before.and_then(|spec| spec["audience"].as_str());
        if let Some(had) = had.filter(|had| *had != self.offer.audience) {
            change::announce(&mut *tx, by.at, Noun::Audience, had);
        }
        change::announce(tx, by.at, Noun::Audience, &self.offer.audience);
        Ok(())
    }
}

/// What waits for the dispatcher of any node; the result of [`Store::dispatch_news`].
#[derive(Clone, Copy, Debug)]
pub struct DispatchNews {
    /// Holds have lasted too long.
    pub overdue: bool,
    /// Attempts of audience tasks wait to be settled.
    pub settlements: bool,
    /// Returns of stock wait to be announced.
    pub returns: bool,
    /// There are offers of task runs, which need sweeps, or there were some in the last two minutes (see
    /// [`Store::revoke_late_holds`]).
    pub of_tasks: bool,
}

/// An offer, for people who ask why a user does not get it.
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
    /// Creates or changes an offer. `only_new`: it must not exist yet. At most `repeating_max` repeating ones per
    /// audience.
    pub async fn put_offer(
        &self,
        by: By<'_>,
        name: &str,
        offer: &Offer,
        only_new: bool,
        repeating_max: i64,
    ) -> Result<OfferPut, StoreError> {
        let write = OfferWrite {
            name,
            offer,
            spec: written_out(offer),
            only_new,
            repeating_max,
        };
        self.put(by, &write).await
    }

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

    /// Offers by name, after `cursor`. A page may have fewer than `limit`, and still have a next page: it ends with the
    /// offer that goes beyond [`PAGE_BYTES_MAX`].
    pub async fn offers(
        &self,
        audience: Option<&str>,
        cursor: Option<&str>,
        limit: i64,
    ) -> Result<Page<OfferRow>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT w.id AS "id!", w.name AS "name!", w.audience AS "audience!", w.version AS "version!",
                      w.starts_at AS "starts_at!", w.spec AS "spec!", w.run AS "run?", w.created_at AS "created_at!",
                      w.updated_at AS "updated_at!", w.upto > $4::bigint OR w.stored > $4 AS "cut!"
                 FROM (SELECT s.*, sum(s.bytes) OVER (ORDER BY s.name ROWS UNBOUNDED PRECEDING) AS upto
                         FROM (SELECT f.*, octet_length(f.spec::text) AS bytes
                                 FROM (SELECT o.*, sum(pg_column_size(o.spec))
                                                   OVER (ORDER BY o.name ROWS UNBOUNDED PRECEDING) AS stored
                                         FROM (SELECT id, name, audience, version, starts_at, spec, run, created_at, updated_at
                                                 FROM heddle.offers
                                                WHERE deleted_at IS NULL AND ($1::text IS NULL OR name > $1)
                                                  AND ($2::text IS NULL OR audience = $2)
                                                ORDER BY name LIMIT $3) AS o) AS f
                                WHERE f.stored - pg_column_size(f.spec) <= $4) AS s) AS w
                WHERE w.upto - w.bytes <= $4
                ORDER BY w.name"#,
            cursor,
            audience,
            limit + 1,
            PAGE_BYTES_MAX
        )
        .fetch_all(&self.pool)
        .await?;
        let rows = rows.into_iter().map(|row| {
            let offer = OfferRow {
                id: row.id,
                name: row.name,
                audience: row.audience,
                version: row.version,
                starts_at: row.starts_at,
                spec: row.spec,
                run: row.run,
                created_at: row.created_at,
                updated_at: row.updated_at,
            };
            (offer, row.cut)
        });
        Ok(Page::of_bounded(rows.collect(), limit, |row| row.name.clone()))
    }

    /// Offers that may have an occurrence in some time, by their number, after a given one. Their specs are without the
    /// params, which do not say when an offer is due, and are nearly all of the bytes.
    pub async fn offers_due(
        &self,
        audience: Option<&str>,
        (from, to): (Time, Time),
        behind: i64,
        limit: i64,
    ) -> Result<Vec<OfferRow>, StoreError> {
        Ok(sqlx::query_as!(
            OfferRow,
            r#"SELECT id, name, audience, version, starts_at, spec - 'params' AS "spec!", run, created_at, updated_at
                 FROM heddle.offers
                WHERE deleted_at IS NULL AND id > $1 AND ($2::text IS NULL OR audience = $2)
                  AND starts_at <= $4 AND (kind <> 0 OR starts_at >= $3)
                ORDER BY id LIMIT $5"#,
            behind,
            audience,
            from,
            to,
            limit
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Deletes an offer. Assignments of it that users hold stay valid, and may be completed.
    ///
    /// Locking: the offer's row, and nothing after it but the log of changes. This waits for a PUT of the offer that
    /// has begun.
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
            audit::record(&mut tx, by, "delete", Noun::Offer.quiet(), name, Some(&row.spec), None).await?;
            change::announce(&mut tx, by.at, Noun::Audience, &row.audience);
            tx.commit().await?;
            Ok(OfferDelete::Deleted)
        })
    }

    /// The enabled offers of an audience from `reach` on that are not all exhausted. Offers of task runs whose attempt is
    /// over are left out, as `give.sql` refuses them: otherwise polls would propose them until they are withdrawn.
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
                AND CASE WHEN o.run IS NULL THEN starts_at >= $2
                         ELSE EXISTS (SELECT FROM heddle.running r
                                       WHERE r.run = ANY (ARRAY[o.run]) AND r.task = o.task AND r.item = o.item
                                         AND r.attempt = o.attempt AND r.lease = 0) END
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
        let exhausted = self
            .exhausted(&repeating, repeating.len(), reach, TakenEnd::Newest)
            .await?;
        Ok(AudienceOffers {
            offers,
            exhausted,
            complete_until,
        })
    }

    /// Offers to some audiences, enabled or not, for people: first those that repeat, then the newest of the others,
    /// none that was due before `since`. An offer of a task run whose attempt is over counts as not enabled.
    pub async fn offers_to(&self, audiences: &[String], since: Time, limit: i64) -> Result<Vec<OfferTo>, StoreError> {
        Ok(sqlx::query_as!(
            OfferTo,
            r#"SELECT id, name, audience, kind = 0 AS "once!", starts_at,
                      enabled AND (o.run IS NULL OR EXISTS (
                          SELECT FROM heddle.running r
                           WHERE r.run = ANY (ARRAY[o.run]) AND r.task = o.task AND r.item = o.item
                             AND r.attempt = o.attempt AND r.lease = 0)) AS "enabled!"
                 FROM heddle.offers o
                WHERE audience = ANY ($1) AND deleted_at IS NULL AND (kind <> 0 OR starts_at >= $2 OR run IS NOT NULL)
                ORDER BY kind = 0, starts_at DESC, id LIMIT $3"#,
            audiences,
            since,
            limit,
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// The counts of occurrences that somebody has taken.
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

    /// Whether the dispatcher has work for which nobody polls, in one statement.
    pub async fn dispatch_news(&self) -> Result<DispatchNews, StoreError> {
        Ok(sqlx::query_as!(
            DispatchNews,
            r#"SELECT EXISTS (SELECT FROM heddle.holds WHERE expires_at <= clock_timestamp()) AS "overdue!",
                      EXISTS (SELECT FROM heddle.offer_settlements) AS "settlements!",
                      EXISTS (SELECT FROM heddle.stock_returns) AS "returns!",
                      EXISTS (SELECT FROM heddle.offers WHERE run IS NOT NULL AND deleted_at IS NULL)
                      OR EXISTS (SELECT FROM heddle.offers
                                  WHERE run IS NOT NULL
                                    AND deleted_at > clock_timestamp() - interval '2 minutes') AS "of_tasks!""#
        )
        .fetch_one(&self.pool)
        .await?)
    }
}
