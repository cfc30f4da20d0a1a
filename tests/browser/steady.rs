//! Nothing on a page moves by itself: not while it loads, not when its script says times in its own words, not as they go
//! on. What moves is told by the browser, as its layout shift.

use chrono::Timelike;
use heddle_tests::{Node, TOKEN, World, eventually};
use serde_json::{Value, json};

use crate::Visitor;
use crate::chrome::{self, Chrome};

/// How much has moved since the page was opened, and what: kept by the browser.
const MOVED: &str = "new Promise((done) => {
    const rect = (at) => [at.x, at.y, at.width, at.height].map(Math.round).join(' ');
    const observer = new PerformanceObserver(() => {});
    observer.observe({ type: 'layout-shift', buffered: true });
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => {
        const entries = observer.takeRecords();
        done([entries.reduce((sum, entry) => sum + entry.value, 0), entries.flatMap((entry) => entry.sources.map((source) =>
            `${source.node?.outerHTML?.slice(0, 120) ?? source.node?.nodeName}: ${rect(source.previousRect)} to ${rect(source.currentRect)}`))]);
    })));
})";

/// The script has said each time that is to be said in its words.
const SAID: &str = "[...document.querySelectorAll('main time[data-ago]')].every((time) => \
    /ago|just now|in |\u{524d}|\u{521a}|\u{540e}/.test(time.textContent))";

/// There is such a time.
const HAS_TIMES: &str = "!!document.querySelector('main time[data-ago]')";

/// What goes on has gone on by a second or more. Before a page's scripts have begun, it says since when instead.
const GOES_ON: &str = "(() => { const took = document.querySelector('main .took[data-since]'); if (!took) return true; \
    const now = took.textContent; if (Number.isNaN(parseFloat(now))) return false; \
    window.first ??= { text: now, at: performance.now() }; \
    return now !== window.first.text && performance.now() >= window.first.at + 1000; })()";

/// What a script shows or says later has its room before: hints, and in its head how long a run has taken so far.
const HAS_ROOM: &str = "(() => { const hints = [...document.querySelectorAll('[data-hint]')].every((hint) => { \
        const height = (hidden) => { hint.hidden = hidden; return hint.parentElement.getBoundingClientRect().height; }; \
        return height(true) === height(false); }); \
    const took = document.querySelector('.heading .took[data-since]'); if (!took) return hints; \
    const room = (text) => { took.textContent = text; return took.getBoundingClientRect().width; }; \
    const before = room('\u{2026} '); \
    return hints && ['9.9 s', '59 min 59 s', '23 h 59 min', '59 \u{5206} 59 \u{79d2}', '23 \u{5c0f}\u{65f6} 59 \u{5206}'] \
        .every((text) => room(text) === before); })()";

/// Nothing is wider than the page, and no cell of a table whose columns are fixed has more than it shows.
const FITS: &str = "document.documentElement.scrollWidth <= document.documentElement.clientWidth \
    && [...document.querySelectorAll('.steady td')].every((cell) => cell.scrollWidth <= cell.clientWidth + 1)";

/// Something with a time on each page; answers a run that goes on, and one that failed.
async fn something_of_everything(world: &World, node: &Node) -> (String, String) {
    let mut failed = String::new();
    // Half a day away, at any time of day: the schedules make no runs during the test.
    let hour = (world.now().await + chrono::TimeDelta::hours(12)).hour();
    let fails = json!({"script": "flaky", "params": {"fail_times": 9, "kind": "fatal"}});
    for name in [
        "import",
        "a-group-with-a-name-that-is-about-as-long-as-names-may-be",
        "\u{4ed3}\u{5e93}\u{5bfc}\u{5165}",
    ] {
        let spec = json!({
            "labels": {"team": "core"}, "depends_on": ["slow"], "category": "core", "history": true,
            "schedules": {"daily": {"cron": format!("15 {hour} * * *")}}, "tasks": {"t": fails.clone()},
        });
        node.put("/v1/categories/core", json!({})).await;
        node.put_group(
            "slow",
            json!({"tasks": {"nap": {"script": "sleep", "params": {"seconds": 600}}}}),
        )
        .await;
        node.put_group(name, spec).await;
        let body = json!({"key": format!("key-of-{name}")});
        let run = node.start(name, body).await;
        node.run_becomes(&run, "failed").await;
        failed = run;
    }
    node.put_group("by-hand", json!({"tasks": {"w": {"queue": "people"}}}))
        .await;
    for _ in 0..2 {
        node.start("by-hand", json!({})).await;
    }
    let channel = json!({"kind": "webhook", "url": "http://127.0.0.1:9/", "allow_private": true});
    node.put("/v1/channels/hook", channel).await.expect_status(201);
    let body = json!({"name": "somebody", "role": "viewer", "expires_at": "2099-01-01T00:00:00Z"});
    node.post("/v1/tokens", body).await.expect_status(201);
    node.put("/v1/secrets/api-key", json!({"value": "x", "groups": ["import"]}))
        .await
        .expect_status(201);
    node.put("/v1/offers/wave", json!({"audience": "uid_ann"})).await;
    node.post("/v1/dispatch/ann/next", json!({"wait": "20s"}))
        .await
        .expect_status(200);
    let claim = json!({"worker": "w1", "max": 1, "lease": "600s", "wait": "20s"});
    node.post("/v1/queues/people/claims", claim).await.expect_status(200);
    let past = json!({"from": "2024-01-01T00:00:00Z", "to": "2024-01-03T00:00:00Z"});
    node.post("/v1/groups/import/backfills", past).await;
    let naps = node.start("slow", json!({})).await;
    node.run_becomes(&naps, "running").await;
    (naps, failed)
}

/// A run that goes on, with a line in its log that has several rows, because the name of its task is long; answers its page.
async fn long_lines(node: &Node) -> String {
    let name = format!("a_task_{}", "n".repeat(56));
    let nap = json!({"script": "sleep", "params": {"seconds": 600}});
    node.put_group("long-lines", json!({"tasks": {&name: {"script": "hello"}, "nap": nap}}))
        .await;
    let run = node.start("long-lines", json!({})).await;
    eventually("line in the log", async || {
        let lines = node.get(&format!("/v1/runs/{run}/logs")).await.expect_status(200);
        (!lines["items"][0].is_null()).then_some(())
    })
    .await;
    format!("/runs/{run}")
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_moves_by_itself() {
    let Some(program) = chrome::program() else {
        eprintln!("there is no Chromium here (Debian: apt-get install chromium): nothing was looked at");
        return;
    };
    let (world, node) = World::with_node().await;
    let (naps, failed) = something_of_everything(&world, &node).await;
    let base = node.base().to_owned();
    let visitor = Visitor::signed_in(&base, TOKEN).await;
    let (name, value) = visitor.cookie.split_once('=').unwrap();
    let mut chrome = Chrome::start(&program).await;
    chrome.cookie(&base, name, value).await;
    let mut wrong = Vec::new();
    let (run, ended) = (format!("/runs/{naps}"), format!("/runs/{failed}"));
    let log = format!("{}/log", long_lines(&node).await);
    let with_times = [
        "/",
        "/runs",
        "/runs?state=failed",
        "/groups",
        "/groups/import",
        "/groups/import/runs",
        "/groups/import/schedules",
        &ended,
        "/backfills",
        "/scripts",
        "/queues",
        "/queues/people",
        "/dispatch",
        "/notifications",
        "/system",
        "/system/secrets",
        "/system/tokens",
    ];
    let others = [
        "/groups/import/graph",
        "/topics",
        "/system/pools",
        "/system/audit",
        &run,
        &log,
    ];
    for lang in ["en", "zh"] {
        chrome.cookie(&base, "heddle_lang", lang).await;
        for width in [1_280, 1_100, 900, 390] {
            chrome.shape(width, false).await;
            let pages = with_times.iter().map(|path| (*path, true));
            for (path, times) in pages.chain(others.iter().map(|path| (*path, false))) {
                chrome.open(&format!("{base}{path}")).await;
                chrome.until(SAID).await;
                if times && chrome.value(HAS_TIMES).await != true {
                    wrong.push(format!("{path} at {width} in {lang}: there is no time"));
                }
                chrome.until(GOES_ON).await;
                let moved: Value = chrome.value(MOVED).await;
                if moved[0].as_f64() != Some(0.0) {
                    wrong.push(format!("{path} at {width} in {lang}: {moved:#}"));
                }
                if chrome.value(FITS).await != true {
                    wrong.push(format!("{path} at {width} in {lang}: something does not fit"));
                }
                if chrome.value(HAS_ROOM).await != true {
                    wrong.push(format!("{path} at {width} in {lang}: what comes later has no room yet"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
