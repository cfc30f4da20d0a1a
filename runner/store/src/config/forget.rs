//! Objects that no key opens any more. Nodes do not start beside them, so somebody who has lost the key for good must be
//! able to let go of them, without a node.
//!
//! The sealed column of each table may not be empty, so the whole object goes. Whatever uses it stays as it is: specs name
//! an object that does not exist, and their tasks fail until it is put again.

use serde_json::{Value, json};

use crate::change::{self, By, Noun};
use crate::database::PgSession;
use crate::rotate::ForeignSeal;
use crate::secret::{SecretKeys, grant_of};
use crate::transaction::transaction;
use crate::usage::{self, Users};
use crate::{Store, StoreError, audit};

/// How many lost objects are listed at once. What is more is found when these are gone.
pub const LOST_MAX: i64 = 10_000;

/// An object that none of the keys opens, and what uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostSeal {
    pub seal: ForeignSeal,
    /// The first few of each kind.
    pub users: Users,
}

/// How the users of such an object are found. `None`: no table has objects that are called so.
fn kind_of(word: &str) -> Option<usage::Kind> {
    [usage::SECRETS, usage::CONNECTIONS, usage::CHANNELS]
        .into_iter()
        .find(|kind| kind.noun().as_str() == word)
}

impl Store {
    /// The objects that none of these keys opens, by kind and name, at most [`LOST_MAX`].
    pub async fn lost_seals(&self, keys: &SecretKeys) -> Result<Vec<LostSeal>, StoreError> {
        let mut seals = self.foreign_seals_up_to(keys, LOST_MAX).await?;
        seals.sort_by(|one, other| (&one.kind, &one.name).cmp(&(&other.kind, &other.name)));
        transaction!(self, control, "lost_seals", |tx| {
            tx.patiently();
            let mut lost = Vec::with_capacity(seals.len());
            for seal in &seals {
                let users = match kind_of(&seal.kind) {
                    Some(kind) => usage::users(&mut tx, kind, &seal.name).await?,
                    None => Users::default(),
                };
                let seal = seal.clone();
                lost.push(LostSeal { seal, users });
            }
            Ok(lost)
        })
    }

    /// Deletes an object that none of these keys opens, also if specs name it. `false`: it is gone, or was put again.
    pub async fn forget_seal(&self, by: By<'_>, keys: &SecretKeys, seal: &ForeignSeal) -> Result<bool, StoreError> {
        let Some(kind) = kind_of(&seal.kind) else {
            return Ok(false);
        };
        let (noun, name, ids) = (kind.noun(), seal.name.as_str(), keys.ids());
        transaction!(self, control, "forget_seal", |tx| {
            change::lock_name(&mut tx, noun, name).await?;
            let Some(before) = delete(&mut tx, noun, name, &ids).await? else {
                return Ok(false);
            };
            audit::record(&mut tx, by, "delete", noun, name, Some(&before), None).await?;
            tx.commit().await?;
            Ok(true)
        })
    }
}

/// Deletes an object unless one of these keys opens it. Returns what the audit shows of it.
async fn delete(
    connection: &mut PgSession,
    noun: Noun,
    name: &str,
    ids: &[String],
) -> Result<Option<Value>, StoreError> {
    Ok(match noun {
        Noun::Secret => sqlx::query!(
            "DELETE FROM heddle.secrets WHERE name = $1 AND key_id <> ALL ($2) RETURNING groups, categories, key_id",
            name,
            ids,
        )
        .fetch_optional(connection)
        .await?
        .map(|gone| {
            let mut before = grant_of!(gone).to_json();
            before["key_id"] = json!(gone.key_id);
            before
        }),
        Noun::Connection => sqlx::query!(
            "DELETE FROM heddle.connections WHERE name = $1 AND key_id <> ALL ($2)
             RETURNING groups, categories, max_connections, read_only, key_id",
            name,
            ids,
        )
        .fetch_optional(connection)
        .await?
        .map(|gone| {
            let mut before = grant_of!(gone).to_json();
            before["max_connections"] = json!(gone.max_connections);
            before["read_only"] = json!(gone.read_only);
            before["key_id"] = json!(gone.key_id);
            before
        }),
        Noun::Channel => sqlx::query!(
            "DELETE FROM heddle.channels WHERE name = $1 AND key_id <> ALL ($2) RETURNING options, key_id",
            name,
            ids,
        )
        .fetch_optional(connection)
        .await?
        .map(|gone| {
            let mut before = gone.options;
            before["key_id"] = json!(gone.key_id);
            before
        }),
        _ => None,
    })
}
