//! Fails in a chosen way until it has failed often enough: for tests of retrying.

use std::time::Duration;

use heddle::Failure;

/// How to fail, and how often.
#[heddle::data]
pub struct Params {
    /// How many attempts fail before one succeeds.
    #[serde(default = "one")]
    fail_times: u32,
    /// How the attempts before that one fail.
    #[serde(default)]
    kind: Kind,
    /// For `retry_after`: how many milliseconds to ask for.
    #[serde(default = "one_second")]
    retry_after_ms: u64,
}

fn one() -> u32 {
    1
}

fn one_second() -> u64 {
    1000
}

/// A way to fail.
#[heddle::data]
#[derive(Clone, Copy, Default)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// May go better next time.
    #[default]
    Retryable,
    /// May go better after a while.
    RetryAfter,
    /// Will never go better.
    Fatal,
    /// There is nothing to do: the task run is skipped.
    Skip,
    /// The instance ends in a trap.
    Trap,
    /// The instance ends itself, with exit code 1.
    Exit,
}

/// How it succeeded in the end.
#[heddle::data]
#[derive(Debug, PartialEq, Eq)]
pub struct Output {
    /// The attempt that succeeded.
    attempt: u32,
}

/// Fails a number of times, then succeeds.
#[heddle::task]
fn run(params: Params) -> Result<Output, Failure> {
    let attempt = heddle::context().attempt;
    if attempt > params.fail_times {
        heddle::info!("attempt {attempt} succeeds");
        return Ok(Output { attempt });
    }
    let message = format!("attempt {attempt} fails, as asked");
    heddle::warn!("{message}");
    match params.kind {
        Kind::Retryable => Err(Failure::retryable(message)),
        Kind::RetryAfter => Err(Failure::retry_after(
            Duration::from_millis(params.retry_after_ms),
            message,
        )),
        Kind::Fatal => Err(Failure::fatal(message)),
        Kind::Skip => Err(Failure::skip(message)),
        Kind::Trap => panic!("{message}"),
        Kind::Exit => std::process::exit(1),
    }
}

#[cfg(test)]
mod tests {
    use heddle::testing::Host;

    use super::*;

    fn attempt(attempt: u32, kind: Kind) -> Result<Output, Failure> {
        let _host = Host::new().context(|context| context.attempt = attempt);
        run(Params {
            fail_times: 2,
            kind,
            retry_after_ms: 50,
        })
    }

    #[test]
    fn it_succeeds_once_it_has_failed_often_enough() {
        assert_eq!(
            attempt(1, Kind::Retryable),
            Err(Failure::retryable("attempt 1 fails, as asked"))
        );
        assert_eq!(
            attempt(2, Kind::Fatal),
            Err(Failure::fatal("attempt 2 fails, as asked"))
        );
        let later = Failure::retry_after(Duration::from_millis(50), "attempt 2 fails, as asked");
        assert_eq!(attempt(2, Kind::RetryAfter), Err(later));
        assert_eq!(attempt(2, Kind::Skip), Err(Failure::skip("attempt 2 fails, as asked")));
        assert_eq!(attempt(3, Kind::Fatal), Ok(Output { attempt: 3 }));
    }

    #[test]
    #[should_panic(expected = "attempt 1 fails, as asked")]
    fn a_trap_is_a_panic() {
        let _ = attempt(1, Kind::Trap);
    }
}
