//! Operators and filters, compared with those of a minijinja without a budget.

use serde_json::json;

use super::tests::{check, scope};
use super::*;

/// Operators that are written as filters give what minijinja's own give.
#[test]
fn operators_stay() {
    let templates = Templates::new();
    let mut plain_env = Environment::new();
    plain_env.set_undefined_behavior(UndefinedBehavior::Strict);
    for expression in [
        "1 + 2 - 3 + 4",
        "1 - 2 - 3",
        "10 - 2 + 3 * 4 - 5 // 2",
        "2 * 3 + 4 * 5",
        "2 + 3 * 4 ** 2 * 2",
        "7 / 2 * 2",
        "7 // 2 * 2 % 4",
        "6 // 2 * 'ab'",
        "'ab' * 2 ** 2",
        "'ab' * (6 // 2) ~ 'c'",
        "10 % 4 * 'ab' * 2",
        "2 * 'ab' * 2",
        "'ab' * 6 // 2",
        "'a' * 'b'",
        "'a' * 1.5",
        "'a' * -1",
        "-2 * 3",
        "2 * -3",
        "2 - -3 + 1",
        "- 2 ** 2 * 2",
        "2.5 * 2",
        "1.5e+1 + 1e-1 * 10",
        "1e+2 + 1",
        "[1, 2] + [3]",
        "(1, 2) + (3,)",
        "[1] * 3",
        "3 * [1, 2]",
        "([1] * 2 + [2])[1:]",
        "[1, 2] * [3]",
        "'a' + 'b' + 'c'",
        "'a' + 1",
        "'a' ~ 1 + 2",
        "1 ~ 2 ~ none ~ true",
        "1 + 2 ~ 3 * 4",
        "'a' ~ 'b' * 2 ~ ('c' ~ 'd') * 2",
        "1 + 1 == 2 and 'a' ~ 'b' != 'ba' or 3 * 3 < 9",
        "(1 + 2) * 3 in [9, 3 * 4]",
        "params.n * 2 if params.n + 1 > 2 else params.n - 1 + 2",
        "params.n is odd + 1",
        "(params.n is odd) + 1",
        "params.n is eq -1 + 3",
        "params.n is divisibleby 2 * 3",
        "not 1 + 1",
        "[1 + 1, 2 * 2, 'a' ~ 'b'][0 + 1]",
        "{'a' ~ 'b': 1 + 2, 1 + 1: 2, 'c': {'d' * 2: 3}}",
        "{'a': 1 if true else 2, 'b' if true else 'c': 3}",
        "{params.table: params.n}",
        "params['ta' ~ 'ble']",
        "params[params.missing]",
        "params.deep.a[0 + 1]",
        "params.deep['a'][1:]",
        "params.deep['a'][1:][0]",
        "params.table[1:3] ~ params.table[::-1]",
        "params.table[params.n - 1:]",
        "-params.deep.a[1:]",
        "range(*[1, 2 + 1])|list",
        "range(*[1, 3] if 1 < 2 else [2])|list",
        "range(1, *[2 + 3,])|list",
        "dict(**{'a' ~ 'b': 1 + 1})",
        "dict({'x': 1}, y=2 * 3, **{'z': 3})",
        "params.deep.a|length + 1",
        "[1, 2, 3]|sum * 2",
        "[1, 2, 3]|sum(start=10)",
        "[[1], [2]]|sum(start=[])",
        "['a', 'b']|sum(start='')",
        "['a']|sum",
        "[{'a': 1}, {'a': 2}]|sum(attribute='a') + [{'a': 1}]|map(attribute='a')|first",
        "[3, 1, 2]|sort|join(',') ~ [3, 1]|min ~ ['a', 'B']|sort|last",
        "'a b'|title|replace(' ', '-')|lower|upper|trim|capitalize",
        "'a,b,,c'|split(',')|length + 'a b'|split|length + 'a b c'|split(' ', 1)|length",
        "'a\nb'|lines",
        "'abc'|list",
        "'abc'|reverse ~ [1, 2]|reverse",
        "[1]|chain([2], (3,))|list",
        "[1, 2]|zip('ab')|list",
        "[1, 2, 3, 4]|select('even')|list + [1, 2]|reject('odd')|list",
        "[{'a': 1, 'b': 2}]|selectattr('a', 'eq', 1)|list",
        "[{'a': 1}, {'a': 2}, {'a': 1}]|groupby('a')|length",
        "['a', 'b']|map('upper')|list",
        "['a', 'b']|map('replace', 'a', 'c')|list",
        "[1, 1, 2]|unique|list",
        "{'b': 1, 'a': 2}|dictsort",
        "{'b': 1, 'a': 2}|items|list",
        "'<a>'|e ~ '<'|escape",
        "'%s-%03d'|format('a', 5) + '%(x)s'|format(x=1)",
        "'12'|int + '1.5'|float",
        "'Ab' is lower",
        "'ab' is startingwith 'a'",
        "[1] in '[1] and more'",
        "params.missing|default('x') ~ 'y'",
        "params.missing ~ 'y'",
        "params.missing + 1",
        "1 + params.missing",
        "params.missing|upper",
        "params.deep|attr('a')|length",
        "none + 1",
        "true + 1",
        "logical_time + 1",
        "loop",
    ] {
        let plain = plain_env
            .compile_expression(expression)
            .and_then(|plain| plain.eval(scope().context(Arc::default())));
        let ours = templates.evaluate(expression, &scope(), Arc::default());
        match (plain, ours) {
            (Ok(plain), Ok(ours)) => {
                assert_eq!(
                    format!("{plain:?} {}", plain.kind()),
                    format!("{ours:?} {}", ours.kind()),
                    "{expression}"
                );
            }
            (Ok(plain), Err(error)) if plain.is_undefined() => assert!(error.0.contains("not defined"), "{expression}"),
            (Err(_), Err(_)) => {}
            (plain, ours) => panic!("{expression}: {plain:?} {ours:?}"),
        }
    }
    check(
        "{% for x in [1 + 1, 2 * 2] if x + 1 > 3 %}{% set y = x * 2 + 1 %}{{ y ~ '!' }}{% if y % 2 + 0 %}{{ -y + 1 }}{% endif %}{% endfor %}",
        Ok(json!("9!-8")),
    );
    check("{{ params.n + 'a' }}", Err("at `params.n + 'a'`"));
    check(
        "x {{ [1, params.n * params.deep] }}",
        Err("at `params.n * params.deep`"),
    );
}
