//! Offers of task runs that are opened again, cleared, withdrawn or ended at the same time.

use heddle_domain::Clock;
use heddle_domain::run::TaskKey;
use heddle_domain::state::TaskState;
use heddle_store::live::NewOverride;
use tokio_postgres::Client;

use super::dispatch::{end, holds, offer};
use super::{Wall, begin, close, count, meanwhile, run, set_up, under_way, unhindered, waiting};

/// The attempt of an offer's task run is over, and another one is not there yet.
async fn attempt_ends(sql: &Client) {
    let gone = sql.execute("DELETE FROM heddle.running", &[]).await;
    assert!(gone.expect("its attempt") >= 1);
}

/// What the opening of an offer for its second attempt writes.
fn opens_again() -> String {
    format!(
        "UPDATE heddle.offers SET version = 2, attempt = 2, enabled = true, deleted_at = NULL;
         INSERT INTO heddle.running VALUES ('{}', 0, -1, 2, 0, now())",
        run(1)
    )
}

/// An offer that is opened again after it was chosen to be withdrawn stays open, and its users keep what they hold.
#[tokio::test]
async fn withdrawals_of_what_is_opened_again() {
    let (_world, store, sql, mut other) = set_up().await;
    let offer = offer(&sql, Some(9), true).await;
    sql.batch_execute(&holds(offer, &["a"])).await.unwrap();
    attempt_ends(&sql).await;
    let restart = other.transaction().await.unwrap();
    restart
        .batch_execute("SELECT FROM heddle.holds FOR UPDATE")
        .await
        .unwrap();
    let withdrawn = meanwhile(&sql, store.withdraw_offers(Wall.now()), async {
        restart.batch_execute(&opens_again()).await.expect("an open offer");
        restart.commit().await.unwrap();
    })
    .await;
    assert!(withdrawn.unwrap().is_empty());
    let now = async || {
        (
            count(&sql, "offers WHERE enabled AND deleted_at IS NULL").await,
            count(&sql, "holds").await,
            count(&sql, "assignments WHERE state = 3").await,
        )
    };
    assert_eq!(now().await, (1, 1, 0));
    // This attempt ends as well, and nobody opens the offer again.
    attempt_ends(&sql).await;
    let holder = other.transaction().await.unwrap();
    holder
        .batch_execute("SELECT FROM heddle.holds FOR UPDATE")
        .await
        .unwrap();
    let withdrawn = meanwhile(&sql, store.withdraw_offers(Wall.now()), close(holder, true)).await;
    assert_eq!(withdrawn.unwrap(), ["gid_g"]);
    assert_eq!(now().await, (0, 0, 1));
}

/// `end_holds`: what is held of an offer whose attempt has ended on its own is completed for the next attempt. After a clear
/// of its task run there is none, so nobody completes it, and the offer is withdrawn.
#[tokio::test]
async fn what_is_held_of_a_closed_offer() {
    let (_world, store, sql, _other) = set_up().await;
    under_way(&sql, &[1], 7).await;
    attempt_ends(&sql).await;
    let offer = offer(&sql, Some(9), true).await;
    sql.batch_execute(&holds(offer, &["a", "b"])).await.unwrap();
    attempt_ends(&sql).await;
    sql.batch_execute("UPDATE heddle.offers SET enabled = false")
        .await
        .unwrap();
    assert!(store.withdraw_offers(Wall.now()).await.unwrap().is_empty());
    assert_eq!(end(&store, &["a"]).await.unwrap(), 1);
    sql.batch_execute("UPDATE heddle.offers SET attempt = 0").await.unwrap();
    assert_eq!(end(&store, &["b"]).await.unwrap(), 0);
    assert_eq!(store.withdraw_offers(Wall.now()).await.unwrap(), ["gid_g"]);
    let ended = (
        count(&sql, "assignments WHERE state = 1").await,
        count(&sql, "assignments WHERE state = 3").await,
    );
    assert_eq!((ended, count(&sql, "holds").await), ((1, 1), 0));
}

/// What is taken while its offer is withdrawn is revoked afterwards, unless the offer is opened again before.
#[tokio::test]
async fn takes_during_withdrawals() {
    let (_world, store, sql, mut other) = set_up().await;
    let offer = offer(&sql, Some(9), true).await;
    let take = other.transaction().await.unwrap();
    take.batch_execute(&holds(offer, &["a"])).await.unwrap();
    attempt_ends(&sql).await;
    let withdrawn = unhindered(store.withdraw_offers(Wall.now())).await;
    assert_eq!(withdrawn.unwrap(), ["gid_g"], "nobody sees what is not committed");
    take.commit().await.unwrap();
    let restart = other.transaction().await.unwrap();
    restart
        .batch_execute("SELECT FROM heddle.holds FOR UPDATE")
        .await
        .unwrap();
    meanwhile(&sql, store.revoke_late_holds(Wall.now()), async {
        restart.batch_execute(&opens_again()).await.expect("an open offer");
        restart.commit().await.unwrap();
    })
    .await
    .unwrap();
    let now = async || {
        (
            count(&sql, "holds").await,
            count(&sql, "assignments WHERE state = 3").await,
        )
    };
    assert_eq!(now().await, (1, 0));
    sql.batch_execute("UPDATE heddle.offers SET enabled = false, deleted_at = now()")
        .await
        .unwrap();
    store.revoke_late_holds(Wall.now()).await.unwrap();
    assert_eq!(now().await, (0, 1));
}

/// A clear locks the offers in the order of their ids before it changes one: otherwise, it and an end of holds could wait for
/// each other.
#[tokio::test]
async fn clears_of_offers() {
    let (_world, store, sql, mut other) = set_up().await;
    let one = offer(&sql, Some(9), true).await;
    let row = sql
        .query_one(
            "INSERT INTO heddle.offers (name, audience, version, kind, starts_at, stock, repeats, return_failed, enabled,
                 spec, run, task, item, attempt, created_at, updated_at)
             SELECT 'p', audience, version, kind, starts_at, stock, repeats, return_failed, enabled, spec, run, 1, item,
                    attempt, created_at, updated_at
               FROM heddle.offers RETURNING id",
            &[],
        )
        .await
        .unwrap();
    let two: i64 = row.get(0);
    assert!(one < two);
    // In the table, the first one is now behind the other.
    sql.execute("UPDATE heddle.offers SET version = 2 WHERE id = $1", &[&one])
        .await
        .unwrap();
    let holder = other.transaction().await.unwrap();
    holder
        .execute("SELECT FROM heddle.offers WHERE id = $1 FOR UPDATE", &[&one])
        .await
        .unwrap();
    let cleared = [1, 0].map(|task| {
        let set = NewOverride {
            key: TaskKey::whole(task),
            state: TaskState::Pending,
            output: None,
        };
        (run(1), set)
    });
    let mut clear = begin(&store, 7).await;
    let sets = clear.insert_overrides(&cleared, "by a test", "test", Wall.now());
    meanwhile(&sql, sets, async {
        sql.execute("SELECT FROM heddle.offers WHERE id = $1 FOR UPDATE NOWAIT", &[&two])
            .await
            .expect("it waits for the first one before it has locked the second");
        holder.rollback().await.unwrap();
    })
    .await
    .unwrap();
    clear.commit().await.unwrap();
    assert_eq!(count(&sql, "offers WHERE attempt = 0").await, 2);
}

/// `end_holds`, `close_offers`: an offer that is opened for the next attempt while they wait for it stays open. The slow
/// sweep ends it if it is completed.
#[tokio::test]
async fn ends_of_what_is_opened_again() {
    let (_world, store, sql, mut other) = set_up().await;
    let offer = offer(&sql, Some(1), true).await;
    sql.batch_execute(&holds(offer, &["a"])).await.unwrap();
    let settled = async || {
        (
            count(&sql, "offer_settlements").await,
            count(&sql, "offers WHERE enabled").await,
        )
    };
    let next_attempt = "UPDATE heddle.offers SET version = version + 1, attempt = attempt + 1";
    let opening = other.transaction().await.unwrap();
    assert_eq!(opening.execute(next_attempt, &[]).await.unwrap(), 1);
    let ends = end(&store, &["a"]);
    waiting(&sql, 1).await;
    opening.commit().await.unwrap();
    assert_eq!(ends.await.unwrap(), 1);
    assert_eq!(settled().await, (0, 1));
    let opening = other.transaction().await.unwrap();
    assert_eq!(opening.execute(next_attempt, &[]).await.unwrap(), 1);
    let closed = meanwhile(&sql, store.settle_completed_offers(), close(opening, true)).await;
    assert_eq!(closed.unwrap(), 0);
    assert_eq!(settled().await, (0, 1));
    assert_eq!(store.settle_completed_offers().await.unwrap(), 1);
    assert_eq!(count(&sql, "offer_settlements WHERE attempt = 3").await, 1);
}
