//! Lists of runs.

use heddle_domain::id::RunId;
use heddle_domain::state::{RunState, Trigger};
use heddle_store::Store;
use heddle_store::run::RunFilter;
use heddle_tests::World;
use uuid::Uuid;

use super::{READ_MAX, RUNS, SHOWN, ago, asked, history, looked};

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn of(groups: &[&str]) -> RunFilter {
    RunFilter {
        groups: words(groups),
        ..RunFilter::default()
    }
}

fn in_states(states: &[RunState]) -> RunFilter {
    RunFilter {
        states: states.to_vec(),
        ..RunFilter::default()
    }
}

fn triggered_by(trigger: Trigger) -> RunFilter {
    RunFilter {
        triggers: vec![trigger],
        ..RunFilter::default()
    }
}

fn labelled(name: &str, value: Option<&str>) -> RunFilter {
    RunFilter {
        labels: vec![(name.to_owned(), value.map(str::to_owned))],
        ..RunFilter::default()
    }
}

fn keyed(key: &str) -> RunFilter {
    RunFilter {
        key: Some(key.to_owned()),
        ..RunFilter::default()
    }
}

fn with_queue(queue: &str) -> RunFilter {
    RunFilter {
        queues: words(&[queue]),
        ..RunFilter::default()
    }
}

fn with_script(script: &str) -> RunFilter {
    RunFilter {
        scripts: words(&[script]),
        ..RunFilter::default()
    }
}

fn made_by(source: u128) -> RunFilter {
    RunFilter {
        source: Some(Uuid::from_u128(source)),
        ..RunFilter::default()
    }
}

/// The backfill that made some runs of the history.
const BACKFILL: u128 = 0x7000_8000_0000_0000_0001;

/// The first runs of a hot view of three days.
fn hot(filter: RunFilter) -> RunFilter {
    RunFilter {
        ended_since: Some(ago(3)),
        ..filter
    }
}

/// Lists, the number of runs that each shows, and the number of entries that it may read beyond [`READ_MAX`].
fn lists() -> Vec<(&'static str, RunFilter, usize, i64)> {
    let page = SHOWN as usize;
    let failed_of_idle = RunFilter {
        states: vec![RunState::Failed],
        ..of(&["idle"])
    };
    let behind_a_cursor = RunFilter {
        before: Some(RunId(Uuid::from_u128((ago(30).timestamp_millis() as u128) << 80))),
        ..of(&["idle"])
    };
    vec![
        ("all", RunFilter::default(), page, 0),
        ("a group", of(&["g001"]), page, 0),
        ("a group that is idle", of(&["idle"]), page, 0),
        ("three groups", of(&["g001", "g002", "idle"]), page, 0),
        ("no group of that name", of(&["nobody"]), 0, 0),
        ("failed", in_states(&[RunState::Failed]), page, 0),
        ("cancelled", in_states(&[RunState::Cancelled]), page, 0),
        (
            "failed or under way",
            in_states(&[RunState::Running, RunState::Failed]),
            page,
            0,
        ),
        ("failed of a group without", failed_of_idle, 0, 0),
        (
            "under way",
            in_states(&[RunState::Waiting, RunState::Running, RunState::Paused]),
            0,
            0,
        ),
        ("a key", keyed("k-12340"), 1, 0),
        ("a key of none", keyed("k-1"), 0, 0),
        ("a backfill", made_by(BACKFILL), page, 0),
        ("a backfill of none", made_by(1), 0, 0),
        (
            "failed of a backfill",
            RunFilter {
                states: vec![RunState::Failed],
                ..made_by(BACKFILL)
            },
            0,
            0,
        ),
        (
            "a backfill, a group",
            RunFilter {
                groups: words(&["idle"]),
                ..made_by(BACKFILL)
            },
            page,
            0,
        ),
        ("a queue", with_queue("letters"), page, 0),
        ("a queue of none", with_queue("nobody"), 0, 0),
        // Some of its revisions are found first, and of each run that is looked at its own.
        ("a script of most", with_script("echo"), page, 0),
        // The newest two thousand are looked at, then the index of labels.
        ("a label of few", labelled("customer", Some("c5")), page, 2_000),
        ("a label of many", labelled("team", None), page, 0),
        ("a label of nobody", labelled("customer", Some("nobody")), 0, 2_000),
        // There are six; an answer looks at ten thousand runs.
        ("a trigger that is rare", triggered_by(Trigger::Backfill), 2, 10_000),
        ("a script of one", with_script("fib"), page, 0),
        ("behind a cursor", behind_a_cursor, page, 0),
        ("hot, a group that is idle", hot(of(&["idle"])), 0, 0),
        ("hot", hot(RunFilter::default()), page, 0),
    ]
}

#[tokio::test]
async fn lists_of_runs_read_what_they_show() {
    let world = World::new().await;
    let sql = world.sql().await;
    history(&world, &sql, "").await;
    let mut wrong = Vec::new();
    for (what, filter, found, more) in lists() {
        let (read, runs) = asked(&world, &sql, async |store| {
            store.runs(&filter, SHOWN).await.expect(what).items
        })
        .await;
        assert_eq!(runs.len(), found, "{what}");
        assert!(
            runs.windows(2).all(|pair| pair[0].id > pair[1].id),
            "{what}: newest first"
        );
        if read > READ_MAX + more {
            wrong.push(format!("{what}: {read} of {RUNS}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Filters, the number of runs of one page, and the same condition in SQL.
fn searches() -> Vec<(RunFilter, i64, String)> {
    let c5 = || labelled("customer", Some("c5"));
    let under_way = RunFilter {
        states: vec![RunState::Running],
        ..c5()
    };
    let of_a_team = RunFilter {
        triggers: vec![Trigger::Schedule],
        ..labelled("team", None)
    };
    let failed = RunFilter {
        states: vec![RunState::Failed],
        ..with_script("echo")
    };
    let both = RunFilter {
        scripts: words(&["echo"]),
        ..c5()
    };
    let (from, to) = (ago(20), ago(19));
    let a_day = RunFilter {
        logical_from: Some(from),
        logical_to: Some(to),
        ..RunFilter::default()
    };
    let of_a_day = format!("logical_time BETWEEN '{from}' AND '{to}'");
    let searches = [
        (c5(), 7, "labels @> '{\"customer\": \"c5\"}'"),
        (under_way, 2, "labels @> '{\"customer\": \"c5\"}' AND state = 1"),
        (
            labelled("batch", Some("morning")),
            1_500,
            "labels @> '{\"batch\": \"morning\"}'",
        ),
        (
            labelled("batch", Some("noon")),
            6_000,
            "labels @> '{\"batch\": \"noon\"}'",
        ),
        (of_a_team, 500, "labels ? 'team' AND trigger = 1"),
        (triggered_by(Trigger::Backfill), 3, "trigger = 2"),
        (
            failed,
            100,
            "group_id <> (SELECT id FROM heddle.groups WHERE name = 'g007') AND state = 4",
        ),
        (
            both,
            5,
            "group_id <> (SELECT id FROM heddle.groups WHERE name = 'g007') AND labels @> '{\"customer\": \"c5\"}'",
        ),
        (a_day, 100, &of_a_day),
        (
            in_states(&[RunState::Running, RunState::Cancelled]),
            50,
            "state IN (1, 5)",
        ),
        (
            of(&["idle", "g003"]),
            500,
            "group_id IN (SELECT id FROM heddle.groups WHERE name IN ('idle', 'g003'))",
        ),
    ];
    searches
        .map(|(filter, limit, condition)| (filter, limit, condition.to_owned()))
        .into()
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
    for (mut filter, limit, condition) in searches() {
        let what = format!("{filter:?}");
        let mut found: Vec<Uuid> = Vec::new();
        loop {
            let page = store.runs(&filter, limit).await.expect(&what);
            assert!(page.items.len() as i64 <= limit, "{what}");
            found.extend(page.items.iter().map(|run| run.id));
            let Some(next) = page.next else { break };
            let next: Uuid = next.parse().expect("an id");
            assert!(filter.before.is_none_or(|before| before.0 > next), "{what}: it goes on");
            filter.before = Some(RunId(next));
        }
        let columns = "id, group_id, labels, state, trigger, logical_time";
        let wanted: Vec<Uuid> = sql
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
        assert!(found == wanted, "{what}: {} of {}", found.len(), wanted.len());
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
        let filter = with_queue(queue);
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
    // (Days that are made ahead are looked into first, and the names of what is found are looked up.)
    for (what, filter, most) in [
        ("all", RunFilter::default(), 45),
        ("failed", in_states(&[RunState::Failed]), 45),
        ("a group", of(&["g001"]), 45),
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
    let runs: Vec<Uuid> = newest.into_iter().map(|(run, _)| run).collect();
    let (_, looks, _) = looked(&world, &sql, async |store| {
        store.page_attempts(&runs, 100).await.expect("attempts")
    })
    .await;
    assert!(looks < 2 * runs.len() as i64, "{looks} looks for {} runs", runs.len());
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
                Some(next) => filter.before = Some(RunId(next.parse().expect("an id"))),
                None => break,
            }
        }
        // Five thousand are looked at by a page that is not full.
        assert!(pages >= 3, "{groups:?}: {pages}");
        all.push((groups, found));
    }
    // (This session's own reading would be counted.)
    for (groups, found) in all {
        let wanted: Vec<Uuid> = sql
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
