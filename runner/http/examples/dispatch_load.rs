//! How fast a node gives out offers: `cargo run --release -p heddle-http --example dispatch_load -- 127.0.0.1:8080`
//! against a `heddle dev --no-demo` of a release build.
//!
//! Measures empty polls (200 offers for the user's groups, nothing due) beside a bare axum handler that answers 204, in
//! a process of its own, with the same client; and one hot occurrence that 256 pollers compete for, each assignment
//! completed. Prints; asserts nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const POLLERS: usize = 256;
const USERS: usize = 10_000;
const OFFERS_PER_GROUP: usize = 100;
const HOT_STOCK: usize = 100_000;
const MEASURED: Duration = Duration::from_secs(5);

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

/// A connection that is kept.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    host: String,
}

impl Connection {
    async fn open(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("nodelay");
        Self {
            stream,
            buffer: Vec::with_capacity(16 * 1024),
            host: address.to_owned(),
        }
    }

    /// Sends a request; the status and the body.
    async fn send(&mut self, method: &str, path: &str, body: &str) -> (u16, Vec<u8>) {
        let kind = if body.is_empty() {
            ""
        } else {
            "Content-Type: application/json\r\n"
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\n{kind}Content-Length: {}\r\n\r\n{body}",
            self.host,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await.expect("sent");
        self.buffer.clear();
        loop {
            assert!(
                self.stream.read_buf(&mut self.buffer).await.expect("an answer") > 0,
                "the node hung up"
            );
            let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") else {
                continue;
            };
            let head = std::str::from_utf8(&self.buffer[..end]).expect("a head");
            let status: u16 = head[9..12].parse().expect("a status");
            let length: usize = head
                .lines()
                .find_map(|line| {
                    line.to_ascii_lowercase()
                        .strip_prefix("content-length:")
                        .map(|n| n.trim().to_owned())
                })
                .map_or(0, |length| length.parse().expect("a length"));
            while self.buffer.len() < end + 4 + length {
                assert!(
                    self.stream.read_buf(&mut self.buffer).await.expect("an answer") > 0,
                    "the node hung up"
                );
            }
            return (status, self.buffer[end + 4..].to_vec());
        }
    }

    async fn made(&mut self, method: &str, path: &str, body: &str) {
        let (status, answer) = self.send(method, path, body).await;
        assert!(
            status < 300,
            "{method} {path}: {status} {}",
            String::from_utf8_lossy(&answer)
        );
    }
}

/// Polls for the users in turn, by all pollers; polls a second, and how many were not 204.
async fn polls(address: &str) -> (f64, u64) {
    let stop = now() + MEASURED;
    let (count, other) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let began = now();
    let tasks: Vec<_> = (0..POLLERS)
        .map(|poller| {
            let (count, other, address) = (count.clone(), other.clone(), address.to_owned());
            tokio::spawn(async move {
                let mut connection = Connection::open(&address).await;
                let mut user = poller;
                while now() < stop {
                    let (status, _) = connection.send("POST", &format!("/v1/dispatch/u{user}/next"), "").await;
                    count.fetch_add(1, Ordering::Relaxed);
                    other.fetch_add(u64::from(status != 204), Ordering::Relaxed);
                    user = (user + POLLERS) % USERS;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a poller");
    }
    (
        count.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64(),
        other.load(Ordering::Relaxed),
    )
}

async fn members(connection: &mut Connection, group: &str, prefix: &str, count: usize) {
    const PIECE: usize = 50_000;
    for from in (0..count).step_by(PIECE) {
        let users: Vec<String> = (from..(from + PIECE).min(count))
            .map(|user| format!("\"{prefix}{user}\""))
            .collect();
        let path = format!("/v1/audiences/{group}/members");
        connection
            .made("PATCH", &path, &format!("{{\"add\": [{}]}}", users.join(",")))
            .await;
    }
}

async fn hot(address: &str) {
    let mut connection = Connection::open(address).await;
    members(&mut connection, "gid_hot", "h", HOT_STOCK + 1_000).await;
    let offer = format!("{{\"audience\": \"gid_hot\", \"dispatch_times\": {HOT_STOCK}, \"params\": {{\"n\": 1}}}}");
    connection.made("PUT", "/v1/offers/hot", &offer).await;
    let (user, given) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let began = now();
    let tasks: Vec<_> = (0..POLLERS)
        .map(|_| {
            let (user, given, address) = (user.clone(), given.clone(), address.to_owned());
            tokio::spawn(async move {
                let mut connection = Connection::open(&address).await;
                loop {
                    let user = user.fetch_add(1, Ordering::Relaxed);
                    if user >= HOT_STOCK + 1_000 {
                        return;
                    }
                    let (status, answer) = connection.send("POST", &format!("/v1/dispatch/h{user}/next"), "").await;
                    if status != 200 {
                        assert_eq!(status, 204, "{}", String::from_utf8_lossy(&answer));
                        continue;
                    }
                    let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
                    let done = format!(
                        "{{\"assignment_id\": {}, \"status\": \"completed\", \"result\": {{\"ok\": true}}}}",
                        answer["assignment_id"]
                    );
                    let (status, answer) = connection
                        .send("POST", &format!("/v1/dispatch/h{user}/complete"), &done)
                        .await;
                    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
                    given.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a poller");
    }
    let given = given.load(Ordering::Relaxed);
    let took = began.elapsed().as_secs_f64();
    println!(
        "hot occurrence: {given} of {HOT_STOCK} given and completed, {:.0} a second",
        given as f64 / took
    );
}

async fn bare() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    let router = Router::new().route("/v1/dispatch/{uid}/next", post(async || StatusCode::NO_CONTENT));
    axum::serve(listener, router).await.expect("it serves");
}

#[tokio::main]
async fn main() {
    let address = std::env::args().nth(1).expect("the node's address, or `bare`");
    if address == "bare" {
        return bare().await;
    }
    let mut connection = Connection::open(&address).await;
    for group in ["gid_a", "gid_b"] {
        members(&mut connection, group, "u", USERS).await;
        for offer in 0..OFFERS_PER_GROUP {
            let body =
                format!("{{\"audience\": \"{group}\", \"anchor\": \"2100-01-01T00:00:00Z\", \"every\": \"5m\"}}");
            connection
                .made("PUT", &format!("/v1/offers/{group}-{offer}"), &body)
                .await;
        }
    }
    let mut child = std::process::Command::new(std::env::current_exe().expect("itself"))
        .arg("bare")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the bare handler");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("its output");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("its address");
    let bare_address = line.trim().to_owned();
    for round in 0..3 {
        let (limit, _) = polls(&bare_address).await;
        let (rate, other) = polls(&address).await;
        println!(
            "round {round}: bare handler {limit:.0} a second, empty polls {rate:.0} a second ({:.0}%), {other} not 204",
            100.0 * rate / limit
        );
    }
    let _ = child.kill();
    let _ = child.wait();
    hot(&address).await;
}
