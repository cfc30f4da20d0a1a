//! Queues that workers claim from.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use serde_json::json;

use super::done;
use crate::session::Session;

/// What can be done with queues.
#[derive(Subcommand, Debug)]
pub enum QueueCommand {
    /// List queues: depth, oldest, workers
    #[command(alias = "ls")]
    List,
    /// Show a queue
    Show {
        /// Its name
        name: String,
    },
    /// Hand out nothing from a queue
    Pause {
        /// Its name
        name: String,
    },
    /// Hand out again
    Resume {
        /// Its name
        name: String,
    },
}

pub(crate) async fn run(session: &Session, command: QueueCommand) -> Result<ExitCode> {
    match command {
        QueueCommand::List => {
            let columns = [
                ("NAME", "/name"),
                ("DEPTH", "/depth"),
                ("CLAIMED", "/claimed|/running"),
                ("OLDEST", "/oldest|/oldest_at"),
                ("WORKERS", "/workers"),
                ("PAUSED", "/paused"),
            ];
            session.list(&["v1", "queues"], &columns).await?;
        }
        QueueCommand::Show { name } => session.show(&["v1", "queues", &name]).await?,
        QueueCommand::Pause { name } => session.act(&["v1", "queues", &name, "pause"], &json!({})).await?,
        QueueCommand::Resume { name } => session.act(&["v1", "queues", &name, "resume"], &json!({})).await?,
    }
    done()
}
