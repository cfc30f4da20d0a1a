//! The bounds of one task's fields, and the forms of what they name.

use serde_json::Value;

use crate::template::{Tasks, Templates};
use crate::{Faults, Name};

/// The bounds of `memory`, in bytes.
pub const MEMORY: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 30;
/// The bounds of `max_output`, in bytes.
pub const OUTPUT: std::ops::RangeInclusive<u64> = 1..=8 << 20;
/// The bounds of `max_log`, in bytes.
pub const LOG: std::ops::RangeInclusive<u64> = 0..=64 << 20;
/// The most bytes of constant `for_each` items, as JSON.
pub const ITEMS_MAX_BYTES: usize = 8 << 20;
pub const LOST_MAX: u32 = 1_000;
/// How long the lists of a task may be: hosts, connections, secrets, pools, headers.
pub const LIST_MAX: usize = 100;

/// Checks templates, and the tasks that they name.
pub(crate) struct Checker<'a> {
    pub(super) templates: &'a Templates,
    pub(super) tasks: Tasks<'a>,
}

impl Checker<'_> {
    pub(crate) fn value(&self, value: &Value, pointer: &str, faults: &mut Faults) {
        self.templates.check_value(value, pointer, self.tasks, faults);
    }

    pub(super) fn condition(&self, condition: &str) -> Result<(), String> {
        self.templates.check_condition(condition, self.tasks)
    }
}

/// Reads `name` or `name@version`.
pub fn script_reference(text: &str) -> Result<(Name, Option<u32>), String> {
    let (name, version) = match text.split_once('@') {
        Some((name, version)) => {
            let version: String = version.chars().take(20).collect();
            let number = version.parse::<u32>().ok().filter(|number| *number > 0);
            let number =
                number.ok_or_else(|| format!("`{version}` is not a valid version; versions are numbers from 1"))?;
            (name, Some(number))
        }
        None => (text, None),
    };
    Ok((Name::new(name).map_err(|error| error.to_string())?, version))
}

/// What is wrong with the name of a script alone while none of its versions is active.
pub fn no_active_version(name: &str) -> String {
    format!("script `{name}` has no active version; activate a version, or name one, for example `{name}@1`")
}

/// Whether a text is an absolute `http` or `https` URL with a host.
pub(crate) fn check_url(text: &str) -> Result<(), String> {
    let shown: String = text.chars().take(100).collect();
    match url::Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(()),
        Ok(_) => Err(format!("`{shown}` is not an http or https URL")),
        Err(error) => Err(format!("`{shown}` is not a valid URL: {error}")),
    }
}
