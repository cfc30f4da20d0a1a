//! The errors of host calls.

use std::fmt;

/// A host call that did not work. `?` makes a [`Failure`](crate::Failure) of it, fatal if [`Error::is_final`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    call: &'static str,
    message: String,
    code: Option<String>,
    is_final: bool,
}

impl Error {
    pub(crate) fn fatal(call: &'static str, message: impl Into<String>) -> Self {
        Self {
            call,
            message: message.into(),
            code: None,
            is_final: true,
        }
    }

    pub(crate) fn retryable(call: &'static str, message: impl Into<String>) -> Self {
        Self {
            call,
            message: message.into(),
            code: None,
            is_final: false,
        }
    }

    /// An error of the SQL interface: the database's own name their code, as in `... (SQLSTATE 42P01)`.
    pub(crate) fn sql(message: String) -> Self {
        let code = message
            .split_once("(SQLSTATE ")
            .and_then(|(_, rest)| rest.split_once(')'))
            .map(|(code, _)| code);
        let code = code.filter(|code| is_sqlstate(code)).map(str::to_owned);
        let is_final = code.as_deref().is_some_and(is_final_sqlstate) || message.starts_with("not granted: ");
        Self {
            call: "sql",
            message,
            code,
            is_final,
        }
    }

    /// The call that answered so: `sql`, `http`, `state`, `upstream`, `enqueue`, `notify`, `secret`.
    pub fn call(&self) -> &str {
        self.call
    }

    /// What the host says about the error, for people to read.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The SQLSTATE, if a database answered so: `23505` is a violated uniqueness.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// Whether the same call would end the same way again.
    pub fn is_final(&self) -> bool {
        self.is_final
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.message)
    }
}

impl std::error::Error for Error {}

fn is_sqlstate(code: &str) -> bool {
    code.len() == 5
        && code
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
}

/// The classes (<https://www.postgresql.org/docs/current/errcodes-appendix.html>) that depend on the statement and the
/// data alone: unsupported features, bad data, violated constraints, syntax and access.
fn is_final_sqlstate(code: &str) -> bool {
    ["0A", "22", "23", "42"].iter().any(|class| code.starts_with(class))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_databases_verdict_decides() {
        let missing = Error::sql("relation \"nowhere\" does not exist (SQLSTATE 42P01)".into());
        assert_eq!((missing.code(), missing.is_final()), (Some("42P01"), true));
        let busy = Error::sql("could not serialize access (SQLSTATE 40001): retry".into());
        assert_eq!((busy.code(), busy.is_final()), (Some("40001"), false));
        let gone = Error::sql("connection closed".into());
        assert_eq!((gone.code(), gone.is_final()), (None, false));
    }
}
