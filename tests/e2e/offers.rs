//! Offers as operators see them: by API, by command line, in files; and what is refused.

use std::process::Output;

use chrono::{SecondsFormat, TimeDelta};
use heddle_tests::{Node, TOKEN, World, run_program};
use serde_json::{Value, json};

fn heddle(node: &Node, arguments: &[&str]) -> Output {
    run_program(arguments, &[("HEDDLE_URL", node.base()), ("HEDDLE_TOKEN", TOKEN)])
}

/// What a command that succeeds says.
#[track_caller]
fn said(node: &Node, arguments: &[&str]) -> String {
    let output = heddle(node, arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {complaint}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The same with `-o json`.
#[track_caller]
fn json_of(node: &Node, arguments: &[&str]) -> Value {
    let said = said(node, &[arguments, &["-o", "json"]].concat());
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{arguments:?} gives no JSON ({error}): {said}"))
}

/// The words of a refusal.
#[track_caller]
fn refused(node: &Node, arguments: &[&str]) -> String {
    let output = heddle(node, arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!complaint.contains("panicked"), "{complaint}");
    complaint
}

/// An offer's whole life from a terminal.
#[tokio::test]
async fn by_command_line() {
    let (world, node) = World::with_node().await;
    let file = world.directory().join("survey.yaml");
    std::fs::write(
        &file,
        "audience: gid_team\ndispatch_times: 2\nparams: {q: 1}\nmax_hold: 1h\n",
    )
    .expect("a file");
    let file = file.to_string_lossy().into_owned();
    said(&node, &["audience", "set", "gid_team", "ann", "bob"]);
    said(&node, &["audience", "add", "gid_team", "cas"]);
    said(&node, &["audience", "remove", "gid_team", "bob"]);
    assert_eq!(
        json_of(&node, &["audience", "members", "gid_team"])["members"],
        json!(["ann", "cas"])
    );
    said(&node, &["offer", "set", "survey", "-f", &file]);
    let listed = said(&node, &["offer", "list"]);
    assert!(
        listed.contains("survey") && listed.contains("gid_team") && listed.contains("once"),
        "{listed}"
    );
    let shown = json_of(&node, &["offer", "show", "survey"]);
    assert_eq!(
        (
            &shown["kind"],
            &shown["dispatch_times"],
            &shown["mode"],
            &shown["max_hold"]
        ),
        (&json!("once"), &json!(2), &json!("single"), &json!("1h"))
    );
    let peeked = said(&node, &["offer", "peek", "ann"]);
    assert!(
        peeked.starts_with("a poll of ann would return survey of ") && peeked.contains("given"),
        "{peeked}"
    );
    assert_eq!(
        json_of(&node, &["offer", "peek", "ann"])["gives"]["params"],
        json!({"q": 1})
    );
    let given = node.post("/v1/dispatch/ann/next", json!({})).await.expect_status(200);
    let id = given["assignment_id"].as_str().expect("an id");
    let held = json_of(&node, &["assignment", "list", "--uid", "ann"]);
    assert_eq!(
        (&held["items"][0]["assignment_id"], &held["items"][0]["state"]),
        (&json!(id), &json!("assigned"))
    );
    assert!(said(&node, &["assignment", "list", "--gid", "team", "--offer", "survey"]).contains(id));
    assert_eq!(
        json_of(&node, &["assignment", "list", "--state", "completed"])["items"],
        json!([])
    );
    let occurrences = json_of(
        &node,
        &["offer", "occurrences", "--audience", "gid_team", "--offer", "survey"],
    );
    assert_eq!(
        (&occurrences["items"][0]["taken"], &occurrences["items"][0]["left"]),
        (&json!(1), &json!(1))
    );
    let revoked = json_of(&node, &["assignment", "revoke", id]);
    assert_eq!(revoked["state"], "revoked", "{revoked:#}");
    assert!(refused(&node, &["assignment", "revoke", id]).contains("already revoked"));
    assert!(refused(&node, &["assignment", "revoke", "0199f5a0-0000-7000-8000-000000000000"]).contains("assignment"));
    let events = said(&node, &["events", "--kind", "assignment.dispatched"]);
    // A transaction of another test may hold the feed up; what there is, is whole lines.
    for line in events.lines() {
        serde_json::from_str::<Value>(line).expect("a line of JSON");
    }
    said(&node, &["offer", "rm", "survey"]);
    assert!(refused(&node, &["offer", "show", "survey"]).contains("survey"));
    assert!(refused(&node, &["offer", "rm", "survey"]).contains("survey"));
    std::fs::write(&file, "audience: team\n").expect("a file");
    assert!(refused(&node, &["offer", "set", "survey", "-f", &file]).contains("/audience"));
}

/// Offers in files: applied after their templates, compared, exported, and applied again without a change.
#[tokio::test]
async fn in_files() {
    let (world, node) = World::with_node().await;
    let file = world.directory().join("offers.yaml");
    let text = "kind: interval\nname: ping\naudience: gid_team\nevery: 5m\nanchor: 2026-01-01T00:00:00Z\n\
                template: ping\nparams: {to: x}\n---\nkind: offer\nname: survey\nspec: {audience: uid_ann}\n---\nkind: template\nname: ping\nspec: {type: object, required: [to]}\n";
    std::fs::write(&file, text).expect("a file");
    let file = file.to_string_lossy().into_owned();
    let first = said(&node, &["apply", "-f", &file]);
    assert!(first.contains("ping") && first.contains("survey"), "{first}");
    let shown = json_of(&node, &["offer", "show", "ping"]);
    assert_eq!((&shown["kind"], &shown["every"]), (&json!("interval"), &json!("5m")));
    let before = shown["updated_at"].clone();
    said(&node, &["apply", "-f", &file]);
    assert_eq!(
        json_of(&node, &["offer", "show", "ping"])["updated_at"],
        before,
        "nothing changed"
    );
    assert_eq!(said(&node, &["diff", "-f", &file]), "", "no difference");
    let exported = said(&node, &["export"]);
    assert!(exported.contains("ping") && exported.contains("uid_ann"), "{exported}");
    let copy = world.directory().join("export.yaml");
    std::fs::write(&copy, &exported).expect("a file");
    said(&node, &["apply", "-f", &copy.to_string_lossy()]);
    assert_eq!(
        json_of(&node, &["offer", "show", "ping"])["updated_at"],
        before,
        "what was exported is the same"
    );
}

/// A template that offers use stays; they are named.
#[tokio::test]
async fn templates_in_use() {
    let (_world, node) = World::with_node().await;
    let schema = json!({"type": "object", "required": ["to"], "properties": {"to": {"type": "string"}}});
    node.put("/v1/templates/mail", schema).await.expect_status(201);
    let spec = json!({"audience": "uid_a", "template": "mail", "params": {"to": "x"}});
    for id in ["first", "second"] {
        node.put(&format!("/v1/offers/{id}"), spec.clone())
            .await
            .expect_status(201);
    }
    let task = json!({"audience": {"audience": "uid_a", "template": "mail"}, "params": {"to": "x"}});
    node.put_group("asks", json!({"tasks": {"t": task}})).await;
    let refused = node.delete("/v1/templates/mail").await;
    let said = refused.expect_problem(409, &[])["detail"]
        .as_str()
        .expect("a detail")
        .to_owned();
    for name in ["`first`", "`second`", "`asks`"] {
        assert!(said.contains(name), "{said}");
    }
    node.delete("/v1/offers/first").await.expect_status(204);
    node.delete("/v1/groups/asks").await.expect_status(200);
    node.delete("/v1/templates/mail").await.expect_said(409, "`second`");
    node.delete("/v1/offers/second").await.expect_status(204);
    node.delete("/v1/templates/mail").await.expect_status(204);
    node.put("/v1/offers/third", spec)
        .await
        .expect_problem(422, &["/template"]);
}

/// The priority of an offer has the bounds of a run's.
#[tokio::test]
async fn priorities() {
    let (_world, node) = World::with_node().await;
    let spec = |priority: i64| json!({"audience": "uid_a", "priority": priority});
    for beyond in [-1_001, 1_001, 40_000] {
        node.put("/v1/offers/urgent", spec(beyond))
            .await
            .expect_problem(422, &["/priority"]);
    }
    node.put("/v1/offers/urgent", spec(1_000)).await.expect_status(201);
}

/// Occurrences and assignments by audience, offer, user, state and time; a week unless it is said.
#[tokio::test]
async fn views() {
    let (world, node) = World::with_node().await;
    node.put("/v1/audiences/gid_team/members", json!({"members": ["a", "b", "c"]}))
        .await
        .expect_status(201);
    let spec = json!({"audience": "gid_team", "anchor": "2020-01-01T00:00:00Z", "every": "1h", "dispatch_times": 3});
    node.put("/v1/offers/hourly", spec).await.expect_status(201);
    let spec = json!({"audience": "uid_a", "at": "12:00", "timezone": "Europe/Berlin", "starts_at": "2020-01-01"});
    node.put("/v1/offers/daily", spec).await.expect_status(201);
    let pages = |query: &str| format!("/v1/offers/occurrences?{query}&limit=50");
    let hourly = node.all(&pages("audience=gid_team")).await;
    assert!((7 * 24..=7 * 24 + 1).contains(&hourly.len()), "{}", hourly.len());
    // Over the change of the clocks: noon in Berlin is at eleven, then at ten.
    let days = node
        .all(&pages("offer=daily&from=2024-03-30T00:00:00Z&to=2024-03-31T23:00:00Z"))
        .await;
    let times: Vec<&str> = days.iter().filter_map(|one| one["occurrence"].as_str()).collect();
    assert_eq!(times, ["2024-03-30T11:00:00.000000Z", "2024-03-31T10:00:00.000000Z"]);
    let both = node
        .all(&pages("from=2024-03-30T10:00:00Z&to=2024-03-30T12:00:00Z"))
        .await;
    let names: Vec<&str> = both.iter().filter_map(|one| one["offer"].as_str()).collect();
    assert_eq!(
        (names.len(), names.iter().filter(|name| **name == "daily").count()),
        (4, 1),
        "{names:?}"
    );
    // Pages go on wherever they end, before 1970 too.
    let spec = json!({"audience": "gid_old", "anchor": "1969-12-31T00:00:00Z", "every": "1h"});
    node.put("/v1/offers/old", spec).await.expect_status(201);
    let old = "/v1/offers/occurrences?offer=old&from=1969-12-31T00:00:00Z&to=1970-01-01T23:00:00Z&limit=5";
    assert_eq!(node.all(old).await.len(), 48);
    let mut ids = Vec::new();
    for (uid, status) in [("b", "completed"), ("c", "failed")] {
        let path = format!("/v1/dispatch/{uid}/next");
        let given = node.post(&path, json!({})).await.expect_status(200);
        let body = json!({"assignment_id": given["assignment_id"], "status": status, "result": {"by": uid}});
        let ended = node
            .post(&format!("/v1/dispatch/{uid}/complete"), body)
            .await
            .expect_status(200);
        assert!(ended["finished_at"].is_string(), "{ended:#}");
        ids.push(given["assignment_id"].clone());
    }
    let found = async |query: &str| -> Vec<Value> {
        let items = node.all(&format!("/v1/assignments?{query}&limit=1")).await;
        items.iter().map(|one| one["assignment_id"].clone()).collect()
    };
    let newest_first = vec![ids[1].clone(), ids[0].clone()];
    for query in [
        "gid=team",
        "gid=gid_team",
        "audience=gid_team",
        "offer=hourly",
        "from=2020-01-01T00:00:00Z",
        "state=completed,failed",
        "state=failed&state=completed",
        "state=assigned,failed,completed&gid=team",
    ] {
        assert_eq!(found(query).await, newest_first, "{query}");
    }
    for query in [
        "uid=b",
        "state=completed",
        "uid=uid_b",
        "offer=hourly&state=completed&uid=b",
        "state=completed,assigned",
        "state=completed,failed&uid=b",
    ] {
        assert_eq!(found(query).await, ids[..1], "{query}");
    }
    for query in [
        "state=assigned",
        "state=assigned,revoked,expired",
        "uid=nobody",
        "offer=none",
        "gid=none",
        "to=2020-01-01T00:00:00Z",
        "from=2100-01-01T00:00:00Z",
    ] {
        assert_eq!(found(query).await, Vec::<Value>::new(), "{query}");
    }
    for (path, pointer) in [
        ("/v1/assignments?state=lost", "/state"),
        ("/v1/assignments?state=failed,lost", "/state"),
        (
            "/v1/offers/occurrences?from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z",
            "/to",
        ),
        (
            "/v1/offers/occurrences?from=2020-01-01T00:00:00Z&to=2026-01-01T00:00:00Z",
            "/from",
        ),
        ("/v1/offers/occurrences?audience=team", "/audience"),
    ] {
        node.get(path).await.expect_problem(422, &[pointer]);
    }
    node.get("/v1/assignments?from=soon").await.expect_status(400);
    // An offer that changed its audience is found by whom it was given to.
    let spec = json!({"audience": "gid_other", "anchor": "2020-01-01T00:00:00Z", "every": "1h"});
    node.put("/v1/offers/hourly", spec).await.expect_status(200);
    assert_eq!(found("gid=team").await, newest_first);
    assert_eq!(found("gid=other").await, Vec::<Value>::new());
    // Held and ended assignments are in two tables. (An occurrence of each hour is due at any time of the day.)
    let spec = json!({"audience": "uid_a", "anchor": "2020-01-01T00:00:00Z", "every": "1h"});
    node.put("/v1/offers/own", spec).await.expect_status(201);
    let held = node.post("/v1/dispatch/a/next", json!({})).await.expect_status(200);
    let found = found("state=assigned,failed").await;
    assert_eq!(found, [held["assignment_id"].clone(), ids[1].clone()]);
    by_time(&world, &node, &held["assignment_id"]).await;
    by_time(&world, &node, &ids[1]).await;
    // Without `from`, the week before `to`.
    let sql = world.sql().await;
    let at = world.now().await - TimeDelta::days(10);
    sql.batch_execute(&format!(
        "SELECT heddle.make_dispatch_partitions('{}', 1);
         UPDATE heddle.assignments SET id = heddle.uuid_floor('{at}'), assigned_at = '{at}' WHERE uid = 'b'",
        at.date_naive()
    ))
    .await
    .expect("an assignment of the past");
    let of_user = async |more: &str| node.all(&format!("/v1/assignments?uid=b{more}")).await.len();
    assert_eq!(of_user("").await, 0);
    let to = (at + TimeDelta::days(6)).to_rfc3339_opts(SecondsFormat::Micros, true);
    assert_eq!(of_user(&format!("&to={to}")).await, 1);
    assert_eq!(of_user("&to=9999-12-31T00:00:00Z").await, 0);
}

/// An assignment is found by the time that it shows, and not by the one in its id; both ends are included.
async fn by_time(world: &World, node: &Node, id: &Value) {
    let id = id.as_str().expect("an id");
    let sql = world.sql().await;
    for difference in ["2 seconds", "-4 seconds"] {
        for table in ["holds", "assignments"] {
            sql.batch_execute(&format!(
                "UPDATE heddle.{table} SET assigned_at = assigned_at + interval '{difference}' WHERE id = '{id}'"
            ))
            .await
            .expect("another time");
        }
        let shown = node.get(&format!("/v1/assignments/{id}")).await.expect_status(200);
        let at = heddle_tests::time(&shown["assigned_at"]);
        let count = async |from: TimeDelta, to: TimeDelta| {
            let [from, to] = [at + from, at + to].map(|at| at.to_rfc3339_opts(SecondsFormat::Micros, true));
            let items = node.all(&format!("/v1/assignments?from={from}&to={to}")).await;
            items.iter().filter(|item| item["assignment_id"] == id).count()
        };
        let (none, least) = (TimeDelta::zero(), TimeDelta::microseconds(1));
        assert_eq!(count(none, none).await, 1, "{difference}");
        assert_eq!(count(least, least).await, 0, "{difference}");
        assert_eq!(count(-least, -least).await, 0, "{difference}");
    }
}

/// Workers' tokens reach their users and queues, and nothing else.
#[tokio::test]
async fn limited_tokens() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", json!({"tasks": {"t": {"queue": "own"}}})).await;
    for uid in ["a", "b"] {
        node.put(
            &format!("/v1/offers/for-{uid}"),
            json!({"audience": format!("uid_{uid}")}),
        )
        .await
        .expect_status(201);
    }
    let token = async |name: &str, limits: Value| {
        let mut body = json!({"name": name, "role": "worker"});
        for (key, value) in limits.as_object().into_iter().flatten() {
            body[key] = value.clone();
        }
        let made = node.post("/v1/tokens", body).await.expect_status(201);
        node.with_token(made["token"].as_str())
    };
    let users = token("users", json!({"uids": ["a"]})).await;
    let queues = token("queues", json!({"queues": ["own"]})).await;
    let claim = json!({"worker": "w", "lease": "10m"});
    let given = users.post("/v1/dispatch/a/next", json!({})).await.expect_status(200);
    users
        .post("/v1/dispatch/b/next", json!({}))
        .await
        .expect_problem(403, &[]);
    let others = json!({"assignment_id": given["assignment_id"], "status": "completed"});
    users
        .post("/v1/dispatch/b/complete", others.clone())
        .await
        .expect_problem(403, &[]);
    users
        .post("/v1/queues/own/claims", claim.clone())
        .await
        .expect_problem(403, &[]);
    queues
        .post("/v1/dispatch/a/next", json!({}))
        .await
        .expect_problem(403, &[]);
    queues
        .post("/v1/queues/others/claims", claim.clone())
        .await
        .expect_problem(403, &[]);
    node.start("g", json!({})).await;
    let waiting = json!({"worker": "w", "lease": "10m", "wait": "30s"});
    let held = queues.post("/v1/queues/own/claims", waiting).await.expect_status(200);
    let held = &held["items"][0];
    let path = format!("/v1/claims/{}/complete", held["id"].as_str().expect("an id"));
    let done = json!({"token": held["token"], "output": 1});
    // Even with the right token of the claim.
    users.post(&path, done.clone()).await.expect_problem(403, &[]);
    let elsewhere = token("elsewhere", json!({"queues": ["others"]})).await;
    elsewhere.post(&path, done.clone()).await.expect_problem(403, &[]);
    queues.post(&path, done).await.expect_status(200);
    users.post("/v1/dispatch/a/complete", others).await.expect_status(200);
    for api in [&users, &queues] {
        for path in [
            "/v1/offers",
            "/v1/assignments",
            "/v1/queues",
            "/v1/events",
            "/v1/audiences",
        ] {
            api.get(path).await.expect_problem(403, &[]);
        }
        api.put("/v1/offers/x", json!({"audience": "uid_a"}))
            .await
            .expect_problem(403, &[]);
    }
}

/// Members come in pages as all lists do, and the command line reads all of them.
#[tokio::test]
async fn members_come_in_pages() {
    let (_world, node) = World::with_node().await;
    let path = "/v1/audiences/gid_crowd/members";
    let users: Vec<String> = (0..601).map(|user| format!("u{user:03}")).collect();
    let put = node.put(path, json!({"members": users})).await.expect_status(201);
    let first = node.get(path).await.expect_status(200);
    for answer in [&put, &first] {
        assert_eq!(answer["members"], json!(users[..50]));
        assert_eq!(
            (&answer["count"], &answer["next_cursor"]),
            (&json!(601), &json!("u049"))
        );
    }
    let page = node.get(&format!("{path}?limit=500")).await.expect_status(200);
    assert_eq!(page["members"], json!(users[..500]));
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest = node.get(&format!("{path}?limit=500&cursor={cursor}")).await;
    let rest = rest.expect_status(200);
    assert_eq!(rest["members"], json!(users[500..]));
    assert!(rest["next_cursor"].is_null());
    for limit in ["0", "501", "10000"] {
        node.get(&format!("{path}?limit={limit}"))
            .await
            .expect_problem(422, &["/limit"]);
    }
    let listed = json_of(&node, &["audience", "members", "gid_crowd"]);
    assert_eq!(
        (&listed["members"], &listed["next_cursor"]),
        (&json!(users), &Value::Null)
    );
    // Of whom nothing changes is known beyond the first page.
    let added = heddle(&node, &["audience", "add", "gid_crowd", "u600"]);
    let said = String::from_utf8_lossy(&added.stderr);
    assert!(said.contains("u600 is already a member of gid_crowd"), "{said}");
}
