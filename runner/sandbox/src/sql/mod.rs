//! Named external databases that scripts query.
//!
//! Each connection has a small pool, created when it is first used. A statement runs alone, in the extended protocol
//! (so it is one statement), under the connection's statement timeout, which the server enforces. If only reading is
//! allowed, it runs in a read-only transaction, and no statement can leave that and continue. Afterwards the session is
//! cleaned before anybody else gets it: an open transaction, changed settings and roles, locks, cursors, temporary tables
//! and values of sequences end with the statement. All groups with a grant for a connection share its sessions.
//!
//! Prepared statements cannot be cleaned so: the driver knows its own by name, and SQL can remove one and put another in
//! its place. So no statement is kept for the next call. The driver keeps up to three, which look up types; a session
//! is returned only if its prepared statements are the same as before the call's statement ran, and is closed otherwise.
//! What extensions keep in a session (such as connections of `dblink`) is not known here, and stays (`docs/scripts.md`).
//!
//! If the attempt ends in the middle of a statement, the server is told to cancel it, and the connection is
//! closed. Errors have their SQLSTATE, and never the address of the connection.

mod address;
mod copy;
mod encode;
mod failure;
mod json;
mod reach;
mod tls;

use crate::rehearsal::{SqlAnswer, SqlStatement};
use crate::services::ConnectionTarget;
pub use address::check_connection_url;
use deadpool_postgres::{
    Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType, Timeouts,
};
pub use failure::{Class, Failure};
use futures::TryStreamExt;
use futures::future::join;
use parking_lot::Mutex;
pub use reach::Reach;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tls::Tls;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::{CancelToken, NoTls, SimpleQueryMessage, Statement};

/// The maximum of connections to one database, per node, whatever the configuration.
const MAX_POOL_SIZE: usize = 100;
/// The maximum of databases with a pool, per node.
const MAX_POOLS: usize = 64;
/// How long connecting may take, and waiting for a free connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long cancelling and cleaning may take.
const CLEAN_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum of rows of one query, and of the bytes of their JSON.
pub const MAX_ROWS: u32 = 10_000;
const MAX_RESULT_BYTES: usize = 8 << 20;
/// The maximum bytes of a statement, and of its parameters.
const MAX_STATEMENT_BYTES: usize = 1 << 20;
const MAX_PARAMS_BYTES: usize = 8 << 20;
/// The longest `statement_timeout` that Postgres accepts.
const SERVER_TIMEOUT_MAX_MILLIS: u128 = i32::MAX as u128;

/// A block that commits could begin another kind of transaction, but within this one it cannot commit.
const READ_ONLY: &str = "BEGIN READ ONLY";

/// Ends all that a statement may have left in its session, except for prepared statements. Names have their schema: the
/// role's own settings decide where names are looked up, and a statement can change those settings for new sessions.
/// (Some versions of Postgres forget a role that the address sets in its `options` when the user is set; `RESET ROLE`
/// brings it back.)
const CLEAN: &str = "ROLLBACK; CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; RESET ALL; UNLISTEN *; \
                     SELECT pg_catalog.pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES";

/// The names of the session's prepared statements; [`BY_SQL`] if one of them was prepared in SQL, which only scripts do.
const PREPARED: &str = "SELECT CASE WHEN pg_catalog.bool_or(from_sql) THEN '!' \
                        ELSE pg_catalog.string_agg(name, ',' ORDER BY name) END FROM pg_catalog.pg_prepared_statements";
/// It is no name of the driver.
const BY_SQL: &str = "!";

/// The pools of a node.
#[derive(Default)]
pub(crate) struct Databases {
    pools: Mutex<HashMap<String, Database>>,
}

/// The bounds of one statement.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The server's timeout: `None`, that of its connection; zero, no limit.
    pub timeout: Option<Duration>,
    /// The maximum bytes of its rows as JSON; never more than 8 MiB.
    pub max_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            timeout: None,
            max_bytes: MAX_RESULT_BYTES,
        }
    }
}

#[derive(Clone)]
struct Database {
    id: String,
    pool: Pool,
    tls: Option<Tls>,
}

impl Databases {
    /// The result of a script's statement; its error is for the script's author.
    pub async fn carry_out(
        &self,
        target: &ConnectionTarget,
        asked: &SqlStatement,
        cut: Cut,
    ) -> Result<SqlAnswer, String> {
        let answer = self
            .carry_out_within(target, asked, Bounds::default(), &Reach::default(), cut)
            .await;
        answer.map_err(|failure| failure.message)
    }

    /// The same, with separate bounds. `reach` knows how far it has come.
    pub async fn carry_out_within(
        &self,
        target: &ConnectionTarget,
        asked: &SqlStatement,
        bounds: Bounds,
        reach: &Reach,
        cut: Cut,
    ) -> Result<SqlAnswer, Failure> {
        let SqlStatement {
            connection,
            statement,
            params,
            rows,
        } = asked;
        check_size(statement, params).map_err(Failure::fatal)?;
        let mut session = self.session(connection, target, bounds.timeout, reach, cut).await?;
        let (max_rows, max_bytes) = (
            target.max_rows.clamp(1, MAX_ROWS),
            bounds.max_bytes.min(MAX_RESULT_BYTES),
        );
        let result = match rows {
            true => session
                .query(statement, params, max_rows, max_bytes)
                .await
                .map(SqlAnswer::Rows),
            false => session.execute(statement, params).await.map(SqlAnswer::Count),
        };
        session.end(result).await
    }

    async fn session(
        &self,
        name: &str,
        target: &ConnectionTarget,
        statement_timeout: Option<Duration>,
        reach: &Reach,
        cut: Cut,
    ) -> Result<Session, Failure> {
        let database = self.database(name, target)?;
        reach.connecting(&database.pool);
        let connection = database.pool.get().await.map_err(|error| match error {
            PoolError::Timeout(TimeoutType::Wait) => Failure::passing(format!(
                "connection `{name}`: no connection became free in time; increase `max_connections`, or run fewer \
                 attempts at the same time"
            )),
            PoolError::Backend(error) => match error.code() {
                Some(code) => Failure {
                    message: format!(
                        "connection `{name}`: the database refused to connect (SQLSTATE {})",
                        code.code()
                    ),
                    class: Class::of(
                        code.code(),
                        error.as_db_error().map_or("", |db| db.message()),
                        target.read_only,
                    ),
                },
                None => {
                    let error = failure::without_address(&error);
                    tracing::warn!(connection = name, %error, "cannot connect to a database of scripts");
                    Failure::passing(format!("connection `{name}`: cannot connect to the database"))
                }
            },
            _ => Failure::passing(format!("connection `{name}`: cannot connect to the database")),
        })?;
        reach.connected();
        let cancel = connection.cancel_token();
        Ok(Session {
            connection: Some(connection),
            cancel,
            tls: database.tls,
            words: Words {
                read_only: target.read_only,
                cut,
            },
            statement_timeout,
            statement: None,
            before: None,
        })
    }

    fn database(&self, name: &str, target: &ConnectionTarget) -> Result<Database, Failure> {
        let mut pools = self.pools.lock();
        if let Some(database) = pools.get(name)
            && database.id == target.id
        {
            return Ok(database.clone());
        }
        let wrong = || Failure::fatal(format!("connection `{name}`: its URL is not a postgres:// URL"));
        let mut config = address::config_of(target).map_err(|_| wrong())?;
        config.connect_timeout(CONNECT_TIMEOUT);
        if config.get_application_name().is_none() {
            config.application_name("heddle");
        }
        // Sockets have no TLS, and no host name for it.
        let sockets = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        let encrypted = !sockets && config.get_ssl_mode() != SslMode::Disable;
        let tls = if encrypted {
            Some(tls::connector(config.get_ssl_mode()).map_err(Failure::fatal)?)
        } else {
            None
        };
        let recycling = ManagerConfig {
            recycling_method: RecyclingMethod::Fast,
        };
        let manager = match &tls {
            Some(tls) => Manager::from_config(config, tls.clone(), recycling),
            None => Manager::from_config(config, NoTls, recycling),
        };
        let pool = Pool::builder(manager)
            .max_size((target.max_connections as usize).clamp(1, MAX_POOL_SIZE))
            .runtime(Runtime::Tokio1)
            .timeouts(Timeouts {
                wait: Some(WAIT_TIMEOUT),
                create: Some(CONNECT_TIMEOUT),
                recycle: Some(CLEAN_TIMEOUT),
            })
            .build()
            .map_err(|_| wrong())?;
        if pools.len() >= MAX_POOLS && !pools.contains_key(name) {
            let idle = pools
                .iter()
                .min_by_key(|(_, database)| database.pool.status().size)
                .map(|(name, _)| name.clone());
            idle.and_then(|name| pools.remove(&name));
        }
        let database = Database {
            id: target.id.clone(),
            pool,
            tls,
        };
        pools.insert(name.to_owned(), database.clone());
        Ok(database)
    }
}

/// Refuses a statement that is too large, before anything is done for it.
pub(crate) fn check_size(statement: &str, params: &str) -> Result<(), String> {
    if statement.len() > MAX_STATEMENT_BYTES {
        return Err(format!("a statement must have at most {MAX_STATEMENT_BYTES} bytes"));
    }
    if params.len() > MAX_PARAMS_BYTES {
        return Err(format!("params must have at most {MAX_PARAMS_BYTES} bytes"));
    }
    Ok(())
}

/// What the last row of an answer to [`PREPARED`] says. Without such a row, nothing is known.
fn prepared_of(answer: &[SimpleQueryMessage]) -> String {
    let row = answer.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    // No statements are NULL.
    let said = row.and_then(|row| row.try_get(0).ok());
    said.map_or(BY_SQL, Option::unwrap_or_default).to_owned()
}

/// Why a statement has no result.
enum Broken {
    /// The statement failed; the connection is usable.
    Statement(Failure),
    /// The connection is in an unknown state, or lost.
    Connection(Failure),
}

impl Broken {
    /// An error of the statement, for its author.
    fn wrong(message: String) -> Self {
        Self::Statement(Failure::fatal(message))
    }

    fn too_much(message: String) -> Self {
        Self::Connection(Failure {
            message,
            class: Class::TooMuch,
        })
    }
}

/// Returns the beginning of a text that was cut without the beginning of a secret at its end (`HostServices::cut`).
pub(crate) type Cut = Arc<dyn Fn(String) -> String + Send + Sync>;

/// What the errors of a session need to be told.
#[derive(Clone)]
struct Words {
    read_only: bool,
    cut: Cut,
}

impl Words {
    /// The error of a statement that was sent.
    fn by(&self, error: tokio_postgres::Error, statement: &str) -> Broken {
        // These are rows of a COPY: the driver finds them where it does not expect them, and they would disturb the
        // next attempt.
        if error.as_db_error().is_none() && !error.is_closed() && copy::is_copy(statement) && is_unexpected(&error) {
            return Broken::Connection(Failure::fatal(copy::REFUSED.into()));
        }
        self.of(error)
    }

    fn of(&self, error: tokio_postgres::Error) -> Broken {
        let Some(db) = error.as_db_error() else {
            let message = format!("the connection to the database failed: {error}");
            return Broken::Connection(Failure::passing(message));
        };
        let code = db.code().code();
        let message = failure::message_of(db.message(), code, [db.detail(), db.hint()], self.cut.as_ref());
        let stale = failure::is_stale(code, db.routine());
        let class = match stale {
            true => Class::Passing,
            false => Class::of(code, db.message(), self.read_only),
        };
        // What a session has planned or prepared does not fit any more; the next attempt gets another session.
        if stale || error.is_closed() {
            Broken::Connection(Failure { message, class })
        } else {
            Broken::Statement(Failure { message, class })
        }
    }
}

/// Why a statement failed: in a transaction that only reads, the look before it may have failed, and then only that error
/// tells.
fn reason(error: tokio_postgres::Error, looked: Option<tokio_postgres::Error>) -> tokio_postgres::Error {
    match looked {
        Some(looked) if error.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) => looked,
        _ => error,
    }
}

/// Whether the server sent something that the driver does not expect. The error has no code for that, only words.
fn is_unexpected(error: &tokio_postgres::Error) -> bool {
    error.to_string().contains("unexpected message")
}

/// A connection in use by one statement.
struct Session {
    connection: Option<Object>,
    cancel: CancelToken,
    tls: Option<Tls>,
    words: Words,
    /// The server's timeout for this statement, if it differs from that of the session.
    statement_timeout: Option<Duration>,
    /// The statement, which is closed after the session was checked: so its name is in both lists.
    statement: Option<Statement>,
    /// The session's prepared statements ([`PREPARED`]) when the statement began to run. `None`: it never did.
    before: Option<String>,
}

impl Session {
    fn connection(&self) -> Result<&Object, Broken> {
        self.connection
            .as_ref()
            .ok_or_else(|| Broken::Connection(Failure::passing("the connection was closed".into())))
    }

    async fn prepare(&mut self, statement: &str, params: &str) -> Result<(Statement, Vec<encode::Text>), Broken> {
        let words = self.words.clone();
        let connection = self.connection()?;
        let params = encode::parse(params).map_err(Broken::wrong)?;
        let broken = |error| words.of(error);
        if let Some(timeout) = self.statement_timeout {
            // It ends when the session is cleaned. Zero means no limit.
            let millis = timeout.as_millis().min(SERVER_TIMEOUT_MAX_MILLIS);
            let set = format!("SET statement_timeout = {millis}");
            connection.batch_execute(&set).await.map_err(broken)?;
        }
        if words.read_only {
            connection.batch_execute(READ_ONLY).await.map_err(broken)?;
        }
        let prepared = connection.prepare(statement).await.map_err(broken)?;
        self.statement = Some(prepared.clone());
        if prepared.params().len() != params.len() {
            return Err(Broken::wrong(format!(
                "the statement has {} parameters, `params` has {}",
                prepared.params().len(),
                params.len()
            )));
        }
        Ok((prepared, params))
    }

    async fn query(
        &mut self,
        statement: &str,
        params: &str,
        max_rows: u32,
        max_bytes: usize,
    ) -> Result<String, Broken> {
        let words = self.words.clone();
        let broken = |error| words.by(error, statement);
        let (prepared, params) = self.prepare(statement, params).await?;
        let columns = prepared.columns();
        for (index, column) in columns.iter().enumerate() {
            if columns[..index].iter().any(|other| other.name() == column.name()) {
                return Err(Broken::wrong(format!(
                    "two columns have the name `{}`; give them different names with `AS`",
                    column.name()
                )));
            }
        }
        let connection = self.connection()?;
        // Both are sent at once, in this order.
        let (before, rows) = join(
            connection.simple_query(PREPARED),
            connection.query_raw(&prepared, params),
        )
        .await;
        let looked = self.ran_after(before);
        let rows = rows.map_err(|error| broken(reason(error, looked)))?;
        let mut rows = pin!(rows);
        let mut out = String::from("[");
        let mut count = 0;
        while let Some(row) = rows.try_next().await.map_err(broken)? {
            count += 1;
            if count > max_rows {
                return Err(Broken::too_much(format!(
                    "the result has more than the maximum of {max_rows} rows; select \
                    fewer rows"
                )));
            }
            if count > 1 {
                out.push(',');
            }
            json::write_row(&mut out, &row).map_err(|error| Broken::Connection(Failure::fatal(error)))?;
            if out.len() >= max_bytes {
                return Err(Broken::too_much(format!(
                    "the result has more than the maximum of {max_bytes} bytes; \
                    select less data"
                )));
            }
        }
        out.push(']');
        Ok(out)
    }

    async fn execute(&mut self, statement: &str, params: &str) -> Result<u64, Broken> {
        let (prepared, params) = self.prepare(statement, params).await?;
        let connection = self.connection()?;
        // Both are sent at once, in this order.
        let (before, changed) = join(
            connection.simple_query(PREPARED),
            connection.execute_raw(&prepared, params),
        )
        .await;
        let looked = self.ran_after(before);
        changed.map_err(|error| self.words.by(reason(error, looked), statement))
    }

    /// Keeps the answer to [`PREPARED`] from the moment before the statement, or returns its error. Without an answer, the
    /// session is never as before, and is closed. What the statement itself did counts all the same: it may be committed.
    fn ran_after(
        &mut self,
        answer: Result<Vec<SimpleQueryMessage>, tokio_postgres::Error>,
    ) -> Option<tokio_postgres::Error> {
        let (before, error) = match answer {
            Ok(answer) => (prepared_of(&answer), None),
            Err(error) => (BY_SQL.to_owned(), Some(error)),
        };
        self.before = Some(before);
        error
    }

    /// Whether the session has the same prepared statements as before its statement ran. (A statement that did not run
    /// cannot have prepared any.)
    fn is_as_before(&self, after: &str) -> bool {
        match &self.before {
            Some(before) => before == after && after != BY_SQL,
            None => after != BY_SQL,
        }
    }

    /// Cleans the session and returns it, or closes it.
    async fn end<T>(mut self, result: Result<T, Broken>) -> Result<T, Failure> {
        let result = match result {
            Err(Broken::Connection(error)) => return Err(error),
            Err(Broken::Statement(error)) => Err(error),
            Ok(value) => Ok(value),
        };
        let clean = format!("{CLEAN}; {PREPARED}");
        if let Ok(connection) = self.connection()
            && let Ok(Ok(answer)) = tokio::time::timeout(CLEAN_TIMEOUT, connection.simple_query(&clean)).await
            && self.is_as_before(&prepared_of(&answer))
        {
            // Closes the statement before anybody else can send one.
            drop(self.statement.take());
            // Dropping it returns it.
            drop(self.connection.take());
        }
        result
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take() else {
            return;
        };
        let connection = Object::take(connection);
        let (cancel, tls) = (self.cancel.clone(), self.tls.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let cancelling = async {
                    match tls {
                        Some(tls) => cancel.cancel_query(tls).await,
                        None => cancel.cancel_query(NoTls).await,
                    }
                };
                let cancelled = tokio::time::timeout(CLEAN_TIMEOUT, cancelling).await;
                if !matches!(cancelled, Ok(Ok(()))) {
                    tracing::debug!("cannot cancel a statement; its connection is closed");
                }
                drop(connection);
            });
        }
    }
}
