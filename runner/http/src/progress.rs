//! Answers that nobody reads: a connection that takes no byte of what is to be written for too long is closed.
//!
//! The kernel takes what a client does not read yet, up to the size of its buffers. After that a write waits. If it waits
//! too long, it fails, and hyper ends the connection, and with it the answer and all that it holds. Nothing else is
//! bounded here: a stream that has nothing to say may be silent, and a slow client takes as long as it takes, because
//! each write that the kernel takes begins the time anew. The kernel takes some kilobytes at a time (`serve.rs`), so a
//! client that reads less than some hundred bytes per second is as one that reads nothing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A connection whose writes fail if they wait too long.
pub(crate) struct Progress<S> {
    stream: S,
    /// How long a write may wait.
    most: Duration,
    /// While a write waits: when it fails. Most connections never have one.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Progress<S> {
    pub(crate) fn new(stream: S, most: Duration) -> Self {
        Self {
            stream,
            most,
            deadline: None,
        }
    }

    /// What has become of a write.
    fn watched(&mut self, written: Poll<io::Result<usize>>, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let most = self.most;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(most)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read the answer",
        )))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Progress<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Progress<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.watched(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    // hyper writes all that it has before it flushes, so nothing waits here.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn a_write_that_nobody_reads_fails() {
        let (ours, _theirs) = duplex(4);
        let mut ours = Progress::new(ours, Duration::from_millis(10));
        ours.write_all(b"read").await.unwrap();
        let failed = ours.write_all(b"unread").await.unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn each_byte_that_is_read_begins_the_time_anew() {
        let (ours, mut theirs) = duplex(4);
        let mut ours = Progress::new(ours, Duration::from_secs(3_600));
        for _ in 0..3 {
            // A write that does not have to wait has no deadline.
            assert_eq!(ours.write(b"12345678").await.unwrap(), 4);
            assert!(ours.deadline.is_none());
            assert!(ours.write(b"5678").now_or_never().is_none());
            assert!(ours.deadline.is_some());
            let mut read = [0; 4];
            theirs.read_exact(&mut read).await.unwrap();
        }
    }
}
