//! Audiences: user groups and their members.

use heddle_domain::Time;
use serde_json::json;

use crate::change::{self, By, Noun, Page};
use crate::database::PgSession;
use crate::transaction::transaction;
use crate::{Store, StoreError, audit};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AudienceRow {
    pub name: String,
    pub members: i64,
    pub created_at: Time,
    pub updated_at: Time,
}

/// The result of changing members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MembersChange {
    /// The audience did not exist before.
    pub created: bool,
    pub added: u64,
    pub removed: u64,
}

/// How many users an audit row of one change names. The row has the count of all.
const NAMED_MAX: i64 = 1_000;

/// How a change of members is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members<'a> {
    /// These and no others.
    Replace(&'a [String]),
    /// Adds these, removes those.
    Change { add: &'a [String], remove: &'a [String] },
}

/// Members who were added or removed.
struct Moved {
    count: i64,
    /// The first of them.
    uids: Vec<String>,
}

/// Removes members; returns which ones to add.
///
/// The members that leave are found by `EXCEPT`, which sorts or hashes. An anti-join with the given members would be a
/// nested loop here ([`crate::database::Plans::ByIndex`]): quadratic.
async fn remove_members<'a>(
    tx: &mut PgSession,
    audience: &str,
    members: Members<'a>,
) -> Result<(&'a [String], Moved), StoreError> {
    Ok(match members {
        Members::Replace(members) => {
            let removed = sqlx::query_as!(
                Moved,
                r#"WITH moved AS (
                           DELETE FROM heddle.members WHERE audience = $1
                              AND uid = ANY (ARRAY(SELECT m.uid FROM heddle.members m WHERE m.audience = $1
                                                   EXCEPT SELECT UNNEST($2::text[])))
                           RETURNING uid)
                       SELECT (SELECT count(*) FROM moved) AS "count!",
                              ARRAY(SELECT uid FROM moved ORDER BY uid LIMIT $3) AS "uids!""#,
                audience,
                members,
                NAMED_MAX
            )
            .fetch_one(&mut *tx)
            .await?;
            (members, removed)
        }
        Members::Change { add, remove } => {
            let removed = sqlx::query_as!(
                Moved,
                r#"WITH moved AS (
                           DELETE FROM heddle.members WHERE audience = $1 AND uid = ANY ($2) RETURNING uid)
                       SELECT (SELECT count(*) FROM moved) AS "count!",
                              ARRAY(SELECT uid FROM moved ORDER BY uid LIMIT $3) AS "uids!""#,
                audience,
                remove,
                NAMED_MAX
            )
            .fetch_one(&mut *tx)
            .await?;
            (add, removed)
        }
    })
}

impl Store {
    /// Changes an audience's members; creates the audience if needed.
    pub async fn change_members(
        &self,
        by: By<'_>,
        audience: &str,
        members: Members<'_>,
    ) -> Result<MembersChange, StoreError> {
        transaction!(self, pool, "change_members", |tx| {
            change::lock_name(&mut tx, Noun::Audience, audience).await?;
            let created = sqlx::query!(
            "INSERT INTO heddle.audiences (name, created_at, updated_at) VALUES ($1, $2, $2) ON CONFLICT DO NOTHING",
            audience,
            by.at
        )
        .execute(&mut *tx)
        .await?
        .rows_affected()
            == 1;
            let (add, removed) = remove_members(&mut tx, audience, members).await?;
            let added = sqlx::query_as!(
                Moved,
                r#"WITH moved AS (
                   INSERT INTO heddle.members (audience, uid) SELECT DISTINCT $1, uid FROM UNNEST($2::text[]) AS a (uid)
                   ON CONFLICT DO NOTHING RETURNING uid)
               SELECT (SELECT count(*) FROM moved) AS "count!",
                      ARRAY(SELECT uid FROM moved ORDER BY uid LIMIT $3) AS "uids!""#,
                audience,
                add,
                NAMED_MAX
            )
            .fetch_one(&mut *tx)
            .await?;
            if created || added.count > 0 || removed.count > 0 {
                sqlx::query!(
                    "UPDATE heddle.audiences SET updated_at = $2 WHERE name = $1",
                    audience,
                    by.at
                )
                .execute(&mut *tx)
                .await?;
                let action = if created { "create" } else { "update" };
                let after = json!({
                    "added": added.count, "removed": removed.count, "added_uids": added.uids, "removed_uids": removed.uids,
                });
                let about = Noun::Audience.quiet();
                audit::record(&mut tx, by, action, about, audience, None, Some(&after)).await?;
                change::announce(&mut tx, by.at, Noun::Members, audience);
            }
            tx.commit().await?;
            Ok(MembersChange {
                created,
                added: added.count.unsigned_abs(),
                removed: removed.count.unsigned_abs(),
            })
        })
    }

    pub async fn audience(&self, name: &str) -> Result<Option<AudienceRow>, StoreError> {
        Ok(sqlx::query_as!(
            AudienceRow,
            r#"SELECT name, (SELECT count(*) FROM heddle.members m WHERE m.audience = a.name) AS "members!",
                      created_at, updated_at
                 FROM heddle.audiences a WHERE name = $1"#,
            name
        )
        .fetch_optional(&self.pool)
        .await?)
    }

    /// User groups by name, after `cursor`; with a user, only the groups of that user.
    pub async fn audiences(
        &self,
        uid: Option<&str>,
        cursor: Option<&str>,
        limit: i64,
    ) -> Result<Page<AudienceRow>, StoreError> {
        let rows = sqlx::query_as!(
            AudienceRow,
            r#"SELECT name, (SELECT count(*) FROM heddle.members m WHERE m.audience = a.name) AS "members!",
                      created_at, updated_at
                 FROM heddle.audiences a
                WHERE ($1::text IS NULL OR name > $1)
                  AND ($3::text IS NULL OR name = ANY (ARRAY(SELECT audience FROM heddle.members WHERE uid = $3)))
                ORDER BY name LIMIT $2"#,
            cursor,
            limit + 1,
            uid
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(Page::of(rows, limit, |row| row.name.clone()))
    }

    /// Members in their order, after `cursor`.
    pub async fn members(&self, audience: &str, cursor: Option<&str>, limit: i64) -> Result<Page<String>, StoreError> {
        let rows = sqlx::query_scalar!(
            "SELECT uid FROM heddle.members WHERE audience = $1 AND ($2::text IS NULL OR uid > $2)
              ORDER BY uid LIMIT $3",
            audience,
            cursor,
            limit + 1
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(Page::of(rows, limit, String::clone))
    }
}
