//! How many runs may wait for their turn, and what happens with the others.

use std::collections::BTreeSet;

use heddle_tests::{World, eventually, runs, time};
use serde_json::{Value, json};

use crate::{sleeps, with};

fn in_state<'a>(runs: &'a [Value], state: &str) -> Vec<&'a Value> {
    runs.iter().filter(|run| run["state"] == state).collect()
}

/// Two nodes fire, one run never ends: as many wait as may, the newest; the others say why they were skipped, and that is
/// told.
#[tokio::test]
async fn the_oldest_is_skipped() {
    const WAITING_MAX: usize = 3;
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let node = &nodes[0];
    node.put("/v1/channels/hook", json!({"kind": "webhook", "url": "http://127.0.0.1:9/", "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "allow_private": true}))
        .await
        .expect_status(201);
    let group = json!({
        "schedules": {"s": {"every": "200ms"}}, "max_waiting": WAITING_MAX, "tasks": {"t": sleeps(3_600.0)},
        "notify": {"on": ["skipped"], "channels": ["hook"]},
    });
    node.put_group("busy", group).await;
    let all = eventually("skipped runs", async || {
        let all = runs(node, "busy").await;
        (in_state(&all, "cancelled").len() >= 8).then_some(all)
    })
    .await;
    let skipped = in_state(&all, "cancelled");
    for run in &skipped {
        assert_eq!(
            (&run["skipped"], &run["started_at"]),
            (&json!("max_waiting"), &Value::Null),
            "{run:#}"
        );
        let said = run["error"]["message"].as_str().unwrap();
        assert!(said.starts_with("skipped: max_waiting: more than 3 runs"), "{run:#}");
    }
    // The oldest go, the newest stay.
    let last_skipped = skipped.iter().map(|run| time(&run["logical_time"])).max().unwrap();
    let waiting = in_state(&all, "waiting");
    assert!(
        waiting.iter().all(|run| time(&run["logical_time"]) > last_skipped),
        "{all:#?}"
    );
    // With nothing more to come, exactly as many wait.
    node.post("/v1/groups/busy/disable", json!({})).await.expect_status(200);
    let all = eventually("a queue at rest", async || {
        let all = runs(node, "busy").await;
        (in_state(&all, "waiting").len() == WAITING_MAX).then_some(all)
    })
    .await;
    assert_eq!(in_state(&all, "running").len(), 1, "{all:#?}");
    // One by an operator is no skipped one.
    let victim = in_state(&all, "waiting")[0]["id"].as_str().unwrap().to_owned();
    let cancelled = node
        .post(&format!("/v1/runs/{victim}/cancel"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(
        (&cancelled["state"], &cancelled["skipped"]),
        (&json!("cancelled"), &Value::Null)
    );
    // The feed, the notification, the number.
    let request = node.request(reqwest::Method::GET, "/v1/events?kinds=run.skipped&limit=500");
    let feed = request.send().await.unwrap().text().await.unwrap();
    let skipped: BTreeSet<String> = feed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .inspect(|event| {
            assert_eq!(
                (&event["kind"], &event["skipped"]),
                (&json!("run.skipped"), &json!("max_waiting"))
            )
        })
        .map(|event| event["run"].as_str().unwrap().to_owned())
        .collect();
    for run in in_state(&all, "cancelled") {
        assert!(skipped.contains(run["id"].as_str().unwrap()), "{run:#}");
    }
    eventually("a notification", async || {
        let found = node.get("/v1/notifications").await.expect_status(200);
        let items = found["items"].as_array()?;
        items.iter().any(|item| item["event"] == "skipped").then_some(())
    })
    .await;
}

/// Runs by people are not counted, nor skipped; a bound that is wrong is refused with its place.
#[tokio::test]
async fn others_are_left_alone() {
    let (_world, node) = World::with_node().await;
    let group = json!({
        "max_active_runs": 1, "max_waiting": 0, "overlap": "allow", "schedules": {"s": {"every": "300ms"}},
        "tasks": {"t": sleeps(3_600.0)},
    });
    node.put_group("g", group.clone()).await;
    let mut manual = BTreeSet::new();
    for _ in 0..4 {
        manual.insert(node.start("g", json!({})).await);
    }
    eventually("skipped runs", async || {
        let all = runs(&node, "g").await;
        let skipped: Vec<&Value> = all.iter().filter(|run| run["skipped"] == "max_waiting").collect();
        assert!(skipped.iter().all(|run| run["trigger"] == "schedule"), "{skipped:#?}");
        (skipped.len() >= 3).then_some(())
    })
    .await;
    for run in &manual {
        let run = node.run_now(run).await;
        assert!(run["state"] == "waiting" || run["state"] == "running", "{run:#}");
    }
    for wrong in [json!(10_001), json!(-1), json!("many")] {
        node.refused_group("h", with(group.clone(), json!({"max_waiting": wrong})))
            .await
            .expect_problem(422, &["/max_waiting"]);
    }
}
