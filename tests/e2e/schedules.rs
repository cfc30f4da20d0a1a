//! Schedules: each instant makes one run, whoever dies; what people change is followed everywhere.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use heddle_tests::{Api, World, eventually, within};
use serde_json::{Value, json};

use crate::{sleeps, with};

/// A group that does nothing, on time.
fn scheduled(schedules: Value) -> Value {
    json!({"schedules": schedules, "tasks": {"t": {"script": "hello"}}})
}

fn text(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Micros, true)
}

fn time(value: &Value) -> DateTime<Utc> {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is no time"))
        .parse()
        .unwrap()
}

/// All runs of a group, oldest instant first.
async fn runs(api: &Api, group: &str) -> Vec<Value> {
    let mut runs = api.all(&format!("/v1/runs?group={group}&limit=500")).await;
    runs.sort_by_key(|run| time(&run["logical_time"]));
    runs
}

/// The database's clock: that is the one that schedules follow.
async fn now(world: &World) -> DateTime<Utc> {
    let sql = world.sql().await;
    let text: String = sql
        .query_one(
            "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    text.parse().unwrap()
}

/// Three nodes, 60 instants, and somebody dies all the time.
#[tokio::test]
async fn sixty_instants_make_sixty_runs() {
    let world = World::new().await;
    let mut nodes = world.nodes(3).await;
    let from = now(&world).await + TimeDelta::seconds(1);
    let window = json!({
        "every": "250ms", "anchor": text(from), "starts_at": text(from), "ends_at": text(from + TimeDelta::seconds(15)),
    });
    // A second schedule names every other instant again: these are the same.
    let again = with(window.clone(), json!({"every": "500ms"}));
    nodes[0]
        .put_group(
            "g",
            with(scheduled(json!({"a": window, "b": again})), json!({"overlap": "allow"})),
        )
        .await;
    let until = from + TimeDelta::seconds(14);
    let mut victim = 0;
    while now(&world).await < until {
        let before = runs(nodes[(victim + 1) % 3].api(), "g").await.len();
        nodes[victim].kill();
        // The others fire on.
        eventually("more runs", async || {
            (runs(nodes[(victim + 1) % 3].api(), "g").await.len() > before + 2 || now(&world).await > until)
                .then_some(())
        })
        .await;
        nodes[victim] = world.node().await;
        victim = (victim + 1) % 3;
    }
    let all = eventually("60 ended runs", async || {
        let all = runs(nodes[0].api(), "g").await;
        (all.len() >= 60 && all.iter().all(|run| run["state"] == "succeeded")).then_some(all)
    })
    .await;
    let expect: Vec<String> = (0..60).map(|n| text(from + TimeDelta::milliseconds(250 * n))).collect();
    let found: Vec<&str> = all.iter().map(|run| run["logical_time"].as_str().unwrap()).collect();
    assert_eq!(found, expect);
    for run in &all {
        let before = time(&run["logical_time"]) - TimeDelta::milliseconds(250);
        assert_eq!(
            run["data_interval"],
            json!({"start": text(before), "end": run["logical_time"]}),
            "{run:#}"
        );
        assert_eq!(run["trigger"], "schedule");
    }
}

/// A fixed rate counts from its anchor whatever its runs do; a fixed delay from the end of the run before.
#[tokio::test]
async fn fixed_rate_against_fixed_delay() {
    let world = World::new().await;
    let node = world.node().await;
    let slow = |schedule: Value| json!({"schedules": {"s": schedule}, "overlap": "allow", "tasks": {"t": sleeps(0.5)}});
    node.put_group("rate", slow(json!({"every": "300ms"}))).await;
    node.put_group("delay", slow(json!({"after": "300ms"}))).await;
    let ended = |group: &'static str, count: usize| {
        let api = node.api().clone();
        async move {
            eventually("ended runs", async || {
                let all = runs(&api, group).await;
                (all.iter().filter(|run| run["state"] == "succeeded").count() >= count).then_some(all)
            })
            .await
        }
    };
    let rate = ended("rate", 5).await;
    for pair in rate.windows(2) {
        assert_eq!(
            time(&pair[1]["logical_time"]) - time(&pair[0]["logical_time"]),
            TimeDelta::milliseconds(300)
        );
    }
    let delay = ended("delay", 3).await;
    for pair in delay.windows(2) {
        assert_eq!(
            time(&pair[1]["logical_time"]) - time(&pair[0]["finished_at"]),
            TimeDelta::milliseconds(300)
        );
    }
}

/// A group that is disabled on one node fires on none; what was due meanwhile is never made up.
#[tokio::test]
async fn disabled_on_one_node_is_seen_on_another() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    nodes[0]
        .put_group("g", scheduled(json!({"s": {"every": "100ms", "misfire": "all"}})))
        .await;
    let count = async || runs(nodes[1].api(), "g").await.len();
    eventually("runs", async || (count().await > 3).then_some(())).await;
    nodes[0]
        .post("/v1/groups/g/disable", json!({}))
        .await
        .expect_status(200);
    let disabled = now(&world).await;
    within(Duration::from_secs(2), "disabled group on the other node", async || {
        let group = nodes[1].get("/v1/groups/g").await.expect_status(200);
        (group["enabled"] == false && group["schedules"]["s"]["next"].is_null()).then_some(())
    })
    .await;
    let before = count().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(count().await, before, "a disabled group fires");
    let enabled = now(&world).await;
    nodes[1].post("/v1/groups/g/enable", json!({})).await.expect_status(200);
    eventually("runs again", async || (count().await > before + 3).then_some(())).await;
    for run in runs(nodes[0].api(), "g").await {
        let at = time(&run["logical_time"]);
        assert!(
            at <= disabled || at >= enabled,
            "{at} lies between {disabled} and {enabled}"
        );
    }
}

/// `once` fires once and disables itself; putting the same spec again does not bring it back.
#[tokio::test]
async fn once_disables_itself() {
    let world = World::new().await;
    let node = world.node().await;
    let spec = scheduled(json!({"s": {"once": {"delay": "200ms"}}}));
    node.put_group("g", spec.clone()).await;
    let group = eventually("a schedule that has fired", async || {
        let group = node.get("/v1/groups/g").await.expect_status(200);
        (group["schedules"]["s"]["enabled"] == false).then_some(group)
    })
    .await;
    assert!(group["schedules"]["s"]["next"].is_null(), "{group:#}");
    for spec in [spec, group] {
        let again = node.put("/v1/groups/g", spec).await.expect_status(200);
        assert_eq!(
            (&again["revision"], &again["schedules"]["s"]["enabled"]),
            (&json!(1), &json!(false))
        );
    }
    assert_eq!(runs(node.api(), "g").await.len(), 1);
}

/// What becomes of a run that comes while another one is active.
#[tokio::test]
async fn overlap() {
    let world = World::new().await;
    let node = world.node().await;
    let spec = |overlap: &str| json!({"schedules": {"s": {"every": "300ms"}}, "overlap": overlap, "tasks": {"t": sleeps(0.5)}});
    for overlap in ["queue", "skip", "cancel_previous"] {
        node.put_group(overlap, spec(overlap)).await;
    }
    let states = async |group: &str| -> Vec<String> {
        runs(node.api(), group)
            .await
            .iter()
            .map(|run| run["state"].as_str().unwrap().to_owned())
            .collect()
    };
    eventually("a queue", async || {
        let states = states("queue").await;
        let active = states.iter().filter(|state| *state == "running").count();
        assert!(active <= 1, "{states:?}");
        (states.iter().filter(|state| *state == "waiting").count() >= 2).then_some(())
    })
    .await;
    eventually("a skipped instant", async || {
        let all = runs(node.api(), "skip").await;
        let skipped = all.iter().find(|run| run["state"] == "cancelled")?;
        assert!(
            skipped["error"]["message"].as_str()?.starts_with("skipped: "),
            "{skipped:#}"
        );
        assert!(skipped["started_at"].is_null(), "{skipped:#}");
        Some(())
    })
    .await;
    eventually("cancelled runs", async || {
        let states = states("cancel_previous").await;
        (states.iter().filter(|state| *state == "cancelled").count() >= 2).then_some(())
    })
    .await;
}

/// Instants missed while nobody ran: one run, none, or all of them.
#[tokio::test]
async fn misfire() {
    let world = World::new().await;
    let mut node = world.node().await;
    let from = now(&world).await + TimeDelta::milliseconds(1500);
    let spec = |misfire: &str| {
        scheduled(json!({"s": {
            "every": "100ms", "anchor": text(from), "starts_at": text(from), "ends_at": text(from + TimeDelta::seconds(1)),
            "grace": "0s", "misfire": misfire,
        }}))
    };
    for misfire in ["once", "skip", "all"] {
        node.put_group(misfire, with(spec(misfire), json!({"overlap": "allow"})))
            .await;
    }
    assert!(now(&world).await < from, "the test machine is too slow to tell");
    node.kill();
    let over = from + TimeDelta::milliseconds(1100);
    eventually("end of the window", async || (now(&world).await > over).then_some(())).await;
    node = world.node().await;
    let decided = async |group: &str| {
        eventually("decision", async || {
            let sql = world.sql().await;
            let open: i64 = sql
                .query_one(
                    "SELECT count(*) FROM heddle.schedules s JOIN heddle.groups g ON g.id = s.group_id
                      WHERE g.name = $1 AND next_fire_at IS NOT NULL",
                    &[&group],
                )
                .await
                .unwrap()
                .get(0);
            (open == 0).then_some(())
        })
        .await;
        runs(node.api(), group)
            .await
            .iter()
            .map(|run| time(&run["logical_time"]))
            .collect::<Vec<_>>()
    };
    let all: Vec<DateTime<Utc>> = (0..10).map(|n| from + TimeDelta::milliseconds(100 * n)).collect();
    assert_eq!(decided("once").await, all[9..]);
    assert_eq!(decided("skip").await, Vec::<DateTime<Utc>>::new());
    assert_eq!(decided("all").await, all);
}

/// The seven-field cron of other systems, and what is next.
#[tokio::test]
async fn next_instants() {
    let world = World::new().await;
    let node = world.node().await;
    node.put_group(
        "g",
        scheduled(json!({"s": {"cron": "0/5 * * * * * ?"}, "off": {"every": "1s", "enabled": false}})),
    )
    .await;
    let next = node.get("/v1/groups/g/next?count=3").await.expect_status(200);
    let instants: Vec<DateTime<Utc>> = next["instants"].as_array().unwrap().iter().map(time).collect();
    assert_eq!(instants.len(), 3, "{next:#}");
    assert!(instants.iter().all(|at| at.timestamp() % 5 == 0), "{next:#}");
    assert_eq!(instants[2] - instants[0], TimeDelta::seconds(10));
    let group = node.get("/v1/groups/g").await.expect_status(200);
    assert!(
        group["schedules"]["s"]["next"].is_string() && group["schedules"]["off"]["next"].is_null(),
        "{group:#}"
    );
    let made: BTreeSet<i64> = eventually("a run", async || {
        let all = runs(node.api(), "g").await;
        (!all.is_empty()).then(|| {
            all.iter()
                .map(|run| time(&run["logical_time"]).timestamp() % 5)
                .collect()
        })
    })
    .await;
    assert_eq!(made, BTreeSet::from([0]));
}

/// A run that people start is about the time since the instant before.
#[tokio::test]
async fn a_manual_run_has_the_interval_up_to_its_time() {
    let world = World::new().await;
    let node = world.node().await;
    node.put_group("g", scheduled(json!({"s": {"cron": "0 0 * * *"}})))
        .await;
    let run = node.run("g", json!({"logical_time": "2026-03-05T10:30:00Z"})).await;
    let expect = json!({"start": "2026-03-05T00:00:00.000000Z", "end": "2026-03-05T10:30:00.000000Z"});
    assert_eq!(run["data_interval"], expect);
}
