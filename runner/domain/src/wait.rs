//! What a run waits for before it begins: the values, and their JSON in the database and in the API.

use std::borrow::Cow;

use chrono::SecondsFormat;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use crate::Time;
use crate::spec::Need;

/// One thing that a waiting run waits for.
///
/// Nodes of several versions share a database during an upgrade, so a newer node may write a kind that this version does not
/// know. That is no error: the value only tells people why a run waits, and no decision depends on it. An error would hide
/// the run, and each list that contains it, until the upgrade is complete. So this version keeps such a value as it is and
/// passes it on ([`Self::Unknown`]).
#[derive(Clone, Debug, PartialEq)]
pub enum RunWait {
    /// The gate of its group: `overlap` or `max_active_runs` holds it back until it is its turn. A run that would pass says the
    /// same until its gate has been checked, which is another transaction: one of its own for each waiting run, only to say
    /// that nobody has looked, would cost more than the moment is worth.
    Gate,
    /// An instant of an upstream group that has not succeeded.
    Upstream {
        /// The name of the upstream group.
        group: String,
        /// The instant that must succeed.
        instant: Time,
        /// Why the run needs this instant.
        need: Need,
    },
    /// A kind that this version does not know, as the database or the server gave it.
    Unknown(Value),
}

/// The fields of [`RunWait::Upstream`], as they are read.
#[derive(Deserialize)]
struct Upstream {
    group: String,
    instant: Time,
    need: Need,
}

impl RunWait {
    /// The JSON of the column `waiting_for`: the gate is an object, and everything else is an array. The array is empty as long
    /// as nobody has looked at the upstream groups.
    pub fn stored(waits: &[Self]) -> Value {
        match waits {
            [gate @ Self::Gate] => gate.to_json(),
            _ => Value::Array(waits.iter().map(Self::to_json).collect()),
        }
    }

    /// The meaning of the column `waiting_for`. `None`: the run does not wait.
    pub fn from_stored(stored: Option<Value>) -> Vec<Self> {
        match stored {
            Some(Value::Array(waits)) => waits.into_iter().map(Self::from).collect(),
            Some(Value::Null) | None => Vec::new(),
            Some(one) => vec![one.into()],
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Gate => json!({"turn": true}),
            Self::Upstream { group, instant, need } => {
                let instant = instant.to_rfc3339_opts(SecondsFormat::Micros, true);
                json!({"group": group, "instant": instant, "need": need.as_str()})
            }
            Self::Unknown(value) => value.clone(),
        }
    }
}

impl From<Value> for RunWait {
    fn from(value: Value) -> Self {
        if value["turn"] == true {
            return Self::Gate;
        }
        // An array could be read as the fields in their order.
        let upstream = value.is_object().then(|| Upstream::deserialize(&value));
        match upstream {
            Some(Ok(Upstream { group, instant, need })) => Self::Upstream { group, instant, need },
            Some(Err(_)) | None => Self::Unknown(value),
        }
    }
}

impl Serialize for RunWait {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RunWait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

impl JsonSchema for RunWait {
    fn schema_name() -> Cow<'static, str> {
        "RunWait".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let need = generator.subschema_for::<Need>();
        json_schema!({
            "description": "One thing that a waiting run waits for. Its fields say which kind it is.",
            "anyOf": [
                {
                    "type": "object",
                    "description": "The run waits for its turn in its group (`overlap`, `max_active_runs`), or for a moment, until \
                        a node has found that it is its turn.",
                    "properties": {"turn": {"const": true, "description": "Always `true`."}},
                    "required": ["turn"],
                },
                {
                    "type": "object",
                    "description": "The run waits until an instant of an upstream group has succeeded.",
                    "properties": {
                        "group": {"type": "string", "description": "The name of the upstream group."},
                        "instant": {
                            "type": "string",
                            "format": "date-time",
                            "description": "The instant, in UTC with `Z` and microseconds.",
                        },
                        "need": need,
                    },
                    "required": ["group", "instant", "need"],
                },
                {"type": "object", "description": "A later version may add kinds."},
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(at: &str, need: Need) -> RunWait {
        RunWait::Upstream {
            group: "import".into(),
            instant: at.parse().unwrap(),
            need,
        }
    }

    /// The JSON of each kind is for good: other versions read it in the database, and programs read it in answers.
    #[test]
    fn each_kind_has_its_json() {
        let kinds = [
            (RunWait::Gate, r#"{"turn":true}"#),
            (
                upstream("2014-03-01T00:00:00Z", Need::Latest),
                r#"{"group":"import","instant":"2014-03-01T00:00:00.000000Z","need":"latest"}"#,
            ),
            (
                upstream("2014-03-01T00:00:00.25Z", Need::Interval),
                r#"{"group":"import","instant":"2014-03-01T00:00:00.250000Z","need":"interval"}"#,
            ),
            (RunWait::Unknown(json!({"moon": "full"})), r#"{"moon":"full"}"#),
        ];
        for (wait, text) in kinds {
            assert_eq!(serde_json::to_string(&wait).unwrap(), text);
            assert_eq!(serde_json::from_str::<RunWait>(text).unwrap(), wait);
        }
    }

    #[test]
    fn a_row_is_read_as_it_is_written() {
        let lacks = [
            upstream("2014-03-01T00:00:00Z", Need::Interval),
            upstream("2014-04-01T00:00:00Z", Need::Interval),
        ];
        let rows = [
            (vec![RunWait::Gate], r#"{"turn":true}"#),
            (Vec::new(), "[]"),
            (
                lacks.to_vec(),
                concat!(
                    r#"[{"group":"import","instant":"2014-03-01T00:00:00.000000Z","need":"interval"},"#,
                    r#"{"group":"import","instant":"2014-04-01T00:00:00.000000Z","need":"interval"}]"#
                ),
            ),
        ];
        for (waits, text) in rows {
            assert_eq!(RunWait::stored(&waits).to_string(), text);
            assert_eq!(RunWait::from_stored(Some(serde_json::from_str(text).unwrap())), waits);
        }
        assert_eq!(RunWait::from_stored(Some(json!([{"turn": true}]))), [RunWait::Gate]);
        for nothing in [None, Some(Value::Null)] {
            assert!(RunWait::from_stored(nothing).is_empty());
        }
    }

    #[test]
    fn what_a_newer_version_has_written_is_passed_on() {
        for value in [
            json!({"moon": "full"}),
            json!({"turn": false}),
            json!({"group": "import", "instant": "2014-03-01T00:00:00.000000Z", "need": "any"}),
            json!({"group": "import", "instant": "soon", "need": "latest"}),
            json!(["import", "2014-03-01T00:00:00.000000Z", "latest"]),
            json!("full moon"),
        ] {
            let read = RunWait::from(value.clone());
            assert_eq!(read, RunWait::Unknown(value.clone()));
            assert_eq!(serde_json::to_value(&read).unwrap(), value);
        }
        let row = json!([{"turn": true}, {"moon": "full"}]);
        let read = RunWait::from_stored(Some(row.clone()));
        assert_eq!(read[0], RunWait::Gate);
        assert_eq!(RunWait::stored(&read), row);
    }

    #[test]
    fn the_schema_lists_the_fields_of_each_kind() {
        let schema = schemars::schema_for!(RunWait).to_value();
        let kinds = [RunWait::Gate, upstream("2014-03-01T00:00:00Z", Need::Latest)];
        for (index, wait) in kinds.iter().enumerate() {
            let written = wait.to_json();
            let written: Vec<&String> = written.as_object().unwrap().keys().collect();
            let described = &schema["anyOf"][index];
            let known: Vec<&String> = described["properties"].as_object().unwrap().keys().collect();
            assert_eq!(written, known);
            assert_eq!(described["required"], json!(written));
        }
    }
}
