//! Submissions that repeat another: keys and `dedupe`.

use heddle_tests::{World, eventually, id};
use serde_json::{Value, json};

use crate::{one, with};

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
    // Nor does the form of a number.
    let text = r#"{"params": {"other": [1.0, {"a": 2e0}], "n": 3.0}, "dedupe": "params_kept"}"#;
    let request = node.request(reqwest::Method::POST, "/v1/groups/g/runs").body(text);
    let problem = node.send(request).await.expect_problem(409, &[]);
    assert_eq!(problem["existing"], *kept);
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
