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

use std::sync::{Arc, OnceLock};

use heddle_domain::id::RunId;
use heddle_domain::run::AttemptKey;
use heddle_domain::state::{AttemptState, ErrorKind, RunState, Trigger};
use heddle_domain::{Time, hex};
use heddle_store::live::{AttemptRow, Interrupted};
use heddle_store::message::Finish;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::RunContext;
use crate::node::Node;

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

/// Makes the spans of runs, attempts and batches, and gives them to the tracer.
#[derive(Default)]
pub(crate) struct Traces {
    /// Receives spans; none unless configured.
    tracer: OnceLock<Arc<dyn Tracer>>,
}

impl Traces {
    /// Sets the tracer; called once, when the node is put together.
    pub(crate) fn set_tracer(&self, tracer: Arc<dyn Tracer>) {
        let _ = self.tracer.set(tracer);
    }

    /// Whether there is a tracer at all.
    pub(crate) fn are_wanted(&self) -> bool {
        self.tracer.get().is_some()
    }

    /// Whether spans of this run are wanted.
    pub(crate) fn want(&self, run: RunId) -> bool {
        self.tracer_of(run).is_some()
    }

    /// The tracer, if there is one and it wants this run.
    fn tracer_of(&self, run: RunId) -> Option<&Arc<dyn Tracer>> {
        self.tracer.get().filter(|tracer| tracer.wants(run))
    }

    /// Reports spans, after the commit of what they are about.
    pub(crate) fn report(&self, spans: Vec<Span>) {
        if let Some(tracer) = self.tracer.get() {
            spans.into_iter().for_each(|span| tracer.ended(span));
        }
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

    /// Reports a batch of messages whose outcomes this node has recorded, if it is wanted.
    pub(crate) fn report_batch(&self, node: &Node, topic: &str, finish: &Finish, started_at: Time) {
        let batch = RunId(finish.batch);
        let Some(tracer) = self.tracer_of(batch) else { return };
        tracer.ended(Span::Batch(BatchSpan {
            batch,
            topic: topic.to_owned(),
            sent: finish.sent.iter().map(|entry| entry.1.unsigned_abs()).sum(),
            failed: finish.failed.len() as u64,
            error: finish.failed.first().map(|failed| beginning(&failed.error)),
            started_at,
            finished_at: node.now().max(started_at),
            node: node.identity.id,
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
