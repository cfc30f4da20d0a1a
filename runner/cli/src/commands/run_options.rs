//! Options that choose runs, and what is done with them.

use anyhow::Result;
use clap::Args;
use clap::builder::PossibleValuesParser;
use heddle_client::{RunFilter, RunState};
use heddle_domain::Name;
use heddle_domain::state::Trigger;

use crate::exit::{instant, usage};

/// The parser of an option that takes only these words.
pub(super) fn words<T: Copy>(all: &[T], word: fn(T) -> &'static str) -> PossibleValuesParser {
    all.iter().map(|one| word(*one)).collect::<Vec<_>>().into()
}

/// The options of `heddle run bulk`.
#[derive(Args, Debug)]
pub struct BulkOptions {
    /// The action, applied to each run
    #[arg(value_parser = ["cancel", "pause", "resume", "restart", "rerun", "state", "clear", "delete"])]
    pub(super) action: String,
    #[command(flatten)]
    pub(super) filter: Filter,
    /// Change nothing; show how many runs would change
    #[arg(long)]
    pub(super) dry_run: bool,
    /// For `clear`: the name of the task
    #[arg(long)]
    pub(super) task: Option<String>,
    /// For `clear`: the item of a mapped task, counted from 0
    #[arg(long)]
    pub(super) item: Option<u32>,
    /// For `clear`: also run the tasks that depend on the task [default: true]
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub(super) downstream: Option<bool>,
    /// For `rerun`: your own id for this command. With the same one, no run is repeated twice
    #[arg(long)]
    pub(super) key: Option<String>,
    /// For `state`: the new state
    #[arg(long, value_parser = words(&RunState::OVERRIDES, RunState::as_str))]
    pub(super) to_state: Option<String>,
    /// For `state` and `clear`: the reason
    #[arg(long)]
    pub(super) reason: Option<String>,
    /// For `delete` on a terminal: delete without asking
    #[arg(long)]
    pub(super) yes: bool,
}

pub(super) fn name(text: &str, option: &str) -> Result<Name> {
    text.parse().map_err(|error| usage(format!("{option}: {error}")))
}

#[derive(Args, Debug)]
pub struct Filter {
    /// Only runs of this group
    #[arg(short, long)]
    pub group: Option<String>,
    /// Only runs in this state
    #[arg(short, long, value_parser = words(RunState::ALL, RunState::as_str))]
    pub state: Option<String>,
    /// Only runs with this trigger
    #[arg(long, value_parser = words(Trigger::ALL, Trigger::as_str))]
    pub trigger: Option<String>,
    /// Only runs with this label: NAME=VALUE, or NAME for any value
    #[arg(long)]
    pub label: Option<String>,
    /// Only runs created at or after this time, RFC 3339, or a date (midnight UTC)
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub from: Option<String>,
    /// Only runs created at or before this time, RFC 3339, or a date (midnight UTC)
    #[arg(long, value_name = "TIME", value_parser = instant)]
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
