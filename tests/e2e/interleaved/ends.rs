//! Ends of attempts and of runs: reported, given up, awaited by schedules.

use heddle_domain::state::{AttemptState, RunState};
use heddle_domain::{Clock, Time};
use heddle_store::live::{AttemptRow, EndedAttempt, RunWrite, SingleTaskEnd};
use uuid::Uuid;

use super::{NODE, Wall, begin, close, count, ended, first, going, group, meanwhile, run, set_up, under_way, waiting};

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
