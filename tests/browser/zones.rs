//! Times without a zone: what a form means by them, and that a link means the same for everybody.

use heddle_tests::{TOKEN, World};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::open::{browser, open_signed_in};
use crate::{Visitor, check_page};

/// The instants that a preview lists.
fn listed(page: &str) -> Vec<String> {
    let times = page.split("All times").nth(1).expect("the preview lists its times");
    let times = times.split("</details>").next().unwrap();
    let times = times.split("datetime=\"").skip(1);
    times
        .map(|rest| rest.split('"').next().unwrap().replace(".000Z", "Z"))
        .collect()
}

/// The dates of a backfill are those of its group, on the page as in the API.
#[tokio::test]
async fn a_backfill_means_the_days_of_its_group() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "tz",
        json!({
            "history": true, "timezone": "Pacific/Auckland",
            "schedules": {"daily": {"cron": "30 1 * * *"}}, "tasks": {"a": {"script": "hello"}},
        }),
    )
    .await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    for (from, to) in [
        ("2026-03-29", "2026-03-31"),
        ("2026-03-29T02:00", "2026-03-30T12:00"),
        ("2026-03-28T00:00:00Z", "2026-03-29T23:00:00+13:00"),
    ] {
        let asked = json!({"from": from, "to": to, "dry_run": true});
        let planned = node.post("/v1/groups/tz/backfills", asked).await.expect_status(200);
        let wanted: Vec<String> = planned["instants"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .map(|at| at.replace(".000000Z", "Z"))
            .collect();
        let form = [("from", from), ("to", to), ("do", "preview")];
        let page = visitor.post("/groups/tz/backfill", &form).await;
        check_page("a preview", &page);
        let page = page.fine();
        assert_eq!(listed(&page), wanted, "{from}: {page}");
        assert!(page.contains("the group's time zone, Pacific/Auckland"), "{page}");
    }
    // The calendar has the days that were typed.
    let form = [("from", "2026-03-29"), ("to", "2026-03-31"), ("do", "preview")];
    let page = visitor.post("/groups/tz/backfill", &form).await.fine();
    assert!(
        page.contains("March 29: ") && page.contains("March 30: ") && !page.contains("March 28: "),
        "{page}"
    );
    let page = visitor.get("/groups/tz/run").await.fine();
    assert!(page.contains("midnight in Pacific/Auckland"), "{page}");
}

/// The form of a filter has times without a zone. The address to which it leads has instants, so that somebody in another zone
/// who is given the address sees the same runs; the form shows the times of its reader.
#[tokio::test]
async fn a_link_means_the_same_times_for_everybody() {
    let (_world, node) = World::with_node().await;
    let mut visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let session = visitor.cookie.clone();
    for (list, more) in [("/runs", "group=x"), ("/dispatch", "uid=ann")] {
        visitor.cookie = format!("{session}; heddle_zone=Europe%2FBerlin");
        let sent = format!("{list}?{more}&state=&from=2026-02-27T12%3A40&to=");
        let page = visitor.get(&sent).await;
        assert_eq!(page.status, StatusCode::SEE_OTHER, "{}", page.text);
        let link = page.leads_to().to_owned();
        assert_eq!(link, format!("{list}?{more}&from=2026-02-27T11%3A40%3A00Z"));
        let page = visitor.get(&link).await;
        check_page(list, &page);
        let page = page.fine();
        assert!(page.contains("name=\"from\" value=\"2026-02-27T12:40\""), "{page}");
        visitor.cookie = format!("{session}; heddle_zone=Asia%2FShanghai");
        let page = visitor.get(&link).await.fine();
        assert!(page.contains("name=\"from\" value=\"2026-02-27T19:40\""), "{page}");
    }
    // What is no time is refused by the API, as before.
    let page = visitor.get("/runs?from=yesterday").await;
    assert_eq!(page.status, StatusCode::BAD_REQUEST, "{}", page.text);
}

/// In the hour that a change of clocks repeats, a time has its offset: from the server, and where a script corrects the first
/// page of a browser whose zone the server does not know yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_that_the_clocks_show_twice_has_its_offset() {
    let (_world, node) = World::with_node().await;
    node.put_group("twice", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    for at in ["2025-10-26T00:30:00Z", "2025-10-26T01:30:00Z"] {
        node.run("twice", json!({"logical_time": at})).await;
    }
    let mut visitor = Visitor::signed_in(node.base(), TOKEN).await;
    visitor.cookie.push_str("; heddle_zone=Europe%2FBerlin");
    let page = visitor.get("/runs?group=twice").await.fine();
    for said in ["02:30 +02:00", "02:30 +01:00"] {
        assert!(page.contains(said), "{said}: {page}");
    }
    let Some(mut chrome) = browser().await else { return };
    chrome
        .call("Emulation.setTimezoneOverride", json!({"timezoneId": "Europe/Berlin"}))
        .await;
    open_signed_in(&mut chrome, node.base(), "/runs?group=twice").await;
    let shows = |said: &str| format!("document.querySelector('main').innerText.includes('{said}')");
    chrome
        .until(&format!("{} && {}", shows("02:30 +02:00"), shows("02:30 +01:00")))
        .await;
}
