//! Groups: look at them, switch them.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use heddle_client::{Bulk, BulkAction, DisableMode, RunFilter, RunState};
use serde_json::{Value, json};

use crate::exit::{NO, done, word};
use crate::output::{Rows, cell, items};
use crate::session::Session;
use crate::terminal::{self, tell};
use crate::{document, output};

/// What can be done with groups.
#[derive(Subcommand, Debug)]
pub enum GroupCommand {
    /// List groups
    #[command(alias = "ls")]
    List {
        /// Only groups in this category
        #[arg(long)]
        category: Option<String>,
    },
    /// Show a group
    Show {
        /// The name of the group
        name: String,
    },
    /// Delete a group that does not depend on other groups
    Rm {
        /// The name of the group
        name: String,
        /// Delete the group even if runs are active, and cancel these runs
        #[arg(long)]
        force: bool,
        /// On a terminal: delete without asking
        #[arg(long)]
        yes: bool,
    },
    /// Enable a group: schedules and upstream groups start runs
    Enable {
        /// The name of the group
        name: String,
    },
    /// Disable a group: schedules and upstream groups start no runs
    Disable {
        /// The name of the group
        name: String,
        /// drain: active runs continue; stop: active runs are cancelled
        #[arg(long, default_value = "drain", value_parser = ["drain", "stop"])]
        mode: String,
    },
    /// Show the tasks of a group in the order of their dependencies
    Graph {
        /// The name of the group
        name: String,
    },
    /// List the revisions of a group
    Revisions {
        /// The name of the group
        name: String,
    },
    /// Check specs on the server without saving them
    Validate {
        /// A YAML or JSON file or a directory; `-` is stdin. Can be repeated
        #[arg(short, long = "file", required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Show the next instants of the schedules of a group
    Next {
        /// The name of the group
        name: String,
        /// The number of instants, 1 to 1000
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
        count: u32,
    },
}

pub(crate) async fn run(session: &Session, command: GroupCommand) -> Result<ExitCode> {
    match command {
        GroupCommand::List { category } => list(session, category).await?,
        GroupCommand::Show { name } => session.show_document(document::Kind::Group, &name).await?,
        GroupCommand::Rm { name, force, yes } => return remove(session, &name, force, yes).await,
        GroupCommand::Enable { name } => {
            let group: Value = session.client.enable_group(&name).await?;
            session.output.print(&group, |_| format!("group {name} enabled"))?;
            session.tell_page(&["groups", &name]);
        }
        GroupCommand::Disable { name, mode } => {
            let how: DisableMode = word(Some(mode.clone()), "--mode")?;
            let group: Value = session.client.disable_group(&name, how).await?;
            session
                .output
                .print(&group, |_| format!("group {name} disabled ({mode})"))?;
            session.tell_page(&["groups", &name]);
        }
        GroupCommand::Graph { name } => graph(session, &name).await?,
        GroupCommand::Revisions { name } => {
            let columns = [
                ("REVISION", "/revision"),
                ("CREATED", "/created_at"),
                ("BY", "/created_by|/actor"),
            ];
            session.list(&["v1", "groups", &name, "revisions"], &columns).await?;
        }
        GroupCommand::Validate { files } => return validate(session, &files).await,
        GroupCommand::Next { name, count } => {
            let next = session.client.next_instants(&name, count).await?;
            session.output.print(&serde_json::to_value(&next)?, |next| {
                let mut rows = Rows::new(["AT", "SCHEDULE"]);
                for item in items(next) {
                    rows.add([cell(item, "/at"), cell(item, "/schedules")]);
                }
                rows.to_string()
            })?;
        }
    }
    done()
}

/// Deletes a group. On a terminal, it first shows which groups depend on the group, and asks. The answer of the server says
/// what was changed with it.
async fn remove(session: &Session, name: &str, force: bool, yes: bool) -> Result<ExitCode> {
    let mut what = format!("group {name}");
    if !yes && terminal::can_ask() {
        let request = session.client.get(&["v1", "groups"]);
        let groups: Vec<Value> = session.all(request).await?;
        let detached = dependants(&groups, name);
        if !detached.is_empty() {
            what.push_str(&format!(", on which {} depends", detached.join(", ")));
        }
        let active = match force {
            true => active_runs(session, name).await?,
            false => 0,
        };
        if active > 0 {
            what.push_str(&format!(", and cancels {active} active runs"));
        }
    }
    if !terminal::may_delete(&what, yes)? {
        return Ok(ExitCode::from(NO));
    }
    session.remove("group", name, &["v1", "groups", name], force).await?;
    done()
}

/// The groups that depend on a group directly.
fn dependants<'a>(groups: &'a [Value], name: &str) -> Vec<&'a str> {
    let depends = |group: &&Value| {
        let upstreams = group["depends_on"].as_array().into_iter().flatten();
        upstreams
            .map(|upstream| upstream.get("group").unwrap_or(upstream))
            .any(|upstream| upstream == name)
    };
    let found = groups.iter().filter(depends);
    found.filter_map(|group| group["name"].as_str()).collect()
}

/// How many runs of a group have not ended.
async fn active_runs(session: &Session, name: &str) -> Result<u64> {
    let states = RunState::ALL.iter().filter(|state| !state.is_final());
    let filter = RunFilter {
        group: std::iter::once(name.to_owned()).collect(),
        state: states.map(|state| state.as_str().to_owned()).collect(),
        ..RunFilter::default()
    };
    let bulk = Bulk {
        dry_run: true,
        ..Bulk::new(filter, BulkAction::Cancel)
    };
    Ok(session.client.control_runs(&bulk).await?.matched)
}

/// All groups, or those of a category, with the next instant that any of their schedules has.
async fn list(session: &Session, category: Option<String>) -> Result<()> {
    let request = session
        .client
        .get(&["v1", "groups"])
        .query_if("category", category.as_deref());
    let page = session.listed(request).await?;
    session
        .has_to_be(&page.items, "categories", category.as_deref())
        .await?;
    session.output.print(&json!(page), |list| {
        let mut rows = Rows::new(["NAME", "REVISION", "ENABLED", "CATEGORY", "TASKS", "SCHEDULES", "NEXT"]);
        for group in items(list) {
            let count = |field: &str| group[field].as_object().map_or(0, |map| map.len()).to_string();
            let next = group["schedules"]
                .as_object()
                .and_then(|schedules| schedules.values().filter_map(|s| s["next"].as_str()).min());
            rows.add([
                cell(group, "/name"),
                cell(group, "/revision"),
                cell(group, "/enabled"),
                cell(group, "/category"),
                count("tasks"),
                count("schedules"),
                next.map_or_else(|| "-".into(), |next| output::plain(&json!(next))),
            ]);
        }
        rows.to_string()
    })
}

/// The tasks of a group, each indented more than its dependencies.
async fn graph(session: &Session, name: &str) -> Result<()> {
    let graph = serde_json::to_value(session.client.graph(name).await?)?;
    let group = session.client.group(name).await?;
    session.output.print(&graph, |_| {
        let spec = Value::Object(group.spec.clone());
        let mut text = String::new();
        for (task, depth) in task_order(&spec) {
            let after = cell(&spec["tasks"][&task], "/depends_on");
            let indent = "  ".repeat(depth.min(MAX_INDENT));
            let arrow = if after == "-" {
                String::new()
            } else {
                format!("  <- {after}")
            };
            text.push_str(&format!("{indent}{task}{arrow}\n"));
        }
        text
    })
}

async fn validate(session: &Session, files: &[PathBuf]) -> Result<ExitCode> {
    let mut wrong = false;
    let mut results = Vec::new();
    for document in document::read_all(files)?
        .iter()
        .filter(|document| document.kind == document::Kind::Group)
    {
        match session.client.validate_group(&document.name, &document.spec).await {
            Ok(answer) => results.push(json!({ "group": document.name, "valid": true, "answer": answer })),
            Err(error) => match error.problem() {
                Some(problem) => {
                    wrong = true;
                    tell!("{document}: {problem}");
                    results.push(json!({ "group": document.name, "valid": false, "errors": problem.errors }));
                }
                None => return Err(error.into()),
            },
        }
    }
    session.output.print(&json!({ "items": results }), |list| {
        let good = items(list).filter(|item| item["valid"] == true);
        good.map(|item| format!("group {} is valid", output::plain(&item["group"])))
            .collect::<Vec<_>>()
            .join("\n")
    })?;
    if wrong {
        Ok(ExitCode::from(crate::exit::NO))
    } else {
        done()
    }
}

/// The maximum indentation of a tree, in levels.
pub(crate) const MAX_INDENT: usize = 12;

/// The tasks of a spec, each after its dependencies, with the length of the longest path to it.
pub(crate) fn task_order(spec: &Value) -> Vec<(String, usize)> {
    let Some(tasks) = spec["tasks"].as_object() else {
        return Vec::new();
    };
    let mut depth: std::collections::BTreeMap<&str, usize> = Default::default();
    // The longest path of a DAG has no more steps than tasks. So the loop ends even if there is a cycle (a server
    // stores none).
    for _ in 0..=tasks.len() {
        let mut moved = false;
        for (name, task) in tasks {
            let upstreams = task["depends_on"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            let wanted = upstreams
                .map(|up| depth.get(up).copied().unwrap_or(0) + 1)
                .max()
                .unwrap_or(0);
            if depth.insert(name, wanted) != Some(wanted) {
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    let mut order: Vec<(String, usize)> = depth
        .into_iter()
        .map(|(name, depth)| (name.to_owned(), depth))
        .collect();
    order.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_come_after_what_they_need() {
        let spec = json!({"tasks": {"a": {"depends_on": ["c"]}, "b": {"depends_on": ["a", "c"]}, "c": {}, "d": {}}});
        let order = task_order(&spec);
        let wanted = [("c", 0), ("d", 0), ("a", 1), ("b", 2)].map(|(name, depth)| (name.to_owned(), depth));
        assert_eq!(order, wanted);
    }

    #[test]
    fn who_depends_on_a_group_is_known() {
        let groups = [
            json!({"name": "a"}),
            json!({"name": "b", "depends_on": ["a"]}),
            json!({"name": "c", "depends_on": ["b", {"group": "a", "need": "interval"}]}),
            json!({"name": "d", "depends_on": ["b"]}),
        ];
        assert_eq!(dependants(&groups, "a"), ["b", "c"]);
        assert!(dependants(&groups, "d").is_empty());
    }

    #[test]
    fn a_cycle_does_not_hang() {
        assert_eq!(
            task_order(&json!({"tasks": {"a": {"depends_on": ["b"]}, "b": {"depends_on": ["a"]}}})).len(),
            2
        );
    }
}
