//! Offers whose task runs were cleared.

use heddle_domain::id::RunId;
use heddle_domain::run::TaskKey;

use crate::StoreError;
use crate::database::{PgSession, column};

/// The offers of cleared task runs belong to no attempt any more, not even to a later one: with them go what was completed
/// and who has completed it. An attempt's number is at least 1.
///
/// Locking: the caller has locked the runs, so nobody else clears them. All the offers, in id order, before one is changed:
/// ends of holds (`sql/end_holds.sql`, `sql/close_offers.sql`) lock theirs in this order too. What locks offers locks no run
/// afterwards.
pub(crate) async fn forget_offers(connection: &mut PgSession, cleared: &[(RunId, TaskKey)]) -> Result<(), StoreError> {
    sqlx::query!(
        "UPDATE heddle.offers SET attempt = 0
          WHERE id = ANY (ARRAY(
                SELECT l.id FROM heddle.offers l
                 WHERE l.id = ANY (ARRAY(
                       SELECT o.id FROM UNNEST($1::uuid[], $2::smallint[], $3::integer[]) AS s (run, task, item)
                        CROSS JOIN LATERAL (SELECT f.id FROM heddle.offers f
                                             WHERE f.run = s.run AND f.task = s.task AND (s.item < 0 OR f.item = s.item)
                                            OFFSET 0) o))
                 ORDER BY l.id FOR NO KEY UPDATE))",
        &column(cleared, |(run, _)| run.0),
        &column(cleared, |(_, key)| key.task as i16),
        &column(cleared, |(_, key)| key.item_number())
    )
    .execute(connection)
    .await?;
    Ok(())
}
