//! The data plane: what is ready, what runs, and how both end.
//!
//! # The story
//!
//! A run is born in one statement: its row in *runs_live* and a row for each task that may start at once, in *ready*
//! for anybody, or straight in *running* for the node that took the submission and has room. A node moves rows from
//! *ready* to *running* in batches; a row in *running* carries the node's lease number, and **whoever deletes that row
//! owns the attempt's outcome**. That is the only fence there is, and everything ends through it: a node that reports
//! (its lease and the attempt's number must match), a cancel, a reaper that took a dead node's rows away.
//!
//! Outcomes are gathered while the last transaction is under way and recorded together: lock the runs, delete the rows
//! in *running*, decide in memory ([`heddle_domain::run::decide`]), insert the history, make successors ready, end
//! runs, claim what comes next.
//!
//! # Order of locks
//!
//! 1. advisory locks of dedupe hashes, in order;
//! 2. rows of *runs_live*, in id order;
//! 3. rows of *ready_pooled*, then of *running*, *ready*, *timers* of these runs;
//! 4. rows of *ready* that are claimed, skipping locked ones: always last.
//!
//! *settlements*, *starts*, *turnstiles* and *timers* that are due are taken with SKIP LOCKED before 2; nobody waits
//! for these. Since the inbox comes to *timers* before it comes to their runs, those who hold a run skip them as well
//! (`timers.rs`).
//!
//! Last come *notices*, which are only inserted, and *troubles*, in the order of group and task; whoever turns notices into
//! notifications (`notify/outbox.rs`) locks *troubles* in that order too, and no run.
//!
//! # Invariants
//!
//! * A task run has at most one row in *ready*, *ready_pooled* and *running* together.
//! * Slots of pools are told by the rows of *ready* and *running* that hold them (`pools.rs`); whoever gives them out
//!   locks the pools first, and then waits for nobody but a control that takes rows of *ready_pooled* back.
//! * A run has a row in *runs_live* or in *runs_done*, never in both.
//! * Every change of a run's progress happens under its row's lock.
//! * No transaction is open while a script runs.

mod abandon;
mod claim;
mod complete;
mod control;
mod create;
mod effects;
mod grant;
mod history;
mod inbox;
mod keys;
mod pools;
mod queue;
mod refuse;
mod report;
mod timers;
mod unclaimed;
mod write;

pub use claim::{Claimed, RunFacts};
pub use complete::{Completion, EndedAttempt, Locked, LockedRun, SingleTaskEnd};
pub use control::{Interrupted, LiveRun};
pub(crate) use create::create_in;
pub use create::{Audited, Created, NewRun, ReadyRow};
pub use effects::Effect;
pub use grant::{Grant, Room};
pub(crate) use history::insert_logs_in;
pub use history::{AttemptRow, LogRow};
pub use inbox::{ActiveRun, AtGate, Gate, Inbox, LostAttempt, PassedOver, Settlement, SqlStart, Take, Taken};
pub use queue::{
    ClaimKey, ClaimStatus, ClaimTerms, ExpiredClaim, Overdue, QueueClaimed, QueueClaims, QueueRow, QueueTarget,
};
pub use report::{ClaimReport, ReportLine};
pub use timers::Due;
pub use unclaimed::Unclaimed;
pub use write::{RunWrite, Written};

/// How many rows one transaction of the data plane moves at most.
pub const BATCH_MAX: usize = 2_000;
