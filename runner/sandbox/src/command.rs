//! The streams of a WASI command, and of components that print.

use crate::journal::Journal;
use bytes::Bytes;
use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

/// The maximum bytes of one write.
const MAX_WRITE_BYTES: usize = 64 << 10;

/// stdout of a command: its output. A write over the limit ends the attempt.
#[derive(Clone)]
pub(crate) struct Captured {
    limit_bytes: usize,
    buffer: Arc<Mutex<Vec<u8>>>,
    exceeded: Arc<AtomicBool>,
}

impl Captured {
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            buffer: Arc::default(),
            exceeded: Arc::default(),
        }
    }

    /// Whether the guest wrote more than it may.
    pub fn exceeded(&self) -> bool {
        self.exceeded.load(Relaxed)
    }

    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.buffer.lock())
    }

    fn append(&self, bytes: &[u8]) -> bool {
        let mut buffer = self.buffer.lock();
        if buffer.len() + bytes.len() > self.limit_bytes {
            self.exceeded.store(true, Relaxed);
            return false;
        }
        buffer.extend_from_slice(bytes);
        true
    }
}

/// stderr, and stdout of a component: lines of the log.
pub(crate) struct Logged(pub Journal);

trait Sink: Clone + Send + Sync + Unpin + 'static {
    /// Returns whether it accepted the bytes.
    fn take_in(&self, bytes: &[u8]) -> bool;
}

impl Sink for Captured {
    fn take_in(&self, bytes: &[u8]) -> bool {
        self.append(bytes)
    }
}

impl Sink for Journal {
    fn take_in(&self, bytes: &[u8]) -> bool {
        self.write_stream(bytes);
        true
    }
}

impl IsTerminal for Captured {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Captured {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(Stream(self.clone()))
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(Stream(self.clone()))
    }
}

impl IsTerminal for Logged {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Logged {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(Stream(self.0.clone()))
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(Stream(self.0.clone()))
    }
}

/// A stream that is always ready.
struct Stream<S>(S);

#[async_trait::async_trait]
impl<S: Sink> Pollable for Stream<S> {
    async fn ready(&mut self) {}
}

impl<S: Sink> OutputStream for Stream<S> {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        if self.0.take_in(&bytes) {
            Ok(())
        } else {
            Err(StreamError::trap("more output than the limit"))
        }
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(MAX_WRITE_BYTES)
    }
}

impl<S: Sink> AsyncWrite for Stream<S> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(if self.0.take_in(bytes) {
            Ok(bytes.len())
        } else {
            Err(std::io::Error::other("more output than the limit"))
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
