//! The data plane: what is ready, what runs, and how both end.
//!
//! # The story
//!
//! A run is created in one statement: its row in *runs_live* and a row for each task that may start at once, in *ready*
//! for any node, or directly in *running* for the node that took the submission and has free slots. A node moves rows
//! from *ready* to *running* in batches. A row in *running* has the node's lease number, and **whoever deletes that row
//! owns the attempt's outcome**. That is the only fence, and every end uses it: a node that reports (its lease and the
//! attempt's number must match), a cancel, a reaper that took the rows of a dead node.
//!
//! Outcomes gather during a transaction, and the next one records them together: lock the runs, delete the rows in
//! *running*, decide in memory ([`heddle_domain::run::decide`]), insert the history, make successors ready, end runs,
//! claim further task runs.
//!
//! # Order of locks
//!
//! 1. what a transaction is about, skipping what another one has, so that nobody waits for it: rows of *settlements*,
//!    *starts*, *turnstiles*, *timers*, *link_events*, due *schedules*, or the row of a backfill. (A change of a group
//!    waits for *schedules*, a change of a backfill for its row: neither locks a run.) After *link_events* come the
//!    backfills that these are about (advisory, shared), in id order. Whoever cancels one takes it before its row;
//! 2. groups of new runs, and of ended runs that a control may let go on (advisory, shared: `heddle.closed_groups`), in
//!    the order of their numbers. (A deletion of a group takes this lock exclusively, and then waits for rows of *schedules*:
//!    whoever holds one of these waits for no group, but may wait for runs, so groups come before runs. Only an attempt
//!    that enqueues runs asks their groups when its own run is locked.) Those of followers that events call for runs, and of
//!    backfills, are asked here too. Then gates of groups (advisory), in that order
//!    too;
//! 3. advisory locks of dedupe hashes, in order. (A control that reopens runs takes them under the locks of these ended
//!    runs, for which no holder of a hash waits.);
//! 4. rows of *runs_live*, in id order; then, by controls and deletions, rows of *runs_done*, in id order;
//! 5. rows of *ready_pooled*, then of *running*, *ready*, *timers* of these runs;
//! 6. for new runs, rows of *run_keys*, then of *run_instants*, each statement in order; of sub-runs, then the parents'
//!    attempts in *running*. Only the scheduler locks runs after this, in id order: it keeps those that its schedules
//!    await from ending (KEY SHARE);
//! 7. rows of *schedules* that await runs which end, in the order of group and name;
//! 8. rows of *ready* that are claimed, skipping locked ones: always last.
//!
//! The effects of scripts lock rows of *script_state* under the locks of the runs, after 5: those of an attempt in the order of
//! their keys (`effects.rs`). Attempts of several runs that share a transaction come in the order of the runs: if another
//! transaction has the same keys in another order, one of the two is repeated.
//!
//! A clear locks the *offers* of its task runs, in id order, under the locks of the runs (`dispatch/forgotten.rs`). Whoever
//! has locked an offer waits for no run.
//!
//! The inbox takes *timers* before it locks their runs, so transactions that have locked a run skip locked timers too
//! (`timers.rs`).
//!
//! Last are *notices*, which are only inserted, and *troubles*, in the order of group and task. The transaction that
//! turns notices into notifications (`notify/outbox.rs`) locks *troubles* in that order too, and no run.
//!
//! # Invariants
//!
//! * A task run has at most one row in *ready*, *ready_pooled* and *running* together.
//! * The rows of *ready* and *running* that hold slots of pools define who has them (`pools.rs`). A transaction that
//!   gives out slots locks the pools first, and then waits for nobody except a control that takes back rows of
//!   *ready_pooled*.
//! * A run has a row in *runs_live* or in *runs_done*, never in both.
//! * Every change of a run's progress happens under its row's lock.
//! * No transaction is open while a script runs.

mod abandon;
mod claim;
mod complete;
mod control;
mod create;
mod effects;
mod end;
mod grant;
mod history;
mod inbox;
mod keys;
mod new_run;
mod pools;
mod queue;
mod refuse;
mod report;
mod rows;
mod run_write;
mod timers;
mod unclaimed;
mod write;

pub use claim::{Claimed, RunFacts};
pub use complete::{Completion, EndedAttempt, Locked, LockedRun};
pub use control::{Interrupted, LiveRun, NewOverride};
pub(crate) use create::create_in;
pub use effects::Effect;
pub use end::SingleTaskEnd;
pub use grant::{Grant, Room};
pub(crate) use history::insert_logs_in;
pub use inbox::{ActiveRun, AtGate, Gate, Inbox, LostAttempt, PassedOver, Settlement, SqlStart, Take, Taken};
pub use new_run::{Audited, Created, GroupNeed, NewRun};
pub use queue::{
    ClaimKey, ClaimStatus, ClaimTerms, ExpiredClaim, Overdue, QueueClaimed, QueueClaims, QueueRow, QueueTarget,
};
pub(crate) use refuse::closed_groups;
pub use report::{ClaimReport, ReportLine};
pub use rows::{AttemptRow, LogRow, ReadyRow};
pub use run_write::RunWrite;
pub use timers::Due;
pub use unclaimed::Unclaimed;
pub use write::Written;

/// How many rows one transaction of the data plane moves at most.
pub const BATCH_MAX: usize = 2_000;
