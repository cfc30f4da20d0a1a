//! The cluster as a whole.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use heddle_client::Stats;
use heddle_store::change::Noun;
use serde_json::{Value, json};

use crate::exit::{done, instant, usage};
use crate::output::plain;
use crate::session::Session;

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
    let page = session.listed(session.client.get(&["v1", "nodes"])).await?;
    session.output.print_list_of_ids(&json!(page), &columns)?;
    done()
}

/// The filters of the audit.
#[derive(Args, Debug)]
pub struct Audit {
    /// Only changes by this person or token
    #[arg(long)]
    pub actor: Option<String>,
    /// Only changes of this kind of object: group, run, script, ...; connection, secret, token: only as an admin
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
    let page = session.listed(request).await?;
    // A newer server may know more kinds than this program.
    if let Some(kind) = wanted
        .kind
        .filter(|kind| page.items.is_empty() && !Noun::WORDS.contains(&kind.as_str()))
    {
        let kinds = Noun::WORDS.join(", ");
        return Err(usage(format!(
            "--kind: nothing is called `{kind}`; the kinds are {kinds}"
        )));
    }
    session.output.print_list(&json!(page), &columns)?;
    done()
}

pub(crate) async fn stats(session: &Session) -> Result<ExitCode> {
    let value: Value = session.client.get(&["v1", "stats"]).send().await?;
    session.output.print(&value, |value| {
        // A node of another version may count other things: then its answer is printed as it is.
        let stats = serde_json::from_value(value.clone());
        stats.map_or_else(|_| plain(value), |stats| in_words(&stats))
    })?;
    done()
}

/// The counts of the cluster and of the node that answered, a line for each subject.
fn in_words(stats: &Stats) -> String {
    let counts = |counts: &BTreeMap<String, i64>| -> String {
        let counts = counts.iter().filter(|(_, count)| **count > 0);
        let counts: Vec<String> = counts.map(|(name, count)| format!("{count} {name}")).collect();
        if counts.is_empty() {
            "none".to_owned()
        } else {
            counts.join(", ")
        }
    };
    let node = &stats.node;
    format!(
        "open runs      {}\n\
         task runs      {} ready, {} waiting on queues, {} held by workers, {} running, {} waiting for a retry\n\
         notifications  to send: {}; events to process: {}\n\
         this node      {}: {} attempts running, {} open requests; since its start {} runs and {} attempts ended",
        counts(&stats.runs),
        stats.ready,
        stats.queued,
        stats.claimed,
        stats.running,
        stats.retrying,
        counts(&stats.notifications.waiting),
        stats.notifications.notices,
        node.id,
        node.in_hand,
        node.waiting,
        node.runs_ended,
        node.attempts_ended,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_in_words() {
        let stats = json!({
            "runs": {"running": 2, "waiting": 0, "paused": 1}, "ready": 3, "queued": 4, "claimed": 5, "running": 6,
            "retrying": 7, "notifications": {"waiting": {}, "notices": 8},
            "node": {"id": "01a212fe-2a81-7000-8002-1154d649980d", "in_hand": 9, "runs_ended": 10, "attempts_ended": 11,
                     "waiting": 12}
        });
        let words = in_words(&serde_json::from_value(stats).unwrap());
        assert_eq!(
            words,
            "open runs      1 paused, 2 running\n\
             task runs      3 ready, 4 waiting on queues, 5 held by workers, 6 running, 7 waiting for a retry\n\
             notifications  to send: none; events to process: 8\n\
             this node      01a212fe-2a81-7000-8002-1154d649980d: 9 attempts running, 12 open requests; since its \
             start 10 runs and 11 attempts ended"
        );
    }
}
