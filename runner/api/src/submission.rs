//! Many runs asked for at once. One alone is a [`crate::Submission`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Submission;

/// A batch of submissions for one group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// The submissions, at most 10,000. Each is processed separately.
    #[schemars(length(max = Batch::MAX))]
    pub runs: Vec<Submission>,
}

impl Batch {
    /// The maximum number of runs in one batch.
    pub const MAX: usize = 10_000;
}

/// The result of one submission of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchItem {
    /// The status of this submission: 202, or the status of `problem`.
    pub status: u16,
    /// The id of the created run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Uuid>,
    /// The key of the submission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The id of the run that already exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub existing: Option<String>,
    /// Why no run was created: a problem body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Value>,
}

/// The result of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BatchResults {
    /// The number of runs that were created.
    pub accepted: usize,
    /// One result for each submission, in the order of the request.
    pub items: Vec<BatchItem>,
}
