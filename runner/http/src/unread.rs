//! What happens with a body that is not read to its end.
//!
//! Many answers are sent before the body was read: no token, no such path, too large. If the connection were closed
//! with them, the client, which is still sending, would get a reset and never the answer. So the rest of a body is read
//! and discarded, within bounds, while the answer is being sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use bytes::Bytes;
use futures::StreamExt;
use http_body::{Frame, SizeHint};

use crate::connection::Connection;

/// How many bytes of one body are thrown away before the connection is closed after all.
const DISCARD_BYTES_MAX: usize = 128 << 20;

/// How long discarding may take altogether.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(10);

/// How long the client may pause meanwhile.
const DISCARD_IDLE_MAX: Duration = Duration::from_secs(2);

/// A request's body, whose rest is discarded when it is dropped.
pub(crate) struct Discarding {
    body: Option<Body>,
    /// The connection of a client that has not been told yet to send the body (`Expect: 100-continue`). hyper tells it as
    /// soon as the body is read, unless the answer is on its way: a client that is refused must not be told.
    untold: Option<Arc<Connection>>,
}

impl Discarding {
    pub(crate) fn wrap(request: Request) -> Request {
        if http_body::Body::is_end_stream(request.body()) {
            return request;
        }
        let connection = request.extensions().get::<Arc<Connection>>();
        let untold = connection
            .filter(|_| request.headers().contains_key(header::EXPECT))
            .cloned();
        request.map(|body| {
            Body::new(Self {
                body: Some(body),
                untold,
            })
        })
    }
}

impl http_body::Body for Discarding {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.untold = None;
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(http_body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), http_body::Body::size_hint)
    }
}

impl Drop for Discarding {
    fn drop(&mut self) {
        let Some(body) = self.body.take() else { return };
        let untold = self.untold.take();
        if !http_body::Body::is_end_stream(&body)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(async move {
                let discarded = async {
                    if let Some(connection) = untold {
                        connection.answered().await;
                    }
                    discard(body).await;
                };
                let _ = tokio::time::timeout(DISCARD_TIME_MAX, discarded).await;
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
