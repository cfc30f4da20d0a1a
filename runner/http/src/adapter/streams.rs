//! Logs, and the changes of a run, as pages and as streams that work on every node: they read the tables, woken by the
//! engine when the run changes on this node, and otherwise by the clock.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use heddle_api::{List, LogLine, Moment, Run, RunEvent, TaskRun};
use heddle_domain::id::RunId;
use heddle_domain::plan::TaskIndex;
use heddle_domain::run::TaskKey;
use heddle_domain::state::{RunState, TaskState};
use heddle_domain::{Clock, Name, Time};
use heddle_engine::{Engine, EngineError};
use heddle_store::live::LogRow;
use heddle_store::log::{LogFilter, LogsSeen};
use serde_json::{Value, json};

use super::Refusal;
use super::cursor::Given;
use super::log_place::{self, Place, Sent, cursor_of};
use super::{not_found, runs, views};
use crate::fair_bytes::HeldBytes;
use crate::sent::PIECE_BYTES;

/// Which lines of a log are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogQuery {
    /// Of which task; `None`: of all.
    pub(crate) task: Option<Name>,
    pub(crate) item: Option<u32>,
    pub(crate) attempt: Option<u32>,
    /// Behind which line; before which, of the last.
    pub(crate) cursor: Option<Given>,
    /// The last lines instead of the first.
    pub(crate) last: bool,
    /// How many at most.
    pub(crate) limit: i64,
}

/// How often a stream reads without a wake-up.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// How many lines a stream reads at once at most, and the first time.
const PAGE: i64 = 500;
const LINES_FIRST: i64 = 64;

/// How many bytes of lines a stream is to read at once: the next read asks for as many lines as these are, by those read
/// before.
const LINES_BYTES: usize = 1 << 20;

/// An event of a stream as it is sent: its id, its kind, and its data.
pub(crate) type SentEvent = (String, String, String);

/// How many bytes an event has that may be many: the id of a line names attempts, so it can be longer than its data.
fn bytes_of((id, _, data): &SentEvent) -> usize {
    id.len() + data.len()
}

/// The events that a stream has read, and its client has not. Together they may be large, so they count against the memory for
/// answers.
struct Waiting {
    events: VecDeque<io::Result<SentEvent>>,
    memory: HeldBytes,
}

impl Waiting {
    fn of(memory: HeldBytes) -> Self {
        Self {
            events: VecDeque::new(),
            memory,
        }
    }

    /// Adds events to none: the stream reads on when it has no others.
    fn put(&mut self, events: Vec<SentEvent>) {
        let bytes: usize = events.iter().map(bytes_of).sum();
        self.events.extend(events.into_iter().map(Ok));
        if bytes > PIECE_BYTES {
            self.memory.become_anyway(bytes.min(self.memory.each_max()));
        }
    }

    /// Breaks the stream off.
    fn fail(&mut self, error: io::Error) {
        self.events.push_back(Err(error));
    }

    /// The next one, which the client takes.
    fn take(&mut self) -> Option<io::Result<SentEvent>> {
        let next = self.events.pop_front();
        if self.events.is_empty() {
            self.memory.become_anyway(0);
        }
        next
    }
}

/// How many lines are read after these.
fn next_lines(lines: &[SentEvent]) -> i64 {
    let bytes: usize = lines.iter().map(bytes_of).sum();
    let each = (bytes / lines.len().max(1)).max(1);
    i64::try_from(LINES_BYTES / each).unwrap_or(PAGE).clamp(1, PAGE)
}

/// What a stream does when it cannot read its run.
struct Trouble {
    run: RunId,
    is_logged: bool,
}

impl Trouble {
    fn of(run: RunId) -> Self {
        Self { run, is_logged: false }
    }

    /// After an error that may pass, the stream reads again. After any other, it breaks off with the returned error: without
    /// its event `end`, so that nobody takes it for complete.
    fn meet(&mut self, refusal: &Refusal) -> io::Result<()> {
        let (error, run) = (refusal.causes(), self.run);
        if !refusal.is_passing() {
            tracing::error!(error, %run, "a stream breaks off, because its run cannot be read");
            return Err(io::Error::other("the run cannot be read"));
        }
        if !std::mem::replace(&mut self.is_logged, true) {
            tracing::warn!(error, %run, "a stream cannot read its run; trying again");
        }
        Ok(())
    }
}

/// What is needed to read a run's log.
struct LogReader {
    engine: Engine,
    run: RunId,
    names: Vec<String>,
    filter: LogFilter,
    /// Where its reader continues, if it has read something before.
    place: Option<Place>,
}

impl LogReader {
    async fn new(engine: Engine, run: RunId, query: &LogQuery) -> Result<Self, Refusal> {
        let row = engine.store().run(run).await?.ok_or_else(|| not_found("run", run))?;
        let (revision, _) = views::plan_of(&engine, &row).await?;
        let task = match &query.task {
            Some(name) => Some(
                revision
                    .plan
                    .index(name.as_str())
                    .ok_or_else(|| not_found("task", name))?,
            ),
            None => None,
        };
        let place = match &query.cursor {
            Some(given) => Some(given.read(Place::parse)?),
            None => None,
        };
        let names = revision.plan.tasks.iter().map(|task| task.name.to_string()).collect();
        let filter = LogFilter {
            task: task.map(|task: TaskIndex| task as i16),
            item: query.item.map(|item| item as i32),
            attempt: query.attempt.map(|attempt| attempt as i32),
            after: place.as_ref().map(|place| place.line),
            last: query.last,
        };
        Ok(Self {
            engine,
            run,
            names,
            filter,
            place,
        })
    }

    async fn page(&self, limit: i64) -> Result<Vec<LogLine>, Refusal> {
        let rows = self.engine.store().logs(self.run, &self.filter, limit).await?;
        rows.into_iter().map(|row| self.line(row)).collect()
    }

    /// What a follower has seen already, and was sent.
    async fn seen(&self) -> Result<(LogsSeen, Sent), Refusal> {
        let Some(place) = &self.place else {
            return Ok((LogsSeen::new(), Sent::default()));
        };
        let store = self.engine.store();
        let Some(sent) = &place.sent else {
            let seen = store.logs_seen(self.run, place.line).await?;
            let sent = Sent::of(&seen);
            return Ok((seen, sent));
        };
        let mut seen = match sent.others_until(place.line) {
            Some(until) => store.logs_seen(self.run, until).await?,
            None => LogsSeen::new(),
        };
        seen.extend(sent.named());
        Ok((seen, sent.clone()))
    }

    /// Lines that were not there before, at most `limit`, whenever they were said, with the ids of their events, and whether
    /// the run had ended before they were read: then no others follow.
    async fn news(&self, seen: &mut LogsSeen, sent: &mut Sent, limit: i64) -> Result<(Vec<SentEvent>, bool), Refusal> {
        let store = self.engine.store();
        let over = store.run_ended(self.run).await? != Some(false);
        let rows = store.logs_unseen(self.run, &self.filter, seen, limit).await?;
        let ids = log_place::ids(&rows, seen, sent);
        let event = |(row, id)| -> Result<SentEvent, Refusal> {
            let data = json!(self.line(row)?).to_string();
            Ok((id, "log".to_owned(), data))
        };
        let lines: Result<Vec<_>, Refusal> = rows.into_iter().zip(ids).map(event).collect();
        Ok((lines?, over))
    }

    fn line(&self, row: LogRow) -> Result<LogLine, Refusal> {
        let (key, cursor): (TaskKey, _) = (row.at.key, cursor_of(&row));
        let name = self.names.get(key.task as usize).cloned();
        let unknown = || EngineError::unreadable(format!("log line {cursor} of run {} has an unknown task", self.run));
        Ok(LogLine {
            task: name.ok_or_else(unknown)?,
            cursor,
            at: row.time.into(),
            item: key.item,
            attempt: row.at.attempt,
            level: row.level.as_str().to_owned(),
            message: row.message,
            fields: row.fields.map(fields_of),
        })
    }
}

/// The fields of a line. A mask in place of a number (a secret) leaves no JSON: then they are a text.
pub(super) fn fields_of(text: String) -> Value {
    serde_json::from_str(&text).unwrap_or(Value::String(text))
}

pub(crate) async fn logs(engine: &Engine, run: RunId, query: LogQuery) -> Result<List<LogLine>, Refusal> {
    let limit = query.limit;
    let reader = LogReader::new(engine.clone(), run, &query).await?;
    let mut items = reader.page(limit + 1).await?;
    let more = items.len() as i64 > limit;
    let next = match query.last {
        true => {
            items.drain(..usize::from(more));
            items.first()
        }
        false => {
            items.truncate(limit.max(0) as usize);
            items.last()
        }
    };
    let next_cursor = next.filter(|_| more).map(|line| line.cursor.clone());
    Ok(List { items, next_cursor })
}

/// The lines of a log, also those that follow, with the ids of their events. What waits for the client counts as this `memory`.
pub(crate) async fn follow_logs(
    engine: Engine,
    run: RunId,
    query: LogQuery,
    memory: HeldBytes,
) -> Result<BoxStream<'static, io::Result<SentEvent>>, Refusal> {
    let reader = LogReader::new(engine.clone(), run, &query).await?;
    let watch = engine.watch(run);
    let (seen, sent) = reader.seen().await?;
    let kept = (seen, sent, Trouble::of(run), LINES_FIRST);
    let state = (reader, watch, kept, Waiting::of(memory), false);
    let stream = stream::unfold(state, |(reader, watch, mut kept, mut waiting, mut ended)| async move {
        loop {
            if let Some(line) = waiting.take() {
                return Some((line, (reader, watch, kept, waiting, ended)));
            }
            if ended || reader.engine.is_leaving() {
                return None;
            }
            let (seen, sent, trouble, limit) = &mut kept;
            match reader.news(seen, sent, *limit).await {
                Ok((lines, over)) if lines.is_empty() && over => ended = true,
                Ok((lines, _)) if lines.is_empty() => watch.moved(POLL_EVERY).await,
                Ok((lines, _)) => {
                    *limit = next_lines(&lines);
                    waiting.put(lines);
                }
                Err(refusal) => match trouble.meet(&refusal) {
                    Ok(()) => watch.moved(POLL_EVERY).await,
                    Err(broken) => {
                        waiting.fail(broken);
                        ended = true;
                    }
                },
            }
        }
    });
    Ok(stream.boxed())
}

/// The state, the attempt and the progress that were sent last.
type SeenTask = (String, u32, Option<String>);

/// The differences between two reads of a run, as events.
///
/// There is no log of a run's changes: the tables only have its current state. So a connection begins with that, an
/// event for each task run and one for the run, and continues with what has changed at the next read. A client that
/// resumes while the run is still as it was last shown does not get the beginning again. A client that has missed
/// something gets the current state, which is all that is known. An event's cursor contains both: its number, and a
/// digest of what had been shown by then.
#[derive(Default, Hash)]
struct Seen {
    run: Option<String>,
    tasks: BTreeMap<(String, Option<u32>), SeenTask>,
}

/// The state of a connection: how many events there were, and a digest of what they showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    count: u64,
    digest: u64,
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{:016x}", self.count, self.digest)
    }
}

impl Shown {
    fn parse(text: &str) -> Option<Self> {
        // Older nodes gave numbers alone.
        let (count, digest) = text.split_once('-').unwrap_or((text, "0"));
        Some(Self {
            count: count.parse().ok()?,
            digest: u64::from_str_radix(digest, 16).ok()?,
        })
    }
}

impl Seen {
    /// The same on every node: the hasher has no key of its own.
    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// What is new. The cursor of the last event has the digest of all that was read together; those of the events
    /// before it have none, because the rest has not been shown yet.
    fn events(&mut self, run: &Run, now: Time, count: &mut u64) -> Vec<RunEvent> {
        let mut events = Vec::new();
        let mut push = |kind: String, at: Moment, data: Value| {
            *count += 1;
            let shown = Shown {
                count: *count,
                digest: 0,
            };
            events.push(RunEvent {
                cursor: shown.to_string(),
                kind,
                at,
                data,
            });
        };
        // A change without a recorded time happened before it was read, and before the run ended.
        let seen_at = run.finished_at.unwrap_or(Moment(now));
        for task in run.tasks.iter().flatten() {
            let progress = task
                .progress
                .map(|fraction| format!("{fraction}/{}", task.note.as_deref().unwrap_or("")));
            let is = (task.state.to_string(), task.attempt, progress);
            let was = self.tasks.insert((task.task.clone(), task.item), is.clone());
            let same_state = was.as_ref().is_some_and(|was| (&was.0, was.1) == (&is.0, is.1));
            let data = || json!({"run": run.id, "task": task});
            if !same_state {
                push(format!("task.{}", is.0), moved_at(task, run, seen_at), data());
            } else if was.as_ref().is_some_and(|was| was.2 != is.2) {
                push("task.progress".into(), seen_at, data());
            }
        }
        let state = run.state.to_string();
        if self.run.as_ref() != Some(&state) {
            // Its task runs have events of their own.
            let alone = Run {
                tasks: None,
                ..run.clone()
            };
            let mut data = json!(alone);
            data["run"] = json!(run.id);
            let at = match run.state {
                RunState::Waiting => Some(run.created_at),
                RunState::Running if self.run.as_deref().is_none_or(|was| was == "waiting") => run.started_at,
                RunState::Running | RunState::Paused => None,
                RunState::Succeeded | RunState::Failed | RunState::Cancelled => run.finished_at,
            };
            push(format!("run.{state}"), at.unwrap_or(seen_at), data);
            self.run = Some(state);
        }
        if let Some(last) = events.last_mut() {
            let shown = Shown {
                count: *count,
                digest: self.digest(),
            };
            last.cursor = shown.to_string();
        }
        events
    }
}

/// As it is sent.
fn sent_event(event: RunEvent) -> SentEvent {
    let data = json!(event).to_string();
    (event.cursor, event.kind, data)
}

/// Since when a task run has been in its state, as far as that is known.
fn moved_at(task: &TaskRun, run: &Run, seen_at: Moment) -> Moment {
    let known = match task.state {
        TaskState::Pending => Some(run.created_at),
        // It is the first attempt's.
        TaskState::Running if task.attempt <= 1 => task.started_at,
        state if state.is_settled() => task.finished_at,
        _ => None,
    };
    known.unwrap_or(seen_at)
}

/// The changes of a run. What waits for the client counts as this `memory`.
pub(crate) async fn events(
    engine: Engine,
    run: RunId,
    cursor: Option<Given>,
    memory: HeldBytes,
) -> Result<BoxStream<'static, io::Result<SentEvent>>, Refusal> {
    let resumed = match &cursor {
        Some(given) => Some(given.read(Shown::parse)?),
        None => None,
    };
    let watch = engine.watch(run);
    // Before the answer begins, so that an error is its status.
    let first = Some(runs::get(&engine, run, Duration::ZERO).await?);
    let count = resumed.map_or(0, |shown| shown.count);
    let follower = (Seen::default(), count, resumed, first, Trouble::of(run));
    let state = (engine, watch, follower, Waiting::of(memory), false);
    let stream = stream::unfold(
        state,
        move |(engine, watch, mut follower, mut waiting, mut ended)| async move {
            loop {
                if let Some(event) = waiting.take() {
                    return Some((event, (engine, watch, follower, waiting, ended)));
                }
                if ended || engine.is_leaving() {
                    return None;
                }
                let (seen, count, resumed, first, trouble) = &mut follower;
                let read = match first.take() {
                    Some(first) => Ok(first),
                    None => runs::get(&engine, run, Duration::ZERO).await,
                };
                let detail = match read {
                    Ok(detail) => detail,
                    // It was deleted.
                    Err(Refusal::NotFound { .. }) => {
                        ended = true;
                        continue;
                    }
                    Err(refusal) => {
                        match trouble.meet(&refusal) {
                            Ok(()) => watch.moved(POLL_EVERY).await,
                            Err(broken) => {
                                waiting.fail(broken);
                                ended = true;
                            }
                        }
                        continue;
                    }
                };
                ended = detail.state.is_final();
                let before = *count;
                let events = seen.events(&detail, engine.clock().now(), count);
                // It may be large, and the next change may take long.
                drop(detail);
                // Nothing has changed since the event that is resumed from.
                if resumed.take().is_some_and(|shown| shown.digest == seen.digest()) {
                    *count = before;
                } else if !events.is_empty() {
                    waiting.put(events.into_iter().map(sent_event).collect());
                    continue;
                }
                if !ended {
                    watch.moved(POLL_EVERY).await;
                }
            }
        },
    );
    Ok(stream.boxed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_client_counts_until_it_is_taken() {
        let budget = crate::fair_bytes::FairBytes::new(2 * PIECE_BYTES, PIECE_BYTES);
        let mut waiting = Waiting::of(budget.of("a"));
        let lines = |count: usize, bytes: usize| -> Vec<SentEvent> {
            let line = (String::new(), "log".to_owned(), "x".repeat(bytes));
            vec![line; count]
        };
        waiting.put(lines(3, PIECE_BYTES));
        for _ in 0..2 {
            assert!(waiting.take().is_some());
            assert!(!budget.has_room("a"));
        }
        assert!(waiting.take().is_some());
        assert!(budget.has_room("a") && waiting.take().is_none());
        // Few bytes do not count.
        waiting.put(lines(2, PIECE_BYTES / 2));
        assert!(budget.of("a").try_grow(PIECE_BYTES));
        // Of long lines, few are read together.
        assert_eq!(next_lines(&lines(64, 200)), PAGE);
        assert_eq!(
            (next_lines(&lines(2, 64 << 10)), next_lines(&lines(1, 4 << 20))),
            (16, 1)
        );
        // Their ids count too.
        let named: SentEvent = ("1".repeat(64 << 10), "log".to_owned(), String::new());
        assert_eq!(next_lines(&[named.clone(), named]), 16);
        let budget = crate::fair_bytes::FairBytes::new(2 * PIECE_BYTES, PIECE_BYTES);
        let mut waiting = Waiting::of(budget.of("a"));
        waiting.put(vec![("1".repeat(PIECE_BYTES + 1), "log".to_owned(), String::new())]);
        assert!(!budget.has_room("a"));
    }

    fn check(text: &str, expect: Option<(u64, u64)>) {
        let read = Shown::parse(text).map(|shown| (shown.count, shown.digest));
        assert_eq!(read, expect, "{text}");
    }

    #[test]
    fn cursors_are_read_back() {
        let shown = Shown { count: 7, digest: 0xff };
        assert_eq!(shown.to_string(), "7-00000000000000ff");
        check(&shown.to_string(), Some((7, 0xff)));
        check("7", Some((7, 0)));
        check("7-ffffffffffffffff", Some((7, u64::MAX)));
        for wrong in ["", "-", "x", "7-", "-7", "7-x", "7-1ffffffffffffffff", "7-1-1"] {
            check(wrong, None);
        }
    }

    #[test]
    fn fields_are_shown_also_without_a_number_that_is_masked() {
        assert_eq!(fields_of(r#"{"pin": 1234}"#.into()), json!({"pin": 1234}));
        assert_eq!(fields_of(r#"{"pin": ***}"#.into()), json!(r#"{"pin": ***}"#));
    }

    #[test]
    fn a_digest_is_of_what_was_shown() {
        let seen = |run: &str, state: &str, progress: Option<&str>| Seen {
            run: Some(run.into()),
            tasks: [(
                ("t".to_owned(), None),
                (state.to_owned(), 1, progress.map(str::to_owned)),
            )]
            .into(),
        };
        let one = seen("running", "running", None).digest();
        assert_eq!(one, seen("running", "running", None).digest());
        for other in [
            seen("paused", "running", None),
            seen("running", "ready", None),
            seen("running", "running", Some("0.5/")),
            Seen::default(),
        ] {
            assert_ne!(one, other.digest());
        }
    }
}
