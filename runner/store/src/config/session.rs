//! Sessions of the UI: who has signed in with which token. Only the SHA-256 of a session's cookie is kept.

use heddle_domain::Time;

use crate::change::{self, By, Noun};
use crate::token::TokenRow;
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// How many sessions one token may have; the oldest make room.
const SESSIONS_MAX: i64 = 100;

impl Store {
    /// Begins a session of a token in force.
    pub async fn begin_session(
        &self,
        by: By<'_>,
        hash: &[u8; 32],
        token: &TokenRow,
        expires_at: Time,
    ) -> Result<(), StoreError> {
        transaction!(self, control, "begin_session", |tx| {
            // Against a revocation meanwhile, which deletes the sessions that it finds.
            let in_force = sqlx::query_scalar!(
                "SELECT id FROM heddle.tokens WHERE id = $1 AND revoked_at IS NULL FOR SHARE",
                token.id
            )
            .fetch_optional(&mut *tx)
            .await?;
            if in_force.is_none() {
                return Err(StoreError::contended());
            }
            sqlx::query!(
                "DELETE FROM heddle.sessions WHERE hash IN (
                 SELECT hash FROM heddle.sessions WHERE token_id = $1 ORDER BY created_at DESC OFFSET $2)",
                token.id,
                SESSIONS_MAX - 1,
            )
            .execute(&mut *tx)
            .await?;
            sqlx::query!(
                "INSERT INTO heddle.sessions (hash, token_id, created_at, expires_at) VALUES ($1, $2, $3, $4)",
                &hash[..],
                token.id,
                by.at,
                expires_at,
            )
            .execute(&mut *tx)
            .await?;
            crate::audit::write(&mut tx, by, "sign_in", Noun::Token, &token.name, None, None).await?;
            tx.commit().await?;
            Ok(())
        })
    }

    /// The token of a session that has not ended at `now`; it expires when the first of the two does.
    pub async fn session(&self, hash: &[u8; 32], now: Time) -> Result<Option<TokenRow>, StoreError> {
        Ok(sqlx::query_as!(
            TokenRow,
            "SELECT t.id, t.name, t.role, t.queues, t.uids, least(t.expires_at, s.expires_at) AS expires_at,
                    t.created_at, t.last_used_at
               FROM heddle.sessions s JOIN heddle.tokens t ON t.id = s.token_id
              WHERE s.hash = $1 AND s.expires_at > $2 AND t.revoked_at IS NULL
                AND (t.expires_at IS NULL OR t.expires_at > $2)",
            &hash[..],
            now,
        )
        .fetch_optional(&self.control)
        .await?)
    }

    /// Ends a session, on all nodes; `false` if there was none.
    pub async fn end_session(&self, at: Time, hash: &[u8; 32]) -> Result<bool, StoreError> {
        transaction!(self, control, "end_session", |tx| {
            let gone = sqlx::query_scalar!(
                "DELETE FROM heddle.sessions s USING heddle.tokens t WHERE s.hash = $1 AND t.id = s.token_id
             RETURNING t.name",
                &hash[..]
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(token) = gone else { return Ok(false) };
            let by = By { actor: &token, at };
            change::record(&mut tx, by, "sign_out", Noun::Token, &token, None, None).await?;
            tx.commit().await?;
            Ok(true)
        })
    }

    /// Drops at most `limit` sessions that have ended by themselves.
    pub async fn prune_sessions(&self, now: Time, limit: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.sessions WHERE hash IN (
                 SELECT hash FROM heddle.sessions WHERE expires_at <= $1 LIMIT $2)",
            now,
            limit,
        )
        .execute(&self.control)
        .await?
        .rows_affected())
    }
}
