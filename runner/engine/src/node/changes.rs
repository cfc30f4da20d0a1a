//! The log of changes. Each node reads it, and removes from its caches the objects that were changed elsewhere. The
//! service [`NewsListener`] listens for notifications of new entries, and for news of other nodes.
//!
//! # Another server
//!
//! When the connection of the lease was opened again, the server may be another one: after a failover, it may lack the last
//! commits of the former one, and give out their numbers again. Then caches may contain what was never there, and the log
//! does not say so. So before the next look at the log, the node forgets all that it has cached of the database. Usually the
//! connection was only cut; then all of it is read again, once.
//!
//! Each look also checks that the log still has the last entry that the node has read. If not, its numbers went back, or the
//! entry was pruned before the node had read the next one. Then everything is forgotten as well, and the log is read from its
//! begin, as at a start: handling an entry twice does no harm.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use heddle_domain::{Chain, Time};
use heddle_store::change::{CHANGES_CHANNEL, Change};
use heddle_store::database::Listener;
use parking_lot::Mutex;

use super::Node;
use super::news::{CHANNEL, News, decode};
use super::part::Parts;
use super::service::{Needs, Service};
use super::signals::Signal;
use crate::EngineError;

/// How often a node checks for changes without a notification.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// The pause before a node tries again to listen.
const LISTEN_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How often the log is read after a change on this node, if the connection is cut each time.
const FOLLOWS_MAX: u32 = 3;

/// How many changes one statement reads.
const PAGE: i64 = 500;

/// A listener for changes; `None`: anything may be different, because the server may be another one.
type OnChange = Box<dyn Fn(Option<&Change>) + Send + Sync>;

/// How far a node has read the log, and its listeners.
#[derive(Default)]
pub(crate) struct Changes {
    /// The last entry that the node has read.
    last: Mutex<Option<Change>>,
    /// With which connection of the lease the caches began ([`heddle_store::Store::lease_connections`]).
    connection: AtomicU64,
    /// When the last look that found the end of the log began, in microseconds of [`super::clock::NodeClock::elapsed`].
    looked: AtomicU64,
    listeners: Mutex<Vec<OnChange>>,
}

impl Changes {
    /// The position of the last entry that the node has read; 0: none.
    pub(super) fn position(&self) -> i64 {
        self.last.lock().as_ref().map_or(0, |last| last.id)
    }

    /// With which connection of the lease the caches began.
    pub(super) fn connection(&self) -> u64 {
        self.connection.load(Ordering::Acquire)
    }

    /// Notes that the entry after this position was handled. `false`: another reader of the log is at another position by now,
    /// and nothing was noted.
    fn advance(&self, position: i64, change: Change) -> bool {
        let mut last = self.last.lock();
        let is_next = last.as_ref().map_or(0, |last| last.id) == position;
        if is_next {
            *last = Some(change);
        }
        is_next
    }

    /// When the last look that found the end of the log began. All changes that were committed before that moment have
    /// been passed on. It is read before what they change; see [`follow_changes`].
    pub(crate) fn looked(&self) -> Duration {
        Duration::from_micros(self.looked.load(Ordering::Acquire))
    }

    /// The log does not have this entry, which was the last: the next look begins at the begin.
    fn read_again(&self, entry: &Change) {
        let mut last = self.last.lock();
        if last.as_ref() == Some(entry) {
            *last = None;
        }
    }

    /// Calls `listener` for each change, after the services, and with `None` when anything may be different.
    pub(crate) fn listen(&self, listener: impl Fn(Option<&Change>) + Send + Sync + 'static) {
        self.listeners.lock().push(Box::new(listener));
    }

    fn tell(&self, change: Option<&Change>) {
        for listener in self.listeners.lock().iter() {
            listener(change);
        }
    }
}

/// Removes from the caches what has changed since the last call. Only after that, the look counts ([`Changes::looked`]):
/// whoever sees it sees what it has removed, too.
pub(crate) async fn follow_changes(node: &Node, parts: &Parts) -> Result<(), EngineError> {
    let changes = &node.changes;
    loop {
        let began = node.clock.elapsed();
        begin_anew(node, parts);
        let last = changes.last.lock().clone();
        let mut position = last.as_ref().map_or(0, |last| last.id);
        // With the last entry again: if the log does not have it, it is another log.
        let (after, limit) = if last.is_some() {
            (position - 1, PAGE + 1)
        } else {
            (0, PAGE)
        };
        let page = node.store.changes_since(after, limit).await?;
        let mut at_end = (page.len() as i64) < limit;
        if let Some(last) = &last
            && page.first() != Some(last)
        {
            tracing::warn!(
                position,
                "the log of changes does not have the last entry that this node has read, as after a failover that has lost \
                 commits; it is read from its begin"
            );
            changes.read_again(last);
            forget_all(node, parts);
            continue;
        }
        for change in page.into_iter().skip(usize::from(last.is_some())) {
            node.catalog.forget(&change);
            parts.changed(&change).await?;
            changes.tell(Some(&change));
            let id = change.id;
            if !changes.advance(position, change) {
                // Another one reads the log too: this one goes on from there.
                at_end = false;
                break;
            }
            position = id;
        }
        if at_end {
            changes.looked.fetch_max(began.as_micros() as u64, Ordering::AcqRel);
            return Ok(());
        }
    }
}

/// If the lease has another connection since the last call, forgets all that is cached; see the head of this file.
fn begin_anew(node: &Node, parts: &Parts) {
    let connection = node.store.lease_connections();
    if node.changes.connection() != connection {
        forget_all(node, parts);
        node.changes.connection.fetch_max(connection, Ordering::AcqRel);
    }
}

/// Forgets all that is cached of the database.
fn forget_all(node: &Node, parts: &Parts) {
    node.catalog.forget_all();
    parts.forget();
    node.changes.tell(None);
}

/// The same after a change that was made here: whoever made it expects it to count on this node. If the log cannot be read,
/// the meaning of all names is forgotten.
pub(crate) async fn follow_own_change(node: &Node, parts: &Parts) -> Result<(), EngineError> {
    let mut followed = Ok(());
    for _ in 0..FOLLOWS_MAX {
        followed = follow_changes(node, parts).await;
        if !matches!(&followed, Err(EngineError::Store(error)) if error.is_cut()) {
            break;
        }
    }
    if followed.is_err() {
        node.catalog.forget_names();
    }
    followed
}

/// Follows the log of changes.
pub(crate) struct Follower {
    node: Arc<Node>,
    parts: Parts,
}

impl Follower {
    pub(crate) fn of(node: Arc<Node>, parts: Parts) -> Self {
        Self { node, parts }
    }
}

impl Service for Follower {
    const FAILED: &'static str = "cannot read changes of other nodes; trying again";
    const NEEDS: Needs = Needs::Nothing;
    const AGAIN_AFTER: Duration = FOLLOW_EVERY;
    const WOKEN_BY: Option<Signal> = Some(Signal::Changes);

    fn node(&self) -> &Arc<Node> {
        &self.node
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        follow_changes(&self.node, &self.parts).await?;
        Ok(FOLLOW_EVERY)
    }
}

/// Listens for other nodes, and for new entries of the log of changes.
pub(crate) struct NewsListener {
    node: Arc<Node>,
    parts: Parts,
    listener: Option<Listener>,
    /// The last notification, with its channel.
    heard: Option<(String, String)>,
}

impl NewsListener {
    pub(crate) fn of(node: Arc<Node>, parts: Parts) -> Self {
        Self {
            node,
            parts,
            listener: None,
            heard: None,
        }
    }

    async fn listen(&mut self) {
        match self.node.store.listen(&[CHANNEL, CHANGES_CHANNEL]).await {
            Ok(listener) => {
                self.listener = Some(listener);
                // Notifications before this moment were lost, so the log is read once, and what they would have said of runs
                // is forgotten.
                self.node.signals.raise(Signal::Changes);
                self.parts.missed_news();
            }
            Err(error) => tracing::debug!(error = %Chain(&error), "cannot listen to notifications of Postgres; \
                polling continues"),
        }
    }
}

impl Service for NewsListener {
    const FAILED: &'static str = "cannot receive notifications of other nodes; polling continues";
    const NEEDS: Needs = Needs::Nothing;
    const AGAIN_AFTER: Duration = LISTEN_AGAIN_AFTER;

    fn node(&self) -> &Arc<Node> {
        &self.node
    }

    async fn woken(&mut self) {
        let Some(listener) = &mut self.listener else {
            return std::future::pending().await;
        };
        match listener.next().await {
            Ok(heard) => self.heard = Some(heard),
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "lost the connection for notifications of Postgres; listening \
                    again");
                self.listener = None;
            }
        }
    }

    async fn tick(&mut self, _now: Time) -> Result<Duration, EngineError> {
        match self.heard.take() {
            Some((channel, payload)) if channel == CHANNEL => hear(&self.node, &self.parts, &payload),
            Some(_) => self.node.signals.raise(Signal::Changes),
            None => {}
        }
        if self.listener.is_none() {
            self.listen().await;
        }
        Ok(LISTEN_AGAIN_AFTER)
    }
}

fn hear(node: &Node, parts: &Parts, payload: &str) {
    for news in decode(payload) {
        match news {
            News::Work => node.signals.raise(Signal::Work),
            News::Stopped => node.signals.raise(Signal::Orphans),
            News::Ended(_) | News::ManyEnded | News::Reopened(_) | News::Filled(_) => parts.heard(&news),
        }
    }
}
