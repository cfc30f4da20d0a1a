//! Task runs: attempts, logs, overrides.

use futures::{StreamExt, TryStreamExt};
use heddle_api::{ClearTask, List, LogLine, TaskDetail, TaskOverride};
use heddle_domain::fault::one_of;
use heddle_domain::id::RunId;
use heddle_domain::state::TaskState;
use heddle_engine::Clear;
use serde_json::json;

use super::run_controls::{bounded_reason, checked_reason};
use super::runs::{continued, server_sent};
use crate::access::Access;
use crate::adapter;
use crate::adapter::runs::TaskRef;
use crate::adapter::streams::LogQuery;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, ok};
use crate::table::{Method, Pace, Route};

/// The highest number of an item or of an attempt; the database has integers with a sign.
const NUMBER_MAX: u32 = i32::MAX as u32;

/// What each route is called, takes and answers.
#[expect(clippy::too_many_lines, reason = "a list: an entry for each route")]
pub(crate) fn routes() -> Vec<Route> {
    let item = |route: Route| {
        route.number(
            "item",
            0..=NUMBER_MAX.into(),
            None,
            "The item of a mapped task, counted from 0.",
        )
    };
    let logs = |route: Route| {
        item(route)
            .detail(
                "With `Accept: text/event-stream` or `?follow=true`, the answer is a stream of server-sent events \
                that ends with an event `end`.",
            )
            .number(
                "attempt",
                0..=NUMBER_MAX.into(),
                None,
                "Only this attempt, counted from 1. Default: all attempts.",
            )
            .flag(
                "follow",
                "`true`: keep the connection open and continue with new lines. Default: `false`.",
            )
            .flag(
                "last",
                "`true`: the last `limit` lines instead of the first ones, in the order of their time. The next page \
                has the lines before them. Not allowed with `follow`.",
            )
            .list()
            .answers(200, of::<List<LogLine>>())
            .answers_as(200, "text/event-stream", "Text")
            .pace(Pace::Waits)
    };
    vec![
        item(Route::new(
            Method::Get,
            "/v1/runs/{id}/tasks/{task}",
            Access::View,
            "Get a task run with its attempts",
            get,
        ))
        .answers(200, of::<TaskDetail>()),
        logs(Route::new(
            Method::Get,
            "/v1/runs/{id}/tasks/{task}/logs",
            Access::View,
            "Get the log of a task",
            task_logs,
        )),
        logs(Route::new(
            Method::Get,
            "/v1/runs/{id}/logs",
            Access::View,
            "Get the log of all tasks of a run",
            run_logs,
        ))
        .query("task", "Only lines of this task."),
        item(Route::new(
            Method::Put,
            "/v1/runs/{id}/tasks/{task}/state",
            Access::Operate,
            "Override a task run's state",
            set_state,
        ))
        .detail(
            "Sets the state to `succeeded`, `failed` or `skipped`. A running attempt is cancelled first. \
                Dependent tasks are evaluated again, and a failed run is reopened.",
        )
        .takes(of::<TaskOverride>())
        .answers(200, of::<TaskDetail>())
        .problem(
            409,
            "The state of the task run does not allow it, the run carries a batch of messages, or an ended run of \
                a deleted group would go on.",
        ),
        item(Route::new(
            Method::Post,
            "/v1/runs/{id}/tasks/{task}/retry",
            Access::Operate,
            "Start the next attempt of \
            a task run now",
            retry,
        ))
        .answers(200, of::<TaskDetail>())
        .problem(
            409,
            "The state of the task run does not allow it, the run carries a batch of messages, or it has ended and its \
                group has been deleted.",
        ),
        item(Route::new(
            Method::Post,
            "/v1/runs/{id}/tasks/{task}/clear",
            Access::Operate,
            "Run a task again within an ended run",
            clear,
        ))
        .detail(
            "Runs the task run again, whatever its result was. With `downstream` (default `true`), also all \
                tasks that depend on it, directly or indirectly. The history of attempts is kept, and their numbers \
                continue. The run is reopened.",
        )
        .takes(of::<ClearTask>())
        .optional()
        .answers(200, of::<TaskDetail>())
        .problem(
            409,
            "The run has not ended, it carries a batch of messages, or its group has been deleted.",
        ),
    ]
}

fn task_ref(request: &Request) -> Result<TaskRef, Problem> {
    Ok(TaskRef {
        run: request.id("id", "run")?,
        task: request.name("task", "task")?,
        item: request.query_number("item", 0..=NUMBER_MAX)?,
    })
}

async fn get(request: Request) -> Outcome {
    ok(&adapter::runs::task(&request.app.engine, task_ref(&request)?).await?)
}

async fn task_logs(request: Request) -> Outcome {
    let task = task_ref(&request)?;
    let query = LogQuery {
        task: Some(task.task),
        item: task.item,
        ..log_query(&request)?
    };
    logs(request, query).await
}

async fn run_logs(request: Request) -> Outcome {
    let query = log_query(&request)?;
    logs(request, query).await
}

fn log_query(request: &Request) -> Result<LogQuery, Problem> {
    let task = request
        .query("task")
        .map(|task| heddle_domain::Name::new(task).map_err(|_| Problem::not_found("task", task)))
        .transpose()?;
    Ok(LogQuery {
        task,
        item: request.query_number("item", 0..=NUMBER_MAX)?,
        attempt: request.query_number("attempt", 0..=NUMBER_MAX)?,
        cursor: continued(request),
        last: request.flag("last", false)?,
        limit: request.limit()?,
    })
}

async fn logs(request: Request, query: LogQuery) -> Outcome {
    let run = request.id("id", "run")?;
    if request.wants_events()? {
        if query.last {
            return Err(Problem::invalid_at("/last", "`last` cannot be combined with `follow`"));
        }
        let lines = adapter::streams::follow_logs(request.app.engine.clone(), RunId(run), query).await?;
        return Ok(server_sent(
            request.app.engine.clone(),
            lines.map_ok(|(id, line)| (id, "log".to_owned(), json!(line))).boxed(),
        ));
    }
    ok(&adapter::streams::logs(&request.app.engine, RunId(run), query).await?)
}

async fn set_state(mut request: Request) -> Outcome {
    let task = task_ref(&request)?;
    let body: TaskOverride = request.body().await?;
    if !TaskState::OVERRIDES.contains(&body.state) {
        let states = one_of(&TaskState::OVERRIDES.map(TaskState::as_str));
        return Err(Problem::invalid_at(
            "/state",
            format!("a task run can be overridden to {states}"),
        ));
    }
    if body.output.is_some() && body.state != TaskState::Succeeded {
        return Err(Problem::invalid_at(
            "/output",
            "only the state `succeeded` can have an `output`",
        ));
    }
    let reason = checked_reason(&body.reason)?;
    let actor = request.caller.actor.clone();
    ok(&adapter::runs::set_task_state(&request.app.engine, task, body.state, body.output, reason, actor).await?)
}

async fn clear(mut request: Request) -> Outcome {
    let task = task_ref(&request)?;
    let body: ClearTask = request.body().await?;
    let actor = request.caller.actor.clone();
    let clear = Clear {
        task: task.task,
        item: task.item,
        downstream: body.downstream,
        reason: bounded_reason(&body.reason)?,
    };
    ok(&adapter::runs::clear_task(&request.app.engine, task.run, clear, actor).await?)
}

async fn retry(request: Request) -> Outcome {
    ok(&adapter::runs::retry_task(&request.app.engine, task_ref(&request)?, request.caller.actor.clone()).await?)
}
