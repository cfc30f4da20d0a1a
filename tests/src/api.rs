//! The API, thinly: a path and a body in, a status and JSON out.

use std::time::Duration;

use futures::StreamExt;
use heddle_client::choose_cryptography;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::PATIENCE;

/// A client of one node.
#[derive(Clone, Debug)]
pub struct Api {
    base: String,
    token: Option<String>,
    http: reqwest::Client,
}

#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    /// The body: JSON, or text as a JSON string, or null.
    pub body: Value,
    pub headers: HeaderMap,
}

impl Reply {
    /// The body of an answer that has to have this status.
    #[track_caller]
    pub fn expect_status(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{:#}", self.body);
        self.body
    }

    /// A problem of this status, at these places (as many as there are, in any order).
    #[track_caller]
    pub fn expect_problem(self, status: u16, pointers: &[&str]) -> Value {
        assert_eq!(self.status, status, "{:#}", self.body);
        let media_type = self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        assert_eq!(media_type, Some("application/problem+json"), "{:#}", self.body);
        for field in ["type", "title", "detail"] {
            assert!(self.body[field].is_string(), "no {field} in {:#}", self.body);
        }
        assert_eq!(self.body["status"], status);
        let mut found: Vec<&str> = self.body["errors"]
            .as_array()
            .map(|errors| errors.iter().filter_map(|error| error["pointer"].as_str()).collect())
            .unwrap_or_default();
        found.sort_unstable();
        let mut wanted = pointers.to_vec();
        wanted.sort_unstable();
        assert_eq!(found, wanted, "{:#}", self.body);
        self.body
    }

    /// A problem of this status that says this.
    #[track_caller]
    pub fn expect_said(self, status: u16, words: &str) -> Value {
        assert_eq!(self.status, status, "{:#}", self.body);
        assert!(
            self.body.to_string().contains(words),
            "`{words}` is not said in {:#}",
            self.body
        );
        self.body
    }
}

/// A body that `serde_json` cannot read: JSON that is nested deeper than it reads, or a text.
fn deep_or_text(text: &str) -> Value {
    match text.parse::<heddle_client::Json>().map(|json| json.value()) {
        Ok(value) if !value.is_null() => value,
        _ => Value::String(text.to_owned()),
    }
}

/// A name as a part of a path.
pub fn path_part(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

impl Api {
    /// A client of the node at an address.
    pub fn new(base: &str, token: Option<&str>) -> Self {
        choose_cryptography();
        let http = reqwest::Client::builder()
            // A node closes a connection that is idle for ten seconds; a test that waits for a command does not see that.
            .pool_idle_timeout(Duration::from_secs(5))
            .no_proxy()
            .timeout(PATIENCE)
            .pool_max_idle_per_host(32)
            .build()
            .expect("an HTTP client");
        Self {
            base: base.trim_end_matches('/').to_owned(),
            token: token.map(str::to_owned),
            http,
        }
    }

    /// The same node with another token.
    pub fn with_token(&self, token: Option<&str>) -> Self {
        Self {
            token: token.map(str::to_owned),
            ..self.clone()
        }
    }

    pub fn base(&self) -> &str {
        &self.base
    }

    /// Host and port, such as `127.0.0.1:1234`.
    pub fn authority(&self) -> &str {
        self.base.trim_start_matches("http://")
    }

    /// A request to be completed.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a request; an error if there is no answer.
    pub async fn try_send(&self, request: RequestBuilder) -> Result<Reply, reqwest::Error> {
        let answer = request.send().await?;
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let bytes = answer.bytes().await?;
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| match bytes.is_empty() {
            true => Value::Null,
            false => deep_or_text(&String::from_utf8_lossy(&bytes)),
        });
        Ok(Reply { status, body, headers })
    }

    pub async fn send(&self, request: RequestBuilder) -> Reply {
        self.try_send(request)
            .await
            .unwrap_or_else(|error| panic!("no answer: {error:?}"))
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.send(self.request(Method::GET, path)).await
    }

    /// GET, when it is not sure that there is somebody.
    pub async fn try_get(&self, path: &str) -> Option<Reply> {
        self.try_send(self.request(Method::GET, path)).await.ok()
    }

    pub async fn put(&self, path: &str, body: Value) -> Reply {
        self.send(self.request(Method::PUT, path).json(&body)).await
    }

    /// PUT of something else.
    pub async fn put_bytes(&self, path: &str, media_type: &str, body: impl Into<reqwest::Body>) -> Reply {
        self.send(
            self.request(Method::PUT, path)
                .header(CONTENT_TYPE, media_type)
                .body(body),
        )
        .await
    }

    pub async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    /// POST of JSON, when it is not sure that there is somebody.
    pub async fn try_post(&self, path: &str, body: Value) -> Option<Reply> {
        self.try_send(self.request(Method::POST, path).json(&body)).await.ok()
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// Puts a group that has to be taken.
    pub async fn put_group(&self, name: &str, spec: Value) -> Value {
        let reply = self.put(&format!("/v1/groups/{}", path_part(name)), spec).await;
        assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
        reply.body
    }

    /// Puts a group that has to be refused.
    pub async fn refused_group(&self, name: &str, spec: Value) -> Reply {
        self.put(&format!("/v1/groups/{}", path_part(name)), spec).await
    }

    /// Submits a run, which has to be accepted; answers its id.
    pub async fn start(&self, group: &str, submission: Value) -> String {
        let path = format!("/v1/groups/{}/runs", path_part(group));
        crate::id(&self.post(&path, submission).await.expect_status(202))
    }

    /// Submits a run and waits for its end.
    pub async fn run(&self, group: &str, submission: Value) -> Value {
        let run = self.start(group, submission).await;
        self.ended(&run).await
    }

    /// A run, as it is.
    pub async fn run_now(&self, run: &str) -> Value {
        self.get(&format!("/v1/runs/{run}")).await.expect_status(200)
    }

    /// A run at its end, which must come.
    pub async fn ended(&self, run: &str) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.get(&format!("/v1/runs/{run}?wait=20s")).await.expect_status(200);
            if matches!(found["state"].as_str(), Some("succeeded" | "failed" | "cancelled")) {
                return found;
            }
            assert!(Instant::now() < until, "the run does not end: {found:#}");
        }
    }

    /// Waits until a task run is in a state.
    pub async fn task_becomes(&self, run: &str, name: &str, state: &str) -> Value {
        crate::eventually(&format!("{state} task run {name}"), async || {
            let found = self.run_now(run).await;
            (crate::task(&found, name)["state"] == state).then_some(found)
        })
        .await
    }

    /// Waits until a run is in a state.
    pub async fn run_becomes(&self, run: &str, state: &str) -> Value {
        crate::eventually(&format!("{state} run"), async || {
            let found = self.run_now(run).await;
            (found["state"] == state).then_some(found)
        })
        .await
    }

    /// The attempts of a task run.
    pub async fn attempts(&self, run: &str, task: &str) -> Vec<Value> {
        let found = self
            .get(&format!("/v1/runs/{run}/tasks/{}", path_part(task)))
            .await
            .expect_status(200);
        found["attempts"].as_array().cloned().unwrap_or_default()
    }

    /// All lines of a task's log.
    pub async fn log_lines(&self, run: &str, task: &str) -> Vec<Value> {
        self.all(&format!("/v1/runs/{run}/tasks/{}/logs?limit=500", path_part(task)))
            .await
    }

    /// All pages of a list.
    pub async fn all(&self, path: &str) -> Vec<Value> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let joint = if path.contains('?') { '&' } else { '?' };
            let page = match &cursor {
                Some(cursor) => self.get(&format!("{path}{joint}cursor={}", path_part(cursor))).await,
                None => self.get(path).await,
            }
            .expect_status(200);
            items.extend(page["items"].as_array().cloned().unwrap_or_default());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => return items,
            }
        }
    }

    pub async fn follow(&self, path: &str) -> Sse {
        self.follow_with(self.request(Method::GET, path)).await
    }

    /// Continues after an event, as a browser does when the connection breaks.
    pub async fn follow_after(&self, path: &str, last_id: &str) -> Sse {
        let request = self.request(Method::GET, path).header("last-event-id", last_id);
        self.follow_with(request).await
    }

    async fn follow_with(&self, request: RequestBuilder) -> Sse {
        let request = request.header("accept", "text/event-stream");
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        Sse {
            stream: Box::pin(answer.bytes_stream()),
            buffer: String::new(),
            last_id: None,
        }
    }

    /// Invokes a script without a run.
    pub async fn invoke(&self, script: &str, params: Value) -> Value {
        let path = format!("/v1/scripts/{script}/invoke");
        self.post(&path, json!({"params": params})).await.expect_status(200)
    }
}

pub struct Sse {
    stream: std::pin::Pin<Box<dyn futures::Stream<Item = Result<bytes::Bytes, reqwest::Error>> + Send>>,
    buffer: String,
    last_id: Option<String>,
}

impl Sse {
    /// The id of the last event that has one.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// The next event's name and data; none at the end.
    pub async fn next(&mut self) -> Option<(String, Value)> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let field = |name: &str| {
                    event
                        .lines()
                        .find_map(|line| line.strip_prefix(name))
                        .map(|value| value.trim().to_owned())
                };
                let found = (field("event:"), field("data:"));
                self.last_id = field("id:").or(self.last_id.take());
                self.buffer = rest.to_owned();
                // What has no name is a comment, which keeps the connection alive.
                if let (Some(name), data) = found {
                    let data = data
                        .and_then(|data| serde_json::from_str(&data).ok())
                        .unwrap_or_default();
                    return Some((name, data));
                }
                continue;
            }
            let left = until
                .saturating_duration_since(Instant::now())
                .max(Duration::from_millis(1));
            let piece = tokio::time::timeout(left, self.stream.next())
                .await
                .expect("an event in time")?;
            self.buffer
                .push_str(&String::from_utf8_lossy(&piece.expect("a piece of the stream")));
        }
    }
}
