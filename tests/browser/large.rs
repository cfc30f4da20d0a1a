//! Large amounts and strange values: a map of ten thousand items, a log of a hundred thousand lines, texts with
//! anything in them.

use heddle_tests::{TOKEN, World, eventually, path_part};
use serde_json::json;

use crate::open::{browser, open_signed_in};
use crate::{HOSTILE, Visitor, check_page};

/// What a page may have, however much it tells of.
const PAGE_BYTES_MAX: usize = 400_000;
const ELEMENTS_MAX: i64 = 4_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_map_of_ten_thousand_items_is_a_row() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "wide",
        json!({"tasks": {"each": {"script": "hello", "shards": 10_000}, "after": {"script": "hello", "depends_on": ["each"]}}}),
    )
    .await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let run = node.start("wide", json!({})).await;
    let path = format!("/runs/{run}");
    let page = visitor.get(&path).await.fine();
    // While ten thousand items move, the page is told a few hundred times less than that.
    let heard = visitor.hears(&page, &["event: run-head", "s-succeeded"]).await;
    assert!(heard.len() < 2_000_000, "{} bytes", heard.len());
    assert_eq!(node.ended(&run).await["state"], "succeeded");
    for tab in ["", "/graph", "/log", "/data", "/attempts", "/events"] {
        let page = visitor.get(&format!("{path}{tab}")).await;
        check_page(tab, &page);
        let page = page.fine();
        assert!(page.len() < PAGE_BYTES_MAX, "{tab}: {} bytes", page.len());
    }
    let grid = visitor.get("/groups/wide").await.fine();
    assert!(grid.len() < PAGE_BYTES_MAX, "{} bytes", grid.len());
    let Some(mut chrome) = browser().await else { return };
    open_signed_in(&mut chrome, node.base(), &path).await;
    let elements = chrome.value("document.querySelectorAll('*').length").await;
    assert!(elements.as_i64().unwrap() < ELEMENTS_MAX, "{elements} elements");
    let shown = chrome.value("document.querySelector('#tasks').innerText").await;
    let shown = shown.as_str().unwrap();
    assert!(shown.contains("10,000"), "{shown}");
    assert!(
        chrome.complaints(node.base()).is_empty(),
        "{:?}",
        chrome.complaints(node.base())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_thousand_lines_are_read_a_page_at_a_time() {
    /// Items, and lines of each: an attempt may write twenty thousand at once.
    const ITEMS: usize = 10;
    const LINES: usize = 10_000;
    let (_world, node) = World::with_node().await;
    let text = "export default function run(p) { for (let n = 0; n < p.lines; n++) { \
                if (n === p.lines - 7) console.error(`rare ${p.item}`); else console.log(`${p.item} ${n}`); } }";
    node.put_bytes("/v1/scripts/lines", "text/javascript", text)
        .await
        .expect_status(201);
    let items: Vec<usize> = (0..ITEMS).collect();
    node.put_group(
        "talks",
        json!({"tasks": {"talk": {"script": "lines", "for_each": items, "concurrency": 1, "params": {"item": "{{ item }}", "lines": LINES}}}}),
    )
    .await;
    let run = node.run("talks", json!({})).await;
    let path = format!("/runs/{}/log", run["id"].as_str().unwrap());
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let lines = |page: &str| page.matches("<li id=\"l-").count();
    let first = visitor.get(&path).await.fine();
    assert_eq!(lines(&first), 500);
    assert!(first.len() < PAGE_BYTES_MAX, "{} bytes", first.len());
    // The last ones, without reading the others.
    let last = visitor.get(&format!("{path}?last=true")).await.fine();
    assert!(last.contains(&format!("{} {}<", ITEMS - 1, LINES - 1)), "{last}");
    // By level: what is filtered away is read over, a bounded part for each page, and the next page goes on.
    let mut found = 0;
    let mut next = Some(format!("{path}?level=error"));
    let mut pages = 0;
    while let Some(at) = next {
        let page = visitor.get(&at).await.fine();
        found += lines(&page);
        pages += 1;
        assert!(pages <= 2 * ITEMS, "{pages} pages");
        next = page
            .split("class=\"more\"")
            .nth(1)
            .and_then(|more| more.split("Next page").next().filter(|_| more.contains("Next page")))
            .and_then(|more| more.rsplit("href=\"").next())
            .and_then(|more| more.split('"').next())
            .map(|href| href.replace("&amp;", "&"));
    }
    assert_eq!(found, ITEMS, "each item had one");
    let download = visitor.get(&format!("{path}/download")).await.fine();
    assert_eq!(download.lines().count(), ITEMS * LINES);
    let Some(mut chrome) = browser().await else { return };
    open_signed_in(&mut chrome, node.base(), &path).await;
    let elements = chrome.value("document.querySelectorAll('*').length").await;
    assert!(elements.as_i64().unwrap() < ELEMENTS_MAX, "{elements} elements");
}

/// A message, a log line, a key, a label, an output: letters of all kinds, three hundred of them, and bytes that are none.
#[tokio::test]
async fn whatever_scripts_and_people_write_is_text() {
    let (_world, node) = World::with_node().await;
    let strange = format!(
        "{HOSTILE} {} \u{0}\u{1b}[31m\u{7}\u{9f} \u{202d}end",
        "long ".repeat(60)
    );
    let text = format!(
        "const strange = {}; export default function run() {{ console.log(strange); console.error('\\u001b[32m' + strange); \
         throw new Error(strange); }}",
        json!(strange)
    );
    node.put_bytes("/v1/scripts/strange", "text/javascript", text)
        .await
        .expect_status(201);
    node.put_group(
        "strange",
        json!({"description": strange.replace('\0', ""), "tasks": {"fails": {"script": "strange"}, "says": {"script": "echo", "params": {"text": HOSTILE}}}}),
    )
    .await;
    let key: String = HOSTILE.chars().filter(|letter| !letter.is_control()).collect();
    let body = json!({"key": key, "labels": {"team": "<b>core</b>"}, "params": {"note": HOSTILE}});
    let run = node.start("strange", body).await;
    node.run_becomes(&run, "failed").await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let run_pages = [
        "",
        "/graph",
        "/log",
        "/data",
        "/attempts",
        "/events",
        "/rerun",
        "/override",
    ];
    let run_pages = run_pages.map(|tab| format!("/runs/{run}{tab}"));
    let others = [
        "/",
        "/runs",
        "/groups",
        "/groups/strange",
        "/groups/strange/runs",
        "/scripts/strange",
        "/system/audit",
    ];
    let cell = format!("/groups/strange?run={run}&task=fails");
    let compare = format!("/runs/compare?run={run}");
    for path in run_pages
        .iter()
        .map(String::as_str)
        .chain(others)
        .chain([cell.as_str(), compare.as_str()])
    {
        let page = visitor.get(path).await;
        check_page(path, &page);
        let page = page.fine();
        assert!(!page.contains("<b>core</b>"), "{path}");
        // A browser has no use for these.
        assert!(
            !page.contains(['\u{0}', '\u{1b}', '\u{7}']),
            "{path} has control characters"
        );
    }
    let log = visitor.get(&format!("/runs/{run}/log")).await.fine();
    assert!(
        log.contains("class=\"c-red\"") && log.contains("class=\"c-green\""),
        "{log}"
    );
    let found = eventually("the run, by its key", async || {
        let page = visitor.get(&format!("/runs?key={}", path_part(&key))).await.fine();
        page.contains(&run).then_some(page)
    })
    .await;
    assert!(found.contains("&lt;script&gt;"), "{found}");
}
