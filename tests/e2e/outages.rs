//! Postgres goes away and comes back: nothing is lost.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use heddle_postgres::{EmbeddedPostgres, Options};
use heddle_tests::{Answer, Api, NodeOptions, Receiver, TOKEN, Wire, World, eventually, task};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::events::lines;
use crate::{calls, one, sleeps, with};

/// All connections are cut, again and again: who reads, or waits for a run, gets the answer. Only a read is answered again.
#[tokio::test]
async fn reads_do_not_notice_cuts() {
    let (world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let run = node.start("g", json!({})).await;
    node.ended(&run).await;
    let owner = world.sql_as_owner().await;
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
        world.database()
    );
    for _ in 0..20 {
        owner.query(&cut, &[]).await.unwrap();
        let reads = (0..9).map(async |n| match n % 3 {
            0 => node.get("/v1/runs?group=g").await,
            1 => node.get("/v1/events?kinds=run.*").await,
            _ => node.get(&format!("/v1/runs/{run}?wait=20s")).await,
        });
        for reply in futures::future::join_all(reads).await {
            assert_eq!(reply.status, 200, "{:#}", reply.body);
        }
    }
}

/// Connections are cut while the feed of events is read, which takes several statements: each reader gets all of it.
#[tokio::test]
async fn a_feed_does_not_notice_cuts() {
    let (world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    // One after the other: more rows than the first statement reads.
    for _ in 0..20 {
        node.run("g", json!({})).await;
    }
    let all = lines(&node, "kinds=run.*").await;
    assert!(all.len() >= 20, "{all:#?}");
    let owner = world.sql_as_owner().await;
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
        world.database()
    );
    for _ in 0..20 {
        let reads = futures::future::join_all((0..4).map(|_| lines(&node, "kinds=run.*")));
        let (cut, read) = tokio::join!(owner.query(&cut, &[]), reads);
        cut.unwrap();
        for found in read {
            assert_eq!(found, all);
        }
    }
}

/// Connections are cut and refused for a while, shorter than a lease.
#[tokio::test]
async fn short() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let retry = json!({"strategy": "forever", "interval": "100ms"});
    nodes[0]
        .put_group(
            "g",
            json!({"tasks": {
                "slow": sleeps(1.0),
                "after": {"script": "hello", "depends_on": ["slow"]},
                "flaky": {"script": "flaky", "params": {"fail_times": 5}, "retry": retry},
                "count": {"script": "stateful", "params": {"pause_ms": 800}, "retry": retry},
            }}),
        )
        .await;
    let mut runs = Vec::new();
    for n in 0..5 {
        runs.push(nodes[n % 2].start("g", json!({"key": format!("before-{n}")})).await);
    }
    let owner = world.sql_as_owner().await;
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
        world.database()
    );
    owner
        .batch_execute(&format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", world.database()))
        .await
        .unwrap();
    owner.query(&cut, &[]).await.unwrap();
    // Submissions get an answer, and it is not a lie.
    for n in 0..3 {
        let reply = nodes[n % 2]
            .post("/v1/groups/g/runs", json!({"key": format!("during-{n}")}))
            .await;
        assert_eq!(reply.status, 503, "{:#}", reply.body);
        assert!(reply.headers.contains_key("retry-after"));
        assert_eq!(reply.body["status"], 503);
    }
    let ready = nodes[0].get("/readyz").await;
    assert_eq!(ready.status, 503, "{:#}", ready.body);
    nodes[0].get("/healthz").await.expect_status(200);
    owner
        .batch_execute(&format!("ALTER DATABASE {} ALLOW_CONNECTIONS true", world.database()))
        .await
        .unwrap();
    for node in &nodes {
        eventually("ready node", async || {
            node.try_get("/readyz")
                .await
                .filter(|reply| reply.status == 200)
                .map(drop)
        })
        .await;
    }
    for n in 0..3 {
        // What was answered with 503 may be sent again.
        runs.push(nodes[n % 2].start("g", json!({"key": format!("during-{n}")})).await);
    }
    let mut counts = Vec::new();
    for run in &runs {
        let found = nodes[0].ended(run).await;
        assert_eq!(found["state"], "succeeded", "{found:#}");
        counts.push(task(&found, "count")["output"]["count"].as_u64().unwrap());
    }
    counts.sort_unstable();
    assert_eq!(counts, (1..=8).collect::<Vec<u64>>(), "effects were had once each");
    assert_eq!(nodes[0].all("/v1/runs?group=g").await.len(), 8);
}

/// A role that only this test's nodes have, which may do everything, and the URL with it: the server can refuse it without
/// touching the tests beside it. Roles outlive databases, so it may be there already.
async fn role_of(world: &World) -> (String, String) {
    let role = format!("of_{}", world.database());
    let sql = world.sql().await;
    sql.batch_execute(&format!(
        "DO $$ BEGIN
             IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN CREATE ROLE {role}; END IF;
         END $$;
         ALTER ROLE {role} SUPERUSER LOGIN"
    ))
    .await
    .unwrap();
    let (_, address) = world.url().split_once('@').expect("a role in the URL");
    let url = format!("postgres://{role}@{address}");
    (role, url)
}

/// For a while, the server refuses the role of the nodes, as while its password is changed. That says nothing about the
/// outcomes that wait to be recorded, nor about events of which somebody wants to hear: nothing fails, nothing is lost.
#[tokio::test]
async fn a_role_that_is_refused() {
    /// The lock of the one node that turns events into notifications (`store/src/notify/outbox.rs`).
    const FAN_OUT: i64 = 0x6865_6464_6c65_0006;
    let world = World::new().await;
    let (role, url) = role_of(&world).await;
    let node = NodeOptions::new(&url).at_home().start().await;
    let gate = Receiver::start(Answer::Held).await;
    let caller = Receiver::start(Answer::Status(200)).await;
    node.put_group("one", one(calls(&gate))).await;
    let after = with(json!({"script": "hello"}), json!({"depends_on": ["slow"]}));
    node.put_group("two", json!({"tasks": {"slow": calls(&gate), "after": after}}))
        .await;
    node.put_group("told", one(json!({"script": "hello"}))).await;
    let mut runs = Vec::new();
    for (group, task) in [("one", "t"), ("two", "slow")] {
        let run = node.start(group, json!({})).await;
        node.task_becomes(&run, task, "running").await;
        runs.push(run);
    }
    let sql = world.sql().await;
    sql.execute("SELECT pg_advisory_lock($1)", &[&FAN_OUT]).await.unwrap();
    let told = node.run("told", json!({"callback": caller.url})).await;
    assert_eq!(told["state"], "succeeded", "{told:#}");
    let notices = async || {
        let row = sql.query_one("SELECT count(*) FROM heddle.notices", &[]).await;
        row.unwrap().get::<_, i64>(0)
    };
    assert_eq!(notices().await, 1);

    sql.batch_execute(&format!("ALTER ROLE {role} NOLOGIN")).await.unwrap();
    let cut = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'");
    eventually("a node without sessions", async || {
        sql.query(&cut, &[]).await.unwrap().is_empty().then_some(())
    })
    .await;
    gate.answers(Answer::Json(200, "{}".into()));
    let reply = node.post("/v1/groups/one/runs", json!({})).await;
    assert_eq!(reply.status, 503, "{:#}", reply.body);
    assert!(reply.headers.contains_key("retry-after"));
    eventually("outcomes that are not recorded", async || {
        let log = node.log();
        let mut lines = log.lines();
        lines
            .any(|line| line.contains("a batch was not committed") && line.contains("outcomes"))
            .then_some(())
    })
    .await;
    assert!(node.log().contains("SQLSTATE 28000"), "{}", node.log());
    sql.execute("SELECT pg_advisory_unlock($1)", &[&FAN_OUT]).await.unwrap();
    assert_eq!(notices().await, 1, "nobody throws it away");

    sql.batch_execute(&format!("ALTER ROLE {role} LOGIN")).await.unwrap();
    eventually("ready node", async || {
        node.try_get("/readyz")
            .await
            .filter(|reply| reply.status == 200)
            .map(drop)
    })
    .await;
    for run in &runs {
        let found = node.ended(run).await;
        assert_eq!(found["state"], "succeeded", "{found:#}");
    }
    let called = eventually("a call back", async || caller.requests().into_iter().next()).await;
    assert_eq!(called.body["id"], told["id"]);
    eventually("no event that waits", async || (notices().await == 0).then_some(())).await;
    assert!(!node.log().contains("cannot record the outcome"), "{}", node.log());
}

/// A node that the server refuses at its start ends at once, and says why; a command does the same.
#[tokio::test]
async fn refused_at_the_start() {
    let world = World::new().await;
    let (role, url) = role_of(&world).await;
    let sql = world.sql().await;
    sql.batch_execute(&format!("ALTER ROLE {role} NOLOGIN")).await.unwrap();
    let (address, _) = world.url().rsplit_once('/').expect("a database in the URL");
    let missing = format!("{address}/there_is_no_such_database");
    for (url, code) in [(url.as_str(), "SQLSTATE 28000"), (missing.as_str(), "SQLSTATE 3D000")] {
        let mut starting = NodeOptions::new(url).spawn();
        let ended = starting.end().await;
        let log = starting.log();
        assert!(!ended.success(), "{log}");
        assert!(
            log.contains("cannot connect to the database") && log.contains(code),
            "{log}"
        );
        assert!(!log.contains("waiting for the database"), "{log}");
        let (exit, said) = heddle_tests::heddle(&["migrate", "--database-url", url], &[]);
        assert_eq!(exit, Some(1), "{said}");
        assert!(
            said.contains("cannot connect to the database") && said.contains(code),
            "{said}"
        );
    }
}

/// An administrator cancels the statement that records an outcome, again and again: the outcome is recorded when it is left
/// alone, and nothing else in its place.
#[tokio::test]
async fn a_statement_that_is_cancelled() {
    let world = World::new().await;
    let node = world.options().at_home().start().await;
    let gate = Receiver::start(Answer::Held).await;
    node.put_group("g", one(calls(&gate))).await;
    let run = node.start("g", json!({})).await;
    node.task_becomes(&run, "t", "running").await;
    let (sql, mut other) = (world.sql().await, world.sql().await);
    let holder = other.transaction().await.unwrap();
    holder
        .execute(
            "SELECT FROM heddle.runs_live WHERE id = $1::text::uuid FOR UPDATE",
            &[&run],
        )
        .await
        .unwrap();
    gate.answers(Answer::Json(200, "{}".into()));
    for _ in 0..3 {
        // Each try waits for the lock of the run.
        eventually("a statement to cancel", async || {
            let cancelled = sql
                .query(
                    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity
                      WHERE datname = current_database() AND wait_event_type = 'Lock'",
                    &[],
                )
                .await
                .unwrap();
            (!cancelled.is_empty()).then_some(())
        })
        .await;
    }
    holder.rollback().await.unwrap();
    let found = node.ended(&run).await;
    assert_eq!(found["state"], "succeeded", "{found:#}");
    assert_eq!(node.attempts(&run, "t").await.len(), 1);
}

/// A call whose statements are cancelled, as often as they are tried, says so.
#[tokio::test]
async fn a_call_whose_statements_are_cancelled_says_so() {
    let (world, node) = World::with_node().await;
    let cancels = "CREATE FUNCTION cancels() RETURNS trigger LANGUAGE plpgsql AS $$
                   BEGIN RAISE EXCEPTION 'canceling statement due to user request' USING ERRCODE = '57014'; END $$;
                   CREATE TRIGGER cancels BEFORE INSERT ON heddle.pools
                   FOR EACH ROW EXECUTE FUNCTION cancels()";
    world.sql().await.batch_execute(cancels).await.unwrap();
    let reply = node.put("/v1/pools/p", json!({"slots": 1})).await;
    assert!(reply.headers.contains_key("retry-after"), "{:#}", reply.body);
    reply.expect_said(503, "cancelled a statement");
}

/// What Postgres does while its disk is full: it refuses new runs and new tables. A heartbeat changes a row in place, and
/// succeeds.
const DISK_IS_FULL: &str = "
    CREATE FUNCTION full_for_rows() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
    CREATE FUNCTION full_for_tables() RETURNS event_trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'could not create file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
    CREATE TRIGGER disk_is_full BEFORE INSERT ON heddle.runs_live FOR EACH ROW EXECUTE FUNCTION full_for_rows();
    CREATE EVENT TRIGGER disk_is_full ON ddl_command_end WHEN TAG IN ('CREATE TABLE')
        EXECUTE FUNCTION full_for_tables()";

/// A node whose writes are refused because the disk is full is not ready, although it keeps its lease, and says why. When
/// there is room again, it notices by itself, also if nobody writes.
#[tokio::test]
async fn full_disk() {
    let (world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    let sql = world.sql().await;
    sql.batch_execute(DISK_IS_FULL).await.unwrap();
    node.get("/readyz").await.expect_status(200);
    let reply = node.post("/v1/groups/g/runs", json!({})).await;
    assert!(reply.headers.contains_key("retry-after"));
    let reply = reply.expect_said(503, "the disk of the database is full");
    assert_eq!(reply["errors"], json!([]), "{reply:#}");
    // Of a batch, each run has its own answer.
    let batch = node
        .post("/v1/groups/g/runs/batch", json!({"runs": [{}, {}]}))
        .await
        .expect_status(202);
    assert_eq!(batch["accepted"], 0, "{batch:#}");
    for item in batch["items"].as_array().unwrap() {
        assert_eq!(item["status"], 503, "{batch:#}");
        let detail = item["problem"]["detail"].as_str().unwrap();
        assert!(detail.starts_with("the disk of the database is full"), "{batch:#}");
    }
    // The log has a line about it, not one for each request.
    let began = Instant::now();
    for _ in 0..20 {
        node.post("/v1/groups/g/runs", json!({})).await.expect_status(503);
    }
    let lines = node.log().matches("a request failed").count() as u64;
    assert!(lines <= 2 + began.elapsed().as_secs() / 10, "{}", node.log());
    eventually("a node that says why it is not ready", async || {
        let ready = node.get("/readyz").await;
        let detail = ready.body["detail"].as_str().unwrap_or_default();
        let says = detail.starts_with("the disk of the database is full");
        (ready.status == 503 && says).then_some(())
    })
    .await;
    let metrics = node.get("/metrics").await.expect_status(200);
    let metrics = metrics.as_str().unwrap();
    for (metric, value) in [
        ("heddle_lease_held", 1.0..=1.0),
        ("heddle_database_full_seconds", 5.0..=f64::MAX),
    ] {
        let line = metrics.lines().find_map(|line| line.strip_prefix(metric));
        let found: f64 = line.unwrap().trim().parse().unwrap();
        assert!(value.contains(&found), "{metric} is {found}");
    }
    sql.batch_execute("DROP EVENT TRIGGER disk_is_full; DROP TRIGGER disk_is_full ON heddle.runs_live")
        .await
        .unwrap();
    eventually("ready node", async || {
        (node.get("/readyz").await.status == 200).then_some(())
    })
    .await;
    assert_eq!(node.run("g", json!({})).await["state"], "succeeded");
    let left = sql
        .query_one("SELECT to_regclass('heddle.test_of_room') IS NULL", &[])
        .await
        .unwrap();
    assert!(left.get::<_, bool>(0), "the table of the test is gone");
}

/// A node that waits for its database at the start lives, and is not ready; it says so at once.
#[tokio::test]
async fn at_the_start() {
    let world = World::new().await;
    let wire = Wire::new(world.url()).await;
    wire.refuse();
    let starting = NodeOptions::new(wire.url()).spawn();
    let address = eventually("an address in the log", async || {
        let log = starting.log();
        let (_, rest) = log.split_once("listening at ")?;
        rest.split_once(';').map(|(address, _)| address.to_owned())
    })
    .await;
    let node = Api::new(&address, Some(TOKEN));
    node.get("/healthz").await.expect_status(200);
    let ready = node.get("/readyz").await;
    assert!(ready.headers.contains_key("retry-after"));
    ready.expect_said(503, "this node is still starting");
    wire.accept();
    eventually("ready node", async || {
        (node.get("/readyz").await.status == 200).then_some(())
    })
    .await;
    // Also on the connection that was opened before.
    node.get("/v1/groups").await.expect_status(200);
}

/// While Postgres is away, a node still gives its own metrics to those whose token it has accepted before, however long
/// that lasts, and without a long wait. No other route does, and no other token counts.
#[tokio::test]
async fn metrics() {
    let world = World::new().await;
    let wire = Wire::new(world.url()).await;
    let node = NodeOptions::new(wire.url()).start().await;
    let other = async |name: &str| {
        let made = node
            .post("/v1/tokens", json!({"name": name, "role": "viewer"}))
            .await
            .expect_status(201);
        (
            made["id"].as_str().unwrap().to_owned(),
            node.with_token(made["token"].as_str()),
        )
    };
    let (id, revoked) = other("revoked").await;
    let (_, unused) = other("unused").await;
    revoked.get("/metrics").await.expect_status(200);
    let reply = node.delete(&format!("/v1/tokens/{id}")).await;
    assert_eq!(reply.status, 204, "{:#}", reply.body);
    revoked.get("/metrics").await.expect_status(401);
    eventually("the log of changes followed", async || {
        let nodes = node.all("/v1/nodes").await;
        let mut up = nodes.iter().filter(|node| node["state"] == "active");
        up.all(|node| node["position"] == node["position_newest"]).then_some(())
    })
    .await;
    let before = node.get("/metrics").await.expect_status(200);
    assert!(before.as_str().unwrap().contains("heddle_task_runs_ready"), "{before}");

    wire.refuse();
    // A check of the token counts for 5 s; a lease is lost after 6 s.
    eventually("metrics of a node without its lease", async || {
        let began = Instant::now();
        let metrics = node.get("/metrics").await.expect_status(200);
        let (metrics, took) = (metrics.as_str().unwrap(), began.elapsed());
        assert!(took < Duration::from_secs(4), "{took:?}");
        let held = metrics.lines().find_map(|line| line.strip_prefix("heddle_lease_held"));
        let held: f64 = held.unwrap().trim().parse().unwrap();
        (held == 0.0).then_some(())
    })
    .await;
    let during = node.get("/metrics").await.expect_status(200);
    let during = during.as_str().unwrap();
    assert!(!during.contains("heddle_task_runs_ready"), "{during}");
    for (other, path) in [
        (&revoked, "/metrics"),
        (&unused, "/metrics"),
        (node.api(), "/v1/groups"),
    ] {
        let reply = other.get(path).await;
        assert!([401, 503].contains(&reply.status), "{path}: {:#}", reply.body);
    }

    wire.accept();
    eventually("all metrics", async || {
        let metrics = node.get("/metrics").await.expect_status(200);
        let metrics = metrics.as_str().unwrap();
        metrics.contains("heddle_task_runs_ready").then_some(())
    })
    .await;
    unused.get("/metrics").await.expect_status(200);
}

/// The server is stopped for longer than leases last, with work in hand, and started again.
#[tokio::test]
async fn long() {
    let directory = tempfile::Builder::new().prefix("heddle-outage-").tempdir().unwrap();
    let options = Options {
        for_tests: true,
        ..Options::new(directory.path())
    };
    let postgres = EmbeddedPostgres::start(options.clone()).await.unwrap();
    postgres.create_database("outage").await.unwrap();
    let url = postgres.url("outage");
    let made = heddle_tests::create_token(&url, "t", "admin");
    let token: Value = serde_json::from_slice(&made.stdout).unwrap();
    let gate = Receiver::start(Answer::Held).await;
    let node = NodeOptions::new(&url).at_home().start().await;
    let api = node.with_token(token["token"].as_str());
    for name in ["hello", "sleep", "stateful"] {
        let wasm = heddle_scripts::get(name).unwrap();
        api.put_bytes(&format!("/v1/scripts/{name}"), "application/wasm", wasm)
            .await
            .expect_status(201);
    }
    api.put_group(
        "g",
        json!({"tasks": {
            "slow": calls(&gate),
            "after": with(json!({"script": "hello"}), json!({"depends_on": ["slow"]})),
        }}),
    )
    .await;
    api.put_group(
        "counts",
        one(json!({"script": "stateful", "params": {"pause_ms": 2000}})),
    )
    .await;
    let mut runs = Vec::new();
    for _ in 0..10 {
        runs.push(api.start("g", json!({})).await);
    }
    for run in &runs {
        api.task_becomes(run, "slow", "running").await;
    }
    let count = api.start("counts", json!({})).await;
    api.task_becomes(&count, "t", "running").await;
    postgres.stop().await.unwrap();
    gate.answers(Answer::Json(200, "{}".into()));
    let away = async |path: &str| {
        let reply = api.get(path).await;
        assert_eq!(reply.status, 503, "{path}: {:#}", reply.body);
    };
    away("/readyz").await;
    away(&format!("/v1/runs/{}", runs[0])).await;
    // The lease is 8 s; this is no wait for something to happen, but what the test is about.
    tokio::time::sleep(Duration::from_secs(10)).await;
    away("/v1/groups").await;
    api.get("/healthz").await.expect_status(200);
    let postgres = EmbeddedPostgres::start(options).await.unwrap();
    assert_eq!(postgres.url("outage"), url);
    eventually("ready node", async || {
        api.try_get("/readyz")
            .await
            .filter(|reply| reply.status == 200)
            .map(drop)
    })
    .await;
    for run in &runs {
        let found = api.ended(run).await;
        assert_eq!(found["state"], "succeeded", "{found:#}");
    }
    let counted = api.ended(&count).await;
    assert_eq!(task(&counted, "t")["output"]["count"], 1, "{counted:#}");
    let fresh = api.run("g", json!({})).await;
    assert_eq!(fresh["state"], "succeeded");

    drop(node);
    postgres.stop().await.unwrap();
}

/// Copies a directory with all that is in it.
fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("a copy");
    assert!(copied.success(), "{}", from.display());
}

/// The server comes back without its last commits, as a replica does that had not received them. A node that worked all the
/// while knows what was lost, and even the numbers are given out again: it creates no run of that, and reads what there is.
#[tokio::test]
async fn a_tail_of_commits_is_lost() {
    let directory = tempfile::Builder::new().prefix("heddle-outage-").tempdir().unwrap();
    let options = Options {
        for_tests: true,
        ..Options::new(directory.path())
    };
    let (data, aside) = (directory.path().join("postgres/data"), directory.path().join("aside"));
    let postgres = EmbeddedPostgres::start(options.clone()).await.unwrap();
    postgres.create_database("outage").await.unwrap();
    let url = postgres.url("outage");
    let made = heddle_tests::create_token(&url, "t", "admin");
    let token: Value = serde_json::from_slice(&made.stdout).unwrap();
    let node = NodeOptions::new(&url).at_home().start().await;
    let api = node.with_token(token["token"].as_str());
    let is_ready = async || {
        eventually("ready node", async || {
            let reply = api.try_get("/readyz").await;
            reply.filter(|reply| reply.status == 200).map(drop)
        })
        .await;
    };
    let server = Receiver::start(Answer::Json(200, "{}".into())).await;
    let spec = |description: &str| json!({"description": description, "tasks": {"t": calls(&server)}});
    // A call that is cut in the middle gets 503.
    let put = async |name: &str, description: &str| {
        eventually("a group that is put", async || {
            let reply = api.put(&format!("/v1/groups/{name}"), spec(description)).await;
            assert!([200, 201, 503].contains(&reply.status), "{:#}", reply.body);
            (reply.status != 503).then_some(())
        })
        .await;
    };
    let revision_of_run = async || {
        let id = eventually("a run that is accepted", async || {
            let reply = api.post("/v1/groups/g/runs", json!({})).await;
            assert!([202, 503].contains(&reply.status), "{:#}", reply.body);
            (reply.status == 202).then(|| reply.body["id"].as_str().expect("an id").to_owned())
        })
        .await;
        let run = api.ended(&id).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        run["revision"].as_i64().expect("a revision")
    };
    put("g", "kept").await;
    assert_eq!(revision_of_run().await, 1);
    postgres.stop().await.unwrap();
    copy(&data, &aside);

    let postgres = EmbeddedPostgres::start(options.clone()).await.unwrap();
    is_ready().await;
    put("g", "lost").await;
    put("lost", "lost").await;
    assert_eq!(revision_of_run().await, 2);
    postgres.stop().await.unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::rename(&aside, &data).unwrap();

    let postgres = EmbeddedPostgres::start(options).await.unwrap();
    assert_eq!(postgres.url("outage"), url);
    assert_eq!(revision_of_run().await, 1, "what the database has");
    is_ready().await;
    api.get("/v1/groups/lost").await.expect_status(404);
    // The numbers of what was lost are given out again.
    put("g", "new").await;
    assert_eq!(revision_of_run().await, 2);
    assert_eq!(api.get("/v1/groups/g").await.body["description"], "new");

    drop(node);
    postgres.stop().await.unwrap();
}
