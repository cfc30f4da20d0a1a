//! Scheduled messages.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::done;
use crate::document;
use crate::session::Session;

/// What can be done with topics.
#[derive(Subcommand, Debug)]
pub enum TopicCommand {
    /// List topics
    #[command(alias = "ls")]
    List,
    /// Show a topic
    Show {
        /// Its name
        name: String,
    },
    /// Make or change a topic
    Set {
        /// Its name
        name: String,
        /// YAML or JSON; `-` is stdin
        #[arg(short, long, default_value = "-")]
        file: PathBuf,
    },
    /// Schedule messages from lines of JSON
    Send {
        /// The topic
        name: String,
        /// NDJSON; `-` is stdin
        #[arg(short, long, default_value = "-")]
        file: PathBuf,
    },
    /// Look messages up
    Messages {
        /// The topic
        name: String,
        /// Which
        #[command(flatten)]
        filter: MessageFilter,
    },
    /// Cancel messages; some filter is needed
    Cancel {
        /// The topic
        name: String,
        /// Which
        #[command(flatten)]
        filter: MessageFilter,
    },
    /// Show how far a day has come
    Day {
        /// The topic
        name: String,
        /// Such as 2026-11-20
        day: String,
    },
    /// Delete a topic
    Rm {
        /// Its name
        name: String,
    },
}

/// Which messages.
#[derive(Args, Debug)]
pub struct MessageFilter {
    /// Due on this day
    #[arg(long)]
    pub day: Option<String>,
    /// In this bucket (sender mod 10,000) of the day
    #[arg(long)]
    pub bucket: Option<u32>,
    /// From this id
    #[arg(long)]
    pub sender: Option<i64>,
    /// To this id
    #[arg(long)]
    pub receiver: Option<i64>,
}

pub(crate) async fn run(session: &Session, command: TopicCommand) -> Result<ExitCode> {
    match command {
        TopicCommand::List => {
            let columns = [
                ("NAME", "/name"),
                ("TARGET", "/script|/queue"),
                ("GRANULARITY", "/granularity"),
                ("TIMEZONE", "/timezone"),
                ("BATCH", "/batch"),
            ];
            session.list(&["v1", "topics"], &columns).await?;
        }
        TopicCommand::Show { name } => session.show(&["v1", "topics", &name]).await?,
        TopicCommand::Set { name, file } => {
            let answer = session.client.put_topic(&name, &document::read_value(&file)?).await?;
            session.output.print(&answer, |_| format!("topic {name} set"))?;
        }
        TopicCommand::Send { name, file } => {
            let answer = session
                .client
                .send_message_lines(&name, document::read_bytes(&file)?)
                .await?;
            let rejected = !answer.rejected.is_empty();
            session.output.print(&serde_json::to_value(&answer)?, |_| {
                let mut text = format!("{} accepted", answer.accepted);
                for line in &answer.rejected {
                    text.push_str(&format!("\nline {}: {}", line.line, line.detail));
                }
                text
            })?;
            if rejected {
                return Ok(ExitCode::from(crate::exit::NO));
            }
        }
        TopicCommand::Messages { name, filter } => {
            let request = session.client.get(&["v1", "topics", &name, "messages"]);
            let request = request
                .query_if("day", filter.day)
                .query_if("bucket", filter.bucket)
                .query_if("sender", filter.sender)
                .query_if("receiver", filter.receiver);
            let page: Value = request.send().await?;
            let columns = [
                ("ID", "/id"),
                ("DUE", "/due"),
                ("SENDER", "/sender"),
                ("RECEIVER", "/receiver"),
                ("STATE", "/state"),
                ("PAYLOAD", "/payload"),
            ];
            session.output.print_list(&page, &columns)?;
        }
        TopicCommand::Cancel { name, filter } => {
            let mut body = Map::new();
            for (field, value) in [
                ("day", filter.day.map(|day| json!(day))),
                ("bucket", filter.bucket.map(|bucket| json!(bucket))),
                ("sender", filter.sender.map(|sender| json!(sender))),
                ("receiver", filter.receiver.map(|receiver| json!(receiver))),
            ] {
                if let Some(value) = value {
                    body.insert(field.into(), value);
                }
            }
            let answer = session.client.cancel_messages(&name, &Value::Object(body)).await?;
            session.output.print_thing(&answer)?;
        }
        TopicCommand::Day { name, day } => session
            .output
            .print_thing(&session.client.topic_day(&name, &day).await?)?,
        TopicCommand::Rm { name } => session.remove("topic", &name, &["v1", "topics", &name], false).await?,
    }
    done()
}
