//! Leases of nodes: what another node takes over, and what it leaves alone.

use futures::FutureExt;

use super::*;
use crate::node::signals::Signal;
use crate::runs::inbox::Reaper;
use crate::runs::record::given_up::Abandoner;
use crate::runs::take::claimer::Claimer;

/// A node that is warm, and one that has just started and still compiles.
async fn with_one_that_warms(world: &World) -> (Simulated, Simulated) {
    let (warm, new) = (world.node(1).await, world.node(2).await);
    new.node.state.begin_warming();
    new.node.register().await.expect("a lease");
    (warm, new)
}

/// What the other nodes read of it.
async fn says_warming(world: &World, node: &Simulated) -> bool {
    let query = format!("SELECT warming FROM heddle.nodes WHERE lease = {}", node.runs.lease());
    world.one(&query).await
}

/// The node takes task runs, and looks for some at once.
fn begins_to_take(node: &Simulated) -> bool {
    let is_woken = node.node.signals.raised(Signal::Work).now_or_never().is_some();
    assert_eq!(is_woken, node.runs.room().free > 0);
    is_woken
}

/// A node that compiles its scripts leaves task runs to a node that has them, also those of runs that it creates itself.
/// When it has loaded them, it takes its part, and says so.
#[tokio::test]
async fn a_node_that_compiles_leaves_task_runs_to_one_that_is_warm() {
    let world = with_due(&["g"]).await;
    let (warm, mut new) = with_one_that_warms(&world).await;
    assert_eq!(new.runs.room().free, 0, "it is so before its first heartbeat");
    new.tick(&mut Scheduler(new.schedules())).await;
    assert!(new.node.signals.raised(Signal::Work).now_or_never().is_some());
    new.tick(&mut Claimer::of(new.runs.clone())).await;
    assert_eq!(new.begun(), []);
    warm.tick(&mut Claimer::of(warm.runs.clone())).await;
    warm.only_begun();
    new.keeper.tick(world.now()).await.expect("a heartbeat");
    assert!(says_warming(&world, &new).await && !begins_to_take(&new));
    assert!(new.keeper.woken().now_or_never().is_none());
    new.node.end_warming();
    assert!(begins_to_take(&new));
    soon(new.keeper.woken()).await;
    new.keeper.tick(world.now()).await.expect("a heartbeat");
    assert!(!says_warming(&world, &new).await);
    assert!(new.keeper.woken().now_or_never().is_none(), "it is said once");
    assert!(new.runs.room().free > 0);
}

/// Nodes count positions in *ready* from the same one: with its heartbeat, each says how far it has come and hears how far the
/// others have. A node that starts counts from there, and never from before rows that wait for slots.
#[tokio::test]
async fn nodes_count_positions_from_the_same_one() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let (mut one, mut other) = (world.node(1).await, world.node(2).await);
    assert_eq!(world.store.first_position().await.expect("a position"), 0);
    one.runs.queue.has_come_to(5_000);
    for node in [&mut one, &mut other] {
        node.keeper.tick(world.now()).await.expect("a heartbeat");
    }
    assert_eq!(other.runs.queue.last_claimed(), 5_000);
    other.runs.queue.has_come_to(4_000);
    assert_eq!(other.runs.queue.last_claimed(), 5_000);
    let started = async || world.store.first_position().await.expect("a position");
    assert_eq!(started().await, 5_000);
    // Of the items of a map, only the first one tells how far claims had come.
    world
        .execute(
            "INSERT INTO heddle.ready_pooled (run, task, item, attempt, priority, turn, pool, pools, slots)
             SELECT lpad('1', 32, '0')::uuid, 0, n, 1, 0, 5100 + n, 'db', '{db}', '{1}' FROM generate_series(1, 100) AS n;
             INSERT INTO heddle.ready_pooled (run, task, item, attempt, priority, turn, pool, pools, slots)
             SELECT lpad(n::text, 32, '0')::uuid, 0, -1, 1, 0, n, 'db', '{db}', '{4}' FROM generate_series(5001, 5003) AS n",
        )
        .await;
    assert_eq!(started().await, 5_101);
    world.execute("DELETE FROM heddle.ready_pooled WHERE item >= 0").await;
    assert_eq!(started().await, 5_003, "none of those that wait is overtaken");
}

/// A node that compiles does the work if nobody else can: when the others die, stop, or start at the same time.
#[tokio::test]
async fn a_node_that_compiles_does_the_work_of_nodes_that_are_gone() {
    let world = with_due(&["g"]).await;
    let (warm, mut new) = with_one_that_warms(&world).await;
    warm.tick(&mut Scheduler(warm.schedules())).await;
    let (run, first) = warm.only_begun();
    // The other sends no heartbeat any more. It has stopped its work two seconds before its lease ends.
    for _ in 0..2 {
        world.pass(TimeDelta::seconds(2)).await;
        new.keeper.tick(world.now()).await.expect("a heartbeat");
        assert!(!begins_to_take(&new));
    }
    world.pass(TimeDelta::seconds(2)).await;
    new.keeper.tick(world.now()).await.expect("a heartbeat");
    assert!(begins_to_take(&new));
    new.tick(&mut Claimer::of(new.runs.clone())).await;
    assert_eq!(new.begun(), [], "the other's lease holds");
    world.pass(TimeDelta::seconds(2)).await;
    new.keeper.tick(world.now()).await.expect("a heartbeat");
    new.tick(&mut Reaper::of(new.runs.clone())).await;
    assert_eq!(new.begun(), [(run, AttemptKey { attempt: 2, ..first })]);

    // It stops.
    let (mut warm, mut new) = with_one_that_warms(&world).await;
    assert!(!begins_to_take(&new));
    warm.node.state.drain();
    warm.keeper.tick(world.now()).await.expect("a heartbeat");
    assert_eq!(new.runs.room().free, 0, "it does not know");
    new.keeper.tick(world.now()).await.expect("a heartbeat");
    assert!(begins_to_take(&new));

    // It starts as well.
    let (mut other, mut new) = with_one_that_warms(&world).await;
    other.node.state.begin_warming();
    for node in [&mut other, &mut new] {
        node.keeper.tick(world.now()).await.expect("a heartbeat");
    }
    assert!(begins_to_take(&new));
    assert!(other.runs.room().free > 0);
}

/// Five minutes after its start, a node takes task runs although it still compiles. A lease that it loses and gets again in
/// between changes nothing.
#[tokio::test]
async fn a_node_compiles_for_five_minutes_while_others_work() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let (warm, mut new) = with_one_that_warms(&world).await;
    world.pass(TimeDelta::minutes(5) - MOMENT).await;
    warm.node.register().await.expect("a lease");
    let lease = new.runs.lease();
    new.keeper.tick(world.now()).await.expect("a new lease");
    assert!(new.runs.lease() > lease && !new.node.is_fenced());
    assert!(new.node.signals.raised(Signal::Work).now_or_never().is_some());
    assert!(new.node.state.now().leaves_work());
    assert_eq!(new.runs.room().free, 0);
    world.pass(MOMENT).await;
    new.keeper.tick(world.now()).await.expect("a heartbeat");
    assert!(!new.node.state.now().warming);
    assert!(begins_to_take(&new));
}

/// When a node is not heard of any more, another node runs its attempts as soon as its lease has expired, and not
/// before; and the node itself has stopped by then.
#[tokio::test]
async fn a_lease_runs_out_and_is_taken_over() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", json!({"schedules": {"s": {"every": "1h"}}})).await;
    let (mut one, mut other) = (world.node(1).await, world.node(2).await);
    world.pass(TimeDelta::hours(1)).await;
    // Both have been alive all the time.
    for node in [&one, &other] {
        node.node.register().await.expect("a lease");
    }
    one.keeper = Keeper::of(one.node.clone(), Parts::new([one.runs.clone() as Arc<dyn Part>]));
    other.keeper = Keeper::of(other.node.clone(), Parts::new([other.runs.clone() as Arc<dyn Part>]));
    one.tick(&mut Scheduler(one.schedules())).await;
    let (run, first) = one.only_begun();
    let mut reaper = Reaper::of(other.runs.clone());
    let lease = one.runs.lease();
    // One sends no heartbeat any more; the other does.
    for _ in 0..3 {
        world.pass(TimeDelta::seconds(2)).await;
        other.keeper.tick(world.now()).await.expect("a heartbeat");
        other.tick(&mut reaper).await;
        assert_eq!(other.begun(), [], "the lease holds");
    }
    assert!(!one.node.is_fenced());
    world.pass(TimeDelta::seconds(2)).await;
    other.keeper.tick(world.now()).await.expect("a heartbeat");
    other.tick(&mut reaper).await;
    let second = AttemptKey { attempt: 2, ..first };
    assert_eq!(other.begun(), [(run, second)]);
    // It finds that its time is over before it asks the database, stops what it has in hand, and continues under a new
    // lease.
    let held = one.runs.held.get(run, first.key).expect("it is in hand");
    one.keeper.tick(world.now()).await.expect("a new lease");
    assert!(held.stop.is_cancelled());
    assert!(!one.node.is_fenced() && one.runs.lease() > lease);
    assert_eq!(one.node.state.now().leases_lost, 1);
}

/// If a newer build has written the progress of a run, an older node does not change the run. It takes the run over when it
/// can read the progress.
#[tokio::test]
async fn a_run_of_a_newer_format_is_left_to_newer_nodes() {
    // Format 3; see `heddle_domain::run`.
    is_left_to_newer_nodes("'\\x800003'::bytea || progress", "substr(progress, 4)").await;
    // The state of its task.
    is_left_to_newer_nodes("set_byte(progress, 1, 10)", "set_byte(progress, 1, 1)").await;
    // The kind of its error, in a section.
    let older = "substr(progress, 1, length(progress) - 5)";
    is_left_to_newer_nodes("progress || '\\x0103000078'::bytea", older).await;
}

async fn is_left_to_newer_nodes(newer: &str, older: &str) {
    let (world, one) = with_one_attempt().await;
    let (run, first) = one.only_begun();
    let progress = async || {
        let row = world.sql.query_one("SELECT progress FROM heddle.runs_live", &[]).await;
        row.expect("a run").get::<_, Vec<u8>>(0)
    };
    let write = async |value: &str| {
        let update = format!("UPDATE heddle.runs_live SET progress = {value}");
        assert_eq!(world.sql.execute(&update, &[]).await.expect("a run"), 1);
    };
    write(newer).await;
    let written = progress().await;
    // Its node dies.
    world.pass(LEASE + TimeDelta::seconds(1)).await;
    let other = world.node(2).await;
    let mut reaper = Reaper::of(other.runs.clone());
    let mut abandoner = Abandoner(other.runs.clone());
    let given_up = &other.runs.reports.given_up;
    let pass = async || {
        world.pass(TimeDelta::seconds(31)).await;
        other.node.register().await.expect("a lease");
    };
    for _ in 0..3 {
        other.tick(&mut reaper).await;
        other.tick(&mut abandoner).await;
        assert_eq!((given_up.set_aside(), given_up.runs()), (1, 0));
        assert_eq!(world.runs("running").await.len(), 1);
        assert_eq!(progress().await, written);
        pass().await;
    }
    write(older).await;
    other.tick(&mut abandoner).await;
    assert_eq!(given_up.set_aside(), 0);
    other.tick(&mut reaper).await;
    let second = AttemptKey { attempt: 2, ..first };
    assert_eq!(other.begun(), [(run, second)]);
}

/// Attempts of a dead node are taken over while the end of a run that is given up waits.
#[tokio::test]
async fn nobody_waits_for_a_run_that_is_given_up() {
    let world = with_due(&["bad", "good"]).await;
    let one = world.node(1).await;
    one.tick(&mut Scheduler(one.schedules())).await;
    let begun = one.begun();
    let [(bad, _), (good, first)] = begun[..] else {
        panic!("two attempts have begun: {begun:?}");
    };
    // The history refuses an attempt of one run, and its end waits for a lock.
    let poison = format!(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE 'poisonous' USING ERRCODE = 'P0099'; END $$;
         CREATE FUNCTION public.wait() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NEW; END $$;
         CREATE TRIGGER poison BEFORE INSERT ON heddle.attempts FOR EACH ROW WHEN (NEW.run = '{bad}')
             EXECUTE FUNCTION public.refuse();
         CREATE TRIGGER poison BEFORE INSERT ON heddle.runs_done FOR EACH ROW WHEN (NEW.id = '{bad}')
             EXECUTE FUNCTION public.wait();
         SELECT pg_advisory_lock(77)"
    );
    world.sql.batch_execute(&poison).await.expect("triggers");
    world.pass(LEASE + TimeDelta::seconds(1)).await;
    let other = world.node(2).await;
    other.tick(&mut Reaper::of(other.runs.clone())).await;
    let second = AttemptKey { attempt: 2, ..first };
    assert_eq!(other.begun(), [(good, second)]);
    let given_up = &other.runs.reports.given_up;
    assert_eq!((given_up.set_aside(), given_up.runs()), (1, 0));
    world
        .sql
        .batch_execute("SELECT pg_advisory_unlock(77)")
        .await
        .expect("a lock");
    other.tick(&mut Abandoner(other.runs.clone())).await;
    assert_eq!((given_up.set_aside(), given_up.runs()), (0, 1));
    assert_eq!(world.runs("failed").await.len(), 1);
}

/// A run that is given up ends although the database refuses notices: people are told of its end by the feed alone.
#[tokio::test]
async fn a_run_that_is_given_up_ends_without_its_notices() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let rules = json!({"on": ["failed"], "to": ["ops@example.com"]});
    let spec = json!({"schedules": {"s": {"once": {"delay": "1s"}}}, "notify": rules});
    world.group("g", spec).await;
    world.pass(TimeDelta::seconds(1)).await;
    let one = world.node(1).await;
    one.tick(&mut Scheduler(one.schedules())).await;
    one.only_begun();
    world
        .execute(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE 'refused' USING ERRCODE = '23514'; END $$;
             CREATE TRIGGER poison BEFORE INSERT ON heddle.attempts FOR EACH ROW EXECUTE FUNCTION public.refuse();
             CREATE TRIGGER poison BEFORE INSERT ON heddle.notices FOR EACH ROW EXECUTE FUNCTION public.refuse()",
        )
        .await;
    world.pass(LEASE + TimeDelta::seconds(1)).await;
    let other = world.node(2).await;
    other.tick(&mut Reaper::of(other.runs.clone())).await;
    other.tick(&mut Abandoner(other.runs.clone())).await;
    let given_up = &other.runs.reports.given_up;
    assert_eq!((given_up.set_aside(), given_up.runs()), (0, 1));
    assert_eq!(world.runs("failed").await.len(), 1);
    let told = "SELECT count(*) FROM heddle.events WHERE kind = 'run.failed'";
    assert_eq!(world.one::<i64>(told).await, 1);
}

/// An attempt that is in hand here, and not this node's by the database, is stopped when it is 300 ms old: a younger one may
/// not be committed yet.
#[tokio::test]
async fn an_attempt_of_somebody_else_is_stopped_when_it_is_old_enough() {
    let (world, node) = with_one_attempt().await;
    let (run, at) = node.only_begun();
    let held = node.runs.held.get(run, at.key).expect("it is in hand");
    world.execute("DELETE FROM heddle.running").await;
    let mut reaper = Reaper::of(node.runs.clone());
    world.pass(TimeDelta::milliseconds(300) - MOMENT).await;
    assert_eq!(node.tick(&mut reaper).await, Duration::from_secs(1));
    assert!(!held.stop.is_cancelled());
    world.pass(MOMENT).await;
    node.tick(&mut reaper).await;
    assert!(held.stop.is_cancelled());
}

/// A node that stops waits for the outcomes of attempts that have ended, until the database has them. Without that, such an
/// attempt would be lost, and would count as one.
#[tokio::test]
async fn a_node_that_stops_waits_for_outcomes_that_are_not_recorded() {
    let (world, mut node) = with_one_attempt().await;
    let (run, at) = node.only_begun();
    drop(node.records());
    let slow = "CREATE FUNCTION public.slow() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NULL; END $$;
         CREATE TRIGGER slow BEFORE DELETE ON heddle.running FOR EACH STATEMENT EXECUTE FUNCTION public.slow();
         SELECT pg_advisory_lock(77)";
    world.execute(slow).await;
    let runs = &node.runs;
    let report = Report {
        run,
        at,
        context: runs.contexts.get(&run).expect("its context"),
        held: runs.held.get(run, at.key).expect("it is in hand"),
        end: End::plain(Ending::Succeeded("null".into())),
        finished_at: world.now(),
        lasted: Duration::ZERO,
        lines: Vec::new(),
    };
    assert_eq!((runs.attempts_in_hand(), runs.in_hand()), (1, 1));
    runs.reports.record(&runs.node, report);
    let waits = "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
          WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted)";
    until(async || world.one::<bool>(waits).await).await;
    assert_eq!((runs.attempts_in_hand(), runs.in_hand()), (0, 1), "its slot is free");
    world.execute("SELECT pg_advisory_unlock(77)").await;
    until(async || runs.in_hand() == 0).await;
    assert_eq!(world.runs("succeeded").await.len(), 1);
}
