//! The smallest script that does something: greets, and logs a line.

use heddle::Failure;

/// Whom to greet.
#[heddle::data]
pub struct Params {
    /// Who is greeted.
    #[serde(default = "world")]
    name: String,
}

fn world() -> String {
    "world".to_owned()
}

/// What it says to the person.
#[heddle::data]
#[derive(Debug, PartialEq, Eq)]
pub struct Output {
    /// The greeting, with the name in it.
    greeting: String,
}

/// Greets somebody and logs it.
#[heddle::task]
fn run(params: Params) -> Result<Output, Failure> {
    let greeting = format!("Hello, {}!", params.name);
    heddle::info!("{greeting}"; name = params.name);
    Ok(Output { greeting })
}

#[cfg(test)]
mod tests {
    use heddle::json;
    use heddle::script::Task;
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
        assert_eq!(host.logs()[0].fields["name"], "Ada");
    }

    #[test]
    fn without_a_name_it_is_the_world() {
        assert_eq!(HeddleTask::run("{}").unwrap(), r#"{"greeting":"Hello, world!"}"#);
        assert_eq!(HeddleTask::describe().to_json()["defaults"], json!({"name": "world"}));
    }
}
