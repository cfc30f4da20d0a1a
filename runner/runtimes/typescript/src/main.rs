//! Checks scripts written as text, as a WASI command: strangers' text is parsed where it can hurt nobody.
//!
//! The first line of the standard input is the language, the rest is the text. The answer is a line of JSON: `{"checked":
//! {code, params}}` or `{"fault": {message, line, column}}`.

mod check;
mod erase;
mod fault;
mod schema;

use serde::Serialize;
use std::io::{Read, Write};

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Checked(check::Checked),
    Fault(fault::Fault),
}

fn main() {
    let mut input = Vec::new();
    if std::io::stdin().read_to_end(&mut input).is_err() {
        std::process::exit(1);
    }
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (language, text) = input.split_at(end);
    let language = String::from_utf8_lossy(language).into_owned();
    let answer = match check::check(text.get(1..).unwrap_or_default(), &language) {
        Ok(checked) => Answer::Checked(checked),
        Err(fault) => Answer::Fault(fault),
    };
    let written = serde_json::to_vec(&answer).map(|answer| std::io::stdout().write_all(&answer));
    if !matches!(written, Ok(Ok(()))) {
        std::process::exit(1);
    }
}
