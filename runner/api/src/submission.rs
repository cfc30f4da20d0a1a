//! Many runs asked for at once. One alone is a [`crate::Submission`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Submission;

/// Runs of one group, asked for at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// The submissions; each is judged by itself.
    #[schemars(length(max = Batch::MAX))]
    pub runs: Vec<Submission>,
}

impl Batch {
    /// How many runs one batch may ask for.
    pub const MAX: usize = 10_000;
}

/// What became of one submission of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchItem {
    /// The status that the submission alone would have been answered with: 202, or that of `problem`.
    pub status: u16,
    /// The run's id, if there is one now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Uuid>,
    /// The submission's key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The id of the run that was there already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub existing: Option<String>,
    /// Why there is no run: a problem body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Value>,
}

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchResults {
    /// How many runs were made.
    pub accepted: usize,
    /// One result for each submission, in their order.
    pub items: Vec<BatchItem>,
}
