//! Nothing on a page moves by itself: not while it loads, not when its script says times in its own words, not as they go
//! on. What moves is told by the browser, as its layout shift.

use heddle_tests::{TOKEN, World};
use serde_json::{Value, json};

use crate::Visitor;
use crate::chrome::{self, Chrome};

/// How much has moved since the page was opened, and what: the browser keeps it for whoever asks.
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
    /ago|just now|in |\u{524d}|\u{521a}|\u{540e}/.test(time.textContent)) \
    && document.querySelectorAll('main time[data-ago]').length > 0";

/// What goes on has gone on by a second or more.
const GOES_ON: &str = "(() => { const took = document.querySelector('main .took[data-since]'); if (!took) return true; \
    const now = parseFloat(took.textContent); window.first ??= now; return now >= window.first + 1; })()";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_moves_by_itself() {
    let Some(program) = chrome::program() else {
        eprintln!("there is no Chromium here (Debian: apt-get install chromium): nothing was looked at");
        return;
    };
    let world = World::new().await;
    let node = world.node().await;
    let fails = json!({"script": "flaky", "params": {"fail_times": 9, "kind": "fatal"}});
    for name in [
        "import",
        "a-group-with-a-name-that-is-about-as-long-as-names-may-be",
        "\u{4ed3}\u{5e93}\u{5bfc}\u{5165}",
    ] {
        node.put_group(name, json!({"labels": {"team": "core"}, "tasks": {"t": fails.clone()}}))
            .await;
        let run = node.start(name, json!({"key": format!("key-of-{name}")})).await;
        node.run_becomes(&run, "failed").await;
    }
    node.put_group(
        "slow",
        json!({"tasks": {"nap": {"script": "sleep", "params": {"seconds": 600}}}}),
    )
    .await;
    let naps = node.start("slow", json!({})).await;
    node.run_becomes(&naps, "running").await;
    let base = node.base().to_owned();
    let visitor = Visitor::signed_in(&base, TOKEN).await;
    let (name, value) = visitor.cookie.split_once('=').unwrap();
    let mut chrome = Chrome::start(&program).await;
    chrome.cookie(&base, name, value).await;
    let mut wrong = Vec::new();
    for lang in ["en", "zh"] {
        chrome.cookie(&base, "heddle_lang", lang).await;
        for width in [1_280, 1_100, 900, 390] {
            chrome.shape(width, false).await;
            for path in ["/", "/runs", "/runs?state=failed"] {
                chrome.open(&format!("{base}{path}")).await;
                chrome.until(SAID).await;
                chrome.until(GOES_ON).await;
                let moved: Value = chrome.value(MOVED).await;
                if moved[0].as_f64() != Some(0.0) {
                    wrong.push(format!("{path} at {width} in {lang}: {moved:#}"));
                }
                let fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth \
                            && [...document.querySelectorAll('.steady td')].every((cell) => cell.scrollWidth <= cell.clientWidth + 1)";
                if chrome.value(fits).await != true {
                    wrong.push(format!("{path} at {width} in {lang}: something does not fit"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
