//! An error in an input, and its position.

use std::fmt;

use schemars::JsonSchema;
use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

/// One error at one place: an item of `errors` in a problem body.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub struct Fault {
    /// The place: a JSON pointer (RFC 6901) into the request body. Empty: the whole body.
    pub pointer: String,
    /// What is wrong at this place, and what is allowed.
    pub detail: String,
    /// If a JSON Schema requires a property that the object at `pointer` lacks: the name of the property.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// By hand: JSON leaves out what is not there, but a format without names of fields needs all of them.
impl Serialize for Fault {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let all = self.missing.is_some() || !serializer.is_human_readable();
        let mut fields = serializer.serialize_struct("Fault", 2 + usize::from(all))?;
        fields.serialize_field("pointer", &self.pointer)?;
        fields.serialize_field("detail", &self.detail)?;
        if all {
            fields.serialize_field("missing", &self.missing)?;
        }
        fields.end()
    }
}

impl Fault {
    /// A fault at a pointer.
    pub fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            detail: detail.into(),
            missing: None,
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A child process answers with faults in a format without names of fields.
    #[test]
    fn a_fault_is_read_as_it_is_written() {
        let plain = Fault::at("/a", "no");
        let lacks = Fault {
            missing: Some("b".into()),
            ..Fault::at("/a", "`b` is required")
        };
        let faults = Faults(vec![lacks.clone(), plain.clone(), lacks.clone()]);
        let bytes = postcard::to_stdvec(&faults).unwrap();
        assert_eq!(postcard::from_bytes::<Faults>(&bytes).unwrap(), faults);
        let text = json!([
            {"pointer": "/a", "detail": "`b` is required", "missing": "b"},
            {"pointer": "/a", "detail": "no"},
            {"pointer": "/a", "detail": "`b` is required", "missing": "b"},
        ]);
        assert_eq!(serde_json::to_value(&faults).unwrap(), text);
        assert_eq!(serde_json::from_value::<Faults>(text).unwrap(), faults);
    }
}
