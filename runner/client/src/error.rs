//! The errors of a call.

use heddle_api::Problem;

use crate::address::shortened;

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call has no answer to give.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server could not be reached, or went away in the middle.
    #[error("cannot reach {shown}", shown = shortened(.url))]
    Unreachable {
        /// The address that was called.
        url: String,
        /// Why the network did not reach it.
        #[source]
        source: reqwest::Error,
    },
    /// The server refused, and says why.
    #[error("{problem}")]
    Refused {
        problem: Box<Problem>,
        /// When to try again (429, 503), in seconds.
        retry_after: Option<u64>,
    },
    /// The answer is not what the API promises: most likely something else answers at this address.
    #[error("{shown} did not answer as a Heddle server: {detail}", shown = shortened(.url))]
    Unexpected {
        /// The address that was called.
        url: String,
        /// The error in words.
        detail: String,
    },
    /// The client was given something that no request can be made of.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    /// The problem that the server named, if it did.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused { problem, .. } => Some(problem),
            _ => None,
        }
    }

    /// The HTTP status of a refusal.
    pub fn status(&self) -> Option<u16> {
        self.problem().map(|problem| problem.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_errors_are_short() {
        let unexpected = |url: String| Error::Unexpected {
            url,
            detail: "no".into(),
        };
        let short = unexpected("http://x/v1".into()).to_string();
        assert_eq!(short, "http://x/v1 did not answer as a Heddle server: no");
        assert!(unexpected("x".repeat(100_000)).to_string().len() < 300);
    }
}
