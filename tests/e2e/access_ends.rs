//! What lasts ends with the token with which it began: streams, waiting polls, slow bodies.

use std::time::Duration;

use futures::StreamExt;
use heddle_tests::{Api, Node, Sse, World, eventually};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::{one, with};

/// An answer's body, as it comes.
type Feed = std::pin::Pin<Box<dyn futures::Stream<Item = reqwest::Result<bytes::Bytes>> + Send>>;

async fn token(node: &Node, spec: Value) -> String {
    let made = node.post("/v1/tokens", spec).await.expect_status(201);
    made["token"].as_str().expect("a token").to_owned()
}

/// The feed of events, of which one line has come.
async fn feed(api: &Api) -> Feed {
    let answer = api
        .request(Method::GET, "/v1/events?follow=true")
        .send()
        .await
        .expect("an answer");
    assert_eq!(answer.status(), 200);
    let mut stream: Feed = Box::pin(answer.bytes_stream());
    stream.next().await.expect("a line").expect("a whole one");
    stream
}

/// Reads a stream to its end; it breaks with an error if there is none.
async fn ends(mut stream: Feed) {
    while let Some(piece) = stream.next().await {
        piece.expect("a piece, or the end");
    }
}

async fn all_of(mut stream: Sse) -> Vec<String> {
    let mut names = Vec::new();
    while let Some((name, _)) = stream.next().await {
        names.push(name);
    }
    names
}

/// Asks for something that is not there yet, and waits for it.
fn hangs(api: &Api, path: &str, body: Value) -> JoinHandle<u16> {
    let (api, path) = (api.clone(), path.to_owned());
    let body = with(body, json!({"wait": "60s"}));
    tokio::spawn(async move { api.post(&path, body).await.status })
}

/// A run whose only task waits in a queue that nobody works for.
async fn waiting(node: &Node, queue: &str) -> String {
    node.put_group("waiting", one(json!({"queue": queue}))).await;
    node.start("waiting", json!({})).await
}

/// Revoked on one node, tokens end what is open on the other; what others have open goes on.
#[tokio::test]
async fn revoked_tokens_end_what_they_began() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let run = waiting(&nodes[0], "nobody").await;
    let with_new = async |spec: Value| {
        let token = token(&nodes[0], spec).await;
        nodes[1].with_token(Some(&token))
    };
    let reads = with_new(json!({"name": "v", "role": "viewer"})).await;
    let works = with_new(json!({"name": "w", "role": "worker", "queues": ["empty"]})).await;
    let polls = with_new(json!({"name": "p", "role": "worker", "uids": ["ann"]})).await;
    let poll = hangs(&polls, "/v1/dispatch/ann/next", json!({}));
    let claim = hangs(&works, "/v1/queues/empty/claims", json!({"worker": "w"}));
    let other = feed(nodes[1].api()).await;
    let all = feed(&reads).await;
    let mut events = reads.follow(&format!("/v1/runs/{run}/events")).await;
    assert!(events.next().await.is_some());
    let logs = reads.follow(&format!("/v1/runs/{run}/tasks/t/logs?follow=true")).await;
    eventually("the worker's poll", async || {
        let queue = nodes[1].get("/v1/queues/empty").await.body;
        (queue["workers"] == 1).then_some(())
    })
    .await;
    for name in ["v", "w", "p"] {
        nodes[0].delete(&format!("/v1/tokens/{name}")).await.expect_status(204);
    }
    ends(all).await;
    for names in [all_of(events).await, all_of(logs).await] {
        assert!(!names.contains(&"end".to_owned()), "the run has not ended: {names:?}");
    }
    assert_eq!(claim.await.expect("an answer"), 401);
    assert_eq!(poll.await.expect("an answer"), 401);
    // What comes now is nobody's but theirs who may.
    nodes[0].put_group("late", one(json!({"queue": "empty"}))).await;
    let late = nodes[0].start("late", json!({})).await;
    let claimed = nodes[1]
        .post("/v1/queues/empty/claims", json!({"worker": "other", "wait": "20s"}))
        .await
        .expect_status(200);
    assert_eq!(
        (&claimed["items"][0]["run"], &claimed["items"][0]["attempt"]),
        (&json!(late), &json!(1))
    );
    let mut other = other;
    assert!(
        other.next().await.is_some_and(|piece| piece.is_ok()),
        "nobody else's stream ends"
    );
}

/// A node that stands still learns nothing of a revocation. When it goes on, it asks the database before it accepts what
/// came meanwhile, although it has found the token valid a moment before.
#[tokio::test]
async fn a_node_that_stood_still_looks_tokens_up_again() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let sql = world.sql().await;
    let token = token(&nodes[0], json!({"name": "o", "role": "operator"})).await;
    let used = nodes[1].with_token(Some(&token));
    // Connections that the node has accepted, each with a request answered: what they send now waits in the node's sockets.
    let mut open = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(nodes[1].authority()).await.expect("a connection");
        write_put(&mut stream, &token, "before").await;
        open.push(stream);
    }
    for stream in &mut open {
        assert_ne!(status(stream).await, 401);
    }
    let before = used.get("/v1/categories").await.expect_status(200);
    nodes[1].freeze();
    nodes[0].delete("/v1/tokens/o").await.expect_status(204);
    // By the clock of the database: longer than a revocation may take.
    eventually("an old revocation", async || {
        let old = "SELECT clock_timestamp() - revoked_at > interval '2.1 s' FROM heddle.tokens WHERE name = 'o'";
        sql.query_one(old, &[]).await.unwrap().get::<_, bool>(0).then_some(())
    })
    .await;
    for (n, stream) in open.iter_mut().enumerate() {
        write_put(stream, &token, &format!("late-{n}")).await;
    }
    nodes[1].thaw();
    for stream in &mut open {
        assert_eq!(status(stream).await, 401);
    }
    assert_eq!(used.get("/v1/categories").await.status, 401);
    let after = nodes[0].get("/v1/categories").await.expect_status(200);
    assert_eq!(after["items"], before["items"]);
}

/// Writes a request to a connection that stays open.
async fn write_put(stream: &mut TcpStream, token: &str, category: &str) {
    let request = format!(
        "PUT /v1/categories/{category} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
        content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).await.expect("a request is sent");
}

/// The status of the next answer on a connection; reads the answer to its end.
async fn status(stream: &mut TcpStream) -> u16 {
    let (mut answer, mut piece) = (Vec::new(), [0; 4_096]);
    loop {
        let read = stream.read(&mut piece).await.expect("an answer");
        assert_ne!(read, 0, "the connection has ended");
        answer.extend_from_slice(&piece[..read]);
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let mut lines = head.lines().map(str::to_ascii_lowercase);
        let length = lines.find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        if body.len() >= length.expect("a length") {
            let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
            return status.expect("a status");
        }
    }
}

/// Nothing that comes after a token's end is taken: the answer says what was.
#[tokio::test]
async fn bodies_end_with_their_tokens() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    nodes[0]
        .put("/v1/topics/slow", json!({"queue": "nobody", "granularity": "instant"}))
        .await
        .expect_status(201);
    let token = token(&nodes[0], json!({"name": "o", "role": "operator"})).await;
    let sends = nodes[1].with_token(Some(&token));
    let due = crate::dispatch::wall_clock() + Duration::from_secs(86_400);
    let lines = futures::stream::unfold(0, move |n| async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let line = json!({"sender": n, "receiver": 1, "due": due, "payload": null});
        Some((Ok::<_, std::io::Error>(format!("{line}\n")), n + 1))
    });
    let request = sends
        .request(Method::POST, "/v1/topics/slow/messages")
        .header("content-type", "application/x-ndjson")
        .body(reqwest::Body::wrap_stream(lines));
    let sending = tokio::spawn({
        let sends = sends.clone();
        async move { sends.send(request).await }
    });
    let count = async || nodes[0].all("/v1/topics/slow/messages").await.len();
    eventually("messages", async || (count().await > 1).then_some(())).await;
    nodes[0].delete("/v1/tokens/o").await.expect_status(204);
    let answer = sending.await.expect("an answer").expect_problem(401, &[]);
    let said = answer["detail"].as_str().unwrap_or_default();
    assert!(
        said.contains(&format!("{} messages were accepted", count().await)),
        "{said}"
    );
}

/// A token whose time has come ends what it began, without anybody saying so; and so does the end of a session.
#[tokio::test]
async fn time_ends_what_tokens_began() {
    let (_world, node) = World::with_node().await;
    waiting(&node, "nobody").await;
    // On a busy machine a token may have expired before anything is open.
    for seconds in [2, 10, 50] {
        let name = format!("short-{seconds}");
        let until = crate::dispatch::wall_clock() + Duration::from_secs(seconds);
        let spec = json!({"name": name, "role": "admin", "expires_at": until});
        let token = token(&node, spec).await;
        let short = node.with_token(Some(&token));
        let claim = hangs(&short, "/v1/queues/empty/claims", json!({"worker": "w"}));
        let answer = short
            .request(Method::GET, "/v1/events?follow=true")
            .send()
            .await
            .expect("an answer");
        if answer.status() == 401 && seconds != 50 {
            continue;
        }
        assert_eq!(answer.status(), 200);
        ends(Box::pin(answer.bytes_stream())).await;
        assert_eq!(claim.await.expect("an answer"), 401);
        break;
    }
    let long = token(&node, json!({"name": "long", "role": "viewer"})).await;
    let signed_in = node.with_token(None).post("/v1/session", json!({"token": long})).await;
    let cookie = signed_in.headers["set-cookie"].to_str().expect("text").to_owned();
    let cookie = cookie.split(';').next().expect("a pair").to_owned();
    let browser = |method: Method, path: &str| {
        let request = node.with_token(None).request(method, path);
        request
            .header("cookie", &cookie)
            .header("sec-fetch-site", "same-origin")
    };
    let request = browser(Method::GET, "/v1/events?follow=true");
    let answer = request.send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    let by_token = feed(&node.with_token(Some(&long))).await;
    assert_eq!(node.send(browser(Method::DELETE, "/v1/session")).await.status, 204);
    ends(Box::pin(answer.bytes_stream())).await;
    waiting(&node, "nobody").await;
    let mut by_token = by_token;
    assert!(
        by_token.next().await.is_some_and(|piece| piece.is_ok()),
        "its token holds"
    );
}
