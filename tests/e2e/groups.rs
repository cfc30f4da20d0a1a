//! Groups: refusals with their JSON pointers, revisions, guards against changes meanwhile.

use heddle_tests::{World, eventually, time};
use serde_json::{Value, json};

use crate::{one, with};

fn hello(depends_on: &[&str]) -> Value {
    json!({"script": "hello", "depends_on": depends_on})
}

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

/// YAML is accepted where a spec is put; the same spec makes no new revision, whatever it is written in.
#[tokio::test]
async fn revisions() {
    let (_world, node) = World::with_node().await;
    let put = async |yaml: &str| {
        node.put_bytes("/v1/groups/g", "application/yaml", yaml.to_owned())
            .await
    };
    let first = put("tasks:\n  t: {script: hello, timeout: 60s}\n")
        .await
        .expect_status(201);
    assert_eq!(
        (&first["name"], &first["revision"], &first["enabled"]),
        (&json!("g"), &json!(1), &json!(true))
    );
    time(&first["created_at"]);
    assert_eq!(
        put("tasks: {t: {timeout: 1m, script: hello}}\n")
            .await
            .expect_status(200)["revision"],
        1
    );
    let same = node
        .put_group("g", one(json!({"script": "hello", "timeout": "60s"})))
        .await;
    assert_eq!(same["revision"], 1);
    // What was read can be put again.
    let read = node.get("/v1/groups/g").await.expect_status(200);
    assert_eq!(node.put_group("g", read).await["revision"], 1);
    let changed = node
        .put_group("g", one(json!({"script": "hello", "timeout": "61s"})))
        .await;
    assert_eq!(changed["revision"], 2);
    let back = node
        .put_group("g", one(json!({"script": "hello", "timeout": "60s"})))
        .await;
    assert_eq!(back["revision"], 3);
    let all = node.all("/v1/groups/g/revisions?limit=2").await;
    let numbers: Vec<u64> = all
        .iter()
        .filter_map(|revision| revision["revision"].as_u64())
        .collect();
    assert_eq!(numbers, [3, 2, 1]);
    let graph = node.get("/v1/groups/g/graph").await.expect_status(200);
    assert_eq!(graph["nodes"][0]["task"], "t", "{graph:#}");
    put("tasks: [\n").await.expect_problem(400, &[]);
    put("- a\n- b\n").await.expect_said(422, "object");
}

/// Runs pin their revision.
#[tokio::test]
async fn runs_pin_their_revision() {
    let (_world, node) = World::with_node().await;
    let spec = |name: &str| {
        json!({"tasks": {
            "slow": {"script": "sleep", "params": {"seconds": 1.0}},
            "t": {"script": "hello", "params": {"name": name}, "depends_on": ["slow"]},
        }})
    };
    node.put_group("g", spec("old")).await;
    let run = node.start("g", json!({})).await;
    node.put_group("g", spec("new")).await;
    let run = node.ended(&run).await;
    assert_eq!(run["revision"], 1);
    assert_eq!(heddle_tests::task(&run, "t")["output"]["greeting"], "Hello, old!");
    let run = node.run("g", json!({})).await;
    assert_eq!(
        (&run["revision"], &heddle_tests::task(&run, "t")["output"]["greeting"]),
        (&json!(2), &json!("Hello, new!"))
    );
}

/// `If-Match` with the revision guards against what was changed meanwhile.
#[tokio::test]
async fn if_match() {
    let (_world, node) = World::with_node().await;
    let put = async |if_match: &str, name: &str| {
        let spec = one(json!({"script": "hello", "params": {"name": name}}));
        let request = node
            .request(reqwest::Method::PUT, "/v1/groups/g")
            .header("if-match", if_match)
            .json(&spec);
        node.send(request).await
    };
    put("\"1\"", "a").await.expect_problem(412, &[]);
    put("*", "a").await.expect_problem(412, &[]);
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let reply = put("\"1\"", "b").await;
    assert_eq!(reply.headers["etag"], "\"2\"");
    reply.expect_status(200);
    put("\"1\"", "c").await.expect_problem(412, &[]);
    put("2", "c").await.expect_status(200);
    put("*", "d").await.expect_status(200);
    for wrong in ["nonsense", "\"4\", nonsense", "", "*, \"4\"", "\"4"] {
        put(wrong, "e").await.expect_problem(400, &[]);
    }
    // A list is met by any of it.
    put("\"1\", \"2\"", "e").await.expect_problem(412, &[]);
    let patch = async |if_match: &str| {
        let request = node
            .request(reqwest::Method::PATCH, "/v1/groups/g")
            .header("if-match", if_match)
            .json(&json!({"description": if_match}));
        node.send(request).await
    };
    patch("\"1\", \"2\"").await.expect_problem(412, &[]);
    assert_eq!(node.get("/v1/groups/g").await.headers["etag"], "\"4\"");
    patch("\"9\" ,, \"4\"").await.expect_status(200);
    // A weak tag matches nothing.
    put("\"7\",W/\"5\", 3", "e").await.expect_problem(412, &[]);
    put("\"7\",\"5\", 3", "e").await.expect_status(200);
    let twice = node
        .request(reqwest::Method::PATCH, "/v1/groups/g")
        .header("if-match", "\"1\"")
        .header("if-match", "\"6\"")
        .json(&json!({"description": "twice"}));
    node.send(twice).await.expect_status(200);
    assert_eq!(node.get("/v1/groups/g").await.headers["etag"], "\"7\"");
    // Of ten changes on one revision one wins.
    let names: Vec<String> = (0..10).map(|n| format!("n{n}")).collect();
    let replies = futures::future::join_all(names.iter().map(|name| put("\"7\"", name))).await;
    assert_eq!(
        replies.iter().filter(|reply| reply.status == 200).count(),
        1,
        "{replies:#?}"
    );
    assert_eq!(replies.iter().filter(|reply| reply.status == 412).count(), 9);
    // A group is not deleted by who knows another revision of it.
    let delete = async |if_match: &str| {
        let request = node
            .request(reqwest::Method::DELETE, "/v1/groups/g")
            .header("if-match", if_match);
        node.send(request).await
    };
    delete("\"4\", \"7\"").await.expect_problem(412, &[]);
    for (path, enabled) in [("/v1/groups/g/disable", false), ("/v1/groups/g/enable", true)] {
        let switch = async |if_match: &str| {
            let request = node.request(reqwest::Method::POST, path).header("if-match", if_match);
            node.send(request).await
        };
        switch("\"7\"").await.expect_problem(412, &[]);
        switch("nonsense").await.expect_problem(400, &[]);
        assert_eq!(node.get("/v1/groups/g").await.expect_status(200)["enabled"], !enabled);
        for if_match in ["\"8\"", "*"] {
            assert_eq!(switch(if_match).await.expect_status(200)["enabled"], enabled);
        }
        assert_eq!(node.post(path, json!({})).await.headers["etag"], "\"8\"", "{path}");
    }
    assert_eq!(node.get("/v1/groups/g").await.headers["etag"], "\"8\"");
    delete("\"7\", \"8\"").await.expect_status(200);
    delete("*").await.expect_problem(404, &[]);
}

/// `If-None-Match: *` only creates: of ten at once one does.
#[tokio::test]
async fn if_none_match() {
    let (_world, node) = World::with_node().await;
    let put = async |headers: &[(&str, &str)], name: &str| {
        let mut request = node.request(reqwest::Method::PUT, "/v1/groups/g");
        for (header, value) in headers {
            request = request.header(*header, *value);
        }
        let spec = one(json!({"script": "hello", "params": {"name": name}}));
        node.send(request.json(&spec)).await
    };
    let create = [("if-none-match", "*")];
    let names: Vec<String> = (0..10).map(|n| format!("n{n}")).collect();
    let replies = futures::future::join_all(names.iter().map(|name| put(&create, name))).await;
    let count = |status: u16| replies.iter().filter(|reply| reply.status == status).count();
    assert_eq!((count(201), count(412)), (1, 9), "{replies:#?}");
    // The same spec is refused too.
    let spec = node.get("/v1/groups/g").await.expect_status(200);
    let name = spec["tasks"]["t"]["params"]["name"].as_str().expect("a name");
    put(&create, name).await.expect_problem(412, &[]);
    put(&[("if-none-match", "\"1\"")], "x").await.expect_problem(400, &[]);
    put(&[("if-none-match", "*"), ("if-match", "*")], "x")
        .await
        .expect_problem(400, &[]);
    assert_eq!(node.get("/v1/groups/g").await.headers["etag"], "\"1\"");
    node.delete("/v1/groups/g").await.expect_status(200);
    put(&create, "y").await.expect_status(201);
}

/// Changes of parts of a group at the same time, on two nodes: all stick, and nobody who names no revision gets 412.
#[tokio::test]
async fn twenty_patches_at_once() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let names: Vec<String> = (0..20).map(|n| format!("t{n}")).collect();
    let tasks: serde_json::Map<String, Value> = names.iter().map(|name| (name.clone(), hello(&[]))).collect();
    nodes[0]
        .put_group("g", json!({"tasks": tasks, "schedules": {"s": {"every": "1h"}}}))
        .await;
    let patches = names.iter().enumerate().map(|(n, name)| {
        let patch = json!({"tasks": {name.as_str(): {"timeout": format!("{}s", n + 1)}}});
        let node = &nodes[n % 2];
        async move {
            node.send(node.request(reqwest::Method::PATCH, "/v1/groups/g").json(&patch))
                .await
        }
    });
    let disabled = nodes[1].post("/v1/groups/g/schedules/s/disable", json!({}));
    let (replies, disabled) = futures::future::join(futures::future::join_all(patches), disabled).await;
    disabled.expect_status(200);
    for reply in replies {
        reply.expect_status(200);
    }
    let group = nodes[0].get("/v1/groups/g").await.expect_status(200);
    for (n, name) in names.iter().enumerate() {
        assert_eq!(group["tasks"][name]["timeout"], format!("{}s", n + 1), "{group:#}");
    }
    assert_eq!(group["schedules"]["s"]["enabled"], false);
    assert_eq!(group["revision"], 22);
}

/// The same PUT from ten clients at once: one has created, nine found nothing to change.
#[tokio::test]
async fn ten_puts_at_once() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    for round in 0..5 {
        let path = format!("/v1/groups/g{round}");
        let spec = one(json!({"script": "hello", "params": {"name": "x"}}));
        let replies = (0..10).map(|client| nodes[client % 2].put(&path, spec.clone()));
        let replies = futures::future::join_all(replies).await;
        let mut statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
        statuses.sort_unstable();
        assert_eq!(
            statuses,
            [200, 200, 200, 200, 200, 200, 200, 200, 200, 201],
            "{replies:#?}"
        );
        assert!(replies.iter().all(|reply| reply.body["revision"] == 1));
        assert_eq!(nodes[0].all(&format!("{path}/revisions")).await.len(), 1);
    }
}

/// A change made on one node is followed by that node at once and by all soon. (How soon: `tests/alone/promises.rs`.)
#[tokio::test]
async fn changes_reach_all_nodes() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    for round in 0..3 {
        let name = format!("round {round}");
        nodes[0]
            .put_group("g", one(json!({"script": "hello", "params": {"name": name}})))
            .await;
        let wanted = format!("Hello, {name}!");
        let here = nodes[0].run("g", json!({})).await;
        assert_eq!(heddle_tests::task(&here, "t")["output"]["greeting"], *wanted);
        eventually("change on the other node", async || {
            let there = nodes[1].run("g", json!({})).await;
            (heddle_tests::task(&there, "t")["output"]["greeting"] == *wanted).then_some(())
        })
        .await;
    }
    let shown = nodes[1].get("/v1/nodes").await.expect_status(200);
    let shown = shown["items"].as_array().unwrap();
    assert_eq!(shown.len(), 2);
    for node in shown {
        assert_eq!(node["state"], "active");
        assert!(
            node["position"].is_u64() && node["position_newest"].is_u64(),
            "{node:#}"
        );
    }
}

/// Deleting answers what it detached, and refuses while runs are active unless forced.
#[tokio::test]
async fn delete() {
    let (_world, node) = World::with_node().await;
    let hello = one(json!({"script": "hello"}));
    node.put_group("up", hello.clone()).await;
    node.put_group("down", with(hello.clone(), json!({"depends_on": ["up"]})))
        .await;
    node.delete("/v1/groups/down").await.expect_said(409, "up");
    assert_eq!(
        node.delete("/v1/groups/up").await.expect_status(200)["detached"],
        json!(["down"])
    );
    node.get("/v1/groups/up").await.expect_problem(404, &[]);
    assert_eq!(
        node.get("/v1/groups/down").await.expect_status(200)["depends_on"],
        json!([])
    );
    node.put_group("slow", one(crate::sleeps(3600.0))).await;
    let run = node.start("slow", json!({})).await;
    node.task_becomes(&run, "t", "running").await;
    node.delete("/v1/groups/slow").await.expect_problem(409, &[]);
    assert_eq!(
        node.delete("/v1/groups/slow?force=true").await.expect_status(200)["detached"],
        json!([])
    );
    assert_eq!(node.ended(&run).await["state"], "cancelled");
    node.put_group("child", hello.clone()).await;
    node.put_group("parent", one(json!({"group": "child"}))).await;
    node.delete("/v1/groups/child").await.expect_said(409, "parent");
    node.delete("/v1/groups/nope").await.expect_problem(404, &[]);
    // A new group of the same name begins anew.
    assert_eq!(node.put_group("slow", hello).await["revision"], 1);
    assert_eq!(node.run("slow", json!({})).await["state"], "succeeded");
}

/// Lists, by category and page by page.
#[tokio::test]
async fn lists() {
    let (_world, node) = World::with_node().await;
    for (query, status) in [("limit=1", 200), ("limit=0", 422), ("limit=501", 422), ("limit=x", 400)] {
        assert_eq!(node.get(&format!("/v1/nodes?{query}")).await.status, status, "{query}");
    }
    for n in 0..7 {
        let category = if n % 2 == 0 { "even" } else { "odd" };
        node.put_group(
            &format!("g{n}"),
            with(one(json!({"script": "hello"})), json!({"category": category})),
        )
        .await;
    }
    let names = |groups: &[Value]| {
        groups
            .iter()
            .filter_map(|g| g["name"].as_str().map(str::to_owned))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(&node.all("/v1/groups?limit=3").await),
        ["g0", "g1", "g2", "g3", "g4", "g5", "g6"]
    );
    assert_eq!(names(&node.all("/v1/groups?category=odd").await), ["g1", "g3", "g5"]);
    assert_eq!(node.all("/v1/groups?category=nope").await.len(), 0);
    node.get("/v1/groups?limit=501").await.expect_problem(422, &["/limit"]);
}

#[tokio::test]
async fn categories_and_templates() {
    let (_world, node) = World::with_node().await;
    for (path, first, second) in [
        (
            "/v1/categories/bi",
            json!({"description": "a"}),
            json!({"description": "b"}),
        ),
        (
            "/v1/templates/t",
            json!({"type": "object"}),
            json!({"type": "object", "required": ["a"]}),
        ),
    ] {
        node.get(path).await.expect_problem(404, &[]);
        node.put(path, first.clone()).await.expect_status(201);
        node.put(path, first).await.expect_status(200);
        node.put(path, second).await.expect_status(200);
        node.get(path).await.expect_status(200);
        node.delete(path).await.expect_status(204);
        node.delete(path).await.expect_problem(404, &[]);
    }
    // What was read is put again.
    let channel = json!({"kind": "webhook", "url": "https://example.com/x"});
    let connection = json!({"url": "postgres://u:p@db.example.com/d", "groups": ["*"]});
    for (path, body) in [
        ("/v1/categories/again", json!({"description": "x"})),
        ("/v1/pools/again", json!({"slots": 3})),
        ("/v1/channels/again", channel.clone()),
        ("/v1/connections/again", connection),
    ] {
        node.put(path, body).await.expect_status(201);
        let mut read = node.get(path).await.expect_status(200);
        node.put(path, read.clone()).await.expect_status(200);
        read["name"] = json!("other");
        node.put(path, read).await.expect_problem(422, &["/name"]);
    }
    // YAML as well as JSON.
    let yaml = "kind: webhook\nurl: https://example.com/x\n";
    let put = node.put_bytes("/v1/channels/again", "application/yaml", yaml).await;
    put.expect_status(200);
    let reply = node.put("/v1/templates/bad", json!({"type": "nonsense"})).await;
    reply.expect_problem(422, &["/type"]);
    let deep = json!({"properties": {"a": {"minimum": "x"}}});
    node.put("/v1/templates/bad", deep)
        .await
        .expect_problem(422, &["/properties/a/minimum"]);
}

/// What people change is audited.
#[tokio::test]
async fn audit() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    node.put_group("g", one(json!({"script": "echo"}))).await;
    node.delete("/v1/groups/g").await.expect_status(200);
    let entries = node.all("/v1/audit?kind=group&name=g").await;
    assert_eq!(entries.len(), 3, "{entries:#?}");
    assert!(entries.iter().all(|entry| entry["actor"] == "e2e"));
}
