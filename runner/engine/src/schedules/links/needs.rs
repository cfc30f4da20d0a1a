//! What a waiting run needs from an upstream group.
//!
//! The *instants* of a group are those of its schedules, and those for which it has runs. A group without schedules
//! that follows others has the instants that are common to those; a group that skips an instant does not count there.
//! A group that follows nobody has the logical times of its runs.
//!
//! * `latest`: the last instant at or before the run's logical time. Until the upstream's scheduler has passed that
//!   time, it follows from the schedules. Afterwards it is the last instant that got a run (instants that a misfire
//!   skipped are not waited for), or at which the upstream, or all of its schedules, were disabled.
//! * `interval`: every instant from the data interval's start, inclusive, to its end, exclusive. An instant without a
//!   run (before the group existed, or skipped by a misfire) is waited for only if the upstream keeps `history`,
//!   because only then a backfill can create its run. So the instants are those of a backfill: of enabled schedules, or
//!   of all if no enabled one has past instants.
//!
//! No follower waits for an instant at which the group was disabled, or which its overlap skipped. The same holds if only
//! those of its schedules were disabled that name the instant, unless it has a run all the same. A backfill makes the runs
//! of such instants too: so for the runs of dependants that it calls for (`historic`), the switches of schedules excuse
//! nothing, or they would begin before it has made what they need. If an excused instant is the last one, `latest` does
//! not wait for the one before it either. All others must succeed: a failed run keeps its
//! followers waiting until it is restarted or overridden. The links are those of the group as it is now, not as of the
//! run's creation: if a broken upstream is removed from `depends_on`, its followers continue.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use chrono::TimeDelta;
use heddle_domain::Time;
use heddle_domain::spec::Need;
use heddle_domain::state::RunState;
use heddle_domain::wait::RunWait;
use heddle_store::live::Completion;
use heddle_store::upstream::{Above, ExcusedTimes, WaitingRun, Weighed};

use super::{Schedules, unless_unreadable};
use crate::EngineError;
use crate::node::catalog::Revision;
use crate::schedules::backfill::Source;

/// How many missing instants of a run are kept, and shown to people; when these have succeeded, the run is checked
/// again.
const LACKS_MAX: usize = 100;

/// How many instants an interval may have; further ones are not checked.
const INSTANTS_MAX: usize = 1_000_000;

/// How many groups without schedules may follow one another; beyond that, their instants are not computed.
const DEPTH_MAX: u32 = 100;

/// How often one of the groups above is asked for an instant that the others may have too; if they have none by then, they
/// count as having none in common.
const COMMON_MAX: usize = 1_000;

/// Times have microseconds: this is from one to the next.
pub(super) const MICRO: TimeDelta = TimeDelta::microseconds(1);

/// What is known of the upstream groups, at any depth, of some groups.
pub(super) struct Family {
    above: HashMap<i64, Vec<Above>>,
    pub revisions: HashMap<i64, Arc<Revision>>,
}

impl Family {
    pub fn above(&self, group: i64) -> &[Above] {
        self.above.get(&group).map_or(&[], Vec::as_slice)
    }

    fn revision(&self, group: i64) -> Result<&Arc<Revision>, EngineError> {
        self.revisions
            .get(&group)
            .ok_or_else(|| EngineError::unreadable(format!("the revision of group {group}")))
    }
}

impl Schedules {
    /// The groups above these; groups with an unreadable revision have none in it.
    pub(super) async fn family(&self, completion: &mut Completion, groups: &[i64]) -> Result<Family, EngineError> {
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

    /// Finds out what waiting runs lack; runs for which that is impossible keep waiting.
    pub(super) async fn weigh_all(
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
}

/// Finds out what a waiting run lacks.
async fn weigh(completion: &mut Completion, family: &Family, one: WaitingRun) -> Result<Weighed, EngineError> {
    let mut lacks = Vec::new();
    let mut waiting_for = Vec::new();
    for link in family.above(one.group_id) {
        let missing = if link.interval {
            let limit = LACKS_MAX - lacks.len();
            let within = (one.interval, limit);
            interval_lacks(completion, family, link.upstream_id, within, one.historic).await?
        } else {
            let lack = latest_lack(completion, family, link.upstream_id, one.logical_time, one.historic).await?;
            lack.into_iter().collect()
        };
        let need = if link.interval { Need::Interval } else { Need::Latest };
        for instant in missing {
            waiting_for.push(RunWait::Upstream {
                group: link.name.clone(),
                instant,
                need,
            });
            lacks.push((link.upstream_id, instant));
        }
        if lacks.len() >= LACKS_MAX {
            break;
        }
    }
    if lacks.is_empty() {
        waiting_for.push(RunWait::Gate);
    }
    Ok(Weighed {
        run: one.run,
        group_id: one.group_id,
        lacks,
        waiting_for,
    })
}

/// The last instant at or before `at` for which a group must have succeeded; `None`: there is none.
async fn latest(
    completion: &mut Completion,
    family: &Family,
    group: i64,
    at: Time,
    historic: bool,
    depth: u32,
) -> Result<Option<Time>, EngineError> {
    let revision = family.revision(group)?;
    let made = completion.last_made_instant(group, at).await?;
    let newer = |instant: &Time| made.is_none_or(|made| *instant > made);
    if !revision.schedules.is_empty() {
        // If all are disabled, its instants go on to be theirs, as those of a disabled group do.
        let calendar = match revision.calendar.is_empty() {
            true => &revision.past,
            false => &revision.calendar,
        };
        let Some(named) = calendar.latest(at).filter(newer) else {
            return Ok(made);
        };
        // Before the scheduler has passed it, it follows from the schedules; afterwards, from the runs.
        let open = completion.next_of_group(group).await?.is_some_and(|next| next <= at);
        let counts = open || was_disabled(completion, revision, named, historic).await?;
        return Ok(if counts { Some(named) } else { made });
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
        match Box::pin(latest(completion, family, link.upstream_id, at, historic, depth + 1)).await? {
            Some(instant) => latests.push((link.upstream_id, instant)),
            None => return Ok(made),
        }
    }
    // The newest of these instants. But if an upstream has not reached it and has not skipped it, the oldest of them.
    let newest = latests.iter().map(|entry| entry.1).max();
    let mut common = newest;
    for &(upstream, instant) in &latests {
        if let Some(newest) = newest.filter(|newest| *newest > instant)
            && !excused(completion, family, upstream, (newest, newest), historic, depth + 1)
                .await?
                .covers(newest)
        {
            common = latests.iter().map(|entry| entry.1).min();
            break;
        }
    }
    let Some(common) = common.filter(newer) else {
        return Ok(made);
    };
    let pairs: Vec<(i64, Time)> = above.iter().map(|link| (link.upstream_id, common)).collect();
    let succeeded = completion.succeeded_at(&pairs).await?;
    let counts = match call(completion, family, above, &succeeded, common, historic).await? {
        Call::Waits | Call::LeftOut => true,
        // Its upstreams have succeeded, and there is no run: it was disabled, it did not follow them yet, or the run
        // will never be created.
        Call::Starts => was_disabled(completion, revision, common, historic).await?,
    };
    Ok(if counts { Some(common) } else { made })
}

/// Whether a group was disabled at an instant, or all of its schedules were.
async fn was_disabled(
    completion: &mut Completion,
    revision: &Revision,
    at: Time,
    historic: bool,
) -> Result<bool, EngineError> {
    let times = completion.excused_between(revision.group_id, at, at).await?;
    let was_off = |name: &String| times.schedules.iter().any(|(disabled, _)| disabled == name);
    let all_off = !historic && !revision.schedules.is_empty() && revision.schedules.keys().all(was_off);
    Ok(all_off || !times.disabled.is_empty())
}

/// The instant that is missing for a `latest` link.
async fn latest_lack(
    completion: &mut Completion,
    family: &Family,
    group: i64,
    at: Time,
    historic: bool,
) -> Result<Option<Time>, EngineError> {
    let Some(instant) = latest(completion, family, group, at, historic, 0).await? else {
        return Ok(None);
    };
    let known = completion.known_instants(group, instant, instant).await?;
    if !known.succeeded.is_empty() || !known.skipped.is_empty() {
        return Ok(None);
    }
    if completion.newest_run_at(group, instant).await? == Some((instant, RunState::Succeeded)) {
        return Ok(None);
    }
    if excused(completion, family, group, (instant, instant), historic, 0)
        .await?
        .covers(instant)
    {
        return Ok(None);
    }
    // A run that was repeated before anybody followed the group.
    let unnoted = completion.succeeded_unnoted(&[(group, instant)]).await?;
    Ok(unnoted.is_empty().then_some(instant))
}

/// The times and instants of a group for which no follower waits.
struct Excused {
    times: ExcusedTimes,
    /// The group's revision, if the switches of its schedules count.
    switched: Option<Arc<Revision>>,
    /// For a group without schedules, the groups that it follows: an instant that all of them skip gets no run here
    /// either.
    above: Vec<Excused>,
}

impl Excused {
    fn covers(&self, at: Time) -> bool {
        self.times.skipped.contains(&at)
            || self.times.disabled.iter().any(|time| is_within(*time, at))
            || self.is_switched_off(at)
            || (!self.above.is_empty() && self.above.iter().all(|above| above.covers(at)))
    }

    /// Whether the schedules that name an instant were disabled then, all of them, and nobody made a run for it.
    fn is_switched_off(&self, at: Time) -> bool {
        let Some(revision) = &self.switched else {
            return false;
        };
        let mut off = (self.times.schedules.iter())
            .filter(|(_, time)| is_within(*time, at))
            .map(|(name, _)| name)
            .peekable();
        // Most groups have no schedule that is disabled: the others are not asked what they name.
        if off.peek().is_none() || self.times.made.contains(&at) {
            return false;
        }
        let off: HashSet<&String> = off.collect();
        let mut naming = (revision.schedules.iter())
            .filter(|(_, schedule)| schedule.names(at))
            .map(|(name, _)| name)
            .peekable();
        naming.peek().is_some() && naming.all(|name| off.contains(name))
    }
}

/// Whether an instant is in a time, both ends included; without an end, the time goes on.
fn is_within((since, until): (Time, Option<Time>), at: Time) -> bool {
    since <= at && until.is_none_or(|until| at <= until)
}

/// When a group, or all groups that give it its instants, was disabled or skipped something.
async fn excused(
    completion: &mut Completion,
    family: &Family,
    group: i64,
    (from, to): (Time, Time),
    historic: bool,
    depth: u32,
) -> Result<Excused, EngineError> {
    let revision = family.revision(group)?;
    let mut excused = Excused {
        times: completion.excused_between(group, from, to).await?,
        switched: (!historic).then(|| revision.clone()),
        above: Vec::new(),
    };
    if revision.schedules.is_empty() && depth < DEPTH_MAX {
        for link in family.above(group) {
            let (upstream, within) = (link.upstream_id, (from, to));
            let more = Box::pin(self::excused(completion, family, upstream, within, historic, depth + 1)).await?;
            excused.above.push(more);
        }
    }
    Ok(excused)
}

/// What an instant means for a group without schedules.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// It has to wait for a group.
    Waits,
    /// One of its upstream groups has succeeded. All others have succeeded too, or no follower waits for them.
    Starts,
    /// All of its upstream groups skipped it.
    LeftOut,
}

/// What an instant means for a group that follows these. `historic`: a backfill calls for it.
pub(super) async fn call(
    completion: &mut Completion,
    family: &Family,
    above: &[Above],
    succeeded: &HashSet<(i64, Time)>,
    at: Time,
    historic: bool,
) -> Result<Call, EngineError> {
    let (done, open): (Vec<&Above>, Vec<&Above>) = above
        .iter()
        .partition(|link| succeeded.contains(&(link.upstream_id, at)));
    for link in open {
        if !excused(completion, family, link.upstream_id, (at, at), historic, 0)
            .await?
            .covers(at)
        {
            return Ok(Call::Waits);
        }
    }
    Ok(if done.is_empty() { Call::LeftOut } else { Call::Starts })
}

/// The instants of a group's schedules that a backfill would use, or of those that it follows, from `from` to `to`.
fn instants(family: &Family, group: i64, from: Time, to: Time, depth: u32) -> Result<BTreeSet<Time>, EngineError> {
    let revision = family.revision(group)?;
    if !revision.schedules.is_empty() {
        return Ok(revision.past.instants(from, to).take(INSTANTS_MAX).collect());
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

/// The first instant of a group after `after`, up to `to`: one of its schedules (of disabled ones, if a backfill uses
/// those), or of this backfill, or one that the groups above have in common, or one that has a run.
pub(super) async fn next_instant(
    completion: &mut Completion,
    family: &Family,
    backfill: Option<&Source>,
    group: i64,
    (mut after, to): (Time, Time),
    depth: u32,
) -> Result<Option<Time>, EngineError> {
    let revision = family.revision(group)?;
    let from = after + MICRO;
    let made = completion.first_made_instant(group, from, to).await?;
    let named = revision.past.instants(from, to).next();
    let planned = backfill.and_then(|backfill| backfill.first(group, from, to));
    let own = [made, named, planned].into_iter().flatten().min();
    let above = family.above(group);
    if !revision.schedules.is_empty() || above.is_empty() || depth >= DEPTH_MAX {
        return Ok(own);
    }
    let to = own.unwrap_or(to);
    for _ in 0..COMMON_MAX {
        let mut nexts = BTreeSet::new();
        for link in above {
            let (group, within) = (link.upstream_id, (after, to));
            match Box::pin(next_instant(completion, family, backfill, group, within, depth + 1)).await? {
                Some(next) => drop(nexts.insert(next)),
                None => return Ok(own),
            }
        }
        let Some(last) = nexts.pop_last() else { break };
        if nexts.is_empty() {
            return Ok(Some(last));
        }
        // Before the last of these, the upstream groups have no instant in common.
        after = last - MICRO;
    }
    Ok(own)
}

/// The first `limit` missing instants of an `interval` link.
async fn interval_lacks(
    completion: &mut Completion,
    family: &Family,
    group: i64,
    ((from, end), limit): ((Time, Time), usize),
    historic: bool,
) -> Result<Vec<Time>, EngineError> {
    if end <= from {
        return Ok(Vec::new());
    }
    let to = end - MICRO;
    let revision = family.revision(group)?;
    let known = completion.known_instants(group, from, to).await?;
    let next = completion.next_of_group(group).await?;
    let succeeded: BTreeSet<Time> = known.succeeded.into_iter().collect();
    let made: BTreeSet<Time> = known.made.into_iter().collect();
    let excused = excused(completion, family, group, (from, to), historic, 0).await?;
    let mut all = instants(family, group, from, to, 0)?;
    all.extend(&made);
    let can_be_made_up = |at: Time| revision.plan.spec.history || next.is_some_and(|next| next <= at);
    let open: Vec<(i64, Time)> = all
        .into_iter()
        .filter(|at| !succeeded.contains(at) && !excused.covers(*at))
        .filter(|at| made.contains(at) || can_be_made_up(*at))
        .map(|at| (group, at))
        .collect();
    // Runs that were repeated, or created by hand for an instant, before anybody followed the group. Usually the first look
    // finds enough that is missing.
    let mut lacks = Vec::new();
    for some in open.chunks(LACKS_MAX) {
        let unnoted: HashSet<(i64, Time)> = completion.succeeded_unnoted(some).await?.into_iter().collect();
        lacks.extend(some.iter().filter(|pair| !unnoted.contains(*pair)).map(|pair| pair.1));
        if lacks.len() >= limit {
            break;
        }
    }
    lacks.truncate(limit);
    Ok(lacks)
}
