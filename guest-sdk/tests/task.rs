//! The macros from a script's point of view.

use heddle::script::Task;
use heddle::testing::Host;
use heddle::{Failure, json};

/// Which rows.
#[heddle::data]
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// How many rows.
    rows: u32,
    #[serde(default = "eu")]
    region: String,
    #[serde(default)]
    note: Option<String>,
}

fn eu() -> String {
    "eu".to_owned()
}

/// Counts rows.
///
/// In a region.
#[heddle::task(defaults = json!({"rows": 3}))]
fn run(params: Params) -> Result<heddle::Value, Failure> {
    if params.rows == 0 {
        return Err(Failure::skip("no rows"));
    }
    heddle::info!("{} rows", params.rows; region = params.region, key = heddle::context().idempotency_key);
    heddle::progress(0.5, "half");
    Ok(json!({"rows": params.rows}))
}

#[test]
fn a_task_describes_itself() {
    let description = HeddleTask::describe().to_json();
    assert_eq!(description["description"], "Counts rows.\n\nIn a region.");
    assert_eq!(description["defaults"], json!({"rows": 3, "region": "eu"}));
    let schema = &description["params"];
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(schema["properties"]["rows"]["description"], "How many rows.");
    assert_eq!(schema["properties"]["rows"]["type"], "integer");
    assert_eq!(schema["required"], json!(["rows"]));
}

#[test]
fn a_task_reads_and_writes_json() {
    let host = Host::new();
    assert_eq!(
        HeddleTask::run(r#"{"rows": 2, "other": true}"#).unwrap(),
        r#"{"rows":2}"#
    );
    assert_eq!(host.logs()[0].message, "2 rows");
    assert_eq!(host.logs()[0].fields["region"], "eu");
    assert_eq!(host.progress(), [(0.5, "half".to_owned())]);
    assert_eq!(HeddleTask::run(r#"{"rows": 0}"#), Err(Failure::skip("no rows")));
    let wrong = HeddleTask::run(r#"{"rows": "two"}"#).unwrap_err();
    assert!(wrong.is_fatal() && wrong.message().starts_with("params: "), "{wrong}");
}

mod without_params {
    use heddle::Failure;
    use heddle::script::Task;

    #[heddle::task]
    fn run(_: ()) -> Result<(), Failure> {
        Ok(())
    }

    #[test]
    fn any_params_will_do() {
        assert_eq!(HeddleTask::run(r#"{"group": "param"}"#).unwrap(), "null");
        assert_eq!(HeddleTask::describe().to_json(), heddle::json!({}));
    }
}

mod consumer {
    use heddle::script::Consumer;
    use heddle::{Failure, Message};

    /// Accepts even senders.
    #[heddle::consumer]
    fn handle(topic: &str, batch: Vec<Message>) -> Vec<Result<(), Failure>> {
        assert_eq!(topic, "even");
        let outcome = |message: Message| match message.sender % 2 {
            0 => message.read::<u8>().map(drop),
            _ => Err(Failure::retryable("odd")),
        };
        batch.into_iter().map(outcome).collect()
    }

    fn message(sender: u64, payload: &str) -> Message {
        Message {
            id: sender.to_string(),
            sender,
            receiver: 1,
            due: "2026-01-02".into(),
            payload: payload.into(),
        }
    }

    #[test]
    fn each_message_has_its_outcome() {
        let batch = vec![message(2, "1"), message(3, "1"), message(4, "{}")];
        let outcomes = HeddleConsumer::handle("even", batch).unwrap();
        assert_eq!(outcomes[..2], [Ok(()), Err(Failure::retryable("odd"))]);
        assert!(outcomes[2].as_ref().unwrap_err().is_fatal());
        assert_eq!(
            HeddleConsumer::describe().to_json()["description"],
            "Accepts even senders."
        );
    }
}
