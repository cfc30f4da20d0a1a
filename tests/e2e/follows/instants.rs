//! Groups with schedules that follow others: which instants they wait for.

use heddle_tests::{World, eventually, runs, time};
use serde_json::{Value, json};

use super::{T1, follows, hello, only_run, settled, upload};
use crate::{fails, one, sleeps, with};

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

/// A backfill's dependants with schedules get their runs when the upstream instant that they need has succeeded, and none
/// for later upstream instants, wherever the upstream's instants come from.
#[tokio::test]
async fn dependants_follow_instant_by_instant() {
    let (world, node) = World::with_node().await;
    let history = with(hello(), json!({"history": true}));
    // All schedules are over: no run is made by one of them during the test.
    let cron = |cron: &str, enabled: bool| {
        let cron = json!({"cron": cron, "enabled": enabled, "ends_at": "2012-02-01"});
        with(history.clone(), json!({"schedules": {"s": cron}}))
    };
    let daily = cron("0 0 * * *", true);
    for (up, spec, more, expect) in [
        ("daily", daily.clone(), json!({}), 6),
        ("desc", daily.clone(), json!({"order": "desc"}), 6),
        ("disabled", cron("0 0 * * *", false), json!({}), 6),
        ("unscheduled", history.clone(), json!({"step": "1d"}), 6),
        // The last instant is the third midnight; at noon there would be the next one.
        ("fine", daily, json!({"step": "12h"}), 5),
    ] {
        let (called, near, far) = (format!("{up}-called"), format!("{up}-near"), format!("{up}-far"));
        let twice_a_day = |upstream: &str| with(cron("0 6,18 * * *", true), json!({"depends_on": [upstream]}));
        node.put_group(up, spec).await;
        node.put_group(&called, follows(json!([up]))).await;
        node.put_group(&near, twice_a_day(up)).await;
        node.put_group(&far, twice_a_day(&called)).await;
        let asked = json!({"from": "2012-01-01", "to": "2012-01-03", "include_downstream": true});
        node.post(&format!("/v1/groups/{up}/backfills"), with(asked, more))
            .await
            .expect_status(202);
        for (upstream, follower) in [(up, &near), (&*called, &far)] {
            eventually("runs of dependants", async || {
                let down = runs(&node, follower).await;
                (down.len() >= expect && down.iter().all(|run| run["state"] == "succeeded")).then_some(())
            })
            .await;
            settled(&world).await;
            let (upstream, down) = (runs(&node, upstream).await, runs(&node, follower).await);
            assert_eq!(down.len(), expect, "{follower}: {down:#?}");
            for run in &down {
                let before = |one: &&Value| time(&one["logical_time"]) <= time(&run["logical_time"]);
                let needed = upstream
                    .iter()
                    .filter(before)
                    .max_by_key(|one| time(&one["logical_time"]));
                let needed = needed.expect("an upstream instant");
                assert!(
                    time(&needed["finished_at"]) <= time(&run["created_at"]),
                    "{follower}: {run:#} {needed:#}"
                );
            }
        }
    }
}

/// If all schedules of a dependant are disabled, a backfill calls it for their instants, which a backfill of the dependant
/// would have. Other successes make no runs of it.
#[tokio::test]
async fn dependants_with_disabled_schedules() {
    let (world, node) = World::with_node().await;
    // All schedules are over: no run is made by one of them during the test.
    let put = async |group: &str, cron: &str, enabled: bool, above: Value| {
        let cron = json!({"cron": cron, "enabled": enabled, "ends_at": "2012-02-01"});
        let spec = json!({"history": true, "schedules": {"s": cron}, "depends_on": above});
        node.put_group(group, with(hello(), spec)).await;
    };
    put("up", "0 0 * * *", true, json!([])).await;
    put("latest", "0 6,18 * * *", false, json!(["up"])).await;
    let interval = json!([{"group": "up", "need": "interval"}]);
    put("interval", "0 12 * * *", false, interval).await;

    node.run("up", json!({"logical_time": "2012-01-05T00:00:00Z"})).await;
    settled(&world).await;
    for follower in ["latest", "interval"] {
        assert_eq!(runs(&node, follower).await, [] as [Value; 0], "{follower}");
    }

    let asked = json!({"from": "2012-01-01", "to": "2012-01-03", "include_downstream": true});
    node.post("/v1/groups/up/backfills", asked).await.expect_status(202);
    for (follower, expect, hours) in [("latest", 6, 12), ("interval", 3, 24)] {
        eventually("runs of a dependant", async || {
            let down = runs(&node, follower).await;
            (down.len() >= expect && down.iter().all(|run| run["state"] == "succeeded")).then_some(())
        })
        .await;
        settled(&world).await;
        let down = runs(&node, follower).await;
        assert_eq!(down.len(), expect, "{follower}: {down:#?}");
        for run in &down {
            let (start, end) = (&run["data_interval"]["start"], &run["data_interval"]["end"]);
            assert_eq!(time(end) - time(start), chrono::TimeDelta::hours(hours), "{run:#}");
            assert_eq!(end, &run["logical_time"], "{run:#}");
        }
    }
}

/// If all schedules of the group of a backfill are disabled, its dependants go by these all the same: without a schedule, they
/// have the data intervals of its runs; with one, they wait for all instants that they need.
#[tokio::test]
async fn dependants_of_a_group_with_disabled_schedules() {
    let (world, node) = World::with_node().await;
    // All schedules are over: no run is made by one of them during the test.
    let history = |cron: &str, enabled: bool| {
        let cron = json!({"cron": cron, "enabled": enabled, "ends_at": "2012-02-01"});
        with(hello(), json!({"history": true, "schedules": {"s": cron}}))
    };
    node.put_group("up", history("0 0 * * *", false)).await;
    node.put_group("called", follows(json!(["up"]))).await;
    let interval = json!({"depends_on": [{"group": "up", "need": "interval"}]});
    node.put_group("three-days", with(history("0 0 1,4 * *", true), interval))
        .await;
    let backfill = async |from: &str, to: &str, count: usize| {
        let asked = json!({"from": from, "to": to, "include_downstream": true});
        node.post("/v1/groups/up/backfills", asked).await.expect_status(202);
        let called = eventually("runs of a dependant without a schedule", async || {
            let called = runs(&node, "called").await;
            (called.len() == count && called.iter().all(|run| run["state"] == "succeeded")).then_some(called)
        })
        .await;
        settled(&world).await;
        called
    };

    for run in &backfill("2012-01-01", "2012-01-02", 2).await {
        let (start, end) = (&run["data_interval"]["start"], &run["data_interval"]["end"]);
        assert_eq!(time(end) - time(start), chrono::TimeDelta::days(1), "{run:#}");
        assert_eq!(end, &run["logical_time"], "{run:#}");
    }
    let waiting = eventually("a run that lacks one day", async || {
        let run = runs(&node, "three-days").await.pop()?;
        (run["waiting_for"].as_array().map(Vec::len) == Some(1)).then_some(run)
    })
    .await;
    let expect = json!([{"group": "up", "instant": "2012-01-03T00:00:00.000000Z", "need": "interval"}]);
    assert_eq!(
        (&waiting["state"], &waiting["waiting_for"]),
        (&json!("waiting"), &expect)
    );
    backfill("2012-01-03", "2012-01-03", 3).await;
    assert_eq!(node.ended(&heddle_tests::id(&waiting)).await["state"], "succeeded");
    assert_eq!(runs(&node, "three-days").await.len(), 1);
}

/// Deleting a run undoes no success, and what was left out stays left out. What did not succeed cannot be mended once it is
/// deleted, and so is not waited for.
#[tokio::test]
async fn deleted_runs_of_an_upstream() {
    let world = World::new().await;
    let sql = world.sql().await;
    // It does not matter that upkeep is due at once in a database that is a day old: these runs are of today, and so are
    // the rows that they leave, although their instants are long ago.
    sql.batch_execute("UPDATE heddle.upkeep SET due_at = '2000-01-01'")
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

/// A paused schedule of an upstream makes no instants, although the upstream keeps history: nobody waits for those that the
/// schedule would have, neither for the last one nor for those of an interval. What failed before the pause still has to be
/// mended, and a run by hand calls the followers without schedules.
#[tokio::test]
async fn an_upstream_whose_schedule_is_paused() {
    let (world, node) = World::with_node().await;
    let often = json!({"history": true, "schedules": {"s": {"every": "200ms"}}, "overlap": "allow"});
    let once = json!({"schedules": {"s": {"once": {"delay": "0s"}}}});
    // Pauses a group's schedule, and waits for what it has begun.
    let pause = async |group: &str| {
        let path = format!("/v1/groups/{group}/schedules/s/disable");
        node.post(&path, json!({})).await.expect_status(200);
        eventually("the end of all runs", async || {
            let runs = runs(&node, group).await;
            runs.iter().all(|run| run["finished_at"].is_string()).then_some(runs)
        })
        .await
    };
    node.put_group("up", with(hello(), often.clone())).await;
    eventually("runs", async || (runs(&node, "up").await.len() > 1).then_some(())).await;
    let made = pause("up").await;
    let since = world.now().await;
    node.put_group("latest", with(follows(json!(["up"])), once.clone()))
        .await;
    only_run(&node, "latest", "succeeded").await;
    let interval = json!({
        "schedules": {"s": {"every": "1s"}}, "overlap": "allow", "depends_on": [{"group": "up", "need": "interval"}],
    });
    node.put_group("interval", with(hello(), interval)).await;
    eventually("a run about paused time only", async || {
        runs(&node, "interval")
            .await
            .into_iter()
            .find(|run| time(&run["data_interval"]["start"]) > since && run["state"] == "succeeded")
    })
    .await;
    assert_eq!(runs(&node, "up").await.len(), made.len(), "the schedule is paused");

    settled(&world).await;
    node.put_group("called", follows(json!(["up"]))).await;
    node.run("up", json!({"logical_time": T1})).await;
    let called = only_run(&node, "called", "succeeded").await;
    assert_eq!(
        (&called["trigger"], &called["logical_time"]),
        (&json!("upstream"), &json!(T1))
    );

    node.put_group("failing", with(one(fails()), often)).await;
    only_run(&node, "failing", "failed").await;
    let last = pause("failing").await.pop().expect("a run");
    node.put_group("waits", with(follows(json!(["failing"])), once)).await;
    let waiting = eventually("a run that says what it waits for", async || {
        let run = runs(&node, "waits").await.pop();
        run.filter(|run| run["waiting_for"][0]["group"] == "failing")
    })
    .await;
    assert_eq!(
        waiting["waiting_for"][0]["instant"], last["logical_time"],
        "{waiting:#}"
    );
    let path = format!("/v1/runs/{}/state", heddle_tests::id(&last));
    node.put(&path, json!({"state": "succeeded", "reason": "it will do"}))
        .await
        .expect_status(200);
    assert_eq!(node.ended(&heddle_tests::id(&waiting)).await["state"], "succeeded");
}
