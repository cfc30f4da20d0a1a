//! Scripts and their versions.

use std::convert::Infallible;

use axum::body::Body;
use bytes::Bytes;
use serde_json::json;

use super::{Fixture, group, script};

#[tokio::test]
async fn scripts_have_immutable_versions() {
    let fixture = Fixture::new(true).await;
    script(&fixture, "s", b"\0asm1", true).await;
    script(&fixture, "s", b"\0asm2", false).await;
    let second = fixture.get("/v1/scripts/s/versions/2").await.is(200).json;
    assert_eq!((&second["version"], &second["active"]), (&json!(2), &json!(false)));
    assert_eq!(fixture.get("/v1/scripts/s").await.is(200).json["version"], 1);
    let active = fixture
        .json("PUT", "/v1/scripts/s/active", json!({"version": 2}))
        .await
        .is(200)
        .json;
    assert_eq!(active["active_version"], 2);
    fixture
        .json("PUT", "/v1/scripts/s/active", json!({"version": 9}))
        .await
        .is(422)
        .at("/version");
    let versions = fixture.get("/v1/scripts/s/versions").await.is(200).json;
    assert_eq!(versions["items"].as_array().unwrap().len(), 2);
    let bytes = fixture.get("/v1/scripts/s/versions/1/wasm").await.is(200).bytes;
    assert_eq!(&bytes[..], b"\0asm1");
    // Who has it already gets it no second time.
    let path = "/v1/scripts/s/versions/1/wasm";
    let etag = fixture.get(path).await.is(200).headers["etag"].clone();
    let etag = etag.to_str().unwrap();
    let read = async |known: &str| fixture.send("GET", path, &[("if-none-match", known)], "").await;
    for known in [etag, &format!("\"x\", W/{etag}"), "*"] {
        let reply = read(known).await.is(304);
        assert_eq!(reply.headers["etag"], etag);
        assert!(reply.bytes.is_empty(), "{known}");
    }
    assert_eq!(read("\"x\"").await.is(200).bytes, bytes);
    fixture.get("/v1/scripts/s/versions/3").await.is(404);
    fixture.get("/v1/scripts/s/versions/x").await.is(404);
    fixture.json("PUT", "/v1/groups/g", group("s@1")).await.is(201);
    let refused = fixture.send("DELETE", "/v1/scripts/s", &[], "").await.is(409).json;
    assert!(refused["detail"].as_str().unwrap().contains("`g`"));
    fixture.send("DELETE", "/v1/groups/g", &[], "").await.is(200);
    fixture.send("DELETE", "/v1/scripts/s", &[], "").await.is(204);
    fixture.get("/v1/scripts/s").await.is(404);
    // What was deleted is not numbered anew.
    script(&fixture, "s", b"\0asm2", true).await;
    assert_eq!(fixture.get("/v1/scripts/s").await.is(200).json["version"], 3);
    fixture.end().await;
}

/// Texts in Python wait for their interpreter, here for ever. A caller may have two uploads at the same time: these two give
/// their slots back, so a third one is handled.
#[tokio::test]
async fn uploads_that_wait_for_an_interpreter_have_no_slots() {
    let fixture = Fixture::with_compiler(true, &["tail", "-f", "/dev/null"]).await;
    let (read, mut reads) = tokio::sync::mpsc::channel(2);
    let upload = async |path: &str| {
        let read = read.clone();
        // Only an upload that has a slot reads its body.
        let text = async move {
            let _ = read.send(()).await;
            Ok::<_, Infallible>(Bytes::from_static(b"def run(params, ctx): pass"))
        };
        let body = Body::from_stream(futures::stream::once(text));
        fixture
            .send("PUT", path, &[("content-type", "text/x-python")], body)
            .await
    };
    let waiting = async { tokio::join!(upload("/v1/scripts/a"), upload("/v1/scripts/b")) };
    let third = async {
        for _ in 0..2 {
            reads.recv().await.expect("an upload");
        }
        let headers = [("content-type", "text/javascript")];
        fixture.send("PUT", "/v1/scripts/c", &headers, "").await
    };
    tokio::select! {
        (first, _) = waiting => panic!("an upload without a compiler: {}", first.status),
        third = third => {
            third.is(422);
        }
    }
    fixture.end().await;
}
