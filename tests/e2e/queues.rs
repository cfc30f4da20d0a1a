//! Queues: claims, leases, outcomes, controls; workers are this test over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use heddle_tests::{Api, World, eventually, item, task};
use serde_json::{Value, json};

use crate::notifications::metric;

/// Claims up to `max`, waiting for the first.
async fn claims(api: &Api, queue: &str, max: usize, more: Value) -> Vec<Value> {
    let mut body = json!({"worker": "w1", "max": max, "lease": "30s", "wait": "20s"});
    for (key, value) in more.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    let answer = api
        .post(&format!("/v1/queues/{queue}/claims"), body)
        .await
        .expect_status(200);
    answer["items"].as_array().cloned().expect("items")
}

/// The one claim that there has to be.
async fn claim(api: &Api, queue: &str) -> Value {
    let mut claims = claims(api, queue, 1, json!({})).await;
    assert_eq!(claims.len(), 1);
    claims.remove(0)
}

async fn say(api: &Api, claim: &Value, verb: &str, more: Value) -> heddle_tests::Reply {
    let mut body = json!({"token": claim["token"]});
    for (key, value) in more.as_object().into_iter().flatten() {
        body[key] = value.clone();
    }
    api.post(
        &format!("/v1/claims/{}/{verb}", claim["id"].as_str().expect("an id")),
        body,
    )
    .await
}

/// A claim tells all that there is to know; what completes it is the task's output, which dependants see.
#[tokio::test]
async fn a_worker_does_a_task() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "orders",
        json!({"params": {"shop": "north"}, "tasks": {
            "first": {"script": "sum", "params": {"numbers": [3, 4]}},
            "approve": {"queue": "approvals", "depends_on": ["first"],
                        "params": {"total": "{{ upstream.first.sum }}", "plain": 1}, "timeout": "1h"},
            "last": {"script": "sum", "params": {"upstream": ["approve"]}, "depends_on": ["approve"]},
        }}),
    )
    .await;
    let run = node.start("orders", json!({"params": {"plain": 2}})).await;
    let held = claim(&node, "approvals").await;
    for field in ["id", "token", "lease_expires_at"] {
        assert!(held[field].is_string(), "{held:#}");
    }
    assert_eq!(
        (
            &held["run"],
            &held["group"],
            &held["task"],
            &held["item"],
            &held["attempt"]
        ),
        (
            &json!(run),
            &json!("orders"),
            &json!("approve"),
            &Value::Null,
            &json!(1)
        )
    );
    assert_eq!(held["params"], json!({"shop": "north", "total": 7.0, "plain": 2}));
    let context = &held["context"];
    assert_eq!((&context["run"], &context["task"]), (&json!(run), &json!("approve")));
    assert_eq!(context["idempotency_key"], format!("{run}/approve"));
    assert!(context["deadline"].is_string(), "{context:#}");
    node.task_becomes(&run, "approve", "running").await;
    let beat = say(&node, &held, "heartbeat", json!({"lease": "5m"}))
        .await
        .expect_status(200);
    assert!(
        beat["lease_expires_at"].as_str() > held["lease_expires_at"].as_str(),
        "{beat:#}"
    );
    say(&node, &held, "complete", json!({"output": {"sum": 5}}))
        .await
        .expect_status(200);
    let run = node.ended(&run).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(task(&run, "approve")["output"], json!({"sum": 5}));
    let again = say(&node, &held, "complete", json!({"output": 6})).await;
    again.expect_said(409, "has already ended");
}

/// How long task runs waited for a worker is measured by the database's clock, from when they were ready.
#[tokio::test]
async fn waits_for_workers_are_measured() {
    let (world, node) = World::with_node().await;
    node.put_group("g", json!({"tasks": {"a": {"queue": "q"}, "b": {"queue": "q"}}}))
        .await;
    node.start("g", json!({})).await;
    let sql = world.sql().await;
    let an_hour_ago = "UPDATE heddle.queue_ready SET ready_at = ready_at - interval '1 hour' WHERE task = 0";
    assert_eq!(sql.execute(an_hour_ago, &[]).await.unwrap(), 1);
    assert_eq!(claims(&node, "q", 2, json!({})).await.len(), 2);
    let text = node.get("/metrics").await.body;
    let text = text.as_str().expect("text");
    let waited = |part: &str| metric(text, &format!("heddle_queue_wait_seconds{part}"));
    let found = ["_bucket{le=\"1800\"}", "_bucket{le=\"7200\"}", "_count"].map(waited);
    assert_eq!(found, [Some(1), Some(2), Some(2)]);
}

/// Nothing to claim: no items after `wait`, and a poll that hangs is woken at once, also by another node.
#[tokio::test]
async fn polls_hang_until_there_is_something() {
    let world = World::new().await;
    let (here, there) = (world.node().await, world.node().await);
    here.put_group("g", json!({"tasks": {"t": {"queue": "q"}}})).await;
    let none = claims(&here, "q", 5, json!({"wait": "50ms"})).await;
    assert!(none.is_empty());
    for api in [&*here, &*there] {
        let poll = tokio::spawn({
            let there = (*there).clone();
            async move { claims(&there, "q", 5, json!({"worker": "far", "wait": "60s"})).await }
        });
        eventually("listening worker", async || {
            let queue = here.get("/v1/queues/q").await.body;
            queue["connected"]
                .as_array()?
                .iter()
                .find(|worker| worker["worker"] == "far")?;
            Some(())
        })
        .await;
        let run = api.start("g", json!({})).await;
        let claims = poll.await.expect("a poll");
        assert_eq!(claims.len(), 1);
        assert_eq!(claims[0]["run"], json!(run));
        say(&here, &claims[0], "complete", json!({})).await.expect_status(200);
        assert_eq!(here.ended(&run).await["state"], "succeeded");
    }
}

/// Once its lease has run out a token is old: the attempt is lost and run again, without using up a retry.
#[tokio::test]
async fn a_zombie_is_refused() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", json!({"tasks": {"t": {"queue": "q"}}})).await;
    let run = node.start("g", json!({})).await;
    let zombie = claims(&node, "q", 1, json!({"lease": "300ms"})).await.remove(0);
    let heir = claim(&node, "q").await;
    assert_eq!((&heir["run"], &heir["attempt"]), (&json!(run), &json!(2)));
    for verb in ["heartbeat", "complete", "fail", "release"] {
        say(&node, &zombie, verb, json!({})).await.expect_said(409, "lost");
    }
    let mut forged = heir.clone();
    forged["id"] = zombie["id"].clone();
    say(&node, &forged, "complete", json!({})).await.expect_status(409);
    forged["id"] = heir["id"].clone();
    forged["token"] = json!("made-up");
    say(&node, &forged, "complete", json!({})).await.expect_status(409);
    say(&node, &heir, "complete", json!({"output": "heir"}))
        .await
        .expect_status(200);
    let ended = node.ended(&run).await;
    assert_eq!(task(&ended, "t")["output"], "heir");
    let states: Vec<String> = node
        .attempts(&run, "t")
        .await
        .iter()
        .map(|attempt| attempt["state"].to_string())
        .collect();
    assert_eq!(states, ["\"lost\"", "\"succeeded\""]);
}

/// Of many that end one claim at once, on two nodes, one is accepted; a run of one task and one of two alike.
#[tokio::test]
async fn a_claim_ends_once() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    nodes[0]
        .put_group("alone", json!({"tasks": {"t": {"queue": "q"}}}))
        .await;
    let two = json!({"tasks": {"t": {"queue": "q"}, "u": {"script": "sum", "depends_on": ["t"],
                                                          "params": {"numbers": [1]}}}});
    nodes[0].put_group("two", two).await;
    for group in ["alone", "two"] {
        let run = nodes[0].start(group, json!({})).await;
        let held = claim(&nodes[0], "q").await;
        let ends = (0..12).map(|index| {
            let (api, held) = (nodes[index % 2].api().clone(), held.clone());
            async move {
                match index % 3 {
                    0 => say(&api, &held, "complete", json!({"output": index})).await,
                    1 => say(&api, &held, "fail", json!({"error": "no", "fatal": true})).await,
                    _ => {
                        let items = json!([{"id": held["id"], "token": held["token"], "output": index},
                                           {"id": held["id"], "token": held["token"], "output": -1}]);
                        api.post("/v1/claims/complete", json!({"items": items})).await
                    }
                }
            }
        });
        let mut accepted = 0;
        for reply in futures::future::join_all(ends).await {
            match reply.body["items"].as_array() {
                Some(items) => accepted += items.iter().filter(|item| item["status"] == 200).count(),
                None => accepted += usize::from(reply.status == 200),
            }
            assert!(matches!(reply.status, 200 | 409), "{:#}", reply.body);
        }
        assert_eq!(accepted, 1, "{group}");
        nodes[1].ended(&run).await;
        assert_eq!(nodes[1].attempts(&run, "t").await.len(), 1);
    }
}

/// A failure follows the task's retry policy; a fatal one does not, and a release uses up nothing.
#[tokio::test]
async fn failures_and_releases() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "1ms"});
    node.put_group("g", json!({"tasks": {"t": {"queue": "q", "retry": retry}}}))
        .await;
    let run = node.start("g", json!({})).await;
    say(&node, &claim(&node, "q").await, "release", json!({}))
        .await
        .expect_status(200);
    say(&node, &claim(&node, "q").await, "fail", json!({"error": "once"}))
        .await
        .expect_status(200);
    say(&node, &claim(&node, "q").await, "release", json!({}))
        .await
        .expect_status(200);
    let last = claim(&node, "q").await;
    assert_eq!(last["attempt"], 4);
    say(&node, &last, "fail", json!({"error": {"message": "twice"}}))
        .await
        .expect_status(200);
    let ended = node.ended(&run).await;
    assert_eq!(
        task(&ended, "t")["error"],
        json!({"kind": "failed", "message": "twice", "trace": null})
    );
    let run = node.start("g", json!({})).await;
    say(
        &node,
        &claim(&node, "q").await,
        "fail",
        json!({"error": "never", "fatal": true}),
    )
    .await
    .expect_status(200);
    let ended = node.ended(&run).await;
    assert_eq!(
        task(&ended, "t")["error"],
        json!({"kind": "fatal", "message": "never", "trace": null})
    );
    assert_eq!(node.attempts(&run, "t").await.len(), 1);
}

/// A cancelled run's worker hears of it by its next heartbeat. A paused one's goes on: only what is new waits.
#[tokio::test]
async fn controls_reach_workers() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", json!({"tasks": {"t": {"queue": "q"}}})).await;
    let run = node.start("g", json!({})).await;
    let held = claim(&node, "q").await;
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    say(&node, &held, "heartbeat", json!({}))
        .await
        .expect_said(409, "cancelled");
    say(&node, &held, "complete", json!({})).await.expect_status(409);
    assert_eq!(node.ended(&run).await["state"], "cancelled");

    let run = node.start("g", json!({})).await;
    let held = claim(&node, "q").await;
    node.post(&format!("/v1/runs/{run}/pause"), json!({}))
        .await
        .expect_status(200);
    for report in [json!({}), json!({"lease": "5m", "progress": 0.5})] {
        let beat = say(&node, &held, "heartbeat", report).await.expect_status(200);
        assert!(beat["lease_expires_at"].is_string(), "{beat:#}");
    }
    assert_eq!(task(&node.run_now(&run).await, "t")["state"], "running");
    say(&node, &held, "complete", json!({"output": 1}))
        .await
        .expect_status(200);
    assert_eq!(node.ended(&run).await["state"], "succeeded");

    // What is lost or given back while the run is paused waits for it to go on.
    let run = node.start("g", json!({})).await;
    for (attempt, lease) in [(1, "300ms"), (2, "5m")] {
        let held = claims(&node, "q", 1, json!({"lease": lease})).await.remove(0);
        assert_eq!(held["attempt"], attempt);
        node.post(&format!("/v1/runs/{run}/pause"), json!({}))
            .await
            .expect_status(200);
        if attempt == 2 {
            say(&node, &held, "release", json!({})).await.expect_status(200);
        }
        node.task_becomes(&run, "t", "paused").await;
        say(&node, &held, "heartbeat", json!({})).await.expect_status(409);
        assert!(claims(&node, "q", 1, json!({"wait": "0s"})).await.is_empty());
        node.post(&format!("/v1/runs/{run}/resume"), json!({}))
            .await
            .expect_status(200);
    }
    let ends: Vec<Value> = node.attempts(&run, "t").await;
    let ends: Vec<&Value> = ends.iter().map(|attempt| &attempt["state"]).collect();
    assert_eq!(ends, ["lost", "cancelled"]);
    say(&node, &claim(&node, "q").await, "complete", json!({}))
        .await
        .expect_status(200);
    assert_eq!(node.ended(&run).await["state"], "succeeded");

    // Ready, not claimed: a pause takes it out of the queue.
    let run = node.start("g", json!({})).await;
    node.post(&format!("/v1/runs/{run}/pause"), json!({}))
        .await
        .expect_status(200);
    assert!(claims(&node, "q", 1, json!({"wait": "0s"})).await.is_empty());
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
}

/// `timeout` counts from the claim, `queue_timeout` until it; both are retried as the policy says.
#[tokio::test]
async fn timeouts() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "1ms"});
    node.put_group(
        "slow",
        json!({"tasks": {"t": {"queue": "q", "timeout": "300ms", "retry": retry}}}),
    )
    .await;
    let run = node.start("slow", json!({})).await;
    let held = claim(&node, "q").await;
    assert!(held["context"]["deadline"] == held["lease_expires_at"], "{held:#}");
    let next = claim(&node, "q").await;
    assert_eq!(next["attempt"], 2);
    say(&node, &held, "complete", json!({}))
        .await
        .expect_said(409, "timed out");
    let ended = node.ended(&run).await;
    assert_eq!(task(&ended, "t")["error"]["kind"], "timeout");
    node.put_group(
        "ignored",
        json!({"tasks": {"t": {"queue": "nobody", "queue_timeout": "200ms"}}}),
    )
    .await;
    let ended = node.run("ignored", json!({})).await;
    assert_eq!(task(&ended, "t")["error"]["kind"], "timeout", "{ended:#}");
    assert_eq!(
        node.attempts(ended["id"].as_str().expect("an id"), "t").await[0]["state"],
        "timed_out"
    );
}

/// Items of a mapped task on a queue, with their context; `shards: workers` makes one for each that is connected.
#[tokio::test]
async fn mapped_tasks() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "map",
        json!({"tasks": {"t": {"queue": "q", "for_each": ["a", "b", "c"], "params": {"of": "{{ item }}"}},
                         "w": {"queue": "shards", "shards": "workers", "depends_on": ["t"]}}}),
    )
    .await;
    for worker in ["x", "y"] {
        assert!(
            claims(&node, "shards", 1, json!({"worker": worker, "wait": "0s"}))
                .await
                .is_empty()
        );
    }
    let run = node.start("map", json!({})).await;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        for held in claims(&node, "q", 10, json!({})).await {
            assert_eq!(held["context"]["item"]["count"], 3);
            assert_eq!(held["context"]["item"]["item"], held["params"]["of"]);
            seen.push(held["item"].as_u64().expect("an index"));
            say(&node, &held, "complete", json!({"output": held["params"]["of"]}))
                .await
                .expect_status(200);
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2]);
    let mut shards = Vec::new();
    while shards.len() < 2 {
        shards.extend(claims(&node, "shards", 10, json!({"worker": "x"})).await);
    }
    assert_eq!(shards.len(), 2);
    let answers = node
        .post(
            "/v1/claims/complete",
            json!({"items": [
                {"id": shards[0]["id"], "token": shards[0]["token"], "output": 1},
                {"id": shards[1]["id"], "token": shards[1]["token"], "output": 2},
                {"id": shards[1]["id"], "token": "wrong", "output": 3},
            ]}),
        )
        .await
        .expect_status(200);
    let statuses: Vec<u64> = answers["items"]
        .as_array()
        .expect("items")
        .iter()
        .filter_map(|one| one["status"].as_u64())
        .collect();
    assert_eq!(statuses, [200, 200, 409]);
    let ended = node.ended(&run).await;
    assert_eq!(ended["state"], "succeeded", "{ended:#}");
    assert_eq!(task(&ended, "t")["output"], json!(["a", "b", "c"]));
    assert!(item(&ended, "w", Some(1))["state"] == "succeeded", "{ended:#}");
}

/// `when` that is false skips without any worker; tags bind to workers that carry them.
#[tokio::test]
async fn conditions_and_tags() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {"never": {"queue": "q", "when": "params.go"}, "t": {"queue": "q", "tags": ["gpu", "eu"]}}}),
    )
    .await;
    let run = node.start("g", json!({"params": {"go": false}})).await;
    node.task_becomes(&run, "never", "skipped").await;
    for tags in [json!([]), json!(["gpu"])] {
        assert!(
            claims(&node, "q", 9, json!({"tags": tags, "wait": "0s"}))
                .await
                .is_empty()
        );
    }
    let held = claims(&node, "q", 9, json!({"tags": ["eu", "x", "gpu"]})).await;
    assert_eq!(held.len(), 1);
    say(&node, &held[0], "complete", json!({})).await.expect_status(200);
    assert_eq!(node.ended(&run).await["state"], "succeeded");
}

/// What operators see and do: depth, oldest, workers; pause, resume; a rate limit.
#[tokio::test]
async fn operators() {
    let world = World::new().await;
    let (node, other) = (world.node().await, world.node().await);
    node.put_group("g", json!({"tasks": {"t": {"queue": "q"}}})).await;
    for _ in 0..3 {
        node.start("g", json!({})).await;
    }
    let queue = node.get("/v1/queues/q").await.expect_status(200);
    assert_eq!(
        (&queue["depth"], &queue["claimed"], &queue["paused"]),
        (&json!(3), &json!(0), &json!(false))
    );
    assert!(queue["oldest"].is_string());
    node.post("/v1/queues/q/pause", json!({})).await.expect_status(200);
    assert!(claims(&other, "q", 9, json!({"wait": "0s"})).await.is_empty());
    node.post("/v1/queues/q/resume", json!({})).await.expect_status(200);
    let rate = json!({"rate": {"count": 1, "per": "1h"}});
    assert_eq!(
        node.put("/v1/queues/q", rate.clone()).await.expect_status(200)["rate"],
        rate["rate"]
    );
    assert_eq!(claims(&other, "q", 9, json!({})).await.len(), 1);
    assert!(claims(&node, "q", 9, json!({"wait": "100ms"})).await.is_empty());
    let poll = tokio::spawn({
        let other = (*other).clone();
        async move { claims(&other, "q", 9, json!({"wait": "60s"})).await }
    });
    node.put("/v1/queues/q", json!({"rate": null})).await.expect_status(200);
    assert_eq!(poll.await.expect("a poll").len(), 2);
    let listed = node.all("/v1/queues").await;
    let queue = listed.iter().find(|queue| queue["name"] == "q").expect("the queue");
    assert_eq!(
        (&queue["depth"], &queue["claimed"], &queue["workers"]),
        (&json!(0), &json!(3), &json!(1))
    );
    node.get("/v1/queues/unknown").await.expect_status(404);
    node.put("/v1/queues/q", json!({"rate": {"count": 0, "per": "1s"}}))
        .await
        .expect_problem(422, &["/rate/count"]);
    for (wrong, pointer) in [
        (json!({"worker": ""}), "/worker"),
        (json!({"worker": "w", "max": 0}), "/max"),
        (json!({"worker": "w", "max": 1001}), "/max"),
        (json!({"worker": "w", "lease": "1ms"}), "/lease"),
    ] {
        node.post("/v1/queues/q/claims", wrong)
            .await
            .expect_problem(422, &[pointer]);
    }
}

/// Many workers on two nodes: every task run is done once.
#[tokio::test]
async fn many_workers_do_everything_once() {
    const RUNS: usize = 300;
    let world = World::new().await;
    let nodes = [world.node().await, world.node().await];
    nodes[0].put_group("g", json!({"tasks": {"t": {"queue": "q"}}})).await;
    let left = Arc::new(AtomicUsize::new(RUNS));
    let workers: Vec<_> = (0..8)
        .map(|number| {
            let (api, left) = ((*nodes[number % 2]).clone(), left.clone());
            tokio::spawn(async move {
                let mut done = Vec::new();
                while left.load(Ordering::Relaxed) > 0 {
                    let more = json!({"worker": format!("w{number}"), "wait": "1s"});
                    let held = claims(&api, "q", 7, more).await;
                    for held in held {
                        say(&api, &held, "complete", json!({"output": number}))
                            .await
                            .expect_status(200);
                        left.fetch_sub(1, Ordering::Relaxed);
                        done.push(held["run"].as_str().expect("a run").to_owned());
                    }
                }
                done
            })
        })
        .collect();
    let mut runs: Vec<String> = Vec::new();
    for start in 0..RUNS {
        runs.push(nodes[start % 2].start("g", json!({})).await);
    }
    let mut done = Vec::new();
    for worker in workers {
        done.extend(worker.await.expect("a worker"));
    }
    runs.sort();
    done.sort();
    assert_eq!(done, runs);
    for run in &runs {
        assert_eq!(nodes[0].ended(run).await["state"], "succeeded");
    }
}

/// A poll whose client vanishes keeps nothing; polls of a node that stops end.
#[tokio::test]
async fn clients_vanish_and_nodes_stop() {
    let world = World::new().await;
    let (node, mut leaving) = (world.node().await, world.node().await);
    node.put_group("g", json!({"tasks": {"t": {"queue": "q"}}})).await;
    for _ in 0..20 {
        let body = json!({"worker": "gone", "max": 1, "lease": "1h", "wait": "60s"});
        let poll = node
            .request(reqwest::Method::POST, "/v1/queues/q/claims")
            .json(&body)
            .send();
        assert!(tokio::time::timeout(Duration::from_millis(10), poll).await.is_err());
    }
    let run = node.start("g", json!({})).await;
    let held = claim(&node, "q").await;
    assert_eq!(held["run"], json!(run));
    say(&node, &held, "complete", json!({})).await.expect_status(200);
    let polls: Vec<_> = (0..200)
        .map(|number| {
            let api = (*leaving).clone();
            tokio::spawn(async move {
                let body = json!({"worker": format!("w{number}"), "wait": "60s"});
                api.try_post("/v1/queues/q/claims", body)
                    .await
                    .map(|reply| reply.status)
            })
        })
        .collect();
    eventually("hanging polls", async || {
        let ended = polls.iter().filter(|poll| poll.is_finished()).count();
        assert_eq!(ended, 0, "polls ended before there was anything to end them");
        let queue = node.get("/v1/queues/q").await.body;
        (queue["workers"].as_u64()? >= 200).then_some(())
    })
    .await;
    leaving.terminate();
    for poll in polls {
        assert_eq!(poll.await.expect("a poll"), Some(200));
    }
    leaving.end().await;
}

/// An output as large as `max_output` allows is taken by the call for one claim, as it is by the call for many.
#[tokio::test]
async fn a_large_output_is_completed_alone() {
    let (_world, node) = World::with_node().await;
    let spec = json!({"tasks": {"t": {"queue": "q", "max_output": "8MiB"}}});
    node.put_group("g", spec).await;
    let run = node.start("g", json!({})).await;
    let held = claim(&node, "q").await;
    let output = "x".repeat(5 << 20);
    say(&node, &held, "complete", json!({ "output": output }))
        .await
        .expect_status(200);
    assert_eq!(node.ended(&run).await["state"], "succeeded");
}
