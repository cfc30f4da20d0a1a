//! Slots of pools.

use heddle_store::Store;
use tokio_postgres::Client;

use super::{count, run, set_up, unhindered, waiting};

/// One slot, and task runs that wait for it, in this order.
async fn one_slot(sql: &Client, runs: &[u128]) {
    sql.batch_execute("INSERT INTO heddle.pools (name, slots, created_at, updated_at) VALUES ('p', 1, now(), now())")
        .await
        .expect("a pool");
    for number in runs {
        let run = run(*number);
        sql.batch_execute(&format!(
            "INSERT INTO heddle.ready_pooled (run, task, item, attempt, priority, turn, pool, pools, slots)
             VALUES ('{run}', 0, -1, 1, 0, {number}, 'p', '{{p}}', '{{1}}')"
        ))
        .await
        .expect("a row");
    }
}

fn admit(store: &Store) -> tokio::task::JoinHandle<u64> {
    let store = store.clone();
    tokio::spawn(async move { store.admit_pooled().await.expect("an answer") })
}

/// `count_holds`: admissions wait for each other, and the later sees what the earlier has given out. An attempt that is
/// ending holds its slots until its end is committed.
#[tokio::test]
async fn slots_are_counted() {
    let (_world, store, sql, mut other) = set_up().await;
    one_slot(&sql, &[1, 2]).await;
    let admission = other.transaction().await.unwrap();
    admission
        .batch_execute(
            "SELECT FROM heddle.pools FOR NO KEY UPDATE;
             WITH taken AS (DELETE FROM heddle.ready_pooled WHERE turn = 1 RETURNING *),
             held AS (INSERT INTO heddle.pool_holds SELECT run, task, item, attempt, 'p', 1 FROM taken)
             INSERT INTO heddle.ready SELECT run, task, item, attempt, priority, turn FROM taken",
        )
        .await
        .unwrap();
    let second = admit(&store);
    waiting(&sql, 1).await;
    admission.commit().await.unwrap();
    assert_eq!(second.await.unwrap(), 0, "the slot has been given out");

    // It is claimed, and runs.
    sql.batch_execute(
        "WITH taken AS (DELETE FROM heddle.ready RETURNING run, task, item, attempt)
         INSERT INTO heddle.running SELECT run, task, item, attempt, 7, now() FROM taken",
    )
    .await
    .unwrap();
    assert_eq!(unhindered(store.admit_pooled()).await.unwrap(), 0, "it runs");
    let end = other.transaction().await.unwrap();
    assert_eq!(end.execute("DELETE FROM heddle.running", &[]).await.unwrap(), 1);
    assert_eq!(
        unhindered(store.admit_pooled()).await.unwrap(),
        0,
        "it has not ended yet"
    );
    end.commit().await.unwrap();
    assert_eq!(store.admit_pooled().await.unwrap(), 1);
    assert_eq!(
        (count(&sql, "pool_holds").await, count(&sql, "ready_pooled").await),
        (1, 0)
    );
}

/// `admit_pooled`: a row that is being taken back is waited for, and is not admitted if it is gone then.
#[tokio::test]
async fn what_is_taken_back() {
    let (_world, store, sql, mut other) = set_up().await;
    one_slot(&sql, &[1]).await;
    let cancel = other.transaction().await.unwrap();
    assert_eq!(cancel.execute("DELETE FROM heddle.ready_pooled", &[]).await.unwrap(), 1);
    let admitting = admit(&store);
    waiting(&sql, 1).await;
    cancel.commit().await.unwrap();
    assert_eq!(admitting.await.unwrap(), 0);
    assert_eq!((count(&sql, "pool_holds").await, count(&sql, "ready").await), (0, 0));

    sql.batch_execute("DELETE FROM heddle.pools").await.unwrap();
    one_slot(&sql, &[2]).await;
    let cancel = other.transaction().await.unwrap();
    assert_eq!(cancel.execute("DELETE FROM heddle.ready_pooled", &[]).await.unwrap(), 1);
    let admitting = admit(&store);
    waiting(&sql, 1).await;
    cancel.rollback().await.unwrap();
    assert_eq!(admitting.await.unwrap(), 1);
    assert_eq!((count(&sql, "pool_holds").await, count(&sql, "ready").await), (1, 1));
}
