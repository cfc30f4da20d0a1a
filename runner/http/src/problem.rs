//! The one error type of the API: RFC 9457 problem bodies.

use std::collections::HashMap;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use heddle_api::ProblemFault;
use heddle_domain::Chain;
use heddle_domain::bounded::Stopped;
use heddle_domain::{Fault, Faults};
use heddle_engine::{EngineError, line_due};
use heddle_store::StoreError;

use crate::adapter::Refusal;

/// An error as the caller gets it. `type` is `about:blank`: the status is the kind of problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The status of the answer.
    pub status: StatusCode,
    /// One sentence about this occurrence.
    pub detail: String,
    /// All errors in the request.
    pub errors: Vec<Fault>,
    /// The id of the thing that is there already (409).
    pub existing: Option<String>,
    /// Seconds, for the header `Retry-After`.
    pub retry_after: Option<u64>,
    /// The position of the first of `errors` in the sent text.
    pub position: Option<Box<Position>>,
    /// The value of `Allow` (405) or `WWW-Authenticate` (401).
    pub header: Option<Box<(header::HeaderName, HeaderValue)>>,
    /// Whether the cause is that the connection to the database was cut: what only reads is then read again.
    pub(crate) cut: bool,
}

/// A position in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line, from 1.
    pub line: u32,
    /// The character in it, from 1.
    pub column: u32,
    pub source: String,
}

/// The media type of problem bodies.
pub const PROBLEM_JSON: &str = "application/problem+json";

impl Problem {
    /// A problem of a status.
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            status,
            detail: detail.into(),
            errors: Vec::new(),
            existing: None,
            retry_after: None,
            position: None,
            header: None,
            cut: false,
        }
    }

    /// 400: what was sent cannot be read.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// 401: no token, or no valid one.
    pub fn unauthenticated(detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::UNAUTHORIZED, detail);
        problem.header = Some(Box::new((
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static("Bearer realm=\"heddle\""),
        )));
        problem
    }

    /// 403: known, but not allowed.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// 404: no such thing.
    pub fn not_found(what: &str, name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("there is no {what} `{name}`"))
    }

    /// 409: the current state does not allow it.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    /// 412: `If-Match` or `If-None-Match` does not hold.
    pub fn precondition(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, detail)
    }

    /// 413: more bytes than are taken.
    pub fn too_large(bytes_max: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body must have at most {bytes_max} bytes"),
        )
    }

    /// 422: readable, but wrong at these places.
    pub fn invalid(faults: impl Into<Faults>) -> Self {
        let errors = faults.into().0;
        let detail = match errors.as_slice() {
            [] => "the request is not valid".to_owned(),
            [one] => one.to_string(),
            // Whoever found so many did not look for others, or did not keep them.
            [first, ..] if errors.len() >= Faults::MAX => format!("{first} (and more)"),
            [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
        };
        Self {
            errors,
            ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
        }
    }

    /// 422 at one place.
    pub fn invalid_at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::invalid(Fault::at(pointer, detail))
    }

    /// The same problem for a document that contains the checked value below `prefix`.
    pub(crate) fn below(self, prefix: &str) -> Self {
        if self.errors.is_empty() {
            return self;
        }
        Self::invalid(Faults(
            self.errors.into_iter().map(|fault| fault.below(prefix)).collect(),
        ))
    }

    /// 429: too much at once.
    pub fn overloaded(detail: impl Into<String>, retry_after_seconds: u64) -> Self {
        let mut problem = Self::new(StatusCode::TOO_MANY_REQUESTS, detail);
        problem.retry_after = Some(retry_after_seconds);
        problem
    }

    /// 503, with `Retry-After` in seconds.
    pub fn unavailable(detail: impl Into<String>, retry_after_seconds: u64) -> Self {
        let mut problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        problem.retry_after = Some(retry_after_seconds);
        problem
    }

    /// 500: our fault. The cause is logged here, and not sent.
    pub fn internal(cause: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error = %Chain(cause), "a request failed with an internal error");
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal error; the log of this node has the cause",
        )
    }

    /// The same problem with the id of the existing object.
    pub fn existing(mut self, id: impl Into<String>) -> Self {
        self.existing = Some(id.into());
        self
    }

    /// Only the body, for one item of a batch.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self.body()).unwrap_or_default()
    }

    fn body(&self) -> heddle_api::Problem {
        let wrong = |(index, fault): (usize, &Fault)| {
            let position = self.position.as_deref().filter(|_| index == 0);
            ProblemFault {
                pointer: fault.pointer.clone(),
                detail: fault.detail.clone(),
                missing: fault.missing.clone(),
                line: position.map(|position| position.line),
                column: position.map(|position| position.column),
                source: position.map(|position| position.source.clone()),
            }
        };
        heddle_api::Problem {
            r#type: "about:blank".into(),
            title: self.status.canonical_reason().unwrap_or("Error").into(),
            status: self.status.as_u16(),
            detail: self.detail.clone(),
            errors: self.errors.iter().enumerate().map(wrong).collect(),
            existing: self.existing.clone(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.body()).unwrap_or_default();
        let mut response = (self.status, [(header::CONTENT_TYPE, PROBLEM_JSON)], body).into_response();
        if let Some(seconds) = self.retry_after {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(header) = self.header {
            let (name, value) = *header;
            response.headers_mut().insert(name, value);
        }
        response
    }
}

/// Seconds after which to try again when Postgres is away, or two transactions were in each other's way.
const STORE_RETRY_SECONDS: u64 = 1;

/// The same if the server accepts no writes, until it is promoted or has free disk space again.
const READ_ONLY_RETRY_SECONDS: u64 = 5;

/// A request that failed because of the database. Thousands of them fail in the same way; their callers have the answer.
/// If it was one of a group commit, that has logged it, too; a statement of a route is logged nowhere else.
fn log_passing(what: &'static str, error: &StoreError) {
    let error = Chain(error);
    match line_due(what) {
        Some(0) => tracing::warn!(%error, "{what}"),
        Some(omitted) => tracing::warn!(%error, omitted, "{what}"),
        None => tracing::debug!(%error, "{what}"),
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Unavailable(_) if error.is_full_disk() => {
                log_passing("a request failed because the disk of the database is full", &error);
                Self::unavailable(
                    "the disk of the database is full, so the database refuses writes at the moment; try again",
                    READ_ONLY_RETRY_SECONDS,
                )
            }
            StoreError::Unavailable(_) => {
                log_passing("a request failed because the database is not available", &error);
                let mut problem = Self::unavailable("the database is not available; try again", STORE_RETRY_SECONDS);
                problem.cut = error.is_cut();
                problem
            }
            StoreError::ReadOnly(_) => {
                log_passing("a request failed because the database is read-only", &error);
                Self::unavailable(
                    "the database is read-only at the moment; try again",
                    READ_ONLY_RETRY_SECONDS,
                )
            }
            StoreError::Conflict(_) if error.is_cancelled() => {
                log_passing("a request failed because a statement of it was cancelled", &error);
                Self::unavailable(
                    "the database cancelled a statement of this call: an administrator wanted that, or it took longer \
                     than the server lets it; try again",
                    STORE_RETRY_SECONDS,
                )
            }
            StoreError::Conflict(_) | StoreError::Outdated => Self::unavailable(
                "another change happened at the same time; try again",
                STORE_RETRY_SECONDS,
            ),
            _ => Self::internal(&error),
        }
    }
}

impl From<Faults> for Problem {
    fn from(faults: Faults) -> Self {
        Self::invalid(faults)
    }
}

impl From<Stopped> for Problem {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Trouble(_) => Self::unavailable(stopped.to_string(), 1),
            Stopped::Time(_) | Stopped::Memory(_) => Self::invalid_at("", stopped.to_string()),
        }
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Self {
        Refusal::from(error).into()
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotFound { what, name } => Self::not_found(what, &name),
            Refusal::Conflict { detail, existing } => Self {
                existing,
                ..Self::conflict(detail)
            },
            Refusal::Malformed(detail) => Self::malformed(detail),
            Refusal::Invalid(faults) => Self::invalid(faults),
            Refusal::Source(fault) => {
                let mut problem = Self::invalid_at("", format!("the script has an error: {fault}"));
                if let (Some(line), Some(column)) = (fault.line, fault.column) {
                    let source = fault.text.unwrap_or_default();
                    problem.position = Some(Box::new(Position { line, column, source }));
                }
                problem
            }
            Refusal::Forbidden(detail) => Self::forbidden(detail),
            Refusal::TooLarge { what, bytes_max } => Self::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the {what} must have at most {bytes_max} bytes"),
            ),
            Refusal::Overloaded {
                detail,
                retry_after_seconds,
            } => Self::overloaded(detail, retry_after_seconds),
            Refusal::Unavailable {
                detail,
                retry_after_seconds,
            } => Self::unavailable(detail, retry_after_seconds),
            Refusal::Store(error) => error.into(),
            Refusal::Internal(error) => Self::internal(&*error),
        }
    }
}

/// The problems of the parts of one request. Thousands of them may fail by one failed transaction: it is logged once.
#[derive(Debug, Default)]
pub(crate) struct OfParts(HashMap<String, Problem>);

impl OfParts {
    pub(crate) fn problem(&mut self, refusal: Refusal) -> Problem {
        let reason = match &refusal {
            Refusal::Store(error) => Chain(error).to_string(),
            Refusal::Internal(error) => Chain(&**error).to_string(),
            _ => return refusal.into(),
        };
        self.0.entry(reason).or_insert_with(|| refusal.into()).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_that_fail_together_are_told_once() {
        let mut parts = OfParts::default();
        let first = parts.problem(Refusal::Internal("no".into()));
        assert_eq!(parts.problem(Refusal::Internal("no".into())), first);
        parts.problem(Refusal::Internal("another".into()));
        parts.problem(Refusal::Forbidden("no".into()));
        assert_eq!(parts.0.len(), 2);
    }

    #[test]
    fn a_body_has_the_fields_of_rfc_9457() {
        let problem = Problem::invalid_at("/tasks/a/script", "there is no script `x`");
        assert_eq!(
            problem.to_json(),
            json!({
                "type": "about:blank", "title": "Unprocessable Entity", "status": 422,
                "detail": "/tasks/a/script: there is no script `x`",
                "errors": [{"pointer": "/tasks/a/script", "detail": "there is no script `x`"}],
            })
        );
        let problem = Problem::conflict("there is a run with this key").existing("0199");
        assert_eq!(problem.to_json()["existing"], "0199");
        assert_eq!(problem.to_json()["errors"], json!([]));
    }

    /// No more errors are kept than the maximum, so nobody knows how many more there are.
    #[test]
    fn a_number_of_errors_is_told_only_if_all_are_known() {
        for (count, said) in [
            (2, "/x: no (and 1 more)"),
            (99, "/x: no (and 98 more)"),
            (150, "/x: no (and more)"),
        ] {
            let mut faults = Faults::default();
            (0..count).for_each(|_| faults.add("/x", "no"));
            assert_eq!(Problem::invalid(faults).detail, said);
        }
    }

    #[test]
    fn overload_and_absence_say_when_to_come_back() {
        for problem in [Problem::overloaded("busy", 3), Problem::unavailable("away", 3)] {
            let response = problem.into_response();
            assert_eq!(response.headers()[header::RETRY_AFTER], "3");
            assert_eq!(response.headers()[header::CONTENT_TYPE], PROBLEM_JSON);
        }
        assert!(
            Problem::unauthenticated("who?")
                .into_response()
                .headers()
                .contains_key(header::WWW_AUTHENTICATE)
        );
    }
}
