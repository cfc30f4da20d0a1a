//! Sleeps: for tests of timeouts, cancelling and concurrency.

use std::time::Duration;

use heddle::Failure;

/// How long to sleep.
#[heddle::data]
pub struct Params {
    /// How long, in seconds.
    #[schemars(range(min = 0.0))]
    #[serde(default = "one")]
    seconds: f64,
}

fn one() -> f64 {
    1.0
}

/// How long it slept in the end.
#[heddle::data]
#[derive(Debug, PartialEq)]
pub struct Output {
    /// How long it slept, in seconds.
    slept: f64,
}

/// Sleeps, then says for how long.
#[heddle::task]
fn run(params: Params) -> Result<Output, Failure> {
    let duration = Duration::try_from_secs_f64(params.seconds)
        .map_err(|error| Failure::fatal(format!("seconds = {}: {error}", params.seconds)))?;
    heddle::sleep(duration);
    Ok(Output { slept: params.seconds })
}

#[cfg(test)]
mod tests {
    use heddle::testing::Host;

    use super::*;

    #[test]
    fn it_sleeps_as_long_as_it_says() {
        let host = Host::new();
        assert_eq!(run(Params { seconds: 0.25 }).unwrap(), Output { slept: 0.25 });
        assert_eq!(host.slept(), Duration::from_millis(250));
    }

    #[test]
    fn time_does_not_run_backwards() {
        assert!(run(Params { seconds: -1.0 }).unwrap_err().is_fatal());
    }
}
