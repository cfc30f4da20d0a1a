//! From a row in *running* to an attempt under way, and back to a report.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::plan::Executor;
use heddle_domain::run::AttemptKey;
use heddle_domain::spec::NotifyEvent;
use heddle_domain::state::ErrorKind;
use heddle_sandbox::{
    AttemptRequest, Context, Effect, Grants, HostPattern, Interval, Limits, MapItem, Outcome, Script,
};
use heddle_store::live::LogRow;
use serde_json::value::RawValue;

use crate::hands::Hand;
use crate::host::Host;
use crate::patience::until;
use crate::prepare::Prepared;
use crate::{EngineError, Inner, RunContext, Submission, SubmitError};

/// What is known of runs.
pub(crate) type Contexts = HashMap<RunId, Arc<RunContext>>;

/// How many runs' facts a node remembers.
pub(crate) const CONTEXTS_MAX: usize = 4_096;

/// How many reports may wait to be recorded, or for their logs to be written. An attempt keeps its slot until its report
/// is taken up, so there are no more than slots, but for what transactions that ran side by side were each granted.
pub(crate) fn reports_max(slots: usize) -> usize {
    slots + 4 * crate::hands::SHORT_TARGET
}

/// How long a node waits before it asks again for what the database did not give.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// An attempt in hand has ended.
pub(crate) struct Report {
    pub(crate) run: RunId,
    pub(crate) at: AttemptKey,
    pub(crate) context: Arc<RunContext>,
    pub(crate) hand: Hand,
    pub(crate) end: End,
    pub(crate) finished_at: Time,
    /// Log lines that have not been written.
    pub(crate) lines: Vec<LogRow>,
}

/// How.
#[derive(Clone)]
pub(crate) enum End {
    /// With a result.
    Done(Done),
    /// A mapped task's items are known.
    Expanded { items: String, count: u32 },
    /// Nothing to be reported: it was cancelled, or a sub-run holds it now.
    Dropped,
}

/// A result.
#[derive(Clone)]
pub(crate) struct Done {
    pub(crate) result: Ending,
    pub(crate) effects: Vec<Effect>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) cpu: Option<Duration>,
}

/// What came of an attempt.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    Succeeded(String),
    Skipped(String),
    Failed {
        kind: ErrorKind,
        message: String,
        trace: Option<String>,
        retry_after: Option<Duration>,
        fatal: bool,
    },
    Lost,
    /// Its worker gave it back.
    Released,
    /// Heddle's own fault; see `patience.rs`.
    Ours {
        /// For people.
        message: String,
        /// Whether it counts as a loss.
        counted: bool,
    },
}

impl Ending {
    pub(crate) fn failed(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Failed {
            kind,
            message: message.into(),
            trace: None,
            retry_after: None,
            fatal: false,
        }
    }

    pub(crate) fn fatal(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Failed {
            kind,
            message: message.into(),
            trace: None,
            retry_after: None,
            fatal: true,
        }
    }
}

impl End {
    pub(crate) fn plain(result: Ending) -> Self {
        Self::Done(Done {
            result,
            effects: Vec::new(),
            memory_bytes: None,
            cpu: None,
        })
    }
}

/// Whether somebody wants to hear that a task begins; not that each of its items does. Whether it has been told already
/// [`Inner::tell_started`] finds out.
pub(crate) fn tells_start(context: &RunContext, at: AttemptKey) -> bool {
    at.key.item.is_none() && context.revision.told.task(at.key.task, NotifyEvent::Started)
}

/// Whether it begins when a worker claims it.
fn is_queued(context: &RunContext, at: AttemptKey) -> bool {
    let task = context.revision.plan.task(at.key.task);
    task.is_some_and(|task| task.executor == Executor::Queue && !task.mapped)
}

impl Inner {
    /// Begins to work on attempts that are this node's now.
    pub(crate) fn take(self: &Arc<Self>, taken: Vec<(RunId, AttemptKey)>) {
        let mut unknown = Vec::new();
        for (run, at) in taken {
            let hand = self.hands.add(run, at);
            match self.contexts.get(&run) {
                Some(context) => self.begin(context, at, hand),
                None => unknown.push((run, at, hand)),
            }
        }
        if !unknown.is_empty() {
            let inner = self.clone();
            self.node
                .tracker
                .spawn(async move { inner.begin_unknown(unknown).await });
        }
    }

    async fn begin_unknown(self: Arc<Self>, unknown: Vec<(RunId, AttemptKey, Hand)>) {
        let mut runs: Vec<RunId> = unknown.iter().map(|entry| entry.0).collect();
        runs.sort_unstable();
        runs.dedup();
        let contexts = loop {
            match self.contexts_of(&runs).await {
                Ok(contexts) => break contexts,
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), runs = runs.len(), "cannot read the facts of claimed runs; asking again");
                    tokio::select! {
                        () = tokio::time::sleep(ASK_AGAIN) => {}
                        () = self.node.stop.cancelled() => return,
                    }
                }
            }
        };
        for (run, at, hand) in unknown {
            match contexts.get(&run) {
                Some(context) => self.begin(context.clone(), at, hand),
                // It has ended meanwhile: somebody took the attempt away.
                None => self.hands.forget(run, at),
            }
        }
    }

    /// What is needed to work on runs, those of them that are live. The caller keeps it: what is remembered of a run may
    /// be forgotten at any moment (a control of it, its end, too many others), so nobody who has to know asks twice.
    pub(crate) async fn contexts_of(&self, runs: &[RunId]) -> Result<Contexts, EngineError> {
        let mut contexts = Contexts::with_capacity(runs.len());
        let mut missing = Vec::new();
        for &run in runs {
            match self.contexts.get(&run) {
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
            self.contexts.insert(id, context.clone());
            contexts.insert(id, context);
        }
        Ok(contexts)
    }

    /// What is known of a run that is locked, and hence live: if it came back to life since `contexts` were read, it is
    /// not among them.
    pub(crate) async fn known(&self, contexts: &Contexts, run: RunId) -> Result<Arc<RunContext>, EngineError> {
        let context = match contexts.get(&run) {
            Some(context) => Some(context.clone()),
            None => self.contexts_of(&[run]).await?.remove(&run),
        };
        context.ok_or_else(|| EngineError::Unreadable(format!("the facts of run {run} are not known")))
    }

    fn begin(self: &Arc<Self>, context: Arc<RunContext>, at: AttemptKey, hand: Hand) {
        let Some(task) = context.revision.plan.task(at.key.task) else {
            self.report(
                context,
                at,
                hand,
                End::plain(Ending::fatal(ErrorKind::Invalid, "there is no such task")),
            );
            return;
        };
        let simple = task.executor == Executor::Script
            && task.spec.when.is_none()
            && !task.mapped
            && !context.revision.templated[at.key.task as usize]
            && !tells_start(&context, at);
        if simple
            && let Some(facts) = &context.resolution.scripts[at.key.task as usize]
            && let Some(script) = self.sandbox.loaded(&facts.code)
        {
            match crate::prepare::constant_params(&context, at.key.task) {
                Ok(params) => self.start_script(context, at, hand, &script, params, None),
                Err(ending) => self.report(context, at, hand, End::plain(ending)),
            }
            return;
        }
        let inner = self.clone();
        self.hands.park();
        self.node.tracker.spawn(async move {
            let stop = hand.stop.clone();
            let prepared = tokio::select! {
                prepared = inner.patient("prepare an attempt", until(hand.since, None), || async {
                    if tells_start(&context, at) && !is_queued(&context, at) {
                        inner.tell_started(&context, at).await?;
                    }
                    inner.prepare(&context, at).await
                }) => Some(prepared),
                () = stop.cancelled() => None,
            };
            inner.hands.unpark();
            match prepared {
                None => inner.report(context, at, hand, End::Dropped),
                Some(Err(error)) => {
                    let ending = Ending::ours("prepare the attempt", &error);
                    inner.report(context, at, hand, End::plain(ending));
                }
                Some(Ok(Prepared::End(end))) => inner.report(context, at, hand, end),
                Some(Ok(Prepared::Script { script, params, item })) => {
                    inner.start_script(context, at, hand, &script, params, item);
                }
                Some(Ok(Prepared::Http { request, context: body })) => {
                    inner.hands.park();
                    let end = tokio::select! {
                        ending = inner.call(request, body) => End::plain(ending),
                        () = stop.cancelled() => End::Dropped,
                    };
                    inner.hands.unpark();
                    inner.report(context, at, hand, end);
                }
                Some(Ok(Prepared::Query(query))) => {
                    inner.hands.park();
                    let end = tokio::select! {
                        ending = inner.carry_out(&context, *query) => End::plain(ending),
                        () = stop.cancelled() => End::Dropped,
                    };
                    inner.hands.unpark();
                    inner.report(context, at, hand, end);
                }
                Some(Ok(Prepared::Queue { params })) => {
                    inner.hands.park();
                    let end = inner.enqueue_queued(&context, at, params).await;
                    inner.hands.unpark();
                    inner.report(context, at, hand, end);
                }
                Some(Ok(Prepared::Offer(offer))) => {
                    let handed = inner.patient("make an offer", until(hand.since, None), || {
                        inner.hand_to_offer(&context, at, (*offer).clone())
                    });
                    let end = match handed.await {
                        // The offer holds the attempt now; its end settles it.
                        Ok(()) => End::Dropped,
                        Err(error) => End::plain(Ending::ours("make the offer", &error)),
                    };
                    inner.report(context, at, hand, end);
                }
                Some(Ok(Prepared::SubRun { group, spec })) => {
                    let timeout = context.revision.plan.tasks[at.key.task as usize].timeout;
                    let due =
                        timeout.and_then(|timeout| Some(inner.now() + chrono::TimeDelta::from_std(timeout).ok()?));
                    let submission = Submission {
                        group,
                        spec,
                        trigger: heddle_domain::state::Trigger::Task,
                        source: None,
                        parent: Some((context.facts.id, at, due)),
                    };
                    // One that was made although its answer was lost holds the attempt: the next is refused as fenced.
                    let submitted = inner.patient("make a sub-run", until(hand.since, None), || async {
                        match inner.submit(submission.clone()).await {
                            Err(SubmitError::Engine(error)) => Err(error),
                            decided => Ok(decided),
                        }
                    });
                    let end = match submitted.await {
                        // The sub-run holds the attempt now; its end settles it.
                        Ok(Ok(_) | Err(SubmitError::Fenced)) => End::Dropped,
                        Ok(Err(error)) => End::plain(Ending::fatal(ErrorKind::Invalid, error.to_string())),
                        Err(error) => End::plain(Ending::ours("make the sub-run", &error)),
                    };
                    inner.report(context, at, hand, end);
                }
            }
        });
    }

    /// What an attempt is told about itself.
    pub(crate) fn context_of(&self, context: &RunContext, at: AttemptKey, item: Option<MapItem>) -> Context {
        let task = &context.revision.plan.tasks[at.key.task as usize];
        let now = self.now();
        let place = at.key.item.map(|item| format!("/{item}")).unwrap_or_default();
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
            idempotency_key: format!("{}/{}{place}", context.facts.id, task.name),
        }
    }

    fn start_script(
        self: &Arc<Self>,
        context: Arc<RunContext>,
        at: AttemptKey,
        hand: Hand,
        script: &Script,
        params: String,
        item: Option<(Box<RawValue>, u32)>,
    ) {
        let task = &context.revision.plan.tasks[at.key.task as usize];
        let defaults = Limits::default();
        let bytes = |size: Option<heddle_domain::spec::ByteSize>, default: u64| size.map_or(default, |size| size.0);
        let item = item.map(|(item, count)| MapItem {
            item,
            index: at.key.item.unwrap_or(0),
            count,
        });
        let request = AttemptRequest {
            context: self.context_of(&context, at, item),
            params,
            batch: None,
            limits: Limits {
                memory_bytes: bytes(task.spec.memory, defaults.memory_bytes),
                output_bytes: bytes(task.spec.max_output, defaults.output_bytes as u64) as usize,
                log_bytes: bytes(task.spec.max_log, defaults.log_bytes as u64) as usize,
                timeout: task.timeout,
            },
            grants: Grants {
                allow_hosts: task
                    .spec
                    .allow_hosts
                    .iter()
                    .filter_map(|host| host.parse::<HostPattern>().ok())
                    .collect(),
                sql: task.spec.sql.iter().map(|name| name.as_str().to_owned()).collect(),
                secrets: task.spec.secrets.iter().map(|name| name.as_str().to_owned()).collect(),
            },
            host: Arc::new(Host::new(self.clone(), context.clone(), at, &hand)),
        };
        let inner = self.clone();
        let slot = hand.handle.clone();
        let stop = hand.stop.clone();
        let done = Box::new(move |result: heddle_sandbox::AttemptResult| {
            inner.hands.observe(result.cpu);
            let ending = match result.outcome {
                Outcome::Succeeded(output) => Ending::Succeeded(output),
                Outcome::Skipped(why) => Ending::Skipped(hand.secrets.hide(why)),
                Outcome::Failed {
                    kind: ErrorKind::Lost, ..
                } => Ending::Lost,
                Outcome::Failed {
                    kind,
                    message,
                    trace,
                    retry_after,
                } => {
                    let fatal = matches!(kind, ErrorKind::Fatal | ErrorKind::Invalid);
                    let trace = match &context.resolution.scripts[at.key.task as usize] {
                        Some(facts) => trace.map(|trace| facts.trace(trace)),
                        None => trace,
                    };
                    Ending::Failed {
                        kind,
                        message: hand.secrets.hide(message),
                        trace: trace.map(|trace| hand.secrets.hide(trace)),
                        retry_after,
                        fatal,
                    }
                }
                Outcome::Cancelled => {
                    let ours = hand.trouble.lock().take();
                    let Some(ours) = ours else {
                        inner.report(context, at, hand, End::Dropped);
                        return;
                    };
                    ours
                }
            };
            let done = Done {
                result: ending,
                effects: result.effects,
                memory_bytes: Some(result.memory_bytes),
                cpu: Some(result.cpu),
            };
            inner.report(context, at, hand, End::Done(done));
        });
        let handle = self.sandbox.start(script, request, done);
        if stop.is_cancelled() {
            handle.cancel();
        }
        *slot.lock() = Some(handle);
        if stop.is_cancelled()
            && let Some(handle) = slot.lock().as_ref()
        {
            handle.cancel();
        }
    }

    /// An attempt has ended: the recorder is told.
    pub(crate) fn report(&self, context: Arc<RunContext>, at: AttemptKey, hand: Hand, end: End) {
        let run = context.facts.id;
        if let End::Done(Done {
            result: Ending::Skipped(why),
            ..
        }) = &end
        {
            hand.log.say(run, at, self.now(), format!("skipped: {why}"));
        }
        let report = Report {
            run,
            at,
            context,
            hand,
            end,
            finished_at: self.now(),
            lines: Vec::new(),
        };
        self.record(report);
    }
}
