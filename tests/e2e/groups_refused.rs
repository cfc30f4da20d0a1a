//! Groups that are refused, with the JSON pointers of what is wrong.

use heddle_tests::World;
use serde_json::{Value, json};

use crate::groups::hello;
use crate::{one, with};

/// Each thing that is wrong, with its place.
#[tokio::test]
async fn refused_with_pointers() {
    let (_world, node) = World::with_node().await;
    let ok = json!({"script": "hello"});
    let task = |fields: Value| one(with(ok.clone(), fields));
    let group = |fields: Value| with(one(ok.clone()), fields);
    let schedule = |fields: Value| group(json!({"schedules": {"s": fields}}));
    for (spec, pointer) in [
        (json!({}), "/tasks"),
        (json!({"tasks": {}}), "/tasks"),
        (json!({"tasks": []}), "/tasks"),
        (one(json!({"script": "nope"})), "/tasks/t/script"),
        (one(json!({"script": "hello@7"})), "/tasks/t/script"),
        (one(json!({"script": "hello@x"})), "/tasks/t/script"),
        (one(json!({})), "/tasks/t"),
        (one(json!({"script": "hello", "queue": "x"})), "/tasks/t"),
        (task(json!({"depends_on": ["nope"]})), "/tasks/t/depends_on/0"),
        (
            json!({"tasks": {"a": ok, "b": hello(&["a", "a"])}}),
            "/tasks/b/depends_on/1",
        ),
        (task(json!({"timeout": "soon"})), "/tasks/t/timeout"),
        (task(json!({"timeout": "-5s"})), "/tasks/t/timeout"),
        (task(json!({"timeout": 5})), "/tasks/t/timeout"),
        (task(json!({"timeout": "0s"})), "/tasks/t/timeout"),
        (task(json!({"timeout": "99999999999d"})), "/tasks/t/timeout"),
        (task(json!({"retry": {"strategy": "nope"}})), "/tasks/t/retry/strategy"),
        (
            task(json!({"retry": {"strategy": "fixed", "interval": "x"}})),
            "/tasks/t/retry/interval",
        ),
        (task(json!({"trigger_rule": "maybe"})), "/tasks/t/trigger_rule"),
        (task(json!({"memory": "lots"})), "/tasks/t/memory"),
        (task(json!({"memory": "100GiB"})), "/tasks/t/memory"),
        (
            task(json!({"allow_hosts": ["ok.example.com", "http://x/"]})),
            "/tasks/t/allow_hosts/1",
        ),
        (one(json!({"queue": "q", "memory": "64MiB"})), "/tasks/t/memory"),
        (
            one(json!({"http": {"url": "http://x"}, "allow_hosts": ["x"]})),
            "/tasks/t/allow_hosts",
        ),
        (task(json!({"concurrency": 0, "shards": 2})), "/tasks/t/concurrency"),
        (task(json!({"colour": "red"})), "/tasks/t/colour"),
        (task(json!({"params": []})), "/tasks/t/params"),
        (group(json!({"colour": "red"})), "/colour"),
        (group(json!({"depends_on": ["nope"]})), "/depends_on/0"),
        (group(json!({"overlap": "maybe"})), "/overlap"),
        (group(json!({"on_failure": "panic"})), "/on_failure"),
        (group(json!({"timezone": "Mars/Olympus"})), "/timezone"),
        (group(json!({"deadline": "x"})), "/deadline"),
        (group(json!({"max_active_runs": 0})), "/max_active_runs"),
        (group(json!({"priority": 5000})), "/priority"),
        (group(json!({"name": "other"})), "/name"),
        (schedule(json!({"cron": "not a cron"})), "/schedules/s/cron"),
        (schedule(json!({"cron": "61 * * * *"})), "/schedules/s/cron"),
        (schedule(json!({"every": "x"})), "/schedules/s/every"),
        (
            schedule(json!({"cron": "0 0 * * *", "timezone": "Mars/Olympus"})),
            "/schedules/s/timezone",
        ),
        (schedule(json!({"cron": "0 0 * * *", "every": "1h"})), "/schedules/s"),
        (schedule(json!({})), "/schedules/s"),
        (one(json!({"http": {"url": "ftp://x"}})), "/tasks/t/http/url"),
        (
            one(json!({"http": {"url": "http://x", "method": "BREW"}})),
            "/tasks/t/http/method",
        ),
    ] {
        let reply = node.refused_group("g", spec.clone()).await;
        assert_eq!(reply.status, 422, "{spec}: {:#}", reply.body);
        let pointers: Vec<&str> = reply.body["errors"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|error| error["pointer"].as_str())
            .collect();
        assert_eq!(pointers, [pointer], "{spec}: {:#}", reply.body);
    }
    node.get("/v1/groups/g").await.expect_problem(404, &[]);
}

/// All errors at once, and names in pointers escaped as RFC 6901 wants it.
#[tokio::test]
async fn all_errors_at_once() {
    let (_world, node) = World::with_node().await;
    let spec = json!({
        "timezone": "x",
        "tasks": {"a": {"script": "nope", "timeout": "0s"}, "b": {"script": "hello", "depends_on": ["c"]}},
    });
    let pointers = [
        "/timezone",
        "/tasks/a/script",
        "/tasks/a/timeout",
        "/tasks/b/depends_on/0",
    ];
    node.refused_group("g", spec.clone())
        .await
        .expect_problem(422, &pointers);
    node.post("/v1/groups/g/validate", spec)
        .await
        .expect_problem(422, &pointers);
    let reply = node
        .refused_group("g", json!({"tasks": {"a/b~c": {"script": "hello"}}}))
        .await;
    assert_eq!(reply.status, 422, "{:#}", reply.body);
    assert!(reply.body.to_string().contains("/tasks/a~1b~0c"), "{:#}", reply.body);
}

/// A cycle is named.
#[tokio::test]
async fn cycles() {
    let (_world, node) = World::with_node().await;
    let check = async |tasks: Value, circle: &str| {
        node.refused_group("g", json!({"tasks": tasks}))
            .await
            .expect_said(422, circle);
    };
    check(json!({"a": hello(&["a"])}), "a -> a").await;
    check(json!({"a": hello(&["b"]), "b": hello(&["a"])}), "a -> b -> a").await;
    check(
        json!({"a": hello(&["c"]), "b": hello(&["a"]), "c": hello(&["b"]), "d": hello(&[])}),
        "a -> b -> c -> a",
    )
    .await;
    let mut long = json!({});
    for i in 0..2000 {
        long[format!("t{i}")] = hello(&[&format!("t{}", (i + 1) % 2000)]);
    }
    let reply = node.refused_group("g", json!({"tasks": long})).await;
    assert_eq!(reply.status, 422);
    assert!(reply.body["detail"].as_str().unwrap().len() < 100_000);
    // Between groups.
    node.put_group("up", one(json!({"script": "hello"}))).await;
    node.put_group(
        "down",
        with(one(json!({"script": "hello"})), json!({"depends_on": ["up"]})),
    )
    .await;
    node.refused_group(
        "up",
        with(one(json!({"script": "hello"})), json!({"depends_on": ["down"]})),
    )
    .await
    .expect_said(422, " -> ");
}

/// What has the wrong shape is told so in words of JSON, and an array is no object.
#[tokio::test]
async fn wrong_shapes() {
    let (_world, node) = World::with_node().await;
    let ok = json!({"script": "hello"});
    let task = |fields: Value| one(with(ok.clone(), fields));
    let group = |fields: Value| with(one(ok.clone()), fields);
    let object = "expected an object";
    for (spec, pointer, words) in [
        (
            group(json!({"schedules": {"nightly": "0 0 * * *"}})),
            "/schedules/nightly",
            object,
        ),
        (
            group(json!({"schedules": {"s": {"once": "2030-01-01"}}})),
            "/schedules/s/once",
            object,
        ),
        (group(json!({"retention": 5})), "/retention", object),
        (group(json!({"notify": ["failed"]})), "/notify", object),
        (group(json!({"params": "x"})), "/params", object),
        (json!({"tasks": {"t": "hello"}}), "/tasks/t", object),
        (task(json!({"retry": 3})), "/tasks/t/retry", object),
        (task(json!({"retry": ["fixed", 3, "10s"]})), "/tasks/t/retry", object),
        (
            one(json!({"http": ["GET", "https://example.com/", {}, null]})),
            "/tasks/t/http",
            object,
        ),
        (
            task(json!({"depends_on": "a"})),
            "/tasks/t/depends_on",
            "expected an array",
        ),
        (
            group(json!({"history": "yes"})),
            "/history",
            "expected `true` or `false`",
        ),
        (
            group(json!({"max_active_runs": -1})),
            "/max_active_runs",
            "expected a whole number",
        ),
        (
            group(json!({"overlap": "never"})),
            "/overlap",
            "expected one of `queue`, `skip`",
        ),
        (
            group(json!({"overlap": {"queue": null, "skip": null}})),
            "/overlap",
            "expected one of `queue`, `skip`",
        ),
    ] {
        let body = node.refused_group("g", spec).await.expect_problem(422, &[pointer]);
        let detail = body["errors"][0]["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(words), "{detail}");
        for foreign in ["struct", "variant", "u32", "sequence", "a map"] {
            assert!(!detail.contains(foreign), "{detail}");
        }
    }
    node.put_group("g", one(ok)).await;
    let submit = async |body: Value| node.post("/v1/groups/g/runs", body).await;
    let reply = submit(json!({"logical_time": "yesterday"})).await;
    reply
        .clone()
        .expect_said(422, "`yesterday` is not a valid RFC 3339 time");
    reply.expect_problem(422, &["/logical_time"]);
    let filter = json!({"filter": {"group": 5}, "action": "cancel"});
    let reply = node.post("/v1/runs/bulk", filter).await;
    reply.clone().expect_said(422, "a string, or an array of strings");
    reply.expect_problem(422, &["/filter/group"]);
    for name in [json!("none"), json!(["none", "nor-this"])] {
        let filter = json!({"filter": {"group": name}, "action": "cancel"});
        let found = node.post("/v1/runs/bulk", filter).await.expect_status(200);
        assert_eq!(found["matched"], 0);
    }
}

/// Keys that are given twice are refused, in JSON and in YAML.
#[tokio::test]
async fn duplicate_keys() {
    let (_world, node) = World::with_node().await;
    let json = r#"{"tasks": {"a": {"script": "hello"}, "b": {"script": "hello"}, "a": {"script": "hello"}}}"#;
    let reply = node.put_bytes("/v1/groups/g", "application/json", json).await;
    reply.expect_problem(422, &["/tasks/a"]);
    let yaml = "tasks:\n  a: {script: hello}\n  a: {script: hello}\n";
    let reply = node.put_bytes("/v1/groups/g", "application/yaml", yaml).await;
    reply.expect_problem(422, &["/tasks/a"]);
    let yaml = "tasks:\n  a: {script: hello, params: {name: x, 'name': y}}\n";
    let reply = node.put_bytes("/v1/groups/g", "application/yaml", yaml).await;
    reply.expect_problem(422, &["/tasks/a/params/name"]);
    let yaml = "tasks:\n  1: {script: hello}\n  '1': {script: hello}\n";
    let reply = node.put_bytes("/v1/groups/g", "application/yaml", yaml).await;
    reply.expect_problem(422, &["/tasks/1"]);
    let reply = node.put_bytes("/v1/groups/g", "application/yaml", "tasks: [").await;
    reply.expect_problem(400, &[]);
    node.get("/v1/groups/g").await.expect_problem(404, &[]);
}

/// A group that was stored before a field was refused may keep it: after an upgrade, the same spec is no change.
#[tokio::test]
async fn what_was_accepted_before_may_stay() {
    let (world, node) = World::with_node().await;
    let spec = |more: Value| one(with(json!({"queue": "q"}), more));
    node.put_group("g", spec(json!({}))).await;
    let sql = world.sql().await;
    let stored = "UPDATE heddle.revisions SET spec = jsonb_set(spec, '{tasks,t}',
                         spec #> '{tasks,t}' || '{\"memory\": 67108864, \"allow_hosts\": [\"a.example.com\"]}')
                   WHERE group_id = (SELECT id FROM heddle.groups WHERE name = 'g')";
    assert_eq!(sql.execute(stored, &[]).await.unwrap(), 1);
    let same = json!({"memory": "64MiB", "allow_hosts": ["a.example.com"]});
    assert_eq!(node.put_group("g", spec(same.clone())).await["revision"], 1);
    // Another change keeps them, and does not change them.
    let described = with(spec(same.clone()), json!({"description": "d"}));
    assert_eq!(node.put_group("g", described).await["revision"], 2);
    let changed = json!({"memory": "65MiB", "allow_hosts": ["a.example.com", "b.example.com"]});
    node.put("/v1/groups/g", spec(changed))
        .await
        .expect_problem(422, &["/tasks/t/memory", "/tasks/t/allow_hosts"]);
    node.put("/v1/groups/other", spec(same))
        .await
        .expect_problem(422, &["/tasks/t/memory", "/tasks/t/allow_hosts"]);
}
