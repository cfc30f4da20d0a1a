//! The page of a run: the runs that its tasks have started and that have not ended.

use heddle_domain::state::RunState;
use uuid::Uuid;

use crate::{Store, StoreError};

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
        rows.into_iter()
            .map(|row| {
                Ok(SubRunRow {
                    state: StoreError::known(RunState::from_number, row.state, ("runs_live", "state"), row.id)?,
                    id: row.id,
                    task: row.task,
                    item: row.item,
                    attempt: row.attempt,
                })
            })
            .collect()
    }
}
