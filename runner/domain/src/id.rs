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
