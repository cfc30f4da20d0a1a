//! Filters of ours, and bounded forms of those built-in ones that can make much out of little.

use std::fmt::{self, Write};

use chrono_tz::Tz;
use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use super::OUTPUT_MAX_BYTES;
use super::budget::Budget;
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
    env.add_filter("pprint", pprint);
    env.add_filter("tojson", tojson);
    env.add_filter("replace", replace);
    env.add_filter("join", join);
    env.add_filter("indent", indent);
    env.add_filter("format", printf);
    env.remove_filter("slice");
    env.remove_filter("batch");
}

/// The group's zone, which the scope carries in its instants.
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

/// Charges text whose bounds are checked elsewhere.
fn made(budget: &Budget, text: String) -> Result<String, Error> {
    budget.make(text.len()).map(|()| text)
}

fn tojson(state: &State, value: Value) -> Result<String, Error> {
    let budget = Budget::of(state);
    budget.examine_value(&value)?;
    let json = to_json(&value, &mut { OUTPUT_MAX_BYTES }, super::DEPTH_MAX)?;
    made(&budget, json.to_string())
}

fn pprint(state: &State, value: Value) -> Result<String, Error> {
    struct Page(String);
    impl Write for Page {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            if self.0.len() + text.len() > OUTPUT_MAX_BYTES {
                return Err(fmt::Error);
            }
            self.0.push_str(text);
            Ok(())
        }
    }
    let budget = Budget::of(state);
    budget.examine_value(&value)?;
    let mut page = Page(String::new());
    write!(page, "{value:#?}").map_err(|_| too_large())?;
    made(&budget, page.0)
}

fn replace(state: &State, value: String, from: String, to: String) -> Result<String, Error> {
    let budget = Budget::of(state);
    budget.read(&value)?;
    let grown = value
        .matches(from.as_str())
        .count()
        .saturating_mul(to.len())
        .saturating_add(value.len());
    if grown > OUTPUT_MAX_BYTES {
        return Err(too_large());
    }
    made(&budget, value.replace(&from, &to))
}

fn join(state: &State, value: Value, joiner: Option<String>, attribute: Option<String>) -> Result<String, Error> {
    let budget = Budget::of(state);
    let joiner = joiner.unwrap_or_default();
    let mut out = String::new();
    for (index, item) in value.try_iter()?.enumerate() {
        budget.examine(1)?;
        if index > 0 {
            out.push_str(&joiner);
        }
        let item = match &attribute {
            Some(attribute) => item.get_attr(attribute)?,
            None => item,
        };
        match item.as_str() {
            Some(text) => out.push_str(text),
            None => {
                budget.text(&item, 1)?;
                out.push_str(&item.to_string());
            }
        }
        if out.len() > OUTPUT_MAX_BYTES {
            return Err(too_large());
        }
    }
    made(&budget, out)
}

fn indent(state: &State, value: String, width: Option<usize>, first: Option<bool>) -> Result<String, Error> {
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
    made(&Budget::of(state), out)
}

fn printf(state: &State, pattern: String, args: Rest<ValueOrKwargs>) -> Result<String, Error> {
    /// The maximum of a width or a precision, which is written in digits.
    const WIDTH_MAX: usize = 1000;
    let budget = Budget::of(state);
    let args = args.into_values();
    // A width is written in digits, or taken from an argument by `*`.
    let mut digits = pattern.split(|c: char| !c.is_ascii_digit());
    let wide = pattern.contains('*') || digits.any(|digits| digits.trim_start_matches('0').len() > 3);
    let conversions = pattern.matches('%').count();
    if wide && conversions > 0 {
        return Err(invalid("a width in `format` must be below 1000"));
    }
    // Each positional argument once; a named one as often as it is named.
    let named = pattern.matches("%(").count().max(1);
    let mut bytes = pattern.len();
    for value in args.iter() {
        bytes = bytes.saturating_add(budget.walk(value, OUTPUT_MAX_BYTES)?.saturating_mul(named));
    }
    if pattern.contains(|c: char| c.is_ascii_digit()) {
        bytes = bytes.saturating_add(conversions.saturating_mul(WIDTH_MAX));
    }
    budget.make(bytes)?;
    let out = format(FormatStyle::Printf, &pattern, &args)?;
    if out.len() > OUTPUT_MAX_BYTES {
        return Err(too_large());
    }
    Ok(out)
}
