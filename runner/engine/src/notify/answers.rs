//! How much a mail server may say at once.
//!
//! lettre bounds an answer and its lines only after it has read a line: one without an end would fill the node's memory
//! until the mail's time is over. So its connections run over a stream that counts what has come since something was
//! last sent, and ends the conversation when that is more than any answer needs.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use lettre::transport::smtp::client::AsyncTokioStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most that a server may send between two things that it is sent: a TLS handshake with a long chain of
/// certificates, or an answer, which lettre takes up to 64 KiB of.
const ANSWER_MAX_BYTES: usize = 256 * 1024;

/// A stream that ends with an error when too much comes of it.
#[derive(Debug)]
pub(super) struct Answers<S> {
    stream: S,
    came: usize,
}

impl<S> Answers<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, came: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Answers<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.came = self.came.saturating_add(buf.filled().len() - before);
        if self.came > ANSWER_MAX_BYTES {
            return Poll::Ready(Err(io::Error::other(format!(
                "the mail server answers with more than {ANSWER_MAX_BYTES} bytes"
            ))));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Answers<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        self.came = 0;
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The address of the other side, of what [`Answers`] is made of.
pub(super) trait Peer {
    /// It.
    fn peer(&self) -> io::Result<SocketAddr>;
}

impl Peer for tokio::net::TcpStream {
    fn peer(&self) -> io::Result<SocketAddr> {
        self.peer_addr()
    }
}

impl<S> AsyncTokioStream for Answers<S>
where
    S: AsyncRead + AsyncWrite + Peer + Send + Sync + Unpin + std::fmt::Debug,
{
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.stream.peer()
    }
}

#[expect(
    deprecated,
    reason = "lettre connects encrypted from the first byte by no other type that is public"
)]
mod encrypted {
    use std::io;
    use std::net::SocketAddr;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use futures::io::{AsyncRead as Reads, AsyncWrite as Writes};
    use lettre::transport::smtp::Error;
    use lettre::transport::smtp::client::{AsyncNetworkStream, TlsParameters};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    use super::Peer;

    /// A connection that is encrypted from the first byte.
    #[derive(Debug)]
    pub(in crate::notify) struct Encrypted(AsyncNetworkStream);

    impl Encrypted {
        /// Connects; the caller bounds the time that this takes.
        pub(in crate::notify) async fn connect(place: (&str, u16), tls: TlsParameters) -> Result<Self, Error> {
            AsyncNetworkStream::connect_tokio1(place, None, Some(tls), None)
                .await
                .map(Self)
        }
    }

    impl Peer for Encrypted {
        fn peer(&self) -> io::Result<SocketAddr> {
            self.0.peer_addr()
        }
    }

    impl AsyncRead for Encrypted {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let read = ready!(Reads::poll_read(Pin::new(&mut self.0), cx, buf.initialize_unfilled()))?;
            buf.advance(read);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Encrypted {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Writes::poll_write(Pin::new(&mut self.0), cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Writes::poll_flush(Pin::new(&mut self.0), cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Writes::poll_close(Pin::new(&mut self.0), cx)
        }
    }
}

pub(super) use encrypted::Encrypted;
