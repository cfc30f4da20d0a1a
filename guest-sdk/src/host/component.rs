//! The component's side: every call goes to the host.

use std::panic;
use std::sync::Once;
use std::time::Duration;

use chrono::DateTime;

use crate::bindings::{consumer, imports, task};
use crate::log::Level;
use crate::script::{Consumer, Task};
use crate::{Context, Failure, Interval, MapItem, Message, Time};

pub(crate) use super::outgoing::send as http;

impl<T: Task> task::Guest for T {
    fn run(params: String) -> Result<String, imports::types::Failure> {
        log_panics();
        T::run(&params).map_err(Into::into)
    }

    fn describe() -> String {
        T::describe().to_json().to_string()
    }
}

impl<T: Consumer> consumer::Guest for T {
    fn handle(
        topic: String,
        batch: Vec<consumer::Message>,
    ) -> Result<Vec<Result<(), imports::types::Failure>>, imports::types::Failure> {
        log_panics();
        let batch = batch
            .into_iter()
            .map(|message| Message {
                id: message.id,
                sender: message.sender,
                receiver: message.receiver,
                due: message.due,
                payload: message.payload,
            })
            .collect();
        let outcomes = T::handle(&topic, batch)?;
        Ok(outcomes
            .into_iter()
            .map(|outcome| outcome.map_err(Into::into))
            .collect())
    }

    fn describe() -> String {
        T::describe().to_json().to_string()
    }
}

impl From<Failure> for imports::types::Failure {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Retryable(message) => Self::Retryable(message),
            Failure::RetryAfter(delay, message) => {
                Self::RetryAfter((u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), message))
            }
            Failure::Fatal(message) => Self::Fatal(message),
            Failure::Skip(message) => Self::Skip(message),
        }
    }
}

/// A panic ends in a trap, which says nothing; so its message goes to the log first.
fn log_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        panic::set_hook(Box::new(|panic| {
            imports::log::write(imports::log::Level::Error, &panic.to_string(), "")
        }));
    });
}

pub(crate) fn context() -> Context {
    let info = imports::context::get();
    Context {
        run: info.run,
        group: info.group,
        task: info.task,
        attempt: info.attempt,
        trigger: info.trigger,
        logical_time: instant(&info.logical_time),
        data_interval: Interval {
            start: instant(&info.data_interval.start),
            end: instant(&info.data_interval.end),
        },
        deadline: info.deadline.as_deref().map(instant),
        item: info.item.map(|item| MapItem {
            value: serde_json::from_str(&item.item).expect("the host gives items as JSON"),
            index: item.index,
            count: item.count,
        }),
        idempotency_key: info.idempotency_key,
    }
}

fn instant(text: &str) -> Time {
    DateTime::parse_from_rfc3339(text)
        .expect("the host gives times in RFC 3339")
        .to_utc()
}

#[allow(clippy::disallowed_methods, reason = "the only place that reads the host's clock")]
pub(crate) fn now() -> Time {
    std::time::SystemTime::now().into()
}

pub(crate) fn sleep(duration: Duration) {
    std::thread::sleep(duration);
}

pub(crate) fn upstream(task: &str) -> Result<String, String> {
    imports::upstream::get(task)
}

pub(crate) fn log(level: Level, message: &str, fields: &str) {
    let level = match level {
        Level::Trace => imports::log::Level::Trace,
        Level::Debug => imports::log::Level::Debug,
        Level::Info => imports::log::Level::Info,
        Level::Warn => imports::log::Level::Warn,
        Level::Error => imports::log::Level::Error,
    };
    imports::log::write(level, message, fields);
}

pub(crate) fn progress(fraction: f64, note: &str) {
    imports::progress::report(fraction, note);
}

pub(crate) fn state_get(key: &str) -> Result<Option<(String, u64)>, String> {
    Ok(imports::state::get(key)?.map(|entry| (entry.value, entry.version)))
}

pub(crate) fn state_set(key: &str, value: &str) -> Result<(), String> {
    imports::state::set(key, value)
}

pub(crate) fn state_compare_and_set(key: &str, expected: Option<u64>, value: &str) -> Result<(), String> {
    imports::state::compare_and_set(key, expected, value)
}

pub(crate) fn state_delete(key: &str) -> Result<(), String> {
    imports::state::delete(key)
}

pub(crate) fn enqueue(group: &str, params: &str, key: Option<&str>) -> Result<(), String> {
    imports::enqueue::run(group, params, key)
}

pub(crate) fn notify(channel: &str, subject: &str, body: &str) -> Result<(), String> {
    imports::notify::send(channel, subject, body)
}

pub(crate) fn secret(name: &str) -> Result<String, String> {
    imports::secret::get(name)
}

pub(crate) fn sql_query(connection: &str, statement: &str, params: &str) -> Result<String, String> {
    imports::sql::query(connection, statement, params)
}

pub(crate) fn sql_execute(connection: &str, statement: &str, params: &str) -> Result<u64, String> {
    imports::sql::execute(connection, statement, params)
}
