//! Groups that follow groups.

use chrono::{DateTime, Utc};
use heddle_tests::{Api, World, eventually};
use serde_json::{Value, json};

use crate::{fails, one, sleeps, with};

fn hello() -> Value {
    one(json!({"script": "hello"}))
}

fn follows(upstreams: Value) -> Value {
    with(hello(), json!({"depends_on": upstreams}))
}

fn time(value: &Value) -> DateTime<Utc> {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no time"))
        .parse()
        .unwrap()
}

async fn runs(api: &Api, group: &str) -> Vec<Value> {
    let mut runs = api.all(&format!("/v1/runs?group={group}&limit=500")).await;
    runs.sort_by_key(|run| time(&run["logical_time"]));
    runs
}

/// Waits until no event between groups is left to be worked off.
async fn settled(world: &World) {
    let sql = world.sql().await;
    eventually("end of events", async || {
        let left: i64 = sql
            .query_one("SELECT count(*) FROM heddle.link_events", &[])
            .await
            .unwrap()
            .get(0);
        (left == 0).then_some(())
    })
    .await;
}

const T1: &str = "2026-03-01T00:00:00.000000Z";
const T2: &str = "2026-03-02T00:00:00.000000Z";

/// All upstreams have to have succeeded for the same logical time; a second success calls for nothing.
#[tokio::test]
async fn starts_when_all_upstreams_have_succeeded() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    nodes[0].put_group("a", hello()).await;
    nodes[0].put_group("b", hello()).await;
    nodes[0].put_group("down", follows(json!(["a", "b"]))).await;
    let at = |time: &str| json!({"logical_time": time});
    nodes[0].run("a", at(T1)).await;
    nodes[1].run("b", at(T2)).await;
    settled(&world).await;
    assert_eq!(runs(nodes[0].api(), "down").await, [] as [Value; 0]);
    nodes[1].run("b", at(T1)).await;
    let down = eventually("a run", async || runs(nodes[0].api(), "down").await.pop()).await;
    assert_eq!(
        (&down["trigger"], &down["logical_time"]),
        (&json!("upstream"), &json!(T1))
    );
    nodes[0].ended(down["id"].as_str().unwrap()).await;
    nodes[0].run("a", at(T1)).await;
    settled(&world).await;
    assert_eq!(
        runs(nodes[0].api(), "down").await.len(),
        1,
        "a repeated success calls for nothing"
    );
}

/// Both upstreams end at the same time on different nodes, many times over.
#[tokio::test]
async fn no_wake_up_is_lost_and_none_comes_twice() {
    const TIMES: i64 = 40;
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    nodes[0].put_group("a", hello()).await;
    nodes[0].put_group("b", hello()).await;
    nodes[0]
        .put_group("down", with(follows(json!(["a", "b"])), json!({"overlap": "allow"})))
        .await;
    let start = time(&json!(T1));
    let each = (0..TIMES).map(|n| {
        let at = json!({"logical_time": start + chrono::TimeDelta::hours(n)});
        let nodes = &nodes;
        async move { tokio::join!(nodes[0].start("a", at.clone()), nodes[1].start("b", at)) }
    });
    futures::future::join_all(each).await;
    let down = eventually("runs", async || {
        let down = runs(nodes[0].api(), "down").await;
        (down.len() as i64 >= TIMES).then_some(down)
    })
    .await;
    let found: Vec<DateTime<Utc>> = down.iter().map(|run| time(&run["logical_time"])).collect();
    let expect: Vec<DateTime<Utc>> = (0..TIMES).map(|n| start + chrono::TimeDelta::hours(n)).collect();
    assert_eq!(found, expect);
}

/// A failed upstream keeps its followers waiting; a restart, an override, or another `depends_on` lets them go.
#[tokio::test]
async fn a_failed_upstream_keeps_its_followers_waiting() {
    let world = World::new().await;
    let node = world.node().await;
    let up = with(one(fails()), json!({"schedules": {"s": {"once": {"delay": "0s"}}}}));
    for (name, way) in [
        ("up-override", "override"),
        ("up-change", "change"),
        ("up-delete", "delete"),
    ] {
        node.put_group(name, up.clone()).await;
        eventually("failed upstream", async || {
            runs(node.api(), name)
                .await
                .pop()
                .filter(|run| run["state"] == "failed")
        })
        .await;
        let down = format!("down-{way}");
        let spec = with(
            follows(json!([name])),
            json!({"schedules": {"s": {"once": {"delay": "0s"}}}}),
        );
        node.put_group(&down, spec.clone()).await;
        let waiting = eventually("a run that says what it waits for", async || {
            runs(node.api(), &down)
                .await
                .pop()
                .filter(|run| run["waiting_for"][0]["group"] == name)
        })
        .await;
        assert_eq!(
            (&waiting["state"], &waiting["trigger"]),
            (&json!("waiting"), &json!("schedule")),
            "{waiting:#}"
        );
        let failed = runs(node.api(), name).await.pop().unwrap();
        assert_eq!(
            waiting["waiting_for"][0]["instant"], failed["logical_time"],
            "{waiting:#}"
        );
        match way {
            "override" => {
                let path = format!("/v1/runs/{}/state", failed["id"].as_str().unwrap());
                node.put(&path, json!({"state": "succeeded", "reason": "looked at it"}))
                    .await
                    .expect_status(200);
            }
            "change" => drop(node.put_group(&down, with(spec, json!({"depends_on": []}))).await),
            _ => drop(node.delete(&format!("/v1/groups/{name}")).await.expect_status(200)),
        }
        let ended = node.ended(waiting["id"].as_str().unwrap()).await;
        assert_eq!(ended["state"], "succeeded", "{way}");
    }
}

/// What the upstream's overlap left out, or was due while it was disabled, holds up nobody.
#[tokio::test]
async fn left_out_instants_hold_up_nobody() {
    let world = World::new().await;
    let node = world.node().await;
    let up = json!({"schedules": {"s": {"every": "200ms"}}, "overlap": "skip", "tasks": {"t": sleeps(0.3)}});
    node.put_group("up", up).await;
    let down = json!({"schedules": {"s": {"every": "1s"}}, "depends_on": [{"group": "up", "need": "interval"}]});
    node.put_group("down", with(hello(), down)).await;
    let run = eventually("a run that has waited", async || {
        runs(node.api(), "down")
            .await
            .into_iter()
            .find(|run| run["state"] == "succeeded")
    })
    .await;
    let up = runs(node.api(), "up").await;
    let within =
        |at: &Value| time(at) >= time(&run["data_interval"]["start"]) && time(at) < time(&run["data_interval"]["end"]);
    let left_out = up
        .iter()
        .filter(|one| within(&one["logical_time"]) && one["state"] == "cancelled")
        .count();
    assert!(left_out > 0, "{run:#} {up:#?}");
    assert!(
        up.iter()
            .all(|one| !within(&one["logical_time"]) || one["finished_at"].is_string()),
        "{run:#} {up:#?}"
    );
}

/// A chain of groups, each started by the one before, on two nodes.
#[tokio::test]
async fn a_chain_of_groups() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    nodes[0].put_group("g0", hello()).await;
    for n in 1..5 {
        nodes[n % 2]
            .put_group(&format!("g{n}"), follows(json!([format!("g{}", n - 1)])))
            .await;
    }
    nodes[1].start("g0", json!({"logical_time": T1})).await;
    let last = eventually("the last of the chain", async || runs(nodes[0].api(), "g4").await.pop()).await;
    assert_eq!(
        (&last["logical_time"], &last["trigger"]),
        (&json!(T1), &json!("upstream"))
    );
}

/// The demo's two groups: twelve months make a year.
#[tokio::test]
async fn an_interval_waits_for_all_of_its_instants() {
    let world = World::new().await;
    let node = world.node().await;
    let months = json!({"history": true, "schedules": {"monthly": {"cron": "0 0 1 * *"}}});
    node.put_group("months", with(hello(), months)).await;
    let years = json!({
        "history": true, "schedules": {"yearly": {"cron": "0 0 1 1 *"}},
        "depends_on": [{"group": "months", "need": "interval"}],
    });
    node.put_group("years", with(hello(), years)).await;
    let backfill = |from: &str, to: &str| json!({"from": from, "to": to, "include_downstream": true});
    node.post(
        "/v1/groups/months/backfills",
        backfill("2013-01-01T00:00:00Z", "2013-11-01T00:00:00Z"),
    )
    .await
    .expect_status(202);
    let waiting = eventually("a year that lacks one month", async || {
        let year = runs(node.api(), "years").await.pop()?;
        (year["waiting_for"].as_array().map(Vec::len) == Some(1)).then_some(year)
    })
    .await;
    assert_eq!(
        (&waiting["state"], &waiting["logical_time"]),
        (&json!("waiting"), &json!("2014-01-01T00:00:00.000000Z"))
    );
    let expect = json!([{"group": "months", "instant": "2013-12-01T00:00:00.000000Z", "need": "interval"}]);
    assert_eq!(waiting["waiting_for"], expect);
    node.post(
        "/v1/groups/months/backfills",
        backfill("2013-12-01T00:00:00Z", "2013-12-01T00:00:00Z"),
    )
    .await
    .expect_status(202);
    let ended = node.ended(waiting["id"].as_str().unwrap()).await;
    assert_eq!(ended["state"], "succeeded");
    assert_eq!(runs(node.api(), "years").await.len(), 1);
}
