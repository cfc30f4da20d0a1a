//! A lane: one batch after another of one topic.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use heddle_domain::Chain;
use heddle_domain::Time;
use heddle_domain::retry::{self, RetryState};
use heddle_domain::state::{ErrorKind, Trigger};
use heddle_domain::topic::Topic;
use heddle_sandbox::{
    AttemptRequest, AttemptResult, Batch, Context, Effect, Grants, HostPattern, Interval, Limits, Message,
    MessageOutcome, Outcome, Script, World,
};
use heddle_store::message::{
    BatchWish, Claimed, FailedMessage, Finish, Finished, HeldMessage, MessageBatch, MessageEffect, Tried,
};
use heddle_store::topic::TopicRow;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use uuid::Uuid;

use super::host::ConsumerHost;
use super::{Messages, Sending, Turns, compile, queue};
use crate::EngineError;
use crate::node::Node;
use crate::runs::ending::Ending;

/// About how many bytes of payload a batch has at most.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// How many bytes of payload may be read for a batch: with large payloads allowed, batches are of fewer messages.
const READ_BYTES_MAX: u64 = 32 << 20;

/// How long to wait before the database is asked again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A lane does not wait longer than this for its rate: the look-out finds the topic again.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The longest error that is kept of a message, in characters.
const ERROR_CHARS_MAX: usize = 1_000;

/// A lane, for as long as there is something to be sent.
pub(super) struct Lane {
    messages: Arc<Messages>,
    row: TopicRow,
    topic: Arc<Topic>,
    /// The changes that the topic was read after.
    seen: u64,
    retries_first: bool,
    turn: Arc<Turns>,
    sending: Arc<Sending>,
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.messages.end_lane(self.row.id);
    }
}

/// Keeps a batch among those that this process works on.
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
    /// If its effects may be refused: the batch, to say of it that it failed.
    batch: Option<MessageBatch>,
    /// Until they are, no other lane of the topic sends here.
    sending: Option<OwnedSemaphorePermit>,
    _holding: Holding<'a>,
}

/// What a message came to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MessageEnd {
    Sent,
    Failed {
        message: String,
        fatal: bool,
        retry_after: Option<Duration>,
    },
}

impl MessageEnd {
    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::Failed {
            message: message.into(),
            fatal: false,
            retry_after: None,
        }
    }
}

impl Lane {
    pub(super) fn new(
        messages: Arc<Messages>,
        row: TopicRow,
        topic: Arc<Topic>,
        turn: Arc<Turns>,
        sending: Arc<Sending>,
    ) -> Self {
        let seen = messages.changes.load(Ordering::Acquire);
        Self {
            messages,
            row,
            topic,
            seen,
            retries_first: true,
            turn,
            sending,
        }
    }

    /// Claims and sends until nothing is left, or others have all that may be in hand. A long function, since each round
    /// goes on with what the last one left (outcomes to be recorded, who may claim, who may send): parts of it would pass all
    /// of that to and fro.
    pub(super) async fn run(mut self) {
        let own = self.messages.clone();
        // The last batch's outcomes, until they are recorded.
        let mut finish: Option<Pending<'_>> = None;
        loop {
            let consumer = match self.is_willing().await {
                Ok(consumer) => consumer,
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), topic = self.row.name, "cannot send messages");
                    None
                }
            };
            if consumer.is_none() && finish.is_none() {
                return;
            }
            // Another lane waits until this is recorded, and has claimed what comes next.
            let only_records = finish.as_ref().is_some_and(|pending| pending.sending.is_some());
            let wish = (consumer.is_some() && !only_records).then(|| self.wish());
            // Before the question: its answer may get lost.
            let asking = wish.as_ref().map(|wish| Holding::of(&own, wish.id));
            let last = finish.as_ref().map(|pending| &pending.finish);
            let plain = last.filter(|last| own.node.short_ways && only_records && last.is_plain());
            let answer = if let Some(last) = plain {
                let finished = own.node.store.finish_plain(self.row.id, last).await;
                finished.map(|finished| (finished, Claimed::Nothing))
            } else {
                let _turn = self.turn.enter().await;
                let _place = own.claims.enter().await;
                own.node.store.next_batch(self.row.id, last, wish.as_ref()).await
            };
            let claimed = match answer {
                Ok((finished, claimed)) => {
                    if let Some(mut pending) = finish.take() {
                        if let (Finished::Refused(why), Some(batch)) = (&finished, pending.batch.take()) {
                            let ends = every(&batch, &MessageEnd::failed(why.as_str()));
                            pending.finish = self.finish(&batch, pending.finish.lease, ends);
                            finish = Some(pending);
                            continue;
                        }
                        self.count(&pending, &finished);
                    }
                    claimed
                }
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), topic = self.row.name, "cannot record or claim messages");
                    // What was sent is recorded as soon as may be; without a lease it is not ours to record.
                    if finish.is_none() || own.node.is_fenced() {
                        return;
                    }
                    tokio::select! {
                        () = tokio::time::sleep(AGAIN_AFTER) => continue,
                        () = own.node.stop.cancelled() => return,
                    }
                }
            };
            match claimed {
                Claimed::Batch(batch) => {
                    if wish
                        .as_ref()
                        .is_some_and(|wish| batch.messages.len() as i64 == wish.messages_max)
                    {
                        // There is more where these came from.
                        own.start_lane(&self.row, &self.topic);
                    }
                    let holding = match asking {
                        Some(asking) if asking.batch == batch.id => asking,
                        _ => Holding::of(&own, batch.id),
                    };
                    let began = own.node.now();
                    self.retries_first = batch.tried.is_empty();
                    let lease = wish.map_or(0, |wish| wish.lease);
                    let mut sending = None;
                    let sent = match consumer {
                        Some(Consumer::Script(script)) => {
                            if self.topic.concurrency().is_none() {
                                sending = self.sending.enter().await;
                            }
                            if !own.node.is_active() || own.node.lease() != lease {
                                // It waited for so long that it is not to be sent, or not by this node.
                                self.give_back(&batch, lease).await;
                                return;
                            }
                            self.send(&script, &batch, lease).await
                        }
                        _ => queue::hand_over(&own, &self.row, &self.topic, &batch, lease).await,
                    };
                    finish = sent.map(|finish| Pending {
                        batch: (!finish.effects.is_empty()).then_some(batch),
                        finish,
                        began,
                        sending,
                        _holding: holding,
                    });
                }
                Claimed::Later(millis) => {
                    drop(asking);
                    tokio::select! {
                        () = tokio::time::sleep(Duration::from_millis(millis).min(PAUSE_MAX)) => {}
                        () = own.node.stop.cancelled() => return,
                    }
                }
                Claimed::Nothing if only_records => {}
                Claimed::Full | Claimed::Nothing | Claimed::Refused => return,
            }
        }
    }

    fn count(&self, pending: &Pending<'_>, finished: &Finished) {
        let (messages, finish) = (&self.messages, &pending.finish);
        if *finished == Finished::Lost {
            tracing::warn!(batch = %finish.batch, topic = self.row.name, "a batch was taken over before it was recorded");
            return;
        }
        let sent: i64 = finish.sent.iter().map(|entry| entry.1).sum();
        messages.sent.fetch_add(sent.unsigned_abs(), Ordering::Relaxed);
        messages.failed.fetch_add(finish.failed.len() as u64, Ordering::Relaxed);
        messages.batches.fetch_add(1, Ordering::Relaxed);
        self.messages.runs.trace_batch(&self.row.name, finish, pending.began);
    }

    fn wish(&self) -> BatchWish {
        let own = &self.messages;
        let spec = &self.topic.spec;
        let queued = spec.queue.is_some();
        BatchWish {
            topic: self.row.id,
            lease: own.node.lease(),
            id: own.node.new_id(own.node.now()),
            // They are read before they are weighed.
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

    /// What takes the next batch; `None`: nothing is to be claimed now.
    async fn is_willing(&mut self) -> Result<Option<Consumer>, EngineError> {
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
            Some(facts) => match own.runs.load_script(&facts).await? {
                Ok(script) if script.consumes() => return Ok(Some(Consumer::Script(script))),
                Ok(script) => match script.world() {
                    World::Source(_) => format!("the script `{shown}` exports no `handle`"),
                    world => format!("the script `{shown}` is made for {world}"),
                },
                Err(Ending::Failed { message, .. }) => message,
                Err(_) => format!("the script `{shown}` cannot be loaded"),
            },
        };
        if own.node.store.note_problem(self.row.id, &problem).await? {
            tracing::warn!(topic = self.row.name, problem, "nothing is sent");
        }
        Ok(None)
    }

    /// Has the script work on a batch; `None`: nobody knows what came of it, it is to be tried again elsewhere.
    async fn send(&self, script: &Script, batch: &MessageBatch, lease: i64) -> Option<Finish> {
        if batch.hopeless {
            let ends = vec![
                MessageEnd::Failed {
                    message: "the nodes that worked on its batch were lost, again and again".into(),
                    fatal: true,
                    retry_after: None,
                };
                batch.messages.len()
            ];
            return Some(self.finish(batch, lease, ends));
        }
        let result = self.call(script, batch).await?;
        let mut effects = Vec::new();
        let ends = match result.outcome {
            Outcome::Succeeded(_) => match read_effects(result.effects) {
                Ok(read) if result.messages.len() == batch.messages.len() => {
                    effects = read;
                    result.messages.into_iter().map(MessageEnd::from).collect()
                }
                Ok(_) => every(batch, &MessageEnd::failed("it did not say what became of its messages")),
                Err(detail) => every(batch, &MessageEnd::failed(detail)),
            },
            // There was nothing to do.
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
        let mut finish = self.finish(batch, lease, ends);
        finish.effects = effects;
        Some(finish)
    }

    async fn give_back(&self, batch: &MessageBatch, lease: i64) {
        if let Err(error) = self.messages.node.store.give_batch_back(batch.id, lease).await {
            tracing::warn!(error = %Chain(&error), "a batch could not be given back; it is taken over when the lease ends");
        }
    }

    async fn call(&self, script: &Script, batch: &MessageBatch) -> Option<AttemptResult> {
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
            grants: Grants {
                allow_hosts: spec
                    .allow_hosts
                    .iter()
                    .filter_map(|host| host.parse::<HostPattern>().ok())
                    .collect(),
                sql: spec.sql.iter().map(|name| name.as_str().to_owned()).collect(),
                secrets: spec.secrets.iter().map(|name| name.as_str().to_owned()).collect(),
            },
            host: Arc::new(ConsumerHost::new(
                own.runs.clone(),
                self.row.name.clone(),
                self.topic.clone(),
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
        let messages = batch
            .messages
            .iter()
            .map(|message| (message.id, message.bucket))
            .collect();
        finish_of(
            &self.messages.node,
            &self.topic,
            batch.id,
            batch.day,
            lease,
            (messages, &batch.tried),
            ends,
        )
    }
}

/// What takes batches.
enum Consumer {
    Script(Script),
    Queue,
}

fn every(batch: &MessageBatch, end: &MessageEnd) -> Vec<MessageEnd> {
    vec![end.clone(); batch.messages.len()]
}

/// What is to be recorded of a batch: its messages, what is known of them, and what each came to.
pub(super) fn finish_of(
    node: &Node,
    topic: &Topic,
    batch: Uuid,
    day: chrono::NaiveDate,
    lease: i64,
    (messages, tried): (Vec<(Uuid, i16)>, &[Tried]),
    ends: Vec<MessageEnd>,
) -> Finish {
    let now = node.now();
    let mut sent: BTreeMap<i16, i64> = BTreeMap::new();
    let mut failed = Vec::new();
    for (place, ((id, bucket), end)) in messages.into_iter().zip(ends).enumerate() {
        match end {
            MessageEnd::Sent => *sent.entry(bucket).or_default() += 1,
            MessageEnd::Failed {
                message,
                fatal,
                retry_after,
            } => {
                let before = tried.get(place);
                let mut state: RetryState = before
                    .and_then(|tried| serde_json::from_value(tried.retry.clone()).ok())
                    .unwrap_or_default();
                let due_at = topic.retry.as_ref().filter(|_| !fatal).and_then(|policy| {
                    retry::next(policy, &mut state, now, topic.zone, retry_after, node.chance.bits())
                });
                failed.push(FailedMessage {
                    id,
                    bucket,
                    attempt: before.map_or(0, |tried| tried.attempt).saturating_add(1),
                    retry: serde_json::to_value(state).unwrap_or_default(),
                    due_at,
                    error: message
                        .replace('\0', "\u{fffd}")
                        .chars()
                        .take(ERROR_CHARS_MAX)
                        .collect(),
                });
            }
        }
    }
    Finish {
        batch,
        day,
        lease,
        sent: sent.into_iter().collect(),
        failed,
        effects: Vec::new(),
    }
}

/// What a script wants written together with its outcomes.
fn read_effects(effects: Vec<Effect>) -> Result<Vec<MessageEffect>, String> {
    effects
        .into_iter()
        .map(|effect| match effect {
            Effect::Enqueue { group, params, key } => Ok(MessageEffect::Enqueue {
                params: serde_json::from_str(&params).map_err(|error| format!("enqueue of `{group}`: {error}"))?,
                group,
                key,
            }),
            Effect::Notify { channel, subject, body } => Ok(MessageEffect::Notify { channel, subject, body }),
            Effect::StateSet { .. } | Effect::StateCompareAndSet { .. } | Effect::StateDelete { .. } => {
                Err("a consumer of messages has no state: that belongs to groups".into())
            }
        })
        .collect()
}

impl From<MessageOutcome> for MessageEnd {
    fn from(outcome: MessageOutcome) -> Self {
        match outcome {
            // There was nothing to do.
            MessageOutcome::Handled | MessageOutcome::Skipped(_) => Self::Sent,
            MessageOutcome::Failed {
                fatal,
                message,
                retry_after,
            } => Self::Failed {
                message,
                fatal,
                retry_after,
            },
        }
    }
}

#[derive(Serialize)]
struct BatchParams<'a> {
    topic: &'a str,
    messages: Vec<MessageParams<'a>>,
}

#[derive(Serialize)]
struct MessageParams<'a> {
    id: Uuid,
    sender: i64,
    receiver: i64,
    due: String,
    payload: &'a RawValue,
}

/// `{topic, messages: [{id, sender, receiver, due, payload}]}`.
pub(super) fn params_of(topic: &str, batch: &MessageBatch) -> Result<String, serde_json::Error> {
    let mut dues = Dues::default();
    let mut messages = Vec::with_capacity(batch.messages.len());
    for message in &batch.messages {
        messages.push(MessageParams {
            id: message.id,
            sender: message.sender,
            receiver: message.receiver,
            due: dues.of(message, batch),
            payload: serde_json::from_str(&message.payload)?,
        });
    }
    serde_json::to_string(&BatchParams { topic, messages })
}

/// When messages are due, as text: those of a batch are due on one day, and often at one instant, so the text is made
/// once for each.
#[derive(Default)]
struct Dues(HashMap<Option<heddle_domain::Time>, String>);

impl Dues {
    fn of(&mut self, message: &HeldMessage, batch: &MessageBatch) -> String {
        let text = self.0.entry(message.due_at).or_insert_with(|| match message.due_at {
            Some(at) => at.format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
            None => batch.day.to_string(),
        });
        text.clone()
    }
}
