//! What each short way earns: `cargo bench -p heddle-tests --bench ways [WAY ...]`; without a name, all of them
//! (ARCHITECTURE.md, "Short ways next to general ways", has the list and the figures).
//!
//! For each way there are two nodes (`heddle serve`) with a database each: one takes all short ways, the other all but
//! this one. Both do the same work in turn, `HEDDLE_BENCH_ROUNDS` times (default 7), and the first one alternates, so
//! that other activity of the machine affects both. `HEDDLE_BENCH_PART` is the part of the work (default 1; 0.02 to see
//! that all of it works). A row has the median rate with the way and without it, and the median over the pairs of what
//! the way earns.
//!
//! Postgres has `synchronous_commit` and fsync on, and shares the machine with the nodes and the client that measures.

#![allow(clippy::too_many_lines, reason = "a benchmark tells its story from begin to end")]

use std::time::Duration;

use futures::{StreamExt, stream};
use heddle_client::{BackfillRequest, ClaimRequest, Client, MembersSpec, Submission};
use heddle_tests::TOKEN;
use heddle_tests::bench::{Fixture, Parts, Program, median, now};
use serde_json::{Value, json};

/// How many runs one request submits, and how many task runs one claims.
const BATCH: usize = 1_000;
const CLAIMED: usize = 100;
/// How many callers there are at once.
const CALLERS: usize = 32;

/// A node with a database of its own.
struct Node {
    client: Client,
    sql: tokio_postgres::Client,
    _program: Program,
}

impl Node {
    /// `without`: the short way that it leaves out.
    async fn start(fixture: &Fixture, name: &str, without: &str) -> Self {
        let url = fixture.database(name).await;
        let program = Program::serve(
            &url,
            &fixture.directory().join(name),
            &["--without-short-ways", without],
        );
        let client = Client::new(program.url(), Some(TOKEN)).expect("a client");
        let (sql, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .expect("a connection");
        tokio::spawn(connection);
        for name in ["hello", "postbox"] {
            let wasm = heddle_scripts::get(name).expect("the script");
            client.put_script(name, wasm, true).await.expect("upload");
        }
        let silent = br#"(module (memory (export "memory") 1) (func (export "_start")))"#;
        client
            .put_script("silent", silent.to_vec(), true)
            .await
            .expect("upload");
        Self {
            client,
            sql,
            _program: program,
        }
    }

    async fn put(&self, group: &str, task: Value) {
        let spec = json!({"tasks": {"t": task}});
        self.client.put_group(group, &spec, None).await.expect("a group");
    }

    async fn ended(&self) -> u64 {
        let stats: Value = self.client.get(&["v1", "stats"]).send().await.expect("stats");
        stats["node"]["runs_ended"].as_u64().expect("a number")
    }

    /// Submits so many runs of a group, in batches, some at once.
    async fn submit(&self, group: &str, runs: usize) {
        let body = |count: usize| json!({"runs": vec![json!({}); count]});
        let sizes = (0..runs).step_by(BATCH).map(|from| BATCH.min(runs - from));
        stream::iter(sizes)
            .for_each_concurrent(4, |size| async move {
                let answer: Value = self
                    .client
                    .post(&["v1", "groups", group, "runs", "batch"])
                    .json(&body(size))
                    .timeout(Duration::from_secs(120))
                    .send()
                    .await
                    .expect("accepted");
                assert_eq!(answer["accepted"], size);
            })
            .await;
    }

    /// Submits runs and waits for their ends.
    async fn run(&self, group: &str, runs: usize) {
        let wanted = self.ended().await + runs as u64;
        self.submit(group, runs).await;
        while self.ended().await < wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Claims so many task runs of a queue.
    async fn claim(&self, queue: &str, wanted: usize) {
        let left = std::sync::atomic::AtomicUsize::new(wanted);
        let worker = |number: usize| {
            let left = &left;
            async move {
                let request = ClaimRequest {
                    worker: format!("bench-{number}"),
                    max: Some(CLAIMED as i64),
                    lease: None,
                    wait: None,
                    tags: Vec::new(),
                };
                while left.load(std::sync::atomic::Ordering::Acquire) > 0 {
                    let wait = Duration::from_millis(200);
                    let claims = self.client.claim(queue, &request, wait).await.expect("claims");
                    left.fetch_sub(claims.len(), std::sync::atomic::Ordering::AcqRel);
                }
            }
        };
        futures::future::join_all((0..4).map(worker)).await;
    }
}

/// The measured work of a way: its name, its amount, and its preparation for all rounds.
struct Work {
    way: &'static str,
    what: &'static str,
    amount: usize,
}

/// In the order of the table in ARCHITECTURE.md.
const WORKS: [Work; 11] = [
    work("single_task_end", "single-task runs, submitted to ended", 20_000),
    work("plain_runs", "runs made, in batches", 20_000),
    work("plain_runs", "runs made, one a request, 32 at once", 4_000),
    work("backfill_step", "runs of a backfill with max_active 1", 300),
    work("begin_at_once", "single-task runs, submitted to ended", 20_000),
    work("begin_at_once", "single-task runs, one after another", 300),
    work("queued_at_once", "queued task runs, submitted to claimed", 10_000),
    work("plain_messages", "messages that are due, to a script", 200_000),
    work("quiet_poll", "polls of users with nothing to do", 10_000),
    work("lines_with_outcome", "runs that log a line, submitted to ended", 20_000),
    work(
        "follower_at_once",
        "runs of a group and of its follower, one after another",
        300,
    ),
];

const fn work(way: &'static str, what: &'static str, amount: usize) -> Work {
    Work { way, what, amount }
}

/// Done once for a node.
async fn prepare(node: &Node, work: &Work) {
    node.put("silent", json!({"script": "silent"})).await;
    // Only a group that keeps its history can be backfilled.
    let past = json!({"history": true, "tasks": {"t": {"script": "silent"}}});
    node.client.put_group("past", &past, None).await.expect("a group");
    node.put("hello", json!({"script": "hello", "params": {"name": "x"}}))
        .await;
    node.put("queued", json!({"queue": "q"})).await;
    if work.way == "follower_at_once" {
        let follower = json!({"depends_on": ["silent"], "tasks": {"t": {"script": "silent"}}});
        node.client
            .put_group("follower", &follower, None)
            .await
            .expect("a group");
    }
    if work.way == "quiet_poll" {
        let members = (0..1_000).map(|number| format!("u{number}")).collect();
        let members = MembersSpec { members };
        node.client.put_members("gid_all", &members).await.expect("members");
        let offer = json!({"kind": "once", "audience": "gid_all", "starts_at": "2100-01-01T00:00:00Z"});
        node.client.put_offer("later", &offer).await.expect("an offer");
    }
}

/// Does the work once; returns how much of it a second. The function is long because it is a table of the ways.
async fn measure(node: &Node, work: &Work, round: usize, amount: usize) -> f64 {
    let client = &node.client;
    let began;
    match (work.way, work.what) {
        ("single_task_end", _) | ("begin_at_once", "single-task runs, submitted to ended") => {
            began = now();
            node.run("silent", amount).await;
        }
        ("plain_runs", "runs made, in batches") => {
            let wanted = node.ended().await + amount as u64;
            began = now();
            node.submit("silent", amount).await;
            let made = began.elapsed();
            while node.ended().await < wanted {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            return amount as f64 / made.as_secs_f64();
        }
        ("plain_runs", _) => {
            let wanted = node.ended().await + amount as u64;
            began = now();
            stream::iter(0..amount)
                .for_each_concurrent(CALLERS, |_| async {
                    client.start_run("silent", &Submission::default()).await.expect("a run");
                })
                .await;
            let made = began.elapsed();
            while node.ended().await < wanted {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            return amount as f64 / made.as_secs_f64();
        }
        ("backfill_step", _) => {
            // Each round has years of its own: an instant has one run.
            let year = 1900 + 2 * round as i32;
            let day = |after: usize| {
                let first = chrono::NaiveDate::from_ymd_opt(year, 1, 1).expect("a day");
                format!("{}T00:00:00Z", first + chrono::Days::new(after as u64))
            };
            let request = json!({"from": day(0), "to": day(amount), "step": "1d", "max_active": 1});
            let request: BackfillRequest = serde_json::from_value(request).expect("a backfill");
            began = now();
            let started: Value =
                serde_json::to_value(client.backfill_group("past", &request).await.expect("a backfill")).expect("JSON");
            let id = started["id"].as_str().expect("an id").parse().expect("a UUID");
            while client.backfill(id).await.expect("the backfill").finished_at.is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        ("begin_at_once", _) => {
            began = now();
            for _ in 0..amount {
                let run = client.start_run("silent", &Submission::default()).await.expect("a run");
                client
                    .run_within(run.id, Duration::from_secs(60))
                    .await
                    .expect("its end");
            }
        }
        ("queued_at_once", _) => {
            began = now();
            node.submit("queued", amount).await;
            node.claim("q", amount).await;
            let took = began.elapsed();
            // Nothing of it is in the way of the next round.
            cancel_all(node).await;
            return amount as f64 / took.as_secs_f64();
        }
        ("plain_messages", _) => {
            let topic = format!("t{round}");
            let spec = |enabled: bool| json!({"script": "postbox", "granularity": "instant", "enabled": enabled});
            client.put_topic(&topic, &spec(false)).await.expect("a topic");
            let line = |number: usize| {
                let sender = (number as u64 * 2_654_435_761) & 0xffff_ffff;
                let message = json!({"sender": sender, "receiver": 1, "due": "2013-07-01T00:00:00Z", "payload": {}});
                std::io::Result::Ok(bytes::Bytes::from(format!("{message}\n")))
            };
            let lines = stream::iter(0..amount).map(line);
            client.send_message_stream(&topic, lines).await.expect("taken");
            began = now();
            client.put_topic(&topic, &spec(true)).await.expect("a topic");
            while sent(node, &topic).await < amount as i64 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        ("quiet_poll", _) => {
            let poll = |number: usize| async move {
                let uid = format!("u{}", number % 1_000);
                let given = client.next_assignment(&uid, Duration::ZERO).await.expect("an answer");
                assert!(given.is_none());
            };
            began = now();
            stream::iter(0..amount).for_each_concurrent(CALLERS, poll).await;
        }
        ("lines_with_outcome", _) => {
            began = now();
            node.run("hello", amount).await;
        }
        ("follower_at_once", _) => {
            began = now();
            for _ in 0..amount {
                let wanted = node.ended().await + 2;
                client.start_run("silent", &Submission::default()).await.expect("a run");
                while node.ended().await < wanted {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
        (way, _) => panic!("{way} is not measured"),
    }
    amount as f64 / began.elapsed().as_secs_f64()
}

/// How many messages of a topic have been sent. Read past the node, whose time is what is measured.
async fn sent(node: &Node, topic: &str) -> i64 {
    let statement = "SELECT coalesce(sum(o.sent), 0)::bigint FROM heddle.message_outcomes o
                      WHERE o.topic = (SELECT id FROM heddle.topics WHERE name = $1)";
    node.sql.query_one(statement, &[&topic]).await.expect("counts").get(0)
}

async fn cancel_all(node: &Node) {
    let bulk = json!({"filter": {"group": "queued", "state": "running"}, "action": "cancel"});
    loop {
        let answer: Value = node
            .client
            .post(&["v1", "runs", "bulk"])
            .json(&bulk)
            .timeout(Duration::from_secs(120))
            .send()
            .await
            .expect("cancelled");
        if answer["matched"].as_u64().unwrap_or(0) == 0 {
            return;
        }
    }
}

#[tokio::main]
async fn main() {
    let number = |name: &str, default: f64| std::env::var(name).map_or(default, |text| text.parse().expect("a number"));
    let rounds = number("HEDDLE_BENCH_ROUNDS", 7.0) as usize;
    let part = number("HEDDLE_BENCH_PART", 1.0);
    let parts = Parts::asked();
    let fixture = Fixture::new().await;
    println!("| short way | what, a second | with it | without it | it earns |\n|---|---|---|---|---|");
    for (number, work) in WORKS.iter().enumerate() {
        if !parts.contain(work.way) {
            continue;
        }
        let amount = ((work.amount as f64 * part) as usize).max(1);
        let (one, other) = (format!("with_{number}"), format!("without_{number}"));
        let with = Node::start(&fixture, &one, "").await;
        let without = Node::start(&fixture, &other, work.way).await;
        for node in [&with, &without] {
            prepare(node, work).await;
            // First-time costs (plans, partitions, code) are paid before the measurement.
            measure(node, work, rounds, amount.div_ceil(10)).await;
        }
        let (mut rates, mut earned) = ((Vec::new(), Vec::new()), Vec::new());
        for round in 0..rounds {
            let (a, b) = if round % 2 == 0 {
                let a = measure(&with, work, round, amount).await;
                (a, measure(&without, work, round, amount).await)
            } else {
                let b = measure(&without, work, round, amount).await;
                (measure(&with, work, round, amount).await, b)
            };
            rates.0.push(a);
            rates.1.push(b);
            earned.push(a / b - 1.0);
        }
        println!(
            "| {} | {} | {:.0} | {:.0} | {:+.0} % |",
            work.way,
            work.what,
            median(rates.0),
            median(rates.1),
            100.0 * median(earned)
        );
    }
    fixture.end().await;
}
