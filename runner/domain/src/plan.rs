//! A revision prepared for runs: tasks by number, with edges in both directions. Immutable, cached by nodes.

use std::collections::{BTreeSet, HashMap};

use chrono_tz::Tz;

use crate::executor::Executor;
use crate::retry::Policy;
use crate::spec::{DeadlineAction, ForEach, GroupSpec, OnFailure, Shards, TaskSpec, TimeoutSpec, TriggerRule};
use crate::{Fault, Faults, Name, Span};

/// A task's number within its revision: its position in the order of names.
pub type TaskIndex = u16;

/// How many tasks a group may have.
pub const TASKS_MAX: usize = 10_000;

/// How many items a mapped task may have.
pub const ITEMS_MAX: u32 = 10_000;

/// The longest message of a line of a log, and the most that its fields have, in bytes.
pub const LOG_LINE_BYTES_MAX: usize = 64 << 10;

/// How many lines a log of so many bytes may have. Bytes are counted only for the text, so this bounds the number of
/// empty lines.
pub const fn log_lines_max(bytes_max: u64) -> u64 {
    const LEAST: u64 = 65_536;
    const BYTES_OF_LINE: u64 = 16;
    let lines = bytes_max / BYTES_OF_LINE;
    if lines > LEAST { lines } else { LEAST }
}

/// Attempts of one task run that may be lost with their nodes, unless the spec says otherwise.
pub const LOST_MAX_DEFAULT: u32 = 5;

/// A task as it runs.
#[derive(Clone, Debug)]
pub struct PlanTask {
    pub name: Name,
    /// The executor, with its part of the spec.
    pub executor: Executor,
    /// Tasks it waits for.
    pub depends_on: Vec<TaskIndex>,
    /// Tasks that wait for it.
    pub dependants: Vec<TaskIndex>,
    /// When it may start.
    pub rule: TriggerRule,
    /// Whether its failure counts as settled success.
    pub allow_failure: bool,
    /// Whether it makes one task run per item.
    pub mapped: bool,
    /// Items under way at once.
    pub concurrency: u32,
    /// Whether a failed item cancels the rest.
    pub fail_fast: bool,
    /// How failed attempts are tried again; none: not.
    pub retry: Option<Policy>,
    /// How many lost attempts are repeated.
    pub lost_max: u32,
    /// How long an attempt may take.
    pub timeout: Option<std::time::Duration>,
    /// The rest of the spec.
    pub spec: TaskSpec,
}

/// The plan of the runs of a revision.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The tasks, in the order of their names.
    pub tasks: Vec<PlanTask>,
    /// Whether a failure cancels what has not started.
    pub on_failure: OnFailure,
    /// Counted from the run's creation.
    pub deadline: Option<Span>,
    /// What passing it does.
    pub deadline_action: DeadlineAction,
    pub zone: Tz,
    /// The spec that it was made of.
    pub spec: GroupSpec,
    by_name: HashMap<Name, TaskIndex>,
}

impl Plan {
    /// Compiles a spec that has been validated. An error names what cannot be compiled (in a spec of another version).
    pub fn compile(spec: GroupSpec) -> Result<Self, Faults> {
        let mut faults = Faults::default();
        if spec.tasks.is_empty() || spec.tasks.len() > TASKS_MAX {
            faults.add("/tasks", format!("a group must have 1 to {TASKS_MAX} tasks"));
            return Err(faults);
        }
        let zone = match spec.timezone.as_deref().unwrap_or("UTC").parse::<Tz>() {
            Ok(zone) => zone,
            Err(error) => {
                faults.add("/timezone", error.to_string());
                Tz::UTC
            }
        };
        let by_name: HashMap<Name, TaskIndex> = spec
            .tasks
            .keys()
            .enumerate()
            .map(|(index, name)| (name.clone(), index as TaskIndex))
            .collect();
        let mut tasks = Vec::with_capacity(spec.tasks.len());
        for (name, task) in &spec.tasks {
            let prefix = format!("/tasks/{}", crate::fault::pointer_token(name.as_ref()));
            match Self::compile_task(name, task, &by_name) {
                Ok(task) => tasks.push(task),
                Err(fault) => faults.push(fault.below(&prefix)),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        for index in 0..tasks.len() {
            for dependency in tasks[index].depends_on.clone() {
                tasks[dependency as usize].dependants.push(index as TaskIndex);
            }
        }
        Ok(Self {
            tasks,
            on_failure: spec.on_failure,
            deadline: spec.deadline,
            deadline_action: spec.deadline_action,
            zone,
            spec,
            by_name,
        })
    }

    fn compile_task(name: &Name, task: &TaskSpec, by_name: &HashMap<Name, TaskIndex>) -> Result<PlanTask, Fault> {
        let executor = Executor::of(task).map_err(|detail| Fault::at("", detail))?;
        let mut depends_on = Vec::with_capacity(task.depends_on.len());
        for (number, dependency) in task.depends_on.iter().enumerate() {
            let index = by_name.get(dependency).ok_or_else(|| {
                Fault::at(
                    format!("/depends_on/{number}"),
                    format!("there is no task `{dependency}`"),
                )
            })?;
            depends_on.push(*index);
        }
        depends_on.sort_unstable();
        depends_on.dedup();
        let retry = match &task.retry {
            Some(spec) => Some(Policy::compile(spec).map_err(|fault| fault.below("/retry"))?),
            None => None,
        };
        let timeout = match task.timeout {
            Some(TimeoutSpec::Never) => None,
            Some(TimeoutSpec::After(span)) => Some(span.std()),
            None => executor.timeout_default(),
        };
        Ok(PlanTask {
            name: name.clone(),
            executor,
            depends_on,
            dependants: Vec::new(),
            rule: task.trigger_rule,
            allow_failure: task.allow_failure,
            mapped: task.for_each.is_some() || task.shards.is_some(),
            concurrency: task.concurrency.unwrap_or(ITEMS_MAX).max(1),
            fail_fast: task.fail_fast,
            retry,
            lost_max: task.max_lost.unwrap_or(LOST_MAX_DEFAULT),
            timeout,
            spec: task.clone(),
        })
    }

    /// A task by its name.
    pub fn index(&self, name: &str) -> Option<TaskIndex> {
        self.by_name.get(name).copied()
    }

    /// A task by its number.
    pub fn task(&self, index: TaskIndex) -> Option<&PlanTask> {
        self.tasks.get(index as usize)
    }

    /// Whether `ancestor` is a direct or indirect dependency of `task`.
    pub fn is_ancestor(&self, ancestor: TaskIndex, task: TaskIndex) -> bool {
        let mut seen = vec![false; self.tasks.len()];
        let mut stack = vec![task];
        while let Some(next) = stack.pop() {
            for &dependency in &self.tasks[next as usize].depends_on {
                if dependency == ancestor {
                    return true;
                }
                if !std::mem::replace(&mut seen[dependency as usize], true) {
                    stack.push(dependency);
                }
            }
        }
        false
    }

    /// What a *clear* of a task runs again: the task, and with `downstream` everything that depends on it, in order.
    pub fn cleared(&self, task: TaskIndex, downstream: bool) -> Vec<TaskIndex> {
        let mut found = BTreeSet::from([task]);
        let mut stack = vec![task];
        while let Some(next) = stack.pop().filter(|_| downstream) {
            for &dependant in &self.tasks[next as usize].dependants {
                if found.insert(dependant) {
                    stack.push(dependant);
                }
            }
        }
        found.into_iter().collect()
    }

    /// Tasks in an order in which dependencies come first.
    pub fn topological(&self) -> Vec<TaskIndex> {
        let mut missing: Vec<usize> = self.tasks.iter().map(|task| task.depends_on.len()).collect();
        let mut queue: std::collections::VecDeque<TaskIndex> = (0..self.tasks.len() as TaskIndex)
            .filter(|&index| missing[index as usize] == 0)
            .collect();
        let mut order = Vec::with_capacity(self.tasks.len());
        while let Some(index) = queue.pop_front() {
            order.push(index);
            for &dependant in &self.tasks[index as usize].dependants {
                missing[dependant as usize] -= 1;
                if missing[dependant as usize] == 0 {
                    queue.push_back(dependant);
                }
            }
        }
        order
    }

    /// The number of items of a mapped task, if it is a constant in the spec.
    pub fn constant_items(task: &PlanTask) -> Option<u32> {
        match (&task.spec.for_each, &task.spec.shards) {
            (Some(ForEach::Items(items)), _) => Some(items.len() as u32),
            (_, Some(Shards::Count(count))) => Some(*count),
            _ => None,
        }
    }
}
