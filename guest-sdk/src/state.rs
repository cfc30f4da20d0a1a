//! Key/value state of the group, read as of now, written when this attempt succeeds and only then.
//!
//! Keys have 1 to 256 bytes, values up to 64 KiB of JSON. Reads see this attempt's own writes.
//!
//! ```
//! # let host = heddle::testing::Host::new();
//! # fn count() -> Result<u64, heddle::Failure> {
//! let seen = heddle::state::get::<u64>("seen")?;
//! let next = seen.as_ref().map_or(1, |entry| entry.value + 1);
//! heddle::state::compare_and_set("seen", seen.map(|entry| entry.version), &next)?;
//! # Ok(next)
//! # }
//! # assert_eq!(count().unwrap(), 1);
//! # assert_eq!(host.state("seen"), Some(heddle::json!(1)));
//! ```

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, host};

/// A value, and which of its writes it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<T> {
    /// The value as it was read, in the type that the caller asks for.
    pub value: T,
    /// Grows with each write of the key, also when it is deleted and written again. Where the attempt itself makes the
    /// key, the version that others will see is another one.
    pub version: u64,
}

/// The key's value, if it has one.
pub fn get<T: DeserializeOwned>(key: &str) -> Result<Option<Entry<T>>, Error> {
    let Some((text, version)) = host::state_get(key).map_err(fatal)? else {
        return Ok(None);
    };
    let value = serde_json::from_str(&text).map_err(|error| fatal(format!("the value of `{key}`: {error}")))?;
    Ok(Some(Entry { value, version }))
}

/// Writes, whatever the current value is.
pub fn set(key: &str, value: &impl Serialize) -> Result<(), Error> {
    host::state_set(key, &to_json(value)?).map_err(fatal)
}

/// Writes only if the key still has this version (`None`: does not exist) when the attempt's outcome is recorded.
/// Otherwise nothing of the attempt is written, and it fails retryably. Fails at once if that is already certain.
pub fn compare_and_set(key: &str, expected: Option<u64>, value: &impl Serialize) -> Result<(), Error> {
    // Somebody was faster: the next attempt reads what they wrote.
    host::state_compare_and_set(key, expected, &to_json(value)?).map_err(|message| Error::retryable("state", message))
}

/// Removes the key; fine if it does not exist.
pub fn delete(key: &str) -> Result<(), Error> {
    host::state_delete(key).map_err(fatal)
}

fn to_json(value: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|error| fatal(error.to_string()))
}

fn fatal(message: String) -> Error {
    Error::fatal("state", message)
}
