//! Small pictures: strips of bars, a scale of time. SVG with attributes only, as the policy wants it.

use chrono::{TimeDelta, Timelike};
use chrono_tz::Tz;
use heddle_domain::Time;
use heddle_domain::state::RunState;
use maud::{Markup, html};

use crate::elements::Shown;

/// The class of a state's area.
pub(crate) fn fill(state: impl Shown) -> String {
    format!("f-{}", state.glyph())
}

/// The position of a time on an axis with a width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) from: Time,
    pub(crate) to: Time,
    pub(crate) width: f64,
}

impl Axis {
    pub(crate) fn x(&self, at: Time) -> f64 {
        let whole = (self.to - self.from).num_milliseconds().max(1) as f64;
        let part = (at - self.from).num_milliseconds() as f64;
        (part / whole * self.width).clamp(0.0, self.width)
    }
}

/// Full hours of a zone between two times, every `each` hours.
pub(crate) fn hours(zone: Tz, from: Time, to: Time, each: u32) -> Vec<Time> {
    let mut at = from.with_timezone(&zone);
    at -= TimeDelta::seconds(i64::from(at.minute() * 60 + at.second()))
        + TimeDelta::nanoseconds(i64::from(at.nanosecond()));
    let mut ticks = Vec::new();
    while at.to_utc() <= to && ticks.len() < 100 {
        if at.to_utc() >= from && at.hour().is_multiple_of(each) {
            ticks.push(at.to_utc());
        }
        at += TimeDelta::hours(1);
    }
    ticks
}

/// A strip of bars, oldest first. Each has a state and a duration in milliseconds.
pub(crate) fn strip(bars: &[(RunState, Option<i64>)], label: &str) -> Markup {
    const ROOM: usize = 30;
    const STEP: f64 = 6.0;
    let longest = bars.iter().filter_map(|bar| bar.1).max().unwrap_or(1).max(1) as f64;
    let first = ROOM.saturating_sub(bars.len());
    html! {
        svg.strip viewBox="0 0 182 24" role="img" aria-label=(label) {
            @for (index, (state, millis)) in bars.iter().enumerate() {
                @let height = millis.map_or(6.0, |millis| 4.0 + 20.0 * (millis as f64 / longest).sqrt());
                rect class=(fill(state)) x=(format!("{:.1}", (first + index) as f64 * STEP)) y=(format!("{:.1}", 24.0 - height)) width="4" height=(format!("{height:.1}")) rx="1" {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Time {
        text.parse().unwrap()
    }

    #[test]
    fn an_axis_has_both_ends() {
        let axis = Axis {
            from: at("2026-11-22T00:00:00Z"),
            to: at("2026-11-24T00:00:00Z"),
            width: 100.0,
        };
        assert_eq!(axis.x(at("2026-11-23T00:00:00Z")), 50.0);
        assert_eq!(axis.x(at("2020-01-01T00:00:00Z")), 0.0);
        assert_eq!(axis.x(at("2026-11-25T00:00:00Z")), 100.0);
    }

    #[test]
    fn hours_are_those_of_the_zone() {
        let found = hours(
            chrono_tz::Asia::Kolkata,
            at("2026-11-22T00:10:00Z"),
            at("2026-11-22T12:00:00Z"),
            6,
        );
        // 06:00 and 12:00 there are half past the hour in UTC.
        assert_eq!(found, [at("2026-11-22T00:30:00Z"), at("2026-11-22T06:30:00Z")]);
    }
}
