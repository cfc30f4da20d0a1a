//! Counts in the group's state, and may start another group or tell somebody: what is committed with the outcome.

use std::time::Duration;

use heddle::{Failure, Value, state};

/// What to do beside counting.
#[heddle::data]
pub struct Params {
    /// The key of the counter in the group's state.
    #[serde(default = "counter")]
    key: String,
    /// By how much it grows.
    #[serde(default = "one")]
    by: i64,
    /// Deletes the key and sets it anew, instead of changing its value.
    #[serde(default)]
    renew: bool,
    /// How long to wait between reading and writing, in milliseconds: for provoking lost comparisons.
    #[serde(default)]
    pause_ms: u64,
    /// Waits between reading and writing until the group's state has this key: for losing a comparison for certain.
    #[serde(default)]
    write_after: Option<String>,
    /// Waits between writing and ending until the group's state has this key: for losing it when all is committed.
    #[serde(default)]
    end_after: Option<String>,
    /// A run to ask for.
    #[serde(default)]
    enqueue: Option<Enqueue>,
    /// A notification to send.
    #[serde(default)]
    notify: Option<Notify>,
    /// Fails at the end, so that nothing of the above may be seen.
    #[serde(default)]
    fail: bool,
}

fn counter() -> String {
    "counter".to_owned()
}

fn one() -> i64 {
    1
}

/// A run to ask for.
#[heddle::data]
pub struct Enqueue {
    /// The name of the group that gets the run.
    group: String,
    /// The params that the run gets.
    #[serde(default)]
    params: heddle::serde_json::Map<String, Value>,
    /// A key that is unique per group: with it, a repeat makes no second run.
    #[serde(default)]
    key: Option<String>,
}

/// A notification to send.
#[heddle::data]
pub struct Notify {
    /// The name of the channel.
    channel: String,
    /// The subject of the notification.
    subject: String,
    /// The text for people.
    #[serde(default)]
    body: String,
}

/// Where the counter is.
#[heddle::data]
#[derive(Debug, PartialEq, Eq)]
pub struct Output {
    /// The counter after this attempt.
    count: i64,
}

/// Says that it waits, and waits until the group's state has a key.
fn until(key: &str) -> Result<(), Failure> {
    heddle::info!("waits for {key}");
    while state::get::<Value>(key)?.is_none() {
        heddle::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Counts with compare-and-set; may enqueue a run and notify a channel.
#[heddle::task]
fn run(params: Params) -> Result<Output, Failure> {
    let found = state::get::<i64>(&params.key)?;
    let count = found.as_ref().map_or(0, |entry| entry.value).saturating_add(params.by);
    if params.pause_ms > 0 {
        heddle::sleep(Duration::from_millis(params.pause_ms));
    }
    if let Some(key) = &params.write_after {
        until(key)?;
    }
    let mut expected = found.map(|entry| entry.version);
    if params.renew {
        state::delete(&params.key)?;
        expected = None;
    }
    state::compare_and_set(&params.key, expected, &count)?;
    if let Some(key) = &params.end_after {
        until(key)?;
    }
    if let Some(enqueue) = params.enqueue {
        heddle::enqueue(&enqueue.group, &enqueue.params, enqueue.key.as_deref())?;
    }
    if let Some(notify) = params.notify {
        heddle::notify(&notify.channel, &notify.subject, &notify.body)?;
    }
    if params.fail {
        return Err(Failure::retryable("failed, as asked"));
    }
    Ok(Output { count })
}

#[cfg(test)]
mod tests {
    use heddle::json;
    use heddle::script::Task;
    use heddle::testing::Host;

    use super::*;

    #[test]
    fn it_counts_on() {
        let host = Host::new();
        assert_eq!(HeddleTask::run("{}").unwrap(), r#"{"count":1}"#);
        assert_eq!(HeddleTask::run(r#"{"by": 4}"#).unwrap(), r#"{"count":5}"#);
        assert_eq!(HeddleTask::run(r#"{"renew": true}"#).unwrap(), r#"{"count":6}"#);
        assert_eq!(host.state("counter"), Some(json!(6)));
    }

    #[test]
    fn runs_and_notifications_are_asked_for() {
        let host = Host::new();
        let params = json!({
            "enqueue": {"group": "next", "params": {"a": 1}, "key": "k"},
            "notify": {"channel": "ops", "subject": "counted"},
        });
        HeddleTask::run(&params.to_string()).unwrap();
        assert_eq!(
            (host.enqueued()[0].group.as_str(), host.enqueued()[0].key.as_deref()),
            ("next", Some("k"))
        );
        assert_eq!(host.notified()[0].subject, "counted");
        assert!(!HeddleTask::run(r#"{"fail": true}"#).unwrap_err().is_fatal());
    }
}
