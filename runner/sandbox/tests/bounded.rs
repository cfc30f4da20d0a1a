//! Input from strangers is computed with bounds: attacks end, and ordinary input still works.

use crate::guests::Bench;
use heddle_domain::schema::Schema;
use heddle_domain::spec::parse_yaml_strict;
use heddle_domain::template::{Given, Scope, Templates, any_task};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// This many levels, each of which names the next one twice: 1.4 KB for twenty.
fn doubled(levels: usize, keyword: &str) -> Value {
    let mut all = Map::new();
    for level in 0..levels {
        let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
        all.insert(format!("d{level}"), json!({"allOf": [next, next]}));
    }
    all.insert(format!("d{levels}"), json!({"type": "object"}));
    json!({"$ref": "#/$defs/d0", keyword: false, "$defs": all})
}

/// Nested alternatives, which double when a value is checked.
fn alternatives(levels: usize) -> Value {
    let mut all = Map::new();
    for level in 0..levels {
        let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
        let one = |key: &str| json!({"allOf": [next, {"required": [key]}]});
        all.insert(format!("d{level}"), json!({"anyOf": [one("q"), one("r")]}));
    }
    all.insert(format!("d{levels}"), json!({"type": "object"}));
    json!({"$ref": "#/$defs/d0", "$defs": all})
}

fn is_given_up(said: &str) -> bool {
    said.contains("was stopped: it needs more than") && (said.contains("processor time") || said.contains("memory"))
}

/// Whether a schema, or its check of a value, is refused; in any case it has ended.
fn ends(schema: &Value, value: &Value) {
    let said = match Schema::compile(schema) {
        Ok(compiled) => compiled.check(value).to_string(),
        Err(fault) => fault.to_string(),
    };
    assert!(is_given_up(&said), "{said}");
    // Accepted by an earlier build: it is not compiled until a value comes, and that ends too.
    let kept = Schema::of_kept(schema, "script `s@1`").check(value);
    assert!(is_given_up(&kept.to_string()), "{kept}");
}

pub async fn schemas_that_multiply_end(_: Bench) {
    let value = json!({"a": 1});
    for keyword in ["unevaluatedProperties", "unevaluatedItems"] {
        let list = json!([1]);
        let value = if keyword.ends_with("Items") { &list } else { &value };
        ends(&doubled(40, keyword), value);
    }
    // Whether twenty are too many depends on the machine; what counts is that they end, and that the node still works.
    let small = doubled(20, "unevaluatedProperties");
    assert!(small.to_string().len() < 1_500, "{}", small.to_string().len());
    let _ = Schema::compile(&small).map(|schema| schema.check(&value));
    ends(&alternatives(60), &value);
    // Cycles: whatever the validator makes of them, they end.
    let around =
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"});
    for schema in [json!({"$ref": "#"}), around] {
        let _ = Schema::compile(&schema).map(|schema| schema.check(&value));
    }
    // Backtracking in patterns, 20,000 times.
    let back = json!({"items": {"pattern": "^(a+)+\\1$"}});
    let texts = json!(vec![format!("{}b", "a".repeat(40)); 20_000]);
    let said = Schema::compile(&back).unwrap().check(&texts);
    assert!(!said.is_empty());
}

/// Work that was stopped a few times is not tried again; other work continues: much of it while the first attacks are under
/// way, and some after each of them.
pub async fn others_go_on_beside_an_attack(_: Bench) {
    // More than the runtime has threads, all with different keys.
    const ATTACKS: usize = 10;
    const ROUNDS: usize = 51;
    let light = Schema::compile(&json!({"properties": {"n": {"type": "integer"}}})).unwrap();
    let (begun, ended) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
    let mut attacks = JoinSet::new();
    for number in 0..ATTACKS {
        let (begun, ended) = (begun.clone(), ended.clone());
        attacks.spawn(async move {
            begun.notify_one();
            ends(&doubled(40 + number, "unevaluatedProperties"), &json!({}));
            ended.fetch_add(1, Ordering::SeqCst);
        });
    }
    begun.notified().await;
    for _ in 0..ROUNDS {
        assert!(light.check(&json!({"n": 1})).is_empty());
    }
    let over = ended.load(Ordering::SeqCst);
    assert!(over < ATTACKS, "{ROUNDS} rounds took longer than all attacks");
    while let Some(attack) = attacks.join_next().await {
        attack.unwrap();
        assert!(light.check(&json!({"n": 1})).is_empty());
    }
}

pub async fn schemas_of_people_work_in_the_child(_: Bench) {
    let tree = json!({
        "$id": "https://example.com/tree", "$dynamicAnchor": "node", "type": "object",
        "properties": {"data": true, "children": {"type": "array", "items": {"$dynamicRef": "#node"}}},
    });
    let strict = json!({
        "$id": "https://example.com/strict-tree", "$dynamicAnchor": "node",
        "$ref": "tree", "unevaluatedProperties": false, "$defs": {"tree": tree},
    });
    let strict = Schema::compile(&strict).unwrap();
    assert!(strict.check(&json!({"children": [{"data": 1}]})).is_empty());
    let said = strict.check(&json!({"children": [{"data": 1}, {"daat": 2}]}));
    assert_eq!(said.0.len(), 1, "{said}");
    assert!(
        said.0[0].pointer.starts_with("/children/1") || said.0[0].pointer.is_empty(),
        "{said}"
    );
    // A wide table with many wrong lines: as many errors are reported as usual.
    let rows = Schema::compile(&json!({"uniqueItems": true, "items": {"type": "integer", "minimum": 3}})).unwrap();
    let said = rows.check(&json!((0..20_000).collect::<Vec<_>>()));
    assert_eq!(said.0.len(), 3, "{said}");
    assert_eq!(said.0[1].pointer, "/1");
    let mut whole = json!([7.0, 8.5]);
    rows.write_integers(&mut whole);
    assert_eq!(whole.to_string(), "[7,8.5]");
    for (schema, expect) in [
        (json!({"$ref": "#/nowhere"}), "does not exist in this schema"),
        (json!({"type": "nope"}), "/type: "),
        (json!({"properties": {"a": {"pattern": "("}}}), "pattern"),
    ] {
        let said = Schema::compile(&schema).unwrap_err().to_string();
        assert!(said.contains(expect), "{said}");
    }
}

/// YAML that expands to more than it contains, in each possible way.
pub async fn yaml_bombs_end(_: Bench) {
    let nine = |n: usize| format!("[{}]", vec![format!("*a{n}"); 9].join(", "));
    let laughs = (0..30).fold("a0: &a0 [x]\n".to_owned(), |yaml, n| {
        format!("{yaml}a{}: &a{} {}\n", n + 1, n + 1, nine(n))
    });
    let wide = format!(
        "a: &a [{}]\nb: [{}]\n",
        vec!["x"; 10_000].join(","),
        vec!["*a"; 40_000].join(",")
    );
    let text = format!(
        "a: &a \"{}\"\nb: [{}]\n",
        "x".repeat(100_000),
        vec!["*a"; 40_000].join(",")
    );
    let merged = (0..30).fold("a0: &a0 {x: 1}\n".to_owned(), |yaml, n| {
        format!("{yaml}a{}: &a{} {{<<: {}, y{n}: {}}}\n", n + 1, n + 1, nine(n), nine(n))
    });
    for bomb in [laughs, wide, text, merged, "[".repeat(100_000), "a: ".repeat(100_000)] {
        let shown: String = bomb.chars().take(40).collect();
        assert!(parse_yaml_strict(&bomb).is_err(), "{shown}");
    }
    let fine = "base: &base {x: 1}\nother: {<<: *base, y: [1.5, ~, true]}\n";
    let expect = json!({"base": {"x": 1}, "other": {"x": 1, "y": [1.5, null, true]}});
    assert_eq!(parse_yaml_strict(fine).unwrap(), expect);
    let rows: String = (0..2_000).map(|n| format!("- {{id: {n}}}\n")).collect();
    assert_eq!(parse_yaml_strict(&rows).unwrap().as_array().unwrap().len(), 2_000);
}

/// A text gets time for its length: a group may have 10,000 tasks, in YAML too.
pub async fn large_yaml_is_read(_: Bench) {
    let tasks: String = (0..10_000)
        .map(|n| {
            format!(
                "  t{n}: {{ queue: q, params: {{ n: {n} }}, timeout: 5m, priority: 3, allow_failure: true, \
                 retry: {{ strategy: fixed, retries: 3, interval: 10s }}, notify: {{ on: [failed], channels: [ops] }} }}\n"
            )
        })
        .collect();
    let read = parse_yaml_strict(&format!("tasks:\n{tasks}")).unwrap();
    assert_eq!(read["tasks"].as_object().unwrap().len(), 10_000);
    assert_eq!(read["tasks"]["t9999"]["params"], json!({"n": 9_999}));
}

/// Sixty items of a map with an impossible template: the first ones end the others, and other templates continue.
pub async fn templates_that_take_long_end(_: Bench) {
    let run = |id: &str, item: u32| {
        let rows: Vec<Value> = (0..3_000)
            .map(|n| json!({"id": n, "name": format!("row {n}")}))
            .collect();
        Scope::new(Given {
            run: json!({"id": id}),
            upstream: BTreeMap::from([("extract".parse().unwrap(), Arc::new(json!({"rows": rows})))]),
            item: Some((json!(item), item, 60)),
            ..Given::default()
        })
    };
    let templates = Templates::new();
    let expensive = format!(
        "{{{{ [{}] | length }}}}",
        vec!["(upstream.extract.rows | groupby('name') | sort | unique | length)"; 100].join(", ")
    );
    for item in 0..60 {
        let said = templates.render(&expensive, &run("one", item)).unwrap_err().0;
        assert!(is_given_up(&said), "{said}");
    }
    let beside = "{% for row in upstream.extract.rows if row.id < 2 %}{{ row.name }},{% endfor %}{{ item }}";
    for id in ["one", "two"] {
        let given = templates.render(beside, &run(id, 7));
        assert_eq!(given.unwrap(), json!("row 0,row 1,7"));
    }
    let scope = run("two", 7);
    assert!(
        templates
            .eval_condition("upstream.extract.rows | map(attribute='id') | max > index", &scope)
            .unwrap()
    );
    let said = templates
        .render("{{ range(3) | list | length + upstream.load.x }}", &scope)
        .unwrap_err();
    assert!(said.0.contains("is not defined"), "{said}");
}

/// The most memory that this process has ever held, in KiB.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Templates that need more than a child has.
fn too_much() -> Vec<String> {
    let doubled = |name: &str| {
        let step = format!("{{% set {name} = [{name}, {name}] %}}");
        format!("{{% set {name} = ['a'] %}}{}", step.repeat(50))
    };
    let (x, y) = (doubled("x"), doubled("y"));
    let mut all: Vec<String> = [
        "{{ ('a' * 100000000) | length }}",
        "{{ 'a' * 100000000 * 100000000 }}",
        "{% if ('a' * 1000000) | length > 1 and ('a' * 100000000) | length %}1{% endif %}",
        "{{ ('a' * 10000000) | list | length }}",
        "{{ ([params.text] * 10000) | join | length }}",
        "{{ ([params.text] * 10000) | sum(start='') | length }}",
        "{{ range(100000) | join('a' * 10000) | length }}",
        "{{ range(100000) | map('replace', '1', 'b' * 100000) | list | length }}",
    ]
    .map(str::to_owned)
    .into();
    all.push(format!("{{% set x = 'x' %}}{}", "{% set x = x ~ x %}".repeat(40)));
    for end in [
        "{{ (x ~ 'a') | length }}",
        "{{ x | string | length }}",
        "{{ x | pprint | length }}",
    ] {
        all.push(format!("{x}{end}"));
    }
    all.push(format!("{x}{y}{{{{ x == y }}}}"));
    all
}

/// Templates that were made to take much: each ends in a child, with a reason, and the node is as it was.
pub async fn templates_that_grow_end(_: Bench) {
    let text = "some words, \"quoted\" <b> ß\n".repeat(800);
    let rows: Vec<Value> = (0..300).map(|n| json!({"id": n, "name": format!("row {n}")})).collect();
    let params = json!({"text": text, "rows": rows, "n": 2});
    let scope = Scope::new(Given::default()).with_params(params.as_object().unwrap());
    let templates = Templates::new();
    let before = peak_kib();
    for template in too_much() {
        let shown: String = template.chars().take(80).collect();
        assert_eq!(templates.check(&template, &any_task), Ok(()), "{shown}");
        let said = templates.render(&template, &scope).expect_err(&shown).0;
        assert!(is_given_up(&said), "{shown}: {said}");
    }
    let said = templates
        .eval_condition("('a' * 100000000) | length > 1", &scope)
        .unwrap_err();
    assert!(is_given_up(&said.0), "{said}");
    // Whether these are too much depends on the machine. They end, and the reason is never one of ours.
    for template in [
        "{{ [1] * 100000000 }}",
        "{{ ([1] * 100000000) | list | length }}",
        "{{ ('%(a)s' * 10000) | format({'a': params.text}) | length }}",
        "{{ ('%999s' * 2000) | format(*range(2000)) }}",
        "{{ '%99999999s' | format('a') }}",
        "{{ params.text | trim(params.text) | length }}",
        "{{ (params.text * 10) | replace('', params.text) }}",
        "{{ (params.text * 40) | indent(100) }}",
        "{{ [*range(100000), *range(100000)] | length }}",
        "{{ range(9223372036854775807, -9223372036854775807, -1) }}",
        "{% for i in range(5000) %}{{ params.text | upper | length }}{% endfor %}",
        "{% for i in range(5000) %}{{ params.rows | sort | length }}{% endfor %}",
        "{% for i in range(1000) %}{{ range(100000) | list | length }}{% endfor %}",
        "{% for i in range(30000) %}{{ params.rows == [] }}{% endfor %}",
    ] {
        if let Err(said) = templates.render(template, &scope) {
            assert!(!said.0.contains("try again"), "{template}: {said}");
        }
    }
    let grown = peak_kib() - before;
    assert!(grown < 32 * 1024, "the node's own memory grew by {grown} KiB");
    let given = templates.render("{% for i in range(3) %}{{ i * params.n }},{% endfor %}", &scope);
    assert_eq!(given.unwrap(), json!("0,2,4,"));
}
