//! Groups: revisions, guards against changes meanwhile.

use heddle_tests::{World, eventually, time};
use serde_json::{Value, json};

use crate::{one, with};

pub(crate) fn hello(depends_on: &[&str]) -> Value {
    json!({"script": "hello", "depends_on": depends_on})
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
    // Postgres writes large numbers in another form.
    let large = one(json!({"script": "echo", "params": {"n": [1e16, -1.5e17, 1e-7, 2.0]}}));
    assert_eq!(node.put_group("g", large.clone()).await["revision"], 4);
    assert_eq!(node.put_group("g", large).await["revision"], 4);
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

/// Who has read a group that was deleted since changes no other group of that name.
#[tokio::test]
async fn if_match_of_a_deleted_group() {
    let (_world, node) = World::with_node().await;
    let spec = |name: &str| one(json!({"script": "hello", "params": {"name": name}}));
    for name in ["a", "b", "c"] {
        node.put_group("g", spec(name)).await;
    }
    let read = node.get("/v1/groups/g").await.headers["etag"].clone();
    assert_eq!(read, "\"3\"");
    node.delete("/v1/groups/g").await.expect_status(200);
    for name in ["d", "e", "f"] {
        node.put_group("g", spec(name)).await;
    }
    let group = node.get("/v1/groups/g").await.expect_status(200);
    assert_eq!((&group["revision"], &group["enabled"]), (&json!(6), &json!(true)));
    let revisions = node.all("/v1/groups/g/revisions").await;
    let numbers: Vec<_> = revisions.iter().map(|one| &one["revision"]).collect();
    assert_eq!(numbers, [6, 5, 4]);
    for (method, path) in [
        (reqwest::Method::PUT, "/v1/groups/g"),
        (reqwest::Method::PATCH, "/v1/groups/g"),
        (reqwest::Method::DELETE, "/v1/groups/g"),
        (reqwest::Method::POST, "/v1/groups/g/disable"),
    ] {
        let request = node.request(method.clone(), path).header("if-match", &read);
        let request = if path.ends_with("/g") {
            request.json(&spec("stale"))
        } else {
            request
        };
        let reply = node.send(request).await;
        assert_eq!(reply.status, 412, "{method} {path}: {reply:#?}");
    }
    assert_eq!(node.get("/v1/groups/g").await.expect_status(200), group);
    node.run("g", json!({})).await;
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
    // A new group of the same name is another one, whose revisions are counted on.
    assert_eq!(node.put_group("slow", hello).await["revision"], 2);
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
