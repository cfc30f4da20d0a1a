//! Runtimes of scripts that are text.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use serde_json::Value;

use crate::exit::done;
use crate::output::{Rows, cell};
use crate::session::Session;

/// What can be done with runtimes.
#[derive(Subcommand, Debug)]
pub enum RuntimeCommand {
    /// List the runtimes of source scripts. A script runs on the runtime with which it was uploaded, until that runtime
    /// is retired
    #[command(alias = "ls")]
    List,
    /// Retire a runtime: its scripts then run on the current runtime of the server
    ///
    /// First, the scripts in use are checked with the current runtime. If one of them would change or would no longer
    /// be accepted, nothing changes, and the answer names it. A runtime of a newer version of Heddle than that of the
    /// node that answers stays, too.
    Retire {
        /// The tag of the runtime; `heddle runtime list` shows it
        #[arg(value_name = "TAG")]
        name: String,
        /// Retire it even if scripts would change or would no longer be accepted, or if it is of a newer version
        #[arg(long)]
        force: bool,
    },
}

pub(crate) async fn run(session: &Session, command: RuntimeCommand) -> Result<ExitCode> {
    match command {
        RuntimeCommand::List => {
            let columns = [
                ("TAG", "/tag"),
                ("LANGUAGE", "/language"),
                ("INTERPRETER", "/interpreter"),
                ("STATE", "/state"),
                ("CURRENT", "/current"),
                ("SCRIPTS", "/scripts"),
                ("VERSIONS", "/versions"),
                ("CREATED", "/created_at"),
            ];
            session.list(&["v1", "runtimes"], &columns).await?;
        }
        RuntimeCommand::Retire { name, force } => {
            let retired = serde_json::to_value(session.client.retire_runtime(&name, force).await?)?;
            session.output.print(&retired, retired_text)?;
        }
    }
    done()
}

fn retired_text(retired: &Value) -> String {
    let mut lines = vec![format!(
        "retired; {} versions now run on {}",
        cell(retired, "/versions"),
        cell(retired, "/moved_to")
    )];
    let mut rows = Rows::new(["SCRIPT", "RESULT"]);
    let mut any = false;
    for script in retired["scripts"].as_array().into_iter().flatten() {
        any = true;
        let result = match script["error"].as_str() {
            Some(error) => format!("fails: {error}"),
            None => {
                let changed: Vec<&str> = script["changed"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect();
                match changed.is_empty() {
                    true => "same".to_owned(),
                    false => format!("changes: {}", changed.join(", ")),
                }
            }
        };
        rows.add([
            format!("{}@{}", cell(script, "/name"), cell(script, "/version")),
            result,
        ]);
    }
    if any {
        lines.push(rows.to_string());
    }
    lines.join("\n")
}
