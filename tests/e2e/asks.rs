//! Tasks that ask users: an attempt is an offer, and the offer's end the attempt's.

use heddle_tests::{Api, Node, World, eventually, item, states, task};
use serde_json::{Value, json};

use crate::dispatch::{complete, finish, members, offer, poll, users};

/// A task of the executor `audience` is done when its stock is; a failure uses up a retry.
#[tokio::test]
async fn audience_tasks() {
    let (_world, node) = World::with_node().await;
    members(&node, "gid_g", &users(3)).await;
    node.put_group(
        "ask",
        json!({"tasks": {
            "ask": {"audience": {"audience": "gid_{{ params.team }}", "dispatch_times": 2}, "params": {"team": "g", "q": "ok?"},
                    "retry": {"strategy": "fixed", "retries": 1, "interval": "10ms"}},
            "then": {"script": "echo", "depends_on": ["ask"], "params": {"got": "{{ upstream.ask }}"}},
        }}),
    )
    .await;
    let run = node.start("ask", json!({})).await;
    let wait = json!({"wait": "20s"});
    let next = async |uid: &str| {
        node.post(&format!("/v1/dispatch/{uid}/next"), wait.clone())
            .await
            .expect_status(200)
    };
    let one = next("u0").await;
    assert_eq!(one["params"]["q"], "ok?");
    finish(&node, &one, "completed", json!("yes")).await.expect_status(200);
    let failing = next("u1").await;
    finish(&node, &failing, "failed", json!("busy"))
        .await
        .expect_status(200);
    let again = next("u1").await;
    finish(&node, &again, "completed", json!("fine"))
        .await
        .expect_status(200);
    let ended = node.ended(&run).await;
    assert_eq!(states(&ended), "ask=succeeded then=succeeded", "{ended:#}");
    assert_eq!(task(&ended, "ask")["output"], json!(["yes", "fine"]));
    assert_eq!(node.attempts(&run, "ask").await.len(), 2);
    // The audience alone is an offer with all defaults; the whole of it is shown.
    let short = json!({"tasks": {"ask": {"audience": "uid_u0"}}});
    let group = node.put_group("short", short).await;
    assert_eq!(group["tasks"]["ask"]["audience"]["audience"], "uid_u0", "{group:#}");
    let run = node.start("short", json!({})).await;
    complete(&node, &next("u0").await).await;
    assert_eq!(task(&node.ended(&run).await, "ask")["output"], json!([1]));
    // A cancelled run's offer is withdrawn, and with it what is held of it.
    let run = node.start("ask", json!({})).await;
    let held = next("u2").await;
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    // At once nobody completes it any more, and a little later it is taken back.
    for status in ["completed", "failed"] {
        finish(&node, &held, status, json!(1)).await.expect_problem(409, &[]);
    }
    let path = format!("/v1/assignments/{}", held["assignment_id"].as_str().expect("an id"));
    eventually("revoked assignment", async || {
        let found = node.get(&path).await.expect_status(200);
        (found["state"] == "revoked").then_some(())
    })
    .await;
    assert_eq!(poll(&node, "u0").await.status, 204);
}

/// A new attempt of an audience task goes on with the stock of the last one: what is completed or held counts, and who
/// has completed it is not asked again.
#[tokio::test]
async fn attempts_of_audience_tasks_share_their_stock() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let node = &nodes[0];
    members(node, "gid_g", &users(5)).await;
    let retry = json!({"strategy": "fixed", "retries": 3, "interval": "10ms"});
    let ask = json!({"audience": {"audience": "gid_g", "dispatch_times": 3}, "retry": retry});
    node.put_group("ask", json!({"tasks": {"ask": ask}})).await;
    let run = node.start("ask", json!({})).await;
    let mut held = Vec::new();
    for uid in ["u0", "u1", "u2"] {
        let path = format!("/v1/dispatch/{uid}/next");
        held.push(node.post(&path, json!({"wait": "20s"})).await.expect_status(200));
    }
    finish(node, &held[0], "completed", json!(0)).await.expect_status(200);
    finish(node, &held[1], "failed", json!(1)).await.expect_status(200);
    // It comes back with the next attempt, for the one who failed, and with the same stock.
    let again = node
        .post("/v1/dispatch/u1/next", json!({"wait": "20s"}))
        .await
        .expect_status(200);
    assert_eq!(again["occurrence"], held[1]["occurrence"]);
    assert_eq!(node.attempts(&run, "ask").await.len(), 2);
    for node in &nodes {
        for uid in ["u0", "u3", "u4"] {
            assert_eq!(poll(node, uid).await.status, 204, "{uid} is given what is used up");
        }
    }
    finish(node, &held[2], "completed", json!(2)).await.expect_status(200);
    finish(node, &again, "completed", json!(1)).await.expect_status(200);
    let ended = node.ended(&run).await;
    assert_eq!(task(&ended, "ask")["output"], json!([0, 2, 1]), "{ended:#}");
    let occurrences = node.all("/v1/offers/occurrences?audience=gid_g").await;
    assert!(occurrences.len() <= 1, "{occurrences:#?}");
}

/// Clearing an audience task, by itself or with the task above it, asks everybody again, and only the new answers count.
#[tokio::test]
async fn a_cleared_task_asks_again() {
    let (_world, node) = World::with_node().await;
    members(&node, "gid_g", &users(2)).await;
    node.put_group(
        "ask",
        json!({"tasks": {
            "first": {"script": "hello"},
            "ask": {"audience": {"audience": "gid_g", "dispatch_times": 2}, "depends_on": ["first"]},
        }}),
    )
    .await;
    let run = node.start("ask", json!({})).await;
    let answers = async |answer: &str| {
        let mut ids = Vec::new();
        for uid in ["u0", "u1"] {
            let given = next(&node, uid).await;
            finish(&node, &given, "completed", json!(answer))
                .await
                .expect_status(200);
            ids.push(given["assignment_id"].clone());
        }
        let ended = node.ended(&run).await;
        assert_eq!(task(&ended, "ask")["output"], json!([answer, answer]), "{ended:#}");
        ids
    };
    let mut all = answers("no").await;
    for (task, downstream, answer) in [("ask", false, "yes"), ("first", true, "perhaps")] {
        node.post(
            &format!("/v1/runs/{run}/tasks/{task}/clear"),
            json!({"downstream": downstream}),
        )
        .await
        .expect_status(200);
        all.extend(answers(answer).await);
    }
    all.sort_by_key(Value::to_string);
    all.dedup();
    assert_eq!(all.len(), 6, "each answer is an assignment of its own");
}

/// An operator sets the state of a task run, and so its output.
async fn set(node: &Node, run: &str, task: &str, state: &str, output: Value) {
    let mut body = json!({"state": state, "reason": "by a test"});
    if state == "succeeded" {
        body["output"] = output;
    }
    node.put(&format!("/v1/runs/{run}/tasks/{task}/state"), body)
        .await
        .expect_status(200);
}

/// Clearing one item asks again for this item; what was answered for the others stays.
#[tokio::test]
async fn a_cleared_item_asks_again() {
    let (_world, node) = World::with_node().await;
    let ask = json!({"audience": "{{ item }}", "for_each": ["uid_ann", "uid_bob"]});
    node.put_group("ask", json!({"tasks": {"ask": ask}})).await;
    let run = node.start("ask", json!({})).await;
    let answer = async |uid: &str, answer: &str| {
        let given = next(&node, uid).await;
        finish(&node, &given, "completed", json!(answer))
            .await
            .expect_status(200);
    };
    answer("ann", "no").await;
    answer("bob", "no").await;
    let ended = node.ended(&run).await;
    assert_eq!(task(&ended, "ask")["output"], json!([["no"], ["no"]]), "{ended:#}");
    node.post(&format!("/v1/runs/{run}/tasks/ask/clear?item=1"), json!({}))
        .await
        .expect_status(200);
    answer("bob", "yes").await;
    assert_eq!(poll(&node, "ann").await.status, 204, "this item was not cleared");
    let ended = node.ended(&run).await;
    assert_eq!(task(&ended, "ask")["output"], json!([["no"], ["yes"]]), "{ended:#}");
}

/// What is held of a task that is cleared can be completed by nobody any more, also while the task waits for others: it is
/// taken back, and then everybody is asked anew.
#[tokio::test]
async fn a_clear_takes_back_what_is_held() {
    let (_world, node) = World::with_node().await;
    members(&node, "gid_g", &users(2)).await;
    node.put_group(
        "ask",
        json!({"tasks": {
            "first": {"queue": "never"},
            "ask": {"audience": {"audience": "gid_g", "dispatch_times": 2}, "depends_on": ["first"]},
        }}),
    )
    .await;
    let run = node.start("ask", json!({})).await;
    set(&node, &run, "first", "succeeded", json!(1)).await;
    let (held, failing) = (next(&node, "u0").await, next(&node, "u1").await);
    finish(&node, &failing, "failed", json!("no")).await.expect_status(200);
    let ended = node.ended(&run).await;
    assert_eq!(states(&ended), "ask=failed first=succeeded", "{ended:#}");
    // The task above waits, so no attempt of the cleared task begins.
    node.post(&format!("/v1/runs/{run}/tasks/first/clear"), json!({}))
        .await
        .expect_status(200);
    finish(&node, &held, "completed", json!("old"))
        .await
        .expect_problem(409, &[]);
    assignment_becomes(&node, &held, "revoked").await;
    set(&node, &run, "first", "succeeded", json!(2)).await;
    for uid in ["u0", "u1"] {
        let given = next(&node, uid).await;
        finish(&node, &given, "completed", json!(uid)).await.expect_status(200);
    }
    let ended = node.ended(&run).await;
    assert_eq!(task(&ended, "ask")["output"], json!(["u0", "u1"]), "{ended:#}");
}

/// When a restart expands a map again, an item whose number has got another value asks anew. What was completed for the same
/// value stays.
#[tokio::test]
async fn an_item_with_another_value_asks_anew() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "ask",
        json!({"tasks": {
            "list": {"queue": "never"},
            "ask": {"audience": "{{ item }}", "for_each": "{{ upstream.list }}", "depends_on": ["list"]},
        }}),
    )
    .await;
    let run = node.start("ask", json!({})).await;
    let answer = async |uid: &str, status: &str| {
        let given = next(&node, uid).await;
        finish(&node, &given, status, json!(uid)).await.expect_status(200);
    };
    set(
        &node,
        &run,
        "list",
        "succeeded",
        json!(["uid_ann", "uid_bob", "uid_cat"]),
    )
    .await;
    answer("ann", "completed").await;
    answer("bob", "completed").await;
    answer("cat", "failed").await;
    let ended = node.ended(&run).await;
    assert_eq!(states(&ended), "ask=failed list=succeeded", "{ended:#}");
    // The restart begins with the list, so it expands the map again.
    set(&node, &run, "list", "failed", Value::Null).await;
    node.post(&format!("/v1/runs/{run}/restart"), json!({}))
        .await
        .expect_status(200);
    set(
        &node,
        &run,
        "list",
        "succeeded",
        json!(["uid_ann", "uid_dan", "uid_cat"]),
    )
    .await;
    answer("dan", "completed").await;
    answer("cat", "completed").await;
    assert_eq!(poll(&node, "ann").await.status, 204, "her item has the same value");
    let ended = node.ended(&run).await;
    assert_eq!(
        task(&ended, "ask")["output"],
        json!([["ann"], ["dan"], ["cat"]]),
        "{ended:#}"
    );
}

/// Each item of a mapped task is an offer of its own: its audience and its params are those of the item, a failure uses up
/// a retry of this item alone, and the outputs are in the order of the items.
#[tokio::test]
async fn each_item_asks_its_own_audience() {
    let (_world, node) = World::with_node().await;
    members(&node, "gid_team", &users(2)).await;
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "10ms"});
    let ask = json!({
        "audience": "{{ item }}", "for_each": ["uid_ann", "uid_bob", "gid_team"],
        "params": {"to": "{{ item }}", "number": "{{ index }}"}, "retry": retry,
    });
    node.put_group("ask", json!({"tasks": {"ask": ask}})).await;
    let run = node.start("ask", json!({})).await;
    let answer = async |uid: &str, status: &str| {
        let given = next(&node, uid).await;
        finish(&node, &given, status, json!(uid)).await.expect_status(200);
        given["params"].clone()
    };
    assert_eq!(answer("u1", "completed").await, json!({"to": "gid_team", "number": 2}));
    assert_eq!(answer("ann", "failed").await, json!({"to": "uid_ann", "number": 0}));
    assert_eq!(answer("bob", "completed").await, json!({"to": "uid_bob", "number": 1}));
    assert_eq!(answer("ann", "completed").await, json!({"to": "uid_ann", "number": 0}));
    let ended = node.ended(&run).await;
    assert_eq!(
        task(&ended, "ask")["output"],
        json!([["ann"], ["bob"], ["u1"]]),
        "{ended:#}"
    );
    for (index, attempts) in [(0, 2), (1, 1), (2, 1)] {
        assert_eq!(item(&ended, "ask", Some(index))["attempt"], attempts, "{ended:#}");
    }
    assert_eq!(poll(&node, "u0").await.status, 204, "one of the team was enough");
}

/// Shards are offers to the same audience. `shards: workers` is only for queues: nobody knows how many users poll.
#[tokio::test]
async fn shards_are_offers_of_their_own() {
    let (_world, node) = World::with_node().await;
    members(&node, "gid_team", &users(2)).await;
    let shards = |shards: Value| {
        let ask = json!({"audience": "gid_team", "shards": shards, "params": {"shard": "{{ item }}"}});
        json!({"tasks": {"ask": ask}})
    };
    node.refused_group("ask", shards(json!("workers")))
        .await
        .expect_problem(422, &["/tasks/ask/shards"]);
    node.put_group("ask", shards(json!(2))).await;
    let run = node.start("ask", json!({})).await;
    let held = [next(&node, "u0").await, next(&node, "u1").await];
    let mut given: Vec<&Value> = held.iter().map(|one| &one["params"]["shard"]).collect();
    given.sort_by_key(|shard| shard.as_u64());
    assert_eq!(given, [&json!(0), &json!(1)]);
    for one in &held {
        finish(&node, one, "completed", one["params"]["shard"].clone())
            .await
            .expect_status(200);
    }
    let ended = node.ended(&run).await;
    assert_eq!(task(&ended, "ask")["output"], json!([[0], [1]]), "{ended:#}");
}

/// With `fail_fast`, the failure of one item takes back what the others have offered.
#[tokio::test]
async fn an_item_that_fails_takes_back_the_other_offers() {
    let (_world, node) = World::with_node().await;
    let ask = json!({"audience": "{{ item }}", "for_each": ["uid_ann", "uid_bob"], "fail_fast": true});
    node.put_group("ask", json!({"tasks": {"ask": ask}})).await;
    let run = node.start("ask", json!({})).await;
    let (ann, bob) = (next(&node, "ann").await, next(&node, "bob").await);
    finish(&node, &ann, "failed", json!("no")).await.expect_status(200);
    let ended = node.ended(&run).await;
    assert_eq!(states(&ended), "ask=failed", "{ended:#}");
    for (index, state) in [(0, "failed"), (1, "cancelled")] {
        assert_eq!(item(&ended, "ask", Some(index))["state"], state, "{ended:#}");
    }
    assignment_becomes(&node, &bob, "revoked").await;
    finish(&node, &bob, "completed", json!(1))
        .await
        .expect_problem(409, &[]);
}

/// What a user is given, once there is something.
async fn next(api: &Api, uid: &str) -> Value {
    api.post(&format!("/v1/dispatch/{uid}/next"), json!({"wait": "20s"}))
        .await
        .expect_status(200)
}

async fn assignment_becomes(api: &Api, assignment: &Value, state: &str) {
    let path = format!(
        "/v1/assignments/{}",
        assignment["assignment_id"].as_str().expect("an id")
    );
    eventually(state, async || {
        let found = api.get(&path).await.expect_status(200);
        (found["state"] == state).then_some(())
    })
    .await;
}

/// `each` asks those who are members in the end: as many completions as there are members are not enough when some of
/// them are of users who have left.
#[tokio::test]
async fn each_is_everybody_who_is_a_member_in_the_end() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let node = &nodes[0];
    let named = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    members(node, "gid_f", &named(&["g1", "g2"])).await;
    node.put_group(
        "ask",
        json!({"tasks": {"ask": {"audience": {"audience": "gid_f", "dispatch_times": "each"}}}}),
    )
    .await;
    let run = node.start("ask", json!({})).await;
    let one = next(node, "g1").await;
    finish(node, &one, "completed", json!("r1")).await.expect_status(200);
    members(node, "gid_f", &named(&["g2", "g3"])).await;
    let two = next(node, "g2").await;
    finish(node, &two, "completed", json!("r2")).await.expect_status(200);
    // A member who has not been asked yet is, and what she holds stays hers.
    let three = next(&nodes[1], "g3").await;
    assert_eq!(node.run_now(&run).await["state"], "running");
    finish(&nodes[1], &three, "completed", json!("r3"))
        .await
        .expect_status(200);
    let ended = node.ended(&run).await;
    assert_eq!(task(&ended, "ask")["output"], json!(["r1", "r2", "r3"]), "{ended:#}");
    // Who has not completed it, and leaves, is not waited for.
    let run = node.start("ask", json!({})).await;
    let two = next(node, "g2").await;
    finish(node, &two, "completed", json!("r2")).await.expect_status(200);
    members(node, "gid_f", &named(&["g2"])).await;
    let ended = node.ended(&run).await;
    assert_eq!(task(&ended, "ask")["output"], json!(["r2"]), "{ended:#}");
}

/// Of a task that has failed for good nobody keeps holding anything, though its run goes on; a restart goes on with what
/// had been completed, however long the run had been over.
#[tokio::test]
async fn what_has_failed_is_held_by_nobody() {
    let (_world, node) = World::with_node().await;
    members(&node, "gid_k", &users(3)).await;
    node.put_group(
        "ask",
        json!({"tasks": {
            "ask": {"audience": {"audience": "gid_k", "dispatch_times": 3}},
            "goes_on": {"queue": "never"},
        }}),
    )
    .await;
    let run = node.start("ask", json!({})).await;
    let (zero, one, two) = (
        next(&node, "u0").await,
        next(&node, "u1").await,
        next(&node, "u2").await,
    );
    finish(&node, &zero, "completed", json!(0)).await.expect_status(200);
    finish(&node, &one, "failed", json!("no")).await.expect_status(200);
    node.task_becomes(&run, "ask", "failed").await;
    assignment_becomes(&node, &two, "revoked").await;
    finish(&node, &two, "completed", json!(2))
        .await
        .expect_problem(409, &[]);
    offer(
        &node,
        "other",
        json!({"audience": "uid_u2", "starts_at": crate::dispatch::wall_clock().to_rfc3339()}),
    )
    .await;
    assert_eq!(next(&node, "u2").await["offer"], "other");
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    eventually("withdrawn offer", async || {
        node.all("/v1/offers?audience=gid_k").await.is_empty().then_some(())
    })
    .await;
    node.post(&format!("/v1/runs/{run}/restart"), json!({}))
        .await
        .expect_status(200);
    let again = next(&node, "u1").await;
    finish(&node, &again, "completed", json!(1)).await.expect_status(200);
    assert_eq!(
        poll(&node, "u0").await.status,
        204,
        "who has completed it is not asked again"
    );
    let held = node
        .get("/v1/assignments?uid=u2&state=assigned")
        .await
        .expect_status(200);
    complete(&node, &held["items"][0]).await;
    let two = next(&node, "u2").await;
    finish(&node, &two, "completed", json!(2)).await.expect_status(200);
    let ended = node.task_becomes(&run, "ask", "succeeded").await;
    assert_eq!(task(&ended, "ask")["output"], json!([0, 1, 2]), "{ended:#}");
}

/// Ends the task run `ask` of a run in one of the ways that do not end its offer themselves.
async fn ends(world: &World, node: &Node, run: &str, how: &str) {
    let state = |state: &str| json!({"state": state, "reason": "enough"});
    let reply = match how {
        "cancel" => node.post(&format!("/v1/runs/{run}/cancel"), json!({})).await,
        "cancel of many" => {
            let body = json!({"filter": {"group": "ask"}, "action": "cancel"});
            node.post("/v1/runs/bulk", body).await
        }
        "override of the task run" => {
            let path = format!("/v1/runs/{run}/tasks/ask/state");
            node.put(&path, state("succeeded")).await
        }
        "override of the run" => node.put(&format!("/v1/runs/{run}/state"), state("failed")).await,
        "stop of the group" => node.post("/v1/groups/ask/disable", json!({"mode": "stop"})).await,
        "deadline" => {
            let sql = world.sql().await;
            let due = format!("UPDATE heddle.timers SET due_at = now() WHERE run = '{run}' AND kind = 1");
            assert_eq!(sql.execute(&due, &[]).await.expect("a timer"), 1);
            node.ended(run).await;
            return;
        }
        "timeout" => {
            let sql = world.sql().await;
            let late = format!("UPDATE heddle.offers SET overdue_at = now() WHERE run = '{run}'");
            assert_eq!(sql.execute(&late, &[]).await.expect("an offer"), 1);
            node.task_becomes(run, "ask", "failed").await;
            return;
        }
        "deletion of the group" => node.delete("/v1/groups/ask?force=true").await,
        _ => panic!("nobody knows how to do this: {how}"),
    };
    reply.expect_status(200);
}

/// From the end of a task run on, nobody is given what it offers, on any node: not even before its offer is withdrawn.
#[tokio::test]
async fn what_has_ended_is_given_to_nobody() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let node = &nodes[0];
    members(node, "gid_k", &users(4)).await;
    let spec = json!({"deadline": "1h", "deadline_action": "cancel", "tasks": {
        "ask": {"audience": {"audience": "gid_k", "dispatch_times": "each"}, "timeout": "1h"},
        "goes_on": {"queue": "never"},
    }});
    for how in [
        "cancel",
        "cancel of many",
        "override of the task run",
        "override of the run",
        "deadline",
        "timeout",
        "deletion of the group",
        "stop of the group",
    ] {
        node.put_group("ask", spec.clone()).await;
        let run = node.start("ask", json!({})).await;
        // Both nodes know the offer, and have something to give.
        let held = [next(node, "u0").await, next(&nodes[1], "u1").await];
        // While these rows are locked, no node withdraws the offer.
        let mut sql = world.sql().await;
        let lock = sql.transaction().await.expect("a transaction");
        let locked = lock.query("SELECT FROM heddle.holds FOR UPDATE", &[]).await;
        assert_eq!(locked.expect("the holds").len(), held.len());
        ends(&world, node, &run, how).await;
        for (node, uid) in nodes.iter().zip(["u2", "u3"]) {
            let reply = poll(node, uid).await;
            assert_eq!(reply.status, 204, "{uid} after the {how}: {:#}", reply.body);
        }
        let peeked = node.get("/v1/dispatch/u2/peek").await.expect_status(200);
        for one in peeked["offers"].as_array().expect("offers") {
            assert_eq!(one["why"], "disabled", "after the {how}: {peeked:#}");
        }
        lock.rollback().await.expect("the holds are free");
        for held in &held {
            assignment_becomes(node, held, "revoked").await;
        }
    }
}
