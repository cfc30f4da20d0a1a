//! After an apply there is no difference: objects of every kind, with every field in all the ways of writing it, chosen
//! at random (with the same seed each time).

use heddle_tests::World;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};

use crate::cli::{DONE, ends};

/// How many of each kind.
const EACH: usize = 40;

type Made = BoxedStrategy<Value>;

fn of(all: Value) -> Made {
    let all = all.as_array().cloned().unwrap_or_default();
    prop::sample::select(all).boxed()
}

/// An object of some of these fields, whichever.
fn some(fields: Vec<(&'static str, Made)>) -> Made {
    fields
        .into_iter()
        .map(|(name, value)| {
            prop::option::weighted(0.4, value)
                .prop_map(move |value| (name, value))
                .boxed()
        })
        .collect::<Vec<_>>()
        .prop_map(|fields| {
            let given = fields
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)));
            Value::Object(given.collect())
        })
        .boxed()
}

/// The fields of both.
fn with(one: Made, other: Made) -> Made {
    (one, other)
        .prop_map(|(mut one, other)| {
            if let (Some(fields), Value::Object(more)) = (one.as_object_mut(), other) {
                fields.extend(more);
            }
            one
        })
        .boxed()
}

/// By up to so many names.
fn named(prefix: &'static str, count: std::ops::Range<usize>, one: Made) -> Made {
    prop::collection::vec(one, count)
        .prop_map(move |all| {
            let all = all.into_iter().enumerate();
            Value::Object(all.map(|(n, one)| (format!("{prefix}{n}"), one)).collect())
        })
        .boxed()
}

fn span() -> Made {
    of(json!([
        "90s", "1m30s", "5400s", "90m", "1d", "24h", "86400s", "1h30m", "1d1h", "7200s"
    ]))
}

fn zone() -> Made {
    of(json!(["UTC", "Asia/Shanghai", "Europe/Berlin"]))
}

fn description() -> Made {
    of(json!(["", "As it comes", "订单 – 每天\n🌧 \"quoted\": yes"]))
}

fn moment() -> Made {
    of(json!([
        "2030-01-31",
        "2030-01-31T10:00:00Z",
        "2030-01-31T10:00:00.5+08:00",
        "2030-01-31T10:00:00.000001Z"
    ]))
}

fn params() -> Made {
    of(json!([{}, {"a": 1}, {"a": 1.50, "b": [null, {"c": 1e3}], "no": "NO"}, {"t": "{{ logical_time | date }}"}]))
}

fn retry() -> Made {
    let every = some(vec![("jitter", of(json!([0.1, "10s"])))]);
    let one = of(json!([
        {"strategy": "fixed", "retries": 3, "interval": "60s"},
        {"strategy": "exponential", "retries": 2, "interval": "10s", "max_interval": "120s"},
        {"strategy": "fixed_then_exponential", "retries": 5, "interval": "10s", "fixed": 2},
        {"strategy": "forever", "interval": "3600s"},
        {"strategy": "daily", "per_day": 2, "days": 3, "interval": "10m", "next_day_at": "06:30"},
    ]));
    with(one, every)
}

fn notify() -> Made {
    of(json!([
        {"on": ["failed"], "channels": ["hook"]},
        {"on": ["recovered", "failed", "failed"], "channels": ["mail", "hook"], "to": ["a@example.com"]},
    ]))
}

fn schedule() -> Made {
    let when = of(json!([
        {"cron": "0 2 * * *"}, {"cron": " 0  2 * * mon-FRI "}, {"cron": "0 0 2 L-3 * ? *"},
        {"cron": "0 0 12 ? * 2#1", "cron_dialect": "quartz"}, {"every": "5400s"}, {"every": "1d", "anchor": "2020-01-01"},
        {"after": "600s"}, {"once": {"at": "2091-05-05T05:05:05+05:00"}}, {"daily": {"every_days": 2, "at": "8:00"}},
        {"daily": {"at": "23:59:30"}},
    ]));
    let more = some(vec![
        ("timezone", zone()),
        ("misfire", of(json!(["once", "skip", "all"]))),
        ("grace", span()),
        ("initial_delay", span()),
        ("ends_at", of(json!(["2096-02-29", "2096-02-29T00:00:00-03:00"]))),
        ("enabled", of(json!([true, false]))),
    ]);
    with(when, more)
}

fn task() -> Made {
    let executor = of(json!([
        {"script": "hello"}, {"script": "hello@1"}, {"script": "hello", "memory": "128MiB"},
        {"script": "hello", "memory": "131072KiB"}, {"script": "hello", "memory": 67_108_864},
        {"script": "hello@1", "memory": "64MiB"}, {"queue": "q"}, {"queue": "q", "tags": ["b", "a"]},
        {"http": {"url": "https://example.com"}},
        {"http": {"url": "https://example.com/{{ run.id }}", "method": "get", "headers": {"X-A": "1"}, "body": {"a": [1]}}},
        {"audience": "gid_team"}, {"audience": {"audience": "uid_ann", "dispatch_times": "each", "max_hold": "600s"}},
        {"audience": {"audience": "gid_team", "dispatch_times": 3, "mode": "repeat", "template": "order"}},
        {"group": "small"}, {"query": {"connection": "warehouse", "sql": "SELECT 1"}},
        {"query": {"connection": "warehouse", "sql": "DELETE FROM t WHERE a = $1", "params": ["{{ run.id }}"], "mode": "execute"}},
    ]));
    let more = some(vec![
        ("description", description()),
        (
            "trigger_rule",
            of(json!([
                "all_success",
                "all_done",
                "none_failed",
                "always",
                "any_failed"
            ])),
        ),
        ("when", of(json!(["true", "params.a == 1", "{{ params.a }}"]))),
        ("params", params()),
        ("retry", retry()),
        ("max_lost", of(json!([0, 5, 7]))),
        ("timeout", of(json!(["never", "3600s", "1h", "90s"]))),
        ("allow_failure", of(json!([true, false]))),
        ("pools", of(json!([{}, {"db": 1}, {"db": 2}]))),
        ("max_output", of(json!(["256KiB", 262_144, "1KiB"]))),
        ("max_log", of(json!(["1024KiB", "1MiB", 1_000]))),
        ("notify", notify()),
    ]);
    let map = prop_oneof![
        3 => of(json!([{}])),
        1 => of(json!([{"for_each": [1, "x", {"a": null}]}, {"for_each": "{{ params.list }}", "concurrency": 2}, {"shards": 4, "fail_fast": true}])),
    ];
    with(with(executor, more), map.boxed())
}

fn group() -> Made {
    let more = some(vec![
        ("description", description()),
        ("category", of(json!(["bi", "raw"]))),
        ("timezone", zone()),
        ("history", of(json!([true, false]))),
        (
            "depends_on",
            of(json!([[], ["small"], [{"group": "small"}], [{"group": "small", "need": "interval"}]])),
        ),
        ("overlap", of(json!(["queue", "skip", "allow", "cancel_previous"]))),
        ("max_active_runs", of(json!([1, 20]))),
        ("max_waiting", of(json!([0, 100, 7]))),
        ("on_failure", of(json!(["continue", "stop"]))),
        ("deadline", span()),
        ("deadline_action", of(json!(["alert", "cancel"]))),
        ("priority", of(json!([0, -10, 1_000]))),
        ("schedules", named("s", 0..3, schedule())),
        ("params", params()),
        ("labels", of(json!([{}, {"team": "bi", "": "x"}, {"团队": "数据"}]))),
        (
            "retention",
            of(json!([{"runs": "720h"}, {"runs": "30d", "states": {"failed": "2160h"}, "logs": "168h"}])),
        ),
        ("notify", notify()),
        ("enabled", of(json!([true, false]))),
    ]);
    (more, named("t", 1..4, task()))
        .prop_map(|(mut group, tasks)| {
            group["tasks"] = tasks;
            if let Some(labels) = group.get_mut("labels").and_then(Value::as_object_mut) {
                labels.remove("");
            }
            group
        })
        .boxed()
}

fn topic() -> Made {
    with(
        of(json!([{"queue": "letters"}])),
        some(vec![
            ("description", description()),
            ("category", of(json!(["bi"]))),
            ("granularity", of(json!(["day", "instant"]))),
            ("timezone", zone()),
            ("batch", of(json!([1, 500, 1_000]))),
            ("concurrency", of(json!([1, 16]))),
            ("retry", retry()),
            ("retention", span()),
        ]),
    )
}

fn offer() -> Vec<(&'static str, Made)> {
    let more = some(vec![
        ("template", of(json!(["order"]))),
        ("params", of(json!([{}, {"n": 1}]))),
        ("priority", of(json!([0, 5]))),
        ("max_hold", span()),
        ("return_failed", of(json!([true, false]))),
        ("enabled", of(json!([true, false]))),
    ]);
    let to = of(json!([
        {"audience": "gid_team"}, {"audience": "uid_ann", "dispatch_times": 1, "mode": "single"},
        {"audience": "gid_team", "dispatch_times": "each"}, {"audience": "uid_ann", "dispatch_times": 6, "mode": "repeat"},
    ]));
    let all = with(to, more);
    let once = with(of(json!([{}])), some(vec![("starts_at", moment())]));
    let interval = with(
        of(json!([{"every": "60m"}, {"every": "90s"}])),
        some(vec![("anchor", moment())]),
    );
    let daily = with(
        of(json!([{"at": "8:00"}, {"at": "08:00:30", "every_days": 3}])),
        some(vec![("timezone", zone()), ("starts_at", moment())]),
    );
    vec![
        ("once", with(once, all.clone())),
        ("interval", with(interval, all.clone())),
        ("daily", with(daily, all)),
    ]
}

/// What the others name.
const FIRST: &str = r#"
{"kind": "category", "name": "bi"}
---
{"kind": "category", "name": "raw"}
---
{"kind": "template", "name": "order", "spec": {"type": "object", "properties": {"n": {"type": "integer"}}}}
---
{"kind": "connection", "name": "warehouse", "url": "postgres://u:p@127.0.0.1:1/d", "categories": ["bi", "raw"]}
---
{"kind": "pool", "name": "db", "slots": 2}
---
{"kind": "webhook", "name": "hook", "url": "https://example.com/hook"}
---
{"kind": "email", "name": "mail", "smtp": {"host": "127.0.0.1", "port": 25, "tls": "none"}, "from": "a@example.com", "to": ["b@example.com"]}
---
{"kind": "group", "name": "small", "tasks": {"t": {"queue": "q"}}}
"#;

/// A group may query only with what its category is granted, and needs a list of its own for templates of items.
fn fitting(mut group: Value) -> Value {
    let queries = |group: &Value| {
        let tasks = group["tasks"].as_object().into_iter().flatten();
        tasks.into_iter().any(|(_, task)| task.get("query").is_some())
    };
    if queries(&group) && group.get("category").is_none() {
        group["category"] = json!("bi");
    }
    group
}

#[tokio::test]
async fn what_was_applied_is_no_difference_however_it_is_written() {
    let (world, node) = World::with_node().await;
    let mut runner = TestRunner::deterministic();
    let mut documents = vec![FIRST.to_owned()];
    let mut make = |kind: &str, made: Made| {
        for number in 0..EACH {
            let tree = made.new_tree(&mut runner).unwrap();
            let mut document = fitting_of(kind, tree.current());
            document.insert("kind".into(), json!(kind));
            document.insert("name".into(), json!(format!("{kind}-{number}")));
            documents.push(Value::Object(document).to_string());
        }
    };
    make("group", group());
    make("topic", topic());
    for (kind, made) in offer() {
        make(kind, made);
    }
    let file = world.directory().join("all.yaml");
    std::fs::write(&file, documents.join("\n---\n")).unwrap();
    let path = file.to_string_lossy().into_owned();
    ends(&node, DONE, &["apply", "-f", &path]);
    let differs = ends(&node, DONE, &["diff", "-f", &path]);
    assert_eq!(differs.trim(), "", "{differs}");
    let copy = world.directory().join("copy.yaml");
    std::fs::write(&copy, ends(&node, DONE, &["export"])).unwrap();
    ends(&node, DONE, &["diff", "-f", &copy.to_string_lossy()]);
}

fn fitting_of(kind: &str, made: Value) -> Map<String, Value> {
    let made = if kind == "group" { fitting(made) } else { made };
    match made {
        Value::Object(fields) => fields,
        other => panic!("{other} is no object"),
    }
}
