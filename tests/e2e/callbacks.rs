//! Callbacks: the submitter of a run is told of its end.

use std::collections::BTreeMap;

use heddle_tests::{Answer, Receiver, Request, World, id};
use serde_json::json;

use crate::notifications::{becomes, requests, settled, verify, webhook};
use crate::{fails, one};

/// The submitter of a run gets a callback with the ended run: at a URL, or through a channel, signed.
#[tokio::test]
async fn submitters_are_called_back() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1").start().await;
    let receiver = Receiver::start(Answer::Status(503)).await;
    webhook(&node, "hook", &receiver.url, json!({"burst": 0})).await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    node.put_group("bad", one(fails())).await;
    let url = format!("{}/done?for=me", receiver.url);
    let by_url = node.run("g", json!({"callback": url})).await;
    let by_channel = node.run("bad", json!({"callback": "hook", "key": "k"})).await;
    node.run("g", json!({})).await;
    // Kept until it is taken.
    becomes(&node, "event=callback", |item| item["attempts"] != 0).await;
    receiver.answers(Answer::Status(200));
    let told = settled(&node, "event=callback", 2).await;
    assert_eq!(told.len(), 2, "{told:#?}");
    let mut last: BTreeMap<String, Request> = BTreeMap::new();
    for request in receiver.requests() {
        last.insert(request.body["id"].as_str().unwrap().to_owned(), request);
    }
    assert_eq!(last.len(), 2);
    for run in [&by_url, &by_channel] {
        let request = &last[&id(run)];
        assert_eq!(&request.body, run, "the run as the API shows it");
        assert_eq!(request.header("webhook-id").map(str::len), Some(36));
    }
    assert_eq!(last[&id(&by_url)].path, "/done?for=me");
    assert_eq!(last[&id(&by_url)].header("webhook-signature"), None);
    verify(&last[&id(&by_channel)]);
}

/// Of the URL of a callback, which may contain a token, people see the host, also in the error of a receiver that repeats it;
/// who knows the whole URL finds its notifications by it. A notification that cannot be read makes no list fail.
#[tokio::test]
async fn urls_of_callbacks_are_shown_as_hosts() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1").start().await;
    let receiver = Receiver::start(Answer::Status(410)).await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let url = format!("{}/hooks?token=0123456789abcdef", receiver.url.trim_end_matches('/'));
    node.run("g", json!({"callback": url})).await;
    let told = settled(&node, "event=callback", 1).await;
    let sql = world.sql().await;
    sql.execute("UPDATE heddle.notifications SET last_error = 'no ' || channel", &[])
        .await
        .unwrap();
    let host = reqwest::Url::parse(&url).unwrap().origin().ascii_serialization();
    let shown = json!(format!("{host}/…"));
    let whole = node
        .get(&format!("/v1/notifications/{}", id(&told[0])))
        .await
        .expect_status(200);
    let listed = node.all("/v1/notifications").await;
    for one in [&whole, &listed[0]] {
        assert_eq!(one["channel"], shown);
        assert_eq!(one["last_error"], json!(format!("no {host}/…")));
        assert!(!one.to_string().contains("0123456789abcdef"), "{one:#}");
    }
    let page = node.get("/notifications").await;
    assert!(!page.body.to_string().contains("0123456789abcdef"));
    let by_url = url
        .replace(':', "%3A")
        .replace('/', "%2F")
        .replace('?', "%3F")
        .replace('=', "%3D");
    for (channel, count) in [(by_url.as_str(), 1), ("hook", 0)] {
        let found = node.all(&format!("/v1/notifications?channel={channel}")).await;
        assert_eq!(found.len(), count, "{channel}");
    }
    sql.execute(
        "UPDATE heddle.notifications SET facts = facts || '{\"count\": \"many\"}'",
        &[],
    )
    .await
    .unwrap();
    assert_eq!(node.all("/v1/notifications").await[0]["count"], 1);
}

/// A callback that was sent keeps no copy of its run. It is sent again from the run; not after the run is gone.
#[tokio::test]
async fn a_callback_that_was_sent_is_made_again_from_its_run() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1").start().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let run = node.run("g", json!({"callback": receiver.url})).await;
    let told = settled(&node, "event=callback", 1).await;
    let sql = world.sql().await;
    let kept = "SELECT count(payload) FROM heddle.notifications";
    let kept = async || sql.query_one(kept, &[]).await.unwrap().get::<_, i64>(0);
    assert_eq!((told[0]["state"].as_str(), kept().await), (Some("sent"), 0));
    let resend = format!("/v1/notifications/{}/resend", id(&told[0]));
    node.post(&resend, json!({})).await.expect_status(200);
    for request in requests(&receiver, 2).await {
        assert_eq!(request.body, run);
    }
    settled(&node, "event=callback", 1).await;
    assert_eq!(kept().await, 0);
    node.delete(&format!("/v1/runs/{}", id(&run))).await.expect_status(204);
    node.post(&resend, json!({})).await.expect_problem(409, &[]);
    assert_eq!(node.all("/v1/notifications").await[0]["state"], "sent");
    // One that failed keeps its payload as long as its run.
    receiver.answers(Answer::Status(410));
    let run = node.run("g", json!({"callback": receiver.url})).await;
    settled(&node, "event=callback", 2).await;
    assert_eq!(kept().await, 1);
    node.delete(&format!("/v1/runs/{}", id(&run))).await.expect_status(204);
    assert_eq!(kept().await, 0);
    // The same if the run is deleted during its last try.
    receiver.answers(Answer::Held);
    let run = node.run("g", json!({"callback": receiver.url})).await;
    requests(&receiver, 4).await;
    node.delete(&format!("/v1/runs/{}", id(&run))).await.expect_status(204);
    assert_eq!(kept().await, 1);
    receiver.answers(Answer::Status(410));
    let told = settled(&node, "event=callback", 3).await;
    let failed = told.iter().filter(|one| one["state"] == "failed").count();
    assert_eq!((failed, kept().await), (2, 0));
}

/// An older node gives a callback that it sends again no payload. It is made from the run; without the run, nothing is sent.
#[tokio::test]
async fn a_callback_without_a_payload_is_made_from_its_run() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1").start().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let run = node.run("g", json!({"callback": receiver.url})).await;
    settled(&node, "event=callback", 1).await;
    let sql = world.sql().await;
    // As the older node does.
    let again = "UPDATE heddle.notifications SET state = 0, attempts = 0, sent_at = NULL;
                 INSERT INTO heddle.outgoing (notification, lane, due_at)
                     SELECT id, '://127.0.0.1/somebody', now() FROM heddle.notifications";
    sql.batch_execute(again).await.unwrap();
    for request in requests(&receiver, 2).await {
        assert_eq!(request.body, run);
    }
    settled(&node, "event=callback", 1).await;
    node.delete(&format!("/v1/runs/{}", id(&run))).await.expect_status(204);
    sql.batch_execute(again).await.unwrap();
    let told = becomes(&node, "event=callback", |one| one["state"] == "failed").await;
    let error = told["last_error"].as_str().unwrap_or_default();
    assert!(error.contains("its run does not exist any more"), "{told:#}");
    assert_eq!(receiver.requests().len(), 2);
}
