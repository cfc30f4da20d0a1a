//! A world that carries out decisions, and checks after each step what must always be true.
//!
//! Events are given in words, so that a failure can be replayed: `claim a; ok a; fail b + lose c`. Steps are separated
//! by `;`, outcomes of one batch by `+`. A task run is written `name`, an item `name#3`; `*` claims all. `ok`, `fail`
//! and the like claim what is ready by themselves.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::super::*;
use crate::spec::{TriggerRule, parse_group};

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) state: RunState,
    pub(super) progress: Progress,
    pub(super) now: Time,
    pub(super) ready: BTreeMap<TaskKey, u32>,
    pub(super) running: BTreeMap<TaskKey, u32>,
    pub(super) timers: BTreeMap<TaskKey, (Time, u32)>,
    /// Attempts that have begun.
    pub(super) begun: BTreeSet<AttemptKey>,
    /// Attempts that were stopped while they ran.
    pub(super) stopped: Vec<AttemptKey>,
    /// The steps so far, for the message of a failed check.
    pub(super) log: Vec<String>,
    /// Whether the last run was ended by a cancel.
    cancelled: bool,
    /// Whether the store would say that the run waits, paused or not.
    waits: bool,
}

/// Compiles a group; tasks that name no executor go to a queue.
pub(super) fn plan(mut group: Value) -> Plan {
    for task in group["tasks"].as_object_mut().unwrap().values_mut() {
        if task.get("script").is_none() {
            task["queue"] = json!("q");
        }
    }
    Plan::compile(parse_group(&group).unwrap()).unwrap()
}

impl World {
    /// A run that has been started.
    pub(super) fn start(group: Value) -> Self {
        let mut world = Self::of(plan(group));
        world.play("start");
        world
    }

    pub(super) fn of(plan: Plan) -> Self {
        Self {
            progress: Progress::new(&plan),
            plan,
            state: RunState::Waiting,
            now: "2026-11-20T10:00:00Z".parse().unwrap(),
            ready: BTreeMap::new(),
            running: BTreeMap::new(),
            timers: BTreeMap::new(),
            begun: BTreeSet::new(),
            stopped: Vec::new(),
            log: Vec::new(),
            cancelled: false,
            waits: true,
        }
    }

    pub(super) fn key(&self, word: &str) -> TaskKey {
        let (name, item) = match word.split_once('#') {
            Some((name, item)) => (name, Some(item.parse().unwrap())),
            None => (word, None),
        };
        TaskKey {
            task: self.plan.index(name).unwrap_or_else(|| panic!("no task {name}")),
            item,
        }
    }

    pub(super) fn word(&self, key: TaskKey) -> String {
        let name = &self.plan.tasks[key.task as usize].name;
        key.item.map_or(name.to_string(), |item| format!("{name}#{item}"))
    }

    /// Goes through steps, none of which is refused.
    pub(super) fn play(&mut self, steps: &str) -> &mut Self {
        for step in steps.split(';') {
            if let Err(refused) = self.step(step.trim()) {
                panic!("`{step}` was refused: {refused}\nafter {}", self.log.join("; "));
            }
        }
        self
    }

    /// A step that is refused, and why.
    pub(super) fn refused(&mut self, step: &str, why: &str) -> &mut Self {
        let refused = self.step(step).expect_err(step);
        assert_eq!(refused.to_string(), why, "{step}");
        self
    }

    /// Delivers an outcome of an attempt that is not the current one.
    pub(super) fn stale(&mut self, word: &str, attempt: u32) -> &mut Self {
        let at = AttemptKey {
            key: self.key(word),
            attempt,
        };
        let before = (self.state, self.progress.clone());
        for outcome in [Outcome::Succeeded { output_bytes: 1 }, Outcome::Lost, failure(false)] {
            let actions = self.deliver(&[Event::Ended { at, outcome }]).unwrap();
            assert_eq!(
                actions,
                Actions {
                    accepted: vec![false],
                    ..Actions::default()
                },
                "{word} {attempt}"
            );
        }
        assert_eq!(before, (self.state, self.progress.clone()));
        self
    }

    pub(super) fn step(&mut self, step: &str) -> Result<(), Refused> {
        self.log.push(step.to_owned());
        let words: Vec<&str> = step.split_whitespace().collect();
        if let ["claim", what] = words[..] {
            let keys: Vec<TaskKey> = match what {
                "*" => self.ready.keys().copied().collect(),
                word => vec![self.key(word)],
            };
            keys.into_iter().for_each(|key| self.claim(key));
            return Ok(());
        }
        let events: Vec<Event> = step.split('+').map(|part| self.event(part)).collect();
        let accepted = events
            .iter()
            .filter(|event| matches!(event, Event::Ended { .. } | Event::Expanded { .. }));
        let expect = vec![true; accepted.count()];
        let actions = self.deliver(&events)?;
        assert_eq!(actions.accepted, expect, "{step}");
        self.repeat(&events);
        Ok(())
    }

    fn claim(&mut self, key: TaskKey) {
        let Some(attempt) = self.ready.remove(&key) else {
            panic!("{} is not ready", self.word(key))
        };
        assert!(
            self.begun.insert(AttemptKey { key, attempt }),
            "{} has two attempts {attempt}",
            self.word(key)
        );
        self.running.insert(key, attempt);
    }

    fn ended(&mut self, word: &str) -> AttemptKey {
        let key = self.key(word);
        if self.ready.contains_key(&key) {
            self.claim(key);
        }
        match self.running.remove(&key) {
            Some(attempt) => AttemptKey { key, attempt },
            None => panic!("{word} does not run\nafter {}", self.log.join("; ")),
        }
    }

    fn event(&mut self, text: &str) -> Event {
        let words: Vec<&str> = text.split_whitespace().collect();
        let end = |world: &mut Self, word: &str, outcome| Event::Ended {
            at: world.ended(word),
            outcome,
        };
        match words[..] {
            ["start"] => Event::Start,
            ["ok", word] => end(self, word, Outcome::Succeeded { output_bytes: 4 }),
            ["ok", word, bytes] => end(
                self,
                word,
                Outcome::Succeeded {
                    output_bytes: bytes.parse().unwrap(),
                },
            ),
            ["skip", word] => end(self, word, Outcome::Skipped),
            ["fail", word] => end(self, word, failure(false)),
            ["fatal", word] => end(self, word, failure(true)),
            ["lose", word] => end(self, word, Outcome::Lost),
            ["release", word] => end(self, word, Outcome::Released),
            ["expand", word, count] => Event::Expanded {
                at: self.ended(word),
                count: count.parse().unwrap(),
            },
            ["due", word] => {
                let key = self.key(word);
                let Some((due, attempt)) = self.timers.remove(&key) else {
                    panic!("{word} has no timer")
                };
                self.now = self.now.max(due);
                Event::Due(AttemptKey { key, attempt })
            }
            ["pause"] => Event::Pause {
                withdrawn: self.withdraw(),
            },
            ["resume"] => Event::Resume { waits: self.waits },
            ["cancel"] => Event::Cancel {
                withdrawn: self.withdraw(),
            },
            ["restart"] => Event::Restart,
            ["turn"] => Event::WaitAtGate,
            ["set", word, state] => Event::Override {
                key: self.key(word),
                state: state.parse().unwrap(),
                bytes_before: 4,
                bytes_after: 4,
            },
            ["set", word, state, before, after] => Event::Override {
                key: self.key(word),
                state: state.parse().unwrap(),
                bytes_before: before.parse().unwrap(),
                bytes_after: after.parse().unwrap(),
            },
            ["retry", word] => Event::RetryNow(self.key(word)),
            ["clear", word] | ["clear", word, "alone"] => Event::Clear {
                key: self.key(word),
                downstream: words.len() == 2,
                output_bytes: 4,
            },
            _ => panic!("what is `{text}`?"),
        }
    }

    /// Takes back the ready rows. If the event is then refused, nothing is restored, as when a transaction is rolled
    /// back.
    fn withdraw(&mut self) -> Vec<TaskKey> {
        if self.state.is_final() {
            Vec::new()
        } else {
            std::mem::take(&mut self.ready).into_keys().collect()
        }
    }

    /// Decides, and carries out the decision.
    pub(super) fn deliver(&mut self, events: &[Event]) -> Result<Actions, Refused> {
        let was = self.state;
        let (mut actions, before) = self.decide(events)?;
        self.carry_out(&actions);
        if actions.withdraw {
            let withdrawn = std::mem::take(&mut self.ready).into_keys().collect();
            let (more, _) = self.decide(&[Event::Withdrawn(withdrawn)])?;
            assert!(!more.withdraw && more.ready.is_empty());
            self.carry_out(&more);
            actions.finished = more.finished;
        }
        match events {
            [Event::Cancel { .. }] => self.cancelled = true,
            // A cancelled run is reopened only by a restart or a clear, whatever cancelled it.
            [Event::Override { .. }] | [Event::WaitAtGate, Event::Override { .. }] if was == RunState::Cancelled => {
                self.cancelled = true;
            }
            [Event::Restart | Event::Clear { .. }] | [Event::WaitAtGate, Event::Restart | Event::Clear { .. }] => {
                self.cancelled = false;
            }
            _ => {}
        }
        self.waits = match self.state {
            RunState::Waiting => true,
            RunState::Paused => self.waits,
            _ => false,
        };
        let retried_now = events.iter().any(|event| matches!(event, Event::RetryNow(_)));
        self.check(&before, retried_now);
        match actions.finished {
            Some(state) => assert_eq!(state, self.state),
            None => assert!(!self.state.is_final() || events.iter().all(|event| matches!(event, Event::Ended { .. }))),
        }
        Ok(actions)
    }

    fn decide(&mut self, events: &[Event]) -> Result<(Actions, Progress), Refused> {
        let before = self.progress.clone();
        super::format::check_bytes(&self.progress);
        let mut other = (self.state, self.progress.clone());
        let mut bits = || 1u128 << 100;
        let again = decide(&self.plan, &mut other.0, &mut other.1, events, self.now, &mut bits);
        let (mut state, mut progress) = (self.state, self.progress.clone());
        let actions = decide(&self.plan, &mut state, &mut progress, events, self.now, &mut bits);
        assert_eq!(
            (&actions, state, &progress),
            (&again, other.0, &other.1),
            "decided otherwise the second time"
        );
        let actions = actions?;
        (self.state, self.progress) = (state, progress);
        Ok((actions, before))
    }

    /// Does what the store does, in its order.
    fn carry_out(&mut self, actions: &Actions) {
        for key in &actions.drop_timers {
            self.timers.remove(key);
        }
        for &(due, at) in &actions.timers {
            assert!(due > self.now);
            assert!(self.timers.insert(at.key, (due, at.attempt)).is_none());
        }
        for &key in &actions.interrupt {
            self.ready.remove(&key);
            if let Some(attempt) = self.running.remove(&key) {
                self.stopped.push(AttemptKey { key, attempt });
            }
        }
        for at in &actions.ready {
            let last = self
                .begun
                .range(
                    ..=AttemptKey {
                        key: at.key,
                        attempt: u32::MAX,
                    },
                )
                .next_back();
            let last = last.filter(|last| last.key == at.key).map_or(0, |last| last.attempt);
            assert!(at.attempt > last, "{} {} after {last}", self.word(at.key), at.attempt);
            assert!(
                !self.running.contains_key(&at.key),
                "{} is ready while it runs",
                self.word(at.key)
            );
            assert!(
                self.ready.insert(at.key, at.attempt).is_none(),
                "{} is ready twice",
                self.word(at.key)
            );
        }
    }

    /// The same outcomes once more change nothing.
    fn repeat(&mut self, events: &[Event]) {
        let repeated: Vec<Event> = events
            .iter()
            .filter(|event| matches!(event, Event::Ended { .. } | Event::Expanded { .. } | Event::Due(_)))
            .cloned()
            .collect();
        let before = (self.state, self.progress.clone());
        let (actions, _) = self.decide(&repeated).unwrap();
        let count = repeated.iter().filter(|event| !matches!(event, Event::Due(_))).count();
        assert_eq!(
            actions,
            Actions {
                accepted: vec![false; count],
                ..Actions::default()
            }
        );
        assert_eq!(before, (self.state, self.progress.clone()));
    }

    /// What must be true after every step.
    fn check(&self, before: &Progress, retried_now: bool) {
        let context = || format!("{}\nafter {}", self.show(), self.log.join("; "));
        let is_expanded = |task: TaskIndex| self.progress.maps.contains_key(&task);
        for (&key, &attempt) in self.ready.iter().chain(&self.running) {
            assert_eq!(
                self.progress.state(key),
                Some(TaskState::Ready),
                "{} {}",
                self.word(key),
                context()
            );
            assert_eq!(self.progress.attempt(key), attempt, "{} {}", self.word(key), context());
        }
        for (&key, &(_, attempt)) in &self.timers {
            assert_eq!(
                self.progress.state(key),
                Some(TaskState::Retrying),
                "{} {}",
                self.word(key),
                context()
            );
            assert_eq!(self.progress.attempt(key), attempt, "{} {}", self.word(key), context());
        }
        for key in self.progress.in_state(TaskState::Ready) {
            assert!(
                self.ready.contains_key(&key) || self.running.contains_key(&key),
                "{}",
                context()
            );
        }
        for key in self.progress.in_state(TaskState::Retrying) {
            assert!(
                self.timers.contains_key(&key),
                "{} has no timer {}",
                self.word(key),
                context()
            );
        }
        assert!(self.progress.in_state(TaskState::Running).is_empty());
        let goes = self.state == RunState::Running && !self.progress.stopping;
        if matches!(self.state, RunState::Paused | RunState::Waiting) {
            assert!(self.ready.is_empty(), "{}", context());
        } else {
            assert!(self.progress.in_state(TaskState::Paused).is_empty(), "{}", context());
        }
        for task in 0..self.plan.tasks.len() as TaskIndex {
            let state = self.progress.task(task);
            let verdict = self.rule(task);
            if state == TaskState::Pending && !self.waits {
                assert_eq!(
                    verdict,
                    None,
                    "{} waits for nothing: {}",
                    self.word(TaskKey::whole(task)),
                    context()
                );
            }
            let was = before.task(task);
            let went = matches!(was, TaskState::Ready | TaskState::Retrying | TaskState::Paused);
            if matches!(state, TaskState::Ready | TaskState::Paused) && !went && !retried_now && !is_expanded(task) {
                let word = self.word(TaskKey::whole(task));
                assert_eq!(
                    verdict,
                    Some(TaskState::Ready),
                    "{word} was not to start: {}",
                    context()
                );
            }
            // What the rules decided is what they decide now.
            if self.is_derived(task) {
                let word = self.word(TaskKey::whole(task));
                assert_eq!(verdict, Some(state), "{word} was left behind: {}", context());
            }
            self.check_map(task, goes, &context);
        }
        if self.state.is_final() {
            self.check_end(&context);
        }
    }

    /// Whether the rules, and not an outcome or an operator, have settled a task.
    fn is_derived(&self, task: TaskIndex) -> bool {
        match self.progress.task(task) {
            TaskState::UpstreamFailed => true,
            TaskState::Skipped => {
                let detail = self.progress.details.get(&task);
                detail.is_none_or(|detail| detail.skip == SkipCause::Derived)
            }
            _ => false,
        }
    }

    /// What must be true once the run has ended.
    fn check_end(&self, context: &dyn Fn() -> String) {
        let empty = self.ready.is_empty() && self.running.is_empty() && self.timers.is_empty();
        assert!(empty, "something is left of an ended run: {}", context());
        for task in 0..self.plan.tasks.len() as TaskIndex {
            assert!(self.progress.task(task).is_settled(), "{}", context());
        }
        let failed = (0..self.plan.tasks.len()).any(|task| {
            self.progress.task(task as TaskIndex) == TaskState::Failed && !self.plan.tasks[task].allow_failure
        });
        let stopped =
            (0..self.plan.tasks.len()).any(|task| self.progress.task(task as TaskIndex) == TaskState::Cancelled);
        let expect = match (self.cancelled, failed) {
            (true, _) => RunState::Cancelled,
            (_, true) => RunState::Failed,
            _ if stopped => RunState::Cancelled,
            _ => RunState::Succeeded,
        };
        assert_eq!(self.state, expect, "{}", context());
        assert_eq!(
            self.state == RunState::Failed,
            self.progress.error().is_some() && failed && !self.cancelled
        );
    }

    fn check_map(&self, task: TaskIndex, goes: bool, context: &dyn Fn() -> String) {
        let Some(map) = self.progress.maps.get(&task) else {
            return;
        };
        let count = |states: &[TaskState]| {
            let in_them = |byte: &&u8| states.iter().any(|state| state.number() == i16::from(**byte));
            map.states.iter().filter(in_them).count() as u32
        };
        use TaskState::*;
        assert_eq!(map.open, count(&[Ready, Paused]), "{}", context());
        assert_eq!(map.failed, count(&[Failed]), "{}", context());
        assert_eq!(
            map.unsettled,
            count(&[Pending, Ready, Retrying, Paused]),
            "{}",
            context()
        );
        let state = self.progress.task(task);
        let bound = self.plan.tasks[task as usize].concurrency;
        assert!(map.open <= bound, "{} at once: {}", map.open, context());
        assert!(!matches!(state, Retrying | Paused), "{}", context());
        if state == Ready {
            assert!(map.unsettled > 0, "{}", context());
            assert!(
                !goes || count(&[Pending]) == 0 || map.open == bound,
                "items wait for nothing: {}",
                context()
            );
        }
        if state.is_settled() {
            assert_eq!(map.unsettled, 0, "{}", context());
        }
    }

    /// The contract's rules, implemented a second time.
    fn rule(&self, task: TaskIndex) -> Option<TaskState> {
        let spec = &self.plan.tasks[task as usize];
        let states: Vec<TaskState> = spec
            .depends_on
            .iter()
            .map(|&dependency| match self.progress.task(dependency) {
                TaskState::Failed if self.plan.tasks[dependency as usize].allow_failure => TaskState::Succeeded,
                TaskState::Cancelled => TaskState::UpstreamFailed,
                state => state,
            })
            .collect();
        let any = |wanted: &[TaskState]| states.iter().any(|state| wanted.contains(state));
        let all_settled = states.iter().all(|state| state.is_settled());
        let bad = [TaskState::Failed, TaskState::UpstreamFailed];
        if states.is_empty() {
            return Some(TaskState::Ready);
        }
        match spec.rule {
            TriggerRule::AllSuccess if any(&bad) => Some(TaskState::UpstreamFailed),
            TriggerRule::AllSuccess if !all_settled => None,
            TriggerRule::AllSuccess if any(&[TaskState::Skipped]) => Some(TaskState::Skipped),
            TriggerRule::AllSuccess => Some(TaskState::Ready),
            TriggerRule::AllDone => all_settled.then_some(TaskState::Ready),
            TriggerRule::AnySuccess if any(&[TaskState::Succeeded]) => Some(TaskState::Ready),
            TriggerRule::AnyFailed if any(&bad) => Some(TaskState::Ready),
            TriggerRule::AnySuccess | TriggerRule::AnyFailed => all_settled.then_some(TaskState::Skipped),
            TriggerRule::NoneFailed | TriggerRule::NoneFailedMinOneSuccess if any(&bad) => {
                Some(TaskState::UpstreamFailed)
            }
            TriggerRule::NoneFailed => all_settled.then_some(TaskState::Ready),
            TriggerRule::NoneFailedMinOneSuccess if any(&[TaskState::Succeeded]) => {
                all_settled.then_some(TaskState::Ready)
            }
            TriggerRule::NoneFailedMinOneSuccess => all_settled.then_some(TaskState::Skipped),
            TriggerRule::AllFailed if any(&[TaskState::Succeeded, TaskState::Skipped]) => Some(TaskState::Skipped),
            TriggerRule::AllSkipped if any(&[TaskState::Succeeded]) || any(&bad) => Some(TaskState::Skipped),
            TriggerRule::AllFailed | TriggerRule::AllSkipped => all_settled.then_some(TaskState::Ready),
            TriggerRule::Always => Some(TaskState::Ready),
        }
    }

    /// The states of all task runs, then the run's: `a=succeeded m=ready m#0=running run=running`.
    pub(super) fn show(&self) -> String {
        let mut shown = Vec::new();
        let mut push = |key: TaskKey| {
            let state = match self.progress.state(key) {
                Some(TaskState::Ready) if self.running.contains_key(&key) => TaskState::Running,
                Some(state) => state,
                None => return false,
            };
            shown.push(format!("{}={state}", self.word(key)));
            true
        };
        for task in 0..self.plan.tasks.len() as TaskIndex {
            push(TaskKey::whole(task));
            (0..)
                .take_while(|&item| push(TaskKey { task, item: Some(item) }))
                .count();
        }
        shown.push(format!("run={}", self.state));
        shown.join(" ")
    }

    /// Checks the states of the run and its task runs, as `show` writes them.
    pub(super) fn shows(&mut self, expect: &str) -> &mut Self {
        assert_eq!(self.show(), expect, "after {}", self.log.join("; "));
        self
    }

    /// Lets everything succeed until the run has ended; mapped tasks get `items`.
    pub(super) fn drain(&mut self, items: u32) {
        // An outcome or a timer each time, of which there cannot be more.
        for _ in 0..100_000 {
            if self.state == RunState::Paused {
                self.play("resume");
            } else if self.state == RunState::Waiting {
                self.play("start");
            } else if let Some(&key) = self.running.keys().chain(self.ready.keys()).next() {
                let expands = key.item.is_none() && self.plan.tasks[key.task as usize].mapped;
                let word = self.word(key);
                self.play(&if expands {
                    format!("expand {word} {items}")
                } else {
                    format!("ok {word}")
                });
            } else if let Some(&key) = self.timers.keys().next() {
                let word = self.word(key);
                self.play(&format!("due {word}"));
            } else {
                break;
            }
        }
        assert!(
            self.state.is_final(),
            "{} does not end after {}",
            self.show(),
            self.log.join("; ")
        );
    }
}

pub(super) fn failure(fatal: bool) -> Outcome {
    Outcome::Failed {
        kind: ErrorKind::Failed,
        message: "broken".into(),
        retry_after: None,
        fatal,
    }
}
