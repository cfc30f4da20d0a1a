//! Scheduled messages: how they come in, are claimed in batches, and end.
//!
//! # The story
//!
//! Messages are kept by due day (a partition) and *bucket* (sender mod 10,000). What is due at once is a *slice*: a
//! whole day of a topic of days, or what one transaction of ingest brought for one instant. A slice is drained by a
//! *frontier* that moves over its messages in the order of bucket and id; whoever moves it writes a row in
//! *message_batches* with the ids that it passed, in the same transaction. That row is all that says that a batch is in
//! hand: it carries its node's lease, and **whoever deletes it owns the outcomes** of its messages. So no message's row
//! is written when it is sent. A batch whose lease is nobody's any more is taken over with the same ids.
//!
//! A frontier is sound only if nothing comes to be behind it. A slice of an instant is written by one transaction and
//! seen whole or not at all. A day's slice grows until it is due; ingest holds a shared advisory lock on (topic, day)
//! until it commits, and the first claim takes that lock alone, once, and seals the slice.
//!
//! What failed goes to *message_retries* with the instant of its next attempt, and so holds up nobody; retries are
//! claimed like slices, into batches of their own.
//!
//! A cancel of a day marks its slices; later messages for that day begin another slice. Any other cancel marks rows
//! that no frontier has passed. What waits in a queue is taken out of its batch (`queued`). What is in hand is sent, but not
//! tried again. Counts are kept by bucket: *how many*
//! (`message_buckets`) by ingest, *what became of them* (`message_outcomes`) under the
//! topic's lock, or a share of it.
//!
//! # Order of locks
//!
//! 1. the row of *topic_drains*: claims, checkpoints and cancels of one topic take turns; a batch whose messages were all
//!    sent is recorded beside a claim (a share of the row), but not beside a cancel;
//! 2. the advisory lock (topic, day): shared by ingest, alone by the seal (which does not wait) and a day's cancel;
//! 3. rows of *message_keys*, in their order; rows of *message_buckets*, in their order, right before ingest's commit;
//! 4. rows of *message_batches* that runs carry, in their order, by a cancel; then a share of these runs' rows, passing over
//!    those that somebody has: whoever has a run may be about to end the batch.
//!
//! Ingest never takes 1, and those who hold 1 never touch 3.
//!
//! # Invariants
//!
//! * A message is in at most one of: beyond its slice's frontier, one batch, *message_retries*.
//! * For each bucket, what was sent, failed or cancelled, is in hand or waits for a retry is at most `total`; when the
//!   day is drained, the first three add up to it.
//! * No transaction is open while a script runs.

mod cancel;
mod claim;
mod day;
mod find;
mod finish;
mod ingest;
mod queued;
mod retry;
pub mod topic;

pub use cancel::{CancelFilter, CancelReport, Cancelled};
pub use claim::{AHEAD_MAX, BatchTerms, Claimed, HeldMessage, MessageBatch, Tried};
pub use day::{BucketRow, DayCounts, DayRow};
pub use find::{MessageRow, MessageSearch, MessageState};
pub use finish::{FailedMessage, Finish, Finished, MessageEffect};
pub use ingest::{DaySlice, MessageIngest, NewMessage};
pub use queued::EndedQueueBatch;

use chrono::NaiveDate;
use uuid::Uuid;

use crate::StoreError;
use crate::database::PgSession;

/// The number of a day in advisory locks.
fn day_number(day: NaiveDate) -> i32 {
    day.signed_duration_since(NaiveDate::default()).num_days() as i32
}

/// Takes the topic's lock; `None`: there is no such topic any more. Answers what its rate lets through, if it were
/// filled until now. Statements after it read indexes in their order: a plan that sorts would cost more with each
/// message that is stored.
async fn lock_topic(connection: &mut PgSession, topic: i32, plans: Plans) -> Result<Option<Drain>, StoreError> {
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

/// For a statement that looks for a receiver, to whom no index leads: the day is read in the order in which it lies there,
/// whatever the planner thinks of a partition that has just grown. By the index it would be a page for each message.
async fn by_reading(connection: &mut PgSession, on: bool) -> Result<(), StoreError> {
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
enum Plans {
    /// Once, as far as the server finds that good: none of them names a day of messages.
    Kept,
    /// Each for the day that it names: a plan for all days would cost more with each day that is stored.
    OfTheirDay,
}

/// Sets the state of messages. The topic's lock is held, so that they stay where they are found.
async fn set_state(
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
struct Drain {
    allowance: f64,
    /// Milliseconds since the allowance was written.
    since_ms: f64,
    problem: Option<String>,
}
