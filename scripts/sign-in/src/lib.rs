//! Takes a secret to sign in somewhere with, and is careless about it: Heddle keeps it out of log and errors all the same.

use heddle::{Failure, Value, json};

/// What to sign in with.
#[heddle::data]
pub struct Params {
    /// The secret's name; the task has to be granted it.
    secret: String,
    /// Whether it fails, for good, with the secret in its words.
    #[serde(default)]
    refused: bool,
}

/// Logs a secret where it should not; answers with its length.
#[heddle::task]
fn run(params: Params) -> Result<Value, Failure> {
    let secret = heddle::secret(&params.secret)?;
    heddle::progress(0.5, &format!("signing in with {secret}"));
    heddle::info!("signing in with {secret}"; password = secret.clone());
    if params.refused {
        return Err(Failure::fatal(format!("the password {secret} is refused")));
    }
    Ok(json!({"length": secret.len()}))
}

#[cfg(test)]
mod tests {
    use heddle::script::Task;
    use heddle::testing::Host;

    use super::*;

    #[test]
    fn a_secret_that_is_granted_is_read() {
        let _host = Host::new().secret("door", "open sesame");
        assert_eq!(HeddleTask::run(r#"{"secret": "door"}"#).unwrap(), r#"{"length":11}"#);
        assert!(
            HeddleTask::run(r#"{"secret": "door", "refused": true}"#)
                .unwrap_err()
                .is_fatal()
        );
        assert!(HeddleTask::run(r#"{"secret": "gate"}"#).is_err());
    }
}
