//! What Postgres makes of the statements when it believes that the tables that work passes through are empty: they were
//! when it last looked, and a moment later a hundred thousand runs are in them. (An empty table's index is as cheap to
//! read whole as by its key: on a full one that is quadratic.) No node is run here; the statements are those that were
//! checked at compile time.

use heddle_tests::World;
use serde_json::Value;
use tokio_postgres::SimpleQueryMessage;

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

/// What is to look at all that there is, or does so only for an operator or once a minute.
const WHOLE: [&str; 2] = [
    // Nodes that are gone without attempts.
    "DELETE FROM heddle.nodes",
    // How long queues are and who is at work on them, for a list.
    "q.rate_count",
];

/// Scans of such tables that no index condition narrows, below a join.
fn unbounded(plan: &Value, joined: bool, found: &mut Vec<String>) {
    let text = |key: &str| plan[key].as_str().unwrap_or_default();
    let scans = text("Node Type").ends_with("Scan") && !["Tid Scan", "Bitmap Heap Scan"].contains(&text("Node Type"));
    if joined && scans && PASSED_THROUGH.contains(&text("Relation Name")) && plan["Index Cond"].is_null() {
        found.push(format!("{} of {}", text("Node Type"), text("Relation Name")));
    }
    for below in plan["Plans"].as_array().into_iter().flatten() {
        // A limit over a sub-select that runs once is a queue's head.
        let once = below["Parent Relationship"] == "InitPlan" || below["Node Type"] == "Limit";
        let joined = !once && (joined || text("Node Type") == "Nested Loop");
        unbounded(below, joined, found);
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
    // As a node's connections are, and as its plans are after the fifth time.
    sql.batch_execute(
        "SET search_path = public; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
         SET plan_cache_mode = force_generic_plan",
    )
    .await
    .expect("settings");
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../.sqlx");
    let mut looked_at = 0;
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(directory).expect("the checked statements") {
        let entry = entry.expect("an entry");
        let described: Value = serde_json::from_slice(&std::fs::read(entry.path()).expect("a file")).expect("JSON");
        let statement = described["query"].as_str().expect("a statement");
        if !PASSED_THROUGH
            .iter()
            .any(|table| statement.contains(&format!("heddle.{table}")))
            || WHOLE.iter().any(|words| statement.contains(words))
        {
            continue;
        }
        let parameters = described["describe"]["parameters"]["Left"]
            .as_array()
            .map_or(0, Vec::len);
        let nulls = vec!["NULL"; parameters].join(", ");
        let execute = if parameters == 0 {
            "EXECUTE one".to_owned()
        } else {
            format!("EXECUTE one ({nulls})")
        };
        sql.batch_execute(&format!("PREPARE one AS {statement}"))
            .await
            .expect(statement);
        let lines = sql
            .simple_query(&format!("EXPLAIN (FORMAT json) {execute}"))
            .await
            .expect(statement);
        let plan: String = lines
            .iter()
            .filter_map(|line| match line {
                SimpleQueryMessage::Row(row) => row.get(0),
                _ => None,
            })
            .collect();
        let plan: Value = serde_json::from_str(&plan).expect("a plan");
        sql.batch_execute("DEALLOCATE one").await.expect("forgotten");
        looked_at += 1;
        let mut found = Vec::new();
        unbounded(&plan[0]["Plan"], false, &mut found);
        if !found.is_empty() {
            wrong.push(format!("{}\n{statement}\n", found.join(", ")));
        }
    }
    assert!(looked_at > 80, "only {looked_at} statements");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
