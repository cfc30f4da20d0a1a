//! How a backfill begins, and its controls.

use std::collections::HashSet;
use std::sync::Arc;

use heddle_domain::Time;
use heddle_domain::backfill::{self, BackfillSpec, Checked, OnExisting, Order, Scripts, Verdict};
use heddle_domain::spec::SubmissionSpec;
use heddle_store::StoreError;
use heddle_store::backfill::{BackfillAction, BackfillChange, NewBackfill};
use heddle_store::change::By;
use serde_json::Value;
use uuid::Uuid;

use super::{Schedules, verdict};
use crate::node::catalog::Group;
use crate::runs::bulk::BulkControl;
use crate::runs::control::{BulkAction, ControlError};
use crate::{EngineError, Submission, SubmitError};

/// How many runs of a cancelled backfill one tick cancels, and how many at once.
const CANCELLED_MAX: i64 = 10_000;

/// The result of a request for a backfill.
#[derive(Clone, Debug)]
pub enum Started {
    /// A dry run: these instants would get a run.
    Planned(Vec<Time>),
    /// It has begun, with this id.
    Made(Uuid),
}

/// A backfill of these instants as a row. Without an end, it goes on with instants that come due; `to` is the end of
/// what was counted.
fn row_of(
    id: Uuid,
    group: &Group,
    spec: &BackfillSpec,
    checked: &Checked,
    to: Time,
    expected: u64,
) -> Result<NewBackfill, StoreError> {
    Ok(NewBackfill {
        id,
        group_id: group.id,
        calendar_revision_id: group.revision.id,
        from: checked.from,
        to: checked.to,
        step_micros: spec.step.map(|step| step.micros() as i64),
        descending: spec.order == Order::Desc,
        max_active: spec.max_active as i32,
        on_existing: spec.on_existing.number(),
        include_downstream: spec.include_downstream,
        pinned: spec.scripts == Scripts::Pinned,
        force: spec.force,
        priority: checked.priority,
        dependants_priority: spec.priority,
        params: StoreError::json_of(&spec.params, ("backfills", "params"))?.to_string(),
        started_to: to,
        expected: expected as i64,
    })
}

/// The request as the audit shows it: with the instants that days and local times mean.
fn with_instants(asked: &Value, checked: &Checked) -> Value {
    let mut asked = asked.clone();
    for (field, at) in [("from", Some(checked.from)), ("to", checked.to)] {
        if let Some(at) = at {
            asked[field] = at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true).into();
        }
    }
    asked
}

impl Schedules {
    /// Starts a backfill, or lists the runs that it would create.
    pub(crate) async fn start_backfill(
        &self,
        name: &str,
        spec: BackfillSpec,
        asked: &Value,
        actor: &str,
    ) -> Result<Started, SubmitError> {
        let group = self
            .node
            .catalog
            .group(name)
            .await?
            .ok_or_else(|| SubmitError::UnknownGroup(name.to_owned()))?;
        let plan = &group.revision.plan;
        if !plan.spec.history {
            return Err(SubmitError::Refused(format!(
                "group `{name}` does not allow backfills; set `history: true` in its spec"
            )));
        }
        let given = SubmissionSpec {
            params: spec.params.clone(),
            force: true,
            ..SubmissionSpec::default()
        };
        self.runs.layout(&Submission::manual(name, given, None)).await?;
        let calendar = group.revision.past.clone();
        let (zone, priority) = (plan.zone, plan.spec.priority);
        let now = self.node.now();
        let counted = spec.clone();
        // Counting a million instants of a cron expression takes long: not on the threads that answer requests.
        let checked = tokio::task::spawn_blocking(move || counted.check(calendar, zone, priority, now))
            .await
            .map_err(EngineError::unreadable)??;
        let to = checked.to.unwrap_or(now);
        let id = self.node.new_id(now);
        let left = self
            .left_alone(&group, id, spec.on_existing, (checked.from, to))
            .await?;
        let (grid, from, order, dry_run) = (checked.grid.clone(), checked.from, spec.order, spec.dry_run);
        let (instants, expected) = tokio::task::spawn_blocking(move || {
            if dry_run {
                let instants: Vec<Time> = grid
                    .instants(from, to, order)
                    .take(backfill::INSTANTS_MAX as usize)
                    .filter(|instant| !left.contains(instant))
                    .collect();
                return (instants, 0);
            }
            // A million instants can be counted without a list.
            let all = grid.count(from, to).unwrap_or(backfill::INSTANTS_MAX);
            let left = left.iter().filter(|instant| grid.names(**instant)).count() as u64;
            (Vec::new(), all.saturating_sub(left))
        })
        .await
        .map_err(EngineError::unreadable)?;
        if spec.dry_run {
            return Ok(Started::Planned(instants));
        }
        if !group.enabled && !spec.force {
            return Err(SubmitError::Disabled(name.to_owned()));
        }
        let new = row_of(id, &group, &spec, &checked, to, expected).map_err(EngineError::Store)?;
        let asked = with_instants(asked, &checked);
        self.node
            .store
            .insert_backfill(By { actor, at: now }, &new, &asked)
            .await
            .map_err(EngineError::Store)?;
        self.node.signals.raise_backfills([id]);
        Ok(Started::Made(id))
    }

    /// Pauses, resumes or cancels a backfill; returns after the commit.
    pub(crate) async fn change_backfill(
        self: &Arc<Self>,
        id: Uuid,
        action: BackfillAction,
        actor: &str,
    ) -> Result<(), ControlError> {
        let by = By {
            actor,
            at: self.node.now(),
        };
        match self.node.store.change_backfill(by, id, action, None).await? {
            BackfillChange::Missing => return Err(ControlError::NotFound("backfill")),
            BackfillChange::Refused(state) => {
                let done = match action {
                    BackfillAction::Pause => "paused",
                    BackfillAction::Resume => "resumed",
                    BackfillAction::Cancel => "cancelled",
                };
                return Err(ControlError::Refused(format!(
                    "the backfill is {state}, so it cannot be {done}"
                )));
            }
            BackfillChange::Done => {}
        }
        if action == BackfillAction::Cancel {
            self.cancel_backfill(id).await?;
        }
        self.node.signals.raise_backfills([id]);
        Ok(())
    }

    /// The instants that a backfill skips, because they keep their runs.
    async fn left_alone(
        &self,
        group: &Group,
        id: Uuid,
        on_existing: OnExisting,
        (from, to): (Time, Time),
    ) -> Result<HashSet<Time>, EngineError> {
        let occupancies = self.node.store.occupancies_between(group.id, from, to).await?;
        Ok(occupancies
            .iter()
            .filter(|occupancy| verdict(id, on_existing, occupancy) == Verdict::Skip)
            .map(|occupancy| occupancy.at)
            .collect())
    }

    /// Cancels the active runs of a cancelled backfill; when all of them have ended, the backfill ends.
    pub(super) async fn cancel_backfill(self: &Arc<Self>, id: Uuid) -> Result<(), EngineError> {
        let runs = self.node.store.live_runs_of_source(id, CANCELLED_MAX).await?;
        // The cancel of a run that has ended meanwhile is refused, which is no error here.
        let cancel = BulkControl::Change(BulkAction::Cancel);
        let answers = self.runs.bulk(&runs, &cancel, "backfill").await?;
        for answer in answers {
            // It stays active, so the backfill does not end yet. The others are cancelled.
            if let Err(ControlError::Engine(error)) = answer {
                return Err(error);
            }
        }
        if self.node.store.live_runs_of_source(id, 1).await?.is_empty() {
            self.node.store.end_cancelled_backfill(id, self.node.now()).await?;
        }
        self.sources.remove(&id);
        Ok(())
    }
}
