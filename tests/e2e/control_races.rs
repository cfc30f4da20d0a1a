//! One run that many control at once: each is done, or refused for the state in which it finds the run.

use heddle_tests::{Api, World, id};
use serde_json::json;

use crate::with;

const CLIENTS: usize = 4;
const ROUNDS: usize = 40;

/// Ends and reopens the run, over and over.
async fn steer(api: Api, run: String, client: usize) -> usize {
    let mut done = 0;
    for round in 0..ROUNDS {
        let task = format!("/v1/runs/{run}/tasks/a");
        let reply = match (client + round) % 4 {
            0 => api.post(&format!("/v1/runs/{run}/cancel"), json!({})).await,
            1 => api.post(&format!("/v1/runs/{run}/restart"), json!({})).await,
            2 => {
                let state = json!({"state": "failed", "reason": "x"});
                api.put(&format!("{task}/state"), state).await
            }
            _ => api.post(&format!("{task}/retry"), json!({})).await,
        };
        // A run that always slips away is said to be in others' hands; it is never said not to be there.
        assert!(
            matches!(reply.status, 200 | 409 | 503),
            "{} {:#}",
            reply.status,
            reply.body
        );
        done += usize::from(reply.status == 200);
    }
    done
}

#[tokio::test]
async fn a_run_that_moves_is_there() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let echo = json!({"script": "echo"});
    let after = with(echo.clone(), json!({"depends_on": ["a"]}));
    nodes[0].put_group("g", json!({"tasks": {"a": echo, "b": after}})).await;
    let run = id(&nodes[0].run("g", json!({})).await);
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let api = nodes[client % 2].api().clone();
        clients.push(tokio::spawn(steer(api, run.clone(), client)));
    }
    let mut done = 0;
    for client in clients {
        done += client.await.unwrap();
    }
    assert!(done > 0, "nobody did anything");
    // However it was left, it can be taken to an end.
    let settle = json!({"state": "succeeded", "reason": "x"});
    nodes[1]
        .put(&format!("/v1/runs/{run}/state"), settle)
        .await
        .expect_status(200);
    assert_eq!(nodes[0].ended(&run).await["state"], "succeeded");
}
