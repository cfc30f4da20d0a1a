//! Submissions: labels, batches, SQL, lists.

use std::collections::BTreeSet;

use heddle_tests::{World, eventually, id, time};
use serde_json::{Value, json};

use crate::{one, sleeps, with};

/// Labels, and everything else that a list can be filtered by.
#[tokio::test]
async fn lists() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    node.put_group("h", one(crate::fails())).await;
    let mut all = Vec::new();
    for n in 0..12 {
        let labels = json!({"parity": if n % 2 == 0 { "even" } else { "odd" }, "n": n.to_string()});
        let logical_time = format!("2013-07-{:02}T00:00:00Z", n + 1);
        let run = node
            .run("g", json!({"labels": labels, "logical_time": logical_time}))
            .await;
        all.push(run);
    }
    node.run("h", json!({"labels": {"parity": "even"}})).await;
    let count = async |query: &str| node.all(&format!("/v1/runs?{query}")).await.len();
    assert_eq!(count("group=g").await, 12);
    assert_eq!(count("group=g&group=h").await, 13);
    assert_eq!(count("group=nope").await, 0);
    assert_eq!(count("label=parity%3Deven").await, 7);
    assert_eq!(count("label=parity%3Deven&group=g").await, 6);
    assert_eq!(count("label=parity%3Deven&label=n%3D4").await, 1);
    assert_eq!(count("label=n").await, 12);
    assert_eq!(count("label=n&label=n%3D4").await, 1);
    assert_eq!(count("label=n%3D5&label=n%3D4").await, 0);
    let filter = json!({"label": ["n=5", "n=4"]});
    let bulk = json!({"filter": filter, "action": "delete", "dry_run": true});
    assert_eq!(node.post("/v1/runs/bulk", bulk).await.expect_status(200)["matched"], 0);
    assert_eq!(count("state=failed").await, 1);
    assert_eq!(count("state=failed,succeeded").await, 13);
    assert_eq!(count("trigger=manual").await, 13);
    assert_eq!(count("trigger=schedule").await, 0);
    assert_eq!(
        count("logical_from=2013-07-03T00:00:00Z&logical_to=2013-07-05T00:00:00Z").await,
        3
    );
    let from = all[6]["created_at"].as_str().unwrap();
    assert_eq!(count(&format!("group=g&from={from}")).await, 6);
    assert_eq!(count(&format!("group=g&to={from}")).await, 7);
    // Newest first, page by page, each once.
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = node
            .get(&format!("/v1/runs?group=g&limit=5{cursor}"))
            .await
            .expect_status(200);
        let items = page["items"].as_array().unwrap();
        assert!(
            items.len() <= 5 && items.iter().all(|run| run["tasks"].is_null()),
            "lists leave the tasks out"
        );
        seen.extend(items.iter().map(id));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    let newest_first: Vec<String> = all.iter().rev().map(id).collect();
    assert_eq!(seen, newest_first);
    for bad in ["limit=501", "limit=0", "state=sleeping", "trigger=nope"] {
        assert_eq!(node.get(&format!("/v1/runs?{bad}")).await.status, 422, "{bad}");
    }
    for bad in ["limit=many", "from=yesterday"] {
        assert_eq!(node.get(&format!("/v1/runs?{bad}")).await.status, 400, "{bad}");
    }
    let too_many: serde_json::Map<String, Value> = (0..1000).map(|n| (format!("l{n}"), json!("x"))).collect();
    assert_eq!(
        node.post("/v1/groups/g/runs", json!({"labels": too_many})).await.status,
        422
    );
    assert_eq!(
        node.post("/v1/groups/g/runs", json!({"labels": {"a": 5}})).await.status,
        422
    );
}

/// Batches up to 10,000, with a result for each.
#[tokio::test]
async fn batches() {
    let (world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "fib", "params": {"n": 3}})))
        .await;
    let first = node.start("g", json!({"key": "k1"})).await;
    let runs = json!([
        {"key": "k0"}, {"key": "k1"}, {"key": "k0"}, {"params": {"n": "x"}}, {"params": {"n": 10}}, 5, {"nope": 1},
    ]);
    let reply = node
        .post("/v1/groups/g/runs/batch", json!({"runs": runs}))
        .await
        .expect_status(202);
    let items = reply["items"].as_array().unwrap();
    let statuses: Vec<u64> = items.iter().filter_map(|item| item["status"].as_u64()).collect();
    assert_eq!(statuses, [202, 409, 409, 422, 202, 422, 422], "{reply:#}");
    assert_eq!(items[1]["existing"], *first);
    assert_eq!(items[2]["existing"], items[0]["id"]);
    assert!(items[3]["problem"].to_string().contains("/params/n"), "{reply:#}");
    for item in [&items[0], &items[4]] {
        assert_eq!(node.ended(&id(item)).await["state"], "succeeded");
    }
    // By key is how a caller reconciles what may have been lost.
    let keyed: Vec<Value> = (0..10_000).map(|n| json!({"key": format!("n{n}")})).collect();
    let half = json!({"runs": keyed.iter().step_by(2).collect::<Vec<_>>()});
    let reply = node.post("/v1/groups/g/runs/batch", half).await.expect_status(202);
    assert_eq!(reply["accepted"], 5_000);
    let reply = node
        .post("/v1/groups/g/runs/batch", json!({"runs": keyed}))
        .await
        .expect_status(202);
    assert_eq!(reply["accepted"], 5_000);
    let ids: BTreeSet<&str> = reply["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|item| item["id"].as_str().or(item["existing"].as_str()))
        .collect();
    assert_eq!(ids.len(), 10_000);
    let sql = world.sql().await;
    eventually("end of 10,003 runs", async || {
        let row = sql
            .query_one("SELECT count(*) FROM heddle.runs_done WHERE state = 3", &[])
            .await
            .unwrap();
        (row.get::<_, i64>(0) == 10_003).then_some(())
    })
    .await;
    let attempts: i64 = sql
        .query_one("SELECT count(*) FROM heddle.attempts", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(attempts, 10_003, "each ran once");
    // Bounds.
    let many: Vec<Value> = (0..10_001).map(|_| json!({})).collect();
    node.post("/v1/groups/g/runs/batch", json!({"runs": many}))
        .await
        .expect_problem(422, &["/runs"]);
    node.post("/v1/groups/g/runs/batch", json!({"run": []}))
        .await
        .expect_problem(422, &["/run"]);
    node.post("/v1/groups/g/runs/batch", json!({"runs": 5}))
        .await
        .expect_problem(422, &["/runs"]);
    node.post("/v1/groups/nope/runs/batch", json!({"runs": []}))
        .await
        .expect_problem(404, &[]);
}

/// Who submits or repeats a run is kept with it: while it lives, when it has ended, and when it lives again, with the time of
/// that. What another run makes names nobody.
#[tokio::test]
async fn who_submits() {
    let (_world, node) = World::with_node().await;
    let who = async |name: &str| {
        let made = node.post("/v1/tokens", json!({"name": name, "role": "operator"})).await;
        node.with_token(made.expect_status(201)["token"].as_str())
    };
    let (night, day) = (who("night").await, who("day").await);
    node.put_group("g", one(json!({"script": "echo"}))).await;
    node.put_group("long", one(crate::sleeps(600.0))).await;
    node.put_group("outer", one(json!({"group": "g"}))).await;

    let run = night.start("long", json!({})).await;
    assert_eq!(node.get(&format!("/v1/runs/{run}")).await.body["created_by"], "night");
    day.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(node.ended(&run).await["created_by"], "night");
    day.post(&format!("/v1/runs/{run}/restart"), json!({}))
        .await
        .expect_status(200);
    let again = node.get(&format!("/v1/runs/{run}")).await.body;
    assert_eq!(
        (&again["state"], &again["created_by"]),
        (&json!("running"), &json!("night"))
    );
    let (reopened, started) = (again["reopened_at"].as_str(), again["started_at"].as_str());
    assert!(reopened > started, "its time at work counts from here: {again:#}");
    day.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(node.ended(&run).await["reopened_at"].as_str(), reopened);

    let short = night.start("g", json!({})).await;
    let ended = node.ended(&short).await;
    assert_eq!(ended["created_by"], "night", "a run of one task run, too");
    assert_eq!(ended.get("reopened_at"), None);
    day.post(&format!("/v1/runs/{short}/tasks/t/clear"), json!({}))
        .await
        .expect_status(200);
    let again = node.ended(&short).await;
    assert!(again["reopened_at"].is_string(), "{again:#}");
    assert!(
        again["finished_at"].as_str() >= again["reopened_at"].as_str(),
        "{again:#}"
    );
    let repeated = day
        .post(&format!("/v1/runs/{short}/rerun"), json!({}))
        .await
        .expect_status(202);
    assert_eq!(node.ended(&id(&repeated)).await["created_by"], "day");
    let batch = json!({"runs": [{"key": "a"}, {"key": "b"}]});
    day.post("/v1/groups/g/runs/batch", batch).await;
    for key in ["a", "b"] {
        let listed = node.all(&format!("/v1/runs?group=g&key={key}")).await;
        assert_eq!(listed[0]["created_by"], "day", "{listed:#?}");
    }

    let outer = night.start("outer", json!({})).await;
    node.ended(&outer).await;
    let inner = node.all("/v1/runs?group=g&trigger=task").await;
    assert_eq!((inner.len(), inner[0].get("created_by")), (1, None), "{inner:#?}");
}

/// A run is at work again from when it goes on: not while it waits for its turn, and not at all if it ends at once.
#[tokio::test]
async fn runs_that_go_on() {
    let (_world, node) = World::with_node().await;
    let mut turns = one(crate::sleeps(600.0));
    turns["max_active_runs"] = json!(1);
    node.put_group("turns", turns).await;
    node.put_group("broken", one(json!({"script": "flaky", "params": {"fail_times": 9}})))
        .await;
    let control = async |run: &str, what: &str| {
        node.post(&format!("/v1/runs/{run}/{what}"), json!({}))
            .await
            .expect_status(200);
    };

    let first = node.start("turns", json!({})).await;
    node.task_becomes(&first, "t", "running").await;
    control(&first, "cancel").await;
    node.ended(&first).await;
    let second = node.start("turns", json!({})).await;
    node.task_becomes(&second, "t", "running").await;
    control(&first, "restart").await;
    let waits = node.get(&format!("/v1/runs/{first}")).await.body;
    assert_eq!(waits["state"], "waiting", "{waits:#}");
    let asked = waits["reopened_at"].as_str().expect("it was continued").to_owned();
    control(&second, "cancel").await;
    let second = node.ended(&second).await;
    let goes_on = node.task_becomes(&first, "t", "running").await;
    let since = goes_on["reopened_at"].as_str().expect("it goes on");
    assert!(since > asked.as_str(), "{asked}: {goes_on:#}");
    assert!(Some(since) >= second["finished_at"].as_str(), "{goes_on:#}");

    let broken = node.run("broken", json!({})).await;
    let (id, ended) = (broken["id"].as_str().expect("an id"), &broken["finished_at"]);
    node.put(
        &format!("/v1/runs/{id}/tasks/t/state"),
        json!({"state": "succeeded", "reason": "done by hand"}),
    )
    .await
    .expect_status(200);
    let set = node.get(&format!("/v1/runs/{id}")).await.body;
    assert_eq!(set["state"], "succeeded");
    assert_eq!(
        set["reopened_at"], set["finished_at"],
        "it has not worked since: {set:#}"
    );
    assert!(set["finished_at"].as_str() > ended.as_str(), "{set:#}");

    // Nor has one that was continued and has only waited since.
    let waits = node.start("turns", json!({})).await;
    control(&waits, "cancel").await;
    node.ended(&waits).await;
    control(&waits, "restart").await;
    assert_eq!(node.get(&format!("/v1/runs/{waits}")).await.body["state"], "waiting");
    control(&waits, "cancel").await;
    let ended = node.ended(&waits).await;
    assert_eq!(ended["reopened_at"], ended["finished_at"], "{ended:#}");
}

/// `heddle.submit` in SQL submits within the caller's own transaction.
#[tokio::test]
async fn in_sql() {
    let (world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "echo"}))).await;
    node.put_group("off", one(json!({"script": "echo"}))).await;
    node.post("/v1/groups/off/disable", json!({})).await.expect_status(200);
    let mut sql = world.sql().await;
    let submit = "SELECT heddle.submit('g', '{\"a\": 1}', 'sql-1')::text";
    let transaction = sql.transaction().await.unwrap();
    let row = transaction.query_one(submit, &[]).await.unwrap();
    let rolled_back: String = row.get(0);
    transaction.rollback().await.unwrap();
    let transaction = sql.transaction().await.unwrap();
    let run: String = transaction.query_one(submit, &[]).await.unwrap().get(0);
    node.get(&format!("/v1/runs/{run}")).await.expect_problem(404, &[]);
    transaction.commit().await.unwrap();
    let ended = node.ended(&run).await;
    assert_eq!(ended["state"], "succeeded", "{ended:#}");
    assert_eq!((&ended["key"], &ended["params"]), (&json!("sql-1"), &json!({"a": 1})));
    let role: String = sql.query_one("SELECT session_user::text", &[]).await.unwrap().get(0);
    assert_eq!(ended["created_by"], format!("database:{role}"));
    assert_eq!(heddle_tests::task(&ended, "t")["output"]["params"], json!({"a": 1}));
    node.get(&format!("/v1/runs/{rolled_back}"))
        .await
        .expect_problem(404, &[]);
    // The key is taken, here and there.
    assert!(sql.query_one(submit, &[]).await.is_err());
    let problem = node
        .post("/v1/groups/g/runs", json!({"key": "sql-1"}))
        .await
        .expect_problem(409, &[]);
    assert_eq!(problem["existing"], *run);
    for bad in [
        "SELECT heddle.submit('nope')",
        "SELECT heddle.submit('off')",
        "SELECT heddle.submit('g', '[]')",
        "SELECT heddle.submit('g', '{}', '')",
    ] {
        let error = sql.query_one(bad, &[]).await.expect_err(bad);
        assert!(error.as_db_error().is_some(), "{bad}: {error}");
    }
    // A name is one name in both spellings, composed and decomposed.
    let (composed, decomposed) = ("gr\u{fc}n", "gru\u{308}n");
    node.put_group(composed, one(json!({"script": "echo"}))).await;
    let row = sql.query_one("SELECT heddle.submit($1)::text", &[&decomposed]).await;
    let ended = node.ended(row.expect("a run").get(0)).await;
    assert_eq!(
        (&ended["group"], &ended["state"]),
        (&json!(composed), &json!("succeeded"))
    );
    // What the group adds to its runs, it adds to these.
    let adds = json!({"labels": {"team": "x"}, "schedules": {"daily": {"cron": "0 0 * * *"}}});
    node.put_group("adds", with(one(json!({"script": "echo"})), adds)).await;
    let deadline = json!({"deadline": "100ms", "deadline_action": "cancel"});
    node.put_group("late", with(one(sleeps(3_600.0)), deadline)).await;
    let statement = "SELECT heddle.submit('adds')::text, heddle.submit('late')::text";
    let row = sql.query_one(statement, &[]).await.unwrap();
    let (added, late) = (node.ended(row.get(0)).await, node.ended(row.get(1)).await);
    assert_eq!(added["labels"], json!({"team": "x"}));
    let interval = &added["data_interval"];
    assert_eq!(interval["end"], added["logical_time"]);
    assert!(interval["start"].as_str().unwrap().ends_with("T00:00:00.000000Z"));
    let context = &heddle_tests::task(&added, "t")["output"]["context"];
    assert_eq!(context["data_interval"], *interval);
    assert_eq!(late["state"], "cancelled");
    // Whatever the session reads a backslash as. (The first call in a session compiles the function.)
    let other = world.sql().await;
    other
        .batch_execute("SET standard_conforming_strings = off")
        .await
        .unwrap();
    let row = other.query_one("SELECT heddle.submit('g')::text", &[]).await;
    assert_eq!(node.ended(row.expect("a run").get(0)).await["state"], "succeeded");
    // Many in one transaction.
    let statement = "SELECT heddle.submit('g', jsonb_build_object('n', n))::text FROM generate_series(1, 200) n";
    let rows = sql.query(statement, &[]).await.unwrap();
    for row in rows {
        assert_eq!(node.ended(row.get(0)).await["state"], "succeeded");
    }
}

/// A long-poll answers when the run ends, or when its time is over.
#[tokio::test]
async fn long_polls() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    nodes[0].put_group("g", one(sleeps(1.0))).await;
    nodes[0].put_group("slow", one(sleeps(3600.0))).await;
    let run = nodes[0].start("g", json!({})).await;
    let (here, there) = tokio::join!(nodes[0].ended(&run), nodes[1].ended(&run));
    for found in [&here, &there] {
        assert_eq!(found["state"], "succeeded");
    }
    let slow = nodes[0].start("slow", json!({})).await;
    let start = tokio::time::Instant::now();
    let found = nodes[1]
        .get(&format!("/v1/runs/{slow}?wait=700ms"))
        .await
        .expect_status(200);
    assert_eq!(found["state"], "running");
    assert!(start.elapsed() >= std::time::Duration::from_millis(650));
    nodes[0]
        .get(&format!("/v1/runs/{slow}?wait=soon"))
        .await
        .expect_problem(400, &[]);
    nodes[0]
        .get("/v1/runs/00000000-0000-7000-8000-000000000000?wait=20s")
        .await
        .expect_problem(404, &[]);
    nodes[0].get("/v1/runs/nonsense").await.expect_problem(404, &[]);
    nodes[0]
        .post(&format!("/v1/runs/{slow}/cancel"), json!({}))
        .await
        .expect_status(200);
}

/// What a run looks like.
#[tokio::test]
async fn shape() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let reply = node
        .post(
            "/v1/groups/g/runs",
            json!({"key": "k", "labels": {"a": "b"}, "priority": 3}),
        )
        .await;
    assert!(reply.headers.contains_key("location"));
    let accepted = reply.expect_status(202);
    let run = node.ended(&id(&accepted)).await;
    assert_eq!(run["id"].as_str().map(|id| &id[14..15]), Some("7"), "a UUIDv7");
    assert_eq!(
        (&run["group"], &run["revision"], &run["trigger"]),
        (&json!("g"), &json!(1), &json!("manual"))
    );
    assert_eq!(
        (&run["key"], &run["labels"], &run["priority"]),
        (&json!("k"), &json!({"a": "b"}), &json!(3))
    );
    assert_eq!(
        (&run["params"], &run["error"], &run["waiting_for"]),
        (&json!({}), &Value::Null, &json!([]))
    );
    for field in ["created_at", "started_at", "finished_at", "logical_time"] {
        time(&run[field]);
    }
    assert_eq!(run["data_interval"]["end"], run["logical_time"]);
    time(&run["data_interval"]["start"]);
    assert!(time(&run["created_at"]) <= time(&run["started_at"]));
    assert!(time(&run["started_at"]) <= time(&run["finished_at"]));
    let task = &run["tasks"][0];
    assert_eq!(
        (&task["task"], &task["item"], &task["state"], &task["attempt"]),
        (&json!("t"), &Value::Null, &json!("succeeded"), &json!(1))
    );
    assert_eq!(
        (&task["output"], &task["error"]),
        (&json!({"greeting": "Hello, world!"}), &Value::Null)
    );
    assert_eq!(task["node"], node.node_id());
    let attempt = node.attempts(&id(&run), "t").await.remove(0);
    assert_eq!(
        (&attempt["attempt"], &attempt["state"], &attempt["node"]),
        (&json!(1), &json!("succeeded"), &task["node"])
    );
    assert!(attempt["memory_bytes"].as_u64().unwrap() > 0, "{attempt:#}");
    assert!(attempt["cpu_ms"].is_u64(), "{attempt:#}");
    time(&attempt["started_at"]);
    time(&attempt["finished_at"]);
}

/// What cannot be a submission.
#[tokio::test]
async fn bad_submissions() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let post = async |body: &'static str| {
        let request = node.request(reqwest::Method::POST, "/v1/groups/g/runs");
        node.send(request.header("content-type", "application/json").body(body))
            .await
    };
    for (body, pointer) in [
        (r#"{"params": []}"#, "/params"),
        (r#"{"params": "x"}"#, "/params"),
        (r#"{"task_params": {"t": 5}}"#, "/task_params/t"),
        (r#"{"logical_time": "yesterday"}"#, "/logical_time"),
        (r#"{"parms": {}}"#, "/parms"),
        (r#"{"priority": "high"}"#, "/priority"),
    ] {
        post(body).await.expect_problem(422, &[pointer]);
    }
    for body in ["{", "{\"params\": {\"a\": 1, \"a\": 2}}", "\u{1}", "{\"a\": 1e999}"] {
        let reply = post(body).await;
        assert!(matches!(reply.status, 400 | 422), "{body}: {reply:#?}");
    }
    post("[]").await.expect_problem(422, &[""]);
    node.post("/v1/groups/nope/runs", json!({}))
        .await
        .expect_problem(404, &[]);
    // None of these left a run; an empty body is a submission.
    assert_eq!(node.all("/v1/runs").await.len(), 0);
    post("").await.expect_status(202);
    let large = json!({"params": {"x": "y".repeat(5 << 20)}});
    assert_eq!(node.post("/v1/groups/g/runs", large).await.status, 413);
}
