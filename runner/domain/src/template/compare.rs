//! Comparisons that know instants.
//!
//! minijinja orders values of different types by their types: `logical_time < '2030'` would be false at any time. So
//! each comparison is written as a filter ([`super::rewrite`]), which reads what an instant is compared with as a time,
//! and compares all else as minijinja does.

use std::cmp::Ordering;

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value};

use super::value::{Instant, invalid, moment_of};

/// The filter. Its name begins with `_`, and templates may use none that does.
pub(super) const FILTER: &str = "_compare";

pub(super) fn install(env: &mut Environment<'_>) {
    env.add_filter(FILTER, |first: Value, rest: Rest<Value>| -> Result<bool, Error> {
        let mut left = first;
        let mut pairs = rest.iter();
        while let (Some(sign), Some(right)) = (pairs.next(), pairs.next()) {
            if !compare(sign.as_str().unwrap_or_default(), &left, right)? {
                return Ok(false);
            }
            left = right.clone();
        }
        Ok(true)
    });
    for (sign, names) in [
        ("==", ["eq", "equalto", "=="].as_slice()),
        ("!=", &["ne", "!="]),
        ("<", &["lt", "lessthan", "<"]),
        ("<=", &["le", "<="]),
        (">", &["gt", "greaterthan", ">"]),
        (">=", &["ge", ">="]),
        ("in", &["in"]),
    ] {
        for name in names {
            env.add_test(*name, move |left: Value, right: Value| compare(sign, &left, &right));
        }
    }
}

fn compare(sign: &str, left: &Value, right: &Value) -> Result<bool, Error> {
    if left.is_undefined() || right.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    Ok(match sign {
        "==" => equal(left, right)?,
        "!=" => !equal(left, right)?,
        "in" => contains(right, left)?,
        "not in" => !contains(right, left)?,
        "<" => order(left, right)?.is_lt(),
        "<=" => order(left, right)?.is_le(),
        ">" => order(left, right)?.is_gt(),
        _ => order(left, right)?.is_ge(),
    })
}

fn instant(value: &Value) -> Option<&Instant> {
    value.downcast_object_ref::<Instant>()
}

fn equal(left: &Value, right: &Value) -> Result<bool, Error> {
    match (instant(left), instant(right)) {
        (None, None) => Ok(left == right),
        _ if left.is_none() || right.is_none() => Ok(false),
        _ => Ok(order(left, right)?.is_eq()),
    }
}

fn order(left: &Value, right: &Value) -> Result<Ordering, Error> {
    Ok(match (instant(left), instant(right)) {
        (None, None) => left.cmp(right),
        (Some(left), _) => left.at.cmp(&moment_of(right, left.zone)?),
        (None, Some(right)) => moment_of(left, right.zone)?.cmp(&right.at),
    })
}

fn contains(container: &Value, value: &Value) -> Result<bool, Error> {
    match container.kind() {
        ValueKind::String => {
            let text = container.as_str().unwrap_or_default();
            Ok(match value.as_str() {
                Some(part) => text.contains(part),
                None => text.contains(&value.to_string()),
            })
        }
        ValueKind::Map => Ok(container.as_object().is_some_and(|map| map.get_value(value).is_some())),
        ValueKind::Seq | ValueKind::Iterable => {
            for item in container.try_iter()? {
                if equal(&item, value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        kind => Err(invalid(format!("`in` does not work with a value of type {kind}"))),
    }
}
