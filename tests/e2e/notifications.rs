//! Who is told of what, by what way, and that nothing of it is lost.
//!
//! Mail servers and receivers are those of the harness, on loopback: nothing is sent anywhere else.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use hmac::{Hmac, KeyInit, Mac};
use heddle_tests::{Answer, Manners, Node, Receiver, Request, Smtp, World, eventually, id};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::{fails, one, sleeps, with};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A webhook channel that a test may use.
async fn webhook(node: &Node, name: &str, url: &str, more: Value) {
    let spec = with(
        json!({"kind": "webhook", "url": url, "secret": SECRET, "allow_private": true}),
        more,
    );
    let reply = node.put(&format!("/v1/channels/{name}"), spec).await;
    assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
}

async fn mail(node: &Node, name: &str, server: &Smtp, tls: &str, more: Value) {
    let spec = with(
        json!({"kind": "email", "from": "Heddle <heddle@example.com>", "to": ["ops@example.com"],
               "smtp": {"host": "localhost", "port": server.port, "tls": tls, "ca": server.ca}}),
        more,
    );
    let reply = node.put(&format!("/v1/channels/{name}"), spec).await;
    assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
}

/// Requests, when there are so many.
async fn requests(receiver: &Receiver, count: usize) -> Vec<Request> {
    eventually(&format!("{count} requests"), async || {
        let requests = receiver.requests();
        (requests.len() >= count).then_some(requests)
    })
    .await
}

/// Notifications by this query, when there are so many and none is pending any more.
async fn settled(node: &Node, query: &str, count: usize) -> Vec<Value> {
    eventually(&format!("{count} notifications of {query}"), async || {
        let items = node.all(&format!("/v1/notifications?limit=500&{query}")).await;
        let done = items.iter().all(|item| item["state"] != "pending");
        (done && items.len() >= count).then_some(items)
    })
    .await
}

/// A notification in a state.
async fn becomes(node: &Node, query: &str, good: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("such a notification of {query}"), async || {
        let items = node.all(&format!("/v1/notifications?{query}")).await;
        items.into_iter().find(|item| good(item))
    })
    .await
}

/// Checks a request as a receiver would, by the specification alone.
fn verify(request: &Request) {
    let header = |name: &str| request.header(name).unwrap_or_else(|| panic!("no {name} in {request:?}"));
    let key = base64::engine::general_purpose::STANDARD
        .decode(SECRET.trim_start_matches("whsec_"))
        .unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{}.{}.", header("webhook-id"), header("webhook-timestamp")).as_bytes());
    mac.update(&request.raw);
    let signature = base64::engine::general_purpose::STANDARD.encode(mac.finalize().into_bytes());
    assert_eq!(header("webhook-signature"), format!("v1,{signature}"));
    assert_eq!(header("idempotency-key"), header("webhook-id"));
    assert_eq!(header("content-type"), "application/json");
}

fn events(requests: &[Request]) -> Vec<String> {
    let mut events: Vec<String> = requests
        .iter()
        .map(|request| request.body["type"].as_str().unwrap_or("?").to_owned())
        .collect();
    events.sort();
    events
}

#[tokio::test]
async fn what_is_secret_of_a_channel_is_write_only() {
    let world = World::new().await;
    let node = world.node().await;
    let hook = json!({"kind": "webhook", "url": "https://example.com/hook", "secret": SECRET});
    let made = node.put("/v1/channels/hook", hook.clone()).await.expect_status(201);
    assert_eq!((&made["name"], &made["kind"], &made["url"]), (&json!("hook"), &json!("webhook"), &hook["url"]));
    assert_eq!(node.put("/v1/channels/hook", hook).await.expect_status(200)["updated_at"], made["updated_at"]);
    let robot = json!({"kind": "dingtalk", "url": "https://oapi.dingtalk.com/robot/send?access_token=topsecret", "secret": "SECtopsecret"});
    node.put("/v1/channels/robot", robot).await.expect_status(201);
    let mail = json!({"kind": "email", "to": ["a@example.com"],
        "smtp": {"host": "mail.example.com", "username": "u", "password": "topsecret"}});
    node.put("/v1/channels/mail", mail).await.expect_status(201);
    // As it was shown, and without what was not: nothing changes.
    let shown = node.get("/v1/channels/mail").await.expect_status(200);
    let again = json!({"kind": "email", "to": shown["to"], "smtp": shown["smtp"]});
    assert_eq!(node.put("/v1/channels/mail", again).await.expect_status(200)["updated_at"], shown["updated_at"]);
    for path in ["/v1/channels", "/v1/channels/hook", "/v1/channels/robot", "/v1/channels/mail", "/v1/audit?limit=500"] {
        let text = node.get(path).await.expect_status(200).to_string();
        assert!(!text.contains("topsecret") && !text.contains("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "{path}: {text}");
    }
    let stored: Vec<tokio_postgres::Row> = world
        .sql()
        .await
        .query("SELECT options::text || encode(ciphertext, 'escape') FROM heddle.channels", &[])
        .await
        .unwrap();
    for row in stored {
        let text: String = row.get(0);
        assert!(!text.contains("topsecret"), "{text}");
    }
    assert!(!node.log().contains("topsecret"));
    let viewer = node
        .post("/v1/tokens", json!({"name": "v", "role": "viewer"}))
        .await
        .expect_status(201)["token"]
        .as_str()
        .unwrap()
        .to_owned();
    let viewer = node.with_token(Some(&viewer));
    viewer.get("/v1/channels/hook").await.expect_status(200);
    viewer.put("/v1/channels/hook", json!({"kind": "email"})).await.expect_status(403);
    viewer.post("/v1/channels/hook/test", json!({})).await.expect_status(403);
    node.delete("/v1/channels/hook").await.expect_status(204);
    node.get("/v1/channels/hook").await.expect_problem(404, &[]);
    node.delete("/v1/channels/hook").await.expect_problem(404, &[]);
    node.post("/v1/channels/hook/test", json!({})).await.expect_problem(404, &[]);
}

#[tokio::test]
async fn bad_channels_and_rules_are_refused() {
    let world = World::new().await;
    let node = world.node().await;
    let check = async |spec: Value, pointers: &[&str]| {
        node.put("/v1/channels/c", spec).await.expect_problem(422, pointers);
    };
    check(json!({"kind": "pigeon"}), &["/kind"]).await;
    check(json!({"kind": "webhook"}), &["/url"]).await;
    check(json!({"kind": "webhook", "url": "file:///etc/passwd"}), &["/url"]).await;
    check(json!({"kind": "webhook", "url": "https://example.com", "secret": "plain"}), &["/secret"]).await;
    check(json!({"kind": "email", "to": ["a@example.com\r\nBcc: b@example.com"]}), &["/to/0"]).await;
    check(json!({"kind": "email", "from": "a\n@example.com"}), &["/from"]).await;
    check(json!({"kind": "email", "subject": "{{ nobody_knows_this }}"}), &["/subject"]).await;
    let group = |rules: Value| json!({"tasks": {"t": {"script": "hello"}}, "notify": rules});
    node.refused_group("g", group(json!({"on": ["failed"], "channels": ["nope"]})))
        .await
        .expect_problem(422, &["/notify/channels/0"]);
    node.refused_group("g", group(json!({"on": ["exploded"], "to": ["a@example.com"]})))
        .await
        .expect_problem(422, &["/notify/on/0"]);
    node.refused_group("g", group(json!({"on": ["failed"], "to": ["a@b.c\nBcc: d@e.f"]})))
        .await
        .expect_problem(422, &["/notify/to/0"]);
    let task = one(json!({"script": "hello", "notify": {"on": ["failed"], "channels": ["nope"]}}));
    node.refused_group("g", task)
        .await
        .expect_problem(422, &["/tasks/t/notify/channels/0"]);
    node.put_group("g", one(json!({"script": "hello"}))).await;
    for callback in ["nope", "ftp://example.com", "https://u:p@example.com/", ""] {
        node.post("/v1/groups/g/runs", json!({"callback": callback}))
            .await
            .expect_problem(422, &["/callback"]);
    }
    node.get("/v1/notifications?state=lost").await.expect_problem(422, &["/state"]);
    node.get(&format!("/v1/notifications/{}", uuid::Uuid::nil())).await.expect_problem(404, &[]);
    node.post(&format!("/v1/notifications/{}/resend", uuid::Uuid::nil()), json!({}))
        .await
        .expect_problem(404, &[]);
}

/// The group's rule and the task's name the same channel: one failure, one message; signed, and it says what there is to
/// be known.
#[tokio::test]
async fn a_failure_is_told_once() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_PUBLIC_URL", "https://heddle.example/").start().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    let rules = json!({"on": ["failed"], "channels": ["hook"]});
    let spec = with(one(with(fails(), json!({"notify": rules}))), json!({"notify": rules}));
    node.put_group("g", spec).await;
    let run = node.run("g", json!({})).await;
    assert_eq!(run["state"], "failed");
    let told = settled(&node, "group=g", 1).await;
    assert_eq!(told.len(), 1, "{told:#?}");
    let notification = &told[0];
    for (field, value) in [
        ("channel", json!("hook")),
        ("event", json!("failed")),
        ("state", json!("sent")),
        ("run", run["id"].clone()),
        ("attempts", json!(1)),
        ("last_error", Value::Null),
    ] {
        assert_eq!(notification[field], value, "{field} of {notification:#}");
    }
    let requests = requests(&receiver, 1).await;
    assert_eq!(requests.len(), 1);
    verify(&requests[0]);
    assert_eq!(requests[0].header("webhook-id"), notification["id"].as_str());
    let body = &requests[0].body;
    assert_eq!((&body["type"], &body["data"]["run"]), (&json!("run.failed"), &run["id"]));
    let text = body["data"]["text"].as_str().unwrap();
    for part in ["as asked", "g failed", "stays failed", &format!("https://heddle.example/runs/{}", id(&run))] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(body["data"]["logs"].to_string().contains("attempt 1 fails"), "{body:#}");
    let whole = node.get(&format!("/v1/notifications/{}", id(notification))).await.expect_status(200);
    assert_eq!(whole["text"].as_str().unwrap(), text);
    // Found by its filters, and by no others.
    for (query, count) in [
        ("channel=hook", 1),
        ("channel=other", 0),
        ("event=failed,started", 1),
        ("event=started", 0),
        ("state=sent", 1),
        ("state=failed", 0),
        ("from=2030-01-01T00:00:00Z", 0),
    ] {
        assert_eq!(node.all(&format!("/v1/notifications?{query}")).await.len(), count, "{query}");
    }
    // Again, with the same id.
    node.post(&format!("/v1/notifications/{}/resend", id(notification)), json!({}))
        .await
        .expect_status(200);
    let twice = self::requests(&receiver, 2).await;
    assert_eq!(twice[1].header("webhook-id"), notification["id"].as_str());
    verify(&twice[1]);
}

/// Every event that a rule can name, in a group that goes through them.
#[tokio::test]
async fn all_events_are_told() {
    let world = World::new().await;
    let node = world
        .options()
        .env("HEDDLE_QUEUE_STALLED_AFTER", "200ms")
        .start()
        .await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &receiver.url, json!({"burst": 1000})).await;
    let all = ["started", "succeeded", "failed", "retrying", "recovered", "deadline_missed", "schedule_missed", "queue_stalled"];
    let rules = json!({"on": all, "channels": ["hook"]});
    let retried = json!({"script": "flaky", "params": {"fail_times": 1},
        "retry": {"strategy": "fixed", "retries": 1, "interval": "10ms"}, "notify": {"on": ["started", "succeeded"], "channels": ["hook"]}});
    node.put_group("g", with(one(retried.clone()), json!({"notify": rules}))).await;
    assert_eq!(node.run("g", json!({})).await["state"], "succeeded");
    let told = requests(&receiver, 4).await;
    // The task's success and the run's are one moment, which each address is told once.
    assert_eq!(events(&told), ["run.started", "run.succeeded", "task.retrying", "task.started"]);
    assert!(
        told.iter().any(|request| request.body["data"]["next"].to_string().contains("Attempt 2 begins at")),
        "{told:#?}"
    );
    // Without a failure there is no recovery; after one there is one.
    for params in [json!({"fail_times": 5}), json!({"fail_times": 0}), json!({"fail_times": 0})] {
        node.run("g", json!({"params": params})).await;
    }
    let recovered = settled(&node, "group=g&event=recovered", 1).await;
    eventually("all of them told", async || {
        (node.all("/v1/notifications?group=g&event=succeeded").await.len() == 3).then_some(())
    })
    .await;
    assert_eq!(node.all("/v1/notifications?group=g&event=recovered").await.len(), 1, "{recovered:#?}");
    assert_eq!(node.all("/v1/notifications?group=g&event=failed").await.len(), 1);

    let late = with(one(sleeps(600.0)), json!({"notify": rules, "deadline": "100ms", "deadline_action": "cancel"}));
    node.put_group("late", late).await;
    assert_eq!(node.run("late", json!({})).await["state"], "cancelled");
    settled(&node, "group=late&event=deadline_missed", 1).await;

    let queued = with(one(json!({"queue": "nobody"})), json!({"notify": rules}));
    node.put_group("queued", queued).await;
    node.start("queued", json!({})).await;
    let stalled = settled(&node, "group=queued&event=queue_stalled", 1).await;
    assert_eq!(stalled.len(), 1, "{stalled:#?}");
    assert_eq!(stalled[0]["task"], "t");
}

/// An instant that nobody was there for.
#[tokio::test]
async fn missed_schedules_are_told() {
    let world = World::new().await;
    let mut node = world.node().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    let spec = with(
        one(json!({"script": "hello"})),
        json!({"schedules": {"often": {"every": "1h", "grace": "100ms", "misfire": "skip"}},
               "notify": {"on": ["schedule_missed"], "channels": ["hook"]}}),
    );
    node.put_group("g", spec).await;
    node.kill();
    node.end().await;
    // An hour and more passes.
    let moved = world
        .sql()
        .await
        .execute("UPDATE heddle.schedules SET next_fire_at = next_fire_at - interval '3 hours', cursor = cursor - interval '3 hours'", &[])
        .await
        .unwrap();
    assert_eq!(moved, 1);
    let node = world.node().await;
    let told = settled(&node, "event=schedule_missed", 1).await;
    assert_eq!(told[0]["group"], "g");
    assert!(requests(&receiver, 1).await[0].body["data"]["next"].to_string().contains("not made up"));
}

/// Real conversations, encrypted each way; recipients of the channel, the group and the task are merged.
#[tokio::test]
async fn mails_travel_by_smtp() {
    let world = World::new().await;
    let node = world.node().await;
    let (starttls, implicit) = (Smtp::start(false).await, Smtp::start(true).await);
    let login = json!({"host": "localhost", "port": starttls.port, "tls": "starttls", "ca": starttls.ca,
        "username": "heddle", "password": "right"});
    mail(&node, "ops-mail", &starttls, "starttls", json!({"smtp": login})).await;
    let spec = with(
        one(with(
            fails(),
            json!({"notify": {"on": ["failed"], "channels": ["ops-mail"], "to": ["OPS@example.com", "etl@example.com"]}}),
        )),
        json!({"notify": {"on": ["failed"], "channels": ["ops-mail"], "to": ["boss@example.com"]}}),
    );
    node.put_group("größe-失敗", spec).await;
    node.run("größe-失敗", json!({})).await;
    let told = settled(&node, "event=failed", 2).await;
    assert!(told.iter().all(|item| item["state"] == "sent"), "{told:#?}");
    let mails = starttls.mails();
    let mut to: Vec<&str> = mails.iter().flat_map(|mail| &mail.to).map(String::as_str).collect();
    to.sort_unstable();
    assert_eq!(to, ["boss@example.com", "etl@example.com", "ops@example.com"], "each address once");
    for mail in &mails {
        assert!(mail.encrypted && mail.user.as_deref() == Some("heddle") && mail.from == "heddle@example.com", "{mail:?}");
        assert!(mail.data.is_ascii(), "{mail:?}");
        assert_eq!(mail.header("To").as_deref(), mail.to.first().map(String::as_str));
        assert!(mail.body().contains("größe-失敗") && mail.body().contains("as asked"), "{}", mail.body());
        let named = mail.header("X-Heddle-Notification").unwrap();
        assert!(told.iter().any(|item| item["id"] == json!(named)), "{named} is none of {told:#?}");
    }
    // The other ways: from the first byte, and in the clear.
    mail(&node, "implicit", &implicit, "implicit", json!({})).await;
    let plain = Smtp::start(false).await;
    mail(&node, "plain", &plain, "none", json!({})).await;
    for (name, server, encrypted) in [("implicit", &implicit, true), ("plain", &plain, false)] {
        let answer = node.post(&format!("/v1/channels/{name}/test"), json!({})).await.expect_status(200);
        assert_eq!((&answer["state"], &answer["event"]), (&json!("sent"), &json!("test")), "{answer:#}");
        assert_eq!(server.mails().iter().map(|mail| mail.encrypted).collect::<Vec<_>>(), [encrypted]);
    }
    // Wrong passwords, servers that do not encrypt, certificates of strangers: no mail, and the reason.
    let wrong = json!({"host": "localhost", "port": starttls.port, "ca": starttls.ca, "username": "heddle", "password": "wrong"});
    mail(&node, "wrong", &starttls, "starttls", json!({"smtp": wrong})).await;
    let stranger = json!({"host": "localhost", "port": starttls.port});
    mail(&node, "stranger", &starttls, "starttls", json!({"smtp": stranger})).await;
    for (name, said) in [("wrong", "who are you"), ("stranger", "ertificate")] {
        let answer = node.post(&format!("/v1/channels/{name}/test"), json!({})).await.expect_status(200);
        assert_eq!(answer["state"], "failed", "{answer:#}");
        assert!(answer["last_error"].as_str().unwrap().contains(said), "{answer:#}");
    }
    assert_eq!(starttls.mails().len(), mails.len());
}

/// A server that knows one address does not keep the others from their mails; one that goes away in the middle of a mail
/// gets it again; one that hangs slows nobody.
#[tokio::test]
async fn bad_mail_servers_hurt_nobody_else() {
    let world = World::new().await;
    let node = world.node().await;
    let (picky, moody, dead) = (Smtp::start(false).await, Smtp::start(false).await, Smtp::start(false).await);
    let receiver = Receiver::start(Answer::Status(200)).await;
    picky.behaves(Manners::Refuses("gone@example.com"));
    moody.behaves(Manners::Drops);
    dead.behaves(Manners::Hangs);
    mail(&node, "picky", &picky, "none", json!({"to": ["gone@example.com", "here@example.com"]})).await;
    mail(&node, "moody", &moody, "none", json!({})).await;
    mail(&node, "dead", &dead, "none", json!({"burst": 100})).await;
    webhook(&node, "hook", &receiver.url, json!({"burst": 100})).await;
    let rules = json!({"on": ["failed"], "channels": ["picky", "moody", "dead", "hook"]});
    node.put_group("g", with(one(fails()), json!({"notify": rules}))).await;
    node.run("g", json!({})).await;
    let refused = becomes(&node, "channel=picky", |item| item["state"] != "pending").await;
    assert_eq!(refused["state"], "failed", "{refused:#}");
    assert!(refused["last_error"].as_str().unwrap().contains("gone@example.com: "), "{refused:#}");
    assert_eq!(picky.mails().iter().map(|mail| mail.to[0].as_str()).collect::<Vec<_>>(), ["here@example.com"]);
    let waiting = becomes(&node, "channel=moody", |item| item["attempts"] != 0).await;
    assert_eq!(waiting["state"], "pending", "{waiting:#}");
    assert!(!waiting["next_attempt_at"].is_null() && !waiting["last_error"].is_null(), "{waiting:#}");
    moody.behaves(Manners::Good);
    becomes(&node, "channel=moody", |item| item["state"] == "sent").await;
    assert_eq!(moody.mails().len(), 1);
    // While one server hangs, runs end and others are told.
    for _ in 0..8 {
        assert_eq!(node.run("g", json!({})).await["state"], "failed");
    }
    requests(&receiver, 9).await;
    assert_eq!(node.all("/v1/notifications?channel=dead&state=sent").await.len(), 0);
    assert!(dead.connections() >= 1);
}

#[tokio::test]
async fn bad_receivers_hurt_nobody_else() {
    let world = World::new().await;
    let node = world.node().await;
    let check = async |name: &str, answer: Answer| {
        let receiver = Receiver::start(answer).await;
        webhook(&node, name, &receiver.url, json!({})).await;
        node.put_group(name, with(one(fails()), json!({"notify": {"on": ["failed"], "channels": [name]}}))).await;
        node.run(name, json!({})).await;
        let tried = becomes(&node, &format!("channel={name}"), |item| item["attempts"] != 0).await;
        (receiver, tried)
    };
    // Comes again, under the same id, until it is taken.
    let (receiver, tried) = check("broken", Answer::Status(500)).await;
    assert_eq!(tried["state"], "pending", "{tried:#}");
    assert!(tried["last_error"].as_str().unwrap().contains("500"), "{tried:#}");
    receiver.answers(Answer::Status(204));
    let sent = becomes(&node, "channel=broken", |item| item["state"] == "sent").await;
    assert!(sent["attempts"].as_i64().unwrap() >= 2, "{sent:#}");
    let ids: BTreeSet<String> = receiver
        .requests()
        .iter()
        .map(|request| {
            verify(request);
            request.header("webhook-id").unwrap().to_owned()
        })
        .collect();
    assert_eq!(ids.len(), 1);
    // Wants to hear no more: not once more.
    let (receiver, tried) = check("gone", Answer::Status(410)).await;
    assert_eq!((&tried["state"], &tried["next_attempt_at"]), (&json!("failed"), &Value::Null), "{tried:#}");
    assert!(tried["last_error"].as_str().unwrap().contains("410"), "{tried:#}");
    assert_eq!(receiver.requests().len(), 1);
    // Sends us where nobody may go; `allow_private` is about addresses that an administrator wrote down.
    let strict = Receiver::start(Answer::Status(200)).await;
    let to = json!({"kind": "webhook", "url": strict.url, "secret": SECRET});
    node.put("/v1/channels/strict", to).await.expect_status(201);
    let answer = node.post("/v1/channels/strict/test", json!({})).await.expect_status(200);
    assert_eq!(answer["state"], "failed", "{answer:#}");
    assert!(answer["last_error"].as_str().unwrap().contains("not public"), "{answer:#}");
    assert_eq!(strict.requests().len(), 0);
    // A gigabyte is an answer that is not read.
    let (_, tried) = check("chatty", Answer::Endless(200)).await;
    assert_eq!(tried["state"], "sent", "{tried:#}");
    let (_, tried) = check("chatty-and-broken", Answer::Endless(503)).await;
    assert_eq!(tried["state"], "pending", "{tried:#}");
    // Redirects are followed where they keep the request what it is.
    let (receiver, target) = (Receiver::start(Answer::Status(200)).await, Receiver::start(Answer::Status(200)).await);
    receiver.answers(Answer::Redirect(308, target.url.clone()));
    webhook(&node, "moved", &receiver.url, json!({})).await;
    let answer = node.post("/v1/channels/moved/test", json!({})).await.expect_status(200);
    assert_eq!(answer["state"], "sent", "{answer:#}");
    verify(&requests(&target, 1).await[0]);
    receiver.answers(Answer::Redirect(302, target.url.clone()));
    let answer = node.post("/v1/channels/moved/test", json!({})).await.expect_status(200);
    assert_eq!(answer["state"], "failed", "{answer:#}");
}

/// Where private addresses are not allowed, a redirect to one is refused.
#[tokio::test]
async fn redirects_to_private_addresses_are_refused() {
    let world = World::new().await;
    // Only the receiver itself is allowed, by its address and not as a network.
    let node = world.options().env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1").start().await;
    let receiver = Receiver::start(Answer::Redirect(307, "http://169.254.169.254/latest/meta-data".into())).await;
    let spec = json!({"kind": "webhook", "url": receiver.url});
    node.put("/v1/channels/hook", spec).await.expect_status(201);
    node.put_group("g", with(one(fails()), json!({"notify": {"on": ["failed"], "channels": ["hook"]}}))).await;
    node.run("g", json!({})).await;
    let tried = becomes(&node, "channel=hook", |item| item["state"] != "pending").await;
    assert_eq!((&tried["state"], &tried["attempts"]), (&json!("failed"), &json!(1)), "{tried:#}");
    assert!(tried["last_error"].as_str().unwrap().contains("169.254.169.254"), "{tried:#}");
}

/// Each chat's robot gets its own format, and its word counts, whatever the status.
#[tokio::test]
async fn robots_of_chats_are_told() {
    let world = World::new().await;
    let node = world.node().await;
    for (kind, good, text) in [
        ("slack", Answer::Json(200, "ok".into()), "/text"),
        ("feishu", Answer::Json(200, r#"{"code":0,"msg":"success","data":{}}"#.into()), "/content/text"),
        ("dingtalk", Answer::Json(200, r#"{"errcode":0,"errmsg":"ok"}"#.into()), "/text/content"),
        ("wecom", Answer::Json(200, r#"{"errcode":0,"errmsg":"ok"}"#.into()), "/text/content"),
    ] {
        let receiver = Receiver::start(good).await;
        let url = format!("{}/robot?key=k", receiver.url);
        let spec = json!({"kind": kind, "url": url, "secret": "SEC", "allow_private": true});
        node.put(&format!("/v1/channels/{kind}"), spec).await.expect_status(201);
        let answer = node.post(&format!("/v1/channels/{kind}/test"), json!({})).await.expect_status(200);
        assert_eq!(answer["state"], "sent", "{kind}: {answer:#}");
        let request = &requests(&receiver, 1).await[0];
        let said = request.body.pointer(text).and_then(Value::as_str).unwrap_or_default();
        assert!(said.contains("the channel works"), "{kind}: {:#}", request.body);
        assert_eq!(request.path.contains("sign="), kind == "dingtalk", "{}", request.path);
        assert_eq!(request.body["sign"].is_string(), kind == "feishu", "{:#}", request.body);
        let refusal = r#"{"code":19021,"errcode":310000,"msg":"sign match fail","errmsg":"sign not match"}"#;
        if kind != "slack" {
            receiver.answers(Answer::Json(200, refusal.into()));
            let answer = node.post(&format!("/v1/channels/{kind}/test"), json!({})).await.expect_status(200);
            assert_eq!(answer["state"], "failed", "{kind}: {answer:#}");
            assert!(answer["last_error"].as_str().unwrap().contains("sign"), "{answer:#}");
        }
    }
}

/// Whoever submits a run is called back with it as it ended: at a URL, or through a channel, signed.
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

/// What scripts say is told once, with their success; a channel that is not there is no reason to fail.
#[tokio::test]
async fn scripts_tell_people() {
    let world = World::new().await;
    let node = world.node().await;
    let server = Smtp::start(false).await;
    mail(&node, "ops", &server, "none", json!({})).await;
    let says = |channel: &str, fail: bool| {
        json!({"params": {"fail": fail,
            "notify": {"channel": channel, "subject": "größer\r\nBcc: x@example.com", "body": "the body\n.\nends"}}})
    };
    node.put_group("g", one(json!({"script": "stateful"}))).await;
    assert_eq!(node.run("g", says("ops", true)).await["state"], "failed");
    let run = node.run("g", says("ops", false)).await;
    assert_eq!(node.run("g", says("nowhere", false)).await["state"], "succeeded");
    let told = settled(&node, "event=script", 2).await;
    assert_eq!(told.len(), 2, "{told:#?}");
    assert_eq!((&told[0]["channel"], &told[0]["state"]), (&json!("nowhere"), &json!("failed")), "{told:#?}");
    assert_eq!((&told[1]["run"], &told[1]["state"]), (&run["id"], &json!("sent")), "{told:#?}");
    let mails = server.mails();
    assert_eq!(mails.len(), 1);
    assert_eq!(mails[0].to, ["ops@example.com"]);
    assert_eq!(mails[0].header("Bcc"), None, "{mails:#?}");
    assert!(mails[0].body().contains("the body\r\n.\r\nends") || mails[0].body().contains("the body\n.\nends"), "{mails:#?}");
}

/// A channel's own words.
#[tokio::test]
async fn channels_have_templates() {
    let world = World::new().await;
    let node = world.node().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    let words = json!({"subject": "[{{ group }}] {{ event }}", "text": "{{ error }} | {{ subject }}"});
    webhook(&node, "hook", &receiver.url, words).await;
    node.put_group("g", with(one(fails()), json!({"notify": {"on": ["failed"], "channels": ["hook"]}}))).await;
    node.run("g", json!({})).await;
    let data = &requests(&receiver, 1).await[0].body["data"];
    assert_eq!(data["subject"], "[g] failed");
    assert!(data["text"].as_str().unwrap().ends_with("| g failed: ") || data["text"].as_str().unwrap().contains(" | g failed: "), "{data:#}");
}

/// A storm makes a bounded number of mails, which stand for all of it. `HEDDLE_TEST_STORM` makes it larger.
#[tokio::test]
async fn a_storm_is_gathered_and_nothing_of_it_lost() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let storm: usize = std::env::var("HEDDLE_TEST_STORM").map_or(1_000, |text| text.parse().unwrap());
    let server = Smtp::start(false).await;
    mail(&nodes[0], "ops", &server, "none", json!({"burst": 3, "digest_every": "1d"})).await;
    let rules = json!({"on": ["failed"], "channels": ["ops"]});
    nodes[0].put_group("g", with(one(fails()), json!({"notify": rules}))).await;
    for (part, node) in nodes.iter().enumerate() {
        let count = storm / 2 + part * (storm % 2);
        let runs: Vec<Value> = (0..count).map(|_| json!({})).collect();
        node.post("/v1/groups/g/runs/batch", json!({"runs": runs})).await;
    }
    let told = eventually("all failures told", async || {
        let told = nodes[1].all("/v1/notifications?group=g&event=failed").await;
        let count: u64 = told.iter().filter_map(|item| item["count"].as_u64()).sum();
        (count >= storm as u64).then_some(told)
    })
    .await;
    let counts: Vec<u64> = told.iter().filter_map(|item| item["count"].as_u64()).collect();
    assert_eq!(counts.iter().sum::<u64>(), storm as u64, "{told:#?}");
    assert_eq!(told.len(), 4, "three one by one and a digest: {told:#?}");
    let digest = told.iter().find(|item| item["count"] != 1).unwrap();
    assert_eq!(digest["state"], "pending");
    // It waits for its hour; sent now, it counts what it stands for.
    nodes[0]
        .post(&format!("/v1/notifications/{}/resend", id(digest)), json!({}))
        .await
        .expect_status(200);
    settled(&nodes[0], "group=g", 4).await;
    let mails = server.mails();
    assert_eq!(mails.len(), 4);
    let large = mails.iter().find(|mail| mail.body().contains(&format!("of {}:", storm - 3)));
    assert!(large.is_some(), "{:#?}", mails.iter().map(|mail| mail.header("Subject")).collect::<Vec<_>>());
    let whole = nodes[0].get(&format!("/v1/notifications/{}", id(digest))).await.expect_status(200);
    assert_eq!(whole["entries"].as_array().map(Vec::len), Some(50), "listed up to a bound");
    // What comes after a digest was sent is told in the next.
    nodes[0].run("g", json!({})).await;
    becomes(&nodes[0], "group=g&state=pending", |item| item["count"] == 1).await;
}

/// kill -9 after the state change, before anybody has looked at it: told by whoever comes next.
#[tokio::test]
async fn a_node_that_dies_before_it_tells() {
    let world = World::new().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    let mut node = world.node().await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    let rules = json!({"on": ["failed"], "channels": ["hook"]});
    node.put_group("g", with(one(fails()), json!({"notify": rules}))).await;
    // Nobody turns notices into notifications while this is held.
    let sql = world.sql().await;
    sql.execute("SELECT pg_advisory_lock(7522529135070347270)", &[]).await.unwrap();
    let run = node.run("g", json!({"callback": "hook"})).await;
    let notices: i64 = sql.query_one("SELECT count(*) FROM heddle.notices", &[]).await.unwrap().get(0);
    assert_eq!(notices, 2, "written with the run's end");
    node.kill();
    node.end().await;
    sql.execute("SELECT pg_advisory_unlock(7522529135070347270)", &[]).await.unwrap();
    assert_eq!(receiver.requests().len(), 0);
    let node = world.node().await;
    let told = settled(&node, &format!("run={}", id(&run)), 2).await;
    assert_eq!(told.len(), 2, "{told:#?}");
    assert_eq!(receiver.requests().len(), 2);
}

/// kill -9 in the middle of sending: sent again, under the same id.
#[tokio::test]
async fn a_node_that_dies_while_it_tells() {
    let world = World::new().await;
    let receiver = Receiver::start(Answer::Silence).await;
    let mut node = world.node().await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    let rules = json!({"on": ["failed"], "channels": ["hook"]});
    node.put_group("g", with(one(fails()), json!({"notify": rules}))).await;
    node.run("g", json!({})).await;
    let first = requests(&receiver, 1).await;
    node.kill();
    node.end().await;
    receiver.answers(Answer::Status(200));
    let node = world.node().await;
    becomes(&node, "group=g", |item| item["state"] == "sent").await;
    let all = receiver.requests();
    assert_eq!(all.len(), 2);
    assert_eq!(all[1].header("webhook-id"), first[0].header("webhook-id"));
    assert_eq!(all[1].raw, first[0].raw);
}

/// Two nodes tell each failure once.
#[tokio::test]
async fn two_nodes_tell_once() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&nodes[0], "hook", &receiver.url, json!({"burst": 100000})).await;
    let rules = json!({"on": ["failed"], "channels": ["hook"]});
    nodes[0].put_group("g", with(one(fails()), json!({"notify": rules}))).await;
    for node in &nodes {
        let runs: Vec<Value> = (0..50).map(|_| json!({})).collect();
        node.post("/v1/groups/g/runs/batch", json!({"runs": runs})).await;
    }
    let told = settled(&nodes[0], "group=g", 100).await;
    assert_eq!(told.len(), 100);
    let runs: BTreeSet<String> = receiver
        .requests()
        .iter()
        .map(|request| request.body["data"]["run"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!((runs.len(), receiver.requests().len()), (100, 100));
}

/// Groups without rules write nothing, and nothing is asked of the outbox by their runs.
#[tokio::test]
async fn groups_without_rules_have_no_notices() {
    let world = World::new().await;
    let node = world.node().await;
    node.put_group("g", one(fails())).await;
    node.put_group("h", json!({"tasks": {"a": {"script": "hello"}, "b": {"script": "hello", "depends_on": ["a"]}}}))
        .await;
    for _ in 0..3 {
        node.run("g", json!({})).await;
        node.run("h", json!({})).await;
    }
    let sql = world.sql().await;
    let drawn: i64 = sql
        .query_one("SELECT coalesce(last_value, 0) FROM pg_sequences WHERE schemaname = 'heddle' AND sequencename = 'notices_id_seq'", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(drawn, 0);
    assert_eq!(node.all("/v1/notifications").await.len(), 0);
}
