//! A small HTTP server that remembers what it was asked, for tasks that call out.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A request that came in.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// Its path and query.
    pub path: String,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body, if it is JSON.
    pub body: Value,
    /// Its body, as it came.
    pub raw: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }
}

/// The server; the path says what it answers: `/status/503` is 503, `/after/5` is 503 with `Retry-After: 5`, everything
/// else 200.
#[derive(Clone, Debug)]
pub struct Sink {
    /// Where it is, `http://127.0.0.1:1234`.
    pub url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Sink {
    /// Starts it; it ends with the test's runtime.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = requests.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, seen.clone()));
            }
        });
        Self { url, requests }
    }

    /// What has come in so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("nobody panics with it").clone()
    }
}

/// One request per connection will do.
async fn serve(mut stream: TcpStream, seen: Arc<Mutex<Vec<Request>>>) -> Option<()> {
    let request = read_request(&mut stream).await?;
    let (status, more) = match request.path.strip_prefix("/after/") {
        Some(seconds) => ("503".to_owned(), format!("retry-after: {seconds}\r\n")),
        None => (
            request.path.strip_prefix("/status/").unwrap_or("200").to_owned(),
            String::new(),
        ),
    };
    seen.lock().ok()?.push(request);
    let answer = format!(
        "HTTP/1.1 {status} As asked\r\n{more}content-type: application/json\r\ncontent-length: 11\r\nconnection: close\r\n\r\n{{\"ok\":true}}"
    );
    stream.write_all(answer.as_bytes()).await.ok()?;
    stream.shutdown().await.ok()
}

/// Reads a request to its end.
pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length: usize = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    while bytes.len() < head_end + 4 + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let raw = bytes[head_end + 4..].to_vec();
    Some(Request {
        method,
        path,
        headers,
        body: serde_json::from_slice(&raw).unwrap_or_default(),
        raw,
    })
}
