//! The only SQL of Heddle: what is kept in Postgres, in folders by subject, one file per noun.
//!
//! Statements whose correctness rests on locks stand as files of their own under `src/sql/`, each opening with a
//! locking note. Everything else is an inline `query!`, checked against the schema when it is compiled.

pub mod audit;
pub mod backfill;
pub mod change;
pub mod config;
pub mod database;
pub mod dispatch;
mod error;
pub mod event;
pub mod group;
pub mod message;
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
    blob, category, connection, pool, rotate, runtime, script, secret, session, setting, template, timer_task, token,
    usage,
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

use database::{Alone, Connector, Plans, Pool, keep_watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use transaction::Transactions;

/// The database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    /// The data plane's sessions.
    pool: Pool,
    /// Those for what people configure.
    control: Pool,
    /// Those for lists and pages. Their statements are about all days that are kept, of which a session learns once: few
    /// sessions that do nothing else know them, and what people look at takes none from the runs.
    reads: Pool,
    /// The lease's own connection.
    lease: Arc<Alone>,
    connector: Connector,
    connections_max: u32,
    transactions: Arc<Transactions>,
    /// Ends the watch with the last clone.
    _watched: Arc<DropGuard>,
}

/// How many connections a node's data plane opens at most, unless it is told otherwise.
pub const DEFAULT_CONNECTIONS_MAX: u32 = 16;

/// How many it opens at most for what people configure.
const CONTROL_CONNECTIONS_MAX: u32 = 5;

/// How many it opens at most for lists and pages.
const READ_CONNECTIONS_MAX: u32 = 6;

/// Those that stand alone: the lease's, the watch's, the listener's.
const CONNECTIONS_ALONE: u32 = 3;

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations");

impl Store {
    /// Opens pools; one connection is made at once, to see whether it can be, the others when they are needed.
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

    /// Brings the schema up to date. Nodes that start together take turns (an advisory lock).
    pub async fn migrate(&self) -> Result<(), StoreError> {
        let mut session = self.connector.connect(Plans::AsUsual).await?;
        session.bound_by(database::MIGRATION_MAX);
        let migrated = session.wait_for(|raw| async move {
            let migrated = MIGRATIONS.run(raw).await;
            migrated.map_err(|error| sqlx::Error::Migrate(Box::new(error)))
        });
        match migrated.await {
            Err(sqlx::Error::Migrate(error)) => Err(StoreError::Migration(error)),
            other => Ok(other?),
        }
    }

    /// How many connections this opens at most.
    pub fn connections_max(&self) -> u32 {
        self.connections_max
    }

    /// For how long the data plane has asked the database without any answer: nothing moves, whatever the lease says.
    pub fn stalled_for(&self) -> Duration {
        self.connector.watch().stalled_for()
    }

    /// Closes all connections that are idle, and the others when they come back. Waits for nobody.
    pub fn close(&self) {
        self.pool.close();
        self.control.close();
        self.reads.close();
    }
}
