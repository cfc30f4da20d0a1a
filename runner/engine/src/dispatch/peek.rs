//! What a poll would give a user, without giving it; and for each offer to the user, the reason why the user gets it or
//! not.
//!
//! A peek does what a poll does: the same look, the same choice, and the same statements, which are then rolled back.
//! So the answer is right at that moment only. The reasons for the offers are computed afterwards from what this node
//! knows, which includes the refusals of the peek itself.
//!
//! Until the rollback, these statements lock the occurrence that polls want, and use a connection of polls, for one
//! user instead of for hundreds. Programs may peek as often as they can; they must not delay polls. So a node runs two
//! peeks at a time, and each proposes fewer occurrences than a poll may.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use heddle_domain::Time;
use heddle_domain::dispatch::{Why, Window};
use heddle_store::assignment::AssignmentRow;
use heddle_store::offer::OfferTo;

use super::cache::Candidate;
use super::seek::{self, Had, How, INSTANT, Sought};
use super::{DispatchError, Dispatcher, Offers};

/// How many peeks a node runs at a time, and how long others wait for a slot.
pub(super) const PEEKS_MAX: usize = 2;
const WAIT_MAX: Duration = Duration::from_secs(1);

/// For how long a peek proposes occurrences.
const PEEK_MAX: Duration = Duration::from_secs(5);

/// How many offers a peek lists.
pub const PEEKED_MAX: usize = 200;

/// How long a past offer with a single instant is listed.
const SHOWN_FOR: chrono::TimeDelta = chrono::TimeDelta::days(7);

/// An offer to a user.
#[derive(Clone, Debug)]
pub struct Considered {
    pub offer: String,
    /// The audience by which the offer is the user's.
    pub audience: String,
    /// The verdict on the offer.
    pub why: Why,
    /// The occurrence that `why` is about: the one that is given, the one that comes after another offer, or the first
    /// one that the user has had or that is exhausted.
    pub occurrence: Option<Time>,
    /// When it is next due after now.
    pub next: Option<Time>,
}

/// What a poll would answer.
#[derive(Clone, Debug)]
pub struct Peek {
    /// What the user would get; `true`: the user holds it already. If not, its id and its start are invented.
    pub given: Option<(Box<AssignmentRow>, bool)>,
    /// If there is nothing: when something is next due.
    pub next: Option<Time>,
    /// What is due within this window may be given.
    pub window: Window,
    /// The user, and the groups of the user.
    pub audiences: Vec<String>,
    /// The offers to these audiences: first those that are due, then by their next due instant.
    pub offers: Vec<Considered>,
    /// There are more offers than are listed.
    pub more: bool,
}

impl Dispatcher {
    /// What a poll of a user would answer now.
    pub async fn peek(&self, uid: &str) -> Result<Peek, DispatchError> {
        let dispatch = &self.dispatch;
        let permit = tokio::time::timeout(WAIT_MAX, dispatch.peeks.acquire()).await;
        let Ok(Ok(_permit)) = permit else {
            return Err(DispatchError::Peeks);
        };
        let (given, next) = match self.seek(uid, How::Peek, seek::patience(PEEK_MAX)).await? {
            Sought::Given(row, held) => (Some((row, held)), None),
            Sought::Nothing(nothing) => (None, nothing.next),
        };
        let facts = dispatch.batches.read_user(uid).await?;
        let cells = dispatch.cache.cells(uid, &facts.groups);
        let window = Window::new(facts.last_finished, dispatch.node.now(), dispatch.config.horizon);
        let had = Had {
            before: facts.had.iter().copied().collect(),
            refused: HashSet::new(),
        };
        let mut known = Vec::with_capacity(cells.len());
        for cell in cells.iter() {
            known.push(dispatch.offers_of(cell).await?);
        }
        let candidates: HashMap<i64, (&Offers, &Candidate)> = known
            .iter()
            .flat_map(|offers| offers.candidates.iter().map(move |one| (one.id, (&**offers, one))))
            .collect();
        let audiences: Vec<String> = cells.iter().map(|cell| cell.audience.to_string()).collect();
        let since = window.to - SHOWN_FOR;
        let rows = dispatch
            .node
            .store
            .offers_to(&audiences, since, PEEKED_MAX as i64 + 1)
            .await?;
        let mut all: Vec<Considered> = rows
            .into_iter()
            .map(|row| {
                let mut one = match candidates.get(&row.id) {
                    Some((offers, candidate)) => consider(offers, candidate, &had, window),
                    None => left_out(&row, &had, window),
                };
                let row = given.as_ref().map(|(row, _)| &**row);
                if let Some(row) = row.filter(|row| row.offer == one.offer && row.audience == one.audience) {
                    one.why = Why::Given;
                    one.occurrence = Some(row.occurrence);
                }
                one
            })
            .collect();
        all.sort_by_key(|one| {
            let at = match one.why {
                Why::NotDue | Why::Passed => one.next,
                _ => one.occurrence,
            };
            (one.why as u8, at.is_none(), at)
        });
        let more = all.len() > PEEKED_MAX;
        all.truncate(PEEKED_MAX);
        Ok(Peek {
            given,
            next,
            window,
            audiences,
            offers: all,
            more,
        })
    }
}

/// The reason for an offer that a choice does not consider: it is disabled, or does not repeat and was exhausted or
/// long past when the node read the offers.
fn left_out(row: &OfferTo, had: &Had, window: Window) -> Considered {
    let past = row.starts_at <= window.to;
    let (why, occurrence) = if !row.enabled {
        (Why::Disabled, None)
    } else if !row.once || !past {
        // The offer is new: this node reads it at the next poll.
        (if past { Why::Behind } else { Why::NotDue }, None)
    } else if had.before.contains(&(row.id, row.starts_at)) {
        (Why::Had, Some(row.starts_at))
    } else if row.starts_at < window.from {
        (Why::Passed, Some(row.starts_at))
    } else {
        (Why::Exhausted, Some(row.starts_at))
    };
    Considered {
        offer: row.name.clone(),
        audience: row.audience.clone(),
        why,
        occurrence,
        next: (row.enabled && row.once && !past).then_some(row.starts_at),
    }
}

/// The reason for an offer, as far as this node knows it. Like a choice, it skips what the user has had.
fn consider(offers: &Offers, candidate: &Candidate, had: &Had, window: Window) -> Considered {
    let offer = &candidate.offer;
    let from = if candidate.of_task {
        offer.starts_at
    } else {
        window.from
    };
    let due = |from| offer.first_from(from).filter(|at| *at <= window.to);
    let next = offer.next_after(window.to);
    let marks = offers.marks.lock();
    let open_from = |from| {
        let at = match marks.get(&candidate.id) {
            Some(marks) => marks.open_from(offer, from),
            None => offer.first_from(from),
        };
        at.filter(|at| *at <= window.to)
    };
    let mut open = open_from(from);
    let first_open = open;
    while let Some(at) = open.filter(|at| !had.again(candidate, *at) && had.has(candidate, *at)) {
        open = open_from(at + INSTANT);
    }
    let (why, occurrence) = match (open, first_open, due(from)) {
        (Some(at), _, _) => (Why::Behind, Some(at)),
        (None, Some(at), _) => (Why::Had, Some(at)),
        (None, None, Some(at)) if had.before.contains(&(candidate.id, at)) => (Why::Had, Some(at)),
        (None, None, Some(at)) => (Why::Exhausted, Some(at)),
        (None, None, None) if next.is_some() => (Why::NotDue, None),
        (None, None, None) => (Why::Passed, None),
    };
    Considered {
        offer: candidate.name.clone(),
        audience: offers.audience.clone(),
        why,
        occurrence,
        next,
    }
}
