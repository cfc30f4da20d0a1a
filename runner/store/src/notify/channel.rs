//! Channels: where notifications are sent. Their secret parts are sealed like secrets.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use heddle_domain::notify::channel::{ChannelSecrets, ChannelSpec};
use heddle_domain::{Chance, Faults, Time};
use serde_json::{Value, json};

use crate::change::{By, Noun, Page, Put};
use crate::config::named::{Deleted, Named, Stop};
use crate::database::PgSession;
use crate::secret::{Sealed, SecretKeys, sealed_of};
use crate::usage::{self, Removal};
use crate::{Store, StoreError};

/// The maximum number of channels: all are read when notices are turned into notifications.
pub const CHANNELS_MAX: i64 = 10_000;

/// A channel without its secret parts.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelRow {
    pub name: String,
    /// The spec without secrets.
    pub shown: ChannelSpec,
    /// When it was created.
    pub created_at: Time,
    /// When it was changed.
    pub updated_at: Time,
}

/// The result of putting a channel.
#[derive(Clone, Debug, PartialEq)]
pub enum ChannelPut {
    /// The given parts, completed by the stored ones, make no valid channel.
    Invalid(Faults),
    /// There are [`CHANNELS_MAX`] channels already.
    TooMany,
    Done(Box<Put<ChannelRow>>),
}

/// A row as it is stored.
struct Kept {
    shown: ChannelSpec,
    sealed: Sealed,
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

fn to_value(spec: &ChannelSpec) -> Result<Value, StoreError> {
    StoreError::json_of(spec, ("channels", "options"))
}

impl From<Put<ChannelRow>> for ChannelPut {
    fn from(put: Put<ChannelRow>) -> Self {
        Self::Done(Box::new(put))
    }
}

/// A channel to be put.
struct ChannelWrite<'a> {
    keys: &'a SecretKeys,
    chance: &'a dyn Chance,
    name: &'a str,
    spec: ChannelSpec,
    /// What the caller has found to be wrong with the spec.
    faults: Faults,
}

/// A stored channel, opened.
struct OpenChannel {
    row: ChannelRow,
    /// The spec with its secret parts. `None`: these cannot be decrypted any more, so a PUT has to give all of them.
    spec: Option<ChannelSpec>,
    /// It is sealed with the current key.
    current: bool,
}

impl Borrow<ChannelRow> for OpenChannel {
    fn borrow(&self) -> &ChannelRow {
        &self.row
    }
}

impl ChannelWrite<'_> {
    /// The new spec; secret parts that were left out are taken from the stored one.
    fn completed(&self, kept: Option<&OpenChannel>) -> ChannelSpec {
        let kept = kept.map(|kept| kept.spec.as_ref().unwrap_or(&kept.row.shown));
        self.spec.clone().complete(kept)
    }
}

impl Named for ChannelWrite<'_> {
    const PUT: &'static str = "put_channel";
    const NOUN: Noun = Noun::Channel;
    type Kept = OpenChannel;
    type Row = ChannelRow;
    type Answer = ChannelPut;

    fn name(&self) -> &str {
        self.name
    }

    /// Locking: the same lock as [`Named::locked`] describes.
    async fn locked(&self, tx: &mut PgSession) -> Result<Option<OpenChannel>, StoreError> {
        let row = sqlx::query!(
            "SELECT options, ciphertext, nonce, key_id, created_at, updated_at FROM heddle.channels WHERE name = $1
                FOR UPDATE",
            self.name
        )
        .fetch_optional(tx)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let kept = Kept {
            shown: spec_of(self.name, row.options)?,
            sealed: sealed_of!(row),
        };
        Ok(Some(OpenChannel {
            row: ChannelRow {
                name: self.name.into(),
                shown: kept.shown.clone(),
                created_at: row.created_at,
                updated_at: row.updated_at,
            },
            current: kept.sealed.key_id == self.keys.current_id(),
            spec: kept.open(self.keys, self.name).ok(),
        }))
    }

    async fn check(&self, _tx: &mut PgSession, kept: Option<&OpenChannel>) -> Result<(), Stop<ChannelPut>> {
        // Secret parts that cannot be decrypted may still exist. A PUT that leaves them out wants to keep them, so it
        // must not delete them.
        let lost = match kept {
            Some(kept) if kept.spec.is_none() => self.spec.lost(&kept.row.shown),
            _ => Ok(()),
        };
        let mut faults = self.faults.clone();
        if let Err(more) = lost.and_then(|()| self.completed(kept).check()) {
            faults.0.extend(more.0);
        }
        faults
            .or(())
            .map_err(|faults| Stop::Refused(ChannelPut::Invalid(faults)))
    }

    fn is_same(&self, kept: &OpenChannel) -> bool {
        kept.current && kept.spec.as_ref() == Some(&self.completed(Some(kept)))
    }

    async fn write(
        &self,
        tx: &mut PgSession,
        at: Time,
        kept: Option<&OpenChannel>,
    ) -> Result<ChannelRow, Stop<ChannelPut>> {
        let spec = self.completed(kept);
        let secrets = StoreError::json_of(&spec.secrets(), ("channels", "ciphertext"))?;
        let sealed = self
            .keys
            .seal(self.chance, Noun::Channel, self.name, &secrets.to_string())?;
        let shown = spec.shown();
        let written = sqlx::query!(
            "INSERT INTO heddle.channels (name, kind, options, ciphertext, nonce, key_id, created_at, updated_at)
             SELECT $1::text, $2::text, $3::jsonb, $4::bytea, $5::bytea, $6::text, $7::timestamptz, $7
              WHERE EXISTS (SELECT FROM heddle.channels WHERE name = $1)
                 OR (SELECT count(*) FROM heddle.channels) < $8
             ON CONFLICT (name) DO UPDATE
                SET kind = excluded.kind, options = excluded.options, ciphertext = excluded.ciphertext,
                    nonce = excluded.nonce, key_id = excluded.key_id, updated_at = excluded.updated_at",
            self.name,
            spec.kind.map(|kind| kind.as_str()),
            to_value(&shown)?,
            sealed.ciphertext,
            sealed.nonce,
            sealed.key_id,
            at,
            CHANNELS_MAX
        )
        .execute(tx)
        .await?;
        if written.rows_affected() == 0 {
            return Err(Stop::Refused(ChannelPut::TooMany));
        }
        Ok(ChannelRow {
            name: self.name.into(),
            shown,
            created_at: kept.map_or(at, |kept| kept.row.created_at),
            updated_at: at,
        })
    }

    fn shown(row: &ChannelRow) -> Result<Value, StoreError> {
        to_value(&row.shown)
    }

    /// With a flag for each secret part: whether it has another value than before.
    fn after(&self, row: &ChannelRow, kept: Option<&OpenChannel>) -> Result<Value, StoreError> {
        let mut after = Self::shown(row)?;
        if let Some(kept) = kept {
            let secrets = kept.spec.as_ref().map(ChannelSpec::secrets);
            let kinds = [kept.row.shown.kind, self.spec.kind];
            for (part, changed) in self.completed(Some(kept)).secrets().changed(kinds, secrets.as_ref()) {
                after[format!("{part}_changed")] = json!(changed);
            }
        }
        Ok(after)
    }
}

impl Store {
    /// Creates or changes a channel; secret parts that were left out are taken from the stored one. `faults`: what the
    /// caller has found to be wrong with the spec. The answer has these together with those that are found here.
    pub async fn put_channel(
        &self,
        by: By<'_>,
        keys: &SecretKeys,
        chance: &dyn Chance,
        name: &str,
        (spec, faults): (ChannelSpec, Faults),
    ) -> Result<ChannelPut, StoreError> {
        let write = ChannelWrite {
            keys,
            chance,
            name,
            spec,
            faults,
        };
        self.put(by, &write).await
    }

    /// A channel without its secret parts.
    pub async fn channel(&self, name: &str) -> Result<Option<ChannelRow>, StoreError> {
        Ok(self.channel_rows(Some(name), None, 1).await?.into_iter().next())
    }

    /// Channels by name, after `cursor`.
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

    /// All channels by name, without their secret parts.
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

    /// A channel with its secret parts: for sending, never for the API.
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
            sealed: sealed_of!(row),
        };
        kept.open(keys, name).map(Some)
    }

    /// Deletes a channel that no group's current spec names. Notifications that still go there (by rules of older
    /// revisions, by scripts, as a callback) fail when they are sent.
    pub async fn delete_channel(&self, by: By<'_>, name: &str) -> Result<Removal, StoreError> {
        self.delete::<ChannelWrite<'static>>(by, name).await
    }
}

impl Deleted for ChannelWrite<'_> {
    const DELETE: &'static str = "delete_channel";
    const KIND: usage::Kind = usage::CHANNELS;

    async fn delete_row(tx: &mut PgSession, name: &str) -> Result<Option<Value>, StoreError> {
        Ok(
            sqlx::query_scalar!("DELETE FROM heddle.channels WHERE name = $1 RETURNING options", name)
                .fetch_optional(tx)
                .await?,
        )
    }
}
