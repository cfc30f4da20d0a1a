//! Which instants of a backfill are next.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::backfill::{Grid, Order, Verdict};
use heddle_domain::{Span, Time};
use heddle_store::backfill::{BackfillRound, BackfillRow, Moved, Occupancy};
use parking_lot::Mutex;
use uuid::Uuid;

use super::{Schedules, verdict};
use crate::EngineError;
use crate::node::clock::NodeClock;

/// How many instants one statement looks up.
const CHUNK_MAX: usize = 1_000;

/// The minimum number of instants that a round looks up.
const AHEAD_MIN: usize = 64;

/// For how long an instant that was found free counts as free.
const AHEAD_FOR: Duration = Duration::from_millis(500);

/// How many instants one round checks.
pub(super) const LOOKED_AT_MAX: usize = 10_000;

/// For how many backfills a node remembers the source of their instants.
pub(in crate::schedules) const SOURCES_MAX: usize = 1_000;

/// The source of a backfill's instants.
#[derive(Debug)]
pub(crate) struct Source {
    group_id: i64,
    pub(super) grid: Grid,
    pub(super) ahead: Mutex<Option<Ahead>>,
    pub(super) clock: Arc<NodeClock>,
}

impl Source {
    /// The first instant of a group from `from` to `to` that its backfill names, whatever the backfill's own range.
    pub(in crate::schedules) fn first(&self, group: i64, from: Time, to: Time) -> Option<Time> {
        (self.group_id == group)
            .then(|| self.grid.instants(from, to, Order::Asc).next())
            .flatten()
    }
}

/// Free instants that the last round found, and for which it created no run because enough runs were active. A round looks
/// up many instants at once: if a backfill has few active runs, looking them up one by one would cost more than the runs.
///
/// They count as free for [`AHEAD_FOR`]. If somebody registers one meanwhile, [`BackfillRound::register`] notices that.
/// Instants that are not free are always read again.
#[derive(Debug)]
pub(super) struct Ahead {
    /// The instants that follow directly after this position.
    pub(super) position: Option<Time>,
    catching_up: bool,
    /// When the instants were looked up, by [`NodeClock::elapsed`].
    looked_at: Duration,
    pub(super) free: VecDeque<Occupancy>,
    /// The row of the backfill after the round, if it has one run at a time and nothing but these runs is to be
    /// written.
    pub(super) left: Option<Arc<BackfillRow>>,
}

impl Ahead {
    fn continues(&self, moved: &Moved, elapsed: Duration) -> bool {
        (self.position, self.catching_up) == (moved.position, moved.catching_up) && self.is_fresh(elapsed)
    }

    pub(super) fn is_fresh(&self, elapsed: Duration) -> bool {
        elapsed.saturating_sub(self.looked_at) < AHEAD_FOR
    }
}

impl Schedules {
    /// Its instants, computed from the revision for which it was created; cached until it has ended, unless something was
    /// forgotten since `generation`, in which the row was read: it may be one that the server does not have any more.
    pub(crate) async fn backfill_source(&self, row: &BackfillRow, generation: u64) -> Result<Arc<Source>, EngineError> {
        if let Some(source) = self.sources.get(&row.id) {
            return Ok(source);
        }
        let grid = match row.step_micros {
            Some(step) => Grid::Step {
                from: row.from_at,
                step: Span::from_micros(step.unsigned_abs()),
            },
            None => Grid::Calendar(self.node.catalog.revision(row.calendar_revision_id).await?.past.clone()),
        };
        let source = Arc::new(Source {
            group_id: row.group_id,
            grid,
            ahead: Mutex::default(),
            clock: self.node.clock.clone(),
        });
        self.node
            .catalog
            .keep(&self.sources, generation, row.id, source.clone());
        Ok(source)
    }

    /// The source of the backfill with this id, for its runs and those of dependants that have not ended. `None`: the
    /// backfill does not exist any more.
    pub(in crate::schedules) async fn source_of(&self, id: Uuid) -> Result<Option<Arc<Source>>, EngineError> {
        if let Some(source) = self.sources.get(&id) {
            return Ok(Some(source));
        }
        let generation = self.node.catalog.generation();
        match self.node.store.backfill(id).await? {
            Some(row) => Ok(Some(self.backfill_source(&row, generation).await?)),
            None => Ok(None),
        }
    }
}

/// The result of a round's search.
pub(super) struct Found {
    /// Instants that get runs.
    pub(super) make: Vec<Occupancy>,
    /// There are no more at present.
    pub(super) exhausted: bool,
}

/// Searches for up to `room` instants that get runs, and advances the position.
pub(super) async fn search(
    round: &mut BackfillRound,
    row: &BackfillRow,
    source: &Source,
    room: usize,
    now: Time,
    moved: &mut Moved,
) -> Result<Found, EngineError> {
    let on_existing = row.on_existing()?;
    let mut found = Found {
        make: Vec::with_capacity(room),
        exhausted: false,
    };
    let known = source.ahead.lock().take();
    let mut ahead = known.filter(|ahead| ahead.continues(moved, source.clock.elapsed()));
    if let Some(ahead) = &mut ahead {
        let known = ahead.free.len().min(room);
        found.make.extend(ahead.free.drain(..known));
        moved.position = found.make.last().map_or(moved.position, |last| Some(last.at));
    }
    let mut looked_at = 0;
    while found.make.len() < room && looked_at < LOOKED_AT_MAX {
        let (from, to, order) = match (row.descending, moved.catching_up) {
            (false, _) => (row.from_at, row.to_at.unwrap_or(now), Order::Asc),
            (true, false) => (row.from_at, row.started_to, Order::Desc),
            (true, true) => (row.from_at, now, Order::Asc),
        };
        // It looks up as many instants as there is room for runs, and more with each step if most of them are skipped.
        let chunk = (room - found.make.len()).max(2 * looked_at).clamp(AHEAD_MIN, CHUNK_MAX);
        let instants: Vec<Time> = source.grid.after(moved.position, from, to, order).take(chunk).collect();
        if instants.is_empty() {
            if row.descending && !moved.catching_up && row.to_at.is_none() {
                moved.catching_up = true;
                moved.position = Some(row.started_to);
                continue;
            }
            found.exhausted = true;
            break;
        }
        looked_at += instants.len();
        let since = source.clock.elapsed();
        let mut occupancies = round.occupancies(&instants).await?.into_iter().peekable();
        while let Some(occupancy) = occupancies.next_if(|_| found.make.len() < room) {
            moved.position = Some(occupancy.at);
            match verdict(row.id, on_existing, &occupancy) {
                Verdict::Skip => moved.skipped += 1,
                Verdict::Fill | Verdict::Replace(_) => found.make.push(occupancy),
            }
        }
        ahead = Some(Ahead {
            position: None,
            catching_up: moved.catching_up,
            looked_at: since,
            left: None,
            free: occupancies
                .take_while(|occupancy| occupancy.last.is_none() && occupancy.registered.is_none())
                .collect(),
        });
    }
    if let Some(ahead) = ahead.filter(|ahead| !ahead.free.is_empty()) {
        *source.ahead.lock() = Some(Ahead {
            position: moved.position,
            left: None,
            ..ahead
        });
    }
    Ok(found)
}
