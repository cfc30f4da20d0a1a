//! Queues: put, claimed, kept, ended.

use heddle_domain::Clock;
use heddle_domain::run::AttemptKey;
use heddle_store::Store;
use heddle_store::live::{ClaimKey, ClaimTerms, QueueClaims, QueueRow, QueueTarget, RunWrite};
use tokio_postgres::Client;
use uuid::Uuid;

use super::{
    Wall, assert_repeated_once, attempt_of, begin, count, first, going, meets_another, run, set_up, under_way,
    unhindered, waiting,
};

/// The claim of a run's first attempt.
fn claim_of(number: u128) -> ClaimKey {
    ClaimKey {
        id: Uuid::from_u128(number + 1_000),
        run: run(number),
        at: first(),
        lease: -(number as i64),
    }
}

/// Runs whose task runs a worker holds, each until then.
async fn claimed(sql: &Client, runs: &[u128], until: &str) {
    for number in runs {
        let ClaimKey { id, run, lease, .. } = claim_of(*number);
        under_way(sql, &[*number], lease).await;
        sql.batch_execute(&format!(
            "INSERT INTO heddle.queue_claims (run, task, item, attempt, id, lease, queue, worker, lease_ms, claimed_at,
                 lease_expires_at)
             VALUES ('{run}', 0, -1, 1, '{id}', {lease}, 'q', 'w', 60000, now(), {until})"
        ))
        .await
        .expect("a claim");
    }
}

/// Runs whose task runs wait for a worker, in this order.
async fn queued(sql: &Client, runs: &[u128], expires: &str) {
    for number in runs {
        let run = run(*number);
        sql.batch_execute(&format!(
            "INSERT INTO heddle.runs_live (id, group_id, revision_id, state, trigger, priority, logical_time,
                 interval_start, interval_end, params, created_at, started_at, progress)
             VALUES ('{run}', 1, 1, 1, 0, 0, now(), now(), now(), '{{}}', now(), now(), '');
             INSERT INTO heddle.queue_ready (run, task, item, attempt, queue, priority, turn, tags, ready_at, expires_at)
             VALUES ('{run}', 0, -1, 1, 'q', 0, {number}, '{{}}', now(), {expires})"
        ))
        .await
        .expect("a row");
    }
}

async fn claim(store: &Store, many: i64) -> QueueClaims {
    let fresh: Vec<(Uuid, i64)> = (1..=many).map(|n| (Uuid::from_u128(n as u128), -n - 1_000)).collect();
    let terms = ClaimTerms {
        queue: "q",
        worker: "w",
        tags: &[],
        lease_ms: 60_000,
        fresh: &fresh,
        bytes_max: 1 << 20,
    };
    store.claim_queued(&terms).await.expect("an answer")
}

fn numbers(claims: &QueueClaims) -> Vec<u128> {
    claims.claimed.iter().map(|one| one.claim.run.0.as_u128()).collect()
}

/// `queue_put`: two writers that read the same head of a queue do not wait for each other, and may write the same
/// `turn`. A writer that moves the same run waits for the one that has put it there, and sees the result.
#[tokio::test]
async fn what_is_put() {
    let (_world, store, sql, mut other) = set_up().await;
    queued(&sql, &[10], "NULL").await;
    under_way(&sql, &[1], 7).await;
    let writer = other.transaction().await.unwrap();
    let put = "INSERT INTO heddle.queue_ready (run, task, item, attempt, queue, priority, turn, tags, ready_at)
               VALUES (gen_random_uuid(), 0, -1, 1, 'q', 0, 11, '{}', now())";
    assert_eq!(writer.execute(put, &[]).await.unwrap(), 1);
    let row = |at: AttemptKey| QueueRow {
        at,
        ordinal: 1,
        floor: 0,
        target: QueueTarget {
            queue: "q".into(),
            ..QueueTarget::default()
        },
        params: None,
        ready_at: None,
    };
    let mut completion = begin(&store, 7).await;
    completion.lock_runs(&[run(1)]).await.unwrap();
    let write = RunWrite {
        progress: b"put".to_vec(),
        queued: vec![row(attempt_of(1))],
        ..going(1)
    };
    unhindered(completion.write(&[write])).await.unwrap();
    let second = store.clone();
    let second = tokio::spawn(async move {
        let mut completion = begin(&second, 7).await;
        let locked = completion.lock_runs(&[run(1)]).await.expect("an answer");
        locked[&run(1)].progress.clone()
    });
    waiting(&sql, 1).await;
    completion.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), b"put");
    writer.commit().await.unwrap();
    assert_eq!(count(&sql, "queue_ready WHERE turn = 11").await, 2);
}

/// `queue_claim`: what another claimer holds is passed over; a queue with a rate is claimed from by one at a time, and what
/// the one before has used up is not there any more.
#[tokio::test]
async fn claims() {
    let (_world, store, sql, mut other) = set_up().await;
    queued(&sql, &[1, 2], "NULL").await;
    let claimer = other.transaction().await.unwrap();
    let front = "DELETE FROM heddle.queue_ready WHERE turn = 1";
    assert_eq!(claimer.execute(front, &[]).await.unwrap(), 1);
    assert_eq!(numbers(&unhindered(claim(&store, 2)).await), [2]);
    claimer.rollback().await.unwrap();

    sql.batch_execute(
        "INSERT INTO heddle.queues (name, rate_count, rate_per_ms, allowance, created_at, updated_at)
         VALUES ('q', 1, 86400000, 1, now(), now())",
    )
    .await
    .unwrap();
    for (commits, gets) in [(true, vec![]), (false, vec![1])] {
        sql.batch_execute("UPDATE heddle.queues SET allowance = 1, allowed_at = clock_timestamp()")
            .await
            .unwrap();
        let claimer = other.transaction().await.unwrap();
        let use_up = "UPDATE heddle.queues SET allowance = 0, allowed_at = clock_timestamp()";
        assert_eq!(claimer.execute(use_up, &[]).await.unwrap(), 1);
        let late = store.clone();
        let late = tokio::spawn(async move { claim(&late, 2).await });
        waiting(&sql, 1).await;
        match commits {
            true => claimer.commit().await.unwrap(),
            false => claimer.rollback().await.unwrap(),
        }
        let late = late.await.unwrap();
        assert_eq!(numbers(&late), gets, "{late:?}");
        assert_eq!(late.limited_ms.is_some(), commits, "{late:?}");
    }
}

/// `queue_heartbeat`: a claim that somebody is ending, or whose lease somebody has run out, is waited for, and not extended
/// if that is so.
#[tokio::test]
async fn heartbeats() {
    let (_world, store, sql, mut other) = set_up().await;
    claimed(&sql, &[1, 2], "now() + interval '1 minute'").await;
    let beat = |number: u128| {
        let store = store.clone();
        tokio::spawn(async move {
            let extended = store.heartbeat_claims(&[claim_of(number)], &[Some(3_600_000)]).await;
            extended.expect("an answer").len()
        })
    };
    let first = run(1);
    for (change, commits, extended) in [
        (
            format!("DELETE FROM heddle.queue_claims WHERE run = '{first}'"),
            false,
            1,
        ),
        (
            format!("DELETE FROM heddle.queue_claims WHERE run = '{first}'"),
            true,
            0,
        ),
        (
            "UPDATE heddle.queue_claims SET lease_expires_at = clock_timestamp()".to_owned(),
            true,
            0,
        ),
    ] {
        let ender = other.transaction().await.unwrap();
        assert!(ender.execute(&change, &[]).await.unwrap() > 0);
        let beat = beat(if change.starts_with("DELETE") { 1 } else { 2 });
        waiting(&sql, 1).await;
        match commits {
            true => ender.commit().await.unwrap(),
            false => ender.rollback().await.unwrap(),
        }
        assert_eq!(beat.await.unwrap(), extended, "{change}");
    }
}

/// A heartbeat that met another transaction is tried again by the store.
#[tokio::test]
async fn repeated_heartbeats() {
    let (_world, store, sql, _) = set_up().await;
    claimed(&sql, &[1], "now() + interval '1 minute'").await;
    meets_another(&sql, "UPDATE ON heddle.queue_claims").await;
    let extended = store.heartbeat_claims(&[claim_of(1)], &[Some(3_600_000)]).await;
    assert_eq!(extended.expect("the second try").len(), 1);
    assert_repeated_once(&store, "heartbeat_claims");
}

/// `queue_lock_claims`: runs are locked before any claim is taken, in the order of their ids; of two who end one claim the later
/// waits, and gets it only if the earlier has not ended it.
#[tokio::test]
async fn ends_of_claims() {
    let (_world, store, sql, mut other) = set_up().await;
    claimed(&sql, &[1, 2], "now() + interval '1 hour'").await;
    let end = |claims: Vec<u128>| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut completion = begin(&store, 7).await;
            let keys: Vec<ClaimKey> = claims.iter().map(|number| claim_of(*number)).collect();
            let locked = completion.lock_claims(&keys, false).await.expect("an answer");
            (completion, locked.owned.len())
        })
    };
    let holder = other.transaction().await.unwrap();
    let hold = format!("SELECT FROM heddle.runs_live WHERE id = '{}' FOR UPDATE", run(1));
    holder.execute(&hold, &[]).await.unwrap();
    let both = end(vec![2, 1]);
    waiting(&sql, 1).await;
    sql.batch_execute(&format!(
        "BEGIN;
         SELECT FROM heddle.runs_live WHERE id = '{two}' FOR UPDATE NOWAIT;
         SELECT FROM heddle.queue_claims FOR UPDATE NOWAIT;
         SELECT FROM heddle.running FOR UPDATE NOWAIT;
         ROLLBACK",
        two = run(2)
    ))
    .await
    .expect("nothing else is locked");
    let released = Wall.now();
    holder.rollback().await.unwrap();
    let (first, owned) = both.await.unwrap();
    assert_eq!(owned, 2);
    assert!(first.now() >= released, "the end is dated behind the locks");
    let second = end(vec![1]);
    waiting(&sql, 1).await;
    drop(first);
    let (second, owned) = second.await.unwrap();
    assert_eq!(owned, 1);
    let third = end(vec![1]);
    waiting(&sql, 1).await;
    second.commit().await.unwrap();
    assert_eq!(third.await.unwrap().1, 0);
    assert_eq!(
        (count(&sql, "queue_claims").await, count(&sql, "running").await),
        (1, 1)
    );
}

/// `queue_lock_overdue`: runs are locked before any row of a queue; one that a worker claims at the last moment is waited for, and is not overdue any more if it got it.
#[tokio::test]
async fn what_nobody_claimed() {
    let (_world, store, sql, mut other) = set_up().await;
    queued(&sql, &[1], "now() - interval '1 second'").await;
    let reap = || {
        let store = store.clone();
        tokio::spawn(async move {
            let mut completion = begin(&store, 7).await;
            let locked = completion.lock_overdue(&[(run(1), first())]).await.expect("an answer");
            (locked.runs.len(), locked.owned.len())
        })
    };
    let holder = other.transaction().await.unwrap();
    holder
        .execute("SELECT FROM heddle.runs_live FOR UPDATE", &[])
        .await
        .unwrap();
    let reaper = reap();
    waiting(&sql, 1).await;
    sql.batch_execute("BEGIN; SELECT FROM heddle.queue_ready FOR UPDATE NOWAIT; ROLLBACK")
        .await
        .expect("the run is locked before its row in the queue");
    holder.rollback().await.unwrap();
    assert_eq!(reaper.await.unwrap(), (1, 1));
    for (commits, owned) in [(false, 1), (true, 0)] {
        let claimer = other.transaction().await.unwrap();
        assert_eq!(claimer.execute("DELETE FROM heddle.queue_ready", &[]).await.unwrap(), 1);
        let reaper = reap();
        waiting(&sql, 1).await;
        match commits {
            true => claimer.commit().await.unwrap(),
            false => claimer.rollback().await.unwrap(),
        }
        assert_eq!(reaper.await.unwrap(), (1, owned));
    }
}
