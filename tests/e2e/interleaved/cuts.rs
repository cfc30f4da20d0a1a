//! Connections that the server ends while they are idle.

use futures::future::join_all;
use heddle_store::Store;
use heddle_tests::eventually;

use super::{by, set_up};

/// Four transactions at the same time; so there are four connections.
async fn four(store: &Store, slots: i32) {
    let names = ["a", "b", "c", "d"];
    for put in join_all(names.map(|name| store.put_pool(by(), name, slots))).await {
        put.expect("a pool");
    }
}

/// Who begins a transaction does not notice that the idle connections were cut: nothing had been done yet.
#[tokio::test]
async fn a_transaction_begins_on_another_connection() {
    let (world, store, sql, _other) = set_up().await;
    four(&store, 1).await;
    let cut = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}' AND application_name = 'heddle'",
        world.database()
    );
    for slots in 2..6 {
        let found = sql.query(&cut, &[]).await.unwrap();
        assert!(found.len() > 1, "{} connections", found.len());
        eventually("the end of all connections", async || {
            let left = sql.query(&cut, &[]).await.unwrap();
            left.is_empty().then_some(())
        })
        .await;
        four(&store, slots).await;
    }
}
