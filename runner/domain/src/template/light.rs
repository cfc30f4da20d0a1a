//! Templates that are rendered in this process: short ones that only name values, compare them and change one at a
//! time.
//!
//! No statement, no loop, no function, no multiplication: such a template reads what it names once for each of its few
//! words, and its budget here is small. Any other is rendered with bounds from outside ([`crate::bounded`]), which
//! costs it some hundred microseconds. If in doubt, a word is not on the list.

use super::scan::{Code, Kind};

const MAX_BYTES: usize = 1024;
/// Filters that take time in proportion to the value, and give nothing that is much longer.
const FILTERS: [&str; 21] = [
    "abs",
    "bool",
    "capitalize",
    "count",
    "d",
    "date",
    "datetime",
    "default",
    "first",
    "float",
    "int",
    "last",
    "length",
    "lower",
    "minus",
    "plus",
    "round",
    "string",
    "tojson",
    "trim",
    "upper",
];

/// Whether a template with these pieces of code is rendered in this process.
pub(super) fn is_light(template: &str, codes: &[Code<'_>]) -> bool {
    template.len() <= MAX_BYTES && codes.iter().all(is_light_code)
}

fn is_light_code(code: &Code<'_>) -> bool {
    !code.statement
        && code.tokens.iter().enumerate().all(|(index, token)| match token.kind {
            Kind::Open => match code.before(index) {
                // A call of something other than a filter.
                Some(before) if token.text == "(" && before.ends_operand() && !code.is_operator(index - 1) => {
                    is_filter(code, index - 1)
                }
                _ => token.text != "{",
            },
            Kind::Sign => !token.text.contains('*'),
            Kind::Word if index > 0 && code.tokens[index - 1].is("|") => is_filter(code, index),
            Kind::Word | Kind::Number | Kind::Text | Kind::Close => true,
        })
}

/// Whether it does no more than to name values, however large they are.
pub(super) fn is_path(codes: &[Code<'_>]) -> bool {
    codes.iter().all(|code| {
        !code.statement
            && code.tokens.iter().all(|token| match token.kind {
                Kind::Sign => token.text == ".",
                Kind::Open => token.text == "[",
                Kind::Word | Kind::Number | Kind::Text | Kind::Close => true,
            })
    })
}

fn is_filter(code: &Code<'_>, index: usize) -> bool {
    let piped = code.before(index).is_some_and(|before| before.is("|"));
    piped && FILTERS.contains(&code.tokens[index].text)
}

#[cfg(test)]
mod tests {
    use super::super::scan;
    use super::*;

    #[test]
    fn what_may_have_much_to_look_at() {
        for (template, expect) in [
            ("{{ upstream.a.rows[0]['x'] }}", false),
            ("{{ upstream.a.rows | tojson }}", true),
            ("{{ params.a | upper }}", false),
            ("upstream.a.n > 3", true),
            ("params.n > 3", false),
            ("{% if params.n %}1{% endif %}", true),
            ("{{ '", true),
        ] {
            assert_eq!(super::super::may_be_heavy(template), expect, "{template}");
        }
    }

    #[test]
    fn what_is_rendered_in_this_process() {
        for (template, expect) in [
            ("{{ params.day }}", true),
            (
                "from {{ data_interval.start | date('%Y') }} to {{ params['x'].y[0] }}",
                true,
            ),
            (
                "{{ (upstream.a.n + 1) | default(3) if params.x == 'y' and not (1 > 2) else none }}",
                true,
            ),
            ("{{ upstream.a.n is defined }}", true),
            ("{{ range(3) }}", false),
            ("{{ params.f() }}", false),
            ("{{ params.text * 3 }}", false),
            ("{{ 2 ** 8 }}", false),
            ("{{ params.list | sort }}", false),
            ("{{ params.list | map('upper') }}", false),
            ("{{ {'a': 1} }}", false),
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
}
