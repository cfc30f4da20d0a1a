//! How people name a run on the command line: by its id, by the beginning of its id, or as the latest one.

use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use uuid::Uuid;

use crate::exit::usage;
use crate::output::cell;
use crate::session::Session;

/// The shortest beginning of an id that is taken for one.
const PREFIX_CHARS_MIN: usize = 8;

/// How many runs an error about an ambiguous beginning lists.
const LISTED_MAX: u32 = 10;

/// A run, as it was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunRef {
    /// By its whole id.
    Id(Uuid),
    /// By the first characters of its id, in lower case.
    Prefix(String),
    /// The one that was made last, of one group or of all.
    Latest(Option<String>),
}

impl FromStr for RunRef {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        if text == "latest" {
            return Ok(Self::Latest(None));
        }
        if let Some(group) = text.strip_prefix("latest:").filter(|group| !group.is_empty()) {
            return Ok(Self::Latest(Some(group.to_owned())));
        }
        let could_be = text.chars().all(|letter| letter.is_ascii_hexdigit() || letter == '-');
        if could_be && (PREFIX_CHARS_MIN..36).contains(&text.chars().count()) {
            return Ok(Self::Prefix(text.to_ascii_lowercase()));
        }
        Err(format!(
            "write the id of a run, at least {PREFIX_CHARS_MIN} of its first characters, `latest` or `latest:GROUP`"
        ))
    }
}

impl RunRef {
    /// The run's id; asks the server unless it was typed.
    pub(crate) async fn find(&self, session: &Session) -> Result<Uuid> {
        match self {
            Self::Id(id) => Ok(*id),
            Self::Latest(group) => {
                let request = session.client.get(&["v1", "runs", "latest"]);
                let found: Result<Value, _> = request.query_if("group", group.as_deref()).send().await;
                match (found, group) {
                    (Ok(run), _) => id_of(&run),
                    (Err(error), group) if error.status() == Some(404) => {
                        let Some(group) = group else { bail!("there are no runs") };
                        // A group without runs and a name that no group has are told apart.
                        let _: Value = session.client.get(&["v1", "groups", group]).send().await?;
                        bail!("the group `{group}` has no runs")
                    }
                    (Err(error), _) => Err(error.into()),
                }
            }
            Self::Prefix(prefix) => {
                let page: Value = session
                    .client
                    .get(&["v1", "runs"])
                    .query("id", prefix)
                    .query("history", true)
                    .query("limit", LISTED_MAX)
                    .send()
                    .await?;
                let found = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
                match found {
                    [] => Err(usage(format!("no run has an id that begins with {prefix}"))),
                    [run] => id_of(run),
                    several => {
                        let more = if page["next_cursor"].is_null() { "" } else { "\n  ..." };
                        let lines: Vec<String> = several
                            .iter()
                            .map(|run| {
                                let of = |pointer| cell(run, pointer);
                                format!(
                                    "  {}  {}  {}  {}",
                                    of("/id"),
                                    of("/group"),
                                    of("/state"),
                                    of("/created_at")
                                )
                            })
                            .collect();
                        Err(usage(format!(
                            "the ids of several runs begin with {prefix}; type more characters:\n{}{more}",
                            lines.join("\n")
                        )))
                    }
                }
            }
        }
    }
}

fn id_of(run: &Value) -> Result<Uuid> {
    run["id"]
        .as_str()
        .and_then(|id| id.parse().ok())
        .context("the server did not return a run")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_in_four_ways() {
        let id = "0199f5a0-0000-7000-8000-00000000000a";
        assert_eq!(id.parse(), Ok(RunRef::Id(id.parse().unwrap())));
        assert_eq!("latest".parse(), Ok(RunRef::Latest(None)));
        assert_eq!("latest:etl".parse(), Ok(RunRef::Latest(Some("etl".into()))));
        assert_eq!("0199F5A0-00".parse(), Ok(RunRef::Prefix("0199f5a0-00".into())));
        assert_eq!("0199f5a0".parse(), Ok(RunRef::Prefix("0199f5a0".into())));
        for nothing in ["0199f5a", "latest:", "newest", "0199f5ag", ""] {
            assert!(nothing.parse::<RunRef>().is_err(), "{nothing}");
        }
    }
}
