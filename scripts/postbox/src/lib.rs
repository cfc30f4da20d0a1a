//! A consumer of scheduled messages for trying things out: what it does with a message, the message says.
//!
//! On topics whose name begins with `kept` every message that it is handed goes into the table `postbox` of the
//! connection `postbox`, each time; otherwise it does nothing, as quickly as can be. A payload may wish for something:
//! `{"do": "fail"}` and so on, and with `"until": n` only before the nth attempt.

use heddle::{Failure, Message, json, sql};

/// What a message wishes for.
#[heddle::data]
struct Wish {
    /// `fail`, `fatal`, `skip`; of the whole batch `trap`, `short` (an outcome too few), `refuse`; `wait`; `enqueue` (a
    /// run of the group `posted`, under the key `key`, or the message's id).
    #[serde(default, rename = "do")]
    what: Option<String>,
    /// From this attempt on, nothing special.
    #[serde(default)]
    until: Option<u32>,
    /// How long to `wait`.
    #[serde(default)]
    ms: Option<u64>,
    /// The key of what it enqueues.
    #[serde(default)]
    key: Option<String>,
    /// The name of a secret that is in the words of its failure.
    #[serde(default)]
    secret: Option<String>,
}

const KEEP: &str = "insert into postbox (id, sender, receiver, due, attempt, batch) \
     select m.id, m.sender, m.receiver, m.due, $2::text::integer, $3::text \
       from jsonb_to_recordset($1::text::jsonb) as m (id text, sender bigint, receiver bigint, due text)";

/// Does what the messages say.
#[heddle::consumer]
fn handle(topic: &str, batch: Vec<Message>) -> Result<Vec<Result<(), Failure>>, Failure> {
    if topic.starts_with("kept") {
        keep(&batch)?;
    }
    let attempt = heddle::context().attempt;
    let mut outcomes = Vec::with_capacity(batch.len());
    let mut short = false;
    for message in &batch {
        if !message.payload.contains("\"do\"") {
            outcomes.push(Ok(()));
            continue;
        }
        let wish: Wish = message.read()?;
        if wish.until.is_some_and(|until| attempt >= until) {
            outcomes.push(Ok(()));
            continue;
        }
        let why = match &wish.secret {
            Some(name) => format!("as it wished, with {}", heddle::secret(name)?),
            None => "as it wished".to_owned(),
        };
        outcomes.push(match wish.what.as_deref() {
            Some("fail") => Err(Failure::retryable(why)),
            Some("fatal") => Err(Failure::fatal(why)),
            Some("skip") => Err(Failure::skip(why)),
            Some("trap") => panic!("{why}"),
            Some("refuse") => return Err(Failure::retryable(why)),
            Some("short") => {
                short = true;
                Ok(())
            }
            Some("enqueue") => {
                let key = wish.key.as_deref().unwrap_or(&message.id);
                heddle::enqueue("posted", &json!({}), Some(key))?;
                Ok(())
            }
            Some("wait") => {
                heddle::sleep(std::time::Duration::from_millis(wish.ms.unwrap_or_default()));
                Ok(())
            }
            _ => Ok(()),
        });
    }
    if short {
        outcomes.pop();
    }
    Ok(outcomes)
}

fn keep(batch: &[Message]) -> Result<(), Failure> {
    let rows: Vec<_> = batch
        .iter()
        .map(|m| json!({"id": m.id, "sender": m.sender, "receiver": m.receiver, "due": m.due}))
        .collect();
    let context = heddle::context();
    let params = (
        json!(rows).to_string(),
        context.attempt.to_string(),
        context.run.clone(),
    );
    sql::connection("postbox").execute(KEEP, params)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use heddle::testing::Host;

    use super::*;

    fn message(payload: &str) -> Message {
        Message {
            id: "1".into(),
            sender: 7,
            receiver: 8,
            due: "2026-01-02".into(),
            payload: payload.into(),
        }
    }

    #[test]
    fn messages_get_what_they_wish() {
        let _host = Host::new();
        let batch = vec![
            message("{}"),
            message(r#"{"do": "fatal"}"#),
            message(r#"{"do": "fail", "until": 1}"#),
        ];
        let outcomes = handle("any", batch).unwrap();
        assert!(outcomes[0].is_ok() && outcomes[2].is_ok());
        assert!(outcomes[1].as_ref().unwrap_err().is_fatal());
        assert_eq!(
            handle("any", vec![message("1"), message(r#"{"do": "short"}"#)])
                .unwrap()
                .len(),
            1
        );
    }

    #[test]
    fn kept_topics_are_kept() {
        let host = Host::new().on_execute(|_| Ok(1));
        handle("kept", vec![message("{}")]).unwrap();
        assert_eq!(host.statements().len(), 1);
    }
}
