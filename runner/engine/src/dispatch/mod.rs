//! The dispatcher: users poll, and get what is due for them.
//!
//! # A poll
//!
//! 1. *Quiet?* If the database has said before that there is nothing for this user, and nothing has come due or changed
//!    since, the answer comes from memory ([`cache`]): no statement, and no lock except of a part of a map.
//! 2. *Look.* Otherwise the node asks the database for the user's hold (which is given again), groups, and last
//!    finished occurrence.
//! 3. *Choose.* From the audiences' offers, which it caches, the node computes what is next for the user.
//! 4. *Take.* The database decides. A refusal tells the node why (no stock left, another version), and it chooses
//!    again.
//!
//! Look-ups, takes and ends of many users share a statement or transaction ([`batch`]): requests that come during one
//! go into the next. So the row of a hot occurrence is updated some hundred times a second, not once per user.
//!
//! # What makes "nothing" safe from memory
//!
//! A user without a hold can get one (on any node) only when something comes due, an offer or a membership changes, or
//! stock comes back. The first is covered by the instant until which the user is quiet. The others are in the log of
//! changes, and wake the polls that wait for the audience ([`cache::Cell`]). Occurrences without stock are remembered
//! per version of an audience's offers. If the look of a user is older than such an entry, the entry does not make that
//! user quiet.
//!
//! # What bounds a poll
//!
//! A choice must not go through all that is past or exhausted. Of each repeating offer, a node reads the newest
//! occurrences within the horizon, a bounded number, and remembers exhausted ones as stretches ([`cache::Marks`]). So a
//! choice goes through the offers and this user's own past, not through what others have taken. What is older, or what
//! other nodes have given since, is learned from refusals: after a few, one bounded read tells which others are
//! exhausted from there on, for everybody who polls that audience. A poll that has no read left leaves out the oldest
//! occurrences and goes on with the newest known ones. If it is still refused, it answers that there is nothing for the
//! moment.
//!
//! A thousand users may want occurrences with a stock of one each. If all of them proposed the earliest one, each
//! transaction would give one, and far from the database the last user would wait for minutes. So a poll that was refused
//! for lack of stock passes over occurrences of which polls of this node have proposed all stock already: the refused ones
//! of a batch propose different occurrences, and most of them get these with the next transaction. An occurrence that was
//! passed over may then be refused to the one who has proposed it (that user has had it from another node, say). So of
//! polls at the same moment, one may get a later occurrence than it could; a poll that is alone never does.
//!
//! However often it is refused for lack of stock, a poll does not go on for longer than its `wait`, or two seconds. It may
//! end, because the node remembers these refusals: the next poll goes on from there. What a user has had already is not
//! remembered, so a poll goes through all of that, up to the number of refusals.
//!
//! A peek takes the same locks as a take, and shares its statements with nobody. So a node runs only a few at a time
//! ([`peek`]).

mod batch;
mod cache;
mod peek;
mod reaper;
mod seek;
mod settle;

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use futures::future::BoxFuture;
use heddle_domain::dispatch::{AssignmentState, HORIZON_DEFAULT, OFFERS_MAX_DEFAULT};
use heddle_domain::{Span, Time};
use heddle_store::StoreError;
use heddle_store::assignment::{AssignmentRow, End, UserFacts};
use heddle_store::change::{Change, Noun};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::node::Node;
use crate::node::part::Part;
use crate::node::short_ways::ShortWay;
use crate::node::signals::Signal;
use crate::runs::Audiences;
use crate::{EngineError, Runs};
use batch::{Batches, GatheringUsers};
pub(crate) use cache::Cache;
use cache::{Cached, Cell, Offers};
pub use peek::{Considered, PEEKED_MAX, Peek};
pub(crate) use reaper::Reaper;
use seek::{How, Sought};

/// How offers are given out.
#[derive(Clone, Copy, Debug)]
pub struct DispatchConfig {
    /// How far back a poll considers occurrences; less than a day.
    pub horizon: Span,
    /// The maximum of repeating offers per audience.
    pub offers_max: u32,
}

impl Default for DispatchConfig {
    fn default() -> Self {
        Self {
            horizon: HORIZON_DEFAULT,
            offers_max: OFFERS_MAX_DEFAULT,
        }
    }
}

/// Why a poll, a peek or a completion failed.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// This node has more polls than it accepts.
    #[error("too many polls on this node at the same time; try again later")]
    Overloaded,
    /// More peeks wait than this node can serve.
    #[error("too many `peek` calls on this node at the same time; try again later")]
    Peeks,
    /// The database does not answer, or the node is stopping.
    #[error("the database is not available; try again")]
    Unavailable,
    /// An error that the caller did not cause.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The user cannot end this assignment in this way.
    #[error("{0}")]
    Conflict(String),
}

/// The result of a poll.
#[derive(Clone, Debug)]
pub enum Next {
    /// An assignment for the user; `true`: the user had it already.
    Given(Box<AssignmentRow>, bool),
    /// Nothing. If the user may get something later, it is due at this instant.
    Nothing(Option<Time>),
}

pub(crate) struct Dispatch {
    node: Arc<Node>,
    runs: Arc<Runs>,
    config: DispatchConfig,
    cache: Arc<Cache>,
    batches: Batches,
    peeks: Semaphore,
}

impl Dispatch {
    /// `cache` is shared with the runs, because their tasks make offers.
    pub(crate) fn new(
        node: Arc<Node>,
        runs: Arc<Runs>,
        config: DispatchConfig,
        cache: Arc<Cache>,
    ) -> (Arc<Self>, GatheringUsers) {
        let (batches, gathering) = Batches::new();
        let dispatch = Self {
            node,
            runs,
            config,
            cache,
            batches,
            peeks: Semaphore::new(peek::PEEKS_MAX),
        };
        (Arc::new(dispatch), gathering)
    }

    /// The handle with which the API uses the dispatcher.
    pub(crate) fn dispatcher(self: &Arc<Self>) -> Dispatcher {
        Dispatcher { dispatch: self.clone() }
    }
}

impl Part for Dispatch {
    fn changed<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<(), EngineError>> {
        match change.noun {
            Some(Noun::Audience) => self.cache.changed(&change.name),
            Some(Noun::Members) => self.cache.members_changed(),
            _ => {}
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn forget(&self) {
        self.cache.all_changed();
    }
}

impl Audiences for Cache {
    fn changed(&self, audience: &str) {
        Cache::changed(self, audience);
    }
}

/// The dispatcher as the API sees it. Cheap to clone.
#[derive(Clone)]
pub struct Dispatcher {
    dispatch: Arc<Dispatch>,
}

/// A node asks the database this much before the instant at which it believes that something is due: clocks differ by
/// less.
const EARLY: TimeDelta = TimeDelta::milliseconds(5);

/// How often a waiting poll checks whether the node is draining.
const DRAIN_POLL: Duration = Duration::from_millis(500);

/// What is known of a user for whom there is nothing.
struct Nothing {
    /// When the next candidate comes due.
    next: Option<Time>,
    /// The latest instant to ask the database again.
    until: Time,
    cells: Arc<[Arc<Cell>]>,
    versions: u64,
    members: u64,
}

impl Dispatcher {
    /// How offers are given out.
    pub fn config(&self) -> DispatchConfig {
        self.dispatch.config
    }

    /// Whether there is certainly nothing for a user now, and when the next thing is due, if any.
    pub fn quiet(&self, uid: &str, now: Time) -> Option<Option<Time>> {
        let dispatch = &self.dispatch;
        if !dispatch.node.short_ways.take(ShortWay::QuietPoll) {
            return None;
        }
        let quiet = dispatch.cache.quiet(uid, now + EARLY)?;
        dispatch.node.short_ways.took(ShortWay::QuietPoll);
        Some(quiet)
    }

    /// What a user has to do now; waits for it for at most `wait`.
    pub async fn next(&self, uid: &str, wait: Duration) -> Result<Next, DispatchError> {
        let dispatch = &self.dispatch;
        let deadline = tokio::time::Instant::now() + wait;
        let patience = seek::patience(wait);
        loop {
            let now = dispatch.node.now();
            if wait.is_zero()
                && let Some(next) = self.quiet(uid, now)
            {
                return Ok(Next::Nothing(next));
            }
            let nothing = match self.seek(uid, How::Take, patience).await? {
                Sought::Given(row, redo) => return Ok(Next::Given(row, redo)),
                Sought::Nothing(nothing) => nothing,
            };
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            if left.is_zero() || dispatch.node.is_leaving() {
                return Ok(Next::Nothing(nothing.next));
            }
            self.wait_for_change(&nothing, left).await;
            if dispatch.node.is_leaving() {
                // This node is stopping; the user has to poll another one.
                return Ok(Next::Nothing(nothing.next));
            }
        }
    }

    /// Waits until offers of these audiences may have changed or come due, for `left` at most.
    async fn wait_for_change(&self, nothing: &Nothing, left: Duration) {
        let cache = &self.dispatch.cache;
        let Nothing { until, cells, .. } = nothing;
        // Register first, then check: a change in between is not missed.
        let mut wakeups: Vec<_> = cells.iter().map(|cell| Box::pin(cell.wakeup.notified())).collect();
        wakeups.push(Box::pin(cache.members_wakeup.notified()));
        for wakeup in &mut wakeups {
            wakeup.as_mut().enable();
        }
        if cache::sum(cells) != nothing.versions || cache.members() != nothing.members {
            return;
        }
        let end = tokio::time::Instant::now() + left;
        let any = futures::future::select_all(wakeups);
        tokio::pin!(any);
        loop {
            let now = tokio::time::Instant::now();
            let due = (*until - self.dispatch.node.now()).to_std().unwrap_or(Duration::ZERO);
            if now >= end || due.is_zero() || self.dispatch.node.is_leaving() {
                return;
            }
            tokio::select! {
                _ = &mut any => return,
                () = tokio::time::sleep(due.min(end - now).min(DRAIN_POLL)) => {}
                () = self.dispatch.node.stop.cancelled() => return,
            }
        }
    }

    /// Ends a user's assignment. If the same call is repeated, it gets the same answer.
    pub async fn complete(
        &self,
        uid: &str,
        id: Uuid,
        state: AssignmentState,
        result: Option<String>,
    ) -> Result<AssignmentRow, DispatchError> {
        let dispatch = &self.dispatch;
        let end = End {
            id,
            uid: uid.to_owned(),
            state,
            result,
        };
        if let Some(ended) = dispatch.batches.end(end).await? {
            if ended.returned {
                dispatch.cache.changed(&ended.offered_to);
            }
            if ended.of_task {
                dispatch.node.signals.raise(Signal::Holds);
            }
            return Ok(ended.assignment);
        }
        match dispatch.node.store.assignment(id).await? {
            Some(row) if row.uid == uid && row.state == state => Ok(row),
            Some(row) if row.uid == uid && row.state == AssignmentState::Assigned => Err(DispatchError::Conflict(
                "the task that offered this has ended or was cancelled; the assignment is being revoked".into(),
            )),
            Some(row) if row.uid == uid => Err(DispatchError::Conflict(format!(
                "the assignment is already {}",
                row.state.as_str()
            ))),
            _ => Err(DispatchError::Conflict("the user does not hold this assignment".into())),
        }
    }

    /// An operator has ended an assignment, or changed an audience: this node's memory of the audience is old.
    pub fn changed(&self, audience: &str) {
        self.dispatch.cache.changed(audience);
        self.dispatch.node.signals.raise(Signal::Holds);
    }

    pub fn now(&self) -> Time {
        self.dispatch.node.now()
    }
}

impl Dispatch {
    /// An audience's offers. However many polls ask, they are read once.
    async fn offers_of(&self, cell: &Arc<Cell>) -> Result<Arc<Offers>, DispatchError> {
        let now = self.node.now();
        if let Some(offers) = cell.current(now) {
            return Ok(offers);
        }
        let _alone = cell.loading.lock().await;
        if let Some(offers) = cell.current(now) {
            return Ok(offers);
        }
        let version = cell.version();
        // No poll, now or later, has a window that begins before this instant.
        let reach = now - self.config.horizon.chrono();
        let read: Cached = self.node.store.offers_of_audience(&cell.audience, reach).await?;
        let offers = Arc::new(Offers::new(&cell.audience, version, read, reach, now));
        cell.keep(offers.clone());
        Ok(offers)
    }

    /// Looks up users, for a batch of polls.
    pub(crate) async fn look_up(&self, uids: &[String]) -> Result<Vec<UserFacts>, StoreError> {
        let now = self.node.now();
        self.node
            .store
            .user_facts(uids, now - self.config.horizon.chrono(), now)
            .await
    }
}
