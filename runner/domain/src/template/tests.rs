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

fn check(template: &str, expect: Result<Value, &str>) {
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
    check("{{ logical_time | date('%Q') }}", Err("`%Q` is no date format"));
    check(
        "{{ logical_time | date(tz='Mars') }}",
        Err("`Mars` is no IANA time zone"),
    );
    check("{{ 'x' | date }}", Err("`x` is no time"));
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
    check("{{ '%999999999d' | format(1) }}", Err("widths below 1000"));
    check("{% macro m() %}{% endmacro %}", Err("there is no `{% macro %}`"));
    check("{% include 'x' %}", Err("there is no `{% include %}`"));
    check("{% set x %}a{% endset %}", Err("`set` takes a value"));
    check(
        &format!("{{% set x = 'x' %}}{}", "{% set x = x ~ x %}".repeat(40)),
        Err("more than 8"),
    );
    check(&format!("{{{{ {} }}}}", vec!["1"; 100].join("+")), Err("more than 64"));
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
        let got = upstream_names(template);
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
}
