//! All schedules of a group together.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Kind, Schedule, just_after, just_before};
use crate::Time;

/// The schedules of a group, as one sequence of instants: several that name the same instant name it once.
///
/// Data intervals are computed one after the other, in ascending or descending order, and of a hundred schedules hardly
/// one has an instant in between. So each schedule caches the last gap of its grid that was computed: another interval
/// in the same gap costs two comparisons. (This is only a cache: results do not depend on it.)
#[derive(Clone, Debug, Default)]
pub struct Calendar {
    schedules: Vec<Schedule>,
    gaps: Arc<Mutex<Vec<Option<Gap>>>>,
}

/// Two neighbours in a schedule's grid. For each instant after the first, up to the second, the first is the previous
/// one.
#[derive(Clone, Copy, Debug)]
struct Gap {
    before: Option<Time>,
    /// None: there is no other one after `before`.
    next: Option<Time>,
}

impl Gap {
    fn holds(self, at: Time) -> bool {
        self.before.is_none_or(|before| before < at) && self.next.is_none_or(|next| at <= next)
    }

    fn around(schedule: &Schedule, at: Time) -> Self {
        Self {
            before: schedule.preceding(at),
            next: schedule.following(at),
        }
    }
}

impl Calendar {
    /// A calendar of these; leave out disabled ones.
    pub fn new(schedules: impl IntoIterator<Item = Schedule>) -> Self {
        let schedules: Vec<Schedule> = schedules.into_iter().collect();
        Self {
            gaps: Arc::new(Mutex::new(vec![None; schedules.len()])),
            schedules,
        }
    }

    /// Whether there is no schedule at all.
    pub fn is_empty(&self) -> bool {
        self.schedules.is_empty()
    }

    /// Whether some schedule's instants can be computed for any time (cron, every, daily).
    pub fn has_grid(&self) -> bool {
        self.schedules.iter().any(Schedule::has_grid)
    }

    /// Whether some schedule's instants are known only from its runs (after).
    pub fn has_delay(&self) -> bool {
        self.schedules.iter().any(|schedule| schedule.kind() == Kind::After)
    }

    /// How many of its schedules have a grid.
    pub fn schedules_with_grid(&self) -> usize {
        self.schedules.iter().filter(|schedule| schedule.has_grid()).count()
    }

    /// The first live instant strictly after `after`.
    pub fn next_after(&self, after: Time) -> Option<Time> {
        self.schedules
            .iter()
            .filter_map(|schedule| schedule.next_after(after))
            .min()
    }

    /// The last live instant at or before `at`.
    pub fn latest(&self, at: Time) -> Option<Time> {
        self.schedules.iter().filter_map(|schedule| schedule.latest(at)).max()
    }

    /// The last instant within its window at or before `at`, whenever its schedule was created.
    pub fn latest_ever(&self, at: Time) -> Option<Time> {
        self.schedules
            .iter()
            .filter_map(|schedule| schedule.latest_ever(at))
            .max()
    }

    /// The data interval of a logical time: from the previous instant to this one. If no schedule has a previous
    /// instant (`once`, `after`, no schedule), the interval is empty.
    pub fn data_interval(&self, logical_time: Time) -> (Time, Time) {
        self.data_interval_from(None, logical_time)
    }

    /// The same for a group with an earlier instant `previous` that does not follow from its schedules.
    pub fn data_interval_from(&self, previous: Option<Time>, logical_time: Time) -> (Time, Time) {
        let mut gaps = self.gaps.lock().unwrap_or_else(PoisonError::into_inner);
        let start = gaps
            .iter_mut()
            .zip(&self.schedules)
            .filter(|(_, schedule)| schedule.has_grid())
            .filter_map(|(gap, schedule)| {
                let known = gap.filter(|gap| gap.holds(logical_time));
                gap.insert(known.unwrap_or_else(|| Gap::around(schedule, logical_time)))
                    .before
            })
            .chain(previous)
            .max();
        (start.unwrap_or(logical_time), logical_time)
    }

    /// Whether some schedule with a grid names this instant, within its window.
    pub fn names(&self, at: Time) -> bool {
        self.schedules
            .iter()
            .any(|schedule| schedule.has_grid() && schedule.names(at))
    }

    /// How many instants [`Calendar::instants`] has between two, inclusive; `Err`: more than `max`, with their number,
    /// or, if several schedules share instants, with a lower bound.
    pub fn count(&self, from: Time, to: Time, max: u64) -> Result<u64, u64> {
        let counts: Vec<u64> = self
            .schedules
            .iter()
            .map(|schedule| schedule.count(from, to, max))
            .collect();
        let most = counts.iter().copied().max().unwrap_or(0);
        if most > max {
            return Err(most);
        }
        if counts.iter().filter(|count| **count > 0).count() <= 1 {
            return Ok(most);
        }
        let counted = self
            .instants(from, to)
            .take(usize::try_from(max).unwrap_or(usize::MAX).saturating_add(1));
        match counted.count() as u64 {
            count if count > max => Err(count),
            count => Ok(count),
        }
    }

    /// The instants of cron, every and daily schedules from `from` to `to`, both included, in order, whenever the
    /// schedules were created. There may be very many: take as many as you need.
    pub fn instants(&self, from: Time, to: Time) -> impl Iterator<Item = Time> + '_ {
        let grids: Vec<_> = self.schedules.iter().filter(|schedule| schedule.has_grid()).collect();
        let mut heads: Vec<_> = grids.iter().map(|schedule| schedule.within(from, Some(to))).collect();
        std::iter::from_fn(move || {
            let next = heads.iter().flatten().min().copied()?;
            for (head, schedule) in heads.iter_mut().zip(&grids) {
                if *head == Some(next) {
                    *head = schedule.within(just_after(next), Some(to));
                }
            }
            Some(next)
        })
    }

    /// The same instants, the latest first.
    pub fn instants_descending(&self, from: Time, to: Time) -> impl Iterator<Item = Time> + '_ {
        let grids: Vec<_> = self.schedules.iter().filter(|schedule| schedule.has_grid()).collect();
        let before = move |schedule: &Schedule, at: Time| schedule.latest_ever(at).filter(|instant| *instant >= from);
        let mut heads: Vec<_> = grids.iter().map(|schedule| before(schedule, to)).collect();
        std::iter::from_fn(move || {
            let next = heads.iter().flatten().max().copied()?;
            for (head, schedule) in heads.iter_mut().zip(&grids) {
                if *head == Some(next) {
                    *head = before(schedule, just_before(next));
                }
            }
            Some(next)
        })
    }
}
