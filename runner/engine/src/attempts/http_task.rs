//! The `http` executor: a request with the task's context as its body.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use heddle_domain::executor::check_header;
use heddle_domain::plan::PlanTask;
use heddle_domain::spec::HttpSpec;
use heddle_domain::state::ErrorKind;
use heddle_domain::template::{Scope, Templates};
use heddle_sandbox::{OutboundPolicy, outbound};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{StatusCode, Url};
use serde_json::{Value, json};

use super::Attempts;
use super::outside::{Outside, within};
use crate::RunContext;
use crate::retry_after::retry_after;
use crate::runs::ending::{Ending, message_kept};

/// Characters of a failed answer's body that the error keeps.
const ERROR_BODY_CHARS_MAX: usize = 500;

/// The maximum output of a task that is no script, unless its spec says otherwise.
pub(crate) const OUTPUT_BYTES_DEFAULT: usize = 256 * 1024;

pub(crate) struct HttpRequest {
    method: reqwest::Method,
    url: Url,
    headers: HeaderMap,
    body: Option<Payload>,
    timeout: Option<Duration>,
    output_bytes_max: usize,
}

/// A body that the spec gives.
#[derive(Debug, PartialEq)]
enum Payload {
    Json(Value),
    /// A text that is sent as it is.
    Text(String),
}

impl Payload {
    /// A string is a text if the task says that its content is something else than JSON, for example XML or a form.
    fn of(body: Value, headers: &HeaderMap) -> Self {
        match body {
            Value::String(text) if headers.get(CONTENT_TYPE).is_some_and(|value| !is_json(value)) => Self::Text(text),
            body => Self::Json(body),
        }
    }
}

/// Whether a value of `content-type` is `application/json`, or a type that ends in `+json`.
fn is_json(content_type: &HeaderValue) -> bool {
    let text = String::from_utf8_lossy(content_type.as_bytes());
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

/// A request, with its default body.
pub(crate) struct HttpCall {
    pub(crate) request: HttpRequest,
    pub(crate) context: Value,
}

impl Outside for HttpCall {
    fn carry_out(self: Box<Self>, attempts: Arc<Attempts>, _context: Arc<RunContext>) -> BoxFuture<'static, Ending> {
        Box::pin(async move { attempts.call(self.request, self.context).await })
    }
}

impl HttpRequest {
    /// Renders a task's request. An error names the part that is wrong.
    pub(crate) fn render(
        spec: &HttpSpec,
        task: &PlanTask,
        scope: &Scope,
        templates: &Templates,
        idempotency_key: &str,
        traceparent: Option<String>,
    ) -> Result<Self, String> {
        let text = |field: &str, template: &str| match templates.render(template, scope) {
            Ok(Value::String(text)) => Ok(text),
            Ok(other) => Ok(other.to_string()),
            Err(error) => Err(format!("{field}: {error}")),
        };
        let url = text("http/url", &spec.url)?;
        let url = Url::parse(&url).map_err(|error| format!("http/url: {url}: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("http/url: {}: the scheme must be http or https", url.scheme()));
        }
        let method = reqwest::Method::from_str(&spec.method).map_err(|error| format!("http/method: {error}"))?;
        let mut headers = HeaderMap::new();
        let key = HeaderValue::from_str(idempotency_key).map_err(|error| format!("idempotency key: {error}"));
        if let Ok(key) = key {
            headers.insert("idempotency-key", key);
        }
        if let Some(Ok(parent)) = traceparent.map(HeaderValue::try_from) {
            headers.insert("traceparent", parent);
        }
        for (name, value) in &spec.headers {
            let field = format!("http/headers/{name}");
            // Revisions of older versions may have such headers.
            check_header(name).map_err(|detail| format!("{field}: {detail}"))?;
            let name = HeaderName::from_str(name).map_err(|error| format!("{field}: {error}"))?;
            let value = HeaderValue::from_str(&text(&field, value)?).map_err(|error| format!("{field}: {error}"))?;
            headers.insert(name, value);
        }
        let body = match &spec.body {
            Some(body) => {
                let body = templates.render_value(body, scope);
                let body = body.map_err(|fault| fault.below("http/body").to_string())?;
                Some(Payload::of(body, &headers))
            }
            None => None,
        };
        let output_bytes_max = task
            .spec
            .max_output
            .map_or(OUTPUT_BYTES_DEFAULT, |size| size.0 as usize);
        Ok(Self {
            method,
            url,
            headers,
            body,
            timeout: task.timeout,
            output_bytes_max,
        })
    }
}

impl Attempts {
    /// Makes a request. 2xx succeeds; 4xx is fatal, except 408 and 429; everything else may be retried.
    async fn call(&self, request: HttpRequest, context: Value) -> Ending {
        let timeout = request.timeout;
        let late = |millis: u128| format!("no answer within {millis} ms");
        within(timeout, self.call_untimed(request, context), late).await
    }

    async fn call_untimed(&self, request: HttpRequest, context: Value) -> Ending {
        let HttpRequest {
            method,
            url,
            headers,
            body,
            output_bytes_max,
            ..
        } = request;
        if let Err(refused) = self.policy.check_url(&url) {
            return Ending::fatal(ErrorKind::Http, refused.to_string());
        }
        let mut builder = self.outbound.request(method.clone(), url);
        let bodiless = matches!(method, reqwest::Method::GET | reqwest::Method::HEAD);
        builder = match (body, bodiless) {
            (Some(Payload::Json(body)), _) => builder.json(&body),
            (Some(Payload::Text(text)), _) => builder.body(text),
            (None, true) => builder,
            (None, false) => builder.json(&context),
        };
        let response = match builder.headers(headers).send().await {
            Ok(response) => response,
            Err(error) => {
                if let Some(refused) = outbound::refusal(&error) {
                    return Ending::fatal(ErrorKind::Http, refused.to_string());
                }
                return Ending::failed(ErrorKind::Http, outbound::failure(&error));
            }
        };
        let status = response.status();
        let retry_after = retry_after(response.headers(), self.node.now());
        let not_followed = not_followed(&self.policy, response.url(), status, response.headers());
        let text = match outbound::read_bounded(response, output_bytes_max).await {
            Ok(Some(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            Ok(None) if status.is_success() => {
                return Ending::failed(
                    ErrorKind::Output,
                    format!("the answer has more than {output_bytes_max} bytes"),
                );
            }
            Ok(None) => String::new(),
            Err(error) => return Ending::failed(ErrorKind::Http, outbound::failure(&error)),
        };
        if status.is_success() {
            let body: Value = serde_json::from_str(&text).unwrap_or(Value::String(text));
            let output = json!({"status": status.as_u16(), "body": body}).to_string();
            if output.len() > output_bytes_max {
                return Ending::failed(
                    ErrorKind::Output,
                    format!("the answer has more than {output_bytes_max} bytes"),
                );
            }
            return Ending::Succeeded(output);
        }
        let excerpt: String = text.chars().take(ERROR_BODY_CHARS_MAX).collect();
        let refused = status.is_client_error() && !matches!(status.as_u16(), 408 | 429);
        let fatal = refused || not_followed.as_ref().is_some_and(|not| not.fatal);
        let mut message = status.to_string();
        let why = not_followed.map(|not| not.why).unwrap_or_default();
        for part in [why, excerpt].iter().filter(|part| !part.trim().is_empty()) {
            message.push_str(": ");
            message.push_str(part);
        }
        Ending::Failed {
            kind: ErrorKind::Http,
            message: message_kept(&message),
            trace: None,
            retry_after,
            fatal,
        }
    }
}

/// A redirect that the client did not follow.
struct NotFollowed {
    why: String,
    /// Whether the policy refuses it.
    fatal: bool,
}

/// Why the client did not follow a redirect: it could not read its address, or has no way to go there, such as `file:`.
/// (About those that it can follow, it asks the policy itself.) `None`: the answer is no redirect.
fn not_followed(policy: &OutboundPolicy, url: &Url, status: StatusCode, headers: &HeaderMap) -> Option<NotFollowed> {
    if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let passing = |why: String| NotFollowed { why, fatal: false };
    let Some(location) = headers.get(LOCATION) else {
        return Some(passing("the redirect has no `Location`".into()));
    };
    let next = location.to_str().ok().map(|location| url.join(location));
    Some(match next {
        None => passing("the `Location` of the redirect is not text".into()),
        Some(Err(error)) => passing(format!("the `Location` of the redirect is not a valid URL: {error}")),
        Some(Ok(next)) => match policy.check_url(&next) {
            Err(refused) => NotFollowed {
                why: format!("the redirect is not allowed: {refused}"),
                fatal: true,
            },
            Ok(()) => passing("the redirect cannot be followed".into()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_sent_as_the_task_says() {
        let sent = |content_type: Option<&str>, body: Value| {
            let headers = content_type.map(|text| (CONTENT_TYPE, text.parse::<HeaderValue>().expect("a value")));
            Payload::of(body, &HeaderMap::from_iter(headers))
        };
        for other in [
            "text/xml",
            "application/x-www-form-urlencoded",
            "text/plain; charset=utf-8",
            "application/jsonl",
        ] {
            assert_eq!(sent(Some(other), json!("a=1")), Payload::Text("a=1".into()), "{other}");
            // Only a string can be sent as it is.
            assert_eq!(
                sent(Some(other), json!({"a": 1})),
                Payload::Json(json!({"a": 1})),
                "{other}"
            );
        }
        for given in [
            None,
            Some("application/json"),
            Some("Application/JSON; charset=utf-8"),
            Some("application/problem+json"),
        ] {
            assert_eq!(sent(given, json!("a=1")), Payload::Json(json!("a=1")), "{given:?}");
        }
    }

    #[test]
    fn a_redirect_that_is_not_followed_says_why() {
        let policy = OutboundPolicy::default();
        let url = Url::parse("https://example.com/a").expect("a URL");
        let said = |status: u16, location: Option<&str>| {
            let headers = location.map(|text| (LOCATION, text.parse::<HeaderValue>().expect("a value")));
            let headers = HeaderMap::from_iter(headers);
            let status = StatusCode::from_u16(status).expect("a status");
            not_followed(&policy, &url, status, &headers).map(|not| (not.why, not.fatal))
        };
        let check = |location: Option<&str>, expect: &str, fatal: bool| {
            assert_eq!(said(302, location), Some((expect.to_owned(), fatal)));
        };
        check(
            Some("file:///etc/passwd"),
            "the redirect is not allowed: file is not an http or https address",
            true,
        );
        check(None, "the redirect has no `Location`", false);
        check(
            Some("http://"),
            "the `Location` of the redirect is not a valid URL: empty host",
            false,
        );
        for other in [200, 300, 304, 404] {
            assert_eq!(said(other, Some("file:///etc/passwd")), None, "{other}");
        }
    }
}
