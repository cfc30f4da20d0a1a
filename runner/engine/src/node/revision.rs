//! A revision of a group, with what is computed from it once.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::TimeDelta;
use heddle_domain::notify::rules::Subscriptions;
use heddle_domain::plan::Plan;
use heddle_domain::pool::PoolNeed;
use heddle_domain::run::{AttemptKey, Event, FormatError, Progress, TaskKey, decide};
use heddle_domain::schedule::{Calendar, Schedule};
use heddle_domain::spec::{GroupSpec, Overlap};
use heddle_domain::state::{RunState, Trigger};
use heddle_domain::template;
use heddle_store::group::RevisionRow;
use heddle_store::schedule;
use serde_json::{Map, Value};

use super::templates::{Rendered, is_heavy};
use crate::EngineError;

/// How many attempts of one revision with a long preparation are prepared at once.
const PREPARATIONS_MAX: usize = 4;

/// A revision with what is computed from it once.
#[derive(Debug)]
pub struct Revision {
    pub id: i64,
    /// Its number within the group.
    pub number: i32,
    pub group_id: i64,
    pub group_name: String,
    pub plan: Plan,
    /// Its schedules by name, disabled ones included.
    pub schedules: BTreeMap<String, Schedule>,
    /// Its enabled schedules as one sequence of instants.
    pub calendar: Calendar,
    /// The instants of a backfill without a step: of the enabled schedules, or of all if no enabled one has past instants.
    pub past: Calendar,
    /// The progress, as bytes, of one of its runs that has not begun.
    pub(crate) waiting: Vec<u8>,
    /// The state in which one of its runs begins: progress, and the task runs that are ready at once.
    pub(crate) start: (Vec<u8>, Progress, Vec<AttemptKey>),
    /// Per task: the slots of pools that its attempts take.
    pools: Vec<Option<Arc<PoolNeed>>>,
    /// At least one task takes slots of pools.
    pub(crate) pooled: bool,
    /// Per task: whether its params contain templates.
    pub(crate) templated: Vec<bool>,
    /// Per task, as a whole and for each of its items: whether its templates may have to be rendered in a child process, with
    /// bounds.
    heavy: Vec<[bool; 2]>,
    /// Permits for its attempts that are prepared in a child process: each holds in memory what it renders.
    pub(crate) preparations: tokio::sync::Semaphore,
    /// The notification rules for its runs: which events, and for whom.
    pub(crate) subscriptions: Subscriptions,
}

impl Revision {
    /// Reads a row, and computes the rest.
    pub(super) fn of_row(row: RevisionRow, group_name: String) -> Result<Self, EngineError> {
        let id = row.id;
        let schedule::Compiled {
            schedules,
            calendar,
            past,
        } = schedule::compile(id, &row.spec, &row.schedule_anchors, row.created_at)?;
        let revision = || format!("revision {id}");
        let spec: GroupSpec =
            serde_json::from_value(row.spec).map_err(|error| EngineError::unreadable_in(revision(), error))?;
        let plan = Plan::compile(spec).map_err(|faults| EngineError::unreadable_in(revision(), faults))?;
        let mut state = RunState::Waiting;
        let mut progress = Progress::new(&plan);
        let unwritable = |error: FormatError| EngineError::unreadable_in(revision(), error);
        let waiting = progress.to_bytes().map_err(unwritable)?;
        let epoch = heddle_domain::Time::UNIX_EPOCH;
        let actions = decide(&plan, &mut state, &mut progress, &[Event::Start], epoch, &mut || 0)
            .map_err(|refused| EngineError::unreadable_in(revision(), refused))?;
        let pools: Vec<Option<Arc<PoolNeed>>> = plan
            .tasks
            .iter()
            .map(|task| PoolNeed::of(&task.spec.pools).map(Arc::new))
            .collect();
        let templated = plan
            .tasks
            .iter()
            .map(|task| {
                let holds = |params: &Map<String, Value>| params.values().any(template::contains_template);
                holds(&plan.spec.params) || holds(&task.spec.params)
            })
            .collect();
        Ok(Self {
            id,
            number: row.revision,
            group_id: row.group_id,
            group_name,
            waiting,
            start: (progress.to_bytes().map_err(unwritable)?, progress, actions.ready),
            pooled: pools.iter().any(Option::is_some),
            pools,
            templated,
            heavy: (plan.tasks.iter())
                .map(|task| [Rendered::Whole, Rendered::Item].map(|rendered| is_heavy(&plan, task, rendered)))
                .collect(),
            preparations: tokio::sync::Semaphore::new(PREPARATIONS_MAX),
            subscriptions: Subscriptions::of(&plan),
            plan,
            schedules,
            calendar,
            past,
        })
    }

    /// Whether the preparation of an attempt may need a child process for its templates.
    pub(crate) fn is_heavy(&self, key: TaskKey) -> bool {
        let [whole, item] = self.heavy[key.task as usize];
        if key.item.is_some() { item } else { whole }
    }

    /// The slots of pools that an attempt takes. (Finding out a mapped task's items takes none; the items do.)
    pub(crate) fn need_of(&self, at: AttemptKey) -> Option<Arc<PoolNeed>> {
        let need = self.pools.get(at.key.task as usize)?.as_ref()?;
        let expands = at.key.item.is_none() && self.plan.task(at.key.task)?.mapped;
        (!expands).then(|| need.clone())
    }

    /// How soon an attempt must be claimed after it has become ready.
    pub(crate) fn claim_within(&self, at: AttemptKey) -> Option<TimeDelta> {
        Some(self.plan.task(at.key.task)?.spec.queue_timeout?.chrono())
    }

    /// Whether runs with this trigger have to wait at the group's gate: for runs before them, or for upstreams. `sourced`
    /// runs were created by a backfill or another run: no overlap applies to them.
    pub fn is_gated(&self, trigger: Trigger, sourced: bool) -> bool {
        let overlaps = is_timed(trigger, sourced) && self.plan.spec.overlap != Overlap::Allow;
        overlaps || self.is_bounded(trigger) || self.follows(trigger)
    }

    /// Whether `max_active_runs` holds for runs made by this trigger.
    pub fn is_bounded(&self, trigger: Trigger) -> bool {
        self.plan.spec.max_active_runs.is_some() && trigger != Trigger::Backfill
    }

    /// Whether runs with this trigger wait for upstream groups. A schedule creates its runs on time, whether the
    /// upstreams have succeeded or not. (Without a schedule, no run is created before they have.)
    pub fn follows(&self, trigger: Trigger) -> bool {
        let spec = &self.plan.spec;
        !spec.depends_on.is_empty()
            && match trigger {
                Trigger::Schedule => true,
                Trigger::Upstream => !spec.schedules.is_empty(),
                _ => false,
            }
    }
}

/// Whether the overlap of its group applies to a run.
pub(crate) fn is_timed(trigger: Trigger, sourced: bool) -> bool {
    match trigger {
        Trigger::Schedule => true,
        Trigger::Upstream => !sourced,
        _ => false,
    }
}
