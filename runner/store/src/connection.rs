//! Named SQL connections that scripts may query. Their URLs are sealed as secrets are.

use heddle_domain::{Chance, Time};
use serde_json::{Value, json};

use crate::change::{self, By, Noun, Page, Put};
use crate::secret::{Grant, Sealed, SecretKeys};
use crate::transaction::transaction;
use crate::usage::{self, Removal, Users};
use crate::{Store, StoreError};

/// What people may choose of a connection, apart from its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionOptions {
    pub grant: Grant,
    /// On each node, 1 to [`CONNECTION_POOL_MAX`].
    pub max_connections: i32,
    /// Whether `execute` is refused and transactions are read-only.
    pub read_only: bool,
}

/// The most connections that a node may open for one named connection.
pub const CONNECTION_POOL_MAX: i32 = 100;

/// A connection without its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionRow {
    pub name: String,
    pub options: ConnectionOptions,
    pub created_at: Time,
    pub updated_at: Time,
}

/// What came of putting a connection.
#[derive(Clone, Debug, PartialEq)]
pub enum ConnectionPut {
    /// A new connection needs a URL.
    UrlMissing,
    Done(Put<ConnectionRow>),
}

fn shown(options: &ConnectionOptions) -> Value {
    let mut shown = options.grant.to_json();
    shown["max_connections"] = json!(options.max_connections);
    shown["read_only"] = json!(options.read_only);
    shown
}

impl Store {
    /// Creates or changes a connection; without a URL the one that is kept stays.
    pub async fn put_connection(
        &self,
        by: By<'_>,
        keys: &SecretKeys,
        chance: &dyn Chance,
        name: &str,
        url: Option<&str>,
        options: &ConnectionOptions,
    ) -> Result<ConnectionPut, StoreError> {
        transaction!(self, control, "put_connection", |tx| {
            change::lock_name(&mut tx, Noun::Connection, name).await?;
            let before = sqlx::query!(
            "SELECT ciphertext, nonce, key_id, groups, categories, max_connections, read_only, created_at, updated_at
             FROM heddle.connections WHERE name = $1 FOR UPDATE",
            name,
        )
            .fetch_optional(&mut *tx)
            .await?;
            let mut created_at = by.at;
            let mut options_before = None;
            let (mut sealed_before, mut url_changed) = (None, false);
            if let Some(before) = before {
                let was = ConnectionOptions {
                    grant: Grant {
                        groups: before.groups,
                        categories: before.categories,
                    },
                    max_connections: before.max_connections,
                    read_only: before.read_only,
                };
                let sealed = Sealed {
                    ciphertext: before.ciphertext,
                    nonce: before.nonce,
                    key_id: before.key_id,
                };
                let same_url = match url {
                    None => true,
                    Some(url) => keys.open(Noun::Connection, name, &sealed).is_ok_and(|kept| kept == url),
                };
                if was == *options && same_url {
                    let row = ConnectionRow {
                        name: name.into(),
                        options: was,
                        created_at: before.created_at,
                        updated_at: before.updated_at,
                    };
                    return Ok(ConnectionPut::Done(Put {
                        row,
                        created: false,
                        changed: false,
                    }));
                }
                created_at = before.created_at;
                url_changed = !same_url;
                options_before = Some(shown(&was));
                sealed_before = Some(sealed);
            }
            let sealed = match (url, sealed_before) {
                (Some(url), _) => keys.seal(chance, Noun::Connection, name, url)?,
                (None, Some(sealed)) => sealed,
                (None, None) => return Ok(ConnectionPut::UrlMissing),
            };
            sqlx::query!(
            "INSERT INTO heddle.connections
                 (name, ciphertext, nonce, key_id, groups, categories, max_connections, read_only, created_at, updated_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9)
             ON CONFLICT (name) DO UPDATE
             SET ciphertext = excluded.ciphertext, nonce = excluded.nonce, key_id = excluded.key_id,
                 groups = excluded.groups, categories = excluded.categories,
                 max_connections = excluded.max_connections, read_only = excluded.read_only,
                 updated_at = excluded.updated_at",
            name,
            sealed.ciphertext,
            sealed.nonce,
            sealed.key_id,
            &options.grant.groups,
            &options.grant.categories,
            options.max_connections,
            options.read_only,
            by.at,
        )
        .execute(&mut *tx)
        .await?;
            let created = options_before.is_none();
            let action = if created { "create" } else { "update" };
            let mut after = shown(options);
            if !created {
                after["url_changed"] = json!(url_changed);
            }
            change::record(
                &mut tx,
                by,
                action,
                Noun::Connection,
                name,
                options_before.as_ref(),
                Some(&after),
            )
            .await?;
            tx.commit().await?;
            let row = ConnectionRow {
                name: name.into(),
                options: options.clone(),
                created_at,
                updated_at: by.at,
            };
            Ok(ConnectionPut::Done(Put {
                row,
                created,
                changed: true,
            }))
        })
    }

    /// A connection without its URL.
    pub async fn connection(&self, name: &str) -> Result<Option<ConnectionRow>, StoreError> {
        let page = self.connection_rows(Some(name), None, 1).await?;
        Ok(page.into_iter().next())
    }

    /// A connection with its URL: for the pools of scripts, never for the API.
    pub async fn connection_url(
        &self,
        keys: &SecretKeys,
        name: &str,
    ) -> Result<Option<(String, ConnectionOptions)>, StoreError> {
        let row = sqlx::query!(
            "SELECT ciphertext, nonce, key_id, groups, categories, max_connections, read_only
             FROM heddle.connections WHERE name = $1",
            name,
        )
        .fetch_optional(&self.control)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let sealed = Sealed {
            ciphertext: row.ciphertext,
            nonce: row.nonce,
            key_id: row.key_id,
        };
        let options = ConnectionOptions {
            grant: Grant {
                groups: row.groups,
                categories: row.categories,
            },
            max_connections: row.max_connections,
            read_only: row.read_only,
        };
        Ok(Some((keys.open(Noun::Connection, name, &sealed)?, options)))
    }

    /// Connections by name, behind `cursor`, without their URLs.
    pub async fn connections(&self, cursor: Option<&str>, limit: i64) -> Result<Page<ConnectionRow>, StoreError> {
        let rows = self.connection_rows(None, cursor, limit + 1).await?;
        Ok(Page::of(rows, limit, |row| row.name.clone()))
    }

    async fn connection_rows(
        &self,
        name: Option<&str>,
        cursor: Option<&str>,
        limit: i64,
    ) -> Result<Vec<ConnectionRow>, StoreError> {
        Ok(sqlx::query!(
            "SELECT name, groups, categories, max_connections, read_only, created_at, updated_at
             FROM heddle.connections
             WHERE ($1::text IS NULL OR name = $1) AND ($2::text IS NULL OR name > $2) ORDER BY name LIMIT $3",
            name,
            cursor,
            limit,
        )
        .fetch_all(&self.control)
        .await?
        .into_iter()
        .map(|row| ConnectionRow {
            name: row.name,
            options: ConnectionOptions {
                grant: Grant {
                    groups: row.groups,
                    categories: row.categories,
                },
                max_connections: row.max_connections,
                read_only: row.read_only,
            },
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
        .collect())
    }

    /// Deletes a connection that no group's current spec names.
    pub async fn delete_connection(&self, by: By<'_>, name: &str) -> Result<Removal, StoreError> {
        transaction!(self, control, "delete_connection", |tx| {
            change::lock_name(&mut tx, Noun::Connection, name).await?;
            let gone = sqlx::query!(
            "DELETE FROM heddle.connections WHERE name = $1 RETURNING groups, categories, max_connections, read_only",
            name
        )
        .fetch_optional(&mut *tx)
        .await?;
            let Some(gone) = gone else {
                return Ok(Removal::Missing);
            };
            let before = shown(&ConnectionOptions {
                grant: Grant {
                    groups: gone.groups,
                    categories: gone.categories,
                },
                max_connections: gone.max_connections,
                read_only: gone.read_only,
            });
            let groups = usage::groups(&mut tx, usage::CONNECTIONS, name).await?;
            if !groups.is_empty() {
                return Ok(Removal::UsedBy(Users {
                    groups,
                    ..Users::default()
                }));
            }
            change::record(&mut tx, by, "delete", Noun::Connection, name, Some(&before), None).await?;
            tx.commit().await?;
            Ok(Removal::Done)
        })
    }
}
