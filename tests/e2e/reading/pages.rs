//! Pages, and the lists beside runs.

use heddle_domain::Time;
use heddle_store::group::GroupFilter;
use heddle_store::pages::failures::FailuresMax;
use heddle_tests::World;
use tokio_postgres::Client;

use super::{READ_MAX, SHOWN, ago, apart, asked, history};

/// Lists of groups by a filter: what each reads, and may read.
async fn groups(world: &World, sql: &Client) -> Vec<(&'static str, i64, i64)> {
    let mut found = Vec::new();
    let last = GroupFilter {
        last_states: vec![Some(heddle_domain::state::RunState::Failed)],
        ..GroupFilter::default()
    };
    let (read, page) = asked(world, sql, async |store| {
        store.groups(&last, None, 100).await.expect("groups")
    })
    .await;
    // Of so many groups one answer looks up the latest run; the rest is behind its cursor.
    assert_eq!(page.next.as_deref(), Some("g250"));
    found.push(("groups whose last run failed", read, 250 * 20));
    let described = GroupFilter {
        text: Some("G_".into()),
        labels: vec![("team".into(), Some("none".into()))],
        ..GroupFilter::default()
    };
    for (what, filter, shown) in [
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
        let (read, page) = asked(world, sql, async |store| {
            store.groups(&filter, None, 50).await.expect("groups")
        })
        .await;
        assert_eq!(page.items.len(), shown, "{what}");
        // Their own rows, and not their specs.
        found.push((what, read, 301 + 20));
    }
    found
}

#[tokio::test]
async fn pages_read_what_they_show() {
    let world = World::new().await;
    let sql = world.sql().await;
    history(&world, &sql, "").await;
    let ids: Vec<i64> = apart(&world, &sql, async |session| {
        let rows = session.query("SELECT id FROM heddle.groups ORDER BY name", &[]).await;
        rows.expect("groups").iter().map(|row| row.get(0)).collect()
    })
    .await;
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
    let (read, rows) = asked(&world, &sql, async |store| {
        store.page_timeline(ago(1), ago(0), 41).await.expect("a timeline")
    })
    .await;
    assert_eq!(rows.len(), 41);
    check("forty lanes of a timeline", read, READ_MAX);
    let (read, bars) = asked(&world, &sql, async |store| {
        store.page_spread_bars(some, ago(1), 5).await.expect("bars")
    })
    .await;
    assert!(!bars.is_empty());
    check("bars of twenty groups, hour by hour", read, READ_MAX);
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
    let max = FailuresMax {
        newest: 300,
        groups: 300,
        each: 20,
    };
    let (read, failed) = asked(&world, &sql, async |store| {
        store.page_failures(ago(7), max).await.expect("failures")
    })
    .await;
    assert!(!failed.rows.is_empty());
    check("failures of a week", read, READ_MAX);
    // Not more than one of all groups: then it goes from group to group.
    let max = FailuresMax { newest: 1, ..max };
    let (read, failed) = asked(&world, &sql, async |store| {
        store.page_failures(ago(7), max).await.expect("failures")
    })
    .await;
    assert!(failed.more);
    check("failures of a week, group by group", read, 300 * (20 + 8));
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
    for (what, read, most) in groups(&world, &sql).await {
        check(what, read, most);
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
