//! Logs and events, as pages and as streams, on every node.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use heddle_tests::{Answer, Node, Receiver, TOKEN, World, eventually, id, run_program, time};
use serde_json::{Value, json};
use tokio_postgres::{Client, Row};

use crate::{calls, one, sleeps, with};

/// The last lines first, page by page, each page in the order of its lines; and by the command line.
async fn from_the_end(node: &Node, run: &str) {
    let whole = node.all(&format!("/v1/runs/{run}/logs")).await;
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/runs/{run}/logs?last=true&limit=2{cursor}");
        let page = node.get(&path).await.expect_status(200);
        let lines = page["items"].as_array().expect("lines").clone();
        found.splice(..0, lines);
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(found, whole);
    node.get(&format!("/v1/runs/{run}/logs?last=true&follow=true"))
        .await
        .expect_problem(422, &["/last"]);
    node.get(&format!("/v1/runs/{run}/logs?last=perhaps"))
        .await
        .expect_status(400);
    let reach = [("HEDDLE_URL", node.base()), ("HEDDLE_TOKEN", TOKEN)];
    let said = run_program(&["run", "logs", run, "--last", "2"], &reach);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!(said.lines().count(), 2, "{said}");
    let message = whole
        .last()
        .and_then(|line| line["message"].as_str())
        .expect("a message");
    assert!(said.lines().last().is_some_and(|line| line.contains(message)), "{said}");
}

/// Lines with time, level, message and fields; of an item, of an attempt, of the run.
#[tokio::test]
async fn lines() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let node = &nodes[0];
    let retry = json!({"strategy": "fixed", "retries": 1, "interval": "10ms"});
    node.put_group(
        "g",
        json!({"tasks": {
            "hello": {"script": "hello", "params": {"name": "größe 日本"}},
            "flaky": {"script": "flaky", "retry": retry},
            "map": {"script": "hello", "for_each": ["a", "b"], "params": {"name": "{{ item }}"}},
            "silent": sleeps(0.0),
        }}),
    )
    .await;
    let run = id(&node.run("g", json!({})).await);
    for node in &nodes {
        let lines = node.log_lines(&run, "hello").await;
        assert_eq!(lines.len(), 1, "{lines:#?}");
        let line = &lines[0];
        assert_eq!(
            (&line["message"], &line["level"]),
            (&json!("Hello, größe 日本!"), &json!("info"))
        );
        assert_eq!(
            (&line["task"], &line["attempt"], &line["item"]),
            (&json!("hello"), &json!(1), &Value::Null)
        );
        assert_eq!(line["fields"]["name"], "größe 日本", "{line:#}");
        time(&line["at"]);
        let flaky = node.log_lines(&run, "flaky").await;
        let levels: Vec<(&Value, &Value)> = flaky.iter().map(|line| (&line["level"], &line["attempt"])).collect();
        assert_eq!(levels, [(&json!("warn"), &json!(1)), (&json!("info"), &json!(2))]);
        let second = node.all(&format!("/v1/runs/{run}/tasks/flaky/logs?attempt=2")).await;
        assert_eq!(second.len(), 1);
        let item = node.all(&format!("/v1/runs/{run}/tasks/map/logs?item=1")).await;
        assert_eq!((item.len(), &item[0]["message"]), (1, &json!("Hello, b!")));
        assert_eq!(node.log_lines(&run, "silent").await.len(), 0);
        assert_eq!(node.all(&format!("/v1/runs/{run}/logs")).await.len(), 5);
        // Page by page.
        assert_eq!(
            node.all(&format!("/v1/runs/{run}/logs?limit=2")).await,
            node.all(&format!("/v1/runs/{run}/logs")).await
        );
        from_the_end(node, &run).await;
    }
    node.get(&format!("/v1/runs/{run}/tasks/nope/logs"))
        .await
        .expect_problem(404, &[]);
    node.get("/v1/runs/00000000-0000-7000-8000-000000000000/logs")
        .await
        .expect_problem(404, &[]);
}

/// Followed on another node than the one that works: each line while the run is under way, then the end.
#[tokio::test]
async fn follow_across_nodes() {
    let world = World::new().await;
    let worker = world.node().await;
    worker
        .put_group(
            "g",
            one(json!({
                "script": "flaky", "params": {"fail_times": 1000},
                "retry": {"strategy": "forever", "interval": "300ms"},
            })),
        )
        .await;
    let run = worker.start("g", json!({})).await;
    worker.task_becomes(&run, "t", "retrying").await;
    // The other one has no slot worth speaking of, and comes later.
    let other = world.node().await;
    for path in [format!("/v1/runs/{run}/logs"), format!("/v1/runs/{run}/tasks/t/logs")] {
        let mut stream = other.follow(&path).await;
        for attempt in 1..=3 {
            let (name, line) = stream.next().await.expect("a line");
            assert_eq!((name.as_str(), &line["attempt"]), ("log", &json!(attempt)), "{line:#}");
            assert_eq!(line["message"], format!("attempt {attempt} fails, as asked"));
        }
        let state = other.run_now(&run).await;
        assert_eq!(state["state"], "running", "the lines came while the run was under way");
    }
    let mut stream = other.follow(&format!("/v1/runs/{run}/logs")).await;
    worker
        .post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    loop {
        let (name, _) = stream.next().await.expect("an end");
        if name == "end" {
            break;
        }
        assert_eq!(name, "log");
    }
    assert!(stream.next().await.is_none());
}

/// Says `x` and a line break so many times, with a rest after each.
fn chatty(lines: u32, rest: std::time::Duration) -> String {
    format!(
        r#"(module
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\10\00\00\00\02\00\00\00") (data (i32.const 16) "x\0a")
  (func (export "_start") (local $left i32)
    (local.set $left (i32.const {lines}))
    (i32.store (i32.const 80) (i32.const 1))
    (i64.store (i32.const 88) (i64.const {rest}))
    (loop $again
      (drop (call $write (i32.const 2) (i32.const 0) (i32.const 1) (i32.const 32)))
      (if (i64.ne (i64.const {rest}) (i64.const 0))
        (then (drop (call $poll (i32.const 64) (i32.const 128) (i32.const 1) (i32.const 200)))))
      (local.set $left (i32.sub (local.get $left) (i32.const 1)))
      (br_if $again (local.get $left)))))"#,
        rest = rest.as_nanos()
    )
}

/// Attempts that write concurrently, one of them a flood: a follower gets every line once, also those that become
/// visible after later ones.
#[tokio::test]
async fn side_by_side() {
    const ITEMS: usize = 10;
    const LINES: usize = 40;
    const FLOOD: usize = 5_000;
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    for (name, lines, rest) in [("chatty", LINES, 30), ("flood", FLOOD, 0)] {
        let text = chatty(lines as u32, std::time::Duration::from_millis(rest));
        nodes[0]
            .put_bytes(&format!("/v1/scripts/{name}"), "application/wasm", text)
            .await
            .expect_status(201);
    }
    nodes[0]
        .put_group(
            "g",
            json!({"tasks": {
                "chatty": {"script": "chatty", "for_each": vec![0; ITEMS]},
                "flood": {"script": "flood"},
            }}),
        )
        .await;
    let run = nodes[0].start("g", json!({})).await;
    let mut stream = nodes[1].follow(&format!("/v1/runs/{run}/logs")).await;
    let mut heard = BTreeSet::new();
    loop {
        let (name, line) = stream.next().await.expect("an end");
        if name == "end" {
            break;
        }
        let cursor = line["cursor"].as_str().expect("a cursor").to_owned();
        assert!(heard.insert(cursor), "twice: {line:#}");
    }
    assert_eq!(heard.len(), ITEMS * LINES + FLOOD);
    let listed = nodes[0].all(&format!("/v1/runs/{run}/logs?limit=500")).await;
    assert_eq!(listed.len(), ITEMS * LINES + FLOOD);
    // From the middle: the lines after it, once.
    let middle = listed[listed.len() / 2]["cursor"].as_str().expect("a cursor");
    let mut stream = nodes[1].follow(&format!("/v1/runs/{run}/logs?cursor={middle}")).await;
    for line in &listed[listed.len() / 2 + 1..] {
        assert_eq!(&stream.next().await.expect("a line").1, line);
    }
    assert_eq!(stream.next().await.expect("an end").0, "end");
}

/// Workers report lines when they like, with times of their own. A follower gets each line, whatever the order of their times,
/// and goes on after a break with those that it was not sent, also with those whose time is before that of the last one.
#[tokio::test]
async fn lines_that_workers_report_late() {
    const LINES: i64 = 1_000;
    let (world, node) = World::with_node().await;
    let tasks = json!({"early": {"queue": "early"}, "late": {"queue": "late"}});
    node.put_group("g", json!({"tasks": tasks})).await;
    let run = node.start("g", json!({})).await;
    let claim = async |queue: &str| {
        let ask = json!({"worker": "w", "lease": "10m", "wait": "20s"});
        let path = format!("/v1/queues/{queue}/claims");
        node.post(&path, ask).await.expect_status(200)["items"][0].clone()
    };
    let (early, late) = (claim("early").await, claim("late").await);
    let call = async |claim: &Value, what: &str, body: Value| {
        let path = format!("/v1/claims/{}/{what}", claim["id"].as_str().expect("an id"));
        let body = with(body, json!({"token": claim["token"]}));
        node.post(&path, body).await.expect_status(200);
    };
    let now = world.now().await;
    let line = |number: i64, at: i64| {
        let at = now + chrono::TimeDelta::seconds(at);
        json!({"message": number.to_string(), "at": at.to_rfc3339()})
    };
    let number = |line: &Value| -> i64 { line["message"].as_str().expect("a text").parse().expect("a number") };
    let path = format!("/v1/runs/{run}/logs");
    let mut stream = node.follow(&path).await;
    let lines: Vec<Value> = (0..LINES).map(|number| line(number, -number)).collect();
    call(&late, "heartbeat", json!({"log": lines})).await;
    let (mut heard, mut ids) = (Vec::new(), Vec::new());
    for _ in 0..LINES {
        let (name, line) = stream.next().await.expect("a line");
        assert_eq!(name, "log");
        heard.push(number(&line));
        ids.push(stream.last_id().expect("an id").to_owned());
    }
    // They are sent 64 at first and then at most 500 at a time, each time in the order of their times.
    let pages = [0..64, 64..564, 564..LINES];
    let expect: Vec<i64> = pages.into_iter().flat_map(|page| page.rev()).collect();
    assert_eq!(heard, expect);
    call(&early, "heartbeat", json!({"log": [line(LINES, 100)]})).await;
    assert_eq!(number(&stream.next().await.expect("a line").1), LINES);
    let last = stream.last_id().expect("an id").to_owned();
    drop(stream);
    call(&late, "heartbeat", json!({"log": [line(LINES + 1, -5_000)]})).await;
    let mut stream = node.follow_after(&path, &last).await;
    assert_eq!(number(&stream.next().await.expect("a line").1), LINES + 1);
    for claim in [&early, &late] {
        call(claim, "complete", json!({"output": null})).await;
    }
    assert_eq!(stream.next().await.expect("an end").0, "end");
    // After a break in the middle of a page whose lines are not in the order of their times, none is missing.
    let mut stream = node.follow_after(&path, &ids[249]).await;
    let mut known = BTreeSet::from_iter(heard[..250].iter().copied());
    while let Some((name, line)) = stream.next().await
        && name == "log"
    {
        known.insert(number(&line));
    }
    assert_eq!(known, BTreeSet::from_iter(0..LINES + 2));
}

/// Scripts that write as fast as they can: all of it is there, in order, when the outcome is, and others go on. (An outcome
/// waits for five seconds of writing; this takes one or two.)
#[tokio::test]
async fn floods() {
    const FLOODS: usize = 3;
    const LINES: usize = 10_000;
    let (world, node) = World::with_node().await;
    let text = chatty(LINES as u32, std::time::Duration::ZERO);
    node.put_bytes("/v1/scripts/flood", "application/wasm", text)
        .await
        .expect_status(201);
    node.put_group("flood", one(json!({"script": "flood"}))).await;
    node.put_group("light", one(json!({"script": "hello"}))).await;
    let mut runs = Vec::new();
    for _ in 0..FLOODS {
        runs.push(node.start("flood", json!({})).await);
    }
    for _ in 0..20 {
        node.run("light", json!({})).await;
    }
    for run in &runs {
        assert_eq!(node.ended(run).await["state"], "succeeded");
        // The last ones first: nothing may come after the outcome.
        let row = world
            .sql()
            .await
            .query_one("SELECT max(line) FROM heddle.logs WHERE run = $1::text::uuid", &[&run])
            .await
            .expect("the last line");
        assert_eq!(row.get::<_, Option<i32>>(0), Some(LINES as i32 - 1));
    }
    let lines = node.all(&format!("/v1/runs/{}/logs?limit=500", runs[0])).await;
    assert_eq!(lines.len(), LINES);
    let numbers: Vec<i64> = lines
        .iter()
        .map(|line| {
            let cursor = line["cursor"].as_str().expect("a cursor");
            cursor
                .rsplit('-')
                .next()
                .and_then(|number| number.parse().ok())
                .expect("a number")
        })
        .collect();
    assert!(numbers.iter().copied().eq(0..LINES as i64));
}

/// Many short lines at once, far from the limit of a log in bytes: none is left out.
#[tokio::test]
async fn a_burst_of_short_lines() {
    const LINES: usize = 20_000;
    let (world, node) = World::with_node().await;
    let text = chatty(LINES as u32, std::time::Duration::ZERO);
    node.put_bytes("/v1/scripts/burst", "application/wasm", text)
        .await
        .expect_status(201);
    node.put_group("burst", one(json!({"script": "burst"}))).await;
    let run = node.run("burst", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let row = world
        .sql()
        .await
        .query_one(
            "SELECT count(*), count(*) FILTER (WHERE message <> 'x') FROM heddle.logs WHERE run = $1::text::uuid",
            &[&id(&run)],
        )
        .await
        .expect("counts");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (LINES as i64, 0));
}

/// How many lines an attempt may write at once, and then per second.
const BURST: f64 = 32_768.0;
const PER_SECOND: f64 = 2_000.0;

/// What is kept of a flood has no gaps, and no more lines than allowed: a burst, and a number for each second between
/// the begin of the run and its end, or its last line if that came later. A line says what is left out; that line does
/// not count, nor does the one after it.
async fn is_bounded(sql: &Client, run: &Value) {
    let rows = sql
        .query(
            "SELECT line, level, message, at FROM heddle.logs WHERE run = $1::text::uuid ORDER BY line",
            &[&id(run)],
        )
        .await
        .expect("the lines");
    let numbers = rows.iter().map(|row| row.get::<_, i32>(0));
    assert!(numbers.eq(0..rows.len() as i32), "no gaps");
    let left_out = |row: &&Row| row.get::<_, i16>(1) == 3 && row.get::<_, &str>(2).contains("are omitted here");
    let gaps = rows.iter().filter(left_out).count();
    let last = rows.iter().map(|row| row.get::<_, DateTime<Utc>>(3)).max();
    let until = last.into_iter().fold(time(&run["finished_at"]), DateTime::max);
    let lasted = (until - time(&run["started_at"])).as_seconds_f64();
    let most = BURST + PER_SECOND * lasted + 1.0;
    let counted = (rows.len() - 2 * gaps) as f64;
    assert!(
        counted <= most,
        "{counted} lines in {lasted} s, and {gaps} that tell of others"
    );
}

/// Scripts that write without end: what is kept is bounded, and neither their end, by an operator or by a timeout, nor
/// the logs of others are delayed.
#[tokio::test]
async fn a_flood_without_end() {
    let (world, node) = World::with_node().await;
    let sql = world.sql().await;
    let text = chatty(u32::MAX, std::time::Duration::ZERO);
    node.put_bytes("/v1/scripts/flood", "application/wasm", text)
        .await
        .expect_status(201);
    let flood = json!({"script": "flood", "max_log": "64MiB"});
    node.put_group("flood", one(flood.clone())).await;
    node.put_group("brief", one(with(flood, json!({"timeout": "2s"}))))
        .await;
    node.put_group("light", one(json!({"script": "hello"}))).await;
    let run = node.start("flood", json!({})).await;
    eventually("a thousand lines", async || {
        let count = "SELECT count(*) FROM heddle.logs WHERE run = $1::text::uuid";
        let lines: i64 = sql.query_one(count, &[&run]).await.expect("a count").get(0);
        (lines >= 1_000).then_some(())
    })
    .await;
    let light = id(&node.run("light", json!({})).await);
    assert_eq!(node.log_lines(&light, "t").await.len(), 1);
    node.post(&format!("/v1/runs/{run}/cancel"), json!({}))
        .await
        .expect_status(200);
    let ended = node.ended(&run).await;
    assert_eq!(ended["state"], "cancelled", "{ended:#}");
    // When nothing is in hand any more, no line is on its way.
    eventually("an idle node", async || {
        let stats = node.get("/v1/stats").await.expect_status(200);
        (stats["node"]["in_hand"] == 0).then_some(())
    })
    .await;
    is_bounded(&sql, &ended).await;
    let brief = node.run("brief", json!({})).await;
    assert_eq!(brief["tasks"][0]["error"]["kind"], "timeout", "{brief:#}");
    is_bounded(&sql, &brief).await;
}

/// What happens to a run, as server-sent events.
#[tokio::test]
async fn events() {
    let world = World::new().await;
    let nodes = [
        world.options().at_home().start().await,
        world.options().at_home().start().await,
    ];
    let gate = Receiver::start(Answer::Held).await;
    nodes[0]
        .put_group(
            "g",
            json!({"tasks": {
                "first": calls(&gate),
                "second": with(json!({"script": "hello"}), json!({"depends_on": ["first"]})),
            }}),
        )
        .await;
    let run = nodes[0].start("g", json!({})).await;
    let mut stream = nodes[1].follow(&format!("/v1/runs/{run}/events")).await;
    let mut names = Vec::new();
    while let Some((name, event)) = stream.next().await {
        if name != "end" {
            assert_eq!(event["run"], *run, "{event:#}");
            assert_eq!(event["kind"], *name);
        }
        if name == "task.running" {
            gate.answers(Answer::Json(200, "{}".into()));
        }
        names.push(name);
    }
    assert_eq!(names.last().map(String::as_str), Some("end"));
    assert_eq!(names[names.len() - 2], "run.succeeded", "{names:?}");
    let succeeded = names.iter().filter(|name| *name == "task.succeeded").count();
    assert_eq!(succeeded, 2, "{names:?}");
    assert!(names.contains(&"task.running".to_owned()), "{names:?}");
    // A client that connects later gets the current state, and since when.
    let shown = nodes[1].run_now(&run).await;
    let mut late = nodes[0].follow(&format!("/v1/runs/{run}/events")).await;
    let mut last = Value::Null;
    while let Some((name, event)) = late.next().await {
        let at = match name.as_str() {
            "task.succeeded" => &event["task"]["finished_at"],
            "run.succeeded" => &shown["finished_at"],
            _ => break,
        };
        assert!(at.is_string() && event["at"] == *at, "{event:#}");
        // An event of the run has all of it but the task runs, which have events of their own.
        if name == "run.succeeded" {
            let mut whole = shown.clone();
            whole.as_object_mut().expect("a run").remove("tasks");
            for (field, value) in whole.as_object().expect("a run") {
                assert_eq!(event[field], *value, "{field}");
            }
            assert!(event["tasks"].is_null(), "{event:#}");
        }
        last = event["cursor"].clone();
    }
    // Nothing has changed since the last event, on any node; since another, or an unknown one, something may have.
    let resumed = async |cursor: &str| {
        let mut stream = nodes[1].follow(&format!("/v1/runs/{run}/events?cursor={cursor}")).await;
        let mut names = Vec::new();
        while let Some((name, _)) = stream.next().await {
            names.push(name);
        }
        names
    };
    assert_eq!(resumed(last.as_str().unwrap()).await, ["end"]);
    for cursor in ["2-0000000000000000", "2"] {
        let names = resumed(cursor).await;
        assert_eq!(names, ["task.succeeded", "task.succeeded", "run.succeeded", "end"]);
    }
    for path in [
        "events?cursor=x",
        "logs?cursor=x",
        "logs?cursor=1-2",
        "logs?follow=true&cursor=x",
    ] {
        nodes[0]
            .get(&format!("/v1/runs/{run}/{path}"))
            .await
            .expect_problem(400, &[]);
    }
    // The error names where the cursor was.
    for path in ["events?cursor=2", "logs?follow=true"] {
        let resumed = nodes[0].request(reqwest::Method::GET, &format!("/v1/runs/{run}/{path}"));
        nodes[0]
            .send(resumed.header("Last-Event-ID", "x"))
            .await
            .expect_said(400, "the header `Last-Event-ID`");
    }
    nodes[0]
        .get("/v1/runs/00000000-0000-7000-8000-000000000000/events")
        .await
        .expect_problem(404, &[]);
}
