//! A user's hold outlives clients that vanish, nodes that are killed between taking and answering, and nodes that drain
//! with a thousand waiting polls. And the stock stays right.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use heddle_tests::{Api, Node, World, allow_open_files, eventually};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

fn users(count: usize) -> Vec<String> {
    (0..count).map(|user| format!("u{user}")).collect()
}

async fn team(api: &Api, count: usize) {
    let reply = api
        .put("/v1/audiences/gid_team/members", json!({"members": users(count)}))
        .await;
    assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
}

async fn offer(api: &Api, id: &str, spec: Value) {
    let reply = api.put(&format!("/v1/offers/{id}"), spec).await;
    assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
}

async fn given(api: &Api, uid: &str) -> Option<Value> {
    let reply = api.post(&format!("/v1/dispatch/{uid}/next"), json!({})).await;
    assert!(matches!(reply.status, 200 | 204), "{:#}", reply.body);
    (reply.status == 200).then_some(reply.body)
}

async fn complete(api: &Api, assignment: &Value) {
    let uid = assignment["uid"].as_str().expect("a user");
    let body = json!({"assignment_id": assignment["assignment_id"], "status": "completed"});
    api.post(&format!("/v1/dispatch/{uid}/complete"), body)
        .await
        .expect_status(200);
}

/// The one occurrence of an offer: how much of its stock is gone, and how much was completed.
async fn counts(api: &Api, offer: &str) -> (i64, i64) {
    let listed = api
        .get(&format!("/v1/offers/occurrences?offer={offer}"))
        .await
        .expect_status(200);
    let one = &listed["items"][0];
    let count = |key: &str| one[key].as_i64().unwrap_or_else(|| panic!("no {key} in {listed:#}"));
    (count("taken"), count("completed"))
}

/// A poll that is sent and never listened to: the connection, to be dropped.
async fn unheard_poll(node: &Node, uid: &str) -> TcpStream {
    let mut stream = TcpStream::connect(node.authority()).await.expect("a connection");
    let head = format!(
        "POST /v1/dispatch/{uid}/next HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Length: 0\r\n\r\n",
        node.authority(),
        heddle_tests::TOKEN
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream
}

/// The answer is lost, be it with the client or with the node: the assignment is found again, elsewhere too.
#[tokio::test]
async fn answers_get_lost() {
    let world = World::new().await;
    let mut nodes = world.nodes(2).await;
    team(&nodes[0], 2).await;
    offer(&nodes[0], "o", json!({"audience": "gid_team", "dispatch_times": 2})).await;
    let held = async |uid: &str| {
        let path = format!("/v1/assignments?uid={uid}&state=assigned");
        eventually("assignment that nobody was told of", async || {
            let listed = nodes[1].get(&path).await.expect_status(200);
            listed["items"].get(0).map(|one| one["assignment_id"].clone())
        })
        .await
    };
    // The client vanishes.
    let poll = unheard_poll(&nodes[0], "u0").await;
    let first = held("u0").await;
    drop(poll);
    // The node is killed before the client has heard.
    let poll = unheard_poll(&nodes[0], "u1").await;
    let second = held("u1").await;
    nodes[0].kill();
    drop(poll);
    for (uid, id) in [("u0", first), ("u1", second)] {
        let again = given(&nodes[1], uid).await.expect("what is held");
        assert_eq!(
            (&again["assignment_id"], &again["redo"]),
            (&id, &json!(true)),
            "{again:#}"
        );
        complete(&nodes[1], &again).await;
    }
    assert_eq!(counts(&nodes[1], "o").await, (2, 2));
}

/// A node is killed in the middle of a take: nothing was given, no stock is gone.
#[tokio::test]
async fn killed_within_a_take() {
    let world = World::new().await;
    let mut nodes = world.nodes(2).await;
    team(&nodes[0], 6).await;
    offer(&nodes[0], "o", json!({"audience": "gid_team", "dispatch_times": 5})).await;
    complete(&nodes[0], &given(&nodes[0], "u0").await.expect("an assignment")).await;
    // Users who want an assignment of it wait for this row, in the middle of the transaction.
    let mut sql = world.sql().await;
    let lock = sql.transaction().await.expect("a transaction");
    lock.execute("SELECT FROM heddle.occurrences FOR UPDATE", &[])
        .await
        .expect("the row");
    let poll = unheard_poll(&nodes[0], "u1").await;
    let watch = world.sql().await;
    eventually("take that waits", async || {
        let waiting: i64 = watch
            .query_one(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
                &[],
            )
            .await
            .expect("a count")
            .get(0);
        (waiting > 0).then_some(())
    })
    .await;
    nodes[0].kill();
    drop(poll);
    lock.rollback().await.expect("the row is free");
    // The other node's take comes after what the dead node's connection still held has been rolled back.
    let mut found = Vec::new();
    for uid in &users(6)[1..] {
        let assignment = eventually("assignment", async || {
            let assignment = given(&nodes[1], uid).await;
            if assignment.is_none() && found.len() == 4 {
                return Some(None);
            }
            assignment.map(Some)
        })
        .await;
        found.extend(assignment);
    }
    assert_eq!(found.len(), 4, "{found:#?}");
    assert!(found.iter().all(|one| one["redo"] == false), "{found:#?}");
    assert_eq!(counts(&nodes[1], "o").await, (5, 1));
    for assignment in &found {
        complete(&nodes[1], assignment).await;
    }
    assert_eq!(counts(&nodes[1], "o").await, (5, 5));
}

/// Nodes are killed while many poll: exactly the stock is held, by distinct users, and is found again.
#[tokio::test]
async fn stock_under_kills() {
    const USERS: usize = 60;
    const STOCK: usize = 25;
    let world = World::new().await;
    let mut nodes = world.nodes(3).await;
    team(&nodes[0], USERS).await;
    offer(&nodes[0], "o", json!({"audience": "gid_team", "dispatch_times": STOCK})).await;
    eventually("offer on all nodes", async || {
        for node in &nodes {
            node.get("/v1/offers/o").await.expect_status(200);
        }
        Some(())
    })
    .await;
    let polls: Vec<_> = users(USERS)
        .into_iter()
        .enumerate()
        .map(|(index, uid)| {
            let api = nodes[index % 3].api().clone();
            tokio::spawn(async move {
                // Until the node is gone, or there has been something.
                let path = format!("/v1/dispatch/{uid}/next");
                while let Some(reply) = api.try_post(&path, json!({"wait": "1s"})).await {
                    if reply.status != 204 {
                        return;
                    }
                    if index % 3 == 0 {
                        return;
                    }
                }
            })
        })
        .collect();
    let sql = world.sql().await;
    let holds = async || -> usize {
        let count: i64 = sql
            .query_one("SELECT count(*) FROM heddle.holds", &[])
            .await
            .expect("a count")
            .get(0);
        count as usize
    };
    eventually("first assignment", async || (holds().await > 0).then_some(())).await;
    nodes[1].kill();
    nodes[2].kill();
    join_all(polls).await;
    let survivor = &nodes[0];
    // What the dead had begun is over at some point; from then on it is a matter of polling.
    let mut held = BTreeSet::new();
    let mut assignments = Vec::new();
    eventually("whole stock in hand", async || {
        for uid in users(USERS) {
            if held.contains(&uid) {
                continue;
            }
            if let Some(assignment) = given(survivor, &uid).await {
                assert_eq!(assignment["uid"], uid);
                assignments.push(assignment);
                held.insert(uid);
            }
        }
        (held.len() >= STOCK).then_some(())
    })
    .await;
    assert_eq!((held.len(), holds().await), (STOCK, STOCK));
    assert_eq!(counts(survivor, "o").await, (STOCK as i64, 0));
    for assignment in &assignments {
        complete(survivor, assignment).await;
    }
    for uid in users(USERS) {
        assert!(given(survivor, &uid).await.is_none());
    }
    assert_eq!(counts(survivor, "o").await, (STOCK as i64, STOCK as i64));
}

/// A thousand polls hang on a node that is told to stop: each is answered, and the node ends.
#[tokio::test]
async fn a_thousand_polls_at_a_draining_node() {
    const EACH: usize = 500;
    allow_open_files();
    let (_world, mut node) = World::with_node().await;
    team(&node, EACH).await;
    offer(
        &node,
        "later",
        json!({"audience": "gid_team", "starts_at": "2100-01-01T00:00:00Z"}),
    )
    .await;
    let paths = users(EACH).into_iter().flat_map(|uid| {
        [
            (format!("/v1/dispatch/{uid}/next"), json!({"wait": "60s"}), 204),
            (
                "/v1/queues/q/claims".to_owned(),
                json!({"worker": uid, "wait": "60s"}),
                200,
            ),
        ]
    });
    let stopping = Arc::new(AtomicBool::new(false));
    let polls: Vec<_> = paths
        .map(|(path, body, status)| {
            let (api, stopping) = (node.api().clone(), Arc::clone(&stopping));
            tokio::spawn(async move {
                loop {
                    let reply = api.try_post(&path, body.clone()).await.map(|reply| reply.status);
                    // On a busy machine the first come again, at the end of their wait or because they were turned away
                    // in the crowd, before the last are there.
                    if stopping.load(Ordering::Acquire) || reply.is_some_and(|reply| reply != status) {
                        return (path, status, reply);
                    }
                }
            })
        })
        .collect();
    eventually("thousand hanging polls", async || {
        let stats = node.get("/v1/stats").await.expect_status(200);
        (stats["node"]["waiting"].as_u64()? >= 2 * EACH as u64).then_some(())
    })
    .await;
    stopping.store(true, Ordering::Release);
    node.terminate();
    for poll in polls {
        let (path, wanted, status) = poll.await.expect("a poll");
        assert_eq!(status, Some(wanted), "{path}");
    }
    assert!(node.end().await.success());
}

/// A user who was away for ten horizons begins at the horizon, not where they left.
#[tokio::test]
async fn idle_for_ten_horizons() {
    let horizon = chrono::TimeDelta::seconds(1);
    let world = World::new().await;
    let node = world.options().env("HEDDLE_DISPATCH_HORIZON", "1s").start().await;
    offer(
        &node,
        "o",
        json!({"audience": "uid_a", "anchor": "2020-01-01T00:00:00Z", "every": "1s", "dispatch_times": "each"}),
    )
    .await;
    let next = async || {
        eventually("assignment", async || {
            let before = super::dispatch::wall_clock();
            given(&node, "a").await.map(|assignment| (before, assignment))
        })
        .await
    };
    let (_, first) = next().await;
    complete(&node, &first).await;
    let idle_until = heddle_tests::time(&first["occurrence"]) + horizon * 11;
    eventually("end of ten horizons", async || {
        (super::dispatch::wall_clock() > idle_until).then_some(())
    })
    .await;
    let (before, second) = next().await;
    let occurrence = heddle_tests::time(&second["occurrence"]);
    assert!(occurrence >= before - horizon, "{occurrence} was {before}'s past");
    assert!(occurrence <= super::dispatch::wall_clock(), "{occurrence} is not due");
    complete(&node, &second).await;
    // It goes on from there, in order, nothing twice.
    let (_, third) = next().await;
    assert!(heddle_tests::time(&third["occurrence"]) > occurrence);
    complete(&node, &third).await;
}
