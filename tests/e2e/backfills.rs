//! Backfills: one run for each instant that needs one, whichever node dies, and never more at once than allowed.

use std::collections::{BTreeMap, BTreeSet};

use heddle_tests::{Api, World, eventually};
use serde_json::{Value, json};

use crate::{fails, one, sleeps, with};

const NONE: &str = "00000000-0000-0000-0000-000000000000";

/// A daily group that keeps history. Its schedule is over: a midnight during a test makes no run of its own.
fn daily(task: Value) -> Value {
    let daily = json!({"cron": "0 0 * * *", "starts_at": "2012-01-01", "ends_at": "2016-01-01"});
    with(one(task), json!({"history": true, "schedules": {"daily": daily}}))
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no text"))
        .to_owned()
}

fn hello() -> Value {
    json!({"script": "hello"})
}

async fn ask(api: &Api, group: &str, asked: Value) -> Value {
    api.post(&format!("/v1/groups/{group}/backfills"), asked)
        .await
        .expect_status(202)
}

async fn planned(api: &Api, group: &str, asked: Value) -> Vec<String> {
    let asked = with(asked, json!({"dry_run": true}));
    let plan = api
        .post(&format!("/v1/groups/{group}/backfills"), asked)
        .await
        .expect_status(200);
    plan["instants"].as_array().unwrap().iter().map(text).collect()
}

async fn look(api: &Api, backfill: &Value) -> Value {
    api.get(&format!("/v1/backfills/{}", text(&backfill["id"])))
        .await
        .expect_status(200)
}

/// A backfill at its end.
async fn ended(api: &Api, backfill: &Value) -> Value {
    eventually("end of the backfill", async || {
        let backfill = look(api, backfill).await;
        (backfill["finished_at"] != Value::Null).then_some(backfill)
    })
    .await
}

async fn runs(api: &Api, group: &str) -> Vec<Value> {
    api.all(&format!("/v1/runs?group={group}&limit=500")).await
}

fn days(runs: &[Value]) -> BTreeMap<String, usize> {
    let mut days = BTreeMap::new();
    for run in runs {
        *days
            .entry(run["logical_time"].as_str().unwrap()[..10].to_owned())
            .or_default() += 1;
    }
    days
}

#[tokio::test]
async fn each_instant_gets_its_run_in_order() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", with(daily(hello()), json!({"priority": 3}))).await;
    for (order, group) in [("asc", "up"), ("desc", "down")] {
        node.put_group(group, with(daily(hello()), json!({"priority": 3})))
            .await;
        let asked = json!({"from": "2012-02-27", "to": "2012-03-02T00:00:00Z", "order": order});
        let expect: Vec<String> = ["02-27", "02-28", "02-29", "03-01", "03-02"]
            .iter()
            .map(|day| format!("2012-{day}T00:00:00.000000Z"))
            .collect();
        let mut plan = planned(&node, group, asked.clone()).await;
        assert!(runs(&node, group).await.is_empty(), "a dry run stores nothing");
        let made = ask(&node, group, asked).await;
        assert_eq!(
            (&made["total"], &made["max_active"], &made["to"]),
            (&json!(5), &json!(1), &json!(expect[4]))
        );
        let end = ended(&node, &made).await;
        assert_eq!(
            (&end["state"], &end["counts"]),
            (&json!("succeeded"), &json!({"succeeded": 5}))
        );
        let mut runs = runs(&node, group).await;
        runs.sort_by_key(|run| text(&run["id"]));
        let found: Vec<String> = runs.iter().map(|run| text(&run["logical_time"])).collect();
        assert_eq!(found, plan);
        if order == "desc" {
            plan.reverse();
        }
        assert_eq!(plan, expect);
        for run in &runs {
            assert_eq!(
                (&run["trigger"], &run["priority"], &run["source"]),
                (&json!("backfill"), &json!(-7), &made["id"])
            );
            assert_eq!(run["data_interval"]["end"], run["logical_time"]);
        }
        // With `max_active: 1` one begins where the last one has ended.
        for pair in runs.windows(2) {
            assert!(
                pair[1]["created_at"].as_str() >= pair[0]["finished_at"].as_str(),
                "{pair:#?}"
            );
        }
    }
}

/// What a backfill causes in other groups has the priority that the backfill was given; otherwise it is as far below other
/// runs there as the backfill's own runs are. So it is with runs of dependants, and with sub-runs at any depth.
#[tokio::test]
async fn what_a_backfill_causes_is_as_urgent_as_its_runs() {
    let (_world, node) = World::with_node().await;
    let priority = |spec: Value, priority: i16| with(spec, json!({"priority": priority}));
    node.put_group("leaf", priority(one(hello()), 40)).await;
    node.put_group("middle", one(json!({"group": "leaf"}))).await;
    node.put_group("up", priority(daily(json!({"group": "middle"})), 5))
        .await;
    let down = with(one(hello()), json!({"depends_on": ["up"]}));
    node.put_group("down", priority(down, 50)).await;
    for (day, given, expect) in [
        ("2012-01-01", json!({}), [-5, 40, -10, 30]),
        ("2012-01-02", json!({"priority": 700}), [700; 4]),
        // The one that other runs of `up` have: it was given all the same.
        ("2012-01-03", json!({"priority": 5}), [5; 4]),
    ] {
        let asked = json!({"from": day, "to": day, "include_downstream": true});
        let made = ask(&node, "up", with(asked, given)).await;
        assert_eq!(made["priority"], expect[0]);
        for (group, expect) in ["up", "down", "middle", "leaf"].into_iter().zip(expect) {
            let run = eventually("a run", async || {
                let mut runs = runs(&node, group).await.into_iter();
                runs.find(|run| text(&run["logical_time"]).starts_with(day))
            })
            .await;
            assert_eq!(run["priority"], expect, "{group}: {run:#}");
        }
    }
    // Other runs have the priorities of their groups.
    node.run("up", json!({"logical_time": "2013-01-01T00:00:00Z"})).await;
    for (group, expect) in [("up", 5), ("down", 50), ("middle", 0), ("leaf", 40)] {
        let run = eventually("a run", async || {
            let mut runs = runs(&node, group).await.into_iter();
            runs.find(|run| text(&run["logical_time"]).starts_with("2013"))
        })
        .await;
        assert_eq!(run["priority"], expect, "{group}: {run:#}");
    }
}

/// Runs that are made together begin in the backfill's order: a worker who takes one after the other gets them so.
#[tokio::test]
async fn what_begins_together_begins_in_order() {
    let (_world, node) = World::with_node().await;
    for order in ["asc", "desc"] {
        node.put_group(order, daily(json!({"queue": order}))).await;
        let asked = json!({"from": "2012-01-01", "to": "2012-01-20", "order": order, "max_active": 20});
        ask(&node, order, asked).await;
        eventually("all runs", async || {
            (runs(&node, order).await.len() == 20).then_some(())
        })
        .await;
        let mut found = Vec::new();
        while found.len() < 20 {
            let claims = format!("/v1/queues/{order}/claims");
            let asked = json!({"worker": "w", "max": 1, "lease": "5m", "wait": "20s"});
            let claimed = node.post(&claims, asked).await.expect_status(200);
            found.push(text(&claimed["items"][0]["context"]["logical_time"])[..10].to_owned());
        }
        let mut expect: Vec<String> = (1..=20).map(|day| format!("2012-01-{day:02}")).collect();
        if order == "desc" {
            expect.reverse();
        }
        assert_eq!(found, expect);
    }
}

/// The audit of a backfill has the instants that were meant, as all times are written.
#[tokio::test]
async fn its_audit_tells_instants() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", with(daily(hello()), json!({"timezone": "Asia/Shanghai"})))
        .await;
    let asked = json!({"from": "2012-01-02", "to": "2012-01-03T00:00:00Z", "max_active": 2});
    let made = ask(&node, "g", asked).await;
    let audit = node.all("/v1/audit?kind=backfill&action=create").await;
    assert_eq!((audit.len(), &audit[0]["name"]), (1, &made["id"]));
    let after = &audit[0]["after"];
    let instants = json!(["2012-01-01T16:00:00.000000Z", "2012-01-03T00:00:00.000000Z"]);
    assert_eq!(json!([after["from"], after["to"]]), instants);
    assert_eq!(json!([made["from"], made["to"]]), instants);
    assert_eq!(after["max_active"], 2);
}

#[tokio::test]
async fn gaps_are_filled_and_failures_replaced() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", daily(hello())).await;
    let range = json!({"from": "2012-01-01", "to": "2012-01-10", "max_active": 4});
    ended(&node, &ask(&node, "g", range.clone()).await).await;
    assert!(planned(&node, "g", range.clone()).await.is_empty());
    // Lost runs are replenished.
    for run in runs(&node, "g").await {
        if ["2012-01-03", "2012-01-07"].contains(&&run["logical_time"].as_str().unwrap()[..10]) {
            node.delete(&format!("/v1/runs/{}", text(&run["id"])))
                .await
                .expect_status(204);
        }
    }
    let end = ended(&node, &ask(&node, "g", range.clone()).await).await;
    assert_eq!(
        (&end["total"], &end["counts"], &end["skipped"]),
        (&json!(2), &json!({"succeeded": 2}), &json!(8))
    );
    let found = days(&runs(&node, "g").await);
    assert!(
        found.len() == 10 && found.values().all(|count| *count == 1),
        "{found:?}"
    );
    // Failed ones are left alone, or replaced.
    node.put_group("g", daily(fails())).await;
    let two = json!({"from": "2012-01-10", "to": "2012-01-12", "max_active": 4});
    let end = ended(&node, &ask(&node, "g", two.clone()).await).await;
    assert_eq!(
        (&end["state"], &end["counts"]),
        (&json!("failed"), &json!({"failed": 2}))
    );
    node.put_group("g", daily(hello())).await;
    let skip = planned(&node, "g", two.clone()).await;
    assert!(skip.is_empty(), "{skip:?}");
    let end = ended(
        &node,
        &ask(&node, "g", with(two.clone(), json!({"on_existing": "failed"}))).await,
    )
    .await;
    assert_eq!((&end["counts"], &end["skipped"]), (&json!({"succeeded": 2}), &json!(1)));
    // All means all.
    let end = ended(&node, &ask(&node, "g", with(two, json!({"on_existing": "all"}))).await).await;
    assert_eq!(end["counts"], json!({"succeeded": 3}));
    assert_eq!(days(&runs(&node, "g").await)["2012-01-11"], 3);
}

#[tokio::test]
async fn replaced_runs_may_keep_their_scripts() {
    let (_world, node) = World::with_node().await;
    let upload = async |text: &str| {
        let wat = format!(
            r#"(module (import "wasi_snapshot_preview1" "fd_write" (func $w (param i32 i32 i32 i32) (result i32)))
                 (memory (export "memory") 1) (data (i32.const 16) "{text}")
                 (data (i32.const 0) "\10\00\00\00\01\00\00\00")
                 (func (export "_start") (drop (call $w (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))))"#
        );
        node.put_bytes("/v1/scripts/which", "application/wasm", wat)
            .await
            .expect_status(201)
    };
    upload("1").await;
    node.put_group("g", daily(json!({"script": "which"}))).await;
    let range = json!({"from": "2012-01-01", "to": "2012-01-01", "on_existing": "all"});
    let mut outputs = Vec::new();
    for (version, scripts) in [("", "active"), ("2", "pinned"), ("", "active")] {
        if !version.is_empty() {
            upload(version).await;
        }
        let end = ended(
            &node,
            &ask(&node, "g", with(range.clone(), json!({"scripts": scripts}))).await,
        )
        .await;
        assert_eq!(end["counts"], json!({"succeeded": 1}));
        let last = runs(&node, "g").await.remove(0);
        let run = node.run_now(&text(&last["id"])).await;
        outputs.push(heddle_tests::task(&run, "t")["output"].clone());
    }
    assert_eq!(outputs, [json!(1), json!(1), json!(2)]);
}

/// Who wants the past only disables the schedule, and names no step; where another schedule is enabled, only that one counts.
#[tokio::test]
async fn disabled_schedules() {
    let (_world, node) = World::with_node().await;
    let off = json!({"cron": "0 0 * * *", "enabled": false});
    let spec = |schedules: Value| with(one(hello()), json!({"history": true, "schedules": schedules}));
    node.put_group("off", spec(json!({"d": off}))).await;
    let asked = json!({"from": "2024-01-01", "to": "2024-01-03"});
    let days = planned(&node, "off", asked.clone()).await;
    assert_eq!(days.len(), 3, "{days:#?}");
    let made = node
        .post("/v1/groups/off/backfills", asked.clone())
        .await
        .expect_status(202);
    let path = format!("/v1/backfills/{}", text(&made["id"]));
    eventually("end of the backfill", async || {
        let now = node.get(&path).await.expect_status(200);
        (now["state"] == "succeeded" && now["total"] == 3).then_some(())
    })
    .await;
    // A day of data each, as if the schedule had made them.
    for run in heddle_tests::runs(&node, "off").await {
        let interval = &run["data_interval"];
        assert_eq!(
            heddle_tests::seconds(&interval["start"], &interval["end"]),
            86_400.0,
            "{run:#}"
        );
    }
    node.put_group("both", spec(json!({"d": off, "monthly": {"cron": "0 0 1 * *"}})))
        .await;
    assert_eq!(planned(&node, "both", asked.clone()).await.len(), 1);
    node.put_group("once", spec(json!({"o": {"after": "1h", "enabled": false}})))
        .await;
    node.post("/v1/groups/once/backfills", asked)
        .await
        .expect_problem(422, &["/step"]);
}

#[tokio::test]
async fn what_cannot_be_is_refused() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", daily(json!({"script": "sleep"}))).await;
    node.put_group("steps", with(one(hello()), json!({"history": true})))
        .await;
    node.put_group("never", one(hello())).await;
    let post = async |group: &str, asked: Value| node.post(&format!("/v1/groups/{group}/backfills"), asked).await;
    let from = json!({"from": "2012-01-01"});
    post("never", from.clone()).await.expect_said(409, "history");
    post("nobody", from.clone()).await.expect_problem(404, &[]);
    post("steps", from.clone()).await.expect_problem(422, &["/step"]);
    for (field, value) in [
        ("to", json!("2099-01-01")),
        ("to", json!("tomorrow")),
        ("order", json!("up")),
        ("max_active", json!(0)),
        ("max_active", json!(-1)),
        ("on_existing", json!("x")),
        ("scripts", json!("x")),
        ("step", json!("0s")),
        ("priority", json!(5000)),
        ("nonsense", json!(1)),
    ] {
        let mut asked = from.clone();
        asked[field] = value;
        post("g", asked).await.expect_problem(422, &[&format!("/{field}")]);
    }
    post("g", json!({"from": "2012-01-02", "to": "2012-01-01"}))
        .await
        .expect_problem(422, &["/from"]);
    post("g", json!({"from": "2099-01-01"}))
        .await
        .expect_problem(422, &["/from"]);
    post("g", with(from.clone(), json!({"params": {"seconds": "x"}})))
        .await
        .expect_problem(422, &["/params/seconds"]);
    let many = json!({"from": "2012-01-01T00:00:00Z", "to": "2012-01-12T13:46:40Z", "step": "1s"});
    post("steps", many.clone()).await.expect_said(422, "1000001");
    // So are those of schedules, whatever their kind.
    let seconds = json!({"every": "1s", "anchor": "2012-01-01T00:00:00Z"});
    for (name, schedule, many, count) in [
        (
            "cron",
            json!({"cron": "* * * * * *"}),
            json!({"from": "2012-01-01", "to": "2013-01-01"}),
            "31622401",
        ),
        (
            "every",
            seconds,
            json!({"from": "2012-01-01", "to": "2015-01-01"}),
            "94694401",
        ),
    ] {
        let spec = json!({"history": true, "schedules": {"s": with(schedule, json!({"enabled": true, "starts_at": "2012-01-01", "ends_at": "2016-01-01"}))}});
        node.put_group(name, with(one(hello()), spec)).await;
        post(name, many).await.expect_problem(422, &["/from"])["errors"][0]["detail"]
            .as_str()
            .filter(|detail| detail.contains(count))
            .expect("the count");
    }
    let steps = json!({"from": "2012-01-01T00:00:00Z", "to": "2012-01-01T01:00:00Z", "step": "20m"});
    assert_eq!(planned(&node, "steps", steps).await.len(), 4);
    for action in ["", "/pause", "/resume", "/cancel"] {
        let path = format!("/v1/backfills/{NONE}{action}");
        let reply = if action.is_empty() {
            node.get(&path).await
        } else {
            node.post(&path, json!({})).await
        };
        reply.expect_problem(404, &[]);
    }
    node.post("/v1/groups/g/disable", json!({})).await.expect_status(200);
    post("g", from).await.expect_said(409, "disabled");
}

#[tokio::test]
async fn it_pauses_resumes_and_is_cancelled() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", daily(sleeps(0.2))).await;
    let made = ask(
        &node,
        "g",
        json!({"from": "2012-01-01", "to": "2012-12-31", "max_active": 3}),
    )
    .await;
    let control = async |action: &str| {
        node.post(&format!("/v1/backfills/{}/{action}", text(&made["id"])), json!({}))
            .await
    };
    let some = async |least: i64| {
        eventually("ended runs", async || {
            let backfill = look(&node, &made).await;
            (backfill["counts"]["succeeded"].as_i64() >= Some(least)).then_some(backfill)
        })
        .await
    };
    some(3).await;
    assert_eq!(control("pause").await.expect_status(200)["state"], "paused");
    control("pause").await.expect_problem(409, &[]);
    let count = runs(&node, "g").await.len() as i64;
    // What is active ends; nothing follows.
    let paused = some(count).await;
    assert_eq!(
        (&paused["counts"]["succeeded"], &paused["counts"]["pending"]),
        (&json!(count), &json!(366 - count))
    );
    assert_eq!(control("resume").await.expect_status(200)["state"], "running");
    control("resume").await.expect_problem(409, &[]);
    some(count + 3).await;
    assert_eq!(control("cancel").await.expect_status(200)["state"], "cancelled");
    let end = ended(&node, &made).await;
    let all = runs(&node, "g").await;
    assert!(
        all.iter()
            .all(|run| ["succeeded", "cancelled"].contains(&run["state"].as_str().unwrap())),
        "{all:#?}"
    );
    assert!(all.iter().any(|run| run["state"] == "cancelled"));
    assert_eq!((&end["state"], &end["total"]), (&json!("cancelled"), &json!(366)));
    for action in ["cancel", "pause", "resume"] {
        control(action).await.expect_problem(409, &[]);
    }
    let list = node.get("/v1/backfills?group=g").await.expect_status(200);
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}

/// Without `to` it ends when it has caught up; what the schedule makes meanwhile is not made twice.
#[tokio::test]
async fn it_shares_instants_with_a_live_schedule() {
    let (_world, node) = World::with_node().await;
    let every = json!({"every": "200ms", "anchor": "2026-01-01T00:00:00Z"});
    node.put_group(
        "g",
        with(daily(hello()), json!({"schedules": {"s": every}, "overlap": "allow"})),
    )
    .await;
    eventually("scheduled runs", async || {
        (runs(&node, "g").await.len() > 3).then_some(())
    })
    .await;
    let latest = text(&runs(&node, "g").await[0]["logical_time"]);
    let from = latest.parse::<chrono::DateTime<chrono::Utc>>().unwrap() - chrono::TimeDelta::seconds(60);
    for (order, on_existing) in [("desc", "skip"), ("asc", "failed")] {
        let asked = json!({"from": from.to_rfc3339(), "order": order, "on_existing": on_existing, "max_active": 8});
        let end = ended(&node, &ask(&node, "g", asked).await).await;
        assert_eq!(end["state"], "succeeded", "{end:#}");
    }
    node.post("/v1/groups/g/disable", json!({})).await.expect_status(200);
    let all = runs(&node, "g").await;
    let times: BTreeSet<String> = all.iter().map(|run| text(&run["logical_time"])).collect();
    assert_eq!(times.len(), all.len(), "no instant has two runs");
    assert!(times.len() > 300, "{}", times.len());
}

/// Nodes die, one after the other; the backfill goes on with `max_active` and makes each run once.
#[tokio::test]
async fn it_outlives_nodes() {
    let world = World::new().await;
    let mut nodes = world.nodes(3).await;
    nodes[0].put_group("g", daily(sleeps(0.05))).await;
    let made = ask(
        &nodes[0],
        "g",
        json!({"from": "2012-01-01", "to": "2012-10-26", "max_active": 7}),
    )
    .await;
    let sql = world.sql().await;
    let watch = tokio::spawn(async move {
        let mut most = 0i64;
        while sql
            .query_one("SELECT count(*) FROM heddle.backfills WHERE finished_at IS NULL", &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            > 0
        {
            let count = "SELECT count(*) FROM heddle.runs_live WHERE source IS NOT NULL";
            most = most.max(sql.query_one(count, &[]).await.unwrap().get(0));
        }
        most
    });
    for victim in 0..3 {
        let other = (victim + 1) % 3;
        let before = runs(nodes[other].api(), "g").await.len();
        nodes[victim].kill();
        eventually("more runs", async || {
            let made_now = runs(nodes[other].api(), "g").await.len();
            (made_now > before + 10 || look(&nodes[other], &made).await["finished_at"] != Value::Null).then_some(())
        })
        .await;
        nodes[victim] = world.node().await;
    }
    let end = ended(&nodes[0], &made).await;
    assert_eq!(
        (&end["state"], &end["counts"]),
        (&json!("succeeded"), &json!({"succeeded": 300}))
    );
    let found = days(&runs(&nodes[0], "g").await);
    assert!(
        found.len() == 300 && found.values().all(|count| *count == 1),
        "{found:?}"
    );
    let most = watch.await.unwrap();
    assert!((1..=7).contains(&most), "{most} were active at once");
}

/// Two backfills of the same days from both ends, each with one run at a time: they meet in the middle, a node dies,
/// one of them pauses, nodes are woken for the other one all the time, and each day has one run; neither ever has two
/// at once.
#[tokio::test]
async fn one_run_follows_the_other() {
    let world = World::new().await;
    let mut nodes = world.nodes(2).await;
    for group in ["g", "h"] {
        nodes[0].put_group(group, daily(sleeps(0.04))).await;
    }
    let asked = |order: &str| json!({"from": "2012-01-01", "to": "2012-04-29", "order": order});
    let made = [
        ask(&nodes[0], "g", asked("asc")).await,
        ask(&nodes[1], "g", asked("desc")).await,
    ];
    let sql = world.sql().await;
    let watch = tokio::spawn(async move {
        let (open, count) = (
            "SELECT count(*) FROM heddle.backfills WHERE finished_at IS NULL",
            "SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM heddle.runs_live WHERE source IS NOT NULL
              GROUP BY source) AS active",
        );
        let mut most = 0i64;
        while sql.query_one(open, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            most = most.max(sql.query_one(count, &[]).await.unwrap().get(0));
        }
        most
    });
    let other = ask(&nodes[0], "h", json!({"from": "2012-01-01", "to": "2012-12-31"})).await;
    let more = async |node: &Api, than: usize| {
        eventually("more runs", async || {
            for action in ["pause", "resume"] {
                node.post(&format!("/v1/backfills/{}/{action}", text(&other["id"])), json!({}))
                    .await
                    .expect_status(200);
            }
            (runs(node, "g").await.len() > than).then_some(())
        })
        .await;
    };
    more(nodes[0].api(), 40).await;
    let paused = format!("/v1/backfills/{}/pause", text(&made[0]["id"]));
    nodes[0].post(&paused, json!({})).await.expect_status(200);
    more(nodes[0].api(), 60).await;
    nodes[1].kill();
    let resumed = format!("/v1/backfills/{}/resume", text(&made[0]["id"]));
    nodes[0].post(&resumed, json!({})).await.expect_status(200);
    more(nodes[0].api(), 80).await;
    nodes[1] = world.node().await;
    let mut total = 0;
    for made in &made {
        let end = ended(&nodes[1], made).await;
        assert_eq!(end["state"], "succeeded", "{end:#}");
        total += end["counts"]["succeeded"].as_i64().unwrap();
    }
    let found = days(&runs(&nodes[0], "g").await);
    assert_eq!((total, found.len()), (120, 120));
    assert!(found.values().all(|count| *count == 1), "{found:?}");
    nodes[0]
        .post(&format!("/v1/backfills/{}/cancel", text(&other["id"])), json!({}))
        .await
        .expect_status(200);
    assert_eq!(watch.await.unwrap(), 1, "at once");
}

/// Four years of days, in less than three seconds with a release build; here only not one after the other.
#[tokio::test]
async fn there_is_no_barrier_between_batches() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", daily(hello())).await;
    let made = ask(
        &node,
        "g",
        json!({"from": "2012-01-01", "to": "2015-12-31", "max_active": 200}),
    )
    .await;
    assert_eq!(made["total"], 1_461);
    let end = ended(&node, &made).await;
    assert_eq!(end["counts"], json!({"succeeded": 1_461}));
    assert_eq!(days(&runs(&node, "g").await).len(), 1_461);
}

/// Instants that are done again bring their dependants along where these have no run yet, and not a second time where
/// they have: a dependant runs once for a logical time.
#[tokio::test]
async fn done_again_with_dependants() {
    let (_world, node) = World::with_node().await;
    node.put_group("up", daily(hello())).await;
    node.put_group("down", with(one(hello()), json!({"depends_on": ["up"]})))
        .await;
    let asked = |to: &str, more: Value| with(json!({"from": "2012-01-01", "to": to, "max_active": 5}), more);
    // Without dependants, then the first three with them, then all.
    ended(&node, &ask(&node, "up", asked("2012-01-05", json!({}))).await).await;
    let all = json!({"on_existing": "all", "include_downstream": true});
    for (to, expect) in [("2012-01-03", 3), ("2012-01-05", 5)] {
        let end = ended(&node, &ask(&node, "up", asked(to, all.clone())).await).await;
        assert_eq!(end["counts"], json!({"succeeded": expect}), "{end:#}");
        eventually("dependants", async || {
            let down = runs(&node, "down").await;
            (down.len() >= expect && down.iter().all(|run| run["state"] == "succeeded")).then_some(())
        })
        .await;
        let found = days(&runs(&node, "down").await);
        assert!(
            found.len() == expect && found.values().all(|count| *count == 1),
            "{found:?}"
        );
    }
    let up = days(&runs(&node, "up").await);
    assert_eq!(up.values().copied().collect::<Vec<_>>(), [3, 3, 3, 2, 2]);
    let down = runs(&node, "down").await;
    assert!(down.iter().all(|run| run["trigger"] == "upstream"), "{down:#?}");
    // One whose run was deleted, here that of the newest instant, has none any more.
    let [.., newest] = &heddle_tests::runs(&node, "down").await[..] else {
        panic!("{down:#?}")
    };
    node.delete(&format!("/v1/runs/{}", heddle_tests::id(newest)))
        .await
        .expect_status(204);
    ended(&node, &ask(&node, "up", asked("2012-01-05", all)).await).await;
    let again = eventually("the deleted one's successor", async || {
        let down = heddle_tests::runs(&node, "down").await;
        (down.len() == 5).then_some(down)
    })
    .await;
    assert_eq!(again[4]["logical_time"], newest["logical_time"]);
    assert_ne!(again[4]["id"], newest["id"]);
}
