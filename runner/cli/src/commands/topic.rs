//! Commands for topics and their scheduled messages.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use bytes::Bytes;
use clap::{Args, Subcommand};
use futures::{Stream, StreamExt, stream};
use heddle_client::Day;
use heddle_engine::NodeClock;
use serde_json::{Value, json};

use super::backfill::bar;
use super::patience::Patience;
use super::topic_send::{BAR, STEP, report_accepted, send, with_progress};
use crate::document::{self, Kind};
use crate::exit::{NO, done};
use crate::output::{self, Format};
use crate::session::Session;
use crate::terminal::{self, tell};

/// How many lines are made at once.
const LINES: u64 = 1_000;

/// What can be done with topics.
#[derive(Subcommand, Debug)]
pub enum TopicCommand {
    /// List topics
    #[command(alias = "ls")]
    List,
    /// Show a topic
    Show {
        /// The name of the topic
        name: String,
    },
    /// Create or change a topic
    #[command(alias = "set")]
    Put {
        /// The name of the topic
        name: String,
        /// A YAML or JSON file; `-` is stdin
        #[arg(short, long, default_value = "-")]
        file: PathBuf,
    },
    /// Schedule messages from a file with one JSON object per line
    Send {
        /// The name of the topic
        name: String,
        /// A file with one JSON object per line (NDJSON); `-` is stdin
        #[arg(short, long, default_value = "-")]
        file: PathBuf,
    },
    /// Schedule generated messages, for tests
    Fill(Fill),
    /// List the messages of a topic
    Messages {
        /// The name of the topic
        name: String,
        #[command(flatten)]
        filter: MessageFilter,
        /// The maximum number of messages, 1 to 500
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=500))]
        limit: u16,
        /// The cursor of the next page, as printed by the previous call
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Cancel messages by a filter, or one message by its id
    Cancel {
        /// The name of the topic
        name: String,
        /// The id of one message
        #[arg(long, conflicts_with_all = ["day", "bucket", "sender", "receiver"])]
        id: Option<String>,
        #[command(flatten)]
        filter: MessageFilter,
    },
    /// List the days that have messages
    Days {
        /// The name of the topic
        name: String,
    },
    /// Show the progress of a day
    Day {
        /// The name of the topic
        name: String,
        /// The day, for example 2026-11-20
        day: String,
        /// Follow the day until all its messages have ended
        #[arg(short, long)]
        watch: bool,
    },
    /// Delete a topic with all its messages
    Rm {
        /// The name of the topic
        name: String,
        /// On a terminal: delete without asking
        #[arg(long)]
        yes: bool,
    },
}

impl TopicCommand {
    /// The topic that it is about.
    pub(crate) fn topic(&self) -> Option<String> {
        match self {
            Self::List | Self::Put { .. } => None,
            Self::Show { name }
            | Self::Send { name, .. }
            | Self::Messages { name, .. }
            | Self::Cancel { name, .. }
            | Self::Days { name }
            | Self::Day { name, .. }
            | Self::Rm { name, .. } => Some(name.clone()),
            Self::Fill(fill) => Some(fill.name.clone()),
        }
    }
}

#[derive(Args, Debug)]
pub struct MessageFilter {
    /// Only messages that are due on this day, for example 2026-11-20
    #[arg(long)]
    pub day: Option<String>,
    /// Only messages in this bucket (sender mod 10,000), 0 to 9999
    #[arg(long)]
    pub bucket: Option<u32>,
    /// Only messages from this sender
    #[arg(long)]
    pub sender: Option<i64>,
    /// Only messages to this receiver
    #[arg(long)]
    pub receiver: Option<i64>,
}

/// Which messages to generate.
#[derive(Args, Debug)]
pub struct Fill {
    /// The name of the topic
    pub name: String,
    /// The number of messages
    #[arg(long, default_value_t = 1_000)]
    pub count: u64,
    /// The day on which they are due, for a topic with `granularity: day`
    #[arg(long, conflicts_with = "due", required_unless_present = "due")]
    pub day: Option<String>,
    /// The time at which they are due, for a topic with `granularity: instant`; `now` is the current time
    #[arg(long)]
    pub due: Option<String>,
    /// The first sender; senders are numbered from here
    #[arg(long, default_value_t = 0)]
    pub first: u64,
    /// The text of the payloads
    #[arg(long, default_value = "Greetings!")]
    pub text: String,
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
                ("PROBLEM", "/problem"),
            ];
            session.list(&["v1", "topics"], &columns).await?;
        }
        TopicCommand::Show { name } => session.show_document(Kind::Topic, &name).await?,
        TopicCommand::Put { name, file } => {
            let answer = session
                .client
                .put_topic(&name, &document::read_spec(Kind::Topic, &file)?)
                .await?;
            let answer = serde_json::to_value(&answer)?;
            session.output.print(&answer, |_| format!("topic {name} saved"))?;
            session.tell_page(&["topics", &name]);
        }
        TopicCommand::Send { name, file } => {
            return send(session, &name, &file).await;
        }
        TopicCommand::Fill(fill) => return fill_topic(session, fill).await,
        TopicCommand::Messages {
            name,
            filter,
            limit,
            cursor,
        } => messages(session, &name, filter, limit, cursor).await?,
        TopicCommand::Cancel { name, id: Some(id), .. } => {
            session.client.cancel_message(&name, &id).await?;
            session
                .output
                .print(&json!({ "cancelled": 1 }), |_| format!("message {id} cancelled"))?;
        }
        TopicCommand::Cancel { name, id: None, filter } => cancel(session, &name, filter).await?,
        TopicCommand::Days { name } => {
            let columns = [
                ("DAY", "/day"),
                ("STATE", "/state"),
                ("TOTAL", "/total"),
                ("SENT", "/sent"),
                ("FAILED", "/failed"),
                ("CANCELLED", "/cancelled"),
            ];
            session.list(&["v1", "topics", &name, "days"], &columns).await?;
        }
        TopicCommand::Day {
            name,
            day,
            watch: false,
        } => {
            let found = session.client.topic_day(&name, &day).await?;
            session.output.print(&serde_json::to_value(&found)?, |_| {
                let room = terminal::is_interactive().then(|| terminal::size().0);
                match found.buckets.as_ref().map_or(0, Vec::len) {
                    1 => format!("{}\n1 bucket; use -o json to show it", progress(&found, room)),
                    buckets => format!(
                        "{}\n{buckets} buckets; use -o json to list them",
                        progress(&found, room)
                    ),
                }
            })?;
        }
        TopicCommand::Day { name, day, watch: true } => return watch_day(session, &name, &day).await,
        TopicCommand::Rm { name, yes } => return remove(session, &name, yes).await,
    }
    done()
}

/// Deletes a topic, and says how many messages go with it.
async fn remove(session: &Session, name: &str, yes: bool) -> Result<ExitCode> {
    let path = ["v1", "topics", name];
    let days = session.client.get(&[&path[..], &["days"]].concat());
    let days: Vec<Day> = session.all(days).await?;
    let lost = kept_messages(&days);
    let with = lost.as_ref().map(|lost| format!(", with {lost}")).unwrap_or_default();
    if !terminal::may_delete(&format!("topic {name}{with}"), yes)? {
        return Ok(ExitCode::from(NO));
    }
    session.remove("topic", name, &path, false).await?;
    if let Some(lost) = lost {
        tell!("deleted with it: {lost}");
    }
    done()
}

/// How many messages there are, and how many of them have not been sent yet, in words.
fn kept_messages(days: &[Day]) -> Option<String> {
    // The messages of a dropped day are deleted; only its counts are still there.
    let kept = days.iter().filter(|day| day.state != "dropped");
    let (all, ended) = kept.fold((0, 0), |(all, ended), day| {
        (all + day.total, ended + day.sent + day.failed + day.cancelled)
    });
    (all > 0).then(|| format!("{all} messages ({} still to be sent)", all - ended))
}

/// The messages of a topic that a filter finds.
async fn messages(
    session: &Session,
    name: &str,
    filter: MessageFilter,
    limit: u16,
    cursor: Option<String>,
) -> Result<()> {
    let request = session.client.get(&["v1", "topics", name, "messages"]);
    let request = request
        .query_if("day", filter.day)
        .query_if("bucket", filter.bucket)
        .query_if("sender", filter.sender)
        .query_if("receiver", filter.receiver)
        .query("limit", limit)
        .query_if("cursor", cursor);
    let page: Value = request.send_for_list().await?;
    let columns = [
        ("ID", "/id"),
        ("DUE", "/due"),
        ("SENDER", "/sender"),
        ("RECEIVER", "/receiver"),
        ("STATE", "/state"),
        ("PAYLOAD", "/payload"),
    ];
    session.output.print_list(&page, &columns)
}

/// Cancels all messages of a topic that a filter finds.
async fn cancel(session: &Session, name: &str, filter: MessageFilter) -> Result<()> {
    let filter = heddle_client::MessageFilter {
        day: filter.day,
        bucket: filter.bucket.map(Into::into),
        sender: filter.sender,
        receiver: filter.receiver,
    };
    let answer = session.client.cancel_messages(name, &filter).await?;
    session
        .output
        .print(&serde_json::to_value(answer)?, |_| match answer.cancelled {
            1 => "1 message cancelled".to_owned(),
            cancelled => format!("{cancelled} messages cancelled"),
        })
}

async fn fill_topic(session: &Session, fill: Fill) -> Result<ExitCode> {
    let due = match (&fill.day, fill.due.as_deref()) {
        (Some(day), _) => day.clone(),
        (None, Some("now") | None) => NodeClock::default().own().to_rfc3339(),
        (None, Some(due)) => due.to_owned(),
    };
    let made = Arc::new(AtomicU64::new(0));
    let lines = made_up(&fill, due, made.clone());
    let sending = session.client.send_message_stream(&fill.name, lines);
    let line = || {
        let made = made.load(Ordering::Relaxed);
        format!("{} {made}/{}", bar(made as i64, fill.count as i64, BAR), fill.count)
    };
    let answer = with_progress(sending, line).await?;
    report_accepted(session, &answer)
}

/// Lines of messages. Senders are spread over 2^32 ids by Knuth's multiplier, so that they fill all buckets.
fn made_up(
    fill: &Fill,
    due: String,
    made: Arc<AtomicU64>,
) -> impl Stream<Item = std::io::Result<Bytes>> + Send + 'static + use<> {
    const SPREAD: u64 = 2_654_435_761;
    let (first, end) = (fill.first, fill.first.saturating_add(fill.count));
    let payload = json!({ "text": fill.text }).to_string();
    let due = json!(due).to_string();
    stream::iter((first..end).step_by(LINES as usize)).map(move |from| {
        let to = end.min(from + LINES);
        let mut text = String::new();
        for number in from..to {
            let sender = number.wrapping_mul(SPREAD) & 0xffff_ffff;
            let receiver = sender ^ 1;
            text.push_str(&format!(
                "{{\"sender\":{sender},\"receiver\":{receiver},\"due\":{due},\"payload\":{payload}}}\n"
            ));
        }
        made.fetch_add(to - from, Ordering::Relaxed);
        Ok(Bytes::from(text))
    })
}

/// A day in a line; on a terminal that is too narrow for it, in two.
fn progress(day: &Day, room: Option<usize>) -> String {
    let ended = day.sent + day.failed + day.cancelled;
    let bar = format!("{} {ended}/{} {}", bar(ended, day.total, BAR), day.total, day.state);
    let counts = format!(
        "sent {}, failed {}, cancelled {}, sending {}, retrying {}",
        day.sent, day.failed, day.cancelled, day.in_hand, day.retrying
    );
    match room {
        Some(room) if bar.len() + 2 + counts.len() > room => format!("{bar}\n{counts}"),
        _ => format!("{bar}  {counts}"),
    }
}

async fn watch_day(session: &Session, name: &str, day: &str) -> Result<ExitCode> {
    let live = terminal::is_interactive();
    let mut canvas = terminal::Canvas::default();
    let mut last = String::new();
    let mut patience = Patience::default();
    loop {
        let losses = patience.losses();
        let found = patience
            .read(async || session.client.topic_day(name, day).await)
            .await?;
        if patience.losses() > losses {
            // The line that said so stands beneath the bar, so the next bar begins beneath that line.
            canvas = terminal::Canvas::default();
        }
        if found.total == 0 {
            if session.output == Format::Table {
                tell!("no messages on this day");
            } else {
                session.output.print_thing(&serde_json::to_value(&found)?)?;
            }
            return done();
        }
        let room = terminal::size().0;
        let line = progress(&found, live.then_some(room));
        if line != last && session.output == Format::Table {
            if live {
                let lines: Vec<String> = line.lines().map(|line| terminal::cut(line, room)).collect();
                canvas.draw(&lines)?;
            } else {
                output::print(&line)?;
            }
            last = line;
        }
        if matches!(found.state.as_str(), "drained" | "dropped") {
            if session.output != Format::Table {
                session.output.print_thing(&serde_json::to_value(&found)?)?;
            }
            return if found.failed > 0 {
                Ok(ExitCode::from(NO))
            } else {
                done()
            };
        }
        tokio::time::sleep(STEP).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(state: &str, counts: [i64; 3]) -> Day {
        let [total, sent, failed] = counts;
        serde_json::from_value(
            json!({"day": "2026-11-21", "state": state, "total": total, "sent": sent, "failed": failed,
                                      "cancelled": 0, "in_hand": 0, "retrying": 0, "drained_at": null,
                                      "dropped_at": null}),
        )
        .unwrap()
    }

    #[test]
    fn what_a_topic_takes_with_it_is_counted() {
        assert_eq!(kept_messages(&[]), None);
        assert_eq!(kept_messages(&[day("dropped", [9, 9, 0])]), None);
        let days = [
            day("drained", [200, 199, 1]),
            day("scheduled", [100, 0, 0]),
            day("dropped", [9, 9, 0]),
        ];
        assert_eq!(
            kept_messages(&days).as_deref(),
            Some("300 messages (100 still to be sent)")
        );
    }

    #[test]
    fn a_day_has_two_lines_where_one_is_too_long() {
        let day = day("drained", [2, 2, 0]);
        assert_eq!(progress(&day, None).lines().count(), 1);
        let narrow = progress(&day, Some(80));
        assert!(
            narrow.lines().count() == 2 && narrow.lines().all(|line| line.len() <= 80),
            "{narrow}"
        );
    }

    #[tokio::test]
    async fn what_is_made_up_is_as_much_as_was_asked_for() {
        let fill = Fill {
            name: "t".into(),
            count: 2_500,
            day: Some("2026-11-21".into()),
            due: None,
            first: 10,
            text: "a \"b\"".into(),
        };
        let made = Arc::new(AtomicU64::new(0));
        let pieces: Vec<_> = made_up(&fill, "2026-11-21".into(), made.clone()).collect().await;
        let text: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.unwrap().to_vec()).collect();
        let lines: Vec<Value> = text
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        assert_eq!((lines.len(), made.load(Ordering::Relaxed)), (2_500, 2_500));
        assert_eq!(lines[0]["payload"]["text"], "a \"b\"");
        let senders: std::collections::HashSet<u64> =
            lines.iter().map(|line| line["sender"].as_u64().unwrap()).collect();
        assert_eq!(senders.len(), 2_500);
    }
}
