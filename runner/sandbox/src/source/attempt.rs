//! Runs a text script.

use super::language::Language;
use super::pending;
use super::python::{self, Change, Python};
use super::runtime::{Exported, Runtime};
use crate::batch::{Batch, MessageOutcome};
use crate::bindings::task::heddle::task::types::Failure;
use crate::guest::Guest;
use heddle_domain::Time;
use heddle_domain::state::ErrorKind;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::{Module, Store, Trap};

/// The error for an output whose nesting exhausts the interpreter's stack while it is written.
const OUTPUT_TOO_DEEP: &str = "the output cannot be written as JSON: it nests too deep";

/// A text script, ready to run.
pub(crate) struct SourceScript {
    pub snapshot: Ready,
    pub language: super::Language,
    /// Its description, in the form of a component's `describe`.
    pub description: String,
    pub handles: bool,
    pub runs: bool,
    /// What the clock of its top level showed, in microseconds since 1970.
    pub evaluated_at: i64,
}

impl SourceScript {
    /// Whether it is the result of an evaluation at this instant.
    pub fn is_of(&self, at: Time) -> bool {
        self.evaluated_at == at.timestamp_micros()
    }
}

/// The memory after a script's top level was evaluated, and what runs in it.
pub(crate) enum Ready {
    JavaScript(Arc<Runtime>, Module),
    Python(Arc<Python>, Change),
}

/// How a script ended.
pub(crate) enum Ended {
    Output(String),
    Handled(Vec<MessageOutcome>),
    Failure(Failure),
    /// It threw, or returned what is not JSON.
    Thrown {
        kind: ErrorKind,
        message: String,
        trace: Option<String>,
        retry_after: Option<Duration>,
    },
}

#[derive(Deserialize)]
struct Reply {
    output: Option<String>,
    outcomes: Option<Vec<Option<Thrown>>>,
    #[serde(flatten)]
    thrown: Option<Thrown>,
}

#[derive(Deserialize)]
struct Thrown {
    kind: String,
    message: String,
    trace: Option<String>,
    after: Option<u64>,
}

/// Runs a script to its end.
pub(crate) async fn run(
    store: &mut Store<Guest>,
    script: &SourceScript,
    context: &str,
    params: &str,
    batch: Option<&Batch>,
) -> wasmtime::Result<Ended> {
    if batch.is_some() && !script.handles {
        return Ok(unfit("the script does not export `handle`, which a topic needs"));
    }
    if batch.is_none() && !script.runs {
        return Ok(unfit(
            "the script does not export `run`, only `handle`, which is for topics",
        ));
    }
    // With a topic's batch there are no params.
    let params: &RawValue = serde_json::from_str(if batch.is_some() { "null" } else { params })?;
    let mut seed = [0; 16];
    let chance = &mut store.data_mut().host.chance;
    chance.fill(&mut seed).map_err(wasmtime::Error::msg)?;
    let begin = begin(&seed, context, params, batch)?;
    let (runtime, image) = match &script.snapshot {
        Ready::JavaScript(runtime, image) => (runtime, image),
        Ready::Python(python, change) => {
            let ended = python::run(store, python, change, begin).await?;
            return Ok(match ended {
                Some(ended) => ended_of(&ended, script.language.file())?,
                None => failed("the script ended without a result"),
            });
        }
    };
    let running = runtime.instantiate(store, image).await?;
    running.send(store, Exported::Begin, &begin).await?;
    loop {
        let told = running.tell_rejected(store).await;
        if let Some(ended) = store.data_mut().source.ended.take() {
            return Ok(ended_of(&ended, script.language.file())?);
        }
        told?;
        match pending::next(store).await {
            Some(event) => running.send(store, Exported::Event, &event).await?,
            None => {
                return Ok(failed(
                    "the promise that `run` returned never settles, because nothing is pending that could settle it",
                ));
            }
        }
    }
}

/// A trap because of the interpreter's own recursion, in words for the author of a script.
pub(crate) fn too_deep(language: Language) -> String {
    let name = match language {
        Language::JavaScript | Language::TypeScript => "RangeError",
        Language::Python => "RecursionError",
    };
    format!("{name}: the call stack is exhausted; the recursion or nesting is too deep")
}

/// How a script that trapped ended, if that was its own fault.
pub(crate) fn ended_by(error: &wasmtime::Error, language: Language, writes_output: bool) -> Option<Ended> {
    let is_too_deep = matches!(error.downcast_ref::<Trap>(), Some(Trap::StackOverflow));
    let (kind, message) = match writes_output {
        true => (ErrorKind::Invalid, OUTPUT_TOO_DEEP.to_owned()),
        false => (ErrorKind::Failed, too_deep(language)),
    };
    is_too_deep.then_some(Ended::Thrown {
        kind,
        message,
        trace: None,
        retry_after: None,
    })
}

/// A failure for which another try is useless.
fn unfit(message: &str) -> Ended {
    Ended::Failure(Failure::Fatal(message.to_owned()))
}

fn failed(message: &str) -> Ended {
    Ended::Failure(Failure::Retryable(message.to_owned()))
}

fn begin(seed: &[u8; 16], context: &str, params: &RawValue, batch: Option<&Batch>) -> wasmtime::Result<String> {
    let words: Vec<u32> = seed
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    let batch = match batch {
        Some(batch) => batch_text(batch)?,
        None => "null".to_owned(),
    };
    Ok(format!(
        r#"{{"seed":{words:?},"context":{context},"params":{params},"batch":{batch}}}"#
    ))
}

/// Numbers of senders and receivers are sent as texts: JavaScript would round the largest.
fn batch_text(batch: &Batch) -> Result<String, serde_json::Error> {
    let messages: Result<Vec<_>, serde_json::Error> = batch
        .messages
        .iter()
        .map(|message| {
            let payload: &RawValue = serde_json::from_str(&message.payload)?;
            Ok(json!({
                "id": message.id,
                "sender": message.sender.to_string(),
                "receiver": message.receiver.to_string(),
                "due": message.due,
                "payload": payload,
            }))
        })
        .collect();
    Ok(json!({"topic": batch.topic, "messages": messages?}).to_string())
}

fn ended_of(text: &str, file: &str) -> Result<Ended, serde_json::Error> {
    let reply: Reply = serde_json::from_str(text)?;
    Ok(match reply {
        Reply {
            output: Some(output), ..
        } => Ended::Output(output),
        Reply {
            outcomes: Some(outcomes),
            ..
        } => Ended::Handled(outcomes.into_iter().map(|thrown| outcome_of(thrown, file)).collect()),
        Reply {
            thrown: Some(thrown), ..
        } => thrown.ended(file),
        Reply { .. } => failed("the script ended without a result"),
    })
}

fn outcome_of(thrown: Option<Thrown>, file: &str) -> MessageOutcome {
    let said = match thrown.map(|thrown| thrown.ended(file)) {
        None | Some(Ended::Output(_) | Ended::Handled(_)) => Ok(()),
        Some(Ended::Failure(failure)) => Err(failure),
        Some(Ended::Thrown {
            kind: ErrorKind::Fatal,
            message,
            ..
        }) => Err(Failure::Fatal(message)),
        Some(Ended::Thrown {
            message,
            retry_after: Some(after),
            ..
        }) => Err(Failure::RetryAfter((
            u64::try_from(after.as_millis()).unwrap_or(u64::MAX),
            message,
        ))),
        Some(Ended::Thrown { message, .. }) => Err(Failure::Retryable(message)),
    };
    MessageOutcome::of(said, crate::texts::message)
}

impl Thrown {
    fn ended(self, file: &str) -> Ended {
        let kind = match self.kind.as_str() {
            "skip" => return Ended::Failure(Failure::Skip(self.message)),
            "fatal" => ErrorKind::Fatal,
            "invalid" => ErrorKind::Invalid,
            _ => ErrorKind::Failed,
        };
        Ended::Thrown {
            kind,
            message: self.message,
            trace: self.trace.map(|trace| own_lines(&trace, file)),
            retry_after: self.after.map(Duration::from_millis),
        }
    }
}

/// A trace without the lines of our own modules.
fn own_lines(trace: &str, file: &str) -> String {
    let is_ours = |line: &str| line.trim_start().starts_with("at ") && line.contains("heddle:") && !line.contains(file);
    let lines: Vec<&str> = trace
        .lines()
        .filter(|line| !line.trim().is_empty() && !is_ours(line))
        .collect();
    lines.join("\n")
}
