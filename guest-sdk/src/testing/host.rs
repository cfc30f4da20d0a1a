//! The functions of `crate::host`, answered by the thread's [`Host`](super::Host).

use std::time::Duration;

use serde_json::Value;

use super::{Enqueued, Line, Notified, Statement, current, http_error};
use crate::http::{Request, Response, target};
use crate::log::Level;
use crate::{Context, Error, Time};

const MAX_KEY_BYTES: usize = 256;
const MAX_VALUE_BYTES: usize = 64 << 10;

pub(crate) fn context() -> Context {
    current().borrow().context.clone()
}

pub(crate) fn now() -> Time {
    current().borrow().now
}

pub(crate) fn sleep(duration: Duration) {
    let host = current();
    let mut double = host.borrow_mut();
    double.slept += duration;
    double.now += chrono::Duration::from_std(duration).unwrap_or(chrono::Duration::zero());
}

pub(crate) fn upstream(task: &str) -> Result<String, String> {
    let host = current();
    let double = host.borrow();
    let output = double
        .upstream
        .get(task)
        .ok_or_else(|| format!("`{task}` is not a dependency of this task"))?;
    Ok(output.to_string())
}

pub(crate) fn log(level: Level, message: &str, fields: &str) {
    let fields = serde_json::from_str(fields).unwrap_or_default();
    current().borrow_mut().logs.push(Line {
        level,
        message: message.to_owned(),
        fields,
    });
}

pub(crate) fn progress(fraction: f64, note: &str) {
    current()
        .borrow_mut()
        .progress
        .push((fraction.clamp(0.0, 1.0), note.to_owned()));
}

pub(crate) fn state_get(key: &str) -> Result<Option<(String, u64)>, String> {
    check_key(key)?;
    Ok(current()
        .borrow()
        .state
        .get(key)
        .map(|(value, version)| (value.to_string(), *version)))
}

pub(crate) fn state_set(key: &str, value: &str) -> Result<(), String> {
    check_key(key)?;
    if value.len() > MAX_VALUE_BYTES {
        return Err(format!(
            "the value of `{key}` has {} bytes, at most {MAX_VALUE_BYTES} are kept",
            value.len()
        ));
    }
    let value = serde_json::from_str(value).map_err(|error| error.to_string())?;
    let host = current();
    let mut double = host.borrow_mut();
    double.writes += 1;
    let version = double.writes;
    double.state.insert(key.to_owned(), (value, version));
    Ok(())
}

pub(crate) fn state_compare_and_set(key: &str, expected: Option<u64>, value: &str) -> Result<(), String> {
    check_key(key)?;
    let found = current().borrow().state.get(key).map(|(_, version)| *version);
    if found != expected {
        return Err(format!("`{key}` was changed meanwhile"));
    }
    state_set(key, value)
}

pub(crate) fn state_delete(key: &str) -> Result<(), String> {
    check_key(key)?;
    current().borrow_mut().state.remove(key);
    Ok(())
}

fn check_key(key: &str) -> Result<(), String> {
    if (1..=MAX_KEY_BYTES).contains(&key.len()) {
        Ok(())
    } else {
        Err("a key has 1 to 256 bytes".to_owned())
    }
}

pub(crate) fn enqueue(group: &str, params: &str, key: Option<&str>) -> Result<(), String> {
    let params: Value = serde_json::from_str(params).map_err(|error| error.to_string())?;
    if !params.is_object() {
        return Err("params are a JSON object".to_owned());
    }
    let enqueued = Enqueued {
        group: group.to_owned(),
        params,
        key: key.map(str::to_owned),
    };
    current().borrow_mut().enqueued.push(enqueued);
    Ok(())
}

pub(crate) fn notify(channel: &str, subject: &str, body: &str) -> Result<(), String> {
    let notified = Notified {
        channel: channel.to_owned(),
        subject: subject.to_owned(),
        body: body.to_owned(),
    };
    current().borrow_mut().notified.push(notified);
    Ok(())
}

pub(crate) fn secret(name: &str) -> Result<String, String> {
    current()
        .borrow()
        .secrets
        .get(name)
        .cloned()
        .ok_or_else(|| format!("not granted: secret `{name}`: it is not among the task's `secrets`"))
}

pub(crate) fn sql_query(connection: &str, text: &str, params: &str) -> Result<String, String> {
    let statement = statement(connection, text, params)?;
    // Taken out for the call, so that an answer may itself use the host.
    let mut answer = current()
        .borrow_mut()
        .query
        .take()
        .ok_or_else(|| format!("no connection `{connection}` was granted"))?;
    let rows = answer(&statement);
    current().borrow_mut().query = Some(answer);
    rows.map(|rows| Value::Array(rows).to_string())
}

pub(crate) fn sql_execute(connection: &str, text: &str, params: &str) -> Result<u64, String> {
    let statement = statement(connection, text, params)?;
    let mut answer = current()
        .borrow_mut()
        .execute
        .take()
        .ok_or_else(|| format!("no connection `{connection}` was granted"))?;
    let changed = answer(&statement);
    current().borrow_mut().execute = Some(answer);
    changed
}

fn statement(connection: &str, text: &str, params: &str) -> Result<Statement, String> {
    let params = serde_json::from_str(params).map_err(|error| error.to_string())?;
    let statement = Statement {
        connection: connection.to_owned(),
        text: text.to_owned(),
        params,
    };
    current().borrow_mut().statements.push(statement.clone());
    Ok(statement)
}

pub(crate) fn http(request: &Request) -> Result<Response, Error> {
    target(&request.url)?;
    current().borrow_mut().requests.push(request.clone());
    let denied = || Error::fatal("http", "not granted: the host is not among the task's `allow_hosts`");
    let mut answer = current().borrow_mut().http.take().ok_or_else(denied)?;
    let response = answer(request);
    current().borrow_mut().http = Some(answer);
    let response = response.map_err(http_error)?;
    if response.body.len() > request.max_body_bytes {
        return Err(Error::fatal(
            "http",
            format!("the response is longer than {} bytes", request.max_body_bytes),
        ));
    }
    Ok(response)
}
