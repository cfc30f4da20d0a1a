//! Questions that pages answer: which runs had a param, how deep a queue was, what a new version takes, what is removed
//! when, who was given what, and what to do first.

use heddle_tests::{TOKEN, World, eventually};
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::{Visitor, check_page};

/// The ids of the runs that the API finds.
async fn found(api: &heddle_tests::Api, query: &str) -> (Vec<String>, bool) {
    let page = api.get(&format!("/v1/runs?{query}")).await.expect_status(200);
    let ids = page["items"].as_array().unwrap().iter();
    let ids = ids.map(|run| run["id"].as_str().unwrap().to_owned()).collect();
    (ids, page["next_cursor"].is_string())
}

#[tokio::test]
async fn runs_are_found_by_their_params() {
    let (_world, node) = World::with_node().await;
    // The script echoes whatever it is given.
    node.put_group("asked", json!({"tasks": {"a": {"script": "echo"}}}))
        .await;
    let mut runs = Vec::new();
    for params in [
        json!({"region": "eu", "n": 1}),
        json!({"region": "us", "n": "1", "window": {"days": 3, "to": "x"}}),
        json!({"note": "x", "region": "eu"}),
        json!({}),
    ] {
        runs.push(node.run("asked", json!({"params": params})).await["id"].clone());
    }
    let ids = |indices: &[usize]| -> Vec<String> {
        indices
            .iter()
            .map(|index| runs[*index].as_str().unwrap().to_owned())
            .collect()
    };
    for (query, indices) in [
        ("param=region%3Deu", &[2, 0][..]),
        ("param=region&group=asked", &[2, 1, 0]),
        ("param=n%3D1", &[1, 0]),
        ("param=window%3D%7B%22days%22%3A3%7D", &[1]),
        ("param=region%3Deu&param=n%3D1", &[0]),
        ("param=region%3Deu&group=none", &[]),
        ("param=region%3Dasia", &[]),
    ] {
        assert_eq!(found(&node, query).await, (ids(indices), false), "{query}");
    }
    // A page that is full says where to go on, and going on finds the rest.
    assert_eq!(found(&node, "param=region&limit=2").await, (ids(&[2, 1]), true));
    let rest = format!("param=region&limit=2&cursor={}", ids(&[1])[0]);
    assert_eq!(found(&node, &rest).await.0, ids(&[0]));

    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let page = visitor.get("/groups/asked/runs").await.fine();
    assert!(page.contains("name=\"param\""), "{page}");
    let page = visitor.get("/runs?group=asked&param=region%3Dus").await;
    check_page("/runs", &page);
    let page = page.fine();
    assert!(page.contains(&ids(&[1])[0]) && !page.contains(&ids(&[0])[0]), "{page}");
    // A search that shows only a part offers no bulk action; not even through a handmade form.
    assert!(!page.contains("/runs/bulk"), "{page}");
    assert!(visitor.get("/runs?group=asked").await.fine().contains("/runs/bulk"));
    let form = [
        ("group", "asked"),
        ("param", "region=us"),
        ("action", "rerun"),
        ("do", "start"),
    ];
    visitor.post("/runs/bulk", &form).await;
    assert_eq!(found(&node, "group=asked&history=true").await.0.len(), runs.len());
}

/// A report names a thousand refused runs, and counts all of them: so does the preview of an action.
#[tokio::test]
async fn a_preview_counts_all_runs_that_would_not_change() {
    let (_world, node) = World::with_node().await;
    node.put_group("many", json!({"tasks": {"t": {"queue": "nobody"}}}))
        .await;
    let runs = json!({"runs": vec![json!({}); 1_003]});
    node.post("/v1/groups/many/runs/batch", runs).await.expect_status(202);
    let cancel = json!({"filter": {"group": "many"}, "action": "cancel"});
    let report = node.post("/v1/runs/bulk", cancel).await.expect_status(200);
    assert_eq!(
        (&report["changed"], &report["refused_total"]),
        (&json!(1_003), &json!(0))
    );
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let preview = [("group", "many"), ("action", "cancel"), ("do", "preview")];
    let page = visitor.post("/runs/bulk", &preview).await;
    check_page("/runs/bulk", &page);
    let page = page.fine();
    for said in [
        "1,003 runs match. 1,003 of them would not change.",
        "983 more",
        "value=\"start\" disabled",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
    // One of them changes.
    node.start("many", json!({})).await;
    let page = visitor.post("/runs/bulk", &preview).await.fine();
    assert!(
        page.contains("1,004 runs match. 1,003 of them would not change."),
        "{page}"
    );
    assert!(!page.contains("value=\"start\" disabled"), "{page}");
}

#[tokio::test]
async fn a_queue_shows_how_it_stood() {
    let (_world, node) = World::with_node().await;
    node.put_group("by-hand", json!({"tasks": {"stamp": {"queue": "people"}}}))
        .await;
    for _ in 0..3 {
        node.start("by-hand", json!({})).await;
    }
    let claim = json!({"worker": "w1", "max": 2, "lease": "60s", "wait": "20s"});
    let claimed = node.post("/v1/queues/people/claims", claim).await.expect_status(200);
    let claimed = claimed["items"].as_array().unwrap().clone();
    let verbs = ["complete", "release"];
    assert_eq!(claimed.len(), verbs.len());
    for (claim, verb) in claimed.iter().zip(verbs) {
        let path = format!("/v1/claims/{}/{verb}", claim["id"].as_str().unwrap());
        node.post(&path, json!({"token": claim["token"]}))
            .await
            .expect_status(200);
    }
    node.get("/v1/queues/none/minutes").await.expect_problem(404, &[]);
    let minutes = eventually("what a worker has ended", async || {
        let minutes = node.get("/v1/queues/people/minutes").await.expect_status(200);
        let minutes = minutes["items"].as_array().unwrap().clone();
        let ended = |minute: &Value| minute["ended"].as_i64().unwrap();
        (minutes.iter().map(ended).sum::<i64>() > 0).then_some(minutes)
    })
    .await;
    let ended: i64 = minutes.iter().map(|minute| minute["ended"].as_i64().unwrap()).sum();
    assert_eq!(ended, 1, "what is given back has not ended: {minutes:?}");
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let page = visitor.get("/queues/people").await;
    check_page("/queues/people", &page);
    let page = page.fine();
    assert!(page.contains("Workers finished 1 task run"), "{page}");
    // Three, two or one, by when it was looked at.
    assert!(page.contains("task runs waited at once"), "{page}");
    assert!(visitor.get("/queues").await.fine().contains("Per minute"));
    // Paused: what that holds up, and who did it.
    node.post("/v1/queues/people/pause", json!({})).await.expect_status(200);
    for path in ["/queues", "/queues/people"] {
        let page = visitor.get(path).await.fine();
        assert!(page.contains("2 task runs are waiting: the queue is paused"), "{page}");
        assert!(page.contains("paused by <bdi>e2e</bdi>"), "{page}");
    }
}

/// The data of a run shows the defaults of each script, of the version that the run has. It asks for no script by itself, however
/// many there are.
#[tokio::test]
async fn the_data_of_a_run_has_the_defaults_of_its_scripts() {
    const SCRIPTS: usize = 9;
    let (_world, node) = World::with_node().await;
    let upload = async |n: usize, region: &str| {
        let text = format!("export const defaults = {{region: \"{region}-{n}\"}};\nexport default () => 1;\n");
        node.put_bytes(&format!("/v1/scripts/s-{n}"), "text/javascript", text)
            .await
            .expect_status(201);
    };
    let mut tasks = serde_json::Map::new();
    for n in 0..SCRIPTS {
        upload(n, "old").await;
        tasks.insert(format!("t-{n}"), json!({"script": format!("s-{n}")}));
    }
    node.put_group("scripts", json!({ "tasks": tasks })).await;
    let run = heddle_tests::id(&node.run("scripts", json!({})).await);
    for n in 0..SCRIPTS {
        upload(n, "new").await;
    }
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    // A page counts the calls of the API that it makes itself.
    let answers = async || {
        let metrics = node.get("/metrics").await.expect_status(200);
        let mut lines = metrics.as_str().unwrap().lines();
        let count = lines.find_map(|line| line.strip_prefix("heddle_http_answers_total{status=\"2xx\"} "));
        count.expect("a count").parse::<usize>().unwrap()
    };
    let before = answers().await;
    let page = visitor.get(&format!("/runs/{run}/data")).await.fine();
    let asked = answers().await - before;
    assert!(asked < SCRIPTS, "{asked} answers");
    for n in 0..SCRIPTS {
        assert!(
            page.contains(&format!("old-{n}")) && !page.contains(&format!("new-{n}")),
            "{page}"
        );
    }
}

#[tokio::test]
async fn versions_tell_in_words_what_their_params_are_now() {
    let (_world, node) = World::with_node().await;
    for params in [
        json!({"region": {"type": "string"}}),
        json!({"region": {"type": "number"}, "days": {"type": "number"}}),
    ] {
        let schema = json!({"type": "object", "properties": params});
        let text = format!("export const params = {schema};\nexport default () => 1;\n");
        node.put_bytes("/v1/scripts/report", "text/javascript", text)
            .await
            .expect_status(201);
    }
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let page = visitor.get("/scripts/report").await;
    check_page("/scripts/report", &page);
    let page = page.fine();
    for said in [
        "2 changes since",
        "<bdi>days</bdi></code> is new",
        "was &quot;string&quot;",
    ] {
        assert!(page.contains(said), "{said}: {page}");
    }
}

#[tokio::test]
async fn retention_and_assignments_are_shown_as_they_are_asked_for() {
    let (_world, node) = World::with_old_run("'2024-01-02T11:00:00Z'", "'2024-01-02T12:00:00Z'").await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let page = visitor.get("/system/retention").await;
    check_page("/system/retention", &page);
    let page = page.fine();
    let row = |page: &str, what: &str| {
        let row = page.split("<tr>").find(|row| row.contains(what));
        row.unwrap_or_else(|| panic!("no {what}: {page}")).to_owned()
    };
    let succeeded = row(&page, "Runs that succeeded");
    assert!(
        succeeded.contains(">90 d<")
            && succeeded.contains(">1<")
            && succeeded.contains("datetime=\"2024-01-02T12:00:00.000Z\""),
        "{succeeded}"
    );
    assert!(row(&page, "Runs that failed").contains(">0<"), "{page}");
    assert!(row(&page, "Logs of runs").contains("as long as their runs"), "{page}");
    // Who may not ask what would go is told the rules.
    let token = json!({"name": "sees", "role": "viewer"});
    let token = node.post("/v1/tokens", token).await.expect_status(201);
    let sees = Visitor::signed_in(node.base(), token["token"].as_str().unwrap()).await;
    let page = sees.get("/system/retention").await.fine();
    assert!(
        row(&page, "Runs that succeeded").contains(">90 d<") && !page.contains("To remove now"),
        "{page}"
    );

    let body = json!({"audience": "uid_ann", "params": {}});
    node.put("/v1/offers/wave", body).await;
    let given = node
        .post("/v1/dispatch/ann/next", json!({"wait": "20s"}))
        .await
        .expect_status(200);
    let id = given["assignment_id"].as_str().unwrap().to_owned();
    for (query, is_there) in [
        ("uid=ann", true),
        ("uid=ann&from=2024-01-01T00:00:00Z&state=assigned", true),
        ("uid=ann&to=2024-01-01T00:00:00Z&from=2023-01-01T00:00:00Z", false),
        ("uid=bob", false),
        ("uid=ann&state=completed", false),
    ] {
        let page = visitor.get(&format!("/dispatch?{query}")).await;
        check_page("/dispatch", &page);
        let page = page.fine();
        assert_eq!(page.contains(&id), is_there, "{query}: {page}");
        assert!(page.contains("name=\"from\"") && page.contains("name=\"to\""), "{page}");
    }
}

#[tokio::test]
async fn an_empty_database_greets_until_there_is_something() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let page = visitor.get("/").await;
    check_page("/", &page);
    assert_eq!(page.status, StatusCode::OK);
    let page = page.text;
    assert!(page.contains("in three steps"), "{page}");
    for command in [
        "heddle script push hello hello/hello.js",
        "heddle apply -f hello.yaml",
        "--watch",
    ] {
        assert_eq!(page.matches(command).count(), 2, "to read and to copy: {command}");
    }
    // Where nothing is looked for, nothing is said to match or not.
    for (path, says) in [("/groups", "No groups yet"), ("/runs", "No runs.")] {
        let page = visitor.get(path).await.fine();
        assert!(page.contains(says), "{path}: {page}");
        let page = visitor.get(&format!("{path}?category=none&group=none")).await.fine();
        assert!(page.contains(" match."), "{path}: {page}");
    }
    // It makes way by itself.
    let (heard, ()) = tokio::join!(visitor.hears(&page, &["event: attention", "event: day"]), async {
        node.put_group("first", json!({"tasks": {"a": {"script": "hello"}}}))
            .await;
    });
    assert!(!heard.contains("in three steps"), "{heard}");
}

#[tokio::test]
async fn the_events_of_a_run_tell_of_each_attempt() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "10ms"});
    let task = json!({"script": "flaky", "params": {"fail_times": 1}, "retry": retry});
    node.put_group("again", json!({"tasks": {"t": task}})).await;
    let run = node.run("again", json!({})).await;
    assert_eq!(run["state"], "succeeded");
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let page = visitor
        .get(&format!("/runs/{}/events", run["id"].as_str().unwrap()))
        .await;
    check_page("events", &page);
    let page = page.fine();
    for said in [
        "created by hand, or through the API",
        "attempt 1 · failed: attempt 1 fails, as asked",
        ">attempt 2<",
    ] {
        assert_eq!(page.matches(said).count(), 1, "{said}: {page}");
    }
}

/// A list has further pages, or says that it shows only its first rows.
#[tokio::test]
async fn lists_say_that_there_is_more() {
    const FIRST: &str = "Only the first 100 are shown.";
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let hook = json!({"kind": "webhook", "url": "http://127.0.0.1:9/", "allow_private": true});
    for n in 0..100 {
        let (topic, channel) = (format!("/v1/topics/t-{n:03}"), format!("/v1/channels/c-{n:03}"));
        node.put(&topic, json!({"queue": "post"})).await.expect_status(201);
        node.put(&channel, hook.clone()).await.expect_status(201);
    }
    assert!(!visitor.get("/notifications").await.fine().contains(FIRST));
    node.put("/v1/channels/c-100", hook).await.expect_status(201);
    assert!(visitor.get("/notifications").await.fine().contains(FIRST));
    assert!(visitor.get("/system/channels").await.fine().contains(FIRST));
    node.put("/v1/topics/t-100", json!({"queue": "post"}))
        .await
        .expect_status(201);
    let first = visitor.get("/topics").await.fine();
    let next = first.split("href=\"/topics?cursor=").nth(1).expect("a next page");
    let next = next.split('"').next().unwrap();
    let second = visitor.get(&format!("/topics?cursor={next}")).await.fine();
    assert!(!second.contains("/topics/t-000\""), "{second}");
    assert!(second.contains("/topics/t-100\""), "{second}");
}

/// So does the table of the messages of somebody.
#[tokio::test]
async fn messages_that_are_looked_up_may_be_the_first_of_many() {
    let (world, node) = World::with_node().await;
    let due = crate::later(world.now().await).to_string();
    node.put("/v1/topics/letters", json!({"queue": "post"}))
        .await
        .expect_status(201);
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let mut receivers = 0..;
    for (more, is_cut) in [(50, false), (1, true)] {
        let messages: Vec<Value> = receivers
            .by_ref()
            .take(more)
            .map(|n: i64| json!({"sender": 7, "receiver": n, "due": due, "payload": {}}))
            .collect();
        node.post("/v1/topics/letters/messages", json!(messages))
            .await
            .expect_status(200);
        let page = visitor.get("/topics/letters?sender=7&receiver=").await;
        check_page("/topics/letters", &page);
        let page = page.fine();
        assert_eq!(page.contains("Only the first 50 are shown."), is_cut, "{page}");
    }
}

/// The lists of the dispatch pages that have no further pages say so too.
#[tokio::test]
async fn dispatch_says_that_there_is_more() {
    let (world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let begin = world.now().await - chrono::TimeDelta::hours(1);
    let offer = json!({"audience": "uid_ann", "anchor": begin.to_rfc3339(), "every": "1m"});
    node.put("/v1/offers/rounds", offer).await.expect_status(201);
    let cut = |page: &str, rows: usize| page.contains(&format!("Only the first {rows} are shown."));
    assert!(cut(&visitor.get("/dispatch").await.fine(), 50));
    let peek = "/dispatch/as?uid=ann";
    for taken in 0..=20 {
        assert!(!cut(&visitor.get(peek).await.fine(), 20), "{taken}");
        let given = node
            .post("/v1/dispatch/ann/next", json!({"wait": "20s"}))
            .await
            .expect_status(200);
        let done = json!({"assignment_id": given["assignment_id"], "status": "completed"});
        node.post("/v1/dispatch/ann/complete", done).await.expect_status(200);
    }
    let page = visitor.get(peek).await;
    check_page("/dispatch/as", &page);
    assert!(cut(&page.fine(), 20));
}

/// A form that is refused comes back with what was typed into it, and says at which field it was wrong.
#[tokio::test]
async fn what_was_typed_is_not_lost() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    node.put("/v1/pools/few", json!({"slots": 3})).await;
    let spec = "description: long work\ntasks:\n  a:\n    script: hello\n";
    node.put_group("brief", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    node.put("/v1/audiences/gid_team/members", json!({"members": ["ann"]}))
        .await;
    for (path, form, kept, said) in [
        (
            "/system/pools",
            vec![("name", "few"), ("slots", "1e3")],
            vec!["1e3", "few"],
            "id=\"slots-fault\"",
        ),
        (
            "/system/pools",
            vec![("name", "few"), ("slots", "")],
            vec!["few"],
            "id=\"slots-fault\"",
        ),
        (
            "/system/pools",
            vec![("name", "bad name!"), ("slots", "4")],
            vec!["bad name!", "4"],
            "role=\"alert\"",
        ),
        (
            "/preferences",
            vec![("lang", "zh"), ("zone", "Mars/Olympus")],
            vec!["Mars/Olympus"],
            "id=\"zone-fault\"",
        ),
        (
            "/dispatch/audiences/gid_team",
            vec![("add", "bob, gid_bad")],
            vec!["bob, gid_bad"],
            "id=\"add-fault\"",
        ),
        (
            "/system/tokens",
            vec![("name", "ci"), ("role", "viewer"), ("expires_at", "2020-01-01T00:00")],
            vec!["2020-01-01T00:00", "Expires: must be in the future"],
            "id=\"expires_at-fault\">must be in the future<",
        ),
        (
            "/system/tokens",
            vec![("name", "w"), ("role", "worker"), ("queues", " , ")],
            vec!["value=\" , \""],
            "role=\"alert\"",
        ),
    ] {
        let page = visitor.fill(path, &form).await;
        check_page(path, &page);
        assert!(page.status.is_client_error(), "{path}: {}", page.status);
        let kept = kept.iter().all(|text| page.text.contains(text));
        assert!(kept && page.text.contains(said), "{path} {form:?}: {}", page.text);
        assert!(
            !page.text.contains("add.1"),
            "a field is called by its label: {}",
            page.text
        );
    }
    assert_eq!(node.get("/v1/pools/few").await.expect_status(200)["slots"], 3);
    // The group is deleted while somebody writes its spec.
    node.delete("/v1/groups/brief").await.expect_status(200);
    let page = visitor
        .fill(
            "/groups/brief/spec?edit=1",
            &[("opened", "1"), ("do", "save"), ("spec", spec)],
        )
        .await;
    check_page("/groups/brief/spec", &page);
    assert_eq!(page.status, StatusCode::NOT_FOUND);
    assert!(
        page.text.contains("long work") && page.text.contains("was deleted by"),
        "{}",
        page.text
    );
}

/// A spec is saved onto the revision from which it was written, and no other person's revision is replaced unseen.
#[tokio::test]
async fn nobody_replaces_a_spec_that_they_have_not_seen() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let spec = |description: &str| json!({"description": description, "tasks": {"a": {"script": "hello"}}});
    node.put_group("shared", spec("one")).await;
    let page = visitor.get("/groups/shared/spec?edit=1").await.fine();
    assert!(page.contains("name=\"opened\" value=\"1\""), "{page}");
    node.put_group("shared", spec("theirs")).await;
    let mine = "description: mine\ntasks:\n  a:\n    script: hello\n";
    let form = |opened: &'static str| [("opened", opened), ("do", "save"), ("spec", mine)];
    let page = visitor.fill("/groups/shared/spec?edit=1", &form("1")).await;
    check_page("/groups/shared/spec", &page);
    assert_eq!(page.status, StatusCode::PRECONDITION_FAILED, "{}", page.text);
    for shown in [
        "+ description: theirs",
        "- description: one",
        "description: mine",
        "name=\"opened\" value=\"2\"",
    ] {
        assert!(page.text.contains(shown), "{shown}: {}", page.text);
    }
    let group = node.get("/v1/groups/shared").await.expect_status(200);
    assert_eq!(group["description"], "theirs");
    let page = visitor.fill("/groups/shared/spec", &form("2")).await;
    assert_eq!(page.status, StatusCode::SEE_OTHER, "{}", page.text);
    let group = node.get("/v1/groups/shared").await.expect_status(200);
    assert_eq!((&group["description"], &group["revision"]), (&json!("mine"), &json!(3)));
}

/// The overview's timeline has room for forty groups. What failed is among them, whatever it is called.
#[tokio::test]
async fn a_group_that_failed_is_on_the_timeline_before_those_that_are_due() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    for n in 0..41 {
        let due = json!({"schedules": {"hourly": {"cron": "0 * * * *"}}, "tasks": {"a": {"script": "hello"}}});
        node.put_group(&format!("a-{n}"), due).await;
    }
    let bad = json!({"tasks": {"a": {"script": "flaky", "params": {"fail_times": 9, "kind": "fatal"}}}});
    node.put_group("zz", bad).await;
    let run = node.start("zz", json!({})).await;
    node.run_becomes(&run, "failed").await;
    let page = visitor.get("/").await.fine();
    let day = page.split("id=\"day\"").nth(1).expect("the page has a timeline");
    let day = day.split("id=\"pace\"").next().unwrap();
    assert!(day.contains("href=\"/groups/zz\""), "{day}");
    assert_eq!(day.matches("lane-name").count(), 40, "{day}");
}

/// However many runs one group has, the others have their lanes; of the many, some of each hour are drawn, and it says so.
#[tokio::test]
async fn a_busy_group_hides_no_other_on_the_timeline() {
    let (world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let bad = json!({"tasks": {"a": {"script": "flaky", "params": {"fail_times": 9, "kind": "fatal"}}}});
    node.put_group("lonely", bad).await;
    node.put_group("quiet", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    node.put_group("busy", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    let run = node.start("lonely", json!({})).await;
    node.run_becomes(&run, "failed").await;
    node.run("quiet", json!({})).await;
    let many = "INSERT INTO heddle.runs_done (id, group_id, revision_id, state, trigger, priority, logical_time,
                                              interval_start, interval_end, params, created_at, started_at, progress,
                                              finished_at)
                SELECT heddle.uuid_v7(clock_timestamp()), g.id, g.revision_id, 3, 1, 0, now(), now(), now(), '{}', now(),
                       now(), '\\x00', now() + interval '1 millisecond'
                  FROM heddle.groups g, generate_series(1, 2500) WHERE g.name = 'busy'";
    world.sql().await.batch_execute(many).await.unwrap();
    let page = visitor.get("/").await.fine();
    let day = page.split("id=\"day\"").nth(1).expect("the page has a timeline");
    let day = day.split("id=\"pace\"").next().unwrap();
    for group in ["lonely", "quiet", "busy"] {
        assert!(day.contains(&format!("href=\"/groups/{group}\"")), "{group}: {day}");
    }
    assert!(day.contains(&format!("href=\"/runs/{run}\"")), "{day}");
    assert!(day.contains("Of a group with more than 150 runs"), "{day}");
    assert!(!day.contains("2,500 runs") && !day.contains("busy: 150 runs"), "{day}");
}

/// However often one group fails, and however many notifications were sent, what needs a person is shown.
#[tokio::test]
async fn a_group_that_fails_often_hides_no_other_failure() {
    let (world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let bad = json!({"tasks": {"a": {"script": "flaky", "params": {"fail_times": 9, "kind": "fatal"}}}});
    node.put_group("lonely", bad.clone()).await;
    node.put_group("noisy", bad).await;
    let run = node.start("lonely", json!({})).await;
    node.run_becomes(&run, "failed").await;
    let many = "INSERT INTO heddle.runs_done (id, group_id, revision_id, state, trigger, priority, logical_time,
                                              interval_start, interval_end, params, created_at, started_at, progress,
                                              finished_at, error)
                SELECT heddle.uuid_v7(clock_timestamp()), g.id, g.revision_id, 4, 1, 0, now(), now(), now(), '{}', now(),
                       now(), '\\x00', now() + interval '1 millisecond', 'once more'
                  FROM heddle.groups g, generate_series(1, 2500) WHERE g.name = 'noisy';
                INSERT INTO heddle.notifications (id, channel, event, subject, facts, state, last_error, created_at)
                VALUES (gen_random_uuid(), 'pager', 'failed', '', '{}', 2, 'nobody answers', now() - interval '1 hour');
                INSERT INTO heddle.notifications (id, channel, event, subject, facts, state, created_at, sent_at)
                SELECT gen_random_uuid(), 'chat', 'succeeded', '', '{}', 1, now(), now() FROM generate_series(1, 1000)";
    world.sql().await.batch_execute(many).await.unwrap();
    let page = visitor.get("/").await.fine();
    let attention = page
        .split("id=\"attention\"")
        .nth(1)
        .expect("the page says what needs attention");
    let attention = attention.split("id=\"day\"").next().unwrap();
    for part in [
        "/groups/lonely",
        "/groups/noisy",
        &format!("/runs/{run}"),
        "300+ runs",
        "nobody answers",
    ] {
        assert!(attention.contains(part), "{part}: {attention}");
    }
}

/// A topic whose messages fail says why, on its page and on the page of the day.
#[tokio::test]
async fn a_topic_says_why_its_messages_failed() {
    let (world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let due = crate::later(world.now().await);
    node.put("/v1/topics/letters", json!({"queue": "post"}))
        .await
        .expect_status(201);
    let message = json!([{"sender": 1, "receiver": 2, "due": due.to_string(), "payload": 1}]);
    node.post("/v1/topics/letters/messages", message)
        .await
        .expect_status(200);
    let pages = [
        format!("/topics/letters?month={}", due.format("%Y-%m")),
        format!("/topics/letters/{due}"),
    ];
    for page in &pages {
        let page = visitor.get(page).await.fine();
        assert!(!page.contains("Why messages failed"), "{page}");
    }
    let failed = format!(
        "INSERT INTO heddle.message_retries (topic, day, bucket, id, attempt, retry, due_at, error)
         SELECT t.id, '{due}', 1, gen_random_uuid(), 1, '{{}}', '2100-01-01',
                CASE WHEN n < 3 THEN 'the mailbox is full' ELSE 'nobody <b>lives</b> there' END
           FROM heddle.topics t, generate_series(0, 3) AS n WHERE t.name = 'letters'"
    );
    world.sql().await.batch_execute(&failed).await.unwrap();
    for page in &pages {
        let answer = visitor.get(page).await;
        check_page(page, &answer);
        let text = answer.fine();
        let errors = text.split("Why messages failed").nth(1).expect("the page has errors");
        let (full, nobody) = (errors.find("the mailbox is full"), errors.find("nobody &lt;b&gt;lives"));
        assert!(
            full.is_some() && full < nobody,
            "the more frequent one is first: {text}"
        );
    }
}
