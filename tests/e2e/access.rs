//! Who may do what.

use heddle_tests::{TOKEN, World, create_token, run_program};
use reqwest::Method;
use serde_json::json;

use crate::one;

/// Without a token, or with one that is not in force: 401.
#[tokio::test]
async fn tokens() {
    let (_world, node) = World::with_node().await;
    for token in [None, Some("hdl_wrong"), Some(""), Some("{}")] {
        let api = node.with_token(token);
        let reply = api.get("/v1/groups").await;
        assert!(reply.headers.contains_key("www-authenticate"));
        reply.expect_problem(401, &[]);
        assert_eq!(
            api.put("/v1/groups/g", one(json!({"script": "hello"}))).await.status,
            401
        );
        assert_eq!(api.get("/metrics").await.status, 401);
        for open in ["/healthz", "/readyz", "/v1/openapi.json", "/docs"] {
            assert_eq!(api.get(open).await.status, 200, "{open}");
        }
    }
    let basic = node
        .with_token(None)
        .request(Method::GET, "/v1/groups")
        .basic_auth("e2e", Some(TOKEN));
    assert_eq!(node.send(basic).await.status, 401);
}

/// The first token by `heddle token create` against the database; others by the API, shown once, revocable.
#[tokio::test]
async fn life_of_a_token() {
    let (world, node) = World::with_node().await;
    let output = create_token(world.url(), "first", "admin");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let made: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // The answer is that of the API: the token as it is shown later, and its value.
    let mut shown = node.get("/v1/tokens/first").await.expect_status(200);
    shown["token"] = made["token"].clone();
    assert_eq!(made, shown);
    let api = node.with_token(made["token"].as_str());
    let second = api
        .post("/v1/tokens", json!({"name": "second", "role": "viewer"}))
        .await
        .expect_status(201);
    let viewer = node.with_token(second["token"].as_str());
    viewer.get("/v1/groups").await.expect_status(200);
    let later = json!({"name": "later", "role": "viewer", "expires_at": "2100-01-01T08:00:00+08:00"});
    let later = api.post("/v1/tokens", later).await.expect_status(201);
    assert_eq!(later["expires_at"], "2100-01-01T00:00:00.000000Z");
    let audit = api.get("/v1/audit?limit=1").await.expect_status(200);
    assert_eq!(audit["items"][0]["after"]["expires_at"], later["expires_at"]);
    api.post("/v1/tokens", json!({"name": "second", "role": "viewer"}))
        .await
        .expect_problem(409, &[]);
    api.post("/v1/tokens", json!({"name": "x", "role": "emperor"}))
        .await
        .expect_problem(422, &["/role"]);
    let listed = api.get("/v1/tokens").await.expect_status(200);
    assert!(
        !listed.to_string().contains(second["token"].as_str().unwrap()),
        "a token is shown once"
    );
    api.delete("/v1/tokens/second").await.expect_status(204);
    viewer.get("/v1/groups").await.expect_problem(401, &[]);
    let past = json!({"name": "past", "role": "viewer", "expires_at": "2020-01-01T00:00:00Z"});
    let reply = api.post("/v1/tokens", past).await;
    if reply.status == 201 {
        node.with_token(reply.body["token"].as_str())
            .get("/v1/groups")
            .await
            .expect_problem(401, &[]);
    } else {
        reply.expect_problem(422, &["/expires_at"]);
    }
    // The same name twice in the database: refused as by the API, so not a fault of usage.
    let again = create_token(world.url(), "first", "admin");
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("first"));
}

/// What the API would not make is not made in the database either.
#[tokio::test]
async fn bad_tokens_are_not_made_in_the_database() {
    let (world, node) = World::with_node().await;
    let long = "x".repeat(251);
    for (more, named) in [
        (&["--name", "a b", "--role", "admin"][..], &["/name"][..]),
        (&["--name", "", "--role", "admin"], &["--name"]),
        (&["--name", "a", "--role", "viewer", "--queue", "q"], &["/queues"]),
        (&["--name", "a", "--role", "worker", "--queue", "q/r"], &["/queues/0"]),
        (&["--name", "a", "--role", "worker", "--uid", ""], &["/uids/0"]),
        (&["--name", "a", "--role", "worker", "--uid", &long], &["/uids/0"]),
        (
            &["--name", "a", "--role", "admin", "--expires-at", "2020-01-01T00:00:00Z"],
            &["/expires_at"],
        ),
    ] {
        let arguments = [&["token", "create", "--database-url", world.url()], more].concat();
        let output = run_program(&arguments, &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {said}");
        assert!(named.iter().all(|word| said.contains(word)), "{more:?}: {said}");
    }
    let listed = node.all("/v1/tokens").await;
    assert_eq!(listed.len(), 1, "the tests' own: {listed:#?}");
}

/// Each role, and what it may do.
#[tokio::test]
async fn roles() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let run = heddle_tests::id(&node.run("g", json!({})).await);
    let wasm = heddle_scripts::get("echo").unwrap();
    for (role, reads, operates, authors, administers) in [
        ("viewer", true, false, false, false),
        ("operator", true, true, false, false),
        ("author", true, false, true, false),
        ("worker", false, false, false, false),
        ("admin", true, true, true, true),
    ] {
        let made = node
            .post("/v1/tokens", json!({"name": role, "role": role}))
            .await
            .expect_status(201);
        let api = node.with_token(made["token"].as_str());
        let check = |what: &str, may: bool, status: u16| {
            assert_eq!(status != 403, may, "{role}: {what} answers {status}");
            assert_ne!(status, 401, "{role}: {what}");
        };
        for path in [
            "/v1/groups",
            "/v1/scripts",
            "/v1/runs",
            &format!("/v1/runs/{run}"),
            "/v1/nodes",
            "/v1/audit",
            "/metrics",
        ] {
            check(path, reads, api.get(path).await.status);
        }
        check(
            "put group",
            operates,
            api.put("/v1/groups/g", one(json!({"script": "hello"}))).await.status,
        );
        check(
            "start run",
            operates,
            api.post("/v1/groups/g/runs", json!({})).await.status,
        );
        check(
            "cancel run",
            operates,
            api.post(&format!("/v1/runs/{run}/cancel"), json!({})).await.status,
        );
        check(
            "bulk",
            operates,
            api.post(
                "/v1/runs/bulk",
                json!({"filter": {"group": "g"}, "action": "cancel", "dry_run": true}),
            )
            .await
            .status,
        );
        let upload = api
            .put_bytes(&format!("/v1/scripts/by-{role}"), "application/wasm", wasm.clone())
            .await;
        check("put script", authors, upload.status);
        check(
            "invoke",
            operates || authors,
            api.post("/v1/scripts/hello/invoke", json!({})).await.status,
        );
        for path in ["/v1/tokens", "/v1/secrets", "/v1/connections"] {
            check(path, administers, api.get(path).await.status);
        }
        check(
            "put secret",
            administers,
            api.put(&format!("/v1/secrets/{role}"), json!({"value": "x"}))
                .await
                .status,
        );
    }
}
