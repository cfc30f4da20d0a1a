//! The context of an attempt.

use heddle_domain::Time;
use heddle_domain::state::Trigger;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use uuid::Uuid;

/// What an attempt can read about itself: `heddle:task/context` in a component, `HEDDLE_CONTEXT` in a WASI command, and
/// as JSON in a queue's claim and an `http` task's body.
#[derive(Clone, Debug, Serialize)]
pub struct Context {
    pub run: Uuid,
    pub group: String,
    pub task: String,
    /// The attempt, from 1.
    pub attempt: u32,
    /// Why the run was created.
    pub trigger: Trigger,
    /// The run's logical time.
    #[serde(serialize_with = "instant")]
    pub logical_time: Time,
    /// The run's data interval.
    pub data_interval: Interval,
    /// When the attempt will be stopped, if ever.
    #[serde(serialize_with = "optional_instant")]
    pub deadline: Option<Time>,
    /// Set in a mapped task. In JSON, its `index` and its `count` also stand beside it.
    #[serde(flatten, serialize_with = "item_and_position")]
    pub item: Option<MapItem>,
    /// The same for every attempt of one task run (or item), and different for all others.
    pub idempotency_key: String,
}

/// From the previous instant to this one.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Interval {
    /// The interval includes this instant.
    #[serde(serialize_with = "instant")]
    pub start: Time,
    /// The interval ends before this instant.
    #[serde(serialize_with = "instant")]
    pub end: Time,
}

/// One item of a mapped task.
#[derive(Clone, Debug, Serialize)]
pub struct MapItem {
    pub item: Box<RawValue>,
    /// The first one is 0.
    pub index: u32,
    /// How many items the mapped task has.
    pub count: u32,
}

fn item_and_position<S: Serializer>(item: &Option<MapItem>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut fields = serializer.serialize_struct("ItemAndPlace", 3)?;
    fields.serialize_field("item", item)?;
    fields.serialize_field("index", &item.as_ref().map(|item| item.index))?;
    fields.serialize_field("count", &item.as_ref().map(|item| item.count))?;
    fields.end()
}

/// RFC 3339 in UTC with microseconds, as everywhere in Heddle.
pub(crate) fn instant_text(at: &Time) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true)
}

fn instant<S: Serializer>(at: &Time, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&instant_text(at))
}

fn optional_instant<S: Serializer>(at: &Option<Time>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => instant(at, serializer),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_place_of_an_item_also_stands_at_the_top() {
        let shown = |item: Option<MapItem>| -> Value {
            let context = Context {
                run: Uuid::nil(),
                group: "g".into(),
                task: "t".into(),
                attempt: 1,
                trigger: Trigger::Manual,
                logical_time: Time::UNIX_EPOCH,
                data_interval: Interval {
                    start: Time::UNIX_EPOCH,
                    end: Time::UNIX_EPOCH,
                },
                deadline: None,
                item,
                idempotency_key: "k".into(),
            };
            serde_json::from_str(&serde_json::to_string(&context).unwrap()).unwrap()
        };
        let item = RawValue::from_string(r#"{"b": 1}"#.into()).unwrap();
        let mapped = shown(Some(MapItem {
            item,
            index: 2,
            count: 4,
        }));
        assert_eq!(mapped["item"], json!({"item": {"b": 1}, "index": 2, "count": 4}));
        assert_eq!((&mapped["index"], &mapped["count"]), (&json!(2), &json!(4)));
        let plain = shown(None);
        for name in ["item", "index", "count", "deadline"] {
            assert!(plain.get(name).is_some_and(Value::is_null), "{name}: {plain:#}");
        }
    }
}
