//! {{name}}: a task script for Heddle.

use heddle::Failure;

/// What the task is given.
#[heddle::data]
pub struct Params {
    /// Who is greeted.
    #[serde(default = "world")]
    name: String,
}

fn world() -> String {
    "world".to_owned()
}

/// What the task puts out.
#[heddle::data]
#[derive(Debug, PartialEq)]
pub struct Output {
    /// The greeting.
    greeting: String,
}

/// Greets somebody.
#[heddle::task]
fn run(params: Params) -> Result<Output, Failure> {
    if params.name.is_empty() {
        return Err(Failure::fatal("name is empty"));
    }
    let greeting = format!("Hello, {}!", params.name);
    heddle::info!("{greeting}"; attempt = heddle::context().attempt);
    Ok(Output { greeting })
}

#[cfg(test)]
mod tests {
    use heddle::testing::Host;

    use super::*;

    #[test]
    fn somebody_is_greeted() {
        let host = Host::new();
        let output = run(Params { name: "Ada".into() }).unwrap();
        assert_eq!(
            output,
            Output {
                greeting: "Hello, Ada!".into()
            }
        );
        assert_eq!(host.logs()[0].message, "Hello, Ada!");
    }

    #[test]
    fn nobody_is_not() {
        assert!(run(Params { name: String::new() }).unwrap_err().is_fatal());
    }
}
