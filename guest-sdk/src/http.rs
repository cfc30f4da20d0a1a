//! Requests to hosts that the task was granted (`allow_hosts` in the group's spec).
//!
//! ```
//! # use heddle::http::Response;
//! # let host = heddle::testing::Host::new().on_http(|request| {
//! #     assert_eq!(request.url, "https://api.example.com/rates?base=EUR");
//! #     Ok(Response::new(200).with_body(r#"{"USD": 1.16}"#))
//! # });
//! # fn run() -> Result<f64, heddle::Failure> {
//! let response = heddle::http::get("https://api.example.com/rates?base=EUR")
//!     .header("accept", "application/json")
//!     .send()?
//!     .error_for_status()?;
//! let rates: std::collections::BTreeMap<String, f64> = response.json()?;
//! # Ok(rates["USD"])
//! # }
//! # assert_eq!(run().unwrap(), 1.16);
//! ```
//!
//! Redirects are answers like others: they are not followed.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Failure, host};

/// The maximum size of a response's body, unless [`Request::max_body`] sets another.
pub const DEFAULT_MAX_BODY_BYTES: usize = 8 << 20;

/// How long a request waits to connect, for the first byte, and between bytes, unless [`Request::timeout`] says
/// otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A request, to be sent with [`Request::send`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "nothing happens before `send`"]
pub struct Request {
    /// `GET`, `POST`, or another token.
    pub method: String,
    /// Absolute, `http` or `https`.
    pub url: String,
    /// In the order in which they were given.
    pub headers: Vec<(String, String)>,
    /// The bytes to be sent; empty if the request has no body.
    pub body: Vec<u8>,
    /// To connect, for the first byte, and between bytes: each may take so long.
    pub timeout: Duration,
    /// A longer response is an error.
    pub max_body_bytes: usize,
}

/// Begins a `GET` request, without headers and body.
pub fn get(url: impl Into<String>) -> Request {
    Request::new("GET", url)
}

/// Begins a `POST` request, without headers and with an empty body.
pub fn post(url: impl Into<String>) -> Request {
    Request::new("POST", url)
}

impl Request {
    /// A request with any method.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            method: method.into(),
            url: url.into(),
            headers: Vec::new(),
            body: Vec::new(),
            timeout: DEFAULT_TIMEOUT,
            max_body_bytes: DEFAULT_MAX_BODY_BYTES,
        }
    }

    /// Adds a header behind those that were given before, even if one of these has its name.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the bytes of the body, and no content type.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets the body to JSON, with its content type.
    pub fn json(self, body: &impl Serialize) -> Result<Self, Error> {
        let body = serde_json::to_vec(body).map_err(|error| Error::fatal("http", format!("the body: {error}")))?;
        Ok(self.header("content-type", "application/json").body(body))
    }

    /// Sets how long connecting, the first byte, and each pause between bytes may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how long a response's body may be.
    pub fn max_body(mut self, bytes: usize) -> Self {
        self.max_body_bytes = bytes;
        self
    }

    /// Sends it and takes the whole response, whatever its status.
    pub fn send(self) -> Result<Response, Error> {
        host::http(&self)
    }
}

/// A response with its whole body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status; 404 and 500 are answers as well, not errors.
    pub status: u16,
    /// In the order in which they came, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The whole body, at most as long as the request allows.
    pub body: Vec<u8>,
}

impl Response {
    /// An empty response, for tests.
    pub fn new(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    /// Sets the body, for tests.
    pub fn with_body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Adds a header, for tests.
    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_ascii_lowercase(), value.to_owned()));
        self
    }

    /// The first header of this name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The body as text; bytes that are no UTF-8 are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_slice(&self.body).map_err(|error| Error::fatal("http", format!("the response: {error}")))
    }

    /// The response if it is a 2xx. 4xx is a fatal failure, but 408 and 429 may go better, and so may all others, not
    /// before the seconds in `Retry-After` have passed.
    pub fn error_for_status(self) -> Result<Self, Failure> {
        if (200..300).contains(&self.status) {
            return Ok(self);
        }
        let message = format!("http: status {}", self.status);
        if (400..500).contains(&self.status) && !matches!(self.status, 408 | 429) {
            return Err(Failure::Fatal(message));
        }
        match self
            .header("retry-after")
            .and_then(|seconds| seconds.trim().parse().ok())
        {
            Some(seconds) => Err(Failure::RetryAfter(Duration::from_secs(seconds), message)),
            None => Err(Failure::Retryable(message)),
        }
    }
}

/// The parts of a URL that a request is made of.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(
    not(target_arch = "wasm32"),
    allow(dead_code, reason = "the double checks a URL, only the component uses it")
)]
pub(crate) struct Target<'a> {
    pub(crate) https: bool,
    pub(crate) authority: &'a str,
    pub(crate) path_with_query: String,
}

/// Splits a URL; the host checks the parts.
pub(crate) fn target(url: &str) -> Result<Target<'_>, Error> {
    let wrong = |what: &str| Err(Error::fatal("http", format!("the URL `{url}` {what}")));
    let Some((scheme, rest)) = url.split_once("://") else {
        return wrong("is not absolute");
    };
    let https = match scheme.to_ascii_lowercase().as_str() {
        "https" => true,
        "http" => false,
        _ => return wrong("is neither http nor https"),
    };
    let rest = rest.split('#').next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if authority.is_empty() {
        return wrong("has no host");
    }
    if authority.contains('@') {
        return wrong("has credentials; send them in a header");
    }
    let path_with_query = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("/{path}")
    };
    Ok(Target {
        https,
        authority,
        path_with_query,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split() {
        let check = |url: &str, https, authority: &str, path: &str| {
            assert_eq!(
                target(url).unwrap(),
                Target {
                    https,
                    authority,
                    path_with_query: path.into()
                },
                "{url}"
            );
        };
        check("https://example.com", true, "example.com", "/");
        check("HTTP://127.0.0.1:8080/a/b?c=d#e", false, "127.0.0.1:8080", "/a/b?c=d");
        check("https://[::1]:1?q=/", true, "[::1]:1", "/?q=/");
        for wrong in [
            "",
            "example.com/a",
            "ftp://example.com",
            "http:///a",
            "https://me:secret@example.com/",
        ] {
            assert!(target(wrong).unwrap_err().is_final(), "{wrong}");
        }
    }

    #[test]
    fn a_status_says_whether_to_try_again() {
        let check = |response: Response, expect: Failure| assert_eq!(response.error_for_status(), Err(expect));
        assert!(Response::new(204).error_for_status().is_ok());
        check(Response::new(404), Failure::fatal("http: status 404"));
        check(Response::new(503), Failure::retryable("http: status 503"));
        check(
            Response::new(429).with_header("Retry-After", "7"),
            Failure::retry_after(Duration::from_secs(7), "http: status 429"),
        );
    }
}
