//! The backfiller: goes round the backfills; `heddle_store::backfill` tells the protocol.
//!
//! What wakes it is the end of a backfill's run on this node, a control, or a look once in a while. A round makes at
//! most [`MADE_MAX`] runs and looks at no more than [`LOOKED_AT_MAX`] instants, so that several backfills share a node
//! and no transaction grows with a backfill's length; there is no barrier between rounds: the run that ends makes room
//! for the next one at once.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;

use heddle_domain::Chain;
use heddle_domain::backfill::{self, BackfillSpec, Checked, Existing, Grid, OnExisting, Order, Scripts, Verdict};
use heddle_domain::id::RunId;
use heddle_domain::spec::SubmissionSpec;
use heddle_domain::state::{RunState, Trigger};
use heddle_domain::{Span, Time};
use heddle_store::backfill::{
    BackfillAction, BackfillChange, BackfillRound, BackfillRow, CANCELLING, Moved, NewBackfill, Occupancy,
};
use heddle_store::change::By;
use heddle_store::live::{Created, NewRun};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::Schedules;
use crate::node::Node;
use crate::node::catalog::{Group, Resolution, Revision};
use crate::node::service::{Needs, Service};
use crate::node::short_ways::ShortWay;
use crate::node::signals::Signal;
use crate::runs::control::{BulkAction, ControlError};
use crate::runs::submit::Layout;
use crate::{EngineError, RunContext, Submission, SubmitError};

/// How often to look without being told.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// After so long without a look at all backfills one is due, whatever is told of single ones.
const TURNS_FOR: TimeDelta = TimeDelta::milliseconds(500);

/// How long to wait for another node's round.
const BUSY_FOR: Duration = Duration::from_millis(5);

/// How many runs one round makes.
const MADE_MAX: usize = 500;

/// How many instants one statement looks up.
const CHUNK_MAX: usize = 1_000;

/// How many instants a round looks up at least.
const AHEAD_MIN: usize = 64;

/// For how long an instant that was found free counts as free.
const AHEAD_FOR: Duration = Duration::from_millis(500);

/// How many instants one round looks at.
const LOOKED_AT_MAX: usize = 10_000;

/// How many open backfills one look takes in hand.
const OPEN_MAX: i64 = 1_000;

/// How many runs of a cancelled backfill one look cancels, and how many at once.
const CANCELLED_MAX: i64 = 10_000;

/// Of how many backfills a node remembers where their instants come from.
pub(super) const SOURCES_MAX: usize = 1_000;

/// What came of asking for a backfill.
#[derive(Clone, Debug)]
pub enum Started {
    /// A dry run: these instants would get a run.
    Planned(Vec<Time>),
    /// It goes on under this id.
    Made(Uuid),
}

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

/// Where a backfill's instants come from.
#[derive(Debug)]
pub(super) struct Source {
    grid: Grid,
    ahead: Mutex<Option<Ahead>>,
}

/// Instants that the last round found free beyond what it had room for. With little room, looking them up one by one
/// costs more than the runs.
///
/// That nothing stands there is known for [`AHEAD_FOR`]; who registers one of them meanwhile is noticed all the same,
/// by [`BackfillRound::register`]. Instants where something stands are always looked at afresh.
#[derive(Debug)]
struct Ahead {
    /// They come right behind this position.
    position: Option<Time>,
    catching_up: bool,
    looked_at: tokio::time::Instant,
    free: VecDeque<Occupancy>,
    /// How the round left the backfill, if its runs follow one another and nothing but themselves is to be written.
    left: Option<Arc<BackfillRow>>,
}

impl Ahead {
    fn continues(&self, moved: &Moved) -> bool {
        (self.position, self.catching_up) == (moved.position, moved.catching_up) && self.looked_at.elapsed() < AHEAD_FOR
    }
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
    const WOKEN_BY: Option<Signal> = Some(Signal::Backfills);

    fn node(&self) -> &Arc<Node> {
        &self.schedules.node
    }

    fn again_after(&self) -> Duration {
        LOOK_EVERY
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        let moved = self.schedules.node.signals.take_backfills();
        // The end of a run says whose turn it may be; whatever else woke it does not, and nothing may be forgotten.
        let lately = self.looked.is_some_and(|looked| now - looked < TURNS_FOR);
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
            RoundEnd::Idle => LOOK_EVERY,
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

/// A backfill of these instants as a row; without an end it goes on with what comes due, `to` is up to where it was counted.
fn row_of(id: Uuid, group: &Group, spec: &BackfillSpec, checked: &Checked, to: Time, expected: u64) -> NewBackfill {
    NewBackfill {
        id,
        group_id: group.id,
        calendar_revision_id: group.revision.id,
        from: checked.from,
        to: checked.to,
        step_micros: spec.step.map(|step| step.micros() as i64),
        descending: spec.order == Order::Desc,
        max_active: spec.max_active as i32,
        on_existing: spec.on_existing.number(),
        include_downstream: spec.include_downstream,
        pinned: spec.scripts == Scripts::Pinned,
        force: spec.force,
        priority: checked.priority,
        params: serde_json::to_string(&spec.params).unwrap_or_else(|_| "{}".into()),
        started_to: to,
        expected: expected as i64,
    }
}

impl Schedules {
    /// Starts a backfill, or lists what it would do.
    pub(crate) async fn start_backfill(
        &self,
        name: &str,
        spec: BackfillSpec,
        asked: &Value,
        actor: &str,
    ) -> Result<Started, SubmitError> {
        let group = self
            .node
            .catalog
            .group(name)
            .await?
            .ok_or_else(|| SubmitError::UnknownGroup(name.to_owned()))?;
        let plan = &group.revision.plan;
        if !plan.spec.history {
            return Err(SubmitError::Refused(format!(
                "group `{name}` does not allow backfills; set `history: true` in its spec"
            )));
        }
        let given = SubmissionSpec {
            params: spec.params.clone(),
            force: true,
            ..SubmissionSpec::default()
        };
        self.runs.layout(Submission::manual(name, given)).await?;
        let calendar = group.revision.calendar.clone();
        let (zone, priority) = (plan.zone, plan.spec.priority);
        let now = self.node.now();
        let counted = spec.clone();
        // A million instants of a cron expression take a while to count: not on the threads that answer requests.
        let checked = tokio::task::spawn_blocking(move || counted.check(calendar, zone, priority, now))
            .await
            .map_err(|error| EngineError::Unreadable(error.to_string()))??;
        let to = checked.to.unwrap_or(now);
        let id = self.node.new_id(now);
        let left = self
            .left_alone(&group, id, spec.on_existing, (checked.from, to))
            .await?;
        let (grid, from, order, dry_run) = (checked.grid.clone(), checked.from, spec.order, spec.dry_run);
        let (instants, expected) = tokio::task::spawn_blocking(move || {
            if dry_run {
                let instants: Vec<Time> = grid
                    .instants(from, to, order)
                    .take(backfill::INSTANTS_MAX as usize)
                    .filter(|instant| !left.contains(instant))
                    .collect();
                return (instants, 0);
            }
            // A million instants need not be listed to be counted.
            let all = grid.count(from, to).unwrap_or(backfill::INSTANTS_MAX);
            let left = left.iter().filter(|instant| grid.names(**instant)).count() as u64;
            (Vec::new(), all.saturating_sub(left))
        })
        .await
        .map_err(|error| EngineError::Unreadable(error.to_string()))?;
        if spec.dry_run {
            return Ok(Started::Planned(instants));
        }
        if !group.enabled && !spec.force {
            return Err(SubmitError::Disabled(name.to_owned()));
        }
        let new = row_of(id, &group, &spec, &checked, to, expected);
        self.node
            .store
            .insert_backfill(By { actor, at: now }, &new, asked)
            .await
            .map_err(EngineError::Store)?;
        self.node.signals.raise_backfills([id]);
        Ok(Started::Made(id))
    }

    /// Pauses, resumes or cancels a backfill; the answer comes after it is committed.
    pub(crate) async fn change_backfill(
        self: &Arc<Self>,
        id: Uuid,
        action: BackfillAction,
        actor: &str,
    ) -> Result<(), ControlError> {
        let by = By {
            actor,
            at: self.node.now(),
        };
        match self.node.store.change_backfill(by, id, action).await? {
            BackfillChange::Missing => return Err(ControlError::NotFound("backfill")),
            BackfillChange::Refused(state) => {
                return Err(ControlError::Refused(format!(
                    "the backfill is {state}, so it cannot {}",
                    action.as_str()
                )));
            }
            BackfillChange::Done => {}
        }
        if action == BackfillAction::Cancel {
            self.cancel_backfill(id).await?;
        }
        self.node.signals.raise_backfills([id]);
        Ok(())
    }
}

impl Schedules {
    /// The instants that stand as they are: what a backfill passes over.
    async fn left_alone(
        &self,
        group: &Group,
        id: Uuid,
        on_existing: OnExisting,
        (from, to): (Time, Time),
    ) -> Result<HashSet<Time>, EngineError> {
        let occupancies = self.node.store.occupancies_between(group.id, from, to).await?;
        Ok(occupancies
            .iter()
            .filter(|occupancy| verdict(id, on_existing, occupancy) == Verdict::Skip)
            .map(|occupancy| occupancy.at)
            .collect())
    }

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
        let Some(mut round) = self.node.store.backfill_round(id).await? else {
            return Ok(RoundEnd::Busy);
        };
        let row = round.row.clone();
        if row.state == CANCELLING {
            drop(round);
            self.cancel_backfill(id).await?;
            return Ok(RoundEnd::Idle);
        }
        let mut moved = Moved::of(&row);
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
                self.sources.remove(&id);
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
            .make_runs(&mut round, &row, &group, &source, (found.make, &moved), now)
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

    /// The round of a backfill whose runs follow one another, at an instant that the last round found free: one statement.
    /// `false`: there is no such instant, or something is not as the last round left it, and nothing was done.
    async fn backfill_step(self: &Arc<Self>, id: Uuid) -> Result<bool, EngineError> {
        let Some(source) = self
            .sources
            .get(&id)
            .filter(|_| self.node.short_ways.take(ShortWay::BackfillStep))
        else {
            return Ok(false);
        };
        let known = source.ahead.lock().take();
        let Some(mut ahead) = known.filter(|ahead| ahead.looked_at.elapsed() < AHEAD_FOR) else {
            return Ok(false);
        };
        let (Some(row), Some(next)) = (ahead.left.clone(), ahead.free.front().map(|next| next.at)) else {
            *source.ahead.lock() = Some(ahead);
            return Ok(false);
        };
        let group = match self.node.catalog.group(&row.group_name).await? {
            Some(group) if group.id == row.group_id && (group.enabled || row.force) => group,
            _ => return Ok(false),
        };
        let now = self.node.now();
        let labels = labels_of(&group.revision);
        let (run, mut context) = self.lay_out_instant(
            &row,
            &group.revision,
            &group.resolution,
            (&source.grid, next),
            labels,
            now,
        );
        if !run.is_plain() {
            return Ok(false);
        }
        let mut runs = vec![run];
        self.runs.hand_out(&mut runs);
        let made = self.node.store.step_backfill(&row, &runs[0], self.node.lease()).await?;
        let Some((handed, at)) = made else {
            return Ok(false);
        };
        if let Some(laid_out) = Arc::get_mut(&mut context) {
            laid_out.facts.created_at = at;
        }
        ahead.free.pop_front();
        ahead.position = Some(next);
        ahead.left = Some(Arc::new(BackfillRow {
            position: Some(next),
            made: row.made + 1,
            ..BackfillRow::clone(&row)
        }));
        *source.ahead.lock() = Some(ahead);
        self.runs
            .created(runs.into_iter().zip([context]), &[Created::Made { handed, at }]);
        Ok(true)
    }

    /// A run for an instant of a backfill. The round registers it, since it may take an instant over from another run.
    fn lay_out_instant(
        &self,
        row: &BackfillRow,
        revision: &Arc<Revision>,
        resolution: &Arc<Resolution>,
        (grid, at): (&Grid, Time),
        labels: Option<Value>,
        now: Time,
    ) -> (NewRun, Arc<RunContext>) {
        let layout = Layout {
            trigger: Trigger::Backfill,
            priority: Some(row.priority),
            logical_time: at,
            interval: grid.data_interval(at),
            params: row.params.clone(),
            task_params: None,
            labels,
            key: None,
            dedupe: None,
            callback: None,
            source: Some(row.id),
            parent: None,
        };
        let (mut run, context) = self.runs.lay_out(revision, resolution, layout, now);
        run.instant = false;
        (run, context)
    }

    /// Its instants, reckoned from the revision that it was made for; remembered while it goes on.
    async fn backfill_source(&self, row: &BackfillRow) -> Result<Arc<Source>, EngineError> {
        if let Some(source) = self.sources.get(&row.id) {
            return Ok(source);
        }
        let grid = match row.step_micros {
            Some(step) => Grid::Step {
                from: row.from_at,
                step: Span::from_micros(step.unsigned_abs()),
            },
            None => Grid::Calendar(
                self.node
                    .catalog
                    .revision(row.calendar_revision_id)
                    .await?
                    .calendar
                    .clone(),
            ),
        };
        let source = Arc::new(Source {
            grid,
            ahead: Mutex::default(),
        });
        self.sources.insert(row.id, source.clone());
        Ok(source)
    }

    async fn make_runs(
        &self,
        round: &mut BackfillRound,
        row: &BackfillRow,
        group: &Group,
        source: &Source,
        (make, moved): (Vec<Occupancy>, &Moved),
        now: Time,
    ) -> Result<Made, EngineError> {
        let revision = &group.revision;
        let labels = labels_of(revision);
        let mut pinned: HashMap<i64, Arc<Resolution>> = HashMap::new();
        let mut laid_out = Vec::with_capacity(make.len());
        for occupancy in &make {
            let resolution = match occupancy.last {
                Some((_, _, Some(replaced))) if row.pinned => match pinned.entry(replaced) {
                    Entry::Occupied(known) => known.get().clone(),
                    Entry::Vacant(free) => free
                        .insert(self.node.catalog.resolve_like(revision, replaced).await?)
                        .clone(),
                },
                _ => group.resolution.clone(),
            };
            laid_out.push(self.lay_out_instant(
                row,
                revision,
                &resolution,
                (&source.grid, occupancy.at),
                labels.clone(),
                now,
            ));
        }
        let registrations: Vec<(Time, RunId, Option<Uuid>)> = make
            .iter()
            .zip(&laid_out)
            .map(|(occupancy, (run, _))| (occupancy.at, run.id, occupancy.registered.map(|(run, _)| run)))
            .collect();
        let got: HashSet<RunId> = round.register(&registrations, moved).await?.into_iter().collect();
        laid_out.retain(|(run, _)| got.contains(&run.id));
        let (mut runs, contexts): (Vec<NewRun>, Vec<Arc<RunContext>>) = laid_out.into_iter().unzip();
        self.runs.hand_out(&mut runs);
        let created = round.create(&runs, self.node.lease(), &*self.node.clock).await?;
        if let Some(refused) = created.iter().find(|created| !matches!(created, Created::Made { .. })) {
            return Err(EngineError::Unreadable(format!(
                "a run of backfill {} was not created: {refused:?}",
                row.id
            )));
        }
        Ok(Made {
            runs,
            contexts,
            created,
        })
    }

    /// Cancels what a cancelled backfill has under way; when all of that has ended, so has the backfill.
    async fn cancel_backfill(self: &Arc<Self>, id: Uuid) -> Result<(), EngineError> {
        let runs = self.node.store.live_runs_of_source(id, CANCELLED_MAX).await?;
        // Those that have ended meanwhile are refused: so much the better.
        self.runs.control_all(&runs, &BulkAction::Cancel, "backfill").await?;
        if self.node.store.live_runs_of_source(id, 1).await?.is_empty() {
            self.node.store.end_cancelled_backfill(id, self.node.now()).await?;
        }
        self.sources.remove(&id);
        Ok(())
    }
}

/// What a group's runs are labelled with.
fn labels_of(revision: &Revision) -> Option<Value> {
    let labels = &revision.plan.spec.labels;
    let labels: Map<String, Value> = labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    (!labels.is_empty()).then_some(Value::Object(labels))
}

/// Runs of a round.
struct Made {
    runs: Vec<NewRun>,
    contexts: Vec<Arc<RunContext>>,
    created: Vec<Created>,
}

/// What a round's search found.
struct Found {
    /// Instants to make runs for.
    make: Vec<Occupancy>,
    /// There are no more yet.
    exhausted: bool,
}

/// Looks for up to `room` instants to make runs for, and moves the position along.
async fn search(
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
    let mut ahead = known.filter(|ahead| ahead.continues(moved));
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
        // As many as there is room for; more and more of them where it turns out that most are left alone.
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
        let since = tokio::time::Instant::now();
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
