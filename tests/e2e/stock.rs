//! A server with Debian's settings: `jit = on`, a hundred connections, durable commits.

use std::time::Duration;

use heddle_tests::{World, eventually, task};
use serde_json::json;
use tokio::time::Instant;

use crate::{one, with};

/// How much of one processor three idle nodes may take of the server.
const IDLE_MAX: f64 = 0.3;

/// For how long that is measured.
const IDLE_FOR: Duration = Duration::from_secs(5);

/// The server's processes for this test's nodes.
async fn backends(world: &World) -> Vec<i32> {
    let rows = world
        .sql()
        .await
        .query(
            "SELECT pid FROM pg_stat_activity
              WHERE datname = current_database() AND application_name = 'heddle' AND backend_type = 'client backend'",
            &[],
        )
        .await
        .expect("the server's processes");
    rows.iter().map(|row| row.get(0)).collect()
}

/// The processor time that processes have taken, in seconds.
fn processor_time(processes: &[i32]) -> f64 {
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let mut sum = 0.0;
    for process in processes {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else {
            continue;
        };
        let after = stat.rsplit_once(')').expect("a name in parentheses").1;
        // Fields 14 and 15 of proc(5), of which the state is the third.
        let fields: Vec<f64> = after
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse().ok())
            .collect();
        sum += fields.iter().sum::<f64>() / ticks;
    }
    sum
}

/// Those of them that have ever compiled a plan: the compiler is loaded by the first.
fn compiling(processes: &[i32]) -> Vec<i32> {
    let loaded = |process: &i32| {
        let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        maps.contains("llvmjit")
    };
    processes.iter().copied().filter(loaded).collect()
}

#[tokio::test]
async fn nothing_is_compiled_and_idle_nodes_are_idle() {
    let world = World::stock().await;
    let sql = world.sql().await;
    let setting = async |name: &str| -> String {
        let row = sql
            .query_one("SELECT current_setting($1)", &[&name])
            .await
            .expect("a setting");
        row.get(0)
    };
    assert_eq!(setting("jit").await, "on");
    assert_eq!(setting("fsync").await, "on");
    let nodes = world.nodes(3).await;
    nodes[0]
        .put_group(
            "pair",
            json!({"tasks": {"a": {"script": "hello"}, "b": {"script": "hello", "depends_on": ["a"]}}}),
        )
        .await;
    let began = Instant::now();
    let mut runs = Vec::new();
    for n in 0..60 {
        runs.push(nodes[n % 3].start("pair", json!({})).await);
    }
    for run in &runs {
        assert_eq!(nodes[0].ended(run).await["state"], "succeeded");
    }
    let took = began.elapsed();
    let before = backends(&world).await;
    assert!(before.len() > 3, "{before:?}");
    assert_eq!(compiling(&before), Vec::<i32>::new(), "backends that compile plans");
    let spent = processor_time(&before);
    tokio::time::sleep(IDLE_FOR).await;
    let share = (processor_time(&before) - spent) / IDLE_FOR.as_secs_f64();
    assert!(
        share < IDLE_MAX,
        "three idle nodes take {share:.2} of a processor (60 runs took {took:?})"
    );
    for node in &nodes {
        assert!(!node.log().contains("fsync"), "{}", node.log());
    }
}

/// A bit of everything, as on any server.
#[tokio::test]
async fn a_bit_of_everything() {
    let world = World::stock().await;
    let nodes = world.nodes(2).await;
    nodes[0]
        .put_group(
            "all",
            json!({"tasks": {
                "first": {"script": "hello"},
                "map": {"script": "sum", "params": {"numbers": ["{{ item }}"]}, "shards": 10, "depends_on": ["first"]},
                "work": {"queue": "w", "depends_on": ["first"]},
                "last": {"script": "sum", "params": {"upstream": ["map"]}, "depends_on": ["map", "work"]},
            }}),
        )
        .await;
    nodes[1]
        .put_group(
            "clock",
            with(
                one(json!({"script": "hello"})),
                json!({"schedules": {"s": {"every": "1s"}}}),
            ),
        )
        .await;
    let run = nodes[1].start("all", json!({})).await;
    let wish = json!({"worker": "w", "max": 1, "lease": "30s", "wait": "20s"});
    let claimed = nodes[0].post("/v1/queues/w/claims", wish).await.expect_status(200);
    let claim = &claimed["items"][0];
    let path = format!("/v1/claims/{}/complete", claim["id"].as_str().expect("an id"));
    let outcome = json!({"token": claim["token"], "output": {"rows": 1}});
    nodes[1].post(&path, outcome).await.expect_status(200);
    let found = nodes[0].ended(&run).await;
    assert_eq!(found["state"], "succeeded", "{found:#}");
    // Of each item n there are its sum, count, least and greatest: 3 n + 1.
    assert_eq!(task(&found, "last")["output"]["sum"].as_f64(), Some(145.0), "{found:#}");
    eventually("scheduled runs", async || {
        let runs = nodes[0].all("/v1/runs?group=clock&state=succeeded").await;
        (runs.len() >= 3).then_some(())
    })
    .await;
}
