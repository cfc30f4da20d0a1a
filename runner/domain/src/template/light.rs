//! Templates that are rendered in this process: short ones that only name values, compare them and change one at a
//! time, and that have little to read. Any other is rendered with bounds from outside ([`crate::bounded`]), which costs
//! it some hundred microseconds. If in doubt, a word is not on the list.
//!
//! In a light template nothing is evaluated twice (no statement, no loop), and each mention of an input is counted. So
//! all values of an expression together begin with at most [`INPUT_MAX_BYTES`], and at most [`OPERATIONS_MAX`]
//! operations then read or change them:
//!
//! * Names, attributes and subscripts: a step into a map or a list. The keys that are compared are a part of the inputs.
//! * `and`, `or`, `not`, `if`, `-`, `/`, `//`, `%`: they look at numbers, and at whether a value is empty.
//! * `+`, `~`: they copy their operands once, and each operand is counted.
//! * `==`, `<`, `in` and the like: they read both sides once. A key is found in a map by a few comparisons. Beside an
//!   instant, each item of a list is read as a time; there are a thousand items at most.
//! * `abs`, `bool`, `count`, `default`, `d`, `first`, `last`, `length`: they give a number, a part or an argument.
//! * `int`, `float`, `round`: they read a text once, and give a number.
//! * `date`, `datetime`, `plus`, `minus`: they read a text once; the format has a bound of its own.
//! * `lower`, `upper`, `capitalize`: a letter may take three times its bytes in the other case, but not again and again.
//! * `trim`, without its argument: with one, it would compare each character with each other.
//! * `string`, and a list as an operand of `~`: a list as text escapes the texts in it. That happens once, since a light
//!   template makes no list of texts that it made: it writes lists of constants only, and no tuples.
//! * `tojson`: it escapes too, but refuses a value of more than 1 MiB as text, so that escapes of escapes end there.
//! * Tests: those in [`TESTS`] look at the kind of a value, or at a number.
//!
//! `*` makes a large value from a small one, slices and maps may be nested, and a function may be `range`: none of
//! these is light. The largest value that can be made is some megabytes long, and takes some milliseconds.
//!
//! A template that only names values is light whatever their size: it reads no more than it gives, which has a bound,
//! and to send the values elsewhere would take as long.

use serde_json::Value;

use super::scan::{Code, Kind};
use super::uses::{self, UsedField};
use super::{Scope, Source};
use crate::Name;

const MAX_BYTES: usize = 1024;
/// Filters, tests, comparisons, joins and computed subscripts of a template.
const OPERATIONS_MAX: usize = 8;
/// The size of all inputs, each as often as it is named.
const INPUT_MAX_BYTES: usize = 64 * 1024;
/// What each value counts in addition to its text: about what it takes in memory.
const VALUE_BYTES: usize = 64;
/// Filters that must not have arguments here, and those that may.
const FILTERS: [&str; 12] = [
    "abs",
    "bool",
    "capitalize",
    "count",
    "first",
    "last",
    "length",
    "lower",
    "string",
    "tojson",
    "trim",
    "upper",
];
const FILTERS_WITH_ARGUMENTS: [&str; 9] = [
    "d", "date", "datetime", "default", "float", "int", "minus", "plus", "round",
];
const TESTS: [&str; 14] = [
    "boolean",
    "defined",
    "even",
    "false",
    "float",
    "integer",
    "mapping",
    "none",
    "number",
    "odd",
    "sequence",
    "string",
    "true",
    "undefined",
];

/// Whether a template with these pieces of code is rendered in this process.
pub(super) fn is_rendered_here(template: &str, codes: &[Code<'_>], scope: &Scope) -> bool {
    is_light(template, codes) && (is_path(codes) || reads_little(codes, scope))
}

/// Whether it contains no operation that makes a large value from a small one.
pub(super) fn is_light(template: &str, codes: &[Code<'_>]) -> bool {
    let operations = |code: &Code<'_>| {
        (0..code.tokens.len())
            .filter(|index| is_operation(code, *index))
            .count()
    };
    template.len() <= MAX_BYTES
        && codes.iter().all(is_light_code)
        && codes.iter().map(operations).sum::<usize>() <= OPERATIONS_MAX
}

/// What an open bracket is around.
#[derive(PartialEq, Eq)]
enum Around {
    /// A part of an expression, or a subscript.
    Value,
    /// The arguments of a filter.
    Arguments,
    /// The items of a list.
    Constants,
}

fn is_light_code(code: &Code<'_>) -> bool {
    let mut open = Vec::new();
    !code.statement
        && code.tokens.iter().enumerate().all(|(index, token)| match token.kind {
            Kind::Close => {
                open.pop();
                true
            }
            _ if open.last() == Some(&Around::Constants) => {
                matches!(token.kind, Kind::Text | Kind::Number) || token.is(",")
            }
            Kind::Open => match around(code, index) {
                Some(around) => {
                    open.push(around);
                    true
                }
                None => false,
            },
            Kind::Sign if token.text == "," => open.last() == Some(&Around::Arguments),
            Kind::Sign => !token.text.contains('*') && token.text != ":",
            Kind::Word if is_piped(code, index) => {
                FILTERS.contains(&token.text) || FILTERS_WITH_ARGUMENTS.contains(&token.text)
            }
            Kind::Word => !code.is_test(index) || TESTS.contains(&token.text),
            Kind::Number | Kind::Text => true,
        })
}

/// What a bracket that opens here is around, if it may be in a light template.
fn around(code: &Code<'_>, index: usize) -> Option<Around> {
    let operand = code
        .before(index)
        .is_some_and(|before| before.ends_operand() && !code.is_operator(index - 1));
    match (code.tokens[index].text, operand) {
        ("(", false) | ("[", true) => Some(Around::Value),
        ("[", false) => Some(Around::Constants),
        ("(", true) => {
            let filter = &code.tokens[index - 1];
            let may = is_piped(code, index - 1) && FILTERS_WITH_ARGUMENTS.contains(&filter.text);
            may.then_some(Around::Arguments)
        }
        _ => None,
    }
}

/// Whether a token is a filter's name.
fn is_piped(code: &Code<'_>, index: usize) -> bool {
    code.before(index).is_some_and(|before| before.is("|"))
}

/// Whether a token reads or changes a whole value.
fn is_operation(code: &Code<'_>, index: usize) -> bool {
    let token = &code.tokens[index];
    match token.kind {
        Kind::Sign => matches!(token.text, "|" | "~" | "+" | "==" | "!=" | "<" | "<=" | ">" | ">="),
        Kind::Word => code.is_operator(index) && matches!(token.text, "in" | "is"),
        // A subscript that is computed.
        Kind::Open => {
            let next = code.tokens.get(index + 1);
            token.text == "[" && next.is_some_and(|next| !matches!(next.kind, Kind::Text | Kind::Number))
        }
        Kind::Number | Kind::Text | Kind::Close => false,
    }
}

/// Whether it does no more than to name values.
pub(super) fn is_path(codes: &[Code<'_>]) -> bool {
    codes.iter().all(|code| {
        !code.statement
            && code.tokens.iter().enumerate().all(|(index, token)| match token.kind {
                Kind::Sign => token.text == ".",
                Kind::Open => token.text == "[",
                Kind::Word => !code.is_operator(index),
                Kind::Number | Kind::Text | Kind::Close => true,
            })
    })
}

/// Whether all that code names, each as often as it is named, is within [`INPUT_MAX_BYTES`].
fn reads_little(codes: &[Code<'_>], scope: &Scope) -> bool {
    let mut left = Some(INPUT_MAX_BYTES);
    uses::used_fields(codes, "params", |_, field| match field {
        UsedField::Field(name) => scope.own.get(name).into_iter().for_each(|value| read(value, &mut left)),
        UsedField::Any => scope.own.values().for_each(|value| read(value, &mut left)),
    });
    match &*scope.source {
        Source::Task(given) => {
            uses::used_fields(codes, "upstream", |_, field| match field {
                UsedField::Field(name) => {
                    let output = Name::new(name).ok().and_then(|name| given.upstream.get(&name));
                    output.into_iter().for_each(|output| read(output, &mut left));
                }
                UsedField::Any => given.upstream.values().for_each(|output| read(output, &mut left)),
            });
            uses::used_fields(codes, "run", |_, _| read(&given.run, &mut left));
            if let Some((item, ..)) = &given.item {
                uses::used_fields(codes, "item", |_, _| read(item, &mut left));
            }
        }
        Source::Names(names) => {
            for (name, value) in names {
                uses::used_fields(codes, name, |_, _| read(value, &mut left));
            }
        }
    }
    left.is_some()
}

/// Takes the size of a value from what is left, and ends as soon as there is nothing left.
fn read(value: &Value, left: &mut Option<usize>) {
    let text = value.as_str().map_or(0, str::len);
    *left = left.and_then(|bytes| bytes.checked_sub(VALUE_BYTES + text));
    match value {
        _ if left.is_none() => {}
        Value::Array(items) => {
            for item in items {
                read(item, left);
                if left.is_none() {
                    return;
                }
            }
        }
        Value::Object(fields) => {
            for (key, field) in fields {
                *left = left.and_then(|bytes| bytes.checked_sub(key.len()));
                read(field, left);
                if left.is_none() {
                    return;
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde_json::json;

    use super::super::{Given, scan};
    use super::*;

    #[test]
    fn what_may_have_much_to_look_at() {
        for (template, expect) in [
            ("{{ upstream.a.rows[0]['x'] }}", false),
            ("{{ upstream.a.rows | tojson }}", true),
            ("{{ params.a | upper }}", false),
            ("upstream.a.n > 3", true),
            ("3 in upstream.a", true),
            ("params.n > 3", false),
            ("{% if params.n %}1{% endif %}", true),
            ("{{ '", true),
        ] {
            assert_eq!(super::super::may_be_heavy(template), expect, "{template}");
        }
    }

    #[test]
    fn what_is_rendered_in_this_process() {
        let many = |count| format!("{{{{ params.a{} }}}}", " | string".repeat(count));
        for (template, expect) in [
            ("{{ params.day }}", true),
            ("{{ logical_time | date }}", true),
            ("{{ upstream.extract.rows }}", true),
            (
                "from {{ data_interval.start | date('%Y', tz='UTC') }} to {{ params['x'].y[0] }}",
                true,
            ),
            (
                "{{ (upstream.a.n + 1) | default(3) if params.x == 'y' and not (1 > 2) else none }}",
                true,
            ),
            ("{{ upstream.a.n is defined and params.n is not none }}", true),
            ("{{ params.where in ['eu', 'us', 3] }}", true),
            (&many(8), true),
            (&many(9), false),
            ("{{ range(3) }}", false),
            ("{{ params.f() }}", false),
            ("{{ params.text * 3 }}", false),
            ("{{ 2 ** 8 }}", false),
            ("{{ params.list | sort }}", false),
            ("{{ params.list | map('upper') }}", false),
            ("{{ params.a | trim(params.b) }}", false),
            ("{{ params.a is divisibleby 0 }}", false),
            ("{{ params.a is divisibleby(2) }}", false),
            ("{{ {'a': 1} }}", false),
            ("{{ [[params.a] | string] | string }}", false),
            ("{{ (params.a, params.b) | string }}", false),
            ("{{ (params.a,) }}", false),
            ("{{ [['a']] }}", false),
            ("{{ params.a[1:] }}", false),
            ("{% if params.x %}1{% endif %}", false),
            ("{{ 'x' }}{% set a = 1 %}", false),
        ] {
            assert_eq!(
                is_light(template, &scan::template(template).unwrap()),
                expect,
                "{template}"
            );
        }
        let long = format!("{{{{ 1 }}}}{}", " ".repeat(MAX_BYTES));
        assert!(!is_light(&long, &scan::template(&long).unwrap()));
    }

    #[test]
    fn what_has_much_to_read_is_not_rendered_here() {
        let wide = json!(vec![json!({}); INPUT_MAX_BYTES / VALUE_BYTES]);
        let half = json!("x".repeat(INPUT_MAX_BYTES / 2));
        let upstream = BTreeMap::from([("wide".parse().unwrap(), Arc::new(wide.clone()))]);
        let given = Given {
            upstream,
            item: Some((json!({"wide": wide}), 0, 1)),
            ..Given::default()
        };
        let params = json!({"half": half, "n": 1});
        let scope = Scope::new(given).with_params(params.as_object().unwrap());
        for (template, expect) in [
            ("{{ params.half | upper }}", true),
            ("{{ params.half ~ params.half }}", false),
            ("{{ params | tojson }}{{ params.n | string }}", true),
            ("{{ params.n + 1 }}", true),
            ("{{ upstream.wide | length }}", false),
            ("{{ upstream['wide'] == 1 }}", false),
            ("{{ upstream.other | default(1) }}", true),
            ("{{ upstream | string }}", false),
            ("{{ item | string }}", false),
            ("{{ upstream.wide[0] }} {{ item.wide }}", true),
            ("{{ logical_time | date }}", true),
        ] {
            let codes = scan::template(template).unwrap();
            assert!(is_light(template, &codes), "{template}");
            assert_eq!(is_rendered_here(template, &codes, &scope), expect, "{template}");
        }
        let named = Scope::of_names(BTreeMap::from([("wide", wide)]));
        for (template, expect) in [("{{ wide | length }}", false), ("{{ other | default(1) }}", true)] {
            let codes = scan::template(template).unwrap();
            assert_eq!(is_rendered_here(template, &codes, &named), expect, "{template}");
        }
    }
}
