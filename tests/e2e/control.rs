//! What people do to runs and groups.

use heddle_tests::{Answer, Node, Receiver, World, eventually, id, seconds, states, task};
use serde_json::{Value, json};

use crate::cli::{REFUSED, ends, json_of};
use crate::{calls, fails, one, sleeps, with};

async fn control(node: &Node, run: &str, action: &str) -> Value {
    node.post(&format!("/v1/runs/{run}/{action}"), json!({}))
        .await
        .expect_status(200)
}

/// Cancelling interrupts running wasm. (How soon: `tests/alone/promises.rs`.)
#[tokio::test]
async fn cancel() {
    let (_world, node) = World::with_node().await;
    let hostile = |mode: &str| json!({"script": "hostile", "params": {"mode": mode}});
    node.put_group(
        "g",
        json!({"tasks": {
            "done": {"script": "hello"},
            "spin": with(hostile("spin"), json!({"depends_on": ["done"]})),
            "sleep": with(hostile("sleep"), json!({"depends_on": ["done"]})),
            "never": {"script": "hello", "depends_on": ["spin", "sleep"]},
        }}),
    )
    .await;
    let run = node.start("g", json!({})).await;
    node.task_becomes(&run, "spin", "running").await;
    node.task_becomes(&run, "sleep", "running").await;
    let cancelled = control(&node, &run, "cancel").await;
    assert_eq!(cancelled["state"], "cancelled");
    assert_eq!(
        states(&cancelled),
        "done=succeeded never=cancelled sleep=cancelled spin=cancelled"
    );
    for name in ["spin", "sleep"] {
        let attempt = node.attempts(&run, name).await.remove(0);
        assert_eq!(attempt["state"], "cancelled", "{attempt:#}");
    }
    // The node counts what it still has in hand.
    eventually("an idle node", async || {
        let nodes = node.get("/v1/stats").await.expect_status(200);
        (nodes["node"]["in_hand"] == 0).then_some(())
    })
    .await;
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_problem(409, &[]);
}

/// A paused run starts nothing new; what runs ends. A resumed one goes on.
#[tokio::test]
async fn pause_and_resume() {
    let world = World::new().await;
    let node = world.options().at_home().start().await;
    let gate = Receiver::start(Answer::Held).await;
    node.put_group(
        "g",
        json!({"tasks": {
            "first": calls(&gate),
            "second": {"script": "hello", "depends_on": ["first"]},
            "third": {"script": "hello", "depends_on": ["second"]},
        }}),
    )
    .await;
    let run = node.start("g", json!({})).await;
    node.task_becomes(&run, "first", "running").await;
    assert_eq!(control(&node, &run, "pause").await["state"], "paused");
    node.post(&format!("/v1/runs/{run}/pause"), json!({}))
        .await
        .expect_problem(409, &[]);
    gate.answers(Answer::Json(200, "{}".into()));
    let found = node.task_becomes(&run, "first", "succeeded").await;
    assert_eq!(
        (&found["state"], &task(&found, "second")["state"]),
        (&json!("paused"), &json!("paused")),
        "{found:#}"
    );
    let waited = node.get(&format!("/v1/runs/{run}?wait=500ms")).await.expect_status(200);
    assert_eq!(states(&waited), "first=succeeded second=paused third=pending");
    assert_ne!(control(&node, &run, "resume").await["state"], "paused");
    assert_eq!(node.ended(&run).await["state"], "succeeded");
    node.post(&format!("/v1/runs/{run}/resume"), json!({}))
        .await
        .expect_problem(409, &[]);
    node.post(&format!("/v1/runs/{run}/pause"), json!({}))
        .await
        .expect_problem(409, &[]);
}

/// A retry that comes due while the run is paused waits for it.
#[tokio::test]
async fn a_paused_run_retries_later() {
    let (world, node) = World::with_node().await;
    // It is due when the test says so, and not before the run is paused.
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "1h"});
    node.put_group("g", one(json!({"script": "flaky", "retry": retry})))
        .await;
    let run = node.start("g", json!({})).await;
    node.task_becomes(&run, "t", "retrying").await;
    control(&node, &run, "pause").await;
    let due = "UPDATE heddle.timers SET due_at = now()";
    assert_eq!(world.sql().await.execute(due, &[]).await.unwrap(), 1);
    node.task_becomes(&run, "t", "paused").await;
    control(&node, &run, "resume").await;
    assert_eq!(node.ended(&run).await["state"], "succeeded");
}

/// Restart: failed or cancelled runs only; what succeeded is kept.
#[tokio::test]
async fn restart() {
    let world = World::new().await;
    let node = world.options().at_home().start().await;
    node.put_group(
        "g",
        json!({"tasks": {
            "kept": {"script": "hello"},
            "flaky": {"script": "flaky", "depends_on": ["kept"]},
            "after": {"script": "hello", "depends_on": ["flaky"]},
        }}),
    )
    .await;
    let failed = node.run("g", json!({})).await;
    assert_eq!(states(&failed), "after=upstream_failed flaky=failed kept=succeeded");
    let run = id(&failed);
    control(&node, &run, "restart").await;
    let again = node.ended(&run).await;
    assert_eq!(states(&again), "after=succeeded flaky=succeeded kept=succeeded");
    assert_eq!(task(&again, "kept"), task(&failed, "kept"));
    assert_eq!(task(&again, "flaky")["output"], json!({"attempt": 2}));
    assert_eq!(node.attempts(&run, "flaky").await.len(), 2);
    node.post(&format!("/v1/runs/{run}/restart"), json!({}))
        .await
        .expect_problem(409, &[]);
    // A cancelled one.
    let gate = Receiver::start(Answer::Held).await;
    node.put_group(
        "h",
        json!({"tasks": {"first": {"script": "hello"}, "t": with(calls(&gate), json!({"depends_on": ["first"]}))}}),
    )
    .await;
    let run = node.start("h", json!({})).await;
    node.post(&format!("/v1/runs/{run}/restart"), json!({}))
        .await
        .expect_problem(409, &[]);
    node.task_becomes(&run, "t", "running").await;
    control(&node, &run, "cancel").await;
    gate.answers(Answer::Json(200, "{}".into()));
    control(&node, &run, "restart").await;
    let again = node.ended(&run).await;
    assert_eq!(again["state"], "succeeded", "{again:#}");
    assert_eq!(
        (&task(&again, "first")["attempt"], &task(&again, "t")["attempt"]),
        (&json!(1), &json!(2))
    );
}

/// A script without a version is resolved when the run is created; `scripts: active` takes what is active now.
#[tokio::test]
async fn pinned_and_active_scripts() {
    let (_world, node) = World::with_node().await;
    let upload = async |wasm: &str| {
        let bytes = heddle_scripts::get(wasm).unwrap();
        node.put_bytes("/v1/scripts/s", "application/wasm", bytes)
            .await
            .expect_status(201)
    };
    upload("flaky").await;
    node.put_group("g", one(json!({"script": "s"}))).await;
    let failed = node.run("g", json!({})).await;
    assert_eq!(
        (&failed["state"], &failed["scripts"]["t"]),
        (&json!("failed"), &json!("s@1"))
    );
    upload("hello").await;
    let repeat = async |action: &str, body: Value, status: u16| {
        let path = format!("/v1/runs/{}/{action}", id(&failed));
        let run = node.post(&path, body).await.expect_status(status);
        node.ended(&id(&run)).await
    };
    let rerun = repeat("rerun", json!({}), 202).await;
    assert_eq!(
        (&rerun["trigger"], &rerun["state"], &rerun["scripts"]["t"]),
        (&json!("rerun"), &json!("failed"), &json!("s@1"))
    );
    assert_ne!(rerun["id"], failed["id"]);
    let rerun = repeat("rerun", json!({"scripts": "active"}), 202).await;
    assert_eq!(
        (&rerun["state"], &rerun["scripts"]["t"]),
        (&json!("succeeded"), &json!("s@2"))
    );
    let restarted = repeat("restart", json!({"scripts": "active"}), 200).await;
    assert_eq!(
        (&restarted["state"], &restarted["scripts"]["t"]),
        (&json!("succeeded"), &json!("s@2"))
    );
    assert_eq!(restarted["id"], failed["id"]);
    // New runs take what is active; `name@1` stays.
    assert_eq!(node.run("g", json!({})).await["scripts"]["t"], "s@2");
    node.put_group("h", one(json!({"script": "s@1"}))).await;
    assert_eq!(node.run("h", json!({})).await["scripts"]["t"], "s@1");
}

/// A rerun with other script versions is refused if its params do not fit these, with the errors of a submission: those of the
/// group, and those of the run.
#[tokio::test]
async fn a_rerun_fits_the_scripts_that_it_gets() {
    let (_world, node) = World::with_node().await;
    let upload = async |wasm: &str| {
        let bytes = heddle_scripts::get(wasm).unwrap();
        node.put_bytes("/v1/scripts/s", "application/wasm", bytes)
            .await
            .expect_status(201)
    };
    upload("echo").await;
    let of = |params: Value| one(json!({"script": "s", "params": params}));
    node.put_group("constant", of(json!({"n": "x"}))).await;
    node.put_group("given", of(json!({}))).await;
    let mut repeated = Vec::new();
    for (group, asked, pointer) in [
        ("constant", json!({}), "/params/n"),
        ("given", json!({"params": {"n": 94}}), "/params/n"),
        ("given", json!({"task_params": {"t": {"n": []}}}), "/task_params/t/n"),
    ] {
        let run = node.run(group, asked.clone()).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        repeated.push((id(&run), group, asked, pointer));
    }
    let fits = id(&node.run("given", json!({"params": {"n": 10}})).await);
    upload("fib").await;
    let active = json!({"scripts": "active"});
    for (run, group, asked, pointer) in repeated {
        let submitted = node.post(&format!("/v1/groups/{group}/runs"), asked).await;
        let submitted = submitted.expect_problem(422, &[pointer]);
        let path = format!("/v1/runs/{run}/rerun");
        let refused = node.post(&path, active.clone()).await.expect_problem(422, &[pointer]);
        assert_eq!(refused["errors"], submitted["errors"]);
        let bulk = json!({"filter": {"ids": [run]}, "action": "rerun", "scripts": "active"});
        let report = node.post("/v1/runs/bulk", bulk).await.expect_status(200);
        assert_eq!(
            (&report["changed"], report["refused"].as_array().map(Vec::len)),
            (&json!(0), Some(1))
        );
        // With its own versions, it is as good as before.
        let again = node.post(&path, json!({})).await.expect_status(202);
        assert_eq!(node.ended(&id(&again)).await["state"], "succeeded");
    }
    let path = format!("/v1/runs/{fits}/rerun");
    let again = node.post(&path, active).await.expect_status(202);
    assert_eq!(task(&node.ended(&id(&again)).await, "t")["output"], 55);
}

/// A rerun has the params of the run that it repeats, and the group's revision then.
#[tokio::test]
async fn rerun_repeats_what_was_asked() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "echo"}))).await;
    let submission = json!({
        "params": {"a": 1}, "task_params": {"t": {"b": 2}}, "logical_time": "2013-07-01T00:00:00Z",
        "labels": {"team": "x"}, "key": "k",
    });
    let run = node.run("g", submission).await;
    let again = node
        .post(&format!("/v1/runs/{}/rerun", id(&run)), json!({}))
        .await
        .expect_status(202);
    let again = node.ended(&id(&again)).await;
    for field in ["params", "task_params", "logical_time", "labels", "group"] {
        assert_eq!(run[field], again[field], "{field}");
    }
    assert_eq!((&again["key"], &again["trigger"]), (&Value::Null, &json!("rerun")));
    assert_eq!(task(&again, "t")["output"]["params"], json!({"a": 1, "b": 2}));
}

/// A rerun with a key can be repeated after a lost answer: there is one new run, and the repeat names it.
#[tokio::test]
async fn a_rerun_with_a_key_is_made_once() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "echo"}))).await;
    let run = id(&node.run("g", json!({"key": "k"})).await);
    let path = format!("/v1/runs/{run}/rerun");
    let again = node.post(&path, json!({"key": "again"})).await.expect_status(202);
    assert_eq!(again["key"], "again");
    let repeat = node.post(&path, json!({"key": "again"})).await.expect_status(409);
    assert_eq!(repeat["existing"], again["id"], "{repeat:#}");
    ends(&node, REFUSED, &["run", "rerun", &run, "--key", "again"]);
    node.post(&path, json!({"key": "k"})).await.expect_status(409);
    for wrong in ["".to_owned(), "k".repeat(513)] {
        node.post(&path, json!({"key": wrong}))
            .await
            .expect_problem(422, &["/key"]);
    }
    assert_eq!(heddle_tests::runs(&node, "g").await.len(), 2);
}

/// A rerun is a new run: its group must be there, and be enabled unless somebody forces it.
#[tokio::test]
async fn rerun_asks_the_group() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "echo"}))).await;
    let run = id(&node.run("g", json!({})).await);
    let rerun = async |body: Value| node.post(&format!("/v1/runs/{run}/rerun"), body).await;
    let bulk_says = async |words: &str| {
        for dry_run in [true, false] {
            let body = json!({"filter": {"ids": [run]}, "action": "rerun", "dry_run": dry_run});
            let report = node.post("/v1/runs/bulk", body).await.expect_status(200);
            assert_eq!(report["changed"], 0, "{report:#}");
            let detail = report["refused"][0]["detail"].as_str().unwrap_or_default();
            assert!(detail.contains(words), "{report:#}");
        }
    };
    node.post("/v1/groups/g/disable", json!({})).await.expect_status(200);
    rerun(json!({})).await.expect_said(409, "disabled");
    bulk_says("disabled").await;
    ends(&node, REFUSED, &["run", "rerun", &run]);
    let forced = rerun(json!({"force": true})).await.expect_status(202);
    assert_eq!(node.ended(&id(&forced)).await["state"], "succeeded");
    let forced = json_of(&node, &["run", "rerun", &run, "--force"]);
    assert_eq!(node.ended(&id(&forced)).await["state"], "succeeded");

    // Another group of the name of a deleted one is another group.
    node.delete("/v1/groups/g").await.expect_status(200);
    for _ in 0..2 {
        rerun(json!({"force": true})).await.expect_said(404, "no group `g`");
        bulk_says("no group `g`").await;
        assert_eq!(node.run_now(&run).await["state"], "succeeded");
        node.put_group("g", one(json!({"script": "echo"}))).await;
    }
    assert!(node.all("/v1/runs?state=running").await.is_empty());
}

/// All runs of a filter at once, to stop the bleeding.
#[tokio::test]
async fn bulk() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(sleeps(3600.0))).await;
    node.put_group("h", one(fails())).await;
    let labelled = json!({"runs": (0..20).map(|_| json!({"labels": {"wave": "1"}})).collect::<Vec<_>>()});
    node.post("/v1/groups/g/runs/batch", labelled).await.expect_status(202);
    let other = node.start("g", json!({"labels": {"wave": "2"}})).await;
    let bulk = async |body: Value| node.post("/v1/runs/bulk", body).await;
    bulk(json!({"filter": {}, "action": "cancel"}))
        .await
        .expect_problem(422, &["/filter"]);
    bulk(json!({"filter": {"group": "g"}, "action": "explode"}))
        .await
        .expect_problem(422, &["/action"]);
    bulk(json!({"filter": {"colour": "g"}, "action": "cancel"}))
        .await
        .expect_said(422, "/filter/colour");
    let filter = json!({"group": "g", "labels": {"wave": "1"}});
    let dry = bulk(json!({"filter": filter, "action": "cancel", "dry_run": true}))
        .await
        .expect_status(200);
    assert_eq!(
        (&dry["matched"], &dry["changed"], &dry["dry_run"]),
        (&json!(20), &json!(0), &json!(true))
    );
    assert_eq!(node.all("/v1/runs?group=g&state=running").await.len(), 21);
    let paused = bulk(json!({"filter": filter, "action": "pause"}))
        .await
        .expect_status(200);
    assert_eq!(paused["changed"], 20);
    assert_eq!(node.all("/v1/runs?group=g&state=paused").await.len(), 20);
    let done = bulk(json!({"filter": filter, "action": "cancel", "dry_run": false}))
        .await
        .expect_status(200);
    assert_eq!((&done["matched"], &done["changed"]), (&json!(20), &json!(20)));
    assert_eq!(node.all("/v1/runs?group=g&state=cancelled").await.len(), 20);
    assert_eq!(node.run_now(&other).await["state"], "running");
    // What does not go with a run's state is told, and hinders no other.
    let again = bulk(json!({"filter": {"group": "g"}, "action": "cancel"}))
        .await
        .expect_status(200);
    assert_eq!((&again["matched"], &again["changed"]), (&json!(21), &json!(1)));
    assert_eq!(again["refused"].as_array().unwrap().len(), 20);
    for _ in 0..3 {
        node.run("h", json!({})).await;
    }
    let restarted = bulk(json!({"filter": {"group": "h", "state": "failed"}, "action": "restart"}))
        .await
        .expect_status(200);
    assert_eq!(restarted["changed"], 3);
    let set =
        json!({"filter": {"group": "g", "state": "cancelled"}, "action": "state", "state": "succeeded", "reason": "x"});
    assert_eq!(bulk(set).await.expect_status(200)["changed"], 21);
    assert_eq!(node.all("/v1/runs?group=g&state=succeeded").await.len(), 21);
    // The same by its other name.
    let set = json!({"filter": {"group": "g"}, "action": "override", "state": "failed", "reason": "x"});
    bulk(set).await.expect_status(200);
    assert_eq!(node.all("/v1/runs?group=g&state=succeeded").await.len(), 0);
}

/// A dry run names those that the action itself would refuse, in the same words, in every state.
#[tokio::test]
async fn bulk_dry_run() {
    let (_world, node) = World::with_node().await;
    let tasks = json!({"a": sleeps(3600.0), "b": {"script": "hello", "depends_on": ["a"]}});
    node.put_group("long", json!({"tasks": tasks, "max_active_runs": 4}))
        .await;
    node.put_group("short", one(json!({"script": "hello"}))).await;
    node.put_group("bad", one(fails())).await;
    let bulk = async |filter: Value, action: &str, dry_run: bool| {
        let body = json!({"filter": filter, "action": action, "dry_run": dry_run});
        node.post("/v1/runs/bulk", body).await.expect_status(200)
    };
    let running = async || {
        let run = node.start("long", json!({})).await;
        node.run_becomes(&run, "running").await;
        run
    };
    // Each action takes these along into other states, so each finds them made anew.
    for action in ["cancel", "pause", "resume", "restart", "rerun", "delete"] {
        bulk(json!({"group": "long"}), "cancel", false).await;
        bulk(json!({"group": "long,short,bad"}), "delete", false).await;
        let mut runs = vec![
            running().await,
            id(&node.run("short", json!({})).await),
            id(&node.run("bad", json!({})).await),
        ];
        for control in ["cancel", "pause"] {
            let run = running().await;
            node.post(&format!("/v1/runs/{run}/{control}"), json!({}))
                .await
                .expect_status(200);
            runs.push(run);
        }
        // Four are active with these: the next one waits, and goes on waiting.
        running().await;
        running().await;
        let waiting = node.start("long", json!({})).await;
        runs.push(waiting);
        let mut states = Vec::new();
        for run in &runs {
            states.push(node.run_now(run).await["state"].clone());
        }
        let expect = ["running", "succeeded", "failed", "cancelled", "paused", "waiting"];
        assert_eq!(states, expect, "{action}");
        let dry = bulk(json!({"ids": runs}), action, true).await;
        assert_eq!((&dry["matched"], &dry["changed"]), (&json!(6), &json!(0)), "{action}");
        let real = bulk(json!({"ids": runs}), action, false).await;
        assert_eq!(dry["refused"], real["refused"], "{action}");
        let refused = real["refused"].as_array().unwrap().len();
        assert_eq!(real["changed"], 6 - refused, "{action}");
    }
    let nobody = json!({"filter": {"group": "a b"}, "action": "cancel"});
    node.post("/v1/runs/bulk", nobody)
        .await
        .expect_problem(422, &["/filter/group"]);
}

/// A disabled group takes no runs unless forced; `drain` lets active ones end, `stop` cancels them.
#[tokio::test]
async fn disable_and_enable() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(sleeps(0.5))).await;
    let run = node.start("g", json!({})).await;
    node.task_becomes(&run, "t", "running").await;
    let shown = node
        .post("/v1/groups/g/disable", json!({"mode": "drain"}))
        .await
        .expect_status(200);
    assert_eq!(shown["enabled"], false);
    node.post("/v1/groups/g/runs", json!({})).await.expect_problem(409, &[]);
    assert_eq!(node.ended(&run).await["state"], "succeeded");
    assert_eq!(node.run("g", json!({"force": true})).await["state"], "succeeded");
    assert_eq!(
        node.post("/v1/groups/g/enable", json!({})).await.expect_status(200)["enabled"],
        true
    );
    node.put_group("g", one(sleeps(3600.0))).await;
    let run = node.start("g", json!({})).await;
    node.task_becomes(&run, "t", "running").await;
    node.post("/v1/groups/g/disable", json!({"mode": "stop"}))
        .await
        .expect_status(200);
    assert_eq!(node.ended(&run).await["state"], "cancelled");
    node.post("/v1/groups/g/disable", json!({"mode": "explode"}))
        .await
        .expect_problem(422, &["/mode"]);
    node.post("/v1/groups/nope/disable", json!({}))
        .await
        .expect_problem(404, &[]);
}

/// Pools bound what takes their slots, across runs and groups.
#[tokio::test]
async fn pools() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let node = &nodes[0];
    node.put("/v1/pools/db", json!({"slots": 2})).await.expect_status(201);
    let spec = json!({"tasks": {
        "a": with(sleeps(0.3), json!({"pools": {"db": 1}})),
        "b": with(sleeps(0.3), json!({"pools": {"db": 1}})),
        "both": with(sleeps(0.2), json!({"pools": {"db": 2}})),
        "free": {"script": "hello"},
    }});
    node.put_group("g", spec.clone()).await;
    node.put_group("h", spec).await;
    node.refused_group("i", one(with(sleeps(1.0), json!({"pools": {"db": 3}}))))
        .await
        .expect_problem(422, &["/tasks/t/pools/db"]);
    node.refused_group("i", one(with(sleeps(1.0), json!({"pools": {"nope": 1}}))))
        .await
        .expect_problem(422, &["/tasks/t/pools/nope"]);
    let mut runs = Vec::new();
    for (index, group) in ["g", "h", "g", "h"].into_iter().enumerate() {
        runs.push(nodes[index % 2].start(group, json!({})).await);
    }
    let mut taken: Vec<(Value, Value, u32)> = Vec::new();
    for run in &runs {
        let run = node.ended(run).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        for (name, slots) in [("a", 1), ("b", 1), ("both", 2)] {
            let found = task(&run, name);
            taken.push((found["started_at"].clone(), found["finished_at"].clone(), slots));
        }
    }
    for (at, ..) in &taken {
        let slots: u32 = taken
            .iter()
            .filter(|(start, end, _)| seconds(start, at) >= 0.0 && seconds(at, end) > 0.0)
            .map(|(.., slots)| slots)
            .sum();
        assert!(slots <= 2, "{slots} slots of 2 were taken at {at}");
    }
}

/// Higher priority goes first.
#[tokio::test]
async fn priority() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_SLOTS", "1").start().await;
    node.put_group("blocker", one(sleeps(3600.0))).await;
    node.put_group("g", one(sleeps(0.05))).await;
    let blocker = node.start("blocker", json!({})).await;
    node.task_becomes(&blocker, "t", "running").await;
    let mut low = Vec::new();
    for _ in 0..3 {
        low.push(node.start("g", json!({"priority": -5})).await);
    }
    let high = node.start("g", json!({"priority": 5})).await;
    control(&node, &blocker, "cancel").await;
    let high = node.ended(&high).await;
    for run in low {
        let run = node.ended(&run).await;
        let ahead = seconds(&task(&high, "t")["started_at"], &task(&run, "t")["started_at"]);
        assert!(
            ahead > 0.0,
            "a run of low priority started {} s before that of high",
            -ahead
        );
    }
    node.post("/v1/groups/g/runs", json!({"priority": 40_000}))
        .await
        .expect_problem(422, &["/priority"]);
}

/// An ended run can be forgotten, an active one not.
#[tokio::test]
async fn delete() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    node.put_group("slow", one(sleeps(3600.0))).await;
    let run = id(&node.run("g", json!({"key": "k"})).await);
    node.delete(&format!("/v1/runs/{run}")).await.expect_status(204);
    node.get(&format!("/v1/runs/{run}")).await.expect_problem(404, &[]);
    node.delete(&format!("/v1/runs/{run}")).await.expect_problem(404, &[]);
    // Its key is free again.
    assert_eq!(node.run("g", json!({"key": "k"})).await["state"], "succeeded");
    let run = node.start("slow", json!({})).await;
    node.delete(&format!("/v1/runs/{run}")).await.expect_problem(409, &[]);
    control(&node, &run, "cancel").await;
    eventually("deleted run", async || {
        let reply = node.delete(&format!("/v1/runs/{run}")).await;
        (reply.status == 204).then_some(())
    })
    .await;
}

/// A node that has worked on a run before takes the scripts that a restart elsewhere has given it.
#[tokio::test]
async fn restarts_reach_those_who_worked_on_the_run_before() {
    let world = World::new().await;
    // Almost all is done by the other one.
    let asked = world.options().env("HEDDLE_SLOTS", "1").start().await;
    let other = world.node().await;
    let upload = async |script: &str| {
        let wasm = heddle_scripts::get(script).expect("a script");
        asked
            .put_bytes("/v1/scripts/s", "application/wasm", wasm)
            .await
            .expect_status(201);
    };
    upload("sleep").await;
    let slots = async |slots: u32| {
        let reply = asked.put("/v1/pools/p", json!({"slots": slots})).await;
        assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
    };
    slots(20).await;
    // The run ends where its last task run does: there, and not where most of it was done.
    let fails = json!({"script": "s", "shards": 20, "params": {"seconds": 30}, "timeout": "1s", "pools": {"p": 1}});
    asked
        .put_group("g", json!({"tasks": {"a": sleeps(4.0), "t": fails}}))
        .await;
    let failed = asked.run("g", json!({})).await;
    assert_eq!(failed["state"], "failed", "{failed:#}");
    upload("echo").await;
    let run = id(&failed);
    // Nothing begins before the other node has heard of the restart, which it has once it has followed what came later.
    slots(0).await;
    asked
        .post(&format!("/v1/runs/{run}/restart"), json!({"scripts": "active"}))
        .await
        .expect_status(200);
    for category in ["c", "d"] {
        asked
            .put(&format!("/v1/categories/{category}"), json!({}))
            .await
            .expect_status(201);
    }
    let nodes = asked.get("/v1/nodes").await.expect_status(200)["items"].clone();
    let position = |nodes: &Value, node: &str| {
        let found = nodes.as_array()?.iter().find(|found| found["id"] == node)?;
        found["position"].as_i64()
    };
    let wanted = position(&nodes, &asked.node_id());
    heddle_tests::eventually("followed changes", async || {
        let nodes = asked.get("/v1/nodes").await.body["items"].clone();
        (position(&nodes, &other.node_id()) >= wanted).then_some(())
    })
    .await;
    slots(20).await;
    let ended = asked.ended(&run).await;
    assert_eq!(ended["scripts"]["t"], "s@2");
    let tasks = ended["tasks"].as_array().expect("tasks");
    let wrong: Vec<&Value> = tasks.iter().filter(|task| task["state"] != "succeeded").collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}
