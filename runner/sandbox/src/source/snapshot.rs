//! What is kept of an evaluated script.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::fault::SourceFault;

/// What a script says about itself, when its module is evaluated once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Described {
    #[serde(default)]
    pub run: bool,
    /// It exports `handle`: it may consume messages.
    #[serde(default)]
    pub handle: bool,
    #[serde(default)]
    pub description: Option<Value>,
    #[serde(default)]
    pub params: Option<Value>,
    #[serde(default)]
    pub defaults: Option<Value>,
    #[serde(default, skip_serializing)]
    pub(super) error: Option<String>,
    #[serde(default, skip_serializing)]
    pub(super) trace: Option<String>,
    /// The line of the error, if the interpreter reports it.
    #[serde(default, skip_serializing)]
    line: Option<u32>,
    #[serde(default, skip_serializing)]
    column: Option<u32>,
}

/// What is kept of an evaluated script.
pub(crate) struct Snapshot {
    /// The whole memory, or what has changed in it.
    pub memory: Vec<u8>,
    pub described: Described,
}

/// Why the top level of a script left no snapshot.
pub(super) enum NoSnapshot {
    /// The text has an error, which is the answer to who has uploaded it.
    Fault(SourceFault),
    /// Wasmtime stopped it, or the interpreter itself failed.
    Guest(wasmtime::Error),
}

impl From<SourceFault> for NoSnapshot {
    fn from(fault: SourceFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<wasmtime::Error> for NoSnapshot {
    fn from(error: wasmtime::Error) -> Self {
        Self::Guest(error)
    }
}

impl Described {
    /// The error that the interpreter reports, with its position.
    pub fn fault(&self, text: &str) -> Option<SourceFault> {
        let error = self.error.clone()?;
        Some(match (self.line, self.column) {
            (Some(line), column) => SourceFault::on(text, error, line, column.unwrap_or(1)),
            _ => SourceFault::new(error),
        })
    }

    /// Whether it can be a script; `nothing` is the error for one without a function that Heddle calls.
    pub fn check(&self, nothing: &str) -> Result<(), String> {
        if !self.run && !self.handle {
            return Err(nothing.to_owned());
        }
        let is_object = |value: &Option<Value>| value.as_ref().is_none_or(Value::is_object);
        if !is_object(&self.params) {
            return Err("`params` must be a JSON Schema that is an object".into());
        }
        if !is_object(&self.defaults) {
            return Err("`defaults` must be an object".into());
        }
        if !self.description.as_ref().is_none_or(Value::is_string) {
            return Err("`description` must be a string".into());
        }
        Ok(())
    }

    /// In the form of a component's `describe`. A schema from the script itself precedes that of its types.
    pub fn description(&self, of_types: Option<Value>) -> String {
        let mut object = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                object.insert(name.into(), value);
            }
        };
        put("description", self.description.clone());
        put("params", self.params.clone().or(of_types));
        put("defaults", self.defaults.clone());
        Value::Object(object).to_string()
    }
}
