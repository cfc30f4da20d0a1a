//! Comparisons that know instants.
//!
//! minijinja orders values of different types by their types, and asks nobody: `logical_time < '2030'` would be false
//! whatever the time. So before compiling, each comparison `a < b` is written as a filter, `(a)|_compare('<', b)`; a
//! chain `a < b <= c` as `(a)|_compare('<', b, '<=', c)`. The filter reads what an instant is compared with as a time,
//! and compares all else as minijinja does.

use std::cmp::Ordering;
use std::ops::Range;

use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::scan::{Code, Kind, Token};
use super::value::{Instant, invalid, moment_of};
use super::{budget, weigh};

/// The filter. Its name begins with `_`, and templates may use none that does.
const FILTER: &str = "_compare";

pub(super) fn install(env: &mut Environment<'_>) {
    env.add_filter(
        FILTER,
        |state: &State, first: Value, rest: Rest<Value>| -> Result<bool, Error> {
            let mut left = first;
            let mut pairs = rest.iter();
            while let (Some(sign), Some(right)) = (pairs.next(), pairs.next()) {
                budget::compared(state, &left, right)?;
                if !compare(sign.as_str().unwrap_or_default(), &left, right)? {
                    return Ok(false);
                }
                left = right.clone();
            }
            Ok(true)
        },
    );
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
            env.add_test(*name, move |state: &State, left: Value, right: Value| {
                budget::compared(state, &left, &right)?;
                compare(sign, &left, &right)
            });
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
                // A list's text may be longer than the list.
                None => match value.kind() {
                    ValueKind::Seq | ValueKind::Iterable | ValueKind::Map => false,
                    _ => text.contains(&value.to_string()),
                },
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
        kind => Err(invalid(format!("nothing is `in` a value of type {kind}"))),
    }
}

/// A text made of another, with what it takes to tell places in the other by places in it.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub(super) text: String,
    /// From these places on (in the text, in the source) both run alike.
    alike: Vec<(usize, usize)>,
    /// The comparisons' places in the source.
    comparisons: Vec<Range<usize>>,
}

impl Rewritten {
    /// The place in the source; of a filter that was written for a comparison, that of the comparison.
    pub(super) fn place(&self, range: Range<usize>) -> Range<usize> {
        let (start, end) = (self.place_of(range.start), self.place_of(range.end));
        let written = self
            .text
            .get(range.start..)
            .is_some_and(|text| text.starts_with(FILTER));
        let around = self
            .comparisons
            .iter()
            .filter(|place| written && place.contains(&start));
        around.min_by_key(|place| place.len()).cloned().unwrap_or(start..end)
    }

    fn place_of(&self, at: usize) -> usize {
        let known = self.alike.partition_point(|(text, _)| *text <= at);
        let (text, source) = self.alike[..known].last().copied().unwrap_or((0, 0));
        let next = self.alike.get(known).map_or(usize::MAX, |(_, next)| *next);
        (source + (at - text)).min(next)
    }
}

/// A change of the source: this range of it becomes that text.
pub(super) type Edit = (Range<usize>, String);

/// Writes comparisons as filters, and beside what may grow what is to be charged for it; none if there is neither. The
/// source must be one that minijinja compiles.
pub(super) fn rewrite(source: &str, codes: &[Code<'_>]) -> Option<Rewritten> {
    let (mut edits, mut comparisons) = (Vec::new(), Vec::new());
    for code in codes {
        // Before what ends at the same place: a comparison's bracket closes after its last operand.
        weigh::add(code, &mut edits);
        rewrite_code(code, &mut edits, &mut comparisons);
    }
    if edits.is_empty() {
        return None;
    }
    edits.sort_by_key(|(range, _)| (range.start, range.end));
    let mut text = String::with_capacity(source.len() + edits.iter().map(|(_, text)| text.len()).sum::<usize>());
    let mut alike = Vec::with_capacity(edits.len());
    let mut at = 0;
    for (range, replacement) in edits {
        text.push_str(&source[at..range.start]);
        text.push_str(&replacement);
        at = range.end;
        alike.push((text.len(), at));
    }
    text.push_str(&source[at..]);
    Some(Rewritten {
        text,
        alike,
        comparisons,
    })
}

/// A bracket's inside, or all of an expression, up to where it is read.
#[derive(Default)]
struct Level {
    /// Where the operand that is being read starts: none before its first token.
    operand: Option<usize>,
    /// Where the first operand of a comparison starts, if one is being read.
    comparison: Option<usize>,
}

impl Level {
    /// Ends the operand, and with it the comparison.
    fn end(&mut self, at: usize, edits: &mut Vec<Edit>, comparisons: &mut Vec<Range<usize>>) {
        if let Some(start) = self.comparison.take() {
            comparisons.push(start..at);
            edits.push((start..start, "(".into()));
            edits.push((at..at, ")".into()));
        }
        self.operand = None;
    }
}

fn rewrite_code(code: &Code<'_>, edits: &mut Vec<Edit>, comparisons: &mut Vec<Range<usize>>) {
    let Some(first) = weigh::expression_start(code) else {
        return;
    };
    let mut levels = vec![Level::default()];
    let mut last_end = 0;
    let mut index = first;
    while let Some(token) = code.tokens.get(index) {
        let Some(level) = levels.last_mut() else { return };
        let fresh = level.operand.is_none();
        match joint(code, index, fresh) {
            Joint::Boundary => level.end(last_end, edits, comparisons),
            Joint::Comparison(length) => {
                let start = level.operand.unwrap_or(token.start);
                let sign: Vec<_> = code.tokens[index..index + length]
                    .iter()
                    .map(|token| token.text)
                    .collect();
                let sign = sign.join(" ");
                let end = code.tokens[index + length - 1].end();
                let written = match level.comparison {
                    None => format!(")|{FILTER}('{sign}',"),
                    Some(_) => format!(",'{sign}',"),
                };
                level.comparison.get_or_insert(start);
                edits.push((token.start..end, written));
                last_end = end;
                index += length;
                continue;
            }
            Joint::Operand => {
                level.operand.get_or_insert(token.start);
                if token.kind == Kind::Open {
                    levels.push(Level::default());
                }
            }
            Joint::Close => {
                level.end(last_end, edits, comparisons);
                levels.pop();
            }
        }
        last_end = token.end();
        index += 1;
    }
    if let Some(level) = levels.last_mut() {
        level.end(last_end, edits, comparisons);
    }
}

/// What a token does to the operands of comparisons.
enum Joint {
    /// It belongs to one.
    Operand,
    /// It binds less than a comparison.
    Boundary,
    /// It is a comparison, of so many tokens.
    Comparison(usize),
    /// It closes a bracket.
    Close,
}

fn joint(code: &Code<'_>, index: usize, fresh: bool) -> Joint {
    let token: &Token<'_> = &code.tokens[index];
    match token.kind {
        Kind::Close => Joint::Close,
        Kind::Sign => match token.text {
            "==" | "!=" | "<" | "<=" | ">" | ">=" => Joint::Comparison(1),
            "," | ":" | "=" => Joint::Boundary,
            // Before an argument that is spread.
            "*" | "**" if fresh => Joint::Boundary,
            _ => Joint::Operand,
        },
        Kind::Word if code.is_operator(index) => {
            let after_is = code.before(index).is_some_and(|before| before.is("is"));
            let after_operand = code.before(index).is_some_and(Token::ends_operand) && !fresh;
            let next_in = code.tokens.get(index + 1).is_some_and(|next| next.is("in"));
            match token.text {
                "and" | "or" | "if" | "else" => Joint::Boundary,
                // `is in`, `is not` and `is not in` are tests.
                "in" | "not" if after_is => Joint::Operand,
                "in" if code.before(index).is_some_and(|before| before.is("not")) => Joint::Operand,
                "in" => Joint::Comparison(1),
                "not" if after_operand && next_in => Joint::Comparison(2),
                "not" => Joint::Boundary,
                _ => Joint::Operand,
            }
        }
        _ => Joint::Operand,
    }
}
