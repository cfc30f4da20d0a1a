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

use crate::database::is_cut;

/// An error of the store. Everything on which a caller decides (not found, exists already, in use) is data of the
/// respective call, not one of these.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL of the database is no address of a Postgres.
    #[error("the URL of the database is not valid: {0}")]
    Address(String),
    /// Postgres cannot be reached, lacks resources (disk, memory, connections), or no connection became free in time:
    /// try again later.
    #[error("the database is not available")]
    Unavailable(#[source] Failed),
    /// The server accepts no writes at the moment, such as a standby that has not been promoted: try again later.
    #[error("the database is read-only")]
    ReadOnly(#[source] Failed),
    /// Two transactions conflicted (deadlock, serialisation): repeat the whole transaction.
    #[error("the transaction must be repeated")]
    Conflict(#[source] Failed),
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

    /// Whether the server or the network ended the connection. The next one may work, so what only reads may be read again
    /// at once.
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Unavailable(failed) if is_cut(&failed.error))
    }

    /// Whether the same call may succeed later without any change: the cause is the database or another transaction,
    /// not the data.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::ReadOnly(_) | Self::Conflict(_))
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

    /// Whether the server cancelled the statement because it took too long.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.database()
            .is_some_and(|error| error.code().as_deref() == Some("57014"))
    }

    /// The server's own error, if it was the server that refused.
    pub(crate) fn database(&self) -> Option<&dyn sqlx::error::DatabaseError> {
        self.error.as_database_error()
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
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
                Self::Unavailable(error)
            }
            sqlx::Error::Database(database) => match database.code().as_deref() {
                // Serialisation, deadlock, lock timeout.
                Some("40001" | "40P01" | "55P03") => Self::Conflict(error),
                // A standby, or a server that was made read-only.
                Some("25006") => Self::ReadOnly(error),
                // Class 08: connection; 53: no disk, memory or connections left; 57P0x: shutting down, cannot connect
                // now; 58: the server's own input and output; 25P03: a transaction of a node that was cut off has been
                // ended.
                Some(code)
                    if ["08", "53", "57P0", "58"].iter().any(|class| code.starts_with(class)) || code == "25P03" =>
                {
                    Self::Unavailable(error)
                }
                // A database that accepts no connections at the moment (ALLOW_CONNECTIONS false); no statement gets
                // this error.
                Some("55000") if is_fatal(&**database) => Self::Unavailable(error),
                _ => Self::Database(error),
            },
            _ => Self::Database(error),
        }
    }
}

/// Whether it ended the connection.
fn is_fatal(error: &dyn sqlx::error::DatabaseError) -> bool {
    use sqlx::postgres::{PgDatabaseError, PgSeverity};
    error
        .try_downcast_ref::<PgDatabaseError>()
        .is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

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
