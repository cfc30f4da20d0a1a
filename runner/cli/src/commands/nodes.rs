//! The cluster as a whole.

use std::process::ExitCode;

use anyhow::Result;

use super::done;
use crate::session::Session;

pub(crate) async fn list(session: &Session) -> Result<ExitCode> {
    let columns = [
        ("ID", "/id"),
        ("NAME", "/name|/hostname"),
        ("STATE", "/state"),
        ("VERSION", "/version"),
        ("STARTED", "/started_at"),
        ("SEEN", "/heartbeat_at|/seen_at|/last_seen_at"),
        ("RUNNING", "/running"),
        ("POSITION", "/position|/change_position"),
    ];
    session.list(&["v1", "nodes"], &columns).await?;
    done()
}

pub(crate) async fn audit(session: &Session) -> Result<ExitCode> {
    let columns = [
        ("AT", "/at"),
        ("WHO", "/actor|/who|/token"),
        ("ACTION", "/action"),
        ("KIND", "/kind"),
        ("WHAT", "/target|/what|/name"),
    ];
    session.list(&["v1", "audit"], &columns).await?;
    done()
}

pub(crate) async fn stats(session: &Session) -> Result<ExitCode> {
    session.show(&["v1", "stats"]).await?;
    done()
}
