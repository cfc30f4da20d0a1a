//! What belongs to a run, and removing it: one list, whether runs are due one by one, a day of them is dropped, or people
//! delete one.
//!
//! # Instants
//!
//! Groups that follow others ask for instants that may be older than all runs that are kept (the last instant of a
//! yearly group). So before a run is removed, its success is written to *successes*. For each group, the newest instant
//! stays in *run_instants*, and so do instants that the overlap skipped. A row whose run is gone does not prevent
//! another run for its instant.
//!
//! A run that people delete leaves the same rows if it succeeded, or never began. Otherwise its instant is forgotten
//! ([`forget_instant`]): nobody can restart or override the run any more, and groups that follow its group would wait for
//! that instant for ever.

use heddle_domain::id::RunId;
use heddle_domain::state::RunState;
use uuid::Uuid;

use crate::change::By;
use crate::database::{PgSession, Pool};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// The tables with partitions for each day that have rows of runs, beside *runs_done*.
macro_rules! each_of_days {
    ($do:ident) => {
        $do!("attempts", "");
        $do!("logs", "");
        $do!("maps", "");
    };
}

/// The other tables, whose rows remain when a day is dropped. In some of them only a part of the rows is deleted with
/// the run: the condition is about the row `t`.
macro_rules! each_without_days {
    ($do:ident) => {
        $do!("overrides", "");
        $do!("told_starts", "");
        $do!("run_keys", "");
        $do!("run_dedupes", "");
        $do!(
            "run_instants",
            " AND NOT t.skipped AND EXISTS (SELECT FROM heddle.run_instants n
                         WHERE n.group_id = t.group_id AND n.logical_time > t.logical_time)"
        );
    };
}

/// The state of an ended run.
fn state_of(run: Uuid, number: i16) -> Result<RunState, StoreError> {
    StoreError::known(RunState::from_number, number, ("runs_done", "state"), run)
}

/// Removes ended runs, whose rows the transaction has locked, with all of their data; returns the state of each run.
pub(crate) async fn remove_runs(tx: &mut PgSession, ids: &[Uuid]) -> Result<Vec<RunState>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    sqlx::query!(
        "INSERT INTO heddle.successes (group_id, logical_time, run)
         SELECT i.group_id, i.logical_time, i.run
           FROM heddle.run_instants i JOIN heddle.runs_done d ON d.id = i.run AND d.state = 3
          WHERE i.run = ANY ($1) AND NOT i.skipped
          ORDER BY 1, 2
         ON CONFLICT DO NOTHING",
        ids
    )
    .execute(&mut *tx)
    .await?;
    let removed = sqlx::query!(
        "DELETE FROM heddle.runs_done WHERE id = ANY ($1) RETURNING id, state",
        ids
    )
    .fetch_all(&mut *tx)
    .await?;
    let mut states = Vec::with_capacity(removed.len());
    for run in removed {
        states.push(state_of(run.id, run.state)?);
    }
    macro_rules! remove {
        ($table:literal, $part:literal) => {
            sqlx::query!(
                "DELETE FROM heddle." + $table + " t WHERE t.run = ANY ($1)" + $part,
                ids
            )
            .execute(&mut *tx)
            .await?;
        };
    }
    each_of_days!(remove);
    each_without_days!(remove);
    // What waits to be sent is sent.
    sqlx::query!(
        "UPDATE heddle.notifications SET payload = NULL WHERE run = ANY ($1) AND payload IS NOT NULL AND state <> 0",
        ids
    )
    .execute(&mut *tx)
    .await?;
    Ok(states)
}

/// Removes up to `limit` rows of each table, and payloads of callbacks, that belong to runs with ids from `first` on, and before `behind`: their
/// day was dropped, so the runs are gone. Returns how many rows were removed.
pub(crate) async fn remove_left(pool: &Pool, (first, behind): (Uuid, Uuid), limit: i64) -> Result<u64, StoreError> {
    let mut gone = 0;
    macro_rules! remove {
        ($table:literal, $part:literal) => {
            let removed = sqlx::query!(
                "DELETE FROM heddle."
                    + $table
                    + " WHERE ctid = ANY (ARRAY(
                 SELECT t.ctid FROM heddle."
                    + $table
                    + " t WHERE t.run >= $1 AND t.run < $2"
                    + $part
                    + " LIMIT $3))",
                first,
                behind,
                limit
            )
            .execute(pool)
            .await?;
            gone += removed.rows_affected();
        };
    }
    each_without_days!(remove);
    let cleared = sqlx::query!(
        "UPDATE heddle.notifications SET payload = NULL WHERE ctid = ANY (ARRAY(
             SELECT n.ctid FROM heddle.notifications n
              WHERE n.run >= $1 AND n.run < $2 AND n.payload IS NOT NULL AND n.state <> 0 LIMIT $3)) AND state <> 0",
        first,
        behind,
        limit
    )
    .execute(pool)
    .await?;
    Ok(gone + cleared.rows_affected())
}

/// Forgets that runs were created for instants, unless the overlap skipped these. Runs that wait for the instants are
/// checked again. This is before the runs are removed: only the newest instant of a group outlives that.
async fn forget_instants(tx: &mut PgSession, runs: &[Uuid]) -> Result<(), StoreError> {
    if runs.is_empty() {
        return Ok(());
    }
    let mut groups = sqlx::query_scalar!(
        "DELETE FROM heddle.run_instants WHERE run = ANY ($1) AND NOT skipped RETURNING group_id",
        runs
    )
    .fetch_all(&mut *tx)
    .await?;
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        crate::upstream::changed(tx, group).await?;
    }
    Ok(())
}

/// Removes those of the runs that have ended, with the audit's rows; returns them.
async fn delete_ended(tx: &mut PgSession, by: By<'_>, runs: &[Uuid]) -> Result<Vec<RunId>, StoreError> {
    // Locking: the runs' rows, in id order.
    let found = sqlx::query!(
        r#"SELECT d.id, g.name AS "group", d.state
             FROM heddle.runs_done d JOIN heddle.groups g ON g.id = d.group_id
            WHERE d.id = ANY ($1) ORDER BY d.id FOR UPDATE OF d"#,
        runs
    )
    .fetch_all(&mut *tx)
    .await?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let mut audited = Vec::with_capacity(found.len());
    let (mut deleted, mut forgotten) = (Vec::with_capacity(found.len()), Vec::new());
    for row in found {
        let state = state_of(row.id, row.state)?;
        let before = serde_json::json!({"group": row.group, "state": state});
        audited.push((RunId(row.id), before, None));
        deleted.push(row.id);
        if state != RunState::Succeeded {
            forgotten.push(row.id);
        }
    }
    crate::audit::record_runs(tx, by, "delete", &audited).await?;
    // Locking: the instants of these runs, in the order in which runs are registered for instants.
    sqlx::query!(
        "SELECT group_id FROM heddle.run_instants WHERE run = ANY ($1) ORDER BY group_id, logical_time FOR UPDATE",
        &deleted
    )
    .fetch_all(&mut *tx)
    .await?;
    forget_instants(tx, &forgotten).await?;
    remove_runs(tx, &deleted).await?;
    Ok(deleted.into_iter().map(RunId).collect())
}

impl Store {
    /// Removes those of the runs that have ended, and all that belongs to them, in one transaction; returns them.
    ///
    /// Locking: the runs' rows first, in id order. A restart, a change of the state by hand and the removal of due runs
    /// lock them first too, so this waits for them. The state that it finds then decides whether a run's instant is kept
    /// or forgotten. The runs' instants come next, in the order of group and time.
    pub async fn delete_runs(&self, by: By<'_>, runs: &[RunId]) -> Result<Vec<RunId>, StoreError> {
        let ids: Vec<Uuid> = runs.iter().map(|run| run.0).collect();
        transaction!(self, pool, "delete_runs", |tx| {
            let deleted = delete_ended(&mut tx, by, &ids).await?;
            tx.commit().await?;
            Ok(deleted)
        })
    }
}

#[cfg(test)]
mod tests {
    use heddle_domain::state::RunState;
    use uuid::Uuid;

    use super::state_of;
    use crate::retention::OF_RUNS;

    #[test]
    fn an_unknown_state_is_an_error_that_names_the_run() {
        let run = Uuid::from_u128(7);
        assert_eq!(state_of(run, 4).unwrap(), RunState::Failed);
        let error = state_of(run, 6).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot read row {run} in runs_done: state is 6")
        );
    }

    #[test]
    fn a_day_is_dropped_with_all_that_its_runs_have_in_it() {
        let mut tables = vec!["runs_done"];
        macro_rules! name {
            ($table:literal, $part:literal) => {
                tables.push($table);
            };
        }
        each_of_days!(name);
        let mut dropped: Vec<&str> = OF_RUNS.iter().map(|table| table.name()).collect();
        tables.sort_unstable();
        dropped.sort_unstable();
        assert_eq!(dropped, tables);
    }
}
