//! Pools: named numbers of slots that tasks take across the cluster.

use serde_json::{Value, json};

use crate::change::By;
use crate::config::named::Deleted;
use crate::config::one_value::one_value;
use crate::database::PgSession;
use crate::usage::{self, Removal};
use crate::{Store, StoreError};

one_value! {
    lifetime: 'a, table: "pools", noun: Pool, transaction: "put_pool",
    #[derive(Clone, Debug, PartialEq, Eq)]
    row: PoolRow, write: PoolWrite,
    /// 0 to [`POOL_SLOTS_MAX`]; with 0, no task that needs a slot starts.
    value: slots("slots"): i32, given: i32,
    same: |kept, given| kept == given,
    shown: |row| json!({"slots": row.slots}),
    /// Creates or changes a pool. Slots in use stay in use: a pool that became smaller empties as its tasks end.
    put: put_pool,
    get: pool_by_name,
    /// Pools by name, after `cursor`.
    list: pools,
}

/// The most slots that a pool may have.
pub const POOL_SLOTS_MAX: i32 = 1_000_000;

impl Deleted for PoolWrite<'_> {
    const DELETE: &'static str = "delete_pool";
    const KIND: usage::Kind = usage::POOLS;

    async fn delete_row(tx: &mut PgSession, name: &str) -> Result<Option<Value>, StoreError> {
        let gone = sqlx::query_scalar!("DELETE FROM heddle.pools WHERE name = $1 RETURNING slots", name)
            .fetch_optional(tx)
            .await?;
        Ok(gone.map(|slots| json!({"slots": slots})))
    }
}

impl Store {
    /// Deletes a pool that no group's current spec names. From then on, it does not bound task runs of older revisions
    /// that name it.
    pub async fn delete_pool(&self, by: By<'_>, name: &str) -> Result<Removal, StoreError> {
        self.delete::<PoolWrite<'static>>(by, name).await
    }
}
