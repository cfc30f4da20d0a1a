//! Groups and their immutable revisions.
//!
//! All changes of groups take turns (one advisory lock): a cycle may close through two groups that are put at the same
//! time, and ten clients that put one name at once must get one 201 and nine 200. What costs time (parsing, schemas,
//! templates) has happened before; what is checked here again is what another writer could have changed meanwhile.

pub mod link;

use heddle_domain::Time;
use heddle_domain::state::RunState;
use serde_json::{Map, Value, json};

use crate::change::{self, By, Noun, Page, Put};
use crate::database::PgSession;
use crate::link::GroupLink;
use crate::transaction::transaction;
use crate::{Store, StoreError};
use crate::{schedule, upstream, usage};

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
    /// `{schedule: time}`: since when each schedule stands as it is written.
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

/// What `If-Match` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// `*`: it exists.
    Exists,
    /// It stands at this revision.
    Revision(i32),
}

/// A group as it shall stand.
#[derive(Clone, Copy, Debug)]
pub struct GroupWrite<'a> {
    pub name: &'a str,
    /// Validated and in canonical form: equal specs make no new revision.
    pub spec: &'a Value,
    pub category: Option<&'a str>,
    pub links: &'a [GroupLink],
    pub scripts: &'a [ScriptUse],
    /// Whether its schedules fire and it takes submissions; `None`: as it stands, which is enabled if it is new.
    pub enabled: Option<bool>,
    pub if_match: Option<IfMatch>,
}

/// Which groups; empty and `None` mean any.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupFilter {
    /// Of this category.
    pub category: Option<String>,
    /// With this text in the name or the description, in any case.
    pub text: Option<String>,
    /// With all of these labels; a value of `None` means any.
    pub labels: Vec<(String, Option<String>)>,
    /// Whose latest run is in one of these states; `None` among them: that have no run.
    pub last_states: Vec<Option<RunState>>,
    /// That are enabled, or are not.
    pub enabled: Option<bool>,
}

/// What came of putting a group.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupPut {
    Done(Put<GroupRow>),
    /// `If-Match` does not hold: it stands at this revision, or does not exist.
    Stale(Option<i32>),
    /// These upstream groups do not exist.
    UnknownGroups(Vec<String>),
    /// These scripts, or versions of them, do not exist.
    UnknownScripts(Vec<ScriptUse>),
    /// The links would close this cycle, which begins and ends with the group.
    Cycle(Vec<String>),
    /// Something else that it names has been deleted since it was checked: check again.
    Outdated,
}

/// What came of deleting a group.
#[derive(Clone, Debug, PartialEq)]
pub enum GroupDelete {
    Missing,
    /// `If-Match` does not hold: it stands at this revision.
    Stale(i32),
    /// It has upstream groups: these.
    Upstreams(Vec<String>),
    /// Tasks of these groups start sub-runs of it.
    UsedBy(Vec<String>),
    /// So many of its runs are active.
    Active(i64),
    /// Gone; these groups no longer follow it.
    Deleted {
        id: i64,
        detached: Vec<String>,
    },
}

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

/// Every schedule of `spec` with the instant since which it stands unchanged.
fn anchors(before: Option<&GroupRow>, spec: &Value, at: Time) -> Value {
    let mut anchors = Map::new();
    for (name, schedule) in spec.get("schedules").and_then(Value::as_object).into_iter().flatten() {
        let kept = before.and_then(|before| {
            // Switching a schedule off and on does not begin it anew: the disabled time is left out, by `schedule::sync`.
            let rhythm = |schedule: &Value| {
                let mut schedule = schedule.clone();
                if let Value::Object(fields) = &mut schedule {
                    fields.remove("enabled");
                }
                schedule
            };
            let stood = before.spec.get("schedules").and_then(|all| all.get(name));
            if stood.is_some_and(|stood| rhythm(stood) == rhythm(schedule)) {
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

async fn insert(connection: &mut PgSession, by: By<'_>, write: &GroupWrite<'_>) -> Result<GroupRow, StoreError> {
    let schedule_anchors = anchors(None, write.spec, by.at);
    let id = sqlx::query_scalar!(
        "INSERT INTO heddle.groups (name, revision, revision_id, category, created_at, updated_at)
         VALUES ($1, 1, 0, $2, $3, $3) RETURNING id",
        write.name,
        write.category,
        by.at,
    )
    .fetch_one(&mut *connection)
    .await?;
    let revision_id = sqlx::query_scalar!(
        "INSERT INTO heddle.revisions (group_id, revision, spec, schedule_anchors, created_at, created_by)
         VALUES ($1, 1, $2, $3, $4, $5) RETURNING id",
        id,
        write.spec,
        schedule_anchors,
        by.at,
        by.actor,
    )
    .fetch_one(&mut *connection)
    .await?;
    sqlx::query!(
        "UPDATE heddle.groups SET revision_id = $2 WHERE id = $1",
        id,
        revision_id
    )
    .execute(&mut *connection)
    .await?;
    Ok(GroupRow {
        id,
        name: write.name.into(),
        enabled: true,
        revision: 1,
        revision_id,
        category: write.category.map(Into::into),
        spec: write.spec.clone(),
        schedule_anchors,
        created_at: by.at,
        updated_at: by.at,
        deleted_at: None,
    })
}

/// Writes that a group is enabled or disabled from now on, as `row` says. Its schedules are not brought in step.
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
    change::record(connection, by, action, Noun::Group, &row.name, Some(&was), Some(&is)).await
}

/// The ids of the scripts, in the order of `scripts`, with their rows locked against deletion.
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

impl Store {
    /// Creates or changes a group; the same spec makes no new revision. A category that it names exists from then on.
    ///
    /// Whether it is enabled is written in the same transaction as its spec and its schedules: a group that is put
    /// disabled fires nothing, however short the moment and whenever the node dies.
    pub async fn put_group(&self, by: By<'_>, write: GroupWrite<'_>) -> Result<GroupPut, StoreError> {
        transaction!(self, pool, "put_group", |tx| {
            lock_groups(&mut tx).await?;
            let before = current(&mut tx, write.name).await?;
            let stale = match write.if_match {
                None => false,
                Some(IfMatch::Exists) => before.is_none(),
                Some(IfMatch::Revision(revision)) => before.as_ref().is_none_or(|before| before.revision != revision),
            };
            if stale {
                return Ok(GroupPut::Stale(before.map(|before| before.revision)));
            }
            let stood = before.as_ref().is_none_or(|before| before.enabled);
            let enabled = write.enabled.unwrap_or(stood);
            if let Some(before) = &before
                && before.spec == *write.spec
            {
                let changed = enabled != stood;
                let mut row = before.clone();
                if changed {
                    row = GroupRow {
                        enabled,
                        updated_at: by.at,
                        ..row
                    };
                    schedule::sync(&mut tx, &row, by.at).await?;
                    upstream::changed(&mut tx, row.id).await?;
                    switch(&mut tx, by, &row).await?;
                    tx.commit().await?;
                }
                return Ok(GroupPut::Done(Put {
                    row,
                    created: false,
                    changed,
                }));
            }
            let links: Vec<GroupLink> = write
                .links
                .iter()
                .filter(|link| link.upstream != write.name)
                .cloned()
                .collect();
            if links.len() < write.links.len() {
                return Ok(GroupPut::Cycle(vec![write.name.into(), write.name.into()]));
            }
            let upstreams = match link::resolve(&mut tx, &links).await? {
                Ok(upstreams) => upstreams,
                Err(unknown) => return Ok(GroupPut::UnknownGroups(unknown)),
            };
            let scripts = match resolve_scripts(&mut tx, write.scripts).await? {
                Ok(scripts) => scripts,
                Err(unknown) => return Ok(GroupPut::UnknownScripts(unknown)),
            };
            if !usage::hold(&mut tx, write.spec).await? {
                return Ok(GroupPut::Outdated);
            }
            let id = before.as_ref().map(|before| before.id);
            if let Some(cycle) = link::find_cycle(&mut tx, write.name, id, &links, &upstreams).await? {
                return Ok(GroupPut::Cycle(cycle));
            }
            if let Some(category) = write.category {
                // The update writes nothing new; it holds the row against a deletion until this commits.
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
                    change::record(&mut tx, by, "create", Noun::Category, category, None, Some(&json!({}))).await?;
                }
            }
            let row = match &before {
                Some(before) => revise(&mut tx, by, before, write.spec, write.category).await?,
                None => insert(&mut tx, by, &write).await?,
            };
            let row = GroupRow { enabled, ..row };
            link::replace(&mut tx, row.id, &links, &upstreams).await?;
            replace_script_uses(&mut tx, row.id, write.scripts, &scripts).await?;
            schedule::sync(&mut tx, &row, by.at).await?;
            upstream::changed(&mut tx, row.id).await?;
            let action = if before.is_some() { "update" } else { "create" };
            let spec_before = before.as_ref().map(|before| &before.spec);
            change::record(
                &mut tx,
                by,
                action,
                Noun::Group,
                write.name,
                spec_before,
                Some(write.spec),
            )
            .await?;
            if enabled != stood {
                switch(&mut tx, by, &row).await?;
            }
            tx.commit().await?;
            Ok(GroupPut::Done(Put {
                row,
                created: before.is_none(),
                changed: true,
            }))
        })
    }

    /// A group that is not deleted.
    pub async fn group_by_name(&self, name: &str) -> Result<Option<GroupRow>, StoreError> {
        let mut connection = self.pool.acquire().await?;
        current(&mut connection, name).await
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

    /// Groups by name, behind `cursor`, that a filter finds. The latest run of each is looked up by the index of its runs
    /// only where it matters.
    pub async fn groups(
        &self,
        filter: &GroupFilter,
        cursor: Option<&str>,
        limit: i64,
    ) -> Result<Page<GroupRow>, StoreError> {
        let valued: Map<String, Value> = filter
            .labels
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), Value::from(value.clone()?))))
            .collect();
        let named: Vec<String> = filter
            .labels
            .iter()
            .filter(|(_, value)| value.is_none())
            .map(|(name, _)| name.clone())
            .collect();
        let text = filter.text.as_deref().map(str::to_lowercase);
        let states: Vec<i16> = filter
            .last_states
            .iter()
            .map(|state| state.map_or(-1, RunState::number))
            .collect();
        let rows = sqlx::query_as!(
            GroupRow,
            "SELECT g.id, g.name, g.enabled, g.revision, g.revision_id, g.category, r.spec, r.schedule_anchors,
                    g.created_at, g.updated_at, g.deleted_at
             FROM heddle.groups g JOIN heddle.revisions r ON r.id = g.revision_id
             WHERE g.deleted_at IS NULL AND ($1::text IS NULL OR g.category = $1)
               AND ($2::text IS NULL OR g.name > $2)
               AND ($4::text IS NULL OR position($4 IN lower(g.name)) > 0
                    OR position($4 IN lower(coalesce(r.spec->>'description', ''))) > 0)
               AND ($5::jsonb = '{}' OR coalesce(r.spec->'labels', '{}') @> $5)
               AND (cardinality($6::text[]) = 0 OR coalesce(r.spec->'labels', '{}') ?& $6)
               AND ($7::boolean IS NULL OR g.enabled = $7)
               AND (cardinality($8::smallint[]) = 0
                    OR coalesce((SELECT n.state FROM (
                           (SELECT l.id, l.state FROM heddle.runs_live l
                             WHERE l.group_id = g.id ORDER BY l.group_id, l.id DESC LIMIT 1)
                           UNION ALL
                           (SELECT d.id, d.state FROM heddle.runs_done d
                             WHERE d.group_id = g.id ORDER BY d.group_id, d.id DESC LIMIT 1)) AS n
                        ORDER BY n.id DESC LIMIT 1), -1) = ANY ($8))
             ORDER BY g.name LIMIT $3",
            filter.category,
            cursor,
            limit + 1,
            text,
            Value::Object(valued),
            &named,
            filter.enabled,
            &states,
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(Page::of(rows, limit, |row| row.name.clone()))
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

    /// Enables or disables a group; `None` if there is none. The flag says whether that changed anything.
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

    /// The times in which a group was disabled that touch [from, to]; an open one has no end.
    pub async fn group_disabled(
        &self,
        group_id: i64,
        from: Time,
        to: Time,
    ) -> Result<Vec<(Time, Option<Time>)>, StoreError> {
        Ok(sqlx::query!(
            "SELECT since, until FROM heddle.group_disabled
             WHERE group_id = $1 AND since <= $3 AND (until IS NULL OR until >= $2) ORDER BY since",
            group_id,
            from,
            to,
        )
        .fetch_all(&self.pool)
        .await?
        .into_iter()
        .map(|row| (row.since, row.until))
        .collect())
    }

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
            lock_groups(&mut tx).await?;
            let Some(row) = current(&mut tx, name).await? else {
                return Ok(GroupDelete::Missing);
            };
            if matches!(if_match, Some(IfMatch::Revision(revision)) if revision != row.revision) {
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
            let (follow, use_it): (Vec<_>, Vec<_>) = links.into_iter().partition(|link| link.kind == "depends_on");
            if !use_it.is_empty() {
                return Ok(GroupDelete::UsedBy(use_it.into_iter().map(|link| link.name).collect()));
            }
            if !force {
                let active = active_runs(&mut tx, row.id).await?;
                if active > 0 {
                    return Ok(GroupDelete::Active(active));
                }
            }
            let mut detached = Vec::with_capacity(follow.len());
            for link in follow {
                let Some(follower) = current(&mut tx, &link.name).await? else {
                    continue;
                };
                let spec = without_upstream(&follower.spec, name);
                let revised = revise(&mut tx, by, &follower, &spec, follower.category.as_deref()).await?;
                schedule::sync(&mut tx, &revised, by.at).await?;
                upstream::changed(&mut tx, revised.id).await?;
                change::record(
                    &mut tx,
                    by,
                    "detach",
                    Noun::Group,
                    &link.name,
                    Some(&follower.spec),
                    Some(&spec),
                )
                .await?;
                detached.push(link.name);
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
            schedule::remove(&mut tx, row.id).await?;
            sqlx::query!(
                "UPDATE heddle.groups SET deleted_at = $2, updated_at = $2 WHERE id = $1",
                row.id,
                by.at
            )
            .execute(&mut *tx)
            .await?;
            change::record(&mut tx, by, "delete", Noun::Group, name, Some(&row.spec), None).await?;
            tx.commit().await?;
            Ok(GroupDelete::Deleted { id: row.id, detached })
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
