//! The dispatcher: users poll, and are given what is due for them.
//!
//! # A poll
//!
//! 1. *Quiet?* If the database has said before that there is nothing for this user, and nothing has come due or
//!    changed since, the answer is from memory ([`cache`]): no statement, no lock beyond a part of a map.
//! 2. *Look.* Otherwise the database tells what the user holds (given again), the groups, the last finished occurrence.
//! 3. *Choose.* The node reckons from the audiences' offers, which it caches, what would be the user's next.
//! 4. *Take.* The database decides. A refusal teaches the node (no stock left, another version) and it chooses again.
//!
//! Look-ups, takes and ends of many users ride in one statement or transaction each ([`batch`]): what comes while one is
//! under way goes with the next. So a hot occurrence's row is updated some hundred times a second, not once per user.
//!
//! # What makes "nothing" safe from memory
//!
//! A user without a hold can only come by one (on whatever node) when something comes due, an offer or a membership
//! changes, or stock comes back. The first is in the reckoned instant up to which the user is quiet; the others are in
//! the log of changes and wake who waits for the audience ([`cache::Cell`]). What has no stock left is remembered per version
//! of an audience's offers and never makes a user quiet whose look is older than that memory.
//!
//! # What bounds a poll
//!
//! Neither what is past nor what is used up: of each repeating offer a node reads the newest occurrences of the horizon, a
//! bounded number, and remembers used-up ones as stretches ([`cache::Marks`]), so that a choice goes through the offers
//! and through what this user has had, and not through what others have taken. What lies before, or what other nodes have
//! given since, is learned by being refused: after a few refusals one look, again of bounded size, tells what else is used
//! up from there on, to whoever asks for that audience. A poll that has looked its share leaves out the oldest and goes on
//! with the newest that are known; one that is still refused answers that there is nothing for the moment.
//!
//! A peek locks what a take locks, and shares its statements with nobody. So a node has few of them at a time ([`peek`]).

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
use heddle_store::change::Change;
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
    /// How far back a poll looks; less than a day.
    pub horizon: Span,
    /// Repeating offers per audience.
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

/// What dispatching came to.
#[derive(Debug, thiserror::Error)]
pub enum DispatchError {
    /// More polls are under way than this node takes.
    #[error("too many polls on this node at the same time; try again later")]
    Overloaded,
    /// More peeks wait than this node comes to.
    #[error("too many `peek` calls on this node at the same time; try again later")]
    Peeks,
    /// The database does not answer, or the node stops.
    #[error("the database is not available; try again")]
    Unavailable,
    /// Not the caller's fault.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The assignment is not the user's to end like that.
    #[error("{0}")]
    Conflict(String),
}

/// What a poll came to.
#[derive(Clone, Debug)]
pub enum Next {
    /// The user's; `true`: it had been given before.
    Given(Box<AssignmentRow>, bool),
    /// Nothing; the next thing that the user may be given comes due at this instant, if any.
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
    /// `cache` is shared with the runs, whose tasks make offers.
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

    /// As the API sees it.
    pub(crate) fn dispatcher(self: &Arc<Self>) -> Dispatcher {
        Dispatcher { dispatch: self.clone() }
    }
}

impl Part for Dispatch {
    fn changed<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<(), EngineError>> {
        match change.kind.as_str() {
            "audience" => self.cache.changed(&change.name),
            "members" => self.cache.members_changed(),
            _ => {}
        }
        Box::pin(std::future::ready(Ok(())))
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

/// By so much a node asks before it believes that something is due: clocks differ by less.
const EARLY: TimeDelta = TimeDelta::milliseconds(5);

/// After so long a poll that waits looks whether the node is draining.
const DRAIN_POLL: Duration = Duration::from_millis(500);

/// What is known of a user for whom there is nothing.
struct Nothing {
    /// When the next candidate comes due.
    next: Option<Time>,
    /// When to look again at the latest.
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

    /// Whether there is surely nothing for a user now, and when the next thing comes due, if any does.
    pub fn quiet(&self, uid: &str, now: Time) -> Option<Option<Time>> {
        let dispatch = &self.dispatch;
        if !dispatch.node.short_ways.take(ShortWay::QuietPoll) {
            return None;
        }
        dispatch.cache.quiet(uid, now + EARLY)
    }

    /// What a user has to do now, waiting for it for at most `wait`.
    pub async fn next(&self, uid: &str, wait: Duration) -> Result<Next, DispatchError> {
        let dispatch = &self.dispatch;
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            let now = dispatch.node.now();
            if wait.is_zero()
                && let Some(next) = self.quiet(uid, now)
            {
                return Ok(Next::Nothing(next));
            }
            let nothing = match self.seek(uid, How::Take).await? {
                Sought::Given(row, redo) => return Ok(Next::Given(row, redo)),
                Sought::Nothing(nothing) => nothing,
            };
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            if left.is_zero() || dispatch.node.is_leaving() {
                return Ok(Next::Nothing(nothing.next));
            }
            self.wait_for_change(&nothing, left).await;
            if dispatch.node.is_leaving() {
                // There is nobody left to look; the user goes on at another node.
                return Ok(Next::Nothing(nothing.next));
            }
        }
    }

    /// Waits until something of these audiences may have changed or come due, for `left` at most.
    async fn wait_for_change(&self, nothing: &Nothing, left: Duration) {
        let cache = &self.dispatch.cache;
        let Nothing { until, cells, .. } = nothing;
        // Register first, then look whether it has come already.
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

    /// Ends a user's assignment. A repeat of the same answers the same.
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

    /// An operator has ended something, or changed an audience: what this node remembers of it is old.
    pub fn changed(&self, audience: &str) {
        self.dispatch.cache.changed(audience);
        self.dispatch.node.signals.raise(Signal::Holds);
    }

    pub fn now(&self) -> Time {
        self.dispatch.node.now()
    }
}

impl Dispatch {
    /// An audience's offers, read once however many ask.
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
        // No window begins before this, now or later.
        let reach = now - self.config.horizon.chrono();
        let read: Cached = self.node.store.offers_of_audience(&cell.audience, reach).await?;
        let offers = Arc::new(Offers::new(&cell.audience, version, read, reach, now));
        cell.keep(offers.clone());
        Ok(offers)
    }

    /// What is known of users, for a batch of polls.
    pub(crate) async fn look_up(&self, uids: &[String]) -> Result<Vec<UserFacts>, StoreError> {
        let now = self.node.now();
        self.node
            .store
            .user_facts(uids, now - self.config.horizon.chrono(), now)
            .await
    }
}
