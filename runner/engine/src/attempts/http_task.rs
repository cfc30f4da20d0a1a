//! The `http` executor: a request with the task's context as its body.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use heddle_domain::plan::PlanTask;
use heddle_domain::spec::HttpSpec;
use heddle_domain::state::ErrorKind;
use heddle_domain::template::{Scope, Templates};
use heddle_sandbox::outbound;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use super::Attempts;
use super::outside::{Outside, within};
use crate::RunContext;
use crate::retry_after::retry_after;
use crate::runs::ending::Ending;

/// Characters of a failed answer's body that the error keeps.
const ERROR_BODY_CHARS_MAX: usize = 500;

/// The maximum output of a task that is no script, unless its spec says otherwise.
pub(crate) const OUTPUT_BYTES_DEFAULT: usize = 256 * 1024;

pub(crate) struct HttpRequest {
    method: reqwest::Method,
    url: reqwest::Url,
    headers: HeaderMap,
    body: Option<Value>,
    timeout: Option<Duration>,
    output_bytes_max: usize,
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
        let url = reqwest::Url::parse(&url).map_err(|error| format!("http/url: {url}: {error}"))?;
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
            let name = HeaderName::from_str(name).map_err(|error| format!("{field}: {error}"))?;
            let value = HeaderValue::from_str(&text(&field, value)?).map_err(|error| format!("{field}: {error}"))?;
            headers.insert(name, value);
        }
        let body = match &spec.body {
            Some(body) => Some(
                templates
                    .render_value(body, scope)
                    .map_err(|fault| fault.below("http/body").to_string())?,
            ),
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
            (Some(body), _) => builder.json(&body),
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
        let excerpt: String = text
            .replace('\0', "\u{fffd}")
            .chars()
            .take(ERROR_BODY_CHARS_MAX)
            .collect();
        let fatal = status.is_client_error() && !matches!(status.as_u16(), 408 | 429);
        let message = if excerpt.trim().is_empty() {
            format!("{status}")
        } else {
            format!("{status}: {excerpt}")
        };
        Ending::Failed {
            kind: ErrorKind::Http,
            message,
            trace: None,
            retry_after,
            fatal,
        }
    }
}
