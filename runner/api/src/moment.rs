//! Instants as the API prints them: UTC with `Z` and always six decimals.

use std::borrow::Cow;

use heddle_domain::Time;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An instant that serialises as `2026-11-20T08:00:00.000000Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub Time);

impl std::ops::Deref for Moment {
    type Target = Time;
    fn deref(&self) -> &Time {
        &self.0
    }
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0.format("%Y-%m-%dT%H:%M:%S%.6fZ"))
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        parse_moment(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Moment {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "date-time",
            "description": "RFC 3339, for example `2026-11-20T08:00:00Z`. Answers are in UTC with `Z` and \
                microseconds.",
        })
    }
}

impl From<Time> for Moment {
    fn from(at: Time) -> Self {
        Self(at)
    }
}

impl From<Moment> for Time {
    fn from(at: Moment) -> Self {
        at.0
    }
}

/// Reads an RFC 3339 instant.
pub fn parse_moment(text: &str) -> Result<Time, String> {
    chrono::DateTime::parse_from_rfc3339(text)
        .map(|at| heddle_domain::clock::to_micros(at.to_utc()))
        .map_err(|_| format!("`{text}` is not a valid RFC 3339 time; write for example 2026-11-20T08:00:00Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_always_carry_microseconds() {
        for (text, printed) in [
            ("2026-11-20T08:00:00Z", "\"2026-11-20T08:00:00.000000Z\""),
            ("2026-11-20T08:00:00.5+08:00", "\"2026-11-20T00:00:00.500000Z\""),
            ("2026-11-20T08:00:00.1234567Z", "\"2026-11-20T08:00:00.123456Z\""),
        ] {
            let moment = Moment(parse_moment(text).unwrap());
            assert_eq!(serde_json::to_string(&moment).unwrap(), printed);
            assert_eq!(serde_json::from_str::<Moment>(printed).unwrap(), moment);
        }
        assert!(parse_moment("yesterday").is_err());
    }
}
