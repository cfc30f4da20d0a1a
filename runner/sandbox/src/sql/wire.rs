//! What a server sends, message by message, so that no message is larger than a bound.
//!
//! The driver collects each message as a whole, whatever its length, and Postgres makes rows of up to 1 GB. So the length
//! in the head of each message is looked at before the driver gets it. In place of a message that is too large, the driver
//! gets an error, as if the server had sent that, and then the end of the stream: the statement fails with this error, and
//! its session is closed. A notice that is too large is left out, because nobody reads it.
//!
//! This stands above TLS, and begins after the one byte with which a server answers the question for TLS. From there on,
//! a server sends only messages: a type (one byte), a length (four bytes, which count themselves), and a rest.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, BufReader, ReadBuf};

/// The largest message of a server: a row, or the text of an error. A row as JSON has at most 8 MiB; as Postgres sends
/// it, it may be longer, such as an array of small numbers.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// By this name of a routine, an error that was made here is known. No routine of a server has it.
pub(super) const ROUTINE: &str = "heddle: a message is too large";

/// The type and the length of a message.
const MESSAGE_HEAD_BYTES: usize = 5;
/// What the length of a message counts beside its rest: itself.
const MESSAGE_LENGTH_BYTES: usize = 4;
/// How much is read at once.
const SOCKET_READ_BYTES: usize = 16 << 10;

const ROW: u8 = b'D';
const NOTICE: u8 = b'N';
const READY: u8 = b'Z';

/// A connection to a server, from which the driver reads messages that are not too large.
pub(super) struct Wire<S> {
    inner: BufReader<S>,
    messages: Messages,
}

/// How far the messages have been read.
#[derive(Default)]
struct Messages {
    /// The head of the next message, and how much of it has been read. The driver gets it when it is complete: until
    /// then, another message can come in its place.
    head: [u8; MESSAGE_HEAD_BYTES],
    head_bytes: usize,
    /// How much of the present message has not been read.
    rest_bytes: usize,
    /// Whether the driver does not get the present message.
    is_left_out: bool,
    /// What the driver gets before anything else: a head, or an error.
    next: Vec<u8>,
    /// Whether the server has been ready for a statement. Before that, an old server may send a text without a head.
    has_begun: bool,
    /// Whether the driver gets nothing else.
    has_ended: bool,
}

impl<S: AsyncRead> Wire<S> {
    pub fn new(inner: S) -> Self {
        Self {
            inner: BufReader::with_capacity(SOCKET_READ_BYTES, inner),
            messages: Messages::default(),
        }
    }

    pub fn get_ref(&self) -> &S {
        self.inner.get_ref()
    }
}

impl Messages {
    /// Passes on what comes before anything that is read.
    fn give_next(&mut self, buf: &mut ReadBuf<'_>) {
        let count = self.next.len().min(buf.remaining());
        buf.put_slice(&self.next[..count]);
        self.next.drain(..count);
    }

    /// Takes the beginning of what was read, and returns how many bytes it took: at least one, if `buf` has room.
    fn take(&mut self, read: &[u8], buf: &mut ReadBuf<'_>) -> io::Result<usize> {
        if self.rest_bytes > 0 {
            let mut count = self.rest_bytes.min(read.len());
            if !self.is_left_out {
                count = count.min(buf.remaining());
                buf.put_slice(&read[..count]);
            }
            self.rest_bytes -= count;
            return Ok(count);
        }
        let count = (MESSAGE_HEAD_BYTES - self.head_bytes).min(read.len());
        self.head[self.head_bytes..][..count].copy_from_slice(&read[..count]);
        self.head_bytes += count;
        if self.head_bytes == MESSAGE_HEAD_BYTES {
            self.head_bytes = 0;
            self.begin_message()?;
        }
        Ok(count)
    }

    /// Decides about a message, by its head.
    fn begin_message(&mut self) -> io::Result<()> {
        let [kind, length @ ..] = self.head;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        self.has_begun |= kind == READY;
        self.rest_bytes = length.saturating_sub(MESSAGE_LENGTH_BYTES);
        self.is_left_out = false;
        if length <= MESSAGE_BYTES_MAX {
            self.next.extend_from_slice(&self.head);
        } else if !self.has_begun {
            let why = "the server's first message is too large, or it is not Postgres";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        } else if kind == NOTICE {
            self.is_left_out = true;
        } else {
            self.next = too_large(kind);
            self.has_ended = true;
        }
        Ok(())
    }
}

/// The error in place of a message of this type.
fn too_large(kind: u8) -> Vec<u8> {
    let said = match kind {
        ROW => format!("the result has a row of more than the maximum of {MESSAGE_BYTES_MAX} bytes; select less data"),
        _ => format!("the database sent a message of more than the maximum of {MESSAGE_BYTES_MAX} bytes"),
    };
    let mut fields = Vec::new();
    // `54000`: a limit of a program is exceeded.
    for (field, text) in [
        (b'S', "ERROR"),
        (b'V', "ERROR"),
        (b'C', "54000"),
        (b'M', said.as_str()),
        (b'R', ROUTINE),
    ] {
        fields.push(field);
        fields.extend_from_slice(text.as_bytes());
        fields.push(0);
    }
    fields.push(0);
    let length = u32::try_from(fields.len() + MESSAGE_LENGTH_BYTES).unwrap_or(u32::MAX);
    let mut message = vec![b'E'];
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(&fields);
    message
}

impl<S: AsyncRead + Unpin> AsyncRead for Wire<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { inner, messages } = self.get_mut();
        let before = buf.filled().len();
        loop {
            messages.give_next(buf);
            let has_given = buf.filled().len() > before;
            if buf.remaining() == 0 || messages.has_ended || has_given && inner.buffer().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let read = ready!(Pin::new(&mut *inner).poll_fill_buf(cx))?;
            if read.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let taken = messages.take(read, buf)?;
            Pin::new(&mut *inner).consume(taken);
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Wire<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn message(kind: u8, rest: &[u8]) -> Vec<u8> {
        let mut message = vec![kind];
        let length = u32::try_from(rest.len() + MESSAGE_LENGTH_BYTES).unwrap();
        message.extend_from_slice(&length.to_be_bytes());
        message.extend_from_slice(rest);
        message
    }

    /// What the driver gets of this, if it arrives in parts of at most so many bytes.
    async fn read(sent: Vec<u8>, part_bytes: usize) -> io::Result<Vec<u8>> {
        let (server, mut client) = tokio::io::duplex(part_bytes);
        // It fails if the reader has had enough.
        let sending = tokio::spawn(async move {
            let _ = client.write_all(&sent).await;
        });
        let mut got = Vec::new();
        let result = Wire::new(server).read_to_end(&mut got).await;
        sending.await.unwrap();
        result.map(|_| got)
    }

    #[tokio::test]
    async fn messages_pass_in_any_parts() {
        let sent = [
            message(b'R', &[0; 4]),
            message(READY, b"I"),
            message(ROW, &[7; 300]),
            message(b'n', b""),
            message(READY, b"I"),
        ]
        .concat();
        for part_bytes in [1, 2, 3, 5, 7, 1_000] {
            assert_eq!(read(sent.clone(), part_bytes).await.unwrap(), sent, "{part_bytes}");
        }
    }

    #[tokio::test]
    async fn a_message_that_is_too_large_becomes_an_error_and_the_end() {
        let begun = message(READY, b"I");
        let large = vec![b'x'; MESSAGE_BYTES_MAX];
        for (kind, said) in [(ROW, "select less data"), (b'E', "the database sent a message")] {
            let sent = [begun.clone(), message(kind, &large), begun.clone()].concat();
            let got = read(sent, 64 << 10).await.unwrap();
            let error = got.strip_prefix(begun.as_slice()).unwrap();
            assert_eq!(error, too_large(kind));
            let text = String::from_utf8_lossy(error);
            assert!(text.contains(said) && text.contains(ROUTINE), "{text}");
            assert_eq!(message(b'E', &error[MESSAGE_HEAD_BYTES..]), error);
        }
        // The largest one that passes.
        let sent = [begun.clone(), message(ROW, &large[MESSAGE_LENGTH_BYTES..])].concat();
        assert!(read(sent.clone(), 64 << 10).await.unwrap() == sent);
    }

    #[tokio::test]
    async fn a_notice_that_is_too_large_is_left_out() {
        let begun = message(READY, b"I");
        let notice = message(NOTICE, &vec![b'x'; MESSAGE_BYTES_MAX]);
        let sent = [begun.clone(), notice, begun.clone()].concat();
        assert_eq!(read(sent, 64 << 10).await.unwrap(), begun.repeat(2));
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused_before_the_session_begins() {
        let error = read(b"Ecould not fork new process".to_vec(), 64).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
