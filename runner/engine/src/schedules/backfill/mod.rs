//! The backfiller: goes round the backfills; `heddle_store::backfill` tells the protocol. How one begins and is controlled:
//! `start.rs`; which instants come next: `search.rs`; the runs for these: `make.rs`.
//!
//! What wakes it is the end of a backfill's run on this node, a control, or a look once in a while. A round makes at
//! most [`MADE_MAX`] runs and looks at no more than [`LOOKED_AT_MAX`](search::LOOKED_AT_MAX) instants, so that several backfills share a node
//! and no transaction grows with a backfill's length; there is no barrier between rounds: the run that ends makes room
//! for the next one at once.

mod make;
mod search;
mod start;

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;

use heddle_domain::backfill::{self, Existing, OnExisting, Verdict};
use heddle_domain::id::RunId;
use heddle_domain::state::RunState;
use heddle_domain::{Chain, Time};
use heddle_store::backfill::{BackfillRound, BackfillRow, CANCELLING, Moved, Occupancy};
use heddle_store::live::NewRun;
use uuid::Uuid;

use super::Schedules;
use crate::EngineError;
use crate::node::Node;
use crate::node::catalog::Group;
use crate::node::service::{Needs, Service};
use crate::node::signals::Signal;
use search::search;
pub(super) use search::{SOURCES_MAX, Source};
pub use start::Started;

/// How often to look without being told.
const POLL_EVERY: Duration = Duration::from_millis(500);

/// For so long after all backfills were read only those are that a signal names.
const NAMED_FOR: TimeDelta = TimeDelta::milliseconds(500);

/// How long to wait for another node's round.
const BUSY_FOR: Duration = Duration::from_millis(5);

/// How many runs one round makes.
const MADE_MAX: usize = 500;

/// How many open backfills one look takes in hand.
const OPEN_MAX: i64 = 1_000;

/// What a round came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundEnd {
    /// There is more to do at once.
    More,
    /// Another node is at it.
    Busy,
    /// Something else has to happen first.
    Idle,
}

/// Goes round the backfills.
pub(crate) struct Backfiller {
    schedules: Arc<Schedules>,
    /// When all were looked at last.
    looked: Option<Time>,
    /// There is more to do for some, of which nobody will tell.
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
        // The end of a run names its backfill; other signals name none, and then all are read.
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

fn verdict(row_made: Uuid, on_existing: OnExisting, occupancy: &Occupancy) -> Verdict<RunId> {
    // Ids are UUIDv7: what was made before the backfill has a smaller one.
    let existing = occupancy.last.map(|(run, state, _)| Existing {
        run,
        state,
        earlier: run.0 < row_made,
    });
    backfill::decide(on_existing, existing)
}

impl Schedules {
    /// One round at each backfill that has something to do.
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
                // One that cannot go on holds no other up.
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), backfill = %id, "cannot continue a backfill; trying again");
                }
            }
        }
        Ok(came_to)
    }

    async fn backfill_round(self: &Arc<Self>, id: Uuid) -> Result<RoundEnd, EngineError> {
        if self.backfill_step(id).await? {
            return Ok(RoundEnd::Idle);
        }
        let Some(round) = self.node.store.backfill_round(id).await? else {
            return Ok(RoundEnd::Busy);
        };
        let row = &round.row;
        if row.state == CANCELLING {
            drop(round);
            self.cancel_backfill(id).await?;
            return Ok(RoundEnd::Idle);
        }
        let mut moved = Moved::of(row);
        let group = match self.node.catalog.group(&row.group_name).await? {
            Some(group) if group.id == row.group_id && !row.group_deleted => group,
            _ => {
                moved.note = Some("the group was deleted".into());
                moved.ended = Some(RunState::Cancelled.number());
                round.commit(&moved, self.node.now()).await?;
                return Ok(RoundEnd::Idle);
            }
        };
        let held = (!group.enabled && !row.force).then(|| "the group is disabled".to_owned());
        if held.is_some() {
            if held != row.note {
                moved.note = held;
                round.commit(&moved, self.node.now()).await?;
            }
            return Ok(RoundEnd::Idle);
        }
        moved.note = None;
        self.backfill_runs(round, &group, moved).await
    }

    /// The runs of a round: as many of the next instants as there is room for.
    async fn backfill_runs(
        self: &Arc<Self>,
        mut round: BackfillRound,
        group: &Group,
        mut moved: Moved,
    ) -> Result<RoundEnd, EngineError> {
        let row = round.row.clone();
        let active = round.active().await?;
        // Behind the row's lock and the count: what is made now is made after the end of whatever has made room for it.
        let now = self.node.now();
        let room = usize::try_from(i64::from(row.max_active) - active)
            .unwrap_or(0)
            .min(MADE_MAX);
        if room == 0 {
            return Ok(RoundEnd::Idle);
        }
        let source = self.backfill_source(&row).await?;
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
