//! End to end: the real program, over HTTP, on a real Postgres. One noun per module.

mod access;
mod backfills;
mod channels;
mod cli;
mod compatibility;
mod control;
mod dag;
mod dispatch;
mod effects;
mod executors;
mod follows;
mod grants;
mod groups;
mod input;
mod logs;
mod mapped;
mod nodes;
mod notifications;
mod outages;
mod params;
mod pools;
mod queues;
mod retries;
mod sandbox;
mod schedules;
mod scripts;
mod submissions;

use serde_json::{Value, json};

/// A group of one task.
fn one(task: Value) -> Value {
    json!({"tasks": {"t": task}})
}

/// A task that fails for good, at once.
fn fails() -> Value {
    json!({"script": "flaky", "params": {"kind": "fatal", "fail_times": 1000}})
}

/// A task that sleeps.
fn sleeps(seconds: f64) -> Value {
    json!({"script": "sleep", "params": {"seconds": seconds}})
}

/// A value with fields set.
fn with(mut value: Value, fields: Value) -> Value {
    if let (Value::Object(value), Value::Object(fields)) = (&mut value, fields) {
        value.extend(fields);
    }
    value
}
