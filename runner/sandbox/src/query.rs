//! Statements that need no script: the `query` executor, and where they run is the same as for those of scripts.

use std::time::Duration;

use crate::Sandbox;
use crate::services::ConnectionTarget;
use crate::sql::Bounds;
pub use crate::sql::{Class as QueryClass, Failure as QueryFailure};

/// How long after an attempt's own timeout the server ends its statement by itself: should nobody be left to cancel it.
const SERVER_GRACE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct QueryRequest {
    pub target: ConnectionTarget,
    /// The connection's name, for errors.
    pub connection: String,
    /// The statement, as it was written.
    pub sql: String,
    /// Its parameters: a JSON array.
    pub params: String,
    /// Whether its rows are wanted; else how many it changed.
    pub rows: bool,
    /// How long it may take, `None`: for ever. This is the server's bound; whoever asks counts for himself.
    pub timeout: Option<Duration>,
    /// The bytes that the output may have.
    pub output_bytes_max: usize,
}

impl Sandbox {
    /// Carries a statement out; its rows as a JSON array of objects, or `{"rows_affected": n}`. Dropped, it is cancelled
    /// on the server.
    pub async fn query(&self, request: QueryRequest) -> Result<String, QueryFailure> {
        let QueryRequest {
            target,
            connection,
            sql,
            params,
            rows,
            timeout,
            output_bytes_max,
        } = request;
        let bounds = Bounds {
            timeout: Some(timeout.map_or(Duration::ZERO, |timeout| timeout + SERVER_GRACE)),
            max_bytes: output_bytes_max,
        };
        let databases = self.databases();
        if rows {
            return databases
                .query_within(&connection, &target, &sql, &params, bounds)
                .await;
        }
        let changed = databases
            .execute_within(&connection, &target, &sql, &params, bounds)
            .await?;
        Ok(format!("{{\"rows_affected\":{changed}}}"))
    }
}
