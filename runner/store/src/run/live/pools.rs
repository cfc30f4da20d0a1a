//! Pools: slots that attempts take, across the cluster.
//!
//! # The story
//!
//! There are no counters of slots: a counter would stay wrong for ever after a node dies between its two changes. The
//! rows that make an attempt ready or running also say which attempts hold slots, and every way of ending an attempt
//! deletes them.
//!
//! A task run that needs slots does not become *ready*; it goes to *ready_pooled*. Whenever an attempt of a run with
//! pools changes, and periodically, a node *admits*: it locks the pools' rows, deletes the *pool_holds* whose attempt
//! is in none of *ready*, *queue_ready* and *running* any more, adds up what the others hold, and moves as many rows as
//! fit from *ready_pooled* to *ready*, each with its holds. It looks at the first rows of each *need* (the same slots of
//! the same pools): where the first one has to wait, those behind it have to as well. From *ready* they are claimed like
//! all others; a node that claims a task of a queue puts it into *queue_ready*, where it keeps its slots until a worker
//! has ended it. A dead node keeps its slots until its attempts are taken over, because they may still be running until
//! then.
//!
//! Task runs without pools do none of this.
//!
//! # Invariants
//!
//! * A task run has at most one row in *ready*, *ready_pooled*, *queue_ready* and *running* together.
//! * Holds are written with the row in *ready*, under the locks of all pools. So the sum under these locks is never too
//!   small, and the sum of holds never exceeds a pool's slots (unless the pool was made smaller).
//! * Rows that are taken back (cancel, pause, override) are first deleted from *ready_pooled*, in a separate statement:
//!   it waits for an admission in progress, and the next statement sees the row where that has put it.

use std::collections::BTreeMap;

use heddle_domain::id::RunId;
use heddle_domain::pool::{self, Pool, PoolNeed};
use heddle_domain::run::TaskKey;
use uuid::Uuid;

use super::{NewRun, ReadyRow, RunWrite};
use crate::database::{PgSession, column};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// How many waiting rows with the same need an admission reads.
const READ_MAX: i64 = 500;

/// A row of *ready_pooled*.
struct Waiting {
    run: Uuid,
    task: i16,
    item: i32,
    need: PoolNeed,
}

/// Inserts rows that need slots into the table where they wait.
async fn insert_pooled(connection: &mut PgSession, rows: &[(RunId, i16, &ReadyRow)]) -> Result<(), StoreError> {
    let rows: Vec<(RunId, i16, &ReadyRow, &PoolNeed)> = rows
        .iter()
        .filter_map(|&(run, priority, row)| Some((run, priority, row, row.pools.as_deref()?)))
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    // Arrays of arrays must be rectangular in Postgres: these are sent as one array, with the length of each part.
    let pools: Vec<String> = rows.iter().flat_map(|row| row.3.pools.iter().cloned()).collect();
    let slots: Vec<i32> = rows.iter().flat_map(|row| row.3.slots.iter().copied()).collect();
    let mut ends: Vec<i32> = Vec::with_capacity(rows.len());
    for row in &rows {
        ends.push(ends.last().copied().unwrap_or(0) + row.3.pools.len() as i32);
    }
    let begins: Vec<i32> = ends
        .iter()
        .zip(&rows)
        .map(|(end, row)| end - row.3.pools.len() as i32 + 1)
        .collect();
    sqlx::query!(
        "INSERT INTO heddle.ready_pooled (run, task, item, attempt, priority, turn, pool, pools, slots)
         SELECT run, task, item, attempt, priority, turn, ($7::text[])[first], ($7::text[])[first:last],
                ($8::integer[])[first:last]
           FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[], $4::integer[], $5::smallint[], $6::bigint[],
                       $9::integer[], $10::integer[])
             AS r (run, task, item, attempt, priority, turn, first, last)",
        &column(&rows, |row| row.0.0),
        &column(&rows, |row| row.2.at.key.task as i16),
        &column(&rows, |row| row.2.at.key.item_number()),
        &column(&rows, |row| row.2.at.attempt as i32),
        &column(&rows, |row| row.1),
        &column(&rows, |row| row.2.position),
        &pools,
        &slots,
        &begins,
        &ends
    )
    .execute(connection)
    .await?;
    Ok(())
}

pub(crate) async fn insert_pooled_of_runs(connection: &mut PgSession, runs: &[&NewRun]) -> Result<(), StoreError> {
    let rows: Vec<(RunId, i16, &ReadyRow)> = runs
        .iter()
        .flat_map(|run| run.ready.iter().map(move |row| (run.id, run.terms.priority, row)))
        .collect();
    insert_pooled(connection, &rows).await
}

pub(crate) async fn insert_pooled_of_writes(connection: &mut PgSession, writes: &[RunWrite]) -> Result<(), StoreError> {
    let rows: Vec<(RunId, i16, &ReadyRow)> = writes
        .iter()
        .flat_map(|write| write.ready.iter().map(move |row| (write.run, write.priority, row)))
        .collect();
    insert_pooled(connection, &rows).await
}

/// Takes back all rows of runs that wait for slots.
pub(crate) async fn withdraw_pooled(
    connection: &mut PgSession,
    runs: &[Uuid],
) -> Result<Vec<(RunId, TaskKey)>, StoreError> {
    let rows = sqlx::query!(
        "DELETE FROM heddle.ready_pooled WHERE run = ANY ($1) RETURNING run, task, item",
        runs
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (RunId(row.run), TaskKey::from_numbers(row.task, row.item)))
        .collect())
}

/// Takes back rows that wait for slots.
pub(crate) async fn interrupt_pooled(
    connection: &mut PgSession,
    runs: &[Uuid],
    tasks: &[i16],
    items: &[i32],
) -> Result<(), StoreError> {
    sqlx::query!(
        "DELETE FROM heddle.ready_pooled r USING UNNEST($1::uuid[], $2::smallint[], $3::integer[]) AS h (run, task, item)
          WHERE r.run = ANY (ARRAY[h.run]) AND r.task = h.task AND r.item = h.item",
        runs,
        tasks,
        items
    )
    .execute(connection)
    .await?;
    Ok(())
}

/// The rows that an admission may have to do with, in the order in which they wait: the first ones of each need, as many as
/// its free slots are enough for, and one more. Those behind them wait for the same, so they hide nobody.
async fn waiting_in(connection: &mut PgSession, pools: &BTreeMap<String, Pool>) -> Result<Vec<Waiting>, StoreError> {
    let needs = sqlx::query!(
        r#"WITH RECURSIVE needs AS (
               (SELECT need FROM heddle.ready_pooled ORDER BY need LIMIT 1)
               UNION ALL
               SELECT (SELECT r.need FROM heddle.ready_pooled r WHERE r.need > n.need ORDER BY r.need LIMIT 1)
                 FROM needs n WHERE n.need IS NOT NULL
           )
           SELECT n.need AS "need!", f.pools AS "pools!", f.slots AS "slots!"
             FROM needs n
            CROSS JOIN LATERAL (SELECT r.pools, r.slots FROM heddle.ready_pooled r WHERE r.need = n.need
                                 ORDER BY r.priority DESC, r.turn, r.run LIMIT 1) AS f"#
    )
    .fetch_all(&mut *connection)
    .await?;
    let (mut wanted, mut most) = (Vec::new(), Vec::new());
    for row in needs {
        let need = PoolNeed {
            pools: row.pools,
            slots: row.slots,
        };
        wanted.push(row.need);
        most.push(pool::looked_at(pools, &need, READ_MAX));
    }
    let rows = sqlx::query!(
        r#"SELECT f.run AS "run!", f.task AS "task!", f.item AS "item!", f.pools AS "pools!", f.slots AS "slots!"
             FROM UNNEST($1::bigint[], $2::bigint[]) AS n (need, most)
            CROSS JOIN LATERAL heddle.pooled_front(n.need, n.most) AS f
            WHERE n.most > 0
            ORDER BY f.priority DESC, f.turn, f.run"#,
        &wanted,
        &most
    )
    .fetch_all(connection)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| Waiting {
            run: row.run,
            task: row.task,
            item: row.item,
            need: PoolNeed {
                pools: row.pools,
                slots: row.slots,
            },
        })
        .collect())
}

impl Store {
    /// Gives free slots to task runs that wait for them; returns how many were admitted.
    ///
    /// Locking: all pools, in the order of names, so that admissions wait for each other, and the next statement sees what
    /// was committed before. Then rows of *ready_pooled*, for which only a control is waited for.
    pub async fn admit_pooled(&self) -> Result<u64, StoreError> {
        let waits = sqlx::query_scalar!(r#"SELECT EXISTS (SELECT FROM heddle.ready_pooled) AS "waits!""#)
            .fetch_one(&self.pool)
            .await?;
        if !waits {
            return Ok(0);
        }
        transaction!(self, pool, "admit_pooled", |tx| {
            let mut pools: BTreeMap<String, Pool> =
                sqlx::query!("SELECT name, slots FROM heddle.pools ORDER BY name FOR NO KEY UPDATE")
                    .fetch_all(&mut *tx)
                    .await?
                    .into_iter()
                    .map(|row| {
                        (
                            row.name,
                            Pool {
                                slots: row.slots.into(),
                                held: 0,
                            },
                        )
                    })
                    .collect();
            let holds = sqlx::query_file!("src/sql/count_holds.sql").fetch_all(&mut *tx).await?;
            for hold in holds {
                if let Some(pool) = pools.get_mut(&hold.pool) {
                    pool.held = hold.slots;
                }
            }
            let waiting = waiting_in(&mut tx, &pools).await?;
            let admitted = pool::admit(&mut pools, waiting.iter().map(|row| &row.need));
            if admitted.is_empty() {
                // Commits the deletion of ended holds in any case.
                tx.commit().await?;
                return Ok(0);
            }
            let runs: Vec<Uuid> = admitted.iter().map(|&index| waiting[index].run).collect();
            let tasks: Vec<i16> = admitted.iter().map(|&index| waiting[index].task).collect();
            let items: Vec<i32> = admitted.iter().map(|&index| waiting[index].item).collect();
            let moved = sqlx::query_file_scalar!("src/sql/admit_pooled.sql", &runs, &tasks, &items)
                .fetch_one(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok(moved.unsigned_abs())
        })
    }
}
