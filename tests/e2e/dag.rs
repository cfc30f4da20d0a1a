//! The DAG: what starts when, and what becomes of what did not.

use heddle_tests::{Answer, Receiver, World, seconds, states, task};
use serde_json::{Value, json};

use crate::{calls, fails, one, sleeps, with};

/// A diamond: both middle tasks start once the first has ended, the last one after both.
#[tokio::test]
async fn diamond() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "diamond",
        json!({"tasks": {
            "top": {"script": "hello"},
            "left": {"script": "sum", "params": {"numbers": [1, 2]}, "depends_on": ["top"]},
            "right": {"script": "sum", "params": {"numbers": [10]}, "depends_on": ["top"]},
            "bottom": {"script": "sum", "params": {"upstream": ["left", "right"]}, "depends_on": ["left", "right"]},
        }}),
    )
    .await;
    let run = node.run("diamond", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(
        states(&run),
        "bottom=succeeded left=succeeded right=succeeded top=succeeded"
    );
    for (before, after) in [
        ("top", "left"),
        ("top", "right"),
        ("left", "bottom"),
        ("right", "bottom"),
    ] {
        let gap = seconds(&task(&run, before)["finished_at"], &task(&run, after)["started_at"]);
        assert!(gap >= 0.0, "{after} started {gap} s before {before} had ended");
    }
    // left gives {sum: 3, count: 2, min: 1, max: 2}, right {sum: 10, count: 1, min: 10, max: 10}.
    assert_eq!(task(&run, "bottom")["output"]["sum"], 39.0);
}

/// A task starts the moment its dependencies are settled, never later for the sake of its level.
#[tokio::test]
async fn no_level_barrier() {
    let (_world, node) = World::with_node().await;
    let hello = |after: &str| json!({"script": "hello", "depends_on": [after]});
    node.put_group(
        "uneven",
        json!({"tasks": {
            "root": {"script": "hello"},
            "slow": with(sleeps(3600.0), json!({"depends_on": ["root"]})),
            "after_slow": hello("slow"),
            "b": hello("root"), "c": hello("b"), "d": hello("c"), "e": hello("d"),
        }}),
    )
    .await;
    let run = node.start("uneven", json!({})).await;
    // Four levels below the one at which `slow` still sleeps.
    let found = node.task_becomes(&run, "e", "succeeded").await;
    assert_eq!(task(&found, "slow")["state"], "running");
    assert_eq!(task(&found, "after_slow")["state"], "pending");
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
}

/// Tasks that are ready together run at the same time.
#[tokio::test]
async fn what_is_ready_together_runs_together() {
    let (_world, node) = World::with_node().await;
    let tasks: serde_json::Map<String, Value> = (0..20).map(|task| (format!("t{task}"), sleeps(1.0))).collect();
    node.put_group("wide", json!({"tasks": tasks})).await;
    let run = node.run("wide", json!({})).await;
    assert_eq!(run["state"], "succeeded");
    let first_end = (0..20)
        .map(|i| task(&run, &format!("t{i}"))["finished_at"].as_str().unwrap().to_owned())
        .min();
    for i in 0..20 {
        let start = task(&run, &format!("t{i}"))["started_at"].as_str().unwrap().to_owned();
        assert!(
            start < first_end.clone().unwrap(),
            "t{i} started at {start}, when another had ended"
        );
    }
}

/// Each rule with each kind of dependency. `s` succeeds, `f` fails, `k` is skipped, `u` is upstream_failed.
#[tokio::test]
async fn trigger_rules() {
    let (_world, node) = World::with_node().await;
    let expect = [
        ("all_success", "s", "succeeded"),
        ("all_success", "f", "upstream_failed"),
        ("all_success", "u", "upstream_failed"),
        ("all_success", "k", "skipped"),
        ("all_success", "sf", "upstream_failed"),
        ("all_success", "sk", "skipped"),
        ("all_done", "s", "succeeded"),
        ("all_done", "f", "succeeded"),
        ("all_done", "u", "succeeded"),
        ("all_done", "k", "succeeded"),
        ("all_done", "sfku", "succeeded"),
        ("any_success", "s", "succeeded"),
        ("any_success", "f", "skipped"),
        ("any_success", "sf", "succeeded"),
        ("any_success", "sfku", "succeeded"),
        ("any_success", "fku", "skipped"),
        ("any_failed", "s", "skipped"),
        ("any_failed", "k", "skipped"),
        ("any_failed", "f", "succeeded"),
        ("any_failed", "sfk", "succeeded"),
        ("none_failed", "sk", "succeeded"),
        ("none_failed", "k", "succeeded"),
        ("none_failed", "sf", "upstream_failed"),
        ("none_failed", "u", "upstream_failed"),
        ("all_failed", "fu", "succeeded"),
        ("all_failed", "sf", "skipped"),
        ("all_failed", "fk", "skipped"),
        ("none_failed_min_one_success", "sk", "succeeded"),
        ("none_failed_min_one_success", "k", "skipped"),
        ("none_failed_min_one_success", "sfk", "upstream_failed"),
        ("all_skipped", "k", "succeeded"),
        ("all_skipped", "sk", "skipped"),
        ("all_skipped", "fk", "skipped"),
        ("always", "sfku", "succeeded"),
    ];
    let mut tasks = json!({
        "s": {"script": "hello"},
        "f": fails(),
        "k": {"script": "hello", "when": "false"},
        "u": {"script": "hello", "depends_on": ["f"]},
    });
    for (rule, dependencies, _) in expect {
        let depends_on: Vec<String> = dependencies.chars().map(String::from).collect();
        tasks[format!("{rule}-{dependencies}")] =
            json!({"script": "hello", "depends_on": depends_on, "trigger_rule": rule});
    }
    node.put_group("rules", json!({"tasks": tasks})).await;
    let run = node.run("rules", json!({})).await;
    assert_eq!(run["state"], "failed");
    for (name, state) in [
        ("s", "succeeded"),
        ("f", "failed"),
        ("k", "skipped"),
        ("u", "upstream_failed"),
    ] {
        assert_eq!(task(&run, name)["state"], state, "{name}");
    }
    for (rule, dependencies, state) in expect {
        let name = format!("{rule}-{dependencies}");
        assert_eq!(task(&run, &name)["state"], state, "{name}");
    }
}

/// The `any_` rules fire as soon as one dependency satisfies them.
#[tokio::test]
async fn any_rules_fire_early() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "early",
        json!({"tasks": {
            "slow": sleeps(3600.0),
            "s": {"script": "hello"},
            "f": fails(),
            "on_success": {"script": "hello", "depends_on": ["slow", "s"], "trigger_rule": "any_success"},
            "on_failure": {"script": "hello", "depends_on": ["slow", "f"], "trigger_rule": "any_failed"},
            "all": {"script": "hello", "depends_on": ["slow", "s"], "trigger_rule": "all_done"},
            "always": {"script": "hello", "depends_on": ["slow"], "trigger_rule": "always"},
        }}),
    )
    .await;
    let run = node.start("early", json!({})).await;
    node.task_becomes(&run, "on_success", "succeeded").await;
    node.task_becomes(&run, "always", "succeeded").await;
    let found = node.task_becomes(&run, "on_failure", "succeeded").await;
    assert_eq!(task(&found, "slow")["state"], "running");
    assert_eq!(task(&found, "all")["state"], "pending");
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
}

/// `allow_failure`: the run does not fail for it, and dependants treat it as a success.
#[tokio::test]
async fn allowed_failures_count_as_success() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "lenient",
        json!({"tasks": {
            "f": with(fails(), json!({"allow_failure": true})),
            "all_success": {"script": "hello", "depends_on": ["f"]},
            "any_success": {"script": "hello", "depends_on": ["f"], "trigger_rule": "any_success"},
            "any_failed": {"script": "hello", "depends_on": ["f"], "trigger_rule": "any_failed"},
        }}),
    )
    .await;
    let run = node.run("lenient", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(
        states(&run),
        "all_success=succeeded any_failed=skipped any_success=succeeded f=failed"
    );
    assert_eq!(task(&run, "f")["error"]["kind"], "fatal");
}

/// `when` sees params, upstream and the logical time.
#[tokio::test]
async fn when_is_an_expression() {
    let (_world, node) = World::with_node().await;
    let when = |when: &str| json!({"script": "hello", "depends_on": ["first"], "when": when});
    let expect = [
        ("params_yes", "params.n > 3", "succeeded"),
        ("params_no", "params.n < 3", "skipped"),
        ("upstream_yes", "upstream.first.greeting == 'Hello, you!'", "succeeded"),
        (
            "upstream_key",
            "upstream[\"first\"].greeting != 'Hello, you!'",
            "skipped",
        ),
        ("time_yes", "(logical_time | date) == '2013-07-01'", "succeeded"),
        ("interval", "(data_interval.end | date) != '2013-07-01'", "skipped"),
        ("braces", "{{ params.n == 5 }}", "succeeded"),
    ];
    let mut tasks = json!({"first": {"script": "hello", "params": {"name": "you"}}});
    for (name, condition, _) in expect {
        tasks[name] = when(condition);
    }
    // YAML has words of its own for constants.
    for (name, constant) in [("always", true), ("never", false)] {
        tasks[name] = json!({"script": "hello", "when": constant});
    }
    tasks["after_skipped"] = json!({"script": "hello", "depends_on": ["params_no"]});
    node.put_group("when", json!({"tasks": tasks})).await;
    let run = node
        .run(
            "when",
            json!({"params": {"n": 5}, "logical_time": "2013-07-01T12:00:00Z"}),
        )
        .await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    for (name, condition, state) in expect {
        assert_eq!(task(&run, name)["state"], state, "{condition}");
    }
    assert_eq!(task(&run, "after_skipped")["state"], "skipped");
    assert_eq!(task(&run, "always")["state"], "succeeded");
    assert_eq!(task(&run, "never")["state"], "skipped");
}

/// A `when` that cannot be answered fails its task, fatally.
#[tokio::test]
async fn a_condition_that_fails_is_invalid() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 3, "interval": "10ms"});
    node.put_group(
        "g",
        one(json!({"script": "hello", "when": "params.nope.deeper > 1", "retry": retry})),
    )
    .await;
    let run = node.run("g", json!({})).await;
    assert_eq!(run["state"], "failed");
    assert_eq!(task(&run, "t")["error"]["kind"], "invalid", "{run:#}");
    assert_eq!(node.attempts(run["id"].as_str().unwrap(), "t").await.len(), 1);
}

/// `on_failure: stop` cancels what has not started; what runs ends by itself. The default goes on.
#[tokio::test]
async fn on_failure() {
    let world = World::new().await;
    let node = world.options().at_home().start().await;
    let gate = Receiver::start(Answer::Held).await;
    let tasks = json!({
        "f": fails(),
        "slow": calls(&gate),
        "later": {"script": "hello", "depends_on": ["slow"]},
    });
    node.put_group("stop", json!({"on_failure": "stop", "tasks": tasks}))
        .await;
    node.put_group("continue", json!({"tasks": tasks})).await;
    let (stopped, continued) = (
        node.start("stop", json!({})).await,
        node.start("continue", json!({})).await,
    );
    for run in [&stopped, &continued] {
        node.task_becomes(run, "f", "failed").await;
        node.task_becomes(run, "slow", "running").await;
    }
    gate.answers(Answer::Json(200, "{}".into()));
    let (stopped, continued) = (node.ended(&stopped).await, node.ended(&continued).await);
    assert_eq!(
        (&stopped["state"], &continued["state"]),
        (&json!("failed"), &json!("failed"))
    );
    assert_eq!(states(&stopped), "f=failed later=cancelled slow=succeeded");
    assert_eq!(states(&continued), "f=failed later=succeeded slow=succeeded");
}

/// Each task of a sample DAG fails in turn: what does not depend on it succeeds, what does fails with it, and the run
/// goes to its end after a restart.
#[tokio::test]
async fn fail_each_task_in_turn() {
    let (_world, node) = World::with_node().await;
    let edges: [(&str, &[&str]); 8] = [
        ("a", &[]),
        ("b", &["a"]),
        ("c", &["a"]),
        ("d", &["b", "c"]),
        ("e", &["c"]),
        ("f", &["d", "e"]),
        ("g", &[]),
        ("h", &["g", "e"]),
    ];
    let mut tasks = json!({});
    for (name, depends_on) in edges {
        tasks[name] = json!({"script": "flaky", "params": {"fail_times": 0}, "depends_on": depends_on});
    }
    node.put_group("sample", json!({"tasks": tasks})).await;
    for (failing, _) in edges {
        let submission = json!({"task_params": {failing: {"fail_times": 1, "kind": "fatal"}}});
        let run = node.run("sample", submission).await;
        assert_eq!(run["state"], "failed", "{failing}");
        let mut below = vec![failing];
        for (name, depends_on) in edges {
            let follows = depends_on.iter().any(|dependency| below.contains(dependency));
            let state = match () {
                () if name == failing => "failed",
                () if follows => "upstream_failed",
                () => "succeeded",
            };
            if follows {
                below.push(name);
            }
            assert_eq!(task(&run, name)["state"], state, "{name} when {failing} fails");
        }
        let message = run["error"]["message"].as_str().unwrap_or_default();
        assert!(
            message.contains(&format!("task {failing}")),
            "the run says `{message}` when {failing} fails"
        );
        let id = heddle_tests::id(&run);
        node.post(&format!("/v1/runs/{id}/restart"), json!({}))
            .await
            .expect_status(200);
        let again = node.ended(&id).await;
        assert_eq!(again["state"], "succeeded", "after {failing}: {again:#}");
        assert_eq!(again["error"], Value::Null);
        for (name, _) in edges {
            let kept = task(&run, name)["state"] == "succeeded";
            let attempts = if name == failing { 2 } else { 1 };
            assert_eq!(task(&again, name)["attempt"], attempts, "{name}");
            if kept {
                assert_eq!(task(&run, name), task(&again, name), "a restart keeps what succeeded");
            }
        }
    }
}

/// Forty tasks one after the other, and one -> hundred -> one.
#[tokio::test]
async fn chains_and_fans() {
    let (_world, node) = World::with_node().await;
    let mut chain = json!({"t0": {"script": "hello"}});
    for i in 1..40 {
        chain[format!("t{i}")] = json!({"script": "hello", "depends_on": [format!("t{}", i - 1)]});
    }
    node.put_group("chain", json!({"tasks": chain})).await;
    let run = node.run("chain", json!({})).await;
    assert_eq!(run["state"], "succeeded");
    let mut fan = json!({"first": {"script": "hello"}});
    let middle: Vec<String> = (0..100).map(|i| format!("m{i}")).collect();
    for name in &middle {
        fan[name] = json!({"script": "sum", "params": {"numbers": [1]}, "depends_on": ["first"]});
    }
    fan["last"] = json!({"script": "sum", "params": {"upstream": middle}, "depends_on": middle});
    node.put_group("fan", json!({"tasks": fan})).await;
    let run = node.run("fan", json!({})).await;
    assert_eq!(run["state"], "succeeded");
    // Each gives {sum: 1, count: 1, min: 1, max: 1}.
    assert_eq!(task(&run, "last")["output"]["sum"], 400.0);
}

/// A group of 10,000 tasks is taken and runs to its end.
#[tokio::test]
async fn ten_thousand_tasks() {
    let (_world, node) = World::with_node().await;
    let count = 10_000;
    let mut tasks = serde_json::Map::new();
    for i in 0..count {
        let depends_on: Vec<String> = if i < 100 {
            Vec::new()
        } else {
            vec![format!("t{}", i - 100)]
        };
        tasks.insert(
            format!("t{i}"),
            json!({"script": "hello-wasi", "depends_on": depends_on}),
        );
    }
    node.put_group("huge", json!({"tasks": tasks})).await;
    let id = node.start("huge", json!({})).await;
    let run = node.ended(&id).await;
    assert_eq!(run["state"], "succeeded");
    let done = run["tasks"].as_array().unwrap();
    assert_eq!(done.len(), count);
    assert!(
        done.iter()
            .all(|task| task["state"] == "succeeded" && task["attempt"] == 1)
    );
    // One more is refused.
    tasks.insert("one_more".into(), json!({"script": "hello"}));
    node.refused_group("huger", json!({"tasks": tasks}))
        .await
        .expect_problem(422, &["/tasks"]);
}
