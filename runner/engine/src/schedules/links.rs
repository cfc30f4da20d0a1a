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

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::state::{RunState, Trigger};
use heddle_store::live::Completion;
use heddle_store::upstream::{Above, Follower, LinkEvent, Success, WaitingRun, Weighed};
use serde_json::{Value, json};
use uuid::Uuid;

use super::Schedules;
use crate::EngineError;
use crate::node::Node;
use crate::node::catalog::Revision;
use crate::node::service::{Every, Needs, Service};
use crate::node::signals::Signal;
use crate::runs::submit::{Layout, labels_of};

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
    const FAILED: &'static str = "links between groups could not be worked off; trying again";
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
    names: HashMap<i64, String>,
}

impl Family {
    fn above(&self, group: i64) -> &[Above] {
        self.above.get(&group).map_or(&[], Vec::as_slice)
    }

    fn revision(&self, group: i64) -> Result<&Arc<Revision>, EngineError> {
        self.revisions
            .get(&group)
            .ok_or_else(|| EngineError::Unreadable(format!("the revision of group {group} is not known")))
    }
}

impl Schedules {
    async fn work_links(self: &Arc<Self>) -> Result<(), EngineError> {
        while self.node.store.has_link_events().await? {
            let mut completion = self.node.store.completion(self.node.lease(), self.node.now()).await?;
            let events = completion.take_link_events().await?;
            if events.is_empty() {
                // Another node has them.
                return Ok(());
            }
            self.work_events(completion, events).await?;
        }
        Ok(())
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
        let completion = self.node.store.completion(self.node.lease(), self.node.now()).await?;
        let events = waiting
            .into_iter()
            .map(|(run, group_id)| LinkEvent::Arrived { group_id, run })
            .collect();
        self.work_events(completion, events).await
    }

    async fn work_events(
        self: &Arc<Self>,
        mut completion: Completion,
        events: Vec<LinkEvent>,
    ) -> Result<(), EngineError> {
        let mut successes: Vec<Success> = Vec::new();
        let mut weigh: BTreeSet<RunId> = BTreeSet::new();
        let mut gates: BTreeSet<i64> = BTreeSet::new();
        let mut changed: BTreeSet<i64> = BTreeSet::new();
        let mut left_out: Vec<(i64, Time)> = Vec::new();
        for event in events {
            match event {
                LinkEvent::Succeeded(success) => successes.push(success),
                LinkEvent::Arrived { group_id, run } => {
                    gates.insert(group_id);
                    weigh.insert(run);
                }
                LinkEvent::Changed(group_id) => drop(changed.insert(group_id)),
                LinkEvent::LeftOut { group_id, logical_time } => {
                    changed.insert(group_id);
                    left_out.push((group_id, logical_time));
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
        let (runs, contexts) = self
            .called_for(&mut completion, &successes, &first, &left_out, &followers)
            .await?;
        let waiting = completion.lock_waiting(&weigh.into_iter().collect::<Vec<_>>()).await?;
        let weighed = self.weigh(&mut completion, waiting).await?;
        completion.write_weighed(&weighed).await?;
        let mut runs = runs;
        self.runs.hand_out(&mut runs);
        let created = completion.create(&runs).await?;
        completion.commit().await?;
        self.runs.created(runs.into_iter().zip(contexts), &created);
        if weighed.iter().any(|entry| entry.lacks.is_empty()) {
            self.node.signals.raise(Signal::Inbox);
        }
        Ok(())
    }

    async fn family(&self, completion: &mut Completion, groups: &[i64]) -> Result<Family, EngineError> {
        let links = completion.links_above(groups).await?;
        let mut family = Family {
            above: HashMap::new(),
            revisions: HashMap::new(),
            names: HashMap::new(),
        };
        for link in links {
            if let Entry::Vacant(vacant) = family.revisions.entry(link.upstream_id) {
                vacant.insert(self.node.catalog.revision(link.revision_id).await?);
                family.names.insert(link.upstream_id, link.name.clone());
            }
            family.above.entry(link.group_id).or_default().push(link);
        }
        Ok(family)
    }

    /// Finds out what waiting runs lack.
    async fn weigh(&self, completion: &mut Completion, waiting: Vec<WaitingRun>) -> Result<Vec<Weighed>, EngineError> {
        if waiting.is_empty() {
            return Ok(Vec::new());
        }
        let groups: BTreeSet<i64> = waiting.iter().map(|one| one.group_id).collect();
        let family = self.family(completion, &groups.into_iter().collect::<Vec<_>>()).await?;
        let mut weighed = Vec::with_capacity(waiting.len());
        for one in waiting {
            let mut lacks = Vec::new();
            let mut told = Vec::new();
            for link in family.above(one.group_id) {
                let missing = if link.interval {
                    interval_lacks(
                        completion,
                        &family,
                        link.upstream_id,
                        one.interval,
                        LACKS_MAX - lacks.len(),
                    )
                    .await?
                } else {
                    latest_lack(completion, &family, link.upstream_id, one.logical_time)
                        .await?
                        .into_iter()
                        .collect()
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
            weighed.push(Weighed {
                run: one.run,
                group_id: one.group_id,
                lacks,
                waiting_for,
            });
        }
        Ok(weighed)
    }

    /// The runs that successes call for, and instants that were left out.
    async fn called_for(
        self: &Arc<Self>,
        completion: &mut Completion,
        successes: &[Success],
        first: &[bool],
        left_out: &[(i64, Time)],
        followers: &[Follower],
    ) -> Result<(Vec<heddle_store::live::NewRun>, Vec<Arc<crate::RunContext>>), EngineError> {
        let now = self.node.now();
        let mut wanted: Vec<(&Follower, Time, Option<Uuid>)> = Vec::new();
        for (success, &first) in successes.iter().zip(first) {
            // A backfill calls for dependants only if it says so; what succeeds again calls for nothing.
            if !(success.cascades || (first && !success.backfilled)) {
                continue;
            }
            let source = success.source.filter(|_| success.cascades);
            for follower in followers
                .iter()
                .filter(|one| one.upstream_id == success.group_id && one.enabled)
            {
                if !follower.scheduled {
                    wanted.push((follower, success.logical_time, source));
                } else if source.is_some() {
                    for at in self.touched(follower, success, now).await? {
                        wanted.push((follower, at, source));
                    }
                }
            }
        }
        for &(group, at) in left_out {
            let lacked = followers
                .iter()
                .filter(|one| one.upstream_id == group && one.enabled && !one.scheduled);
            wanted.extend(lacked.map(|follower| (follower, at, None)));
        }
        wanted.sort_unstable_by_key(|entry| (entry.0.group_id, entry.1));
        wanted.dedup_by_key(|entry| (entry.0.group_id, entry.1));
        if wanted.is_empty() {
            return Ok(Default::default());
        }
        let groups: BTreeSet<i64> = wanted.iter().map(|entry| entry.0.group_id).collect();
        let family = self.family(completion, &groups.into_iter().collect::<Vec<_>>()).await?;
        let pairs: Vec<(i64, Time)> = wanted
            .iter()
            .filter(|entry| !entry.0.scheduled)
            .flat_map(|entry| {
                family
                    .above(entry.0.group_id)
                    .iter()
                    .map(|link| (link.upstream_id, entry.1))
            })
            .collect();
        let mut succeeded: HashSet<(i64, Time)> = completion.succeeded_at(&pairs).await?.into_iter().collect();
        let unnoted: Vec<(i64, Time)> = pairs.into_iter().filter(|pair| !succeeded.contains(pair)).collect();
        succeeded.extend(completion.succeeded_unnoted(&unnoted).await?);
        let (mut runs, mut contexts) = (Vec::new(), Vec::new());
        // It has no run for that instant either, and must not hold up who follows it.
        let mut passed_on = Vec::new();
        for (follower, at, source) in wanted {
            let above = family.above(follower.group_id);
            if !follower.scheduled {
                match call(completion, &family, above, &succeeded, at).await? {
                    Call::Waits => continue,
                    Call::Starts => {}
                    Call::LeftOut => {
                        passed_on.push((follower.group_id, at));
                        continue;
                    }
                }
            }
            let Some(group) = self.node.catalog.group(&follower.name).await? else {
                continue;
            };
            let revision = &group.revision;
            let interval = if follower.scheduled {
                revision.calendar.data_interval(at)
            } else {
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
            let (run, context) = self.runs.lay_out(revision, &group.resolution, layout, now);
            runs.push(run);
            contexts.push(context);
        }
        completion.tell_left_out(&passed_on).await?;
        Ok((runs, contexts))
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
