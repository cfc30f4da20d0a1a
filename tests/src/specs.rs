//! Specs of groups and tasks that many tests use.

use serde_json::{Value, json};

use crate::receiver::Receiver;

/// A group of one task.
pub fn one(task: Value) -> Value {
    json!({"tasks": {"t": task}})
}

/// A task that fails for good, at once.
pub fn fails() -> Value {
    json!({"script": "flaky", "params": {"kind": "fatal", "fail_times": 1000}})
}

/// A task that sleeps.
pub fn sleeps(seconds: f64) -> Value {
    json!({"script": "sleep", "params": {"seconds": seconds}})
}

/// A task that is under way until a receiver answers, whatever the machine does meanwhile; its node has to be let at it
/// ([`crate::NodeOptions::at_home`]).
pub fn calls(receiver: &Receiver) -> Value {
    json!({"http": {"url": receiver.url}})
}

/// A value with fields set.
pub fn with(mut value: Value, fields: Value) -> Value {
    if let (Value::Object(value), Value::Object(fields)) = (&mut value, fields) {
        value.extend(fields);
    }
    value
}
