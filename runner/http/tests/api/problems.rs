//! What is the same for all routes: problems, lists by pages.

use axum::http::header;
use serde_json::json;

use super::{Fixture, group};

#[tokio::test]
async fn what_is_wrong_is_a_problem() {
    let fixture = Fixture::new(true).await;
    fixture.get("/nowhere").await.is(404);
    fixture.get("/v1/groups/%ff").await.is(400);
    fixture.get("/v1/groups/no%2Fname").await.is(404);
    fixture.json("PUT", "/v1/groups/no%20name", group("s")).await.is(422);
    fixture
        .json("PUT", &format!("/v1/groups/{}", "x".repeat(64)), group("s"))
        .await
        .is(422);
    fixture.get(&format!("/v1/groups/{}", "x".repeat(64))).await.is(404);
    let refused = fixture.send("POST", "/v1/groups/g", &[], "").await.is(405);
    assert_eq!(refused.headers[header::ALLOW], "DELETE, GET, HEAD, PATCH, PUT");
    fixture.send("PUT", "/v1/groups/g", &[], "{\"tasks\": ").await.is(400);
    fixture.send("PUT", "/v1/groups/g", &[], "[]").await.is(422);
    fixture
        .send(
            "PUT",
            "/v1/groups/g",
            &[],
            r#"{"tasks": {"a": {"queue": "q", "queue": "r"}}}"#,
        )
        .await
        .is(422)
        .at("/tasks/a/queue");
    fixture
        .send("PUT", "/v1/groups/g", &[], r#"{"description": "\u0000"}"#)
        .await
        .is(422)
        .at("/description");
    fixture
        .send("PUT", "/v1/groups/g", &[("content-type", "application/yaml")], "a: [")
        .await
        .is(400);
    fixture
        .send("PUT", "/v1/groups/g", &[("content-type", "image/png")], "{}")
        .await
        .is(415);
    fixture
        .json("PUT", "/v1/groups/g", json!({"taskz": {}}))
        .await
        .is(422)
        .at("/taskz");
    for (query, status) in [
        ("limit=0", 422),
        ("limit=501", 422),
        ("limit=x", 400),
        ("limit=500", 200),
    ] {
        fixture.get(&format!("/v1/groups?{query}")).await.is(status);
    }
    fixture.get("/v1/runs?state=runing").await.is(422).at("/state");
    for time in ["from", "to", "logical_from", "logical_to"] {
        let refused = fixture.get(&format!("/v1/runs?{time}=yesterday")).await.is(400);
        let detail = refused.json["detail"].as_str().unwrap_or_default().to_owned();
        assert!(detail.starts_with(&format!("`{time}`: `yesterday`")), "{detail}");
        let bulk = json!({"filter": {time: "yesterday"}, "action": "cancel"});
        let refused = fixture.json("POST", "/v1/runs/bulk", bulk).await;
        refused.is(422).at(&format!("/filter/{time}"));
    }
    // What can be no name: nothing in a list has it; a control with it is a mistake.
    for field in ["group", "queue"] {
        let found = fixture.get(&format!("/v1/runs?{field}=a%20b")).await.is(200);
        assert_eq!(found.json["items"], json!([]), "{field}");
        let bulk = json!({"filter": {field: "a b"}, "action": "cancel"});
        let refused = fixture.json("POST", "/v1/runs/bulk", bulk).await;
        refused.is(422).at(&format!("/filter/{field}"));
    }
    fixture.get("/v1/runs/not-an-id").await.is(404);
    fixture
        .json("POST", "/v1/groups/nobody/runs/batch", json!({"runs": []}))
        .await
        .is(404);
    fixture
        .json("POST", "/v1/runs/bulk", json!({"filter": {}, "action": "cancel"}))
        .await
        .is(422)
        .at("/filter");
    let queued = json!({"tasks": {"a": {"queue": "q"}}});
    fixture.json("PUT", "/v1/groups/g", queued).await.is(201);
    let submit = json!({"key": "k"});
    let made = fixture
        .json("POST", "/v1/groups/g/runs", submit.clone())
        .await
        .is(202)
        .json;
    let taken = fixture.json("POST", "/v1/groups/g/runs", submit).await.is(409).json;
    assert_eq!(taken["existing"], made["id"]);
    let ready = fixture.get("/readyz").await.is(503);
    assert!(ready.headers.contains_key(header::RETRY_AFTER));
    fixture.get("/healthz").await.is(200);
    assert_eq!(fixture.get("/v1/openapi.json").await.is(200).json["openapi"], "3.1.0");
    let plain = fixture.get("/docs").await.is(200);
    let policy = plain.headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(
        policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    let accepts = [("accept-encoding", "br, gzip;q=0.8")];
    let gzipped = fixture.send("GET", "/docs", &accepts, "").await.is(200);
    assert_eq!(gzipped.headers[header::CONTENT_ENCODING], "gzip");
    assert!(gzipped.bytes.len() * 4 < plain.bytes.len());
    fixture
        .send("GET", "/healthz", &[("host", "evil.example")], "")
        .await
        .is(403);
    fixture
        .send("GET", "/healthz", &[("origin", "http://evil.example")], "")
        .await
        .is(403);
    // Names of all writing systems, composed or not, are one name.
    fixture
        .json("PUT", "/v1/pools/%C3%A9", json!({"slots": 2}))
        .await
        .is(201);
    fixture
        .json("PUT", "/v1/pools/e%CC%81", json!({"slots": 2}))
        .await
        .is(200);
    assert_eq!(fixture.get("/v1/pools").await.is(200).json["items"][0]["name"], "é");
    fixture.end().await;
}

#[tokio::test]
async fn lists_have_cursors() {
    let fixture = Fixture::new(true).await;
    for name in ["a", "b", "c", "d", "e"] {
        fixture
            .json("PUT", &format!("/v1/pools/{name}"), json!({"slots": 1}))
            .await
            .is(201);
    }
    let mut seen = Vec::new();
    let mut path = "/v1/pools?limit=2".to_owned();
    loop {
        let page = fixture.get(&path).await.is(200).json;
        seen.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|pool| pool["name"].as_str().unwrap().to_owned()),
        );
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/v1/pools?limit=2&cursor={cursor}");
    }
    assert_eq!(seen, ["a", "b", "c", "d", "e"]);
    fixture.end().await;
}

/// No route takes U+0000 in any part of its path: nothing in the database can have it.
#[tokio::test]
async fn no_path_has_nul() {
    let fixture = Fixture::new(true).await;
    let document = fixture.get("/v1/openapi.json").await.is(200).json;
    let mut asked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let parts: Vec<&str> = path.split('/').collect();
        for at in (0..parts.len()).filter(|&at| parts[at].starts_with('{')) {
            let filled = parts
                .iter()
                .enumerate()
                .map(|(index, part)| match part.starts_with('{') {
                    true if index == at => "uid_%00",
                    true => "x",
                    false => *part,
                });
            let address = filled.collect::<Vec<_>>().join("/");
            for method in methods.as_object().unwrap().keys() {
                let refused = fixture.send(&method.to_uppercase(), &address, &[], "{}").await.is(400);
                let said = refused.json["detail"].as_str().unwrap();
                assert!(said.contains("the path must not contain"), "{method} {address}: {said}");
                asked += 1;
            }
        }
    }
    assert!(asked > 60, "only {asked}");
    fixture.end().await;
}
