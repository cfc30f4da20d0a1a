//! Executors: how the work of a task is done, each with its own part of the task's spec.
//!
//! A new executor begins here: its variant, the field of [`TaskSpec`] that names it, its bounds, its templates. An attempt of
//! it is prepared in the engine (`runner/engine/src/attempts/prepare.rs`).

use std::time::Duration;

use serde_json::Value;

use crate::dispatch;
use crate::fault::{one_of, pointer_token};
use crate::spec::validate::task::{Checker, LIST_MAX, check_url, no_active_version, script_reference};
use crate::spec::validate::{Catalog, ScriptLookup};
use crate::spec::{AudienceSpec, ByteSize, HttpSpec, QuerySpec, TaskSpec};
use crate::template::is_template;
use crate::{Faults, Name};

/// The timeout of scripts, HTTP calls and SQL statements whose task names none.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(3600);

/// The longest statement of a `query`, in bytes, and the most params that it has.
const QUERY_SQL_MAX_BYTES: usize = 256 << 10;
const QUERY_PARAMS_MAX: usize = 1_000;
/// Headers that are about the connection (RFC 9110, 7.6.1) or about how the body is sent on it: the client sets them. One
/// that a spec sets could contradict the body, and the server would wait for the rest of it, or misread it.
const CONNECTION_HEADERS: [&str; 8] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

/// Does the work of a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Executor {
    /// A wasm script on a node: `name` or `name@version`.
    Script(String),
    /// A worker that claims from this queue.
    Queue(Name),
    /// An HTTP request made by a node.
    Http(HttpSpec),
    /// Users who poll for offers.
    Audience(AudienceSpec),
    /// A run of this other group.
    Group(Name),
    /// A SQL statement that a node has carried out.
    Query(QuerySpec),
}

/// A field of a task's spec, and the executor that it names if it is there.
type Field = (&'static str, fn(&TaskSpec) -> Option<Executor>);

/// The fields that name executors: a task has exactly one of them.
const FIELDS: [Field; 6] = [
    ("script", |task| task.script.clone().map(Executor::Script)),
    ("queue", |task| task.queue.clone().map(Executor::Queue)),
    ("http", |task| task.http.clone().map(Executor::Http)),
    ("audience", |task| task.audience.clone().map(Executor::Audience)),
    ("group", |task| task.group.clone().map(Executor::Group)),
    ("query", |task| task.query.clone().map(Executor::Query)),
];

/// What a task's executor is checked against.
pub(crate) struct Surroundings<'a> {
    /// The group that the task is of, and its category.
    pub(crate) group: &'a Name,
    pub(crate) category: Option<&'a Name>,
    /// The objects that exist now, which a spec may name.
    pub(crate) catalog: &'a dyn Catalog,
    /// Templates, and the tasks that they may name.
    pub(crate) templates: &'a Checker<'a>,
}

impl Executor {
    /// All executors that a task names; a valid task names one.
    pub(crate) fn all_of(task: &TaskSpec) -> impl Iterator<Item = Self> {
        FIELDS.iter().filter_map(|(_, read)| read(task))
    }

    /// The one executor of a task; an error if it has none or several.
    pub fn of(task: &TaskSpec) -> Result<Self, String> {
        let mut named = Self::all_of(task);
        match (named.next(), named.next()) {
            (Some(executor), None) => Ok(executor),
            _ => {
                let words = one_of(&FIELDS.map(|(word, _)| word));
                Err(format!("a task must have exactly one executor: {words}"))
            }
        }
    }

    /// The field that names it in a task's spec.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Script(_) => "script",
            Self::Queue(_) => "queue",
            Self::Http(_) => "http",
            Self::Audience(_) => "audience",
            Self::Group(_) => "group",
            Self::Query(_) => "query",
        }
    }

    /// How long an attempt may take if its task does not say; `None`: there is no limit.
    pub fn timeout_default(&self) -> Option<Duration> {
        match self {
            Self::Script(_) | Self::Http(_) | Self::Query(_) => Some(TIMEOUT_DEFAULT),
            Self::Queue(_) | Self::Audience(_) | Self::Group(_) => None,
        }
    }

    /// Calls `text` with each of its strings that may be a template, and `value` with each value that may hold some.
    pub fn templates<'a>(&'a self, text: &mut dyn FnMut(&'a str), value: &mut dyn FnMut(&'a Value)) {
        match self {
            Self::Audience(audience) => text(&audience.audience),
            Self::Http(http) => {
                text(&http.url);
                http.headers.values().for_each(|header| text(header));
                http.body.iter().for_each(value);
            }
            Self::Query(query) => query.params.iter().for_each(value),
            Self::Script(_) | Self::Queue(_) | Self::Group(_) => {}
        }
    }

    /// Checks it; `task_pointer` is the JSON pointer of its task.
    pub(crate) fn check(&self, task_pointer: &str, around: &Surroundings<'_>, faults: &mut Faults) {
        let pointer = format!("{task_pointer}/{}", self.as_str());
        match self {
            Self::Script(reference) => check_script(reference, &pointer, around.catalog, faults),
            Self::Http(http) => check_http(http, &pointer, around.templates, faults),
            Self::Audience(audience) => check_audience(audience, &pointer, around, faults),
            Self::Query(query) => check_query(query, &pointer, around, faults),
            // Groups that run one another are checked together, and a queue is there as soon as a task names it.
            Self::Queue(_) | Self::Group(_) => {}
        }
    }
}

fn check_script(reference: &str, pointer: &str, catalog: &dyn Catalog, faults: &mut Faults) {
    let detail = match script_reference(reference) {
        Err(detail) => detail,
        Ok((name, version)) => match catalog.script(&name, version) {
            ScriptLookup::Found(_) => return,
            ScriptLookup::NoScript => format!("unknown script: there is no script `{name}`"),
            ScriptLookup::NoVersion => format!("unknown script: there is no version `{reference}`"),
            ScriptLookup::NoActiveVersion => no_active_version(&name),
            ScriptLookup::OtherWorld(world) => format!("`{name}` is not a task script; its world is {world}"),
            ScriptLookup::OnlyHandles => {
                format!("`{reference}` exports only `handle`, for the messages of a topic, but no `run` for tasks")
            }
        },
    };
    faults.add(pointer, detail);
}

/// Whether an `http` task may set a header of this name. The error says why not.
pub fn check_header(name: &str) -> Result<(), &'static str> {
    if CONNECTION_HEADERS.iter().any(|own| own.eq_ignore_ascii_case(name)) {
        return Err("a task cannot set this header: Heddle sets the headers of the connection itself");
    }
    Ok(())
}

fn check_http(http: &HttpSpec, prefix: &str, templates: &Checker<'_>, faults: &mut Faults) {
    for (field, text) in [("method", &http.method), ("url", &http.url)] {
        templates.value(&Value::String(text.clone()), &format!("{prefix}/{field}"), faults);
    }
    if !is_template(&http.method) && !METHODS.contains(&http.method.to_ascii_uppercase().as_str()) {
        faults.add(
            format!("{prefix}/method"),
            format!("the method must be one of {}", METHODS.join(", ")),
        );
    }
    if !is_template(&http.url)
        && let Err(detail) = check_url(&http.url)
    {
        faults.add(format!("{prefix}/url"), detail);
    }
    if http.headers.len() > LIST_MAX {
        faults.add(
            format!("{prefix}/headers"),
            format!("there must be at most {LIST_MAX} headers"),
        );
    }
    for (name, value) in &http.headers {
        let pointer = format!("{prefix}/headers/{}", pointer_token(name));
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if name.is_empty() || !name.chars().all(token) {
            faults.add(pointer.clone(), "this is not a valid header name");
        }
        if let Err(detail) = check_header(name) {
            faults.add(pointer.clone(), detail);
        }
        if value.chars().any(|c| c.is_control() && c != '\t') && !is_template(value) {
            faults.add(
                pointer.clone(),
                "the value of a header must not contain control characters",
            );
        }
        templates.value(&Value::String(value.clone()), &pointer, faults);
    }
    if let Some(body) = &http.body {
        templates.value(body, &format!("{prefix}/body"), faults);
    }
}

fn check_query(query: &QuerySpec, prefix: &str, around: &Surroundings<'_>, faults: &mut Faults) {
    let connection = around
        .catalog
        .connection(&query.connection, around.group, around.category);
    connection.check(
        "SQL connection",
        &query.connection,
        format!("{prefix}/connection"),
        faults,
    );
    let pointer = format!("{prefix}/sql");
    if query.sql.trim().is_empty() {
        faults.add(pointer, "the statement is empty; write for example `select 1 as one`");
    } else if query.sql.len() > QUERY_SQL_MAX_BYTES {
        let most = ByteSize(QUERY_SQL_MAX_BYTES as u64);
        faults.add(pointer, format!("a statement must have at most {most}"));
    } else if query.sql.contains('\0') {
        faults.add(pointer, "a statement must not contain the character U+0000");
    } else if is_template(&query.sql) {
        faults.add(
            pointer,
            "a statement cannot be a template; write `$1` for each variable value and put the template into `params` \
             (in a literal, put a space between two braces)",
        );
    }
    if query.params.len() > QUERY_PARAMS_MAX {
        faults.add(
            format!("{prefix}/params"),
            format!("there must be at most {QUERY_PARAMS_MAX} params"),
        );
        return;
    }
    for (index, value) in query.params.iter().enumerate() {
        around
            .templates
            .value(value, &format!("{prefix}/params/{index}"), faults);
    }
}

fn check_audience(spec: &AudienceSpec, prefix: &str, around: &Surroundings<'_>, faults: &mut Faults) {
    let pointer = format!("{prefix}/audience");
    if is_template(&spec.audience) {
        around
            .templates
            .value(&Value::String(spec.audience.clone()), &pointer, faults);
    } else {
        let checked = dispatch::check_audience(&spec.audience).and_then(|()| dispatch::check_user(&spec.audience));
        if let Err(detail) = checked {
            faults.add(pointer, detail);
        }
    }
    let stock = dispatch::parse_stock(spec.dispatch_times.as_ref());
    if let Err(detail) = &stock {
        faults.add(format!("{prefix}/dispatch_times"), detail.as_str());
    }
    match spec.mode.as_deref() {
        None | Some("single") => {}
        Some("repeat") if stock == Ok(None) => faults.add(format!("{prefix}/mode"), dispatch::EACH_ONCE),
        Some("repeat") => {}
        Some(_) => faults.add(format!("{prefix}/mode"), "`mode` must be `single` or `repeat`"),
    }
    if let Some(template) = &spec.template
        && around.catalog.template(template).is_none()
    {
        faults.add(
            format!("{prefix}/template"),
            format!("there is no template `{template}`"),
        );
    }
    if spec.max_hold.is_some_and(|hold| hold.is_zero()) {
        faults.add(format!("{prefix}/max_hold"), "`max_hold` must be longer than zero");
    }
}
