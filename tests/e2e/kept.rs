//! Answers about large runs that have ended are kept by nodes, for as long as they are true.

use heddle_tests::{World, id, task};
use serde_json::{Value, json};

/// So many tasks that the answer is kept.
const TASKS: usize = 160;

#[tokio::test]
async fn what_is_kept_of_a_run_is_how_it_stands() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let mut tasks = serde_json::Map::new();
    for number in 0..TASKS {
        tasks.insert(format!("t{number:03}"), json!({"script": "hello"}));
    }
    nodes[0].put_group("large", json!({ "tasks": tasks })).await;
    let run = id(&nodes[0].run("large", json!({})).await);
    let path = format!("/v1/runs/{run}");
    let get = async |node: usize| -> Value { nodes[node].get(&path).await.expect_status(200) };
    // Each has it, and has kept it.
    for node in [0, 1, 0, 1] {
        let answer = get(node).await;
        assert!(answer.to_string().len() > 32 * 1_024 && answer["state"] == "succeeded");
    }
    // Somebody says something else of a task, on one node: both show it, again and again.
    let body = json!({"state": "skipped", "reason": "by a test"});
    nodes[0]
        .put(&format!("{path}/tasks/t007/state"), body)
        .await
        .expect_status(200);
    let ended = nodes[0].ended(&run).await;
    for node in [0, 1, 0, 1] {
        let answer = get(node).await;
        assert_eq!(task(&answer, "t007")["state"], "skipped");
        assert_eq!(answer, ended);
    }
    // It runs again, in part.
    nodes[1]
        .post(&format!("{path}/tasks/t009/clear"), json!({}))
        .await
        .expect_status(200);
    nodes[0].ended(&run).await;
    for node in [0, 1, 0, 1] {
        assert_eq!(task(&get(node).await, "t009")["attempt"], 2);
    }
    // It is gone.
    nodes[1].delete(&path).await.expect_status(204);
    for node in &nodes {
        assert_eq!(node.get(&path).await.status, 404);
    }
}
