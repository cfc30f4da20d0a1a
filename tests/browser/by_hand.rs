//! What people do manually: set a state with a reason, preview a backfill, check a spec as they type, find things and
//! actions, count before they cancel; and what people without the right are not offered.

use heddle_tests::{Node, TOKEN, World, eventually};
use reqwest::StatusCode;
use serde_json::json;

use crate::{Page, Visitor, check_page, group_with_everything};

/// Somebody with a role.
async fn with_role(node: &Node, role: &str) -> Visitor {
    let body = json!({"name": format!("a-{role}"), "role": role});
    let made = node.post("/v1/tokens", body).await.expect_status(201);
    Visitor::signed_in(node.base(), made["token"].as_str().unwrap()).await
}

/// What a script of ours asks for: a piece of a page.
async fn piece(visitor: &Visitor, path: &str, form: Option<&[(&str, &str)]>) -> Page {
    let url = format!("{}{path}", visitor.base);
    let request = match form {
        Some(form) => visitor
            .client
            .post(url)
            .header("origin", &visitor.base)
            .header("content-type", "application/x-www-form-urlencoded")
            .body(crate::url_encoded(form)),
        None => visitor.client.get(url),
    };
    visitor.send(request.header("hx-request", "true")).await
}

#[tokio::test]
async fn a_state_is_set_by_hand_with_a_reason() {
    let (_world, node) = World::with_node().await;
    let run = group_with_everything(&node).await;
    let sees = with_role(&node, "viewer").await;
    let acts = with_role(&node, "operator").await;
    let form = format!("/runs/{run}/override?task=bad");
    assert!(!sees.get(&format!("/runs/{run}")).await.fine().contains("/override"));
    assert_eq!(sees.get(&form).await.status, StatusCode::FORBIDDEN);
    let page = acts.get(&format!("/runs/{run}")).await.fine();
    assert!(
        page.contains(&format!("/runs/{run}/override\"")) && page.contains("override?task=bad"),
        "{page}"
    );
    // What may not be done now says why, and is no form.
    assert!(
        page.contains("data-why=\"Already finished\"") && !page.contains(&format!("action=\"/runs/{run}/cancel\"")),
        "{page}"
    );
    let page = acts.get(&form).await;
    check_page(&form, &page);
    let page = page.fine();
    assert!(
        page.contains("value=\"skipped\"") && page.contains("name=\"reason\""),
        "{page}"
    );
    // Without a reason it is not done, and what was written stays.
    let action = format!("/runs/{run}/tasks/bad/state");
    let wrong = acts
        .post(
            &action,
            &[("state", "succeeded"), ("reason", ""), ("output", "{\"n\": 1}")],
        )
        .await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        wrong.text.contains("Reason: ") && wrong.text.contains("{&quot;n&quot;: 1}") && wrong.text.contains("checked"),
        "{}",
        wrong.text
    );
    // The same if the output is too large for the task.
    let large = format!("\"{}\"", "n".repeat(256 * 1024));
    let form = [
        ("state", "succeeded"),
        ("reason", "too much"),
        ("output", large.as_str()),
    ];
    let wrong = acts.post(&action, &form).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        wrong.text.contains("at most 262144 bytes")
            && wrong.text.contains("too much")
            && wrong.text.contains(&"n".repeat(256 * 1024)),
        "the error is shown, and the form keeps what was written"
    );
    let done = acts
        .post(
            &action,
            &[
                ("state", "succeeded"),
                ("reason", "checked <b>by hand</b>"),
                ("output", "{\"n\": 1}"),
            ],
        )
        .await;
    assert_eq!(done.leads_to(), format!("/runs/{run}"), "{}", done.text);
    node.run_becomes(&run, "succeeded").await;
    let page = acts.get(&format!("/runs/{run}")).await;
    check_page("a run set by hand", &page);
    let page = page.fine();
    assert!(
        page.contains("State set by hand by") && page.contains("checked &lt;b&gt;by hand&lt;/b&gt;"),
        "{page}"
    );
    // Where each param came from, and what the task before it returned.
    let data = acts.get(&format!("/runs/{run}/data")).await;
    check_page("data", &data);
    let data = data.fine();
    assert!(
        data.contains("this run") && data.contains(">task<") && data.contains("upstream.<bdi>bad</bdi>"),
        "{data}"
    );
}

#[tokio::test]
async fn a_backfill_is_seen_on_the_calendar_before_it_is_made() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "daily",
        json!({"history": true, "schedules": {"daily": {"cron": "0 3 * * *"}}, "tasks": {"a": {"script": "hello"}}}),
    )
    .await;
    let there = node.run("daily", json!({"logical_time": "2026-02-03T03:00:00Z"})).await;
    assert_eq!(there["state"], "succeeded");
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let asked = [
        ("from", "2026-02-01"),
        ("to", "2026-02-10T00:00:00Z"),
        ("max_active", "3"),
        ("do", "preview"),
    ];
    let page = visitor.post("/groups/daily/backfill", &asked).await;
    check_page("a preview", &page);
    let page = page.fine();
    let drawn = page.split("class=\"calendar\"").nth(1).unwrap();
    assert_eq!(drawn.matches("class=\"planned\"").count(), 8, "{page}");
    assert!(
        page.contains("8 runs will be created")
            && drawn.contains("February 2026")
            && drawn.contains("February 3: 1 run"),
        "{page}"
    );
    assert!(node.all("/v1/backfills").await.is_empty(), "a preview makes nothing");
}

/// Waits until a backfill of a group has ended, and tells its id.
async fn backfilled(node: &Node, group: &str, from: &str, to: &str) -> String {
    let asked = json!({"from": from, "to": to, "max_active": 20});
    let made = node
        .post(&format!("/v1/groups/{group}/backfills"), asked)
        .await
        .expect_status(202);
    let id = made["id"].as_str().unwrap().to_owned();
    eventually("backfill that has ended", async || {
        let one = node.get(&format!("/v1/backfills/{id}")).await.expect_status(200);
        (one["state"] != "running").then_some(())
    })
    .await;
    id
}

#[tokio::test]
async fn a_backfill_lists_its_own_runs_and_restarts_those_that_failed() {
    let (_world, node) = World::with_node().await;
    let hourly = |task: serde_json::Value| json!({"history": true, "schedules": {"s": {"cron": "0 * * * *"}}, "tasks": {"a": task}});
    node.put_group("hourly", hourly(json!({"script": "hello"}))).await;
    let first = backfilled(&node, "hourly", "2026-01-01T00:00:00Z", "2026-01-01T02:00:00Z").await;
    let later = backfilled(&node, "hourly", "2026-02-01T00:00:00Z", "2026-02-03T03:00:00Z").await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let rows = |page: &str| page.matches("data-main").count();
    // More than a page of another backfill of the same group is newer.
    let page = visitor.get(&format!("/backfills/{first}")).await;
    check_page("a backfill", &page);
    let page = page.fine();
    assert_eq!(rows(&page), 3, "{page}");
    assert!(page.contains("oldest first") && page.contains("3 of 3"), "{page}");
    let page = visitor.get(&format!("/backfills/{later}")).await.fine();
    assert_eq!(rows(&page), 50, "{page}");
    let next = page.split("class=\"more\"").nth(1).expect("there is a next page");
    let next = next.split("href=\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(rows(&visitor.get(&next.replace("&amp;", "&")).await.fine()), 2);
    assert!(!page.contains("/restart\""), "nothing failed: {page}");
    // The API has the same filter, and says what it cannot read.
    let all = node.get(&format!("/v1/runs?backfill={first}")).await.expect_status(200);
    assert_eq!(all["items"].as_array().unwrap().len(), 3);
    node.get("/v1/runs?backfill=x").await.expect_problem(400, &[]);

    node.put_group(
        "hourly",
        hourly(json!({"script": "flaky", "params": {"fail_times": 1, "kind": "fatal"}})),
    )
    .await;
    let failing = backfilled(&node, "hourly", "2026-03-01T00:00:00Z", "2026-03-01T01:00:00Z").await;
    let page = visitor.get(&format!("/backfills/{failing}")).await.fine();
    assert!(page.contains("2 failed") && !page.contains("2 of 2"), "{page}");
    let done = visitor.post(&format!("/backfills/{failing}/restart"), &[]).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    eventually("backfill whose runs have succeeded", async || {
        let one = node.get(&format!("/v1/backfills/{failing}")).await.expect_status(200);
        (one["state"] == "succeeded").then_some(())
    })
    .await;
}

#[tokio::test]
async fn many_runs_are_changed_only_behind_a_filter_and_named_as_people_know_them() {
    let (_world, node) = World::with_node().await;
    let run = group_with_everything(&node).await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let page = visitor.get("/runs").await.fine();
    assert!(
        !page.contains("action=\"/runs/bulk\"") && page.contains("filter the list first"),
        "{page}"
    );
    let page = visitor.get("/runs?state=failed").await.fine();
    let actions = page.split("id=\"action\"").nth(1).expect("there are actions");
    assert!(
        actions.starts_with(" name=\"action\"><option value=\"restart\">"),
        "{actions}"
    );
    // What happens to groups is asked with its consequences.
    let page = visitor.get("/groups").await.fine();
    for asked in ["Enable the selected groups (#)?", "Disable the selected groups (#)?"] {
        assert!(page.contains(asked), "{asked}: {page}");
    }
    let form = [("state", "failed"), ("action", "cancel"), ("do", "preview")];
    let page = visitor.post("/runs/bulk", &form).await.fine();
    assert!(
        page.contains(&format!("href=\"/runs/{run}\" data-main><time")) && page.contains("href=\"/groups/shown\""),
        "{page}"
    );
}

#[tokio::test]
async fn a_spec_is_checked_as_one_types_and_any_two_revisions_are_compared() {
    let (_world, node) = World::with_node().await;
    for n in 1..4 {
        node.put_group(
            "changed",
            json!({"tasks": {"a": {"script": "hello", "params": {"size": n}}}}),
        )
        .await;
    }
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let check = async |text: &str| {
        piece(&visitor, "/groups/changed/spec", Some(&[("spec", text)]))
            .await
            .fine()
    };
    assert!(
        check("tasks: {a: {script: hello}}")
            .await
            .contains("This spec is valid")
    );
    let wrong = check("tasks: {a: {script: hello, depends_on: [b]}}").await;
    assert!(
        wrong.contains("line 1, tasks.a.depends_on") && !wrong.contains("<html"),
        "{wrong}"
    );
    let page = visitor.get("/groups/changed/spec?revision=3&against=1").await.fine();
    assert!(
        page.contains("class=\"removed\"")
            && page.contains("size: 1")
            && page.contains("size: 3")
            && page.contains("name=\"against\""),
        "{page}"
    );
    let group = node.get("/v1/groups/changed").await.expect_status(200);
    assert_eq!(group["revision"], 3, "checking saves nothing");
}

#[tokio::test]
async fn things_and_actions_are_found_by_those_who_may() {
    let (_world, node) = World::with_node().await;
    node.put_group("weather", json!({"tasks": {"a": {"queue": "weather-people"}}}))
        .await;
    node.start("weather", json!({})).await;
    node.put("/v1/topics/weather-notes", json!({"queue": "weather-people"}))
        .await
        .expect_status(201);
    let sees = with_role(&node, "viewer").await;
    let acts = with_role(&node, "operator").await;
    let found = async |visitor: &Visitor, text: &str| piece(visitor, &format!("/search?q={text}"), None).await.fine();
    eventually("queue that is found", async || {
        found(&sees, "weather")
            .await
            .contains("/queues/weather-people")
            .then_some(())
    })
    .await;
    let page = found(&sees, "weather").await;
    assert!(
        page.contains("/topics/weather-notes") && !page.contains("/groups/weather/run"),
        "{page}"
    );
    let page = found(&acts, "run%20weather").await;
    assert!(page.contains("/groups/weather/run"), "{page}");
    // A verb leads to where it is done, and only if it goes with how the group stands.
    let page = found(&acts, "restart%20weather").await;
    assert!(page.contains("/runs?group=weather&amp;state=failed"), "{page}");
    let page = found(&acts, "disable%20weather").await;
    assert!(page.contains("Disable · weather"), "{page}");
    for verb in ["backfill", "enable"] {
        let page = found(&acts, &format!("{verb}%20weather")).await;
        assert!(
            page.contains("/groups/weather\"") && !page.contains(" · weather"),
            "{page}"
        );
    }
    node.put("/v1/pools/narrow", json!({"slots": 2}))
        .await
        .expect_status(201);
    node.put("/v1/audiences/gid_readers/members", json!({"members": ["ann"]}))
        .await;
    for (text, address) in [
        ("narro", "/system/pools#pool-narrow"),
        ("reade", "/dispatch/audiences/gid_readers"),
        ("ann", "/dispatch/as?uid=ann"),
        ("audit", "/system/audit"),
        ("retention", "/system/retention"),
        ("pause", "/queues"),
        ("restart", "/runs?state=failed"),
        ("dark", "/preferences"),
    ] {
        let page = found(&acts, text).await;
        assert!(page.contains(&format!("href=\"{address}\"")), "{text}: {page}");
    }
    assert!(!found(&sees, "restart").await.contains("/runs?state=failed"));
    assert!(
        !found(&acts, "secrets").await.contains("/system/secrets"),
        "only for administrators"
    );
    assert!(found(&acts, "new").await.contains("/groups/new"));
    assert!(!found(&sees, "new").await.contains("/groups/new"));
}

#[tokio::test]
async fn a_test_of_a_channel_says_what_came_of_it() {
    let (_world, node) = World::with_node().await;
    let nobody = json!({"kind": "webhook", "url": "http://127.0.0.1:1/", "allow_private": true,
        "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"});
    node.put("/v1/channels/hook", nobody).await.expect_status(201);
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let page = visitor.post("/notifications/channels/hook/test", &[]).await;
    let said = page.headers["set-cookie"].to_str().unwrap();
    // An error, which begins with an exclamation mark.
    assert!(
        said.starts_with("heddle_said=%21The%20test%20message%20failed%20on%20channel%20hook"),
        "{said}"
    );
}

#[tokio::test]
async fn a_cell_of_the_grid_says_what_it_is() {
    let (_world, node) = World::with_node().await;
    let run = group_with_everything(&node).await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let said = piece(
        &visitor,
        &format!("/groups/shown/cell?run={run}&task=bad&brief=1"),
        None,
    )
    .await
    .fine();
    assert!(
        said.contains("s-failed") && said.contains("class=\"error\"") && !said.contains("<form"),
        "{said}"
    );
}

#[tokio::test]
async fn messages_are_counted_before_they_are_cancelled() {
    let (world, node) = World::with_node().await;
    let due = crate::later(world.now().await);
    let (month, next) = (due.format("%Y-%m"), (due + chrono::Months::new(1)).format("%Y-%m"));
    node.put("/v1/topics/letters", json!({"queue": "post"}))
        .await
        .expect_status(201);
    let messages: Vec<_> = (0..7)
        .map(|n| json!({"sender": n % 2, "receiver": n, "due": due.to_string(), "payload": {"n": n}}))
        .collect();
    node.post("/v1/topics/letters/messages", json!(messages))
        .await
        .expect_status(200);
    let acts = with_role(&node, "operator").await;
    let sees = with_role(&node, "viewer").await;
    // The group that Heddle keeps for it says whose it is, and is not switched by itself.
    let groups = acts.get("/groups").await.fine();
    assert!(
        groups.contains("<a href=\"/topics/letters\"") && groups.contains("topic letters"),
        "{groups}"
    );
    assert!(!groups.contains("role=\"switch\""), "{groups}");
    let month = acts.get(&format!("/topics/letters?month={month}")).await;
    check_page("a month", &month);
    let month = month.fine();
    assert!(
        month.contains(&format!("href=\"/topics/letters/{due}\"")) && month.contains("<b>7</b>"),
        "{month}"
    );
    assert!(
        !acts
            .get(&format!("/topics/letters?month={next}"))
            .await
            .fine()
            .contains(&format!("{due}\""))
    );
    for (query, count) in [
        (format!("cancel_day={due}"), 7),
        (format!("cancel_day={due}&cancel_sender=1"), 3),
    ] {
        let page = acts.get(&format!("/topics/letters?cancel=count&{query}")).await.fine();
        assert!(page.contains(&format!("{count} messages match")), "{query}: {page}");
        assert!(page.contains("action=\"/topics/letters/cancel\""), "{page}");
    }
    // What cannot be asked for is said beside its form, which keeps what was typed.
    let page = acts
        .get("/topics/letters?cancel=count&cancel_day=&cancel_sender=")
        .await;
    assert!(
        page.status == 422 && page.text.contains("Give a day, a sender or a receiver."),
        "{}",
        page.text
    );
    let page = acts.get("/topics/letters?sender=abc&receiver=").await;
    check_page("a sender that is no number", &page);
    assert!(
        page.status.is_client_error()
            && page.text.contains("value=\"abc\"")
            && page.text.contains("role=\"alert\"")
            && page.text.contains("name=\"receiver\""),
        "{}",
        page.text
    );
    let found = acts.get("/topics/letters?sender=1&receiver=").await.fine();
    assert!(
        found.contains("action=\"/topics/letters#look-up\"") && found.contains(">scheduled<"),
        "{found}"
    );
    let day = acts.get(&format!("/topics/letters/{due}")).await.fine();
    let waits = day.split("<b>7</b>").count() - 1;
    assert_eq!(waits, 2, "all messages, and those that wait: {day}");
    let page = sees
        .get(&format!("/topics/letters?cancel=count&cancel_day={due}"))
        .await
        .fine();
    assert!(!page.contains("action=\"/topics/letters/cancel\""), "{page}");
    let done = acts
        .post(
            "/topics/letters/cancel",
            &[("day", due.to_string().as_str()), ("sender", "1")],
        )
        .await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    let page = acts
        .get(&format!("/topics/letters?cancel=count&cancel_day={due}"))
        .await
        .fine();
    assert!(page.contains("4 messages match"), "{page}");
}

/// What waits in the queue of a topic has left the topic, and can be cancelled all the same.
#[tokio::test]
async fn messages_that_wait_in_a_queue_are_cancelled() {
    let (_world, node) = World::with_node().await;
    // A day's messages would wait for the day after today, so none of them would be in the queue.
    node.put("/v1/topics/letters", json!({"queue": "post", "granularity": "instant"}))
        .await
        .expect_status(201);
    let messages: Vec<_> = (0..3)
        .map(|n| json!({"sender": 1, "receiver": n, "due": "2013-07-01T00:00:00Z", "payload": {"n": n}}))
        .collect();
    let answer = node
        .post("/v1/topics/letters/messages", json!(messages))
        .await
        .expect_status(200);
    assert_eq!(answer["accepted"], 3, "{answer:#}");
    // What is past is stored with the day of its arrival.
    let today = node.all("/v1/topics/letters/days").await[0]["day"]
        .as_str()
        .unwrap()
        .to_owned();
    let day = async || {
        let path = format!("/v1/topics/letters/days/{today}");
        node.get(&path).await.expect_status(200)
    };
    eventually("messages in the queue", async || {
        (day().await["in_hand"] == 3).then_some(())
    })
    .await;
    let acts = with_role(&node, "operator").await;
    for (query, field) in [
        (format!("cancel_day={today}"), ("day", today.as_str())),
        ("cancel_sender=1".to_owned(), ("sender", "1")),
    ] {
        let page = acts.get(&format!("/topics/letters?cancel=count&{query}")).await.fine();
        assert!(page.contains("Up to 3 messages match"), "{query}: {page}");
        let (name, value) = field;
        let field =
            format!("action=\"/topics/letters/cancel\"><input type=\"hidden\" name=\"{name}\" value=\"{value}\">");
        assert!(page.contains(&field), "{query}: {page}");
    }
    // A batch that a node is just putting into the queue is in hand for a moment.
    eventually("the cancel of all of them", async || {
        let done = acts.post("/topics/letters/cancel", &[("sender", "1")]).await;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
        (day().await["cancelled"] == 3).then_some(())
    })
    .await;
    // Whoever has counted may cancel, also if nothing was found: more may come in.
    let page = acts.get("/topics/letters?cancel=count&cancel_sender=2").await.fine();
    assert!(
        page.contains("0 messages match") && page.contains("action=\"/topics/letters/cancel\""),
        "{page}"
    );
}

#[tokio::test]
async fn scripts_say_what_they_need_and_which_time_out() {
    let (_world, node) = World::with_node().await;
    let text = "export default async function run() { for (;;) {} }";
    let made = node
        .put_bytes("/v1/scripts/endless", "text/javascript", text)
        .await
        .expect_status(201);
    assert!(made["compile_ms"].is_i64() && made["imports"].is_null(), "{made}");
    node.put_group(
        "slow",
        json!({"tasks": {"spin": {"script": "endless", "timeout": "200ms"}}}),
    )
    .await;
    let run = node.start("slow", json!({})).await;
    node.run_becomes(&run, "failed").await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let overview = visitor.get("/").await.fine();
    assert!(
        overview.contains("href=\"/scripts/endless\"") && overview.contains("1 attempt timed out"),
        "{overview}"
    );
    // A component: what it imports is known, and told in words.
    node.put_group("keeps", json!({"tasks": {"count": {"script": "stateful"}}}))
        .await;
    let version = node.get("/v1/scripts/stateful/versions/1").await.expect_status(200);
    let imports = version["imports"].as_array().unwrap_or_else(|| panic!("{version}"));
    assert!(
        imports
            .iter()
            .any(|name| name.as_str().unwrap().starts_with("heddle:task/state")),
        "{version}"
    );
    let page = visitor.get("/scripts/stateful").await.fine();
    assert!(
        page.contains("What it needs") && page.contains("Keeps values between runs"),
        "{page}"
    );
}

#[tokio::test]
async fn a_script_is_written_on_a_page() {
    let (_world, node) = World::with_node().await;
    let writes = with_role(&node, "author").await;
    let sees = with_role(&node, "viewer").await;
    let list = writes.get("/scripts").await.fine();
    assert!(list.contains("href=\"/scripts?write=typescript\""), "{list}");
    assert_eq!(sees.get("/scripts?write=python").await.status, StatusCode::FORBIDDEN);
    for (language, begins) in [("python", "def run("), ("javascript", "function run(params, ctx)")] {
        let page = writes.get(&format!("/scripts?write={language}")).await;
        check_page("a new script", &page);
        assert!(page.fine().contains(begins), "{language}");
    }
    // Browsers send other line ends than files have.
    let form = |text: &'static str| [("name", "below"), ("lang", "python"), ("text", text), ("do", "try")];
    let wrong = writes.post("/scripts/write", &form("a = 1\r\ndef run(:\r\n")).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    check_page("a fault", &wrong);
    let said = &wrong.text;
    assert!(
        said.contains("line 2, column 9") && said.contains("\na = 1\ndef run(:\n</textarea>"),
        "{said}"
    );
    let text = "def run(params, ctx):\r\n    return params['a'] < 2\r\n";
    let made = writes.post("/scripts/write", &form(text)).await;
    assert_eq!(made.leads_to(), "/scripts/below/console", "{}", made.text);
    let invoked = node.post("/v1/scripts/below/invoke", json!({"params": {"a": 1}})).await;
    assert_eq!(invoked.expect_status(200)["output"], true);
    let there = writes.post("/scripts/write", &form(text)).await;
    assert_eq!(there.status, StatusCode::CONFLICT);
    // What is there is shown to everybody, and changed by those who may.
    let page = writes.get("/scripts/below/source").await;
    check_page("the source of a script", &page);
    let page = page.fine();
    assert!(
        page.contains("\ndef run(params, ctx):\n    return params['a'] &lt; 2\n</textarea>"),
        "{page}"
    );
    let page = sees.get("/scripts/below/source").await.fine();
    assert!(
        page.contains("params['a'] &lt; 2") && !page.contains("textarea"),
        "{page}"
    );
    let changed = [("text", "def run(params, ctx):\r\n    return 3\r\n"), ("keep", "true")];
    let made = writes.post("/scripts/below/source?version=1", &changed).await;
    assert_eq!(made.leads_to(), "/scripts/below/source?version=2", "{}", made.text);
    let script = node.get("/v1/scripts/below").await.expect_status(200);
    assert_eq!(
        (&script["active_version"], &script["latest_version"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(
        sees.post("/scripts/below/source", &changed).await.status,
        StatusCode::FORBIDDEN
    );
    // A version that is text is downloaded as text; one that is wasm has none.
    let page = sees.get("/scripts/below").await.fine();
    assert!(page.contains("/v1/scripts/below/versions/2/source\""), "{page}");
    assert_eq!(sees.get("/scripts/hello/source").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_line_of_a_log_has_an_address() {
    let (_world, node) = World::with_node().await;
    let text = "export default async function run() { for (let n = 0; n < 600; n++) console.log(`line ${n}`); }";
    node.put_bytes("/v1/scripts/lines", "text/javascript", text)
        .await
        .expect_status(201);
    node.put_group("lines", json!({"tasks": {"a": {"script": "lines"}}}))
        .await;
    let run = node.run("lines", json!({})).await["id"].as_str().unwrap().to_owned();
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    // From the end, where a line's place changes while the log grows, to a page that shows it for good.
    let page = visitor.get(&format!("/runs/{run}/log?last=true")).await.fine();
    let line = page
        .split("<li id=\"")
        .find(|line| line.contains(">line 550<"))
        .unwrap();
    let link = line
        .split("href=\"")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap()
        .replace("&amp;", "&");
    let (path, anchor) = link.split_once('#').unwrap();
    let shown = visitor.get(path).await.fine();
    assert!(
        shown.contains(&format!("<li id=\"{anchor}\"")) && shown.contains(">line 550<"),
        "{link}"
    );
    assert!(!shown.contains(">line 500<"), "it begins a little before the line");
}

/// The page that repeats a run asks whether to do so although the group is disabled; both of its forms then do.
#[tokio::test]
async fn a_run_of_a_disabled_group_is_repeated_by_force() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", json!({"tasks": {"a": {"script": "echo"}}})).await;
    let run = heddle_tests::id(&node.run("g", json!({})).await);
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let form = format!("/runs/{run}/rerun");
    assert!(!visitor.get(&form).await.fine().contains("name=\"force\""));
    node.post("/v1/groups/g/disable", json!({})).await.expect_status(200);
    let page = visitor.get(&form).await.fine();
    assert_eq!(page.matches("name=\"force\"").count(), 2, "{page}");
    for fields in [("scripts", "pinned"), ("params", "{\"n\": 1}")] {
        let refused = visitor.post(&form, &[fields]).await;
        assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text);
        let done = visitor.post(&form, &[fields, ("force", "true")]).await;
        assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.text);
    }
}
