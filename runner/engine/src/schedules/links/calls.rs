//! The runs that have to be created after a success.
//!
//! A follower without schedules gets a run (trigger `upstream`) for the logical time if all of its upstreams have
//! succeeded for it, if it is enabled, and if it has none yet. Upstreams that were disabled then, or whose overlap
//! skipped that instant, do not count, as long as one has succeeded; so a skipped instant may call for runs that waited
//! only for it. A backfilled success calls for runs only if its backfill includes dependants and has not been
//! cancelled; then followers with schedules get runs as well, for those of their instants that need it (so the twelfth
//! month of a year creates the yearly summary, which has waited since the first month). Their instants are those
//! that a backfill of the follower would have: also of its disabled schedules, if no enabled one has past instants. The
//! data intervals of followers without schedules are those of a backfill of their upstreams in the same way.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use heddle_domain::Time;
use heddle_domain::backfill::Urgency;
use heddle_domain::state::Trigger;
use heddle_store::live::{Completion, NewRun};
use heddle_store::upstream::{Follower, LeftEvent, Success};
use uuid::Uuid;

use super::needs::{self, Call, Family, MICRO};
use super::{Schedules, unless_unreadable};
use crate::runs::create::submit::Layout;
use crate::{EngineError, RunContext};

/// How many runs of one follower are created after one backfilled success.
const CASCADE_MAX: usize = 10_000;

/// A follower that may be called for an instant, and by which event.
#[derive(Clone, Copy)]
pub(super) struct Calling<'a> {
    follower: &'a Follower,
    /// The instant of the event; a follower with schedules is [called](Schedules::spread) for its own instants that need it.
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

/// The followers that successes and skipped instants may call for runs.
pub(super) fn called_by<'a>(
    successes: &[(i64, &Success, bool)],
    left_out: &[(i64, i64, Time)],
    followers: &'a [Follower],
) -> Vec<Calling<'a>> {
    let mut calls = Vec::new();
    let mut call = |event: LeftEvent, source: Option<(Uuid, Urgency)>| {
        let callable = followers
            .iter()
            .filter(|one| one.upstream_id == event.group_id && one.enabled && (!one.scheduled || source.is_some()));
        calls.extend(callable.map(|follower| Calling {
            follower,
            at: event.logical_time,
            source,
            event,
        }));
    };
    for &(id, success, first) in successes {
        // A backfilled success creates runs of dependants only if the backfill includes them. A repeated success
        // creates none.
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
        call(event, source);
    }
    for &(id, group_id, logical_time) in left_out {
        let event = LeftEvent {
            id,
            group_id,
            logical_time,
            cascade: None,
        };
        call(event, None);
    }
    calls
}

impl Schedules {
    /// Calls followers with schedules for those of their instants that need the successful one. The result has each
    /// follower once for an instant, in their order.
    async fn spread<'a>(
        &self,
        completion: &mut Completion,
        family: &Family,
        calls: Vec<Calling<'a>>,
        called: &mut Called,
    ) -> Result<Vec<Calling<'a>>, EngineError> {
        let mut spread = Vec::with_capacity(calls.len());
        for call in calls {
            if !call.follower.scheduled {
                spread.push(call);
                continue;
            }
            let touched = self.touched(completion, family, &call).await;
            match unless_unreadable(touched, call.follower.group_id)? {
                Some(touched) => spread.extend(touched.into_iter().map(|at| Calling { at, ..call })),
                None => called.leave(call.event),
            }
        }
        spread.sort_unstable_by_key(|call| (call.follower.group_id, call.at));
        spread.dedup_by_key(|call| (call.follower.group_id, call.at));
        Ok(spread)
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
        let calls = self.spread(completion, &family, calls, called).await?;
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
        // The follower gets no run for that instant either, and its own followers must not wait for that run.
        let mut passed_on = Vec::new();
        for call in calls {
            let Calling {
                follower, at, source, ..
            } = call;
            let above = family.above(follower.group_id);
            if !follower.scheduled {
                let decided = needs::call(completion, &family, above, &succeeded, at, source.is_some()).await;
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
            // It is called only because of a backfill, which gives its own runs these intervals.
            revision.past.data_interval(at)
        } else {
            let mut start = at;
            for link in family.above(follower.group_id) {
                let Some(revision) = family.revisions.get(&link.upstream_id) else {
                    continue;
                };
                // The upstream's own run has an interval of the same calendar.
                let calendar = match source {
                    Some(_) => &revision.past,
                    None => &revision.calendar,
                };
                let previous = match revision.calendar.has_delay() {
                    true => completion.last_made_instant(link.upstream_id, at - MICRO).await?,
                    false => None,
                };
                start = start.min(calendar.data_interval_from(previous, at).0);
            }
            (start, at)
        };
        let mut layout = Layout::of_time(Trigger::Upstream, revision, at, interval);
        if let Some((source, urgency)) = source {
            layout.terms.source = Some(source);
            layout.terms.priority = urgency.priority(revision.plan.spec.priority);
        }
        let now = self.node.now();
        Ok(Some(self.runs.lay_out(revision, &group.resolution, layout, now)))
    }

    /// The instants of a follower with schedules, up to now, that need the successful one.
    async fn touched(
        &self,
        completion: &mut Completion,
        family: &Family,
        call: &Calling<'_>,
    ) -> Result<Vec<Time>, EngineError> {
        let Calling {
            follower, at, source, ..
        } = *call;
        let Some(group) = self.node.catalog.group(&follower.name).await? else {
            return Ok(Vec::new());
        };
        if !group.revision.plan.spec.history {
            return Ok(Vec::new());
        }
        let now = self.node.now();
        let calendar = &group.revision.past;
        if follower.interval {
            // The interval that contains it belongs to the first instant after it.
            return Ok(calendar.instants(at + MICRO, now).next().into_iter().collect());
        }
        // It is the latest until the upstream's next instant, which the backfill may still have to make.
        let source = match source {
            Some((id, _)) => self.source_of(id).await?,
            None => None,
        };
        let next = needs::next_instant(
            completion,
            family,
            source.as_deref(),
            follower.upstream_id,
            (at, now),
            0,
        )
        .await?;
        let until = next.map_or(now, |next| next - MICRO);
        Ok(calendar.instants(at, until).take(CASCADE_MAX).collect())
    }
}
