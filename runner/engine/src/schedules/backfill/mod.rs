//! The backfiller does a round of each backfill; `heddle_store::backfill` describes the protocol. How one begins and is
//! controlled: `start.rs`; which instants are next: `search.rs`; the runs for these: `make.rs`.
//!
//! It ticks when a backfill's run ends on this node, after a control, and periodically. A round creates at most
//! [`MADE_MAX`] runs and checks at most [`LOOKED_AT_MAX`](search::LOOKED_AT_MAX) instants, so that several backfills
//! share a node and no transaction grows with the length of a backfill. There is no barrier between rounds: when a run
//! ends, the next one can be created at once.

mod make;
mod search;
mod start;

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;

use heddle_domain::backfill::{self, Existing, OnExisting, Verdict};
use heddle_domain::id::RunId;
use heddle_domain::{Chain, Time};
use heddle_store::backfill::{BackfillAction, BackfillRound, BackfillRow, CANCELLING, Moved, Occupancy};
use heddle_store::change::By;
use heddle_store::live::NewRun;
use uuid::Uuid;

use super::Schedules;
use crate::EngineError;
use crate::node::catalog::Group;
use crate::node::group_commit::is_passing;
use crate::node::service::{Needs, Service};
use crate::node::signals::Signal;
use crate::node::{Node, seldom};
use search::search;
pub(super) use search::{SOURCES_MAX, Source};
pub use start::Started;

/// How often to check without a signal.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// For this long after all backfills were read, only those are read that a signal names.
const NAMED_FOR: TimeDelta = TimeDelta::milliseconds(500);

/// The wait for another node's round.
const BUSY_FOR: Duration = Duration::from_millis(5);

/// How many runs one round creates.
const MADE_MAX: usize = 500;

/// How many open backfills one tick handles.
const OPEN_MAX: i64 = 1_000;

/// The result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundEnd {
    /// There is more to do at once.
    More,
    /// Another node is doing a round.
    Busy,
    /// Something else has to happen first.
    Idle,
}

/// Does the rounds of backfills.
pub(crate) struct Backfiller {
    schedules: Arc<Schedules>,
    /// When all were last read.
    looked: Option<Time>,
    /// Some have more to do, and no signal comes for that.
    more: bool,
}

impl Backfiller {
    pub(crate) fn of(schedules: Arc<Schedules>) -> Self {
        Self {
            schedules,
            looked: None,
            more: false,
        }
    }
}

impl Service for Backfiller {
    const FAILED: &'static str = "cannot continue backfills; trying again";
    const NEEDS: Needs = Needs::Active;
    const AGAIN_AFTER: Duration = POLL_EVERY;
    const WOKEN_BY: Option<Signal> = Some(Signal::Backfills);

    fn node(&self) -> &Arc<Node> {
        &self.schedules.node
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        let moved = self.schedules.node.signals.take_backfills();
        // The end of a run names its backfill. Other signals name none, and then all are read.
        let lately = self.looked.is_some_and(|looked| now - looked < NAMED_FOR);
        let ended = if lately && !self.more && !moved.others && !moved.named.is_empty() {
            self.schedules.backfill_rounds(moved.named).await?
        } else {
            self.looked = Some(now);
            self.schedules.backfill_look().await?
        };
        self.more = ended == RoundEnd::More;
        Ok(match ended {
            RoundEnd::More => Duration::ZERO,
            RoundEnd::Busy => BUSY_FOR,
            RoundEnd::Idle => POLL_EVERY,
        })
    }
}

fn log_failure(backfill: Uuid, error: &EngineError) {
    let error_chain = Chain(error);
    let due = match is_passing(error) {
        true => seldom::line_due("backfill"),
        false => Some(0),
    };
    match due {
        Some(omitted) => tracing::warn!(error = %error_chain, %backfill, omitted, "cannot continue a backfill; trying \
            again"),
        None => tracing::debug!(error = %error_chain, %backfill, "cannot continue a backfill; trying again"),
    }
}

fn verdict(row_made: Uuid, on_existing: OnExisting, occupancy: &Occupancy) -> Verdict<RunId> {
    // Ids are UUIDv7: a run that was created before the backfill has a smaller one.
    let existing = occupancy.last.map(|(run, state, _)| Existing {
        run,
        state,
        earlier: run.0 < row_made,
    });
    backfill::decide(on_existing, existing)
}

impl Schedules {
    /// One round of each backfill that has something to do.
    async fn backfill_look(self: &Arc<Self>) -> Result<RoundEnd, EngineError> {
        let open = self.node.store.open_backfills(OPEN_MAX).await?;
        self.backfill_rounds(open).await
    }

    async fn backfill_rounds(self: &Arc<Self>, ids: impl IntoIterator<Item = Uuid>) -> Result<RoundEnd, EngineError> {
        let mut came_to = RoundEnd::Idle;
        for id in ids {
            match self.backfill_round(id).await {
                Ok(RoundEnd::Idle) => {}
                Ok(RoundEnd::More) => came_to = RoundEnd::More,
                Ok(RoundEnd::Busy) => {
                    if came_to == RoundEnd::Idle {
                        came_to = RoundEnd::Busy;
                    }
                }
                // An error in one backfill must not delay the others.
                Err(error) => {
                    log_failure(id, &error);
                }
            }
        }
        Ok(came_to)
    }

    async fn backfill_round(self: &Arc<Self>, id: Uuid) -> Result<RoundEnd, EngineError> {
        if self.backfill_step(id).await? {
            return Ok(RoundEnd::Idle);
        }
        let generation = self.node.catalog.generation();
        let Some(round) = self.node.store.backfill_round(id).await? else {
            return Ok(RoundEnd::Busy);
        };
        let row = &round.row;
        if row.state == CANCELLING {
            drop(round);
            self.cancel_backfill(id).await?;
            return Ok(RoundEnd::Idle);
        }
        if row.group_deleted {
            drop(round);
            // Runs of dependants go on otherwise. If somebody else was faster, there is nothing to change.
            let (actor, at) = ("backfill", self.node.now());
            let (by, note) = (By { actor, at }, Some("the group was deleted"));
            let cancel = BackfillAction::Cancel;
            self.node.store.change_backfill(by, id, cancel, note).await?;
            self.cancel_backfill(id).await?;
            return Ok(RoundEnd::Idle);
        }
        let mut moved = Moved::of(row);
        let group = match self.node.catalog.group(&row.group_name).await? {
            Some(group) if group.id == row.group_id => group,
            // The group lives, but this node still knows another one of this name, or it was deleted since the row was
            // read. The next round knows more.
            _ => return Ok(RoundEnd::Idle),
        };
        let blocked = (!group.enabled && !row.force).then(|| "the group is disabled".to_owned());
        if blocked.is_some() {
            if blocked != row.note {
                moved.note = blocked;
                round.commit(&moved, self.node.now()).await?;
            }
            return Ok(RoundEnd::Idle);
        }
        moved.note = None;
        self.backfill_runs(round, &group, moved, generation).await
    }

    /// Creates the runs of a round, whose row was read in this generation: as many as the backfill may have active.
    async fn backfill_runs(
        self: &Arc<Self>,
        mut round: BackfillRound,
        group: &Group,
        mut moved: Moved,
        generation: u64,
    ) -> Result<RoundEnd, EngineError> {
        let row = round.row.clone();
        let active = round.active().await?;
        // Read after the row's lock and the count: these runs are created after the end of the run that made room for
        // them.
        let now = self.node.now();
        let room = usize::try_from(i64::from(row.max_active) - active)
            .unwrap_or(0)
            .min(MADE_MAX);
        if room == 0 {
            return Ok(RoundEnd::Idle);
        }
        // What this node knows of the group may be older than a stop of it, whose cancels would not find these runs. The next
        // round knows it, and says so.
        if round.is_closed().await? {
            return Ok(RoundEnd::Idle);
        }
        let source = self.backfill_source(&row, generation).await?;
        let found = search(&mut round, &row, &source, room, now, &mut moved).await?;
        if found.make.is_empty() {
            if found.exhausted && active == 0 {
                moved.ended = Some(backfill::ended(&round.counts().await?).number());
                self.sources.remove(&row.id);
            } else if moved.skipped == 0 && moved.position == row.position && moved.note == row.note {
                return Ok(RoundEnd::Idle);
            }
            round.commit(&moved, now).await?;
            return Ok(if found.exhausted {
                RoundEnd::Idle
            } else {
                RoundEnd::More
            });
        }
        let made = self
            .make_runs(&mut round, &row, group, &source, (found.make, &moved), now)
            .await?;
        round.commit_made().await?;
        let count = made.runs.len();
        if row.max_active == 1
            && made.runs.iter().all(NewRun::is_plain)
            && let Some(ahead) = source.ahead.lock().as_mut()
        {
            ahead.left = Some(Arc::new(BackfillRow {
                position: moved.position,
                catching_up: moved.catching_up,
                made: row.made + count as i64,
                ..row
            }));
        }
        self.runs
            .created(made.runs.into_iter().zip(made.contexts), &made.created);
        Ok(if found.exhausted || count == room {
            RoundEnd::Idle
        } else {
            RoundEnd::More
        })
    }
}
