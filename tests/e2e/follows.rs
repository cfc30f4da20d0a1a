//! Groups that follow groups.

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

/// The demo's two groups: twelve months make a year.
#[tokio::test]
async fn an_interval_waits_for_all_of_its_instants() {
    let (_world, node) = World::with_node().await;
    // Both schedules are over: the first of a month during the test makes no run of its own.
    let months = json!({"history": true, "schedules": {"monthly": {"cron": "0 0 1 * *", "ends_at": "2015-01-01"}}});
    node.put_group("months", with(hello(), months)).await;
    let years = json!({
        "history": true, "schedules": {"yearly": {"cron": "0 0 1 1 *", "ends_at": "2015-01-01"}},
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

/// Deleting a run undoes no success, and what was left out stays left out. What did not succeed cannot be mended once it is
/// deleted, and so is not waited for.
#[tokio::test]
async fn deleted_runs_of_an_upstream() {
    let world = World::new().await;
    let sql = world.sql().await;
    // Nobody removes the old successes whose runs are deleted here: in a database that is a day old that is due at once.
    sql.batch_execute("UPDATE heddle.upkeep SET due_at = 'infinity'")
        .await
        .unwrap();
    let node = world.node().await;
    // The schedules are over: the first of a month during the test makes no run of its own.
    let months = json!({"history": true, "schedules": {"monthly": {"cron": "0 0 1 * *", "ends_at": "2014-01-01"}}});
    node.put_group("months", with(hello(), months)).await;
    let months = async |from: u32, to: u32, downstream: bool| {
        let asked = json!({"from": format!("2013-{from:02}-01"), "to": format!("2013-{to:02}-01"),
                           "include_downstream": downstream});
        let backfill = node.post("/v1/groups/months/backfills", asked).await.expect_status(202);
        let path = format!("/v1/backfills/{}", heddle_tests::id(&backfill));
        eventually("the months", async || {
            (node.get(&path).await.body["state"] == "succeeded").then_some(())
        })
        .await;
        runs(&node, "months").await
    };
    let delete = async |run: &Value| {
        let path = format!("/v1/runs/{}", heddle_tests::id(run));
        node.delete(&path).await.expect_status(204);
    };
    let override_to = async |run: &Value, state: &str| {
        let path = format!("/v1/runs/{}/state", heddle_tests::id(run));
        let state = json!({"state": state, "reason": "a test"});
        node.put(&path, state).await.expect_status(200);
    };

    // All instants of a quarter, of which nobody has heard but the third: one has succeeded, one was left out.
    let [succeeded, left_out] = months(1, 2, false).await.try_into().expect("two months");
    override_to(&left_out, "failed").await;
    let leaves_out = "UPDATE heddle.run_instants SET skipped = true WHERE run = $1::text::uuid";
    sql.execute(leaves_out, &[&heddle_tests::id(&left_out)]).await.unwrap();
    delete(&succeeded).await;
    delete(&left_out).await;
    let quarterly = json!({"cron": "0 0 1 */3 *", "ends_at": "2014-01-01"});
    let quarters = json!({"history": true, "schedules": {"quarterly": quarterly},
                          "depends_on": [{"group": "months", "need": "interval"}]});
    node.put_group("quarters", with(hello(), quarters)).await;
    let [march] = months(3, 3, true).await.try_into().expect("the third month");
    let quarter = only_run(&node, "quarters", "succeeded").await;
    assert_eq!(quarter["logical_time"], "2013-04-01T00:00:00.000000Z");

    // The latest: it has succeeded, though the one before has not.
    override_to(&march, "failed").await;
    let [_, april] = months(4, 4, false).await.try_into().expect("two months");
    delete(&april).await;
    let now = json!({"schedules": {"s": {"once": {"delay": "0s"}}}});
    node.put_group("after", with(follows(json!(["months"])), now.clone()))
        .await;
    only_run(&node, "after", "succeeded").await;

    // It has failed: it is waited for until it is deleted.
    let [_, may] = months(5, 5, false).await.try_into().expect("two months");
    override_to(&may, "failed").await;
    node.put_group("waits", with(follows(json!(["months"])), now)).await;
    let waiting = eventually("a run that says what it waits for", async || {
        let run = runs(&node, "waits").await.pop();
        run.filter(|run| run["waiting_for"][0]["instant"] == may["logical_time"])
    })
    .await;
    delete(&may).await;
    node.ended(&heddle_tests::id(&waiting)).await;
}

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

/// When a failed run is restarted and succeeds, the runs that wait for it go on, with and without a schedule of their
/// own, once.
#[tokio::test]
async fn a_restarted_upstream_lets_its_followers_go() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    upload(&nodes[0], "mends", 1).await;
    let once = json!({"schedules": {"s": {"once": {"delay": "0s"}}}});
    nodes[0]
        .put_group("up", with(one(json!({"script": "mends"})), once.clone()))
        .await;
    let failed = only_run(&nodes[0], "up", "failed").await;
    nodes[1].put_group("timed", with(follows(json!(["up"])), once)).await;
    nodes[1].put_group("called", follows(json!(["up"]))).await;
    let waiting = eventually("a run that says what it waits for", async || {
        runs(&nodes[1], "timed")
            .await
            .pop()
            .filter(|run| run["waiting_for"][0]["group"] == "up")
    })
    .await;
    assert_eq!(waiting["state"], "waiting");
    assert_eq!(runs(&nodes[0], "called").await, [] as [Value; 0]);
    upload(&nodes[0], "mends", 0).await;
    let path = format!("/v1/runs/{}/restart", failed["id"].as_str().unwrap());
    nodes[1]
        .post(&path, json!({"scripts": "active"}))
        .await
        .expect_status(200);
    only_run(&nodes[0], "timed", "succeeded").await;
    let called = only_run(&nodes[0], "called", "succeeded").await;
    assert_eq!(
        (&called["trigger"], &called["logical_time"]),
        (&json!("upstream"), &failed["logical_time"])
    );
    settled(&world).await;
    for group in ["up", "timed", "called"] {
        assert_eq!(runs(&nodes[0], group).await.len(), 1, "{group}");
    }
}

/// Disabling a group excuses what comes due afterwards, not what it has begun: who waits for that goes on waiting.
#[tokio::test]
async fn an_upstream_that_is_disabled_while_it_is_waited_for() {
    let (world, node) = World::with_node().await;
    let once = json!({"schedules": {"s": {"once": {"delay": "0s"}}}});
    node.put_group("up", with(one(sleeps(3_600.0)), once.clone())).await;
    let active = only_run(&node, "up", "running").await;
    node.put_group("down", with(follows(json!(["up"])), once)).await;
    let waiting = eventually("a run that says what it waits for", async || {
        runs(&node, "down")
            .await
            .pop()
            .filter(|run| run["waiting_for"][0]["group"] == "up")
    })
    .await;
    let stop = json!({"mode": "stop"});
    node.post("/v1/groups/up/disable", stop).await.expect_status(200);
    node.ended(active["id"].as_str().unwrap()).await;
    settled(&world).await;
    let still = node.run_now(waiting["id"].as_str().unwrap()).await;
    assert_eq!(
        (&still["state"], &still["waiting_for"]),
        (&json!("waiting"), &waiting["waiting_for"])
    );
    let path = format!("/v1/runs/{}/state", active["id"].as_str().unwrap());
    node.put(&path, json!({"state": "succeeded", "reason": "it will do"}))
        .await
        .expect_status(200);
    assert_eq!(node.ended(waiting["id"].as_str().unwrap()).await["state"], "succeeded");
}

/// Instants at which the upstream was disabled hold up nobody, although its schedule names them and it keeps history.
#[tokio::test]
async fn instants_of_a_disabled_upstream_are_excused() {
    let (_world, node) = World::with_node().await;
    let up = json!({"history": true, "schedules": {"s": {"every": "200ms"}}, "overlap": "allow"});
    node.put_group("up", with(hello(), up)).await;
    eventually("runs", async || (runs(&node, "up").await.len() > 2).then_some(())).await;
    let disabled = node.post("/v1/groups/up/disable", json!({})).await.expect_status(200);
    let since = time(&disabled["updated_at"]);
    let down = json!({
        "schedules": {"s": {"every": "1s"}}, "overlap": "allow", "depends_on": [{"group": "up", "need": "interval"}],
    });
    node.put_group("down", with(hello(), down)).await;
    eventually("a run about disabled time only", async || {
        runs(&node, "down")
            .await
            .into_iter()
            .find(|run| time(&run["data_interval"]["start"]) > since && run["state"] == "succeeded")
    })
    .await;
}

/// The last instant of an upstream holds up nobody if its overlap left it out, or if the upstream was disabled then:
/// whatever became of the run before it, and whether the upstream has a schedule or follows another group.
#[tokio::test]
async fn a_last_instant_without_a_run_holds_up_nobody() {
    let (world, node) = World::with_node().await;
    let once = json!({"schedules": {"s": {"once": {"delay": "0s"}}}});
    let often = json!({"s": {"every": "1s"}});
    // The first run goes on and on; what comes after it is left out.
    let slow = json!({"schedules": often, "overlap": "skip", "tasks": {"t": sleeps(3_600.0)}});
    node.put_group("slow", slow).await;
    node.put_group("after-slow", follows(json!(["slow"]))).await;
    eventually("an instant that is left out", async || {
        let runs = runs(&node, "slow").await;
        runs.into_iter().find(|run| run["state"] == "cancelled")
    })
    .await;
    for upstream in ["slow", "after-slow"] {
        let down = format!("down-{upstream}");
        node.put_group(&down, with(follows(json!([upstream])), once.clone()))
            .await;
        only_run(&node, &down, "succeeded").await;
    }

    // The last run has failed before the group was disabled.
    let failing = with(one(fails()), json!({"schedules": often}));
    node.put_group("failing", failing).await;
    only_run(&node, "failing", "failed").await;
    let disable = async |group: &str| {
        let path = format!("/v1/groups/{group}/disable");
        node.post(&path, json!({})).await.expect_status(200)
    };
    let later = time(&disable("failing").await["updated_at"]) + chrono::TimeDelta::seconds(2);
    let then = json!({"schedules": {"s": {"once": {"at": later}}}});
    node.put_group("down-failing", with(follows(json!(["failing"])), then))
        .await;
    only_run(&node, "down-failing", "succeeded").await;

    // The same, if its instants are those of a group that it follows.
    node.put_group("source", hello()).await;
    let called = with(one(fails()), json!({"depends_on": ["source"]}));
    node.put_group("called", called).await;
    node.run("source", json!({})).await;
    only_run(&node, "called", "failed").await;
    disable("called").await;
    node.run("source", json!({})).await;
    settled(&world).await;
    node.put_group("down-called", with(follows(json!(["called"])), once))
        .await;
    only_run(&node, "down-called", "succeeded").await;
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
