//! The name of the offer that a task run makes.

use super::TaskKey;
use crate::id::RunId;

/// How many characters a run's id has.
const RUN_CHARS: usize = 36;

/// The name of the offer of a task run.
pub fn name_of_task_run(run: RunId, key: TaskKey) -> String {
    let item = key.item.map(|item| format!("-{item}")).unwrap_or_default();
    format!("run-{run}-{}{item}", key.task)
}

/// The run of an offer with such a name.
pub fn run_of_name(name: &str) -> Option<RunId> {
    let (run, key) = name.strip_prefix("run-")?.split_at_checked(RUN_CHARS)?;
    let mut numbers = key.strip_prefix('-')?.split('-');
    let run = run.parse().ok().map(RunId)?;
    numbers.all(|number| number.parse::<u32>().is_ok()).then_some(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_of_a_task_run_names_its_run() {
        let run = RunId("01a20486-7b18-70f7-88ee-43089edb2d5a".parse().unwrap());
        for item in [None, Some(12)] {
            let name = name_of_task_run(run, TaskKey { task: 3, item });
            assert_eq!(run_of_name(&name), Some(run), "{name}");
        }
        for other in [
            "survey",
            "run-1",
            "run-",
            &format!("run-{run}"),
            &format!("run-{run}-x"),
            &format!("run-{run}-"),
        ] {
            assert_eq!(run_of_name(other), None, "{other}");
        }
    }
}
