//! The rows that lists and pages read do not grow with what is kept. No node runs: SQL writes a history, it is
//! analysed, and Postgres counts the entries of indexes and the rows of tables that each query reads, planned as in a
//! node's sessions. Any plan that reads a whole history is found by its counts.

mod pages;
mod runs;

use chrono::{TimeDelta, Utc};
use heddle_domain::Time;
use heddle_store::Store;
use heddle_tests::{World, eventually};
use tokio_postgres::Client;

/// So many runs are kept, of forty days.
const RUNS: i64 = 24_000;

/// So many are shown.
const SHOWN: i64 = 20;

/// The maximum that a list may read: what it shows, a look-up in each day for each thing that is searched for, and some
/// more.
const READ_MAX: i64 = 1_500;

/// Half of all runs belong to a group that has not run for three weeks: a planner that only knows shares of the whole
/// would search for its runs among all others. The others belong to three hundred groups. A few runs failed, a few were
/// cancelled long ago.
const HISTORY: &str = "
    SET search_path = public;
    SELECT heddle.make_partitions((now() AT TIME ZONE 'UTC')::date - 41, 41);
    INSERT INTO heddle.groups (name, revision, revision_id, created_at, updated_at)
         SELECT CASE WHEN n = 0 THEN 'idle' ELSE 'g' || lpad(n::text, 3, '0') END, 1, n + 1, now() - interval '41 days', now()
           FROM generate_series(0, 300) AS n;
    INSERT INTO heddle.revisions (id, group_id, revision, spec, created_at, created_by) OVERRIDING SYSTEM VALUE
         SELECT g.revision_id, g.id, 1,
                CASE WHEN g.name = 'g007' THEN '{\"tasks\": {\"t\": {\"script\": \"fib@1\"}, \"w\": {\"queue\": \"letters\"}}}'
                     ELSE '{\"tasks\": {\"t\": {\"script\": \"echo\"}}}' END::jsonb, g.created_at, 'test'
           FROM heddle.groups g;
    CREATE TEMP TABLE drawn AS
         SELECT n, now() - interval '1 minute' - (24000 - n) * interval '40 days' / 24000 AS at,
                CASE WHEN n % 2 = 0 AND n < 11000 THEN 'idle' ELSE 'g' || lpad((1 + n * 7 % 300)::text, 3, '0') END AS name,
                CASE WHEN n % 100 = 1 THEN 4 WHEN n < 4000 AND n % 100 = 3 THEN 5 ELSE 3 END AS state
           FROM generate_series(0, 23999) AS n;
    INSERT INTO heddle.runs_done (id, group_id, revision_id, state, trigger, priority, logical_time, interval_start,
                                  interval_end, params, key, labels, source, created_at, started_at, progress,
                                  finished_at)
         SELECT heddle.uuid_v7(d.at), g.id, g.revision_id, d.state, CASE WHEN d.n % 4000 = 5 THEN 2 ELSE 1 END, 0, d.at,
                d.at, d.at, '{}', CASE WHEN d.n % 10 = 0 THEN 'k-' || d.n END,
                CASE WHEN d.n % 10 = 4 THEN jsonb_build_object('team', 'a', 'customer', 'c' || d.n / 10 % 100) END,
                CASE WHEN d.n % 400 = 2 THEN '00000000-0000-7000-8000-000000000001'::uuid END,
                d.at, d.at, '\\x00', d.at + interval '1 second'
           FROM drawn d JOIN heddle.groups g ON g.name = d.name ORDER BY d.n;
    INSERT INTO heddle.run_keys (group_id, key, run) SELECT group_id, key, id FROM heddle.runs_done WHERE key IS NOT NULL;
    ANALYZE heddle.runs_done; ANALYZE heddle.run_keys; ANALYZE heddle.groups; ANALYZE heddle.revisions;";

/// Writes the history, and more.
async fn history(world: &World, sql: &Client, more: &str) {
    apart(world, sql, async |writer| {
        writer
            .batch_execute(&format!("{HISTORY}{more}"))
            .await
            .expect("a history");
        // Revisions write into their groups' rows: the versions of rows before that are still in the indexes.
        writer.batch_execute("VACUUM heddle.groups").await.expect("a vacuum");
    })
    .await;
}

/// Does something in a session of its own: a session that goes on reports what it has read up to a second later, during
/// a measurement.
async fn apart<T>(world: &World, sql: &Client, work: impl AsyncFnOnce(&Client) -> T) -> T {
    let session = world.sql().await;
    let own: i32 = session
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .expect("a session")
        .get(0);
    let done = work(&session).await;
    drop(session);
    eventually("the session ends", async || {
        let lives: bool = sql
            .query_one("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", &[&own])
            .await
            .expect("sessions")
            .get(0);
        (!lives).then_some(())
    })
    .await;
    done
}

/// What has been read so far, by all sessions that have ended, and how often somebody has looked into an index for it.
async fn read(sql: &Client) -> (i64, i64) {
    let row = sql
        .query_one(
            "SELECT ((SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = 'heddle')
                     + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname = 'heddle'))::bigint,
                    (SELECT sum(idx_scan) FROM pg_stat_user_indexes WHERE schemaname = 'heddle')::bigint",
            &[],
        )
        .await
        .expect("statistics");
    (row.get(0), row.get(1))
}

/// What a question reads, and its answer.
async fn asked<T>(world: &World, sql: &Client, ask: impl AsyncFnOnce(&Store) -> T) -> (i64, T) {
    let (read, _, answer) = looked(world, sql, ask).await;
    (read, answer)
}

/// What a question reads, how many looks into indexes it takes, and its answer.
async fn looked<T>(world: &World, sql: &Client, ask: impl AsyncFnOnce(&Store) -> T) -> (i64, i64, T) {
    let before = read(sql).await;
    let store = Store::connect(world.url(), 1).await.expect("a connection");
    let answer = ask(&store).await;
    store.close();
    drop(store);
    // Sessions tell what they read when they end.
    eventually("the store's sessions end", async || {
        let left: i64 = sql
            .query_one(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'heddle' AND datname = current_database()",
                &[],
            )
            .await
            .expect("sessions")
            .get(0);
        (left == 0).then_some(())
    })
    .await;
    let after = read(sql).await;
    (after.0 - before.0, after.1 - before.1, answer)
}

fn ago(days: i64) -> Time {
    #[expect(clippy::disallowed_methods, reason = "the history ends now")]
    let now = Utc::now();
    now - TimeDelta::days(days)
}

/// The indexes are made in a history that grows meanwhile; whoever does that may be killed at any time.
#[tokio::test]
async fn the_indexes_are_made_again_after_they_were_interrupted() {
    let world = World::new().await;
    let sql = world.sql().await;
    let wrong = async || -> Vec<String> {
        sql.query(
            "SELECT c.relname::text || ' ' || n.name FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid,
                    UNNEST('{runs_done_ill,runs_done_group_ill,runs_done_long}'::text[]) AS n (name)
              WHERE i.inhparent = 'heddle.runs_done'::regclass
                AND NOT EXISTS (SELECT FROM pg_index x JOIN pg_inherits p ON p.inhrelid = x.indexrelid
                                 WHERE x.indrelid = c.oid AND x.indisvalid
                                   AND p.inhparent = to_regclass('heddle.' || n.name))
              UNION ALL SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid",
            &[],
        )
        .await
        .expect("indexes")
        .iter()
        .map(|row| row.get(0))
        .collect()
    };
    assert_eq!(wrong().await, Vec::<String>::new());
    // One is missing, one was only begun, one exists for some days.
    sql.batch_execute(
        "DROP INDEX heddle.runs_done_ill, heddle.runs_done_group_ill, heddle.runs_done_long, heddle.run_keys_key;
         DROP VIEW heddle.look_back;
         CREATE INDEX runs_done_ill ON ONLY heddle.runs_done (state, id) WHERE state > 3;
         CREATE INDEX runs_done_group_ill ON ONLY heddle.runs_done (group_id, state, id) WHERE state > 3;
         CREATE INDEX runs_done_default_group_ill ON heddle.runs_done_default (group_id, state, id) WHERE state > 3;
         ALTER INDEX heddle.runs_done_group_ill ATTACH PARTITION heddle.runs_done_default_group_ill",
    )
    .await
    .expect("as after a kill");
    assert!(!wrong().await.is_empty());
    for _ in 0..2 {
        sql.batch_execute(include_str!("../../../migrations/0062_reading.sql"))
            .await
            .expect("made again");
        assert_eq!(wrong().await, Vec::<String>::new());
        sql.query("SELECT FROM heddle.look_back", &[]).await.expect("the view");
    }
}
