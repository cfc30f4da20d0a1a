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
    /// A token's name, or a person's name in the audit: that of the newest session.
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

impl SignedInRow {
    /// Its place in the list. Two people may have one name, so those of people contain the ids, as a JSON array. The name
    /// of a token is no such array.
    fn place(&self) -> String {
        match (&self.issuer, &self.subject) {
            (Some(issuer), Some(subject)) => json!([self.actor, issuer, subject]).to_string(),
            _ => self.actor.clone(),
        }
    }
}

/// A place in the list of those who are signed in: name, issuer and id. A cursor that is only a name is a place, too.
fn read_place(cursor: &str) -> (String, String, String) {
    serde_json::from_str(cursor)
        .ok()
        .filter(|(actor, issuer, subject): &(String, String, String)| {
            ![actor, issuer, subject].into_iter().any(|part| part.contains('\0'))
        })
        .unwrap_or_else(|| (cursor.to_owned(), String::new(), String::new()))
}

impl Store {
    /// Tokens and people with sessions that have not ended at `now`, by name, after `cursor`. A person is a subject of a
    /// provider: people with the same name are several, and one whom the provider has renamed is one. The number of rows
    /// read is bounded by the lifetime of sessions and by how many one may have.
    pub async fn signed_in(
        &self,
        cursor: Option<&str>,
        now: Time,
        limit: i64,
    ) -> Result<Page<SignedInRow>, StoreError> {
        let (name, issuer, subject) = cursor.map(read_place).unwrap_or_default();
        let rows = sqlx::query_as!(
            SignedInRow,
            r#"SELECT p.actor AS "actor!", p.role AS "role!", p.issuer AS "issuer?", p.subject AS "subject?",
                      p.sessions AS "sessions!", p.signed_in_at AS "signed_in_at!", p.expires_at AS "expires_at!"
                 FROM (SELECT (array_agg(o.actor ORDER BY o.created_at DESC))[1] AS actor,
                              (array_agg(o.role ORDER BY o.created_at DESC))[1] AS role, o.issuer, o.subject,
                              count(*) AS sessions, max(o.created_at) AS signed_in_at, max(o.expires_at) AS expires_at
                        FROM (SELECT coalesce(t.name, s.actor) AS actor, coalesce(t.role, s.role) AS role, s.issuer, s.subject,
                                     s.created_at, least(t.expires_at, s.expires_at) AS expires_at
                                FROM heddle.sessions s LEFT JOIN heddle.tokens t ON t.id = s.token_id
                               WHERE s.expires_at > $1
                                 AND (s.token_id IS NULL
                                      OR t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > $1))) o
                        GROUP BY CASE WHEN o.issuer IS NULL THEN o.actor END, o.issuer, o.subject) p
                WHERE NOT $2::bool
                   OR (p.actor, coalesce(p.issuer, ''), coalesce(p.subject, '')) > ($3::text, $4::text, $5::text)
                ORDER BY p.actor, coalesce(p.issuer, ''), coalesce(p.subject, '') LIMIT $6"#,
            now,
            cursor.is_some(),
            name,
            issuer,
            subject,
            limit + 1,
        )
        .fetch_all(&self.control)
        .await?;
        Ok(Page::of(rows, limit, SignedInRow::place))
    }

    /// Ends all sessions of a token or person, by the name in the audit, on all nodes; returns how many there were. If
    /// several people have this name, it ends those of all, or only those of the `issuer` and of the `subject`. Sessions
    /// that such a person has begun under another name end, too.
    pub async fn end_all_sessions(
        &self,
        by: By<'_>,
        actor: &str,
        issuer: Option<&str>,
        subject: Option<&str>,
    ) -> Result<u64, StoreError> {
        transaction!(self, control, "end_all_sessions", |tx| {
            let ended = sqlx::query!(
                "DELETE FROM heddle.sessions s
                  WHERE (s.issuer, s.subject) IN (
                            SELECT o.issuer, o.subject FROM heddle.sessions o
                             WHERE o.actor = $1 AND ($2::text IS NULL OR o.issuer = $2)
                               AND ($3::text IS NULL OR o.subject = $3))
                     OR $2::text IS NULL AND $3::text IS NULL
                        AND s.token_id IN (SELECT t.id FROM heddle.tokens t WHERE t.name = $1)",
                actor,
                issuer,
                subject,
            )
            .execute(&mut *tx)
            .await?
            .rows_affected();
            if ended > 0 {
                let mut before = json!({ "sessions": ended });
                for (name, value) in [("issuer", issuer), ("subject", subject)] {
                    if let Some(value) = value {
                        before[name] = json!(value);
                    }
                }
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
            let after = json!({"role": token.role});
            let about = Noun::Token.quiet();
            audit::record(&mut tx, by, "sign_in", about, &token.name, None, Some(&after)).await?;
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
            let gone = sqlx::query!(
                r#"DELETE FROM heddle.sessions s WHERE s.hash = $1
             RETURNING coalesce(s.actor, (SELECT t.name FROM heddle.tokens t WHERE t.id = s.token_id)) AS "actor!",
                       coalesce(s.role, (SELECT t.role FROM heddle.tokens t WHERE t.id = s.token_id)) AS "role!",
                       s.issuer, s.subject"#,
                &hash[..]
            )
            .fetch_optional(&mut *tx)
            .await?;
            let Some(gone) = gone else { return Ok(false) };
            let actor = gone.actor.as_str();
            let before = match (&gone.issuer, &gone.subject) {
                (Some(issuer), Some(subject)) => Person { issuer, subject, actor }.audited(Some(&gone.role)),
                _ => json!({"role": gone.role}),
            };
            let by = By { actor, at };
            audit::record(&mut tx, by, "sign_out", Noun::Token, actor, Some(&before), None).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_tell_people_of_one_name_apart() {
        let row = |actor: &str, person: Option<(&str, &str)>| SignedInRow {
            actor: actor.into(),
            role: "viewer".into(),
            issuer: person.map(|(issuer, _)| issuer.into()),
            subject: person.map(|(_, subject)| subject.into()),
            sessions: 1,
            signed_in_at: Time::UNIX_EPOCH,
            expires_at: Time::UNIX_EPOCH,
        };
        let read = |actor: &str, person| read_place(&row(actor, person).place());
        let place = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(read("ann", None), place("ann", "", ""));
        let (one, other) = (Some(("https://id", "a \"b\"")), Some(("https://id", "b")));
        assert_eq!(read("person:a@x", one), place("person:a@x", "https://id", "a \"b\""));
        assert_ne!(read("person:a@x", one), read("person:a@x", other));
        // Of an earlier version, or invented.
        assert_eq!(read_place("person:a@x"), place("person:a@x", "", ""));
        assert_eq!(read_place(r#"["a", "b"]"#), place(r#"["a", "b"]"#, "", ""));
        assert_eq!(read_place(r#"["a", "b", "\u0000"]"#).1, "");
    }
}
