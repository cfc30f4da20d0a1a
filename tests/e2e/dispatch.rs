//! Offers: who is given what, exactly once, however many poll at once on any nodes.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use heddle_tests::{Api, Reply, World, eventually, time};
use serde_json::{Value, json};

pub(crate) fn users(count: usize) -> Vec<String> {
    (0..count).map(|user| format!("u{user}")).collect()
}

pub(crate) async fn members(api: &Api, group: &str, members: &[String]) {
    let reply = api
        .put(&format!("/v1/audiences/{group}/members"), json!({"members": members}))
        .await;
    assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
}

pub(crate) async fn offer(api: &Api, id: &str, spec: Value) -> Value {
    let reply = api.put(&format!("/v1/offers/{id}"), spec).await;
    assert!(matches!(reply.status, 200 | 201), "{:#}", reply.body);
    reply.body
}

pub(crate) async fn poll(api: &Api, uid: &str) -> Reply {
    let reply = api.post(&format!("/v1/dispatch/{uid}/next"), json!({})).await;
    assert!(matches!(reply.status, 200 | 204), "{:#}", reply.body);
    reply
}

pub(crate) async fn given(api: &Api, uid: &str) -> Option<Value> {
    let reply = poll(api, uid).await;
    (reply.status == 200).then_some(reply.body)
}

pub(crate) async fn finish(api: &Api, assignment: &Value, status: &str, result: Value) -> Reply {
    let uid = assignment["uid"].as_str().expect("a user");
    let body = json!({"assignment_id": assignment["assignment_id"], "status": status, "result": result});
    api.post(&format!("/v1/dispatch/{uid}/complete"), body).await
}

pub(crate) async fn complete(api: &Api, assignment: &Value) -> Value {
    finish(api, assignment, "completed", json!(1)).await.expect_status(200)
}

/// Six dispatch times among twenty pollers on two nodes are six distinct users.
#[tokio::test]
async fn six_among_twenty() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    members(&nodes[0], "gid_team", &users(20)).await;
    offer(
        &nodes[0],
        "six",
        json!({"audience": "gid_team", "dispatch_times": 6, "params": {"n": 1}}),
    )
    .await;
    // The other node hears of it.
    eventually("offer on the other node", async || given(&nodes[1], "u0").await).await;
    let polls = users(20).into_iter().enumerate().map(|(index, uid)| {
        let api = nodes[index % 2].api().clone();
        async move { given(&api, &uid).await }
    });
    let found: Vec<Value> = join_all(polls).await.into_iter().flatten().collect();
    let distinct: BTreeSet<&str> = found.iter().filter_map(|one| one["uid"].as_str()).collect();
    let ids: BTreeSet<&str> = found.iter().filter_map(|one| one["assignment_id"].as_str()).collect();
    assert_eq!((found.len(), distinct.len(), ids.len()), (6, 6, 6), "{found:#?}");
    for assignment in &found {
        assert_eq!(assignment["params"], json!({"n": 1}));
        complete(&nodes[0], assignment).await;
    }
    for uid in users(20) {
        assert_eq!(poll(&nodes[1], &uid).await.status, 204);
    }
    let listed = nodes[0]
        .get("/v1/offers/occurrences?audience=gid_team")
        .await
        .expect_status(200);
    let one = &listed["items"][0];
    assert_eq!(
        (&one["taken"], &one["completed"], &one["left"]),
        (&json!(6), &json!(6), &json!(0)),
        "{listed:#}"
    );
}

/// Twenty polls of one user at once, on two nodes, are one assignment; the rest are redone.
#[tokio::test]
async fn one_in_flight() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    for id in ["a", "b", "c"] {
        offer(&nodes[0], id, json!({"audience": "uid_x", "dispatch_times": 9})).await;
    }
    let polls = (0..20).map(|index| {
        let api = nodes[index % 2].api().clone();
        async move { given(&api, "x").await }
    });
    let found: Vec<Value> = join_all(polls).await.into_iter().flatten().collect();
    let ids: BTreeSet<&str> = found.iter().filter_map(|one| one["assignment_id"].as_str()).collect();
    assert_eq!(ids.len(), 1, "{found:#?}");
    assert_eq!(found.iter().filter(|one| one["redo"] == false).count(), 1, "{found:#?}");
    // Another node gives the same assignment again.
    let again = given(&nodes[1], "x").await.expect("what is held");
    assert_eq!(
        (&again["redo"], again["assignment_id"].as_str()),
        (&json!(true), ids.first().copied())
    );
    // With all that it was given with.
    let first = found.iter().find(|one| one["redo"] == false).expect("the first answer");
    for field in ["assigned_at", "occurrence", "offer", "params", "audience", "state"] {
        assert_eq!(again[field], first[field], "{field}");
    }
    // Of offers due one after the other, the earliest goes first.
    let mut order = Vec::new();
    while let Some(assignment) = given(&nodes[0], "x").await {
        order.push(assignment["offer"].as_str().expect("an offer").to_owned());
        complete(&nodes[1], &assignment).await;
    }
    assert_eq!(order, ["a", "b", "c"]);
}

/// `repeat` gives the same occurrence again until the stock is used up; three pollers share it.
#[tokio::test]
async fn repeat_until_used_up() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    offer(
        &nodes[0],
        "alone",
        json!({"audience": "uid_a", "mode": "repeat", "dispatch_times": 3}),
    )
    .await;
    offer(&nodes[0], "later", json!({"audience": "uid_a"})).await;
    let mut order = Vec::new();
    while let Some(assignment) = given(&nodes[0], "a").await {
        order.push(assignment["offer"].as_str().expect("an offer").to_owned());
        complete(&nodes[0], &assignment).await;
    }
    assert_eq!(order, ["alone", "alone", "alone", "later"]);
    members(&nodes[0], "gid_three", &users(3)).await;
    offer(
        &nodes[0],
        "shared",
        json!({"audience": "gid_three", "mode": "repeat", "dispatch_times": 30}),
    )
    .await;
    eventually("offer on the other node", async || given(&nodes[1], "u0").await).await;
    let pollers = users(3).into_iter().enumerate().map(|(index, uid)| {
        let api = nodes[index % 2].api().clone();
        async move {
            let mut count = 0;
            while let Some(assignment) = given(&api, &uid).await {
                complete(&api, &assignment).await;
                count += 1;
            }
            count
        }
    });
    let counts: Vec<usize> = join_all(pollers).await;
    assert_eq!(counts.iter().sum::<usize>(), 30, "{counts:?}");
}

/// A peek says what a poll would give and why, and gives nothing: not to the user, and not of the stock.
#[tokio::test]
async fn peeks() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    let node = &nodes[0];
    members(node, "gid_team", &users(2)).await;
    let now = wall_clock();
    let at = |minutes: i64| (now + chrono::TimeDelta::minutes(minutes)).to_rfc3339();
    let once = |minutes: i64| json!({"audience": "gid_team", "starts_at": at(minutes), "params": {"m": minutes}});
    let peek = async |api: &Api, uid: &str| {
        let path = format!("/v1/dispatch/{uid}/peek");
        api.get(&path).await.expect_status(200)
    };
    let whys = |peek: &Value| -> BTreeMap<String, String> {
        let word = |value: &Value| value.as_str().expect("a word").to_owned();
        let offers = peek["offers"].as_array().expect("offers");
        offers
            .iter()
            .map(|one| (word(&one["offer"]), word(&one["why"])))
            .collect()
    };
    let expect = |peek: &Value, wanted: &[(&str, &str)]| {
        let wanted: BTreeMap<String, String> = wanted
            .iter()
            .map(|(offer, why)| ((*offer).into(), (*why).into()))
            .collect();
        assert_eq!(whys(peek), wanted, "{peek:#}");
    };
    // Nothing at all; then nothing yet.
    let empty = peek(node, "u0").await;
    assert_eq!(
        (&empty["gives"], &empty["next_at"]),
        (&Value::Null, &Value::Null),
        "{empty:#}"
    );
    assert_eq!(empty["audiences"], json!(["uid_u0", "gid_team"]));
    offer(node, "later", once(60)).await;
    offer(node, "old", once(-13 * 60)).await;
    let soon = peek(node, "uid_u0").await;
    assert_eq!((&soon["uid"], &soon["gives"]), (&json!("u0"), &Value::Null));
    assert!((time(&soon["next_at"]) - now).num_minutes() >= 59, "{soon:#}");
    expect(&soon, &[("later", "not_due"), ("old", "passed")]);
    // The earlier one; again and again, on either node, and the poll then gives just that.
    offer(node, "second", once(-10)).await;
    offer(node, "first", once(-20)).await;
    for api in [node, &nodes[1], node] {
        let found = eventually("both offers", async || {
            let found = peek(api, "u0").await;
            let heard = found["gives"]["offer"] == "first" && whys(&found)["second"] == "behind";
            heard.then_some(found)
        })
        .await;
        assert_eq!(
            (&found["gives"]["redo"], &found["gives"]["assignment_id"]),
            (&json!(false), &Value::Null)
        );
        assert_eq!(found["gives"]["params"], json!({"m": -20}));
        expect(
            &found,
            &[
                ("first", "given"),
                ("second", "behind"),
                ("later", "not_due"),
                ("old", "passed"),
            ],
        );
    }
    let held = given(node, "u0").await.expect("the first");
    assert_eq!(held["offer"], "first");
    // What is held is given again; its stock is gone, for others too.
    let again = peek(node, "u0").await;
    assert_eq!(
        (&again["gives"]["redo"], &again["gives"]["assignment_id"]),
        (&json!(true), &held["assignment_id"])
    );
    expect(
        &again,
        &[
            ("first", "given"),
            ("second", "behind"),
            ("later", "not_due"),
            ("old", "passed"),
        ],
    );
    let other = peek(&nodes[1], "u1").await;
    assert_eq!(other["gives"]["offer"], "second", "{other:#}");
    expect(
        &other,
        &[
            ("second", "given"),
            ("first", "used_up"),
            ("later", "not_due"),
            ("old", "passed"),
        ],
    );
    complete(node, &held).await;
    let mut off = once(-5);
    off["enabled"] = json!(false);
    offer(node, "off", off).await;
    let after = peek(node, "u0").await;
    assert_eq!(after["gives"]["offer"], "second");
    let (first, off) = (&whys(&after)["first"], &whys(&after)["off"]);
    assert_eq!((first.as_str(), off.as_str()), ("had", "disabled"), "{after:#}");
    let left = node.get("/v1/offers/occurrences?offer=second").await.expect_status(200);
    assert!(
        left["items"]
            .as_array()
            .is_some_and(|items| items.iter().all(|one| one["taken"] == 0)),
        "{left:#}"
    );
    let assignments = node.all("/v1/assignments?uid=u0").await;
    assert_eq!(assignments.len(), 1, "{assignments:#?}");
    node.get("/v1/dispatch/uid_/peek").await.expect_problem(422, &[""]);
}

/// However many peek, only a few of them compete with polls: the others wait for a moment, and are told to come back.
#[tokio::test]
async fn many_peeks() {
    const PEEKS: usize = 20;
    const AT_ONCE: usize = 2;
    let world = World::new().await;
    let node = &world.node().await;
    members(node, "gid_team", &users(PEEKS + 1)).await;
    offer(node, "hot", json!({"audience": "gid_team", "dispatch_times": PEEKS})).await;
    let last = format!("u{PEEKS}");
    given(node, &last).await.expect("the first of it");
    let mut sql = world.sql().await;
    let holds = sql.transaction().await.expect("a transaction");
    holds
        .execute("SELECT FROM heddle.occurrences FOR UPDATE", &[])
        .await
        .expect("the occurrence");
    let paths: Vec<String> = users(PEEKS)
        .iter()
        .map(|uid| format!("/v1/dispatch/{uid}/peek"))
        .collect();
    let mut peeks: FuturesUnordered<_> = paths.iter().map(|path| node.get(path)).collect();
    for _ in AT_ONCE..PEEKS {
        let turned = peeks.next().await.expect("an answer");
        assert!(turned.headers.contains_key("retry-after"), "{:#}", turned.body);
        turned.expect_problem(429, &[]);
    }
    let waiting = "SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let waiting: i64 = holds.query_one(waiting, &[]).await.expect("a count").get(0);
    assert_eq!(waiting, AT_ONCE as i64);
    holds.rollback().await.expect("the end of it");
    while let Some(peek) = peeks.next().await {
        let peek = peek.expect_status(200);
        assert_eq!(peek["gives"]["offer"], "hot", "{peek:#}");
    }
}

/// Two intervals due at the same instant are both served; a user idle for long begins at the horizon.
#[tokio::test]
async fn intervals() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_DISPATCH_HORIZON", "10m").start().await;
    // Whole intervals and a half before now: so none is due between two polls.
    let anchor = wall_clock() - chrono::TimeDelta::days(30) - chrono::TimeDelta::seconds(150);
    for id in ["first", "second"] {
        offer(
            &node,
            id,
            json!({"audience": "uid_a", "anchor": anchor.to_rfc3339(), "every": "5m"}),
        )
        .await;
    }
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let before = wall_clock();
    while let Some(assignment) = given(&node, "a").await {
        let at = assignment["occurrence"].as_str().expect("an instant").to_owned();
        assert!(
            time(&assignment["occurrence"]) >= before - chrono::TimeDelta::minutes(10),
            "{assignment:#}"
        );
        assert!(time(&assignment["occurrence"]) <= wall_clock(), "{assignment:#}");
        assert!(
            seen.keys().all(|earlier| *earlier <= at),
            "out of order: {at} after {seen:?}"
        );
        let offer = assignment["offer"].as_str().expect("an offer").to_owned();
        assert!(seen.entry(at).or_default().insert(offer), "twice: {assignment:#}");
        complete(&node, &assignment).await;
    }
    // Ten minutes hold two instants, each with both offers.
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen.values().all(|offers| offers.len() == 2), "{seen:?}");
    let retry = async |uid: &str| -> u64 {
        let reply = poll(&node, uid).await;
        assert_eq!(reply.status, 204, "{:#}", reply.body);
        let text = reply.headers["retry-after"].to_str().expect("text");
        text.parse().expect("seconds")
    };
    assert!((1..=60).contains(&retry("a").await));
    // From the database, then from memory: the seconds to the next candidate, at most a minute.
    let soon = wall_clock() + chrono::TimeDelta::seconds(58);
    offer(
        &node,
        "soon",
        json!({"audience": "uid_b", "starts_at": soon.to_rfc3339()}),
    )
    .await;
    let mut last = 59;
    for _ in 0..3 {
        let seconds = retry("b").await;
        let left = (soon - wall_clock()).num_seconds();
        assert!(
            (left..=last).contains(&(seconds as i64)),
            "{seconds} s, {left} s before it is due"
        );
        last = seconds as i64;
    }
    offer(
        &node,
        "late",
        json!({"audience": "uid_c", "starts_at": "2100-01-01T00:00:00Z"}),
    )
    .await;
    for uid in ["c", "c", "nobody"] {
        assert_eq!(retry(uid).await, 60);
    }
    let listed = node.all("/v1/offers/occurrences?audience=uid_a&limit=500").await;
    let expected = 2 * 7 * 24 * 12;
    assert!((expected..=expected + 2).contains(&listed.len()), "{}", listed.len());
}

/// What may be completed, and what not.
#[tokio::test]
async fn completions() {
    let (_world, node) = World::with_node().await;
    members(&node, "gid_g", &users(2)).await;
    offer(
        &node,
        "o",
        json!({"audience": "gid_g", "dispatch_times": 2, "return_failed": true}),
    )
    .await;
    let one = given(&node, "u0").await.expect("an assignment");
    let other = given(&node, "u1").await.expect("an assignment");
    let stolen = json!({"assignment_id": other["assignment_id"], "status": "completed"});
    node.post("/v1/dispatch/u0/complete", stolen)
        .await
        .expect_problem(409, &[]);
    let large = json!("x".repeat(256 * 1024));
    finish(&node, &one, "completed", large)
        .await
        .expect_said(413, "the `result` must have at most 262144 bytes");
    for id in ["0199f5a0-0000-7000-8000-000000000000", "made-up"] {
        let body = json!({"assignment_id": id, "status": "completed"});
        node.post("/v1/dispatch/u0/complete", body)
            .await
            .expect_problem(409, &[]);
    }
    let body = json!({"assignment_id": one["assignment_id"], "status": "done"});
    node.post("/v1/dispatch/u0/complete", body)
        .await
        .expect_problem(422, &["/status"]);
    let first = finish(&node, &one, "failed", json!("no")).await.expect_status(200);
    let second = finish(&node, &one, "failed", json!("no")).await.expect_status(200);
    assert_eq!(first, second);
    finish(&node, &one, "completed", json!(1))
        .await
        .expect_problem(409, &[]);
    // Its stock came back, but not to the user who had it.
    assert_eq!(poll(&node, "u0").await.status, 204);
    members(&node, "gid_g", &users(3)).await;
    assert!(given(&node, "u2").await.is_some());
    // Logged once, in order per user.
    // A transaction of some other test may hold the feed up: it is one cluster.
    let events = eventually("all four events", async || {
        let events = node.get("/v1/events?kinds=assignment.*").await.expect_status(200);
        let lines: Vec<Value> = events
            .as_str()?
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        (lines.len() >= 4).then_some(lines)
    })
    .await;
    let of: Vec<&str> = events
        .iter()
        .filter(|line| line["uid"] == "u0")
        .filter_map(|line| line["kind"].as_str())
        .collect();
    assert_eq!(of, ["assignment.dispatched", "assignment.failed"], "{events:#?}");
}

/// Stock comes back by revocation and by `max_hold`; members see changes at their next poll.
#[tokio::test]
async fn stock_comes_back() {
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    members(&nodes[0], "gid_g", &users(3)).await;
    offer(&nodes[0], "o", json!({"audience": "gid_g", "max_hold": "2s"})).await;
    let first = given(&nodes[0], "u0").await.expect("an assignment");
    assert_eq!(poll(&nodes[0], "u1").await.status, 204);
    let id = first["assignment_id"].as_str().expect("an id");
    let revoked = nodes[0]
        .post(&format!("/v1/assignments/{id}/revoke"), json!({}))
        .await
        .expect_status(200);
    assert_eq!(revoked["state"], "revoked");
    finish(&nodes[0], &first, "completed", json!(1))
        .await
        .expect_problem(409, &[]);
    let second = given(&nodes[0], "u1").await.expect("what came back");
    // After it was held for too long, another user gets it; a poll that waits on the other node is woken.
    let waiting = nodes[1].post("/v1/dispatch/u2/next", json!({"wait": "20s"})).await;
    assert_eq!(waiting.status, 200, "{:#}", waiting.body);
    assert_ne!(waiting.body["assignment_id"], second["assignment_id"]);
    finish(&nodes[0], &second, "completed", json!(1))
        .await
        .expect_problem(409, &[]);
    // A newcomer is served by the next poll on the node that took the change, soon by the other.
    assert_eq!(poll(&nodes[0], "new").await.status, 204);
    offer(
        &nodes[0],
        "each",
        json!({"audience": "gid_g", "dispatch_times": "each"}),
    )
    .await;
    let change = json!({"add": ["new", "newer"], "remove": ["u0"]});
    nodes[0]
        .send(
            nodes[0]
                .request(reqwest::Method::PATCH, "/v1/audiences/gid_g/members")
                .json(&change),
        )
        .await
        .expect_status(200);
    assert_eq!(given(&nodes[0], "new").await.expect("an assignment")["offer"], "each");
    assert_eq!(poll(&nodes[0], "u0").await.status, 204);
    // Within two seconds, says the contract; how loaded the machine is, nobody knows.
    let reply = nodes[1].post("/v1/dispatch/newer/next", json!({"wait": "30s"})).await;
    assert_eq!(reply.status, 200, "a change is seen on the other node");
}

/// Stock that comes back with a failed assignment reaches users of other nodes, also when the node that was told of the
/// failure dies at that moment.
#[tokio::test]
async fn stock_comes_back_from_the_dead() {
    let world = World::new().await;
    let mut nodes = world.nodes(2).await;
    members(&nodes[0], "gid_g", &users(2)).await;
    let spec = json!({"audience": "gid_g", "return_failed": true});
    offer(&nodes[0], "o", spec).await;
    let held = given(&nodes[0], "u0").await.expect("an assignment");
    // The other node knows the offer, and that there is nothing left of it.
    eventually("offer on the other node", async || {
        let known = nodes[1].get("/v1/offers/o").await;
        let quiet = poll(&nodes[1], "u1").await;
        (known.status == 200 && quiet.status == 204).then_some(())
    })
    .await;
    finish(&nodes[0], &held, "failed", json!("no")).await.expect_status(200);
    nodes[0].kill();
    let again = eventually("what came back", async || given(&nodes[1], "u1").await).await;
    assert_eq!(again["offer"], "o");
}

/// What a take reads of a user does not grow with what others were given of the same occurrence.
#[tokio::test]
async fn takes_read_their_own() {
    const OTHERS: i64 = 5_000;
    let (world, node) = World::with_node().await;
    members(&node, "gid_g", &users(1)).await;
    offer(&node, "o", json!({"audience": "gid_g", "dispatch_times": 10_000})).await;
    let mut sql = world.sql().await;
    sql.execute(
        "INSERT INTO heddle.assignments (id, offer_id, version, uid, audience, occurrence, state, assigned_at, finished_at)
         SELECT (left(heddle.uuid_floor(now())::text, 19) || substr(gen_random_uuid()::text, 20))::uuid, o.id, o.version,
                'other' || n, o.audience, o.starts_at, 1, now(), now()
           FROM heddle.offers o, generate_series(1, $1::bigint) n",
        &[&OTHERS],
    )
    .await
    .expect("what others had");
    let id = "01999999-0000-7000-8000-000000000001";
    let sql = sql.transaction().await.expect("a transaction");
    // As the nodes' connections have it.
    sql.batch_execute(&format!(
        "SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_seqscan = off;
         SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off;
         INSERT INTO heddle.holds (uid, id, offer_id, version, audience, occurrence, assigned_at)
         SELECT 'u0', '{id}', id, version, audience, starts_at, now() FROM heddle.offers;
         PREPARE give AS {}",
        include_str!("../../runner/store/src/sql/give.sql")
    ))
    .await
    .expect("a statement");
    let explain = format!(
        "EXPLAIN (ANALYZE, BUFFERS) EXECUTE give (ARRAY['{id}'::uuid], 43200000000,
             heddle.uuid_floor(now() - interval '12 hours'), heddle.uuid_floor(now() + interval '1 hour'))"
    );
    let plan = sql.query(&explain, &[]).await.expect("a plan");
    let plan: Vec<&str> = plan.iter().map(|line| line.get(0)).collect();
    let buffers = plan.iter().find_map(|line| line.trim().strip_prefix("Buffers: shared"));
    let read: i64 = buffers
        .expect("buffers of the whole")
        .split([' ', ','])
        .filter_map(|part| part.strip_prefix("hit=").or_else(|| part.strip_prefix("read=")))
        .map(|count| count.parse::<i64>().expect("a count"))
        .sum();
    assert!(read < OTHERS / 10, "{read} blocks for one user: {}", plan.join("\n"));
}

/// What is wrong with an offer is named; an audience has its cap.
#[tokio::test]
async fn refusals() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_MAX_OFFERS", "2").start().await;
    let schema = json!({"type": "object", "required": ["to"], "properties": {"to": {"type": "string"}}});
    node.put("/v1/templates/mail", schema).await.expect_status(201);
    for (spec, pointers) in [
        (
            json!({"audience": "gid_a", "dispatch_times": 0}),
            &["/dispatch_times"][..],
        ),
        (json!({"audience": "gid_a", "dispatch_times": -1}), &["/dispatch_times"]),
        (
            json!({"audience": "gid_a", "dispatch_times": 1.5}),
            &["/dispatch_times"],
        ),
        (
            json!({"audience": "gid_a", "dispatch_times": "all"}),
            &["/dispatch_times"],
        ),
        (json!({"audience": "gid_a", "every": "-5m"}), &["/every"]),
        (json!({"audience": "team"}), &["/audience"]),
        (json!({"audience": "gid_"}), &["/audience"]),
        (json!({"audience": "uid_gid_a"}), &["/audience"]),
        (json!({"audience": "gid_a", "at": "25:00"}), &["/at"]),
        (json!({"audience": "gid_a", "every": "5m", "at": "12:00"}), &["/at"]),
        (json!({"audience": "gid_a", "mode": "often"}), &["/mode"]),
        (json!({"audience": "gid_a", "max_hold": "0"}), &["/max_hold"]),
        (
            json!({"audience": "gid_a", "kind": "interval", "every": "0"}),
            &["/every"],
        ),
        (
            json!({"audience": "gid_a", "template": "mail", "params": {"to": 1}}),
            &["/params/to"],
        ),
        (json!({"audience": "gid_a", "template": "mail"}), &["/params"]),
        (json!({"audience": "gid_a", "template": "none"}), &["/template"]),
    ] {
        node.put("/v1/offers/x", spec).await.expect_problem(422, pointers);
    }
    let list = json!({"id": "occurrences", "audience": "gid_a"});
    node.post("/v1/offers", list).await.expect_problem(422, &["/id"]);
    for id in ["one", "two"] {
        offer(&node, id, json!({"audience": "gid_a", "every": "5m"})).await;
    }
    node.put("/v1/offers/three", json!({"audience": "gid_a", "every": "5m"}))
        .await
        .expect_problem(409, &[]);
    offer(&node, "two", json!({"audience": "gid_a", "every": "6m"})).await;
    // Unknown users and users of the far future and past get nothing.
    for (id, at) in [
        ("past", "2020-01-01T00:00:00Z"),
        ("long-past", "0001-01-01T00:00:00Z"),
        ("future", "2100-01-01T00:00:00Z"),
        ("far-future", "9999-12-31T23:59:59Z"),
    ] {
        offer(&node, id, json!({"audience": "uid_a", "starts_at": at})).await;
    }
    for uid in ["a", "nobody"] {
        assert_eq!(poll(&node, uid).await.status, 204);
    }
    // An instant that is left out is the creation, whatever it was in between.
    let made = offer(&node, "moved", json!({"audience": "gid_b", "starts_at": "2020-01-01"})).await;
    let moved = offer(&node, "moved", json!({"audience": "gid_b", "every": "5m"})).await;
    assert_eq!(
        (&moved["anchor"], &moved["created_at"]),
        (&made["created_at"], &made["created_at"])
    );
    // What no offer could be is no task either.
    for (audience, field) in [
        (
            json!({"audience": "gid_a", "dispatch_times": "each", "mode": "repeat"}),
            "mode",
        ),
        (json!({"audience": "gid_{{ params"}), "audience"),
        (json!({"audience": format!("gid_{}", "x".repeat(252))}), "audience"),
    ] {
        let tasks = json!({"tasks": {"ask": {"audience": audience}}});
        let pointer = format!("/tasks/ask/audience/{field}");
        node.refused_group("asks", tasks).await.expect_problem(422, &[&pointer]);
    }
}

/// What the clock on the wall says: offers are due by it.
#[expect(
    clippy::disallowed_methods,
    reason = "a test of the running program looks at real time"
)]
pub(crate) fn wall_clock() -> chrono::DateTime<chrono::Utc> {
    chrono::Utc::now()
}
