//! The lock of a topic, and what its holders do to messages: how they are read, and their states.

use chrono::NaiveDate;
use uuid::Uuid;

use crate::StoreError;
use crate::database::PgSession;

/// The number of a day in advisory locks.
pub(super) fn day_number(day: NaiveDate) -> i32 {
    day.signed_duration_since(NaiveDate::default()).num_days() as i32
}

/// Takes the topic's lock; `None`: the topic does not exist any more. Returns the allowance of its rate, as of now.
/// Later statements read indexes in their order: a plan that sorts would cost more with each stored message.
///
/// Locking: the first lock of a transaction. With [`Plans::OfTheirDay`], as cancels have it, it also blocks
/// transactions that record batches whose messages were all sent.
pub(super) async fn lock_topic(
    connection: &mut PgSession,
    topic: i32,
    plans: Plans,
) -> Result<Option<Drain>, StoreError> {
    let mode = match plans {
        Plans::Kept => "auto",
        Plans::OfTheirDay => "force_custom_plan",
    };
    let drain = sqlx::query_file_as!(Drain, "src/sql/message_lock.sql", topic, mode)
        .fetch_optional(&mut *connection)
        .await?;
    if drain.is_some() && plans == Plans::OfTheirDay {
        sqlx::query_scalar!(
            "SELECT topic FROM heddle.topic_drains WHERE topic = $1 FOR UPDATE",
            topic
        )
        .fetch_optional(connection)
        .await?;
    }
    Ok(drain)
}

/// For a statement that searches for a receiver, which has no index: the day is read in its physical order, whatever
/// the planner believes about a partition that has just grown. Through another index, it would read a page for each
/// message.
pub(super) async fn by_reading(connection: &mut PgSession, on: bool) -> Result<(), StoreError> {
    let (reading, index) = if on { ("on", "off") } else { ("off", "on") };
    sqlx::query!(
        r#"SELECT set_config('enable_seqscan', $1, true) AS "scan!", set_config('enable_hashjoin', $1, true) AS "hash!",
                  set_config('enable_sort', $1, true) AS "sort!", set_config('enable_indexscan', $2, true) AS "index!",
                  set_config('enable_indexonlyscan', $2, true) AS "only!""#,
        reading,
        index
    )
    .fetch_one(connection)
    .await?;
    Ok(())
}

/// How the statements of a transaction are planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plans {
    /// Kept, if the server chooses so: none of them names a day of messages.
    Kept,
    /// Made for the named day: a plan for all days would cost more with each stored day.
    OfTheirDay,
}

/// Sets the state of messages. The topic's lock is held, so that they cannot change meanwhile.
pub(super) async fn set_state(
    connection: &mut PgSession,
    topic: i32,
    day: NaiveDate,
    ids: &[Uuid],
    state: i16,
) -> Result<(), StoreError> {
    sqlx::query_file!("src/sql/message_state.sql", topic, day, ids, state)
        .execute(connection)
        .await?;
    Ok(())
}

/// A topic's row of *topic_drains*.
pub(super) struct Drain {
    pub(super) allowance: f64,
    /// Milliseconds since the allowance was written.
    pub(super) since_ms: f64,
    pub(super) problem: Option<String>,
}
