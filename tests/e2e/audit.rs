//! The audit: what was before an action, and what is after it.

use heddle_tests::{Answer, Api, Receiver, World, id};
use serde_json::{Value, json};

use crate::dispatch::{given, members, offer};
use crate::notifications::webhook;
use crate::{one, sleeps, with};

/// What the newest entry about an object says: the action, and the object before and after it.
async fn newest(api: &Api, kind: &str, name: &str) -> (String, Value, Value) {
    let page = api.get(&format!("/v1/audit?kind={kind}&name={name}&limit=1")).await;
    let entry = page.expect_status(200)["items"][0].clone();
    let action = entry["action"].as_str().unwrap_or_default().to_owned();
    (action, entry["before"].clone(), entry["after"].clone())
}

/// The secret parts of a channel are never shown, but a change of one of them is.
#[tokio::test]
async fn a_changed_secret_of_a_channel_is_told() {
    let (_world, node) = World::with_node().await;
    let flags = async |spec: Value| {
        let reply = node.put("/v1/channels/c", spec).await;
        assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
        let (_, _, after) = newest(&node, "channel", "c").await;
        let entries = node.all("/v1/audit?kind=channel&name=c").await;
        let text = json!(entries).to_string();
        assert!(!text.contains("sesame"), "{text}");
        json!([after["url_changed"], after["secret_changed"], after["password_changed"]])
    };
    let robot = |token: &str, secret: &str| {
        let url = format!("https://oapi.dingtalk.com/robot/send?access_token=sesame{token}");
        json!({"kind": "dingtalk", "url": url, "secret": format!("SECsesame{secret}")})
    };
    // A creation has no secret parts before it.
    assert_eq!(flags(robot("1", "1")).await, json!([null, null, null]));
    assert_eq!(flags(robot("2", "1")).await, json!([true, false, null]));
    assert_eq!(flags(robot("2", "2")).await, json!([false, true, null]));
    // An empty secret removes it; what is left out, or given as it is shown, stays.
    let shown = json!({"kind": "dingtalk", "url": "https://oapi.dingtalk.com/…", "secret": ""});
    assert_eq!(flags(shown).await, json!([false, true, null]));
    assert_eq!(
        flags(json!({"kind": "dingtalk", "burst": 9})).await,
        json!([false, false, null])
    );
    // Another kind: it has other secret parts.
    let mail = |password: &str, more: Value| {
        let smtp = json!({"host": "mail.example.com", "username": "u", "password": format!("sesame{password}")});
        let spec = json!({"kind": "email", "smtp": smtp, "from": "h@example.com", "to": ["a@example.com"]});
        with(spec, more)
    };
    assert_eq!(flags(mail("1", json!({}))).await, json!([true, false, true]));
    assert_eq!(flags(mail("2", json!({}))).await, json!([null, null, true]));
    assert_eq!(flags(mail("2", json!({"burst": 9}))).await, json!([null, null, false]));
    // The URL of a webhook is shown, so it needs no flag.
    let hook = |url: &str, secret: &str| json!({"kind": "webhook", "url": url, "secret": secret});
    flags(hook("https://a.example", "whsec_c2VzYW1l")).await;
    let same = flags(hook("https://b.example", "whsec_c2VzYW1l")).await;
    assert_eq!(same, json!([null, false, null]));
    let other = flags(hook("https://b.example", "whsec_c2VzYW1m")).await;
    assert_eq!(other, json!([null, true, null]));
    let entries = node.all("/v1/audit?kind=channel&name=c").await;
    assert!(!json!(entries).to_string().contains("c2VzYW1"), "{entries:#?}");
}

#[tokio::test]
async fn controls_tell_states() {
    let (_world, node) = World::with_node().await;
    let said = |action: &str, before: &str, after: &str| {
        (action.to_owned(), json!({"state": before}), json!({"state": after}))
    };
    // A backfill with a run that does not end by itself.
    let daily = json!({"cron": "0 0 * * *", "starts_at": "2012-01-01", "ends_at": "2016-01-01"});
    node.put_group(
        "g",
        with(
            one(sleeps(600.0)),
            json!({"history": true, "schedules": {"daily": daily}}),
        ),
    )
    .await;
    let asked = json!({"from": "2012-01-01", "to": "2012-01-10", "max_active": 1});
    let made = node.post("/v1/groups/g/backfills", asked).await.expect_status(202);
    let backfill = id(&made);
    for (action, before, after) in [
        ("pause", "running", "paused"),
        ("resume", "paused", "running"),
        ("cancel", "running", "cancelled"),
    ] {
        node.post(&format!("/v1/backfills/{backfill}/{action}"), json!({}))
            .await
            .expect_status(200);
        let entry = newest(&node, "backfill", &backfill).await;
        assert_eq!(entry, said(action, before, after));
    }
    // An assignment that is revoked.
    members(&node, "gid_g", &["u".to_owned()]).await;
    offer(&node, "o", json!({"audience": "gid_g"})).await;
    let assignment = given(&node, "u").await.expect("an assignment");
    let assignment = assignment["assignment_id"].as_str().expect("an id");
    node.post(&format!("/v1/assignments/{assignment}/revoke"), json!({}))
        .await
        .expect_status(200);
    let held = |state: &str| json!({"offer": "o", "uid": "u", "audience": "gid_g", "state": state});
    assert_eq!(
        newest(&node, "assignment", assignment).await,
        ("revoke".to_owned(), held("assigned"), held("revoked"))
    );
    // A notification that has failed, and is sent again. After that, the receiver is silent until the test ends.
    let receiver = Receiver::start(Answer::Status(503)).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    let told = node.post("/v1/channels/hook/test", json!({})).await.expect_status(200);
    receiver.answers(Answer::Held);
    let told = id(&told);
    node.post(&format!("/v1/notifications/{told}/resend"), json!({}))
        .await
        .expect_status(200);
    let (action, before, after) = newest(&node, "notification", &told).await;
    assert_eq!(
        (action.as_str(), before),
        (
            "resend",
            json!({"state": "failed", "attempts": 1, "next_attempt_at": null})
        )
    );
    assert_eq!(
        (&after["state"], &after["attempts"]),
        (&json!("pending"), &json!(0)),
        "{after:#}"
    );
    assert!(after["next_attempt_at"].is_string(), "{after:#}");
    // One that waits, or is just being sent: its state does not change.
    node.post(&format!("/v1/notifications/{told}/resend"), json!({}))
        .await
        .expect_status(200);
    let (_, before, after) = newest(&node, "notification", &told).await;
    for side in [&before, &after] {
        assert_eq!((&side["state"], &side["attempts"]), (&json!("pending"), &json!(0)));
    }
    receiver.answers(Answer::Status(200));
}

/// What only an admin can list, only an admin finds in the audit.
#[tokio::test]
async fn others_get_no_entries_of_what_they_cannot_list() {
    const OF_ADMINS: [&str; 3] = ["connection", "secret", "token"];
    let (world, node) = World::with_node().await;
    let granted = |mut spec: Value| {
        spec["groups"] = json!(["payroll"]);
        spec
    };
    for (path, spec) in [
        ("/v1/secrets/door", granted(json!({"value": "sesame"}))),
        ("/v1/connections/shop", granted(json!({"url": world.url()}))),
        ("/v1/pools/p", json!({"slots": 1})),
    ] {
        node.put(path, spec).await.expect_status(201);
    }
    let mut readers = Vec::new();
    for role in ["viewer", "operator", "author"] {
        let made = node.post("/v1/tokens", json!({"name": role, "role": role})).await;
        let made = made.expect_status(201);
        readers.push(node.with_token(made["token"].as_str()));
        // Somebody signs in.
        let session = json!({"token": made["token"]});
        node.post("/v1/session", session).await.expect_status(201);
    }
    for reader in &readers {
        // In pages of one entry, too.
        for path in ["/v1/audit", "/v1/audit?limit=1", "/v1/audit?action=create&limit=1"] {
            let entries = reader.all(path).await;
            let has = |kind: &str| entries.iter().any(|entry| entry["kind"] == kind);
            assert!(
                has("pool") && !OF_ADMINS.iter().any(|kind| has(kind)),
                "{path}: {entries:#?}"
            );
        }
        assert!(reader.all("/v1/audit?action=sign_in").await.is_empty());
        for kind in OF_ADMINS {
            let reply = reader.get(&format!("/v1/audit?kind={kind}&name=door")).await;
            reply.expect_problem(403, &[]);
        }
    }
    for kind in OF_ADMINS {
        assert!(!node.all(&format!("/v1/audit?kind={kind}")).await.is_empty(), "{kind}");
    }
    let all = node.all("/v1/audit").await;
    assert!(json!(all).to_string().contains("payroll"), "{all:#?}");
}

/// A thing that nobody has changed yet has its defaults, so these are before the first change.
#[tokio::test]
async fn defaults_are_before_the_first_change() {
    let (_world, node) = World::with_node().await;
    let default = node.get("/v1/retention").await.expect_status(200);
    let wanted = node
        .put("/v1/retention", json!({"runs": "7d"}))
        .await
        .expect_status(200);
    assert_eq!(
        newest(&node, "setting", "retention").await,
        ("update".to_owned(), default, wanted.clone())
    );
    node.post("/v1/retention/prune", json!({})).await.expect_status(200);
    assert_eq!(
        newest(&node, "setting", "retention").await,
        ("prune".to_owned(), wanted.clone(), wanted)
    );
    let put = node.put("/v1/queues/q", json!({"paused": true})).await;
    assert!(matches!(put.status, 200 | 201), "{:#}", put.body);
    let settings = |paused: bool| json!({"paused": paused, "rate": null});
    assert_eq!(
        newest(&node, "queue", "q").await,
        ("update".to_owned(), settings(false), settings(true))
    );
    // A rate has the form of the API.
    let rate = json!({"count": 5, "per": "1m"});
    let put = node.put("/v1/queues/q", json!({"paused": false, "rate": rate})).await;
    let put = put.expect_status(200);
    let limited = json!({"paused": put["paused"], "rate": put["rate"]});
    assert_eq!(limited["rate"], rate, "{put:#}");
    assert_eq!(
        newest(&node, "queue", "q").await,
        ("update".to_owned(), settings(true), limited)
    );
    // A category that a group has created.
    node.put_group("g", with(one(sleeps(0.0)), json!({"category": "c"})))
        .await;
    assert_eq!(
        newest(&node, "category", "c").await,
        ("create".to_owned(), Value::Null, json!({"description": ""}))
    );
    // A token that is revoked: as it was made.
    let asked = json!({"name": "w", "role": "worker", "queues": ["q"]});
    node.post("/v1/tokens", asked).await.expect_status(201);
    let (_, _, made) = newest(&node, "token", "w").await;
    node.delete("/v1/tokens/w").await.expect_status(204);
    assert_eq!(
        newest(&node, "token", "w").await,
        ("revoke".to_owned(), made, Value::Null)
    );
    // No entry is empty.
    for entry in node.all("/v1/audit?limit=500").await {
        let empty = entry["before"].is_null() && entry["after"].is_null();
        assert!(!empty, "{entry:#}");
    }
}
