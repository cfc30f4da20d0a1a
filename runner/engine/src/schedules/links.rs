//! Groups that follow groups: lets waiting runs begin, and makes runs, when their upstreams have succeeded.
//! `heddle_store::upstream` tells the protocol; here is what decides.
//!
//! # What a waiting run needs of an upstream group
//!
//! The *instants* of a group are those of its schedules, and those for which it has runs. A group without schedules
//! that follows others has the instants that are common to those, but for what some of them leave out; one that
//! follows nobody, the logical times of its runs.
//!
//! * `latest`: the last instant at or before the run's logical time. As long as the upstream's scheduler has not
//!   passed that time, that is what its schedules say; afterwards it is the last instant that came to a run (what a
//!   misfire left out is not waited for).
//! * `interval`: every instant from the data interval's start, inclusive, to its end, exclusive. One that came to no
//!   run (before the group was there, or left out by a misfire) is waited for only if the upstream keeps `history`,
//!   since only then a backfill can make up for it.
//!
//! An instant holds up nobody if its group was disabled then, or its overlap left it out. Everything else has to
//! succeed: a failed run keeps its followers waiting until it is restarted or overridden. The links are those of the
//! group as it stands now, not as it stood when the run was made: taking a broken upstream out of `depends_on` lets go
//! who waits for it.
//!
//! # What a success calls for
//!
//! A follower without schedules gets a run (trigger `upstream`) for the logical time if all of its upstreams have
//! succeeded for it, if it is enabled, and if it has none yet. Upstreams that were disabled then, or whose overlap left
//! that instant out, are not asked, as long as one has succeeded; so an instant that is left out may call for a run of
//! those that only lacked it. A backfilled success does so only if its backfill
//! brings dependants along; then followers with schedules get runs as well, for those of their instants that need the
//! one that succeeded (so the twelfth month of a year brings the yearly summary along, which has waited from the first
//! month on).
//!
//! # What cannot be read
//!
//! Many groups are looked at together, each by its revision of today. One revision that cannot be read holds up those alone
//! that need it: a run that waits for such a group keeps waiting, and is weighed again by the sweep; an instant that may
//! call for a run of a follower of it is left in *link_events*, where this node passes over it for a while. So once somebody
//! has mended the group, everything goes on by itself.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::id::RunId;
use heddle_domain::state::{RunState, Trigger};
use heddle_domain::{Chain, Time};
use heddle_store::StoreError;
use heddle_store::live::Completion;
use heddle_store::live::NewRun;
use heddle_store::upstream::{Above, Follower, LeftEvent, LinkEvent, Success, WaitingRun, Weighed};
use parking_lot::Mutex;
use serde_json::{Value, json};
use uuid::Uuid;

use super::Schedules;
use crate::node::Node;
use crate::node::catalog::Revision;
use crate::node::service::{Every, Needs, Service};
use crate::node::signals::Signal;
use crate::runs::submit::{Layout, labels_of};
use crate::{EngineError, RunContext};

/// How often to look without being told.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The repair sweep's period, and how many waiting runs it looks at.
const SWEEP_EVERY: TimeDelta = TimeDelta::seconds(30);
const SWEEP_MAX: i64 = 500;

/// How many waiting runs of changed groups one transaction looks at; the sweep comes by the others.
const CHANGED_MAX: i64 = 1_000;

/// How many instants that a run lacks are kept, and told to people; when these have succeeded it is weighed again.
const LACKS_MAX: usize = 100;

/// How many instants an interval may have; more are not looked at.
const INSTANTS_MAX: usize = 1_000_000;

/// How many runs one backfilled success brings along in one follower.
const CASCADE_MAX: usize = 10_000;

/// How many groups without schedules may follow one another before their instants are not looked for any more.
const DEPTH_MAX: u32 = 100;

/// For how long an event is passed over that could not be worked off for somebody, and how many are at most: the oldest of
/// more are tried again sooner.
const LEFT_FOR: Duration = Duration::from_secs(10);
const LEFT_MAX: usize = 1_000;

/// Events that this node has left for another time, with when it did (`NodeClock::elapsed`).
#[derive(Default)]
pub(super) struct Left(Mutex<BTreeMap<i64, Duration>>);

impl Left {
    /// Those to be passed over now.
    fn passed_over(&self, now: Duration) -> Vec<i64> {
        let mut left = self.0.lock();
        left.retain(|_, since| now.saturating_sub(*since) <= LEFT_FOR);
        while left.len() > LEFT_MAX {
            left.pop_first();
        }
        left.keys().copied().collect()
    }

    fn put(&self, events: &[LeftEvent], now: Duration) {
        self.0.lock().extend(events.iter().map(|event| (event.id, now)));
    }
}

/// Whether something that stands in the database cannot be understood here: it concerns those alone that need it.
fn is_unreadable(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Unreadable(_) | EngineError::Store(StoreError::Unreadable { .. })
    )
}

/// What a decision came to; `None`: for what it needs cannot be read, which is said in the log.
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

/// Lets begin what waits for other groups.
pub(crate) struct Links {
    schedules: Arc<Schedules>,
    sweep: Every,
    /// Behind which run the next sweep goes on.
    place: Uuid,
}

impl Links {
    pub(crate) fn of(schedules: Arc<Schedules>) -> Self {
        Self {
            sweep: Every::later(SWEEP_EVERY, schedules.node.now()),
            schedules,
            place: Uuid::nil(),
        }
    }
}

impl Service for Links {
    const FAILED: &'static str = "cannot start runs of dependent groups; trying again";
    const NEEDS: Needs = Needs::Lease;
    const WOKEN_BY: Option<Signal> = Some(Signal::Links);

    fn node(&self) -> &Arc<Node> {
        &self.schedules.node
    }

    fn first_after(&self) -> Duration {
        LOOK_EVERY
    }

    fn again_after(&self) -> Duration {
        LOOK_EVERY
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        self.schedules.work_links().await?;
        if self.sweep.is_due(now) {
            self.sweep.done(now);
            self.schedules.sweep_links(&mut self.place).await?;
        }
        Ok(LOOK_EVERY)
    }
}

/// Everything that is known of the groups above some groups.
struct Family {
    above: HashMap<i64, Vec<Above>>,
    revisions: HashMap<i64, Arc<Revision>>,
}

impl Family {
    fn above(&self, group: i64) -> &[Above] {
        self.above.get(&group).map_or(&[], Vec::as_slice)
    }

    fn revision(&self, group: i64) -> Result<&Arc<Revision>, EngineError> {
        self.revisions
            .get(&group)
            .ok_or_else(|| EngineError::Unreadable(format!("the revision of group {group}")))
    }
}

impl Schedules {
    async fn work_links(self: &Arc<Self>) -> Result<(), EngineError> {
        loop {
            let passed_over = self.left_events.passed_over(self.node.clock.elapsed());
            if !self.node.store.has_link_events(&passed_over).await? {
                return Ok(());
            }
            let mut completion = self.node.completion().await?;
            let events = completion.take_link_events(&passed_over).await?;
            if events.is_empty() {
                // Another node has them.
                return Ok(());
            }
            if !self.work_events(completion, events).await? {
                // What is left is not looked at again at once, however much it is.
                return Ok(());
            }
        }
    }

    /// Looks at runs that wait, although nothing was said of them: the safety net.
    async fn sweep_links(self: &Arc<Self>, place: &mut Uuid) -> Result<(), EngineError> {
        let waiting = self.node.store.waiting_for_upstreams(*place, SWEEP_MAX).await?;
        *place = match waiting.last() {
            Some((run, _)) if waiting.len() as i64 == SWEEP_MAX => run.0,
            _ => Uuid::nil(),
        };
        if waiting.is_empty() {
            return Ok(());
        }
        let completion = self.node.completion().await?;
        let events = waiting
            .into_iter()
            .map(|(run, group_id)| (0, LinkEvent::Arrived { group_id, run }))
            .collect();
        self.work_events(completion, events).await?;
        Ok(())
    }

    /// Answers whether all of it could be worked off.
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
        let followers = completion.followers(&upstreams).await?;
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
        // From here on every statement sees what those have written that held one of these gates before.
        let first = completion.note_successes(&successes).await?;
        let instants: Vec<(i64, Time)> = successes.iter().map(|one| (one.group_id, one.logical_time)).collect();
        weigh.extend(completion.lacking(&instants).await?);
        let concerned: Vec<i64> = concerned.into_iter().collect();
        weigh.extend(completion.waiting_within(&concerned, CHANGED_MAX).await?);
        let mut called = Called::default();
        let successes: Vec<(i64, &Success, bool)> = (numbers.iter().zip(&successes).zip(first))
            .map(|((id, success), first)| (*id, success, first))
            .collect();
        let calls = self.calls(&successes, &left_out, &followers, &mut called).await?;
        self.answer(&mut completion, calls, &mut called).await?;
        let waiting = completion.lock_waiting(&weigh.into_iter().collect::<Vec<_>>()).await?;
        let weighed = self.weigh_all(&mut completion, waiting).await?;
        completion.write_weighed(&weighed).await?;
        let Called {
            mut runs,
            contexts,
            left,
        } = called;
        completion.leave_link_events(&left).await?;
        self.runs.hand_out(&mut runs);
        let created = completion.create(&runs).await?;
        completion.commit().await?;
        self.left_events.put(&left, self.node.clock.elapsed());
        self.runs.created(runs.into_iter().zip(contexts), &created);
        if weighed.iter().any(|entry| entry.lacks.is_empty()) {
            self.node.signals.raise(Signal::Inbox);
        }
        Ok(left.is_empty())
    }

    /// The groups above these; those whose revisions cannot be read have none in it.
    async fn family(&self, completion: &mut Completion, groups: &[i64]) -> Result<Family, EngineError> {
        let links = completion.links_above(groups).await?;
        let revisions: BTreeSet<i64> = links.iter().map(|link| link.revision_id).collect();
        let revisions: Vec<i64> = revisions.into_iter().collect();
        let readable = self.node.catalog.revisions(&revisions).await?;
        let mut family = Family {
            above: HashMap::new(),
            revisions: HashMap::new(),
        };
        for link in links {
            if let Some(revision) = readable.get(&link.revision_id) {
                family.revisions.insert(link.upstream_id, revision.clone());
            }
            family.above.entry(link.group_id).or_default().push(link);
        }
        Ok(family)
    }

    /// Finds out what waiting runs lack; those for which that cannot be found out keep waiting.
    async fn weigh_all(
        &self,
        completion: &mut Completion,
        waiting: Vec<WaitingRun>,
    ) -> Result<Vec<Weighed>, EngineError> {
        if waiting.is_empty() {
            return Ok(Vec::new());
        }
        let groups: BTreeSet<i64> = waiting.iter().map(|one| one.group_id).collect();
        let family = self.family(completion, &groups.into_iter().collect::<Vec<_>>()).await?;
        let mut weighed = Vec::with_capacity(waiting.len());
        for one in waiting {
            let group = one.group_id;
            weighed.extend(unless_unreadable(weigh(completion, &family, one).await, group)?);
        }
        Ok(weighed)
    }

    /// Whom successes call for a run, and instants that were left out: each follower once for an instant, in their order.
    async fn calls<'a>(
        &self,
        successes: &[(i64, &Success, bool)],
        left_out: &[(i64, i64, Time)],
        followers: &'a [Follower],
        called: &mut Called,
    ) -> Result<Vec<Calling<'a>>, EngineError> {
        let now = self.node.now();
        let mut calls: Vec<Calling<'a>> = Vec::new();
        for &(id, success, first) in successes {
            // A backfill calls for dependants only if it says so; what succeeds again calls for nothing.
            if !(success.cascades || (first && !success.backfilled)) {
                continue;
            }
            let source = success.source.filter(|_| success.cascades);
            let event = LeftEvent {
                id,
                group_id: success.group_id,
                logical_time: success.logical_time,
                cascade: source.map(|source| (success.run, source, success.backfilled)),
            };
            for follower in followers
                .iter()
                .filter(|one| one.upstream_id == success.group_id && one.enabled)
            {
                let call = |at| Calling {
                    follower,
                    at,
                    source,
                    event,
                };
                if !follower.scheduled {
                    calls.push(call(success.logical_time));
                } else if source.is_some() {
                    let touched = self.touched(follower, success, now).await;
                    match unless_unreadable(touched, follower.group_id)? {
                        Some(touched) => calls.extend(touched.into_iter().map(call)),
                        None => called.leave(event),
                    }
                }
            }
        }
        for &(id, group_id, logical_time) in left_out {
            let event = LeftEvent {
                id,
                group_id,
                logical_time,
                cascade: None,
            };
            let lacked = followers
                .iter()
                .filter(|one| one.upstream_id == group_id && one.enabled && !one.scheduled);
            calls.extend(lacked.map(|follower| Calling {
                follower,
                at: logical_time,
                source: None,
                event,
            }));
        }
        calls.sort_unstable_by_key(|call| (call.follower.group_id, call.at));
        calls.dedup_by_key(|call| (call.follower.group_id, call.at));
        Ok(calls)
    }

    /// Lays out the runs that are called for, of those followers whom nobody else keeps waiting.
    async fn answer(
        self: &Arc<Self>,
        completion: &mut Completion,
        calls: Vec<Calling<'_>>,
        called: &mut Called,
    ) -> Result<(), EngineError> {
        if calls.is_empty() {
            return Ok(());
        }
        let groups: BTreeSet<i64> = calls.iter().map(|call| call.follower.group_id).collect();
        let family = self.family(completion, &groups.into_iter().collect::<Vec<_>>()).await?;
        let pairs: Vec<(i64, Time)> = calls
            .iter()
            .filter(|call| !call.follower.scheduled)
            .flat_map(|call| {
                let above = family.above(call.follower.group_id);
                above.iter().map(|link| (link.upstream_id, call.at))
            })
            .collect();
        let mut succeeded: HashSet<(i64, Time)> = completion.succeeded_at(&pairs).await?.into_iter().collect();
        let unnoted: Vec<(i64, Time)> = pairs.into_iter().filter(|pair| !succeeded.contains(pair)).collect();
        succeeded.extend(completion.succeeded_unnoted(&unnoted).await?);
        // It has no run for that instant either, and must not hold up who follows it.
        let mut passed_on = Vec::new();
        for call in calls {
            let Calling { follower, at, .. } = call;
            let above = family.above(follower.group_id);
            if !follower.scheduled {
                let decided = self::call(completion, &family, above, &succeeded, at).await;
                match unless_unreadable(decided, follower.group_id)? {
                    Some(Call::Starts) => {}
                    Some(Call::Waits) => continue,
                    Some(Call::LeftOut) => {
                        passed_on.push((follower.group_id, at));
                        continue;
                    }
                    None => {
                        called.leave(call.event);
                        continue;
                    }
                }
            }
            match unless_unreadable(self.run_of(&family, &call).await, follower.group_id)? {
                Some(Some((run, context))) => {
                    called.runs.push(run);
                    called.contexts.push(context);
                }
                Some(None) => {}
                None => called.leave(call.event),
            }
        }
        completion.tell_left_out(&passed_on).await?;
        Ok(())
    }

    /// The run of a follower that is called for; `None`: the follower is not there any more.
    async fn run_of(
        &self,
        family: &Family,
        call: &Calling<'_>,
    ) -> Result<Option<(NewRun, Arc<RunContext>)>, EngineError> {
        let Calling {
            follower, at, source, ..
        } = *call;
        let Some(group) = self.node.catalog.group(&follower.name).await? else {
            return Ok(None);
        };
        let revision = &group.revision;
        let interval = if follower.scheduled {
            revision.calendar.data_interval(at)
        } else {
            let above = family.above(follower.group_id);
            let starts = above.iter().filter_map(|link| family.revisions.get(&link.upstream_id));
            let start = starts.map(|revision| revision.calendar.data_interval(at).0).min();
            (start.unwrap_or(at), at)
        };
        let layout = Layout {
            trigger: Trigger::Upstream,
            priority: None,
            logical_time: at,
            interval,
            params: "{}".to_owned(),
            task_params: None,
            labels: labels_of(revision, &Default::default()),
            key: None,
            dedupe: None,
            callback: None,
            source,
            parent: None,
        };
        let now = self.node.now();
        Ok(Some(self.runs.lay_out(revision, &group.resolution, layout, now)))
    }

    /// The instants of a follower with schedules that need the one that succeeded, up to now.
    async fn touched(&self, follower: &Follower, success: &Success, now: Time) -> Result<Vec<Time>, EngineError> {
        let Some(group) = self.node.catalog.group(&follower.name).await? else {
            return Ok(Vec::new());
        };
        if !group.revision.plan.spec.history {
            return Ok(Vec::new());
        }
        let calendar = &group.revision.calendar;
        let at = success.logical_time;
        if follower.interval {
            // The interval that holds it is that of the first instant after it.
            let after = at + chrono::TimeDelta::microseconds(1);
            return Ok(calendar.instants(after, now).next().into_iter().collect());
        }
        // It is the latest until the upstream's next one.
        let upstream = match self.node.store.group_by_id(success.group_id).await? {
            Some(row) => self.node.catalog.revision(row.revision_id).await?,
            None => return Ok(Vec::new()),
        };
        let until = upstream
            .calendar
            .instants(at + chrono::TimeDelta::microseconds(1), now)
            .next()
            .map_or(now, |next| next - chrono::TimeDelta::microseconds(1));
        Ok(calendar.instants(at, until).take(CASCADE_MAX).collect())
    }
}

/// Finds out what a waiting run lacks.
async fn weigh(completion: &mut Completion, family: &Family, one: WaitingRun) -> Result<Weighed, EngineError> {
    let mut lacks = Vec::new();
    let mut told = Vec::new();
    for link in family.above(one.group_id) {
        let missing = if link.interval {
            let limit = LACKS_MAX - lacks.len();
            interval_lacks(completion, family, link.upstream_id, one.interval, limit).await?
        } else {
            let lack = latest_lack(completion, family, link.upstream_id, one.logical_time).await?;
            lack.into_iter().collect()
        };
        let need = if link.interval { "interval" } else { "latest" };
        for at in missing {
            told.push(json!({"group": link.name, "instant": shown(at), "need": need}));
            lacks.push((link.upstream_id, at));
        }
        if lacks.len() >= LACKS_MAX {
            break;
        }
    }
    let waiting_for = if lacks.is_empty() {
        json!({"turn": true})
    } else {
        Value::Array(told)
    };
    Ok(Weighed {
        run: one.run,
        group_id: one.group_id,
        lacks,
        waiting_for,
    })
}

/// A follower that may be called for an instant, and by which event.
#[derive(Clone, Copy)]
struct Calling<'a> {
    follower: &'a Follower,
    at: Time,
    source: Option<Uuid>,
    event: LeftEvent,
}

/// What one transaction's events came to.
#[derive(Default)]
struct Called {
    runs: Vec<NewRun>,
    contexts: Vec<Arc<RunContext>>,
    /// Events that could not be worked off for somebody.
    left: Vec<LeftEvent>,
}

impl Called {
    fn leave(&mut self, event: LeftEvent) {
        if !self.left.contains(&event) {
            self.left.push(event);
        }
    }
}

fn shown(at: Time) -> String {
    at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true)
}

/// The last instant at or before `at` that a group has to have succeeded for; `None`: there is none.
async fn latest(
    completion: &mut Completion,
    family: &Family,
    group: i64,
    at: Time,
    depth: u32,
) -> Result<Option<Time>, EngineError> {
    let revision = family.revision(group)?;
    let made = completion.last_made_instant(group, at).await?;
    if !revision.schedules.is_empty() {
        // Before the scheduler has passed it, the schedules tell; afterwards, what it has made of them.
        let open = completion.next_of_group(group).await?.is_some_and(|next| next <= at);
        return Ok(if open {
            revision.calendar.latest(at).max(made)
        } else {
            made
        });
    }
    let above = family.above(group);
    if above.is_empty() || depth >= DEPTH_MAX {
        return Ok(completion
            .newest_run_at(group, at)
            .await?
            .map(|(instant, _)| instant)
            .max(made));
    }
    let mut latests = Vec::with_capacity(above.len());
    for link in above {
        match Box::pin(latest(completion, family, link.upstream_id, at, depth + 1)).await? {
            Some(instant) => latests.push((link.upstream_id, instant)),
            None => return Ok(made),
        }
    }
    // The newest, unless it lacks somebody who did not leave it out.
    let newest = latests.iter().map(|entry| entry.1).max();
    let mut common = newest;
    for &(upstream, instant) in &latests {
        if let Some(newest) = newest.filter(|newest| *newest > instant)
            && !excused(completion, family, upstream, newest, newest, depth + 1)
                .await?
                .covers(newest)
        {
            common = latests.iter().map(|entry| entry.1).min();
            break;
        }
    }
    let Some(common) = common.filter(|common| made.is_none_or(|made| *common > made)) else {
        return Ok(made);
    };
    let pairs: Vec<(i64, Time)> = above.iter().map(|link| (link.upstream_id, common)).collect();
    let succeeded = completion.succeeded_at(&pairs).await?.into_iter().collect();
    // It is called for and there is no run: that was before this group followed them, or never.
    Ok(match call(completion, family, above, &succeeded, common).await? {
        Call::Waits => Some(common),
        Call::Starts | Call::LeftOut => made,
    })
}

/// The instant that a `latest` link lacks.
async fn latest_lack(
    completion: &mut Completion,
    family: &Family,
    group: i64,
    at: Time,
) -> Result<Option<Time>, EngineError> {
    let Some(instant) = latest(completion, family, group, at, 0).await? else {
        return Ok(None);
    };
    let known = completion.known_instants(group, instant, instant).await?;
    if !known.succeeded.is_empty() || !known.skipped.is_empty() {
        return Ok(None);
    }
    if completion.newest_run_at(group, instant).await? == Some((instant, RunState::Succeeded)) {
        return Ok(None);
    }
    if excused(completion, family, group, instant, instant, 0)
        .await?
        .covers(instant)
    {
        return Ok(None);
    }
    Ok(Some(instant))
}

/// Stretches and instants at which a group holds up nobody.
#[derive(Default)]
struct Excused {
    disabled: Vec<(Time, Option<Time>)>,
    skipped: BTreeSet<Time>,
    /// Of a group without schedules, those that it follows: what all of them leave out comes to no run here either.
    above: Vec<Excused>,
}

impl Excused {
    fn covers(&self, at: Time) -> bool {
        let within = |(since, until): &(Time, Option<Time>)| *since <= at && until.is_none_or(|until| at <= until);
        self.skipped.contains(&at)
            || self.disabled.iter().any(within)
            || (!self.above.is_empty() && self.above.iter().all(|above| above.covers(at)))
    }
}

/// Where a group, or all that give it its instants, was disabled or left something out.
async fn excused(
    completion: &mut Completion,
    family: &Family,
    group: i64,
    from: Time,
    to: Time,
    depth: u32,
) -> Result<Excused, EngineError> {
    let mut excused = Excused {
        disabled: completion.disabled_between(group, from, to).await?,
        skipped: completion
            .known_instants(group, from, to)
            .await?
            .skipped
            .into_iter()
            .collect(),
        above: Vec::new(),
    };
    if family.revision(group)?.schedules.is_empty() && depth < DEPTH_MAX {
        for link in family.above(group) {
            let more = Box::pin(self::excused(completion, family, link.upstream_id, from, to, depth + 1)).await?;
            excused.above.push(more);
        }
    }
    Ok(excused)
}

/// What an instant means to a group without schedules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    /// It has to wait for somebody.
    Waits,
    /// One of the groups above it has succeeded; all others have, or hold up nobody.
    Starts,
    /// All of the groups above it left it out.
    LeftOut,
}

async fn call(
    completion: &mut Completion,
    family: &Family,
    above: &[Above],
    succeeded: &HashSet<(i64, Time)>,
    at: Time,
) -> Result<Call, EngineError> {
    let (done, open): (Vec<&Above>, Vec<&Above>) = above
        .iter()
        .partition(|link| succeeded.contains(&(link.upstream_id, at)));
    for link in open {
        if !excused(completion, family, link.upstream_id, at, at, 0)
            .await?
            .covers(at)
        {
            return Ok(Call::Waits);
        }
    }
    Ok(if done.is_empty() { Call::LeftOut } else { Call::Starts })
}

/// The instants of a group's schedules, or of those that it follows, from `from` to `to`.
fn instants(family: &Family, group: i64, from: Time, to: Time, depth: u32) -> Result<BTreeSet<Time>, EngineError> {
    let revision = family.revision(group)?;
    if !revision.schedules.is_empty() {
        return Ok(revision.calendar.instants(from, to).take(INSTANTS_MAX).collect());
    }
    let mut common: Option<BTreeSet<Time>> = None;
    for link in family.above(group) {
        if depth >= DEPTH_MAX {
            break;
        }
        let more = instants(family, link.upstream_id, from, to, depth + 1)?;
        common = Some(match common {
            None => more,
            Some(common) => common.intersection(&more).copied().collect(),
        });
    }
    Ok(common.unwrap_or_default())
}

/// The first `limit` instants that an `interval` link lacks.
async fn interval_lacks(
    completion: &mut Completion,
    family: &Family,
    group: i64,
    interval: (Time, Time),
    limit: usize,
) -> Result<Vec<Time>, EngineError> {
    let (from, end) = interval;
    if end <= from {
        return Ok(Vec::new());
    }
    let to = end - chrono::TimeDelta::microseconds(1);
    let revision = family.revision(group)?;
    let known = completion.known_instants(group, from, to).await?;
    let next = completion.next_of_group(group).await?;
    let succeeded: BTreeSet<Time> = known.succeeded.into_iter().collect();
    let made: BTreeSet<Time> = known.made.into_iter().collect();
    let excused = excused(completion, family, group, from, to, 0).await?;
    let mut all = instants(family, group, from, to, 0)?;
    all.extend(&made);
    let can_be_made_up = |at: Time| revision.plan.spec.history || next.is_some_and(|next| next <= at);
    Ok(all
        .into_iter()
        .filter(|at| !succeeded.contains(at) && !excused.covers(*at))
        .filter(|at| made.contains(at) || can_be_made_up(*at))
        .take(limit)
        .collect())
}
