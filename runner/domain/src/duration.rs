//! Exact durations, written as `100ms`, `90s`, `5m`, `1h30m`, `1d`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const MICROS_PER_MILLI: u64 = 1_000;
const MICROS_PER_SECOND: u64 = 1_000_000;
const UNITS: [(&str, u64); 7] = [
    ("w", 7 * 86_400 * MICROS_PER_SECOND),
    ("d", 86_400 * MICROS_PER_SECOND),
    ("h", 3_600 * MICROS_PER_SECOND),
    ("m", 60 * MICROS_PER_SECOND),
    ("s", MICROS_PER_SECOND),
    ("ms", MICROS_PER_MILLI),
    ("us", 1),
];

/// An exact duration, from zero to [`Span::MAX`], in whole microseconds.
///
/// Written as whole numbers with units `w`, `d`, `h`, `m`, `s`, `ms`, `us`, larger before smaller, each at most once;
/// `0` alone may go without a unit. A day is 24 hours. A number without a unit is refused, since one reader's seconds
/// are another's milliseconds. Printed back in days, hours, minutes, seconds and so on, less than two minutes in
/// seconds, except one minute: `90s`, `1m`, `1h30m`, `14d`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

/// Why a text is no [`Span`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// Not a sequence of numbers with units.
    #[error("`{0}` is not a valid duration; write for example `100ms`, `90s`, `5m`, `1h30m` or `1d`")]
    Malformed(String),
    /// A number without a unit.
    #[error("`{0}` has no unit; write for example `{0}s`")]
    NoUnit(String),
    /// Units out of order or repeated.
    #[error("`{0}` is not a valid duration; write each unit at most once, the larger unit first")]
    Order(String),
    #[error("`{0}` is longer than the maximum of 36500d")]
    TooLong(String),
}

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest: 36,500 days, so that an instant of our time plus a span is still representable.
    pub const MAX: Self = Self(36_500 * 86_400 * MICROS_PER_SECOND);

    /// A span of whole microseconds, cut to [`Span::MAX`].
    pub const fn from_micros(micros: u64) -> Self {
        if micros > Self::MAX.0 { Self::MAX } else { Self(micros) }
    }

    /// A span of whole milliseconds, cut to [`Span::MAX`].
    pub const fn from_millis(millis: u64) -> Self {
        Self::from_micros(millis.saturating_mul(MICROS_PER_MILLI))
    }

    /// A span of whole seconds, cut to [`Span::MAX`].
    pub const fn from_secs(seconds: u64) -> Self {
        Self::from_micros(seconds.saturating_mul(MICROS_PER_SECOND))
    }

    /// A standard duration, cut to whole microseconds and to [`Span::MAX`].
    pub fn from_std(duration: std::time::Duration) -> Self {
        Self::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }

    /// The time from one instant to another; zero if they are the other way around.
    pub fn between(from: crate::Time, to: crate::Time) -> Self {
        let micros = to.signed_duration_since(from).num_microseconds().unwrap_or(i64::MAX);
        Self::from_micros(u64::try_from(micros).unwrap_or(0))
    }

    /// The duration in whole microseconds.
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// In milliseconds, the rest cut off.
    pub const fn millis(self) -> u64 {
        self.0 / MICROS_PER_MILLI
    }

    /// As the standard library's duration.
    pub const fn std(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.0)
    }

    pub const fn chrono(self) -> chrono::TimeDelta {
        chrono::TimeDelta::microseconds(self.0 as i64)
    }

    /// Whether it is no time at all.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// `n` times as long, cut to [`Span::MAX`].
    pub const fn times(self, n: u64) -> Self {
        Self::from_micros(self.0.saturating_mul(n))
    }
}

/// How many characters of a wrong input an error repeats.
const SHOWN_CHARS: usize = 40;

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let text = text.trim();
        let shown = || text.chars().take(SHOWN_CHARS).collect::<String>();
        if text == "0" {
            return Ok(Self::ZERO);
        }
        if text.is_empty() {
            return Err(SpanError::Malformed(String::new()));
        }
        let mut rest = text;
        let mut total = 0u64;
        let mut next_unit = 0;
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (number, after) = rest.split_at(digits);
            if number.is_empty() {
                return Err(SpanError::Malformed(shown()));
            }
            if after.is_empty() {
                return Err(SpanError::NoUnit(shown()));
            }
            let letters = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
            let (unit, after) = after.split_at(letters);
            let index = UNITS
                .iter()
                .position(|(name, _)| *name == unit)
                .ok_or_else(|| SpanError::Malformed(shown()))?;
            if index < next_unit {
                return Err(SpanError::Order(shown()));
            }
            next_unit = index + 1;
            total = number
                .parse::<u64>()
                .ok()
                .and_then(|number| number.checked_mul(UNITS[index].1))
                .and_then(|part| total.checked_add(part))
                .filter(|total| *total <= Self::MAX.0)
                .ok_or_else(|| SpanError::TooLong(shown()))?;
            rest = after;
        }
        Ok(Self(total))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        // Weeks are read but not printed; nobody reads `1w3d` faster than `10d`.
        let seconds_suffice = self.0 < 120 * MICROS_PER_SECOND && self.0 != 60 * MICROS_PER_SECOND;
        let units = if seconds_suffice { &UNITS[4..] } else { &UNITS[1..] };
        let mut rest = self.0;
        for (unit, micros) in units {
            let number = rest / micros;
            if number > 0 {
                write!(f, "{number}{unit}")?;
            }
            rest %= micros;
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["string", "integer"],
            // These bound only a number: 0 is the only one.
            "minimum": 0,
            "maximum": 0,
            "description": "Numbers with units (`us`, `ms`, `s`, `m`, `h`, `d`, `w`), the largest first; at most 36,500 days. \
                Only `0` may have no unit, as text or as a number.",
            "examples": ["100ms", "90s", "5m", "1h30m", "1d"],
        })
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as `100ms`, `90s`, `5m`, `1h30m` or `1d`")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Span, E> {
                if number == 0 {
                    Ok(Span::ZERO)
                } else {
                    Err(E::custom(SpanError::NoUnit(number.to_string())))
                }
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Span, E> {
                Err(E::custom(SpanError::Malformed(number.to_string())))
            }
            /// Zero, also with a decimal point; YAML also reads numbers with leading zeros as these.
            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Span, E> {
                match number {
                    0.0 => Ok(Span::ZERO),
                    _ if number > 0.0 && number.fract() == 0.0 => Err(E::custom(SpanError::NoUnit(number.to_string()))),
                    _ => Err(E::custom(SpanError::Malformed(number.to_string()))),
                }
            }
        }
        // Formats that are not self-describing contain the text. (The progress of a run is stored in such a format.)
        if deserializer.is_human_readable() {
            deserializer.deserialize_any(Visitor)
        } else {
            deserializer.deserialize_str(Visitor)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(input: &str, expect: Result<(u64, &str), &str>) {
        let got = input
            .parse::<Span>()
            .map(|span| (span.micros(), span.to_string()))
            .map_err(|e| e.to_string());
        let got = got
            .as_ref()
            .map(|(micros, text)| (*micros, text.as_str()))
            .map_err(String::as_str);
        assert_eq!(got, expect, "{input:?}");
    }

    #[test]
    fn reads_and_prints() {
        check("100ms", Ok((100_000, "100ms")));
        check("90s", Ok((90_000_000, "90s")));
        check("60s", Ok((60_000_000, "1m")));
        check("120s", Ok((120_000_000, "2m")));
        check("5m", Ok((300_000_000, "5m")));
        check("1h30m", Ok((5_400_000_000, "1h30m")));
        check("1d", Ok((86_400_000_000, "1d")));
        check("2w", Ok((1_209_600_000_000, "14d")));
        check("1s500ms", Ok((1_500_000, "1s500ms")));
        check("250us", Ok((250, "250us")));
        check("0", Ok((0, "0s")));
        check("0s", Ok((0, "0s")));
        check("36500d", Ok((Span::MAX.micros(), "36500d")));
    }

    /// The schema accepts the numbers that are read, and no other.
    #[test]
    fn a_number_is_a_duration_only_if_it_is_zero() {
        assert_eq!(serde_json::from_str::<Span>("0").ok(), Some(Span::ZERO));
        for refused in ["1", "-1", "0.5", "null"] {
            assert!(serde_json::from_str::<Span>(refused).is_err(), "{refused}");
        }
        let schema = schemars::schema_for!(Span).to_value();
        assert_eq!(schema["type"], serde_json::json!(["string", "integer"]));
        for bound in ["minimum", "maximum"] {
            assert_eq!(schema[bound], serde_json::json!(0), "{bound}");
        }
    }

    #[test]
    fn refuses() {
        check(
            "",
            Err("`` is not a valid duration; write for example `100ms`, `90s`, `5m`, `1h30m` or `1d`"),
        );
        check(
            "soon",
            Err("`soon` is not a valid duration; write for example `100ms`, `90s`, `5m`, `1h30m` or `1d`"),
        );
        check(
            "-5s",
            Err("`-5s` is not a valid duration; write for example `100ms`, `90s`, `5m`, `1h30m` or `1d`"),
        );
        check(
            "1.5h",
            Err("`1.5h` is not a valid duration; write for example `100ms`, `90s`, `5m`, `1h30m` or `1d`"),
        );
        check("5", Err("`5` has no unit; write for example `5s`"));
        check(
            "30m1h",
            Err("`30m1h` is not a valid duration; write each unit at most once, the larger unit first"),
        );
        check("36501d", Err("`36501d` is longer than the maximum of 36500d"));
        check(
            "99999999999999999999s",
            Err("`99999999999999999999s` is longer than the maximum of 36500d"),
        );
    }

    #[test]
    fn survives_both_kinds_of_serde() {
        let span = Span::from_millis(1_500);
        assert_eq!(serde_json::to_string(&span).unwrap(), "\"1s500ms\"");
        assert_eq!(serde_json::from_str::<Span>("\"1s500ms\"").unwrap(), span);
        assert_eq!(
            postcard::from_bytes::<Span>(&postcard::to_allocvec(&span).unwrap()).unwrap(),
            span
        );
        assert!(
            serde_json::from_str::<Span>("5")
                .unwrap_err()
                .to_string()
                .starts_with("`5` has no unit")
        );
        assert!(
            serde_json::from_str::<Span>("true")
                .unwrap_err()
                .to_string()
                .contains("expected a duration")
        );
    }
}
