//! `heddle run`: starting, showing and controlling runs.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use heddle_client::{ClearTask, List, RerunOptions, RunState, ScriptsChoice, Submission};
use heddle_domain::state::TaskState;
use serde_json::{Value, json};
use uuid::Uuid;

use super::params::object;
use super::run_control::{bulk, clear_task, control, override_task, retry_task, set_state};
use super::run_logs::logs;
use super::run_options::{BulkOptions, Filter, name, words};
use super::run_ref::RunRef;
use super::run_show::show;
use super::watch;
use crate::exit::{NO, done, word};
use crate::output::{self, Rows, cell, items};
use crate::session::{MAX_LISTED, Session};
use crate::terminal;

pub(super) use super::params::{Params, pair_of};

/// What can be done with runs.
#[derive(Subcommand, Debug)]
pub enum RunCommand {
    /// Start a run of a group
    Start(Start),
    /// Follow a run as a live tree until it ends. Exit code 1 unless it succeeds
    Watch {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
    },
    /// List runs, newest first
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        filter: Filter,
        /// Include runs that ended longer ago than the `hot` period of the retention (default 3 days)
        #[arg(long)]
        history: bool,
        /// The maximum number of runs, 1 to 100000. More than 500 are read page by page
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        limit: u32,
        /// The cursor of the next page, as printed by the previous call
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show a run with its task runs
    Show {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
    },
    /// Show the attempts of a task run
    Task {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The name of the task
        task: String,
        /// The item of a mapped task, counted from 0
        #[arg(long)]
        item: Option<u32>,
    },
    /// Print the log of a run or of a task
    Logs {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The name of the task [default: all tasks]
        task: Option<String>,
        /// The item of a mapped task, counted from 0
        #[arg(long)]
        item: Option<u32>,
        /// Wait for new lines until the run has ended. With `-o json` or `-o yaml`, each line is a line of JSON
        #[arg(short, long)]
        follow: bool,
        /// Only the last LINES lines, 1 to 500
        #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(u16).range(1..=500))]
        last: Option<u16>,
    },
    /// Cancel a run and interrupt its running attempts
    Cancel {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
    },
    /// Pause a run: no new task run starts
    Pause {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
    },
    /// Resume a paused run
    Resume {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
    },
    /// Restart a failed or cancelled run from where it failed
    Restart {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The script versions: those recorded on the run, or the active ones [default: pinned]
        #[arg(long, value_parser = ["pinned", "active"])]
        scripts: Option<String>,
        /// Follow the run until it ends
        #[arg(short, long)]
        watch: bool,
    },
    /// Create a new run with the same params and logical time
    Rerun {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The script versions: those recorded on the run, or the active ones [default: pinned]
        #[arg(long, value_parser = ["pinned", "active"])]
        scripts: Option<String>,
        /// Create the run even if the group is disabled
        #[arg(long)]
        force: bool,
        /// Your own id for the new run. If a run of the group has it, no run is created
        #[arg(long)]
        key: Option<String>,
        /// Follow the run until it ends
        #[arg(short, long)]
        watch: bool,
    },
    /// Set the state of a task run
    Override {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The name of the task
        task: String,
        /// The new state. It settles the tasks that depend on the task
        #[arg(value_parser = words(&TaskState::OVERRIDES, TaskState::as_str))]
        state: String,
        /// The reason, shown on the run and in the audit
        #[arg(long)]
        reason: String,
        /// The item of a mapped task, counted from 0
        #[arg(long)]
        item: Option<u32>,
    },
    /// Run a task of an ended run again, with all tasks that depend on it
    Clear {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The name of the task
        task: String,
        /// The item of a mapped task, counted from 0
        #[arg(long)]
        item: Option<u32>,
        /// Also run the tasks that depend on it; --downstream=false runs only this task
        #[arg(long, num_args = 0..=1, default_value_t = true, default_missing_value = "true",
              require_equals = true, action = clap::ArgAction::Set)]
        downstream: bool,
        /// The reason, shown on the run and in the audit
        #[arg(long, default_value = "")]
        reason: String,
        /// Follow the run until it ends
        #[arg(short, long)]
        watch: bool,
    },
    /// Start the next attempt of a task run now
    Retry {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The name of the task
        task: String,
        /// The item of a mapped task, counted from 0
        #[arg(long)]
        item: Option<u32>,
    },
    /// Set the state of a run
    SetState {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The new state. The run ends with it
        #[arg(value_parser = words(&RunState::OVERRIDES, RunState::as_str))]
        state: String,
        /// The reason, shown on the run and in the audit
        #[arg(long)]
        reason: String,
    },
    /// Control all runs that match a filter
    Bulk(BulkOptions),
    /// Delete a run that has ended
    Rm {
        /// The run: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// On a terminal: delete without asking
        #[arg(long)]
        yes: bool,
    },
}

/// The options of `heddle run start`.
#[derive(Args, Debug)]
pub struct Start {
    /// The name of the group
    pub group: String,
    #[command(flatten)]
    pub params: Params,
    /// Params of one task: TASK=JSON. Can be repeated
    #[arg(long = "task-params", value_name = "TASK=JSON")]
    pub task_params: Vec<String>,
    /// Your own id for the run, unique in the group for as long as the run is kept
    #[arg(long)]
    pub key: Option<String>,
    /// Refuse the run if a run with the same params is unfinished (params) or kept (params_kept)
    #[arg(long, value_parser = ["params", "params_kept"])]
    pub dedupe: Option<String>,
    /// A label, by which the run can be found: NAME=VALUE. Can be repeated
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
    /// The logical time: RFC 3339, or a date, which means midnight in the group's time zone [default: now]
    #[arg(long, value_name = "TIME")]
    pub logical_time: Option<String>,
    /// The priority, -1000 to 1000; higher starts first [default: the group's]
    #[arg(long, allow_hyphen_values = true)]
    pub priority: Option<i16>,
    /// A channel or a URL to which the run is sent when it has ended
    #[arg(long)]
    pub callback: Option<String>,
    /// Start the run even if the group is disabled
    #[arg(long)]
    pub force: bool,
    /// Follow the run until it ends
    #[arg(short, long)]
    pub watch: bool,
}

pub(crate) async fn run(session: &Session, command: RunCommand) -> Result<ExitCode> {
    match command {
        RunCommand::Start(options) => start(session, options).await,
        RunCommand::Watch { id } => watch::run(session, id.find(session).await?).await,
        RunCommand::List {
            filter,
            history,
            limit,
            cursor,
        } => list(session, filter, history, limit as usize, cursor).await,
        RunCommand::Show { id } => show(session, id.find(session).await?).await,
        RunCommand::Task { id, task, item } => attempts(session, id.find(session).await?, &task, item).await,
        RunCommand::Logs {
            id,
            task,
            item,
            follow,
            last,
        } => {
            let id = id.find(session).await?;
            logs(session, id, task, item, (follow, last)).await
        }
        RunCommand::Cancel { id } => control(session, id.find(session).await?, "cancel").await,
        RunCommand::Pause { id } => control(session, id.find(session).await?, "pause").await,
        RunCommand::Resume { id } => control(session, id.find(session).await?, "resume").await,
        RunCommand::Restart { id, scripts, watch } => {
            let id = id.find(session).await?;
            let choice = ScriptsChoice {
                scripts: word(scripts, "--scripts")?,
            };
            let answer: Value = session.client.restart_run(id, &choice).await?;
            announce(session, &answer, "restarted", watch).await
        }
        RunCommand::Rerun {
            id,
            scripts,
            force,
            key,
            watch,
        } => {
            let id = id.find(session).await?;
            let scripts = word(scripts, "--scripts")?;
            let answer: Value = session.client.rerun(id, &RerunOptions { scripts, force, key }).await?;
            announce(session, &answer, "started", watch).await
        }
        RunCommand::Override {
            id,
            task,
            state,
            reason,
            item,
        } => {
            let id = id.find(session).await?;
            override_task(session, id, (&task, item), &state, &reason).await
        }
        RunCommand::Clear {
            id,
            task,
            item,
            downstream,
            reason,
            watch,
        } => {
            let id = id.find(session).await?;
            let clear = ClearTask { downstream, reason };
            clear_task(session, id, (&task, item), &clear, watch).await
        }
        RunCommand::Retry { id, task, item } => retry_task(session, id.find(session).await?, (&task, item)).await,
        RunCommand::SetState { id, state, reason } => {
            set_state(session, id.find(session).await?, &state, &reason).await
        }
        RunCommand::Bulk(options) => bulk(session, options).await,
        RunCommand::Rm { id, yes } => remove(session, id.find(session).await?, yes).await,
    }
}

/// Deletes a run. On a terminal, it first shows which run that is (the user may have typed `latest`), and asks.
async fn remove(session: &Session, id: Uuid, yes: bool) -> Result<ExitCode> {
    if !yes && terminal::can_ask() {
        let run = session.client.run(id).await?;
        let created = output::plain(&json!(run.created_at));
        let what = format!(
            "run {id} of {} ({}, created {created}), with its log",
            run.group, run.state
        );
        if !terminal::may_delete(&what, false)? {
            return Ok(ExitCode::from(NO));
        }
    }
    let id = id.to_string();
    session.remove("run", &id, &["v1", "runs", &id], false).await?;
    done()
}

async fn start(session: &Session, options: Start) -> Result<ExitCode> {
    let mut task_params = BTreeMap::new();
    for pair in &options.task_params {
        let (task, params) = pair_of(pair, "--task-params", "TASK=JSON")?;
        task_params.insert(name(task, "--task-params")?, object(params, "--task-params")?);
    }
    let mut labels = BTreeMap::new();
    for pair in &options.labels {
        let (name, value) = pair_of(pair, "--label", "NAME=VALUE")?;
        labels.insert(name.to_owned(), value.to_owned());
    }
    let submission = Submission {
        params: options.params.read()?,
        task_params,
        logical_time: None,
        key: options.key,
        dedupe: word(options.dedupe, "--dedupe")?,
        priority: options.priority,
        labels,
        callback: options.callback,
        force: options.force,
    };
    let mut body = serde_json::to_value(&submission)?;
    if let Some(at) = options.logical_time {
        // A date means midnight in the time zone of the group.
        body["logical_time"] = json!(at);
    }
    let path = ["v1", "groups", &options.group, "runs"];
    super::unread::warn(session, &options.group, &submission).await;
    let answer: Value = session.client.post(&path).json(&body).send().await?;
    announce(session, &answer, "started", options.watch).await
}

/// Prints the new run, or follows it.
async fn announce(session: &Session, answer: &Value, what: &str, follow: bool) -> Result<ExitCode> {
    let id = answer["id"]
        .as_str()
        .and_then(|id| id.parse().ok())
        .context("the server did not return a run")?;
    if follow {
        return watch::run(session, id).await;
    }
    let page = session.page(&["runs", &id.to_string()]);
    session.output.print(answer, |run| {
        format!("run {id} {what} ({})\n{page}", cell(run, "/state"))
    })?;
    done()
}

/// The attempts of a task run.
async fn attempts(session: &Session, id: Uuid, task: &str, item: Option<u32>) -> Result<ExitCode> {
    let path = ["v1", "runs", &id.to_string(), "tasks", task];
    let answer: Value = session.client.get(&path).query_if("item", item).send().await?;
    session.output.print_thing(&answer)?;
    done()
}

async fn list(
    session: &Session,
    filter: Filter,
    history: bool,
    limit: usize,
    cursor: Option<String>,
) -> Result<ExitCode> {
    /// The maximum that the server returns at once.
    const PAGE: usize = 500;
    let group = filter.group.clone();
    let request = session
        .client
        .get(&["v1", "runs"])
        .filter(&filter.into())
        .query_if("history", history.then_some("true"))
        .query("limit", limit.min(PAGE));
    let request = request.query_if("cursor", cursor);
    let page: Value = if limit <= PAGE {
        request.send_for_list().await?
    } else {
        let runs: List<Value> = request.send_for_all(&session.client, limit.min(MAX_LISTED)).await?;
        json!(runs)
    };
    if let (Some(group), None) = (group, items(&page).next()) {
        // A group without runs is distinguished from a group that does not exist. Runs of a deleted group are still
        // listed.
        let _: Value = session.client.get(&["v1", "groups", &group]).send().await?;
    }
    session.output.print(&page, |page| {
        let titles = [
            "ID",
            "GROUP",
            "STATE",
            "CREATED",
            "TOOK",
            "TRIGGER",
            "LOGICAL TIME",
            "FINISHED",
            "KEY",
        ];
        let mut rows = Rows::new(titles).of_ids();
        for run in items(page) {
            rows.add([
                cell(run, "/id"),
                cell(run, "/group"),
                cell(run, "/state"),
                cell(run, "/created_at"),
                watch::took(at_work_since(run), &run["finished_at"]),
                cell(run, "/trigger"),
                cell(run, "/logical_time"),
                cell(run, "/finished_at"),
                cell(run, "/key"),
            ]);
        }
        rows.to_string()
    })?;
    output::more(session.output, &page);
    done()
}

/// When a run last began to work: at its start, or when it was continued after its end. Null for a run that waits, and for
/// one that was continued and ended at the same instant.
fn at_work_since(run: &Value) -> &Value {
    if run["state"] == "waiting" || run.get("reopened_at").is_some_and(|at| *at == run["finished_at"]) {
        return &Value::Null;
    }
    run.get("reopened_at").unwrap_or(&run["started_at"])
}
