//! `heddle open`: the server's pages in a browser.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use heddle_client::Error;
use serde_json::{Value, json};

use super::run_ref::RunRef;
use crate::exit::done;
use crate::output;
use crate::session::Session;
use crate::terminal::tell;

/// The options of `heddle open`.
#[derive(Args, Debug)]
pub struct Open {
    /// The page to open [default: the overview]
    #[command(subcommand)]
    pub page: Option<Page>,
    /// Only print the address of the page
    #[arg(long, global = true)]
    pub print: bool,
}

/// What has a page.
#[derive(Subcommand, Debug)]
pub enum Page {
    /// The page of a run
    Run {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
    },
    /// The page of a group
    Group {
        /// The name, as `list` shows it
        name: String,
    },
    /// The page of a script
    Script {
        /// The name, as `list` shows it
        name: String,
    },
}

pub(crate) async fn run(session: &Session, open: Open) -> Result<ExitCode> {
    let url = match open.page {
        None => session.page(&[""]),
        Some(Page::Run { id }) => session.page(&["runs", &id.find(session).await?.to_string()]),
        Some(Page::Group { name }) => existing(session, "groups", &name).await?,
        Some(Page::Script { name }) => existing(session, "scripts", &name).await?,
    };
    session
        .output
        .print(&json!({ "url": url }), |answer| output::plain(&answer["url"]))?;
    if !open.print && open::that_detached(&url).is_err() {
        // The messages of the launcher help nobody, so they are dropped; the address is printed anyway.
        tell!("no browser could be started on this machine; open the address yourself");
    }
    done()
}

/// The page of an object. An error if the server says that the object does not exist. If the server refuses the question,
/// the page is opened all the same: the user can sign in there.
async fn existing(session: &Session, kind: &str, name: &str) -> Result<String> {
    match session.client.get(&["v1", kind, name]).send::<Value>().await {
        Err(error) if error.status() == Some(404) || matches!(error, Error::Invalid(_)) => Err(error.into()),
        _ => Ok(session.page(&[kind, name])),
    }
}
