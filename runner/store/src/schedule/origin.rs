//! Where reruns come from: the success of a rerun calls dependants as the run would have that it repeats.

use std::collections::HashMap;

use heddle_domain::state::Trigger;
use uuid::Uuid;

use crate::StoreError;
use crate::live::Completion;

/// How many reruns of reruns are traced back. A success of a later one calls dependants like that of a run by hand.
const RERUNS_MAX: usize = 100;

/// What the run was created by that a rerun repeats, perhaps through other reruns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// A backfill, or what called for the run of a dependant.
    pub source: Uuid,
    /// Whether the backfill itself has created the run.
    pub backfilled: bool,
    /// Whether the backfill includes dependants.
    pub cascades: bool,
    /// The priority of the dependants' runs, if the backfill gives one.
    pub priority: Option<i16>,
}

impl Completion {
    /// Of those of these ended runs that are reruns of a run by a backfill, or of one that a backfill caused in a dependant:
    /// what that run comes from. Once a run between them is deleted, this is not known any more.
    pub(super) async fn origins_of(&mut self, runs: Vec<Uuid>) -> Result<HashMap<Uuid, Origin>, StoreError> {
        let mut origins = HashMap::new();
        let mut traced: Vec<(Uuid, Uuid)> = runs.into_iter().map(|run| (run, run)).collect();
        for _ in 0..=RERUNS_MAX {
            if traced.is_empty() {
                break;
            }
            let looked_up: Vec<Uuid> = traced.iter().map(|(_, looked_up)| *looked_up).collect();
            let found = self.created_by(&looked_up).await?;
            traced.retain_mut(|(run, looked_up)| {
                let Some(&(trigger, source)) = found.get(&*looked_up) else {
                    return false;
                };
                if trigger == Trigger::Rerun.number() {
                    *looked_up = source;
                    return true;
                }
                let backfilled = trigger == Trigger::Backfill.number();
                if backfilled || trigger == Trigger::Upstream.number() {
                    let origin = Origin {
                        source,
                        backfilled,
                        cascades: false,
                        priority: None,
                    };
                    origins.insert(*run, origin);
                }
                false
            });
        }
        self.note_cascades(&mut origins).await?;
        Ok(origins)
    }

    /// The triggers of runs, with their sources. They are named one by one, see `succeeded_of`.
    async fn created_by(&mut self, runs: &[Uuid]) -> Result<HashMap<Uuid, (i16, Uuid)>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT id AS "id!", trigger AS "trigger!", source AS "source!"
                 FROM heddle.runs_done WHERE id = ANY ($1) AND source IS NOT NULL
               UNION ALL
               SELECT id, trigger, source FROM heddle.runs_live WHERE id = ANY ($1) AND source IS NOT NULL"#,
            runs
        )
        .fetch_all(self.connection())
        .await?;
        Ok(rows
            .into_iter()
            .map(|row| (row.id, (row.trigger, row.source)))
            .collect())
    }

    async fn note_cascades(&mut self, origins: &mut HashMap<Uuid, Origin>) -> Result<(), StoreError> {
        if origins.is_empty() {
            return Ok(());
        }
        let sources: Vec<Uuid> = origins.values().map(|origin| origin.source).collect();
        let rows = sqlx::query!(
            "SELECT source, priority FROM heddle.cascades WHERE source = ANY ($1)",
            &sources
        )
        .fetch_all(self.connection())
        .await?;
        let priorities: HashMap<Uuid, Option<i16>> = rows.into_iter().map(|row| (row.source, row.priority)).collect();
        for origin in origins.values_mut() {
            if let Some(priority) = priorities.get(&origin.source) {
                (origin.cascades, origin.priority) = (true, *priority);
            }
        }
        Ok(())
    }
}
