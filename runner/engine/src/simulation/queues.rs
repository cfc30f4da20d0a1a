//! Queues: claims of workers, lost wake-ups, and the figures of their charts.

use futures::FutureExt;
use heddle_domain::Faults;
use heddle_domain::notify::channel::ChannelSpec;
use heddle_store::channel::ChannelPut;

use super::*;
use crate::queues::{ClaimEnd, LostWakeups, Minutes, Reaper as QueueReaper};
use crate::runs::inbox::aside::Kind;
use crate::runs::record::given_up::Abandoner;

/// Writes the progress of a run anew: an expression of SQL.
async fn write_progress(world: &World, run: RunId, value: &str) {
    let update = format!("UPDATE heddle.runs_live SET progress = {value} WHERE id = '{run}'");
    assert_eq!(world.sql.execute(&update, &[]).await.expect("a run"), 1);
}

/// A world with the runs of two groups in one queue, claimed by one worker, and its node.
async fn with_two_claims(lease: Duration) -> (World, Simulated, Arc<Queues>, [QueueClaim; 2]) {
    let world = World::at("2026-03-01T00:00:00Z").await;
    for group in ["a", "b"] {
        world.group(group, queued(json!({}))).await;
    }
    world.pass(TimeDelta::seconds(1)).await;
    let mut node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    let queues = node.queues();
    let claims = claim(&queues, lease).await;
    let claims: [QueueClaim; 2] = claims.try_into().expect("two task runs are claimed");
    (world, node, queues, claims)
}

/// A new task run stands behind the first one that waits in its queue, whatever its node has claimed there: the first task run of
/// another run does not wait for a whole map. Rows that no worker takes, because of their tags, are not the first.
#[tokio::test]
async fn a_queue_is_fair_whichever_node_fills_it() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let (one, other) = (world.node(1).await, world.node(2).await);
    one.runs.waiters.queues.claimed("q", 10_000);
    let starts = async |node: &Simulated, group: &str, spec: Value| -> String {
        world.group(group, spec).await;
        world.pass_for(node, TimeDelta::seconds(1)).await;
        node.tick(&mut Scheduler(node.schedules())).await;
        let positions = format!(
            "SELECT string_agg(q.turn::text, ' ' ORDER BY q.turn)
               FROM heddle.queue_ready q JOIN heddle.runs_live l ON l.id = q.run JOIN heddle.groups g ON g.id = l.group_id
              WHERE g.name = '{group}'"
        );
        world.one(&positions).await
    };
    let task = json!({"queue": "q"});
    let many = with(queued(json!({})), json!({"tasks": {"a": task, "b": task, "c": task}}));
    assert_eq!(starts(&other, "many", many.clone()).await, "1 2 3");
    assert_eq!(starts(&one, "single", queued(json!({}))).await, "2");
    // Long afterwards. A task run for which no worker comes has waited all the while.
    world
        .execute(
            "UPDATE heddle.queue_ready SET turn = turn + 4999;
             INSERT INTO heddle.queue_ready (run, task, item, attempt, queue, priority, turn, tags, ready_at)
             SELECT gen_random_uuid(), 0, -1, 1, queue, priority, 1, '{a100}', ready_at FROM heddle.queue_ready LIMIT 1",
        )
        .await;
    let tagged = |tags: Value| queued(json!({"tags": tags}));
    assert_eq!(starts(&other, "later", queued(json!({}))).await, "5001");
    assert_eq!(starts(&other, "eu", tagged(json!(["eu"]))).await, "5001");
    assert_eq!(starts(&one, "both", tagged(json!(["a100", "eu"]))).await, "2");
    // If nothing waits, it is behind what the node has claimed.
    world.execute("DELETE FROM heddle.queue_ready").await;
    assert_eq!(starts(&one, "again", many).await, "10001 10002 10003");
    // A node that knows of no claim puts nothing before what has waited, whatever tags that has.
    world
        .execute("UPDATE heddle.queue_ready SET turn = 50000, tags = '{eu}'")
        .await;
    assert_eq!(starts(&other, "behind", queued(json!({}))).await, "50001");
    // The same if what has waited stands behind many rows that no worker takes. A node that knows of claims does not come
    // later than it has to.
    world
        .execute(
            "UPDATE heddle.queue_ready SET turn = 50000, tags = '{}';
             INSERT INTO heddle.queue_ready (run, task, item, attempt, queue, priority, turn, tags, ready_at)
             SELECT gen_random_uuid(), 0, -1, 1, q.queue, q.priority, n, '{a100}', q.ready_at
               FROM (SELECT * FROM heddle.queue_ready LIMIT 1) AS q CROSS JOIN generate_series(1, 64) AS n",
        )
        .await;
    assert_eq!(starts(&other, "fresh", queued(json!({}))).await, "50001");
    one.runs.waiters.queues.claimed("q", 60_000);
    assert_eq!(starts(&one, "known", queued(json!({}))).await, "50001");
    // And if it has other tags too, the last one counts.
    world
        .execute("UPDATE heddle.queue_ready SET tags = '{eu}' WHERE turn >= 50000")
        .await;
    assert_eq!(starts(&other, "last", queued(json!({}))).await, "50002");
}

/// The claim of a run whose progress cannot be read keeps none of the others from being taken back. Its run is given up.
#[tokio::test]
async fn a_claim_is_taken_back_whatever_is_wrong_with_others() {
    let lease = Duration::from_secs(30);
    let (world, node, queues, [bad, good]) = with_two_claims(lease).await;
    write_progress(&world, bad.claim.run, "'\\xff'::bytea || progress").await;
    let (mut reaper, mut abandoner) = (QueueReaper::of(queues.clone()), Abandoner(node.runs.clone()));
    world.pass_for(&node, TimeDelta::seconds(30)).await;
    node.tick(&mut reaper).await;
    let [again] = &claim(&queues, lease).await[..] else {
        panic!("one is offered again");
    };
    assert_eq!(again.claim.run, good.claim.run);
    let given_up = &node.runs.reports.given_up;
    assert_eq!((given_up.set_aside(), given_up.runs()), (1, 0));
    node.tick(&mut abandoner).await;
    assert_eq!((given_up.set_aside(), given_up.runs()), (0, 1));
    assert_eq!(world.runs("failed").await.len(), 1);
    let left: i64 = world.one("SELECT count(*) FROM heddle.queue_claims").await;
    assert_eq!(left, 1, "only the one that was claimed again");
}

/// The same if a newer build has written the progress: the claim stays for newer nodes, and costs no further looks. If this
/// node can read the progress later, it takes the claim back.
#[tokio::test]
async fn a_claim_of_a_newer_format_is_left_to_newer_nodes() {
    let lease = Duration::from_secs(600);
    let (world, node, queues, [bad, good]) = with_two_claims(lease).await;
    // Format 3; see `heddle_domain::run`.
    write_progress(&world, bad.claim.run, "'\\x800003'::bytea || progress").await;
    let (mut reaper, mut abandoner) = (QueueReaper::of(queues.clone()), Abandoner(node.runs.clone()));
    world.pass_for(&node, TimeDelta::seconds(600)).await;
    node.tick(&mut reaper).await;
    let [again] = &claim(&queues, lease).await[..] else {
        panic!("one is offered again");
    };
    assert_eq!(again.claim.run, good.claim.run);
    let given_up = &node.runs.reports.given_up;
    for _ in 0..3 {
        world.pass_for(&node, TimeDelta::seconds(31)).await;
        let rest = node.tick(&mut reaper).await;
        assert_eq!(rest, Duration::from_secs(1), "nothing is due that it can do");
        node.tick(&mut abandoner).await;
        assert_eq!((given_up.set_aside(), given_up.runs()), (1, 0));
        assert_eq!(world.runs("running").await.len(), 2);
    }
    write_progress(&world, bad.claim.run, "substr(progress, 4)").await;
    world.pass_for(&node, TimeDelta::seconds(31)).await;
    node.tick(&mut abandoner).await;
    assert_eq!(given_up.set_aside(), 0);
    node.tick(&mut reaper).await;
    let [again] = &claim(&queues, lease).await[..] else {
        panic!("the other is offered again");
    };
    assert_eq!(again.claim.run, bad.claim.run);
}

/// What nobody claims within `queue_timeout` fails, also while claims cannot be taken back, and beside a run that cannot be
/// read. Such a run is tried again every ten seconds.
#[tokio::test]
async fn a_queue_timeout_passes_whatever_is_wrong_with_others() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    world.group("claimed", queued(json!({}))).await;
    world.pass(TimeDelta::seconds(1)).await;
    let mut node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    let queues = node.queues();
    let [claimed] = &claim(&queues, Duration::from_secs(60)).await[..] else {
        panic!("one task run is claimed");
    };
    write_progress(&world, claimed.claim.run, "'\\x800003'::bytea || progress").await;
    for group in ["a", "b"] {
        world.group(group, queued(json!({"queue_timeout": "1h"}))).await;
    }
    world.pass_for(&node, TimeDelta::seconds(1)).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    let bad: String = world.one("SELECT run::text FROM heddle.queue_ready LIMIT 1").await;
    let bad = RunId(bad.parse().expect("an id"));
    write_progress(&world, bad, "'\\xff'::bytea || progress").await;
    let mut reaper = QueueReaper::of(queues);
    let aside = node.runs.pending.aside.of(Kind::Unclaimed);
    world.pass_for(&node, TimeDelta::hours(1)).await;
    for _ in 0..2 {
        node.tick(&mut reaper).await;
        assert_eq!((world.runs("failed").await.len(), aside.len()), (1, 1));
        world.pass_for(&node, TimeDelta::seconds(10)).await;
    }
    write_progress(&world, bad, "substr(progress, 2)").await;
    node.tick(&mut reaper).await;
    assert_eq!((world.runs("failed").await.len(), aside.len()), (2, 0));
}

/// A claim is taken back at once when its lease is over, also while waiting task runs of the same run are set aside.
#[tokio::test]
async fn a_claim_is_taken_back_while_rows_of_its_run_are_set_aside() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let tasks = json!({"claimed": {"queue": "q"}, "waits": {"queue": "r", "queue_timeout": "1h"}});
    let spec = json!({"tasks": tasks, "schedules": {"s": {"once": {"delay": "1s"}}}});
    world.group("g", spec).await;
    world.pass(TimeDelta::seconds(1)).await;
    let mut node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    let queues = node.queues();
    let mut reaper = QueueReaper::of(queues.clone());
    world.pass_for(&node, TimeDelta::minutes(50)).await;
    let lease = Duration::from_secs(605);
    let [first] = &claim(&queues, lease).await[..] else {
        panic!("one task run is claimed");
    };
    write_progress(&world, first.claim.run, "'\\xff'::bytea || progress").await;
    world.pass_for(&node, TimeDelta::minutes(10)).await;
    node.tick(&mut reaper).await;
    let aside = node.runs.pending.aside.of(Kind::Unclaimed);
    assert_eq!(aside.len(), 1);
    write_progress(&world, first.claim.run, "substr(progress, 2)").await;
    // The rows are tried again after ten seconds; the lease is over after five.
    world.pass_for(&node, TimeDelta::seconds(5)).await;
    node.tick(&mut reaper).await;
    assert_eq!(aside.len(), 1);
    let [second] = &claim(&queues, lease).await[..] else {
        panic!("it is offered again");
    };
    assert_eq!(second.claim.at.attempt, first.claim.at.attempt + 1);
}

/// The task runs of a run that cannot be read are tried and reported together: neither their claims nor their rows take the
/// places of others.
#[tokio::test]
async fn a_run_that_cannot_be_read_counts_once_for_all_of_its_task_runs() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let tasks: serde_json::Map<String, Value> = (0..5)
        .map(|number| (format!("t{number}"), json!({"queue": "q", "queue_timeout": "1h"})))
        .collect();
    let wide = json!({"tasks": tasks, "schedules": {"s": {"once": {"delay": "1s"}}}});
    for group in ["claimed", "other"] {
        world.group(group, wide.clone()).await;
    }
    world.pass(TimeDelta::seconds(1)).await;
    let mut node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    let queues = node.queues();
    let claims = claim(&queues, Duration::from_secs(30)).await;
    assert_eq!(claims.len(), 10);
    let bad = claims[0].claim.run;
    write_progress(&world, bad, "'\\x800003'::bytea || progress").await;
    let mut reaper = QueueReaper::of(queues.clone());
    world.pass_for(&node, TimeDelta::seconds(30)).await;
    node.tick(&mut reaper).await;
    assert_eq!(node.runs.reports.given_up.set_aside(), 1);
    // Those of the other run wait again; their time passes while the run cannot be read, beside nothing else.
    let rows = async || world.one::<i64>("SELECT count(*) FROM heddle.queue_ready").await;
    assert_eq!(rows().await, 5);
    let other = world
        .one::<String>("SELECT run::text FROM heddle.queue_ready LIMIT 1")
        .await;
    let other = RunId(other.parse().expect("an id"));
    write_progress(&world, other, "'\\xff'::bytea || progress").await;
    let aside = node.runs.pending.aside.of(Kind::Unclaimed);
    world.pass_for(&node, TimeDelta::hours(1)).await;
    for _ in 0..2 {
        node.tick(&mut reaper).await;
        assert_eq!((rows().await, aside.len()), (5, 1));
        world.pass_for(&node, TimeDelta::seconds(10)).await;
    }
    write_progress(&world, other, "substr(progress, 2)").await;
    node.tick(&mut reaper).await;
    assert_eq!((rows().await, aside.len()), (0, 0));
    assert_eq!(world.runs("failed").await.len(), 1);
}

/// A run whose revision cannot be read keeps no other task run of its queue from a worker.
#[tokio::test]
async fn a_claim_is_answered_whatever_is_wrong_with_others() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    for group in ["bad", "good"] {
        world.group(group, queued(json!({}))).await;
    }
    world.pass(TimeDelta::seconds(1)).await;
    let node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    world
        .execute(
            "UPDATE heddle.revisions SET spec = '{\"tasks\": 5}'
              WHERE group_id = (SELECT id FROM heddle.groups WHERE name = 'bad')",
        )
        .await;
    // This node has not read it before.
    let mut other = world.node(2).await;
    let given = claim(&other.queues(), Duration::from_secs(60)).await;
    let groups: Vec<&str> = given.iter().map(|claim| claim.group.as_str()).collect();
    assert_eq!(groups, ["good"]);
}

/// What cannot be told to a worker that has claimed it, and cannot be given back either because the database does not take it, is
/// given back later, long before the lease of its claim ends. A run that cannot be read keeps none of the others.
#[tokio::test]
async fn a_claim_that_was_made_and_not_told_is_given_back() {
    let world = World::at("2026-03-01T00:00:00Z").await;
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let spec = json!({"kind": "webhook", "url": "http://example.com/", "secret": secret});
    let spec: ChannelSpec = serde_json::from_value(spec).expect("a channel");
    let keys = SecretKeys::new(SecretKey::new([7; 32]), Vec::new());
    let put = world
        .store
        .put_channel(world.by(), &keys, &*world.chance, "hook", (spec, Faults::default()))
        .await;
    assert!(matches!(put, Ok(ChannelPut::Done(_))), "{put:?}");
    // Before a worker gets such a task run, a notice is written.
    let told = json!({"notify": {"on": ["started"], "channels": ["hook"]}});
    for group in ["a", "b"] {
        world.group(group, queued(told.clone())).await;
    }
    world.pass(TimeDelta::seconds(1)).await;
    let mut node = world.node(1).await;
    node.tick(&mut Scheduler(node.schedules())).await;
    let queues = node.queues();
    let bad: String = world.one("SELECT run::text FROM heddle.queue_ready LIMIT 1").await;
    let bad = RunId(bad.parse().expect("an id"));
    write_progress(&world, bad, "'\\xff'::bytea || progress").await;
    world
        .execute(
            "CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE 'no space is left' USING ERRCODE = '53100'; END $$;
             CREATE TRIGGER fail BEFORE INSERT ON heddle.told_starts FOR EACH ROW EXECUTE FUNCTION public.fail();
             CREATE TRIGGER fail BEFORE DELETE ON heddle.queue_claims FOR EACH ROW EXECUTE FUNCTION public.fail()",
        )
        .await;
    let lease = Duration::from_secs(3_600);
    queues.claim(&request(lease)).await.expect_err("nothing can be told");
    let held = "SELECT count(*) FROM heddle.queue_claims";
    assert_eq!(world.one::<i64>(held).await, 2);
    let mut lost = LostWakeups(queues.clone());
    lost.tick(world.now()).await.expect_err("it cannot be given back yet");
    world.execute("DROP FUNCTION public.fail() CASCADE").await;
    node.tick(&mut lost).await;
    let [again] = &claim(&queues, lease).await[..] else {
        panic!("one is offered again");
    };
    assert_ne!(again.claim.run, bad);
    // A worker holds it now: it stays.
    for _ in 0..2 {
        world.pass_for(&node, TimeDelta::seconds(10)).await;
        node.tick(&mut lost).await;
    }
    assert_eq!(world.one::<i64>(held).await, 2);
}

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
