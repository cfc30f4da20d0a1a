//! The memory of templates that were made to take memory: the peak of a separate process, which renders nothing else.

#![allow(clippy::too_many_lines, reason = "a test tells its story from begin to end")]

use std::collections::BTreeMap;
use std::sync::Arc;

use heddle_domain::template::{Given, Scope, TEMPLATE_MAX_BYTES, Templates};
use serde_json::{Value, json};

/// How much all of them together may add to the process' peak: inputs, twice the largest result, and the intermediate
/// values of a rendering, with what an allocator keeps.
const GROWTH_MAX_KIB: u64 = 128 * 1024;

/// The most that this process has ever held, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the process' status");
    let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("its peak");
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("a number")
}

fn scope() -> Scope {
    let text = "some words, \"quoted\" <b> ß\n".repeat(20_000);
    let rows: Vec<Value> = (0..2_000)
        .map(|n| json!({"id": n, "name": format!("row {n}")}))
        .collect();
    let output = json!({"text": text, "rows": rows});
    let upstream = BTreeMap::from([("extract".parse().expect("a name"), Arc::new(output))]);
    let params = json!({"text": text, "n": 1_000_000, "small": 3, "list": [1, 2, 3],
        "ids": (0..1_000).map(|n| n + 999).map(|n| if n == 999 { n } else { n + 10_000 }).collect::<Vec<_>>()});
    Scope::new(Given {
        upstream,
        ..Given::default()
    })
    .with_params(params.as_object().expect("an object"))
}

/// As many of these as a template holds, between two others.
fn many(before: &str, piece: &str, after: &str) -> String {
    let count = (TEMPLATE_MAX_BYTES - before.len() - after.len()) / piece.len();
    format!("{before}{}{after}", piece.repeat(count))
}

/// Templates that would take more than they may.
fn refused() -> Vec<String> {
    let mut all: Vec<String> = [
        "{{ 'a' * 100000000 }}",
        "{{ 100000000 * 'a' }}",
        "{{ ('a' * 100000000)|length }}",
        "{{ 'a' * 10000 * 10000 }}",
        "{{ 10000 * 10000 * 'a' }}",
        "{{ 'a' * (10000 * 10000) }}",
        "{{ 10 ** 8 * 'a' }}",
        "{{ 'a' * 10 ** 8 }}",
        "{{ 1000000000 // 10 * 'a' }}",
        "{{ ('a' * 10000)|upper * 10000 }}",
        "{{ ('a' ~ 'b') * params.n * params.n }}",
        "{{ -params.n * -params.n * 'a' }}",
        "{{ 'a' * 1e8|int }}",
        "{% for i in range(100) %}{% set x = 'a' * 1000000 %}{% endfor %}",
        "{% if 'a' * 100000000 %}1{% endif %}",
        "{% if ('a' * 1000000)|length > 1 and ('a' * 100000000)|length %}1{% endif %}",
        "{{ [1] * 100000000 }}",
        "{{ ([1] * 100000000)|length }}",
        "{{ ([1] * 100000000)|list|length }}",
        "{{ ([params.text] * 10000)|join|length }}",
        "{{ ('a' * 1000000)|list|length }}",
        "{{ ('a' * 1000000)|reverse|list|length }}",
        "{{ range(*(range(100000)|list + range(100000)|list * 8)) }}",
        "{{ dict(**(upstream.extract)).rows * 1000000 }}",
        "{{ [params.text, params.text]|map('list')|list|length }}",
        "{{ range(1000)|map('replace', '1', 'b' * 100000)|list|length }}",
        "{{ ([upstream.extract.rows] * 1000)|sum(start=[])|length }}",
        "{{ ([params.text] * 1000)|sum(start='')|length }}",
        "{{ (('%(a)s' * 10000)|format({'a': params.text}))|length }}",
        "{{ ('a' * 1000000)|split('')|length }}",
        "{{ ('a,' * 500000)|split(',')|length + ('a\n' * 500000)|lines|length }}",
        "{{ (('\"' * 1000000)|e ~ ('\"' * 1000000)|e ~ ('\"' * 1000000)|e)|length }}",
        "{{ (range(100000)|list + range(100000)|list + range(100000)|list)|length }}",
        "{{ range(100000)|map('string')|map('upper')|map('lower')|map('title')|list|sort|list|length }}",
        "{% for i in range(1000) %}{{ range(100000)|list|length }}{% endfor %}",
        "{% set x = ['a'] %}{% set y = ['a'] %}{% for i in range(2) %}{% endfor %}{{ [x] * 3000000 == 1 }}",
        "{{ ('%999s' * 2000)|format(*range(2000)) }}",
        "{{ '%99999999s'|format('a') }}",
        "{{ ('a\n' * 100000)|indent(100) }}",
        "{{ ('a' * 100000)|replace('', 'b' * 100) }}",
        "{{ ('a' * 100000)|replace('a', 'b' * 1000) }}",
        "{{ range(100000)|join('a' * 1000) }}",
        "{{ [*range(100000), *range(100000)] }}",
        "{% for i in range(1000) %}{% set x = params.text ~ params.text %}{% endfor %}",
        "{% for i in range(1000) %}{{ (params.text|upper)[:1] }}{% endfor %}",
        "{% for i in range(1000) %}{{ [params.text[1:], params.text[1:]]|length }}{% endfor %}",
        "{% for i in range(30000) %}{{ upstream.extract.rows == [] }}{% endfor %}",
        "{% for i in range(10000) %}{{ upstream.extract.rows|sort|length }}{% endfor %}",
        "{% for i in range(10000) %}{{ upstream.extract.rows|tojson|length }}{% endfor %}",
    ]
    .map(str::to_owned)
    .into();
    for step in ["[x, x]", "{'a': x, 'b': x}", "(x, x)", "x|chain(x)|list", "[x, x]|list"] {
        let doubled = format!("{{% set x = {step} %}}").repeat(if step.starts_with('x') { 40 } else { 60 });
        // All ways of reading a whole value, and only the first few of other steps.
        let ends = if step == "[x, x]" { usize::MAX } else { 2 };
        for end in [
            "{{ x }}",
            "{{ x == x }}",
            "{{ x|tojson }}",
            "{{ (x ~ 'a')|length }}",
            "{{ x|string|length }}",
            "{{ x|pprint }}",
            "{{ [x, x]|sort|length }}",
            "{{ [x, x]|unique|length }}",
            "{{ [x, x]|max|length }}",
            "{{ {x: 1, [x]: 2}|length }}",
            "{{ {'a': 1}[x]|default(1) }}",
            "{{ x in 'text' }}",
            "{% for i in [1, 2] %}{{ loop.changed(x) }}{% endfor %}",
        ]
        .into_iter()
        .take(ends)
        {
            all.push(format!("{{% set x = ['a'] %}}{doubled}{end}"));
        }
    }
    for piece in [
        "params.text|upper,",
        "params.text[:],",
        "params.text[::-1],",
        "params.text|list,",
        "params.text|reverse,",
        "params.text|title,",
        "params.text|replace('a','b'),",
        "upstream.extract.rows|list,",
        "upstream.extract.rows|sort,",
        "upstream.extract.rows|map(attribute='id')|list,",
        "upstream.extract.rows|selectattr('id')|list,",
        "upstream.extract.rows|tojson,",
        "params.text|split('o'),",
        "params.text|pprint,",
        "params.text ~ '',",
    ] {
        all.push(many("{{ [", piece, "]|length }}"));
    }
    all
}

/// Templates that take what anybody needs.
fn taken() -> Vec<(&'static str, Value)> {
    vec![
        ("{{ '=' * 20 }}", json!("=".repeat(20))),
        ("{{ '-' * params.small ~ '>' }}", json!("--->")),
        ("{{ params.small * 24 * 3600 }}", json!(259_200)),
        ("{{ 2 * 3 + 4 * 5 }}", json!(26)),
        ("{{ 7 // 2 * 2 }}", json!(6)),
        ("{{ 6 // 2 * 'a' }}", json!("aaa")),
        ("{{ range(*[1, 3])|list }}", json!([1, 2])),
        ("{{ [1] in 'a [1]' }}", json!(true)),
        ("{{ 2 ** 3 * 2 }}", json!(16)),
        ("{{ -2 * 3 }}", json!(-6)),
        ("{{ 2 * -3 }}", json!(-6)),
        ("{{ 2.5 * 2 }}", json!(5.0)),
        ("{{ 1.5e+1 + 1e-1 * 10 }}", json!(16.0)),
        ("{{ params.list + [4] }}", json!([1, 2, 3, 4])),
        ("{{ ([0] * 3)|length }}", json!(3)),
        ("{{ 'a' ~ 1 + 2 }}", Value::Null),
        ("{{ ('a' ~ 'b')|upper ~ 'c'|upper }}", json!("ABC")),
        ("{{ 1 + 2 > 2 * 1 and 'a' ~ 'b' == 'ab' }}", json!(true)),
        ("{{ 'b' in 'a' ~ 'b' }}", json!(true)),
        ("{{ params.list|map('string')|join('+') }}", json!("1+2+3")),
        ("{{ 'a b'|title|replace(' ', '-')|lower }}", json!("a-b")),
        ("{{ 'abcdef'[1:3] ~ [1, 2, 3][1:]|length }}", json!("bc2")),
        ("{{ 'a,b'|split(',')|last }}", json!("b")),
        ("{{ params.small is odd and (params.small + 1) is even }}", json!(true)),
        ("{{ params.list[0] * params.list[-1] + params.list|sum }}", json!(9)),
        ("{{ {'a': 1 + 1, 'b': [2 * 2]}|tojson }}", json!("{\"a\":2,\"b\":[4]}")),
        ("{{ (params.text|upper)|length > 1000 }}", json!(true)),
        ("{{ upstream.extract.rows|map(attribute='id')|sum }}", json!(1_999_000)),
        (
            "{{ upstream.extract.rows|selectattr('id', 'gt', 1990)|map(attribute='name')|first }}",
            json!("row 1991"),
        ),
        (
            "{{ upstream.extract.rows|selectattr('id', 'in', range(1000)|list)|list|length }}",
            json!(1_000),
        ),
        (
            "{% for row in upstream.extract.rows %}{% if row.id in params.ids %}{{ row.id }},{% endif %}{% endfor %}",
            json!("999,"),
        ),
        (
            "{% set n = 0 %}{% for row in upstream.extract.rows %}{% if row.id * 2 + 1 == 5 %}{{ row.name ~ '!' }}{% endif %}{% endfor %}",
            json!("row 2!"),
        ),
        (
            "{% for row in upstream.extract.rows if row.id < 2 %}{{ loop.index }}/{{ upstream.extract.rows|length }} {% endfor %}",
            json!("1/2000 2/2000 "),
        ),
    ]
}

#[test]
fn no_template_takes_more_than_its_budget() {
    let templates = Templates::new();
    let scope = scope();
    for (template, expected) in taken() {
        let given = templates.render(template, &scope);
        match given {
            Ok(given) if !expected.is_null() => assert_eq!(given, expected, "{template}"),
            Err(_) if expected.is_null() => {}
            other => panic!("{template}: {other:?}"),
        }
    }
    let before = peak_kib();
    let mut wrong = Vec::new();
    for template in refused() {
        let given = templates.render(&template, &scope);
        let checked = templates.check(&template, &heddle_domain::template::any_task);
        let grown = peak_kib() - before;
        if given.is_ok() || grown > GROWTH_MAX_KIB {
            let shown: String = template.chars().take(200).collect();
            wrong.push(format!(
                "{shown}: {grown} KiB more, checked {checked:?}, rendered: {}",
                given.is_ok()
            ));
        }
    }
    println!("the peak grew by {} KiB", peak_kib() - before);
    assert!(wrong.is_empty(), "{wrong:#?}");
}
