//! What one caller keeps in memory, by answers that it does not read and bodies that it does not finish, does not hinder
//! others.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use axum::response::Response;
use bytes::Bytes;
use heddle_domain::Clock;
use heddle_http::HttpConfig;
use heddle_store::change::By;
use heddle_store::token::TokenWrite;
use tower::ServiceExt;
use uuid::Uuid;

use super::{Fixed, Fixture, script};

const MIB: usize = 1 << 20;

const MEMBERS: &str = "/v1/audiences/gid_x/members";

/// Bounds of 4 requests, and of so many MiB; nobody waits for long.
pub(super) fn config(bodies: usize, answers: usize) -> HttpConfig {
    HttpConfig {
        requests_max: 4,
        bodies_bytes_max: bodies * MIB,
        answers_bytes_max: answers * MIB,
        memory_wait: Duration::from_millis(1),
        body_idle_timeout: Duration::from_secs(600),
        ..HttpConfig::default()
    }
}

/// An operator's token, as a header has it.
pub(super) async fn token(fixture: &Fixture, name: &str) -> String {
    token_as(fixture, name, "operator").await
}

async fn token_as(fixture: &Fixture, name: &str, role: &str) -> String {
    let text = format!("hdl_{name}");
    let by = By {
        actor: "cli",
        at: Fixed.now(),
    };
    let write = TokenWrite {
        id: Uuid::from_u128(name.as_bytes()[0].into()),
        name,
        hash: heddle_http::access::token_hash(&text),
        role,
        queues: &[],
        uids: &[],
        expires_at: None,
    };
    fixture.store.create_token(by, write).await.unwrap().unwrap();
    format!("Bearer {text}")
}

/// An answer whose body is not read.
async fn ask(router: Router, method: &'static str, path: &'static str, token: String, body: Body) -> Response {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost")
        .header(header::AUTHORIZATION, token)
        .header(header::CONTENT_TYPE, "application/json")
        .body(body)
        .unwrap();
    router.oneshot(request).await.unwrap()
}

/// The members of an audience, in a body of so many bytes.
fn members(bytes: usize) -> Body {
    let mut text = br#"{"members":["u1"]}"#.to_vec();
    text.resize(bytes.max(text.len()), b' ');
    text.into()
}

#[tokio::test]
async fn an_answer_that_is_not_read_keeps_its_slot() {
    let fixture = Fixture::with_config(config(16, 16), &["false"]).await;
    let (a, b) = (token(&fixture, "a").await, token(&fixture, "b").await);
    let list = async |token: &str| {
        let router = fixture.router.clone();
        ask(router, "GET", "/v1/groups", token.to_owned(), Body::empty()).await
    };
    // Three quarters of four.
    let mut unread = Vec::new();
    for _ in 0..3 {
        let answer = list(&a).await;
        assert_eq!(answer.status(), 200);
        unread.push(answer);
    }
    let refused = list(&a).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
    assert_eq!(list(&b).await.status(), 200);
    unread.pop();
    assert_eq!(list(&a).await.status(), 200);
    drop(unread);
    fixture.end().await;
}

/// All strangers are one caller: whoever reads no answer must not keep the others out.
#[tokio::test]
async fn answers_to_strangers_keep_no_slots() {
    let fixture = Fixture::with_config(config(16, 16), &["false"]).await;
    let mut unread = Vec::new();
    for path in ["/v1/openapi.json", "/docs", "/checkstatus"].repeat(4) {
        let request = Request::get(path).header(header::HOST, "localhost");
        let request = request.body(Body::empty()).unwrap();
        let answer = fixture.router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        assert!(http_body_size(&answer).is_some_and(|bytes| bytes > 0), "{path}");
        unread.push(answer);
    }
    drop(unread);
    fixture.end().await;
}

#[tokio::test]
async fn large_answers_that_are_not_read_leave_room_for_others() {
    let config = HttpConfig {
        requests_max: 100,
        ..config(16, 8)
    };
    let fixture = Fixture::with_config(config, &["false"]).await;
    script(&fixture, "s", &vec![0; 2 * MIB], true).await;
    let (a, b) = (token(&fixture, "a").await, token(&fixture, "b").await);
    let wasm = async |token: &str| {
        let router = fixture.router.clone();
        ask(
            router,
            "GET",
            "/v1/scripts/s/versions/1/wasm",
            token.to_owned(),
            Body::empty(),
        )
        .await
    };
    let change = async |token: &str| {
        let router = fixture.router.clone();
        ask(router, "PUT", MEMBERS, token.to_owned(), members(0)).await
    };
    let mut unread = Vec::new();
    for _ in 0..3 {
        let answer = wasm(&a).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(http_body_size(&answer), Some(2 * MIB as u64));
        unread.push(answer);
    }
    let refused = wasm(&a).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
    // What it would learn of a change might be too much, too; so it changes nothing.
    assert_eq!(change(&a).await.status(), 429);
    // So might be what a stream has for it.
    let feed = async |token: &str| {
        let router = fixture.router.clone();
        ask(router, "GET", "/v1/events?follow=true", token.to_owned(), Body::empty()).await
    };
    assert_eq!(feed(&a).await.status(), 429);
    assert_eq!(feed(&b).await.status(), 200);
    let other = wasm(&b).await;
    assert_eq!(other.status(), 200);
    // Now there is no room for anybody: small answers need none.
    assert_eq!(wasm(&b).await.status(), 429);
    assert_eq!(change(&b).await.status(), 201);
    unread.pop();
    assert_eq!(change(&a).await.status(), 200);
    assert_eq!(wasm(&a).await.status(), 200);
    drop((unread, other));
    fixture.end().await;
}

/// Many workers may have one token. If one of them reads no answers, the others can still say what they have done, and what is
/// too much can be deleted.
#[tokio::test]
async fn work_is_reported_without_room_for_answers() {
    let config = HttpConfig {
        requests_max: 100,
        ..config(16, 4)
    };
    let fixture = Fixture::with_config(config, &["false"]).await;
    script(&fixture, "s", &vec![0; 3 * MIB], true).await;
    let a = token_as(&fixture, "a", "admin").await;
    let call = |method, path, body: &'static str| ask(fixture.router.clone(), method, path, a.clone(), body.into());
    let unread = call("GET", "/v1/scripts/s/versions/1/wasm", "").await;
    assert_eq!(unread.status(), 200);
    assert_eq!(call("POST", "/v1/queues/q/pause", "").await.status(), 429);
    assert_eq!(
        call("POST", "/v1/queues/q/claims", r#"{"worker":"w"}"#).await.status(),
        429
    );
    // Whether a call is valid is only checked after that.
    for path in [
        "/v1/claims/00000000-0000-0000-0000-000000000001/heartbeat",
        "/v1/claims/00000000-0000-0000-0000-000000000001/complete",
        "/v1/claims/00000000-0000-0000-0000-000000000001/fail",
        "/v1/claims/00000000-0000-0000-0000-000000000001/release",
        "/v1/claims/heartbeat",
        "/v1/claims/complete",
        "/v1/claims/fail",
        "/v1/claims/release",
        "/v1/dispatch/u1/complete",
    ] {
        assert_eq!(call("POST", path, r#"{"other":1}"#).await.status(), 422, "{path}");
    }
    assert_eq!(call("DELETE", "/v1/categories/none", "").await.status(), 404);
    drop(unread);
    fixture.end().await;
}

fn http_body_size(answer: &Response) -> Option<u64> {
    axum::body::HttpBody::size_hint(answer.body()).exact()
}

#[tokio::test]
async fn bodies_that_do_not_end_leave_room_for_others() {
    let fixture = Fixture::with_config(config(16, 16), &["false"]).await;
    let (a, b) = (token(&fixture, "a").await, token(&fixture, "b").await);
    let put = async |token: &str, body: Body| {
        let router = fixture.router.clone();
        ask(router, "PUT", MEMBERS, token.to_owned(), body).await
    };
    let (pieces, coming) = tokio::sync::mpsc::channel::<Result<Bytes, Infallible>>(1);
    let body = futures::stream::unfold(coming, |mut coming| async move {
        let piece = coming.recv().await?;
        Some((piece, coming))
    });
    let slow = ask(
        fixture.router.clone(),
        "PUT",
        MEMBERS,
        a.clone(),
        Body::from_stream(body),
    );
    let slow = tokio::spawn(slow);
    // There is room for one piece on the way. When the seventh has found it, the sixth has been taken, so the fifth has
    // been put into the buffer, which has 8 MiB then.
    for _ in 0..7 {
        pieces.send(Ok(Bytes::from(vec![b' '; MIB]))).await.unwrap();
    }
    let refused = put(&a, members(6 * MIB)).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
    // Small bodies need no room, and others have their own.
    assert_eq!(put(&a, members(0)).await.status(), 201);
    assert_eq!(put(&b, members(6 * MIB)).await.status(), 200);
    drop(pieces);
    assert_eq!(slow.await.unwrap().status(), 400, "it had nothing but spaces");
    assert_eq!(put(&a, members(6 * MIB)).await.status(), 200);
    fixture.end().await;
}

/// Thousands of polls may wait at the same time, so their bodies count from less than those of other requests.
#[tokio::test]
async fn bodies_of_polls_count_from_less() {
    const PIECE: usize = 64 << 10;
    let config = HttpConfig {
        bodies_bytes_max: 4 * PIECE,
        ..config(0, 16)
    };
    let fixture = Fixture::with_config(config, &["false"]).await;
    let a = token_as(&fixture, "a", "admin").await;
    let (pieces, coming) = tokio::sync::mpsc::channel::<Result<Bytes, Infallible>>(1);
    let body = futures::stream::unfold(coming, |mut coming| async move {
        let piece = coming.recv().await?;
        Some((piece, coming))
    });
    let claim = |body: Body| ask(fixture.router.clone(), "POST", "/v1/queues/q/claims", a.clone(), body);
    let slow = tokio::spawn(claim(Body::from_stream(body)));
    // When the fifth has found room on the way, the third has been put into the buffer, which has 256 KiB then.
    for _ in 0..5 {
        pieces.send(Ok(Bytes::from(vec![b' '; PIECE]))).await.unwrap();
    }
    let spaces = |bytes: usize| Body::from(vec![b' '; bytes]);
    let refused = claim(spaces(PIECE)).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key(header::RETRY_AFTER));
    assert_eq!(claim(spaces(100)).await.status(), 400, "it has nothing but spaces");
    drop(pieces);
    assert_eq!(slow.await.unwrap().status(), 400);
    assert_eq!(claim(spaces(PIECE)).await.status(), 400);
    fixture.end().await;
}

/// Three bytes of a text become dozens in memory: so that counts before they are read.
#[tokio::test]
async fn bodies_count_with_their_values() {
    let fixture = Fixture::with_config(config(16, 16), &["false"]).await;
    let a = token(&fixture, "a").await;
    let (pieces, coming) = tokio::sync::mpsc::channel::<Result<Bytes, Infallible>>(1);
    let body = futures::stream::unfold(coming, |mut coming| async move {
        let piece = coming.recv().await?;
        Some((piece, coming))
    });
    let slow = ask(
        fixture.router.clone(),
        "PUT",
        MEMBERS,
        a.clone(),
        Body::from_stream(body),
    );
    let slow = tokio::spawn(slow);
    for _ in 0..4 {
        pieces.send(Ok(Bytes::from(vec![b' '; MIB]))).await.unwrap();
    }
    // The buffer has 2 MiB at least. The text has 300 kB, its values some 12 MiB.
    let many = format!(r#"{{"members":["u1"],"x":[[]{}]}}"#, ",[]".repeat(100_000));
    assert!(many.len() < MIB);
    let put = async |body: String| {
        let router = fixture.router.clone();
        ask(router, "PUT", MEMBERS, a.clone(), body.into()).await.status()
    };
    assert_eq!(put(many.clone()).await, 429);
    drop(pieces);
    assert_eq!(slow.await.unwrap().status(), 400);
    // With nothing beside it, it is read.
    assert_eq!(put(many).await, 422);
    // Arrays end at their bounds.
    let too_many = format!(r#"{{"members":[0{}, here is no JSON"#, ",0".repeat(200_000));
    assert_eq!(put(too_many).await, 422);
    fixture.end().await;
}
