//! A consumer of scheduled messages: sends the greeting that each one asks for.
//!
//! What it "sends" goes to the log and, on topics whose name begins with `greetings` or `stored`, into the table
//! `greetings_sent` of the connection `warehouse`: a batch by one statement, in which a repeated message leaves the same
//! row.

use heddle::{Failure, Message, Value, json, sql};

/// What a message asks for.
#[heddle::data]
struct Payload {
    /// The text; without one it is a plain greeting.
    #[serde(default)]
    text: Option<String>,
}

const STORE: &str = "insert into greetings_sent (id, sender, receiver, greeting) \
     select g.id, g.sender::bigint, g.receiver::bigint, g.greeting \
       from jsonb_to_recordset($1::text::jsonb) as g (id text, sender text, receiver text, greeting text) \
     on conflict (id) do nothing";

/// Sends greetings, one for each message.
#[heddle::consumer]
fn handle(topic: &str, batch: Vec<Message>) -> Result<Vec<Result<(), Failure>>, Failure> {
    let mut outcomes = Vec::with_capacity(batch.len());
    let mut greetings = Vec::with_capacity(batch.len());
    for message in &batch {
        outcomes.push(greeting(message).map(|greeting| greetings.push(greeting)));
    }
    if !greetings.is_empty() && (topic.starts_with("greetings") || topic.starts_with("stored")) {
        // All or none of them: a database that is away fails the batch, which is tried again.
        sql::connection("warehouse").execute(STORE, (json!(greetings).to_string(),))?;
    }
    heddle::info!("{} greetings sent", greetings.len(); topic = topic, batch = batch.len());
    Ok(outcomes)
}

fn greeting(message: &Message) -> Result<Value, Failure> {
    let payload: Payload = message.read()?;
    let greeting = payload
        .text
        .unwrap_or_else(|| format!("Greetings from {}", message.sender));
    // Ids go to 2^63-1, more than a JSON number carries everywhere: as text.
    let (sender, receiver) = (message.sender.to_string(), message.receiver.to_string());
    Ok(json!({"id": message.id, "sender": sender, "receiver": receiver, "greeting": greeting}))
}

#[cfg(test)]
mod tests {
    use heddle::testing::Host;

    use super::*;

    fn message(id: &str, payload: &str) -> Message {
        Message {
            id: id.into(),
            sender: 7,
            receiver: 8,
            due: "2026-01-02".into(),
            payload: payload.into(),
        }
    }

    #[test]
    fn a_message_that_is_wrong_fails_alone() {
        let host = Host::new();
        let outcomes = handle(
            "birthdays",
            vec![message("1", r#"{"text": "Hi"}"#), message("2", "5"), message("3", "{}")],
        )
        .unwrap();
        assert!(outcomes[0].is_ok() && outcomes[2].is_ok());
        assert!(outcomes[1].as_ref().unwrap_err().is_fatal());
        assert_eq!(host.logs().last().unwrap().message, "2 greetings sent");
        assert!(host.statements().is_empty());
    }

    #[test]
    fn stored_topics_store() {
        let host = Host::new().on_execute(|_| Ok(1));
        let batch = vec![message("1", "{}"), message("2", "{}")];
        assert_eq!(handle("stored-birthdays", batch).unwrap().len(), 2);
        assert_eq!(host.statements().len(), 1, "a batch is one statement");
        let rows: Value = heddle::serde_json::from_str(host.statements()[0].params[0].as_str().unwrap()).unwrap();
        let expect = json!({"id": "1", "sender": "7", "receiver": "8", "greeting": "Greetings from 7"});
        assert_eq!(rows[0], expect);
    }

    #[test]
    fn a_database_that_is_away_is_tried_again() {
        let _host = Host::new().on_execute(|_| Err("connection refused".into()));
        let failure = handle("stored", vec![message("1", "{}")]).unwrap_err();
        assert!(!failure.is_fatal());
    }
}
