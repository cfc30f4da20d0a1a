//! The checks by the library for JSON Schema, in this process: the work that [`crate::bounded`] may let another process
//! do.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{JsonType, Validator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::references::References;
use crate::plain::Plain;
use crate::{Fault, Faults};

/// How many steps back one match of a pattern may take.
const BACKTRACK_MAX: usize = 10_000;
/// The memory that one compiled pattern may take.
const PATTERN_MAX_BYTES: usize = 1 << 20;
/// The longest detail of a fault.
const DETAIL_MAX_CHARS: usize = 300;
/// How many compiled schemas a process for bounded work keeps.
const KEPT_MAX: usize = 8;

/// What of a value is not known yet.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Open {
    /// The pointers of parts whose values are not known.
    pub(super) parts: Vec<String>,
    /// Whether the value, an object, may still get the keys that it lacks.
    pub(super) keys: bool,
}

pub(super) fn validator(schema: &Value) -> Result<Validator, Fault> {
    jsonschema::options()
        .offline()
        .should_validate_formats(true)
        .with_pattern_options(
            jsonschema::PatternOptions::fancy_regex()
                .backtrack_limit(BACKTRACK_MAX)
                .size_limit(PATTERN_MAX_BYTES)
                .dfa_size_limit(PATTERN_MAX_BYTES),
        )
        .build(schema)
        .map_err(|error| Fault::at(error.instance_path().to_string(), bounded(&error.to_string())))
}

/// All errors of a value, except those that its open parts may still remove.
pub(super) fn faults_of(validator: &Validator, value: &Value, open: &Open) -> Faults {
    let mut faults = Faults::default();
    for error in validator.iter_errors(value) {
        let pointer = error.instance_path().to_string();
        let may_come = open.keys && pointer.is_empty() && matches!(error.kind(), ValidationErrorKind::Required { .. });
        if may_come || !is_certain(&error, &pointer, &open.parts) {
            continue;
        }
        let mut detail = error.to_string();
        if is_long(&detail) {
            // The error text repeats the wrong value, which is left out if it is too long.
            detail = error.masked().to_string();
        }
        let mut fault = Fault::at(pointer, bounded(&detail));
        if let ValidationErrorKind::Required { property } = error.kind() {
            fault.missing = property.as_str().filter(|name| !is_long(name)).map(str::to_owned);
        }
        faults.push(fault);
        if faults.0.len() >= Faults::MAX {
            break;
        }
    }
    faults
}

/// The positions in a value at which an integer is required and something else is found.
pub(super) fn asked_of(validator: &Validator, probe: &Value) -> BTreeSet<String> {
    let mut asked = BTreeSet::new();
    for error in validator.iter_errors(probe) {
        integers_asked(&error, &mut asked);
    }
    asked
}

thread_local! {
    /// Runs of one group come with the same schema: the latest is last.
    static KEPT: RefCell<VecDeque<(Plain, Rc<Validator>)>> = const { RefCell::new(VecDeque::new()) };
}

/// Compiles for bounded work, and keeps what it has compiled.
fn kept(schema: Plain) -> Result<Rc<Validator>, Fault> {
    let known = KEPT.with_borrow(|kept| kept.iter().find(|one| one.0 == schema).map(|one| one.1.clone()));
    if let Some(known) = known {
        return Ok(known);
    }
    let source = Value::from(schema.clone());
    References::check(&source).map_err(|said| Fault::at("", said))?;
    let validator = Rc::new(validator(&source)?);
    KEPT.with_borrow_mut(|kept| {
        if kept.len() >= KEPT_MAX {
            kept.pop_front();
        }
        kept.push_back((schema, validator.clone()));
    });
    Ok(validator)
}

/// Bounded work: whether a schema can be used.
pub(crate) fn compiled(schema: Plain) -> Result<(), Fault> {
    kept(schema).map(drop)
}

/// Bounded work: the errors of a value. `begun` is called between compiling and checking.
pub(crate) fn checked(schema: Plain, value: Plain, open: &Open, begun: &mut dyn FnMut()) -> Result<Faults, Fault> {
    let validator = kept(schema)?;
    begun();
    Ok(faults_of(&validator, &value.into(), open))
}

/// Bounded work: where a value misses integers.
pub(crate) fn asked(schema: Plain, probe: Plain, begun: &mut dyn FnMut()) -> Vec<String> {
    let validator = kept(schema);
    begun();
    match validator {
        Ok(validator) => asked_of(&validator, &probe.into()).into_iter().collect(),
        Err(_) => Vec::new(),
    }
}

/// Where an error, or one of its parts, requires an integer.
fn integers_asked(error: &jsonschema::ValidationError<'_>, asked: &mut BTreeSet<String>) {
    match error.kind() {
        ValidationErrorKind::Type { kind } => {
            let integer = match kind {
                TypeKind::Single(one) => *one == JsonType::Integer,
                TypeKind::Multiple(several) => several.contains(JsonType::Integer),
            };
            if integer {
                asked.insert(error.instance_path().to_string());
            }
        }
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            for error in context.iter().flatten() {
                integers_asked(error, asked);
            }
        }
        _ => {}
    }
}

/// Whether an error remains, whatever values the unknown parts get.
fn is_certain(error: &jsonschema::ValidationError<'_>, pointer: &str, unknown: &[String]) -> bool {
    if unknown.is_empty() {
        return true;
    }
    let lies_in = |inner: &str, outer: &str| {
        inner
            .strip_prefix(outer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if unknown.iter().any(|part| lies_in(pointer, part)) {
        return false;
    }
    // An unknown part anywhere in the value may decide which branch applies.
    const BRANCHES: [&str; 6] = ["anyOf", "oneOf", "not", "then", "else", "dependentSchemas"];
    let schema_path = error.schema_path().to_string();
    if schema_path.split('/').any(|segment| BRANCHES.contains(&segment)) {
        return false;
    }
    // The keys of an object are known, even if some of its values are not.
    !unknown.iter().any(|part| lies_in(part, pointer))
        || matches!(
            error.kind(),
            ValidationErrorKind::Required { .. }
                | ValidationErrorKind::AdditionalProperties { .. }
                | ValidationErrorKind::Type { .. }
                | ValidationErrorKind::MinProperties { .. }
                | ValidationErrorKind::MaxProperties { .. }
                | ValidationErrorKind::MinItems { .. }
                | ValidationErrorKind::MaxItems { .. }
                | ValidationErrorKind::AdditionalItems { .. }
        )
}

fn is_long(text: &str) -> bool {
    text.chars().nth(DETAIL_MAX_CHARS).is_some()
}

fn bounded(text: &str) -> String {
    if !is_long(text) {
        return text.to_owned();
    }
    text.chars().take(DETAIL_MAX_CHARS).chain(" ...".chars()).collect()
}
