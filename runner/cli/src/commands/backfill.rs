//! Backfills, with a bar.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use heddle_client::{BackfillRequest, BackfillStarted};
use serde_json::json;
use uuid::Uuid;

use super::patience::Patience;
use super::run::Params;
use super::run_ref::{Backfills, Ref};
use crate::exit::{NO, done, duration, word};
use crate::output::{self, Format};
use crate::session::Session;
use crate::terminal::{self, tell};

/// The time between two reads of a watched backfill.
const STEP: Duration = Duration::from_millis(500);

/// The options of `heddle backfill`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Backfill {
    /// List, show or control existing backfills
    #[command(subcommand)]
    pub command: Option<BackfillCommand>,
    #[command(flatten)]
    pub start: Start,
}

/// What can be done with a backfill.
#[derive(Subcommand, Debug)]
pub enum BackfillCommand {
    /// List backfills, newest first
    #[command(alias = "ls")]
    List {
        /// Only backfills of this group
        #[arg(long)]
        group: Option<String>,
    },
    /// Show a backfill and its progress
    Show {
        /// The backfill: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: Ref<Backfills>,
    },
    /// Follow a backfill until it ends, with a progress bar
    Watch {
        /// The backfill: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: Ref<Backfills>,
    },
    /// Cancel a backfill: create no more runs and cancel its active runs
    Cancel {
        /// The backfill: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: Ref<Backfills>,
    },
    /// Pause a backfill: create no more runs until it is resumed
    Pause {
        /// The backfill: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: Ref<Backfills>,
    },
    /// Resume a paused backfill
    Resume {
        /// The backfill: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: Ref<Backfills>,
    },
}

/// For which instants to create runs, and how.
#[derive(Args, Debug)]
pub struct Start {
    /// The group; it needs `history: true`
    #[arg(required = true)]
    pub group: Option<String>,
    /// The first instant, included: RFC 3339, or a date or local time in the group's time zone
    #[arg(long, required = true, value_name = "TIME")]
    pub from: Option<String>,
    /// The last instant, included [default: now, plus instants that become due in the meantime]
    #[arg(long, value_name = "TIME")]
    pub to: Option<String>,
    /// The duration between two instants, for a group without `cron`, `every` or `daily` schedules
    #[arg(long, value_name = "DURATION")]
    pub step: Option<String>,
    /// The order of the runs: oldest (asc) or newest (desc) first [default: asc]
    #[arg(long, value_parser = ["asc", "desc"])]
    pub order: Option<String>,
    /// The maximum number of runs that are active at the same time, 1 to 10000 [default: 1]
    #[arg(long, value_name = "N")]
    pub max_active: Option<u32>,
    /// What to do with instants that already have a run: skip them, repeat the failed ones, or repeat all [default:
    /// skip]
    #[arg(long, value_parser = ["skip", "failed", "all"])]
    pub on_existing: Option<String>,
    /// Also run the groups that depend on this group, for each instant
    #[arg(long)]
    pub include_downstream: bool,
    /// The script versions of repeated runs: the active ones, or those pinned by the replaced run [default: active]
    #[arg(long, value_parser = ["active", "pinned"])]
    pub scripts: Option<String>,
    /// The priority, -1000 to 1000; higher starts first [default: below scheduled runs]
    #[arg(long, allow_hyphen_values = true)]
    pub priority: Option<i16>,
    /// Params of each run
    #[command(flatten)]
    pub params: Params,
    /// Start even if the group is disabled
    #[arg(long)]
    pub force: bool,
    /// Only list the instants, and create nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Follow the backfill until it ends
    #[arg(short, long)]
    pub watch: bool,
}

pub(crate) async fn run(session: &Session, backfill: Backfill) -> Result<ExitCode> {
    match backfill.command {
        None => start(session, backfill.start).await,
        Some(BackfillCommand::List { group }) => {
            let columns = [
                ("ID", "/id"),
                ("GROUP", "/group"),
                ("STATE", "/state"),
                ("FROM", "/from"),
                ("TO", "/to"),
                ("TOTAL", "/total"),
                ("CREATED", "/created_at"),
                ("FINISHED", "/finished_at"),
            ];
            let request = session
                .client
                .get(&["v1", "backfills"])
                .query_if("group", group.as_deref());
            let page = session.listed(request).await?;
            session.has_to_be(&page.items, "groups", group.as_deref()).await?;
            session.output.print_list_of_ids(&json!(page), &columns)?;
            done()
        }
        Some(BackfillCommand::Show { id }) => {
            let id = id.find(session).await?;
            session.show("backfill", &["v1", "backfills", &id.to_string()]).await?;
            done()
        }
        Some(BackfillCommand::Watch { id }) => watch(session, id.find(session).await?).await,
        Some(BackfillCommand::Cancel { id }) => control(session, id.find(session).await?, "cancel").await,
        Some(BackfillCommand::Pause { id }) => control(session, id.find(session).await?, "pause").await,
        Some(BackfillCommand::Resume { id }) => control(session, id.find(session).await?, "resume").await,
    }
}

async fn start(session: &Session, start: Start) -> Result<ExitCode> {
    let params = start.params.read()?;
    let request = BackfillRequest {
        from: start.from.unwrap_or_default(),
        to: start.to,
        step: duration(start.step.as_deref(), "--step")?,
        order: word(start.order, "--order")?,
        max_active: start.max_active.unwrap_or(1),
        on_existing: word(start.on_existing, "--on-existing")?,
        include_downstream: start.include_downstream,
        scripts: word(start.scripts, "--scripts")?,
        priority: start.priority,
        params,
        force: start.force,
        dry_run: start.dry_run,
    };
    let answer = session
        .client
        .backfill_group(&start.group.unwrap_or_default(), &request)
        .await?;
    let shown = serde_json::to_value(&answer)?;
    match answer {
        BackfillStarted::Made(backfill) if start.watch => return watch(session, backfill.id).await,
        BackfillStarted::Made(backfill) => {
            session.output.print(&shown, |_| {
                format!("backfill {} started\n{}", backfill.id, page(session, backfill.id))
            })?;
        }
        BackfillStarted::Planned(plan) => {
            if plan.instants.is_empty() {
                // On stderr: the list on stdout is empty.
                tell!("nothing to do: no instant in this range would get a run");
            }
            let instants: Vec<String> = plan.instants.iter().map(|at| output::plain(&json!(at))).collect();
            session.output.print(&shown, |_| instants.join("\n"))?;
        }
    }
    done()
}

fn page(session: &Session, id: Uuid) -> String {
    session.page(&["backfills", &id.to_string()])
}

async fn control(session: &Session, id: Uuid, action: &str) -> Result<ExitCode> {
    let backfill = session.client.control_backfill(id, action).await?;
    session.output.print(&serde_json::to_value(&backfill)?, |_| {
        format!("backfill {id} is {}", backfill.state)
    })?;
    session.tell_page(&["backfills", &id.to_string()]);
    done()
}

async fn watch(session: &Session, id: Uuid) -> Result<ExitCode> {
    let live = terminal::is_interactive();
    let mut canvas = terminal::Canvas::default();
    let mut last = String::new();
    let mut patience = Patience::default();
    if session.output == Format::Table {
        // On stderr, because a program that reads stdout wants the progress.
        tell!("{}", page(session, id));
    }
    loop {
        let losses = patience.losses();
        let backfill = patience.read(async || session.client.backfill(id).await).await?;
        if patience.losses() > losses {
            // The line that said so stands beneath the bar, so the next bar begins beneath that line.
            canvas = terminal::Canvas::default();
        }
        let counts: Vec<String> = backfill
            .counts
            .iter()
            .filter(|(_, n)| **n > 0)
            .map(|(state, n)| format!("{state} {n}"))
            .collect();
        let line = format!(
            "{} {}/{} {}  {}",
            bar(backfill.done(), backfill.total, 30),
            backfill.done(),
            backfill.total,
            backfill.state,
            counts.join(", ")
        );
        // A backfill without runs only shows why it creates none.
        if line != last && session.output == Format::Table && backfill.total > 0 {
            if live {
                canvas.draw(&[terminal::cut(&line, terminal::size().0)])?;
            } else {
                output::print(&line)?;
            }
            last = line;
        }
        if backfill.is_final() {
            if backfill.total == 0 {
                tell!(
                    "no runs were created: the range has no instant, or each instant already has a run (see \
                    --on-existing)"
                );
            }
            if session.output != Format::Table {
                session.output.print_thing(&serde_json::to_value(&backfill)?)?;
            }
            let bad = backfill.state != "succeeded" || backfill.counts.get("failed").is_some_and(|failed| *failed > 0);
            return if bad { Ok(ExitCode::from(NO)) } else { done() };
        }
        tokio::time::sleep(STEP).await;
    }
}

/// A progress bar of this width.
pub(crate) fn bar(done: i64, total: i64, width: usize) -> String {
    let share = if total > 0 {
        (done.clamp(0, total) as f64) / (total as f64)
    } else {
        0.0
    };
    let full = (share * width as f64) as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(width - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fill_up() {
        assert_eq!(bar(0, 10, 4), "[----]");
        assert_eq!(bar(5, 10, 4), "[##--]");
        assert_eq!(bar(12, 10, 4), "[####]");
        assert_eq!(bar(0, 0, 4), "[----]");
    }
}
