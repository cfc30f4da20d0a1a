//! `fetch`: requests of scripts that are text, by the task's grants and the node's policy.

use crate::attempt::Grants;
use crate::outbound::{self, MAX_REDIRECTS, OutboundPolicy};
use crate::web;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use url::Url;

/// The largest response that is kept in memory.
const MAX_RESPONSE_BYTES: usize = 16 << 20;
/// How long a response may take, from the first byte sent to the last received.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// A request.
#[derive(Deserialize)]
pub(super) struct Fetch {
    url: String,
    method: String,
    headers: Vec<(String, String)>,
    redirect: Redirect,
    text: Option<String>,
    base64: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Redirect {
    Follow,
    Manual,
    Error,
}

/// Sends a request and reads its response. The error is a text for the script's author.
pub(super) async fn send(
    client: &reqwest::Client,
    policy: &OutboundPolicy,
    grants: &Grants,
    fetch: Fetch,
) -> Result<Value, String> {
    let exchange = exchange(client, policy, grants, fetch);
    match tokio::time::timeout(MAX_WAIT, exchange).await {
        Ok(answer) => answer.map_err(|why| format!("fetch failed: {why}")),
        Err(_) => Err(format!("fetch failed: no response within {MAX_WAIT:?}")),
    }
}

async fn exchange(
    client: &reqwest::Client,
    policy: &OutboundPolicy,
    grants: &Grants,
    fetch: Fetch,
) -> Result<Value, String> {
    let mut url = Url::parse(&fetch.url).map_err(|error| format!("{}: {error}", fetch.url))?;
    let mut method =
        Method::from_bytes(fetch.method.as_bytes()).map_err(|_| format!("`{}` is no method", fetch.method))?;
    let mut headers = headers_of(&fetch.headers)?;
    let mut body = match (fetch.text, fetch.base64) {
        (Some(text), _) => Some(bytes::Bytes::from(text)),
        (None, Some(text)) => Some(STANDARD.decode(text).map_err(|error| error.to_string())?.into()),
        (None, None) => None,
    };
    let mut redirects = 0;
    loop {
        web::check(policy, grants, &url).map_err(|refused| refused.to_string())?;
        let mut request = client.request(method.clone(), url.clone()).headers(headers.clone());
        if let Some(body) = &body {
            request = request.body(body.clone());
        }
        let response = request.send().await.map_err(|error| told(&error))?;
        let status = response.status();
        let next = match response.headers().get(LOCATION).map(HeaderValue::to_str) {
            Some(Ok(location)) if is_redirect(status) => url.join(location).ok(),
            _ => None,
        };
        let (Some(next), false) = (next, matches!(fetch.redirect, Redirect::Manual)) else {
            return answer(response, redirects > 0).await;
        };
        if matches!(fetch.redirect, Redirect::Error) {
            return Err(format!("{url} answered with a redirect to {next}"));
        }
        redirects += 1;
        if redirects > MAX_REDIRECTS {
            return Err(format!("more than {MAX_REDIRECTS} redirects"));
        }
        let becomes_get = status == StatusCode::SEE_OTHER && method != Method::HEAD
            || matches!(status, StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND) && method == Method::POST;
        if becomes_get {
            method = Method::GET;
            body = None;
            headers.remove(CONTENT_TYPE);
            headers.remove(CONTENT_LENGTH);
        }
        if next.origin() != url.origin() {
            headers.remove(AUTHORIZATION);
            headers.remove(COOKIE);
        }
        url = next;
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn headers_of(pairs: &[(String, String)]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let wrong = || format!("the header `{name}` cannot be sent");
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        // The client sets these by the address and the body.
        if key == http::header::HOST || key == CONTENT_LENGTH {
            continue;
        }
        headers.append(key, HeaderValue::from_str(value).map_err(|_| wrong())?);
    }
    Ok(headers)
}

async fn answer(response: reqwest::Response, redirected: bool) -> Result<Value, String> {
    let (status, url) = (response.status(), response.url().to_string());
    let headers: Vec<(String, String)> = response
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect();
    let body = outbound::read_bounded(response, MAX_RESPONSE_BYTES)
        .await
        .map_err(|error| told(&error))?
        .ok_or_else(|| format!("{url} answers with more than {MAX_RESPONSE_BYTES} bytes"))?;
    // Most bodies are text, and as text they need not be decoded again.
    let (text, base64) = match std::str::from_utf8(&body) {
        Ok(text) if !text.starts_with('\u{feff}') => (Some(text), None),
        _ => (None, Some(STANDARD.encode(&body))),
    };
    Ok(json!({
        "status": status.as_u16(),
        "status_text": status.canonical_reason().unwrap_or_default(),
        "url": url,
        "redirected": redirected,
        "headers": json!(headers).to_string(),
        "text": text,
        "base64": base64,
    }))
}

/// An error of the client, down to its cause: what is in between names libraries.
fn told(error: &reqwest::Error) -> String {
    if let Some(refused) = outbound::refusal(error) {
        return refused.to_string();
    }
    let host = error.url().and_then(Url::host_str).unwrap_or("the host").to_owned();
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    format!("{host}: {cause}")
}
