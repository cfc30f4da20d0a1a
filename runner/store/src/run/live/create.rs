//! Creating runs.

use std::collections::HashMap;
use std::sync::Arc;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::notify::rules::{Notice, Telling};
use heddle_domain::pool::PoolNeed;
use heddle_domain::run::AttemptKey;
use heddle_domain::spec::NotifyEvent;
use heddle_domain::state::{RunState, Trigger};
use serde_json::Value;
use uuid::Uuid;

use super::pools::insert_pooled_of_runs;
use super::queue::{QueueRow, put_in};
use crate::change::{By, Noun};
use crate::database::PgSession;
use crate::notice::{NewNotices, insert_notices_in};
use crate::transaction::transaction;
use crate::{Store, StoreError, audit};

/// A row for *ready*, or for *running* if it is handed to this node.
#[derive(Clone, Debug)]
pub struct ReadyRow {
    /// What.
    pub at: AttemptKey,
    /// Its place in the queue among rows of its priority.
    pub turn: i64,
    /// Whether this node takes it at once: as far as a [`super::Grant`] reaches.
    pub(super) handed: bool,
    /// The slots that it waits for before it is ready.
    pub pools: Option<Arc<PoolNeed>>,
}

impl ReadyRow {
    /// A row for *ready*.
    pub fn new(at: AttemptKey, turn: i64, pools: Option<Arc<PoolNeed>>) -> Self {
        Self {
            at,
            turn,
            handed: false,
            pools,
        }
    }
}

/// A run to be created.
#[derive(Clone, Debug)]
pub struct NewRun {
    /// Its id.
    pub id: RunId,
    /// Of which group.
    pub group_id: i64,
    /// Which revision it pins.
    pub revision_id: i64,
    /// Which script versions it pins; none: resolved when it starts.
    pub resolution_id: Option<i64>,
    /// Waiting or running.
    pub state: RunState,
    /// Why it is made.
    pub trigger: Trigger,
    /// Higher goes first.
    pub priority: i16,
    /// What time it is about.
    pub logical_time: Time,
    /// From the previous instant to this one.
    pub interval: (Time, Time),
    /// JSON object.
    pub params: String,
    /// JSON object of objects.
    pub task_params: Option<String>,
    /// Free words.
    pub labels: Option<Value>,
    /// Unique per group.
    pub key: Option<String>,
    /// Hash of what must be unique, and whether for as long as the run is kept (else while it is unfinished).
    pub dedupe: Option<(Vec<u8>, bool)>,
    /// A channel's name or a URL.
    pub callback: Option<String>,
    /// When.
    pub created_at: Time,
    /// When it must have ended.
    pub deadline_at: Option<Time>,
    /// The attempt that it is a sub-run of.
    pub parent: Option<(RunId, AttemptKey)>,
    /// When that attempt has to have ended.
    pub parent_due: Option<Time>,
    /// The backfill or run that it was made by.
    pub source: Option<Uuid>,
    /// Why it waits.
    pub waiting_for: Option<Value>,
    /// [`heddle_domain::run::Progress`] as bytes.
    pub progress: Vec<u8>,
    /// What of it may start at once.
    pub ready: Vec<ReadyRow>,
    /// What of it workers may claim at once.
    pub queued: Vec<QueueRow>,
    /// It waits before its group's gate.
    pub gated: bool,
    /// It waits for upstream groups before that.
    pub follows: bool,
    /// It is the one run of its group for its logical time.
    pub instant: bool,
    /// Somebody wants to hear that it has started.
    pub start_told: bool,
    /// What the audit says of it, if people made it otherwise than by a submission.
    pub audited: Option<Audited>,
}

/// What the audit says of a run that people made.
#[derive(Clone, Debug)]
pub struct Audited {
    /// Who.
    pub actor: String,
    /// Did what.
    pub action: &'static str,
    /// How it stands after that.
    pub after: Value,
}

impl NewRun {
    /// Whether nothing has to be settled or written for it beside its own row and what of it is ready.
    pub fn is_plain(&self) -> bool {
        self.key.is_none()
            && self.dedupe.is_none()
            && self.parent.is_none()
            && !self.gated
            && !self.instant
            && !self.start_told
            && self.audited.is_none()
            && self.deadline_at.is_none()
            && self.queued.is_empty()
            && self.ready.iter().all(|row| row.pools.is_none())
    }

    fn unpooled(&self) -> impl Iterator<Item = &ReadyRow> {
        self.ready.iter().filter(|row| row.pools.is_none())
    }
}

/// What became of a [`NewRun`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Created {
    /// It is there. `handed` tells whether the rows meant for this node came to it.
    Made {
        /// See above.
        handed: bool,
    },
    /// There is one with this key, these params, or for this instant.
    Exists(RunId),
    /// The parent's attempt is not this node's any more: nothing was made.
    Fenced,
}

impl Store {
    /// Creates runs, in one transaction. The answers are in the order of `runs`.
    pub async fn create_runs(&self, runs: &[&NewRun], lease: i64, now: Time) -> Result<Vec<Created>, StoreError> {
        if runs.iter().all(|run| run.is_plain()) {
            let mut connection = self.pool.acquire().await?;
            let handed = insert_runs(&mut connection, runs, lease, now).await?;
            return Ok(vec![Created::Made { handed }; runs.len()]);
        }
        transaction!(self, pool, "create_runs", once, |tx| {
            // Somebody's open transaction may hold a key (`heddle.submit`): whoever wants the same one is told so, instead
            // of holding up everybody who shares this commit.
            sqlx::query!("SET LOCAL lock_timeout = '500ms'")
                .execute(&mut *tx)
                .await?;
            let created = create_in(&mut tx, runs, lease, now).await?;
            tx.commit().await?;
            Ok(created)
        })
    }
}

/// The same within a transaction of the caller's.
pub(crate) async fn create_in(
    tx: &mut PgSession,
    runs: &[&NewRun],
    lease: i64,
    now: Time,
) -> Result<Vec<Created>, StoreError> {
    let mut refused: HashMap<usize, Created> = HashMap::new();
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
    let handed = insert_runs(tx, &accepted, lease, now).await?;
    insert_pooled_of_runs(tx, &accepted).await?;
    for run in &accepted {
        let Some(audited) = &run.audited else { continue };
        let by = By {
            actor: &audited.actor,
            at: now,
        };
        let (name, after) = (run.id.to_string(), Some(&audited.after));
        audit::write(tx, by, audited.action, Noun::Run, &name, None, after).await?;
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
        .map(|index| refused.remove(&index).unwrap_or(Created::Made { handed }))
        .collect())
}

async fn settle_keys(
    tx: &mut PgSession,
    runs: &[&NewRun],
    refused: &mut HashMap<usize, Created>,
) -> Result<(), StoreError> {
    let mut keyed: Vec<(i64, &str, usize, Uuid)> = runs
        .iter()
        .enumerate()
        .filter(|(index, _)| !refused.contains_key(index))
        .filter_map(|(index, run)| Some((run.group_id, run.key.as_deref()?, index, run.id.0)))
        .collect();
    if keyed.is_empty() {
        return Ok(());
    }
    // In order, so that two nodes with overlapping batches do not deadlock, and of two with one key the first wins.
    keyed.sort_unstable();
    let groups: Vec<i64> = keyed.iter().map(|entry| entry.0).collect();
    let keys: Vec<String> = keyed.iter().map(|entry| entry.1.to_owned()).collect();
    let ids: Vec<Uuid> = keyed.iter().map(|entry| entry.3).collect();
    let made: Vec<Uuid> = sqlx::query_scalar!(
        "INSERT INTO heddle.run_keys (group_id, key, run)
         SELECT group_id, key, run
           FROM UNNEST($1::bigint[], $2::text[], $3::uuid[]) WITH ORDINALITY AS g (group_id, key, run, place)
          ORDER BY place
         ON CONFLICT (group_id, key) DO NOTHING
         RETURNING run",
        &groups,
        &keys,
        &ids
    )
    .fetch_all(&mut *tx)
    .await?;
    if made.len() == keyed.len() {
        return Ok(());
    }
    let made: std::collections::HashSet<Uuid> = made.into_iter().collect();
    let holders = sqlx::query!(
        "SELECT k.group_id, k.key, k.run
           FROM heddle.run_keys k
           JOIN UNNEST($1::bigint[], $2::text[]) AS g (group_id, key) ON k.group_id = g.group_id AND k.key = g.key",
        &groups,
        &keys
    )
    .fetch_all(&mut *tx)
    .await?;
    let holders: HashMap<(i64, &str), Uuid> = holders
        .iter()
        .map(|row| ((row.group_id, row.key.as_str()), row.run))
        .collect();
    for (group, key, index, id) in keyed {
        if !made.contains(&id) {
            let holder = holders.get(&(group, key)).copied().unwrap_or(id);
            refused.insert(index, Created::Exists(RunId(holder)));
        }
    }
    Ok(())
}

/// A group has one run for an instant, whoever makes it.
async fn settle_instants(
    tx: &mut PgSession,
    runs: &[&NewRun],
    refused: &mut HashMap<usize, Created>,
) -> Result<(), StoreError> {
    let mut instants: Vec<(i64, Time, Uuid, usize)> = runs
        .iter()
        .enumerate()
        .filter(|(index, run)| run.instant && !refused.contains_key(index))
        .map(|(index, run)| (run.group_id, run.logical_time, run.id.0, index))
        .collect();
    if instants.is_empty() {
        return Ok(());
    }
    // In order, so that two nodes with overlapping batches do not deadlock.
    instants.sort_unstable();
    let groups: Vec<i64> = instants.iter().map(|entry| entry.0).collect();
    let times: Vec<Time> = instants.iter().map(|entry| entry.1).collect();
    let ids: Vec<Uuid> = instants.iter().map(|entry| entry.2).collect();
    let made: Vec<Uuid> = sqlx::query_scalar!(
        "INSERT INTO heddle.run_instants (group_id, logical_time, run)
         SELECT group_id, logical_time, run
           FROM UNNEST($1::bigint[], $2::timestamptz[], $3::uuid[]) AS i (group_id, logical_time, run)
          ORDER BY group_id, logical_time
         ON CONFLICT (group_id, logical_time) DO NOTHING
         RETURNING run",
        &groups,
        &times,
        &ids
    )
    .fetch_all(&mut *tx)
    .await?;
    if made.len() == instants.len() {
        return Ok(());
    }
    let made: std::collections::HashSet<Uuid> = made.into_iter().collect();
    let holders: HashMap<(i64, Time), Uuid> = sqlx::query!(
        "SELECT i.group_id, i.logical_time, i.run
           FROM heddle.run_instants i
           JOIN UNNEST($1::bigint[], $2::timestamptz[]) AS g (group_id, logical_time)
             ON i.group_id = g.group_id AND i.logical_time = g.logical_time",
        &groups,
        &times
    )
    .fetch_all(&mut *tx)
    .await?
    .into_iter()
    .map(|row| ((row.group_id, row.logical_time), row.run))
    .collect();
    for (group, at, id, index) in instants {
        if !made.contains(&id) {
            let holder = holders.get(&(group, at)).copied().unwrap_or(id);
            refused.insert(index, Created::Exists(RunId(holder)));
        }
    }
    Ok(())
}

/// Who has a group's params: the run, and whether it is still in the way of those that ask for unfinished ones only.
type DedupeHolders = HashMap<(i64, Vec<u8>), (Uuid, bool)>;

/// Locks the params that runs are deduped by, and refuses those whose params an earlier run has.
async fn dedupe_holders(
    tx: &mut PgSession,
    runs: &[&NewRun],
    refused: &mut HashMap<usize, Created>,
) -> Result<DedupeHolders, StoreError> {
    let mut hashes: Vec<&[u8]> = runs
        .iter()
        .filter_map(|run| Some(run.dedupe.as_ref()?.0.as_slice()))
        .collect();
    if hashes.is_empty() {
        return Ok(DedupeHolders::new());
    }
    hashes.sort_unstable();
    hashes.dedup();
    let locks: Vec<i64> = hashes.iter().map(|hash| lock_number(hash)).collect();
    // A statement of its own: the next one's snapshot is taken when all earlier holders have committed.
    sqlx::query!("SELECT pg_advisory_xact_lock(n) FROM UNNEST($1::bigint[]) AS n", &locks)
        .fetch_all(&mut *tx)
        .await?;
    let given: Vec<Vec<u8>> = hashes.iter().map(|hash| hash.to_vec()).collect();
    let rows = sqlx::query!(
        r#"SELECT d.group_id, d.hash, d.run, EXISTS (SELECT FROM heddle.runs_live l WHERE l.id = d.run) AS "live!"
             FROM heddle.run_dedupes d WHERE d.hash = ANY ($1)"#,
        &given
    )
    .fetch_all(&mut *tx)
    .await?;
    let holders: DedupeHolders = rows
        .into_iter()
        .map(|row| ((row.group_id, row.hash), (row.run, row.live)))
        .collect();
    for (index, run) in runs.iter().enumerate() {
        if let Some((hash, kept)) = &run.dedupe
            && let Some((holder, live)) = holders.get(&(run.group_id, hash.clone()))
            && (*live || *kept)
        {
            refused.insert(index, Created::Exists(RunId(*holder)));
        }
    }
    Ok(holders)
}

/// Takes the params of those that nothing has refused so far; of two of one batch the first has them.
async fn settle_dedupes(
    tx: &mut PgSession,
    runs: &[&NewRun],
    mut holders: DedupeHolders,
    refused: &mut HashMap<usize, Created>,
) -> Result<(), StoreError> {
    let (mut groups, mut new_hashes, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    let mut taken = std::collections::HashSet::new();
    let mut without_keys = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let Some((hash, _)) = run.dedupe.as_ref().filter(|_| !refused.contains_key(&index)) else {
            continue;
        };
        let place = (run.group_id, hash.clone());
        // Earlier runs that were in the way have refused it already.
        match holders.get(&place) {
            Some((holder, _)) if taken.contains(holder) => {
                refused.insert(index, Created::Exists(RunId(*holder)));
                without_keys.extend(run.key.is_some().then_some(run.id.0));
            }
            _ => {
                holders.insert(place, (run.id.0, true));
                taken.insert(run.id.0);
                groups.push(run.group_id);
                new_hashes.push(hash.clone());
                ids.push(run.id.0);
            }
        }
    }
    if !ids.is_empty() {
        sqlx::query!(
            "INSERT INTO heddle.run_dedupes (group_id, hash, run)
             SELECT group_id, hash, run FROM UNNEST($1::bigint[], $2::bytea[], $3::uuid[]) AS d (group_id, hash, run)
             ON CONFLICT (group_id, hash) DO UPDATE SET run = excluded.run",
            &groups,
            &new_hashes,
            &ids
        )
        .execute(&mut *tx)
        .await?;
    }
    if !without_keys.is_empty() {
        sqlx::query!("DELETE FROM heddle.run_keys WHERE run = ANY ($1)", &without_keys)
            .execute(&mut *tx)
            .await?;
    }
    Ok(())
}

fn lock_number(hash: &[u8]) -> i64 {
    let mut eight = [0u8; 8];
    for (to, from) in eight.iter_mut().zip(hash) {
        *to = *from;
    }
    i64::from_be_bytes(eight)
}

/// Sub-runs take their parent's attempt over from the node (lease 0); whose attempt is gone makes none.
async fn settle_parents(
    tx: &mut PgSession,
    runs: &[&NewRun],
    lease: i64,
    refused: &mut HashMap<usize, Created>,
) -> Result<(), StoreError> {
    for (index, run) in runs.iter().enumerate() {
        let Some((parent, at)) = run.parent else { continue };
        if refused.contains_key(&index) {
            continue;
        }
        let taken = sqlx::query!(
            "UPDATE heddle.running SET lease = 0
              WHERE run = $1 AND task = $2 AND item = $3 AND attempt = $4 AND lease = $5",
            parent.0,
            at.key.task as i16,
            at.key.item_number(),
            at.attempt as i32,
            lease
        )
        .execute(&mut *tx)
        .await?;
        if taken.rows_affected() == 0 {
            refused.insert(index, Created::Fenced);
            continue;
        }
        if let Some(due) = run.parent_due {
            // No node watches an attempt that a sub-run holds.
            sqlx::query!(
                "INSERT INTO heddle.timers (run, task, item, kind, attempt, due_at) VALUES ($1, $2, $3, 2, $4, $5)
                 ON CONFLICT (run, task, item, kind) DO UPDATE SET attempt = excluded.attempt, due_at = excluded.due_at",
                parent.0,
                at.key.task as i16,
                at.key.item_number(),
                at.attempt as i32,
                due
            )
            .execute(&mut *tx)
            .await?;
        }
    }
    Ok(())
}

async fn insert_runs(
    connection: &mut crate::database::PgSession,
    runs: &[&NewRun],
    lease: i64,
    now: Time,
) -> Result<bool, StoreError> {
    if runs.is_empty() {
        return Ok(true);
    }
    macro_rules! column {
        ($run:ident => $value:expr) => {
            runs.iter().map(|$run| $value).collect::<Vec<_>>()
        };
    }
    let started: Vec<Option<Time>> = column!(run => (run.state != RunState::Waiting).then_some(run.created_at));
    let rows: Vec<(&NewRun, &ReadyRow)> = runs
        .iter()
        .flat_map(|run| run.unpooled().map(move |row| (*run, row)))
        .collect();
    macro_rules! row_column {
        ($run:ident, $row:ident => $value:expr) => {
            rows.iter().map(|($run, $row)| $value).collect::<Vec<_>>()
        };
    }
    let fit = sqlx::query_file_scalar!(
        "src/sql/create_runs.sql",
        &column!(run => run.id.0),
        &column!(run => run.group_id),
        &column!(run => run.revision_id),
        &column!(run => run.resolution_id) as &[Option<i64>],
        &column!(run => run.state.number()),
        &column!(run => run.trigger.number()),
        &column!(run => run.priority),
        &column!(run => run.logical_time),
        &column!(run => run.interval.0),
        &column!(run => run.interval.1),
        &column!(run => run.params.clone()),
        &column!(run => run.task_params.clone()) as &[Option<String>],
        &column!(run => run.labels.clone()) as &[Option<Value>],
        &column!(run => run.key.clone()) as &[Option<String>],
        &column!(run => run.dedupe.as_ref().map(|dedupe| dedupe.0.clone())) as &[Option<Vec<u8>>],
        &column!(run => run.callback.clone()) as &[Option<String>],
        &column!(run => run.created_at),
        &started as &[Option<Time>],
        &column!(run => run.deadline_at) as &[Option<Time>],
        &column!(run => run.parent.map(|parent| parent.0.0)) as &[Option<Uuid>],
        &column!(run => run.parent.map(|parent| parent.1.key.task as i16)) as &[Option<i16>],
        &column!(run => run.parent.map(|parent| parent.1.key.item_number())) as &[Option<i32>],
        &column!(run => run.parent.map(|parent| parent.1.attempt as i32)) as &[Option<i32>],
        &column!(run => run.source) as &[Option<Uuid>],
        &column!(run => run.waiting_for.clone()) as &[Option<Value>],
        &column!(run => run.progress.clone()),
        &row_column!(run, _row => run.id.0),
        &row_column!(_run, row => row.at.key.task as i16),
        &row_column!(_run, row => row.at.key.item_number()),
        &row_column!(_run, row => row.at.attempt as i32),
        &row_column!(run, _row => run.priority),
        &row_column!(_run, row => row.turn),
        &row_column!(_run, row => row.handed),
        lease,
        now
    )
    .fetch_one(&mut *connection)
    .await?;
    let queued: Vec<(RunId, i16, &QueueRow)> = runs
        .iter()
        .flat_map(|run| run.queued.iter().map(|row| (run.id, run.priority, row)))
        .collect();
    put_in(&mut *connection, &queued).await?;
    let told: Vec<NewNotices> = runs
        .iter()
        .filter(|run| run.start_told && run.state == RunState::Running)
        .map(|run| NewNotices {
            group_id: run.group_id,
            revision_id: run.revision_id,
            run: Some(run.id),
            telling: Telling {
                notices: vec![Notice::of_run(NotifyEvent::Started)],
                troubled: Vec::new(),
            },
            names: Vec::new(),
            about: None,
        })
        .collect();
    if !told.is_empty() {
        insert_notices_in(connection, &told, now).await?;
    }
    Ok(fit)
}
