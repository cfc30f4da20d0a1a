//! Creates the runs of a backfill for the instants that `search.rs` has found.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use heddle_domain::Time;
use heddle_domain::backfill::Grid;
use heddle_domain::id::RunId;
use heddle_domain::state::Trigger;
use heddle_store::backfill::{BackfillRound, BackfillRow, Moved, Occupancy};
use heddle_store::live::{Created, NewRun};
use uuid::Uuid;

use super::Schedules;
use super::search::Source;
use crate::node::catalog::{Group, Resolution, Revision};
use crate::node::short_ways::ShortWay;
use crate::runs::create::submit::Layout;
use crate::{EngineError, RunContext};

/// Runs of a round.
pub(super) struct Made {
    pub(super) runs: Vec<NewRun>,
    pub(super) contexts: Vec<Arc<RunContext>>,
    pub(super) created: Vec<Created>,
}

impl Schedules {
    /// The round of a backfill with one run at a time, at an instant that the last round found free: one statement.
    /// `false`: there is no such instant, or something has changed since the last round, and nothing was done.
    pub(super) async fn backfill_step(self: &Arc<Self>, id: Uuid) -> Result<bool, EngineError> {
        let Some(source) = self
            .sources
            .get(&id)
            .filter(|_| self.node.short_ways.take(ShortWay::BackfillStep))
        else {
            return Ok(false);
        };
        let known = source.ahead.lock().take();
        let Some(mut ahead) = known.filter(|ahead| ahead.is_fresh(source.clock.elapsed())) else {
            return Ok(false);
        };
        let (Some(row), Some(next)) = (ahead.left.clone(), ahead.free.front().map(|next| next.at)) else {
            *source.ahead.lock() = Some(ahead);
            return Ok(false);
        };
        let group = match self.node.catalog.group(&row.group_name).await? {
            Some(group) if group.id == row.group_id && (group.enabled || row.force) => group,
            _ => return Ok(false),
        };
        let now = self.node.now();
        let (run, mut context) =
            self.lay_out_instant(&row, &group.revision, &group.resolution, (&source.grid, next), now);
        if !run.is_plain() {
            return Ok(false);
        }
        let mut runs = vec![run];
        self.runs.hand_out(&mut runs);
        let made = self.node.store.step_backfill(&row, &runs[0], self.node.lease()).await?;
        let Some((handed, at)) = made else {
            return Ok(false);
        };
        self.node.short_ways.took(ShortWay::BackfillStep);
        if let Some(laid_out) = Arc::get_mut(&mut context) {
            laid_out.facts.created_at = at;
        }
        ahead.free.pop_front();
        ahead.position = Some(next);
        ahead.left = Some(Arc::new(BackfillRow {
            position: Some(next),
            made: row.made + 1,
            ..BackfillRow::clone(&row)
        }));
        *source.ahead.lock() = Some(ahead);
        self.runs
            .created(runs.into_iter().zip([context]), &[Created::Made { handed, at }]);
        Ok(true)
    }

    /// A run for an instant of a backfill. The round registers the instant, because it may take it over from another
    /// run.
    fn lay_out_instant(
        &self,
        row: &BackfillRow,
        revision: &Arc<Revision>,
        resolution: &Arc<Resolution>,
        (grid, at): (&Grid, Time),
        now: Time,
    ) -> (NewRun, Arc<RunContext>) {
        let mut layout = Layout::of_time(Trigger::Backfill, revision, at, grid.data_interval(at));
        layout.terms.priority = row.priority;
        layout.terms.params.clone_from(&row.params);
        layout.terms.source = Some(row.id);
        let (mut run, context) = self.runs.lay_out(revision, resolution, layout, now);
        run.instant = false;
        (run, context)
    }

    pub(super) async fn make_runs(
        &self,
        round: &mut BackfillRound,
        row: &BackfillRow,
        group: &Group,
        source: &Source,
        (make, moved): (Vec<Occupancy>, &Moved),
        now: Time,
    ) -> Result<Made, EngineError> {
        let revision = &group.revision;
        let mut pinned: HashMap<i64, Arc<Resolution>> = HashMap::new();
        let mut laid_out = Vec::with_capacity(make.len());
        for occupancy in &make {
            let resolution = match occupancy.last {
                Some((_, _, Some(replaced))) if row.pinned => match pinned.entry(replaced) {
                    Entry::Occupied(known) => known.get().clone(),
                    Entry::Vacant(free) => free
                        .insert(self.node.catalog.resolve_like(revision, replaced).await?)
                        .clone(),
                },
                _ => group.resolution.clone(),
            };
            laid_out.push(self.lay_out_instant(row, revision, &resolution, (&source.grid, occupancy.at), now));
        }
        let registrations: Vec<(Time, RunId, Option<Uuid>)> = make
            .iter()
            .zip(&laid_out)
            .map(|(occupancy, (run, _))| (occupancy.at, run.id, occupancy.registered))
            .collect();
        let got: HashSet<RunId> = round.register(&registrations, moved).await?.into_iter().collect();
        laid_out.retain(|(run, _)| got.contains(&run.id));
        let (mut runs, contexts): (Vec<NewRun>, Vec<Arc<RunContext>>) = laid_out.into_iter().unzip();
        self.runs.hand_out(&mut runs);
        let created = round.create(&runs, self.node.lease(), &*self.node.clock).await;
        let created = created.map_err(|error| self.node.catalog.heed(error))?;
        if let Some(refused) = created.iter().find(|created| !matches!(created, Created::Made { .. })) {
            return Err(EngineError::unreadable(format!(
                "a run of backfill {} was not created: {refused:?}",
                row.id
            )));
        }
        Ok(Made {
            runs,
            contexts,
            created,
        })
    }
}
