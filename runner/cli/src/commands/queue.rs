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
    /// Hand out so much in so long at most
    Limit {
        /// Its name
        name: String,
        /// How many claims, such as 100; without it the limit is taken away
        #[arg(requires = "per")]
        count: Option<u32>,
        /// In how long, such as 1m
        per: Option<String>,
    },
}

pub(crate) async fn run(session: &Session, command: QueueCommand) -> Result<ExitCode> {
    match command {
        QueueCommand::List => {
            let columns = [
                ("NAME", "/name"),
                ("DEPTH", "/depth"),
                ("CLAIMED", "/claimed"),
                ("OLDEST", "/oldest"),
                ("WORKERS", "/workers"),
                ("PAUSED", "/paused"),
            ];
            session.list(&["v1", "queues"], &columns).await?;
        }
        QueueCommand::Show { name } => session.show(&["v1", "queues", &name]).await?,
        QueueCommand::Pause { name } => session.act(&["v1", "queues", &name, "pause"], &json!({})).await?,
        QueueCommand::Limit { name, count, per } => {
            let rate = count.zip(per).map(|(count, per)| json!({"count": count, "per": per}));
            let request = session
                .client
                .put(&["v1", "queues", &name])
                .json(&json!({"rate": rate}));
            let queue: serde_json::Value = request.send().await?;
            session.output.print_thing(&queue)?;
        }
        QueueCommand::Resume { name } => session.act(&["v1", "queues", &name, "resume"], &json!({})).await?,
    }
    done()
}
