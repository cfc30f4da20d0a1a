//! One task's fields, checked.

use serde_json::Value;

use super::catalog::Catalog;
use super::task::{Checker, ITEMS_MAX_BYTES, LIST_MAX, LOG, LOST_MAX, MEMORY, OUTPUT};
use super::{check_description, check_notify};
use crate::executor::{Executor, Surroundings};
use crate::fault::pointer_token;
use crate::plan::ITEMS_MAX;
use crate::retry::Policy;
use crate::spec::{ByteSize, ForEach, GroupSpec, Shards, TAG_CHARS_MAX, TAGS_MAX, TaskSpec, TimeoutSpec, is_tag};
use crate::template::is_template;
use crate::{Faults, Name};

pub(super) fn check(
    pointer: &str,
    (group, spec): (&Name, &GroupSpec),
    task: &TaskSpec,
    catalog: &dyn Catalog,
    templates: &Checker<'_>,
    faults: &mut Faults,
) {
    check_description(task.description.as_deref(), pointer, faults);
    let executor = Executor::of(task).map_err(|detail| faults.add(pointer, detail)).ok();
    let surroundings = Surroundings {
        group,
        category: spec.category.as_ref(),
        catalog,
        templates,
    };
    for executor in Executor::all_of(task) {
        executor.check(pointer, &surroundings, faults);
    }
    if !task.tags.is_empty() && task.queue.is_none() {
        faults.add(format!("{pointer}/tags"), "only a task with a `queue` can have tags");
    }
    for (index, _) in task.tags.iter().enumerate().filter(|(_, tag)| !is_tag(tag)) {
        faults.add(
            format!("{pointer}/tags/{index}"),
            format!("a tag must have 1 to {TAG_CHARS_MAX} characters and no control characters"),
        );
    }
    templates.value(
        &Value::Object(task.params.clone()),
        &format!("{pointer}/params"),
        faults,
    );
    if let Some(Err(detail)) = task.when.as_deref().map(|when| templates.condition(when)) {
        faults.add(format!("{pointer}/when"), format!("invalid template: {detail}"));
    }
    if let Some(Err(fault)) = task.retry.as_ref().map(Policy::compile) {
        faults.push(fault.below(&format!("{pointer}/retry")));
    }
    check_bounds(pointer, task, faults);
    check_of_script(pointer, task, executor.as_ref(), catalog, faults);
    check_map(pointer, task, executor.as_ref(), templates, faults);
    check_grants(pointer, (group, spec), task, catalog, faults);
    if let Some(notify) = &task.notify {
        check_notify(notify, &format!("{pointer}/notify"), catalog, faults);
    }
}

/// What it may reach, and how much of shared resources it takes.
fn check_grants(
    pointer: &str,
    (group, spec): (&Name, &GroupSpec),
    task: &TaskSpec,
    catalog: &dyn Catalog,
    faults: &mut Faults,
) {
    for (index, pattern) in task.allow_hosts.iter().enumerate() {
        if let Err(detail) = check_host_pattern(pattern) {
            faults.add(format!("{pointer}/allow_hosts/{index}"), detail);
        }
    }
    let category = spec.category.as_ref();
    for (index, name) in task.sql.iter().enumerate() {
        let pointer = format!("{pointer}/sql/{index}");
        catalog
            .connection(name, group, category)
            .check("SQL connection", name, pointer, faults);
    }
    for (index, name) in task.secrets.iter().enumerate() {
        let pointer = format!("{pointer}/secrets/{index}");
        catalog
            .secret(name, group, category)
            .check("secret", name, pointer, faults);
    }
    for (name, slots) in &task.pools {
        let pointer = format!("{pointer}/pools/{}", pointer_token(name));
        match catalog.pool(name) {
            None => faults.add(pointer, format!("there is no pool `{name}`")),
            Some(_) if *slots == 0 => faults.add(pointer, "a task must take at least one slot"),
            Some(there) if *slots > there => faults.add(pointer, format!("the pool `{name}` has only {there} slots")),
            Some(_) => {}
        }
    }
}

fn check_bounds(pointer: &str, task: &TaskSpec, faults: &mut Faults) {
    if matches!(task.timeout, Some(TimeoutSpec::After(span)) if span.is_zero()) {
        faults.add(
            format!("{pointer}/timeout"),
            "`timeout` must be longer than zero; write `never` for no timeout",
        );
    }
    if task.queue_timeout.is_some_and(|span| span.is_zero()) {
        faults.add(
            format!("{pointer}/queue_timeout"),
            "`queue_timeout` must be longer than zero",
        );
    }
    if task.max_lost.is_some_and(|lost| lost > LOST_MAX) {
        faults.add(
            format!("{pointer}/max_lost"),
            format!("`max_lost` must be at most {LOST_MAX}"),
        );
    }
    for (field, size, bounds) in [
        ("memory", task.memory, MEMORY),
        ("max_output", task.max_output, OUTPUT),
        ("max_log", task.max_log, LOG),
    ] {
        if size.is_some_and(|size| !bounds.contains(&size.0)) {
            let (least, most) = (ByteSize(*bounds.start()), ByteSize(*bounds.end()));
            faults.add(
                format!("{pointer}/{field}"),
                format!("`{field}` must be from {least} to {most}"),
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
            faults.add(
                format!("{pointer}/{field}"),
                format!("must have at most {LIST_MAX} entries"),
            );
        }
    }
    if task.tags.len() > TAGS_MAX {
        faults.add(
            format!("{pointer}/tags"),
            format!("must have at most {TAGS_MAX} entries"),
        );
    }
}

/// Refuses what only a script has. Its author expects a limit or a grant, and there is none: an `http` task, for example,
/// does not get to its host by `allow_hosts`. Stored specs are not checked, so groups that had such fields before still run.
/// What they have, they may keep: the same spec again is no change, and must not be refused after an upgrade.
fn check_of_script(
    pointer: &str,
    task: &TaskSpec,
    executor: Option<&Executor>,
    catalog: &dyn Catalog,
    faults: &mut Faults,
) {
    // Without one executor, the task is wrong for that reason.
    if executor.is_none_or(|executor| matches!(executor, Executor::Script(_))) {
        return;
    }
    for (field, is_given, value) in [
        ("memory", task.memory.is_some(), serde_json::to_value(task.memory)),
        (
            "allow_hosts",
            !task.allow_hosts.is_empty(),
            serde_json::to_value(&task.allow_hosts),
        ),
        ("sql", !task.sql.is_empty(), serde_json::to_value(&task.sql)),
        ("secrets", !task.secrets.is_empty(), serde_json::to_value(&task.secrets)),
    ] {
        let pointer = format!("{pointer}/{field}");
        let is_new = is_given && !value.is_ok_and(|value| catalog.has_value(&pointer, &value));
        if is_new {
            let detail = format!("only a task with a `script` can have `{field}`");
            faults.add(pointer, detail);
        }
    }
}

fn check_map(
    pointer: &str,
    task: &TaskSpec,
    executor: Option<&Executor>,
    templates: &Checker<'_>,
    faults: &mut Faults,
) {
    if task.for_each.is_some() && task.shards.is_some() {
        faults.add(pointer, "a task must not have both `for_each` and `shards`");
    }
    if task.concurrency == Some(0) {
        faults.add(format!("{pointer}/concurrency"), "`concurrency` must be at least 1");
    }
    let has_items = task.for_each.is_some() || task.shards.is_some();
    for (field, is_given) in [
        ("concurrency", task.concurrency.is_some_and(|count| count > 0)),
        ("fail_fast", task.fail_fast),
    ] {
        if is_given && !has_items {
            faults.add(
                format!("{pointer}/{field}"),
                format!("only a task with `for_each` or `shards` can have `{field}`"),
            );
        }
    }
    match &task.for_each {
        None => {}
        Some(ForEach::Template(text)) => {
            let pointer = format!("{pointer}/for_each");
            if is_template(text) {
                templates.value(&Value::String(text.clone()), &pointer, faults);
            } else {
                faults.add(
                    pointer,
                    "`for_each` must be an array, or a template that gives one: `{{ ... }}`",
                );
            }
        }
        Some(ForEach::Items(items)) => {
            let pointer = format!("{pointer}/for_each");
            if items.len() > ITEMS_MAX as usize {
                faults.add(
                    pointer,
                    format!("there must be at most {ITEMS_MAX} items, not {}", items.len()),
                );
                return;
            }
            let items = Value::Array(items.clone());
            if items.to_string().len() > ITEMS_MAX_BYTES {
                faults.add(
                    pointer.clone(),
                    format!(
                        "the items together must have at most {}",
                        ByteSize(ITEMS_MAX_BYTES as u64)
                    ),
                );
            }
            templates.value(&items, &pointer, faults);
        }
    }
    match task.shards {
        Some(Shards::Count(count)) if !(1..=ITEMS_MAX).contains(&count) => {
            faults.add(
                format!("{pointer}/shards"),
                format!("`shards` must be from 1 to {ITEMS_MAX}, or `workers`"),
            );
        }
        Some(Shards::Workers(_)) if !matches!(executor, Some(Executor::Queue(_))) => {
            faults.add(
                format!("{pointer}/shards"),
                "only a task with a `queue` can have `shards: workers`",
            );
        }
        _ => {}
    }
}

/// A host, or `*.` and a domain; a port may follow.
fn check_host_pattern(pattern: &str) -> Result<(), String> {
    let wrong = || {
        let shown: String = pattern.chars().take(100).collect();
        format!("`{shown}` is not a valid host; write for example `api.example.com` or `*.example.com`")
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
        // (The parser of URLs accepts more than names have, and what a script is granted.)
        url::Host::Domain(domain) => {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !domain.is_empty() && !domain.starts_with('.') && domain.bytes().all(is_part)
        }
        url::Host::Ipv4(_) | url::Host::Ipv6(_) => bare == host,
    };
    if known { Ok(()) } else { Err(wrong()) }
}
