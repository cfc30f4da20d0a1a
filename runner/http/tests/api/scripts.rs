//! Scripts and their versions.

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
