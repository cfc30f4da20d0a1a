//! Since when a schedule has been unchanged: its instants are counted from that time.

use heddle_domain::Time;
use heddle_domain::schedule::{Schedule, local};
use heddle_domain::spec::ScheduleSpec;
use serde_json::Value;

use super::zone_of;
use crate::StoreError;

/// Whether a schedule of the spec `after` is unchanged since the spec `before`: its text is the same, and means the
/// same in the time zones of both specs. Disabling and enabling it does not start it anew: `sync` leaves out the
/// disabled time.
pub(crate) fn is_unchanged(name: &str, before: &Value, after: &Value) -> bool {
    let rhythm = |spec: &Value| {
        let mut schedule = spec.get("schedules")?.get(name)?.clone();
        if let Value::Object(fields) = &mut schedule {
            fields.remove("enabled");
        }
        Some(schedule)
    };
    let Some(schedule) = rhythm(after) else {
        return false;
    };
    if rhythm(before).as_ref() != Some(&schedule) {
        return false;
    }
    let (from, to) = (zone_of(before), zone_of(after));
    if from == to {
        return true;
    }
    match (
        serde_json::from_value::<ScheduleSpec>(schedule),
        local::parse_zone(from),
        local::parse_zone(to),
    ) {
        (Ok(schedule), Ok(from), Ok(to)) => !Schedule::is_moved(&schedule, from, to),
        _ => false,
    }
}

/// Since when a schedule has been unchanged; `None`: no such time is recorded.
pub(super) fn anchor_of(revision: i64, anchors: &Value, name: &str) -> Result<Option<Time>, StoreError> {
    let Some(anchor) = anchors.get(name) else {
        return Ok(None);
    };
    match anchor.as_str().and_then(|anchor| anchor.parse().ok()) {
        Some(anchor) => Ok(Some(anchor)),
        None => {
            let found = format!("{anchor} for schedule {name}");
            Err(StoreError::unreadable("revisions", "schedule_anchors", revision, found))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_zone_starts_anew_what_it_moves() {
        let spec = |zone: &str, schedule: &Value| json!({"timezone": zone, "schedules": {"s": schedule}});
        for (schedule, goes_on) in [
            (json!({"every": "1h", "misfire": "all"}), true),
            (json!({"every": "1h", "anchor": "2026-01-01T00:00:00Z"}), true),
            (json!({"every": "1h", "anchor": "2026-01-01"}), false),
            (json!({"after": "1h"}), true),
            (json!({"after": "1h", "ends_at": "2027-01-01T00:00:00"}), false),
            (json!({"once": {"delay": "1h"}}), true),
            (json!({"once": {"at": "2026-01-01T00:00:00Z"}}), true),
            (json!({"once": {"at": "2026-01-01T00:00:00"}}), false),
            (json!({"cron": "0 * * * *"}), false),
            (json!({"cron": "0 * * * *", "timezone": "UTC"}), true),
            (json!({"daily": {"every_days": 1, "at": "08:00"}}), false),
        ] {
            let (before, after) = (spec("UTC", &schedule), spec("Asia/Shanghai", &schedule));
            assert_eq!(is_unchanged("s", &before, &after), goes_on, "{schedule}");
            // Without a zone it is UTC.
            let unsaid = json!({"schedules": {"s": with_enabled(&schedule, false)}});
            assert!(is_unchanged("s", &before, &unsaid), "{schedule}");
            assert_eq!(is_unchanged("s", &unsaid, &after), goes_on, "{schedule}");
        }
        let (before, after) = (json!({"every": "1h"}), json!({"every": "2h"}));
        assert!(!is_unchanged("s", &spec("UTC", &before), &spec("UTC", &after)));
        assert!(!is_unchanged("s", &json!({}), &spec("UTC", &after)));
    }

    fn with_enabled(schedule: &Value, enabled: bool) -> Value {
        let mut schedule = schedule.clone();
        schedule["enabled"] = json!(enabled);
        schedule
    }
}
