//! Bodies of requests of components: what waits to be sent counts for the attempt.
//!
//! A component may write much of a body before it sends the request, and it may never send it. So each write counts from
//! the moment in which the host keeps it until the client has taken it, or the request is dropped. A body that keeps as
//! much as it may makes its writer wait.

use crate::memory::Held;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::Notify;
use wasmtime_wasi::p2::{DynOutputStream, OutputStream, Pollable, StreamError, StreamResult};
use wasmtime_wasi_http::{Error, WasiBody};

/// What the host needs for one write, apart from its bytes.
const WRITE_BYTES: usize = 64;

/// What the host keeps of one body.
pub(crate) struct Kept {
    held: Mutex<Held>,
    bytes_max: usize,
    /// There may be room again.
    freed: Notify,
}

impl Kept {
    /// Nothing yet, of at most so many bytes. `held` counts them.
    pub fn new(held: Held, bytes_max: usize) -> Self {
        Self {
            held: Mutex::new(held),
            bytes_max,
            freed: Notify::new(),
        }
    }

    /// How many bytes may be written.
    fn room(&self) -> usize {
        let kept = usize::try_from(self.held.lock().bytes()).unwrap_or(usize::MAX);
        self.bytes_max.saturating_sub(kept)
    }

    fn free(&self, bytes: usize) {
        self.held.lock().shrink(bytes);
        self.freed.notify_one();
    }
}

/// Where a component writes a body.
pub(crate) struct Writer {
    pub stream: DynOutputStream,
    pub kept: Arc<Kept>,
}

#[async_trait::async_trait]
impl Pollable for Writer {
    async fn ready(&mut self) {
        self.stream.ready().await;
        while self.kept.room() == 0 {
            self.kept.freed.notified().await;
        }
    }
}

impl OutputStream for Writer {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        let counted = bytes.len() + WRITE_BYTES;
        let grown = self.kept.held.lock().grow(counted);
        grown.map_err(|full| StreamError::LastOperationFailed(wasmtime::Error::msg(full)))?;
        // A part of a larger buffer would keep all of it.
        let written = self.stream.write(Bytes::copy_from_slice(&bytes));
        if written.is_err() {
            self.kept.free(counted);
        }
        written
    }

    fn flush(&mut self) -> StreamResult<()> {
        self.stream.flush()
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(self.stream.check_write()?.min(self.kept.room()))
    }
}

/// A body as the client reads it.
pub(crate) struct Reader {
    pub body: WasiBody,
    pub kept: Arc<Kept>,
    /// What the client has and may not have sent yet: it asks for more when it has.
    pub sending: usize,
}

impl Body for Reader {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = self.get_mut();
        this.kept.free(std::mem::take(&mut this.sending));
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            this.sending = data.len() + WRITE_BYTES;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Nobody will read what is left.
        self.kept.free(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryBudget, MemoryGuard, MemoryMeter};
    use futures::FutureExt as _;
    use http_body_util::BodyExt as _;
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;
    use wasmtime_wasi_http::p2::body::{HostOutgoingBody, StreamContext};

    #[tokio::test]
    async fn bytes_count_until_they_are_taken() {
        let budget = Arc::new(MemoryBudget {
            limit_bytes: 10_000,
            used_bytes: AtomicU64::new(0),
        });
        let used = || budget.used_bytes.load(Relaxed);
        let guard = MemoryGuard::new(1_000, Arc::new(MemoryMeter::default()), Arc::clone(&budget));
        let body = |bytes_max: usize| {
            let kept = Arc::new(Kept::new(guard.hold(0).unwrap(), bytes_max));
            let (mut host, body) = HostOutgoingBody::new(StreamContext::Request, None, 9, 100);
            let writer = Writer {
                stream: host.take_output_stream().unwrap(),
                kept: Arc::clone(&kept),
            };
            let reader = Reader { body, kept, sending: 0 };
            (host, writer, reader)
        };
        let (_host, mut writer, mut reader) = body(300);
        assert_eq!(writer.check_write().unwrap(), 100);
        writer.write(Bytes::from_static(&[b'x'; 100])).unwrap();
        writer.write(Bytes::from_static(&[b'y'; 100])).unwrap();
        assert_eq!((writer.check_write().unwrap(), used()), (0, 328));
        assert!(writer.ready().now_or_never().is_none());
        let mut read = async || reader.frame().await.unwrap().unwrap().into_data().unwrap().len();
        // The client has it, and asks for more when it has sent it.
        assert_eq!((read().await, used()), (100, 328));
        assert_eq!((read().await, used()), (100, 164));
        assert!(writer.ready().now_or_never().is_some());
        assert_eq!(writer.check_write().unwrap(), 100);
        writer.write(Bytes::new()).unwrap();
        // Others have what is left of the limit.
        let (_other_host, mut other, other_reader) = body(1_000);
        for _ in 0..4 {
            other.write(Bytes::from_static(&[b'x'; 100])).unwrap();
        }
        let StreamError::LastOperationFailed(refused) = other.write(Bytes::from_static(&[b'x'; 100])).unwrap_err()
        else {
            panic!()
        };
        assert!(refused.to_string().contains("limit of 1000 bytes"), "{refused}");
        drop(reader);
        assert_eq!(used(), 4 * 164);
        assert!(matches!(
            writer.write(Bytes::from_static(b"x")),
            Err(StreamError::Closed)
        ));
        drop(other_reader);
        assert_eq!(used(), 0);
    }
}
