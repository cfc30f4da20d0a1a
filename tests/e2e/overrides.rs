//! What people say became of task runs and runs: overrides, and what is tried again at once.

use heddle_tests::{Answer, Node, Receiver, World, eventually, id, runs, states, task};
use serde_json::{Value, json};

use crate::events::lines;
use crate::notifications::{settled, webhook};
use crate::{fails, one, sleeps, with};

async fn override_task(node: &Node, run: &str, task: &str, state: &str) -> Value {
    let body = json!({"state": state, "reason": "by a test"});
    node.put(&format!("/v1/runs/{run}/tasks/{task}/state"), body)
        .await
        .expect_status(200)
}

/// An override to succeeded or skipped settles dependants, revives upstream_failed ones and reopens a failed run.
#[tokio::test]
async fn override_of_task_runs() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {
            "bad": fails(),
            "after": {"script": "echo", "depends_on": ["bad"], "params": {"was": "{{ upstream.bad }}"}},
            "last": {"script": "hello", "depends_on": ["after"]},
        }}),
    )
    .await;
    let run = id(&node.run("g", json!({})).await);
    let path = format!("/v1/runs/{run}/tasks/bad/state");
    node.put(&path, json!({"state": "succeeded"}))
        .await
        .expect_problem(422, &["/reason"]);
    node.put(&path, json!({"state": "succeeded", "reason": "  "}))
        .await
        .expect_problem(422, &["/reason"]);
    node.put(&path, json!({"state": "running", "reason": "x"}))
        .await
        .expect_problem(422, &["/state"]);
    node.put(
        &format!("/v1/runs/{run}/tasks/nope/state"),
        json!({"state": "failed", "reason": "x"}),
    )
    .await
    .expect_problem(404, &[]);
    let body = json!({"state": "succeeded", "reason": "checked by hand", "output": {"by": "hand"}});
    node.put(&path, body).await.expect_status(200);
    let again = node.ended(&run).await;
    assert_eq!(
        (again["state"].as_str(), states(&again).as_str()),
        (Some("succeeded"), "after=succeeded bad=succeeded last=succeeded")
    );
    assert_eq!(task(&again, "after")["output"]["params"]["was"], json!({"by": "hand"}));
    assert_eq!(again["error"], Value::Null);
    // To skipped.
    let run = id(&node.run("g", json!({})).await);
    override_task(&node, &run, "bad", "skipped").await;
    let again = node.ended(&run).await;
    assert_eq!(
        (again["state"].as_str(), states(&again).as_str()),
        (Some("succeeded"), "after=skipped bad=skipped last=skipped")
    );
}

/// However often people set a task run, the run keeps for each state the last time only, and what they said then. Outputs
/// that were set are what people see, as long as no later one is.
#[tokio::test]
async fn what_is_set_again_and_again_does_not_add_up() {
    let (world, node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {"bad": fails(), "after": {"script": "hello", "depends_on": ["bad"]}}}),
    )
    .await;
    let run = id(&node.run("g", json!({})).await);
    let task_path = format!("/v1/runs/{run}/tasks/bad");
    let sql = world.sql().await;
    for round in 0..5 {
        let reason = format!("{round}: {}so", "why ".repeat(400));
        for (state, output) in [
            ("failed", json!({})),
            ("skipped", json!({})),
            ("succeeded", json!({"output": round})),
        ] {
            let body = with(json!({"state": state, "reason": &reason}), output);
            node.put(&format!("{task_path}/state"), body).await.expect_status(200);
        }
        let found = node.ended(&run).await;
        let bad = task(&found, "bad");
        assert_eq!(
            (&bad["output"], &bad["override"]["reason"]),
            (&json!(round), &json!(reason)),
            "{bad:#}"
        );
        node.put(
            &format!("/v1/runs/{run}/state"),
            json!({"state": "failed", "reason": &reason}),
        )
        .await
        .expect_status(200);
        node.post(
            &format!("{task_path}/clear"),
            json!({"downstream": true, "reason": &reason}),
        )
        .await
        .expect_status(200);
        let found = node.ended(&run).await;
        assert_eq!(
            states(&found),
            "after=upstream_failed bad=failed",
            "what was set has no effect after a clear"
        );
        let rows = sql
            .query(
                "SELECT task, state, count(*) FROM heddle.overrides WHERE run = $1::text::uuid GROUP BY task, state",
                &[&run],
            )
            .await
            .unwrap();
        assert!(rows.iter().all(|row| row.get::<_, i64>(2) == 1), "{rows:?}");
        assert_eq!(
            rows.len(),
            3 + 1 + 2,
            "three states of a task run, one of the run, two cleared task runs"
        );
    }
    // All of it is in the audit.
    let entries = node.all("/v1/audit?kind=run").await;
    let said = |action: &str| entries.iter().filter(|entry| entry["action"] == action).count();
    assert_eq!((said("override"), said("clear")), (20, 5));
}

/// An answer about a run has a bound for what people said, too.
#[tokio::test]
async fn reasons_that_are_long_together_are_shortened() {
    let (world, node) = World::with_node().await;
    node.put_group("g", one(fails())).await;
    let run = id(&node.run("g", json!({})).await);
    let reason = "因".repeat(2_000);
    let body = json!({"state": "failed", "reason": &reason});
    node.put(&format!("/v1/runs/{run}/tasks/t/state"), body)
        .await
        .expect_status(200);
    let said = async || {
        let found = node.get(&format!("/v1/runs/{run}")).await.expect_status(200);
        task(&found, "t")["override"]["reason"].as_str().unwrap().to_owned()
    };
    assert_eq!(said().await, reason);
    // As if so many items had been set as well.
    let many = "INSERT INTO heddle.overrides (run, task, item, at, state, reason, actor)
                SELECT run, task, n, at, state, reason, actor FROM heddle.overrides, generate_series(0, 999) AS n
                 WHERE run = $1::text::uuid AND item = -1";
    assert_eq!(world.sql().await.execute(many, &[&run]).await.unwrap(), 1_000);
    assert_eq!(said().await, format!("{}…", "因".repeat(200)));
}

/// An override of what runs cancels its attempt first.
#[tokio::test]
async fn override_of_what_runs() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {
            "t": {"script": "hostile", "params": {"mode": "spin"}},
            "after": {"script": "hello", "depends_on": ["t"]},
        }}),
    )
    .await;
    let run = node.start("g", json!({})).await;
    node.task_becomes(&run, "t", "running").await;
    let detail = override_task(&node, &run, "t", "succeeded").await;
    assert_eq!(detail["state"], "succeeded");
    assert_eq!(detail["attempts"][0]["state"], "cancelled", "{detail:#}");
    let ended = node.ended(&run).await;
    assert_eq!(
        (ended["state"].as_str(), states(&ended).as_str()),
        (Some("succeeded"), "after=succeeded t=succeeded")
    );
}

/// One item of a mapped task.
#[tokio::test]
async fn override_and_retry_of_items() {
    let (_world, node) = World::with_node().await;
    let map = json!({"script": "flaky", "for_each": [0, 1, 9], "params": {"fail_times": "{{ item }}"}});
    node.put_group(
        "g",
        json!({"tasks": {"m": map, "after": {"script": "hello", "depends_on": ["m"]}}}),
    )
    .await;
    let run = node.run("g", json!({})).await;
    assert_eq!(states(&run), "after=upstream_failed m=failed");
    let run = id(&run);
    node.post(&format!("/v1/runs/{run}/tasks/m/retry?item=1"), json!({}))
        .await
        .expect_status(200);
    let found = node.ended(&run).await;
    assert_eq!(heddle_tests::item(&found, "m", Some(1))["state"], "succeeded");
    assert_eq!(found["state"], "failed");
    let body = json!({"state": "succeeded", "reason": "by hand", "output": {"attempt": 0}});
    node.put(&format!("/v1/runs/{run}/tasks/m/state?item=2"), body)
        .await
        .expect_status(200);
    let found = node.ended(&run).await;
    assert_eq!(
        (found["state"].as_str(), states(&found).as_str()),
        (Some("succeeded"), "after=succeeded m=succeeded")
    );
    assert_eq!(
        task(&found, "m")["output"],
        json!([{"attempt": 1}, {"attempt": 2}, {"attempt": 0}])
    );
    node.post(&format!("/v1/runs/{run}/tasks/m/retry?item=7"), json!({}))
        .await
        .expect_problem(404, &[]);
}

/// An output that is given for a mapped task as a whole is what people and dependants see.
#[tokio::test]
async fn override_of_a_mapped_task() {
    let (_world, node) = World::with_node().await;
    let map = json!({"script": "flaky", "for_each": [0, 9], "params": {"fail_times": "{{ item }}"}});
    let after = json!({"script": "echo", "depends_on": ["m"], "params": {"given": "{{ upstream.m }}"}});
    node.put_group("g", json!({"tasks": {"m": map, "after": after}})).await;
    for (given, seen) in [
        (json!({"output": ["by", "hand"]}), json!(["by", "hand"])),
        (json!({}), json!([{"attempt": 1}, null])),
    ] {
        let run = id(&node.run("g", json!({})).await);
        let body = with(json!({"state": "succeeded", "reason": "known elsewhere"}), given);
        node.put(&format!("/v1/runs/{run}/tasks/m/state"), body)
            .await
            .expect_status(200);
        let found = node.ended(&run).await;
        assert_eq!(states(&found), "after=succeeded m=succeeded");
        assert_eq!(task(&found, "m")["output"], seen);
        assert_eq!(task(&found, "after")["output"]["params"]["given"], seen);
    }
}

/// An output that is set by hand has the same bound as one that an attempt gives.
#[tokio::test]
async fn an_output_by_hand_has_the_bound_of_its_task() {
    let (_world, node) = World::with_node().await;
    let failing = |more: Value| with(fails(), more);
    node.put_group(
        "g",
        json!({"tasks": {
            "m": failing(json!({"max_output": 10, "for_each": [1, 2]})),
            "own": failing(json!({"max_output": 10})),
            "usual": fails(),
        }}),
    )
    .await;
    let run = id(&node.run("g", json!({})).await);
    // As JSON, a string has two quotation marks more.
    let text = |bytes: usize| json!("x".repeat(bytes - 2));
    let set = |task: &'static str, output: Value| {
        let body = json!({"state": "succeeded", "reason": "by hand", "output": output});
        let (node, path) = (&node, format!("/v1/runs/{run}/tasks/{task}"));
        async move { node.put(&path, body).await }
    };
    for (task, bytes_max) in [("own/state", 10), ("m/state?item=1", 10), ("usual/state", 256 * 1024)] {
        let problem = set(task, text(bytes_max + 1)).await.expect_problem(422, &["/output"]);
        let detail = problem["errors"][0]["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("at most {bytes_max} bytes")), "{detail}");
        set(task, text(bytes_max)).await.expect_status(200);
    }
    // The array of a map has the bound of joined outputs, not that of one item.
    set("m/state", text(1 << 20)).await.expect_status(200);
    let found = node.ended(&run).await;
    assert_eq!(states(&found), "m=succeeded own=succeeded usual=succeeded");
}

/// Retry now: what waits for its next attempt gets it at once, what has failed gets another.
#[tokio::test]
async fn retry_now() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "1h"});
    let after = json!({"script": "hello", "depends_on": ["t"]});
    let flaky = json!({"script": "flaky", "params": {"fail_times": 1}});
    node.put_group(
        "waits",
        json!({"tasks": {"t": with(flaky.clone(), json!({"retry": retry})), "after": after}}),
    )
    .await;
    node.put_group("failed", json!({"tasks": {"t": flaky, "after": after}}))
        .await;
    let run = node.start("waits", json!({})).await;
    node.task_becomes(&run, "t", "retrying").await;
    node.post(&format!("/v1/runs/{run}/tasks/t/retry"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(node.ended(&run).await["state"], "succeeded");
    node.post(&format!("/v1/runs/{run}/tasks/t/retry"), json!({}))
        .await
        .expect_problem(409, &[]);
    let run = id(&node.run("failed", json!({})).await);
    node.post(&format!("/v1/runs/{run}/tasks/t/retry"), json!({}))
        .await
        .expect_status(200);
    let again = node.ended(&run).await;
    assert_eq!(
        (again["state"].as_str(), states(&again).as_str()),
        (Some("succeeded"), "after=succeeded t=succeeded")
    );
}

/// The state of a whole run.
#[tokio::test]
async fn override_of_runs() {
    let (_world, node) = World::with_node().await;
    node.put_group("bad", one(fails())).await;
    node.put_group("slow", one(sleeps(3600.0))).await;
    let set = async |run: &str, state: &str| {
        let body = json!({"state": state, "reason": "by a test"});
        node.put(&format!("/v1/runs/{run}/state"), body)
            .await
            .expect_status(200)
    };
    let run = id(&node.run("bad", json!({})).await);
    node.put(&format!("/v1/runs/{run}/state"), json!({"state": "succeeded"}))
        .await
        .expect_problem(422, &["/reason"]);
    assert_eq!(set(&run, "succeeded").await["state"], "succeeded");
    assert_eq!(node.run_now(&run).await["state"], "succeeded");
    let run = node.start("slow", json!({})).await;
    node.task_becomes(&run, "t", "running").await;
    set(&run, "failed").await;
    assert_eq!(node.ended(&run).await["state"], "failed");
    assert_eq!(node.attempts(&run, "t").await[0]["state"], "cancelled");
}

/// The kinds of events about a run, when the feed has told all that was committed before the caller asks.
async fn told_of(node: &Node, run: &str) -> Vec<String> {
    let last = id(&node.run("last", json!({})).await);
    let all = eventually("the newest event", async || {
        let all = lines(node, "kinds=run.succeeded,run.failed,run.cancelled,run.skipped").await;
        all.iter().any(|line| line["run"] == json!(last)).then_some(all)
    })
    .await;
    let kinds = all.iter().filter(|line| line["run"] == json!(run));
    kinds.map(|line| line["kind"].as_str().unwrap().to_owned()).collect()
}

/// If a run remains as it ended, whatever is said of its tasks, then its end is told once, and its reasons are kept.
#[tokio::test]
async fn an_end_that_remains() {
    let (_world, node) = World::with_node().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    node.put_group("last", one(json!({"script": "hello"}))).await;
    let second = with(fails(), json!({"depends_on": ["a"], "trigger_rule": "all_done"}));
    let group = json!({"tasks": {"a": fails(), "b": second}, "notify": {"on": ["failed"], "channels": ["hook"]}});
    node.put_group("bad", group).await;
    let failed = node.run("bad", json!({"callback": "hook"})).await;
    let run = id(&failed);
    override_task(&node, &run, "a", "failed").await;
    let found = node.run_now(&run).await;
    assert_eq!((&found["state"], &found["error"]), (&json!("failed"), &failed["error"]));
    // The failure that remains is the reason now.
    override_task(&node, &run, "a", "skipped").await;
    let found = node.run_now(&run).await;
    assert_eq!(
        (&found["state"], states(&found).as_str()),
        (&json!("failed"), "a=skipped b=failed")
    );
    assert!(
        found["error"]["message"].as_str().unwrap().contains("task b"),
        "{found:#}"
    );
    assert_eq!(told_of(&node, &run).await, ["run.failed"]);
    node.run("bad", json!({"callback": "hook"})).await;
    for event in ["failed", "callback"] {
        assert_eq!(
            settled(&node, &format!("event={event}"), 2).await.len(),
            2,
            "of two runs"
        );
    }
    // One that was skipped stays skipped.
    let group = json!({
        "max_active_runs": 1, "max_waiting": 0, "overlap": "allow", "schedules": {"s": {"every": "200ms"}},
        "tasks": {"t": sleeps(3_600.0)},
    });
    node.put_group("busy", group).await;
    let skipped = eventually("a skipped run", async || {
        let all = runs(&node, "busy").await;
        all.into_iter().find(|run| run["skipped"] == "max_waiting")
    })
    .await;
    let run = id(&skipped);
    let skipped = node.run_now(&run).await;
    override_task(&node, &run, "t", "succeeded").await;
    let found = node.run_now(&run).await;
    for field in ["state", "skipped", "error", "started_at"] {
        assert_eq!(found[field], skipped[field], "{field}: {found:#}");
    }
    assert_eq!(told_of(&node, &run).await, ["run.skipped"]);
}

/// An ended run that is set to another state ends again, and all are told of that; set to its own state, it remains.
#[tokio::test]
async fn an_ended_run_ends_otherwise() {
    let (_world, node) = World::with_node().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    node.put_group("last", one(json!({"script": "hello"}))).await;
    let notify = json!({"notify": {"on": ["failed", "recovered"], "channels": ["hook"]}});
    node.put_group("bad", with(one(fails()), notify)).await;
    let failed = node.run("bad", json!({"callback": "hook"})).await;
    let run = id(&failed);
    for (state, error, told) in [
        ("failed", &failed["error"], vec!["run.failed"]),
        ("succeeded", &Value::Null, vec!["run.failed", "run.succeeded"]),
        ("succeeded", &Value::Null, vec!["run.failed", "run.succeeded"]),
    ] {
        node.put(
            &format!("/v1/runs/{run}/state"),
            json!({"state": state, "reason": "by a test"}),
        )
        .await
        .expect_status(200);
        let found = node.run_now(&run).await;
        assert_eq!((&found["state"], &found["error"]), (&json!(state), error));
        assert_eq!(told_of(&node, &run).await, told);
    }
    for (event, count) in [("failed", 1), ("recovered", 1), ("callback", 2)] {
        let all = settled(&node, &format!("event={event}"), count).await;
        assert_eq!(all.len(), count, "{event}");
    }
}

/// The beginning of a run is told also if somebody set the state of one of its tasks while it waited.
#[tokio::test]
async fn a_beginning_after_an_override() {
    let (_world, node) = World::with_node().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    let slow = with(sleeps(3_600.0), json!({"depends_on": ["a"]}));
    let group = json!({
        "max_active_runs": 1, "tasks": {"a": {"script": "hello"}, "t": slow},
        "notify": {"on": ["started"], "channels": ["hook"]},
    });
    node.put_group("g", group).await;
    let (first, second) = (node.start("g", json!({})).await, node.start("g", json!({})).await);
    node.task_becomes(&first, "t", "running").await;
    override_task(&node, &second, "a", "succeeded").await;
    assert_eq!(node.run_now(&second).await["state"], "waiting");
    let cancel = async |run: &str| {
        node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
            .await
            .expect_status(200)
    };
    cancel(&first).await;
    node.task_becomes(&second, "t", "running").await;
    let told = settled(&node, "event=started", 2).await;
    assert_eq!(told.len(), 2, "{told:#?}");
    assert!(told.iter().any(|one| one["run"] == json!(second)), "{told:#?}");
    cancel(&second).await;
}
