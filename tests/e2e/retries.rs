//! Retries and timeouts, as attempts show them. (The exact times of every strategy are tests of the domain.)

use chrono::{FixedOffset, NaiveTime, Timelike};
use heddle_tests::{Node, Sink, World, eventually, item, items_in, seconds, task, time};
use serde_json::{Value, json};

use crate::{one, sleeps, with};

/// How much later than it is due something may happen on a busy machine.
const SLACK_SECONDS: f64 = 3.0;

async fn attempts(node: &Node, task_spec: Value) -> (Value, Vec<Value>) {
    node.put_group("g", one(task_spec)).await;
    let run = node.run("g", json!({})).await;
    let attempts = node.attempts(&heddle_tests::id(&run), "t").await;
    (run, attempts)
}

fn check_gaps(attempts: &[Value], gaps: &[f64]) {
    assert_eq!(attempts.len(), gaps.len() + 1, "{attempts:#?}");
    for (pair, gap) in attempts.windows(2).zip(gaps) {
        let found = seconds(&pair[0]["finished_at"], &pair[1]["started_at"]);
        assert!(
            (*gap..gap + SLACK_SECONDS).contains(&found),
            "{found} s instead of {gap} s"
        );
    }
}

#[tokio::test]
async fn fixed() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 2, "interval": "300ms"});
    let spec = |fail_times: u32| json!({"script": "flaky", "params": {"fail_times": fail_times}, "retry": retry});
    let (run, found) = attempts(&node, spec(2)).await;
    assert_eq!(run["state"], "succeeded");
    assert_eq!(task(&run, "t")["output"], json!({"attempt": 3}));
    check_gaps(&found, &[0.3, 0.3]);
    let states: Vec<&str> = found.iter().filter_map(|attempt| attempt["state"].as_str()).collect();
    assert_eq!(states, ["failed", "failed", "succeeded"]);
    assert_eq!(found[0]["error"]["kind"], "failed");
    assert_eq!(found[0]["error"]["message"], "attempt 1 fails, as asked");
    // n retries are n + 1 attempts.
    let (run, found) = attempts(&node, spec(1000)).await;
    assert_eq!((&run["state"], found.len()), (&json!("failed"), 3));
    assert_eq!(task(&run, "t")["error"]["message"], "attempt 3 fails, as asked");
}

#[tokio::test]
async fn exponential_and_mixed() {
    let (_world, node) = World::with_node().await;
    let flaky = json!({"script": "flaky", "params": {"fail_times": 4}});
    let retry = json!({"strategy": "exponential", "retries": 4, "interval": "100ms", "max_interval": "400ms"});
    let (_, found) = attempts(&node, with(flaky.clone(), json!({"retry": retry}))).await;
    check_gaps(&found, &[0.1, 0.2, 0.4, 0.4]);
    let retry = json!({"strategy": "fixed_then_exponential", "retries": 4, "fixed": 2, "interval": "100ms"});
    let (_, found) = attempts(&node, with(flaky.clone(), json!({"retry": retry}))).await;
    check_gaps(&found, &[0.1, 0.1, 0.2, 0.4]);
    let retry = json!({"strategy": "forever", "interval": "50ms"});
    let (run, found) = attempts(
        &node,
        with(flaky, json!({"retry": retry, "params": {"fail_times": 12}})),
    )
    .await;
    assert_eq!((&run["state"], found.len()), (&json!("succeeded"), 13));
}

/// A time zone in which it is noon, more or less: a test that goes on for a while does not get from one day to the next.
async fn zone_at_noon(world: &World) -> (String, FixedOffset) {
    let east = 12 - world.now().await.hour() as i32;
    // These zones have the sign of the way to Greenwich.
    let name = format!("Etc/GMT{:+}", -east);
    (name, FixedOffset::east_opt(east * 3_600).expect("less than a day"))
}

/// Waits until an attempt has failed and the next one is due later. Returns when it failed, and when the next one is due.
async fn fails_until(node: &Node, run: &str, attempt: u32) -> (Value, Value) {
    let found = eventually("a retry that is due later", async || {
        let found = node.run_now(run).await;
        let found = task(&found, "t");
        (found["state"] == "retrying" && found["attempt"] == attempt).then(|| found.clone())
    })
    .await;
    let attempts = node.attempts(run, "t").await;
    let failed = attempts.iter().find(|one| one["attempt"] == attempt);
    let failed = failed.expect("the attempt");
    (failed["finished_at"].clone(), found["next_attempt_at"].clone())
}

/// `daily` retries on the day of the failure, and then from `next_day_at` of the next day on, in the group's zone.
#[tokio::test]
async fn daily() {
    let (world, node) = World::with_node().await;
    let (name, zone) = zone_at_noon(&world).await;
    let daily = |fields: Value| {
        let retry = with(json!({"strategy": "daily", "per_day": 1}), fields);
        let flaky = json!({"script": "flaky", "params": {"fail_times": 9}, "retry": retry});
        with(one(flaky), json!({"timezone": name}))
    };
    let first_of_next_day = |failed: &Value, at: &str| {
        let day = time(failed)
            .with_timezone(&zone)
            .date_naive()
            .succ_opt()
            .expect("a day");
        let at: NaiveTime = at.parse().expect("a time of day");
        day.and_time(at).and_local_timezone(zone).unwrap()
    };
    node.put_group("g", daily(json!({"interval": "1h", "next_day_at": "06:30"})))
        .await;
    let run = node.start("g", json!({})).await;
    let (failed, due) = fails_until(&node, &run, 1).await;
    let waits = seconds(&failed, &due);
    assert!((3_600.0..3_600.0 + SLACK_SECONDS).contains(&waits), "{waits} s");
    let now = async || {
        let path = format!("/v1/runs/{run}/tasks/t/retry");
        node.post(&path, json!({})).await.expect_status(200);
    };
    // The one retry of this day is over.
    now().await;
    let (failed, due) = fails_until(&node, &run, 2).await;
    assert_eq!(time(&due), first_of_next_day(&failed, "06:30:00"));
    // So is that of the next day, which is the last of the two.
    now().await;
    let ended = node.ended(&run).await;
    let failed = task(&ended, "t");
    assert_eq!(
        (&failed["state"], &failed["attempt"]),
        (&json!("failed"), &json!(3)),
        "{ended:#}"
    );
    // What would be due after midnight is the first one of the next day, by default at midnight.
    node.put_group("g", daily(json!({"interval": "13h"}))).await;
    let run = node.start("g", json!({})).await;
    let (failed, due) = fails_until(&node, &run, 1).await;
    assert_eq!(time(&due), first_of_next_day(&failed, "00:00:00"));
}

/// Jitter extends a wait by a random time, up to a part of the wait or up to a duration. It never shortens the wait.
#[tokio::test]
async fn jitter() {
    const ITEMS: u64 = 8;
    let (_world, node) = World::with_node().await;
    for (jitter, most) in [(json!(0.5), 1_800.0), (json!("10m"), 600.0)] {
        let retry = json!({"strategy": "fixed", "retries": 1, "interval": "1h", "jitter": jitter});
        node.put_group("g", one(json!({"script": "flaky", "shards": ITEMS, "retry": retry})))
            .await;
        let run = node.start("g", json!({})).await;
        let found = eventually("retries of all items", async || {
            let found = node.run_now(&run).await;
            (items_in(&found, "t", "retrying") == ITEMS as usize).then_some(found)
        })
        .await;
        let mut added = Vec::new();
        for index in 0..ITEMS {
            let path = format!("/v1/runs/{run}/tasks/t?item={index}");
            let failed = node.get(&path).await.expect_status(200);
            let due = &item(&found, "t", Some(index))["next_attempt_at"];
            added.push(seconds(&failed["attempts"][0]["finished_at"], due) - 3_600.0);
        }
        assert!(
            added.iter().all(|added| (0.0..most + SLACK_SECONDS).contains(added)),
            "{jitter}: {added:?}"
        );
        // By chance, eight random times lie this near to each other once in 10^15 tests.
        let (least, longest) = added.iter().fold((f64::MAX, f64::MIN), |(least, longest), added| {
            (least.min(*added), longest.max(*added))
        });
        assert!(longest - least > SLACK_SECONDS, "{jitter}: {added:?}");
    }
}

/// Between attempts a task run is `retrying`.
#[tokio::test]
async fn retrying_is_a_state() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "1h"});
    node.put_group("g", one(json!({"script": "flaky", "retry": retry})))
        .await;
    let run = node.start("g", json!({})).await;
    let found = node.task_becomes(&run, "t", "retrying").await;
    assert_eq!(
        (&found["state"], &task(&found, "t")["attempt"]),
        (&json!("running"), &json!(1))
    );
    let cancelled = node
        .post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(task(&cancelled, "t")["state"], "cancelled");
}

/// Fatal failures are never tried again; traps, exits, timeouts, memory and retryable failures are.
#[tokio::test]
async fn what_is_tried_again() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "10ms"});
    let flaky = |kind: &str| json!({"script": "flaky", "params": {"kind": kind}, "retry": retry});
    let hostile = |mode: &str, timeout: &str| json!({"script": "hostile", "params": {"mode": mode}, "retry": retry, "timeout": timeout});
    let tasks = json!({
        "retryable": flaky("retryable"), "fatal": flaky("fatal"), "trap": flaky("trap"), "exit": flaky("exit"),
        "skip": flaky("skip"), "spin": hostile("spin", "500ms"), "memory": hostile("memory", "1h"),
    });
    node.put_group("g", json!({"tasks": tasks})).await;
    let run = node.run("g", json!({})).await;
    for (name, count, state, kind) in [
        ("retryable", 2, "succeeded", None),
        ("trap", 2, "succeeded", None),
        ("exit", 2, "succeeded", None),
        ("fatal", 1, "failed", Some("fatal")),
        ("skip", 1, "skipped", None),
        ("spin", 2, "failed", Some("timeout")),
        ("memory", 2, "failed", Some("memory")),
    ] {
        let found = task(&run, name);
        assert_eq!(found["state"], state, "{found:#}");
        assert_eq!(found["attempt"], count, "{found:#}");
        if let Some(kind) = kind {
            assert_eq!(found["error"]["kind"], kind, "{found:#}");
        }
    }
    let id = heddle_tests::id(&run);
    for attempt in node.attempts(&id, "spin").await {
        assert_eq!(attempt["state"], "timed_out");
    }
    assert_eq!(node.attempts(&id, "trap").await[0]["error"]["kind"], "trap");
}

/// `retry-after` is the least that is waited.
#[tokio::test]
async fn retry_after() {
    let (_world, node) = World::with_node().await;
    let (run, found) = attempts(
        &node,
        json!({
            "script": "flaky", "params": {"kind": "retry_after", "retry_after_ms": 800},
            "retry": {"strategy": "fixed", "retries": 1, "interval": "10ms"},
        }),
    )
    .await;
    assert_eq!(run["state"], "succeeded");
    check_gaps(&found, &[0.8]);
}

/// The `Retry-After` of a called server delays a retry, and never hastens it.
#[tokio::test]
async fn retry_after_of_a_server() {
    let world = World::new().await;
    let sink = Sink::start().await;
    let node = world.options().env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1").start().await;
    let call = |after: u64| {
        json!({"http": {"url": format!("{}/after/{after}", sink.url)},
               "retry": {"strategy": "forever", "interval": "30s"}})
    };
    let tasks = json!({"sooner": call(0), "later": call(60), "latest": call(u64::MAX)});
    node.put_group("g", json!({"tasks": tasks})).await;
    let run = node.start("g", json!({})).await;
    for (name, waits) in [("sooner", 30.0), ("later", 60.0), ("latest", 3_600.0)] {
        let found = node.task_becomes(&run, name, "retrying").await;
        let failed = node.attempts(&run, name).await;
        let found = seconds(&failed[0]["finished_at"], &task(&found, name)["next_attempt_at"]);
        assert!((waits..waits + SLACK_SECONDS).contains(&found), "{name}: {found} s");
    }
    assert_eq!(sink.requests().len(), 3);
}

/// Without a timeout an attempt takes as long as it takes. (How soon a timeout ends one: `tests/alone/promises.rs`.)
#[tokio::test]
async fn no_timeout() {
    let (_world, node) = World::with_node().await;
    let spec = json!({"script": "sleep", "params": {"seconds": 0.2}, "timeout": "never"});
    assert_eq!(attempts(&node, spec).await.0["state"], "succeeded");
}

/// `never` is a timeout of scripts and of HTTP requests: the group shows it, and an attempt is told no deadline. Without a
/// timeout, an attempt has an hour. A time of zero is none.
#[tokio::test]
async fn never_is_a_timeout() {
    let world = World::new().await;
    let sink = Sink::start().await;
    let node = world.options().at_home().start().await;
    let executors = [
        ("script", json!({"script": "echo"})),
        ("call", json!({"http": {"url": sink.url}})),
    ];
    for (name, executor) in &executors {
        for timeout in [None, Some("never"), Some("0s")] {
            let mut spec = executor.clone();
            if let Some(timeout) = timeout {
                spec["timeout"] = json!(timeout);
            }
            if timeout == Some("0s") {
                let refused = node.refused_group(name, one(spec)).await;
                let said = refused.expect_problem(422, &["/tasks/t/timeout"]).to_string();
                assert!(said.contains("write `never` for no timeout"), "{said}");
                continue;
            }
            node.put_group(name, one(spec)).await;
            let shown = node.get(&format!("/v1/groups/{name}")).await.expect_status(200);
            let run = node.run(name, json!({})).await;
            assert_eq!(run["state"], "succeeded", "{run:#}");
            let context = match *name {
                "script" => task(&run, "t")["output"]["context"].clone(),
                _ => sink.requests().pop().expect("the request").body,
            };
            match timeout {
                Some(_) => {
                    assert_eq!(shown["tasks"]["t"]["timeout"], "never", "{shown:#}");
                    assert_eq!(context.get("deadline"), Some(&Value::Null), "{context:#}");
                }
                None => {
                    let started = &node.attempts(&heddle_tests::id(&run), "t").await[0]["started_at"];
                    let limit = seconds(started, &context["deadline"]);
                    assert!((limit - 3_600.0).abs() < SLACK_SECONDS, "{limit} s: {context:#}");
                }
            }
        }
    }
}

/// A run's deadline counts from its creation, and may cancel it.
#[tokio::test]
async fn deadlines() {
    let (_world, node) = World::with_node().await;
    let slow = json!({"script": "hostile", "params": {"mode": "sleep"}});
    node.put_group(
        "g",
        with(
            one(slow.clone()),
            json!({"deadline": "1s", "deadline_action": "cancel"}),
        ),
    )
    .await;
    let run = node.run("g", json!({})).await;
    assert_eq!(run["state"], "cancelled", "{run:#}");
    let took = seconds(&run["created_at"], &run["finished_at"]);
    assert!((1.0..1.0 + SLACK_SECONDS).contains(&took), "{took} s");
    // `alert` lets it go on.
    let brief = json!({"script": "sleep", "params": {"seconds": 1.5}});
    node.put_group("h", with(one(brief), json!({"deadline": "500ms"})))
        .await;
    assert_eq!(node.run("h", json!({})).await["state"], "succeeded");
}

/// Whoever reopens a run does not free it of a deadline that is still ahead; one that has passed is over.
#[tokio::test]
async fn a_reopened_run_keeps_its_deadline() {
    let (world, node) = World::with_node().await;
    let sql = world.sql().await;
    let spec = json!({
        "deadline": "1h", "deadline_action": "cancel",
        "tasks": {
            "a": {"script": "flaky", "params": {"fail_times": 1, "kind": "fatal"}},
            "b": with(sleeps(3_600.0), json!({"depends_on": ["a"]})),
        },
    });
    node.put_group("g", spec).await;
    let failed = async || {
        let run = node.run("g", json!({})).await;
        assert_eq!(run["state"], "failed", "{run:#}");
        heddle_tests::id(&run)
    };
    let timers = async |run: &str| {
        let count = "SELECT count(*) FROM heddle.timers WHERE run = $1::text::uuid AND kind = 1";
        sql.query_one(count, &[&run]).await.unwrap().get::<_, i64>(0)
    };
    for way in ["restart", "tasks/a/retry", "tasks/a/state"] {
        let run = failed().await;
        assert_eq!(timers(&run).await, 0, "it went with the run's end");
        let path = format!("/v1/runs/{run}/{way}");
        match way {
            "tasks/a/state" => node.put(&path, json!({"state": "succeeded", "reason": "x"})).await,
            _ => node.post(&path, json!({})).await,
        }
        .expect_status(200);
        node.task_becomes(&run, "b", "running").await;
        assert_eq!(timers(&run).await, 1, "{way}");
        // The hour passes.
        let pass = "UPDATE heddle.timers SET due_at = now() WHERE run = $1::text::uuid";
        sql.execute(pass, &[&run]).await.unwrap();
        let ended = node.ended(&run).await;
        assert_eq!(ended["state"], "cancelled", "{way}: {ended:#}");
        assert!(ended["error"].to_string().contains("deadline"), "{way}: {ended:#}");
    }
    let run = failed().await;
    let past = "UPDATE heddle.runs_done SET deadline_at = now() - interval '1 second' WHERE id = $1::text::uuid";
    sql.execute(past, &[&run]).await.unwrap();
    node.post(&format!("/v1/runs/{run}/restart"), json!({}))
        .await
        .expect_status(200);
    node.task_becomes(&run, "b", "running").await;
    assert_eq!(timers(&run).await, 0);
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
}
