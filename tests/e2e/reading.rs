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
                                  interval_end, params, key, labels, created_at, started_at, progress, finished_at)
         SELECT heddle.uuid_v7(d.at), g.id, g.revision_id, d.state, CASE WHEN d.n % 4000 = 5 THEN 2 ELSE 1 END, 0, d.at,
                d.at, d.at, '{}', CASE WHEN d.n % 10 = 0 THEN 'k-' || d.n END,
                CASE WHEN d.n % 10 = 4 THEN jsonb_build_object('team', 'a', 'customer', 'c' || d.n / 10 % 100) END,
                d.at, d.at, '\\x00', d.at + interval '1 second'
           FROM drawn d JOIN heddle.groups g ON g.name = d.name ORDER BY d.n;
    INSERT INTO heddle.run_keys (group_id, key, run) SELECT group_id, key, id FROM heddle.runs_done WHERE key IS NOT NULL;
    ANALYZE heddle.runs_done; ANALYZE heddle.run_keys; ANALYZE heddle.groups; ANALYZE heddle.revisions;";

/// Writes the history, and more, by a session that ends with it: what that one has read is not told later, in the middle of
/// what is measured.
async fn history(world: &World, sql: &Client, more: &str) {
    let writer = world.sql().await;
    let own: i32 = writer
        .query_one("SELECT pg_backend_pid()", &[])
        .await
        .expect("a session")
        .get(0);
    writer
        .batch_execute(&format!("{HISTORY}{more}"))
        .await
        .expect("a history");
    // Revisions write into their groups' rows: the versions of rows before that are still in the indexes.
    writer.batch_execute("VACUUM heddle.groups").await.expect("a vacuum");
    drop(writer);
    eventually("the writer's session ends", async || {
        let lives: bool = sql
            .query_one("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", &[&own])
            .await
            .expect("sessions")
            .get(0);
        (!lives).then_some(())
    })
    .await;
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

#[tokio::test]
async fn lists_of_runs_read_what_they_show() {
    let world = World::new().await;
    let sql = world.sql().await;
    history(&world, &sql, "").await;
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
        // Some of its revisions are found first, and of each run that is looked at its own.
        (
            "a script of most",
            RunFilter {
                scripts: vec!["echo".into()],
                ..every()
            },
            page,
            READ_MAX,
        ),
        // The newest two thousand are looked at, then the index of labels.
        (
            "a label that few have",
            RunFilter {
                labels: vec![("customer".into(), Some("c5".into()))],
                ..every()
            },
            page,
            2_000 + READ_MAX,
        ),
        (
            "a label that many have",
            RunFilter {
                labels: vec![("team".into(), None)],
                ..every()
            },
            page,
            READ_MAX,
        ),
        (
            "a label of nobody",
            RunFilter {
                labels: vec![("customer".into(), Some("nobody".into()))],
                ..every()
            },
            0,
            2_000 + READ_MAX,
        ),
        // There are six; an answer looks at ten thousand runs.
        (
            "a trigger that is rare",
            RunFilter {
                triggers: vec![2],
                ..every()
            },
            2,
            10_000 + READ_MAX,
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

/// What is looked for a part at a time is found to the end, by cursors, and in order.
#[tokio::test]
async fn what_is_looked_for_is_found_to_the_end() {
    let world = World::new().await;
    let sql = world.sql().await;
    history(&world, &sql, "").await;
    // Some of what is kept lives.
    sql.batch_execute(
        "INSERT INTO heddle.runs_live (id, group_id, revision_id, state, trigger, priority, logical_time, interval_start,
                                       interval_end, params, labels, created_at, started_at, progress)
         SELECT heddle.uuid_v7(x.at), g.id, g.revision_id, 1, 2, 0, x.at, x.at, x.at, '{}', '{\"customer\": \"c5\"}', x.at,
                x.at, '\\x00'
           FROM heddle.groups g, (SELECT now() - n * interval '9 days' AS at FROM generate_series(0, 4) AS n) AS x
          WHERE g.name = 'g003'",
    )
    .await
    .expect("runs that live");
    // A day on which very many have a label, and after these even more another one.
    sql.batch_execute(
        "INSERT INTO heddle.runs_done (id, group_id, revision_id, state, trigger, priority, logical_time, interval_start,
                                       interval_end, params, labels, created_at, started_at, progress, finished_at)
         SELECT heddle.uuid_v7(x.at), g.id, g.revision_id, 3, 1, 0, x.at, x.at, x.at, '{}',
                jsonb_build_object('batch', CASE WHEN n < 5000 THEN 'morning' ELSE 'noon' END), x.at, x.at, '\\x00', x.at
           FROM heddle.groups g,
                (SELECT n, date_trunc('day', now(), 'UTC') - interval '20 days' + n * interval '1 second' AS at
                   FROM generate_series(0, 22000) AS n) AS x
          WHERE g.name = 'g004'; ANALYZE heddle.runs_done",
    )
    .await
    .expect("runs of a day");
    let store = Store::connect(world.url(), 2).await.expect("a connection");
    let every = RunFilter::default;
    let label = |value: &str| vec![("customer".to_owned(), Some(value.to_owned()))];
    let cases: Vec<(RunFilter, i64, &str)> = vec![
        (
            RunFilter {
                labels: label("c5"),
                ..every()
            },
            7,
            "labels @> '{\"customer\": \"c5\"}'",
        ),
        (
            RunFilter {
                labels: label("c5"),
                states: vec![1],
                ..every()
            },
            2,
            "labels @> '{\"customer\": \"c5\"}' AND state = 1",
        ),
        (
            RunFilter {
                labels: vec![("batch".into(), Some("morning".into()))],
                ..every()
            },
            1_500,
            "labels @> '{\"batch\": \"morning\"}'",
        ),
        (
            RunFilter {
                labels: vec![("batch".into(), Some("noon".into()))],
                ..every()
            },
            6_000,
            "labels @> '{\"batch\": \"noon\"}'",
        ),
        (
            RunFilter {
                labels: vec![("team".into(), None)],
                triggers: vec![1],
                ..every()
            },
            500,
            "labels ? 'team' AND trigger = 1",
        ),
        (
            RunFilter {
                triggers: vec![2],
                ..every()
            },
            3,
            "trigger = 2",
        ),
        (
            RunFilter {
                scripts: vec!["echo".into()],
                states: vec![4],
                ..every()
            },
            100,
            "group_id <> (SELECT id FROM heddle.groups WHERE name = 'g007') AND state = 4",
        ),
        (
            RunFilter {
                scripts: vec!["echo".into()],
                labels: label("c5"),
                ..every()
            },
            5,
            "group_id <> (SELECT id FROM heddle.groups WHERE name = 'g007') AND labels @> '{\"customer\": \"c5\"}'",
        ),
        (
            RunFilter {
                logical_from: Some(ago(20)),
                logical_to: Some(ago(19)),
                ..every()
            },
            100,
            "logical_time BETWEEN now() - interval '20 days' AND now() - interval '19 days'",
        ),
        (
            RunFilter {
                states: vec![1, 5],
                ..every()
            },
            50,
            "state IN (1, 5)",
        ),
        (
            RunFilter {
                groups: vec!["idle".into(), "g003".into()],
                ..every()
            },
            500,
            "group_id IN (SELECT id FROM heddle.groups WHERE name IN ('idle', 'g003'))",
        ),
    ];
    for (mut filter, limit, condition) in cases {
        let what = format!("{filter:?}");
        let mut found: Vec<uuid::Uuid> = Vec::new();
        loop {
            let page = store.runs(&filter, limit).await.expect(&what);
            assert!(page.items.len() as i64 <= limit, "{what}");
            found.extend(page.items.iter().map(|run| run.id));
            let Some(next) = page.next else { break };
            let next: uuid::Uuid = next.parse().expect("an id");
            assert!(filter.before.is_none_or(|before| before.0 > next), "{what}: it goes on");
            filter.before = Some(heddle_domain::id::RunId(next));
        }
        let columns = "id, group_id, labels, state, trigger, logical_time";
        let wanted: Vec<uuid::Uuid> = sql
            .query(
                &format!(
                    "SELECT id FROM (SELECT {columns} FROM heddle.runs_done UNION ALL SELECT {columns} FROM heddle.runs_live)
                         AS runs WHERE {condition} ORDER BY id DESC"
                ),
                &[],
            )
            .await
            .expect("runs")
            .iter()
            .map(|row| row.get(0))
            .collect();
        assert!(!wanted.is_empty(), "{what}");
        // Days ago are counted from a moment that was a little earlier.
        let differ = found.iter().zip(&wanted).filter(|(one, other)| one != other).count();
        let moved = if filter.logical_from.is_some() { 1 } else { 0 };
        assert!(
            found.len().abs_diff(wanted.len()) <= moved && differ <= moved * wanted.len(),
            "{what}: {} of {}",
            found.len(),
            wanted.len()
        );
    }
}

/// What uses a queue since today has no runs of the days before: these are not looked into, however few runs there are.
#[tokio::test]
async fn what_is_new_is_not_looked_for_in_the_past() {
    let world = World::new().await;
    let sql = world.sql().await;
    let few = "
        INSERT INTO heddle.groups (name, revision, revision_id, created_at, updated_at)
             SELECT 'uses-' || kind, 1, 900 + days, now() - days * interval '1 day', now()
               FROM (VALUES ('new', 0), ('old', 41)) AS x (kind, days);
        INSERT INTO heddle.revisions (id, group_id, revision, spec, created_at, created_by) OVERRIDING SYSTEM VALUE
             SELECT g.revision_id, g.id, 1, jsonb_build_object('tasks', jsonb_build_object('w', jsonb_build_object('queue', g.name))),
                    g.created_at, 'test'
               FROM heddle.groups g WHERE g.name LIKE 'uses-%';
        INSERT INTO heddle.runs_done (id, group_id, revision_id, state, trigger, priority, logical_time, interval_start,
                                      interval_end, params, created_at, started_at, progress, finished_at)
             SELECT heddle.uuid_v7(x.at), g.id, g.revision_id, 3, 1, 0, x.at, x.at, x.at, '{}', x.at, x.at, '\\x00', x.at
               FROM heddle.groups g, (SELECT now() - n * interval '1 second' AS at FROM generate_series(1, 3) AS n) AS x
              WHERE g.name LIKE 'uses-%';
        ANALYZE heddle.revisions;";
    history(&world, &sql, few).await;
    let mut looks = Vec::new();
    for queue in ["uses-new", "uses-old"] {
        let filter = RunFilter {
            queues: vec![queue.to_owned()],
            ..RunFilter::default()
        };
        let (_, looked, found) = looked(&world, &sql, async |store| {
            store.runs(&filter, SHOWN).await.expect(queue).items.len()
        })
        .await;
        assert_eq!(found, 3, "{queue}");
        looks.push(looked);
    }
    assert!(
        looks[0] + 30 < looks[1],
        "{looks:?} looks: of what is new, and of what there always was"
    );
}

/// The newest runs are looked for in the days in which they are: neither a look nor a plan is made of the days before.
#[tokio::test]
async fn days_of_long_ago_are_not_looked_into() {
    let world = World::new().await;
    let sql = world.sql().await;
    history(&world, &sql, "").await;
    let of_state = |states: Vec<i16>| RunFilter {
        states,
        ..RunFilter::default()
    };
    let of = |name: &str| RunFilter {
        groups: vec![name.to_owned()],
        ..RunFilter::default()
    };
    // (Days that are made ahead are looked into first, and the names of what is found are looked up.)
    for (what, filter, most) in [
        ("all", RunFilter::default(), 45),
        ("failed", of_state(vec![4]), 45),
        ("a group", of("g001"), 45),
    ] {
        let (_, looks, runs) = looked(&world, &sql, async |store| {
            store.runs(&filter, 5).await.expect(what).items.len()
        })
        .await;
        assert!(runs == 5 && looks < most, "{what}: {looks} looks");
    }
    let ids: Vec<i64> = sql
        .query("SELECT id FROM heddle.groups WHERE name < 'g020' ORDER BY name", &[])
        .await
        .expect("groups")
        .iter()
        .map(|row| row.get(0))
        .collect();
    // Each has run within the last day.
    let (_, looks, ends) = looked(&world, &sql, async |store| {
        store.page_last_ends(&ids).await.expect("ends")
    })
    .await;
    assert_eq!(ends.len(), ids.len());
    assert!(
        looks < 3 * ids.len() as i64 + 10,
        "{looks} looks for {} groups",
        ids.len()
    );
    // Each run is looked for in its own day.
    let (_, _, newest) = looked(&world, &sql, async |store| {
        store.page_newest_runs(&ids, 20).await.expect("runs")
    })
    .await;
    assert_eq!(newest.len(), 20 * ids.len());
    let runs: Vec<uuid::Uuid> = newest.into_iter().map(|(run, _)| run).collect();
    let (_, looks, _) = looked(&world, &sql, async |store| {
        store.page_attempts(&runs, 100).await.expect("attempts")
    })
    .await;
    assert!(looks < 2 * runs.len() as i64, "{looks} looks for {} runs", runs.len());
}

#[tokio::test]
async fn pages_read_what_they_show() {
    let world = World::new().await;
    let sql = world.sql().await;
    history(&world, &sql, "").await;
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
    let (read, page) = asked(&world, &sql, async |store| {
        store.groups(&last, None, 100).await.expect("groups")
    })
    .await;
    // Of so many groups one answer looks up the latest run; the rest is behind its cursor.
    assert_eq!(page.next.as_deref(), Some("g250"));
    check("groups whose last run failed", read, 250 * 20);
    let described = GroupFilter {
        text: Some("G_".into()),
        labels: vec![("team".into(), Some("none".into()))],
        ..GroupFilter::default()
    };
    for (what, filter, found) in [
        (
            "groups by a text that none has",
            GroupFilter {
                labels: Vec::new(),
                ..described.clone()
            },
            0,
        ),
        (
            "groups by a label that none has",
            GroupFilter {
                text: None,
                ..described
            },
            0,
        ),
    ] {
        let (read, page) = asked(&world, &sql, async |store| {
            store.groups(&filter, None, 50).await.expect("groups")
        })
        .await;
        assert_eq!(page.items.len(), found, "{what}");
        // Their own rows, and not their specs.
        check(what, read, 301 + 20);
    }
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
    history(&world, &sql, long).await;
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
