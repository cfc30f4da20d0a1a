//! The example workers as people run them, and what becomes of work whose worker dies.

use std::process::{Command, Stdio};

use heddle_tests::{Node, Process, TOKEN, World, eventually, task};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const RUST_WORKER: &str = env!("CARGO_BIN_EXE_example-worker");
const PYTHON_WORKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../runner/client/examples/worker.py");

/// A worker of the queue `q` that does so much at once.
fn worker(world: &World, node: &Node, program: &[&str], at_once: &str) -> Process {
    worker_of(world, node.base(), program, at_once)
}

/// The same of the server at this address.
fn worker_of(world: &World, base: &str, program: &[&str], at_once: &str) -> Process {
    let log = world.directory().join("worker.log");
    let file = std::fs::File::options().create(true).append(true).open(&log);
    let mut command = Command::new(program[0]);
    command
        .args(&program[1..])
        .args([base, "q", at_once])
        .env("HEDDLE_TOKEN", TOKEN)
        .stderr(Stdio::from(file.expect("a file for the log")));
    Process::of(command, log)
}

/// One task that sleeps in a worker, and may fail there.
fn sleeping(milliseconds: u64, more: Value) -> Value {
    let task = json!({"queue": "q", "params": {"sleep_ms": milliseconds}});
    json!({"tasks": {"t": crate::with(task, more)}})
}

/// Outputs, failures, mapped items; then a graceful stop, in the middle of a claim that waits.
async fn works_and_stops(program: &[&str], stop: impl FnOnce(&mut Process)) {
    let (world, node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {
            "one": {"queue": "q", "params": {"value": {"answer": 42}, "sleep_ms": 1}},
            "many": {"queue": "q", "for_each": [1, 2, 3, 4, 5], "params": {"value": "{{ item }}"}, "depends_on": ["one"]},
            "bad": {"queue": "q", "params": {"fail": "as asked"}, "allow_failure": true, "depends_on": ["one"]},
        }}),
    )
    .await;
    let mut worker = worker(&world, &node, program, "3");
    let run = node.run("g", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(task(&run, "one")["output"]["value"], json!({"answer": 42}));
    let values: Vec<&Value> = task(&run, "many")["output"]
        .as_array()
        .expect("outputs")
        .iter()
        .map(|output| &output["value"])
        .collect();
    assert_eq!(values, [1, 2, 3, 4, 5]);
    let bad = task(&run, "bad");
    assert_eq!(
        (&bad["state"], &bad["error"]["message"]),
        (&json!("failed"), &json!("as asked"))
    );
    stop(&mut worker);
    worker.says("stopped").await;
    assert!(worker.end().await.success());
}

#[tokio::test]
async fn the_example_in_rust() {
    works_and_stops(&[RUST_WORKER], |worker| worker.interrupt()).await;
}

#[tokio::test]
async fn the_example_in_rust_as_a_service() {
    works_and_stops(&[RUST_WORKER], |worker| worker.terminate()).await;
}

#[tokio::test]
async fn the_example_in_python() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("there is no python3 here: the Python example was not run");
        return;
    }
    works_and_stops(&["python3", PYTHON_WORKER], |worker| worker.terminate()).await;
}

/// The first line of a request that is read to its end.
async fn request(stream: &mut TcpStream) -> String {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut piece).await.expect("a request");
        bytes.extend_from_slice(&piece[..count]);
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.map_or(0, |length| length.parse().expect("a length"));
            if body.len() >= length {
                return head.lines().next().unwrap_or_default().to_owned();
            }
        }
        assert!(count > 0, "the request breaks off: {text}");
    }
}

/// A server that gives out one claim, and closes the connection of this many of its reports before it takes one.
async fn absent_server(listener: TcpListener, away: usize) {
    let claim =
        json!({"id": "c", "token": "t", "group": "g", "task": "t", "run": "r", "context": {}, "params": {"value": 1}});
    let mut claims = vec![json!({"items": [claim]})];
    // Whoever asks for more waits.
    let mut waiting = Vec::new();
    let mut reports = 0;
    loop {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let asked = request(&mut stream).await;
        let answer = if asked.contains("/complete") {
            reports += 1;
            if reports <= away {
                continue;
            }
            json!({})
        } else if asked.contains("/heartbeat") {
            json!({})
        } else if let Some(claim) = claims.pop() {
            claim
        } else {
            waiting.push(stream);
            continue;
        };
        let body = answer.to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.expect("a reader");
    }
}

/// The example in Python reports an outcome for as long as the server is away, also more often than five times.
#[tokio::test]
async fn the_example_in_python_outlasts_an_absent_server() {
    const AWAY: usize = 6;
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("there is no python3 here: the Python example was not run");
        return;
    }
    let world = World::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    let server = tokio::spawn(absent_server(listener, AWAY));
    let mut worker = worker_of(&world, &base, &["python3", PYTHON_WORKER], "1");
    for _ in 0..AWAY {
        worker.says("cannot reach the server").await;
    }
    worker.says("done: g/t r").await;
    server.abort();
}

/// `kill -9` of a worker in the middle of its lease: the attempt is lost, without using up a retry (there is none), and
/// the next worker does it.
#[tokio::test]
async fn a_worker_dies() {
    let (world, node) = World::with_node().await;
    node.put_group("g", sleeping(3_600_000, json!({}))).await;
    let mut dying = worker(&world, &node, &[RUST_WORKER], "1");
    let run = node.start("g", json!({})).await;
    dying.says("g t attempt 1").await;
    dying.kill();
    let claim = json!({"worker": "heir", "wait": "60s"});
    let held = node.post("/v1/queues/q/claims", claim).await.expect_status(200);
    let held = &held["items"][0];
    assert_eq!((&held["run"], &held["attempt"]), (&json!(run), &json!(2)), "{held:#}");
    let body = json!({"token": held["token"], "output": "done"});
    let path = format!("/v1/claims/{}/complete", held["id"].as_str().expect("an id"));
    node.post(&path, body).await.expect_status(200);
    let ended = node.ended(&run).await;
    assert_eq!(task(&ended, "t")["output"], "done", "{ended:#}");
    let attempts = node.attempts(&run, "t").await;
    let states: Vec<&str> = attempts.iter().filter_map(|one| one["state"].as_str()).collect();
    assert_eq!(states, ["lost", "succeeded"], "{attempts:#?}");
    assert_eq!(attempts[0]["error"]["kind"], "lost", "{attempts:#?}");
}

/// A worker that was away for longer than its lease and goes on as if nothing had been: what it says is refused, and it
/// drops the work.
#[tokio::test]
async fn a_worker_comes_back_from_the_dead() {
    let (world, node) = World::with_node().await;
    node.put_group("g", sleeping(600_000, json!({}))).await;
    let mut zombie = worker(&world, &node, &[RUST_WORKER], "1");
    let run = node.start("g", json!({})).await;
    zombie.says("g t attempt 1").await;
    zombie.freeze();
    let claim = json!({"worker": "heir", "wait": "60s", "lease": "10m"});
    let held = node.post("/v1/queues/q/claims", claim).await.expect_status(200);
    let held = &held["items"][0];
    assert_eq!(held["attempt"], 2, "{held:#}");
    zombie.thaw();
    // It is told by its next heartbeat; only then it is free to ask for more, and is seen to.
    zombie.interrupt();
    let said = zombie.says("stopped").await;
    assert!(said.contains("lost: 1") && said.contains("reported: 0"), "{said}");
    assert!(zombie.end().await.success());
    let body = json!({"token": held["token"], "output": "of the heir"});
    let path = format!("/v1/claims/{}/complete", held["id"].as_str().expect("an id"));
    node.post(&path, body).await.expect_status(200);
    assert_eq!(task(&node.ended(&run).await, "t")["output"], "of the heir");
}

/// A cancel reaches the worker by its next heartbeat: it drops the work and is free again.
#[tokio::test]
async fn a_cancel_reaches_the_example() {
    let (world, node) = World::with_node().await;
    node.put_group("long", sleeping(600_000, json!({}))).await;
    node.put_group("short", sleeping(1, json!({}))).await;
    let mut worker = worker(&world, &node, &[RUST_WORKER], "1");
    let run = node.start("long", json!({})).await;
    worker.says("long t attempt 1").await;
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(node.run("short", json!({})).await["state"], "succeeded");
    assert_eq!(node.ended(&run).await["state"], "cancelled");
    eventually("empty queue", async || {
        let queue = node.get("/v1/queues/q").await.body;
        (queue["depth"] == 0 && queue["claimed"] == 0).then_some(())
    })
    .await;
}
