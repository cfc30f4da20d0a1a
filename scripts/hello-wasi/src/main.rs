//! A script without an SDK: a WASI command (preview 1) that greets.
//!
//! Params come as JSON on standard input, the context as JSON in `HEDDLE_CONTEXT`; the output goes as JSON to standard
//! output, standard error is the log, and any exit code but 0 is a failure that may be retried.

use std::io::{Read, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut params = String::new();
    std::io::stdin().read_to_string(&mut params)?;
    let context = std::env::var("HEDDLE_CONTEXT").unwrap_or_else(|_| "{}".to_owned());
    let output = greet(&params, &context)?;
    eprintln!("greeted");
    std::io::stdout().write_all(output.to_string().as_bytes())?;
    Ok(())
}

fn greet(params: &str, context: &str) -> Result<Value, serde_json::Error> {
    let params: Value = if params.trim().is_empty() {
        json!({})
    } else {
        serde_json::from_str(params)?
    };
    let context: Value = serde_json::from_str(context)?;
    let name = params["name"].as_str().unwrap_or("world");
    Ok(json!({"greeting": format!("Hello, {name}!"), "group": context["group"], "attempt": context["attempt"]}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_is_greeted() {
        let output = greet(r#"{"name": "Ada"}"#, r#"{"group": "g", "attempt": 2}"#).unwrap();
        assert_eq!(output, json!({"greeting": "Hello, Ada!", "group": "g", "attempt": 2}));
        assert_eq!(greet("", "{}").unwrap()["greeting"], "Hello, world!");
    }

    #[test]
    fn params_that_are_no_json_fail() {
        assert!(greet("{", "{}").is_err());
    }
}
