//! Submissions: keys, dedupe, labels, batches, SQL, lists.

use std::collections::BTreeSet;

use heddle_tests::{World, eventually, id, time};
use serde_json::{Value, json};

use crate::{one, sleeps, with};

/// A key is unique per group for as long as the run is kept; a repeat gets 409 with the existing run's id.
#[tokio::test]
async fn keys() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    node.put_group("h", one(json!({"script": "hello"}))).await;
    let run = node.start("g", json!({"key": "order-1"})).await;
    for _ in 0..2 {
        let problem = node
            .post("/v1/groups/g/runs", json!({"key": "order-1"}))
            .await
            .expect_problem(409, &[]);
        assert_eq!(problem["existing"], *run);
        // While it is active, and after.
        node.ended(&run).await;
    }
    let other = node.start("h", json!({"key": "order-1"})).await;
    assert_ne!(other, run);
    let found = node.all("/v1/runs?group=g&key=order-1").await;
    assert_eq!((found.len(), &found[0]["key"]), (1, &json!("order-1")));
    for bad in [json!(""), json!("x".repeat(10_000)), json!(5)] {
        node.post("/v1/groups/g/runs", json!({"key": bad}))
            .await
            .expect_problem(422, &["/key"]);
    }
}

/// The same key from many clients and two nodes at once makes one run.
#[tokio::test]
async fn one_key_from_many_clients() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    nodes[0].put_group("g", one(json!({"script": "hello"}))).await;
    for round in 0..5 {
        let body = json!({"key": format!("k{round}")});
        let replies = (0..20).map(|client| nodes[client % 2].post("/v1/groups/g/runs", body.clone()));
        let replies = futures::future::join_all(replies).await;
        let accepted: Vec<String> = replies
            .iter()
            .filter(|reply| reply.status == 202)
            .map(|reply| id(&reply.body))
            .collect();
        assert_eq!(accepted.len(), 1, "{replies:#?}");
        for reply in replies.iter().filter(|reply| reply.status != 202) {
            assert_eq!(
                (reply.status, &reply.body["existing"]),
                (409, &json!(accepted[0])),
                "{reply:#?}"
            );
        }
    }
    assert_eq!(nodes[1].all("/v1/runs?group=g").await.len(), 5);
}

/// `dedupe`: same group and params while unfinished, or while kept.
#[tokio::test]
async fn dedupe() {
    let (_world, node) = World::with_node().await;
    // Unfinished until it is cancelled.
    node.put_group("g", one(json!({"queue": "nobody"}))).await;
    let end = async |run: &str| {
        let path = format!("/v1/runs/{run}/cancel");
        node.post(&path, json!({})).await.expect_status(200);
    };
    let submit = async |dedupe: &str, n: u32| {
        let body = json!({"dedupe": dedupe, "params": {"n": n, "other": [1, {"a": 2}]}});
        node.post("/v1/groups/g/runs", body).await
    };
    let run = id(&submit("params", 1).await.expect_status(202));
    let problem = submit("params", 1).await.expect_problem(409, &[]);
    assert_eq!(problem["existing"], *run);
    submit("params", 2).await.expect_status(202);
    // Without `dedupe` nobody asks, but whoever asks finds it while it is unfinished.
    let plain = node
        .start("g", json!({"params": {"n": 1, "other": [1, {"a": 2}]}}))
        .await;
    end(&run).await;
    let problem = submit("params", 1).await.expect_problem(409, &[]);
    assert_eq!(problem["existing"], *plain);
    end(&plain).await;
    let again = id(&submit("params", 1).await.expect_status(202));
    end(&again).await;
    let kept = id(&submit("params_kept", 3).await.expect_status(202));
    end(&kept).await;
    let problem = submit("params_kept", 3).await.expect_problem(409, &[]);
    assert_eq!(problem["existing"], *kept);
    // The order of keys makes no other params.
    let text = r#"{"params": {"other": [1, {"a": 2}], "n": 3}, "dedupe": "params_kept"}"#;
    let request = node.request(reqwest::Method::POST, "/v1/groups/g/runs").body(text);
    node.send(request).await.expect_problem(409, &[]);
    // Of two in one batch the first has the params, and the key of the other is free.
    let twice = json!({"runs": [
        {"dedupe": "params", "params": {"n": 5}, "key": "first"},
        {"dedupe": "params", "params": {"n": 5}, "key": "second"},
        {"key": "second"},
    ]});
    let reply = node.post("/v1/groups/g/runs/batch", twice).await.expect_status(202);
    assert_eq!(reply["items"][1]["existing"], reply["items"][0]["id"], "{reply:#}");
    node.post("/v1/groups/g/runs", json!({"key": "first"}))
        .await
        .expect_problem(409, &[]);
    let second = node.post("/v1/groups/g/runs", json!({"key": "second"})).await;
    assert!(
        second.status == 202 || second.body["existing"] == reply["items"][2]["id"],
        "{second:#?}"
    );
    // What was refused for its key holds no params.
    node.post("/v1/groups/g/runs", json!({"key": "taken"}))
        .await
        .expect_status(202);
    let refused = json!({"key": "taken", "dedupe": "params_kept", "params": {"n": 4}});
    node.post("/v1/groups/g/runs", refused).await.expect_problem(409, &[]);
    node.post(
        "/v1/groups/g/runs",
        json!({"dedupe": "params_kept", "params": {"n": 4}}),
    )
    .await
    .expect_status(202);
    node.post("/v1/groups/g/runs", json!({"dedupe": "nope"}))
        .await
        .expect_problem(422, &["/dedupe"]);
}

/// An unfinished run is in the way of `dedupe` however it was made, if its group, its params and its task params are the same.
#[tokio::test]
async fn dedupe_sees_every_unfinished_run() {
    let (world, node) = World::with_node().await;
    node.put_group("g", with(one(json!({"queue": "nobody"})), json!({"history": true})))
        .await;
    node.put_group("other", one(json!({"queue": "nobody"}))).await;
    let refused_for = async |body: Value, holder: &str| {
        for dedupe in ["params", "params_kept"] {
            let body = with(body.clone(), json!({"dedupe": dedupe}));
            let problem = node.post("/v1/groups/g/runs", body).await.expect_problem(409, &[]);
            assert_eq!(problem["existing"], *holder, "{dedupe}");
        }
    };
    // In the texts that JSON and SQL write, with whatever is in them.
    let params = json!({"longer": 1.5, "b": [1, {"z": "\\u0000", "a": null}], "é": "\u{1F600}\"\\"});
    let sql = world.sql().await;
    let submitted: String = sql
        .query_one(
            "SELECT heddle.submit('g', $1::text::jsonb)::text",
            &[&params.to_string()],
        )
        .await
        .expect("a run")
        .get(0);
    refused_for(json!({"params": params}), &submitted).await;
    let made = json!({"b": 1, "a": [1.5, "\u{7f}"]});
    let plain = node.start("g", json!({"params": made})).await;
    refused_for(json!({"params": made}), &plain).await;
    let tasks = json!({"params": {"n": 1}, "task_params": {"t": {"m": 2}}});
    let plain = node.start("g", tasks.clone()).await;
    refused_for(tasks, &plain).await;
    let backfilled = json!({"from": "2020-01-01", "to": "2020-01-01", "step": "1d", "params": {"of": "backfill"}});
    node.post("/v1/groups/g/backfills", backfilled).await.expect_status(202);
    let backfilled = eventually("run of the backfill", async || {
        let runs = heddle_tests::runs(&node, "g").await;
        runs.into_iter().find(|run| run["trigger"] == "backfill")
    })
    .await;
    refused_for(json!({"params": {"of": "backfill"}}), &id(&backfilled)).await;
    // Others, and those that have ended, are in the way of no `params`.
    for (group, body) in [
        ("g", json!({"params": {"n": 1}})),
        ("g", json!({"params": {"n": 1}, "task_params": {"t": {"m": 3}}})),
        ("other", json!({"params": made})),
    ] {
        node.post(
            &format!("/v1/groups/{group}/runs"),
            with(body, json!({"dedupe": "params"})),
        )
        .await
        .expect_status(202);
    }
    node.post(&format!("/v1/runs/{submitted}/cancel"), json!({}))
        .await
        .expect_status(200);
    // An ended run is in the way of `params_kept` only.
    let kept = json!({"params": params, "dedupe": "params_kept"});
    let problem = node.post("/v1/groups/g/runs", kept).await.expect_problem(409, &[]);
    assert_eq!(problem["existing"], *submitted);
    node.post("/v1/groups/g/runs", json!({"params": params, "dedupe": "params"}))
        .await
        .expect_status(202);
    // Within a batch the order counts; what was refused leaves its key.
    let batch = json!({"runs": [
        {"params": {"n": 7}},
        {"params": {"n": 7}, "dedupe": "params", "key": "k"},
        {"params": {"n": 8}, "dedupe": "params"},
    ]});
    let reply = node.post("/v1/groups/g/runs/batch", batch).await.expect_status(202);
    assert_eq!(reply["items"][1]["existing"], reply["items"][0]["id"], "{reply:#}");
    assert!(reply["items"][2]["id"].is_string(), "{reply:#}");
    node.post("/v1/groups/g/runs", json!({"params": {"n": 9}, "key": "k"}))
        .await
        .expect_status(202);
}

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
    heddle_tests::eventually("end of 10,003 runs", async || {
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

/// Whoever wants what an open transaction holds is told to come again, alone or among others, who get what they want.
#[tokio::test]
async fn a_key_that_is_held() {
    let (world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "echo"}))).await;
    let mut sql = world.sql().await;
    let transaction = sql.transaction().await.unwrap();
    let held = "SELECT heddle.submit('g', '{}', 'held-' || n) FROM generate_series(1, 9) n";
    transaction.query(held, &[]).await.unwrap();
    let alone = node.post("/v1/groups/g/runs", json!({"key": "held-1"})).await;
    assert_eq!(alone.headers["retry-after"], "1");
    alone.expect_problem(503, &[]);
    let keys = (1..=9).map(|n| json!({"key": format!("held-{n}")}));
    let free = [json!({}), json!({"key": "free"})];
    let runs: Vec<Value> = free.into_iter().chain(keys).chain([json!({})]).collect();
    let reply = node
        .post("/v1/groups/g/runs/batch", json!({"runs": runs}))
        .await
        .expect_status(202);
    for (index, item) in reply["items"].as_array().unwrap().iter().enumerate() {
        match index {
            0 | 1 | 11 => assert!(item["id"].is_string(), "{reply:#}"),
            _ => assert_eq!(item["status"], 503, "{reply:#}"),
        }
    }
    assert!(
        !node.log().contains("a request failed"),
        "nobody's fault: {}",
        node.log()
    );
    transaction.commit().await.unwrap();
    node.post("/v1/groups/g/runs", json!({"key": "held-1"}))
        .await
        .expect_problem(409, &[]);
}

/// What brings an ended run back is refused while another unfinished run has its params; and a run that came back has them, as
/// if it had been submitted then.
#[tokio::test]
async fn restarts_are_deduped() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"queue": "nobody"}))).await;
    let submit = async |dedupe: &str| {
        let body = json!({"dedupe": dedupe, "params": {"n": 1}});
        node.post("/v1/groups/g/runs", body).await
    };
    let control = async |run: &str, what: &str| node.post(&format!("/v1/runs/{run}/{what}"), json!({})).await;
    for dedupe in ["params", "params_kept"] {
        let first = id(&submit("params").await.expect_status(202));
        control(&first, "cancel").await.expect_status(200);
        let second = id(&submit("params").await.expect_status(202));
        for what in ["restart", "tasks/t/clear"] {
            let problem = control(&first, what).await.expect_problem(409, &[]);
            assert_eq!(problem["existing"], *second, "{what}");
        }
        node.run_becomes(&first, "cancelled").await;
        control(&second, "cancel").await.expect_status(200);
        control(&first, "restart").await.expect_status(200);
        let problem = submit(dedupe).await.expect_problem(409, &[]);
        assert_eq!(problem["existing"], *first);
        let problem = control(&second, "restart").await.expect_problem(409, &[]);
        assert_eq!(problem["existing"], *first);
        // In bulk it is one of those that could not be.
        let bulk = json!({"filter": {"group": "g", "state": "cancelled"}, "action": "restart"});
        node.post("/v1/runs/bulk", bulk).await.expect_status(200);
        node.run_becomes(&second, "cancelled").await;
        control(&first, "cancel").await.expect_status(200);
    }
    // Runs without `dedupe` come back whatever others have.
    let free = node.start("g", json!({"params": {"n": 1}})).await;
    control(&free, "cancel").await.expect_status(200);
    let last = id(&submit("params").await.expect_status(202));
    control(&free, "restart").await.expect_status(200);
    control(&last, "cancel").await.expect_status(200);
    control(&last, "restart").await.expect_status(200);
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
    let told = &heddle_tests::task(&added, "t")["output"]["context"];
    assert_eq!(told["data_interval"], *interval);
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
