//! Connections: slow ones are closed, open ones are let go when the node stops.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use heddle_http::{ServeLimits, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

/// The router of a node that has started.
fn served(router: Router) -> watch::Receiver<Option<Router>> {
    watch::channel(Some(router)).1
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut_off_and_shutdown_lets_requests_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (entered_sender, mut entered) = tokio::sync::mpsc::channel(1);
    let release = std::sync::Arc::new(tokio::sync::Notify::new());
    let held = release.clone();
    let slow = move || {
        let (entered, held) = (entered_sender.clone(), held.clone());
        async move {
            entered.send(()).await.unwrap();
            held.notified().await;
            "late"
        }
    };
    let router = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/slow", get(slow));
    let limits = ServeLimits {
        stranger_head_timeout: Duration::from_secs(2),
        ..ServeLimits::default()
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(serve(listener, served(router), limits, async move {
        let _ = stopped.await;
    }));

    let mut loris = TcpStream::connect(address).await.unwrap();
    loris.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ").await.unwrap();
    let mut silent = TcpStream::connect(address).await.unwrap();
    assert!(!read_all(&mut loris).await.contains("hello"));
    assert_eq!(read_all(&mut silent).await, "");

    // An answer starts the time again, a slow answer is not cut off, and then silence ends the connection.
    let mut kept = TcpStream::connect(address).await.unwrap();
    kept.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    entered.recv().await.unwrap();
    // The next silent connection is the first to be closed: this answer takes that long.
    let mut silent = TcpStream::connect(address).await.unwrap();
    assert_eq!(read_all(&mut silent).await, "");
    release.notify_one();
    let text = read_all(&mut kept).await;
    assert!(text.ends_with("late"), "{text}");

    let mut busy = TcpStream::connect(address).await.unwrap();
    busy.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    entered.recv().await.unwrap();
    stop.send(()).unwrap();
    release.notify_one();
    assert!(read_all(&mut busy).await.ends_with("late"));
    server.await.unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

/// Many more connections than there is room for, which send nothing or half a head: a real request is answered, and the
/// longest silent ones are closed for it.
#[tokio::test]
async fn a_crowd_that_says_nothing_keeps_nobody_out() {
    const STRANGERS_MAX: usize = 32;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", get(|| async { "hello" }));
    let limits = ServeLimits {
        connections_max: 2 * STRANGERS_MAX,
        strangers_max: STRANGERS_MAX,
        strangers_of_one_max: STRANGERS_MAX,
        // Nobody is closed for being late.
        stranger_head_timeout: Duration::from_secs(600),
        ..ServeLimits::default()
    };
    let server = tokio::spawn(serve(listener, served(router), limits, std::future::pending()));
    let mut crowd = Vec::new();
    for number in 0..10 * STRANGERS_MAX {
        let mut silent = TcpStream::connect(address).await.unwrap();
        if number % 2 == 0 {
            // It may have been closed at once.
            let _ = silent.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ").await;
        }
        crowd.push(silent);
        if number % STRANGERS_MAX == 0 {
            let mut asks = TcpStream::connect(address).await.unwrap();
            let head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            asks.write_all(head).await.unwrap();
            assert!(read_all(&mut asks).await.ends_with("hello"));
        }
    }
    // The first of them are closed.
    let mut byte = [0];
    for silent in crowd.iter_mut().take(8 * STRANGERS_MAX) {
        assert!(!matches!(silent.read(&mut byte).await, Ok(1..)));
    }
    server.abort();
}

/// A long answer that tells when nobody has it any more.
struct Told {
    bytes: Vec<u8>,
    dropped: tokio::sync::mpsc::Sender<()>,
}

impl AsRef<[u8]> for Told {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.dropped.try_send(());
    }
}

/// The kernel takes a part of a long answer. If nobody reads that, the connection is closed, and the answer is not kept.
#[tokio::test]
async fn an_answer_that_nobody_reads_is_given_up() {
    /// More than the kernel buffers.
    const BYTES: usize = 64 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (dropped, mut drops) = tokio::sync::mpsc::channel(1);
    let long = move || {
        let told = Told {
            bytes: vec![b'x'; BYTES],
            dropped: dropped.clone(),
        };
        async move { bytes::Bytes::from_owner(told) }
    };
    let router = Router::new().route("/", get(long));
    let limits = ServeLimits {
        unread_timeout: Duration::from_millis(50),
        // Nothing else ends it.
        header_timeout: Duration::from_secs(3_600),
        stranger_head_timeout: Duration::from_secs(3_600),
        stranger_request_timeout: Duration::from_secs(3_600),
        ..ServeLimits::default()
    };
    let server = tokio::spawn(serve(listener, served(router), limits, std::future::pending()));
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    drops.recv().await.expect("the answer is given up");
    // What the kernel has taken may still be read, or be lost; then the connection ends.
    let mut read = Vec::new();
    let _ = client.read_to_end(&mut read).await;
    assert!(read.len() < BYTES, "{}", read.len());
    server.abort();
}

/// What is not HTTP, or too large, is refused by hyper before a service is called: a status, nothing else, and the end.
#[tokio::test]
async fn what_is_no_http_gets_a_status_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().route("/", get(|| async { "hello" }));
    let server = tokio::spawn(serve(
        listener,
        served(router),
        ServeLimits::default(),
        std::future::pending(),
    ));
    // As long as a head may not be, and no longer: an answer to what is not read to its end may be lost.
    let long = |begin: &str| {
        let fill = ServeLimits::default().header_bytes_max - begin.len();
        format!("{begin}{}", "x".repeat(fill))
    };
    for (head, expect) in [
        ("no http at all\r\n\r\n".to_owned(), "400"),
        ("GET / HTTP/1.1\r\nno colon\r\n\r\n".to_owned(), "400"),
        (long("GET / HTTP/1.1\r\nx: "), "431"),
        (long("GET /"), "431"),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = read_all(&mut stream).await;
        assert_eq!(answer.split(' ').nth(1), Some(expect), "{head:.40}: {answer}");
        assert!(answer.to_lowercase().contains("content-length: 0"), "{answer}");
    }
    server.abort();
}
