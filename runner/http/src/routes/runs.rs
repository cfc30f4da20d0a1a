//! Runs: submitting, finding, watching. What people do to them is in `run_controls`.

use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use heddle_api::{Batch, BatchItem, BatchResults, List, Moment, Run, Submission};
use heddle_domain::id::RunId;
use heddle_domain::schedule::local::{parse_moment as parse_day, parse_zone};
use heddle_domain::spec::{EntriesMax, parse_submission};
use heddle_domain::{Fault, Faults, Name};
use heddle_engine::Engine;
use heddle_store::run::RunFilter;
use serde_json::Value;
use uuid::Uuid;

use super::run_filter;
use crate::access::Access;
use crate::adapter;
use crate::adapter::cursor::Given;
use crate::adapter::params::Wanted;
use crate::adapter::streams::SentEvent;
use crate::describe::of;
use crate::problem::{OfParts, Problem};
use crate::request::{Outcome, Request, answer, answer_bytes, ok};
use crate::table::{Method, Pace, Route};

/// Answers about ended runs are kept if they have at least this many bytes: smaller ones are made as fast as looked up.
const ENDED_BYTES_MIN: usize = 32 * 1_024;

/// What each route is called, takes and answers.
#[expect(clippy::too_many_lines, reason = "a list: an entry for each route")]
pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::Post,
            "/v1/groups/{name}/runs",
            Access::Operate,
            "Submit a run",
            submit,
        )
        .detail(
            "The answer comes after the commit. `key` is unique in the group for as long as the run is kept. \
                `dedupe` refuses runs with the same params.",
        )
        .flag(
            "force",
            "`true`: submit even if the group is disabled. Default: `false`.",
        )
        .takes(of::<Submission>())
        .optional()
        .answers(202, of::<Run>())
        .problem(
            409,
            "A run with this key or these params exists (`existing` is its id), or the group is \
                disabled or internal to a topic.",
        ),
        Route::new(
            Method::Post,
            "/v1/groups/{name}/runs/batch",
            Access::Operate,
            "Submit up to 10,000 runs",
            batch,
        )
        .detail(
            "The answer has one result for each run, in order: `{status: 202, id}`, or another status with a \
                problem and, if the run exists, its id.",
        )
        .flag(
            "force",
            "`true`: submit even if the group is disabled. Default: `false`.",
        )
        .takes(of::<Batch>())
        .answers(202, of::<BatchResults>())
        .problem(409, "The group is internal to a topic."),
        filters(Route::new(
            Method::Get,
            "/v1/runs",
            Access::View,
            "List runs, newest first",
            list,
        ))
        .detail(
            "With no filter except `group`, the list omits runs that ended longer ago than the retention's \
                `hot` period (default 3 days). Any other filter, or `history=true`, includes them. Some filters have \
                no index: `trigger`, `logical_from` and `logical_to`, a script or queue that more than 30 groups use, \
                a label that many runs have. For these, one answer examines a few thousand runs. So a page may have \
                fewer runs than `limit`, or none, although `next_cursor` continues. The list ends when `next_cursor` \
                is null.",
        )
        .flag(
            "history",
            "`true`: include runs that ended longer ago than the retention's `hot` period. Default: \
                `false`.",
        )
        .list()
        .answers(200, of::<List<Run>>()),
        filters(Route::new(
            Method::Get,
            "/v1/runs/latest",
            Access::View,
            "Get the newest run that matches the \
            filters, with its task runs",
            latest,
        ))
        .detail("Without a filter: the newest of all runs.")
        .answers(200, of::<Run>())
        .problem(404, "No run matches."),
        Route::new(
            Method::Get,
            "/v1/runs/{id}",
            Access::View,
            "Get a run with its task runs",
            get,
        )
        .query(
            "wait",
            "Wait until the run has ended, at most for this duration, for example `20s`. At most 1m. \
                Default: answer immediately.",
        )
        .answers(200, of::<Run>())
        .pace(Pace::Waits),
        Route::new(
            Method::Get,
            "/v1/runs/{id}/events",
            Access::View,
            "Follow a run (server-sent events)",
            events,
        )
        .detail(
            "The stream begins with the current state: one event for each task run (`task.running`, ...) and \
                one for the run (`run.running`, ...). It continues with the changes, and ends with an event `end` \
                when the run has ended. Each event has `run` (the run's id), `at` (the time of the change), and the \
                whole task run (`task`), or all fields of the run but its task runs. If Heddle does not record the time of a change (a pause, a retry, progress), `at` is the time when \
                the server saw it. The header `Last-Event-ID` resumes a broken connection: if nothing has changed \
                since that event, the beginning is omitted; otherwise it shows the current state. Changes in between \
                that were undone are not reported.",
        )
        .query(
            "cursor",
            "The id of an event, the same as the header `Last-Event-ID`. If both are given, the \
                header counts.",
        )
        .flag("follow", "Accepted but has no effect: this call always follows.")
        .answers_as(200, "text/event-stream", "Text")
        .pace(Pace::Waits),
    ]
}

fn filters(route: Route) -> Route {
    route
        .query(
            "group",
            "Only runs of these groups. For several, repeat the parameter or use commas.",
        )
        .query(
            "state",
            "Only runs in these states: `waiting`, `running`, `paused`, `succeeded`, `failed`, \
            `cancelled`. For several, repeat the parameter or use commas.",
        )
        .query(
            "trigger",
            "Only runs with these triggers: `manual`, `schedule`, `backfill`, `upstream`, `task`, \
            `rerun`. For several, repeat the parameter or use commas.",
        )
        .query(
            "label",
            "Only runs with this label: `name=value`, or `name` for any value. Several labels must all match.",
        )
        .query("key", "Only runs with this key.")
        .query(
            "param",
            "Only runs that were submitted with this param for all tasks: `name=value`, or `name` for any value. The \
            value is text or JSON; of an object or array, a part is enough. Several params must all match. One answer \
            examines 2,000 runs. So a page may have fewer runs than `limit`, or none, although `next_cursor` \
            continues.",
        )
        .query("queue", "Only runs of groups with a task for one of these queues.")
        .query(
            "script",
            "Only runs of groups with a task for one of these scripts: `name`, or `name@version` for runs that \
            resolved the script to this version.",
        )
        .formatted(
            "backfill",
            "uuid",
            "Only runs that this backfill created, those of dependent groups included: the id of the backfill.",
        )
        .query("id", "Only runs whose id begins with these characters. At least 8.")
        .time("from", "Only runs created at or after this time.")
        .time("to", "Only runs created at or before this time.")
        .time("logical_from", "Only runs with a logical time at or after this time.")
        .time("logical_to", "Only runs with a logical time at or before this time.")
}

/// The hot view: a request for a group's runs, or for all, without other filters, gets running and recently ended ones.
/// A request with filters gets all matching runs, however old.
fn is_hot(request: &Request, filter: &RunFilter, params: &Wanted) -> Result<bool, Problem> {
    let anywhere = RunFilter {
        groups: filter.groups.clone(),
        ..RunFilter::default()
    };
    Ok(*filter == anywhere && params.is_empty() && !request.flag("history", false)?)
}

async fn list(request: Request) -> Outcome {
    let engine = &request.app.engine;
    let mut filter = run_filter::of_query(&request)?;
    let params = run_filter::params_of_query(&request);
    let hot = is_hot(&request, &filter, &params)?;
    let limit = request.limit()?;
    if hot {
        adapter::runs::only_hot(engine, &mut filter).await?;
    }
    ok(&adapter::runs::list(engine, filter, &params, request.cursor(), limit).await?)
}

/// An answer with the run's address.
pub(crate) fn located(status: StatusCode, run: &Run) -> Outcome {
    let mut response = answer(status, run)?;
    if let Ok(value) = HeaderValue::from_str(&format!("/v1/runs/{}", run.id)) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    Ok(response)
}

async fn group_name(request: &Request) -> Result<Name, Problem> {
    let name = request.name("name", "group")?;
    match request.app.store.group_by_name(&name).await? {
        Some(_) => Ok(name),
        None => Err(Problem::not_found("group", &name)),
    }
}

/// A `logical_time` that is a date means midnight in the group's timezone, which is looked up only for one.
async fn date_it(request: &Request, group: &Name, submissions: &mut [Value]) -> Result<(), Problem> {
    let is_date = |text: &str| chrono::NaiveDate::parse_from_str(text, "%Y-%m-%d").is_ok();
    let mut zone = None;
    for submission in submissions {
        let Some(Value::String(text)) = submission.get_mut("logical_time") else {
            continue;
        };
        if !is_date(text) {
            continue;
        }
        let zone = match zone {
            Some(zone) => zone,
            None => {
                let row = request.app.store.group_by_name(group).await?;
                let row = row.ok_or_else(|| Problem::not_found("group", group))?;
                let name = row.spec["timezone"].as_str().unwrap_or("UTC");
                let found = parse_zone(name).map_err(|error| Problem::invalid_at("/logical_time", error))?;
                *zone.insert(found)
            }
        };
        if let Ok(midnight) = parse_day(text, zone) {
            *text = Moment::from(midnight).to_string();
        }
    }
    Ok(())
}

async fn submit(mut request: Request) -> Outcome {
    let name = request.name("name", "group")?;
    let force = request.flag("force", false)?;
    let mut value = request.json().await?;
    if !value.is_object() {
        return Err(Problem::invalid_at("", "an object was expected"));
    }
    date_it(&request, &name, std::slice::from_mut(&mut value)).await?;
    let mut submission = parse_submission(&value)?;
    submission.force |= force;
    let run = adapter::runs::submit(&request.app.engine, name, submission, request.by().actor).await?;
    located(StatusCode::ACCEPTED, &run)
}

/// What became of a submission of a batch.
fn item_of(result: Result<Uuid, Problem>, key: Option<String>) -> BatchItem {
    match result {
        Ok(id) => BatchItem {
            status: StatusCode::ACCEPTED.as_u16(),
            id: Some(id),
            key,
            existing: None,
            problem: None,
        },
        Err(problem) => BatchItem {
            status: problem.status.as_u16(),
            id: None,
            key,
            existing: problem.existing.clone(),
            problem: Some(problem.to_json()),
        },
    }
}

/// A batch is read up to so many submissions: its body may be long.
const RUNS_MAX: EntriesMax = &[("runs", Batch::MAX)];

/// The submissions in the body of a batch.
async fn batch_of(request: &mut Request) -> Result<Vec<Value>, Problem> {
    let bytes_max = request.app.config.batch_bytes_max;
    let mut value = request.json_up_to(bytes_max, RUNS_MAX).await?;
    let Value::Object(body) = &mut value else {
        return Err(Problem::invalid_at("", "an object was expected"));
    };
    if let Some(unknown) = body.keys().find(|key| *key != "runs") {
        let pointer = format!("/{}", heddle_domain::fault::pointer_token(unknown));
        return Err(Problem::invalid_at(
            pointer,
            format!("unknown field `{unknown}`, expected `runs`"),
        ));
    }
    let Some(Value::Array(runs)) = body.remove("runs") else {
        return Err(Problem::invalid_at("/runs", "an array of submissions was expected"));
    };
    Ok(runs)
}

async fn batch(mut request: Request) -> Outcome {
    let name = group_name(&request).await?;
    let force = request.flag("force", false)?;
    let mut runs = batch_of(&mut request).await?;
    date_it(&request, &name, &mut runs).await?;
    // Each submission, or its item in the answer if it is wrong; those that are right, and their keys, in the same order.
    let mut wrong: Vec<Option<BatchItem>> = Vec::with_capacity(runs.len());
    let (mut submissions, mut keys) = (Vec::with_capacity(runs.len()), Vec::with_capacity(runs.len()));
    for run in &runs {
        let parsed = if run.is_object() {
            parse_submission(run)
        } else {
            Err(Faults::from(Fault::at("", "an object was expected")))
        };
        match parsed {
            Ok(mut submission) => {
                keys.push(submission.key.clone());
                submission.force |= force;
                submissions.push(submission);
                wrong.push(None);
            }
            Err(faults) => {
                let key = run.get("key").and_then(Value::as_str).map(str::to_owned);
                wrong.push(Some(item_of(Err(Problem::invalid(faults)), key)));
            }
        }
    }
    drop(runs);
    let results = match submissions.is_empty() {
        true => Vec::new(),
        false => adapter::runs::submit_batch(&request.app.engine, name, submissions, request.by().actor).await?,
    };
    let mut results = results.into_iter().zip(keys);
    let mut problems = OfParts::default();
    let items = wrong.into_iter().map(|item| {
        item.unwrap_or_else(|| match results.next() {
            Some((result, key)) => item_of(result.map_err(|refusal| problems.problem(refusal)), key),
            None => {
                let lost = "internal error: no result for this run; submit it again";
                item_of(Err(Problem::unavailable(lost, 1)), None)
            }
        })
    });
    let items: Vec<BatchItem> = items.collect();
    let accepted = items.iter().filter(|item| item.id.is_some()).count();
    answer(StatusCode::ACCEPTED, &BatchResults { accepted, items })
}

async fn latest(request: Request) -> Outcome {
    let filter = run_filter::of_query(&request)?;
    let params = run_filter::params_of_query(&request);
    let mut cursor: Option<String> = None;
    loop {
        let found = adapter::runs::list(&request.app.engine, filter.clone(), &params, cursor.as_deref(), 1).await?;
        if let Some(run) = found.items.first() {
            return ok(&adapter::runs::get(&request.app.engine, RunId(run.id), std::time::Duration::ZERO).await?);
        }
        // A page that has none may be followed by one that has.
        cursor = match found.next_cursor {
            Some(next) => Some(next),
            None => return Err(no_latest(&request).await?),
        };
    }
}

/// Why no run is the latest one: a group that does not exist is distinguished from one without runs.
async fn no_latest(request: &Request) -> Result<Problem, Problem> {
    for group in request.query_all("group") {
        let known = match Name::new(group) {
            Ok(name) => request.app.store.group_by_name(&name).await?.is_some(),
            Err(_) => false,
        };
        if !known {
            return Ok(Problem::not_found("group", group));
        }
    }
    let of_groups = !request.query.is_empty() && request.query.iter().all(|(name, _)| name == "group");
    let detail = match request.query_all("group").as_slice() {
        [] if request.query.is_empty() => "there is no run yet".to_owned(),
        [group] if of_groups => format!("the group `{group}` has no run"),
        _ => "no run matches these filters".to_owned(),
    };
    Ok(Problem::new(StatusCode::NOT_FOUND, detail))
}

async fn get(request: Request) -> Outcome {
    let run = RunId(request.id("id", "run")?);
    let wait = request.wait()?;
    let ended = &request.app.ended;
    if ended.knows(run)
        && let Some(mark) = request.app.store.ended_mark(run).await?
        && let Some(body) = ended.find(run, &mark)
    {
        return Ok(answer_bytes(StatusCode::OK, (*body).clone()));
    }
    let (found, mark) = adapter::runs::get_marked(&request.app.engine, run, wait).await?;
    let body = Bytes::from(serde_json::to_vec(&found).map_err(|error| Problem::internal(&error))?);
    if let Some(mark) = mark
        && body.len() >= ENDED_BYTES_MIN
    {
        ended.keep(run, mark, body.len(), Arc::new(body.clone()));
    }
    Ok(answer_bytes(StatusCode::OK, body))
}

/// Where a reader of server-sent events continues.
pub(crate) fn continued(request: &Request) -> Option<Given> {
    let last = request.headers.get("last-event-id");
    Given::of(last.and_then(|value| value.to_str().ok()), request.cursor())
}

async fn events(request: Request) -> Outcome {
    let id = request.id("id", "run")?;
    let (engine, memory) = (request.app.engine.clone(), request.stream_memory());
    let stream = adapter::streams::events(engine.clone(), RunId(id), continued(&request), memory).await?;
    Ok(server_sent(engine, stream))
}

/// Server-sent events, ended by an event `end`. A node that stops ends the answer without it: the
/// reader continues at another node, with its last id. An error breaks the answer off.
pub(crate) fn server_sent(engine: Engine, stream: BoxStream<'static, std::io::Result<SentEvent>>) -> Response {
    let end = async move {
        (!engine.is_leaving()).then(|| Ok::<_, std::io::Error>(Event::default().event("end").data("{}")))
    };
    let events = stream
        .map_ok(|(id, kind, data)| Event::default().id(one_line(&id)).event(one_line(&kind)).data(data))
        .chain(futures::stream::once(end).filter_map(std::future::ready));
    let mut response = Sse::new(events).keep_alive(KeepAlive::default()).into_response();
    // Proxies that buffer answers would hold events back.
    response
        .headers_mut()
        .insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The library refuses line breaks and NUL in these fields by panicking.
fn one_line(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).collect()
}
