//! The page of a run: the runs that its tasks have started and that have not succeeded.

use heddle_domain::Time;
use heddle_domain::state::RunState;
use uuid::Uuid;

use crate::span::{self, BEGIN_BY_SPANS, ID_SLACK};
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// How many failed runs of a group, and how many cancelled ones, are searched for sub-runs of one run.
const SEARCHED_MAX: i64 = 5_000;

/// A run that a task of another run has started.
#[derive(Clone, Debug)]
pub struct SubRunRow<S = RunState> {
    pub id: Uuid,
    pub state: S,
    /// The task's number in its run's revision.
    pub task: i16,
    /// Which item of a mapped task; below zero: none.
    pub item: i32,
    pub attempt: i32,
}

impl SubRunRow<i16> {
    /// With the state that a number in a table stands for.
    fn known(self, table: &'static str) -> Result<SubRunRow, StoreError> {
        Ok(SubRunRow {
            state: StoreError::known(RunState::from_number, self.state, (table, "state"), self.id)?,
            id: self.id,
            task: self.task,
            item: self.item,
            attempt: self.attempt,
        })
    }
}

impl Store {
    /// The runs that the tasks of a run have started and that have not ended, newest first.
    pub async fn page_sub_runs(&self, run: Uuid, limit: i64) -> Result<Vec<SubRunRow>, StoreError> {
        let rows = sqlx::query_as!(
            SubRunRow::<i16>,
            r#"SELECT l.id, l.state, l.parent_task AS "task!", l.parent_item AS "item!", l.parent_attempt AS "attempt!"
                 FROM heddle.runs_live l WHERE l.parent_run = $1 ORDER BY l.id DESC LIMIT $2"#,
            run,
            limit
        )
        .fetch_all(&self.reads)
        .await?;
        rows.into_iter().map(|row| row.known("runs_live")).collect()
    }

    /// The runs of these groups that the tasks of a run have started and that failed or were cancelled, newest first;
    /// those of items come last. `until`: when the run ended; its tasks have started no run after that.
    ///
    /// No index leads from a run to these. Of each group, the newest 5,000 failed runs (`SEARCHED_MAX`) and as many cancelled
    /// ones are searched that were created while the run was at work. If a group has more, older ones may be missing.
    pub async fn page_ended_sub_runs(
        &self,
        run: Uuid,
        groups: &[String],
        until: Option<Time>,
        limit: i64,
    ) -> Result<Vec<SubRunRow>, StoreError> {
        // The clock of the node that made the sub-run may differ from that of the node that made the run.
        let first = span::made(run).map_or(Uuid::nil(), |made| span::floor(made - ID_SLACK));
        let after = until.map_or(Uuid::max(), |until| span::floor(until + ID_SLACK));
        let rows = transaction!(self, reads, "page_ended_sub_runs", once(BEGIN_BY_SPANS), |tx| {
            let rows = sqlx::query_as!(
                SubRunRow::<i16>,
                r#"SELECT l.id AS "id!", l.state AS "state!", l.parent_task AS "task!", l.parent_item AS "item!",
                     l.parent_attempt AS "attempt!"
                 FROM (SELECT id FROM heddle.groups WHERE name = ANY ($2) AND deleted_at IS NULL
                       UNION ALL
                       SELECT id FROM heddle.groups WHERE name = ANY ($2) AND deleted_at IS NOT NULL) AS g
                CROSS JOIN (VALUES (4::smallint), (5::smallint)) AS s (state)
                CROSS JOIN LATERAL (SELECT d.id, d.state, d.parent_run, d.parent_task, d.parent_item, d.parent_attempt
                                      FROM heddle.runs_done d
                                     WHERE d.group_id = g.id AND d.state = s.state AND d.state > 3
                                       AND d.id >= $3 AND d.id < $4
                                     ORDER BY d.id DESC LIMIT $5) AS l
                WHERE l.parent_run = $1
                ORDER BY l.parent_item >= 0, l.id DESC LIMIT $6"#,
                run,
                groups,
                first,
                after,
                SEARCHED_MAX,
                limit
            )
            .fetch_all(&mut *tx)
            .await?;
            tx.commit().await?;
            Ok(rows)
        })?;
        rows.into_iter().map(|row| row.known("runs_done")).collect()
    }
}
