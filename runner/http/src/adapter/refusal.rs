//! Why a route's request is not carried out, for all reasons.

use heddle_domain::{Chain, Faults};
use heddle_engine::scripts::SourceFault;
use heddle_engine::{ControlError, EngineError, SubmitError};
use heddle_store::StoreError;

/// Why it is not done.
#[derive(Debug)]
pub enum Refusal {
    NotFound {
        /// The noun of the missing object: `run`, `task`, ...
        what: &'static str,
        name: String,
    },
    /// 409: the current state does not allow it.
    Conflict {
        detail: String,
        /// The id of what is there already.
        existing: Option<String>,
    },
    /// 400: what was sent cannot be read.
    Malformed(String),
    /// 422, with a place for each.
    Invalid(Faults),
    /// 422: a script that is text has a fault.
    Source(SourceFault),
    /// 403: the outbound policy does not let it through.
    Forbidden(String),
    TooLarge {
        /// What was too large: `body`, `output`.
        what: &'static str,
        /// How many bytes would have been taken.
        bytes_max: usize,
    },
    Overloaded {
        detail: String,
        /// When to try again.
        retry_after_seconds: u64,
    },
    Unavailable {
        detail: String,
        /// When to try again.
        retry_after_seconds: u64,
    },
    Store(StoreError),
    /// 500, with the cause only in the log.
    Internal(Box<dyn std::error::Error + Send + Sync + 'static>),
}

impl Refusal {
    /// Whether the same request may succeed later without anybody changing anything.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Store(error) => error.is_passing(),
            Self::Unavailable { .. } | Self::Overloaded { .. } => true,
            _ => false,
        }
    }

    /// With all causes, for the log.
    pub(crate) fn causes(&self) -> String {
        match self {
            Self::Store(error) => Chain(error).to_string(),
            Self::Internal(error) => Chain(&**error).to_string(),
            other => format!("{other:?}"),
        }
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Store(error) => Self::Store(error),
            error @ (EngineError::Unreadable(_) | EngineError::Progress { .. }) => Self::Internal(error.into()),
            EngineError::Unavailable => Self::Unavailable {
                detail: "the database is not available".into(),
                retry_after_seconds: 1,
            },
            EngineError::Stopping => Self::Unavailable {
                detail: "this node is shutting down".into(),
                retry_after_seconds: 1,
            },
            EngineError::Contended => Self::Unavailable {
                detail: "another change happened at the same time; try again".into(),
                retry_after_seconds: 1,
            },
            EngineError::NotComputed(stopped) => Self::Unavailable {
                detail: stopped.to_string(),
                retry_after_seconds: 1,
            },
            EngineError::Overloaded => Self::Overloaded {
                detail: "too many submissions on this node at the same time; try again later".into(),
                retry_after_seconds: 1,
            },
        }
    }
}

impl From<SubmitError> for Refusal {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::UnknownGroup(name) => Self::NotFound { what: "group", name },
            SubmitError::Disabled(_) | SubmitError::Refused(_) | SubmitError::Fenced => Self::Conflict {
                detail: error.to_string(),
                existing: None,
            },
            SubmitError::Invalid(faults) => Self::Invalid(faults),
            SubmitError::Exists(run) => Self::Conflict {
                detail: error.to_string(),
                existing: Some(run.to_string()),
            },
            SubmitError::Engine(error) => error.into(),
        }
    }
}

impl From<ControlError> for Refusal {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::NotFound(what) => Self::NotFound {
                what,
                name: String::new(),
            },
            ControlError::Exists(run) | ControlError::Made(run) => Self::Conflict {
                detail: error.to_string(),
                existing: Some(run.to_string()),
            },
            ControlError::Refused(detail) => Self::Conflict { detail, existing: None },
            ControlError::Invalid(faults) => Self::Invalid(faults),
            ControlError::Engine(error) => error.into(),
        }
    }
}

/// A missing object is "not found"; all other errors of the store stay errors of the store.
pub(crate) fn not_found(what: &'static str, name: impl ToString) -> Refusal {
    Refusal::NotFound {
        what,
        name: name.to_string(),
    }
}
