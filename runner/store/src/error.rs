//! Errors between Heddle and its database.

use std::fmt;
use std::panic::Location;
use std::str::FromStr;
use std::sync::Arc;

use heddle_domain::framed;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sqlx::migrate::MigrateError;

use crate::database::{is_cut, is_fatal};

/// An error of the store. Everything on which a caller decides (not found, exists already, in use) is data of the
/// respective call, not one of these.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL of the database is no address of a Postgres.
    #[error("the URL of the database is not valid: {0}")]
    Address(String),
    /// Postgres cannot be reached, opens no session (it also refuses a password, a role or a database that it takes at
    /// other times), has ended the session, lacks resources (disk, memory, connections), or no connection became free in
    /// time: try again later.
    #[error("the database is not available")]
    Unavailable(#[source] Failed),
    /// The server accepts no writes at the moment, such as a standby that has not been promoted: try again later.
    #[error("the database is read-only")]
    ReadOnly(#[source] Failed),
    /// Two transactions conflicted (deadlock, serialisation), or somebody cancelled the statement: repeat the whole
    /// transaction.
    #[error("the transaction must be repeated")]
    Conflict(#[source] Failed),
    /// A revision or a resolution that a node knows is not in the database: the server has lost its last commits (a failover
    /// to a replica that had not received them), or it was removed since. Nothing was written: forget what is cached, and
    /// begin again.
    #[error("the database does not have what this node knows of a group")]
    Outdated,
    /// A statement failed: an error of Heddle.
    #[error("an SQL statement failed")]
    Database(#[source] Failed),
    /// The schema could not be updated to that of this version.
    #[error("migration failed")]
    Migration(#[source] Arc<MigrateError>),
    /// The role of the URL may not do what a migration needs. `said`: the server's words.
    #[error(
        "the role `{role}` has too few rights in the database `{database}` ({said}): it must own the database, or have \
         CREATE on it and on its schema `public`; what Heddle has created there must belong to it"
    )]
    Rights {
        role: String,
        database: String,
        said: String,
    },
    /// The encoding of the database has not all characters. It cannot be changed; a new database is needed.
    #[error(
        "the encoding of the database `{database}` is {encoding}, which cannot keep every text; Heddle needs UTF8: create \
         another database with `CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0`"
    )]
    Encoding { database: String, encoding: String },
    /// The schema has to be updated, but not through a pooler that changes the session after each transaction.
    #[error(
        "the schema of the database must be updated, which does not work through a connection pooler in transaction mode: \
         run `heddle migrate` with a URL that leads to Postgres directly, or to a pooler in session mode"
    )]
    Pooler,
    /// A lock that a migration needs did not become free within [`crate::database::MIGRATION_MAX`]. `held_by`: who held it
    /// last, for people.
    #[error(
        "the schema could not be updated within {} h: {what} waited for a lock of {held_by}; end that session, or wait \
         for its end, and start again",
        crate::database::MIGRATION_MAX.as_secs() / 3_600
    )]
    Locked { what: String, held_by: String },
    /// A newer version of Heddle has updated the schema: this one does not know its migration, and may not understand
    /// the data.
    #[error(
        "the schema of the database is newer than this version of Heddle (it has migration {found}; this version knows \
         those up to {known}). Run the newer version here, too; to return to this version, restore a backup from before \
         the upgrade (docs/operations.md, Upgrades)"
    )]
    NewerSchema { found: i64, known: i64 },
    /// A row contains a value that this version cannot read: an error of Heddle, or a newer node has written it.
    #[error("cannot read row {row} in {table}: {column} is {found}")]
    Unreadable {
        table: &'static str,
        column: &'static str,
        row: String,
        found: String,
    },
    /// A value cannot be written as JSON: an error of Heddle. Nothing is stored in its place.
    #[error("cannot write {column} of {table} as JSON")]
    Unwritable {
        table: &'static str,
        column: &'static str,
        #[source]
        error: Arc<serde_json::Error>,
    },
}

impl StoreError {
    /// Other transactions change this row faster than it can be locked.
    #[track_caller]
    pub(crate) fn contended() -> Self {
        Self::Conflict(Failed::new(sqlx::Error::RowNotFound))
    }

    /// A row contains what this version cannot read.
    pub fn unreadable(
        table: &'static str,
        column: &'static str,
        row: impl fmt::Display,
        found: impl fmt::Display,
    ) -> Self {
        Self::Unreadable {
            table,
            column,
            row: row.to_string(),
            found: found.to_string(),
        }
    }

    /// A number from the database, as the value that it means.
    pub(crate) fn known<T>(
        read: fn(i16) -> Option<T>,
        number: i16,
        (table, column): (&'static str, &'static str),
        row: impl fmt::Display,
    ) -> Result<T, Self> {
        read(number).ok_or_else(|| Self::unreadable(table, column, row, number))
    }

    /// A word from the database, as the value that it means.
    pub fn word<T: FromStr>(
        text: &str,
        (table, column): (&'static str, &'static str),
        row: impl fmt::Display,
    ) -> Result<T, Self> {
        text.parse()
            .map_err(|_| Self::unreadable(table, column, row, format_args!("`{text}`")))
    }

    /// A value as JSON, for a column.
    pub fn json_of(value: &impl Serialize, (table, column): (&'static str, &'static str)) -> Result<Value, Self> {
        serde_json::to_value(value).map_err(|error| Self::Unwritable {
            table,
            column,
            error: Arc::new(error),
        })
    }

    /// The value of a column with JSON text, which Heddle may have framed.
    pub fn json_in<T: DeserializeOwned>(
        text: &str,
        (table, column): (&'static str, &'static str),
        row: impl fmt::Display,
    ) -> Result<T, Self> {
        framed::read(text).map_err(|error| Self::unreadable(table, column, row, format_args!("not JSON: {error}")))
    }

    /// The schema could not be updated; `known`: the last migration of this program.
    pub(crate) fn migration(error: MigrateError, known: i64) -> Self {
        match error {
            MigrateError::VersionMissing(found) if found > known => Self::NewerSchema { found, known },
            error => Self::Migration(Arc::new(error)),
        }
    }

    /// Whether the server refused it because its disk is full.
    pub fn is_full_disk(&self) -> bool {
        let Self::Unavailable(failed) = self else { return false };
        failed
            .database()
            .is_some_and(|error| error.code().as_deref() == Some("53100"))
    }

    /// Whether the server cancelled the statement: somebody wanted that, or it took longer than the server lets it.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Conflict(failed) if failed.is_cancelled())
    }

    /// Whether the server or the network ended the connection. The next one may work, so what only reads may be read again
    /// at once. (A connection that is cut while it is opened is opened again by the connector.)
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Unavailable(failed) if is_cut(&failed.error))
    }

    /// Whether no session was opened for a reason that lasts until people change something: a wrong password, no such
    /// database, a missing right, a wrong certificate. A node that works waits all the same, because people do change it.
    /// A program that has just been started with this URL ends, and says so.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Unavailable(failed) if failed.is_refusal())
    }

    /// Whether the same call may succeed later without any change: the cause is the database or another transaction,
    /// not the data.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::ReadOnly(_) | Self::Conflict(_))
    }

    /// Whether it is only about the values that the call has read or written: a row that cannot be read, a value that cannot be
    /// written, or one that the server refuses (SQLSTATE classes 22, data exceptions, and 23, constraints). A missing right, an
    /// exhausted limit or an error inside the server would meet any other values too.
    pub fn is_of_the_values(&self) -> bool {
        match self {
            Self::Unreadable { .. } | Self::Unwritable { .. } => true,
            Self::Database(failed) => failed
                .database()
                .and_then(|error| error.code())
                .is_some_and(|code| code.starts_with("22") || code.starts_with("23")),
            _ => false,
        }
    }
}

/// What the server said if a migration failed because its role lacks rights.
pub(crate) fn lacked_rights(error: &MigrateError) -> Option<String> {
    let (MigrateError::Execute(cause) | MigrateError::ExecuteMigration(cause, _)) = error else {
        return None;
    };
    let refused = cause
        .as_database_error()
        .filter(|error| error.code().as_deref() == Some("42501"));
    refused.map(|error| error.message().to_owned())
}

/// A failed statement, with its location.
///
/// It is shown as its location and the server's message, with what helps to find the cause: SQLSTATE, constraint,
/// table. The values of its arguments are not shown.
#[derive(Clone, Debug)]
pub struct Failed {
    location: &'static Location<'static>,
    error: Arc<sqlx::Error>,
}

impl Failed {
    #[track_caller]
    fn new(error: sqlx::Error) -> Self {
        Self {
            location: Location::caller(),
            error: Arc::new(error),
        }
    }

    /// The statement's location in the source: file and line of its caller.
    fn source_line(&self) -> String {
        let file = self.location.file();
        let file = file.rsplit_once("store/src/").map_or(file, |(_, file)| file);
        format!("{file}:{}", self.location.line())
    }

    /// Whether the server cancelled the statement: it took longer than it may, or somebody wanted that.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.database()
            .is_some_and(|error| error.code().as_deref() == Some("57014"))
    }

    /// The server's own error, if it was the server that refused the statement, or the session.
    pub(crate) fn database(&self) -> Option<&dyn sqlx::error::DatabaseError> {
        self.cause().as_database_error()
    }

    /// The error itself; if no session could be opened, the reason for that ([`crate::database::unopened`]).
    fn cause(&self) -> &sqlx::Error {
        let error: &sqlx::Error = &self.error;
        let sqlx::Error::Io(outer) = error else { return error };
        outer
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<sqlx::Error>())
            .unwrap_or(error)
    }

    /// For the error of a session that could not be opened: whether the reason lasts until people change something.
    fn is_refusal(&self) -> bool {
        match self.cause() {
            sqlx::Error::Database(error) => {
                let code = error.code();
                // 55000: the database accepts no connections at the moment (ALLOW_CONNECTIONS false).
                code.as_deref() != Some("55000") && Meaning::of(code.as_deref()) == Meaning::Other
            }
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
                false
            }
            _ => true,
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.source_line())?;
        let Some(error) = self.database() else {
            return write!(f, "{}", self.error);
        };
        if let Some(code) = error.code() {
            write!(f, "SQLSTATE {code}")?;
        }
        if let Some(constraint) = error.constraint() {
            write!(f, ", constraint {constraint}")?;
        }
        if let Some(table) = error.table() {
            write!(f, ", table {table}")?;
        }
        write!(f, ": {}", error.message())
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The server's error is already complete.
        match self.database() {
            Some(_) => None,
            None => std::error::Error::source(&*self.error),
        }
    }
}

impl From<sqlx::Error> for StoreError {
    #[track_caller]
    fn from(error: sqlx::Error) -> Self {
        let error = Failed::new(error);
        match &*error.error {
            // A new session found this; see `database/connector.rs`.
            sqlx::Error::Io(cause) if cause.kind() == std::io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly(error),
            // The arguments are too large to be sent, so nothing was sent: fewer of them may fit.
            sqlx::Error::Protocol(said) if said.starts_with(TOO_LARGE) => Self::Database(error),
            // What went wrong between the two ends says nothing about the statement.
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed => Self::Unavailable(error),
            sqlx::Error::Database(database) => match Meaning::of(database.code().as_deref()) {
                Meaning::Conflict => Self::Conflict(error),
                Meaning::ReadOnly => Self::ReadOnly(error),
                Meaning::Unavailable => Self::Unavailable(error),
                // The server has refused or ended the session. Whatever its reason, it has not judged a statement:
                // those that are refused leave their session open.
                Meaning::Other if is_fatal(&**database) => Self::Unavailable(error),
                Meaning::Other => Self::Database(error),
            },
            _ => Self::Database(error),
        }
    }
}

/// The beginning of sqlx's error about a message of more than 2 GiB.
const TOO_LARGE: &str = "message size out of range";

/// What the SQLSTATE of an error says, whatever ended with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The transaction must be repeated: [`StoreError::Conflict`].
    Conflict,
    /// The server accepts no writes: [`StoreError::ReadOnly`].
    ReadOnly,
    /// The server cannot do it at the moment: [`StoreError::Unavailable`].
    Unavailable,
    /// It depends on what was refused: a statement, or a session.
    Other,
}

impl Meaning {
    fn of(code: Option<&str>) -> Self {
        match code {
            // Serialisation, deadlock, lock timeout. And 57014: an administrator has cancelled the statement, or a time
            // limit has that somebody else has set. Where Heddle sets one, the caller asks (`Failed::is_cancelled`).
            Some("40001" | "40P01" | "55P03" | "57014") => Self::Conflict,
            // A standby, or a server that was made read-only.
            Some("25006") => Self::ReadOnly,
            // Class 08: connection; 53: no disk, memory or connections left; 57P0x: shutting down, cannot connect now;
            // 58: the server's own input and output; 25P03: a transaction of a node that was cut off has been ended.
            Some(code) if ["08", "53", "57P0", "58"].iter().any(|class| code.starts_with(class)) || code == "25P03" => {
                Self::Unavailable
            }
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::collections::BTreeMap;
    use std::io;

    use serde_json::json;

    use super::*;
    use crate::database::unopened;

    /// What a server says, with its code.
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(&'static str);

    impl sqlx::error::DatabaseError for Said {
        fn message(&self) -> &str {
            "as the test wants it"
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> sqlx::error::ErrorKind {
            sqlx::error::ErrorKind::Other
        }
    }

    fn said(code: &'static str) -> sqlx::Error {
        sqlx::Error::Database(Box::new(Said(code)))
    }

    #[test]
    fn a_statement_is_judged_by_the_code() {
        let of = |code| StoreError::from(said(code));
        for code in ["40001", "40P01", "55P03", "57014"] {
            assert!(matches!(of(code), StoreError::Conflict(_)), "{code}");
        }
        assert!(of("57014").is_cancelled() && !of("40P01").is_cancelled() && !of("42501").is_cancelled());
        assert!(matches!(of("25006"), StoreError::ReadOnly(_)));
        for code in ["08006", "08P01", "53100", "53300", "57P01", "57P03", "58030", "25P03"] {
            assert!(matches!(of(code), StoreError::Unavailable(_)), "{code}");
        }
        // A value or a right that the statement lacks: the same again would give the same.
        for code in ["22001", "23505", "42501", "42P01", "55000", "XX000", "P0001"] {
            assert!(matches!(of(code), StoreError::Database(_)), "{code}");
        }
    }

    #[test]
    fn only_refused_values_are_of_the_values() {
        let of = |code| StoreError::from(said(code)).is_of_the_values();
        for code in ["23514", "23505", "22P02", "22001"] {
            assert!(of(code), "{code}");
        }
        for code in ["42501", "54000", "XX000", "42P01", "55000", "40001", "53100", "25006"] {
            assert!(!of(code), "{code}");
        }
        assert!(!StoreError::Outdated.is_of_the_values());
        assert!(
            !StoreError::from(sqlx::Error::RowNotFound).is_of_the_values(),
            "no code"
        );
        assert!(StoreError::unreadable("runs_done", "state", 1, 99).is_of_the_values());
    }

    #[test]
    fn what_breaks_a_connection_is_no_matter_of_a_statement() {
        let broken = [
            sqlx::Error::Protocol("unexpected message".into()),
            sqlx::Error::Tls("the certificate has expired".into()),
            sqlx::Error::Io(io::ErrorKind::ConnectionReset.into()),
            sqlx::Error::PoolTimedOut,
            sqlx::Error::WorkerCrashed,
        ];
        for error in broken.map(StoreError::from) {
            assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
        }
        let large = sqlx::Error::Protocol(format!("{TOO_LARGE} for protocol: 2147483648"));
        assert!(matches!(StoreError::from(large), StoreError::Database(_)));
    }

    #[test]
    fn a_session_that_cannot_be_opened_is_waited_for_whatever_the_reason() {
        // Password, pg_hba, database, right to connect, a pooler; each lasts until people change it.
        for code in ["28P01", "28000", "3D000", "42501", "XX000"] {
            let error = StoreError::from(unopened(said(code)));
            assert!(
                error.is_passing() && error.is_refusal() && !error.is_cut(),
                "{code}: {error:?}"
            );
            let StoreError::Unavailable(failed) = &error else {
                panic!("{code}: {error:?}");
            };
            assert!(
                failed
                    .to_string()
                    .ends_with(&format!("SQLSTATE {code}: as the test wants it")),
                "{failed}"
            );
        }
        for code in ["08P01", "53300", "57P01", "57P03", "55000", "57014"] {
            let error = StoreError::from(unopened(said(code)));
            assert!(
                matches!(error, StoreError::Unavailable(_)) && !error.is_refusal(),
                "{code}: {error:?}"
            );
        }
        assert!(StoreError::from(unopened(said("53100"))).is_full_disk());
        for error in [
            sqlx::Error::Protocol("unknown authentication method".into()),
            sqlx::Error::Tls("the certificate has expired".into()),
            sqlx::Error::Configuration("no such file".into()),
            sqlx::Error::ColumnNotFound("process".into()),
        ] {
            let error = StoreError::from(unopened(error));
            assert!(
                matches!(error, StoreError::Unavailable(_)) && error.is_refusal(),
                "{error:?}"
            );
        }
        let of = |kind: io::ErrorKind| StoreError::from(unopened(sqlx::Error::Io(kind.into())));
        for kind in [io::ErrorKind::ConnectionRefused, io::ErrorKind::ConnectionReset] {
            let error = of(kind);
            assert!(
                error.is_passing() && !error.is_refusal() && !error.is_cut(),
                "{error:?}"
            );
        }
        assert!(matches!(of(io::ErrorKind::ReadOnlyFilesystem), StoreError::ReadOnly(_)));
    }

    #[test]
    fn a_newer_schema_is_told_from_other_errors() {
        let newer = StoreError::migration(MigrateError::VersionMissing(9_999), 123).to_string();
        assert!(newer.contains("newer than this version of Heddle"), "{newer}");
        assert!(
            newer.contains("migration 9999") && newer.contains("up to 123"),
            "{newer}"
        );
        // A migration that somebody has taken out of the middle, and one that was changed.
        for error in [MigrateError::VersionMissing(7), MigrateError::VersionMismatch(9_999)] {
            let other = StoreError::migration(error, 123);
            assert!(matches!(other, StoreError::Migration(_)), "{other}");
        }
    }

    #[test]
    fn what_is_no_json_is_not_kept_as_something_else() {
        let of = ("channels", "options");
        assert_eq!(StoreError::json_of(&["a"], of).unwrap(), json!(["a"]));
        let refused = StoreError::json_of(&BTreeMap::from([((1, 2), 3)]), of).unwrap_err();
        assert_eq!(refused.to_string(), "cannot write options of channels as JSON");
        assert!(std::error::Error::source(&refused).is_some(), "it says why");
    }
}
