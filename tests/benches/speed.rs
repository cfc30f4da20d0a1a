//! How fast Heddle is, each figure beside its limit measured in the same run: `cargo bench -p heddle-tests`.
//!
//! A node (`heddle serve`, release build) and a Postgres with `synchronous_commit` and fsync on share this machine with
//! the client that measures. Limits: the bare wasm loop of the same engine (`runner/sandbox/examples/bare_loop.rs`), and
//! the same SQL statements sent by a bare client. Nothing is asserted; `docs/benchmarks.md` keeps what was measured.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use heddle_client::Client;
use heddle_domain::Time;
use heddle_domain::id::{RunId, uuid_v7};
use heddle_domain::plan::Plan;
use heddle_domain::run::{AttemptKey, Event, Outcome, Progress, TaskKey, decide};
use heddle_domain::state::{AttemptState, RunState};
use heddle_store::Store;
use heddle_store::change::By;
use heddle_store::group::GroupWrite;
use heddle_store::live::{AttemptRow, NewRun, ReadyRow, Room, SingleTaskEnd};
use heddle_store::node::NewNode;
use heddle_tests::TOKEN;
use heddle_tests::bench::{Fixture, Program, now, once, percentile, program, until_python_is_ready};
use serde_json::{Value, json};

/// How many single-task runs are submitted, for the rate before and the rate after.
const RUNS_FIRST: usize = 100_000;
const RUNS_TOTAL: usize = 300_000;
/// How many of them one request submits.
const BATCH: usize = 5_000;

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn wall() -> Time {
    chrono::Utc::now()
}

#[derive(Debug)]
struct Wall;

impl heddle_domain::Clock for Wall {
    fn now(&self) -> Time {
        heddle_domain::clock::to_micros(wall())
    }
}

#[expect(clippy::disallowed_methods, reason = "runs of a benchmark need distinct ids only")]
fn bits() -> u128 {
    uuid::Uuid::new_v4().as_u128()
}

fn row(what: &str, figure: String, wanted: &str, limit: String) {
    println!("| {what:<52} | {figure:>22} | {wanted:>16} | {limit:<44} |");
}

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    println!(
        "| {:<52} | {:>22} | {:>16} | {:<44} |",
        "what", "measured", "wanted", "limit in the same run"
    );
    println!("|{:-<54}|{:-<24}|{:-<18}|{:-<46}|", "", "", "", "");
    start_of_dev(&directory.path().join("dev"));
    tokio::runtime::Runtime::new().expect("a runtime").block_on(measure());
}

fn start_of_dev(directory: &Path) {
    let start = || {
        let mut command = Command::new(program());
        command.args(["dev", "--listen", "127.0.0.1:0", "--data-dir"]);
        Program::start(command.arg(directory))
    };
    let first = start();
    let cold = first.started_in();
    until_python_is_ready(directory);
    first.stop();
    let second = start();
    let warm = second.started_in();
    std::thread::sleep(Duration::from_secs(5));
    let before = second.processor_time();
    std::thread::sleep(Duration::from_secs(20));
    let share = 100.0 * (second.processor_time() - before) / 20.0;
    let (resident, _) = second.memory();
    second.stop();
    let ms = |time: Duration| format!("{:.0} ms", time.as_secs_f64() * 1e3);
    row(
        "start of dev, existing cluster, to ready",
        ms(warm),
        "< 2,000 ms",
        format!("first start ever: {}", ms(cold)),
    );
    row(
        "idle node, share of a core",
        format!("{share:.2} %"),
        "< 1 %",
        String::new(),
    );
    row(
        "idle node, resident",
        format!("{resident:.1} MB"),
        "< 60 MB",
        String::new(),
    );
}

async fn measure() {
    let fixture = Fixture::new().await;
    let node = fixture.serve();
    let client = Client::new(node.url(), Some(TOKEN)).expect("a client");
    for name in ["hello", "echo"] {
        client
            .put_script(name, heddle_scripts::get(name).expect("the script"), true)
            .await
            .expect("upload");
    }
    let bare = Bare::new(&fixture.empty_database("bare").await).await;
    latencies(&client, &bare).await;
    beside_spinners(&client).await;
    throughput(&client, &bare).await;
    wasm_limit();
    node.stop();
    fixture.end().await;
}

async fn put(client: &Client, name: &str, tasks: Value) {
    client
        .put_group(name, &json!({"tasks": tasks}), None)
        .await
        .expect("a group");
}

/// From POST to the end, in milliseconds.
async fn once_ms(client: &Client, group: &str) -> f64 {
    once(client, group).await * 1e3
}

async fn latencies(client: &Client, bare: &Bare) {
    let task = |needs: Vec<String>| json!({"script": "hello", "params": {"name": "x"}, "depends_on": needs});
    put(client, "one", json!({"t": task(vec![])})).await;
    let name = |index: usize| format!("t{index:02}");
    let chain: serde_json::Map<String, Value> = (0..40)
        .map(|index| {
            (
                name(index),
                task(if index == 0 { vec![] } else { vec![name(index - 1)] }),
            )
        })
        .collect();
    put(client, "chain", chain.into()).await;
    let mut fan = serde_json::Map::new();
    fan.insert("first".into(), task(vec![]));
    for index in 0..100 {
        fan.insert(format!("m{index:03}"), task(vec!["first".into()]));
    }
    fan.insert(
        "last".into(),
        task((0..100).map(|index| format!("m{index:03}")).collect()),
    );
    put(client, "fan", fan.into()).await;
    put(client, "map", json!({"m": {"script": "echo", "shards": 10_000}})).await;
    let round = bare.rounds(200).await;
    let cases = [
        ("single-task run, POST to end", "one", 500, "p50 < 5 ms", 1.0),
        ("40 sequential tasks", "chain", 30, "< 150 ms", 40.0),
        ("1 -> 100 -> 1", "fan", 30, "< 100 ms", 3.0),
        ("mapped task of 10,000 items", "map", 5, "< 2,000 ms", 0.0),
    ];
    for (what, group, times, wanted, commits) in cases {
        let mut samples = Vec::with_capacity(times);
        for _ in 0..times {
            samples.push(once_ms(client, group).await);
        }
        let limit = if commits > 0.0 {
            format!(
                "{:.1} ms: its {commits:.0} create+complete from a bare client",
                round * commits
            )
        } else {
            "see batches below".to_owned()
        };
        let figure = format!(
            "{:.1} / {:.1} ms",
            percentile(&mut samples, 0.5),
            percentile(&mut samples, 0.99)
        );
        row(&format!("{what} (p50 / p99 of {times})"), figure, wanted, limit);
    }
}

/// Light runs alone, then beside endless loops: nothing that a script does may slow another's start by more than 2x.
async fn beside_spinners(client: &Client) {
    let spin = b"(module (memory (export \"memory\") 1) (func (export \"_start\") (loop $l (br $l))))";
    client.put_script("spin", spin.to_vec(), true).await.expect("upload");
    put(client, "spin", json!({"t": {"script": "spin", "timeout": "300s"}})).await;
    let mut alone = None;
    for spinners in [0, 16, 64] {
        if spinners > 0 {
            for _ in 0..spinners {
                let _: Value = client
                    .post(&["v1", "groups", "spin", "runs"])
                    .json(&json!({}))
                    .send()
                    .await
                    .expect("accepted");
            }
            while in_hand(client).await != spinners {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        let mut samples = Vec::new();
        for _ in 0..300 {
            samples.push(once_ms(client, "one").await);
        }
        let p50 = percentile(&mut samples, 0.5);
        let limit = alone.map_or(String::new(), |alone: f64| {
            format!("{:.2} x as long as alone", p50 / alone)
        });
        row(
            &format!("the same beside {spinners} endless loops (p50 / p99 of 300)"),
            format!("{p50:.1} / {:.1} ms", percentile(&mut samples, 0.99)),
            "<= 2 x alone",
            limit,
        );
        alone.get_or_insert(p50);
        let _: Value = client
            .post(&["v1", "runs", "bulk"])
            .json(&json!({"filter": {"group": "spin"}, "action": "cancel"}))
            .send()
            .await
            .expect("cancelled");
        while in_hand(client).await != 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn in_hand(client: &Client) -> u64 {
    let stats: Value = client.get(&["v1", "stats"]).send().await.expect("stats");
    stats["node"]["in_hand"].as_u64().expect("a number")
}

async fn ended(client: &Client) -> usize {
    let stats: Value = client.get(&["v1", "stats"]).send().await.expect("stats");
    stats["node"]["runs_ended"].as_u64().expect("a number") as usize
}

async fn throughput(client: &Client, bare: &Bare) {
    let base = ended(client).await;
    let body = json!({"runs": vec![json!({}); BATCH]});
    let limit = bare.batches(50, 1_000).await;
    let mut done = 0;
    for (what, until) in [
        ("single-task runs in batches, first 100,000", RUNS_FIRST),
        ("the same, after that to 300,000", RUNS_TOTAL),
    ] {
        let began = now();
        let batches = (until - done) / BATCH;
        let submitters = (0..4).map(|worker| {
            let body = &body;
            async move {
                for _ in (worker..batches).step_by(4) {
                    let answer: Value = client
                        .post(&["v1", "groups", "one", "runs", "batch"])
                        .json(body)
                        .timeout(Duration::from_secs(120))
                        .send()
                        .await
                        .expect("accepted");
                    assert_eq!(answer["accepted"], BATCH);
                }
            }
        });
        futures::future::join_all(submitters).await;
        let submitted = began.elapsed();
        while ended(client).await < base + until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let runs = (until - done) as f64;
        let figure = format!("{:.0} runs/s", runs / began.elapsed().as_secs_f64());
        let wanted = if done == 0 { ">= 10,000/s" } else { "no slower" };
        let limit = format!("{limit:.0}/s: the same SQL from a bare client");
        row(
            &format!("{what} (accepted {:.0}/s)", runs / submitted.as_secs_f64()),
            figure,
            wanted,
            limit,
        );
        done = until;
    }
}

fn wasm_limit() {
    let wasm = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(wasm.path(), heddle_scripts::get("hello").expect("the script")).expect("written");
    let output = Command::new(env!("CARGO"))
        .args([
            "run",
            "--release",
            "-q",
            "-p",
            "heddle-sandbox",
            "--example",
            "bare_loop",
            "--",
        ])
        .args([wasm.path().to_str().expect("a path"), r#"{"name":"x"}"#])
        .output()
        .expect("the bare loop");
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        row(line, String::new(), "", "limit: wasm alone".into());
    }
}

/// The statements that a single-task run costs, sent by a client that does nothing else.
struct Bare {
    store: Store,
    lease: i64,
    node: uuid::Uuid,
    progress: (Vec<u8>, Vec<u8>),
}

impl Bare {
    async fn new(url: &str) -> Self {
        let store = Store::connect(url, 4).await.expect("a connection");
        store.migrate().await.expect("the schema");
        let node = uuid::Uuid::from_u128(bits());
        let registered = NewNode {
            id: node,
            name: "bare",
            address: "",
            version: "",
            slots: 1,
            lease_for: chrono::TimeDelta::hours(1),
            warming: false,
        };
        let registered = store.register_node(registered, None).await;
        let lease = registered.expect("an answer").expect("a lease").lease;
        // The first of each, in an empty database: what its runs name.
        let by = By {
            actor: "bench",
            at: heddle_domain::clock::to_micros(wall()),
        };
        let spec = json!({"tasks": {}});
        let group = GroupWrite {
            name: "bare",
            spec: &spec,
            category: None,
            links: &[],
            scripts: &[],
            enabled: None,
            if_match: None,
            begins_anew: false,
        };
        store.put_group(by, group).await.expect("a group");
        let resolution = store.resolution(1, &json!({})).await;
        assert_eq!(resolution.expect("a resolution"), 1);
        let spec = serde_json::from_value(json!({"tasks": {"t": {"script": "hello"}}})).expect("a spec");
        let plan = Plan::compile(spec).expect("a plan");
        let (mut state, mut progress) = (RunState::Waiting, Progress::new(&plan));
        decide(&plan, &mut state, &mut progress, &[Event::Start], wall(), &mut || 0).expect("a start");
        let start = progress.to_bytes().expect("bytes of a progress");
        let at = AttemptKey {
            key: TaskKey::whole(0),
            attempt: 1,
        };
        let end = Event::Ended {
            at,
            outcome: Outcome::Succeeded { output_bytes: 2 },
        };
        decide(&plan, &mut state, &mut progress, &[end], wall(), &mut || 0).expect("an end");
        Self {
            store,
            lease,
            node,
            progress: (start, progress.to_bytes().expect("bytes of a progress")),
        }
    }

    fn run(&self) -> NewRun {
        let at = heddle_domain::clock::to_micros(wall());
        let room = Room {
            free: 1,
            share: 1,
            backlog: false,
        };
        let first = AttemptKey {
            key: TaskKey::whole(0),
            attempt: 1,
        };
        let mut ready = ReadyRow::new(first, 1, None);
        ready.hand(&mut room.grant());
        NewRun {
            resolution_id: Some(1),
            progress: self.progress.0.clone(),
            ready: vec![ready],
            ..NewRun::plain(RunId(uuid_v7(at, bits())), 1, at)
        }
    }

    async fn round(&self, runs: &[NewRun]) {
        let all: Vec<&NewRun> = runs.iter().collect();
        self.store
            .create_plain_runs(&all, self.lease, &Wall)
            .await
            .expect("created");
        let rows: Vec<SingleTaskEnd> = runs
            .iter()
            .map(|run| SingleTaskEnd {
                attempt: AttemptRow {
                    run: run.id,
                    at: run.ready[0].at,
                    state: AttemptState::Succeeded,
                    skipped: false,
                    started_at: run.created_at,
                    finished_at: wall(),
                    node: Some(self.node),
                    worker: None,
                    output: Some(r#"{"greeting":"Hello, x!"}"#.into()),
                    error: None,
                    memory_bytes: Some(1_114_112),
                    cpu_micros: Some(30),
                },
                state: RunState::Succeeded,
                progress: self.progress.1.clone(),
                error: None,
            })
            .collect();
        let (owned, _) = self
            .store
            .complete_single_task(&rows.iter().collect::<Vec<_>>(), &[], self.lease, self.node)
            .await
            .expect("completed");
        assert_eq!(owned.len(), runs.len());
    }

    /// The median of create + complete of one run, in milliseconds.
    async fn rounds(&self, times: usize) -> f64 {
        let mut samples = Vec::with_capacity(times);
        for _ in 0..times {
            let began = now();
            self.round(&[self.run()]).await;
            samples.push(began.elapsed().as_secs_f64() * 1e3);
        }
        percentile(&mut samples, 0.5)
    }

    /// Runs per second, in batches.
    async fn batches(&self, times: usize, batch: usize) -> f64 {
        let began = now();
        for _ in 0..times {
            let runs: Vec<NewRun> = (0..batch).map(|_| self.run()).collect();
            self.round(&runs).await;
        }
        (times * batch) as f64 / began.elapsed().as_secs_f64()
    }
}
