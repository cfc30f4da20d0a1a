//! Executors other than scripts: `http` and `group`.

use heddle_tests::{Sink, World, eventually, id, states, task};
use serde_json::json;

use crate::{fails, one, sleeps, with};

/// The context goes out as the body; 2xx succeeds, 4xx except 408 and 429 is fatal, all else is tried again.
#[tokio::test]
async fn http() {
    let world = World::new().await;
    let sink = Sink::start().await;
    let node = world.options().env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1").start().await;
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "10ms"});
    let call = |path: &str| json!({"http": {"url": format!("{}{path}", sink.url)}, "retry": retry});
    let mut tasks = json!({
        "plain": with(call("/plain"), json!({"params": {"a": 1}})),
        "full": {"http": {
            "method": "PUT", "url": format!("{}/full/{{{{ params.day }}}}", sink.url),
            "headers": {"x-day": "{{ params.day }}"}, "body": {"day": "{{ params.day }}", "n": 1},
        }, "params": {"day": "monday"}},
    });
    let typed = |name: &str, content_type: &str, body: &str| {
        let headers = json!({"content-type": content_type});
        json!({"http": {"url": format!("{}/{name}", sink.url), "headers": headers, "body": body}, "params": {"n": 1}})
    };
    tasks["xml"] = typed("xml", "text/xml", "<n>{{ params.n }}</n>");
    tasks["text"] = typed("text", "application/json", "n={{ params.n }}");
    for status in [201, 302, 404, 408, 429, 500, 503] {
        tasks[format!("s{status}")] = call(&format!("/status/{status}"));
    }
    node.put_group("calls", json!({"tasks": tasks})).await;
    let run = node.run("calls", json!({})).await;
    for (name, state, attempts) in [
        ("plain", "succeeded", 1),
        ("full", "succeeded", 1),
        ("xml", "succeeded", 1),
        ("text", "succeeded", 1),
        ("s201", "succeeded", 1),
        ("s404", "failed", 1),
        ("s408", "failed", 2),
        ("s429", "failed", 2),
        ("s500", "failed", 2),
        ("s503", "failed", 2),
    ] {
        let found = task(&run, name);
        assert_eq!(
            (&found["state"], &found["attempt"]),
            (&json!(state), &json!(attempts)),
            "{name}: {found:#}"
        );
        if state == "failed" {
            assert_eq!(found["error"]["kind"], "http", "{name}");
        }
    }
    let requests = sink.requests();
    let of = |path: &str| {
        requests
            .iter()
            .filter(move |request| request.path == path)
            .collect::<Vec<_>>()
    };
    let plain = of("/plain")[0];
    assert_eq!((plain.method.as_str(), &plain.body["task"]), ("POST", &json!("plain")));
    assert_eq!(
        (&plain.body["run"], &plain.body["group"]),
        (&run["id"], &json!("calls"))
    );
    assert_eq!(plain.body["params"]["a"], 1, "{:#}", plain.body);
    assert!(plain.body["idempotency_key"].is_string(), "{:#}", plain.body);
    let full = of("/full/monday")[0];
    assert_eq!((full.method.as_str(), full.header("x-day")), ("PUT", Some("monday")));
    assert_eq!(full.body, json!({"day": "monday", "n": 1}));
    // A string is sent as it is if its type is not JSON.
    for (path, content_type, raw) in [
        ("/xml", "text/xml", "<n>1</n>"),
        ("/text", "application/json", "\"n=1\""),
    ] {
        let sent = of(path)[0];
        assert_eq!(sent.header("content-type"), Some(content_type));
        assert_eq!(String::from_utf8_lossy(&sent.raw), raw);
    }
    assert_eq!(of("/status/503").len(), 2);
    assert_eq!(of("/status/404").len(), 1);
}

/// One outbound policy: an `http` task reaches no private address either.
#[tokio::test]
async fn http_follows_the_outbound_policy() {
    let world = World::new().await;
    let sink = Sink::start().await;
    let node = world.node().await;
    node.put_group("calls", one(json!({"http": {"url": format!("{}/x", sink.url)}})))
        .await;
    let run = node.run("calls", json!({})).await;
    assert_eq!(run["state"], "failed", "{run:#}");
    assert!(sink.requests().is_empty());
}

/// A sub-run: its params are the task's, its end is the task's.
#[tokio::test]
async fn group() {
    let (_world, node) = World::with_node().await;
    node.put_group("child", one(json!({"script": "echo"}))).await;
    node.put_group("bad-child", one(fails())).await;
    node.put_group(
        "parent",
        json!({"tasks": {
            "first": {"script": "hello"},
            "sub": {"group": "child", "depends_on": ["first"], "params": {"said": "{{ upstream.first.greeting }}"}},
            "after": {"script": "hello", "depends_on": ["sub"]},
            "bad": {"group": "bad-child"},
            "after_bad": {"script": "hello", "depends_on": ["bad"]},
            "map": {"group": "child", "for_each": ["x", "y"], "params": {"item": "{{ item }}"}},
        }}),
    )
    .await;
    let run = node
        .run("parent", json!({"logical_time": "2013-07-01T00:00:00Z"}))
        .await;
    assert_eq!(run["state"], "failed");
    assert_eq!(
        states(&run),
        "after=succeeded after_bad=upstream_failed bad=failed first=succeeded map=succeeded sub=succeeded",
        "{run:#}"
    );
    let children = node.all("/v1/runs?group=child").await;
    assert_eq!(children.len(), 3);
    let mut given: Vec<String> = children.iter().map(|child| child["params"].to_string()).collect();
    given.sort();
    assert_eq!(
        given,
        [r#"{"item":"x"}"#, r#"{"item":"y"}"#, r#"{"said":"Hello, world!"}"#]
    );
    for child in &children {
        assert_eq!(
            (&child["trigger"], &child["state"]),
            (&json!("task"), &json!("succeeded"))
        );
        assert_eq!(child["logical_time"], "2013-07-01T00:00:00.000000Z");
    }
}

/// To cancel a run is to cancel its sub-runs.
#[tokio::test]
async fn cancelling_reaches_sub_runs() {
    let (_world, node) = World::with_node().await;
    node.put_group("leaf", one(sleeps(3600.0))).await;
    node.put_group("middle", one(json!({"group": "leaf"}))).await;
    node.put_group("top", one(json!({"group": "middle"}))).await;
    let top = node.start("top", json!({})).await;
    let leaf = eventually("a running leaf", async || {
        let leaves = node.all("/v1/runs?group=leaf&state=running").await;
        leaves.first().map(id)
    })
    .await;
    node.task_becomes(&leaf, "t", "running").await;
    node.post(&format!("/v1/runs/{top}/cancel"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(node.ended(&leaf).await["state"], "cancelled");
    assert_eq!(node.all("/v1/runs?group=middle&state=cancelled").await.len(), 1);
}

/// A sub-run that takes longer than its task may is cancelled, and the attempt tells which one it was.
#[tokio::test]
async fn sub_runs_that_take_too_long() {
    let (_world, node) = World::with_node().await;
    node.put_group("slow", one(sleeps(3600.0))).await;
    let spec = json!({"tasks": {
        "sub": {"group": "slow", "timeout": "1s"},
        "map": {"group": "slow", "for_each": ["x", "y"], "timeout": "1s"},
    }});
    node.put_group("parent", spec).await;
    let run = node.run("parent", json!({})).await;
    assert_eq!(states(&run), "map=failed sub=failed", "{run:#}");
    let mut messages = Vec::new();
    for task in ["sub", "map?item=0", "map?item=1"] {
        let found = node
            .get(&format!("/v1/runs/{}/tasks/{task}", id(&run)))
            .await
            .expect_status(200);
        let error = &found["attempts"][0]["error"];
        assert_eq!(error["kind"], "timeout", "{found:#}");
        messages.push(error["message"].as_str().unwrap().to_owned());
    }
    let mut wanted = Vec::new();
    for slow in node.all("/v1/runs?group=slow").await {
        assert_eq!(node.ended(&id(&slow)).await["state"], "cancelled");
        wanted.push(format!(
            "sub-run {} cancelled: it took longer than the task's timeout",
            id(&slow)
        ));
    }
    messages.sort();
    wanted.sort();
    assert_eq!(messages, wanted);
}

/// A group that calls itself through sub-runs is refused, the circle named.
#[tokio::test]
async fn sub_runs_in_a_circle() {
    let (_world, node) = World::with_node().await;
    node.refused_group("a", one(json!({"group": "a"})))
        .await
        .expect_said(422, "a -> a");
    node.put_group("c", one(json!({"script": "hello"}))).await;
    node.put_group("b", one(json!({"group": "c"}))).await;
    node.put_group("a", one(json!({"group": "b"}))).await;
    let refused = node.refused_group("c", one(json!({"group": "a"}))).await;
    let said = refused.clone().expect_problem(422, &["/tasks/t/group"]).to_string();
    let circles = ["a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c"];
    assert!(circles.iter().any(|circle| said.contains(circle)), "{said}");
    node.refused_group("d", one(json!({"group": "nope"})))
        .await
        .expect_problem(422, &["/tasks/t/group"]);
}

/// A restart runs a failed sub-run's task again.
#[tokio::test]
async fn a_failed_sub_run_can_be_restarted() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "child",
        one(json!({"script": "flaky", "params": {"fail_times": 5, "kind": "fatal"}})),
    )
    .await;
    node.put_group(
        "parent",
        json!({"tasks": {"sub": {"group": "child"}, "t": {"script": "hello"}}}),
    )
    .await;
    let run = node.run("parent", json!({})).await;
    assert_eq!(run["state"], "failed");
    node.put_group("child", one(json!({"script": "hello"}))).await;
    node.post(&format!("/v1/runs/{}/restart", id(&run)), json!({}))
        .await
        .expect_status(200);
    let again = node.ended(&id(&run)).await;
    assert_eq!(again["state"], "succeeded", "{again:#}");
}
