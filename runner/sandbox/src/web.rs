//! `wasi:http`: requests of scripts.

use crate::attempt::Grants;
use crate::clients::Clients;
use crate::outbound::{OutboundPolicy, Refused, refusal};
use crate::outgoing::{MAX_WAIT, Outgoing, Slot, Turn};
use crate::rehearsal::{Exchanges, StageClock, WebAnswer, WebRequest};
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::{BodyDataStream, BodyExt, Full, Limited};
use std::sync::Arc;
use std::time::Duration;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

type Sent = (
    http::Response<WasiBody>,
    Box<dyn Future<Output = Result<(), Error>> + Send>,
);

/// The largest write to the body of a request.
const WRITE_BYTES: usize = 64 << 10;
/// How many of them wait to be sent at most, apart from one: wasmtime adds it. Most guests write 4 KiB at once.
const WRITES: usize = 511;

/// The largest body of a request or a response in a rehearsal.
const MAX_BODY_BYTES: usize = 16 << 20;

/// Sends a script's requests, under its grants and the node's policy.
#[derive(Clone)]
pub(crate) struct WebHooks {
    pub clients: Arc<Clients>,
    pub policy: OutboundPolicy,
    pub grants: Arc<Grants>,
    /// Answers instead, or is told the answers.
    pub exchanges: Option<Arc<dyn Exchanges>>,
    pub stage: Option<Arc<StageClock>>,
    /// How many of its requests are under way.
    pub outgoing: Outgoing,
}

impl WasiHttpHooks for WebHooks {
    // The client sets it.
    fn set_host_header(&mut self) -> bool {
        false
    }

    fn p2_outgoing_body_buffer_chunks(&mut self) -> usize {
        WRITES
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        WRITE_BYTES
    }

    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _: Box<dyn Future<Output = Result<(), Error>> + Send>,
    ) -> Box<dyn Future<Output = Result<Sent, Error>> + Send> {
        let web = self.clone();
        Box::new(async move {
            let options = options.unwrap_or_default();
            let response = match web.exchanges.clone() {
                None => web.send(request, options).await?,
                Some(exchanges) => web.rehearse(exchanges.as_ref(), request, options).await?,
            };
            let nothing: Box<dyn Future<Output = Result<(), Error>> + Send> = Box::new(async { Ok(()) });
            Ok((response, nothing))
        })
    }
}

impl WebHooks {
    async fn send(
        &self,
        request: http::Request<WasiBody>,
        options: RequestOptions,
    ) -> Result<http::Response<WasiBody>, Error> {
        let (parts, body) = request.into_parts();
        let url = url::Url::parse(&parts.uri.to_string()).map_err(|_| Error::HttpRequestUriInvalid)?;
        check(&self.policy, &self.grants, &url).map_err(|refused| error_of(&refused))?;
        let mut outgoing = self.clients.of(&url).request(parts.method, url).headers(parts.headers);
        // A body of unknown length would make even a GET chunked.
        if body.size_hint().exact() != Some(0) {
            outgoing = outgoing.body(reqwest::Body::wrap_stream(BodyDataStream::new(body)));
        }
        let wait = options.first_byte_timeout.unwrap_or(MAX_WAIT).min(MAX_WAIT);
        let connect = options.connect_timeout.unwrap_or(MAX_WAIT);
        let (turn, wait) = (Turn::default(), wait.saturating_add(connect).min(MAX_WAIT));
        let sending = async {
            let slot = self.outgoing.slot(&turn).await;
            (slot, outgoing.send().await)
        };
        let (slot, response) = tokio::time::timeout(wait, sending).await.map_err(|_| {
            let late = turn.late(wait);
            late.map_or(Error::HttpResponseTimeout, |why| Error::InternalError(Some(why)))
        })?;
        let response = response.map_err(|error| sending_error(&error))?;
        let response = http::Response::<reqwest::Body>::from(response);
        let between = options.between_bytes_timeout.unwrap_or(MAX_WAIT).min(MAX_WAIT);
        Ok(response.map(|body| {
            Patient {
                slot: Some(slot).filter(|_| !body.is_end_stream()),
                body,
                between,
                timer: None,
            }
            .boxed_unsync()
        }))
    }

    /// Lets the substitute for the world answer a request, or tells it the answer. Bodies are sent as a whole.
    async fn rehearse(
        &self,
        exchanges: &dyn Exchanges,
        request: http::Request<WasiBody>,
        options: RequestOptions,
    ) -> Result<http::Response<WasiBody>, Error> {
        let (parts, body) = request.into_parts();
        let body = whole(body).await?;
        let _asking = self.stage.as_ref().map(StageClock::ask);
        let asked = WebRequest {
            method: parts.method.to_string(),
            url: parts.uri.to_string(),
            body: body.clone(),
        };
        if let Some(answer) = exchanges.request(&asked) {
            return answer_of(answer.map_err(|why| Error::InternalError(Some(why)))?);
        }
        // Logged in full, because the guest gets only a short error.
        if let Ok(url) = url::Url::parse(&asked.url)
            && let Err(refused) = check(&self.policy, &self.grants, &url)
        {
            exchanges.requested(asked, &Err(refused.to_string()));
            return Err(error_of(&refused));
        }
        let sent = async {
            let request = http::Request::from_parts(parts, full(body));
            let (parts, body) = self.send(request, options).await?.into_parts();
            Ok::<_, Error>(WebAnswer {
                status: parts.status.as_u16(),
                headers: texts_of(&parts.headers),
                body: whole(body).await?,
            })
        };
        match sent.await {
            Ok(answer) => {
                exchanges.requested(asked, &Ok(answer.clone()));
                answer_of(answer)
            }
            Err(error) => {
                exchanges.requested(asked, &Err(error.to_string()));
                Err(error)
            }
        }
    }
}

fn full(body: Bytes) -> WasiBody {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

async fn whole(body: WasiBody) -> Result<Bytes, Error> {
    let collected = Limited::new(body, MAX_BODY_BYTES).collect().await;
    let collected = collected.map_err(|error| Error::InternalError(Some(error.to_string())))?;
    Ok(collected.to_bytes())
}

fn answer_of(answer: WebAnswer) -> Result<http::Response<WasiBody>, Error> {
    let mut response = http::Response::builder().status(answer.status);
    for (name, value) in &answer.headers {
        response = response.header(name, value);
    }
    let response = response.body(full(answer.body));
    response.map_err(|error| Error::InternalError(Some(format!("the response cannot be returned: {error}"))))
}

pub(crate) fn texts_of(headers: &http::HeaderMap) -> Vec<(String, String)> {
    let pairs = headers.iter();
    pairs
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}

/// Whether a task may send a request there, by its grants and the node's policy.
pub(crate) fn check(policy: &OutboundPolicy, grants: &Grants, url: &url::Url) -> Result<(), Refused> {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default().unwrap_or_default();
    // What is not HTTP may have no host, and no grant would help.
    if !matches!(url.scheme(), "http" | "https") {
        return policy.check_url(url);
    }
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

/// A response's body that ends with an error when nothing arrives for too long. Its request is under way until then, or
/// until all of it has been read.
struct Patient {
    slot: Option<Slot>,
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
                if !matches!(frame, Some(Ok(_))) || this.body.is_end_stream() {
                    this.slot = None;
                }
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::outgoing::NodeRequests;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// For an attempt that may send requests to this machine.
    pub(crate) fn hooks() -> WebHooks {
        let policy = OutboundPolicy::new(&["127.0.0.1".into()]).unwrap();
        let grants = Grants {
            allow_hosts: vec!["127.0.0.1".parse().unwrap()],
            ..Grants::default()
        };
        WebHooks {
            clients: Arc::new(Clients::new(&policy, 1_000).unwrap()),
            policy,
            grants: Arc::new(grants),
            exchanges: None,
            stage: None,
            // 64 of the attempt.
            outgoing: NodeRequests::new(256).of_attempt(),
        }
    }

    #[tokio::test]
    async fn responses_that_nobody_reads_keep_their_slots() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // It sends each response but for its last byte, and then nothing.
        tokio::spawn(async move {
            let mut sockets = Vec::new();
            while let Ok((mut socket, _)) = listener.accept().await {
                let _ = socket.read(&mut [0; 1_024]).await;
                let response = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nx";
                let _ = socket.write_all(response).await;
                sockets.push(socket);
            }
        });
        let web = hooks();
        let get = || {
            let request = http::Request::get(format!("http://{address}/"));
            request.body(full(Bytes::new())).unwrap()
        };
        let mut unread = Vec::new();
        for _ in 0..64 {
            unread.push(web.send(get(), RequestOptions::default()).await.unwrap());
        }
        let options = RequestOptions {
            connect_timeout: Some(Duration::ZERO),
            first_byte_timeout: Some(Duration::from_millis(20)),
            ..RequestOptions::default()
        };
        match web.send(get(), options).await {
            Err(Error::InternalError(Some(why))) => {
                assert!(
                    why.contains("an attempt may have 64 requests at the same time"),
                    "{why}"
                );
            }
            other => panic!("{:?}", other.map(drop)),
        }
        // One that is given up makes room for the next one.
        unread.pop();
        unread.push(web.send(get(), RequestOptions::default()).await.unwrap());
    }
}
