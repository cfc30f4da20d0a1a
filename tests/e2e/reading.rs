//! What lists and pages read does not grow with what is kept. No node is run: a history is written by SQL, analysed, and
//! Postgres counts the entries of indexes and the rows of tables that each question touches, planned as a node's sessions
//! plan. Whatever plan it is that reads a whole history, it is found by what it reads.

use chrono::{TimeDelta, Utc};
use heddle_domain::Time;
use heddle_store::Store;
use heddle_store::group::GroupFilter;
use heddle_store::run::RunFilter;
use heddle_tests::{World, eventually};
use tokio_postgres::Client;

/// So many runs are kept, of forty days.
const RUNS: i64 = 24_000;

/// So many are shown.
const SHOWN: i64 = 20;

/// What a list may read: what it shows, a look into each day for each thing that is looked for, and some more.
const READ_MAX: i64 = 1_500;

/// Half of all runs are of a group that has not run for three weeks: who believes in shares of a whole looks for its runs
/// among all others'. The others are of three hundred groups. A few runs failed, a few were cancelled long ago.
const HISTORY: &str = "
    SET search_path = public;
    SELECT heddle.make_partitions((now() AT TIME ZONE 'UTC')::date - 41, 41);
    INSERT INTO heddle.groups (name, revision, revision_id, created_at, updated_at)
         SELECT CASE WHEN n = 0 THEN 'idle' ELSE 'g' || lpad(n::text, 3, '0') END, 1, n + 1, now(), now()
           FROM generate_series(0, 300) AS n;
    INSERT INTO heddle.revisions (id, group_id, revision, spec, created_at, created_by) OVERRIDING SYSTEM VALUE
         SELECT g.revision_id, g.id, 1,
                CASE WHEN g.name = 'g007' THEN '{\"tasks\": {\"t\": {\"script\": \"fib@1\"}, \"w\": {\"queue\": \"letters\"}}}'
                     ELSE '{\"tasks\": {\"t\": {\"script\": \"echo\"}}}' END::jsonb, now(), 'test'
           FROM heddle.groups g;
    CREATE TEMP TABLE drawn AS
         SELECT n, now() - interval '1 minute' - (24000 - n) * interval '40 days' / 24000 AS at,
                CASE WHEN n % 2 = 0 AND n < 11000 THEN 'idle' ELSE 'g' || lpad((1 + n * 7 % 300)::text, 3, '0') END AS name,
                CASE WHEN n % 100 = 1 THEN 4 WHEN n < 4000 AND n % 100 = 3 THEN 5 ELSE 3 END AS state
           FROM generate_series(0, 23999) AS n;
    INSERT INTO heddle.runs_done (id, group_id, revision_id, state, trigger, priority, logical_time, interval_start,
                                  interval_end, params, key, created_at, started_at, progress, finished_at)
         SELECT heddle.uuid_v7(d.at), g.id, g.revision_id, d.state, 1, 0, d.at, d.at, d.at, '{}',
                CASE WHEN d.n % 10 = 0 THEN 'k-' || d.n END, d.at, d.at, '\\x00', d.at + interval '1 second'
           FROM drawn d JOIN heddle.groups g ON g.name = d.name ORDER BY d.n;
    INSERT INTO heddle.run_keys (group_id, key, run) SELECT group_id, key, id FROM heddle.runs_done WHERE key IS NOT NULL;
    ANALYZE heddle.runs_done; ANALYZE heddle.run_keys; ANALYZE heddle.groups; ANALYZE heddle.revisions;";

/// What has been read so far, by all sessions that have ended.
async fn read(sql: &Client) -> i64 {
    let row = sql
        .query_one(
            "SELECT ((SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = 'heddle')
                     + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname = 'heddle'))::bigint",
            &[],
        )
        .await
        .expect("statistics");
    row.get(0)
}

/// Writes a history, by a session of its own that has ended when it is written: what that has read it may tell a second
/// later, and it would be counted with what comes next.
async fn write(world: &World, sql: &Client, history: &str) {
    let writer = world.sql().await;
    writer.batch_execute(history).await.expect("a history");
    let own = writer
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .expect("its number");
    let own: i32 = own.get(0);
    drop(writer);
    let left = "SELECT FROM pg_stat_activity WHERE pid = $1";
    eventually("the writer's session ends", async || {
        sql.query(left, &[&own])
            .await
            .expect("sessions")
            .is_empty()
            .then_some(())
    })
    .await;
}

/// What a question reads, and its answer.
async fn asked<T>(world: &World, sql: &Client, ask: impl AsyncFnOnce(&Store) -> T) -> (i64, T) {
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
    (read(sql).await - before, answer)
}

fn ago(days: i64) -> Time {
    #[expect(clippy::disallowed_methods, reason = "the history ends now")]
    let now = Utc::now();
    now - TimeDelta::days(days)
}

#[tokio::test]
async fn lists_of_runs_read_what_they_show() {
    let world = World::new().await;
    let sql = world.sql().await;
    write(&world, &sql, HISTORY).await;
    let of = |name: &str| RunFilter {
        groups: vec![name.to_owned()],
        ..RunFilter::default()
    };
    let every = RunFilter::default;
    let page = SHOWN as usize;
    let cases: Vec<(&str, RunFilter, usize, i64)> = vec![
        ("all", every(), page, READ_MAX),
        ("a group", of("g001"), page, READ_MAX),
        ("a group that is idle", of("idle"), page, READ_MAX),
        (
            "three groups",
            RunFilter {
                groups: vec!["g001".into(), "g002".into(), "idle".into()],
                ..every()
            },
            page,
            READ_MAX,
        ),
        ("no group of that name", of("nobody"), 0, READ_MAX),
        (
            "failed",
            RunFilter {
                states: vec![4],
                ..every()
            },
            page,
            READ_MAX,
        ),
        (
            "cancelled",
            RunFilter {
                states: vec![5],
                ..every()
            },
            page,
            READ_MAX,
        ),
        (
            "failed or under way",
            RunFilter {
                states: vec![1, 4],
                ..every()
            },
            page,
            READ_MAX,
        ),
        (
            "failed of a group without",
            RunFilter {
                states: vec![4],
                ..of("idle")
            },
            0,
            READ_MAX,
        ),
        (
            "under way",
            RunFilter {
                states: vec![0, 1, 2],
                ..every()
            },
            0,
            READ_MAX,
        ),
        (
            "a key",
            RunFilter {
                key: Some("k-12340".into()),
                ..every()
            },
            1,
            READ_MAX,
        ),
        (
            "a key of none",
            RunFilter {
                key: Some("k-1".into()),
                ..every()
            },
            0,
            READ_MAX,
        ),
        (
            "a queue",
            RunFilter {
                queues: vec!["letters".into()],
                ..every()
            },
            page,
            READ_MAX,
        ),
        (
            "a queue of none",
            RunFilter {
                queues: vec!["nobody".into()],
                ..every()
            },
            0,
            READ_MAX,
        ),
        // All revisions but one are found first.
        (
            "a script of most",
            RunFilter {
                scripts: vec!["echo".into()],
                ..every()
            },
            page,
            READ_MAX + 1_000,
        ),
        (
            "a script of one",
            RunFilter {
                scripts: vec!["fib".into()],
                ..every()
            },
            page,
            READ_MAX,
        ),
        (
            "behind a cursor",
            RunFilter {
                before: Some(heddle_domain::id::RunId(uuid::Uuid::from_u128(
                    (ago(30).timestamp_millis() as u128) << 80,
                ))),
                ..of("idle")
            },
            page,
            READ_MAX,
        ),
        (
            "hot, a group that is idle",
            RunFilter {
                ended_since: Some(ago(3)),
                ..of("idle")
            },
            0,
            READ_MAX,
        ),
        (
            "hot",
            RunFilter {
                ended_since: Some(ago(3)),
                ..every()
            },
            page,
            READ_MAX,
        ),
    ];
    let mut wrong = Vec::new();
    for (what, filter, found, most) in cases {
        let (read, runs) = asked(&world, &sql, async |store| {
            store.runs(&filter, SHOWN).await.expect(what).items
        })
        .await;
        assert_eq!(runs.len(), found, "{what}");
        assert!(
            runs.windows(2).all(|pair| pair[0].id > pair[1].id),
            "{what}: newest first"
        );
        if read > most {
            wrong.push(format!("{what}: {read} of {RUNS}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn pages_read_what_they_show() {
    let world = World::new().await;
    let sql = world.sql().await;
    write(&world, &sql, HISTORY).await;
    let ids: Vec<i64> = sql
        .query("SELECT id FROM heddle.groups ORDER BY name", &[])
        .await
        .expect("groups")
        .iter()
        .map(|row| row.get(0))
        .collect();
    let (some, idle) = (&ids[..20], ids[300]);
    let mut wrong = Vec::new();
    let mut check = |what: &str, read: i64, most: i64| {
        if read > most {
            wrong.push(format!("{what}: {read}, not {most}"));
        }
    };
    let (read, bars) = asked(&world, &sql, async |store| {
        store.page_bars(some, Time::UNIX_EPOCH, 10).await.expect("bars")
    })
    .await;
    assert_eq!(bars.len(), 200);
    check("bars of twenty groups", read, 200 + READ_MAX);
    let (read, ends) = asked(&world, &sql, async |store| {
        store.page_last_ends(&ids).await.expect("ends")
    })
    .await;
    assert_eq!(ends.len(), ids.len());
    check("the last end of each of 301 groups", read, 301 * 20);
    let (read, runs) = asked(&world, &sql, async |store| {
        store.page_group_runs(idle, None, SHOWN).await.expect("runs")
    })
    .await;
    assert_eq!(runs.len(), SHOWN as usize);
    check("runs of a group that is idle", read, READ_MAX);
    let (read, minutes) = asked(&world, &sql, async |store| {
        store.page_minutes(ago(0), 60, 500).await.expect("minutes")
    })
    .await;
    assert_eq!(minutes.len(), 60);
    check("an hour's minutes", read, READ_MAX);
    let (read, failed) = asked(&world, &sql, async |store| {
        store.page_failures(ago(7), 300).await.expect("failures")
    })
    .await;
    assert!(!failed.is_empty());
    check("failures of a week", read, READ_MAX);
    let (read, found) = asked(&world, &sql, async |store| {
        store.page_run_of_key("k-12340").await.expect("a run")
    })
    .await;
    assert_eq!(found.len(), 1);
    check("the run of a key", read, READ_MAX);
    let (read, queues) = asked(&world, &sql, async |store| {
        store.queues(None, 50).await.expect("queues")
    })
    .await;
    assert_eq!(queues.items.len(), 1);
    check("queues", read, 100);
    let last = GroupFilter {
        last_states: vec![Some(heddle_domain::state::RunState::Failed)],
        ..GroupFilter::default()
    };
    let (read, _) = asked(&world, &sql, async |store| {
        store.groups(&last, None, 100).await.expect("groups")
    })
    .await;
    check("groups whose last run failed", read, 301 * 24);
    let (read, _) = asked(&world, &sql, async |store| {
        let retention = store.retention().await.expect("retention");
        let rules = store.run_rules(&retention).await.expect("rules");
        store.count_due_runs(&rules, ago(0)).await.expect("a count")
    })
    .await;
    check("runs that are due, of none", read, READ_MAX);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What was made long before the hot view began and ended in it is found, however many others took long before it; no
/// page reads all of these.
#[tokio::test]
async fn the_hot_view_leads_on_to_what_took_long() {
    let world = World::new().await;
    let sql = world.sql().await;
    // Twelve thousand that took two hours and ended long ago; among, before and after them some that have just ended.
    let long = "
        INSERT INTO heddle.runs_done (id, group_id, revision_id, state, trigger, priority, logical_time, interval_start,
                                       interval_end, params, created_at, started_at, progress, finished_at)
         SELECT heddle.uuid_v7(x.at), g.id, g.revision_id, 3, 1, 0, x.at, x.at, x.at, '{}', x.at, x.at, '\\x00', x.ended
           FROM heddle.groups g,
                (SELECT at, at + interval '2 hours' AS ended
                   FROM (SELECT now() - interval '10 days' - n * interval '1 minute' AS at
                           FROM generate_series(1, 12000) AS n) AS long
                 UNION ALL
                 SELECT now() - days * interval '1 day', now() - interval '5 minutes'
                   FROM UNNEST('{9,12,15,30,30}'::integer[]) AS days) AS x
          WHERE g.name = 'g001';
         ANALYZE heddle.runs_done;";
    write(&world, &sql, &format!("{HISTORY}{long}")).await;
    let since = ago(1);
    let mut all = Vec::new();
    for groups in [Vec::new(), vec!["g001".to_owned()], vec!["g002".to_owned()]] {
        let mut filter = RunFilter {
            groups: groups.clone(),
            ended_since: Some(since),
            ..RunFilter::default()
        };
        let mut found = Vec::new();
        let mut pages = 0;
        loop {
            let (read, page) = asked(&world, &sql, async |store| {
                store.runs(&filter, 100).await.expect("a page")
            })
            .await;
            pages += 1;
            assert!(read < 12_000, "{groups:?}: page {pages} read {read}");
            assert!(page.items.len() <= 100);
            found.extend(page.items.iter().map(|run| run.id));
            match page.next {
                Some(next) => filter.before = Some(heddle_domain::id::RunId(next.parse().expect("an id"))),
                None => break,
            }
        }
        // Five thousand are looked at by a page that is not full.
        assert!(pages >= 3, "{groups:?}: {pages}");
        all.push((groups, found));
    }
    // (This session's own reading would be counted.)
    for (groups, found) in all {
        let wanted: Vec<uuid::Uuid> = sql
            .query(
                "SELECT d.id FROM heddle.runs_done d JOIN heddle.groups g ON g.id = d.group_id
                  WHERE d.finished_at >= $1 AND ($2 OR g.name = ANY ($3)) ORDER BY d.id DESC",
                &[&since, &groups.is_empty(), &groups],
            )
            .await
            .expect("runs")
            .iter()
            .map(|row| row.get(0))
            .collect();
        assert_eq!(found, wanted, "{groups:?}");
    }
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
    // One is missing, one was only begun, one has come to some days.
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
        sql.batch_execute(include_str!("../../migrations/0062_reading.sql"))
            .await
            .expect("made again");
        assert_eq!(wrong().await, Vec::<String>::new());
        sql.query("SELECT FROM heddle.look_back", &[]).await.expect("the view");
    }
}
