//! The feed of events: everything at least once, nothing skipped, in order for each user, resumed wherever one left.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use futures::future::join_all;
use heddle_tests::{Api, World, eventually};
use reqwest::Method;
use serde_json::{Value, json};

use crate::one;

/// The lines of one read of the feed.
pub(crate) async fn lines(api: &Api, query: &str) -> Vec<Value> {
    let reply = api.get(&format!("/v1/events?{query}")).await;
    assert_eq!(reply.status, 200, "{:#}", reply.body);
    match reply.body {
        Value::Null => Vec::new(),
        // A single line is JSON as a whole.
        Value::Object(_) => vec![reply.body],
        body => body
            .as_str()
            .expect("lines")
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect(),
    }
}

fn cursor(line: &Value) -> String {
    line["cursor"].as_str().expect("a cursor").to_owned()
}

/// Reads on in small pages from where it left; the lines, in order.
async fn read_on(api: &Api, kinds: &str, after: &mut Option<String>, all: &mut Vec<Value>) {
    loop {
        let from = after
            .as_ref()
            .map(|after| format!("&after={after}"))
            .unwrap_or_default();
        let page = lines(api, &format!("kinds={kinds}&limit=7{from}")).await;
        let full = page.len() == 7;
        assert!(page.len() <= 7);
        if let Some(last) = page.last() {
            *after = Some(cursor(last));
        }
        all.extend(page);
        if !full {
            return;
        }
    }
}

/// Many users on two nodes, one reader in small pages on either: each dispatch and each completion is once in the
/// tables and once in the feed, and a user's in order.
#[tokio::test]
async fn everything_once_and_in_order() {
    const USERS: usize = 12;
    const OFFERS: usize = 6;
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let users: Vec<String> = (0..USERS).map(|user| format!("u{user}")).collect();
    nodes[0]
        .put("/v1/audiences/gid_team/members", json!({"members": users}))
        .await
        .expect_status(201);
    for offer in 0..OFFERS {
        let spec = json!({"audience": "gid_team", "dispatch_times": "each", "params": {"n": offer}});
        nodes[0]
            .put(&format!("/v1/offers/o{offer}"), spec)
            .await
            .expect_status(201);
    }
    let reader = async {
        let (mut after, mut read, mut reads) = (None, Vec::new(), 0);
        // Not until the work is done: a transaction of some other test may hold the feed up, it is one cluster.
        eventually("whole feed", async || {
            reads += 1;
            read_on(&nodes[reads % 2], "assignment.*", &mut after, &mut read).await;
            (read.len() >= 2 * USERS * OFFERS).then_some(())
        })
        .await;
        read
    };
    let working = join_all(users.iter().enumerate().map(|(index, uid)| {
        let apis = [nodes[index % 2].api().clone(), nodes[(index + 1) % 2].api().clone()];
        async move {
            let mut mine: Vec<String> = Vec::new();
            while mine.len() < OFFERS {
                // Twice at once, on both nodes: one assignment.
                let path = format!("/v1/dispatch/{uid}/next");
                let both = join_all(apis.iter().map(|api| api.post(&path, json!({"wait": "20s"})))).await;
                let ids: BTreeSet<String> = both
                    .iter()
                    .filter(|reply| reply.status == 200)
                    .filter_map(|reply| Some(reply.body["assignment_id"].as_str()?.to_owned()))
                    .collect();
                assert!(ids.len() <= 1, "{both:#?}");
                let Some(id) = ids.into_iter().next() else { continue };
                let body = json!({"assignment_id": id, "status": "completed", "result": mine.len()});
                let path = format!("/v1/dispatch/{uid}/complete");
                // And completed twice at once: logged once.
                let both = join_all(apis.iter().map(|api| api.post(&path, body.clone()))).await;
                assert!(both.iter().all(|reply| reply.status == 200), "{both:#?}");
                mine.push(id);
            }
            (uid.clone(), mine)
        }
    }));
    let (done, read) = futures::join!(working, reader);
    let mut seen: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for line in &read {
        let text = |key: &str| line[key].as_str().unwrap_or_else(|| panic!("no {key} in {line}"));
        seen.entry(text("uid"))
            .or_default()
            .push((text("kind"), text("assignment_id")));
    }
    for (uid, mine) in &done {
        let wanted: Vec<(&str, &str)> = mine
            .iter()
            .flat_map(|id| {
                [
                    ("assignment.dispatched", id.as_str()),
                    ("assignment.completed", id.as_str()),
                ]
            })
            .collect();
        assert_eq!(seen[uid.as_str()], wanted, "{uid}");
    }
    let listed = nodes[1].all("/v1/assignments?state=completed&limit=50").await;
    let listed: BTreeSet<&str> = listed.iter().filter_map(|one| one["assignment_id"].as_str()).collect();
    let ids: BTreeSet<&str> = done
        .iter()
        .flat_map(|(_, mine)| mine.iter().map(String::as_str))
        .collect();
    assert_eq!((ids.len(), &listed), (USERS * OFFERS, &ids));
    // In the table as well, where CDC reads it.
    let rows: i64 = world
        .sql()
        .await
        .query_one("SELECT count(*) FROM heddle.events WHERE kind LIKE 'assignment.%'", &[])
        .await
        .expect("a count")
        .get(0);
    assert_eq!(rows as usize, 2 * USERS * OFFERS);
}

/// What commits late is not skipped: a reader waits below it, and gets it before what came after.
#[tokio::test]
async fn late_commits_are_read() {
    let (world, node) = World::with_node().await;
    node.put("/v1/offers/o", json!({"audience": "uid_a", "dispatch_times": 1}))
        .await
        .expect_status(201);
    let mut sql = world.sql().await;
    let late = sql.transaction().await.expect("a transaction");
    late.execute(
        "INSERT INTO heddle.events (kind, at, data)
         VALUES ('assignment.failed', now(), '{\"uid\": \"late\", \"assignment_id\": \"late\"}')",
        &[],
    )
    .await
    .expect("an event");
    let given = node.post("/v1/dispatch/a/next", json!({})).await.expect_status(200);
    let (mut after, mut read) = (None, Vec::new());
    read_on(&node, "assignment.*", &mut after, &mut read).await;
    assert_eq!(
        read,
        Vec::<Value>::new(),
        "below an open transaction there is nothing yet"
    );
    late.commit().await.expect("committed");
    eventually("both events", async || {
        read_on(&node, "assignment.*", &mut after, &mut read).await;
        (read.len() >= 2).then_some(())
    })
    .await;
    assert_eq!((read.len(), &read[0]["uid"]), (2, &json!("late")), "{read:#?}");
    assert_eq!(read[1]["assignment_id"], given["assignment_id"]);
}

/// A transaction that began to write early, and then tells of what follows from another's commit, tells it later: so a
/// batch of takes that meets a user's completion.
#[tokio::test]
async fn what_follows_comes_later() {
    let (world, node) = World::with_node().await;
    let mut early = world.sql().await;
    let other = world.sql().await;
    let event = |what: &str| {
        format!("INSERT INTO heddle.events (kind, at, data) VALUES ('assignment.{what}', now(), '{{\"uid\": \"a\"}}')")
    };
    let early = early.transaction().await.expect("a transaction");
    early
        .execute("SELECT pg_current_xact_id()", &[])
        .await
        .expect("a number");
    other.execute(&event("completed"), &[]).await.expect("an event");
    early.execute(&event("dispatched"), &[]).await.expect("an event");
    early.commit().await.expect("committed");
    let (mut after, mut read) = (None, Vec::new());
    eventually("both events", async || {
        read_on(&node, "assignment.*", &mut after, &mut read).await;
        (read.len() >= 2).then_some(())
    })
    .await;
    let kinds: Vec<&str> = read.iter().filter_map(|line| line["kind"].as_str()).collect();
    assert_eq!(kinds, ["assignment.completed", "assignment.dispatched"]);
}

/// Filters, bounds, following; a reader that follows is let go when the node stops.
#[tokio::test]
async fn kinds_limits_and_following() {
    let (_world, mut node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {"t": {"script": "hello", "params": {"name": "x"}}}}),
    )
    .await;
    for _ in 0..3 {
        assert_eq!(node.run("g", json!({})).await["state"], "succeeded");
    }
    let ends = eventually("three ends", async || {
        let ends = lines(&node, "kinds=run.succeeded").await;
        (ends.len() == 3).then_some(ends)
    })
    .await;
    for line in &ends {
        assert_eq!(
            (&line["kind"], &line["group"]),
            (&json!("run.succeeded"), &json!("g")),
            "{line:#}"
        );
        assert!(
            line["run"].is_string() && line["at"].as_str().is_some_and(|at| at.ends_with('Z')),
            "{line:#}"
        );
    }
    assert_eq!(lines(&node, "kinds=run.*").await.len(), 6);
    assert_eq!(lines(&node, "kinds=run.started,run.succeeded&limit=4").await.len(), 4);
    let rest = lines(&node, &format!("kinds=run.succeeded&after={}", cursor(&ends[0]))).await;
    assert_eq!(rest, ends[1..]);
    assert!(
        lines(&node, &format!("after={}&kinds=run.succeeded", cursor(&ends[2])))
            .await
            .is_empty()
    );
    for (query, pointer) in [
        ("after=yesterday", "/after"),
        ("limit=0", "/limit"),
        ("limit=-1", "/limit"),
        ("kinds=run.exploded", "/kinds"),
        ("follow=perhaps", "/follow"),
    ] {
        let reply = node.get(&format!("/v1/events?{query}")).await;
        assert!(matches!(reply.status, 400 | 422), "{query}: {:#}", reply.body);
        assert!(
            reply.body.to_string().contains(pointer.trim_start_matches('/')),
            "{:#}",
            reply.body
        );
    }
    let request = node.request(
        Method::GET,
        &format!("/v1/events?follow=true&kinds=run.*&after={}", cursor(&ends[2])),
    );
    let mut following = request.send().await.expect("an answer").bytes_stream();
    node.run("g", json!({})).await;
    let mut text = String::new();
    while text.lines().filter(|line| line.contains("run.")).count() < 2 || !text.ends_with('\n') {
        let piece = following.next().await.expect("more of the feed").expect("a piece");
        text.push_str(&String::from_utf8_lossy(&piece));
    }
    let kinds: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["kind"].clone())
        .collect();
    assert_eq!(kinds, ["run.started", "run.succeeded"], "{text}");
    node.terminate();
    assert!(following.next().await.is_none(), "the feed ends with its node");
    assert!(node.end().await.success());
}

/// A node that stops ends what it streams of a run, and does not cut it off; the run has not ended, and nobody says so.
#[tokio::test]
async fn streams_of_a_run_end_with_their_node() {
    let (_world, mut node) = World::with_node().await;
    node.put_group("g", one(json!({"queue": "nobody"}))).await;
    let run = node.start("g", json!({})).await;
    let mut events = node.follow(&format!("/v1/runs/{run}/events")).await;
    assert!(events.next().await.is_some(), "how the run stands");
    let logs = node.follow(&format!("/v1/runs/{run}/tasks/t/logs?follow=true")).await;
    node.terminate();
    for mut stream in [events, logs] {
        // One that was cut off is an error, not an end.
        while let Some((name, data)) = stream.next().await {
            assert_ne!(name, "end", "{data:#}");
        }
    }
    let status = node.end().await;
    assert_eq!(status.code(), Some(0), "{}", node.log());
}

/// Events of a dump that was restored into a new cluster have greater transaction numbers than that has given out, so readers do
/// not see them. What is called after a restore gives them numbers with which they are seen, in their order, before all that is
/// new.
#[tokio::test]
async fn events_are_there_after_a_restore() {
    let (world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "hello"}))).await;
    for _ in 0..3 {
        node.run("g", json!({})).await;
    }
    let runs = async || {
        let found = lines(&node, "kinds=run.*").await;
        let both = |line: &Value| (line["kind"].clone(), line["run"].clone());
        found.iter().map(both).collect::<Vec<_>>()
    };
    let kept = runs().await;
    assert_eq!(kept.len(), 6, "{kept:#?}");
    let sql = world.sql().await;
    sql.batch_execute("UPDATE heddle.events SET xid = (xid::text::bigint + 1000000000)::text::xid8")
        .await
        .unwrap();
    assert!(runs().await.is_empty());
    sql.batch_execute("SELECT heddle.keys_first()").await.unwrap();
    assert_eq!(runs().await, kept);
    node.run("g", json!({})).await;
    let all = runs().await;
    assert_eq!((all.len(), &all[..6]), (8, &kept[..]), "{all:#?}");
    // In a database that works, it changes nothing.
    sql.batch_execute("SELECT heddle.keys_first()").await.unwrap();
    assert_eq!(runs().await, all);
}
