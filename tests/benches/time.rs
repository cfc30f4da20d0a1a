//! How punctual Heddle is: `cargo bench -p heddle-tests --bench time [follow] [backfill] [schedules] [spread]`; without a
//! name, all.
//!
//! * `schedules`: a million enabled schedules of which a thousand are due each second, all at the whole second; how late
//!   their runs are made and begin, and what the statement that finds them reads. `spread`: one each millisecond.
//! * `backfill`: 1,461 daily runs of one task, from the request to the end.
//! * `follow`: how long after its last upstream's success a group that follows it begins.
//!
//! A node (`heddle serve`, release build) and a Postgres with `synchronous_commit` and fsync on share this machine with
//! the client that measures. Times are those that the runs themselves tell. Nothing is asserted but that nothing is
//! missing; `docs/benchmarks.md` keeps what was measured.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use heddle_tests::bench::{Fixture, Parts, now, processor_time};
use heddle_tests::{Api, Node, NodeOptions};
use serde_json::{Value, json};
use tokio_postgres::Client;

/// How many schedules there are in the end; each is due every [`PERIOD`].
const SCHEDULES: i64 = 1_000_000;
/// How many there are when the statement is looked at for the first time.
const SCHEDULES_FEW: i64 = 10_000;
/// In seconds: a thousand of a million are due each second.
const PERIOD: i64 = 1_000;
/// How many schedules one transaction takes.
const BATCH: i64 = 1_000;
/// For how many seconds their runs are watched.
const WATCHED: i64 = 60;
/// How many seconds the node has before the first is due.
const LEAD: i64 = 15;

/// How many upstream runs are made.
const FOLLOWED: i64 = 400;

fn row(what: &str, figure: &str, wanted: &str) {
    println!("| {what:<72} | {figure:<44} | {wanted:<12} |");
}

#[tokio::main]
async fn main() {
    let parts = Parts::asked();
    row("what", "measured", "wanted");
    if parts.contain("follow") {
        follow().await;
    }
    if parts.contain("backfill") {
        backfill().await;
    }
    if parts.contain("schedules") {
        schedules(false).await;
    }
    if parts.contain("spread") {
        schedules(true).await;
    }
}

/// A node of the fixture, with the one script that all groups use.
async fn node_of(fixture: &Fixture) -> Node {
    let node = NodeOptions::new(fixture.url())
        .data_dir(&fixture.directory().join("node"))
        .start()
        .await;
    let known = node.get("/v1/scripts/hello").await;
    if known.status == 404 {
        let wasm = heddle_scripts::get("hello").expect("the script");
        node.put_bytes("/v1/scripts/hello", "application/wasm", wasm)
            .await
            .expect_status(201);
    }
    node
}

async fn end(fixture: Fixture, mut node: Node) {
    node.terminate();
    let _ = node.end().await;
    fixture.end().await;
}

/// Median, 99th percentile and maximum of a query's one column of milliseconds, and how many there were.
async fn spread_of(sql: &Client, query: &str) -> (String, i64) {
    let text = format!(
        "SELECT count(*), coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY ms), 0)::float8,
                coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY ms), 0)::float8, coalesce(max(ms), 0)::float8
           FROM ({query}) AS samples (ms)"
    );
    let row = sql.query_one(&text, &[]).await.expect("figures");
    let (count, p50, p99, most): (i64, f64, f64, f64) = (row.get(0), row.get(1), row.get(2), row.get(3));
    (format!("{p50:.1} / {p99:.1} / {most:.1} ms"), count)
}

fn hello() -> Value {
    json!({"script": "hello", "params": {"name": "x"}})
}

// Groups that follow ------------------------------------------------------------------------------------------------

async fn follow() {
    let fixture = Fixture::new().await;
    let node = node_of(&fixture).await;
    let sql = fixture.sql().await;
    let group = |more: Value| {
        let mut spec = json!({"tasks": {"t": hello()}});
        spec.as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        spec
    };
    for name in ["up", "left", "right"] {
        node.put_group(name, group(json!({}))).await;
    }
    node.put_group("down", group(json!({"depends_on": ["up"]}))).await;
    node.put_group("both", group(json!({"depends_on": ["left", "right"]})))
        .await;
    for (upstreams, down) in [(&["up"][..], "down"), (&["left", "right"], "both")] {
        let base = "2020-01-01T00:00:00Z".parse::<DateTime<Utc>>().expect("a time");
        for n in 0..FOLLOWED {
            let at = base + TimeDelta::hours(n);
            for upstream in upstreams {
                node.start(upstream, json!({"logical_time": at})).await;
            }
            ended(&sql, down, n + 1).await;
        }
        let query = format!(
            "SELECT 1000 * extract(epoch FROM a.started_at - max(u.finished_at))
               FROM heddle.runs_done d
               JOIN heddle.groups g ON g.id = d.group_id AND g.name = '{down}'
               JOIN heddle.attempts a ON a.run = d.id
               JOIN heddle.group_links l ON l.group_id = g.id
               JOIN heddle.runs_done u ON u.group_id = l.upstream_id AND u.logical_time = d.logical_time
              GROUP BY d.id, a.started_at"
        );
        let (figure, count) = spread_of(&sql, &query).await;
        assert_eq!(count, FOLLOWED);
        let what = format!(
            "last of {} upstreams' success to the follower's start (p50/p99/max of {count})",
            upstreams.len()
        );
        row(&what, &figure, "p99 < 20 ms");
    }
    drop(sql);
    end(fixture, node).await;
}

async fn ended(sql: &Client, group: &str, count: i64) {
    let query = "SELECT count(*) FROM heddle.runs_done d JOIN heddle.groups g ON g.id = d.group_id WHERE g.name = $1";
    while sql.query_one(query, &[&group]).await.expect("a count").get::<_, i64>(0) < count {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

// Backfills ----------------------------------------------------------------------------------------------------------

async fn backfill() {
    let fixture = Fixture::new().await;
    let node = node_of(&fixture).await;
    for max_active in [1, 10, 100, 1_000] {
        let mut took = Vec::new();
        for n in 0..3 {
            let name = format!("daily-{max_active}-{n}");
            let spec = json!({
                "history": true, "schedules": {"daily": {"cron": "0 0 * * *", "misfire": "skip"}}, "tasks": {"t": hello()},
            });
            node.put_group(&name, spec).await;
            took.push(one_backfill(&node, &name, max_active).await);
        }
        let figures: Vec<String> = took.iter().map(|seconds| format!("{seconds:.2}")).collect();
        let what = format!("backfill of 1,461 daily runs, max_active {max_active}");
        row(&what, &format!("{} s", figures.join(", ")), "< 3 s");
    }
    end(fixture, node).await;
}

/// From the request to the answer that it has ended, in seconds.
async fn one_backfill(api: &Api, group: &str, max_active: u32) -> f64 {
    let began = now();
    let asked = json!({"from": "2012-01-01", "to": "2015-12-31", "max_active": max_active});
    let made = api
        .post(&format!("/v1/groups/{group}/backfills"), asked)
        .await
        .expect_status(202);
    let path = format!("/v1/backfills/{}", made["id"].as_str().expect("an id"));
    loop {
        let found = api.get(&path).await.expect_status(200);
        if !found["finished_at"].is_null() {
            assert_eq!(found["counts"], json!({"succeeded": 1_461}));
            return began.elapsed().as_secs_f64();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

// Schedules ----------------------------------------------------------------------------------------------------------

/// Makes groups like `probe` by SQL, one schedule each: number `n` is due `n` seconds into each period, or, spread, `n`
/// milliseconds.
async fn make_groups(sql: &Client, from: i64, to: i64, spread: bool) {
    let offset = if spread {
        format!("(n % {}) * interval '1 ms'", PERIOD * 1_000)
    } else {
        format!("(n % {PERIOD}) * interval '1 s'")
    };
    let text = format!(
        "CREATE TEMP TABLE IF NOT EXISTS made (n bigint, id bigint, at timestamptz);
         TRUNCATE made;
         INSERT INTO made SELECT n, 10000000 + n, timestamptz '2026-01-01 00:00:00Z' + {offset}
           FROM generate_series({from}, {to} - 1) AS n;
         INSERT INTO heddle.groups (id, name, revision, revision_id, enabled, created_at, updated_at) OVERRIDING SYSTEM VALUE
         SELECT m.id, 'timer-' || m.n, 1, m.id, true, p.created_at, p.created_at
           FROM made m, heddle.groups p WHERE p.name = 'probe';
         INSERT INTO heddle.revisions (id, group_id, revision, spec, schedule_anchors, created_at, created_by)
                OVERRIDING SYSTEM VALUE
         SELECT m.id, m.id, 1,
                jsonb_set(r.spec, '{{schedules,s,anchor}}', to_jsonb(to_char(m.at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'))),
                r.schedule_anchors, r.created_at, 'bench'
           FROM made m, heddle.revisions r JOIN heddle.groups p ON p.revision_id = r.id WHERE p.name = 'probe';"
    );
    sql.batch_execute(&text).await.expect("groups");
}

/// Their schedules, first due in the period that begins at `start`: what they have looked at ends before it.
async fn make_schedules(sql: &Client, start: DateTime<Utc>) {
    let text = format!(
        "INSERT INTO heddle.schedules (group_id, name, revision_id, anchor, zone, live, cursor, next_fire_at)
         SELECT m.id, 's', m.id, p.anchor, 'UTC', true, timestamptz '{start}' - interval '1 s',
                m.at + ceil(extract(epoch FROM timestamptz '{start}' - m.at) / {PERIOD}) * interval '{PERIOD} s'
           FROM made m, heddle.schedules p JOIN heddle.groups g ON g.id = p.group_id WHERE g.name = 'probe'",
        start = start.to_rfc3339_opts(SecondsFormat::Millis, true),
    );
    sql.batch_execute(&text).await.expect("schedules");
}

/// What the statement that takes schedules reads when `BATCH` of all are due.
async fn explain(sql: &Client, count: i64) {
    let due: DateTime<Utc> = sql
        .query_one(
            "SELECT to_char(next_fire_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM heddle.schedules
              ORDER BY next_fire_at OFFSET $1 LIMIT 1",
            &[&(BATCH - 1)],
        )
        .await
        .expect("an instant")
        .get::<_, String>(0)
        .parse()
        .expect("a time");
    let statement = include_str!("../../runner/store/src/sql/take_schedules.sql")
        .replace("(SELECT clock_timestamp())", &format!("(SELECT timestamptz '{due}')"))
        .replace("$1", &BATCH.to_string());
    let mut plan = Vec::new();
    // The second time, so that it is about the statement and not about the disk.
    for _ in 0..2 {
        sql.batch_execute("BEGIN").await.expect("a transaction");
        plan = sql
            .query(&format!("EXPLAIN (ANALYZE, BUFFERS)\n{statement}"), &[])
            .await
            .expect("a plan")
            .iter()
            .map(|row| row.get::<_, String>(0))
            .collect();
        sql.batch_execute("ROLLBACK").await.expect("its end");
    }
    let find = |words: &str| {
        let line = plan.iter().find(|line| line.contains(words));
        line.map_or("?", |line| line.trim()).to_owned()
    };
    row(
        &format!("taking {BATCH} schedules that are due, of {count}"),
        &format!("{}; {}", find("Execution Time"), find("Buffers")),
        "the same",
    );
    if std::env::var_os("HEDDLE_BENCH_PLANS").is_some() {
        println!("{}", plan.join("\n"));
    }
}

async fn schedules(spread: bool) {
    let fixture = Fixture::new().await;
    let mut node = node_of(&fixture).await;
    let probe = json!({
        "schedules": {"s": {"every": format!("{PERIOD}s"), "anchor": "2026-01-01T00:00:00Z", "starts_at": "2026-01-01"}},
        "tasks": {"t": hello()},
    });
    node.put_group("probe", probe).await;
    node.terminate();
    let _ = node.end().await;
    let sql = fixture.sql().await;
    sql.batch_execute(&format!("SET TIME ZONE 'UTC'; DELETE FROM heddle.runs_live; UPDATE heddle.schedules SET next_fire_at = now() + interval '{PERIOD} s'"))
        .await
        .expect("a quiet probe");
    let start = async |seconds: i64| -> DateTime<Utc> {
        let text: String = sql
            .query_one(
                "SELECT to_char(date_trunc('second', clock_timestamp()) + $1 * interval '1 s', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')",
                &[&(seconds as f64)],
            )
            .await
            .expect("the time")
            .get(0);
        text.parse().expect("a time")
    };
    make_groups(&sql, 0, SCHEDULES_FEW, spread).await;
    make_schedules(&sql, start(3_600).await).await;
    sql.batch_execute("VACUUM ANALYZE heddle.schedules")
        .await
        .expect("tidy");
    explain(&sql, SCHEDULES_FEW).await;
    make_groups(&sql, SCHEDULES_FEW, SCHEDULES, spread).await;
    sql.batch_execute("DELETE FROM heddle.schedules WHERE name = 's' AND group_id >= 10000000")
        .await
        .expect("none");
    sql.batch_execute("VACUUM heddle.schedules").await.expect("tidy");
    sql.batch_execute("TRUNCATE made; INSERT INTO made SELECT substr(g.name, 7)::bigint, g.id, (r.spec #>> '{schedules,s,anchor}')::timestamptz FROM heddle.groups g JOIN heddle.revisions r ON r.id = g.revision_id WHERE g.id >= 10000000; ANALYZE made")
        .await
        .expect("all");
    // Long enough for a million rows to be inserted, and the node to be there.
    let lead = 60 + LEAD;
    let begin = start(lead).await;
    make_schedules(&sql, begin).await;
    for tidy in [
        "VACUUM ANALYZE heddle.schedules, heddle.groups, heddle.revisions",
        "CHECKPOINT",
    ] {
        sql.batch_execute(tidy).await.expect("tidy");
    }
    explain(&sql, SCHEDULES).await;
    let left = start(0).await;
    assert!(left < begin, "the million took too long: {left} is after {begin}");
    let mut node = node_of(&fixture).await;
    let until = begin + TimeDelta::seconds(WATCHED);
    while start(0).await <= begin {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let before = processor_time(node.process().id());
    while start(0).await <= until + TimeDelta::seconds(3) {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let used = processor_time(node.process().id()) - before;
    report(&sql, begin, until, spread, used).await;
    drop(sql);
    end(fixture, node).await;
}

/// Says how late the runs of schedules that were due between these instants were created and begun, and what the node used.
async fn report(sql: &Client, begin: DateTime<Utc>, until: DateTime<Utc>, spread: bool, used: f64) {
    let within =
        format!("l.trigger = 1 AND l.logical_time >= timestamptz '{begin}' AND l.logical_time < timestamptz '{until}'");
    let all = "(SELECT id, trigger, logical_time, created_at FROM heddle.runs_live
                UNION ALL SELECT id, trigger, logical_time, created_at FROM heddle.runs_done)";
    let how = if spread {
        "spread over the second"
    } else {
        "at the whole second"
    };
    let of = format!("{BATCH} of {SCHEDULES} due each second, {how}");
    let made = format!("SELECT 1000 * extract(epoch FROM l.created_at - l.logical_time) FROM {all} l WHERE {within}");
    let (figure, count) = spread_of(sql, &made).await;
    if !spread {
        let odd: Option<String> = sql
            .query_one(
                &format!(
                    "SELECT string_agg(format('%s: %s', at, runs), ', ' ORDER BY at) FROM (
                         SELECT at, (SELECT count(*) FROM {all} l WHERE l.trigger = 1 AND l.logical_time = at) AS runs
                           FROM generate_series(timestamptz '{begin}', timestamptz '{until}' - interval '1 s', '1 s') at
                     ) each WHERE runs <> {BATCH}"
                ),
                &[],
            )
            .await
            .expect("counts")
            .get(0);
        assert_eq!(odd, None, "each instant has its runs");
    }
    assert_eq!(count, WATCHED * BATCH, "each instant has its run");
    row(
        &format!("{of}: instant to run (p50/p99/max of {count})"),
        &figure,
        "p99 < 250 ms",
    );
    let begun = format!(
        "SELECT 1000 * extract(epoch FROM a.started_at - l.logical_time) FROM {all} l
           JOIN heddle.attempts a ON a.run = l.id WHERE {within}"
    );
    let (figure, count) = spread_of(sql, &begun).await;
    row(
        &format!("{of}: instant to attempt (p50/p99/max of {count})"),
        &figure,
        "",
    );
    row(
        &format!("{of}: the node's share of a core"),
        &format!("{:.0} %", 100.0 * used / (WATCHED + 3) as f64),
        "",
    );
}
