//! End to end: the real program, over HTTP, on a real Postgres. One noun per module.

mod access;
mod access_ends;
mod access_limits;
mod access_races;
mod access_secrets;
mod access_session;
mod access_table;
mod artefacts;
mod asks;
mod backfills;
mod batches;
mod bulk;
mod channels;
mod claims;
mod clear;
mod cli;
mod cli_files;
mod clocks;
mod compatibility;
mod control;
mod control_races;
mod dag;
mod described;
mod disabled;
mod dispatch;
mod effects;
mod events;
mod executors;
mod faults;
mod follows;
mod grants;
mod groups;
mod heals;
mod holds;
mod input;
mod interleaved;
mod interruptions;
mod kills;
mod logs;
mod mapped;
mod messages;
mod nodes;
mod notifications;
mod offers;
mod operators;
mod outages;
mod outbound;
mod params;
mod plans;
mod pools;
mod queries;
mod queues;
mod retention;
mod retries;
mod sandbox;
mod schedules;
mod scripts;
mod senders;
mod shares;
mod sources;
mod stock;
mod submissions;
mod traces;
mod turns;
mod used_up;
mod uses;
mod waiting;
mod warnings;
mod workers;

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
