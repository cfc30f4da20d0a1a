//! `heddle retention`: how long data is kept.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use serde_json::Value;

use crate::document;
use crate::exit::done;
use crate::output::items;
use crate::session::Session;

/// What can be done with retention.
#[derive(Subcommand, Debug)]
pub enum RetentionCommand {
    /// Show how long data is kept
    Show,
    /// Change how long data is kept. A field that the file omits gets its default
    Set {
        /// A YAML or JSON file; `-` is stdin
        #[arg(short, long, default_value = "-")]
        file: PathBuf,
        /// Change nothing; show what would be removed now
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove expired data now, without waiting for the nodes
    Prune {
        /// Remove nothing; show what would be removed
        #[arg(long)]
        dry_run: bool,
    },
}

pub(crate) async fn run(session: &Session, command: RetentionCommand) -> Result<ExitCode> {
    match command {
        RetentionCommand::Show => {
            let kept = session.client.retention().await?;
            session.output.print_thing(&serde_json::to_value(kept)?)?;
        }
        RetentionCommand::Set { file, dry_run } => {
            let wanted = document::read_value(&file)?;
            let answer = serde_json::to_value(session.client.put_retention(&wanted, dry_run).await?)?;
            match dry_run {
                true => session.output.print(&answer, in_words)?,
                false => session.output.print_thing(&answer)?,
            }
        }
        RetentionCommand::Prune { dry_run } => {
            let pruned = session.client.prune(dry_run).await?;
            session.output.print(&serde_json::to_value(pruned)?, in_words)?;
        }
    }
    done()
}

/// What was removed, or in a dry run would be.
fn in_words(pruned: &Value) -> String {
    let what = [
        ("runs", "runs"),
        ("logs", "logs of runs"),
        ("audit", "entries of the audit"),
        ("events", "events"),
        ("assignments", "assignments"),
        ("notifications", "notifications"),
        ("occurrences", "occurrences"),
        ("offers", "offers"),
        ("backfills", "backfills"),
        ("tokens", "tokens"),
    ];
    let mut parts: Vec<String> = what
        .iter()
        .filter_map(|(field, word)| Some((pruned[field].as_u64().filter(|count| *count > 0)?, word)))
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    for (field, word) in [("days", "all runs of"), ("log_days", "all logs of")] {
        let days: Vec<&str> = items(&pruned[field]).filter_map(Value::as_str).collect();
        if !days.is_empty() {
            parts.push(format!("{word} {}", days.join(", ")));
        }
    }
    let what = if parts.is_empty() {
        "nothing".to_owned()
    } else {
        parts.join(", ")
    };
    let verb = if pruned["dry_run"] == true {
        "would be removed"
    } else {
        "removed"
    };
    let more = if pruned["more"] == true {
        "; there is more, repeat the command"
    } else {
        ""
    };
    format!("{what} {verb}{more}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_removed_is_a_sentence() {
        assert_eq!(
            in_words(&json!({"runs": 0, "days": [], "more": false, "dry_run": false})),
            "nothing removed"
        );
        let some =
            json!({"runs": 12, "events": 3, "days": ["2026-11-01", "2026-11-02"], "more": true, "dry_run": true});
        assert_eq!(
            in_words(&some),
            "12 runs, 3 events, all runs of 2026-11-01, 2026-11-02 would be removed; there is more, repeat the command"
        );
    }
}
