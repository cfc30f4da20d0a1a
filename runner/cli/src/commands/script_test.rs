//! `heddle script test FILE`, `heddle script dev FILE`: a script is tried here, without a server.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value};
use tokio::signal::unix::{SignalKind, signal};

use super::cases;
use super::local::{Doubles, Given, Local, Stage, timeout_of};
use super::params::Params;
use crate::exit::{INTERRUPTED, NO, done, usage};
use crate::output::{self, Format};
use crate::terminal::tell;

/// How often files are checked for changes.
const POLL_EVERY: Duration = Duration::from_millis(200);

/// Compiles and runs a file: once, or, if no params are given and there are test cases next to it, with these.
pub(crate) async fn test(out: Format, file: &str, params: &Params, timeout: Option<&str>) -> Result<ExitCode> {
    let timeout = timeout_of(timeout)?;
    let cases = cases::beside(file).filter(|_| !params.is_given());
    let local = Local::new()?;
    let good = match cases {
        Some(cases) => cases::run(out, &local, &local.load(file).await?, &cases, timeout).await?,
        None => once(out, &local, file, params.read()?, timeout).await?,
    };
    if good { done() } else { Ok(ExitCode::from(NO)) }
}

async fn once(out: Format, local: &Local, file: &str, params: Map<String, Value>, timeout: Duration) -> Result<bool> {
    let given = Given {
        params,
        doubles: Doubles::default(),
        item: None,
        logical_time: None,
        stage: Stage::default(),
        timeout,
        quiet: false,
    };
    let ended = local.run(&local.load(file).await?, given).await?;
    let good = ended.is_good();
    ended.print(out)?;
    Ok(good)
}

/// Runs a file now and whenever it, its params' file or its test cases are saved, until it is interrupted.
pub(crate) async fn dev(out: Format, file: &str, params: &Params, timeout: Option<&str>) -> Result<ExitCode> {
    let timeout = timeout_of(timeout)?;
    if !Path::new(file).is_file() {
        return Err(usage(format!(
            "{file} is not a file; `script dev` needs the file of a script"
        )));
    }
    let local = Local::new()?;
    let mut watched = vec![file.to_owned(), cases::file_beside(file)];
    watched.extend(params.file().map(str::to_owned));
    // One listener for the whole command: between two listeners, a signal would be lost.
    let mut interrupts = signal(SignalKind::interrupt()).context("no SIGINT")?;
    loop {
        let seen = states_of(&watched);
        if out == Format::Table {
            output::print(&format!("--- {file}"))?;
        }
        let ended = async {
            match cases::beside(file).filter(|_| !params.is_given()) {
                Some(cases) => cases::run(out, &local, &local.load(file).await?, &cases, timeout).await,
                None => once(out, &local, file, params.read()?, timeout).await,
            }
        };
        tokio::select! {
            ended = ended => if let Err(error) = ended {
                tell!("{error:#}");
            },
            _ = interrupts.recv() => return Ok(ExitCode::from(INTERRUPTED)),
        }
        while states_of(&watched) == seen {
            tokio::select! {
                () = tokio::time::sleep(POLL_EVERY) => {}
                _ = interrupts.recv() => return Ok(ExitCode::from(INTERRUPTED)),
            }
        }
    }
}

/// What shows that a file has changed.
fn states_of(files: &[String]) -> Vec<Option<(SystemTime, u64)>> {
    let state_of = |file: &String| {
        let found = std::fs::metadata(file).ok()?;
        Some((found.modified().ok()?, found.len()))
    };
    files.iter().map(state_of).collect()
}
