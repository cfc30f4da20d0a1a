//! A Postgres of our own, for `heddle dev` and for the tests.
//!
//! The cluster lives in `<data dir>/postgres`, listens on a unix socket in a directory that only its owner may enter,
//! and never on TCP. What keeps it whole:
//!
//! * One process at a time: a lock on `postgres/lock`, which the kernel drops with its holder, however that dies.
//! * A cluster is made in `data.new` and renamed when complete, so a kill in the middle leaves no half of one.
//! * The server dies with the node: the kernel sends it SIGINT (a fast, clean shutdown) when the thread that started it
//!   ends, so that thread, the `keeper`, lives as long as the node. It starts the server again should that be killed.
//! * What a former node left (a server still shutting down, or one running on where the kernel has no such signal; a
//!   stale `postmaster.pid`) is waited for, stopped or removed before the start.
//!
//! Postgres refuses to run as root. Started as root, the server runs as another user, which then need not be able to
//! reach the data directory by its path (it may well be below `/root`): the server inherits open directories and is
//! given `/proc/self/fd/N` as their names, so no permission on the way has to be loosened.

mod binaries;
mod cluster;
mod keeper;
mod owner;
mod test_cluster;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_postgres::NoTls;

use cluster::Cluster;
use keeper::Keeper;

pub use binaries::{MIN_MAJOR, NoServer};
pub use cluster::InUse;
pub use test_cluster::{TestCluster, TestDatabase, stamp};

/// The role that owns everything in the cluster.
const ROLE: &str = "heddle";

/// What to start, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The node's data directory; the cluster is in its subdirectory `postgres`.
    pub data_dir: PathBuf,
    /// A directory with server binaries, instead of searching for one.
    pub binaries: Option<PathBuf>,
    /// Gives durability up for speed: what a test writes need not survive the machine.
    pub for_tests: bool,
    /// Settings as Debian ships them (`jit = on`, 100 connections, ...), for tests of what nodes do on such a server.
    pub stock: bool,
}

impl Options {
    /// A durable cluster in a data directory, with the binaries that are found.
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            binaries: None,
            for_tests: false,
            stock: false,
        }
    }
}

/// A running server, which stops when this is dropped.
#[derive(Debug)]
pub struct EmbeddedPostgres {
    keeper: Keeper,
    socket_dir: PathBuf,
    cluster: Cluster,
}

impl EmbeddedPostgres {
    /// Makes the cluster if there is none, starts its server, and returns when it accepts connections.
    ///
    /// Fails with [`InUse`] if another process runs on this data directory, with [`NoServer`] if there are no server
    /// binaries and none can be downloaded.
    pub async fn start(options: Options) -> Result<Self> {
        let major = cluster::major_of(&options.data_dir)?;
        let binaries = binaries::find(options.binaries.as_deref(), major).await?;
        tokio::task::spawn_blocking(move || {
            let cluster = Cluster::prepare(&options, &binaries)?;
            let socket_dir = cluster.socket_dir().to_owned();
            let keeper = Keeper::start(&cluster, &binaries)?;
            Ok(Self {
                keeper,
                socket_dir,
                cluster,
            })
        })
        .await
        .context("starting Postgres was interrupted")?
    }

    /// The URL of a database, for sqlx, tokio-postgres and psql alike.
    pub fn url(&self, database: &str) -> String {
        let socket_dir = percent_encoded(&self.socket_dir.to_string_lossy());
        format!("postgres://{ROLE}@{socket_dir}/{}", percent_encoded(database))
    }

    /// The directory that holds the server's socket.
    pub fn socket_dir(&self) -> &Path {
        &self.socket_dir
    }

    pub fn process_id(&self) -> Option<u32> {
        self.keeper.process_id()
    }

    /// The user that the server runs as, if that is not the present one.
    pub fn server_user(&self) -> Option<&str> {
        self.cluster.owner().map(|owner| owner.name.as_str())
    }

    /// Creates a database unless it exists; tells whether it did.
    pub async fn create_database(&self, name: &str) -> Result<bool> {
        let statement = format!("CREATE DATABASE {}", quoted(name));
        match self.execute(&statement).await {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some(&tokio_postgres::error::SqlState::DUPLICATE_DATABASE) => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot create the database `{name}`")),
        }
    }

    /// Stops the server, fast but cleanly: open transactions are rolled back, what was committed is on disk.
    pub async fn stop(self) -> Result<()> {
        tokio::task::spawn_blocking(move || drop(self))
            .await
            .context("stopping Postgres was interrupted")
    }

    async fn execute(&self, statement: &str) -> Result<(), tokio_postgres::Error> {
        execute(&self.url("postgres"), statement).await
    }
}

/// Runs one statement on a connection of its own.
async fn execute(url: &str, statement: &str) -> Result<(), tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    let connection = tokio::spawn(connection);
    let done = client.batch_execute(statement).await;
    drop(client);
    // After the goodbye, the server has released the database when the caller continues.
    let _ = connection.await;
    done
}

/// A name as an SQL identifier.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Escapes all but letters, digits, `_` and `-`, which every URL parser decodes in the same way, also as a host.
fn percent_encoded(text: &str) -> String {
    const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'-');
    utf8_percent_encode(text, ESCAPED).to_string()
}

/// The end of a program's output, for an error message.
fn tail(output: &[u8], lines: usize) -> String {
    let text = String::from_utf8_lossy(output);
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// Waits in small steps until `done` returns true; fails after `steps` steps. (The bound is a count: no clock is read.)
fn wait_until(what: &str, step: std::time::Duration, steps: u32, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    for _ in 0..steps {
        if done()? {
            return Ok(());
        }
        std::thread::sleep(step);
    }
    bail!("{what} took longer than {:?}", step * steps)
}

#[cfg(test)]
mod tests;
