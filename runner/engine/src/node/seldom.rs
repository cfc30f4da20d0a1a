//! Lines of the log about what passes by itself: a database that is away, full or read-only.
//!
//! Then the same place fails again and again, hundreds of times a second on a busy node. The first line says all that
//! people need, and the others would hide everything else. So each place writes a line at once, and then at most one in
//! [`EVERY`], with the number of lines that it left out.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How often a place writes a line at most.
const EVERY: Duration = Duration::from_secs(10);

/// When a place wrote its last line, and how many it has left out since.
#[derive(Clone, Copy, Debug)]
struct Written {
    at: Instant,
    omitted: u64,
}

/// The places that have written a line. Their names are constants of the program, so there are only a few.
#[derive(Debug)]
struct Places(Mutex<BTreeMap<&'static str, Written>>);

impl Places {
    const fn new() -> Self {
        Self(parking_lot::const_mutex(BTreeMap::new()))
    }

    fn line_due(&self, place: &'static str, now: Instant) -> Option<u64> {
        let mut places = self.0.lock();
        match places.get_mut(place) {
            Some(written) if now.saturating_duration_since(written.at) < EVERY => {
                written.omitted += 1;
                None
            }
            known => {
                let omitted = known.map_or(0, |written| written.omitted);
                places.insert(place, Written { at: now, omitted: 0 });
                Some(omitted)
            }
        }
    }
}

static PLACES: Places = Places::new();

/// Whether a place writes a line of the log now: the number of lines that it has left out since the last one. `None`:
/// this one is left out, too, and may be written for developers (`debug`).
pub fn line_due(place: &'static str) -> Option<u64> {
    PLACES.line_due(place, Instant::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_writes_one_line_and_then_one_in_a_while() {
        let (places, begin) = (Places::new(), Instant::now());
        let at = |seconds: u64, place| places.line_due(place, begin + Duration::from_secs(seconds));
        assert_eq!(at(0, "a"), Some(0), "the first line is written at once");
        assert_eq!([at(0, "a"), at(5, "a"), at(9, "a")], [None; 3]);
        assert_eq!(at(5, "b"), Some(0), "another place has its own first line");
        assert_eq!(at(10, "a"), Some(3), "it says how many are missing");
        assert_eq!([at(11, "a"), at(14, "b")], [None; 2]);
        // Of an earlier failure: what was left out is not forgotten.
        assert_eq!(at(1_000, "a"), Some(1));
        assert_eq!(at(1_100, "a"), Some(0));
    }
}
