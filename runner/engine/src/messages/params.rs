//! A batch of messages as the params of a task, and the due times of its messages as text.

use std::collections::HashMap;

use heddle_domain::Time;
use heddle_store::message::{BatchMessage, MessageBatch};
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::runs::create::batch_run::BatchParams;

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
    let topic = topic.into();
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The worker's params and the checks of its output read what is written here.
    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let id = Uuid::from_u128(1);
        let batch = MessageBatch {
            id: Uuid::from_u128(2),
            day: "2026-11-20".parse().unwrap(),
            messages: vec![BatchMessage {
                id,
                bucket: 0,
                sender: 3,
                receiver: 4,
                due_at: None,
                payload: r#"{"a": [1]}"#.into(),
            }],
            tried: Vec::new(),
            hopeless: false,
        };
        let text = params_of("é", &batch).unwrap();
        let read: BatchParams<'_, Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(read.topic, "é");
        let message = json!({"id": id, "sender": 3, "receiver": 4, "due": "2026-11-20", "payload": {"a": [1]}});
        assert_eq!(read.messages, [message]);
    }
}
