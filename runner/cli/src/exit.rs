//! Exit codes, and the errors that lead to them.

use std::process::ExitCode;

use heddle_client::Error;
use heddle_domain::{Chain, Span};
use heddle_postgres::{InUse, NoServer};
use serde::de::DeserializeOwned;

use crate::terminal::tell;

/// The text about exit codes in the help.
pub(crate) const HELP: &str = "Exit codes:
  0    success; for a watched run: the run succeeded
  1    the server refused the request, the run failed or was cancelled, or the diff is not empty
  2    wrong usage, or a file that cannot be read or parsed
  3    the server cannot be reached
  130  interrupted (`dev` and `serve`: by a second signal; the first one ends them in order, with 0)

Environment: HEDDLE_URL and HEDDLE_TOKEN set the server and the token for all commands.
HEDDLE_<OPTION> sets an option of `dev` and `serve`, for example HEDDLE_LISTEN.";

/// Done, but the answer is no.
pub(crate) const NO: u8 = 1;
/// Wrong usage, or a file that cannot be read or parsed.
pub(crate) const USAGE: u8 = 2;
/// The server cannot be reached.
pub(crate) const UNREACHABLE: u8 = 3;
/// The command was interrupted: the code that shells use for a program that SIGINT ended.
pub(crate) const INTERRUPTED: u8 = 130;

/// The command has done what it was to do.
pub(crate) fn done() -> anyhow::Result<ExitCode> {
    Ok(ExitCode::SUCCESS)
}

/// An error in the user's input, not in its execution.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The server ended an answer before it was complete: its node stops, or what stands in between closed the connection.
#[derive(Debug)]
pub(crate) struct BrokenOff;

impl std::fmt::Display for BrokenOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the server ended its answer before it was complete")
    }
}

impl std::error::Error for BrokenOff {}

/// The outermost context of an error that is advice for the user, and no part of the cause.
#[derive(Debug)]
pub(crate) struct Hint(pub(crate) String);

impl std::fmt::Display for Hint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// An error of usage.
pub(crate) fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

/// The duration that an option names.
pub(crate) fn duration(text: Option<&str>, option: &str) -> anyhow::Result<Option<Span>> {
    let read = |text: &str| text.parse().map_err(|error| usage(format!("{option}: {error}")));
    text.map(read).transpose()
}

/// The value of the API that an option names, or the default if it is left out.
pub(crate) fn word<T: DeserializeOwned + Default>(text: Option<String>, option: &str) -> anyhow::Result<T> {
    let read = |text: String| {
        serde_json::from_value(serde_json::Value::String(text)).map_err(|error| usage(format!("{option}: {error}")))
    };
    text.map_or_else(|| Ok(T::default()), read)
}

/// An instant that an option names. A date means midnight in UTC: lists contain objects of many groups, so no group's time
/// zone applies.
pub(crate) fn instant(text: &str) -> Result<String, String> {
    if let Ok(date) = chrono::NaiveDate::parse_from_str(text, "%Y-%m-%d") {
        return Ok(format!("{date}T00:00:00Z"));
    }
    match heddle_client::moment::parse_moment(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(format!(
            "`{text}` is not a time; write for example 2026-11-20T08:00:00Z (RFC 3339), or a date such as 2026-11-20"
        )),
    }
}

/// Tells the user what went wrong and gives the exit code for it.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        // `heddle ... | head` is no failure.
        return ExitCode::SUCCESS;
    }
    let given = error.downcast_ref::<Hint>();
    let what = error.chain().nth(usize::from(given.is_some()));
    // Causes that repeat what was said are left out.
    tell!(
        "error: {}",
        what.map_or_else(String::new, |what| Chain(what).to_string())
    );
    if let Some(given) = given {
        tell!("hint: {given}");
    }
    if let Some(hint) = hint(error) {
        tell!("hint: {hint}");
    }
    ExitCode::from(code(error))
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    kind == Some(std::io::ErrorKind::BrokenPipe)
}

/// The exit code of an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| cause.is::<Usage>()) {
        return USAGE;
    }
    if error.chain().any(|cause| cause.is::<BrokenOff>()) {
        return UNREACHABLE;
    }
    match error.chain().find_map(|cause| cause.downcast_ref::<Error>()) {
        Some(Error::Unreachable { .. }) => UNREACHABLE,
        Some(Error::Invalid(_)) => USAGE,
        Some(_) | None => NO,
    }
}

fn hint(error: &anyhow::Error) -> Option<String> {
    if error.downcast_ref::<InUse>().is_some() {
        return Some("stop that process, or choose another directory with --data-dir".into());
    }
    if error.downcast_ref::<NoServer>().is_some() {
        return Some("if Postgres is installed in another directory, give the directory with --postgres-bin".into());
    }
    match error.chain().find_map(|cause| cause.downcast_ref::<Error>())? {
        Error::Unreachable { .. } => Some(
            "is the server running? Start one with `heddle dev`, or give the address of another one with --url \
                or HEDDLE_URL"
                .into(),
        ),
        Error::Unexpected { .. } => Some("is --url (or HEDDLE_URL) the address of a Heddle server?".into()),
        Error::Refused { problem, retry_after } => match problem.status {
            401 => {
                Some("give a token with --token or HEDDLE_TOKEN; `heddle token create` creates the first one".into())
            }
            403 => Some("the role of this token does not allow it".into()),
            412 => Some("somebody has changed it in the meantime; check with `heddle diff`, then try again".into()),
            409 => problem
                .existing
                .as_ref()
                .map(|id| format!("the id of the existing object is {id}")),
            429 | 503 => retry_after.map(|seconds| format!("try again in {seconds} s")),
            _ => None,
        },
        Error::Invalid(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn codes_tell_usage_from_refusal() {
        assert_eq!(code(&usage("no")), USAGE);
        let refused = Error::Refused {
            problem: Box::default(),
            retry_after: None,
        };
        assert_eq!(code(&Err::<(), _>(refused).context("group x").unwrap_err()), NO);
        assert_eq!(code(&Error::Invalid("bad url".into()).into()), USAGE);
        assert_eq!(code(&BrokenOff.into()), UNREACHABLE);
    }

    #[test]
    fn a_date_is_an_instant() {
        assert_eq!(instant("2026-11-25").as_deref(), Ok("2026-11-25T00:00:00Z"));
        assert_eq!(
            instant("2026-11-25T08:00:00+01:00").as_deref(),
            Ok("2026-11-25T08:00:00+01:00")
        );
        assert!(instant("yesterday").is_err() && instant("").is_err());
    }

    #[test]
    fn a_database_that_does_not_start_names_the_option_that_helps() {
        let in_use = InUse {
            data_dir: "/x".into(),
            holder: Some(1),
        };
        let error = anyhow::Error::from(in_use).context("cannot start the embedded Postgres");
        assert!(hint(&error).expect("a hint").contains("--data-dir"));
        let error = anyhow::anyhow!("download failed").context(NoServer { major: None });
        assert!(hint(&error.context("...")).expect("a hint").contains("--postgres-bin"));
    }
}
