//! Scheduled messages.

use serde::de::DeserializeOwned;

use crate::Failure;

/// A message that has come due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The same when the message is sent again: it makes the handling repeatable.
    pub id: String,
    /// The id of the sender, as its message named it: from 0 to 2^63-1.
    pub sender: u64,
    /// The id of the receiver, as its message named it: from 0 to 2^63-1.
    pub receiver: u64,
    /// The day (`2013-07-01`) or the instant (RFC 3339) at which it is due.
    pub due: String,
    /// The payload, a JSON text.
    pub payload: String,
}

impl Message {
    /// The payload as a type; a payload of another shape fails this message fatally.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_str(&self.payload).map_err(|error| Failure::fatal(format!("payload: {error}")))
    }
}
