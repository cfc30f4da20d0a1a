//! Deletes groups: their followers get a revision that no longer names them.

use heddle_domain::link::LinkKind;
use serde_json::Value;

use super::row::{IfMatch, active_runs, close, current, lock_groups, revise};
use crate::change::{By, Noun};
use crate::database::PgSession;
use crate::transaction::transaction;
use crate::{Store, StoreError, audit, link, schedule, upstream};

/// The result of deleting a group.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupDelete {
    Missing,
    /// `If-Match` does not hold: the group has this revision.
    Stale(i32),
    /// It has upstream groups: these.
    Upstreams(Vec<String>),
    /// Tasks of these groups start sub-runs of it.
    UsedBy(Vec<String>),
    /// This many of its runs are active.
    Active(i64),
    /// It is deleted; these groups no longer follow it.
    Deleted {
        id: i64,
        detached: Vec<String>,
    },
}

/// Gives a follower a revision that does not name a group any more; `false`: the follower does not exist.
async fn detach(tx: &mut PgSession, by: By<'_>, follower: &str, upstream: &str) -> Result<bool, StoreError> {
    let Some(before) = current(tx, follower).await? else {
        return Ok(false);
    };
    let spec = without_upstream(&before.spec, upstream);
    let revised = revise(tx, by, &before, &spec, before.category.as_deref(), &[]).await?;
    schedule::sync(tx, &revised, by.at).await?;
    upstream::changed(tx, revised.id).await?;
    let (old, new) = (Some(&before.spec), Some(&spec));
    audit::record(tx, by, "detach", Noun::Group, follower, old, new).await?;
    Ok(true)
}

/// Deletes a group within a transaction, which the caller commits if it is `Deleted`; see [`Store::delete_group`].
pub(crate) async fn delete_in(
    tx: &mut PgSession,
    by: By<'_>,
    name: &str,
    force: bool,
    if_match: Option<&IfMatch>,
) -> Result<GroupDelete, StoreError> {
    lock_groups(tx).await?;
    let Some(row) = current(tx, name).await? else {
        return Ok(GroupDelete::Missing);
    };
    if if_match.is_some_and(|wanted| !wanted.is_met_by(row.revision)) {
        return Ok(GroupDelete::Stale(row.revision));
    }
    let upstreams = sqlx::query_scalar!(
        "SELECT u.name FROM heddle.group_links l JOIN heddle.groups u ON u.id = l.upstream_id
             WHERE l.group_id = $1 AND l.kind = 'depends_on' ORDER BY u.name",
        row.id,
    )
    .fetch_all(&mut *tx)
    .await?;
    if !upstreams.is_empty() {
        return Ok(GroupDelete::Upstreams(upstreams));
    }
    let links = sqlx::query!(
        "SELECT g.name, l.kind FROM heddle.group_links l JOIN heddle.groups g ON g.id = l.group_id
             WHERE l.upstream_id = $1 AND g.deleted_at IS NULL ORDER BY g.name",
        row.id,
    )
    .fetch_all(&mut *tx)
    .await?;
    let (mut follow, mut use_it) = (Vec::new(), Vec::new());
    for one in links {
        match link::kind_of(&one.kind, &one.name, name)? {
            LinkKind::DependsOn => follow.push(one.name),
            LinkKind::SubRun => use_it.push(one.name),
        }
    }
    if !use_it.is_empty() {
        return Ok(GroupDelete::UsedBy(use_it));
    }
    close(tx, row.id).await?;
    // Before the runs are counted: it waits for schedules that are being fired.
    schedule::remove(tx, row.id).await?;
    if !force {
        let active = active_runs(tx, row.id).await?;
        if active > 0 {
            return Ok(GroupDelete::Active(active));
        }
    }
    let mut detached = Vec::with_capacity(follow.len());
    for follower in follow {
        if detach(tx, by, &follower, name).await? {
            detached.push(follower);
        }
    }
    sqlx::query!(
        "DELETE FROM heddle.group_links WHERE upstream_id = $1 OR group_id = $1",
        row.id
    )
    .execute(&mut *tx)
    .await?;
    sqlx::query!("DELETE FROM heddle.script_uses WHERE group_id = $1", row.id)
        .execute(&mut *tx)
        .await?;
    sqlx::query!(
        "UPDATE heddle.groups SET deleted_at = $2, updated_at = $2 WHERE id = $1",
        row.id,
        by.at
    )
    .execute(&mut *tx)
    .await?;
    audit::record(tx, by, "delete", Noun::Group, name, Some(&row.spec), None).await?;
    Ok(GroupDelete::Deleted { id: row.id, detached })
}

impl Store {
    /// Deletes a group that follows no other. Its followers get a revision that no longer names it. With `force` also
    /// while runs are active, which the caller then cancels.
    pub async fn delete_group(
        &self,
        by: By<'_>,
        name: &str,
        force: bool,
        if_match: Option<IfMatch>,
    ) -> Result<GroupDelete, StoreError> {
        transaction!(self, pool, "delete_group", |tx| {
            let deleted = delete_in(&mut tx, by, name, force, if_match.as_ref()).await?;
            if matches!(deleted, GroupDelete::Deleted { .. }) {
                tx.commit().await?;
            }
            Ok(deleted)
        })
    }
}

/// A spec without its dependency on one group.
fn without_upstream(spec: &Value, upstream: &str) -> Value {
    let mut spec = spec.clone();
    if let Some(Value::Array(dependencies)) = spec.get_mut("depends_on") {
        dependencies.retain(|dependency| {
            let group = dependency
                .as_str()
                .or_else(|| dependency.get("group").and_then(Value::as_str));
            group != Some(upstream)
        });
    }
    spec
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_detached_group_keeps_its_other_upstreams() {
        let spec = json!({"depends_on": ["a", {"group": "b", "need": "interval"}, "c"], "tasks": {}});
        assert_eq!(
            without_upstream(&spec, "b"),
            json!({"depends_on": ["a", "c"], "tasks": {}})
        );
        assert_eq!(without_upstream(&spec, "x"), spec);
    }
}
