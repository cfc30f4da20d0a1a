//! `wasi:http`: requests that scripts make.

use crate::attempt::Grants;
use crate::outbound::{OutboundPolicy, Refused, refusal};
use http_body::Body as _;
use http_body_util::{BodyDataStream, BodyExt};
use std::sync::Arc;
use std::time::Duration;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

/// How long a response's first byte may take, and the next ones, unless the guest wants less.
const MAX_WAIT: Duration = Duration::from_secs(600);

type Sent = (
    http::Response<WasiBody>,
    Box<dyn Future<Output = Result<(), Error>> + Send>,
);

/// Sends a script's requests, by its grants and the node's policy.
pub(crate) struct WebHooks {
    pub client: reqwest::Client,
    pub policy: OutboundPolicy,
    pub grants: Arc<Grants>,
}

impl WasiHttpHooks for WebHooks {
    // The client sets it.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Result<Sent, Error>> + Send> {
        let client = self.client.clone();
        let policy = self.policy.clone();
        let grants = Arc::clone(&self.grants);
        Box::new(async move {
            let options = options.unwrap_or_default();
            let (parts, body) = request.into_parts();
            let url = url::Url::parse(&parts.uri.to_string()).map_err(|_| Error::HttpRequestUriInvalid)?;
            check(&policy, &grants, &url).map_err(|refused| error_of(&refused))?;
            let mut outgoing = client.request(parts.method, url).headers(parts.headers);
            // A body without an end in sight would make even a GET chunked.
            if body.size_hint().exact() != Some(0) {
                outgoing = outgoing.body(reqwest::Body::wrap_stream(BodyDataStream::new(body)));
            }
            let wait = options.first_byte_timeout.unwrap_or(MAX_WAIT).min(MAX_WAIT);
            let connect = options.connect_timeout.unwrap_or(MAX_WAIT);
            let response = tokio::time::timeout(wait.saturating_add(connect).min(MAX_WAIT), outgoing.send())
                .await
                .map_err(|_| Error::HttpResponseTimeout)?
                .map_err(|error| sending_error(&error))?;
            let response = http::Response::<reqwest::Body>::from(response);
            let between = options.between_bytes_timeout.unwrap_or(MAX_WAIT).min(MAX_WAIT);
            let response = response.map(|body| {
                Patient {
                    body,
                    between,
                    timer: None,
                }
                .boxed_unsync()
            });
            let nothing: Box<dyn Future<Output = Result<(), Error>> + Send> = Box::new(async { Ok(()) });
            Ok((response, nothing))
        })
    }
}

/// Whether a task may go there, by its grants and the node's policy.
pub(crate) fn check(policy: &OutboundPolicy, grants: &Grants, url: &url::Url) -> Result<(), Refused> {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default().unwrap_or_default();
    if !grants.allow_hosts.iter().any(|pattern| pattern.matches(host, port)) {
        return Err(Refused::NotGranted {
            host: format!("{host}:{port}"),
        });
    }
    policy.check_url(url)
}

fn error_of(refused: &Refused) -> Error {
    match refused {
        Refused::Private { .. } | Refused::Port { .. } => Error::DestinationIpProhibited,
        Refused::NotGranted { .. } => Error::HttpRequestDenied,
        Refused::NotHttp(_) => Error::HttpRequestUriInvalid,
        Refused::Unresolved { .. } => Error::DnsError {
            rcode: None,
            info_code: None,
        },
    }
}

fn sending_error(error: &reqwest::Error) -> Error {
    if let Some(refused) = refusal(error) {
        return error_of(refused);
    }
    match error {
        error if error.is_timeout() => Error::ConnectionTimeout,
        error if error.is_connect() => Error::ConnectionRefused,
        error if error.is_builder() => Error::HttpRequestUriInvalid,
        _ => Error::HttpProtocolError,
    }
}

/// A response's body that ends with an error when nothing comes for too long.
struct Patient {
    body: reqwest::Body,
    between: Duration,
    timer: Option<std::pin::Pin<Box<tokio::time::Sleep>>>,
}

impl http_body::Body for Patient {
    type Data = bytes::Bytes;
    type Error = Error;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Error>>> {
        use std::task::Poll;
        let this = self.get_mut();
        match std::pin::Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                this.timer = None;
                Poll::Ready(frame.map(|frame| frame.map_err(|error| sending_error(&error))))
            }
            Poll::Pending => {
                let between = this.between;
                let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(between)));
                timer
                    .as_mut()
                    .poll(cx)
                    .map(|()| Some(Err(Error::ConnectionReadTimeout)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
