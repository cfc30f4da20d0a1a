//! Each role: which actions its pages offer, and that a form of one's own does not get further.

use heddle_tests::{Node, TOKEN, World};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::chrome::{self, Chrome};
use crate::{Visitor, check_page, group_with_everything};

const ROLES: [&str; 4] = ["viewer", "operator", "author", "admin"];
const OPERATE: &[&str] = &["operator", "admin"];
const WRITE: &[&str] = &["author", "admin"];
const ADMINISTER: &[&str] = &["admin"];
const TRY: &[&str] = &["operator", "author", "admin"];

/// Somebody with each role.
async fn people(node: &Node) -> Vec<(&'static str, Visitor, String)> {
    let mut people = Vec::new();
    for role in ROLES {
        let body = json!({"name": format!("the-{role}"), "role": role});
        let made = node.post("/v1/tokens", body).await.expect_status(201);
        let token = made["token"].as_str().unwrap().to_owned();
        people.push((role, Visitor::signed_in(node.base(), &token).await, token));
    }
    people
}

/// Something to act on for each action; answers a run that failed, and an assignment.
async fn something_of_everything(node: &Node) -> (String, String) {
    let run = group_with_everything(node).await;
    node.put_group("by-hand", json!({"tasks": {"stamp": {"queue": "people"}}}))
        .await;
    node.start("by-hand", json!({})).await;
    node.put("/v1/topics/letters", json!({"queue": "post"}))
        .await
        .expect_status(201);
    let channel = json!({"kind": "webhook", "url": "http://127.0.0.1:9/", "allow_private": true});
    node.put("/v1/channels/hook", channel).await.expect_status(201);
    node.put("/v1/pools/few", json!({"slots": 2})).await.expect_status(201);
    node.put("/v1/audiences/gid_all/members", json!({"members": ["ann"]}))
        .await;
    node.put("/v1/offers/wave", json!({"audience": "uid_ann"})).await;
    let given = node.post("/v1/dispatch/ann/next", json!({"wait": "20s"})).await;
    let given = given.expect_status(200)["assignment_id"].as_str().unwrap().to_owned();
    (run, given)
}

#[tokio::test]
async fn what_a_role_may_not_do_is_not_offered() {
    let (_world, node) = World::with_node().await;
    let (run, given) = something_of_everything(&node).await;
    // A page, what offers an action on it, and who may.
    let offers: Vec<(String, String, &[&str])> = [
        ("/", format!("action=\"/runs/{run}/restart\""), OPERATE),
        ("/groups", "href=\"/groups/new\"".into(), OPERATE),
        ("/groups", "action=\"/groups/set\"".into(), OPERATE),
        ("/groups/shown", "href=\"/groups/shown/run\"".into(), OPERATE),
        ("/groups/shown", "href=\"/groups/shown/backfill\"".into(), OPERATE),
        ("/groups/shown", "action=\"/groups/shown/disable\"".into(), OPERATE),
        ("/groups/shown/spec", "spec?edit=1".into(), OPERATE),
        (
            "/groups/shown/schedules",
            "action=\"/groups/shown/schedules/yearly/disable\"".into(),
            OPERATE,
        ),
        ("/runs?state=failed", "action=\"/runs/bulk\"".into(), OPERATE),
        ("/scripts", "action=\"/scripts/upload\"".into(), WRITE),
        ("/scripts/echo", "action=\"/scripts/upload?of=echo\"".into(), WRITE),
        ("/scripts/echo", "href=\"/scripts/echo/console\"".into(), TRY),
        ("/queues", "action=\"/queues/people/pause\"".into(), OPERATE),
        ("/queues/people", "action=\"/queues/people/pause\"".into(), OPERATE),
        (
            "/dispatch",
            format!("action=\"/dispatch/assignments/{given}/revoke\""),
            OPERATE,
        ),
        ("/dispatch/audiences/gid_all", "name=\"add\"".into(), OPERATE),
        ("/topics/letters", "name=\"cancel_day\"".into(), OPERATE),
        (
            "/notifications",
            "action=\"/notifications/channels/hook/test\"".into(),
            OPERATE,
        ),
        ("/system", "href=\"/system/tokens\"".into(), ADMINISTER),
        ("/system", "href=\"/system/secrets\"".into(), ADMINISTER),
        ("/system", "href=\"/system/connections\"".into(), ADMINISTER),
        ("/system/pools", "action=\"/system/pools\"".into(), ADMINISTER),
    ]
    .into_iter()
    .map(|(page, offer, who)| (page.to_owned(), offer, who))
    .chain(
        ["restart", "rerun", "override"].map(|verb| (format!("/runs/{run}"), format!("/runs/{run}/{verb}\""), OPERATE)),
    )
    .collect();
    let mut wrong = Vec::new();
    for (role, visitor, _) in &people(&node).await {
        for (path, offer, who) in &offers {
            let page = visitor.get(path).await;
            check_page(path, &page);
            if page.fine().contains(offer.as_str()) != who.contains(role) {
                let has = if who.contains(role) { "misses" } else { "has" };
                wrong.push(format!("{path} of the {role} {has} {offer}"));
            }
        }
        // Pages that are only an action.
        let of_run = ["rerun", "override"].map(|verb| format!("/runs/{run}/{verb}"));
        for (path, who) in [
            (of_run[0].as_str(), OPERATE),
            (of_run[1].as_str(), OPERATE),
            ("/groups/new", OPERATE),
            ("/groups/shown/run", OPERATE),
            ("/groups/shown/backfill", OPERATE),
            ("/scripts/echo/console", TRY),
            ("/system/tokens", ADMINISTER),
            ("/system/secrets", ADMINISTER),
            ("/system/connections", ADMINISTER),
        ] {
            let status = visitor.get(path).await.status;
            let expected = if who.contains(role) {
                StatusCode::OK
            } else {
                StatusCode::FORBIDDEN
            };
            if status != expected {
                wrong.push(format!("{path} answers {status} to the {role}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_form_of_ones_own_gets_no_further() {
    let (_world, node) = World::with_node().await;
    let (run, given) = something_of_everything(&node).await;
    let people = people(&node).await;
    let viewer = &people.iter().find(|(role, ..)| *role == "viewer").unwrap().1;
    let before = state_of(&node, &run, &given).await;
    let forms: [(String, Vec<(&str, &str)>); 16] = [
        (format!("/runs/{run}/restart"), vec![]),
        (format!("/runs/{run}/cancel"), vec![]),
        (format!("/runs/{run}/rerun"), vec![]),
        (
            format!("/runs/{run}/state"),
            vec![("state", "succeeded"), ("reason", "x")],
        ),
        (format!("/runs/{run}/tasks/good/clear"), vec![]),
        ("/runs/bulk".into(), vec![("action", "rerun"), ("do", "start")]),
        ("/groups/shown/run".into(), vec![]),
        ("/groups/shown/disable".into(), vec![]),
        ("/groups/set".into(), vec![("group", "shown"), ("enable", "false")]),
        (
            "/groups/shown/backfill".into(),
            vec![("from", "2020-01-01"), ("do", "start")],
        ),
        ("/queues/people/pause".into(), vec![]),
        (format!("/dispatch/assignments/{given}/revoke"), vec![]),
        ("/topics/letters/cancel".into(), vec![("day", "2030-05-17")]),
        ("/notifications/channels/hook/test".into(), vec![]),
        ("/system/pools".into(), vec![("name", "few"), ("slots", "99")]),
        ("/system/tokens".into(), vec![("name", "mine"), ("role", "admin")]),
    ];
    for (path, form) in &forms {
        let answer = viewer.post(path, form).await;
        let said = answer
            .headers
            .get("set-cookie")
            .map_or("", |value| value.to_str().unwrap());
        // Why, and not only that.
        let says_why = said.starts_with("heddle_said=%21") && !said.starts_with("heddle_said=%21;");
        assert!(
            answer.status == StatusCode::FORBIDDEN || says_why,
            "{path}: {} {}",
            answer.status,
            answer.text
        );
    }
    assert_eq!(state_of(&node, &run, &given).await, before, "nothing has changed");
}

/// All that the forms would have changed.
async fn state_of(node: &Node, run: &str, given: &str) -> Value {
    let one = node.get(&format!("/v1/runs/{run}")).await.expect_status(200);
    let group = node.get("/v1/groups/shown").await.expect_status(200);
    let queue = node.get("/v1/queues/people").await.expect_status(200);
    let pool = node.get("/v1/pools/few").await.expect_status(200);
    let held = node.all("/v1/assignments?uid=ann").await;
    assert!(held.iter().any(|one| one["assignment_id"] == given), "{held:?}");
    json!({
        "run": [one["state"], one["tasks"]], "group": group["enabled"], "queue": queue["paused"], "pool": pool["slots"],
        "held": held.iter().map(|one| one["state"].clone()).collect::<Vec<_>>(),
        "runs": node.all("/v1/runs?history=true").await.len(), "backfills": node.all("/v1/backfills").await.len(),
        "tokens": node.all("/v1/tokens").await.len(),
    })
}

/// Signing in, as each role: nothing to complain of, whatever the language and the theme.
#[tokio::test(flavor = "multi_thread")]
async fn each_role_has_pages_that_everybody_can_use() {
    let Some(program) = chrome::program() else {
        eprintln!("there is no Chromium here (Debian: apt-get install chromium): nothing was looked at");
        return;
    };
    let (_world, node) = World::with_node().await;
    let run = group_with_everything(&node).await;
    let base = node.base().to_owned();
    let mut chrome = Chrome::start(&program).await;
    let mut wrong = Vec::new();
    for (lang, dark, width) in [("en", false, 1_280), ("zh", true, 390)] {
        chrome.cookie(&base, "heddle_lang", lang).await;
        chrome.shape(width, dark).await;
        chrome.open(&format!("{base}/sign-in")).await;
        wrong.extend(crate::looks::faults(&mut chrome, &base, &format!("sign-in-{width}-{lang}")).await);
        chrome.open(&format!("{base}/groups/shown/run")).await;
        crate::open::sign_in(&mut chrome, "hdl_nobody_has_this").await;
        chrome.until("!!document.querySelector('[role=alert]')").await;
        // A sign-in that is refused is a 401, which the console has.
        chrome.open(&format!("{base}/sign-in")).await;
        crate::open::sign_in(&mut chrome, TOKEN).await;
        chrome
            .until("!!document.querySelector('form[action=\"/sign-out\"]')")
            .await;
        chrome.click("form[action='/sign-out'] button").await;
        chrome.until("location.pathname === '/sign-in'").await;
    }
    for (role, visitor, _) in &people(&node).await {
        let (name, value) = visitor.cookie.split_once('=').unwrap();
        chrome.cookie(&base, name, value).await;
        for (lang, dark, width) in [("en", true, 1_280), ("zh", false, 390)] {
            chrome.cookie(&base, "heddle_lang", lang).await;
            chrome.shape(width, dark).await;
            for (page, path) in [
                ("overview", "/".to_owned()),
                ("run", format!("/runs/{run}")),
                ("groups", "/groups".into()),
                ("system", "/system".into()),
            ] {
                chrome.open(&format!("{base}{path}")).await;
                let shape = format!("{role}-{page}-{width}-{lang}");
                wrong.extend(crate::looks::faults(&mut chrome, &base, &shape).await);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
