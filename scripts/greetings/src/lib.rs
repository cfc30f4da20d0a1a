//! A consumer of scheduled messages: sends the greeting that each one asks for.
//!
//! What it "sends" goes to the log and, on topics whose name begins with `stored`, into the table `greetings_sent` of
//! the connection `warehouse`, where a repeated message leaves the same row.

use heddle::{Failure, Message, sql};

/// What a message asks for.
#[heddle::data]
struct Payload {
    /// The text; without one it is a plain greeting.
    #[serde(default)]
    text: Option<String>,
}

const STORE: &str = "insert into greetings_sent (id, sender, receiver, greeting) \
     values ($1::text, $2::text::bigint, $3::text::bigint, $4::text) on conflict (id) do nothing";

/// Sends greetings, one for each message.
#[heddle::consumer]
fn handle(topic: &str, batch: Vec<Message>) -> Vec<Result<(), Failure>> {
    let outcomes: Vec<_> = batch.iter().map(|message| send(topic, message)).collect();
    let sent = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    heddle::info!("{sent} greetings sent"; topic = topic, batch = batch.len());
    outcomes
}

fn send(topic: &str, message: &Message) -> Result<(), Failure> {
    let payload: Payload = message.read()?;
    let greeting = payload
        .text
        .unwrap_or_else(|| format!("Greetings from {}", message.sender));
    if topic.starts_with("stored") {
        // Ids go to 2^63-1, more than a JSON number carries everywhere: as text.
        let params = (
            &message.id,
            message.sender.to_string(),
            message.receiver.to_string(),
            &greeting,
        );
        sql::connection("warehouse").execute(STORE, params)?;
    }
    heddle::debug!("{greeting}"; id = message.id, receiver = message.receiver);
    Ok(())
}

#[cfg(test)]
mod tests {
    use heddle::json;
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
        );
        assert!(outcomes[0].is_ok() && outcomes[2].is_ok());
        assert!(outcomes[1].as_ref().unwrap_err().is_fatal());
        assert_eq!(host.logs().last().unwrap().message, "2 greetings sent");
        assert!(host.statements().is_empty());
    }

    #[test]
    fn stored_topics_store() {
        let host = Host::new().on_execute(|_| Ok(1));
        assert_eq!(handle("stored-birthdays", vec![message("1", "{}")]), [Ok(())]);
        let params = &host.statements()[0].params;
        assert_eq!(
            params[..],
            [json!("1"), json!("7"), json!("8"), json!("Greetings from 7")]
        );
    }

    #[test]
    fn a_database_that_is_away_is_tried_again() {
        let _host = Host::new().on_execute(|_| Err("connection refused".into()));
        let outcomes = handle("stored", vec![message("1", "{}")]);
        assert!(!outcomes[0].as_ref().unwrap_err().is_fatal());
    }
}
