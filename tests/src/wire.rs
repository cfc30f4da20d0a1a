//! A wire between a node and Postgres that misbehaves as networks do: it is slow, it stalls (what was on its way stays on
//! its way, and arrives when the wire is whole again), it forgets connections that it has while new ones work, it closes
//! them, or there is nobody at its end.

use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How many bytes are read at once, and how many such pieces are under way in one direction at most.
const BUFFER_BYTES: usize = 64 * 1024;
const PIECES_MAX: usize = 256;

/// What a wire does just now.
#[derive(Clone, Copy, Debug)]
struct Manner {
    /// Nothing gets through while this is false.
    whole: bool,
    /// How long bytes take, in each direction.
    delay: Duration,
    /// Connections with smaller numbers are forgotten: open, and nothing gets through them for good.
    forgotten: u64,
    /// Connections with smaller numbers are closed.
    closed: u64,
    /// Whether connections are refused, as if nobody listened.
    refusing: bool,
}

/// A TCP port that leads to a Postgres' socket.
#[derive(Debug)]
pub struct Wire {
    url: String,
    manner: watch::Sender<Manner>,
    /// The number that the next connection gets.
    next: watch::Receiver<u64>,
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
        let (manner, watched) = watch::channel(Manner {
            whole: true,
            delay: Duration::ZERO,
            forgotten: 0,
            closed: 0,
            refusing: false,
        });
        let (count, next) = watch::channel(0);
        let role = config.get_user().unwrap_or("postgres");
        let database = config.get_dbname().expect("a database");
        Self {
            url: format!("postgres://{role}@{address}/{database}?sslmode=disable"),
            manner,
            next,
            task: tokio::spawn(accept(listener, socket, watched, count)),
        }
    }

    /// The database's URL through this wire.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Nothing gets through any more, in either direction; connections are accepted, and nobody gets an error.
    pub fn cut(&self) {
        self.manner.send_modify(|manner| manner.whole = false);
    }

    /// The bytes under way arrive, and all that follow.
    pub fn mend(&self) {
        self.manner.send_modify(|manner| manner.whole = true);
    }

    /// The delay from now on, in each direction.
    pub fn delay(&self, delay: Duration) {
        self.manner.send_modify(|manner| manner.delay = delay);
    }

    /// Forgets the connections that there are: they stay open, and nothing gets through them any more. New ones work.
    pub fn forget(&self) {
        let next = *self.next.borrow();
        self.manner.send_modify(|manner| manner.forgotten = next);
    }

    /// Closes the connections that there are, at both ends. New ones work.
    pub fn close(&self) {
        let next = *self.next.borrow();
        self.manner.send_modify(|manner| manner.closed = next);
    }

    /// Closes all connections, and takes none until [`Wire::accept`].
    pub fn refuse(&self) {
        self.manner.send_modify(|manner| manner.refusing = true);
        self.close();
    }

    pub fn accept(&self) {
        self.manner.send_modify(|manner| manner.refusing = false);
    }

    /// How many connections there have been.
    pub fn connections(&self) -> u64 {
        *self.next.borrow()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, socket: PathBuf, manner: watch::Receiver<Manner>, next: watch::Sender<u64>) {
    let address = listener.local_addr().expect("an address");
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    let mut changes = manner.clone();
    loop {
        let refusing = changes.borrow_and_update().refusing;
        match (refusing, &listener) {
            (true, Some(_)) => listener = None,
            (false, None) => listener = TcpListener::bind(address).await.ok(),
            _ => {}
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = accepted => if let Ok((client, _)) = accepted {
                let number = *next.borrow();
                next.send_replace(number + 1);
                connections.spawn(join(client, socket.clone(), number, manner.clone()));
            },
            changed = changes.changed() => if changed.is_err() { return },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn join(client: TcpStream, socket: PathBuf, number: u64, mut manner: watch::Receiver<Manner>) {
    let _ = client.set_nodelay(true);
    if manner.wait_for(|manner| manner.whole).await.is_err() {
        return;
    }
    let Ok(server) = UnixStream::connect(socket).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let both = async {
        tokio::join!(
            carry(from_client, to_server, number, manner.clone()),
            carry(from_server, to_client, number, manner.clone()),
        );
    };
    let mut closing = manner.clone();
    tokio::select! {
        () = both => {}
        _ = closing.wait_for(|manner| number < manner.closed) => {}
    }
}

/// Carries one direction: a piece arrives so long after it was sent as the wire is slow.
async fn carry(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    number: u64,
    mut manner: watch::Receiver<Manner>,
) {
    let (sender, mut pieces) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES_MAX);
    let delays = manner.clone();
    let read = async move {
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + delays.borrow().delay;
            if sender.send((due, buffer[..count].to_vec())).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((due, piece)) = pieces.recv().await {
            tokio::time::sleep_until(due).await;
            let passes = manner.wait_for(|manner| manner.whole && number >= manner.forgotten);
            if passes.await.is_err() || to.write_all(&piece).await.is_err() {
                return;
            }
        }
        // The end is passed on as well, when it can be.
        let _ = manner
            .wait_for(|manner| manner.whole && number >= manner.forgotten)
            .await;
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}
