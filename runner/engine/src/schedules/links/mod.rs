//! Groups that follow groups: when their upstreams have succeeded, waiting runs begin and new runs are created.
//! `heddle_store::upstream` describes the protocol; the decisions are here: what waiting runs need (`needs.rs`), which
//! followers successes call for a run (`calls.rs`), and the work on events, which uses both.
//!
//! # What cannot be read
//!
//! Many groups are handled together, each by its current revision. An unreadable revision holds up only those that need
//! it: a run that waits for such a group keeps waiting, and the sweep checks it again; an instant that may call for a
//! run of one of its followers stays in *link_events*, where this node skips it for a while. So when somebody has
//! repaired the group, everything continues by itself.
//!
//! An event of a kind that only a newer version knows stays in *link_events* for a node of that version: the transaction
//! that took it is rolled back, and this node skips the event for a while.

mod calls;
mod needs;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::id::RunId;
use heddle_domain::{Chain, Time};
use heddle_store::StoreError;
use heddle_store::live::Completion;
use heddle_store::upstream::{Follower, LinkEvent, Noted, Success, TakenLink};
use parking_lot::Mutex;
use uuid::Uuid;

use super::Schedules;
use crate::EngineError;
use crate::node::Node;
use crate::node::service::{Every, Needs, Service};
use crate::node::signals::Signal;
use calls::{Called, called_by};

/// How often to check without a signal.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// The repair sweep's period, and how many waiting runs it checks.
const SWEEP_EVERY: TimeDelta = TimeDelta::seconds(30);
const SWEEP_MAX: i64 = 500;

/// How many waiting runs of changed groups one transaction checks; the sweep finds the others.
const CHANGED_MAX: i64 = 1_000;

/// How long an event is skipped that could not be handled for a follower, and the maximum number of such events: if
/// there are more, the oldest are tried again sooner.
const LEFT_FOR: Duration = Duration::from_secs(10);
const LEFT_MAX: usize = 1_000;

/// Events that this node has left for later, and when (`NodeClock::elapsed`).
#[derive(Default)]
pub(super) struct Left(Mutex<BTreeMap<i64, Duration>>);

impl Left {
    /// The ids of the events to be skipped now.
    fn passed_over(&self, now: Duration) -> Vec<i64> {
        let mut left = self.0.lock();
        left.retain(|_, since| now.saturating_sub(*since) <= LEFT_FOR);
        while left.len() > LEFT_MAX {
            left.pop_first();
        }
        left.keys().copied().collect()
    }

    fn put(&self, events: impl Iterator<Item = i64>, now: Duration) {
        self.0.lock().extend(events.map(|id| (id, now)));
    }
}

/// Those events that this node can read; or the ids of the others, which are logged.
fn all_readable(taken: Vec<TakenLink>) -> Result<Vec<(i64, LinkEvent)>, Vec<i64>> {
    let (mut events, mut unreadable) = (Vec::with_capacity(taken.len()), Vec::new());
    for (id, event) in taken {
        match event {
            Ok(event) => events.push((id, event)),
            Err(error) => {
                tracing::error!(error = %Chain(&error), "cannot read an event of a followed group; it is skipped for 10 s");
                unreadable.push(id);
            }
        }
    }
    if unreadable.is_empty() {
        Ok(events)
    } else {
        Err(unreadable)
    }
}

/// Whether the error is that this node cannot read something in the database. Such an error concerns only the groups
/// that need it.
fn is_unreadable(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Unreadable(_) | EngineError::Store(StoreError::Unreadable { .. })
    )
}

/// The result of a decision; `None`: something that it needs is unreadable, which is logged.
fn unless_unreadable<T>(decided: Result<T, EngineError>, group: i64) -> Result<Option<T>, EngineError> {
    match decided {
        Ok(decided) => Ok(Some(decided)),
        Err(error) if is_unreadable(&error) => {
            tracing::error!(error = %Chain(&error), group, "cannot read the dependencies of a group; its runs wait");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The groups that follow these. Until the end of the transaction, none of those that are enabled is deleted or stopped: the
/// cancels that follow a stop find the runs that are created for them here.
async fn open_followers(completion: &mut Completion, upstreams: &[i64]) -> Result<Vec<Follower>, StoreError> {
    let mut followers = completion.followers(upstreams).await?;
    let groups: BTreeSet<i64> = followers.iter().map(|follower| follower.group_id).collect();
    // Read once more: what was committed while this waited counts.
    let closed = completion
        .closed_groups(&groups.into_iter().collect::<Vec<_>>())
        .await?;
    followers.retain(|follower| closed.get(&follower.group_id) != Some(&true));
    for follower in &mut followers {
        follower.enabled = !closed.contains_key(&follower.group_id);
    }
    Ok(followers)
}

/// Starts runs that wait for other groups.
pub(crate) struct Links {
    schedules: Arc<Schedules>,
    sweep: Every,
    /// The run after which the next sweep continues.
    cursor: Uuid,
}

impl Links {
    pub(crate) fn of(schedules: Arc<Schedules>) -> Self {
        Self {
            sweep: Every::later(SWEEP_EVERY, &schedules.node.clock),
            schedules,
            cursor: Uuid::nil(),
        }
    }
}

impl Service for Links {
    const FAILED: &'static str = "cannot start runs of dependent groups; trying again";
    const NEEDS: Needs = Needs::Lease;
    const AGAIN_AFTER: Duration = POLL_EVERY;
    const WOKEN_BY: Option<Signal> = Some(Signal::Links);

    fn node(&self) -> &Arc<Node> {
        &self.schedules.node
    }

    fn first_after(&self) -> Duration {
        POLL_EVERY
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        self.schedules.work_links().await?;
        if self.sweep.is_due(now) {
            self.sweep.done(now);
            self.schedules.sweep_links(&mut self.cursor).await?;
        }
        Ok(POLL_EVERY)
    }
}

impl Schedules {
    async fn work_links(self: &Arc<Self>) -> Result<(), EngineError> {
        loop {
            let passed_over = self.left_events.passed_over(self.node.clock.elapsed());
            if !self.node.store.has_link_events(&passed_over).await? {
                return Ok(());
            }
            let mut completion = self.node.completion("work_links").await?;
            let taken = completion.take_link_events(&passed_over).await?;
            if taken.is_empty() {
                // Another node has them.
                return Ok(());
            }
            let events = match all_readable(taken) {
                Ok(events) => events,
                Err(unreadable) => {
                    // This rolls back: all these events are in their table again, and the next tick takes the others.
                    drop(completion);
                    self.left_events.put(unreadable.into_iter(), self.node.clock.elapsed());
                    return Ok(());
                }
            };
            if !self.work_events(completion, events).await? {
                // Events that were left for later are not checked again at once, however many there are.
                return Ok(());
            }
        }
    }

    /// Checks waiting runs without an event: the safety net.
    async fn sweep_links(self: &Arc<Self>, cursor: &mut Uuid) -> Result<(), EngineError> {
        let waiting = self.node.store.waiting_for_upstreams(*cursor, SWEEP_MAX).await?;
        *cursor = match waiting.last() {
            Some((run, _)) if waiting.len() as i64 == SWEEP_MAX => run.0,
            _ => Uuid::nil(),
        };
        if waiting.is_empty() {
            return Ok(());
        }
        let completion = self.node.completion("sweep_links").await?;
        let events = waiting
            .into_iter()
            .map(|(run, group_id)| (0, LinkEvent::Arrived { group_id, run }))
            .collect();
        self.work_events(completion, events).await?;
        Ok(())
    }

    /// Returns whether all events could be handled.
    async fn work_events(
        self: &Arc<Self>,
        mut completion: Completion,
        events: Vec<(i64, LinkEvent)>,
    ) -> Result<bool, EngineError> {
        let mut successes: Vec<Success> = Vec::new();
        let mut weigh: BTreeSet<RunId> = BTreeSet::new();
        let mut gates: BTreeSet<i64> = BTreeSet::new();
        let mut changed: BTreeSet<i64> = BTreeSet::new();
        let mut numbers: Vec<i64> = Vec::new();
        let mut left_out: Vec<(i64, i64, Time)> = Vec::new();
        for (id, event) in events {
            match event {
                LinkEvent::Succeeded(success) => {
                    numbers.push(id);
                    successes.push(success);
                }
                LinkEvent::Arrived { group_id, run } => {
                    gates.insert(group_id);
                    weigh.insert(run);
                }
                LinkEvent::Changed(group_id) => drop(changed.insert(group_id)),
                LinkEvent::LeftOut { group_id, logical_time } => {
                    changed.insert(group_id);
                    left_out.push((id, group_id, logical_time));
                }
            }
        }
        let upstreams: Vec<i64> = changed
            .iter()
            .copied()
            .chain(successes.iter().map(|one| one.group_id))
            .collect();
        let followers = open_followers(&mut completion, &upstreams).await?;
        let concerned: BTreeSet<i64> = changed
            .iter()
            .copied()
            .chain(
                followers
                    .iter()
                    .filter(|one| changed.contains(&one.upstream_id))
                    .map(|one| one.group_id),
            )
            .collect();
        gates.extend(&concerned);
        gates.extend(followers.iter().map(|follower| follower.group_id));
        completion.hold_gates(&gates.into_iter().collect::<Vec<_>>()).await?;
        // From here on, every statement sees the rows that earlier holders of these gates have written.
        let noted = completion.note_successes(&successes).await?;
        let successes: Vec<(i64, &Success, bool)> = (numbers.iter().zip(&successes).zip(noted))
            .filter(|(_, noted)| *noted != Noted::Undone)
            .map(|((id, success), noted)| (*id, success, noted == Noted::First))
            .collect();
        let instants: Vec<(i64, Time)> = (successes.iter())
            .map(|(_, success, _)| (success.group_id, success.logical_time))
            .collect();
        weigh.extend(completion.lacking(&instants).await?);
        let concerned: Vec<i64> = concerned.into_iter().collect();
        weigh.extend(completion.waiting_within(&concerned, CHANGED_MAX).await?);
        let mut called = Called::default();
        let calls = called_by(&successes, &left_out, &followers);
        let instants = instants.into_iter().collect();
        self.answer(&mut completion, calls, instants, &mut called).await?;
        let waiting = completion.lock_waiting(&weigh.into_iter().collect::<Vec<_>>()).await?;
        let weighed = self.weigh_all(&mut completion, waiting).await?;
        completion.write_weighed(&weighed).await?;
        let Called {
            mut runs,
            contexts,
            left,
        } = called;
        completion.leave_link_events(&left).await?;
        self.runs.admit_new(&mut completion, &mut runs, &contexts).await?;
        self.runs.hand_out(&mut runs);
        let created = completion.create(&runs).await?;
        completion.commit().await?;
        self.left_events
            .put(left.iter().map(|event| event.id), self.node.clock.elapsed());
        self.runs.created(runs.into_iter().zip(contexts), &created);
        if weighed.iter().any(|entry| entry.lacks.is_empty()) {
            self.node.signals.raise(Signal::Inbox);
        }
        Ok(left.is_empty())
    }
}
