//! A run that waits says why and for whom, and leads to what it waits for; a task has the same state wherever it is shown.

use heddle_tests::{Node, TOKEN, World};
use serde_json::{Value, json};

use crate::Visitor;

/// A page of a run, as one reads it: without its markup.
async fn read(visitor: &Visitor, path: &str) -> String {
    let page = visitor.get(path).await.fine();
    let body = page.split("<main").nth(1).unwrap().split("</main>").next().unwrap();
    let mut text = String::new();
    for piece in body.split('<') {
        text.push_str(piece.split_once('>').map_or(piece, |(_, said)| said));
    }
    text.replace("&#39;", "'")
}

/// A run of a group with this one task, once it is in this state.
async fn task(node: &Node, name: &str, task: Value, state: &str) -> String {
    node.put_group(name, json!({"tasks": {"t": task}})).await;
    let run = node.start(name, json!({})).await;
    node.task_becomes(&run, "t", state).await;
    run
}

#[tokio::test]
async fn what_a_run_waits_for_is_said_in_words() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let says = async |run: &str, words: &[&str]| {
        let text = read(&visitor, &format!("/runs/{run}")).await;
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text}");
        }
    };
    // Its turn.
    node.put_group(
        "gated",
        json!({"max_active_runs": 1, "tasks": {"t": {"queue": "people"}}}),
    )
    .await;
    let first = node.start("gated", json!({})).await;
    node.run_becomes(&first, "running").await;
    let second = node.start("gated", json!({})).await;
    says(&second, &["waits for its turn: 1 of 1 run of this group is active"]).await;
    let page = visitor.get(&format!("/runs/{second}")).await.fine();
    assert!(page.contains(&format!("href=\"/runs/{first}\"")), "{page}");
    // In lists as well.
    for list in ["/runs", "/groups/gated/runs"] {
        let text = read(&visitor, list).await;
        assert!(text.contains("waits for its turn"), "{list}: {text}");
    }
    // A worker, and a queue that is paused; items of a map as well, which are taken two at a time.
    says(&first, &["t waits for a worker of the queue people"]).await;
    let map = json!({"queue": "people", "for_each": [1, 2, 3, 4, 5], "concurrency": 2});
    let mapped = task(&node, "mapped", map, "running").await;
    heddle_tests::eventually("two items that wait for a worker", async || {
        let run = node.run_now(&mapped).await;
        let ready = run["tasks"][0]["items"]["ready"].as_u64();
        (ready == Some(2)).then_some(())
    })
    .await;
    says(
        &mapped,
        &[
            "t (2 items) waits for a worker of the queue people",
            "t: 2 at a time; 3 queued",
        ],
    )
    .await;
    node.put("/v1/queues/people", json!({"paused": true})).await;
    says(
        &mapped,
        &["t (2 items) waits for a worker, and the queue is paused: people"],
    )
    .await;
    // Slots, and who holds them.
    node.put("/v1/pools/few", json!({"slots": 2})).await;
    let pooled = |slots: u32| json!({"script": "sleep", "params": {"seconds": 600}, "pools": {"few": slots}});
    let holds = task(&node, "holds", pooled(1), "running").await;
    let waits = task(&node, "wants", pooled(2), "ready").await;
    says(
        &waits,
        &["t waits for 2 slots of the pool few (1 of 2 held by holds · t · "],
    )
    .await;
    let page = visitor.get(&format!("/runs/{waits}")).await.fine();
    assert!(page.contains(&format!("href=\"/runs/{holds}\"")), "{page}");
    let overview = visitor.get("/").await.fine();
    let ready = overview
        .split("<dt><span>ready")
        .next()
        .unwrap()
        .rsplit("<b>")
        .next()
        .unwrap();
    assert!(ready.starts_with("1<"), "one task run waits for a slot: {ready}");
    // Who stopped it.
    node.post(&format!("/v1/runs/{mapped}/pause"), json!({}))
        .await
        .expect_status(200);
    says(&mapped, &["paused by "]).await;
    // Nothing of the map is under way.
    let whole = node.run_now(&mapped).await["tasks"][0].clone();
    assert_eq!((&whole["item"], &whole["state"]), (&json!(null), &json!("paused")));
    node.post(&format!("/v1/runs/{mapped}/cancel"), json!({}))
        .await
        .expect_status(200);
    node.run_becomes(&mapped, "cancelled").await;
    says(&mapped, &["cancelled by "]).await;
}

/// During an upgrade, a newer node may write a reason that this one does not know.
#[tokio::test]
async fn a_reason_of_a_newer_version_hides_no_run() {
    let (world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let spec = json!({"max_active_runs": 1, "tasks": {"t": {"queue": "people"}}});
    node.put_group("gated", spec).await;
    let first = node.start("gated", json!({})).await;
    node.run_becomes(&first, "running").await;
    let second = node.start("gated", json!({})).await;
    let newer = json!([{"moon": "full"}]);
    let write = format!("UPDATE heddle.runs_live SET waiting_for = '{newer}' WHERE id = '{second}'");
    world.sql().await.batch_execute(&write).await.unwrap();
    assert_eq!(node.run_now(&second).await["waiting_for"], newer);
    for path in [
        format!("/runs/{second}"),
        "/runs".to_owned(),
        "/groups/gated/runs".to_owned(),
    ] {
        let text = read(&visitor, &path).await;
        let words = "waits for something that only a newer version of Heddle can name";
        assert!(text.contains(words), "{path}: {text}");
    }
}

/// Who cancelled a run is read once it has ended, and kept with the run: but not that it could not be read.
#[tokio::test]
async fn who_cancelled_a_run_is_said_as_soon_as_it_can_be_read() {
    let (world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let run = task(&node, "gone", json!({"queue": "nobody"}), "ready").await;
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    node.run_becomes(&run, "cancelled").await;
    let (sql, path) = (world.sql().await, format!("/runs/{run}"));
    let rename = "ALTER TABLE heddle.audit RENAME COLUMN";
    sql.batch_execute(&format!("{rename} before TO hidden")).await.unwrap();
    let text = read(&visitor, &path).await;
    assert!(!text.contains("cancelled by"), "{text}");
    sql.batch_execute(&format!("{rename} hidden TO before")).await.unwrap();
    for _ in 0..2 {
        let text = read(&visitor, &path).await;
        assert!(text.contains("cancelled by e2e"), "{text}");
    }
}

#[tokio::test]
async fn a_task_that_starts_runs_leads_to_them() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let fails = json!({"script": "flaky", "params": {"fail_times": 9, "kind": "fatal"}});
    node.put_group("below", json!({"tasks": {"t": fails}})).await;
    node.put_group("slow-below", json!({"tasks": {"t": {"queue": "nobody"}}}))
        .await;
    let above = task(&node, "above", json!({"group": "below"}), "failed").await;
    let goes_on = task(&node, "goes-on", json!({"group": "slow-below"}), "running").await;
    for (parent, group, child) in [(&above, "above", "below"), (&goes_on, "goes-on", "slow-below")] {
        let runs = node.all(&format!("/v1/runs?group={child}")).await;
        let link = format!("href=\"/runs/{}\"", runs[0]["id"].as_str().unwrap());
        for path in ["", "/graph"].map(|tab| format!("/runs/{parent}{tab}")) {
            let page = visitor.get(&path).await.fine();
            assert!(
                page.contains(&link),
                "{path} does not lead to the run of {child}: {page}"
            );
        }
        let graph = visitor.get(&format!("/groups/{group}/graph")).await.fine();
        assert!(graph.contains(&link), "{graph}");
        let text = read(&visitor, &format!("/groups/{group}/graph")).await;
        assert!(text.contains("starts runs of") && !text.contains("waits for"), "{text}");
        // And back.
        let back = visitor
            .get(&format!("/runs/{}", runs[0]["id"].as_str().unwrap()))
            .await
            .fine();
        assert!(back.contains(&format!("href=\"/runs/{parent}\"")), "{back}");
    }
    let attempts = visitor.get(&format!("/runs/{above}/attempts")).await.fine();
    assert!(attempts.contains("failed: sub-run <a href=\"/runs/"), "{attempts}");
    // No error names the run that was cancelled with the one above it.
    node.post(&format!("/v1/runs/{goes_on}/cancel"), json!({}))
        .await
        .expect_status(200);
    let child = node.all("/v1/runs?group=slow-below").await[0]["id"].clone();
    let child = child.as_str().unwrap();
    node.run_becomes(child, "cancelled").await;
    for path in ["", "/graph"].map(|tab| format!("/runs/{goes_on}{tab}")) {
        let page = visitor.get(&path).await.fine();
        assert!(page.contains(&format!("href=\"/runs/{child}\"")), "{path}: {page}");
    }
}

/// The chain of tasks that the run's length is made of, where a failure goes on through a task that never began.
#[tokio::test]
async fn the_critical_path_leads_over_what_failed() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let fails = json!({"script": "flaky", "params": {"fail_times": 9, "kind": "fatal"}, "depends_on": ["extract"]});
    let tasks = json!({
        "extract": {"script": "hello"},
        "parse": fails,
        "load": {"script": "hello", "depends_on": ["parse"]},
        "cleanup": {"script": "hello", "depends_on": ["load"], "trigger_rule": "all_done"},
    });
    node.put_group("orders", json!({"tasks": tasks})).await;
    let run = node.run("orders", json!({})).await;
    let graph = visitor
        .get(&format!("/runs/{}/graph", run["id"].as_str().unwrap()))
        .await
        .fine();
    assert_eq!(graph.matches("class=\"edge critical\"").count(), 3, "{graph}");
}

#[tokio::test]
async fn what_a_topic_has_put_into_a_queue_waits_there_for_a_worker() {
    let (world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let now = world.now().await;
    let spec = json!({"queue": "post", "granularity": "instant", "rate": {"count": 500, "per": "1s"}});
    node.put("/v1/topics/letters", spec).await.expect_status(201);
    let due: Vec<Value> = (0..7)
        .map(|n| json!({"sender": n, "receiver": n, "due": now}))
        .collect();
    node.post("/v1/topics/letters/messages", json!(due))
        .await
        .expect_status(200);
    heddle_tests::eventually("the messages in the queue", async || {
        let found = node.get("/v1/queues/post").await;
        (found.status == 200 && found.expect_status(200)["depth"].as_i64() > Some(0)).then_some(())
    })
    .await;
    let days = node.all("/v1/topics/letters/days").await;
    let day = days[0]["day"].as_str().unwrap();
    for path in [
        format!("/topics/letters?month={}", &day[..7]),
        format!("/topics/letters/{day}"),
    ] {
        let text = read(&visitor, &path).await;
        for words in ["no worker claims", "in the queue", "at most 500 messages in 1 s"] {
            assert!(text.contains(words), "{words:?} is not in {path}: {text}");
        }
        assert!(!text.contains("being sent"), "{text}");
    }
    let list = read(&visitor, "/queues").await;
    assert!(list.contains("no worker claims"), "{list}");
    assert!(
        read(&visitor, "/notifications?state=failed")
            .await
            .contains("No notifications match.")
    );
}

#[tokio::test]
async fn a_batch_of_messages_is_not_offered_to_run_again() {
    let (world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let spec = json!({"queue": "post", "granularity": "instant"});
    node.put("/v1/topics/letters", spec).await.expect_status(201);
    let due = json!([{"sender": 1, "receiver": 2, "due": world.now().await}]);
    node.post("/v1/topics/letters/messages", due).await.expect_status(200);
    let claim = json!({"worker": "w", "max": 1, "lease": "60s", "wait": "20s"});
    let held = heddle_tests::eventually("the batch", async || {
        let answer = node.post("/v1/queues/post/claims", claim.clone()).await;
        let answer = answer.expect_status(200);
        answer["items"].as_array().and_then(|items| items.first().cloned())
    })
    .await;
    let (run, group) = (held["run"].as_str().unwrap(), held["group"].as_str().unwrap());
    let path = format!("/runs/{run}");
    let again = |page: &str| {
        let verbs = ["restart", "rerun", "override", "tasks/batch/retry", "tasks/batch/clear"];
        let links = verbs.map(|verb| page.contains(&format!("\"{path}/{verb}\"")));
        links.contains(&true) || page.contains(&format!("\"{path}/override?task="))
    };
    let why = "the topic has recorded what became of each";
    let page = visitor.get(&path).await.fine();
    assert!(page.contains(&format!("action=\"{path}/cancel\"")), "{page}");
    assert!(page.contains(why) && !again(&page), "{page}");
    let fail = format!("/v1/claims/{}/fail", held["id"].as_str().unwrap());
    let body = json!({"token": held["token"], "error": "no line", "fatal": true});
    node.post(&fail, body).await.expect_status(200);
    node.run_becomes(run, "failed").await;
    // The run, the forms, the overview, and the cell of the grid: nothing can be sent, and the reason is said.
    for (at, says) in [
        (path.clone(), why),
        (format!("{path}/rerun"), why),
        (format!("{path}/override"), why),
        (format!("{path}/override?task=batch"), why),
        ("/".to_owned(), why),
        (format!("/groups/{group}?run={run}&task=batch"), "log?task=batch"),
    ] {
        let page = visitor.get(&at).await.fine();
        assert!(page.contains(says), "{says:?} is not in {at}: {page}");
        assert!(page.contains(&format!("\"{path}")), "{at}: {page}");
        assert!(!page.contains(&format!("action=\"{path}/")), "{at}: {page}");
        assert!(!again(&page), "{at}: {page}");
        assert!(!page.contains(&format!("/groups/{group}/run\"")), "{at}: {page}");
    }
    // Of many at once.
    let list = visitor.get(&format!("/runs?group={group}")).await.fine();
    let actions = list.split("id=\"action\"").nth(1).unwrap();
    let actions = actions.split("</select>").next().unwrap();
    assert!(actions.contains("value=\"cancel\""), "{actions}");
    for again in ["restart", "rerun"] {
        assert!(!actions.contains(&format!("value=\"{again}\"")), "{actions}");
    }
}

#[tokio::test]
async fn the_form_of_a_run_says_what_tasks_get_and_asks_for_what_templates_name() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let tasks = json!({
        "greet": {"script": "hello", "params": {"name": "{{ params.who }}"}},
        "load": {"script": "hello", "params": {"name": "load"}},
    });
    node.put_group("greets", json!({"tasks": tasks})).await;
    let form = visitor.get("/groups/greets/run").await.fine();
    assert!(form.contains("placeholder=\"{{ params.who }} · load\""), "{form}");
    assert!(
        form.contains("For greet, load") && form.contains("name=\"p.who\""),
        "{form}"
    );
    let started = visitor.post("/groups/greets/run", &[("p.who", "Ada")]).await;
    let run = node
        .run_becomes(started.leads_to().trim_start_matches("/runs/"), "succeeded")
        .await;
    assert_eq!(run["params"], json!({"who": "Ada"}));
}

#[tokio::test]
async fn the_graph_of_a_group_says_what_its_run_says() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    task(
        &node,
        "naps",
        json!({"script": "sleep", "params": {"seconds": 600}}),
        "running",
    )
    .await;
    let graph = visitor.get("/groups/naps/graph").await.fine();
    assert!(graph.contains("<title>t: running</title>"), "{graph}");
    node.put_group(
        "chain",
        json!({"tasks": {"a": {"script": "hello"}, "b": {"script": "hello", "depends_on": ["a"]}}}),
    )
    .await;
    node.run("chain", json!({})).await;
    let graph = visitor.get("/groups/chain/graph").await.fine();
    assert!(graph.contains("class=\"edge critical\""), "{graph}");
}

#[tokio::test]
async fn an_item_that_failed_has_its_log_and_runs_again() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    let text = "export default function run(p) { console.log(`took ${p.n}`); if (p.n === 2) throw new Error('two'); }";
    node.put_bytes("/v1/scripts/picky", "text/javascript", text)
        .await
        .expect_status(201);
    let map = json!({"script": "picky", "for_each": [1, 2, 3], "params": {"n": "{{ item }}"}});
    let run = task(&node, "picky", map, "failed").await;
    node.run_becomes(&run, "failed").await;
    let page = visitor.get(&format!("/runs/{run}")).await.fine();
    let (log, clear) = (
        format!("/runs/{run}/log?task=t&amp;item=1"),
        format!("/runs/{run}/tasks/t/clear?item=1"),
    );
    assert!(page.contains(&log) && page.contains(&clear), "{page}");
    let lines = read(&visitor, &log.replace("&amp;", "&")).await;
    assert!(lines.contains("took 2") && !lines.contains("took 1"), "{lines}");
    let attempts = read(&visitor, &format!("/runs/{run}/attempts?task=t&item=1")).await;
    assert!(attempts.contains("t[1]") && !attempts.contains("t[0]"), "{attempts}");
    let cell = read(&visitor, &format!("/groups/picky?run={run}&task=t")).await;
    assert!(cell.contains("1 of 3 items failed"), "{cell}");
    visitor.post(&clear, &[("downstream", "true")]).await;
    node.run_becomes(&run, "failed").await;
    heddle_tests::eventually("the second attempt", async || {
        let again = node
            .get(&format!("/v1/runs/{run}/tasks/t?item=1"))
            .await
            .expect_status(200);
        (again["attempts"].as_array().map(Vec::len) == Some(2)).then_some(())
    })
    .await;
}

/// A browser that has not said yet in which zone it is: what no script puts right names the zone.
#[tokio::test]
async fn a_title_without_a_zone_of_the_viewer_names_it() {
    let (_world, node) = World::with_node().await;
    let visitor = Visitor::signed_in(node.base(), TOKEN).await;
    node.put_group("one", json!({"tasks": {"a": {"script": "hello"}}}))
        .await;
    let run = node.run("one", json!({"logical_time": "2013-07-01T00:00:00Z"})).await;
    let path = format!("/runs/{}", run["id"].as_str().unwrap());
    let first = visitor.get(&path).await.fine();
    assert!(
        first.contains("<title>one · Jul 1, 2013 00:00 UTC · Heddle</title>"),
        "{first}"
    );
    let crumbs = first
        .split("class=\"crumbs\"")
        .nth(1)
        .unwrap()
        .split("</nav>")
        .next()
        .unwrap();
    assert!(
        crumbs.contains("<time datetime=\"2013-07-01T00:00:00.000Z\""),
        "{crumbs}"
    );
    let known = Visitor {
        cookie: format!("{}; heddle_zone=Asia%2FShanghai", visitor.cookie),
        ..Visitor::new(node.base())
    };
    let page = known.get(&path).await.fine();
    assert!(
        page.contains("<title>one · Jul 1, 2013 08:00 · Heddle</title>"),
        "{page}"
    );
}
