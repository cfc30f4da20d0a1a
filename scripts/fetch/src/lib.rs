//! Fetches an address.

use heddle::{Failure, Value, http};

/// How much of a body is taken.
const MAX_BODY_BYTES: usize = 4 << 20;

/// The address to fetch, and what to do with its answer.
#[heddle::data]
pub struct Params {
    /// Absolute, `http` or `https`; its host must be among the task's `allow_hosts`.
    url: String,
    /// If given, it is sent as JSON by POST.
    #[serde(default)]
    send: Option<Value>,
    /// How many characters of the body the output shows.
    #[serde(default = "some")]
    #[schemars(range(max = 100_000))]
    show: usize,
    /// Whether a status other than 2xx fails the attempt.
    #[serde(default)]
    fail_on_status: bool,
}

fn some() -> usize {
    1000
}

/// What the server answered.
#[heddle::data]
#[derive(Debug, PartialEq, Eq)]
pub struct Output {
    /// The HTTP status of the response.
    status: u16,
    /// The whole body's length, in bytes.
    length: usize,
    /// The beginning of the body.
    body: String,
}

/// Fetches an address by GET (or sends JSON to it by POST); answers with the status, the body's length and its beginning.
#[heddle::task]
fn run(params: Params) -> Result<Output, Failure> {
    let request = match &params.send {
        Some(body) => http::post(params.url.as_str()).json(body)?,
        None => http::get(params.url.as_str()),
    };
    let mut response = request.max_body(MAX_BODY_BYTES).send()?;
    heddle::info!("{} answered {}", params.url, response.status);
    if params.fail_on_status {
        response = response.error_for_status()?;
    }
    let body = response.text().chars().take(params.show).collect();
    Ok(Output {
        status: response.status,
        length: response.body.len(),
        body,
    })
}

#[cfg(test)]
mod tests {
    use heddle::http::Response;
    use heddle::testing::Host;

    use super::*;

    fn fetch(status: u16, fail_on_status: bool) -> Result<Output, Failure> {
        let host = Host::new().on_http(move |_| Ok(Response::new(status).with_body("größer")));
        let output = run(Params {
            url: "https://example.com/a".into(),
            send: None,
            show: 3,
            fail_on_status,
        });
        assert_eq!(host.requests()[0].url, "https://example.com/a");
        output
    }

    #[test]
    fn the_beginning_of_the_body_is_shown() {
        assert_eq!(
            fetch(200, true),
            Ok(Output {
                status: 200,
                length: 8,
                body: "grö".into()
            })
        );
        assert_eq!(
            fetch(404, false),
            Ok(Output {
                status: 404,
                length: 8,
                body: "grö".into()
            })
        );
    }

    #[test]
    fn a_status_may_fail_the_attempt() {
        assert!(fetch(404, true).unwrap_err().is_fatal());
        assert!(!fetch(500, true).unwrap_err().is_fatal());
    }

    #[test]
    fn a_host_that_was_not_granted_is_fatal() {
        let _host = Host::new();
        let params = Params {
            url: "https://example.com".into(),
            send: None,
            show: 0,
            fail_on_status: false,
        };
        assert!(run(params).unwrap_err().is_fatal());
    }

    #[test]
    fn json_is_sent_by_post() {
        let host = Host::new().on_http(|request| Ok(Response::new(201).with_body(request.body.clone())));
        let params = Params {
            url: "https://example.com/a".into(),
            send: Some(heddle::json!({"a": 1})),
            show: 100,
            fail_on_status: true,
        };
        assert_eq!(run(params).unwrap().body, r#"{"a":1}"#);
        let request = &host.requests()[0];
        assert_eq!(request.method, "POST");
        assert_eq!(
            request.headers,
            [("content-type".to_owned(), "application/json".to_owned())]
        );
    }
}
