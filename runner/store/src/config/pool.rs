//! Pools: named numbers of slots that tasks take across the cluster.

use heddle_domain::Time;
use serde_json::{Value, json};

use crate::change::{self, By, Noun, Page, Put};
use crate::config::named::{Named, Stop};
use crate::database::PgSession;
use crate::transaction::transaction;
use crate::usage::{self, Removal, Users};
use crate::{Store, StoreError};

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRow {
    pub name: String,
    /// 0 to [`POOL_SLOTS_MAX`]; 0 starts nothing that needs one.
    pub slots: i32,
    pub created_at: Time,
    pub updated_at: Time,
}

/// The most slots that a pool may have.
pub const POOL_SLOTS_MAX: i32 = 1_000_000;

/// A pool to be put.
struct PoolWrite<'a> {
    name: &'a str,
    slots: i32,
}

impl Named for PoolWrite<'_> {
    const PUT: &'static str = "put_pool";
    const NOUN: Noun = Noun::Pool;
    type Kept = PoolRow;
    type Row = PoolRow;
    type Answer = Put<PoolRow>;

    fn name(&self) -> &str {
        self.name
    }

    async fn locked(&self, tx: &mut PgSession) -> Result<Option<PoolRow>, StoreError> {
        Ok(sqlx::query_as!(
            PoolRow,
            "SELECT name, slots, created_at, updated_at FROM heddle.pools WHERE name = $1 FOR UPDATE",
            self.name,
        )
        .fetch_optional(tx)
        .await?)
    }

    fn is_same(&self, kept: &PoolRow) -> bool {
        kept.slots == self.slots
    }

    async fn write(
        &self,
        tx: &mut PgSession,
        at: Time,
        _kept: Option<&PoolRow>,
    ) -> Result<PoolRow, Stop<Self::Answer>> {
        Ok(sqlx::query_as!(
            PoolRow,
            "INSERT INTO heddle.pools (name, slots, created_at, updated_at) VALUES ($1, $2, $3, $3)
             ON CONFLICT (name) DO UPDATE SET slots = excluded.slots, updated_at = excluded.updated_at
             RETURNING name, slots, created_at, updated_at",
            self.name,
            self.slots,
            at,
        )
        .fetch_one(tx)
        .await?)
    }

    fn shown(row: &PoolRow) -> Value {
        json!({"slots": row.slots})
    }
}

impl Store {
    /// Creates or changes a pool. Taken slots are never taken away: a smaller pool fills up again later.
    pub async fn put_pool(&self, by: By<'_>, name: &str, slots: i32) -> Result<Put<PoolRow>, StoreError> {
        self.put(by, &PoolWrite { name, slots }).await
    }

    /// A pool.
    pub async fn pool_by_name(&self, name: &str) -> Result<Option<PoolRow>, StoreError> {
        Ok(sqlx::query_as!(
            PoolRow,
            "SELECT name, slots, created_at, updated_at FROM heddle.pools WHERE name = $1",
            name,
        )
        .fetch_optional(&self.control)
        .await?)
    }

    /// Pools by name, behind `cursor`.
    pub async fn pools(&self, cursor: Option<&str>, limit: i64) -> Result<Page<PoolRow>, StoreError> {
        let rows = sqlx::query_as!(
            PoolRow,
            "SELECT name, slots, created_at, updated_at FROM heddle.pools
             WHERE ($1::text IS NULL OR name > $1) ORDER BY name LIMIT $2",
            cursor,
            limit + 1,
        )
        .fetch_all(&self.control)
        .await?;
        Ok(Page::of(rows, limit, |row| row.name.clone()))
    }

    /// Deletes a pool that no group's current spec names. Task runs of older revisions that name it are unbounded by it
    /// from then on.
    pub async fn delete_pool(&self, by: By<'_>, name: &str) -> Result<Removal, StoreError> {
        transaction!(self, control, "delete_pool", |tx| {
            let slots = sqlx::query_scalar!("DELETE FROM heddle.pools WHERE name = $1 RETURNING slots", name)
                .fetch_optional(&mut *tx)
                .await?;
            let Some(slots) = slots else {
                return Ok(Removal::Missing);
            };
            let groups = usage::groups(&mut tx, usage::POOLS, name).await?;
            if !groups.is_empty() {
                return Ok(Removal::UsedBy(Users {
                    groups,
                    ..Users::default()
                }));
            }
            let before = json!({"slots": slots});
            change::record(&mut tx, by, "delete", Noun::Pool, name, Some(&before), None).await?;
            tx.commit().await?;
            Ok(Removal::Done)
        })
    }
}
