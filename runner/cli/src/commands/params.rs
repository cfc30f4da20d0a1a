//! Params on the command line.

use std::path::Path;

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value};

use crate::document;
use crate::exit::usage;

/// Params of a run, or of a script that is tried.
#[derive(Args, Debug, Default)]
pub struct Params {
    /// Params as a JSON object, or @FILE for a JSON or YAML file (@- is stdin)
    #[arg(short, long, value_name = "JSON")]
    pub params: Option<String>,
    /// A single param: NAME=VALUE. If VALUE is JSON, it is used as JSON, otherwise as a string. Can be repeated
    #[arg(long = "param", value_name = "NAME=VALUE")]
    pub param: Vec<String>,
}

impl Params {
    /// Whether there are any.
    pub(super) fn is_given(&self) -> bool {
        self.params.is_some() || !self.param.is_empty()
    }

    /// The file that they are read from.
    pub(super) fn file(&self) -> Option<&str> {
        self.params.as_deref()?.strip_prefix('@').filter(|file| *file != "-")
    }

    /// All params: the object of `--params`, in which each `--param` replaces a field.
    pub(crate) fn read(&self) -> Result<Map<String, Value>> {
        let mut all = match &self.params {
            Some(text) => object(text, "--params")?,
            None => Map::new(),
        };
        for pair in &self.param {
            let (name, value) = pair_of(pair, "--param", "NAME=VALUE")?;
            all.insert(
                name.to_owned(),
                serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.into())),
            );
        }
        Ok(all)
    }
}

pub(super) fn object(text: &str, option: &str) -> Result<Map<String, Value>> {
    let value = match text.strip_prefix('@') {
        Some(file) => document::read_value(Path::new(file))?,
        None => serde_json::from_str(text).map_err(|error| usage(format!("{option}: {error}")))?,
    };
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(usage(format!(
            "{option}: must be a JSON object, for example '{{\"table\": \"orders\"}}'"
        ))),
    }
}

pub(super) fn pair_of<'a>(text: &'a str, option: &str, form: &str) -> Result<(&'a str, &'a str)> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name, value)),
        _ => Err(usage(format!("{option} {text}: write {form}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn single_params_win_and_keep_their_type() {
        let params = Params {
            params: Some("{\"a\": 1, \"b\": 2}".into()),
            param: ["a=x y", "c=3", "d={\"e\":null}", "f=", "g=a=b"]
                .map(String::from)
                .into(),
        };
        let wanted = json!({"a": "x y", "b": 2, "c": 3, "d": {"e": null}, "f": "", "g": "a=b"});
        assert_eq!(Value::Object(params.read().unwrap()), wanted);
    }

    #[test]
    fn a_pair_is_written_as_the_help_says() {
        assert_eq!(pair_of("a=b=c", "--label", "NAME=VALUE").unwrap(), ("a", "b=c"));
        let said = pair_of("hello", "--task-params", "TASK=JSON").unwrap_err().to_string();
        assert_eq!(said, "--task-params hello: write TASK=JSON");
    }

    #[test]
    fn params_that_are_no_object_are_refused_with_an_example() {
        for bad in ["[1]", "{", "@/no/such/file"] {
            let said = Params {
                params: Some(bad.into()),
                param: vec![],
            }
            .read()
            .unwrap_err();
            assert_eq!(crate::exit::code(&said), crate::exit::USAGE, "{said}");
        }
    }
}
