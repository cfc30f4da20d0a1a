//! What people changed: insert-only, written in the transaction of the change itself.

use heddle_domain::Time;
use heddle_domain::id::RunId;
use serde_json::Value;

use crate::change::{self, By, Noun, PAGE_BYTES_MAX, Page};
use crate::database::PgSession;
use crate::live::Completion;
use crate::{Store, StoreError};

/// One action of somebody.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditRow {
    pub id: i64,
    pub at: Time,
    pub actor: String,
    /// `create`, `update`, `delete`, `enable`, `disable`, `cancel`, ...
    pub action: String,
    pub kind: String,
    pub name: String,
    /// The object before the action; never a secret.
    pub before: Option<Value>,
    pub after: Option<Value>,
}

/// Which rows of the audit are wanted; `None` means all.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    pub kind: Option<String>,
    pub name: Option<String>,
    pub actor: Option<String>,
    pub action: Option<String>,
    pub from: Option<Time>,
    pub to: Option<Time>,
    /// Whether it is an admin who asks. For others, entries about what only an admin can list are left out
    /// ([`Noun::WORDS_OF_ADMINS`]).
    pub is_for_admin: bool,
}

/// What a row is about, and whether nodes learn of it from the log of changes.
pub(crate) struct About {
    noun: Noun,
    announced: bool,
}

impl From<Noun> for About {
    fn from(noun: Noun) -> Self {
        Self { noun, announced: true }
    }
}

impl Noun {
    /// For a row that is not announced: nodes need not know of it, or the log of changes has another row for it.
    pub(crate) fn quiet(self) -> About {
        About {
            noun: self,
            announced: false,
        }
    }
}

/// Writes the row of a change in the audit, and announces the change, unless it is about something `quiet`.
pub(crate) async fn record(
    connection: &mut PgSession,
    by: By<'_>,
    action: &str,
    about: impl Into<About>,
    name: &str,
    before: Option<&Value>,
    after: Option<&Value>,
) -> Result<(), StoreError> {
    let About { noun, announced } = about.into();
    sqlx::query!(
        "INSERT INTO heddle.audit (at, actor, action, kind, name, before, after) VALUES ($1, $2, $3, $4, $5, $6, $7)",
        by.at,
        by.actor,
        action,
        noun.as_str(),
        name,
        before,
        after,
    )
    .execute(&mut *connection)
    .await?;
    if announced {
        change::announce(connection, by.at, noun, name);
    }
    Ok(())
}

/// The same for one action on many runs: each with what was before it and after it.
pub(crate) async fn record_runs(
    connection: &mut PgSession,
    by: By<'_>,
    action: &str,
    runs: &[(RunId, Value, Option<Value>)],
) -> Result<(), StoreError> {
    if runs.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = runs.iter().map(|(run, ..)| run.to_string()).collect();
    let before: Vec<Value> = runs.iter().map(|(_, before, _)| before.clone()).collect();
    let after: Vec<Option<Value>> = runs.iter().map(|(.., after)| after.clone()).collect();
    sqlx::query!(
        "INSERT INTO heddle.audit (at, actor, action, kind, name, before, after)
             SELECT $1, $2, $3, $4, * FROM UNNEST($5::text[], $6::jsonb[], $7::jsonb[])",
        by.at,
        by.actor,
        action,
        Noun::Run.as_str(),
        &names,
        &before,
        &after as &[Option<Value>],
    )
    .execute(connection)
    .await?;
    Ok(())
}

impl Completion {
    /// Records a control of runs, in the same transaction: each with its state before and after.
    pub async fn audit_all(
        &mut self,
        by: By<'_>,
        action: &str,
        runs: &[(RunId, Value, Option<Value>)],
    ) -> Result<(), StoreError> {
        record_runs(self.connection(), by, action, runs).await
    }
}

impl Store {
    /// The audit, newest first. `cursor` is the id after which the page begins. A page may have fewer entries than `limit`,
    /// and still have a next page: it ends with the entry that goes beyond [`PAGE_BYTES_MAX`].
    pub async fn audit_list(
        &self,
        filter: &AuditFilter,
        cursor: Option<i64>,
        limit: i64,
    ) -> Result<Page<AuditRow>, StoreError> {
        let left_out: &[&str] = match filter.is_for_admin {
            true => &[],
            false => &Noun::WORDS_OF_ADMINS,
        };
        let rows = sqlx::query!(
            r#"SELECT w.id AS "id!", w.at AS "at!", w.actor AS "actor!", w.action AS "action!", w.kind AS "kind!",
                      w.name AS "name!", w.before AS "before?", w.after AS "after?",
                      w.upto > $9::bigint OR w.stored > $9 AS "cut!"
                 FROM (SELECT s.*, sum(s.bytes) OVER (ORDER BY s.id DESC ROWS UNBOUNDED PRECEDING) AS upto
                         FROM (SELECT f.*, coalesce(octet_length(f.before::text), 0)
                                           + coalesce(octet_length(f.after::text), 0) AS bytes
                                 FROM (SELECT a.*, sum(a.own) OVER (ORDER BY a.id DESC ROWS UNBOUNDED PRECEDING) AS stored
                                         FROM (SELECT id, at, actor, action, kind, name, before, after,
                                                      coalesce(pg_column_size(before), 0)
                                                      + coalesce(pg_column_size(after), 0) AS own
                                                 FROM heddle.audit
                                                WHERE ($1::bigint IS NULL OR id < $1)
                                                  AND ($2::text IS NULL OR kind = $2)
                                                  AND ($3::text IS NULL OR name = $3)
                                                  AND ($4::text IS NULL OR actor = $4)
                                                  AND ($5::text IS NULL OR action = $5)
                                                  AND ($6::timestamptz IS NULL OR at >= $6)
                                                  AND ($7::timestamptz IS NULL OR at <= $7)
                                                  AND kind <> ALL ($10::text[])
                                                ORDER BY id DESC LIMIT $8) AS a) AS f
                                WHERE f.stored - f.own <= $9) AS s) AS w
                WHERE w.upto - w.bytes <= $9
                ORDER BY w.id DESC"#,
            cursor,
            filter.kind.as_deref(),
            filter.name.as_deref(),
            filter.actor.as_deref(),
            filter.action.as_deref(),
            filter.from,
            filter.to,
            limit + 1,
            PAGE_BYTES_MAX,
            left_out as &[&str],
        )
        .fetch_all(&self.control)
        .await?;
        let rows = rows.into_iter().map(|row| {
            let entry = AuditRow {
                id: row.id,
                at: row.at,
                actor: row.actor,
                action: row.action,
                kind: row.kind,
                name: row.name,
                before: row.before,
                after: row.after,
            };
            (entry, row.cut)
        });
        Ok(Page::of_bounded(rows.collect(), limit, |row| row.id.to_string()))
    }

    /// Deletes at most `limit` rows older than `before`.
    pub async fn prune_audit(&self, before: Time, limit: i64) -> Result<u64, StoreError> {
        Ok(sqlx::query!(
            "DELETE FROM heddle.audit WHERE id IN (
                 SELECT id FROM heddle.audit WHERE at < $1 ORDER BY at LIMIT $2)",
            before,
            limit,
        )
        .execute(&self.control)
        .await?
        .rows_affected())
    }
}
