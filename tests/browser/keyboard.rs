//! A person without a mouse, and what a mouse shows that only rests: search, lists, the grid, dialogs, the way back.

use heddle_tests::World;
use serde_json::json;

use crate::chrome::Chrome;
use crate::open::{browser, open_signed_in};

/// Types a text, key by key, all of it at one instant: two keys that belong together would otherwise be too far apart on a
/// machine on which the browser is slow to take each of them.
async fn types(chrome: &mut Chrome, text: &str) {
    let now = chrome.clock().await;
    for letter in text.chars() {
        chrome.press_at(&letter.to_string(), Some(now)).await;
    }
}

/// Where the keys go.
const FOCUS: &str = "document.activeElement";

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_reached_by_keys() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    for name in ["weather", "letters"] {
        node.put_group(
            name,
            json!({"tasks": {"a": {"script": "hello"}, "b": {"script": "hello", "depends_on": ["a"]}}}),
        )
        .await;
        node.run(name, json!({})).await;
    }
    open_signed_in(&mut chrome, node.base(), "/").await;
    // The first step of the Tab key leads past the frame.
    chrome.press("Tab").await;
    chrome.until(&format!("{FOCUS}.className === 'skip'")).await;
    chrome.press("Enter").await;
    chrome.until("location.hash === '#main'").await;
    // Places, by two letters.
    types(&mut chrome, "gg").await;
    chrome
        .until("location.pathname === '/groups' && document.readyState === 'complete'")
        .await;
    // A list: the second row, and open it.
    types(&mut chrome, "jj").await;
    chrome
        .until("document.querySelectorAll('main tbody tr')[1].getAttribute('aria-selected') === 'true'")
        .await;
    types(&mut chrome, "k").await;
    chrome.until(&format!("{FOCUS}.textContent === 'letters'")).await;
    chrome.press("Enter").await;
    chrome
        .until("location.pathname === '/groups/letters' && document.readyState === 'complete'")
        .await;
    // The same by arrows; a row of a list of runs is opened as the run, not as its group.
    types(&mut chrome, "gr").await;
    chrome
        .until("location.pathname === '/runs' && document.readyState === 'complete'")
        .await;
    chrome.press("ArrowDown").await;
    chrome.press("ArrowDown").await;
    chrome.press("ArrowUp").await;
    chrome
        .until("document.querySelectorAll('main tbody tr')[0].getAttribute('aria-selected') === 'true'")
        .await;
    chrome.press("Enter").await;
    chrome
        .until("/^.runs.[0-9a-f-]{36}$/.test(location.pathname) && document.readyState === 'complete'")
        .await;
    chrome.value("history.back()").await;
    chrome
        .until("location.pathname === '/runs' && document.readyState === 'complete'")
        .await;
    chrome.value("history.back()").await;
    chrome
        .until("location.pathname === '/groups/letters' && document.readyState === 'complete'")
        .await;
    // The palette: it takes the keys, Escape gives them back, what it finds is opened.
    chrome.press("Control+k").await;
    chrome.until("document.querySelector('#palette').open").await;
    chrome.press("Escape").await;
    chrome.until("!document.querySelector('#palette').open").await;
    chrome.press("Control+k").await;
    chrome
        .until(&format!("document.querySelector('#palette').contains({FOCUS})"))
        .await;
    types(&mut chrome, "weath").await;
    // What is first, whichever letters it was found by: answers to fewer letters may still be replaced.
    chrome
        .until("document.querySelector('#found a')?.getAttribute('href') === '/groups/weather'")
        .await;
    chrome.press("ArrowDown").await;
    chrome.press("Enter").await;
    chrome
        .until("location.pathname === '/groups/weather' && document.readyState === 'complete'")
        .await;
    // One Escape closes it with a text in it, too.
    chrome.press("Control+k").await;
    chrome
        .until(&format!("document.querySelector('#palette').contains({FOCUS})"))
        .await;
    types(&mut chrome, "lett").await;
    chrome
        .until("!!document.querySelector('#found a[href=\"/groups/letters\"]')")
        .await;
    chrome.press("Escape").await;
    chrome.until("!document.querySelector('#palette').open").await;
    // Back is where one was.
    chrome.value("history.back()").await;
    chrome
        .until("location.pathname === '/groups/letters' && document.readyState === 'complete'")
        .await;
    // All keys are told, by a key, and go away by one.
    types(&mut chrome, "?").await;
    chrome.until("document.querySelector('#keys').open").await;
    chrome.press("Escape").await;
    chrome.until("!document.querySelector('#keys').open").await;
    // What is typed into a field is no command, and Escape leaves it.
    types(&mut chrome, "/").await;
    chrome.until(&format!("{FOCUS}.id === 'search'")).await;
    types(&mut chrome, "gr?").await;
    chrome
        .until(&format!(
            "{FOCUS}.value === 'gr?' && location.pathname === '/groups/letters'"
        ))
        .await;
    chrome.press("Escape").await;
    chrome.until(&format!("{FOCUS} === document.body")).await;
    // The theme, and it stays.
    types(&mut chrome, "t").await;
    chrome
        .until("['dark', 'light'].includes(document.documentElement.dataset.theme)")
        .await;
    assert_eq!(chrome.value("document.cookie.includes('heddle_theme=')").await, true);
}

/// A row that was chosen by keys stays chosen while its list changes: when it changes itself, and when others come before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_chosen_row_stays_chosen_in_a_list_that_goes_on() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    node.put_group("waits", json!({"tasks": {"a": {"queue": "nobody"}}}))
        .await;
    let older = node.start("waits", json!({})).await;
    let newer = node.start("waits", json!({})).await;
    open_signed_in(&mut chrome, node.base(), "/runs?group=waits").await;
    chrome
        .until("document.querySelector('#live').dataset.state === 'live' && document.querySelectorAll('main tbody tr').length === 2")
        .await;
    types(&mut chrome, "jj").await;
    // How many rows there are, and that only this one is chosen, in this state, with the focus.
    let chosen = |rows: usize, run: &str, state: &str| {
        format!(
            "(() => {{ const rows = document.querySelectorAll('main tbody tr'); \
             const chosen = document.querySelectorAll('main tbody tr[aria-selected]'); \
             return rows.length === {rows} && chosen.length === 1 && chosen[0].textContent.includes('{state}') \
                 && chosen[0].querySelector('[data-main]').getAttribute('href') === '/runs/{run}' \
                 && chosen[0].contains({FOCUS}); }})()"
        )
    };
    chrome.until(&chosen(2, &older, "running")).await;
    node.post(&format!("/v1/runs/{older}/cancel"), json!({}))
        .await
        .expect_status(200);
    chrome.until(&chosen(2, &older, "cancelled")).await;
    let newest = node.start("waits", json!({})).await;
    chrome.until(&chosen(3, &older, "cancelled")).await;
    // The keys go on from there.
    types(&mut chrome, "k").await;
    chrome.until(&chosen(3, &newer, "running")).await;
    types(&mut chrome, "k").await;
    chrome.until(&chosen(3, &newest, "running")).await;
}

/// Two keys lead to a place if they were pressed within a second and a half, however long the page needs to get to them.
#[tokio::test(flavor = "multi_thread")]
async fn two_keys_belong_together_by_when_they_were_pressed() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    open_signed_in(&mut chrome, node.base(), "/").await;
    // A key that leads somewhere writes nothing.
    let listens = "addEventListener('keydown', (event) => { window.led = event.defaultPrevented; }); 0";
    chrome.value(listens).await;
    let now = chrome.clock().await;
    chrome.press_at("g", Some(now)).await;
    chrome.press_at("r", Some(now + 2.0)).await;
    assert_eq!(chrome.value("window.led").await, false, "two seconds are too long");
    chrome.press_at("g", Some(now + 3.0)).await;
    chrome.press_at("r", Some(now + 4.0)).await;
    chrome.until("location.pathname === '/runs'").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_tells_what_it_is_to_those_who_point_and_to_those_who_type() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    node.put_group(
        "mixed",
        json!({"tasks": {
            "good": {"script": "hello"},
            "bad": {"script": "flaky", "params": {"fail_times": 9, "kind": "fatal"}, "depends_on": ["good"]},
        }}),
    )
    .await;
    let run = node.start("mixed", json!({})).await;
    node.run_becomes(&run, "failed").await;
    open_signed_in(&mut chrome, node.base(), "/groups/mixed").await;
    // By pointing: nothing is opened, nothing moves, and it goes away again.
    let cell = |row: u32| {
        format!(
            "(() => {{ const svg = document.querySelector('svg[data-columns]'), at = svg.getBoundingClientRect(); \
             return [at.x + at.width - 10, at.y + Number(svg.dataset.top) + {row} * Number(svg.dataset.size) + 10]; }})()"
        )
    };
    let at = chrome.value(&cell(1)).await;
    let at = [0, 1].map(|axis| at[axis].as_f64().unwrap());
    chrome.point(at).await;
    let tip = "document.querySelector('#tip')";
    chrome
        .until(&format!("!{tip}.hidden && {tip}.innerText.includes('failed')"))
        .await;
    let inside = format!(
        "(() => {{ const at = {tip}.getBoundingClientRect(); return at.left >= 0 && at.top >= 0 \
         && at.right <= innerWidth && at.bottom <= innerHeight; }})()"
    );
    assert_eq!(chrome.value(&inside).await, true, "all of it is in the window");
    assert_eq!(
        chrome
            .value("document.querySelector('#detail').childElementCount")
            .await,
        0
    );
    chrome.point([2.0, 2.0]).await;
    chrome.until(&format!("{tip}.hidden")).await;
    // By keys: into the grid, to a cell, open it, and the address says which.
    chrome
        .value("document.querySelector('svg[data-columns]').focus(); 0")
        .await;
    for key in ["ArrowDown", "ArrowDown"] {
        chrome.press(key).await;
    }
    chrome
        .until(&format!("!{tip}.hidden && {tip}.innerText.includes('bad')"))
        .await;
    chrome.press("Enter").await;
    chrome
        .until("document.querySelector('#detail').innerText.includes('bad')")
        .await;
    assert_eq!(chrome.value("location.search.includes('task=bad')").await, true);
    // Loaded anew, the same is open.
    chrome
        .open(&format!("{}/groups/mixed?run={run}&task=bad", node.base()))
        .await;
    chrome
        .until("document.querySelector('#detail').innerText.includes('bad')")
        .await;
    let run_link = format!("!!document.querySelector('#detail a[href=\"/runs/{run}\"] time')");
    assert_eq!(chrome.value(&run_link).await, true);
    // Escape closes it, and the address tells of none.
    chrome.press("Escape").await;
    chrome
        .until("document.querySelector('#detail').childElementCount === 0 && location.search === ''")
        .await;
    // By a click: nothing moves, and what is open is not told beside the pointer as well.
    chrome.point(at).await;
    chrome.until(&format!("!{tip}.hidden")).await;
    let positions = "[...document.querySelectorAll('svg[data-columns], .grid-names a')].map((one) => { \
                  const at = one.getBoundingClientRect(); return [at.x, at.y].join(); }).join(' ')";
    let before = chrome.value(positions).await;
    chrome.drag(at, at).await;
    chrome
        .until("document.querySelector('#detail').innerText.includes('bad')")
        .await;
    assert_eq!(chrome.value(positions).await, before);
    assert_eq!(chrome.value(&format!("{tip}.hidden")).await, true);
    // An address that names a cell marks it. A new run moves the columns, and the mark stays on its run.
    let mut newest = String::new();
    for _ in 0..25 {
        newest = node.start("mixed", json!({})).await;
    }
    chrome
        .open(&format!("{}/groups/mixed?run={newest}&task=bad", node.base()))
        .await;
    let marked = |column: u32| {
        format!(
            "(() => {{ const svg = document.querySelector('svg[data-columns]'), here = svg.querySelector('.here'); \
             return svg.dataset.runs.split(' ').indexOf('{newest}') === {column} && !here.hasAttribute('visibility') \
             && Number(here.getAttribute('x')) === {column} * Number(svg.dataset.size) + 1; }})()"
        )
    };
    chrome.until(&marked(24)).await;
    node.start("mixed", json!({})).await;
    chrome.until(&marked(23)).await;
}

/// Whoever presses a link or a cell of the grid hits it, with a finger too: 24 px each way, and none lies over another.
#[tokio::test(flavor = "multi_thread")]
async fn what_one_presses_in_the_grid_is_large_enough() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    node.put_group(
        "letters",
        json!({"tasks": {"a": {"script": "hello"}, "b": {"script": "hello", "depends_on": ["a"]}}}),
    )
    .await;
    for _ in 0..3 {
        node.run("letters", json!({})).await;
    }
    open_signed_in(&mut chrome, node.base(), "/groups/letters").await;
    // How many links there are, how many are too small, how many lie over another, and the side of a cell.
    let measured = "(() => { const all = [...document.querySelectorAll('.grid-scroll a')].map((one) => one.getBoundingClientRect()); \
                    const small = all.filter((at) => Math.min(at.width, at.height) < 23.9); \
                    const over = (a, b) => a.left < b.right - .1 && b.left < a.right - .1 && a.top < b.bottom - .1 && b.top < a.bottom - .1; \
                    const covered = all.filter((a, index) => all.slice(index + 1).some((b) => over(a, b))); \
                    const size = Number(document.querySelector('svg[data-columns]').dataset.size); \
                    return [all.length, small.length, covered.length, size]; })()";
    for width in [1280, 390] {
        chrome.shape(width, false).await;
        assert_eq!(chrome.value(measured).await, json!([5, 0, 0, 24]), "{width} px");
    }
    // A name is as high as its row of cells.
    let rows = "[...document.querySelectorAll('.grid-names a')].every((one, row) => { \
                const svg = document.querySelector('svg[data-columns]'), top = svg.getBoundingClientRect().top; \
                const first = top + Number(svg.dataset.top) + row * Number(svg.dataset.size); \
                return Math.abs(one.getBoundingClientRect().top - first) < .5; })";
    assert_eq!(chrome.value(rows).await, true);
}

/// However many tasks there are, the Tab key has three stops in the grid: the names, the cells, the bars of the runs.
#[tokio::test(flavor = "multi_thread")]
async fn the_grid_is_three_stops_of_the_tab_key() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    let tasks = (0..60).map(|n| (format!("t{n:02}"), json!({"script": "hello"})));
    let tasks: serde_json::Map<_, _> = tasks.collect();
    node.put_group("wide", json!({ "tasks": tasks })).await;
    for _ in 0..3 {
        node.run("wide", json!({})).await;
    }
    open_signed_in(&mut chrome, node.base(), "/groups/wide").await;
    let stops =
        "[...document.querySelectorAll('.grid-scroll, .grid-scroll *')].filter((one) => one.tabIndex >= 0).length";
    chrome.until(&format!("{stops} === 3")).await;
    let name = |at: u32| format!("{FOCUS} === document.querySelectorAll('.grid-names a')[{at}]");
    chrome.value("document.querySelector('.grid-names a').focus()").await;
    chrome.press("ArrowDown").await;
    chrome.press("ArrowDown").await;
    chrome.press("ArrowUp").await;
    chrome.until(&name(1)).await;
    // The cells.
    chrome.press("Tab").await;
    chrome.until(&format!("{FOCUS}.matches('svg[data-columns]')")).await;
    // Their ring is around what scrolls, which would cut it off.
    let ring = |of: &str| format!("getComputedStyle(document.querySelector('{of}')).outlineStyle");
    assert_eq!(chrome.value(&ring(".grid-scroll")).await, "solid");
    assert_eq!(chrome.value(&ring("svg[data-columns]")).await, "none");
    chrome.press("ArrowLeft").await;
    chrome
        .until("!document.querySelector('.here').hasAttribute('visibility')")
        .await;
    // The runs, beginning with the newest, and what follows the grid.
    let run = |at: u32| format!("{FOCUS} === document.querySelectorAll('svg[data-columns] > a')[{at}]");
    chrome.press("Tab").await;
    chrome.until(&run(2)).await;
    chrome.press("ArrowLeft").await;
    chrome.until(&run(1)).await;
    chrome.press("Tab").await;
    chrome.until(&format!("!{FOCUS}.closest('.grid-scroll')")).await;
    // An update writes the grid anew.
    node.run("wide", json!({})).await;
    let updated = "document.querySelectorAll('svg[data-columns] > a').length === 4";
    chrome.until(&format!("{updated} && {stops} === 3")).await;
    // A run is opened as a run, although a cell is marked.
    chrome
        .value("document.querySelector('svg[data-columns] > a').focus()")
        .await;
    chrome.press("Enter").await;
    chrome.until("location.pathname.startsWith('/runs/')").await;
}
