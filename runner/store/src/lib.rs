//! The only SQL of Heddle: what is kept in Postgres, one file per noun.
//!
//! Statements whose correctness rests on locks stand as files of their own under `src/sql/`, each opening with a
//! locking note. Everything else is an inline `query!`, checked against the schema when it is compiled.

pub mod assignment;
pub mod audience;
pub mod audit;
pub mod backfill;
pub mod blob;
pub mod category;
pub mod change;
pub mod channel;
pub mod connection;
mod error;
pub mod event;
pub mod group;
pub mod link;
pub mod live;
pub mod log;
pub mod message;
pub mod node;
pub mod notice;
pub mod notification;
pub mod offer;
pub mod outbox;
pub mod pool;
pub mod queue;
pub mod reseal;
pub mod retention;
pub mod run;
pub mod schedule;
pub mod script;
pub mod secret;
pub mod session;
pub mod setting;
pub mod spent;
pub mod template;
pub mod timer_task;
pub mod token;
pub mod topic;
pub mod upstream;
pub mod usage;
pub mod used_up;

pub use error::StoreError;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, PgPool, Postgres, Transaction};
use std::str::FromStr;
use std::time::Duration;

/// The database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    pool: PgPool,
}

/// How many connections a node opens at most, unless it is told otherwise.
pub const DEFAULT_CONNECTIONS_MAX: u32 = 16;

/// How long a request waits for a free connection before it fails as [`StoreError::Unavailable`].
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// After this long without a statement an open transaction is ended by the server. Nodes keep none open that long, so it
/// is one of a node that is frozen or cut off: what it has locked has to come free before others take its work over.
const IDLE_IN_TRANSACTION_TIMEOUT: &str = "6s";

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../../migrations");

impl Store {
    /// Opens a pool; connections are made when they are needed.
    pub async fn connect(url: &str, connections_max: u32) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(url)?
            // A slow statement's whole text, such as a migration's, is nothing for an operator's log.
            .disable_statement_logging()
            .application_name("heddle")
            // The default begins with a schema named like the role. A role `heddle` would find the table of migrations
            // in another place before and after the first of them, which makes the schema `heddle`.
            .options([("search_path", "public")])
            .options([("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_TIMEOUT)])
            // All statements of the data plane reach their rows by index. A plan that was made while a table was empty,
            // and is kept, must not scan it when there are a hundred thousand runs in it a second later. A table that
            // was analysed while it was empty counts as one row until it is analysed again, and then the whole of an
            // index is as cheap as one row of it. So statements that join what they are given with such a table compare
            // keys as arrays of one (`r.run = ANY (ARRAY[given.run])`): of that the planner can make a look-up in the
            // index for each given row, and nothing else, since it is no equality by which an index's order would be
            // worth reading. (To name all given keys once more, `r.run = ANY ($1)`, also leaves no other way, but each
            // look-up then goes through all keys: a thousand ends took a million steps.) What is taken from a queue is
            // taken by `ctid = ANY (ARRAY(SELECT ... SKIP LOCKED))`, which is evaluated once.
            .options([
                ("enable_seqscan", "off"),
                ("enable_hashjoin", "off"),
                ("enable_mergejoin", "off"),
            ])
            .statement_cache_capacity(256);
        let pool = PgPoolOptions::new()
            .max_connections(connections_max)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .test_before_acquire(false)
            .connect_with(options)
            .await?;
        Ok(Self { pool })
    }

    /// Brings the schema up to date. Nodes that start together take turns (an advisory lock).
    pub async fn migrate(&self) -> Result<(), StoreError> {
        Ok(MIGRATIONS.run(&self.pool).await?)
    }

    /// A transaction.
    pub async fn begin(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        Ok(self.pool.begin().await?)
    }

    /// The pool itself, for statements in this crate's tests and for health checks.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}
