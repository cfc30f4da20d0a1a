//! Runtimes of scripts that are text.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use serde_json::Value;

use super::done;
use crate::output::{Rows, cell};
use crate::session::Session;

/// What can be done with runtimes.
#[derive(Subcommand, Debug)]
pub enum RuntimeCommand {
    /// List the runtimes that text scripts were checked with, and run on until they are retired
    #[command(alias = "ls")]
    List,
    /// Have the scripts of a runtime run on the one of the server's program
    ///
    /// Those in use are checked with it before: if one would change, or not be accepted any more, nothing is done, and it says
    /// which.
    Retire {
        /// Its tag: `heddle runtime list` shows it
        #[arg(value_name = "TAG")]
        name: String,
        /// Also if scripts would change, or not be accepted any more
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
            session.output.print(&retired, told)?;
        }
    }
    done()
}

fn told(retired: &Value) -> String {
    let mut lines = vec![format!(
        "retired: {} versions run on {} now",
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
