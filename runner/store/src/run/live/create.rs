//! Creates runs: plain ones in one statement, others with checks of keys, gates and instants.

use std::collections::HashMap;

use heddle_domain::id::RunId;
use heddle_domain::notify::rules::{Announcements, Notice};
use heddle_domain::spec::NotifyEvent;
use heddle_domain::state::RunState;
use heddle_domain::wait::RunWait;
use heddle_domain::{Clock, Time};
use serde_json::Value;
use uuid::Uuid;

use super::complete::Completion;
use super::pools::insert_pooled_of_runs;
use super::queue::{QueueRow, put_in};
use super::refuse::{
    asked_groups, closed_groups, dedupe_holders, settle_dedupes, settle_groups, settle_instants, settle_keys,
    settle_parents,
};
use super::timers::{NewTimer, claim_timers, put_timers};
use super::{Created, GroupNeed, NewRun, ReadyRow};
use crate::change::{By, Noun};
use crate::database::{PgSession, column};
use crate::notice::{NewNotices, insert_notices_in};
use crate::transaction::transaction;
use crate::{Store, StoreError, audit};

/// Somebody's open transaction may hold a key (`heddle.submit`). A run with the same key is then refused after this many
/// milliseconds, so that it does not delay all runs of this commit.
const LOCK_WAIT_MS: i32 = 500;

impl Store {
    /// Creates runs that [are plain](NewRun::is_plain), in one statement. The answers are in the order of `runs`. `None`: one
    /// of their groups takes no runs any more, and nothing was created.
    pub async fn create_plain_runs(
        &self,
        runs: &[&NewRun],
        lease: i64,
        clock: &dyn Clock,
    ) -> Result<Option<Vec<Created>>, StoreError> {
        debug_assert!(runs.iter().all(|run| run.is_plain()));
        let mut connection = self.pool.acquire().await?;
        let at = beginning(runs, clock);
        let handed = insert_runs(&mut connection, runs, &asked_groups(runs), lease, at).await?;
        Ok(handed.map(|handed| vec![Created::Made { handed, at }; runs.len()]))
    }

    /// The same for all runs: keys, gates and instants are checked before they are created, and the rest is written
    /// afterwards.
    pub async fn create_runs(
        &self,
        runs: &[&NewRun],
        lease: i64,
        clock: &dyn Clock,
    ) -> Result<Vec<Created>, StoreError> {
        transaction!(self, pool, "create_runs", once, |tx| {
            let mut refused = HashMap::new();
            settle_groups(&mut tx, runs, Some(LOCK_WAIT_MS), &mut refused).await?;
            let created = create_open(&mut tx, runs, refused, lease, clock).await?;
            tx.commit().await?;
            Ok(created)
        })
    }
}

impl Completion {
    /// What their groups refuse of runs that are to be created with an outcome, by the index of the run. The groups of the
    /// others take runs until the end of this transaction.
    pub async fn closed(&mut self, runs: &[NewRun]) -> Result<HashMap<usize, Created>, StoreError> {
        let mut refused = HashMap::new();
        settle_groups(&mut self.tx, &runs.iter().collect::<Vec<_>>(), None, &mut refused).await?;
        Ok(refused)
    }

    /// Those of these groups that take no runs, and whether each of them has been deleted. The others take runs until the end
    /// of this transaction: whoever deletes or stops one waits, and then finds the runs that this transaction has created.
    ///
    /// Locking: the groups (advisory, shared), in the order of their ids, before gates and runs (`heddle.closed_groups`).
    pub async fn closed_groups(&mut self, groups: &[i64]) -> Result<HashMap<i64, bool>, StoreError> {
        if groups.is_empty() {
            return Ok(HashMap::new());
        }
        closed_groups(&mut self.tx, groups, None).await
    }

    /// Creates runs with the outcome (a script's `enqueue`).
    pub async fn create(&mut self, runs: &[NewRun]) -> Result<Vec<Created>, StoreError> {
        create_in(&mut self.tx, &runs.iter().collect::<Vec<_>>(), self.lease, &*self.clock).await
    }
}

/// When runs that are created now begin: not before any of them was laid out.
fn beginning(runs: &[&NewRun], clock: &dyn Clock) -> Time {
    runs.iter().map(|run| run.created_at).fold(clock.now(), Time::max)
}

/// The same within the caller's transaction. Task runs that start at once begin after all waits for locks of keys,
/// params and instants: if the end of a run has made room for another one, it is dated before the begin of that one.
pub(crate) async fn create_in(
    tx: &mut PgSession,
    runs: &[&NewRun],
    lease: i64,
    clock: &dyn Clock,
) -> Result<Vec<Created>, StoreError> {
    let mut refused = HashMap::new();
    if runs.iter().any(|run| run.needs != GroupNeed::NotAsked) {
        settle_groups(tx, runs, None, &mut refused).await?;
    }
    create_open(tx, runs, refused, lease, clock).await
}

/// The same for runs of which those in `refused` are not created.
async fn create_open(
    tx: &mut PgSession,
    runs: &[&NewRun],
    mut refused: HashMap<usize, Created>,
    lease: i64,
    clock: &dyn Clock,
) -> Result<Vec<Created>, StoreError> {
    let holders = dedupe_holders(tx, runs, &mut refused).await?;
    settle_keys(tx, runs, &mut refused).await?;
    settle_dedupes(tx, runs, holders, &mut refused).await?;
    settle_instants(tx, runs, &mut refused).await?;
    settle_parents(tx, runs, lease, &mut refused).await?;
    let accepted: Vec<&NewRun> = runs
        .iter()
        .enumerate()
        .filter(|(index, _)| !refused.contains_key(index))
        .map(|(_, run)| *run)
        .collect();
    let now = beginning(&accepted, clock);
    // (Their groups have been asked.)
    let handed = insert_runs(tx, &accepted, &[], lease, now).await?.unwrap_or_default();
    insert_pooled_of_runs(tx, &accepted).await?;
    let ready = accepted
        .iter()
        .flat_map(|run| run.ready.iter().map(move |row| (run.id, row)));
    let timers: Vec<NewTimer> = claim_timers(ready, now).collect();
    put_timers(tx, &timers).await?;
    for run in &accepted {
        let Some(audited) = &run.audited else { continue };
        let by = By {
            actor: run.terms.created_by.as_deref().unwrap_or_default(),
            at: now,
        };
        let (name, after) = (run.id.to_string(), Some(&audited.after));
        audit::record(tx, by, audited.action, Noun::Run.quiet(), &name, None, after).await?;
    }
    let gated: Vec<&&NewRun> = accepted.iter().filter(|run| run.gated).collect();
    if !gated.is_empty() {
        let ids: Vec<Uuid> = gated.iter().map(|run| run.id.0).collect();
        let groups: Vec<i64> = gated.iter().map(|run| run.group_id).collect();
        let follows: Vec<bool> = gated.iter().map(|run| run.follows).collect();
        sqlx::query!(
            "WITH gated AS (
                 SELECT * FROM UNNEST($1::uuid[], $2::bigint[], $3::boolean[]) AS g (run, group_id, follows)
             ),
             waiting AS (
                 INSERT INTO heddle.waits (run, group_id, upstreams) SELECT run, group_id, follows FROM gated
             ),
             arrived AS (
                 INSERT INTO heddle.link_events (kind, group_id, run)
                 SELECT 1, group_id, run FROM gated WHERE follows
             )
             INSERT INTO heddle.turnstiles (group_id) SELECT DISTINCT group_id FROM gated WHERE NOT follows",
            &ids,
            &groups,
            &follows
        )
        .execute(&mut *tx)
        .await?;
    }
    let deadlines: Vec<&&NewRun> = accepted.iter().filter(|run| run.deadline_at.is_some()).collect();
    if !deadlines.is_empty() {
        let ids: Vec<Uuid> = deadlines.iter().map(|run| run.id.0).collect();
        let due: Vec<Time> = deadlines.iter().filter_map(|run| run.deadline_at).collect();
        sqlx::query!(
            "INSERT INTO heddle.timers (run, task, item, kind, attempt, due_at)
             SELECT run, -1, -1, 1, 0, due FROM UNNEST($1::uuid[], $2::timestamptz[]) AS d (run, due)",
            &ids,
            &due
        )
        .execute(&mut *tx)
        .await?;
    }
    Ok((0..runs.len())
        .map(|index| refused.remove(&index).unwrap_or(Created::Made { handed, at: now }))
        .collect())
}

/// Whether the node got the rows that were meant for it; `None`: one of the groups of `ask` takes no runs.
async fn insert_runs(
    connection: &mut crate::database::PgSession,
    runs: &[&NewRun],
    ask: &[i64],
    lease: i64,
    now: Time,
) -> Result<Option<bool>, StoreError> {
    if runs.is_empty() {
        return Ok(Some(true));
    }
    let started: Vec<Option<Time>> = column(runs, |run| (run.state != RunState::Waiting).then_some(now));
    let rows: Vec<(&NewRun, &ReadyRow)> = runs
        .iter()
        .flat_map(|run| run.unpooled().map(move |row| (*run, row)))
        .collect();
    let inserted = sqlx::query_file!(
        "src/sql/create_runs.sql",
        &column(runs, |run| run.id.0),
        &column(runs, |run| run.group_id),
        &column(runs, |run| run.revision_id),
        &column(runs, |run| run.resolution_id) as &[Option<i64>],
        &column(runs, |run| run.state.number()),
        &column(runs, |run| run.terms.trigger.number()),
        &column(runs, |run| run.terms.priority),
        &column(runs, |run| run.terms.logical_time),
        &column(runs, |run| run.terms.interval.0),
        &column(runs, |run| run.terms.interval.1),
        &column(runs, |run| run.terms.params.as_str()) as &[&str],
        &column(runs, |run| run.terms.task_params.as_deref()) as &[Option<&str>],
        &column(runs, |run| run.terms.labels.as_ref()) as &[Option<&Value>],
        &column(runs, |run| run.terms.key.as_deref()) as &[Option<&str>],
        &column(runs, |run| run.dedupe.as_ref().map(|dedupe| dedupe.0.as_slice())) as &[Option<&[u8]>],
        &column(runs, |run| run.terms.callback.as_deref()) as &[Option<&str>],
        &column(runs, |run| run.created_at),
        &started as &[Option<Time>],
        &column(runs, |run| run.deadline_at) as &[Option<Time>],
        &column(runs, |run| run.parent.map(|parent| parent.0.0)) as &[Option<Uuid>],
        &column(runs, |run| run.parent.map(|parent| parent.1.key.task as i16)) as &[Option<i16>],
        &column(runs, |run| run.parent.map(|parent| parent.1.key.item_number())) as &[Option<i32>],
        &column(runs, |run| run.parent.map(|parent| parent.1.attempt as i32)) as &[Option<i32>],
        &column(runs, |run| run.terms.source) as &[Option<Uuid>],
        &column(runs, |run| run.waiting_for.as_deref().map(RunWait::stored)) as &[Option<Value>],
        &column(runs, |run| run.progress.as_slice()) as &[&[u8]],
        &column(&rows, |(run, _row)| run.id.0),
        &column(&rows, |(_run, row)| row.at.key.task as i16),
        &column(&rows, |(_run, row)| row.at.key.item_number()),
        &column(&rows, |(_run, row)| row.at.attempt as i32),
        &column(&rows, |(run, _row)| run.terms.priority),
        &column(&rows, |(_run, row)| row.position),
        &column(&rows, |(_run, row)| row.handed),
        lease,
        now,
        &column(runs, |run| run.terms.created_by.as_deref()) as &[Option<&str>],
        ask
    )
    .fetch_one(&mut *connection)
    .await?;
    if inserted.closed {
        return Ok(None);
    }
    let queued: Vec<(RunId, i16, &QueueRow)> = runs
        .iter()
        .flat_map(|run| run.queued.iter().map(|row| (run.id, run.terms.priority, row)))
        .collect();
    put_in(&mut *connection, &queued).await?;
    tell_started(connection, runs, now).await?;
    Ok(Some(inserted.fit))
}

/// Writes notices for runs that begin at once, if a rule asks for them.
async fn tell_started(connection: &mut PgSession, runs: &[&NewRun], now: Time) -> Result<(), StoreError> {
    let notices: Vec<NewNotices> = runs
        .iter()
        .filter(|run| run.announces_start && run.state == RunState::Running)
        .map(|run| NewNotices {
            group_id: run.group_id,
            revision_id: run.revision_id,
            run: Some(run.id),
            announcements: Announcements {
                notices: vec![Notice::of_run(NotifyEvent::Started)],
                troubled: Vec::new(),
            },
            names: Vec::new(),
            about: None,
        })
        .collect();
    if !notices.is_empty() {
        insert_notices_in(connection, &notices, now).await?;
    }
    Ok(())
}
