//! The drafts of notifications: to which channels and recipients a notice is sent, and with which content.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use heddle_domain::notify::channel::ChannelSpec;
use heddle_domain::notify::message::{ERROR_MAX_CHARS, Facts, SUBJECT_MAX_CHARS, bounded, one_line};
use heddle_domain::notify::rules::{Reach, targets};
use heddle_domain::notify::{Event, message};
use heddle_domain::spec::{DeadlineAction, Misfire, NotifyEvent, OnFailure};
use heddle_domain::{Time, shortened};
use heddle_store::notice::{FailedAttempt, NoticeRow};
use heddle_store::run::RunRow;
use uuid::Uuid;

use super::{Notifier, instant, send::is_url};
use crate::node::catalog::Revision;

/// The objects that notices are about, as they were read.
pub(super) struct Known {
    pub(super) revisions: HashMap<i64, Arc<Revision>>,
    pub(super) runs: HashMap<Uuid, RunRow>,
    pub(super) failures: HashMap<i64, FailedAttempt>,
    pub(super) payloads: HashMap<i64, String>,
    pub(super) next: HashMap<i64, Time>,
    pub(super) channels: BTreeMap<String, ChannelSpec>,
    pub(super) reach: BTreeMap<String, Reach>,
}

/// One notice for one channel.
pub(super) struct Draft<'a> {
    pub(super) notice: &'a NoticeRow,
    pub(super) channel: String,
    pub(super) recipients: Vec<String>,
    pub(super) facts: Facts,
    /// Why it cannot be sent, if it cannot.
    pub(super) failed: Option<String>,
}

impl Notifier {
    /// The recipients of a notice, and the content for them.
    pub(super) fn drafts<'a>(&self, known: &Known, notice: &'a NoticeRow) -> Vec<Draft<'a>> {
        let facts = self.facts(known, notice);
        let draft = |channel: String, recipients: Vec<String>| Draft {
            failed: missing(known, &channel, &recipients, self.config.mail_dir.is_some()),
            notice,
            channel,
            recipients,
            facts: facts.clone(),
        };
        let of_channel = |channel: &str| match known.reach.get(channel) {
            Some(Reach::Mail(addresses)) => draft(channel.to_owned(), addresses.clone()),
            _ => draft(channel.to_owned(), Vec::new()),
        };
        match notice.event {
            Event::Script => match &notice.said {
                Some((channel, ..)) => vec![of_channel(channel)],
                None => Vec::new(),
            },
            Event::Callback => {
                let run = notice.run.and_then(|run| known.runs.get(&run.0));
                let target = match &notice.end {
                    Some(end) => Some(end.callback.as_str()),
                    None => run.and_then(|run| run.terms.callback.as_deref()),
                };
                match target {
                    Some(target) => vec![of_channel(target)],
                    None => Vec::new(),
                }
            }
            Event::Test => Vec::new(),
            Event::Rule(_) => {
                let Some(revision) = notice.revision_id.and_then(|id| known.revisions.get(&id)) else {
                    return Vec::new();
                };
                targets(&revision.plan.spec, &notice.notice, &known.reach)
                    .by_channel()
                    .into_iter()
                    .map(|(channel, recipients)| draft(channel, recipients))
                    .collect()
            }
        }
    }

    /// The facts about an event.
    fn facts(&self, known: &Known, notice: &NoticeRow) -> Facts {
        let revision = notice.revision_id.and_then(|id| known.revisions.get(&id));
        let run = notice.run.and_then(|run| known.runs.get(&run.0));
        let group = match (revision, run) {
            (Some(revision), _) => Some(revision.group_name.clone()),
            (None, Some(run)) => Some(run.group_name.clone()),
            (None, None) => notice.end.as_ref().and_then(|end| end.field("group")),
        };
        let mut facts = Facts {
            event: notice.event.as_str().to_owned(),
            at: instant(notice.at),
            group,
            run: notice.run.map(|run| run.to_string()),
            task: task_name(known, notice),
            item: notice.notice.item,
            about: notice.about.clone(),
            count: 1,
            ..Facts::default()
        };
        if let Some(run) = run {
            facts.state = Some(run.state.to_string());
            facts.trigger = Some(run.terms.trigger.to_string());
            facts.logical_time = Some(instant(run.terms.logical_time));
            if notice.event == Event::Callback || notice.event == Event::Rule(NotifyEvent::Failed) {
                facts.error = run.error.as_deref().map(short);
            }
            facts.link = Some(format!("{}/runs/{}", self.config.public_url, run.id));
        } else if let Some(group) = &facts.group {
            facts.link = Some(format!("{}/groups/{group}", self.config.public_url));
        }
        if let Some(end) = &notice.end {
            // The run may have been restarted since, or deleted.
            facts.state = end.field("state");
            facts.trigger = end.field("trigger");
            facts.logical_time = end.field("logical_time");
            facts.error = end.run["error"]["message"].as_str().map(short);
        }
        if let Some(failed) = known.failures.get(&notice.id) {
            if notice.notice.task.is_some() || facts.error.is_none() {
                facts.error = Some(short(&failed.message));
            }
            facts.error_kind = failed.kind.map(|kind| kind.to_string());
            facts.attempt = Some(failed.at.attempt);
        }
        if let Some((_, subject, body)) = &notice.said {
            facts.said = Some(one_line(subject, SUBJECT_MAX_CHARS));
            facts.body = Some(bounded(body, message::TEXT_MAX_BYTES).to_owned());
        }
        if let (Event::Rule(event), Some(revision)) = (notice.event, revision) {
            facts.next = next(event, notice, revision, run, known.next.get(&revision.group_id));
        }
        facts
    }
}

/// The task that a notice is about.
pub(super) fn task_name(known: &Known, notice: &NoticeRow) -> Option<String> {
    let revision_id = match notice.revision_id {
        Some(id) => id,
        None => known.runs.get(&notice.run?.0)?.revision_id,
    };
    let task = known.revisions.get(&revision_id)?.plan.task(notice.notice.task?)?;
    Some(task.name.as_str().to_owned())
}

/// Why nothing can be sent to a channel.
fn missing(known: &Known, channel: &str, recipients: &[String], writes_files: bool) -> Option<String> {
    if is_url(channel) {
        return None;
    }
    match known.channels.get(channel) {
        None if recipients.is_empty() => Some(format!("there is no channel `{channel}`")),
        None => Some("there is no email channel to send to these addresses".to_owned()),
        Some(ChannelSpec { smtp: None, .. })
            if matches!(known.reach.get(channel), Some(Reach::Mail(_))) && !writes_files =>
        {
            Some(format!(
                "the channel `{channel}` has no `smtp`; only `heddle dev` writes mails into files"
            ))
        }
        Some(_) if matches!(known.reach.get(channel), Some(Reach::Mail(_))) && recipients.is_empty() => {
            Some(format!("there is no recipient: the channel `{channel}` has no `to`"))
        }
        Some(_) => None,
    }
}

/// What will happen next, in a sentence.
fn next(
    event: NotifyEvent,
    notice: &NoticeRow,
    revision: &Revision,
    run: Option<&RunRow>,
    due: Option<&Time>,
) -> Option<String> {
    let plan = &revision.plan;
    let next_run = match due {
        Some(due) => format!("The group's next run is due at {}.", instant(*due)),
        None => "The group has no scheduled next run.".to_owned(),
    };
    Some(match event {
        NotifyEvent::Failed if notice.notice.task.is_none() => {
            format!("This run stays failed until somebody restarts it or overrides its state. {next_run}")
        }
        NotifyEvent::Failed => {
            let going = run.is_some_and(|run| !run.state.is_final());
            match (going, plan.on_failure) {
                (true, OnFailure::Stop) => "Tasks of this run that have not started are cancelled.".to_owned(),
                (true, OnFailure::Continue) => {
                    "The run continues with the tasks that do not depend on this task.".to_owned()
                }
                (false, _) => {
                    format!("It is not retried until somebody retries it or overrides its state. {next_run}")
                }
            }
        }
        NotifyEvent::Retrying => {
            let (attempt, due) = (notice.notice.attempt?, instant(notice.notice.due?));
            format!("Attempt {attempt} begins at {due}.")
        }
        NotifyEvent::DeadlineMissed => match plan.deadline_action {
            DeadlineAction::Cancel => "The run is cancelled.".to_owned(),
            DeadlineAction::Alert => "The run continues.".to_owned(),
        },
        NotifyEvent::ScheduleMissed => {
            let schedule = notice.about.as_ref().and_then(|name| revision.schedules.get(name));
            let made = match schedule.map(|schedule| schedule.misfire()) {
                Some(Misfire::All) => "One run is created for each missed instant.",
                Some(Misfire::Skip) => "No runs are created for the missed instants.",
                _ => "One run is created for the missed instants, with the latest of them as its logical time.",
            };
            format!("{made} {next_run}")
        }
        NotifyEvent::Skipped => format!("The skipped run is not made up. {next_run}"),
        NotifyEvent::QueueStalled => "It waits until a worker claims it or its `queue_timeout` has passed.".to_owned(),
        NotifyEvent::Started | NotifyEvent::Succeeded | NotifyEvent::Recovered => return None,
    })
}

fn short(text: &str) -> String {
    shortened(text, ERROR_MAX_CHARS)
}
