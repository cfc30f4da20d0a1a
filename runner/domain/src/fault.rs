//! An error in an input, and its position.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One error at one place: an item of `errors` in a problem body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fault {
    /// The place: a JSON pointer (RFC 6901) into the request body. Empty: the whole body.
    pub pointer: String,
    /// What is wrong at this place, and what is allowed.
    pub detail: String,
}

impl Fault {
    /// A fault at a pointer.
    pub fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            detail: detail.into(),
        }
    }

    /// The same fault seen from a document that holds this one below `prefix`.
    pub fn below(mut self, prefix: &str) -> Self {
        self.pointer.insert_str(0, prefix);
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pointer.is_empty() {
            f.write_str(&self.detail)
        } else {
            write!(f, "{}: {}", self.pointer, self.detail)
        }
    }
}

/// Alternatives, as an error lists them: `` `a`, `b` or `c` ``.
pub fn one_of(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

/// One or more errors of an input. Their number is bounded by [`Faults::MAX`], because a hostile input may have a
/// million.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Faults(pub Vec<Fault>);

impl Faults {
    /// How many are kept.
    pub const MAX: usize = 100;

    /// Adds a fault, unless the maximum is reached.
    pub fn push(&mut self, fault: Fault) {
        if self.0.len() < Self::MAX {
            self.0.push(fault);
        }
    }

    /// Adds a fault at a pointer.
    pub fn add(&mut self, pointer: impl Into<String>, detail: impl Into<String>) {
        self.push(Fault::at(pointer, detail));
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `Ok(value)` if nothing is wrong.
    pub fn or<T>(self, value: T) -> Result<T, Faults> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl From<Fault> for Faults {
    fn from(fault: Fault) -> Self {
        Self(vec![fault])
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            fault.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// Escapes a key for use in a JSON pointer.
pub fn pointer_token(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
