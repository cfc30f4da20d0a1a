//! Time zones for interpreters that read the system's files: the zones of schedules, in the format of such a file
//! (`TZif`, RFC 9636).

use chrono::{DateTime, NaiveDateTime, Offset as _, TimeDelta, TimeZone as _};
use chrono_tz::{OffsetComponents as _, OffsetName as _, Tz};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// The first and the last instant at which a zone may change: 1900 and 2100.
const FIRST: i64 = -2_208_988_800;
const LAST: i64 = 4_102_444_800;
/// The step of the search for changes. A state that lasts less is not found.
const STEP: i64 = 2 * 24 * 3_600;

/// The local time from an instant on: seconds east of UTC, whether it is daylight saving time, its name.
type Local = (i32, bool, String);

/// The names of all zones.
pub(super) fn names() -> Vec<&'static str> {
    chrono_tz::TZ_VARIANTS.iter().map(|zone| zone.name()).collect()
}

/// The file of a zone, by its name. `None`: there is no such zone.
pub(super) fn file(name: &str) -> Option<Arc<[u8]>> {
    static FILES: LazyLock<Mutex<HashMap<Tz, Arc<[u8]>>>> = LazyLock::new(Mutex::default);
    let zone: Tz = name.parse().ok()?;
    if let Some(file) = FILES.lock().get(&zone) {
        return Some(Arc::clone(file));
    }
    let file: Arc<[u8]> = write(zone).into();
    FILES.lock().insert(zone, Arc::clone(&file));
    Some(file)
}

fn local(zone: Tz, at: i64) -> Local {
    let utc = DateTime::from_timestamp(at, 0).map_or(NaiveDateTime::MIN, |at| at.naive_utc());
    let offset = zone.offset_from_utc_datetime(&utc);
    let seconds = offset.fix().local_minus_utc();
    let saves = offset.dst_offset() != TimeDelta::zero();
    (seconds, saves, offset.abbreviation().unwrap_or("LMT").to_owned())
}

/// The changes of a zone: when, and to what.
fn changes(zone: Tz) -> Vec<(i64, Local)> {
    let mut changes: Vec<(i64, Local)> = Vec::new();
    let (mut before, mut known) = (FIRST, local(zone, FIRST));
    while before < LAST {
        let after = before + STEP;
        let then = local(zone, after);
        if then != known {
            // Within the step: the first second with the later state.
            let (mut low, mut high) = (before, after);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                match local(zone, middle) == known {
                    true => low = middle,
                    false => high = middle,
                }
            }
            changes.push((high, then.clone()));
            known = then;
        }
        before = after;
    }
    changes
}

fn write(zone: Tz) -> Vec<u8> {
    let changes = changes(zone);
    // The first kind holds before the first change.
    let mut kinds = vec![local(zone, FIRST)];
    let mut names: Vec<u8> = Vec::new();
    let mut name_offsets = Vec::new();
    for (_, kind) in &changes {
        if !kinds.contains(kind) {
            kinds.push(kind.clone());
        }
    }
    for (_, _, name) in &kinds {
        let zero_ended: Vec<u8> = name.bytes().chain([0]).collect();
        let found = names.windows(zero_ended.len()).position(|part| part == zero_ended);
        name_offsets.push(found.unwrap_or(names.len()) as u8);
        if found.is_none() {
            names.extend_from_slice(&zero_ended);
        }
    }
    let header = |times: usize, kinds: usize, names: usize| {
        let mut header = b"TZif2".to_vec();
        header.resize(20, 0);
        // Of UTC indicators, standard indicators, leap seconds, changes, kinds, characters.
        for count in [0, 0, 0, times, kinds, names] {
            header.extend_from_slice(&(count as u32).to_be_bytes());
        }
        header
    };
    // The part with 32-bit times has only one kind: a reader that knows the second part does not read it.
    let mut file = header(0, 1, 1);
    file.extend_from_slice(&[0; 7]);
    file.extend(header(changes.len(), kinds.len(), names.len()));
    for (at, _) in &changes {
        file.extend_from_slice(&at.to_be_bytes());
    }
    for (_, kind) in &changes {
        let index = kinds.iter().position(|known| known == kind);
        file.push(index.unwrap_or_default() as u8);
    }
    for ((seconds, saves, _), name_offset) in kinds.iter().zip(&name_offsets) {
        file.extend_from_slice(&seconds.to_be_bytes());
        file.push(u8::from(*saves));
        file.push(*name_offset);
    }
    file.extend_from_slice(&names);
    // No rule for the time after the last change.
    file.extend_from_slice(b"\n\n");
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_changes_when_its_clocks_do() {
        let berlin = changes(Tz::Europe__Berlin);
        let spring = "2026-03-29T01:00:00Z"
            .parse::<DateTime<chrono::Utc>>()
            .unwrap()
            .timestamp();
        let found = berlin.iter().find(|(at, _)| *at == spring);
        assert_eq!(found.map(|(_, kind)| kind.clone()), Some((7_200, true, "CEST".into())));
        assert!(changes(Tz::UTC).is_empty());
        for zone in ["Europe/Berlin", "UTC", "Africa/Casablanca", "Asia/Kathmandu"] {
            let file = file(zone).unwrap();
            assert!(file.starts_with(b"TZif2") && file.ends_with(b"\n\n"), "{zone}");
        }
        assert!(file("Mars/Olympus").is_none());
    }

    /// An index of a kind is one byte.
    #[test]
    fn no_zone_has_too_many_kinds() {
        for zone in [
            Tz::Africa__Casablanca,
            Tz::America__Juneau,
            Tz::Antarctica__Casey,
            Tz::Asia__Tbilisi,
        ] {
            let changes = changes(zone);
            let mut kinds: Vec<&Local> = changes.iter().map(|(_, kind)| kind).collect();
            kinds.sort();
            kinds.dedup();
            assert!(kinds.len() < 100 && !changes.is_empty(), "{zone}");
        }
    }
}
