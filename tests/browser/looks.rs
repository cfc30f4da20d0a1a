//! What a real browser reports of every page, and what a person does in it who clicks, types and drags.

use std::path::PathBuf;

use heddle_tests::Dev;
use serde_json::{Value, json};

use crate::HOSTILE;
use crate::chrome::{self, Chrome};

/// Finds what cannot be read or used without a pointer or without seeing; `VENDORED.md` next to it names its source.
const AXE: &str = include_str!("vendor/axe-core-4.10.3.min.js");

/// A line for each thing that it finds, and the place.
///
/// One rule is not on by default: the name of a control contains the text that the control shows. People who tell a browser
/// aloud what to press say this text.
const RUN_AXE: &str = "axe.run(document, {resultTypes: ['violations'], rules: {'label-content-name-mismatch': {enabled: true}}}).then((found) => found.violations.flatMap((one) => \
    one.nodes.slice(0, 4).map((node) => `${one.id} at ${node.target.join(' ')}: ${node.html.slice(0, 160)} ${node.failureSummary}`)))";

/// What is wrong with the page that is open, a line each; keeps a picture of it.
pub async fn faults(chrome: &mut Chrome, base: &str, shape: &str) -> Vec<String> {
    let mut wrong = axe(chrome).await;
    if chrome.value(NO_SCROLL).await != true {
        wrong.push("it scrolls sideways".into());
    }
    keep(chrome, shape).await;
    // A page that is not there is a 404, which the console has.
    if chrome.value("!!document.querySelector('.trouble')").await != true {
        wrong.extend(chrome.complaints(base));
    }
    wrong.into_iter().map(|line| format!("{shape}: {line}")).collect()
}

/// What axe finds wrong, a line each.
async fn axe(chrome: &mut Chrome) -> Vec<String> {
    if chrome.value("typeof axe").await != "object" {
        chrome.value(&format!("{AXE}\n;0")).await;
    }
    let found = chrome.value(RUN_AXE).await;
    let lines = found.as_array().unwrap_or_else(|| panic!("{found}"));
    lines
        .iter()
        .map(|line| line.as_str().unwrap_or_default().to_owned())
        .collect()
}

/// A picture of the page for people who run the tests: in the directory `HEDDLE_SCREENSHOTS`.
async fn keep(chrome: &mut Chrome, name: &str) {
    if let Some(directory) = std::env::var_os("HEDDLE_SCREENSHOTS") {
        std::fs::create_dir_all(&directory).unwrap();
        let picture = chrome.picture().await;
        std::fs::write(PathBuf::from(directory).join(format!("{name}.png")), picture).unwrap();
    }
}

const NO_SCROLL: &str = "document.documentElement.scrollWidth <= document.documentElement.clientWidth";

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_has_nothing_to_complain_of() {
    let Some(program) = chrome::program() else {
        eprintln!("there is no Chromium here (Debian: apt-get install chromium): nothing was looked at");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(&directory.path().join("data"), &[]).await;
    let api: &heddle_tests::Api = &dev;
    // Something of everything: a run that fails, a map, a queue in which something waits, a pool, an offer.
    api.put("/v1/pools/few", json!({"slots": 2})).await;
    api.put_group(
        "mixed",
        json!({
            "description": HOSTILE, "category": "demo",
            "schedules": {"hourly": {"cron": "5 * * * *"}},
            "tasks": {
                "good": {"script": "hello", "pools": {"few": 1}},
                "a-task-with-a-name-that-is-far-too-long-for-most-of-the-places": {"script": "flaky", "params": {"fail_times": 9, "kind": "fatal"}, "depends_on": ["good"]},
                "late": {"script": "hello", "depends_on": ["a-task-with-a-name-that-is-far-too-long-for-most-of-the-places"]},
            },
        }),
    )
    .await;
    api.put_group(
        "follower",
        json!({"depends_on": ["mixed"], "tasks": {"a": {"script": "hello"}}}),
    )
    .await;
    api.put_group("by-hand", json!({"tasks": {"stamp": {"queue": "people"}}}))
        .await;
    let run = api.start("hello", json!({})).await;
    let ended: Value = api.ended(&run).await;
    assert_eq!(ended["state"], "succeeded");
    let failed = api.start("mixed", json!({})).await;
    api.run_becomes(&failed, "failed").await;
    api.start("by-hand", json!({})).await;
    let due = crate::later(heddle_tests::time(&ended["created_at"]));
    something_of_everything(api, due).await;
    let long = names_as_long_as_may_be(api).await;
    let of_day = "logical_from=2026-11-25T00:00:00.000Z&logical_to=2026-11-25T23:59:59.999Z";
    let pages = [
        ("overview", "/".to_owned()),
        ("groups", "/groups".to_owned()),
        ("groups-none", "/groups?q=nothing".to_owned()),
        ("groups-graph", "/groups?view=graph".to_owned()),
        ("group-new", "/groups/new".to_owned()),
        ("group", format!("/groups/mixed?run={failed}&task=good")),
        ("group-graph", "/groups/mixed/graph".to_owned()),
        ("group-runs", "/groups/mixed/runs".to_owned()),
        ("calendar", "/groups/mixed/calendar".to_owned()),
        ("schedules", "/groups/mixed/schedules".to_owned()),
        ("spec", "/groups/mixed/spec".to_owned()),
        ("spec-edit", "/groups/mixed/spec?edit=1".to_owned()),
        (
            "spec-difference",
            "/groups/changed/spec?revision=2&against=1".to_owned(),
        ),
        ("state", "/groups/mixed/state".to_owned()),
        ("start", "/groups/mixed/run".to_owned()),
        ("backfill", "/groups/seattle-weather/backfill".to_owned()),
        ("runs", "/runs".to_owned()),
        ("runs-none", "/runs?group=nothing".to_owned()),
        ("compare", format!("/runs/compare?run={failed}")),
        ("run", format!("/runs/{failed}")),
        ("run-graph", format!("/runs/{failed}/graph")),
        ("log", format!("/runs/{run}/log")),
        ("data", format!("/runs/{run}/data")),
        ("attempts", format!("/runs/{failed}/attempts")),
        ("events", format!("/runs/{failed}/events")),
        ("rerun", format!("/runs/{failed}/rerun")),
        ("override", format!("/runs/{failed}/override?task=late")),
        ("backfills", "/backfills".to_owned()),
        ("scripts", "/scripts".to_owned()),
        ("script", "/scripts/hello".to_owned()),
        ("console", "/scripts/hello/console".to_owned()),
        ("queues", "/queues".to_owned()),
        ("queue", "/queues/people".to_owned()),
        ("dispatch", "/dispatch".to_owned()),
        ("poll-as-nobody", "/dispatch/as?uid=nobody".to_owned()),
        ("audience", "/dispatch/audiences/gid_all".to_owned()),
        ("topics", "/topics".to_owned()),
        ("topic", format!("/topics/letters?month={}", due.format("%Y-%m"))),
        ("day", format!("/topics/letters/{due}")),
        ("notifications", "/notifications".to_owned()),
        ("system", "/system".to_owned()),
        ("pools", "/system/pools".to_owned()),
        ("connections", "/system/connections".to_owned()),
        ("secrets", "/system/secrets".to_owned()),
        ("tokens", "/system/tokens".to_owned()),
        ("channels", "/system/channels".to_owned()),
        ("retention", "/system/retention".to_owned()),
        ("audit", "/system/audit".to_owned()),
        ("search", "/search?q=weather".to_owned()),
        ("preferences", "/preferences".to_owned()),
        ("missing", "/groups/none".to_owned()),
        ("gone", "/groups/short-lived".to_owned()),
        ("runs-of-a-day", format!("/runs?group=mixed&{of_day}")),
        ("notifications-of", "/notifications?channel=hook".to_owned()),
        ("docs", "/docs".to_owned()),
        ("long", format!("/runs/{long}")),
        ("long-log", format!("/runs/{long}/log")),
        ("long-data", format!("/runs/{long}/data")),
        ("long-attempts", format!("/runs/{long}/attempts")),
        ("long-events", format!("/runs/{long}/events")),
        ("long-group", "/groups/longnames".to_owned()),
        ("long-start", "/groups/longnames/run".to_owned()),
        ("long-script", "/scripts/wide".to_owned()),
        ("long-console", "/scripts/wide/console".to_owned()),
    ];
    let base = api.base().to_owned();
    let mut chrome = Chrome::start(&program).await;
    let mut wrong: Vec<String> = Vec::new();
    for (name, path) in &pages {
        let url = format!("{base}{path}");
        // Each language in each theme; the phone's shape has other rules than the wide one, and shorter words than the other.
        for (lang, dark, width) in [
            ("en", false, 1_280),
            ("en", true, 390),
            ("zh", false, 390),
            ("zh", true, 1_280),
            ("en", false, 1_920),
        ] {
            let shape = format!("{name}-{width}-{}-{lang}", if dark { "dark" } else { "light" });
            chrome.cookie(&base, "heddle_lang", lang).await;
            chrome.shape(width, dark).await;
            chrome.open(&url).await;
            wrong.extend(faults(&mut chrome, &base, &shape).await);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    chrome.cookie(&base, "heddle_lang", "en").await;
    chrome.shape(1_280, false).await;
    a_person_at_work(&mut chrome, api).await;
}

/// What the demo has none of, so that few pages are empty.
async fn something_of_everything(api: &heddle_tests::Api, due: chrono::NaiveDate) {
    for size in [1, 2] {
        let task = json!({"script": "hello", "params": {"name": format!("size {size}")}});
        api.put_group("changed", json!({"tasks": {"a": task}})).await;
    }
    api.put_group("short-lived", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    api.delete("/v1/groups/short-lived").await.expect_status(200);
    let channel = json!({"kind": "webhook", "url": "http://127.0.0.1:9/", "allow_private": true});
    api.put("/v1/channels/hook", channel).await.expect_status(201);
    api.put("/v1/audiences/gid_all/members", json!({"members": ["ann", "bob"]}))
        .await;
    let secret = json!({"value": "nobody reads this", "groups": ["mixed"]});
    api.put("/v1/secrets/api-key", secret).await.expect_status(201);
    api.post("/v1/tokens", json!({"name": "viewer-of-pages", "role": "viewer"}))
        .await
        .expect_status(201);
    api.put("/v1/topics/letters", json!({"queue": "post"})).await;
    let messages: Vec<_> = (0..20)
        .map(|n| json!({"sender": n * 511, "receiver": n, "due": due.to_string(), "payload": {"n": n}}))
        .collect();
    api.post("/v1/topics/letters/messages", json!(messages))
        .await
        .expect_status(200);
    let past = json!({"from": "2014-01-01T00:00:00Z", "to": "2014-03-01T00:00:00Z"});
    api.post("/v1/groups/seattle-weather/backfills", past).await;
}

/// Names, titles, descriptions and choices that have no place at which a line may end; answers a run with them.
async fn names_as_long_as_may_be(api: &heddle_tests::Api) -> String {
    let [first, second] = [1, 2].map(|n| format!("load_customer_orders_from_the_warehouse_into_the_staging_area_{n}"));
    let (param, greek, word) = (format!("p_{}", "y".repeat(60)), "\u{3b6}".repeat(60), "L".repeat(200));
    let tasks = json!({
        &first: {"script": "hello"},
        &second: {"script": "hello", "depends_on": [&first]},
        &greek: {"script": "flaky", "params": {"fail_times": 9, "kind": "fatal"}, "depends_on": [&second]},
    });
    api.put_group("longnames", json!({"params": {&param: 1}, "tasks": tasks}))
        .await;
    let schema = json!({"type": "object", "properties": {
        &param: {"type": "string", "description": &word},
        "mode": {"enum": ["a", &word]},
        "list": {"type": "array", "title": &word},
    }});
    let text = format!("export const params = {schema};\nexport default function run() {{ return 1; }}");
    api.put_bytes("/v1/scripts/wide", "text/javascript", text)
        .await
        .expect_status(201);
    let run = api.start("longnames", json!({})).await;
    api.run_becomes(&run, "failed").await;
    run
}

/// Somebody who clicks, types and drags, with scripts and without.
async fn a_person_at_work(chrome: &mut Chrome, api: &heddle_tests::Api) {
    let base = api.base().to_owned();
    // From a form to a run that goes on, which ends while they look.
    api.put_group("nap", json!({"tasks": {"nap": {"script": "sleep"}}}))
        .await;
    for _ in 0..2 {
        chrome.open(&format!("{base}/groups/nap/run")).await;
        chrome
            .value("document.querySelector('[name=\"p.seconds\"]').value = '1'")
            .await;
        chrome.click("main form button.primary").await;
        chrome.until("location.pathname.startsWith('/runs/')").await;
        chrome.until("!!document.querySelector('#run-head .s-succeeded')").await;
        assert_eq!(
            chrome.value("document.querySelector('#live').dataset.state").await,
            "live"
        );
    }
    // A page that is left gives its connection back (a browser has six), and takes one again when it is come back to.
    chrome
        .value(
            "document.addEventListener('htmx:sseOpen', (event) => { window.source = event.detail.source; }); \
             dispatchEvent(new Event('pagehide')); dispatchEvent(new Event('pageshow')); 0",
        )
        .await;
    chrome.until("window.source?.readyState === EventSource.OPEN").await;
    let left = "dispatchEvent(new Event('pagehide')); window.source.readyState === EventSource.CLOSED";
    assert_eq!(chrome.value(left).await, true);
    // A click into the grid shows the details of the cell, next to it.
    chrome.open(&format!("{base}/groups/mixed")).await;
    let cell = "(() => { const svg = document.querySelector('svg[data-columns]'), at = svg.getBoundingClientRect(); \
                return [at.x + at.width - 10, at.y + 84 + 10]; })()";
    let at = chrome.value(cell).await;
    let at = [0, 1].map(|axis| at[axis].as_f64().unwrap());
    chrome.drag(at, at).await;
    chrome
        .until("document.querySelector('#detail').textContent.includes('good')")
        .await;
    a_spec_is_written(chrome, &base).await;
    a_large_graph_is_seen_whole(chrome, api).await;
    // A stretch of the durations leads to its runs.
    chrome.open(&format!("{base}/groups/nap/runs")).await;
    let from = chrome.point_of("svg.scatter", 0.2, 0.5).await;
    let to = chrome.point_of("svg.scatter", 1.0, 0.5).await;
    chrome.drag(from, to).await;
    chrome
        .until("location.pathname === '/runs' && location.search.includes('group=nap') && location.search.includes('logical_from')")
        .await;
    chrome
        .until("document.querySelectorAll('main table tbody tr').length === 1")
        .await;
    // What a user would be given: nothing is taken by looking.
    api.put("/v1/audiences/gid_people/members", json!({"members": ["ann"]}))
        .await;
    api.put("/v1/offers/greet", json!({"audience": "gid_people", "enabled": false}))
        .await;
    api.put(
        "/v1/offers/wave",
        json!({"audience": "uid_ann", "params": {"to": "bob"}}),
    )
    .await;
    chrome.open(&format!("{base}/dispatch")).await;
    chrome.value("document.querySelector('#as').value = 'ann'").await;
    for _ in 0..2 {
        // The second answer has the first one's address: this tells the page that is left from the one that comes.
        chrome.value("window.isLeft = true").await;
        chrome.click("main form[action='/dispatch/as'] button").await;
        chrome
            .until(
                "!window.isLeft && location.pathname === '/dispatch/as' \
                 && document.querySelector('.verdict')?.textContent.includes('wave')",
            )
            .await;
    }
    let said = chrome.value("document.querySelector('main').innerText").await;
    let said = said.as_str().unwrap();
    assert!(
        said.contains("returned by a poll") && said.contains("disabled"),
        "{said}"
    );
    keep(chrome, "poll-as-1280-light").await;
    let wrong = axe(chrome).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    chrome.shape(390, false).await;
    assert_eq!(chrome.value(NO_SCROLL).await, true);
    keep(chrome, "poll-as-390-light").await;
    a_timeline_fits_a_phone(chrome, api).await;
    chrome.shape(1_280, false).await;
    // Without any script: the same, by links and forms.
    chrome.scripts(false).await;
    chrome.open(&format!("{base}/groups/nap/run")).await;
    chrome.click("main form button.primary").await;
    chrome.until("location.pathname.startsWith('/runs/')").await;
    chrome.click("nav.tabs a[href$='/events']").await;
    chrome
        .until("location.pathname.endsWith('/events') && !!document.querySelector('main table')")
        .await;
    chrome.scripts(true).await;
    assert!(chrome.complaints(&base).is_empty(), "{:?}", chrome.complaints(&base));
}

/// A phone shows the whole of a timeline: what failed last is seen without moving anything.
async fn a_timeline_fits_a_phone(chrome: &mut Chrome, api: &heddle_tests::Api) {
    let failed = api.start("mixed", json!({})).await;
    api.run_becomes(&failed, "failed").await;
    chrome.open(&format!("{}/runs/{failed}", api.base())).await;
    let seen = "(() => { const timeline = document.querySelector('.timeline'), bars = [...timeline.querySelectorAll('svg .f-failed:not(.whole)')]; \
                return timeline.scrollWidth <= timeline.clientWidth && bars.length === 1 && bars.every((bar) => { \
                const at = bar.getBoundingClientRect(), box = timeline.getBoundingClientRect(); \
                return at.width >= 1 && at.left >= box.left && at.right <= box.right + 0.5; }); })()";
    assert_eq!(chrome.value(seen).await, true);
    keep(chrome, "timeline-390-light").await;
    // So does the sentence that says why a button may not be pressed.
    let seen = "(() => { const page = document.documentElement, refused = [...document.querySelectorAll('button.refused')]; \
                return refused.length >= 2 && refused.every((button) => { button.focus(); return page.scrollWidth <= page.clientWidth; }); })()";
    assert_eq!(chrome.value(seen).await, true);
    // So does it with the durations of a group's runs.
    chrome.open(&format!("{}/groups/mixed/runs", api.base())).await;
    let seen = "(() => { const dots = [...document.querySelectorAll('svg.scatter a rect, svg.scatter a circle')]; \
                return dots.length >= 2 && dots.every((dot) => dot.getBoundingClientRect().right <= innerWidth); })()";
    assert_eq!(chrome.value(seen).await, true);
}

/// The words of a spec have colours while it is written, each letter where the field has it, and what is wrong is said.
async fn a_spec_is_written(chrome: &mut Chrome, base: &str) {
    chrome.open(&format!("{base}/groups/nap/spec?edit=1")).await;
    chrome.until("!!document.querySelector('.lit > pre .t-key')").await;
    let writes = "(() => { const field = document.querySelector('#spec'); \
                  field.value = '# <b>why</b>\\ndescription: ' + 'many words '.repeat(40) + '\\nnumber: 12\\n'; \
                  field.dispatchEvent(new Event('input', {bubbles: true})); return 0; })()";
    chrome.value(writes).await;
    let same = "(() => { const field = document.querySelector('#spec'), under = document.querySelector('.lit > pre'); \
                return under.textContent === field.value + '\\u200b' && !under.querySelector('b') \
                && under.querySelector('.t-comment')?.textContent === '# <b>why</b>' \
                && under.querySelector('.t-number')?.textContent === '12' \
                && under.clientWidth === field.clientWidth && under.scrollHeight === field.scrollHeight; })()";
    assert_eq!(chrome.value(same).await, true);
    chrome
        .until("document.querySelector('#verdict').textContent.includes('number')")
        .await;
    keep(chrome, "spec-written-1280-light").await;
    let wrong = axe(chrome).await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // In a window that becomes narrower, the coloured text does too.
    let fits = format!(
        "{NO_SCROLL} && document.querySelector('.lit > pre').clientWidth === document.querySelector('#spec').clientWidth"
    );
    for width in [390, 1_280] {
        chrome.shape(width, false).await;
        chrome.until(&format!("innerWidth === {width} && {fits}")).await;
    }
    let json = "(() => { const field = document.querySelector('#spec'); field.value = '{\"tasks\": {}}'; \
                field.dispatchEvent(new Event('input', {bubbles: true})); return !!document.querySelector('.lit .t-property'); })()";
    assert_eq!(chrome.value(json).await, true);
}

/// A graph opens as large as there is room for all of it; nearer, it has names.
async fn a_large_graph_is_seen_whole(chrome: &mut Chrome, api: &heddle_tests::Api) {
    let tasks: serde_json::Map<String, Value> = (0..200_usize)
        .map(|task| {
            let needs: Vec<String> = match task {
                0..10 => Vec::new(),
                _ => vec![
                    format!("task-{}", task - 10),
                    format!("task-{}", (task / 10 - 1) * 10 + task * 7 % 10),
                ],
            };
            let needs: std::collections::BTreeSet<String> = needs.into_iter().collect();
            (format!("task-{task}"), json!({"script": "hello", "depends_on": needs}))
        })
        .collect();
    api.put_group("large", json!({ "tasks": tasks })).await;
    chrome.open(&format!("{}/groups/large/graph", api.base())).await;
    let whole = "(() => { const box = document.querySelector('.zoom'); return box.classList.contains('far') \
                 && box.scrollWidth <= box.clientWidth && box.scrollHeight <= box.clientHeight \
                 && box.querySelectorAll('.node').length === 200; })()";
    chrome.until(whole).await;
    keep(chrome, "graph-large-1280-light").await;
    for _ in 0..2 {
        chrome.click("[data-zoom='1.6']").await;
    }
    assert_eq!(
        chrome
            .value("document.querySelector('.zoom').classList.contains('far')")
            .await,
        false
    );
    chrome.click("[data-zoom='fit']").await;
    assert_eq!(chrome.value(whole).await, true);
}
