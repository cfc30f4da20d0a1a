//! What others do for a node (workers, users), and what is made up for later (backfills, silence in a queue).

use std::time::Duration;

use heddle_domain::backfill::BackfillSpec;
use heddle_domain::dispatch::{Offer, OfferSpec};
use heddle_store::change::By;

use super::*;
use crate::dispatch::{Cache, Dispatch, DispatchConfig, Dispatcher, Next, Reaper as DispatchReaper};
use crate::queues::{ClaimRequest, QueueClaim, Queues, Reaper as QueueReaper};
use crate::schedules::{Backfiller, Started};

impl World {
    /// Lets time pass for a node that holds its lease all the while, without a heart.
    async fn pass_for(&self, node: &Simulated, time: TimeDelta) {
        node.node.register().await.expect("a lease");
        self.pass(time).await;
        node.node.register().await.expect("a lease");
    }
}

/// A group of one task that a worker of queue `q` does; its run begins after a second.
fn queued(more: Value) -> Value {
    let mut task = json!({"queue": "q"});
    task.as_object_mut()
        .expect("an object")
        .extend(more.as_object().expect("an object").clone());
    json!({"tasks": {"t": task}, "schedules": {"s": {"once": {"delay": "1s"}}}})
}

async fn claim(queues: &Arc<Queues>, lease: Duration) -> Vec<QueueClaim> {
    let request = ClaimRequest {
        queue: "q".into(),
        worker: "w".into(),
        tags: Vec::new(),
        max: 10,
        lease,
        wait: Duration::ZERO,
    };
    queues.claim(&request).await.expect("an answer")
}

/// A worker that is silent keeps its task run until its lease is over, to the microsecond; then another attempt is offered.
#[tokio::test]
async fn a_worker_that_is_silent_loses_its_claim_when_the_lease_is_over() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", queued(json!({}))).await;
    world.pass(TimeDelta::seconds(1)).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    // Nobody ends claims here, so what gathers their ends is not started: a tick waits for all that runs.
    let (queues, _gathering) = Queues::new(node.node.clone(), node.runs.clone());
    let mut reaper = QueueReaper::of(queues.clone());
    let lease = Duration::from_secs(30);
    let [first] = &claim(&queues, lease).await[..] else {
        panic!("one task run is claimed");
    };
    assert_eq!(first.lease_expires_at, world.now() + TimeDelta::seconds(30));
    world
        .pass_for(&node, TimeDelta::seconds(30) - TimeDelta::microseconds(1))
        .await;
    node.tick(&mut reaper).await;
    assert!(claim(&queues, lease).await.is_empty(), "the lease holds");
    world.pass_for(&node, TimeDelta::microseconds(1)).await;
    // The reaper pauses between two looks.
    world.pass_for(&node, TimeDelta::milliseconds(50)).await;
    node.tick(&mut reaper).await;
    let [second] = &claim(&queues, lease).await[..] else {
        panic!("it is offered again");
    };
    assert_eq!(second.claim.at.attempt, first.claim.at.attempt + 1);
}

/// What nobody claims within `queue_timeout` fails, and not before.
#[tokio::test]
async fn a_queue_timeout_is_counted_from_when_the_task_run_was_ready() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", queued(json!({"queue_timeout": "1h"}))).await;
    world.pass(TimeDelta::seconds(1)).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    // Nobody ends claims here, so what gathers their ends is not started: a tick waits for all that runs.
    let (queues, _gathering) = Queues::new(node.node.clone(), node.runs.clone());
    let mut reaper = QueueReaper::of(queues);
    world
        .pass_for(&node, TimeDelta::hours(1) - TimeDelta::milliseconds(50))
        .await;
    node.tick(&mut reaper).await;
    assert_eq!(world.runs("running").await.len(), 1, "there are 50 ms left");
    world.pass_for(&node, TimeDelta::milliseconds(50)).await;
    node.tick(&mut reaper).await;
    assert_eq!(world.runs("failed").await.len(), 1);
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
        let mut asked = json!({"from": "2026-02-01", "to": "2026-02-01"});
        let fields = asked.as_object_mut().expect("an object");
        fields.extend(more.as_object().expect("an object").clone());
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

/// Whoever keeps an assignment longer than `max_hold` loses it, and the piece of work goes to the next who asks.
#[tokio::test]
async fn an_assignment_is_held_no_longer_than_it_may_be() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let node = world.node(1).await;
    let cache = Arc::new(Cache::default());
    let (dispatch, gathering) = Dispatch::new(node.node.clone(), node.runs.clone(), DispatchConfig::default(), cache);
    gathering.start(&dispatch);
    let mut reaper = DispatchReaper::of(dispatch.clone());
    let dispatcher = dispatch.dispatcher();
    let members = ["a".to_owned(), "b".to_owned()];
    let by = || By {
        actor: "test",
        at: world.now(),
    };
    let members = heddle_store::audience::Members::Replace(&members);
    let made = world.store.change_members(by(), "gid_team", members).await;
    made.expect("an audience");
    let spec = json!({"audience": "gid_team", "kind": "once", "dispatch_times": 1, "max_hold": "10m"});
    let spec: OfferSpec = serde_json::from_value(spec).expect("an offer");
    let offer = Offer::compile(spec, world.now()).expect("an offer");
    let put = world.store.put_offer(by(), "one", &offer, false, 10).await;
    put.expect("an offer");
    let given = async |uid: &str| match next(&dispatcher, uid).await {
        Next::Given(row, again) => Some((row.id, again)),
        Next::Nothing(_) => None,
    };
    let (first, again) = given("a").await.expect("there is one");
    assert!(!again);
    world
        .pass_for(&node, TimeDelta::minutes(10) - TimeDelta::microseconds(1))
        .await;
    reaper.tick(world.now()).await.expect("a tick");
    assert_eq!(given("a").await, Some((first, true)), "it is still theirs");
    assert_eq!(given("b").await, None);
    world.pass_for(&node, TimeDelta::microseconds(1)).await;
    reaper.tick(world.now()).await.expect("a tick");
    let (second, again) = given("b").await.expect("it has come back");
    assert!(!again && second != first);
}

async fn next(dispatcher: &Dispatcher, uid: &str) -> Next {
    dispatcher.next(uid, Duration::ZERO).await.expect("an answer")
}
