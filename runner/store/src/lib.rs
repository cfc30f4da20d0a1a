//! All SQL on the schema of Heddle: what is stored in Postgres, in folders by subject, one file per noun.
//!
//! Statements whose correctness depends on locks are separate files in `src/sql/`, each beginning with a locking note.
//! All others are inline `query!`s, checked against the schema at compile time; where one takes a lock, the documentation of
//! its function has the note.

pub mod audit;
pub mod backfill;
pub mod change;
pub mod config;
pub mod database;
pub mod dispatch;
mod error;
pub mod event;
pub mod group;
mod labels;
pub mod message;
mod migrate;
pub mod node;
pub mod notify;
pub mod pages;
pub mod queue;
pub mod retention;
pub mod run;
pub mod schedule;
mod span;
pub mod transaction;

pub use config::{
    blob, category, connection, forget, pool, rotate, runtime, script, secret, session, setting, template, timer_task,
    token, usage,
};
pub use dispatch::{assignment, audience, exhausted, offer};
pub use error::StoreError;
pub use group::link;
pub use message::topic;
pub use notify::{channel, notice, notification, outbox};
pub use queue::peek as queue_peek;
pub use run::{live, log};
pub use schedule::upstream;

use std::sync::Arc;
use std::time::Duration;

use database::{Alone, Connector, Plans, Pool, keep_room, keep_watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use transaction::Transactions;

/// The database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    /// The sessions of the data plane.
    pool: Pool,
    /// The sessions for what people configure.
    control: Pool,
    /// The sessions for lists and pages. Their statements are about all days that are kept, and each session has to
    /// learn these once. So a few sessions do only this, and pages take none from the runs.
    reads: Pool,
    /// The lease's own connection.
    lease: Arc<Alone>,
    connector: Connector,
    connections_max: u32,
    transactions: Arc<Transactions>,
    /// Ends the watch with the last clone.
    _watched: Arc<DropGuard>,
}

/// How many connections a node's data plane opens at most, by default.
pub const DEFAULT_CONNECTIONS_MAX: u32 = 16;

/// How many a node opens at most for what people configure.
const CONTROL_CONNECTIONS_MAX: u32 = 5;

/// How many a node opens at most for lists and pages.
const READ_CONNECTIONS_MAX: u32 = 6;

/// The single connections: those of the lease, the watch and the listener.
const CONNECTIONS_ALONE: u32 = 3;

impl Store {
    /// Opens the pools. One connection is opened at once, as a test; the others when they are needed.
    pub async fn connect(url: &str, connections_max: u32) -> Result<Self, StoreError> {
        let connector = Connector::new(url)?;
        let pool = Pool::new(&connector, Plans::ByIndex, connections_max)?;
        let control_max = CONTROL_CONNECTIONS_MAX.min(connections_max);
        let control = Pool::new(&connector, Plans::AsUsual, control_max)?;
        let reads_max = READ_CONNECTIONS_MAX.min(connections_max);
        let reads = Pool::new(&connector, Plans::Reading, reads_max)?;
        drop(pool.acquire().await?);
        let stop = CancellationToken::new();
        let line = Alone::new(connector.clone(), database::CONNECT_MAX);
        tokio::spawn(keep_watch(connector.watch().clone(), line, stop.clone()));
        tokio::spawn(keep_room(connector.watch().clone(), control.clone(), stop.clone()));
        Ok(Self {
            pool,
            control,
            reads,
            lease: Arc::new(Alone::new(connector.clone(), database::LEASE_STATEMENT_MAX)),
            connector,
            connections_max: connections_max + control_max + reads_max + CONNECTIONS_ALONE,
            transactions: Arc::default(),
            _watched: Arc::new(stop.drop_guard()),
        })
    }

    /// How many connections this node opens at most.
    pub fn connections_max(&self) -> u32 {
        self.connections_max
    }

    /// How long the data plane has been asking the database without any answer: nothing moves, whatever the lease says.
    pub fn stalled_for(&self) -> Duration {
        self.connector.watch().stalled_for()
    }

    /// How long the database has been refusing writes because its disk is full. Some writes may still succeed, such as
    /// heartbeats.
    pub fn full_for(&self) -> Duration {
        self.connector.watch().full_for()
    }

    /// Closes idle connections, and the others when they are returned. Does not wait.
    pub fn close(&self) {
        self.pool.close();
        self.control.close();
        self.reads.close();
    }
}
