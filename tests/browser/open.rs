//! Pages that are open in a real browser while their node stops and returns, their session ends, somebody acts in
//! another tab, or a proxy withholds their events.

use heddle_tests::{Node, TOKEN, World};
use serde_json::{Value, json};

use crate::Visitor;
use crate::between::Between;
use crate::chrome::{self, Chrome};
use crate::looks::faults;

/// A browser, if there is one.
pub async fn browser() -> Option<Chrome> {
    let Some(program) = chrome::program() else {
        eprintln!("there is no Chromium here (Debian: apt-get install chromium): nothing was looked at");
        return None;
    };
    Some(Chrome::start(&program).await)
}

/// Opens a page as somebody who has signed in.
pub async fn open_signed_in(chrome: &mut Chrome, base: &str, path: &str) {
    let visitor = Visitor::signed_in(base, TOKEN).await;
    let (name, value) = visitor.cookie.split_once('=').unwrap();
    chrome.cookie(base, name, value).await;
    chrome.cookie(base, "heddle_lang", "en").await;
    chrome.open(&format!("{base}{path}")).await;
    // A page that is loaded anew forgets this.
    chrome.value("window.isTheSame = true").await;
}

pub async fn short_group(node: &Node) {
    node.put_group("short", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    node.run("short", json!({})).await;
}

/// So many rows, and the page says so about itself.
pub fn shows(rows: usize, says: &str) -> String {
    format!(
        "window.isTheSame && document.querySelectorAll('main table tbody tr').length === {rows} \
         && document.querySelector('#live').dataset.state === 'live' \
         && document.querySelector('#live').textContent.includes('{says}')"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_outlives_its_node() {
    let Some(mut chrome) = browser().await else { return };
    let world = World::new().await;
    let home = tempfile::tempdir().unwrap();
    let options = world.options().data_dir(home.path());
    let mut node = options.start().await;
    short_group(&node).await;
    let between = Between::start(node.authority(), false).await;
    open_signed_in(&mut chrome, &between.base, "/runs").await;
    chrome.until(&shows(1, "live")).await;
    node.kill();
    chrome
        .until("document.querySelector('#live').dataset.state !== 'live'")
        .await;
    let said = chrome.value("document.querySelector('#live').textContent").await;
    assert!(!said.as_str().unwrap().is_empty(), "it says in words what its dot does");
    // The same node, elsewhere: what has happened meanwhile is shown, by the page that was open all the time.
    let node = options.start().await;
    node.run("short", json!({})).await;
    between.leads_to(node.authority());
    chrome.until(&shows(2, "live")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_behind_a_proxy_that_gathers_is_up_to_date_all_the_same() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    short_group(&node).await;
    let between = Between::start(node.authority(), true).await;
    open_signed_in(&mut chrome, &between.base, "/runs").await;
    for rows in 2..4 {
        node.run("short", json!({})).await;
        chrome.until(&shows(rows, "every few seconds")).await;
    }
}

/// Over plain HTTP, a browser has no clipboard for a page: the text is selected, to be copied with a key.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_copied_without_a_clipboard() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    open_signed_in(&mut chrome, node.base(), "/system/tokens").await;
    chrome
        .value("document.querySelector('form [name=name]').value = 'mine'; 0")
        .await;
    chrome.click("form[action='/system/tokens'] button.primary").await;
    chrome.until("!!document.querySelector('[data-copy]')").await;
    let hide = "Object.defineProperty(navigator, 'clipboard', {value: undefined}); 0";
    chrome.value(hide).await;
    chrome.click("[data-copy]").await;
    chrome
        .until("getSelection().toString().trim() === document.querySelector('[data-copy]').dataset.copy")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tabs_are_of_one_mind_and_end_with_their_session() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    let base = node.base().to_owned();
    node.put_group(
        "long",
        json!({"tasks": {"a": {"script": "sleep", "params": {"seconds": 60}}}}),
    )
    .await;
    let run = node.start("long", json!({})).await;
    node.run_becomes(&run, "running").await;
    let made = json!({"name": "ann", "role": "operator"});
    let made = node.post("/v1/tokens", made).await.expect_status(201);
    // Asked to sign in, and led to where one wanted to go.
    chrome.cookie(&base, "heddle_lang", "en").await;
    let page = format!("{base}/runs/{run}");
    chrome.open(&page).await;
    sign_in(&mut chrome, made["token"].as_str().unwrap()).await;
    let here = format!("location.pathname === '/runs/{run}' && !!document.querySelector('#run-head')");
    chrome.until(&here).await;
    chrome.value("window.isTheSame = true").await;
    let first = chrome.tab().await;
    chrome.open(&page).await;
    // What is done in one tab is seen in the other.
    chrome.value("window.confirm = () => true; 0").await;
    chrome.click("form[action$='/cancel'] button").await;
    chrome.until("!!document.querySelector('#run-head .s-cancelled')").await;
    let second = chrome.turn_to(first).await;
    chrome
        .until("window.isTheSame && !!document.querySelector('#run-head .s-cancelled')")
        .await;
    assert_eq!(
        chrome
            .value(
                "!document.querySelector('form[action$=\"/cancel\"]') && \
                 [...document.querySelectorAll('button.refused[aria-disabled=true]')]\
                 .some((button) => button.getAttribute('aria-label').startsWith('Cancel:'))"
            )
            .await,
        true,
        "what has been done is not offered again"
    );
    // A tab that has not heard of it yet: it is told so, in words.
    let visitor = Visitor::signed_in(&base, TOKEN).await;
    let again = visitor.post(&format!("/runs/{run}/cancel"), &[]).await;
    let said = again.headers["set-cookie"].to_str().unwrap();
    assert!(said.starts_with("heddle_said=%21"), "{said}");
    // The session ends, by somebody else: both tabs ask to sign in, and lead back.
    node.delete("/v1/sessions/ann").await.expect_status(200);
    let asked = "!!document.querySelector('form[action=\"/sign-in\"] [name=token]')";
    chrome.until(asked).await;
    chrome.turn_to(second).await;
    chrome.until(asked).await;
    sign_in(&mut chrome, made["token"].as_str().unwrap()).await;
    chrome.until(&here).await;
    // What a page shows is deleted: the page says so, and by whom.
    chrome.open(&format!("{base}/groups/long")).await;
    chrome
        .until("document.querySelector('#live')?.dataset.state === 'live'")
        .await;
    node.delete("/v1/groups/long").await.expect_status(200);
    chrome
        .until("document.querySelector('#live').dataset.state === 'stale'")
        .await;
    let text = "document.querySelector('main').innerText";
    chrome.until(&format!("{text}.includes('was deleted by')")).await;
    chrome.open(&format!("{base}/groups/long")).await;
    let text = chrome.value(text).await;
    assert!(text.as_str().unwrap().contains("was deleted by"), "{text}");
}

/// The database goes away: an open page says so, a newly opened one says so and reloads by itself when the database is
/// back.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_comes_back_with_its_database() {
    let Some(mut chrome) = browser().await else { return };
    let (world, node) = World::with_node().await;
    short_group(&node).await;
    let base = node.base().to_owned();
    open_signed_in(&mut chrome, &base, "/runs").await;
    chrome.until(&shows(1, "live")).await;
    // All that the dot says from now on.
    let watches = "window.said = []; new MutationObserver(() => window.said.push(document.querySelector('#live').dataset.state)) \
                   .observe(document.querySelector('#live'), {attributes: true, attributeFilter: ['data-state']}); 0";
    chrome.value(watches).await;
    let owner = world.sql_as_owner().await;
    let allow = format!("ALTER DATABASE {} ALLOW_CONNECTIONS", world.database());
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
        world.database()
    );
    owner.batch_execute(&format!("{allow} false")).await.unwrap();
    owner.query(&cut, &[]).await.unwrap();
    chrome
        .until("window.isTheSame && document.querySelector('#live').dataset.state === 'stale'")
        .await;
    let first = chrome.tab().await;
    chrome.open(&format!("{base}/runs")).await;
    chrome
        .until("document.body.innerText.includes('database does not answer')")
        .await;
    let wrong = faults(&mut chrome, &base, "away-1280-light").await;
    assert!(wrong.is_empty(), "{wrong:#?}");
    owner.batch_execute(&format!("{allow} true")).await.unwrap();
    // Nobody presses anything.
    chrome
        .until("document.querySelectorAll('main table tbody tr').length === 1")
        .await;
    chrome.turn_to(first).await;
    node.run("short", json!({})).await;
    chrome.until(&shows(2, "live")).await;
    // It was out of date until it was live.
    let said = chrome.value("window.said.join(' ')").await;
    let said = said.as_str().unwrap();
    assert!(
        said.ends_with("stale live") && said.matches("stale").count() == 1,
        "{said}"
    );
}

/// Without any script all pages are whole, and links and forms lead on.
#[tokio::test(flavor = "multi_thread")]
async fn a_browser_without_scripts_gets_everywhere() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    short_group(&node).await;
    node.put_group(
        "bad",
        json!({"tasks": {"t": {"script": "flaky", "params": {"fail_times": 9, "kind": "fatal"}}}}),
    )
    .await;
    let failed = node.start("bad", json!({})).await;
    node.run_becomes(&failed, "failed").await;
    chrome.scripts(false).await;
    open_signed_in(&mut chrome, node.base(), "/").await;
    let links = "[...document.querySelectorAll('.rail a[href^=\"/\"], nav.tabs a')].map((a) => a.getAttribute('href'))";
    let mut pages = vec![
        "/".to_owned(),
        "/groups/short".into(),
        format!("/runs/{failed}"),
        "/scripts/hello".into(),
        "/system".into(),
    ];
    let mut seen = std::collections::BTreeSet::new();
    while let Some(path) = pages.pop() {
        // The API's own page is another's, and needs a script.
        if path == "/docs" || !seen.insert(path.clone()) {
            continue;
        }
        chrome.open(&format!("{}{path}", node.base())).await;
        let there = chrome
            .value("!!document.querySelector('main h1') && !document.querySelector('main .trouble')")
            .await;
        assert_eq!(there, true, "{path}");
        let found = chrome.value(links).await;
        pages.extend(
            found
                .as_array()
                .unwrap()
                .iter()
                .map(|href| href.as_str().unwrap().to_owned()),
        );
    }
    assert!(seen.len() > 25, "{seen:?}");
    // A search, a filter, a restart.
    chrome.open(&format!("{}/search?q=bad", node.base())).await;
    chrome
        .until("!!document.querySelector('main a[href=\"/groups/bad\"]')")
        .await;
    chrome.open(&format!("{}/runs?state=failed", node.base())).await;
    chrome.click(&format!("main a[href='/runs/{failed}']")).await;
    chrome
        .until("!!document.querySelector('form[action$=\"/restart\"]')")
        .await;
    chrome.click("form[action$='/restart'] button").await;
    chrome
        .until("document.querySelector('.said')?.textContent.includes('Restarted')")
        .await;
}

pub async fn sign_in(chrome: &mut Chrome, token: &str) {
    let fill = format!("document.querySelector('[name=token]').value = {}", Value::from(token));
    chrome.value(&fill).await;
    chrome.click("form[action='/sign-in'] button[type=submit]").await;
}
