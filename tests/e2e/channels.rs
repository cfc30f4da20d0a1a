//! Channels: their secret parts, and how messages are sent through them.
//!
//! Mail servers and receivers are those of the harness, on loopback: nothing is sent anywhere else.

use std::collections::BTreeSet;

use heddle_tests::{Answer, Manners, Receiver, Smtp, World, eventually, time};
use serde_json::{Value, json};

use crate::notifications::{SECRET, becomes, mail, requests, settled, verify, webhook};
use crate::{fails, one, with};

#[tokio::test]
async fn what_is_secret_of_a_channel_is_write_only() {
    let (world, node) = World::with_node().await;
    let hook = json!({"kind": "webhook", "url": "https://example.com/hook", "secret": SECRET});
    let made = node.put("/v1/channels/hook", hook.clone()).await.expect_status(201);
    assert_eq!(
        (&made["name"], &made["kind"], &made["url"]),
        (&json!("hook"), &json!("webhook"), &hook["url"])
    );
    assert_eq!(
        node.put("/v1/channels/hook", hook).await.expect_status(200)["updated_at"],
        made["updated_at"]
    );
    let robot = json!({"kind": "dingtalk", "url": "https://oapi.dingtalk.com/robot/send?access_token=topsecret", "secret": "SECtopsecret"});
    node.put("/v1/channels/robot", robot).await.expect_status(201);
    let mail = json!({"kind": "email", "from": "h@example.com", "to": ["a@example.com"],
        "smtp": {"host": "mail.example.com", "username": "u", "password": "topsecret"}});
    node.put("/v1/channels/mail", mail).await.expect_status(201);
    // As it was shown, and without what was not: nothing changes.
    let shown = node.get("/v1/channels/mail").await.expect_status(200);
    let again = json!({"kind": "email", "from": shown["from"], "to": shown["to"], "smtp": shown["smtp"]});
    assert_eq!(
        node.put("/v1/channels/mail", again).await.expect_status(200)["updated_at"],
        shown["updated_at"]
    );
    for path in [
        "/v1/channels",
        "/v1/channels/hook",
        "/v1/channels/robot",
        "/v1/channels/mail",
        "/v1/audit?limit=500",
    ] {
        let text = node.get(path).await.expect_status(200).to_string();
        assert!(
            !text.contains("topsecret") && !text.contains("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
            "{path}: {text}"
        );
    }
    let stored: Vec<tokio_postgres::Row> = world
        .sql()
        .await
        .query(
            "SELECT options::text || encode(ciphertext, 'escape') FROM heddle.channels",
            &[],
        )
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
    viewer
        .put("/v1/channels/hook", json!({"kind": "email"}))
        .await
        .expect_status(403);
    viewer
        .post("/v1/channels/hook/test", json!({}))
        .await
        .expect_status(403);
    node.delete("/v1/channels/hook").await.expect_status(204);
    node.get("/v1/channels/hook").await.expect_problem(404, &[]);
    node.delete("/v1/channels/hook").await.expect_problem(404, &[]);
    node.post("/v1/channels/hook/test", json!({}))
        .await
        .expect_problem(404, &[]);
}

/// An email channel as `heddle serve` accepts it.
fn mail_spec() -> Value {
    json!({"kind": "email", "smtp": {"host": "mail.example.com"}, "from": "h@example.com", "to": ["a@example.com"]})
}

#[tokio::test]
async fn bad_channels_and_rules_are_refused() {
    let (_world, node) = World::with_node().await;
    let check = async |spec: Value, pointers: &[&str]| {
        node.put("/v1/channels/c", spec).await.expect_problem(422, pointers);
    };
    check(json!({"kind": "pigeon"}), &["/kind"]).await;
    check(json!({"kind": "webhook"}), &["/url"]).await;
    check(json!({"kind": "webhook", "url": "file:///etc/passwd"}), &["/url"]).await;
    check(
        json!({"kind": "webhook", "url": "https://example.com", "secret": "plain"}),
        &["/secret"],
    )
    .await;
    check(
        with(mail_spec(), json!({"to": ["a@example.com\r\nBcc: b@example.com"]})),
        &["/to/0"],
    )
    .await;
    check(with(mail_spec(), json!({"from": "a\n@example.com"})), &["/from"]).await;
    check(
        with(mail_spec(), json!({"to": ["x@[127.0.0.1]", "a@b.c", "a@b.c"]})),
        &["/to/0", "/to/2"],
    )
    .await;
    let robot = json!({"kind": "slack", "url": "https://hooks.example.com/secret"});
    node.put("/v1/channels/c", robot).await.expect_status(201);
    check(
        json!({"kind": "slack", "url": "https://hooks.example.org/…"}),
        &["/url"],
    )
    .await;
    check(
        json!({"kind": "webhook", "url": "https://hooks.example.com/…"}),
        &["/url"],
    )
    .await;
    check(
        with(mail_spec(), json!({"subject": "{{ nobody_knows_this }}"})),
        &["/subject"],
    )
    .await;
    // Files instead of mails are for `heddle dev`.
    check(json!({"kind": "email"}), &["/smtp", "/from", "/to"]).await;
    check(with(mail_spec(), json!({"smtp": null})), &["/smtp"]).await;
    check(with(mail_spec(), json!({"from": null})), &["/from"]).await;
    check(
        with(mail_spec(), json!({"to": [], "subject": "{{ nobody_knows_this }}"})),
        &["/to", "/subject"],
    )
    .await;
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
    for callback in [
        "nope",
        "ftp://example.com",
        "https://u:p@example.com/",
        "https://example.com/\r\nX: y",
        "",
    ] {
        node.post("/v1/groups/g/runs", json!({"callback": callback}))
            .await
            .expect_problem(422, &["/callback"]);
    }
    node.get("/v1/notifications?state=lost")
        .await
        .expect_problem(422, &["/state"]);
    node.get(&format!("/v1/notifications/{}", uuid::Uuid::nil()))
        .await
        .expect_problem(404, &[]);
    node.post(&format!("/v1/notifications/{}/resend", uuid::Uuid::nil()), json!({}))
        .await
        .expect_problem(404, &[]);
}

/// Real conversations, encrypted each way; recipients of the channel, the group and the task are merged.
#[tokio::test]
async fn mails_travel_by_smtp() {
    let (_world, node) = World::with_node().await;
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
    assert_eq!(
        to,
        ["boss@example.com", "etl@example.com", "ops@example.com"],
        "each address once"
    );
    for mail in &mails {
        assert!(
            mail.encrypted && mail.user.as_deref() == Some("heddle") && mail.from == "heddle@example.com",
            "{mail:?}"
        );
        assert!(mail.data.is_ascii(), "{mail:?}");
        assert_eq!(mail.header("To").as_deref(), mail.to.first().map(String::as_str));
        assert!(
            mail.body().contains("größe-失敗") && mail.body().contains("as asked"),
            "{}",
            mail.body()
        );
        let named = mail.header("X-Heddle-Notification").unwrap();
        assert!(
            told.iter().any(|item| item["id"] == json!(named)),
            "{named} is none of {told:#?}"
        );
    }
    // The other ways: from the first byte, and in the clear.
    mail(&node, "implicit", &implicit, "implicit", json!({})).await;
    let plain = Smtp::start(false).await;
    mail(&node, "plain", &plain, "none", json!({})).await;
    for (name, server, encrypted) in [("implicit", &implicit, true), ("plain", &plain, false)] {
        let answer = node
            .post(&format!("/v1/channels/{name}/test"), json!({}))
            .await
            .expect_status(200);
        assert_eq!(
            (&answer["state"], &answer["event"]),
            (&json!("sent"), &json!("test")),
            "{answer:#}"
        );
        assert_eq!(
            server.mails().iter().map(|mail| mail.encrypted).collect::<Vec<_>>(),
            [encrypted]
        );
    }
    // Wrong passwords, servers that do not encrypt, certificates of strangers: no mail, and the reason.
    let wrong = json!({"host": "localhost", "port": starttls.port, "ca": starttls.ca, "username": "heddle", "password": "wrong"});
    mail(&node, "wrong", &starttls, "starttls", json!({"smtp": wrong})).await;
    let stranger = json!({"host": "localhost", "port": starttls.port});
    mail(&node, "stranger", &starttls, "starttls", json!({"smtp": stranger})).await;
    for (name, said) in [("wrong", "who are you"), ("stranger", "ertificate")] {
        let answer = node
            .post(&format!("/v1/channels/{name}/test"), json!({}))
            .await
            .expect_status(200);
        assert_eq!(answer["state"], "failed", "{answer:#}");
        assert!(answer["last_error"].as_str().unwrap().contains(said), "{answer:#}");
    }
    assert_eq!(starttls.mails().len(), mails.len());
}

/// A permanent refusal is recognised in any encoding, encrypted or not: it is not retried.
#[tokio::test]
async fn refusals_are_read_in_any_letters() {
    let (_world, node) = World::with_node().await;
    for (name, implicit, tls) in [
        ("plain", false, "none"),
        ("upgraded", false, "starttls"),
        ("encrypted", true, "implicit"),
    ] {
        let server = Smtp::start(implicit).await;
        server.behaves(Manners::Mumbles);
        mail(&node, name, &server, tls, json!({})).await;
        let rules = json!({"on": ["failed"], "channels": [name]});
        node.put_group(name, with(one(fails()), json!({"notify": rules}))).await;
        node.run(name, json!({})).await;
        let tried = becomes(&node, &format!("channel={name}"), |item| item["attempts"] != 0).await;
        assert_eq!(
            (&tried["state"], &tried["attempts"]),
            (&json!("failed"), &json!(1)),
            "{tried:#}"
        );
        assert!(
            tried["last_error"].as_str().unwrap().contains("5.7.1 ???? spam"),
            "{tried:#}"
        );
        server.behaves(Manners::Good);
        node.post(&format!("/v1/channels/{name}/test"), json!({}))
            .await
            .expect_status(200);
        assert_eq!(server.mails().len(), 1, "it talks to us all the same");
    }
}

/// A server that knows one address does not keep the others from their mails; one that goes away in the middle of a mail
/// gets it again; one that hangs slows nobody.
#[tokio::test]
async fn bad_mail_servers_hurt_nobody_else() {
    let (_world, node) = World::with_node().await;
    let (picky, moody, dead) = (
        Smtp::start(false).await,
        Smtp::start(false).await,
        Smtp::start(false).await,
    );
    let receiver = Receiver::start(Answer::Status(200)).await;
    picky.behaves(Manners::Refuses("gone@example.com"));
    moody.behaves(Manners::Drops);
    dead.behaves(Manners::Hangs);
    mail(
        &node,
        "picky",
        &picky,
        "none",
        json!({"to": ["gone@example.com", "here@example.com"]}),
    )
    .await;
    mail(&node, "moody", &moody, "none", json!({})).await;
    mail(
        &node,
        "dead",
        &dead,
        "none",
        json!({"to": ["dead@example.com"], "burst": 100}),
    )
    .await;
    webhook(&node, "hook", &receiver.url, json!({"burst": 100})).await;
    let rules = json!({"on": ["failed"], "channels": ["picky", "moody", "dead", "hook"]});
    node.put_group("g", with(one(fails()), json!({"notify": rules}))).await;
    node.run("g", json!({})).await;
    let refused = becomes(&node, "channel=picky", |item| item["state"] != "pending").await;
    assert_eq!(refused["state"], "failed", "{refused:#}");
    assert!(
        refused["last_error"].as_str().unwrap().contains("gone@example.com: "),
        "{refused:#}"
    );
    assert_eq!(
        picky.mails().iter().map(|mail| mail.to[0].as_str()).collect::<Vec<_>>(),
        ["here@example.com"]
    );
    let waiting = becomes(&node, "channel=moody", |item| item["attempts"] != 0).await;
    assert_eq!(waiting["state"], "pending", "{waiting:#}");
    assert!(!waiting["next_attempt_at"].is_null(), "{waiting:#}");
    let error = waiting["last_error"].as_str().unwrap();
    assert!(error.ends_with("the mail server closed the connection"), "{waiting:#}");
    moody.behaves(Manners::Good);
    becomes(&node, "channel=moody", |item| item["state"] == "sent").await;
    assert_eq!(moody.mails().len(), 1);
    // While one server hangs, runs end and others are told.
    for _ in 0..8 {
        assert_eq!(node.run("g", json!({})).await["state"], "failed");
    }
    requests(&receiver, 9).await;
    assert_eq!(node.all("/v1/notifications?channel=dead&state=sent").await.len(), 0);
    eventually("a try of the server that hangs", async || {
        (dead.connections() > 0).then_some(())
    })
    .await;
}

/// Each address has a mail of its own, also if another try brings it: servers drop a mail whose id they have seen.
#[tokio::test]
async fn a_late_mail_has_its_own_id() {
    let (_world, node) = World::with_node().await;
    let server = Smtp::start(false).await;
    server.behaves(Manners::PutsOff("late@example.com"));
    let to = json!({"to": ["early@example.com", "late@example.com"]});
    mail(&node, "ops", &server, "none", to).await;
    let rules = json!({"on": ["failed"], "channels": ["ops"]});
    node.put_group("g", with(one(fails()), json!({"notify": rules}))).await;
    node.run("g", json!({})).await;
    let waiting = becomes(&node, "channel=ops", |item| item["attempts"] != 0).await;
    assert_eq!(waiting["state"], "pending", "{waiting:#}");
    server.behaves(Manners::Good);
    becomes(&node, "channel=ops", |item| item["state"] == "sent").await;
    let mails = server.mails();
    let to: Vec<&str> = mails.iter().map(|mail| mail.to[0].as_str()).collect();
    assert_eq!(to, ["early@example.com", "late@example.com"]);
    let ids: Vec<String> = mails.iter().filter_map(|mail| mail.header("Message-ID")).collect();
    assert!(ids.len() == 2 && ids[0] != ids[1], "{ids:?}");
}

/// Servers with endless answers cost no memory, and a slow one costs no more than its time: the notifier closes the
/// connection, and says why. How much of an answer was read is measured by what the server could send before that:
/// sockets buffer some.
#[tokio::test]
async fn mail_servers_without_an_end_are_left() {
    /// How much a reader without a bound would read within a second.
    const SENT_MAX_BYTES: usize = 32 * 1024 * 1024;
    let (_world, node) = World::with_node().await;
    let mut group = Vec::new();
    let mut servers = Vec::new();
    for (name, manners, tls) in [
        ("babbles", Manners::Babbles, "none"),
        ("babbles-unencrypted", Manners::Babbles, "starttls"),
        ("babbles-tls", Manners::Babbles, "implicit"),
        ("rambles-tls", Manners::Rambles, "implicit"),
        ("hangs-tls", Manners::Hangs, "implicit"),
        ("babbles-starttls", Manners::BabblesEncrypted, "starttls"),
        ("rambles", Manners::Rambles, "none"),
        ("drips", Manners::Drips, "none"),
        ("hangs", Manners::Hangs, "none"),
    ] {
        let server = Smtp::start(tls == "implicit").await;
        server.behaves(manners);
        // A different address: each is told once.
        let to = format!("{name}@example.com");
        mail(&node, name, &server, tls, json!({"to": [to]})).await;
        group.push(name);
        servers.push((name, server));
    }
    let rules = json!({"on": ["failed"], "channels": group});
    node.put_group("g", with(one(fails()), json!({"notify": rules}))).await;
    node.run("g", json!({})).await;
    for (name, server) in servers {
        let left = eventually(&format!("{name} is left"), async || {
            let (sent, left) = server.said();
            (left > 0).then_some(sent)
        })
        .await;
        assert!(left < SENT_MAX_BYTES, "{name} could send {left} bytes");
        let told = becomes(&node, &format!("channel={name}"), |item| item["attempts"] != 0).await;
        assert_eq!(told["state"], "pending", "{told:#}");
        assert!(!told["last_error"].is_null(), "{told:#}");
    }
}

#[tokio::test]
async fn bad_receivers_hurt_nobody_else() {
    let (_world, node) = World::with_node().await;
    let check = async |name: &str, answer: Answer| {
        let receiver = Receiver::start(answer).await;
        webhook(&node, name, &receiver.url, json!({})).await;
        node.put_group(
            name,
            with(one(fails()), json!({"notify": {"on": ["failed"], "channels": [name]}})),
        )
        .await;
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
    // Names a time, long after the first of our own steps.
    let later = crate::dispatch::wall_clock() + std::time::Duration::from_secs(1_800);
    let date = later.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let (_, tried) = check("later", Answer::Later(429, date)).await;
    assert_eq!(tried["state"], "pending", "{tried:#}");
    assert!(
        time(&tried["next_attempt_at"]).timestamp() >= later.timestamp(),
        "{tried:#}"
    );
    // Wants to hear no more: not once more.
    let (receiver, tried) = check("gone", Answer::Status(410)).await;
    assert_eq!(
        (&tried["state"], &tried["next_attempt_at"]),
        (&json!("failed"), &Value::Null),
        "{tried:#}"
    );
    assert!(tried["last_error"].as_str().unwrap().contains("410"), "{tried:#}");
    assert_eq!(receiver.requests().len(), 1);
    // Sends us where nobody may go; `allow_private` is about addresses that an administrator wrote down.
    let strict = Receiver::start(Answer::Status(200)).await;
    let to = json!({"kind": "webhook", "url": strict.url, "secret": SECRET});
    node.put("/v1/channels/strict", to).await.expect_status(201);
    let answer = node
        .post("/v1/channels/strict/test", json!({}))
        .await
        .expect_status(200);
    assert_eq!(answer["state"], "failed", "{answer:#}");
    assert!(
        answer["last_error"].as_str().unwrap().contains("not public"),
        "{answer:#}"
    );
    assert_eq!(strict.requests().len(), 0);
    // A gigabyte is an answer that is not read.
    let (_, tried) = check("chatty", Answer::Endless(200)).await;
    assert_eq!(tried["state"], "sent", "{tried:#}");
    let (_, tried) = check("chatty-and-broken", Answer::Endless(503)).await;
    assert_eq!(tried["state"], "pending", "{tried:#}");
    // Redirects are followed where they keep the request what it is.
    let (receiver, target) = (
        Receiver::start(Answer::Status(200)).await,
        Receiver::start(Answer::Status(200)).await,
    );
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
    node.put_group(
        "g",
        with(
            one(fails()),
            json!({"notify": {"on": ["failed"], "channels": ["hook"]}}),
        ),
    )
    .await;
    node.run("g", json!({})).await;
    let tried = becomes(&node, "channel=hook", |item| item["state"] != "pending").await;
    assert_eq!(
        (&tried["state"], &tried["attempts"]),
        (&json!("failed"), &json!(1)),
        "{tried:#}"
    );
    assert!(
        tried["last_error"].as_str().unwrap().contains("169.254.169.254"),
        "{tried:#}"
    );
}

/// `allow_private` is leave to go to the host that an administrator wrote down, not to any other that this host names.
#[tokio::test]
async fn a_private_channel_sends_us_nowhere_else() {
    let (_world, node) = World::with_node().await;
    let receiver = Receiver::start(Answer::Status(500)).await;
    let hidden = Receiver::start(Answer::Status(200)).await;
    let port = hidden.url.rsplit(':').next().unwrap();
    for kind in ["webhook", "slack"] {
        let spec = json!({"kind": kind, "url": receiver.url, "allow_private": true});
        node.put(&format!("/v1/channels/{kind}"), spec).await.expect_status(201);
        for target in [
            "http://169.254.169.254/latest/meta-data/",
            "http://127.0.0.2:PORT/",
            "http://[::1]:PORT/",
            "http://[::ffff:127.0.0.1]:PORT/",
            "http://localhost:PORT/",
            "http://10.0.0.1/",
            "https://192.168.0.1/",
            "file:///etc/passwd",
        ] {
            let target = target.replace("PORT", port);
            receiver.answers(Answer::Redirect(307, target.clone()));
            let answer = node
                .post(&format!("/v1/channels/{kind}/test"), json!({}))
                .await
                .expect_status(200);
            assert_eq!(answer["state"], "failed", "{target}: {answer:#}");
            let said = answer["last_error"].as_str().unwrap();
            assert!(
                said.contains("not public") || said.contains("the redirect is not allowed"),
                "{target}: {said}"
            );
        }
        assert_eq!(hidden.requests().len(), 0);
        receiver.answers(Answer::Redirect(307, format!("{}/other", hidden.url)));
        let answer = node
            .post(&format!("/v1/channels/{kind}/test"), json!({}))
            .await
            .expect_status(200);
        assert_eq!(answer["state"], "sent", "another port of the same host: {answer:#}");
        assert_eq!(hidden.requests().len(), 1);
        hidden.forget();
    }
    // Where clouds tell credentials no channel goes, unless the operator said so.
    let spec = json!({"kind": "webhook", "url": "http://169.254.169.254/latest/meta-data/", "allow_private": true});
    node.put("/v1/channels/cloud", spec).await.expect_status(201);
    let answer = node.post("/v1/channels/cloud/test", json!({})).await.expect_status(200);
    assert!(
        answer["last_error"].as_str().unwrap().contains("not public"),
        "{answer:#}"
    );
}

/// Each chat's robot gets its own format, and its word counts, whatever the status.
#[tokio::test]
async fn robots_of_chats_are_told() {
    let (_world, node) = World::with_node().await;
    for (kind, good, text) in [
        ("slack", Answer::Json(200, "ok".into()), "/text"),
        (
            "feishu",
            Answer::Json(200, r#"{"code":0,"msg":"success","data":{}}"#.into()),
            "/content/text",
        ),
        (
            "dingtalk",
            Answer::Json(200, r#"{"errcode":0,"errmsg":"ok"}"#.into()),
            "/text/content",
        ),
        (
            "wecom",
            Answer::Json(200, r#"{"errcode":0,"errmsg":"ok"}"#.into()),
            "/text/content",
        ),
    ] {
        let receiver = Receiver::start(good).await;
        let url = format!("{}/robot?key=k", receiver.url);
        let spec = json!({"kind": kind, "url": url, "secret": "SEC", "allow_private": true});
        node.put(&format!("/v1/channels/{kind}"), spec).await.expect_status(201);
        let answer = node
            .post(&format!("/v1/channels/{kind}/test"), json!({}))
            .await
            .expect_status(200);
        assert_eq!(answer["state"], "sent", "{kind}: {answer:#}");
        let request = &requests(&receiver, 1).await[0];
        let said = request.body.pointer(text).and_then(Value::as_str).unwrap_or_default();
        assert!(said.contains("the channel works"), "{kind}: {:#}", request.body);
        assert_eq!(request.path.contains("sign="), kind == "dingtalk", "{}", request.path);
        assert_eq!(request.body["sign"].is_string(), kind == "feishu", "{:#}", request.body);
        let refusal = r#"{"code":19021,"errcode":310000,"msg":"sign match fail","errmsg":"sign not match"}"#;
        if kind != "slack" {
            receiver.answers(Answer::Json(200, refusal.into()));
            let answer = node
                .post(&format!("/v1/channels/{kind}/test"), json!({}))
                .await
                .expect_status(200);
            assert_eq!(answer["state"], "failed", "{kind}: {answer:#}");
            assert!(answer["last_error"].as_str().unwrap().contains("sign"), "{answer:#}");
        }
    }
}

/// A channel's own words.
#[tokio::test]
async fn channels_have_templates() {
    let (_world, node) = World::with_node().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    let words = json!({"subject": "[{{ group }}] {{ event }}", "text": "{{ error }} | {{ subject }}"});
    webhook(&node, "hook", &receiver.url, words).await;
    node.put_group(
        "g",
        with(
            one(fails()),
            json!({"notify": {"on": ["failed"], "channels": ["hook"]}}),
        ),
    )
    .await;
    node.run("g", json!({})).await;
    let data = &requests(&receiver, 1).await[0].body["data"];
    assert_eq!(data["subject"], "[g] failed");
    assert!(
        data["text"].as_str().unwrap().contains("as asked | g failed: task t"),
        "{data:#}"
    );
}
