//! How a node reaches Postgres: its connections, what each is set up with, and how long anything is waited for.
//!
//! # Connections
//!
//! A node has three pools: one for the data plane (runs, queues, messages, offers), whose sessions keep the planner to
//! indexes, a small one for lists and pages, which does the same, and a small one for what people configure, which plans
//! as Postgres does by default. So what people look at takes no session from the runs. Beside the pools stand single
//! connections that never wait for a pool: the lease's, the watch's, and the listener's. So a full pool delays no
//! heartbeat.
//!
//! # Every wait has an end
//!
//! A connection may be *half open*: an address that failed over, a firewall that forgot, a server that froze. Nothing
//! arrives any more and nothing says so. sqlx opens its sockets itself and lets nobody set options on them (keepalive,
//! user timeout), and neither of those finds a proxy that accepts bytes and forwards none. So it is found from here:
//!
//! * Connecting, with all that belongs to it, takes at most [`CONNECT_MAX`]; a free connection is waited for as long.
//! * Every statement is a wait that the *watch* (`watch.rs`) knows of. One that lasts suspiciously long makes the watch
//!   ask the server, on a connection of its own, what that session is doing. Is it idle there, or not there at all, then
//!   the answer or the question was lost, and the session is given up: whoever waits gets an error at once, its socket is
//!   closed, and the server is told to end what is left of it at its end, so that its locks come free. A statement that
//!   is at work, or waits for a lock, is left alone up to its bound.
//! * A server that answers nobody is given up after [`SILENCE_MAX`], whatever a statement's bound.
//! * A session that was given up takes the idle ones of its age along: they go the same way. One that has been idle for a
//!   while is asked before it is used ([`TEST_AFTER`]).
//! * A statement that its caller abandoned in the middle (a client went away) and a transaction that was dropped are
//!   settled beside, in [`SETTLE_MAX`], before the session is used again; else it is closed.
//!
//! The other half is the server's: each session asks it for keepalives and a user timeout on its sockets, to end
//! transactions that stand idle, and statements whose client has gone (`server`).

mod alone;
mod listener;
mod pool;
mod server;
mod session;
mod watch;

use std::time::Duration;

pub(crate) use alone::Alone;
pub use listener::Listener;
pub(crate) use pool::{Pool, Transaction};
pub use server::ServerReport;
pub(crate) use server::{Connector, Plans};
pub(crate) use session::PgSession;
pub(crate) use watch::{Watch, keep_watch};

/// One column of rows, as an array for `UNNEST`. Texts and bytes are borrowed, not copied.
pub(crate) fn column<'r, Row, Value>(rows: &'r [Row], value_of: impl Fn(&'r Row) -> Value) -> Vec<Value> {
    rows.iter().map(value_of).collect()
}

/// How long connecting may take, with authentication and set-up, and how long a free connection is waited for.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);

/// The longest that a statement may take while the server says that it is at work.
pub const STATEMENT_MAX: Duration = Duration::from_secs(60);

/// The same for what is long by design: removing what is old, cancelling a day of messages, copying messages in,
/// changing keys.
pub const LONG_STATEMENT_MAX: Duration = Duration::from_secs(15 * 60);

/// The longest that bringing the schema up to date may take, with waiting for another node that does.
pub const MIGRATION_MAX: Duration = Duration::from_secs(2 * 3_600);

/// The longest that a statement of the lease may take. It has to be longer than a slow commit, and does not depend on
/// what is left of the lease: a node that gives up what would have been answered never comes back.
pub const LEASE_STATEMENT_MAX: Duration = Duration::from_secs(5);

/// After this long without an answer the server is asked what became of a statement.
pub const SUSPICIOUS_AFTER: Duration = Duration::from_millis(1_500);

/// A session that the server is not at work for may also be one whose statement is still on its way: megabytes on a slow
/// line. So after sessions were given up those that begin to wait from then on are suspected later, twice as long each time
/// up to this, until none has been given up for [`TRUST_AFTER`]. Sessions that die together count once, however many looks
/// it takes to find them. The lease's statements are small, and suspected as soon as ever.
pub const SUSPICIOUS_AFTER_MAX: Duration = Duration::from_secs(48);

/// After so long without a trouble a connection is trusted again; see [`SUSPICIOUS_AFTER_MAX`].
pub const TRUST_AFTER: Duration = Duration::from_secs(60);

/// After this long without an answer a session is given up if the server answers nobody else either.
pub const SILENCE_MAX: Duration = Duration::from_secs(15);

/// A session that has been idle for so long is asked before it is used.
pub const TEST_AFTER: Duration = Duration::from_secs(10);

/// How long that test may take.
pub const TEST_MAX: Duration = Duration::from_secs(2);

/// How long what a caller left behind may take to be settled.
pub const SETTLE_MAX: Duration = Duration::from_secs(5);

/// Idle connections are closed after this, and all of them when they are so old: backends keep what they once cached.
const IDLE_MAX: Duration = Duration::from_secs(600);
const AGE_MAX: Duration = Duration::from_secs(1_800);

/// An error as if the socket had timed out: nobody can tell what became of the statement.
fn no_answer(text: String) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
}
