//! Groups: revisions, links, whoever puts them at once.

use axum::http::header;
use serde_json::json;

use super::{Fixture, group, script};

#[tokio::test]
async fn groups_have_revisions_and_links() {
    let fixture = Fixture::new(true).await;
    script(&fixture, "s", b"\0asm1", true).await;
    let made = fixture.json("PUT", "/v1/groups/a", group("s")).await.is(201);
    assert_eq!(made.headers[header::ETAG], "\"1\"");
    assert_eq!(
        (&made.json["revision"], &made.json["enabled"], &made.json["timezone"]),
        (&json!(1), &json!(true), &json!("UTC"))
    );
    assert_eq!(made.json["created_at"], "2026-11-20T08:00:00.000000Z");
    assert_eq!(
        fixture.json("PUT", "/v1/groups/a", group("s")).await.is(200).json["revision"],
        1
    );
    // What was read can be put again, and changes nothing.
    let read = fixture.get("/v1/groups/a").await.is(200).json;
    assert_eq!(
        fixture.json("PUT", "/v1/groups/a", read).await.is(200).json["revision"],
        1
    );
    fixture.get("/v1/categories/bi").await.is(200);
    assert_eq!(
        fixture.get("/v1/groups?category=bi").await.is(200).json["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        fixture.get("/v1/groups?category=x").await.is(200).json["items"],
        json!([])
    );

    let headers = [("content-type", "application/yaml"), ("if-match", "\"1\"")];
    let yaml = "tasks:\n  a: {script: s@1}\n";
    assert_eq!(
        fixture.send("PUT", "/v1/groups/a", &headers, yaml).await.is(200).json["revision"],
        2
    );
    fixture
        .send("PUT", "/v1/groups/a", &headers, "tasks: {a: {script: s}}")
        .await
        .is(412);
    fixture
        .send("PUT", "/v1/groups/new", &[("if-match", "*")], group("s").to_string())
        .await
        .is(412);
    assert_eq!(
        fixture.get("/v1/groups/a/revisions").await.is(200).json["items"][0]["revision"],
        2
    );
    fixture.get("/v1/groups/a/revisions/1").await.is(200);
    fixture.get("/v1/groups/a/revisions/3").await.is(404);

    let follows = |upstream: &str| json!({"depends_on": [upstream], "tasks": {"a": {"script": "s"}}});
    fixture
        .json("PUT", "/v1/groups/b", follows("nobody"))
        .await
        .is(422)
        .at("/depends_on/0");
    fixture.json("PUT", "/v1/groups/b", follows("a")).await.is(201);
    let cycle = fixture.json("PUT", "/v1/groups/a", follows("b")).await.is(422).json;
    assert!(cycle["detail"].as_str().unwrap().contains("a -> b -> a"), "{cycle}");
    fixture.json("PUT", "/v1/groups/a", follows("a")).await.is(422);
    let refused = fixture.send("DELETE", "/v1/groups/b", &[], "").await.is(409).json;
    assert!(refused["detail"].as_str().unwrap().contains("`a`"));
    let gone = fixture.send("DELETE", "/v1/groups/a", &[], "").await.is(200).json;
    assert_eq!(gone, json!({"detached": ["b"]}));
    let detached = fixture.get("/v1/groups/b").await.is(200).json;
    assert_eq!(
        (&detached["depends_on"], &detached["revision"]),
        (&json!([]), &json!(2))
    );
    // Revisions of a name are counted on: who has read the deleted group changes no other one.
    assert_eq!(
        fixture.json("PUT", "/v1/groups/a", group("s")).await.is(201).json["revision"],
        3
    );

    fixture
        .json("PUT", "/v1/groups/c", group("nothing"))
        .await
        .is(422)
        .at("/tasks/a/script");
    fixture
        .json("POST", "/v1/groups/c/validate", group("nothing"))
        .await
        .is(422)
        .at("/tasks/a/script");
    fixture.json("POST", "/v1/groups/c/validate", group("s")).await.is(200);
    fixture.get("/v1/groups/c").await.is(404);
    assert_eq!(
        fixture
            .json("POST", "/v1/groups/a/disable", json!({"mode": "stop"}))
            .await
            .is(200)
            .json["enabled"],
        false
    );
    assert_eq!(
        fixture.send("POST", "/v1/groups/a/enable", &[], "").await.is(200).json["enabled"],
        true
    );
    assert_eq!(
        fixture.get("/v1/groups/b/graph").await.is(200).json["nodes"][0]["task"],
        "a"
    );
    fixture.send("DELETE", "/v1/categories/bi", &[], "").await.is(409);
    let audit = fixture.get("/v1/audit?kind=group&name=a").await.is(200).json;
    assert_eq!(audit["items"][0]["action"], "enable");
    assert!(fixture.store.changes_position().await.unwrap() > 0);
    fixture.end().await;
}

#[tokio::test]
async fn ten_clients_that_put_one_group_make_one_revision() {
    let fixture = Fixture::new(true).await;
    script(&fixture, "s", b"\0asm1", true).await;
    let puts = (0..10).map(|_| fixture.json("PUT", "/v1/groups/g", group("s")));
    let mut statuses: Vec<u16> = futures::future::join_all(puts)
        .await
        .into_iter()
        .map(|reply| reply.status.as_u16())
        .collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 200, 200, 200, 201]);
    let revisions = fixture.get("/v1/groups/g/revisions").await.is(200).json;
    assert_eq!(revisions["items"].as_array().unwrap().len(), 1);
    // The log's ids were committed in their order, without a gap that could still fill.
    let changes = fixture.store.changes_since(0, 1_000).await.unwrap();
    assert!(changes.windows(2).all(|pair| pair[0].id < pair[1].id));
    fixture.end().await;
}
