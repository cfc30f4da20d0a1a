//! What is sent: every page, for whatever people wrote.

use std::collections::BTreeSet;

use heddle_tests::{TOKEN, World, eventually};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::{Visitor, check_page, group_with_everything};

/// Pages that there are whatever is in the database.
const PAGES: [&str; 25] = [
    "/",
    "/groups",
    "/groups/new",
    "/runs",
    "/backfills",
    "/scripts",
    "/queues",
    "/dispatch",
    "/topics",
    "/notifications",
    "/system",
    "/system/pools",
    "/system/connections",
    "/system/secrets",
    "/system/tokens",
    "/system/channels",
    "/system/retention",
    "/system/audit",
    "/preferences",
    "/search?q=a",
    "/scripts/echo",
    "/scripts/echo/console",
    "/groups?q=nothing",
    "/groups?view=graph",
    "/runs/compare",
];

#[tokio::test]
async fn every_page_is_shown_and_nothing_in_it_is_markup() {
    let (_world, node) = World::with_node().await;
    let run = group_with_everything(&node).await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let mut pages: Vec<String> = PAGES.iter().map(|path| (*path).to_owned()).collect();
    for tab in [
        "",
        "/graph",
        "/runs",
        "/schedules",
        "/calendar",
        "/calendar?year=1999",
        "/state",
        "/run",
        "/backfill",
        "/spec",
        "/spec?edit=1",
    ] {
        pages.push(format!("/groups/shown{tab}"));
    }
    for tab in [
        "",
        "/graph",
        "/log",
        "/log?find=a&level=info",
        "/log?last=true",
        "/data",
        "/attempts",
        "/events",
        "/rerun",
    ] {
        pages.push(format!("/runs/{run}{tab}"));
    }
    pages.push(format!("/groups/shown?run={run}&task=bad"));
    pages.push(format!("/runs/compare?run={run}"));
    for language in ["en", "zh"] {
        let visitor = Visitor {
            cookie: format!("{}; heddle_lang={language}", visitor.cookie),
            ..Visitor::new(node.base())
        };
        for path in &pages {
            let page = visitor.get(path).await;
            assert_eq!(page.status, 200, "{path}: {}", page.text);
            check_page(path, &page);
            assert!(
                page.text.contains(if language == "en" {
                    "lang=\"en\""
                } else {
                    "lang=\"zh-CN\""
                }),
                "{path}"
            );
        }
    }
    let overview = visitor.get("/").await.fine();
    assert!(
        overview.contains("shown") && overview.contains(&format!("/runs/{run}/restart")),
        "{overview}"
    );
    let missing = visitor.get("/groups/none").await;
    assert_eq!(missing.status, 404);
    check_page("/groups/none", &missing);
    // By key and by id: the only thing found is opened.
    assert_eq!(visitor.get("/search?q=a-key").await.status, StatusCode::SEE_OTHER);
    assert_eq!(
        visitor.get(&format!("/search?q={run}")).await.status,
        StatusCode::SEE_OTHER
    );
    // By the beginning that narrow tables of the command line show, and that it takes.
    for beginning in [&run[..13], &run[..8], &run[..13].to_uppercase()] {
        let found = visitor.get(&format!("/search?q={beginning}")).await;
        assert_eq!(found.leads_to(), format!("/runs/{run}"), "{beginning}: {}", found.text);
    }
    assert_eq!(visitor.get("/search?q=00000000-0000").await.status, StatusCode::OK);
    assert_eq!(visitor.get("/search?q=shown").await.status, StatusCode::OK);
    // Names are kept composed, however one writes them.
    node.put_group("caf\u{e9}", json!({"tasks": {"t": {"script": "hello"}}}))
        .await;
    for page in ["/search?q=cafe%CC%81", "/groups?q=cafe%CC%81"] {
        let found = visitor.get(page).await.fine();
        assert!(found.contains("/groups/caf%C3%A9"), "{page}: {found}");
    }
    // A group's only run is not compared with itself, and a group without a history has no form that fails.
    let only = visitor.get(&format!("/runs/compare?run={run}")).await.fine();
    assert!(
        only.contains("has only this run")
            && only.contains(&format!("href=\"/runs/{run}\""))
            && !only.contains("<select id=\"before\""),
        "{only}"
    );
    node.put_group("today", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    let form = visitor.get("/groups/today/backfill").await.fine();
    assert!(
        form.contains("history: true") && !form.contains("value=\"preview\""),
        "{form}"
    );
    // How a group went last is said in a word; what a run that has ended did not return is not waited for.
    let groups = visitor.get("/groups").await.fine();
    let newest = groups
        .split("class=\"newest\"")
        .nth(1)
        .expect("the newest run has a word");
    assert!(newest.split("</td>").next().unwrap().contains(">failed<"), "{groups}");
    let data = visitor.get(&format!("/runs/{run}/data")).await.fine();
    assert!(
        data.contains(">no output<") && !data.contains("no output yet"),
        "{data}"
    );
    // Without a script nothing says that the page is live.
    assert!(
        groups.contains("data-state=\"off\"") && groups.contains("not live"),
        "{groups}"
    );
    // A program is told so in its own way.
    node.get("/nothing-here").await.expect_problem(404, &[]);
    node.get("/v1/nothing-here").await.expect_problem(404, &[]);
}

#[tokio::test]
async fn what_has_not_changed_is_not_sent_again() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let first = visitor.get("/preferences").await;
    let tag = first.headers["etag"].to_str().unwrap().to_owned();
    let again = visitor
        .send(
            visitor
                .client
                .get(format!("{}/preferences", visitor.base))
                .header("if-none-match", &tag),
        )
        .await;
    assert_eq!((again.status, again.text.len()), (StatusCode::NOT_MODIFIED, 0));
    let asset = first
        .text
        .split("href=\"/assets/heddle.")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let asset = visitor.get(&format!("/assets/heddle.{asset}")).await;
    assert!(asset.headers["cache-control"].to_str().unwrap().contains("immutable"));
    assert_eq!(visitor.get("/assets/heddle.css").await.status, StatusCode::NOT_FOUND);
}

/// No text in Postgres can have the character U+0000: who asks for it is told so, and no statement is sent.
#[tokio::test]
async fn what_no_text_can_have_is_refused() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let with_query = |page: &&str| {
        let joint = if page.contains('?') { '&' } else { '?' };
        format!("{page}{joint}category=%00")
    };
    let pages = PAGES.iter().map(with_query);
    for page in pages.chain(["/groups/%00", "/groups/a%00b/graph", "/runs?cursor=%00"].map(str::to_owned)) {
        let answer = visitor.get(&page).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{page}");
        assert!(answer.text.contains("U+0000"), "{page}: {}", answer.text);
    }
    let answer = visitor
        .post("/groups/new", &[("name", "a\0b"), ("spec", "tasks: {}")])
        .await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
}

#[tokio::test]
async fn a_node_without_pages_has_none() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_NO_UI", "true").start().await;
    node.get("/").await.expect_problem(404, &[]);
    node.get("/v1/groups").await.expect_status(200);
}

#[tokio::test]
async fn a_graph_of_many_tasks_is_drawn_and_one_of_too_many_is_not() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    for (name, count, drawn) in [("many", 500, true), ("too-many", 10_000, false)] {
        let tasks: serde_json::Map<String, Value> = (0..count)
            .map(|n| {
                let needs: BTreeSet<String> = [n / 3, n / 2]
                    .iter()
                    .filter(|m| **m < n)
                    .map(|m| format!("t{m}"))
                    .collect();
                (format!("t{n}"), json!({"script": "hello", "depends_on": needs}))
            })
            .collect();
        node.put_group(name, json!({"tasks": tasks})).await;
        let page = visitor.get(&format!("/groups/{name}/graph")).await.fine();
        assert_eq!(
            page.matches("class=\"node\"").count(),
            if drawn { count } else { 0 },
            "{name}"
        );
        assert!(drawn || page.contains("too many to draw"), "{name}");
        visitor.get(&format!("/groups/{name}")).await.fine();
    }
    // The audit has these groups, but not their thousands of lines on one page with fifty others.
    let audit = visitor.get("/system/audit?kind=group").await.fine();
    assert!(
        audit.contains("too-many") && audit.contains("Too long to compare"),
        "{audit}"
    );
    assert!(audit.len() < 100_000, "{} bytes", audit.len());
}

#[tokio::test]
async fn a_task_is_run_again_and_runs_are_compared() {
    let (_world, node) = World::with_node().await;
    let run = group_with_everything(&node).await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    // A single run has nothing to compare it with.
    let alone = visitor.get(&format!("/runs/compare?run={run}")).await.fine();
    assert!(alone.contains("has only this run"), "{alone}");
    let page = visitor.get(&format!("/runs/{run}")).await.fine();
    let clear = format!("/runs/{run}/tasks/good/clear");
    assert!(page.contains(&clear), "{page}");
    let done = visitor.post(&clear, &[("downstream", "false")]).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    eventually("a second attempt of what had succeeded", async || {
        let task = node.get(&format!("/v1/runs/{run}/tasks/good")).await.expect_status(200);
        (task["attempts"].as_array().unwrap().len() > 1).then_some(())
    })
    .await;
    node.run_becomes(&run, "failed").await;
    // For the same time as the first: so both are of one day.
    let at = node.run_now(&run).await["logical_time"].clone();
    let second = node
        .start(
            "shown",
            json!({"task_params": {"bad": {"fail_times": 0}}, "params": {"note": "plain"}, "logical_time": at}),
        )
        .await;
    node.run_becomes(&second, "succeeded").await;
    for query in [format!("run={second}"), format!("run={run}&run={second}")] {
        let both = visitor.get(&format!("/runs/compare?{query}")).await;
        check_page("/runs/compare", &both);
        let both = both.fine();
        assert!(both.contains(&run) && both.contains(&second), "{both}");
        assert!(
            both.contains("s-failed") && both.contains("s-succeeded") && both.contains("class=\"added\""),
            "{both}"
        );
    }
    // That day failed, as far as a day's picture goes, and leads to its runs.
    let year = &at.as_str().unwrap()[..4];
    let calendar = visitor.get(&format!("/groups/shown/calendar?year={year}")).await.fine();
    assert!(calendar.contains("2 runs, 1 failed"), "{calendar}");
    let day = calendar
        .split("href=\"/runs?")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    let listed = visitor
        .get(&format!("/runs?{}", day.replace("&amp;", "&")))
        .await
        .fine();
    assert!(listed.contains(&run) && listed.contains(&second), "{listed}");
    // What the script has kept.
    node.put_group("keeps", json!({"tasks": {"count": {"script": "stateful"}}}))
        .await;
    node.run("keeps", json!({})).await;
    let kept = visitor.get("/groups/keeps/state").await.fine();
    assert!(
        !kept.contains("No saved values") && kept.contains("<code><bdi>"),
        "{kept}"
    );
    // Many groups at once, and which follows which.
    node.put_group(
        "after",
        json!({"depends_on": ["keeps"], "tasks": {"a": {"script": "hello"}}}),
    )
    .await;
    let picture = visitor.get("/groups?view=graph&q=AFTER").await.fine();
    assert!(
        picture.contains("href=\"/groups/keeps\"") && !picture.contains("href=\"/groups/shown\""),
        "{picture}"
    );
    let none = visitor.post("/groups/set", &[("enable", "false")]).await;
    assert_eq!(none.status, StatusCode::SEE_OTHER);
    let set = [("group", "after"), ("group", "keeps"), ("enable", "false")];
    visitor.post("/groups/set", &set).await;
    for name in ["after", "keeps"] {
        let group = node.get(&format!("/v1/groups/{name}")).await.expect_status(200);
        assert_eq!(group["enabled"], false, "{name}");
    }
}

/// A run whose params cannot be read, because SQL has stored them past all checks, is on its pages, and says so.
#[tokio::test]
async fn params_that_cannot_be_read() {
    let (world, node) = World::with_node().await;
    node.put_group("g", json!({"tasks": {"t": {"queue": "nobody"}}})).await;
    let run = node.start("g", json!({})).await;
    let store = "UPDATE heddle.runs_live SET params = '{\"a\": 1e400}' WHERE id = $1::text::uuid";
    assert_eq!(world.sql().await.execute(store, &[&run]).await.unwrap(), 1);
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    assert!(visitor.get("/runs").await.fine().contains(&run));
    for tab in ["", "/graph", "/attempts", "/events"] {
        visitor.get(&format!("/runs/{run}{tab}")).await.fine();
    }
    for tab in ["/data", "/rerun"] {
        let page = visitor.get(&format!("/runs/{run}{tab}")).await.fine();
        assert!(page.contains("They cannot be shown: number out of range"), "{page}");
    }
}

/// The data of an ended run is shown although a version of its scripts cannot be read any more.
#[tokio::test]
async fn a_script_version_that_cannot_be_read() {
    let (world, node) = World::with_node().await;
    let spec = json!({"params": {"colour": "red"}, "tasks": {"t": {"script": "hello"}}});
    node.put_group("g", spec).await;
    let run = heddle_tests::id(&node.run("g", json!({})).await);
    // The group itself does not need this version any more.
    node.put_group("g", json!({"tasks": {"t": {"queue": "nobody"}}})).await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let path = format!("/runs/{run}/data");
    assert!(visitor.get(&path).await.fine().contains("red"));
    let sql = world.sql().await;
    sql.batch_execute(
        "ALTER TABLE heddle.script_versions DROP CONSTRAINT script_versions_defaults_check;
         UPDATE heddle.script_versions SET defaults = '[]'
          WHERE script_id IN (SELECT id FROM heddle.scripts WHERE name = 'hello');
         INSERT INTO heddle.changes (kind, name, at) VALUES ('runtime', 'another', clock_timestamp());
         SELECT pg_notify('heddle_changes', '')",
    )
    .await
    .unwrap();
    // Nodes keep versions until they hear of another runtime.
    eventually("node that has forgotten the version", async || {
        (node.get("/v1/runs?group=g").await.status == 500).then_some(())
    })
    .await;
    let page = visitor.get(&path).await.fine();
    assert!(page.contains("red"), "{page}");
}
