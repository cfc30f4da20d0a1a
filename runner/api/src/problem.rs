//! Problems (RFC 9457).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a request was not done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Problem {
    /// `about:blank`: the status says what kind of problem it is.
    pub r#type: String,
    /// The status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong, and what to do.
    pub detail: String,
    /// Each thing that is wrong with what was sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ProblemFault>,
    /// The id of what is there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub existing: Option<String>,
}

/// One thing that is wrong with what was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProblemFault {
    /// Its place: a JSON pointer (RFC 6901) into what was sent; empty for the whole of it.
    #[schemars(extend("format" = "json-pointer"))]
    pub pointer: String,
    /// What is wrong there, and what would be right.
    pub detail: String,
    /// Of a text, such as a script's source: the line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// The character in that line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The line itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}
