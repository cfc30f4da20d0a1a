//! Which changes of a run cause notifications, and who gets them.

use std::collections::{BTreeMap, BTreeSet};

use crate::Time;
use crate::plan::{Plan, TaskIndex};
use crate::run::{AttemptKey, Progress};
use crate::spec::{GroupSpec, NotifyEvent, NotifyRules};
use crate::state::{RunState, TaskState};

/// How many failed tasks a notice of a run's failure lists as already notified.
const COVERS_MAX: usize = 1_000;

/// The notification rules for runs of a revision: computed once, used for each outcome.
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

    /// Whether there is any rule.
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

/// An event that causes notifications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The event; `None`: the callback of the run.
    pub event: Option<NotifyEvent>,
    /// The task that it is about; `None`: the run.
    pub task: Option<TaskIndex>,
    /// The item of a mapped task.
    pub item: Option<u32>,
    /// The attempt that comes next, of [`NotifyEvent::Retrying`].
    pub attempt: Option<u32>,
    pub due: Option<Time>,
    /// The run's message, from the same moment, includes this: recipients of that one do not get this too.
    pub with_run: bool,
    /// For a run's failure: tasks that had failed before and have their own notices. Recipients of these get no
    /// notification of the run. Tasks whose failure is part of the run's message ([`Notice::with_run`]) are listed too.
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
    /// The progress of the run after this decision.
    pub progress: &'a Progress,
    /// The run has a callback.
    pub callback: bool,
}

/// The notices about the changes of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcements {
    /// In the order in which they happened.
    pub notices: Vec<Notice>,
    /// What has failed now (a task, or `None`: the run), if there is a rule for its recovery.
    pub troubled: Vec<Option<TaskIndex>>,
}

impl Announcements {
    /// Whether it causes no notification, now or later.
    pub fn is_empty(&self) -> bool {
        self.notices.is_empty() && self.troubled.is_empty()
    }
}

/// The notices about the changes of a run.
///
/// A recovery is only possible here: whether there was a failure before is known where notices are written.
pub fn notices(plan: &Plan, subscriptions: &Subscriptions, moves: &Moves<'_>) -> Announcements {
    let mut announcements = Announcements::default();
    if subscriptions.any() {
        announce_tasks(plan, subscriptions, moves, &mut announcements);
        announce_run(plan, subscriptions, moves, &mut announcements);
    }
    if moves.callback && moves.finished.is_some() {
        announcements.notices.push(Notice {
            event: None,
            ..Notice::of_run(NotifyEvent::Succeeded)
        });
    }
    announcements
}

/// What the run's own message includes of a task, if both end alike at the same moment.
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

fn announce_tasks(plan: &Plan, subscriptions: &Subscriptions, moves: &Moves<'_>, announcements: &mut Announcements) {
    use NotifyEvent::{Failed, Recovered, Retrying, Succeeded};
    for &(due, at) in moves.retries {
        if subscriptions.group(Retrying) || subscriptions.task(at.key.task, Retrying) {
            announcements.notices.push(Notice {
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
            announcements.notices.push(Notice {
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
                Failed => announcements.troubled.push(Some(task)),
                _ => announcements.notices.push(Notice {
                    with_run: is_said_by_run(plan, subscriptions, moves, Recovered, task),
                    ..Notice::of_task(Recovered, task)
                }),
            }
        }
    }
}

fn announce_run(plan: &Plan, subscriptions: &Subscriptions, moves: &Moves<'_>, announcements: &mut Announcements) {
    use NotifyEvent::{Failed, Recovered, Started, Succeeded};
    if moves.started && subscriptions.group(Started) {
        announcements.notices.push(Notice::of_run(Started));
    }
    match moves.finished {
        Some(RunState::Succeeded) => {
            for event in [Succeeded, Recovered] {
                if subscriptions.group(event) {
                    announcements.notices.push(Notice::of_run(event));
                }
            }
        }
        Some(RunState::Failed) => {
            if subscriptions.group(Failed) {
                announcements.notices.push(Notice {
                    covers: announced_before(plan, subscriptions, moves),
                    ..Notice::of_run(Failed)
                });
            }
            if subscriptions.group(Recovered) {
                announcements.troubled.push(None);
            }
        }
        _ => {}
    }
}

/// Tasks that had failed, with notices of their own, before the run failed because of them.
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
    /// A room, or the receiver of a webhook: no addresses.
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
                    // A notification without recipients is created, fails, and says why.
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

/// The channel for addresses in a rule's `to`: one that the rule names itself, or the one named `email`, or the first
/// by name. Without any channel the result is `email`, which then does not exist.
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

/// The recipients of a notice: those of the group's rule and of the task's, each address once, without those who get
/// another notice of the same failure.
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
    // For the run: without those who were notified of the task because of which it failed.
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
