//! What operators see and do beside runs' controls: when something is tried again, who set what, parts of groups, lists.

use heddle_tests::{Node, World, eventually, id, seconds, task, time};
use serde_json::{Value, json};

use crate::{fails, one, sleeps, with};

async fn set_run(node: &Node, run: &str, state: &str) -> Value {
    let body = json!({"state": state, "reason": "checked by hand"});
    node.put(&format!("/v1/runs/{run}/state"), body)
        .await
        .expect_status(200)
}

/// What a ready task run waits for, and until when, where that is known.
#[tokio::test]
async fn ready_tasks_say_what_they_wait_for() {
    let (_world, node) = World::with_node().await;
    node.put("/v1/pools/db", json!({"slots": 1})).await.expect_status(201);
    let holds = json!({"queue": "elsewhere", "pools": {"db": 1}});
    node.put_group(
        "g",
        json!({"tasks": {"holds": holds, "also": holds, "works": {"queue": "q"}}}),
    )
    .await;
    let run = node.start("g", json!({})).await;
    let waits = async |expect: Value| {
        let reason = expect["reason"].clone();
        eventually(&format!("{expect}"), async || {
            let run = node.run_now(&run).await;
            let tasks = run["tasks"].as_array().unwrap().iter();
            let waiting: Vec<&Value> = tasks.filter(|task| task["waiting_for"]["reason"] == reason).collect();
            assert!(waiting.iter().all(|task| task["state"] == "ready"), "{run:#}");
            waiting
                .iter()
                .any(|task| task["waiting_for"] == expect)
                .then_some(waiting.len())
        })
        .await
    };
    waits(json!({"reason": "pool", "pools": ["db"], "slots": {"db": 1}, "until": null})).await;
    waits(json!({"reason": "worker", "queue": "q", "until": null})).await;
    waits(json!({"reason": "worker", "queue": "elsewhere", "until": null})).await;
    node.post("/v1/queues/q/pause", json!({})).await.expect_status(200);
    let paused = waits(json!({"reason": "queue_paused", "queue": "q", "until": null})).await;
    assert_eq!(paused, 1, "another queue is none that is paused");
    node.post("/v1/queues/q/resume", json!({})).await.expect_status(200);
    // One claim an hour: the first is given, the task comes back, and waits for the next.
    node.put("/v1/queues/q", json!({"rate": {"count": 1, "per": "1h"}}))
        .await
        .expect_status(200);
    let claims = json!({"worker": "w", "max": 1, "wait": "10s"});
    let claimed = node.post("/v1/queues/q/claims", claims).await.expect_status(200);
    let claim = &claimed["items"][0];
    let running = node.run_now(&run).await;
    assert_eq!(task(&running, "works")["waiting_for"], Value::Null, "{running:#}");
    let path = format!("/v1/claims/{}/fail", claim["id"].as_str().unwrap());
    node.post(&path, json!({"token": claim["token"], "error": "x", "fatal": true}))
        .await
        .expect_status(200);
    let other = node.start("g", json!({})).await;
    let limited = eventually("the rate limit", async || {
        let run = node.run_now(&other).await;
        let waits = task(&run, "works")["waiting_for"].clone();
        (waits["reason"] == "rate_limit").then_some(waits)
    })
    .await;
    assert_eq!(limited["queue"], "q");
    time(&limited["until"]);
    let shown = task(&node.run_now(&other).await, "works")["waiting_for"].clone();
    assert_eq!(shown["reason"], "rate_limit", "{shown:#}");
}

/// A retrying task run says until when.
#[tokio::test]
async fn when_it_is_tried_again() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 3, "interval": "1h"});
    node.put_group("g", one(json!({"script": "flaky", "retry": retry})))
        .await;
    let run = node.start("g", json!({})).await;
    let found = node.task_becomes(&run, "t", "retrying").await;
    let t = task(&found, "t");
    let wait = seconds(&found["started_at"], &t["next_attempt_at"]);
    assert!((3590.0..3620.0).contains(&wait), "{t:#}");
    let detail = node.get(&format!("/v1/runs/{run}/tasks/t")).await.expect_status(200);
    assert_eq!(detail["next_attempt_at"], t["next_attempt_at"]);
    node.post(&format!("/v1/runs/{run}/tasks/t/retry"), json!({}))
        .await
        .expect_status(200);
    node.post(&format!("/v1/runs/{run}/cancel"), json!({})).await;
    let ended = node.ended(&run).await;
    assert_eq!(task(&ended, "t")["next_attempt_at"], Value::Null);
}

/// After an override run and task run say by whom and why, until something later happens.
#[tokio::test]
async fn who_set_it_and_why() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {"f": fails(), "z": {"script": "hello", "depends_on": ["f"]}}}),
    )
    .await;
    let failed = node.run("g", json!({})).await;
    let run = id(&failed);
    assert!(failed.get("override").is_none(), "{failed:#}");
    let set = set_run(&node, &run, "succeeded").await;
    assert_eq!(set["state"], "succeeded");
    assert_eq!(set["error"], Value::Null, "{set:#}");
    assert_eq!(set["override"]["state"], "succeeded");
    assert_eq!(set["override"]["reason"], "checked by hand");
    assert!(set["override"]["actor"].is_string());
    time(&set["override"]["at"]);
    let set = set_run(&node, &run, "failed").await;
    let message = set["error"]["message"].as_str().unwrap();
    assert!(message.contains("checked by hand") && message.contains(set["override"]["actor"].as_str().unwrap()));
    // A task run: skipped in place of its failure.
    let body = json!({"state": "skipped", "reason": "not needed"});
    let path = format!("/v1/runs/{run}/tasks/f");
    let skipped = node.put(&format!("{path}/state"), body).await.expect_status(200);
    assert_eq!(
        (&skipped["error"], &skipped["override"]["reason"]),
        (&Value::Null, &json!("not needed"))
    );
    let ended = node.ended(&run).await;
    assert!(
        ended.get("override").is_none(),
        "it has ended again by itself: {ended:#}"
    );
    // Run again, it fails by itself once more.
    node.post(&format!("{path}/clear"), json!({})).await.expect_status(200);
    node.ended(&run).await;
    let again = node.get(&path).await.expect_status(200);
    assert_eq!(again["state"], "failed");
    assert!(again.get("override").is_none(), "{again:#}");
    assert_eq!(again["error"]["kind"], "fatal");
}

/// A run that waits is paused, resumed, overridden and cancelled; paused it lets others by, and begins not before it is
/// resumed.
#[tokio::test]
async fn a_run_that_waits() {
    let (world, node) = World::with_node().await;
    let control = async |run: &str, action: &str| {
        node.post(&format!("/v1/runs/{run}/{action}"), json!({}))
            .await
            .expect_status(200)
    };
    node.put_group("g", with(one(sleeps(3600.0)), json!({"max_active_runs": 1})))
        .await;
    let blocker = node.start("g", json!({})).await;
    node.task_becomes(&blocker, "t", "running").await;
    let quick = json!({"task_params": {"t": {"seconds": 0}}});
    let waits = node.start("g", quick.clone()).await;
    let paused = control(&waits, "pause").await;
    assert_eq!(paused["state"], "paused");
    assert_eq!(
        (&paused["started_at"], &paused["waiting_for"][0]["turn"]),
        (&Value::Null, &json!(true))
    );
    let behind = node.start("g", quick.clone()).await;
    control(&blocker, "cancel").await;
    assert_eq!(
        node.ended(&behind).await["state"],
        "succeeded",
        "what is paused before it holds nobody up"
    );
    assert_eq!(node.run_now(&waits).await["state"], "paused");
    let resumed = control(&waits, "resume").await;
    assert_ne!(resumed["state"], "paused");
    let ended = node.ended(&waits).await;
    assert_eq!(ended["state"], "succeeded");
    assert_eq!(node.attempts(&waits, "t").await.len(), 1);
    // Behind an upstream.
    node.put_group("up", one(fails())).await;
    node.run("up", json!({})).await;
    node.put_group(
        "down",
        json!({"depends_on": ["up"], "schedules": {"s": {"once": {"delay": "0s"}}}, "tasks": {"t": {"script": "hello"}}}),
    )
    .await;
    let run = eventually("the run that waits", async || {
        let runs = node.all("/v1/runs?group=down").await;
        runs.first().map(id)
    })
    .await;
    node.run_becomes(&run, "waiting").await;
    control(&run, "pause").await;
    control(&run, "resume").await;
    assert_eq!(node.run_now(&run).await["state"], "waiting");
    control(&run, "pause").await;
    let set = json!({"state": "succeeded", "reason": "by hand"});
    node.put(&format!("/v1/runs/{run}/tasks/t/state"), set)
        .await
        .expect_status(200);
    let ended = node.ended(&run).await;
    assert_eq!(ended["state"], "succeeded", "{ended:#}");
    // Overridden and cancelled, paused or not.
    for pause in [false, true] {
        for end in ["state", "cancel"] {
            let blocker = node.start("g", json!({})).await;
            node.task_becomes(&blocker, "t", "running").await;
            let run = node.start("g", quick.clone()).await;
            if pause {
                control(&run, "pause").await;
            }
            match end {
                "cancel" => assert_eq!(control(&run, "cancel").await["state"], "cancelled"),
                _ => {
                    let set = set_run(&node, &run, "succeeded").await;
                    assert_eq!(set["state"], "succeeded");
                    assert_eq!(set["override"]["reason"], "checked by hand", "{set:#}");
                }
            }
            control(&blocker, "cancel").await;
        }
    }
    let sql = world.sql().await;
    let left: i64 = sql
        .query_one("SELECT count(*) FROM heddle.waits", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(left, 0, "nobody waits any more");
}

/// A merge patch of a group's spec, RFC 7396.
#[tokio::test]
async fn patching_a_group() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "g",
        with(
            one(json!({"script": "hello", "timeout": "5m"})),
            json!({"description": "old", "params": {"name": "a"}}),
        ),
    )
    .await;
    let patch = async |body: Value, revision: Option<&str>| {
        let mut request = node
            .request(reqwest::Method::PATCH, "/v1/groups/g")
            .header("content-type", "application/merge-patch+json");
        if let Some(revision) = revision {
            request = request.header("if-match", revision);
        }
        node.send(request.body(body.to_string())).await
    };
    let changed = patch(
        json!({"description": null, "tasks": {"t": {"timeout": "6m"}, "u": {"script": "hello"}}}),
        None,
    )
    .await
    .expect_status(200);
    assert_eq!(changed["revision"], 2);
    assert_eq!(changed["tasks"]["t"]["timeout"], "6m");
    assert_eq!(changed["tasks"]["t"]["script"], "hello");
    assert_eq!(changed["tasks"]["u"]["script"], "hello");
    assert_eq!(changed["params"]["name"], "a");
    assert!(changed.get("description").is_none_or(Value::is_null), "{changed:#}");
    // The same spec makes no revision, however it is written.
    let same = patch(json!({"tasks": {"t": {"timeout": "360s"}}}), None)
        .await
        .expect_status(200);
    assert_eq!(same["revision"], 2);
    let off = patch(json!({"enabled": false}), None).await.expect_status(200);
    assert_eq!((&off["enabled"], &off["revision"]), (&json!(false), &json!(2)));
    patch(json!({"enabled": true}), Some("\"2\"")).await.expect_status(200);
    patch(json!({"params": {"name": "b"}}), Some("\"1\""))
        .await
        .expect_problem(412, &[]);
    patch(
        json!({"tasks": {"t": {"timeout": "soon", "depends_on": ["none"]}}}),
        None,
    )
    .await
    .expect_problem(422, &["/tasks/t/timeout"]);
    patch(json!([1]), None).await.expect_problem(422, &[""]);
    let missing = node.request(reqwest::Method::PATCH, "/v1/groups/none").body("{}");
    node.send(missing).await.expect_problem(404, &[]);
    assert_eq!(node.get("/v1/groups/g").await.expect_status(200)["revision"], 2);
    // Many at once: none is lost.
    let mut asked = Vec::new();
    for number in 0..4 {
        let api = node.api().clone();
        asked.push(tokio::spawn(async move {
            let body = json!({"labels": {format!("l{number}"): "x"}}).to_string();
            let request = api.request(reqwest::Method::PATCH, "/v1/groups/g").body(body);
            api.send(request).await.expect_status(200);
        }));
    }
    for one in asked {
        one.await.unwrap();
    }
    let labels = node.get("/v1/groups/g").await.expect_status(200)["labels"].clone();
    assert_eq!(labels.as_object().unwrap().len(), 4, "{labels}");
}

/// A schedule is switched off and on by a call of its own.
#[tokio::test]
async fn switching_schedules() {
    let (world, node) = World::with_node().await;
    // Its next instant is half an hour away: it is the same before and after the switch.
    let anchor = (world.now().await - chrono::TimeDelta::minutes(30)).to_rfc3339();
    let spec = json!({
        "schedules": {"often": {"every": "1h", "anchor": anchor}, "rare": {"cron": "0 0 1 1 *"},
                      "past": {"once": {"delay": "0s"}}},
        "tasks": {"t": {"script": "hello"}},
    });
    let put = node.put_group("g", spec).await;
    let switch = async |name: &str, what: &str| {
        node.post(&format!("/v1/groups/g/schedules/{name}/{what}"), json!({}))
            .await
    };
    let off = switch("often", "disable").await.expect_status(200);
    assert_eq!(off["schedules"]["often"]["enabled"], false);
    assert_eq!(off["schedules"]["often"]["next"], Value::Null);
    assert_eq!(off["schedules"]["rare"]["enabled"], true);
    assert_eq!(off["revision"], put["revision"].as_i64().unwrap() + 1);
    let still = switch("often", "disable").await.expect_status(200);
    assert_eq!(still["revision"], off["revision"]);
    let on = switch("often", "enable").await.expect_status(200);
    assert_eq!(on["schedules"]["often"]["next"], put["schedules"]["often"]["next"]);
    assert_eq!(on["schedules"]["often"]["enabled"], true);
    switch("none", "disable").await.expect_problem(404, &[]);
    switch("none", "enable").await.expect_problem(404, &[]);
    node.post("/v1/groups/none/schedules/often/disable", json!({}))
        .await
        .expect_problem(404, &[]);
    eventually("the only time", async || {
        let group = node.get("/v1/groups/g").await.expect_status(200);
        group["schedules"]["past"]["fired_at"].is_string().then_some(())
    })
    .await;
    switch("past", "enable").await.expect_problem(409, &[]);
    // So is a patch that does the same; with another instant, it is another schedule.
    let patch = async |past: Value| {
        let patch = json!({"schedules": {"past": past}}).to_string();
        let request = node.request(reqwest::Method::PATCH, "/v1/groups/g").body(patch);
        node.send(request).await
    };
    patch(json!({"enabled": true})).await.expect_said(409, "already fired");
    let again = patch(json!({"enabled": true, "once": {"delay": "1h"}}))
        .await
        .expect_status(200);
    assert!(again["schedules"]["past"]["next"].is_string(), "{again:#}");
}

/// Lists: groups by text, label and last state; runs by queue, script and the beginning of an id; the latest run.
#[tokio::test]
async fn finding_groups_and_runs() {
    let (world, node) = World::with_node().await;
    node.put_group(
        "Import-Orders",
        with(one(json!({"script": "hello"})), json!({"labels": {"team": "bi"}})),
    )
    .await;
    node.put_group(
        "export",
        with(
            one(fails()),
            json!({"description": "Orders, sent away", "labels": {"team": "ops"}}),
        ),
    )
    .await;
    node.put_group("queued", one(json!({"queue": "gpu"}))).await;
    let ran = id(&node.run("Import-Orders", json!({})).await);
    let failed = id(&node.run("export", json!({})).await);
    let waits = node.start("queued", json!({})).await;
    let names = async |query: &str| {
        let groups = node.all(&format!("/v1/groups?{query}")).await;
        let names: Vec<String> = groups
            .iter()
            .map(|group| group["name"].as_str().unwrap().to_owned())
            .collect();
        names.join(" ")
    };
    for (query, expect) in [
        ("q=orders", "Import-Orders export"),
        ("q=ORDERS%2C", "export"),
        ("label=team", "Import-Orders export"),
        ("label=team=ops", "export"),
        ("label=team=none&label=team=ops", ""),
        ("last_state=failed", "export"),
        ("last_state=succeeded,failed", "Import-Orders export"),
        ("last_state=running", "queued"),
        ("last_state=none", ""),
        ("q=orders&last_state=succeeded", "Import-Orders"),
        ("enabled=false", ""),
    ] {
        assert_eq!(names(query).await, expect, "{query}");
    }
    node.get("/v1/groups?last_state=odd")
        .await
        .expect_problem(422, &["/last_state"]);
    // Names are kept composed; a text is found in them however it is spelled, and in descriptions as it is.
    let decomposed = json!({"description": "Th\u{e9} ou cafe\u{301}"});
    node.put_group("Caf\u{e9}", one(json!({"script": "hello"}))).await;
    node.put_group("drinks", with(one(json!({"script": "hello"})), decomposed))
        .await;
    assert_eq!(names("q=CAFE%CC%81").await, "Caf\u{e9} drinks");
    assert_eq!(names("q=caf%C3%A9").await, "Caf\u{e9}");
    let runs =
        async |query: &str| -> Vec<String> { node.all(&format!("/v1/runs?{query}")).await.iter().map(id).collect() };
    assert_eq!(runs("queue=gpu").await, std::slice::from_ref(&waits));
    assert_eq!(runs("script=hello").await, std::slice::from_ref(&ran));
    assert_eq!(runs("script=flaky@1").await, std::slice::from_ref(&failed));
    assert_eq!(runs("script=flaky@1,hello").await, [failed.clone(), ran.clone()]);
    assert!(runs("script=flaky@9").await.is_empty());
    assert!(runs("script=none").await.is_empty());
    assert!(runs(&format!("id={}", &failed[..8])).await.contains(&failed));
    assert_eq!(
        runs(&format!("id={}", &failed[..30])).await,
        std::slice::from_ref(&failed)
    );
    node.get("/v1/runs?id=0199f5a").await.expect_problem(422, &["/id"]);
    let latest = node.get("/v1/runs/latest?group=export").await.expect_status(200);
    assert_eq!(
        (id(&latest), latest["tasks"].as_array().map(Vec::len)),
        (failed.clone(), Some(1))
    );
    assert_eq!(id(&node.get("/v1/runs/latest").await.expect_status(200)), waits);
    let none = node.get("/v1/runs/latest?group=none").await;
    none.expect_said(404, "there is no group `none`");
    let none = node.get("/v1/runs/latest?group=export&state=cancelled").await;
    none.expect_said(404, "no run matches these filters");
    // By the time that a run shows, and not by the one in its id; both ends are included.
    let sql = world.sql().await;
    for difference in ["2 seconds", "-4 seconds"] {
        sql.batch_execute(&format!(
            "UPDATE heddle.runs_done SET created_at = created_at + interval '{difference}' WHERE id = '{failed}'"
        ))
        .await
        .expect("another time");
        let run = node.run_now(&failed).await;
        let at = run["created_at"].as_str().expect("a time");
        let found = runs(&format!("group=export&from={at}&to={at}")).await;
        assert_eq!(found, std::slice::from_ref(&failed), "{difference}");
    }
}

/// A look into a queue claims nothing.
#[tokio::test]
async fn looking_into_a_queue() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"queue": "q", "tags": ["gpu"]}))).await;
    let mut runs = Vec::new();
    for priority in [0, 5, 0] {
        runs.push(node.start("g", json!({"priority": priority})).await);
    }
    let ask = json!({"worker": "w1", "max": 1, "tags": ["gpu"], "wait": "20s"});
    let claims = node.post("/v1/queues/q/claims", ask).await.expect_status(200);
    assert_eq!(claims["items"][0]["run"], json!(runs[1]));
    let items = node.all("/v1/queues/q/tasks?limit=1").await;
    let shown: Vec<(&str, &str)> = items
        .iter()
        .map(|item| (item["run"].as_str().unwrap(), item["state"].as_str().unwrap()))
        .collect();
    assert_eq!(
        shown,
        [
            (runs[1].as_str(), "running"),
            (runs[0].as_str(), "ready"),
            (runs[2].as_str(), "ready")
        ]
    );
    assert_eq!(items[0]["worker"], "w1");
    time(&items[0]["lease_expires_at"]);
    assert_eq!((&items[1]["tags"], &items[1]["task"]), (&json!(["gpu"]), &json!("t")));
    time(&items[1]["since"]);
    assert_eq!(node.all("/v1/queues/q/tasks").await.len(), 3);
    node.get("/v1/queues/none/tasks").await.expect_problem(404, &[]);
    node.get("/v1/queues/q/tasks?cursor=x").await.expect_problem(400, &[]);
}

/// A date means midnight in the group's timezone.
#[tokio::test]
async fn dates_for_logical_times() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "g",
        with(one(json!({"script": "hello"})), json!({"timezone": "Asia/Shanghai"})),
    )
    .await;
    let run = node.run("g", json!({"logical_time": "2026-03-01"})).await;
    assert_eq!(run["logical_time"], "2026-02-28T16:00:00.000000Z");
    let batch = json!({"runs": [{"logical_time": "2026-03-02"}, {"logical_time": "2026-02-30"}]});
    let answers = node.post("/v1/groups/g/runs/batch", batch).await.expect_status(202);
    assert_eq!(answers["items"][0]["status"], 202);
    assert_eq!(answers["items"][1]["status"], 422, "{answers:#}");
    node.post("/v1/groups/g/runs", json!({"logical_time": "tomorrow"}))
        .await
        .expect_problem(422, &["/logical_time"]);
}

/// Audiences that a user is in.
#[tokio::test]
async fn audiences_of_a_user() {
    let (_world, node) = World::with_node().await;
    for (name, members) in [("gid_a", json!(["u1", "u2"])), ("gid_b", json!(["u2"]))] {
        let path = format!("/v1/audiences/{name}/members");
        node.put(&path, json!({"members": members})).await.expect_status(201);
    }
    for (uid, expect) in [
        ("u1", vec!["gid_a"]),
        ("uid_u2", vec!["gid_a", "gid_b"]),
        ("u3", vec![]),
    ] {
        let found = node.all(&format!("/v1/audiences?uid={uid}")).await;
        let names: Vec<&str> = found.iter().map(|one| one["audience"].as_str().unwrap()).collect();
        assert_eq!(names, expect, "{uid}");
    }
}

/// A claim sends progress and lines for the log with its heartbeats; the log is bounded as a script's.
#[tokio::test]
async fn what_a_worker_reports() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let node = &nodes[0];
    node.put_group("g", one(json!({"queue": "q", "max_log": "400B"}))).await;
    let run = node.start("g", json!({})).await;
    let ask = json!({"worker": "w1", "max": 1, "wait": "20s"});
    let claims = node.post("/v1/queues/q/claims", ask).await.expect_status(200);
    let claim = &claims["items"][0];
    let path = format!("/v1/claims/{}/heartbeat", claim["id"].as_str().unwrap());
    let beat = async |node: &Node, body: Value| node.post(&path, with(body, json!({"token": claim["token"]}))).await;
    let report = json!({
        "progress": 0.25, "note": "loading",
        "log": [{"message": "first", "fields": {"n": 1}}, {"message": "second", "level": "warn"}],
    });
    beat(node, report).await.expect_status(200);
    // Any node may be told, and any shows it.
    beat(
        &nodes[1],
        json!({"note": "still loading", "log": [{"message": "third"}]}),
    )
    .await
    .expect_status(200);
    for node in &nodes {
        let found = node.run_now(&run).await;
        let t = task(&found, "t");
        assert_eq!(
            (&t["progress"], &t["note"], &t["worker"]),
            (&json!(0.25), &json!("still loading"), &json!("w1"))
        );
    }
    let lines = node.log_lines(&run, "t").await;
    let said: Vec<&str> = lines.iter().map(|line| line["message"].as_str().unwrap()).collect();
    assert_eq!(said, ["first", "second", "third"]);
    assert_eq!(
        (&lines[1]["level"], &lines[0]["fields"]["n"]),
        (&json!("warn"), &json!(1))
    );
    for (body, pointer) in [
        (json!({"progress": 2}), "/progress"),
        (json!({"log": [{"message": "x", "level": "loud"}]}), "/log/0/level"),
        (json!({"log": [{"level": "info"}]}), "/log/0/message"),
    ] {
        beat(node, body).await.expect_problem(422, &[pointer]);
    }
    // Beyond the limit it is cut, once, with a word about it.
    let flood: Vec<Value> = (0..20).map(|_| json!({"message": "x".repeat(30)})).collect();
    for _ in 0..2 {
        beat(node, json!({"log": flood})).await.expect_status(200);
    }
    let lines = node.log_lines(&run, "t").await;
    let cut = lines
        .iter()
        .filter(|line| line["message"].as_str().unwrap().starts_with("log truncated"));
    // The three lines before, twelve of thirty bytes, and the word.
    assert_eq!((cut.count(), lines.len()), (1, 16), "{lines:#?}");
    let done = json!({"token": claim["token"], "output": 1});
    let complete = format!("/v1/claims/{}/complete", claim["id"].as_str().unwrap());
    node.post(&complete, done).await.expect_status(200);
    // A token that is old writes nothing.
    beat(node, json!({"log": [{"message": "late"}]}))
        .await
        .expect_problem(409, &[]);
    assert_eq!(node.log_lines(&run, "t").await.len(), lines.len());
    assert_eq!(node.attempts(&run, "t").await[0]["worker"], "w1");
}

/// What is wrong with a spec is told at once: what cannot be read, and what the rest says.
#[tokio::test]
async fn all_that_is_wrong_with_a_spec() {
    let (_world, node) = World::with_node().await;
    let spec = json!({
        "histroy": true,
        "timezone": "Mars/Base",
        "schedules": {"s": {"cron": "every day"}},
        "tasks": {
            "a": {"script": "hello", "timeout": "soon", "retyr": {}},
            "b": {"script": "helo", "depends_on": ["none"]},
            "c": {"script": "fib", "params": {"n": "many"}},
            "d": {"queue": "q", "depends_on": ["e"]},
            "e": {"queue": "q", "depends_on": ["d"]},
        },
    });
    let pointers = [
        "/histroy",
        "/timezone",
        "/schedules/s/cron",
        "/tasks/a/timeout",
        "/tasks/a/retyr",
        "/tasks/b/script",
        "/tasks/b/depends_on/0",
        "/tasks/c/params/n",
        "/tasks/d/depends_on",
    ];
    let refused = node.refused_group("g", spec.clone()).await;
    let said = refused.body["errors"].clone();
    let found: Vec<&str> = said
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|error| error["pointer"].as_str())
        .collect();
    for pointer in pointers {
        assert!(
            found.iter().any(|found| found.starts_with(pointer)),
            "{pointer} is not in {said:#}"
        );
    }
    let validated = node.post("/v1/groups/g/validate", spec).await;
    assert_eq!((validated.status, &validated.body["errors"]), (422, &said));
}

/// A wait beyond its bound is refused, wherever one may be asked for.
#[tokio::test]
async fn waits_are_bounded() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let run = node.start("g", json!({})).await;
    node.get(&format!("/v1/runs/{run}?wait=1m")).await.expect_status(200);
    node.get(&format!("/v1/runs/{run}?wait=61s"))
        .await
        .expect_problem(422, &["/wait"]);
    node.post("/v1/queues/q/claims", json!({"worker": "w", "wait": "2m"}))
        .await
        .expect_problem(422, &["/wait"]);
    node.post("/v1/dispatch/ann/next", json!({"wait": "2m"}))
        .await
        .expect_problem(422, &["/wait"]);
}

/// The feed's lines about assignments carry the params that these were given with, whatever the offer says later.
#[tokio::test]
async fn events_of_assignments_carry_params() {
    let (_world, node) = World::with_node().await;
    let offer =
        |n: i64| json!({"audience": "uid_ann", "anchor": "2026-11-01T00:00:00Z", "every": "1m", "params": {"n": n}});
    node.put("/v1/offers/survey", offer(1)).await.expect_status(201);
    let given = node
        .post("/v1/dispatch/ann/next", json!({"wait": "20s"}))
        .await
        .expect_status(200);
    assert_eq!(given["params"], json!({"n": 1}));
    node.put("/v1/offers/survey", offer(2)).await.expect_status(200);
    let done = json!({"assignment_id": given["assignment_id"], "status": "completed"});
    node.post("/v1/dispatch/ann/complete", done).await.expect_status(200);
    let lines = eventually("both lines", async || {
        heddle_tests::choose_cryptography();
        let text = reqwest::Client::new()
            .get(format!(
                "{}/v1/events?kinds=assignment.dispatched,assignment.completed",
                node.base()
            ))
            .bearer_auth(heddle_tests::TOKEN)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (lines.len() == 2).then_some(lines)
    })
    .await;
    for line in lines {
        assert_eq!(
            (&line["params"], &line["assignment_id"]),
            (&json!({"n": 1}), &given["assignment_id"]),
            "{line:#}"
        );
    }
}
