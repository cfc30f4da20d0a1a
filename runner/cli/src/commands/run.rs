//! Runs: start, look, steer.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use heddle_client::{ClearTask, RunFilter, RunState, Submission};
use heddle_domain::Name;
use serde_json::{Value, json};
use uuid::Uuid;

use super::params::object;
use super::run_control::{bulk, clear_task, control, override_task, retry_task, set_state};
use super::run_ref::RunRef;
use super::run_show::{logs, show};
use super::{done, watch};
use crate::exit::{NO, usage, word};
use crate::output::{self, Rows, cell, items};
use crate::session::{MAX_LISTED, Session};

pub(super) use super::params::{Params, pair_of};
pub(super) use super::run_show::print_log;

/// What can be done with runs.
#[derive(Subcommand, Debug)]
pub enum RunCommand {
    /// Start a run of a group
    Start(Start),
    /// Follow a run to its end as a live tree; exits with 1 unless it succeeds
    Watch {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
    },
    /// List runs, newest first
    #[command(alias = "ls")]
    List {
        /// Which
        #[command(flatten)]
        filter: Filter,
        /// Also runs that ended longer ago than the retention calls hot (3 days)
        #[arg(long)]
        history: bool,
        /// How many
        #[arg(long, default_value_t = 50)]
        limit: usize,
        /// Where the last page ended
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show a run with its task runs
    Show {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
    },
    /// Show the attempts of a task run
    Task {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The task
        task: String,
        /// An item of a mapped task
        #[arg(long)]
        item: Option<u32>,
    },
    /// Print what tasks logged
    Logs {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The task; default all of them in turn
        task: Option<String>,
        /// An item of a mapped task
        #[arg(long)]
        item: Option<u32>,
        /// Go on until it has ended
        #[arg(short, long)]
        follow: bool,
        /// Only the last lines, this many: 1 to 500
        #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(u16).range(1..=500))]
        last: Option<u16>,
    },
    /// Cancel a run: interrupts what is running
    Cancel {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
    },
    /// Start nothing new in a run
    Pause {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
    },
    /// Let a paused run go on
    Resume {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
    },
    /// Do again what did not succeed in a failed or cancelled run
    Restart {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// Which versions of scripts
        #[arg(long, value_parser = ["pinned", "active"])]
        scripts: Option<String>,
        /// Follow it to its end
        #[arg(short, long)]
        watch: bool,
    },
    /// Make a new run like this one
    Rerun {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// Which versions of scripts
        #[arg(long, value_parser = ["pinned", "active"])]
        scripts: Option<String>,
        /// Follow it to its end
        #[arg(short, long)]
        watch: bool,
    },
    /// Set the state of a task run
    Override {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The task
        task: String,
        /// The state
        #[arg(value_parser = ["succeeded", "failed", "skipped"])]
        state: String,
        /// Why
        #[arg(long)]
        reason: String,
        /// An item of a mapped task
        #[arg(long)]
        item: Option<u32>,
    },
    /// Run a task again within a run that has ended, and what depends on it
    Clear {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The task
        task: String,
        /// An item of a mapped task
        #[arg(long)]
        item: Option<u32>,
        /// Whether what depends on it runs again as well; `--downstream=false` runs it alone
        #[arg(long, num_args = 0..=1, default_value_t = true, default_missing_value = "true",
              require_equals = true, action = clap::ArgAction::Set)]
        downstream: bool,
        /// Why
        #[arg(long, default_value = "")]
        reason: String,
        /// Follow it to its end
        #[arg(short, long)]
        watch: bool,
    },
    /// Try a task run again at once
    Retry {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The task
        task: String,
        /// An item of a mapped task
        #[arg(long)]
        item: Option<u32>,
    },
    /// Set the state of a run
    SetState {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
        /// The state
        #[arg(value_parser = ["succeeded", "failed"])]
        state: String,
        /// Why
        #[arg(long)]
        reason: String,
    },
    /// Do something to all runs that a filter finds
    Bulk(BulkOptions),
    /// Remove a run that has ended
    Rm {
        /// The run: its id, 8 or more of its first characters, `latest` or `latest:GROUP`
        id: RunRef,
    },
}

/// `heddle run start`
#[derive(Args, Debug)]
pub struct Start {
    /// The group
    pub group: String,
    /// Its params
    #[command(flatten)]
    pub params: Params,
    /// Params of one task: TASK=JSON
    #[arg(long = "task-params", value_name = "TASK=JSON")]
    pub task_params: Vec<String>,
    /// Unique per group for as long as the run is kept
    #[arg(long)]
    pub key: Option<String>,
    /// Refuse if the same params are under way, or kept
    #[arg(long, value_parser = ["params", "params_kept"])]
    pub dedupe: Option<String>,
    /// What the run can be found by: NAME=VALUE
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
    /// The instant that the run is for: RFC 3339, or a date (midnight in the group's timezone); default now
    #[arg(long, value_name = "TIME")]
    pub logical_time: Option<String>,
    /// Higher goes first
    #[arg(long, allow_hyphen_values = true)]
    pub priority: Option<i16>,
    /// A channel or a URL that is told of the end
    #[arg(long)]
    pub callback: Option<String>,
    /// Although the group is disabled
    #[arg(long)]
    pub force: bool,
    /// Follow it to its end
    #[arg(short, long)]
    pub watch: bool,
}

/// `heddle run bulk`
#[derive(Args, Debug)]
pub struct BulkOptions {
    /// What
    #[arg(value_parser = ["cancel", "pause", "resume", "restart", "rerun", "state", "clear", "delete"])]
    pub(super) action: String,
    /// Which
    #[command(flatten)]
    pub(super) filter: Filter,
    /// Only count them
    #[arg(long)]
    pub(super) dry_run: bool,
    /// For `clear`: the task
    #[arg(long)]
    pub(super) task: Option<String>,
    /// For `clear`: an item of a mapped task
    #[arg(long)]
    pub(super) item: Option<u32>,
    /// For `clear`: whether what depends on the task runs again as well (default true)
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(super) downstream: Option<bool>,
    /// For `state`: the state
    #[arg(long, value_parser = ["succeeded", "failed"])]
    pub(super) to_state: Option<String>,
    /// For `state` and `clear`: why
    #[arg(long)]
    pub(super) reason: Option<String>,
}

pub(super) fn name(text: &str, option: &str) -> Result<Name> {
    text.parse().map_err(|error| usage(format!("{option}: {error}")))
}

/// Which runs.
#[derive(Args, Debug)]
pub struct Filter {
    /// Of this group
    #[arg(short, long)]
    pub group: Option<String>,
    /// In this state
    #[arg(short, long, value_parser = ["waiting", "running", "paused", "succeeded", "failed", "cancelled"])]
    pub state: Option<String>,
    /// Made for this reason
    #[arg(long, value_parser = ["manual", "schedule", "backfill", "upstream", "task", "rerun"])]
    pub trigger: Option<String>,
    /// With this label: NAME=VALUE
    #[arg(long)]
    pub label: Option<String>,
    /// From this instant, RFC 3339
    #[arg(long)]
    pub from: Option<String>,
    /// To this instant, RFC 3339
    #[arg(long)]
    pub to: Option<String>,
}

impl From<Filter> for RunFilter {
    fn from(filter: Filter) -> Self {
        let Filter {
            group,
            state,
            trigger,
            label,
            from,
            to,
        } = filter;
        Self {
            group: group.into_iter().collect(),
            state: state.into_iter().collect(),
            trigger: trigger.into_iter().collect(),
            label: label.into_iter().collect(),
            from,
            to,
            ..Self::default()
        }
    }
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
        } => list(session, filter, history, limit, cursor).await,
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
            again(session, id, "restart", scripts, watch).await
        }
        RunCommand::Rerun { id, scripts, watch } => {
            let id = id.find(session).await?;
            again(session, id, "rerun", scripts, watch).await
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
        RunCommand::Rm { id } => {
            let id = id.find(session).await?.to_string();
            session.remove("run", &id, &["v1", "runs", &id], false).await?;
            done()
        }
    }
}

async fn start(session: &Session, options: Start) -> Result<ExitCode> {
    let mut task_params = BTreeMap::new();
    for pair in &options.task_params {
        let (task, params) = pair_of(pair, "--task-params")?;
        task_params.insert(name(task, "--task-params")?, object(params, "--task-params")?);
    }
    let mut labels = BTreeMap::new();
    for pair in &options.labels {
        let (name, value) = pair_of(pair, "--label")?;
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
        // What a date means is the group's timezone's to say.
        body["logical_time"] = json!(at);
    }
    let path = ["v1", "groups", &options.group, "runs"];
    super::unread::warn(session, &options.group, &submission).await;
    let answer: Value = session.client.post(&path).json(&body).send().await?;
    announce(session, &answer, "started", options.watch).await
}

/// Says which run there is now, or follows it.
async fn announce(session: &Session, answer: &Value, what: &str, follow: bool) -> Result<ExitCode> {
    let id = answer["id"]
        .as_str()
        .and_then(|id| id.parse().ok())
        .context("the server names no run")?;
    if follow {
        return watch::run(session, id).await;
    }
    let page = session.page(&["runs", &id.to_string()]);
    session.output.print(answer, |run| {
        format!("run {id} {what} ({})\n{page}", cell(run, "/state"))
    })?;
    done()
}

async fn again(session: &Session, id: Uuid, action: &str, scripts: Option<String>, follow: bool) -> Result<ExitCode> {
    let body = match scripts {
        Some(scripts) => json!({ "scripts": scripts }),
        None => json!({}),
    };
    let answer: Value = session
        .client
        .post(&["v1", "runs", &id.to_string(), action])
        .json(&body)
        .send()
        .await?;
    announce(
        session,
        &answer,
        if action == "rerun" { "started" } else { "restarted" },
        follow,
    )
    .await
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
    /// The most that the server gives at once.
    const PAGE: usize = 500;
    let group = filter.group.clone();
    let request = session
        .client
        .get(&["v1", "runs"])
        .filter(&filter.into())
        .query_if("history", history.then_some("true"))
        .query("limit", limit.min(PAGE));
    let page: Value = if limit <= PAGE {
        request.query_if("cursor", cursor).send().await?
    } else {
        let runs: Vec<Value> = request.send_for_all(&session.client, limit.min(MAX_LISTED)).await?;
        json!({ "items": runs, "next_cursor": null })
    };
    if let (Some(group), None) = (group, items(&page).next()) {
        // A group without runs and a name that no group has are told apart; runs of a deleted group are still listed.
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
        let mut rows = Rows::new(titles).of_runs();
        for run in items(page) {
            rows.add([
                cell(run, "/id"),
                cell(run, "/group"),
                cell(run, "/state"),
                cell(run, "/created_at"),
                watch::took(&run["started_at"], &run["finished_at"]),
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

/// The exit code for a run that has ended.
pub(super) fn code_of(state: RunState) -> ExitCode {
    if state == RunState::Succeeded {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NO)
    }
}
