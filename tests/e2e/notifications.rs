//! Who is told what, and that nothing is lost. `channels.rs` tests how it is sent.
//!
//! Mail servers and receivers are those of the harness, on loopback: nothing is sent anywhere else.

use std::collections::BTreeMap;

use base64::Engine as _;
use heddle_tests::{Answer, Node, Receiver, Request, Smtp, World, eventually, id};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::{fails, one, sleeps, with};

pub(crate) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A webhook channel that a test may use.
pub(crate) async fn webhook(node: &Node, name: &str, url: &str, more: Value) {
    let spec = with(
        json!({"kind": "webhook", "url": url, "secret": SECRET, "allow_private": true}),
        more,
    );
    let reply = node.put(&format!("/v1/channels/{name}"), spec).await;
    assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
}

pub(crate) async fn mail(node: &Node, name: &str, server: &Smtp, tls: &str, more: Value) {
    let spec = with(
        json!({"kind": "email", "from": "Heddle <heddle@example.com>", "to": ["ops@example.com"],
               "smtp": {"host": "localhost", "port": server.port, "tls": tls, "ca": server.ca}}),
        more,
    );
    let reply = node.put(&format!("/v1/channels/{name}"), spec).await;
    assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
}

/// Requests, when there are so many.
pub(crate) async fn requests(receiver: &Receiver, count: usize) -> Vec<Request> {
    eventually(&format!("{count} requests"), async || {
        let requests = receiver.requests();
        (requests.len() >= count).then_some(requests)
    })
    .await
}

/// Notifications by this query, when there are so many and none is pending any more.
pub(crate) async fn settled(node: &Node, query: &str, count: usize) -> Vec<Value> {
    eventually(&format!("{count} notifications of {query}"), async || {
        let items = node.all(&format!("/v1/notifications?limit=500&{query}")).await;
        let done = items.iter().all(|item| item["state"] != "pending");
        (done && items.len() >= count).then_some(items)
    })
    .await
}

/// A notification in a state.
pub(crate) async fn becomes(node: &Node, query: &str, good: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("such a notification of {query}"), async || {
        let items = node.all(&format!("/v1/notifications?{query}")).await;
        items.into_iter().find(|item| good(item))
    })
    .await
}

/// Checks a request as a receiver would, by the specification alone.
pub(crate) fn verify(request: &Request) {
    let header = |name: &str| {
        request
            .header(name)
            .unwrap_or_else(|| panic!("no {name} in {request:?}"))
    };
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

/// The group's rule and the task's name the same channel: one failure, one message; signed, and it says what there is to
/// be known.
#[tokio::test]
async fn a_failure_is_told_once() {
    let world = World::new().await;
    let node = world
        .options()
        .env("HEDDLE_PUBLIC_URL", "https://heddle.example/")
        .start()
        .await;
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
    assert_eq!(
        (&body["type"], &body["data"]["run"]),
        (&json!("run.failed"), &run["id"])
    );
    let text = body["data"]["text"].as_str().unwrap();
    for part in [
        "as asked",
        "g failed",
        "stays failed",
        &format!("https://heddle.example/runs/{}", id(&run)),
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    assert!(body["data"]["logs"].to_string().contains("attempt 1 fails"), "{body:#}");
    let whole = node
        .get(&format!("/v1/notifications/{}", id(notification)))
        .await
        .expect_status(200);
    assert_eq!(whole["text"].as_str().unwrap(), text);
    // Found by its filters, and by no others.
    let at = notification["created_at"].as_str().expect("a time");
    for (query, count) in [
        ("channel=hook", 1),
        ("channel=other", 0),
        ("event=failed,started", 1),
        ("event=started", 0),
        ("state=sent", 1),
        ("state=failed", 0),
        ("from=2099-01-01T00:00:00Z", 0),
        (format!("from={at}&to={at}").as_str(), 1),
    ] {
        assert_eq!(
            node.all(&format!("/v1/notifications?{query}")).await.len(),
            count,
            "{query}"
        );
    }
    // Again, with the same id.
    node.post(&format!("/v1/notifications/{}/resend", id(notification)), json!({}))
        .await
        .expect_status(200);
    let twice = self::requests(&receiver, 2).await;
    assert_eq!(twice[1].header("webhook-id"), notification["id"].as_str());
    verify(&twice[1]);
}

/// The group's rule and the tasks' name the same channel: each failure of a task and each success is told, whichever of
/// the tasks ends the run.
#[tokio::test]
async fn each_task_is_told_of() {
    let (_world, node) = World::with_node().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &receiver.url, json!({"burst": 1000})).await;
    let rules = json!({"on": ["failed", "succeeded"], "channels": ["hook"]});
    let two = |task: Value| {
        let task = with(task, json!({"notify": rules}));
        let last = with(task.clone(), json!({"depends_on": ["t1"], "trigger_rule": "all_done"}));
        json!({"notify": rules, "tasks": {"t1": task, "t2": last}})
    };
    let told = async |group: &str, count: usize| {
        let mut told: Vec<String> = settled(&node, &format!("group={group}"), count)
            .await
            .iter()
            .map(|one| format!("{} {}", one["event"].as_str().unwrap(), one["task"]))
            .collect();
        told.sort();
        told
    };
    node.put_group("bad", two(fails())).await;
    assert_eq!(node.run("bad", json!({})).await["state"], "failed");
    // The run failed of what was told before.
    assert_eq!(told("bad", 2).await, [r#"failed "t1""#, r#"failed "t2""#]);
    node.put_group("good", two(json!({"script": "hello"}))).await;
    assert_eq!(node.run("good", json!({})).await["state"], "succeeded");
    assert_eq!(
        told("good", 3).await,
        [r#"succeeded "t1""#, r#"succeeded "t2""#, "succeeded null"]
    );
    // A failure that is allowed is no failure of the run, so its recovery is none of the run.
    let rules = json!({"on": ["recovered"], "channels": ["hook"]});
    let task = json!({"script": "flaky", "allow_failure": true, "notify": rules});
    node.put_group("allowed", with(one(task), json!({"notify": rules})))
        .await;
    for fail_times in [1, 0] {
        let run = node.run("allowed", json!({"params": {"fail_times": fail_times}})).await;
        assert_eq!(run["state"], "succeeded");
    }
    assert_eq!(told("allowed", 1).await, [r#"recovered "t""#]);
}

/// Every event that a rule can name, in a group that goes through them.
#[tokio::test]
async fn all_events_are_told() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_QUEUE_STALLED_AFTER", "200ms").start().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &receiver.url, json!({"burst": 1000})).await;
    let all = [
        "started",
        "succeeded",
        "failed",
        "retrying",
        "recovered",
        "deadline_missed",
        "schedule_missed",
        "queue_stalled",
    ];
    let rules = json!({"on": all, "channels": ["hook"]});
    let retried = json!({"script": "flaky", "params": {"fail_times": 1},
        "retry": {"strategy": "fixed", "retries": 1, "interval": "10ms"}, "notify": {"on": ["started", "succeeded"], "channels": ["hook"]}});
    node.put_group("g", with(one(retried.clone()), json!({"notify": rules})))
        .await;
    assert_eq!(node.run("g", json!({})).await["state"], "succeeded");
    let told = requests(&receiver, 4).await;
    // The task's success and the run's are one moment, which each address is told once.
    assert_eq!(
        events(&told),
        ["run.started", "run.succeeded", "task.retrying", "task.started"]
    );
    assert!(
        told.iter()
            .any(|request| request.body["data"]["next"].to_string().contains("Attempt 2 begins at")),
        "{told:#?}"
    );
    // Without a failure there is no recovery; after one there is one.
    for params in [
        json!({"fail_times": 5}),
        json!({"fail_times": 0}),
        json!({"fail_times": 0}),
    ] {
        node.run("g", json!({"params": params})).await;
    }
    let recovered = settled(&node, "group=g&event=recovered", 1).await;
    eventually("all of them told", async || {
        (node.all("/v1/notifications?group=g&event=succeeded").await.len() == 3).then_some(())
    })
    .await;
    assert_eq!(
        node.all("/v1/notifications?group=g&event=recovered").await.len(),
        1,
        "{recovered:#?}"
    );
    assert_eq!(node.all("/v1/notifications?group=g&event=failed").await.len(), 1);

    let late = with(
        one(sleeps(600.0)),
        json!({"notify": rules, "deadline": "100ms", "deadline_action": "cancel"}),
    );
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
    let (world, mut node) = World::with_node().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    let spec = with(
        one(json!({"script": "hello"})),
        json!({"schedules": {"often": {"after": "1h", "grace": "100ms", "misfire": "skip"}},
               "notify": {"on": ["schedule_missed"], "channels": ["hook"]}}),
    );
    node.put_group("g", spec).await;
    node.kill();
    node.end().await;
    // Hours pass.
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
    assert!(
        requests(&receiver, 1).await[0].body["data"]["next"]
            .to_string()
            .contains("No runs are created")
    );
}

/// What scripts say is told once, with their success; a channel that is not there is no reason to fail.
#[tokio::test]
async fn scripts_tell_people() {
    let (_world, node) = World::with_node().await;
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
    let states: BTreeMap<&str, &str> = told
        .iter()
        .filter_map(|item| Some((item["channel"].as_str()?, item["state"].as_str()?)))
        .collect();
    assert_eq!(
        states,
        BTreeMap::from([("nowhere", "failed"), ("ops", "sent")]),
        "{told:#?}"
    );
    assert!(
        told.iter()
            .any(|item| item["channel"] == "ops" && item["run"] == run["id"]),
        "{told:#?}"
    );
    let mails = server.mails();
    assert_eq!(mails.len(), 1);
    assert_eq!(mails[0].to, ["ops@example.com"]);
    assert_eq!(mails[0].header("Bcc"), None, "{mails:#?}");
    assert!(
        mails[0].body().contains("the body\r\n.\r\nends") || mails[0].body().contains("the body\n.\nends"),
        "{mails:#?}"
    );
}

/// A storm causes a bounded number of mails, which count all of it. `HEDDLE_TEST_STORM` makes it larger.
#[tokio::test]
async fn a_storm_is_gathered_and_nothing_of_it_lost() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let storm: usize = std::env::var("HEDDLE_TEST_STORM").map_or(1_000, |text| text.parse().unwrap());
    let server = Smtp::start(false).await;
    mail(
        &nodes[0],
        "ops",
        &server,
        "none",
        json!({"burst": 3, "digest_every": "1d"}),
    )
    .await;
    let rules = json!({"on": ["failed"], "channels": ["ops"]});
    nodes[0]
        .put_group("g", with(one(fails()), json!({"notify": rules})))
        .await;
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
    // It waits for its hour; if it is sent now, it counts its events so far.
    nodes[0]
        .post(&format!("/v1/notifications/{}/resend", id(digest)), json!({}))
        .await
        .expect_status(200);
    settled(&nodes[0], "group=g", 4).await;
    let mails = server.mails();
    assert_eq!(mails.len(), 4);
    let large = mails
        .iter()
        .find(|mail| mail.body().contains(&format!("of {}:", storm - 3)));
    assert!(
        large.is_some(),
        "{:#?}",
        mails.iter().map(|mail| mail.header("Subject")).collect::<Vec<_>>()
    );
    let whole = nodes[0]
        .get(&format!("/v1/notifications/{}", id(digest)))
        .await
        .expect_status(200);
    assert_eq!(
        whole["entries"].as_array().map(Vec::len),
        Some(50),
        "listed up to a bound"
    );
    // What comes after a digest was sent is told in the next.
    nodes[0].run("g", json!({})).await;
    becomes(&nodes[0], "group=g&state=pending", |item| item["count"] == 1).await;
}

/// kill -9 after the change of state, before anybody has read the notice: another node sends it.
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
    sql.execute("SELECT pg_advisory_lock(7522529135070347270)", &[])
        .await
        .unwrap();
    let run = node.run("g", json!({"callback": "hook"})).await;
    let notices: i64 = sql
        .query_one("SELECT count(*) FROM heddle.notices", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(notices, 2, "written with the run's end");
    node.kill();
    node.end().await;
    sql.execute("SELECT pg_advisory_unlock(7522529135070347270)", &[])
        .await
        .unwrap();
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

/// Groups without rules write nothing, and nothing is asked of the outbox by their runs.
#[tokio::test]
async fn groups_without_rules_have_no_notices() {
    let (world, node) = World::with_node().await;
    node.put_group("g", one(fails())).await;
    node.put_group(
        "h",
        json!({"tasks": {"a": {"script": "hello"}, "b": {"script": "hello", "depends_on": ["a"]}}}),
    )
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

/// The value of a metric, by its name with labels.
pub(crate) fn metric(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(&format!("{name} ")))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// What is sent, given up, tried in vain and still waiting stands in the metrics, by kind of channel.
#[tokio::test]
async fn what_is_told_is_counted() {
    let (_world, node) = World::with_node().await;
    let good = Receiver::start(Answer::Status(200)).await;
    let gone = Receiver::start(Answer::Status(410)).await;
    let busy = Receiver::start(Answer::Status(503)).await;
    webhook(&node, "good", &good.url, json!({})).await;
    webhook(&node, "gone", &gone.url, json!({})).await;
    let chat = json!({"kind": "slack", "url": busy.url, "allow_private": true});
    node.put("/v1/channels/busy", chat).await.expect_status(201);
    let rules = json!({"on": ["failed"], "channels": ["good", "gone", "busy"]});
    node.put_group("g", with(one(fails()), json!({"notify": rules}))).await;
    node.run("g", json!({})).await;
    let text = eventually("all that there is to be counted", async || {
        let text = node.get("/metrics").await.body;
        let text = text.as_str()?.to_owned();
        let tried = metric(&text, "heddle_notification_tries_failed_total{kind=\"slack\"}")?;
        let all = metric(&text, "heddle_notifications_sent_total{kind=\"webhook\"}")? == 1
            && metric(&text, "heddle_notifications_failed_total{kind=\"webhook\"}")? == 1;
        (all && tried > 0).then_some(text)
    })
    .await;
    let value = |name: &str| metric(&text, name);
    assert_eq!(
        value("heddle_notification_tries_failed_total{kind=\"webhook\"}"),
        Some(1)
    );
    assert_eq!(value("heddle_notifications_sent_total{kind=\"slack\"}"), Some(0));
    assert_eq!(value("heddle_notifications_failed_total{kind=\"slack\"}"), Some(0));
    assert_eq!(value("heddle_notifications_failed_total{kind=\"email\"}"), Some(0));
    assert_eq!(value("heddle_notifications_waiting{kind=\"slack\"}"), Some(1), "{text}");
    assert_eq!(value("heddle_notices_waiting"), Some(0));
    let stats = node.get("/v1/stats").await.expect_status(200);
    assert_eq!(stats["notifications"]["waiting"]["slack"], 1, "{stats:#}");
}

/// A notice that cannot be turned into anything keeps no other from being told, and does not stay for ever. One of an event
/// that this version does not know is told of as nothing else: after a week, the history says so.
#[tokio::test]
async fn one_bad_notice_holds_nobody_up() {
    let (world, node) = World::with_node().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    let rules = json!({"on": ["failed"], "channels": ["hook"]});
    node.put_group("g", with(one(fails()), json!({"notify": rules}))).await;
    // No name is so long, and no index takes it.
    let sql = world.sql().await;
    sql.batch_execute(
        "INSERT INTO heddle.notices (event, channel, subject, body)
         SELECT 'script', string_agg(md5(n::text), ''), 's', 'b' FROM generate_series(1, 1000) AS n;
         INSERT INTO heddle.notices (event, revision_id, channel, subject, body, at)
         SELECT 'exploded', revision_id, 'hook', 's', 'b', now() - interval '8 days' FROM heddle.groups",
    )
    .await
    .unwrap();
    node.run("g", json!({})).await;
    requests(&receiver, 1).await;
    eventually("an end of all notices", async || {
        let left: i64 = sql
            .query_one("SELECT count(*) FROM heddle.notices", &[])
            .await
            .unwrap()
            .get(0);
        (left == 0).then_some(())
    })
    .await;
    let told = node.all("/v1/notifications").await;
    let mut told: Vec<_> = told
        .iter()
        .map(|one| (one["event"].as_str(), one["state"].as_str()))
        .collect();
    told.sort_unstable();
    assert_eq!(
        told,
        [(Some("exploded"), Some("failed")), (Some("failed"), Some("sent"))]
    );
}

/// A notification that cannot be read does not keep the others from people: a list leaves it out, and the log names its row.
#[tokio::test]
async fn an_unreadable_notification_is_left_out_of_lists() {
    let (world, node) = World::with_node().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    let mut told = Vec::new();
    for _ in 0..3 {
        let sent = node.post("/v1/channels/hook/test", json!({})).await.expect_status(200);
        told.push(id(&sent));
    }
    // As a later version may write it.
    let sql = world.sql().await;
    sql.batch_execute("ALTER TABLE heddle.notifications DROP CONSTRAINT notifications_state_check, DROP CONSTRAINT notifications_check")
        .await
        .unwrap();
    let garble = "UPDATE heddle.notifications SET state = 9 WHERE id = $1::text::uuid";
    assert_eq!(sql.execute(garble, &[&told[1]]).await.unwrap(), 1);
    // Also where it would be a page by itself.
    for limit in [1, 50] {
        let listed: Vec<String> = node
            .all(&format!("/v1/notifications?limit={limit}"))
            .await
            .iter()
            .map(id)
            .collect();
        assert_eq!(listed, [told[2].clone(), told[0].clone()], "limit {limit}");
    }
    let names_it = format!("cannot read row {} in notifications: state is", told[1]);
    let log = async || node.log().contains(&names_it).then_some(());
    eventually("an error that names the row", log).await;
    let path = format!("/v1/notifications/{}", told[1]);
    node.get(&path).await.expect_status(500);
}
