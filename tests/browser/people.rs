//! Who may see and do what.

use heddle_tests::{TOKEN, World, eventually};
use reqwest::StatusCode;
use reqwest::header::SET_COOKIE;
use serde_json::json;

use crate::{Visitor, group_with_everything};

#[tokio::test]
async fn one_signs_in_does_what_one_may_and_signs_out() {
    let (_world, node) = World::with_node().await;
    let run = group_with_everything(&node).await;
    // A person who has not signed in is asked to, on every page, and gets there afterwards.
    let nobody = Visitor::new(node.base());
    let page = nobody.get("/groups/shown").await.fine();
    assert!(
        page.contains("name=\"token\"") && page.contains("value=\"/groups/shown\"") && !page.contains("yearly"),
        "{page}"
    );
    let wrong = nobody.post("/sign-in", &[("token", "hdl_wrong"), ("to", "/")]).await;
    assert_eq!(wrong.status, StatusCode::UNAUTHORIZED);
    let away = nobody
        .post("/sign-in", &[("token", TOKEN), ("to", "//evil.example/")])
        .await;
    assert_eq!(away.leads_to(), "/");
    // Only a page is a place to go to: here, a GET with the new session would start a run.
    for to in [
        "/task-scheduler/task/execTaskImmediately?taskId=1",
        "/groups/%2e%2e/task-scheduler/task/execTaskImmediately?taskId=1",
    ] {
        let away = nobody.post("/sign-in", &[("token", TOKEN), ("to", to)]).await;
        assert_eq!((away.status, away.leads_to()), (StatusCode::SEE_OTHER, "/"), "{to}");
    }
    let forged = nobody
        .post_from("/sign-in", &[("token", TOKEN)], "https://evil.example")
        .await;
    assert_eq!(forged.status, StatusCode::UNAUTHORIZED, "{}", forged.text);

    let token = |role: &str| json!({"name": format!("a-{role}"), "role": role});
    let viewer = node.post("/v1/tokens", token("viewer")).await.expect_status(201)["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let worker = node.post("/v1/tokens", token("worker")).await.expect_status(201)["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let sees = Visitor::signed_in(node.base(), &viewer).await;
    let restart = format!("/runs/{run}/restart");
    let page = sees.get(&format!("/runs/{run}")).await.fine();
    assert!(page.contains("flaky") || page.contains("bad"), "{page}");
    assert!(!page.contains(&restart), "what a viewer may not do is not offered");
    assert_eq!(sees.get("/groups/shown/run").await.status, StatusCode::FORBIDDEN);
    let refused = sees.post(&restart, &[]).await;
    assert_eq!(refused.status, StatusCode::SEE_OTHER);
    assert_eq!(
        node.get(&format!("/v1/runs/{run}")).await.expect_status(200)["state"],
        "failed"
    );
    // The audit tells nobody but admins of what only they can list.
    let audit = sees.get("/system/audit").await.fine();
    assert!(audit.contains("shown") && !audit.contains("a-worker"), "{audit}");
    assert!(
        !audit.contains("value=\"secret\"") && audit.contains("value=\"group\""),
        "{audit}"
    );
    assert_eq!(sees.get("/system/audit?kind=token").await.status, StatusCode::FORBIDDEN);
    // A worker has no pages: that is said, and no session is left behind.
    let mut works = Visitor::new(node.base());
    let refused = works.post("/sign-in", &[("token", &worker), ("to", "/runs")]).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.text.contains("This token is for workers"), "{}", refused.text);
    assert!(!refused.headers.contains_key(SET_COOKIE));
    let sessions = node.all("/v1/sessions").await;
    assert!(sessions.iter().all(|one| one["actor"] != "a-worker"), "{sessions:#?}");
    // A program may have got one from the API, with whose cookie somebody comes.
    let program = works.client.post(format!("{}/v1/session", node.base()));
    let begun = program.json(&json!({"token": worker})).send().await.unwrap();
    let cookie = begun.headers()[SET_COOKIE].to_str().unwrap();
    works.cookie = cookie.split(';').next().unwrap().to_owned();
    let page = works.get("/runs").await;
    assert_eq!(page.status, StatusCode::FORBIDDEN);
    assert!(page.text.contains("name=\"token\"") && page.text.contains("This token is for workers"));

    let acts = Visitor::signed_in(node.base(), TOKEN).await;
    assert!(acts.get(&format!("/runs/{run}")).await.fine().contains(&restart));
    // A page of another site, with this browser's cookie.
    let forged = acts.post_from(&restart, &[], "https://evil.example").await;
    assert_eq!(forged.status, StatusCode::FORBIDDEN);
    assert_eq!(
        node.get(&format!("/v1/runs/{run}")).await.expect_status(200)["state"],
        "failed"
    );
    let done = acts.post(&restart, &[]).await;
    assert_eq!(
        (done.status, done.leads_to()),
        (StatusCode::SEE_OTHER, format!("/runs/{run}").as_str())
    );
    eventually("a second attempt", async || {
        let task = node.get(&format!("/v1/runs/{run}/tasks/bad")).await.expect_status(200);
        (task["attempts"].as_array().unwrap().len() > 1).then_some(())
    })
    .await;
    let out = acts.post("/sign-out", &[]).await;
    assert_eq!(out.leads_to(), "/sign-in");
    assert!(
        acts.get("/runs").await.fine().contains("name=\"token\""),
        "the session has ended"
    );
}
