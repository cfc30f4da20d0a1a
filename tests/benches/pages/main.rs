//! How fast what is kept can be looked at: `cargo bench -p heddle-tests --bench pages [api] [pages] [open] [paint] [loaded]`;
//! without a name, all.
//!
//! A database is filled with a million runs of sixty days in ten thousand groups, and a group of a thousand tasks with a
//! hundred runs (`history.sql`; `HEDDLE_BENCH_RUNS` says how many runs). Runs of each kind are made by a node first, and
//! multiplied. `HEDDLE_BENCH_DATABASE` names a database to use instead of a Postgres of this benchmark's own; one that has
//! such a history is not filled again.
//!
//! * `api`: lists, the feed, counts, a run of a thousand tasks. `pages`: first byte and bytes, compressed, of each page.
//! * `open`: what five hundred open pages cost the node, while nothing happens and at full load.
//! * `paint`: largest contentful paint and layout shift in headless Chromium, if there is one.
//! * `loaded`: first byte of some pages at full load.
//!
//! A node (`heddle serve`, release build) and a Postgres with `synchronous_commit` and fsync on share this machine with
//! the client that measures. Nothing is asserted; `docs/benchmarks.md` keeps what was measured.

#[path = "../../browser/chrome.rs"]
#[expect(dead_code, reason = "the tests of the pages press and drag, this one looks")]
mod chrome;

use std::time::Duration;

use futures::StreamExt;
use heddle_tests::bench::{Fixture, Parts, memory, now, percentile, processor_time};
use heddle_tests::{Node, NodeOptions, TOKEN, eventually};
use reqwest::Method;
use serde_json::json;

/// How many runs are kept, unless `HEDDLE_BENCH_RUNS` says so.
const RUNS: u64 = 1_000_000;
const GROUPS: u64 = 10_000;
const DAYS: u64 = 60;

/// How often each is asked for.
const TIMES: usize = 40;

/// Pages that are open at once, half of them the overview, half of them runs.
const OPEN: usize = 500;

/// For how long the node is watched with and without them.
const WATCHED: Duration = Duration::from_secs(20);

/// Runs in one submission while the node is fully loaded.
const BATCH: usize = 1_000;

fn row(what: &str, figures: [&str; 4]) {
    let [first, second, third, wanted] = figures;
    println!("| {what:<44} | {first:>16} | {second:>16} | {third:>16} | {wanted:<28} |");
}

/// The head of a table, in Markdown.
fn head(what: &str, figures: [&str; 4]) {
    row(what, figures);
    println!("|{0:-<46}|{0:->18}|{0:->18}|{0:->18}|{0:-<30}|", "");
}

#[tokio::main]
async fn main() {
    let parts = Parts::asked();
    let fixture = match std::env::var("HEDDLE_BENCH_DATABASE") {
        Ok(url) => Fixture::at(url).await,
        Err(_) => Fixture::new().await,
    };
    let options = NodeOptions::new(fixture.url()).data_dir(&fixture.directory().join("node"));
    let mut node = options.start().await;
    let known = fill(&fixture, &node).await;
    if parts.contain("api") {
        api(&node, &known).await;
    }
    if parts.contain("pages") {
        pages(&node, &known).await;
    }
    if parts.contain("open") {
        open(&mut node, &known).await;
    }
    if parts.contain("paint") {
        paint(&node, &known).await;
    }
    if parts.contain("loaded") {
        loaded(&node, &known).await;
    }
    node.terminate();
    node.end().await;
}

/// What of the history is asked for by name.
struct Known {
    /// The newest run of a thousand tasks.
    wide: String,
    /// A run that failed.
    failed: String,
    key: String,
    /// A cursor in the middle of the feed.
    cursor: String,
    /// Runs that wait for a worker, and runs that have ended.
    runs: Vec<String>,
}

/// Fills the database, unless it is, and finds what is asked for by name.
async fn fill(fixture: &Fixture, node: &Node) -> Known {
    let sql = fixture.sql().await;
    let filled: bool = sql
        .query_one(
            "SELECT EXISTS (SELECT FROM heddle.groups WHERE name = 'shop-00001')",
            &[],
        )
        .await
        .expect("an answer")
        .get(0);
    if !filled {
        patterns(node).await;
        let began = now();
        let runs = std::env::var("HEDDLE_BENCH_RUNS").map_or(RUNS, |text| text.parse().expect("a number"));
        sql.batch_execute(&format!(
            "SET bench.runs = {runs}; SET bench.groups = {GROUPS}; SET bench.days = {DAYS}; SET work_mem = '256MB'"
        ))
        .await
        .expect("settings");
        sql.batch_execute(include_str!("history.sql")).await.expect("a history");
        sql.batch_execute("VACUUM ANALYZE").await.expect("vacuumed");
        println!("{runs} runs were written in {:.0} s\n", began.elapsed().as_secs_f64());
    }
    let text = async |statement: &str| -> String { sql.query_one(statement, &[]).await.expect(statement).get(0) };
    let runs = sql
        .query(
            "(SELECT id::text FROM heddle.runs_live ORDER BY id DESC LIMIT 25)
             UNION ALL (SELECT id::text FROM heddle.runs_done ORDER BY id DESC LIMIT 25)",
            &[],
        )
        .await
        .expect("runs");
    Known {
        wide: text(
            "SELECT d.id::text FROM heddle.groups g JOIN heddle.runs_done d ON d.group_id = g.id
              WHERE g.name = 'wide' ORDER BY d.id DESC LIMIT 1",
        )
        .await,
        failed: text("SELECT id::text FROM heddle.runs_done WHERE state = 4 ORDER BY id DESC LIMIT 1").await,
        key: text("SELECT key FROM heddle.run_keys LIMIT 1").await,
        cursor: text(
            "SELECT xid::text || '-' || id || '-0' FROM heddle.events ORDER BY xid, id
             OFFSET (SELECT count(*) / 2 FROM heddle.events) LIMIT 1",
        )
        .await,
        runs: runs.iter().map(|row| row.get(0)).collect(),
    }
}

/// Runs of each kind, as a node makes them; some wait for a worker that never comes.
async fn patterns(node: &Node) {
    let script = |body: &str| format!("(module (memory (export \"memory\") 1) (func (export \"_start\") {body}))");
    for (name, body) in [
        ("nothing", ""),
        ("seldom", ""),
        ("traps", "unreachable"),
        ("spins", "(loop $l (br $l))"),
    ] {
        let path = format!("/v1/scripts/{name}");
        let put = node.put_bytes(&path, "application/wasm", script(body)).await;
        assert!(matches!(put.status, 200 | 201), "{:#}", put.body);
    }
    node.put("/v1/categories/shop", json!({})).await;
    let one = json!({"tasks": {"t": {"script": "nothing"}}, "category": "shop", "labels": {"team": "core"}});
    node.put_group("one", one).await;
    node.put_group("fails", json!({"tasks": {"t": {"script": "traps"}}}))
        .await;
    node.put_group("spins", json!({"tasks": {"t": {"script": "spins"}}}))
        .await;
    let waits = json!({"tasks": {"t": {"script": "seldom"}, "w": {"queue": "emails", "depends_on": ["t"]}}});
    node.put_group("rare", waits).await;
    let mut tasks = serde_json::Map::new();
    for task in 0..1_000_usize {
        let above = |index: usize| format!("t{:03}", (task - 20) / 20 * 20 + index % 20);
        let needs: Vec<String> = match task {
            0..20 => Vec::new(),
            _ => vec![above(task), above(task + 1)],
        };
        tasks.insert(format!("t{task:03}"), json!({"script": "nothing", "depends_on": needs}));
    }
    node.put_group("wide", json!({ "tasks": tasks })).await;
    for group in ["one", "fails", "wide"] {
        node.run(group, json!({})).await;
    }
    let spins = node.start("spins", json!({})).await;
    node.task_becomes(&spins, "t", "running").await;
    node.post(&format!("/v1/runs/{spins}/cancel"), json!({}))
        .await
        .expect_status(200);
    node.ended(&spins).await;
    node.post("/v1/groups/rare/runs/batch", json!({"runs": vec![json!({}); 25]}))
        .await
        .expect_status(202);
    eventually("work on the queue", async || {
        let stats = node.get("/v1/stats").await.expect_status(200);
        (stats["queued"] == 25).then_some(())
    })
    .await;
}

/// First byte and the whole of an answer in milliseconds, and its bytes.
struct Asked {
    first: Vec<f64>,
    whole: Vec<f64>,
    bytes: usize,
}

async fn ask(node: &Node, path: &str, accept: &str) -> Asked {
    let mut asked = Asked {
        first: Vec::new(),
        whole: Vec::new(),
        bytes: 0,
    };
    for _ in 0..TIMES {
        let request = node
            .request(Method::GET, path)
            .header("accept", accept)
            .header("accept-encoding", "gzip");
        let began = now();
        let answer = request.send().await.expect("an answer");
        asked.first.push(began.elapsed().as_secs_f64() * 1e3);
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        asked.bytes = answer.bytes().await.expect("all of it").len();
        asked.whole.push(began.elapsed().as_secs_f64() * 1e3);
    }
    asked
}

async fn api(node: &Node, known: &Known) {
    head("the API", ["whole, p50", "whole, p95", "bytes", "wanted"]);
    let Known {
        wide,
        key,
        cursor,
        failed,
        ..
    } = known;
    for (what, path) in [
        ("runs", "/v1/runs".to_owned()),
        ("runs?group=, of 50,000", "/v1/runs?group=shop-00001".into()),
        (
            "the same with history=true",
            "/v1/runs?group=shop-00001&history=true".into(),
        ),
        ("runs?group=, of 50", "/v1/runs?group=shop-09999&history=true".into()),
        ("runs?state=failed", "/v1/runs?state=failed".into()),
        (
            "runs?state=failed&group=",
            "/v1/runs?state=failed&group=shop-00001".into(),
        ),
        ("runs?state=cancelled", "/v1/runs?state=cancelled".into()),
        ("runs?key=", format!("/v1/runs?key={key}")),
        ("runs?key=, of none", "/v1/runs?key=nothing".into()),
        ("runs?queue=", "/v1/runs?queue=emails".into()),
        ("runs?script=, of all groups", "/v1/runs?script=nothing".into()),
        ("runs?script=, of one group", "/v1/runs?script=seldom".into()),
        ("runs?label=", "/v1/runs?label=customer=c7".into()),
        ("events?limit=1000", "/v1/events?limit=1000".into()),
        (
            "events?limit=1000&after=",
            format!("/v1/events?limit=1000&after={cursor}"),
        ),
        ("stats", "/v1/stats".into()),
        ("/metrics", "/metrics".into()),
        ("a run that failed", format!("/v1/runs/{failed}")),
        ("a run of 1,000 tasks", format!("/v1/runs/{wide}")),
        ("its group's graph", "/v1/groups/wide/graph".into()),
        ("groups", "/v1/groups".into()),
        ("groups?q=, in a description", "/v1/groups?q=number+9876".into()),
        ("groups?label=", "/v1/groups?label=team=team-7".into()),
        ("groups?last_state=failed", "/v1/groups?last_state=failed".into()),
    ] {
        let mut asked = ask(node, &path, "application/json").await;
        let [p50, p95] = [0.5, 0.95].map(|share| format!("{:.1} ms", percentile(&mut asked.whole, share)));
        row(what, [&p50, &p95, &asked.bytes.to_string(), "10 ms"]);
    }
    println!();
}

async fn pages(node: &Node, known: &Known) {
    head("pages", ["first byte p50", "first byte p95", "bytes, gzip", "wanted"]);
    let Known { wide, failed, .. } = known;
    let run = |tab: &str| format!("/runs/{wide}{tab}");
    for path in [
        "/",
        "/groups",
        "/groups?q=9876",
        "/groups?view=graph",
        "/groups/wide",
        "/groups/wide?n=100",
        "/groups/wide/graph",
        "/groups/wide/runs",
        "/groups/wide/spec",
        "/groups/shop-00001",
        "/groups/shop-00001/runs",
        "/groups/shop-00001/calendar",
        "/groups/shop-00002/schedules",
        "/groups/shop-00002/backfill",
        "/groups/shop-00002/state",
        "/runs",
        "/runs?state=failed",
        &*run(""),
        &*run("/graph"),
        &*run("/log"),
        &*run("/data"),
        &*run("/attempts"),
        &*run("/events"),
        &*format!("/runs/{failed}"),
        "/backfills",
        "/scripts",
        "/scripts/nothing",
        "/scripts/nothing/console",
        "/queues",
        "/queues/emails",
        "/dispatch",
        "/topics",
        "/notifications",
        "/system",
        "/system/pools",
        "/system/tokens",
        "/system/retention",
        "/system/audit",
        "/search?q=shop-0001",
    ] {
        page(node, known, path, 50).await;
    }
    println!();
}

/// Asks for a page, and prints how soon it came. `wanted`: milliseconds to the first byte; of the grid three times as many.
async fn page(node: &Node, known: &Known, path: &str, wanted: u32) {
    let mut asked = ask(node, path, "text/html").await;
    let [p50, p95] = [0.5, 0.95].map(|share| format!("{:.1} ms", percentile(&mut asked.first, share)));
    let wanted = match path.starts_with("/groups/wide") {
        true => wanted * 3,
        false => wanted,
    };
    let what = path.replace(&known.wide, "{wide}").replace(&known.failed, "{failed}");
    let wanted = format!("{wanted} ms, 200 kB");
    row(&what, [&p50, &p95, &asked.bytes.to_string(), &wanted]);
}

/// Submitters that keep a node at full load until they are aborted.
fn full_load(node: &Node) -> Vec<tokio::task::JoinHandle<()>> {
    let submit = || {
        let api = node.api().clone();
        tokio::spawn(async move {
            let body = json!({"runs": vec![json!({}); BATCH]});
            while api.post("/v1/groups/one/runs/batch", body.clone()).await.status == 202 {}
        })
    };
    (0..4).map(|_| submit()).collect()
}

/// The pages that people open most, at full load.
async fn loaded(node: &Node, known: &Known) {
    head(
        "pages at full load",
        ["first byte p50", "first byte p95", "bytes, gzip", "wanted"],
    );
    let submitters = full_load(node);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let wide = &known.wide;
    for path in [
        "/",
        "/groups",
        "/groups/wide?n=100",
        "/groups/shop-00001",
        "/groups/shop-00001/calendar",
        "/runs",
        "/runs?state=failed",
        &*format!("/runs/{wide}"),
        &*format!("/runs/{wide}/log"),
        &*format!("/runs/{}", known.failed),
        "/scripts/nothing",
        "/queues/emails",
        "/system",
    ] {
        page(node, known, path, 150).await;
    }
    submitters.iter().for_each(tokio::task::JoinHandle::abort);
    println!();
}

/// What the node takes while it is watched: share of a core, resident megabytes, runs a second, bytes that pages were sent.
async fn watch(node: &mut Node, received: &std::sync::atomic::AtomicU64) -> (f64, f64, f64, f64) {
    use std::sync::atomic::Ordering;
    let ended = async |node: &Node| -> f64 {
        let stats = node.get("/v1/stats").await.expect_status(200);
        stats["node"]["runs_ended"].as_f64().expect("a number")
    };
    let process = node.process().id();
    let used = processor_time(process);
    let (runs, bytes) = (ended(node).await, received.load(Ordering::Relaxed));
    let began = now();
    tokio::time::sleep(WATCHED).await;
    let seconds = began.elapsed().as_secs_f64();
    let runs = ended(node).await - runs;
    let share = 100.0 * (processor_time(process) - used) / seconds;
    let (resident, _) = memory(process);
    let bytes = received.load(Ordering::Relaxed) - bytes;
    (share, resident, runs / seconds, bytes as f64 / seconds)
}

/// Opens pages as browsers do: the page, and its stream with what it has.
async fn open_pages(
    node: &Node,
    known: &Known,
) -> (
    Vec<tokio::task::JoinHandle<()>>,
    std::sync::Arc<std::sync::atomic::AtomicU64>,
) {
    let received = std::sync::Arc::<std::sync::atomic::AtomicU64>::default();
    let mut open = Vec::new();
    for index in 0..OPEN {
        let path = match index % 2 {
            0 => "/".to_owned(),
            _ => format!("/runs/{}", known.runs[index / 2 % known.runs.len()]),
        };
        let page = node.request(Method::GET, &path).header("accept", "text/html");
        let page = page.send().await.expect("a page").text().await.expect("text");
        let stream = page
            .split("sse-connect=\"")
            .nth(1)
            .and_then(|rest| rest.split('"').next());
        let stream = stream.expect("a page that is kept up to date").replace("&amp;", "&");
        let request = node.request(Method::GET, &stream).timeout(Duration::from_secs(3_600));
        let answer = request.send().await.expect("a stream");
        assert!(answer.status().is_success(), "{}", answer.status());
        let received = received.clone();
        open.push(tokio::spawn(async move {
            let mut pieces = answer.bytes_stream();
            while let Some(Ok(piece)) = pieces.next().await {
                received.fetch_add(piece.len() as u64, std::sync::atomic::Ordering::Relaxed);
            }
        }));
    }
    (open, received)
}

async fn open(node: &mut Node, known: &Known) {
    head("open pages", ["of a core", "resident", "runs/s", "to pages; wanted"]);
    for load in [false, true] {
        for pages in [false, true] {
            let (open, received) = match pages {
                true => open_pages(node, known).await,
                false => (Vec::new(), std::sync::Arc::default()),
            };
            let submitters = if load { full_load(node) } else { Vec::new() };
            // What opening and beginning cost is not counted.
            tokio::time::sleep(Duration::from_secs(5)).await;
            let (share, resident, runs, bytes) = watch(node, &received).await;
            submitters.iter().chain(&open).for_each(tokio::task::JoinHandle::abort);
            let what = format!(
                "{}, {}",
                if load { "full load" } else { "nothing happens" },
                if pages {
                    format!("{OPEN} pages")
                } else {
                    "no page".into()
                }
            );
            let figures = [
                format!("{share:.1} %"),
                format!("{resident:.1} MB"),
                format!("{runs:.0}"),
                format!(
                    "{:.1} kB/s{}",
                    bytes / 1e3,
                    if pages && !load { "; < 5 % more" } else { "" }
                ),
            ];
            row(&what, [&figures[0], &figures[1], &figures[2], &figures[3]]);
            // What is left of the load ends before the next look.
            tokio::time::sleep(Duration::from_secs(if load { 10 } else { 1 })).await;
        }
    }
    println!();
}

async fn paint(node: &Node, known: &Known) {
    let Some(program) = chrome::program() else {
        println!("no Chromium is found: nothing is painted");
        return;
    };
    head("painted", ["paint p50", "paint p95", "layout shift", "wanted"]);
    let mut chrome = chrome::Chrome::start(&program).await;
    chrome.shape(1_280, false).await;
    chrome.open(&format!("{}/sign-in", node.base())).await;
    let sign_in = format!(
        "fetch('/sign-in', {{method: 'POST', headers: {{'content-type': 'application/x-www-form-urlencoded'}}, \
         body: 'token={TOKEN}&to=/'}}).then(answer => answer.ok)"
    );
    assert_eq!(chrome.value(&sign_in).await, true, "signed in");
    for path in [
        "/",
        "/runs",
        "/groups",
        "/groups/wide",
        "/groups/shop-00001",
        &*format!("/runs/{}", known.wide),
    ] {
        let (mut paints, mut shift) = (Vec::new(), 0_f64);
        for _ in 0..10 {
            chrome.open(&format!("{}{path}", node.base())).await;
            // What is painted and moved in the second after it was loaded counts, too.
            let measured = chrome
                .value(
                    "new Promise(done => {
                         let paint = 0, shift = 0;
                         const watch = (type, each) => new PerformanceObserver(list => list.getEntries().forEach(each))
                             .observe({type, buffered: true});
                         watch('largest-contentful-paint', entry => paint = Math.max(paint, entry.startTime));
                         watch('layout-shift', entry => shift += entry.value);
                         setTimeout(() => done([paint, shift]), 1000);
                     })",
                )
                .await;
            paints.push(measured[0].as_f64().expect("a paint"));
            shift = shift.max(measured[1].as_f64().expect("a shift"));
        }
        let [p50, p95] = [0.5, 0.95].map(|share| format!("{:.0} ms", percentile(&mut paints, share)));
        let what = path.replace(&known.wide, "{wide}");
        row(&what, [&p50, &p95, &format!("{shift:.4}"), "700 ms, 0"]);
    }
}
