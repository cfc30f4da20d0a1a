//! Opening sessions, and their settings.
//!
//! A node works on any Postgres as its distribution ships it: it sets what it needs for its sessions by itself, with a
//! statement (poolers accept few settings at the start of a connection), and with no more rights than any role has.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use heddle_domain::Chain;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Executor, Row};
use tokio::time::Instant;

use super::{CONNECT_MAX, PgSession, Watch, is_cut, no_answer};
use crate::StoreError;

/// The pause before a refused connection is tried again, within [`CONNECT_MAX`].
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// How a session's statements are planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plans {
    /// The data plane's. All of its statements reach their rows by index. A plan that was made while a table was empty,
    /// and is kept, must not scan it when there are a hundred thousand runs in it a second later. A table that was
    /// analysed while it was empty counts as one row until it is analysed again, and then reading a whole index seems
    /// as cheap as one row of it. So statements that join their arguments with such a table compare keys as arrays with
    /// one element (`r.run = ANY (ARRAY[given.run])`): the planner can only make an index look-up for each given row of
    /// it, since it is no equality that would make the index's order useful. (To name all given keys once more, `r.run
    /// = ANY ($1)`, also leaves only that plan, but each look-up then goes through all keys: a thousand ends took a
    /// million steps.) Rows are taken from a queue by `ctid = ANY (ARRAY(SELECT ... SKIP LOCKED))`, which is evaluated
    /// once.
    ByIndex,
    /// Lists and pages, planned the same way: they read the same tables, and some of their plans are kept as well
    /// (`crate::span`). Whether they are answered says nothing about the data plane.
    Reading,
    /// The defaults of Postgres.
    AsUsual,
}

/// What every session sets, in addition to [`BY_INDEX`]. Any role may change each of these settings for itself.
const ALWAYS: &[(&str, &str)] = &[
    // The default begins with a schema named like the role. For a role `heddle`, the table of migrations would have
    // different schemas before and after the first migration, which creates the schema `heddle`.
    ("search_path", "public"),
    // A statement of 0.3 ms takes more than a second if it is compiled first. That happens because `enable_seqscan =
    // off` adds 1e10 to the estimated cost of a plan.
    ("jit", "off"),
    // The transactions are written for this level.
    ("default_transaction_isolation", "read committed"),
    ("default_transaction_deferrable", "off"),
    // Bounds are set by the code that knows them (see `database`), not by settings of a role or a database.
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("transaction_timeout", "0"),
    // Connections of a pool are often idle.
    ("idle_session_timeout", "0"),
    // The server ends a transaction that is open this long without a statement. Nodes keep none open that long, so its
    // node has stopped running or has lost the network. Its locks must become free before others take over its work.
    ("idle_in_transaction_session_timeout", "6s"),
    // The server notices within some 15 s that a node is gone. Without effect on unix sockets.
    ("tcp_keepalives_idle", "5"),
    ("tcp_keepalives_interval", "3"),
    ("tcp_keepalives_count", "3"),
    ("tcp_user_timeout", "10s"),
];

/// A statement whose client has closed its connection is ended at the server's next check (Postgres 14 and later, on
/// Linux).
const CLIENT_CHECK: (&str, &str) = ("client_connection_check_interval", "2s");

/// Additional settings of the sessions of the data plane, and of lists and pages.
const BY_INDEX: &[(&str, &str)] = &[
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    // Starting workers takes longer than any of these statements.
    ("max_parallel_workers_per_gather", "0"),
];

/// Custom plans for batches; generic ones when they are no worse.
const PLANS_BY_COST: &[(&str, &str)] = &[("plan_cache_mode", "auto")];

/// Statements about a few days get plans for these days. To find out that a generic plan is worse, the server would
/// have to make it once in each session: for all days that are kept, which takes fifty milliseconds for sixty. Where a
/// generic plan is better, the statement's transaction says so (`span`).
const PLANS_ANEW: &[(&str, &str)] = &[("plan_cache_mode", "force_custom_plan")];

/// The statement that sets up a session in one round trip: settings that this server version knows, and the session's
/// process.
fn set_up(plans: Plans) -> String {
    let (ways, kept) = match plans {
        Plans::ByIndex => (BY_INDEX, PLANS_BY_COST),
        Plans::Reading => (BY_INDEX, PLANS_ANEW),
        Plans::AsUsual => (&[][..], PLANS_BY_COST),
    };
    let values: Vec<String> = [ALWAYS, ways, kept]
        .into_iter()
        .flatten()
        .map(|(name, value)| format!("('{name}', '{value}')"))
        .collect();
    let (check, every) = CLIENT_CHECK;
    format!(
        "SELECT pg_backend_pid() AS process,
                (SELECT a.backend_start::text FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()) AS born,
                current_setting('transaction_read_only') AS read_only,
                (SELECT count(set_config(s.name, wanted.value, false))
                   FROM pg_settings s
                   JOIN (VALUES {}, ('{check}', CASE WHEN version() LIKE '%linux%' THEN '{every}' ELSE '0' END))
                        AS wanted (name, value) ON wanted.name = s.name) AS settings",
        values.join(", ")
    )
}

#[derive(Clone, Debug)]
pub(crate) struct Connector {
    options: Arc<PgConnectOptions>,
    address: Arc<str>,
    watch: Arc<Watch>,
}

impl Connector {
    /// For a database, by its URL.
    pub(crate) fn new(url: &str) -> Result<Self, StoreError> {
        let options = PgConnectOptions::from_str(&as_libpq_reads(url)?)
            .map_err(|error| wrong(Chain(&error)))?
            // The whole text of a slow statement, such as a migration, does not belong in an operator's log.
            .disable_statement_logging()
            .application_name("heddle")
            // Numbers are sent in binary form; poolers refuse settings that they do not know.
            .extra_float_digits(None)
            .statement_cache_capacity(256);
        let address = match options.get_socket() {
            Some(path) => path.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        };
        Ok(Self {
            options: Arc::new(options),
            address: address.into(),
            watch: Watch::new(),
        })
    }

    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    pub(crate) fn options(&self) -> PgConnectOptions {
        (*self.options).clone()
    }

    /// A new session. If the server refuses (it is just starting, or has no free connection), tries again until
    /// [`CONNECT_MAX`] is over; the error then has the last reason, as [`unopened`].
    pub(crate) async fn connect(&self, plans: Plans) -> Result<PgSession, sqlx::Error> {
        self.connect_patiently(plans).await.map_err(unopened)
    }

    async fn connect_patiently(&self, plans: Plans) -> Result<PgSession, sqlx::Error> {
        let until = Instant::now() + CONNECT_MAX;
        let mut why = None;
        loop {
            match tokio::time::timeout_at(until, self.connect_once(plans)).await {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(error)) if !is_passing(&error) => return Err(error),
                Ok(Err(error)) => why = Some(error),
                Err(_) => {
                    return Err(why.unwrap_or_else(|| {
                        let seconds = CONNECT_MAX.as_secs();
                        no_answer(format!("connecting to {} took longer than {seconds} s", self.address))
                    }));
                }
            }
            if Instant::now() + CONNECT_AGAIN_AFTER > until
                && let Some(error) = why
            {
                return Err(error);
            }
            tokio::time::sleep(CONNECT_AGAIN_AFTER).await;
        }
    }

    async fn connect_once(&self, plans: Plans) -> Result<PgSession, sqlx::Error> {
        let mut raw = self.options.connect().await.map_err(|error| self.named(error))?;
        let statement = set_up(plans);
        let row = first_row(&mut raw, statement).await?;
        let process: i32 = row.try_get("process")?;
        let born: Option<String> = row.try_get("born")?;
        let read_only: String = row.try_get("read_only")?;
        if read_only == "on" {
            let text = format!("the Postgres at {} is read-only; is it a standby?", self.address);
            return Err(sqlx::Error::Io(std::io::Error::new(
                std::io::ErrorKind::ReadOnlyFilesystem,
                text,
            )));
        }
        Ok(PgSession::new(
            raw,
            &self.watch,
            process,
            born.unwrap_or_default(),
            plans == Plans::ByIndex,
        ))
    }

    /// The same error, with the address.
    fn named(&self, error: sqlx::Error) -> sqlx::Error {
        match error {
            sqlx::Error::Io(error) => sqlx::Error::Io(std::io::Error::new(
                error.kind(),
                format!("cannot connect to {}: {error}", self.address),
            )),
            error => error,
        }
    }
}

/// The error of a session that could not be opened, which contains the reason. No statement has been sent, so the reason
/// says nothing about any, whatever its code: also a password that is just being changed, a role that may not log in, or a
/// pooler with codes of its own. And it is no error of an open session that was cut.
pub(crate) fn unopened(error: sqlx::Error) -> sqlx::Error {
    if matches!(error, sqlx::Error::Io(_)) && !is_cut(&error) {
        return error;
    }
    let why: Box<dyn std::error::Error + Send + Sync> = match error {
        sqlx::Error::Io(why) => why.into(),
        error => error.into(),
    };
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::NotConnected, why))
}

fn wrong(why: impl std::fmt::Display) -> StoreError {
    StoreError::Address(format!(
        "{why}; write for example postgres://user:password@host/database"
    ))
}

/// A URL whose user and port come without a host (`postgres://me@/db?host=/run/postgresql`), as libpq reads it: the parser
/// of URLs needs a host beside them, so they are put into the query.
fn as_libpq_reads(url: &str) -> Result<Cow<'_, str>, StoreError> {
    let parts = url.split_once("://");
    let Some((scheme, rest)) = parts.filter(|(scheme, _)| matches!(*scheme, "postgres" | "postgresql")) else {
        return Err(wrong("it does not begin with postgres:// or postgresql://"));
    };
    let (authority, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (login, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if authority.is_empty() || !(host.is_empty() || host.starts_with(':')) {
        return Ok(Cow::Borrowed(url));
    }
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let port = host.strip_prefix(':').unwrap_or_default();
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut pairs = Vec::new();
    // In a query, a plus is a space. What was given there already comes later, so it counts.
    for (name, value) in [("user", user), ("password", password), ("port", port)] {
        if !value.is_empty() {
            pairs.push(format!("{name}={}", value.replace('+', "%2B").replace('&', "%26")));
        }
    }
    pairs.extend((!query.is_empty()).then(|| query.to_owned()));
    Ok(Cow::Owned(format!("{scheme}://{path}?{}", pairs.join("&"))))
}

async fn first_row(raw: &mut PgConnection, statement: String) -> Result<sqlx::postgres::PgRow, sqlx::Error> {
    raw.fetch(sqlx::raw_sql(sqlx::AssertSqlSafe(statement)))
        .try_next()
        .await?
        .ok_or(sqlx::Error::RowNotFound)
}

/// Whether another try may succeed.
fn is_passing(error: &sqlx::Error) -> bool {
    match error {
        // A server that accepts no writes is reported at once, so that the caller learns the reason.
        sqlx::Error::Io(error) => error.kind() != std::io::ErrorKind::ReadOnlyFilesystem,
        // The server is starting; all its connections are taken; somebody has ended all sessions, also this one.
        sqlx::Error::Database(error) => {
            matches!(error.code().as_deref(), Some("57P03" | "53300" | "57P01" | "57P02"))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_as_libpq_reads_them() {
        let of = |url: &str| Connector::new(url).map(|connector| connector.options());
        let options = of("postgres://me:a%2Fb+c@/db?host=/run/postgresql").unwrap();
        let socket = options.get_socket().map(|path| path.display().to_string());
        assert_eq!(
            (options.get_username(), options.get_database(), socket.as_deref()),
            ("me", Some("db"), Some("/run/postgresql"))
        );
        let options = of("postgresql://me@:5433/db?host=db.example.com").unwrap();
        assert_eq!((options.get_host(), options.get_port()), ("db.example.com", 5433));
        let options = of("postgres://me@db.example.com/db").unwrap();
        assert_eq!((options.get_host(), options.get_port()), ("db.example.com", 5432));
        for bad in [
            "",
            "mysql://me@x/db",
            "host=x dbname=db",
            "postgres://me@x:port/db",
            "postgres://x/db?sslmode=some",
        ] {
            let error = of(bad).map(drop).unwrap_err();
            assert!(matches!(error, StoreError::Address(_)), "{bad}: {error:?}");
        }
    }
}
