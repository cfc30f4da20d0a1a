//! Errors of Heddle itself: outcomes that cannot be recorded, a database that does not answer a script's call, a server
//! that accepts no writes. None of them is the fault of a script, and all of them end in a way that people see.

use std::time::Duration;

use heddle_tests::{Answer, Api, PATIENCE, Receiver, World, calls, eventually, task};
use serde_json::{Value, json};

use crate::{beside, one, with};

/// Refuses rows in a table that have this in a column, until it is dropped.
async fn poison(sql: &tokio_postgres::Client, table: &str, column: &str, event: &str, value: &str) {
    let row = if event == "DELETE" { "OLD" } else { "NEW" };
    sql.batch_execute(&format!(
        "CREATE OR REPLACE FUNCTION poison_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             IF {row}.{column}::text = '{value}' THEN RAISE EXCEPTION 'poisonous' USING ERRCODE = 'P0099'; END IF;
             RETURN {row};
         END $$;
         CREATE TRIGGER poison BEFORE {event} ON heddle.{table} FOR EACH ROW EXECUTE FUNCTION poison_{table}()"
    ))
    .await
    .unwrap();
}

async fn metrics(node: &Api) -> String {
    let reply = node.get("/metrics").await;
    reply.body.as_str().unwrap_or_default().to_owned()
}

async fn attempts_in_log(node: &Api, run: &str, name: &str) -> usize {
    let run = node.get(&format!("/v1/runs/{run}")).await.expect_status(200);
    task(&run, name)["attempt"].as_u64().unwrap_or_default() as usize
}

/// A run whose tasks wait until the database lets them continue.
async fn under_way(world: &World, node: &Api, spec: Value, name: &str) -> String {
    node.put_group("g", spec).await;
    let run = node.start("g", json!({})).await;
    let sql = world.sql().await;
    eventually("an attempt under way", async || {
        let row = sql
            .query_one(
                "SELECT count(*) FROM heddle.running WHERE run = $1::text::uuid",
                &[&run],
            )
            .await
            .unwrap();
        (row.get::<_, i64>(0) > 0).then_some(())
    })
    .await;
    assert_eq!(attempts_in_log(node, &run, name).await, 1);
    run
}

/// What must be true of a run that was given up.
fn given_up(run: &Value) {
    assert_eq!(run["state"], "failed", "{run:#}");
    assert_eq!(run["error"]["kind"], "invalid", "{run:#}");
    let message = run["error"]["message"].as_str().unwrap();
    assert!(message.contains("could not be recorded"), "{message}");
}

/// The history refuses the attempt of a run that is all one task run.
#[tokio::test]
async fn a_poisonous_outcome_of_one_task() {
    let _beside = beside().await;
    let world = World::new().await;
    let node = world.options().at_home().start().await;
    let gate = Receiver::start(Answer::Held).await;
    let run = under_way(&world, &node, one(calls(&gate)), "t").await;
    let sql = world.sql().await;
    poison(&sql, "attempts", "run", "INSERT", &run).await;
    gate.answers(Answer::Json(200, "{}".into()));
    let ended = node.ended(&run).await;
    given_up(&ended);
    assert_eq!(ended["error"]["task"], "t");
    assert_eq!(task(&ended, "t")["state"], "failed");
    // Others are not held up by it, and it is not run again.
    assert_eq!(node.run("g", json!({})).await["state"], "succeeded");
    assert!(node.log().contains("poisonous"), "{}", node.log());
    assert!(node.log().contains("SQLSTATE P0099"), "{}", node.log());
    sql.batch_execute("DROP TRIGGER poison ON heddle.attempts")
        .await
        .unwrap();
    // Its work is repeated, under new attempt numbers.
    node.post(&format!("/v1/runs/{run}/restart"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(node.ended(&run).await["state"], "succeeded");
}

/// The same of a run of several tasks: what has succeeded stays, the rest is cancelled.
#[tokio::test]
async fn a_poisonous_outcome_among_several() {
    let _beside = beside().await;
    let world = World::new().await;
    let node = world.options().at_home().start().await;
    let gate = Receiver::start(Answer::Held).await;
    let spec = json!({"tasks": {
        "first": {"script": "hello"},
        "second": with(calls(&gate), json!({"depends_on": ["first"]})),
        "third": {"script": "hello", "depends_on": ["second"]},
        "aside": crate::sleeps(60.0),
    }});
    node.put_group("g", spec).await;
    let run = node.start("g", json!({})).await;
    node.task_becomes(&run, "second", "running").await;
    node.task_becomes(&run, "aside", "running").await;
    let sql = world.sql().await;
    poison(&sql, "attempts", "run", "INSERT", &run).await;
    gate.answers(Answer::Json(200, "{}".into()));
    let ended = node.ended(&run).await;
    given_up(&ended);
    let states: Vec<&Value> = ["first", "second", "third", "aside"]
        .iter()
        .map(|name| &task(&ended, name)["state"])
        .collect();
    assert_eq!(states, ["succeeded", "failed", "cancelled", "cancelled"], "{ended:#}");
    let metrics = metrics(&node).await;
    assert!(metrics.contains("heddle_runs_given_up_total 1"), "{metrics}");
    assert!(metrics.contains("heddle_outcomes_set_aside 0"), "{metrics}");
    let left = sql
        .query_one(
            "SELECT count(*) FROM heddle.running WHERE run = $1::text::uuid",
            &[&run],
        )
        .await
        .unwrap();
    assert_eq!(left.get::<_, i64>(0), 0, "the attempt that ran beside it is stopped");
}

/// Not even the run's end is taken: the attempt is set aside, not run again, and ends when the database is mended.
#[tokio::test]
async fn a_run_that_cannot_even_be_given_up() {
    let _beside = beside().await;
    let world = World::new().await;
    let node = world.options().at_home().start().await;
    let gate = Receiver::start(Answer::Held).await;
    let run = under_way(&world, &node, one(calls(&gate)), "t").await;
    let sql = world.sql().await;
    poison(&sql, "runs_done", "id", "INSERT", &run).await;
    gate.answers(Answer::Json(200, "{}".into()));
    eventually("an attempt that is set aside", async || {
        let metrics = metrics(&node).await;
        metrics.contains("heddle_outcomes_set_aside 1").then_some(())
    })
    .await;
    // Longer than it takes to adopt an attempt that nobody knows: until then it ran every few seconds.
    let begun = |log: String| log.matches("taking up attempts").count();
    let before = tokio::time::Instant::now();
    while before.elapsed() < Duration::from_secs(6) {
        assert_eq!(begun(node.log()), 0, "{}", node.log());
        node.run_now(&run).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    sql.batch_execute("DROP TRIGGER poison ON heddle.runs_done")
        .await
        .unwrap();
    let ended = eventually("the run's end", async || {
        let run = node.run_now(&run).await;
        (run["state"] == "failed").then_some(run)
    })
    .await;
    given_up(&ended);
}

/// A lost attempt whose end is refused keeps no other lost attempt from its own.
#[tokio::test]
async fn a_poisonous_loss_keeps_nobody_waiting() {
    let _beside = beside().await;
    let world = World::new().await;
    let mut dying = world.node().await;
    let group = one(crate::sleeps(30.0));
    let bad = under_way(&world, &dying, group, "t").await;
    let good = dying.start("g", json!({})).await;
    dying.task_becomes(&good, "t", "running").await;
    let sql = world.sql().await;
    poison(&sql, "attempts", "run", "INSERT", &bad).await;
    let node = world.node().await;
    dying.kill();
    let ended = eventually("the end of the run that is given up", async || {
        let run = node.run_now(&bad).await;
        (run["state"] == "failed").then_some(run)
    })
    .await;
    given_up(&ended);
    eventually("a second attempt of the other", async || {
        let run = node.run_now(&good).await;
        (task(&run, "t")["attempt"] == 2).then_some(())
    })
    .await;
    assert_eq!(node.attempts(&good, "t").await[0]["state"], "lost");
}

/// A timer, the end of a sub-run and a run submitted in SQL that cannot be handled: each is set aside and reported,
/// other rows are handled, and it is handled itself when the database is repaired.
#[tokio::test]
async fn what_cannot_be_handled_holds_nobody_up() {
    let _beside = beside().await;
    let (world, node) = World::with_node().await;
    let sql = world.sql().await;
    let set_aside = async |table: &str, runs: usize| {
        let says = format!("heddle_rows_set_aside{{table=\"{table}\"}} {runs}\n");
        eventually(&says, async || metrics(&node).await.contains(&says).then_some(())).await;
    };

    // A retry that is due, of a run whose progress nobody can read.
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "4s"});
    let flaky = json!({"script": "flaky", "params": {"fail_times": 1}, "retry": retry});
    node.put_group("retried", one(flaky)).await;
    let bad = node.start("retried", json!({})).await;
    let good = node.start("retried", json!({})).await;
    node.task_becomes(&bad, "t", "retrying").await;
    node.task_becomes(&good, "t", "retrying").await;
    let changes = format!("/v1/runs/{bad}/events");
    let follows = node
        .request(reqwest::Method::GET, &changes)
        .send()
        .await
        .expect("an answer");
    assert_eq!(follows.status(), 200);
    let garble = "UPDATE heddle.runs_live SET progress = '\\xff'::bytea || progress WHERE id = $1::text::uuid";
    assert_eq!(sql.execute(garble, &[&bad]).await.unwrap(), 1);
    assert_eq!(node.ended(&good).await["state"], "succeeded");
    set_aside("timers", 1).await;
    assert!(node.log().contains(&bad), "{}", node.log());
    // Whoever follows its changes gets no event `end`, as if these were all; whoever asks now gets an error.
    let followed = tokio::time::timeout(PATIENCE, follows.bytes()).await;
    assert!(followed.expect("the stream breaks off").is_err());
    let logged = async || node.log().contains("a stream breaks off").then_some(());
    eventually("a line in the log", logged).await;
    node.get(&changes).await.expect_status(500);

    // The end of a sub-run in a state that there is none of.
    let child = "00000000-0000-4000-8000-000000000099";
    sql.batch_execute(&format!(
        "INSERT INTO heddle.settlements (run, task, item, attempt, child, state)
         VALUES (gen_random_uuid(), 0, -1, 1, '{child}', 99)"
    ))
    .await
    .unwrap();
    set_aside("settlements", 1).await;
    let names_it = format!("cannot read row {child} in settlements: state is 99");
    assert!(node.log().contains(&names_it), "{}", node.log());
    node.put_group("child", one(json!({"script": "hello"}))).await;
    node.put_group("parent", one(json!({"group": "child"}))).await;
    assert_eq!(node.run("parent", json!({})).await["state"], "succeeded");

    // A run submitted in SQL whose row takes no change.
    poison(&sql, "runs_live", "key", "UPDATE", "bad").await;
    let submit = "SELECT heddle.submit('child', '{}', $1)::text";
    let stuck: String = sql.query_one(submit, &[&"bad"]).await.unwrap().get(0);
    let free: String = sql.query_one(submit, &[&"good"]).await.unwrap().get(0);
    assert_eq!(node.ended(&free).await["state"], "succeeded");
    set_aside("starts", 1).await;

    let mend = "UPDATE heddle.runs_live SET progress = substr(progress, 2) WHERE id = $1::text::uuid";
    assert_eq!(sql.execute(mend, &[&bad]).await.unwrap(), 1);
    sql.batch_execute(
        "DROP TRIGGER poison ON heddle.runs_live;
         UPDATE heddle.settlements SET state = 3",
    )
    .await
    .unwrap();
    for table in ["timers", "settlements", "starts"] {
        set_aside(table, 0).await;
    }
    assert_eq!(node.ended(&bad).await["state"], "succeeded");
    assert_eq!(node.ended(&stuck).await["state"], "succeeded");
}

/// Connections are cut again and again while scripts read the group's state: no attempt fails for that.
#[tokio::test]
async fn cuts_are_no_failures_of_scripts() {
    let _beside = beside().await;
    let (world, node) = World::with_node().await;
    // No retries: what fails once has failed.
    let count = json!({"script": "stateful", "params": {"pause_ms": 300}});
    let names = ["a", "b", "c", "d", "e", "f"];
    let mut tasks = serde_json::Map::new();
    for (index, name) in names.iter().enumerate() {
        let key = json!({"params": {"pause_ms": 300, "key": name}, "depends_on": &names[..index]});
        tasks.insert((*name).into(), with(count.clone(), key));
    }
    node.put_group("g", json!({"tasks": tasks})).await;
    let runs: Vec<String> = {
        let mut runs = Vec::new();
        for _ in 0..4 {
            runs.push(node.start("g", json!({})).await);
        }
        runs
    };
    let owner = world.sql_as_owner().await;
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
        world.database()
    );
    for _ in 0..25 {
        owner.query(&cut, &[]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for run in &runs {
        let ended = node.ended(run).await;
        for name in names {
            for attempt in node.attempts(run, name).await {
                // Two runs that count at once may lose to each other, which the script has to handle.
                let message = attempt["error"]["message"].as_str().unwrap_or_default();
                let own = message.contains("compare-and-set");
                let ours = attempt["state"] == "lost" && message.starts_with("Heddle could not");
                assert!(attempt["state"] == "succeeded" || own || ours, "{attempt:#}");
            }
        }
        let error = ended["error"]["message"].as_str().unwrap_or_default();
        assert!(
            ended["state"] == "succeeded" || error.contains("compare-and-set"),
            "{ended:#}"
        );
    }
}

/// The table that a host call reads is locked for longer than the attempt would wait: the script gets no answer, the
/// attempt is retried, and the history says that Heddle failed.
#[tokio::test]
async fn what_the_database_does_not_answer_is_waited_for() {
    let _beside = beside().await;
    let (world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "stateful", "params": {"pause_ms": 0}})))
        .await;
    assert_eq!(node.run("g", json!({})).await["state"], "succeeded");
    let sql = world.sql().await;
    // No such table any more: what the call meets is no matter of waiting.
    sql.batch_execute("ALTER TABLE heddle.script_state RENAME TO script_state_away")
        .await
        .unwrap();
    node.put_group(
        "g",
        one(json!({"script": "stateful", "params": {"pause_ms": 0}, "max_lost": 1_000})),
    )
    .await;
    let run = node.start("g", json!({})).await;
    eventually("an attempt that ended by Heddle's fault", async || {
        let attempts = node.attempts(&run, "t").await;
        (attempts.len() > 1).then_some(())
    })
    .await;
    sql.batch_execute("ALTER TABLE heddle.script_state_away RENAME TO script_state")
        .await
        .unwrap();
    let ended = node.ended(&run).await;
    assert_eq!(ended["state"], "succeeded", "{ended:#}");
    let attempts = node.attempts(&run, "t").await;
    let (last, before) = attempts.split_last().unwrap();
    assert_eq!(last["state"], "succeeded");
    for attempt in before {
        assert_eq!(attempt["state"], "lost", "{attempt:#}");
        assert_eq!(attempt["error"]["kind"], "lost");
        let message = attempt["error"]["message"].as_str().unwrap();
        assert!(
            message.starts_with("Heddle could not read the group's state"),
            "{message}"
        );
    }
}

/// A server that accepts no writes: every write is 503 and says why, reads continue, and when it accepts writes again,
/// all else continues too.
#[tokio::test]
async fn a_read_only_server() {
    let _beside = beside().await;
    let (world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let owner = world.sql_as_owner().await;
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
        world.database()
    );
    let set = async |on: &str| {
        let alter = format!(
            "ALTER DATABASE {} SET default_transaction_read_only = {on}",
            world.database()
        );
        owner.batch_execute(&alter).await.unwrap();
        // As a failover does.
        owner.query(&cut, &[]).await.unwrap();
    };
    set("on").await;
    eventually("a node that says why it is not ready", async || {
        let ready = node.get("/readyz").await;
        let says = ready.body["detail"].as_str().unwrap_or_default().contains("read-only");
        (ready.status == 503 && says).then_some(())
    })
    .await;
    let writes = [
        ("PUT", "/v1/groups/h", one(json!({"script": "hello"}))),
        ("POST", "/v1/groups/g/runs", json!({})),
        ("POST", "/v1/groups/g/disable", json!({})),
        ("PUT", "/v1/pools/p", json!({"slots": 1})),
        ("PUT", "/v1/secrets/s", json!({"value": "x"})),
        ("PUT", "/v1/categories/c", json!({})),
        ("PUT", "/v1/audiences/gid_team/members", json!({"members": ["u"]})),
        ("DELETE", "/v1/groups/g", json!({})),
    ];
    for (method, path, body) in writes {
        let request = node.request(method.parse().unwrap(), path).json(&body);
        let reply = node.send(request).await;
        assert_eq!(reply.status, 503, "{method} {path}: {:#}", reply.body);
        assert!(reply.headers.contains_key("retry-after"), "{method} {path}");
    }
    // Nothing is read there either: it may be what the primary was once.
    node.get("/v1/groups/g").await.expect_problem(503, &[]);
    set("off").await;
    eventually("a ready node", async || {
        (node.try_get("/readyz").await?.status == 200).then_some(())
    })
    .await;
    assert_eq!(node.run("g", json!({})).await["state"], "succeeded");
}
