//! The past in spans, in which somebody who wants the newest runs looks one after the other until there are enough.
//!
//! A statement about a span names its first and its last id as constants, so that its plan is of the days in it and no
//! others. One about all days costs as much as there are days before it has read a row: making its plan takes five
//! milliseconds for each sixty.

use chrono::{DateTime, NaiveTime, TimeDelta};
use heddle_domain::Time;
use uuid::Uuid;

use crate::StoreError;
use crate::database::PgSession;

/// Begins to read with plans that are made for what is asked for: those that are made once are of all days.
pub(crate) const BEGIN_ANEW: &str = "BEGIN READ ONLY; SET LOCAL plan_cache_mode = force_custom_plan";

/// Begins to read with plans that the session keeps: for a statement about all days that are kept, whose text leaves the
/// planner one way only. Making its plan costs more than what it finds.
pub(crate) const BEGIN_KEPT: &str = "BEGIN READ ONLY; SET LOCAL plan_cache_mode = force_generic_plan";

/// The same for what an index has in order.
pub(crate) const BEGIN_KEPT_IN_ORDER: &str = "BEGIN READ ONLY; SET LOCAL enable_sort = off; \
    SET LOCAL enable_bitmapscan = off; SET LOCAL plan_cache_mode = force_generic_plan";

/// As [`BEGIN_ANEW`] for several statements, which are to see the same moment, and to read what an index has in order: of what the
/// planner expects little of it would else collect all that there is, and sort it.
pub(crate) const BEGIN_BY_SPANS: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL enable_sort = off; \
    SET LOCAL enable_bitmapscan = off; SET LOCAL plan_cache_mode = force_custom_plan";

/// Ids from `first` on, and before `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: Uuid,
    pub(crate) after: Uuid,
}

/// How many days each span has behind the first one; behind the last of them is all the rest.
/// Each statement has its price, too: two months are six.
const DAYS: [i64; 4] = [1, 3, 11, 48];

/// What is read of a longer span by a statement whose text does not change has a plan that the session keeps: making one
/// for each look costs more than leaving out, each time, the days that are not asked for.
const PLANNED_ANEW: TimeDelta = TimeDelta::days(4);

/// By so much a clock may be ahead and what is made by it still be of today.
const AHEAD: TimeDelta = TimeDelta::hours(1);

impl Span {
    /// Whether its plan is better kept than made for each look.
    pub(crate) fn is_long(&self) -> bool {
        // Today and what is ahead of it are short, though they have no end.
        self.after != Uuid::max()
            && made(self.first)
                .zip(made(self.after))
                .is_some_and(|(from, to)| to - from > PLANNED_ANEW)
    }
}

/// Which plans a transaction makes that began by [`BEGIN_BY_SPANS`] and looks into one span after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Planning {
    kept: bool,
}

impl Planning {
    /// Has the plans of what is read from this span on kept by the session, if the span is long. A statement's text must
    /// leave the planner one way only: it knows none of the values then.
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

/// The first id of an instant's millisecond, as `heddle.uuid_floor` has it.
pub(crate) fn floor(at: Time) -> Uuid {
    let millis = u128::try_from(at.timestamp_millis()).unwrap_or(0);
    Uuid::from_u128(millis << 80)
}

/// When a run was made, as its id has it.
pub(crate) fn made(id: Uuid) -> Option<Time> {
    DateTime::from_timestamp_millis(i64::try_from(id.as_u128() >> 80).ok()?)
}

/// The present as the database has it.
pub(crate) async fn now(session: &mut PgSession) -> Result<Time, StoreError> {
    Ok(sqlx::query_scalar!(r#"SELECT now() AS "now!""#)
        .fetch_one(session)
        .await?)
}

/// All of the past down to `oldest`, the latest span first. The first one begins with the day of `newest`, and has no end:
/// what was made by a clock that is ahead stands in it.
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

/// The same for who looks into each span for each of many groups: what was made by a clock that is far ahead, which is
/// almost never anything and would be ten looks more for each, comes last.
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
        // Ahead of all clocks, and before all of them.
        assert_eq!(spans(Time::UNIX_EPOCH, None).len(), 1);
        assert!(!spans(Time::MIN_UTC, None).is_empty() && !spans(Time::MAX_UTC, None).is_empty());
        let groups = spans_of_groups(now, None);
        assert_eq!(groups[1..6], all[1..]);
        let ahead = floor(at("2026-11-24T06:40:00Z"));
        assert_eq!((groups[0].first, groups[0].after), (all[0].first, ahead));
        assert_eq!((groups[6].first, groups[6].after), (ahead, Uuid::max()));
    }

    #[test]
    fn long_spans_are_told_from_short_ones() {
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
