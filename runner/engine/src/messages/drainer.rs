//! A drainer sends one batch after another of one topic.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::Time;
use heddle_domain::state::{ErrorKind, Trigger};
use heddle_domain::topic::Topic;
use heddle_sandbox::{
    AttemptRequest, AttemptResult, Batch, Context, Interval, Limits, Message, Outcome, Script, World,
};
use heddle_store::StoreError;
use heddle_store::message::{BatchTerms, Claimed, Finish, Finished, MessageBatch};
use heddle_store::topic::TopicRow;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use uuid::Uuid;

use super::host::ConsumerHost;
use super::outcome::{Handled, MessageEnd, every, finish_of, read_effects};
use super::params::Dues;
use super::{Asking, Messages, Sending, compile, queue};
use crate::EngineError;
use crate::node::short_ways::ShortWay;
use crate::scripts::grants::grants;
use crate::scripts::redact::Redactor;

/// The maximum of payload bytes in a batch, approximately.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// How many payload bytes may be read for a batch: if a topic allows large payloads, its batches have fewer messages.
const READ_BYTES_MAX: u64 = 32 << 20;

/// The pause before the database is asked again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A drainer does not wait longer than this for its rate limit: it ends, and the drain finds the topic again.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A drainer: it runs as long as there is something to send.
pub(super) struct Drainer {
    messages: Arc<Messages>,
    row: TopicRow,
    topic: Arc<Topic>,
    /// The count of changes before the topic was read.
    seen: u64,
    retries_first: bool,
    asking: Arc<Asking>,
    sending: Arc<Sending>,
}

impl Drop for Drainer {
    fn drop(&mut self) {
        self.messages.end_drainer(self.row.id);
    }
}

/// Keeps a batch in the list of batches of this process, until it is dropped.
struct Holding<'a> {
    messages: &'a Messages,
    batch: Uuid,
}

impl<'a> Holding<'a> {
    fn of(messages: &'a Messages, batch: Uuid) -> Self {
        messages.held.lock().insert(batch);
        messages.in_hand.fetch_add(1, Ordering::AcqRel);
        Self { messages, batch }
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.messages.held.lock().remove(&self.batch);
        self.messages.in_hand.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Outcomes that are not recorded yet.
struct Pending<'a> {
    finish: Finish,
    /// When the batch was claimed.
    began: Time,
    /// The batch, if its effects may be refused: then all of its messages are recorded as failed.
    batch: Option<MessageBatch>,
    /// What the consumer has read: the reason why its effects are refused may show it.
    secrets: Arc<Redactor>,
    /// Kept until the outcomes are recorded: meanwhile no other drainer of the topic sends on this node.
    sending: Option<OwnedSemaphorePermit>,
    _holding: Holding<'a>,
}

impl Drainer {
    pub(super) fn new(
        messages: Arc<Messages>,
        row: TopicRow,
        topic: Arc<Topic>,
        asking: Arc<Asking>,
        sending: Arc<Sending>,
    ) -> Self {
        let seen = messages.changes.load(Ordering::Acquire);
        Self {
            messages,
            row,
            topic,
            seen,
            retries_first: true,
            asking,
            sending,
        }
    }

    /// Claims and sends until nothing is left, or until other drainers have all the batches that the topic may have at
    /// once.
    pub(super) async fn run(mut self) {
        let own = self.messages.clone();
        // The last batch's outcomes, until they are recorded.
        let mut last: Option<Pending<'_>> = None;
        loop {
            let consumer = self.consumer().await;
            if consumer.is_none() && last.is_none() {
                return;
            }
            // Another drainer has claimed the next batch, and waits until this one is recorded.
            let only_records = last.as_ref().is_some_and(|last| last.sending.is_some());
            let terms = (consumer.is_some() && !only_records).then(|| self.terms());
            // Noted before the claim, because its answer may get lost.
            let asked = terms.as_ref().map(|terms| Holding::of(&own, terms.id));
            let claimed = match self.record_and_claim(last.as_ref(), terms.as_ref(), only_records).await {
                Ok((finished, claimed)) => {
                    last = last.take().and_then(|last| self.recorded(last, &finished));
                    if last.is_some() {
                        continue;
                    }
                    claimed
                }
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), topic = self.row.name, "cannot record or claim messages; \
                        trying again");
                    // The outcomes of sent messages are recorded as soon as possible. Without a lease, they are not
                    // ours to record.
                    if last.is_none() || own.node.is_fenced() || !self.pauses(AGAIN_AFTER).await {
                        return;
                    }
                    continue;
                }
            };
            match claimed {
                Claimed::Batch(batch) => {
                    let holding = match asked {
                        Some(asked) if asked.batch == batch.id => asked,
                        _ => Holding::of(&own, batch.id),
                    };
                    if terms
                        .as_ref()
                        .is_some_and(|terms| batch.messages.len() as i64 == terms.messages_max)
                    {
                        // There are more messages to send.
                        own.start_drainer(&self.row, &self.topic);
                    }
                    let lease = terms.map_or(0, |terms| terms.lease);
                    match self.work_on(consumer, batch, lease, holding).await {
                        ControlFlow::Continue(pending) => last = pending,
                        ControlFlow::Break(()) => return,
                    }
                }
                Claimed::Later(millis) => {
                    drop(asked);
                    if !self.pauses(Duration::from_millis(millis).min(PAUSE_MAX)).await {
                        return;
                    }
                }
                Claimed::Nothing if only_records => {}
                Claimed::Full | Claimed::Nothing | Claimed::Refused => return,
            }
        }
    }

    /// Waits. `false`: the node stops in the meantime.
    async fn pauses(&self, wait: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(wait) => true,
            () = self.messages.node.stop.cancelled() => false,
        }
    }

    /// Records the last batch's outcomes, and claims the next batch if one is wanted, in one transaction.
    async fn record_and_claim(
        &self,
        last: Option<&Pending<'_>>,
        terms: Option<&BatchTerms>,
        only_records: bool,
    ) -> Result<(Finished, Claimed), StoreError> {
        let own = &self.messages;
        let last = last.map(|last| &last.finish);
        let plain =
            last.filter(|last| own.node.short_ways.take(ShortWay::PlainMessages) && only_records && last.is_plain());
        if let Some(last) = plain {
            let finished = own.node.store.finish_plain(self.row.id, last).await?;
            own.node.short_ways.took(ShortWay::PlainMessages);
            return Ok((finished, Claimed::Nothing));
        }
        let _asking = self.asking.enter().await;
        let _claiming = own.claims.enter().await;
        own.node.store.next_batch(self.row.id, last, terms).await
    }

    /// Counts the recorded outcomes. If the effects were refused, the batch has failed; returns that, to be recorded.
    fn recorded<'a>(&self, mut last: Pending<'a>, finished: &Finished) -> Option<Pending<'a>> {
        if let (Finished::Refused(why), Some(batch)) = (finished, last.batch.take()) {
            let ends = every(&batch, &MessageEnd::failed(why.as_str()).without(&last.secrets));
            last.finish = self.finish(&batch, last.finish.lease, ends);
            return Some(last);
        }
        self.count(&last, finished);
        None
    }

    /// Lets the consumer send a batch, and returns the outcomes to be recorded. Breaks if the batch has waited so long
    /// that this node must not send it any more, or if it cannot be put into its queue now.
    async fn work_on<'a>(
        &mut self,
        consumer: Option<Consumer>,
        batch: MessageBatch,
        lease: i64,
        holding: Holding<'a>,
    ) -> ControlFlow<(), Option<Pending<'a>>> {
        let own = self.messages.clone();
        let began = own.node.now();
        self.retries_first = batch.tried.is_empty();
        let mut sending = None;
        let secrets = Arc::<Redactor>::default();
        let sent = match consumer {
            Some(Consumer::Script(script)) => {
                if self.topic.concurrency().is_none() {
                    sending = self.sending.enter().await;
                }
                if !own.node.is_active() || own.node.lease() != lease {
                    self.give_back(&batch, lease).await;
                    return ControlFlow::Break(());
                }
                self.send(&script, &batch, lease, &secrets).await
            }
            _ => queue::enqueue(&own, &self.row, &self.topic, &batch, lease).await?,
        };
        ControlFlow::Continue(sent.map(|finish| Pending {
            batch: (!finish.effects.is_empty()).then_some(batch),
            finish,
            secrets,
            began,
            sending,
            _holding: holding,
        }))
    }

    fn count(&self, pending: &Pending<'_>, finished: &Finished) {
        let (messages, finish) = (&self.messages, &pending.finish);
        if *finished == Finished::Lost {
            tracing::warn!(batch = %finish.batch, topic = self.row.name, "another node took over a batch of messages \
                before its result was recorded; its messages may be sent twice");
            return;
        }
        let sent: i64 = finish.sent.iter().map(|entry| entry.1).sum();
        messages.sent.fetch_add(sent.unsigned_abs(), Ordering::Relaxed);
        messages.failed.fetch_add(finish.failed.len() as u64, Ordering::Relaxed);
        messages.batches.fetch_add(1, Ordering::Relaxed);
        let traces = &messages.runs.traces;
        traces.report_batch(&messages.node, &self.row.name, finish, pending.began);
    }

    fn terms(&self) -> BatchTerms {
        let own = &self.messages;
        let spec = &self.topic.spec;
        let queued = spec.queue.is_some();
        BatchTerms {
            topic: self.row.id,
            lease: own.node.lease(),
            id: own.node.new_id(own.node.now()),
            // Sizes are known only after reading. So the number is such that even the largest messages can be read.
            messages_max: i64::from(spec.batch).min((READ_BYTES_MAX / spec.max_payload.0.max(1)).max(1) as i64),
            bytes_max: if queued {
                queue::BATCH_BYTES_MAX
            } else {
                BATCH_BYTES_MAX
            },
            concurrency: self.topic.concurrency(),
            rate: spec
                .rate
                .map(|rate| (f64::from(rate.count), rate.per.micros() as f64 / 1_000.0)),
            queued,
            retries_first: self.retries_first,
        }
    }

    /// The consumer of the next batch. `None`: nothing is to be claimed now.
    async fn consumer(&mut self) -> Option<Consumer> {
        match self.find_consumer().await {
            Ok(consumer) => consumer,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), topic = self.row.name, "cannot send the messages of a topic; \
                    trying again");
                None
            }
        }
    }

    async fn find_consumer(&mut self) -> Result<Option<Consumer>, EngineError> {
        let own = self.messages.clone();
        if !own.node.is_active() {
            return Ok(None);
        }
        let changes = own.changes.load(Ordering::Acquire);
        if changes != self.seen {
            let Some(row) = own.node.store.topic_by_id(self.row.id).await? else {
                return Ok(None);
            };
            self.topic = Arc::new(compile(&row)?);
            self.row = row;
            self.seen = changes;
        }
        if !self.topic.spec.enabled {
            return Ok(None);
        }
        let Some((name, version)) = &self.topic.script else {
            return Ok(Some(Consumer::Queue));
        };
        let shown = self.topic.spec.script.as_deref().unwrap_or_default();
        let version = version.and_then(|version| i32::try_from(version).ok());
        let problem = match own.node.catalog.script(name.as_str(), version).await? {
            None => format!("there is no script `{shown}`"),
            Some(facts) => match own.runs.scripts.load(&facts).await? {
                Ok(script) if script.consumes() => return Ok(Some(Consumer::Script(script))),
                Ok(script) => match script.world() {
                    World::Source(_) => format!("the script `{shown}` does not export `handle`"),
                    world => format!(
                        "the script `{shown}` has the world {world}; a topic needs the world \
                        heddle:task/consumer"
                    ),
                },
                Err(why) => why,
            },
        };
        if own.node.store.note_problem(self.row.id, &problem).await? {
            tracing::warn!(
                topic = self.row.name,
                problem,
                "a topic sends no messages; correct the problem"
            );
        }
        Ok(None)
    }

    /// Lets the script handle a batch. `None`: its outcome is unknown, and another node tries again. `secrets` learns what
    /// the script reads, and no error in the result shows it.
    async fn send(&self, script: &Script, batch: &MessageBatch, lease: i64, secrets: &Arc<Redactor>) -> Option<Finish> {
        if batch.hopeless {
            let ends = vec![
                MessageEnd::Failed {
                    message: "too many nodes were lost while they worked on the batch of this message".into(),
                    fatal: true,
                    retry_after: None,
                };
                batch.messages.len()
            ];
            return Some(self.finish(batch, lease, ends));
        }
        let result = self.call(script, batch, secrets.clone()).await?;
        let mut effects = Vec::new();
        let ends: Vec<MessageEnd> = match result.outcome {
            Outcome::Succeeded(_) => match read_effects(result.effects) {
                Ok(read) if result.messages.len() == batch.messages.len() => {
                    effects = read;
                    result.messages.into_iter().map(MessageEnd::from).collect()
                }
                Ok(_) => every(
                    batch,
                    &MessageEnd::failed("the script did not return an outcome for each message"),
                ),
                Err(detail) => every(batch, &MessageEnd::failed(detail)),
            },
            // The script had nothing to do.
            Outcome::Skipped(_) => every(batch, &MessageEnd::Sent),
            Outcome::Failed {
                kind: ErrorKind::Lost, ..
            }
            | Outcome::Cancelled => {
                self.give_back(batch, lease).await;
                tokio::time::sleep(AGAIN_AFTER).await;
                return None;
            }
            Outcome::Failed {
                kind,
                message,
                retry_after,
                ..
            } => every(
                batch,
                &MessageEnd::Failed {
                    message,
                    fatal: kind == ErrorKind::Fatal,
                    retry_after,
                },
            ),
        };
        let ends = ends.into_iter().map(|end| end.without(secrets)).collect();
        let mut finish = self.finish(batch, lease, ends);
        finish.effects = effects;
        Some(finish)
    }

    async fn give_back(&self, batch: &MessageBatch, lease: i64) {
        if let Err(error) = self.messages.node.store.give_batch_back(batch.id, lease).await {
            tracing::warn!(error = %Chain(&error), "cannot release a batch of messages; it is taken over when the \
                lease of this node has expired");
        }
    }

    async fn call(&self, script: &Script, batch: &MessageBatch, secrets: Arc<Redactor>) -> Option<AttemptResult> {
        let own = &self.messages;
        let spec = &self.topic.spec;
        let now = own.node.now();
        let defaults = Limits::default();
        let attempt = batch.tried.iter().map(|tried| tried.attempt).max().unwrap_or(0) + 1;
        let request = AttemptRequest {
            context: Context {
                run: batch.id,
                group: self.row.name.clone(),
                task: self.row.name.clone(),
                attempt: u32::try_from(attempt).unwrap_or(1),
                trigger: Trigger::Schedule,
                logical_time: now,
                data_interval: Interval { start: now, end: now },
                deadline: now.checked_add_signed(spec.timeout.chrono()),
                item: None,
                idempotency_key: format!("{}/{}", self.row.name, batch.id),
            },
            params: String::new(),
            batch: Some(self.batch_of(batch)),
            limits: Limits {
                memory_bytes: spec.memory.map_or(defaults.memory_bytes, |memory| memory.0),
                timeout: Some(spec.timeout.std()),
                ..defaults
            },
            grants: grants(
                format_args!("topic {}", self.row.name),
                &spec.allow_hosts,
                &spec.sql,
                &spec.secrets,
            ),
            host: Arc::new(ConsumerHost::new(
                own.runs.clone(),
                self.row.name.clone(),
                self.topic.clone(),
                secrets,
            )),
        };
        let (done, ended) = oneshot::channel();
        let handle = own.runs.scripts.sandbox.start(
            script,
            request,
            Box::new(move |result| {
                let _ = done.send(result);
            }),
        );
        own.handles.lock().insert(batch.id, handle.clone());
        if own.node.is_fenced() {
            handle.cancel();
        }
        let result = ended.await.ok();
        own.handles.lock().remove(&batch.id);
        result
    }

    /// What the script gets.
    fn batch_of(&self, batch: &MessageBatch) -> Batch {
        let mut dues = Dues::default();
        let messages = batch.messages.iter().map(|message| Message {
            id: message.id.to_string(),
            // Never negative: the schema says so.
            sender: message.sender.unsigned_abs(),
            receiver: message.receiver.unsigned_abs(),
            due: dues.of(message, batch),
            payload: message.payload.clone(),
        });
        Batch {
            topic: self.row.name.clone(),
            messages: messages.collect(),
        }
    }

    fn finish(&self, batch: &MessageBatch, lease: i64, ends: Vec<MessageEnd>) -> Finish {
        finish_of(&self.messages.node, &self.topic, Handled::of(batch, lease), ends)
    }
}

enum Consumer {
    Script(Script),
    Queue,
}
