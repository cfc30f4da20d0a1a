//! Groups that are deleted or stopped while others start runs of them, or let ended runs go on: no accepted run is left
//! behind.

use heddle_tests::{World, eventually, id, states};
use serde_json::json;

use crate::{fails, one};

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

/// Whoever restarts an ended run and whoever deletes its group at the same time, on two nodes: one of both is refused.
#[tokio::test]
async fn either_a_restart_or_a_deletion() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    for round in 0..16 {
        let name = format!("g{round}");
        let group = format!("/v1/groups/{name}");
        nodes[0].put_group(&name, one(json!({"queue": "q"}))).await;
        let run = nodes[0].start(&name, json!({})).await;
        let path = format!("/v1/runs/{run}");
        nodes[0]
            .post(&format!("{path}/cancel"), json!({}))
            .await
            .expect_status(200);
        let alone = format!("{path}/restart");
        let all = json!({"filter": {"ids": [run]}, "action": "restart"});
        let restart = async {
            match round % 2 {
                0 => {
                    let reply = nodes[0].post(&alone, json!({})).await;
                    assert!(matches!(reply.status, 200 | 409), "{:#}", reply.body);
                    reply.status == 200
                }
                _ => nodes[0].post("/v1/runs/bulk", all).await.expect_status(200)["changed"] == 1,
            }
        };
        let (restarted, deleted) = tokio::join!(restart, nodes[round / 2 % 2].delete(&group));
        assert_eq!(
            deleted.status,
            if restarted { 409 } else { 200 },
            "{restarted} {:#}",
            deleted.body
        );
        let state = if restarted { "running" } else { "cancelled" };
        assert_eq!(nodes[1].run_now(&run).await["state"], state);
        if restarted {
            nodes[0].delete(&format!("{group}?force=true")).await.expect_status(200);
        }
    }
}

/// An ended run of a deleted group does not go on, whichever control is tried, alone or with others, and stays as it is. A
/// later group of the same name is another one.
#[tokio::test]
async fn what_has_ended_does_not_go_on() {
    let (_world, node) = World::with_node().await;
    let after = json!({"script": "echo", "depends_on": ["bad"]});
    let spec = json!({"tasks": {"bad": fails(), "after": after}});
    node.put_group("g", spec.clone()).await;
    let run = id(&node.run("g", json!({})).await);
    node.delete("/v1/groups/g").await.expect_status(200);
    let before = node.run_now(&run).await;
    assert_eq!(before["state"], "failed", "{before:#}");
    let task = format!("/v1/runs/{run}/tasks/bad");
    let succeeded = json!({"state": "succeeded", "reason": "by a test"});
    let said = "the group `g` has been deleted";
    for _ in 0..2 {
        for path in [
            format!("/v1/runs/{run}/restart"),
            format!("{task}/retry"),
            format!("{task}/clear"),
        ] {
            node.post(&path, json!({})).await.expect_said(409, said);
        }
        // With this state, `after` would run.
        node.put(&format!("{task}/state"), succeeded.clone())
            .await
            .expect_said(409, said);
        for dry_run in [true, false] {
            for action in [json!({"action": "restart"}), json!({"action": "clear", "task": "bad"})] {
                let mut body = json!({"filter": {"ids": [run]}, "dry_run": dry_run});
                body.as_object_mut()
                    .unwrap()
                    .extend(action.as_object().unwrap().clone());
                let report = node.post("/v1/runs/bulk", body).await.expect_status(200);
                assert_eq!(report["changed"], 0, "{report:#}");
                let detail = report["refused"][0]["detail"].as_str().unwrap_or_default();
                assert!(detail.contains(said), "{report:#}");
            }
        }
        assert_eq!(node.run_now(&run).await, before);
        node.put_group("g", spec.clone()).await;
    }
    // What only sets states lets nothing run.
    node.put(&format!("/v1/runs/{run}/state"), succeeded.clone())
        .await
        .expect_status(200);
    let set = node.run_now(&run).await;
    assert_eq!((&set["state"], states(&set)), (&json!("succeeded"), states(&before)));
    node.delete(&format!("/v1/runs/{run}")).await.expect_status(204);
}

/// Whoever stops a group refuses new runs. Its ended runs can go on: an operator decides that.
#[tokio::test]
async fn what_was_stopped_can_go_on() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"queue": "q"}))).await;
    let run = node.start("g", json!({})).await;
    node.post("/v1/groups/g/disable", json!({"mode": "stop"}))
        .await
        .expect_status(200);
    for path in [
        format!("/v1/runs/{run}/restart"),
        format!("/v1/runs/{run}/tasks/t/clear"),
    ] {
        assert_eq!(node.run_now(&run).await["state"], "cancelled");
        node.post(&path, json!({})).await.expect_status(200);
        assert_eq!(node.run_now(&run).await["state"], "running");
        node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
            .await
            .expect_status(200);
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
