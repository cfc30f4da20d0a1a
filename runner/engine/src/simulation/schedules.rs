//! Schedules, groups that follow others, and backfills.

use heddle_domain::backfill::BackfillSpec;
use heddle_store::group::GroupDelete;

use super::*;
use crate::retention::{Pruner, Rounds};
use crate::runs::take::claimer::Claimer;
use crate::schedules::{Backfiller, Links, LookAhead, ScheduleReleaser, Started};

/// Every noon of March in Zurich, whose clocks are put forward on the 29th: no microsecond sooner, and none twice.
#[tokio::test]
async fn a_schedule_fires_at_exactly_the_instants_of_a_month() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let noon = json!({"cron": "0 12 * * *", "timezone": "Europe/Zurich"});
    world.group("g", json!({"schedules": {"noon": noon}})).await;
    let node = world.node(1).await;
    let mut scheduler = Scheduler(node.schedules());
    let mut rounds = Rounds::of(Arc::new(Pruner::new(node.node.clone())));
    let expected: Vec<Time> = (1..=31)
        .map(|day| at(&format!("2026-03-{day:02}T{}:00:00Z", if day < 29 { 11 } else { 10 })))
        .collect();
    for (day, instant) in expected.iter().enumerate() {
        world.set(*instant - TimeDelta::microseconds(1)).await;
        node.tick(&mut rounds).await;
        node.tick(&mut scheduler).await;
        assert_eq!(world.runs("running").await.len(), day, "before {instant}");
        world.set(*instant).await;
        node.tick(&mut scheduler).await;
        node.tick(&mut scheduler).await;
        assert_eq!(world.runs("running").await, expected[..=day]);
    }
}

/// A single instant that was missed makes a run late, or is skipped: then the schedule has not fired, and never does.
#[tokio::test]
async fn a_single_instant_that_is_skipped_has_not_fired() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let once = |misfire: &str| json!({"once": {"delay": "1m"}, "misfire": misfire, "grace": "1m"});
    let schedules = json!({"late": once("once"), "skipped": once("skip")});
    world.group("g", json!({"schedules": schedules})).await;
    world.pass(TimeDelta::hours(1)).await;
    let node = world.node(1).await;
    let mut scheduler = Scheduler(node.schedules());
    for _ in 0..2 {
        node.tick(&mut scheduler).await;
        let of = "SELECT name, fired_at IS NOT NULL, next_fire_at IS NOT NULL FROM heddle.schedules ORDER BY name";
        let rows = world.sql.query(of, &[]).await.expect("schedules");
        let found: Vec<(String, bool, bool)> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
        let expected = [("late", true, false), ("skipped", false, false)];
        assert_eq!(found, expected.map(|(name, fired, due)| (name.to_owned(), fired, due)));
        assert_eq!(world.runs("running").await.len(), 1);
    }
}

/// A group with an unreadable revision holds up only its followers, and these go on when it is repaired: the run that
/// waits for it, and the one that a success of another group calls for.
#[tokio::test]
async fn links_are_held_up_by_no_revision_that_cannot_be_read() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let hourly = json!({"schedules": {"s": {"every": "1h"}}});
    world.group("upstream", hourly.clone()).await;
    world.group("unreadable", json!({})).await;
    let follows = |groups: Value| json!({"depends_on": groups});
    world.group("called", follows(json!(["upstream"]))).await;
    world.group("held", follows(json!(["upstream", "unreadable"]))).await;
    let waits = |group: &str| {
        let mut spec = hourly.clone();
        spec["depends_on"] = json!([group]);
        spec
    };
    world.group("waiting", waits("upstream")).await;
    world.group("held-waiting", waits("unreadable")).await;
    let garble = async |from: &str, to: &str| {
        let statement = "UPDATE heddle.revisions SET spec = (spec - $1) || jsonb_build_object($2::text, spec -> $1)
              WHERE group_id = (SELECT id FROM heddle.groups WHERE name = 'unreadable')";
        assert_eq!(
            world.sql.execute(statement, &[&from, &to]).await.expect("a revision"),
            1
        );
    };
    garble("tasks", "no tasks").await;
    world.pass(TimeDelta::hours(1)).await;
    let instant = world.now();
    let node = world.node(1).await;
    let schedules = node.schedules();
    node.tick(&mut Scheduler(schedules.clone())).await;
    let [first] = node.begun()[..] else {
        panic!("the upstream's run has begun, those that follow wait");
    };
    node.end(first, Ending::Succeeded("null".into())).await;
    let made = async || {
        let of = "SELECT g.name FROM heddle.runs_live r JOIN heddle.groups g ON g.id = r.group_id
              WHERE NOT EXISTS (SELECT FROM heddle.waits w WHERE w.run = r.id AND w.upstreams) ORDER BY 1";
        let rows = world.sql.query(of, &[]).await.expect("runs");
        rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
    };
    let mut links = Links::of(schedules);
    node.tick(&mut links).await;
    node.tick(&mut links).await;
    assert_eq!(made().await, ["called", "waiting"]);
    // It is repaired, and has succeeded: what was left is checked after a while, and the waiting run by the sweep.
    garble("no tasks", "tasks").await;
    let micros = instant.timestamp_micros();
    let succeeded = "INSERT INTO heddle.successes (group_id, logical_time, run)
         SELECT id, to_timestamp($1::bigint / 1000000.0), gen_random_uuid() FROM heddle.groups WHERE name = 'unreadable'";
    world.sql.execute(succeeded, &[&micros]).await.expect("a success");
    node.tick(&mut links).await;
    assert_eq!(made().await, ["called", "waiting"]);
    for _ in 0..2 {
        node.node.register().await.expect("a lease");
        world.pass(TimeDelta::seconds(16)).await;
        node.node.register().await.expect("a lease");
        node.tick(&mut links).await;
    }
    assert_eq!(made().await, ["called", "held", "held-waiting", "waiting"]);
    let left = world
        .sql
        .query_one("SELECT count(*) FROM heddle.link_events", &[])
        .await;
    assert_eq!(left.expect("a count").get::<_, i64>(0), 0);
}

/// An event of a kind that only a newer version knows stays for a node of that version, and delays no other event.
#[tokio::test]
async fn an_event_of_an_unknown_kind_is_left_to_newer_nodes() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", json!({})).await;
    world
        .execute(
            "ALTER TABLE heddle.link_events DROP CONSTRAINT link_events_kind_check;
             DELETE FROM heddle.link_events;
             INSERT INTO heddle.link_events (kind, group_id, run) SELECT 9, id, gen_random_uuid() FROM heddle.groups;
             INSERT INTO heddle.link_events (kind, group_id) SELECT 2, id FROM heddle.groups",
        )
        .await;
    let node = world.node(1).await;
    let mut links = Links::of(node.schedules());
    node.tick(&mut links).await;
    // This waits until the transaction that took both events is rolled back.
    world.execute("SELECT FROM heddle.link_events FOR UPDATE").await;
    node.tick(&mut links).await;
    let kinds = world.sql.query("SELECT kind FROM heddle.link_events", &[]).await;
    let kinds: Vec<i16> = kinds.expect("events").iter().map(|row| row.get(0)).collect();
    assert_eq!(kinds, [9]);
}

/// A backfill makes the runs of its instants, as many at once as it may, in their order, each once.
#[tokio::test]
async fn a_backfill_goes_through_its_instants_a_few_at_once() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world
        .group("g", json!({"history": true, "schedules": {"s": {"cron": "0 0 * * *"}}}))
        .await;
    let node = world.node(1).await;
    let schedules = node.schedules();
    let asked = json!({"from": "2026-02-01", "to": "2026-02-07", "max_active": 3});
    let spec: BackfillSpec = serde_json::from_value(asked.clone()).expect("a backfill");
    let started = schedules.start_backfill("g", spec, &asked, "test").await;
    assert!(matches!(started, Ok(Started::Made(_))));
    let mut backfiller = Backfiller::of(schedules);
    let mut claimer = Claimer::of(node.runs.clone());
    let days: Vec<Time> = (1..=7).map(|day| at(&format!("2026-02-{day:02}T00:00:00Z"))).collect();
    for done in 0..days.len() {
        for _ in 0..2 {
            node.tick(&mut backfiller).await;
            node.tick(&mut claimer).await;
        }
        let until = (done + 3).min(days.len());
        assert_eq!(world.runs("running").await, days[done..until], "after {done} ends");
        let first = node.begun.0.lock().remove(0);
        node.end(first, Ending::Succeeded("null".into())).await;
    }
    node.tick(&mut backfiller).await;
    assert_eq!(world.runs("succeeded").await, days);
    assert!(world.runs("running").await.is_empty());
}

/// A backfill of a group that was deleted and put again is not cancelled by a node that still knows the former group of this
/// name: it waits until it knows more. The deletion of its own group cancels it.
#[tokio::test]
async fn a_backfill_waits_for_a_node_that_knows_a_former_group() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let spec = json!({"history": true, "schedules": {"s": {"cron": "0 0 * * *"}}});
    world.group("g", spec.clone()).await;
    let (late, other) = (world.node(1).await, world.node(2).await);
    let known = late.node.catalog.group("g").await.expect("an answer");
    let delete = async || {
        let deleted = world.store.delete_group(world.by(), "g", true, None).await;
        assert!(matches!(deleted, Ok(GroupDelete::Deleted { .. })));
    };
    delete().await;
    world.group("g", spec).await;
    let asked = json!({"from": "2026-02-01", "to": "2026-02-01"});
    let backfill: BackfillSpec = serde_json::from_value(asked.clone()).expect("a backfill");
    let started = other.schedules().start_backfill("g", backfill, &asked, "test").await;
    let Ok(Started::Made(id)) = started else {
        panic!("{started:?}");
    };
    let row = async || {
        let row = world.store.backfill(id).await.expect("an answer");
        row.expect("a backfill")
    };
    assert_ne!(known.expect("a group").id, row().await.group_id);
    let state = row().await.state;
    let mut backfiller = Backfiller::of(late.schedules());
    late.tick(&mut backfiller).await;
    let waits = row().await;
    assert_eq!((waits.state, waits.note, waits.made), (state, None, 0));
    late.node.catalog.forget_names();
    // The row may still be locked by the round before, until that is rolled back.
    until(async || {
        late.tick(&mut backfiller).await;
        !world.runs("running").await.is_empty()
    })
    .await;
    assert_eq!(world.runs("running").await, [at("2026-02-01T00:00:00Z")]);
    delete().await;
    until(async || {
        late.tick(&mut backfiller).await;
        row().await.note.is_some()
    })
    .await;
    assert_eq!(row().await.note.as_deref(), Some("the group was deleted"));
}

/// The source of a backfill's instants is not kept if all was forgotten since the backfill was read: then another server may
/// have another revision under this number.
#[tokio::test]
async fn a_source_from_before_all_was_forgotten_is_not_kept() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world
        .group("g", json!({"history": true, "schedules": {"s": {"cron": "0 0 * * *"}}}))
        .await;
    let node = world.node(1).await;
    let (schedules, catalog) = (node.schedules(), &node.node.catalog);
    let asked = json!({"from": "2026-02-01", "to": "2026-02-07"});
    let spec: BackfillSpec = serde_json::from_value(asked.clone()).expect("a backfill");
    let started = schedules.start_backfill("g", spec, &asked, "test").await;
    let Ok(Started::Made(id)) = started else {
        panic!("{started:?}");
    };
    let before = catalog.generation();
    let row = world.store.backfill(id).await.expect("an answer").expect("a backfill");
    catalog.forget_all();
    let source = async |generation: u64| schedules.backfill_source(&row, generation).await.expect("a source");
    let former = source(before).await;
    let fresh = source(catalog.generation()).await;
    assert!(!Arc::ptr_eq(&former, &fresh), "it was not kept");
    assert!(Arc::ptr_eq(&fresh, &source(before).await), "this one is kept");
}

/// A pinned rerun whose script versions are not known makes no run: with others, it would be another run. It goes on when
/// they are there again.
#[tokio::test]
async fn a_pinned_rerun_takes_no_other_versions() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world
        .group("g", json!({"history": true, "schedules": {"s": {"cron": "0 0 * * *"}}}))
        .await;
    let node = world.node(1).await;
    let schedules = node.schedules();
    let mut backfiller = Backfiller::of(schedules.clone());
    let mut claimer = Claimer::of(node.runs.clone());
    let rerun = async |more: Value| {
        let asked = with(json!({"from": "2026-02-01", "to": "2026-02-01"}), more);
        let spec: BackfillSpec = serde_json::from_value(asked.clone()).expect("a backfill");
        let started = schedules.start_backfill("g", spec, &asked, "test").await;
        assert!(matches!(started, Ok(Started::Made(_))));
    };
    let mut tick = async || {
        node.tick(&mut backfiller).await;
        node.tick(&mut claimer).await;
    };
    rerun(json!({})).await;
    tick().await;
    let first = node.begun.0.lock().remove(0);
    node.end(first, Ending::Succeeded("null".into())).await;
    tick().await;
    let hidden = "CREATE TABLE kept AS SELECT * FROM heddle.resolutions; DELETE FROM heddle.resolutions";
    world.sql.batch_execute(hidden).await.expect("no resolutions");
    rerun(json!({"on_existing": "all", "scripts": "pinned"})).await;
    tick().await;
    assert!(world.runs("running").await.is_empty());
    let back = "INSERT INTO heddle.resolutions OVERRIDING SYSTEM VALUE SELECT * FROM kept";
    world.sql.batch_execute(back).await.expect("the resolutions");
    tick().await;
    assert_eq!(world.runs("running").await, [at("2026-02-01T00:00:00Z")]);
}

/// A schedule that waits for a run which has ended without it is counted from that end, or, if nothing is left of the run,
/// from when that is noticed. As long as the run lives, the schedule waits.
#[tokio::test]
async fn a_schedule_that_waits_in_vain_is_counted_from_the_end_of_its_run() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", json!({"schedules": {"s": {"after": "10m"}}})).await;
    let node = world.node(1).await;
    let schedules = node.schedules();
    let (mut scheduler, mut releaser) = (Scheduler(schedules.clone()), ScheduleReleaser::of(&schedules));
    let (minute, ten) = (TimeDelta::minutes(1), TimeDelta::minutes(10));
    let due_at = async || world.instant("SELECT next_fire_at AS at FROM heddle.schedules").await;
    world.pass_for(&node, ten).await;
    node.tick(&mut scheduler).await;
    let first = node.only_begun();
    world.pass(TimeDelta::seconds(5)).await;
    assert_eq!(node.tick(&mut releaser).await, Duration::from_secs(60));
    assert_eq!(due_at().await, None, "its run lives");
    // Its run ends, and whoever recorded that did not move it on.
    let waits = format!(
        "UPDATE heddle.schedules SET awaits = '{}', next_fire_at = NULL",
        first.0
    );
    node.end(first, Ending::Succeeded("null".into())).await;
    world.execute(&waits).await;
    let ended_at = world.now();
    world.pass_for(&node, minute).await;
    node.tick(&mut releaser).await;
    assert_eq!(due_at().await, Some(ended_at + ten));
    world.pass_for(&node, ten - minute - MOMENT).await;
    node.tick(&mut scheduler).await;
    assert_eq!(node.begun(), []);
    world.pass_for(&node, MOMENT).await;
    node.tick(&mut scheduler).await;
    let second = node.only_begun();
    // This one was removed as well.
    let waits = format!(
        "UPDATE heddle.schedules SET awaits = '{}', next_fire_at = NULL",
        second.0
    );
    node.end(second, Ending::Succeeded("null".into())).await;
    world.execute("DELETE FROM heddle.runs_done").await;
    world.execute(&waits).await;
    world.pass_for(&node, minute).await;
    node.tick(&mut releaser).await;
    assert_eq!(due_at().await, Some(world.now() + ten));
}

/// What schedules need is read a second and a half before they are due, and no microsecond sooner. From one look to the
/// next, none is left out. What is read is enough: the runs are there on time although the revisions cannot be read any
/// more.
#[tokio::test]
async fn what_is_due_soon_is_read_ahead() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    // The first is due after an hour, the second as late as the second look sees, the third a little later.
    for (name, delay) in [("a", "3600s"), ("b", "3600250ms"), ("c", "3600251ms")] {
        let once = json!({"schedules": {"s": {"once": {"delay": delay}}}});
        world.group(name, once).await;
    }
    let (early, node) = (world.node(1).await, world.node(2).await);
    let (mut too_early, mut ahead) = (LookAhead::of(&early.schedules()), LookAhead::of(&node.schedules()));
    let pause = Duration::from_millis(250);
    world
        .pass(TimeDelta::hours(1) - TimeDelta::milliseconds(1_500) - MOMENT)
        .await;
    assert_eq!(early.tick(&mut too_early).await, pause);
    world.pass(MOMENT).await;
    assert_eq!(node.tick(&mut ahead).await, pause);
    world.pass(TimeDelta::milliseconds(250)).await;
    node.tick(&mut ahead).await;
    world.execute("UPDATE heddle.revisions SET spec = '{}'").await;
    let known = async |node: &Simulated, group: &str| {
        let id = format!("SELECT revision_id FROM heddle.groups WHERE name = '{group}'");
        let current = node.node.catalog.current(&[world.one(&id).await]).await;
        !current.expect("an answer").is_empty()
    };
    assert!(!known(&early, "a").await);
    assert!(known(&node, "a").await && known(&node, "b").await);
    assert!(!known(&node, "c").await);
    for millis in [1_250, 250] {
        world.pass_for(&node, TimeDelta::milliseconds(millis) - MOMENT).await;
        node.tick(&mut Scheduler(node.schedules())).await;
        assert_eq!(node.begun(), []);
        world.pass_for(&node, MOMENT).await;
        node.tick(&mut Scheduler(node.schedules())).await;
        node.only_begun();
    }
}

/// When a failed run is deleted, those that wait for its instant are checked at once, and not by the sweep half a minute
/// later: although the group has had a newer instant.
#[tokio::test]
async fn a_deleted_run_wakes_those_that_wait_for_its_instant() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let hourly = json!({"schedules": {"s": {"every": "1h"}}});
    world.group("upstream", hourly.clone()).await;
    world
        .group("waiting", with(hourly, json!({"depends_on": ["upstream"]})))
        .await;
    let node = world.node(1).await;
    let schedules = node.schedules();
    let mut scheduler = Scheduler(schedules.clone());
    let mut failed = Vec::new();
    for _ in 0..2 {
        world.pass_for(&node, TimeDelta::hours(1)).await;
        node.tick(&mut scheduler).await;
        let begun = node.only_begun();
        node.end(begun, Ending::failed(ErrorKind::Failed, "on purpose")).await;
        failed.push(begun.0);
    }
    let waits = async || {
        let count = "SELECT count(*) FROM heddle.waits WHERE upstreams";
        world.one::<i64>(count).await
    };
    let mut links = Links::of(schedules);
    node.tick(&mut links).await;
    assert_eq!(waits().await, 2);
    for (left, run) in [(1, failed[0]), (0, failed[1])] {
        let deleted = world.store.delete_runs(world.by(), &[run]).await;
        assert_eq!(deleted.expect("an answer"), [run]);
        node.tick(&mut links).await;
        assert_eq!(waits().await, left);
    }
}

/// The data interval of a fixed delay's run begins at the instant of the run before it. The first one's is empty.
#[tokio::test]
async fn the_data_interval_of_a_fixed_delay_begins_at_the_run_before() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", json!({"schedules": {"s": {"after": "10m"}}})).await;
    let node = world.node(1).await;
    let schedules = node.schedules();
    let mut scheduler = Scheduler(schedules.clone());
    let start = async || world.instant("SELECT interval_start AS at FROM heddle.runs_live").await;
    let ten = TimeDelta::minutes(10);
    world.pass_for(&node, ten).await;
    node.tick(&mut scheduler).await;
    let first = world.now();
    assert_eq!(start().await, Some(first));
    let begun = node.only_begun();
    world.pass(TimeDelta::seconds(5)).await;
    node.end(begun, Ending::Succeeded("null".into())).await;
    world.pass_for(&node, ten).await;
    node.tick(&mut scheduler).await;
    assert_eq!(world.runs("running").await, [world.now()]);
    assert_eq!(start().await, Some(first));
    // So does that of the run that follows it.
    world.group("follows", json!({"depends_on": ["g"]})).await;
    node.end(node.only_begun(), Ending::Succeeded("null".into())).await;
    node.tick(&mut Links::of(schedules)).await;
    assert_eq!(world.runs("running").await, [world.now()]);
    assert_eq!(start().await, Some(first));
}

const HALF: TimeDelta = TimeDelta::minutes(30);

/// How many runs wait for other groups, and for how many instants.
async fn waits(world: &World) -> (i64, i64) {
    let runs = "SELECT count(*) FROM heddle.waits WHERE upstreams";
    let instants = "SELECT count(*) FROM heddle.needs";
    (world.one(runs).await, world.one(instants).await)
}

/// A group with a schedule that names the middle of each hour.
fn half_past(enabled: bool, history: bool) -> Value {
    let schedule = json!({"cron": "30 * * * *", "enabled": enabled});
    json!({"history": history, "schedules": {"s": schedule}})
}

/// A group that is due every four hours, and follows another one.
fn every_four_hours(upstream: &str, need: &str) -> Value {
    let above = json!([{"group": upstream, "need": need}]);
    json!({"schedules": {"d": {"cron": "0 */4 * * *"}}, "depends_on": above})
}

/// The instants of a schedule in the time in which it was disabled hold up nobody who needs all instants of an interval,
/// although its group was enabled and keeps history. Those that have a run all the same do.
#[tokio::test]
async fn an_interval_does_not_need_what_a_disabled_schedule_names() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("upstream", half_past(true, true)).await;
    world.group("follower", every_four_hours("upstream", "interval")).await;
    let node = world.node(1).await;
    let schedules = node.schedules();
    let (mut scheduler, mut links) = (Scheduler(schedules.clone()), Links::of(schedules));
    // A run with the time of its creation as logical time is not one of a schedule.
    world.pass_for(&node, MOMENT).await;
    world.pass_for(&node, HALF).await;
    node.tick(&mut scheduler).await;
    node.end(node.only_begun(), Ending::Succeeded("null".into())).await;
    // At a quarter to.
    world.pass_for(&node, HALF / 2).await;
    world.group("upstream", half_past(false, true)).await;
    for _ in 0..2 {
        world.pass_for(&node, TimeDelta::hours(1)).await;
        node.tick(&mut scheduler).await;
    }
    assert_eq!(node.begun(), [], "it is disabled");
    world.group("upstream", half_past(true, true)).await;
    world.pass_for(&node, TimeDelta::minutes(45)).await;
    node.tick(&mut scheduler).await;
    let last = node.only_begun();
    world.pass_for(&node, HALF).await;
    node.tick(&mut scheduler).await;
    node.tick(&mut links).await;
    assert_eq!(waits(&world).await, (1, 1), "for the run that has begun");
    // The node has another lease than when this one began, as a node has that took it over.
    let lease = node.runs.lease();
    world
        .execute(&format!("UPDATE heddle.running SET lease = {lease}"))
        .await;
    node.end(last, Ending::Succeeded("null".into())).await;
    node.tick(&mut links).await;
    assert_eq!(waits(&world).await, (0, 0));

    // Disabled again, until after the next four hours. Somebody has made one run, which has not succeeded.
    world.group("upstream", half_past(false, true)).await;
    world
        .execute(
            "INSERT INTO heddle.run_instants (group_id, logical_time, run)
             SELECT id, '2026-03-01T05:30:00Z', gen_random_uuid() FROM heddle.groups WHERE name = 'upstream'",
        )
        .await;
    for _ in 0..4 {
        world.pass_for(&node, TimeDelta::hours(1)).await;
        node.tick(&mut scheduler).await;
    }
    node.tick(&mut links).await;
    assert_eq!(waits(&world).await, (1, 1), "for the run that was made");
}

/// If all schedules of a group were disabled, its last instant has no run, and the one before it is not needed.
#[tokio::test]
async fn the_latest_instant_is_one_of_a_disabled_schedule() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("upstream", half_past(true, false)).await;
    world.group("follower", every_four_hours("upstream", "latest")).await;
    let node = world.node(1).await;
    let schedules = node.schedules();
    let (mut scheduler, mut links) = (Scheduler(schedules.clone()), Links::of(schedules));
    world.pass_for(&node, HALF).await;
    node.tick(&mut scheduler).await;
    node.end(node.only_begun(), Ending::failed(ErrorKind::Failed, "on purpose"))
        .await;
    world.pass_for(&node, HALF / 2).await;
    world.group("upstream", half_past(false, false)).await;
    world.pass_for(&node, TimeDelta::minutes(195)).await;
    node.tick(&mut scheduler).await;
    assert_eq!(world.one::<i64>("SELECT count(*) FROM heddle.runs_live").await, 1);
    node.tick(&mut links).await;
    assert_eq!(waits(&world).await, (0, 0));
}

/// A backfill makes the runs of the time in which a schedule was disabled: the runs of dependants that it calls for wait for
/// all of them.
#[tokio::test]
async fn a_backfill_of_a_disabled_schedule_is_waited_for() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("upstream", half_past(false, true)).await;
    let follower = with(every_four_hours("upstream", "interval"), json!({"history": true}));
    world.group("follower", follower).await;
    world.pass(TimeDelta::hours(5)).await;
    let node = world.node(1).await;
    let schedules = node.schedules();
    let asked = json!({"from": "2026-03-01T00:30:00Z", "to": "2026-03-01T03:30:00Z", "include_downstream": true});
    let spec: BackfillSpec = serde_json::from_value(asked.clone()).expect("a backfill");
    let started = schedules.start_backfill("upstream", spec, &asked, "test").await;
    assert!(matches!(started, Ok(Started::Made(_))));
    let (mut backfiller, mut links) = (Backfiller::of(schedules.clone()), Links::of(schedules));
    let mut claimer = Claimer::of(node.runs.clone());
    for left in [3, 2, 1, 0] {
        for _ in 0..2 {
            node.tick(&mut backfiller).await;
            node.tick(&mut claimer).await;
        }
        node.end(node.only_begun(), Ending::Succeeded("null".into())).await;
        node.tick(&mut links).await;
        node.tick(&mut links).await;
        assert_eq!(waits(&world).await, (left.min(1), left), "{left} are left");
    }
}

/// When a schedule is disabled is kept as long as the schedule is there, whoever writes the revision, and was known to the
/// revisions from before it was kept.
#[tokio::test]
async fn the_times_of_disabled_schedules() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let times = async || {
        let told =
            "SELECT coalesce(string_agg(concat_ws(' ', g.name, d.name, to_char(since AT TIME ZONE 'UTC', 'HH24:MI'),
                           to_char(until AT TIME ZONE 'UTC', 'HH24:MI')), ', ' ORDER BY g.name, d.name, since), '')
                      FROM heddle.schedule_disabled d JOIN heddle.groups g ON g.id = d.group_id";
        world.one::<String>(told).await
    };
    let put = async |name: &str, enabled: &[(&str, bool)]| {
        let schedules: serde_json::Map<String, Value> = enabled
            .iter()
            .map(|(name, enabled)| ((*name).to_owned(), json!({"cron": "0 0 * * *", "enabled": enabled})))
            .collect();
        // Each is another spec.
        let more = json!({"schedules": schedules, "description": world.now().to_string()});
        world.group(name, more).await;
        world.pass(TimeDelta::hours(1)).await;
    };
    put("g", &[("a", false), ("b", true)]).await;
    put("g", &[("a", false), ("b", false)]).await;
    put("g", &[("a", true), ("b", false)]).await;
    put("other", &[("a", false)]).await;
    put("g", &[("a", false), ("b", false)]).await;
    put("g", &[("a", false), ("b", false)]).await;
    let expected = "g a 00:00 02:00, g a 04:00, g b 01:00, other a 03:00";
    assert_eq!(times().await, expected);
    let migration = include_str!("../../../../migrations/0128_disabled_schedules.sql");
    let (_, kept_before) = migration
        .split_once("-- What earlier revisions say")
        .expect("its last part");
    let (_, kept_before) = kept_before.split_once('\n').expect("a statement");
    world.execute("DELETE FROM heddle.schedule_disabled").await;
    world.execute(kept_before).await;
    assert_eq!(times().await, expected);
    // One is left out, and one group is deleted.
    put("g", &[("b", false)]).await;
    assert_eq!(times().await, "g b 01:00, other a 03:00");
    let deleted = world.store.delete_group(world.by(), "other", false, None).await;
    assert!(matches!(deleted, Ok(GroupDelete::Deleted { .. })));
    assert_eq!(times().await, "g b 01:00");
}
