//! Misbehaves in a chosen way: for tests of the sandbox's walls.

use std::hint::black_box;
use std::time::Duration;

use heddle::{Failure, state};

/// How to misbehave, and how much.
#[heddle::data]
pub struct Params {
    /// In which way it misbehaves.
    mode: Mode,
    /// How much, for the modes that have an end: lines, calls, keys, or bytes of output.
    #[serde(default = "many")]
    count: u64,
}

fn many() -> u64 {
    100_000
}

/// A way to misbehave.
#[heddle::data]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Loops without an end or a host call.
    Spin,
    /// Takes memory until there is none.
    Memory,
    /// Calls itself until the stack is full.
    Recursion,
    /// Puts out `count` bytes.
    Output,
    /// Logs `count` lines as fast as it can.
    LogFlood,
    /// Logs one line of `count` bytes.
    LogLine,
    /// Executes the instruction `unreachable`, which is a trap.
    Trap,
    /// Panics, as a mistake in Rust code does.
    Panic,
    /// Ends itself, with exit code 3.
    Exit,
    /// Makes `count` host calls as fast as it can.
    HostFlood,
    /// Reports `count` times how far it has come.
    ProgressFlood,
    /// Sets `count` keys of the group's state.
    StateFlood,
    /// Asks for `count` runs of a group that does not exist.
    EnqueueFlood,
    /// Writes `count` lines to standard error.
    StderrFlood,
    /// Sleeps for a day.
    Sleep,
    /// Fails with a message of `count` bytes.
    Failure,
}

/// Misbehaves; what comes back after all is how much was done.
#[heddle::task]
fn run(params: Params) -> Result<heddle::Value, Failure> {
    let count = params.count;
    match params.mode {
        Mode::Spin => loop {
            black_box(count);
        },
        Mode::Memory => take_memory(),
        Mode::Recursion => return Ok(descend(1).into()),
        Mode::Output => return Ok(bytes(count).into()),
        Mode::LogFlood => (0..count).for_each(|line| heddle::info!("line {line} of a flood")),
        Mode::LogLine => heddle::info!("{}", bytes(count)),
        Mode::Trap => trap(),
        Mode::Panic => panic!("panicked, as asked"),
        Mode::Exit => std::process::exit(3),
        Mode::HostFlood => (0..count).for_each(|_| drop(black_box(heddle::context()))),
        Mode::ProgressFlood => (0..count).for_each(|step| heddle::progress(step as f64 / count as f64, "flooding")),
        Mode::StateFlood => (0..count).try_for_each(|key| state::set(&format!("flood-{key}"), &bytes(1024)))?,
        Mode::EnqueueFlood => {
            (0..count).try_for_each(|_| heddle::enqueue("no-such-group", &heddle::json!({}), None))?;
        }
        Mode::StderrFlood => (0..count).for_each(|line| eprintln!("line {line} of a flood")),
        Mode::Sleep => heddle::sleep(Duration::from_secs(24 * 60 * 60)),
        Mode::Failure => return Err(Failure::retryable(bytes(count))),
    }
    Ok(count.into())
}

fn bytes(count: u64) -> String {
    "x".repeat(usize::try_from(count).unwrap_or(usize::MAX))
}

fn take_memory() {
    let mut taken: Vec<Vec<u8>> = Vec::new();
    loop {
        // Touched, so that it is memory and not a promise of it.
        taken.push(black_box(vec![1; 1 << 20]));
    }
}

fn descend(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    // Not a tail call: the frame is needed afterwards. The end is never reached.
    if depth == u64::MAX {
        0
    } else {
        descend(depth + 1).wrapping_add(frame[0])
    }
}

#[cfg(target_arch = "wasm32")]
fn trap() {
    std::arch::wasm32::unreachable()
}

#[cfg(not(target_arch = "wasm32"))]
fn trap() {
    panic!("a trap")
}

#[cfg(test)]
mod tests {
    use heddle::script::Task;
    use heddle::testing::Host;

    use super::*;

    fn run_bounded(mode: Mode, count: u64) -> Result<heddle::Value, Failure> {
        run(Params { mode, count })
    }

    #[test]
    fn floods_have_the_size_that_was_asked_for() {
        let host = Host::new();
        assert_eq!(run_bounded(Mode::Output, 3).unwrap(), "xxx");
        run_bounded(Mode::LogFlood, 20).unwrap();
        assert_eq!(host.logs().len(), 20);
        run_bounded(Mode::StateFlood, 2).unwrap();
        assert_eq!(host.state("flood-1").unwrap().as_str().unwrap().len(), 1024);
        run_bounded(Mode::EnqueueFlood, 2).unwrap();
        assert_eq!(host.enqueued().len(), 2);
        assert_eq!(run_bounded(Mode::Failure, 2), Err(Failure::retryable("xx")));
    }

    #[test]
    fn modes_have_their_names() {
        let _host = Host::new();
        assert_eq!(HeddleTask::run(r#"{"mode": "host_flood", "count": 2}"#).unwrap(), "2");
        assert!(HeddleTask::run(r#"{"mode": "benign"}"#).unwrap_err().is_fatal());
    }
}
