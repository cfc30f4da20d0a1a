//! Runs: made, claimed, moved, stopped.

use heddle_domain::Clock;
use heddle_domain::run::TaskKey;
use heddle_domain::state::RunState;
use heddle_store::live::{Created, NewRun, ReadyRow, Room, RunWrite};
use heddle_store::{Store, StoreError};
use tokio_postgres::Client;

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
    store.release_node(NODE, lease).await.unwrap();
    assert_eq!(claim(&store, lease, 4).await, [0; 0]);
    assert_eq!(count(&sql, "ready").await, 1);
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
    store.release_node(NODE, lease).await.unwrap();
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
    let keyed = |number: u128| {
        let mut run = new_run(number, group);
        run.terms.key = Some("k".into());
        run.ready = vec![ReadyRow::new(first(), 1, None)];
        run
    };
    let of_instant = |number: u128| {
        let mut run = new_run(number, group);
        run.terms.logical_time = at;
        run.instant = true;
        run
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
    let created = store
        .create_plain_runs(&[&handed], 77, &Wall)
        .await
        .unwrap()
        .unwrap()
        .remove(0);
    assert!(matches!(created, Created::Made { handed: false, .. }), "{created:?}");
    assert_eq!((count(&sql, "running").await, count(&sql, "ready").await), (0, 2));
}

/// `create_runs`: nothing is created, of any run of a batch, if the database does not have the revision or the resolution of
/// one: the server may have lost them with its last commits. A key that was taken for it is free again. `step_backfill` makes
/// no such run either, see `schedules.rs`.
#[tokio::test]
async fn runs_of_what_is_not_there() {
    let (_world, store, sql, _) = set_up().await;
    let group = group(&sql, "g").await;
    let run_of = |number: u128, revision_id: i64, resolution_id: Option<i64>| NewRun {
        revision_id,
        resolution_id,
        ..new_run(number, group)
    };
    for (revision, resolution) in [(2, None), (1, Some(1))] {
        let (there, missing) = (run_of(1, 1, None), run_of(2, revision, resolution));
        let plain = store.create_plain_runs(&[&there, &missing], 77, &Wall).await;
        assert!(matches!(plain, Err(StoreError::Outdated)), "{plain:?}");
        let mut keyed = missing;
        keyed.terms.key = Some("k".into());
        let general = store.create_runs(&[&there, &keyed], 77, &Wall).await;
        assert!(matches!(general, Err(StoreError::Outdated)), "{general:?}");
        assert_eq!((count(&sql, "runs_live").await, count(&sql, "run_keys").await), (0, 0));
    }
    let resolution = store.resolution(1, &serde_json::json!({})).await.expect("a resolution");
    let (one, two) = (run_of(1, 1, Some(resolution)), run_of(2, 1, None));
    let made = store
        .create_plain_runs(&[&one, &two], 77, &Wall)
        .await
        .expect("an answer");
    assert_eq!(made.map(|made| made.len()), Some(2));
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
            let found = control.lock_one(run(9)).await.expect("an answer").expect("a run");
            let hash = found.dedupe.expect("it was deduped");
            let taken = control.take_params_again(&[(run(9), group, hash.as_slice())]).await;
            taken.expect("an answer").remove(&run(9))
        };
        let other = meanwhile(&sql, again, ends).await;
        assert_eq!(other, commits.then(|| run(8)));
    }
}

/// Ended runs, which were submitted with `dedupe` by this hash, or without it.
pub(super) async fn ended_runs(sql: &Client, group: i64, runs: &[(u128, Option<u8>)]) {
    for &(number, hash) in runs {
        let hash = hash.map_or("NULL".to_owned(), |hash| {
            format!("'\\x{}'", format!("{hash:02x}").repeat(32))
        });
        sql.batch_execute(&format!(
            "INSERT INTO heddle.runs_done (id, group_id, revision_id, state, trigger, priority, logical_time, interval_start,
                 interval_end, params, dedupe, created_at, started_at, progress, finished_at)
             VALUES ('{}', {group}, 1, 4, 0, 0, now(), now(), now(), '{{}}', {hash}, now(), now(), '', now())",
            run(number)
        ))
        .await
        .expect("a run");
    }
}

/// Ended runs are locked together in the order of their ids. One that another control reopens meanwhile is left out: it
/// is live now, and would be locked out of order.
#[tokio::test]
async fn ended_runs_that_are_locked_together() {
    let (_world, store, sql, mut other) = set_up().await;
    let group = group(&sql, "g").await;
    ended_runs(&sql, group, &[(1, None), (2, None), (3, None)]).await;
    for (commits, found) in [(false, vec![run(1), run(2), run(3)]), (true, vec![run(1), run(3)])] {
        let moving = other.transaction().await.unwrap();
        let moves = "DELETE FROM heddle.runs_done WHERE id = $1";
        assert_eq!(moving.execute(moves, &[&run(2).0]).await.unwrap(), 1);
        let control = async {
            let mut control = begin(&store, 7).await;
            let locked = control.lock_ended(&[run(3), run(1), run(2)]).await.expect("an answer");
            control.commit().await.expect("a commit");
            locked.into_iter().map(|(_, facts)| facts.id).collect::<Vec<_>>()
        };
        let locked = meanwhile(&sql, control, async {
            let free = "SELECT id FROM heddle.runs_done ORDER BY id FOR UPDATE SKIP LOCKED";
            let rows = sql.query(free, &[]).await.unwrap();
            let free: Vec<uuid::Uuid> = rows.iter().map(|row| row.get(0)).collect();
            assert_eq!(free, [run(3).0], "the first is locked, and the last is not yet");
            close(moving, commits).await;
        })
        .await;
        assert_eq!(locked, found);
    }
}

/// Params of many runs are taken in the order of their hashes, as by the creation of runs. Of two runs with the same params,
/// the first one that is named gets them.
#[tokio::test]
async fn params_that_are_taken_together() {
    let (_world, store, sql, mut other) = set_up().await;
    let group = group(&sql, "g").await;
    ended_runs(&sql, group, &[(1, Some(3)), (2, Some(3)), (3, Some(1))]).await;
    let holder = other.transaction().await.unwrap();
    let lock = "SELECT pg_advisory_xact_lock($1)";
    holder.execute(lock, &[&i64::from_be_bytes([1; 8])]).await.unwrap();
    let control = async {
        let mut control = begin(&store, 7).await;
        let locked = control.lock_ended(&[run(1), run(2), run(3)]).await.expect("an answer");
        let mut runs: Vec<_> = locked
            .iter()
            .map(|(live, facts)| (facts.id, facts.group_id, live.dedupe.as_deref().expect("a hash")))
            .collect();
        runs.reverse();
        let refused = control.take_params_again(&runs).await.expect("an answer");
        control.commit().await.expect("a commit");
        refused
    };
    let refused = meanwhile(&sql, control, async {
        let tries = "SELECT pg_try_advisory_xact_lock($1)";
        let free = sql.query_one(tries, &[&i64::from_be_bytes([3; 8])]).await.unwrap();
        assert!(free.get::<_, bool>(0), "the second is locked after the first");
        close(holder, false).await;
    })
    .await;
    assert_eq!(refused.into_iter().collect::<Vec<_>>(), [(run(1), run(2))]);
    assert_eq!(count(&sql, "run_dedupes").await, 2);
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
        let looking = tokio::spawn(async move { control.lock_one(run(1)).await });
        waiting(&sql, 1).await;
        moving.commit().await.unwrap();
        let locked = looking.await.unwrap().expect("an answer").expect("a run");
        assert_eq!(locked.state, found);
        assert_eq!(count(&sql, "runs_live").await, live);
    }
}
