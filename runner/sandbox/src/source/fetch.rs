//! `fetch`: requests of text scripts, under the task's grants and the node's policy.

use crate::memory::Held;
use crate::outbound::{self, MAX_REDIRECTS};
use crate::outgoing::{MAX_WAIT, Turn};
use crate::rehearsal::{WebAnswer, WebRequest};
use crate::web::{self, WebHooks};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, LOCATION};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use url::Url;

/// The largest response that is kept in memory.
const MAX_RESPONSE_BYTES: usize = 16 << 20;

#[derive(Deserialize)]
pub(super) struct Fetch {
    url: String,
    method: String,
    headers: Vec<(String, String)>,
    redirect: Redirect,
    text: Option<String>,
    base64: Option<String>,
    /// How long the exchange may take, if less than [`MAX_WAIT`].
    timeout_ms: Option<u64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Redirect {
    Follow,
    Manual,
    Error,
}

/// Sends a request and reads its response, which `held` holds then. The error is a text for the script's author.
pub(super) async fn send(web: &WebHooks, fetch: Fetch, held: &mut Held) -> Result<Value, String> {
    let wait = fetch
        .timeout_ms
        .map_or(MAX_WAIT, |asked| Duration::from_millis(asked).min(MAX_WAIT));
    let turn = Turn::default();
    let exchange = exchange(web, fetch, held, &turn);
    match tokio::time::timeout(wait, exchange).await {
        Ok(answer) => answer.map_err(|why| format!("fetch failed: {why}")),
        Err(_) => Err(match turn.late(wait) {
            Some(why) => format!("fetch failed: {why}"),
            None => format!("fetch failed: no response within {wait:?}"),
        }),
    }
}

async fn exchange(web: &WebHooks, fetch: Fetch, held: &mut Held, turn: &Turn) -> Result<Value, String> {
    let mut url = Url::parse(&fetch.url).map_err(|error| format!("{}: {error}", fetch.url))?;
    let mut method =
        Method::from_bytes(fetch.method.as_bytes()).map_err(|_| format!("`{}` is not a valid method", fetch.method))?;
    let mut headers = headers_of(&fetch.headers)?;
    let mut body = match (fetch.text, fetch.base64) {
        (Some(text), _) => Some(Bytes::from(text)),
        (None, Some(text)) => Some(STANDARD.decode(text).map_err(|error| error.to_string())?.into()),
        (None, None) => None,
    };
    let mut redirects = 0;
    loop {
        let follows = !matches!(fetch.redirect, Redirect::Manual);
        // Until the response has been read.
        let _slot = web.outgoing.slot(turn).await;
        let answered = match &web.exchanges {
            None => receive(web, &method, &url, &headers, body.as_ref(), follows, held).await?,
            Some(exchanges) => {
                let request = WebRequest {
                    method: method.to_string(),
                    url: url.to_string(),
                    body: body.clone().unwrap_or_default(),
                };
                match exchanges.request(&request) {
                    Some(answer) => {
                        let answer = answer?;
                        held.grow(answer.body.len())?;
                        answer
                    }
                    None => {
                        let answer = receive(web, &method, &url, &headers, body.as_ref(), follows, held).await;
                        exchanges.requested(request, &answer);
                        answer?
                    }
                }
            }
        };
        let Some(next) = redirection(&answered, &url).filter(|_| follows) else {
            return answer(&answered, &url, redirects > 0, held);
        };
        let status = answered.status;
        if matches!(fetch.redirect, Redirect::Error) {
            return Err(format!("{url} answered with a redirect to {next}"));
        }
        redirects += 1;
        if redirects > MAX_REDIRECTS {
            return Err(format!("more than {MAX_REDIRECTS} redirects"));
        }
        let becomes_get =
            status == 303 && method != Method::HEAD || matches!(status, 301 | 302) && method == Method::POST;
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

/// Sends one request, and reads the answer; without the body for a redirect that is followed.
async fn receive(
    web: &WebHooks,
    method: &Method,
    url: &Url,
    headers: &HeaderMap,
    body: Option<&Bytes>,
    follows: bool,
    held: &mut Held,
) -> Result<WebAnswer, String> {
    web::check(&web.policy, &web.grants, url).map_err(|refused| refused.to_string())?;
    let mut request = web.clients.of(url).request(method.clone(), url.clone());
    request = request.headers(headers.clone());
    if let Some(body) = body {
        request = request.body(body.clone());
    }
    let response = request.send().await.map_err(|error| cause_of(&error))?;
    let mut answer = WebAnswer {
        status: response.status().as_u16(),
        headers: web::texts_of(response.headers()),
        body: Bytes::new(),
    };
    if !follows || redirection(&answer, url).is_none() {
        answer.body = read(response, url, held).await?;
    }
    Ok(answer)
}

/// Reads a body. Each part of it is held before it is kept.
async fn read(mut response: reqwest::Response, url: &Url, held: &mut Held) -> Result<Bytes, String> {
    let too_large = || format!("{url} answered with more than {MAX_RESPONSE_BYTES} bytes");
    let announced = response.content_length();
    if announced.is_some_and(|length| length > MAX_RESPONSE_BYTES as u64) {
        return Err(too_large());
    }
    let mut body = Vec::new();
    while let Some(part) = response.chunk().await.map_err(|error| cause_of(&error))? {
        if body.len() + part.len() > MAX_RESPONSE_BYTES {
            return Err(too_large());
        }
        held.grow(part.len())?;
        body.extend_from_slice(&part);
    }
    Ok(body.into())
}

/// The target of an answer to this address, if it is a redirect.
fn redirection(answer: &WebAnswer, url: &Url) -> Option<Url> {
    if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let named = |(name, _): &&(String, String)| name.eq_ignore_ascii_case(LOCATION.as_str());
    let location = answer.headers.iter().find(named)?;
    url.join(&location.1).ok()
}

fn headers_of(pairs: &[(String, String)]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let wrong = || format!("the header `{name}` cannot be sent");
        let key = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
        // The client sets these from the address and the body.
        if key == http::header::HOST || key == CONTENT_LENGTH {
            continue;
        }
        headers.append(key, HeaderValue::from_str(value).map_err(|_| wrong())?);
    }
    Ok(headers)
}

fn answer(answer: &WebAnswer, url: &Url, redirected: bool, held: &mut Held) -> Result<Value, String> {
    let status = StatusCode::from_u16(answer.status).map_err(|_| format!("{} is not a valid status", answer.status))?;
    // Most bodies are text, and need no decoding in the guest.
    let (text, base64) = match std::str::from_utf8(&answer.body) {
        Ok(text) if !text.starts_with('\u{feff}') => (Some(text), None),
        _ => {
            let text = STANDARD.encode(&answer.body);
            held.grow(text.len() - answer.body.len())?;
            (None, Some(text))
        }
    };
    let headers = json!(answer.headers).to_string();
    held.grow(headers.len())?;
    // User and password are shown to nobody.
    let mut shown = url.clone();
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    Ok(json!({
        "status": status.as_u16(),
        "status_text": status.canonical_reason().unwrap_or_default(),
        "url": shown.as_str(),
        "redirected": redirected,
        "headers": headers,
        "text": text,
        "base64": base64,
    }))
}

/// An error of the client: only its cause, because the errors above it name libraries.
fn cause_of(error: &reqwest::Error) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryBudget, MemoryGuard};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    /// A request of a script that waits for so long.
    async fn fetch(web: WebHooks, address: std::net::SocketAddr, timeout_ms: Option<u64>) -> Result<Value, String> {
        let asked = json!({
            "url": format!("http://{address}/"), "method": "GET", "headers": [], "redirect": "follow",
            "text": null, "base64": null, "timeout_ms": timeout_ms,
        });
        let budget = Arc::new(MemoryBudget {
            limit_bytes: 1 << 20,
            used_bytes: AtomicU64::new(0),
        });
        let guard = MemoryGuard::new(1 << 20, Arc::default(), budget);
        let mut held = guard.hold(0)?;
        send(&web, serde_json::from_value(asked).unwrap(), &mut held).await
    }

    #[tokio::test]
    async fn requests_of_an_attempt_are_bounded() {
        // It accepts, and says nothing.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let web = web::tests::hooks();
        let (mut under_way, mut sockets) = (Vec::new(), Vec::new());
        for _ in 0..64 {
            under_way.push(tokio::spawn(fetch(web.clone(), address, None)));
            sockets.push(listener.accept().await.unwrap());
        }
        let said = fetch(web.clone(), address, Some(20)).await.unwrap_err();
        let expect = "fetch failed: not sent within 20ms: an attempt may have 64 requests at the same time";
        assert!(said.starts_with(expect), "{said}");
        // It has not connected. One does as soon as another one is given up.
        assert!(futures::FutureExt::now_or_never(listener.accept()).is_none());
        let next = tokio::spawn(fetch(web.clone(), address, None));
        under_way[0].abort();
        sockets.push(listener.accept().await.unwrap());
        next.abort();
        for request in under_way {
            request.abort();
        }
    }
}
