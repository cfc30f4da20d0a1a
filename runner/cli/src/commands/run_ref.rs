//! How people name what has an id on the command line (a run, a backfill, a notification, an assignment): by its id, by the
//! beginning of its id, or as the latest one.

use std::marker::PhantomData;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use heddle_client::Error;
use serde_json::Value;
use uuid::Uuid;

use crate::exit::usage;
use crate::output::cell;
use crate::session::{MAX_LISTED, Session};

/// The minimum length of the beginning of an id.
const PREFIX_CHARS_MIN: usize = 8;

/// The words for the newest object of a kind that belongs to groups, for help and errors.
const LATEST: &str = "`latest` or `latest:GROUP`";

/// How many runs an error about an ambiguous beginning lists.
const LISTED_MAX: usize = 10;

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
        Self::parse(text, LATEST)
    }
}

impl RunRef {
    /// Reads what was typed. The error says how to name an object; `latest`: the words for the newest one.
    fn parse(text: &str, latest: &str) -> Result<Self, String> {
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
            "write its id (a UUID such as 0199f5a0-1c2d-7000-8000-00000000000a), at least {PREFIX_CHARS_MIN} of the \
            first characters of its id, or {latest}"
        ))
    }

    /// The run's id; asks the server unless it was typed.
    pub(crate) async fn find(&self, session: &Session) -> Result<Uuid> {
        match self {
            Self::Id(id) => Ok(*id),
            Self::Latest(group) => {
                let request = session.client.get(&["v1", "runs", "latest"]);
                match request.query_if("group", group.as_deref()).send::<Value>().await {
                    Ok(run) => id_of(&run),
                    Err(error) if error.status() == Some(404) => Err(no_latest(session, "run", group.as_deref()).await),
                    Err(error) => Err(error.into()),
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
                the_one("run", prefix, found, !page["next_cursor"].is_null())
            }
        }
    }
}

/// What is found in a list, newest first, in the same ways as a run.
pub trait Listed {
    /// What it is called, also on the command line.
    const KIND: &'static str;
    /// Its list, below `/v1`.
    const PATH: &'static str;
    /// What the list is asked for besides.
    const QUERY: Option<(&'static str, &'static str)> = None;
    /// Whether it belongs to a group, so that `latest:GROUP` names one.
    const HAS_GROUP: bool = true;
}

/// The list of backfills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backfills {}

impl Listed for Backfills {
    const KIND: &'static str = "backfill";
    const PATH: &'static str = "backfills";
}

/// The list of notifications.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notifications {}

impl Listed for Notifications {
    const KIND: &'static str = "notification";
    const PATH: &'static str = "notifications";
}

/// The list of assignments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assignments {}

impl Listed for Assignments {
    const KIND: &'static str = "assignment";
    const PATH: &'static str = "assignments";
    // Without `from`, the server lists only the last week.
    const QUERY: Option<(&'static str, &'static str)> = Some(("from", "1970-01-01T00:00:00Z"));
    const HAS_GROUP: bool = false;
}

/// Something of a list, named in the same ways as a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ref<T>(RunRef, PhantomData<fn() -> T>);

impl<T: Listed> FromStr for Ref<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let latest = if T::HAS_GROUP { LATEST } else { "`latest`" };
        match RunRef::parse(text, latest) {
            Ok(RunRef::Latest(Some(_))) if !T::HAS_GROUP => Err(format!("no {} has a group; write `latest`", T::KIND)),
            Ok(named) => Ok(Self(named, PhantomData)),
            Err(error) => Err(format!("{error}; `heddle {} list` shows the ids", T::KIND)),
        }
    }
}

impl<T: Listed> Ref<T> {
    /// The id; asks the server unless it was typed.
    pub(crate) async fn find(&self, session: &Session) -> Result<Uuid> {
        let listed = async |group: Option<&str>, most: usize| -> Result<Vec<Value>> {
            let mut request = session.client.get(&["v1", T::PATH]).query_if("group", group);
            if let Some((name, value)) = T::QUERY {
                request = request.query(name, value);
            }
            Ok(request.send_for_all(&session.client, most).await?.items)
        };
        match &self.0 {
            RunRef::Id(id) => Ok(*id),
            RunRef::Latest(group) => match listed(group.as_deref(), 1).await?.first() {
                Some(newest) => id_of(newest),
                None => Err(no_latest(session, T::KIND, group.as_deref()).await),
            },
            RunRef::Prefix(prefix) => {
                let mut found = listed(None, MAX_LISTED).await?;
                found.retain(|one| cell(one, ID).starts_with(prefix));
                let more = found.len() > LISTED_MAX;
                found.truncate(LISTED_MAX);
                the_one(T::KIND, prefix, &found, more)
            }
        }
    }
}

/// Where a thing has its id.
const ID: &str = "/id|/assignment_id";

/// Why there is no latest one.
async fn no_latest(session: &Session, kind: &str, group: Option<&str>) -> anyhow::Error {
    let Some(group) = group else {
        return anyhow!("there is no {kind} yet");
    };
    match session.client.group(group).await {
        Ok(_) => anyhow!("the group `{group}` has no {kind} yet"),
        Err(error @ Error::Refused { .. }) => session.with_group_meant(error.into(), group).await,
        Err(error) => error.into(),
    }
}

/// The id of the only thing that was found by the beginning of its id.
fn the_one(kind: &str, prefix: &str, found: &[Value], more: bool) -> Result<Uuid> {
    match found {
        // The same kind of error as for a whole id that does not exist.
        [] => Err(anyhow!("no {kind} has an id that begins with {prefix}")),
        [one] => id_of(one),
        several => {
            let more = if more { "\n  ..." } else { "" };
            let lines: Vec<String> = several
                .iter()
                .map(|one| {
                    let of = |pointer| cell(one, pointer);
                    format!(
                        "  {}  {}  {}  {}",
                        of(ID),
                        of("/group|/offer|/channel"),
                        of("/state"),
                        of("/created_at|/assigned_at")
                    )
                })
                .collect();
            Err(usage(format!(
                "the ids of several {kind}s begin with {prefix}; type more characters:\n{}{more}",
                lines.join("\n")
            )))
        }
    }
}

fn id_of(thing: &Value) -> Result<Uuid> {
    cell(thing, ID).parse().ok().context("the server did not return an id")
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
            for (said, list) in [
                (nothing.parse::<Ref<Backfills>>().unwrap_err(), "heddle backfill list"),
                (
                    nothing.parse::<Ref<Notifications>>().unwrap_err(),
                    "heddle notification list",
                ),
                (
                    nothing.parse::<Ref<Assignments>>().unwrap_err(),
                    "heddle assignment list",
                ),
            ] {
                assert!(said.contains("a UUID") && said.contains(list), "{said}");
            }
        }
    }

    #[test]
    fn what_has_no_group_is_the_latest_of_none() {
        assert!("latest:etl".parse::<Ref<Notifications>>().is_ok());
        assert!(
            "latest:etl"
                .parse::<Ref<Assignments>>()
                .unwrap_err()
                .contains("write `latest`")
        );
        assert!("latest".parse::<Ref<Assignments>>().is_ok());
        let held = serde_json::json!({"assignment_id": "0199f5a0-0000-7000-8000-00000000000a"});
        assert!(the_one("assignment", "0199f5a0", &[held], false).is_ok());
    }

    #[test]
    fn a_beginning_names_one_thing_or_none() {
        let one = |id: &str| serde_json::json!({"id": id, "group": "etl", "state": "failed"});
        let (first, second) = (
            "0199f5a0-0000-7000-8000-00000000000a",
            "0199f5a0-0000-7000-8000-00000000000b",
        );
        assert_eq!(
            the_one("backfill", "0199f5a0", &[one(first)], false)
                .unwrap()
                .to_string(),
            first
        );
        let said = the_one("backfill", "0199f5a0", &[one(first), one(second)], false).unwrap_err();
        assert!(
            said.to_string().contains(first) && said.to_string().ends_with("failed  -"),
            "{said}"
        );
        let said = the_one("backfill", "0199f5a0", &[one(first), one(second)], true).unwrap_err();
        assert!(said.to_string().ends_with("\n  ..."), "{said}");
        let none = the_one("run", "0199f5a0", &[], false).unwrap_err();
        assert_eq!(crate::exit::code(&none), crate::exit::NO);
        assert_eq!(crate::exit::code(&said), crate::exit::USAGE);
    }
}
