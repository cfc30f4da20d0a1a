//! Schedules: each instant makes one run, whoever dies; what people change is followed everywhere.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use heddle_tests::{World, eventually, runs, time};
use serde_json::{Value, json};

use crate::{sleeps, with};

/// A group that does nothing, on time.
fn scheduled(schedules: Value) -> Value {
    json!({"schedules": schedules, "tasks": {"t": {"script": "hello"}}})
}

fn text(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// Three nodes, 60 instants, and somebody dies all the time.
#[tokio::test]
async fn sixty_instants_make_sixty_runs() {
    let world = World::new().await;
    let mut nodes = world.nodes(3).await;
    let from = world.now().await + TimeDelta::seconds(4);
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
    while world.now().await < until {
        let before = runs(nodes[(victim + 1) % 3].api(), "g").await.len();
        nodes[victim].kill();
        // The others fire on.
        eventually("more runs", async || {
            (runs(nodes[(victim + 1) % 3].api(), "g").await.len() > before + 2 || world.now().await > until)
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
    let (_world, node) = World::with_node().await;
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
    let disabled = world.now().await;
    eventually("disabled group on the other node", async || {
        let group = nodes[1].get("/v1/groups/g").await.expect_status(200);
        (group["enabled"] == false && group["schedules"]["s"]["next"].is_null()).then_some(())
    })
    .await;
    let before = count().await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(count().await, before, "a disabled group fires");
    let enabled = world.now().await;
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
    let (_world, node) = World::with_node().await;
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

/// Another zone of the group makes up nothing of what is over, and starts nothing anew that has no local time.
#[tokio::test]
async fn another_zone_of_the_group() {
    let (world, node) = World::with_node().await;
    let spec = scheduled(json!({"s": {"every": "200ms", "misfire": "all"}, "o": {"once": {"delay": "0s"}}}));
    let spec = with(spec, json!({"overlap": "allow"}));
    node.put_group("g", spec.clone()).await;
    let count = async || runs(node.api(), "g").await.len();
    eventually("a schedule that has fired", async || {
        let group = node.get("/v1/groups/g").await.expect_status(200);
        (group["schedules"]["o"]["enabled"] == false && count().await > 2).then_some(())
    })
    .await;
    node.post("/v1/groups/g/disable", json!({})).await.expect_status(200);
    let disabled = world.now().await;
    eventually("several instants of the disabled time", async || {
        (world.now().await > disabled + TimeDelta::seconds(1)).then_some(())
    })
    .await;
    let enabled = world.now().await;
    node.post("/v1/groups/g/enable", json!({})).await.expect_status(200);
    let before = count().await;
    let group = node
        .put_group("g", with(spec, json!({"timezone": "Asia/Shanghai"})))
        .await;
    assert_eq!(group["schedules"]["o"]["enabled"], false, "{group:#}");
    eventually("runs again", async || (count().await > before + 3).then_some(())).await;
    for run in runs(node.api(), "g").await {
        let at = time(&run["logical_time"]);
        assert!(
            at <= disabled || at >= enabled,
            "{at} lies between {disabled} and {enabled}"
        );
    }
}

/// What becomes of a run that comes while another one is active.
#[tokio::test]
async fn overlap() {
    let (_world, node) = World::with_node().await;
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
        let all = runs(node.api(), "cancel_previous").await;
        let cancelled: Vec<&Value> = all.iter().filter(|run| run["state"] == "cancelled").collect();
        for run in &cancelled {
            let why = run["error"]["message"].as_str().unwrap_or_default();
            assert!(why.contains("overlap: cancel_previous"), "{run:#}");
        }
        (cancelled.len() >= 2).then_some(())
    })
    .await;
}

/// Instants missed while nobody ran: one run, none, or all of them.
#[tokio::test]
async fn misfire() {
    let (world, mut node) = World::with_node().await;
    // The groups have to be there before the first instant; if the machine is too busy for that, once more with more time.
    let (mut lead, mut attempt) = (TimeDelta::milliseconds(1500), 0);
    let (from, named) = loop {
        let from = world.now().await + lead;
        let named = move |misfire: &str| format!("{misfire}-{attempt}");
        for misfire in ["once", "skip", "all"] {
            let window = json!({"s": {
                "every": "100ms", "anchor": text(from), "starts_at": text(from),
                "ends_at": text(from + TimeDelta::seconds(1)), "grace": "0s", "misfire": misfire,
            }});
            node.put_group(&named(misfire), with(scheduled(window), json!({"overlap": "allow"})))
                .await;
        }
        if world.now().await + TimeDelta::milliseconds(500) < from {
            break (from, named);
        }
        lead += lead;
        attempt += 1;
    };
    node.kill();
    let over = from + TimeDelta::milliseconds(1100);
    eventually("end of the window", async || (world.now().await > over).then_some(())).await;
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
    assert_eq!(decided(&named("once")).await, all[9..]);
    assert_eq!(decided(&named("skip")).await, Vec::<DateTime<Utc>>::new());
    assert_eq!(decided(&named("all")).await, all);
}

/// The seven-field cron of other systems, and what is next.
#[tokio::test]
async fn next_instants() {
    let (_world, node) = World::with_node().await;
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
    let (_world, node) = World::with_node().await;
    node.put_group("g", scheduled(json!({"s": {"cron": "0 0 * * *"}})))
        .await;
    let run = node.run("g", json!({"logical_time": "2026-03-05T10:30:00Z"})).await;
    let expect = json!({"start": "2026-03-05T00:00:00.000000Z", "end": "2026-03-05T10:30:00.000000Z"});
    assert_eq!(run["data_interval"], expect);
}

/// The first run comes after the initial delay, whatever the kind.
#[tokio::test]
async fn initial_delay() {
    let (_world, node) = World::with_node().await;
    let kinds = [
        ("rate", json!({"every": "1h", "initial_delay": "1s"}), true),
        ("delay", json!({"after": "1h", "initial_delay": "1s"}), true),
        (
            "once",
            json!({"once": {"delay": "500ms"}, "initial_delay": "500ms"}),
            true,
        ),
        ("cron", json!({"cron": "* * * * * *", "initial_delay": "1500ms"}), false),
    ];
    for (name, schedule, exact) in kinds {
        let group = node.put_group(name, scheduled(json!({"s": schedule}))).await;
        let first = eventually("a run", async || runs(node.api(), name).await.into_iter().next()).await;
        let after = time(&first["logical_time"]) - time(&group["created_at"]);
        match exact {
            true => assert_eq!(after, TimeDelta::seconds(1), "{name}: {first:#}"),
            // The first whole second that is not before it.
            false => assert!(
                after >= TimeDelta::milliseconds(1500) && after < TimeDelta::milliseconds(2500),
                "{name}: {after} {first:#}"
            ),
        }
        node.delete(&format!("/v1/groups/{name}?force=true"))
            .await
            .expect_status(200);
    }
}

/// A window has its beginning in it and not its end; local times are those of the schedule's zone, or else the group's.
#[tokio::test]
async fn windows_and_zones() {
    let (world, node) = World::with_node().await;
    // (To the second, as wall clocks show it.)
    let from = chrono::DurationRound::duration_trunc(world.now().await, TimeDelta::seconds(1)).unwrap()
        + TimeDelta::seconds(8);
    let local = |at: DateTime<Utc>, hours: i64| {
        (at + TimeDelta::minutes(60 * hours + 30))
            .format("%Y-%m-%dT%H:%M:%S")
            .to_string()
    };
    let window =
        |hours: i64| json!({"starts_at": local(from, hours), "ends_at": local(from + TimeDelta::seconds(3), hours)});
    let cron = |more: Value| with(json!({"cron": "* * * * * *"}), more);
    // Five and a half hours, without a clock change, and nine and a half.
    let own = with(window(5), json!({"timezone": "Asia/Kolkata"}));
    node.put_group(
        "own",
        with(
            scheduled(json!({"s": cron(own)})),
            json!({"overlap": "allow", "timezone": "Australia/Darwin"}),
        ),
    )
    .await;
    node.put_group(
        "group",
        with(
            scheduled(json!({"s": cron(window(9))})),
            json!({"overlap": "allow", "timezone": "Australia/Darwin"}),
        ),
    )
    .await;
    let expect: Vec<DateTime<Utc>> = (0..3).map(|n| from + TimeDelta::seconds(n)).collect();
    for name in ["own", "group"] {
        let next = node
            .get(&format!("/v1/groups/{name}/next?count=50"))
            .await
            .expect_status(200);
        let planned: Vec<DateTime<Utc>> = next["instants"].as_array().unwrap().iter().map(time).collect();
        assert!(expect.ends_with(&planned), "{name}: {planned:?}");
    }
    for name in ["own", "group"] {
        eventually("the end of the window", async || {
            let group = node.get(&format!("/v1/groups/{name}")).await.expect_status(200);
            group["schedules"]["s"]["next"].is_null().then_some(())
        })
        .await;
        // That no instant is left the clock says; the run of the last one may yet be on its way.
        let made = eventually("the window's runs", async || {
            let made: Vec<DateTime<Utc>> = runs(node.api(), name)
                .await
                .iter()
                .map(|run| time(&run["logical_time"]))
                .collect();
            (made.len() >= expect.len()).then_some(made)
        })
        .await;
        assert_eq!(made, expect, "{name}");
    }
}

/// A time of day is that of the zone. (If putting the group took so long that the time is over, it is put once more.)
#[tokio::test]
async fn a_time_of_day_in_a_zone() {
    let (world, node) = World::with_node().await;
    let mut number = 0;
    let (name, at) = loop {
        number += 1;
        let name = format!("g{number}");
        let at = chrono::DurationRound::duration_trunc(world.now().await, TimeDelta::seconds(1)).unwrap()
            + TimeDelta::seconds(3);
        let kathmandu = (at + TimeDelta::minutes(5 * 60 + 45)).format("%H:%M:%S").to_string();
        let daily = json!({"daily": {"every_days": 1, "at": kathmandu}, "timezone": "Asia/Kathmandu"});
        node.put_group(&name, scheduled(json!({"s": daily}))).await;
        if world.now().await < at {
            break (name, at);
        }
    };
    let run = eventually("a run", async || runs(node.api(), &name).await.pop()).await;
    assert_eq!(time(&run["logical_time"]), at);
    assert_eq!(time(&run["data_interval"]["start"]), at - TimeDelta::days(1));
    let group = node.get(&format!("/v1/groups/{name}")).await.expect_status(200);
    assert_eq!(time(&group["schedules"]["s"]["next"]), at + TimeDelta::days(1));
}

/// What can never fire, or cannot be understood, is refused where it stands.
#[tokio::test]
async fn what_cannot_be_is_refused() {
    let (_world, node) = World::with_node().await;
    let day = |more: Value| with(json!({"cron": "0 0 * * *"}), more);
    for (schedule, pointer, words) in [
        (json!({"cron": "0 0 30 2 *"}), "/cron", "never fires"),
        (json!({"cron": "0 0 0 31 4,6,9,11 ?"}), "/cron", "never fires"),
        (json!({"cron": "0 0 0 1 1 ? 2020"}), "/cron", "past"),
        (json!({"cron": "0 0 0 29 2 ? 2027"}), "/cron", "never fires"),
        (json!({"once": {"at": "2020-01-01T00:00:00Z"}}), "/once/at", "past"),
        (
            day(json!({"starts_at": "2020-01-01", "ends_at": "2021-01-01"})),
            "/ends_at",
            "past",
        ),
        (json!({"every": "1s", "ends_at": "2021-01-01"}), "/ends_at", "past"),
        (json!({"after": "1s", "ends_at": "2021-01-01"}), "/ends_at", "past"),
        (json!({"cron": "60 * * * *"}), "/cron", "minutes"),
        (json!({"cron": "* * * *"}), "/cron", "4 fields"),
        (json!({"cron": "* * * * * * * *"}), "/cron", "8 fields"),
        (json!({"cron": "sometimes"}), "/cron", "1 fields"),
        (json!({"cron": ""}), "/cron", "0 fields"),
        (json!({"cron": "0 0 * * FUNDAY"}), "/cron", "day of week"),
        (day(json!({"timezone": "Mars/Olympus"})), "/timezone", "Mars/Olympus"),
        (day(json!({"starts_at": "2026-02-30"})), "/starts_at", "2026-02-30"),
        (
            day(json!({"starts_at": "2027-01-02", "ends_at": "2027-01-01"})),
            "/ends_at",
            "must be after",
        ),
        (
            day(json!({"starts_at": "2027-01-01", "ends_at": "2027-01-01"})),
            "/ends_at",
            "must be after",
        ),
        (
            day(json!({"starts_at": "2027-01-01T01:00:00", "ends_at": "2027-01-01T23:00:00"})),
            "",
            "never fires",
        ),
        (json!({"every": "0s"}), "/every", "at least"),
        (json!({"every": "-5s"}), "/every", ""),
        (json!({"after": "0s"}), "/after", "longer than zero"),
        (json!({"once": {}}), "/once", "exactly one"),
        (json!({"once": {"at": "2026-13-01"}}), "/once/at", "2026-13-01"),
        (
            json!({"once": {"at": "2026-01-01", "delay": "1s"}}),
            "/once",
            "exactly one",
        ),
        (
            json!({"daily": {"every_days": 0, "at": "00:00"}}),
            "/daily/every_days",
            "from 1",
        ),
        (json!({"daily": {"every_days": 1, "at": "25:00"}}), "/daily/at", "25:00"),
        (json!({"cron": "0 0 * * *", "every": "1s"}), "", "exactly one"),
        (json!({}), "", "exactly one"),
        (day(json!({"anchor": "2026-01-01"})), "/anchor", "`every`"),
        (day(json!({"misfire": "perhaps"})), "/misfire", ""),
    ] {
        let pointer = format!("/schedules/s{pointer}");
        let reply = node.refused_group("g", scheduled(json!({"s": schedule.clone()}))).await;
        let problem = reply.expect_problem(422, &[&pointer]);
        assert!(
            problem["errors"]
                .as_array()
                .unwrap()
                .iter()
                .any(|error| { error["pointer"] == *pointer && error["detail"].as_str().unwrap().contains(words) }),
            "{schedule}: {problem:#}"
        );
    }
    node.get("/v1/groups/g").await.expect_status(404);
    // A history may be filled by a schedule that is over; one that is switched off may be anything that could fire.
    let past = json!({"cron": "0 0 0 1 * ? 2020"});
    node.put_group("history", with(scheduled(json!({"s": past})), json!({"history": true})))
        .await;
    let plan = json!({"from": "2020-01-01", "to": "2020-12-31", "dry_run": true});
    let plan = node.post("/v1/groups/history/backfills", plan).await.expect_status(200);
    assert_eq!(plan["instants"].as_array().unwrap().len(), 12, "{plan:#}");
    node.put_group("off", scheduled(json!({"s": with(past, json!({"enabled": false}))})))
        .await;
    // The group's own zone.
    let zone = with(scheduled(json!({})), json!({"timezone": "Nowhere"}));
    node.refused_group("g", zone).await.expect_problem(422, &["/timezone"]);
}

/// A schedule is switched although something else of the spec is not valid any more; one that can never fire again is not
/// enabled.
#[tokio::test]
async fn a_schedule_is_switched_whatever_else_the_spec_says() {
    let (_world, node) = World::with_node().await;
    let slots = async |slots: u32| {
        let status = node.put("/v1/pools/db", json!({"slots": slots})).await.status;
        assert!([200, 201].contains(&status), "{status}");
    };
    slots(2).await;
    let over = json!({"cron": "0 0 0 1 1 ? 2020", "enabled": false});
    let mut spec = scheduled(json!({"s": {"every": "1h"}, "over": over}));
    spec["tasks"]["t"]["pools"] = json!({"db": 2});
    let put = node.put_group("g", spec.clone()).await;
    slots(1).await;
    node.refused_group("g", with(spec.clone(), json!({"description": "x"})))
        .await
        .expect_problem(422, &["/tasks/t/pools/db"]);
    let switch = async |what: &str| node.post(&format!("/v1/groups/g/schedules/{what}"), json!({})).await;
    for (revision, what, enabled) in [(2, "disable", false), (3, "enable", true)] {
        let group = switch(&format!("s/{what}")).await.expect_status(200);
        assert_eq!(
            (&group["revision"], &group["schedules"]["s"]["enabled"]),
            (&json!(revision), &json!(enabled))
        );
        let again = switch(&format!("s/{what}")).await.expect_status(200);
        assert_eq!(again["revision"], revision, "nothing has changed");
    }
    switch("over/enable")
        .await
        .expect_problem(422, &["/schedules/over/cron"]);
    let stale = node
        .request(reqwest::Method::POST, "/v1/groups/g/schedules/s/disable")
        .header("if-match", "\"1\"")
        .json(&json!({}));
    node.send(stale).await.expect_problem(412, &[]);
    // It has the stored form: the same spec makes no revision.
    slots(2).await;
    let again = node.put("/v1/groups/g", spec).await.expect_status(200);
    assert_eq!(again["revision"], 3);
    assert_eq!(again["schedules"]["s"]["next"], put["schedules"]["s"]["next"]);
}
