//! Topics: what they may be, what they hold on to, and how their days end.

use heddle_tests::{Node, Sink, TOKEN, World, eventually, run_program};
use reqwest::Method;
use serde_json::{Value, json};

use super::{day_ahead, due_now, ended, put_topic, send};

/// A topic is put, put again, changed within bounds, shown, listed and deleted.
#[tokio::test]
async fn topics_are_put() {
    let (world, node) = World::with_node().await;
    let spec = json!({"script": "postbox@1", "timezone": "Asia/Shanghai", "batch": 100, "retention": "3d"});
    let made = node.put("/v1/topics/t", spec.clone()).await.expect_status(201);
    for (field, value) in [
        ("name", json!("t")),
        ("script", json!("postbox@1")),
        ("granularity", json!("day")),
        ("timezone", json!("Asia/Shanghai")),
        ("batch", json!(100)),
        ("concurrency", json!(null)),
        ("retry", json!(null)),
        ("retention", json!("3d")),
    ] {
        assert_eq!(made[field], value, "{field}: {made:#}");
    }
    node.put("/v1/topics/t", spec.clone()).await.expect_status(200);
    node.put("/v1/topics/t", made.clone()).await.expect_status(200);
    let day = day_ahead(&world, 3).await;
    send(&node, "t", &[json!({"sender": 1, "receiver": 2, "due": day})]).await;
    let changed = crate::with(spec.clone(), json!({"batch": 10}));
    assert_eq!(node.put("/v1/topics/t", changed).await.expect_status(200)["batch"], 10);
    let moved = crate::with(spec, json!({"timezone": "UTC"}));
    node.put("/v1/topics/t", moved).await.expect_said(409, "timezone");
    assert_eq!(node.all("/v1/topics").await.len(), 1);
    node.delete("/v1/scripts/postbox").await.expect_said(409, "topic `t`");
    node.delete("/v1/topics/t").await.expect_status(204);
    node.get("/v1/topics/t").await.expect_problem(404, &[]);
    node.delete("/v1/topics/t").await.expect_problem(404, &[]);
    // Another topic of this name has none of its messages.
    put_topic(&node, "t", json!({"script": "postbox"})).await;
    assert_eq!(node.all("/v1/topics/t/messages").await.len(), 0);
    let sql = world.sql().await;
    eventually("nothing left of the deleted topic", async || {
        let left: i64 = sql
            .query_one(
                "SELECT (SELECT count(*) FROM heddle.message_buckets) + (SELECT count(*) FROM heddle.message_slices)",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        (left == 0).then_some(())
    })
    .await;
    node.delete("/v1/topics/t").await.expect_status(204);
    node.delete("/v1/scripts/postbox").await.expect_status(204);
}

/// The group of a topic for a queue is Heddle's: users read it, and change the topic. A group that got such a name before
/// the names were reserved is nobody's but its user's.
#[tokio::test]
async fn the_group_of_a_topic_is_its_own() {
    let (world, node) = World::with_node().await;
    put_topic(&node, "t", json!({"queue": "q", "granularity": "instant"})).await;
    let groups = node.all("/v1/groups").await;
    let mut names = groups.iter().filter_map(|group| group["name"].as_str());
    let own = names
        .find(|name| name.starts_with("_topic-"))
        .expect("the topic's group");
    let number: i32 = own
        .strip_prefix("_topic-")
        .and_then(|number| number.parse().ok())
        .unwrap();
    let path = format!("/v1/groups/{own}");
    node.get(&path).await.expect_status(200);
    let spec = json!({"tasks": {"a": {"queue": "elsewhere"}}});
    node.put(&path, spec.clone()).await.expect_said(409, "topic `t`");
    node.post(&format!("{path}/validate"), spec.clone())
        .await
        .expect_said(409, "topic `t`");
    let patch = node.request(Method::PATCH, &path).json(&spec);
    node.send(patch).await.expect_said(409, "topic `t`");
    node.delete(&format!("{path}?force=true"))
        .await
        .expect_said(409, "topic `t`");
    for switch in ["enable", "disable"] {
        node.post(&format!("{path}/{switch}"), json!({}))
            .await
            .expect_said(409, "topic `t`");
    }
    node.put("/v1/groups/_topic-4711", spec.clone())
        .await
        .expect_problem(422, &[""]);
    node.post("/v1/groups/_topic-4711/validate", spec.clone())
        .await
        .expect_problem(422, &[""]);

    node.put_group("mine", spec).await;
    let sql = world.sql().await;
    let before = format!("_topic-{}", number + 1);
    let renamed = sql
        .execute("UPDATE heddle.groups SET name = $1 WHERE name = 'mine'", &[&before])
        .await
        .unwrap();
    assert_eq!(renamed, 1);
    put_topic(&node, "u", json!({"queue": "q", "granularity": "instant"})).await;
    let mine = format!("/v1/groups/{before}");
    assert_eq!(
        node.get(&mine).await.expect_status(200)["tasks"]["a"]["queue"],
        "elsewhere"
    );
    node.get(&format!("/v1/groups/_topic-{}", number + 2))
        .await
        .expect_status(200);
    node.delete(&mine).await.expect_status(200);
}

/// What is wrong with a topic is named.
#[tokio::test]
async fn topics_that_are_refused() {
    let (_world, node) = World::with_node().await;
    let check = async |spec: Value, pointers: &[&str]| {
        node.put("/v1/topics/t", spec).await.expect_problem(422, pointers);
    };
    check(json!({}), &[""]).await;
    check(json!({"script": "postbox", "queue": "q"}), &["/queue"]).await;
    check(json!({"script": "none"}), &["/script"]).await;
    check(json!({"script": "postbox@9"}), &["/script"]).await;
    check(json!({"script": "hello"}), &["/script"]).await;
    check(
        json!({"script": "postbox", "batch": 1_001, "granularity": "day"}),
        &["/batch"],
    )
    .await;
    check(json!({"script": "postbox", "granularity": "week"}), &["/granularity"]).await;
    check(
        json!({"script": "postbox", "sql": ["none"], "secrets": ["none"]}),
        &["/secrets/0", "/sql/0"],
    )
    .await;
    check(
        json!({"script": "postbox", "retry": {"strategy": "sometimes"}}),
        &["/retry/strategy"],
    )
    .await;
    check(json!({"script": "postbox", "colour": "red"}), &["/colour"]).await;
    for memory in ["1B", "2GiB"] {
        check(json!({"script": "postbox", "memory": memory}), &["/memory"]).await;
    }
    check(json!({"queue": "q", "memory": "1MiB"}), &["/memory"]).await;
    node.put("/v1/topics/not%20a%20name", json!({"script": "postbox"}))
        .await
        .expect_problem(422, &[""]);
    node.get("/v1/topics/t").await.expect_problem(404, &[]);
    put_topic(&node, "t", json!({"script": "postbox"})).await;
    node.get("/v1/topics/t/days/soon").await.expect_problem(422, &["/day"]);
    let none = node.get("/v1/topics/t/days/2026-01-01").await.expect_status(200);
    assert_eq!((&none["total"], &none["buckets"]), (&json!(0), &json!([])));
    let viewer = node
        .post("/v1/tokens", json!({"name": "v", "role": "viewer"}))
        .await
        .expect_status(201);
    let viewer = node.with_token(viewer["token"].as_str());
    viewer.get("/v1/topics/t").await.expect_status(200);
    viewer
        .post("/v1/topics/t/messages", json!([]))
        .await
        .expect_problem(403, &[]);
}

/// A topic grants its script hosts as a task does: it reaches these, and no others.
#[tokio::test]
async fn hosts_are_granted_to_topics() {
    let world = World::new().await;
    let sink = Sink::start().await;
    let node = world.options().at_home().start().await;
    let source = "export async function handle(batch) {
        for (const message of batch.messages) await fetch(message.payload.url);
    }";
    node.put_bytes("/v1/scripts/calls", "text/javascript", source)
        .await
        .expect_status(201);
    let spec = |hosts: &[&str]| json!({"script": "calls", "granularity": "instant", "allow_hosts": hosts});
    node.put("/v1/topics/t", spec(&["ok.example.com", "http://x/"]))
        .await
        .expect_problem(422, &["/allow_hosts/1"]);
    let of_a_queue = json!({"queue": "q", "allow_hosts": ["ok.example.com"]});
    node.put("/v1/topics/t", of_a_queue)
        .await
        .expect_problem(422, &["/allow_hosts"]);
    let granted: [(&str, &[&str], &str); 3] = [
        ("none", &[], "failed"),
        ("other", &["example.com", "*.example.com"], "failed"),
        ("granted", &["example.com", "127.0.0.1"], "sent"),
    ];
    for (topic, hosts, state) in granted {
        let made = put_topic(&node, topic, spec(hosts)).await;
        let shown = made["allow_hosts"].as_array().cloned().unwrap_or_default();
        assert_eq!(shown, hosts, "{made:#}");
        let message = due_now(1, json!({"url": format!("{}/{topic}", sink.url)}));
        let answer = send(&node, topic, &[message]).await;
        ended(&node, topic, 1).await;
        let path = format!("/v1/topics/{topic}/messages/{}", answer["ids"][0].as_str().unwrap());
        let found = node.get(&path).await.expect_status(200);
        assert_eq!(found["state"], state, "{topic}: {found:#}");
        let said = found["error"].as_str().unwrap_or_default();
        assert_eq!(said.contains("`allow_hosts`"), state == "failed", "{topic}: {found:#}");
    }
    let reached: Vec<String> = sink.requests().into_iter().map(|request| request.path).collect();
    assert_eq!(reached, ["/granted"]);
}

/// A script that is another than it was stops the topic, which says why; nothing is lost.
#[tokio::test]
async fn a_script_that_does_not_fit_any_more() {
    let (_world, node) = World::with_node().await;
    put_topic(&node, "t", json!({"script": "postbox", "granularity": "instant"})).await;
    let hello = heddle_scripts::get("hello").unwrap();
    node.put_bytes("/v1/scripts/postbox", "application/wasm", hello)
        .await
        .expect_status(201);
    send(&node, "t", &[due_now(1, json!({}))]).await;
    eventually("a problem", async || {
        let found = node.get("/v1/topics/t").await.expect_status(200);
        found["problem"]
            .as_str()
            .map(|problem| assert!(problem.contains("postbox"), "{problem}"))
    })
    .await;
    node.put("/v1/scripts/postbox/active", json!({"version": 1}))
        .await
        .expect_status(200);
    ended(&node, "t", 1).await;
    assert_eq!(node.get("/v1/topics/t").await.body["problem"], json!(null));
}

/// A drained day is dropped as a partition after its retention, and its counts stay; another day is left alone.
#[tokio::test]
async fn days_are_dropped() {
    let (world, node) = World::with_node().await;
    put_topic(&node, "t", json!({"script": "postbox", "retention": "1h"})).await;
    let sql = world.sql().await;
    // Two days of long ago: one drained, one drained just now.
    for (day, drained) in [("2020-01-01", "now() - interval '2 hours'"), ("2020-01-02", "now()")] {
        sql.batch_execute(&format!(
            "SELECT heddle.make_message_day('{day}');
             INSERT INTO heddle.message_days (topic, day, drained_at) SELECT id, '{day}', {drained} FROM heddle.topics;
             INSERT INTO heddle.message_slices (topic, day, slice, due_at, state, sealed)
             SELECT id, '{day}', 0, '{day}', 1, true FROM heddle.topics;
             INSERT INTO heddle.message_buckets (topic, day, bucket, total) SELECT id, '{day}', 7, 3 FROM heddle.topics;
             INSERT INTO heddle.message_outcomes (topic, day, bucket, sent, last_at)
             SELECT id, '{day}', 7, 3, {drained} FROM heddle.topics"
        ))
        .await
        .unwrap();
    }
    let partitions = async |day: &str| -> i64 {
        sql.query_one(
            "SELECT count(*) FROM pg_class WHERE relname LIKE $1",
            &[&format!("message%\\_{day}")],
        )
        .await
        .unwrap()
        .get(0)
    };
    eventually("the drop of the day", async || {
        (partitions("20200101").await == 0).then_some(())
    })
    .await;
    assert_eq!(partitions("20200102").await, 2);
    let found = node.get("/v1/topics/t/days/2020-01-01").await.expect_status(200);
    assert_eq!(
        (&found["sent"], &found["state"], &found["buckets"]),
        (&json!(3), &json!("dropped"), &json!([]))
    );
    let found = node.get("/v1/topics/t/days/2020-01-02").await.expect_status(200);
    assert_eq!((&found["sent"], &found["state"]), (&json!(3), &json!("drained")));
}

fn heddle(node: &Node, arguments: &[&str]) -> (i32, String) {
    let output = run_program(arguments, &[("HEDDLE_URL", node.base()), ("HEDDLE_TOKEN", TOKEN)]);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(!complained.contains("panicked"), "{complained}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &complained;
    (output.status.code().unwrap_or(-1), said)
}

/// The commands, from a file to a drained day.
#[tokio::test]
async fn on_the_command_line() {
    let (world, node) = World::with_node().await;
    let file = world.directory().join("topic.yaml");
    std::fs::write(&file, "kind: topic\nname: t\nscript: postbox\nsend_at: '09:00'\n").unwrap();
    let path = file.to_string_lossy().into_owned();
    assert_eq!(heddle(&node, &["apply", "-f", &path]).0, 0);
    let (code, said) = heddle(&node, &["diff", "-f", &path]);
    assert_eq!(code, 0, "{said}");
    let day = day_ahead(&world, 2).await;
    let (code, said) = heddle(&node, &["topic", "fill", "t", "--count", "12345", "--day", &day]);
    assert!(code == 0 && said.contains("12345 accepted"), "{said}");
    let lines = world.directory().join("lines");
    let line = json!({"sender": 7, "receiver": 8, "due": day, "key": "k"});
    std::fs::write(&lines, format!("{line}\n{line}\n{{}}\n")).unwrap();
    let (code, said) = heddle(&node, &["topic", "send", "t", "-f", &lines.to_string_lossy()]);
    assert!(
        code == 1 && said.contains("2 accepted") && said.contains("line 3"),
        "{said}"
    );
    let (code, said) = heddle(&node, &["topic", "day", "t", &day]);
    assert!(code == 0 && said.contains("0/12346 scheduled"), "{said}");
    assert!(heddle(&node, &["topic", "days", "t"]).1.contains(&day));
    let (code, said) = heddle(&node, &["topic", "messages", "t", "--sender", "7", "-o", "json"]);
    assert!(code == 0 && said.contains("scheduled"), "{said}");
    let first = heddle(&node, &["topic", "messages", "t", "--limit", "2"]).1;
    let cursor = first
        .split("--cursor ")
        .nth(1)
        .expect("a cursor")
        .trim_end_matches([')', '\n']);
    let (code, said) = heddle(
        &node,
        &[
            "topic", "messages", "t", "--limit", "2", "--cursor", cursor, "-o", "json",
        ],
    );
    assert!(
        code == 0 && !said.contains(&first.lines().nth(1).unwrap()[..36]),
        "{first} {said}"
    );
    let (code, said) = heddle(&node, &["topic", "cancel", "t", "--sender", "7"]);
    assert!(code == 0 && said.contains("1 message cancelled"), "{said}");
    assert!(heddle(&node, &["topic", "cancel", "t"]).1.contains("at least one"));
    let (code, said) = heddle(&node, &["topic", "cancel", "t", "--day", &day]);
    assert!(code == 0 && said.contains("12345 messages cancelled"), "{said}");
    let (code, said) = heddle(&node, &["topic", "day", "t", &day, "--watch"]);
    assert!(code == 0 && said.contains("12346/12346 drained"), "{said}");
    let (code, said) = heddle(&node, &["topic", "day", "t", &day, "--watch", "-o", "json"]);
    let found: Value = serde_json::from_str(&said).expect("JSON and nothing else");
    assert_eq!((code, &found["state"]), (0, &json!("drained")));
    // A day without messages is over at once.
    let (code, said) = heddle(&node, &["topic", "day", "t", "2031-01-01", "--watch"]);
    assert!(code == 0 && said.contains("no messages on this day"), "{said}");
    // What was accepted is the result, what was rejected are errors, each of which is told once.
    let past = ["topic", "fill", "t", "--count", "1000", "--day", "2020-01-01"];
    let output = run_program(&past, &[("HEDDLE_URL", node.base()), ("HEDDLE_TOKEN", TOKEN)]);
    let [said, errors] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert_eq!(
        (output.status.code(), said.as_str()),
        (Some(1), "0 accepted\n"),
        "{errors}"
    );
    assert!(
        errors.starts_with("error: line 1 and 999 more: ") && errors.lines().count() == 1,
        "{errors}"
    );
    // The group of a topic that sends to a queue belongs to the topic, and is not exported separately.
    put_topic(&node, "q", json!({"queue": "q"})).await;
    let exported = heddle(&node, &["export"]).1;
    assert!(
        exported.contains("queue: q") && !exported.contains("_topic-"),
        "{exported}"
    );
    let (code, said) = heddle(&node, &["topic", "rm", "t"]);
    assert!(
        code == 0 && said.contains("deleted with it: 12346 messages (0 still to be sent)"),
        "{said}"
    );
    assert!(heddle(&node, &["topic", "show", "t"]).0 != 0);
}
