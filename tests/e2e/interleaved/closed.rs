//! Runs that are created, or go on after their end, while their group is being deleted or disabled: one of both comes first.

use std::collections::HashMap;

use heddle_store::Store;
use heddle_store::group::{GroupDelete, GroupSwitch};
use heddle_store::live::{Completion, Created, GroupNeed, NewRun};
use serde_json::json;
use tokio_postgres::{Client, Transaction};

use super::runs::ended_runs;
use super::schedules::{BACKFILL, backfill, step};
use super::{Wall, bare_group, begin, by, close, count, meanwhile, new_run, reopening, run, set_up, unhindered};

/// A run that asks for its group.
fn asks(number: u128, group: i64, needs: GroupNeed) -> NewRun {
    NewRun {
        needs,
        ..new_run(number, group)
    }
}

async fn put(store: &Store) -> i64 {
    let spec = json!({"tasks": {}});
    match store.put_group(by(), bare_group("g", &spec)).await.expect("an answer") {
        heddle_store::group::GroupPut::Done(put) => put.row.id,
        other => panic!("{other:?}"),
    }
}

/// A run that is being created, and not committed yet.
async fn creating(store: &Store, run: NewRun) -> Completion {
    let mut completion = begin(store, 1).await;
    let created = completion.create(&[run]).await.expect("an answer").remove(0);
    assert!(matches!(created, Created::Made { .. }), "{created:?}");
    completion
}

async fn create(store: &Store, run: NewRun) -> (Option<Vec<Created>>, Created) {
    let plain = store.create_plain_runs(&[&run], 77, &Wall).await.expect("an answer");
    let run = NewRun {
        id: heddle_domain::id::RunId(uuid::Uuid::from_u128(run.id.0.as_u128() + 1_000)),
        ..run
    };
    let general = store.create_runs(&[&run], 77, &Wall).await.expect("an answer");
    (plain, general[0].clone())
}

/// Who creates a run waits for whoever deletes or disables its group, and then knows what was committed meanwhile, not what
/// there was when the statement began. With `force`, a run is created in a disabled group, too.
#[tokio::test]
async fn whoever_creates_waits() {
    let (_world, store, sql, mut other) = set_up().await;
    let id = put(&store).await;
    let closing = format!("SELECT pg_advisory_xact_lock(hashtextextended('heddle/group/{id}', 0))");
    let mut number = 0;
    for (change, refused) in [
        ("enabled = false", Created::Disabled),
        ("deleted_at = now()", Created::Deleted),
    ] {
        sql.batch_execute("UPDATE heddle.groups SET enabled = true")
            .await
            .unwrap();
        for commits in [false, true] {
            let changes = other.transaction().await.unwrap();
            changes
                .batch_execute(&format!("{closing}; UPDATE heddle.groups SET {change} WHERE id = {id}"))
                .await
                .unwrap();
            number += 1;
            let run = asks(number, id, GroupNeed::Enabled);
            let made = meanwhile(
                &sql,
                store.create_plain_runs(&[&run], 77, &Wall),
                close(changes, commits),
            )
            .await;
            assert_eq!(made.unwrap().is_none(), commits, "{change}");
        }
        number += 1;
        let (plain, general) = create(&store, asks(number, id, GroupNeed::Enabled)).await;
        assert_eq!((plain, general), (None, refused.clone()));
        number += 1;
        let (plain, general) = create(&store, asks(number, id, GroupNeed::Exists)).await;
        assert_eq!(plain, None, "the general way decides");
        assert_eq!(general == Created::Deleted, refused == Created::Deleted, "{general:?}");
    }
    let made = count(&sql, "runs_live").await;
    assert_eq!(made, 3, "two rollbacks, and one that is forced");
}

/// Who deletes a group waits for runs that are being created, and counts them. Who disables it waits, too, so that whoever
/// stops its runs afterwards finds all.
#[tokio::test]
async fn whoever_closes_waits() {
    let (_world, store, sql, _other) = set_up().await;
    let id = put(&store).await;
    let creation = creating(&store, asks(1, id, GroupNeed::Enabled)).await;
    let commit = async { creation.commit().await.expect("a commit") };
    let deleted = meanwhile(&sql, store.delete_group(by(), "g", false, None), commit).await;
    assert_eq!(deleted.unwrap(), GroupDelete::Active(1));

    let creation = creating(&store, asks(2, id, GroupNeed::Enabled)).await;
    let commit = async { creation.commit().await.expect("a commit") };
    let disabled = meanwhile(&sql, store.set_group_enabled(by(), "g", false, None), commit).await;
    assert!(matches!(disabled.unwrap(), GroupSwitch::Done(_)));
    assert_eq!(count(&sql, "runs_live").await, 2);

    // A second stop, of a group that is disabled already, waits for a run that is forced.
    let creation = creating(&store, asks(4, id, GroupNeed::Exists)).await;
    let commit = async { creation.commit().await.expect("a commit") };
    let disabled = meanwhile(&sql, store.set_group_enabled(by(), "g", false, None), commit).await;
    assert!(matches!(disabled.unwrap(), GroupSwitch::Done(_)));
    let found = store.live_runs_of(id).await.expect("an answer");
    assert!(found.contains(&run(4)), "what a stop cancels: {found:?}");
    sql.batch_execute("DELETE FROM heddle.runs_live").await.unwrap();

    let creation = creating(&store, asks(3, id, GroupNeed::Exists)).await;
    let rollback = async { drop(creation) };
    let deleted = meanwhile(&sql, store.delete_group(by(), "g", false, None), rollback).await;
    assert!(matches!(deleted.unwrap(), GroupDelete::Deleted { .. }));
}

/// A transaction that disables a group, as far as creations see it.
async fn disabling(other: &mut Client, group: i64) -> Transaction<'_> {
    let changes = other.transaction().await.unwrap();
    changes
        .batch_execute(&format!(
            "SELECT pg_advisory_xact_lock(hashtextextended('heddle/group/{group}', 0));
             UPDATE heddle.groups SET enabled = false WHERE id = {group}"
        ))
        .await
        .unwrap();
    changes
}

/// Disables the group once `creation`, which has created the run, is committed: the stop that follows finds the run.
async fn stop_finds(store: &Store, sql: &Client, number: u128, id: i64, commit: impl Future<Output = ()>) {
    let disabled = meanwhile(sql, store.set_group_enabled(by(), "g", false, None), commit).await;
    assert!(matches!(disabled.expect("an answer"), GroupSwitch::Done(_)));
    let found = store.live_runs_of(id).await.expect("an answer");
    assert_eq!(found, [run(number)], "what a stop cancels");
    let again = "DELETE FROM heddle.runs_live; UPDATE heddle.groups SET enabled = true";
    sql.batch_execute(again).await.unwrap();
}

/// Who creates a run of a follower has held its group open before, and then whoever disables it waits, and finds the run. If
/// it is disabled first, the creation sees that.
#[tokio::test]
async fn followers_are_held_open() {
    let (_world, store, sql, mut other) = set_up().await;
    let id = put(&store).await;
    let mut links = begin(&store, 1).await;
    assert_eq!(links.closed_groups(&[id]).await.expect("an answer"), HashMap::new());
    links.create(&[new_run(1, id)]).await.expect("an answer");
    let commit = async { links.commit().await.expect("a commit") };
    stop_finds(&store, &sql, 1, id, commit).await;

    for commits in [false, true] {
        let changes = disabling(&mut other, id).await;
        let mut links = begin(&store, 1).await;
        let closed = meanwhile(&sql, links.closed_groups(&[id]), close(changes, commits)).await;
        let expected = if commits {
            HashMap::from([(id, false)])
        } else {
            HashMap::new()
        };
        assert_eq!(closed.expect("an answer"), expected);
    }
}

/// The same of a round of a backfill, and of its step, `step_backfill`. A backfill that is forced goes on in a disabled group.
#[tokio::test]
async fn groups_of_backfills_are_held_open() {
    let (_world, store, sql, mut other) = set_up().await;
    let id = put(&store).await;
    backfill(&sql, id).await;
    let round = async || {
        store
            .backfill_round(BACKFILL)
            .await
            .expect("an answer")
            .expect("a round")
    };
    let mut making = round().await;
    assert!(!making.is_closed().await.expect("an answer"));
    making.create(&[new_run(1, id)], 77, &Wall).await.expect("an answer");
    let commit = async { making.commit_made().await.expect("a commit") };
    stop_finds(&store, &sql, 1, id, commit).await;

    for (force, commits, closed) in [(false, false, false), (false, true, true), (true, true, false)] {
        let again = format!("UPDATE heddle.groups SET enabled = true; UPDATE heddle.backfills SET force = {force}");
        sql.batch_execute(&again).await.unwrap();
        let changes = disabling(&mut other, id).await;
        let mut waits = round().await;
        let answer = meanwhile(&sql, waits.is_closed(), close(changes, commits)).await;
        assert_eq!(answer.expect("an answer"), closed, "force: {force}, commits: {commits}");
        waits.commit_made().await.expect("a commit");
    }

    // The same in one statement.
    for (day, force, commits, made) in [
        (1_u32, false, true, false),
        (2, true, true, true),
        (3, false, false, true),
    ] {
        let again = format!(
            "DELETE FROM heddle.runs_live;
             UPDATE heddle.groups SET enabled = true; UPDATE heddle.backfills SET force = {force}"
        );
        sql.batch_execute(&again).await.unwrap();
        let looked = round().await;
        let row = looked.row.clone();
        looked.commit_made().await.expect("a commit");
        let changes = disabling(&mut other, id).await;
        let stepping = step(&store, &row, day.into(), day.into());
        let stepped = meanwhile(&sql, stepping, close(changes, commits)).await;
        assert_eq!(
            stepped.expect("no panic").is_some(),
            made,
            "force: {force}, commits: {commits}"
        );
    }
}

/// A transaction that deletes a group, as far as controls see it.
async fn deleting(other: &mut Client, group: i64) -> Transaction<'_> {
    let changes = other.transaction().await.unwrap();
    changes
        .batch_execute(&format!(
            "SELECT pg_advisory_xact_lock(hashtextextended('heddle/group/{group}', 0));
             UPDATE heddle.groups SET deleted_at = now() WHERE id = {group}"
        ))
        .await
        .unwrap();
    changes
}

/// A control that may let an ended run go on waits for whoever deletes its group, before it locks the run, and then knows
/// what was committed meanwhile. A live run is locked without a look at its group.
#[tokio::test]
async fn whoever_reopens_waits() {
    let (_world, store, sql, mut other) = set_up().await;
    let id = put(&store).await;
    ended_runs(&sql, id, &[(1, None), (2, None)]).await;
    creating(&store, new_run(3, id)).await.commit().await.expect("a commit");
    for commits in [false, true] {
        let changes = deleting(&mut other, id).await;
        let mut of_live = begin(&store, 7).await;
        let live = unhindered(of_live.lock_one(run(3))).await.expect("an answer");
        assert!(!live.expect("a run").group_deleted);
        of_live.commit().await.expect("a commit");

        let alone = async {
            let mut control = begin(&store, 7).await;
            let locked = control.lock_one(run(1)).await.expect("an answer");
            control.commit().await.expect("a commit");
            locked.expect("a run").group_deleted
        };
        let deletes = async {
            let free = "SELECT id FROM heddle.runs_done FOR UPDATE SKIP LOCKED";
            let free = sql.query(free, &[]).await.unwrap();
            assert_eq!(free.len(), 2, "no run is locked before its group");
            close(changes, commits).await;
        };
        assert_eq!(meanwhile(&sql, alone, deletes).await, commits);
    }
    sql.batch_execute("UPDATE heddle.groups SET deleted_at = NULL")
        .await
        .unwrap();
    for commits in [false, true] {
        let changes = deleting(&mut other, id).await;
        let mut together = begin(&store, 7).await;
        let asked = [run(3), run(2), run(1)];
        let held = meanwhile(&sql, together.hold_groups(&asked), close(changes, commits)).await;
        assert_eq!(held.expect("an answer"), HashMap::from([(id, commits)]));
        together.commit().await.expect("a commit");
    }
    let mut of_live = begin(&store, 7).await;
    let held = of_live.hold_groups(&[run(3)]).await.expect("an answer");
    assert!(held.is_empty(), "a live run goes on anyway");
}

/// Who deletes a group waits for a control that has let an ended run of it go on, and counts that run.
#[tokio::test]
async fn whoever_deletes_finds_what_goes_on() {
    let (_world, store, sql, _other) = set_up().await;
    let id = put(&store).await;
    ended_runs(&sql, id, &[(1, None), (2, None)]).await;
    let restart = reopening(&store, run(1)).await;
    let commit = async { restart.commit().await.expect("a commit") };
    let deleted = meanwhile(&sql, store.delete_group(by(), "g", false, None), commit).await;
    assert_eq!(deleted.unwrap(), GroupDelete::Active(1));
    sql.batch_execute("DELETE FROM heddle.runs_live").await.unwrap();

    let restart = reopening(&store, run(2)).await;
    let rollback = async { drop(restart) };
    let deleted = meanwhile(&sql, store.delete_group(by(), "g", false, None), rollback).await;
    assert!(matches!(deleted.unwrap(), GroupDelete::Deleted { .. }));
    let mut late = begin(&store, 7).await;
    let locked = late.lock_one(run(2)).await.expect("an answer");
    assert!(locked.expect("a run").group_deleted);
}
