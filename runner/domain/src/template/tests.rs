use serde_json::json;

use crate::Faults;

use super::*;

pub(super) fn scope() -> Scope {
    let at = |text: &str| text.parse::<Time>().unwrap();
    Scope::new(Given {
        logical_time: at("2026-11-20T18:00:00Z"),
        data_interval: (at("2026-11-19T18:00:00Z"), at("2026-11-20T18:00:00Z")),
        zone: None,
        run: json!({"id": "r1", "group": "g", "trigger": "schedule", "key": null}),
        upstream: BTreeMap::from([
            (
                "extract".parse().unwrap(),
                Arc::new(json!({"rows": 3, "list": [1, 2], "big": 18446744073709551615u64})),
            ),
            ("my-task".parse().unwrap(), Arc::new(json!("text"))),
            ("заказ".parse().unwrap(), Arc::new(json!(1.5))),
        ]),
        item: Some((json!({"region": "eu"}), 2, 5)),
    })
    .with_params(
        json!({"table": "orders", "n": 2, "deep": {"a": [null, true]}})
            .as_object()
            .unwrap(),
    )
}

pub(super) fn check(template: &str, expect: Result<Value, &str>) {
    let got = Templates::new().render(template, &scope()).map_err(|error| error.0);
    match (&got, &expect) {
        (Err(got), Err(expect)) => assert!(got.contains(expect), "{template}: {got}"),
        (Ok(got), Ok(expect)) => assert_eq!(got, expect, "{template}"),
        _ => panic!("{template}: {got:?}, not {expect:?}"),
    }
}

#[test]
fn plain_strings_stay() {
    check("", Ok(json!("")));
    check("100% { sure }", Ok(json!("100% { sure }")));
}

#[test]
fn one_expression_keeps_its_type() {
    check("{{ params.n }}", Ok(json!(2)));
    check("{{params.n + 1}}", Ok(json!(3)));
    check("{{- params.n -}}", Ok(json!(2)));
    check("{{ params.n / 2 }}", Ok(json!(1.0)));
    check("{{ params.deep }}", Ok(json!({"a": [null, true]})));
    check("{{ params.deep.a[0] }}", Ok(Value::Null));
    check("{{ upstream.extract.rows }}", Ok(json!(3)));
    check("{{ upstream['extract'].list }}", Ok(json!([1, 2])));
    check("{{ upstream[\"my-task\"] }}", Ok(json!("text")));
    check("{{ upstream.заказ }}", Ok(json!(1.5)));
    check("{{ upstream.extract.big }}", Ok(json!(18446744073709551615u64)));
    check("{{ {'a': params.n, 'b': [true]} }}", Ok(json!({"a": 2, "b": [true]})));
    check("{{ 9007199254740993 }}", Ok(json!(9007199254740993i64)));
    check("{{ params.missing | default(7) }}", Ok(json!(7)));
    check("{{ range(3) }}", Ok(json!([0, 1, 2])));
    check("{{ '}}' }}", Ok(json!("}}")));
    check("{{ item.region }}", Ok(json!("eu")));
    check("{{ index }}", Ok(json!(2)));
    check("{{ count }}", Ok(json!(5)));
    check("{{ run.key }}", Ok(Value::Null));
}

#[test]
fn anything_else_is_text() {
    check("{{ params.n }} rows", Ok(json!("2 rows")));
    check("{{ params.n }}{{ params.n }}", Ok(json!("22")));
    check(" {{ params.n }}", Ok(json!(" 2")));
    check("{% if params.n > 1 %}many{% else %}one{% endif %}", Ok(json!("many")));
    check(
        "{% for x in upstream.extract.list %}{{ x }},{% endfor %}",
        Ok(json!("1,2,")),
    );
    check("{% set t = params.table %}{{ t }}s", Ok(json!("orderss")));
    check("{# nothing #}x", Ok(json!("x")));
    check("<{{ '<&>' }}>", Ok(json!("<<&>>")));
}

#[test]
fn times() {
    check("{{ logical_time }}", Ok(json!("2026-11-20T18:00:00.000000Z")));
    check(
        "at {{ data_interval.start }}",
        Ok(json!("at 2026-11-19T18:00:00.000000Z")),
    );
    check("{{ logical_time | date }}", Ok(json!("2026-11-20")));
    check("{{ logical_time | date('%Y%m%d') }}", Ok(json!("20261120")));
    check("{{ logical_time | date(tz='Asia/Shanghai') }}", Ok(json!("2026-11-21")));
    check("{{ logical_time | date('%H', tz='Asia/Shanghai') }}", Ok(json!("02")));
    check("{{ logical_time | datetime }}", Ok(json!("2026-11-20T18:00:00+00:00")));
    check("{{ '2026-01-02T03:04:05Z' | date }}", Ok(json!("2026-01-02")));
    check("{{ logical_time | minus('1d') | date }}", Ok(json!("2026-11-19")));
    check("{{ logical_time.hour }}", Ok(json!(18)));
    check("{{ logical_time > data_interval.start }}", Ok(json!(true)));
    check(
        "{{ {'at': logical_time} | tojson }}",
        Ok(json!("{\"at\":\"2026-11-20T18:00:00.000000Z\"}")),
    );
    check(
        "{{ logical_time | date('%Q') }}",
        Err("`%Q` is not a valid date format"),
    );
    check(
        "{{ logical_time | date(tz='Mars') }}",
        Err("`Mars` is not a valid IANA time zone"),
    );
    check("{{ 'x' | date }}", Err("`x` is not a valid time"));
    let shanghai = Scope::new(Given {
        logical_time: "2026-11-20T18:00:00Z".parse().unwrap(),
        zone: Some(Tz::Asia__Shanghai),
        ..Given::default()
    });
    let got = Templates::new()
        .render("{{ logical_time | date }} {{ logical_time }}", &shanghai)
        .unwrap();
    assert_eq!(got, json!("2026-11-21 2026-11-20T18:00:00.000000Z"));
}

#[test]
fn what_is_not_defined_is_named() {
    check("{{ nothing }}", Err("`nothing` is not defined"));
    check("{{ params.nothing }}", Err("`params.nothing` is not defined"));
    check("{{ params.nothing.more }}", Err("params.nothing"));
    check("x {{ params.nothing }}", Err("`params.nothing` is not defined"));
    check("{{ upstream.nobody.rows }}", Err("upstream.nobody"));
    check("{{ params.nothing + 1 }}", Err("` is not defined"));
    check("{{ 2 - params.nothing }}", Err("` is not defined"));
    check("{{ 'a' ~ params.nothing }}", Err("is not defined"));
    check("{{ params.n | nofilter }}", Err("nofilter"));
    check("{{ params. }}", Err("at `"));
}

#[test]
fn bounded() {
    check("{% for i in range(100000) %}{{ i }}{% endfor %}", Err("steps"));
    check("{{ 'x' * 2000000 }}", Err("larger than"));
    check("x{{ 'x' * 2000000 }}", Err("larger than"));
    check(
        "{{ ('a' * 1000000) | replace('a', 'b' * 1000000) }}",
        Err("larger than"),
    );
    check("{{ '%999999999d' | format(1) }}", Err("must be below 1000"));
    check("{{ 5 is divisibleby 0 }}", Ok(json!(false)));
    check("{{ 15 is divisibleby 5 }}", Ok(json!(true)));
    check("{% macro m() %}{% endmacro %}", Err("`{% macro %}` is not available"));
    check("{% include 'x' %}", Err("`{% include %}` is not available"));
    check("{% set x %}a{% endset %}", Err("`set` needs a value"));
    check(&format!("{{{{ {} }}}}", vec!["1"; 100].join("+")), Ok(json!(100)));
    check(
        &format!("{{{{ {} 1 {} }}}}", "(".repeat(1000), ")".repeat(1000)),
        Err("at `"),
    );
    check(
        &format!("{{{{ 1 }}}}{}", "x".repeat(TEMPLATE_MAX_BYTES)),
        Err("at most"),
    );
}

#[test]
fn conditions() {
    let when = |text: &str| Templates::new().eval_condition(text, &scope()).map_err(|error| error.0);
    assert_eq!(when("params.n > 1"), Ok(true));
    assert_eq!(when("{{ params.n > 5 }}"), Ok(false));
    assert_eq!(
        when("upstream.extract.rows == 3 and params.table == 'orders'"),
        Ok(true)
    );
    assert_eq!(when("params.missing is defined"), Ok(false));
    assert_eq!(when("''"), Ok(false));
    assert!(
        when("params.missing")
            .unwrap_err()
            .contains("`params.missing` is not defined")
    );
    assert!(Templates::new().check_condition("params.n >", &any_task).is_err());
    assert!(Templates::new().check_condition("", &any_task).is_err());
}

#[test]
fn check_says_where() {
    let templates = Templates::new();
    assert_eq!(templates.check("{{ params.x | date }}", &any_task), Ok(()));
    assert_eq!(templates.check("plain", &any_task), Ok(()));
    assert!(templates.check("{{ params.x", &any_task).is_err());
    assert!(
        templates
            .check("line\n{{ 1 + }}", &any_task)
            .unwrap_err()
            .contains("(line 2)")
    );
    assert!(templates.check("{% if x %}", &any_task).is_err());
    let mut faults = Faults::default();
    templates.check_value(
        &json!({"a": ["{{ x }}", "{{ }"], "b/c": "{% endif %}"}),
        "/params",
        &any_task,
        &mut faults,
    );
    let pointers: Vec<_> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
    assert_eq!(pointers, ["/params/a/1", "/params/b~1c"]);
}

#[test]
fn instants_compare_with_texts() {
    let when = |text: &str| Templates::new().eval_condition(text, &scope()).map_err(|error| error.0);
    for (condition, expect) in [
        ("logical_time < '2030'", true),
        ("logical_time > '2030'", false),
        ("logical_time >= '2026-11'", true),
        ("logical_time < '2026-11-21' and logical_time >= '2026-11-20'", true),
        ("logical_time == '2026-11-20T18:00:00.000000Z'", true),
        ("logical_time == '2026-11-20T18:00:00Z'", true),
        ("logical_time == '2026-11-21T02:00:00+08:00'", true),
        ("logical_time != '2026-11-20T18:00:00Z'", false),
        ("'2026-11-20 18:00' == logical_time", true),
        ("'2013' <= data_interval.start", true),
        (
            "'2026' < data_interval.start < logical_time <= data_interval.end < '2027'",
            true,
        ),
        ("data_interval.end == logical_time", true),
        ("data_interval.start == logical_time", false),
        ("not logical_time < '2030' or false", false),
        ("not (logical_time < '2030')", false),
        ("logical_time | plus('1d') > '2026-11-21'", true),
        ("logical_time == 1795197600", true),
        ("logical_time == none", false),
        ("logical_time != none", true),
        ("logical_time is lt('2030')", true),
        ("logical_time is not eq '2026-11-20T18:00:00Z'", false),
        ("logical_time in ['2025-01-01', '2026-11-20T18:00:00Z']", true),
        ("logical_time not in ['2025-01-01']", true),
        (
            "['2025-01-01', '2030-01-01'] | select('>', logical_time) | list == ['2030-01-01']",
            true,
        ),
        ("(logical_time | date) == '2026-11-20'", true),
        ("{'a': logical_time > '2030'}.a", false),
        ("[1, logical_time < '2030'][1]", true),
        ("1 if logical_time < '2030' else 0", true),
        ("range(1 if logical_time<'2030'else 0) | length == 1", true),
    ] {
        assert_eq!(when(condition), Ok(expect), "{condition}");
    }
    for (condition, expect) in [
        ("logical_time < 'soon'", "`soon` is not a valid time"),
        ("logical_time == ''", "is not a valid time"),
        ("logical_time == true", "cannot be compared with a value of type bool"),
        (
            "logical_time < params.deep",
            "cannot be compared with a value of type map",
        ),
        ("1 == 1 and logical_time < 'soon'", "at `logical_time < 'soon'`"),
        ("params.missing.deeper > 1", "params.missing"),
        ("params.missing > 1 or true", "`params.missing > 1` is not defined"),
    ] {
        let error = when(condition).expect_err(condition);
        assert!(error.contains(expect), "{condition}: {error}");
    }
    check(
        "{% if logical_time < '2030' %}early{% else %}late{% endif %}",
        Ok(json!("early")),
    );
    check(
        "{% for x in [1, 2, 3] if x in [2, 3] and x < 3 %}{{ x == 2 }}{% endfor %}",
        Ok(json!("True")),
    );
    check("{% set x = logical_time<'2030' %}{{ x }}", Ok(json!("True")));
    check(
        "{{ logical_time }}: {{ logical_time > 'x' }}",
        Err("at `logical_time > 'x'`"),
    );
    let shanghai = Scope::new(Given {
        logical_time: "2026-11-20T18:00:00Z".parse().unwrap(),
        zone: Some(Tz::Asia__Shanghai),
        ..Given::default()
    });
    assert_eq!(
        Templates::new().eval_condition("logical_time >= '2026-11-21'", &shanghai),
        Ok(true)
    );
}

/// Comparisons without instants give minijinja's results.
#[test]
fn other_comparisons_stay() {
    let templates = Templates::new();
    for expression in [
        "1 < 2",
        "1 < 2 < 3",
        "1 < 3 < 2",
        "3 > 2 == true",
        "1 == 1.0",
        "'a' < 'b'",
        "'3' < 4",
        "not 1 == 2",
        "not not 1 < 2 and 3 >= 3 or false",
        "1 in [1, 2]",
        "3 not in [1, 2]",
        "'a' in 'abc'",
        "1 in '123'",
        "'n' in params",
        "'n' not in params",
        "params.deep == {'a': [none, true]}",
        "[1, 2] == [1, 2]",
        "[1] < [2]",
        "1 + 1 == 2",
        "-1 < 1",
        "2 * 3 > 5 - 1",
        "params.n == 2 if params.n > 1 else params.n < 1",
        "dict(a=1 < 2, b=[3 > 4])",
        "dict(**{'a': 1 == 1})",
        "range(*[1, 3 if 1 < 2 else 0])",
        "params.n is defined and params.n != 3",
        "params.n is not none == true",
        "params.n is in [2]",
        "params.n is not in [2]",
        "params.n is eq 2",
        "2 is not lt 1",
        "none == none",
        "none < 1",
        "1 in none",
        "{'a': 1 < 2, 'b': 'x' in ['x']}",
        "[1, 2, 3][1 < 2:2 < 1]",
        "(1, 2) < (1, 3)",
        "'a' ~ 'b' == 'ab'",
        "'x' | upper == 'X'",
        "params.table | length > 3 and params.table != ''",
        "(1 < 2) < (2 < 3)",
        "1 < 2 if 2 < 1 else 3 < 4",
        "[1 == 1, 2 == 3,]",
        "'<' == '<'",
        "1 <2==true",
        "upstream.extract.rows>=3",
        "3 == 1 == params.missing",
        "params.missing is defined == false",
        "[params.n == 1][0] in [false]",
        "{'and': 1}.and == 1",
        "[1, 2] | select('>', 1) | list == [2]",
        "'a' 'b' == 'ab'",
    ] {
        let plain = templates
            .env
            .compile_expression(expression)
            .unwrap()
            .eval(scope().context());
        match (plain, templates.evaluate(expression, &scope())) {
            (Ok(plain), Ok(ours)) => assert_eq!(plain, ours, "{expression}"),
            (Err(_), Err(_)) => {}
            (plain, ours) => panic!("{expression}: {ours:?}, not {plain:?}"),
        }
        assert_eq!(templates.check_condition(expression, &any_task), Ok(()), "{expression}");
    }
}

proptest::proptest! {
    /// All that minijinja compiles also compiles after our rewrite, and without instants the meaning is the same.
    #[test]
    fn rewriting_keeps_the_meaning(words in proptest::collection::vec(proptest::sample::select(vec![
        "1", "2", "0x1f", "1.5", "'a'", "''", "params.n", "params", "none", "true", "(", ")", "[", "]", "{", "}", ",",
        ":", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "not", "and", "or", "if", "else", "is", "is not",
        "defined", "odd", "eq", "in", "+", "-", "*", "**", "~", "|", "string", "list", "abs", "default", "range", "dict",
        "a", "=", ".", "1 < 2", "1 == 1", "(1)", "[1, 2]", "{'a': 1}", "1 in [1]", "x[1:2]",
    ]), 1..12), spaced: bool) {
        let expression = words.join(if spaced { " " } else { "" });
        let templates = Templates::new();
        if let Ok(code) = guard::check_expression(&expression)
            && let Ok(plain) = templates.env.compile_expression(&expression)
            && let Some(rewritten) = rewrite::rewrite(&expression, std::slice::from_ref(&code))
        {
            let ours = templates.env.compile_expression(&rewritten.text).expect(&expression);
            match (plain.eval(scope().context()), ours.eval(scope().context())) {
                (Ok(plain), Ok(ours)) => assert_eq!(plain, ours, "{expression}: {}", rewritten.text),
                // All parts of a chain are evaluated.
                (Ok(_), Err(_)) if rewritten.text.contains(",'") => {}
                (Ok(_), Err(error)) if error.detail().is_some_and(|detail| detail.contains("`in` does not work")) => {}
                (Ok(plain), Err(error)) => panic!("{expression}: {plain:?}, {error:?}"),
                (Err(_), _) => {}
            }
        }
        for template in [format!("{{{{ {expression} }}}}"), format!("{{% set y = {expression} %}}{{{{ y }}}}"),
            format!("{{% if {expression} %}}{{% endif %}}"), format!("{{% for y in {expression} %}}{{% endfor %}}")] {
            if let Ok(codes) = guard::check(&template)
                && templates.env.template_from_str(&template).is_ok()
                && let Some(rewritten) = rewrite::rewrite(&template, &codes)
            {
                templates.env.template_from_str(&rewritten.text).expect(&rewritten.text);
            }
        }
    }
}

#[test]
fn names_that_are_not_there_are_refused() {
    let templates = Templates::new();
    for (template, expect) in [
        ("{{ nofn() }}", "there is no function `nofn`, at `nofn()"),
        ("{{ 1 | nofilter }}", "there is no filter `nofilter`"),
        ("{{ 1 | upper | nofilter(2) }}", "there is no filter `nofilter`"),
        ("{{ 1 is notest }}", "there is no test `notest`"),
        ("{{ 1 is not notest }}", "there is no test `notest`"),
        ("{{ params.a | map('nofilter') }}", "there is no filter `nofilter`"),
        ("{{ params.a | select('notest') }}", "there is no test `notest`"),
        (
            "x\n{% if params.a | nofilter %}{% endif %}",
            "there is no filter `nofilter` (line 2)",
        ),
        ("{{ 1 | _compare('<', 2) }}", "there is no filter `_compare`"),
        ("{{ debug() }}", "there is no function `debug`"),
        ("{{ params(1) }}", "there is no function `params`"),
        ("{{ upstream.b.rows }}", "not b, at `upstream.b.rows"),
        ("{{ upstream['b'] }}", "not b"),
        ("{{ 1 if upstream[\"b\"] else 2 }}", "not b"),
        ("{{ upstream[''] }}", "there is no task ``"),
    ] {
        let tasks = |name: &Name| {
            if name == "a" {
                Ok(())
            } else {
                Err(format!("not {name}"))
            }
        };
        let detail = templates.check(template, &tasks).expect_err(template);
        assert!(detail.contains(expect), "{template}: {detail}");
    }
    let only_a = |name: &Name| {
        if name == "a" {
            Ok(())
        } else {
            Err(format!("not {name}"))
        }
    };
    for template in [
        "{{ upstream.a }} {{ upstream['a'].b }} {{ upstream[params.x] }} {{ upstream.items() }} {{ upstream | tojson }}",
        "{{ params.upstream.b }} {{ 'upstream.b' }} {# upstream.b #}{% raw %}{{ upstream.b | no }}{% endraw %}",
        "{% for f in [range] %}{{ f(2) }}{% endfor %}",
        "{{ params.a.nofn() }} {{ 'x'.upper() }} {{ (1)|default(2) }}",
        "{{ params.a is defined and (params.b) }} {{ 1 if (2) else (3) }} {{ not (1) }} {{ 1 in (1, 2) }}",
        "{{ params.a is divisibleby 2 }} {{ params.a is not divisibleby(2) }}",
        "{% if(1) %}{% elif(2) %}{% endif %}",
        "{{ params.is }} {{ {'is': 1}.is }}",
        "{{ params.a | map('upper') | join }} {{ params.a | map(attribute='x') }} {{ params.a | select }}",
    ] {
        assert_eq!(templates.check(template, &only_a), Ok(()), "{template}");
    }
    assert!(
        templates
            .check_condition("upstream.b > 1", &only_a)
            .unwrap_err()
            .contains("not b")
    );
    assert!(
        templates
            .check_condition("{{ 1 | no }}", &only_a)
            .unwrap_err()
            .contains("no filter `no`")
    );
}

#[test]
fn whole_values() {
    let templates = Templates::new();
    let value = json!({"a": ["{{ params.n }}", 1, null], "b": {"c": "t {{ item.region }}"}});
    assert_eq!(
        templates.render_value(&value, &scope()).unwrap(),
        json!({"a": [2, 1, null], "b": {"c": "t eu"}})
    );
    let fault = templates
        .render_value(&json!({"a": ["{{ no }}"]}), &scope())
        .unwrap_err();
    assert_eq!(fault.pointer, "/a/0");
    assert!(contains_template(&value));
    assert!(!contains_template(&json!({"a": ["x", {"b": 1}]})));
    let mut found = Vec::new();
    template_pointers(&value, "", &mut found);
    assert_eq!(found, ["/a/0", "/b/c"]);
}

#[test]
fn names_of_upstream() {
    let check = |template: &str, names: &[&str], all: bool| {
        let mut got = UpstreamNames::default();
        got.add(template);
        let names: BTreeSet<Name> = names.iter().map(|name| name.parse().unwrap()).collect();
        assert_eq!(got, UpstreamNames { names, all }, "{template}");
    };
    check("{{ upstream.extract.rows }}", &["extract"], false);
    check(
        "{{ upstream['my-task'] }} {{ upstream[\"b\"].c }}",
        &["b", "my-task"],
        false,
    );
    check("{{ upstream[params.which] }}", &[], true);
    check("{{ upstream | tojson }}", &[], true);
    check("{{ params.upstream }} {{ upstreams }} {{ my_upstream.x }}", &[], false);
    check("upstream.a.b > 1", &["a"], false);
    check("upstream.a == '{{'", &["a"], false);
    check("{{ upstream.items() }}", &[], true);
    check("{{ upstream.заказ }} {{ 'upstream.x' }}", &["заказ"], false);
    check("https://example.com/{{ upstream.a }}?q='", &["a"], false);
}

#[test]
fn names_of_params() {
    let check = |value: Value, when: &str, names: &[&str]| {
        let mut got = BTreeSet::new();
        add_params(&value, &mut got);
        add_params_of_condition(when, &mut got);
        let names: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(got, names, "{value} {when}");
    };
    check(
        json!({"a": ["{{ params.who }}", "params.not"], "b": {"c": "{{ params['my-day'] | date }}"}}),
        "true",
        &["my-day", "who"],
    );
    check(
        json!("{% for params in item %}{{ params.x }}{% endfor %}"),
        "params.n > 1",
        &["n"],
    );
    check(
        json!("{{ upstream.params.x }} {{ 'params.y' }} {{ params | tojson }} {{ broken"),
        "{{ params.ok }}",
        &["ok"],
    );
}

/// What another program sends as data stays what it is, whatever it looks like.
#[test]
fn what_is_verbatim_is_rendered_as_it_was() {
    for text in [
        "plain",
        "{{ 1+1 }}",
        "{# c #}x",
        "{{ logical_time }}",
        "a{{b",
        "{{",
        "}}",
        "{% if %}",
        "{%- raw %}{{ x }}{% endraw %}",
        "\"{{\" }} '{{'",
        "\\{{\\",
        "{{\n\r\t\u{0}\u{8}\u{c}\u{7f}",
        "{{ 日本 \u{1f600} \u{2028}",
        "{{ \"\\u0041\" }}",
        "{{ {{ }} }}",
    ] {
        let Value::String(written) = verbatim(json!(text)) else {
            panic!("{text:?}");
        };
        if !is_template(text) {
            assert_eq!(written, text);
        }
        check(&written, Ok(json!(text)));
    }
    let deep = json!({"{{ a }}": ["{{ 1 }}", {"b": "{{"}], "n": [1, null, true]});
    let written = json!({"{{ a }}": [r#"{{ "{{ 1 }}" }}"#, {"b": r#"{{ "{{" }}"#}], "n": [1, null, true]});
    assert_eq!(verbatim(deep), written);
}
