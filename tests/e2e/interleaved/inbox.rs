//! What waits for its time or for a run: timers, and what the inbox takes.

use chrono::TimeDelta;
use heddle_domain::Clock;
use heddle_domain::run::TaskKey;
use heddle_domain::state::{RunState, Trigger};
use heddle_store::Store;
use heddle_store::live::{Completion, RunWrite, Take};
use heddle_store::upstream::{LinkEvent, Noted, Success};
use heddle_tests::eventually;
use tokio_postgres::Client;

use super::{
    Wall, begin, close, count, ended, first, going, meanwhile, new_run, run, set_up, under_way, unhindered, waiting,
};

/// Live runs, each with a due timer.
async fn with_timers(sql: &Client, runs: &[u128]) {
    under_way(sql, runs, 7).await;
    for number in runs {
        let timer = format!(
            "INSERT INTO heddle.timers (run, task, item, kind, attempt, due_at) VALUES ('{run}', 0, -1, 0, 1, now())",
            run = run(*number)
        );
        sql.batch_execute(&timer).await.expect("a timer");
    }
}

/// The inbox takes all timers that are due, and then locks a run; how many timers, and whether the run was there.
fn inbox(store: &Store, locks: u128) -> tokio::task::JoinHandle<(Completion, usize, bool)> {
    let store = store.clone();
    tokio::spawn(async move {
        let mut completion = begin(&store, 9).await;
        let taken = completion.take_due(Take::AllBut(&[])).await.expect("an answer");
        let locked = completion.lock_runs(&[run(locks)]).await.expect("no deadlock");
        (completion, taken.len(), !locked.is_empty())
    })
}

/// Waits until this many timers are due that nobody has locked.
async fn due_timers(sql: &Client, many: i64) {
    let free = "SELECT count(*) FROM (SELECT FROM heddle.timers WHERE due_at <= now() FOR UPDATE SKIP LOCKED) AS free";
    eventually("free timers", async || {
        let found: i64 = sql.query_one(free, &[]).await.unwrap().get(0);
        (found == many).then_some(())
    })
    .await;
}

/// `take_timers`, `drop_timers`: nobody waits for a timer. A transaction that holds a run skips a timer that is being
/// taken; it is deleted by whoever takes it, or, if that is rolled back, by the next tick.
#[tokio::test]
async fn timers_that_are_being_taken() {
    let (_world, store, sql, _) = set_up().await;
    with_timers(&sql, &[1, 2, 3]).await;
    let ends = RunWrite {
        state: RunState::Succeeded,
        timed: true,
        ..going(1)
    };
    let drops = RunWrite {
        drop_timers: vec![TaskKey::from_numbers(0, -1)],
        ..going(2)
    };
    for (number, write) in [(1, ends), (2, drops)] {
        let mut holder = begin(&store, 7).await;
        holder.lock(&[ended(number, 7)]).await.unwrap();
        let taking = inbox(&store, number);
        waiting(&sql, 1).await;
        let mut second = begin(&store, 9).await;
        let skipped = unhindered(second.take_due(Take::AllBut(&[]))).await.expect("an answer");
        assert!(skipped.is_empty(), "what is being taken is skipped");
        unhindered(holder.write(&[write])).await.expect("nobody is waited for");
        holder.commit().await.unwrap();
        let (completion, taken, found) = taking.await.unwrap();
        assert_eq!((taken, found), (3, number != 1));
        // It gives up: what was left is still there, and due.
        drop(completion);
        due_timers(&sql, 3).await;
    }
    // A run is given up; this time the inbox commits.
    let mut holder = begin(&store, 7).await;
    holder.lock_runs(&[run(3)]).await.unwrap();
    let taking = inbox(&store, 3);
    waiting(&sql, 1).await;
    let stopped = unhindered(holder.abandon(ended(3, 7))).await.expect("an answer");
    assert_eq!(stopped.map(|stopped| stopped.len()), Some(1));
    holder.commit().await.unwrap();
    let (completion, taken, _) = taking.await.unwrap();
    assert_eq!(taken, 3);
    completion.commit().await.unwrap();
    assert_eq!(count(&sql, "timers").await, 0, "nothing stays behind");
}

/// `put_timers`: a transaction that sets a timer where an old one is being taken is rolled back instead of waiting. If
/// nobody takes it, the new one replaces it.
#[tokio::test]
async fn timers_in_the_place_of_others() {
    let (_world, store, sql, _) = set_up().await;
    with_timers(&sql, &[1]).await;
    let sets = RunWrite {
        timers: vec![(Wall.now() + super::HOUR, first())],
        ..going(1)
    };
    let mut holder = begin(&store, 7).await;
    holder.lock(&[ended(1, 7)]).await.unwrap();
    let taking = inbox(&store, 1);
    waiting(&sql, 1).await;
    let written = unhindered(holder.write(std::slice::from_ref(&sets))).await;
    let error = written.expect_err("it would have to wait");
    assert!(error.is_passing(), "{error}");
    drop(holder);
    let (completion, taken, found) = taking.await.unwrap();
    assert_eq!((taken, found), (1, true));
    drop(completion);
    due_timers(&sql, 1).await;

    let mut holder = begin(&store, 7).await;
    holder.lock(&[ended(1, 7)]).await.unwrap();
    unhindered(holder.write(&[sets])).await.expect("nobody is in its way");
    holder.commit().await.unwrap();
    assert_eq!(count(&sql, "timers WHERE due_at > now()").await, 1);
    assert_eq!(count(&sql, "timers").await, 1);
}

/// Timers of attempts that enter their queue are taken with them, but those that the inbox is taking are passed over. Runs
/// that wait for upstreams are locked in the order of their ids.
#[tokio::test]
async fn what_is_locked_with_runs() {
    let (_world, store, sql, mut other) = set_up().await;
    for number in [1, 2] {
        sql.batch_execute(&format!(
            "INSERT INTO heddle.timers (run, task, item, kind, attempt, due_at) VALUES ('{run}', 0, -1, 3, 1, now());
             INSERT INTO heddle.runs_live (id, group_id, revision_id, state, trigger, priority, logical_time,
                 interval_start, interval_end, params, created_at, progress)
             VALUES ('{run}', 1, 1, 0, 1, 0, now(), now(), now(), '{{}}', now(), '');
             INSERT INTO heddle.waits (run, group_id, upstreams) VALUES ('{run}', 1, true)",
            run = run(number)
        ))
        .await
        .unwrap();
    }
    let holder = other.transaction().await.unwrap();
    let hold = format!("SELECT FROM heddle.timers WHERE run = '{}' FOR UPDATE", run(1));
    assert_eq!(holder.execute(&hold, &[]).await.unwrap(), 1);
    let mut completion = begin(&store, 7).await;
    let entered = [(run(1), first()), (run(2), first())];
    let timers = unhindered(completion.take_claim_timers(&entered)).await.unwrap();
    assert_eq!(timers.into_keys().collect::<Vec<_>>(), [(run(2), first())]);
    let lock = |number: u128| {
        let run = run(number);
        format!("SELECT FROM heddle.runs_live WHERE id = '{run}' FOR UPDATE NOWAIT")
    };
    assert_eq!(holder.execute(&lock(1), &[]).await.unwrap(), 1);
    let waiting = meanwhile(&sql, completion.lock_waiting(&[run(2), run(1)]), async {
        let next = holder.execute(&lock(2), &[]).await;
        assert_eq!(next.expect("it is locked after the first"), 1);
        close(holder, false).await;
    })
    .await;
    assert_eq!(waiting.unwrap().len(), 2);
}

/// What another node is taking from the inbox is passed over.
#[tokio::test]
async fn what_the_inbox_has() {
    let (_world, store, sql, mut other) = set_up().await;
    for number in [1, 2] {
        sql.batch_execute(&format!(
            "INSERT INTO heddle.settlements (run, task, item, attempt, child, state) VALUES ('{run}', 0, -1, 1, '{run}', 3);
             INSERT INTO heddle.starts (run) VALUES ('{run}');
             INSERT INTO heddle.link_events (kind, group_id) VALUES (2, {number})",
            run = run(number)
        ))
        .await
        .unwrap();
    }
    let taker = other.transaction().await.unwrap();
    for held in [
        format!("SELECT FROM heddle.settlements WHERE run = '{}' FOR UPDATE", run(1)),
        format!("SELECT FROM heddle.starts WHERE run = '{}' FOR UPDATE", run(1)),
        "SELECT FROM heddle.link_events WHERE group_id = 1 FOR UPDATE".into(),
    ] {
        assert_eq!(taker.execute(&held, &[]).await.unwrap(), 1, "{held}");
    }
    let mut completion = begin(&store, 7).await;
    let all = Take::AllBut(&[]);
    let settled = unhindered(completion.take_settlements(all)).await.unwrap();
    assert_eq!(settled.iter().map(|(run, _)| *run).collect::<Vec<_>>(), [run(2)]);
    let all = Take::AllBut(&[]);
    assert_eq!(unhindered(completion.take_starts(all)).await.unwrap(), [run(2)]);
    let events = unhindered(completion.take_link_events(&[])).await.unwrap();
    let events: Vec<LinkEvent> = events.into_iter().map(|(_, event)| event.unwrap()).collect();
    assert_eq!(events, [LinkEvent::Changed(2)]);
}

/// A success is noted once, unless it has been undone by then: its run is live again, or has been overridden. A run that has
/// been deleted has succeeded. Whoever is changing one is waited for.
#[tokio::test]
async fn successes_that_are_noted() {
    let (_world, store, sql, mut other) = set_up().await;
    for (number, state) in [(1, 3), (2, 4), (5, 3)] {
        let done = format!(
            "INSERT INTO heddle.runs_done (id, group_id, revision_id, state, trigger, priority, logical_time,
                 interval_start, interval_end, params, created_at, progress, finished_at)
             VALUES ('{}', 1, 1, {state}, 1, 0, '2026-01-01'::timestamptz + {number} * interval '1 day', now(), now(), '{{}}',
                 now(), '', now())",
            run(number)
        );
        sql.batch_execute(&done).await.unwrap();
    }
    under_way(&sql, &[3], 7).await;
    let since = "2026-01-01T00:00:00Z".parse::<heddle_domain::Time>().unwrap();
    let success = |number: u128| Success {
        group_id: 1,
        run: run(number),
        logical_time: since + TimeDelta::days(number as i64),
        source: None,
        backfilled: false,
        cascades: None,
    };
    // The fourth is nowhere.
    let all = [1, 2, 3, 4].map(success);
    let mut completion = begin(&store, 7).await;
    let noted = completion.note_successes(&all).await.unwrap();
    assert_eq!(noted, [Noted::First, Noted::Undone, Noted::Undone, Noted::First]);
    let again = completion.note_successes(&all).await.unwrap();
    assert_eq!(again, [Noted::Again, Noted::Undone, Noted::Undone, Noted::Again]);
    completion.commit().await.unwrap();
    assert_eq!(count(&sql, "successes").await, 2);

    let holder = other.transaction().await.unwrap();
    let overridden = format!("UPDATE heddle.runs_done SET state = 4 WHERE id = '{}'", run(5));
    assert_eq!(holder.execute(&overridden, &[]).await.unwrap(), 1);
    let mut completion = begin(&store, 7).await;
    let late = [success(5)];
    let noted = meanwhile(&sql, completion.note_successes(&late), close(holder, true)).await;
    assert_eq!(noted.unwrap(), [Noted::Undone]);
    completion.commit().await.unwrap();
    assert_eq!(count(&sql, "successes").await, 2);
}

/// A gate is vacant if nothing behind it waits for its turn, be it paused, and nothing is active. Whoever holds the gate sees what
/// the last holder has created.
#[tokio::test]
async fn gates_that_are_vacant() {
    let (_world, store, sql, _) = set_up().await;
    let all = [1, 2, 3, 4, 5];
    let mut completion = begin(&store, 7).await;
    completion.hold_gates(&all).await.unwrap();
    assert_eq!(completion.vacant_gates(&all).await.unwrap(), all);
    completion.commit().await.unwrap();
    // Active; active, but paused; waiting for its turn; paused while it waited; waiting for upstreams.
    for (number, state, waits, upstreams) in [
        (1, 1, false, false),
        (2, 2, false, false),
        (3, 0, true, false),
        (4, 2, true, false),
        (5, 0, true, true),
    ] {
        let live = format!(
            "INSERT INTO heddle.runs_live (id, group_id, revision_id, state, trigger, priority, logical_time, interval_start,
                 interval_end, params, created_at, started_at, progress, waiting_for)
             VALUES ('{run}', {number}, 1, {state}, 3, 0, now(), now(), now(), '{{}}', now(),
                 CASE WHEN NOT {waits} THEN now() END, '', CASE WHEN {waits} THEN '{{\"turn\": true}}'::jsonb END);
             INSERT INTO heddle.waits (run, group_id, upstreams) SELECT '{run}', {number}, {upstreams} WHERE {waits}",
            run = run(number)
        );
        sql.batch_execute(&live).await.unwrap();
    }
    let mut completion = begin(&store, 7).await;
    completion.hold_gates(&all).await.unwrap();
    assert_eq!(completion.vacant_gates(&all).await.unwrap(), [5]);
    // Of a group that has no part in this.
    let make = "INSERT INTO heddle.groups (id, name, revision, revision_id, created_at, updated_at)
                OVERRIDING SYSTEM VALUE VALUES (9, 'g', 1, 1, now(), now())";
    sql.batch_execute(make).await.unwrap();
    super::first_revision(&sql, 9).await;
    let mut follower = new_run(6, 5);
    follower.terms.trigger = Trigger::Upstream;
    completion.create(&[follower]).await.unwrap();
    let mut next = begin(&store, 8).await;
    let asked = async {
        next.hold_gates(&[5]).await.unwrap();
        next.vacant_gates(&[5]).await.unwrap()
    };
    let vacant = meanwhile(&sql, asked, async { completion.commit().await.unwrap() }).await;
    assert!(vacant.is_empty(), "the last holder's run is active");
}
