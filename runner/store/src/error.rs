//! What can go wrong between Heddle and its database.

/// An error of the store. Everything that a caller decides on (not found, exists already, in use) is data of the
/// respective call, not one of these.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Postgres cannot be reached, or no connection came free in time: try again later.
    #[error("the database is not available")]
    Unavailable(#[source] sqlx::Error),
    /// Two transactions were in each other's way (deadlock, serialisation): repeat the whole transaction.
    #[error("the transaction has to be repeated")]
    Conflict(#[source] sqlx::Error),
    /// A statement failed: our fault.
    #[error("a statement failed")]
    Database(#[source] sqlx::Error),
    /// The schema could not be brought up to date.
    #[error("migration failed: {0}")]
    Migration(String),
    /// A row holds what this version cannot read: our fault, or a newer node's.
    #[error("unreadable row in {table}: {detail}")]
    Unreadable {
        /// Where it stands.
        table: &'static str,
        /// What was found.
        detail: String,
    },
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed => {
                Self::Unavailable(error)
            }
            sqlx::Error::Database(database) => match database.code().as_deref() {
                // Serialisation, deadlock, lock timeout.
                Some("40001" | "40P01" | "55P03") => Self::Conflict(error),
                // Class 08: connection; 57P0x: shutting down, cannot connect now; 53300: too many connections; 25P03: a
                // transaction of a node that was cut off has been ended.
                Some(code)
                    if code.starts_with("08") || code.starts_with("57P0") || matches!(code, "53300" | "25P03") =>
                {
                    Self::Unavailable(error)
                }
                // A database that takes no connections just now (ALLOW_CONNECTIONS false); no statement is told that.
                Some("55000") if is_fatal(&**database) => Self::Unavailable(error),
                _ => Self::Database(error),
            },
            _ => Self::Database(error),
        }
    }
}

/// Whether the connection ended with it.
fn is_fatal(error: &dyn sqlx::error::DatabaseError) -> bool {
    use sqlx::postgres::{PgDatabaseError, PgSeverity};
    error
        .try_downcast_ref::<PgDatabaseError>()
        .is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic))
}
