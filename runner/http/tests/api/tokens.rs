//! Who may.

use axum::http::header;
use heddle_domain::Clock;
use heddle_store::change::By;
use serde_json::json;
use uuid::Uuid;

use super::{Fixed, Fixture};

#[tokio::test]
async fn serving_needs_tokens() {
    let fixture = Fixture::new(false).await;
    let refused = fixture.get("/v1/groups").await.is(401);
    assert!(refused.headers.contains_key(header::WWW_AUTHENTICATE));
    fixture
        .send("GET", "/v1/groups", &[("authorization", "Bearer hdl_wrong")], "")
        .await
        .is(401);
    fixture
        .send("GET", "/healthz", &[("host", "heddle.example")], "")
        .await
        .is(200);
    let by = By {
        actor: "cli",
        at: Fixed.now(),
    };
    let write = |name: &'static str, role: &'static str, text: &str| heddle_store::token::TokenWrite {
        id: Uuid::from_u128(heddle_http::access::token_hash(text)[0].into()),
        name,
        hash: heddle_http::access::token_hash(text),
        role,
        queues: &[],
        uids: &[],
        expires_at: None,
    };
    fixture
        .store
        .create_token(by, write("root", "admin", "hdl_root"))
        .await
        .unwrap()
        .unwrap();
    let as_root = [
        ("authorization", "Bearer hdl_root"),
        ("content-type", "application/json"),
    ];
    let body = json!({"name": "v", "role": "viewer"}).to_string();
    let made = fixture
        .send("POST", "/v1/tokens", &as_root, body.clone())
        .await
        .is(201)
        .json;
    let id = made["id"].as_str().unwrap();
    assert_eq!(
        fixture.send("POST", "/v1/tokens", &as_root, body).await.is(409).json["existing"],
        id
    );
    let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
    let as_viewer = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    fixture.send("GET", "/v1/groups", &as_viewer, "").await.is(200);
    fixture
        .send("PUT", "/v1/pools/p", &as_viewer, "{\"slots\": 1}")
        .await
        .is(403);
    fixture.send("GET", "/v1/tokens", &as_viewer, "").await.is(403);
    let listed = fixture.send("GET", "/v1/tokens", &as_root, "").await.is(200);
    assert!(listed.json["items"][0].get("token").is_none());
    fixture
        .send("DELETE", &format!("/v1/tokens/{id}"), &as_root, "")
        .await
        .is(204);
    fixture.send("GET", "/v1/groups", &as_viewer, "").await.is(401);
    let past = json!({"name": "late", "role": "viewer", "expires_at": "2020-01-01T00:00:00Z"}).to_string();
    fixture
        .send("POST", "/v1/tokens", &as_root, past)
        .await
        .is(422)
        .at("/expires_at");
    fixture.end().await;
}
