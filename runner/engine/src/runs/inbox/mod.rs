//! Rows that other transactions left for any node, and attempts that dead nodes left behind.
//!
//! One cheap query (`Store::inbox`) finds out whether there is anything. Then each kind is taken with SKIP LOCKED in
//! its own transaction, so that nodes share the work and a crash loses nothing. Rows that cannot be handled are set
//! aside (`aside.rs`).

pub(crate) mod aside;
pub(crate) mod gate;
pub(crate) mod unclaimed;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::Chain;
use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::notify::rules::{Announcements, Notice};
use heddle_domain::run::{AttemptKey, Event};
use heddle_domain::spec::{DeadlineAction, NotifyEvent};
use heddle_domain::state::{ErrorKind, RunState};
use heddle_store::live::{Due, EndedAttempt, Grant, LostAttempt, Settlement, Take};
use heddle_store::notice::NewNotices;
use parking_lot::Mutex;
use serde_json::json;

use crate::node::group_commit::{Halves, Met};
use crate::node::service::{Every, Needs, Service};
use crate::node::signals::Signal;
use crate::node::{Node, seldom};
use crate::runs::change::apply::After;
use crate::runs::change::notices::new_notices;
use crate::runs::change::transition::Snapshot;
use crate::runs::contexts::Contexts;
use crate::runs::control::{BulkAction, ControlError};
use crate::runs::ending::{Applied, Done, End, Ending};
use crate::runs::inbox::aside::{Kind, RowsAside};
use crate::{EngineError, RunContext, Runs};

/// How often to check without a signal.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// How often attempts of dead nodes are searched for.
const REAP_EVERY: Duration = Duration::from_secs(1);

/// A younger attempt may not be committed yet, so it is no error if the database does not contain it.
const YOUNG: Duration = Duration::from_millis(300);

/// How long an attempt must be unknown before this node adopts it.
const ADOPT_AFTER: Duration = Duration::from_secs(3);

/// How often runs that wait at gates are checked without a signal. The end of a run wakes its group's gate if its
/// own revision has one. If a bound came with a later revision, only this sweep does.
const SWEEP_GATES_EVERY: TimeDelta = TimeDelta::seconds(3);

/// How many gates one sweep wakes; the next sweep continues after them.
const SWEPT_GATES_MAX: i64 = 1_000;

/// How often runs are searched for whose groups have been deleted: a node was killed before it cancelled them, or they were
/// created by somebody who did not ask (a transaction in SQL that was open meanwhile; a backfill).
const SWEEP_DELETED_EVERY: TimeDelta = TimeDelta::seconds(10);

/// Among how many groups with live runs one sweep searches; the next sweep continues after them.
const SWEPT_GROUPS_MAX: i64 = 1_000;

/// How many sub-runs without a parent one tick cancels.
const ORPHANS_MAX: i64 = 500;

/// What a node knows of its inbox.
#[derive(Default)]
pub(crate) struct Pending {
    /// When the next timer is due, as far as known.
    next_due: Mutex<Option<Time>>,
    pub(crate) aside: RowsAside,
}

impl Pending {
    /// Notes a timer; returns whether it is due sooner than the next known one.
    pub(crate) fn note_due(&self, due: Time) -> bool {
        let mut next = self.next_due.lock();
        let sooner = next.is_none_or(|next| due < next);
        if sooner {
            *next = Some(due);
        }
        sooner
    }

    /// How long it is from now until the next timer that is known.
    fn until_due(&self, now: Time) -> Duration {
        match *self.next_due.lock() {
            Some(due) => (due - now).to_std().unwrap_or(Duration::ZERO),
            None => POLL_EVERY,
        }
    }
}

/// Handles what timers, other transactions and other systems have left.
pub(crate) struct Inbox(pub(crate) Arc<Runs>);

impl Service for Inbox {
    const FAILED: &'static str = "cannot process timers and results of sub-runs; trying again";
    const NEEDS: Needs = Needs::Lease;
    const AGAIN_AFTER: Duration = POLL_EVERY;
    const WOKEN_BY: Option<Signal> = Some(Signal::Inbox);

    fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    fn first_after(&self) -> Duration {
        POLL_EVERY
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        self.0.work_off_inbox().await?;
        Ok(self.0.pending.until_due(self.0.now()).min(POLL_EVERY))
    }
}

/// Takes over attempts of dead nodes, and finds what was forgotten.
pub(crate) struct Reaper {
    runs: Arc<Runs>,
    /// Attempts that the database has under our lease but this node does not know, and since when.
    strangers: HashMap<(RunId, AttemptKey), Duration>,
    sweep: Every,
    /// The group after whose gate the next sweep continues.
    cursor: Option<i64>,
    sweep_deleted: Every,
    /// The group after which the next search for runs of deleted groups continues.
    deleted_cursor: Option<i64>,
    /// When it wants to tick next; a tick before that was caused by a signal.
    back_at: Option<Time>,
}

impl Reaper {
    pub(crate) fn of(runs: Arc<Runs>) -> Self {
        Self {
            strangers: HashMap::new(),
            sweep: Every::later(SWEEP_GATES_EVERY, &runs.node.clock),
            cursor: None,
            sweep_deleted: Every::later(SWEEP_DELETED_EVERY, &runs.node.clock),
            deleted_cursor: None,
            back_at: None,
            runs,
        }
    }

    async fn sweep_gates(&mut self) {
        let cursor = self.cursor.unwrap_or(i64::MIN);
        match self.runs.node.store.wake_gates(cursor, SWEPT_GATES_MAX).await {
            Ok(last) => self.cursor = last,
            Err(error) => tracing::warn!(error = %Chain(&error), "cannot look for runs that could start; trying again"),
        }
    }
}

impl Reaper {
    async fn sweep_deleted(&mut self) -> Result<(), EngineError> {
        let cursor = self.deleted_cursor.unwrap_or(i64::MIN);
        let (runs, last) = self.runs.node.store.left_behind(cursor, SWEPT_GROUPS_MAX).await?;
        self.deleted_cursor = last;
        self.runs.cancel_all("its group has been deleted", "group", runs).await
    }
}

impl Service for Reaper {
    const FAILED: &'static str = "cannot take over the work of lost nodes; trying again";
    const NEEDS: Needs = Needs::Nothing;
    const AGAIN_AFTER: Duration = REAP_EVERY;
    const WOKEN_BY: Option<Signal> = Some(Signal::Orphans);

    fn node(&self) -> &Arc<Node> {
        &self.runs.node
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        let woken = self.back_at.take().is_some_and(|back_at| now < back_at);
        if self.sweep.is_due(now) && !self.runs.node.is_fenced() {
            self.sweep.done(now);
            self.sweep_gates().await;
        }
        if self.sweep_deleted.is_due(now) && !self.runs.node.is_fenced() {
            self.sweep_deleted.done(now);
            self.sweep_deleted().await?;
        }
        self.runs.reap_once(&mut self.strangers).await?;
        // After a signal, soon once more: attempts that are too young now can be judged then.
        let wait = if woken { YOUNG } else { REAP_EVERY };
        self.back_at = TimeDelta::from_std(wait).ok().map(|wait| now + wait);
        Ok(wait)
    }
}

impl Runs {
    /// Handles all that there is.
    async fn work_off_inbox(self: &Arc<Self>) -> Result<(), EngineError> {
        let inbox = self.node.store.inbox(&self.pending.aside.passed_over()).await?;
        *self.pending.next_due.lock() = inbox.next_due;
        if inbox.ready {
            self.node.signals.raise(Signal::Work);
        }
        for kind in Kind::OF_INBOX {
            let found = match kind {
                Kind::Timers => inbox.next_due.is_some_and(|due| due <= self.now()),
                Kind::Settlements => inbox.settlements,
                Kind::Starts => inbox.starts,
                Kind::Gates => inbox.gates,
                Kind::Unclaimed | Kind::Offers => false,
            };
            if found || self.pending.aside.of(kind).is_due(self.node.clock.elapsed()) {
                self.work_off(kind).await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn timers(
        self: &Arc<Self>,
        take: Take<'_>,
        taken: &mut BTreeSet<RunId>,
    ) -> Result<(), EngineError> {
        let mut completion = self.node.completion("timers").await?;
        let due = completion.take_due(take).await?;
        if due.is_empty() {
            return Ok(());
        }
        taken.extend(due.iter().map(|(run, _)| *run));
        let mut events: HashMap<RunId, Cause> = HashMap::new();
        let mut deadlines = Vec::new();
        let (mut timeouts, mut unclaimed) = (Vec::new(), Vec::new());
        for (_, due) in due {
            match due? {
                Due::Retry(run, at) => {
                    if let Cause::Due(retries) = events.entry(run).or_insert_with(|| Cause::Due(Vec::new())) {
                        retries.push(at);
                    }
                }
                Due::Deadline(run) => deadlines.push(run),
                Due::Timeout(run, at) => timeouts.push(EndedAttempt { run, at, lease: 0 }),
                Due::Unclaimed(run, at, due) => unclaimed.push((run, at, due)),
            }
        }
        let mut runs: Vec<RunId> = events
            .keys()
            .copied()
            .chain(timeouts.iter().map(|ended| ended.run))
            .chain(unclaimed.iter().map(|late| late.0))
            .collect();
        runs.sort_unstable();
        runs.extend(&deadlines);
        let contexts = self.contexts.of(&runs).await?;
        let overdue = || deadlines.iter().filter_map(|run| contexts.get(run));
        let missed: Vec<NewNotices> = overdue().filter_map(|context| deadline_missed(context)).collect();
        completion.insert_notices(&missed).await?;
        // In the transaction that takes the timer: if the node dies here, the timer stays and the run will end.
        for context in overdue() {
            if let Some(why) = late(context) {
                events.insert(context.facts.id, Cause::Deadline(why));
            }
        }
        let mut grant = self.grant();
        let after = self
            .apply_events(&mut completion, &contexts, events, &mut grant)
            .await?;
        let parents: BTreeSet<RunId> = timeouts.iter().map(|ended| ended.run).collect();
        let subs = completion.sub_runs_of(&Vec::from_iter(parents)).await?;
        let late = timeouts
            .into_iter()
            .map(|ended| Applied {
                end: timed_out(subs.get(&(ended.run, ended.at)).copied()),
                ended,
                finished_at: None,
                node: None,
            })
            .collect();
        let late = self.apply(&mut completion, &contexts, late, &mut grant).await?;
        let unclaimed = self
            .end_unclaimed(&mut completion, &contexts, &unclaimed, &mut grant)
            .await?;
        completion.commit().await?;
        self.acted(after);
        self.acted(late);
        self.acted(unclaimed);
        if !missed.is_empty() {
            self.node.signals.raise(Signal::Notices);
        }
        // Sub-runs of a timed-out task have lost their parent.
        self.node.signals.raise(Signal::Orphans);
        self.node.signals.raise(Signal::Inbox);
        Ok(())
    }

    /// Applies due events to live runs; skips the others.
    async fn apply_events(
        &self,
        completion: &mut heddle_store::live::Completion,
        contexts: &Contexts,
        mut causes: HashMap<RunId, Cause>,
        grant: &mut Grant,
    ) -> Result<After, EngineError> {
        let mut runs: Vec<RunId> = causes.keys().copied().collect();
        runs.sort_unstable();
        let locked = completion.lock_runs(&runs).await?;
        let is_late = |cause: &Cause| matches!(cause, Cause::Deadline(_));
        if causes.values().any(is_late) {
            let bounded = completion.with_deadline(&runs).await?;
            causes.retain(|run, cause| !is_late(cause) || bounded.contains(run));
        }
        let mut after = After::default();
        let mut writes = Vec::new();
        for run in runs {
            let (Some(found), Some(cause)) = (locked.get(&run), causes.remove(&run)) else {
                continue;
            };
            let context = self.contexts.known(contexts, run).await?;
            let (events, why) = match cause {
                Cause::Due(retries) => (retries.into_iter().map(Event::Due).collect(), None),
                Cause::Deadline(why) => {
                    let withdrawn = completion.withdraw_of(run).await?;
                    (vec![Event::Cancel { withdrawn }], Some(why))
                }
            };
            let now = completion.now();
            let transition = self
                .transition(&context, Snapshot::of(run, found)?, &events, completion, now)
                .await?;
            let mut write = self.write_of(&context, transition, grant, &mut after)?;
            write.error = why.or(write.error);
            writes.push(write);
        }
        self.write(completion, &writes, &mut after).await?;
        Ok(after)
    }

    /// Sub-runs that have ended settle their parents' tasks.
    pub(crate) async fn settlements(
        self: &Arc<Self>,
        take: Take<'_>,
        taken: &mut BTreeSet<RunId>,
    ) -> Result<(), EngineError> {
        let mut completion = self.node.completion("settlements").await?;
        let settlements = completion.take_settlements(take).await?;
        if settlements.is_empty() {
            return Ok(());
        }
        taken.extend(settlements.iter().map(|(parent, _)| *parent));
        let parents: Vec<RunId> = taken.iter().copied().collect();
        let contexts = self.contexts.of(&parents).await?;
        let mut outcomes = Vec::with_capacity(settlements.len());
        for (_, settlement) in settlements {
            let settlement = settlement?;
            outcomes.push(Applied {
                ended: settlement.parent,
                end: end_of(settlement),
                finished_at: None,
                node: None,
            });
        }
        let after = self
            .apply(&mut completion, &contexts, outcomes, &mut self.grant())
            .await?;
        completion.commit().await?;
        self.acted(after);
        self.node.signals.raise(Signal::Inbox);
        Ok(())
    }

    /// Adopts attempts that are this node's in the database but not in its memory: the answer to a commit was lost with
    /// the connection. Only after some time: between a commit and its answer this is normal.
    fn adopt(
        self: &Arc<Self>,
        held: HashSet<(RunId, AttemptKey)>,
        strangers: &mut HashMap<(RunId, AttemptKey), Duration>,
    ) {
        strangers.retain(|entry, _| held.contains(entry));
        let elapsed = self.node.clock.elapsed();
        let mut adopted = Vec::new();
        for entry in held {
            if self.held.knows(entry.0, entry.1) || self.reports.given_up.knows(entry.0, entry.1) {
                strangers.remove(&entry);
                continue;
            }
            let since = *strangers.entry(entry).or_insert(elapsed);
            if elapsed.saturating_sub(since) > ADOPT_AFTER {
                strangers.remove(&entry);
                adopted.push(entry);
            }
        }
        if !adopted.is_empty() {
            tracing::warn!(
                attempts = adopted.len(),
                "taking up attempts that were assigned to this node without a notification"
            );
            self.take(adopted);
        }
    }

    /// Ends attempts as lost. If one end is refused, the others are still ended.
    async fn take_over(self: &Arc<Self>, lost: Vec<LostAttempt>) -> Result<(), EngineError> {
        let mut halves = Halves::of(lost);
        while let Some(batch) = halves.take() {
            let result = self.end_lost(&batch).await;
            if let Some((lost, error)) = halves.done(batch, result)? {
                self.reports.given_up.add(&self.node, lost.ended, &error);
            }
        }
        Ok(())
    }

    async fn end_lost(self: &Arc<Self>, lost: &[LostAttempt]) -> Result<(), EngineError> {
        let mut runs: Vec<RunId> = lost.iter().map(|lost| lost.ended.run).collect();
        runs.sort_unstable();
        runs.dedup();
        let contexts = self.contexts.of(&runs).await?;
        let outcomes = lost
            .iter()
            .map(|lost| Applied {
                ended: lost.ended,
                end: End::plain(Ending::Lost),
                finished_at: None,
                node: lost.node,
            })
            .collect();
        let mut completion = self.node.completion("end_lost").await?;
        let after = self
            .apply(&mut completion, &contexts, outcomes, &mut self.grant())
            .await?;
        completion.commit().await?;
        self.acted(after);
        Ok(())
    }

    /// Takes over attempts of dead nodes, stops attempts that are no longer this node's, cancels sub-runs without a
    /// parent.
    pub(crate) async fn reap_once(
        self: &Arc<Self>,
        strangers: &mut HashMap<(RunId, AttemptKey), Duration>,
    ) -> Result<(), EngineError> {
        let mut lost = self.node.store.lost_attempts().await?;
        lost.retain(|lost| !self.reports.given_up.knows(lost.ended.run, lost.ended.at));
        if !lost.is_empty() {
            tracing::info!(attempts = lost.len(), "taking over the attempts of a lost node");
            self.take_over(lost).await?;
        }
        let old = self.held.taken_until(self.node.clock.elapsed().saturating_sub(YOUNG));
        let held: HashSet<(RunId, AttemptKey)> = self.node.store.held(self.lease()).await?.into_iter().collect();
        for entry in old.into_iter().filter(|entry| !held.contains(entry)) {
            self.held.cancel(entry.0, entry.1);
        }
        if !self.node.is_fenced() {
            self.adopt(held, strangers);
        }
        let orphans = self.node.store.orphans(ORPHANS_MAX).await?;
        self.cancel_all("the task that started this sub-run has ended", "parent", orphans)
            .await
    }

    /// Cancels runs that nothing needs any more, unless they have ended meanwhile. One that cannot be cancelled keeps none of
    /// the others; it is found again. `Err`: an error that all of them would meet.
    async fn cancel_all(self: &Arc<Self>, why: &str, actor: &str, runs: Vec<RunId>) -> Result<(), EngineError> {
        const KEPT: &str = "cannot cancel a run that nothing needs any more; trying again";
        let action = BulkAction::CancelFor(why.into());
        for run in runs {
            let Err(ControlError::Engine(error)) = self.control(run, &action, actor).await else {
                continue;
            };
            if Met::of(&error) == Met::NoDatabase {
                return Err(error);
            }
            let error_chain = Chain(&error);
            match seldom::line_due(KEPT) {
                Some(0) => tracing::warn!(error = %error_chain, %run, "{KEPT}"),
                Some(omitted) => tracing::warn!(error = %error_chain, %run, omitted, "{KEPT}"),
                None => tracing::debug!(error = %error_chain, %run, "{KEPT}"),
            }
        }
        Ok(())
    }
}

/// The notices about a run that has missed its deadline.
fn deadline_missed(context: &RunContext) -> Option<NewNotices> {
    let revision = &context.revision;
    revision.subscriptions.anywhere(NotifyEvent::DeadlineMissed).then(|| {
        let announcements = Announcements {
            notices: vec![Notice::of_run(NotifyEvent::DeadlineMissed)],
            troubled: Vec::new(),
        };
        new_notices(revision, Some(context.facts.id), announcements, None)
    })
}

/// If the run is cancelled for a missed deadline: the reason.
fn late(context: &RunContext) -> Option<String> {
    let (run, group) = (context.facts.id, &context.revision.group_name);
    tracing::warn!(%run, group, "the run has missed its deadline");
    let plan = &context.revision.plan;
    (plan.deadline_action == DeadlineAction::Cancel).then(|| {
        let deadline = plan.deadline.map(|span| span.to_string()).unwrap_or_default();
        format!("the run's deadline of {deadline} has passed")
    })
}

/// What due timers do with a run.
enum Cause {
    Due(Vec<AttemptKey>),
    /// The run is cancelled, for this reason; other timers do not matter.
    Deadline(String),
}

/// The sub-run is cancelled, because the attempt that it belongs to ends. `None`: it has ended meanwhile.
fn timed_out(sub: Option<RunId>) -> End {
    const WHY: &str = "took longer than the task's timeout";
    let message = match sub {
        Some(sub) => format!("sub-run {sub} cancelled: it {WHY}"),
        None => format!("the sub-run {WHY}"),
    };
    End::plain(Ending::failed(ErrorKind::Timeout, message))
}

/// What the end of a sub-run means for the attempt that waits for it.
fn end_of(settlement: Settlement) -> End {
    let output = json!({"run": settlement.child, "state": settlement.state}).to_string();
    let result = match settlement.state {
        RunState::Succeeded => Ending::Succeeded(output),
        state => {
            let why = settlement.error.map(|error| format!(": {error}")).unwrap_or_default();
            Ending::failed(ErrorKind::Failed, format!("sub-run {} {state}{why}", settlement.child))
        }
    };
    End::Done(Done {
        result,
        effects: Vec::new(),
        memory_bytes: None,
        cpu: None,
    })
}
