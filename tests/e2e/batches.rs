//! The cost of statements for batches grows with the batch, not with its square, and the next rows of a queue are read
//! from its front, however deep it is. Measured by the rows that the nodes of their plans process, with the plans that
//! Postgres makes for a connection of a node, for these arguments and for any, before and after it has analysed the
//! tables.

use heddle_tests::{Node, World, checked_statement};
use serde_json::{Value, json};
use tokio_postgres::Client;

use crate::plans::plan;

/// As many claims as one request ends.
const BATCH: u64 = 1_000;

/// Rows that a plan's nodes may handle for one row of a batch: a few in each of some forty nodes. By the square of the
/// batch it would be a thousand.
const STEPS_PER_ROW: u64 = 150;

/// As the connections of a node are.
const SETTINGS: &str =
    "SET search_path = public; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off";

/// The tables through which work passes; they are not analysed during a test.
const PASSED_THROUGH: [&str; 5] = ["runs_live", "running", "queue_ready", "queue_claims", "holds"];

/// How many rows a plan's node and those below it process: what they read, discard, and pass on.
fn steps(node: &Value) -> f64 {
    let number = |key: &str| node[key].as_f64().unwrap_or(0.0);
    let each = number("Actual Rows")
        + number("Rows Removed by Filter")
        + number("Rows Removed by Join Filter")
        + number("Rows Removed by Index Recheck");
    let below = node["Plans"].as_array().into_iter().flatten();
    number("Actual Loops") * each + below.map(steps).sum::<f64>()
}

/// The work of a statement, in rows and in pages that it reads; it is rolled back.
async fn explained(sql: &Client, prepared: &str, before: &str, execute: &str, plans: &str) -> (u64, u64, String) {
    sql.batch_execute(&format!("{SETTINGS}; PREPARE one AS {prepared}"))
        .await
        .expect("a statement");
    let mut top = Value::Null;
    // Twice: at first a connection also reads what the catalogue says of functions and tables.
    for _ in 0..2 {
        sql.batch_execute(&format!("BEGIN; SET LOCAL plan_cache_mode = {plans}; {before}"))
            .await
            .expect("a transaction");
        top = plan(
            sql,
            &format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT json) EXECUTE one ({execute})"),
        )
        .await;
        sql.batch_execute("ROLLBACK").await.expect("rolled back");
    }
    sql.batch_execute("DEALLOCATE one").await.expect("forgotten");
    let pages = |key: &str| top[key].as_u64().expect("pages");
    let pages = pages("Shared Hit Blocks") + pages("Shared Read Blocks");
    (steps(&top) as u64, pages, top.to_string())
}

/// A statement and its arguments, with what has to be done before.
type Asked<'a> = (&'a str, &'a str, &'a str);

async fn does(sql: &Client, what: &str, (prepared, before, execute): Asked<'_>, most: u64) {
    for plans in ["force_custom_plan", "force_generic_plan"] {
        let (steps, pages, plan) = explained(sql, prepared, before, execute, plans).await;
        assert!(
            steps > 0 && steps <= most && pages <= most,
            "{what}, {plans}: {steps} rows and {pages} pages, not {most}\n{plan}"
        );
    }
}

/// The planner believes that the tables are empty: they were when they were last analysed.
async fn believed_empty(sql: &Client) {
    for table in PASSED_THROUGH {
        let text = format!("ALTER TABLE heddle.{table} SET (autovacuum_enabled = off); ANALYZE heddle.{table}");
        sql.batch_execute(&text).await.expect("looked at");
    }
}

async fn looked_at(sql: &Client) {
    for table in PASSED_THROUGH {
        sql.batch_execute(&format!("ANALYZE heddle.{table}"))
            .await
            .expect("looked at");
    }
}

/// A column of what is claimed, as an array.
async fn column(sql: &Client, name: &str, array: &str) -> String {
    let text =
        format!("SELECT quote_literal(array_agg({name} ORDER BY run)::text) || '::{array}[]' FROM heddle.queue_claims");
    sql.query_one(&text, &[]).await.expect("what is claimed").get(0)
}

/// The statement with these words, among those that were checked at compile time.
fn checked(words: &str) -> String {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../.sqlx");
    let files = std::fs::read_dir(directory).expect("the checked statements");
    let statement = files
        .map(|file| std::fs::read(file.expect("an entry").path()).expect("a file"))
        .map(|file| serde_json::from_slice::<Value>(&file).expect("JSON"))
        .find_map(|file| {
            file["query"]
                .as_str()
                .filter(|text| text.contains(words))
                .map(str::to_owned)
        });
    statement.expect(words)
}

/// Runs of one task each in a queue.
async fn submit(node: &Node, count: u64) {
    node.put_group("g", json!({"tasks": {"t": {"queue": "q"}}})).await;
    let runs = json!({"runs": vec![json!({}); count as usize]});
    node.post("/v1/groups/g/runs/batch", runs).await.expect_status(202);
}

#[tokio::test]
async fn ends_of_a_thousand_claims() {
    let (world, node) = World::with_node().await;
    let sql = world.sql().await;
    believed_empty(&sql).await;
    submit(&node, BATCH).await;
    let ask = json!({"worker": "w", "max": BATCH, "lease": "1h"});
    let claims = node.post("/v1/queues/q/claims", ask).await.expect_status(200);
    assert_eq!(claims["items"].as_array().map(Vec::len), Some(BATCH as usize));
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
        format!(
            "{runs}, {state}, {progress}, {none}, now(), {no}, {kind}, {no}",
            no = all("false")
        ),
    );
    let (locked, beats) = (
        format!("{keys}, {leases}, {ids}, false"),
        format!("{keys}, {leases}, {ids}, {}", all("NULL::bigint")),
    );
    let interrupted = format!("{runs}, {tasks}, {items}, now()");
    let (single_task, finish) = (
        checked_statement("complete_single_task"),
        checked_statement("finish_runs"),
    );
    let statements: [(&str, &str, &str, &str); 6] = [
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
        ("complete_single_task", &single_task, lease, &own),
        (
            "lock_ended",
            include_str!("../../runner/store/src/sql/lock_ended.sql"),
            lease,
            &ended,
        ),
        ("finish_runs", &finish, "", &finished),
        (
            "interrupt",
            include_str!("../../runner/store/src/sql/interrupt.sql"),
            "",
            &interrupted,
        ),
    ];
    for (what, statement, before, arguments) in statements {
        does(&sql, what, (statement, before, arguments), BATCH * STEPS_PER_ROW).await;
    }
    looked_at(&sql).await;
    for (what, statement, before, arguments) in statements {
        does(&sql, what, (statement, before, arguments), BATCH * STEPS_PER_ROW).await;
    }
}

#[tokio::test]
async fn ends_of_assignments() {
    const ENDS: u64 = 512;
    let world = World::new().await;
    let sql = world.sql().await;
    believed_empty(&sql).await;
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
    let ends = (statement, "", end.as_str());
    let give = format!(
        "{ids}, 43200000000, heddle.uuid_floor(now() - interval '12 hours'), heddle.uuid_floor(now() + interval '1 hour')"
    );
    let statement = include_str!("../../runner/store/src/sql/give.sql");
    let take = "SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off";
    let gives = (statement, take, give.as_str());
    does(&sql, "end_holds", ends, ENDS * STEPS_PER_ROW).await;
    does(&sql, "give", gives, ENDS * STEPS_PER_ROW).await;
    looked_at(&sql).await;
    does(&sql, "end_holds", ends, ENDS * STEPS_PER_ROW).await;
    does(&sql, "give", gives, ENDS * STEPS_PER_ROW).await;
}

/// The plan does not know how many rows a claim wants, and would rather sort the whole queue each time.
#[tokio::test]
async fn the_front_of_a_deep_queue() {
    let (world, node) = World::with_node().await;
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
    does(&sql, "queue_front", (front, "", "'deep', '{}', 10"), 120).await;
    let work = "SELECT true FROM heddle.queue_ready r WHERE r.queue = $1
                 ORDER BY r.queue, r.priority DESC, r.turn, r.run LIMIT 1";
    does(&sql, "a look at a queue", (work, "", "'deep'"), 20).await;
    // Many short queues beside a long one: the planner takes that one for short too. 64 rows with other tags are passed
    // over.
    sql.batch_execute(
        "INSERT INTO heddle.queue_ready (run, task, item, attempt, queue, priority, turn, tags, ready_at)
              SELECT gen_random_uuid(), 0, -1, 1, CASE WHEN n % 2 = 0 THEN 'tagged' ELSE 'short' || n END, 0, n % 1000,
                     '{eu}', now() FROM generate_series(1, 6000) AS n;
         ANALYZE heddle.queue_ready",
    )
    .await
    .expect("short queues");
    let head = "SELECT * FROM heddle.queue_head($1, $2, $3)";
    // Behind them, it searches by halving: some three pages for each look.
    does(&sql, "queue_head", (head, "", "'tagged', 0, '{}'"), 160).await;
}

/// A new row of a queue never stands before all that it could wait behind, however many rows with other tags are in front,
/// and not all of these are read.
#[tokio::test]
async fn the_head_of_a_queue_behind_rows_that_nobody_takes() {
    let world = World::new().await;
    let sql = world.sql().await;
    // Each queue begins with rows that only workers of `eu` take.
    sql.batch_execute(
        "INSERT INTO heddle.queue_ready (run, task, item, attempt, queue, priority, turn, tags, ready_at)
              SELECT gen_random_uuid(), 0, -1, 1, q.name, 0, n, CASE WHEN n <= q.others THEN '{eu}'::text[] ELSE '{}' END, now()
                FROM (VALUES ('few', 63, 1063), ('many', 64, 1064), ('deep', 10000, 11000), ('others', 5000, 5000))
                     AS q (name, others, every)
               CROSS JOIN LATERAL generate_series(1, q.every) AS n;
         UPDATE heddle.queue_ready SET turn = turn + 1000000 WHERE queue = 'many' AND turn > 64;
         INSERT INTO heddle.queue_ready (run, task, item, attempt, queue, priority, turn, tags, ready_at)
              SELECT gen_random_uuid(), 0, -1, 1, 'together', 0, 7, '{eu}', now() FROM generate_series(1, 100);
         ANALYZE heddle.queue_ready",
    )
    .await
    .expect("queues");
    for (queue, tags, head, last) in [
        ("few", "{}", Some(64), None),
        ("many", "{}", Some(1_000_065), None),
        ("many", "{a100}", Some(1_000_065), None),
        ("many", "{a100,eu}", Some(1), None),
        ("deep", "{}", Some(10_001), None),
        ("others", "{}", None, Some(5_000)),
        ("together", "{}", None, Some(7)),
        ("nothing", "{}", None, None),
    ] {
        let text = format!(
            "SELECT head, CASE WHEN head IS NULL THEN last END FROM heddle.queue_head('{queue}', 0::smallint, '{tags}')"
        );
        let found = sql.query_one(&text, &[]).await.expect("a head");
        let found: (Option<i64>, Option<i64>) = (found.get(0), found.get(1));
        assert_eq!(found, (head, last), "{queue} with {tags}");
    }
    let head = "SELECT * FROM heddle.queue_head($1, $2, $3)";
    for given in ["'deep', 0, '{}'", "'others', 0, '{}'", "'many', 0, '{}'"] {
        does(&sql, "queue_head", (head, "", given), 200).await;
    }
}

/// The oldest assignment that is due: many older ones are of one offer, which a task needs. It is looked up once.
#[tokio::test]
async fn the_oldest_assignment_that_is_due() {
    let world = World::new().await;
    let sql = world.sql().await;
    sql.batch_execute(
        "INSERT INTO heddle.offers (name, audience, version, kind, starts_at, repeats, return_failed, enabled, spec, run,
                                    task, attempt, created_at, updated_at)
         VALUES ('task', 'gid_g', 1, 1, now(), false, false, true, '{}', gen_random_uuid(), 0, 1, now(), now());
         INSERT INTO heddle.assignments (id, offer_id, version, uid, audience, occurrence, state, assigned_at, finished_at)
              SELECT lpad(to_hex(n), 32, '0')::uuid, o.id, 1, 'u' || n, 'gid_g', now(), 1, now(), now()
                FROM heddle.offers o CROSS JOIN generate_series(1, 10000) AS n;
         ANALYZE heddle.offers, heddle.assignments",
    )
    .await
    .expect("assignments");
    let oldest = checked("AS assignment,");
    let given = "now(), now(), 'ffffffff-0000-7000-8000-000000000000', now(), 1000000";
    for plans in ["force_custom_plan", "force_generic_plan"] {
        let (_, pages, plan) = explained(&sql, &oldest, "", given, plans).await;
        assert!(pages <= 2_000, "{plans}: {pages} pages for 10,000 assignments\n{plan}");
    }
}

/// Half of a user group's members leave, and as many others are given.
#[tokio::test]
async fn members_who_are_replaced() {
    let world = World::new().await;
    let sql = world.sql().await;
    let replace = checked("EXCEPT SELECT UNNEST($2::text[])");
    sql.batch_execute(&format!(
        "ALTER TABLE heddle.members SET (autovacuum_enabled = off);
         ANALYZE heddle.members;
         INSERT INTO heddle.audiences (name, created_at, updated_at) VALUES ('gid_g', now(), now());
         INSERT INTO heddle.members (audience, uid) SELECT 'gid_g', 'u' || n FROM generate_series(1, {BATCH}) AS n"
    ))
    .await
    .expect("members");
    let others: Vec<String> = (BATCH / 2..BATCH + BATCH / 2).map(|n| format!("u{n}")).collect();
    let given = format!("'gid_g', '{{{}}}', {BATCH}", others.join(","));
    for _ in 0..2 {
        does(&sql, "replace members", (&replace, "", &given), BATCH * STEPS_PER_ROW).await;
        sql.batch_execute("ANALYZE heddle.members").await.expect("looked at");
    }
}

/// A follower has read the logs of many items.
#[tokio::test]
async fn lines_that_a_follower_has_not_seen() {
    const RUN: &str = "00000000-0000-7000-8000-000000000000";
    let world = World::new().await;
    let sql = world.sql().await;
    let unseen = checked("AS s (task, item, attempt, next)");
    sql.batch_execute(&format!(
        "INSERT INTO heddle.logs (run, task, item, attempt, line, at, level, message)
              SELECT '{RUN}', 0, n, 1, line, now(), 2, 'x'
                FROM generate_series(1, {BATCH}) AS n, generate_series(0, 1) AS line"
    ))
    .await
    .expect("lines");
    let all = |value: &str| format!("array_fill({value}, ARRAY[{BATCH}])");
    let items: Vec<String> = (1..=BATCH).map(|n| n.to_string()).collect();
    let given = format!(
        "'{RUN}', NULL, NULL, NULL, {}, '{{{}}}', {}, {}, 100",
        all("0::smallint"),
        items.join(","),
        all("1"),
        all("1")
    );
    for _ in 0..2 {
        does(&sql, "unseen lines", (&unseen, "", &given), BATCH * STEPS_PER_ROW).await;
        sql.batch_execute("ANALYZE heddle.logs").await.expect("looked at");
    }
}
