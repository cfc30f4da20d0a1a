//! What other transactions left to be picked up, and what dead nodes left behind.
//!
//! One cheap look (`Store::inbox`) tells whether there is anything; each kind is then taken with SKIP LOCKED in a
//! transaction of its own, so that nodes share the work and a crash gives it back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use heddle_domain::Time;
use heddle_domain::id::RunId;
use heddle_domain::run::{Event, Progress};
use heddle_domain::spec::{DeadlineAction, Overlap};
use heddle_domain::state::{ErrorKind, RunState, Trigger};
use heddle_store::live::{Due, RunWrite, Settlement};
use serde_json::json;

use crate::apply::{After, Applied};
use crate::control::BulkAction;
use crate::work::{Done, End, Ending};
use crate::{Engine, EngineError, Inner};

/// How often to look without being told.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The reaper's period.
const REAP_EVERY: Duration = Duration::from_secs(1);

/// How many waiting runs of a group one look admits at most.
const ADMIT_MAX: i64 = 1_000;

/// How many sub-runs without a parent one look cancels.
const ORPHANS_MAX: i64 = 500;

pub(crate) async fn run(inner: Arc<Inner>) {
    loop {
        let wait = inner.until_due().min(LOOK_EVERY);
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = inner.inbox.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
        if inner.fenced.load(std::sync::atomic::Ordering::Acquire) {
            continue;
        }
        if let Err(error) = inner.look().await {
            tracing::warn!(%error, source = ?std::error::Error::source(&error), "the inbox could not be worked off; trying again");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

pub(crate) async fn reap(inner: Arc<Inner>) {
    loop {
        if let Err(error) = inner.reap_once().await {
            tracing::warn!(%error, "cannot reap");
        }
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = tokio::time::sleep(REAP_EVERY) => {}
            () = inner.wakes.orphaned() => {}
        }
    }
}

impl Inner {
    fn until_due(&self) -> Duration {
        match *self.next_due.lock() {
            Some(due) => (due - self.now()).to_std().unwrap_or(Duration::ZERO),
            None => LOOK_EVERY,
        }
    }

    /// Looks, and works off what there is.
    async fn look(self: &Arc<Self>) -> Result<(), EngineError> {
        let inbox = self.store.inbox().await?;
        *self.next_due.lock() = inbox.next_due;
        if inbox.ready {
            self.work.notify_one();
        }
        if inbox.next_due.is_some_and(|due| due <= self.now()) {
            self.timers().await?;
        }
        if inbox.settlements {
            self.settlements().await?;
        }
        if inbox.starts {
            self.starts().await?;
        }
        if inbox.turnstiles {
            self.turnstiles().await?;
        }
        Ok(())
    }

    /// Retries and deadlines.
    async fn timers(self: &Arc<Self>) -> Result<(), EngineError> {
        let now = self.now();
        let mut completion = self.store.completion(self.lease(), now).await?;
        let due = completion.take_due().await?;
        let mut events: HashMap<RunId, Vec<Event>> = HashMap::new();
        let mut deadlines = Vec::new();
        for due in due {
            match due {
                Due::Retry(run, at) => events.entry(run).or_default().push(Event::Due(at)),
                Due::Deadline(run) => deadlines.push(run),
            }
        }
        let mut runs: Vec<RunId> = events.keys().copied().collect();
        runs.sort_unstable();
        self.load_contexts(&runs).await?;
        let after = self.apply_events(&mut completion, events, now).await?;
        completion.commit().await?;
        self.acted(after);
        for run in deadlines {
            self.deadline(run).await?;
        }
        self.inbox.notify_one();
        Ok(())
    }

    async fn deadline(self: &Arc<Self>, run: RunId) -> Result<(), EngineError> {
        self.load_contexts(&[run]).await?;
        let Some(context) = self.contexts.get(&run) else {
            return Ok(());
        };
        tracing::warn!(%run, group = context.revision.group_name, "the run has missed its deadline");
        if context.revision.plan.deadline_action == DeadlineAction::Cancel {
            let engine = Engine { inner: self.clone() };
            match engine.control(run, &BulkAction::Cancel, "deadline").await {
                Ok(()) => {}
                Err(crate::ControlError::Engine(error)) => return Err(error),
                Err(refused) => tracing::info!(%run, %refused, "it had ended by itself"),
            }
        }
        Ok(())
    }

    /// Applies events to runs that are live; those that are not are passed over.
    async fn apply_events(
        &self,
        completion: &mut heddle_store::live::Completion,
        events: HashMap<RunId, Vec<Event>>,
        now: Time,
    ) -> Result<After, EngineError> {
        let mut runs: Vec<RunId> = events.keys().copied().collect();
        runs.sort_unstable();
        let locked = completion.lock_runs(&runs).await?;
        let mut after = After::default();
        let mut writes = Vec::new();
        let mut room = self.room();
        for run in runs {
            let (Some(found), Some(context)) = (locked.get(&run), self.contexts.get(&run)) else {
                continue;
            };
            let (actions, state, progress) = self.decide(&context, found, &events[&run], completion, now).await?;
            writes.push(self.write_of(&context, state, &progress, actions, &mut room, &mut after));
        }
        self.write(completion, &writes, &mut after).await?;
        Ok(after)
    }

    /// Sub-runs that have ended settle their parents' tasks.
    async fn settlements(self: &Arc<Self>) -> Result<(), EngineError> {
        let now = self.now();
        let mut completion = self.store.completion(self.lease(), now).await?;
        let settlements = completion.take_settlements().await?;
        let mut parents: Vec<RunId> = settlements.iter().map(|settlement| settlement.parent.run).collect();
        parents.sort_unstable();
        parents.dedup();
        self.load_contexts(&parents).await?;
        let outcomes = settlements
            .into_iter()
            .map(|settlement| Applied {
                ended: settlement.parent,
                end: end_of(settlement),
                finished_at: now,
            })
            .collect();
        let after = self.apply(&mut completion, outcomes, self.room(), now).await?;
        completion.commit().await?;
        self.acted(after);
        self.inbox.notify_one();
        Ok(())
    }

    /// Runs submitted in SQL: their scripts are resolved, they begin.
    async fn starts(self: &Arc<Self>) -> Result<(), EngineError> {
        let now = self.now();
        let mut completion = self.store.completion(self.lease(), now).await?;
        let runs = completion.take_starts().await?;
        self.load_contexts(&runs).await?;
        let locked = completion.lock_runs(&runs).await?;
        let mut after = After::default();
        let mut writes: Vec<RunWrite> = Vec::new();
        let mut room = self.room();
        let mut gated = Vec::new();
        for run in runs {
            let (Some(found), Some(context)) = (locked.get(&run), self.contexts.get(&run)) else {
                continue;
            };
            if found.state != RunState::Waiting {
                continue;
            }
            if context.facts.resolution_id.is_none() {
                completion.set_resolution(run, context.resolution.id).await?;
            }
            if context.revision.is_gated(context.facts.trigger) {
                gated.push((run, context.facts.group_id));
                continue;
            }
            let mut found = found.clone();
            found.progress = Progress::new(&context.revision.plan).to_bytes();
            let (actions, state, progress) = self
                .decide(&context, &found, &[Event::Start], &mut completion, now)
                .await?;
            writes.push(self.write_of(&context, state, &progress, actions, &mut room, &mut after));
        }
        for (run, group_id) in gated {
            completion.wait_for_turn(run, group_id, &json!({"turn": true})).await?;
            after.inbox = true;
        }
        self.write(&mut completion, &writes, &mut after).await?;
        completion.commit().await?;
        self.acted(after);
        self.inbox.notify_one();
        Ok(())
    }

    /// Groups whose waiting runs may be let through.
    async fn turnstiles(self: &Arc<Self>) -> Result<(), EngineError> {
        let now = self.now();
        let mut completion = self.store.completion(self.lease(), now).await?;
        let groups = completion.take_turnstiles().await?;
        let mut admitted: Vec<RunId> = Vec::new();
        let mut cancelled: Vec<RunId> = Vec::new();
        for group_id in groups {
            let (active, waiting) = completion.queue_of_group(group_id, ADMIT_MAX).await?;
            let ids: Vec<RunId> = waiting.iter().map(|entry| entry.0).collect();
            self.load_contexts(&ids).await?;
            let mut active: Vec<(RunId, Trigger)> = active
                .into_iter()
                .filter_map(|(run, trigger)| Some((run, Trigger::from_number(trigger)?)))
                .collect();
            for run in ids {
                let Some(context) = self.contexts.get(&run) else {
                    continue;
                };
                let spec = &context.revision.plan.spec;
                let trigger = context.facts.trigger;
                let timed = |trigger: Trigger| matches!(trigger, Trigger::Schedule | Trigger::Upstream);
                let bounded = active.iter().filter(|entry| entry.1 != Trigger::Backfill).count();
                if spec.max_active_runs.is_some_and(|max| bounded >= max as usize) && trigger != Trigger::Backfill {
                    continue;
                }
                if timed(trigger) && spec.overlap != Overlap::Allow {
                    let earlier: Vec<RunId> = active
                        .iter()
                        .filter(|entry| timed(entry.1))
                        .map(|entry| entry.0)
                        .collect();
                    if !earlier.is_empty() {
                        if spec.overlap == Overlap::CancelPrevious {
                            cancelled.extend(earlier);
                        }
                        continue;
                    }
                }
                active.push((run, trigger));
                admitted.push(run);
            }
        }
        admitted.sort_unstable();
        let locked = completion.lock_runs(&admitted).await?;
        let mut after = After::default();
        let mut writes = Vec::new();
        let mut room = self.room();
        for run in &admitted {
            let (Some(found), Some(context)) = (locked.get(run), self.contexts.get(run)) else {
                continue;
            };
            let mut found = found.clone();
            found.progress = Progress::new(&context.revision.plan).to_bytes();
            let (actions, state, progress) = self
                .decide(&context, &found, &[Event::Start], &mut completion, now)
                .await?;
            writes.push(self.write_of(&context, state, &progress, actions, &mut room, &mut after));
        }
        completion.unwait(&admitted).await?;
        self.write(&mut completion, &writes, &mut after).await?;
        completion.commit().await?;
        self.acted(after);
        for run in cancelled {
            let engine = Engine { inner: self.clone() };
            if let Err(crate::ControlError::Engine(error)) = engine.control(run, &BulkAction::Cancel, "overlap").await {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes over what dead nodes held, stops what is not this node's any more, cancels sub-runs without a parent.
    pub(crate) async fn reap_once(self: &Arc<Self>) -> Result<(), EngineError> {
        let lost = self.store.lost_attempts().await?;
        if !lost.is_empty() {
            tracing::info!(attempts = lost.len(), "taking over what a node that is gone held");
            let now = self.now();
            let mut runs: Vec<RunId> = lost.iter().map(|lost| lost.ended.run).collect();
            runs.sort_unstable();
            runs.dedup();
            self.load_contexts(&runs).await?;
            let outcomes = lost
                .into_iter()
                .map(|lost| Applied {
                    ended: lost.ended,
                    end: End::plain(Ending::Lost),
                    finished_at: now,
                })
                .collect();
            let mut completion = self.store.completion(self.lease(), now).await?;
            let after = self.apply(&mut completion, outcomes, self.room(), now).await?;
            completion.commit().await?;
            self.acted(after);
        }
        let old = self.hands.older_than(Duration::from_millis(300));
        if !old.is_empty() {
            let held: std::collections::HashSet<_> = self.store.held(self.lease()).await?.into_iter().collect();
            for entry in old.into_iter().filter(|entry| !held.contains(entry)) {
                self.hands.cancel(entry.0, entry.1);
            }
        }
        for run in self.store.orphans(ORPHANS_MAX).await? {
            let engine = Engine { inner: self.clone() };
            match engine.control(run, &BulkAction::Cancel, "parent").await {
                Err(crate::ControlError::Engine(error)) => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// What a sub-run's end means to the attempt that waits for it.
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
