//! Sessions of the UI: who has signed in with which token, and which people a provider has vouched for. Only the SHA-256
//! of a session's cookie is kept.

use heddle_domain::Time;
use serde_json::{Value, json};

use crate::change::{self, By, Noun};
use crate::token::TokenRow;
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// How many sessions one token, or one person, may have; the oldest make room.
const SESSIONS_MAX: i64 = 100;

/// A person whom a provider vouches for.
#[derive(Clone, Copy, Debug)]
pub struct Person<'a> {
    /// Who vouches.
    pub issuer: &'a str,
    /// The person's id there.
    pub subject: &'a str,
    /// As the audit names them.
    pub actor: &'a str,
}

impl Person<'_> {
    fn audited(&self, role: Option<&str>) -> Value {
        json!({"issuer": self.issuer, "subject": self.subject, "role": role})
    }
}

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

    /// Begins a session of a person. Sessions that they have with another role end: it is theirs no more. Whether any did.
    pub async fn begin_session_of(
        &self,
        at: Time,
        hash: &[u8; 32],
        person: Person<'_>,
        role: &str,
        expires_at: Time,
    ) -> Result<bool, StoreError> {
        transaction!(self, control, "begin_session_of", |tx| {
            let ended = sqlx::query!(
                "DELETE FROM heddle.sessions WHERE issuer = $1 AND subject = $2 AND (role <> $3 OR hash IN (
                 SELECT hash FROM heddle.sessions WHERE issuer = $1 AND subject = $2
                  ORDER BY created_at DESC OFFSET $4))",
                person.issuer,
                person.subject,
                role,
                SESSIONS_MAX - 1,
            )
            .execute(&mut *tx)
            .await?
            .rows_affected();
            sqlx::query!(
                "INSERT INTO heddle.sessions (hash, issuer, subject, actor, role, created_at, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7)",
                &hash[..],
                person.issuer,
                person.subject,
                person.actor,
                role,
                at,
                expires_at,
            )
            .execute(&mut *tx)
            .await?;
            let by = By {
                actor: person.actor,
                at,
            };
            let after = person.audited(Some(role));
            let (noun, name) = (Noun::Token, person.actor);
            if ended > 0 {
                change::record(&mut tx, by, "sign_in", noun, name, None, Some(&after)).await?;
            } else {
                crate::audit::write(&mut tx, by, "sign_in", noun, name, None, Some(&after)).await?;
            }
            tx.commit().await?;
            Ok(ended > 0)
        })
    }

    /// Ends all sessions of a person who has no role any more, on all nodes.
    pub async fn end_sessions_of(&self, at: Time, person: Person<'_>) -> Result<bool, StoreError> {
        transaction!(self, control, "end_sessions_of", |tx| {
            let ended = sqlx::query!(
                "DELETE FROM heddle.sessions WHERE issuer = $1 AND subject = $2",
                person.issuer,
                person.subject,
            )
            .execute(&mut *tx)
            .await?
            .rows_affected();
            let by = By {
                actor: person.actor,
                at,
            };
            let after = person.audited(None);
            let (noun, name) = (Noun::Token, person.actor);
            if ended > 0 {
                change::record(&mut tx, by, "refuse", noun, name, None, Some(&after)).await?;
            } else {
                crate::audit::write(&mut tx, by, "refuse", noun, name, None, Some(&after)).await?;
            }
            tx.commit().await?;
            Ok(ended > 0)
        })
    }

    /// Whom a session stands for that has not ended at `now`: a token, until the first of the two expires; or a person, as
    /// a token without an id, if it is `issuer` who vouched for them.
    pub async fn session(
        &self,
        hash: &[u8; 32],
        issuer: Option<&str>,
        now: Time,
    ) -> Result<Option<TokenRow>, StoreError> {
        Ok(sqlx::query_as!(
            TokenRow,
            r#"SELECT coalesce(t.id, '00000000-0000-0000-0000-000000000000') AS "id!", coalesce(t.name, s.actor) AS "name!",
                      coalesce(t.role, s.role) AS "role!", coalesce(t.queues, '{}') AS "queues!",
                      coalesce(t.uids, '{}') AS "uids!", least(t.expires_at, s.expires_at) AS expires_at,
                      coalesce(t.created_at, s.created_at) AS "created_at!", t.last_used_at
                 FROM heddle.sessions s LEFT JOIN heddle.tokens t ON t.id = s.token_id
                WHERE s.hash = $1 AND s.expires_at > $2
                  AND CASE WHEN s.token_id IS NULL THEN s.issuer = $3
                           ELSE t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > $2) END"#,
            &hash[..],
            now,
            issuer,
        )
        .fetch_optional(&self.control)
        .await?)
    }

    /// Ends a session, on all nodes; `false` if there was none.
    pub async fn end_session(&self, at: Time, hash: &[u8; 32]) -> Result<bool, StoreError> {
        transaction!(self, control, "end_session", |tx| {
            let gone = sqlx::query_scalar!(
                r#"DELETE FROM heddle.sessions s WHERE s.hash = $1
             RETURNING coalesce(s.actor, (SELECT t.name FROM heddle.tokens t WHERE t.id = s.token_id)) AS "name!""#,
                &hash[..]
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(actor) = gone else { return Ok(false) };
            let by = By { actor: &actor, at };
            change::record(&mut tx, by, "sign_out", Noun::Token, &actor, None, None).await?;
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
