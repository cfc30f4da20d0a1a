//! Pages that stay open: what changes while they do, and what becomes of what they show.

use std::time::{Duration, Instant};

use heddle_tests::{TOKEN, World, eventually, path_part};
use reqwest::StatusCode;
use serde_json::json;

use crate::open::{browser, open_signed_in, shows};
use crate::{Visitor, check_page, hear};

#[expect(clippy::disallowed_methods, reason = "what is sent is timed")]
fn now() -> Instant {
    Instant::now()
}

/// Whoever reads the spec of a group hears that somebody has deleted the group.
#[tokio::test]
async fn a_group_that_goes_away_while_its_spec_is_open_is_said() {
    let (_world, node) = World::with_node().await;
    node.put_group("short", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let page = visitor.get("/groups/short/spec").await.fine();
    let mut stream = visitor.opens(&page).await;
    hear(&mut stream, &["event: here"]).await;
    node.delete("/v1/groups/short").await.expect_status(200);
    hear(&mut stream, &["event: over", "data: gone"]).await;
}

/// Whoever reads the newest spec hears that there is a newer one. Who asked for a certain revision has what they asked for.
#[tokio::test]
async fn a_spec_that_is_saved_while_it_is_open_is_said() {
    let (_world, node) = World::with_node().await;
    let spec = |description: &str| json!({"description": description, "tasks": {"a": {"script": "hello"}}});
    node.put_group("saved", spec("before")).await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let link = "<a href=\"/groups/saved/spec\">the spec below is older: show revision 2</a>";
    let mut open = Vec::new();
    for (path, is_told) in [("/groups/saved/spec", true), ("/groups/saved/spec?revision=1", false)] {
        let page = visitor.get(path).await.fine();
        assert!(!page.contains("the spec below is older"), "{page}");
        let mut stream = visitor.opens(&page).await;
        hear(&mut stream, &["event: here"]).await;
        open.push((stream, is_told));
    }
    node.put_group("saved", spec("after")).await;
    for (stream, is_told) in &mut open {
        let heard = hear(stream, &["event: group-head", "after", "</p>"]).await;
        assert_eq!(heard.contains(link), *is_told, "{heard}");
    }
    // Whoever loads it is not told any more.
    let page = visitor.get("/groups/saved/spec?shown=1").await.fine();
    assert!(
        page.contains("after") && !page.contains("the spec below is older"),
        "{page}"
    );
    let mut stream = visitor.opens(&page).await;
    let heard = hear(&mut stream, &["event: here"]).await;
    assert!(!heard.contains("the spec below is older"), "{heard}");
}

/// Its header counts on, and so does its timeline, though nothing happens: nobody claims its task.
#[tokio::test]
async fn the_timeline_of_a_run_that_goes_on_does_too() {
    let (_world, node) = World::with_node().await;
    node.put_group("by-hand", json!({"tasks": {"stamp": {"queue": "people"}}}))
        .await;
    let run = node.start("by-hand", json!({})).await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let page = visitor.get(&format!("/runs/{run}")).await.fine();
    let mut stream = visitor.opens(&page).await;
    hear(&mut stream, &["event: here"]).await;
    for _ in 0..3 {
        let heard = hear(&mut stream, &["event: timeline\n"]).await;
        // That it is up to date is said again only after a time in which nothing was sent.
        assert!(!heard.contains("event: here"), "{heard}");
    }
}

/// The API tells it as an error of all params.
#[tokio::test]
async fn a_missing_param_is_told_at_its_field() {
    let (_world, node) = World::with_node().await;
    node.put_group("counts", json!({"tasks": {"t": {"script": "fib"}}}))
        .await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let wrong = visitor.post("/groups/counts/run", &[]).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    let wrong = wrong.text;
    assert!(wrong.contains("n: this is required"), "{wrong}");
    assert_eq!(wrong.matches("aria-invalid=\"true\"").count(), 1, "{wrong}");
    assert!(wrong.contains("aria-describedby=\"told-0\""), "{wrong}");
}

#[tokio::test]
async fn a_run_is_started_with_a_form_and_watched() {
    let (_world, node) = World::with_node().await;
    node.put_group("slow", json!({"tasks": {"nap": {"script": "sleep"}}}))
        .await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let form = visitor.get("/groups/slow/run").await.fine();
    assert!(form.contains("name=\"p.seconds\""), "{form}");
    let wrong = visitor.post("/groups/slow/run", &[("p.seconds", "soon")]).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        wrong.text.contains("seconds: <code>soon</code> is not a number") && wrong.text.contains("value=\"soon\""),
        "{}",
        wrong.text
    );
    // All that is wrong is said at once, each at its field, also at one that is folded away otherwise.
    let fields = [("p.seconds", "soon"), ("params", "["), ("priority", "high")];
    let wrong = visitor.post("/groups/slow/run", &fields).await.text;
    assert_eq!(wrong.matches("aria-invalid=\"true\"").count(), 3, "{wrong}");
    assert_eq!(wrong.matches("<details open>").count(), 2, "{wrong}");
    for told in ["told-0", "told-params", "told-priority"] {
        assert!(
            wrong.contains(&format!("aria-describedby=\"{told}\"")) && wrong.contains(&format!("id=\"{told}\"")),
            "{told}: {wrong}"
        );
    }
    let started = visitor.post("/groups/slow/run", &[("p.seconds", "1.5")]).await;
    assert_eq!(started.status, StatusCode::SEE_OTHER, "{}", started.text);
    let path = started.leads_to().to_owned();
    let page = visitor.get(&path).await.fine();
    visitor.hears(&page, &["event: run-head", "s-succeeded"]).await;
    let id = path.rsplit('/').next().unwrap();
    assert_eq!(node.ended(id).await["state"], "succeeded");
    // Cancelled, with a form, in the middle.
    let started = visitor.post("/groups/slow/run", &[("p.seconds", "60")]).await;
    let path = started.leads_to().to_owned();
    node.run_becomes(path.rsplit('/').next().unwrap(), "running").await;
    visitor.post(&format!("{path}/cancel"), &[]).await;
    assert_eq!(node.ended(path.rsplit('/').next().unwrap()).await["state"], "cancelled");
}

#[tokio::test]
async fn what_goes_away_while_a_page_is_open_is_said() {
    let (world, node) = World::with_node().await;
    node.put_group("brief", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    let made = node
        .post("/v1/tokens", json!({"name": "passing", "role": "operator"}))
        .await
        .expect_status(201);
    let visitor = Visitor::signed_in(node.base(), made["token"].as_str().unwrap()).await;
    // A group that somebody disables, and then deletes.
    let page = visitor.get("/groups/brief").await.fine();
    tokio::join!(visitor.hears(&page, &["event: group-head"]), async {
        node.post("/v1/groups/brief/disable", json!({}))
            .await
            .expect_status(200);
    });
    let page = visitor.get("/groups/brief").await.fine();
    let (heard, ()) = tokio::join!(visitor.hears(&page, &["event: over", "data: gone"]), async {
        node.delete("/v1/groups/brief").await.expect_status(200);
    });
    assert!(!heard.contains("signed-out"), "{heard}");
    let gone = visitor.get("/groups/brief").await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    check_page("/groups/brief", &gone);
    assert!(
        gone.text.contains("was deleted by") && gone.text.contains("/system/audit?kind=group"),
        "{}",
        gone.text
    );
    // A session that ends while nobody looks at the page, which has given its stream back: it is told when it asks again.
    let left = Visitor::signed_in(node.base(), made["token"].as_str().unwrap()).await;
    let page = left.get("/runs").await.fine();
    left.post("/sign-out", &[]).await;
    left.hears(&page, &["event: over", "data: signed-out"]).await;
    // The database, which comes back.
    let page = visitor.get("/runs").await.fine();
    let mut stream = visitor.opens(&page).await;
    hear(&mut stream, &["event: here"]).await;
    let owner = world.sql_as_owner().await;
    let allow = format!("ALTER DATABASE {} ALLOW_CONNECTIONS", world.database());
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
        world.database()
    );
    let away = async {
        owner.batch_execute(&format!("{allow} false")).await.unwrap();
        owner.query(&cut, &[]).await.unwrap();
        let shown = eventually("page that says that the database is away", async || {
            Some(visitor.get("/runs").await).filter(|page| page.status == StatusCode::SERVICE_UNAVAILABLE)
        })
        .await;
        assert!(
            shown.text.contains("database does not answer") && shown.text.contains("http-equiv=\"refresh\""),
            "{}",
            shown.text
        );
        // A browser with scripts looks by itself, and the page has its main part.
        assert!(
            shown.text.contains("data-again=\"5\"") && shown.text.contains("<main id=\"main\""),
            "{}",
            shown.text
        );
        assert!(shown.text.contains("<noscript><meta http-equiv"), "{}", shown.text);
        // So does that for somebody of whom only the database knows.
        let mut unknown = Visitor::new(node.base());
        let last = if visitor.cookie.ends_with('0') { "1" } else { "0" };
        unknown.cookie = format!("{}{last}", &visitor.cookie[..visitor.cookie.len() - 1]);
        let shown = unknown.get("/runs").await;
        assert!(shown.text.contains("<main id=\"main\""), "{}", shown.text);
    };
    tokio::join!(hear(&mut stream, &["event: away"]), away);
    owner.batch_execute(&format!("{allow} true")).await.unwrap();
    eventually("page", async || {
        Some(visitor.get("/runs").await).filter(|page| page.status == StatusCode::OK)
    })
    .await
    .fine();
    // A page that stayed open hears of it, though nothing on it has changed.
    hear(&mut stream, &["event: here"]).await;
}

/// A token that is revoked, a session that is ended: pages that are open end with it, on every node, and do not wait for
/// anything else to happen.
#[tokio::test]
async fn a_page_ends_with_what_its_viewer_has_shown() {
    /// More than it takes on a machine that is busy, and less than the minute after which a page is made again anyway.
    const SOON: Duration = Duration::from_secs(45);
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let make = async |name: &str| {
        let body = json!({"name": name, "role": "operator"});
        let made = nodes[0].post("/v1/tokens", body).await.expect_status(201);
        made["token"].as_str().unwrap().to_owned()
    };
    for (what, path) in [("revoked", "/queues"), ("ended", "/groups?q=a")] {
        let token = make(what).await;
        let here = Visitor::signed_in(nodes[0].base(), &token).await;
        let mut there = Visitor::new(nodes[1].base());
        there.cookie = here.cookie.clone();
        let mut streams = [
            here.opens(&here.get("/runs").await.fine()).await,
            there.opens(&there.get(path).await.fine()).await,
        ];
        for stream in &mut streams {
            hear(stream, &["event: here"]).await;
        }
        if what == "revoked" {
            nodes[0].delete(&format!("/v1/tokens/{what}")).await.expect_status(204);
        } else {
            assert_eq!(here.post("/sign-out", &[]).await.leads_to(), "/sign-in");
        }
        for stream in &mut streams {
            let heard = hear(stream, &["event: over", "data: signed-out"]);
            let heard = tokio::time::timeout(SOON, heard).await;
            assert!(heard.is_ok(), "{what}: a page stays open");
        }
        // The browser loads the page anew, and is led back to it.
        let asked = there.get(path).await.fine();
        let back = format!("name=\"to\" value=\"{path}\"");
        assert!(asked.contains("name=\"token\"") && asked.contains(&back), "{asked}");
    }
}

/// The page of a run says that the run is gone, whoever has removed it: somebody, or the retention.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_goes_away_while_its_page_is_open_is_said() {
    /// More than it takes on a machine that is busy, and less than the minute after which a page is made again anyway.
    const SOON: Duration = Duration::from_secs(30);
    let old = "now() - interval '3 days'";
    let (_world, node) = World::with_old_run(old, old).await;
    let all = node.get("/v1/runs?history=true").await.expect_status(200);
    let old = heddle_tests::id(&all["items"][0]);
    let new = heddle_tests::id(&node.run("old", json!({})).await);
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let mut streams = Vec::new();
    for run in [&new, &old] {
        let page = visitor.get(&format!("/runs/{run}")).await.fine();
        let mut stream = visitor.opens(&page).await;
        hear(&mut stream, &["event: here"]).await;
        streams.push(stream);
    }
    let mut chrome = browser().await;
    if let Some(chrome) = &mut chrome {
        open_signed_in(chrome, node.base(), &format!("/runs/{old}")).await;
    }
    // Nothing happens to the runs for so long that the pages are told that nothing has happened.
    for stream in &mut streams {
        hear(stream, &["event: here"]).await;
    }
    node.delete(&format!("/v1/runs/{new}")).await.expect_status(204);
    let mut retention = node.get("/v1/retention").await.expect_status(200);
    retention["runs"] = json!("50h");
    node.put("/v1/retention", retention).await.expect_status(200);
    // A round leaves out a table that is in use.
    eventually("removal of the old run", async || {
        let prune = node.post("/v1/retention/prune", json!({"dry_run": false}));
        prune.await.expect_status(200);
        (node.get(&format!("/v1/runs/{old}")).await.status == 404).then_some(())
    })
    .await;
    for (stream, run) in streams.iter_mut().zip([&new, &old]) {
        let heard = hear(stream, &["event: over", "data: gone"]);
        let heard = tokio::time::timeout(SOON, heard).await;
        assert!(heard.is_ok(), "the page of {run} stays as it was");
    }
    // What people read there.
    let Some(mut chrome) = chrome else { return };
    let says = |text: &str| {
        format!(
            "window.isTheSame && document.querySelector('#live').dataset.state === 'stale' \
             && document.querySelector('main').innerText.includes('{text}')"
        )
    };
    chrome.until(&says("older than the retention allows")).await;
    let seen = heddle_tests::id(&node.run("old", json!({})).await);
    open_signed_in(&mut chrome, node.base(), &format!("/runs/{seen}/log")).await;
    chrome
        .until("document.querySelector('#live').dataset.state === 'live'")
        .await;
    node.delete(&format!("/v1/runs/{seen}")).await.expect_status(204);
    chrome.until(&says("was deleted by")).await;
}

/// A page that was left is come back to when it has to look as it did when it was loaded. It had changed in between.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_goes_from_a_page_that_is_come_back_to() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    node.put_group("waits", json!({"tasks": {"t": {"queue": "nobody"}}}))
        .await;
    open_signed_in(&mut chrome, node.base(), "/runs?group=waits&state=running").await;
    chrome.until(&shows(0, "live")).await;
    for _ in 0..2 {
        let run = node.start("waits", json!({})).await;
        chrome.until(&shows(1, "live")).await;
        chrome.value("dispatchEvent(new Event('pagehide')); 0").await;
        node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
            .await
            .expect_status(200);
        node.run_becomes(&run, "cancelled").await;
        chrome.value("dispatchEvent(new Event('pageshow')); 0").await;
        chrome.until(&shows(0, "live")).await;
    }
}

/// A list that grows beyond its page while it is open gets the link to the next page, and no row more.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_grows_beyond_its_page_leads_on() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    let spec = |text: &str| json!({"description": text, "tasks": {"a": {"script": "hello"}}});
    node.put_group("short", spec("grows")).await;
    let runs = async |count: usize| {
        for _ in 0..count {
            node.run("short", json!({})).await;
        }
    };
    let shows = |rows: usize, leads_on: bool| {
        format!(
            "window.isTheSame && document.querySelector('#live').dataset.state === 'live' \
             && document.querySelectorAll('main table tbody tr').length === {rows} \
             && !!document.querySelector('main p.more a') === {leads_on}"
        )
    };
    open_signed_in(&mut chrome, node.base(), "/runs?group=short").await;
    let offers = "document.querySelector('form[action=\"/runs/bulk\"]').checkVisibility()";
    assert_eq!(chrome.value(offers).await, false, "there is nothing to control");
    runs(50).await;
    chrome.until(&shows(50, false)).await;
    chrome.until(offers).await;
    runs(1).await;
    chrome.until(&shows(50, true)).await;
    // The link leads to the rest, also after the list has grown once more.
    runs(2).await;
    let newest = node.get("/v1/runs?limit=1").await.expect_status(200);
    let newest = heddle_tests::id(&newest["items"][0]);
    chrome
        .until(&format!("!!document.querySelector('main a[href=\"/runs/{newest}\"]')"))
        .await;
    chrome.click("main p.more a").await;
    chrome
        .until("!window.isTheSame && document.querySelectorAll('main table tbody tr').length === 3")
        .await;
    // So do other lists.
    for number in 1..50 {
        node.put_group(&format!("one-{number}"), spec("grows")).await;
    }
    open_signed_in(&mut chrome, node.base(), "/groups").await;
    chrome.until(&shows(50, false)).await;
    node.put_group("one-50", spec("grows")).await;
    chrome.until(&shows(50, true)).await;
    open_signed_in(&mut chrome, node.base(), "/system/audit?kind=group&name=short").await;
    chrome.until(&shows(1, false)).await;
    for number in 0..50 {
        node.put_group("short", spec(&format!("grows {number}"))).await;
    }
    chrome.until(&shows(50, true)).await;
}

/// The audit and the page of a script tell what people change while they are open.
#[tokio::test]
async fn what_people_change_comes_onto_open_pages() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let upload = async |n: u32| {
        let text = format!("export default () => {n};\n");
        node.put_bytes("/v1/scripts/report", "text/javascript", text)
            .await
            .expect_status(201);
    };
    upload(1).await;
    let mut script = visitor.opens(&visitor.get("/scripts/report").await.fine()).await;
    let mut audit = visitor.opens(&visitor.get("/system/audit").await.fine()).await;
    for stream in [&mut script, &mut audit] {
        hear(stream, &["event: here"]).await;
    }
    upload(2).await;
    hear(&mut script, &["event: versions", "source?version=2"]).await;
    // Who uses it, too.
    node.put_group("reports", json!({"tasks": {"t": {"script": "report"}}}))
        .await;
    hear(&mut script, &["event: versions", "/groups/reports"]).await;
    node.put("/v1/pools/printers", json!({"slots": 3})).await;
    hear(&mut audit, &["event: audit", "printers"]).await;
    // A later page of the audit stays as it is, and so does the form of the console.
    let newest = node.get("/v1/audit?limit=1").await.expect_status(200);
    let cursor = path_part(newest["next_cursor"].as_str().unwrap());
    for path in [
        format!("/system/audit?cursor={cursor}"),
        "/scripts/report/console".into(),
    ] {
        let page = visitor.get(&path).await.fine();
        assert!(!page.contains("sse-connect"), "{path}: {page}");
    }
}

/// The page of the retention tells the rules as they are while it is open, and what they would remove, to those who may ask
/// for that.
#[tokio::test]
async fn changed_rules_come_onto_the_open_page_of_the_retention() {
    let old = "now() - interval '3 days'";
    let (_world, node) = World::with_old_run(old, old).await;
    let token = json!({"name": "sees", "role": "viewer"});
    let token = node.post("/v1/tokens", token).await.expect_status(201);
    let sees = Visitor::signed_in(node.base(), token["token"].as_str().unwrap()).await;
    let rules = Visitor::signed_in(node.base(), TOKEN).await;
    let mut streams = Vec::new();
    for visitor in [&rules, &sees] {
        let page = visitor.get("/system/retention").await.fine();
        let mut stream = visitor.opens(&page).await;
        hear(&mut stream, &["event: here"]).await;
        streams.push(stream);
    }
    let mut retention = node.get("/v1/retention").await.expect_status(200);
    retention["runs"] = json!("50h");
    node.put("/v1/retention", retention).await.expect_status(200);
    // The runs of the new rules are counted, although those of the old ones were counted just now.
    let whole = ["event: retention", "2 d 2 h", "Lists that do not ask"];
    let heard = hear(&mut streams[0], &whole).await;
    let succeeded = heard.rsplit("<tr>").find(|row| row.contains("Runs that succeeded"));
    let succeeded = succeeded.unwrap_or_else(|| panic!("no rule: {heard}"));
    assert!(
        succeeded.contains(">2 d 2 h<") && succeeded.contains(">1<"),
        "{succeeded}"
    );
    let heard = hear(&mut streams[1], &whole).await;
    assert!(!heard.contains("To remove now"), "{heard}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_has_opened_stays_open() {
    let Some(mut chrome) = browser().await else { return };
    let (_world, node) = World::with_node().await;
    node.put("/v1/pools/letters", json!({"slots": 3})).await;
    open_signed_in(&mut chrome, node.base(), "/system/audit?kind=pool").await;
    chrome
        .until("document.querySelector('#live').dataset.state === 'live'")
        .await;
    chrome.click("#audit details summary").await;
    chrome.until("document.querySelector('#audit details').open").await;
    node.put("/v1/pools/parcels", json!({"slots": 2})).await;
    // The new entry is above, folded; the other one is as it was.
    chrome
        .until(
            "[...document.querySelectorAll('#audit tbody tr')].map((row) => row.querySelector('details').open).join() === 'false,true'",
        )
        .await;
}

/// After a large update of a page the next one waits in relation to its size, however much happens meanwhile.
#[tokio::test]
async fn a_large_part_is_not_sent_all_the_time() {
    let (_world, node) = World::with_node().await;
    let mut tasks = serde_json::Map::new();
    for number in 0..400 {
        let task = json!({"script": "hello", "trigger_rule": "always", "depends_on": if number > 0 { vec!["t000"] } else { vec![] }});
        tasks.insert(format!("t{number:03}"), task);
    }
    node.put_group("large", json!({ "tasks": tasks })).await;
    node.put_group("small", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    node.run("large", json!({})).await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    // How long it is between two updates of a page, and how much the first of them was.
    let between = async |path: &str, group: &str| {
        let page = visitor.get(path).await.fine();
        let mut stream = visitor.opens(&page).await;
        hear(&mut stream, &["event: here"]).await;
        let (api, group) = (node.api().clone(), group.to_owned());
        let load = tokio::spawn(async move {
            loop {
                let run = api.start(&group, json!({})).await;
                api.ended(&run).await;
            }
        });
        let mut updates: Vec<(Instant, usize)> = Vec::new();
        let mut heard = String::new();
        while updates.len() < 2 {
            let piece = stream.chunk().await.unwrap().expect("it goes on");
            heard.push_str(&String::from_utf8_lossy(&piece));
            // An event is whole with its empty line.
            while let Some(end) = heard.find("\n\n") {
                let event: String = heard.drain(..end + 2).collect();
                if event.contains("event: grid") || event.contains("event: runs") {
                    updates.push((now(), event.len()));
                }
            }
        }
        load.abort();
        (updates[1].0 - updates[0].0, updates[0].1)
    };
    let (pause, bytes) = between("/groups/large", "large").await;
    assert!(bytes > 48 * 1_024, "{bytes} bytes");
    let least = Duration::from_secs_f64((bytes as f64 / 65_536.0).min(2.0));
    assert!(
        pause.as_secs_f64() > least.as_secs_f64() * 0.9,
        "{pause:?} after {bytes} bytes"
    );
    // A small one is followed by the next as soon as before.
    let (_, bytes) = between("/runs", "small").await;
    assert!(bytes < 48 * 1_024, "{bytes} bytes");
}
