//! Properties of a server that cause problems.

use super::PgSession;
use crate::transaction::transaction;
use crate::{Store, StoreError};

/// Properties of a node's server.
#[derive(Clone, Debug, Default)]
pub struct ServerReport {
    /// Its version, as it reports it.
    pub version: String,
    /// Problems that the server or its settings cause for Heddle, one sentence for each.
    pub hurts: Vec<String>,
}

/// The oldest version that Heddle is tested with, as Postgres numbers them.
const VERSION_MIN: i32 = 140_000;

impl Store {
    /// Checks for properties that a session cannot set for itself and that cause problems for nodes.
    pub async fn server_report(&self) -> Result<ServerReport, StoreError> {
        let mut session = self.control.acquire().await?;
        let row = sqlx::query!(
            r#"SELECT current_setting('server_version') AS "version!",
                      current_setting('server_version_num')::int AS "number!",
                      current_setting('fsync') AS "fsync!",
                      current_setting('full_page_writes') AS "full_page_writes!",
                      current_setting('synchronous_commit') AS "synchronous_commit!",
                      current_setting('autovacuum') AS "autovacuum!",
                      current_setting('track_activities') AS "track_activities!",
                      current_setting('track_counts') AS "track_counts!",
                      current_setting('max_connections')::bigint AS "max_connections!",
                      (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS "connections!""#
        )
        .fetch_one(&mut *session)
        .await?;
        let mut hurts = Vec::new();
        let mut hurt = |does: bool, text: String| {
            if does {
                hurts.push(text);
            }
        };
        let off = |value: &str| value == "off";
        hurt(
            row.number < VERSION_MIN,
            format!(
                "Postgres {} is older than 14; Heddle is not tested with it",
                row.version
            ),
        );
        hurt(
            off(&row.fsync) || off(&row.full_page_writes),
            "fsync or full_page_writes is off: a power failure can destroy the database; set both to on".into(),
        );
        hurt(
            off(&row.synchronous_commit),
            "synchronous_commit is off: accepted runs can be lost when the server crashes; set it to on".into(),
        );
        hurt(
            off(&row.autovacuum) || off(&row.track_counts),
            "autovacuum or track_counts is off: queues become slower over time; set both to on".into(),
        );
        hurt(
            off(&row.track_activities),
            "track_activities is off: dead connections are detected late; set it to on".into(),
        );
        let (needed, free) = (i64::from(self.connections_max()), row.max_connections - row.connections);
        hurt(
            free < needed,
            format!(
                "max_connections is {}, and {} are in use, but this node opens up to {needed}; increase \
                max_connections",
                row.max_connections, row.connections
            ),
        );
        let shared = self.shares_backends(&mut session).await?;
        hurt(
            shared,
            "a connection pooler in transaction mode is in front of Postgres: settings and notifications get lost; \
            use session mode, or connect directly"
                .into(),
        );
        Ok(ServerReport {
            version: row.version,
            hurts,
        })
    }

    /// Whether two connections share one session: a transaction pooler gives the second one the session that the first
    /// has just used; or, if others use the pooler too, it gives the first one another session each time.
    pub(crate) async fn shares_backends(&self, first: &mut PgSession) -> Result<bool, StoreError> {
        let one = process_of(first).await?;
        let two = transaction!(self, control, "shares_backends", |other| {
            let two = process_of(&mut other).await?;
            other.rollback().await?;
            Ok(two)
        })?;
        Ok(one == two || one != process_of(first).await?)
    }
}

async fn process_of(session: &mut PgSession) -> Result<i32, StoreError> {
    Ok(sqlx::query_scalar!(r#"SELECT pg_backend_pid() AS "process!""#)
        .fetch_one(session)
        .await?)
}
