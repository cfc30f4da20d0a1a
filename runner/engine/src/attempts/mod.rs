//! From a row in *running* to an attempt that runs, and to its report.
//!
//! The module of runs calls this one when an attempt belongs to this node ([`Worker`]), and gets its report. In
//! between, the attempt is prepared (`prepare.rs`) and carried out: a script in the sandbox (here, with `host.rs`), an
//! HTTP call (`http_task.rs`), a statement (`query_task.rs`), a worker (`queue_task.rs`), an audience
//! (`audience_task.rs`), or a run of another group.

pub(crate) mod audience_task;
pub(crate) mod host;
pub(crate) mod http_task;
pub(crate) mod outside;
pub(crate) mod prepare;
pub(crate) mod query_task;
pub(crate) mod queue_task;

use std::sync::Arc;

use heddle_domain::backfill::Urgency;
use heddle_domain::executor::Executor;
use heddle_domain::run::AttemptKey;
use heddle_domain::spec::{ByteSize, SubmissionSpec};
use heddle_domain::state::{ErrorKind, Trigger};
use heddle_domain::template::Templates;
use heddle_domain::{ERROR_MESSAGE_BYTES_MAX, ERROR_TRACE_BYTES_MAX};
use heddle_sandbox::{AttemptRequest, Limits, MapItem, OutboundPolicy, Outcome, Script};
use serde_json::value::RawValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::node::Node;
use crate::node::group_commit::{Gathering, GroupCommit};
use crate::node::short_ways::ShortWay;
use crate::runs::change::notices::{tell_started, tells_start};
use crate::runs::contexts::context_of;
use crate::runs::ending::{Done, End, Ending, Stop};
use crate::runs::params::constant_params;
use crate::runs::take::held::HeldAttempt;
use crate::runs::take::held::Report;
use crate::runs::take::patience::{patient, until};
use crate::runs::{Audiences, Worker};
use crate::scripts::grants::grants;
use crate::{EngineError, RunContext, Runs, Submission, SubmitError};
use host::Host;
use prepare::Prepared;
use queue_task::Enqueues;

/// Carries out the attempts of this node.
pub(crate) struct Attempts {
    node: Arc<Node>,
    runs: Arc<Runs>,
    pub(crate) templates: Templates,
    /// Permits for attempts that may take long to prepare.
    preparations: tokio::sync::Semaphore,
    /// Gets the offers that tasks make to audiences.
    audiences: Arc<dyn Audiences>,
    pub(crate) outbound: reqwest::Client,
    policy: OutboundPolicy,
    enqueues: GroupCommit<Enqueues>,
}

impl Attempts {
    /// Carries out the attempts of these runs.
    pub(crate) fn new(
        node: Arc<Node>,
        runs: Arc<Runs>,
        audiences: Arc<dyn Audiences>,
    ) -> Result<(Arc<Self>, Gathering<Enqueues>), EngineError> {
        let policy = runs.scripts.sandbox.outbound().clone();
        let outbound = policy.redirecting_client().map_err(EngineError::unreadable)?;
        let (enqueues, gathering) = GroupCommit::new();
        let attempts = Arc::new(Self {
            node,
            runs,
            templates: Templates::new(),
            preparations: tokio::sync::Semaphore::new(prepare::AT_ONCE_MAX),
            audiences,
            outbound,
            policy,
            enqueues,
        });
        let worker: Arc<dyn Worker> = attempts.clone();
        attempts.runs.held.carried_out_by(&worker);
        Ok((attempts, gathering))
    }
}

/// A sub-run of a backfill, at any depth, is as urgent as the backfill. (Only then does a sub-run have another priority
/// than that of its group.)
fn urgency_of_sub_runs(context: &RunContext) -> Urgency {
    let facts = &context.facts;
    let group = context.revision.plan.spec.priority;
    match facts.trigger {
        Trigger::Backfill => Urgency::of_historic(facts.priority, group),
        Trigger::Upstream if facts.source.is_some() => Urgency::of_historic(facts.priority, group),
        Trigger::Upstream => Urgency::Usual,
        _ if facts.has_parent => Urgency::of(facts.priority, group),
        _ => Urgency::Usual,
    }
}

/// What a script may use up.
fn limits_of(context: &RunContext, at: AttemptKey) -> Limits {
    let task = &context.revision.plan.tasks[at.key.task as usize];
    let defaults = Limits::default();
    let bytes = |size: Option<ByteSize>, default: u64| size.map_or(default, |size| size.0);
    Limits {
        memory_bytes: bytes(task.spec.memory, defaults.memory_bytes),
        output_bytes: bytes(task.spec.max_output, defaults.output_bytes as u64) as usize,
        log_bytes: bytes(task.spec.max_log, defaults.log_bytes as u64) as usize,
        timeout: task.timeout,
        cpu: None,
    }
}

/// How a script's attempt ended, without secrets. `None`: it was stopped, and its end is not recorded.
fn ending_of(context: &RunContext, at: AttemptKey, held: &HeldAttempt, outcome: Outcome) -> Option<Ending> {
    Some(match outcome {
        Outcome::Succeeded(output) => Ending::Succeeded(output),
        Outcome::Skipped(why) => Ending::Skipped(held.secrets.hide_within(why, ERROR_MESSAGE_BYTES_MAX)),
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
            // Before it is changed, its end is where the sandbox cut it.
            let trace = trace.map(|trace| held.secrets.hide_within(trace, ERROR_TRACE_BYTES_MAX));
            let trace = match &context.resolution.scripts[at.key.task as usize] {
                Some(facts) => trace.map(|trace| facts.trace(trace)),
                None => trace,
            };
            Ending::Failed {
                kind,
                message: held.secrets.hide_within(message, ERROR_MESSAGE_BYTES_MAX),
                trace: trace.map(|trace| held.secrets.hide(trace)),
                retry_after,
                fatal,
            }
        }
        Outcome::Cancelled => held.trouble.lock().take()?,
    })
}

/// Whether the attempt begins when a worker claims it.
fn is_queued(context: &RunContext, at: AttemptKey) -> bool {
    let task = context.revision.plan.task(at.key.task);
    task.is_some_and(|task| matches!(task.executor, Executor::Queue(_)) && !task.mapped)
}

impl Worker for Attempts {
    fn begin(self: Arc<Self>, context: Arc<RunContext>, at: AttemptKey, held: HeldAttempt) {
        self.start(context, at, held);
    }
}

impl Attempts {
    fn start(self: &Arc<Self>, context: Arc<RunContext>, at: AttemptKey, held: HeldAttempt) {
        let Some(task) = context.revision.plan.task(at.key.task) else {
            self.report(
                context,
                at,
                held,
                End::plain(Ending::fatal(ErrorKind::Invalid, "there is no such task")),
            );
            return;
        };
        let simple = self.node.short_ways.take(ShortWay::BeginAtOnce)
            && matches!(task.executor, Executor::Script(_))
            && task.spec.when.is_none()
            && !task.mapped
            && !context.revision.templated[at.key.task as usize]
            && !tells_start(&context, at);
        if simple
            && let Some(facts) = &context.resolution.scripts[at.key.task as usize]
            && let Some(script) = self.runs.scripts.sandbox.loaded(&facts.code)
        {
            match constant_params(&context, at.key.task) {
                Ok(params) => {
                    self.node.short_ways.took(ShortWay::BeginAtOnce);
                    return self.start_script(context, at, held, &script, params, None);
                }
                Err(Stop::Ending(ending)) => return self.report(context, at, held, End::plain(ending)),
                // The general way below waits and tries again.
                Err(Stop::Engine(_)) => {}
            }
        }
        let attempts = self.clone();
        self.runs.held.park();
        self.node.tracker.spawn(async move {
            let stop = held.stop.clone();
            let prepared = tokio::select! {
                prepared = patient(&attempts.node, "prepare an attempt", until(Instant::now(), None), || async {
                    if tells_start(&context, at) && !is_queued(&context, at) {
                        tell_started(&attempts.node, &context, at).await?;
                    }
                    attempts.prepare(&context, at).await
                }) => Some(prepared),
                () = stop.cancelled() => None,
            };
            attempts.runs.held.unpark();
            match prepared {
                None => attempts.report(context, at, held, End::Dropped),
                Some(Err(error)) => {
                    let ending = Ending::ours("prepare the attempt", &error);
                    attempts.report(context, at, held, End::plain(ending));
                }
                Some(Ok(prepared)) => attempts.carry_on(context, at, held, prepared).await,
            }
        });
    }

    /// Starts a prepared attempt. If it does not run on this node, waits for it, or gives it to the part that will end
    /// it.
    async fn carry_on(
        self: &Arc<Self>,
        context: Arc<RunContext>,
        at: AttemptKey,
        held: HeldAttempt,
        prepared: Prepared,
    ) {
        let stop = held.stop.clone();
        let end = match prepared {
            Prepared::End(end) => end,
            Prepared::Script { script, params, item } => {
                return self.start_script(context, at, held, &script, params, item);
            }
            Prepared::Outside(work) => {
                let work = work.carry_out(self.clone(), context.clone());
                self.unless_stopped(&stop, work).await
            }
            Prepared::Queue { params } => {
                self.runs.held.park();
                let end = self.enqueue_queued(&context, at, params).await;
                self.runs.held.unpark();
                end
            }
            Prepared::Offer { offer, item_hash } => {
                let handed = patient(&self.node, "create an offer", until(Instant::now(), None), || {
                    self.hand_to_offer(&context, at, (*offer).clone(), item_hash.clone())
                });
                match handed.await {
                    // The offer holds the attempt now; the end of the offer ends the attempt.
                    Ok(()) => End::Dropped,
                    Err(error) => End::plain(Ending::ours("create the offer", &error)),
                }
            }
            Prepared::SubRun { group, spec } => {
                self.make_sub_run(&context, at, until(Instant::now(), None), group, spec)
                    .await
            }
        };
        self.report(context, at, held, end);
    }

    /// Waits for work outside of this node. The attempt takes no slot meanwhile. If the attempt is stopped, the future
    /// of its work is dropped.
    async fn unless_stopped(&self, stop: &CancellationToken, outside: impl Future<Output = Ending>) -> End {
        self.runs.held.park();
        let end = tokio::select! {
            ending = outside => End::plain(ending),
            () = stop.cancelled() => End::Dropped,
        };
        self.runs.held.unpark();
        end
    }

    async fn make_sub_run(
        &self,
        context: &RunContext,
        at: AttemptKey,
        until: Instant,
        group: String,
        spec: SubmissionSpec,
    ) -> End {
        let timeout = context.revision.plan.tasks[at.key.task as usize].timeout;
        let due = timeout.and_then(|timeout| Some(self.node.now() + chrono::TimeDelta::from_std(timeout).ok()?));
        let submission = Submission {
            group,
            spec,
            trigger: Trigger::Task,
            urgency: urgency_of_sub_runs(context),
            source: None,
            by: None,
            parent: Some((context.facts.id, at, due)),
        };
        // The sub-run may exist although the answer was lost. It then holds the attempt, and the second try is refused
        // as fenced.
        let submitted = patient(&self.node, "create a sub-run", until, || async {
            match self.runs.submit(submission.clone()).await {
                Err(SubmitError::Engine(error)) => Err(error),
                decided => Ok(decided),
            }
        });
        match submitted.await {
            // The sub-run holds the attempt now; the end of the sub-run ends the attempt.
            Ok(Ok(_) | Err(SubmitError::Fenced)) => End::Dropped,
            Ok(Err(error)) => End::plain(Ending::fatal(ErrorKind::Invalid, error.to_string())),
            Err(error) => End::plain(Ending::ours("create the sub-run", &error)),
        }
    }

    fn start_script(
        self: &Arc<Self>,
        context: Arc<RunContext>,
        at: AttemptKey,
        held: HeldAttempt,
        script: &Script,
        params: String,
        item: Option<(Box<RawValue>, u32)>,
    ) {
        let item = item.map(|(item, count)| MapItem {
            item,
            index: at.key.item.unwrap_or(0),
            count,
        });
        let task = &context.revision.plan.tasks[at.key.task as usize];
        let spec = &task.spec;
        let request = AttemptRequest {
            context: context_of(self.node.now(), &context, at, item),
            params,
            batch: None,
            limits: limits_of(&context, at),
            grants: grants(
                format_args!("task {} of group {}", task.name, context.revision.group_name),
                &spec.allow_hosts,
                &spec.sql,
                &spec.secrets,
            ),
            host: Arc::new(Host::new(self.clone(), context.clone(), at, &held)),
        };
        let attempts = self.clone();
        let slot = held.handle.clone();
        let stop = held.stop.clone();
        let done = Box::new(move |result: heddle_sandbox::AttemptResult| {
            attempts.runs.held.observe(result.cpu);
            let counts = &attempts.runs.counts;
            counts.script_cpu_seconds.observe(result.cpu.as_secs_f64());
            let end = match ending_of(&context, at, &held, result.outcome) {
                Some(ending) => End::Done(Done {
                    result: ending,
                    effects: result.effects,
                    memory_bytes: Some(result.memory_bytes),
                    cpu: Some(result.cpu),
                }),
                None => End::Dropped,
            };
            attempts.report(context, at, held, end);
        });
        let handle = self.runs.scripts.sandbox.start(script, request, done);
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

    /// Reports the end of an attempt to the recorder.
    pub(crate) fn report(&self, context: Arc<RunContext>, at: AttemptKey, held: HeldAttempt, end: End) {
        let run = context.facts.id;
        if let End::Done(Done {
            result: Ending::Skipped(why),
            ..
        }) = &end
        {
            held.log.say(run, at, self.node.now(), format!("skipped: {why}"));
        }
        let lasted = self.node.clock.elapsed().saturating_sub(held.since);
        let report = Report {
            run,
            at,
            context,
            held,
            end,
            finished_at: self.node.now(),
            lasted,
            lines: Vec::new(),
        };
        self.runs.reports.record(&self.node, report);
    }
}
