//! What prevents the creation of a run: its key, its params, its instant, or the attempt that requested it.

use std::collections::{HashMap, HashSet};

use heddle_domain::Time;
use heddle_domain::id::RunId;
use uuid::Uuid;

use super::timers::{NewTimer, TimerKind, put_timers};
use super::{Created, GroupNeed, NewRun};
use crate::StoreError;
use crate::database::{PgSession, column};

/// The groups of the runs that ask for their groups, each once.
pub(super) fn asked_groups(runs: &[&NewRun]) -> Vec<i64> {
    let asked = runs.iter().filter(|run| run.needs != GroupNeed::NotAsked);
    let mut groups: Vec<i64> = asked.map(|run| run.group_id).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Those of these groups that take no runs, and whether each of them has been deleted. Until the end of the transaction,
/// none of the others is deleted or stopped; see `heddle.closed_groups`.
pub(crate) async fn closed_groups(
    tx: &mut PgSession,
    groups: &[i64],
    wait_ms: Option<i32>,
) -> Result<HashMap<i64, bool>, StoreError> {
    let closed = sqlx::query!(
        r#"SELECT id AS "id!", deleted AS "deleted!" FROM heddle.closed_groups($1, $2)"#,
        groups,
        wait_ms
    )
    .fetch_all(tx)
    .await?;
    Ok(closed.into_iter().map(|row| (row.id, row.deleted)).collect())
}

/// A run that asks for its group is created only while the group takes runs; see `heddle.closed_groups`. Before all other
/// locks of the creation.
pub(super) async fn settle_groups(
    tx: &mut PgSession,
    runs: &[&NewRun],
    wait_ms: Option<i32>,
    refused: &mut HashMap<usize, Created>,
) -> Result<(), StoreError> {
    let closed = closed_groups(tx, &asked_groups(runs), wait_ms).await?;
    for (index, run) in runs.iter().enumerate() {
        match (run.needs, closed.get(&run.group_id)) {
            (GroupNeed::Exists | GroupNeed::Enabled, Some(true)) => drop(refused.insert(index, Created::Deleted)),
            (GroupNeed::Enabled, Some(false)) => drop(refused.insert(index, Created::Disabled)),
            _ => {}
        }
    }
    Ok(())
}

pub(super) async fn settle_keys(
    tx: &mut PgSession,
    runs: &[&NewRun],
    refused: &mut HashMap<usize, Created>,
) -> Result<(), StoreError> {
    let mut keyed: Vec<(i64, &str, usize, Uuid)> = runs
        .iter()
        .enumerate()
        .filter(|(index, _)| !refused.contains_key(index))
        .filter_map(|(index, run)| Some((run.group_id, run.terms.key.as_deref()?, index, run.id.0)))
        .collect();
    if keyed.is_empty() {
        return Ok(());
    }
    // In order, so that two nodes with overlapping batches do not deadlock, and of two runs with one key the first
    // wins.
    keyed.sort_unstable();
    let groups: Vec<i64> = keyed.iter().map(|entry| entry.0).collect();
    let keys: Vec<String> = keyed.iter().map(|entry| entry.1.to_owned()).collect();
    let ids: Vec<Uuid> = keyed.iter().map(|entry| entry.3).collect();
    let made: Vec<Uuid> = sqlx::query_scalar!(
        "INSERT INTO heddle.run_keys (group_id, key, run)
         SELECT group_id, key, run
           FROM UNNEST($1::bigint[], $2::text[], $3::uuid[]) WITH ORDINALITY AS g (group_id, key, run, ordinal)
          ORDER BY ordinal
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
    let made: HashSet<Uuid> = made.into_iter().collect();
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

/// A run that is to be the only one of its group for an instant. Sorted by group and instant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Instant {
    group: i64,
    at: Time,
    run: Uuid,
    /// The index of the run in the batch.
    index: usize,
}

/// A run for an instant whose registered run is gone.
struct Successor {
    group: i64,
    at: Time,
    run: Uuid,
    /// The run that is gone.
    gone: Uuid,
}

/// A group has one run for an instant, whoever makes it, for as long as that run is kept.
///
/// If the registered run is gone, its row is taken over. The statement checks under the lock of the row that it still names
/// that run, so only one of several transactions gets the row.
pub(super) async fn settle_instants(
    tx: &mut PgSession,
    runs: &[&NewRun],
    refused: &mut HashMap<usize, Created>,
) -> Result<(), StoreError> {
    let mut instants: Vec<Instant> = runs
        .iter()
        .enumerate()
        .filter(|(index, run)| run.instant && !refused.contains_key(index))
        .map(|(index, run)| Instant {
            group: run.group_id,
            at: run.terms.logical_time,
            run: run.id.0,
            index,
        })
        .collect();
    if instants.is_empty() {
        return Ok(());
    }
    // In order, so that two nodes with overlapping batches do not deadlock.
    instants.sort_unstable();
    let mut made = register_instants(tx, &instants).await?;
    if made.len() == instants.len() {
        return Ok(());
    }
    instants.retain(|entry| !made.contains(&entry.run));
    let holders = instant_holders(tx, &instants).await?;
    // (The runs of this batch have no rows yet, so they look as if they were gone.)
    let mut left: Vec<Successor> = instants
        .iter()
        .filter_map(|&Instant { group, at, run, .. }| match holders.get(&(group, at)) {
            Some(&(gone, true)) if !made.contains(&gone) => Some(Successor { group, at, run, gone }),
            _ => None,
        })
        .collect();
    left.dedup_by_key(|entry| (entry.group, entry.at));
    made.extend(take_over_instants(tx, &left).await?);
    for Instant { group, at, run, index } in instants {
        if !made.contains(&run) {
            let holder = holders.get(&(group, at)).map_or(run, |(holder, _)| *holder);
            refused.insert(index, Created::Exists(RunId(holder)));
        }
    }
    Ok(())
}

/// Registers the instants that nobody has registered; returns their runs.
async fn register_instants(tx: &mut PgSession, instants: &[Instant]) -> Result<HashSet<Uuid>, StoreError> {
    let made = sqlx::query_scalar!(
        "INSERT INTO heddle.run_instants (group_id, logical_time, run)
         SELECT group_id, logical_time, run
           FROM UNNEST($1::bigint[], $2::timestamptz[], $3::uuid[]) AS i (group_id, logical_time, run)
          ORDER BY group_id, logical_time
         ON CONFLICT (group_id, logical_time) DO NOTHING
         RETURNING run",
        &column(instants, |entry| entry.group),
        &column(instants, |entry| entry.at),
        &column(instants, |entry| entry.run)
    )
    .fetch_all(tx)
    .await?;
    Ok(made.into_iter().collect())
}

/// By group and instant: the registered run, and whether it is gone.
async fn instant_holders(
    tx: &mut PgSession,
    instants: &[Instant],
) -> Result<HashMap<(i64, Time), (Uuid, bool)>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT i.group_id, i.logical_time, i.run,
                  (SELECT l.id FROM heddle.runs_live l WHERE l.id = i.run
                   UNION ALL SELECT d.id FROM heddle.runs_done d WHERE d.id = i.run LIMIT 1) IS NULL AS "gone!"
             FROM heddle.run_instants i
             JOIN UNNEST($1::bigint[], $2::timestamptz[]) AS g (group_id, logical_time)
               ON i.group_id = g.group_id AND i.logical_time = g.logical_time"#,
        &column(instants, |entry| entry.group),
        &column(instants, |entry| entry.at)
    )
    .fetch_all(tx)
    .await?;
    let holders = rows.into_iter();
    Ok(holders
        .map(|row| ((row.group_id, row.logical_time), (row.run, row.gone)))
        .collect())
}

/// Registers runs for instants whose registered runs are gone; returns those that are registered now.
async fn take_over_instants(tx: &mut PgSession, left: &[Successor]) -> Result<Vec<Uuid>, StoreError> {
    if left.is_empty() {
        return Ok(Vec::new());
    }
    Ok(sqlx::query_scalar!(
        "INSERT INTO heddle.run_instants AS i (group_id, logical_time, run)
         SELECT group_id, logical_time, run
           FROM UNNEST($1::bigint[], $2::timestamptz[], $3::uuid[]) AS g (group_id, logical_time, run)
          ORDER BY group_id, logical_time
         ON CONFLICT (group_id, logical_time) DO UPDATE SET run = excluded.run, skipped = false
          WHERE (i.group_id, i.logical_time, i.run) IN (
                SELECT s.group_id, s.logical_time, s.run
                  FROM UNNEST($1::bigint[], $2::timestamptz[], $4::uuid[]) AS s (group_id, logical_time, run))
         RETURNING i.run",
        &column(left, |entry| entry.group),
        &column(left, |entry| entry.at),
        &column(left, |entry| entry.run),
        &column(left, |entry| entry.gone)
    )
    .fetch_all(tx)
    .await?)
}

/// How many of a group's newest unfinished runs, and how many of its newest ended ones, are checked for the params of a
/// deduped run.
const PLAIN_MAX: i64 = 10_000;

/// The holder of a group's params: the run, and whether it still blocks runs that must be unique only among unfinished
/// ones.
type DedupeHolders = HashMap<(i64, Vec<u8>), (Uuid, bool)>;

/// Locks the params by which runs are deduped, and refuses those whose params an earlier run has.
///
/// Locking: the hashes, in their order, before any run. By a statement of its own: the snapshot of the next one is taken
/// when all earlier holders have committed.
pub(super) async fn dedupe_holders(
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
    refuse_for_plain(tx, runs, refused).await?;
    Ok(holders)
}

/// Refuses those whose params a run without `dedupe` has, whoever created it: an unfinished run, or for `params_kept`
/// also an ended one.
///
/// Runs without `dedupe` store no hash: most runs would pay for something that they never need. Deduped runs pay
/// instead, by reading the group's newest unfinished runs, and for `params_kept` also its newest ended ones. Params are
/// compared as they are stored: as this program writes them, or as `heddle.submit` does. (JSON with a zero character is
/// no `jsonb`, so SQL cannot have submitted it.) No lock is taken: a plain run that is created at the same moment may
/// count as earlier or as later.
async fn refuse_for_plain(
    tx: &mut PgSession,
    runs: &[&NewRun],
    refused: &mut HashMap<usize, Created>,
) -> Result<(), StoreError> {
    let asked: Vec<(usize, &NewRun)> = runs
        .iter()
        .enumerate()
        .filter(|(index, run)| run.dedupe.is_some() && !refused.contains_key(index))
        .map(|(index, run)| (index, *run))
        .collect();
    if asked.is_empty() {
        return Ok(());
    }
    let mut groups: Vec<i64> = asked.iter().map(|(_, run)| run.group_id).collect();
    groups.sort_unstable();
    groups.dedup();
    let params: Vec<String> = asked.iter().map(|(_, run)| run.terms.params.clone()).collect();
    let task_params: Vec<Option<String>> = asked.iter().map(|(_, run)| run.terms.task_params.clone()).collect();
    // Each in both forms, in the order of `asked`.
    let spelled = sqlx::query!(
        r#"SELECT s.ordinal AS "ordinal!", octet_length(s.params) AS "bytes!",
                  sha256(convert_to(s.params || E'\n' || coalesce(s.task_params, ''), 'UTF8')) AS "digest!"
             FROM (SELECT ordinal, params, task_params
                     FROM UNNEST($1::text[], $2::text[]) WITH ORDINALITY AS a (params, task_params, ordinal)
                    UNION
                   SELECT ordinal, params::jsonb::text, task_params
                     FROM UNNEST($1::text[], $2::text[]) WITH ORDINALITY AS a (params, task_params, ordinal)
                    WHERE params !~ '(^|[^\\])(\\\\)*\\u0000') AS s
            ORDER BY s.ordinal"#,
        &params,
        &task_params as &[Option<String>]
    )
    .fetch_all(&mut *tx)
    .await?;
    let mut lengths: Vec<i32> = spelled.iter().map(|row| row.bytes).collect();
    lengths.sort_unstable();
    lengths.dedup();
    // Two inequalities and this order leave the planner one index; with an equality it would also read the runs of all
    // groups. Digests are compared here: to join two sides without statistics, the planner may compare each with each.
    let found = sqlx::query!(
        r#"SELECT g.group_id AS "group_id!", l.id AS "id!",
                  sha256(convert_to(l.params || E'\n' || coalesce(l.task_params, ''), 'UTF8')) AS "digest!"
             FROM UNNEST($1::bigint[]) AS g (group_id)
            CROSS JOIN LATERAL (SELECT id, params, task_params, dedupe FROM heddle.runs_live
                                 WHERE group_id >= g.group_id AND group_id <= g.group_id
                                 ORDER BY group_id DESC, id DESC LIMIT $3) AS l
            WHERE l.dedupe IS NULL AND octet_length(l.params) = ANY ($2)"#,
        &groups,
        &lengths,
        PLAIN_MAX
    )
    .fetch_all(&mut *tx)
    .await?;
    let mut holders: HashMap<(i64, &[u8]), Uuid> = HashMap::with_capacity(found.len());
    for row in &found {
        let oldest = holders.entry((row.group_id, &row.digest)).or_insert(row.id);
        *oldest = row.id.min(*oldest);
    }
    let ended = if asked.iter().any(|(_, run)| is_kept(run)) {
        ended_params(tx, &groups, &lengths).await?
    } else {
        HashMap::new()
    };
    for row in &spelled {
        let Some((index, run)) = usize::try_from(row.ordinal)
            .ok()
            .and_then(|ordinal| asked.get(ordinal - 1))
        else {
            continue;
        };
        let unfinished = holders.get(&(run.group_id, row.digest.as_slice()));
        let holder = unfinished.or_else(|| {
            let ended = ended.get(&(run.group_id, row.digest.clone()));
            ended.filter(|_| is_kept(run))
        });
        if let Some(holder) = holder {
            refused.insert(*index, Created::Exists(RunId(*holder)));
        }
    }
    Ok(())
}

fn is_kept(run: &NewRun) -> bool {
    run.dedupe.as_ref().is_some_and(|(_, kept)| *kept)
}

/// The digests of params of these lengths, and the oldest ended run that has them.
///
/// Runs with `dedupe` count here too: for some params, `run_dedupes` names only the newest run, and that one may have
/// been deleted.
async fn ended_params(
    tx: &mut PgSession,
    groups: &[i64],
    lengths: &[i32],
) -> Result<HashMap<(i64, Vec<u8>), Uuid>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT g.group_id AS "group_id!", d.id AS "id!",
                  sha256(convert_to(d.params || E'\n' || coalesce(d.task_params, ''), 'UTF8')) AS "digest!"
             FROM UNNEST($1::bigint[]) AS g (group_id)
            CROSS JOIN LATERAL (SELECT id, params, task_params FROM heddle.runs_done
                                 WHERE group_id >= g.group_id AND group_id <= g.group_id
                                 ORDER BY group_id DESC, id DESC LIMIT $3) AS d
            WHERE octet_length(d.params) = ANY ($2)"#,
        groups,
        lengths,
        PLAIN_MAX
    )
    .fetch_all(&mut *tx)
    .await?;
    let mut holders = HashMap::with_capacity(rows.len());
    for row in rows {
        let oldest = holders.entry((row.group_id, row.digest)).or_insert(row.id);
        *oldest = row.id.min(*oldest);
    }
    Ok(holders)
}

/// Whether an earlier run of this batch, without `dedupe`, has the params of a run.
fn has_params_of(earlier: &NewRun, run: &NewRun) -> bool {
    earlier.dedupe.is_none()
        && !earlier.instant
        && earlier.parent.is_none()
        && earlier.group_id == run.group_id
        && earlier.terms.params == run.terms.params
        && earlier.terms.task_params == run.terms.task_params
}

/// Reserves the params of those runs that were not refused so far; of two in one batch, the first gets them.
pub(super) async fn settle_dedupes(
    tx: &mut PgSession,
    runs: &[&NewRun],
    mut holders: DedupeHolders,
    refused: &mut HashMap<usize, Created>,
) -> Result<(), StoreError> {
    let (mut groups, mut new_hashes, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    let mut winners = HashSet::new();
    let mut without_keys = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        let Some((hash, _)) = run.dedupe.as_ref().filter(|_| !refused.contains_key(&index)) else {
            continue;
        };
        let dedupe_key = (run.group_id, hash.clone());
        let plain = runs[..index]
            .iter()
            .enumerate()
            .find(|(earlier, other)| !refused.contains_key(earlier) && has_params_of(other, run));
        if let Some((_, holder)) = plain {
            refused.insert(index, Created::Exists(holder.id));
            without_keys.extend(run.terms.key.is_some().then_some(run.id.0));
            continue;
        }
        // Holders outside of this batch have been handled before.
        match holders.get(&dedupe_key) {
            Some((holder, _)) if winners.contains(holder) => {
                refused.insert(index, Created::Exists(RunId(*holder)));
                without_keys.extend(run.terms.key.is_some().then_some(run.id.0));
            }
            _ => {
                holders.insert(dedupe_key, (run.id.0, true));
                winners.insert(run.id.0);
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

/// The number of the advisory lock for a dedupe hash.
pub(super) fn lock_number(hash: &[u8]) -> i64 {
    let mut eight = [0u8; 8];
    for (to, from) in eight.iter_mut().zip(hash) {
        *to = *from;
    }
    i64::from_be_bytes(eight)
}

/// Sub-runs take their parent's attempt over from the node (lease 0); if the attempt is gone, no sub-run is created.
pub(super) async fn settle_parents(
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
        let released = sqlx::query!(
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
        if released.rows_affected() == 0 {
            refused.insert(index, Created::Fenced);
            continue;
        }
        if let Some(due) = run.parent_due {
            // No node watches the timeout of an attempt that a sub-run holds.
            let timer = NewTimer {
                run: parent,
                at,
                kind: TimerKind::Timeout,
                due,
            };
            put_timers(tx, &[timer]).await?;
        }
    }
    Ok(())
}
