//! A schedule in words: how often, and at what time of day.

use heddle_domain::spec::{CronDialect, ScheduleSpec};
use maud::{Markup, html};

use crate::span;
use crate::words::{Arg, Lang};

/// `every day at 02:00`. `None`: there are no words for it.
pub(super) fn said(lang: Lang, written: &ScheduleSpec) -> Option<String> {
    if let Some(cron) = &written.cron {
        return of_cron(lang, cron, written.cron_dialect);
    }
    if let Some(every) = written.every {
        return Some(lang.t("offer-every", &[("span", Arg::from(span::set(lang, every)))]));
    }
    if let Some(after) = written.after {
        return Some(lang.t("after-run", &[("span", Arg::from(span::set(lang, after)))]));
    }
    let daily = written.daily.as_ref()?;
    let at = ("at", Arg::from(daily.at.as_str()));
    Some(match daily.every_days {
        1 => lang.t("every-day-at", &[at]),
        days => lang.t("offer-days-at", &[("n", Arg::from(i64::from(days))), at]),
    })
}

/// The same with the zone whose clocks it follows. A cron expression without words is shown as it was written.
pub(super) fn shown(lang: Lang, written: &ScheduleSpec, zone: &str) -> Option<Markup> {
    let follows_clocks = written.cron.is_some() || written.daily.is_some();
    let words = said(lang, written);
    let text = words.as_deref().or(written.cron.as_deref())?;
    Some(html! {
        @if words.is_some() { (text) } @else { code { (text) } }
        @if follows_clocks { " " (zone) }
    })
}

/// The common forms of a cron expression.
fn of_cron(lang: Lang, text: &str, dialect: CronDialect) -> Option<String> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = match (fields.as_slice(), dialect) {
        ([minute, hour, day, month, weekday], CronDialect::Unix) | (["0", minute, hour, day, month, weekday], _) => {
            [*minute, *hour, *day, *month, *weekday]
        }
        _ => return None,
    };
    let is_any = |field: &str| matches!(field, "*" | "?");
    if !is_any(month) {
        return None;
    }
    let days = (is_any(day), is_any(weekday));
    if days == (true, true)
        && let Some(within_a_day) = of_hours(lang, minute, hour)
    {
        return Some(within_a_day);
    }
    let at = format!("{:02}:{:02}", number(hour, 23)?, number(minute, 59)?);
    let at = ("at", Arg::from(at));
    Some(match days {
        (true, true) => lang.t("every-day-at", &[at]),
        (true, false) => match weekday_of(lang, weekday, dialect)? {
            Days::One(name) => lang.t("every-weekday-at", &[("day", Arg::from(name)), at]),
            Days::Work => lang.t("every-workday-at", &[at]),
        },
        (false, true) => lang.t("every-month-at", &[("n", Arg::from(number(day, 31)?)), at]),
        (false, false) => return None,
    })
}

/// Words for expressions that fire several times on each day.
fn of_hours(lang: Lang, minute: &str, hour: &str) -> Option<String> {
    // `*/7` begins anew in each hour, so its last step is shorter than the others.
    let step = |field: &str, of: i64| {
        let step = field.strip_prefix("*/")?.parse::<i64>().ok()?;
        (step > 1 && of % step == 0).then_some(step)
    };
    if (minute, hour) == ("*", "*") {
        return Some(lang.t("every-minute", &[]));
    }
    if hour == "*"
        && let Some(minutes) = step(minute, 60)
    {
        let every = span::span(lang, minutes * 60_000);
        return Some(lang.t("offer-every", &[("span", Arg::from(every))]));
    }
    let minute = ("minute", Arg::from(number(minute, 59)?));
    match (hour, step(hour, 24)) {
        ("*", _) => Some(lang.t("every-hour-at", &[minute])),
        (_, Some(hours)) => Some(lang.t("every-hours-at", &[("n", Arg::from(hours)), minute])),
        _ => None,
    }
}

/// A field that is a single number.
fn number(field: &str, most: i64) -> Option<i64> {
    field.parse().ok().filter(|n| (0..=most).contains(n))
}

/// Days of the week for which there are words.
enum Days {
    One(String),
    /// The five days from Monday to Friday.
    Work,
}

fn weekday_of(lang: Lang, field: &str, dialect: CronDialect) -> Option<Days> {
    const NAMES: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    // From Sunday, 0.
    let day = |text: &str| {
        let named = NAMES.iter().position(|name| text.eq_ignore_ascii_case(name));
        named.or_else(|| match (dialect, text.parse::<usize>().ok()?) {
            (CronDialect::Unix, n @ 0..=7) => Some(n % 7),
            (CronDialect::Quartz, n @ 1..=7) => Some(n - 1),
            _ => None,
        })
    };
    if let Some((from, to)) = field.split_once('-') {
        return ((day(from)?, day(to)?) == (1, 5)).then_some(Days::Work);
    }
    // The words begin with Monday.
    let words = lang.t("weekday-names", &[]);
    let name = words.split(' ').nth((day(field)? + 6) % 7)?;
    Some(Days::One(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn in_words(lang: Lang, spec: Value) -> Option<String> {
        said(lang, &serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn the_common_schedules_have_words() {
        for (cron, said) in [
            ("* * * * *", Some("every minute")),
            ("*/15 * * * *", Some("every 15 min")),
            ("*/7 * * * *", None),
            ("5 * * * *", Some("every hour at minute 5")),
            ("0 */6 * * *", Some("every 6 hours at minute 0")),
            ("0 2 * * *", Some("every day at 02:00")),
            ("0 30 2 * * ?", Some("every day at 02:30")),
            ("30 2 * * 1", Some("every Monday at 02:30")),
            ("30 2 * * SUN", Some("every Sunday at 02:30")),
            ("30 2 * * 7", Some("every Sunday at 02:30")),
            ("30 2 * * MON-FRI", Some("Monday to Friday at 02:30")),
            ("0 0 1 * *", Some("on day 1 of each month at 00:00")),
            ("0 0 1 1 *", None),
            ("0 0 1 * 1", None),
            ("10 0 2 * * *", None),
            ("@daily", None),
        ] {
            assert_eq!(in_words(Lang::En, json!({ "cron": cron })).as_deref(), said, "{cron}");
        }
        let quartz = json!({"cron": "0 0 2 ? * 2", "cron_dialect": "quartz"});
        assert_eq!(
            in_words(Lang::En, quartz.clone()).as_deref(),
            Some("every Monday at 02:00")
        );
        assert_eq!(in_words(Lang::Zh, quartz).as_deref(), Some("每星期一 02:00"));
        for (spec, said) in [
            (json!({"every": "90s"}), Some("every 1 min 30 s")),
            (json!({"after": "5m"}), Some("5 min after the end of the previous run")),
            (json!({"daily": {"at": "09:30"}}), Some("every day at 09:30")),
            (
                json!({"daily": {"at": "09:30", "every_days": 3}}),
                Some("every 3 days at 09:30"),
            ),
            (json!({"once": {"delay": "1h"}}), None),
        ] {
            assert_eq!(in_words(Lang::En, spec).as_deref(), said);
        }
    }

    #[test]
    fn what_has_no_words_is_shown_as_it_was_written() {
        let shown_as = |spec: Value| {
            let spec: ScheduleSpec = serde_json::from_value(spec).unwrap();
            shown(Lang::En, &spec, "Asia/Shanghai").map(maud::PreEscaped::into_string)
        };
        assert_eq!(
            shown_as(json!({"cron": "0 2 * * *"})).as_deref(),
            Some("every day at 02:00 Asia/Shanghai")
        );
        assert_eq!(
            shown_as(json!({"cron": "0 0 L * *"})).as_deref(),
            Some("<code>0 0 L * *</code> Asia/Shanghai")
        );
        assert_eq!(shown_as(json!({"every": "1h"})).as_deref(), Some("every 1 h"));
        assert_eq!(shown_as(json!({"once": {"delay": "1h"}})), None);
    }
}
