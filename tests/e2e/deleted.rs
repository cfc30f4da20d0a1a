//! Groups that are deleted or stopped while others start runs of them: no accepted run is left behind.

use heddle_tests::{World, eventually, id};
use serde_json::json;

use crate::one;

/// Whoever submits and whoever deletes at the same time, on two nodes: either the run is there and the group stays, or the
/// run is refused.
#[tokio::test]
async fn either_a_run_or_a_deletion() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let (mut accepted, mut gone) = (0, 0);
    for round in 0..16 {
        let name = format!("g{round}");
        let group = format!("/v1/groups/{name}");
        nodes[0].put_group(&name, one(json!({"queue": "q"}))).await;
        let runs = format!("{group}/runs");
        let body = match round % 2 {
            0 => json!({}),
            _ => json!({"key": "k"}),
        };
        let (first, second, deleted) = tokio::join!(
            nodes[0].post(&runs, body.clone()),
            nodes[1].post(&runs, json!({})),
            nodes[round / 2 % 2].delete(&group),
        );
        let made = [&first, &second]
            .into_iter()
            .filter(|reply| reply.status == 202)
            .count();
        assert_eq!(
            deleted.status == 200,
            made == 0,
            "{:#} {:#} {:#}",
            first.body,
            second.body,
            deleted.body
        );
        match made {
            0 => gone += 1,
            _ => {
                accepted += 1;
                assert_eq!(deleted.status, 409, "{:#}", deleted.body);
                nodes[0].delete(&format!("{group}?force=true")).await.expect_status(200);
            }
        }
    }
    // Both happen, but neither has to.
    assert_eq!(accepted + gone, 16);
}

/// A group is stopped while others submit: each run that was accepted is cancelled when the stop is answered.
#[tokio::test]
async fn a_stop_reaches_all_runs() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    for round in 0..12 {
        let group = format!("/v1/groups/g{round}");
        nodes[0]
            .put_group(&format!("g{round}"), one(json!({"queue": "q"})))
            .await;
        let runs = format!("{group}/runs");
        let submissions = (0..6).map(|n| nodes[n % 2].post(&runs, json!({})));
        let (disable, stop) = (format!("{group}/disable"), json!({"mode": "stop"}));
        let (submitted, stopped) = tokio::join!(
            futures::future::join_all(submissions),
            nodes[round % 2].post(&disable, stop),
        );
        assert_eq!(stopped.status, 200, "{:#}", stopped.body);
        for reply in submitted {
            match reply.status {
                202 => assert_eq!(nodes[0].run_now(&id(&reply.body)).await["state"], "cancelled"),
                status => assert_eq!(status, 409, "{:#}", reply.body),
            }
        }
        nodes[0].post(&runs, json!({})).await.expect_problem(409, &[]);
    }
}

/// A run whose creator did not ask for its group: a transaction in SQL that was open while the group was deleted.
#[tokio::test]
async fn what_is_left_behind_is_cancelled() {
    let (world, node) = World::with_node().await;
    node.put_group("g", one(json!({"queue": "q"}))).await;
    let mut sql = world.sql().await;
    let open = sql.transaction().await.unwrap();
    let run: String = open
        .query_one("SELECT heddle.submit('g')::text", &[])
        .await
        .unwrap()
        .get(0);
    node.delete("/v1/groups/g").await.expect_status(200);
    open.commit().await.unwrap();
    let ended = eventually("the end of the run", async || {
        let found = node.run_now(&run).await;
        (found["state"] == "cancelled").then_some(found)
    })
    .await;
    assert_eq!(ended["error"]["message"], "its group has been deleted", "{ended:#}");
    // A group of the same name is another one.
    node.put_group("g", one(json!({"queue": "q"}))).await;
    assert!(node.all("/v1/runs?group=g&state=running").await.is_empty());
}
