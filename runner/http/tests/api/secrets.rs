//! Secrets and connections.

use heddle_store::secret::{SecretKey, SecretKeys};
use serde_json::json;

use super::{Fixture, script};

#[tokio::test]
async fn secrets_and_connections_are_write_only() {
    let fixture = Fixture::new(true).await;
    let secret = json!({"value": "hunter2", "groups": ["g"]});
    let made = fixture.json("PUT", "/v1/secrets/pw", secret.clone()).await.is(201);
    assert!(!made.bytes.windows(7).any(|window| window == b"hunter2"));
    fixture.json("PUT", "/v1/secrets/pw", secret).await.is(200);
    assert!(fixture.get("/v1/secrets/pw").await.is(200).json.get("value").is_none());
    let keys = SecretKeys::new(SecretKey::new([7; 32]), Vec::new());
    let (value, grant) = fixture.store.secret_value(&keys, "pw").await.unwrap().unwrap();
    assert_eq!(
        (value.as_str(), grant.allows("g", None), grant.allows("h", None)),
        ("hunter2", true, false)
    );
    fixture
        .json("PUT", "/v1/connections/w", json!({"groups": ["*"]}))
        .await
        .is(422)
        .at("/url");
    fixture
        .json("PUT", "/v1/connections/w", json!({"url": "mysql://x"}))
        .await
        .is(422)
        .at("/url");
    for url in [
        "postgres://u:secretpw@db:99999/x",
        "postgres://u:secretpw@my db/x",
        "postgres://u:secretpw@db/my x",
    ] {
        let refused = fixture
            .json("PUT", "/v1/connections/w", json!({"url": url, "groups": ["*"]}))
            .await
            .is(422);
        assert!(!refused.bytes.windows(8).any(|window| window == b"secretpw"));
        refused.at("/url");
    }
    let url = "postgres://u:secretpw@db/x";
    fixture
        .json("PUT", "/v1/connections/w", json!({"url": url, "groups": ["*"]}))
        .await
        .is(201);
    let changed = fixture
        .json("PUT", "/v1/connections/w", json!({"groups": ["g"]}))
        .await
        .is(200);
    assert!(!changed.bytes.windows(8).any(|window| window == b"secretpw"));
    assert_eq!(fixture.store.connection_url(&keys, "w").await.unwrap().unwrap().0, url);
    let audit = fixture.get("/v1/audit").await.is(200);
    assert!(!audit.bytes.windows(8).any(|window| window == b"secretpw"));
    // A spec may only name what its group was granted.
    script(&fixture, "s", b"\0asm1", true).await;
    let spec = json!({"tasks": {"a": {"script": "s", "sql": ["w"], "secrets": ["pw"]}}});
    fixture.json("PUT", "/v1/groups/g", spec.clone()).await.is(201);
    fixture.json("PUT", "/v1/groups/h", spec).await.is(422);
    // What a group names stays for as long as it does.
    fixture.send("DELETE", "/v1/secrets/pw", &[], "").await.is(409);
    let without = json!({"tasks": {"a": {"script": "s"}}});
    fixture.json("PUT", "/v1/groups/g", without).await.is(200);
    fixture.send("DELETE", "/v1/secrets/pw", &[], "").await.is(204);
    fixture.send("DELETE", "/v1/secrets/pw", &[], "").await.is(404);
    fixture.end().await;
}
