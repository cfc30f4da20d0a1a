//! What other transactions have left for any node: due timers, ended sub-runs, runs submitted in SQL, attempts of dead
//! nodes, groups with waiting runs.

use std::collections::BTreeMap;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::{RunState, Trigger};
use heddle_domain::wait::RunWait;
use serde_json::Value;
use uuid::Uuid;

use super::complete::Completion;
use super::{BATCH_MAX, EndedAttempt};
use crate::{Store, StoreError};

/// Which rows of the inbox to take.
#[derive(Clone, Copy, Debug)]
pub enum Take<'a> {
    /// All rows, except the rows of these runs.
    AllBut(&'a [RunId]),
    /// Only the rows of these runs.
    Only(&'a [RunId]),
}

impl Take<'_> {
    /// The runs, and whether only their rows are taken (`true`), or all except theirs.
    pub(crate) fn parameters(self) -> (Vec<Uuid>, bool) {
        let (runs, among) = match self {
            Self::AllBut(runs) => (runs, false),
            Self::Only(runs) => (runs, true),
        };
        (runs.iter().map(|run| run.0).collect(), among)
    }
}

/// A row that was taken: its run, and its content, if that is readable.
pub type Taken<T> = (RunId, Result<T, StoreError>);

/// A sub-run that ended.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// The parent's attempt, under lease 0.
    pub parent: EndedAttempt,
    pub child: RunId,
    pub state: RunState,
    pub error: Option<String>,
}

/// A run that was submitted in SQL, with what its group adds to it.
#[derive(Clone, Debug)]
pub struct SqlStart {
    pub run: RunId,
    /// The row with the script versions that the run pins.
    pub resolution_id: i64,
    /// The data interval: its begin, and its end, which does not belong to it.
    pub interval: (Time, Time),
    pub labels: Option<Value>,
    /// When it must have ended.
    pub deadline_at: Option<Time>,
}

/// An attempt whose node is dead.
#[derive(Clone, Copy, Debug)]
pub struct LostAttempt {
    pub ended: EndedAttempt,
    /// The dead node; it may have come back under a new lease.
    pub node: Option<Uuid>,
}

/// A run that has begun.
#[derive(Clone, Copy, Debug)]
pub struct ActiveRun {
    pub run: RunId,
    /// Why it was created.
    pub trigger: Trigger,
    /// Whether a backfill or a run created it.
    pub sourced: bool,
    /// The instant that it was created for.
    pub logical_time: Time,
}

/// A group's gate: its active runs, and the runs that wait there, because runs before them are active.
#[derive(Clone, Debug)]
pub struct Gate {
    pub group_id: i64,
    /// The group's current revision.
    pub revision_id: i64,
    /// Its runs that have begun.
    pub active: Vec<ActiveRun>,
    /// Its runs that wait, in the order in which they may begin: timed ones and others, each up to the requested number.
    pub waiting: Vec<AtGate>,
    /// How many runs of schedules and upstreams wait, including those beyond the requested number.
    pub timed_waiting: usize,
}

/// A run at its group's gate.
#[derive(Clone, Copy, Debug)]
pub struct AtGate {
    pub run: RunId,
    /// Whether the overlap applies to it: a schedule or an upstream created it, and it was not reopened after its end.
    pub timed: bool,
}

/// How many gates one transaction holds: each is an entry in the server's table of locks.
const GATES_MAX: i64 = 1_000;

impl Completion {
    /// Takes the ends of sub-runs.
    ///
    /// Locking: due rows, skipping those that another node is taking: nobody waits for them. Their runs are locked
    /// afterwards, in id order.
    pub async fn take_settlements(&mut self, take: Take<'_>) -> Result<Vec<Taken<Settlement>>, StoreError> {
        let (runs, among) = take.parameters();
        let rows = sqlx::query!(
            "DELETE FROM heddle.settlements s
              WHERE s.ctid = ANY (ARRAY(
                    SELECT ctid FROM heddle.settlements
                     WHERE (run = ANY ($2)) = $3 ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
             RETURNING s.run, s.task, s.item, s.attempt, s.child, s.state, s.error",
            BATCH_MAX as i64,
            &runs,
            among
        )
        .fetch_all(self.connection())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| {
                let state = StoreError::known(RunState::from_number, row.state, ("settlements", "state"), row.child);
                let settlement = state.map(|state| Settlement {
                    parent: EndedAttempt {
                        run: RunId(row.run),
                        at: AttemptKey::from_numbers(row.task, row.item, row.attempt),
                        lease: 0,
                    },
                    child: RunId(row.child),
                    state,
                    error: row.error,
                });
                (RunId(row.run), settlement)
            })
            .collect())
    }

    /// Takes runs that were submitted in SQL.
    ///
    /// Locking: as [`Self::take_settlements`].
    pub async fn take_starts(&mut self, take: Take<'_>) -> Result<Vec<RunId>, StoreError> {
        let (runs, among) = take.parameters();
        let rows = sqlx::query_scalar!(
            "DELETE FROM heddle.starts s
              WHERE s.ctid = ANY (ARRAY(
                    SELECT ctid FROM heddle.starts
                     WHERE (run = ANY ($2)) = $3 ORDER BY run LIMIT $1 FOR UPDATE SKIP LOCKED))
             RETURNING s.run",
            BATCH_MAX as i64,
            &runs,
            among
        )
        .fetch_all(self.connection())
        .await?;
        Ok(rows.into_iter().map(RunId).collect())
    }

    /// Adds the values that only the engine knows to locked runs that were submitted in SQL, and sets the timers of
    /// their deadlines. Runs with pinned scripts are complete already, and are not changed.
    pub async fn complete_starts(&mut self, starts: &[SqlStart]) -> Result<(), StoreError> {
        if starts.is_empty() {
            return Ok(());
        }
        let runs: Vec<Uuid> = starts.iter().map(|start| start.run.0).collect();
        let resolutions: Vec<i64> = starts.iter().map(|start| start.resolution_id).collect();
        let from: Vec<Time> = starts.iter().map(|start| start.interval.0).collect();
        let to: Vec<Time> = starts.iter().map(|start| start.interval.1).collect();
        let labels: Vec<Option<Value>> = starts.iter().map(|start| start.labels.clone()).collect();
        let deadlines: Vec<Option<Time>> = starts.iter().map(|start| start.deadline_at).collect();
        sqlx::query!(
            "WITH given AS MATERIALIZED (
                 SELECT * FROM UNNEST($1::uuid[], $2::bigint[], $3::timestamptz[], $4::timestamptz[], $5::jsonb[],
                                      $6::timestamptz[])
                     AS g (run, resolution_id, interval_start, interval_end, labels, deadline_at)
             ), completed AS (
                 UPDATE heddle.runs_live l
                    SET resolution_id = g.resolution_id, interval_start = g.interval_start,
                        interval_end = g.interval_end, labels = g.labels, deadline_at = g.deadline_at
                   FROM given g WHERE l.id = ANY (ARRAY[g.run]) AND l.resolution_id IS NULL
                 RETURNING l.id, l.deadline_at
             )
             INSERT INTO heddle.timers (run, task, item, kind, attempt, due_at)
             SELECT id, -1, -1, 1, 0, deadline_at FROM completed WHERE deadline_at IS NOT NULL",
            &runs,
            &resolutions,
            &from,
            &to,
            &labels as &[Option<Value>],
            &deadlines as &[Option<Time>]
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// Takes groups whose waiting runs are to be checked, and holds each group's gate until the end of the transaction:
    /// two nodes never admit runs of one group at once. Runs that begin are dated after the gates' locks, because
    /// another run may end, and make room, during the wait for them.
    ///
    /// Locking: rows of *turnstiles*, skipping those that another node is taking; then the gates, in the order of their
    /// numbers; runs are locked afterwards.
    pub async fn take_gates(&mut self) -> Result<Vec<i64>, StoreError> {
        let groups = sqlx::query_scalar!(
            r#"WITH removed AS (
                   DELETE FROM heddle.turnstiles t
                    WHERE t.ctid = ANY (ARRAY(
                          SELECT ctid FROM heddle.turnstiles ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
                   RETURNING t.group_id)
               SELECT DISTINCT group_id AS "group_id!" FROM removed ORDER BY 1"#,
            GATES_MAX
        )
        .fetch_all(self.connection())
        .await?;
        if !groups.is_empty() {
            sqlx::query!(
                "SELECT pg_advisory_xact_lock(hashtext('heddle.gate'), g::integer)
                   FROM (SELECT (g % 2147483647) AS g FROM UNNEST($1::bigint[]) AS g ORDER BY 1) AS ordered",
                &groups
            )
            .fetch_all(self.connection())
            .await?;
            self.dated([]);
        }
        Ok(groups)
    }

    /// The runs that wait at the gates of groups that this transaction holds, highest priority and then oldest logical
    /// time first, and the active runs behind these gates (runs that were paused while they waited are in neither
    /// list). Of the waiting runs, up to `limit` timed ones per group, and as many others: neither hold up the others,
    /// however many there are. Gates without waiting runs are left out. These statements come after the gates' locks, so
    /// that they see the changes of the last holders.
    pub async fn gates(&mut self, groups: &[i64], limit: i64) -> Result<Vec<Gate>, StoreError> {
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let mut gates: BTreeMap<i64, Gate> =
            sqlx::query!("SELECT id, revision_id FROM heddle.groups WHERE id = ANY ($1)", groups)
                .fetch_all(self.connection())
                .await?
                .into_iter()
                .map(|row| {
                    let gate = Gate {
                        group_id: row.id,
                        revision_id: row.revision_id,
                        active: Vec::new(),
                        waiting: Vec::new(),
                        timed_waiting: 0,
                    };
                    (row.id, gate)
                })
                .collect();
        let waiting = sqlx::query!(
            r#"SELECT g.id AS "group_id!", w.run AS "run!", w.timed AS "timed!", w.timed_waiting AS "timed_waiting!"
                 FROM UNNEST($1::bigint[]) AS g (id)
                CROSS JOIN LATERAL (
                     SELECT l.id AS run, l.priority, l.logical_time, l.timed,
                            count(*) FILTER (WHERE l.timed) OVER () AS timed_waiting,
                            row_number() OVER (PARTITION BY l.timed ORDER BY l.priority DESC, l.logical_time, l.id) AS place
                       FROM heddle.waits w
                      CROSS JOIN LATERAL (SELECT id, priority, logical_time,
                                                 started_at IS NULL AND reopened_at IS NULL
                                                     AND (trigger = 1 OR trigger = 3 AND source IS NULL) AS timed
                                            FROM heddle.runs_live WHERE id = w.run AND state = 0 OFFSET 0) AS l
                      WHERE w.group_id = g.id AND NOT w.upstreams) AS w
                WHERE w.place <= $2
                ORDER BY g.id, w.priority DESC, w.logical_time, w.run"#,
            groups,
            limit
        )
        .fetch_all(self.connection())
        .await?;
        for row in waiting {
            if let Some(gate) = gates.get_mut(&row.group_id) {
                gate.timed_waiting = usize::try_from(row.timed_waiting).unwrap_or_default();
                gate.waiting.push(AtGate {
                    run: RunId(row.run),
                    timed: row.timed,
                });
            }
        }
        // If no run waits, it does not matter which runs are active.
        gates.retain(|_, gate| !gate.waiting.is_empty());
        let asked: Vec<i64> = gates.keys().copied().collect();
        let active = sqlx::query!(
            r#"SELECT l.group_id AS "group_id!", l.id AS "id!", l.trigger AS "trigger!", l.source IS NOT NULL AS "sourced!",
                      l.logical_time AS "logical_time!"
                 FROM heddle.runs_live l
                WHERE l.group_id = ANY ($1) AND l.state <> 0 AND l.waiting_for IS NULL
                ORDER BY l.group_id, l.id"#,
            &asked
        )
        .fetch_all(self.connection())
        .await?;
        for row in active {
            if let Some(gate) = gates.get_mut(&row.group_id) {
                gate.active.push(ActiveRun {
                    run: RunId(row.id),
                    trigger: StoreError::known(Trigger::from_number, row.trigger, ("runs_live", "trigger"), row.id)?,
                    sourced: row.sourced,
                    logical_time: row.logical_time,
                });
            }
        }
        Ok(gates.into_values().collect())
    }

    /// Of these groups, whose gates this transaction holds: those without a run that waits for its turn (paused runs
    /// count here) and without an active run. The statement comes after the gates' locks, as those of [`Self::gates`].
    /// Each group is looked up by itself (`OFFSET 0`): a join would read all waiting and all live runs.
    pub async fn vacant_gates(&mut self, groups: &[i64]) -> Result<Vec<i64>, StoreError> {
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        Ok(sqlx::query_scalar!(
            r#"SELECT g.id AS "id!" FROM UNNEST($1::bigint[]) AS g (id)
                WHERE NOT EXISTS (SELECT FROM heddle.waits w WHERE w.group_id = g.id AND NOT w.upstreams OFFSET 0)
                  AND NOT EXISTS (SELECT FROM heddle.runs_live l
                                   WHERE l.group_id = g.id AND l.state <> 0 AND l.waiting_for IS NULL OFFSET 0)"#,
            groups
        )
        .fetch_all(self.connection())
        .await?)
    }

    /// Of the runs that wait for their turn at a gate that this transaction holds, and that a schedule or an upstream
    /// created: the oldest by logical time, without `except`, up to `limit`.
    pub async fn oldest_waiting(
        &mut self,
        group_id: i64,
        except: &[RunId],
        limit: i64,
    ) -> Result<Vec<RunId>, StoreError> {
        let except: Vec<Uuid> = except.iter().map(|run| run.0).collect();
        Ok(sqlx::query_scalar!(
            r#"SELECT l.id AS "id!"
                 FROM heddle.waits w
                CROSS JOIN LATERAL (SELECT id, logical_time, state, started_at, reopened_at, trigger, source
                                      FROM heddle.runs_live WHERE id = w.run OFFSET 0) AS l
                WHERE w.group_id = $1 AND NOT w.upstreams AND l.state = 0 AND l.started_at IS NULL AND l.reopened_at IS NULL
                  AND (l.trigger = 1 OR l.trigger = 3 AND l.source IS NULL) AND l.id <> ALL ($2)
                ORDER BY l.logical_time, l.id LIMIT $3"#,
            group_id,
            &except,
            limit
        )
        .fetch_all(self.connection())
        .await?
        .into_iter()
        .map(RunId)
        .collect())
    }

    /// Marks the gates of groups to be checked again.
    pub async fn reopen_gates(&mut self, groups: &[i64]) -> Result<(), StoreError> {
        sqlx::query!(
            "INSERT INTO heddle.turnstiles (group_id) SELECT UNNEST($1::bigint[])",
            groups
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }

    /// These runs wait no longer.
    pub async fn unwait(&mut self, runs: &[RunId]) -> Result<(), StoreError> {
        let ids: Vec<uuid::Uuid> = runs.iter().map(|run| run.0).collect();
        sqlx::query!("DELETE FROM heddle.waits WHERE run = ANY ($1)", &ids)
            .execute(self.connection())
            .await?;
        Ok(())
    }
}

/// The runs whose rows a tick skips.
#[derive(Clone, Debug, Default)]
pub struct PassedOver {
    pub timers: Vec<RunId>,
    /// Ends of sub-runs; by their parents.
    pub settlements: Vec<RunId>,
    /// Runs that were submitted in SQL.
    pub starts: Vec<RunId>,
}

/// What there is in the inbox.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inbox {
    /// Whether task runs are ready.
    pub ready: bool,
    /// When the next timer is due.
    pub next_due: Option<Time>,
    /// Whether sub-runs have ended.
    pub settlements: bool,
    /// Runs were submitted in SQL.
    pub starts: bool,
    /// Groups have waiting runs to be checked: rows of *turnstiles*.
    pub gates: bool,
}

impl Store {
    /// One cheap query for all kinds of rows in the inbox.
    pub async fn inbox(&self, passed_over: &PassedOver) -> Result<Inbox, StoreError> {
        let ids = |runs: &[RunId]| -> Vec<Uuid> { runs.iter().map(|run| run.0).collect() };
        let row = sqlx::query!(
            r#"SELECT EXISTS (SELECT FROM heddle.ready) AS "ready!",
                      (SELECT min(due_at) FROM heddle.timers WHERE run <> ALL ($1)) AS next_due,
                      EXISTS (SELECT FROM heddle.settlements WHERE run <> ALL ($2)) AS "settlements!",
                      EXISTS (SELECT FROM heddle.starts WHERE run <> ALL ($3)) AS "starts!",
                      EXISTS (SELECT FROM heddle.turnstiles) AS "turnstiles!""#,
            &ids(&passed_over.timers),
            &ids(&passed_over.settlements),
            &ids(&passed_over.starts)
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(Inbox {
            ready: row.ready,
            next_due: row.next_due,
            settlements: row.settlements,
            starts: row.starts,
            gates: row.turnstiles,
        })
    }

    /// Attempts whose node has no valid lease any more.
    pub async fn lost_attempts(&self) -> Result<Vec<LostAttempt>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT r.run, r.task, r.item, r.attempt, r.lease,
                      (SELECT l.node FROM heddle.leases l WHERE l.lease = r.lease) AS node
               FROM heddle.running r
              WHERE r.lease > 0
                AND NOT EXISTS (SELECT FROM heddle.nodes n WHERE n.lease = r.lease AND n.expires_at > clock_timestamp())
              LIMIT $1"#,
            BATCH_MAX as i64
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| LostAttempt {
                node: row.node,
                ended: EndedAttempt {
                    run: RunId(row.run),
                    at: AttemptKey::from_numbers(row.task, row.item, row.attempt),
                    lease: row.lease,
                },
            })
            .collect())
    }
}

impl Completion {
    /// Waiting runs are added at their groups' gates, each with its group.
    pub async fn wait_at_gate(&mut self, runs: &[(RunId, i64)]) -> Result<(), StoreError> {
        if runs.is_empty() {
            return Ok(());
        }
        let waiting_for = RunWait::stored(&[RunWait::Gate]);
        let ids: Vec<Uuid> = runs.iter().map(|(run, _)| run.0).collect();
        let groups: Vec<i64> = runs.iter().map(|(_, group)| *group).collect();
        sqlx::query!(
            "WITH given AS MATERIALIZED (
                 SELECT * FROM UNNEST($1::uuid[], $2::bigint[]) AS g (run, group_id)
             ),
             waiting AS (
                 INSERT INTO heddle.waits (run, group_id) SELECT run, group_id FROM given ON CONFLICT DO NOTHING
             ),
             said AS (
                 UPDATE heddle.runs_live l SET waiting_for = $3 FROM given g WHERE l.id = ANY (ARRAY[g.run])
             )
             INSERT INTO heddle.turnstiles (group_id) SELECT DISTINCT group_id FROM given",
            &ids,
            &groups,
            &waiting_for
        )
        .execute(self.connection())
        .await?;
        Ok(())
    }
}

impl Store {
    /// Marks gates with waiting runs to be checked, up to `limit` of them, after the group `after`; returns the last
    /// one, or `None` at the end. It goes from group to group by the index, however many runs wait in one.
    pub async fn wake_gates(&self, after: i64, limit: i64) -> Result<Option<i64>, StoreError> {
        let woken = sqlx::query!(
            r#"WITH RECURSIVE waiting AS (
                   (SELECT group_id FROM heddle.waits WHERE NOT upstreams AND group_id > $1 ORDER BY group_id LIMIT 1)
                   UNION ALL
                   SELECT (SELECT w.group_id FROM heddle.waits w
                            WHERE NOT w.upstreams AND w.group_id > waiting.group_id ORDER BY w.group_id LIMIT 1)
                     FROM waiting WHERE waiting.group_id IS NOT NULL),
               page AS (SELECT group_id FROM waiting WHERE group_id IS NOT NULL LIMIT $2),
               woken AS (INSERT INTO heddle.turnstiles (group_id) SELECT group_id FROM page)
               SELECT max(group_id) AS last, count(*) AS "count!" FROM page"#,
            after,
            limit
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(woken.last.filter(|_| woken.count == limit))
    }

    /// Marks a group's waiting runs to be checked; `false`: it has none.
    pub async fn wake_gate(&self, group: &str) -> Result<bool, StoreError> {
        let woken = sqlx::query!(
            "INSERT INTO heddle.turnstiles (group_id)
             SELECT g.id FROM heddle.groups g
              WHERE g.name = $1 AND EXISTS (SELECT FROM heddle.waits w WHERE w.group_id = g.id OFFSET 0)",
            group
        )
        .execute(&self.pool)
        .await?;
        Ok(woken.rows_affected() > 0)
    }
}
