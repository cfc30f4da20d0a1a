//! Which moves of a run somebody wants to hear of, and who that is.

use std::collections::{BTreeMap, BTreeSet};

use crate::Time;
use crate::plan::{Plan, TaskIndex};
use crate::run::{AttemptKey, Progress};
use crate::spec::{GroupSpec, NotifyEvent, NotifyRules};
use crate::state::{RunState, TaskState};

/// How many failed tasks a notice of a run's failure names as told before.
const COVERS_MAX: usize = 1_000;

/// What anybody is told of a revision's runs: computed once, looked at for each outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscriptions {
    group: u16,
    /// By task number; empty if no task has a rule.
    tasks: Vec<u16>,
    anywhere: u16,
}

fn bit(event: NotifyEvent) -> u16 {
    1 << event as u16
}

fn bits(rules: Option<&NotifyRules>) -> u16 {
    rules.map_or(0, |rules| rules.on.iter().fold(0, |bits, &event| bits | bit(event)))
}

impl Subscriptions {
    pub fn of(plan: &Plan) -> Self {
        let group = bits(plan.spec.notify.as_ref());
        let mut tasks: Vec<u16> = plan.tasks.iter().map(|task| bits(task.spec.notify.as_ref())).collect();
        let anywhere = tasks.iter().fold(group, |all, bits| all | bits);
        if tasks.iter().all(|&bits| bits == 0) {
            tasks.clear();
        }
        Self { group, tasks, anywhere }
    }

    /// Whether anybody is told of anything.
    pub fn any(&self) -> bool {
        self.anywhere != 0
    }

    /// Whether some rule names an event.
    pub fn anywhere(&self, event: NotifyEvent) -> bool {
        self.anywhere & bit(event) != 0
    }

    /// Whether the group's rule names an event.
    pub fn group(&self, event: NotifyEvent) -> bool {
        self.group & bit(event) != 0
    }

    /// Whether a task's rule names an event.
    pub fn task(&self, task: TaskIndex, event: NotifyEvent) -> bool {
        self.tasks.get(task as usize).is_some_and(|bits| bits & bit(event) != 0)
    }
}

/// Something happened that somebody wants to hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What; `None`: whoever submitted the run is called back.
    pub event: Option<NotifyEvent>,
    /// The task that it is about; `None`: the run.
    pub task: Option<TaskIndex>,
    /// The item of a mapped task.
    pub item: Option<u32>,
    /// The attempt that comes next, of [`NotifyEvent::Retrying`].
    pub attempt: Option<u32>,
    pub due: Option<Time>,
    /// The run's message, of the same moment, says this too: who gets that one is not told this as well.
    pub with_run: bool,
    /// Of a run's failure: tasks that had failed, and been told of, before. Who was told is not told of the run; so where
    /// [`Notice::with_run`] leaves a task's failure to the run's message, they stand here too.
    pub covers: Vec<TaskIndex>,
}

impl Notice {
    pub fn of_run(event: NotifyEvent) -> Self {
        Self {
            event: Some(event),
            task: None,
            item: None,
            attempt: None,
            due: None,
            with_run: false,
            covers: Vec::new(),
        }
    }

    pub fn of_task(event: NotifyEvent, task: TaskIndex) -> Self {
        Self {
            task: Some(task),
            ..Self::of_run(event)
        }
    }
}

/// How a run has moved in one decision.
#[derive(Clone, Copy, Debug)]
pub struct Moves<'a> {
    /// It waited, and runs now.
    pub started: bool,
    /// Task runs (not items) that were settled.
    pub settled: &'a [(TaskIndex, TaskState)],
    /// Retries that are due later.
    pub retries: &'a [(Time, AttemptKey)],
    pub finished: Option<RunState>,
    /// How it stands now.
    pub progress: &'a Progress,
    /// Whoever submitted it waits to be called back.
    pub callback: bool,
}

/// What there is to be told of a run's moves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Telling {
    /// In the order in which they happened.
    pub notices: Vec<Notice>,
    /// What has failed now (a task, or `None`: the run) and whose recovery somebody wants to hear of.
    pub troubled: Vec<Option<TaskIndex>>,
}

impl Telling {
    /// Whether there is nothing to be told, now or later.
    pub fn is_empty(&self) -> bool {
        self.notices.is_empty() && self.troubled.is_empty()
    }
}

/// What there is to be told of a run's moves.
///
/// A recovery is only possible here: whether there was a failure before is known where notices are written.
pub fn notices(plan: &Plan, subscriptions: &Subscriptions, moves: &Moves<'_>) -> Telling {
    let mut telling = Telling::default();
    if subscriptions.any() {
        tell_tasks(plan, subscriptions, moves, &mut telling);
        tell_run(plan, subscriptions, moves, &mut telling);
    }
    if moves.callback && moves.finished.is_some() {
        telling.notices.push(Notice {
            event: None,
            ..Notice::of_run(NotifyEvent::Succeeded)
        });
    }
    telling
}

/// What the run's own message says of a task, if both come to the same end at the same moment.
///
/// A run that has failed names the one task that it failed of, its first failure; of any other task that failed, also
/// with it, nobody would learn from it. A run that has succeeded says nothing of its tasks, and which of them came last is
/// chance; but where there is only one, its success and the run's are the same.
fn is_said_by_run(
    plan: &Plan,
    subscriptions: &Subscriptions,
    moves: &Moves<'_>,
    event: NotifyEvent,
    task: TaskIndex,
) -> bool {
    let same = match event {
        NotifyEvent::Failed => {
            let failure = moves.progress.failure(plan);
            moves.finished == Some(RunState::Failed) && failure.is_some_and(|failure| failure.task == task)
        }
        _ => moves.finished == Some(RunState::Succeeded) && plan.tasks.len() == 1,
    };
    same && subscriptions.group(event)
}

fn tell_tasks(plan: &Plan, subscriptions: &Subscriptions, moves: &Moves<'_>, telling: &mut Telling) {
    use NotifyEvent::{Failed, Recovered, Retrying, Succeeded};
    for &(due, at) in moves.retries {
        if subscriptions.group(Retrying) || subscriptions.task(at.key.task, Retrying) {
            telling.notices.push(Notice {
                item: at.key.item,
                attempt: Some(at.attempt),
                due: Some(due),
                ..Notice::of_task(Retrying, at.key.task)
            });
        }
    }
    for &(task, state) in moves.settled {
        let event = match state {
            TaskState::Succeeded => Succeeded,
            TaskState::Failed => Failed,
            _ => continue,
        };
        if subscriptions.task(task, event) {
            let with_run = is_said_by_run(plan, subscriptions, moves, event, task);
            telling.notices.push(Notice {
                with_run,
                covers: if with_run && event == Failed {
                    announced_before(plan, subscriptions, moves)
                } else {
                    Vec::new()
                },
                ..Notice::of_task(event, task)
            });
        }
        if subscriptions.task(task, Recovered) {
            match event {
                Failed => telling.troubled.push(Some(task)),
                _ => telling.notices.push(Notice {
                    with_run: is_said_by_run(plan, subscriptions, moves, Recovered, task),
                    ..Notice::of_task(Recovered, task)
                }),
            }
        }
    }
}

fn tell_run(plan: &Plan, subscriptions: &Subscriptions, moves: &Moves<'_>, telling: &mut Telling) {
    use NotifyEvent::{Failed, Recovered, Started, Succeeded};
    if moves.started && subscriptions.group(Started) {
        telling.notices.push(Notice::of_run(Started));
    }
    match moves.finished {
        Some(RunState::Succeeded) => {
            for event in [Succeeded, Recovered] {
                if subscriptions.group(event) {
                    telling.notices.push(Notice::of_run(event));
                }
            }
        }
        Some(RunState::Failed) => {
            if subscriptions.group(Failed) {
                telling.notices.push(Notice {
                    covers: announced_before(plan, subscriptions, moves),
                    ..Notice::of_run(Failed)
                });
            }
            if subscriptions.group(Recovered) {
                telling.troubled.push(None);
            }
        }
        _ => {}
    }
}

/// Tasks that had failed, and been told of, before the run failed of it.
fn announced_before(plan: &Plan, subscriptions: &Subscriptions, moves: &Moves<'_>) -> Vec<TaskIndex> {
    let now = |task| moves.settled.iter().any(|&(settled, _)| settled == task);
    plan.tasks
        .iter()
        .enumerate()
        .map(|(index, task)| (index as TaskIndex, task))
        .filter(|&(index, task)| {
            !task.allow_failure
                && subscriptions.task(index, NotifyEvent::Failed)
                && moves.progress.task(index) == TaskState::Failed
                && !now(index)
        })
        .map(|(index, _)| index)
        .take(COVERS_MAX)
        .collect()
}

/// A channel, as far as recipients depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Mail to these addresses, unless a rule names others.
    Mail(Vec<String>),
    /// Whoever is there: a room, or the receiver of a webhook.
    Channel,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// Channels without addresses, and channels that are not there.
    pub channels: BTreeSet<String>,
    /// Addresses in lower case, with the channel that reaches them and the address as it was written.
    pub mails: BTreeMap<String, (String, String)>,
}

impl Targets {
    fn add(&mut self, rules: &NotifyRules, channels: &BTreeMap<String, Reach>, fallback: &str) {
        let mut relay = None;
        for name in &rules.channels {
            match channels.get(name.as_str()) {
                Some(Reach::Mail(addresses)) => {
                    relay.get_or_insert(name.as_str());
                    for address in addresses {
                        self.mail(name.as_str(), address);
                    }
                    // Told to nobody is not told: it is made, fails, and says so.
                    if addresses.is_empty() && rules.to.is_empty() {
                        self.channels.insert(name.as_str().to_owned());
                    }
                }
                Some(Reach::Channel) | None => {
                    self.channels.insert(name.as_str().to_owned());
                }
            }
        }
        for address in &rules.to {
            self.mail(relay.unwrap_or(fallback), address);
        }
    }

    fn mail(&mut self, channel: &str, address: &str) {
        self.mails
            .entry(address.to_lowercase())
            .or_insert_with(|| (channel.to_owned(), address.to_owned()));
    }

    fn remove(&mut self, others: &Self) {
        self.channels.retain(|channel| !others.channels.contains(channel));
        self.mails.retain(|address, _| !others.mails.contains_key(address));
    }

    /// The channels, each with the addresses that it reaches (if it sends mail).
    pub fn by_channel(self) -> BTreeMap<String, Vec<String>> {
        let mut channels: BTreeMap<String, Vec<String>> =
            self.channels.into_iter().map(|channel| (channel, Vec::new())).collect();
        for (channel, address) in self.mails.into_values() {
            channels.entry(channel).or_default().push(address);
        }
        channels
    }
}

/// The channel that addresses in a rule's `to` are told through: one that the rule names itself, else the one named
/// `email`, else the first by name. Without any the answer is `email`, which then is not there.
pub fn default_mail(channels: &BTreeMap<String, Reach>) -> &str {
    const PREFERRED: &str = "email";
    let is_mail = |name: &str| matches!(channels.get(name), Some(Reach::Mail(_)));
    if is_mail(PREFERRED) {
        return PREFERRED;
    }
    channels
        .keys()
        .map(String::as_str)
        .find(|name| is_mail(name))
        .unwrap_or(PREFERRED)
}

/// Who is told of a notice: the group's rule and the task's merged, each address once; less those who are told of the
/// same thing by another notice.
pub fn targets(spec: &GroupSpec, notice: &Notice, channels: &BTreeMap<String, Reach>) -> Targets {
    use NotifyEvent::{
        DeadlineMissed, Failed, QueueStalled, Recovered, Retrying, ScheduleMissed, Skipped, Started, Succeeded,
    };
    let Some(event) = notice.event else {
        return Targets::default();
    };
    let fallback = default_mail(channels);
    let named = |task: TaskIndex| {
        let task = spec.tasks.values().nth(task as usize)?;
        task.notify.as_ref().filter(|rules| rules.on.contains(&event))
    };
    let of_group = || spec.notify.as_ref().filter(|rules| rules.on.contains(&event));
    let merged = |rules: &mut dyn Iterator<Item = &NotifyRules>| {
        let mut targets = Targets::default();
        rules.for_each(|rules| targets.add(rules, channels, fallback));
        targets
    };
    // Of the run: less those who were told of the task that it failed of.
    let of_run = || {
        let mut targets = merged(&mut of_group().into_iter());
        targets.remove(&merged(&mut notice.covers.iter().filter_map(|&task| named(task))));
        targets
    };
    match (event, notice.task) {
        (Started | Succeeded | Failed | Recovered, Some(task)) => {
            let mut targets = merged(&mut named(task).into_iter());
            if notice.with_run {
                targets.remove(&of_run());
            }
            targets
        }
        (Retrying | QueueStalled, Some(task)) => merged(&mut of_group().into_iter().chain(named(task))),
        (DeadlineMissed | ScheduleMissed | Skipped, _) => {
            let tasks = (0..spec.tasks.len() as TaskIndex).filter_map(named);
            merged(&mut of_group().into_iter().chain(tasks))
        }
        (Started | Succeeded | Failed | Recovered | Retrying | QueueStalled, None) => of_run(),
    }
}

#[cfg(test)]
mod tests;
