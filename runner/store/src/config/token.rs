//! Bearer tokens. Only their SHA-256 is stored: they are 256 random bits, so a plain hash is enough.

use chrono::SecondsFormat;
use heddle_domain::Time;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::change::{By, Noun, Page};
use crate::transaction::transaction;
use crate::{Store, StoreError, audit};

/// A token without its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    pub id: Uuid,
    pub name: String,
    /// `viewer`, `operator`, `author`, `worker` or `admin`.
    pub role: String,
    /// A worker's queues; all when empty.
    pub queues: Vec<String>,
    /// A worker's users; all when empty.
    pub uids: Vec<String>,
    pub expires_at: Option<Time>,
    pub created_at: Time,
    pub last_used_at: Option<Time>,
}

/// A token to be created.
#[derive(Clone, Copy, Debug)]
pub struct TokenWrite<'a> {
    pub id: Uuid,
    pub name: &'a str,
    pub hash: [u8; 32],
    pub role: &'a str,
    pub queues: &'a [String],
    pub uids: &'a [String],
    pub expires_at: Option<Time>,
}

/// A token for the audit.
fn audited(row: &TokenRow) -> Value {
    let expires_at = row.expires_at.map(|at| at.to_rfc3339_opts(SecondsFormat::Micros, true));
    json!({
        "id": row.id, "role": row.role, "queues": row.queues, "uids": row.uids, "expires_at": expires_at,
    })
}

impl Store {
    /// Adds a token; `None` if there is a token of that name that is not revoked, expired or not.
    pub async fn create_token(&self, by: By<'_>, write: TokenWrite<'_>) -> Result<Option<TokenRow>, StoreError> {
        transaction!(self, control, "create_token", |tx| {
            let added = sqlx::query_as!(
                TokenRow,
                "INSERT INTO heddle.tokens (id, name, hash, role, queues, uids, expires_at, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
             ON CONFLICT (name) WHERE revoked_at IS NULL DO NOTHING
             RETURNING id, name, role, queues, uids, expires_at, created_at, last_used_at",
                write.id,
                write.name,
                &write.hash[..],
                write.role,
                write.queues,
                write.uids,
                write.expires_at,
                by.at,
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(row) = added else { return Ok(None) };
            let after = audited(&row);
            audit::record(&mut tx, by, "create", Noun::Token, write.name, None, Some(&after)).await?;
            tx.commit().await?;
            Ok(Some(row))
        })
    }

    /// The token of a hash, unless it is revoked or has expired at `now`.
    pub async fn token_by_hash(&self, hash: &[u8; 32], now: Time) -> Result<Option<TokenRow>, StoreError> {
        Ok(sqlx::query_as!(
            TokenRow,
            "SELECT id, name, role, queues, uids, expires_at, created_at, last_used_at FROM heddle.tokens
             WHERE hash = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)",
            &hash[..],
            now,
        )
        .fetch_optional(&self.control)
        .await?)
    }

    /// Whether any token is valid at `now`.
    pub async fn has_tokens(&self, now: Time) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM heddle.tokens
                 WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $1)) AS "some!""#,
            now,
        )
        .fetch_one(&self.control)
        .await?)
    }

    /// Notes when tokens were used.
    ///
    /// Locking: tokens in id order, skipping those that somebody has locked: another node writes the same, or the token
    /// is being revoked.
    pub async fn touch_tokens(&self, uses: &[(Uuid, Time)]) -> Result<(), StoreError> {
        let (ids, times): (Vec<Uuid>, Vec<Time>) = uses.iter().copied().unzip();
        sqlx::query!(
            "WITH free AS (SELECT id FROM heddle.tokens WHERE id = ANY ($1) ORDER BY id FOR UPDATE SKIP LOCKED)
             UPDATE heddle.tokens t SET last_used_at = u.at
               FROM UNNEST($1::uuid[], $2::timestamptz[]) AS u (id, at)
              WHERE t.id = u.id AND t.id IN (SELECT id FROM free)
                AND (t.last_used_at IS NULL OR t.last_used_at < u.at)",
            &ids,
            &times,
        )
        .execute(&self.control)
        .await?;
        Ok(())
    }

    /// A token that is not revoked, by its id or its name.
    pub async fn token(&self, id_or_name: &str) -> Result<Option<TokenRow>, StoreError> {
        Ok(sqlx::query_as!(
            TokenRow,
            "SELECT id, name, role, queues, uids, expires_at, created_at, last_used_at FROM heddle.tokens
             WHERE revoked_at IS NULL AND (id::text = $1 OR name = $1) ORDER BY id::text = $1 DESC LIMIT 1",
            id_or_name,
        )
        .fetch_optional(&self.control)
        .await?)
    }

    /// Tokens that are not revoked (expired ones too) by name, after `cursor`.
    pub async fn tokens(&self, cursor: Option<&str>, limit: i64) -> Result<Page<TokenRow>, StoreError> {
        let rows = sqlx::query_as!(
            TokenRow,
            "SELECT id, name, role, queues, uids, expires_at, created_at, last_used_at FROM heddle.tokens
             WHERE revoked_at IS NULL AND ($1::text IS NULL OR name > $1) ORDER BY name LIMIT $2",
            cursor,
            limit + 1,
        )
        .fetch_all(&self.control)
        .await?;
        Ok(Page::of(rows, limit, |row| row.name.clone()))
    }

    /// Revokes a token; `false` if there was none.
    pub async fn revoke_token(&self, by: By<'_>, id: Uuid) -> Result<bool, StoreError> {
        transaction!(self, control, "revoke_token", |tx| {
            let gone = sqlx::query_as!(
                TokenRow,
                "UPDATE heddle.tokens SET revoked_at = $2 WHERE id = $1 AND revoked_at IS NULL
             RETURNING id, name, role, queues, uids, expires_at, created_at, last_used_at",
                id,
                by.at,
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(gone) = gone else { return Ok(false) };
            let before = audited(&gone);
            // The sessions of the token end with it.
            sqlx::query!("DELETE FROM heddle.sessions WHERE token_id = $1", id)
                .execute(&mut *tx)
                .await?;
            audit::record(&mut tx, by, "revoke", Noun::Token, &gone.name, Some(&before), None).await?;
            tx.commit().await?;
            Ok(true)
        })
    }
}
