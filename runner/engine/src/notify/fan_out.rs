//! From notices to notifications: each draft (`draft.rs`) becomes a notification of its own, or a part of a digest.
//!
//! The objects that notices are about are read first, outside of any transaction. Then one transaction, on one node at
//! a time, deletes the notices and writes what follows from them. Another node may have deleted some in between: only
//! those that this transaction deleted count.

use std::collections::hash_map;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use chrono::TimeDelta;
use heddle_domain::id::RunId;
use heddle_domain::notify::Event;
use heddle_domain::notify::channel::ChannelSpec;
use heddle_domain::notify::message::{Entry, Facts, LINE_MAX_CHARS, LOG_LINES_MAX, one_line};
use heddle_domain::notify::storm::{Pace, Verdict, Window, judge};
use heddle_domain::run::AttemptKey;
use heddle_domain::spec::NotifyEvent;
use heddle_domain::{Chain, Time, framed, hex};
use heddle_store::StoreError;
use heddle_store::notice::{NoticeRow, RunEnd, Unread};
use heddle_store::notification::destination_of_callback;
use heddle_store::outbox::{FanOut, NewNotification, StormKey, gather};
use heddle_store::run::RunFilter;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::count::Way;
use super::draft::{Draft, Known, task_name};
use super::{Notifier, send::is_url};
use crate::EngineError;
use crate::node::group_commit::is_passing;
use crate::node::seldom::line_due;

/// How many notices one transaction takes.
const BATCH_MAX: usize = 200;
/// The maximum bytes of a run in a callback; from a larger one the outputs are left out.
const PAYLOAD_MAX_BYTES: usize = 4 * 1024 * 1024;
/// When the payloads of a transaction have so many bytes, it takes no further notice: at most one more payload than that is
/// in memory.
const PAYLOADS_MAX_BYTES: usize = 8 * 1024 * 1024;
/// The field of a callback without the run's outputs.
const OMITTED: &str = "outputs_omitted";
/// How many notices that it cannot read a node passes over.
const UNREAD_MAX: usize = 10_000;
/// How long notices are kept that no node can read: longer than an upgrade takes.
const UNREAD_FOR: TimeDelta = TimeDelta::days(7);

/// A digest that grows.
struct Growing {
    facts: Facts,
    new: Option<NewNotification>,
}

impl Notifier {
    /// Turns a batch of notices into notifications: of callbacks, or of all others. Returns whether there may be more of
    /// these; `None`: another node is handling notices.
    pub(super) async fn fan_out(self: &Arc<Self>, callbacks: bool) -> Result<Option<bool>, EngineError> {
        let not = self.unread.ids(self.node.clock.elapsed());
        let found = self.node.store.notices(callbacks, &not, BATCH_MAX as i64).await?;
        let mut more = found.len() == BATCH_MAX;
        let mut notices = Vec::with_capacity(found.len());
        for notice in found {
            match notice {
                Ok(notice) => notices.push(notice),
                Err(Unread { id, at, error }) => match self.leave(id, at, &EngineError::from(error)).await? {
                    Some(left) => more &= left,
                    None => return Ok(None),
                },
            }
        }
        if notices.is_empty() {
            return Ok(Some(more));
        }
        Ok(match self.fan_out_of(&notices).await {
            Err(error) if !is_passing(&error) => {
                tracing::error!(error = %Chain(&error), notices = notices.len(), "cannot create the notifications of \
                    a batch of events; creating them one by one");
                self.fan_out_singly(&notices).await?.map(|left| more && left)
            }
            done => done?.map(|handled| more || handled < notices.len()),
        })
    }

    /// The same for one notice after the other. Notices that cannot be handled are left out: they must not block the
    /// others. `None`: another node is handling notices; `false`: one is left that this node does not remember.
    async fn fan_out_singly(self: &Arc<Self>, notices: &[NoticeRow]) -> Result<Option<bool>, EngineError> {
        let mut all = true;
        for notice in notices {
            let left = match self.fan_out_of(std::slice::from_ref(notice)).await {
                Ok(handled) => handled.map(|_| true),
                Err(error) if is_unreadable(&error) => self.leave(notice.id, notice.at, &error).await?,
                Err(error) if !is_passing(&error) => {
                    tracing::error!(error = %Chain(&error), event = notice.event.as_str(), run = ?notice.run, "cannot create the notifications \
                        of an event; it is skipped");
                    self.skip(notice.id).await?.then_some(true)
                }
                Err(error) => return Err(error),
            };
            match left {
                Some(left) => all &= left,
                None => return Ok(None),
            }
        }
        Ok(Some(all))
    }

    /// Leaves a notice that this node cannot read to other nodes: a newer one may have written it, and can read it. This
    /// node passes over it for a while; `false`: it has too many of these already. If no node could read it for
    /// [`UNREAD_FOR`], it is given up. `None`: another node is handling notices.
    async fn leave(&self, id: i64, at: Time, error: &EngineError) -> Result<Option<bool>, EngineError> {
        const LINE: &str = "cannot read an event that somebody wants to hear of; it is left to other nodes, and read \
            again in a minute";
        let now = self.node.now();
        if now - at <= UNREAD_FOR {
            match line_due(LINE) {
                Some(omitted) => tracing::error!(error = %Chain(error), notice = id, omitted, "{LINE}"),
                None => tracing::debug!(error = %Chain(error), notice = id, "{LINE}"),
            }
            return Ok(Some(self.unread.add(id, self.node.clock.elapsed(), UNREAD_MAX)));
        }
        tracing::error!(error = %Chain(error), notice = id, "no node could read an event for {} days; nobody is told of it",
            UNREAD_FOR.num_days());
        let Some(mut tx) = self.node.store.fan_out().await? else {
            return Ok(None);
        };
        let why = format!("no node could read the event for {} days", UNREAD_FOR.num_days());
        tx.give_up(id, self.node.new_id(now), &why, now).await?;
        tx.commit().await?;
        self.counts.failed(Way::Nowhere);
        Ok(Some(true))
    }

    /// Deletes a notice that cannot be handled; `false`: another node is handling notices.
    async fn skip(&self, notice: i64) -> Result<bool, EngineError> {
        let Some(mut tx) = self.node.store.fan_out().await? else {
            return Ok(false);
        };
        tx.take(&[notice]).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Turns these notices into notifications, in one transaction: as many from the first on as their payloads have room
    /// for. Returns how many; `None`: another node is handling notices, and continues until there are none.
    async fn fan_out_of(self: &Arc<Self>, notices: &[NoticeRow]) -> Result<Option<usize>, EngineError> {
        let (payloads, handled) = self.payloads(notices).await?;
        let notices = &notices[..handled];
        let mut known = self.look_into(notices, payloads).await?;
        let Some(mut tx) = self.node.store.fan_out().await? else {
            return Ok(None);
        };
        let ids: Vec<i64> = notices.iter().map(|notice| notice.id).collect();
        let deleted: HashSet<i64> = tx.take(&ids).await?.into_iter().collect();
        let mut mine: Vec<&NoticeRow> = notices.iter().filter(|notice| deleted.contains(&notice.id)).collect();
        let wrong = self.recovered(&mut tx, &known, &mine).await?;
        mine.retain(|notice| !wrong.contains(&notice.id));
        let now = self.node.now();
        let drafts: Vec<Draft<'_>> = mine.iter().flat_map(|notice| self.drafts(&known, notice)).collect();
        let hopeless: Vec<Way> = drafts
            .iter()
            .filter(|draft| draft.failed.is_some())
            .map(|draft| way_of(known.channels.get(&draft.channel)))
            .collect();
        let written = self.write_drafts(&mut tx, &mut known, drafts, now).await?;
        tx.commit().await?;
        hopeless.into_iter().for_each(|way| self.counts.failed(way));
        tracing::debug!(notices = mine.len(), notifications = written, "created notifications");
        Ok(Some(handled))
    }

    /// Reads the subjects of notices.
    async fn look_into(&self, notices: &[NoticeRow], payloads: HashMap<i64, String>) -> Result<Known, EngineError> {
        let channels = self.node.store.all_channels().await?;
        let mut revisions = HashMap::new();
        for id in notices
            .iter()
            .filter_map(|notice| notice.revision_id)
            .collect::<BTreeSet<_>>()
        {
            revisions.insert(id, self.node.catalog.revision(id).await?);
        }
        let ids: BTreeSet<Uuid> = notices.iter().filter_map(|notice| Some(notice.run?.0)).collect();
        let mut runs = HashMap::new();
        if !ids.is_empty() {
            let filter = RunFilter {
                ids: ids.into_iter().collect(),
                ..RunFilter::default()
            };
            let rows = self.node.store.runs(&filter, notices.len() as i64).await?;
            runs = rows.items.into_iter().map(|row| (row.id, row)).collect();
        }
        let asked: Vec<&NoticeRow> = notices.iter().filter(|notice| has_failed(notice.event)).collect();
        let failures = self.node.store.last_failures(&asked).await?;
        let groups: Vec<i64> = notices.iter().filter_map(|notice| notice.group_id).collect();
        Ok(Known {
            revisions,
            runs,
            failures,
            payloads,
            next: self.node.store.next_instants(&groups).await?,
            reach: channels
                .iter()
                .map(|(name, channel)| (name.clone(), channel.reach()))
                .collect(),
            channels,
        })
    }

    /// The payloads of callbacks, of as many of these notices, from the first on, as there is room for; and of how many.
    async fn payloads(&self, notices: &[NoticeRow]) -> Result<(HashMap<i64, String>, usize), EngineError> {
        let (mut payloads, mut bytes) = (HashMap::new(), 0);
        for (index, notice) in notices.iter().enumerate() {
            if bytes >= PAYLOADS_MAX_BYTES {
                return Ok((payloads, index));
            }
            if notice.event == Event::Callback
                && let Some(payload) = self.payload(notice).await?
            {
                bytes += payload.len();
                payloads.insert(notice.id, payload);
            }
        }
        Ok((payloads, notices.len()))
    }

    /// A run as its submitter gets it in a callback. If it was deleted or went on since its end, what its notice says of
    /// this end.
    async fn payload(&self, notice: &NoticeRow) -> Result<Option<String>, EngineError> {
        let (Some(runs), Some(run)) = (self.runs.get(), notice.run) else {
            return Ok(None);
        };
        let shown = runs(run).await?;
        match (shown, &notice.end) {
            (Some(text), None) => bounded(run, text).map(Some),
            (Some(text), Some(end)) if is_of(end, &text) => bounded(run, text).map(Some),
            (_, Some(end)) => {
                let mut run = end.run.clone();
                if let Some(fields) = run.as_object_mut() {
                    fields.insert(OMITTED.to_owned(), true.into());
                }
                Ok(Some(run.to_string()))
            }
            (None, None) => Ok(None),
        }
    }

    /// The payload of a callback that is sent again. `None`: the run does not exist any more, or has not ended.
    pub(crate) async fn payload_again(&self, run: RunId) -> Result<Option<String>, EngineError> {
        let Some(runs) = self.runs.get() else { return Ok(None) };
        let Some(text) = runs(run).await? else { return Ok(None) };
        let shown: ShownEnd =
            framed::read(&text).map_err(|error| EngineError::unreadable_in(format!("run {run}"), error))?;
        match shown.finished_at {
            Some(_) => bounded(run, text).map(Some),
            None => Ok(None),
        }
    }

    /// Notices of recoveries that are wrong: nothing had failed before, or an earlier success was the recovery.
    async fn recovered(
        &self,
        tx: &mut FanOut,
        known: &Known,
        notices: &[&NoticeRow],
    ) -> Result<HashSet<i64>, EngineError> {
        let recoveries = notices
            .iter()
            .filter(|notice| notice.event == Event::Rule(NotifyEvent::Recovered));
        let mut all: Vec<(i64, String, Time, i64)> = recoveries
            .map(|notice| {
                let (group_id, task) = recovered_from(known, notice)?;
                Ok((group_id, task, notice.at, notice.id))
            })
            .collect::<Result<_, EngineError>>()?;
        // Rows are locked in the order in which runs' transactions lock them.
        all.sort_unstable();
        let mut wrong = HashSet::new();
        for (group_id, task, at, id) in all {
            if !tx.recover(group_id, &task, at).await? {
                wrong.insert(id);
            }
        }
        Ok(wrong)
    }

    /// Decides which drafts become notifications of their own and which go into digests, and writes them.
    async fn write_drafts(
        &self,
        tx: &mut FanOut,
        known: &mut Known,
        drafts: Vec<Draft<'_>>,
        now: Time,
    ) -> Result<usize, EngineError> {
        let keys: BTreeSet<StormKey> = drafts.iter().filter_map(storm_key).collect();
        let keys: Vec<StormKey> = keys.into_iter().collect();
        let mut windows: BTreeMap<StormKey, Option<Window<Uuid>>> = tx
            .windows(&keys)
            .await?
            .into_iter()
            .map(|(key, one)| (key, Some(one)))
            .collect();
        let open: Vec<Uuid> = windows.values().flatten().filter_map(|window| window.digest).collect();
        let mut digests: BTreeMap<Uuid, Growing> = tx
            .open_digests(&open, now)
            .await?
            .into_iter()
            .map(|(id, facts)| (id, Growing { facts, new: None }))
            .collect();
        let mut grown = BTreeSet::new();
        let mut rows: Vec<(NewNotification, Option<(RunId, AttemptKey)>)> = Vec::new();
        for draft in drafts {
            let key = storm_key(&draft).filter(|_| draft.failed.is_none());
            let Some(key) = key else {
                rows.push(self.row(known, draft, now));
                continue;
            };
            let pace = pace_of(known, &draft);
            let window = windows.entry(key).or_default();
            match judge(window, pace, now) {
                Verdict::Tell => rows.push(self.row(known, draft, now)),
                Verdict::Gather(digest, due_at) => {
                    let entry = entry_of(&draft.facts);
                    let open = digest.filter(|id| digests.contains_key(id));
                    let id = match open {
                        Some(id) => id,
                        None => {
                            let (mut row, _) = self.row(known, draft, now);
                            (row.digest, row.due_at) = (true, due_at);
                            row.facts.count = 0;
                            let id = row.id;
                            if let Some(window) = window {
                                window.digest = Some(id);
                            }
                            let facts = row.facts.clone();
                            digests.insert(id, Growing { facts, new: Some(row) });
                            id
                        }
                    };
                    if let Some(growing) = digests.get_mut(&id) {
                        gather(&mut growing.facts, entry);
                        grown.insert(id);
                    }
                }
            }
        }
        let mut rows = self.with_logs(rows).await?;
        for (id, growing) in digests {
            match growing.new {
                Some(row) => rows.push(NewNotification {
                    facts: growing.facts,
                    ..row
                }),
                None if grown.contains(&id) => tx.grow(id, &growing.facts).await?,
                None => {}
            }
        }
        let kept: BTreeMap<StormKey, Window<Uuid>> = windows
            .into_iter()
            .filter_map(|(key, window)| Some((key, window?)))
            .collect();
        tx.keep_windows(&kept).await?;
        tx.insert(&rows).await?;
        Ok(rows.len())
    }

    /// A notification, and the attempt whose log belongs to it. It takes the payload of a callback, which has only one
    /// notification.
    fn row(&self, known: &mut Known, draft: Draft<'_>, now: Time) -> (NewNotification, Option<(RunId, AttemptKey)>) {
        let failed = known.failures.get(&draft.notice.id);
        let attempt = failed.map(|failed| (failed.run, failed.at));
        let destination = if is_url(&draft.channel) {
            let run = draft.notice.run.and_then(|run| known.runs.get(&run.0));
            let owner = match &draft.notice.end {
                Some(end) => end.run["created_by"].as_str(),
                None => run.and_then(|run| run.terms.created_by.as_deref()),
            };
            destination_of_callback(&draft.channel, owner.unwrap_or_default())
        } else {
            draft.channel.clone()
        };
        let row = NewNotification {
            id: self.node.new_id(now),
            payload: known.payloads.remove(&draft.notice.id),
            destination,
            channel: draft.channel,
            event: draft.notice.event,
            facts: draft.facts,
            recipients: draft.recipients,
            created_at: now,
            due_at: now,
            digest: false,
            failed: draft.failed,
        };
        (row, attempt)
    }

    /// Adds the last lines of the log to failures that are not in a digest.
    async fn with_logs(
        &self,
        rows: Vec<(NewNotification, Option<(RunId, AttemptKey)>)>,
    ) -> Result<Vec<NewNotification>, EngineError> {
        let mut read: HashMap<(RunId, AttemptKey), Vec<String>> = HashMap::new();
        let mut whole = Vec::with_capacity(rows.len());
        for (mut row, attempt) in rows {
            if let Some(attempt) = attempt {
                let lines = match read.entry(attempt) {
                    hash_map::Entry::Occupied(known) => known.into_mut(),
                    hash_map::Entry::Vacant(unknown) => {
                        let lines = self
                            .node
                            .store
                            .last_lines(attempt.0, attempt.1, LOG_LINES_MAX as i64)
                            .await?;
                        unknown.insert(lines.iter().map(|line| one_line(line, LINE_MAX_CHARS)).collect())
                    }
                };
                row.facts.logs.clone_from(lines);
            }
            whole.push(row);
        }
        Ok(whole)
    }
}

/// Whether this node cannot read something that a newer one may have written.
fn is_unreadable(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Unreadable(_) | EngineError::Progress { .. } | EngineError::Store(StoreError::Unreadable { .. })
    )
}

/// What tells the end of a run from its other ends.
#[derive(Deserialize)]
struct ShownEnd {
    state: String,
    finished_at: Option<String>,
}

/// Whether a run, as it is shown, has ended by this end.
fn is_of(end: &RunEnd, shown: &str) -> bool {
    let time = |text: &str| text.parse::<Time>().ok();
    let ended_at = end.run["finished_at"].as_str().and_then(time);
    let shown: Result<ShownEnd, _> = framed::read(shown);
    shown.is_ok_and(|shown| {
        end.run["state"] == shown.state && ended_at.is_some() && shown.finished_at.as_deref().and_then(time) == ended_at
    })
}

/// A run as it is shown, without its outputs if it is too large for a callback.
fn bounded(run: RunId, shown: String) -> Result<String, EngineError> {
    if shown.len() <= PAYLOAD_MAX_BYTES {
        return Ok(shown);
    }
    let mut whole: serde_json::Value =
        framed::read(&shown).map_err(|error| EngineError::unreadable_in(format!("run {run}"), error))?;
    for task in whole["tasks"].as_array_mut().into_iter().flatten() {
        task["output"] = serde_json::Value::Null;
    }
    whole[OMITTED] = true.into();
    Ok(whole.to_string())
}

/// Whether an event is about an attempt that failed.
fn has_failed(event: Event) -> bool {
    matches!(event, Event::Rule(NotifyEvent::Failed | NotifyEvent::Retrying))
}

/// What has recovered: a group's task by its name, or its runs by an empty one.
fn recovered_from(known: &Known, notice: &NoticeRow) -> Result<(i64, String), EngineError> {
    let lacks = |what: &str| EngineError::unreadable(format!("the {what} of notice {} is not known", notice.id));
    let task = match notice.notice.task {
        Some(_) => task_name(known, notice).ok_or_else(|| lacks("task"))?,
        None => String::new(),
    };
    Ok((notice.group_id.ok_or_else(|| lacks("group"))?, task))
}

/// How a notification that cannot be sent is counted.
fn way_of(channel: Option<&ChannelSpec>) -> Way {
    channel
        .and_then(|channel| channel.kind)
        .map_or(Way::Nowhere, Way::Channel)
}

fn pace_of(known: &Known, draft: &Draft<'_>) -> Pace {
    let by_script = draft.notice.event == Event::Script;
    match known.channels.get(&draft.channel) {
        Some(channel) => channel.pace(by_script),
        None => ChannelSpec::default().pace(by_script),
    }
}

/// The key of the storm to which a draft belongs. `None`: a callback, which is always sent by itself.
fn storm_key(draft: &Draft<'_>) -> Option<StormKey> {
    if draft.notice.event == Event::Callback || draft.failed.is_some() {
        return None;
    }
    let mut digest = Sha256::new();
    for address in &draft.recipients {
        digest.update(address.as_bytes());
        digest.update([0]);
    }
    let recipients = if draft.recipients.is_empty() {
        String::new()
    } else {
        hex(&digest.finalize()[..16])
    };
    Some(StormKey {
        group_id: draft.notice.group_id.unwrap_or_default(),
        event: draft.notice.event.as_str(),
        channel: draft.channel.clone(),
        recipients,
    })
}

fn entry_of(facts: &Facts) -> Entry {
    Entry {
        at: facts.at.clone(),
        run: facts.run.clone(),
        task: facts.task.clone(),
        error: facts
            .said
            .as_deref()
            .or(facts.error.as_deref())
            .or(facts.about.as_deref())
            .map(|error| one_line(error, LINE_MAX_CHARS / 2)),
    }
}
