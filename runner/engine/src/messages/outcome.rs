//! The outcomes of messages: as consumers and workers report them, and as they are recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use heddle_domain::retry::{self, RetryState, Wait};
use heddle_domain::topic::Topic;
use heddle_domain::{ERROR_MESSAGE_BYTES_MAX, Time};
use heddle_sandbox::{Effect, MessageOutcome};
use heddle_store::message::{FailedMessage, Finish, MessageBatch, MessageEffect, Tried};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::node::Node;
use crate::runs::params::enqueued;
use crate::scripts::redact::Redactor;

/// The longest error that is kept for a message, in characters.
const ERROR_CHARS_MAX: usize = 1_000;

/// The outcome of a message.
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

    /// The same outcome, with an error that shows none of these secrets.
    pub(super) fn without(self, secrets: &Redactor) -> Self {
        match self {
            Self::Sent => Self::Sent,
            Self::Failed {
                message,
                fatal,
                retry_after,
            } => Self::Failed {
                message: secrets.hide_within(message, ERROR_MESSAGE_BYTES_MAX),
                fatal,
                retry_after,
            },
        }
    }
}

pub(super) fn every(batch: &MessageBatch, end: &MessageEnd) -> Vec<MessageEnd> {
    vec![end.clone(); batch.messages.len()]
}

/// A batch whose outcomes are to be recorded.
pub(super) struct Handled<'a> {
    pub(super) batch: Uuid,
    pub(super) day: chrono::NaiveDate,
    /// The lease of the node that holds the batch; 0 if a run holds it.
    pub(super) lease: i64,
    /// The ids and buckets of its messages.
    pub(super) messages: Vec<(Uuid, i16)>,
    /// Their earlier attempts: one for each message, or none.
    pub(super) tried: &'a [Tried],
}

impl<'a> Handled<'a> {
    /// A batch that a node has claimed by this lease.
    pub(super) fn of(batch: &'a MessageBatch, lease: i64) -> Self {
        let messages = batch.messages.iter();
        Self {
            batch: batch.id,
            day: batch.day,
            lease,
            messages: messages.map(|message| (message.id, message.bucket)).collect(),
            tried: &batch.tried,
        }
    }
}

/// The outcomes of the messages of a batch, in their order, as they are recorded.
pub(super) fn finish_of(node: &Node, topic: &Topic, handled: Handled<'_>, ends: Vec<MessageEnd>) -> Finish {
    let Handled {
        batch,
        day,
        lease,
        messages,
        tried,
    } = handled;
    let now = node.now();
    let mut sent: BTreeMap<i16, i64> = BTreeMap::new();
    let mut failed = Vec::new();
    for (index, ((id, bucket), end)) in messages.into_iter().zip(ends).enumerate() {
        match end {
            MessageEnd::Sent => *sent.entry(bucket).or_default() += 1,
            MessageEnd::Failed {
                message,
                fatal,
                retry_after,
            } => {
                let before = tried.get(index);
                let kept = before.map_or(&Value::Null, |tried| &tried.retry);
                let policy = |state: &mut RetryState| {
                    let policy = topic.retry.as_ref().filter(|_| !fatal)?;
                    let wait = retry_after.map(Wait::Instead);
                    retry::next(policy, state, now, topic.zone, wait, node.chance.bits())
                };
                let (retry, due_at, error) = match again(kept, policy) {
                    Ok((retry, due_at)) => (retry, due_at, message),
                    Err(error) => {
                        let why = format!("not tried again, because the state of its retries cannot be read ({error})");
                        (kept.clone(), None, format!("{why}: {message}"))
                    }
                };
                failed.push(FailedMessage {
                    id,
                    bucket,
                    attempt: before.map_or(0, |tried| tried.attempt).saturating_add(1),
                    retry,
                    due_at,
                    error: error.replace('\0', "\u{fffd}").chars().take(ERROR_CHARS_MAX).collect(),
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

/// Returns the state that the retry policy keeps of a message from now on, and when the message is tried again. `kept` is
/// the state so far, null at first.
fn again(
    kept: &Value,
    policy: impl FnOnce(&mut RetryState) -> Option<Time>,
) -> Result<(Value, Option<Time>), serde_json::Error> {
    let mut state = match kept {
        Value::Null => RetryState::default(),
        kept => RetryState::deserialize(kept)?,
    };
    let due_at = policy(&mut state);
    Ok((json!(state), due_at))
}

/// What a script wants to be written together with its outcomes.
pub(super) fn read_effects(effects: Vec<Effect>) -> Result<Vec<MessageEffect>, String> {
    effects
        .into_iter()
        .map(|effect| match effect {
            Effect::Enqueue { group, params, key } => Ok(MessageEffect::Enqueue {
                params: enqueued(&group, &params)?.into(),
                group,
                key,
            }),
            Effect::Notify { channel, subject, body } => Ok(MessageEffect::Notify { channel, subject, body }),
            Effect::StateSet { .. } | Effect::StateCompareAndSet { .. } | Effect::StateDelete { .. } => {
                Err("a consumer of messages has no state; only scripts of groups have it".into())
            }
        })
        .collect()
}

impl From<MessageOutcome> for MessageEnd {
    fn from(outcome: MessageOutcome) -> Self {
        match outcome {
            // The consumer had nothing to do.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_show_no_secrets() {
        let secrets = Redactor::default();
        secrets.learn("hunter2");
        let end = MessageEnd::failed("no entry with hunter2").without(&secrets);
        assert_eq!(end, MessageEnd::failed("no entry with ***"));
        // The sandbox has cut this one in the middle of the secret.
        let long = "x".repeat(ERROR_MESSAGE_BYTES_MAX - 4);
        let end = MessageEnd::failed(format!("{long}hunt")).without(&secrets);
        assert_eq!(end, MessageEnd::failed(format!("{long}***")));
        assert_eq!(MessageEnd::Sent.without(&secrets), MessageEnd::Sent);
    }

    #[test]
    fn retries_go_on_from_what_is_kept_of_them() {
        let count = |state: &mut RetryState| {
            state.retries += 1;
            None
        };
        for (kept, retries) in [(Value::Null, 1), (json!({"retries": 2}), 3)] {
            let (kept, _) = again(&kept, count).expect("it can be read");
            assert_eq!(kept["retries"], retries);
        }
        let unreadable = json!({"retries": "two"});
        assert!(again(&unreadable, count).is_err(), "they do not start anew");
    }
}
