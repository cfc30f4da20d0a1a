//! Sessions of the UI: who has signed in with which token, and which people a provider has identified. Of a session's
//! cookie, only the SHA-256 is stored.

use heddle_domain::Time;
use serde_json::{Value, json};

use crate::audit::{self, About};
use crate::change::{By, Noun, Page};
use crate::token::TokenRow;
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// How many sessions one token, or one person, may have; beyond that, the oldest ends.
const SESSIONS_MAX: i64 = 100;

/// A person whom a provider has identified.
#[derive(Clone, Copy, Debug)]
pub struct Person<'a> {
    pub issuer: &'a str,
    /// The person's id at the provider.
    pub subject: &'a str,
    /// The person's name in the audit.
    pub actor: &'a str,
}

impl Person<'_> {
    fn audited(&self, role: Option<&str>) -> Value {
        json!({"issuer": self.issuer, "subject": self.subject, "role": role})
    }
}

/// What the audit is about when this many sessions of a person or token have ended. It is announced to nodes only if at
/// least one has ended.
fn of_sessions(ended: u64) -> About {
    match ended {
        0 => Noun::Token.quiet(),
        _ => Noun::Token.into(),
    }
}

/// A token or person that is signed in: with how many sessions, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedInRow {
    /// A token's name, or a person's name in the audit.
    pub actor: String,
    pub role: String,
    /// The provider that has identified a person; `None`: it is a token.
    pub issuer: Option<String>,
    /// The person's id at the provider.
    pub subject: Option<String>,
    /// How many sessions they have.
    pub sessions: i64,
    /// When the newest began.
    pub signed_in_at: Time,
    /// When the last of them ends.
    pub expires_at: Time,
}

impl Store {
    /// Tokens and people with sessions that have not ended at `now`, by name, after `cursor`. A person whom the
    /// provider has renamed appears once for each name. The number of rows read is bounded by the lifetime of sessions
    /// and by how many one may have.
    pub async fn signed_in(
        &self,
        cursor: Option<&str>,
        now: Time,
        limit: i64,
    ) -> Result<Page<SignedInRow>, StoreError> {
        let rows = sqlx::query_as!(
            SignedInRow,
            r#"SELECT o.actor AS "actor!", max(o.role) AS "role!", max(o.issuer) AS issuer, max(o.subject) AS subject,
                      count(*) AS "sessions!", max(o.created_at) AS "signed_in_at!", max(o.expires_at) AS "expires_at!"
                 FROM (SELECT coalesce(t.name, s.actor) AS actor, coalesce(t.role, s.role) AS role, s.issuer, s.subject,
                              s.created_at, least(t.expires_at, s.expires_at) AS expires_at
                         FROM heddle.sessions s LEFT JOIN heddle.tokens t ON t.id = s.token_id
                        WHERE s.expires_at > $1
                          AND (s.token_id IS NULL
                               OR t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > $1))) o
                WHERE $2::text IS NULL OR o.actor > $2
                GROUP BY o.actor ORDER BY o.actor LIMIT $3"#,
            now,
            cursor,
            limit + 1,
        )
        .fetch_all(&self.control)
        .await?;
        Ok(Page::of(rows, limit, |row| row.actor.clone()))
    }

    /// Ends all sessions of a token or person, by the name in the audit, on all nodes; returns how many there were.
    pub async fn end_all_sessions(&self, by: By<'_>, actor: &str) -> Result<u64, StoreError> {
        transaction!(self, control, "end_all_sessions", |tx| {
            let ended = sqlx::query!(
                "DELETE FROM heddle.sessions s
                  WHERE s.actor = $1 OR s.token_id IN (SELECT t.id FROM heddle.tokens t WHERE t.name = $1)",
                actor,
            )
            .execute(&mut *tx)
            .await?
            .rows_affected();
            if ended > 0 {
                let before = json!({ "sessions": ended });
                audit::record(&mut tx, by, "end_sessions", Noun::Token, actor, Some(&before), None).await?;
            }
            tx.commit().await?;
            Ok(ended)
        })
    }

    /// Begins a session of a valid token.
    ///
    /// Locking: the token, shared, before its sessions. A concurrent revocation waits, and then deletes the new session too;
    /// a session that is begun after it finds the token revoked.
    pub async fn begin_session(
        &self,
        by: By<'_>,
        hash: &[u8; 32],
        token: &TokenRow,
        expires_at: Time,
    ) -> Result<(), StoreError> {
        transaction!(self, control, "begin_session", |tx| {
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
            audit::record(&mut tx, by, "sign_in", Noun::Token.quiet(), &token.name, None, None).await?;
            tx.commit().await?;
            Ok(())
        })
    }

    /// Begins a session of a person. Sessions of the person with another role end, because it is no longer theirs.
    /// Returns whether any did.
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
            let about = of_sessions(ended);
            audit::record(&mut tx, by, "sign_in", about, person.actor, None, Some(&after)).await?;
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
            let about = of_sessions(ended);
            audit::record(&mut tx, by, "refuse", about, person.actor, None, Some(&after)).await?;
            tx.commit().await?;
            Ok(ended > 0)
        })
    }

    /// The owner of a session that has not ended at `now`: a token, until the session or the token expires; or a
    /// person, as a token without an id, if `issuer` is the provider that identified them.
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
            audit::record(&mut tx, by, "sign_out", Noun::Token, &actor, None, None).await?;
            tx.commit().await?;
            Ok(true)
        })
    }

    /// Deletes at most `limit` sessions that have expired.
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
