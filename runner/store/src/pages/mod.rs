//! What pages show and no route of the API does: read only, and bounded, whatever there is in the history.
//!
//! Every statement here reads by an index, from the newest end, and stops at a number that its caller gives. None counts
//! what it does not read: where there is more, the number read says so.

pub mod group;
pub mod overview;
pub mod pool;

use crate::{Store, StoreError};

impl Store {
    /// A text that is another one when runs, queued work, offers, messages or anything that people change may have
    /// changed since. Costs a few look-ups. (How often a table has been written to is known with a delay of up to some
    /// seconds; what is newest, at once.)
    pub async fn page_fingerprint(&self) -> Result<String, StoreError> {
        Ok(sqlx::query_scalar!(
            r#"SELECT concat_ws(' ',
                   (SELECT max(id) FROM heddle.changes),
                   (SELECT id FROM heddle.runs_live ORDER BY id DESC LIMIT 1),
                   (SELECT id FROM heddle.runs_done ORDER BY id DESC LIMIT 1),
                   (SELECT string_agg((pg_stat_get_tuples_inserted(c.oid) + pg_stat_get_tuples_updated(c.oid)
                                       + pg_stat_get_tuples_deleted(c.oid))::text, ',' ORDER BY c.oid)
                      FROM pg_class c
                     WHERE c.oid = ANY (ARRAY['heddle.runs_live', 'heddle.queue_ready', 'heddle.queue_claims',
                                              'heddle.notifications', 'heddle.holds', 'heddle.message_slices',
                                              'heddle.backfills', 'heddle.leases']::regclass[]))) AS "fingerprint!""#
        )
        .fetch_one(&self.pool)
        .await?)
    }
}
