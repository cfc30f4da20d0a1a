//! Queues that workers claim from.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use serde_json::json;

use crate::exit::done;
use crate::session::Session;

/// What can be done with queues.
#[derive(Subcommand, Debug)]
pub enum QueueCommand {
    /// List queues with depth, oldest task run and workers
    #[command(alias = "ls")]
    List,
    /// Show a queue: depth, oldest task run and workers
    Show {
        /// The name of the queue
        name: String,
    },
    /// Pause a queue: workers get no task runs
    Pause {
        /// The name of the queue
        name: String,
    },
    /// Resume a paused queue
    Resume {
        /// The name of the queue
        name: String,
    },
    /// Limit the rate of claims from a queue, or remove the limit
    Limit {
        /// The name of the queue
        name: String,
        /// The number of claims, for example 100. Without it, the limit is removed
        #[arg(requires = "per")]
        count: Option<u32>,
        /// The duration in which this number of claims is allowed, for example 1m
        per: Option<String>,
    },
}

impl QueueCommand {
    /// The queue that it is about.
    pub(crate) fn queue(&self) -> Option<String> {
        match self {
            Self::List => None,
            Self::Show { name } | Self::Pause { name } | Self::Resume { name } | Self::Limit { name, .. } => {
                Some(name.clone())
            }
        }
    }
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
        QueueCommand::Show { name } => session.show("queue", &["v1", "queues", &name]).await?,
        QueueCommand::Pause { name } => control(session, &name, "pause", "paused").await?,
        QueueCommand::Limit { name, count, per } => {
            let rate = count.zip(per);
            if rate.is_none() {
                // To put a queue makes one; where there is none, there is no limit to remove.
                session.client.queue(&name).await?;
            }
            let body = rate.as_ref().map(|(count, per)| json!({"count": count, "per": per}));
            let request = session
                .client
                .put(&["v1", "queues", &name])
                .json(&json!({"rate": body}));
            let queue: serde_json::Value = request.send().await?;
            session.output.print(&queue, |_| match rate {
                Some((count, per)) => format!("queue {name} limited to {count} claims in {per}"),
                None => format!("queue {name} has no limit"),
            })?;
            session.tell_page(&["queues", &name]);
        }
        QueueCommand::Resume { name } => control(session, &name, "resume", "resumed").await?,
    }
    done()
}

async fn control(session: &Session, name: &str, action: &str, done: &str) -> Result<()> {
    let queue = session.client.control_queue(name, action).await?;
    session
        .output
        .print(&serde_json::to_value(&queue)?, |_| format!("queue {name} {done}"))?;
    session.tell_page(&["queues", name]);
    Ok(())
}
