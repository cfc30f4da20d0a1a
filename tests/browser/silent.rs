//! Pages whose network falls silent: a proxy keeps their connections open and forwards nothing. No error tells a browser of
//! that, only the signs of life that do not come.

use heddle_tests::{Node, TOKEN, World};
use serde_json::json;

use crate::between::Between;
use crate::chrome::Chrome;
use crate::open::{browser, open_signed_in, short_group, shows};
use crate::{Visitor, hear};

/// Keeps what the dot says from now on in `window.said`.
const LISTENS_TO_THE_DOT: &str = "window.said = []; new MutationObserver(() => window.said.push(document.querySelector('#live').dataset.state)) \
    .observe(document.querySelector('#live'), {attributes: true, attributeFilter: ['data-state']}); 0";

/// Opens the list of runs through a proxy; it is live, and `window.said` has what its dot says from now on.
async fn live_runs(chrome: &mut Chrome, node: &Node) -> Between {
    short_group(node).await;
    let between = Between::start(node.authority(), false).await;
    open_signed_in(chrome, &between.base, "/runs").await;
    chrome.until(&shows(1, "live")).await;
    chrome.value(LISTENS_TO_THE_DOT).await;
    between
}

/// Runs of the short group, one after the other, until this is aborted.
fn runs_all_the_time(node: &Node) -> tokio::task::JoinHandle<()> {
    let api = node.api().clone();
    tokio::spawn(async move {
        loop {
            let run = api.start("short", json!({})).await;
            api.ended(&run).await;
        }
    })
}

/// A page that is made again and again, and has no changes, is told that its stream goes on; so is a form. This takes the 15
/// seconds after which it is said.
#[tokio::test]
async fn a_stream_without_changes_says_that_it_goes_on() {
    let (_world, node) = World::with_node().await;
    short_group(&node).await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let page = visitor.get("/scripts").await.fine();
    let mut page = visitor.opens(&page).await;
    let form = visitor.client.get(format!("{}/live?session=1", visitor.base));
    let mut form = form.header("cookie", &visitor.cookie).send().await.unwrap();
    // Each says first how long it may be quiet.
    hear(&mut page, &["event: heard\ndata: 15\n", "event: here\ndata: 15\n"]).await;
    hear(&mut form, &["event: heard\ndata: 15\n"]).await;
    let load = runs_all_the_time(&node);
    let said = ["event: here\ndata: 15\n"];
    tokio::join!(hear(&mut page, &said), hear(&mut form, &said));
    load.abort();
}

/// This takes as long as a page waits: two and a half times the 15 seconds. Nothing makes a node promise less.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_behind_a_proxy_that_falls_silent_says_so_and_comes_back() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    let between = live_runs(&mut chrome, &node).await;
    // Which streams it opens from now on.
    let asks = "window.asked = []; const Real = window.EventSource; \
                window.EventSource = class extends Real { constructor(url, how) { super(url, how); window.asked.push(url); } }; 0";
    chrome.value(asks).await;
    between.falls_silent();
    node.run("short", json!({})).await;
    chrome
        .until("window.isTheSame && document.querySelector('#live').dataset.state === 'stale'")
        .await;
    // It asks anew, and then for brief answers, which the proxy does not forward either.
    chrome
        .until("window.asked.length > 1 && window.asked.at(-1).endsWith('&brief=1')")
        .await;
    let said = chrome.value("window.said.join(' ')").await;
    assert_eq!(said, "stale", "it says so until something arrives");
    between.speaks_again();
    // It has what it missed, and it has a stream again, not only brief answers.
    chrome.until(&shows(2, "live")).await;
    chrome.until("!window.asked.at(-1).endsWith('&brief=1')").await;
    node.run("short", json!({})).await;
    chrome.until(&shows(3, "live")).await;
}

/// A page that was throttled, or whose computer slept, looks late whether something has arrived. That alone is no silence.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_slept_waits_for_what_has_arrived_meanwhile() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    // The page's clock, which jumps: then its timers come late.
    let clock = "{ const now = performance.now.bind(performance); let slept = 0; performance.now = () => now() + slept; \
                 window.sleeps = (seconds) => { slept += 1000 * seconds; }; }";
    chrome
        .call("Page.addScriptToEvaluateOnNewDocument", json!({"source": clock}))
        .await;
    let between = live_runs(&mut chrome, &node).await;
    let load = runs_all_the_time(&node);
    chrome
        .until("document.querySelectorAll('main table tbody tr').length > 1")
        .await;
    // It looks at once, before it can have heard anything.
    chrome
        .value("window.sleeps(600); window.woke = performance.now(); document.dispatchEvent(new Event('visibilitychange')); 0")
        .await;
    // Longer than it waits for what may have arrived.
    chrome.until("performance.now() > window.woke + 8000").await;
    let said = chrome.value("window.said.join(' ')").await;
    assert_eq!(said, "", "it was live all the time");
    load.abort();
    // If nothing has arrived, it is out of date.
    between.falls_silent();
    chrome.value("window.sleeps(600); 0").await;
    chrome
        .until("window.isTheSame && document.querySelector('#live').dataset.state === 'stale'")
        .await;
    let run = heddle_tests::id(&node.run("short", json!({})).await);
    between.speaks_again();
    let back = format!(
        "window.isTheSame && document.querySelector('#live').dataset.state === 'live' \
         && !!document.querySelector('main a[href=\"/runs/{run}\"]')"
    );
    chrome.until(&back).await;
}
