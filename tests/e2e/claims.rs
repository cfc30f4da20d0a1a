//! Claims: which fields a report has; the maximum size of one answer, by which large task runs come in smaller batches, and
//! have no other disadvantage.

use std::collections::BTreeSet;

use heddle_tests::{Api, World, eventually, states, task};
use serde_json::{Value, json};

use crate::with;

/// What one answer carries of params and contexts, but for its first claim.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Claims as many as there may be.
async fn claims(api: &Api, queue: &str) -> Vec<Value> {
    let ask = json!({"worker": "w", "max": 1000, "lease": "10m", "wait": "20s"});
    let answer = api
        .post(&format!("/v1/queues/{queue}/claims"), ask)
        .await
        .expect_status(200);
    answer["items"].as_array().cloned().expect("items")
}

fn bytes(claim: &Value) -> usize {
    claim["params"].to_string().len() + claim["context"].to_string().len()
}

/// A report has the fields of its call, and no others; null is like a field that is missing.
#[tokio::test]
async fn reports_have_their_own_fields() {
    let (_world, node) = World::with_node().await;
    let id = "0199aa00-0000-7000-8000-000000000000";
    let other = "0199aa00-0000-7000-8000-000000000001";
    for (verb, fields, pointer) in [
        ("complete", json!({"lease": "1s"}), Some("/lease")),
        ("release", json!({"output": 1}), Some("/output")),
        ("heartbeat", json!({"fatal": true}), Some("/fatal")),
        (
            "heartbeat",
            json!({"log": [{"message": "a"}, {"message": 5}]}),
            Some("/log/1/message"),
        ),
        ("fail", json!({"error": 5}), Some("/error")),
        ("fail", json!({"id": other}), Some("/id")),
        ("complete", json!({"token": null}), Some("/token")),
        // The token is wrong.
        ("complete", json!({"output": null}), None),
        ("fail", json!({}), None),
        ("fail", json!({"error": null, "fatal": null, "retry_after": null}), None),
        (
            "heartbeat",
            json!({"lease": null, "log": null, "note": null, "id": id}),
            None,
        ),
    ] {
        let body = with(json!({"token": "x"}), fields);
        let reply = node.post(&format!("/v1/claims/{id}/{verb}"), body.clone()).await;
        match pointer {
            None => reply.expect_problem(409, &[]),
            Some(pointer) => reply.expect_problem(422, &[pointer]),
        };
        if body["id"] == other {
            continue;
        }
        let well = json!({"id": id, "token": "x"});
        let items = json!({"items": [well, with(json!({"id": id}), body)]});
        let reply = node.post(&format!("/v1/claims/{verb}"), items).await;
        match pointer {
            None => assert_eq!(reply.expect_status(200)["items"][1]["status"], 409),
            Some(pointer) => drop(reply.expect_problem(422, &[&format!("/items/1{pointer}")])),
        }
    }
    let nameless = json!({"items": [{"token": "x"}, 5]});
    node.post("/v1/claims/complete", nameless)
        .await
        .expect_problem(422, &["/items/0/id", "/items/1/id"]);
}

/// Claims until all runs are held, each once and as its first attempt; how many each answer had.
async fn drain(api: &Api, queue: &str, runs: &BTreeSet<String>) -> Vec<usize> {
    let (mut held, mut sizes) = (BTreeSet::new(), Vec::new());
    while held.len() < runs.len() {
        let claims = claims(api, queue).await;
        assert!(!claims.is_empty(), "{} of {} are held", held.len(), runs.len());
        let all: usize = claims.iter().map(bytes).sum();
        assert!(
            claims.len() == 1 || all <= BYTES_MAX,
            "{} claims of {all} bytes",
            claims.len()
        );
        for claim in &claims {
            assert_eq!(claim["attempt"], 1, "what was not told has not begun");
            let run = claim["run"].as_str().expect("a run").to_owned();
            assert!(runs.contains(&run), "{run}");
            assert!(held.insert(run.clone()), "{run} was given twice");
        }
        sizes.push(claims.len());
        let words: Vec<Value> = claims
            .iter()
            .map(|claim| json!({"id": claim["id"], "token": claim["token"], "output": 1}))
            .collect();
        let answer = api
            .post("/v1/claims/complete", json!({"items": words}))
            .await
            .expect_status(200);
        for one in answer["items"].as_array().expect("items") {
            assert_eq!(one["status"], 200, "{one}");
        }
    }
    sizes
}

async fn start(api: &Api, group: &str, params: Value, count: usize) -> BTreeSet<String> {
    let mut runs = BTreeSet::new();
    for _ in 0..count {
        runs.insert(api.start(group, json!({"params": params})).await);
    }
    runs
}

/// Each of these is a run's whole params: sixteen fill an answer, and the rest waits in the queue.
#[tokio::test]
async fn large_task_runs_come_in_smaller_batches() {
    let (_world, node) = World::with_node().await;
    node.put_group("large", json!({"tasks": {"t": {"queue": "q"}}})).await;
    let runs = start(&node, "large", json!({"text": "x".repeat(250 * 1024)}), 40).await;
    let sizes = drain(&node, "q", &runs).await;
    assert!(sizes.len() >= 3, "{sizes:?}");
    assert!(sizes[..sizes.len() - 1].iter().all(|&size| size > 10), "{sizes:?}");
    for run in &runs {
        assert_eq!(node.ended(run).await["state"], "succeeded");
    }
}

/// What a group adds to each of its runs is known only when the answer is written: task runs that do not fit return
/// unseen, at no cost to the queue's rate, to their retries or to their position. One that is larger than an answer
/// comes alone.
#[tokio::test]
async fn what_does_not_fit_was_never_claimed() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "huge",
        json!({"params": {"text": "x".repeat(3_900 * 1024)}, "tasks": {"t": {"queue": "q", "queue_timeout": "1h"}}}),
    )
    .await;
    // The bucket is empty after three: it holds no more than what was told.
    node.put("/v1/queues/q", json!({"rate": {"count": 3, "per": "1d"}}))
        .await;
    let runs = start(&node, "huge", json!({"more": "x".repeat(250 * 1024)}), 3).await;
    assert_eq!(drain(&node, "q", &runs).await, [1, 1, 1]);
    for run in &runs {
        let run = node.ended(run).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        assert_eq!(node.attempts(run["id"].as_str().expect("an id"), "t").await.len(), 1);
    }
}

/// Items of a map are no part of the queue's row either: two runs' items, of 3.6 MB each.
#[tokio::test]
async fn items_count_as_well() {
    const ITEMS: usize = 12;
    let (_world, node) = World::with_node().await;
    let items: Vec<String> = (0..ITEMS).map(|_| "x".repeat(300 * 1024)).collect();
    node.put_group("mapped", json!({"tasks": {"t": {"queue": "q", "for_each": items}}}))
        .await;
    let runs = start(&node, "mapped", json!({}), 2).await;
    eventually("items in the queue", async || {
        let queue = node.get("/v1/queues/q").await.body;
        (queue["depth"] == 2 * ITEMS).then_some(())
    })
    .await;
    let mut sizes = Vec::new();
    let mut seen = BTreeSet::new();
    while seen.len() < 2 * ITEMS {
        let claims = claims(&node, "q").await;
        let all: usize = claims.iter().map(bytes).sum();
        assert!(
            !claims.is_empty() && all <= BYTES_MAX,
            "{} claims of {all} bytes",
            claims.len()
        );
        for claim in &claims {
            assert_eq!(claim["attempt"], 1);
            assert!(
                seen.insert((claim["run"].to_string(), claim["item"].as_i64())),
                "twice: {}",
                claim["item"]
            );
            let path = format!("/v1/claims/{}/complete", claim["id"].as_str().expect("an id"));
            node.post(&path, json!({"token": claim["token"]}))
                .await
                .expect_status(200);
        }
        sizes.push(claims.len());
    }
    assert_eq!(sizes, [13, 11]);
    for run in &runs {
        assert_eq!(node.ended(run).await["state"], "succeeded");
    }
}

/// Items that cannot be read fail their own run. They keep no other task run of the queue from its worker.
#[tokio::test]
async fn items_that_cannot_be_read_hold_up_nobody() {
    let (world, node) = World::with_node().await;
    node.put_group(
        "mapped",
        json!({"tasks": {"t": {"queue": "q", "for_each": ["a", "b"]}}}),
    )
    .await;
    node.put_group("plain", json!({"tasks": {"t": {"queue": "q"}}})).await;
    let depth = async |depth: u64| {
        eventually("task runs in the queue", async || {
            (node.get("/v1/queues/q").await.body["depth"] == depth).then_some(())
        })
        .await;
    };
    let mapped = node.start("mapped", json!({})).await;
    depth(2).await;
    let sql = world.sql().await;
    sql.execute("UPDATE heddle.maps SET items = '[\"a'", &[])
        .await
        .expect("the items");
    let plain = node.start("plain", json!({})).await;
    depth(3).await;
    let given: Vec<String> = claims(&node, "q")
        .await
        .iter()
        .map(|claim| claim["run"].to_string())
        .collect();
    assert_eq!(given, [json!(plain).to_string()]);
    let failed = node.ended(&mapped).await;
    assert_eq!(failed["state"], "failed", "{failed:#}");
    let text = failed.to_string();
    assert!(
        text.contains("cannot be read") && text.contains("items of"),
        "{failed:#}"
    );
}

/// Workers that claim a task run and are not heard of any more lose it each time. After `max_lost` of these losses, one more
/// fails the task run with the kind `lost`, whatever retries it has left.
#[tokio::test]
async fn workers_that_vanish_fail_a_task_run_in_the_end() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 9, "interval": "10ms"});
    let spec = |max_lost: u32| {
        json!({"tasks": {
            "t": {"queue": "q", "max_lost": max_lost, "retry": retry},
            "after": {"script": "hello", "depends_on": ["t"]},
        }})
    };
    for (max_lost, said) in [
        (0_u32, "lost with its node or worker once; `max_lost` is 0"),
        (2, "lost with its node or worker 3 times; `max_lost` is 2"),
    ] {
        node.put_group("g", spec(max_lost)).await;
        let run = node.start("g", json!({})).await;
        let mut last = Value::Null;
        for attempt in 1..=max_lost + 1 {
            let ask = json!({"worker": format!("w{attempt}"), "max": 1, "lease": "100ms", "wait": "20s"});
            let answer = node.post("/v1/queues/q/claims", ask).await.expect_status(200);
            last = answer["items"][0].clone();
            assert_eq!((&last["run"], &last["attempt"]), (&json!(run), &json!(attempt)));
        }
        let ended = node.ended(&run).await;
        assert_eq!(
            (&ended["state"], states(&ended).as_str()),
            (&json!("failed"), "after=upstream_failed t=failed"),
            "{ended:#}"
        );
        let error = &task(&ended, "t")["error"];
        let lost = json!("its node or worker was lost");
        assert_eq!((&error["kind"], &error["message"]), (&json!("lost"), &lost));
        assert!(ended["error"].to_string().contains(said), "{ended:#}");
        let attempts = node.attempts(&run, "t").await;
        let states: Vec<&Value> = attempts.iter().map(|attempt| &attempt["state"]).collect();
        assert_eq!(states, vec!["lost"; max_lost as usize + 1], "{attempts:#?}");
        // The last of them comes back too late.
        let path = format!("/v1/claims/{}/complete", last["id"].as_str().unwrap());
        node.post(&path, json!({"token": last["token"], "output": 1}))
            .await
            .expect_problem(409, &[]);
        assert_eq!(node.run_now(&run).await["state"], "failed");
    }
}
