//! A POST of JSON under the outbound policy: bounded in time by the caller, in size here, redirects checked.

use std::time::Duration;

use bytes::Bytes;
use heddle_domain::Time;
use heddle_domain::retry::RETRY_AFTER_MAX;
use heddle_sandbox::{OutboundPolicy, outbound};
use reqwest::header::{HeaderMap, LOCATION};
use reqwest::{Client, StatusCode, Url};

use super::failure::Failure;
use crate::retry_after::retry_after;

/// How many bytes of an answer are read if its body contains the result.
pub(super) const ANSWER_MAX_BYTES: usize = 64 * 1024;
/// How many bytes of an error answer are read and shown.
const EXCERPT_MAX_BYTES: usize = 2 * 1024;
const EXCERPT_MAX_CHARS: usize = 300;
/// How long the body of an error answer is awaited; its status is known before.
const EXCERPT_TIMEOUT: Duration = Duration::from_secs(2);
/// How many redirects are followed.
const REDIRECTS_MAX: usize = 5;

/// An answer that is a success.
pub(super) struct Answer {
    response: reqwest::Response,
}

impl Answer {
    /// Its body as JSON.
    pub(super) async fn json(self) -> Result<serde_json::Value, Failure> {
        match outbound::read_bounded(self.response, ANSWER_MAX_BYTES).await {
            Ok(Some(bytes)) => serde_json::from_slice(&bytes)
                .map_err(|error| Failure::passing(format!("the answer is not JSON: {error}"))),
            Ok(None) => Err(Failure::passing(format!(
                "the answer has more than {ANSWER_MAX_BYTES} bytes"
            ))),
            Err(error) => Err(Failure::passing(outbound::failure(&error))),
        }
    }
}

/// A policy, and a client that obeys it.
pub(super) type Way = (OutboundPolicy, Client);

/// The ways of a POST.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ways<'a> {
    /// To the host that the channel names: with `allow_private`, also to private addresses.
    pub(super) given: &'a Way,
    /// To any other host that a receiver redirects to: `allow_private` does not let a receiver send us through the
    /// private network.
    pub(super) elsewhere: &'a Way,
}

/// Posts a body, of which redirects make no copy. 2xx is a success; its body is not read.
///
/// 410 means that the receiver wants no more. 307 and 308 are followed, to addresses that the policy allows. Other
/// redirects would turn the POST into a GET, and are errors.
pub(super) async fn post(
    ways: Ways<'_>,
    given: &Url,
    headers: &HeaderMap,
    body: Bytes,
    now: Time,
) -> Result<Answer, Failure> {
    let mut url = given.clone();
    for _ in 0..=REDIRECTS_MAX {
        let (policy, client) = ways.to(&url, given);
        policy
            .check_url(&url)
            .map_err(|refused| Failure::Final(refused.to_string()))?;
        let request = client.post(url.clone()).headers(headers.clone()).body(body.clone());
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => {
                return Err(match outbound::refusal(&error) {
                    // A name that cannot be resolved now may be resolved later.
                    Some(refused @ outbound::Refused::Unresolved { .. }) => Failure::passing(refused.to_string()),
                    Some(refused) => Failure::Final(refused.to_string()),
                    None => Failure::passing(outbound::failure(&error)),
                });
            }
        };
        let status = response.status();
        if status.is_success() {
            return Ok(Answer { response });
        }
        if status.is_redirection() {
            url = redirected(ways, &url, given, &response)?;
            continue;
        }
        return Err(refused(status, response, now).await);
    }
    Err(Failure::passing(format!("more than {REDIRECTS_MAX} redirects")))
}

impl<'a> Ways<'a> {
    fn to(self, url: &Url, given: &Url) -> &'a Way {
        if url.host() == given.host() {
            self.given
        } else {
            self.elsewhere
        }
    }
}

fn redirected(ways: Ways<'_>, url: &Url, given: &Url, response: &reqwest::Response) -> Result<Url, Failure> {
    let status = response.status();
    let location = response
        .headers()
        .get(LOCATION)
        .and_then(|value| value.to_str().ok())
        .ok_or_else(|| Failure::passing(format!("{status} without a `Location`")))?;
    let next = url
        .join(location)
        .map_err(|error| Failure::passing(format!("{status} with a `Location` that is not a valid URL: {error}")))?;
    if let Err(refused) = ways.to(&next, given).0.check_url(&next) {
        return Err(Failure::Final(format!("the redirect is not allowed: {refused}")));
    }
    if !matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
        return Err(Failure::passing(format!(
            "{status}: only the redirects 307 and 308 are followed; set the new URL in the channel"
        )));
    }
    Ok(next)
}

async fn refused(status: StatusCode, response: reqwest::Response, now: Time) -> Failure {
    let again = retry_after(response.headers(), now).map(|wait| wait.min(RETRY_AFTER_MAX));
    let body = beginning(response).await;
    let excerpt = heddle_domain::notify::message::one_line(&String::from_utf8_lossy(&body), EXCERPT_MAX_CHARS);
    let said = if excerpt.is_empty() {
        status.to_string()
    } else {
        format!("{status}: {excerpt}")
    };
    if status == StatusCode::GONE {
        return Failure::Final(format!(
            "{said}: the receiver does not accept messages any more (410); it is not retried"
        ));
    }
    Failure::Passing(said, again)
}

/// The beginning of a body: what has come before it is long enough, ends, breaks off or takes too long.
async fn beginning(mut response: reqwest::Response) -> Vec<u8> {
    let mut body = Vec::new();
    let reading = async {
        while body.len() < EXCERPT_MAX_BYTES
            && let Ok(Some(chunk)) = response.chunk().await
        {
            let room = EXCERPT_MAX_BYTES - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        }
    };
    // After the timeout, what has come is all that is shown.
    let _ = tokio::time::timeout(EXCERPT_TIMEOUT, reading).await;
    body
}
