//! Bounds the answers of mail servers, and their encoding.
//!
//! lettre bounds an answer and its lines only after it has read a line: a line without an end would fill the node's
//! memory until the time for the mail is over. So its connections use a stream that counts the bytes received since the
//! last send, and ends the conversation when there are more than any answer needs.
//!
//! lettre also accepts only UTF-8: of an answer in another encoding it does not even report the code. But many servers
//! refuse mails in the encoding of their country. So this stream replaces what is not UTF-8 by question marks. That
//! works only above the encryption, so connections are encrypted here: from the first byte, or after STARTTLS. For
//! STARTTLS, the plain conversation is [lent](Lent) its stream, which is taken back when the server is ready. Bytes
//! that lettre has read beyond that answer are lost with the plain conversation: anybody could have sent them. The
//! encrypted conversation begins anew. lettre expects a greeting, which servers do not repeat, so this stream provides
//! one.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use lettre::transport::smtp::client::AsyncTokioStream;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The maximum of bytes that a server may send between two requests: for a TLS handshake with a long chain of
/// certificates, or for an answer, of which lettre accepts up to 64 KiB.
const ANSWER_MAX_BYTES: usize = 256 * 1024;

/// How many bytes are read at once.
const PIECE_BYTES: usize = 4 * 1024;

/// The greeting that lettre gets from a server that has already sent its own.
const GREETING: &[u8] = b"220 encrypted\r\n";

/// A stream of UTF-8 that ends with an error when too many bytes come.
#[derive(Debug)]
pub(super) struct Answers<S> {
    stream: S,
    came: usize,
    /// Received bytes that may begin a character: at most one incomplete character between two reads.
    raw: Vec<u8>,
    /// Text that has not been read yet.
    text: Vec<u8>,
}

impl<S> Answers<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            came: 0,
            raw: Vec::new(),
            text: Vec::new(),
        }
    }

    /// A stream from a server whose greeting was already read: it begins with a greeting of our own.
    pub(super) fn greeted(stream: S) -> Self {
        Self {
            text: GREETING.to_vec(),
            ..Self::new(stream)
        }
    }
}

/// Moves text, and question marks for what is not text. An incomplete character at the end stays, unless nothing
/// follows.
fn take_text(raw: &mut Vec<u8>, text: &mut Vec<u8>, over: bool) {
    while let Err(error) = std::str::from_utf8(raw) {
        let (end, bad) = (error.valid_up_to(), error.error_len());
        text.extend(raw.drain(..end));
        match bad {
            Some(bad) => drop(raw.drain(..bad)),
            None if over => raw.clear(),
            None => return,
        }
        text.push(b'?');
    }
    text.append(raw);
}

impl<S: AsyncRead + Unpin> AsyncRead for Answers<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.text.is_empty() {
            let mut piece = [0; PIECE_BYTES];
            let mut read = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            let came = read.filled();
            this.came = this.came.saturating_add(came.len());
            if this.came > ANSWER_MAX_BYTES {
                return Poll::Ready(Err(io::Error::other(format!(
                    "the mail server answered with more than {ANSWER_MAX_BYTES} bytes"
                ))));
            }
            this.raw.extend_from_slice(came);
            let over = came.is_empty();
            take_text(&mut this.raw, &mut this.text, over);
            if over {
                break;
            }
        }
        let count = this.text.len().min(buf.remaining());
        buf.put_slice(&this.text[..count]);
        this.text.drain(..count);
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

/// The peer's address of the stream in [`Answers`].
pub(super) trait Peer {
    fn peer(&self) -> io::Result<SocketAddr>;
}

/// A stream that is lent to a conversation, and taken back when that is over.
#[derive(Clone, Debug)]
pub(super) struct Lent(Arc<Mutex<TcpStream>>);

impl Lent {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self(Arc::new(Mutex::new(stream)))
    }

    /// The stream, once nobody else has it.
    pub(super) fn taken_back(self) -> Option<TcpStream> {
        Arc::into_inner(self.0).map(Mutex::into_inner)
    }
}

impl Peer for Lent {
    fn peer(&self) -> io::Result<SocketAddr> {
        self.0.lock().peer_addr()
    }
}

impl AsyncRead for Lent {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(cx, buf)
    }
}

impl AsyncWrite for Lent {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.lock()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_shutdown(cx)
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

#[expect(deprecated, reason = "lettre encrypts connections by no other type that is public")]
mod encrypted {
    use std::io;
    use std::net::SocketAddr;
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};

    use futures::io::{AsyncRead as Reads, AsyncWrite as Writes};
    use lettre::transport::smtp::Error;
    use lettre::transport::smtp::client::{AsyncNetworkStream, TlsParameters};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
    use tokio::net::TcpStream;

    use super::Peer;

    /// A connection that is encrypted.
    #[derive(Debug)]
    pub(in crate::notify) struct Encrypted(AsyncNetworkStream);

    impl Encrypted {
        /// Encrypts a connection; the caller bounds the time that this takes.
        pub(in crate::notify) async fn over(stream: TcpStream, tls: TlsParameters) -> Result<Self, Error> {
            let mut stream = AsyncNetworkStream::use_existing_tokio1(Box::new(stream));
            stream.upgrade_tls(tls).await?;
            Ok(Self(stream))
        }

        /// Connects, encrypted from the first byte; the caller bounds the time that this takes.
        pub(in crate::notify) async fn connect(address: (&str, u16), tls: TlsParameters) -> Result<Self, Error> {
            AsyncNetworkStream::connect_tokio1(address, None, Some(tls), None)
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn what_is_no_utf8_is_question_marks() {
        let check = async |pieces: &[&[u8]], expected: &str| {
            let (near, mut far) = tokio::io::duplex(1);
            let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
            tokio::spawn(async move {
                for piece in pieces {
                    tokio::io::AsyncWriteExt::write_all(&mut far, &piece).await.unwrap();
                }
            });
            let mut text = String::new();
            Answers::new(near).read_to_string(&mut text).await.unwrap();
            assert_eq!(text, expected);
        };
        check(&[b"250 ok\r\n"], "250 ok\r\n").await;
        check(&["550 für 失敗\r\n".as_bytes()], "550 für 失敗\r\n").await;
        check(&[b"550 spam \xff\xfe\r\n"], "550 spam ??\r\n").await;
        check(&[b"550 \xe4", b"\r\n221 \xe5\xa4"], "550 ?\r\n221 ?").await;
        let mut text = String::new();
        Answers::greeted(&b"250 x\r\n"[..])
            .read_to_string(&mut text)
            .await
            .unwrap();
        assert_eq!(text, "220 encrypted\r\n250 x\r\n");
    }
}
