//! PUT of a group: a new revision, unless the spec is the same.

use serde_json::{Value, json};

use super::row::{GroupRow, IfMatch, ScriptUse, anchors, current, lock_groups, revise, switch};
use crate::change::{By, Noun, Put};
use crate::database::PgSession;
use crate::link::{self, GroupLink};
use crate::transaction::transaction;
use crate::{Store, StoreError, audit, runtime, schedule, upstream, usage};

/// A group to be put.
#[derive(Clone, Debug)]
pub struct GroupWrite<'a> {
    pub name: &'a str,
    /// Validated and in canonical form: an equal spec makes no new revision.
    pub spec: &'a Value,
    pub category: Option<&'a str>,
    pub links: &'a [GroupLink],
    pub scripts: &'a [ScriptUse],
    /// Whether its schedules fire and it accepts submissions; `None`: unchanged; a new group is enabled.
    pub enabled: Option<bool>,
    pub if_match: Option<IfMatch>,
    /// If it is enabled: its schedules `once: {delay}` that are over begin anew, although they are the same.
    pub begins_anew: bool,
}

/// The result of putting a group.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupPut {
    Done(Put<GroupRow>),
    /// `If-Match` does not hold: the group has this revision, or does not exist, at least not with the tree of timer
    /// tasks that is to be replaced.
    Stale(Option<i32>),
    /// These upstream groups do not exist.
    UnknownGroups(Vec<String>),
    /// These scripts, or versions of them, do not exist.
    UnknownScripts(Vec<ScriptUse>),
    /// The links would close this cycle, which begins and ends with the group.
    Cycle(Vec<String>),
    /// Another object that it names has been deleted since the check: check again.
    Outdated,
}

/// Creates a group. The revisions of a name are counted on after a deletion: who has read the deleted group and names its
/// revision (`If-Match`) changes no other group.
async fn insert(connection: &mut PgSession, by: By<'_>, write: &GroupWrite<'_>) -> Result<GroupRow, StoreError> {
    let schedule_anchors = anchors(None, write.spec, by.at, &[]);
    let added = sqlx::query!(
        "INSERT INTO heddle.groups (name, revision, revision_id, category, created_at, updated_at)
         VALUES ($1, 1 + coalesce((SELECT max(g.revision) FROM heddle.groups g
                                    WHERE g.name = $1 AND g.deleted_at IS NOT NULL), 0), 0, $2, $3, $3)
         RETURNING id, revision",
        write.name,
        write.category,
        by.at,
    )
    .fetch_one(&mut *connection)
    .await?;
    let revision_id = sqlx::query_scalar!(
        "INSERT INTO heddle.revisions (group_id, revision, spec, schedule_anchors, created_at, created_by)
         VALUES ($1, $2, $3, $4, $5, $6) RETURNING id",
        added.id,
        added.revision,
        write.spec,
        schedule_anchors,
        by.at,
        by.actor,
    )
    .fetch_one(&mut *connection)
    .await?;
    sqlx::query!(
        "UPDATE heddle.groups SET revision_id = $2 WHERE id = $1",
        added.id,
        revision_id
    )
    .execute(&mut *connection)
    .await?;
    Ok(GroupRow {
        id: added.id,
        name: write.name.into(),
        enabled: true,
        revision: added.revision,
        revision_id,
        category: write.category.map(Into::into),
        spec: write.spec.clone(),
        schedule_anchors,
        created_at: by.at,
        updated_at: by.at,
        deleted_at: None,
    })
}

/// The ids of the scripts, in the order of `scripts`, with their rows locked against deletion.
///
/// Locking: KEY SHARE, in id order, under the lock of all groups. A transaction that changes or deletes one of these
/// scripts waits for this lock, and locks no other script.
async fn resolve_scripts(
    connection: &mut PgSession,
    scripts: &[ScriptUse],
) -> Result<Result<Vec<i64>, Vec<ScriptUse>>, StoreError> {
    let mut names: Vec<String> = scripts.iter().map(|used| used.script.clone()).collect();
    names.sort();
    names.dedup();
    let found = sqlx::query!(
        "SELECT id, name, first_version, last_version, active_version FROM heddle.scripts
         WHERE name = ANY($1) AND deleted_at IS NULL ORDER BY id FOR KEY SHARE",
        &names,
    )
    .fetch_all(connection)
    .await?;
    let mut ids = Vec::with_capacity(scripts.len());
    let mut unknown = Vec::new();
    for used in scripts {
        let row = found
            .iter()
            .find(|row| row.name == used.script)
            .filter(|row| match used.version {
                None => row.active_version.is_some(),
                Some(version) => (row.first_version..=row.last_version).contains(&version),
            });
        match row {
            Some(row) => ids.push(row.id),
            None => unknown.push(used.clone()),
        }
    }
    Ok(if unknown.is_empty() { Ok(ids) } else { Err(unknown) })
}

/// Replaces the scripts that the group's current revision names.
async fn replace_script_uses(
    connection: &mut PgSession,
    group_id: i64,
    used: &[ScriptUse],
    scripts: &[i64],
) -> Result<(), StoreError> {
    sqlx::query!("DELETE FROM heddle.script_uses WHERE group_id = $1", group_id)
        .execute(&mut *connection)
        .await?;
    let versions: Vec<i32> = used.iter().map(|one| one.version.unwrap_or(0)).collect();
    sqlx::query!(
        "INSERT INTO heddle.script_uses (group_id, script_id, version)
         SELECT $1, script_id, version FROM unnest($2::bigint[], $3::int[]) AS used (script_id, version)
         ON CONFLICT DO NOTHING",
        group_id,
        scripts,
        &versions,
    )
    .execute(&mut *connection)
    .await?;
    Ok(())
}

/// Creates a category if needed, and locks it.
async fn hold_category(tx: &mut PgSession, by: By<'_>, category: &str) -> Result<(), StoreError> {
    // The update changes nothing; it protects the row from a deletion until this commits.
    let added = sqlx::query_scalar!(
        r#"INSERT INTO heddle.categories AS c (name, created_at, updated_at) VALUES ($1, $2, $2)
                   ON CONFLICT (name) DO UPDATE SET description = c.description
                   RETURNING xmax = 0 AS "added!""#,
        category,
        by.at,
    )
    .fetch_one(&mut *tx)
    .await?;
    if added {
        let after = json!({"description": ""});
        audit::record(tx, by, "create", Noun::Category, category, None, Some(&after)).await?;
    }
    Ok(())
}

/// The same spec again: only whether the group is enabled may change.
async fn put_again(
    tx: &mut PgSession,
    by: By<'_>,
    before: &GroupRow,
    enabled: bool,
) -> Result<Put<GroupRow>, StoreError> {
    let changed = enabled != before.enabled;
    let mut row = before.clone();
    if changed {
        row = GroupRow {
            enabled,
            updated_at: by.at,
            ..row
        };
        schedule::sync(tx, &row, by.at).await?;
        upstream::changed(tx, row.id).await?;
        switch(tx, by, &row).await?;
    }
    Ok(Put {
        row,
        created: false,
        changed,
    })
}

/// The objects that a group names, protected from deletion until the commit.
struct Named {
    links: Vec<GroupLink>,
    /// The ids of the groups that the links name, and of the scripts, in the order in which they are named.
    upstreams: Vec<i64>,
    scripts: Vec<i64>,
}

/// Finds and locks the objects that a group names; if one is missing, returns the answer to the PUT.
async fn hold_named(
    tx: &mut PgSession,
    write: &GroupWrite<'_>,
    group_id: Option<i64>,
) -> Result<Result<Named, GroupPut>, StoreError> {
    let mut links = write.links.to_vec();
    links.retain(|link| link.upstream != write.name);
    if links.len() < write.links.len() {
        return Ok(Err(GroupPut::Cycle(vec![write.name.into(), write.name.into()])));
    }
    let upstreams = match link::resolve(tx, &links).await? {
        Ok(upstreams) => upstreams,
        Err(unknown) => return Ok(Err(GroupPut::UnknownGroups(unknown))),
    };
    let scripts = match resolve_scripts(tx, write.scripts).await? {
        Ok(scripts) => scripts,
        Err(unknown) => return Ok(Err(GroupPut::UnknownScripts(unknown))),
    };
    let pinned = write.scripts.iter().zip(&scripts);
    let pinned: Vec<(i64, i32)> = pinned.filter_map(|(used, id)| Some((*id, used.version?))).collect();
    if !pinned.is_empty() {
        runtime::stay(tx, &pinned).await?;
    }
    if !usage::hold(tx, write.spec).await? {
        return Ok(Err(GroupPut::Outdated));
    }
    if let Some(cycle) = link::find_cycle(tx, write.name, group_id, &links, &upstreams).await? {
        return Ok(Err(GroupPut::Cycle(cycle)));
    }
    Ok(Ok(Named {
        links,
        upstreams,
        scripts,
    }))
}

/// Whether the group, or its absence, meets the condition.
fn is_met(wanted: &IfMatch, before: Option<&GroupRow>) -> bool {
    match before {
        Some(before) => wanted.is_met_by(before.revision),
        None => *wanted == IfMatch::Absent,
    }
}

/// Creates or changes a group within a transaction, which the caller ends: with a commit if something was changed.
pub(crate) async fn put_in(tx: &mut PgSession, by: By<'_>, write: &GroupWrite<'_>) -> Result<GroupPut, StoreError> {
    lock_groups(tx).await?;
    let before = current(tx, write.name).await?;
    let wanted = write.if_match.as_ref();
    if wanted.is_some_and(|wanted| !is_met(wanted, before.as_ref())) {
        return Ok(GroupPut::Stale(before.map(|before| before.revision)));
    }
    let enabled_before = before.as_ref().is_none_or(|before| before.enabled);
    let enabled = write.enabled.unwrap_or(enabled_before);
    let anew = match &before {
        Some(before) if write.begins_anew && enabled => schedule::over(tx, before, write.spec, by.at).await?,
        _ => Vec::new(),
    };
    if let Some(before) = &before
        && before.spec == *write.spec
        && anew.is_empty()
    {
        return Ok(GroupPut::Done(put_again(tx, by, before, enabled).await?));
    }
    let named = match hold_named(tx, write, before.as_ref().map(|before| before.id)).await? {
        Ok(named) => named,
        Err(missing) => return Ok(missing),
    };
    if let Some(category) = write.category {
        hold_category(tx, by, category).await?;
    }
    let row = match &before {
        Some(before) => revise(tx, by, before, write.spec, write.category, &anew).await?,
        None => insert(tx, by, write).await?,
    };
    let row = GroupRow { enabled, ..row };
    link::replace(tx, row.id, &named.links, &named.upstreams).await?;
    replace_script_uses(tx, row.id, write.scripts, &named.scripts).await?;
    schedule::sync(tx, &row, by.at).await?;
    upstream::changed(tx, row.id).await?;
    let action = if before.is_some() { "update" } else { "create" };
    let spec_before = before.as_ref().map(|before| &before.spec);
    audit::record(tx, by, action, Noun::Group, write.name, spec_before, Some(write.spec)).await?;
    if enabled != enabled_before {
        switch(tx, by, &row).await?;
    }
    Ok(GroupPut::Done(Put {
        row,
        created: before.is_none(),
        changed: true,
    }))
}

impl Store {
    /// Creates or changes a group; the same spec makes no new revision. A category that it names is created if needed.
    ///
    /// Whether it is enabled is written in the same transaction as its spec and its schedules: a group that is put
    /// disabled never fires, not even for a moment or after a crash.
    pub async fn put_group(&self, by: By<'_>, write: GroupWrite<'_>) -> Result<GroupPut, StoreError> {
        transaction!(self, pool, "put_group", |tx| {
            let put = put_in(&mut tx, by, &write).await?;
            if matches!(&put, GroupPut::Done(done) if done.changed) {
                tx.commit().await?;
            }
            Ok(put)
        })
    }
}
