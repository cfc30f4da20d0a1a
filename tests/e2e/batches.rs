//! What statements of batches read grows with the batch, not with its square; what comes next on a queue is read from
//! its front, however deep it is. Told by the pages that Postgres looks at, with the plans that it makes for a connection
//! of a node: for these arguments, and for any.

use heddle_tests::{Node, World};
use serde_json::{Value, json};
use tokio_postgres::{Client, SimpleQueryMessage};

/// As many claims as one request ends.
const BATCH: u64 = 1_000;

/// Pages that one row of a batch may cost: some eight tables' rows, each with its indexes. (Where each look-up went through
/// all keys of the batch it was 390 with 200 rows, and more than a thousand with as many as here.)
const PAGES_PER_ROW: u64 = 120;

/// As the connections of a node are.
const SETTINGS: &str =
    "SET search_path = public; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";

/// What the plan's top node, with all below it, looks at; nothing that it does stays.
async fn pages(sql: &Client, prepared: &str, before: &str, execute: &str, plans: &str) -> u64 {
    sql.batch_execute(&format!(
        "{SETTINGS}; PREPARE one AS {prepared}; BEGIN; SET LOCAL plan_cache_mode = {plans}; {before}"
    ))
    .await
    .expect("a statement");
    let lines = sql
        .simple_query(&format!(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT json) EXECUTE one ({execute})"
        ))
        .await
        .expect("a plan");
    sql.batch_execute("ROLLBACK; DEALLOCATE one")
        .await
        .expect("rolled back");
    let text: String = lines
        .iter()
        .filter_map(|line| match line {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect();
    let plan: Value = serde_json::from_str(&text).expect("a plan");
    let pages = |key: &str| plan[0]["Plan"][key].as_u64().expect("pages");
    pages("Shared Hit Blocks") + pages("Shared Read Blocks")
}

/// The pages of a statement must be so many at most, with both kinds of plans.
async fn looks_at(sql: &Client, what: &str, (prepared, before, execute): (&str, &str, &str), most: u64) {
    for plans in ["force_custom_plan", "force_generic_plan"] {
        let pages = pages(sql, prepared, before, execute, plans).await;
        assert!(
            pages > 0 && pages <= most,
            "{what} looks at {pages} pages with {plans}, not {most}"
        );
    }
}

/// A column of what is claimed, as an array.
async fn column(sql: &Client, name: &str, array: &str) -> String {
    let text =
        format!("SELECT quote_literal(array_agg({name} ORDER BY run)::text) || '::{array}[]' FROM heddle.queue_claims");
    sql.query_one(&text, &[]).await.expect("what is claimed").get(0)
}

/// Runs of one task each in a queue.
async fn submit(node: &Node, count: u64) {
    node.put_group("g", json!({"tasks": {"t": {"queue": "q"}}})).await;
    let runs = json!({"runs": vec![json!({}); count as usize]});
    node.post("/v1/groups/g/runs/batch", runs).await.expect_status(202);
}

#[tokio::test]
async fn ends_of_a_thousand_claims() {
    let world = World::new().await;
    let node = world.node().await;
    submit(&node, BATCH).await;
    let ask = json!({"worker": "w", "max": BATCH, "lease": "1h"});
    let claims = node.post("/v1/queues/q/claims", ask).await.expect_status(200);
    assert_eq!(claims["items"].as_array().map(Vec::len), Some(BATCH as usize));
    let sql = world.sql().await;
    let (runs, attempts) = (
        column(&sql, "run", "uuid").await,
        column(&sql, "attempt", "integer").await,
    );
    let (leases, ids) = (column(&sql, "lease", "bigint").await, column(&sql, "id", "uuid").await);
    let (tasks, items) = (
        column(&sql, "task", "smallint").await,
        column(&sql, "item", "integer").await,
    );
    let all = |value: &str| format!("array_fill({value}, ARRAY[{BATCH}])");
    let (state, progress) = (all("3::smallint"), all(r"'\x00'::bytea"));
    let (none, kind, now) = (all("NULL::text"), all("NULL::smallint"), all("now()"));
    let sole = format!(
        "{runs}, {attempts}, {leases}, {ids}, {state}, {progress}, {none}, {}, {now}, {none}, {kind}, {none}",
        all("1::smallint")
    );
    let keys = format!("{runs}, {tasks}, {items}, {attempts}");
    let lease = "UPDATE heddle.running SET lease = 7";
    let own = format!(
        "{runs}, {attempts}, {state}, {progress}, {none}, {}, {}, {now}, {none}, {kind}, {none}, {none}, {}, {}, 7,
         '00000000-0000-7000-8000-000000000001', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}', '{{}}'",
        all("1::smallint"),
        all("false"),
        all("1::bigint"),
        all("1::bigint")
    );
    let (ended, finished) = (
        format!("{keys}, {}", all("7::bigint")),
        format!("{runs}, {state}, {progress}, {none}, now(), {}", all("false")),
    );
    let (locked, beats) = (
        format!("{keys}, {leases}, {ids}, false"),
        format!("{keys}, {leases}, {ids}, {}", all("NULL::bigint")),
    );
    let interrupted = format!("{runs}, {tasks}, {items}, now()");
    for (what, statement, before, arguments) in [
        (
            "queue_complete_sole",
            include_str!("../../runner/store/src/sql/queue_complete_sole.sql"),
            "",
            &sole,
        ),
        (
            "queue_lock_claims",
            include_str!("../../runner/store/src/sql/queue_lock_claims.sql"),
            "",
            &locked,
        ),
        (
            "queue_heartbeat",
            include_str!("../../runner/store/src/sql/queue_heartbeat.sql"),
            "",
            &beats,
        ),
        (
            "complete_sole",
            include_str!("../../runner/store/src/sql/complete_sole.sql"),
            lease,
            &own,
        ),
        (
            "lock_ended",
            include_str!("../../runner/store/src/sql/lock_ended.sql"),
            lease,
            &ended,
        ),
        (
            "finish_runs",
            include_str!("../../runner/store/src/sql/finish_runs.sql"),
            "",
            &finished,
        ),
        (
            "interrupt",
            include_str!("../../runner/store/src/sql/interrupt.sql"),
            "",
            &interrupted,
        ),
    ] {
        looks_at(&sql, what, (statement, before, arguments), BATCH * PAGES_PER_ROW).await;
    }
}

#[tokio::test]
async fn ends_of_assignments() {
    const ENDS: u64 = 512;
    let world = World::new().await;
    let sql = world.sql().await;
    sql.batch_execute(&format!(
        "INSERT INTO heddle.audiences (name, created_at, updated_at) VALUES ('gid_g', now(), now());
         INSERT INTO heddle.offers (name, audience, version, kind, starts_at, stock, repeats, return_failed, enabled, spec,
                                    created_at, updated_at)
              SELECT 'o' || n, 'gid_g', 1, 1, now() - interval '10 hours', 1000, false, false, true, '{{}}', now(), now()
                FROM generate_series(0, 99) AS n;
         INSERT INTO heddle.offer_versions (offer_id, version, params) SELECT id, 1, '{{}}' FROM heddle.offers;
         INSERT INTO heddle.members (audience, uid) SELECT 'gid_g', 'u' || n FROM generate_series(0, {ENDS} - 1) AS n;
         INSERT INTO heddle.holds (uid, id, offer_id, version, audience, occurrence, assigned_at)
              SELECT 'u' || n, (left(heddle.uuid_floor(now())::text, 24) || lpad(to_hex(n), 12, '0'))::uuid,
                     (SELECT min(id) FROM heddle.offers) + n % 100, 1, 'gid_g', now() - interval '9 hours', now()
                FROM generate_series(0, {ENDS} - 1) AS n"
    ))
    .await
    .expect("holds");
    let held = sql
        .query_one(
            "SELECT quote_literal(array_agg(id ORDER BY uid)::text) || '::uuid[]',
                    quote_literal(array_agg(uid ORDER BY uid)::text) || '::text[]' FROM heddle.holds",
            &[],
        )
        .await
        .expect("who holds");
    let (ids, uids): (String, String) = (held.get(0), held.get(1));
    let end =
        format!("{ids}, {uids}, array_fill(1::smallint, ARRAY[{ENDS}]), array_fill('1'::text, ARRAY[{ENDS}]), now()");
    let statement = include_str!("../../runner/store/src/sql/end_holds.sql");
    looks_at(&sql, "end_holds", (statement, "", &end), ENDS * PAGES_PER_ROW).await;
    let give = format!(
        "{ids}, 43200000000, heddle.uuid_floor(now() - interval '12 hours'), heddle.uuid_floor(now() + interval '1 hour')"
    );
    let statement = include_str!("../../runner/store/src/sql/give.sql");
    let take = "SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off";
    looks_at(&sql, "give", (statement, take, &give), ENDS * PAGES_PER_ROW).await;
}

/// The plan does not know how many rows a claim wants, and would rather sort the whole queue each time.
#[tokio::test]
async fn the_front_of_a_deep_queue() {
    let world = World::new().await;
    let node = world.node().await;
    submit(&node, 10).await;
    let sql = world.sql().await;
    sql.batch_execute(
        "INSERT INTO heddle.queue_ready (run, task, item, attempt, queue, priority, turn, tags, ready_at)
              SELECT gen_random_uuid(), 0, -1, 1, 'deep', 0, n % 1000, '{}', now() FROM generate_series(1, 30000) AS n;
         ANALYZE heddle.queue_ready",
    )
    .await
    .expect("a deep queue");
    let front = "SELECT * FROM heddle.queue_front($1, $2, $3)";
    // A page or two of the index for each of ten rows, and the row: of all thirty thousand it would be hundreds.
    looks_at(&sql, "queue_front", (front, "", "'deep', '{}', 10"), 120).await;
    let work = "SELECT true FROM heddle.queue_ready r WHERE r.queue = $1
                 ORDER BY r.queue, r.priority DESC, r.turn, r.run LIMIT 1";
    looks_at(&sql, "a look at a queue", (work, "", "'deep'"), 20).await;
}
