//! What every stream to a page says, and how it is answered.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;

/// The first event: that events arrive, and how soon a browser that loses the stream asks again. Whether the page is up to
/// date follows when it was made.
pub(super) fn greeting(brief: bool) -> Bytes {
    Bytes::from_static(match brief {
        true => b"retry: 5000\nevent: heard\ndata: 1\n\n",
        false => b"retry: 1000\nevent: heard\ndata: 1\n\n",
    })
}

/// What a page hears whose session has ended.
pub(super) const SIGNED_OUT: &[u8] = b"event: over\ndata: signed-out\n\n";

/// The stream of a page whose session has ended, to a page that was not listening then (nobody was looking at it). It is
/// told, and asks to sign in. A browser does not pass the status of a refused stream on to the page, which would only
/// try again.
pub(crate) fn signed_out() -> Response {
    let said = Bytes::from_static(SIGNED_OUT);
    events(futures::stream::once(std::future::ready(Ok(said))))
}

/// An answer whose body goes on, such as a stream of events.
pub(super) fn events(stream: impl futures::Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(stream));
    let fixed = HeaderValue::from_static;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, fixed("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, fixed("no-store"));
    // Proxies that would gather it first are asked not to.
    headers.insert("x-accel-buffering", fixed("no"));
    response
}
