//! A batch of messages as the params of a task, and the due times of its messages as text.

use std::collections::HashMap;

use heddle_domain::Time;
use heddle_store::message::{BatchMessage, MessageBatch};
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

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

/// The due times of messages, as text. The messages of a batch are due on one day, and often at one instant: each text
/// is made once.
#[derive(Default)]
pub(super) struct Dues(HashMap<Option<Time>, String>);

impl Dues {
    pub(super) fn of(&mut self, message: &BatchMessage, batch: &MessageBatch) -> String {
        let text = self.0.entry(message.due_at).or_insert_with(|| match message.due_at {
            Some(at) => at.format("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
            None => batch.day.to_string(),
        });
        text.clone()
    }
}
