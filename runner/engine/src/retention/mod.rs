//! Retention. The pruner removes what has been kept for long enough, and creates the partitions of the next days.
//! `heddle_store::retention` and `docs/retention.md` describe what is due, and the locks.
//!
//! There is no leader: once per [`PRUNE_EVERY`], one node updates the row of *upkeep*, and so gets the round. If it
//! dies, another node gets the next round. A round is bounded, in rows and in statements; if it could not remove
//! everything, the next one begins soon.

mod budget;

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::Chain;
use heddle_domain::Time;
use heddle_domain::retention::{Pruned, Retention};
use heddle_store::StoreError;
use heddle_store::retention::others::Cutoffs;
use heddle_store::retention::{Day, Dropped, INSTANTS_KEPT, Partitioned, RunRules};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::EngineError;
use crate::node::Node;
use crate::node::service::{Every, Needs, Service};
pub(crate) use budget::Budget;

/// How often a node checks whether a round is due.
const POLL_EVERY: Duration = Duration::from_secs(20);

/// How often the cluster has a round.
const PRUNE_EVERY: TimeDelta = TimeDelta::minutes(10);

/// When the next round is due if this one could not remove everything.
const GO_ON_AFTER: TimeDelta = TimeDelta::seconds(20);

/// How often instants that outlived their runs are checked.
const INSTANTS_EVERY: TimeDelta = TimeDelta::days(1);

/// How many runs, and how many other rows, one statement removes.
const RUNS_MAX: i64 = 1_000;
const ROWS_MAX: i64 = 10_000;

/// How many offers or backfills: each is looked up in every partition that may refer to it.
const LOOK_UPS_MAX: i64 = 1_000;

/// For how many days ahead partitions are created, and how often that is checked.
const PARTITION_DAYS: i32 = 9;
const PARTITIONS_EVERY: TimeDelta = TimeDelta::minutes(10);

/// How long the log of changes is kept: a node that has not read it for so long has lost its lease long ago.
const CHANGES_KEPT: TimeDelta = TimeDelta::days(7);

/// How long a retired runtime is kept: current attempts may still use it, and an older program that replaces the
/// present one again finds its own.
const RUNTIMES_KEPT: TimeDelta = TimeDelta::days(30);

/// How long windows of storms are remembered: twice the longest window, so no older one can still be open.
const STORMS_KEPT: TimeDelta = TimeDelta::days(2);

/// How long dead nodes are remembered.
const NODES_KEPT: TimeDelta = TimeDelta::days(30);

/// For how long a call of a person goes on where the last one on this node stopped at its bound. After that, a call is about
/// what is due since then, too.
const GO_ON_FOR: TimeDelta = TimeDelta::minutes(10);

/// Who asks for a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The cluster, once per [`PRUNE_EVERY`].
    ByCluster,
    /// A person, who repeats the call until there is no more.
    ByPerson,
}

/// Removes what has been kept for long enough.
pub(crate) struct Pruner {
    node: Arc<Node>,
    /// Behind which assignment the cluster's next round on this node goes on. Nil: it begins with the oldest.
    passed: Mutex<Uuid>,
    /// The same of the calls of people, and when the last of them stopped there. A call that went on behind a round of the
    /// cluster would come to the end without having looked at what is due before that, and would say that there is no more.
    passed_for_people: Mutex<Option<(Uuid, Time)>>,
}

pub(crate) struct Rounds {
    pruner: Arc<Pruner>,
    partitions: Every,
}

impl Rounds {
    pub(crate) fn of(pruner: Arc<Pruner>) -> Self {
        Self {
            partitions: Every::at_once(PARTITIONS_EVERY, &pruner.node.clock),
            pruner,
        }
    }
}

impl Service for Rounds {
    const FAILED: &'static str = "cannot remove expired data; trying again";
    const NEEDS: Needs = Needs::Lease;
    const AGAIN_AFTER: Duration = POLL_EVERY;

    fn node(&self) -> &Arc<Node> {
        &self.pruner.node
    }

    fn first_after(&self) -> Duration {
        POLL_EVERY
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        if self.partitions.is_due(now) && self.pruner.make_partitions().await {
            self.partitions.done(now);
        }
        self.pruner.round_if_due(now).await?;
        Ok(POLL_EVERY)
    }
}

impl Pruner {
    pub(crate) fn new(node: Arc<Node>) -> Self {
        Self {
            node,
            passed: Mutex::default(),
            passed_for_people: Mutex::default(),
        }
    }

    /// Creates the partitions of the next days. `false`: a lock is held by others, or the database is away; it is tried
    /// again later.
    pub(crate) async fn make_partitions(&self) -> bool {
        match self.node.store.make_all_partitions(PARTITION_DAYS).await {
            Ok(()) => true,
            Err(StoreError::Conflict(_)) => {
                tracing::info!(
                    "cannot create partitions now, because another transaction holds the tables; trying \
                    again later"
                );
                false
            }
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "cannot create partitions; trying again");
                false
            }
        }
    }

    /// Does a round, if one is due.
    async fn round_if_due(&self, now: Time) -> Result<(), EngineError> {
        if self.node.store.take_upkeep("prune", now, PRUNE_EVERY, false).await? {
            let retention = self.node.store.retention().await?;
            let pruned = self.round(&retention, now, Asked::ByCluster).await?;
            if pruned.more {
                self.node.store.take_upkeep("prune", now, GO_ON_AFTER, true).await?;
            }
            if pruned != Pruned::default() {
                tracing::info!(
                    runs = pruned.runs,
                    days = pruned.days.len(),
                    log_days = pruned.log_days.len(),
                    audit = pruned.audit,
                    events = pruned.events,
                    assignments = pruned.assignments,
                    notifications = pruned.notifications,
                    occurrences = pruned.occurrences,
                    offers = pruned.offers,
                    backfills = pruned.backfills,
                    tokens = pruned.tokens,
                    more = pruned.more,
                    "pruned"
                );
            }
        }
        if self
            .node
            .store
            .take_upkeep("instants", now, INSTANTS_EVERY, false)
            .await?
        {
            let mut budget = Budget::full();
            loop {
                let gone = self.node.store.prune_instants(now - INSTANTS_KEPT, ROWS_MAX).await?;
                if !budget.goes_on(gone, ROWS_MAX, &mut Pruned::default()) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Removes what is due under the current retention, or, with `dry_run`, says what `retention` (or the current one)
    /// would remove.
    pub(crate) async fn prune(&self, retention: Option<Retention>, dry_run: bool) -> Result<Pruned, EngineError> {
        let current = self.node.store.retention().await?;
        let now = self.node.now();
        if dry_run {
            return self.preview(&retention.unwrap_or(current), now).await;
        }
        self.round(&current, now, Asked::ByPerson).await
    }

    async fn round(&self, retention: &Retention, now: Time, asked: Asked) -> Result<Pruned, EngineError> {
        let mut pruned = Pruned::default();
        let mut budget = Budget::full();
        let rules = self.node.store.run_rules(retention).await?;
        for day in self.node.store.partition_days(Partitioned::Runs).await? {
            if rules.may_be_due(day, now) {
                self.prune_day(&rules, day, now, &mut budget, &mut pruned).await?;
            }
        }
        for &group in &rules.shorter {
            loop {
                let gone = pruned.count_each(self.node.store.prune_runs_of(&rules, group, now, RUNS_MAX).await?);
                if !budget.goes_on(gone, RUNS_MAX, &mut pruned) {
                    break;
                }
            }
        }
        loop {
            let gone = pruned.count_each(self.node.store.prune_runs(&rules, None, now, RUNS_MAX).await?);
            if !budget.goes_on(gone, RUNS_MAX, &mut pruned) {
                break;
            }
        }
        if rules.logs_go_first() {
            self.prune_logs(&rules, now, &mut budget, &mut pruned).await?;
        }
        while self.node.store.clear_pruned_days(ROWS_MAX).await? {
            if !budget.spend(&mut pruned) {
                break;
            }
        }
        self.prune_rows(retention, now, asked, &mut budget, &mut pruned).await?;
        Ok(pruned)
    }

    async fn prune_day(
        &self,
        rules: &RunRules,
        day: Day,
        now: Time,
        budget: &mut Budget,
        pruned: &mut Pruned,
    ) -> Result<(), EngineError> {
        if day.is_over(now) && !self.node.store.is_day_needed(rules, day, now, false).await? {
            let mut after = None;
            loop {
                after = self.node.store.note_day_successes(day, after, ROWS_MAX).await?;
                if after.is_none() {
                    break;
                }
            }
            // All runs of that day have ended, so none is added while the day is dropped.
            let counts = self.node.store.count_day_runs(day).await?;
            match self.node.store.drop_run_day(rules, day, now).await? {
                Dropped::Gone => {
                    pruned.days.push(day.0);
                    pruned.count_runs(counts.into_iter().map(|(state, count)| (state, count as u64)));
                    return Ok(());
                }
                Dropped::Busy => {
                    pruned.more = true;
                    return Ok(());
                }
                Dropped::Before => return Ok(()),
                Dropped::Needed => {}
            }
        }
        loop {
            let gone = pruned.count_each(self.node.store.prune_runs(rules, Some(day), now, RUNS_MAX).await?);
            if !budget.goes_on(gone, RUNS_MAX, pruned) {
                return Ok(());
            }
        }
    }

    async fn prune_logs(
        &self,
        rules: &RunRules,
        now: Time,
        budget: &mut Budget,
        pruned: &mut Pruned,
    ) -> Result<(), EngineError> {
        for day in self.node.store.partition_days(Partitioned::Logs).await? {
            if !rules.logs_may_be_due(day, now) {
                continue;
            }
            if day.is_over(now) && !self.node.store.is_day_needed(rules, day, now, true).await? {
                match self.node.store.drop_log_day(rules, day, now).await? {
                    Dropped::Gone => {
                        pruned.log_days.push(day.0);
                        continue;
                    }
                    Dropped::Busy => {
                        pruned.more = true;
                        continue;
                    }
                    Dropped::Before => continue,
                    Dropped::Needed => {}
                }
            }
            loop {
                let gone = self.node.store.prune_logs(rules, day, now, RUNS_MAX).await?;
                pruned.logs += gone;
                if !budget.goes_on(gone, RUNS_MAX, pruned) {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Drops whole days of events and of assignments that ended before these times.
    async fn drop_days(
        &self,
        events: Time,
        assignments: Time,
        now: Time,
        pruned: &mut Pruned,
    ) -> Result<(), EngineError> {
        let store = &self.node.store;
        for (table, before) in [(Partitioned::Events, events), (Partitioned::Assignments, assignments)] {
            for day in store.partition_days(table).await? {
                if day.end() > before || !day.is_over(now) {
                    break;
                }
                if table == Partitioned::Assignments && store.have_tasks_assignments(day).await? {
                    // The other runs of that day are removed one by one.
                    continue;
                }
                if store.drop_day(table, day).await? == Dropped::Busy {
                    pruned.more = true;
                }
            }
        }
        Ok(())
    }

    /// Removes what does not belong to a run: audit, events, assignments, notifications, ended objects, and internal
    /// rows.
    async fn prune_rows(
        &self,
        retention: &Retention,
        now: Time,
        asked: Asked,
        budget: &mut Budget,
        pruned: &mut Pruned,
    ) -> Result<(), EngineError> {
        let store = &self.node.store;
        let events = now - retention.events.chrono();
        let cutoffs = Cutoffs::of(retention, now);
        self.drop_days(events, cutoffs.assignments, now, pruned).await?;
        macro_rules! prune {
            ($removed:expr, $count:expr) => {
                prune!($removed, $count, ROWS_MAX)
            };
            ($removed:expr, $count:expr, $limit:expr) => {
                loop {
                    let gone = $removed.await?;
                    $count += gone;
                    if !budget.goes_on(gone, $limit, pruned) {
                        break;
                    }
                }
            };
        }
        let mut unnamed = 0;
        prune!(store.prune_events(events, ROWS_MAX), pruned.events);
        self.prune_assignments(asked, now, cutoffs.assignments, ROWS_MAX, budget, pruned)
            .await?;
        prune!(
            store.prune_audit(now - retention.audit.chrono(), ROWS_MAX),
            pruned.audit
        );
        prune!(
            store.prune_notifications(cutoffs.notifications, ROWS_MAX),
            pruned.notifications
        );
        prune!(
            store.prune_occurrences(cutoffs.occurrences, ROWS_MAX),
            pruned.occurrences
        );
        prune!(
            store.prune_offers(cutoffs.offers, LOOK_UPS_MAX),
            pruned.offers,
            LOOK_UPS_MAX
        );
        prune!(
            store.prune_backfills(cutoffs.backfills, LOOK_UPS_MAX),
            pruned.backfills,
            LOOK_UPS_MAX
        );
        prune!(store.prune_tokens(cutoffs.tokens, ROWS_MAX), pruned.tokens);
        prune!(store.prune_groups_rows(cutoffs.groups, ROWS_MAX), unnamed);
        prune!(store.prune_storms(now - STORMS_KEPT, ROWS_MAX), unnamed);
        prune!(store.prune_changes(now - CHANGES_KEPT, ROWS_MAX), unnamed);
        prune!(store.prune_sessions(now, ROWS_MAX), unnamed);
        prune!(store.prune_nodes(now - NODES_KEPT, ROWS_MAX), unnamed);
        prune!(store.prune_leases(ROWS_MAX), unnamed);
        prune!(store.prune_runtimes(now - RUNTIMES_KEPT, ROWS_MAX), unnamed);
        tracing::debug!(
            rows = unnamed,
            "removed expired records of deleted groups, nodes, leases, sessions, changes, runtimes and combined \
                notifications"
        );
        Ok(())
    }

    /// Removes ended assignments that began before an instant, looking at `limit` at once. What stays, because a task may need
    /// it, costs none of the budget, or there might be nothing left for what follows: it has a bound of its own. Where that
    /// ends the round, the next one that is asked for in the same way goes on; a round that has come to the end lets the next
    /// one begin anew. So what is due when the first call of a person begins is gone when one says that there is no more.
    pub(crate) async fn prune_assignments(
        &self,
        asked: Asked,
        now: Time,
        before: Time,
        limit: i64,
        budget: &mut Budget,
        pruned: &mut Pruned,
    ) -> Result<(), EngineError> {
        let mut after = self.begin_behind(asked, now);
        let done = self.pass(&mut after, before, limit, budget, pruned).await;
        match asked {
            Asked::ByCluster => *self.passed.lock() = after,
            Asked::ByPerson => *self.passed_for_people.lock() = (!after.is_nil()).then_some((after, now)),
        }
        done
    }

    /// Where a round begins. Of two calls of people at the same time, only one goes on where another one has stopped.
    fn begin_behind(&self, asked: Asked, now: Time) -> Uuid {
        match asked {
            Asked::ByCluster => *self.passed.lock(),
            Asked::ByPerson => {
                let passed = self.passed_for_people.lock().take();
                let recent = passed.filter(|(_, stopped)| now - *stopped < GO_ON_FOR);
                recent.map_or(Uuid::nil(), |(after, _)| after)
            }
        }
    }

    /// The walk of one round; `after` is where it has come to, nil at the end.
    async fn pass(
        &self,
        after: &mut Uuid,
        before: Time,
        limit: i64,
        budget: &mut Budget,
        pruned: &mut Pruned,
    ) -> Result<(), EngineError> {
        let mut passes = Budget::of_passes();
        loop {
            let batch = self.node.store.prune_assignments(*after, before, limit).await?;
            pruned.assignments += batch.gone as u64;
            *after = batch.go_on_after.unwrap_or(Uuid::nil());
            let spent = if batch.gone > 0 { &mut *budget } else { &mut passes };
            if batch.go_on_after.is_none() || !spent.spend(pruned) {
                return Ok(());
            }
        }
    }

    /// Counts what a round would remove.
    async fn preview(&self, retention: &Retention, now: Time) -> Result<Pruned, EngineError> {
        let rules = self.node.store.run_rules(retention).await?;
        let mut pruned = Pruned {
            dry_run: true,
            ..Pruned::default()
        };
        let due = self.node.store.count_due_runs(&rules, now).await?;
        pruned.count_runs(due.into_iter().map(|(state, count)| (state, count as u64)));
        for day in self.node.store.partition_days(Partitioned::Runs).await? {
            if rules.may_be_due(day, now)
                && day.is_over(now)
                && !self.node.store.is_day_needed(&rules, day, now, false).await?
            {
                pruned.days.push(day.0);
            }
        }
        if rules.logs_go_first() {
            for day in self.node.store.partition_days(Partitioned::Logs).await? {
                if rules.logs_may_be_due(day, now)
                    && day.is_over(now)
                    && !pruned.days.contains(&day.0)
                    && !self.node.store.is_day_needed(&rules, day, now, true).await?
                {
                    pruned.log_days.push(day.0);
                }
            }
        }
        let rows = self.node.store.count_due_rows(retention, now).await?;
        pruned.audit = rows.audit as u64;
        pruned.events = rows.events as u64;
        pruned.assignments = rows.assignments as u64;
        let due = self.node.store.count_due_others(&Cutoffs::of(retention, now)).await?;
        pruned.notifications = due.notifications as u64;
        pruned.occurrences = due.occurrences as u64;
        pruned.offers = due.offers as u64;
        pruned.backfills = due.backfills as u64;
        pruned.tokens = due.tokens as u64;
        Ok(pruned)
    }
}
