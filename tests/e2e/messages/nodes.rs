//! Batches of dead nodes are sent by others: nothing is lost, and little is sent twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use heddle_tests::{World, eventually, within};
use serde_json::{Value, json};

use super::{count, delivered, due_now, ended, kept, postbox, put_topic, send};

/// How many messages the long test sends; more by this variable.
const MESSAGES: &str = "HEDDLE_TESTS_MESSAGES";
const MESSAGES_DEFAULT: u64 = 40_000;

/// How long that may take.
const LONG: Duration = Duration::from_secs(600);

/// Three nodes drain a topic and are killed one after the other: every message arrives, with its id, and those that
/// arrive twice are at most one batch for each lost drainer.
#[tokio::test]
async fn three_nodes_with_kills() {
    const BATCH: u64 = 250;
    const DRAINERS: u64 = 2;
    let messages: u64 = std::env::var(MESSAGES)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(MESSAGES_DEFAULT);
    let world = World::new().await;
    let mut nodes = world.nodes(3).await;
    postbox(&world, &nodes[0]).await;
    // Not sent before all of it is there, so that nodes die in the middle.
    let spec = |enabled: bool| kept(json!({"batch": BATCH, "concurrency": 3 * DRAINERS, "enabled": enabled}));
    put_topic(&nodes[0], "kept-alive", spec(false)).await;
    for from in (0..messages).step_by(5_000) {
        let part: Vec<Value> = (from..messages.min(from + 5_000))
            .map(|n| due_now(n * 2_654_435_761 % 4_294_967_296, json!({"n": n})))
            .collect();
        send(&nodes[1], "kept-alive", &part).await;
    }
    put_topic(&nodes[0], "kept-alive", spec(true)).await;
    let mut kills = 0;
    for victim in 0..2 {
        let survivor = 2;
        let share = messages as i64 * (i64::from(victim as u8) + 1) / 5;
        within(LONG, "a share that is sent", async || {
            (count(&nodes[survivor], "kept-alive", "sent").await >= share).then_some(())
        })
        .await;
        nodes[victim].kill();
        kills += 1;
        nodes[victim] = world.node().await;
    }
    within(LONG, "the end", async || {
        (count(&nodes[2], "kept-alive", "sent").await == messages as i64).then_some(())
    })
    .await;
    let mut times: BTreeMap<String, u64> = BTreeMap::new();
    for id in delivered(&world).await {
        *times.entry(id).or_default() += 1;
    }
    assert_eq!(times.len() as u64, messages, "each message arrived");
    let repeats: u64 = times.values().map(|times| times - 1).sum();
    // A drainer has one batch in hand; the share of a node that is alone for a while is all of them.
    assert!(
        repeats <= kills * 3 * DRAINERS * BATCH,
        "{repeats} repeats after {kills} kills"
    );
    let sql = world.sql().await;
    let strangers: i64 = sql
        .query_one(
            "SELECT count(*) FROM public.postbox p WHERE NOT EXISTS (SELECT FROM heddle.messages m WHERE m.id = p.id::uuid)",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(strangers, 0, "ids are those that were given");
    let left: i64 = sql
        .query_one("SELECT count(*) FROM heddle.message_batches", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(left, 0);
}

/// A batch that a script had when its node died is sent again, with the same ids; one node at a time has one batch, so
/// only one batch is repeated.
#[tokio::test]
async fn one_batch_is_repeated() {
    let world = World::new().await;
    let home = world.directory().join("home");
    let mut node = world.options().data_dir(&home).start().await;
    postbox(&world, &node).await;
    put_topic(&node, "kept-once", kept(json!({"batch": 10}))).await;
    let mut messages: Vec<Value> = (0..95).map(|n| due_now(n, json!({}))).collect();
    // The fifth batch takes for ever, the first time.
    messages[45] = due_now(45, json!({"do": "wait", "ms": 600_000}));
    send(&node, "kept-once", &messages).await;
    eventually("the fifth batch", async || {
        (delivered(&world).await.len() == 50).then_some(())
    })
    .await;
    node.kill();
    world
        .sql()
        .await
        .execute("UPDATE heddle.messages SET payload = '{}' WHERE sender = 45", &[])
        .await
        .unwrap();
    // A lone node that comes back takes its former self's batch over.
    let node = world.options().data_dir(&home).start().await;
    ended(&node, "kept-once", 95).await;
    let ids = delivered(&world).await;
    assert_eq!(ids.len(), 105);
    assert_eq!(ids[40..50], ids[50..60], "the same batch again");
    assert_eq!(count(&node, "kept-once", "sent").await, 95);
}

/// A node that is frozen past its lease does not record what others have sent meanwhile.
#[tokio::test]
async fn a_zombie_records_nothing() {
    let world = World::new().await;
    let zombie = world.node().await;
    postbox(&world, &zombie).await;
    put_topic(&zombie, "kept-fenced", kept(json!({"batch": 10}))).await;
    let mut messages: Vec<Value> = (0..30).map(|n| due_now(n, json!({}))).collect();
    messages[0] = due_now(0, json!({"do": "wait", "ms": 2_000}));
    send(&zombie, "kept-fenced", &messages).await;
    eventually("the first batch", async || {
        (delivered(&world).await.len() == 10).then_some(())
    })
    .await;
    zombie.freeze();
    let other = world.node().await;
    ended(&other, "kept-fenced", 30).await;
    zombie.thaw();
    eventually("the zombie's new lease", async || {
        zombie
            .try_get("/readyz")
            .await
            .filter(|reply| reply.status == 200)
            .map(drop)
    })
    .await;
    send(&zombie, "kept-fenced", &[due_now(99, json!({}))]).await;
    ended(&other, "kept-fenced", 31).await;
    assert_eq!(
        count(&other, "kept-fenced", "sent").await,
        31,
        "nothing is counted twice"
    );
}

/// All connections are cut in the middle of a drain, again and again: batches in hand are recorded or sent again, and
/// those that were claimed without an answer are not forgotten.
#[tokio::test]
async fn connections_are_cut() {
    const BATCH: i64 = 20;
    const DRAINERS: i64 = 4;
    const CUTS: i64 = 4;
    const MESSAGES: i64 = 4_000;
    let world = World::new().await;
    let nodes = world.nodes(2).await;
    postbox(&world, &nodes[0]).await;
    // The script's own connections are cut as well: such a batch fails, and is tried again.
    let retry = json!({"strategy": "forever", "interval": "50ms"});
    let spec =
        |enabled: bool| kept(json!({"batch": BATCH, "concurrency": DRAINERS, "retry": retry, "enabled": enabled}));
    put_topic(&nodes[0], "kept-cut", spec(false)).await;
    let messages: Vec<Value> = (0..MESSAGES as u64).map(|n| due_now(n * 37, json!({}))).collect();
    send(&nodes[0], "kept-cut", &messages).await;
    put_topic(&nodes[0], "kept-cut", spec(true)).await;
    let owner = world.sql_as_owner().await;
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}'",
        world.database()
    );
    // Counted past the nodes, whose connections are those that are cut.
    let sent = async || -> i64 {
        let row = world
            .sql()
            .await
            .query_one(
                "SELECT coalesce(sum(sent), 0)::bigint FROM heddle.message_outcomes",
                &[],
            )
            .await
            .unwrap();
        row.get(0)
    };
    for share in 1..=CUTS {
        within(LONG, "a share that is sent", async || {
            (sent().await >= MESSAGES * share / (CUTS + 1)).then_some(())
        })
        .await;
        owner.query(&cut, &[]).await.unwrap();
    }
    within(LONG, "the end", async || (sent().await == MESSAGES).then_some(())).await;
    let ids = delivered(&world).await;
    let distinct: BTreeSet<&String> = ids.iter().collect();
    assert_eq!(distinct.len() as i64, MESSAGES, "each message arrived");
    let repeats = ids.len() as i64 - MESSAGES;
    assert!(
        repeats <= CUTS * DRAINERS * BATCH,
        "{repeats} repeats after {CUTS} cuts"
    );
    let left: i64 = world
        .sql()
        .await
        .query_one(
            "SELECT (SELECT count(*) FROM heddle.message_batches) + (SELECT count(*) FROM heddle.message_retries)",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert_eq!(left, 0, "nothing is in hand, nothing waits");
}
