//! All schedules of a group together.

use super::{Schedule, just_after, just_before};
use crate::Time;

/// The schedules of a group, as one sequence of instants: several that name the same instant name it once.
#[derive(Clone, Debug, Default)]
pub struct Calendar {
    schedules: Vec<Schedule>,
}

impl Calendar {
    /// A calendar of these; leave out what is disabled.
    pub fn new(schedules: impl IntoIterator<Item = Schedule>) -> Self {
        Self {
            schedules: schedules.into_iter().collect(),
        }
    }

    /// Whether there is no schedule at all.
    pub fn is_empty(&self) -> bool {
        self.schedules.is_empty()
    }

    /// Whether some schedule's instants can be told for any time (cron, every, daily).
    pub fn has_grid(&self) -> bool {
        self.schedules.iter().any(Schedule::has_grid)
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

    /// The data interval of a logical time: from the previous instant to this one. Where no schedule tells a previous
    /// one (`once`, `after`, none at all), it is empty.
    pub fn data_interval(&self, logical_time: Time) -> (Time, Time) {
        let start = self
            .schedules
            .iter()
            .filter_map(|schedule| schedule.preceding(logical_time))
            .max();
        (start.unwrap_or(logical_time), logical_time)
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
