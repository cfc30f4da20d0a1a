//! Runs that a control has locked: what it does to them is decided, written and committed here, for one run as for many.
//!
//! A control locks runs ([`Runs::lock`] one, `bulk.rs` many), plans what is to happen to each ([`Planned`]), and hands all of
//! them to [`Runs::commit_controls`]. This decides about each run by itself: one that refuses gets its answer, and is left as it was.
//! The others are written together, by the same statements for any number of runs.
//!
//! A run that has ended becomes live again only after the decision, so a refusal leaves nothing to take back. Its params
//! are taken before that too, if it was submitted with `dedupe`. A run of a deleted group does not become live again: the
//! transaction has asked for the group before it locked the run ([`Completion::hold_groups`]), so a deletion at the same
//! time either finds the run live, or is found by the control.

use std::collections::HashMap;
use std::sync::Arc;

use heddle_domain::Faults;
use heddle_domain::id::RunId;
use heddle_domain::run::{Event, TaskKey};
use heddle_domain::state::RunState;
use heddle_store::StoreError;
use heddle_store::change::By;
use heddle_store::live::{Completion, Grant, LiveRun, NewOverride, RunFacts, RunWrite};
use heddle_store::transaction::again_after;
use serde_json::{Value, json};

use crate::node::news::{CHANNEL, News, encode};
use crate::node::signals::Signal;
use crate::runs::change::apply::After;
use crate::runs::change::transition::{NoTransition, Snapshot, Transition};
use crate::runs::contexts::Contexts;
use crate::runs::create::starts::complete;
use crate::{EngineError, RunContext, Runs};

/// Why a control did nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ControlError {
    /// There is no such run or task run.
    #[error("the {0} does not exist")]
    NotFound(&'static str),
    /// The state of the run or task run does not allow it.
    #[error("{0}")]
    Refused(String),
    /// The run would be a second unfinished one with the same deduplicated params: this is the first.
    #[error("run {0} has the same params and has not ended (`dedupe`)")]
    Exists(RunId),
    /// The run was repeated with this key before: this is the run that the key has made.
    #[error("run {0} already has this key")]
    Made(RunId),
    /// The request is invalid.
    #[error("{0}")]
    Invalid(Faults),
    /// An error that the caller did not cause.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<StoreError> for ControlError {
    fn from(error: StoreError) -> Self {
        Self::Engine(EngineError::Store(error))
    }
}

/// Whether an error of Heddle that a control of one run met concerns only this run: what is stored about it cannot be read,
/// or the database refuses its values. A second try would meet it again, and other runs do not. What other runs would meet
/// too (a missing right, an exhausted limit of the server) does not concern only this one.
pub(super) fn is_of_the_run(error: &EngineError) -> bool {
    match error {
        EngineError::Unreadable(_) | EngineError::Progress { .. } => true,
        EngineError::Store(error) => error.is_of_the_values(),
        EngineError::Unavailable
        | EngineError::Stopping
        | EngineError::Contended
        | EngineError::Overloaded
        | EngineError::NotComputed(_) => false,
    }
}

/// The answers of a control, by run.
pub(super) type Answers = HashMap<RunId, Result<(), ControlError>>;

/// A run that is locked for a control.
pub(super) struct ControlledRun {
    pub(super) run: RunId,
    pub(super) live: LiveRun,
    pub(super) context: Arc<RunContext>,
}

/// What happens to a locked run.
pub(super) enum Step {
    /// It gets this event.
    Event(Event),
    /// It gets this state. A live run is cancelled first: these task runs have been withdrawn. An ended run ends again;
    /// if that is in another state, people and programs are notified as after any end.
    Set(RunState, Vec<TaskKey>),
}

impl Step {
    /// Whether task runs were withdrawn for it, which must not be committed without it.
    fn has_withdrawn(&self) -> bool {
        match self {
            Self::Event(Event::Cancel { withdrawn } | Event::Pause { withdrawn }) | Self::Set(_, withdrawn) => {
                !withdrawn.is_empty()
            }
            Self::Event(_) => false,
        }
    }
}

/// What a control does to a run that it has locked.
pub(super) struct Planned {
    pub(super) locked: ControlledRun,
    pub(super) step: Step,
    /// If it is about a task run: its state before and after, for the audit.
    pub(super) task: Option<(Value, Value)>,
    /// The states that the operator sets.
    pub(super) sets: Vec<NewOverride>,
    /// The script versions that the run gets.
    pub(super) resolution_id: Option<i64>,
}

impl Planned {
    /// A step of a run as a whole, without anything else.
    pub(super) fn of(locked: ControlledRun, step: Step) -> Self {
        Self {
            locked,
            step,
            task: None,
            sets: Vec::new(),
            resolution_id: None,
        }
    }
}

/// A control, as it is recorded.
pub(super) struct Act<'a> {
    pub(super) actor: &'a str,
    /// Its name in the audit; `None`: the audit gets no entry.
    pub(super) word: Option<&'static str>,
    /// Why, as the operator says; empty: nothing is said.
    pub(super) reason: &'a str,
    /// The error of the runs, instead of the errors of their tasks.
    pub(super) why: Option<String>,
    /// Whether the overlap of a group ends the runs: then no follower waits for their instants.
    pub(super) leaves_out: bool,
}

/// A state for the audit: of a run, and of a task run if it is about one.
fn shown(state: RunState, task: Option<&Value>) -> Value {
    let mut shown = json!({"state": state});
    if let Some(task) = task {
        shown["task"] = task.clone();
    }
    shown
}

impl Act<'_> {
    /// The entry of the audit about a run: before and after.
    fn noted(&self, before: RunState, after: RunState, task: Option<&(Value, Value)>) -> (Value, Option<Value>) {
        let was = shown(before, task.map(|task| &task.0));
        let mut is = shown(after, task.map(|task| &task.1));
        if !self.reason.is_empty() {
            is["reason"] = json!(self.reason);
        }
        (was, Some(is))
    }
}

/// A locked run about which is decided, and that is not written yet.
struct DecidedRun {
    locked: ControlledRun,
    transition: Transition,
    /// The state that an operator sets it to.
    set: Option<RunState>,
    /// Whether it has to wait at its group's gate if it continues.
    waits_at_gate: bool,
    /// The error of its tasks before.
    failure: Option<String>,
    task: Option<(Value, Value)>,
    sets: Vec<NewOverride>,
    resolution_id: Option<i64>,
}

impl DecidedRun {
    fn run(&self) -> RunId {
        self.locked.run
    }

    fn had_ended(&self) -> bool {
        self.locked.live.state.is_final()
    }

    /// Whether it had ended, and is live from now on.
    fn goes_on(&self) -> bool {
        self.had_ended() && !self.transition.state().is_final()
    }
}

/// What of a batch is written after the runs themselves.
#[derive(Default)]
struct Rest {
    audits: Vec<(RunId, Value, Option<Value>)>,
    sets: Vec<(RunId, NewOverride)>,
    /// Runs that wait at their groups' gates, each with its group.
    gated: Vec<(RunId, i64)>,
    /// Runs that were paused while they waited, and wait again, each with its group.
    again: Vec<(RunId, i64)>,
}

/// The refusal of a control that would let an ended run of this group go on.
pub(super) fn group_deleted(group: &str) -> ControlError {
    ControlError::Refused(format!(
        "the group `{group}` has been deleted, so its ended runs do not go on"
    ))
}

/// Runs of deleted groups that would go on are refused. One that ends again at once, because only states are set, is not.
fn refuse_deleted(decided: &mut Vec<DecidedRun>, answers: &mut Answers) {
    decided.retain(|one| {
        let refused = one.goes_on() && one.locked.live.group_deleted;
        if refused {
            let group = &one.locked.context.revision.group_name;
            answers.insert(one.run(), Err(group_deleted(group)));
        }
        !refused
    });
}

/// Reopened runs that were submitted with `dedupe` take their params again. Those whose params another run has are
/// refused.
async fn take_params(
    completion: &mut Completion,
    decided: &mut Vec<DecidedRun>,
    answers: &mut Answers,
) -> Result<(), StoreError> {
    let deduped: Vec<(RunId, i64, &[u8])> = decided
        .iter()
        .filter(|one| one.goes_on())
        .filter_map(|one| {
            let hash = one.locked.live.dedupe.as_deref()?;
            Some((one.run(), one.locked.context.facts.group_id, hash))
        })
        .collect();
    let others = completion.take_params_again(&deduped).await?;
    decided.retain(|one| !others.contains_key(&one.run()));
    for (run, other) in others {
        answers.insert(run, Err(ControlError::Exists(other)));
    }
    Ok(())
}

/// Those that had ended become live again; returns them. One that was submitted in SQL, and had ended before a node
/// completed it, is completed (`starts.rs`).
async fn reopen(completion: &mut Completion, decided: &mut [DecidedRun]) -> Result<Vec<RunId>, StoreError> {
    let ended: HashMap<RunId, RunState> = decided
        .iter()
        .filter(|one| one.had_ended())
        .map(|one| (one.run(), one.locked.live.state))
        .collect();
    let reopened: Vec<RunId> = ended.keys().copied().collect();
    completion.reopen(&reopened).await?;
    let mut contexts: Contexts = decided
        .iter()
        .filter(|one| one.had_ended())
        .map(|one| (one.run(), one.locked.context.clone()))
        .collect();
    complete(completion, &mut contexts, |run| ended[&run]).await?;
    for one in decided.iter_mut() {
        if let Some(context) = contexts.remove(&one.run()) {
            one.locked.context = context;
        }
    }
    let pinned: Vec<(RunId, i64)> = decided
        .iter()
        .filter_map(|one| Some((one.run(), one.resolution_id?)))
        .collect();
    completion.set_resolutions(&pinned).await?;
    Ok(reopened)
}

/// Notes whether followers wait for the instants of these runs, which are written. A run that the overlap ends leaves its
/// instant out, in the transaction that ends it: a run that has ended by itself until then has not been left out. A run
/// that had been left out and goes on, or gets another state, counts from now on. One that remains as it ended stays left
/// out.
async fn note_instants(
    completion: &mut Completion,
    act: &Act<'_>,
    writes: &[RunWrite],
    reopened: &[RunId],
    after: &mut After,
) -> Result<(), StoreError> {
    if act.leaves_out {
        let ended = writes.iter().filter(|write| write.state == RunState::Cancelled);
        let ended: Vec<RunId> = ended.map(|write| write.run).collect();
        after.signals.add_if(!ended.is_empty(), Signal::Links);
        return completion.note_skipped(&ended).await;
    }
    let counting = writes
        .iter()
        .filter(|write| !write.told && reopened.contains(&write.run));
    let counting: Vec<RunId> = counting.map(|write| write.run).collect();
    completion.note_unskipped(&counting).await
}

impl Runs {
    /// Tries a control again after conflicts with other transactions, as the store does with its own ones. Each try locks
    /// the run and decides anew.
    pub(super) async fn retried<F, Fut>(&self, once: F) -> Result<(), ControlError>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<(), ControlError>>,
    {
        let mut tried = 1;
        loop {
            let pause = match once().await {
                Err(ControlError::Engine(EngineError::Store(error))) => match again_after(&error, tried) {
                    Some(pause) => pause,
                    None => return Err(error.into()),
                },
                other => return other,
            };
            tokio::time::sleep(pause).await;
            tried += 1;
        }
    }

    /// Opens a transaction of this name and locks a run in it, for a control. A live run that was submitted in SQL is
    /// completed, if no node has done that yet (`starts.rs`).
    pub(super) async fn lock(
        &self,
        transaction: &'static str,
        run: RunId,
    ) -> Result<(Completion, ControlledRun), ControlError> {
        let mut completion = self.node.completion(transaction).await?;
        let live = completion.lock_one(run).await?.ok_or(ControlError::NotFound("run"))?;
        if !live.state.is_final() {
            let mut known = self.with_contexts(&mut completion, vec![(run, live)]).await?;
            let locked = known.pop().ok_or(ControlError::NotFound("run"))?;
            return Ok((completion, locked));
        }
        let row = self.node.store.run(run).await?;
        let row = row.ok_or(ControlError::NotFound("run"))?;
        let context = self.context_of_ended(RunFacts::of_row(&row)).await?;
        Ok((completion, ControlledRun { run, live, context }))
    }

    /// Live runs that are locked, with their facts. Those that were submitted in SQL are completed.
    pub(super) async fn with_contexts(
        &self,
        completion: &mut Completion,
        live: Vec<(RunId, LiveRun)>,
    ) -> Result<Vec<ControlledRun>, EngineError> {
        let states: HashMap<RunId, RunState> = live.iter().map(|(run, live)| (*run, live.state)).collect();
        let runs: Vec<RunId> = live.iter().map(|(run, _)| *run).collect();
        let mut contexts = self.contexts.of(&runs).await?;
        let at_gate = complete(completion, &mut contexts, |run| states[&run]).await?;
        let mut locked = Vec::with_capacity(live.len());
        for (run, mut live) in live {
            live.waits |= at_gate.contains(&run);
            let context = self.contexts.known(&contexts, run).await?;
            locked.push(ControlledRun { run, live, context });
        }
        Ok(locked)
    }

    /// The context of a run that has ended, and is live again only within a control's transaction: other connections
    /// still see it as ended.
    pub(super) async fn context_of_ended(&self, facts: RunFacts) -> Result<Arc<RunContext>, EngineError> {
        let revision = self.node.catalog.revision(facts.revision_id).await?;
        let resolution = match facts.resolution_id {
            Some(id) => self.node.catalog.resolution(id, &revision).await?,
            None => self.node.catalog.resolve(&revision).await?,
        };
        Ok(Arc::new(RunContext {
            facts,
            revision,
            resolution,
            maps: Default::default(),
        }))
    }

    /// The same as [`Self::commit_controls`] for one run; returns its answer.
    pub(super) async fn commit_control(
        self: &Arc<Self>,
        completion: Completion,
        act: &Act<'_>,
        planned: Planned,
    ) -> Result<(), ControlError> {
        let run = planned.locked.run;
        let mut answers = Answers::new();
        self.commit_controls(completion, act, vec![planned], &mut answers)
            .await?;
        answers.remove(&run).unwrap_or(Ok(()))
    }

    /// Decides about locked runs, writes what follows and commits it, and adds each run's answer. If all refuse, nothing is
    /// committed.
    pub(super) async fn commit_controls(
        self: &Arc<Self>,
        mut completion: Completion,
        act: &Act<'_>,
        planned: Vec<Planned>,
        answers: &mut Answers,
    ) -> Result<(), EngineError> {
        let mut decided = self.decide_all(&mut completion, planned, answers).await?;
        refuse_deleted(&mut decided, answers);
        take_params(&mut completion, &mut decided, answers).await?;
        if decided.is_empty() {
            return Ok(());
        }
        let reopened = reopen(&mut completion, &mut decided).await?;
        let (mut after, mut grant) = (After::default(), self.grant());
        let mut writes = Vec::with_capacity(decided.len());
        let mut rest = Rest::default();
        for one in decided {
            writes.push(self.write_decided(act, one, &mut rest, &mut grant, &mut after)?);
        }
        self.write(&mut completion, &writes, &mut after).await?;
        note_instants(&mut completion, act, &writes, &reopened, &mut after).await?;
        // Dated after the ends that they cause: an override that is older than an end has no effect any more.
        let by = By {
            actor: act.actor,
            at: completion.now(),
        };
        completion
            .insert_overrides(&rest.sets, act.reason, act.actor, by.at)
            .await?;
        if let Some(word) = act.word {
            completion.audit_all(by, word, &rest.audits).await?;
        }
        completion.wait_at_gate(&rest.gated).await?;
        completion.wait_again(&rest.again).await?;
        after
            .signals
            .add_if(!rest.gated.is_empty() || !rest.again.is_empty(), Signal::Inbox);
        after.signals.add_if(!rest.again.is_empty(), Signal::Links);
        completion.commit().await?;
        // A restart may change the scripts: the facts are read again, here and on other nodes that worked on the runs.
        for write in &writes {
            self.contexts.remove(&write.run);
        }
        self.tell_reopened(reopened).await;
        self.acted(after);
        Ok(())
    }

    /// Says to the other nodes that these runs are live again, after the commit: a server whose queue of notifications is
    /// full would refuse the commit. And before the wake-ups for the work of the runs.
    async fn tell_reopened(&self, reopened: Vec<RunId>) {
        if reopened.is_empty() {
            return;
        }
        let news: Vec<News> = reopened.into_iter().map(News::Reopened).collect();
        self.node.store.wake_for_reopened(CHANNEL, &encode(&news)).await;
    }

    /// Decides about each run; those that refuse get their answers, and the others are returned.
    async fn decide_all(
        &self,
        completion: &mut Completion,
        planned: Vec<Planned>,
        answers: &mut Answers,
    ) -> Result<Vec<DecidedRun>, EngineError> {
        let mut decided = Vec::with_capacity(planned.len());
        for planned in planned {
            let run = planned.locked.run;
            let has_withdrawn = planned.step.has_withdrawn();
            let answer = match self.decide_one(completion, planned).await {
                Ok(one) => {
                    decided.push(one);
                    Ok(())
                }
                Err(NoTransition::Refused(refused)) if !has_withdrawn => Err(refused.into()),
                Err(none) => return Err(none.into()),
            };
            answers.insert(run, answer);
        }
        Ok(decided)
    }

    async fn decide_one(&self, completion: &mut Completion, planned: Planned) -> Result<DecidedRun, NoTransition> {
        let Planned {
            locked,
            step,
            task,
            sets,
            resolution_id,
        } = planned;
        let (live, context) = (&locked.live, &locked.context);
        let had_ended = live.state.is_final();
        let set = match &step {
            Step::Set(state, _) => Some(*state),
            Step::Event(_) => None,
        };
        // The run's own revision says whether it has to wait, as when it was created: runs whose revision has a bound
        // wake the gate when they end.
        let waits_at_gate = had_ended && set.is_none() && context.revision.is_bounded(context.facts.trigger);
        let snapshot = Snapshot::of_live(locked.run, live).map_err(NoTransition::Engine)?;
        let failure = snapshot.progress.error().map(str::to_owned);
        let now = completion.now();
        let transition = match step {
            // It has no active attempts: it ends again, without any work.
            Step::Set(state, _) if had_ended => Transition::set_by_hand(snapshot, state),
            Step::Set(state, withdrawn) => self
                .transition(context, snapshot, &[Event::Cancel { withdrawn }], completion, now)
                .await?
                .then_set_by_hand(state),
            Step::Event(event) => {
                let wait = waits_at_gate.then_some(Event::WaitAtGate);
                let events: Vec<Event> = wait.into_iter().chain([event]).collect();
                self.transition(context, snapshot, &events, completion, now).await?
            }
        };
        Ok(DecidedRun {
            locked,
            transition,
            set,
            waits_at_gate,
            failure,
            task,
            sets,
            resolution_id,
        })
    }

    /// A decision as rows: those of the run, and what is written after these.
    fn write_decided(
        &self,
        act: &Act<'_>,
        one: DecidedRun,
        rest: &mut Rest,
        grant: &mut Grant,
        after: &mut After,
    ) -> Result<RunWrite, EngineError> {
        let ControlledRun { run, live, context } = one.locked;
        let (state, group) = (one.transition.state(), context.facts.group_id);
        let (before, after_it) = act.noted(live.state, state, one.task.as_ref());
        rest.audits.push((run, before, after_it));
        rest.sets.extend(one.sets.into_iter().map(|set| (run, set)));
        if state == RunState::Waiting {
            if one.waits_at_gate {
                rest.gated.push((run, group));
            }
            if live.state == RunState::Paused {
                rest.again.push((run, group));
            }
        }
        let keeps_error = one.set.is_some() || one.transition.progress().error() == one.failure.as_deref();
        let mut nothing = Grant::none();
        let grant = if one.set.is_some() { &mut nothing } else { grant };
        let mut write = self.write_of(&context, one.transition, grant, after)?;
        write.error = match one.set {
            Some(set) => (set == RunState::Failed).then(|| format!("set to failed by {}: {}", act.actor, act.reason)),
            None => act.why.clone().or(write.error),
        };
        if write.told {
            // The run remains as it ended. Its tasks alone do not say why it ended so, so the stored reasons are kept.
            write.skipped = live.skipped;
            if keeps_error {
                write.error = live.error;
            }
        }
        Ok(write)
    }
}
