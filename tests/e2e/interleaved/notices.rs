//! Notices, which one node at a time turns into notifications.

use heddle_tests::eventually;
use tokio_postgres::Client;

use super::{set_up, store, unhindered};

/// What a script asked for; its number.
async fn notice(sql: &Client) -> i64 {
    let make = "INSERT INTO heddle.notices (channel, subject, body) VALUES ('c', 's', 'b') RETURNING id";
    sql.query_one(make, &[]).await.expect("a notice").get(0)
}

/// `fan_out`: while one node does so, another is told at once and does nothing. A notice is handled once, also if the first
/// node is lost in between.
/// Without the lock, the second node would begin too; with a lock that it waits for, it would wait here for ever.
#[tokio::test]
async fn one_node_at_a_time() {
    let (world, first, sql, _) = set_up().await;
    let second = store(&world).await;
    let id = notice(&sql).await;
    let mut done = first.fan_out().await.unwrap().expect("nobody else does so");
    assert_eq!(done.take(&[id]).await.unwrap(), [id]);
    assert!(unhindered(second.fan_out()).await.unwrap().is_none());
    done.commit().await.unwrap();
    let mut next = second.fan_out().await.unwrap().expect("the first has ended");
    assert_eq!(next.take(&[id]).await.unwrap(), [0; 0], "it was handled");
    next.commit().await.unwrap();

    let id = notice(&sql).await;
    let mut lost = first.fan_out().await.unwrap().expect("nobody else does so");
    assert_eq!(lost.take(&[id]).await.unwrap(), [id]);
    assert!(unhindered(second.fan_out()).await.unwrap().is_none());
    drop(lost);
    let mut next = eventually("turn of the second", async || {
        second.fan_out().await.expect("an answer")
    })
    .await;
    assert_eq!(next.take(&[id]).await.unwrap(), [id]);
}
