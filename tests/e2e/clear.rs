//! Clear: a task, and what depends on it, once more within a run that has ended.

use heddle_tests::{Answer, Node, Receiver, World, eventually, id, item, states, task};
use serde_json::{Value, json};

use crate::kills::{Held, options};
use crate::{calls, fails, one, sleeps, with};

async fn clear(node: &Node, run: &str, task: &str, body: Value) -> Value {
    node.post(&format!("/v1/runs/{run}/tasks/{task}/clear"), body)
        .await
        .expect_status(200)
}

/// `a`, `b` after it, `c` after that, and `x` independent of them; each returns its input.
fn chain() -> Value {
    let echo = |params: Value, after: &[&str]| json!({"script": "echo", "params": params, "depends_on": after});
    json!({"tasks": {
        "a": echo(json!({"n": "{{ params.n }}"}), &[]),
        "b": echo(json!({"from": "{{ upstream.a }}"}), &["a"]),
        "c": echo(json!({"from": "{{ upstream.b }}"}), &["b"]),
        "x": echo(json!({}), &["a"]),
    }})
}

async fn numbers(node: &Node, run: &str, name: &str) -> Vec<u64> {
    let attempts = node.attempts(run, name).await;
    attempts
        .iter()
        .map(|attempt| attempt["attempt"].as_u64().unwrap())
        .collect()
}

/// Attempts' history stays, numbering goes on, what is not named is left alone.
#[tokio::test]
async fn with_and_without_what_depends_on_it() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", chain()).await;
    let ran = node.run("g", json!({"params": {"n": 1}})).await;
    let run = id(&ran);
    assert_eq!(ran["state"], "succeeded", "{ran:#}");
    let cleared = clear(&node, &run, "b", json!({"downstream": true, "reason": "bad data"})).await;
    assert_eq!(cleared["task"], "b");
    let again = node.ended(&run).await;
    assert_eq!(again["state"], "succeeded");
    let came_of = "/output/params/from/params/from/params/n";
    assert_eq!(task(&again, "c").pointer(came_of), Some(&json!(1)), "{again:#}");
    for (name, expect) in [("a", vec![1]), ("b", vec![1, 2]), ("c", vec![1, 2]), ("x", vec![1])] {
        assert_eq!(numbers(&node, &run, name).await, expect, "{name}");
        assert_eq!(task(&again, name)["attempt"], expect.len(), "{name}");
    }
    assert_eq!(again["created_at"], ran["created_at"]);
    assert!(again["finished_at"].as_str() > ran["finished_at"].as_str());
    // Alone; the default is with what depends on it.
    clear(&node, &run, "b", json!({"downstream": false})).await;
    node.ended(&run).await;
    assert_eq!(numbers(&node, &run, "b").await, [1, 2, 3]);
    assert_eq!(numbers(&node, &run, "c").await, [1, 2]);
    clear(&node, &run, "a", json!({})).await;
    assert_eq!(node.ended(&run).await["state"], "succeeded");
    assert_eq!(numbers(&node, &run, "c").await, [1, 2, 3]);
    assert_eq!(numbers(&node, &run, "x").await, [1, 2]);
    // The audit says who, what and why.
    let audit = node.get("/v1/audit?limit=500").await.expect_status(200);
    let entries: Vec<&Value> = audit["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["action"] == "clear")
        .collect();
    assert_eq!(entries.len(), 3, "{audit:#}");
    let first = entries.last().unwrap();
    assert_eq!(first["after"]["task"]["name"], "b", "{first:#}");
    assert_eq!(first["after"]["task"]["cleared"], 2);
    assert_eq!(first["after"]["reason"], "bad data");
}

/// A failure that is cleared takes its word back; what it kept from running runs.
#[tokio::test]
async fn failures() {
    let (_world, node) = World::with_node().await;
    let spec = json!({"tasks": {
        "f": {"script": "flaky", "params": {"kind": "fatal", "fail_times": 1}},
        "after": {"script": "hello", "depends_on": ["f"]},
        "other": fails(),
    }});
    node.put_group("g", spec).await;
    let failed = node.run("g", json!({})).await;
    let run = id(&failed);
    assert_eq!(states(&failed), "after=upstream_failed f=failed other=failed");
    let cleared = clear(&node, &run, "f", json!({"downstream": false})).await;
    assert_eq!(cleared["error"], Value::Null, "{cleared:#}");
    let again = node.ended(&run).await;
    assert_eq!(states(&again), "after=succeeded f=succeeded other=failed");
    assert_eq!(again["state"], "failed");
    assert!(
        again["error"]["message"].as_str().unwrap().contains("other"),
        "{again:#}"
    );
    // While it runs, it is refused with what to do instead; what is not there is 404.
    node.put_group("slow", one(sleeps(3600.0))).await;
    let slow = node.start("slow", json!({})).await;
    node.task_becomes(&slow, "t", "running").await;
    let path = format!("/v1/runs/{slow}/tasks/t/clear");
    let refused = node.post(&path, json!({})).await.expect_problem(409, &[]);
    assert!(
        refused["detail"].as_str().unwrap().contains("Cancel the run"),
        "{refused:#}"
    );
    for (path, status) in [
        (format!("/v1/runs/{run}/tasks/none/clear"), 404),
        (format!("/v1/runs/{run}/tasks/f/clear?item=0"), 404),
        (format!("/v1/runs/{}/tasks/f/clear", uuid::Uuid::nil()), 404),
    ] {
        node.post(&path, json!({})).await.expect_problem(status, &[]);
    }
    node.post(&format!("/v1/runs/{run}/tasks/f/clear"), json!({"down": 1}))
        .await
        .expect_problem(422, &["/down"]);
    assert_eq!(node.run_now(&run).await["state"], "failed");
    assert_eq!(numbers(&node, &run, "f").await, [1, 2]);
}

/// Of a cancelled run what is named goes on, and the rest is for a restart.
#[tokio::test]
async fn a_cancelled_run() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {"a": {"script": "hello"}, "slow": sleeps(3600.0), "z": {"script": "hello", "depends_on": ["a", "slow"]}}}),
    )
    .await;
    let run = node.start("g", json!({})).await;
    node.task_becomes(&run, "slow", "running").await;
    node.task_becomes(&run, "a", "succeeded").await;
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    clear(&node, &run, "a", json!({"downstream": false})).await;
    let ended = node.ended(&run).await;
    assert_eq!(states(&ended), "a=succeeded slow=cancelled z=cancelled");
    assert_eq!(ended["state"], "cancelled");
    assert_eq!(numbers(&node, &run, "a").await, [1, 2]);
}

/// An item runs again, and its numbers continue; a whole map is expanded again.
#[tokio::test]
async fn mapped_tasks() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {
            "m": {"script": "echo", "for_each": [1, 2, 3], "params": {"n": "{{ item }}"}},
            "z": {"script": "echo", "params": {"all": "{{ upstream.m }}"}, "depends_on": ["m"]},
        }}),
    )
    .await;
    let ran = node.run("g", json!({})).await;
    let run = id(&ran);
    node.post(&format!("/v1/runs/{run}/tasks/m/clear?item=1"), json!({}))
        .await
        .expect_status(200);
    let again = node.ended(&run).await;
    assert_eq!(again["state"], "succeeded");
    let outputs = |run: &Value| -> Vec<Value> {
        let all = task(run, "m")["output"].as_array().unwrap().iter();
        all.map(|output| output["params"].clone()).collect()
    };
    assert_eq!(outputs(&again), outputs(&ran));
    assert_eq!(item(&again, "m", Some(1))["attempt"], 2);
    assert_eq!(item(&again, "m", Some(0))["attempt"], 1);
    assert_eq!(task(&again, "z")["attempt"], 2);
    clear(&node, &run, "m", json!({"downstream": false})).await;
    let all = node.ended(&run).await;
    assert_eq!(outputs(&all), outputs(&ran));
    for index in 0..3 {
        assert!(item(&all, "m", Some(index))["attempt"].as_u64() > Some(1), "{all:#}");
    }
    assert_eq!(task(&all, "z")["attempt"], 2);
}

/// An item that the newest expansion does not have keeps its history.
#[tokio::test]
async fn items_of_an_earlier_expansion() {
    let (_world, node) = World::with_node().await;
    let map = json!({"script": "hello", "for_each": "{{ upstream.list }}", "depends_on": ["list"]});
    node.put_group("g", json!({"tasks": {"list": fails(), "m": map}})).await;
    let run = id(&node.run("g", json!({})).await);
    for items in [json!([1, 2]), json!([1])] {
        let body = json!({"state": "succeeded", "reason": "by a test", "output": items});
        node.put(&format!("/v1/runs/{run}/tasks/list/state"), body)
            .await
            .expect_status(200);
        assert_eq!(node.ended(&run).await["state"], "succeeded");
    }
    clear(&node, &run, "m", json!({})).await;
    let again = node.ended(&run).await;
    assert_eq!(task(&again, "m")["items"], json!({"succeeded": 1}));
    let path = |item: u32| format!("/v1/runs/{run}/tasks/m?item={item}");
    let former = node.get(&path(1)).await.expect_status(200);
    assert_eq!(former["state"], "succeeded");
    assert_eq!(former["attempts"].as_array().unwrap().len(), 1);
    node.get(&path(2)).await.expect_problem(404, &[]);
}

/// What a task returned before it was cleared has no effect any more.
#[tokio::test]
async fn outputs_are_those_of_the_last_attempt() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {
            "a": {"queue": "q", "allow_failure": true},
            "z": {"script": "echo", "params": {"from": "{{ upstream.a }}"}, "depends_on": ["a"]},
        }}),
    )
    .await;
    let run = node.start("g", json!({})).await;
    let work = async |verb: &str, body: Value| {
        let ask = json!({"worker": "w", "max": 1, "wait": "20s"});
        let claims = node.post("/v1/queues/q/claims", ask).await.expect_status(200);
        let claim = &claims["items"][0];
        let said = with(body, json!({"token": claim["token"]}));
        let path = format!("/v1/claims/{}/{verb}", claim["id"].as_str().unwrap());
        node.post(&path, said).await.expect_status(200);
    };
    work("complete", json!({"output": {"first": true}})).await;
    let ran = node.ended(&run).await;
    assert_eq!(
        task(&ran, "z")["output"]["params"]["from"],
        json!({"first": true}),
        "{ran:#}"
    );
    assert_eq!(task(&ran, "a")["worker"], "w");
    clear(&node, &run, "a", json!({})).await;
    work("fail", json!({"error": "no", "fatal": true})).await;
    let again = node.ended(&run).await;
    assert_eq!(again["state"], "succeeded", "{again:#}");
    assert_eq!(task(&again, "z")["output"]["params"]["from"], Value::Null, "{again:#}");
    assert_eq!(node.attempts(&run, "a").await[1]["worker"], "w");
}

/// By a filter; those to which it does not apply are named.
#[tokio::test]
async fn in_bulk() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {"a": {"script": "hello"}, "b": {"script": "hello", "depends_on": ["a"]}}}),
    )
    .await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(id(&node.run("g", json!({"labels": {"batch": "1"}})).await));
    }
    node.put_group("slow", with(one(sleeps(3600.0)), json!({"labels": {"batch": "1"}})))
        .await;
    let slow = node.start("slow", json!({})).await;
    let ask = |dry_run: bool| json!({"filter": {"label": "batch=1"}, "action": "clear", "task": "a", "downstream": false, "dry_run": dry_run});
    let dry = node.post("/v1/runs/bulk", ask(true)).await.expect_status(200);
    assert_eq!((&dry["matched"], &dry["changed"]), (&json!(4), &json!(0)), "{dry:#}");
    assert_eq!(dry["refused"].as_array().unwrap().len(), 1, "{dry:#}");
    assert_eq!(dry["refused"][0]["id"], json!(slow));
    assert_eq!(numbers(&node, &runs[0], "a").await, [1]);
    let done = node.post("/v1/runs/bulk", ask(false)).await.expect_status(200);
    assert_eq!(done["changed"], 3, "{done:#}");
    assert_eq!(done["refused"], dry["refused"]);
    for run in &runs {
        assert_eq!(node.ended(run).await["state"], "succeeded");
        assert_eq!(numbers(&node, run, "a").await, [1, 2]);
        assert_eq!(numbers(&node, run, "b").await, [1]);
    }
    // Of a group without such a task they say so, before and after.
    let other =
        |dry_run: bool| json!({"filter": {"group": "g"}, "action": "clear", "task": "none", "dry_run": dry_run});
    for dry_run in [true, false] {
        let report = node.post("/v1/runs/bulk", other(dry_run)).await.expect_status(200);
        assert_eq!(report["changed"], 0);
        assert!(
            report["refused"][0]["detail"].as_str().unwrap().contains("`none`"),
            "{report:#}"
        );
    }
    // And so do runs without such an item.
    node.put_group("m", json!({"tasks": {"a": {"script": "hello", "shards": 2}}}))
        .await;
    let mapped = id(&node.run("m", json!({})).await);
    for (group, item) in [("g", 0), ("m", 2)] {
        for dry_run in [true, false] {
            let body =
                json!({"filter": {"group": group}, "action": "clear", "task": "a", "item": item, "dry_run": dry_run});
            let report = node.post("/v1/runs/bulk", body).await.expect_status(200);
            assert_eq!(report["changed"], 0, "{report:#}");
            assert_eq!(
                report["refused"].as_array().map(Vec::len),
                report["matched"].as_u64().map(|n| n as usize)
            );
            let words = format!("`a item {item}`");
            assert!(
                report["refused"][0]["detail"].as_str().unwrap().contains(&words),
                "{report:#}"
            );
        }
    }
    let body = json!({"filter": {"group": "m"}, "action": "clear", "task": "a", "item": 1});
    assert_eq!(node.post("/v1/runs/bulk", body).await.expect_status(200)["changed"], 1);
    assert_eq!(node.ended(&mapped).await["state"], "succeeded");
    let filter = json!({"group": "g"});
    for (body, pointer) in [
        (json!({"filter": filter, "action": "clear"}), "/task"),
        (json!({"filter": filter, "action": "cancel", "task": "a"}), "/task"),
        (
            json!({"filter": filter, "action": "cancel", "downstream": true}),
            "/downstream",
        ),
        (json!({"filter": filter, "action": "pause", "reason": "x"}), "/reason"),
        (
            json!({"filter": filter, "action": "delete", "state": "failed"}),
            "/state",
        ),
        (
            json!({"filter": filter, "action": "clear", "task": "a", "scripts": "active"}),
            "/scripts",
        ),
    ] {
        node.post("/v1/runs/bulk", body).await.expect_problem(422, &[pointer]);
    }
}

/// A reopened run keeps to the group's rules: it waits for its turn, and calls for no dependants a second time.
#[tokio::test]
async fn turns_and_followers() {
    let (_world, node) = World::with_node().await;
    node.put_group("up", one(json!({"script": "hello"}))).await;
    node.put_group(
        "down",
        with(one(json!({"script": "hello"})), json!({"depends_on": ["up"]})),
    )
    .await;
    let run = id(&node.run("up", json!({"logical_time": "2026-01-01T00:00:00Z"})).await);
    let followers = async || node.all("/v1/runs?group=down&history=true").await.len();
    eventually("the follower's run", async || (followers().await == 1).then_some(())).await;
    clear(&node, &run, "t", json!({})).await;
    node.ended(&run).await;
    // Whatever a success calls for has been decided when a later one's has.
    node.run("up", json!({"logical_time": "2026-01-02T00:00:00Z"})).await;
    eventually("the next follower's run", async || {
        (followers().await >= 2).then_some(())
    })
    .await;
    assert_eq!(followers().await, 2);

    node.put_group("g", with(one(sleeps(0.0)), json!({"max_active_runs": 1})))
        .await;
    let first = id(&node.run("g", json!({})).await);
    let blocker = node.start("g", json!({"task_params": {"t": {"seconds": 3600}}})).await;
    node.task_becomes(&blocker, "t", "running").await;
    clear(&node, &first, "t", json!({})).await;
    let waiting = node.run_now(&first).await;
    assert_eq!(waiting["state"], "waiting", "{waiting:#}");
    assert_eq!(waiting["waiting_for"][0]["turn"], true);
    node.post(&format!("/v1/runs/{blocker}/cancel"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(node.ended(&first).await["state"], "succeeded");
    assert_eq!(numbers(&node, &first, "t").await, [1, 2]);
}

/// Twice at once, against restart and delete, on two nodes: each is done or refused, and nothing runs twice.
#[tokio::test]
async fn races() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    nodes[0].put_group("g", chain()).await;
    for round in 0..6 {
        let run = id(&nodes[0].run("g", json!({"params": {"n": round}})).await);
        let path = format!("/v1/runs/{run}/tasks/a/clear");
        let (one, two) = tokio::join!(nodes[0].post(&path, json!({})), nodes[1].post(&path, json!({})));
        let mut statuses = [one.status, two.status];
        statuses.sort_unstable();
        let ended = nodes[1].ended(&run).await;
        assert_eq!(ended["state"], "succeeded", "{ended:#}");
        let count = numbers(&nodes[0], &run, "a").await.len();
        // The second comes while the run goes, or after it has ended again.
        let done = statuses.iter().filter(|status| **status == 200).count();
        assert!(
            done >= 1 && statuses.iter().all(|status| [200, 409].contains(status)),
            "{statuses:?}"
        );
        assert_eq!(count, 1 + done, "{statuses:?}");
        // Against a deletion one of the two is refused.
        let own = format!("/v1/runs/{run}");
        let (cleared, deleted) = tokio::join!(nodes[0].post(&path, json!({})), nodes[1].delete(&own));
        match (cleared.status, deleted.status) {
            (200, 409) => {
                assert_eq!(nodes[0].ended(&run).await["state"], "succeeded");
            }
            // The second when the run had ended again.
            (404 | 200, 204) => {
                nodes[0].get(&own).await.expect_problem(404, &[]);
            }
            other => panic!("{other:?} {:#} {:#}", cleared.body, deleted.body),
        }
    }
    // Against a restart.
    nodes[0]
        .put_group("f", json!({"tasks": {"a": fails(), "b": {"script": "hello"}}}))
        .await;
    for _ in 0..4 {
        let run = id(&nodes[0].run("f", json!({})).await);
        let (cleared, restarted) = (
            format!("/v1/runs/{run}/tasks/b/clear"),
            format!("/v1/runs/{run}/restart"),
        );
        let (one, two) = tokio::join!(nodes[0].post(&cleared, json!({})), nodes[1].post(&restarted, json!({})));
        for reply in [&one, &two] {
            assert!([200, 409].contains(&reply.status), "{} {:#}", reply.status, reply.body);
        }
        assert_eq!(nodes[0].ended(&run).await["state"], "failed");
    }
}

/// Killed in the middle of a clear: it is done or not, never by halves; and the run comes to its end.
#[tokio::test]
async fn a_node_that_is_killed_in_the_middle() {
    let world = World::new().await;
    let mut node = options(&world).start().await;
    node.put_group("g", chain()).await;
    let run = id(&node.run("g", json!({"params": {"n": 1}})).await);
    let held = Held::take(&world, "LOCK TABLE heddle.audit IN SHARE MODE").await;
    let api = node.with_token(Some(heddle_tests::TOKEN));
    let path = format!("/v1/runs/{run}/tasks/b/clear");
    let asked = tokio::spawn({
        let path = path.clone();
        async move { api.try_post(&path, json!({})).await }
    });
    held.kill(&mut node).await;
    assert!(asked.await.unwrap().is_none(), "it was answered before its commit");
    let node = options(&world).start().await;
    let found = node.run_now(&run).await;
    assert_eq!(found["state"], "succeeded", "nothing of it was committed: {found:#}");
    assert_eq!(numbers(&node, &run, "b").await, [1]);
    clear(&node, &run, "b", json!({})).await;
    assert_eq!(node.ended(&run).await["state"], "succeeded");
    assert_eq!(numbers(&node, &run, "c").await, [1, 2]);
    // And while what was cleared runs: it is lost, and run again.
    let gate = Receiver::start(Answer::Json(200, "{}".into())).await;
    node.put_group("slow", one(calls(&gate))).await;
    let slow = id(&node.run("slow", json!({})).await);
    gate.answers(Answer::Held);
    clear(&node, &slow, "t", json!({})).await;
    node.task_becomes(&slow, "t", "running").await;
    let mut node = node;
    node.kill();
    node.end().await;
    gate.answers(Answer::Json(200, "{}".into()));
    let node = options(&world).start().await;
    let ended = eventually("the end", async || {
        let found = node.run_now(&slow).await;
        (found["state"] == "succeeded").then_some(found)
    })
    .await;
    assert_eq!(task(&ended, "t")["attempt"], 3, "{ended:#}");
}
