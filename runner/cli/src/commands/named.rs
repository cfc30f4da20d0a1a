//! Things that are put, listed, shown and deleted by name.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Subcommand;
use heddle_client::{NotificationFilter, NotificationState};
use heddle_store::connection::CONNECTION_POOL_MAX;
use heddle_store::secret::SECRET_BYTES_MAX;
use serde_json::{Value, json};

use super::run_ref::{Notifications, Ref};
use super::secret_forget::Forget;
use crate::document::{self, Kind};
use crate::exit::{INTERRUPTED, NO, done, usage};
use crate::output::{Format, items};
use crate::session::Session;
use crate::terminal::{Unseen, tell};

/// What can be done with a category or a template.
#[derive(Subcommand, Debug)]
pub enum NamedCommand {
    /// List the names
    #[command(alias = "ls")]
    List,
    /// Show the object with this name
    Show {
        /// The name, as `list` shows it
        name: String,
    },
    /// Create or change the object with this name
    Set {
        /// The name, as `list` shows it
        name: String,
        /// A YAML or JSON file; `-` is stdin
        #[arg(short, long, default_value = "-")]
        file: PathBuf,
    },
    /// Delete the object with this name
    Rm {
        /// The name, as `list` shows it
        name: String,
    },
}

/// What can be done with channels.
#[derive(Subcommand, Debug)]
pub enum ChannelCommand {
    /// List channels
    #[command(alias = "ls")]
    List,
    /// Show a channel
    Show {
        /// The name, as `list` shows it
        name: String,
    },
    /// Create or change a channel
    Set {
        /// The name, as `list` shows it
        name: String,
        /// A YAML or JSON file; `-` is stdin
        #[arg(short, long, default_value = "-")]
        file: PathBuf,
    },
    /// Send a test message through a channel
    Test {
        /// The name, as `list` shows it
        name: String,
    },
    /// Delete a channel
    Rm {
        /// The name, as `list` shows it
        name: String,
    },
}

/// What can be done with secrets.
#[derive(Subcommand, Debug)]
pub enum SecretCommand {
    /// List the names of secrets
    #[command(alias = "ls")]
    List,
    /// Show which groups may use a secret, but not its value
    Show {
        /// The name, as `list` shows it
        name: String,
    },
    /// Set a secret. Its value is read from stdin, so that it is not in the history of the shell
    Set {
        /// The name, as `list` shows it
        name: String,
        /// A group that may use it; `*` means all. Can be repeated. Without --group and --category, no group may use it,
        /// also if groups may use it now
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
        /// A category whose groups may use it. Can be repeated
        #[arg(long = "category", value_name = "CATEGORY")]
        categories: Vec<String>,
    },
    /// Encrypt all secrets, connections and channels with the current key. The last step of a change of the key
    #[command(alias = "reseal")]
    Rotate,
    /// List what the key of the nodes cannot decrypt, directly in the database, and delete it with --yes. For a lost key
    Forget(Forget),
    /// Delete a secret
    Rm {
        /// The name, as `list` shows it
        name: String,
    },
}

/// What can be done with SQL connections.
#[derive(Subcommand, Debug)]
pub enum ConnectionCommand {
    /// List connections
    #[command(alias = "ls")]
    List,
    /// Show a connection, without its URL
    Show {
        /// The name, as `list` shows it
        name: String,
    },
    /// Set a connection. Without URL, the URL is read from stdin
    Set {
        /// The name, as `list` shows it
        name: String,
        /// The URL of the database: postgres://user:password@host/database
        database: Option<String>,
        /// A group that may use it; `*` means all. Can be repeated. Without --group and --category, no group may use it,
        /// also if groups may use it now
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
        /// A category whose groups may use it. Can be repeated
        #[arg(long = "category", value_name = "CATEGORY")]
        categories: Vec<String>,
        /// Whether scripts can only read. Default: as it is; of a new connection, false
        #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL")]
        read_only: Option<bool>,
        /// The maximum number of database connections of one node, 1 to 100. Default: as it is; of a new connection, 4
        #[arg(
            long,
            value_name = "NUMBER",
            value_parser = clap::value_parser!(i32).range(1..=i64::from(CONNECTION_POOL_MAX))
        )]
        max_connections: Option<i32>,
    },
    /// Delete a connection
    Rm {
        /// The name, as `list` shows it
        name: String,
    },
}

/// What can be done with pools.
#[derive(Subcommand, Debug)]
pub enum PoolCommand {
    /// List pools
    #[command(alias = "ls")]
    List,
    /// Show a pool
    Show {
        /// The name, as `list` shows it
        name: String,
    },
    /// Set how many slots a pool has
    Set {
        /// The name, as `list` shows it
        name: String,
        /// The number of slots
        slots: u32,
    },
    /// Delete a pool
    Rm {
        /// The name, as `list` shows it
        name: String,
    },
}

/// What can be done with notifications.
#[derive(Subcommand, Debug)]
pub enum NotificationCommand {
    /// List notifications, newest first
    #[command(alias = "ls")]
    List {
        /// Only notifications through this channel
        #[arg(long)]
        channel: Option<String>,
        /// Only notifications about these events, separated by commas: started, succeeded, failed, retrying, recovered,
        /// deadline_missed, schedule_missed, queue_stalled, skipped, callback, script, test
        #[arg(long)]
        event: Option<String>,
        /// Only notifications in these states, separated by commas: pending, sent, failed
        #[arg(long)]
        state: Option<String>,
        /// Only notifications about this group
        #[arg(long)]
        group: Option<String>,
        /// Only notifications about this run
        #[arg(long)]
        run: Option<String>,
    },
    /// Show a notification with its text
    Show {
        /// The notification: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: Ref<Notifications>,
    },
    /// Send a notification again
    Resend {
        /// The notification: its id, at least 8 of its first characters, `latest` or `latest:GROUP`
        id: Ref<Notifications>,
    },
}

pub(crate) async fn named(session: &Session, kind: Kind, command: NamedCommand) -> Result<ExitCode> {
    let path = kind.path();
    match command {
        NamedCommand::List => {
            session
                .list(&["v1", path], &[("NAME", "/name"), ("UPDATED", "/updated_at")])
                .await?
        }
        NamedCommand::Show { name } => session.show_document(kind, &name).await?,
        NamedCommand::Set { name, file } => set(session, kind, &name, &document::read_spec(kind, &file)?).await?,
        NamedCommand::Rm { name } => {
            session
                .remove(kind.as_str(), &name, &["v1", path, &name], false)
                .await?
        }
    }
    done()
}

pub(crate) async fn channel(session: &Session, command: ChannelCommand) -> Result<ExitCode> {
    match command {
        ChannelCommand::List => {
            session
                .list(&["v1", "channels"], &[("NAME", "/name"), ("KIND", "/kind")])
                .await?
        }
        ChannelCommand::Show { name } => session.show_document(Kind::Channel, &name).await?,
        ChannelCommand::Set { name, file } => set(session, Kind::Channel, &name, &document::read_value(&file)?).await?,
        ChannelCommand::Test { name } => {
            let notification = session.client.test_channel(&name).await?;
            let sent = notification.state == NotificationState::Sent;
            match &notification.last_error {
                _ if sent || session.output != Format::Table => session
                    .output
                    .print(&json!(notification), |_| "the test message was sent".to_owned())?,
                Some(error) => tell!("error: the test message failed: {error}"),
                None => tell!("error: nothing is known of the test message yet; see `heddle notification list`"),
            }
            if !sent {
                return Ok(ExitCode::from(NO));
            }
        }
        ChannelCommand::Rm { name } => {
            session
                .remove("channel", &name, &["v1", "channels", &name], false)
                .await?
        }
    }
    done()
}

pub(crate) async fn secret(session: &Session, command: SecretCommand) -> Result<ExitCode> {
    match command {
        SecretCommand::List => session.list(&["v1", "secrets"], &GRANTED).await?,
        SecretCommand::Show { name } => session.show_document(Kind::Secret, &name).await?,
        SecretCommand::Set {
            name,
            groups,
            categories,
        } => {
            let value = read_stdin("the secret").await?;
            let body = granted(json!({ "value": value }), groups, categories);
            set(session, Kind::Secret, &name, &body).await?;
            warn_of_groups(session, &body).await;
        }
        SecretCommand::Rotate => {
            let done = session.client.rotate_keys().await?;
            session.output.print(&json!(done), |_| {
                format!(
                    "key {} is the key of all now; changed: {} secrets, {} connections and {} channels",
                    done.key_id, done.secrets, done.connections, done.channels
                )
            })?;
        }
        // It talks to no server, and was done before.
        SecretCommand::Forget(_) => {}
        SecretCommand::Rm { name } => {
            session
                .remove("secret", &name, &["v1", "secrets", &name], false)
                .await?
        }
    }
    done()
}

pub(crate) async fn connection(session: &Session, command: ConnectionCommand) -> Result<ExitCode> {
    match command {
        ConnectionCommand::List => session.list(&["v1", "connections"], &GRANTED).await?,
        ConnectionCommand::Show { name } => session.show_document(Kind::Connection, &name).await?,
        ConnectionCommand::Set {
            name,
            database,
            groups,
            categories,
            read_only,
            max_connections,
        } => {
            let url = match database {
                Some(url) => url,
                None => read_stdin("the URL").await?,
            };
            let options = [
                ("read_only", read_only.map(Value::from)),
                ("max_connections", max_connections.map(Value::from)),
            ];
            let body = with_options(session, &name, json!({ "url": url }), options).await?;
            let body = granted(body, groups, categories);
            set(session, Kind::Connection, &name, &body).await?;
            warn_of_groups(session, &body).await;
        }
        ConnectionCommand::Rm { name } => {
            session
                .remove("connection", &name, &["v1", "connections", &name], false)
                .await?;
        }
    }
    done()
}

pub(crate) async fn pool(session: &Session, command: PoolCommand) -> Result<ExitCode> {
    match command {
        PoolCommand::List => {
            session
                .list(&["v1", "pools"], &[("NAME", "/name"), ("SLOTS", "/slots")])
                .await?;
        }
        PoolCommand::Show { name } => session.show_document(Kind::Pool, &name).await?,
        PoolCommand::Set { name, slots } => set(session, Kind::Pool, &name, &json!({ "slots": slots })).await?,
        PoolCommand::Rm { name } => session.remove("pool", &name, &["v1", "pools", &name], false).await?,
    }
    done()
}

pub(crate) async fn notification(session: &Session, command: NotificationCommand) -> Result<ExitCode> {
    match command {
        NotificationCommand::List {
            channel,
            event,
            state,
            group,
            run,
        } => {
            let filter = NotificationFilter {
                channel: channel.clone(),
                event,
                state,
                group: group.clone(),
                run,
            };
            let columns = [
                ("ID", "/id"),
                ("CHANNEL", "/channel"),
                ("EVENT", "/event"),
                ("SUBJECT", "/subject"),
                ("STATE", "/state"),
                ("ATTEMPTS", "/attempts"),
                ("CREATED", "/created_at"),
                ("ERROR", "/last_error"),
            ];
            let request = session.client.list_notifications(&filter);
            let page = session.listed(request).await?;
            session.has_to_be(&page.items, "channels", channel.as_deref()).await?;
            session.has_to_be(&page.items, "groups", group.as_deref()).await?;
            session.output.print_list_of_ids(&json!(page), &columns)?;
        }
        NotificationCommand::Show { id } => {
            let id = id.find(session).await?.to_string();
            session.show("notification", &["v1", "notifications", &id]).await?;
        }
        NotificationCommand::Resend { id } => {
            let id = id.find(session).await?.to_string();
            let again = session.client.resend_notification(&id).await?;
            session
                .output
                .print(&json!(again), |_| format!("notification {id} will be sent again"))?;
        }
    }
    done()
}

const GRANTED: [(&str, &str); 4] = [
    ("NAME", "/name"),
    ("GROUPS", "/groups"),
    ("CATEGORIES", "/categories"),
    ("UPDATED", "/updated_at"),
];

fn granted(mut body: Value, groups: Vec<String>, categories: Vec<String>) -> Value {
    for (field, list) in [("groups", groups), ("categories", categories)] {
        if !list.is_empty() {
            body[field] = json!(list);
        }
    }
    body
}

/// The body of a connection with the options that are given; the others stay as they are, for a PUT replaces them all.
async fn with_options(
    session: &Session,
    name: &str,
    mut body: Value,
    options: [(&str, Option<Value>); 2],
) -> Result<Value> {
    let before = match session.client.get_named(Kind::Connection.path(), name).await {
        Err(error) if error.status() == Some(404) => Value::Null,
        found => found?,
    };
    for (field, given) in options {
        let value = given.unwrap_or_else(|| before[field].clone());
        if !value.is_null() {
            body[field] = value;
        }
    }
    Ok(body)
}

/// A grant to a group that does not exist yet is allowed, and may be a slip of the hand. If something cannot be looked up,
/// nothing is said about it.
async fn warn_of_groups(session: &Session, body: &Value) {
    for group in items(&body["groups"])
        .filter_map(Value::as_str)
        .filter(|group| *group != "*")
    {
        let found = session.client.group(group).await;
        if found.is_err_and(|error| error.status() == Some(404)) {
            tell!("warning: there is no group `{group}` yet");
        }
    }
}

async fn set(session: &Session, kind: Kind, name: &str, body: &Value) -> Result<()> {
    let answer = session.client.put_named(kind.path(), name, body).await?;
    session
        .output
        .print(&answer, |_| format!("{} {name} saved", kind.as_str()))
}

/// Reads a value from stdin that must neither be on the command line nor be seen.
async fn read_stdin(what: &'static str) -> Result<String> {
    let Some(unseen) = Unseen::begin() else {
        return value_in(std::io::stdin(), what);
    };
    tell!("Type {what}, which is not shown, then Enter and Ctrl-D:");
    tokio::select! {
        read = tokio::task::spawn_blocking(move || value_in(std::io::stdin(), what)) => read?,
        _ = tokio::signal::ctrl_c() => {
            // The terminal has to show again what is typed.
            drop(unseen);
            std::process::exit(INTERRUPTED.into())
        }
    }
}

/// Reads a value to its end, and removes the line end. A value that the server would refuse for its length is refused
/// here.
fn value_in(input: impl Read, what: &str) -> Result<String> {
    let mut bytes = Vec::new();
    input
        .take((SECRET_BYTES_MAX + "\r\n".len() + 1) as u64)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {what}"))?;
    let value = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let value = value.strip_suffix(b"\r").unwrap_or(value);
    if value.is_empty() {
        return Err(usage(format!(
            "{what} is read from stdin, but stdin was empty; use for example: printf %s ... | heddle ..."
        )));
    }
    if value.len() > SECRET_BYTES_MAX {
        return Err(usage(format!("{what} must have at most {SECRET_BYTES_MAX} bytes")));
    }
    let text = std::str::from_utf8(value).with_context(|| format!("cannot read {what}"))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_as_long_as_the_server_takes_it() {
        let longest = "x".repeat(SECRET_BYTES_MAX);
        let read = |text: &str| value_in(text.as_bytes(), "the secret").ok();
        for end in ["", "\n", "\r\n"] {
            assert_eq!(read(&format!("{longest}{end}")).as_ref(), Some(&longest), "{end:?}");
        }
        for wrong in [
            "",
            "\n",
            &format!("{longest}y"),
            &format!("{longest}y\r\n"),
            &format!("{longest}{longest}\u{e9}"),
        ] {
            assert_eq!(read(wrong), None);
        }
    }
}
