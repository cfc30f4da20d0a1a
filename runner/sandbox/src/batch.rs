//! Batches of messages: what a consumer gets, and what it reports for each message.
//!
//! A batch and its outcomes are not converted to JSON: a drain sends a thousand messages at a time, and writing and
//! reading them as JSON, and the outcomes too, took longer than the guest. An attempt without a batch (somebody tries a
//! consumer out) reads it from the params, and writes the outcomes as its output.

use crate::bindings::consumer;
use crate::bindings::task::heddle::task::types::Failure;
use heddle_domain::state::tells_of_no_grant;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::time::Duration;

/// What a script of the world `consumer` handles in one call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    pub topic: String,
    /// In the order of sending.
    pub messages: Vec<Message>,
}

/// A message as its script gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The same in every attempt.
    pub id: String,
    pub sender: u64,
    /// The id of its receiver.
    pub receiver: u64,
    /// The day or the instant at which it is due.
    pub due: String,
    /// The value as JSON text.
    pub payload: String,
}

/// The outcome of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageOutcome {
    Handled,
    /// There was nothing to do, for this reason.
    Skipped(String),
    Failed {
        /// It must not be tried again.
        fatal: bool,
        message: String,
        /// The script asks for no earlier retry.
        retry_after: Option<Duration>,
    },
}

impl MessageOutcome {
    /// The guest's result; `text` shortens its words.
    pub(crate) fn of(said: Result<(), Failure>, text: impl Fn(&str) -> String) -> Self {
        let failed = |fatal, said: &str, retry_after: Option<Duration>| {
            // As for an attempt: without a grant, another try is useless.
            let fatal = fatal || tells_of_no_grant(said);
            Self::Failed {
                fatal,
                message: text(said),
                retry_after: retry_after.filter(|_| !fatal),
            }
        };
        match said {
            Ok(()) => Self::Handled,
            Err(Failure::Skip(reason)) => Self::Skipped(text(&reason)),
            Err(Failure::Retryable(said)) => failed(false, &said, None),
            Err(Failure::RetryAfter((millis, said))) => failed(false, &said, Some(Duration::from_millis(millis))),
            Err(Failure::Fatal(said)) => failed(true, &said, None),
        }
    }
}

impl From<Message> for consumer::Message {
    fn from(message: Message) -> Self {
        Self {
            id: message.id,
            sender: message.sender,
            receiver: message.receiver,
            due: message.due,
            payload: message.payload,
        }
    }
}

/// A batch as params.
#[derive(Deserialize)]
struct ReadBatch {
    topic: String,
    messages: Vec<ReadMessage>,
}

#[derive(Deserialize)]
struct ReadMessage {
    /// A number is accepted too: people who try a consumer out have no ids.
    id: serde_json::Value,
    sender: u64,
    receiver: u64,
    due: String,
    payload: Box<RawValue>,
}

/// An outcome in an output.
#[derive(Serialize)]
struct WrittenOutcome<'a> {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u128>,
}

/// Reads a batch from params: `{"topic": …, "messages": [{"id", "sender", "receiver", "due", "payload"}]}`.
pub(crate) fn read(params: &str) -> Result<Batch, serde_json::Error> {
    let batch: ReadBatch = serde_json::from_str(params)?;
    let messages = batch.messages.into_iter().map(|message| Message {
        id: message
            .id
            .as_str()
            .map_or_else(|| message.id.to_string(), str::to_owned),
        sender: message.sender,
        receiver: message.receiver,
        due: message.due,
        payload: message.payload.get().to_owned(),
    });
    Ok(Batch {
        topic: batch.topic,
        messages: messages.collect(),
    })
}

/// Writes outcomes as an output: for each message `{"state": "succeeded"}`, `{"state": "skipped", "message"}` or
/// `{"state": "failed", "kind": "failed" | "fatal", "message", "retry_after_ms"?}`.
pub(crate) fn write(outcomes: &[MessageOutcome]) -> Result<String, serde_json::Error> {
    let written: Vec<WrittenOutcome<'_>> = outcomes
        .iter()
        .map(|outcome| match outcome {
            MessageOutcome::Handled => WrittenOutcome {
                state: "succeeded",
                kind: None,
                message: None,
                retry_after_ms: None,
            },
            MessageOutcome::Skipped(reason) => WrittenOutcome {
                state: "skipped",
                kind: None,
                message: Some(reason),
                retry_after_ms: None,
            },
            MessageOutcome::Failed {
                fatal,
                message,
                retry_after,
            } => WrittenOutcome {
                state: "failed",
                kind: Some(if *fatal { "fatal" } else { "failed" }),
                message: Some(message),
                retry_after_ms: retry_after.map(|wait| wait.as_millis()),
            },
        })
        .collect();
    serde_json::to_string(&written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_read_and_its_outcomes_are_written() {
        let params =
            r#"{"topic":"t","messages":[{"id":1,"sender":2,"receiver":3,"due":"2013-07-01","payload":{"a": 1}}]}"#;
        let batch = read(params).unwrap();
        assert_eq!((batch.topic.as_str(), batch.messages[0].id.as_str()), ("t", "1"));
        assert_eq!(batch.messages[0].payload, r#"{"a": 1}"#);
        let said = [
            Ok(()),
            Err(Failure::Skip("no".into())),
            Err(Failure::Fatal("gone".into())),
            Err(Failure::RetryAfter((50, "busy".into()))),
        ];
        let outcomes: Vec<MessageOutcome> = said
            .into_iter()
            .map(|said| MessageOutcome::of(said, str::to_owned))
            .collect();
        assert_eq!(
            write(&outcomes).unwrap(),
            r#"[{"state":"succeeded"},{"state":"skipped","message":"no"},{"state":"failed","kind":"fatal","message":"gone"},{"state":"failed","kind":"failed","message":"busy","retry_after_ms":50}]"#
        );
    }
}
