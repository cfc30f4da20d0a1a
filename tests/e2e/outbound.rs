//! Where HTTP may go, tried through all that makes requests: `http` tasks, scripts, uploads from an address.

use heddle_tests::{Node, Sink, World, task};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::one;

/// Places where nobody may be sent. (Every spelling of them is in a table beside the policy itself.)
const PRIVATE: &[&str] = &[
    "http://127.0.0.1:PORT/",
    "http://127.1:PORT/",
    "http://2130706433:PORT/",
    "http://0x7f.0.0.1:PORT/",
    "http://0177.0.0.1:PORT/",
    "http://0.0.0.0:PORT/",
    "http://[::1]:PORT/",
    "http://[::ffff:127.0.0.1]:PORT/",
    "http://[64:ff9b::7f00:1]:PORT/",
    "http://localhost:PORT/",
    "http://localhost.:PORT/",
    "http://user:password@127.0.0.1:PORT/",
    "http://169.254.169.254/latest/meta-data/",
    "http://10.0.0.1/",
    "http://100.64.0.1/",
    "http://[fc00::1]/",
    "http://[fe80::1]/",
];

/// A server that sends everybody elsewhere: to what follows `/to/`.
async fn redirecting() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut bytes = vec![0; 8_192];
                let read = socket.read(&mut bytes).await.unwrap_or(0);
                let head = String::from_utf8_lossy(&bytes[..read]).into_owned();
                let path = head.split(' ').nth(1).unwrap_or("/");
                let to = path.strip_prefix("/to/").unwrap_or("/").to_owned();
                let answer =
                    format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                let _ = socket.write_all(answer.as_bytes()).await;
            });
        }
    });
    url
}

/// Runs a task for each address; answers the task runs in order.
async fn tried(node: &Node, group: &str, tasks: Vec<Value>) -> Vec<Value> {
    let named: serde_json::Map<String, Value> = tasks
        .into_iter()
        .enumerate()
        .map(|(index, task)| (format!("t{index:02}"), task))
        .collect();
    let count = named.len();
    node.put_group(group, json!({"tasks": named})).await;
    let run = node.run(group, json!({})).await;
    (0..count)
        .map(|index| task(&run, &format!("t{index:02}")).clone())
        .collect()
}

#[tokio::test]
async fn nobody_is_sent_to_private_addresses() {
    let (_world, node) = World::with_node().await;
    let sink = Sink::start().await;
    let port = sink.url.rsplit(':').next().unwrap();
    let urls: Vec<String> = PRIVATE.iter().map(|url| url.replace("PORT", port)).collect();
    let retry = json!({"strategy": "fixed", "retries": 3, "interval": "10ms"});
    let calls = urls
        .iter()
        .map(|url| json!({"http": {"url": url}, "retry": retry}))
        .collect();
    for (found, url) in tried(&node, "calls", calls).await.iter().zip(&urls) {
        assert_eq!(found["state"], "failed", "{url}: {found:#}");
        // Fatal: to try again would change nothing.
        assert_eq!(
            (&found["error"]["kind"], &found["attempt"]),
            (&json!("http"), &json!(1)),
            "{url}"
        );
        let said = found["error"]["message"].as_str().unwrap();
        assert!(
            said.contains("not public") || said.contains("cannot be resolved"),
            "{url}: {said}"
        );
        assert!(!said.contains("password"), "{said}");
    }
    // A script that was granted the host is under the same policy.
    let granted = [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "169.254.169.254",
        "*.localhost",
        "10.0.0.1",
    ];
    let fetches = urls
        .iter()
        .map(|url| json!({"script": "fetch", "params": {"url": url}, "allow_hosts": granted}))
        .collect();
    for (found, url) in tried(&node, "fetches", fetches).await.iter().zip(&urls) {
        assert_eq!(found["state"], "failed", "{url}: {found:#}");
    }
    for url in &urls {
        let body = json!({"url": url, "sha256": "0".repeat(64)});
        let reply = node.post("/v1/scripts/fetched/fetch", body).await;
        assert!(matches!(reply.status, 403 | 422), "{url}: {:#}", reply.body);
    }
    assert!(sink.requests().is_empty(), "nothing went out: {:?}", sink.requests());
}

/// Redirects are checked like the first address, also from one that the operator allows.
#[tokio::test]
async fn redirects_lead_nowhere_else() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1").start().await;
    let sink = Sink::start().await;
    let port = sink.url.rsplit(':').next().unwrap();
    let base = redirecting().await;
    let inside: Vec<String> = [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.2:PORT/",
        "http://[::1]:PORT/",
        "http://10.0.0.1/",
        "file:///etc/passwd",
    ]
    .iter()
    .map(|url| format!("{base}/to/{}", url.replace("PORT", port)))
    .collect();
    let calls = inside.iter().map(|url| json!({"http": {"url": url}})).collect();
    for (found, url) in tried(&node, "calls", calls).await.iter().zip(&inside) {
        assert_eq!(found["state"], "failed", "{url}: {found:#}");
        assert_eq!(found["error"]["kind"], "http", "{url}");
        if url.contains("file:") {
            let said = "302 Found: the redirect is not allowed: file is not an http or https address";
            assert_eq!(found["error"]["message"], said, "{found:#}");
        }
    }
    for url in &inside {
        let body = json!({"url": url, "sha256": "0".repeat(64)});
        let status = node.post("/v1/scripts/fetched/fetch", body).await.status;
        assert!(matches!(status, 403 | 422), "{url}: {status}");
    }
    assert!(sink.requests().is_empty(), "{:?}", sink.requests());
    // A redirect to where one may go is followed, but not for ever.
    let fine = format!("{base}/to/{}/fine", sink.url);
    node.put_group("fine", one(json!({"http": {"url": fine}}))).await;
    assert_eq!(node.run("fine", json!({})).await["state"], "succeeded");
    assert_eq!(sink.requests().len(), 1);
    let endless = format!("{base}/to/{base}/to/{base}/to/{base}/to/{base}/to/{base}/to/{base}/to/{base}/to/{base}/x");
    node.put_group("endless", one(json!({"http": {"url": endless}}))).await;
    assert_eq!(node.run("endless", json!({})).await["state"], "failed");
}

/// A server that gives everybody these bytes.
async fn giving(media_type: &'static str, body: Vec<u8>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let _ = socket.read(&mut [0; 8_192]).await;
            let length = body.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {media_type}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
            );
            let _ = socket.write_all(head.as_bytes()).await;
            let _ = socket.write_all(&body).await;
        }
    });
    url
}

/// A script from an address is in the language that the server names, otherwise in that of the file's name, and wasm
/// without either.
#[tokio::test]
async fn scripts_are_fetched_in_their_language() {
    let world = World::new().await;
    let allowed = "127.0.0.1,localhost:1";
    let node = world.options().env("HEDDLE_ALLOW_PRIVATE", allowed).start().await;
    let source = b"export default () => 1;\n".to_vec();
    let wasm = heddle_scripts::get("hello").unwrap();
    let upload = async |media_type: &str, body: Vec<u8>| {
        let made = node.put_bytes("/v1/scripts/known", media_type, body).await;
        made.expect_status(201)["digest"].as_str().unwrap().to_owned()
    };
    let source = (upload("text/javascript", source.clone()).await, source);
    let wasm = (upload("application/wasm", wasm.clone()).await, wasm);
    for (index, (media_type, path, given, kind)) in [
        (
            "text/typescript; charset=utf-8",
            "/script",
            &source,
            "source/typescript",
        ),
        ("text/plain", "/raw/script.js?download=1", &source, "source/javascript"),
        ("application/octet-stream", "/script.wasm", &wasm, "heddle:task/task"),
        ("application/wasm", "/script.js", &wasm, "heddle:task/task"),
    ]
    .into_iter()
    .enumerate()
    {
        let (digest, bytes) = given;
        let url = format!("{}{path}", giving(media_type, bytes.clone()).await);
        let made = node
            .post(
                &format!("/v1/scripts/fetched-{index}/fetch"),
                json!({"url": url, "sha256": digest}),
            )
            .await
            .expect_status(201);
        assert_eq!(
            (&made["world"], &made["digest"]),
            (&json!(kind), &json!(digest)),
            "{url}"
        );
    }
    // A name that is allowed with other ports only is forbidden, as an address is that is not public.
    let body = json!({"url": "http://localhost:2/script.js", "sha256": source.0});
    node.post("/v1/scripts/fetched/fetch", body)
        .await
        .expect_said(403, "only with another port");
}

/// What comes back is bounded, however much there is of it.
#[tokio::test]
async fn answers_are_bounded() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1").start().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = socket.read(&mut [0; 8_192]).await;
                let head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n";
                let _ = socket.write_all(head).await;
                // Until the other side has had enough.
                while socket.write_all(&[b'x'; 65_536]).await.is_ok() {}
            });
        }
    });
    node.put_group("endless", one(json!({"http": {"url": url}}))).await;
    let run = node.run("endless", json!({})).await;
    assert_eq!(task(&run, "t")["error"]["kind"], "output", "{run:#}");
}
