//! Filters of ours, and forms of built-in ones that say when a result is too large, or do more than minijinja's.

use chrono_tz::Tz;
use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use super::OUTPUT_MAX_BYTES;
use super::value::{Instant, format_local, instant_of, invalid, to_json, too_large};
use crate::Span;
use crate::schedule::local::parse_zone;

pub(super) fn install(env: &mut Environment<'_>) {
    env.add_filter(
        "date",
        |state: &State, value: Value, format: Option<String>, kwargs: Kwargs| {
            print_time(state, &value, format, kwargs, "%Y-%m-%d")
        },
    );
    env.add_filter(
        "datetime",
        |state: &State, value: Value, format: Option<String>, kwargs: Kwargs| {
            print_time(state, &value, format, kwargs, "%Y-%m-%dT%H:%M:%S%:z")
        },
    );
    env.add_filter("plus", |state: &State, value: Value, span: String| {
        move_time(state, &value, &span, true)
    });
    env.add_filter("minus", |state: &State, value: Value, span: String| {
        move_time(state, &value, &span, false)
    });
    env.add_filter("tojson", tojson);
    env.add_filter("replace", replace);
    env.add_filter("indent", indent);
    env.add_filter("format", printf);
    // minijinja's own panics for 0.
    env.add_test("divisibleby", |value: Value, by: Value| -> bool {
        by.as_i64() != Some(0) && minijinja::tests::is_divisibleby(&value, &by)
    });
    env.remove_filter("slice");
    env.remove_filter("batch");
}

/// The group's zone, which the instants of the scope contain.
fn group_zone(state: &State) -> Tz {
    let logical_time = state.lookup("logical_time");
    logical_time
        .and_then(|value| value.downcast_object_ref::<Instant>().map(|i| i.zone))
        .unwrap_or(Tz::UTC)
}

fn print_time(
    state: &State,
    value: &Value,
    format: Option<String>,
    kwargs: Kwargs,
    default: &str,
) -> Result<String, Error> {
    let zone = match kwargs.get::<Option<String>>("tz")? {
        Some(name) => parse_zone(&name).map_err(invalid)?,
        None => group_zone(state),
    };
    let format = match format {
        Some(format) => Some(format),
        None => kwargs.get::<Option<String>>("format")?,
    };
    kwargs.assert_all_used()?;
    format_local(zone, instant_of(value, zone)?, format.as_deref().unwrap_or(default))
}

fn move_time(state: &State, value: &Value, span: &str, forward: bool) -> Result<Value, Error> {
    let zone = group_zone(state);
    let span: Span = span
        .parse()
        .map_err(|error: crate::duration::SpanError| invalid(error.to_string()))?;
    let at = instant_of(value, zone)?;
    let moved = if forward {
        at.checked_add_signed(span.chrono())
    } else {
        at.checked_sub_signed(span.chrono())
    };
    let at = moved.ok_or_else(|| invalid("the time is out of range"))?;
    Ok(Value::from_object(Instant { at, zone }))
}

fn tojson(value: Value) -> Result<String, Error> {
    let json = to_json(&value, &mut { OUTPUT_MAX_BYTES }, super::DEPTH_MAX)?;
    Ok(json.to_string())
}

fn replace(value: String, from: String, to: String) -> Result<String, Error> {
    let grown = value
        .matches(from.as_str())
        .count()
        .saturating_mul(to.len())
        .saturating_add(value.len());
    if grown > OUTPUT_MAX_BYTES {
        return Err(too_large());
    }
    Ok(value.replace(&from, &to))
}

fn indent(value: String, width: Option<usize>, first: Option<bool>) -> Result<String, Error> {
    const WIDTH_MAX: usize = 100;
    let width = width.unwrap_or(4);
    if width > WIDTH_MAX {
        return Err(invalid(format!("the width of `indent` must be at most {WIDTH_MAX}")));
    }
    let margin = " ".repeat(width);
    let mut out = String::new();
    for (index, line) in value.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if !line.is_empty() && (index > 0 || first.unwrap_or(false)) {
            out.push_str(&margin);
        }
        out.push_str(line);
        if out.len() > OUTPUT_MAX_BYTES {
            return Err(too_large());
        }
    }
    Ok(out)
}

fn printf(pattern: String, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    // A width is written in digits, or taken from an argument by `*`.
    let mut digits = pattern.split(|c: char| !c.is_ascii_digit());
    let wide = pattern.contains('*') || digits.any(|digits| digits.trim_start_matches('0').len() > 3);
    if wide && pattern.contains('%') {
        return Err(invalid("a width in `format` must be below 1000"));
    }
    let args = args.into_values();
    let out = format(FormatStyle::Printf, &pattern, &args)?;
    if out.len() > OUTPUT_MAX_BYTES {
        return Err(too_large());
    }
    Ok(out)
}
