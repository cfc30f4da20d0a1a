//! The connection to Postgres breaks in all the ways that networks have: nodes recover by themselves within seconds,
//! accepted runs end, no work is lost or done twice, and all reports of a node's state agree.

use std::time::Duration;

use heddle_tests::{Api, Node, NodeOptions, Wire, World, eventually, task, within};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{alone, one, sleeps};

/// Once the way is free again a node is ready within this: a question of the watch, a new connection, a new lease.
const BACK_WITHIN: Duration = Duration::from_secs(6);

/// Task runs that have succeeded other than once.
const SUCCEEDED_OTHER_THAN_ONCE: &str = "
    SELECT d.id::text || ' ' || coalesce(a.task::text, '-') || ': ' || count(a.run)
      FROM heddle.runs_done d
      LEFT JOIN heddle.attempts a ON a.run = d.id AND a.state = 1
     GROUP BY d.id, a.task, a.item
    HAVING count(a.run) <> 1";

/// A node whose way to the database is this wire.
async fn behind(wire: &Wire) -> Node {
    NodeOptions::new(wire.url()).start().await
}

async fn is_ready(api: &Api) -> bool {
    api.try_get("/readyz").await.is_some_and(|reply| reply.status == 200)
}

/// What `/v1/nodes` of one node says of another.
async fn state_of(api: &Api, node: &str) -> Option<String> {
    let nodes = api.try_get("/v1/nodes").await?;
    let nodes = nodes.body["items"].as_array()?.clone();
    let found = nodes.into_iter().find(|found| found["id"] == node)?;
    found["state"].as_str().map(str::to_owned)
}

/// A number of a node's metrics.
async fn metric(api: &Api, name: &str) -> f64 {
    metric_now(api, name).await.unwrap_or_else(|| panic!("no {name}"))
}

/// The same, unless the node cannot tell just now: it asks the database whether one may look.
async fn metric_now(api: &Api, name: &str) -> Option<f64> {
    let reply = api.try_get("/metrics").await?;
    let line = reply
        .body
        .as_str()?
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned))?;
    line.parse().ok()
}

/// All of these runs have succeeded, and each of their tasks once.
async fn succeeded(world: &World, api: &Api, runs: &[String]) {
    for run in runs {
        let found = api.ended(run).await;
        assert_eq!(found["state"], "succeeded", "{found:#}");
    }
    let rows = world.sql().await.query(SUCCEEDED_OTHER_THAN_ONCE, &[]).await.unwrap();
    let wrong: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(wrong, Vec::<String>::new());
}

fn two_steps(seconds: f64) -> Value {
    json!({"tasks": {"slow": sleeps(seconds), "after": {"script": "hello", "depends_on": ["slow"]}}})
}

/// A stall that outlasts the lease, on a wire on which each heartbeat takes 160 ms.
#[tokio::test]
async fn a_fenced_node_comes_back() {
    let _alone = alone().await;
    let world = World::new().await;
    let wire = Wire::new(world.url()).await;
    wire.delay(Duration::from_millis(80));
    let mut far = behind(&wire).await;
    let near = world.node().await;
    near.put_group("g", two_steps(1.0)).await;
    let mut runs = Vec::new();
    for _ in 0..10 {
        runs.push(far.start("g", json!({})).await);
    }
    wire.cut();
    let cut = Instant::now();
    let id = far.node_id();
    // Before another node takes anything over, and as long as it lasts.
    within(Duration::from_secs(9), "fence", async || {
        let state = state_of(&near, &id).await?;
        ["fenced", "lost"].contains(&state.as_str()).then_some(())
    })
    .await;
    let ready = far.get("/readyz").await;
    assert_eq!(ready.status, 503, "{:#}", ready.body);
    // How long it lasts is what this is about.
    tokio::time::sleep_until(cut + Duration::from_secs(9)).await;
    assert_eq!(state_of(&near, &id).await.as_deref(), Some("lost"));
    wire.mend();
    within(BACK_WITHIN, "ready node", async || is_ready(&far).await.then_some(())).await;
    assert_eq!(metric(&far, "heddle_lease_held").await, 1.0);
    assert_eq!(metric(&far, "heddle_leases_lost_total").await, 1.0);
    assert_eq!(state_of(&near, &id).await.as_deref(), Some("active"));
    assert_eq!(state_of(&far, &id).await.as_deref(), Some("active"));
    assert!(far.log().contains("the node has lost its lease"), "{}", far.log());
    assert!(far.log().contains("the node has a new lease"), "{}", far.log());
    for _ in 0..3 {
        runs.push(far.start("g", json!({})).await);
    }
    succeeded(&world, &near, &runs).await;
    assert_eq!(
        metric(&far, "heddle_leases_lost_total").await,
        1.0,
        "it has kept its new lease"
    );
    far.terminate();
    assert!(far.end().await.success());
}

/// A single node, whose connections are forgotten while it has work in hand; new ones work.
#[tokio::test]
async fn forgotten_connections_are_found() {
    let _alone = alone().await;
    let world = World::new().await;
    let wire = Wire::new(world.url()).await;
    let mut node = behind(&wire).await;
    node.put_group("g", two_steps(0.5)).await;
    let mut runs = Vec::new();
    for round in 0..2 {
        for _ in 0..40 {
            runs.push(node.start("g", json!({"labels": {"round": format!("{round}")}})).await);
        }
        wire.forget();
        let forgotten = Instant::now();
        // Whenever it says that it is ready, a run has to get through.
        within(Duration::from_secs(15), "run that is accepted", async || {
            let reply = node.try_post("/v1/groups/g/runs", json!({})).await?;
            (reply.status == 202).then(|| runs.push(heddle_tests::id(&reply.body)))
        })
        .await;
        for run in &runs {
            let found = within(Duration::from_secs(30), "end of a run", async || {
                let found = node.try_get(&format!("/v1/runs/{run}")).await?;
                (found.status == 200 && !found.body["finished_at"].is_null()).then_some(found.body)
            })
            .await;
            assert_eq!(found["state"], "succeeded", "{found:#}");
        }
        assert!(
            forgotten.elapsed() < Duration::from_secs(20),
            "{:?}",
            forgotten.elapsed()
        );
    }
    succeeded(&world, &node, &runs).await;
    within(BACK_WITHIN, "ready node", async || is_ready(&node).await.then_some(())).await;
    assert!(
        node.log()
            .contains("closing a connection on which Postgres does not answer"),
        "{}",
        node.log()
    );
    // And once more, at the worst moment.
    for _ in 0..10 {
        node.start("g", json!({})).await;
    }
    wire.forget();
    ends_within(&mut node, Duration::from_secs(30)).await;
}

/// SIGTERM ends a node within this.
async fn ends_within(node: &mut Node, limit: Duration) {
    let asked = Instant::now();
    node.terminate();
    node.end().await;
    let took = asked.elapsed();
    assert!(took < limit, "it took {took:?}:\n{}", node.log());
}

/// Two of three nodes lose their database for 15 s; the connections that they had are dead for good.
#[tokio::test]
async fn two_of_three_lose_the_database() {
    let _alone = alone().await;
    let world = World::new().await;
    let near = world.node().await;
    let wires = [Wire::new(world.url()).await, Wire::new(world.url()).await];
    let mut far = Vec::new();
    for wire in &wires {
        far.push(behind(wire).await);
    }
    near.put_group("g", two_steps(0.5)).await;
    let mut runs = Vec::new();
    for n in 0..30 {
        let nodes = [&near, &far[0], &far[1]];
        runs.push(nodes[n % 3].start("g", json!({})).await);
    }
    for wire in &wires {
        wire.forget();
        wire.cut();
    }
    let away = Instant::now();
    for _ in 0..10 {
        runs.push(near.start("g", json!({})).await);
    }
    tokio::time::sleep_until(away + Duration::from_secs(15)).await;
    for node in &far {
        assert!(!is_ready(node).await);
    }
    wires.iter().for_each(Wire::mend);
    for node in &far {
        within(BACK_WITHIN, "ready node", async || is_ready(node).await.then_some(())).await;
        for _ in 0..5 {
            runs.push(node.start("g", json!({})).await);
        }
    }
    succeeded(&world, &near, &runs).await;
    for node in &mut far {
        ends_within(node, Duration::from_secs(10)).await;
    }
}

/// All connections die again and again, the one among them that the watch keeps to ask about the others: the lease is
/// extended on a new one before it is over.
#[tokio::test]
async fn a_dead_connection_of_the_lease_is_replaced_in_time() {
    let _alone = alone().await;
    let world = World::new().await;
    let wire = Wire::new(world.url()).await;
    let node = behind(&wire).await;
    let sql = world.sql().await;
    for _ in 0..3 {
        wire.forget();
        // A heartbeat that was sent before may be executed after it; the next one was sent on a new connection.
        let mut seen = Vec::new();
        eventually("two heartbeats", async || {
            let row = sql
                .query_one("SELECT heartbeat_at::text FROM heddle.nodes", &[])
                .await
                .unwrap();
            let at: String = row.get(0);
            if !seen.contains(&at) {
                seen.push(at);
            }
            (seen.len() > 2).then_some(())
        })
        .await;
    }
    within(BACK_WITHIN, "ready node", async || is_ready(&node).await.then_some(())).await;
    assert_eq!(metric(&node, "heddle_leases_lost_total").await, 0.0, "{}", node.log());
}

/// A database that refuses, or accepts and says nothing, at the start and at the end.
#[tokio::test]
async fn starts_and_stops_without_a_database() {
    let _alone = alone().await;
    let world = World::new().await;
    let wire = Wire::new(world.url()).await;
    let data_dir = world.directory().join("waiting");
    for (silent, words) in [(false, "Connection refused"), (true, "took longer than 5 s")] {
        match silent {
            true => (wire.accept(), wire.cut()),
            false => (wire.refuse(), ()),
        };
        let mut starting = NodeOptions::new(wire.url()).data_dir(&data_dir).spawn();
        eventually("cause in the log", async || {
            starting.log().contains(words).then_some(())
        })
        .await;
        let asked = Instant::now();
        starting.terminate();
        starting.end().await;
        assert!(
            asked.elapsed() < Duration::from_secs(2),
            "{:?}:\n{}",
            asked.elapsed(),
            starting.log()
        );
        let began = Instant::now();
        let migrated = heddle_tests::run_program(&["migrate", "--database-url", wire.url()], &[]);
        let said = String::from_utf8_lossy(&migrated.stderr).into_owned();
        assert!(!migrated.status.success());
        assert!(said.contains(words), "{said}");
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
    wire.mend();
    let mut node = behind(&wire).await;
    node.put_group("g", one(sleeps(30.0))).await;
    let run = node.start("g", json!({})).await;
    node.task_becomes(&run, "t", "running").await;
    wire.cut();
    ends_within(&mut node, Duration::from_secs(30)).await;
}

/// 80 ms each way: everything works, and nothing is fenced.
#[tokio::test]
async fn works_from_afar() {
    let _alone = alone().await;
    let world = World::new().await;
    let wire = Wire::new(world.url()).await;
    wire.delay(Duration::from_millis(80));
    let mut node = behind(&wire).await;
    node.put_group(
        "dag",
        json!({"tasks": {
            "first": {"script": "hello"},
            "map": {"script": "sum", "params": {"numbers": ["{{ item }}"]}, "shards": 20, "depends_on": ["first"]},
            "work": {"queue": "far", "depends_on": ["first"]},
            "last": {"script": "sum", "params": {"upstream": ["map"]}, "depends_on": ["map", "work"]},
        }}),
    )
    .await;
    node.put_group(
        "clock",
        json!({"schedules": {"s": {"every": "1s"}}, "tasks": {"t": {"script": "hello"}}}),
    )
    .await;
    let run = node.start("dag", json!({})).await;
    let claimed = node
        .post(
            "/v1/queues/far/claims",
            json!({"worker": "w", "max": 1, "lease": "30s", "wait": "20s"}),
        )
        .await
        .expect_status(200);
    let claim = &claimed["items"][0];
    let path = format!("/v1/claims/{}/complete", claim["id"].as_str().expect("a claim"));
    node.post(&path, json!({"token": claim["token"], "output": {"rows": 1}}))
        .await
        .expect_status(200);
    let found = node.ended(&run).await;
    assert_eq!(found["state"], "succeeded", "{found:#}");
    // Of each item n there are its sum, count, least and greatest: 3 n + 1.
    assert_eq!(task(&found, "last")["output"]["sum"].as_f64(), Some(590.0), "{found:#}");
    eventually("five scheduled runs", async || {
        let runs = node.all("/v1/runs?group=clock&state=succeeded").await;
        (runs.len() >= 5).then_some(())
    })
    .await;
    let mut runs = Vec::new();
    for _ in 0..20 {
        runs.push(node.start("clock", json!({})).await);
    }
    for run in &runs {
        assert_eq!(node.ended(run).await["state"], "succeeded");
    }
    assert_eq!(metric(&node, "heddle_leases_lost_total").await, 0.0);
    assert!(!node.log().contains("ERROR"), "{}", node.log());
    ends_within(&mut node, Duration::from_secs(10)).await;
}
