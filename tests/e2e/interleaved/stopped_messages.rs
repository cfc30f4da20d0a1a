//! Cancels of scheduled messages: claims and cancels of a topic wait for each other.

use heddle_store::message::{CancelFilter, DaySlice};
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use uuid::Uuid;

use super::messages::Drained;
use super::{by, count, meanwhile, run, under_way, unhindered, waiting};

/// Of the day's bucket of sender 1, of receiver 7, and all of the day.
const BUCKET: CancelFilter = CancelFilter {
    day: None,
    bucket: Some(1),
    sender: None,
    receiver: None,
};
const RECEIVER: CancelFilter = CancelFilter {
    receiver: Some(7),
    bucket: None,
    ..BUCKET
};
const DAY: CancelFilter = CancelFilter { bucket: None, ..BUCKET };

/// Cancels; how many messages are not sent because of it.
fn cancel(drained: &Drained, filter: CancelFilter) -> JoinHandle<u64> {
    let (store, topic) = (drained.store.clone(), drained.topic);
    tokio::spawn(async move {
        let report = store.cancel_messages(by(), topic, "t", filter).await.expect("a report");
        report.cancelled
    })
}

/// The state of each message, in the order of their ids.
async fn states(sql: &Client) -> Vec<i16> {
    let rows = sql
        .query("SELECT state FROM heddle.messages ORDER BY bucket, id", &[])
        .await;
    rows.expect("messages").iter().map(|row| row.get(0)).collect()
}

/// A retry of a message that its slice's frontier has passed.
async fn retried(drained: &Drained, sql: &Client, ids: &[Uuid], due: &str) {
    let Drained { topic, day, .. } = drained;
    for id in ids {
        sql.batch_execute(&format!(
            "UPDATE heddle.message_slices SET bucket = 9999, state = 1;
             INSERT INTO heddle.message_retries (topic, day, bucket, id, attempt, retry, due_at, error)
             VALUES ({topic}, '{day}', 1, '{id}', 1, '{{}}', {due}, '')"
        ))
        .await
        .expect("a retry");
    }
}

/// `message_cancel_bucket`, `message_cancel_reading`, `message_state`: a cancel waits for a claim in progress, and does
/// not change what that has taken, except that it marks it as not to be retried.
#[tokio::test]
async fn cancels_beside_a_claim() {
    for filter in [BUCKET, RECEIVER] {
        let (_world, drained, sql, mut other) = Drained::set_up().await;
        let ids = drained.of_day(&[1, 1, 1]).await;
        let claim = other.transaction().await.unwrap();
        claim.batch_execute(&drained.claims_first(0, ids[0])).await.unwrap();
        let cancelling = cancel(&drained, filter);
        waiting(&sql, 1).await;
        assert_eq!(states(&sql).await, [0, 0, 0]);
        claim.commit().await.unwrap();
        assert_eq!(cancelling.await.unwrap(), 2, "{filter:?}");
        assert_eq!(states(&sql).await, [3, 1, 1], "{filter:?}");
        assert_eq!(
            count(&sql, "message_outcomes WHERE cancelled = 2").await,
            1,
            "{filter:?}"
        );
    }
}

/// `message_cancel_day`: a day's cancel waits for open ingest, and counts its messages; and for a claim, and does not
/// count what that has taken.
#[tokio::test]
async fn cancels_of_a_day() {
    let (_world, drained, sql, mut other) = Drained::set_up().await;
    drained.of_day(&[1, 1]).await;
    let mut ingest = drained.store.ingest(drained.topic).await.unwrap();
    assert_eq!(ingest.open_day(drained.day).await.unwrap(), DaySlice::Open(0));
    ingest.write(&[drained.message(0, 2, 7, 9)]).await.unwrap();
    let cancelling = cancel(&drained, DAY);
    waiting(&sql, 1).await;
    assert!(ingest.commit().await.unwrap());
    assert_eq!(
        cancelling.await.unwrap(),
        3,
        "those that were there, and the one that came"
    );
    let mut ingest = drained.store.ingest(drained.topic).await.unwrap();
    assert_eq!(ingest.open_day(drained.day).await.unwrap(), DaySlice::Missing);
    drop(ingest);

    // What comes after it is the next slice's, which is claimed in part.
    let ids = drained.of_day(&[1, 1]).await;
    let claim = other.transaction().await.unwrap();
    claim.batch_execute(&drained.claims_first(-1, ids[0])).await.unwrap();
    let cancelling = cancel(&drained, DAY);
    waiting(&sql, 1).await;
    claim.commit().await.unwrap();
    assert_eq!(cancelling.await.unwrap(), 1, "one is in hand");
    assert_eq!(count(&sql, "message_slices WHERE state = 2").await, 2);
}

/// `message_cancel_retries`: waits for a claim of the retry; it is in hand if that is committed, otherwise cancelled.
#[tokio::test]
async fn cancels_of_retries() {
    for (commits, cancelled, state) in [(true, 0, 3), (false, 1, 1)] {
        let (_world, drained, sql, mut other) = Drained::set_up().await;
        let ids = drained.of_day(&[1]).await;
        retried(&drained, &sql, &ids, "now() + interval '1 hour'").await;
        let claim = other.transaction().await.unwrap();
        let claims = format!(
            "{}; DELETE FROM heddle.message_retries; {}",
            drained.claim_lock(),
            drained.in_hand(99, &ids)
        );
        claim.batch_execute(&claims).await.unwrap();
        let cancelling = cancel(&drained, BUCKET);
        waiting(&sql, 1).await;
        match commits {
            true => claim.commit().await.unwrap(),
            false => claim.rollback().await.unwrap(),
        }
        assert_eq!(cancelling.await.unwrap(), cancelled);
        assert_eq!(states(&sql).await, [state]);
        assert_eq!(count(&sql, "message_retries").await, 0);
    }
}

/// `message_retries`: a claim of retries waits for a cancel in progress, and does not get what that has taken.
#[tokio::test]
async fn claims_of_retries() {
    let (_world, drained, sql, mut other) = Drained::set_up().await;
    let ids = drained.of_day(&[1, 1]).await;
    retried(&drained, &sql, &ids, "now() - interval '1 hour'").await;
    let cancel = other.transaction().await.unwrap();
    let stops = format!(
        "{}; DELETE FROM heddle.message_retries WHERE id = '{}'",
        drained.stop(),
        ids[0]
    );
    cancel.batch_execute(&stops).await.unwrap();
    let claim = drained.claim(1);
    waiting(&sql, 1).await;
    cancel.commit().await.unwrap();
    assert_eq!(claim.await.unwrap().unwrap(), [ids[1]]);
    assert_eq!(count(&sql, "message_retries").await, 0);
}

/// A batch of the day that waits in a queue, with these messages, and its run.
async fn in_a_queue(drained: &Drained, sql: &Client, ids: &[Uuid]) {
    under_way(sql, &[1], 7).await;
    let gives = format!("UPDATE heddle.message_batches SET run = '{}', lease = 0", run(1));
    sql.batch_execute(&format!("{}; {gives}", drained.in_hand(99, ids)))
        .await
        .expect("a batch");
}

/// A cancel takes messages out of a batch that waits in a queue, but waits for no run: whoever has locked that one may be
/// ending the batch.
#[tokio::test]
async fn cancels_of_what_waits_in_a_queue() {
    let (_world, drained, sql, mut other) = Drained::set_up().await;
    let ids = drained.of_day(&[1, 1]).await;
    sql.batch_execute(&format!("BEGIN; {}; COMMIT", drained.claims_first(0, ids[0])))
        .await
        .unwrap();
    sql.batch_execute("DELETE FROM heddle.message_batches").await.unwrap();
    in_a_queue(&drained, &sql, &ids[..1]).await;
    let ending = other.transaction().await.unwrap();
    let hold = "SELECT FROM heddle.runs_live FOR NO KEY UPDATE";
    assert_eq!(ending.execute(hold, &[]).await.unwrap(), 1);
    assert_eq!(
        unhindered(cancel(&drained, DAY)).await.unwrap(),
        1,
        "the one that is in no batch"
    );
    ending.rollback().await.unwrap();
    assert_eq!(cancel(&drained, DAY).await.unwrap(), 1);
    assert_eq!(count(&sql, "message_batches WHERE ids = '{}'").await, 1);
}

/// A worker that claims a batch waits for a cancel that is taking messages out of it, and gets the others.
#[tokio::test]
async fn batches_that_are_cut() {
    let (_world, drained, sql, mut other) = Drained::set_up().await;
    let ids = drained.of_day(&[1, 1]).await;
    in_a_queue(&drained, &sql, &ids).await;
    let cancelling = other.transaction().await.unwrap();
    let cuts = "UPDATE heddle.message_batches SET ids = ids[2:]";
    assert_eq!(cancelling.execute(cuts, &[]).await.unwrap(), 1);
    let claim = drained.store.cut_queue_batch(drained.topic, Uuid::from_u128(99));
    let left = meanwhile(&sql, claim, async { cancelling.commit().await.unwrap() }).await;
    assert_eq!(left.unwrap(), Some(vec![ids[1]]));
}
