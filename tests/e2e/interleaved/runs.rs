//! Runs: made, claimed, ended, stopped.

use heddle_domain::Clock;
use heddle_domain::Time;
use heddle_domain::run::TaskKey;
use heddle_domain::state::{AttemptState, RunState};
use heddle_store::Store;
use heddle_store::live::{
    AttemptRow, Completion, Created, EndedAttempt, NewRun, ReadyRow, Room, RunWrite, SingleTaskEnd, Take,
};
use heddle_store::upstream::LinkEvent;
use heddle_tests::eventually;
use tokio_postgres::Client;
use uuid::Uuid;

use super::{
    NODE, Wall, attempt_of, begin, close, count, ended, first, going, group, lease, meanwhile, new_run, run, set_up,
    under_way, unhindered, waiting,
};

pub(super) async fn ready(sql: &Client, runs: &[u128]) {
    for number in runs {
        let run = run(*number);
        sql.batch_execute(&format!(
            "INSERT INTO heddle.ready VALUES ('{run}', 0, -1, 1, 0, {number})"
        ))
        .await
        .expect("a row");
    }
}

/// Which runs a claim gets something of.
pub(super) async fn claim(store: &Store, lease: i64, free: usize) -> Vec<u128> {
    let room = Room {
        free,
        share: usize::MAX,
        backlog: false,
    };
    let claimed = store.claim(lease, room, &Wall).await.expect("an answer");
    let mut runs: Vec<u128> = claimed.iter().map(|claimed| claimed.run.0.as_u128()).collect();
    runs.sort_unstable();
    runs
}

/// The end of a run of one task run.
fn single_end(number: u128, at: Time) -> SingleTaskEnd {
    SingleTaskEnd {
        attempt: AttemptRow {
            run: run(number),
            at: first(),
            state: AttemptState::Succeeded,
            skipped: false,
            started_at: at,
            finished_at: at,
            node: Some(NODE),
            worker: None,
            output: Some("1".into()),
            error: None,
            memory_bytes: None,
            cpu_micros: None,
        },
        state: RunState::Succeeded,
        progress: Vec::new(),
        error: None,
    }
}

/// `claim`: what another claimer holds is passed over, not waited for; nothing is claimed twice, and nothing without a lease.
#[tokio::test]
async fn claims() {
    let (_world, store, sql, mut other) = set_up().await;
    let lease = lease(&store, NODE, None).await.expect("a lease");
    ready(&sql, &[1, 2, 3, 4]).await;
    let claimer = other.transaction().await.unwrap();
    let front = "DELETE FROM heddle.ready WHERE turn IN (1, 2)";
    assert_eq!(claimer.execute(front, &[]).await.unwrap(), 2);
    assert_eq!(unhindered(claim(&store, lease, 4)).await, [3, 4]);
    claimer.rollback().await.unwrap();
    let (one, two) = tokio::join!(claim(&store, lease, 1), claim(&store, lease, 1));
    let mut both = [one, two].concat();
    // The second may have come while the first had locked the front; it gets the rest now.
    both.extend(claim(&store, lease, 4).await);
    both.sort_unstable();
    assert_eq!(both, [1, 2]);
    assert_eq!((count(&sql, "ready").await, count(&sql, "running").await), (0, 4));

    ready(&sql, &[5]).await;
    store.release_node(lease).await.unwrap();
    assert_eq!(claim(&store, lease, 4).await, [0; 0]);
    assert_eq!(count(&sql, "ready").await, 1);
}

/// `lock_ended`: runs are locked before any attempt is taken, in the order of their ids, and what is written is dated
/// after the locks. Of two who report one attempt, the second waits, and finds it gone if the first has committed.
#[tokio::test]
async fn outcomes() {
    let (_world, store, sql, mut other) = set_up().await;
    under_way(&sql, &[1, 2], 7).await;
    let report = |runs: &'static [u128]| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut completion = begin(&store, 7).await;
            let ended: Vec<EndedAttempt> = runs.iter().map(|run| ended(*run, 7)).collect();
            let locked = completion.lock(&ended).await.expect("an answer");
            (completion, locked)
        })
    };

    // Somebody holds the first run: the next one is not locked yet, and no attempt is taken.
    let holder = other.transaction().await.unwrap();
    let hold = format!("SELECT FROM heddle.runs_live WHERE id = '{}' FOR UPDATE", run(1));
    holder.execute(&hold, &[]).await.unwrap();
    let both = report(&[2, 1]);
    waiting(&sql, 1).await;
    sql.batch_execute(&format!(
        "BEGIN;
         SELECT FROM heddle.runs_live WHERE id = '{two}' FOR UPDATE NOWAIT;
         SELECT FROM heddle.running FOR UPDATE NOWAIT;
         ROLLBACK",
        two = run(2)
    ))
    .await
    .expect("nothing else is locked");
    let released = Wall.now();
    holder.rollback().await.unwrap();
    let (completion, locked) = both.await.unwrap();
    assert_eq!((locked.runs.len(), locked.owned.len()), (2, 2));
    assert!(completion.now() >= released, "what it writes is dated behind the locks");

    // It is rolled back: the one that waits gets what it had taken.
    let second = report(&[1]);
    waiting(&sql, 1).await;
    drop(completion);
    let (completion, locked) = second.await.unwrap();
    assert_eq!(locked.owned.len(), 1);

    // It commits: the one that waits finds the run, but nothing of its own to end.
    let zombie = report(&[1]);
    waiting(&sql, 1).await;
    completion.commit().await.unwrap();
    let (_, locked) = zombie.await.unwrap();
    assert_eq!((locked.runs.len(), locked.owned.len()), (1, 0));
    assert_eq!(count(&sql, "running").await, 1);
}

/// `complete_single_task`: the run is locked before its attempt is taken. Of two who end one run, one does, and all is
/// written once.
#[tokio::test]
async fn ends_of_runs() {
    let (_world, store, sql, mut other) = set_up().await;
    under_way(&sql, &[1], 7).await;
    let now = store.now().await.unwrap();
    let row = single_end(1, now);
    let holder = other.transaction().await.unwrap();
    holder
        .execute("SELECT FROM heddle.runs_live FOR UPDATE", &[])
        .await
        .unwrap();
    let end = || {
        let (store, row) = (store.clone(), row.clone());
        tokio::spawn(async move {
            store
                .complete_single_task(&[&row], &[], 7, NODE)
                .await
                .expect("an answer")
                .0
        })
    };
    let (one, two) = (end(), end());
    waiting(&sql, 2).await;
    sql.batch_execute("BEGIN; SELECT FROM heddle.running FOR UPDATE NOWAIT; ROLLBACK")
        .await
        .expect("the run is locked before its attempt");
    holder.rollback().await.unwrap();
    assert_eq!([one.await.unwrap(), two.await.unwrap()].concat(), [run(1)]);
    let mut rows = Vec::new();
    for table in ["runs_live", "running", "attempts", "runs_done"] {
        rows.push(count(&sql, table).await);
    }
    assert_eq!(rows, [0, 0, 1, 1]);
}

/// `finish_runs`: whoever ends a run that is being ended waits, and ends nothing. If the group of a schedule that
/// counts from the end is being changed, the end waits for that, and the schedule is as the group then has it.
#[tokio::test]
async fn ends_of_locked_runs() {
    let (_world, store, sql, mut other) = set_up().await;
    let group = group(&sql, "g").await;
    under_way(&sql, &[1], 7).await;
    sql.batch_execute(&format!(
        "UPDATE heddle.runs_live SET group_id = {group}, trigger = 1;
         INSERT INTO heddle.schedules (group_id, name, revision_id, anchor, zone, live, cursor, delay, awaits)
              SELECT {group}, name, 1, now(), 'UTC', true, now(), interval '1 hour', '{run}'
                FROM UNNEST('{{changed,left}}'::text[]) AS name",
        run = run(1)
    ))
    .await
    .unwrap();
    let mut completion = begin(&store, 7).await;
    assert_eq!(completion.lock(&[ended(1, 7)]).await.unwrap().owned.len(), 1);
    let (late, row) = (store.clone(), single_end(1, Wall.now()));
    let late = tokio::spawn(async move { late.complete_single_task(&[&row], &[], 7, NODE).await.unwrap().0 });
    waiting(&sql, 1).await;
    let changes = other.transaction().await.unwrap();
    let disable = "UPDATE heddle.schedules SET live = false WHERE name = 'changed'";
    assert_eq!(changes.execute(disable, &[]).await.unwrap(), 1);
    let ending = tokio::spawn(async move {
        let write = RunWrite {
            state: RunState::Succeeded,
            ..going(1)
        };
        completion.write(&[write]).await.expect("an end");
        completion.commit().await.expect("a commit");
    });
    waiting(&sql, 2).await;
    assert_eq!((count(&sql, "runs_live").await, count(&sql, "runs_done").await), (1, 0));
    changes.commit().await.unwrap();
    ending.await.unwrap();
    assert_eq!(late.await.unwrap(), []);
    assert_eq!((count(&sql, "runs_live").await, count(&sql, "runs_done").await), (0, 1));
    assert_eq!(count(&sql, "events WHERE kind = 'run.succeeded'").await, 1);
    let counted = "schedules s WHERE s.awaits IS NULL AND s.next_fire_at IS NOT DISTINCT FROM
         CASE WHEN s.live THEN (SELECT d.finished_at FROM heddle.runs_done d) + s.delay END";
    assert_eq!(count(&sql, counted).await, 2);
}

/// `finish_runs`, `complete_single_task`: schedules that await the runs are locked in the order of names, as a change of
/// their group locks them, whatever the order of the runs.
#[tokio::test]
async fn ends_that_schedules_await() {
    for (single, awaited) in [(false, [1, 2]), (false, [2, 1]), (true, [1, 2]), (true, [2, 1])] {
        let (_world, store, sql, mut other) = set_up().await;
        let group = group(&sql, "g").await;
        under_way(&sql, &[1, 2], 7).await;
        for (name, awaited) in ["a", "b"].into_iter().zip(awaited) {
            sql.batch_execute(&format!(
                "UPDATE heddle.runs_live SET group_id = {group}, trigger = 1;
                 INSERT INTO heddle.schedules (group_id, name, revision_id, anchor, zone, live, cursor, delay, awaits)
                 VALUES ({group}, '{name}', 1, now(), 'UTC', true, now(), interval '1 hour', '{run}')",
                run = run(awaited)
            ))
            .await
            .unwrap();
        }
        let change = other.transaction().await.unwrap();
        let hold = "SELECT FROM heddle.schedules WHERE name = 'a' FOR UPDATE";
        assert_eq!(change.execute(hold, &[]).await.unwrap(), 1);
        let ends = async {
            if single {
                let rows = [1, 2].map(|number| single_end(number, Wall.now()));
                let rows: Vec<&SingleTaskEnd> = rows.iter().collect();
                let ended = store.complete_single_task(&rows, &[], 7, NODE).await;
                assert_eq!(ended.expect("an answer").0.len(), 2);
                return;
            }
            let mut completion = begin(&store, 7).await;
            completion.lock(&[ended(1, 7), ended(2, 7)]).await.expect("an answer");
            let writes = [1, 2].map(|number| RunWrite {
                state: RunState::Succeeded,
                ..going(number)
            });
            completion.write(&writes).await.expect("an end");
            completion.commit().await.expect("a commit");
        };
        meanwhile(&sql, ends, async {
            let next = "SELECT FROM heddle.schedules WHERE name = 'b' FOR UPDATE NOWAIT";
            assert_eq!(change.execute(next, &[]).await.expect("it is locked after `a`"), 1);
            close(change, false).await;
        })
        .await;
        let counted = "schedules WHERE awaits IS NULL AND next_fire_at > now()";
        assert_eq!(count(&sql, counted).await, 2);
    }
}

/// `finish_runs`, `move_schedules`: whoever ends runs, and whoever keeps them from ending, takes them in the order of their
/// ids. A schedule that has begun to wait for a run while its end waited does not wait for ever.
#[tokio::test]
async fn ends_beside_a_firing() {
    let (_world, store, sql, mut other) = set_up().await;
    let group = group(&sql, "g").await;
    under_way(&sql, &[1, 2], 7).await;
    sql.batch_execute(&format!(
        "UPDATE heddle.runs_live SET group_id = {group}, trigger = 1;
         INSERT INTO heddle.schedules (group_id, name, revision_id, anchor, zone, live, cursor, delay, next_fire_at)
         VALUES ({group}, 's', 1, now(), 'UTC', true, now(), interval '1 hour', now())"
    ))
    .await
    .unwrap();
    let firing = other.transaction().await.unwrap();
    let keep = |number: u128| {
        let run = run(number);
        format!("SELECT FROM heddle.runs_live WHERE id = '{run}' FOR KEY SHARE NOWAIT")
    };
    assert_eq!(firing.execute(&keep(1), &[]).await.unwrap(), 1);
    let ends = async {
        let mut completion = begin(&store, 7).await;
        let locked = completion.lock(&[ended(1, 7), ended(2, 7)]).await.expect("an answer");
        assert_eq!(locked.owned.len(), 2, "only the end waits");
        let writes = [2, 1].map(|number| RunWrite {
            state: RunState::Succeeded,
            ..going(number)
        });
        completion.write(&writes).await.expect("an end");
        completion.commit().await.expect("a commit");
    };
    meanwhile(&sql, ends, async {
        let kept = firing.execute(&keep(2), &[]).await;
        assert_eq!(kept.expect("it ends after the first"), 1);
        let waits = format!("UPDATE heddle.schedules SET awaits = '{}', next_fire_at = NULL", run(2));
        assert_eq!(firing.execute(&waits, &[]).await.unwrap(), 1);
        close(firing, true).await;
    })
    .await;
    assert_eq!(count(&sql, "runs_done").await, 2);
    // The end read schedules as they were before it waited.
    assert_eq!(count(&sql, "schedules WHERE awaits IS NOT NULL").await, 1);
    let free = async || {
        let freed = store.free_schedules(Uuid::nil(), 10, Wall.now()).await;
        freed.expect("an answer").0
    };
    assert_eq!(free().await, 1);
    let due = "schedules s JOIN heddle.runs_done d ON d.finished_at = s.cursor
                WHERE awaits IS NULL AND next_fire_at = s.cursor + s.delay";
    assert_eq!(count(&sql, due).await, 2, "of two runs that ended at once");
    assert_eq!(free().await, 0);
}

/// `interrupt`: waits for a claim in progress, and stops the attempt where that has put it. Whoever is about to report
/// a stopped attempt waits for the run, and finds that it is not its own any more.
#[tokio::test]
async fn interrupts() {
    let (_world, store, sql, mut other) = set_up().await;
    under_way(&sql, &[1], 7).await;
    let id = run(1);
    sql.batch_execute(&format!("INSERT INTO heddle.ready VALUES ('{id}', 1, -1, 1, 0, 1)"))
        .await
        .unwrap();
    let claimer = other.transaction().await.unwrap();
    let claim = format!(
        "WITH taken AS (DELETE FROM heddle.ready WHERE run = '{id}' RETURNING run, task, item, attempt)
         INSERT INTO heddle.running SELECT run, task, item, attempt, 8, now() FROM taken"
    );
    assert_eq!(claimer.execute(&claim, &[]).await.unwrap(), 1);
    let mut completion = begin(&store, 9).await;
    completion.lock_runs(&[id]).await.unwrap();
    let reporter = store.clone();
    let reports = tokio::spawn(async move {
        let mut completion = begin(&reporter, 7).await;
        let locked = completion.lock(&[ended(1, 7)]).await.expect("an answer");
        (locked.runs.len(), locked.owned.len())
    });
    waiting(&sql, 1).await;
    let stops = tokio::spawn(async move {
        let interrupt = vec![TaskKey::from_numbers(0, -1), TaskKey::from_numbers(1, -1)];
        let write = RunWrite { interrupt, ..going(1) };
        let written = completion.write(&[write]).await.expect("an answer");
        completion.commit().await.expect("a commit");
        let mut leases: Vec<i64> = written.interrupted.iter().map(|stopped| stopped.lease).collect();
        leases.sort_unstable();
        leases
    });
    waiting(&sql, 2).await;
    claimer.commit().await.unwrap();
    assert_eq!(
        stops.await.unwrap(),
        [7, 8],
        "the one that was claimed meanwhile as well"
    );
    assert_eq!(reports.await.unwrap(), (1, 0));
    let stopped = "attempts WHERE state = 5 AND finished_at >= started_at";
    assert_eq!((count(&sql, "running").await, count(&sql, stopped).await), (0, 2));
}

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

/// `abandon_run`: the run is locked before its attempt; of two who have an attempt's run, one to report it and one to give it
/// up, the later waits, and has nothing to do if the earlier has done it.
#[tokio::test]
async fn runs_that_are_given_up() {
    let (world, store, sql, _) = set_up().await;
    under_way(&sql, &[1, 2], 7).await;
    let giving_up = |number: u128| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut completion = begin(&store, 7).await;
            let stopped = completion.abandon(ended(number, 7)).await.expect("an answer");
            (completion, stopped.map(|stopped| stopped.len()))
        })
    };
    let reporting = |number: u128| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut completion = begin(&store, 7).await;
            let locked = completion.lock(&[ended(number, 7)]).await.expect("an answer");
            (completion, locked.owned.len())
        })
    };
    let mut other = world.sql().await;
    let holder = other.transaction().await.unwrap();
    let hold = format!("SELECT FROM heddle.runs_live WHERE id = '{}' FOR UPDATE", run(1));
    holder.execute(&hold, &[]).await.unwrap();
    let first = giving_up(1);
    waiting(&sql, 1).await;
    sql.batch_execute("BEGIN; SELECT FROM heddle.running FOR UPDATE NOWAIT; ROLLBACK")
        .await
        .expect("the run is locked before its attempt");
    holder.rollback().await.unwrap();
    let (first, stopped) = first.await.unwrap();
    assert_eq!(stopped, Some(1));
    let second = reporting(1);
    waiting(&sql, 1).await;
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap().1, 0, "it has been given up");

    let (first, owned) = reporting(2).await.unwrap();
    assert_eq!(owned, 1);
    let second = giving_up(2);
    waiting(&sql, 1).await;
    drop(first);
    let (second, stopped) = second.await.unwrap();
    assert_eq!(stopped, Some(1), "nothing was reported");
    drop(second);
    let (first, _) = reporting(2).await.unwrap();
    let second = giving_up(2);
    waiting(&sql, 1).await;
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap().1, None, "it was reported");
}

/// `make_ready`: whoever moves a run waits for another one that is moving it, and sees the result. A node whose lease
/// has been lost in the meantime gets nothing.
#[tokio::test]
async fn what_becomes_ready() {
    let (_world, store, sql, _) = set_up().await;
    let lease = lease(&store, NODE, None).await.expect("a lease");
    under_way(&sql, &[1], lease).await;
    let handed = |task: i16| {
        let mut row = ReadyRow::new(attempt_of(task), 1, None);
        let room = Room {
            free: 1,
            share: 1,
            backlog: false,
        };
        row.hand(&mut room.grant());
        row
    };
    let mut first = begin(&store, lease).await;
    first.lock_runs(&[run(1)]).await.unwrap();
    let second = store.clone();
    let second = tokio::spawn(async move {
        let mut completion = begin(&second, lease).await;
        let locked = completion.lock_runs(&[run(1)]).await.expect("an answer");
        (completion, locked[&run(1)].progress.clone())
    });
    waiting(&sql, 1).await;
    let write = RunWrite {
        progress: b"moved".to_vec(),
        ready: vec![handed(1)],
        ..going(1)
    };
    assert!(first.write(&[write]).await.unwrap().handed);
    first.commit().await.unwrap();
    let (mut second, progress) = second.await.unwrap();
    assert_eq!(progress, b"moved");
    store.release_node(lease).await.unwrap();
    let write = RunWrite {
        ready: vec![handed(2)],
        ..going(1)
    };
    assert!(!second.write(&[write]).await.unwrap().handed);
    second.commit().await.unwrap();
    assert_eq!(count(&sql, "running WHERE task < 2").await, 2);
    assert_eq!(
        (count(&sql, "running").await, count(&sql, "ready WHERE task = 2").await),
        (2, 1)
    );
}

/// `create_runs`: of two that make a run of one key, or for one instant, the later waits; it makes none if the earlier has
/// made one, and else begins after it had to wait. An instant whose run is gone is free, for one of them. A node without a
/// lease makes runs and is handed nothing of them.
#[tokio::test]
async fn runs_that_may_be_there() {
    let (_world, store, sql, _) = set_up().await;
    let group = group(&sql, "g").await;
    let at = Wall.now();
    let keyed = |number: u128| NewRun {
        key: Some("k".into()),
        ready: vec![ReadyRow::new(first(), 1, None)],
        ..new_run(number, group)
    };
    let of_instant = |number: u128| NewRun {
        instant: true,
        logical_time: at,
        ..new_run(number, group)
    };
    let making = |run: NewRun| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut completion = begin(&store, 1).await;
            let created = completion.create(&[run]).await.expect("an answer").remove(0);
            (completion, created)
        })
    };
    let (first, created) = making(keyed(1)).await.unwrap();
    assert!(matches!(created, Created::Made { .. }), "{created:?}");
    let second = making(keyed(2));
    waiting(&sql, 1).await;
    let released = Wall.now();
    drop(first);
    let (second, created) = second.await.unwrap();
    let Created::Made {
        handed: true,
        at: begun,
    } = created
    else {
        panic!("{created:?}")
    };
    assert!(begun >= released, "it begins when it has its key");
    let third = making(keyed(3));
    waiting(&sql, 1).await;
    second.commit().await.unwrap();
    assert_eq!(third.await.unwrap().1, Created::Exists(run(2)));
    assert_eq!(count(&sql, "runs_live WHERE created_at <= started_at").await, 1);

    let (first, created) = making(of_instant(4)).await.unwrap();
    assert!(matches!(created, Created::Made { .. }), "{created:?}");
    let second = making(of_instant(5));
    waiting(&sql, 1).await;
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap().1, Created::Exists(run(4)));

    let gone = format!("DELETE FROM heddle.runs_live WHERE id = '{}'", run(4));
    assert_eq!(sql.execute(&gone, &[]).await.unwrap(), 1);
    for commits in [false, true] {
        let (first, created) = making(of_instant(7)).await.unwrap();
        assert!(matches!(created, Created::Made { .. }), "{created:?}");
        let second = making(of_instant(8));
        waiting(&sql, 1).await;
        match commits {
            true => first.commit().await.unwrap(),
            false => drop(first),
        }
        let (_, created) = second.await.unwrap();
        assert_eq!(created == Created::Exists(run(7)), commits, "{created:?}");
    }
    assert_eq!(count(&sql, &format!("run_instants WHERE run = '{}'", run(7))).await, 1);

    let mut row = ReadyRow::new(super::first(), 1, None);
    let room = Room {
        free: 1,
        share: 1,
        backlog: false,
    };
    row.hand(&mut room.grant());
    let handed = NewRun {
        ready: vec![row],
        ..new_run(6, group)
    };
    let created = store.create_runs(&[&handed], 77, &Wall).await.unwrap().remove(0);
    assert!(matches!(created, Created::Made { handed: false, .. }), "{created:?}");
    assert_eq!((count(&sql, "running").await, count(&sql, "ready").await), (0, 2));
}

/// Of two runs of the same params of which there may be one, the later waits. So does an ended run that is to live again.
#[tokio::test]
async fn runs_of_the_same_params() {
    let (_world, store, sql, mut other) = set_up().await;
    let group = group(&sql, "g").await;
    let deduped = |number: u128, hash: u8| NewRun {
        dedupe: Some((vec![hash; 32], false)),
        ..new_run(number, group)
    };
    let making = |run: NewRun| {
        let store = store.clone();
        async move {
            let mut completion = begin(&store, 1).await;
            let created = completion.create(&[run]).await.expect("an answer").remove(0);
            (completion, created)
        }
    };
    // By number, as the hashes have them.
    let holder = other.transaction().await.unwrap();
    let lock = "SELECT pg_advisory_xact_lock($1)";
    holder.execute(lock, &[&i64::from_be_bytes([1; 8])]).await.unwrap();
    let both = async {
        let mut completion = begin(&store, 1).await;
        let created = completion.create(&[deduped(1, 2), deduped(2, 1)]).await;
        created.expect("an answer").len()
    };
    let made = meanwhile(&sql, both, async {
        let tries = "SELECT pg_try_advisory_xact_lock($1)";
        let free = sql.query_one(tries, &[&i64::from_be_bytes([2; 8])]).await.unwrap();
        assert!(free.get::<_, bool>(0), "the second is locked after the first");
        close(holder, false).await;
    })
    .await;
    assert_eq!(made, 2);

    for (number, commits) in [(1, false), (3, true)] {
        let (first, created) = making(deduped(number, 1)).await;
        assert!(matches!(created, Created::Made { .. }), "{created:?}");
        let ends = async {
            match commits {
                true => first.commit().await.expect("a commit"),
                false => drop(first),
            }
        };
        let (_, created) = meanwhile(&sql, making(deduped(number + 1, 1)), ends).await;
        assert_eq!(created == Created::Exists(run(number)), commits, "{created:?}");
    }

    sql.batch_execute(&format!(
        "INSERT INTO heddle.runs_done (id, group_id, revision_id, state, trigger, priority, logical_time, interval_start,
             interval_end, params, dedupe, created_at, started_at, progress, finished_at)
         VALUES ('{run}', {group}, 1, 4, 0, 0, now(), now(), now(), '{{}}', '\\x{hash}', now(), now(), '', now())",
        run = run(9),
        hash = "02".repeat(32)
    ))
    .await
    .unwrap();
    for commits in [false, true] {
        let (first, _) = making(deduped(8, 2)).await;
        let ends = async {
            match commits {
                true => first.commit().await.expect("a commit"),
                false => drop(first),
            }
        };
        let again = async {
            let mut control = begin(&store, 1).await;
            let found = control.lock_one(run(9), true).await.expect("an answer").expect("a run");
            let hash = found.dedupe.expect("it was deduped");
            control.take_params_again(run(9), group, &hash).await
        };
        let other = meanwhile(&sql, again, ends).await.unwrap();
        assert_eq!(other, commits.then(|| run(8)));
    }
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
    let events: Vec<LinkEvent> = events.into_iter().map(|(_, event)| event).collect();
    assert_eq!(events, [LinkEvent::Changed(2)]);
}

/// A control that waits for a run finds it where it went meanwhile: among the ended, or back among the living.
#[tokio::test]
async fn runs_that_move_while_a_control_waits() {
    let (_world, store, sql, mut other) = set_up().await;
    under_way(&sql, &[1], 7).await;
    let columns = "id, group_id, revision_id, trigger, priority, logical_time, interval_start, interval_end, params,
                   created_at, started_at, progress";
    let ends = format!(
        "WITH gone AS (DELETE FROM heddle.runs_live RETURNING *)
         INSERT INTO heddle.runs_done ({columns}, state, finished_at) SELECT {columns}, 4, now() FROM gone"
    );
    let restarts = format!(
        "WITH gone AS (DELETE FROM heddle.runs_done RETURNING *)
         INSERT INTO heddle.runs_live ({columns}, state) SELECT {columns}, 1 FROM gone"
    );
    for (moves, found, live) in [(&ends, RunState::Failed, 0), (&restarts, RunState::Running, 1)] {
        let moving = other.transaction().await.unwrap();
        assert_eq!(moving.execute(moves, &[]).await.unwrap(), 1);
        let mut control = begin(&store, 7).await;
        let looking = tokio::spawn(async move { control.lock_one(run(1), false).await });
        waiting(&sql, 1).await;
        moving.commit().await.unwrap();
        let locked = looking.await.unwrap().expect("an answer").expect("a run");
        assert_eq!(locked.state, found);
        assert_eq!(count(&sql, "runs_live").await, live);
    }
}
