//! Seals again, with the current key, what older keys sealed.
//!
//! A key is changed in three steps, and after each of them all nodes can open everything: every node gets the new key
//! for opening; every node seals with the new one and still opens with the old one; then what the old key sealed is
//! sealed again, and the old key can be removed. Only the last step is here. It has to be requested, because no node
//! knows the configuration of the others.

use std::collections::BTreeSet;

use heddle_domain::Chance;
use serde_json::json;

use crate::change::{By, Noun};
use crate::database::PgSession;
use crate::secret::{Sealed, SecretKeys, sealed_of};
use crate::transaction::transaction;
use crate::{Store, StoreError, audit};

/// How many rows one transaction seals again.
const ROWS_MAX: i64 = 100;

/// How many rows that no key opens are named.
const NAMED_MAX: i64 = 5;

/// A row that none of the keys opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignSeal {
    /// `secret`, `connection` or `channel`.
    pub kind: String,
    pub name: String,
    /// The fingerprint of the key that sealed it.
    pub key_id: String,
}

/// How many rows of each kind none of the keys opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForeignCounts {
    pub secrets: i64,
    pub connections: i64,
    pub channels: i64,
}

/// How many rows were sealed again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rotated {
    pub secrets: u64,
    pub connections: u64,
    pub channels: u64,
}

impl Rotated {
    fn of(&mut self, table: SealedTable) -> &mut u64 {
        match table {
            SealedTable::Secrets => &mut self.secrets,
            SealedTable::Connections => &mut self.connections,
            SealedTable::Channels => &mut self.channels,
        }
    }
}

impl Store {
    /// The first few rows that none of these keys opens.
    pub async fn foreign_seals(&self, keys: &SecretKeys) -> Result<Vec<ForeignSeal>, StoreError> {
        self.foreign_seals_up_to(keys, NAMED_MAX).await
    }

    /// Rows that none of these keys opens, at most `most` of them.
    pub(crate) async fn foreign_seals_up_to(
        &self,
        keys: &SecretKeys,
        most: i64,
    ) -> Result<Vec<ForeignSeal>, StoreError> {
        let ids = keys.ids();
        Ok(sqlx::query_as!(
            ForeignSeal,
            r#"SELECT 'secret' AS "kind!", name AS "name!", key_id AS "key_id!" FROM heddle.secrets
                WHERE key_id <> ALL ($1)
               UNION ALL
               SELECT 'connection', name, key_id FROM heddle.connections WHERE key_id <> ALL ($1)
               UNION ALL
               SELECT 'channel', name, key_id FROM heddle.channels WHERE key_id <> ALL ($1)
               LIMIT $2"#,
            &ids,
            most,
        )
        .fetch_all(&self.control)
        .await?)
    }

    /// How many rows none of these keys opens.
    pub async fn count_foreign_seals(&self, keys: &SecretKeys) -> Result<ForeignCounts, StoreError> {
        let ids = keys.ids();
        Ok(sqlx::query_as!(
            ForeignCounts,
            r#"SELECT (SELECT count(*) FROM heddle.secrets WHERE key_id <> ALL ($1)) AS "secrets!",
                      (SELECT count(*) FROM heddle.connections WHERE key_id <> ALL ($1)) AS "connections!",
                      (SELECT count(*) FROM heddle.channels WHERE key_id <> ALL ($1)) AS "channels!""#,
            &ids,
        )
        .fetch_one(&self.control)
        .await?)
    }

    /// Seals again, with the current key, what older keys sealed. If it stops half-way, all is still right: each row
    /// has its key's fingerprint.
    pub async fn rotate_keys(&self, by: By<'_>, keys: &SecretKeys, chance: &dyn Chance) -> Result<Rotated, StoreError> {
        let mut done = Rotated::default();
        let mut older = BTreeSet::new();
        for table in SealedTable::ALL {
            loop {
                let opened_with = self.rotate_rows(table, keys, chance).await?;
                if opened_with.is_empty() {
                    break;
                }
                *done.of(table) += opened_with.len() as u64;
                older.extend(opened_with);
            }
        }
        transaction!(self, control, "rotate_keys", |tx| {
            tx.patiently();
            let after = json!({
                "key_id": keys.current_id(), "secrets": done.secrets, "connections": done.connections,
                "channels": done.channels,
            });
            let before = json!({ "key_ids": older });
            let about = Noun::Setting;
            // The word of all entries so far: people look for it in the audit.
            audit::record(&mut tx, by, "reseal", about, "secrets_key", Some(&before), Some(&after)).await?;
            tx.commit().await?;
            Ok(done)
        })
    }

    /// Seals up to [`ROWS_MAX`] rows of a table again; returns for each the fingerprint of the key that had sealed it.
    async fn rotate_rows(
        &self,
        table: SealedTable,
        keys: &SecretKeys,
        chance: &dyn Chance,
    ) -> Result<Vec<String>, StoreError> {
        transaction!(self, control, "rotate_rows", |tx| {
            tx.patiently();
            let rows = table.sealed_before(&mut tx, keys.current_id()).await?;
            for (name, sealed) in &rows {
                let plain = keys.open(table.noun(), name, sealed)?;
                let sealed = keys.seal(chance, table.noun(), name, &plain)?;
                table.write(&mut tx, name, &sealed).await?;
            }
            tx.commit().await?;
            Ok(rows.into_iter().map(|(_, sealed)| sealed.key_id).collect())
        })
    }
}

/// A table with a sealed column.
#[derive(Clone, Copy)]
enum SealedTable {
    Secrets,
    Connections,
    Channels,
}

impl SealedTable {
    const ALL: [Self; 3] = [Self::Secrets, Self::Connections, Self::Channels];

    /// The noun that is bound into the seal.
    fn noun(self) -> Noun {
        match self {
            Self::Secrets => Noun::Secret,
            Self::Connections => Noun::Connection,
            Self::Channels => Noun::Channel,
        }
    }

    /// Rows that another key has sealed, locked.
    ///
    /// Locking: up to [`ROWS_MAX`] rows of one table, in the order of names, and nothing else. A PUT of one of them
    /// locks only that row; a PUT of a group locks the objects that it names in the same order.
    async fn sealed_before(
        self,
        connection: &mut PgSession,
        key_id: &str,
    ) -> Result<Vec<(String, Sealed)>, StoreError> {
        macro_rules! read {
            ($statement:tt) => {
                sqlx::query!($statement, key_id, ROWS_MAX)
                    .fetch_all(connection)
                    .await?
                    .into_iter()
                    .map(|row| (row.name, sealed_of!(row)))
                    .collect()
            };
        }
        Ok(match self {
            Self::Secrets => read!(
                "SELECT name, ciphertext, nonce, key_id FROM heddle.secrets
                  WHERE key_id <> $1 ORDER BY name LIMIT $2 FOR UPDATE"
            ),
            Self::Connections => read!(
                "SELECT name, ciphertext, nonce, key_id FROM heddle.connections
                  WHERE key_id <> $1 ORDER BY name LIMIT $2 FOR UPDATE"
            ),
            Self::Channels => read!(
                "SELECT name, ciphertext, nonce, key_id FROM heddle.channels
                  WHERE key_id <> $1 ORDER BY name LIMIT $2 FOR UPDATE"
            ),
        })
    }

    async fn write(self, connection: &mut PgSession, name: &str, sealed: &Sealed) -> Result<(), StoreError> {
        macro_rules! write {
            ($statement:tt) => {
                sqlx::query!($statement, name, sealed.ciphertext, sealed.nonce, sealed.key_id)
                    .execute(connection)
                    .await?
            };
        }
        match self {
            Self::Secrets => {
                write!("UPDATE heddle.secrets SET ciphertext = $2, nonce = $3, key_id = $4 WHERE name = $1")
            }
            Self::Connections => {
                write!("UPDATE heddle.connections SET ciphertext = $2, nonce = $3, key_id = $4 WHERE name = $1")
            }
            Self::Channels => {
                write!("UPDATE heddle.channels SET ciphertext = $2, nonce = $3, key_id = $4 WHERE name = $1")
            }
        };
        Ok(())
    }
}
