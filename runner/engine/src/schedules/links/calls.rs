//! The runs that a success calls for.
//!
//! A follower without schedules gets a run (trigger `upstream`) for the logical time if all of its upstreams have
//! succeeded for it, if it is enabled, and if it has none yet. Upstreams that were disabled then, or whose overlap
//! skipped that instant, do not count, as long as one has succeeded; so a skipped instant may call for runs that waited
//! only for it. A backfilled success calls for runs only if its backfill includes dependants and has not been
//! cancelled; then followers with schedules get runs as well, for those of their instants that need it (so the twelfth
//! month of a year creates the yearly summary, which has waited since the first month).

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use heddle_domain::Time;
use heddle_domain::backfill::Urgency;
use heddle_domain::state::Trigger;
use heddle_store::live::{Completion, NewRun};
use heddle_store::upstream::{Follower, LeftEvent, Success};
use uuid::Uuid;

use super::needs::{self, Call, Family};
use super::{Schedules, unless_unreadable};
use crate::runs::submit::Layout;
use crate::{EngineError, RunContext};

/// How many runs one backfilled success calls for in one follower.
const CASCADE_MAX: usize = 10_000;

/// A follower that may be called for an instant, and by which event.
#[derive(Clone, Copy)]
pub(super) struct Calling<'a> {
    follower: &'a Follower,
    at: Time,
    /// The backfill that causes its run, and how urgent that is.
    source: Option<(Uuid, Urgency)>,
    event: LeftEvent,
}

/// The results of the events of one transaction.
#[derive(Default)]
pub(super) struct Called {
    pub runs: Vec<NewRun>,
    pub contexts: Vec<Arc<RunContext>>,
    /// Events that could not be handled for a follower.
    pub left: Vec<LeftEvent>,
}

impl Called {
    fn leave(&mut self, event: LeftEvent) {
        if !self.left.contains(&event) {
            self.left.push(event);
        }
    }
}

impl Schedules {
    /// The followers that successes and skipped instants call for a run: each follower once for an instant, in their
    /// order.
    pub(super) async fn calls<'a>(
        &self,
        successes: &[(i64, &Success, bool)],
        left_out: &[(i64, i64, Time)],
        followers: &'a [Follower],
        called: &mut Called,
    ) -> Result<Vec<Calling<'a>>, EngineError> {
        let now = self.node.now();
        let mut calls: Vec<Calling<'a>> = Vec::new();
        for &(id, success, first) in successes {
            // A backfilled success calls for dependants only if the backfill says so; a repeated success calls for
            // nothing.
            if !(success.cascades.is_some() || (first && !success.backfilled)) {
                continue;
            }
            let source = success.source.zip(success.cascades);
            let event = LeftEvent {
                id,
                group_id: success.group_id,
                logical_time: success.logical_time,
                cascade: source.map(|(source, _)| (success.run, source, success.backfilled)),
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

    /// Lays out the runs that are called for, of those followers that wait for nobody else. `succeeded`: the successes of
    /// this transaction; the others are read.
    pub(super) async fn answer(
        self: &Arc<Self>,
        completion: &mut Completion,
        calls: Vec<Calling<'_>>,
        mut succeeded: HashSet<(i64, Time)>,
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
            .filter(|pair| !succeeded.contains(pair))
            .collect();
        succeeded.extend(completion.succeeded_at(&pairs).await?);
        let unnoted: Vec<(i64, Time)> = pairs.into_iter().filter(|pair| !succeeded.contains(pair)).collect();
        succeeded.extend(completion.succeeded_unnoted(&unnoted).await?);
        // The follower gets no run for that instant either, and must not hold up its own followers.
        let mut passed_on = Vec::new();
        for call in calls {
            let Calling { follower, at, .. } = call;
            let above = family.above(follower.group_id);
            if !follower.scheduled {
                let decided = needs::call(completion, &family, above, &succeeded, at).await;
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
            match unless_unreadable(self.run_of(completion, &family, &call).await, follower.group_id)? {
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

    /// The run of a follower that is called for; `None`: the follower does not exist any more.
    async fn run_of(
        &self,
        completion: &mut Completion,
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
            let mut start = at;
            for link in family.above(follower.group_id) {
                let Some(revision) = family.revisions.get(&link.upstream_id) else {
                    continue;
                };
                let calendar = &revision.calendar;
                let previous = match calendar.has_delay() {
                    true => {
                        let before = at - chrono::TimeDelta::microseconds(1);
                        completion.last_made_instant(link.upstream_id, before).await?
                    }
                    false => None,
                };
                start = start.min(calendar.data_interval_from(previous, at).0);
            }
            (start, at)
        };
        let layout = Layout {
            source: source.map(|(source, _)| source),
            urgency: source.map_or(Urgency::Usual, |(_, urgency)| urgency),
            ..Layout::of_time(Trigger::Upstream, revision, at, interval)
        };
        let now = self.node.now();
        Ok(Some(self.runs.lay_out(revision, &group.resolution, layout, now)))
    }

    /// The instants of a follower with schedules, up to now, that need the successful one.
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
            // The interval that contains it belongs to the first instant after it.
            let after = at + chrono::TimeDelta::microseconds(1);
            return Ok(calendar.instants(after, now).next().into_iter().collect());
        }
        // It is the latest until the upstream's next instant.
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
