//! The row of a group, under the lock of all changes of groups: what is read of it, and what is written.

use heddle_domain::Time;
use serde_json::{Map, Value, json};

use crate::change::{By, Noun};
use crate::database::PgSession;
use crate::schedule::is_unchanged;
use crate::{StoreError, audit};

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

/// A script that a spec names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ScriptUse {
    pub script: String,
    /// `None`: the active one.
    pub version: Option<i32>,
}

/// The condition of `If-Match`, or of `If-None-Match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// Any revision (`*`): the group has to exist.
    Exists,
    /// There is no such group yet (`If-None-Match: *`).
    Absent,
    /// The group has one of these revisions.
    Revisions(Vec<i32>),
}

impl IfMatch {
    /// Whether an existing group with this revision meets it.
    pub fn is_met_by(&self, revision: i32) -> bool {
        match self {
            Self::Exists => true,
            Self::Absent => false,
            Self::Revisions(revisions) => revisions.contains(&revision),
        }
    }
}

/// Waits until nobody else changes groups.
///
/// Locking: before the rows of groups, of what they name and of their schedules. A topic or a tree of timer tasks whose
/// group is changed with it locks its own rows before or after this; no change of another group needs them.
pub(super) async fn lock_groups(connection: &mut PgSession) -> Result<(), StoreError> {
    sqlx::query!("SELECT pg_advisory_xact_lock($1)", GROUPS_LOCK)
        .execute(connection)
        .await?;
    Ok(())
}

/// Waits until nobody creates runs of a group any more; whoever begins to create one later waits for the end of this
/// transaction, and then reads what it has committed (`heddle.closed_groups`).
///
/// Locking: after [`lock_groups`], before the rows of the group's schedules.
pub(super) async fn close(connection: &mut PgSession, group_id: i64) -> Result<(), StoreError> {
    sqlx::query!(
        "SELECT pg_advisory_xact_lock(hashtextextended('heddle/group/' || $1::bigint, 0))",
        group_id
    )
    .execute(connection)
    .await?;
    Ok(())
}

pub(crate) async fn current(connection: &mut PgSession, name: &str) -> Result<Option<GroupRow>, StoreError> {
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

/// Every schedule of `spec` with the instant since which it has been unchanged. Those of `anew` count from now.
pub(super) fn anchors(before: Option<&GroupRow>, spec: &Value, at: Time, anew: &[String]) -> Value {
    let mut anchors = Map::new();
    let schedules = spec.get("schedules").and_then(Value::as_object);
    for name in schedules.into_iter().flat_map(Map::keys) {
        let kept = before
            .filter(|before| !anew.contains(name) && is_unchanged(name, &before.spec, spec))
            .and_then(|before| before.schedule_anchors.get(name).cloned());
        anchors.insert(name.clone(), kept.unwrap_or_else(|| json!(at)));
    }
    Value::Object(anchors)
}

/// Writes a revision and makes it the group's current one. The schedules of `anew` count from now, although they may be
/// unchanged.
pub(super) async fn revise(
    connection: &mut PgSession,
    by: By<'_>,
    before: &GroupRow,
    spec: &Value,
    category: Option<&str>,
    anew: &[String],
) -> Result<GroupRow, StoreError> {
    let schedule_anchors = anchors(Some(before), spec, by.at, anew);
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
pub(super) async fn switch(connection: &mut PgSession, by: By<'_>, row: &GroupRow) -> Result<(), StoreError> {
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

pub(super) async fn active_runs(connection: &mut PgSession, group_id: i64) -> Result<i64, StoreError> {
    Ok(sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM heddle.runs_live WHERE group_id = $1"#,
        group_id,
    )
    .fetch_one(connection)
    .await?)
}
