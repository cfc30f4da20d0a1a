//! How many notifications a node sends at the same time, and to whom.
//!
//! Channels and callbacks have separate slots: whoever submits runs chooses the URLs of callbacks, and must not delay
//! what administrators set up. Of the slots of each, a destination has a few. If its last try took long, it is slow, and
//! has one; all slow destinations together have half. So a try to each new destination that hangs costs a slot once for
//! the time of a try, and later ones leave half of the slots to others. Who gives new destinations each time still has
//! only a quarter of the slots: callbacks are also counted by who submitted the run.

use std::collections::BTreeMap;
use std::time::Duration;

use heddle_store::notification::{CALLBACK_PREFIX, owner_of};
use heddle_store::outbox::{DestinationRoom, Room};

/// Notifications of channels that a node sends at once, with test messages.
const CHANNEL_SLOTS: usize = 64;
/// Callbacks to URLs that a node sends at once.
const CALLBACK_SLOTS: usize = 32;
/// Notifications to one destination that a node sends at once.
pub(super) const PER_DESTINATION_MAX: usize = 4;
/// The same, for a slow destination.
const PER_SLOW_MAX: usize = 1;
/// Callbacks for the runs of one submitter that a node sends at once.
const PER_OWNER_MAX: usize = 8;
/// A destination is slow if its last try took so long.
pub(super) const SLOW_AFTER: Duration = Duration::from_secs(10);
/// How many slow destinations a node remembers; it forgets the ones that it has known for the longest time.
const SLOW_MAX: usize = 1_000;

/// The two kinds of destinations, each with slots of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Channels,
    /// URLs that are called back.
    Callbacks,
}

impl Side {
    pub(super) const ALL: [Self; 2] = [Self::Channels, Self::Callbacks];

    fn of(destination: &str) -> Self {
        if destination.starts_with(CALLBACK_PREFIX) {
            Self::Callbacks
        } else {
            Self::Channels
        }
    }

    fn slots(self) -> usize {
        match self {
            Self::Channels => CHANNEL_SLOTS,
            Self::Callbacks => CALLBACK_SLOTS,
        }
    }

    /// Channels have no owner: they share the empty one.
    fn per_owner(self) -> usize {
        match self {
            Self::Channels => CHANNEL_SLOTS,
            Self::Callbacks => PER_OWNER_MAX,
        }
    }
}

/// Slow destinations, each with the number of its entry.
#[derive(Debug, Default)]
pub(super) struct Slow {
    known: BTreeMap<String, u64>,
    entries: u64,
}

impl Slow {
    /// Notes whether the last try to a destination was slow.
    pub(super) fn note(&mut self, destination: &str, is_slow: bool) {
        if !is_slow {
            self.known.remove(destination);
            return;
        }
        self.entries += 1;
        self.known.insert(destination.to_owned(), self.entries);
        if self.known.len() > SLOW_MAX {
            let oldest = self.known.iter().min_by_key(|(_, entry)| **entry);
            if let Some(oldest) = oldest.map(|(destination, _)| destination.clone()) {
                self.known.remove(&oldest);
            }
        }
    }

    fn has(&self, destination: &str) -> bool {
        self.known.contains_key(destination)
    }
}

fn left(of: usize, used: usize) -> i64 {
    of.saturating_sub(used) as i64
}

/// What a node may take of one side, while it is sending to these destinations (one entry for each notification).
pub(super) fn room<'a>(side: Side, sending: impl Iterator<Item = &'a str>, slow: &'a Slow) -> Room {
    let (mut all, mut all_slow) = (0, 0);
    let mut busy: BTreeMap<&str, usize> = BTreeMap::new();
    let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
    for destination in sending.filter(|destination| Side::of(destination) == side) {
        all += 1;
        all_slow += usize::from(slow.has(destination));
        *busy.entry(destination).or_default() += 1;
        *owners.entry(owner_of(destination)).or_default() += 1;
    }
    for destination in slow.known.keys().filter(|destination| Side::of(destination) == side) {
        busy.entry(destination).or_default();
    }
    let destinations = busy.into_iter().map(|(destination, used)| {
        let is_slow = slow.has(destination);
        let most = if is_slow { PER_SLOW_MAX } else { PER_DESTINATION_MAX };
        let room = DestinationRoom {
            free: left(most, used),
            slow: is_slow,
        };
        (destination.to_owned(), room)
    });
    Room {
        callbacks: side == Side::Callbacks,
        limit: left(side.slots(), all),
        slow_limit: left(side.slots() / 2, all_slow),
        of_destination: PER_DESTINATION_MAX as i64,
        of_owner: side.per_owner() as i64,
        destinations: destinations.collect(),
        owners: owners
            .into_iter()
            .map(|(owner, used)| (owner.to_owned(), left(side.per_owner(), used)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use heddle_store::notification::destination_of_callback;

    use super::*;

    fn taking(side: Side, sending: &[&str], slow: &Slow) -> Room {
        room(side, sending.iter().copied(), slow)
    }

    #[test]
    fn callbacks_use_no_slots_of_channels() {
        let hosts: Vec<String> = (0..40).map(|n| format!("://host-{n}/me")).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let slow = Slow::default();
        assert_eq!(taking(Side::Callbacks, &hosts, &slow).limit, 0);
        let channels = taking(Side::Channels, &hosts, &slow);
        assert_eq!((channels.limit, channels.callbacks), (64, false));
        assert!(channels.destinations.is_empty() && channels.owners.is_empty());
        assert_eq!(taking(Side::Callbacks, &["ops", "ops"], &slow).limit, 32);
    }

    #[test]
    fn a_slow_destination_has_one_slot_and_all_of_them_half() {
        let mut slow = Slow::default();
        slow.note("://slow/me", true);
        slow.note("ops", true);
        let room = taking(Side::Callbacks, &["://slow/me", "://good/me"], &slow);
        let of = |destination: &str| room.destinations.get(destination).copied();
        assert_eq!(of("://slow/me"), Some(DestinationRoom { free: 0, slow: true }));
        assert_eq!(of("://good/me"), Some(DestinationRoom { free: 3, slow: false }));
        assert_eq!((room.limit, room.slow_limit, of("ops")), (30, 15, None));
        let idle = taking(Side::Channels, &[], &slow);
        assert_eq!(
            idle.destinations.get("ops"),
            Some(&DestinationRoom { free: 1, slow: true })
        );
        slow.note("ops", false);
        assert!(taking(Side::Channels, &[], &slow).destinations.is_empty());
    }

    #[test]
    fn a_submitter_has_a_quarter_of_the_slots() {
        let room = taking(Side::Callbacks, &["://a/me", "://b/me", "://a/you"], &Slow::default());
        assert_eq!((room.of_owner, room.owners["me"], room.owners["you"]), (8, 6, 7));
        let destination = destination_of_callback("https://Example.com:9/x?y=/z", "team/me");
        assert_eq!(destination, "://example.com:9/team/me");
        assert_eq!((owner_of(&destination), owner_of("ops")), ("team/me", ""));
        assert_eq!(room.destinations["://a/me"].free, 3, "a host of two submitters");
    }

    #[test]
    fn few_slow_destinations_are_remembered() {
        let mut slow = Slow::default();
        slow.note("first", true);
        slow.note("second", true);
        slow.note("first", true);
        for n in 0..SLOW_MAX - 1 {
            slow.note(&format!("hook-{n}"), true);
        }
        assert_eq!(slow.known.len(), SLOW_MAX);
        assert!(slow.has("first") && !slow.has("second"));
    }
}
