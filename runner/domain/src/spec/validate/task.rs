//! One task's fields, and their bounds.

use serde_json::Value;

use super::{Catalog, GroupSpec, ScriptLookup, check_description, check_notify};
use crate::dispatch;
use crate::fault::pointer_token;
use crate::plan::{Executor, ITEMS_MAX, executor_of};
use crate::retry::Policy;
use crate::spec::{
    AudienceSpec, ByteSize, ForEach, HttpSpec, QuerySpec, Shards, TAG_CHARS_MAX, TAGS_MAX, TaskSpec, TimeoutSpec,
    is_tag,
};
use crate::template::{Tasks, Templates, is_template};
use crate::{Faults, Name};

/// The bounds of `memory`, in bytes.
pub const MEMORY: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 30;
/// The bounds of `max_output`, in bytes.
pub const OUTPUT: std::ops::RangeInclusive<u64> = 1..=8 << 20;
/// The bounds of `max_log`, in bytes.
pub const LOG: std::ops::RangeInclusive<u64> = 0..=64 << 20;
/// The most bytes of constant `for_each` items, as JSON.
pub const ITEMS_MAX_BYTES: usize = 8 << 20;
/// The largest `max_lost`.
pub const LOST_MAX: u32 = 1_000;
/// The longest statement of a `query`, in bytes, and the most params that it has.
pub const QUERY_SQL_MAX_BYTES: usize = 256 << 10;
pub const QUERY_PARAMS_MAX: usize = 1_000;
/// How long the lists of a task may be: hosts, connections, secrets, pools, headers.
pub const LIST_MAX: usize = 100;

/// Checks templates, and the tasks that they name.
pub(super) struct Checker<'a> {
    pub(super) templates: &'a Templates,
    pub(super) tasks: Tasks<'a>,
}

impl Checker<'_> {
    fn value(&self, value: &Value, pointer: &str, faults: &mut Faults) {
        self.templates.check_value(value, pointer, self.tasks, faults);
    }

    fn condition(&self, condition: &str) -> Result<(), String> {
        self.templates.check_condition(condition, self.tasks)
    }
}

const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

pub(super) fn check(
    place: &str,
    (group, spec): (&Name, &GroupSpec),
    task: &TaskSpec,
    catalog: &dyn Catalog,
    templates: &Checker<'_>,
    faults: &mut Faults,
) {
    check_description(task.description.as_deref(), place, faults);
    let executor = executor_of(task).map_err(|detail| faults.add(place, detail)).ok();
    if let Some(script) = &task.script {
        check_script(script, place, catalog, faults);
    }
    if let Some(http) = &task.http {
        check_http(http, &format!("{place}/http"), templates, faults);
    }
    if let Some(audience) = &task.audience {
        check_audience(audience, &format!("{place}/audience"), catalog, templates, faults);
    }
    if let Some(query) = &task.query {
        let category = spec.category.as_ref();
        let connection = catalog.connection(&query.connection, group, category);
        let pointer = format!("{place}/query/connection");
        connection.check("SQL connection", &query.connection, pointer, faults);
        check_query(query, &format!("{place}/query"), templates, faults);
    }
    if !task.tags.is_empty() && task.queue.is_none() {
        faults.add(format!("{place}/tags"), "only a task with a `queue` has tags");
    }
    for (index, _) in task.tags.iter().enumerate().filter(|(_, tag)| !is_tag(tag)) {
        faults.add(
            format!("{place}/tags/{index}"),
            format!("a tag has 1 to {TAG_CHARS_MAX} characters, no control characters"),
        );
    }
    templates.value(&Value::Object(task.params.clone()), &format!("{place}/params"), faults);
    if let Some(Err(detail)) = task.when.as_deref().map(|when| templates.condition(when)) {
        faults.add(format!("{place}/when"), format!("bad template: {detail}"));
    }
    if let Some(Err(fault)) = task.retry.as_ref().map(Policy::compile) {
        faults.push(fault.below(&format!("{place}/retry")));
    }
    check_bounds(place, task, faults);
    check_map(place, task, executor, templates, faults);
    check_grants(place, (group, spec), task, catalog, faults);
    if let Some(notify) = &task.notify {
        check_notify(notify, &format!("{place}/notify"), catalog, faults);
    }
}

/// What it may reach, and how much of what is shared it takes.
fn check_grants(
    place: &str,
    (group, spec): (&Name, &GroupSpec),
    task: &TaskSpec,
    catalog: &dyn Catalog,
    faults: &mut Faults,
) {
    for (index, pattern) in task.allow_hosts.iter().enumerate() {
        if let Err(detail) = check_host_pattern(pattern) {
            faults.add(format!("{place}/allow_hosts/{index}"), detail);
        }
    }
    let category = spec.category.as_ref();
    for (index, name) in task.sql.iter().enumerate() {
        let pointer = format!("{place}/sql/{index}");
        catalog
            .connection(name, group, category)
            .check("SQL connection", name, pointer, faults);
    }
    for (index, name) in task.secrets.iter().enumerate() {
        let pointer = format!("{place}/secrets/{index}");
        catalog
            .secret(name, group, category)
            .check("secret", name, pointer, faults);
    }
    for (name, slots) in &task.pools {
        let pointer = format!("{place}/pools/{}", pointer_token(name));
        match catalog.pool(name) {
            None => faults.add(pointer, format!("there is no pool `{name}`")),
            Some(_) if *slots == 0 => faults.add(pointer, "a task takes at least one slot"),
            Some(there) if *slots > there => faults.add(pointer, format!("the pool `{name}` has only {there} slots")),
            Some(_) => {}
        }
    }
}

/// Reads `name` or `name@version`.
pub fn script_reference(text: &str) -> Result<(Name, Option<u32>), String> {
    let (name, version) = match text.split_once('@') {
        Some((name, version)) => {
            let version: String = version.chars().take(20).collect();
            let number = version.parse::<u32>().ok().filter(|number| *number > 0);
            let number = number.ok_or_else(|| format!("`{version}` is no version: versions are numbered from 1"))?;
            (name, Some(number))
        }
        None => (text, None),
    };
    Ok((Name::new(name).map_err(|error| error.to_string())?, version))
}

fn check_script(reference: &str, place: &str, catalog: &dyn Catalog, faults: &mut Faults) {
    let detail = match script_reference(reference) {
        Err(detail) => detail,
        Ok((name, version)) => match catalog.script(&name, version) {
            ScriptLookup::Found(_) => return,
            ScriptLookup::NoScript => format!("unknown script: there is no script `{name}`"),
            ScriptLookup::NoVersion => format!("unknown script: there is no version `{reference}`"),
            ScriptLookup::NoActiveVersion => {
                format!("script `{name}` has no active version; activate one, or name one as `{name}@1`")
            }
            ScriptLookup::OtherWorld(world) => format!("`{name}` is no task script but a {world}"),
            ScriptLookup::OnlyHandles => {
                format!(
                    "`{reference}` exports no `run`, only `handle`: it is for the messages of a topic, not for tasks"
                )
            }
        },
    };
    faults.add(format!("{place}/script"), detail);
}

fn check_http(http: &HttpSpec, place: &str, templates: &Checker<'_>, faults: &mut Faults) {
    for (field, text) in [("method", &http.method), ("url", &http.url)] {
        templates.value(&Value::String(text.clone()), &format!("{place}/{field}"), faults);
    }
    if !is_template(&http.method) && !METHODS.contains(&http.method.to_ascii_uppercase().as_str()) {
        faults.add(
            format!("{place}/method"),
            format!("the method is one of {}", METHODS.join(", ")),
        );
    }
    if !is_template(&http.url)
        && let Err(detail) = check_url(&http.url)
    {
        faults.add(format!("{place}/url"), detail);
    }
    if http.headers.len() > LIST_MAX {
        faults.add(format!("{place}/headers"), format!("at most {LIST_MAX} headers"));
    }
    for (name, value) in &http.headers {
        let pointer = format!("{place}/headers/{}", pointer_token(name));
        let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        if name.is_empty() || !name.chars().all(token) {
            faults.add(pointer.clone(), "this is no name for a header");
        }
        if value.chars().any(|c| c.is_control() && c != '\t') && !is_template(value) {
            faults.add(pointer.clone(), "a header's value has no control characters");
        }
        templates.value(&Value::String(value.clone()), &pointer, faults);
    }
    if let Some(body) = &http.body {
        templates.value(body, &format!("{place}/body"), faults);
    }
}

fn check_query(query: &QuerySpec, place: &str, templates: &Checker<'_>, faults: &mut Faults) {
    let pointer = format!("{place}/sql");
    if query.sql.trim().is_empty() {
        faults.add(pointer, "write the statement, such as `select 1 as one`");
    } else if query.sql.len() > QUERY_SQL_MAX_BYTES {
        let most = ByteSize(QUERY_SQL_MAX_BYTES as u64);
        faults.add(pointer, format!("a statement has at most {most}"));
    } else if query.sql.contains('\0') {
        faults.add(pointer, "a statement has no character U+0000");
    } else if is_template(&query.sql) {
        faults.add(
            pointer,
            "a statement is no template: write `$1` for what varies, and the template into `params` (within a literal, \
             put a space between two braces)",
        );
    }
    if query.params.len() > QUERY_PARAMS_MAX {
        faults.add(format!("{place}/params"), format!("at most {QUERY_PARAMS_MAX} params"));
        return;
    }
    for (index, value) in query.params.iter().enumerate() {
        templates.value(value, &format!("{place}/params/{index}"), faults);
    }
}

/// Whether a text is an absolute `http` or `https` URL with a host.
pub(super) fn check_url(text: &str) -> Result<(), String> {
    let shown: String = text.chars().take(100).collect();
    match url::Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => Ok(()),
        Ok(_) => Err(format!("`{shown}` is no http or https URL")),
        Err(error) => Err(format!("`{shown}` is no URL: {error}")),
    }
}

fn check_audience(
    spec: &AudienceSpec,
    place: &str,
    catalog: &dyn Catalog,
    templates: &Checker<'_>,
    faults: &mut Faults,
) {
    let pointer = format!("{place}/audience");
    if is_template(&spec.audience) {
        templates.value(&Value::String(spec.audience.clone()), &pointer, faults);
    } else if let Err(detail) = dispatch::check_audience(&spec.audience) {
        faults.add(pointer, detail);
    }
    let stock = dispatch::parse_stock(spec.dispatch_times.as_ref());
    if let Err(detail) = &stock {
        faults.add(format!("{place}/dispatch_times"), detail.as_str());
    }
    match spec.mode.as_deref() {
        None | Some("single") => {}
        Some("repeat") if stock == Ok(None) => faults.add(format!("{place}/mode"), dispatch::EACH_ONCE),
        Some("repeat") => {}
        Some(_) => faults.add(format!("{place}/mode"), "`mode` is `single` or `repeat`"),
    }
    if let Some(template) = &spec.template
        && catalog.template(template).is_none()
    {
        faults.add(
            format!("{place}/template"),
            format!("there is no template `{template}`"),
        );
    }
    if spec.max_hold.is_some_and(|hold| hold.is_zero()) {
        faults.add(format!("{place}/max_hold"), "`max_hold` is longer than zero");
    }
}

fn check_bounds(place: &str, task: &TaskSpec, faults: &mut Faults) {
    if matches!(task.timeout, Some(TimeoutSpec::After(span)) if span.is_zero()) {
        faults.add(
            format!("{place}/timeout"),
            "a timeout is longer than zero; write `never` for none",
        );
    }
    if task.queue_timeout.is_some_and(|span| span.is_zero()) {
        faults.add(format!("{place}/queue_timeout"), "a timeout is longer than zero");
    }
    if task.max_lost.is_some_and(|lost| lost > LOST_MAX) {
        faults.add(format!("{place}/max_lost"), format!("`max_lost` is at most {LOST_MAX}"));
    }
    for (field, size, bounds) in [
        ("memory", task.memory, MEMORY),
        ("max_output", task.max_output, OUTPUT),
        ("max_log", task.max_log, LOG),
    ] {
        if size.is_some_and(|size| !bounds.contains(&size.0)) {
            let (least, most) = (ByteSize(*bounds.start()), ByteSize(*bounds.end()));
            faults.add(
                format!("{place}/{field}"),
                format!("`{field}` is from {least} to {most}"),
            );
        }
    }
    for (field, length) in [
        ("allow_hosts", task.allow_hosts.len()),
        ("sql", task.sql.len()),
        ("secrets", task.secrets.len()),
        ("pools", task.pools.len()),
    ] {
        if length > LIST_MAX {
            faults.add(format!("{place}/{field}"), format!("at most {LIST_MAX} of them"));
        }
    }
    if task.tags.len() > TAGS_MAX {
        faults.add(format!("{place}/tags"), format!("at most {TAGS_MAX} of them"));
    }
}

fn check_map(place: &str, task: &TaskSpec, executor: Option<Executor>, templates: &Checker<'_>, faults: &mut Faults) {
    if task.for_each.is_some() && task.shards.is_some() {
        faults.add(place, "a task has `for_each` or `shards`, not both");
    }
    if task.concurrency == Some(0) {
        faults.add(format!("{place}/concurrency"), "`concurrency` is at least 1");
    }
    match &task.for_each {
        None => {}
        Some(ForEach::Template(text)) => {
            let pointer = format!("{place}/for_each");
            if is_template(text) {
                templates.value(&Value::String(text.clone()), &pointer, faults);
            } else {
                faults.add(
                    pointer,
                    "`for_each` is an array, or a template that gives one: `{{ ... }}`",
                );
            }
        }
        Some(ForEach::Items(items)) => {
            let pointer = format!("{place}/for_each");
            if items.len() > ITEMS_MAX as usize {
                faults.add(pointer, format!("at most {ITEMS_MAX} items, not {}", items.len()));
                return;
            }
            let items = Value::Array(items.clone());
            if items.to_string().len() > ITEMS_MAX_BYTES {
                faults.add(
                    pointer.clone(),
                    format!("the items have at most {} together", ByteSize(ITEMS_MAX_BYTES as u64)),
                );
            }
            templates.value(&items, &pointer, faults);
        }
    }
    match task.shards {
        Some(Shards::Count(count)) if !(1..=ITEMS_MAX).contains(&count) => {
            faults.add(
                format!("{place}/shards"),
                format!("`shards` is from 1 to {ITEMS_MAX}, or `workers`"),
            );
        }
        Some(Shards::Workers(_)) if executor != Some(Executor::Queue) => {
            faults.add(
                format!("{place}/shards"),
                "`shards: workers` is for a task with a `queue`",
            );
        }
        _ => {}
    }
}

/// A host, or `*.` and a domain; a port may follow.
fn check_host_pattern(pattern: &str) -> Result<(), String> {
    let wrong = || {
        let shown: String = pattern.chars().take(100).collect();
        format!("`{shown}` is no host: write `api.example.com` or `*.example.com`")
    };
    let (host, port) = match pattern.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (pattern, None),
    };
    if port.is_some_and(|port| port.parse::<u16>().map_or(true, |port| port == 0)) {
        return Err(wrong());
    }
    let bare = host.strip_prefix("*.").unwrap_or(host);
    if bare.is_empty() || bare.contains(['*', '/', '@', '?', '#', '\\', '%']) || bare.contains(char::is_whitespace) {
        return Err(wrong());
    }
    let known = match url::Host::parse(bare).map_err(|_| wrong())? {
        url::Host::Domain(domain) => !domain.is_empty() && !domain.starts_with('.'),
        url::Host::Ipv4(_) | url::Host::Ipv6(_) => bare == host,
    };
    if known { Ok(()) } else { Err(wrong()) }
}
