//! From JSON to specs: errors with their JSON pointers; and values that have more than one form.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use unicode_normalization::UnicodeNormalization;

use super::gather::Gathered;
use super::*;
use crate::Faults;
use crate::schedule::local::YEARS;

/// Reads a group's spec. It is not validated here; see [`super::validate`].
pub fn parse_group(value: &Value) -> Result<GroupSpec, Faults> {
    let gathered = gather_group(value);
    match gathered.rest {
        Some(spec) => gathered.faults.or(spec),
        None => Err(gathered.faults),
    }
}

/// Reads as much of a group's spec as can be read, and collects all errors of the rest.
pub fn gather_group(value: &Value) -> Gathered<GroupSpec> {
    Gathered::read(value)
}

/// Fields of a submission in which null means the same as nothing. (For optional fields, Serde does this already.)
const NULL_IS_ABSENT: [&str; 4] = ["params", "task_params", "labels", "force"];

pub fn parse_submission(value: &Value) -> Result<SubmissionSpec, Faults> {
    let is_absent = |(key, value): (&String, &Value)| value.is_null() && NULL_IS_ABSENT.contains(&key.as_str());
    match value {
        Value::Object(fields) if fields.iter().any(is_absent) => {
            let given = fields.iter().filter(|&(key, value)| !is_absent((key, value)));
            read(&Value::Object(
                given.map(|(key, value)| (key.clone(), value.clone())).collect(),
            ))
        }
        _ => read(value),
    }
}

/// Reads any of our specs, which is an object; the faults name the positions of all that is unreadable.
pub fn read<T: DeserializeOwned>(value: &Value) -> Result<T, Faults> {
    let gathered = Gathered::<T>::read(value);
    match gathered.rest {
        Some(read) => gathered.faults.or(read),
        None => Err(gathered.faults),
    }
}

impl<'de> Deserialize<'de> for GroupDependency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Needed {
            group: Name,
            #[serde(default)]
            need: Need,
        }
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = GroupDependency;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a group's name, or `{group, need: latest | interval}`")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<GroupDependency, E> {
                Name::new(text).map(GroupDependency::Name).map_err(E::custom)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<GroupDependency, A::Error> {
                let Needed { group, need } = Needed::deserialize(MapAccessDeserializer::new(map))?;
                Ok(GroupDependency::Need { group, need })
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// A whole number that is read as `T`. If it does not fit, the error names the bounds of the field, which are narrower. What
/// fits is compared with them where the whole spec is judged.
struct Whole<T> {
    bounds: RangeInclusive<T>,
}

impl<T: TryFrom<i64> + fmt::Display> Visitor<'_> for Whole<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a whole number from {} to {}",
            self.bounds.start(),
            self.bounds.end()
        )
    }
    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        T::try_from(number).map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }
    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        let fitting = i64::try_from(number).ok().and_then(|number| T::try_from(number).ok());
        fitting.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }
}

/// The same, or nothing.
struct Optional<T> {
    bounds: RangeInclusive<T>,
}

impl<'de, T: TryFrom<i64> + fmt::Display> Visitor<'de> for Optional<T> {
    type Value = Option<T>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a whole number from {} to {}",
            self.bounds.start(),
            self.bounds.end()
        )
    }
    fn visit_none<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        whole(deserializer, self.bounds).map(Some)
    }
}

/// A whole number of a field with these bounds.
pub(crate) fn whole<'de, D: Deserializer<'de>, T: TryFrom<i64> + fmt::Display>(
    deserializer: D,
    bounds: RangeInclusive<T>,
) -> Result<T, D::Error> {
    deserializer.deserialize_i64(Whole { bounds })
}

/// A whole number of a field with these bounds, if it is given.
pub(crate) fn optional<'de, D: Deserializer<'de>, T: TryFrom<i64> + fmt::Display>(
    deserializer: D,
    bounds: RangeInclusive<T>,
) -> Result<Option<T>, D::Error> {
    deserializer.deserialize_option(Optional { bounds })
}

/// The priority of runs.
pub(crate) fn priority<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i16>, D::Error> {
    optional(deserializer, bounds::PRIORITY)
}

/// How many runs of schedules may wait.
pub(super) fn max_waiting<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    optional(deserializer, 0..=MAX_WAITING_MAX)
}

/// How many of something there may be at the same time.
pub(super) fn at_least_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    optional(deserializer, 1..=u32::MAX)
}

/// A map by name. Two spellings of one name (composed and decomposed) are two keys in JSON and one here.
pub(super) fn by_name<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<Name, T>, D::Error> {
    struct ByName<T>(PhantomData<T>);
    impl<'de, T: Deserialize<'de>> Visitor<'de> for ByName<T> {
        type Value = BTreeMap<Name, T>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut named = BTreeMap::new();
            while let Some(name) = map.next_key::<Name>()? {
                let is_known = named.contains_key(&name);
                named.insert(name, map.next_value_seed(Once(is_known, PhantomData))?);
            }
            Ok(named)
        }
    }
    /// The value of a name, unless the name occurred before. (An error of the value has its pointer.)
    struct Once<T>(bool, PhantomData<T>);
    impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Once<T> {
        type Value = T;
        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
            match self.0 {
                true => Err(D::Error::custom(
                    "duplicate: two names are the same after Unicode normalisation",
                )),
                false => T::deserialize(deserializer),
            }
        }
    }
    deserializer.deserialize_map(ByName(PhantomData))
}

/// A script, `name` or `name@version`. It is no [`Name`], because it may contain a version, but it is composed like
/// one, so that the script is found under its stored name. [`super::validate`] reports its errors.
pub(crate) fn script<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(|text| text.nfc().collect()))
}

/// A condition: an expression, or a constant, which YAML and JSON write as `true` or `false`.
pub(super) fn condition<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    struct Either;
    impl Visitor<'_> for Either {
        type Value = Option<String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an expression, `true` or `false`")
        }
        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_bool<E: Error>(self, constant: bool) -> Result<Self::Value, E> {
            Ok(Some(constant.to_string()))
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(Some(text.to_owned()))
        }
    }
    deserializer.deserialize_any(Either)
}

/// An audience alone, or an object with the fields of an offer to it.
pub(super) fn audience<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<AudienceSpec>, D::Error> {
    struct Either;
    impl<'de> Visitor<'de> for Either {
        type Value = Option<AudienceSpec>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an audience (`uid_x` or `gid_x`), or `{audience, dispatch_times, ...}`")
        }
        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(None)
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(Some(AudienceSpec {
                audience: text.to_owned(),
                dispatch_times: None,
                mode: None,
                template: None,
                max_hold: None,
            }))
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            AudienceSpec::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }
    deserializer.deserialize_any(Either)
}

/// An RFC 3339 instant, to the microsecond. A date is one that had to be replaced by its midnight in a group's zone, and
/// was not, because that midnight is out of range.
pub(super) fn instant<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    Option::<String>::deserialize(deserializer)?
        .map(|text| {
            let shown: String = text.chars().take(100).collect();
            chrono::DateTime::parse_from_rfc3339(&text)
                .map(|at| crate::clock::to_micros(at.to_utc()))
                .map_err(|_| {
                    if chrono::NaiveDate::parse_from_str(&text, "%Y-%m-%d").is_ok() {
                        let (first, last) = (YEARS.start(), YEARS.end());
                        return D::Error::custom(format!(
                            "`{shown}` is out of range; the year must be from {first} to {last}"
                        ));
                    }
                    D::Error::custom(format!(
                        "`{shown}` is not a valid RFC 3339 time; write for example 2026-11-20T08:00:00Z, or a date such \
                        as 2026-11-20"
                    ))
                })
        })
        .transpose()
}

impl<'de> Deserialize<'de> for ForEach {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = ForEach;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array, or a template that gives one")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<ForEach, E> {
                Ok(ForEach::Template(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ForEach, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(ForEach::Items(items))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for Shards {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = Shards;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number from 1 to 10000, or `workers`")
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<Shards, E> {
                // A number that is too large for the type is also too large for the bound that `validate` checks.
                Ok(Shards::Count(u32::try_from(number).unwrap_or(u32::MAX)))
            }
            fn visit_i64<E: Error>(self, number: i64) -> Result<Shards, E> {
                Err(E::invalid_value(serde::de::Unexpected::Signed(number), &self))
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<Shards, E> {
                visit_whole(self, number)
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Shards, E> {
                match text {
                    "workers" => Ok(Shards::Workers(WorkersWord::Workers)),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl Serialize for TimeoutSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Never => serializer.serialize_str("never"),
            Self::After(span) => span.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for TimeoutSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = TimeoutSpec;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as `90s` or `1h30m`, or `never`")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<TimeoutSpec, E> {
                match text {
                    "never" => Ok(TimeoutSpec::Never),
                    _ => text.parse().map(TimeoutSpec::After).map_err(E::custom),
                }
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<TimeoutSpec, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<TimeoutSpec, E> {
                visit_whole(self, number)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl std::str::FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let shown: String = text.chars().take(40).collect();
            format!("`{shown}` is not a valid size; write for example `128MiB`, `64KiB`, `1GB` or a number of bytes")
        };
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
        let unit = match text[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            _ => return Err(wrong()),
        };
        number.checked_mul(unit).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, bytes) in [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
            if self.0 > 0 && self.0.is_multiple_of(bytes) {
                return write!(f, "{}{unit}", self.0 / bytes);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as `128MiB`, or a number of bytes")
            }
            fn visit_u64<E: Error>(self, number: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(number))
            }
            fn visit_f64<E: Error>(self, number: f64) -> Result<ByteSize, E> {
                visit_whole(self, number)
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Either)
    }
}
