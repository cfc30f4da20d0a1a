//! Leases of nodes, gates of groups, and repeated transactions.

use chrono::TimeDelta;
use heddle_domain::id::RunId;
use heddle_domain::state::{ReportedState, Trigger};
use heddle_store::StoreError;
use heddle_store::change::By;
use heddle_store::node::{NewNode, NodeReport};
use heddle_tests::World;
use uuid::Uuid;

use super::runs::{claim, ready};
use super::{
    HOUR, NODE, assert_repeated_once, begin, lease, meets_another, new_node, run, set_up, store, under_way, waiting,
};

/// A heartbeat that extends a lease by one hour, whatever is left of it.
const BEAT: NodeReport = NodeReport {
    state: ReportedState::Active,
    warming: false,
    position: 0,
    claimed_to: 0,
    in_hand: 0,
    lease_for: HOUR,
    margin: TimeDelta::zero(),
};

/// The answers to `register_node` and to a heartbeat count the other nodes that can do the work at once: not those that
/// still compile scripts, that stop, that are fenced or that are dead.
#[tokio::test]
async fn nodes_that_are_warm() {
    let world = World::new().await;
    let (store, sql) = (store(&world).await, world.sql().await);
    let warming = |number| NewNode {
        warming: true,
        ..new_node(Uuid::from_u128(number))
    };
    let register = async |node: NewNode<'static>| {
        let registered = store.register_node(node, None).await.unwrap();
        let registered = registered.expect("a lease");
        ((node.id, registered.lease), registered.warm)
    };
    let beat = async |(id, lease): (Uuid, i64), report: NodeReport| {
        let beat = store.heartbeat(id, lease, report).await.unwrap().expect("its lease");
        (beat.others, beat.warm)
    };
    let warms = NodeReport { warming: true, ..BEAT };
    // After a power cut, all begin at once.
    let (one, warm) = register(warming(1)).await;
    assert_eq!(warm, 0, "it does not count itself");
    let (two, warm) = register(warming(2)).await;
    assert_eq!(warm, 0);
    assert_eq!(beat(one, warms).await, (1, 0));
    assert_eq!(beat(one, BEAT).await, (1, 0));
    assert_eq!(beat(two, warms).await, (1, 1));
    // A node that comes back is told with its lease, and counts as what it says now.
    let (two, warm) = register(warming(2)).await;
    assert_eq!(warm, 1);
    assert_eq!(beat(one, BEAT).await, (1, 0));
    let all = store.nodes(TimeDelta::zero()).await.unwrap();
    let shown: Vec<(Uuid, bool)> = all.iter().map(|node| (node.id, node.warming)).collect();
    assert_eq!(shown, [(Uuid::from_u128(1), false), (Uuid::from_u128(2), true)]);
    // The other stops, and goes on under a new lease after all.
    let state = ReportedState::Draining;
    beat(one, NodeReport { state, ..BEAT }).await;
    assert_eq!(beat(two, warms).await, (1, 0));
    beat(one, BEAT).await;
    assert_eq!(beat(two, warms).await, (1, 1));
    // It has so little left of its lease that it has fenced itself.
    let margin = TimeDelta::minutes(30);
    let rest = |minutes: i32| {
        format!(
            "UPDATE heddle.nodes SET expires_at = clock_timestamp() + interval '{minutes} min' WHERE lease = {}",
            one.1
        )
    };
    sql.batch_execute(&rest(29)).await.unwrap();
    assert_eq!(beat(two, NodeReport { margin, ..warms }).await, (1, 0));
    sql.batch_execute(&rest(31)).await.unwrap();
    assert_eq!(beat(two, NodeReport { margin, ..warms }).await, (1, 1));
    store.release_node(one.0, one.1).await.unwrap();
    assert_eq!(beat(two, warms).await, (0, 0));
    // A state that only a newer version knows is not taken for another one.
    let newer = "ALTER TABLE heddle.nodes DROP CONSTRAINT nodes_state_check; UPDATE heddle.nodes SET state = 9";
    sql.batch_execute(newer).await.unwrap();
    let nodes = store.nodes(TimeDelta::zero()).await;
    assert!(matches!(nodes, Err(StoreError::Unreadable { .. })), "{nodes:?}");
}

/// `register_node`: of two who take a lease over from the one that they know, one does; a heartbeat of the old one that
/// comes late extends nothing, and what was held under it is lost.
#[tokio::test]
async fn leases() {
    let world = World::new().await;
    // Each has a connection of its own for its lease.
    let (one, two, late) = (store(&world).await, store(&world).await, store(&world).await);
    let sql = world.sql().await;
    let old = lease(&one, NODE, None).await.expect("a lease");
    under_way(&sql, &[1], old).await;
    assert_eq!(one.lost_attempts().await.unwrap().len(), 0);
    for store in [&two, &late] {
        // What they connect by is there before anybody waits.
        store.reach_lease().await.unwrap();
    }
    let mut other = world.sql().await;
    let holder = other.transaction().await.unwrap();
    holder
        .execute("SELECT FROM heddle.nodes FOR UPDATE", &[])
        .await
        .unwrap();
    let taking = tokio::spawn(async move { lease(&one, NODE, Some(old)).await });
    waiting(&sql, 1).await;
    let second = two.clone();
    let taking_too = tokio::spawn(async move { lease(&second, NODE, Some(old)).await });
    waiting(&sql, 2).await;
    let beat = tokio::spawn(async move { late.heartbeat(NODE, old, BEAT).await.unwrap() });
    waiting(&sql, 3).await;
    holder.rollback().await.unwrap();
    let new = taking.await.unwrap().expect("the first takes it");
    assert!(new > old);
    assert_eq!(taking_too.await.unwrap(), None);
    assert!(beat.await.unwrap().is_none());
    assert_eq!(two.lease_of(NODE).await.unwrap(), Some(new));
    let lost = two.lost_attempts().await.unwrap();
    assert_eq!(lost.len(), 1);
    assert_eq!((lost[0].ended.lease, lost[0].node), (old, Some(NODE)));
    // What the old lease claims late it does not get.
    ready(&sql, &[2]).await;
    assert_eq!(claim(&two, old, 1).await, [0; 0]);
    assert_eq!(claim(&two, new, 1).await, [2]);
}

/// A server that has lost its last commits gives the number of a lease to another node: the node that had it before neither
/// extends it nor gives it back.
#[tokio::test]
async fn a_lease_of_another_node() {
    let (_world, store, sql, _) = set_up().await;
    let held = lease(&store, NODE, None).await.expect("a lease");
    let other = Uuid::from_u128(0xc);
    assert!(store.heartbeat(other, held, BEAT).await.unwrap().is_none());
    store.release_node(other, held).await.unwrap();
    assert_eq!(super::count(&sql, "nodes WHERE state = 0").await, 1);
    assert!(store.heartbeat(NODE, held, BEAT).await.unwrap().is_some());
}

/// `take_gates`: a group's gate is held until the end of the transaction, the gates of other groups are not. The
/// next one sees what was decided there.
#[tokio::test]
async fn gates() {
    let (_world, store, sql, _) = set_up().await;
    let (group, other) = (super::group(&sql, "one").await, super::group(&sql, "two").await);
    let waits = async |number: u128, group: i64, trigger: Trigger, priority: i16| {
        let (run, trigger) = (run(number), trigger.number());
        sql.batch_execute(&format!(
            "INSERT INTO heddle.runs_live (id, group_id, revision_id, state, trigger, priority, logical_time,
                 interval_start, interval_end, params, created_at, progress)
             VALUES ('{run}', {group}, 1, 0, {trigger}, {priority}, now(), now(), now(), '{{}}', now(), '');
             INSERT INTO heddle.waits (run, group_id) VALUES ('{run}', {group})"
        ))
        .await
        .unwrap();
    };
    waits(1, group, Trigger::Schedule, 0).await;
    waits(2, other, Trigger::Schedule, 0).await;
    let wake = async |group: i64| {
        let woken = "INSERT INTO heddle.turnstiles (group_id) VALUES ($1)";
        sql.execute(woken, &[&group]).await.unwrap();
    };

    wake(group).await;
    let mut first = begin(&store, 1).await;
    assert_eq!(first.take_gates().await.unwrap(), [group]);
    let before = first.gates(&[group], 10).await.unwrap();
    assert_eq!(before[0].waiting.len(), 1);
    wake(group).await;
    let mut second = begin(&store, 1).await;
    let second = tokio::spawn(async move {
        let taken = second.take_gates().await.expect("an answer");
        let gates = second.gates(&taken, 10).await.expect("an answer");
        (taken, gates.len())
    });
    waiting(&sql, 1).await;
    wake(other).await;
    let mut third = begin(&store, 1).await;
    assert_eq!(third.take_gates().await.unwrap(), [other]);
    first.unwait(&[run(1)]).await.unwrap();
    first.commit().await.unwrap();
    // Nobody waits there any more.
    assert_eq!(second.await.unwrap(), (vec![group], 0));
    assert_eq!(third.gates(&[other], 10).await.unwrap()[0].waiting.len(), 1);
    // Timed runs do not hide a manual one behind them, however many they are.
    for number in [3, 4, 5] {
        waits(number, other, Trigger::Schedule, 9).await;
    }
    waits(6, other, Trigger::Manual, 0).await;
    let gate = third.gates(&[other], 2).await.unwrap().remove(0);
    let seen: Vec<(RunId, bool)> = gate.waiting.iter().map(|one| (one.run, one.timed)).collect();
    assert_eq!(seen, [(run(3), true), (run(4), true), (run(6), false)]);
    assert_eq!(gate.timed_waiting, 4);
}

/// A transaction of people's changes is tried again when it met another transaction, and the duration of each try is
/// counted.
#[tokio::test]
async fn repeated() {
    let (_world, store, sql, _) = set_up().await;
    meets_another(&sql, "INSERT ON heddle.categories").await;
    let at = store.now().await.unwrap();
    let by = By { actor: "test", at };
    let put = store.put_category(by, "c", "").await.expect("the second try");
    assert!(put.created);
    assert_repeated_once(&store, "put_category");
}
