//! What happens with a body that is not read to its end.
//!
//! Many answers are sent before the body was read: no token, no such path, too large. If the connection were closed
//! with them, the client, which is still sending, would get a reset and never the answer. So the rest of a body is read
//! and discarded, within bounds, while the answer is being sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt;
use http_body::{Frame, SizeHint};

/// How many bytes of one body are thrown away before the connection is closed after all.
const DISCARD_BYTES_MAX: usize = 128 << 20;

/// How long discarding may take altogether.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(10);

/// How long the client may pause meanwhile.
const DISCARD_IDLE_MAX: Duration = Duration::from_secs(2);

/// A request's body, whose rest is discarded when it is dropped.
pub(crate) struct Discarding(Option<Body>);

impl Discarding {
    pub(crate) fn wrap(body: Body) -> Body {
        if http_body::Body::is_end_stream(&body) {
            return body;
        }
        Body::new(Self(Some(body)))
    }
}

impl http_body::Body for Discarding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.0 = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

impl Drop for Discarding {
    fn drop(&mut self) {
        let Some(body) = self.0.take() else { return };
        if !http_body::Body::is_end_stream(&body)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                let _ = tokio::time::timeout(DISCARD_TIME_MAX, discard(body)).await;
            });
        }
    }
}

async fn discard(body: Body) {
    let mut pieces = body.into_data_stream();
    let mut bytes = 0;
    while let Ok(Some(Ok(piece))) = tokio::time::timeout(DISCARD_IDLE_MAX, pieces.next()).await {
        bytes += piece.len();
        if bytes > DISCARD_BYTES_MAX {
            return;
        }
    }
}
