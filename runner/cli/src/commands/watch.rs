//! `heddle run watch`: a run as a live tree on a terminal, as plain lines elsewhere.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use heddle_client::{Run, RunState, ServerEvents, TaskRun, TaskState};
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;
use uuid::Uuid;

use super::group::{MAX_INDENT, task_order};
use super::patience::Patience;
use crate::exit::NO;
use crate::output::{self, Format};
use crate::session::Session;
use crate::terminal::{self, Canvas, coloured, cut, tell};

/// The longest time between two reads: it shows changes without an event, and the clocks of running tasks.
const STEP: Duration = Duration::from_secs(1);
/// The shortest time between two reads, however many events come.
const CALM: Duration = Duration::from_millis(100);

/// Follows a run to its end.
pub(super) async fn run(session: &Session, id: Uuid) -> Result<ExitCode> {
    let mut patience = Patience::default();
    let mut run = patience.read(async || session.client.run(id).await).await?;
    let order = match session.client.group(&run.group).await {
        Ok(group) => task_order(&Value::Object(group.spec)),
        Err(_) => Vec::new(), // the group may be gone; its run is not
    };
    let live = session.output == Format::Table && terminal::is_interactive();
    let mut events = session.client.run_events(id).await.ok();
    let mut canvas = Canvas::default();
    let mut printed = Printed::default();
    let begin = tokio::time::Instant::now();
    if session.output == Format::Table {
        // On stderr: a program that reads stdout wants only the output.
        tell!("{}", session.page(&["runs", &id.to_string()]));
    }
    loop {
        if live {
            let tree = tree(&run, &order, begin.elapsed().as_secs());
            canvas.draw(&tree)?;
            if run.state.is_final() {
                for line in unseen_errors(&run, &tree) {
                    tell!("error: {line}");
                }
            }
        } else if session.output == Format::Table {
            printed.tell(&run)?;
        }
        if run.state.is_final() {
            break;
        }
        wait(&mut events).await;
        let losses = patience.losses();
        run = patience.read(async || session.client.run(id).await).await?;
        if patience.losses() > losses {
            // The line that said so stands beneath the tree, so the next tree begins beneath that line.
            canvas = Canvas::default();
            events = session.client.run_events(id).await.ok();
        }
    }
    if session.output != Format::Table {
        let path = ["v1", "runs", &id.to_string()];
        let run: Value = patience
            .read(async || session.client.get(&path).send::<Value>().await)
            .await?;
        session.output.print_thing(&run)?;
    }
    Ok(code_of(run.state))
}

/// The exit code for a run that has ended.
fn code_of(state: RunState) -> ExitCode {
    if state == RunState::Succeeded {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NO)
    }
}

/// Waits for an event, or until the next read is due.
async fn wait(events: &mut Option<ServerEvents>) {
    let Some(stream) = events else {
        return tokio::time::sleep(STEP).await;
    };
    match tokio::time::timeout(STEP, stream.next()).await {
        Err(_) => {}
        Ok(Ok(Some(_))) => {
            // Discards further events for a moment, so that a thousand tasks do not cause a thousand reads.
            let more = async { while let Ok(Some(_)) = stream.next().await {} };
            let _ = tokio::time::timeout(CALM, more).await;
        }
        // The stream has ended or broken; the run may not have.
        Ok(Ok(None) | Err(_)) => *events = None,
    }
}

/// One line of the tree: a task, with all of its items if it is mapped.
#[derive(Debug)]
struct Line<'a> {
    task: &'a str,
    whole: Option<&'a TaskRun>,
    items: BTreeMap<TaskState, usize>,
}

impl Line<'_> {
    fn state(&self) -> TaskState {
        if let Some(whole) = self.whole {
            return whole.state;
        }
        // There is no task run for the mapped task as a whole, so the most important state of its items is shown.
        [
            TaskState::Running,
            TaskState::Retrying,
            TaskState::Ready,
            TaskState::Pending,
            TaskState::Paused,
            TaskState::Failed,
        ]
        .into_iter()
        .find(|state| self.items.contains_key(state))
        .or_else(|| self.items.keys().next().copied())
        .unwrap_or(TaskState::Pending)
    }
}

fn lines(run: &Run) -> BTreeMap<&str, Line<'_>> {
    let mut lines: BTreeMap<&str, Line<'_>> = BTreeMap::new();
    for task in run.tasks.iter().flatten() {
        let line = lines.entry(&task.task).or_insert(Line {
            task: &task.task,
            whole: None,
            items: BTreeMap::new(),
        });
        match task.item {
            None => line.whole = Some(task),
            Some(_) => *line.items.entry(task.state).or_default() += 1,
        }
    }
    lines
}

/// The tree, cut to the size of the terminal.
fn tree(run: &Run, order: &[(String, usize)], watched_s: u64) -> Vec<String> {
    let (columns, rows) = terminal::size();
    let colours = terminal::has_colours();
    let lines = lines(run);
    let depth: BTreeMap<&str, usize> = order.iter().map(|(task, depth)| (task.as_str(), *depth)).collect();
    let mut sorted: Vec<&Line<'_>> = lines.values().collect();
    sorted.sort_by_key(|line| (depth.get(line.task).copied().unwrap_or(0), line.task));
    // Lines for the title, for what is left out, and for the cursor.
    let room = rows.saturating_sub(4).max(3);
    let left_out = sorted.len().saturating_sub(room);
    if left_out > 0 {
        // Running and failed tasks first: these are what one watches for.
        sorted.sort_by_key(|line| {
            (
                rank(line.state()),
                depth.get(line.task).copied().unwrap_or(0),
                line.task,
            )
        });
        sorted.truncate(room);
        sorted.sort_by_key(|line| (depth.get(line.task).copied().unwrap_or(0), line.task));
    }
    let mut text = vec![title(run, columns, colours, watched_s)];
    for line in sorted {
        let indent = depth.get(line.task).copied().unwrap_or(0).min(MAX_INDENT);
        text.push(draw(line, indent, columns, colours));
    }
    if left_out > 0 {
        text.push(format!("  \u{2026} and {left_out} more"));
    }
    text
}

/// How many errors are shown beneath a tree.
const ERRORS_MAX: usize = 10;

/// The errors of a failed run that its tree does not show, because there was no room. Empty for other runs.
fn unseen_errors(run: &Run, tree: &[String]) -> Vec<String> {
    if run.state != RunState::Failed {
        return Vec::new();
    }
    let failed = run
        .tasks
        .iter()
        .flatten()
        .filter(|task| task.state == TaskState::Failed);
    let errors = failed.filter_map(|task| {
        let message = task.error.as_ref()?.message.as_str();
        let item = task.item.map(|item| format!("[{item}]")).unwrap_or_default();
        let seen = tree.iter().any(|line| line.contains(message));
        // A line is the script's; it must not steer the terminal.
        let message = message.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{fffd}");
        (!seen).then(|| format!("{}{item}: {message}", task.task))
    });
    errors.take(ERRORS_MAX).collect()
}

fn rank(state: TaskState) -> u8 {
    match state {
        TaskState::Running | TaskState::Retrying => 0,
        TaskState::Failed => 1,
        TaskState::Ready | TaskState::Paused => 2,
        TaskState::Pending => 3,
        TaskState::UpstreamFailed | TaskState::Cancelled => 4,
        TaskState::Succeeded | TaskState::Skipped => 5,
    }
}

fn title(run: &Run, columns: usize, colours: bool, watched_s: u64) -> String {
    let colour = match run.state {
        RunState::Succeeded => "32",
        RunState::Failed => "31",
        RunState::Cancelled => "35",
        RunState::Waiting | RunState::Paused => "33",
        RunState::Running => "36",
    };
    let tasks = run.tasks.as_deref().unwrap_or_default();
    let settled = tasks.iter().filter(|task| task.state.is_settled()).count();
    let took = match (run.at_work_since(), run.finished_at) {
        (Some(from), Some(to)) => format!("  {}", span(*to - *from)),
        (Some(_), None) => format!("  watched for {watched_s} s"),
        _ => String::new(),
    };
    let waits = match run.state {
        RunState::Waiting if !run.waiting_for.is_empty() => {
            format!("  for {}", output::plain(&json!(run.waiting_for)))
        }
        _ => String::new(),
    };
    // A line that wraps would make the count of lines wrong: a part of it would stay above the tree.
    let rest = format!("{waits}  {settled}/{}{took}", tasks.len());
    let rest = rest.replace(char::is_control, "\u{fffd}");
    let state = run.state.as_str();
    let after = state.len() + 2 + rest.width().min(columns / 3);
    let before = format!("{} {}", run.group, run.id);
    let before = if before.width() + after < columns {
        before
    } else {
        cut(run.group.as_str(), columns.saturating_sub(after + 1))
    };
    let room = columns.saturating_sub(before.width() + 2 + state.len() + 1);
    format!("{before}  {}{}", coloured(state, colour, colours), cut(&rest, room))
}

fn draw(line: &Line<'_>, indent: usize, columns: usize, colours: bool) -> String {
    let state = line.state();
    let (glyph, colour) = glyph(state);
    let mut rest = format!("{}  {state}", line.task);
    if let Some(task) = line.whole {
        if let (Some(from), Some(to)) = (task.started_at, task.finished_at) {
            rest.push_str(&format!("  {}", span(*to - *from)));
        }
        if task.attempt > 1 {
            rest.push_str(&format!("  attempt {}", task.attempt));
        }
        if let Some(progress) = progress(task) {
            rest.push_str(&format!("  {progress}"));
        }
        if let Some(error) = task.error.as_ref().filter(|_| state != TaskState::Succeeded) {
            rest.push_str(&format!("  {}", error.message.lines().next().unwrap_or_default()));
        }
    }
    if !line.items.is_empty() {
        let settled: usize = line
            .items
            .iter()
            .filter(|(state, _)| state.is_settled())
            .map(|(_, count)| count)
            .sum();
        rest.push_str(&format!("  [{settled}/{}]", line.items.values().sum::<usize>()));
    }
    let rest = rest.replace(char::is_control, "\u{fffd}");
    let indent = "  ".repeat(indent);
    let room = columns.saturating_sub(indent.len() + 3);
    format!("{indent}{} {}", coloured(glyph, colour, colours), cut(&rest, room))
}

fn glyph(state: TaskState) -> (&'static str, &'static str) {
    match state {
        TaskState::Pending => ("\u{b7}", "90"),
        TaskState::Ready => ("\u{25cb}", "90"),
        TaskState::Running => ("\u{25b6}", "36"),
        TaskState::Retrying => ("\u{21bb}", "33"),
        TaskState::Paused => ("=", "33"),
        TaskState::Succeeded => ("\u{2714}", "32"),
        TaskState::Failed => ("\u{2718}", "31"),
        TaskState::Skipped => ("\u{21b7}", "90"),
        TaskState::UpstreamFailed => ("\u{2191}", "31"),
        TaskState::Cancelled => ("\u{25a0}", "35"),
    }
}

/// The progress that a script reports about itself.
fn progress(task: &TaskRun) -> Option<String> {
    let fraction = task.progress?;
    let note = task.note.as_deref().unwrap_or_default();
    Some(
        format!("{:.0} % {note}", fraction.clamp(0.0, 1.0) * 100.0)
            .trim_end()
            .to_owned(),
    )
}

/// How long something took, by two instants of the API.
pub(super) fn took(from: &Value, to: &Value) -> String {
    let at = |value: &Value| chrono::DateTime::parse_from_rfc3339(value.as_str()?).ok();
    match (at(from), at(to)) {
        (Some(from), Some(to)) => span(to - from),
        _ => "-".into(),
    }
}

fn span(took: chrono::TimeDelta) -> String {
    let millis = took.num_milliseconds().max(0);
    match millis {
        ..=999 => format!("{millis} ms"),
        1_000..=59_999 => format!("{:.1} s", millis as f64 / 1000.0),
        60_000..=3_599_999 => format!("{} min {} s", millis / 60_000, millis % 60_000 / 1000),
        _ => format!("{} h {} min", millis / 3_600_000, millis % 3_600_000 / 60_000),
    }
}

/// What has been printed already, if the output cannot be redrawn.
#[derive(Debug, Default)]
struct Printed {
    run: Option<RunState>,
    tasks: BTreeMap<(String, Option<u32>), TaskState>,
}

impl Printed {
    fn tell(&mut self, run: &Run) -> Result<()> {
        for line in self.news(run) {
            output::print(&line)?;
        }
        Ok(())
    }

    fn news(&mut self, run: &Run) -> Vec<String> {
        let mut news = Vec::new();
        if self.run.is_none() {
            news.push(format!("run {} of {}: {}", run.id, run.group, run.state));
        }
        for task in run.tasks.iter().flatten() {
            let before = self.tasks.insert((task.task.clone(), task.item), task.state);
            if before == Some(task.state) || (before.is_none() && task.state == TaskState::Pending) {
                continue;
            }
            let item = task.item.map(|item| format!("[{item}]")).unwrap_or_default();
            let error = match &task.error {
                Some(error) if task.state != TaskState::Succeeded => format!(": {}", error.message),
                _ => String::new(),
            };
            news.push(format!("task {}{item}: {}{error}", task.task, task.state));
        }
        if self.run.is_some_and(|before| before != run.state) || (self.run.is_none() && run.state.is_final()) {
            news.push(format!("run {}: {}", run.id, run.state));
        }
        self.run = Some(run.state);
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(state: &str, tasks: Value) -> Run {
        let mut tasks = tasks;
        for task in tasks.as_array_mut().unwrap() {
            let fields = task.as_object_mut().unwrap();
            fields.entry("attempt").or_insert(json!(1));
        }
        let at = "2026-11-20T08:00:00.000000Z";
        let value = json!({"id": "0199f5a0-0000-7000-8000-000000000000", "group": "g", "revision": 1, "logical_time": at,
                           "data_interval": {"start": at, "end": at}, "trigger": "manual", "state": state, "params": {},
                           "task_params": {}, "priority": 0, "created_at": at, "labels": {}, "waiting_for": [],
                           "tasks": tasks});
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn plain_lines_say_each_thing_once() {
        let mut printed = Printed::default();
        let first = of(
            "running",
            json!([{"task": "a", "state": "running"}, {"task": "b", "state": "pending"}]),
        );
        assert_eq!(printed.news(&first).len(), 2);
        assert!(printed.news(&first).is_empty());
        let error = json!({"kind": "fatal", "message": "no"});
        let last = of(
            "failed",
            json!([{"task": "a", "state": "failed", "error": error}, {"task": "b", "state": "upstream_failed"}]),
        );
        let wanted = [
            "task a: failed: no",
            "task b: upstream_failed",
            "run 0199f5a0-0000-7000-8000-000000000000: failed",
        ];
        assert_eq!(printed.news(&last), wanted);
    }

    #[test]
    fn trees_are_indented_by_dependencies_and_count_items() {
        let run = of(
            "running",
            json!([
                {"task": "b", "state": "running"}, {"task": "a", "state": "succeeded"},
                {"task": "b", "item": 0, "state": "succeeded"}, {"task": "b", "item": 1, "state": "running"},
            ]),
        );
        let tree = tree(&run, &[("a".into(), 0), ("b".into(), 1)], 0);
        assert!(tree[1].contains("\u{2714} a"), "{tree:?}");
        assert!(
            tree[2].starts_with("  \u{25b6} b") && tree[2].contains("[1/2]"),
            "{tree:?}"
        );
    }

    #[test]
    fn errors_without_room_are_shown_whole() {
        let message = format!("{}end", "word ".repeat(400));
        let error = json!({"kind": "failed", "message": message});
        let tasks = json!([{"task": "a", "state": "failed", "error": error},
                           {"task": "b", "state": "failed", "error": {"kind": "failed", "message": "no"}},
                           {"task": "c", "item": 1, "state": "failed", "error": {"kind": "failed", "message": "item"}}]);
        let failed = of("failed", tasks.clone());
        let tree = tree(&failed, &[], 0);
        assert_eq!(
            unseen_errors(&failed, &tree),
            [format!("a: {message}"), "c[1]: item".to_owned()]
        );
        assert!(unseen_errors(&of("running", tasks), &tree).is_empty());
    }

    #[test]
    fn spans_are_short() {
        let of = |millis| span(chrono::TimeDelta::milliseconds(millis));
        assert_eq!(
            [of(7), of(1_500), of(61_000), of(3_660_000)],
            ["7 ms", "1.5 s", "1 min 1 s", "1 h 1 min"]
        );
    }
}
