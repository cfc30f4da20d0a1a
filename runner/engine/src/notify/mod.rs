//! The notifier: turns notices into notifications and sends them, on any node.
//!
//! # The story
//!
//! A run's transaction writes notices ([`heddle_store::notice`]). This service ticks when it is signalled, when the
//! next notification is due, and every second. First it turns notices into notifications (`draft.rs`, `fan_out.rs`),
//! which one node at a time does in small transactions. Between these it takes notifications that are due and sends each in its
//! own async task (`send.rs`): by SMTP (`mail.rs`), as a webhook (`post.rs`, `sign.rs`), or to a chat's robot
//! (`chat.rs`).
//!
//! None of this delays a run: the run's only cost is the insert of its notices, if a rule asks for them.
//!
//! # Bounds
//!
//! A destination is a channel, or the host of a submitter's callbacks. `slots.rs` says how many notifications a node sends
//! at once to a destination, to all channels, and to all URLs; each try has a timeout. So a channel that hangs delays only
//! itself, and callbacks delay no channel. The others wait in the database. Test messages are bounded, too: a
//! request waits first for its channel, and only then for the node, so tests of a channel that hangs delay no others.
//!
//! # Invariants
//!
//! * At most one live node is sending a notification; its row has the lease of that node.
//! * A repeat has the same id, in a header by which receivers can recognise it.
//! * No transaction is open while something is sent.

mod answers;
mod ca;
mod chat;
mod count;
mod draft;
mod failure;
mod fan_out;
mod in_hand;
mod mail;
mod post;
mod send;
mod sign;
mod slots;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use chrono::TimeDelta;
use futures::future::BoxFuture;
use heddle_domain::clock::to_micros;
use heddle_domain::id::RunId;
use heddle_domain::notify::Event;
use heddle_domain::notify::message::Facts;
use heddle_domain::notify::rules::{Announcements, Notice};
use heddle_domain::{Chain, Span, Time};
use heddle_sandbox::{FairSlots, OutboundPolicy};
use heddle_store::notice::{NewNotices, STALLED, Stalled};
use heddle_store::outbox::NewNotification;
use heddle_store::secret::SecretKeys;
use uuid::Uuid;

pub use ca::check_ca;
pub use count::NotificationCount;
use in_hand::{InHand, PassedOver};

use crate::EngineError;
use crate::node::Node;
use crate::node::catalog::Revision;
use crate::node::group_commit::is_passing;
use crate::node::part::Part;
use crate::node::service::{Needs, Service};
use crate::node::signals::Signal;
use crate::runs::change::notices::new_notices;

/// How often to check without a signal.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// The pause after an error.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How often queues are checked from which nobody claims.
const STALLS_EVERY: Duration = Duration::from_secs(10);
/// How many queued tasks one such check finds.
const STALLS_MAX: i64 = 1_000;

/// Test messages that a node sends at once.
const TRIALS_MAX: usize = 16;
/// For how long nobody takes a new test message, except the request that sends it: the loop of its node may have read
/// what is in hand just before. If the node is lost, another one sends the message after this time.
const TRIAL_FOR: TimeDelta = TimeDelta::minutes(1);

/// The settings of a node for notifications.
#[derive(Clone, Debug)]
pub struct NotifyConfig {
    /// The beginning of links in messages, without a slash at the end.
    pub public_url: String,
    /// The directory for mails of channels without a server; `None`: such a channel fails.
    pub mail_dir: Option<PathBuf>,
    /// After how long a queued task that nobody claims is stalled.
    pub stalled_after: Duration,
}

/// A run as the API shows it, as JSON text; `None`: it does not exist any more.
pub type RunObject = Arc<dyn Fn(RunId) -> BoxFuture<'static, Result<Option<String>, EngineError>> + Send + Sync>;

pub(crate) struct Notifier {
    node: Arc<Node>,
    keys: Arc<SecretKeys>,
    config: NotifyConfig,
    /// The notifications that are being sent, with their destinations.
    in_hand: Arc<InHand>,
    /// Notices that this node cannot read.
    unread: PassedOver<i64>,
    /// The places for test messages, by channels.
    trials: Arc<FairSlots>,
    runs: OnceLock<RunObject>,
    counts: count::Counts,
    /// One for public and configured addresses, and one for channels that allow private ones.
    public: (OutboundPolicy, reqwest::Client),
    private: (OutboundPolicy, reqwest::Client),
}

impl Notifier {
    pub(crate) fn new(
        node: Arc<Node>,
        keys: Arc<SecretKeys>,
        config: NotifyConfig,
        policy: &OutboundPolicy,
    ) -> Result<Self, EngineError> {
        let client = |policy: OutboundPolicy| {
            let client = policy.client().map_err(EngineError::unreadable)?;
            Ok::<_, EngineError>((policy, client))
        };
        Ok(Self {
            node,
            keys,
            config,
            in_hand: Arc::default(),
            unread: PassedOver::default(),
            trials: FairSlots::new(TRIALS_MAX, slots::PER_DESTINATION_MAX),
            runs: OnceLock::new(),
            counts: count::Counts::default(),
            public: client(policy.clone())?,
            private: client(policy.allowing_private())?,
        })
    }
}

/// Turns notices into notifications and sends them.
impl Service for Arc<Notifier> {
    const FAILED: &'static str = "cannot create or send notifications; trying again";
    const NEEDS: Needs = Needs::Active;
    const AGAIN_AFTER: Duration = AGAIN_AFTER;
    const WOKEN_BY: Option<Signal> = Some(Signal::Notices);

    fn node(&self) -> &Arc<Node> {
        &self.node
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        self.notify_once().await
    }
}

impl Part for Notifier {
    fn in_hand(&self) -> usize {
        self.in_hand.len()
    }

    fn stop_in_hand(&self) {
        self.in_hand.cut();
    }
}

/// Finds queues from which nobody claims.
pub(crate) struct StalledQueues(pub(crate) Arc<Notifier>);

impl StalledQueues {
    fn every(&self) -> Duration {
        STALLS_EVERY.min(self.0.config.stalled_after)
    }
}

impl Service for StalledQueues {
    const FAILED: &'static str = "cannot check for stalled queues; trying again";
    const NEEDS: Needs = Needs::Lease;
    const AGAIN_AFTER: Duration = STALLS_EVERY;

    fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    fn first_after(&self) -> Duration {
        self.every()
    }

    async fn tick(&mut self, now: Time) -> Result<Duration, EngineError> {
        self.0.announce_stalled(now).await?;
        Ok(self.every())
    }
}

impl Notifier {
    /// Handles what is due; returns how long nothing will be due.
    async fn notify_once(self: &Arc<Self>) -> Result<Duration, EngineError> {
        let pending = self.node.store.outbox().await?;
        if pending.notices {
            self.handle_notices().await?;
        }
        let now = self.node.now();
        if pending.notices || pending.next_due.is_some_and(|due| due <= now) {
            while self.send_due().await? {}
        }
        let until = pending
            .next_due
            .and_then(|due| (due - now).to_std().ok())
            .filter(|until| !until.is_zero());
        Ok(until.map_or(POLL_EVERY, |until| until.min(POLL_EVERY)))
    }

    /// Turns all notices into notifications. Whenever alerts may be due, they are sent before callbacks are taken up, of which
    /// there is then one piece: they may be many and large, and no alert waits for more of them.
    async fn handle_notices(self: &Arc<Self>) -> Result<(), EngineError> {
        loop {
            let Some(more) = self.fan_out(false).await? else {
                return Ok(());
            };
            while self.send_due().await? {}
            if !more && self.fan_out(true).await? != Some(true) {
                return Ok(());
            }
        }
    }

    /// Announces tasks for which nobody comes, each once. One whose group cannot be read here is left for later ticks, and
    /// for other nodes.
    async fn announce_stalled(&self, now: Time) -> Result<(), EngineError> {
        let after = Span::from_std(self.config.stalled_after);
        let found = self.node.store.stalled(now - after.chrono(), STALLS_MAX).await?;
        let mut stalled = Vec::with_capacity(found.len());
        for one in found {
            match self.node.catalog.revision(one.revision_id).await {
                Ok(revision) => {
                    // Its rule may be about other tasks: nothing is noted of what nobody is told.
                    if let Some(notices) = stalled_notices(&revision, &one) {
                        stalled.push((one, notices));
                    }
                }
                Err(error) if !is_passing(&error) => {
                    tracing::error!(
                        error = %Chain(&error),
                        revision = one.revision_id,
                        queue = one.queue,
                        "cannot read the revision of a group; nobody is told that its task waits for workers"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        if self.node.store.note_stalled(&stalled, now).await? {
            self.node.signals.raise(Signal::Notices);
        }
        Ok(())
    }
}

/// The notices about a task for which nobody comes; `None`: no rule asks for them.
fn stalled_notices(revision: &Revision, stalled: &Stalled) -> Option<NewNotices> {
    let (task, subscriptions) = (stalled.task, &revision.subscriptions);
    if !subscriptions.group(STALLED) && !subscriptions.task(task, STALLED) {
        return None;
    }
    let announcements = Announcements {
        notices: vec![Notice {
            item: stalled.item,
            ..Notice::of_task(STALLED, task)
        }],
        troubled: Vec::new(),
    };
    Some(new_notices(
        revision,
        Some(stalled.run),
        announcements,
        Some(stalled.queue.clone()),
    ))
}

/// An instant in the format of messages.
pub(crate) fn instant(at: Time) -> String {
    to_micros(at).to_rfc3339_opts(chrono::SecondsFormat::Micros, true)
}

impl Notifier {
    /// Sets how runs are shown in callbacks.
    pub(crate) fn show_runs_with(&self, runs: RunObject) {
        // Called once, when the node is put together.
        let _ = self.runs.set(runs);
    }

    /// Sends a test message through a channel, once, and waits for the result. Returns the id of the notification;
    /// `None`: there is no such channel. If the caller stops waiting, the message is still sent and recorded.
    pub(crate) async fn test_channel(self: &Arc<Self>, name: &str) -> Result<Option<Uuid>, EngineError> {
        let permit = self.trials.take(name, usize::MAX).await.ok_or(EngineError::Stopping)?;
        let Some(channel) = self.node.store.open_channel(&self.keys, name).await? else {
            return Ok(None);
        };
        let now = self.node.now();
        let row = NewNotification {
            id: self.node.new_id(now),
            channel: name.to_owned(),
            destination: name.to_owned(),
            event: Event::Test,
            facts: Facts {
                event: Event::Test.as_str().to_owned(),
                at: instant(now),
                link: Some(self.config.public_url.clone()),
                count: 1,
                ..Facts::default()
            },
            payload: None,
            recipients: channel.to.clone(),
            created_at: now,
            due_at: now + TRIAL_FOR,
            digest: false,
            failed: None,
        };
        let id = row.id;
        // In its own async task: if the client goes away, the message must not stay half sent, with a row that nobody
        // owns.
        let notifier = self.clone();
        let sending = self.node.tracker.spawn(async move {
            let _permit = permit;
            notifier.send_test(row, channel).await
        });
        sending.await.unwrap_or(Err(EngineError::Stopping))?;
        Ok(Some(id))
    }
}
