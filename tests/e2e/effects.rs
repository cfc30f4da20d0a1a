//! What scripts do through host calls that write to Heddle: committed with a succeeded outcome, exactly once, or not at
//! all.

use heddle_tests::{Answer, Node, Receiver, World, eventually, task};
use serde_json::{Value, json};

use crate::notifications::requests;
use crate::{one, with};

/// What scripts have asked to be told, as soon as it is to be told.
async fn notices(node: &Node, count: usize) -> usize {
    let path = "/v1/notifications?event=script&limit=500";
    if count > 0 {
        eventually("what scripts say", async || {
            (node.all(path).await.len() >= count).then_some(())
        })
        .await;
    }
    node.all(path).await.len()
}

/// Waits until an attempt of this run has read the state, and waits for this key.
async fn has_read(node: &Node, run: &str, go: &str) {
    eventually("an attempt that has read", async || {
        let lines = node.log_lines(run, "t").await;
        lines
            .iter()
            .any(|line| line["message"] == format!("waits for {go}"))
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn state_is_kept_per_group() {
    let (_world, node) = World::with_node().await;
    let spec = one(json!({"script": "stateful"}));
    node.put_group("a", spec.clone()).await;
    node.put_group("b", spec).await;
    for count in 1..=3 {
        assert_eq!(task(&node.run("a", json!({})).await, "t")["output"]["count"], count);
    }
    assert_eq!(task(&node.run("b", json!({})).await, "t")["output"]["count"], 1);
    // A change of the spec keeps it.
    node.put_group("a", one(json!({"script": "stateful", "description": "changed"})))
        .await;
    assert_eq!(
        task(&node.run("a", json!({"params": {"by": 10}})).await, "t")["output"]["count"],
        13
    );
}

/// A failed attempt writes nothing, a succeeded one everything, once.
#[tokio::test]
async fn effects_come_with_success_only() {
    let (_world, node) = World::with_node().await;
    node.put_group("target", one(json!({"script": "echo"}))).await;
    node.put_group("g", one(json!({"script": "stateful"}))).await;
    let effects = |fail: bool| {
        json!({"params": {
            "enqueue": {"group": "target", "params": {"from": "g"}},
            "notify": {"channel": "ops", "subject": "hello"},
            "fail": fail,
        }})
    };
    let failed = node.run("g", effects(true)).await;
    assert_eq!(failed["state"], "failed");
    assert_eq!(node.all("/v1/runs?group=target").await, Vec::<Value>::new());
    assert_eq!(notices(&node, 0).await, 0);
    let succeeded = node.run("g", effects(false)).await;
    assert_eq!(succeeded["state"], "succeeded", "{succeeded:#}");
    assert_eq!(
        task(&succeeded, "t")["output"]["count"],
        1,
        "the failed attempt counted"
    );
    let made = node.all("/v1/runs?group=target").await;
    assert_eq!(made.len(), 1, "{made:#?}");
    assert_eq!(
        (&made[0]["trigger"], &made[0]["params"]),
        (&json!("task"), &json!({"from": "g"}))
    );
    assert_eq!(node.ended(&heddle_tests::id(&made[0])).await["state"], "succeeded");
    assert_eq!(notices(&node, 1).await, 1);
}

/// Attempts that fail before one that succeeds leave nothing: the effects are those of one attempt.
#[tokio::test]
async fn retried_attempts_have_their_effects_once() {
    let (_world, node) = World::with_node().await;
    node.put_group("target", one(json!({"script": "hello"}))).await;
    // Items fight for one counter: all but one of each round lose their comparison, and come again.
    let spec = json!({
        "script": "stateful", "shards": 4, "retry": {"strategy": "forever", "interval": "20ms"},
        "params": {"pause_ms": 100, "enqueue": {"group": "target"}, "notify": {"channel": "ops", "subject": "x"}},
    });
    node.put_group("g", one(spec)).await;
    let run = node.run("g", json!({})).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let mut counts: Vec<i64> = task(&run, "t")["output"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|output| output["count"].as_i64())
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2, 3, 4], "each success saw the state of the one before");
    let attempts: u64 = (0..4)
        .map(|index| heddle_tests::item(&run, "t", Some(index))["attempt"].as_u64().unwrap())
        .sum();
    assert!(attempts > 4, "nobody lost a comparison");
    assert_eq!(node.all("/v1/runs?group=target").await.len(), 4);
    assert_eq!(notices(&node, 4).await, 4);
}

/// A lost compare-and-set fails that attempt alone, retryably: one that the host call notices, and one that is noticed
/// only when the outcome is committed.
#[tokio::test]
async fn lost_comparisons_fail_retryably() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"retry": {"strategy": "fixed", "retries": 5, "interval": "10ms"}});
    node.put_group("g", one(with(json!({"script": "stateful"}), retry)))
        .await;
    for (wait, key) in [("write_after", "noticed-early"), ("end_after", "noticed-late")] {
        let go = format!("{key}-go");
        let loser = node.start("g", json!({"params": {"key": key, wait: go}})).await;
        has_read(&node, &loser, &go).await;
        for key in [key, &go] {
            let other = node.run("g", json!({"params": {"key": key}})).await;
            assert_eq!(other["state"], "succeeded", "{other:#}");
            assert_eq!(task(&other, "t")["attempt"], 1, "{other:#}");
        }
        let run = node.ended(&loser).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        assert_eq!(task(&run, "t")["output"]["count"], 2);
        let attempts = node.attempts(&loser, "t").await;
        assert_eq!(attempts.len(), 2, "{attempts:#?}");
        let first = &attempts[0];
        assert_eq!(
            (&first["state"], &first["error"]["kind"]),
            (&json!("failed"), &json!("failed"))
        );
        assert!(
            first["error"]["message"].as_str().unwrap().contains("compare-and-set"),
            "{first:#}"
        );
    }
}

/// A key that was deleted and written again since it was read is another one: a compare-and-set with the old version is
/// lost, when the host call notices it and when the outcome is committed.
#[tokio::test]
async fn comparisons_notice_that_a_key_was_deleted_and_written_again() {
    let (_world, node) = World::with_node().await;
    let retry = json!({"retry": {"strategy": "fixed", "retries": 5, "interval": "10ms"}});
    node.put_group("g", one(with(json!({"script": "stateful"}), retry)))
        .await;
    for (wait, key) in [("write_after", "noticed-early"), ("end_after", "noticed-late")] {
        let go = format!("{key}-go");
        let first = node.run("g", json!({"params": {"key": key}})).await;
        assert_eq!(task(&first, "t")["output"]["count"], 1, "{first:#}");
        let loser = node.start("g", json!({"params": {"key": key, wait: go}})).await;
        has_read(&node, &loser, &go).await;
        let renewed = node.run("g", json!({"params": {"key": key, "renew": true}})).await;
        assert_eq!(task(&renewed, "t")["output"]["count"], 2, "{renewed:#}");
        node.run("g", json!({"params": {"key": go}})).await;
        let run = node.ended(&loser).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
        assert_eq!(task(&run, "t")["output"]["count"], 3, "{run:#}");
        let attempts = node.attempts(&loser, "t").await;
        assert_eq!(attempts.len(), 2, "{attempts:#?}");
        assert!(
            attempts[0]["error"]["message"]
                .as_str()
                .is_some_and(|message| message.contains("compare-and-set")),
            "{attempts:#?}"
        );
    }
}

/// A key makes a second request for the same run no second run.
#[tokio::test]
async fn enqueued_keys_are_unique() {
    let (_world, node) = World::with_node().await;
    node.put_group("target", one(json!({"script": "hello"}))).await;
    let params = json!({"enqueue": {"group": "target", "key": "the-key"}});
    node.put_group("g", one(json!({"script": "stateful", "params": params})))
        .await;
    for _ in 0..3 {
        assert_eq!(node.run("g", json!({})).await["state"], "succeeded");
    }
    let made = node.all("/v1/runs?group=target").await;
    assert_eq!(made.len(), 1);
    assert_eq!(made[0]["key"], "the-key");
}

/// Asking for a run of a group that does not exist fails the attempt, and nothing else of it is written.
#[tokio::test]
async fn unknown_groups_cannot_be_enqueued() {
    let (_world, node) = World::with_node().await;
    node.put_group("g", one(json!({"script": "stateful"}))).await;
    let run = node.run("g", json!({"params": {"enqueue": {"group": "nope"}}})).await;
    assert_eq!(run["state"], "failed", "{run:#}");
    let error = &task(&run, "t")["error"];
    assert_eq!(error["kind"], "fatal", "{run:#}");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|message| message.contains("nope")),
        "the error names the group: {run:#}"
    );
    assert_eq!(task(&node.run("g", json!({})).await, "t")["output"]["count"], 1);
}

/// The key for outside effects is the same for every attempt of a task run, and for no other.
#[tokio::test]
async fn idempotency_keys() {
    let (_world, node) = World::with_node().await;
    node.put_group(
        "g",
        json!({"tasks": {"a": {"script": "echo"}, "b": {"script": "echo"}}}),
    )
    .await;
    let (one, other) = (node.run("g", json!({})).await, node.run("g", json!({})).await);
    let mut keys = std::collections::BTreeSet::new();
    for run in [&one, &other] {
        for name in ["a", "b"] {
            let context = &task(run, name)["output"]["context"];
            keys.insert(context["idempotency_key"].as_str().unwrap().to_owned());
            assert_eq!(context["run"], run["id"]);
            assert_eq!((&context["group"], &context["task"]), (&json!("g"), &json!(name)));
            assert_eq!(
                (&context["attempt"], &context["trigger"]),
                (&json!(1), &json!("manual"))
            );
            assert_eq!(context["logical_time"], run["logical_time"]);
        }
    }
    assert_eq!(keys.len(), 4);
}

/// Writes what its params say: keys with values, null for a delete, each as often as it says.
const WRITES: &str = "export default async function run({ writes }, ctx) {
  for (const [key, value, times] of writes) {
    for (let n = 0; n < times; n += 1) {
      if (value === null) await ctx.state.delete(key);
      else await ctx.state.set(key, value);
    }
  }
  return null;
}
";

/// However many writes an attempt has, they count one by one: the last value stays, and the version rises by each of them. A
/// key that was deleted and written again is a new one.
#[tokio::test]
async fn many_writes_of_an_attempt_count_one_by_one() {
    let (world, node) = World::with_node().await;
    node.put_bytes("/v1/scripts/writes", "text/javascript", WRITES)
        .await
        .expect_status(201);
    node.put_group("g", one(json!({"script": "writes"}))).await;
    let sql = world.sql().await;
    sql.execute(
        "INSERT INTO heddle.script_state (group_id, key, value, version)
         SELECT g.id, k.key, '0', 5 FROM heddle.groups g,
                (SELECT 'many-' || n AS key FROM generate_series(0, 499) AS n
                 UNION ALL SELECT unnest(ARRAY['one', 'again', 'over'])) AS k WHERE g.name = 'g'",
        &[],
    )
    .await
    .unwrap();
    let state = async || {
        let rows = sql
            .query("SELECT key, value, version FROM heddle.script_state", &[])
            .await
            .unwrap();
        rows.iter()
            .map(|row| (row.get(0), (row.get(1), row.get(2))))
            .collect::<std::collections::BTreeMap<String, (String, i64)>>()
    };
    let write = async |writes: Value| {
        let run = node.run("g", json!({"params": {"writes": writes}})).await;
        assert_eq!(run["state"], "succeeded", "{run:#}");
    };
    write(json!([["one", 1, 999], ["one", "last", 1]])).await;
    assert_eq!(state().await["one"], ("\"last\"".to_owned(), 1_005));
    // A thousand keys, half of them new.
    let many: Vec<Value> = (0..1_000).map(|n| json!([format!("many-{n}"), n, 1])).collect();
    write(json!(many)).await;
    let found = state().await;
    for n in 0..1_000 {
        let (value, version) = &found[&format!("many-{n}")];
        assert_eq!(*value, n.to_string());
        assert!((*version == 6) == (n < 500) && *version >= 6, "{n}: {version}");
    }
    let before = world.now().await.timestamp_micros();
    write(json!([
        ["again", 1, 3],
        ["again", null, 1],
        ["again", 2, 1],
        ["over", 1, 2],
        ["over", null, 1],
        ["new", null, 1],
        ["new", 3, 2],
        ["one", 4, 2]
    ]))
    .await;
    let found = state().await;
    assert_eq!(found["one"], ("4".to_owned(), 1_007));
    assert!(!found.contains_key("over"), "{:?}", found["over"]);
    for (key, expect) in [("again", "2"), ("new", "3")] {
        let (value, version) = &found[key];
        assert_eq!(value, expect);
        assert!(*version >= before, "{key}: {version} is not new, it was {before}");
    }
}

/// Items with more effects than a transaction takes are all recorded, each with all of its effects, in as many transactions as
/// these need. Nothing can be recorded before all items have written: otherwise each might come alone.
#[tokio::test]
async fn effects_beyond_a_transaction_come_with_the_next() {
    let world = World::new().await;
    let node = world.options().env("HEDDLE_ALLOW_PRIVATE", "127.0.0.1").start().await;
    let receiver = Receiver::start(Answer::Status(200)).await;
    let source = "export default async function run(params, ctx) {
      for (let n = 0; n < 400; n += 1) await ctx.state.set(`${ctx.item}-${n}`, n);
      await fetch(params.url);
      return null;
    }";
    node.put_bytes("/v1/scripts/writes", "text/javascript", source)
        .await
        .expect_status(201);
    let params = json!({"url": receiver.url});
    let spec = json!({"script": "writes", "shards": 20, "params": params, "allow_hosts": ["127.0.0.1"]});
    node.put_group("g", one(spec)).await;
    let (sql, holder) = (world.sql().await, world.sql().await);
    holder
        .batch_execute("BEGIN; LOCK TABLE heddle.script_state IN SHARE MODE")
        .await
        .unwrap();
    let run = node.start("g", json!({})).await;
    requests(&receiver, 20).await;
    eventually("a recorder that waits", async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                        WHERE datname = current_database() AND wait_event_type = 'Lock'";
        (sql.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) > 0).then_some(())
    })
    .await;
    holder.batch_execute("COMMIT").await.unwrap();
    let run = node.ended(&run).await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let count = "SELECT count(*), count(DISTINCT split_part(key, '-', 1)), count(DISTINCT xmin::text)
                   FROM heddle.script_state";
    let row = sql.query_one(count, &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (8_000, 20));
    let transactions = row.get::<_, i64>(2);
    assert!(transactions >= 4, "{transactions}");
}
