//! How long a connection has been waiting for the head of a request.
//!
//! hyper can time heads itself. But then it looks for the next head as soon as an answer is written, which costs a read
//! that finds nothing, and sets a timer anew for each request. Here a connection has one timer, which fires once in a
//! while and looks how long nothing has been under way.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::Instant;

/// A request is under way.
const BUSY: u64 = u64::MAX;

/// What one connection is about.
#[derive(Debug)]
pub(crate) struct Idle {
    began: Instant,
    /// Since when it waits for a head, in milliseconds from its beginning; or [`BUSY`].
    since_ms: AtomicU64,
}

impl Idle {
    /// Of a connection that has just been made: its first head is awaited.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            began: Instant::now(),
            since_ms: AtomicU64::new(0),
        })
    }

    /// A head has come.
    pub(crate) fn ends(&self) {
        self.since_ms.store(BUSY, Ordering::Release);
    }

    fn begins(&self) {
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(BUSY - 1);
        self.since_ms.store(now_ms, Ordering::Release);
    }

    /// Notes when an answer has been handed over to its end.
    pub(crate) fn after(self: Arc<Self>, answer: Response) -> Response {
        if http_body::Body::is_end_stream(answer.body()) {
            self.begins();
            return answer;
        }
        answer.map(|body| Body::new(Noted { body, idle: self }))
    }

    /// Returns when the next head has been awaited for `limit`.
    pub(crate) async fn is_over(&self, limit: Duration) {
        loop {
            let now = Instant::now();
            let until = match self.since_ms.load(Ordering::Acquire) {
                BUSY => now + limit,
                since_ms => self.began + Duration::from_millis(since_ms) + limit,
            };
            if until <= now {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// The body of an answer: when it is dropped, the connection waits again.
struct Noted {
    body: Body,
    idle: Arc<Idle>,
}

impl Drop for Noted {
    fn drop(&mut self) {
        self.idle.begins();
    }
}

impl http_body::Body for Noted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
