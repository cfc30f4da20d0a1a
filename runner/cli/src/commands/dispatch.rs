//! Offers, assignments, audiences, events.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use heddle_client::{MEMBERS_KNOWN_MAX, Members, MembersPatch, MembersSpec};
use heddle_domain::framed;
use serde_json::{Value, json};

use super::patience::Patience;
use super::run_ref::{Assignments, Ref};
use crate::exit::{BrokenOff, done, instant};
use crate::session::{MAX_LISTED, Session};
use crate::terminal::tell;
use crate::{document, output};

/// What can be done with offers.
#[derive(Subcommand, Debug)]
pub enum OfferCommand {
    /// List offers
    #[command(alias = "ls")]
    List,
    /// Show an offer
    Show {
        /// The id, as `list` shows it
        id: String,
    },
    /// Create or change an offer
    Set {
        /// The id, as `list` shows it
        id: String,
        /// A YAML or JSON file; `-` is stdin
        #[arg(short, long, default_value = "-")]
        file: PathBuf,
    },
    /// List occurrences: the instants at which offers are due
    Occurrences {
        /// Only for this audience: `uid_x` or `gid_x`
        #[arg(long)]
        audience: Option<String>,
        /// Only of this offer
        #[arg(long)]
        offer: Option<String>,
        /// From this time, RFC 3339, or a date (midnight UTC)
        #[arg(long, value_name = "TIME", value_parser = instant)]
        from: Option<String>,
        /// To this time, RFC 3339, or a date (midnight UTC)
        #[arg(long, value_name = "TIME", value_parser = instant)]
        to: Option<String>,
    },
    /// Show what a poll would return to a user now, and why. Nothing is assigned
    Peek {
        /// The user, with or without `uid_`
        uid: String,
    },
    /// Delete an offer
    Rm {
        /// The id, as `list` shows it
        id: String,
    },
}

/// What can be done with assignments.
#[derive(Subcommand, Debug)]
pub enum AssignmentCommand {
    /// List assignments
    #[command(alias = "ls")]
    List(AssignmentFilter),
    /// Revoke an assignment: its stock is free again
    Revoke {
        /// The assignment: its id, at least 8 of its first characters, or `latest`
        id: Ref<Assignments>,
    },
}

#[derive(Args, Debug)]
pub struct AssignmentFilter {
    /// Only of this user
    #[arg(long)]
    pub uid: Option<String>,
    /// Only from offers to this user group
    #[arg(long)]
    pub gid: Option<String>,
    /// Only of this offer
    #[arg(long)]
    pub offer: Option<String>,
    /// Only in these states, with commas: assigned, completed, failed, revoked, expired
    #[arg(long)]
    pub state: Option<String>,
    /// Only assigned at or after this time, RFC 3339, or a date (midnight UTC). Default: 7d ago, or 7d before --to
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub from: Option<String>,
    /// Only assigned at or before this time, RFC 3339, or a date (midnight UTC)
    #[arg(long, value_name = "TIME", value_parser = instant)]
    pub to: Option<String>,
}

/// What can be done with audiences.
#[derive(Subcommand, Debug)]
pub enum AudienceCommand {
    /// List the members of an audience
    Members {
        /// The user group, for example gid_team
        audience: String,
    },
    /// Replace all members of an audience
    Set {
        /// The user group, for example gid_team
        audience: String,
        /// The users, `x` or `uid_x`
        members: Vec<String>,
    },
    /// Add members to an audience
    Add {
        /// The user group, for example gid_team
        audience: String,
        /// The users, `x` or `uid_x`
        #[arg(required = true)]
        members: Vec<String>,
    },
    /// Remove members from an audience
    Remove {
        /// The user group, for example gid_team
        audience: String,
        /// The users, `x` or `uid_x`
        #[arg(required = true)]
        members: Vec<String>,
    },
}

/// The options of `heddle events`. Its lines are JSON, whatever the output format is.
#[derive(Args, Debug)]
pub struct Events {
    /// Continue after this cursor
    #[arg(long)]
    pub after: Option<String>,
    /// Only events of this kind, for example run.failed. Can be repeated
    #[arg(long = "kind", value_name = "KIND")]
    pub kinds: Vec<String>,
    /// Wait for new events
    #[arg(short, long)]
    pub follow: bool,
}

pub(crate) async fn offer(session: &Session, command: OfferCommand) -> Result<ExitCode> {
    match command {
        OfferCommand::List => {
            let columns = [
                ("ID", "/id"),
                ("KIND", "/kind"),
                ("AUDIENCE", "/audience"),
                ("MODE", "/mode"),
                ("STOCK", "/dispatch_times"),
                ("EVERY", "/every|/every_days"),
                ("STARTS", "/starts_at|/anchor"),
                ("ENABLED", "/enabled"),
            ];
            session.list(&["v1", "offers"], &columns).await?;
        }
        OfferCommand::Show { id } => session.show_document(document::Kind::Offer, &id).await?,
        OfferCommand::Set { id, file } => {
            let answer = session.client.put_offer(&id, &document::read_value(&file)?).await?;
            let answer = serde_json::to_value(&answer)?;
            session.output.print(&answer, |_| format!("offer {id} saved"))?;
        }
        OfferCommand::Occurrences {
            audience,
            offer,
            from,
            to,
        } => {
            let request = session.client.get(&["v1", "offers", "occurrences"]);
            let request = request
                .query_if("audience", audience)
                .query_if("offer", offer.as_deref())
                .query_if("from", from)
                .query_if("to", to);
            let page = session.listed(request).await?;
            session.has_to_be(&page.items, "offers", offer.as_deref()).await?;
            let columns = [
                ("OFFER", "/offer"),
                ("AUDIENCE", "/audience"),
                ("OCCURRENCE", "/occurrence"),
                ("TAKEN", "/taken"),
                ("COMPLETED", "/completed"),
                ("FAILED", "/failed"),
                ("LEFT", "/left"),
            ];
            session.output.print_list(&json!(page), &columns)?;
        }
        OfferCommand::Peek { uid } => {
            let peek = session.client.peek(&uid).await?;
            session.output.print(&serde_json::to_value(&peek)?, peek_in_words)?;
        }
        OfferCommand::Rm { id } => session.remove("offer", &id, &["v1", "offers", &id], false).await?,
    }
    done()
}

/// The result of a peek: a sentence, and the offers with the verdict on each.
fn peek_in_words(peek: &Value) -> String {
    let uid = output::cell(peek, "/uid");
    let gives = &peek["gives"];
    let sentence = if gives.is_object() {
        let what = format!(
            "{} of {}, by {}",
            output::cell(gives, "/offer"),
            output::cell(gives, "/occurrence"),
            output::cell(gives, "/audience")
        );
        match gives["redo"].as_bool() {
            Some(true) => format!("{uid} holds {what}; a poll would return it again"),
            _ => format!("a poll of {uid} would return {what}"),
        }
    } else if peek["next_at"].is_string() {
        let next = output::cell(peek, "/next_at");
        format!("a poll of {uid} would return nothing; the next offer is due at {next}")
    } else {
        format!("a poll of {uid} would return nothing, and no offer will be due")
    };
    let columns = [
        ("OFFER", "/offer"),
        ("AUDIENCE", "/audience"),
        ("WHY", "/why"),
        ("OCCURRENCE", "/occurrence"),
        ("NEXT", "/next_at"),
    ];
    let mut rows = output::Rows::new(columns.map(|(title, _)| title));
    for offer in output::items(&peek["offers"]) {
        rows.add(columns.iter().map(|(_, pointer)| output::cell(offer, pointer)));
    }
    format!("{sentence}\n\n{rows}")
}

pub(crate) async fn assignment(session: &Session, command: AssignmentCommand) -> Result<ExitCode> {
    match command {
        AssignmentCommand::List(filter) => {
            let request = session.client.get(&["v1", "assignments"]);
            let request = request
                .query_if("uid", filter.uid)
                .query_if("gid", filter.gid)
                .query_if("offer", filter.offer.as_deref())
                .query_if("state", filter.state)
                .query_if("from", filter.from)
                .query_if("to", filter.to);
            let page = session.listed(request).await?;
            session
                .has_to_be(&page.items, "offers", filter.offer.as_deref())
                .await?;
            let columns = [
                ("ID", "/assignment_id"),
                ("OFFER", "/offer"),
                ("UID", "/uid"),
                ("OCCURRENCE", "/occurrence"),
                ("STATE", "/state"),
                ("ASSIGNED", "/assigned_at"),
                ("FINISHED", "/finished_at"),
            ];
            session.output.print_list_of_ids(&json!(page), &columns)?;
        }
        AssignmentCommand::Revoke { id } => {
            let id = id.find(session).await?;
            let path = ["v1", "assignments", &id.to_string(), "revoke"];
            let revoked: Value = session.client.post(&path).json(&json!({})).send().await?;
            session.output.print(&revoked, |one| {
                let of = |field| output::cell(one, field);
                format!(
                    "assignment {id} revoked: {} no longer holds {}",
                    of("/uid"),
                    of("/offer")
                )
            })?;
        }
    }
    done()
}

pub(crate) async fn audience(session: &Session, command: AudienceCommand) -> Result<ExitCode> {
    match command {
        AudienceCommand::Members { audience } => {
            let found = session.client.members(&audience, MAX_LISTED).await?;
            session.output.print_thing(&serde_json::to_value(found)?)?;
        }
        AudienceCommand::Set { audience, members } => {
            let members = session.client.put_members(&audience, &MembersSpec { members }).await?;
            tell_members(session, &members, None)?;
        }
        AudienceCommand::Add { audience, members } => {
            let before = members_of(session, &audience).await?;
            tell_those(&before, &members, true);
            let patch = MembersPatch {
                add: members,
                ..MembersPatch::default()
            };
            let after = session.client.patch_members(&audience, &patch).await?;
            tell_members(session, &after, Some(&before))?;
        }
        AudienceCommand::Remove { audience, members } => {
            let before = members_of(session, &audience).await?;
            tell_those(&before, &members, false);
            let patch = MembersPatch {
                remove: members,
                ..MembersPatch::default()
            };
            let after = session.client.patch_members(&audience, &patch).await?;
            tell_members(session, &after, Some(&before))?;
        }
    }
    done()
}

/// The members before a change, or the first of them.
async fn members_of(session: &Session, audience: &str) -> Result<Members> {
    Ok(session.client.members(audience, MEMBERS_KNOWN_MAX).await?)
}

/// Says how many members there are now, and how many came or went.
fn tell_members(session: &Session, after: &Members, before: Option<&Members>) -> Result<()> {
    session.output.print(&serde_json::to_value(after)?, |_| {
        let changed = before.map_or(0, |before| after.count - before.count);
        let what = match changed {
            0 => String::new(),
            1.. => format!("{changed} added; "),
            _ => format!("{} removed; ", -changed),
        };
        let word = if after.count == 1 { "member" } else { "members" };
        format!("{what}{} has {} {word}", after.audience, after.count)
    })?;
    session.tell_page(&["dispatch", "audiences", &after.audience]);
    Ok(())
}

/// Tells which of the named users were members already, or were not.
fn tell_those(before: &Members, named: &[String], member: bool) {
    for uid in unchanged(before, named, member) {
        let word = if member { "already a" } else { "no" };
        tell!("{uid} is {word} member of {}", before.audience);
    }
}

/// The named users for whom the command changes nothing: with `member`, those who already were members; without it, those
/// who were not. Empty if the user group has more members than were read, because then they are not all known.
fn unchanged<'a>(before: &Members, named: &'a [String], member: bool) -> Vec<&'a str> {
    if before.next_cursor.is_some() {
        return Vec::new();
    }
    let bare = named.iter().map(|uid| uid.strip_prefix("uid_").unwrap_or(uid));
    bare.filter(|uid| before.members.iter().any(|known| known == uid) == member)
        .collect()
}

/// Prints events as they come, one JSON line each, whatever the format: they are for programs.
pub(crate) async fn events(session: &Session, events: &Events) -> Result<ExitCode> {
    let mut after = events.after.clone();
    let mut patience = Patience::default();
    loop {
        match feed(session, events, &mut after, &mut patience).await {
            Ok(()) => return done(),
            Err(error) if events.follow => patience.wait(error).await?,
            Err(error) => return Err(error),
        }
    }
}

/// Prints the events of one answer. `after` becomes the cursor of the last printed one. A feed that is followed has no end,
/// so its end is an error.
async fn feed(session: &Session, events: &Events, after: &mut Option<String>, patience: &mut Patience) -> Result<()> {
    let kinds: Vec<&str> = events.kinds.iter().map(String::as_str).collect();
    let mut lines = session.client.events(after.as_deref(), &kinds, events.follow).await?;
    patience.opened();
    while let Some(line) = lines.next().await? {
        if line.is_empty() {
            continue;
        }
        if !events.follow {
            output::print(&line)?;
            continue;
        }
        // The last line of an answer that broke off may lack its end. It comes again, whole.
        let Ok(event) = framed::read::<Value>(&line) else {
            return Err(BrokenOff.into());
        };
        patience.answered();
        output::print(&line)?;
        if let Some(cursor) = event["cursor"].as_str() {
            *after = Some(cursor.to_owned());
        }
    }
    if events.follow { Err(BrokenOff.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_whom_nothing_changes_is_known() {
        let mut before = Members {
            audience: "gid_team".into(),
            members: vec!["ann".into(), "bob".into()],
            count: 2,
            next_cursor: None,
        };
        let named = ["uid_ann", "cas"].map(str::to_owned);
        assert_eq!(unchanged(&before, &named, true), ["ann"]);
        assert_eq!(unchanged(&before, &named, false), ["cas"]);
        before.next_cursor = Some("bob".into());
        assert!(unchanged(&before, &named, false).is_empty());
    }
}
