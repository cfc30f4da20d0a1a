//! The facts about a run that its attempts and transitions need. They are read once, and cached for a while.

use std::collections::HashMap;
use std::sync::Arc;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_sandbox::{Context, Interval, MapItem};
use quick_cache::sync::Cache;
use serde_json::value::RawValue;

use crate::node::Node;
use crate::runs::ending::{Ending, Step};
use crate::{EngineError, RunContext};

/// The facts of runs.
pub(crate) type Contexts = HashMap<RunId, Arc<RunContext>>;

/// How many runs' facts a node keeps.
pub(crate) const CONTEXTS_MAX: usize = 4_096;

/// The facts of runs that this node has read, and keeps for a while.
pub(crate) struct KnownRuns {
    node: Arc<Node>,
    kept: Cache<RunId, Arc<RunContext>>,
}

impl KnownRuns {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            kept: Cache::new(CONTEXTS_MAX),
        }
    }

    /// The facts of a run, if they are kept.
    pub(crate) fn get(&self, run: &RunId) -> Option<Arc<RunContext>> {
        self.kept.get(run)
    }

    pub(crate) fn insert(&self, run: RunId, context: Arc<RunContext>) {
        self.kept.insert(run, context);
    }

    /// Forgets a run, because it has ended or its facts may have changed.
    pub(crate) fn remove(&self, run: &RunId) -> Option<Arc<RunContext>> {
        self.kept.remove(run).map(|(_, context)| context)
    }

    pub(crate) fn clear(&self) {
        self.kept.clear();
    }

    /// The facts of those of the runs that are live. The caller keeps them: the node may forget them at any moment
    /// (after a control, the run's end, or for lack of room), so a caller that needs them must not read them again.
    pub(crate) async fn of(&self, runs: &[RunId]) -> Result<Contexts, EngineError> {
        let mut contexts = Contexts::with_capacity(runs.len());
        let mut missing = Vec::new();
        for &run in runs {
            match self.get(&run) {
                Some(context) => drop(contexts.insert(run, context)),
                None => missing.push(run),
            }
        }
        if missing.is_empty() {
            return Ok(contexts);
        }
        let found = self.node.store.run_facts(&missing).await?;
        let ids: Vec<i64> = found.iter().map(|facts| facts.revision_id).collect();
        let revisions = self.node.catalog.revisions(&ids).await?;
        for facts in found {
            let revision = match revisions.get(&facts.revision_id) {
                Some(revision) => revision.clone(),
                None => self.node.catalog.revision(facts.revision_id).await?,
            };
            let resolution = match facts.resolution_id {
                Some(id) => self.node.catalog.resolution(id, &revision).await?,
                None => self.node.catalog.resolve(&revision).await?,
            };
            let id = facts.id;
            let context = Arc::new(RunContext {
                facts,
                revision,
                resolution,
                maps: Default::default(),
            });
            // One that is not complete yet (`starts.rs`) is not kept: another node may complete it.
            if context.facts.resolution_id.is_some() {
                self.insert(id, context.clone());
            }
            contexts.insert(id, context);
        }
        Ok(contexts)
    }

    /// The facts of a run that is locked, and so is live. It is not in `contexts` if it was reopened after these were
    /// read.
    pub(crate) async fn known(&self, contexts: &Contexts, run: RunId) -> Result<Arc<RunContext>, EngineError> {
        let context = match contexts.get(&run) {
            Some(context) => Some(context.clone()),
            None => self.of(&[run]).await?.remove(&run),
        };
        context.ok_or_else(|| EngineError::unreadable(format!("run {run} cannot be found")))
    }

    /// The facts of runs that may be named twice.
    pub(crate) async fn of_all(&self, runs: impl Iterator<Item = RunId>) -> Result<Contexts, EngineError> {
        let mut runs: Vec<RunId> = runs.collect();
        runs.sort_unstable();
        runs.dedup();
        self.of(&runs).await
    }
}

/// The context that an attempt gets which begins now.
pub(crate) fn context_of(now: Time, context: &RunContext, at: AttemptKey, item: Option<MapItem>) -> Context {
    let task = &context.revision.plan.tasks[at.key.task as usize];
    let suffix = at.key.item.map(|item| format!("/{item}")).unwrap_or_default();
    Context {
        run: context.facts.id.0,
        group: context.revision.group_name.clone(),
        task: task.name.as_str().to_owned(),
        attempt: at.attempt,
        trigger: context.facts.trigger,
        logical_time: context.facts.logical_time,
        data_interval: Interval {
            start: context.facts.interval.0,
            end: context.facts.interval.1,
        },
        deadline: task
            .timeout
            .and_then(|timeout| Some(now + chrono::TimeDelta::from_std(timeout).ok()?)),
        item,
        idempotency_key: format!("{}/{}{suffix}", context.facts.id, task.name),
    }
}

/// An item of a mapped task, and how many there are.
///
/// After a restart, a map may be expanded again. The attempts of its new items have higher numbers than all before,
/// so items that were read for a lower number are read again.
pub(crate) async fn item_of(
    node: &Node,
    context: &RunContext,
    at: AttemptKey,
    item: u32,
) -> Step<(Box<RawValue>, u32)> {
    let task = at.key.task;
    let known = context
        .maps
        .lock()
        .get(&task)
        .filter(|known| known.0 >= at.attempt)
        .cloned();
    let items = match known {
        Some((_, items)) => items,
        None => {
            let Some(text) = node.store.map_items(context.facts.id, task).await? else {
                return Err(Ending::invalid("its items were deleted").into());
            };
            let items: Vec<Box<RawValue>> = serde_json::from_str(&text)
                .map_err(|error| EngineError::unreadable_in(format!("items of {}", context.facts.id), error))?;
            let items = Arc::new(items);
            context.maps.lock().insert(task, (at.attempt, items.clone()));
            items
        }
    };
    let value = items.get(item as usize);
    let value = value.ok_or_else(|| Ending::invalid("the item does not exist"))?;
    Ok((value.clone(), items.len() as u32))
}
