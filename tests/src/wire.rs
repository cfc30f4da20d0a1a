//! A wire between a node and Postgres that can be cut: what was on its way stays on its way, and arrives when the wire is
//! whole again, as with a network that loses packets for a while.

use std::path::PathBuf;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How much is on its way in one direction at most.
const BUFFER_BYTES: usize = 64 * 1024;

/// A TCP port that leads to a Postgres' socket.
#[derive(Debug)]
pub struct Wire {
    url: String,
    whole: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Wire {
    /// To a database, by the URL of a unix socket (`postgres://role@%2Fdirectory/name`).
    pub async fn new(url: &str) -> Self {
        let config: tokio_postgres::Config = url.parse().expect("a URL");
        let Some(tokio_postgres::config::Host::Unix(directory)) = config.get_hosts().first() else {
            panic!("{url} leads to no unix socket");
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let socket = directory.join(format!(".s.PGSQL.{port}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (whole, watched) = watch::channel(true);
        let role = config.get_user().unwrap_or("postgres");
        let database = config.get_dbname().expect("a database");
        Self {
            url: format!("postgres://{role}@{address}/{database}?sslmode=disable"),
            whole,
            task: tokio::spawn(accept(listener, socket, watched)),
        }
    }

    /// The database's URL through this wire.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Nothing gets through any more, in either direction; nobody is told.
    pub fn cut(&self) {
        self.whole.send_replace(false);
    }

    /// What is on its way arrives, and all that follows.
    pub fn mend(&self) {
        self.whole.send_replace(true);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, socket: PathBuf, whole: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((client, _)) = accepted {
                connections.spawn(join(client, socket.clone(), whole.clone()));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn join(client: TcpStream, socket: PathBuf, mut whole: watch::Receiver<bool>) {
    let _ = client.set_nodelay(true);
    if whole.wait_for(|whole| *whole).await.is_err() {
        return;
    }
    let Ok(server) = UnixStream::connect(socket).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::join!(
        carry(from_client, to_server, whole.clone()),
        carry(from_server, to_client, whole),
    );
}

async fn carry(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    mut whole: watch::Receiver<bool>,
) {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if whole.wait_for(|whole| *whole).await.is_err() || to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    // The end is passed on as well, when it can be.
    let _ = whole.wait_for(|whole| *whole).await;
    let _ = to.shutdown().await;
}
