//! Pages that are not read.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use heddle_http::{App, Elsewhere, ServeLimits, admit, router_with, serve};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::Fixture;
use super::memory::{config, token};

/// Pages of as many MiB as their path says. What is not admitted gets a page that says so.
fn pages(app: App, changes: Arc<AtomicUsize>) -> Elsewhere {
    Arc::new(move |request: Request| -> BoxFuture<'static, Response> {
        let (app, changes) = (app.clone(), changes.clone());
        Box::pin(async move {
            let (mut head, _) = request.into_parts();
            if let Err(problem) = admit(&app, &mut head).await {
                return (problem.status, "the page of a refusal").into_response();
            }
            if head.method == Method::POST {
                changes.fetch_add(1, Ordering::Relaxed);
            }
            let mib: usize = head.uri.path().trim_start_matches('/').parse().unwrap();
            Body::from(vec![0_u8; mib << 20]).into_response()
        })
    })
}

/// The status of an answer, and the connection with the rest of it.
async fn ask(address: SocketAddr, method: &str, path: &str, token: &str) -> (String, BufReader<TcpStream>) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    (line.split(' ').nth(1).unwrap_or_default().to_owned(), stream)
}

#[tokio::test]
async fn pages_that_are_not_read_leave_room_for_others() {
    // 48 MiB of them for one caller.
    let fixture = Fixture::with_config(config(16, 64), &["false"]).await;
    let (a, b) = (token(&fixture, "a").await, token(&fixture, "b").await);
    let changes = Arc::new(AtomicUsize::new(0));
    let router = router_with(fixture.app.clone(), pages(fixture.app.clone(), changes.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_router, routers) = watch::channel(Some(router));
    let server = tokio::spawn(serve(listener, routers, ServeLimits::default(), std::future::pending()));

    assert_eq!(ask(address, "POST", "/0", &a).await.0, "200");
    assert_eq!(changes.load(Ordering::Relaxed), 1);
    // More than the kernel buffers.
    let (status, _unread) = ask(address, "GET", "/64", &a).await;
    assert_eq!(status, "200");
    // Whoever reads no pages gets no others, and changes nothing.
    let (status, mut refused) = ask(address, "GET", "/1", &a).await;
    let mut rest = String::new();
    refused.read_to_string(&mut rest).await.unwrap();
    assert_eq!(
        (status.as_str(), rest.ends_with("the page of a refusal")),
        ("429", true)
    );
    assert_eq!(ask(address, "POST", "/0", &a).await.0, "429");
    assert_eq!(changes.load(Ordering::Relaxed), 1);
    // Another viewer at the same address, which may be that of a proxy.
    assert_eq!(ask(address, "GET", "/1", &b).await.0, "200");
    assert_eq!(ask(address, "POST", "/0", &b).await.0, "200");
    server.abort();
    fixture.end().await;
}
