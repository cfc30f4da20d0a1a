//! The caches of a node: offers by audience, and the users for whom there is nothing.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use heddle_domain::Chain;
use heddle_domain::Time;
use heddle_domain::dispatch::{Offer, OfferKind, OfferSpec};
use heddle_store::exhausted::Exhausted;
use heddle_store::offer::{AudienceOffers, OfferRow};
use parking_lot::Mutex;
use quick_cache::sync::Cache as Bounded;
use tokio::sync::Notify;

use crate::EngineError;

pub(super) type Cached = AudienceOffers;

/// How many users a node remembers as quiet. When there are more, it forgets those who poll least.
const USERS_MAX: usize = 256_000;

/// How many audiences a node remembers: one for each quiet user, and a quarter for groups and for polls under way. (One
/// without offers has some 200 bytes.) When there are more, it forgets those that nobody uses.
///
/// A poll may still use a forgotten cell, so forgetting one that is in use counts as a change of its audience: its users are
/// looked up again. The cells of quiet users are in use, but are not looked up here as long as the users are quiet. So a
/// cache that forgets what was not looked up for the longest time would forget these first.
const CELLS_MAX: usize = USERS_MAX + USERS_MAX / 4;

/// How many of these may be in use. Only if there are more (users are in very many groups, say), a node forgets all of them.
/// Less than [`CELLS_MAX`], so that many new ones have room after the unused ones were searched for.
const CELLS_IN_USE_MAX: usize = CELLS_MAX - CELLS_MAX / 16;

/// Offers beyond the maximum number are not in memory. After this time the audience's offers are read again.
const INCOMPLETE_FOR: chrono::TimeDelta = chrono::TimeDelta::seconds(1);

/// What a cell knows of its audience's offers.
enum Kept {
    Unread,
    /// There were none at this version. Most users have none of their own, so this is small.
    Nothing {
        version: u64,
    },
    Read(Arc<Offers>),
}

pub(crate) struct Cell {
    /// Shared with the key under which the cell is found.
    pub(super) audience: Arc<str>,
    version: AtomicU64,
    /// Notified when the audience's offers, or their stock, have changed.
    pub(super) wakeup: Notify,
    /// Held while the offers are read: other callers wait instead of reading them too.
    pub(super) loading: tokio::sync::Mutex<()>,
    offers: Mutex<Kept>,
}

impl Cell {
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(super) fn current(&self, now: Time) -> Option<Arc<Offers>> {
        let current = self.version();
        match &*self.offers.lock() {
            Kept::Nothing { version } if *version == current => {
                let none = Offers::new(&self.audience, current, Cached::default(), now, now);
                Some(Arc::new(none))
            }
            Kept::Read(offers) if offers.version == current => {
                let is_cut = offers.complete_until.is_some_and(|until| until <= now);
                let is_stale = is_cut && now - offers.read_at > INCOMPLETE_FOR;
                (!is_stale).then(|| offers.clone())
            }
            _ => None,
        }
    }

    pub(super) fn keep(&self, offers: Arc<Offers>) {
        *self.offers.lock() = match offers.candidates.is_empty() && offers.complete_until.is_none() {
            true => Kept::Nothing {
                version: offers.version,
            },
            false => Kept::Read(offers),
        };
    }

    /// Offers of this audience have changed. `changes` counts changes over all audiences, and is raised after the
    /// version: a reader of the count sees the versions that it counts.
    fn bump(&self, changes: &AtomicU64) {
        self.version.fetch_add(1, Ordering::AcqRel);
        changes.fetch_add(1, Ordering::AcqRel);
        self.wakeup.notify_waiters();
    }
}

/// The sum of the audiences' versions: it grows whenever one changes.
pub(super) fn sum(cells: &[Arc<Cell>]) -> u64 {
    cells.iter().map(|cell| cell.version()).sum()
}

/// An offer that may be given.
pub(super) struct Candidate {
    pub(super) id: i64,
    pub(super) name: String,
    pub(super) version: i32,
    pub(super) offer: Offer,
    pub(super) of_task: bool,
}

/// How many stretches of exhausted occurrences a node remembers of an offer. When there are more, it forgets the
/// oldest; polls that reach them learn them again.
const STRETCHES_MAX: usize = 20_000;

/// Which occurrences of an offer have no stock left.
///
/// Successive occurrences form one stretch, so that a search skips a day of exhausted occurrences in one step. Between
/// two stretches there is an occurrence that is open, or was open when the database was last asked.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The last occurrence of each stretch, by its first one.
    stretches: BTreeMap<Time, Time>,
    /// How many proposals of each occurrence the database is deciding for polls of this node.
    proposed: HashMap<Time, u32>,
}

impl Marks {
    /// Adds an exhausted occurrence of the offer.
    fn add(&mut self, offer: &Offer, occurrence: Time) {
        if self.last_of(occurrence).is_some() {
            return;
        }
        let mut first = occurrence;
        let mut last = occurrence;
        if let Some((&start, &end)) = self.stretches.range(..occurrence).next_back()
            && offer.next_after(end) == Some(occurrence)
        {
            first = start;
        }
        if let Some(following) = offer.next_after(occurrence)
            && let Some(end) = self.stretches.remove(&following)
        {
            last = end;
        }
        self.stretches.insert(first, last);
        if self.stretches.len() > STRETCHES_MAX {
            self.stretches.pop_first();
        }
    }

    /// If this occurrence is exhausted: the last one of its stretch.
    fn last_of(&self, occurrence: Time) -> Option<Time> {
        let (_, end) = self.stretches.range(..=occurrence).next_back()?;
        (*end >= occurrence).then_some(*end)
    }

    /// The first occurrence at or after an instant that is not known as exhausted.
    pub(super) fn open_from(&self, offer: &Offer, from: Time) -> Option<Time> {
        let mut at = offer.first_from(from)?;
        while let Some(end) = self.last_of(at) {
            at = offer.next_after(end)?;
        }
        Some(at)
    }

    /// Whether polls of this node have proposed all of an occurrence's stock: if these get it, nothing is left.
    pub(super) fn is_proposed(&self, offer: &Offer, occurrence: Time) -> bool {
        let proposed = self.proposed.get(&occurrence).copied().unwrap_or(0);
        offer.stock.is_some_and(|stock| i64::from(proposed) >= i64::from(stock))
    }
}

/// A proposal that the database is deciding. It counts until this is dropped.
pub(super) struct Proposed<'a> {
    offers: &'a Offers,
    offer: i64,
    occurrence: Time,
}

impl Drop for Proposed<'_> {
    fn drop(&mut self) {
        let mut all = self.offers.marks.lock();
        if let Some(marks) = all.get_mut(&self.offer)
            && let Entry::Occupied(mut count) = marks.proposed.entry(self.occurrence)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// An audience's offers, as of one version.
pub(super) struct Offers {
    pub(super) audience: String,
    pub(super) version: u64,
    pub(super) candidates: Vec<Candidate>,
    pub(super) marks: Mutex<HashMap<i64, Marks>>,
    pub(super) complete_until: Option<Time>,
    /// Exhausted occurrences are known from this instant on, as of `read_at`.
    pub(super) known_from: Time,
    /// Locked while exhausted occurrences are read: other callers wait instead of reading them too.
    pub(super) looking: tokio::sync::Mutex<()>,
    reads: AtomicU64,
    read_at: Time,
}

impl Offers {
    pub(super) fn new(audience: &str, version: u64, read: Cached, reach: Time, now: Time) -> Self {
        let candidates: Vec<Candidate> = read.offers.into_iter().filter_map(readable).collect();
        let known_from = read.exhausted.iter().filter_map(|used| used.cut_at).max();
        let offers = Self {
            audience: audience.to_owned(),
            version,
            candidates,
            marks: Mutex::default(),
            complete_until: read.complete_until,
            known_from: known_from.unwrap_or(reach),
            looking: tokio::sync::Mutex::new(()),
            reads: AtomicU64::new(0),
            read_at: now,
        };
        offers.learn(read.exhausted);
        offers
    }

    /// An occurrence has no stock left.
    pub(super) fn mark(&self, candidate: &Candidate, occurrence: Time) {
        let mut marks = self.marks.lock();
        marks.entry(candidate.id).or_default().add(&candidate.offer, occurrence);
    }

    /// An occurrence is proposed for a user.
    pub(super) fn propose(&self, candidate: &Candidate, occurrence: Time) -> Proposed<'_> {
        let mut marks = self.marks.lock();
        let of_offer = marks.entry(candidate.id).or_default();
        *of_offer.proposed.entry(occurrence).or_default() += 1;
        Proposed {
            offers: self,
            offer: candidate.id,
            occurrence,
        }
    }

    /// Adds occurrences that have no stock, as read from the database.
    pub(super) fn learn(&self, exhausted: Vec<Exhausted>) {
        let mut exhausted: HashMap<i64, Vec<Time>> = exhausted
            .into_iter()
            .map(|used| (used.offer_id, used.occurrences))
            .collect();
        for candidate in &self.candidates {
            let Some(mut occurrences) = exhausted.remove(&candidate.id) else {
                continue;
            };
            occurrences.sort_unstable();
            // The lock is taken anew for each offer, so that other polls can choose in between.
            let mut all = self.marks.lock();
            let marks = all.entry(candidate.id).or_default();
            for occurrence in occurrences {
                // The offer may have changed after this one was taken: it may be no occurrence any more.
                if candidate.offer.first_from(occurrence) == Some(occurrence) {
                    marks.add(&candidate.offer, occurrence);
                }
            }
        }
        self.reads.fetch_add(1, Ordering::AcqRel);
    }

    /// How often the database has been asked which occurrences are exhausted.
    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Acquire)
    }

    /// The ids of all offers that may be given, and how many of these repeat.
    pub(super) fn ids(&self) -> (Vec<i64>, usize) {
        let repeating = self
            .candidates
            .iter()
            .filter(|candidate| candidate.offer.kind != OfferKind::Once);
        let count = repeating.count();
        (self.candidates.iter().map(|candidate| candidate.id).collect(), count)
    }
}

/// An unreadable offer, such as one of a newer build, is left out and logged: the others must not wait for it.
fn readable(row: OfferRow) -> Option<Candidate> {
    candidate(row)
        .inspect_err(|error| {
            tracing::error!(error = %Chain(error), "cannot read an offer; this node does not return it to users");
        })
        .ok()
}

fn candidate(row: OfferRow) -> Result<Candidate, EngineError> {
    let offer = || format!("offer {}", row.name);
    let spec: OfferSpec =
        serde_json::from_value(row.spec).map_err(|error| EngineError::unreadable_in(offer(), error))?;
    let offer = Offer::compile(spec, row.starts_at).map_err(|faults| EngineError::unreadable_in(offer(), faults))?;
    Ok(Candidate {
        id: row.id,
        name: row.name,
        version: row.version,
        offer,
        of_task: row.run.is_some(),
    })
}

/// There is nothing for a user.
pub(super) struct Quiet {
    /// When the next candidate comes due; `None`: there is none.
    pub(super) next: Option<Time>,
    pub(super) until: Time,
    pub(super) members: u64,
    pub(super) versions: u64,
    pub(super) cells: Arc<[Arc<Cell>]>,
}

/// A user who is remembered as quiet.
struct Known {
    quiet: Quiet,
    /// The count of changes when its audiences were last checked, or [`NEVER_READ`].
    changes: AtomicU64,
}

/// Its audiences were not checked since the user was noted. (Changes are counted from 0.)
const NEVER_READ: u64 = u64::MAX;

/// The caches of the dispatcher of a node.
pub(crate) struct Cache {
    cells: Mutex<HashMap<Arc<str>, Arc<Cell>>>,
    /// How many changes the audiences in the cache have had, together.
    changes: AtomicU64,
    quiet: Bounded<Box<str>, Arc<Known>>,
    members: AtomicU64,
    /// Notified when somebody has joined or left any audience.
    pub(super) members_wakeup: Notify,
    marks: AtomicU64,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            cells: Mutex::default(),
            changes: AtomicU64::new(0),
            quiet: Bounded::new(USERS_MAX),
            members: AtomicU64::new(0),
            members_wakeup: Notify::new(),
            marks: AtomicU64::new(0),
        }
    }
}

impl Cache {
    /// Whether there is nothing for a user, and when the next candidate is due. If no audience at all has changed, the
    /// user's own audiences are not checked: an empty poll is one look-up in one map.
    pub(super) fn quiet(&self, uid: &str, now: Time) -> Option<Option<Time>> {
        // The count is read before the versions, so that the next poll notices a change in between.
        let changes = self.changes.load(Ordering::Acquire);
        let known = self.quiet.get(uid)?;
        let quiet = &known.quiet;
        if now >= quiet.until || quiet.members != self.members() {
            return None;
        }
        if known.changes.load(Ordering::Acquire) != changes {
            if quiet.versions != sum(&quiet.cells) {
                return None;
            }
            // Two concurrent polls may store their counts in the wrong order. Then the audiences are checked once more.
            known.changes.store(changes, Ordering::Release);
        }
        Some(quiet.next)
    }

    pub(super) fn set_quiet(&self, uid: &str, quiet: Quiet) {
        let changes = AtomicU64::new(NEVER_READ);
        self.quiet.insert(uid.into(), Arc::new(Known { quiet, changes }));
    }

    /// The cells of a user's audiences.
    pub(super) fn cells(&self, uid: &str, groups: &[String]) -> Arc<[Arc<Cell>]> {
        let mut cells = self.cells.lock();
        if cells.len() > CELLS_MAX {
            self.forget(&mut cells);
        }
        let mut of = |audience: &str| match cells.get(audience) {
            Some(cell) => cell.clone(),
            None => {
                let audience: Arc<str> = audience.into();
                let cell = Arc::new(Cell {
                    audience: audience.clone(),
                    version: AtomicU64::new(0),
                    wakeup: Notify::new(),
                    loading: tokio::sync::Mutex::new(()),
                    offers: Mutex::new(Kept::Unread),
                });
                cells.insert(audience, cell.clone());
                cell
            }
        };
        std::iter::once(of(&format!("uid_{uid}")))
            .chain(groups.iter().map(|group| of(group)))
            .collect()
    }

    /// Makes room for other cells.
    fn forget(&self, cells: &mut HashMap<Arc<str>, Arc<Cell>>) {
        // Nobody can begin to use another one meanwhile: new users find it in the map.
        cells.retain(|_, cell| Arc::strong_count(cell) > 1);
        if cells.len() > CELLS_IN_USE_MAX {
            // Polls that still use these cells have to read again, because later changes do not wake them any more.
            cells.drain().for_each(|(_, cell)| cell.bump(&self.changes));
        }
    }

    /// Offers of an audience have changed, or stock came back.
    pub(super) fn changed(&self, audience: &str) {
        let cell = self.cells.lock().get(audience).cloned();
        if let Some(cell) = cell {
            cell.bump(&self.changes);
        }
    }

    /// Offers of all audiences, and members, may be different.
    pub(super) fn all_changed(&self) {
        self.cells.lock().values().for_each(|cell| cell.bump(&self.changes));
        self.members_changed();
    }

    pub(super) fn members_changed(&self) {
        self.members.fetch_add(1, Ordering::AcqRel);
        self.members_wakeup.notify_waiters();
    }

    pub(super) fn members(&self) -> u64 {
        self.members.load(Ordering::Acquire)
    }

    pub(super) fn marked(&self) {
        self.marks.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn marks(&self) -> u64 {
        self.marks.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn time(text: &str) -> Time {
        text.parse().unwrap()
    }

    fn offer(spec: serde_json::Value) -> Offer {
        let spec: OfferSpec = serde_json::from_value(spec).unwrap();
        Offer::compile(spec, time("2026-11-20T08:00:00Z")).unwrap()
    }

    /// Looks up users who are not known as quiet, and for whom there is nothing; returns how many.
    fn look_up(cache: &Cache, users: std::ops::Range<usize>, now: Time) -> usize {
        let mut looks = 0;
        for user in users {
            let uid = format!("u{user}");
            if cache.quiet(&uid, now).is_some() {
                continue;
            }
            looks += 1;
            let cells = cache.cells(&uid, &[format!("gid_{}", user % 1_000)]);
            let quiet = Quiet {
                next: None,
                until: now + chrono::TimeDelta::minutes(1),
                members: cache.members(),
                versions: sum(&cells),
                cells,
            };
            cache.set_quiet(&uid, quiet);
        }
        looks
    }

    /// Each user has an audience: there is room for those of as many users as are remembered, so these are not looked up again,
    /// however many others have polled once.
    #[test]
    fn many_users_stay_quiet() {
        let now = time("2026-11-20T08:00:00Z");
        let cache = Cache::default();
        let many = USERS_MAX / 2;
        assert_eq!(look_up(&cache, 0..many, now), many);
        assert_eq!(look_up(&cache, 0..many, now), 0);
        // As many as there is room for have polled, and are given something.
        for user in 0..CELLS_MAX {
            drop(cache.cells(&format!("passing{user}"), &[]));
        }
        assert!(cache.cells.lock().len() <= CELLS_MAX + 1);
        assert_eq!(look_up(&cache, 0..many, now), 0);
        cache.changed("uid_u7");
        assert_eq!(look_up(&cache, 0..many, now), 1);
        cache.changed("gid_7");
        assert_eq!(look_up(&cache, 0..many, now), many / 1_000);
        cache.changed("uid_unknown");
        assert_eq!(look_up(&cache, 0..many, now), 0);
    }

    /// When too many are in use, all are forgotten: who uses one notices that it has changed.
    #[test]
    fn a_forgotten_cell_has_changed() {
        let cache = Cache::default();
        let waiting: Vec<_> = (0..=CELLS_MAX)
            .map(|user| cache.cells(&user.to_string(), &[]))
            .collect();
        assert!(waiting.iter().all(|cells| sum(cells) == 0));
        let again = cache.cells("0", &[]);
        assert!(waiting.iter().all(|cells| sum(cells) == 1));
        assert_eq!((sum(&again), cache.cells.lock().len()), (0, 1));
    }

    /// That an audience has no offers is known until it changes.
    #[test]
    fn no_offers_are_remembered() {
        let now = time("2026-11-20T08:00:00Z");
        let cache = Cache::default();
        let cells = cache.cells("u", &[]);
        let cell = &cells[0];
        assert!(cell.current(now).is_none(), "not read yet");
        let read = |version| Arc::new(Offers::new(&cell.audience, version, Cached::default(), now, now));
        cell.keep(read(0));
        let known = cell.current(now + chrono::TimeDelta::days(1)).expect("they were read");
        assert_eq!((known.version, known.candidates.len()), (0, 0));
        cache.changed("uid_u");
        assert!(cell.current(now).is_none(), "they may have changed");
        cell.keep(read(0));
        assert!(cell.current(now).is_none(), "what was read before the change");
        cell.keep(read(1));
        assert!(cell.current(now).is_some());
    }

    /// Successive occurrences are one stretch, in whatever order they are learned.
    #[test]
    fn exhausted_ones_are_passed_at_one_step() {
        let start = time("2026-11-20T08:00:00Z");
        let at = |minute: i64| start + chrono::TimeDelta::minutes(minute);
        let minutely = offer(json!({"audience": "gid_a", "anchor": "2026-11-20T08:00:00Z", "every": "1m"}));
        let orders: [Vec<i64>; 3] = [
            (0..1_000).collect(),
            (0..1_000).rev().collect(),
            (0..1_000).map(|minute| minute * 7 % 1_000).collect(),
        ];
        for order in orders {
            let mut marks = Marks::default();
            for minute in order.into_iter().filter(|minute| *minute != 500) {
                marks.add(&minutely, at(minute));
                marks.add(&minutely, at(minute));
            }
            assert_eq!(marks.stretches.len(), 2);
            for (from, open) in [
                (-5, 500),
                (0, 500),
                (499, 500),
                (500, 500),
                (501, 1_000),
                (2_000, 2_000),
            ] {
                assert_eq!(marks.open_from(&minutely, at(from)), Some(at(open)), "{from}");
            }
            marks.add(&minutely, at(500));
            assert_eq!(marks.stretches.len(), 1);
            assert_eq!(marks.open_from(&minutely, at(0)), Some(at(1_000)));
        }
        let once = offer(json!({"audience": "gid_a", "starts_at": "2026-11-20T08:00:00Z"}));
        let mut marks = Marks::default();
        assert_eq!(marks.open_from(&once, start), Some(start));
        marks.add(&once, start);
        assert_eq!(marks.open_from(&once, start), None);
    }

    /// When there are too many stretches, the oldest are forgotten, not the newest.
    #[test]
    fn the_oldest_are_forgotten() {
        let start = time("2026-11-20T08:00:00Z");
        let at = |second: usize| start + chrono::TimeDelta::seconds(second as i64);
        let secondly = offer(json!({"audience": "gid_a", "anchor": "2026-11-20T08:00:00Z", "every": "1s"}));
        let mut marks = Marks::default();
        for stretch in 0..=STRETCHES_MAX {
            marks.add(&secondly, at(stretch * 2));
        }
        assert_eq!(marks.stretches.len(), STRETCHES_MAX);
        assert_eq!(marks.open_from(&secondly, at(0)), Some(at(0)));
        assert_eq!(marks.open_from(&secondly, at(2)), Some(at(3)));
        assert_eq!(
            marks.open_from(&secondly, at(STRETCHES_MAX * 2)),
            Some(at(STRETCHES_MAX * 2 + 1))
        );
    }
}
