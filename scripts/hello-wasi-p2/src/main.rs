//! A script without an SDK: a WASI command as a component (preview 2) that counts the letters of a text.
//!
//! Params come as JSON on standard input, the context as JSON in `HEDDLE_CONTEXT`; the output goes as JSON to standard
//! output, standard error is the log, and any exit code but 0 is a failure that may be retried.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::ExitCode;

use serde_json::{Value, json};

fn main() -> ExitCode {
    let mut params = String::new();
    let output = std::io::stdin()
        .read_to_string(&mut params)
        .map_err(|error| error.to_string());
    match output.and_then(|_| count(&params)) {
        Ok(output) => {
            println!("{output}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn count(params: &str) -> Result<Value, String> {
    let params: Value = serde_json::from_str(params).map_err(|error| format!("params: {error}"))?;
    let text = params["text"].as_str().ok_or("params: `text` is missing")?;
    let mut letters: BTreeMap<char, u64> = BTreeMap::new();
    for letter in text.chars().filter(|letter| letter.is_alphabetic()) {
        *letters.entry(letter).or_default() += 1;
    }
    Ok(json!({"letters": letters}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_counted() {
        assert_eq!(
            count(r#"{"text": "a bà!"}"#).unwrap(),
            json!({"letters": {"a": 1, "b": 1, "à": 1}})
        );
        assert_eq!(count("{}"), Err("params: `text` is missing".to_owned()));
    }
}
