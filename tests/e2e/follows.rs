//! Groups that follow groups.

mod instants;

use chrono::{DateTime, Utc};
use heddle_tests::{Api, World, eventually, runs, time};
use serde_json::{Value, json};

use crate::{fails, one, sleeps, with};

fn hello() -> Value {
    one(json!({"script": "hello"}))
}

fn follows(upstreams: Value) -> Value {
    with(hello(), json!({"depends_on": upstreams}))
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

/// A script that fails until it is mended.
async fn upload(api: &Api, name: &str, exit_code: u32) {
    let wat = format!(
        r#"(module (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
             (memory (export "memory") 1) (func (export "_start") (call $exit (i32.const {exit_code}))))"#
    );
    let reply = api
        .put_bytes(&format!("/v1/scripts/{name}"), "application/wasm", wat)
        .await;
    assert_eq!(reply.status, 201, "{:#}", reply.body);
}

async fn only_run(api: &Api, group: &str, state: &str) -> Value {
    eventually(&format!("a run of {group} that is {state}"), async || {
        runs(api, group).await.pop().filter(|run| run["state"] == state)
    })
    .await
}

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

/// Runs of a follower do not overlap unless it allows that, whichever node creates them: each of these comes while the one
/// before is active.
#[tokio::test]
async fn runs_of_a_follower_take_turns() {
    const TIMES: i64 = 5;
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    nodes[0].put_group("up", hello()).await;
    let down = json!({"depends_on": ["up"], "tasks": {"t": sleeps(0.5)}});
    nodes[0].put_group("down", down).await;
    let start = time(&json!(T1));
    for n in 0..TIMES {
        let at = json!({"logical_time": start + chrono::TimeDelta::hours(n)});
        nodes[n as usize % 2].run("up", at).await;
    }
    let mut down = eventually("runs that have succeeded", async || {
        let down = runs(nodes[0].api(), "down").await;
        let succeeded = down.iter().filter(|run| run["state"] == "succeeded").count();
        (succeeded as i64 == TIMES).then_some(down)
    })
    .await;
    down.sort_by_key(|run| time(&run["started_at"]));
    for pair in down.windows(2) {
        let (before, next) = (&pair[0], &pair[1]);
        assert!(
            time(&before["finished_at"]) <= time(&next["started_at"]),
            "{before:#} and {next:#}"
        );
    }
}

/// A failed upstream keeps its followers waiting; a restart, an override, or another `depends_on` lets them go.
#[tokio::test]
async fn a_failed_upstream_keeps_its_followers_waiting() {
    let (_world, node) = World::with_node().await;
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

/// A run that has succeeded, and fails after an override of its task, keeps followers waiting as one that failed at first.
/// Its next success calls for no second run.
#[tokio::test]
async fn a_success_that_is_undone_does_not_count() {
    let (world, node) = World::with_node().await;
    let once = json!({"schedules": {"s": {"once": {"delay": "0s"}}}});
    node.put_group("up", hello()).await;
    node.put_group("called", follows(json!(["up"]))).await;
    node.put_group("up", with(hello(), once.clone())).await;
    let up = heddle_tests::id(&only_run(&node, "up", "succeeded").await);
    only_run(&node, "called", "succeeded").await;
    settled(&world).await;
    let override_task = async |state: &str| {
        let path = format!("/v1/runs/{up}/tasks/t/state");
        let body = json!({"state": state, "reason": "by a test"});
        node.put(&path, body).await.expect_status(200);
        assert_eq!(node.ended(&up).await["state"], state);
    };
    override_task("failed").await;
    // As if no node had looked at its first end until now.
    let sql = world.sql().await;
    let unseen = "INSERT INTO heddle.link_events (kind, group_id, run, logical_time, source, backfilled)
                  SELECT 0, group_id, id, logical_time, source, false FROM heddle.runs_done WHERE id = $1::text::uuid";
    assert_eq!(sql.execute(unseen, &[&up]).await.unwrap(), 1);
    settled(&world).await;
    node.put_group("timed", with(follows(json!(["up"])), once)).await;
    let waiting = eventually("a run that says what it waits for", async || {
        let run = runs(&node, "timed").await.pop();
        run.filter(|run| run["waiting_for"][0]["group"] == "up")
    })
    .await;
    assert_eq!(waiting["state"], "waiting", "{waiting:#}");
    override_task("succeeded").await;
    let ended = node.ended(&heddle_tests::id(&waiting)).await;
    assert_eq!(ended["state"], "succeeded", "{ended:#}");
    settled(&world).await;
    assert_eq!(runs(&node, "called").await.len(), 1);
}

/// What the upstream's overlap left out, or was due while it was disabled, holds up nobody.
#[tokio::test]
async fn left_out_instants_hold_up_nobody() {
    let (_world, node) = World::with_node().await;
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

/// What succeeded for a logical time before anybody followed it counts like what succeeds later.
#[tokio::test]
async fn successes_from_before_count() {
    let (_world, node) = World::with_node().await;
    node.put_group("early", hello()).await;
    node.put_group("late", hello()).await;
    let at = json!({"logical_time": T1});
    node.run("early", at.clone()).await;
    node.put_group("down", follows(json!(["early", "late"]))).await;
    node.run("late", at).await;
    let run = eventually("a run", async || runs(&node, "down").await.pop()).await;
    assert_eq!(run["logical_time"], T1);
}

/// A group without schedules does not wait for an upstream that is disabled, or whose overlap left the instant out,
/// whichever of its upstreams comes first.
#[tokio::test]
async fn groups_without_schedules_are_held_up_by_nobody_that_left_an_instant_out() {
    let (world, node) = World::with_node().await;
    node.put_group("off", hello()).await;
    node.put_group("good", hello()).await;
    node.put_group("down", follows(json!(["off", "good"]))).await;
    node.post("/v1/groups/off/disable", json!({})).await.expect_status(200);
    // Of the time before it was disabled it is still asked.
    node.run("good", json!({"logical_time": T1})).await;
    let good = node.run("good", json!({})).await;
    let down = eventually("a run", async || runs(&node, "down").await.pop()).await;
    assert_eq!(down["logical_time"], good["logical_time"]);
    settled(&world).await;
    assert_eq!(runs(&node, "down").await.len(), 1);

    // `slow` leaves out what comes while its first run goes on; `between` follows it, `quick` does not.
    let often = json!({"s": {"every": "1s"}});
    let slow = json!({"schedules": often, "overlap": "skip", "tasks": {"t": sleeps(3_600.0)}});
    node.put_group("slow", slow).await;
    node.put_group("between", follows(json!(["slow"]))).await;
    node.put_group("quick", hello()).await;
    node.put_group("near", follows(json!(["slow", "quick"]))).await;
    node.put_group("far", follows(json!(["between", "quick"]))).await;
    let left_out = eventually("an instant that is left out", async || {
        let runs = runs(&node, "slow").await;
        runs.into_iter().find(|run| run["state"] == "cancelled")
    })
    .await;
    // `held` has a run for it, whichever upstream skipped it, and so `last` waits for that.
    let held = json!({"depends_on": ["slow", "quick"]});
    node.put_group("held", with(one(sleeps(3_600.0)), held)).await;
    node.put_group("other", hello()).await;
    node.put_group("last", follows(json!(["held", "other"]))).await;
    let at = json!({"logical_time": left_out["logical_time"]});
    node.run("other", at.clone()).await;
    node.run("quick", at).await;
    let held = eventually("a run", async || runs(&node, "held").await.pop()).await;
    settled(&world).await;
    assert_eq!(runs(&node, "last").await, [] as [Value; 0]);
    let path = format!("/v1/runs/{}/state", held["id"].as_str().unwrap());
    let will_do = json!({"state": "succeeded", "reason": "it will do"});
    node.put(&path, will_do).await.expect_status(200);
    for group in ["near", "far", "last"] {
        let run = eventually("a run", async || runs(&node, group).await.pop()).await;
        assert_eq!(run["logical_time"], left_out["logical_time"], "{group}");
    }
    assert_eq!(runs(&node, "between").await, [] as [Value; 0]);

    // The success comes first, what is left out later.
    let now: DateTime<Utc> = world.sql().await.query_one("SELECT now()", &[]).await.unwrap().get(0);
    let later = now + chrono::TimeDelta::seconds(4);
    node.run("quick", json!({"logical_time": later})).await;
    let once = json!({"s": {"once": {"at": later}}});
    let slow = json!({"schedules": once, "overlap": "skip", "tasks": {"t": sleeps(3_600.0)}});
    node.put_group("slow", slow).await;
    for group in ["near", "far"] {
        eventually("a run for what is left out later", async || {
            let last = runs(&node, group).await.pop()?;
            (time(&last["logical_time"]) == later).then_some(())
        })
        .await;
    }
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

/// The success of a run of a cancelled backfill, or of a run that it caused, calls for nothing any more.
#[tokio::test]
async fn a_cancelled_backfill_calls_for_nothing() {
    let (world, node) = World::with_node().await;
    let daily = json!({"history": true, "schedules": {"s": {"cron": "0 0 * * *", "ends_at": "2014-01-01"}}});
    node.put_group("up", with(hello(), daily.clone())).await;
    node.put_group("down", follows(json!(["up"]))).await;
    let backfill = async |group: &str, asked: Value| {
        let backfill = node.post(&format!("/v1/groups/{group}/backfills"), asked).await;
        heddle_tests::id(&backfill.expect_status(202))
    };
    let becomes = async |backfill: &str, state: &str| {
        eventually(state, async || {
            let found = node.get(&format!("/v1/backfills/{backfill}")).await.expect_status(200);
            (found["state"] == state).then_some(())
        })
        .await;
    };
    // Three successes that have called for nothing.
    let alone = backfill("up", json!({"from": "2012-01-01", "to": "2012-01-03"})).await;
    becomes(&alone, "succeeded").await;
    settled(&world).await;
    assert_eq!(runs(&node, "down").await, [] as [Value; 0]);
    // Another backfill, whose events are written here as if its runs had just ended.
    node.put_group("slow", with(one(sleeps(3_600.0)), daily)).await;
    let source = backfill(
        "slow",
        json!({"from": "2012-01-01", "to": "2012-01-01", "include_downstream": true}),
    )
    .await;
    let sql = world.sql().await;
    let succeeds = async |day: &str, backfilled: bool| {
        let event = "INSERT INTO heddle.link_events (kind, group_id, run, logical_time, source, backfilled)
                     SELECT 0, d.group_id, d.id, d.logical_time, $1::text::uuid, $3::boolean
                       FROM heddle.runs_done d JOIN heddle.groups g ON g.id = d.group_id
                      WHERE g.name = 'up' AND d.logical_time = $2::text::timestamptz";
        assert_eq!(sql.execute(event, &[&source, &day, &backfilled]).await.unwrap(), 1);
        settled(&world).await;
    };
    succeeds("2012-01-01T00:00:00Z", true).await;
    let down = only_run(&node, "down", "succeeded").await;
    assert_eq!(down["logical_time"], "2012-01-01T00:00:00.000000Z");
    let cancel = node.post(&format!("/v1/backfills/{source}/cancel"), json!({})).await;
    cancel.expect_status(200);
    becomes(&source, "cancelled").await;
    succeeds("2012-01-02T00:00:00Z", true).await;
    sql.execute("DELETE FROM heddle.successes", &[]).await.unwrap();
    succeeds("2012-01-03T00:00:00Z", false).await;
    assert_eq!(runs(&node, "down").await.len(), 1);
}

/// A wake-up that got lost, here one that never was, is found by the sweep over what waits.
#[tokio::test]
async fn a_lost_wake_up_is_found() {
    let (world, node) = World::with_node().await;
    let once = json!({"schedules": {"s": {"once": {"delay": "0s"}}}});
    node.put_group("up", with(one(fails()), once.clone())).await;
    let failed = only_run(&node, "up", "failed").await;
    node.put_group("down", with(follows(json!(["up"])), once)).await;
    let waiting = eventually("a run that says what it waits for", async || {
        runs(&node, "down")
            .await
            .pop()
            .filter(|run| run["waiting_for"][0]["group"] == "up")
    })
    .await;
    settled(&world).await;
    // The success is noted, and nobody is told.
    let noted = world
        .sql()
        .await
        .execute(
            "INSERT INTO heddle.successes (group_id, logical_time, run)
             SELECT upstream_id, logical_time, gen_random_uuid() FROM heddle.needs",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(noted, 1, "{failed:#}");
    assert_eq!(node.ended(waiting["id"].as_str().unwrap()).await["state"], "succeeded");
}

/// Groups do not wait for each other in a circle: the one that would close it is refused, and the circle named.
#[tokio::test]
async fn circles_are_refused() {
    let (_world, node) = World::with_node().await;
    node.put_group("a", hello()).await;
    node.put_group("b", follows(json!(["a"]))).await;
    node.put_group("c", follows(json!([{"group": "b", "need": "interval"}])))
        .await;
    let refused = node.refused_group("a", follows(json!(["c"]))).await;
    let said = refused.expect_status(422).to_string();
    let circles = [
        "a -> b -> c -> a",
        "a -> c -> b -> a",
        "b -> c -> a -> b",
        "c -> b -> a -> c",
    ];
    assert!(circles.iter().any(|circle| said.contains(circle)), "{said}");
    assert!(said.contains("/depends_on"), "{said}");
    let refused = node.refused_group("a", follows(json!(["a"]))).await;
    refused.expect_said(422, "a -> a");
    node.refused_group("a", follows(json!(["nobody"])))
        .await
        .expect_said(422, "nobody");
    // Sub-runs may be part of a circle. A check finds it without a PUT, at the link that closes it.
    node.put_group("called", hello()).await;
    node.put_group("calls", one(json!({"group": "called"}))).await;
    node.put_group("waits", follows(json!(["called"]))).await;
    let by_task = one(json!({"group": "waits"}));
    for (spec, place) in [(follows(json!(["calls"])), "/depends_on"), (by_task, "/tasks/t/group")] {
        let checked = node.post("/v1/groups/called/validate", spec.clone()).await;
        checked.expect_problem(422, &[place]);
        node.refused_group("called", spec).await.expect_problem(422, &[place]);
    }
    // A group that others wait for may be deleted; one that waits for others may not.
    node.delete("/v1/groups/c").await.expect_said(409, "b");
    let deleted = node.delete("/v1/groups/a").await.expect_status(200);
    assert_eq!(deleted["detached"], json!(["b"]));
    let detached = node.get("/v1/groups/b").await.expect_status(200);
    assert_eq!(detached["depends_on"], json!([]));
}
