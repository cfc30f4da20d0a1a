//! Partitions of messages' days, which one node at a time makes or drops.

use chrono::NaiveDate;
use tokio_postgres::Client;

use super::{close, meanwhile, set_up, unhindered, waiting};

const MAKE: &str = "SELECT heddle.make_message_day($1)";
const DROP: &str = "SELECT heddle.drop_message_day($1)";

/// The lock of who makes or drops a day.
const HOLD: &str = "SELECT pg_advisory_xact_lock(hashtext('heddle.make_message_day'))";

fn day(number: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2130, 1, number).expect("a day")
}

/// The days that have partitions; the database begins with some of the present.
async fn made(sql: &Client) -> Vec<NaiveDate> {
    let rows = sql
        .query(
            "SELECT day FROM heddle.message_partitions WHERE day >= '2130-01-01' ORDER BY day",
            &[],
        )
        .await
        .expect("the days");
    rows.iter().map(|row| row.get(0)).collect()
}

/// `make_message_days`, `drop_message_day`: who makes or drops a day waits for who makes or drops it, and knows the result.
/// Without the lock, the second who makes a day would fail because the tables exist, and who drops a day that is being made
/// would not wait for it.
#[tokio::test]
async fn days_that_two_make_or_drop() {
    let (_world, store, sql, mut other) = set_up().await;
    let one = day(1);
    for commits in [false, true] {
        let makes = other.transaction().await.unwrap();
        makes.execute(MAKE, &[&one]).await.unwrap();
        let days = [one];
        let making = store.make_message_days(&days);
        meanwhile(&sql, making, close(makes, commits)).await.unwrap();
        assert_eq!(made(&sql).await, [one]);

        let drops = other.transaction().await.unwrap();
        drops.execute(DROP, &[&one]).await.unwrap();
        let dropped = meanwhile(&sql, store.drop_message_day(one), close(drops, commits)).await;
        assert_eq!(dropped.unwrap(), !commits, "one of the two drops it");
        assert!(made(&sql).await.is_empty());

        let makes = other.transaction().await.unwrap();
        makes.execute(MAKE, &[&one]).await.unwrap();
        let dropped = meanwhile(&sql, store.drop_message_day(one), close(makes, commits)).await;
        assert_eq!(dropped.unwrap(), commits, "it is there if the other made it");
        assert!(made(&sql).await.is_empty());
    }
}

/// `make_message_days`: the lock is given up after each day, so that others have their turn between two days.
/// If it were held for all days, the second day would be made before the others' turn, and nobody would wait then.
#[tokio::test]
async fn turns_between_days() {
    let (world, store, sql, mut other) = set_up().await;
    let (one, two) = (day(1), day(2));
    let holder = other.transaction().await.unwrap();
    holder.batch_execute(HOLD).await.unwrap();
    let making = tokio::spawn(async move { store.make_message_days(&[one, two]).await });
    waiting(&sql, 1).await;
    let third = world.sql().await;
    let turn = tokio::spawn(async move {
        let begins = format!("BEGIN; {HOLD}");
        third.batch_execute(&begins).await.expect("its turn");
        third
    });
    waiting(&sql, 2).await;
    close(holder, false).await;
    let third = unhindered(turn).await.unwrap();
    waiting(&sql, 1).await;
    assert_eq!(made(&sql).await, [one]);
    third.batch_execute("ROLLBACK").await.unwrap();
    unhindered(making).await.unwrap().unwrap();
    assert_eq!(made(&sql).await, [one, two]);
}

/// `drop_message_day`: somebody is reading messages, so it answers `false` soon and the day stays; once the reader is done, it is
/// dropped.
/// Without the limit of its waits, it would wait here for ever.
#[tokio::test]
async fn days_that_are_read() {
    let (_world, store, sql, mut other) = set_up().await;
    let one = day(1);
    store.make_message_days(&[one]).await.unwrap();
    let reads = other.transaction().await.unwrap();
    reads.execute("SELECT FROM heddle.messages", &[]).await.unwrap();
    assert!(!unhindered(store.drop_message_day(one)).await.unwrap());
    assert_eq!(made(&sql).await, [one]);
    close(reads, false).await;
    assert!(store.drop_message_day(one).await.unwrap());
    assert!(made(&sql).await.is_empty());
}
