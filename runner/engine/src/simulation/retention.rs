//! What retention keeps for tasks that may need it.

use heddle_domain::retention::Pruned;

use super::*;
use crate::retention::{Asked, Budget, Pruner};

/// How many assignments a task has, of which a round passes 101, one by one.
const NEEDED: i64 = 150;

/// A live run whose task has old assignments of an offer that was deleted, and behind them one of another offer.
async fn with_needed() -> (World, Simulated) {
    let (world, node) = with_one_attempt().await;
    world
        .execute(&format!(
            "INSERT INTO heddle.offers (name, audience, version, kind, starts_at, repeats, return_failed, enabled, spec,
                                        run, task, attempt, created_at, updated_at, deleted_at)
             SELECT 'task', 'gid_g', 1, 1, '2020-01-01', false, false, true, '{{}}'::jsonb,
                    id, 0::smallint, 1, '2020-01-01'::timestamptz, '2020-01-01'::timestamptz, '2020-01-01'::timestamptz
               FROM heddle.runs_live;
             INSERT INTO heddle.offers (name, audience, version, kind, starts_at, repeats, return_failed, enabled, spec,
                                        created_at, updated_at)
             VALUES ('other', 'gid_g', 1, 1, '2020-01-01', false, false, true, '{{}}', '2020-01-01', '2020-01-01');
             INSERT INTO heddle.assignments (id, offer_id, version, uid, audience, occurrence, state, assigned_at, finished_at)
             SELECT (left(heddle.uuid_floor(given.at)::text, 14) || '7000-8000-' || lpad(to_hex(given.n), 12, '0'))::uuid,
                    o.id, 1, 'u' || given.n, 'gid_g', given.at, 1, given.at, given.at
               FROM (SELECT n, n < {NEEDED} AS needed,
                            CASE WHEN n < {NEEDED} THEN timestamptz '2020-01-01 00:00+00' ELSE '2020-01-02 00:00+00' END AS at
                       FROM generate_series(0, {NEEDED}) AS n) AS given
               JOIN heddle.offers o ON (o.name = 'task') = given.needed"
        ))
        .await;
    (world, node)
}

/// What a round removes that looks at one assignment at once, and whether it says that there is more.
async fn walked(pruner: &Pruner, asked: Asked, now: Time) -> (u64, bool) {
    let (mut pruned, mut budget) = (Pruned::default(), Budget::full());
    let before = now - TimeDelta::days(30);
    let done = pruner.prune_assignments(asked, now, before, 1, &mut budget, &mut pruned);
    done.await.expect("a round");
    (pruned.assignments, pruned.more)
}

/// A round passes only so many assignments that stay. The next one goes on behind them, and after the end, one begins anew.
#[tokio::test]
async fn a_round_goes_on_behind_what_tasks_need() {
    let (world, node) = with_needed().await;
    let pruner = Pruner::new(node.node.clone());
    let round = async || walked(&pruner, Asked::ByCluster, world.now()).await;
    assert_eq!(round().await, (0, true), "the bound");
    assert_eq!(round().await, (1, false), "what is behind");
    world
        .execute("UPDATE heddle.offers SET attempt = 0 WHERE name = 'task'")
        .await;
    assert_eq!(round().await, (NEEDED as u64, false), "from the oldest on");
}

/// A person's call does not go on behind a round of the cluster, only behind another call a short time ago: otherwise it would
/// say that there is no more, without having looked at all.
#[tokio::test]
async fn a_call_says_that_there_is_no_more_when_all_was_looked_at() {
    let (world, node) = with_needed().await;
    let pruner = Pruner::new(node.node.clone());
    let now = world.now();
    assert_eq!(walked(&pruner, Asked::ByCluster, now).await, (0, true), "the bound");
    let call = async |now: Time| walked(&pruner, Asked::ByPerson, now).await;
    assert_eq!(call(now).await, (0, true), "from the oldest on");
    let late = now + TimeDelta::minutes(10);
    assert_eq!(call(late).await, (0, true), "from the oldest on once more");
    assert_eq!(call(late).await, (1, false), "what is behind");
    world
        .execute("UPDATE heddle.offers SET attempt = 0 WHERE name = 'task'")
        .await;
    assert_eq!(call(late).await, (NEEDED as u64, false), "all from the oldest on");
    // The cluster's round has its own place, at which it goes on.
    assert_eq!(walked(&pruner, Asked::ByCluster, now).await, (0, false));
}

/// The state of scripts of a deleted group, and what is noted of its failures, are removed when its runs are: 90 days after it was
/// deleted. Those of a group that exists, or of one with a live run, stay.
#[tokio::test]
async fn rows_of_deleted_groups_go_with_their_runs() {
    let world = with_due(&["busy"]).await;
    for name in ["gone", "stays"] {
        world.group(name, json!({"history": true})).await;
    }
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    node.only_begun();
    world
        .execute(
            "INSERT INTO heddle.script_state (group_id, key, value) SELECT id, 'k', '1' FROM heddle.groups;
             INSERT INTO heddle.troubles (group_id, task, first_at, last_at)
                 SELECT id, '', clock_timestamp(), clock_timestamp() FROM heddle.groups;
             UPDATE heddle.groups SET deleted_at = clock_timestamp() WHERE name <> 'stays'",
        )
        .await;
    let left = async || {
        let left = "SELECT string_agg(g.name, ' ' ORDER BY g.name) FROM heddle.groups g
                     WHERE EXISTS (SELECT FROM heddle.script_state WHERE group_id = g.id)
                       AND EXISTS (SELECT FROM heddle.troubles WHERE group_id = g.id)";
        world.one::<String>(left).await
    };
    let pruner = Pruner::new(node.node.clone());
    world.pass(TimeDelta::days(90)).await;
    pruner.prune(None, false).await.expect("a round");
    assert_eq!(left().await, "busy gone stays");
    world.pass(MOMENT).await;
    pruner.prune(None, false).await.expect("a round");
    assert_eq!(left().await, "busy stays");
}

/// What stays is neither counted as due nor shown as the oldest that is.
#[tokio::test]
async fn the_oldest_that_is_due_is_not_needed() {
    let (world, _node) = with_needed().await;
    let retention = world.store.retention().await.expect("a retention");
    let due = world.store.count_due_rows(&retention, world.now()).await;
    assert_eq!(due.expect("counts").assignments, 1);
    let oldest = world.store.oldest_due(&retention, world.now()).await;
    assert_eq!(
        oldest.expect("the oldest").assignments,
        Some(at("2020-01-02T00:00:00Z"))
    );
}
