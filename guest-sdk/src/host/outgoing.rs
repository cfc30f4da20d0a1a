//! Outgoing HTTP over wasi:http.

use std::time::Duration;

use wasip2::http::outgoing_handler;
use wasip2::http::types::{
    ErrorCode, Fields, IncomingBody, IncomingResponse, Method, OutgoingBody, OutgoingRequest, RequestOptions, Scheme,
};
use wasip2::io::streams::StreamError;

use crate::Error;
use crate::http::{Request, Response, target};

/// What `blocking-write-and-flush` takes at once, by its definition.
const MAX_WRITE_BYTES: usize = 4096;

/// What is asked for at once from a response's body.
const READ_BYTES: u64 = 64 << 10;

/// Sends a request and takes the whole response.
pub(crate) fn send(request: &Request) -> Result<Response, Error> {
    let (outgoing, body) = outgoing(request)?;
    let answer = outgoing_handler::handle(outgoing, Some(options(request.timeout)?)).map_err(refused)?;
    if let Some(body) = body {
        write_body(body, &request.body)?;
    }
    answer.subscribe().block();
    let response = match answer.get() {
        Some(Ok(response)) => response.map_err(refused)?,
        Some(Err(())) | None => return Err(Error::retryable("http", "the response was lost")),
    };
    Ok(Response {
        status: response.status(),
        headers: headers(&response),
        body: read_body(&response, request.max_body_bytes)?,
    })
}

fn outgoing(request: &Request) -> Result<(OutgoingRequest, Option<OutgoingBody>), Error> {
    let target = target(&request.url)?;
    let headers = Fields::new();
    for (name, value) in &request.headers {
        headers
            .append(name, value.as_bytes())
            .map_err(|error| Error::fatal("http", format!("the header `{name}`: {error}")))?;
    }
    if !request.body.is_empty() && !headers.has("content-length") {
        // Refused only by a host that sets it itself.
        let _ = headers.append("content-length", request.body.len().to_string().as_bytes());
    }
    let outgoing = OutgoingRequest::new(headers);
    let wrong = |part: &str| {
        Error::fatal(
            "http",
            format!("{part} of {} {} is invalid", request.method, request.url),
        )
    };
    outgoing
        .set_method(&method(&request.method))
        .map_err(|()| wrong("the method"))?;
    let scheme = if target.https { Scheme::Https } else { Scheme::Http };
    outgoing.set_scheme(Some(&scheme)).map_err(|()| wrong("the scheme"))?;
    outgoing
        .set_authority(Some(target.authority))
        .map_err(|()| wrong("the host"))?;
    outgoing
        .set_path_with_query(Some(&target.path_with_query))
        .map_err(|()| wrong("the path"))?;
    if request.body.is_empty() {
        return Ok((outgoing, None));
    }
    let body = outgoing.body().map_err(|()| wrong("the body"))?;
    Ok((outgoing, Some(body)))
}

fn method(name: &str) -> Method {
    match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        "CONNECT" => Method::Connect,
        "OPTIONS" => Method::Options,
        "TRACE" => Method::Trace,
        "PATCH" => Method::Patch,
        other => Method::Other(other.to_owned()),
    }
}

fn options(timeout: Duration) -> Result<RequestOptions, Error> {
    let nanoseconds = Some(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
    let options = RequestOptions::new();
    options
        .set_connect_timeout(nanoseconds)
        .and_then(|()| options.set_first_byte_timeout(nanoseconds))
        .and_then(|()| options.set_between_bytes_timeout(nanoseconds))
        .map_err(|()| Error::fatal("http", "this host knows no timeouts"))?;
    Ok(options)
}

fn write_body(body: OutgoingBody, bytes: &[u8]) -> Result<(), Error> {
    let stream = body
        .write()
        .map_err(|()| Error::retryable("http", "the request's body was lost"))?;
    for chunk in bytes.chunks(MAX_WRITE_BYTES) {
        match stream.blocking_write_and_flush(chunk) {
            Ok(()) => {}
            // The server has answered already; its answer says why.
            Err(StreamError::Closed) => break,
            Err(error) => return Err(Error::retryable("http", format!("sending the body: {error}"))),
        }
    }
    drop(stream);
    // A request cut short by the server's early answer cannot be finished, and need not be.
    let _ = OutgoingBody::finish(body, None);
    Ok(())
}

fn headers(response: &IncomingResponse) -> Vec<(String, String)> {
    let entries = response.headers().entries();
    entries
        .into_iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), String::from_utf8_lossy(&value).into_owned()))
        .collect()
}

fn read_body(response: &IncomingResponse, max_bytes: usize) -> Result<Vec<u8>, Error> {
    let lost = || Error::retryable("http", "the response's body was lost");
    let body: IncomingBody = response.consume().map_err(|()| lost())?;
    let stream = body.stream().map_err(|()| lost())?;
    let mut bytes = Vec::new();
    loop {
        match stream.blocking_read(READ_BYTES) {
            Ok(chunk) if bytes.len() + chunk.len() > max_bytes => {
                return Err(Error::fatal(
                    "http",
                    format!("the response is longer than {max_bytes} bytes"),
                ));
            }
            Ok(chunk) => bytes.extend_from_slice(&chunk),
            Err(StreamError::Closed) => return Ok(bytes),
            Err(error) => return Err(Error::retryable("http", format!("reading the response: {error}"))),
        }
    }
}

/// Names the reason, and whether it will stay: a refusal by policy and a malformed request will.
fn refused(code: ErrorCode) -> Error {
    match code {
        ErrorCode::HttpRequestDenied => {
            Error::fatal("http", "not granted: the host is not among the task's `allow_hosts`")
        }
        ErrorCode::DestinationIpProhibited => Error::fatal("http", "the address is private and not permitted"),
        ErrorCode::HttpRequestLengthRequired
        | ErrorCode::HttpRequestBodySize(_)
        | ErrorCode::HttpRequestMethodInvalid
        | ErrorCode::HttpRequestUriInvalid
        | ErrorCode::HttpRequestUriTooLong
        | ErrorCode::HttpRequestHeaderSectionSize(_)
        | ErrorCode::HttpRequestHeaderSize(_)
        | ErrorCode::LoopDetected => Error::fatal("http", format!("{code:?}")),
        ErrorCode::InternalError(Some(reason)) => Error::retryable("http", reason),
        other => Error::retryable("http", format!("{other:?}")),
    }
}
