//! Moving what is sealed from one key to the next.
//!
//! A key is changed in three steps, between which the cluster always opens everything: every node learns the new key as
//! one that opens; every node seals with the new one and still opens with the old; then what the old one sealed is
//! sealed anew, and the old one can be forgotten. Only the last step is here, and it is asked for, since no node knows
//! what the others are configured with.

use heddle_domain::Chance;
use serde_json::json;

use crate::change::{self, By, Noun};
use crate::secret::{Sealed, SecretKeys};
use crate::{Store, StoreError};

/// How many rows one transaction seals anew.
const ROWS_MAX: i64 = 100;

/// How many rows are named that no key opens.
const NAMED_MAX: i64 = 5;

/// Something that none of the keys opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignSeal {
    /// `secret` or `connection`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The fingerprint of the key that sealed it.
    pub key_id: String,
}

/// How much was sealed anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resealed {
    pub secrets: u64,
    pub connections: u64,
}

impl Store {
    /// The first few things that none of these keys opens.
    pub async fn foreign_seals(&self, keys: &SecretKeys) -> Result<Vec<ForeignSeal>, StoreError> {
        let ids = keys.ids();
        Ok(sqlx::query_as!(
            ForeignSeal,
            r#"SELECT 'secret' AS "kind!", name AS "name!", key_id AS "key_id!" FROM heddle.secrets
                WHERE key_id <> ALL ($1)
               UNION ALL
               SELECT 'connection', name, key_id FROM heddle.connections WHERE key_id <> ALL ($1)
               LIMIT $2"#,
            &ids,
            NAMED_MAX,
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// Seals with the current key what older ones sealed. What came half-way is right: each row has its key's
    /// fingerprint.
    pub async fn reseal(&self, by: By<'_>, keys: &SecretKeys, chance: &dyn Chance) -> Result<Resealed, StoreError> {
        let mut done = Resealed::default();
        loop {
            let secrets = self.reseal_secrets(keys, chance).await?;
            let connections = self.reseal_connections(keys, chance).await?;
            done.secrets += secrets;
            done.connections += connections;
            if secrets == 0 && connections == 0 {
                break;
            }
        }
        let mut tx = self.pool.begin().await?;
        let after = json!({
            "key_id": keys.current_id(), "secrets": done.secrets, "connections": done.connections,
        });
        change::record(&mut tx, by, "reseal", Noun::Setting, "secrets_key", None, Some(&after)).await?;
        tx.commit().await?;
        Ok(done)
    }

    async fn reseal_secrets(&self, keys: &SecretKeys, chance: &dyn Chance) -> Result<u64, StoreError> {
        let mut tx = self.pool.begin().await?;
        let rows = sqlx::query!(
            "SELECT name, ciphertext, nonce, key_id FROM heddle.secrets
              WHERE key_id <> $1 ORDER BY name LIMIT $2 FOR UPDATE",
            keys.current_id(),
            ROWS_MAX,
        )
        .fetch_all(&mut *tx)
        .await?;
        let count = rows.len() as u64;
        for row in rows {
            let sealed = Sealed {
                ciphertext: row.ciphertext,
                nonce: row.nonce,
                key_id: row.key_id,
            };
            let plain = keys.open(Noun::Secret, &row.name, &sealed)?;
            let sealed = keys.seal(chance, Noun::Secret, &row.name, &plain)?;
            sqlx::query!(
                "UPDATE heddle.secrets SET ciphertext = $2, nonce = $3, key_id = $4 WHERE name = $1",
                row.name,
                sealed.ciphertext,
                sealed.nonce,
                sealed.key_id,
            )
            .execute(&mut *tx)
            .await?;
        }
        tx.commit().await?;
        Ok(count)
    }

    async fn reseal_connections(&self, keys: &SecretKeys, chance: &dyn Chance) -> Result<u64, StoreError> {
        let mut tx = self.pool.begin().await?;
        let rows = sqlx::query!(
            "SELECT name, ciphertext, nonce, key_id FROM heddle.connections
              WHERE key_id <> $1 ORDER BY name LIMIT $2 FOR UPDATE",
            keys.current_id(),
            ROWS_MAX,
        )
        .fetch_all(&mut *tx)
        .await?;
        let count = rows.len() as u64;
        for row in rows {
            let sealed = Sealed {
                ciphertext: row.ciphertext,
                nonce: row.nonce,
                key_id: row.key_id,
            };
            let plain = keys.open(Noun::Connection, &row.name, &sealed)?;
            let sealed = keys.seal(chance, Noun::Connection, &row.name, &plain)?;
            sqlx::query!(
                "UPDATE heddle.connections SET ciphertext = $2, nonce = $3, key_id = $4 WHERE name = $1",
                row.name,
                sealed.ciphertext,
                sealed.nonce,
                sealed.key_id,
            )
            .execute(&mut *tx)
            .await?;
        }
        tx.commit().await?;
        Ok(count)
    }
}
