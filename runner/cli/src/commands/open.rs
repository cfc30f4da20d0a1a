//! `heddle open`: the server's pages in a browser.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;

use super::done;
use super::run_ref::RunRef;
use crate::output;
use crate::session::Session;

/// `heddle open`
#[derive(Args, Debug)]
pub struct Open {
    /// What to look at; default the overview
    #[command(subcommand)]
    pub page: Option<Page>,
    /// Only print the page's address
    #[arg(long, global = true)]
    pub print: bool,
}

/// What has a page.
#[derive(Subcommand, Debug)]
pub enum Page {
    /// A run
    Run {
        /// Its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
    },
    /// A group
    Group {
        /// Its name
        name: String,
    },
    /// A script
    Script {
        /// Its name
        name: String,
    },
}

pub(crate) async fn run(session: &Session, open: Open) -> Result<ExitCode> {
    let url = match open.page {
        None => session.page(&[""]),
        Some(Page::Run { id }) => session.page(&["runs", &id.find(session).await?.to_string()]),
        Some(Page::Group { name }) => session.page(&["groups", &name]),
        Some(Page::Script { name }) => session.page(&["scripts", &name]),
    };
    session
        .output
        .print(&json!({ "url": url }), |answer| output::plain(&answer["url"]))?;
    if !open.print
        && let Err(error) = open::that_detached(&url)
    {
        // The address is printed, and that is what matters on a machine without a browser.
        eprintln!("no browser can be started here: {error}");
    }
    done()
}
