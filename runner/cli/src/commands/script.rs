//! Scripts: upload, try, activate.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use heddle_client::{AttemptState, InvokeRequest, ScriptVersion};
use heddle_domain::spec::validate::task::no_active_version;
use heddle_sandbox::Language;
use serde_json::{Value, json};

use super::build::is_source;
use super::run::Params;
use super::run_logs::Log;
use super::script_new::{self, New};
use super::{build, local, record, script_test, versions};
use crate::document;
use crate::exit::{Hint, NO, done, duration, usage};
use crate::output::{self, Format, Rows, cell, items};
use crate::session::Session;
use crate::terminal::tell;

/// What can be done with scripts.
#[derive(Subcommand, Debug)]
pub enum ScriptCommand {
    /// Create the sources of a new script from a template
    New(New),
    /// Build the script in a directory to wasm. Source that is uploaded as it is needs no build
    Build(build::Build),
    /// Upload wasm or source text as the next version of a script. A directory is built first
    Push(Push),
    /// List scripts
    #[command(alias = "ls")]
    List,
    /// Show a script and its versions, or one version
    Show {
        /// The name of the script, or `name@version`
        name: String,
    },
    /// Run a script without creating a run. Exit code 1 unless it succeeds
    ///
    /// A file runs locally, without a server, and so does the script in a directory, which is built first if it needs
    /// to be. If you give no params and there are test cases beside the file (clean.test.json beside clean.ts), the test
    /// cases run.
    Test(Invoke),
    /// Run the file of a script locally after each save, until interrupted. Shows output, log, time and memory
    Dev(Dev),
    /// Run a test case of a script's file against real hosts and databases, and write their answers into the case
    Record(record::Record),
    /// Compare two versions, or a version and a file. Exit code 1 if they differ
    ///
    /// Compares source text line by line. Of wasm, it compares the world, the digest, the size, the description and the
    /// schema of the params.
    Diff(versions::ScriptDiff),
    /// Check the scripts in use on a server with the runtimes and the compiler of this program
    ///
    /// Use it before an upgrade, with the new program. It checks each active version, and each version that a group or
    /// a topic names. Exit code 1 if a script is no longer accepted, or if its description or schema changes. A source
    /// script that would stay on its older runtime is checked as if that runtime were retired.
    Check(versions::Check),
    /// Print the log of a script in its last runs, in all groups, the oldest run first
    Logs {
        /// The script: `name` or `name@version`
        name: String,
        /// The number of runs, 1 to 100
        #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=100))]
        runs: u16,
    },
    /// Activate a version: new runs use it, unless they name another
    Activate {
        /// The name of the script
        name: String,
        /// The number of the version
        version: i32,
    },
    /// Download the wasm or the source text of a version
    Download {
        /// The script: `name@version`, or `name` for the active version
        name: String,
        /// The file to write; `-` is stdout [default: NAME.wasm, NAME.js and so on]
        file: Option<PathBuf>,
        /// Overwrite the file if it exists
        #[arg(long)]
        force: bool,
    },
    /// Delete a script that nothing uses
    Rm {
        /// The name of the script
        name: String,
    },
}

impl ScriptCommand {
    /// The script that it is about, without its version. What `test` names may be a file.
    pub(crate) fn script(&self) -> Option<String> {
        match self {
            Self::Show { name }
            | Self::Logs { name, .. }
            | Self::Activate { name, .. }
            | Self::Download { name, .. }
            | Self::Rm { name } => Some(bare(name)),
            Self::Test(invoke) => Some(bare(&invoke.name)),
            Self::Diff(diff) => Some(diff.name.clone()),
            Self::New(_)
            | Self::Build(_)
            | Self::Push(_)
            | Self::List
            | Self::Dev(_)
            | Self::Record(_)
            | Self::Check(_) => None,
        }
    }
}

/// A script's name without its version.
pub(crate) fn bare(script: &str) -> String {
    script.split('@').next().unwrap_or_default().to_owned()
}

/// The options of `heddle script push`.
#[derive(Args, Debug)]
pub struct Push {
    /// The name of the script
    pub name: String,
    /// A wasm file (binary or text), a source file (.js, .mjs, .ts, .mts, .py), or a directory: of one source file, or one
    /// that is built first
    #[arg(default_value = ".")]
    pub path: PathBuf,
    /// Do not activate the new version
    #[arg(long)]
    pub no_activate: bool,
}

/// `heddle script test` and `heddle invoke`
#[derive(Args, Debug)]
pub struct Invoke {
    /// `name` or `name@version`; for `script test` also a file (.wasm, .wat, .js, .ts, .py) or the directory of a
    /// script, which run locally, without a server
    pub name: String,
    /// Params of the script
    #[command(flatten)]
    pub params: Params,
    /// The timeout, for example 10s
    #[arg(long)]
    pub timeout: Option<String>,
}

/// The options of `heddle script dev`.
#[derive(Args, Debug)]
pub struct Dev {
    /// The file: .js, .mjs, .ts, .mts, .py, .wasm or .wat
    pub file: String,
    /// Params of the script. Without params, its test cases run, if there are any
    #[command(flatten)]
    pub params: Params,
    /// The timeout, for example 10s
    #[arg(long)]
    pub timeout: Option<String>,
}

pub(crate) async fn run(session: &Session, command: ScriptCommand) -> Result<ExitCode> {
    match command {
        ScriptCommand::New(new) => script_new::write_new(&new, session.output),
        ScriptCommand::Build(build) => build::run(&build, session.output),
        ScriptCommand::Push(push) => self::push(session, &push).await,
        ScriptCommand::List => {
            let columns = [
                ("NAME", "/name"),
                ("ACTIVE", "/active_version|/version"),
                ("WORLD", "/world"),
                ("UPDATED", "/updated_at|/created_at"),
                ("DESCRIPTION", "/description"),
            ];
            session.list(&["v1", "scripts"], &columns).await?;
            done()
        }
        ScriptCommand::Show { name } => show(session, &name).await,
        ScriptCommand::Test(test) if local::is_file(&test.name) || build::is_script_dir(&test.name) => {
            let file = build::script_of(Path::new(&test.name))?;
            let file = file
                .to_str()
                .with_context(|| format!("{}: the path is not UTF-8", file.display()))?;
            script_test::test(session.output, file, &test.params, test.timeout.as_deref()).await
        }
        ScriptCommand::Test(test) => invoke(session, &test)
            .await
            .map_err(|error| no_such_file(&test.name, error)),
        ScriptCommand::Dev(dev) => {
            script_test::dev(session.output, &dev.file, &dev.params, dev.timeout.as_deref()).await
        }
        ScriptCommand::Diff(wanted) => versions::diff(session, &wanted).await,
        ScriptCommand::Check(wanted) => versions::check(session, &wanted).await,
        ScriptCommand::Record(record) => record::run(session.output, &record).await,
        ScriptCommand::Logs { name, runs } => logs(session, &name, runs).await,
        ScriptCommand::Activate { name, version } => {
            let answer = session.client.activate_script(&name, version).await?;
            session.output.print(&serde_json::to_value(&answer)?, |_| {
                format!("{name}@{version} is active")
            })?;
            session.tell_page(&["scripts", &name]);
            done()
        }
        ScriptCommand::Download { name, file, force } => download(session, &name, file, force).await,
        ScriptCommand::Rm { name } => {
            session
                .remove("script", &name, &["v1", "scripts", &name], false)
                .await?;
            done()
        }
    }
}

/// Writes a version into a file. One that exists is somebody's work, and stays.
async fn download(session: &Session, name: &str, file: Option<PathBuf>, force: bool) -> Result<ExitCode> {
    let (script, version) = split_version(name)?;
    let found: ScriptVersion = match version {
        Some(version) => {
            let path = &["v1", "scripts", script, "versions", &version.to_string()];
            session.client.get(path).send().await?
        }
        // The name alone means the active version. The answer has the newest one if none is active.
        None => {
            let found = session.client.script(script).await?;
            found.active_version.with_context(|| no_active_version(script))?;
            found.version
        }
    };
    let version = found.version;
    let language = Language::of_world(&found.world);
    let end = language.map_or("wasm", |language| language.file().rsplit('.').next().unwrap_or("txt"));
    let file = file.unwrap_or_else(|| PathBuf::from(format!("{script}.{end}")));
    let to_stdout = file == Path::new("-");
    if !to_stdout && !force && file.exists() {
        return Err(usage(format!(
            "{} already exists; name another file, or use --force",
            file.display()
        )));
    }
    let bytes = versions::bytes_of(session, &found).await?;
    if to_stdout {
        let mut out = std::io::stdout().lock();
        out.write_all(&bytes)?;
        out.flush()?;
        return done();
    }
    std::fs::write(&file, &bytes).with_context(|| format!("cannot write {}", file.display()))?;
    let summary = json!({"name": script, "version": version, "file": file, "bytes": bytes.len()});
    session.output.print(&summary, |_| {
        format!("wrote {script}@{version} to {} ({} bytes)", file.display(), bytes.len())
    })?;
    done()
}

async fn push(session: &Session, push: &Push) -> Result<ExitCode> {
    let file = build::script_of(&push.path)?;
    let bytes = document::read_bytes(&file)?;
    let language = file.to_str().and_then(Language::of_file);
    let media_type = language.map_or("application/wasm", Language::media_type);
    let version = session
        .client
        .put_script_as(&push.name, media_type, bytes, !push.no_activate)
        .await
        .with_context(|| format!("the server did not accept {}", file.display()))
        .map_err(|error| match file.with_file_name("requirements.txt").is_file() {
            true if format!("{error:#}").contains("ModuleNotFoundError") => error.context(Hint(
                "a script that is text cannot use the packages of requirements.txt; `heddle script new NAME --lang \
                python-component` creates a project that can"
                    .into(),
            )),
            _ => error,
        })?;
    session.output.print(&serde_json::to_value(&version)?, |_| {
        format!(
            "{}@{} ({}, {})",
            push.name, version.version, version.world, version.digest
        )
    })?;
    session.tell_page(&["scripts", &push.name]);
    done()
}

async fn show(session: &Session, name: &str) -> Result<ExitCode> {
    if let (script, Some(version)) = split_version(name)? {
        let version = version.to_string();
        let path = ["v1", "scripts", script, "versions", &version];
        session.show("script", &path).await?;
        return done();
    }
    let mut script: Value = session.client.get(&["v1", "scripts", name]).send().await?;
    let request = session.client.get(&["v1", "scripts", name, "versions"]);
    let versions: Vec<Value> = session.all(request).await?;
    if script.get("versions").is_none() {
        script["versions"] = json!(versions);
    }
    let script = session.output.with_kind("script", script);
    session.output.print(&script, |script| {
        let mut rows = Rows::new(["VERSION", "WORLD", "DIGEST", "BYTES", "CREATED"]);
        for version in items(&script["versions"]) {
            let digest: String = cell(version, "/digest").chars().take(19).collect();
            let columns = ["/world", "/bytes|/size|/size_bytes", "/created_at"].map(|pointer| cell(version, pointer));
            let [world, bytes, created] = columns;
            rows.add([cell(version, "/version"), world, digest, bytes, created]);
        }
        let active = cell(script, "/active_version|/version");
        let described = match cell(script, "/description") {
            text if text == "-" => String::new(),
            text => format!("{text}\n"),
        };
        let schema = output::yaml(script.get("params_schema").unwrap_or(&Value::Null)).unwrap_or_default();
        format!("script {name}, active version {active}\n{described}\n{rows}\n\nparams schema:\n{schema}")
    })?;
    done()
}

/// Prints the lines of a script's tasks in the last runs with it, the oldest run first.
async fn logs(session: &Session, name: &str, count: u16) -> Result<ExitCode> {
    let (script, version) = split_version(name)?;
    let request = session.client.get(&["v1", "runs"]).query("script", name);
    let page: Value = request.query("limit", count).send_for_list().await?;
    let runs: Vec<&Value> = items(&page).collect();
    if runs.is_empty() {
        // A script that does not exist is distinguished from a script without runs.
        session.client.script(script).await?;
        tell!("there is no run with the script {name} yet");
    }
    let is_it = |resolved: &Value| match (resolved.as_str().and_then(|text| text.split_once('@')), version) {
        (Some((name, found)), Some(version)) => name == script && found == version.to_string(),
        (Some((name, _)), None) => name == script,
        (None, _) => false,
    };
    let mut log = Log::new(session, true);
    for run in runs.iter().rev() {
        let id = cell(run, "/id");
        // Only the answer about one run says which versions its tasks use; lists do not.
        let run: Value = session.client.get(&["v1", "runs", &id]).send().await?;
        if session.output == Format::Table {
            let columns = ["/group", "/state", "/created_at"].map(|pointer| cell(&run, pointer));
            output::print(&format!("run {id} {}", columns.join(" ")))?;
        }
        let tasks = run["scripts"].as_object().into_iter().flatten();
        for (task, _) in tasks.filter(|(_, resolved)| is_it(resolved)) {
            let request = session.client.get(&["v1", "runs", &id, "tasks", task, "logs"]);
            let mut pages = request.query("limit", 500).pages(&session.client);
            while let Some(page) = pages.next::<Value>().await? {
                for mut line in page.items {
                    if session.output != Format::Table {
                        // The lines of all runs are one list, so each names its run.
                        line["run"] = json!(id);
                    }
                    log.print(&line)?;
                }
            }
        }
    }
    log.end()?;
    done()
}

/// The error for a name that the server does not know. If the name looks like a path, the user meant a file, and the
/// error says that there is no such file.
fn no_such_file(name: &str, error: anyhow::Error) -> anyhow::Error {
    let refused = error.downcast_ref::<heddle_client::Error>();
    let unknown = refused.and_then(heddle_client::Error::status) == Some(404);
    match unknown && (is_source(name) || name.contains('/')) {
        true => usage(format!(
            "cannot read {name}: no such file, and no script of that name on the server"
        )),
        false => error,
    }
}

/// Runs a script on the server without making a run.
pub(crate) async fn invoke(session: &Session, invoke: &Invoke) -> Result<ExitCode> {
    let (name, version) = split_version(&invoke.name)?;
    let invocation = InvokeRequest {
        params: invoke.params.read()?,
        version,
        timeout: duration(invoke.timeout.as_deref(), "--timeout")?,
    };
    let result = session.client.invoke(name, &invocation).await?;
    let good = result.state == AttemptState::Succeeded;
    session.output.print(&serde_json::to_value(&result)?, |shown| {
        let mut text = String::new();
        for line in &result.logs {
            text.push_str(&format!("{:<5} {}\n", line.level, line.message));
        }
        let outcome = if good { &shown["output"] } else { &shown["error"] };
        let shown = serde_json::to_string_pretty(outcome).unwrap_or_default();
        let kib = result.memory_bytes / 1024;
        format!(
            "{text}{shown}\n{} in {:.1} ms, {kib} KiB",
            result.state, result.duration_ms
        )
    })?;
    if good { done() } else { Ok(ExitCode::from(NO)) }
}

fn split_version(text: &str) -> Result<(&str, Option<i32>)> {
    if Path::new(text)
        .extension()
        .is_some_and(|ext| ext == "wasm" || ext == "wat")
        || (is_source(text) && Path::new(text).is_file())
    {
        return Err(usage(format!(
            "`{text}` is a file; upload it first (heddle script push NAME {text} --no-activate)"
        )));
    }
    match text.split_once('@') {
        None => Ok((text, None)),
        Some((name, version)) => match version.parse() {
            Ok(version) => Ok((name, Some(version))),
            Err(_) => Err(usage(format!(
                "`{text}`: the version must be a number, for example {name}@3"
            ))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        assert_eq!(split_version("a@3").unwrap(), ("a", Some(3)));
        assert_eq!(split_version("a.b-c").unwrap(), ("a.b-c", None));
        assert!(split_version("a@x").is_err() && split_version("x.wasm").is_err());
    }
}
