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
