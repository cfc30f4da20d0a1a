//! The past in spans: a search for the newest runs reads one after the other until there are enough.
//!
//! A statement about a span names its first and its last id as constants, so that its plan is for the days of the span
//! only. A statement about all days is expensive before it has read a row: making its plan takes five milliseconds for
//! each sixty days.

use chrono::{DateTime, NaiveTime, TimeDelta};
use heddle_domain::Time;
use uuid::Uuid;

use crate::StoreError;
use crate::database::PgSession;

/// Begins to read with plans that are made for the given values: plans without them would be for all days.
pub(crate) const BEGIN_ANEW: &str = "BEGIN READ ONLY; SET LOCAL plan_cache_mode = force_custom_plan";

/// Begins to read with plans that the session keeps: for a statement about all kept days, whose text leaves the planner
/// only one plan. Making its plan costs more than its results, which are in the order of an index: a plan that was made
/// while a table was nearly empty must not read and sort all of it later.
pub(crate) const BEGIN_KEPT_IN_ORDER: &str = "BEGIN READ ONLY; SET LOCAL enable_sort = off; \
    SET LOCAL enable_bitmapscan = off; SET LOCAL plan_cache_mode = force_generic_plan";

/// As [`BEGIN_ANEW`] for several statements with one snapshot, which read in the order of an index: if the planner
/// expects few rows, it would otherwise collect and sort all of them.
pub(crate) const BEGIN_BY_SPANS: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL enable_sort = off; \
    SET LOCAL enable_bitmapscan = off; SET LOCAL plan_cache_mode = force_custom_plan";

/// Ids from `first` on, and before `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: Uuid,
    pub(crate) after: Uuid,
}

/// How many days each span after the first has; after the last, all the rest is one. Each statement also has a cost;
/// two months take six statements.
const DAYS: [i64; 4] = [1, 3, 11, 48];

/// The maximum difference between the millisecond in an id and the time that its row says for the same moment: a list
/// by that time reads the ids of a period that is longer by this.
pub(crate) const ID_SLACK: TimeDelta = TimeDelta::minutes(1);

/// For a longer span, a statement whose text does not change uses a plan that the session keeps: making one each time
/// costs more than skipping, each time, the days that are not needed.
const PLANNED_ANEW: TimeDelta = TimeDelta::days(4);

/// How far a clock may be ahead so that its runs still count as today's.
pub(crate) const AHEAD: TimeDelta = TimeDelta::hours(1);

impl Span {
    /// Whether its plan should be kept instead of made each time.
    pub(crate) fn is_long(&self) -> bool {
        // Today and the future are short, though they have no end.
        self.after != Uuid::max()
            && made(self.first)
                .zip(made(self.after))
                .is_some_and(|(from, to)| to - from > PLANNED_ANEW)
    }
}

/// The plans of a transaction that began by [`BEGIN_BY_SPANS`] and reads one span after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planning {
    kept: bool,
}

impl Planning {
    /// From this span on, lets the session keep plans, if the span is long. A statement's text must leave the planner
    /// only one plan, because a kept plan does not know the values.
    pub(crate) async fn of(&mut self, session: &mut PgSession, span: Span) -> Result<(), StoreError> {
        if !self.kept && span.is_long() {
            sqlx::raw_sql("SET LOCAL plan_cache_mode = force_generic_plan")
                .execute(session)
                .await?;
            self.kept = true;
        }
        Ok(())
    }
}

/// The first id of an instant's millisecond, as in `heddle.uuid_floor`.
pub(crate) fn floor(at: Time) -> Uuid {
    let millis = u128::try_from(at.timestamp_millis()).unwrap_or(0);
    Uuid::from_u128(millis << 80)
}

/// When a run was created, from its id.
pub(crate) fn made(id: Uuid) -> Option<Time> {
    DateTime::from_timestamp_millis(i64::try_from(id.as_u128() >> 80).ok()?)
}

/// The time at which the current transaction began, by the database's clock.
pub(crate) async fn now(session: &mut PgSession) -> Result<Time, StoreError> {
    Ok(sqlx::query_scalar!(r#"SELECT now() AS "now!""#)
        .fetch_one(session)
        .await?)
}

/// All of the past down to `oldest`, the latest span first. The first one begins with the day of `newest`, and has no
/// end: it includes runs with a clock that is ahead.
pub(crate) fn spans(newest: Time, oldest: Option<Time>) -> Vec<Span> {
    let today = newest.date_naive().and_time(NaiveTime::MIN).and_utc();
    let mut until = floor(today);
    let mut spans = vec![Span {
        first: until,
        after: Uuid::max(),
    }];
    let mut behind = 0;
    for days in DAYS {
        behind += days;
        let first = today
            .checked_sub_signed(TimeDelta::days(behind))
            .map_or(Uuid::nil(), floor);
        spans.push(Span { first, after: until });
        until = first;
    }
    spans.push(Span {
        first: Uuid::nil(),
        after: until,
    });
    let oldest = oldest.map_or(Uuid::nil(), floor);
    spans.retain(|span| span.after > oldest);
    spans
}

/// The same for reading each span for each of many groups: there are almost never runs with a clock that is far ahead,
/// and they would cost ten more statements for each group, so their span comes last.
pub(crate) fn spans_of_groups(newest: Time, oldest: Option<Time>) -> Vec<Span> {
    let mut spans = spans(newest, oldest);
    let ahead = newest.checked_add_signed(AHEAD).map_or(Uuid::max(), floor);
    if let Some(first) = spans.first_mut() {
        first.after = ahead;
    }
    spans.push(Span {
        first: ahead,
        after: Uuid::max(),
    });
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Time {
        text.parse().unwrap()
    }

    #[test]
    fn spans_leave_nothing_out() {
        let now = at("2026-11-24T05:40:00Z");
        let all = spans(now, None);
        assert_eq!((all.len(), all[0].first), (6, floor(at("2026-11-24T00:00:00Z"))));
        assert_eq!((all[0].after, all[5].first), (Uuid::max(), Uuid::nil()));
        assert!(all.windows(2).all(|two| two[1].after == two[0].first), "{all:?}");
        assert_eq!(all[3].first, floor(at("2026-11-09T00:00:00Z")));
        let few = spans(now, Some(at("2026-11-23T00:00:00Z")));
        assert_eq!(few, all[..2]);
        // Before all clocks; after all of them.
        assert_eq!(spans(Time::UNIX_EPOCH, None).len(), 1);
        assert!(!spans(Time::MIN_UTC, None).is_empty() && !spans(Time::MAX_UTC, None).is_empty());
        let groups = spans_of_groups(now, None);
        assert_eq!(groups[1..6], all[1..]);
        let ahead = floor(at("2026-11-24T06:40:00Z"));
        assert_eq!((groups[0].first, groups[0].after), (all[0].first, ahead));
        assert_eq!((groups[6].first, groups[6].after), (ahead, Uuid::max()));
    }

    #[test]
    fn long_spans_are_distinguished_from_short_ones() {
        let now = at("2026-11-24T05:40:00Z");
        let long: Vec<bool> = spans_of_groups(now, None).iter().map(Span::is_long).collect();
        assert_eq!(long, [false, false, false, true, true, true, false]);
    }

    #[test]
    fn an_id_tells_when_it_was_made() {
        let now = at("2026-11-24T05:40:00.123Z");
        assert_eq!(made(floor(now)), Some(now));
        assert!(made(Uuid::max()).is_none_or(|made| made > now));
    }
}
