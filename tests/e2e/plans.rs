//! Postgres' plans for the statements when it believes that the tables through which work passes are empty: they were
//! when they were last analysed, and a moment later a hundred thousand runs are in them. (The whole index of an empty
//! table is as cheap to read as one key: on a full table that is quadratic.) No node runs here; the statements are
//! those that were checked at compile time.

use std::collections::HashMap;

use heddle_tests::{World, checked_statements};
use serde_json::Value;
use tokio_postgres::{Client, SimpleQueryMessage};

/// Rows of work: here now and gone in a moment.
const PASSED_THROUGH: [&str; 13] = [
    "runs_live",
    "ready",
    "ready_pooled",
    "running",
    "timers",
    "turnstiles",
    "waits",
    "needs",
    "queue_ready",
    "queue_claims",
    "settlements",
    "starts",
    "link_events",
];

/// Statements that read everything by design, or only for an operator or once a minute.
const WHOLE: [&str; 3] = [
    // Nodes that are gone without attempts.
    "DELETE FROM heddle.nodes",
    // How long queues are and who is at work on them, for a list.
    "q.rate_count",
    // Which versions runs under way have taken: once for a page of versions, when a runtime is retired or a node starts.
    "WITH under_way AS MATERIALIZED",
];

/// The plan that this `EXPLAIN (FORMAT json)` tells.
pub(crate) async fn plan(sql: &Client, explain: &str) -> Value {
    let lines = sql.simple_query(explain).await;
    let lines = lines.unwrap_or_else(|error| panic!("{explain}: {error:?}"));
    let text: String = lines
        .iter()
        .filter_map(|line| match line {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect();
    let mut plans: Value = serde_json::from_str(&text).expect("a plan");
    plans[0]["Plan"].take()
}

/// Scans of such tables that no condition on an index's first column narrows, below a join. (A condition on another column
/// alone reads all of the index.)
fn unbounded(plan: &Value, joined: bool, firsts: &HashMap<String, String>, found: &mut Vec<String>) {
    let text = |key: &str| plan[key].as_str().unwrap_or_default();
    let scans = text("Node Type").ends_with("Scan") && !["Tid Scan", "Bitmap Heap Scan"].contains(&text("Node Type"));
    let by_key = firsts.get(text("Index Name")).is_some_and(|column| {
        let words = text("Index Cond").split(|sign: char| !sign.is_alphanumeric() && sign != '_');
        words.into_iter().any(|word| word == column)
    });
    let work = PASSED_THROUGH.contains(&text("Relation Name")) || text("Node Type") == "Bitmap Index Scan";
    if joined && scans && work && firsts.contains_key(text("Index Name")) != by_key {
        found.push(format!("{} of {}", text("Node Type"), text("Index Name")));
    }
    if joined && scans && PASSED_THROUGH.contains(&text("Relation Name")) && plan["Index Name"].is_null() {
        found.push(format!("{} of {}", text("Node Type"), text("Relation Name")));
    }
    for below in plan["Plans"].as_array().into_iter().flatten() {
        // A limit over a sub-select that runs once is a queue's head.
        let once = below["Parent Relationship"] == "InitPlan" || below["Node Type"] == "Limit";
        let joined = !once && (joined || text("Node Type") == "Nested Loop");
        unbounded(below, joined, firsts, found);
    }
}

/// Joins of rows of such tables with arguments that read all of the one for each of the other.
fn quadratic(plan: &Value, found: &mut Vec<String>) {
    let below: Vec<&Value> = plan["Plans"].as_array().into_iter().flatten().collect();
    if plan["Node Type"] == "Nested Loop"
        && !plan["Join Filter"].is_null()
        && let [.., outer, inner] = below.as_slice()
        && ["Function Scan", "CTE Scan", "Materialize"]
            .map(Value::from)
            .contains(&inner["Node Type"])
        && let Some(table) = passed_through(outer)
    {
        found.push(format!("{} for each row of {table}", inner["Node Type"]));
    }
    below.into_iter().for_each(|below| quadratic(below, found));
}

fn passed_through(plan: &Value) -> Option<&str> {
    let table = plan["Relation Name"].as_str();
    let below = || plan["Plans"].as_array().into_iter().flatten().find_map(passed_through);
    table.filter(|table| PASSED_THROUGH.contains(table)).or_else(below)
}

/// Something of a type, eight hundred times if it is an array: a batch, as the planner sees it the first five times.
fn given(of: &str) -> String {
    let (element, many) = match of.strip_suffix("[]") {
        Some(element) => (element, true),
        None => (of, false),
    };
    let value = match element {
        "uuid" => "00000000-0000-7000-8000-000000000000",
        "boolean" => "true",
        "jsonb" => "{}",
        "bytea" => "\\x00",
        "timestamp with time zone" => "2026-01-01",
        "interval" => "1s",
        _ => "1",
    };
    match many {
        true => format!("array_fill('{value}'::{element}, ARRAY[800])"),
        false => format!("'{value}'::{of}"),
    }
}

#[tokio::test]
async fn statements_reach_their_rows_by_key_whatever_the_statistics_say() {
    let world = World::new().await;
    let sql = world.sql().await;
    for table in PASSED_THROUGH {
        sql.batch_execute(&format!("ANALYZE heddle.{table}"))
            .await
            .expect("analysed");
    }
    // As a node's connections are; plans are looked at as they are made for a batch, and as they are after the fifth time.
    sql.batch_execute(
        "SET search_path = public; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off",
    )
    .await
    .expect("settings");
    let firsts: HashMap<String, String> = sql
        .query(
            "SELECT c.relname::text, a.attname::text
               FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
               JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
              WHERE i.indrelid = ANY ($1::text[]::regclass[])",
            &[&PASSED_THROUGH.map(|table| format!("heddle.{table}")).to_vec()],
        )
        .await
        .expect("indexes")
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    let mut looked_at = 0;
    let mut wrong = Vec::new();
    for statement in checked_statements() {
        if !PASSED_THROUGH
            .iter()
            .any(|table| statement.contains(&format!("heddle.{table}")))
            || WHOLE.iter().any(|words| statement.contains(words))
        {
            continue;
        }
        sql.batch_execute(&format!("PREPARE one AS {statement}"))
            .await
            .expect(&statement);
        let types: Vec<String> = sql
            .query_one(
                "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = 'one'",
                &[],
            )
            .await
            .expect("prepared")
            .get(0);
        let mut found = Vec::new();
        for custom in [false, true] {
            let values: Vec<String> = types
                .iter()
                .map(|of| if custom { given(of) } else { "NULL".to_owned() })
                .collect();
            let mode = if custom {
                "force_custom_plan"
            } else {
                "force_generic_plan"
            };
            sql.batch_execute(&format!("SET plan_cache_mode = {mode}"))
                .await
                .expect("a setting");
            let execute = match values.is_empty() {
                true => "EXECUTE one".to_owned(),
                false => format!("EXECUTE one ({})", values.join(", ")),
            };
            let plan = plan(&sql, &format!("EXPLAIN (FORMAT json) {execute}")).await;
            quadratic(&plan, &mut found);
            unbounded(&plan, false, &firsts, &mut found);
        }
        sql.batch_execute("DEALLOCATE one").await.expect("forgotten");
        looked_at += 1;
        if !found.is_empty() {
            wrong.push(format!("{}\n{statement}\n", found.join(", ")));
        }
    }
    assert!(looked_at > 80, "only {looked_at} statements");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What polls and takes read of assignments does not grow with what others were given, even while the planner believes
/// that nobody was given anything: a partition that was last analysed while it was empty, like tomorrow's at midnight.
#[tokio::test]
async fn polls_read_what_is_their_users() {
    let world = World::new().await;
    let sql = world.sql().await;
    sql.batch_execute(
        "SET search_path = public;
         DO $$
         DECLARE partition regclass;
         BEGIN
             FOR partition IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'heddle.assignments'::regclass LOOP
                 EXECUTE format('ALTER TABLE %s SET (autovacuum_enabled = off)', partition);
             END LOOP;
         END $$;
         ALTER TABLE heddle.holds SET (autovacuum_enabled = off);
         ALTER TABLE heddle.members SET (autovacuum_enabled = off);
         ANALYZE heddle.assignments; ANALYZE heddle.holds; ANALYZE heddle.members;
         INSERT INTO heddle.audiences (name, created_at, updated_at) VALUES ('gid_g', now(), now());
         INSERT INTO heddle.offers (name, audience, version, kind, starts_at, stock, repeats, return_failed, enabled, spec,
                                    created_at, updated_at)
              VALUES ('o', 'gid_g', 1, 1, now() - interval '10 hours', 1000000, false, false, true, '{}', now(), now());
         INSERT INTO heddle.offer_versions (offer_id, version, params) SELECT id, 1, '{}' FROM heddle.offers;
         INSERT INTO heddle.members (audience, uid) SELECT 'gid_g', 'u' || n FROM generate_series(0, 4999) AS n;
         INSERT INTO heddle.assignments (id, offer_id, version, uid, audience, occurrence, state, assigned_at, finished_at)
              SELECT (left(heddle.uuid_floor(now())::text, 24) || lpad(to_hex(n), 12, '0'))::uuid, o.id, 1,
                     'u' || n % 5000, 'gid_g', now() - interval '10 hours' + n / 5000 * interval '1 hour', 1, now(), now()
                FROM generate_series(0, 49999) AS n, heddle.offers o;
         INSERT INTO heddle.holds (uid, id, offer_id, version, audience, occurrence, assigned_at)
              SELECT 'u' || n, (left(heddle.uuid_floor(now())::text, 24) || lpad(to_hex(n + 100000), 12, '0'))::uuid, o.id, 1,
                     'gid_g', now() - interval '9 hours', now()
                FROM generate_series(0, 99) AS n, heddle.offers o;
         SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off",
    )
    .await
    .expect("a day's assignments");
    const USERS: u64 = 100;
    let values = sql
        .query_one(
            "SELECT quote_literal(array_agg(uid)::text), quote_literal(array_agg(id)::text),
                    quote_literal((now() - interval '12 hours')::text),
                    quote_literal(heddle.uuid_floor(now() - interval '12 hours')::text),
                    quote_literal(heddle.uuid_floor(now() + interval '1 hour')::text)
               FROM heddle.holds",
            &[],
        )
        .await
        .expect("who polls");
    let [uids, ids, reach, first, end]: [String; 5] = std::array::from_fn(|index| values.get(index));
    let look = include_str!("../../runner/store/src/sql/user_facts.sql");
    let give = include_str!("../../runner/store/src/sql/give.sql");
    sql.batch_execute(&format!(
        "PREPARE look (text[], timestamptz, uuid, uuid) AS {look};
         PREPARE give (uuid[], bigint, uuid, uuid) AS {give}"
    ))
    .await
    .expect("the statements");
    // As `Store::take` begins.
    let take = "BEGIN; SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off";
    for (begin, execute) in [
        ("BEGIN", format!("look ({uids}, {reach}, {first}, {end})")),
        (take, format!("give ({ids}, 43200000000, {first}, {end})")),
    ] {
        for plans in ["force_generic_plan", "force_custom_plan"] {
            sql.batch_execute(&format!("{begin}; SET LOCAL plan_cache_mode = {plans}"))
                .await
                .expect("a transaction");
            let plan = plan(
                &sql,
                &format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT json) EXECUTE {execute}"),
            )
            .await;
            sql.batch_execute("ROLLBACK").await.expect("rolled back");
            let pages = |key: &str| plan[key].as_u64().unwrap_or(0);
            let pages = pages("Shared Hit Blocks") + pages("Shared Read Blocks");
            // Some thirty for each: by everybody's ids it would be more than two hundred.
            assert!(
                pages > USERS && pages < 60 * USERS,
                "{pages} pages with {plans}\n{plan:#}"
            );
        }
    }
}
