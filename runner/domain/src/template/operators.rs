//! Operators that make large results from small operands: `'a' * 100000000` is one step for minijinja, and a constant
//! one is computed while the template compiles. [`super::rewrite`] writes them as filters: `a + b - c` as `(a)|_op('+',
//! b, '-', c)`, each chain of one precedence separately, from left to right. The filter charges the result, and calls
//! minijinja's own operator to make it.

use std::sync::LazyLock;

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Expression, State, UndefinedBehavior, Value, context};

use super::OUTPUT_MAX_BYTES;
use super::budget::{Budget, ENTRY_BYTES};
use super::value::too_large;

/// The filter that a chain of operators becomes.
pub(super) const FILTER: &str = "_op";
/// Written after a slice; after a key, a computed subscript, and the like; after a spread value. A word may follow.
pub(super) const COPIED: &str = "|_copied ";
pub(super) const EXAMINED: &str = "|_examined ";
pub(super) const SPREAD: &str = "|_spread ";

/// Signs of one precedence each, from the one that binds least. What grows begins a chain that is rewritten; the others
/// are a part of it.
pub(super) const CLASSES: [(&[&str], &[&str]); 3] = [(&["+"], &["-"]), (&["~"], &[]), (&["*"], &["/", "//", "%"])];

static OPERATORS: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut env = Environment::empty();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env
});

/// minijinja's own operators, by their signs.
static EXPRESSIONS: LazyLock<Vec<(&str, Expression<'static, 'static>)>> = LazyLock::new(|| {
    [
        ("+", "a + b"),
        ("-", "a - b"),
        ("~", "a ~ b"),
        ("*", "a * b"),
        ("/", "a / b"),
        ("//", "a // b"),
        ("%", "a % b"),
    ]
    .into_iter()
    .filter_map(|(sign, source)| Some((sign, OPERATORS.compile_expression(source).ok()?)))
    .collect()
});

pub(super) fn install(env: &mut Environment<'_>) {
    env.add_filter(
        FILTER,
        |state: &State, first: Value, rest: Rest<Value>| -> Result<Value, Error> {
            let budget = Budget::of(state);
            let mut left = first;
            let mut pairs = rest.iter();
            while let (Some(sign), Some(right)) = (pairs.next(), pairs.next()) {
                left = apply(&budget, sign.as_str().unwrap_or_default(), left, right)?;
            }
            Ok(left)
        },
    );
    // Each of these gives back what it is given.
    env.add_filter("_copied", |state: &State, value: Value| {
        Budget::of(state).copied(&value).map(|()| value)
    });
    env.add_filter("_examined", |state: &State, value: Value| {
        Budget::of(state).examine_value(&value).map(|()| value)
    });
    env.add_filter("_spread", |state: &State, value: Value| {
        Budget::of(state).entries(&value).map(|_| value)
    });
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

fn apply(budget: &Budget, sign: &str, left: Value, right: &Value) -> Result<Value, Error> {
    if left.is_undefined() || right.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    match sign {
        "+" => {
            for side in [&left, right] {
                if is_list(side) || side.as_str().is_some() {
                    budget.copied(side)?;
                }
            }
        }
        "~" => {
            budget.text(&left, 1)?;
            budget.text(right, 1)?;
        }
        "*" => {
            repeated(budget, &left, right)?;
            repeated(budget, right, &left)?;
        }
        _ => {}
    }
    let (_, operator) = EXPRESSIONS
        .iter()
        .find(|(known, _)| *known == sign)
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the operator does not exist"))?;
    let made = operator.eval(context! { a => left, b => right.clone() });
    // Its position in that expression means nothing in the template.
    made.map_err(|error| match error.detail() {
        Some(detail) => Error::new(error.kind(), detail.to_owned()),
        None => Error::from(error.kind()),
    })
}

/// Before `value * times`; nothing unless it is a string or a list.
fn repeated(budget: &Budget, value: &Value, times: &Value) -> Result<(), Error> {
    // The operator refuses what is no number.
    let Some(times) = times.as_i64().and_then(|times| usize::try_from(times).ok()) else {
        return Ok(());
    };
    if let Some(text) = value.as_str() {
        let bytes = text.len().saturating_mul(times);
        if bytes > OUTPUT_MAX_BYTES {
            return Err(too_large());
        }
        return budget.make(bytes);
    }
    if is_list(value) {
        let count = budget.count(value)?;
        return budget.make(count.saturating_mul(times).saturating_mul(ENTRY_BYTES));
    }
    Ok(())
}
