//! `heddle retention`: how long data is kept.

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
    /// Show how long data is kept
    Show,
    /// Change how long data is kept. A field that the file omits gets its default
    Set {
        /// A YAML or JSON file; `-` is stdin
        #[arg(short, long, default_value = "-")]
        file: PathBuf,
        /// Change nothing; show what would be removed now
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove expired data now, without waiting for the nodes
    Prune {
        /// Remove nothing; show what would be removed
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
