//! Statements without a script: those of the `query` executor. They run in the same way as those of scripts.

use std::sync::Arc;
use std::time::Duration;

use crate::Sandbox;
use crate::rehearsal::{SqlAnswer, SqlStatement};
use crate::services::ConnectionTarget;
use crate::sql::Bounds;
pub use crate::sql::{Class as QueryClass, Failure as QueryFailure, Reach as QueryReach};

/// How long after an attempt's own timeout the server ends its statement by itself, in case nobody is left to cancel
/// it.
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
    /// Whether its rows are wanted; otherwise the number of changed rows.
    pub rows: bool,
    /// Its timeout at the server, `None`: no limit. The caller has its own timeout.
    pub timeout: Option<Duration>,
    /// The maximum bytes of the output.
    pub output_bytes_max: usize,
    /// Is told how far the statement has come.
    pub reach: QueryReach,
}

impl Sandbox {
    /// Executes a statement; returns its rows as a JSON array of objects, or `{"rows_affected": n}`. If the future is
    /// dropped, the statement is cancelled on the server.
    pub async fn query(&self, request: QueryRequest) -> Result<String, QueryFailure> {
        let QueryRequest {
            target,
            connection,
            sql,
            params,
            rows,
            timeout,
            output_bytes_max,
            reach,
        } = request;
        let bounds = Bounds {
            timeout: Some(timeout.map_or(Duration::ZERO, |timeout| timeout + SERVER_GRACE)),
            max_bytes: output_bytes_max,
        };
        let asked = SqlStatement {
            connection,
            statement: sql,
            params,
            rows,
        };
        // Only scripts get secrets.
        let cut = Arc::new(|beginning: String| beginning);
        let answer = self
            .databases()
            .carry_out_within(&target, &asked, bounds, &reach, cut)
            .await?;
        match answer {
            SqlAnswer::Rows(rows) => Ok(rows),
            SqlAnswer::Count(changed) => Ok(format!("{{\"rows_affected\":{changed}}}")),
        }
    }
}
