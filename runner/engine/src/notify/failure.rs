//! Why a try to send a notification did not succeed.

use std::time::Duration;

use crate::scripts::redact::Redactor;

/// Why a message did not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Another try would give the same result.
    Final(String),
    /// Another try may succeed, after the time that the receiver asks for.
    Passing(String, Option<Duration>),
}

impl Failure {
    pub(super) fn passing(why: impl Into<String>) -> Self {
        Self::Passing(why.into(), None)
    }

    /// The same, without secrets: receivers may repeat what they were sent.
    pub(super) fn without(self, secrets: &Redactor) -> Self {
        match self {
            Self::Final(why) => Self::Final(secrets.hide(why)),
            Self::Passing(why, after) => Self::Passing(secrets.hide(why), after),
        }
    }

    /// The same, with the name of the recipient.
    pub(super) fn about(self, whom: &str) -> Self {
        match self {
            Self::Final(why) => Self::Final(format!("{whom}: {why}")),
            Self::Passing(why, after) => Self::Passing(format!("{whom}: {why}"), after),
        }
    }
}
