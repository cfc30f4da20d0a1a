//! Lists come in pages.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "{T}List")]
pub struct List<T> {
    /// The things on this page, at most `limit` of them.
    pub items: Vec<T>,
    /// What `cursor` has to be for the next page; null on the last one.
    pub next_cursor: Option<String>,
}
