//! Finds out when a server whose disk was full has room again.
//!
//! From the first statement that is refused for this reason (`disk_space.rs`), the node tests every [`TEST_EVERY`] whether
//! there is room for [`TEST`]. The lack is over when a test succeeds and the data plane was refused nothing since the test
//! before it. Without a lack, nothing is tested.

use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Chain;
use sqlx::Executor;
use tokio_util::sync::CancellationToken;

use super::{Pool, Watch};
use crate::StoreError;

/// The pause between two tests.
const TEST_EVERY: Duration = Duration::from_secs(2);

/// A new table of about 1 MiB, which is removed in the same transaction (statements that are sent together are one): a
/// file has to grow, whatever free space the pages of other tables have. An unlogged table writes no WAL. A server that
/// has no room for its WAL stops, and a test must not be the reason for that.
const TEST: &str = "CREATE UNLOGGED TABLE heddle.test_of_room (filler text NOT NULL);
     INSERT INTO heddle.test_of_room SELECT repeat('x', 1000) FROM generate_series(1, 1000);
     DROP TABLE heddle.test_of_room";

/// Ends each lack when there is room again, until it is stopped. Tests on the sessions of this pool.
pub(crate) async fn keep_room(watch: Arc<Watch>, pool: Pool, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = watch.disk_space.begins() => {}
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = wait_for_room(&watch, &pool) => {}
        }
    }
}

/// Tests until the lack is over.
async fn wait_for_room(watch: &Watch, pool: &Pool) {
    let (mut before, mut told) = (None, false);
    loop {
        let has_room = match write_some(pool).await {
            Ok(()) => true,
            Err(error) if error.is_passing() => false,
            // An error that does not pass, such as a missing right to create tables, says nothing about the disk. Then
            // only the refusals of other statements count.
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "cannot test whether the database has room on its disk");
                true
            }
        };
        if has_room && watch.disk_space.found(before) {
            break;
        }
        if before.is_some() && !told {
            told = true;
            tracing::error!("the database refuses writes, because its disk is full");
        }
        before = Some(watch.now());
        tokio::time::sleep(TEST_EVERY).await;
    }
    if told {
        tracing::info!("the database has room on its disk again");
    }
}

async fn write_some(pool: &Pool) -> Result<(), StoreError> {
    let mut session = pool.acquire().await?;
    session.wait_for(|raw| raw.execute(sqlx::raw_sql(TEST))).await?;
    Ok(())
}
