//! Groups that follow groups: what succeeded, and which runs wait for what.
//!
//! # The story
//!
//! A group follows others by `depends_on`. Without a schedule it gets a run for a logical time when all of them have
//! succeeded for it. With a schedule, its runs are created on time and wait (`waits.upstreams`) until what they need
//! has succeeded. Both happen by event: the transaction in which a run of a followed group succeeds writes a row to
//! *link_events*, and so do the creation of a waiting run and the change of a group. The engine takes these rows
//! (skipping those that another node has locked), and for each follower concerned holds **the follower's gate**, the
//! advisory lock under which its waiting runs are also admitted. Only then it reads and writes what the decision
//! depends on.
//!
//! So no wake-up is lost: if a success and a creation concern the same follower, one of them gets the gate second, and
//! sees what the other has written. *needs* has a row for each instant that a waiting run still lacks, found by (group,
//! instant) when that succeeds. So the cost of a success depends on the runs that wait for it, not on all waiting runs.
//!
//! *successes* stores for which logical times a followed group has succeeded: a repeated success creates no runs.
//! Successes from before the group was followed are in *run_instants* and in the runs' history. A row is deleted when
//! its run is reopened, also by an override of its state: then the success does not count any more.
//!
//! # Retention
//!
//! What may be deleted with old runs, and what must stay:
//!
//! * A row of *run_instants* is deleted with its run, never before: it keeps the instant from getting a second run.
//!   When the run is gone, the row prevents no other run for its instant, and may be deleted at any time: no schedule
//!   returns to an instant before its `cursor`, and a backfill is meant to create runs that are missing. But followers
//!   read it as they read *successes*, so it stays as long as a row there. Rows are deleted in bounded batches, by run
//!   id (index `run_instants_run`). Ids are UUIDv7, so the rows of a dropped day are those below the first id of the
//!   next day whose run is not in *runs_live*. A row that is `skipped` says that nobody needs to wait for its instant:
//!   its run never began, or the overlap cancelled it. That is taken back when the run is reopened, or set to another
//!   state.
//! * A row of *successes* **stays when its run is deleted**. It answers followers whose intervals are longer than the
//!   upstream's runs are kept (a year of monthly runs), and keeps a repeated success from calling for runs. A row is small
//!   (some 70 bytes with its two indexes), and there is one for each instant of a followed group. It may be deleted when
//!   its run is gone and was created long ago ([`crate::retention::INSTANTS_KEPT`]), unless a run still waits (a row of
//!   *waits* with `upstreams`) and may need it: because it is not before the `interval_start` of that run, or is the
//!   group's last one before that. Its `logical_time` does not tell its age: a backfill writes rows of old instants.
//! * Rows of *needs* and *waits* belong to live runs, and are deleted with these. A row of *cascades* may be deleted when
//!   its backfill has ended and no run with that `source` is live, because only successes of such runs read it.
//!
//! # Order of locks
//!
//! Rows of *link_events* (nobody waits for them), the backfills that these events are about (advisory), the groups that follow
//! (advisory, shared: `heddle.closed_groups`), gates in order,
//! rows of *runs_done* whose success is noted in id order, then as in [`crate::live`]: rows of *runs_live* in id order, then
//! *waits* and *needs*.

use std::collections::{HashMap, HashSet};

use heddle_domain::Time;
use heddle_domain::backfill::Urgency;
use heddle_domain::id::RunId;
use heddle_domain::wait::RunWait;
use serde_json::Value;
use uuid::Uuid;

use crate::database::PgSession;
use crate::live::Completion;
use crate::{Store, StoreError};

pub use super::instants::{ExcusedTimes, KnownInstants};

/// How many events one transaction handles.
const EVENTS_MAX: i64 = 500;

/// An event that may let waiting runs begin, or call for a run.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkEvent {
    /// A run of a followed group succeeded.
    Succeeded(Success),
    /// A run of `group_id` waits for upstreams.
    Arrived { group_id: i64, run: RunId },
    /// A group has changed: its spec, or whether it is enabled.
    Changed(i64),
    /// A group's overlap has skipped an instant.
    LeftOut { group_id: i64, logical_time: Time },
}

/// An event that was taken, with its number; or why this version cannot read it.
pub type TakenLink = (i64, Result<LinkEvent, StoreError>);

/// An event that could not be handled for all followers concerned: it is left for later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeftEvent {
    /// The number under which it was taken, and which it keeps.
    pub id: i64,
    /// The group that is followed, in which it happened.
    pub group_id: i64,
    /// The instant that succeeded, or was skipped.
    pub logical_time: Time,
    /// For a success that includes dependants: the run, its source, and whether a backfill caused it. For any other
    /// success this is `None`: it is checked again as an instant for which followers may get runs, and a follower that
    /// has its run does not get another.
    pub cascade: Option<(RunId, Uuid, bool)>,
}

/// A success of a followed group.
#[derive(Clone, Debug, PartialEq)]
pub struct Success {
    pub group_id: i64,
    pub run: RunId,
    pub logical_time: Time,
    /// The backfill or run that created it.
    pub source: Option<Uuid>,
    /// Whether a backfill created it, or caused it in a dependant.
    pub backfilled: bool,
    /// If its source includes dependants and has not been cancelled: how urgent their runs are.
    pub cascades: Option<Urgency>,
}

/// The result of noting a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// It is the first of its logical time.
    First,
    /// Its logical time had one already.
    Again,
    /// It does not count: the run has been reopened, or overridden to another state, while the event waited.
    Undone,
}

/// A link, seen from the followed group.
#[derive(Clone, Debug)]
pub struct Follower {
    pub upstream_id: i64,
    /// The group that follows.
    pub group_id: i64,
    pub name: String,
    /// Whether it is enabled.
    pub enabled: bool,
    /// Whether it has schedules.
    pub scheduled: bool,
    /// Whether all instants of the interval are needed, or only the latest.
    pub interval: bool,
}

/// A link, seen from the group that follows.
#[derive(Clone, Debug)]
pub struct Above {
    /// The group that follows.
    pub group_id: i64,
    pub upstream_id: i64,
    pub name: String,
    pub revision_id: i64,
    /// Whether all instants of the interval are needed, or only the latest.
    pub interval: bool,
}

/// A run that waits for upstreams.
#[derive(Clone, Debug)]
pub struct WaitingRun {
    pub run: RunId,
    pub group_id: i64,
    pub logical_time: Time,
    /// The interval of its data.
    pub interval: (Time, Time),
    /// Whether it is a run of a dependant, and a backfill of a group above has called for it.
    pub historic: bool,
}

/// The result of checking a waiting run.
#[derive(Clone, Debug)]
pub struct Weighed {
    pub run: RunId,
    pub group_id: i64,
    /// The first instants that it lacks: group and instant. Empty: it may wait for its turn.
    pub lacks: Vec<(i64, Time)>,
    /// The same for people, or its turn.
    pub waiting_for: Vec<RunWait>,
}

/// Writes the event that a group has changed, for its followers and its waiting runs. Within the change's transaction.
pub(crate) async fn changed(connection: &mut PgSession, group_id: i64) -> Result<(), StoreError> {
    sqlx::query!(
        "INSERT INTO heddle.link_events (kind, group_id) VALUES (2, $1)",
        group_id
    )
    .execute(connection)
    .await?;
    Ok(())
}

impl Store {
    /// Whether there are other events than these.
    pub async fn has_link_events(&self, passed_over: &[i64]) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT EXISTS (SELECT FROM heddle.link_events WHERE id <> ALL ($1)) AS "some!""#,
            passed_over
        )
        .fetch_one(&self.pool)
        .await?)
    }

    /// Runs that wait for upstreams, after `after`: for the repair sweep.
    pub async fn waiting_for_upstreams(&self, after: Uuid, limit: i64) -> Result<Vec<(RunId, i64)>, StoreError> {
        Ok(sqlx::query!(
            "SELECT run, group_id FROM heddle.waits WHERE upstreams AND run > $1 ORDER BY run LIMIT $2",
            after,
            limit
        )
        .fetch_all(&self.pool)
        .await?
        .into_iter()
        .map(|row| (RunId(row.run), row.group_id))
        .collect())
    }
}

impl Completion {
    /// Takes events, oldest first, except these; each with its number. Successes of a cancelled backfill create no runs
    /// any more; neither do successes of the runs that it caused in dependants. A rerun counts like the run that it
    /// repeats. An event that this version cannot read is an error in its place: a newer node has written it, so the
    /// caller gives this transaction up and leaves the event to that node.
    ///
    /// Locking: the events, skipping those that another node is taking: nobody waits for them. Then the backfills that
    /// they are about (advisory, shared), in id order: only whoever cancels one waits for that, or is waited for.
    pub async fn take_link_events(&mut self, passed_over: &[i64]) -> Result<Vec<TakenLink>, StoreError> {
        let rows = sqlx::query!(
            r#"WITH removed AS (
                   DELETE FROM heddle.link_events e
                    WHERE e.ctid = ANY (ARRAY(
                          SELECT ctid FROM heddle.link_events WHERE id <> ALL ($2) ORDER BY id LIMIT $1
                             FOR UPDATE SKIP LOCKED))
                   RETURNING e.*)
               SELECT t.id, t.kind, t.group_id, t.run, t.logical_time, t.source, t.backfilled,
                      EXISTS (SELECT FROM heddle.cascades c WHERE c.source = t.source) AS "cascades!",
                      (SELECT c.priority FROM heddle.cascades c WHERE c.source = t.source) AS "priority?"
                 FROM removed t ORDER BY t.id"#,
            EVENTS_MAX,
            passed_over
        )
        .fetch_all(self.connection())
        .await?;
        let reruns = rows
            .iter()
            .filter(|row| row.kind == 0 && row.source.is_some() && !row.backfilled && !row.cascades);
        let origins = self.origins_of(reruns.filter_map(|row| row.run).collect()).await?;
        let mut sources: Vec<Uuid> = rows
            .iter()
            .filter(|row| row.cascades)
            .filter_map(|row| row.source)
            .chain(
                origins
                    .values()
                    .filter(|origin| origin.cascades)
                    .map(|origin| origin.source),
            )
            .collect();
        sources.sort_unstable();
        sources.dedup();
        let cancelled = self.hold_backfills(&sources).await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let origin = row.run.and_then(|run| origins.get(&run));
                let (source, backfilled, cascades, priority) = match origin {
                    Some(from) => (Some(from.source), from.backfilled, from.cascades, from.priority),
                    None => (row.source, row.backfilled, row.cascades, row.priority),
                };
                let is_cancelled = source.is_some_and(|source| cancelled.contains(&source));
                let event = match (row.kind, row.run, row.logical_time) {
                    (0, Some(run), Some(logical_time)) => Ok(LinkEvent::Succeeded(Success {
                        group_id: row.group_id,
                        run: RunId(run),
                        logical_time,
                        source,
                        backfilled: backfilled || cascades,
                        cascades: (cascades && !is_cancelled)
                            .then(|| priority.map_or(Urgency::Historic, Urgency::Given)),
                    })),
                    (1, Some(run), _) => Ok(LinkEvent::Arrived {
                        group_id: row.group_id,
                        run: RunId(run),
                    }),
                    (2, None, Some(logical_time)) => Ok(LinkEvent::LeftOut {
                        group_id: row.group_id,
                        logical_time,
                    }),
                    (2, None, None) => Ok(LinkEvent::Changed(row.group_id)),
                    (kind, ..) => Err(StoreError::unreadable("link_events", "kind", row.id, kind)),
                };
                (row.id, event)
            })
            .collect())
    }

    /// Until the end of the transaction, nobody cancels those of these sources that are backfills: a cancel waits, and then
    /// finds the runs that the transaction has created. Returns those that have been cancelled.
    ///
    /// Locking: the backfills (advisory, shared), in id order. Not their rows: those who share a row may keep a cancel waiting
    /// for as long as new ones come, and rounds skip a row that is shared. The states are read by a statement of their own,
    /// which sees what was committed while the first one waited.
    async fn hold_backfills(&mut self, sources: &[Uuid]) -> Result<HashSet<Uuid>, StoreError> {
        if sources.is_empty() {
            return Ok(HashSet::new());
        }
        sqlx::query!(
            "SELECT pg_advisory_xact_lock_shared(hashtextextended('heddle/backfill/' || one.source::text, 0))
               FROM (SELECT UNNEST($1::uuid[]) AS source ORDER BY 1) AS one",
            sources
        )
        .fetch_all(self.connection())
        .await?;
        Ok(sqlx::query_scalar!(
            "SELECT id FROM heddle.backfills WHERE id = ANY ($1) AND state IN (5, 6)",
            sources
        )
        .fetch_all(self.connection())
        .await?
        .into_iter()
        .collect())
    }

    /// Leaves events that this transaction has taken for later, under their numbers.
    pub async fn leave_link_events(&mut self, left: &[LeftEvent]) -> Result<(), StoreError> {
        if left.is_empty() {
            return Ok(());
        }
        let ids: Vec<i64> = left.iter().map(|event| event.id).collect();
        let groups: Vec<i64> = left.iter().map(|event| event.group_id).collect();
        let times: Vec<Time> = left.iter().map(|event| event.logical_time).collect();
        let runs: Vec<Option<Uuid>> = left.iter().map(|event| event.cascade.map(|(run, ..)| run.0)).collect();
        let sources: Vec<Option<Uuid>> = left
            .iter()
            .map(|event| event.cascade.map(|(_, source, _)| source))
            .collect();
        let backfilled: Vec<bool> = left
            .iter()
            .map(|event| event.cascade.is_some_and(|(.., backfilled)| backfilled))
            .collect();
        sqlx::query!(
            "INSERT INTO heddle.link_events (id, kind, group_id, run, logical_time, source, backfilled)
             OVERRIDING SYSTEM VALUE
             SELECT id, CASE WHEN run IS NULL THEN 2 ELSE 0 END, group_id, run, logical_time, source, backfilled
               FROM UNNEST($1::bigint[], $2::bigint[], $3::timestamptz[], $4::uuid[], $5::uuid[], $6::boolean[])
                 AS l (id, group_id, logical_time, run, source, backfilled)",
            &ids,
            &groups,
            &times,
            &runs as &[Option<Uuid>],
            &sources as &[Option<Uuid>],
            &backfilled
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// The groups that follow these.
    pub async fn followers(&mut self, upstreams: &[i64]) -> Result<Vec<Follower>, StoreError> {
        if upstreams.is_empty() {
            return Ok(Vec::new());
        }
        Ok(sqlx::query_as!(
            Follower,
            r#"SELECT l.upstream_id, g.id AS group_id, g.name, g.enabled, l.need = 'interval' AS "interval!",
                      EXISTS (SELECT FROM heddle.schedules s WHERE s.group_id = g.id) AS "scheduled!"
                 FROM heddle.group_links l JOIN heddle.groups g ON g.id = l.group_id
                WHERE l.upstream_id = ANY ($1) AND l.kind = 'depends_on' AND g.deleted_at IS NULL
                ORDER BY g.id, l.upstream_id"#,
            upstreams
        )
        .fetch_all(self.connection())
        .await?)
    }

    /// The links of these groups, and further up through groups without schedules, which have the instants of the
    /// groups that they follow.
    pub async fn links_above(&mut self, groups: &[i64]) -> Result<Vec<Above>, StoreError> {
        Ok(sqlx::query_as!(
            Above,
            r#"WITH RECURSIVE above (group_id, upstream_id, need) AS (
                   SELECT group_id, upstream_id, need FROM heddle.group_links
                    WHERE group_id = ANY ($1) AND kind = 'depends_on'
                   UNION
                   SELECT l.group_id, l.upstream_id, l.need
                     FROM above a JOIN heddle.group_links l ON l.group_id = a.upstream_id AND l.kind = 'depends_on'
                    WHERE NOT EXISTS (SELECT FROM heddle.schedules s WHERE s.group_id = a.upstream_id)
               )
               SELECT a.group_id AS "group_id!", a.upstream_id AS "upstream_id!", u.name, u.revision_id,
                      a.need = 'interval' AS "interval!"
                 FROM above a JOIN heddle.groups u ON u.id = a.upstream_id
                WHERE u.deleted_at IS NULL
                ORDER BY a.group_id, u.name"#,
            groups
        )
        .fetch_all(self.connection())
        .await?)
    }

    /// Holds the gates of groups until the end of the transaction.
    ///
    /// Locking: all at once, in the order of their numbers, and before any run.
    pub async fn hold_gates(&mut self, groups: &[i64]) -> Result<(), StoreError> {
        if groups.is_empty() {
            return Ok(());
        }
        sqlx::query!(
            "SELECT pg_advisory_xact_lock(hashtext('heddle.gate'), g::integer)
               FROM (SELECT DISTINCT (g % 2147483647) AS g FROM UNNEST($1::bigint[]) AS g ORDER BY 1) AS ordered",
            groups
        )
        .fetch_all(self.connection())
        .await?;
        Ok(())
    }

    /// Notes successes, unless they have been undone; returns the result for each.
    ///
    /// Locking: the rows of *runs_done*, in id order, until the end of the transaction. A transaction that changes one
    /// of them later finds the note of its success, and deletes it. This waits for a transaction that is changing one
    /// now, which never waits for events or gates.
    pub async fn note_successes(&mut self, successes: &[Success]) -> Result<Vec<Noted>, StoreError> {
        if successes.is_empty() {
            return Ok(Vec::new());
        }
        let runs: Vec<Uuid> = successes.iter().map(|success| success.run.0).collect();
        let found = sqlx::query!(
            r#"WITH done AS MATERIALIZED (
                   SELECT id, group_id, logical_time, state FROM heddle.runs_done WHERE id = ANY ($1) ORDER BY id FOR SHARE),
               noted AS (
                   INSERT INTO heddle.successes (group_id, logical_time, run)
                   SELECT group_id, logical_time, id FROM done WHERE state = 3 ORDER BY group_id, logical_time
                   ON CONFLICT DO NOTHING
                   RETURNING run)
               SELECT id AS "run!", state = 3 AS "succeeded!", false AS "first!" FROM done
               UNION ALL SELECT run, true, true FROM noted"#,
            &runs
        )
        .fetch_all(self.connection())
        .await?;
        let mut known: HashMap<Uuid, Noted> = HashMap::new();
        for row in found {
            match (row.succeeded, row.first) {
                (true, true) => drop(known.insert(row.run, Noted::First)),
                (true, false) => drop(known.entry(row.run).or_insert(Noted::Again)),
                (false, _) => drop(known.insert(row.run, Noted::Undone)),
            }
        }
        let missing: Vec<&Success> = (successes.iter())
            .filter(|success| !known.contains_key(&success.run.0))
            .collect();
        if !missing.is_empty() {
            known.extend(self.note_missing(&missing).await?);
        }
        Ok(runs
            .iter()
            .map(|run| known.get(run).copied().unwrap_or(Noted::Again))
            .collect())
    }

    /// The same for runs without a row in *runs_done*: they have been reopened or deleted. A deleted run has succeeded.
    async fn note_missing(&mut self, missing: &[&Success]) -> Result<HashMap<Uuid, Noted>, StoreError> {
        let runs: Vec<Uuid> = missing.iter().map(|success| success.run.0).collect();
        // A transaction that reopened one, and for which this has waited, may have ended it again.
        let undone: HashSet<Uuid> = sqlx::query_scalar!(
            r#"SELECT id AS "id!" FROM heddle.runs_live WHERE id = ANY ($1)
               UNION ALL SELECT id FROM heddle.runs_done WHERE id = ANY ($1) AND state <> 3"#,
            &runs
        )
        .fetch_all(self.connection())
        .await?
        .into_iter()
        .collect();
        let counted: Vec<&&Success> = (missing.iter())
            .filter(|success| !undone.contains(&success.run.0))
            .collect();
        let first: HashSet<Uuid> = sqlx::query_scalar!(
            "INSERT INTO heddle.successes (group_id, logical_time, run)
             SELECT group_id, logical_time, run
               FROM UNNEST($1::bigint[], $2::timestamptz[], $3::uuid[]) AS s (group_id, logical_time, run)
              ORDER BY group_id, logical_time
             ON CONFLICT DO NOTHING
             RETURNING run",
            &counted.iter().map(|success| success.group_id).collect::<Vec<_>>(),
            &counted.iter().map(|success| success.logical_time).collect::<Vec<_>>(),
            &counted.iter().map(|success| success.run.0).collect::<Vec<_>>()
        )
        .fetch_all(self.connection())
        .await?
        .into_iter()
        .collect();
        let noted = |run: &Uuid| match (undone.contains(run), first.contains(run)) {
            (true, _) => Noted::Undone,
            (false, true) => Noted::First,
            (false, false) => Noted::Again,
        };
        Ok(runs.into_iter().map(|run| (run, noted(&run))).collect())
    }

    /// Which runs of these groups wait for upstreams.
    pub async fn waiting_within(&mut self, groups: &[i64], limit: i64) -> Result<Vec<RunId>, StoreError> {
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        Ok(sqlx::query_scalar!(
            "SELECT run FROM heddle.waits WHERE group_id = ANY ($1) AND upstreams ORDER BY run LIMIT $2",
            groups,
            limit
        )
        .fetch_all(self.connection())
        .await?
        .into_iter()
        .map(RunId)
        .collect())
    }

    /// Which runs lack these instants.
    pub async fn lacking(&mut self, instants: &[(i64, Time)]) -> Result<Vec<RunId>, StoreError> {
        if instants.is_empty() {
            return Ok(Vec::new());
        }
        let groups: Vec<i64> = instants.iter().map(|entry| entry.0).collect();
        let times: Vec<Time> = instants.iter().map(|entry| entry.1).collect();
        Ok(sqlx::query_scalar!(
            "SELECT DISTINCT n.run
               FROM UNNEST($1::bigint[], $2::timestamptz[]) AS i (group_id, logical_time)
              CROSS JOIN LATERAL (SELECT run FROM heddle.needs
                                   WHERE upstream_id = i.group_id AND logical_time = i.logical_time OFFSET 0) AS n",
            &groups,
            &times
        )
        .fetch_all(self.connection())
        .await?
        .into_iter()
        .map(RunId)
        .collect())
    }

    /// Locks runs that wait for upstreams; those that no longer wait are left out.
    ///
    /// Locking: the runs in id order, after the gates.
    pub async fn lock_waiting(&mut self, runs: &[RunId]) -> Result<Vec<WaitingRun>, StoreError> {
        if runs.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        Ok(sqlx::query!(
            r#"SELECT l.id, l.group_id, l.logical_time, l.interval_start, l.interval_end,
                      l.source IS NOT NULL AS "historic!"
                 FROM heddle.runs_live l
                WHERE l.id = ANY ($1) AND l.state = 0
                  AND EXISTS (SELECT FROM heddle.waits w WHERE w.run = l.id AND w.upstreams OFFSET 0)
                ORDER BY l.id FOR NO KEY UPDATE"#,
            &ids
        )
        .fetch_all(self.connection())
        .await?
        .into_iter()
        .map(|row| WaitingRun {
            run: RunId(row.id),
            group_id: row.group_id,
            logical_time: row.logical_time,
            interval: (row.interval_start, row.interval_end),
            historic: row.historic,
        })
        .collect())
    }

    /// Writes the results for waiting runs, which are locked: those that lack nothing wait for their turn.
    pub async fn write_weighed(&mut self, weighed: &[Weighed]) -> Result<(), StoreError> {
        if weighed.is_empty() {
            return Ok(());
        }
        let ids: Vec<Uuid> = weighed.iter().map(|entry| entry.run.0).collect();
        let waiting_for: Vec<Value> = weighed
            .iter()
            .map(|entry| RunWait::stored(&entry.waiting_for))
            .collect();
        sqlx::query!(
            "UPDATE heddle.runs_live l SET waiting_for = w.waiting_for
               FROM UNNEST($1::uuid[], $2::jsonb[]) AS w (run, waiting_for)
              WHERE l.id = ANY (ARRAY[w.run]) AND l.waiting_for IS DISTINCT FROM w.waiting_for",
            &ids,
            &waiting_for
        )
        .execute(self.connection())
        .await?;
        sqlx::query!("DELETE FROM heddle.needs WHERE run = ANY ($1)", &ids)
            .execute(self.connection())
            .await?;
        let lacks: Vec<(Uuid, i64, Time)> = weighed
            .iter()
            .flat_map(|entry| entry.lacks.iter().map(move |(group, at)| (entry.run.0, *group, *at)))
            .collect();
        sqlx::query!(
            "INSERT INTO heddle.needs (run, upstream_id, logical_time)
             SELECT run, upstream_id, logical_time
               FROM UNNEST($1::uuid[], $2::bigint[], $3::timestamptz[]) AS n (run, upstream_id, logical_time)
             ON CONFLICT DO NOTHING",
            &lacks.iter().map(|lack| lack.0).collect::<Vec<_>>(),
            &lacks.iter().map(|lack| lack.1).collect::<Vec<_>>(),
            &lacks.iter().map(|lack| lack.2).collect::<Vec<_>>()
        )
        .execute(self.connection())
        .await?;
        let free: Vec<Uuid> = weighed
            .iter()
            .filter(|entry| entry.lacks.is_empty())
            .map(|entry| entry.run.0)
            .collect();
        let groups: Vec<i64> = weighed
            .iter()
            .filter(|entry| entry.lacks.is_empty())
            .map(|entry| entry.group_id)
            .collect();
        sqlx::query!(
            "WITH freed AS (UPDATE heddle.waits SET upstreams = false WHERE run = ANY ($1))
             INSERT INTO heddle.turnstiles (group_id) SELECT DISTINCT g FROM UNNEST($2::bigint[]) AS g",
            &free,
            &groups
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }
}
