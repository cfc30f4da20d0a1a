//! How a script ends when it does not end well.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::Error;

/// How a run of a script ends when it does not end well.
///
/// `?` makes one from any standard error. An error that would come again with the same input (JSON that does not parse,
/// numbers, times and UTF-8 likewise, and what the host says is final: see [`Error`]) becomes fatal, every other
/// retryable: the task's retry policy then decides, and it is none unless the group says so.
///
/// Like `anyhow::Error`, this type is no `std::error::Error` itself, because that is what lets `?` take them all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// May go better next time: the task's retry policy decides.
    Retryable(String),
    /// As `Retryable`, but not before so much time has passed.
    RetryAfter(Duration, String),
    /// Will never go better: not retried.
    Fatal(String),
    /// There is nothing to do: the task run ends `skipped`, not failed.
    Skip(String),
}

impl Failure {
    /// May go better next time.
    pub fn retryable(message: impl Into<String>) -> Self {
        Self::Retryable(message.into())
    }

    /// May go better, but not before so much time has passed; counted in whole milliseconds.
    pub fn retry_after(delay: Duration, message: impl Into<String>) -> Self {
        Self::RetryAfter(delay, message.into())
    }

    /// Will never go better.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self::Fatal(message.into())
    }

    /// There is nothing to do.
    pub fn skip(message: impl Into<String>) -> Self {
        Self::Skip(message.into())
    }

    /// Why it failed, as it is recorded and shown to people.
    pub fn message(&self) -> &str {
        match self {
            Self::Retryable(message) | Self::RetryAfter(_, message) | Self::Fatal(message) | Self::Skip(message) => {
                message
            }
        }
    }

    /// Whether another attempt is pointless.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Fatal(_))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl<E: StdError + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let message = whole_message(&error);
        if is_final(&error) {
            Self::Fatal(message)
        } else {
            Self::Retryable(message)
        }
    }
}

/// The error's message and those of its sources, as `outer: inner`.
fn whole_message(error: &(dyn StdError + 'static)) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let text = inner.to_string();
        // Many errors repeat their source in their own message.
        if !message.ends_with(&text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        source = inner.source();
    }
    message
}

fn is_final(error: &dyn Any) -> bool {
    if let Some(error) = error.downcast_ref::<Error>() {
        return error.is_final();
    }
    error.is::<serde_json::Error>()
        || error.is::<chrono::ParseError>()
        || error.is::<std::num::ParseIntError>()
        || error.is::<std::num::ParseFloatError>()
        || error.is::<std::num::TryFromIntError>()
        || error.is::<std::str::ParseBoolError>()
        || error.is::<std::char::ParseCharError>()
        || error.is::<std::str::Utf8Error>()
        || error.is::<std::string::FromUtf8Error>()
}

/// Says what an error (or an absence) means for the attempt: `text.parse().or_fatal("the limit")?`.
pub trait OrFail<T>: Sized {
    /// A fatal failure, `context: error`.
    fn or_fatal(self, context: impl fmt::Display) -> Result<T, Failure>;

    /// A retryable failure, `context: error`.
    fn or_retryable(self, context: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> OrFail<T> for Result<T, E> {
    fn or_fatal(self, context: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::Fatal(format!("{context}: {error}")))
    }

    fn or_retryable(self, context: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::Retryable(format!("{context}: {error}")))
    }
}

impl<T> OrFail<T> for Option<T> {
    fn or_fatal(self, context: impl fmt::Display) -> Result<T, Failure> {
        self.ok_or_else(|| Failure::Fatal(context.to_string()))
    }

    fn or_retryable(self, context: impl fmt::Display) -> Result<T, Failure> {
        self.ok_or_else(|| Failure::Retryable(context.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `?` makes of an error.
    fn failure<T>(result: Result<T, impl Into<Failure>>) -> Failure {
        result.err().expect("the attempt fails").into()
    }

    #[test]
    fn what_would_come_again_is_fatal() {
        assert!(failure(serde_json::from_str::<u8>("300")).is_fatal());
        assert!(failure("x".parse::<i32>()).is_fatal());
        assert!(failure("2013-13".parse::<chrono::NaiveDate>()).is_fatal());
        assert!(failure(Err::<(), _>(Error::fatal("sql", "no such connection"))).is_fatal());
    }

    #[test]
    fn everything_else_may_be_tried_again() {
        let reset = std::io::Error::new(std::io::ErrorKind::ConnectionReset, "reset by peer");
        assert_eq!(failure(Err::<(), _>(reset)), Failure::retryable("reset by peer"));
        let late = Error::retryable("http", "timed out");
        assert_eq!(failure(Err::<(), _>(late)), Failure::retryable("http: timed out"));
    }

    #[test]
    fn context_can_be_given() {
        let limit = failure("x".parse::<u8>().or_retryable("the limit"));
        assert_eq!(limit, Failure::retryable("the limit: invalid digit found in string"));
        assert_eq!(None::<()>.or_fatal("no row"), Err(Failure::fatal("no row")));
    }
}
