//! Connections to external databases, whose messages are bounded ([`Wire`]).
//!
//! The driver opens connections over TCP: it knows the hosts, addresses, ports and options of sockets in a URL. But it
//! hands its socket on only to whatever makes TLS of it. So it is always told to make TLS at once, and what it calls for
//! that ([`Lines`]) does what the URL really says: it asks the server for TLS or not, and puts the bound above. The driver
//! has no TLS over Unix sockets, so these are opened here.

use super::CONNECT_TIMEOUT;
use super::tls::{self, Tls};
use super::wire::Wire;
use deadpool_postgres::Connect;
use futures::future::BoxFuture;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode, SslNegotiation, TargetSessionAttrs};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{CancelToken, Client, Config, Connection, Error, NoTls, SimpleQueryMessage, Socket};

/// The question whether a server encrypts (PostgreSQL, "SSLRequest"): its length, and a number that is no version.
const TLS_QUESTION: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
/// Its answer, if the server does.
const TLS_YES: u8 = b'S';
/// The port of a URL without one.
const DEFAULT_PORT: u16 = 5_432;

type Opened = (Client, JoinHandle<()>);
type Handshake = <Tls as MakeTlsConnect<Socket>>::TlsConnect;
type Encrypted = <Tls as MakeTlsConnect<Socket>>::Stream;

/// How the hosts of a URL are reached.
#[derive(Clone)]
pub(super) struct Dial {
    lines: Lines,
    /// The Unix sockets among the hosts.
    sockets: Vec<PathBuf>,
    /// Whether they are tried before the other hosts.
    sockets_first: bool,
    has_others: bool,
}

impl Dial {
    pub fn new(config: &Config) -> Result<Self, String> {
        let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
        let is_socket = |host: &Host| matches!(host, Host::Unix(_));
        let ports = config.get_ports();
        let port = |index: usize| ports.get(index).or(ports.first()).copied().unwrap_or(DEFAULT_PORT);
        let sockets: Vec<PathBuf> = match addresses.is_empty() {
            true => hosts
                .iter()
                .enumerate()
                .filter_map(|(index, host)| match host {
                    Host::Unix(directory) => Some(directory.join(format!(".s.PGSQL.{}", port(index)))),
                    Host::Tcp(_) => None,
                })
                .collect(),
            // The addresses are used, whatever the hosts are.
            false => Vec::new(),
        };
        // Sockets have no TLS, and no host name for it.
        let encrypted = !hosts.iter().all(is_socket) && config.get_ssl_mode() != SslMode::Disable;
        let tls = match encrypted {
            true => Some(tls::connector(config.get_ssl_mode())?),
            false => None,
        };
        Ok(Self {
            lines: Lines {
                tls,
                mode: config.get_ssl_mode(),
                negotiation: config.get_ssl_negotiation(),
            },
            sockets_first: hosts.first().is_some_and(is_socket),
            has_others: sockets.is_empty() || sockets.len() < hosts.len(),
            sockets,
        })
    }

    async fn open(&self, config: &Config) -> Result<Opened, Error> {
        // The driver tries the other hosts as one list. So only lists with both kinds change their order, if sockets are
        // not all at their beginning or end.
        if self.sockets_first {
            match self.over_sockets(config).await {
                Err(_) if self.has_others => self.over_tcp(config).await,
                opened => opened,
            }
        } else {
            match self.over_tcp(config).await {
                Err(_) if !self.sockets.is_empty() => self.over_sockets(config).await,
                opened => opened,
            }
        }
    }

    async fn over_tcp(&self, config: &Config) -> Result<Opened, Error> {
        let mut config = config.clone();
        // The driver makes no TLS without the name of a host.
        if config.get_hosts().is_empty() {
            for address in config.get_hostaddrs().to_vec() {
                config.host(address.to_string());
            }
        }
        config
            .ssl_mode(SslMode::Require)
            .ssl_negotiation(SslNegotiation::Direct);
        let (client, connection) = config.connect(self.lines.clone()).await?;
        Ok((client, driven(connection)))
    }

    async fn over_sockets(&self, config: &Config) -> Result<Opened, Error> {
        let mut result = refused(config, io::ErrorKind::NotFound.into()).await;
        for path in &self.sockets {
            result = over_socket(path, config).await;
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Tells the server to cancel the statement of a connection. Returns whether it was told.
    pub async fn cancel(&self, token: &CancelToken) -> bool {
        // The driver knows where it has connected to, if it has.
        if token.cancel_query(self.lines.clone()).await.is_ok() {
            return true;
        }
        // It is not known which of the sockets it was. No other server knows the key of the connection.
        let mut is_told = false;
        for path in &self.sockets {
            if let Ok(stream) = UnixStream::connect(path).await {
                is_told |= token.cancel_query_raw(stream, NoTls).await.is_ok();
            }
        }
        is_told
    }
}

impl Connect for Dial {
    fn connect(&self, config: &Config) -> BoxFuture<'_, Result<Opened, Error>> {
        let config = config.clone();
        Box::pin(async move { self.open(&config).await })
    }
}

/// Opens a connection over a Unix socket.
async fn over_socket(path: &Path, config: &Config) -> Result<Opened, Error> {
    if config.get_ssl_mode() == SslMode::Require {
        return refused(config, io::Error::other("a Unix socket has no TLS")).await;
    }
    let opening = tokio::time::timeout(CONNECT_TIMEOUT, UnixStream::connect(path)).await;
    let stream = match opening.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(stream) => stream,
        Err(error) => return refused(config, error).await,
    };
    let (client, connection) = config.connect_raw(Wire::new(stream), NoTls).await?;
    let connection = driven(connection);
    let wanted = config.get_target_session_attrs();
    if wanted != TargetSessionAttrs::Any {
        let answer = client.simple_query("SHOW transaction_read_only").await?;
        let reads_only = answer
            .iter()
            .any(|message| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some("on")));
        if reads_only != (wanted == TargetSessionAttrs::ReadOnly) {
            return refused(config, io::ErrorKind::PermissionDenied.into()).await;
        }
    }
    Ok((client, connection))
}

/// The error of a connection that cannot be opened. The driver's errors are made only by the driver: so it gets a stream
/// that fails.
async fn refused(config: &Config, error: io::Error) -> Result<Opened, Error> {
    let mut config = config.clone();
    config.ssl_mode(SslMode::Disable);
    let (client, connection) = config.connect_raw(Failed(Some(error)), NoTls).await?;
    Ok((client, driven(connection)))
}

/// Lets a connection do its work until its client is dropped. What its errors are for statements, these are told.
fn driven<S, T>(connection: Connection<S, T>) -> JoinHandle<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to a database of scripts has ended");
        }
    })
}

/// Makes lines of the driver's sockets.
#[derive(Clone)]
struct Lines {
    tls: Option<Tls>,
    mode: SslMode,
    negotiation: SslNegotiation,
}

impl MakeTlsConnect<Socket> for Lines {
    type Stream = Wire<Line>;
    type TlsConnect = Opening;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Opening> {
        let handshake = match &mut self.tls {
            Some(tls) => {
                let made = MakeTlsConnect::<Socket>::make_tls_connect(tls, host);
                Some(made.map_err(io::Error::other)?)
            }
            None => None,
        };
        Ok(Opening {
            handshake,
            mode: self.mode,
            negotiation: self.negotiation,
        })
    }
}

/// A line to one host that is not open yet.
struct Opening {
    handshake: Option<Handshake>,
    mode: SslMode,
    negotiation: SslNegotiation,
}

impl Opening {
    async fn open(self, mut socket: Socket) -> io::Result<Wire<Line>> {
        let must = self.mode == SslMode::Require;
        let Some(handshake) = self.handshake else {
            return match must {
                true => Err(io::Error::other("TLS needs the name of a host")),
                false => Ok(Wire::new(Line::Plain(socket))),
            };
        };
        let encrypts = match self.negotiation == SslNegotiation::Direct {
            true if !must => {
                let why = "`sslnegotiation=direct` needs `sslmode=require`";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            true => true,
            false => {
                socket.write_all(&TLS_QUESTION).await?;
                let mut answer = [0];
                socket.read_exact(&mut answer).await?;
                answer == [TLS_YES]
            }
        };
        let line = match encrypts {
            true => Line::Encrypted(Box::new(handshake.connect(socket).await?)),
            false if must => return Err(io::Error::other("the server does not support TLS")),
            false => Line::Plain(socket),
        };
        Ok(Wire::new(line))
    }
}

impl TlsConnect<Socket> for Opening {
    type Stream = Wire<Line>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Wire<Line>>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(self.open(socket))
    }
}

/// A socket of the driver.
enum Line {
    Plain(Socket),
    Encrypted(Box<Encrypted>),
}

impl AsyncRead for Line {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Self::Encrypted(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Encrypted(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Encrypted(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Encrypted(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

impl TlsStream for Wire<Line> {
    fn channel_binding(&self) -> ChannelBinding {
        match self.get_ref() {
            Line::Plain(_) => ChannelBinding::none(),
            Line::Encrypted(stream) => stream.channel_binding(),
        }
    }
}

/// A stream that fails with this error.
struct Failed(Option<io::Error>);

impl Failed {
    fn error(&mut self) -> io::Error {
        self.0.take().unwrap_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl AsyncRead for Failed {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(self.get_mut().error()))
    }
}

impl AsyncWrite for Failed {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(self.get_mut().error()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(self.get_mut().error()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dial(url: &str) -> Dial {
        Dial::new(&url.parse().unwrap()).unwrap()
    }

    #[test]
    fn hosts_are_sockets_or_others() {
        let paths = |dial: &Dial| -> Vec<String> {
            let shown = dial.sockets.iter();
            shown.map(|path| path.display().to_string()).collect()
        };
        let only = dial("postgres://u@/db?host=/run/pg");
        assert_eq!(paths(&only), ["/run/pg/.s.PGSQL.5432"]);
        assert!(only.sockets_first && !only.has_others && only.lines.tls.is_none());
        let both = dial("host=/run/a,one,/run/b port=1,2,3 user=u");
        assert_eq!(paths(&both), ["/run/a/.s.PGSQL.1", "/run/b/.s.PGSQL.3"]);
        assert!(both.sockets_first && both.has_others && both.lines.tls.is_some());
        let other = dial("postgres://u@one:5433/db?sslmode=disable");
        assert!(paths(&other).is_empty() && !other.sockets_first && other.has_others && other.lines.tls.is_none());
        let address = dial("hostaddr=127.0.0.1 user=u");
        assert!(paths(&address).is_empty() && address.has_others && address.lines.tls.is_none());
    }

    #[tokio::test]
    async fn a_socket_that_cannot_be_opened_is_an_error_with_its_cause() {
        let config: Config = "postgres://u@/db?host=/nowhere".parse().unwrap();
        let opened = dial("postgres://u@/db?host=/nowhere").open(&config).await;
        let error = opened.map(drop).unwrap_err();
        let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<io::Error>());
        assert_eq!(cause.map(io::Error::kind), Some(io::ErrorKind::NotFound), "{error}");
    }
}
