//! How long runs are kept: the hot view, days that are dropped, runs that are removed one by one, and what stays.

use heddle_tests::{Answer, Node, Receiver, World, eventually, task};
use serde_json::{Value, json};

use crate::notifications::{becomes, webhook};
use crate::{fails, one, with};

/// Copies an ended run with all that belongs to it to another day and time of its end; answers the copy's id.
async fn copy(sql: &tokio_postgres::Client, run: &str, day: &str, ended: &str, key: &str) -> String {
    sql.execute("SELECT heddle.make_partitions($1::text::date, 1)", &[&day])
        .await
        .unwrap();
    let id: String = sql
        .query_one(
            "SELECT heddle.uuid_v7(($1::text || ' 10:00+00')::timestamptz)::text",
            &[&day],
        )
        .await
        .unwrap()
        .get(0);
    let copy = |table: &str, column: &str| {
        format!(
            "INSERT INTO heddle.{table}
             SELECT (jsonb_populate_record(t, jsonb_build_object('{column}', $2::text))).*
               FROM heddle.{table} t WHERE t.{column} = $1::text::uuid"
        )
    };
    for (table, column) in [("runs_done", "id"), ("attempts", "run"), ("logs", "run")] {
        sql.execute(&copy(table, column), &[&run, &id]).await.unwrap();
    }
    sql.execute(
        "UPDATE heddle.runs_done SET finished_at = $2::text::timestamptz, created_at = $2::text::timestamptz, key = $3
          WHERE id = $1::text::uuid",
        &[&id, &ended, &key],
    )
    .await
    .unwrap();
    sql.execute(
        "INSERT INTO heddle.run_keys (group_id, key, run)
         SELECT group_id, key, id FROM heddle.runs_done WHERE id = $1::text::uuid",
        &[&id],
    )
    .await
    .unwrap();
    sql.execute(
        "INSERT INTO heddle.run_instants (group_id, logical_time, run)
         SELECT group_id, created_at, id FROM heddle.runs_done WHERE id = $1::text::uuid",
        &[&id],
    )
    .await
    .unwrap();
    id
}

/// The day so many days ago, in UTC.
async fn day(sql: &tokio_postgres::Client, ago: i32) -> String {
    sql.query_one("SELECT ((now() AT TIME ZONE 'UTC')::date - $1::int)::text", &[&ago])
        .await
        .unwrap()
        .get(0)
}

pub(crate) async fn count(sql: &tokio_postgres::Client, what: &str) -> i64 {
    sql.query_one(&format!("SELECT count(*) FROM heddle.{what}"), &[])
        .await
        .unwrap()
        .get(0)
}

pub(crate) async fn prune(node: &Node, dry_run: bool) -> Value {
    node.post("/v1/retention/prune", json!({"dry_run": dry_run}))
        .await
        .expect_status(200)
}

fn days(pruned: &Value) -> Vec<&str> {
    let days = pruned["days"].as_array().unwrap();
    days.iter().map(|day| day.as_str().unwrap()).collect()
}

/// Nobody prunes by himself any more.
pub(crate) async fn hold_still(world: &World) -> tokio_postgres::Client {
    let sql = world.sql().await;
    sql.batch_execute("UPDATE heddle.upkeep SET due_at = 'infinity'")
        .await
        .unwrap();
    sql
}

/// An ended run of a group that logs.
pub(crate) async fn ended(node: &Node, group: &str, spec: Value) -> String {
    node.put_group(group, spec).await;
    heddle_tests::id(&node.run(group, json!({})).await)
}

pub(crate) fn hello() -> Value {
    one(json!({"script": "hello"}))
}

/// Ended runs leave the lists after a while, and are found by whoever asks for them.
#[tokio::test]
async fn the_hot_view() {
    let (world, node) = World::with_node().await;
    let old = ended(&node, "g", hello()).await;
    let new = heddle_tests::id(&node.run("g", json!({"labels": null, "params": null})).await);
    let sql = world.sql().await;
    sql.execute(
        "UPDATE heddle.runs_done SET finished_at = now() - interval '73 hours' WHERE id = $1::text::uuid",
        &[&old],
    )
    .await
    .unwrap();
    let found = async |query: &str| -> Vec<String> {
        let runs = node.all(&format!("/v1/runs{query}")).await;
        runs.iter().map(heddle_tests::id).collect()
    };
    for query in ["", "?group=g", "?limit=1", "?history=false"] {
        assert_eq!(found(query).await, std::slice::from_ref(&new), "{query}");
    }
    // The day of the older one: of two runs near midnight the other may be of the next day.
    let ran = node.run_now(&old).await;
    let day = &ran["logical_time"].as_str().unwrap()[..10];
    for query in [
        "?history=true",
        "?state=succeeded",
        "?group=g&state=succeeded,failed",
        "?trigger=manual",
        "?from=2020-01-01T00:00:00Z",
        // Before the first instant that an id can have.
        "?from=0001-01-01T00:00:00Z",
        "?from=1969-12-31T23:59:59Z&group=g",
        &format!("?group=g&logical_from={day}T00:00:00Z"),
    ] {
        assert_eq!(found(query).await, [new.clone(), old.clone()], "{query}");
    }
    assert_eq!(node.run_now(&old).await["state"], "succeeded");
    let all = json!({"filter": {"from": "0001-01-01T00:00:00Z"}, "action": "cancel", "dry_run": true});
    let matched = node.post("/v1/runs/bulk", all).await.expect_status(200);
    assert_eq!(matched["matched"], 2, "{matched:#}");
    for hot in ["10d", "36500d"] {
        node.put("/v1/retention", json!({"hot": hot})).await.expect_status(200);
        assert_eq!(found("?group=g").await.len(), 2, "{hot}");
        assert_eq!(found("").await.len(), 2, "{hot}");
    }
    node.get("/v1/runs?history=perhaps").await.expect_problem(400, &[]);
}

/// A day whose runs have all been kept for long enough goes as a whole, with all that belongs to it.
#[tokio::test]
async fn days_are_dropped() {
    let world = World::new().await;
    let sql = hold_still(&world).await;
    let nodes = world.nodes(2).await;
    let node = &nodes[0];
    let run = ended(
        node,
        "g",
        one(json!({"script": "fetch", "params": {"url": "http://x"}})),
    )
    .await;
    let mut old = Vec::new();
    for n in 0..5 {
        let key = format!("key-{n}");
        old.push(copy(&sql, &run, "2020-01-01", &format!("2020-01-01 11:00:0{n}+00"), &key).await);
    }
    sql.execute(
        "UPDATE heddle.runs_done SET state = 3 WHERE id = $1::text::uuid",
        &[&old[0]],
    )
    .await
    .unwrap();
    let submission = |n: usize| json!({"key": format!("key-{n}")});
    node.post("/v1/groups/g/runs", submission(1)).await.expect_status(409);
    let preview = prune(node, true).await;
    assert_eq!(
        (preview["dry_run"].clone(), preview["runs"].clone()),
        (json!(true), json!(5))
    );
    assert_eq!(
        preview["by_state"],
        json!({"succeeded": 1, "failed": 4, "cancelled": 0})
    );
    assert_eq!(days(&preview), ["2020-01-01"]);
    node.run_now(&old[0]).await;
    // Both at once: one of them has it.
    let (one, two) = tokio::join!(prune(node, false), prune(&nodes[1], false));
    let mut dropped = days(&one);
    dropped.extend(days(&two));
    assert_eq!(dropped, ["2020-01-01"], "{one:#} {two:#}");
    // Whoever dropped it says the same as the preview; the other one, that it removed nothing.
    let counts = [&one, &two].map(|done| (done["runs"].clone(), done["by_state"].clone()));
    let nothing = json!({"succeeded": 0, "failed": 0, "cancelled": 0});
    assert!(
        counts.contains(&(json!(5), preview["by_state"].clone())) && counts.contains(&(json!(0), nothing)),
        "{one:#} {two:#}"
    );
    for id in &old {
        nodes[1].get(&format!("/v1/runs/{id}")).await.expect_problem(404, &[]);
    }
    for table in ["runs_done", "attempts", "logs", "maps"] {
        let partition = format!("heddle.{table}_20200101");
        let left: Option<String> = sql
            .query_one("SELECT to_regclass($1)::text", &[&partition])
            .await
            .unwrap()
            .get(0);
        assert_eq!(left, None);
    }
    // Rounds work the rest off: keys are free again, and nothing is left to be done.
    eventually("the end of what belonged to the day", async || {
        prune(node, false).await;
        (count(&sql, "pruned_days").await == 0).then_some(())
    })
    .await;
    assert_eq!(count(&sql, "run_keys").await, 0);
    node.post("/v1/groups/g/runs", submission(1)).await.expect_status(202);
    // Of instants, the newest of the group stays; and successes are remembered.
    assert_eq!(count(&sql, "run_instants WHERE logical_time < '2021-01-01'").await, 1);
    assert_eq!(count(&sql, "successes WHERE logical_time < '2021-01-01'").await, 1);
    node.run_now(&run).await;
}

/// A day of which somebody still needs a run loses the others only.
#[tokio::test]
async fn runs_are_removed_one_by_one() {
    let world = World::new().await;
    let sql = hold_still(&world).await;
    let node = world.node().await;
    let spec = |more: Value| with(hello(), more);
    let short = ended(&node, "short", spec(json!({}))).await;
    let long = ended(&node, "long", spec(json!({"retention": {"runs": "36500d"}}))).await;
    let failed = ended(
        &node,
        "failing",
        with(one(fails()), json!({"retention": {"states": {"failed": "36500d"}}})),
    )
    .await;
    let gone = copy(&sql, &short, "2020-02-01", "2020-02-01 11:00+00", "a").await;
    let kept = copy(&sql, &long, "2020-02-01", "2020-02-01 11:00+00", "a").await;
    let kept_failed = copy(&sql, &failed, "2020-02-01", "2020-02-01 11:00+00", "a").await;
    // One that lives still, and is as old.
    let late = copy(&sql, &short, "2020-02-02", "2020-02-02 11:00+00", "b").await;
    node.put_group("paused", one(crate::sleeps(600.0))).await;
    let live = node.start("paused", json!({})).await;
    node.post(&format!("/v1/runs/{live}/pause"), json!({}))
        .await
        .expect_status(200);
    sql.execute(
        "INSERT INTO heddle.runs_live
         SELECT (jsonb_populate_record(l, jsonb_build_object('id',
                 heddle.uuid_v7('2020-02-02 12:00+00'::timestamptz)))).*
           FROM heddle.runs_live l WHERE l.id = $1::text::uuid",
        &[&live],
    )
    .await
    .unwrap();
    let preview = prune(&node, true).await;
    assert_eq!(
        (preview["runs"].clone(), days(&preview).len()),
        (json!(2), 0),
        "{preview:#}"
    );
    let pruned = prune(&node, false).await;
    assert_eq!(
        (pruned["runs"].clone(), days(&pruned).len()),
        (json!(2), 0),
        "{pruned:#}"
    );
    assert_eq!(
        pruned["by_state"],
        json!({"succeeded": 2, "failed": 0, "cancelled": 0}),
        "{pruned:#}"
    );
    for id in [&gone, &late] {
        node.get(&format!("/v1/runs/{id}")).await.expect_problem(404, &[]);
        for table in ["attempts", "logs", "run_keys"] {
            assert_eq!(count(&sql, &format!("{table} WHERE run = '{id}'")).await, 0, "{table}");
        }
    }
    assert_eq!(task(&node.run_now(&kept).await, "t")["state"], "succeeded");
    assert_eq!(node.run_now(&kept_failed).await["state"], "failed");
    assert_eq!(count(&sql, "run_keys WHERE key = 'a'").await, 2);
    // When the group changes its mind, so does the day.
    node.put_group("long", hello()).await;
    node.put_group("failing", one(fails())).await;
    assert_eq!(days(&prune(&node, false).await), ["2020-02-01"]);
    node.get(&format!("/v1/runs/{kept}")).await.expect_problem(404, &[]);
}

/// A run that somebody deletes leaves nothing of itself in any table; what was told of it is kept by its own rule.
#[tokio::test]
async fn deleted_runs_leave_nothing() {
    let (world, node) = World::with_node().await;
    let sql = world.sql().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    webhook(&node, "hook", &receiver.url, json!({})).await;
    let rule = json!({"notify": {"on": ["started"], "channels": ["hook"]}});
    let tasks = json!({
        "says": with(json!({"script": "hello"}), rule),
        "each": {"script": "echo", "for_each": "{{ params.items }}"},
        "fails": fails(),
    });
    node.put_group("g", json!({"tasks": tasks})).await;
    let asked = json!({"key": "k", "dedupe": "params_kept", "params": {"items": [1, 2]}});
    let run = heddle_tests::id(&node.run("g", asked.clone()).await);
    let mends = json!({"state": "succeeded", "reason": "a test"});
    node.put(&format!("/v1/runs/{run}/tasks/fails/state"), mends)
        .await
        .expect_status(200);
    node.run_becomes(&run, "succeeded").await;
    let tables: Vec<String> = sql
        .query(
            "SELECT c.relname::text FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
              WHERE c.relnamespace = 'heddle'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
                AND a.attname = 'run' AND a.atttypid = 'uuid'::regtype ORDER BY 1",
            &[],
        )
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    let with_rows = async || {
        let mut found = Vec::new();
        for table in &tables {
            if count(&sql, &format!("{table} WHERE run = '{run}'")).await > 0 {
                found.push(table.as_str());
            }
        }
        found
    };
    becomes(&node, &format!("run={run}"), |item| item["state"] == "sent").await;
    let belongs = [
        "attempts",
        "logs",
        "maps",
        "notifications",
        "overrides",
        "run_dedupes",
        "run_keys",
        "told_starts",
    ];
    assert_eq!(with_rows().await, belongs);
    node.delete(&format!("/v1/runs/{run}")).await.expect_status(204);
    assert_eq!(with_rows().await, ["notifications"]);
    node.run("g", asked).await;
}

/// A group may keep its runs for a shorter time, and logs may go before their runs.
#[tokio::test]
async fn shorter_than_the_others() {
    let world = World::new().await;
    let sql = hold_still(&world).await;
    let node = world.node().await;
    let brief = ended(&node, "brief", with(hello(), json!({"retention": {"runs": "1h"}}))).await;
    // A day on which others may still be wanted.
    let lately = day(&sql, 10).await;
    let brief = copy(&sql, &brief, &lately, &format!("{lately} 11:00+00"), "a").await;
    let quiet = ended(&node, "quiet", with(hello(), json!({"retention": {"logs": "1h"}}))).await;
    let plain = ended(&node, "plain", hello()).await;
    let quiet = copy(&sql, &quiet, "2020-03-01", "2020-03-01 11:00+00", "a").await;
    sql.batch_execute("UPDATE heddle.runs_done SET finished_at = now() - interval '2 hours'")
        .await
        .unwrap();
    assert!(count(&sql, &format!("logs WHERE run = '{quiet}'")).await > 0);
    let pruned = prune(&node, false).await;
    assert_eq!(pruned["runs"], 1, "{pruned:#}");
    let log_days = pruned["log_days"].as_array().unwrap();
    assert!(log_days.contains(&json!("2020-03-01")), "{pruned:#}");
    node.get(&format!("/v1/runs/{brief}")).await.expect_problem(404, &[]);
    node.run_now(&plain).await;
    node.run_now(&quiet).await;
    assert_eq!(count(&sql, &format!("logs WHERE run = '{quiet}'")).await, 0);
    assert!(count(&sql, &format!("logs WHERE run = '{plain}'")).await > 0);
}

/// Somebody who holds the tables for long is waited for by nobody: neither by the pruner nor behind it.
#[tokio::test]
async fn a_dump_is_in_nobodys_way() {
    let world = World::new().await;
    let sql = hold_still(&world).await;
    let node = world.node().await;
    let run = ended(&node, "g", hello()).await;
    copy(&sql, &run, "2020-04-01", "2020-04-01 11:00+00", "a").await;
    let mut dump = world.sql().await;
    let reading = dump.transaction().await.unwrap();
    reading
        .query("SELECT count(*) FROM heddle.runs_done", &[])
        .await
        .unwrap();
    let pruned = prune(&node, false).await;
    assert_eq!(
        (pruned["more"].clone(), days(&pruned).len()),
        (json!(true), 0),
        "{pruned:#}"
    );
    assert_eq!(node.run("g", json!({})).await["state"], "succeeded");
    reading.commit().await.unwrap();
    assert_eq!(days(&prune(&node, false).await), ["2020-04-01"]);
}

/// A node that dies after it has dropped a day, and before it has cleared the rest, leaves a note; whoever comes next
/// goes on.
#[tokio::test]
async fn a_dropped_day_is_cleared_after_a_crash() {
    let world = World::new().await;
    let sql = hold_still(&world).await;
    let mut node = world.node().await;
    let run = ended(&node, "g", hello()).await;
    copy(&sql, &run, "2020-05-01", "2020-05-01 11:00+00", "a").await;
    node.kill();
    // What stands in the database between the two transactions.
    sql.batch_execute(
        "BEGIN;
         DROP TABLE heddle.logs_20200501, heddle.attempts_20200501, heddle.maps_20200501, heddle.runs_done_20200501;
         INSERT INTO heddle.pruned_days (day, at) VALUES ('2020-05-01', now());
         COMMIT",
    )
    .await
    .unwrap();
    let next = world.node().await;
    next.post("/v1/groups/g/runs", json!({"key": "a"}))
        .await
        .expect_status(409);
    eventually("the end of what belonged to the day", async || {
        prune(&next, false).await;
        (count(&sql, "pruned_days").await == 0).then_some(())
    })
    .await;
    next.post("/v1/groups/g/runs", json!({"key": "a"}))
        .await
        .expect_status(202);
}

/// Nodes prune by themselves, whoever of them it is, and go on when one dies.
#[tokio::test]
async fn nobody_has_to_ask() {
    let world = World::new().await;
    let mut nodes = world.nodes(2).await;
    let run = ended(&nodes[0], "g", hello()).await;
    let sql = world.sql().await;
    copy(&sql, &run, "2020-06-01", "2020-06-01 11:00+00", "a").await;
    nodes[0].kill();
    sql.batch_execute("UPDATE heddle.upkeep SET due_at = now()")
        .await
        .unwrap();
    eventually("a round of the pruner", async || {
        (count(&sql, "runs_done WHERE id < heddle.uuid_floor('2021-01-01')").await == 0).then_some(())
    })
    .await;
}

/// What cannot be meant is refused; a dry run changes nothing.
#[tokio::test]
async fn settings() {
    let (_world, node) = World::with_node().await;
    let default = node.get("/v1/retention").await.expect_status(200);
    assert_eq!((&default["hot"], &default["runs"]), (&json!("3d"), &json!("90d")));
    let wrong = json!({"runs": "1m", "states": {"failed": "0s"}});
    node.put("/v1/retention", wrong)
        .await
        .expect_problem(422, &["/runs", "/states/failed"]);
    for (body, pointer) in [(json!({"nope": "1d"}), "/nope"), (json!({"runs": 5}), "/runs")] {
        node.put("/v1/retention", body).await.expect_problem(422, &[pointer]);
    }
    let running = json!({"states": {"running": "1d"}});
    assert_eq!(node.put("/v1/retention", running).await.status, 422);
    let wanted = json!({"runs": "7d", "states": {"failed": "30d"}, "logs": "2d"});
    let preview = node
        .put("/v1/retention?dry_run=true", wanted.clone())
        .await
        .expect_status(200);
    assert_eq!((&preview["dry_run"], &preview["runs"]), (&json!(true), &json!(0)));
    assert_eq!(node.get("/v1/retention").await.body, default);
    node.put("/v1/retention", wanted.clone()).await.expect_status(200);
    let stands = node.get("/v1/retention").await.expect_status(200);
    assert_eq!((&stands["runs"], &stands["logs"]), (&json!("7d"), &json!("2d")));
    assert_eq!(stands["states"], json!({"failed": "30d"}));
    let audit = node.all("/v1/audit?kind=setting&name=retention").await;
    assert_eq!((audit.len(), &audit[0]["after"]["runs"]), (1, &json!("7d")));
    node.refused_group("g", with(hello(), json!({"retention": {"runs": "1m", "logs": "1s"}})))
        .await
        .expect_problem(422, &["/retention/runs", "/retention/logs"]);
    let kept = json!({"runs": "7d", "states": {"failed": "30d"}});
    let put = node.put_group("g", with(hello(), json!({"retention": kept}))).await;
    assert_eq!(put["retention"], kept);
}
