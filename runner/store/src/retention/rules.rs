//! Which runs are due: days, and how long the runs of each group are kept.

use chrono::{DateTime, Days, NaiveDate, NaiveTime, TimeDelta, Utc};
use heddle_domain::Time;
use heddle_domain::retention::{EndState, GroupRetention, Kept, Retention};
use uuid::Uuid;

/// Up to how many rows a preview counts.
pub const COUNT_MAX: i64 = 1_000_000;
/// Partitions are created from yesterday on; only older ones are dropped.
const OVER_AFTER: TimeDelta = TimeDelta::days(1);

/// The day of ids and of partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(pub NaiveDate);

impl Day {
    pub fn start(self) -> Time {
        DateTime::<Utc>::from_naive_utc_and_offset(self.0.and_time(NaiveTime::MIN), Utc)
    }

    /// The first instant of the next day.
    pub fn end(self) -> Time {
        Self(self.0.checked_add_days(Days::new(1)).unwrap_or(NaiveDate::MAX)).start()
    }

    /// Whether the day ended so long ago that no node creates its partitions again.
    pub fn is_over(self, now: Time) -> bool {
        self.end() + OVER_AFTER <= now
    }

    pub(super) fn ids(self) -> (Uuid, Uuid) {
        (id_floor(self.start()), id_floor(self.end()))
    }
}

/// The smallest id of an instant's millisecond, as in `heddle.uuid_floor`: where partitions begin.
pub(super) fn id_floor(at: Time) -> Uuid {
    let millis = u128::try_from(at.timestamp_millis()).unwrap_or(0);
    Uuid::from_u128(millis << 80)
}

/// Which runs are due: for each group with its own rules, and for the others.
#[derive(Clone, Debug, Default)]
pub struct RunRules {
    /// 0 means all groups without their own rules.
    pub(super) groups: Vec<i64>,
    pub(super) states: Vec<i16>,
    pub(super) runs_micros: Vec<i64>,
    pub(super) logs_micros: Vec<i64>,
    /// Groups that keep some runs for a shorter time than the others.
    pub shorter: Vec<i64>,
    /// The shortest time for which runs are kept by the cluster's rules, and by any rules.
    cluster_min: TimeDelta,
    shorter_min: TimeDelta,
    logs_min: TimeDelta,
}

impl RunRules {
    /// The id before which due runs of a state were created: no run ended before its creation, so later ones need not
    /// be checked.
    pub(super) fn made_before(&self, state: i16, now: Time) -> Uuid {
        let kept = self.states.iter().zip(&self.runs_micros);
        let shortest = kept.filter(|(of, _)| **of == state).map(|(_, micros)| *micros).min();
        let shortest = TimeDelta::microseconds(shortest.unwrap_or(0)) - TimeDelta::milliseconds(1);
        now.checked_sub_signed(shortest).map_or(Uuid::nil(), id_floor)
    }

    /// The cluster's rules, and those of groups that have some.
    pub fn new(cluster: &Retention, groups: &[(i64, GroupRetention)]) -> Self {
        let mut rules = Self {
            cluster_min: TimeDelta::MAX,
            shorter_min: TimeDelta::MAX,
            logs_min: TimeDelta::MAX,
            ..Self::default()
        };
        for state in EndState::ALL {
            let kept = cluster.kept(None, state);
            rules.cluster_min = rules.cluster_min.min(kept.runs.chrono());
            rules.add(0, state, kept);
        }
        for (group, own) in groups {
            let mut shorter = false;
            for state in EndState::ALL {
                let kept = cluster.kept(Some(own), state);
                if kept.runs < cluster.kept(None, state).runs {
                    shorter = true;
                    rules.shorter_min = rules.shorter_min.min(kept.runs.chrono());
                }
                rules.add(*group, state, kept);
            }
            if shorter {
                rules.shorter.push(*group);
            }
        }
        rules
    }

    fn add(&mut self, group: i64, state: EndState, kept: Kept) {
        self.groups.push(group);
        self.states.push(state.state().number());
        self.runs_micros.push(micros(kept.runs.chrono()));
        self.logs_micros.push(micros(kept.logs.chrono()));
        self.logs_min = self.logs_min.min(kept.logs.chrono());
    }

    /// Whether runs of a day may be due by the cluster's rules.
    pub fn may_be_due(&self, day: Day, now: Time) -> bool {
        day.start() < now - self.cluster_min
    }

    /// Whether some logs are kept for a shorter time than their runs.
    pub fn logs_go_first(&self) -> bool {
        self.logs_micros != self.runs_micros
    }

    /// Whether logs of a day may be due.
    pub fn logs_may_be_due(&self, day: Day, now: Time) -> bool {
        day.start() < now - self.logs_min
    }

    /// The instant before which a run of a group with a shorter rule must have been created to be due.
    pub(super) fn shorter_before(&self, now: Time) -> Time {
        now.checked_sub_signed(self.shorter_min).unwrap_or(Time::MIN_UTC)
    }
}

pub(super) fn micros(span: TimeDelta) -> i64 {
    span.num_microseconds().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_its_ids() {
        let day = Day(NaiveDate::from_ymd_opt(2026, 11, 20).unwrap());
        assert_eq!(day.start().to_rfc3339(), "2026-11-20T00:00:00+00:00");
        assert_eq!(day.end().to_rfc3339(), "2026-11-21T00:00:00+00:00");
        let (first, behind) = day.ids();
        assert!(!day.is_over(day.end()) && day.is_over(day.end() + TimeDelta::days(1)));
        assert!(first < behind && behind == Day(day.0.succ_opt().unwrap()).ids().0);
    }

    #[test]
    fn groups_that_keep_less_are_looked_after_by_themselves() {
        let cluster = Retention::default();
        let own = |text: &str| serde_json::from_str::<GroupRetention>(text).unwrap();
        let rules = RunRules::new(
            &cluster,
            &[
                (7, own(r#"{"runs": "1d"}"#)),
                (8, own(r#"{"runs": "1000d", "logs": "2d"}"#)),
            ],
        );
        assert_eq!(rules.shorter, [7]);
        let now = Day(NaiveDate::from_ymd_opt(2026, 11, 20).unwrap()).start();
        assert_eq!(rules.shorter_before(now), now - TimeDelta::days(1));
        let day = |ago: i64| Day((now - TimeDelta::days(ago)).date_naive());
        assert!(rules.may_be_due(day(91), now) && !rules.may_be_due(day(90), now));
        assert!(rules.logs_may_be_due(day(2), now) && !rules.logs_may_be_due(day(1), now));
        assert_eq!(RunRules::new(&cluster, &[]).shorter_before(now), Time::MIN_UTC);
    }
}
