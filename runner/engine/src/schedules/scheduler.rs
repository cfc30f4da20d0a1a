//! The scheduler creates the runs that schedules call for. `heddle_store::schedule` describes the protocol.
//!
//! Every node fires what is due; there is no leader. One query reads the earliest instant (an index's first entry).
//! Only due schedules are read, decided, and advanced, up to a thousand in one transaction, so the cost of a tick
//! depends on what is due and not on how many schedules there are.
//!
//! The revisions that a firing needs are read a second before it is due ([`LookAhead`]): no cache holds a million
//! groups, and a thousand schedules that are due at one instant would wait for each other's specs to be read.
//!
//! # What a firing does
//!
//! * `cron`, `every`, `daily`: the instants between the cursor and the present, as the misfire rule selects them; the
//!   cursor moves to the present.
//! * `once`: the same. If that creates a run, in time or late, the schedule has disabled itself (`fired_at`). If the
//!   instant was missed and is skipped, the schedule has not fired, and is never due again.
//! * `after`: a run for the instant at which it was due; the schedule then waits for that run's end. No calendar knows its
//!   previous instant, so that is read with the schedule.
//!
//! If several schedules of a group have the same instant, or a backfill has already created its run, *run_instants*
//! detects that: there is one run, and the schedules advance all the same.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::Chain;
use heddle_domain::Time;
use heddle_domain::notify::rules::{Announcements, Notice};
use heddle_domain::schedule::{Kind, Schedule};
use heddle_domain::spec::{Misfire, NotifyEvent};
use heddle_domain::state::Trigger;
use heddle_store::live::{Created, NewRun};
use heddle_store::notice::NewNotices;
use heddle_store::schedule::{DueSchedule, MovedSchedule};
use uuid::Uuid;

use super::Schedules;
use crate::node::Node;
use crate::node::catalog::{Resolution, Revision};
use crate::node::service::{Needs, Service};
use crate::node::signals::Signal;
use crate::runs::change::notices::new_notices;
use crate::runs::create::submit::Layout;
use crate::{EngineError, RunContext};

/// How many schedules one transaction fires.
const BATCH_MAX: usize = 1_000;

/// How many runs one transaction creates; a schedule with more instants continues in the next.
const RUNS_MAX: usize = 2_000;

/// How often to check without a signal.
const POLL_EVERY: Duration = Duration::from_millis(200);

/// The pause before a failed transaction is tried again.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// A schedule whose revision is unreadable to this node is left to others, and checked again after this time.
const UNREADABLE_FOR: TimeDelta = TimeDelta::seconds(60);

/// Fires what is due.
pub(crate) struct Scheduler(pub(crate) Arc<Schedules>);

impl Service for Scheduler {
    const FAILED: &'static str = "cannot fire schedules; trying again";
    const NEEDS: Needs = Needs::Active;
    const AGAIN_AFTER: Duration = AGAIN_AFTER;
    const WOKEN_BY: Option<Signal> = Some(Signal::Schedules);

    fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        self.0.fire_due().await
    }
}

/// How often to look for schedules that wait for a run that has ended, how many at once, and the pause between.
const FREED_EVERY: Duration = Duration::from_secs(60);
const FREED_MAX: i64 = 1_000;
const FREED_AGAIN: Duration = Duration::from_millis(200);

/// Makes schedules due that wait for a run that has ended without them: see `Store::free_schedules`.
pub(crate) struct ScheduleReleaser {
    node: Arc<Node>,
    /// The run after which the round continues.
    from: Uuid,
}

impl ScheduleReleaser {
    pub(crate) fn of(schedules: &Schedules) -> Self {
        Self {
            node: schedules.node.clone(),
            from: Uuid::nil(),
        }
    }
}

impl Service for ScheduleReleaser {
    const FAILED: &'static str = "cannot look for schedules that wait in vain; trying again";
    const NEEDS: Needs = Needs::Active;
    const AGAIN_AFTER: Duration = FREED_EVERY;

    fn node(&self) -> &Arc<Node> {
        &self.node
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        let (freed, next) = self.node.store.free_schedules(self.from, FREED_MAX, now).await?;
        if freed > 0 {
            tracing::info!(
                schedules = freed,
                "schedules waited for runs that have ended; they are counted from those ends now"
            );
        }
        self.from = next.unwrap_or(Uuid::nil());
        Ok(if next.is_some() { FREED_AGAIN } else { FREED_EVERY })
    }
}

/// How far ahead revisions are read, how often, of how many schedules, and how many revisions at once.
const AHEAD: TimeDelta = TimeDelta::milliseconds(1_500);
const AHEAD_EVERY: Duration = Duration::from_millis(250);
const AHEAD_MAX: i64 = 2_000;
const AHEAD_AT_ONCE: usize = 100;

/// Reads the revisions of schedules that are due soon. Nothing depends on it: what it misses is read when it is due.
pub(crate) struct LookAhead {
    node: Arc<Node>,
    known_until: Time,
}

impl LookAhead {
    pub(crate) fn of(schedules: &Schedules) -> Self {
        Self {
            node: schedules.node.clone(),
            known_until: schedules.node.now(),
        }
    }

    async fn read(&self, after: Time, until: Time) -> Result<(), EngineError> {
        let mut ids = self.node.store.revisions_due(after, until, AHEAD_MAX).await?;
        ids.sort_unstable();
        ids.dedup();
        for some in ids.chunks(AHEAD_AT_ONCE) {
            self.node.catalog.current(some).await?;
            // Due schedules go first.
            tokio::task::yield_now().await;
        }
        Ok(())
    }
}

impl Service for LookAhead {
    const FAILED: &'static str = "cannot read revisions of schedules in advance";
    const NEEDS: Needs = Needs::Active;
    const AGAIN_AFTER: Duration = AHEAD_EVERY;

    fn node(&self) -> &Arc<Node> {
        &self.node
    }

    fn first_after(&self) -> Duration {
        AHEAD_EVERY
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        let (after, until) = (self.known_until.clamp(now, now + AHEAD), now + AHEAD);
        match self.read(after, until).await {
            Ok(()) => self.known_until = until,
            Err(error) => tracing::debug!(error = %Chain(&error), "could not read revisions of schedules in advance"),
        }
        Ok(AHEAD_EVERY)
    }
}

/// The runs that a due schedule has to create.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Firing {
    instants: Vec<Time>,
    cursor: Time,
    next: Option<Time>,
    /// It continues when the run of its instant has ended.
    awaits: bool,
    /// It fires now for the only time.
    is_over: bool,
    missed: bool,
}

/// Decides what is due of one schedule: up to `limit` instants.
fn firing(schedule: &Schedule, cursor: Time, due_at: Time, now: Time, limit: usize) -> Firing {
    if schedule.kind() == Kind::After {
        let missed = now - due_at > schedule.grace().chrono();
        let skipped = missed && schedule.misfire() == Misfire::Skip;
        return Firing {
            instants: if skipped { Vec::new() } else { vec![due_at] },
            cursor: now,
            next: schedule.after_run(now).filter(|_| skipped),
            awaits: !skipped,
            is_over: false,
            missed,
        };
    }
    let due = schedule.due(cursor, now, limit);
    let next = schedule.next_after(due.until);
    let fires = !due.instants.is_empty();
    Firing {
        instants: due.instants,
        cursor: due.until,
        next,
        awaits: false,
        is_over: schedule.kind() == Kind::Once && fires && next.is_none(),
        missed: due.missed,
    }
}

/// The runs of a batch, and the new position of each schedule.
#[derive(Default)]
struct Batch {
    runs: Vec<NewRun>,
    contexts: Vec<Arc<RunContext>>,
    /// The index in `runs` of the run of a group for an instant.
    by_instant: HashMap<(i64, Time), usize>,
    moved: Vec<MovedSchedule>,
    /// For each of `moved`: the run that it awaits.
    awaits: Vec<Option<usize>>,
    missed: Missed,
    /// Missed instants, if a rule asks for a notification.
    notices: Vec<NewNotices>,
}

/// The instants of a batch that are later than their grace allows. After an outage these may be all, so they are logged
/// in one line, with the name of the earliest.
#[derive(Debug, Default, PartialEq, Eq)]
struct Missed {
    schedules: usize,
    runs: usize,
    first: Option<(Time, String, String)>,
}

impl Missed {
    fn note(&mut self, due: &DueSchedule, group: &str, runs: usize) {
        self.schedules += 1;
        self.runs += runs;
        if self.first.as_ref().is_none_or(|first| due.due_at < first.0) {
            self.first = Some((due.due_at, group.to_owned(), due.name.clone()));
        }
    }

    fn tell(self) {
        let Some((due_at, group, schedule)) = self.first else {
            return;
        };
        tracing::warn!(
            schedules = self.schedules,
            runs = self.runs,
            %due_at,
            group,
            schedule,
            "instants of schedules were missed; the `misfire` setting of each schedule applies. `due_at`, `group` and \
            `schedule` are the earliest of them"
        );
    }
}

impl Schedules {
    /// Fires all that is due; returns how long nothing will be due.
    async fn fire_due(self: &Arc<Self>) -> Result<Duration, EngineError> {
        loop {
            let (next, now) = self.node.store.next_schedule().await?;
            match next {
                Some(next) if next <= now => self.fire_batch().await?,
                Some(next) => return Ok((next - now).to_std().unwrap_or_default().min(POLL_EVERY)),
                None => return Ok(POLL_EVERY),
            }
            if self.node.stop.is_cancelled() || self.node.is_fenced() {
                return Ok(POLL_EVERY);
            }
        }
    }

    async fn fire_batch(self: &Arc<Self>) -> Result<(), EngineError> {
        let mut completion = self.node.completion("fire_schedules").await?;
        let (due, now) = completion.take_schedules(BATCH_MAX).await?;
        let Some(now) = now else {
            // Another node has them.
            drop(completion);
            tokio::time::sleep(Duration::from_millis(1)).await;
            return Ok(());
        };
        let mut ids: Vec<i64> = due.iter().map(|due| due.revision_id).collect();
        ids.sort_unstable();
        ids.dedup();
        let revisions = self.node.catalog.current(&ids).await?;
        let mut batch = Batch::default();
        for due in due {
            match revisions.get(&due.revision_id) {
                Some((revision, resolution)) => self.plan_firing(&mut batch, due, revision, resolution, now),
                None => batch.postpone(due, now),
            }
        }
        self.runs.hand_out(&mut batch.runs);
        let created = completion.create(&batch.runs).await;
        let created = created.map_err(|error| self.node.catalog.heed(error))?;
        for (moved, awaits) in batch.moved.iter_mut().zip(&batch.awaits) {
            let Some(index) = *awaits else { continue };
            let run = match &created[index] {
                Created::Exists(holder) => *holder,
                _ => batch.runs[index].id,
            };
            moved.awaits = Some(run.0);
        }
        completion.move_schedules(&batch.moved).await?;
        completion.insert_notices(&batch.notices).await?;
        completion.commit().await?;
        batch.missed.tell();
        if !batch.notices.is_empty() {
            self.node.signals.raise(Signal::Notices);
        }
        self.runs.created(batch.runs.into_iter().zip(batch.contexts), &created);
        Ok(())
    }

    fn plan_firing(
        &self,
        batch: &mut Batch,
        due: DueSchedule,
        revision: &Arc<Revision>,
        resolution: &Arc<Resolution>,
        now: Time,
    ) {
        let Some(schedule) = revision.schedules.get(&due.name) else {
            tracing::error!(
                schedule = due.name,
                group = revision.group_name,
                "the revision does not have this schedule"
            );
            batch.postpone(due, now);
            return;
        };
        let limit = RUNS_MAX.saturating_sub(batch.runs.len()).max(1);
        let firing = firing(schedule, due.cursor, due.due_at, now, limit);
        if firing.missed {
            batch.missed.note(&due, &revision.group_name, firing.instants.len());
            if revision.subscriptions.anywhere(NotifyEvent::ScheduleMissed) {
                let announcements = Announcements {
                    notices: vec![Notice::of_run(NotifyEvent::ScheduleMissed)],
                    troubled: Vec::new(),
                };
                batch
                    .notices
                    .push(new_notices(revision, None, announcements, Some(due.name.clone())));
            }
        }
        let mut index = None;
        for instant in firing.instants {
            index = Some(*batch.by_instant.entry((due.group_id, instant)).or_insert_with(|| {
                let interval = revision.calendar.data_interval_from(due.previous, instant);
                let layout = Layout::of_time(Trigger::Schedule, revision, instant, interval);
                let (run, context) = self.runs.lay_out(revision, resolution, layout, now);
                batch.runs.push(run);
                batch.contexts.push(context);
                batch.runs.len() - 1
            }));
        }
        batch.awaits.push(index.filter(|_| firing.awaits));
        batch.moved.push(MovedSchedule {
            group_id: due.group_id,
            name: due.name,
            cursor: firing.cursor,
            next_fire_at: firing.next,
            awaits: None,
            fired_at: firing.is_over.then_some(now),
        });
    }
}

impl Batch {
    fn postpone(&mut self, due: DueSchedule, now: Time) {
        self.awaits.push(None);
        self.moved.push(MovedSchedule {
            group_id: due.group_id,
            name: due.name,
            cursor: due.cursor,
            next_fire_at: Some(now + UNREADABLE_FOR),
            awaits: None,
            fired_at: None,
        });
    }
}

#[cfg(test)]
mod tests {
    use heddle_domain::spec::ScheduleSpec;
    use serde_json::json;

    use super::*;

    fn at(text: &str) -> Time {
        text.parse().unwrap()
    }

    fn check(spec: serde_json::Value, due_at: &str, now: &str, expect: Firing) {
        let spec: ScheduleSpec = serde_json::from_value(spec).unwrap();
        let created = at("2026-03-01T00:00:00Z");
        let schedule = Schedule::compile(
            &spec,
            heddle_domain::schedule::local::parse_zone("UTC").unwrap(),
            created,
        )
        .unwrap();
        assert_eq!(firing(&schedule, created, at(due_at), at(now), 100), expect);
    }

    #[test]
    fn a_fixed_delay_waits_for_its_run() {
        let now = "2026-03-01T00:00:10.5Z";
        check(
            json!({"after": "10s"}),
            "2026-03-01T00:00:10Z",
            now,
            Firing {
                instants: vec![at("2026-03-01T00:00:10Z")],
                cursor: at(now),
                next: None,
                awaits: true,
                is_over: false,
                missed: false,
            },
        );
    }

    #[test]
    fn a_fixed_delay_that_was_missed_and_is_skipped_counts_from_now() {
        let now = "2026-03-01T01:00:00Z";
        check(
            json!({"after": "10s", "misfire": "skip"}),
            "2026-03-01T00:00:10Z",
            now,
            Firing {
                instants: vec![],
                cursor: at(now),
                next: Some(at("2026-03-01T01:00:10Z")),
                awaits: false,
                is_over: false,
                missed: true,
            },
        );
    }

    #[test]
    fn once_is_over() {
        let now = "2026-03-01T00:01:00Z";
        check(
            json!({"once": {"delay": "1m"}}),
            "2026-03-01T00:01:00Z",
            now,
            Firing {
                instants: vec![at("2026-03-01T00:01:00Z")],
                cursor: at(now),
                next: None,
                awaits: false,
                is_over: true,
                missed: false,
            },
        );
    }

    #[test]
    fn once_that_was_missed_and_is_skipped_has_not_fired() {
        let now = "2026-03-01T01:00:00Z";
        check(
            json!({"once": {"delay": "1m"}, "misfire": "skip", "grace": "1m"}),
            "2026-03-01T00:01:00Z",
            now,
            Firing {
                instants: vec![],
                cursor: at(now),
                next: None,
                awaits: false,
                is_over: false,
                missed: true,
            },
        );
    }

    #[test]
    fn a_fixed_rate_goes_on_from_its_anchor() {
        let now = "2026-03-01T00:00:31Z";
        check(
            json!({"every": "10s"}),
            "2026-03-01T00:00:10Z",
            now,
            Firing {
                instants: ["10", "20", "30"]
                    .map(|second| at(&format!("2026-03-01T00:00:{second}Z")))
                    .to_vec(),
                cursor: at(now),
                next: Some(at("2026-03-01T00:00:40Z")),
                awaits: false,
                is_over: false,
                missed: false,
            },
        );
    }
}
