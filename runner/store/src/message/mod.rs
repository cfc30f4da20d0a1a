//! Scheduled messages: how they come in, are claimed in batches, and end.
//!
//! # The story
//!
//! Messages are stored by due day (a partition) and *bucket* (sender mod 10,000). Messages that are due at once form a
//! *slice*: a whole day of a topic of days, or the messages of one transaction of ingest for one instant. A *frontier*
//! moves over the messages of a slice in the order of bucket and id. A claim moves it and writes a row in
//! *message_batches* with the ids that it passed, in the same transaction. Only that row says that the batch is
//! claimed: it has the lease of its node, and **whoever deletes it owns the outcomes** of its messages. So sending a
//! message does not write its row. A batch whose lease is not valid any more is taken over with the same ids. (A batch for
//! a queue becomes a run, whose key is the batch's id. If that run exists, the batch is handed to it instead.)
//!
//! A frontier is right only if no message appears behind it. A slice of an instant is written by one transaction, and
//! its messages become visible all at once. A day's slice grows until it is due: ingest holds a shared advisory lock on
//! (topic, day) until it commits, and the first claim takes that lock exclusively, once, and seals the slice.
//!
//! Failed messages go to *message_retries* with the instant of their next attempt, and so hold up no others. Retries
//! are claimed like slices, into separate batches.
//!
//! A cancel of a day marks its slices; later messages for that day begin another slice. Any other cancel marks rows
//! that no frontier has passed. Messages that wait in a queue are removed from their batch (`queued`). Messages in
//! claimed batches are sent, but not retried. Counts are kept by bucket: *how many* (`message_buckets`) by ingest,
//! *their outcomes* (`message_outcomes`) under the topic's lock, or a shared one.
//!
//! # Order of locks
//!
//! 1. the row of *topic_drains*: claims, checkpoints and cancels of one topic wait for each other. A batch whose
//!    messages were all sent is recorded under a shared lock of the row: concurrently with a claim, but not with a
//!    cancel;
//! 2. the advisory lock (topic, day): shared by ingest, exclusive for the seal (which does not wait) and a day's
//!    cancel;
//! 3. rows of *message_keys*, in their order; right before ingest's commit, the topic's row in *topics* (KEY SHARE), then
//!    rows of *message_buckets*, in their order;
//! 4. rows of *message_batches* that runs bring to queues, in their order, by a cancel; then shared locks on the rows
//!    of these runs, skipping locked ones: a transaction that has locked a run may be about to end the batch.
//!
//! Ingest never takes 1, and holders of 1 never touch 3: except for the deletion of a topic, which has 1, and then
//! waits for the row in *topics*. An ingest that has locked this row waits only for other ingests that are committing.
//!
//! # Invariants
//!
//! * A message is in at most one of: beyond its slice's frontier, one batch, *message_retries*.
//! * For each bucket, the messages that were sent, failed or cancelled, are in a claimed batch, or wait for a retry are
//!   together at most `total`; when the day is drained, the first three add up to it.
//! * No transaction is open while a script runs.

mod batch;
mod cancel;
mod claim;
mod day;
mod earlier;
mod find;
mod finish;
mod ingest;
mod lock;
mod queued;
mod retry;
pub mod topic;
mod waiting;

pub use batch::{AHEAD_MAX, BatchMessage, BatchTerms, Claimed, MessageBatch, Tried};
pub use cancel::{CancelFilter, CancelReport, Cancelled};
pub use day::{BucketRow, DayCounts, DayRow, TopicsWithWork, WorkFrom};
pub use earlier::LateKey;
pub use find::{MessageRow, MessageSearch, MessageState};
pub use finish::{FailedMessage, Finish, Finished, MessageEffect};
pub use ingest::{DaySlice, MessageIngest, NewMessage};
pub use queued::EndedQueueBatch;

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// `sql/message_lock.sql` gives the reason.
    #[test]
    fn statements_that_read_a_day_of_messages_are_planned_for_it() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/message");
        let tables = ["messages m", "message_keys k"].map(|table| format!("FROM heddle.{table}"));
        let plans = ["force_custom_plan", "Plans::OfTheirDay"];
        let mut found = 0;
        for entry in std::fs::read_dir(here).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            // The callers of the functions in `batch.rs` have said how plans are made (`sql/message_work.sql`).
            if path.ends_with("batch.rs") || !tables.iter().any(|table| text.contains(table)) {
                continue;
            }
            found += 1;
            assert!(plans.iter().any(|plan| text.contains(plan)), "{}", path.display());
        }
        assert!(found >= 3, "{found} files read days of messages");
    }
}
