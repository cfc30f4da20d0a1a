//! The typed client against a real node: methods for the programs of others, which nothing else in this tree calls.

use std::time::Duration;

use heddle_client::{Claim, ClaimRequest, Client, DisableMode, Group, RunState, Submission};
use heddle_tests::{TOKEN, World};
use serde_json::json;

use crate::messages::due_now;

const WAIT: Duration = Duration::from_secs(10);

/// Claims so many task runs of the queue `q`.
async fn claim(client: &Client, count: usize) -> Vec<Claim> {
    let mut claims = Vec::new();
    while claims.len() < count {
        let request = ClaimRequest {
            worker: "w".into(),
            max: Some((count - claims.len()) as i64),
            ..ClaimRequest::default()
        };
        claims.extend(client.claim("q", &request, WAIT).await.unwrap());
    }
    claims
}

/// A program submits runs in one call, works on them in calls for several claims, and waits for their ends.
#[tokio::test]
async fn many_in_one_call() {
    let (_world, node) = World::with_node().await;
    let client = Client::new(node.base(), Some(TOKEN)).unwrap();
    let group = client
        .put_group("g", &json!({"tasks": {"t": {"queue": "q"}}}), None)
        .await;
    assert!(group.unwrap().enabled);
    let submissions = ["a", "b", "c"].map(|key| Submission {
        key: Some(key.into()),
        ..Submission::default()
    });
    let made = client.start_runs("g", &submissions).await.unwrap();
    let ids: Vec<_> = made.iter().map(|made| made.id.expect("a run")).collect();
    let repeated = client.start_runs("g", &submissions[1..2]).await.unwrap();
    assert_eq!(repeated[0].status, 409);
    assert_eq!(repeated[0].existing, Some(ids[1].to_string()));

    assert!(client.control_queue("q", "pause").await.unwrap().paused);
    let request = ClaimRequest {
        worker: "w".into(),
        ..ClaimRequest::default()
    };
    assert!(client.claim("q", &request, Duration::ZERO).await.unwrap().is_empty());
    assert!(!client.control_queue("q", "resume").await.unwrap().paused);
    let claims = claim(&client, 3).await;
    let all: Vec<&Claim> = claims.iter().collect();
    for answer in client.heartbeat_all(&all).await.unwrap() {
        assert_eq!(answer.status, Some(200), "{answer:?}");
        assert!(answer.lease_expires_at.is_some(), "{answer:?}");
    }
    let released = client.release_all(&all[2..]).await.unwrap();
    assert_eq!(released[0].state.as_deref(), Some("released"), "{released:?}");
    // Each claim has an answer of its own.
    let output = json!({"done": true});
    let ended = client
        .complete_all(&[(all[0], &output), (all[2], &output), (all[1], &output)])
        .await
        .unwrap();
    let statuses: Vec<Option<u16>> = ended.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [Some(200), Some(409), Some(200)], "{ended:?}");
    for claim in &claims[..2] {
        let run = client.wait_for_run(claim.run).await.unwrap();
        assert_eq!((run.id, run.state), (claim.run, RunState::Succeeded));
    }

    // The released task run waits again, until the group is stopped.
    let group: Group = client.disable_group("g", DisableMode::Stop).await.unwrap();
    assert!(!group.enabled);
    let run = client.wait_for_run(claims[2].run).await.unwrap();
    assert_eq!(run.state, RunState::Cancelled);
    let refused = client.start_run("g", &Submission::default()).await.unwrap_err();
    assert_eq!(refused.status(), Some(409), "{refused}");
    let group: Group = client.enable_group("g").await.unwrap();
    assert!(group.enabled);
    client.start_run("g", &Submission::default()).await.unwrap();
}

#[tokio::test]
async fn days_of_a_topic_and_scripts_from_elsewhere() {
    let (_world, node) = World::with_node().await;
    let client = Client::new(node.base(), Some(TOKEN)).unwrap();
    let topic = json!({"queue": "q", "granularity": "instant"});
    client.put_topic("t", &topic).await.unwrap();
    assert!(client.topic_days("t", None).await.unwrap().items.is_empty());
    let sent = client.send_messages("t", &[due_now(1, json!({}))]).await.unwrap();
    assert_eq!(sent.accepted, 1, "{sent:?}");
    let days = client.topic_days("t", None).await.unwrap().items;
    let [day] = days.as_slice() else { panic!("{days:?}") };
    assert_eq!(day.total, 1, "{day:?}");
    // The server does not connect to private addresses. It says so, so it has understood the call.
    let refused = client
        .fetch_script("s", "http://127.0.0.1:9/s.wasm", &"0".repeat(64))
        .await
        .unwrap_err();
    assert_eq!(refused.status(), Some(403), "{refused}");
}
