//! The search of a poll: look, choose, take, until the user has an assignment or there is nothing.
//!
//! A *round* begins with a look at the user, and uses that look: it proposes candidates one after another, until one is
//! given, none is left, or the database answers that the look is old. Refusals are counted over all rounds, because
//! they bound the cost of a poll.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use heddle_domain::Time;
use heddle_domain::dispatch::{AssignmentState, Mode, OfferKind, Rank, Window};
use heddle_store::assignment::{AssignmentRow, Proposal, UserFacts, Verdict};
use heddle_store::exhausted::TakenEnd;
use tokio::time::Instant;
use uuid::Uuid;

use super::cache::{Candidate, Cell, Offers, Quiet};
use super::{DispatchError, Dispatcher, Nothing};

/// How many rounds a poll makes when other polls interfere, before it answers that there is nothing.
const ROUNDS_MAX: usize = 16;

/// How many refusals a poll accepts before it answers that there is nothing for the moment.
const REFUSALS_MAX: usize = 1_000;

/// The same for a peek: more than a poll needs that reads which occurrences are exhausted.
const PEEK_REFUSALS_MAX: usize = 100;

/// After this many refusals for lack of stock, the node reads which others are exhausted: other nodes have given occurrences
/// that this node does not know of. One or two refusals only mean a hot occurrence that many users want.
const REFUSALS_PER_READ: usize = 4;

/// How often a poll reads which occurrences are exhausted. From then on, it leaves out what is older than the first read.
const READS_MAX: usize = 16;

/// How many occurrences of an offer a choice passes over because polls of this node have proposed all of their stock.
const PROPOSED_MAX: usize = 1_000;

/// For how long a poll proposes occurrences at least, however soon it wants an answer.
const SEEK_AT_LEAST: Duration = Duration::from_secs(2);

/// The longest time for which a node answers from memory that there is nothing, without asking the database again.
const QUIET_MAX: TimeDelta = TimeDelta::seconds(30);

/// When a poll has given up after too many refusals or rounds, it is worth repeating after this time.
const SOON: TimeDelta = TimeDelta::milliseconds(20);

/// The smallest difference between two instants.
pub(super) const INSTANT: TimeDelta = TimeDelta::microseconds(1);

/// How long a poll goes on that others get ahead of.
pub(super) fn patience(wait: Duration) -> Instant {
    Instant::now() + wait.max(SEEK_AT_LEAST)
}

/// What is done with a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// The user gets it, if the database agrees.
    Take,
    /// The database is asked, and the transaction is rolled back.
    Peek,
}

impl How {
    /// How many refusals it accepts before it answers that there is nothing for the moment.
    pub(super) fn refusals_max(self) -> usize {
        match self {
            Self::Take => REFUSALS_MAX,
            Self::Peek => PEEK_REFUSALS_MAX,
        }
    }
}

/// The result of a look and a choice.
pub(super) enum Sought {
    Given(Box<AssignmentRow>, bool),
    Nothing(Nothing),
}

/// The data about the user that a round uses.
struct View {
    /// The counts of stock, members and offers before the look.
    marks: u64,
    members: u64,
    versions: u64,
    cells: Arc<[Arc<Cell>]>,
    offers: Vec<Arc<Offers>>,
}

/// The refusals of a poll, over all its rounds.
struct Refusals {
    all: usize,
    /// From this instant on, no further refusal is accepted, if the last one is remembered.
    until: Instant,
    /// The node remembers what the last one said, for all polls. What it does not remember is refused again to the next poll
    /// of this user, so this poll has to go through all of that.
    remembered: bool,
    /// How many of these refusals were for lack of stock.
    without_stock: usize,
    /// How often the node has read which others are exhausted.
    reads: usize,
    /// It has read often enough: occurrences older than the first read are left out.
    newest_only: bool,
}

impl Refusals {
    fn up_to(until: Instant) -> Self {
        Self {
            all: 0,
            until,
            remembered: false,
            without_stock: 0,
            reads: 0,
            newest_only: false,
        }
    }

    /// Whether the poll has to answer.
    fn are_too_many(&self, how: How) -> bool {
        self.all >= how.refusals_max() || self.remembered && Instant::now() >= self.until
    }
}

impl Dispatcher {
    /// Looks, chooses, takes; or finds out what a take would answer. After a refusal later than `until` that the node
    /// remembers, the answer is that there is nothing for the moment.
    pub(super) async fn seek(&self, uid: &str, how: How, until: Instant) -> Result<Sought, DispatchError> {
        let dispatch = &self.dispatch;
        let mut refusals = Refusals::up_to(until);
        let mut rounds = 0;
        loop {
            rounds += 1;
            let (marks, members) = (dispatch.cache.marks(), dispatch.cache.members());
            let mut facts = dispatch.batches.read_user(uid).await?;
            if let Some(held) = facts.held.take() {
                return Ok(Sought::Given(Box::new(held), true));
            }
            let cells = dispatch.cache.cells(uid, &facts.groups);
            let mut offers = Vec::with_capacity(cells.len());
            for cell in cells.iter() {
                offers.push(dispatch.offers_of(cell).await?);
            }
            let view = View {
                marks,
                members,
                versions: offers.iter().map(|offers| offers.version).sum(),
                cells,
                offers,
            };
            if let Some(sought) = self.round(uid, how, &facts, &view, &mut refusals).await? {
                return Ok(sought);
            }
            if rounds >= ROUNDS_MAX || refusals.are_too_many(how) {
                let until = dispatch.node.now() + SOON;
                return Ok(Sought::Nothing(view.nothing(Some(until), until)));
            }
        }
    }

    /// Proposes what a user may be given, one after another. `None`: the look is old.
    async fn round(
        &self,
        uid: &str,
        how: How,
        facts: &UserFacts,
        view: &View,
        refusals: &mut Refusals,
    ) -> Result<Option<Sought>, DispatchError> {
        let dispatch = &self.dispatch;
        let horizon = dispatch.config.horizon;
        let mut had = Had {
            before: facts.had.iter().copied().collect(),
            refused: HashSet::new(),
        };
        let mut doubtful = false;
        loop {
            let now = dispatch.node.now();
            let window = Window::new(facts.last_finished, now, horizon);
            // Others are faster: this poll leaves to them what they propose already, as long as there is something else.
            let spread = how == How::Take && refusals.without_stock > 0;
            let mut choice = choose(&view.offers, &had, window, refusals.newest_only, spread);
            if spread && choice.0.is_none() {
                choice = choose(&view.offers, &had, window, refusals.newest_only, false);
            }
            let (best, next) = choice;
            let too_many = refusals.are_too_many(how);
            doubtful |= refusals.newest_only || too_many;
            let Some((audience, candidate, occurrence)) = best.filter(|_| !too_many) else {
                let next = doubtful.then_some(now + SOON).or(next);
                let until = next.unwrap_or(now + QUIET_MAX).min(now + QUIET_MAX);
                if !doubtful && dispatch.cache.marks() == view.marks {
                    dispatch.cache.set_quiet(uid, view.quiet(next, until));
                }
                return Ok(Some(Sought::Nothing(view.nothing(next, until))));
            };
            let id = dispatch.node.new_id(now);
            let proposal = Proposal {
                id,
                uid: uid.to_owned(),
                offer_id: candidate.id,
                version: candidate.version,
                audience: audience.audience.clone(),
                occurrence,
            };
            let (verdict, assigned_at) = match how {
                How::Take => {
                    let _proposed = audience.propose(candidate, occurrence);
                    dispatch.batches.take(proposal).await?
                }
                How::Peek => (dispatch.node.store.would_take(&proposal, horizon, now).await?, now),
            };
            refusals.all += 1;
            refusals.remembered = matches!(verdict, Verdict::NoStock | Verdict::Changed | Verdict::NotMember);
            match verdict {
                Verdict::Given => {
                    let row = assignment(id, uid, audience, candidate, occurrence, assigned_at);
                    return Ok(Some(Sought::Given(Box::new(row), false)));
                }
                Verdict::NoStock => self.without_stock(audience, candidate, occurrence, refusals).await?,
                Verdict::Had => drop(had.refused.insert((candidate.id, occurrence))),
                Verdict::NotDue => {
                    had.refused.insert((candidate.id, occurrence));
                    doubtful = true;
                }
                Verdict::Changed => {
                    dispatch.cache.changed(&audience.audience);
                    return Ok(None);
                }
                Verdict::NotMember => {
                    dispatch.cache.members_changed();
                    return Ok(None);
                }
                Verdict::Holds | Verdict::MovedOn => return Ok(None),
            }
        }
    }

    /// Stores that an occurrence has no stock left, and after some refusals reads which others have none.
    async fn without_stock(
        &self,
        audience: &Offers,
        candidate: &Candidate,
        occurrence: Time,
        refusals: &mut Refusals,
    ) -> Result<(), DispatchError> {
        // Counted before it is remembered: a poll that finds the mark then sees that its own look may be older.
        self.dispatch.cache.marked();
        audience.mark(candidate, occurrence);
        refusals.without_stock += 1;
        if refusals.without_stock.is_multiple_of(REFUSALS_PER_READ) {
            refusals.newest_only = refusals.reads == READS_MAX;
            if !refusals.newest_only {
                refusals.reads += 1;
                self.learn_exhausted(audience, occurrence).await?;
            }
        }
        Ok(())
    }

    /// Reads once which other occurrences of an audience are exhausted from an instant on, unless another poll has just
    /// done so.
    async fn learn_exhausted(&self, offers: &Offers, from: Time) -> Result<(), DispatchError> {
        let reads = offers.reads();
        let _alone = offers.looking.lock().await;
        if offers.reads() == reads {
            let (ids, repeating) = offers.ids();
            let store = &self.dispatch.node.store;
            let exhausted = store.exhausted(&ids, repeating, from, TakenEnd::Earliest).await?;
            self.dispatch.cache.marked();
            offers.learn(exhausted);
        }
        Ok(())
    }
}

impl View {
    fn nothing(&self, next: Option<Time>, until: Time) -> Nothing {
        Nothing {
            next,
            until,
            cells: self.cells.clone(),
            versions: self.versions,
            members: self.members,
        }
    }

    fn quiet(&self, next: Option<Time>, until: Time) -> Quiet {
        Quiet {
            next,
            until,
            members: self.members,
            versions: self.versions,
            cells: self.cells.clone(),
        }
    }
}

/// The occurrences that a user does not get again.
pub(super) struct Had {
    /// Occurrences that the first look at the database found.
    pub(super) before: HashSet<(i64, Time)>,
    /// Occurrences that the database refused when they were proposed.
    pub(super) refused: HashSet<(i64, Time)>,
}

impl Had {
    /// Whether the user has had this occurrence. For an offer of a task, only a refusal counts: users who did not
    /// complete the last attempt get the new one too.
    pub(super) fn has(&self, candidate: &Candidate, occurrence: Time) -> bool {
        self.refused.contains(&(candidate.id, occurrence))
            || !candidate.of_task && self.before.contains(&(candidate.id, occurrence))
    }

    pub(super) fn again(&self, candidate: &Candidate, occurrence: Time) -> bool {
        candidate.offer.mode == Mode::Repeat
            && !self.refused.contains(&(candidate.id, occurrence))
            && self.before.contains(&(candidate.id, occurrence))
    }
}

/// A user's next occurrence, and when another one is due.
type Choice<'a> = (Option<(&'a Offers, &'a Candidate, Time)>, Option<Time>);

/// Chooses the first of the occurrences that are due and may be given, and the next instant at which another one is due.
/// `newest_only`: an occurrence of a repeating offer is chosen only if the node knows whether it is exhausted. `spread`:
/// an occurrence is passed over if polls of this node have proposed all of its stock.
fn choose<'a>(offers: &'a [Arc<Offers>], had: &Had, window: Window, newest_only: bool, spread: bool) -> Choice<'a> {
    let mut best: Option<(Rank, &Offers, &Candidate, Time)> = None;
    let mut next: Option<Time> = None;
    for audience in offers {
        let marks = audience.marks.lock();
        for candidate in &audience.candidates {
            let offer = &candidate.offer;
            // A task's offer stays due until it is done: neither the horizon nor the last finished occurrence hides it.
            let from = if candidate.of_task {
                offer.starts_at
            } else if newest_only && offer.kind != OfferKind::Once {
                window.from.max(audience.known_from)
            } else {
                window.from
            };
            let marks = marks.get(&candidate.id);
            let open_from = |from| match marks {
                Some(marks) => marks.open_from(offer, from),
                None => offer.first_from(from),
            };
            let mut at = open_from(from);
            let mut passed = if spread { 0 } else { PROPOSED_MAX };
            while let Some(due) = at.filter(|due| *due <= window.to) {
                let again = had.again(candidate, due);
                let leaves = !again && passed < PROPOSED_MAX;
                if leaves && marks.is_some_and(|marks| marks.is_proposed(offer, due)) {
                    passed += 1;
                } else if again || !had.has(candidate, due) {
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
