//! Scripts: what is taken, what is refused, and why.

use heddle_tests::{Reply, World, eventually, task};
use serde_json::{Value, json};

use crate::one;

const HELLO: &str = "hello";

fn wasm(name: &str) -> Vec<u8> {
    heddle_scripts::get(name).unwrap()
}

/// Versions are numbered from 1; the digest of the newest makes no new one.
#[tokio::test]
async fn versions() {
    let (_world, node) = World::with_node().await;
    let upload = async |path: &str, name: &str| {
        node.put_bytes(&format!("/v1/scripts/{path}"), "application/wasm", wasm(name))
            .await
    };
    let first = upload("s", HELLO).await.expect_status(201);
    assert_eq!(
        (&first["name"], &first["version"], &first["world"]),
        (&json!("s"), &json!(1), &json!("heddle:task/task"))
    );
    assert_eq!(first["digest"].as_str().map(str::len), Some(64));
    assert_eq!(
        first["params_schema"]["properties"]["name"]["type"], "string",
        "{first:#}"
    );
    let same = upload("s", HELLO).await.expect_status(200);
    assert_eq!((&same["version"], &same["digest"]), (&json!(1), &first["digest"]));
    let second = upload("s", "fib").await.expect_status(201);
    assert_eq!(second["version"], 2);
    // An older digest is a new version.
    assert_eq!(upload("s", HELLO).await.expect_status(201)["version"], 3);
    assert_eq!(
        upload("s?activate=false", "echo").await.expect_status(201)["version"],
        4
    );
    let shown = node.get("/v1/scripts/s").await.expect_status(200);
    assert_eq!(
        (&shown["active_version"], &shown["latest_version"]),
        (&json!(3), &json!(4)),
        "{shown:#}"
    );
    node.put("/v1/scripts/s/active", json!({"version": 2}))
        .await
        .expect_status(200);
    assert_eq!(node.invoke("s", json!({"n": 10})).await["output"], 55);
    node.put("/v1/scripts/s/active", json!({"version": 9}))
        .await
        .expect_problem(422, &["/version"]);
    node.put("/v1/scripts/nope/active", json!({"version": 1}))
        .await
        .expect_problem(404, &[]);
    let all = node.all("/v1/scripts/s/versions?limit=2").await;
    assert_eq!(all.len(), 4);
    let bytes = node
        .request(reqwest::Method::GET, "/v1/scripts/s/versions/2/wasm")
        .send()
        .await
        .unwrap();
    assert_eq!(bytes.bytes().await.unwrap(), wasm("fib"));
    assert_eq!(
        node.get("/v1/scripts/s/versions/2").await.expect_status(200)["digest"],
        second["digest"]
    );
    node.get("/v1/scripts/s/versions/9").await.expect_problem(404, &[]);
    node.get("/v1/scripts/nope").await.expect_problem(404, &[]);
}

/// The same upload from ten clients on two nodes at once makes one version.
#[tokio::test]
async fn ten_uploads_at_once() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let uploads = (0..10).map(|client: usize| {
        let node = &nodes[client % 2];
        node.put_bytes("/v1/scripts/s", "application/wasm", wasm(HELLO))
    });
    let replies = futures::future::join_all(uploads).await;
    let mut statuses: Vec<u16> = replies.iter().map(|reply| reply.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 200, 200, 201]);
    assert!(replies.iter().all(|reply| reply.body["version"] == 1));
}

/// Anything that is no script is 422, saying what it is and what is missing.
#[tokio::test]
async fn refused() {
    let (_world, node) = World::with_node().await;
    let whole = wasm(HELLO);
    let half = whole[..whole.len() / 2].to_vec();
    let mut broken = whole.clone();
    let middle = broken.len() / 3;
    broken[middle..middle + 512].iter_mut().for_each(|byte| *byte = !*byte);
    let nested = format!(
        "(module (func (export \"_start\") {} {}))",
        "(loop ".repeat(7000),
        ")".repeat(7000)
    );
    for (what, bytes, said) in [
        ("nothing", Vec::new(), "empty"),
        ("garbage", b"MZ\x90\0 this is no wasm".to_vec(), "not WebAssembly"),
        ("half", half, ""),
        ("broken", broken, ""),
        ("only a head", whole[..8].to_vec(), ""),
        (
            "bad text",
            b"(module (func $x (export \"_start\") i32.add))".to_vec(),
            "",
        ),
        ("unclosed text", b"(module".to_vec(), ""),
        (
            "a library",
            b"(module (func (export \"add\") (param i32) (result i32) local.get 0))".to_vec(),
            "_start",
        ),
        ("an empty module", b"(module)".to_vec(), "_start"),
        ("an empty component", b"(component)".to_vec(), "run"),
        (
            "foreign imports",
            b"(module (import \"env\" \"exec\" (func)) (func (export \"_start\")))".to_vec(),
            "env",
        ),
        (
            "too large a memory",
            b"(module (memory 60000) (func (export \"_start\")))".to_vec(),
            "memory",
        ),
        (
            "too large a table",
            b"(module (table 10000000 funcref) (func (export \"_start\")))".to_vec(),
            "table",
        ),
        ("too deep loops", nested.into_bytes(), "loops"),
    ] {
        let reply = node.put_bytes("/v1/scripts/bad", "application/wasm", bytes).await;
        assert_eq!(reply.status, 422, "{what}: {:#}", reply.body);
        let detail = reply.body["detail"].as_str().unwrap_or_default();
        assert!(
            detail.contains(said) && !detail.is_empty(),
            "{what}: `{said}` is not said in {detail}"
        );
    }
    node.get("/v1/scripts/bad").await.expect_problem(404, &[]);
    // The node is as it was.
    assert_eq!(node.invoke(HELLO, json!({})).await["state"], "succeeded");
}

/// More than 64 MiB are 413, announced or not.
#[tokio::test]
async fn oversized() {
    let (_world, node) = World::with_node().await;
    let size = (64 << 20) + 1;
    let reply = node
        .put_bytes("/v1/scripts/big", "application/wasm", vec![0; size])
        .await;
    reply.expect_problem(413, &[]);
    let pieces = (0..65).map(|_| Ok::<_, std::io::Error>(vec![0_u8; 1 << 20]));
    let stream = reqwest::Body::wrap_stream(futures::stream::iter(pieces));
    let request = node.request(reqwest::Method::PUT, "/v1/scripts/big").body(stream);
    // A server that has heard enough may close before the client has sent all.
    if let Ok(reply) = node.try_send(request).await {
        reply.expect_problem(413, &[]);
    }
    node.get("/v1/scripts/big").await.expect_problem(404, &[]);
    node.get("/healthz").await.expect_status(200);
}

/// WebAssembly text is accepted where wasm is.
#[tokio::test]
async fn text_form() {
    let (_world, node) = World::with_node().await;
    let text = "(module (memory (export \"memory\") 1) (func (export \"_start\")))";
    let made = node
        .put_bytes("/v1/scripts/text", "text/plain", text)
        .await
        .expect_status(201);
    assert_eq!(made["world"], "wasi:cli/command@p1");
    let done = node.invoke("text", json!({})).await;
    assert_eq!((&done["state"], &done["output"]), (&json!("succeeded"), &Value::Null));
    node.put_group("g", one(json!({"script": "text"}))).await;
    assert_eq!(node.run("g", json!({})).await["state"], "succeeded");
}

/// Invoking tries a script without a run.
#[tokio::test]
async fn invoke() {
    let (_world, node) = World::with_node().await;
    let done = node.invoke(HELLO, json!({"name": "you"})).await;
    assert_eq!((&done["state"], &done["error"]), (&json!("succeeded"), &Value::Null));
    assert_eq!(done["output"], json!({"greeting": "Hello, you!"}));
    assert_eq!(done["logs"][0]["message"], "Hello, you!");
    assert!(done["duration_ms"].as_f64().unwrap() > 0.0 && done["memory_bytes"].as_u64().unwrap() > 0);
    let failed = node.invoke("flaky", json!({"kind": "fatal"})).await;
    assert_eq!(
        (&failed["state"], &failed["error"]["kind"]),
        (&json!("failed"), &json!("fatal"))
    );
    let post = async |script: &str, body: Value| node.post(&format!("/v1/scripts/{script}/invoke"), body).await;
    let spun = post("hostile", json!({"params": {"mode": "spin"}, "timeout": "300ms"}))
        .await
        .expect_status(200);
    assert_eq!(
        (&spun["state"], &spun["error"]["kind"]),
        (&json!("timed_out"), &json!("timeout"))
    );
    post("fib", json!({"params": {"n": "x"}}))
        .await
        .expect_problem(422, &["/params/n"]);
    post("fib", json!({"params": {"n": 1}, "version": 7}))
        .await
        .expect_problem(422, &["/version"]);
    post("fib", json!({"params": {"n": 1}, "timeout": "1d"}))
        .await
        .expect_problem(422, &["/timeout"]);
    post("fib", json!({"parms": {}})).await.expect_problem(422, &["/parms"]);
    post("nope", json!({})).await.expect_problem(404, &[]);
    // The name alone is the active version, so none while there is none.
    node.put_bytes("/v1/scripts/idle?activate=false", "application/wasm", wasm(HELLO))
        .await
        .expect_status(201);
    post("idle", json!({}))
        .await
        .expect_said(409, "script `idle` has no active version");
    let done = post("idle", json!({"version": 1})).await.expect_status(200);
    assert_eq!(done["state"], "succeeded", "{done:#}");
    assert_eq!(node.all("/v1/runs").await.len(), 0);
}

/// A script that is used is not deleted: 409 names by whom.
#[tokio::test]
async fn delete() {
    let (_world, node) = World::with_node().await;
    for name in ["s", "t"] {
        node.put_bytes(&format!("/v1/scripts/{name}"), "application/wasm", wasm(HELLO))
            .await
            .expect_status(201);
    }
    node.put_group("users-of-s", one(json!({"script": "s"}))).await;
    node.delete("/v1/scripts/s").await.expect_said(409, "users-of-s");
    node.delete("/v1/scripts/t").await.expect_status(204);
    node.get("/v1/scripts/t").await.expect_problem(404, &[]);
    node.delete("/v1/scripts/t").await.expect_problem(404, &[]);
    node.refused_group("g", one(json!({"script": "t"})))
        .await
        .expect_problem(422, &["/tasks/t/script"]);
    // A version never comes to mean other code.
    let again = node
        .put_bytes("/v1/scripts/t", "application/wasm", wasm("fib"))
        .await
        .expect_status(201);
    assert_eq!(again["version"], 2);
    node.delete("/v1/groups/users-of-s").await.expect_status(200);
    node.delete("/v1/scripts/s").await.expect_status(204);
}

/// A run never waits for a compiler on the node that took the upload, and on others finds the script all the same.
#[tokio::test]
async fn scripts_reach_all_nodes() {
    let world = World::new().await;
    let nodes = world.nodes(3).await;
    let text = "(module (memory (export \"memory\") 1) (func (export \"_start\")))";
    nodes[0]
        .put_bytes("/v1/scripts/fresh", "text/plain", text)
        .await
        .expect_status(201);
    nodes[1]
        .put_group("g", one(json!({"script": "fresh", "shards": 60})))
        .await;
    let run = nodes[2].run("g", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{:#}", task(&run, "t"));
}

/// A script for messages is no script for tasks.
#[tokio::test]
async fn consumers_are_no_tasks() {
    let (_world, node) = World::with_node().await;
    assert_eq!(
        node.get("/v1/scripts/greetings").await.expect_status(200)["world"],
        "heddle:task/consumer"
    );
    node.refused_group("g", one(json!({"script": "greetings"})))
        .await
        .expect_problem(422, &["/tasks/t/script"]);
}

/// What a script's schema makes impossible concerns the groups that use it: neither schedules nor the inbox stop for
/// others. (No upload is let in with such a schema; this one is from before.)
#[tokio::test]
async fn a_schema_that_cannot_be_used_stops_nobody_else() {
    let (world, mut node) = World::with_node().await;
    let text = "(module (memory (export \"memory\") 1) (func (export \"_start\")))";
    node.put_bytes("/v1/scripts/broken", "text/plain", text)
        .await
        .expect_status(201);
    let each_second = |script: &str| json!({"schedules": {"s": {"every": "1s"}}, "tasks": {"t": {"script": script}}});
    node.put_group("victim", each_second("broken")).await;
    node.put_group("innocent", each_second("hello")).await;
    node.kill();
    world
        .sql()
        .await
        .execute(
            r#"UPDATE heddle.script_versions SET params_schema = '{"$ref": "https://example.com/schema.json"}'
                WHERE script_id = (SELECT id FROM heddle.scripts WHERE name = 'broken')"#,
            &[],
        )
        .await
        .expect("an update");
    let node = world.node().await;
    let since = node.get("/v1/runs?group=innocent&limit=1").await.expect_status(200)["items"][0]["id"].clone();
    let sql = world.sql().await;
    for group in ["victim", "innocent"] {
        sql.execute("SELECT heddle.submit($1, '{}', 'by-sql')", &[&group])
            .await
            .expect("a submission");
    }
    heddle_tests::eventually("runs of both", async || {
        let newest = |group: &str| format!("/v1/runs?group={group}&trigger=schedule&state=succeeded,failed&limit=1");
        let innocent = node.get(&newest("innocent")).await.body["items"][0].clone();
        let victim = node.get(&newest("victim")).await.body["items"][0].clone();
        (innocent["id"] != since && innocent["state"] == "succeeded" && victim["state"] == "failed").then_some(())
    })
    .await;
    for (group, state) in [("victim", "failed"), ("innocent", "succeeded")] {
        let found = node.all(&format!("/v1/runs?group={group}&trigger=manual")).await;
        let run = node.ended(found[0]["id"].as_str().expect("a run")).await;
        assert_eq!(run["state"], state, "{run:#}");
        if state == "failed" {
            let error = &task(&run, "t")["error"];
            assert_eq!(error["kind"], "invalid", "{run:#}");
            let said = error["message"].as_str().expect("a message");
            assert!(
                said.contains("is not valid") && said.contains("https://example.com/schema.json"),
                "{said}"
            );
        }
    }
    // Nobody is told of a fault of Heddle's own; whoever submits hears what is wrong.
    node.post("/v1/groups/victim/runs", json!({}))
        .await
        .expect_said(422, "is not valid");
    node.refused_group("another", one(json!({"script": "broken"})))
        .await
        .expect_said(422, "is not valid");
}

/// It is refused for what it takes. A node whose machine gives it no time cannot tell yet: it says so, and is asked again.
async fn given_up(ask: impl AsyncFn() -> Reply) {
    let reply = eventually("verdict", async || {
        let reply = ask().await;
        let busy = reply.status == 503
            && reply.body["detail"]
                .as_str()
                .is_some_and(|said| said.contains("too busy"));
        (!busy).then_some(reply)
    });
    reply.await.expect_said(422, "was stopped");
}

/// A schema of 1.4 KB that takes gigabytes is refused when it comes, and given up where an earlier build let it in.
#[tokio::test]
async fn a_schema_that_takes_too_much_is_given_up() {
    let (world, mut node) = World::with_node().await;
    let levels = 40;
    let mut all = serde_json::Map::new();
    for level in 0..levels {
        let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
        all.insert(format!("d{level}"), json!({"allOf": [next, next]}));
    }
    all.insert(format!("d{levels}"), json!({"type": "object"}));
    let schema = json!({"$ref": "#/$defs/d0", "unevaluatedProperties": false, "$defs": all});
    given_up(async || node.put("/v1/templates/bomb", schema.clone()).await).await;
    let reply = node.put("/v1/templates/bomb", json!({"type": "object"})).await;
    assert_eq!(reply.status, 201, "{:#}", reply.body);
    node.put_group("g", json!({"template": "bomb", "tasks": {"t": {"script": "hello"}}}))
        .await;
    node.put_group("light", one(json!({"script": "hello"}))).await;
    node.kill();
    world
        .sql()
        .await
        .execute(
            "UPDATE heddle.templates SET schema = $1::text::jsonb",
            &[&schema.to_string()],
        )
        .await
        .expect("an update");
    let node = world.node().await;
    for _ in 0..5 {
        given_up(async || node.post("/v1/groups/g/runs", json!({"params": {"a": 1}})).await).await;
    }
    assert_eq!(node.run("light", json!({})).await["state"], "succeeded");
}
