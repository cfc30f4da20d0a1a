//! Bad input of every kind: each with its status and a body that names the place.

use heddle_tests::{PATIENCE, World, eventually, path_part, task};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::one;

/// Letters and digits of any writing system, up to 63 of them, in NFC.
#[tokio::test]
async fn names() {
    let (_world, node) = World::with_node().await;
    let longest = "名".repeat(63);
    for name in [
        "größe",
        "日次集計",
        "ежедневно",
        "تقرير",
        "दैनिक",
        "_x",
        "a.b-c_1",
        "1st",
        &longest,
    ] {
        node.put(
            &format!("/v1/groups/{}", path_part(name)),
            one(json!({"script": "hello"})),
        )
        .await
        .expect_status(201);
        let run = node.run(name, json!({})).await;
        assert_eq!((&run["state"], &run["group"]), (&json!("succeeded"), &json!(name)));
        let tasks = json!({"tasks": {name: {"script": "hello"}, "after": {
            "script": "echo", "depends_on": [name], "params": {"x": format!("{{{{ upstream[\"{name}\"].greeting }}}}")},
        }}});
        node.put_group(name, tasks).await;
        let run = node.run(name, json!({"task_params": {name: {"name": "ü"}}})).await;
        assert_eq!(run["state"], "succeeded", "{name}: {run:#}");
        assert_eq!(task(&run, "after")["output"]["params"]["x"], "Hello, ü!");
        assert_eq!(node.attempts(&heddle_tests::id(&run), name).await.len(), 1);
    }
    assert_eq!(node.all("/v1/groups").await.len(), 9);
    // One letter, written in two ways, is one name.
    let (composed, decomposed) = ("caf\u{e9}", "cafe\u{301}");
    node.put_group(composed, one(json!({"script": "hello"}))).await;
    let again = node
        .put(
            &format!("/v1/groups/{}", path_part(decomposed)),
            one(json!({"script": "hello"})),
        )
        .await;
    assert_eq!(again.expect_status(200)["name"], composed);
    // The same where a task names a script, and where a name is looked up.
    let wasm = heddle_scripts::get("hello").unwrap();
    node.put_bytes(
        &format!("/v1/scripts/{}", path_part(decomposed)),
        "application/wasm",
        wasm,
    )
    .await
    .expect_status(201);
    for script in [decomposed.to_owned(), format!("{decomposed}@1")] {
        let spec = json!({"category": decomposed, "tasks": {"t": {"script": script}}});
        let kept = node.put_group("by-script", spec).await;
        assert_eq!(kept["tasks"]["t"]["script"], script.replace(decomposed, composed));
        let run = node.run("by-script", json!({})).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        assert_eq!(run["scripts"]["t"], format!("{composed}@1"));
    }
    for list in ["/v1/groups?category=", "/v1/audit?kind=script&name=", "/v1/runs?group="] {
        let found = node.all(&format!("{list}{}", path_part(decomposed))).await;
        let same = node.all(&format!("{list}{}", path_part(composed))).await;
        assert_eq!(found, same, "{list}");
    }
    assert_eq!(
        node.all(&format!("/v1/groups?category={}", path_part(decomposed)))
            .await
            .len(),
        1
    );
    let channel = json!({"kind": "webhook", "url": "http://127.0.0.1:9/", "allow_private": true});
    node.put(&format!("/v1/channels/{}", path_part(composed)), channel)
        .await
        .expect_status(201);
    node.run("by-script", json!({"callback": decomposed})).await;
    let path = format!("/v1/notifications?channel={}", path_part(composed));
    eventually("notification of the call back", async || {
        (node.all(&path).await.len() == 1).then_some(())
    })
    .await;
    node.run(composed, json!({"callback": composed})).await;
    let told = format!("/v1/notifications?group={}", path_part(decomposed));
    eventually("notification about the group", async || {
        (node.all(&told).await.len() == 1).then_some(())
    })
    .await;
    let bulk = json!({"filter": {"script": decomposed}, "action": "delete", "dry_run": true});
    let bulk = node.post("/v1/runs/bulk", bulk).await.expect_status(200);
    assert_eq!(bulk["matched"], 3, "{bulk:#}");
    let too_long = "x".repeat(64);
    let far_too_long = "n".repeat(300);
    let hangul = "한".repeat(300);
    for bad in [
        &too_long,
        &far_too_long,
        &hangul,
        "-x",
        ".x",
        "a b",
        "a/b",
        "a@1",
        "😀",
        "a\u{0}b",
        "a\nb",
        "a\u{202e}b",
        "*",
    ] {
        let reply = node
            .put(
                &format!("/v1/groups/{}", path_part(bad)),
                one(json!({"script": "hello"})),
            )
            .await;
        assert!(
            matches!(reply.status, 400 | 422),
            "{bad:?}: {} {:#}",
            reply.status,
            reply.body
        );
        assert_eq!(reply.headers["content-type"], "application/problem+json", "{bad:?}");
        let reply = node.put_group("holder", one(json!({"script": "hello"}))).await;
        assert_eq!(reply["revision"], 1);
        let reply = node
            .refused_group("tasks", json!({"tasks": {bad: {"script": "hello"}}}))
            .await;
        assert_eq!(reply.status, 422, "{bad:?}: {:#}", reply.body);
        let wasm = heddle_scripts::get("hello").unwrap();
        let reply = node
            .put_bytes(&format!("/v1/scripts/{}", path_part(bad)), "application/wasm", wasm)
            .await;
        assert!(
            matches!(reply.status, 400 | 422),
            "{bad:?}: {} {:#}",
            reply.status,
            reply.body
        );
        // Of what cannot be there it is said that it is not there.
        assert!(
            matches!(
                node.get(&format!("/v1/groups/{}", path_part(bad))).await.status,
                400 | 404
            ),
            "{bad:?}"
        );
    }
}

/// What is no request for this API.
#[tokio::test]
async fn requests() {
    let (_world, node) = World::with_node().await;
    node.get("/v1/nope").await.expect_problem(404, &[]);
    node.get("/").await;
    let reply = node.delete("/v1/groups").await;
    assert!(reply.headers.contains_key("allow"));
    reply.expect_problem(405, &[]);
    // The pages too, and paths that there are not.
    for method in [Method::OPTIONS, Method::TRACE, Method::PATCH, Method::DELETE] {
        for path in ["/", "/groups", "/none"] {
            let reply = node.send(node.request(method.clone(), path)).await;
            assert_eq!(reply.headers["allow"], "GET, HEAD, POST", "{method} {path}");
            reply.expect_problem(405, &[]);
        }
    }
    for body in ["{", "", "nonsense", "{\"tasks\": }", "\u{feff}{}", "[1, 2"] {
        let reply = node.put_bytes("/v1/groups/g", "application/json", body).await;
        assert!(matches!(reply.status, 400 | 422), "{body}: {:#}", reply.body);
        assert_eq!(reply.headers["content-type"], "application/problem+json");
    }
    node.put_bytes("/v1/groups/g", "application/json", vec![b'"', 0xff, b'"'])
        .await
        .expect_problem(400, &[]);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let reply = node.put_bytes("/v1/groups/g", "application/json", deep).await;
    assert!(matches!(reply.status, 400 | 422), "{}", reply.status);
    let bomb = (0..30).fold("a0: &a0 [x]\n".to_owned(), |yaml, n| {
        format!(
            "{yaml}a{}: &a{} [*a{n}, *a{n}, *a{n}, *a{n}, *a{n}, *a{n}, *a{n}, *a{n}, *a{n}]\n",
            n + 1,
            n + 1
        )
    });
    let reply = node.put_bytes("/v1/groups/g", "application/yaml", bomb).await;
    assert!(matches!(reply.status, 400 | 413 | 422), "{}", reply.status);
    let reply = node.put_bytes("/v1/groups/g", "image/png", "{}").await;
    assert_eq!(reply.status, 415, "{:#}", reply.body);
    let reply = node
        .put_bytes("/v1/groups/g", "application/json", vec![b' '; 5 << 20])
        .await;
    reply.expect_problem(413, &[]);
    for path in ["/v1/runs?limit=%ff", "/v1/groups/%ff", "/v1/runs/%00"] {
        node.get(path).await.expect_problem(400, &[]);
    }
    node.get("/healthz").await.expect_status(200);
}

async fn raw(node: &heddle_tests::Node, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(node.authority()).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

fn head(method: &str, path: &str, length: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n",
        heddle_tests::TOKEN
    )
}

/// A body whose chunks are no chunks is told like any other body that cannot be read.
#[tokio::test]
async fn chunks_that_are_none() {
    let (_world, node) = World::with_node().await;
    let head = head("POST", "/v1/groups/g/runs", 0).replace("content-length: 0", "transfer-encoding: chunked");
    for chunks in ["zz\r\n{}\r\n", "2\r\n{}{}{}{}", "-1\r\n", "fffffffffffffffff\r\n"] {
        let mut stream = raw(&node, &format!("{head}{chunks}")).await;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{chunks:?}: {answer}");
        assert!(answer.contains("application/problem+json"), "{chunks:?}: {answer}");
        assert!(
            answer.contains("chunks of the body are not valid"),
            "{chunks:?}: {answer}"
        );
    }
}

/// A client that asks first is told to send its body only if the body is read.
#[tokio::test]
async fn bodies_that_are_asked_for() {
    let (_world, node) = World::with_node().await;
    let asking = |length: usize| {
        let asks = "\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n";
        head("PUT", "/v1/groups/g", length).replacen("\r\n\r\n", asks, 1)
    };
    for (refused, status) in [
        (asking(5 << 20), "HTTP/1.1 413 "),
        (asking(2).replace("application/json", "image/png"), "HTTP/1.1 415 "),
    ] {
        let mut stream = raw(&node, &refused).await;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with(status), "{answer}");
    }
    let spec = one(json!({"script": "hello"})).to_string();
    let mut stream = raw(&node, &asking(spec.len())).await;
    let mut told = [0; 12];
    stream.read_exact(&mut told).await.unwrap();
    assert_eq!(&told, b"HTTP/1.1 100");
    stream.write_all(spec.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("HTTP/1.1 201 "), "{answer}");
}

#[tokio::test]
async fn connect_is_not_implemented() {
    let (_world, node) = World::with_node().await;
    let mut stream = raw(
        &node,
        "CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    )
    .await;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 501 "), "{answer}");
}

/// Half-sent bodies leave nothing, and hold nobody up.
#[tokio::test]
async fn half_sent_bodies() {
    let (_world, node) = World::with_node().await;
    let spec = one(json!({"script": "hello"})).to_string();
    // Sent by half, then gone; also a submission, also a script.
    for (method, path) in [
        ("PUT", "/v1/groups/half"),
        ("POST", "/v1/groups/half/runs"),
        ("PUT", "/v1/scripts/half"),
    ] {
        for _ in 0..10 {
            let mut stream = raw(&node, &head(method, path, spec.len())).await;
            stream.write_all(&spec.as_bytes()[..spec.len() / 2]).await.unwrap();
            drop(stream);
        }
    }
    // Sent by half, and kept open: many more than there are places for uploads.
    let mut stalled = Vec::new();
    for index in 0..50 {
        let path = format!("/v1/groups/stalled{index}");
        let mut stream = raw(&node, &head("PUT", &path, spec.len())).await;
        stream.write_all(&spec.as_bytes()[..spec.len() / 2]).await.unwrap();
        stalled.push(stream);
    }
    for _ in 0..20 {
        node.put_group("whole", one(json!({"script": "hello"}))).await;
    }
    assert_eq!(node.run("whole", json!({})).await["state"], "succeeded");
    node.get("/v1/groups/half").await.expect_problem(404, &[]);
    node.get("/v1/scripts/half").await.expect_problem(404, &[]);
    // A body that does not come any further is given up, with an answer.
    let mut answer = Vec::new();
    let stream = &mut stalled[0];
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    read.expect("the server gives up in time").unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert_eq!(node.all("/v1/groups").await.len(), 1);
}

/// Requests that are no HTTP.
#[tokio::test]
async fn no_http() {
    let (_world, node) = World::with_node().await;
    for text in [
        "\u{16}\u{3}\u{1}",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        &format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000)),
    ] {
        let mut stream = raw(&node, text).await;
        let mut answer = Vec::new();
        // Whatever it answers: it closes, and lives.
        let _ = stream.shutdown().await;
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        assert!(
            read.is_ok(),
            "the connection stays open after {:?}",
            &text[..text.len().min(20)]
        );
    }
    node.get("/healthz").await.expect_status(200);
}

/// What the API says of itself.
#[tokio::test]
async fn description() {
    let (_world, node) = World::with_node().await;
    let document = node.get("/v1/openapi.json").await.expect_status(200);
    assert_eq!(document["openapi"].as_str().map(|version| &version[..3]), Some("3.1"));
    for path in [
        "/v1/groups/{name}/runs",
        "/v1/runs/{id}",
        "/v1/scripts/{name}",
        "/v1/runs/bulk",
    ] {
        assert!(document["paths"][path].is_object(), "{path} is not described");
    }
    let page = node.get("/docs").await;
    assert!(page.headers["content-type"].to_str().unwrap().starts_with("text/html"));
    let metrics = node
        .request(Method::GET, "/metrics")
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(metrics.contains("heddle_runs_ended_total"), "{metrics}");
}

/// A query parameter that a route does not have is said, and nothing is done.
#[tokio::test]
async fn queries_without_sense_are_refused() {
    let (_world, node) = World::with_node().await;
    let before = node.get("/v1/retention").await.expect_status(200);
    let problem = node
        .put("/v1/retention?dryrun=true", json!({"runs": "1d"}))
        .await
        .expect_problem(422, &["/dryrun"]);
    assert!(problem.to_string().contains("`dry_run`"), "{problem:#}");
    assert_eq!(
        node.get("/v1/retention").await.expect_status(200),
        before,
        "nothing changed"
    );
    node.put_group("g", one(json!({"script": "hello"}))).await;
    node.get("/v1/runs?stat=failed&limt=3&group=g")
        .await
        .expect_problem(422, &["/limt", "/stat"]);
    node.get("/v1/groups/g?x%2Fy=1").await.expect_problem(422, &["/x~1y"]);
    node.get("/v1/groups?=1").await.expect_problem(422, &["/"]);
    node.post("/v1/groups/g/runs?wait=1s", json!({}))
        .await
        .expect_problem(422, &["/wait"]);
    node.delete("/v1/groups/g?forced")
        .await
        .expect_problem(422, &["/forced"]);
    assert_eq!(node.all("/v1/runs?group=g").await.len(), 0);
    // What is told by the table of routes is taken.
    for path in [
        "/v1/nodes?limit=1",
        "/v1/runs?group=g&group=h&state=failed,succeeded&trigger=manual&label=a%3Db&key=k&history=true&limit=1",
        "/v1/audit?kind=group&name=g&actor=e2e&action=create&from=2020-01-01T00:00:00Z",
        "/v1/assignments?uid=a&gid=b&state=assigned",
        "/v1/events?after=&limit=1&kinds=&follow=false",
        // Forms send filters that nobody filled in.
        "/v1/audit?from=&to=&thing=&limit=&cursor=",
        "/v1/assignments?uid=&from=&to=&state=",
        "/v1/notifications?run=&state=",
        "/v1/offers/occurrences?offer=&from=&to=",
    ] {
        node.get(path).await.expect_status(200);
    }
    let polled = node.post("/v1/dispatch/ann/next?wait=10ms", json!({})).await;
    assert_eq!(polled.status, 204, "{:#}", polled.body);
    // What is not ours to define is left alone.
    for path in [
        "/healthz?x=1",
        "/readyz?x=1",
        "/checkstatus?x=1",
        "/docs?x=1",
        "/metrics?x=1",
    ] {
        node.get(path).await.expect_status(200);
    }
    let call = node
        .post("/task-scheduler/task/disableTask?x=1", json!({"taskId": 1}))
        .await;
    assert_eq!(call.expect_status(200)["code"], 404);
}

/// A call without a body accepts only an empty one; a call with JSON accepts nothing else.
#[tokio::test]
async fn bodies_where_none_is_taken() {
    let (_world, node) = World::with_node().await;
    let spec = json!({"kind": "webhook", "url": "http://127.0.0.1:9"});
    node.put("/v1/channels/hook", spec).await.expect_status(201);
    let path = "/v1/channels/hook/test";
    let notification = node.post(path, json!({})).await.expect_status(200);
    let resend = format!("/v1/notifications/{}/resend", heddle_tests::id(&notification));
    for path in [path, &resend, "/v1/secrets-key/rotate"] {
        for body in [None, Some(""), Some(" \n"), Some("{}"), Some("{ }")] {
            for media_type in [
                None,
                Some("application/json"),
                Some("application/x-www-form-urlencoded"),
            ] {
                let mut request = node.request(Method::POST, path);
                if let Some(media_type) = media_type {
                    request = request.header("content-type", media_type);
                }
                if let Some(body) = body {
                    request = request.body(body.to_owned());
                }
                let reply = node.send(request).await;
                assert_eq!(reply.status, 200, "{path} {body:?} {media_type:?}: {:#}", reply.body);
            }
        }
        node.post(path, json!({"to": "me"})).await.expect_problem(422, &["/to"]);
        node.post(path, json!([])).await.expect_problem(422, &[""]);
        let broken = node.request(Method::POST, path).body("{");
        node.send(broken).await.expect_problem(400, &[]);
    }
    // Whatever takes nothing refuses something, before it looks at anything else.
    let described = node.get("/v1/openapi.json").await.expect_status(200);
    let mut count = 0;
    for (path, methods) in described["paths"].as_object().expect("paths") {
        let post = &methods["post"];
        if post.is_null() || !post["requestBody"].is_null() {
            continue;
        }
        let parts: Vec<&str> = path
            .split('/')
            .map(|part| if part.starts_with('{') { "x" } else { part })
            .collect();
        let refused = node.post(&parts.join("/"), json!({"to": "me"})).await;
        refused.expect_problem(422, &["/to"]);
        count += 1;
    }
    assert!(count > 10, "{count}");
    node.put("/v1/topics/post", json!({"queue": "q", "granularity": "instant"}))
        .await
        .expect_status(201);
    let message = json!({"sender": 1, "receiver": 2, "due": "2026-01-01T00:00:00Z"}).to_string();
    for (media_type, status) in [
        ("application/json", 200),
        ("application/x-ndjson", 200),
        ("text/plain", 200),
        ("application/octet-stream", 200),
        ("application/vnd.messages+json", 200),
        ("application/yaml", 415),
        ("text/html", 415),
        ("image/png", 415),
        ("multipart/form-data; boundary=x", 415),
    ] {
        let request = node
            .request(Method::POST, "/v1/topics/post/messages")
            .header("content-type", media_type)
            .body(message.clone());
        let reply = node.send(request).await;
        assert_eq!(reply.status, status, "{media_type}: {:#}", reply.body);
    }
}

/// What takes JSON takes neither YAML nor what is no text.
#[tokio::test]
async fn media_types_of_json() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let bulk = json!({"filter": {"group": "none"}, "action": "cancel"}).to_string();
    for (path, body, status) in [
        ("/v1/groups/g/runs", "{}", 202),
        ("/v1/groups/g/runs", "", 202),
        ("/v1/groups/g/disable", "{}", 200),
        ("/v1/groups/g/enable", "", 200),
        ("/v1/runs/bulk", bulk.as_str(), 200),
    ] {
        let send = async |media_type: Option<&str>| {
            let mut request = node.request(Method::POST, path).body(body.to_owned());
            if let Some(media_type) = media_type {
                request = request.header("content-type", media_type);
            }
            node.send(request).await
        };
        for media_type in [
            None,
            Some("application/json"),
            Some("text/plain"),
            Some("application/x+json"),
        ] {
            let reply = send(media_type).await;
            assert_eq!(reply.status, status, "{path} {media_type:?}: {:#}", reply.body);
        }
        for media_type in ["application/yaml", "text/html", "multipart/form-data; boundary=x"] {
            let reply = send(Some(media_type)).await;
            assert_eq!(reply.status, 415, "{path} {media_type}: {:#}", reply.body);
        }
    }
}

/// A body without a required field may be left out, in each media type that the call takes.
#[tokio::test]
async fn bodies_that_may_be_left_out() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    node.put("/v1/queues/q", json!({"paused": false}))
        .await
        .expect_status(201);
    let checks = [
        (Method::PUT, "/v1/categories/c", 201),
        (Method::PUT, "/v1/queues/q", 200),
        (Method::PATCH, "/v1/groups/g", 200),
        (Method::PATCH, "/v1/audiences/gid_x/members", 200),
        (Method::POST, "/v1/groups/g/disable", 200),
        (Method::POST, "/v1/groups/g/runs?force=true", 202),
        (Method::POST, "/v1/scripts/hello/invoke", 200),
        // These have one.
        (Method::PUT, "/v1/pools/p", 400),
        (Method::PUT, "/v1/groups/h", 400),
        // Here, nothing would mean everything.
        (Method::PUT, "/v1/retention", 400),
    ];
    for (method, path, status) in checks {
        let reply = node.send(node.request(method.clone(), path)).await;
        assert_eq!(reply.status, status, "{method} {path}: {:#}", reply.body);
    }
    for (media_type, body) in [("application/json", "\n"), ("application/yaml", " ")] {
        let again = node.put_bytes("/v1/categories/c", media_type, body).await;
        assert_eq!(again.expect_status(200)["description"], "");
    }
    // What is there is an object.
    for body in ["null", "[]", "1"] {
        let reply = node
            .send(node.request(Method::POST, "/v1/groups/g/runs").body(body))
            .await;
        reply.expect_problem(422, &[""]);
    }
    let batch = node.post("/v1/groups/g/runs/batch", json!({"runs": [null]})).await;
    assert_eq!(batch.expect_status(202)["items"][0]["status"], 422);
    assert_eq!(node.get("/v1/groups/g").await.expect_status(200)["revision"], 1);
}

/// HEAD is GET without a body.
#[tokio::test]
async fn head_is_get_without_a_body() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    for (path, status) in [("/v1/groups", 200), ("/v1/groups/g", 200), ("/v1/groups/none", 404)] {
        let get = node.get(path).await;
        let head = node.send(node.request(Method::HEAD, path)).await;
        assert_eq!((head.status, get.status), (status, status), "{path}");
        assert_eq!(head.body, serde_json::Value::Null, "{path}");
        assert_eq!(head.headers.get("etag"), get.headers.get("etag"), "{path}");
    }
}

/// What is missing is named by its own place.
#[tokio::test]
async fn missing_fields_are_named() {
    let (_world, node) = World::with_node().await;
    node.put("/v1/secrets/s", json!({}))
        .await
        .expect_problem(422, &["/value"]);
    node.put("/v1/connections/c", json!({}))
        .await
        .expect_problem(422, &["/url"]);
    node.put("/v1/pools/p", json!({}))
        .await
        .expect_problem(422, &["/slots"]);
    node.post("/v1/tokens", json!({"role": "admin"}))
        .await
        .expect_problem(422, &["/name"]);
    node.post("/v1/tokens", json!({"name": "a"}))
        .await
        .expect_problem(422, &["/role"]);
    node.post("/v1/session", json!({}))
        .await
        .expect_problem(422, &["/token"]);
    node.put("/v1/channels/c", json!({}))
        .await
        .expect_problem(422, &["/kind"]);
    node.put("/v1/channels/c", json!({"kind": "slack"}))
        .await
        .expect_problem(422, &["/url"]);
    node.refused_group("g", one(json!({"http": {}})))
        .await
        .expect_problem(422, &["/tasks/t/http/url"]);
}

/// A number in a query that is out of bounds is 422 at its parameter, however far out; what is no number is 400.
#[tokio::test]
async fn numbers_of_queries_have_bounds() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "echo"}))).await;
    let far = "9".repeat(30);
    for (path, key) in [
        ("/v1/events", "limit"),
        ("/v1/groups", "limit"),
        ("/v1/groups/g/next", "count"),
    ] {
        for number in ["-1", "0", &far] {
            let pointer = format!("/{key}");
            node.get(&format!("{path}?{key}={number}"))
                .await
                .expect_problem(422, &[&pointer]);
        }
        for text in ["x", "1.5", "-"] {
            let problem = node.get(&format!("{path}?{key}={text}")).await.expect_problem(400, &[]);
            assert_eq!(problem["errors"], json!([]), "{problem:#}");
        }
    }
}
