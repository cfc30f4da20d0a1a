//! Schedules, instants, backfills.

use chrono::TimeDelta;
use heddle_domain::{Clock, Time};
use heddle_store::Store;
use heddle_store::backfill::{BackfillAction, BackfillChange, BackfillRow, Moved};
use heddle_store::schedule::MovedSchedule;
use heddle_store::upstream::{LinkEvent, TakenLink};
use tokio_postgres::Client;
use uuid::Uuid;

use super::{
    HOUR, Wall, begin, by, close, count, group, meanwhile, new_run, run, set_up, under_way, unhindered, waiting,
};

pub(super) const BACKFILL: Uuid = Uuid::from_u128(0xb);

/// Schedules of a group that are due.
async fn due(sql: &Client, group: i64, names: &[&str]) {
    for name in names {
        sql.execute(
            "INSERT INTO heddle.schedules (group_id, name, revision_id, anchor, zone, live, cursor, next_fire_at, delay)
             VALUES ($1, $2, 1, now(), 'UTC', true, now(), now(), interval '1 hour')",
            &[&group, name],
        )
        .await
        .expect("a schedule");
    }
}

/// `take_schedules`: a schedule that another node is firing is skipped, not waited for. A change of the group waits for
/// the node that is firing, and schedules that it has changed are not due any more.
#[tokio::test]
async fn firings() {
    let (world, store, sql, mut other) = set_up().await;
    let group = group(&sql, "g").await;
    due(&sql, group, &["held", "free"]).await;
    let fires = other.transaction().await.unwrap();
    let hold = "SELECT FROM heddle.schedules WHERE name = 'held' FOR UPDATE";
    fires.execute(hold, &[]).await.unwrap();
    let mut completion = begin(&store, 7).await;
    let (taken, _) = unhindered(completion.take_schedules(10)).await.unwrap();
    assert_eq!(taken.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["free"]);
    let change = world.sql().await;
    let change = tokio::spawn(async move {
        let stop = "UPDATE heddle.schedules SET live = false, next_fire_at = NULL WHERE name = 'free'";
        change.execute(stop, &[]).await.expect("a change")
    });
    waiting(&sql, 1).await;
    completion.commit().await.unwrap();
    assert_eq!(change.await.unwrap(), 1);
    fires.rollback().await.unwrap();
    let (taken, _) = begin(&store, 7).await.take_schedules(10).await.unwrap();
    assert_eq!(taken.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["held"]);
}

/// `move_schedules`: waits for the end of the run from which a delay counts. If it had ended, the delay counts from
/// now; otherwise from its end.
#[tokio::test]
async fn delays() {
    let (_world, store, sql, mut other) = set_up().await;
    let group = group(&sql, "g").await;
    due(&sql, group, &["s"]).await;
    under_way(&sql, &[1], 7).await;
    for (commits, awaits) in [(false, 1), (true, 0)] {
        let end = other.transaction().await.unwrap();
        assert_eq!(end.execute("DELETE FROM heddle.runs_live", &[]).await.unwrap(), 1);
        let mut completion = begin(&store, 7).await;
        let firing = tokio::spawn(async move {
            let now = Wall.now();
            let (due, _) = completion.take_schedules(1).await.expect("an answer");
            assert_eq!(due.len(), 1);
            let moved = MovedSchedule {
                group_id: group,
                name: "s".into(),
                cursor: now,
                next_fire_at: None,
                awaits: Some(run(1).0),
                fired_at: None,
            };
            completion.move_schedules(&[moved]).await.expect("an answer");
            completion.commit().await.expect("a commit");
            now
        });
        waiting(&sql, 1).await;
        match commits {
            true => end.commit().await.unwrap(),
            false => end.rollback().await.unwrap(),
        }
        let now = firing.await.unwrap();
        let waits = count(&sql, "schedules WHERE awaits IS NOT NULL AND next_fire_at IS NULL").await;
        let next: Option<Time> = sql
            .query_one("SELECT next_fire_at FROM heddle.schedules", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!((waits, next), (awaits, commits.then(|| now + HOUR)));
        sql.batch_execute("UPDATE heddle.schedules SET awaits = NULL, next_fire_at = now()")
            .await
            .unwrap();
    }
}

/// `free_schedules`: waits for a firing that moves the schedule on. If it waits for another run by then, it is left alone;
/// otherwise it is due, counted from now.
/// Without the second look at the run under the row's lock, the schedule would be due while its new run is live.
#[tokio::test]
async fn schedules_that_wait_for_nobody() {
    let (_world, store, sql, mut other) = set_up().await;
    let group = group(&sql, "g").await;
    due(&sql, group, &["s"]).await;
    under_way(&sql, &[2], 7).await;
    let awaits = |number: u128| {
        let run = run(number);
        format!("UPDATE heddle.schedules SET awaits = '{run}', next_fire_at = NULL")
    };
    for (commits, freed) in [(false, 1), (true, 0)] {
        // Its run is gone, and the end of that has not freed it.
        sql.batch_execute(&awaits(1)).await.unwrap();
        let firing = other.transaction().await.unwrap();
        firing.batch_execute(&awaits(2)).await.unwrap();
        let now = Wall.now();
        let free = store.free_schedules(Uuid::nil(), 10, now);
        let done = meanwhile(&sql, free, close(firing, commits)).await;
        assert_eq!(done.unwrap(), (freed, None));
        let row = sql
            .query_one("SELECT awaits, next_fire_at FROM heddle.schedules", &[])
            .await
            .unwrap();
        let left: (Option<Uuid>, Option<Time>) = (row.get(0), row.get(1));
        match commits {
            true => assert_eq!(left, (Some(run(2).0), None)),
            false => assert_eq!(left, (None, Some(now + HOUR))),
        }
    }
}

/// A backfill whose runs follow one another, of which no instant has been decided.
pub(super) async fn backfill(sql: &Client, group: i64) {
    sql.execute(
        "INSERT INTO heddle.backfills (id, group_id, calendar_revision_id, state, from_at, to_at, descending, max_active,
             on_existing, include_downstream, pinned, force, priority, params, started_to, expected, created_at, created_by)
         VALUES ($1, $2, 1, 1, '2026-01-01', '2026-02-01', false, 1, 0, false, false, false, 0, '{}', now(), 31, now(), 't')",
        &[&BACKFILL, &group],
    )
    .await
    .expect("a backfill");
}

fn instant(day: i64) -> Time {
    "2026-01-01T00:00:00Z".parse::<Time>().expect("an instant") + TimeDelta::days(day)
}

/// An instant of the group is some run's.
fn is_of(number: u128) -> String {
    format!(
        "INSERT INTO heddle.run_instants (group_id, logical_time, run) VALUES ($1, $2, '{}')",
        run(number)
    )
}

/// `register_instants`: waits for an instant that somebody is registering. What was registered meanwhile stays, and an
/// existing one is taken over only if it still belongs to the run that was read.
#[tokio::test]
async fn instants() {
    let (_world, store, sql, mut other) = set_up().await;
    let group = group(&sql, "g").await;
    backfill(&sql, group).await;
    let register = |day: i64, seen: Option<u128>| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut round = store
                .backfill_round(BACKFILL)
                .await
                .expect("an answer")
                .expect("a round");
            let moved = Moved::of(&round.row);
            let seen = seen.map(|number| run(number).0);
            let got = round
                .register(&[(instant(day), run(9), seen)], &moved)
                .await
                .expect("an answer");
            round.commit_made().await.expect("a commit");
            got.len()
        })
    };
    // Nothing stood there.
    for (day, commits, got) in [(1, false, 1), (2, true, 0)] {
        let taker = other.transaction().await.unwrap();
        taker.execute(&is_of(1), &[&group, &instant(day)]).await.unwrap();
        let registering = register(day, None);
        waiting(&sql, 1).await;
        match commits {
            true => taker.commit().await.unwrap(),
            false => taker.rollback().await.unwrap(),
        }
        assert_eq!(registering.await.unwrap(), got, "day {day}");
    }
    // It belonged to another run when it was read.
    for (day, commits, got) in [(3, false, 1), (4, true, 0)] {
        sql.execute(&is_of(1), &[&group, &instant(day)]).await.unwrap();
        let taker = other.transaction().await.unwrap();
        let take = format!(
            "UPDATE heddle.run_instants SET run = '{}' WHERE logical_time = $1",
            run(2)
        );
        assert_eq!(taker.execute(&take, &[&instant(day)]).await.unwrap(), 1);
        let registering = register(day, Some(1));
        waiting(&sql, 1).await;
        match commits {
            true => taker.commit().await.unwrap(),
            false => taker.rollback().await.unwrap(),
        }
        assert_eq!(registering.await.unwrap(), got, "day {day}");
    }
    let own = format!("run_instants WHERE run = '{}'", run(9));
    assert_eq!(count(&sql, &own).await, 2);
    let counted = "backfills WHERE made = 2 AND skipped = 2";
    assert_eq!(
        count(&sql, counted).await,
        1,
        "those that it did not get count as left alone"
    );
}

/// A step to a day's instant, of a node that expects the backfill to be like this.
pub(super) fn step(
    store: &Store,
    row: &BackfillRow,
    number: u128,
    day: i64,
) -> tokio::task::JoinHandle<Option<(bool, Time)>> {
    let (store, row) = (store.clone(), row.clone());
    tokio::spawn(async move {
        let mut run = new_run(number, row.group_id);
        run.terms.logical_time = instant(day);
        run.terms.source = Some(BACKFILL);
        store.step_backfill(&row, &run, 7).await.expect("an answer")
    })
}

/// `step_backfill`: does not wait for a locked backfill; waits for whoever is registering the instant. Nothing is done
/// if the backfill has advanced, one of its runs is active, the instant is taken, or the database does not have the revision or
/// the resolution of the run; and the run is created after all
/// waits.
#[tokio::test]
async fn steps() {
    let (_world, store, sql, mut other) = set_up().await;
    let group = group(&sql, "g").await;
    backfill(&sql, group).await;
    let row = store
        .backfill_round(BACKFILL)
        .await
        .unwrap()
        .expect("a round")
        .row
        .clone();
    let round = other.transaction().await.unwrap();
    let moves = "UPDATE heddle.backfills SET made = made + 1";
    assert_eq!(round.execute(moves, &[]).await.unwrap(), 1);
    assert_eq!(
        unhindered(step(&store, &row, 1, 1)).await.unwrap(),
        None,
        "somebody has it"
    );
    round.commit().await.unwrap();
    assert_eq!(step(&store, &row, 1, 1).await.unwrap(), None, "it has moved");
    let row = store
        .backfill_round(BACKFILL)
        .await
        .unwrap()
        .expect("a round")
        .row
        .clone();

    for (revision, resolution) in [(2, None), (1, Some(1))] {
        let mut run = new_run(1, group);
        run.terms.logical_time = instant(1);
        (run.revision_id, run.resolution_id) = (revision, resolution);
        let made = store.step_backfill(&row, &run, 7).await.expect("an answer");
        assert_eq!(made, None, "the database does not have what the run needs");
    }

    let taker = other.transaction().await.unwrap();
    taker.execute(&is_of(5), &[&group, &instant(1)]).await.unwrap();
    let stepping = step(&store, &row, 1, 1);
    waiting(&sql, 1).await;
    taker.commit().await.unwrap();
    assert_eq!(stepping.await.unwrap(), None, "the instant is somebody's");
    assert_eq!(count(&sql, "runs_live").await, 0);

    let taker = other.transaction().await.unwrap();
    taker.execute(&is_of(5), &[&group, &instant(2)]).await.unwrap();
    let stepping = step(&store, &row, 1, 2);
    waiting(&sql, 1).await;
    let released = Wall.now();
    taker.rollback().await.unwrap();
    let (fit, at) = stepping.await.unwrap().expect("a step");
    assert!(
        fit && at >= released,
        "made at {at}, but it had to wait until {released}"
    );
    let dated = "runs_live l JOIN heddle.events e ON e.at = l.started_at
                  WHERE l.created_at = l.started_at AND e.kind = 'run.started'";
    assert_eq!(count(&sql, dated).await, 1);
    let row = store
        .backfill_round(BACKFILL)
        .await
        .unwrap()
        .expect("a round")
        .row
        .clone();
    assert_eq!(step(&store, &row, 2, 3).await.unwrap(), None, "its run is active");
}

/// A round does not wait for a backfill that somebody has; a change of the backfill waits for a round.
#[tokio::test]
async fn rounds_and_changes() {
    let (_world, store, sql, mut other) = set_up().await;
    let group = group(&sql, "g").await;
    backfill(&sql, group).await;
    let round = other.transaction().await.unwrap();
    let hold = "SELECT FROM heddle.backfills FOR NO KEY UPDATE";
    assert_eq!(round.execute(hold, &[]).await.unwrap(), 1);
    assert!(unhindered(store.backfill_round(BACKFILL)).await.unwrap().is_none());
    let change = store.change_backfill(by(), BACKFILL, BackfillAction::Pause, None);
    let changed = meanwhile(&sql, change, close(round, true)).await;
    assert_eq!(changed.unwrap(), BackfillChange::Done);
    assert!(store.backfill_round(BACKFILL).await.unwrap().is_none(), "it is paused");
}

/// Whoever has taken the events of a backfill's runs keeps it from being cancelled until the runs of dependants are
/// committed: so the cancel finds them. Rounds go on meanwhile. Whoever takes the events later waits for the cancel, and
/// creates none.
#[tokio::test]
async fn cancels_and_dependants() {
    let (_world, store, sql, mut other) = set_up().await;
    let group = group(&sql, "g").await;
    backfill(&sql, group).await;
    let succeeded = format!(
        "INSERT INTO heddle.link_events (kind, group_id, run, logical_time, source, backfilled)
         VALUES (0, {group}, '{}', '2026-01-01', '{BACKFILL}', true)",
        run(1)
    );
    let cascade = format!("INSERT INTO heddle.cascades (source) VALUES ('{BACKFILL}')");
    sql.batch_execute(&format!("{cascade}; {succeeded}")).await.unwrap();
    let calls = |taken: Vec<TakenLink>| -> Vec<bool> {
        let of = |event| match event {
            LinkEvent::Succeeded(success) => success.cascades.is_some(),
            other => panic!("{other:?}"),
        };
        taken.into_iter().map(|(_, event)| of(event.unwrap())).collect()
    };

    let mut completion = begin(&store, 7).await;
    assert_eq!(calls(completion.take_link_events(&[]).await.unwrap()), [true]);
    let round = unhindered(store.backfill_round(BACKFILL)).await.unwrap();
    drop(round.expect("a round goes on"));
    let cancel = store.change_backfill(by(), BACKFILL, BackfillAction::Cancel, None);
    let created = async { completion.commit().await.unwrap() };
    assert_eq!(meanwhile(&sql, cancel, created).await.unwrap(), BackfillChange::Done);

    let again = format!("UPDATE heddle.backfills SET state = 1; {succeeded}");
    sql.batch_execute(&again).await.unwrap();
    let cancels = other.transaction().await.unwrap();
    let cancel = format!(
        "SELECT pg_advisory_xact_lock(hashtextextended('heddle/backfill/' || '{BACKFILL}', 0));
         UPDATE heddle.backfills SET state = 6"
    );
    cancels.batch_execute(&cancel).await.unwrap();
    let mut completion = begin(&store, 7).await;
    let taken = meanwhile(&sql, completion.take_link_events(&[]), close(cancels, true)).await;
    assert_eq!(calls(taken.unwrap()), [false]);
}
