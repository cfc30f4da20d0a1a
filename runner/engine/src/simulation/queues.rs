//! Queues: claims of workers, lost wake-ups, and the figures of their charts.

use futures::FutureExt;

use super::*;
use crate::queues::{ClaimEnd, LostWakeups, Minutes, Reaper as QueueReaper};

/// A worker that is silent keeps its task run until its lease is over, to the microsecond; then another attempt is offered.
#[tokio::test]
async fn a_worker_that_is_silent_loses_its_claim_when_the_lease_is_over() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", queued(json!({}))).await;
    world.pass(TimeDelta::seconds(1)).await;
    let mut node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    let queues = node.queues();
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
    let mut node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    let queues = node.queues();
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

/// Task runs that come into a queue unheard (their node could tell nobody) are found by a look at the queues to which
/// somebody listens: it wakes up to sixteen polls of such a queue, and none of others.
#[tokio::test]
async fn a_lost_wake_up_is_made_up_for() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("g", queued(json!({}))).await;
    let (mut node, other) = (world.node(1).await, world.node(2).await);
    let queues = node.queues();
    let listened = &node.runs.waiters.queues;
    let polls: Vec<_> = std::iter::repeat_with(|| listened.listen("q")).take(17).collect();
    let elsewhere = listened.listen("another");
    let mut waiting: Vec<_> = polls
        .iter()
        .map(|poll| Box::pin(poll.wakeup.notify.notified()))
        .collect();
    for poll in &mut waiting {
        poll.as_mut().enable();
    }
    let mut woken = || {
        let before = waiting.len();
        waiting.retain_mut(|poll| poll.now_or_never().is_none());
        before - waiting.len()
    };
    let mut lost = LostWakeups(queues);
    let pause = Duration::from_millis(500);
    assert_eq!((lost.first_after(), node.tick(&mut lost).await), (pause, pause));
    assert_eq!(woken(), 0, "there is nothing to do");
    world.pass_for(&other, TimeDelta::seconds(1)).await;
    other.tick(&mut Scheduler(other.schedules())).await;
    assert_eq!(woken(), 0, "nobody has heard of it");
    assert_eq!(node.tick(&mut lost).await, pause);
    assert_eq!(woken(), 16);
    assert!(elsewhere.wakeup.notify.notified().now_or_never().is_none());
    node.tick(&mut lost).await;
    assert_eq!(woken(), 1, "it is still there");
}

/// A queue's chart: how many task runs wait is read once a minute, how many have ended is written every 15 seconds to the
/// minute in which that is. Both are kept for three hours.
#[tokio::test]
async fn a_queue_has_its_figures_minute_by_minute() {
    let start = "2026-03-01T00:00:00Z";
    let world = World::at(start).await;
    for group in ["a", "b", "c"] {
        world.group(group, queued(json!({}))).await;
    }
    world.pass(TimeDelta::seconds(1)).await;
    let mut node = world.node(1).await;
    let queues = node.queues();
    let mut minutes = Minutes(queues.clone());
    let figures = async || {
        let minutes = world.store.queue_minutes("q", at(start)).await.expect("minutes");
        let figures = minutes
            .iter()
            .map(|one| ((one.at - at(start)).num_minutes(), one.depth, one.ended));
        figures.collect::<Vec<_>>()
    };
    node.tick(&mut Scheduler(node.schedules())).await;
    assert_eq!(node.tick(&mut minutes).await, Duration::from_secs(15));
    assert_eq!(figures().await, [(0, Some(3), 0)]);
    let claims = claim(&queues, Duration::from_secs(120)).await;
    let [first, second, third] = [0, 1, 2].map(|index: usize| claims[index].claim);
    let end = async |claim| {
        let mut ended = queues
            .end_claims(vec![(claim, ClaimEnd::Completed("null".into()))])
            .await;
        ended.remove(0).expect("an end");
    };
    end(first).await;
    end(second).await;
    assert_eq!(figures().await, [(0, Some(3), 0)], "they are counted in memory");
    world.pass_for(&node, TimeDelta::seconds(15)).await;
    node.tick(&mut minutes).await;
    assert_eq!(
        figures().await,
        [(0, Some(3), 2)],
        "nothing waits, but a minute has one depth"
    );
    // The depth was read one second after the full minute, and is read again a minute later.
    end(third).await;
    world.pass_for(&node, TimeDelta::seconds(45) - MOMENT).await;
    node.tick(&mut minutes).await;
    assert_eq!(figures().await, [(0, Some(3), 2), (1, None, 1)]);
    world.pass_for(&node, MOMENT).await;
    node.tick(&mut minutes).await;
    assert_eq!(figures().await, [(0, Some(3), 2), (1, Some(0), 1)]);
    world
        .pass_for(&node, TimeDelta::hours(3) - TimeDelta::seconds(61))
        .await;
    node.tick(&mut minutes).await;
    assert_eq!(
        figures().await,
        [(0, Some(3), 2), (1, Some(0), 1)],
        "three hours to the moment"
    );
    world.pass_for(&node, TimeDelta::minutes(1)).await;
    node.tick(&mut minutes).await;
    assert_eq!(figures().await, [(1, Some(0), 1)]);
}
