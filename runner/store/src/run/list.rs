//! Lists of runs, by what people filter them by.
//!
//! A list costs what it shows, however many runs are kept:
//!
//! * What a filter names (groups, a key, queues, scripts) is looked up first; runs are then reached by their ids.
//! * Runs of groups are read from the newest end of the index of each group's runs, one span of the past after the other
//!   (`heddle.look_back`), so that those of long ago are not touched while there are newer ones. `= ANY (ARRAY[...])` leaves the planner
//!   no other way: of a group that ran often it believes that all runs, newest first, soon have enough of it, and of one
//!   that has not run lately they never do.
//! * States stand in the text, one arm of the statement for each: those that are no success have indexes of their own,
//!   which a parameter does not lead to.
//! * Of the hot view (what ended lately) most runs were made lately. The others took long; they stand in an index of their
//!   own, of which one answer looks at a part and its cursor leads on.
//! * Names of groups and numbers of revisions are joined to what is shown only.
//!
//! What remains (labels, triggers, times that runs are about) is looked for from the newest run on, or by the index of
//! labels.

use chrono::TimeDelta;
use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::state::RunState;
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{Postgres, QueryBuilder, Row};
use uuid::Uuid;

use super::RunRow;
use crate::change::Page;
use crate::pages::BEGIN_IN_ORDER;
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// Which runs; empty and `None` mean any.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    /// Of these groups.
    pub groups: Vec<String>,
    /// In one of these states, by number.
    pub states: Vec<i16>,
    /// By one of these triggers, by number.
    pub triggers: Vec<i16>,
    /// With these labels, all of them; `None`: whatever the value.
    pub labels: Vec<(String, Option<String>)>,
    /// Created from here, inclusive.
    pub from: Option<Time>,
    /// Created to here, inclusive.
    pub to: Option<Time>,
    /// With a logical time from here, inclusive.
    pub logical_from: Option<Time>,
    /// With a logical time to here, inclusive.
    pub logical_to: Option<Time>,
    /// Created before this run (the cursor).
    pub before: Option<RunId>,
    /// These.
    pub ids: Vec<Uuid>,
    /// With ids between these, both included.
    pub id_range: Option<(Uuid, Uuid)>,
    /// Of revisions with a task for one of these queues.
    pub queues: Vec<String>,
    /// Of revisions with a task for one of these scripts, `name` or `name@version`.
    pub scripts: Vec<String>,
    /// By this backfill, or reruns of this run.
    pub source: Option<Uuid>,
    /// Sub-runs of this run.
    pub parent: Option<RunId>,
    /// With this key.
    pub key: Option<String>,
    /// Of those that have ended, only if they did so since then.
    pub ended_since: Option<Time>,
}

/// Up to so many groups are read each from the index of its runs: each look costs something for every day that is kept.
/// The runs of more are looked for among all, from the newest on; many groups have run lately.
const GROUPS_EACH: usize = 30;

/// Runs that took longer than this stand in an index of their own (migration 0062, `runs_done_long`): of what was made long
/// before the hot view began, no others can have ended in it.
const LONG: TimeDelta = TimeDelta::hours(1);

/// By so much may the millisecond that an id begins with differ from the time at which its run was made.
const ID_SLACK: TimeDelta = TimeDelta::minutes(1);

/// So many of those one answer looks at; if there are more, its cursor leads on to them.
const LONG_LOOKED_AT: i64 = 5_000;

/// A live run's columns, in the order of [`DONE`].
const LIVE: &str = "l.id, l.group_id, l.revision_id, l.resolution_id, l.state, l.trigger, l.priority, l.logical_time, \
    l.interval_start, l.interval_end, l.params, l.task_params, l.labels, l.key, l.callback, l.created_at, l.started_at, \
    l.deadline_at, l.parent_run, l.source, l.waiting_for, l.progress, NULL::timestamptz AS finished_at, \
    NULL::text AS error, NULL::smallint AS skipped";

/// An ended run's.
const DONE: &str = "l.id, l.group_id, l.revision_id, l.resolution_id, l.state, l.trigger, l.priority, l.logical_time, \
    l.interval_start, l.interval_end, l.params, l.task_params, l.labels, l.key, l.callback, l.created_at, l.started_at, \
    l.deadline_at, l.parent_run, l.source, NULL::jsonb AS waiting_for, l.progress, l.finished_at, l.error, l.skipped";

/// A filter with what its names mean.
struct Sought<'f> {
    filter: &'f RunFilter,
    /// The groups that it names, or that use its queues and scripts; of these their runs are read one group after the
    /// other.
    groups: Option<Vec<i64>>,
    /// Too many groups for that.
    many_groups: Option<Vec<i64>>,
    /// Revisions that use its queues and scripts. There are as many as specs have been changed, however many runs.
    revisions: Option<Vec<i64>>,
    /// Where a version is asked for: sets of resolved scripts that have it.
    resolutions: Option<Vec<i64>>,
    /// The runs that have its key.
    keyed: Option<Vec<Uuid>>,
}

impl Sought<'_> {
    /// Whether long lists of ids stand in it, for which a plan is made each time: an array that the planner sees becomes a
    /// hash table.
    fn is_long(&self) -> bool {
        self.many_groups.is_some() || self.revisions.as_ref().is_some_and(|ids| ids.len() > GROUPS_EACH)
    }
}

/// Which of the ended runs of the hot view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hot {
    /// It is not asked for.
    Any,
    /// Those that ended `since` and were made since `from` or later: in the hot view, or shortly before.
    Made { from: Time, since: Time },
    /// Those that ended `since` and were made before `from`, down to the run `floor`.
    Long {
        from: Time,
        since: Time,
        floor: Option<Uuid>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Table {
    Live,
    Done,
}

/// A part of the statement: one table, and if states are asked for, one of these.
#[derive(Clone, Copy, Debug)]
struct Arm {
    table: Table,
    state: Option<RunState>,
    hot: Hot,
}

impl Store {
    /// Runs, newest first, up to `limit`. Of the hot view there may be fewer on a page that another one follows.
    pub async fn runs(&self, filter: &RunFilter, limit: i64) -> Result<Page<RunRow>, StoreError> {
        let key = |row: &RunRow| row.id.to_string();
        let Some(sought) = self.sought(filter).await? else {
            return Ok(Page::of(Vec::new(), limit, key));
        };
        let one_more = limit.saturating_add(1);
        let Some(since) = filter.ended_since else {
            let rows = self.runs_of(&sought, &[Hot::Any], one_more).await?;
            return Ok(Page::of(rows, limit, key));
        };
        let from = since - LONG - ID_SLACK;
        let made = Hot::Made { from, since };
        let rows = self.runs_of(&sought, &[made], one_more).await?;
        // With as many as were asked for, all of them made since, none that was made before is missing.
        let full = rows.len() as i64 == one_more && rows.last().is_some_and(|row| row.created_at >= from);
        if full {
            return Ok(Page::of(rows, limit, key));
        }
        let floor = self.long_floor(from, filter.before).await?;
        let mut rows = self
            .runs_of(&sought, &[made, Hot::Long { from, since, floor }], one_more)
            .await?;
        // What lives and is older comes on a later page, with what ended and is as old.
        rows.retain(|row| floor.is_none_or(|floor| row.id >= floor));
        let mut page = Page::of(rows, limit, key);
        if page.next.is_none() {
            page.next = floor.map(|floor| floor.to_string());
        }
        Ok(page)
    }

    /// Down to which run those are looked at that took long and were made before `from`; `None`: there are no more.
    async fn long_floor(&self, from: Time, before: Option<RunId>) -> Result<Option<Uuid>, StoreError> {
        let last = sqlx::query_scalar!(
            "SELECT d.id FROM heddle.runs_done d
              WHERE d.finished_at - d.created_at > interval '1 hour'
                AND d.id < heddle.uuid_floor($1) AND d.id < $2
              ORDER BY d.id DESC OFFSET $3 LIMIT 2",
            from,
            before.map_or(Uuid::max(), |before| before.0),
            LONG_LOOKED_AT - 1
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(match last.as_slice() {
            [floor, _] => Some(*floor),
            _ => None,
        })
    }

    async fn runs_of(&self, sought: &Sought<'_>, hot: &[Hot], limit: i64) -> Result<Vec<RunRow>, StoreError> {
        let mut query = QueryBuilder::<Postgres>::new("SELECT l.*, g.name AS group_name, r.revision FROM (");
        push_arms(&mut query, sought, hot, (LIVE, DONE), limit);
        query.push(
            ") AS l JOIN heddle.groups g ON g.id = l.group_id JOIN heddle.revisions r ON r.id = l.revision_id
              ORDER BY l.id DESC",
        );
        let rows = self.found(&mut query, sought).await?;
        rows.iter().map(RunRow::read).collect()
    }

    /// Ids, states and revisions only, newest first, up to `limit`: for bulk actions.
    pub async fn run_states(&self, filter: &RunFilter, limit: i64) -> Result<Vec<(RunId, RunState, i64)>, StoreError> {
        let Some(sought) = self.sought(filter).await? else {
            return Ok(Vec::new());
        };
        let mut query = QueryBuilder::<Postgres>::new("");
        let columns = "l.id, l.state, l.revision_id";
        push_arms(&mut query, &sought, &[Hot::Any], (columns, columns), limit);
        let rows = self.found(&mut query, &sought).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in rows {
            let number: i16 = row.try_get(1)?;
            let id = RunId(row.try_get(0)?);
            let state = StoreError::known(RunState::from_number, number, ("runs", "state"), id)?;
            found.push((id, state, row.try_get(2)?));
        }
        Ok(found)
    }

    async fn found(&self, query: &mut QueryBuilder<Postgres>, sought: &Sought<'_>) -> Result<Vec<PgRow>, StoreError> {
        let query = query.build().persistent(!sought.is_long());
        if sought.groups.is_none() {
            return Ok(query.fetch_all(&self.pool).await?);
        }
        transaction!(self, pool, "runs", once(BEGIN_IN_ORDER), |tx| {
            let rows = query.fetch_all(&mut *tx).await?;
            tx.commit().await?;
            Ok(rows)
        })
    }

    /// Looks up what a filter names; `None`: there is nothing of what it asks for.
    async fn sought<'f>(&self, filter: &'f RunFilter) -> Result<Option<Sought<'f>>, StoreError> {
        let mut groups = None;
        if !filter.groups.is_empty() {
            // Groups that were deleted and made again have one name and several ids.
            let ids = sqlx::query_scalar!(
                r#"SELECT id AS "id!" FROM heddle.groups WHERE name = ANY ($1) AND deleted_at IS NULL
                   UNION ALL SELECT id FROM heddle.groups WHERE name = ANY ($1) AND deleted_at IS NOT NULL"#,
                &filter.groups
            )
            .fetch_all(&self.pool)
            .await?;
            groups = Some(ids);
        }
        let (mut revisions, mut resolutions) = (None, None);
        if !filter.queues.is_empty() || !filter.scripts.is_empty() {
            let used = self.users_of(filter).await?;
            let mut using: Vec<i64> = used.iter().map(|(_, group)| *group).collect();
            using.sort_unstable();
            using.dedup();
            groups = Some(match groups {
                Some(named) => named.into_iter().filter(|id| using.binary_search(id).is_ok()).collect(),
                None => using,
            });
            let ids: Vec<i64> = used.into_iter().map(|(revision, _)| revision).collect();
            if filter.scripts.iter().any(|script| script.contains('@')) {
                resolutions = Some(self.resolved(&ids, &filter.scripts).await?);
            }
            revisions = Some(ids);
        }
        let mut keyed = None;
        if let Some(key) = &filter.key {
            let runs = sqlx::query_scalar!("SELECT run FROM heddle.run_keys WHERE key = $1", key)
                .fetch_all(&self.pool)
                .await?;
            keyed = Some(runs);
        }
        let nothing = |ids: &Option<Vec<i64>>| ids.as_ref().is_some_and(Vec::is_empty);
        if nothing(&groups) || nothing(&resolutions) || keyed.as_ref().is_some_and(Vec::is_empty) {
            return Ok(None);
        }
        let (groups, many_groups) = match groups {
            // One revision of these tells the group as well.
            Some(ids) if ids.len() > GROUPS_EACH && revisions.is_none() => (None, Some(ids)),
            Some(ids) if ids.len() > GROUPS_EACH && filter.groups.is_empty() => (None, None),
            Some(ids) if ids.len() > GROUPS_EACH => (None, Some(ids)),
            groups => (groups, None),
        };
        Ok(Some(Sought {
            filter,
            groups,
            many_groups,
            revisions,
            resolutions,
            keyed,
        }))
    }

    /// The revisions that a filter's queues and scripts mean, each with its group.
    async fn users_of(&self, filter: &RunFilter) -> Result<Vec<(i64, i64)>, StoreError> {
        // `name` means every version; `name@3` what a run resolved to it, whether its spec pins it or not.
        let names: Vec<String> = filter
            .scripts
            .iter()
            .map(|script| script.split('@').next().unwrap_or_default().to_owned())
            .collect();
        // As specs write them: a script that was deleted keeps its row, and with it its versions.
        let scripts = if names.is_empty() {
            Vec::new()
        } else {
            sqlx::query_scalar!(
                r#"SELECT s.name AS "written!" FROM heddle.scripts s WHERE s.name = ANY ($1)
                   UNION ALL
                   SELECT s.name || '@' || v.version FROM heddle.scripts s
                    CROSS JOIN LATERAL generate_series(1, s.last_version) AS v (version) WHERE s.name = ANY ($1)"#,
                &names
            )
            .fetch_all(&self.pool)
            .await?
        };
        // The expressions are those of the indexes of migration 0062.
        let rows = match (filter.queues.is_empty(), filter.scripts.is_empty()) {
            (false, true) => {
                let rows = sqlx::query!(
                    "SELECT r.id, r.group_id FROM heddle.revisions r
                      WHERE jsonb_path_query_array(r.spec, '$.tasks.*.queue') ?| $1",
                    &filter.queues
                );
                let rows = rows.fetch_all(&self.pool).await?;
                rows.into_iter().map(|row| (row.id, row.group_id)).collect()
            }
            (true, false) => {
                let rows = sqlx::query!(
                    "SELECT r.id, r.group_id FROM heddle.revisions r
                      WHERE jsonb_path_query_array(r.spec, '$.tasks.*.script') ?| $1",
                    &scripts
                );
                let rows = rows.fetch_all(&self.pool).await?;
                rows.into_iter().map(|row| (row.id, row.group_id)).collect()
            }
            _ => {
                let rows = sqlx::query!(
                    "SELECT r.id, r.group_id FROM heddle.revisions r
                      WHERE jsonb_path_query_array(r.spec, '$.tasks.*.queue') ?| $1
                        AND jsonb_path_query_array(r.spec, '$.tasks.*.script') ?| $2",
                    &filter.queues,
                    &scripts
                );
                let rows = rows.fetch_all(&self.pool).await?;
                rows.into_iter().map(|row| (row.id, row.group_id)).collect()
            }
        };
        Ok(rows)
    }

    /// Sets of resolved scripts of these revisions that have one of these scripts, by name or by name and version.
    async fn resolved(&self, revisions: &[i64], scripts: &[String]) -> Result<Vec<i64>, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT o.id FROM heddle.resolutions o
                WHERE o.revision_id = ANY ($1)
                  AND EXISTS (SELECT FROM jsonb_each(o.scripts) AS t
                               WHERE t.value->>'script' = ANY ($2)
                                  OR (t.value->>'script') || '@' || (t.value->>'version') = ANY ($2))"#,
            revisions,
            scripts
        )
        .fetch_all(&self.pool)
        .await?)
    }
}

/// All that is found in both tables, newest first, up to `limit`.
fn push_arms(
    query: &mut QueryBuilder<Postgres>,
    sought: &Sought<'_>,
    hot: &[Hot],
    (live, done): (&'static str, &'static str),
    limit: i64,
) {
    let mut arms = Vec::new();
    let states: Vec<Option<RunState>> = match sought.filter.states.as_slice() {
        [] => vec![None],
        numbers => RunState::ALL
            .iter()
            .filter(|state| numbers.contains(&state.number()))
            .map(|state| Some(*state))
            .collect(),
    };
    for state in states {
        if state.is_none_or(|state| !state.is_final()) {
            arms.push(Arm {
                table: Table::Live,
                state,
                hot: Hot::Any,
            });
        }
        if state.is_none_or(RunState::is_final) {
            arms.extend(hot.iter().map(|hot| Arm {
                table: Table::Done,
                state,
                hot: *hot,
            }));
        }
    }
    if sought.groups.is_some() {
        query.push("WITH w AS MATERIALIZED (SELECT first, after FROM heddle.look_back) ");
    }
    query.push("SELECT * FROM (");
    for (place, arm) in arms.into_iter().enumerate() {
        if place > 0 {
            query.push(" UNION ALL ");
        }
        let columns = match arm.table {
            Table::Live => live,
            Table::Done => done,
        };
        push_arm(query, sought, arm, columns, limit);
    }
    query.push(") AS runs ORDER BY id DESC LIMIT ").push_bind(limit);
}

fn push_arm(query: &mut QueryBuilder<Postgres>, sought: &Sought<'_>, arm: Arm, columns: &'static str, limit: i64) {
    let table = match arm.table {
        Table::Live => "heddle.runs_live",
        Table::Done => "heddle.runs_done",
    };
    // Those that took long are few, of all groups together.
    let is_long = matches!(arm.hot, Hot::Long { .. });
    let each = sought.groups.as_ref().filter(|_| !is_long);
    if let Some(groups) = each {
        query
            .push("(SELECT own.* FROM UNNEST(")
            .push_bind(groups.clone())
            .push("::bigint[]) AS named (id) CROSS JOIN LATERAL ");
    }
    let order = match each {
        Some(_) => " ORDER BY l.group_id DESC, l.id DESC LIMIT ",
        None => " ORDER BY l.id DESC LIMIT ",
    };
    // One span of the past after the other, until there are enough.
    let by_spans = each.is_some() && arm.table == Table::Done;
    if by_spans {
        query.push("(SELECT o.* FROM w CROSS JOIN LATERAL ");
    }
    query.push(format!("(SELECT {columns} FROM {table} l WHERE true"));
    if each.is_some() {
        query.push(" AND l.group_id = ANY (ARRAY[named.id])");
    }
    if by_spans {
        query.push(" AND l.id >= w.first AND l.id < w.after");
    }
    match arm.hot {
        Hot::Any => {}
        Hot::Made { from, since } => {
            query.push(" AND l.id >= heddle.uuid_floor(").push_bind(from);
            query.push(") AND l.finished_at >= ").push_bind(since);
        }
        Hot::Long { from, since, floor } => {
            query.push(" AND l.finished_at - l.created_at > interval '1 hour'");
            query.push(" AND l.id < heddle.uuid_floor(").push_bind(from);
            query.push(") AND l.finished_at >= ").push_bind(since);
            if let Some(floor) = floor {
                query.push(" AND l.id >= ").push_bind(floor);
            }
            if let Some(groups) = &sought.groups {
                push_groups(query, groups);
            }
        }
    }
    if let Some(state) = arm.state {
        query.push(format!(" AND l.state = {}", state.number()));
    }
    push_conditions(query, sought);
    query.push(order).push_bind(limit).push(")");
    if by_spans {
        query.push(" AS o LIMIT ").push_bind(limit).push(")");
    }
    if each.is_some() {
        query
            .push(" AS own ORDER BY own.id DESC LIMIT ")
            .push_bind(limit)
            .push(")");
    }
}

/// Of these groups, but not by the index of groups, which would read all that they have (`+ 0`).
fn push_groups(query: &mut QueryBuilder<Postgres>, groups: &[i64]) {
    query
        .push(" AND l.group_id + 0 = ANY (")
        .push_bind(groups.to_vec())
        .push(")");
}

/// What is asked of a run's row, beside its group and its state.
fn push_conditions(query: &mut QueryBuilder<Postgres>, sought: &Sought<'_>) {
    let filter = sought.filter;
    if let Some(groups) = &sought.many_groups {
        push_groups(query, groups);
    }
    if let Some(revisions) = &sought.revisions {
        query
            .push(" AND l.revision_id = ANY (")
            .push_bind(revisions.clone())
            .push(")");
    }
    if let Some(resolutions) = &sought.resolutions {
        query
            .push(" AND l.resolution_id = ANY (")
            .push_bind(resolutions.clone())
            .push(")");
    }
    if let Some(runs) = &sought.keyed {
        query.push(" AND l.id = ANY (").push_bind(runs.clone()).push(")");
    }
    if let Some((first, last)) = filter.id_range {
        query
            .push(" AND l.id BETWEEN ")
            .push_bind(first)
            .push(" AND ")
            .push_bind(last);
    }
    if !filter.ids.is_empty() {
        query.push(" AND l.id = ANY (").push_bind(filter.ids.clone()).push(")");
    }
    if !filter.triggers.is_empty() {
        query
            .push(" AND l.trigger = ANY (")
            .push_bind(filter.triggers.clone())
            .push(")");
    }
    let valued = filter
        .labels
        .iter()
        .filter_map(|(key, value)| Some((key.clone(), Value::from(value.clone()?))));
    let valued: serde_json::Map<String, Value> = valued.collect();
    if !valued.is_empty() {
        query
            .push(" AND l.labels IS NOT NULL AND l.labels @> ")
            .push_bind(Value::Object(valued));
    }
    for (key, _) in filter.labels.iter().filter(|(_, value)| value.is_none()) {
        query
            .push(" AND l.labels IS NOT NULL AND l.labels ? ")
            .push_bind(key.clone());
    }
    push_times(query, filter);
    if let Some(before) = filter.before {
        query.push(" AND l.id < ").push_bind(before.0);
    }
    if let Some(source) = filter.source {
        query.push(" AND l.source = ").push_bind(source);
    }
    if let Some(parent) = filter.parent {
        query.push(" AND l.parent_run = ").push_bind(parent.0);
    }
}

fn push_times(query: &mut QueryBuilder<Postgres>, filter: &RunFilter) {
    // Ids begin with the millisecond of their creation: bounds on them prune partitions.
    if let Some(from) = filter.from {
        query
            .push(" AND l.id >= heddle.uuid_floor(")
            .push_bind(from)
            .push(") AND l.created_at >= ")
            .push_bind(from);
    }
    if let Some(to) = filter.to {
        let after = to + TimeDelta::milliseconds(1);
        query
            .push(" AND l.id < heddle.uuid_floor(")
            .push_bind(after)
            .push(") AND l.created_at <= ")
            .push_bind(to);
    }
    if let Some(from) = filter.logical_from {
        query.push(" AND l.logical_time >= ").push_bind(from);
    }
    if let Some(to) = filter.logical_to {
        query.push(" AND l.logical_time <= ").push_bind(to);
    }
}
