//! How a node reaches Postgres: its connections, their settings, and how long anything is waited for.
//!
//! # Connections
//!
//! A node has three pools: one for the data plane (runs, queues, messages, offers), whose sessions restrict the planner
//! to indexes; a small one for lists and pages, which does the same; and a small one for what people configure, which
//! plans as Postgres does by default. So pages and lists take no session from the runs. Besides the pools there are
//! single connections that never wait for a pool: those of the lease, the watch and the listener. So a full pool delays
//! no heartbeat.
//!
//! # Every wait has an end
//!
//! A connection may be *half open*: an address that failed over, a firewall that forgot, a server that froze. No data
//! arrives any more, and no error either. sqlx opens its sockets itself and does not let callers set options on them
//! (keepalive, user timeout), and neither option detects a proxy that accepts bytes and forwards none. So this module
//! detects it:
//!
//! * Connecting, with authentication and set-up, takes at most [`CONNECT_MAX`]; the wait for a free connection is
//!   limited to the same.
//! * The *watch* (`watch.rs`, `keep_watch.rs`) knows of each wait for a statement. If one lasts suspiciously long, the
//!   watch asks the server, on its own connection, what that session is doing. If the session is idle there, or does
//!   not exist, then the answer or the question was lost, and the session is given up: its user gets an error at once,
//!   its socket is closed, and the server is asked to end its side, so that its locks become free. A statement that is
//!   working, or waits for a lock, is left alone up to its bound.
//! * If a server answers no session, sessions are given up after [`SILENCE_MAX`], whatever a statement's bound.
//! * When a session is given up, the idle sessions whose last answer is older are closed too: their connections are
//!   probably lost as well. A session that has been idle for a while is tested before it is used ([`TEST_AFTER`]).
//! * If a caller abandons a statement (a client went away) or drops a transaction, it is ended in the background within
//!   [`SETTLE_MAX`], before the session is used again; otherwise the session is closed.
//!
//! The server does the other half: each session asks it for keepalives and a user timeout on its sockets, to end
//! transactions that are idle, and statements whose client has gone (`connector.rs`).
//!
//! # A full disk
//!
//! A server whose disk is full answers and refuses most writes. A node notices that, and that there is room again
//! (`disk_space.rs`, `keep_room.rs`).

mod alone;
mod connector;
mod disk_space;
mod keep_room;
mod keep_watch;
mod listener;
mod pool;
mod pulse;
mod server;
mod session;
mod watch;

use std::time::Duration;

pub(crate) use alone::Alone;
pub(crate) use connector::{Connector, Plans, unopened};
pub(crate) use keep_room::keep_room;
pub(crate) use keep_watch::keep_watch;
pub use listener::Listener;
pub(crate) use pool::{Pool, Transaction};
pub use server::ServerReport;
pub(crate) use session::{Announced, PgSession, is_cut, is_fatal};
pub(crate) use watch::Watch;

/// One column of rows, as an array for `UNNEST`. Texts and bytes are borrowed, not copied.
pub(crate) fn column<'r, Row, Value>(rows: &'r [Row], value_of: impl Fn(&'r Row) -> Value) -> Vec<Value> {
    // A loop: of `map` and `collect`, each of some two hundred callers would get a copy ten times as long.
    let mut values = Vec::with_capacity(rows.len());
    for row in rows {
        values.push(value_of(row));
    }
    values
}

/// How long connecting may take, with authentication and set-up, and how long to wait for a free connection.
pub const CONNECT_MAX: Duration = Duration::from_secs(5);

/// The longest that a statement may take while the server says that it is working.
pub const STATEMENT_MAX: Duration = Duration::from_secs(60);

/// The same for statements that are long by design: removing old data, cancelling a day of messages, copying messages
/// in, changing keys.
pub const LONG_STATEMENT_MAX: Duration = Duration::from_secs(15 * 60);

/// The longest that migrations may take, including the wait for another node that applies them.
pub const MIGRATION_MAX: Duration = Duration::from_secs(2 * 3_600);

/// The longest that a statement of the lease may take. It must be longer than a slow commit, and does not depend on the
/// rest of the lease: a node that gives up too early on every statement never comes back.
pub const LEASE_STATEMENT_MAX: Duration = Duration::from_secs(5);

/// After this long without an answer, the server is asked about a statement.
pub const SUSPICIOUS_AFTER: Duration = Duration::from_millis(1_500);

/// A session for which the server is not working may also be one whose statement is still being sent: megabytes on a
/// slow line. So after sessions were given up, waits that begin later are suspected later: each time after twice as
/// long, up to this, until none has been given up for [`TRUST_AFTER`]. Sessions that die together count once, however
/// many checks it takes to find them. The lease's statements are small, and are always suspected after the shortest
/// time.
pub const SUSPICIOUS_AFTER_MAX: Duration = Duration::from_secs(48);

/// After this long without a problem, connections are trusted again; see [`SUSPICIOUS_AFTER_MAX`].
pub const TRUST_AFTER: Duration = Duration::from_secs(60);

/// After this long without an answer, a session is given up if the server answers nobody else either.
pub const SILENCE_MAX: Duration = Duration::from_secs(15);

/// A session that has been idle for this long is tested before it is used.
pub const TEST_AFTER: Duration = Duration::from_secs(10);

/// How long that test may take.
pub const TEST_MAX: Duration = Duration::from_secs(2);

/// How long ending an abandoned statement or transaction may take.
pub const SETTLE_MAX: Duration = Duration::from_secs(5);

/// Idle connections are closed after this time, and so are all connections of this age: backends keep in memory what
/// they once cached.
const IDLE_MAX: Duration = Duration::from_secs(600);
const AGE_MAX: Duration = Duration::from_secs(1_800);

/// The same error as a timeout of the socket: nobody knows whether the statement was executed.
fn no_answer(text: String) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))
}
