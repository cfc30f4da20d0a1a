//! Reads YAML with bounds, because a few lines of it may expand to gigabytes (anchors of anchors).

use serde_json::Value;

use super::strict::StrictError;
use crate::bounded::{Answer, Stopped, Work, key_of, perform};

/// Why a YAML document could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum YamlError {
    /// It is no YAML, or has a duplicate key.
    #[error(transparent)]
    Refused(#[from] StrictError),
    /// Reading it was ended.
    #[error("reading the YAML was stopped: {0}")]
    Stopped(Stopped),
}

/// Reads one YAML document, strictly.
pub fn parse_yaml_strict(text: &str) -> Result<Value, YamlError> {
    let work = Work::ReadYaml { text: text.to_owned() };
    let key = key_of(text.as_bytes());
    match perform(work, key, key).map_err(YamlError::Stopped)? {
        Answer::Read(read) => Ok(read.map(Value::from)?),
        _ => Err(YamlError::Stopped(Stopped::Trouble("the YAML was not read".into()))),
    }
}
