//! Lists of runs, with the filters of people.
//!
//! The cost of a list depends on what it shows, not on how many runs are kept:
//!
//! * The names in a filter (groups, a key, queues, scripts) are looked up first; runs are then found by ids.
//! * The past is read one span after the other, the latest first ([`crate::span`]), each in its own statement, so that
//!   old days are neither planned for nor read while there are newer ones. All statements of an answer use one
//!   snapshot.
//! * Runs of groups are read from the newest end of the index of each group's runs. `= ANY (ARRAY[...])` leaves the
//!   planner no other plan: for a group that ran often it believes that reading all runs, newest first, soon finds
//!   enough of it; for a group that has not run lately that never happens.
//! * States are written into the text, one arm of the statement for each: the states other than success have their own
//!   indexes, which a parameter would not use.
//! * Most runs of the hot view (recently ended ones) were created recently. The others took long; they have their own
//!   index, of which one answer reads a part, and its cursor continues.
//! * Names of groups and numbers of revisions are joined only to what is shown.
//!
//! For other conditions (labels, triggers, logical times, scripts that many groups use), runs are searched from the
//! newest on, a bounded number for each answer ([`search`]).

mod filter;
mod search;
mod sought;
mod statement;

use chrono::TimeDelta;
use futures::future::BoxFuture;
use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::state::RunState;
use sqlx::{AssertSqlSafe, Postgres, QueryBuilder, Row};
use uuid::Uuid;

pub use self::filter::RunFilter;
use self::search::search;
use self::sought::{Sought, spans};
use self::statement::{Hot, Part, push_part};
use super::row::{DONE, JOINS, LIVE, NAMES, RunRow};
use crate::change::Page;
use crate::database::PgSession;
use crate::span::{self, BEGIN_ANEW, BEGIN_BY_SPANS, BEGIN_KEPT_IN_ORDER, ID_SLACK, Planning};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// Runs that took longer than this are in their own index (migration 0062, `runs_done_long`). Of the runs that were
/// created this long before the hot view, no others can have ended in it.
const LONG: TimeDelta = TimeDelta::hours(1);

/// How many of those one answer reads; if there are more, its cursor continues there.
const LONG_RUNS_READ_MAX: i64 = 5_000;

/// A run: its id, its state or the error that this version cannot read it, and the id of its revision.
pub type StateOfRun = (RunId, Result<RunState, StoreError>, i64);

impl Store {
    /// Runs, newest first, up to `limit`. A page of the hot view may have fewer, and still have a next page.
    ///
    /// The future is boxed, so that its large body is compiled once, and not again with each crate that lists runs.
    pub fn runs<'a>(&'a self, filter: &'a RunFilter, limit: i64) -> BoxFuture<'a, Result<Page<RunRow>, StoreError>> {
        Box::pin(self.list_runs(filter, limit))
    }

    async fn list_runs(&self, filter: &RunFilter, limit: i64) -> Result<Page<RunRow>, StoreError> {
        let key = |row: &RunRow| row.id.to_string();
        let Some(sought) = self.sought(filter).await? else {
            return Ok(Page::of(Vec::new(), limit, key));
        };
        let one_more = limit.saturating_add(1);
        let Some(since) = filter.ended_since else {
            if sought.is_search() {
                return self.searched(&sought, limit).await;
            }
            let rows = match sought.is_reached() {
                true => self.runs_of(&sought, &[Hot::Any], one_more).await?,
                false => self.newest(&sought, one_more).await?,
            };
            return Ok(Page::of(rows, limit, key));
        };
        let from = since - LONG - ID_SLACK;
        let made = Hot::Made { from, since };
        let rows = self.runs_of(&sought, &[made], one_more).await?;
        // If there are as many as requested, all created since then, no run that was created before is missing.
        let full = rows.len() as i64 == one_more && rows.last().is_some_and(|row| row.created_at >= from);
        if full {
            return Ok(Page::of(rows, limit, key));
        }
        let floor = self.long_floor(from, filter.before).await?;
        let mut rows = self
            .runs_of(&sought, &[made, Hot::Long { from, since, floor }], one_more)
            .await?;
        // Older live runs are on a later page, together with ended runs of the same age.
        rows.retain(|row| floor.is_none_or(|floor| row.id >= floor));
        let mut page = Page::of(rows, limit, key);
        if page.next.is_none() {
            page.next = floor.map(|floor| floor.to_string());
        }
        Ok(page)
    }

    /// The oldest of the runs to read that took long and were created before `from`; `None`: there are no more.
    async fn long_floor(&self, from: Time, before: Option<RunId>) -> Result<Option<Uuid>, StoreError> {
        let last = transaction!(self, reads, "long_floor", once(BEGIN_KEPT_IN_ORDER), |tx| {
            let last = sqlx::query_scalar!(
                "SELECT d.id FROM heddle.runs_done d
              WHERE d.finished_at - d.created_at > interval '1 hour'
                AND d.id < heddle.uuid_floor($1) AND d.id < $2
              ORDER BY d.id DESC OFFSET $3 LIMIT 2",
                from,
                before.map_or(Uuid::max(), |before| before.0),
                LONG_RUNS_READ_MAX - 1
            )
            .fetch_all(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(last)
        })?;
        Ok(match last.as_slice() {
            [floor, _] => Some(*floor),
            _ => None,
        })
    }

    async fn runs_of(&self, sought: &Sought<'_>, hot: &[Hot], limit: i64) -> Result<Vec<RunRow>, StoreError> {
        let all_days = matches!(hot, [.., Hot::Long { .. }]);
        let begin = match sought.is_reached() {
            true => BEGIN_ANEW,
            // Only the index of runs that took long may be used for these.
            false if all_days && sought.is_of_groups_only() => BEGIN_KEPT_IN_ORDER,
            false => BEGIN_BY_SPANS,
        };
        transaction!(self, reads, "runs", once(begin), |tx| {
            let part = Part { hot, ..whole(limit) };
            let rows = named(&mut tx, sought, part).await?;
            tx.commit().await?;
            Ok(rows)
        })
    }

    /// The newest runs, one span of the past after the other.
    async fn newest(&self, sought: &Sought<'_>, limit: i64) -> Result<Vec<RunRow>, StoreError> {
        transaction!(self, reads, "runs", once(BEGIN_BY_SPANS), |tx| {
            let ended = sought.filter.states.is_empty() || sought.filter.states.iter().any(|state| state.is_final());
            let mut all: Vec<RunRow> = Vec::new();
            let mut planning = Planning::default();
            for (index, span) in spans(sought, span::now(&mut tx).await?).into_iter().enumerate() {
                if sought.is_of_groups_only() {
                    planning.of(&mut tx, span).await?;
                }
                let part = Part {
                    span: Some(span),
                    live: index == 0,
                    ..whole(limit)
                };
                all.extend(named(&mut tx, sought, part).await?);
                let newer = all.iter().filter(|run| run.id >= span.first).count();
                if newer as i64 >= limit || !ended {
                    break;
                }
            }
            tx.commit().await?;
            all.sort_unstable_by_key(|run| std::cmp::Reverse(run.id));
            all.truncate(usize::try_from(limit).unwrap_or(0));
            Ok(all)
        })
    }

    /// Runs that are searched for: a page may be short, and still have a next one.
    async fn searched(&self, sought: &Sought<'_>, limit: i64) -> Result<Page<RunRow>, StoreError> {
        transaction!(self, reads, "runs", once(BEGIN_BY_SPANS), |tx| {
            let now = span::now(&mut tx).await?;
            let found = search(&mut tx, sought, now, limit.saturating_add(1)).await?;
            let items = match found.runs.as_slice() {
                [] => Vec::new(),
                runs => of_ids(&mut tx, runs).await?,
            };
            tx.commit().await?;
            let mut page = Page::of(items, limit, |row| row.id.to_string());
            if page.next.is_none() {
                page.next = found.stopped.map(|stopped| stopped.to_string());
            }
            Ok(page)
        })
    }

    /// Ids, states and revisions only, newest first, up to `limit`: for bulk actions. Instead of a state that this version
    /// cannot read, there is the error that says so: it concerns only this run.
    pub async fn run_states(&self, filter: &RunFilter, limit: i64) -> Result<Vec<StateOfRun>, StoreError> {
        let Some(sought) = self.sought(filter).await? else {
            return Ok(Vec::new());
        };
        let rows = transaction!(self, pool, "run_states", once(BEGIN_ANEW), |tx| {
            let columns = "l.id, l.state, l.revision_id";
            let part = Part {
                columns: (columns, columns),
                ..whole(limit)
            };
            let mut query = QueryBuilder::<Postgres>::new("");
            push_part(&mut query, &sought, part);
            let rows = query.build().fetch_all(&mut *tx).await?;
            tx.commit().await?;
            Ok(rows)
        })?;
        let mut found = Vec::with_capacity(rows.len());
        for row in rows {
            let number: i16 = row.try_get(1)?;
            let id = RunId(row.try_get(0)?);
            let state = StoreError::known(RunState::from_number, number, ("runs", "state"), id);
            found.push((id, state, row.try_get(2)?));
        }
        Ok(found)
    }
}

/// All that is sought, of whatever time.
fn whole(limit: i64) -> Part<'static> {
    Part {
        columns: (&LIVE, &DONE),
        hot: &[Hot::Any],
        span: None,
        live: true,
        live_in_span: false,
        bare: false,
        limit,
    }
}

/// These runs, newest first, with the names of their groups and the numbers of their revisions. The session keeps the
/// plan: each id is looked up in its day.
async fn of_ids(session: &mut PgSession, ids: &[Uuid]) -> Result<Vec<RunRow>, StoreError> {
    sqlx::raw_sql("SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_sort = on")
        .execute(&mut *session)
        .await?;
    let (live, done) = (&*LIVE, &*DONE);
    let statement = format!(
        "SELECT l.*{NAMES}
           FROM UNNEST($1::uuid[]) AS n (id)
          CROSS JOIN LATERAL (SELECT {live} FROM heddle.runs_live l WHERE l.id = ANY (ARRAY[n.id])
                               UNION ALL
                              SELECT {done} FROM heddle.runs_done l WHERE l.id = ANY (ARRAY[n.id])) AS l
         {JOINS} ORDER BY l.id DESC"
    );
    let rows = sqlx::query(AssertSqlSafe(statement))
        .bind(ids)
        .fetch_all(session)
        .await?;
    rows.iter().map(RunRow::read).collect()
}

/// Runs with the names of their groups and the numbers of their revisions.
async fn named(session: &mut PgSession, sought: &Sought<'_>, part: Part<'_>) -> Result<Vec<RunRow>, StoreError> {
    let mut query = QueryBuilder::<Postgres>::new("SELECT l.*");
    query.push(NAMES).push(" FROM (");
    push_part(&mut query, sought, part);
    query.push(") AS l").push(JOINS).push("ORDER BY l.id DESC");
    let rows = query.build().fetch_all(session).await?;
    rows.iter().map(RunRow::read).collect()
}
