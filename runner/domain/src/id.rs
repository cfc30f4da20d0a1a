//! Identifiers. Runs have UUIDv7 (RFC 9562): ordered by the millisecond of their creation, which the partitions of
//! the history and the cursors of lists rely on.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Time;

/// Makes a UUIDv7 of an instant and random bits.
pub fn uuid_v7(at: Time, bits: u128) -> Uuid {
    let millis = at.timestamp_millis().max(0) as u64;
    let random = bits.to_be_bytes();
    let mut ten = [0u8; 10];
    ten.copy_from_slice(&random[..10]);
    uuid::Builder::from_unix_timestamp_millis(millis, &ten).into_uuid()
}

/// The same, where of two ids of one millisecond the one with the lower number `nth` is smaller. (The number takes 32 of the
/// 74 bits that are random otherwise.)
pub fn uuid_v7_nth(at: Time, nth: u32, bits: u128) -> Uuid {
    // After the milliseconds: 4 bits for the version and 12, 2 bits for the variant and 62.
    let low = (bits as u64) & ((1 << 42) - 1);
    let ordered = (u128::from(nth) << 42) | u128::from(low);
    let (first, second) = (ordered >> 62, ordered & ((1 << 62) - 1));
    uuid_v7(at, ((first << 64) | second) << 48)
}

/// The instant (to the millisecond) that is written in a UUIDv7; `None` for other versions.
pub fn uuid_v7_time(id: Uuid) -> Option<Time> {
    (id.get_version_num() == 7)
        .then(|| chrono::DateTime::from_timestamp_millis((id.as_u128() >> 80) as i64))
        .flatten()
}

/// The smallest UUIDv7 of an instant's millisecond: where its partition, or a list from that time, begins.
pub fn uuid_v7_floor(at: Time) -> Uuid {
    uuid_v7(at, 0)
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub Uuid);

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_one_millisecond_are_in_the_order_of_their_positions() {
        let at = chrono::DateTime::from_timestamp_millis(1_700_000_000_123).unwrap();
        let all = [
            0,
            1,
            2,
            63,
            64,
            4_095,
            1 << 14,
            (1 << 20) - 1,
            1 << 20,
            1 << 30,
            u32::MAX,
        ];
        let ids: Vec<Uuid> = all
            .iter()
            .enumerate()
            // By their random bits, the two ids would be in the opposite order.
            .map(|(index, nth)| uuid_v7_nth(at, *nth, u128::MAX - index as u128))
            .collect();
        assert!(
            ids.is_sorted() && ids.windows(2).all(|pair| pair[0] != pair[1]),
            "{ids:?}"
        );
        assert!(
            ids.iter()
                .all(|id| uuid_v7_time(*id) == Some(at) && *id >= uuid_v7_floor(at))
        );
        assert_ne!(uuid_v7_nth(at, 1, 1), uuid_v7_nth(at, 1, 2), "what is left is random");
        let later = at + chrono::TimeDelta::milliseconds(1);
        assert!(uuid_v7_nth(later, 0, 0) > uuid_v7_nth(at, u32::MAX, u128::MAX));
    }
}
