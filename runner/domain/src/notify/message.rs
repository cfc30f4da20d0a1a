//! The content of a notification: facts, and the subject and text made of them.
//!
//! Facts are stored with the notification. Subject and text depend only on them, so a repeated try sends the same. The
//! templates of a channel get the facts, and Heddle's own `subject` and `text`.

use std::collections::BTreeMap;
use std::fmt::Write;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Event;
use crate::spec::NotifyEvent;
use crate::template::{Scope, Templates};

pub const SUBJECT_MAX_CHARS: usize = 200;
pub const TEXT_MAX_BYTES: usize = 32 * 1024;
/// How many of the last lines of a log a message contains.
pub const LOG_LINES_MAX: usize = 20;
/// How many characters of a line, or of an error in a list, a message contains.
pub const LINE_MAX_CHARS: usize = 400;
/// How many characters of an error a message contains.
pub const ERROR_MAX_CHARS: usize = 2_000;

/// One of the events of a combined notification.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "NotificationEntry")]
pub struct Entry {
    /// When it happened, RFC 3339.
    pub at: String,
    /// The id of the run.
    pub run: Option<String>,
    /// The name of the task.
    pub task: Option<String>,
    /// The error, or the message of a script, in one line.
    pub error: Option<String>,
}

/// The facts about the event. Fields may be added, never renamed: channels' templates name them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// The event: `failed`, `recovered`, ...
    pub event: String,
    /// When it happened, RFC 3339.
    pub at: String,
    pub group: Option<String>,
    /// The id of the run.
    pub run: Option<String>,
    pub state: Option<String>,
    /// Why the run was made.
    pub trigger: Option<String>,
    /// What time the run is about, in RFC 3339.
    pub logical_time: Option<String>,
    /// The name of the task.
    pub task: Option<String>,
    /// Which item of a mapped task, from 0.
    pub item: Option<u32>,
    /// Which attempt, from 1.
    pub attempt: Option<u32>,
    pub error: Option<String>,
    /// `failed`, `timeout`, `trap`, ...
    pub error_kind: Option<String>,
    /// The last lines of the log.
    pub logs: Vec<String>,
    /// What will happen next, in a sentence.
    pub next: Option<String>,
    /// The URL of the page about the run or task.
    pub link: Option<String>,
    /// The schedule or the queue that it is about.
    pub about: Option<String>,
    /// The subject of a message of a script.
    pub said: Option<String>,
    /// The same: its body.
    pub body: Option<String>,
    /// How many events this notification combines.
    pub count: u64,
    /// Of a digest: some of them.
    pub entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// One line, at most [`SUBJECT_MAX_CHARS`].
    pub subject: String,
    /// Plain text, at most [`TEXT_MAX_BYTES`].
    pub text: String,
}

/// One line of at most so many characters; the last one of a text that was cut is `…`.
pub fn one_line(text: &str, max_chars: usize) -> String {
    let mut line = String::new();
    let mut blank = true;
    for (count, c) in text
        .trim_end_matches(|c: char| c.is_whitespace() || c.is_control())
        .chars()
        .map(|c| {
            if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
                ' '
            } else {
                c
            }
        })
        .filter(|&c| {
            let keep = !(c == ' ' && blank);
            blank = c == ' ';
            keep
        })
        .enumerate()
    {
        if count == max_chars {
            line.pop();
            line.push('…');
            break;
        }
        line.push(c);
    }
    line.trim_end().to_owned()
}

/// At most so many bytes of a text, cut between characters.
pub fn bounded(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

impl Facts {
    fn what(&self) -> String {
        let group = self.group.as_deref().unwrap_or("Heddle");
        match (&self.task, self.item) {
            (Some(task), Some(item)) => format!("{group}: task {task}, item {item},"),
            (Some(task), None) => format!("{group}: task {task}"),
            (None, _) => group.to_owned(),
        }
    }

    /// The subject, unless the channel has a template for it.
    pub fn subject(&self) -> String {
        let what = self.what();
        let why = self
            .error
            .as_deref()
            .map(|error| format!(": {error}"))
            .unwrap_or_default();
        let event = Event::from_word(&self.event);
        let text = if self.count > 1 {
            format!("{what}: {} times {}", self.count, plural(event, &self.event))
        } else {
            match event {
                Some(Event::Rule(NotifyEvent::Started)) => format!("{what} has started"),
                Some(Event::Rule(NotifyEvent::Succeeded)) => format!("{what} has succeeded"),
                Some(Event::Rule(NotifyEvent::Failed)) => format!("{what} failed{why}"),
                Some(Event::Rule(NotifyEvent::Retrying)) => format!("{what} failed and will be tried again{why}"),
                Some(Event::Rule(NotifyEvent::Recovered)) => format!("{what} has recovered"),
                Some(Event::Rule(NotifyEvent::DeadlineMissed)) => format!("{what} has missed its deadline"),
                Some(Event::Rule(NotifyEvent::ScheduleMissed)) => format!("{what} was not started on time"),
                Some(Event::Rule(NotifyEvent::QueueStalled)) => format!("{what} is waiting and no worker claims it"),
                Some(Event::Rule(NotifyEvent::Skipped)) => format!("{what} was skipped{why}"),
                Some(Event::Callback) => {
                    let end = self.state.as_deref().unwrap_or("ended");
                    format!("{what} has ended: {end}{why}")
                }
                Some(Event::Script) => self.said.clone().unwrap_or_else(|| format!("{what} sent a message")),
                Some(Event::Test) => "Heddle: a test of this channel".to_owned(),
                None => format!("{what}: {}", self.event),
            }
        };
        one_line(&text, SUBJECT_MAX_CHARS)
    }

    /// The text, unless the channel has a template for it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if self.event == Event::Test.as_str() {
            text.push_str("If you can read this, the channel works.\n");
        } else if self.count > 1 {
            self.digest(&mut text);
        } else if self.event == Event::Script.as_str() {
            text.push_str(self.body.as_deref().unwrap_or_default());
            text.push_str("\n\n");
            self.facts(&mut text);
        } else {
            let _ = writeln!(text, "{}.\n", self.subject());
            if let Some(error) = &self.error {
                let kind = self
                    .error_kind
                    .as_deref()
                    .map(|kind| format!(" ({kind})"))
                    .unwrap_or_default();
                let _ = writeln!(text, "Why{kind}: {error}\n");
            }
            self.facts(&mut text);
            if !self.logs.is_empty() {
                let _ = writeln!(text, "\nThe last lines of the log:");
                for line in &self.logs {
                    let _ = writeln!(text, "  {line}");
                }
            }
        }
        if let Some(next) = &self.next {
            let _ = writeln!(text, "\nWhat happens next: {next}");
        }
        if let Some(link) = &self.link {
            let _ = writeln!(text, "\n{link}");
        }
        bounded(&text, TEXT_MAX_BYTES).to_owned()
    }

    fn facts(&self, text: &mut String) {
        let attempt = self.attempt.map(|attempt| attempt.to_string());
        let rows = [
            ("Group", &self.group),
            ("Run", &self.run),
            ("Task", &self.task),
            ("Attempt", &attempt),
            ("State", &self.state),
            ("Trigger", &self.trigger),
            ("Logical time", &self.logical_time),
            ("About", &self.about),
        ];
        for (name, value) in rows {
            if let Some(value) = value {
                let _ = writeln!(text, "{name}: {value}");
            }
        }
        let _ = writeln!(text, "At: {}", self.at);
    }

    fn digest(&self, text: &mut String) {
        let _ = writeln!(
            text,
            "{}.\n\nThese notifications are combined, because there are many. {} of {}:\n",
            self.subject(),
            self.entries.len(),
            self.count
        );
        for entry in &self.entries {
            let _ = write!(text, "  {}", entry.at);
            for part in [&entry.run, &entry.task, &entry.error].into_iter().flatten() {
                let _ = write!(text, "  {part}");
            }
            text.push('\n');
        }
        let more = self.count.saturating_sub(self.entries.len() as u64);
        if more > 0 {
            let _ = writeln!(text, "  and {more} more");
        }
    }

    /// The message: by the channel's templates, where it has some. A template that fails is replaced by its error and
    /// Heddle's own text: nobody misses a message because of it.
    pub fn message(&self, subject: Option<&str>, text: Option<&str>) -> Message {
        let mut message = Message {
            subject: self.subject(),
            text: self.text(),
        };
        if subject.is_none() && text.is_none() {
            return message;
        }
        let scope = self.scope(&message).map_err(|error| error.to_string());
        let templates = Templates::new();
        let own_text = message.text.clone();
        for (template, part, is_subject) in [(subject, &mut message.subject, true), (text, &mut message.text, false)] {
            let Some(template) = template else { continue };
            let render = |scope| templates.render(template, scope).map_err(|error| error.to_string());
            let rendered = scope.as_ref().map_err(String::clone).and_then(render);
            let rendered = rendered.map(|value| match value {
                Value::String(text) => text,
                other => other.to_string(),
            });
            *part = match (rendered, is_subject) {
                (Ok(rendered), true) => one_line(&rendered, SUBJECT_MAX_CHARS),
                (Ok(rendered), false) => bounded(&rendered, TEXT_MAX_BYTES).to_owned(),
                (Err(_), true) => continue,
                (Err(error), false) => {
                    let text = format!("(The channel's own template failed: {error})\n\n{own_text}");
                    bounded(&text, TEXT_MAX_BYTES).to_owned()
                }
            };
        }
        message
    }

    fn scope(&self, message: &Message) -> serde_json::Result<Scope> {
        let mut names: BTreeMap<&'static str, Value> = BTreeMap::new();
        let facts = serde_json::to_value(self)?;
        for name in NAMES {
            names.insert(name, facts.get(name).cloned().unwrap_or_default());
        }
        names.insert("subject", message.subject.clone().into());
        names.insert("text", message.text.clone().into());
        Ok(Scope::of_names(names))
    }
}

/// The names of facts in templates.
const NAMES: [&str; 20] = [
    "event",
    "at",
    "group",
    "run",
    "state",
    "trigger",
    "logical_time",
    "task",
    "item",
    "attempt",
    "error",
    "error_kind",
    "logs",
    "next",
    "link",
    "about",
    "said",
    "body",
    "count",
    "entries",
];

fn plural(event: Option<Event>, word: &str) -> &str {
    match event {
        Some(Event::Rule(NotifyEvent::DeadlineMissed)) => "deadline missed",
        Some(Event::Rule(NotifyEvent::ScheduleMissed)) => "not started on time",
        Some(Event::Rule(NotifyEvent::QueueStalled)) => "waiting without a worker",
        Some(Event::Rule(NotifyEvent::Skipped)) => "skipped",
        Some(Event::Script) => "message from a script",
        _ => word,
    }
}

/// Whether a channel's template can be rendered: it is tried on made-up facts.
pub fn check_template(template: &str) -> Result<(), String> {
    let facts = Facts {
        event: "failed".into(),
        at: "2026-01-01T00:00:00.000000Z".into(),
        group: Some("group".into()),
        run: Some("0190f5fe-0000-7000-8000-000000000000".into()),
        task: Some("task".into()),
        error: Some("it failed".into()),
        logs: vec!["a line".into()],
        count: 1,
        ..Facts::default()
    };
    let message = Message {
        subject: facts.subject(),
        text: facts.text(),
    };
    let scope = facts.scope(&message).map_err(|error| error.to_string())?;
    Templates::new()
        .render(template, &scope)
        .map(drop)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Facts {
        Facts {
            event: "failed".into(),
            at: "2026-03-01T00:00:00.000000Z".into(),
            group: Some("nightly".into()),
            run: Some("the-run".into()),
            state: Some("failed".into()),
            error: Some("no such\r\ntable".into()),
            error_kind: Some("failed".into()),
            logs: vec!["first".into(), "last".into()],
            next: Some("The next run is due at noon.".into()),
            link: Some("https://heddle.example/runs/the-run".into()),
            count: 1,
            ..Facts::default()
        }
    }

    #[test]
    fn a_failure_says_what_why_and_what_next() {
        let facts = failure();
        assert_eq!(facts.subject(), "nightly failed: no such table");
        let text = facts.text();
        for part in [
            "no such",
            "the-run",
            "first\n  last",
            "due at noon",
            "https://heddle.example/runs/the-run",
        ] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }

    #[test]
    fn subjects_are_one_bounded_line() {
        let facts = Facts {
            error: Some("x\r\nBcc: a@b.c\r\n".repeat(1_000)),
            ..failure()
        };
        assert!(!facts.subject().contains(['\r', '\n']));
        assert_eq!(facts.subject().chars().count(), SUBJECT_MAX_CHARS);
        assert!(facts.subject().ends_with('…'));
        assert_eq!(one_line("abcd", 3), "ab…");
        assert_eq!(one_line("abc \r\n", 3), "abc");
        assert_eq!(one_line("a\u{2028}b\tc \u{0}d", 100), "a b c d");
        assert_eq!(bounded("äöü", 3), "ä");
    }

    #[test]
    fn a_digest_counts_what_it_does_not_list() {
        let facts = Facts {
            count: 1_000,
            entries: vec![Entry::default(); 3],
            ..failure()
        };
        assert_eq!(facts.subject(), "nightly: 1000 times failed");
        assert!(facts.text().contains("3 of 1000"), "{}", facts.text());
        assert!(facts.text().contains("and 997 more"), "{}", facts.text());
    }

    #[test]
    fn templates_replace_words_not_facts() {
        let facts = failure();
        let message = facts.message(
            Some("[{{ group }}] {{ event }}\n"),
            Some("{% for line in logs %}{{ line }};{% endfor %} {{ subject }}"),
        );
        assert_eq!(message.subject, "[nightly] failed");
        assert_eq!(message.text, "first;last; nightly failed: no such table");
        // A template that fails only for some facts does not prevent the message.
        let message = facts.message(None, Some("{{ task.nothing.there }}"));
        assert!(message.text.contains("no such"), "{}", message.text);
        assert!(check_template("{{ group }}").is_ok());
        assert!(check_template("{{ upstream.x }}").is_err());
    }

    #[test]
    fn all_names_are_facts() {
        let facts = serde_json::to_value(Facts::default()).unwrap();
        let mut known: Vec<&str> = facts.as_object().unwrap().keys().map(String::as_str).collect();
        let mut names = NAMES.to_vec();
        known.sort_unstable();
        names.sort_unstable();
        assert_eq!(known, names);
    }
}
