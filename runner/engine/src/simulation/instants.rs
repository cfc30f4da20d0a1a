//! What is kept of instants when their runs are gone.

use heddle_store::retention::INSTANTS_KEPT;

use super::*;

/// The tables with rows that outlive their runs.
const TABLES: [&str; 2] = ["successes", "run_instants"];

/// Rows about instants of group `g`, each with the time at which its run was created. The runs are gone.
async fn remembered(world: &World, rows: &[(&str, &str)]) {
    for (instant, made) in rows {
        for table in TABLES {
            let row = format!(
                "INSERT INTO heddle.{table} (group_id, logical_time, run)
                 SELECT id, '{instant}', heddle.uuid_v7('{made}') FROM heddle.groups WHERE name = 'g'"
            );
            world.execute(&row).await;
        }
    }
}

/// Removes what is due; returns what is left in a table before `behind`.
async fn left_of_upkeep(world: &World, table: &str, behind: &str) -> String {
    let pruned = world.store.prune_instants(world.now() - INSTANTS_KEPT, 100).await;
    pruned.expect("a count");
    let left = format!(
        "SELECT coalesce(string_agg(to_char(logical_time AT TIME ZONE 'UTC', 'MM-DD HH24:MI'), ', '
                                    ORDER BY logical_time), '')
           FROM heddle.{table} WHERE logical_time < '{behind}'"
    );
    world.one(&left).await
}

/// A backfill of a time long ago leaves rows that are as young as its runs: followers may still need them.
#[tokio::test]
async fn instants_of_long_ago_are_kept_as_long_as_those_of_today() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", json!({})).await;
    let old = "2024-01-01T00:00:00Z";
    let rows = [
        ("2013-01-01T00:00:00Z", "2026-02-28T00:00:00Z"),
        ("2013-02-01T00:00:00Z", old),
        ("2013-03-01T00:00:00Z", "2025-02-01T00:00:00Z"),
        ("2013-04-01T00:00:00Z", old),
    ];
    remembered(&world, &rows).await;
    for table in TABLES {
        let left = left_of_upkeep(&world, table, "2014-01-01").await;
        assert_eq!(left, "01-01 00:00, 03-01 00:00, 04-01 00:00", "{table}");
    }
    world.pass(TimeDelta::days(500)).await;
    for table in TABLES {
        let left = left_of_upkeep(&world, table, "2014-01-01").await;
        assert_eq!(left, "04-01 00:00", "{table}: the newest");
    }
}

/// What a run that waits may need stays, however old its run is: the instants of its interval, and the last one before.
#[tokio::test]
async fn instants_that_a_waiting_run_needs_are_kept() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", json!({})).await;
    let hourly = json!({"schedules": {"s": {"cron": "0 * * * *"}}});
    world.group("upstream", hourly.clone()).await;
    let waits = with(hourly, json!({"depends_on": ["upstream"]}));
    world.group("waiting", waits).await;
    world.pass(TimeDelta::hours(1)).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    assert_eq!(
        world
            .one::<i64>("SELECT count(*) FROM heddle.waits WHERE upstreams")
            .await,
        1,
        "one run waits, for the interval from midnight"
    );
    let old = "2024-01-01T00:00:00Z";
    let instants = [
        "2026-02-28T22:00:00Z",
        "2026-02-28T23:00:00Z",
        "2026-03-01T00:15:00Z",
        "2026-03-01T00:30:00Z",
    ];
    remembered(&world, &instants.map(|instant| (instant, old))).await;
    for table in TABLES {
        let left = left_of_upkeep(&world, table, "2026-03-01T00:45:00Z").await;
        assert_eq!(left, "02-28 23:00, 03-01 00:15, 03-01 00:30", "{table}");
    }
    world.execute("DELETE FROM heddle.waits").await;
    for table in TABLES {
        let left = left_of_upkeep(&world, table, "2026-03-01T00:45:00Z").await;
        assert_eq!(left, "03-01 00:30", "{table}");
    }
}
