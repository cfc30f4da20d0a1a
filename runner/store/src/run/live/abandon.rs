//! Ends a run whose state cannot be advanced any more: see `heddle_engine`'s `given_up`.

use heddle_domain::run::AttemptKey;

use super::complete::{Completion, EndedAttempt};
use super::control::Interrupted;
use crate::StoreError;

impl Completion {
    /// Locks a run, and deletes all of its work, if an attempt of it is still the caller's to end; see
    /// `sql/abandon_run.sql`. Reads neither its progress nor its history. `None`: somebody else has ended the attempt,
    /// or the run.
    ///
    /// Locking: the run, then the attempt, as for all that ends attempts.
    pub async fn abandon(&mut self, ended: EndedAttempt) -> Result<Option<Vec<Interrupted>>, StoreError> {
        let EndedAttempt { run, at, lease } = ended;
        let is_live = sqlx::query_scalar!("SELECT id FROM heddle.runs_live WHERE id = $1 FOR UPDATE", run.0)
            .fetch_optional(self.connection())
            .await?;
        let locked = sqlx::query_scalar!(
            "SELECT attempt FROM heddle.running
              WHERE run = $1 AND task = $2 AND item = $3 AND attempt = $4 AND lease = $5 FOR UPDATE",
            run.0,
            at.key.task as i16,
            at.key.item_number(),
            at.attempt as i32,
            lease
        )
        .fetch_optional(self.connection())
        .await?;
        if is_live.is_none() || locked.is_none() {
            return Ok(None);
        }
        let stopped = sqlx::query_file!("src/sql/abandon_run.sql", run.0)
            .fetch_all(self.connection())
            .await?;
        self.dated(stopped.iter().map(|row| row.started_at));
        let now = self.now();
        Ok(Some(
            stopped
                .into_iter()
                .map(|row| Interrupted {
                    run,
                    at: AttemptKey::from_numbers(row.task, row.item, row.attempt),
                    lease: row.lease,
                    started_at: row.started_at,
                    finished_at: now,
                    node: row.node,
                })
                .collect(),
        ))
    }
}
