//! What is due is sent: in order, once, within bounds; what fails is tried again by itself.

use std::collections::BTreeSet;

use heddle_tests::{World, eventually};
use serde_json::{Value, json};

use super::{count, day_ahead, delivered, due_now, ended, kept, only_day, postbox, put_topic, send};

/// Batches go by bucket, then by id; every message once.
#[tokio::test]
async fn in_the_order_of_bucket_and_id() {
    let (world, node) = World::with_node().await;
    postbox(&world, &node).await;
    put_topic(&node, "kept-order", kept(json!({"batch": 400}))).await;
    // Senders in no order, two thirds of them in shared buckets.
    let messages: Vec<Value> = (0..1_500u64)
        .map(|n| due_now(n * 7_919 % 1_500 * 20, json!({"n": n})))
        .collect();
    send(&node, "kept-order", &messages).await;
    ended(&node, "kept-order", 1_500).await;
    let ids = delivered(&world).await;
    assert_eq!(ids.len(), 1_500);
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 1_500);
    let stored = node.all("/v1/topics/kept-order/messages?limit=500").await;
    let in_order: Vec<&str> = stored.iter().map(|found| found["id"].as_str().unwrap()).collect();
    assert_eq!(ids, in_order, "lists are in the order of bucket and id");
    assert!(stored.iter().all(|found| found["state"] == "sent"));
    let sql = world.sql().await;
    let batches = sql
        .query(
            "SELECT count(*) FROM public.postbox GROUP BY batch ORDER BY min(place)",
            &[],
        )
        .await
        .unwrap();
    let sizes: Vec<i64> = batches.iter().map(|row| row.get(0)).collect();
    assert_eq!(sizes, [400, 400, 400, 300]);
    let (_, day) = only_day(&node, "kept-order").await;
    assert_eq!((&day["sent"], &day["state"]), (&json!(1_500), &json!("drained")));
    // It says since when at once, though more may come for a day of instants until that is over.
    let first = node.get("/v1/topics/kept-order").await.expect_status(200);
    assert!(
        heddle_tests::seconds(&first["created_at"], &day["drained_at"]) > 0.0,
        "{day:#}"
    );
    assert!(
        day["buckets"]
            .as_array()
            .unwrap()
            .iter()
            .all(|bucket| bucket["state"] == "drained")
    );
    let metrics = node.get("/metrics").await.body.to_string();
    assert!(metrics.contains("heddle_messages_sent_total 1500"), "{metrics}");
}

/// Instants to come wait; those of one batch's size are not sent together with what is due later.
#[tokio::test]
async fn not_before_its_instant() {
    let (world, node) = World::with_node().await;
    postbox(&world, &node).await;
    put_topic(&node, "kept-later", kept(json!({}))).await;
    let sql = world.sql().await;
    let soon: String = sql
        .query_one(
            "SELECT to_char(now() AT TIME ZONE 'UTC' + interval '2 seconds', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    let at = |sender: u64, due: &str| json!({"sender": sender, "receiver": 1, "due": due});
    send(&node, "kept-later", &[at(1, &soon), at(2, "2013-07-01T00:00:00+02:00")]).await;
    ended(&node, "kept-later", 2).await;
    let early: i64 = sql
        .query_one(
            "SELECT count(*) FROM public.postbox WHERE sender = 1 AND due::timestamptz > now()",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(early, 0);
    let order: Vec<i64> = sql
        .query("SELECT sender FROM public.postbox ORDER BY place", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(order, [2, 1]);
}

/// A day is sent from its `send_at` on, and takes no more messages from then on.
#[tokio::test]
async fn a_day_comes() {
    let (world, node) = World::with_node().await;
    postbox(&world, &node).await;
    put_topic(
        &node,
        "kept-day",
        json!({"script": "postbox", "sql": ["postbox"], "send_at": "09:30"}),
    )
    .await;
    // Not tomorrow: it would be today by the time that messages come in, if midnight passes before that.
    let (day, later) = (day_ahead(&world, 2).await, day_ahead(&world, 3).await);
    let message = |sender: u64, due: &str| json!({"sender": sender, "receiver": 1, "due": due});
    let messages: Vec<Value> = (0..300).map(|n| message(n * 31 % 300, &day)).collect();
    send(&node, "kept-day", &messages).await;
    send(&node, "kept-day", &[message(1, &later)]).await;
    let sql = world.sql().await;
    let due: String = sql
        .query_one(
            "SELECT (due_at AT TIME ZONE 'UTC')::text FROM heddle.message_slices WHERE day = $1::text::date",
            &[&day],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(due, format!("{day} 09:30:00"));
    // The day is made to come now.
    sql.execute(
        "UPDATE heddle.message_slices SET due_at = now() WHERE day = $1::text::date",
        &[&day],
    )
    .await
    .unwrap();
    eventually("a drained day", async || {
        let found = node
            .get(&format!("/v1/topics/kept-day/days/{day}"))
            .await
            .expect_status(200);
        (found["sent"] == 300 && found["state"] == "drained").then_some(())
    })
    .await;
    let order: Vec<i64> = sql
        .query("SELECT sender FROM public.postbox ORDER BY place", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert_eq!(
        order,
        (0..300).collect::<Vec<i64>>(),
        "by bucket, the other day not at all"
    );
    let answer = node
        .post(
            "/v1/topics/kept-day/messages",
            json!([message(5, &day), message(5, &later)]),
        )
        .await
        .expect_status(200);
    assert_eq!(
        (&answer["accepted"], &answer["rejected"][0]["line"]),
        (&json!(1), &json!(1)),
        "{answer:#}"
    );
}

/// Outcomes are by message: what fails is tried again alone, what fails for good is given up, the rest is sent.
#[tokio::test]
async fn failures_are_their_own() {
    let (world, node) = World::with_node().await;
    postbox(&world, &node).await;
    let retry = json!({"strategy": "fixed", "retries": 3, "interval": "50ms"});
    put_topic(&node, "kept-fail", kept(json!({"retry": retry}))).await;
    let mut messages: Vec<Value> = (0..50).map(|n| due_now(n, json!({}))).collect();
    messages.push(due_now(100, json!({"do": "fail", "until": 3})));
    messages.push(due_now(101, json!({"do": "fail"})));
    messages.push(due_now(102, json!({"do": "fatal"})));
    messages.push(due_now(103, json!({"do": "skip"})));
    let answer = send(&node, "kept-fail", &messages).await;
    ended(&node, "kept-fail", 54).await;
    assert_eq!(
        (
            count(&node, "kept-fail", "sent").await,
            count(&node, "kept-fail", "failed").await
        ),
        (52, 2)
    );
    let state = async |index: usize| {
        let id = answer["ids"][index].as_str().unwrap();
        node.get(&format!("/v1/topics/kept-fail/messages/{id}"))
            .await
            .expect_status(200)
    };
    assert_eq!(state(50).await["state"], "sent");
    let given_up = state(51).await;
    assert_eq!(
        (&given_up["state"], &given_up["attempts"], &given_up["error"]),
        (&json!("failed"), &json!(4), &json!("as it wished")),
        "{given_up:#}"
    );
    let fatal = state(52).await;
    assert_eq!((&fatal["state"], &fatal["attempts"]), (&json!("failed"), &json!(1)));
    assert_eq!(state(53).await["state"], "sent", "there was nothing to do");
    let sql = world.sql().await;
    let times: i64 = sql
        .query_one("SELECT count(*) FROM public.postbox WHERE sender < 50", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(times, 50, "the others were sent once");
    let rows = sql
        .query(
            "SELECT attempt FROM public.postbox WHERE sender = 101 ORDER BY place",
            &[],
        )
        .await
        .unwrap();
    let attempts: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(attempts, [1, 2, 3, 4]);
}

/// A batch that traps, times out, refuses or miscounts fails as a whole and is tried again, in ever smaller batches.
#[tokio::test]
async fn batches_that_break() {
    let (_world, node) = World::with_node().await;
    for (name, wish) in [("trap", "trap"), ("short", "short"), ("refuse", "refuse")] {
        let retry = json!({"strategy": "fixed", "retries": 5, "interval": "20ms"});
        put_topic(
            &node,
            name,
            json!({"script": "postbox", "granularity": "instant", "batch": 60, "retry": retry}),
        )
        .await;
        let mut messages: Vec<Value> = (0..59).map(|n| due_now(n, json!({}))).collect();
        messages.push(due_now(30, json!({"do": wish})));
        send(&node, name, &messages).await;
    }
    put_topic(
        &node,
        "late",
        json!({"script": "postbox", "granularity": "instant", "timeout": "200ms"}),
    )
    .await;
    send(&node, "late", &[due_now(1, json!({"do": "wait", "ms": 600_000}))]).await;
    for name in ["trap", "short", "refuse"] {
        ended(&node, name, 60).await;
        let counts = (count(&node, name, "sent").await, count(&node, name, "failed").await);
        assert_eq!(
            counts,
            (59, 1),
            "{name}: only the one that breaks its batch is given up"
        );
    }
    ended(&node, "late", 1).await;
    let failed = node.all("/v1/topics/late/messages").await;
    assert!(failed[0]["error"].as_str().unwrap().contains("timeout"), "{failed:#?}");
    let failed: Vec<Value> = node
        .all("/v1/topics/short/messages?limit=500")
        .await
        .into_iter()
        .filter(|found| found["state"] == "failed")
        .collect();
    assert!(
        failed[0]["error"]
            .as_str()
            .unwrap()
            .contains("0 outcomes for 1 message"),
        "{failed:#?}"
    );
}

/// A secret that a consumer has read is shown neither by the errors of its messages nor by the node's log, whether one
/// message fails or its whole batch.
#[tokio::test]
async fn secrets_of_consumers_are_masked() {
    let (_world, node) = World::with_node().await;
    let secret = json!({"value": "open \"sesame\"", "groups": ["careless"]});
    node.put("/v1/secrets/door", secret).await.expect_status(201);
    let spec = json!({"script": "postbox", "granularity": "instant", "batch": 1, "secrets": ["door"]});
    put_topic(&node, "careless", spec).await;
    let messages: Vec<Value> = ["fail", "fatal", "refuse", "trap"]
        .iter()
        .zip(0..)
        .map(|(wish, n)| due_now(n, json!({"do": wish, "secret": "door"})))
        .collect();
    send(&node, "careless", &messages).await;
    ended(&node, "careless", 4).await;
    let failed = node.all("/v1/topics/careless/messages").await;
    assert_eq!(failed.len(), 4, "{failed:#?}");
    for message in &failed {
        let said = message["error"].as_str().unwrap();
        assert!(!said.contains("sesame"), "{message:#}");
        // The words of a panic are in the log.
        let tells = message["payload"]["do"] != "trap";
        assert!(!tells || said.contains("as it wished, with ***"), "{message:#}");
    }
    let log = eventually("the words of a panic", async || {
        Some(node.log()).filter(|log| log.contains("as it wished, with ***"))
    })
    .await;
    assert!(!log.contains("sesame"), "{log}");
}

/// What a consumer enqueues is committed with its batch: a run for each message, or nothing and a failure.
#[tokio::test]
async fn what_a_consumer_enqueues() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"strategy": "forever", "interval": "50ms"});
    put_topic(
        &node,
        "poster",
        json!({"script": "postbox", "granularity": "instant", "retry": retry}),
    )
    .await;
    let messages: Vec<Value> = (0..3).map(|n| due_now(n, json!({"do": "enqueue"}))).collect();
    send(&node, "poster", &messages).await;
    let failed = eventually("a failure", async || {
        let found = node.all("/v1/topics/poster/messages").await;
        found.into_iter().find(|found| found["error"].is_string())
    })
    .await;
    assert!(
        failed["error"].as_str().unwrap().contains("no group \"posted\""),
        "{failed:#}"
    );
    node.put_group("posted", crate::one(json!({"script": "hello"}))).await;
    ended(&node, "poster", 3).await;
    assert_eq!(count(&node, "poster", "sent").await, 3);
    let posted = node.all("/v1/runs?group=posted&trigger=task").await;
    assert_eq!(posted.len(), 3);
    assert!(posted.iter().all(|run| run.get("created_by").is_none()), "{posted:#?}");
}

/// Effects that cannot be stored fail their own batch, and delay no later one.
#[tokio::test]
async fn what_nobody_can_keep() {
    let (_world, node) = World::with_node().await;
    put_topic(&node, "poster", json!({"script": "postbox", "granularity": "instant"})).await;
    node.put_group("posted", crate::one(json!({"script": "hello"}))).await;
    for (index, key) in ["a".repeat(600).as_str(), "sound"].into_iter().enumerate() {
        send(&node, "poster", &[due_now(1, json!({"do": "enqueue", "key": key}))]).await;
        ended(&node, "poster", index as i64 + 1).await;
    }
    let counts = (
        count(&node, "poster", "failed").await,
        count(&node, "poster", "sent").await,
    );
    assert_eq!(counts, (1, 1));
    assert_eq!(node.all("/v1/runs?group=posted").await.len(), 1);
}

/// A topic sends no more than its rate, and has no more batches in hand than its concurrency.
#[tokio::test]
async fn within_bounds() {
    let (world, node) = World::with_node().await;
    let instants = |more: Value| crate::with(json!({"script": "postbox", "granularity": "instant"}), more);
    put_topic(&node, "rated", instants(json!({"rate": {"count": 100, "per": "1s"}}))).await;
    put_topic(&node, "narrow", instants(json!({"batch": 2, "concurrency": 2}))).await;
    let messages: Vec<Value> = (0..200).map(|n| due_now(n, json!({}))).collect();
    let slow: Vec<Value> = (0..40).map(|n| due_now(n, json!({"do": "wait", "ms": 20}))).collect();
    let sql = world.sql().await;
    let began = tokio::time::Instant::now();
    sql.execute(
        "UPDATE heddle.topic_drains SET allowance = 0, allowed_at = clock_timestamp()",
        &[],
    )
    .await
    .unwrap();
    send(&node, "rated", &messages).await;
    send(&node, "narrow", &slow).await;
    let mut most = 0;
    eventually("the end", async || {
        let held: i64 = sql
            .query_one(
                "SELECT count(*) FROM heddle.message_batches b JOIN heddle.topics t ON t.id = b.topic WHERE t.name = 'narrow'",
                &[],
            )
            .await
            .unwrap()
            .get(0);
        most = most.max(held);
        assert!(held <= 2, "{held} batches at once");
        (count(&node, "narrow", "sent").await == 40).then_some(())
    })
    .await;
    assert!(most > 0);
    ended(&node, "rated", 200).await;
    // 200 messages at 100 a second, with an empty bucket to begin with: two seconds and no less.
    assert!(began.elapsed().as_millis() >= 1_900, "{:?}", began.elapsed());
}

/// The drain and look-ups touch the partitions of the day in question, and no others.
#[tokio::test]
async fn only_the_days_partitions() {
    let (world, node) = World::with_node().await;
    put_topic(&node, "far", json!({"script": "postbox"})).await;
    let day = day_ahead(&world, 3).await;
    let mut messages = Vec::new();
    for due in [
        day_ahead(&world, 2).await,
        day.clone(),
        day_ahead(&world, 40).await,
        day_ahead(&world, 400).await,
    ] {
        messages.extend((0..20).map(|sender| json!({"sender": sender, "receiver": 1, "due": due})));
    }
    send(&node, "far", &messages).await;
    let sql = world.sql().await;
    // As the store's connections are set up, and its transactions: see `message_lock.sql`.
    sql.batch_execute(
        "SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
                       SET plan_cache_mode = force_custom_plan; SET enable_sort = off; SET enable_bitmapscan = off",
    )
    .await
    .unwrap();
    let partition = format!("messages_{}", day.replace('-', ""));
    let statements = [
        (
            include_str!("../../../runner/store/src/sql/messages_of_day.sql"),
            "(int, date, bigint, smallint, uuid, bigint)",
            format!("(1, '{day}', 0, -1, '00000000-0000-0000-0000-000000000000', 1000)"),
        ),
        (
            include_str!("../../../runner/store/src/sql/messages_of_slices.sql"),
            "(int, date, bigint[], smallint[], uuid[], bigint)",
            format!(
                "(1, '{day}', '{{1,2}}', '{{-1,-1}}', array_fill('00000000-0000-0000-0000-000000000000'::uuid, '{{2}}'), 1000)"
            ),
        ),
        (
            include_str!("../../../runner/store/src/sql/messages_search.sql"),
            "(int, date, smallint, uuid, smallint, bigint, bigint, bigint)",
            format!("(1, '{day}', -1, '00000000-0000-0000-0000-000000000000', 7, 7, null, 50)"),
        ),
    ];
    for (index, (statement, types, values)) in statements.into_iter().enumerate() {
        sql.batch_execute(&format!("PREPARE s{index} {types} AS {statement}"))
            .await
            .unwrap();
        let rows = sql
            .simple_query(&format!("EXPLAIN EXECUTE s{index} {values}"))
            .await
            .unwrap();
        let plan: String = rows
            .iter()
            .filter_map(|row| match row {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            })
            .collect::<Vec<_>>()
            .join("\n");
        assert!(plan.contains(&partition), "{plan}");
        let others = plan.matches(" on messages_").count() - plan.matches(&format!(" on {partition}")).count();
        assert_eq!(others, 0, "{plan}");
        assert!(
            !plan.contains("Seq Scan on messages_") && !plan.contains("Sort"),
            "{plan}"
        );
    }
}
