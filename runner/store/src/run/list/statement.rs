//! The statements: an arm for each table and each wanted state; all results together, newest first.

use heddle_domain::Time;
use heddle_domain::state::RunState;
use serde_json::Value;
use sqlx::{Postgres, QueryBuilder};
use uuid::Uuid;

use super::sought::{CLOCKS_DIFFER, Sought, Users};
use crate::database::column;
use crate::labels::Labels;
use crate::span::{self, ID_SLACK, Span};

/// Which of the ended runs of the hot view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hot {
    /// The filter does not ask for the hot view.
    Any,
    /// Those that ended since `since` and were created since `from`: in the hot view, or shortly before.
    Made { from: Time, since: Time },
    /// Those that ended since `since` and were created before `from`, down to the run `floor`.
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

/// A part of the statement: one table, and one state if the filter names states.
#[derive(Clone, Copy, Debug)]
struct Arm {
    table: Table,
    state: Option<RunState>,
    hot: Hot,
}

/// Which part of the wanted runs a statement finds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'p> {
    /// Columns of a live run's row `l`, and the same of one that has ended.
    pub(super) columns: (&'static str, &'static str),
    pub(super) hot: &'p [Hot],
    /// The part of the past: for ended runs, and if `live_in_span`, also for live ones.
    pub(super) span: Option<Span>,
    /// Whether live runs are found, whenever they were created.
    pub(super) live: bool,
    pub(super) live_in_span: bool,
    /// Whether conditions without an index are left to the caller; otherwise they are checked too.
    pub(super) bare: bool,
    pub(super) limit: i64,
}

/// All results of both tables, newest first, up to the limit.
pub(super) fn push_part(query: &mut QueryBuilder<Postgres>, sought: &Sought<'_>, part: Part<'_>) {
    let mut arms = Vec::new();
    let states: Vec<Option<RunState>> = match sought.filter.states.as_slice() {
        [] => vec![None],
        asked => {
            let once_each = RunState::ALL.iter().filter(|state| asked.contains(state));
            once_each.map(|state| Some(*state)).collect()
        }
    };
    for state in states {
        if part.live && state.is_none_or(|state| !state.is_final()) {
            arms.push(Arm {
                table: Table::Live,
                state,
                hot: Hot::Any,
            });
        }
        if state.is_none_or(RunState::is_final) {
            arms.extend(part.hot.iter().map(|hot| Arm {
                table: Table::Done,
                state,
                hot: *hot,
            }));
        }
    }
    query.push("SELECT * FROM (");
    let (live, done) = part.columns;
    if arms.is_empty() {
        query.push(format!("SELECT {done} FROM heddle.runs_done l WHERE false"));
    }
    for (index, arm) in arms.into_iter().enumerate() {
        if index > 0 {
            query.push(" UNION ALL ");
        }
        let columns = match arm.table {
            Table::Live => live,
            Table::Done => done,
        };
        push_arm(query, sought, arm, columns, part);
    }
    query.push(") AS runs ORDER BY id DESC LIMIT ").push_bind(part.limit);
}

fn push_arm(query: &mut QueryBuilder<Postgres>, sought: &Sought<'_>, arm: Arm, columns: &'static str, part: Part<'_>) {
    let table = match arm.table {
        Table::Live => "heddle.runs_live",
        Table::Done => "heddle.runs_done",
    };
    // Runs that took long are few, in all groups together.
    let is_long = matches!(arm.hot, Hot::Long { .. });
    let source = sought.filter.source;
    let each = sought.groups.as_ref().filter(|_| !is_long && source.is_none());
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
    match source {
        None => query.push(format!("(SELECT {columns} FROM {table} l WHERE true")),
        Some(source) => {
            query.push(format!("(SELECT {columns} FROM ("));
            push_source(query, table, source);
            query.push(") AS l WHERE true")
        }
    };
    if let (Some(groups), Some(_), false) = (&sought.groups, source, is_long) {
        push_groups(query, groups);
    }
    if each.is_some() {
        query.push(" AND l.group_id = ANY (ARRAY[named.id])");
    }
    if let Some(span) = part.span
        && (arm.table == Table::Done || part.live_in_span)
    {
        push_span(query, span);
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
    push_reach(query, sought);
    if !part.bare {
        push_checks(query, sought);
        push_users(query, sought);
    }
    query.push(order).push_bind(part.limit).push(")");
    if each.is_some() {
        query
            .push(" AS own ORDER BY own.id DESC LIMIT ")
            .push_bind(part.limit)
            .push(")");
    }
}

/// The runs that something made: by the index of sources and by no other, all that there are (`OFFSET 0`). In the order
/// of ids the planner would look for them among all runs, because it believes that there are many of them everywhere. None is
/// older than what made it.
fn push_source(query: &mut QueryBuilder<Postgres>, table: &str, source: Uuid) {
    query
        .push(format!("SELECT * FROM {table} WHERE source = "))
        .push_bind(source);
    if let Some(made) = span::made(source) {
        query
            .push(" AND id >= heddle.uuid_floor(")
            .push_bind((made - CLOCKS_DIFFER).max(Time::UNIX_EPOCH))
            .push(")");
    }
    query.push(" OFFSET 0");
}

pub(super) fn push_span(query: &mut QueryBuilder<Postgres>, span: Span) {
    query.push(" AND l.id >= ").push_bind(span.first);
    query.push(" AND l.id < ").push_bind(span.after);
}

/// Runs of these groups, but not by the index of groups (`+ 0`), which would read all their runs.
fn push_groups(query: &mut QueryBuilder<Postgres>, groups: &[i64]) {
    query
        .push(" AND l.group_id + 0 = ANY (")
        .push_bind(groups.to_vec())
        .push(")");
}

/// The conditions on the id, or with an index.
pub(super) fn push_reach(query: &mut QueryBuilder<Postgres>, sought: &Sought<'_>) {
    let filter = sought.filter;
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
    // Ids begin with about the millisecond of their creation: bounds on them prune partitions.
    if let Some(from) = filter.from {
        query
            .push(" AND l.id >= heddle.uuid_floor(")
            .push_bind(from - ID_SLACK)
            .push(") AND l.created_at >= ")
            .push_bind(from);
    }
    if let Some(to) = filter.to {
        query
            .push(" AND l.id < heddle.uuid_floor(")
            .push_bind(to + ID_SLACK)
            .push(") AND l.created_at <= ")
            .push_bind(to);
    }
    if let Some(before) = filter.before {
        query.push(" AND l.id < ").push_bind(before.0);
    }
}

/// The conditions that need a run's row.
pub(super) fn push_checks(query: &mut QueryBuilder<Postgres>, sought: &Sought<'_>) {
    let filter = sought.filter;
    if let Some(groups) = &sought.many_groups {
        push_groups(query, groups);
    }
    if !filter.triggers.is_empty() {
        query
            .push(" AND l.trigger = ANY (")
            .push_bind(column(&filter.triggers, |trigger| trigger.number()))
            .push(")");
    }
    push_labels(query, sought);
    if let Some(from) = filter.logical_from {
        query.push(" AND l.logical_time >= ").push_bind(from);
    }
    if let Some(to) = filter.logical_to {
        query.push(" AND l.logical_time <= ").push_bind(to);
    }
}

/// The condition on the states.
pub(super) fn push_states(query: &mut QueryBuilder<Postgres>, sought: &Sought<'_>) {
    let states = &sought.filter.states;
    if !states.is_empty() {
        let numbers = column(states, |state| state.number());
        query.push(" AND l.state = ANY (").push_bind(numbers).push(")");
    }
}

pub(super) fn push_labels(query: &mut QueryBuilder<Postgres>, sought: &Sought<'_>) {
    let Labels { valued, named } = &sought.labels;
    if !valued.is_empty() {
        query
            .push(" AND l.labels IS NOT NULL AND l.labels @> ")
            .push_bind(Value::Object(valued.clone()));
    }
    for name in named {
        query
            .push(" AND l.labels IS NOT NULL AND l.labels ? ")
            .push_bind(name.clone());
    }
}

/// Whether a run's revision uses the queues and scripts of the filter.
fn push_users(query: &mut QueryBuilder<Postgres>, sought: &Sought<'_>) {
    let written = match &sought.users {
        None => return,
        Some(Users::Few { revisions, resolutions }) => {
            query
                .push(" AND l.revision_id = ANY (")
                .push_bind(revisions.clone())
                .push(")");
            if let Some(resolutions) = resolutions {
                query
                    .push(" AND l.resolution_id = ANY (")
                    .push_bind(resolutions.clone())
                    .push(")");
            }
            return;
        }
        Some(Users::Many { written }) => written,
    };
    // `IS TRUE` makes a hash table of them. An array would be compared with the statistics of each day, element by
    // element, during planning.
    query.push(" AND (l.revision_id IN (SELECT r.id FROM heddle.revisions r WHERE true");
    let filter = sought.filter;
    if !filter.queues.is_empty() {
        query
            .push(" AND jsonb_path_query_array(r.spec, '$.tasks.*.queue') ?| ")
            .push_bind(filter.queues.clone());
    }
    if !filter.scripts.is_empty() {
        query
            .push(" AND jsonb_path_query_array(r.spec, '$.tasks.*.script') ?| ")
            .push_bind(written.clone());
    }
    query.push(")) IS TRUE");
    if sought.is_of_versions() {
        query
            .push(
                " AND (l.resolution_id IN (SELECT o.id FROM heddle.resolutions o WHERE EXISTS
                   (SELECT FROM jsonb_each(o.scripts) AS t WHERE t.value->>'script' = ANY (",
            )
            .push_bind(filter.scripts.clone())
            .push(") OR (t.value->>'script') || '@' || (t.value->>'version') = ANY (")
            .push_bind(filter.scripts.clone())
            .push(")))) IS TRUE");
    }
}
