//! The cost of faults: `cargo bench -p heddle-tests --bench faults`.
//!
//! Three nodes on a Postgres with Debian's settings, each behind a wire of its own that adds 0.5 ms in each direction;
//! clients submit runs of two tasks, with keys, to all of them at a steady pace. First nothing happens for a while: no
//! node may lose its lease. Then one fault follows the other, and for each is measured how long after its end a new run
//! gets through the node that was struck, and all runs accepted until then have ended. In the end every accepted run has to
//! be there, with each of its tasks succeeded once.
//!
//! `HEDDLE_BENCH_QUIET` is how many seconds nothing happens at first (default 600), `HEDDLE_BENCH_ROUNDS` how often each
//! fault is made (default 6), `HEDDLE_BENCH_FAULTS` which ones are (such as `Forgotten,Crashed`; default all).
//! `docs/benchmarks.md` keeps what was measured.

#![allow(clippy::too_many_lines, reason = "a benchmark tells its story from begin to end")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use heddle_tests::{Api, Node, NodeOptions, Wire, World};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::Instant;

const NODES: usize = 3;
const WAY: Duration = Duration::from_micros(500);
/// Each client of a node waits so long between two submissions.
const PACE: Duration = Duration::from_millis(50);
/// `RunState::Succeeded`, as it is stored.
const SUCCEEDED: i16 = 3;
/// The longest that is waited for a recovery.
const RECOVERY_MAX: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// SIGKILL; the node is started again at once.
    Killed,
    /// SIGTERM; it is started again when it has ended.
    Stopped,
    /// SIGSTOP for a while that a lease outlasts.
    FrozenShortly,
    /// SIGSTOP for longer than a lease.
    FrozenLong,
    /// Its connections are closed.
    Closed,
    /// Its connections are half open: nothing gets through them any more.
    Forgotten,
    /// Nothing gets through for a while that a lease outlasts.
    CutShortly,
    /// Nothing gets through for longer than a lease.
    CutLong,
    /// Postgres refuses connections of all nodes.
    Refused,
    /// A backend of Postgres is killed, so that the whole server starts anew from its log.
    Crashed,
    /// 80 ms more in each direction, for all nodes.
    Slow,
}

impl Fault {
    const ALL: [Self; 11] = [
        Self::Killed,
        Self::Stopped,
        Self::FrozenShortly,
        Self::FrozenLong,
        Self::Closed,
        Self::Forgotten,
        Self::CutShortly,
        Self::CutLong,
        Self::Refused,
        Self::Crashed,
        Self::Slow,
    ];

    fn words(self) -> &'static str {
        match self {
            Self::Killed => "a node killed (SIGKILL) and started again",
            Self::Stopped => "a node stopped (SIGTERM) and started again",
            Self::FrozenShortly => "a node frozen for 3 s",
            Self::FrozenLong => "a node frozen for 12 s (its lease is dead)",
            Self::Closed => "a node's connections closed",
            Self::Forgotten => "a node's connections half open",
            Self::CutShortly => "a node without its database for 3 s",
            Self::CutLong => "a node without its database for 12 s (its lease is dead)",
            Self::Refused => "no node has its database for 5 s",
            Self::Crashed => "Postgres crashes",
            Self::Slow => "80 ms each way for 10 s, for all",
        }
    }

    /// Whether somebody's lease may be lost by it.
    fn kills_leases(self) -> bool {
        matches!(self, Self::FrozenLong | Self::CutLong)
    }
}

struct Cluster {
    world: World,
    wires: Vec<Wire>,
    nodes: Vec<Mutex<Node>>,
    /// How to talk to them; who starts anew listens elsewhere.
    apis: Vec<Mutex<Api>>,
    accepted: Mutex<Vec<String>>,
    /// Submissions without an answer, or refused with 5xx.
    unanswered: AtomicU64,
    stop: AtomicBool,
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

#[tokio::main]
async fn main() {
    let cluster = Cluster::start().await;
    let clients: Vec<_> = (0..NODES)
        .map(|node| tokio::spawn(Arc::clone(&cluster).submit(node)))
        .collect();
    let quiet = setting("HEDDLE_BENCH_QUIET", 600);
    tokio::time::sleep(Duration::from_secs(quiet)).await;
    println!(
        "{NODES} nodes, {quiet} s without a fault: {} runs accepted, leases lost: {}\n",
        cluster.accepted.lock().await.len(),
        cluster.leases_lost().await,
    );
    let rounds = setting("HEDDLE_BENCH_ROUNDS", 6) as usize;
    println!("| fault | recovery in s: p50, p95, longest of {rounds} | leases lost |");
    println!("|---|---|---|");
    let mut all = Vec::new();
    let wanted = std::env::var("HEDDLE_BENCH_FAULTS").unwrap_or_default();
    let is_wanted = |fault: &Fault| wanted.is_empty() || wanted.split(',').any(|name| name == format!("{fault:?}"));
    for fault in Fault::ALL.into_iter().filter(is_wanted) {
        let before = cluster.leases_lost().await;
        let mut taken = Vec::with_capacity(rounds);
        for round in 0..rounds {
            taken.push(cluster.strike(fault, round % NODES).await);
        }
        let lost = cluster.leases_lost().await.saturating_sub(before);
        if !fault.kills_leases() {
            all.extend_from_slice(&taken);
        }
        println!("| {} | {} | {lost} |", fault.words(), spread(&mut taken));
    }
    println!("| all but dead leases | {} | |", spread(&mut all));
    cluster.stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("a client");
    }
    cluster.report().await;
}

fn spread(samples: &mut [f64]) -> String {
    samples.sort_by(f64::total_cmp);
    let at = |share: usize| samples[(samples.len() * share).div_ceil(100).max(1) - 1];
    format!("{:.1}, {:.1}, {:.1}", at(50), at(95), at(100))
}

impl Cluster {
    async fn start() -> Arc<Self> {
        let world = World::stock().await;
        let (mut wires, mut nodes, mut apis) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..NODES {
            let wire = Wire::new(world.url()).await;
            wire.delay(WAY);
            let node = options(&world, &wire, number).start().await;
            apis.push(Mutex::new(node.api().clone()));
            nodes.push(Mutex::new(node));
            wires.push(wire);
        }
        let tasks = json!({"a": {"script": "hello"}, "b": {"script": "hello", "depends_on": ["a"]}});
        nodes[0].lock().await.put_group("pair", json!({"tasks": tasks})).await;
        Arc::new(Self {
            world,
            wires,
            nodes,
            apis,
            accepted: Mutex::default(),
            unanswered: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        })
    }

    /// A client of one node.
    async fn submit(self: Arc<Self>, node: usize) {
        let mut number = 0;
        while !self.stop.load(Ordering::Relaxed) {
            number += 1;
            let api = self.apis[node].lock().await.clone();
            let sent = api.try_post("/v1/groups/pair/runs", json!({"key": format!("{node}-{number}")}));
            match tokio::time::timeout(Duration::from_secs(30), sent).await {
                Ok(Some(reply)) if reply.status == 202 => {
                    self.accepted.lock().await.push(heddle_tests::id(&reply.body));
                }
                _ => drop(self.unanswered.fetch_add(1, Ordering::Relaxed)),
            }
            tokio::time::sleep(PACE).await;
        }
    }

    async fn leases_lost(&self) -> u64 {
        let mut lost = 0;
        for api in &self.apis {
            let api = api.lock().await.clone();
            let reply = api.try_get("/metrics").await;
            let found = reply.and_then(|reply| {
                let text = reply.body.as_str()?.to_owned();
                let line = text
                    .lines()
                    .find_map(|line| line.strip_prefix("heddle_leases_lost_total "))?;
                line.parse::<f64>().ok()
            });
            lost += found.unwrap_or_default() as u64;
        }
        lost
    }

    /// Makes a fault, and says how many seconds after its end everything was as before.
    async fn strike(&self, fault: Fault, struck: usize) -> f64 {
        let sleep = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
        let wire = &self.wires[struck];
        let mut node = self.nodes[struck].lock().await;
        match fault {
            Fault::Killed => {
                node.kill();
                self.begin_anew(&mut node, struck).await;
            }
            Fault::Stopped => {
                node.terminate();
                node.end().await;
                self.begin_anew(&mut node, struck).await;
            }
            Fault::FrozenShortly | Fault::FrozenLong => {
                node.freeze();
                sleep(if fault.kills_leases() { 12 } else { 3 }).await;
                node.thaw();
            }
            Fault::Closed => wire.close(),
            Fault::Forgotten => wire.forget(),
            Fault::CutShortly | Fault::CutLong => {
                wire.cut();
                sleep(if fault.kills_leases() { 12 } else { 3 }).await;
                wire.mend();
            }
            Fault::Refused => {
                self.wires.iter().for_each(Wire::refuse);
                sleep(5).await;
                self.wires.iter().for_each(Wire::accept);
            }
            Fault::Crashed => {
                let sql = self.world.sql().await;
                let row = sql.query_one("SELECT pg_backend_pid()", &[]).await.expect("a backend");
                let pid = rustix::process::Pid::from_raw(row.get(0)).expect("its number");
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("its end");
            }
            Fault::Slow => {
                self.wires.iter().for_each(|wire| wire.delay(Duration::from_millis(80)));
                sleep(10).await;
                self.wires.iter().for_each(|wire| wire.delay(WAY));
            }
        }
        drop(node);
        let over = Instant::now();
        let until = self.accepted.lock().await.len();
        let api = self.apis[struck].lock().await.clone();
        let deadline = over + RECOVERY_MAX;
        let mut through = None;
        while through.is_none() && Instant::now() < deadline {
            let sent = api.try_post("/v1/groups/pair/runs", json!({}));
            through = match tokio::time::timeout(Duration::from_secs(10), sent).await {
                Ok(Some(reply)) if reply.status == 202 => Some(heddle_tests::id(&reply.body)),
                _ => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    None
                }
            };
        }
        let through = through.unwrap_or_else(|| panic!("{fault:?}: node {struck} takes no runs for {RECOVERY_MAX:?}"));
        let mut waited: Vec<String> = {
            let mut accepted = self.accepted.lock().await;
            accepted.push(through.clone());
            let from = until.saturating_sub(2_000);
            accepted[from..until].iter().cloned().chain([through]).collect()
        };
        let sql = self.world_sql().await;
        loop {
            let rows = sql
                .query(
                    "SELECT id::text FROM unnest($1::text[]) AS wanted (text), LATERAL (
                         SELECT id FROM heddle.runs_done WHERE id = wanted.text::uuid) AS done",
                    &[&waited],
                )
                .await
                .expect("runs that have ended");
            let ended: std::collections::HashSet<String> = rows.iter().map(|row| row.get(0)).collect();
            waited.retain(|run| !ended.contains(run));
            if waited.is_empty() {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "{fault:?}: {} runs do not end: {waited:?}",
                waited.len()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let took = over.elapsed().as_secs_f64();
        // The next one comes when this is long over.
        tokio::time::sleep(Duration::from_secs(2)).await;
        took
    }

    /// The database, once it takes connections again.
    async fn world_sql(&self) -> tokio_postgres::Client {
        loop {
            match tokio_postgres::connect(self.world.url(), tokio_postgres::NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    return client;
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    async fn begin_anew(&self, node: &mut Node, number: usize) {
        *node = options(&self.world, &self.wires[number], number).start().await;
        *self.apis[number].lock().await = node.api().clone();
    }

    /// What became of all that was accepted.
    async fn report(&self) {
        let accepted = self.accepted.lock().await.clone();
        let sql = self.world_sql().await;
        let started = Instant::now();
        let (mut finished, mut wrong) = (0, 0);
        for part in accepted.chunks(1_000) {
            loop {
                let row = sql
                    .query_one(
                        "SELECT count(*), count(*) FILTER (WHERE state <> $2)
                           FROM unnest($1::text[]) AS wanted (text), LATERAL (
                               SELECT state FROM heddle.runs_done WHERE id = wanted.text::uuid) AS done",
                        &[&part, &SUCCEEDED],
                    )
                    .await
                    .expect("runs that have ended");
                let (ended, other): (i64, i64) = (row.get(0), row.get(1));
                if ended as usize == part.len() || started.elapsed() > RECOVERY_MAX {
                    finished += ended;
                    wrong += other;
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
        let doubled: i64 = sql
            .query_one(
                "SELECT count(*) FROM (
                     SELECT 1 FROM heddle.attempts WHERE state = 1 GROUP BY run, task, item HAVING count(*) > 1) AS twice",
                &[],
            )
            .await
            .expect("attempts")
            .get(0);
        println!(
            "\naccepted {}, finished {finished}, of these not succeeded {wrong}, lost {}, task runs that succeeded twice {doubled}, \
             submissions without 202: {}",
            accepted.len(),
            accepted.len() as i64 - finished,
            self.unanswered.load(Ordering::Relaxed),
        );
    }
}

fn options(world: &World, wire: &Wire, number: usize) -> NodeOptions {
    let directory = world.directory().join(format!("node-{number}"));
    NodeOptions::new(wire.url()).data_dir(&directory)
}
