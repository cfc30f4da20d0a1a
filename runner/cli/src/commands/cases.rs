//! An author's test cases: `clean.test.json` beside `clean.ts`.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use heddle_domain::Time;
use heddle_sandbox::{Effect, Exchanges, Outcome, Rehearsal};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::local::{Doubles, Ended, Given, Loaded, Local, Stage};
use super::recording::{HttpExchange, Replay, SqlExchange};
use crate::document;
use crate::exit::usage;
use crate::output::Format;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub name: Option<String>,
    #[serde(default)]
    pub params: Map<String, Value>,
    /// The outputs of tasks.
    #[serde(default)]
    upstream: Map<String, Value>,
    #[serde(default)]
    pub secrets: BTreeMap<String, String>,
    #[serde(default)]
    state: Map<String, Value>,
    /// The item, for a case of a mapped task.
    #[serde(default, deserialize_with = "present")]
    item: Option<Value>,
    logical_time: Option<Time>,
    /// The time at which the script's clocks begin.
    pub now: Option<Time>,
    /// The seed of the script's randomness.
    pub seed: Option<u64>,
    #[serde(default)]
    http: Vec<HttpExchange>,
    #[serde(default)]
    sql: Vec<SqlExchange>,
    expect: Expect,
}

impl Case {
    /// The input of a run of this case.
    pub fn given(self, stage: Stage, timeout: Duration, quiet: bool) -> Given {
        Given {
            params: self.params,
            doubles: Doubles {
                upstream: self.upstream,
                secrets: self.secrets,
                state: self.state,
            },
            item: self.item,
            logical_time: self.logical_time,
            stage,
            timeout,
            quiet,
        }
    }
}

/// The expected results; what is not named may be anything.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    #[serde(default, deserialize_with = "present")]
    output: Option<Value>,
    error: Option<ExpectedError>,
    /// Part of the reason.
    skipped: Option<String>,
    /// The keys of the state that are written, with their values; null: the key is deleted.
    #[serde(default)]
    state: Map<String, Value>,
    enqueued: Option<Vec<Value>>,
    notified: Option<Vec<Value>>,
    /// Texts that must occur in the log, each within one line.
    #[serde(default)]
    log: Vec<String>,
    /// Recorded exchanges need not be used.
    #[serde(default)]
    unasked: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedError {
    kind: Option<String>,
    /// Part of the message.
    message: Option<String>,
}

/// A written `null` is a value too, unlike a missing field.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Where the cases of a script are looked for.
pub(super) fn file_beside(script: &str) -> String {
    Path::new(script).with_extension("test.json").display().to_string()
}

/// The file with a script's cases, if there is one.
pub(super) fn beside(script: &str) -> Option<String> {
    Some(file_beside(script)).filter(|file| Path::new(file).is_file())
}

fn read(file: &str) -> Result<Vec<Case>> {
    parse(&document::read_bytes(Path::new(file))?, file)
}

/// The cases in a file's text.
pub(super) fn parse(text: &[u8], file: &str) -> Result<Vec<Case>> {
    let found: File = serde_json::from_slice(text).map_err(|error| usage(format!("{file}: {error}")))?;
    for (index, case) in found.cases.iter().enumerate() {
        let nanos = case.now.map_or(Some(0), |now| now.timestamp_nanos_opt());
        if nanos.is_none_or(|nanos| nanos < 0) {
            return Err(usage(format!(
                "{file}: cases[{index}].now must be between 1970 and 2262"
            )));
        }
        let expect = &case.expect;
        let ends = [
            expect.output.is_some(),
            expect.error.is_some(),
            expect.skipped.is_some(),
        ];
        if ends.iter().filter(|there| **there).count() > 1 {
            return Err(usage(format!(
                "{file}: cases[{index}].expect has more than one of `output`, `error` and `skipped`"
            )));
        }
    }
    Ok(found.cases)
}

/// One case, as a file contains it.
pub(super) fn one(text: &str, file: &str) -> Result<Case> {
    let cases = parse(format!("{{\"cases\": [{text}]}}").as_bytes(), file)?;
    cases
        .into_iter()
        .next()
        .ok_or_else(|| usage(format!("{file} contains no cases")))
}

/// Runs all cases, prints the result of each, and returns whether all succeeded.
pub(super) async fn run(out: Format, local: &Local, script: &Loaded, file: &str, timeout: Duration) -> Result<bool> {
    let mut results = Vec::new();
    for (index, case) in read(file)?.into_iter().enumerate() {
        let mut case = case;
        let name = case.name.take().unwrap_or_else(|| format!("cases[{index}]"));
        let expect = std::mem::take(&mut case.expect);
        let replay = Replay::new(std::mem::take(&mut case.http), std::mem::take(&mut case.sql));
        let replay = Arc::new(replay.map_err(|error| usage(format!("{file}: {name}: {error}")))?);
        let stage = Stage {
            rehearsal: Rehearsal {
                now: case.now,
                paced: false,
                seed: case.seed,
                exchanges: Some(Arc::clone(&replay) as Arc<dyn Exchanges>),
            },
            ..Stage::default()
        };
        let (faults, log, duration_ms) = match local.run(script, case.given(stage, timeout, true)).await {
            Ok(ended) => {
                let mut faults = expect.faults(&ended);
                faults.extend(replay.faults(expect.unasked));
                (faults, ended.log.clone(), ended.duration_ms())
            }
            // Refused params are an outcome like others: a case may expect them.
            Err(error) => (expect.refusal(&format!("{error:#}")), Vec::new(), 0.0),
        };
        results.push(
            json!({"name": name, "ok": faults.is_empty(), "faults": faults, "log": log, "duration_ms": duration_ms}),
        );
    }
    let failed = results.iter().filter(|case| case["ok"] == false).count();
    let summary = json!({"file": file, "cases": results, "failed": failed});
    out.print(&summary, |summary| {
        let mut lines: Vec<String> = Vec::new();
        let texts = |value: &Value| -> Vec<String> {
            let all = value.as_array().into_iter().flatten();
            all.filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        for case in summary["cases"].as_array().into_iter().flatten() {
            let word = if case["ok"] == true { "ok  " } else { "FAIL" };
            let name = case["name"].as_str().unwrap_or_default();
            let duration_ms = case["duration_ms"].as_f64().unwrap_or_default();
            lines.push(format!("{word} {name} ({duration_ms:.1} ms)"));
            lines.extend(texts(&case["faults"]).iter().map(|fault| format!("     {fault}")));
            if case["ok"] == false {
                lines.extend(texts(&case["log"]).iter().map(|line| format!("     log: {line}")));
            }
        }
        let count = summary["cases"].as_array().map_or(0, Vec::len);
        lines.push(format!("{} of {count} cases as expected", count - failed));
        lines.join("\n")
    })?;
    Ok(failed == 0)
}

impl Expect {
    /// How an outcome differs from the expected one.
    fn faults(&self, ended: &Ended) -> Vec<String> {
        let mut faults = self.of_outcome(&ended.outcome);
        let mut written = Map::new();
        let (mut enqueued, mut notified) = (Vec::new(), Vec::new());
        let parsed = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
        for effect in &ended.effects {
            match effect {
                Effect::StateSet { key, value } | Effect::StateCompareAndSet { key, value, .. } => {
                    written.insert(key.clone(), parsed(value));
                }
                Effect::StateDelete { key } => {
                    written.insert(key.clone(), Value::Null);
                }
                Effect::Enqueue { group, params, key } => {
                    enqueued.push(json!({"group": group, "params": parsed(params), "key": key}));
                }
                Effect::Notify { channel, subject, body } => {
                    notified.push(json!({"channel": channel, "subject": subject, "body": body}));
                }
            }
        }
        for (key, value) in &self.state {
            match written.get(key) {
                Some(found) if found == value => {}
                Some(found) => faults.push(format!("the state key `{key}` becomes {found}, not {value}")),
                None => faults.push(format!("the state key `{key}` is not written")),
            }
        }
        for (what, expected, found) in [
            ("enqueued", &self.enqueued, &enqueued),
            ("notified", &self.notified, &notified),
        ] {
            let Some(expected) = expected else { continue };
            if expected.len() != found.len() || !expected.iter().zip(found).all(|(part, whole)| holds(part, whole)) {
                let (expected, found) = (json!(expected), json!(found));
                faults.push(format!("{what} is {found}, not {expected}"));
            }
        }
        for part in &self.log {
            if !ended.log.iter().any(|line| line.contains(part.as_str())) {
                faults.push(format!("no line of the log contains `{part}`"));
            }
        }
        faults
    }

    fn of_outcome(&self, outcome: &Outcome) -> Vec<String> {
        match outcome {
            Outcome::Succeeded(output) => {
                let output: Value = serde_json::from_str(output).unwrap_or(Value::Null);
                match (&self.output, self.error.is_some() || self.skipped.is_some()) {
                    (Some(expected), _) if *expected != output => {
                        vec![format!("the output is {output}, not {expected}")]
                    }
                    (_, true) => vec![format!("it succeeds, with {output}")],
                    _ => Vec::new(),
                }
            }
            Outcome::Skipped(reason) => match &self.skipped {
                Some(part) if reason.contains(part.as_str()) => Vec::new(),
                Some(part) => vec![format!("it is skipped because `{reason}`, not `{part}`")],
                None => vec![format!("it is skipped: {reason}")],
            },
            Outcome::Failed {
                kind, message, trace, ..
            } => {
                let trace = trace.as_deref().unwrap_or_default();
                self.of_error(kind.as_str(), message, trace)
            }
            Outcome::Cancelled => vec!["it is cancelled".into()],
        }
    }

    fn of_error(&self, kind: &str, message: &str, trace: &str) -> Vec<String> {
        let Some(expected) = &self.error else {
            let trace = if trace.is_empty() {
                String::new()
            } else {
                format!("\n{trace}")
            };
            return vec![format!("it fails ({kind}): {message}{trace}")];
        };
        let mut faults = Vec::new();
        if let Some(expected) = expected.kind.as_deref().filter(|expected| *expected != kind) {
            faults.push(format!("the kind is `{kind}`, not `{expected}`: {message}"));
        }
        if let Some(part) = expected.message.as_deref().filter(|part| !message.contains(part)) {
            faults.push(format!("the message `{message}` does not contain `{part}`"));
        }
        faults
    }

    /// The params were refused.
    fn refusal(&self, message: &str) -> Vec<String> {
        self.of_error("invalid", message, "")
    }
}

/// Whether an object has all fields of another, and these values.
fn holds(part: &Value, whole: &Value) -> bool {
    match (part, whole) {
        (Value::Object(part), Value::Object(whole)) => part.iter().all(|(key, value)| whole.get(key) == Some(value)),
        _ => part == whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_domain::state::ErrorKind;

    fn expect(value: Value) -> Expect {
        serde_json::from_value(value).unwrap()
    }

    fn failed(kind: ErrorKind, message: &str) -> Outcome {
        Outcome::Failed {
            kind,
            message: message.into(),
            trace: None,
            retry_after: None,
        }
    }

    #[test]
    fn an_ending_is_held_against_what_is_expected() {
        let (one, null) = (Outcome::Succeeded("1".into()), Outcome::Succeeded("null".into()));
        let (fatal, skipped) = (
            failed(ErrorKind::Fatal, "no such table"),
            Outcome::Skipped("not today".into()),
        );
        for (expected, outcome, fault) in [
            (json!({}), &one, ""),
            (json!({"output": 1}), &one, ""),
            (json!({"output": null}), &one, "the output is 1, not null"),
            (json!({"output": null}), &null, ""),
            (json!({"error": {}}), &one, "it succeeds, with 1"),
            (json!({"skipped": "to"}), &one, "it succeeds, with 1"),
            (json!({"skipped": "to"}), &skipped, ""),
            (json!({"skipped": "why"}), &skipped, "because `not today`, not `why`"),
            (json!({"output": 1}), &skipped, "it is skipped: not today"),
            (json!({"error": {"kind": "fatal", "message": "such"}}), &fatal, ""),
            (
                json!({"error": {"kind": "failed"}}),
                &fatal,
                "the kind is `fatal`, not `failed`",
            ),
            (json!({"error": {"message": "view"}}), &fatal, "does not contain `view`"),
            (json!({"output": 1}), &fatal, "it fails (fatal): no such table"),
        ] {
            let faults = expect(expected.clone()).of_outcome(outcome);
            match fault {
                "" => assert!(faults.is_empty(), "{expected}: {faults:?}"),
                fault => assert!(faults.len() == 1 && faults[0].contains(fault), "{expected}: {faults:?}"),
            }
        }
    }

    #[test]
    fn a_file_of_cases_is_read_strictly() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.test.json");
        let shown = file.display().to_string();
        for (text, fault) in [
            (r#"{"cases": [{"expect": {}}]}"#, ""),
            (r#"{"cases": [{"expects": {}}]}"#, "expects"),
            (r#"{"cases": [{"params": {}}]}"#, "expect"),
            (
                r#"{"cases": [{"expect": {"output": null, "skipped": ""}}]}"#,
                "more than one of",
            ),
        ] {
            std::fs::write(&file, text).unwrap();
            match (read(&shown), fault) {
                (Ok(cases), "") => assert_eq!(cases.len(), 1),
                (Err(error), fault) if !fault.is_empty() => assert!(format!("{error:#}").contains(fault), "{error:#}"),
                (other, _) => panic!("{text}: {:?}", other.map(|cases| cases.len())),
            }
        }
        assert_eq!(file_beside("dir/clean.ts"), "dir/clean.test.json");
    }
}
