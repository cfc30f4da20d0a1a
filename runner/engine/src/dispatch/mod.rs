//! The dispatcher: users poll, and are given what is due for them.
//!
//! # A poll
//!
//! 1. *Quiet?* If the database has said before that there is nothing for this user, and nothing has come due or
//!    changed since, the answer is from memory ([`cache`]): no statement, no lock beyond a shard of a map.
//! 2. *Look.* Otherwise the database tells what the user holds (given again), the groups, the last finished occurrence.
//! 3. *Choose.* The node reckons from the audiences' offers, which it caches, what would be the user's next.
//! 4. *Take.* The database decides. A refusal teaches the node (no stock left, another version) and it chooses again.
//!
//! Looks, takes and ends of many users ride in one statement or transaction each ([`batch`]): what comes while one is
//! under way goes with the next. So a hot occurrence's row is updated some hundred times a second, not once per user.
//!
//! # What makes "nothing" safe from memory
//!
//! A user without a hold can only come by one (on whatever node) when something comes due, an offer or a membership
//! changes, or stock comes back. The first is in the reckoned instant up to which the user is quiet; the others are in
//! the log of changes and ring the audience's bell ([`cache::Cell`]). What has no stock left is remembered per version
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
mod settle;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use futures::future::BoxFuture;
use heddle_domain::dispatch::{AssignmentState, HORIZON_DEFAULT, Mode, OFFERS_MAX_DEFAULT, OfferKind, Rank, Window};
use heddle_domain::{Span, Time};
use heddle_store::StoreError;
use heddle_store::assignment::{AssignmentRow, End, Proposal, UserFacts, Verdict};
use heddle_store::change::Change;
use heddle_store::exhausted::TakenEnd;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::node::Node;
use crate::node::part::Part;
use crate::node::signals::Signal;
use crate::runs::Audiences;
use crate::{EngineError, Runs};
use batch::{Batches, GatheringUsers};
pub(crate) use cache::Cache;
use cache::{Cached, Candidate, Cell, Offers, Quiet};
pub use peek::{Considered, PEEKED_MAX, Peek};
pub(crate) use reaper::Reaper;

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
    #[error("this node has as many polls under way as it takes")]
    Overloaded,
    /// More peeks wait than this node comes to.
    #[error("this node has as many looks at what polls would give under way as it takes")]
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

/// Gives out offers.
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

/// How often a poll looks anew when others are in its way, before it answers that there is nothing.
const ROUNDS_MAX: usize = 16;

/// How often a poll is refused what it proposes before it answers that there is nothing for the moment.
const REFUSALS_MAX: usize = 1_000;

/// After so many refusals for want of stock the database is asked what else is used up: others have given what this node
/// has not heard of. One or two are nothing but a hot occurrence that many want.
const REFUSALS_PER_LOOK: usize = 4;

/// How often a poll asks what is used up; from then on it leaves out what is older than what was read first.
const LOOKS_MAX: usize = 16;

/// For how long nothing is said from memory at most without asking the database again.
const QUIET_MAX: TimeDelta = TimeDelta::seconds(30);

/// By so much a node asks before it believes that something is due: clocks differ by less.
const EARLY: TimeDelta = TimeDelta::milliseconds(5);

/// The smallest difference between two instants.
const INSTANT: TimeDelta = TimeDelta::microseconds(1);

/// After so long a poll that waits looks whether the node is draining.
const LOOK_UP: Duration = Duration::from_millis(500);

/// After so long a poll is worth repeating when the database was not to be convinced.
const SOON: TimeDelta = TimeDelta::milliseconds(20);

/// What becomes of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It is the user's, if the database says so.
    Take,
    /// The database is asked, and nothing is kept.
    Peek,
}

impl How {
    /// How often it is refused what it proposes before it answers that there is nothing for the moment.
    fn refusals_max(self) -> usize {
        match self {
            Self::Take => REFUSALS_MAX,
            Self::Peek => peek::REFUSALS_MAX,
        }
    }
}

/// What a look and a choice came to.
enum Sought {
    Given(Box<AssignmentRow>, bool),
    Nothing(Nothing),
}

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
        let cache = dispatch.node.short_ways.then_some(&dispatch.cache)?;
        cache.quiet(uid, now + EARLY)
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
        // Register first, then look whether it has rung already.
        let mut bells: Vec<_> = cells.iter().map(|cell| Box::pin(cell.bell.notified())).collect();
        bells.push(Box::pin(cache.members_bell.notified()));
        for bell in &mut bells {
            bell.as_mut().enable();
        }
        if cache::sum(cells) != nothing.versions || cache.members() != nothing.members {
            return;
        }
        let end = tokio::time::Instant::now() + left;
        let any = futures::future::select_all(bells);
        tokio::pin!(any);
        loop {
            let now = tokio::time::Instant::now();
            let due = (*until - self.dispatch.node.now()).to_std().unwrap_or(Duration::ZERO);
            if now >= end || due.is_zero() || self.dispatch.node.is_leaving() {
                return;
            }
            tokio::select! {
                _ = &mut any => return,
                () = tokio::time::sleep(due.min(end - now).min(LOOK_UP)) => {}
                () = self.dispatch.node.stop.cancelled() => return,
            }
        }
    }

    /// Looks, chooses, takes; or finds out what a take would come to. A long function, since what a refusal means for the next
    /// choice is counted over all rounds: it reads as one table of verdicts.
    async fn seek(&self, uid: &str, how: How) -> Result<Sought, DispatchError> {
        let dispatch = &self.dispatch;
        let cache = &dispatch.cache;
        let horizon = dispatch.config.horizon;
        let refusals_max = how.refusals_max();
        let mut rounds = 0;
        let mut refusals = 0;
        let mut without_stock = 0;
        let mut looks = 0;
        let mut newest_only = false;
        loop {
            rounds += 1;
            let marks = cache.marks();
            let members = cache.members();
            let facts = dispatch.batches.look(uid).await?;
            if let Some(held) = facts.held {
                return Ok(Sought::Given(Box::new(held), true));
            }
            let cells = cache.cells(uid, &facts.groups);
            let mut offers = Vec::with_capacity(cells.len());
            for cell in cells.iter() {
                offers.push(dispatch.offers_of(cell).await?);
            }
            let versions = offers.iter().map(|offers| offers.version).sum();
            let mut had = Had {
                before: facts.had.iter().copied().collect(),
                refused: HashSet::new(),
            };
            let mut doubtful = false;
            let again = loop {
                let now = dispatch.node.now();
                let window = Window::new(facts.last_finished, now, horizon);
                let (best, next) = choose(&offers, &had, window, newest_only);
                doubtful |= newest_only || refusals >= refusals_max;
                let best = best.filter(|_| refusals < refusals_max);
                let Some((audience, candidate, occurrence)) = best else {
                    let soon = doubtful.then_some(now + SOON);
                    let next = soon.or(next);
                    let until = next.unwrap_or(now + QUIET_MAX).min(now + QUIET_MAX);
                    if !doubtful && cache.marks() == marks {
                        let quiet = Quiet {
                            next,
                            until,
                            members,
                            versions,
                            cells: cells.clone(),
                        };
                        cache.set_quiet(uid, quiet);
                    }
                    return Ok(Sought::Nothing(Nothing {
                        next,
                        until,
                        cells,
                        versions,
                        members,
                    }));
                };
                let proposal = Proposal {
                    id: dispatch.node.new_id(now),
                    uid: uid.to_owned(),
                    offer_id: candidate.id,
                    version: candidate.version,
                    audience: audience.audience.clone(),
                    occurrence,
                };
                let id = proposal.id;
                let (verdict, assigned_at) = match how {
                    How::Take => dispatch.batches.take(proposal).await?,
                    How::Peek => (dispatch.node.store.would_take(&proposal, horizon, now).await?, now),
                };
                refusals += 1;
                match verdict {
                    Verdict::Given => {
                        let row = assignment(id, uid, audience, candidate, occurrence, assigned_at);
                        return Ok(Sought::Given(Box::new(row), false));
                    }
                    Verdict::NoStock => {
                        // Counted before it is remembered: who comes by it knows then that its look may be older.
                        cache.marked();
                        audience.mark(candidate, occurrence);
                        without_stock += 1;
                        if without_stock % REFUSALS_PER_LOOK == 0 {
                            newest_only = looks == LOOKS_MAX;
                            if !newest_only {
                                looks += 1;
                                self.look_at_used_up(audience, occurrence).await?;
                            }
                        }
                    }
                    Verdict::Had => drop(had.refused.insert((candidate.id, occurrence))),
                    Verdict::NotDue => {
                        had.refused.insert((candidate.id, occurrence));
                        doubtful = true;
                    }
                    Verdict::Changed => {
                        cache.changed(&audience.audience);
                        break true;
                    }
                    Verdict::NotMember => {
                        cache.members_changed();
                        break true;
                    }
                    Verdict::Holds | Verdict::MovedOn => break true,
                }
            };
            if again && rounds >= ROUNDS_MAX {
                let until = dispatch.node.now() + SOON;
                return Ok(Sought::Nothing(Nothing {
                    next: Some(until),
                    until,
                    cells,
                    versions,
                    members,
                }));
            }
        }
    }

    /// Learns at one look what else of an audience is used up from an instant on, unless somebody else just has.
    async fn look_at_used_up(&self, offers: &Offers, from: Time) -> Result<(), DispatchError> {
        let looks = offers.looks();
        let _alone = offers.looking.lock().await;
        if offers.looks() == looks {
            let (ids, repeating) = offers.ids();
            let store = &self.dispatch.node.store;
            let exhausted = store.exhausted(&ids, repeating, from, TakenEnd::Earliest).await?;
            self.dispatch.cache.marked();
            offers.learn(exhausted);
        }
        Ok(())
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
            Some(row) if row.uid == uid => Err(DispatchError::Conflict(format!(
                "the assignment is {} already",
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

    /// The present instant.
    pub fn now(&self) -> Time {
        self.dispatch.node.now()
    }
}

/// What a user is not given again.
struct Had {
    /// As the look told.
    before: HashSet<(i64, Time)>,
    /// As the database told when it was asked for.
    refused: HashSet<(i64, Time)>,
}

impl Had {
    /// Whether the user has had it. Of a task's offer only a refusal counts: a new attempt is for those again who did
    /// not complete the last one.
    fn has(&self, candidate: &Candidate, occurrence: Time) -> bool {
        self.refused.contains(&(candidate.id, occurrence))
            || !candidate.of_task && self.before.contains(&(candidate.id, occurrence))
    }

    fn again(&self, candidate: &Candidate, occurrence: Time) -> bool {
        candidate.offer.mode == Mode::Repeat
            && !self.refused.contains(&(candidate.id, occurrence))
            && self.before.contains(&(candidate.id, occurrence))
    }
}

/// A user's next occurrence, and when something else comes due.
type Choice<'a> = (Option<(&'a Offers, &'a Candidate, Time)>, Option<Time>);

/// The least of what is due and may be given, and the next instant at which more is due. `newest_only`: of an audience
/// with very many occurrences that somebody has taken, the newest alone.
fn choose<'a>(offers: &'a [Arc<Offers>], had: &Had, window: Window, newest_only: bool) -> Choice<'a> {
    let mut best: Option<(Rank, &Offers, &Candidate, Time)> = None;
    let mut next: Option<Time> = None;
    for audience in offers {
        let marks = audience.marks.lock();
        for candidate in &audience.candidates {
            let offer = &candidate.offer;
            // A task's offer stays due until it is done: neither the horizon nor what was finished hides it.
            let from = if candidate.of_task {
                offer.starts_at
            } else if newest_only && offer.kind != OfferKind::Once {
                window.from.max(audience.known_from)
            } else {
                window.from
            };
            let open_from = |from| match marks.get(&candidate.id) {
                Some(marks) => marks.open_from(offer, from),
                None => offer.first_from(from),
            };
            let mut at = open_from(from);
            while let Some(due) = at.filter(|due| *due <= window.to) {
                let again = had.again(candidate, due);
                if again || !had.has(candidate, due) {
                    let rank = Rank::new(due, again, offer.priority, candidate.id);
                    if best.as_ref().is_none_or(|best| rank < best.0) {
                        best = Some((rank, audience, candidate, due));
                    }
                    break;
                }
                at = open_from(due + INSTANT);
            }
            if let Some(later) = candidate.offer.next_after(window.to) {
                next = Some(next.map_or(later, |next| next.min(later)));
            }
        }
        if let Some(until) = audience.complete_until.filter(|until| *until > window.to) {
            next = Some(next.map_or(until, |next| next.min(until)));
        }
    }
    (
        best.map(|(_, audience, candidate, due)| (audience, candidate, due)),
        next,
    )
}

fn assignment(
    id: Uuid,
    uid: &str,
    audience: &Offers,
    candidate: &Candidate,
    occurrence: Time,
    assigned_at: Time,
) -> AssignmentRow {
    AssignmentRow {
        id,
        offer: candidate.name.clone(),
        uid: uid.to_owned(),
        audience: audience.audience.clone(),
        occurrence,
        params: serde_json::Value::Object(candidate.offer.params.clone()),
        state: AssignmentState::Assigned,
        assigned_at,
        finished_at: None,
        result: None,
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
            .look_up_users(uids, now - self.config.horizon.chrono(), now)
            .await
    }
}
