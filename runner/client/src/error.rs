//! What can go wrong with a call.

use heddle_domain::Fault;
use serde::{Deserialize, Serialize};

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call has no answer to give.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server could not be reached, or went away in the middle.
    #[error("cannot reach {url}")]
    Unreachable {
        /// The address that was called.
        url: String,
        /// What the network said.
        #[source]
        source: reqwest::Error,
    },
    /// The server refused, and says why.
    #[error(transparent)]
    Refused(Box<Problem>),
    /// The answer is not what the API promises: most likely something else answers at this address.
    #[error("{url} gave an answer that is not Heddle's: {detail}")]
    Unexpected {
        /// The address that was called.
        url: String,
        /// What is wrong with it.
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
            Self::Refused(problem) => Some(problem),
            _ => None,
        }
    }

    /// The HTTP status of a refusal.
    pub fn status(&self) -> Option<u16> {
        self.problem().map(|problem| problem.status)
    }
}

/// A problem body (RFC 9457).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Problem {
    /// The HTTP status.
    pub status: u16,
    /// The status in words.
    pub title: String,
    /// What is wrong, and what to do.
    pub detail: String,
    /// Each thing that is wrong with what was sent, with its place.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<Fault>,
    /// The id of the thing that is there already (409).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub existing: Option<String>,
    /// When to try again (429, 503), in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub more: crate::More,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A server that has one thing to say says it in both places; of several, the first, and how many there are.
        let repeated = self
            .errors
            .first()
            .is_some_and(|first| self.detail.starts_with(&first.to_string()));
        match self.errors.as_slice() {
            [_] if repeated => return f.write_str(&self.detail),
            errors if repeated => write!(f, "{} things are wrong:", errors.len())?,
            _ if self.detail.is_empty() => write!(f, "{} {}", self.status, self.title)?,
            _ => f.write_str(&self.detail)?,
        }
        for error in &self.errors {
            write!(f, "\n  {error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_said_once() {
        let check = |detail: &str, errors: &[(&str, &str)], expect: &str| {
            let problem = Problem {
                status: 422,
                title: "Unprocessable Entity".into(),
                detail: detail.into(),
                errors: errors
                    .iter()
                    .map(|(pointer, detail)| Fault::at(*pointer, *detail))
                    .collect(),
                ..Problem::default()
            };
            assert_eq!(problem.to_string(), expect);
        };
        check("no such thing", &[], "no such thing");
        check("", &[], "422 Unprocessable Entity");
        check("/a: bad", &[("/a", "bad")], "/a: bad");
        check(
            "/a: bad (and 1 more)",
            &[("/a", "bad"), ("/b", "worse")],
            "2 things are wrong:\n  /a: bad\n  /b: worse",
        );
        check("it is bad", &[("/a", "bad")], "it is bad\n  /a: bad");
    }
}
