//! Assignments of offers to users.

use heddle_domain::dispatch::{Offer, OfferSpec};
use heddle_store::event::EventPosition;

use super::*;
use crate::dispatch::{Cache, Dispatch, DispatchConfig, Dispatcher, Next, Reaper as DispatchReaper};
use crate::runs::inbox::aside::Kind;

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
    let members = heddle_store::audience::Members::Replace(&members);
    let made = world.store.change_members(world.by(), "gid_team", members).await;
    made.expect("an audience");
    let spec = json!({"audience": "gid_team", "kind": "once", "dispatch_times": 1, "max_hold": "10m"});
    let spec: OfferSpec = serde_json::from_value(spec).expect("an offer");
    let offer = Offer::compile(spec, world.now()).expect("an offer");
    let put = world.store.put_offer(world.by(), "one", &offer, false, 10).await;
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

/// Ends of offers are settled many at a time. One whose run cannot be read keeps none of the others waiting. It is tried
/// again every ten seconds, and so is settled when somebody has repaired the run.
#[tokio::test]
async fn the_end_of_an_offer_waits_for_no_run_that_cannot_be_read() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    for name in ["bad", "good"] {
        world
            .group(name, json!({"schedules": {"s": {"once": {"delay": "1s"}}}}))
            .await;
    }
    world.pass(TimeDelta::seconds(1)).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    let begun = node.begun();
    let [(bad, _), _] = begun[..] else {
        panic!("two attempts have begun: {begun:?}");
    };
    // Both attempts wait for their offers, and the time of these is over.
    world
        .execute(&format!(
            "UPDATE heddle.running SET lease = 0;
             INSERT INTO heddle.offer_settlements (offer_id, run, task, item, attempt, error_kind, error)
                  SELECT 1, run, task, item, attempt, {late}, 'nobody completed it in time' FROM heddle.running;
             UPDATE heddle.runs_live SET progress = '\\xff'::bytea || progress WHERE id = '{bad}'",
            late = ErrorKind::Timeout.number()
        ))
        .await;
    let cache = Arc::new(Cache::default());
    let (dispatch, gathering) = Dispatch::new(node.node.clone(), node.runs.clone(), DispatchConfig::default(), cache);
    gathering.start(&dispatch);
    let mut reaper = DispatchReaper::of(dispatch);
    let aside = node.runs.pending.aside.of(Kind::Offers);
    for _ in 0..2 {
        reaper.tick(world.now()).await.expect("a tick");
        assert_eq!(world.runs("failed").await.len(), 1, "the other one");
        assert_eq!(aside.len(), 1);
        let left: i64 = world.one("SELECT count(*) FROM heddle.offer_settlements").await;
        assert_eq!(left, 1, "it stays there");
        world.pass_for(&node, TimeDelta::seconds(10) - MOMENT).await;
    }
    world
        .execute("UPDATE heddle.runs_live SET progress = substr(progress, 2)")
        .await;
    world.pass_for(&node, TimeDelta::seconds(10)).await;
    reaper.tick(world.now()).await.expect("a tick");
    assert_eq!((world.runs("failed").await.len(), aside.len()), (2, 0));
}

async fn next(dispatcher: &Dispatcher, uid: &str) -> Next {
    dispatcher.next(uid, Duration::ZERO).await.expect("an answer")
}

/// The feed is read in pieces for which a node has room, however large the events are, and none is left out.
#[tokio::test]
async fn the_feed_is_read_in_pieces() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world
        .execute(
            "INSERT INTO heddle.events (kind, at, data)
             SELECT 'run.failed', clock_timestamp(), jsonb_build_object('n', n, 'text', repeat('x', 65536))
               FROM generate_series(1, 8) AS n;
             INSERT INTO heddle.events (kind, at, data)
             SELECT 'run.failed', clock_timestamp(), jsonb_build_object('n', n) FROM generate_series(9, 20) AS n",
        )
        .await;
    let (mut after, mut pieces, mut numbers) = (EventPosition::default(), Vec::new(), Vec::new());
    while numbers.len() < 20 {
        let page = world.store.events_after(after, None, 1_000).await.expect("a page");
        let Some(last) = page.rows.last() else {
            // The feed waits for transactions of other tests.
            tokio::task::yield_now().await;
            continue;
        };
        (after.xid, after.id) = (last.xid, last.id);
        pieces.push((page.rows.len(), page.is_cut));
        let number = |data: &str| serde_json::from_str::<Value>(data).expect("JSON")["n"].as_i64();
        numbers.extend(page.rows.iter().filter_map(|row| number(&row.data)));
    }
    assert_eq!(numbers, Vec::from_iter(1..=20));
    assert_eq!(&pieces[..2], [(4, true), (4, true)]);
    assert_eq!(pieces[2..].iter().map(|(rows, _)| rows).sum::<usize>(), 12);
}
