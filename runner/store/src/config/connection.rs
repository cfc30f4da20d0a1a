//! Named SQL connections that scripts may query. Their URLs are sealed like secrets.

use heddle_domain::{Chance, Time};
use serde_json::{Value, json};

use crate::change::{By, Noun, Page, Put};
use crate::config::named::{Deleted, Named, Stop};
use crate::database::PgSession;
use crate::secret::{Grant, KeptSealed, SecretKeys, grant_of, sealed_of};
use crate::usage::{self, Removal};
use crate::{Store, StoreError};

/// The options of a connection that people set, without its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionOptions {
    pub grant: Grant,
    /// The maximum on each node, from 1 to [`CONNECTION_POOL_MAX`].
    pub max_connections: i32,
    /// Whether `execute` is refused and transactions are read-only.
    pub read_only: bool,
}

/// The options in a row that a statement has returned.
macro_rules! options_of {
    ($row:ident) => {
        ConnectionOptions {
            grant: grant_of!($row),
            max_connections: $row.max_connections,
            read_only: $row.read_only,
        }
    };
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

/// The result of putting a connection.
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

impl From<Put<ConnectionRow>> for ConnectionPut {
    fn from(put: Put<ConnectionRow>) -> Self {
        Self::Done(put)
    }
}

/// A connection to be put.
struct ConnectionWrite<'a> {
    keys: &'a SecretKeys,
    chance: &'a dyn Chance,
    name: &'a str,
    /// `None`: the stored one.
    url: Option<&'a str>,
    options: &'a ConnectionOptions,
}

impl Named for ConnectionWrite<'_> {
    const PUT: &'static str = "put_connection";
    const NOUN: Noun = Noun::Connection;
    type Kept = KeptSealed<ConnectionRow>;
    type Row = ConnectionRow;
    type Answer = ConnectionPut;

    fn name(&self) -> &str {
        self.name
    }

    /// Locking: the same lock as [`Named::locked`] describes.
    async fn locked(&self, tx: &mut PgSession) -> Result<Option<Self::Kept>, StoreError> {
        let kept = sqlx::query!(
            "SELECT ciphertext, nonce, key_id, groups, categories, max_connections, read_only, created_at, updated_at
             FROM heddle.connections WHERE name = $1 FOR UPDATE",
            self.name,
        )
        .fetch_optional(tx)
        .await?;
        Ok(kept.map(|kept| {
            let row = ConnectionRow {
                name: self.name.into(),
                options: options_of!(kept),
                created_at: kept.created_at,
                updated_at: kept.updated_at,
            };
            KeptSealed::new(
                self.keys,
                (Noun::Connection, self.name),
                row,
                sealed_of!(kept),
                self.url,
            )
        }))
    }

    /// Putting the same URL again seals it with the current key; without a URL, the seal does not change.
    fn is_same(&self, kept: &Self::Kept) -> bool {
        kept.row.options == *self.options && kept.same_value && (kept.current || self.url.is_none())
    }

    async fn write(
        &self,
        tx: &mut PgSession,
        at: Time,
        kept: Option<&Self::Kept>,
    ) -> Result<ConnectionRow, Stop<ConnectionPut>> {
        let sealed = match (self.url, kept) {
            (Some(url), _) => &self.keys.seal(self.chance, Noun::Connection, self.name, url)?,
            (None, Some(kept)) => &kept.sealed,
            (None, None) => return Err(Stop::Refused(ConnectionPut::UrlMissing)),
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
            self.name,
            sealed.ciphertext,
            sealed.nonce,
            sealed.key_id,
            &self.options.grant.groups,
            &self.options.grant.categories,
            self.options.max_connections,
            self.options.read_only,
            at,
        )
        .execute(tx)
        .await?;
        Ok(ConnectionRow {
            name: self.name.into(),
            options: self.options.clone(),
            created_at: kept.map_or(at, |kept| kept.row.created_at),
            updated_at: at,
        })
    }

    fn shown(row: &ConnectionRow) -> Result<Value, StoreError> {
        Ok(shown(&row.options))
    }

    fn after(&self, row: &ConnectionRow, kept: Option<&Self::Kept>) -> Result<Value, StoreError> {
        let mut after = Self::shown(row)?;
        if let Some(kept) = kept {
            after["url_changed"] = json!(!kept.same_value);
        }
        Ok(after)
    }
}

impl Store {
    /// Creates or changes a connection; without a URL, the stored one stays.
    pub async fn put_connection(
        &self,
        by: By<'_>,
        keys: &SecretKeys,
        chance: &dyn Chance,
        name: &str,
        url: Option<&str>,
        options: &ConnectionOptions,
    ) -> Result<ConnectionPut, StoreError> {
        let write = ConnectionWrite {
            keys,
            chance,
            name,
            url,
            options,
        };
        self.put(by, &write).await
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
        let url = keys.open(Noun::Connection, name, &sealed_of!(row))?;
        Ok(Some((url, options_of!(row))))
    }

    /// Connections by name, after `cursor`, without their URLs.
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
            options: options_of!(row),
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
        .collect())
    }

    /// Deletes a connection that no current spec of a group or topic names.
    pub async fn delete_connection(&self, by: By<'_>, name: &str) -> Result<Removal, StoreError> {
        self.delete::<ConnectionWrite<'static>>(by, name).await
    }
}

impl Deleted for ConnectionWrite<'_> {
    const DELETE: &'static str = "delete_connection";
    const KIND: usage::Kind = usage::CONNECTIONS;

    async fn delete_row(tx: &mut PgSession, name: &str) -> Result<Option<Value>, StoreError> {
        let gone = sqlx::query!(
            "DELETE FROM heddle.connections WHERE name = $1 RETURNING groups, categories, max_connections, read_only",
            name
        )
        .fetch_optional(tx)
        .await?;
        Ok(gone.map(|gone| shown(&options_of!(gone))))
    }
}
