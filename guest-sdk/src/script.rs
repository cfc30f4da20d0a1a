//! A script as Heddle calls it: JSON in, JSON out. The macros implement these traits; tests may call them.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::{Failure, Message};

/// A script for the world `heddle:task/task`.
pub trait Task {
    /// What the script says of itself when it is uploaded.
    fn describe() -> Description;

    /// Runs it with params as JSON; answers with its output as JSON.
    fn run(params: &str) -> Result<String, Failure>;
}

/// A script for the world `heddle:task/consumer`.
pub trait Consumer {
    /// What the script says of itself when it is uploaded.
    fn describe() -> Description;

    /// Handles a batch; one outcome per message, in the same order.
    fn handle(topic: &str, batch: Vec<Message>) -> Result<Outcomes, Failure>;
}

/// One outcome per message, in the same order.
pub type Outcomes = Vec<Result<(), Failure>>;

/// What a consumer may return.
pub trait IntoOutcomes {
    /// Outcomes by message, or the failure of them all.
    fn into_outcomes(self) -> Result<Outcomes, Failure>;
}

impl IntoOutcomes for Outcomes {
    fn into_outcomes(self) -> Result<Outcomes, Failure> {
        Ok(self)
    }
}

impl<E: Into<Failure>> IntoOutcomes for Result<Outcomes, E> {
    fn into_outcomes(self) -> Result<Outcomes, Failure> {
        self.map_err(Into::into)
    }
}

/// What a script says of itself when it is uploaded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    description: String,
    params: Option<Value>,
    defaults: Map<String, Value>,
}

impl Description {
    /// Of a script without parameters.
    pub fn new(description: &str) -> Self {
        Self {
            description: description.to_owned(),
            ..Self::default()
        }
    }

    /// Derives the schema of the params (JSON Schema, draft 2020-12), and the defaults that it knows.
    pub fn set_params<P: JsonSchema>(&mut self) {
        let schema = SchemaSettings::draft2020_12()
            .into_generator()
            .into_root_schema_for::<P>()
            .to_value();
        for (name, property) in schema
            .get("properties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            // An absent `Option` defaults to null; saying so would only show people nulls.
            if let Some(default) = property.get("default").filter(|default| !default.is_null()) {
                self.defaults.insert(name.clone(), default.clone());
            }
        }
        self.params = Some(schema);
    }

    /// Adds defaults, over those that the schema knows. Panics if they are no JSON object: that is a mistake in the
    /// script, seen at its first test or upload.
    pub fn set_defaults(&mut self, defaults: &impl Serialize) {
        match serde_json::to_value(defaults) {
            Ok(Value::Object(defaults)) => self
                .defaults
                .extend(defaults.into_iter().filter(|(_, value)| !value.is_null())),
            other => panic!("defaults serialise to a JSON object, not {other:?}"),
        }
    }

    /// `{"description", "params", "defaults"}`; members that would be empty are left out.
    pub fn to_json(&self) -> Value {
        let mut all = Map::new();
        if !self.description.is_empty() {
            all.insert("description".into(), self.description.clone().into());
        }
        if let Some(params) = &self.params {
            all.insert("params".into(), params.clone());
        }
        if !self.defaults.is_empty() {
            all.insert("defaults".into(), self.defaults.clone().into());
        }
        Value::Object(all)
    }
}

/// Reads params. The host has checked them against the schema; what a schema cannot say fails here, fatally.
pub fn read_params<P: DeserializeOwned>(params: &str) -> Result<P, Failure> {
    serde_json::from_str(params).map_err(|error| Failure::fatal(format!("params: {error}")))
}

/// Writes an output; one that is no JSON (a map with keys that are no strings) fails fatally.
pub fn write_output(output: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string(output).map_err(|error| Failure::fatal(format!("output: {error}")))
}
