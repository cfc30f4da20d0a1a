//! Why a page cannot be shown, or a form was refused.

use heddle_domain::Chain;
use heddle_engine::EngineError;
use heddle_store::StoreError;
use serde_json::Value;

/// A status, a sentence, and positions in the input.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) status: u16,
    pub(crate) detail: String,
    /// JSON pointers and what is wrong there.
    pub(crate) errors: Vec<(String, String)>,
    /// The id of the existing object.
    pub(crate) existing: Option<String>,
}

impl Trouble {
    pub(crate) fn new(status: u16, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            errors: Vec::new(),
            existing: None,
        }
    }

    pub(crate) fn not_found() -> Self {
        Self::new(404, "")
    }

    /// The API's error.
    pub(crate) fn of_problem(status: u16, problem: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let errors = problem["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
        Self {
            status,
            detail: text(&problem["detail"]),
            errors: errors
                .iter()
                .map(|error| (text(&error["pointer"]), text(&error["detail"])))
                .collect(),
            existing: problem["existing"].as_str().map(str::to_owned),
        }
    }

    /// All of it in a line or more.
    pub(crate) fn sentence(&self) -> String {
        let mut lines: Vec<String> = self
            .errors
            .iter()
            .map(|(pointer, detail)| format!("{pointer}: {detail}"))
            .collect();
        // If there are several faults, the detail is the first, and how many more there are.
        let told = lines
            .first()
            .is_some_and(|first| self.detail.starts_with(first.as_str()));
        if !told && !self.detail.is_empty() {
            lines.insert(0, self.detail.clone());
        }
        lines.join("\n")
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(_) => Self::new(503, ""),
            error => {
                tracing::error!(error = %Chain(&error), "cannot read the data of a page");
                Self::new(500, "")
            }
        }
    }
}

impl From<EngineError> for Trouble {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Store(error) => error.into(),
            EngineError::Unavailable | EngineError::Overloaded | EngineError::NotComputed(_) => Self::new(503, ""),
            error => {
                tracing::error!(error = %Chain(&error), "cannot read the data of a page");
                Self::new(500, "")
            }
        }
    }
}
