//! Channels: where people are told. What is secret of them is sealed as secrets are.

use std::collections::BTreeMap;

use heddle_domain::notify::channel::{ChannelSecrets, ChannelSpec};
use heddle_domain::{Chance, Faults, Time};
use serde_json::Value;

use crate::change::{self, By, Noun, Page, Put};
use crate::secret::{Sealed, SecretKeys};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// How many channels there may be: all are looked at when notices are turned into notifications.
pub const CHANNELS_MAX: i64 = 10_000;

/// A channel without what is secret of it.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelRow {
    /// Its name.
    pub name: String,
    /// As it may be shown.
    pub shown: ChannelSpec,
    /// When it was made.
    pub created_at: Time,
    /// When it was changed.
    pub updated_at: Time,
}

/// What came of putting a channel.
#[derive(Clone, Debug, PartialEq)]
pub enum ChannelPut {
    /// What was given, with what was kept, makes no channel.
    Invalid(Faults),
    /// There are [`CHANNELS_MAX`].
    TooMany,
    /// Here it is.
    Done(Box<Put<ChannelRow>>),
}

/// A row as it is kept.
struct Kept {
    shown: ChannelSpec,
    sealed: Sealed,
    created_at: Time,
    updated_at: Time,
}

impl Kept {
    fn open(self, keys: &SecretKeys, name: &str) -> Result<ChannelSpec, StoreError> {
        let text = keys.open(Noun::Channel, name, &self.sealed)?;
        let secrets: ChannelSecrets = serde_json::from_str(&text).map_err(|error| unreadable(name, &error))?;
        Ok(self.shown.with_secrets(secrets))
    }
}

fn unreadable(name: &str, error: &serde_json::Error) -> StoreError {
    StoreError::unreadable("channels", "options", name, error)
}

fn spec_of(name: &str, options: Value) -> Result<ChannelSpec, StoreError> {
    serde_json::from_value(options).map_err(|error| unreadable(name, &error))
}

fn to_value(spec: &ChannelSpec) -> Value {
    serde_json::to_value(spec).unwrap_or_default()
}

impl Store {
    /// Creates or changes a channel; what was left out of what is secret is taken from what is kept.
    pub async fn put_channel(
        &self,
        by: By<'_>,
        keys: &SecretKeys,
        chance: &dyn Chance,
        name: &str,
        spec: ChannelSpec,
    ) -> Result<ChannelPut, StoreError> {
        let mut tx = self.control.begin().await?;
        change::lock_name(&mut tx, Noun::Channel, name).await?;
        let row = sqlx::query!(
            "SELECT options, ciphertext, nonce, key_id, created_at, updated_at FROM heddle.channels WHERE name = $1
                FOR UPDATE",
            name
        )
        .fetch_optional(&mut *tx)
        .await?;
        let mut before = None;
        if let Some(row) = row {
            let kept = Kept {
                shown: spec_of(name, row.options)?,
                sealed: Sealed {
                    ciphertext: row.ciphertext,
                    nonce: row.nonce,
                    key_id: row.key_id,
                },
                created_at: row.created_at,
                updated_at: row.updated_at,
            };
            let times = (kept.created_at, kept.updated_at);
            let current = kept.sealed.key_id == keys.current_id();
            let shown = kept.shown.clone();
            // A row that no key opens any more can still be written anew, whole.
            let kept = kept.open(keys, name).unwrap_or_else(|_| shown.clone());
            before = Some((shown, kept, times, current));
        }
        let spec = spec.complete(before.as_ref().map(|(_, kept, ..)| kept));
        if let Err(faults) = spec.check() {
            return Ok(ChannelPut::Invalid(faults));
        }
        let row = |created_at, updated_at| ChannelRow {
            name: name.into(),
            shown: spec.shown(),
            created_at,
            updated_at,
        };
        if let Some((_, kept, (created_at, updated_at), true)) = &before
            && *kept == spec
        {
            return Ok(ChannelPut::Done(Box::new(Put {
                row: row(*created_at, *updated_at),
                created: false,
                changed: false,
            })));
        }
        let secrets = serde_json::to_string(&spec.secrets()).map_err(|error| unreadable(name, &error))?;
        let sealed = keys.seal(chance, Noun::Channel, name, &secrets)?;
        let shown = to_value(&spec.shown());
        let written = sqlx::query!(
            "INSERT INTO heddle.channels (name, kind, options, ciphertext, nonce, key_id, created_at, updated_at)
             SELECT $1::text, $2::text, $3::jsonb, $4::bytea, $5::bytea, $6::text, $7::timestamptz, $7
              WHERE EXISTS (SELECT FROM heddle.channels WHERE name = $1)
                 OR (SELECT count(*) FROM heddle.channels) < $8
             ON CONFLICT (name) DO UPDATE
                SET kind = excluded.kind, options = excluded.options, ciphertext = excluded.ciphertext,
                    nonce = excluded.nonce, key_id = excluded.key_id, updated_at = excluded.updated_at",
            name,
            spec.kind.map(|kind| kind.as_str()),
            shown,
            sealed.ciphertext,
            sealed.nonce,
            sealed.key_id,
            by.at,
            CHANNELS_MAX
        )
        .execute(&mut *tx)
        .await?;
        if written.rows_affected() == 0 {
            return Ok(ChannelPut::TooMany);
        }
        let created = before.is_none();
        let action = if created { "create" } else { "update" };
        let was = before.as_ref().map(|(shown, ..)| to_value(shown));
        change::record(&mut tx, by, action, Noun::Channel, name, was.as_ref(), Some(&shown)).await?;
        tx.commit().await?;
        let created_at = before.map_or(by.at, |(_, _, (created_at, _), _)| created_at);
        Ok(ChannelPut::Done(Box::new(Put {
            row: row(created_at, by.at),
            created,
            changed: true,
        })))
    }

    /// A channel without what is secret of it.
    pub async fn channel(&self, name: &str) -> Result<Option<ChannelRow>, StoreError> {
        Ok(self.channel_rows(Some(name), None, 1).await?.into_iter().next())
    }

    /// Channels by name, behind `cursor`.
    pub async fn channels(&self, cursor: Option<&str>, limit: i64) -> Result<Page<ChannelRow>, StoreError> {
        let rows = self.channel_rows(None, cursor, limit + 1).await?;
        Ok(Page::of(rows, limit, |row| row.name.clone()))
    }

    async fn channel_rows(
        &self,
        name: Option<&str>,
        cursor: Option<&str>,
        limit: i64,
    ) -> Result<Vec<ChannelRow>, StoreError> {
        sqlx::query!(
            "SELECT name, options, created_at, updated_at FROM heddle.channels
              WHERE ($1::text IS NULL OR name = $1) AND ($2::text IS NULL OR name > $2) ORDER BY name LIMIT $3",
            name,
            cursor,
            limit
        )
        .fetch_all(&self.control)
        .await?
        .into_iter()
        .map(|row| {
            Ok(ChannelRow {
                shown: spec_of(&row.name, row.options)?,
                name: row.name,
                created_at: row.created_at,
                updated_at: row.updated_at,
            })
        })
        .collect()
    }

    /// All channels by name, without what is secret of them.
    pub async fn all_channels(&self) -> Result<BTreeMap<String, ChannelSpec>, StoreError> {
        let rows = self.channel_rows(None, None, CHANNELS_MAX).await?;
        Ok(rows.into_iter().map(|row| (row.name, row.shown)).collect())
    }

    /// Which of these names are channels.
    pub async fn known_channels(&self, names: &[String]) -> Result<Vec<String>, StoreError> {
        Ok(
            sqlx::query_scalar!("SELECT name FROM heddle.channels WHERE name = ANY ($1)", names)
                .fetch_all(&self.control)
                .await?,
        )
    }

    /// A channel with what is secret of it: for whoever sends, never for the API.
    pub async fn open_channel(&self, keys: &SecretKeys, name: &str) -> Result<Option<ChannelSpec>, StoreError> {
        let row = sqlx::query!(
            "SELECT options, ciphertext, nonce, key_id, created_at, updated_at FROM heddle.channels WHERE name = $1",
            name
        )
        .fetch_optional(&self.control)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let kept = Kept {
            shown: spec_of(name, row.options)?,
            sealed: Sealed {
                ciphertext: row.ciphertext,
                nonce: row.nonce,
                key_id: row.key_id,
            },
            created_at: row.created_at,
            updated_at: row.updated_at,
        };
        kept.open(keys, name).map(Some)
    }

    /// Deletes a channel; `false` if there was none. What is to be told there fails when its time has come.
    pub async fn delete_channel(&self, by: By<'_>, name: &str) -> Result<bool, StoreError> {
        transaction!(self, control, "delete_channel", |tx| {
            let gone = sqlx::query_scalar!("DELETE FROM heddle.channels WHERE name = $1 RETURNING options", name)
                .fetch_optional(&mut *tx)
                .await?;
            let Some(before) = gone else { return Ok(false) };
            change::record(&mut tx, by, "delete", Noun::Channel, name, Some(&before), None).await?;
            tx.commit().await?;
            Ok(true)
        })
    }
}
