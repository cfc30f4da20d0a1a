//! The gate of a group: which of its waiting runs begin.
//!
//! `max_active_runs` bounds all runs except backfilled ones. `overlap` applies among *timed* runs, those that a
//! schedule or an upstream created. (Runs of a backfill, or of its `include_downstream`, are not timed: timed runs and
//! these do not hold up each other.)
//!
//! | overlap | a timed run that comes while another one is active |
//! |---|---|
//! | `queue` | waits; the highest priority goes first, then the earliest logical time |
//! | `skip` | is skipped |
//! | `allow` | begins |
//! | `cancel_previous` | cancels those before it, and begins when they have stopped; if a later one is active or waits, it is skipped |
//!
//! Of the timed runs that wait at the gate, at most `max_waiting` stay: beyond that the oldest is skipped. Until the
//! next check there may be one more than that. Two checks of a group never happen at once, so after each check at most
//! `max_waiting` wait. Runs that wait for upstreams are not counted: they wait for a repair.
//!
//! A skipped run never began: it ends as `cancelled`, with the reason in `skipped` and as text in its error. No
//! follower waits for its instant, nor for that of a run that `cancel_previous` has cancelled. If such a run is
//! restarted, or its state is set, its instant counts like any other.
//!
//! A run that is reopened (restart, retry now, an override) waits for `max_active_runs` like a new one, if its revision
//! has that bound. Overlap applies only to new runs.
//!
//! A run is active from its begin to its end. A run that still waits for upstreams is not active: no other run waits
//! for it.
//!
//! A run's end wakes the gate if the run's revision has one. Runs older than a bound do not, so gates with waiting runs
//! are also checked every few seconds.
//!
//! A group's gate is an advisory lock, held from before the check until the commit, so that two nodes never admit runs
//! of one group at once.
//!
//! A transaction that holds a group's gate when it creates a run of it (the links do) lets the run begin at once if it
//! is the only run behind that gate: a short way, which saves the second transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::notify::rules::{Announcements, Notice};
use heddle_domain::run::Event;
use heddle_domain::spec::{NotifyEvent, Overlap};
use heddle_domain::state::{RunState, Skip, Trigger};
use heddle_store::live::{ActiveRun, AtGate, Completion, Gate, Grant, LockedRun, NewRun, RunWrite};
use heddle_store::notice::NewNotices;

use crate::node::catalog::{Revision, is_timed};
use crate::node::short_ways::ShortWay;
use crate::node::signals::Signal;
use crate::runs::change::apply::After;
use crate::runs::change::notices::new_notices;
use crate::runs::change::transition::{Snapshot, Transition};
use crate::runs::contexts::Contexts;
use crate::runs::control::BulkAction;
use crate::{EngineError, RunContext, Runs};

/// How many waiting runs one check decides about at most, per group and for all groups together (a node must be able to
/// keep their facts in memory, see [`crate::runs::contexts::CONTEXTS_MAX`]): half of them timed runs, and half others, so
/// that neither hold up the others. If more wait at a gate, it is checked again.
const ADMIT_MAX: usize = 1_000;
const APPLICANTS_MAX: usize = 2_000;

/// The decisions of a gate.
#[derive(Debug, Default, PartialEq, Eq)]
struct Admission {
    admitted: Vec<RunId>,
    /// Runs that end without having begun, each with the reason.
    skipped: Vec<(RunId, Skipped)>,
    /// These must stop first.
    cancelled: Vec<RunId>,
}

/// Why a run is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skipped {
    /// This earlier run was active.
    For(RunId),
    /// This later run cancels all runs before it.
    Replaced(RunId),
    /// More than this many waited.
    MaxWaiting(u32),
}

impl Skipped {
    fn reason(self) -> Skip {
        match self {
            Self::For(_) | Self::Replaced(_) => Skip::Overlap,
            Self::MaxWaiting(_) => Skip::MaxWaiting,
        }
    }

    fn explanation(self) -> String {
        let why = match self {
            Self::For(earlier) => format!("the earlier run {earlier} was still active (overlap: skip)"),
            Self::Replaced(later) => format!("the later run {later} replaced it (overlap: cancel_previous)"),
            Self::MaxWaiting(max) => format!("more than {max} runs waited for their turn"),
        };
        format!("skipped: {}: {why}", self.reason())
    }
}

impl Admission {
    /// How many runs have been decided so far.
    fn decided(&self) -> usize {
        self.admitted.len() + self.skipped.len() + self.cancelled.len()
    }
}

/// A waiting run, as the gate sees it.
struct Applicant {
    run: RunId,
    trigger: Trigger,
    timed: bool,
    logical_time: Time,
    overlap: Overlap,
    max_active: Option<u32>,
}

/// Decides about the runs that wait at one gate, in their order.
fn admit(active: &[ActiveRun], applicants: &[Applicant], admission: &mut Admission) {
    let bounded = |trigger: Trigger| trigger != Trigger::Backfill;
    let mut count = active.iter().filter(|active| bounded(active.trigger)).count();
    let mut timed: Vec<(RunId, Time)> = active
        .iter()
        .filter(|active| is_timed(active.trigger, active.sourced))
        .map(|active| (active.run, active.logical_time))
        .collect();
    // If each of several runs would cancel the one before it, only the last has to begin: by its logical time, because
    // the order of applicants is that of their priorities first.
    let last = applicants
        .iter()
        .enumerate()
        .filter(|(_, applicant)| applicant.timed && applicant.overlap == Overlap::CancelPrevious)
        .max_by_key(|(_, applicant)| applicant.logical_time)
        .map(|(index, _)| index);
    for (index, applicant) in applicants.iter().enumerate() {
        if applicant.timed
            && applicant.overlap == Overlap::CancelPrevious
            && let Some(last) = last.filter(|last| *last != index)
        {
            let later = Skipped::Replaced(applicants[last].run);
            admission.skipped.push((applicant.run, later));
            continue;
        }
        if applicant.timed
            && let Some(&(earlier, _)) = timed.last()
        {
            match applicant.overlap {
                Overlap::Allow => {}
                Overlap::Queue => continue,
                Overlap::Skip => {
                    admission.skipped.push((applicant.run, Skipped::For(earlier)));
                    continue;
                }
                Overlap::CancelPrevious => {
                    // A run for an earlier instant may come later: it was missed, or waited longer for its upstreams.
                    match timed.iter().find(|(_, time)| *time > applicant.logical_time) {
                        Some(&(later, _)) => admission.skipped.push((applicant.run, Skipped::Replaced(later))),
                        None => admission.cancelled.extend(timed.iter().map(|(run, _)| *run)),
                    }
                    continue;
                }
            }
        }
        if bounded(applicant.trigger) && applicant.max_active.is_some_and(|max| count >= max as usize) {
            continue;
        }
        count += usize::from(bounded(applicant.trigger));
        if applicant.timed {
            timed.push((applicant.run, applicant.logical_time));
        }
        admission.admitted.push(applicant.run);
    }
}

/// The results of one check of gates.
#[derive(Default)]
struct GateDecisions {
    admission: Admission,
    /// Groups with more waiting runs than were checked.
    more: Vec<i64>,
    surplus: Vec<Surplus>,
}

/// More runs wait at a gate than the group allows.
struct Surplus {
    group_id: i64,
    /// How many the group allows.
    max: u32,
    /// How many must be skipped.
    many: usize,
    /// Runs for which there is another decision already: they are not skipped for this reason.
    leaving: Vec<RunId>,
}

/// Decides about up to `each` timed runs at every gate, and about as many others; those that are set aside keep waiting. The
/// bounds are those of the groups' current revisions.
fn decide(
    gates: Vec<Gate>,
    each: usize,
    contexts: &Contexts,
    today: &HashMap<i64, Arc<Revision>>,
    passed_over: &[RunId],
) -> GateDecisions {
    let mut decisions = GateDecisions::default();
    let admission = &mut decisions.admission;
    for gate in gates {
        let spec = today.get(&gate.revision_id).map(|revision| &revision.plan.spec);
        let bound = spec.map(|spec| spec.max_active_runs);
        let cut = [true, false].iter().any(|timed| {
            let alike = gate.waiting.iter().filter(|waiting| waiting.timed == *timed);
            alike.count() == each
        });
        let applicants: Vec<Applicant> = gate
            .waiting
            .into_iter()
            .filter(|waiting| !passed_over.contains(&waiting.run))
            .filter_map(|AtGate { run, timed }| {
                let context = contexts.get(&run)?;
                let spec = &context.revision.plan.spec;
                Some(Applicant {
                    run,
                    trigger: context.facts.trigger,
                    timed,
                    logical_time: context.facts.logical_time,
                    overlap: spec.overlap,
                    max_active: bound.unwrap_or(spec.max_active_runs),
                })
            })
            .collect();
        let before = (admission.decided(), admission.admitted.len(), admission.skipped.len());
        admit(&gate.active, &applicants, admission);
        if cut && admission.decided() > before.0 {
            decisions.more.push(gate.group_id);
        }
        let leaving: HashSet<RunId> = (admission.admitted[before.1..].iter())
            .chain(admission.skipped[before.2..].iter().map(|(run, _)| run))
            .copied()
            .collect();
        let timed = applicants.iter().filter(|applicant| applicant.timed);
        let gone = timed.filter(|applicant| leaving.contains(&applicant.run)).count();
        let staying = gate.timed_waiting.saturating_sub(gone);
        if let Some(max) = spec.map(|spec| spec.max_waiting())
            && staying > max as usize
        {
            decisions.surplus.push(Surplus {
                group_id: gate.group_id,
                max,
                many: staying - max as usize,
                leaving: leaving.into_iter().chain(passed_over.iter().copied()).collect(),
            });
        }
    }
    decisions
}

/// The notices about a skipped run, in addition to those about its end.
fn skip_notices(context: &RunContext, notices: Option<Box<NewNotices>>) -> Option<Box<NewNotices>> {
    if !context.revision.subscriptions.anywhere(NotifyEvent::Skipped) {
        return notices;
    }
    let mut notices = notices.unwrap_or_else(|| {
        Box::new(new_notices(
            &context.revision,
            Some(context.facts.id),
            Announcements::default(),
            None,
        ))
    });
    notices.announcements.notices.push(Notice::of_run(NotifyEvent::Skipped));
    Some(notices)
}

impl Runs {
    /// Groups whose waiting runs may begin. Runs that are set aside keep waiting, and no other run waits for them;
    /// `taken` gets the runs that were checked.
    pub(crate) async fn gates(
        self: &Arc<Self>,
        passed_over: &[RunId],
        taken: &mut BTreeSet<RunId>,
    ) -> Result<(), EngineError> {
        let mut completion = self.node.completion("gates").await?;
        let groups = completion.take_gates().await?;
        let each = (APPLICANTS_MAX / groups.len().max(1)).clamp(2, ADMIT_MAX) / 2;
        let gates = completion.gates(&groups, each as i64).await?;
        let waiting: Vec<RunId> = gates
            .iter()
            .flat_map(|gate| &gate.waiting)
            .filter(|waiting| !passed_over.contains(&waiting.run))
            .map(|waiting| waiting.run)
            .collect();
        taken.extend(&waiting);
        let mut contexts = self.contexts.of(&waiting).await?;
        // The bounds are the group's current ones, not those from the creation of a run: raising one lets runs begin.
        let revisions: Vec<i64> = gates.iter().map(|gate| gate.revision_id).collect();
        let today = self.node.catalog.revisions(&revisions).await?;
        let decisions = decide(gates, each, &contexts, &today, passed_over);
        let GateDecisions {
            mut admission,
            mut more,
            surplus,
        } = decisions;
        for Surplus {
            group_id,
            max,
            many,
            leaving,
        } in surplus
        {
            if many > ADMIT_MAX {
                more.push(group_id);
            }
            let oldest = completion
                .oldest_waiting(group_id, &leaving, many.min(ADMIT_MAX) as i64)
                .await?;
            taken.extend(&oldest);
            contexts.extend(self.contexts.of(&oldest).await?);
            let skipped = oldest.into_iter().map(|run| (run, Skipped::MaxWaiting(max)));
            admission.skipped.extend(skipped);
        }
        if !more.is_empty() {
            completion.reopen_gates(&more).await?;
        }
        let cancelled = admission.cancelled.clone();
        let after = self.carry_out(&mut completion, &contexts, admission).await?;
        completion.commit().await?;
        self.acted(after);
        if !groups.is_empty() {
            // There may be more of them.
            self.node.signals.raise(Signal::Inbox);
        }
        for run in cancelled {
            // If it has ended by itself since, this is refused, and its instant counts.
            let cancel = BulkAction::CancelPrevious;
            if let Err(crate::ControlError::Engine(error)) = self.control(run, &cancel, "overlap").await {
                return Err(error);
            }
        }
        Ok(())
    }

    /// For new runs whose groups' gates this transaction holds: a run begins if no other run waits or is active behind
    /// its gate. All others wait at their gates.
    pub(crate) async fn admit_new(
        &self,
        completion: &mut Completion,
        runs: &mut [NewRun],
        contexts: &[Arc<RunContext>],
    ) -> Result<(), EngineError> {
        if !self.node.short_ways.take(ShortWay::FollowerAtOnce) {
            return Ok(());
        }
        let mut at_gates: BTreeMap<i64, Vec<usize>> = BTreeMap::new();
        for (index, run) in runs.iter().enumerate() {
            if run.gated && !run.follows {
                at_gates.entry(run.group_id).or_default().push(index);
            }
        }
        // If there are several, the general way decides about their order.
        at_gates.retain(|_, indexes| indexes.len() == 1);
        let groups: Vec<i64> = at_gates.keys().copied().collect();
        for group in completion.vacant_gates(&groups).await? {
            for &index in &at_gates[&group] {
                let (run, context) = (&mut runs[index], &contexts[index]);
                let spec = &context.revision.plan.spec;
                let applicant = Applicant {
                    run: run.id,
                    trigger: run.terms.trigger,
                    timed: is_timed(run.terms.trigger, run.terms.source.is_some()),
                    logical_time: run.terms.logical_time,
                    overlap: spec.overlap,
                    max_active: spec.max_active_runs,
                };
                let mut admission = Admission::default();
                admit(&[], &[applicant], &mut admission);
                if !admission.admitted.is_empty() {
                    self.node.short_ways.took(ShortWay::FollowerAtOnce);
                    self.begin_at_creation(run, &context.revision);
                }
            }
        }
        Ok(())
    }

    /// Writes the decisions of gates.
    async fn carry_out(
        &self,
        completion: &mut Completion,
        contexts: &Contexts,
        admission: Admission,
    ) -> Result<After, EngineError> {
        let Admission {
            mut admitted, skipped, ..
        } = admission;
        let mut concerned: Vec<RunId> = admitted
            .iter()
            .chain(skipped.iter().map(|(run, _)| run))
            .copied()
            .collect();
        concerned.sort_unstable();
        admitted.sort_unstable();
        let locked = completion.lock_runs(&concerned).await?;
        let now = completion.now();
        let mut after = After::default();
        let mut writes = Vec::new();
        // There is no decision about a run that was paused or has ended since the check. A paused run keeps its
        // `waiting_for`.
        let mut decided = Vec::new();
        let mut grant = self.grant();
        for run in admitted {
            let Some(found) = waiting(&locked, run) else { continue };
            let context = self.contexts.known(contexts, run).await?;
            let started = self
                .transition_by(&context, found, Event::Start, completion, now)
                .await?;
            decided.push(run);
            writes.push(self.write_of(&context, started, &mut grant, &mut after)?);
        }
        let mut left_out = Vec::new();
        for (run, why) in skipped {
            let Some(found) = waiting(&locked, run) else { continue };
            decided.push(run);
            let context = self.contexts.known(contexts, run).await?;
            let cancel = Event::Cancel { withdrawn: Vec::new() };
            let cancelled = self.transition_by(&context, found, cancel, completion, now).await?;
            let write = self.write_of(&context, cancelled, &mut grant, &mut after)?;
            let notices = skip_notices(&context, write.notices);
            after.signals.add_if(notices.is_some(), Signal::Notices);
            after.skipped.push(why.reason());
            writes.push(RunWrite {
                error: Some(why.explanation()),
                skipped: Some(why.reason()),
                notices,
                ..write
            });
            left_out.push(run);
        }
        completion.unwait(&decided).await?;
        if !left_out.is_empty() {
            completion.note_skipped(&left_out).await?;
            after.signals.add(Signal::Links);
        }
        self.write(completion, &writes, &mut after).await?;
        Ok(after)
    }
}

/// A locked run, if it still waits.
fn waiting(locked: &HashMap<RunId, LockedRun>, run: RunId) -> Option<&LockedRun> {
    locked.get(&run).filter(|found| found.state == RunState::Waiting)
}

impl Runs {
    /// What follows from an event for a locked run.
    async fn transition_by(
        &self,
        context: &RunContext,
        found: &LockedRun,
        event: Event,
        completion: &mut Completion,
        now: Time,
    ) -> Result<Transition, EngineError> {
        let snapshot = Snapshot::of(context.facts.id, found)?;
        Ok(self.transition(context, snapshot, &[event], completion, now).await?)
    }

    /// Starts these runs, if they still wait, and rolls that back: an error says that one of them cannot begin.
    pub(crate) async fn try_start(&self, runs: &[RunId]) -> Result<(), EngineError> {
        let mut completion = self.node.completion("try_start").await?;
        let mut runs = runs.to_vec();
        runs.sort_unstable();
        let contexts = self.contexts.of(&runs).await?;
        let locked = completion.lock_runs(&runs).await?;
        let now = completion.now();
        let (mut after, mut writes) = (After::default(), Vec::new());
        for run in runs {
            let Some(found) = waiting(&locked, run) else { continue };
            let context = self.contexts.known(&contexts, run).await?;
            let started = self
                .transition_by(&context, found, Event::Start, &mut completion, now)
                .await?;
            writes.push(self.write_of(&context, started, &mut Grant::none(), &mut after)?);
        }
        self.write(&mut completion, &writes, &mut after).await
        // The transaction is dropped without a commit.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(number: u128) -> RunId {
        RunId(uuid::Uuid::from_u128(number))
    }

    /// The logical time of a run: those with greater numbers are later.
    fn time(number: u128) -> Time {
        chrono::DateTime::UNIX_EPOCH + chrono::TimeDelta::hours(i64::try_from(number).expect("an hour"))
    }

    fn active(number: u128, trigger: Trigger) -> ActiveRun {
        ActiveRun {
            run: run(number),
            trigger,
            sourced: false,
            logical_time: time(number),
        }
    }

    fn check(overlap: Overlap, active: &[ActiveRun], trigger: Trigger, expect: (&[u128], &[(u128, u128)], &[u128])) {
        let applicants: Vec<Applicant> = [10, 11]
            .into_iter()
            .map(|number| Applicant {
                run: run(number),
                trigger,
                timed: is_timed(trigger, false),
                logical_time: time(number),
                overlap,
                max_active: None,
            })
            .collect();
        let mut admission = Admission::default();
        admit(active, &applicants, &mut admission);
        let why = |other| match overlap {
            Overlap::CancelPrevious => Skipped::Replaced(run(other)),
            _ => Skipped::For(run(other)),
        };
        let expect = Admission {
            admitted: expect.0.iter().copied().map(run).collect(),
            skipped: expect.1.iter().map(|&(left, other)| (run(left), why(other))).collect(),
            cancelled: expect.2.iter().copied().map(run).collect(),
        };
        assert_eq!(admission, expect, "{overlap:?} {trigger:?}");
    }

    #[test]
    fn what_overlap_does() {
        let earlier = [active(1, Trigger::Schedule)];
        let schedule = Trigger::Schedule;
        check(Overlap::Queue, &[], schedule, (&[10], &[], &[]));
        check(Overlap::Queue, &earlier, schedule, (&[], &[], &[]));
        check(Overlap::Skip, &[], schedule, (&[10], &[(11, 10)], &[]));
        check(Overlap::Skip, &earlier, schedule, (&[], &[(10, 1), (11, 1)], &[]));
        check(Overlap::Allow, &earlier, schedule, (&[10, 11], &[], &[]));
        check(Overlap::CancelPrevious, &earlier, schedule, (&[], &[(10, 11)], &[1]));
        check(Overlap::CancelPrevious, &[], schedule, (&[11], &[(10, 11)], &[]));
        // An active run that is later than all that wait stays.
        let later = [active(12, Trigger::Schedule)];
        let replaced = [(10, 11), (11, 12)];
        check(Overlap::CancelPrevious, &later, schedule, (&[], &replaced, &[]));
    }

    /// The run with the higher priority is the first that waits, although it is the later one.
    #[test]
    fn the_last_of_several_runs_has_the_latest_logical_time() {
        let applicants = [11, 10].map(|number| Applicant {
            run: run(number),
            trigger: Trigger::Schedule,
            timed: true,
            logical_time: time(number),
            overlap: Overlap::CancelPrevious,
            max_active: None,
        });
        let mut admission = Admission::default();
        admit(&[], &applicants, &mut admission);
        assert_eq!(admission.admitted, [run(11)]);
        assert_eq!(admission.skipped, [(run(10), Skipped::Replaced(run(11)))]);
    }

    #[test]
    fn manual_runs_hold_up_no_scheduled_one_nor_are_held_up() {
        check(
            Overlap::Queue,
            &[active(1, Trigger::Manual)],
            Trigger::Upstream,
            (&[10], &[], &[]),
        );
        check(
            Overlap::Queue,
            &[active(1, Trigger::Backfill)],
            Trigger::Schedule,
            (&[10], &[], &[]),
        );
        check(
            Overlap::Queue,
            &[active(1, Trigger::Schedule)],
            Trigger::Manual,
            (&[10, 11], &[], &[]),
        );
    }
}
