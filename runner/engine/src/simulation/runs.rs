//! Runs: retries, gates, slots of pools, and their removal.

use futures::FutureExt;
use heddle_store::StoreError;
use heddle_store::group::GroupDelete;

use super::*;
use crate::EngineError;
use crate::node::signals::Signal;
use crate::retention::{Pruner, Rounds};
use crate::runs::control::{BulkAction, ControlError};
use crate::runs::inbox::{Inbox, Reaper};
use crate::runs::take::claimer::Claimer;
use crate::runs::take::pools::Admitter;

/// Between a failure and the next attempt, a task run waits for its interval: exact to the microsecond.
#[tokio::test]
async fn a_retry_waits_its_backoff() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let retry = json!({"strategy": "exponential", "retries": 3, "interval": "10m"});
    let task = json!({"http": {"url": "http://example.com/"}, "retry": retry});
    let spec = json!({"tasks": {"t": task}, "schedules": {"s": {"once": {"delay": "1s"}}}});
    world.group("g", spec).await;
    world.pass(TimeDelta::seconds(1)).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    let (mut inbox, mut claimer) = (Inbox(node.runs.clone()), Claimer::of(node.runs.clone()));
    for (attempt, minutes) in [(1, 10), (2, 20), (3, 40)] {
        let (run, at) = node.only_begun();
        assert_eq!(at.attempt, attempt);
        node.end((run, at), Ending::failed(ErrorKind::Failed, "on purpose"))
            .await;
        // It holds its lease all the time, without heartbeats.
        node.node.register().await.expect("a lease");
        world
            .pass(TimeDelta::minutes(minutes) - TimeDelta::microseconds(1))
            .await;
        node.node.register().await.expect("a lease");
        node.tick(&mut inbox).await;
        node.tick(&mut claimer).await;
        assert_eq!(node.begun(), [], "attempt {} is not due", attempt + 1);
        world.pass(TimeDelta::microseconds(1)).await;
        node.tick(&mut inbox).await;
        node.tick(&mut claimer).await;
        assert_eq!(node.begun.0.lock().len(), 1, "attempt {}", attempt + 1);
    }
    let last = node.only_begun();
    node.end(last, Ending::failed(ErrorKind::Failed, "on purpose")).await;
    assert_eq!(world.runs("failed").await.len(), 1, "three retries are all");
}

/// A node dies after it has deleted a group, and before it has cancelled the group's runs: any node cancels them when the group
/// has been deleted for ten seconds. A run that cannot be read keeps none of the others.
#[tokio::test]
async fn runs_of_a_deleted_group_are_cancelled_by_any_node() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let schedules = json!({"a": {"once": {"delay": "1s"}}, "b": {"once": {"delay": "2s"}}});
    let spec = with(queued(json!({})), json!({"schedules": schedules}));
    world.group("g", spec).await;
    let dies = world.node(1).await;
    for _ in 0..2 {
        world.pass(TimeDelta::seconds(1)).await;
        dies.tick(&mut Scheduler(dies.schedules())).await;
    }
    assert_eq!(world.runs("running").await.len(), 2);
    // It is the first that is cancelled.
    world
        .execute(
            "UPDATE heddle.runs_live SET progress = '\\xff'::bytea || progress
              WHERE id::text = (SELECT min(id::text) FROM heddle.runs_live)",
        )
        .await;
    let deleted = world.store.delete_group(world.by(), "g", true, None).await;
    assert!(matches!(deleted, Ok(GroupDelete::Deleted { .. })), "{deleted:?}");
    let other = world.node(2).await;
    let mut reaper = Reaper::of(other.runs.clone());
    world.pass_for(&other, TimeDelta::seconds(10)).await;
    other.tick(&mut reaper).await;
    assert_eq!(world.runs("running").await.len(), 2, "it may still be cancelling them");
    world.pass_for(&other, TimeDelta::seconds(10)).await;
    other.tick(&mut reaper).await;
    assert_eq!(
        (world.runs("cancelled").await.len(), world.runs("running").await.len()),
        (1, 1)
    );
}

/// A control that conflicts with other transactions is tried three times, as the store tries its own transactions.
#[tokio::test]
async fn a_control_that_conflicts_is_tried_three_times() {
    let (world, node) = with_one_attempt().await;
    let (run, _) = node.only_begun();
    // The first four tries are told that they have to be repeated, as the victim of a deadlock is.
    world
        .execute(
            "CREATE SEQUENCE public.tries;
             CREATE FUNCTION public.meets_others() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 IF nextval('public.tries') <= 4 THEN RAISE EXCEPTION 'in the way' USING ERRCODE = '40P01'; END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER meets BEFORE UPDATE ON heddle.runs_live
                 FOR EACH ROW EXECUTE FUNCTION public.meets_others()",
        )
        .await;
    let refused = node.runs.control(run, &BulkAction::Pause, "test").await;
    let Err(ControlError::Engine(EngineError::Store(StoreError::Conflict(_)))) = refused else {
        panic!("a conflict: {refused:?}");
    };
    let tries = "SELECT last_value FROM public.tries";
    assert_eq!(world.one::<i64>(tries).await, 3);
    assert_eq!(world.runs("running").await.len(), 1);
    let paused = node.runs.control(run, &BulkAction::Pause, "test").await;
    paused.expect("the fifth try is not disturbed");
    assert_eq!(world.one::<i64>(tries).await, 5);
    assert_eq!(world.runs("paused").await.len(), 1);
}

/// Runs are removed when they were kept for 90 days, counted from their ends, and not a round sooner.
#[tokio::test]
async fn retention_removes_what_is_old() {
    let (world, node) = with_one_attempt().await;
    let begun = node.only_begun();
    node.end(begun, Ending::Succeeded("null".into())).await;
    assert_eq!(world.runs("succeeded").await.len(), 1);
    let mut rounds = Rounds::of(Arc::new(Pruner::new(node.node.clone())));
    world.pass(TimeDelta::days(90) - TimeDelta::seconds(1)).await;
    node.tick(&mut rounds).await;
    assert_eq!(world.runs("succeeded").await.len(), 1);
    // The next round of the cluster.
    world.pass(TimeDelta::minutes(10)).await;
    node.tick(&mut rounds).await;
    assert!(world.runs("succeeded").await.is_empty());
}

/// A run at a gate with an unreadable progress holds up neither those behind it nor other groups, and gets its turn
/// when it is repaired.
#[tokio::test]
async fn a_gate_is_held_up_by_no_run_that_cannot_be_read() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let spec = json!({"schedules": {"s": {"every": "1h", "misfire": "all", "grace": "1d"}}, "overlap": "queue"});
    world.group("one", spec.clone()).await;
    world.group("other", spec).await;
    world.pass(TimeDelta::hours(3)).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    assert_eq!(world.runs("waiting").await.len(), 6);
    let garble = async |logical_time: Time, with: &str| {
        let micros = logical_time.timestamp_micros();
        let statement = format!(
            "UPDATE heddle.runs_live SET progress = {with}
              WHERE group_id = (SELECT id FROM heddle.groups WHERE name = 'one')
                AND logical_time = to_timestamp($1::bigint / 1000000.0)"
        );
        assert_eq!(world.sql.execute(&statement, &[&micros]).await.expect("a run"), 1);
    };
    let first = world.now() - TimeDelta::hours(2);
    garble(first, "'\\xff'::bytea || progress").await;
    // One tick finds out which it is, the next decides about the others: each group runs one at a time.
    let mut inbox = Inbox(node.runs.clone());
    node.tick(&mut inbox).await;
    node.tick(&mut inbox).await;
    let begun = world.runs("running").await;
    assert_eq!(begun, [first, first + TimeDelta::hours(1)]);
    let set_aside = node.runs.pending.aside.of(crate::runs::inbox::aside::Kind::Gates);
    assert_eq!(set_aside.len(), 1);
    // It is repaired, tried again, and gets its turn when no run is before it.
    garble(first, "substr(progress, 2)").await;
    for _ in 0..2 {
        node.node.register().await.expect("a lease");
        world.pass(TimeDelta::seconds(11)).await;
        node.node.register().await.expect("a lease");
        node.tick(&mut inbox).await;
    }
    assert_eq!(set_aside.len(), 0);
}

/// A slot of a pool that is free goes to the task run that has waited longest; nobody gets more slots than there are. A
/// pool that grows lets more in with the next look.
#[tokio::test]
async fn slots_of_a_pool_go_to_those_who_wait_in_their_order() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let pool = world.store.put_pool(world.by(), "p", 1).await;
    pool.expect("a pool");
    let task = json!({"http": {"url": "http://example.com/"}, "pools": {"p": 1}});
    let hourly = json!({"every": "1h", "misfire": "all", "grace": "1d"});
    world
        .group("g", json!({"tasks": {"t": task}, "schedules": {"s": hourly}}))
        .await;
    world.pass(TimeDelta::hours(4)).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    let made: Vec<RunId> = {
        let ids = "SELECT id::text FROM heddle.runs_live ORDER BY logical_time";
        let rows = world.sql.query(ids, &[]).await.expect("runs");
        rows.iter()
            .map(|row| RunId(row.get::<_, &str>(0).parse().expect("an id")))
            .collect()
    };
    let (mut admitter, mut claimer) = (Admitter(node.runs.clone()), Claimer::of(node.runs.clone()));
    node.tick(&mut claimer).await;
    assert_eq!(node.begun(), [], "nobody has been admitted");
    let mut admitted = async || {
        assert_eq!(node.tick(&mut admitter).await, Duration::from_millis(500));
        let is_signalled = node.node.signals.raised(Signal::Work).now_or_never().is_some();
        node.tick(&mut claimer).await;
        let begun = node.begun();
        assert!(is_signalled || begun.is_empty());
        begun
    };
    let [first] = admitted().await[..] else {
        panic!("one slot")
    };
    assert_eq!((first.0, admitted().await), (made[0], Vec::new()));
    node.end(first, Ending::Succeeded("null".into())).await;
    let [second] = admitted().await[..] else {
        panic!("one slot")
    };
    assert_eq!((second.0, admitted().await), (made[1], Vec::new()));
    let pool = world.store.put_pool(world.by(), "p", 2).await;
    pool.expect("a pool");
    let [third] = admitted().await[..] else {
        panic!("one more slot")
    };
    assert_eq!((third.0, admitted().await), (made[2], Vec::new()));
    // Of two ends at once, two slots; and only one still waits.
    for ended in [second, third] {
        node.end(ended, Ending::failed(ErrorKind::Failed, "on purpose")).await;
    }
    let [fourth] = admitted().await[..] else {
        panic!("one waits")
    };
    assert_eq!(fourth.0, made[3]);
}

/// Task runs that cannot get their slots hide nobody else, however many they are: whether their pool has no slots, or their
/// second pool has none to spare. Of those with the same need, the most urgent one is the first.
#[tokio::test]
async fn those_who_cannot_get_slots_hide_nobody() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let put = async |name: &str, slots: i32| {
        let pool = world.store.put_pool(world.by(), name, slots).await;
        pool.expect("a pool");
    };
    put("db", 4).await;
    put("gpu", 0).await;
    world
        .execute(
            "INSERT INTO heddle.ready_pooled (run, task, item, attempt, priority, turn, pool, pools, slots)
             SELECT lpad(n::text, 32, '0')::uuid, 0, -1, 1, 0, n, 'db', '{db,gpu}', '{1,1}' FROM generate_series(1, 1200) AS n;
             INSERT INTO heddle.ready_pooled (run, task, item, attempt, priority, turn, pool, pools, slots)
             SELECT lpad(n::text, 32, '0')::uuid, 0, -1, 1, n / 1203, n, 'db', '{db}', '{1}' FROM generate_series(1201, 1203) AS n",
        )
        .await;
    let admit = async || {
        let admitted = world.store.admit_pooled().await.expect("an admission");
        let turns = "SELECT coalesce(string_agg(turn::text, ' ' ORDER BY priority DESC, turn), '') FROM heddle.ready";
        (admitted, world.one::<String>(turns).await)
    };
    let back = "INSERT INTO heddle.ready_pooled (run, task, item, attempt, priority, turn, pool, pools, slots)
                SELECT run, task, item, attempt, priority, turn, 'db', '{db}', '{1}' FROM heddle.ready WHERE turn > 1200;
                DELETE FROM heddle.ready WHERE turn > 1200";
    assert_eq!(
        admit().await,
        (3, "1203 1201 1202".to_owned()),
        "their pool has no slots"
    );
    world.execute(back).await;
    put("gpu", 1).await;
    assert_eq!(
        admit().await,
        (4, "1203 1 1201 1202".to_owned()),
        "one gets the only slot"
    );
    world.execute(back).await;
    assert_eq!(admit().await, (3, "1203 1 1201 1202".to_owned()), "the slot is held");
    // The pool is full now, and the order is that of priorities and turns.
    world.execute(back).await;
    put("db", 2).await;
    assert_eq!(admit().await, (1, "1203 1".to_owned()), "one slot is free");
}
