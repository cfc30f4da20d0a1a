//! The notifier: turns notices into notifications and sends them, on whichever node comes to it.
//!
//! # The story
//!
//! A run's transaction writes notices ([`heddle_store::notice`]). The loop here looks when it is rung, when the next
//! notification is due, and every second. It first turns notices into notifications (`fan_out.rs`), which one node at a
//! time does in small transactions. Then it takes notifications that are due and sends each in a task of its own
//! (`send.rs`): by SMTP (`mail.rs`), as a webhook (`post.rs`, `sign.rs`), or to a chat's robot (`chat.rs`).
//!
//! Nothing of this is on a run's way: what a run costs is the insert of its notices, where somebody wants to hear of it.
//!
//! # Bounds
//!
//! A lane is a channel, or a host that is called back. A node sends [`LANE_MAX`] notifications of a lane at once and
//! [`SENDS_MAX`] altogether, and each try has an end: a channel that hangs holds up nobody but itself. What waits, waits
//! in the database.
//!
//! # Invariants
//!
//! * A notification is in hand on at most one live node; its row carries that node's lease.
//! * What is tried again carries the same id, in a header that receivers can know it by.
//! * No transaction is open while something is sent.

mod answers;
mod chat;
mod count;
mod fan_out;
mod mail;
mod post;
mod send;
mod sign;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::BoxFuture;
use heddle_domain::Chain;
use heddle_domain::clock::to_micros;
use heddle_domain::id::{RunId, uuid_v7};
use heddle_domain::notify::Event;
use heddle_domain::notify::message::Facts;
use heddle_domain::notify::rules::{Moves, Notice, Telling, notices};
use heddle_domain::run::{Actions, Progress};
use heddle_domain::spec::NotifyEvent;
use heddle_domain::state::RunState;
use heddle_domain::{Span, Time};
use heddle_sandbox::OutboundPolicy;
use heddle_store::notice::{NewNotices, STALLED, Stalled};
use heddle_store::outbox::NewNotification;
use parking_lot::Mutex;
use uuid::Uuid;

pub use count::NotificationCount;

use crate::node::catalog::Revision;
use crate::node::signals::Signal;
use crate::{Engine, EngineError, Inner, RunContext};

/// How often to look without being rung.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long to wait after something went wrong.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Notifications of one lane that a node sends at once.
const LANE_MAX: usize = 4;
/// Notifications that a node sends at once.
const SENDS_MAX: usize = 64;
/// How often queues are looked at that nobody claims from.
const STALLS_EVERY: Duration = Duration::from_secs(10);
/// How many queued tasks one such look finds.
const STALLS_MAX: i64 = 1_000;

/// How a node tells people.
#[derive(Clone, Debug)]
pub struct NotifyConfig {
    /// What links in messages begin with, without a slash at the end.
    pub public_url: String,
    /// Where mails of channels without a server are written to; `None`: such a channel fails.
    pub mail_dir: Option<PathBuf>,
    /// After how long a queued task that nobody claims is stalled.
    pub stalled_after: Duration,
}

/// A run as the API shows it, as JSON text; `None`: there is none any more.
pub type RunObject = Arc<dyn Fn(RunId) -> BoxFuture<'static, Result<Option<String>, EngineError>> + Send + Sync>;

/// The notifier's part of a node.
pub(crate) struct Notifier {
    /// What is being sent, and in which lane.
    in_hand: Mutex<BTreeMap<Uuid, String>>,
    runs: OnceLock<RunObject>,
    counts: count::Counts,
    /// For public addresses and those that are configured; for channels that allow private ones.
    public: (OutboundPolicy, reqwest::Client),
    private: (OutboundPolicy, reqwest::Client),
}

impl Notifier {
    pub(crate) fn new(policy: &OutboundPolicy) -> Result<Self, EngineError> {
        let client = |policy: OutboundPolicy| {
            let client = policy
                .client()
                .map_err(|error| EngineError::Unreadable(error.to_string()))?;
            Ok::<_, EngineError>((policy, client))
        };
        Ok(Self {
            in_hand: Mutex::default(),
            runs: OnceLock::new(),
            counts: count::Counts::default(),
            public: client(policy.clone())?,
            private: client(policy.allowing_private())?,
        })
    }
}

pub(crate) async fn run(inner: Arc<Inner>) {
    let mut wait = Duration::ZERO;
    loop {
        tokio::select! {
            () = inner.node.stop.cancelled() => return,
            () = inner.node.signals.raised(Signal::Notices) => {}
            () = tokio::time::sleep(wait) => {}
        }
        if inner.node.is_fenced() || inner.node.is_draining() {
            wait = LOOK_EVERY;
            continue;
        }
        wait = match inner.notify_once().await {
            Ok(wait) => wait,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "people cannot be told; trying again");
                AGAIN_AFTER
            }
        };
    }
}

/// Looks for queues that nobody claims from.
pub(crate) async fn keep(inner: Arc<Inner>) {
    loop {
        tokio::select! {
            () = inner.node.stop.cancelled() => return,
            () = tokio::time::sleep(STALLS_EVERY.min(inner.config.notify.stalled_after)) => {}
        }
        if inner.node.is_fenced() {
            continue;
        }
        if let Err(error) = inner.tell_stalls().await {
            tracing::warn!(error = %Chain(&error), "cannot look for queues that nobody claims from");
        }
    }
}

impl Inner {
    /// Works off what there is; answers how long nothing will be due.
    async fn notify_once(self: &Arc<Self>) -> Result<Duration, EngineError> {
        let pending = self.node.store.outbox().await?;
        if pending.notices {
            while self.fan_out().await? {}
        }
        let now = self.now();
        if pending.notices || pending.next_due.is_some_and(|due| due <= now) {
            while self.send_due().await? {}
        }
        let until = pending
            .next_due
            .and_then(|due| (due - now).to_std().ok())
            .filter(|until| !until.is_zero());
        Ok(until.map_or(LOOK_EVERY, |until| until.min(LOOK_EVERY)))
    }

    /// What there is to be told of a run's moves, to be written in the transaction of these moves.
    pub(crate) fn notices_of(
        &self,
        context: &RunContext,
        actions: &Actions,
        state: RunState,
        progress: &Progress,
    ) -> Option<Box<NewNotices>> {
        let revision = &context.revision;
        if !revision.told.any() && !context.facts.callback {
            return None;
        }
        let moves = Moves {
            started: actions.started,
            settled: &actions.settled,
            retries: &actions.timers,
            finished: state.is_final().then_some(state),
            progress,
            callback: context.facts.callback,
        };
        let telling = notices(&revision.plan, &revision.told, &moves);
        (!telling.is_empty()).then(|| Box::new(new_notices(revision, Some(context.facts.id), telling, None)))
    }

    /// Whether somebody wants to hear of a run of one task that ends so.
    pub(crate) fn tells_end(&self, context: &RunContext, state: RunState) -> bool {
        let told = &context.revision.told;
        let end = match state {
            RunState::Succeeded => NotifyEvent::Succeeded,
            _ => NotifyEvent::Failed,
        };
        context.facts.callback || told.anywhere(end) || told.anywhere(NotifyEvent::Recovered)
    }

    /// An attempt of a task begins: whoever wants to hear of it is told before it does anything, unless an earlier attempt
    /// told: of what is tried again people hear as such. An attempt that was lost before it could tell leaves it to this
    /// one.
    pub(crate) async fn tell_started(
        &self,
        context: &RunContext,
        at: heddle_domain::run::AttemptKey,
    ) -> Result<(), EngineError> {
        let notice = Notice::of_task(NotifyEvent::Started, at.key.task);
        let telling = Telling {
            notices: vec![notice],
            troubled: Vec::new(),
        };
        let run = context.facts.id;
        let notices = new_notices(&context.revision, Some(run), telling, None);
        if self
            .node
            .store
            .tell_start(run, at.key.task, notices, self.now())
            .await?
        {
            self.node.signals.raise(Signal::Notices);
        }
        Ok(())
    }

    async fn tell_stalls(&self) -> Result<(), EngineError> {
        let now = self.now();
        let after = Span::from_std(self.config.notify.stalled_after);
        let stalled = self.node.store.stalled(now - after.chrono(), now, STALLS_MAX).await?;
        let mut all = Vec::new();
        for Stalled {
            revision_id,
            run,
            task,
            item,
            queue,
            ..
        } in stalled
        {
            let revision = self.node.catalog.revision(revision_id).await?;
            if !revision.told.group(STALLED) && !revision.told.task(task, STALLED) {
                continue;
            }
            let telling = Telling {
                notices: vec![Notice {
                    item,
                    ..Notice::of_task(STALLED, task)
                }],
                troubled: Vec::new(),
            };
            all.push(new_notices(&revision, Some(run), telling, Some(queue)));
        }
        if !all.is_empty() {
            self.node.store.tell(&all, now).await?;
            self.node.signals.raise(Signal::Notices);
        }
        Ok(())
    }
}

/// Notices with the names of the tasks that they are about.
pub(crate) fn new_notices(
    revision: &Revision,
    run: Option<RunId>,
    telling: Telling,
    about: Option<String>,
) -> NewNotices {
    let tasks = telling.notices.iter().filter_map(|notice| notice.task);
    let names = tasks
        .chain(telling.troubled.iter().flatten().copied())
        .filter_map(|task| Some((task, revision.plan.task(task)?.name.as_str().to_owned())))
        .collect();
    NewNotices {
        group_id: revision.group_id,
        revision_id: revision.id,
        run,
        telling,
        names,
        about,
    }
}

/// An instant as messages have it.
pub(crate) fn instant(at: Time) -> String {
    to_micros(at).to_rfc3339_opts(chrono::SecondsFormat::Micros, true)
}

impl Engine {
    /// How runs are shown to those who are called back.
    pub fn show_runs_with(&self, runs: RunObject) {
        // Said once, when the node is put together.
        let _ = self.inner.notifier.runs.set(runs);
    }

    /// There is something to be sent.
    pub fn ring_notifier(&self) {
        self.inner.node.signals.raise(Signal::Notices);
    }

    /// Sends a test message through a channel, once, and waits for what comes of it; `None`: there is no such channel.
    /// The answer is the notification's id.
    pub async fn test_channel(&self, name: &str) -> Result<Option<Uuid>, EngineError> {
        let inner = &self.inner;
        let Some(channel) = inner.node.store.open_channel(&inner.keys, name).await? else {
            return Ok(None);
        };
        let now = inner.now();
        let row = NewNotification {
            id: uuid_v7(now, inner.node.chance.bits()),
            channel: name.to_owned(),
            lane: name.to_owned(),
            event: Event::Test,
            facts: Facts {
                event: Event::Test.as_str().to_owned(),
                at: instant(now),
                link: Some(inner.config.notify.public_url.clone()),
                count: 1,
                ..Facts::default()
            },
            payload: None,
            recipients: channel.to.clone(),
            created_at: now,
            due_at: now,
            digest: false,
            failed: None,
        };
        let id = row.id;
        inner.send_test(row, channel).await?;
        Ok(Some(id))
    }
}
