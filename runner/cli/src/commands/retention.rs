//! How long things are kept.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use super::done;
use crate::document;
use crate::session::Session;

/// What can be done with retention.
#[derive(Subcommand, Debug)]
pub enum RetentionCommand {
    /// Show how long things are kept
    Show,
    /// Change it; what the file leaves out takes its default
    Set {
        /// YAML or JSON; `-` is stdin
        #[arg(short, long, default_value = "-")]
        file: PathBuf,
        /// Change nothing; say what would be removed now
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove now what is due, without waiting for the nodes to do so
    Prune {
        /// Remove nothing; say what would be
        #[arg(long)]
        dry_run: bool,
    },
}

pub(crate) async fn run(session: &Session, command: RetentionCommand) -> Result<ExitCode> {
    let answer = match command {
        RetentionCommand::Show => serde_json::to_value(session.client.retention().await?)?,
        RetentionCommand::Set { file, dry_run } => {
            let wanted = document::read_value(&file)?;
            serde_json::to_value(session.client.put_retention(&wanted, dry_run).await?)?
        }
        RetentionCommand::Prune { dry_run } => serde_json::to_value(session.client.prune(dry_run).await?)?,
    };
    session.output.print_thing(&answer)?;
    done()
}
