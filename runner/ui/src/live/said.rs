//! What every stream to a page says, and how it is answered.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;

use super::pulse::KEEP_ALIVE;

/// The bytes of a large update that a slow connection carries within one second.
const SLOW_BYTES: usize = 64 * 1024;

/// The first event: that events arrive, and how soon a browser that loses the stream asks again. Whether the page is up to
/// date follows when it was made.
pub(super) fn greeting(brief: bool) -> Bytes {
    let retry_ms = if brief { 5_000 } else { 1_000 };
    Bytes::from(format!("retry: {retry_ms}\n{}", heard(KEEP_ALIVE)))
}

/// Events arrive, and the next one within this time.
fn heard(next: Duration) -> String {
    format!("event: heard\ndata: {}\n\n", next.as_secs())
}

/// The stream goes on, whether the page is up to date or not.
pub(super) fn goes_on() -> Bytes {
    heard(KEEP_ALIVE).into()
}

/// The page is up to date, and the next event arrives within the time after which this is said again.
pub(super) fn here() -> Bytes {
    Bytes::from(format!("event: here\ndata: {}\n\n", KEEP_ALIVE.as_secs()))
}

/// What is said before these events if they are large: a browser gets an event when it is whole, and a slow connection is
/// not a silent one.
pub(super) fn before(events: &[Bytes]) -> Option<Bytes> {
    let bytes: usize = events.iter().map(Bytes::len).sum();
    let seconds = bytes / SLOW_BYTES;
    (seconds > 0).then(|| heard(KEEP_ALIVE + Duration::from_secs(seconds as u64)).into())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_told_when_the_next_event_arrives() {
        assert_eq!(greeting(false), "retry: 1000\nevent: heard\ndata: 15\n\n");
        assert_eq!(greeting(true), "retry: 5000\nevent: heard\ndata: 15\n\n");
        assert_eq!(here(), "event: here\ndata: 15\n\n");
        // An update of ten megabytes may take longer than that.
        let update = |bytes: usize| before(&[vec![b'x'; bytes / 2].into(), vec![b'x'; bytes / 2].into()]);
        assert_eq!(update(60_000), None);
        assert_eq!(update(10 << 20).unwrap(), "event: heard\ndata: 175\n\n");
    }
}
