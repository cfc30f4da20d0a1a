//! The turns of runs at a gate: `max_active_runs`, for new runs and for those that are reopened, and what overlap does
//! not affect.

use heddle_tests::{Answer, Node, Receiver, World, eventually, id, seconds, states, task};
use serde_json::{Value, json};

use crate::events::lines;
use crate::{calls, one, sleeps, with};

async fn control(node: &Node, run: &str, action: &str) -> Value {
    node.post(&format!("/v1/runs/{run}/{action}"), json!({}))
        .await
        .expect_status(200)
}

async fn override_task(node: &Node, run: &str, task: &str, state: &str) {
    let body = json!({"state": state, "reason": "by a test"});
    node.put(&format!("/v1/runs/{run}/tasks/{task}/state"), body)
        .await
        .expect_status(200);
}

/// `max_active_runs` bounds manual runs; the others wait, and say for what.
#[tokio::test]
async fn max_active_runs() {
    let world = World::new().await;
    let node = world.options().at_home().start().await;
    let gate = Receiver::start(Answer::Held).await;
    node.put_group("g", with(one(calls(&gate)), json!({"max_active_runs": 2})))
        .await;
    let mut runs = Vec::new();
    for _ in 0..6 {
        runs.push(node.start("g", json!({})).await);
    }
    for run in &runs[..2] {
        node.task_becomes(run, "t", "running").await;
    }
    let waiting = node.all("/v1/runs?group=g&state=waiting").await;
    assert_eq!(waiting.len(), 4, "of six runs two may be active: {waiting:#?}");
    assert!(
        waiting
            .iter()
            .all(|run| !run["waiting_for"].as_array().unwrap().is_empty()),
        "{waiting:#?}"
    );
    gate.answers(Answer::Json(200, "{}".into()));
    let mut ended = Vec::new();
    for run in &runs {
        ended.push(node.ended(run).await);
    }
    assert!(ended.iter().all(|run| run["state"] == "succeeded"));
    for run in &ended {
        let at = &run["started_at"];
        let active = ended
            .iter()
            .filter(|other| seconds(&other["started_at"], at) >= 0.0 && seconds(at, &other["finished_at"]) > 0.0);
        assert!(active.count() <= 2, "more than two runs were active at {at}");
    }
    // Paused runs count as active, and a cancelled one makes room.
    node.put_group("g", with(one(sleeps(3600.0)), json!({"max_active_runs": 1})))
        .await;
    let (first, second) = (node.start("g", json!({})).await, node.start("g", json!({})).await);
    node.task_becomes(&first, "t", "running").await;
    assert_eq!(node.run_now(&second).await["state"], "waiting");
    control(&node, &first, "cancel").await;
    node.task_becomes(&second, "t", "running").await;
    control(&node, &second, "cancel").await;
}

/// A run begins after the end that made room for it, also if that end comes while a node waits for the gate's lock; and the
/// feed of events says the same times.
#[tokio::test]
async fn a_run_begins_after_the_end_that_made_room() {
    let world = World::new().await;
    let node = world.options().at_home().start().await;
    let server = Receiver::start(Answer::Held).await;
    node.put_group("g", with(one(calls(&server)), json!({"max_active_runs": 1})))
        .await;
    let first = node.start("g", json!({})).await;
    node.task_becomes(&first, "t", "running").await;
    let second = node.start("g", json!({})).await;
    assert_eq!(node.run_now(&second).await["state"], "waiting");

    // The gate is held by another connection; the node has begun to check it, and waits.
    let sql = world.sql().await;
    let mut other = world.sql().await;
    let holder = other.transaction().await.unwrap();
    let hold = "SELECT pg_advisory_xact_lock(hashtext('heddle.gate'), (id % 2147483647)::integer) FROM heddle.groups";
    assert_eq!(holder.query(hold, &[]).await.unwrap().len(), 1);
    let wake = "INSERT INTO heddle.turnstiles (group_id) SELECT id FROM heddle.groups";
    sql.execute(wake, &[]).await.unwrap();
    eventually("a node before the gate", async || {
        let waits = "SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                      WHERE l.locktype = 'advisory' AND NOT l.granted AND d.datname = current_database()";
        (sql.query(waits, &[]).await.unwrap().len() == 1).then_some(())
    })
    .await;

    server.answers(Answer::Json(200, "{}".into()));
    let first = node.ended(&first).await;
    assert_eq!(node.run_now(&second).await["state"], "waiting");
    holder.rollback().await.unwrap();
    let second = node.ended(&second).await;
    let rest = seconds(&first["finished_at"], &second["started_at"]);
    assert!(rest >= 0.0, "it began {} s before there was room", -rest);
    assert!(seconds(&second["started_at"], &task(&second, "t")["started_at"]) >= 0.0);
    assert!(seconds(&task(&second, "t")["finished_at"], &second["finished_at"]) >= 0.0);

    let feed = node.get("/v1/events?kinds=run.*").await.expect_status(200);
    let lines = feed.as_str().expect("lines").lines();
    let events: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("an event"))
        .collect();
    for run in [&first, &second] {
        for (kind, field) in [("run.started", "started_at"), ("run.succeeded", "finished_at")] {
            let event = events
                .iter()
                .find(|event| event["run"] == run["id"] && event["kind"] == kind);
            assert_eq!(event.expect(kind)["at"], run[field], "{kind}: {run:#}");
        }
    }
}

/// Runs that are reopened wait for their turn like new ones: by a restart, an override and a retry.
#[tokio::test]
async fn reopened_runs_take_turns() {
    let (_world, node) = World::with_node().await;
    let fails = json!({"script": "flaky", "params": {"kind": "fatal"}});
    let spec = json!({
        "max_active_runs": 1,
        "tasks": {
            "kept": {"script": "hello"},
            "t": fails,
            "after": {"script": "hello", "depends_on": ["t"]},
            "holds": with(sleeps(3600.0), json!({"when": "params.holds"})),
        },
        "params": {"holds": false},
    });
    node.put_group("g", spec).await;
    let mut failed = Vec::new();
    for _ in 0..4 {
        let run = node.run("g", json!({})).await;
        assert_eq!(
            states(&run),
            "after=upstream_failed holds=skipped kept=succeeded t=failed"
        );
        failed.push(run);
    }
    let ids: Vec<String> = failed.iter().map(id).collect();
    let holder = node
        .start("g", json!({"params": {"holds": true}, "priority": 10}))
        .await;
    node.task_becomes(&holder, "holds", "running").await;
    let waits = |run: &Value| {
        assert_eq!(run["state"], "waiting", "{run:#}");
        assert_eq!(run["waiting_for"], json!([{"turn": true}]), "{run:#}");
    };
    let restarted = control(&node, &ids[0], "restart").await;
    waits(&restarted);
    assert_eq!(
        states(&restarted),
        "after=pending holds=skipped kept=succeeded t=pending"
    );
    assert_eq!(restarted["started_at"], failed[0]["started_at"], "it began long ago");
    override_task(&node, &ids[1], "t", "succeeded").await;
    let overridden = node.run_now(&ids[1]).await;
    waits(&overridden);
    assert_eq!(
        states(&overridden),
        "after=pending holds=skipped kept=succeeded t=succeeded"
    );
    node.post(&format!("/v1/runs/{}/tasks/t/retry", ids[2]), json!({}))
        .await
        .expect_status(200);
    waits(&node.run_now(&ids[2]).await);
    // Another override finds it waiting, and leaves nothing to wait for.
    override_task(&node, &ids[1], "after", "skipped").await;
    assert_eq!(node.run_now(&ids[1]).await["state"], "succeeded");
    // One that has been cancelled before its turn comes back in the same way.
    control(&node, &ids[2], "cancel").await;
    waits(&control(&node, &ids[2], "restart").await);
    // What needs no slot does not wait for one.
    override_task(&node, &ids[3], "t", "skipped").await;
    assert_eq!(node.run_now(&ids[3]).await["state"], "succeeded");
    // Nothing has begun meanwhile; then one after the other does.
    for run in [&ids[0], &ids[2]] {
        waits(&node.run_now(run).await);
        assert_eq!(node.attempts(run, "t").await.len(), 1);
    }
    control(&node, &holder, "cancel").await;
    for (run, before) in [(&ids[0], &failed[0]), (&ids[2], &failed[2])] {
        let ended = node.ended(run).await;
        assert_eq!(
            states(&ended),
            "after=succeeded holds=skipped kept=succeeded t=succeeded"
        );
        assert_eq!(task(&ended, "kept"), task(before, "kept"), "what had succeeded is kept");
        assert_eq!(task(&ended, "t")["attempt"], 2);
        assert_eq!(ended["started_at"], before["started_at"]);
    }
}

/// A bound that comes with a later revision counts runs that began without one, and their end makes room.
#[tokio::test]
async fn a_bound_that_comes_later() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(sleeps(3600.0))).await;
    let first = node.start("g", json!({})).await;
    node.task_becomes(&first, "t", "running").await;
    node.put_group(
        "g",
        with(one(json!({"script": "hello"})), json!({"max_active_runs": 1})),
    )
    .await;
    let second = node.start("g", json!({})).await;
    assert_eq!(node.run_now(&second).await["state"], "waiting");
    control(&node, &first, "cancel").await;
    assert_eq!(node.ended(&second).await["state"], "succeeded");
}

/// Overlap applies to new runs: a restarted one continues next to a later one, and is not skipped.
#[tokio::test]
async fn overlap_leaves_restarted_runs_alone() {
    let (_world, node) = World::with_node().await;
    let flaky = json!({"script": "flaky", "params": {"kind": "fatal"}});
    node.put_group(
        "g",
        with(
            one(flaky),
            json!({"overlap": "skip", "max_active_runs": 2, "schedules": {"s": {"once": {"delay": "0s"}}}}),
        ),
    )
    .await;
    let failed = eventually("the failed run of the schedule", async || {
        let runs = node.all("/v1/runs?group=g&state=failed").await;
        runs.first().cloned()
    })
    .await;
    node.put_group("g", with(one(sleeps(3600.0)), json!({"overlap": "skip", "max_active_runs": 2, "schedules": {"s": {"once": {"delay": "0s"}, "grace": "59s"}}})))
        .await;
    let second = eventually("the next run of a schedule", async || {
        let runs = node.all("/v1/runs?group=g&state=running").await;
        runs.first().cloned()
    })
    .await;
    control(&node, &id(&failed), "restart").await;
    let again = node.ended(&id(&failed)).await;
    assert_eq!(again["state"], "succeeded", "{again:#}");
    control(&node, &id(&second), "cancel").await;
}

/// A run that was cancelled while it waited begins when it is restarted and its turn comes, and not before. The gate does
/// not skip what somebody has restarted.
#[tokio::test]
async fn one_that_never_began_is_restarted() {
    let (world, node) = World::with_node().await;
    let spec = json!({"max_active_runs": 1, "overlap": "skip"});
    node.put_group("g", with(one(sleeps(3_600.0)), spec)).await;
    let first = node.start("g", json!({})).await;
    node.task_becomes(&first, "t", "running").await;
    let run = node.start("g", json!({})).await;
    control(&node, &run, "cancel").await;
    assert_eq!(node.ended(&run).await["started_at"], Value::Null);

    // Both as if a schedule had made them.
    let sql = world.sql().await;
    sql.batch_execute("UPDATE heddle.runs_live SET trigger = 1; UPDATE heddle.runs_done SET trigger = 1")
        .await
        .unwrap();
    for action in ["restart", "pause", "resume"] {
        control(&node, &run, action).await;
        assert_eq!(node.run_now(&run).await["started_at"], Value::Null, "{action}");
        eventually("a checked gate", async || {
            let left = sql.query("SELECT FROM heddle.turnstiles", &[]).await.unwrap();
            left.is_empty().then_some(())
        })
        .await;
    }
    assert_eq!(node.run_now(&run).await["state"], "waiting");

    control(&node, &first, "cancel").await;
    let begun = node.task_becomes(&run, "t", "running").await;
    let mut told = lines(&node, "kinds=run.started").await;
    told.retain(|event| event["run"] == run);
    assert_eq!(told.len(), 1, "{told:#?}");
    assert_eq!(told[0]["at"], begun["started_at"]);
    control(&node, &run, "cancel").await;
}
