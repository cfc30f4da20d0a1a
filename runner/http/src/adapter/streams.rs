//! Logs, and what happens to a run, as pages and as streams that work on every node: they look at the tables, woken by
//! the engine where the run moves on this node, by the clock otherwise.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use heddle_domain::id::RunId;
use heddle_domain::plan::TaskIndex;
use heddle_domain::run::TaskKey;
use heddle_domain::{Clock, Fault};
use heddle_engine::Engine;
use heddle_store::live::LogRow;
use heddle_store::log::{LogFilter, LogsSeen};
use serde_json::{Value, json};

use super::{not_found, views};
use crate::engine_api::{LogQuery, Refusal};
use crate::shapes::{List, LogLine, Run, RunEvent};

/// How often a stream looks by itself.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How many lines a stream reads at once.
const PAGE: i64 = 500;

const LEVELS: [&str; 5] = ["trace", "debug", "info", "warn", "error"];

/// A log position as text: micros, task, item, attempt, line.
fn cursor_of(row: &LogRow) -> String {
    let key = row.at.key;
    format!(
        "{}-{}-{}-{}-{}",
        row.time.timestamp_micros(),
        key.task,
        key.item_number(),
        row.at.attempt,
        row.line
    )
}

fn parse_cursor(text: &str) -> Result<heddle_store::log::LogPosition, Refusal> {
    let wrong = || Refusal::Invalid(Fault::at("/cursor", "a cursor is what an earlier answer gave").into());
    // The item may be -1: its sign is not a separator.
    let text = text.replace("--1-", "-_-");
    let parts: Vec<&str> = text.split('-').collect();
    let [at, task, item, attempt, line] = parts.as_slice() else {
        return Err(wrong());
    };
    let item = if *item == "_" {
        -1
    } else {
        item.parse().map_err(|_| wrong())?
    };
    Ok(heddle_store::log::LogPosition {
        at_micros: at.parse().map_err(|_| wrong())?,
        task: task.parse().map_err(|_| wrong())?,
        item,
        attempt: attempt.parse().map_err(|_| wrong())?,
        line: line.parse().map_err(|_| wrong())?,
    })
}

/// What is needed to read a run's log.
struct LogReader {
    engine: Engine,
    run: RunId,
    names: Vec<String>,
    filter: LogFilter,
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
        let names = revision.plan.tasks.iter().map(|task| task.name.to_string()).collect();
        let filter = LogFilter {
            task: task.map(|task: TaskIndex| task as i16),
            item: query.item.map(|item| item as i32),
            attempt: query.attempt.map(|attempt| attempt as i32),
            after: query.cursor.as_deref().map(parse_cursor).transpose()?,
        };
        Ok(Self {
            engine,
            run,
            names,
            filter,
        })
    }

    async fn page(&self, limit: i64) -> Result<Vec<LogLine>, Refusal> {
        let rows = self.engine.store().logs(self.run, &self.filter, limit).await?;
        Ok(rows.into_iter().map(|row| self.line(row)).collect())
    }

    /// Lines that were not there before, whenever they were said.
    async fn news(&self, seen: &mut LogsSeen) -> Result<Vec<LogLine>, Refusal> {
        let store = self.engine.store();
        let rows = store.logs_unseen(self.run, &self.filter, seen, PAGE).await?;
        for row in &rows {
            let next = seen.entry(row.at).or_default();
            *next = (*next).max(row.line + 1);
        }
        Ok(rows.into_iter().map(|row| self.line(row)).collect())
    }

    fn line(&self, row: LogRow) -> LogLine {
        let key: TaskKey = row.at.key;
        LogLine {
            cursor: cursor_of(&row),
            at: row.time.into(),
            task: self.names.get(key.task as usize).cloned().unwrap_or_default(),
            item: key.item,
            attempt: row.at.attempt,
            level: LEVELS.get(row.level as usize).copied().unwrap_or("info").to_owned(),
            message: row.message,
            fields: row.fields.and_then(|fields| serde_json::from_str(&fields).ok()),
        }
    }
}

pub(super) async fn logs(engine: &Engine, run: RunId, query: LogQuery) -> Result<List<LogLine>, Refusal> {
    let limit = query.limit;
    let reader = LogReader::new(engine.clone(), run, &query).await?;
    let mut items = reader.page(limit + 1).await?;
    let more = items.len() as i64 > limit;
    items.truncate(limit.max(0) as usize);
    let next_cursor = if more {
        items.last().map(|line| line.cursor.clone())
    } else {
        None
    };
    Ok(List { items, next_cursor })
}

pub(super) async fn follow_logs(
    engine: Engine,
    run: RunId,
    query: LogQuery,
) -> Result<BoxStream<'static, LogLine>, Refusal> {
    let reader = LogReader::new(engine.clone(), run, &query).await?;
    let watch = engine.watch(run);
    let seen = match reader.filter.after {
        Some(after) => engine.store().logs_seen(run, after).await?,
        None => LogsSeen::new(),
    };
    // Whether the run had ended before the last look: then that look has seen all there is.
    let state = (reader, watch, seen, VecDeque::<LogLine>::new(), false);
    let stream = stream::unfold(state, |(reader, watch, mut seen, mut waiting, mut ended)| async move {
        loop {
            if let Some(line) = waiting.pop_front() {
                return Some((line, (reader, watch, seen, waiting, ended)));
            }
            if ended {
                return None;
            }
            let over = reader.engine.store().run_ended(reader.run).await.unwrap_or(Some(false)) != Some(false);
            match reader.news(&mut seen).await {
                Ok(lines) if lines.is_empty() && over => ended = true,
                Ok(lines) if lines.is_empty() => watch.moved(LOOK_EVERY).await,
                Ok(lines) => waiting.extend(lines),
                Err(_) => watch.moved(LOOK_EVERY).await,
            }
        }
    });
    Ok(stream.boxed())
}

/// State, attempt, progress.
type SeenTask = (String, u32, Option<String>);

/// Differences between two looks at a run, as events.
#[derive(Default)]
struct Seen {
    run: Option<String>,
    tasks: BTreeMap<(String, Option<u32>), SeenTask>,
    count: u64,
}

impl Seen {
    fn events(&mut self, run: &Run, at: heddle_domain::Time) -> Vec<RunEvent> {
        let mut events = Vec::new();
        let mut push = |count: &mut u64, kind: String, data: Value| {
            *count += 1;
            events.push(RunEvent {
                cursor: count.to_string(),
                kind,
                at: at.into(),
                data,
            });
        };
        let state = run.state.to_string();
        for task in run.tasks.iter().flatten() {
            let progress = task
                .progress
                .map(|fraction| format!("{fraction}/{}", task.note.as_deref().unwrap_or("")));
            let now = (task.state.to_string(), task.attempt, progress);
            let before = self.tasks.insert((task.task.clone(), task.item), now.clone());
            let same_state = before
                .as_ref()
                .is_some_and(|before| (&before.0, before.1) == (&now.0, now.1));
            if !same_state {
                push(
                    &mut self.count,
                    format!("task.{}", now.0),
                    json!({"run": run.id, "task": task}),
                );
            } else if before.as_ref().is_some_and(|before| before.2 != now.2) {
                push(
                    &mut self.count,
                    "task.progress".into(),
                    json!({"run": run.id, "task": task}),
                );
            }
        }
        if self.run.as_ref() != Some(&state) {
            let mut data = json!({"run": run.id, "group": run.group, "state": run.state});
            if let Some(error) = &run.error {
                data["error"] = json!(error);
            }
            push(&mut self.count, format!("run.{state}"), data);
            self.run = Some(state);
        }
        events
    }
}

pub(super) async fn events(
    engine: Engine,
    run: RunId,
    cursor: Option<String>,
) -> Result<BoxStream<'static, RunEvent>, Refusal> {
    let after: u64 = match cursor {
        Some(cursor) => cursor
            .parse()
            .map_err(|_| Refusal::Invalid(Fault::at("/cursor", "a cursor is the id of an earlier event").into()))?,
        None => 0,
    };
    if engine.store().run_ended(run).await?.is_none() {
        return Err(not_found("run", run));
    }
    let watch = engine.watch(run);
    let state = (engine, watch, Seen::default(), VecDeque::<RunEvent>::new(), false);
    let stream = stream::unfold(
        state,
        move |(engine, watch, mut seen, mut waiting, mut ended)| async move {
            loop {
                if let Some(event) = waiting.pop_front() {
                    return Some((event, (engine, watch, seen, waiting, ended)));
                }
                if ended {
                    return None;
                }
                let looked = match engine.store().run_detail(run).await {
                    Ok(Some(detail)) => views::full(&engine, detail).await.ok(),
                    Ok(None) => {
                        ended = true;
                        continue;
                    }
                    Err(_) => None,
                };
                let Some(looked) = looked else {
                    watch.moved(LOOK_EVERY).await;
                    continue;
                };
                ended = looked.state.is_final();
                waiting.extend(seen.events(&looked, engine.clock().now()));
                if waiting.is_empty() && !ended {
                    watch.moved(LOOK_EVERY).await;
                }
            }
        },
    );
    // Numbers start anew with each connection, so a resumed one shows how the run stands now rather than skipping.
    let _ = after;
    Ok(stream.boxed())
}
