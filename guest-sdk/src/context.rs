//! Who is running, and for what; and the time.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::host;

/// An instant in UTC.
pub type Time = DateTime<Utc>;

/// Who is running, and for what.
#[derive(Clone, Debug, PartialEq)]
pub struct Context {
    /// The run's id, a UUID.
    pub run: String,
    /// The name of the group that the run belongs to.
    pub group: String,
    /// The name of the task within its group.
    pub task: String,
    /// The number of this attempt of the task run, counted from 1.
    pub attempt: u32,
    /// Why the run was made: `manual`, `schedule`, `backfill`, `upstream`, `task`, `rerun`.
    pub trigger: String,
    /// The instant that the run is for.
    pub logical_time: Time,
    /// From the previous instant to this one.
    pub data_interval: Interval,
    /// When this attempt will be stopped; none if it has no timeout.
    pub deadline: Option<Time>,
    /// Set in a mapped task.
    pub item: Option<MapItem>,
    /// The same for every attempt of this task run, and different for all others: pass it to all outside calls.
    pub idempotency_key: String,
}

/// A span of time; `start` belongs to it, `end` does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// The first instant that belongs to it.
    pub start: Time,
    /// Where the next one begins.
    pub end: Time,
}

/// One item of a mapped task.
#[derive(Clone, Debug, PartialEq)]
pub struct MapItem {
    /// The value of the item: an element of `for_each`, or the number of the shard.
    pub value: Value,
    /// The position of the item among those of the task, counted from 0.
    pub index: u32,
    /// How many items the mapped task has.
    pub count: u32,
}

impl MapItem {
    /// The item's value as a type.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(&self.value)
    }
}

impl Context {
    /// The context as JSON, in the shape in which WASI commands find it in `HEDDLE_CONTEXT`.
    pub fn to_json(&self) -> Value {
        let instant = |time: &Time| time.to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
        serde_json::json!({
            "run": self.run,
            "group": self.group,
            "task": self.task,
            "attempt": self.attempt,
            "trigger": self.trigger,
            "logical_time": instant(&self.logical_time),
            "data_interval": {
                "start": instant(&self.data_interval.start),
                "end": instant(&self.data_interval.end),
            },
            "deadline": self.deadline.as_ref().map(instant),
            "item": self.item.as_ref().map(|item| serde_json::json!({
                "item": item.value,
                "index": item.index,
                "count": item.count,
            })),
            "index": self.item.as_ref().map(|item| item.index),
            "count": self.item.as_ref().map(|item| item.count),
            "idempotency_key": self.idempotency_key,
        })
    }
}

/// Who is running, and for what.
pub fn context() -> Context {
    host::context()
}

/// The time by the host's clock. For what a run is *about*, use [`Context::logical_time`]: it stays the same when the
/// run is late, repeated or backfilled.
pub fn now() -> Time {
    host::now()
}

/// Waits. The attempt's timeout continues; Heddle uses the processor for others meanwhile.
pub fn sleep(duration: Duration) {
    host::sleep(duration);
}
