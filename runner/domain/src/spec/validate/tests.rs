use serde_json::{Map, json};

use super::*;
use crate::spec::parse_group;

struct World;

impl Catalog for World {
    fn script(&self, name: &Name, version: Option<u32>) -> ScriptLookup {
        match (name.as_str(), version) {
            ("extract", None | Some(1)) => ScriptLookup::Found(ScriptFacts {
                params_schema: Some(json!({
                    "type": "object", "required": ["table"],
                    "properties": {"table": {"type": "string"}, "rows": {"type": "integer"}, "limit": {"type": "integer"}},
                })),
                defaults: json!({"rows": 10}).as_object().unwrap().clone(),
            }),
            ("free" | "caf\u{e9}", None | Some(1 | 2)) => ScriptLookup::Found(ScriptFacts::default()),
            ("free" | "extract", _) => ScriptLookup::NoVersion,
            ("sink", _) => ScriptLookup::OtherWorld("consumer".into()),
            _ => ScriptLookup::NoScript,
        }
    }
    fn group(&self, name: &Name) -> Option<GroupLinks> {
        let links = |depends_on: &[&str], sub_runs: &[&str]| {
            let names = |list: &[&str]| list.iter().map(|name| name.parse().unwrap()).collect();
            Some(GroupLinks {
                depends_on: names(depends_on),
                sub_runs: names(sub_runs),
            })
        };
        match name.as_str() {
            "raw" => links(&[], &[]),
            "down" => links(&["g"], &[]),
            "caller" => links(&[], &["middle"]),
            "middle" => links(&[], &["g"]),
            _ => None,
        }
    }
    fn template(&self, name: &Name) -> Option<Value> {
        (name == "strict")
            .then(|| json!({"type": "object", "required": ["who"], "properties": {"who": {"type": "string"}}}))
    }
    fn category(&self, name: &Name) -> bool {
        name == "bi"
    }
    fn channel(&self, name: &Name) -> bool {
        name == "ops-mail"
    }
    fn connection(&self, name: &Name, _: &Name, category: Option<&Name>) -> Grant {
        match name.as_str() {
            "warehouse" if category.is_some() => Grant::Granted,
            "warehouse" => Grant::Refused,
            _ => Grant::Unknown,
        }
    }
    fn secret(&self, name: &Name, group: &Name, category: Option<&Name>) -> Grant {
        self.connection(name, group, category)
    }
    fn pool(&self, name: &Name) -> Option<u32> {
        (name == "db").then_some(2)
    }
    fn has_value(&self, pointer: &str, value: &Value) -> bool {
        pointer == "/tasks/kept/memory" && *value == json!(64 << 20)
    }
}

fn judge(spec: &Value) -> Result<(), Faults> {
    validate(
        &"g".parse().unwrap(),
        &parse_group(spec)?,
        &World,
        "2026-11-20T10:00:00Z".parse().unwrap(),
    )
}

/// `expect` are pointers and parts of details, in any order; all of them and no more.
fn check(spec: Value, expect: &[(&str, &str)]) {
    let faults = judge(&spec).err().unwrap_or_default();
    for (pointer, detail) in expect {
        let found = faults
            .0
            .iter()
            .any(|fault| fault.pointer == *pointer && fault.detail.contains(detail));
        assert!(found, "`{pointer}` `{detail}` is not in {faults}, of {spec}");
    }
    assert_eq!(faults.0.len(), expect.len(), "{faults}, of {spec}");
}

fn one(task: Value) -> Value {
    json!({"tasks": {"t": task}})
}

#[test]
fn the_example_of_the_manual() {
    let spec = json!({
        "category": "bi", "history": true, "depends_on": ["raw"], "overlap": "queue",
        "schedules": {"nightly": {"cron": "0 0 2 * * *", "timezone": "Asia/Shanghai", "misfire": "once"}},
        "params": {"table": "orders"},
        "notify": {"on": ["failed", "recovered"], "channels": ["ops-mail"]},
        "tasks": {
            "extract": {
                "script": "extract@1", "notify": {"on": ["failed"], "to": ["etl@example.com"]},
                "params": {"day": "{{ logical_time | date }}"}, "timeout": "5m",
                "retry": {"strategy": "exponential", "retries": 3, "interval": "10s"}, "sql": ["warehouse"]
            },
            "by_region": {"script": "free", "depends_on": ["extract"], "params": {"rows": "{{ upstream.extract.rows }}"}},
            "approve": {"queue": "approvals", "depends_on": ["by_region"], "timeout": "4h"},
            "callback": {
                "http": {"method": "POST", "url": "https://example.com/done"},
                "depends_on": ["approve"], "trigger_rule": "all_done"
            },
        }
    });
    check(spec.clone(), &[]);
    let read = parse_group(&spec).unwrap();
    let again = parse_group(&serde_json::to_value(&read).unwrap()).unwrap();
    assert_eq!(read, again);
}

/// A script reference is not a plain name (it may contain a version), but is normalised like one.
#[test]
fn scripts_are_named_in_nfc() {
    for (written, kept) in [("cafe\u{301}", "caf\u{e9}"), ("cafe\u{301}@2", "caf\u{e9}@2")] {
        let spec = one(json!({"script": written}));
        check(spec.clone(), &[]);
        assert_eq!(parse_group(&spec).unwrap().tasks["t"].script.as_deref(), Some(kept));
    }
}

#[test]
fn shapes_are_read_with_pointers() {
    check(json!([]), &[("", "invalid type")]);
    check(json!({"tusks": {}}), &[("/tusks", "unknown field `tusks`")]);
    check(
        one(json!({"queue": "q", "timout": "1s"})),
        &[("/tasks/t/timout", "unknown field")],
    );
    check(
        one(json!({"queue": "q", "timeout": "soon"})),
        &[("/tasks/t/timeout", "`soon` is not a valid duration")],
    );
    check(
        one(json!({"queue": "q", "timeout": 5})),
        &[("/tasks/t/timeout", "`5` has no unit")],
    );
    check(one(json!({"queue": "q", "timeout": "never"})), &[]);
    check(one(json!({"queue": "a b"})), &[("/tasks/t/queue", "character 2")]);
    check(
        one(json!({"script": "free", "memory": "lots"})),
        &[("/tasks/t/memory", "`lots` is not a valid size")],
    );
    check(
        one(json!({"queue": "q", "shards": "many"})),
        &[("/tasks/t/shards", "a number from 1 to 10000, or `workers`")],
    );
    check(
        one(json!({"queue": "q", "for_each": 3})),
        &[("/tasks/t/for_each", "an array, or a template")],
    );
    check(
        one(json!({"queue": "q", "trigger_rule": "never"})),
        &[("/tasks/t/trigger_rule", "unknown value `never`")],
    );
    check(
        json!({"tasks": {"a b": {"queue": "q"}}}),
        &[("/tasks/a b", "character 2")],
    );
    check(
        json!({"depends_on": [{"group": "raw", "need": "some"}]}),
        &[("/depends_on/0/need", "unknown value `some`")],
    );
    check(json!({"depends_on": [7]}), &[("/depends_on/0", "a group's name, or")]);
    check(
        json!({"tasks": {"caf\u{e9}": {"queue": "q"}, "cafe\u{301}": {"queue": "q"}}}),
        &[("/tasks/caf\u{e9}", "duplicate")],
    );
    check(
        one(json!({"queue": "q", "pools": {"caf\u{e9}": 1, "cafe\u{301}": 2}})),
        &[("/tasks/t/pools/caf\u{e9}", "duplicate")],
    );
    let task_params = json!({"task_params": {"caf\u{e9}": {"a": 1}, "cafe\u{301}": {"b": 2}}});
    let faults = crate::spec::parse_submission(&task_params).unwrap_err();
    assert_eq!(faults.0[0].pointer, "/task_params/caf\u{e9}");
}

#[test]
fn executors_and_references() {
    check(json!({}), &[("/tasks", "1 to 10000 tasks, not 0")]);
    check(one(json!({})), &[("/tasks/t", "exactly one executor")]);
    check(
        one(json!({"script": "free", "queue": "q"})),
        &[("/tasks/t", "exactly one executor")],
    );
    check(
        one(json!({"script": "nobody"})),
        &[("/tasks/t/script", "unknown script")],
    );
    check(
        one(json!({"script": "free@3"})),
        &[("/tasks/t/script", "no version `free@3`")],
    );
    check(
        one(json!({"script": "free@x"})),
        &[("/tasks/t/script", "`x` is not a valid version")],
    );
    check(
        one(json!({"script": "sink"})),
        &[("/tasks/t/script", "is not a task script; its world is consumer")],
    );
    check(
        one(json!({"group": "nobody"})),
        &[("/tasks/t/group", "there is no group `nobody`")],
    );
    check(
        json!({"category": "x", "tasks": {"t": {"queue": "q"}}}),
        &[("/category", "no category `x`")],
    );
    check(
        one(json!({"script": "free", "sql": ["warehouse", "x"]})),
        &[("/tasks/t/sql/0", "may not use"), ("/tasks/t/sql/1", "there is no")],
    );
    check(
        one(json!({"script": "free", "secrets": ["x"]})),
        &[("/tasks/t/secrets/0", "there is no secret")],
    );
    check(
        one(json!({"queue": "q", "pools": {"db": 3, "x": 1}})),
        &[("/tasks/t/pools/db", "only 2 slots"), ("/tasks/t/pools/x", "no pool")],
    );
    check(
        one(json!({"queue": "q", "pools": {"db": 0}})),
        &[("/tasks/t/pools/db", "at least one slot")],
    );
    check(
        one(json!({"queue": "q", "notify": {"on": ["failed"], "channels": ["x"], "to": ["nowhere"]}})),
        &[
            ("/tasks/t/notify/channels/0", "no channel `x`"),
            ("/tasks/t/notify/to/0", "not a valid e-mail address"),
        ],
    );
}

#[test]
fn edges_and_cycles() {
    let tasks = |edges: Value| {
        let tasks: Map<String, Value> = edges
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, needs)| (name.clone(), json!({"queue": "q", "depends_on": needs})))
            .collect();
        json!({"tasks": tasks})
    };
    check(tasks(json!({"a": [], "b": ["a"], "c": ["a", "b"]})), &[]);
    check(
        tasks(json!({"a": ["x"]})),
        &[("/tasks/a/depends_on/0", "unknown dependency")],
    );
    check(
        tasks(json!({"a": [], "b": ["a", "a"]})),
        &[("/tasks/b/depends_on/1", "duplicate dependency `a`")],
    );
    check(tasks(json!({"a": ["a"]})), &[("/tasks/a/depends_on", "cycle: a -> a")]);
    check(
        tasks(json!({"a": ["b"], "b": ["a"]})),
        &[("/tasks/a/depends_on", "cycle: a -> b -> a")],
    );
    let with = |depends_on: Value, task: Value| json!({"depends_on": depends_on, "tasks": {"t": task}});
    check(
        with(
            json!(["raw", {"group": "raw", "need": "interval"}]),
            json!({"queue": "q"}),
        ),
        &[("/depends_on/1", "duplicate")],
    );
    check(
        with(json!(["x"]), json!({"queue": "q"})),
        &[("/depends_on/0", "there is no group `x`")],
    );
    check(
        with(json!(["g"]), json!({"queue": "q"})),
        &[("/depends_on", "cycle: g -> g")],
    );
    check(
        with(json!(["down"]), json!({"queue": "q"})),
        &[("/depends_on", "cycle: g -> down -> g")],
    );
    check(
        with(json!([]), json!({"group": "g"})),
        &[("/tasks/t/group", "cycle: g -> g")],
    );
    check(
        with(json!([]), json!({"group": "caller"})),
        &[("/tasks/t/group", "cycle: g -> caller -> middle -> g")],
    );
    // Both kinds of links in one circle: the fault is at the link that closes it.
    check(
        with(json!(["raw", "caller"]), json!({"queue": "q"})),
        &[("/depends_on", "cycle: g -> middle -> caller -> g")],
    );
    check(
        with(json!(["raw"]), json!({"group": "down"})),
        &[("/tasks/t/group", "cycle: g -> down -> g")],
    );
    // A group may follow the one that it calls.
    check(with(json!(["raw"]), json!({"group": "raw"})), &[]);
}

#[test]
fn fields() {
    check(
        json!({"timezone": "Mars", "tasks": {"t": {"queue": "q"}}}),
        &[("/timezone", "not a valid IANA time zone")],
    );
    check(
        json!({"priority": 2000, "tasks": {"t": {"queue": "q"}}}),
        &[("/priority", "from -1000 to 1000")],
    );
    check(
        json!({"labels": {"": "x"}, "tasks": {"t": {"queue": "q"}}}),
        &[("/labels", "the key of a label")],
    );
    check(
        json!({"schedules": {"s": {"cron": "61 * * * *"}}, "tasks": {"t": {"queue": "q"}}}),
        &[("/schedules/s/cron", "invalid cron expression: minutes `61`")],
    );
    check(
        one(json!({"queue": "q", "retry": {"strategy": "fixed"}})),
        &[("/tasks/t/retry", "`fixed` needs `retries`")],
    );
    check(
        one(json!({"queue": "q", "timeout": "0s"})),
        &[("/tasks/t/timeout", "longer than zero")],
    );
    check(
        one(json!({"script": "free", "memory": "1KiB"})),
        &[("/tasks/t/memory", "from 64KiB to 1GiB")],
    );
    check(
        one(json!({"script": "free", "max_output": "9MiB"})),
        &[("/tasks/t/max_output", "to 8MiB")],
    );
    check(
        one(json!({"queue": "q", "shards": 0})),
        &[("/tasks/t/shards", "from 1 to 10000")],
    );
    check(
        one(json!({"queue": "q", "shards": 99_999_999_999u64})),
        &[("/tasks/t/shards", "from 1 to 10000")],
    );
    check(
        one(json!({"script": "free", "shards": "workers"})),
        &[("/tasks/t/shards", "with a `queue`")],
    );
    check(one(json!({"queue": "q", "shards": "workers"})), &[]);
    check(
        one(json!({"queue": "q", "shards": 2, "for_each": []})),
        &[("/tasks/t", "must not have both")],
    );
    check(
        one(json!({"queue": "q", "for_each": vec![0; 10_001]})),
        &[("/tasks/t/for_each", "at most 10000 items")],
    );
    check(
        one(json!({"queue": "q", "for_each": "abc"})),
        &[("/tasks/t/for_each", "an array, or a template")],
    );
    check(
        one(json!({"queue": "q", "concurrency": 0})),
        &[("/tasks/t/concurrency", "at least 1")],
    );
    check(
        one(json!({"queue": "q", "concurrency": 3, "fail_fast": true})),
        &[
            ("/tasks/t/concurrency", "`for_each` or `shards`"),
            ("/tasks/t/fail_fast", "`for_each` or `shards`"),
        ],
    );
    check(one(json!({"queue": "q", "fail_fast": false})), &[]);
    check(
        one(json!({"script": "free", "tags": ["a"]})),
        &[("/tasks/t/tags", "only a task with a `queue`")],
    );
    for tag in ["", "a\u{1f}b", &"x".repeat(101)] {
        check(
            one(json!({"queue": "q", "tags": ["a", tag]})),
            &[("/tasks/t/tags/1", "1 to 100 characters")],
        );
    }
    check(one(json!({"queue": "q", "tags": vec!["日本 a100"; 64]})), &[]);
    check(
        one(json!({"queue": "q", "tags": vec!["a"; 65]})),
        &[("/tasks/t/tags", "at most 64")],
    );
    check(
        one(json!({"http": {"url": "ftp://x"}})),
        &[("/tasks/t/http/url", "not an http or https URL")],
    );
    check(one(json!({"http": {"url": "{{ params.url }}"}})), &[]);
    check(
        one(json!({"http": {"url": "http://x", "method": "BREW"}})),
        &[("/tasks/t/http/method", "one of GET")],
    );
    check(
        one(json!({"http": {"url": "http://x", "headers": {"a b": "x"}}})),
        &[("/tasks/t/http/headers/a b", "is not a valid header name")],
    );
    // They would contradict the body, and the server would wait for the rest of it.
    for name in ["content-length", "Content-Length", "transfer-encoding", "connection"] {
        check(
            one(json!({"http": {"url": "http://x", "headers": {name: "300"}}})),
            &[(
                format!("/tasks/t/http/headers/{name}").as_str(),
                "cannot set this header",
            )],
        );
    }
    check(
        one(json!({"http": {"url": "http://x", "headers": {"host": "y", "content-type": "text/xml"}}})),
        &[],
    );
    check(
        one(json!({"audience": {"audience": "team"}})),
        &[("/tasks/t/audience/audience", "`uid_` or `gid_`")],
    );
    check(
        one(json!({"audience": {"audience": "uid_gid_x"}})),
        &[("/tasks/t/audience/audience", "user group")],
    );
    check(
        one(json!({"audience": {"audience": "gid_x", "dispatch_times": "some"}})),
        &[("/tasks/t/audience/dispatch_times", "or `each`")],
    );
    check(
        one(json!({"audience": {"audience": "gid_x", "dispatch_times": "each", "mode": "repeat"}})),
        &[("/tasks/t/audience/mode", "cannot be combined with")],
    );
    check(
        one(json!({"audience": {"audience": "gid_{{ params"}})),
        &[("/tasks/t/audience/audience", "invalid template")],
    );
    check(
        one(json!({"audience": {"audience": "uid_{{ upstream.ghost }}"}})),
        &[("/tasks/t/audience/audience", "ghost")],
    );
    check(one(json!({"audience": {"audience": "gid_{{ params.team }}"}})), &[]);
    for (host, sound) in [
        ("api.example.com", true),
        ("*.example.com", true),
        ("10.0.0.1", true),
        ("localhost:8080", true),
        ("[::1]:80", true),
        ("*", false),
        ("*.*.com", false),
        ("http://x", false),
        ("a b", false),
        ("", false),
        ("x:99999", false),
        ("*.10.0.0.1", false),
        ("a!b.example.com", false),
        ("under_score.example.com", true),
    ] {
        let expect: &[_] = if sound {
            &[]
        } else {
            &[("/tasks/t/allow_hosts/0", "is not a valid host")]
        };
        check(one(json!({"script": "free", "allow_hosts": [host]})), expect);
    }
}

/// What only scripts have is refused elsewhere, with its place; an empty list says nothing.
#[test]
fn limits_and_grants_of_scripts() {
    let of_script = json!({
        "memory": "64MiB", "allow_hosts": ["api.example.com"], "sql": ["granted"], "secrets": ["granted"],
    });
    for executor in [
        json!({"queue": "q"}),
        json!({"http": {"url": "https://example.com"}}),
        json!({"audience": "gid_team"}),
        json!({"group": "raw"}),
        json!({"query": {"connection": "granted", "sql": "select 1"}}),
    ] {
        for (field, value) in of_script.as_object().unwrap() {
            let mut task = executor.clone();
            task[field] = value.clone();
            let spec = one(task);
            assert!(parse_group(&spec).is_ok(), "stored specs stay readable: {spec}");
            let pointer = format!("/tasks/t/{field}");
            let faults = judge(&spec).unwrap_err();
            let said = format!("only a task with a `script` can have `{field}`");
            let found = faults
                .0
                .iter()
                .filter(|fault| fault.pointer == pointer && fault.detail == said);
            assert_eq!(found.count(), 1, "{faults}, of {spec}");
        }
        let mut task = executor.clone();
        task["secrets"] = json!([]);
        let faults = judge(&one(task)).err().unwrap_or_default();
        assert!(
            !faults.0.iter().any(|fault| fault.pointer == "/tasks/t/secrets"),
            "{faults}"
        );
    }
    check(
        one(json!({"script": "free", "memory": "64MiB", "allow_hosts": ["api.example.com"]})),
        &[],
    );
    // A task without an executor is wrong only for that.
    check(one(json!({"memory": "64MiB"})), &[("/tasks/t", "exactly one executor")]);
    // A group that was stored with such a field may keep it as it is.
    let kept = |memory: &str| json!({"tasks": {"kept": {"queue": "q", "memory": memory}}});
    check(kept("64MiB"), &[]);
    check(kept("65MiB"), &[("/tasks/kept/memory", "only a task with a `script`")]);
}

#[test]
fn templates_and_params() {
    check(
        one(json!({"queue": "q", "params": {"a": ["{{ x"]}})),
        &[("/tasks/t/params/a/0", "invalid template")],
    );
    check(
        one(json!({"queue": "q", "when": "params."})),
        &[("/tasks/t/when", "invalid template")],
    );
    check(
        one(json!({"queue": "q", "for_each": "{{ x y }}"})),
        &[("/tasks/t/for_each", "invalid template")],
    );
    // A missing param may come with a run.
    check(one(json!({"script": "extract"})), &[]);
    check(
        one(json!({"script": "extract", "params": {"table": 1}})),
        &[("/tasks/t/params/table", "is not of type")],
    );
    check(
        one(json!({"script": "extract", "params": {"table": "{{ item }}"}})),
        &[],
    );
    check(
        json!({"params": {"rows": "ten", "table": "x"}, "tasks": {"a": {"script": "extract"}, "b": {"script": "extract"}}}),
        &[("/params/rows", "is not of type \"integer\"")],
    );
    check(
        json!({"params": {"rows": "ten", "table": "x"}, "tasks": {"a": {"script": "extract", "params": {"rows": 1}}}}),
        &[],
    );
}

#[test]
fn templates_name_what_is_there() {
    let tasks = |task: Value| {
        json!({"tasks": {
            "a": {"queue": "q"}, "b": {"queue": "q", "depends_on": ["a"]}, "t": task, "z-z": {"queue": "q"},
        }})
    };
    let after_b = |field: &str, value: Value| tasks(json!({"queue": "q", "depends_on": ["b"], field: value}));
    for (field, value, pointer, expect) in [
        (
            "params",
            json!({"n": "{{ nofn() }}"}),
            "/tasks/t/params/n",
            "no function `nofn`",
        ),
        (
            "params",
            json!({"n": ["{{ 1 | nofilter }}"]}),
            "/tasks/t/params/n/0",
            "no filter `nofilter`",
        ),
        (
            "params",
            json!({"n": "{{ upstream.zz }}"}),
            "/tasks/t/params/n",
            "there is no task `zz`",
        ),
        (
            "params",
            json!({"n": "{{ upstream['z-z'] }}"}),
            "/tasks/t/params/n",
            "`z-z` is not a dependency of this task",
        ),
        (
            "params",
            json!({"n": "{{ upstream.t }}"}),
            "/tasks/t/params/n",
            "`t` is not a dependency",
        ),
        (
            "when",
            json!("upstream.zz > 1"),
            "/tasks/t/when",
            "there is no task `zz`",
        ),
        ("when", json!("1 is notest"), "/tasks/t/when", "no test `notest`"),
        (
            "for_each",
            json!("{{ upstream.zz }}"),
            "/tasks/t/for_each",
            "there is no task `zz`",
        ),
        (
            "for_each",
            json!([1, "{{ upstream.zz }}"]),
            "/tasks/t/for_each/1",
            "there is no task `zz`",
        ),
        (
            "when",
            json!("-".repeat(50_000) + "1"),
            "/tasks/t/when",
            "invalid template: the expression nests more than 200",
        ),
        (
            "for_each",
            json!(format!("{{{{ {}1 }}}}", "not ".repeat(9_000))),
            "/tasks/t/for_each",
            "more than 200",
        ),
    ] {
        check(after_b(field, value), &[(pointer, expect)]);
    }
    check(
        after_b(
            "params",
            json!({"n": "{{ upstream.a }} {{ upstream['b'].x | default(1) }}"}),
        ),
        &[],
    );
    check(
        after_b("when", json!("upstream.a.rows > 1 and logical_time < '2030'")),
        &[],
    );
    let http = |http: Value| tasks(json!({"http": http, "depends_on": ["b"]}));
    let minuses = format!("{{{{ {}1 }}}}", "-".repeat(9_000));
    check(
        http(json!({
            "url": format!("https://example.com/{minuses}"), "headers": {"x-a": minuses, "x-b": "{{ upstream.zz }}"},
            "body": {"a": [minuses]},
        })),
        &[
            ("/tasks/t/http/url", "more than 200"),
            ("/tasks/t/http/headers/x-a", "more than 200"),
            ("/tasks/t/http/headers/x-b", "there is no task `zz`"),
            ("/tasks/t/http/body/a/0", "more than 200"),
        ],
    );
    // Params that all tasks share may be used by only some of them.
    check(
        json!({"params": {"n": "{{ upstream.a | default(0) }}"}, "tasks": {"a": {"queue": "q"}}}),
        &[],
    );
    check(
        json!({"params": {"n": "{{ upstream.b | default(0) }}"}, "tasks": {"a": {"queue": "q"}}}),
        &[("/params/n", "there is no task `b`")],
    );
    // Downstream of a cycle, only the cycle is reported.
    check(
        json!({"tasks": {"a": {"queue": "q", "depends_on": ["b"]}, "b": {"queue": "q", "depends_on": ["a"]},
            "c": {"queue": "q", "depends_on": ["b"], "params": {"n": "{{ upstream.a }}"}}}}),
        &[("/tasks/a/depends_on", "cycle")],
    );
}
