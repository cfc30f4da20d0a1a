//! Traces: spans of runs and attempts that have ended, sent after the commit of their end.
//!
//! Nothing is stored for traces, and nodes exchange nothing for them, because ids are computed from what every node
//! knows: a run's trace has the run's own id (a UUID has as many bits as a trace's id), and the ids of its spans are
//! digests of run, task, item and attempt. So spans of different nodes belong to one trace, and an `http` task can send
//! the id of its attempt before that attempt has ended.
//!
//! A span is reported once, by the node whose transaction recorded the end. If that node dies between the commit and
//! the report, the span is missing: traces are for people to look at; the history in Postgres is what counts.
//!
//! Without a tracer, the only cost is a check whether there is one.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::{AttemptState, ErrorKind, RunState, Trigger};
use heddle_domain::{Time, hex};
use heddle_store::live::{AttemptRow, Interrupted};
use heddle_store::message::Finish;
use prometheus::{Histogram, HistogramOpts};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{Engine, RunContext, Runs};

/// How many characters of an error a span contains.
const ERROR_MAX_CHARS: usize = 500;

/// The id of a span.
pub type SpanBytes = [u8; 8];

/// Receives the spans. It is called on threads that serve requests: it must neither wait nor fail.
pub trait Tracer: Send + Sync {
    /// Whether spans of this run are wanted; the same answer on all nodes.
    fn wants(&self, run: RunId) -> bool;
    fn ended(&self, span: Span);
}

#[derive(Clone, Debug)]
pub enum Span {
    /// A run: the root of its trace.
    Run(RunSpan),
    /// An attempt, below its run.
    Attempt(AttemptSpan),
    /// A batch of scheduled messages for a script: it has its own trace.
    Batch(BatchSpan),
}

/// A run that has ended.
#[derive(Clone, Debug)]
pub struct RunSpan {
    /// The run's id, which is also the id of the trace.
    pub run: RunId,
    pub group: String,
    /// Why the run was created.
    pub trigger: Trigger,
    pub logical_time: Time,
    pub state: RunState,
    /// The beginning of its error, if it failed.
    pub error: Option<String>,
    /// When it was submitted.
    pub created_at: Time,
    pub finished_at: Time,
}

/// An attempt that has ended.
#[derive(Clone, Debug)]
pub struct AttemptSpan {
    pub run: RunId,
    pub at: AttemptKey,
    pub group: String,
    pub task: String,
    pub state: AttemptState,
    /// The kind of the error, and its beginning.
    pub error: Option<(ErrorKind, String)>,
    pub started_at: Time,
    pub finished_at: Time,
    pub node: Option<Uuid>,
    /// The most memory that a script used, in bytes.
    pub memory_bytes: Option<i64>,
    /// Processor time of a script, in microseconds.
    pub cpu_micros: Option<i64>,
}

/// A batch of scheduled messages whose outcomes are recorded.
#[derive(Clone, Debug)]
pub struct BatchSpan {
    /// The batch's id as its script knows it, which is also the id of the trace.
    pub batch: RunId,
    pub topic: String,
    /// How many of its messages were sent.
    pub sent: u64,
    /// How many failed, and the beginning of the first one's error.
    pub failed: u64,
    pub error: Option<String>,
    /// When it was claimed.
    pub started_at: Time,
    /// When its outcomes were recorded.
    pub finished_at: Time,
    /// The node that handled it.
    pub node: Uuid,
}

/// The id of a run's span, and of a batch's.
pub fn run_span_id(run: RunId) -> SpanBytes {
    digest(&Sha256::new_with_prefix(run.0.as_bytes()))
}

/// The id of an attempt's span.
pub fn attempt_span_id(run: RunId, at: AttemptKey) -> SpanBytes {
    let digested = Sha256::new_with_prefix(run.0.as_bytes())
        .chain_update(at.key.task.to_be_bytes())
        .chain_update(at.key.item_number().to_be_bytes())
        .chain_update(at.attempt.to_be_bytes());
    digest(&digested)
}

/// The first bytes of a digest; all zeros would be no id (W3C Trace Context, 3.2.2.4).
fn digest(digested: &Sha256) -> SpanBytes {
    let mut id = SpanBytes::default();
    id.copy_from_slice(&digested.clone().finalize()[..8]);
    if id == SpanBytes::default() {
        id[7] = 1;
    }
    id
}

/// An attempt in the format of the header `traceparent`, for outgoing calls.
pub(crate) fn traceparent(run: RunId, at: AttemptKey) -> String {
    format!("00-{}-{}-01", run.0.simple(), hex(&attempt_span_id(run, at)))
}

/// The counters of a node for its runs and attempts: how many have ended, and how long they took.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) ended: AtomicU64,
    /// Of these, runs that never began, by `Skip` from 1.
    pub(crate) skipped: [AtomicU64; 2],
    pub(crate) attempts_ended: AtomicU64,
    /// From a run's creation to its end.
    pub(crate) run_seconds: Histogram,
    /// From the moment when the node took an attempt to its outcome.
    pub(crate) attempt_seconds: Histogram,
    /// The processor time of a script's attempt.
    pub(crate) script_cpu_seconds: Histogram,
    /// From the moment at which a task run was ready for workers to a worker's claim.
    pub(crate) queue_wait_seconds: Histogram,
    /// Task runs that one claim brought.
    pub(crate) claimed: Histogram,
}

impl Default for Counts {
    fn default() -> Self {
        // From half a millisecond to two hours: a small script ends in the first bucket, a long report in the last.
        let seconds = [
            0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
            1_800.0, 7_200.0,
        ];
        let processor = [
            0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0,
        ];
        let sizes = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            Histogram::with_opts(options).expect("the name is a metric's, and the bounds grow")
        };
        Self {
            ended: AtomicU64::default(),
            skipped: Default::default(),
            attempts_ended: AtomicU64::default(),
            run_seconds: histogram(
                "heddle_run_seconds",
                "Duration of runs that ended on this node, from their creation to their end, in seconds.",
                &seconds,
            ),
            attempt_seconds: histogram(
                "heddle_attempt_seconds",
                "Duration of attempts on this node, from the claim to the end, in seconds.",
                &seconds,
            ),
            script_cpu_seconds: histogram(
                "heddle_script_cpu_seconds",
                "Processor time of script attempts on this node, in seconds.",
                &processor,
            ),
            queue_wait_seconds: histogram(
                "heddle_queue_wait_seconds",
                "Time that task runs on queues waited for a worker, from ready to the claim at this node, in seconds.",
                &seconds,
            ),
            claimed: histogram(
                "heddle_claimed_task_runs",
                "Number of task runs in one claim of this node, without empty claims.",
                &sizes,
            ),
        }
    }
}

impl Counts {
    /// The histograms, without the plain counters.
    pub(crate) fn histograms(&self) -> [&Histogram; 5] {
        [
            &self.run_seconds,
            &self.attempt_seconds,
            &self.script_cpu_seconds,
            &self.queue_wait_seconds,
            &self.claimed,
        ]
    }
}

/// The counters and spans of runs, for observers outside of the program.
#[derive(Default)]
pub(crate) struct Seen {
    /// Receives spans; none unless configured.
    pub(crate) tracer: OnceLock<Arc<dyn Tracer>>,
    pub(crate) counts: Counts,
}

impl Runs {
    /// The tracer, if there is one and it wants this run.
    pub(crate) fn tracer_of(&self, run: RunId) -> Option<&Arc<dyn Tracer>> {
        self.seen.tracer.get().filter(|tracer| tracer.wants(run))
    }

    /// The span of an attempt, if it is wanted.
    pub(crate) fn attempt_span(&self, context: &RunContext, row: &AttemptRow, started_at: Time) -> Option<Span> {
        self.tracer_of(row.run)?;
        let task = context.revision.plan.task(row.at.key.task)?;
        Some(Span::Attempt(AttemptSpan {
            run: row.run,
            at: row.at,
            group: context.revision.group_name.clone(),
            task: task.name.as_str().to_owned(),
            state: row.state,
            error: row.error.as_ref().map(|(kind, message, _)| (*kind, beginning(message))),
            started_at: started_at.min(row.finished_at),
            finished_at: row.finished_at,
            node: row.node,
            memory_bytes: row.memory_bytes,
            cpu_micros: row.cpu_micros,
        }))
    }

    /// The span of an attempt that a cancel interrupted, if it is wanted.
    pub(crate) fn interrupted_span(&self, context: &RunContext, stopped: &Interrupted) -> Option<Span> {
        self.tracer_of(stopped.run)?;
        let task = context.revision.plan.task(stopped.at.key.task)?;
        Some(Span::Attempt(AttemptSpan {
            run: stopped.run,
            at: stopped.at,
            group: context.revision.group_name.clone(),
            task: task.name.as_str().to_owned(),
            state: AttemptState::Cancelled,
            error: None,
            started_at: stopped.started_at,
            finished_at: stopped.finished_at,
            node: stopped.node,
            memory_bytes: None,
            cpu_micros: None,
        }))
    }

    /// Reports a batch of messages, if it is wanted.
    pub(crate) fn trace_batch(&self, topic: &str, finish: &Finish, started_at: Time) {
        let batch = RunId(finish.batch);
        let Some(tracer) = self.tracer_of(batch) else { return };
        tracer.ended(Span::Batch(BatchSpan {
            batch,
            topic: topic.to_owned(),
            sent: finish.sent.iter().map(|entry| entry.1.unsigned_abs()).sum(),
            failed: finish.failed.len() as u64,
            error: finish.failed.first().map(|failed| beginning(&failed.error)),
            started_at,
            finished_at: self.now().max(started_at),
            node: self.node.identity.id,
        }));
    }

    /// The span of a run, if it is wanted.
    pub(crate) fn run_span(
        &self,
        context: &RunContext,
        state: RunState,
        error: Option<&str>,
        now: Time,
    ) -> Option<Span> {
        let facts = &context.facts;
        self.tracer_of(facts.id)?;
        Some(Span::Run(RunSpan {
            run: facts.id,
            group: context.revision.group_name.clone(),
            trigger: facts.trigger,
            logical_time: facts.logical_time,
            state,
            error: error.map(beginning),
            created_at: facts.created_at,
            finished_at: now.max(facts.created_at),
        }))
    }
}

impl Engine {
    /// Sets the tracer; called once, when the node is put together.
    pub fn trace_with(&self, tracer: Arc<dyn Tracer>) {
        let _ = self.runs.seen.tracer.set(tracer);
    }
}

fn beginning(text: &str) -> String {
    text.chars().take(ERROR_MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use heddle_domain::run::TaskKey;

    use super::*;

    fn at(task: u16, item: Option<u32>, attempt: u32) -> AttemptKey {
        AttemptKey {
            key: TaskKey { task, item },
            attempt,
        }
    }

    #[test]
    fn spans_of_a_run_have_ids_of_their_own() {
        let run = RunId(Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_0001));
        let other = RunId(Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_0002));
        let all = [
            run_span_id(run),
            run_span_id(other),
            attempt_span_id(run, at(0, None, 1)),
            attempt_span_id(run, at(0, None, 2)),
            attempt_span_id(run, at(0, Some(0), 1)),
            attempt_span_id(run, at(1, None, 1)),
            attempt_span_id(other, at(0, None, 1)),
        ];
        let distinct: std::collections::BTreeSet<SpanBytes> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        assert_eq!(run_span_id(run), all[0], "the same on every node");
    }

    #[test]
    fn a_traceparent_is_as_w3c_has_it() {
        let run = RunId(Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_0001));
        let text = traceparent(run, at(0, None, 1));
        assert_eq!(text.len(), 55);
        assert!(text.starts_with("00-01920000000070008000000000000001-") && text.ends_with("-01"));
    }
}
