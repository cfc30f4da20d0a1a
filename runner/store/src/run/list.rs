//! Lists of runs, by what people filter them by.

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::state::RunState;
use serde_json::Value;
use sqlx::{Postgres, QueryBuilder, Row};
use uuid::Uuid;

use super::{DONE_COLUMNS, JOINS, LIVE_COLUMNS, RunRow};
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

/// What uses the queues and scripts of a filter. There are as many revisions as specs have been changed, however many
/// runs; with the groups the index of their runs is used.
struct Users {
    groups: Vec<i64>,
    revisions: Vec<i64>,
    /// Where a version is asked for: sets of resolved scripts that have it.
    resolutions: Option<Vec<i64>>,
}

impl Store {
    /// Runs, newest first, up to `limit`.
    pub async fn runs(&self, filter: &RunFilter, limit: i64) -> Result<Vec<RunRow>, StoreError> {
        let used = self.users_of(filter).await?;
        let mut query = QueryBuilder::<Postgres>::new("SELECT * FROM (");
        self.push_runs(
            &mut query,
            "heddle.runs_live",
            LIVE_COLUMNS,
            (filter, used.as_ref()),
            limit,
        );
        query.push(" UNION ALL ");
        self.push_runs(
            &mut query,
            "heddle.runs_done",
            DONE_COLUMNS,
            (filter, used.as_ref()),
            limit,
        );
        query.push(") AS runs ORDER BY id DESC LIMIT ").push_bind(limit);
        query
            .build()
            .fetch_all(&self.pool)
            .await?
            .iter()
            .map(RunRow::read)
            .collect()
    }

    /// Ids, states and revisions only, newest first, up to `limit`: for bulk actions.
    pub async fn run_states(&self, filter: &RunFilter, limit: i64) -> Result<Vec<(RunId, RunState, i64)>, StoreError> {
        let used = self.users_of(filter).await?;
        let filter = (filter, used.as_ref());
        let mut query = QueryBuilder::<Postgres>::new("SELECT id, state, revision_id FROM (");
        self.push_runs(
            &mut query,
            "heddle.runs_live",
            "l.id, l.state, l.revision_id",
            filter,
            limit,
        );
        query.push(" UNION ALL ");
        self.push_runs(
            &mut query,
            "heddle.runs_done",
            "l.id, l.state, l.revision_id",
            filter,
            limit,
        );
        query.push(") AS runs ORDER BY id DESC LIMIT ").push_bind(limit);
        let rows = query.build().fetch_all(&self.pool).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in rows {
            let number: i16 = row.try_get(1)?;
            let id = RunId(row.try_get(0)?);
            let state = StoreError::known(RunState::from_number, number, ("runs", "state"), id)?;
            found.push((id, state, row.try_get(2)?));
        }
        Ok(found)
    }

    /// The revisions that a filter's queues and scripts mean; `None`: it names none.
    async fn users_of(&self, filter: &RunFilter) -> Result<Option<Users>, StoreError> {
        if filter.queues.is_empty() && filter.scripts.is_empty() {
            return Ok(None);
        }
        // `name` means every version; `name@3` what a run resolved to it, whether its spec pins it or not.
        let names: Vec<String> = filter
            .scripts
            .iter()
            .map(|script| script.split('@').next().unwrap_or_default().to_owned())
            .collect();
        let rows = sqlx::query!(
            r#"SELECT r.id, r.group_id
                 FROM heddle.revisions r
                WHERE (cardinality($1::text[]) = 0 OR EXISTS (
                          SELECT FROM jsonb_each(r.spec->'tasks') AS t WHERE t.value->>'queue' = ANY ($1)))
                  AND (cardinality($2::text[]) = 0 OR EXISTS (
                          SELECT FROM jsonb_each(r.spec->'tasks') AS t
                           WHERE split_part(t.value->>'script', '@', 1) = ANY ($2)))"#,
            &filter.queues,
            &names
        )
        .fetch_all(&self.pool)
        .await?;
        let revisions: Vec<i64> = rows.iter().map(|row| row.id).collect();
        let mut groups: Vec<i64> = rows.iter().map(|row| row.group_id).collect();
        groups.sort_unstable();
        groups.dedup();
        let resolutions = match filter.scripts.iter().any(|script| script.contains('@')) {
            false => None,
            true => Some(
                sqlx::query_scalar!(
                    r#"SELECT o.id FROM heddle.resolutions o
                        WHERE o.revision_id = ANY ($1)
                          AND EXISTS (SELECT FROM jsonb_each(o.scripts) AS t
                                       WHERE t.value->>'script' = ANY ($2)
                                          OR (t.value->>'script') || '@' || (t.value->>'version') = ANY ($2))"#,
                    &revisions,
                    &filter.scripts
                )
                .fetch_all(&self.pool)
                .await?,
            ),
        };
        Ok(Some(Users {
            groups,
            revisions,
            resolutions,
        }))
    }

    fn push_runs(
        &self,
        query: &mut QueryBuilder<Postgres>,
        table: &'static str,
        columns: &'static str,
        (filter, used): (&RunFilter, Option<&Users>),
        limit: i64,
    ) {
        query
            .push("(SELECT ")
            .push(columns)
            .push(format!(" FROM {table} l"))
            .push(JOINS)
            .push("WHERE true");
        if !filter.groups.is_empty() {
            // The group's id first: the index on (group_id, id) then gives the order.
            query.push(" AND l.group_id IN (SELECT id FROM heddle.groups WHERE name = ANY (");
            query.push_bind(filter.groups.clone()).push("))");
        }
        if let Some(Users {
            groups,
            revisions,
            resolutions,
        }) = used
        {
            query.push(" AND l.group_id = ANY (").push_bind(groups.clone());
            query
                .push(") AND l.revision_id = ANY (")
                .push_bind(revisions.clone())
                .push(")");
            if let Some(resolutions) = resolutions {
                query
                    .push(" AND l.resolution_id = ANY (")
                    .push_bind(resolutions.clone())
                    .push(")");
            }
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
        if !filter.states.is_empty() {
            query
                .push(" AND l.state = ANY (")
                .push_bind(filter.states.clone())
                .push(")");
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
        // Ids begin with the millisecond of their creation: bounds on them prune partitions.
        if let Some(from) = filter.from {
            query
                .push(" AND l.id >= heddle.uuid_floor(")
                .push_bind(from)
                .push(") AND l.created_at >= ")
                .push_bind(from);
        }
        if let Some(to) = filter.to {
            let after = to + chrono::TimeDelta::milliseconds(1);
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
        if let Some(before) = filter.before {
            query.push(" AND l.id < ").push_bind(before.0);
        }
        if let Some(source) = filter.source {
            query.push(" AND l.source = ").push_bind(source);
        }
        if let Some(parent) = filter.parent {
            query.push(" AND l.parent_run = ").push_bind(parent.0);
        }
        if let Some(key) = &filter.key {
            query.push(" AND l.key = ").push_bind(key.clone());
        }
        if let (Some(since), "heddle.runs_done") = (filter.ended_since, table) {
            query.push(" AND l.finished_at >= ").push_bind(since);
        }
        query.push(" ORDER BY l.id DESC LIMIT ").push_bind(limit).push(")");
    }
}
