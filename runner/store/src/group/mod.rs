//! Groups and their immutable revisions.
//!
//! All changes of groups wait for each other (one advisory lock): two groups that are put at the same time may close a
//! cycle, and ten clients that put one name at once must get one 201 and nine 200. The slow checks (parsing, schemas,
//! templates) are done before the lock. What another writer could have changed meanwhile is checked again under it.

mod delete;
pub mod link;
mod list;
mod put;
mod row;

use heddle_domain::{Fault, Time};
use serde_json::Value;

use crate::change::{By, Noun, Page};
use crate::transaction::transaction;
use crate::{Store, StoreError, audit, schedule, upstream};

pub use delete::GroupDelete;
pub(crate) use delete::delete_in;
pub use list::GroupFilter;
pub(crate) use put::put_in;
pub use put::{GroupPut, GroupWrite};
pub(crate) use row::current;
pub use row::{GroupRow, IfMatch, ScriptUse};
use row::{active_runs, close, lock_groups, revise, switch};

/// The result of enabling or disabling a group.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupSwitch {
    Missing,
    /// `If-Match` does not hold: the group has this revision.
    Stale(i32),
    /// The group is in the wanted state now; perhaps it was before.
    Done(GroupRow),
}

/// The result of enabling or disabling a schedule of a group.
#[derive(Clone, Debug, PartialEq)]
pub enum ScheduleSwitch {
    /// There is no such group.
    MissingGroup,
    /// The group has no such schedule.
    Missing,
    /// `If-Match` does not hold: the group has this revision.
    Stale(i32),
    /// It cannot be enabled: it fires only once, and it has fired.
    Fired,
    /// It cannot be enabled, because it would never fire; the pointer is into the spec.
    NeverFires(Fault),
    /// The schedule is in the wanted state now; perhaps it was before, and then there is no new revision.
    Done(GroupRow),
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

    /// Enables or disables a group.
    pub async fn set_group_enabled(
        &self,
        by: By<'_>,
        name: &str,
        enabled: bool,
        if_match: Option<IfMatch>,
    ) -> Result<GroupSwitch, StoreError> {
        transaction!(self, pool, "set_group_enabled", |tx| {
            lock_groups(&mut tx).await?;
            let Some(before) = current(&mut tx, name).await? else {
                return Ok(GroupSwitch::Missing);
            };
            if if_match
                .as_ref()
                .is_some_and(|wanted| !wanted.is_met_by(before.revision))
            {
                return Ok(GroupSwitch::Stale(before.revision));
            }
            if !enabled {
                // Whoever cancels its runs after this sees all of them. Also if the group was disabled before: with `force`,
                // runs are created in it all the same.
                close(&mut tx, before.id).await?;
            }
            if before.enabled == enabled {
                return Ok(GroupSwitch::Done(before));
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
            Ok(GroupSwitch::Done(row))
        })
    }

    /// Enables or disables a schedule of a group. Nothing else of the spec is checked: it may name objects that were changed
    /// since, and a schedule can be stopped all the same.
    pub async fn set_schedule_enabled(
        &self,
        by: By<'_>,
        group: &str,
        name: &str,
        enabled: bool,
        if_match: Option<IfMatch>,
    ) -> Result<ScheduleSwitch, StoreError> {
        transaction!(self, pool, "set_schedule_enabled", |tx| {
            lock_groups(&mut tx).await?;
            let Some(before) = current(&mut tx, group).await? else {
                return Ok(ScheduleSwitch::MissingGroup);
            };
            let Some(spec) = with_schedule(&before.spec, name, enabled) else {
                return Ok(ScheduleSwitch::Missing);
            };
            if enabled && schedule::has_fired(&mut tx, before.id, name).await? {
                return Ok(ScheduleSwitch::Fired);
            }
            if if_match
                .as_ref()
                .is_some_and(|wanted| !wanted.is_met_by(before.revision))
            {
                return Ok(ScheduleSwitch::Stale(before.revision));
            }
            if is_enabled(&before.spec, name) == enabled {
                return Ok(ScheduleSwitch::Done(before));
            }
            if enabled && let Some(fault) = schedule::cannot_be_enabled(before.revision_id, &before.spec, name, by.at)?
            {
                return Ok(ScheduleSwitch::NeverFires(fault));
            }
            let row = revise(&mut tx, by, &before, &spec, before.category.as_deref(), &[]).await?;
            schedule::sync(&mut tx, &row, by.at).await?;
            upstream::changed(&mut tx, row.id).await?;
            let (was, is) = (Some(&before.spec), Some(&spec));
            audit::record(&mut tx, by, "update", Noun::Group, group, was, is).await?;
            tx.commit().await?;
            Ok(ScheduleSwitch::Done(row))
        })
    }

    /// How many runs of a group have not ended.
    pub async fn active_runs(&self, group_id: i64) -> Result<i64, StoreError> {
        let mut connection = self.pool.acquire().await?;
        active_runs(&mut connection, group_id).await
    }
}

/// Whether a schedule of a spec is enabled. The stored form leaves out what is the default.
fn is_enabled(spec: &Value, schedule: &str) -> bool {
    spec["schedules"][schedule]["enabled"] != Value::Bool(false)
}

/// A spec with a schedule enabled or disabled, in its stored form; `None`: it has no such schedule.
fn with_schedule(spec: &Value, schedule: &str, enabled: bool) -> Option<Value> {
    let mut spec = spec.clone();
    let fields = spec.get_mut("schedules")?.get_mut(schedule)?.as_object_mut()?;
    if enabled {
        fields.remove("enabled");
    } else {
        fields.insert("enabled".into(), Value::Bool(false));
    }
    Some(spec)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_switched_schedule_has_the_stored_form() {
        let on = json!({"schedules": {"a/b": {"every": "1h"}, "c": {"every": "2h"}}, "tasks": {}});
        let off = json!({"schedules": {"a/b": {"every": "1h", "enabled": false}, "c": {"every": "2h"}}, "tasks": {}});
        assert!(is_enabled(&on, "a/b") && !is_enabled(&off, "a/b") && is_enabled(&off, "c"));
        for spec in [&on, &off] {
            assert_eq!(with_schedule(spec, "a/b", false).as_ref(), Some(&off));
            assert_eq!(with_schedule(spec, "a/b", true).as_ref(), Some(&on));
            assert_eq!(with_schedule(spec, "x", true), None);
        }
        assert_eq!(with_schedule(&json!({"tasks": {}}), "a/b", true), None);
    }
}
