//! Runs that are paused and resumed all the time: whatever ends meanwhile is recorded, whatever is due happens.
//!
//! A control makes the node forget what it knows of a run, as being too many for its memory does. Nothing that is being
//! recorded at that moment may suffer from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use heddle_tests::{Api, Node, World, task};
use serde_json::{Value, json};

use crate::dispatch::finish;

/// How long a run is left alone between two controls.
const PAUSE: Duration = Duration::from_millis(3);

/// Pauses and resumes runs until it is stopped; they are left resumed.
struct Besetter {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Besetter {
    fn of(api: &Api, runs: &[String]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (api, runs, stopped) = (api.clone(), runs.to_vec(), stop.clone());
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                for action in ["pause", "resume"] {
                    for run in &runs {
                        let reply = api.post(&format!("/v1/runs/{run}/{action}"), json!({})).await;
                        assert!(matches!(reply.status, 200 | 409), "{action}: {:#}", reply.body);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        });
        Self { stop, task }
    }

    async fn ends(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("a besetter");
    }
}

async fn started(node: &Node, group: &str, spec: Value, count: usize) -> Vec<String> {
    node.put_group(group, spec).await;
    let mut runs = Vec::with_capacity(count);
    for _ in 0..count {
        runs.push(node.start(group, json!({})).await);
    }
    runs
}

/// What scripts succeeded with is never taken for a failure.
#[tokio::test]
async fn scripts() {
    let (_world, node) = World::with_node().await;
    let items: Vec<u32> = (0..200).collect();
    let spec = json!({"tasks": {"t": {"script": "hello", "for_each": items, "concurrency": 20}}});
    let runs = started(&node, "g", spec, 3).await;
    let besetter = Besetter::of(&node, &runs);
    for run in &runs {
        let ended = node.ended(run).await;
        assert_eq!(ended["state"], "succeeded", "{}", task(&ended, "t"));
    }
    besetter.ends().await;
}

/// Workers' reports are accepted or refused, and failed task runs are given out again when they are due.
#[tokio::test]
async fn queues() {
    let (_world, node) = World::with_node().await;
    let items: Vec<u32> = (0..30).collect();
    let retry = json!({"strategy": "fixed", "retries": 1000, "interval": "10ms"});
    let spec =
        json!({"tasks": {"t": {"queue": "q", "for_each": items, "retry": retry, "params": {"item": "{{ item }}"}}}});
    let runs = started(&node, "g", spec, 2).await;
    let besetter = Besetter::of(&node, &runs);
    let worker = tokio::spawn({
        let api = (*node).clone();
        async move {
            loop {
                let ask = json!({"worker": "w", "max": 10, "wait": "100ms"});
                let answer = api.post("/v1/queues/q/claims", ask).await.expect_status(200);
                for claim in answer["items"].as_array().expect("items") {
                    let id = claim["id"].as_str().expect("an id");
                    let fails = claim["attempt"].as_u64() < Some(4);
                    let (verb, said) = if fails {
                        ("fail", "error")
                    } else {
                        ("complete", "output")
                    };
                    let body = json!({"token": claim["token"], said: "as it is"});
                    let reply = api.post(&format!("/v1/claims/{id}/{verb}"), body).await;
                    assert!(matches!(reply.status, 200 | 409), "{verb}: {:#}", reply.body);
                }
            }
        }
    });
    for run in &runs {
        let ended = node.ended(run).await;
        assert_eq!(ended["state"], "succeeded", "{}", task(&ended, "t"));
        assert!(!worker.is_finished(), "the worker was told what no worker may be told");
    }
    worker.abort();
    besetter.ends().await;
}

/// What users completed is the end of the task that asked them.
#[tokio::test]
async fn users() {
    let (_world, node) = World::with_node().await;
    let count = 30;
    let asks: serde_json::Map<String, Value> = (0..count)
        .map(|user| (format!("t{user}"), json!({"audience": format!("uid_s{user}")})))
        .collect();
    let runs = started(&node, "g", json!({"tasks": asks}), 1).await;
    let besetter = Besetter::of(&node, &runs);
    for user in 0..count {
        let path = format!("/v1/dispatch/s{user}/next");
        let given = node.post(&path, json!({"wait": "20s"})).await.expect_status(200);
        finish(&node, &given, "completed", json!(user)).await.expect_status(200);
    }
    assert_eq!(node.ended(&runs[0]).await["state"], "succeeded");
    besetter.ends().await;
}

/// A deadline that passes meanwhile cancels.
#[tokio::test]
async fn deadlines() {
    let (_world, node) = World::with_node().await;
    let spec = json!({"deadline": "1s", "deadline_action": "cancel", "tasks": {"t": {"queue": "nobody"}}});
    let runs = started(&node, "g", spec, 10).await;
    let besetter = Besetter::of(&node, &runs);
    for run in &runs {
        assert_eq!(node.ended(run).await["state"], "cancelled");
    }
    besetter.ends().await;
}
