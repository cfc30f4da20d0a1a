//! Calls that need no module of their own.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, host};

/// The output of a task that this one depends on, directly or indirectly: `null` if it has none, an array for a mapped
/// task.
pub fn upstream<T: DeserializeOwned>(task: &str) -> Result<T, Error> {
    let output = host::upstream(task).map_err(|message| Error::fatal("upstream", message))?;
    serde_json::from_str(&output).map_err(|error| Error::fatal("upstream", format!("the output of `{task}`: {error}")))
}

/// Says how far this attempt has come: `fraction` from 0 to 1, values outside are clamped.
pub fn progress(fraction: f64, note: &str) {
    host::progress(fraction, note);
}

/// Asks for a run of another group, created when this attempt succeeds and only then.
///
/// `params` serialises to a JSON object. `key`, if given, is unique per group: a repeat makes no second run.
pub fn enqueue(group: &str, params: &impl Serialize, key: Option<&str>) -> Result<(), Error> {
    let params = serde_json::to_string(params).map_err(|error| Error::fatal("enqueue", error.to_string()))?;
    host::enqueue(group, &params, key).map_err(|message| Error::fatal("enqueue", message))
}

/// Tells people through a channel, when this attempt succeeds and only then.
pub fn notify(channel: &str, subject: &str, body: &str) -> Result<(), Error> {
    host::notify(channel, subject, body).map_err(|message| Error::fatal("notify", message))
}

/// A secret that the task was granted.
pub fn secret(name: &str) -> Result<String, Error> {
    host::secret(name).map_err(|message| Error::fatal("secret", message))
}
