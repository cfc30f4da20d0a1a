//! Groups and their immutable revisions.
//!
//! All changes of groups wait for each other (one advisory lock): two groups that are put at the same time may close a
//! cycle, and ten clients that put one name at once must get one 201 and nine 200. What takes time (parsing, schemas,
//! templates) has happened before; what another writer could have changed meanwhile is checked again here.

mod delete;
pub mod link;
mod list;
mod put;

use heddle_domain::Time;
use serde_json::{Map, Value, json};

use crate::change::{By, Noun, Page};
use crate::database::PgSession;
use crate::transaction::transaction;
use crate::{Store, StoreError, audit};
use crate::{schedule, upstream};

pub use delete::GroupDelete;
pub(crate) use delete::delete_in;
pub use list::GroupFilter;
pub(crate) use put::put_in;
pub use put::{GroupPut, GroupWrite};

/// Serialises all changes of groups.
const GROUPS_LOCK: i64 = 0x6865_6464_6c65_0002;

/// A group with its current revision.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupRow {
    pub id: i64,
    pub name: String,
    pub enabled: bool,
    pub revision: i32,
    pub revision_id: i64,
    pub category: Option<String>,
    pub spec: Value,
    /// `{schedule: time}`: since when each schedule has been unchanged.
    pub schedule_anchors: Value,
    pub created_at: Time,
    pub updated_at: Time,
    pub deleted_at: Option<Time>,
}

/// A revision. Immutable, so it may be cached for ever.
#[derive(Clone, Debug, PartialEq)]
pub struct RevisionRow {
    pub id: i64,
    pub group_id: i64,
    pub revision: i32,
    pub spec: Value,
    pub schedule_anchors: Value,
    pub created_at: Time,
    pub created_by: String,
}

/// A script that a spec names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScriptUse {
    pub script: String,
    /// `None`: the active one.
    pub version: Option<i32>,
}

/// The condition of `If-Match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// Any revision (`*`): the group has to exist.
    Exists,
    /// The group has one of these revisions.
    Revisions(Vec<i32>),
}

impl IfMatch {
    /// Whether an existing group with this revision meets it.
    pub fn is_met_by(&self, revision: i32) -> bool {
        match self {
            Self::Exists => true,
            Self::Revisions(revisions) => revisions.contains(&revision),
        }
    }
}

/// Waits until nobody else changes groups.
///
/// Locking: before the rows of groups, of what they name and of their schedules. A topic or a tree of timer tasks whose
/// group is changed with it locks its own rows before or after this; no change of another group needs them.
async fn lock_groups(connection: &mut PgSession) -> Result<(), StoreError> {
    sqlx::query!("SELECT pg_advisory_xact_lock($1)", GROUPS_LOCK)
        .execute(connection)
        .await?;
    Ok(())
}

async fn current(connection: &mut PgSession, name: &str) -> Result<Option<GroupRow>, StoreError> {
    Ok(sqlx::query_as!(
        GroupRow,
        "SELECT g.id, g.name, g.enabled, g.revision, g.revision_id, g.category, r.spec, r.schedule_anchors,
                g.created_at, g.updated_at, g.deleted_at
         FROM heddle.groups g JOIN heddle.revisions r ON r.id = g.revision_id
         WHERE g.name = $1 AND g.deleted_at IS NULL",
        name,
    )
    .fetch_optional(connection)
    .await?)
}

/// Every schedule of `spec` with the instant since which it has been unchanged.
fn anchors(before: Option<&GroupRow>, spec: &Value, at: Time) -> Value {
    let mut anchors = Map::new();
    for (name, schedule) in spec.get("schedules").and_then(Value::as_object).into_iter().flatten() {
        let kept = before.and_then(|before| {
            // Disabling and enabling a schedule does not start it anew: `schedule::sync` leaves out the disabled time.
            let rhythm = |schedule: &Value| {
                let mut schedule = schedule.clone();
                if let Value::Object(fields) = &mut schedule {
                    fields.remove("enabled");
                }
                schedule
            };
            let schedule_before = before.spec.get("schedules").and_then(|all| all.get(name));
            if schedule_before.is_some_and(|schedule_before| rhythm(schedule_before) == rhythm(schedule)) {
                before.schedule_anchors.get(name).cloned()
            } else {
                None
            }
        });
        anchors.insert(name.clone(), kept.unwrap_or_else(|| json!(at)));
    }
    Value::Object(anchors)
}

/// Writes a revision and makes it the group's current one.
async fn revise(
    connection: &mut PgSession,
    by: By<'_>,
    before: &GroupRow,
    spec: &Value,
    category: Option<&str>,
) -> Result<GroupRow, StoreError> {
    let schedule_anchors = anchors(Some(before), spec, by.at);
    let revision = before.revision + 1;
    let revision_id = sqlx::query_scalar!(
        "INSERT INTO heddle.revisions (group_id, revision, spec, schedule_anchors, created_at, created_by)
         VALUES ($1, $2, $3, $4, $5, $6) RETURNING id",
        before.id,
        revision,
        spec,
        schedule_anchors,
        by.at,
        by.actor,
    )
    .fetch_one(&mut *connection)
    .await?;
    sqlx::query!(
        "UPDATE heddle.groups SET revision = $2, revision_id = $3, category = $4, updated_at = $5 WHERE id = $1",
        before.id,
        revision,
        revision_id,
        category,
        by.at,
    )
    .execute(&mut *connection)
    .await?;
    Ok(GroupRow {
        revision,
        revision_id,
        category: category.map(Into::into),
        spec: spec.clone(),
        schedule_anchors,
        updated_at: by.at,
        ..before.clone()
    })
}

/// Writes that a group is enabled or disabled from now on, as `row` says. Does not change its schedules.
async fn switch(connection: &mut PgSession, by: By<'_>, row: &GroupRow) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE heddle.groups SET enabled = $2, updated_at = $3 WHERE id = $1",
        row.id,
        row.enabled,
        by.at,
    )
    .execute(&mut *connection)
    .await?;
    if row.enabled {
        sqlx::query!(
            "UPDATE heddle.group_disabled SET until = greatest(since, $2) WHERE group_id = $1 AND until IS NULL",
            row.id,
            by.at,
        )
        .execute(&mut *connection)
        .await?;
    } else {
        sqlx::query!(
            "INSERT INTO heddle.group_disabled (group_id, since) VALUES ($1, $2)",
            row.id,
            by.at
        )
        .execute(&mut *connection)
        .await?;
    }
    let action = if row.enabled { "enable" } else { "disable" };
    let (was, is) = (json!({"enabled": !row.enabled}), json!({"enabled": row.enabled}));
    audit::record(connection, by, action, Noun::Group, &row.name, Some(&was), Some(&is)).await
}

impl Store {
    /// A group that is not deleted.
    pub async fn group_by_name(&self, name: &str) -> Result<Option<GroupRow>, StoreError> {
        let mut connection = self.pool.acquire().await?;
        current(&mut connection, name).await
    }

    /// The ids of a group that is not deleted and of its current revision.
    pub async fn group_revision(&self, name: &str) -> Result<Option<(i64, i64)>, StoreError> {
        let row = sqlx::query!(
            "SELECT id, revision_id FROM heddle.groups WHERE name = $1 AND deleted_at IS NULL",
            name
        )
        .fetch_optional(&self.pool)
        .await?;
        Ok(row.map(|row| (row.id, row.revision_id)))
    }

    /// Which of these groups exist.
    pub async fn existing_groups(&self, names: &[String]) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar!(
            "SELECT name FROM heddle.groups WHERE name = ANY($1) AND deleted_at IS NULL",
            names,
        )
        .fetch_all(&self.pool)
        .await?)
    }

    /// A group by its id, deleted or not.
    pub async fn group_by_id(&self, id: i64) -> Result<Option<GroupRow>, StoreError> {
        Ok(sqlx::query_as!(
            GroupRow,
            "SELECT g.id, g.name, g.enabled, g.revision, g.revision_id, g.category, r.spec, r.schedule_anchors,
                    g.created_at, g.updated_at, g.deleted_at
             FROM heddle.groups g JOIN heddle.revisions r ON r.id = g.revision_id WHERE g.id = $1",
            id,
        )
        .fetch_optional(&self.pool)
        .await?)
    }

    /// A revision by its id.
    pub async fn revision(&self, id: i64) -> Result<Option<RevisionRow>, StoreError> {
        Ok(sqlx::query_as!(
            RevisionRow,
            "SELECT id, group_id, revision, spec, schedule_anchors, created_at, created_by
             FROM heddle.revisions WHERE id = $1",
            id,
        )
        .fetch_optional(&self.pool)
        .await?)
    }

    /// Revisions by their ids, each with the name of its group.
    pub async fn revisions_by_id(&self, ids: &[i64]) -> Result<Vec<(RevisionRow, String)>, StoreError> {
        Ok(sqlx::query!(
            "SELECT r.id, r.group_id, r.revision, r.spec, r.schedule_anchors, r.created_at, r.created_by, g.name
             FROM heddle.revisions r JOIN heddle.groups g ON g.id = r.group_id WHERE r.id = ANY($1)",
            ids,
        )
        .fetch_all(&self.pool)
        .await?
        .into_iter()
        .map(|row| {
            let revision = RevisionRow {
                id: row.id,
                group_id: row.group_id,
                revision: row.revision,
                spec: row.spec,
                schedule_anchors: row.schedule_anchors,
                created_at: row.created_at,
                created_by: row.created_by,
            };
            (revision, row.name)
        })
        .collect())
    }

    /// A group's revisions, newest first, below revision number `cursor`.
    pub async fn revisions(
        &self,
        group_id: i64,
        cursor: Option<i32>,
        limit: i64,
    ) -> Result<Page<RevisionRow>, StoreError> {
        let rows = sqlx::query_as!(
            RevisionRow,
            "SELECT id, group_id, revision, spec, schedule_anchors, created_at, created_by FROM heddle.revisions
             WHERE group_id = $1 AND ($2::int IS NULL OR revision < $2) ORDER BY revision DESC LIMIT $3",
            group_id,
            cursor,
            limit + 1,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(Page::of(rows, limit, |row| row.revision.to_string()))
    }

    /// Enables or disables a group; `None` if it does not exist. The flag says whether that changed anything.
    pub async fn set_group_enabled(
        &self,
        by: By<'_>,
        name: &str,
        enabled: bool,
    ) -> Result<Option<(GroupRow, bool)>, StoreError> {
        transaction!(self, pool, "set_group_enabled", |tx| {
            lock_groups(&mut tx).await?;
            let Some(before) = current(&mut tx, name).await? else {
                return Ok(None);
            };
            if before.enabled == enabled {
                return Ok(Some((before, false)));
            }
            let row = GroupRow {
                enabled,
                updated_at: by.at,
                ..before
            };
            schedule::sync(&mut tx, &row, by.at).await?;
            upstream::changed(&mut tx, row.id).await?;
            switch(&mut tx, by, &row).await?;
            tx.commit().await?;
            Ok(Some((row, true)))
        })
    }

    /// How many runs of a group have not ended.
    pub async fn active_runs(&self, group_id: i64) -> Result<i64, StoreError> {
        let mut connection = self.pool.acquire().await?;
        active_runs(&mut connection, group_id).await
    }
}

async fn active_runs(connection: &mut PgSession, group_id: i64) -> Result<i64, StoreError> {
    Ok(sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM heddle.runs_live WHERE group_id = $1"#,
        group_id,
    )
    .fetch_one(connection)
    .await?)
}
