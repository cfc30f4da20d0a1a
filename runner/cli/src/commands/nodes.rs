//! The cluster as a whole.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use heddle_store::change::Noun;
use serde_json::{Value, json};

use super::done;
use crate::exit::{instant, usage};
use crate::session::{MAX_LISTED, Session};

pub(crate) async fn list(session: &Session) -> Result<ExitCode> {
    let columns = [
        ("ID", "/id"),
        ("NAME", "/name|/hostname"),
        ("STATE", "/state"),
        ("VERSION", "/version"),
        ("STARTED", "/started_at"),
        ("SEEN", "/heartbeat_at|/seen_at|/last_seen_at"),
        ("RUNNING", "/running"),
        ("POSITION", "/position|/change_position"),
    ];
    let items: Vec<Value> = session
        .client
        .get(&["v1", "nodes"])
        .send_for_all(&session.client, MAX_LISTED)
        .await?;
    session.output.print_list_of_ids(&json!({ "items": items }), &columns)?;
    done()
}

/// The filters of the audit.
#[derive(Args, Debug)]
pub struct Audit {
    /// Only changes by this person or token
    #[arg(long)]
    pub actor: Option<String>,
    /// Only changes of this kind of object: group, run, secret, token, ...
    #[arg(long)]
    pub kind: Option<String>,
    /// Only changes of the object with this name
    #[arg(long)]
    pub name: Option<String>,
    /// Only this action: create, update, delete, cancel, ...
    #[arg(long)]
    pub action: Option<String>,
    /// From this time, RFC 3339, or a date (midnight UTC)
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub from: Option<String>,
    /// To this time, RFC 3339, or a date (midnight UTC)
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub to: Option<String>,
}

pub(crate) async fn audit(session: &Session, wanted: Audit) -> Result<ExitCode> {
    let columns = [
        ("AT", "/at"),
        ("WHO", "/actor|/who|/token"),
        ("ACTION", "/action"),
        ("KIND", "/kind"),
        ("WHAT", "/target|/what|/name"),
    ];
    let request = session
        .client
        .get(&["v1", "audit"])
        .query_if("actor", wanted.actor)
        .query_if("kind", wanted.kind.as_deref())
        .query_if("name", wanted.name)
        .query_if("action", wanted.action)
        .query_if("from", wanted.from)
        .query_if("to", wanted.to);
    let items: Vec<Value> = request.send_for_all(&session.client, MAX_LISTED).await?;
    // A newer server may know more kinds than this program.
    if let Some(kind) = wanted
        .kind
        .filter(|kind| items.is_empty() && !Noun::WORDS.contains(&kind.as_str()))
    {
        let kinds = Noun::WORDS.join(", ");
        return Err(usage(format!(
            "--kind: nothing is called `{kind}`; the kinds are {kinds}"
        )));
    }
    session.output.print_list(&json!({ "items": items }), &columns)?;
    done()
}

pub(crate) async fn stats(session: &Session) -> Result<ExitCode> {
    session.show(&["v1", "stats"]).await?;
    done()
}
