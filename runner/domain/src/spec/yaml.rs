//! Reads YAML with bounds, because a few lines of it may expand to gigabytes (anchors of anchors).

use serde_json::Value;
use serde_saphyr::DuplicateKeyPolicy;

use super::strict::{StrictError, read_strict};
use crate::bounded::{Answer, Stopped, Work, key_of, perform};

/// Why a YAML document gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum YamlError {
    /// It is none, or has a key twice.
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

/// Reads it in this process.
pub(crate) fn read(text: &str) -> Result<Value, StrictError> {
    serde_saphyr::from_str(text).map_err(|error| {
        // The parser's error about a duplicate key does not say in which object: it is read again to find that.
        let lenient = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
        let mut found = None;
        let _ = serde_saphyr::with_deserializer_from_str_with_options(text, lenient, |deserializer| {
            found = read_strict(deserializer).err();
            Ok(())
        });
        match found {
            Some(duplicate @ StrictError::Duplicate(_)) => duplicate,
            _ => StrictError::Malformed(error.to_string()),
        }
    })
}
