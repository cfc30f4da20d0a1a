//! The calls of an older task scheduler, so that its clients need not change; `docs/compatibility.md` tells what each
//! field becomes. Answers are always 200 with `{code, msg, data}`: `code` is 200, or the status that the same problem
//! has elsewhere in this API, whether a handler or what comes before it says so.

use std::collections::{HashSet, VecDeque};

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use heddle_api::{CompatibilityAnswer, Submission, TimerTaskId, TimerTaskSubmission};
use heddle_domain::Chain;
use heddle_domain::spec::parse_group;
use heddle_engine::put_group::{GroupRefused, PutGroup, put_group};
use heddle_store::group::{GroupDelete, IfMatch};
use heddle_store::timer_task::{TimerTaskRow, TimerTree};
use serde_json::{Value, json};

use crate::access::Access;
use crate::adapter;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, ok};
use crate::table::{Method, Route};
use crate::timer_task::{self, DISABLED, Meant, Origin, TimerTask};

/// What `code` says when all is well.
const CODE_OK: u16 = 200;

/// The result of a call that succeeded, and notes for its caller.
struct Well {
    data: Value,
    /// What the caller should know besides.
    notes: Vec<String>,
}

impl From<Value> for Well {
    fn from(data: Value) -> Self {
        Self {
            data,
            notes: Vec::new(),
        }
    }
}

pub(crate) fn routes() -> Vec<Route> {
    fn call<F, R>(method: Method, path: &'static str, summary: &'static str, handler: F) -> Route
    where
        F: Fn(Request) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<Well, Problem>> + Send + 'static,
    {
        Route::new(method, path, Access::Operate, summary, move |request| {
            let handler = handler.clone();
            async move { wrapped(handler(request).await) }
        })
        .tells(compatibility_problem)
        .answers(200, of::<CompatibilityAnswer>())
    }
    /// A call about one task, which some clients send by GET.
    fn about_one<F, R>(path: &'static str, summary: &'static str, handler: F) -> [Route; 2]
    where
        F: Fn(Request) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<Well, Problem>> + Send + 'static,
    {
        const TASK_ID: &str = "The number of the task, if the body does not give it.";
        [
            call(Method::Post, path, summary, handler.clone())
                .detail("Give `taskId` as JSON, as a form field, as the whole body, or in the query.")
                .number("taskId", 1..=i64::MAX, None, TASK_ID)
                .takes("TimerTaskNumber")
                .takes_as("application/x-www-form-urlencoded", of::<TimerTaskId>())
                .takes_as("multipart/form-data", of::<TimerTaskId>())
                .optional(),
            call(Method::Get, path, summary, handler)
                .detail(
                    "The same call with GET, for existing clients. It needs a token; a session cookie is not \
                    accepted.",
                )
                .number("taskId", 1..=i64::MAX, None, TASK_ID)
                .acts(),
        ]
    }
    let mut routes = vec![
        call(
            Method::Post,
            "/task-scheduler/task/submitTimerTask",
            "Create or change a tree of timer tasks",
            submit,
        )
        .detail(
            "Without `taskId`, it creates a tree. The tree becomes the group `timer-task-<taskId>`, in which a \
            child starts after its parent has succeeded.",
        )
        .takes(of::<TimerTaskSubmission>()),
        Route::new(
            Method::Get,
            "/checkstatus",
            Access::Open,
            "Check that the node answers",
            check_status,
        )
        .answers_as(200, "text/plain", "Text"),
    ];
    routes.extend(about_one(
        "/task-scheduler/task/timerTaskDel",
        "Delete a tree of timer tasks",
        delete,
    ));
    routes.extend(about_one(
        "/task-scheduler/task/disableTask",
        "Disable a timer task",
        |request| set_status(request, false),
    ));
    routes.extend(about_one(
        "/task-scheduler/task/enableTask",
        "Enable a timer task",
        |request| set_status(request, true),
    ));
    routes.extend(about_one(
        "/task-scheduler/task/execTaskImmediately",
        "Start a tree of timer tasks now",
        execute,
    ));
    routes
}

async fn check_status(_request: Request) -> Outcome {
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], "success").into_response())
}

/// The header with what the caller should know besides.
const HINT: header::HeaderName = header::HeaderName::from_static("heddle-hint");

fn wrapped(result: Result<Well, Problem>) -> Outcome {
    match result {
        Ok(Well { data, notes }) => {
            let mut response = ok(&CompatibilityAnswer {
                code: CODE_OK,
                msg: String::new(),
                data,
            })?;
            // Clients compare the body, so a hint is beside it.
            if let Ok(hint) = HeaderValue::from_str(&notes.join("; "))
                && !hint.is_empty()
            {
                response.headers_mut().insert(HINT, hint);
            }
            Ok(response)
        }
        Err(problem) => Ok(compatibility_problem(problem)),
    }
}

/// A problem in the format of these clients, also for errors before a handler: no token, a wrong method, too many at
/// once. What a proxy may act on stays in the headers.
fn compatibility_problem(problem: Problem) -> Response {
    let answer = json!(CompatibilityAnswer {
        code: problem.status.as_u16(),
        msg: problem.detail.clone(),
        data: Value::Null,
    });
    let mut response = problem.into_response();
    *response.status_mut() = StatusCode::OK;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response.map(|_| answer.to_string().into())
}

fn no_task(id: i64) -> Problem {
    Problem::not_found("timer task", &id.to_string())
}

async fn text_of(request: &mut Request) -> Result<String, Problem> {
    let bytes_max = request.app.config.batch_bytes_max;
    let bytes = request.bytes(bytes_max).await?;
    request.count_values(&bytes, crate::json::weight).await?;
    String::from_utf8(bytes.into()).map_err(|_| Problem::malformed("the body is not UTF-8"))
}

/// How many bytes the body of a call about one task may have.
const ONE_BYTES_MAX: usize = 64 * 1024;

/// The number of a task as a caller gave it.
#[derive(Debug, PartialEq)]
struct Given {
    value: Value,
    place: Place,
}

/// Where a caller gave the number of a task.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// In a field of a JSON object.
    Field(&'static str),
    /// In a field of a form.
    Form(&'static str),
    /// It is the whole body.
    Body,
    /// In a parameter of the query.
    Query(&'static str),
}

impl Place {
    /// Only JSON has pointers; another place is named in words.
    fn problem(self, detail: String) -> Problem {
        match self {
            Self::Field(name) => Problem::invalid_at(format!("/{name}"), detail),
            Self::Form(name) => Problem::invalid_at("", format!("the form field `{name}`: {detail}")),
            Self::Body => Problem::invalid_at("", format!("the body: {detail}")),
            Self::Query(name) => Problem::invalid_at("", format!("`{name}` in the query: {detail}")),
        }
    }
}

/// The names that the number of a task may have.
const NAMES: [&str; 2] = ["taskId", "id"];

/// The number under the first of its names that is there.
fn first_given(place: impl Fn(&'static str) -> Place, find: impl Fn(&str) -> Option<Value>) -> Option<Given> {
    let (name, value) = NAMES.into_iter().find_map(|name| Some((name, find(name)?)))?;
    let place = place(name);
    (!value.is_null()).then_some(Given { value, place })
}

/// The number of the task that a call is about: `taskId` as a field of JSON or of a form, the body itself, or in the
/// query.
async fn task_id(request: &mut Request) -> Result<i64, Problem> {
    let bytes = request.bytes(ONE_BYTES_MAX).await?;
    let text = String::from_utf8(bytes.into()).map_err(|_| Problem::malformed("the body is not UTF-8"))?;
    let in_query = || first_given(Place::Query, |name| request.query(name).map(Value::from));
    let missing = || {
        let ways = "a field of a JSON object or of a form, as the whole body, or in the query";
        Problem::invalid_at("", format!("`taskId` is missing; give it as {ways}"))
    };
    let Given { value, place } = given_id(&text)?.or_else(in_query).ok_or_else(missing)?;
    timer_task::whole(&value)
        .map_err(|detail| place.problem(detail))?
        .ok_or_else(missing)
}

/// The `taskId` in a body, whatever its content type: many send JSON as a form.
fn given_id(text: &str) -> Result<Option<Given>, Problem> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let not_json = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(fields)) => return Ok(first_given(Place::Field, |name| fields.get(name).cloned())),
        Ok(Value::Null) => return Ok(None),
        Ok(value) => {
            let place = Place::Body;
            return Ok(Some(Given { value, place }));
        }
        Err(error) => error,
    };
    if text.starts_with("--") {
        return Ok(first_given(Place::Form, |name| {
            of_multipart(text, name).map(Value::from)
        }));
    }
    if text.contains('=') && !text.starts_with(['{', '[', '"']) {
        let fields = crate::request::parse_query(Some(text))?;
        let field = |sought: &str| fields.iter().find(|(name, _)| name == sought);
        return Ok(first_given(Place::Form, |name| {
            field(name).map(|(_, value)| Value::from(value.as_str()))
        }));
    }
    Err(Problem::malformed(format!("the body is not JSON: {not_json}")))
}

/// A field of a multipart form (RFC 7578), as far as a number needs it.
fn of_multipart<'a>(text: &'a str, sought: &str) -> Option<&'a str> {
    let boundary = text.lines().next()?.trim_end();
    text.split(boundary).find_map(|part| {
        let (head, value) = part.split_once("\r\n\r\n").or_else(|| part.split_once("\n\n"))?;
        head.contains(&format!("name=\"{sought}\"")).then(|| value.trim())
    })
}

/// A tree whose group is there.
struct Tree {
    /// The number of its root.
    root: i64,
    rows: Vec<TimerTaskRow>,
    /// Whether its group is enabled.
    enabled: bool,
}

/// The tree of a task.
async fn tree_of(request: &Request, id: i64) -> Result<Tree, Problem> {
    let store = &request.app.store;
    let (root, rows) = store.timer_tree_of(id).await?;
    if rows.is_empty() {
        return Err(no_task(id));
    }
    let group = store.group_by_name(timer_task::group_name(root)?.as_str()).await?;
    let enabled = group.ok_or_else(|| no_task(id))?.enabled;
    Ok(Tree { root, rows, enabled })
}

/// The tree that a submitted one replaces; an empty one if it is new.
async fn replaced(request: &Request, tree: &[TimerTask]) -> Result<Tree, Problem> {
    let Some(id) = tree.first().and_then(|root| root.task_id) else {
        return Ok(Tree {
            root: 0,
            rows: Vec::new(),
            enabled: true,
        });
    };
    let before = tree_of(request, id).await?;
    if before.root != id {
        let root = before.root;
        return Err(Problem::conflict(format!(
            "task {id} is part of the tree of task {root}; submit the whole tree"
        )));
    }
    Ok(before)
}

/// How many numbers one call tries for the root of a new tree.
const NEW_ROOTS_MAX: usize = 1_000;

/// Numbers for the nodes that have none, in their order. The root of a new tree gets one whose group does not exist:
/// anybody may have put a group with such a name, and an export that was applied to a new cluster brings many of them.
async fn new_ids(request: &Request, tree: &[TimerTask]) -> Result<VecDeque<i64>, Problem> {
    let store = &request.app.store;
    let count = tree.iter().filter(|task| task.task_id.is_none()).count();
    let mut ids = VecDeque::from(store.new_timer_task_ids(count).await?);
    if tree.first().is_none_or(|root| root.task_id.is_some()) {
        return Ok(ids);
    }
    for _ in 0..NEW_ROOTS_MAX {
        let root = ids.front().copied().unwrap_or_default();
        let name = timer_task::group_name(root)?;
        if store.group_by_name(name.as_str()).await?.is_none() {
            return Ok(ids);
        }
        ids.pop_front();
        ids.extend(store.new_timer_task_ids(1).await?);
    }
    // Numbers are never given twice, so the next call goes on behind these.
    Err(Problem::unavailable(
        format!("the next {NEW_ROOTS_MAX} numbers belong to groups that exist; try again for a later number"),
        1,
    ))
}

async fn submit(mut request: Request) -> Result<Well, Problem> {
    let text = text_of(&mut request).await?;
    // A deep tree takes a while: not on the threads that answer requests.
    let tree = tokio::task::spawn_blocking(move || timer_task::read_tree(&text))
        .await
        .map_err(|error| Problem::internal(&error))??;
    let enabled = timer_task::said_enabled(&tree)?;
    let mut lost = 0;
    loop {
        let before = replaced(&request, &tree).await?;
        let known: HashSet<i64> = before.rows.iter().map(|row| row.task_id).collect();
        if let Some(id) = tree
            .iter()
            .filter_map(|task| task.task_id)
            .find(|id| !known.contains(id))
        {
            return Err(no_task(id));
        }
        let mut fresh = new_ids(&request, &tree).await?.into_iter();
        let ids: Vec<i64> = tree
            .iter()
            .map(|task| task.task_id.or_else(|| fresh.next()).unwrap_or_default())
            .collect();
        let mut rows: Vec<TimerTaskRow> = tree
            .iter()
            .zip(&ids)
            .map(|(task, id)| TimerTaskRow {
                task_id: *id,
                parent: task.parent.map(|parent| ids[parent]),
                definition: Value::Object(task.fields.clone()),
            })
            .collect();
        timer_task::keep_disabled(&mut rows, &before.rows, before.enabled);
        let change = Change {
            tree: TimerTree {
                root: ids[0],
                rows: &rows,
                before: &before.rows,
                begins_anew: true,
            },
            origin: Origin::Sent(&tree),
            enabled: match before.rows.is_empty() {
                true => Some(enabled.unwrap_or(true)),
                false => enabled,
            },
        };
        if let Some(notes) = save(&request, change).await? {
            let data = timer_task::shown(&rows);
            return Ok(Well { data, notes });
        }
        request.once_more(&mut lost).await?;
    }
}

/// A change of a tree.
struct Change<'a> {
    tree: TimerTree<'a>,
    /// Where its rows come from.
    origin: Origin<'a>,
    /// Whether its group is to be enabled. `None`: that does not change.
    enabled: Option<bool>,
}

/// Makes a tree's group what the tree says; answers what its sender should know. `None`: the tree is not what it was
/// before any more, or is gone, or another group has got the name of a new one, and nothing has changed.
async fn save(request: &Request, change: Change<'_>) -> Result<Option<Vec<String>>, Problem> {
    let Change { tree, origin, enabled } = change;
    let name = timer_task::group_name(tree.root)?;
    let zone = request.app.config.compat_zone;
    let Meant { spec, mut notes } = timer_task::group_spec(tree.rows, origin, zone, request.now)?;
    let spec = parse_group(&spec).map_err(|faults| origin.of_group(tree.rows, faults.into()))?;
    let if_match = match tree.before.is_empty() {
        // A group with its name belongs to somebody else.
        true => IfMatch::Absent,
        // Its group may have been deleted by itself.
        false => IfMatch::Exists,
    };
    let put = PutGroup {
        name: &name,
        spec,
        enabled,
        if_match: Some(if_match),
        tree: Some(tree),
    };
    match put_group(&request.app.store, request.by(), put).await {
        Ok((put, _)) => {
            // The change is committed: if this failed, its sender would repeat it, and a new tree would be there twice.
            match request.app.store.schedules_of(put.row.id).await {
                Ok(schedules) => notes.extend(timer_task::over(&put.row, &schedules, request.now)),
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), group = %name, "a tree of timer tasks was saved, but \
                    its schedules cannot be read; the answer does not tell which timers never fire")
                }
            }
            Ok(Some(notes))
        }
        Err(GroupRefused::Missing(_) | GroupRefused::Stale { .. }) => Ok(None),
        Err(refused) => Err(origin.of_group(tree.rows, refused.into())),
    }
}

async fn delete(mut request: Request) -> Result<Well, Problem> {
    let id = task_id(&mut request).await?;
    let Tree { root, .. } = tree_of(&request, id).await?;
    only_root(id, root, "delete")?;
    let name = timer_task::group_name(root)?;
    match request.app.store.delete_timer_tree(request.by(), root, &name).await? {
        GroupDelete::Missing => return Err(no_task(id)),
        GroupDelete::Deleted { id, .. } => {
            adapter::runs::cancel_group(&request.app.engine, id, request.caller.actor.clone()).await?;
        }
        kept => return Err(super::groups::not_deleted(&name, kept)),
    }
    Ok(json!({"taskId": id}).into())
}

fn only_root(id: i64, root: i64, what: &str) -> Result<(), Problem> {
    if id == root {
        return Ok(());
    }
    Err(Problem::conflict(format!(
        "task {id} is part of the tree of task {root}; name task {root} to {what} the whole tree"
    )))
}

async fn set_status(mut request: Request, enabled: bool) -> Result<Well, Problem> {
    let id = task_id(&mut request).await?;
    let mut lost = 0;
    loop {
        let before = tree_of(&request, id).await?;
        let mut rows = before.rows.clone();
        let row = rows
            .iter_mut()
            .find(|row| row.task_id == id)
            .ok_or_else(|| no_task(id))?;
        row.definition["status"] = json!(if enabled { 1 } else { DISABLED });
        let change = Change {
            tree: TimerTree {
                root: before.root,
                rows: &rows,
                before: &before.rows,
                begins_anew: false,
            },
            origin: Origin::Stored,
            // A branch has its own status; it does not enable or disable the group.
            enabled: (id == before.root).then_some(enabled),
        };
        if let Some(notes) = save(&request, change).await? {
            let data = json!({"taskId": id});
            return Ok(Well { data, notes });
        }
        request.once_more(&mut lost).await?;
    }
}

async fn execute(mut request: Request) -> Result<Well, Problem> {
    let id = task_id(&mut request).await?;
    let Tree { root, .. } = tree_of(&request, id).await?;
    only_root(id, root, "start")?;
    let run = adapter::runs::submit(
        &request.app.engine,
        timer_task::group_name(root)?,
        Submission::default(),
        request.by().actor,
    )
    .await?;
    Ok(json!({"taskId": id, "run": run.id}).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_in_many_ways() {
        let field = Place::Field("taskId");
        let form = Place::Form("taskId");
        for (body, expect) in [
            ("", None),
            ("null", None),
            (r#"{"taskId": 122}"#, Some((json!(122), field))),
            (r#"{"taskId": "122"}"#, Some((json!("122"), field))),
            (r#"{"taskId": 121, "taskId": 122}"#, Some((json!(122), field))),
            (r#"{"id": 122}"#, Some((json!(122), Place::Field("id")))),
            (r#"{"taskId": null}"#, None),
            (r#"{"other": 1}"#, None),
            ("122", Some((json!(122), Place::Body))),
            (" \"122\"\n", Some((json!("122"), Place::Body))),
            ("taskId=122", Some((json!("122"), form))),
            ("a=b&taskId=122", Some((json!("122"), form))),
            (
                "--x1\r\nContent-Disposition: form-data; name=\"taskId\"\r\n\r\n122\r\n--x1--\r\n",
                Some((json!("122"), form)),
            ),
        ] {
            let expect = expect.map(|(value, place)| Given { value, place });
            assert_eq!(given_id(body).unwrap(), expect, "{body}");
        }
        for body in ["{", "x", "{\"taskId\"=1}"] {
            assert_eq!(given_id(body).unwrap_err().status.as_u16(), 400, "{body}");
        }
    }
}
