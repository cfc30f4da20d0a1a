//! Submissions: a run is checked and laid out in memory, then created together with other submissions.
//!
//! # Invariants
//!
//! * The answer comes after the commit: an accepted run survives anything that happens to nodes.
//! * An attempt that this node is given starts only after the commit that put it into *running*.

use std::sync::Arc;
use std::time::Duration;

use heddle_domain::backfill::Urgency;
use heddle_domain::bounded::or_trouble;
use heddle_domain::id::RunId;
use heddle_domain::notify::channel::check_http_url;
use heddle_domain::run::AttemptKey;
use heddle_domain::spec::NotifyEvent;
use heddle_domain::spec::{Dedupe, SubmissionSpec, whole_number};
use heddle_domain::state::{RunState, Trigger};
use heddle_domain::wait::RunWait;
use heddle_domain::{Faults, Name, Time};
use heddle_sandbox::FairSlots;
use heddle_store::StoreError;
use heddle_store::live::{Created, GroupNeed, NewRun, QueueRow, ReadyRow, RunFacts};
use heddle_store::run::{RunRow, RunTerms};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::node::Node;
use crate::node::catalog::{Group, Resolution, Revision};
use crate::node::group_commit::{Answered, Commits, Committed, GroupCommit, Policy, answer};
use crate::node::short_ways::ShortWay;
use crate::runs::create::check::check;
use crate::runs::waiters::queued::target_at_once;
use crate::{EngineError, RunContext, Runs};

/// Bounds for concurrent requests of people: new runs, and controls of many runs.
pub(crate) struct Requests {
    pub(crate) submissions: GroupCommit<Submissions>,
    /// Slots for controls of many runs, by their callers.
    pub(crate) bulk: Arc<FairSlots>,
}

/// How many requests control many runs at once on a node, and how many of one caller; others wait. A caller who sends
/// hundreds waits for itself, and does not hold up others.
pub(crate) const REQUESTS_MAX: usize = 4;
const REQUESTS_OF_ONE_MAX: usize = REQUESTS_MAX / 2;

impl Requests {
    pub(crate) fn new(submissions: GroupCommit<Submissions>) -> Self {
        Self {
            submissions,
            bulk: FairSlots::new(REQUESTS_MAX, REQUESTS_OF_ONE_MAX),
        }
    }
}

/// A run to be created.
#[derive(Clone, Debug)]
pub struct Submission {
    pub group: String,
    /// What the caller asks for, for example params and a key.
    pub spec: SubmissionSpec,
    pub trigger: Trigger,
    /// How urgent it is, if the caller does not say.
    pub urgency: Urgency,
    /// The backfill or run that creates it.
    pub source: Option<Uuid>,
    /// Who submits it, as the audit names people; `None`: no person does.
    pub by: Option<String>,
    /// The attempt of which it is a sub-run, and when that attempt must have ended.
    pub parent: Option<(RunId, AttemptKey, Option<Time>)>,
}

impl Submission {
    pub fn manual(group: impl Into<String>, spec: SubmissionSpec, by: Option<&str>) -> Self {
        Self {
            group: group.into(),
            spec,
            trigger: Trigger::Manual,
            urgency: Urgency::Usual,
            source: None,
            by: by.map(str::to_owned),
            parent: None,
        }
    }
}

/// Why a run was not created.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// There is no such group.
    #[error("there is no group `{0}`")]
    UnknownGroup(String),
    /// The group is disabled.
    #[error("group `{0}` is disabled")]
    Disabled(String),
    /// The group does not allow it.
    #[error("{0}")]
    Refused(String),
    /// The submission is wrong.
    #[error("{0}")]
    Invalid(Faults),
    /// There is a run with this key or these params.
    #[error("run {0} already has this key or these params")]
    Exists(RunId),
    /// The attempt that wanted a sub-run is no longer this node's.
    #[error("the attempt that started it has ended")]
    Fenced,
    /// An error that the caller did not cause.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// A run whose creation was just committed.
#[derive(Clone, Debug)]
pub struct Submitted {
    /// The row of the run, as it was committed.
    pub row: RunRow,
    pub revision: Arc<Revision>,
    pub resolution: Arc<Resolution>,
}

fn row_of(run: &NewRun, context: &RunContext) -> RunRow {
    RunRow {
        id: run.id.0,
        group_id: run.group_id,
        group_name: context.revision.group_name.clone(),
        revision: context.revision.number,
        revision_id: run.revision_id,
        resolution_id: run.resolution_id,
        state: run.state,
        terms: run.terms.clone(),
        created_at: run.created_at,
        started_at: (run.state != RunState::Waiting).then_some(run.created_at),
        deadline_at: run.deadline_at,
        parent_run: run.parent.map(|parent| parent.0.0),
        reopened_at: None,
        waiting_for: run.waiting_for.clone().unwrap_or_default(),
        skipped: None,
        progress: run.progress.clone(),
        finished_at: None,
        error: None,
    }
}

/// A run that is laid out and waits for its commit.
pub(crate) struct Request {
    pub(crate) run: NewRun,
    pub(crate) context: Arc<RunContext>,
}

/// The group commit that creates submitted runs, many in one transaction.
pub(crate) struct Submissions(pub(crate) Arc<Runs>);

impl Commits for Submissions {
    type Request = Request;
    type Answer = Created;
    type Then = Vec<Created>;
    const POLICY: Policy = Policy {
        what: "submissions",
        queue_max: 20_000,
        batch_max: 1_000,
        workers: 1,
        tries_max: Some(3),
        again_after: Duration::from_millis(5),
        // A second try would find the run of the first.
        repeatable: false,
    };

    fn node(&self) -> &Node {
        &self.0.node
    }

    async fn commit(&self, batch: &mut [Request]) -> Committed<Self> {
        let own = &self.0;
        own.hand_out(batch.iter_mut().map(|request| &mut request.run));
        let runs: Vec<&NewRun> = batch.iter().map(|request| &request.run).collect();
        let (store, lease, clock) = (&own.node.store, own.lease(), &*own.node.clock);
        let are_plain = own.node.short_ways.take(ShortWay::PlainRuns) && runs.iter().all(|run| run.is_plain());
        let plain = match are_plain {
            true => store.create_plain_runs(&runs, lease, clock).await,
            false => Ok(None),
        };
        let plain = plain.map_err(|error| own.node.catalog.heed(error))?;
        if plain.is_some() {
            own.node.short_ways.took(ShortWay::PlainRuns);
        }
        let created = match plain {
            Some(created) => created,
            None => {
                let created = store.create_runs(&runs, lease, clock).await;
                created.map_err(|error| own.node.catalog.heed(error))?
            }
        };
        Ok((created.clone(), created))
    }

    fn follow(&self, batch: Vec<Request>, created: Vec<Created>) {
        let made = batch.into_iter().map(|request| (request.run, request.context));
        self.0.created(made, &created);
    }

    /// Somebody's open transaction may hold the same key, or the same params.
    fn may_wait(request: &Request) -> bool {
        request.run.terms.key.is_some() || request.run.dedupe.is_some()
    }
}

impl Runs {
    /// Creates a run; returns it as of the commit. [`Runs::submit`] returns only its id.
    pub(crate) async fn create(&self, submission: Submission) -> Result<Submitted, SubmitError> {
        let mut tries = 1;
        loop {
            let made = self.create_once(&submission).await;
            if tries == LAYOUTS_MAX || !is_outdated(&made) {
                return made;
            }
            tries += 1;
        }
    }

    async fn create_once(&self, submission: &Submission) -> Result<Submitted, SubmitError> {
        let (run, context) = self.layout(submission).await?;
        let mut row = row_of(&run, &context);
        let id = run.id;
        let request = Request {
            run,
            context: context.clone(),
        };
        let (_, at) = finish(id, &context, self.requests.submissions.send(request)?).await?;
        row.started_at = row.started_at.map(|_| at);
        Ok(Submitted {
            row,
            revision: context.revision.clone(),
            resolution: context.resolution.clone(),
        })
    }

    /// Creates many runs; the answers are in the order of the submissions.
    pub(crate) async fn create_all(&self, submissions: Vec<Submission>) -> Vec<Result<RunId, SubmitError>> {
        let mut waiting = Vec::with_capacity(submissions.len());
        for submission in &submissions {
            waiting.push(match self.layout(submission).await {
                Ok((run, context)) => {
                    let id = run.id;
                    let request = Request {
                        run,
                        context: context.clone(),
                    };
                    let sent = self.requests.submissions.send_patiently(request).await;
                    sent.map(|answered| (id, context, answered))
                        .map_err(SubmitError::Engine)
                }
                Err(error) => Err(error),
            });
        }
        let mut answers = Vec::with_capacity(waiting.len());
        for (entry, submission) in waiting.into_iter().zip(submissions) {
            let answer = match entry {
                Ok((id, context, answered)) => finish(id, &context, answered).await.map(|(id, _)| id),
                Err(error) => Err(error),
            };
            answers.push(match is_outdated(&answer) {
                true => self.submit(submission).await,
                false => answer,
            });
        }
        answers
    }
}

/// How often a run is laid out, if the database does not have the revision or the scripts that this node knows: they are read
/// again before each further try. After that, the caller gets the error.
pub(crate) const LAYOUTS_MAX: usize = 3;

/// Whether the run was laid out from what the database does not have. The node has forgotten that since, so another layout
/// may succeed; nothing was created.
pub(crate) fn is_outdated<T>(made: &Result<T, SubmitError>) -> bool {
    matches!(made, Err(SubmitError::Engine(EngineError::Store(StoreError::Outdated))))
}

/// The run, and when it began if it has.
pub(crate) async fn finish(
    id: RunId,
    context: &RunContext,
    answered: Answered<Created>,
) -> Result<(RunId, Time), SubmitError> {
    match answer(answered).await? {
        Created::Made { at, .. } => Ok((id, at)),
        Created::Exists(holder) => Err(SubmitError::Exists(holder)),
        Created::Fenced => Err(SubmitError::Fenced),
        Created::Deleted => Err(SubmitError::UnknownGroup(context.revision.group_name.clone())),
        Created::Disabled => Err(SubmitError::Disabled(context.revision.group_name.clone())),
    }
}

/// The group of this name, if people may start runs of it: it is enabled, or they `force` it. `id`: only the group
/// with this id, not a later group that got the same name.
pub(crate) async fn open_group(
    node: &Node,
    name: &str,
    id: Option<i64>,
    force: bool,
) -> Result<Arc<Group>, SubmitError> {
    let found = node.catalog.group(name).await?;
    let group = found
        .filter(|group| id.is_none_or(|id| id == group.id))
        .ok_or_else(|| SubmitError::UnknownGroup(name.to_owned()))?;
    match group.enabled || force {
        true => Ok(group),
        false => Err(SubmitError::Disabled(name.to_owned())),
    }
}

/// The URL, or the stored name of the channel, if it can be called, as far as that is known without a call.
async fn check_callback(node: &Node, callback: String) -> Result<String, SubmitError> {
    let faults = |detail: String| SubmitError::Invalid(heddle_domain::Fault::at("/callback", detail).into());
    if callback.contains("://") {
        check_http_url(&callback).map_err(faults)?;
        return Ok(callback);
    }
    let callback = Name::sought(&callback);
    if node.catalog.channel(&callback).await? {
        return Ok(callback);
    }
    let shown: String = callback.chars().filter(|c| !c.is_control()).take(100).collect();
    Err(faults(format!(
        "`{shown}` is neither the name of a channel nor a valid URL"
    )))
}

impl Runs {
    /// Creates a run, and returns its id.
    pub(crate) async fn submit(&self, submission: Submission) -> Result<RunId, SubmitError> {
        let mut tries = 1;
        loop {
            let made = self.submit_once(&submission).await;
            if tries == LAYOUTS_MAX || !is_outdated(&made) {
                return made;
            }
            tries += 1;
        }
    }

    async fn submit_once(&self, submission: &Submission) -> Result<RunId, SubmitError> {
        let (run, context) = self.layout(submission).await?;
        let id = run.id;
        let request = Request {
            run,
            context: context.clone(),
        };
        let answered = self.requests.submissions.send(request)?;
        Ok(finish(id, &context, answered).await?.0)
    }

    /// Checks a submission and lays its run out.
    pub(crate) async fn layout(&self, submission: &Submission) -> Result<(NewRun, Arc<RunContext>), SubmitError> {
        let spec = &submission.spec;
        let group = open_group(&self.node, &submission.group, None, spec.force).await?;
        let needs = GroupNeed::of(spec.force);
        or_trouble(|| check(&group, spec)).map_err(EngineError::from)??;
        let callback = match &spec.callback {
            Some(callback) => Some(check_callback(&self.node, callback.clone()).await?),
            None => None,
        };
        let now = self.now();
        let logical_time = spec.logical_time.map_or(now, heddle_domain::clock::to_micros);
        let revision = group.revision.clone();
        let dedupe = spec.dedupe.map(|dedupe| {
            let hash = dedupe_hash(&spec.params, &spec.task_params_value());
            (hash, dedupe == Dedupe::ParamsKept)
        });
        let urgency = spec.priority.map_or(submission.urgency, Urgency::Given);
        let terms = RunTerms {
            trigger: submission.trigger,
            priority: urgency.priority(revision.plan.spec.priority),
            logical_time,
            interval: revision.calendar.data_interval(logical_time),
            task_params: (!spec.task_params.is_empty()).then(|| spec.task_params_value().to_string()),
            params: serde_json::to_string(&spec.params).map_err(EngineError::unreadable)?,
            labels: labels_of(&revision, &spec.labels),
            key: spec.key.clone(),
            callback,
            source: submission.source,
            created_by: submission.by.clone(),
        };
        let layout = Layout {
            terms,
            dedupe,
            parent: submission.parent,
        };
        let (mut run, context) = self.lay_out(&revision, &group.resolution, layout, now);
        run.needs = needs;
        Ok((run, context))
    }

    /// The rows of a run that may start at once: for nodes, and for workers.
    fn first_rows(&self, revision: &Revision, ready: &[AttemptKey]) -> (Vec<ReadyRow>, Vec<QueueRow>) {
        let last = self.queue.last_claimed();
        let (mut rows, mut queued) = (Vec::with_capacity(ready.len()), Vec::new());
        for &at in ready {
            match target_at_once(&self.node, revision, at) {
                Some(target) => queued.push(self.waiters.queues.row(at, queued.len(), target, None)),
                None => rows.push(
                    ReadyRow::new(at, last + 1 + rows.len() as i64, revision.need_of(at))
                        .within(revision.claim_within(at)),
                ),
            }
        }
        (rows, queued)
    }

    /// Lets a run that has been laid out begin in the transaction that creates it.
    pub(crate) fn begin_at_creation(&self, run: &mut NewRun, revision: &Revision) {
        (run.ready, run.queued) = self.first_rows(revision, &revision.start.2);
        run.state = RunState::Running;
        run.progress = revision.start.0.clone();
        run.announces_start = revision.subscriptions.group(NotifyEvent::Started);
        (run.gated, run.waiting_for) = (false, None);
    }

    /// A run as it is stored, and as it is kept in memory.
    pub(crate) fn lay_out(
        &self,
        revision: &Arc<Revision>,
        resolution: &Arc<Resolution>,
        layout: Layout,
        now: Time,
    ) -> (NewRun, Arc<RunContext>) {
        let Layout { terms, dedupe, parent } = layout;
        let gated = revision.is_gated(terms.trigger, terms.source.is_some());
        let follows = revision.follows(terms.trigger);
        let mut run = NewRun {
            id: self.node.new_run_id(now),
            group_id: revision.group_id,
            needs: GroupNeed::NotAsked,
            revision_id: revision.id,
            resolution_id: Some(resolution.id),
            state: RunState::Waiting,
            instant: matches!(terms.trigger, Trigger::Schedule | Trigger::Upstream | Trigger::Backfill),
            terms,
            dedupe,
            created_at: now,
            deadline_at: revision.plan.deadline.map(|span| now + span.chrono()),
            parent: parent.map(|(run, at, _)| (run, at)),
            parent_due: parent.and_then(|(_, _, due)| due),
            waiting_for: gated.then(|| if follows { Vec::new() } else { vec![RunWait::Gate] }),
            progress: revision.waiting.clone(),
            ready: Vec::new(),
            queued: Vec::new(),
            gated,
            follows,
            announces_start: false,
            audited: None,
        };
        if !gated {
            self.begin_at_creation(&mut run, revision);
        }
        let context = RunContext {
            facts: RunFacts::of(&run),
            revision: revision.clone(),
            resolution: resolution.clone(),
            maps: Default::default(),
        };
        (run, Arc::new(context))
    }
}

/// A run that has been checked.
pub(crate) struct Layout {
    pub(crate) terms: RunTerms,
    /// The hash of what must be unique, and for how long: see [`NewRun::dedupe`].
    dedupe: Option<(Vec<u8>, bool)>,
    /// The attempt of which it is a sub-run, and its deadline: see [`Submission::parent`].
    parent: Option<(RunId, AttemptKey, Option<Time>)>,
}

impl Layout {
    /// A run that is no sub-run, and may have the params of other runs.
    pub(crate) fn of_terms(terms: RunTerms) -> Self {
        Self {
            terms,
            dedupe: None,
            parent: None,
        }
    }

    /// A run of a schedule, a backfill or an upstream: only its time is given.
    pub(crate) fn of_time(trigger: Trigger, revision: &Revision, logical_time: Time, interval: (Time, Time)) -> Self {
        Self::of_terms(RunTerms {
            priority: Urgency::Usual.priority(revision.plan.spec.priority),
            labels: labels_of(revision, &Default::default()),
            ..RunTerms::of_time(trigger, logical_time, interval)
        })
    }
}

/// A run's labels: the group's, then the run's own.
pub(crate) fn labels_of(revision: &Revision, own: &std::collections::BTreeMap<String, String>) -> Option<Value> {
    let labels: Map<String, Value> = revision
        .plan
        .spec
        .labels
        .iter()
        .chain(own)
        .map(|(key, value)| (key.clone(), Value::from(value.clone())))
        .collect();
    (!labels.is_empty()).then_some(Value::Object(labels))
}

trait TaskParams {
    fn task_params_value(&self) -> Value;
}

impl TaskParams for SubmissionSpec {
    fn task_params_value(&self) -> Value {
        let tasks = self.task_params.iter();
        Value::Object(
            tasks
                .map(|(task, params)| (task.to_string(), Value::Object(params.clone())))
                .collect(),
        )
    }
}

/// SHA-256 of the params with sorted keys: equal objects give equal hashes, however they were written.
fn dedupe_hash(params: &Map<String, Value>, task_params: &Value) -> Vec<u8> {
    // Maps are kept sorted by key, so equal objects have equal texts.
    let mut both = json!([params, task_params]);
    write_alike(&mut both);
    Sha256::digest(both.to_string()).to_vec()
}

/// Gives equal numbers one form: `1`, `1.0` and `1e0` are `1`, as far as floats are exact.
fn write_alike(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(whole) = whole_number(number) {
                *number = whole.into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(write_alike),
        Value::Object(fields) => fields.values_mut().for_each(write_alike),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_params_have_equal_hashes() {
        let hash = |text: &str| {
            let params: Map<String, Value> = serde_json::from_str(text).expect("an object");
            let of_task = json!({"t": &params});
            [dedupe_hash(&params, &json!({})), dedupe_hash(&Map::new(), &of_task)]
        };
        for (one, other) in [
            (r#"{"d": 1}"#, r#"{"d": 1.0}"#),
            (r#"{"d": [{"e": 100}], "a": 2}"#, r#"{"a": 2.0, "d": [{"e": 1e2}]}"#),
            (r#"{"d": 0}"#, r#"{"d": -0.0}"#),
            (r#"{"d": -7}"#, r#"{"d": -7.0}"#),
        ] {
            assert_eq!(hash(one), hash(other), "{one} {other}");
        }
        for (one, other) in [
            (r#"{"d": 1}"#, r#"{"d": 1.5}"#),
            (r#"{"d": 1}"#, r#"{"d": "1"}"#),
            (r#"{"d": 18446744073709551615}"#, r#"{"d": 18446744073709551614}"#),
        ] {
            assert_ne!(hash(one), hash(other), "{one} {other}");
        }
    }
}
