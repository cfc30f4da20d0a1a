//! How fast Heddle is on a server with Debian's settings (`jit = on`, durable), and what it costs to be far from it:
//! `cargo bench -p heddle-tests --bench far`.
//!
//! A node and a Postgres share this machine with the client that measures; between node and Postgres is a wire that
//! delays each direction. Nothing is asserted but that everything succeeds and no lease is lost; `docs/benchmarks.md`
//! keeps what was measured.

use std::time::Duration;

use heddle_tests::{Api, NodeOptions, Wire, World};
use serde_json::{Value, json};
use tokio::time::Instant;

/// The delay of the wire in each direction; `None`: no wire, but the server's socket itself.
const DELAYS: [Option<Duration>; 5] = [
    None,
    Some(Duration::ZERO),
    Some(Duration::from_micros(500)),
    Some(Duration::from_millis(5)),
    Some(Duration::from_millis(80)),
];

const CHAIN: usize = 10;
const ITEMS: usize = 100;
const BATCH: usize = 1_000;

#[tokio::main]
async fn main() {
    println!(
        "| each way | single run (p50 / p90 of 50) | chain of {CHAIN} | map of {ITEMS} items | {BATCH} single runs in one batch | leases lost |"
    );
    println!("|---|---|---|---|---|---|");
    for delay in DELAYS {
        measure(delay).await;
    }
}

async fn measure(delay: Option<Duration>) {
    let world = World::stock().await;
    let wire = Wire::new(world.url()).await;
    wire.delay(delay.unwrap_or_default());
    let url = if delay.is_some() { wire.url() } else { world.url() };
    let node = NodeOptions::new(url).start().await;
    node.put_group("one", json!({"tasks": {"t": {"script": "hello"}}}))
        .await;
    let chain: serde_json::Map<String, Value> = (0..CHAIN)
        .map(|n| {
            let after = match n {
                0 => json!([]),
                n => json!([format!("t{}", n - 1)]),
            };
            (format!("t{n}"), json!({"script": "hello", "depends_on": after}))
        })
        .collect();
    node.put_group("chain", json!({"tasks": chain})).await;
    let map = json!({"tasks": {"m": {"script": "sum", "params": {"numbers": ["{{ item }}"]}, "shards": ITEMS}}});
    node.put_group("map", map).await;
    let single = times(&node, "one", 50).await;
    let chain = times(&node, "chain", 10).await;
    let map = times(&node, "map", 5).await;
    let batch = batch(&node).await;
    let metrics = node.get("/metrics").await;
    let lost = metrics
        .body
        .as_str()
        .and_then(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix("heddle_leases_lost_total "))
        })
        .expect("a metric")
        .to_owned();
    let way = match delay {
        None => "no wire".to_owned(),
        Some(delay) => format!("{} ms", delay.as_secs_f64() * 1_000.0),
    };
    println!(
        "| {way} | {} / {} ms | {} ms | {} ms | {:.0} ms | {lost} |",
        at(&single, 50),
        at(&single, 90),
        at(&chain, 50),
        at(&map, 50),
        batch.as_secs_f64() * 1_000.0,
    );
}

/// Milliseconds from POST to end of runs that come one after the other, in order.
async fn times(api: &Api, group: &str, count: usize) -> Vec<f64> {
    // The first ones make connections and plans.
    for _ in 0..3 {
        api.run(group, json!({})).await;
    }
    let mut times = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        let run = api.run(group, json!({})).await;
        times.push(began.elapsed().as_secs_f64() * 1_000.0);
        assert_eq!(run["state"], "succeeded", "{run:#}");
    }
    times.sort_by(f64::total_cmp);
    times
}

fn at(times: &[f64], percent: usize) -> String {
    format!("{:.1}", times[(times.len() * percent / 100).min(times.len() - 1)])
}

/// How long it takes from a batch's POST to the end of its last run.
async fn batch(api: &Api) -> Duration {
    let runs: Vec<Value> = (0..BATCH)
        .map(|n| json!({"labels": {"batch": "b", "n": format!("{n}")}}))
        .collect();
    let began = Instant::now();
    api.post("/v1/groups/one/runs/batch", json!({"runs": runs})).await;
    loop {
        let stats = api.get("/v1/stats").await.expect_status(200);
        let states = ["waiting", "running", "paused"];
        let left: u64 = states
            .iter()
            .map(|state| stats["runs"][state].as_u64().unwrap_or(0))
            .sum();
        if left == 0 {
            return began.elapsed();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
