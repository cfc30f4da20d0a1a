//! What the tasks of a run waited for, and which chain of them the run's length is made of. Of a task that never began,
//! because of what it depends on, nobody has written down when that was settled: it follows from the ends of those.

use std::collections::BTreeMap;

use heddle_api::{Run, TaskRun, TaskState};
use heddle_domain::Time;
use heddle_domain::plan::{Plan, PlanTask};
use heddle_domain::spec::TriggerRule;

pub(super) struct Course<'a> {
    plan: &'a Plan,
    tasks: BTreeMap<&'a str, &'a TaskRun>,
    /// When each settled task was settled, as far as that is known.
    ends: BTreeMap<&'a str, Time>,
}

impl<'a> Course<'a> {
    pub(super) fn of(run: &'a Run, plan: &'a Plan) -> Self {
        let mut course = Self {
            plan,
            tasks: run.wholes().map(|task| (task.task.as_str(), task)).collect(),
            ends: BTreeMap::new(),
        };
        // In the order of the graph: the ends of what a task depends on are known before its own.
        for task in run.wholes().filter(|task| task.state.is_settled()) {
            let implied = || course.released_by(task).map(|(_, end)| end);
            if let Some(end) = task.finished_at.map(|at| at.0).or_else(implied) {
                course.ends.insert(&task.task, end);
            }
        }
        course
    }

    fn planned(&self, task: &str) -> Option<&'a PlanTask> {
        self.plan.task(self.plan.index(task)?)
    }

    /// The task runs that one depends on.
    fn needs(&self, task: &TaskRun) -> impl Iterator<Item = &'a TaskRun> {
        let needs = self.planned(&task.task).map(|task| task.depends_on.as_slice());
        let names = needs.into_iter().flatten().filter_map(|need| self.plan.task(*need));
        names.filter_map(|need| self.tasks.get(need.name.as_str()).copied())
    }

    /// What a task waits for still.
    pub(super) fn open_needs(&self, task: &TaskRun) -> Vec<&'a str> {
        let open = self.needs(task).filter(|need| !need.state.is_settled());
        open.map(|need| need.task.as_str()).collect()
    }

    /// Whether a task run counts as failed for those that depend on it.
    fn broke(&self, task: &TaskRun) -> bool {
        match task.state {
            TaskState::Failed => !self.planned(&task.task).is_some_and(|task| task.allow_failure),
            state => matches!(state, TaskState::UpstreamFailed | TaskState::Cancelled),
        }
    }

    /// When a task was settled that another depends on.
    fn end(&self, need: &'a TaskRun) -> Option<(&'a str, Time)> {
        Some((&need.task, *self.ends.get(need.task.as_str())?))
    }

    /// Which end of what a task depends on let it begin, or settled it, and when that was: the last one, or the first one
    /// that its rule asks for.
    fn released_by(&self, task: &TaskRun) -> Option<(&'a str, Time)> {
        let first = |wanted: &dyn Fn(&TaskRun) -> bool| {
            let wanted = self.needs(task).filter(|need| wanted(need));
            wanted.filter_map(|need| self.end(need)).min_by_key(|need| need.1)
        };
        let first = match (task.state, self.planned(&task.task)?.rule) {
            (_, TriggerRule::Always) => return None,
            (TaskState::UpstreamFailed, _) | (_, TriggerRule::AnyFailed) => first(&|need| self.broke(need)),
            (_, TriggerRule::AnySuccess) => first(&|need| !self.broke(need) && need.state != TaskState::Skipped),
            _ => None,
        };
        let ends = self.needs(task).filter_map(|need| self.end(need));
        first.or_else(|| ends.max_by_key(|need| need.1))
    }

    /// Since when a task could have begun; none: since the run began.
    pub(super) fn ready_at(&self, task: &TaskRun) -> Option<Time> {
        self.released_by(task).map(|(_, end)| end)
    }

    /// The chain of tasks that the run's length is made of: from the one that ended last, back over what each waited for.
    /// One that had nothing to do is not what a run took its time for.
    pub(super) fn critical(&self) -> Vec<String> {
        let began = || {
            let began = self.tasks.values().filter(|task| task.started_at.is_some());
            began.filter_map(|task| Some((*task, self.end(task)?.1)))
        };
        let worked = began().filter(|(task, _)| task.state != TaskState::Skipped);
        let last = worked
            .max_by_key(|(_, end)| *end)
            .or_else(|| began().max_by_key(|(_, end)| *end));
        let mut at = last.map(|(task, _)| task);
        let mut chain = Vec::new();
        while let Some(task) = at {
            chain.push(task.task.clone());
            at = self
                .released_by(task)
                .and_then(|(need, _)| self.tasks.get(need).copied());
        }
        chain
    }
}

#[cfg(test)]
mod tests {
    use heddle_domain::spec::parse_group;
    use serde_json::{Value, json};

    use super::*;

    fn plan(tasks: Value) -> Plan {
        let mut tasks = tasks;
        for task in tasks.as_object_mut().unwrap().values_mut() {
            task["script"] = json!("s");
        }
        Plan::compile(parse_group(&json!({"tasks": tasks})).unwrap()).unwrap()
    }

    /// The name of a task, its state, and from when to when it ran.
    type Said<'t> = (&'t str, &'t str, Option<(i64, i64)>);

    /// A run with these task runs: name, state, and the seconds from its begin at which it began and ended.
    fn run(tasks: &[Said<'_>]) -> Run {
        let at = |second: i64| Time::from_timestamp(second, 0).unwrap().to_rfc3339();
        let tasks: Vec<Value> = tasks
            .iter()
            .map(|(name, state, ran)| {
                json!({
                    "task": name, "state": state, "attempt": i32::from(ran.is_some()),
                    "started_at": ran.map(|ran| at(ran.0)), "finished_at": ran.map(|ran| at(ran.1)),
                })
            })
            .collect();
        serde_json::from_value(json!({
            "id": uuid::Uuid::nil(), "group": "g", "revision": 1, "logical_time": at(0),
            "data_interval": {"start": at(0), "end": at(0)}, "trigger": "manual", "state": "failed", "params": {},
            "task_params": {}, "priority": 0, "created_at": at(0), "labels": {}, "waiting_for": [], "tasks": tasks,
        }))
        .unwrap()
    }

    fn orders() -> Plan {
        plan(json!({
            "extract": {},
            "parse": {"depends_on": ["extract"]},
            "tell": {"depends_on": ["extract"]},
            "load": {"depends_on": ["parse"]},
            "cleanup": {"depends_on": ["load", "tell"], "trigger_rule": "all_done"},
        }))
    }

    #[test]
    fn a_failure_goes_on_through_tasks_that_never_began() {
        let (plan, run) = (
            orders(),
            run(&[
                ("extract", "succeeded", Some((0, 10))),
                ("parse", "failed", Some((10, 30))),
                ("tell", "succeeded", Some((10, 11))),
                ("load", "upstream_failed", None),
                ("cleanup", "succeeded", Some((30, 31))),
            ]),
        );
        let course = Course::of(&run, &plan);
        assert_eq!(course.critical(), ["cleanup", "load", "parse", "extract"]);
        // It could not have begun before what failed had ended.
        let cleanup = run.wholes().last().unwrap();
        assert_eq!(course.ready_at(cleanup), Time::from_timestamp(30, 0));
        assert_eq!(course.ready_at(&run.task_runs()[0]), None);
    }

    #[test]
    fn a_task_that_had_nothing_to_do_is_not_what_a_run_took_its_time_for() {
        let plan = plan(json!({"bad": {}, "idle": {}}));
        let failed = run(&[("bad", "failed", Some((0, 1))), ("idle", "skipped", Some((0, 2)))]);
        assert_eq!(Course::of(&failed, &plan).critical(), ["bad"]);
        let idle = run(&[("bad", "skipped", Some((0, 1))), ("idle", "skipped", Some((0, 2)))]);
        assert_eq!(Course::of(&idle, &plan).critical(), ["idle"]);
    }

    #[test]
    fn a_rule_may_ask_for_the_first_end() {
        let plan = plan(json!({
            "fast": {}, "slow": {},
            "any": {"depends_on": ["fast", "slow"], "trigger_rule": "any_success"},
            "free": {"depends_on": ["fast", "slow"], "trigger_rule": "always"},
        }));
        let run = run(&[
            ("fast", "succeeded", Some((0, 1))),
            ("slow", "succeeded", Some((0, 9))),
            ("any", "succeeded", Some((1, 20))),
            ("free", "succeeded", Some((0, 2))),
        ]);
        let course = Course::of(&run, &plan);
        assert_eq!(course.critical(), ["any", "fast"]);
        assert_eq!(course.ready_at(&run.task_runs()[3]), None);
    }

    #[test]
    fn a_task_waits_for_what_is_not_settled() {
        let plan = orders();
        let run = run(&[
            ("extract", "succeeded", Some((0, 10))),
            ("parse", "succeeded", Some((10, 30))),
            ("tell", "pending", None),
            ("load", "skipped", None),
            ("cleanup", "pending", None),
        ]);
        let course = Course::of(&run, &plan);
        assert_eq!(course.open_needs(run.wholes().last().unwrap()), ["tell"]);
        assert!(course.open_needs(&run.task_runs()[2]).is_empty());
    }
}
