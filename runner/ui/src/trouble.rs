//! Why a page cannot be shown, or a form was refused.

use std::ops::Deref;

use heddle_api::{Problem, ProblemFault};
use heddle_domain::Chain;
use heddle_engine::EngineError;
use heddle_store::StoreError;

/// A problem: the API's, or one of the pages.
#[derive(Clone, Debug)]
pub(crate) struct Trouble(Problem);

impl Deref for Trouble {
    type Target = Problem;
    fn deref(&self) -> &Problem {
        &self.0
    }
}

impl Trouble {
    pub(crate) fn new(status: u16, detail: impl Into<String>) -> Self {
        Self(Problem {
            status,
            detail: detail.into(),
            ..Problem::default()
        })
    }

    /// Something that was written in a form is not valid: where, and why.
    pub(crate) fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self(Problem {
            status: 422,
            errors: vec![ProblemFault {
                pointer: pointer.into(),
                detail: detail.into(),
                ..ProblemFault::default()
            }],
            ..Problem::default()
        })
    }

    pub(crate) fn not_found() -> Self {
        Self::new(404, "")
    }

    /// What the API answered in place of what was asked for.
    pub(crate) fn of_problem(status: u16, problem: Problem) -> Self {
        Self(Problem { status, ..problem })
    }

    /// All of it in a line or more.
    pub(crate) fn sentence(&self) -> String {
        self.lines().join("\n")
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
