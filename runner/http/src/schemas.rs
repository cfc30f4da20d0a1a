//! The schemas of what goes in and comes out (JSON Schema 2020-12, as OpenAPI 3.1 has it).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// All of them, by name.
pub fn all() -> BTreeMap<&'static str, Value> {
    let mut all = BTreeMap::new();
    common(&mut all);
    scripts(&mut all);
    groups(&mut all);
    tasks(&mut all);
    control(&mut all);
    admin(&mut all);
    all
}

type Schemas = BTreeMap<&'static str, Value>;

/// An object; a field whose name ends with `?` may be left out.
fn object(fields: &[(&str, Value)]) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for (name, schema) in fields {
        match name.strip_suffix('?') {
            Some(name) => properties.insert(name.into(), schema.clone()),
            None => {
                required.push(*name);
                properties.insert((*name).into(), schema.clone())
            }
        };
    }
    json!({"type": "object", "properties": properties, "required": required})
}

fn to(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn list_of(item: Value) -> Value {
    let mut list = object(&[("items", array(item)), ("next_cursor", nullable(text()))]);
    list["description"] = json!("`cursor` of the next page is this one's `next_cursor`; null on the last.");
    list
}

fn array(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

fn map(values: Value) -> Value {
    json!({"type": "object", "additionalProperties": values})
}

fn nullable(schema: Value) -> Value {
    match schema.get("type").and_then(Value::as_str) {
        Some(kind) => {
            let mut schema = schema.clone();
            schema["type"] = json!([kind, "null"]);
            schema
        }
        None => json!({"anyOf": [schema, {"type": "null"}]}),
    }
}

fn text() -> Value {
    json!({"type": "string"})
}

fn name() -> Value {
    to("Name")
}

fn integer() -> Value {
    json!({"type": "integer"})
}

fn flag() -> Value {
    json!({"type": "boolean"})
}

fn any() -> Value {
    json!({})
}

fn some_object() -> Value {
    json!({"type": "object"})
}

fn time() -> Value {
    to("Time")
}

fn duration() -> Value {
    to("Duration")
}

fn uuid() -> Value {
    json!({"type": "string", "format": "uuid"})
}

fn one_of(words: &[&str]) -> Value {
    json!({"enum": words})
}

fn common(all: &mut Schemas) {
    all.insert("Any", any());
    all.insert("Text", text());
    all.insert(
        "Name",
        json!({
            "type": "string", "minLength": 1, "maxLength": 63,
            "description": "1 to 63 letters and digits of any writing system (NFC), `_`, `.`, `-`, beginning with a letter, digit or `_`.",
        }),
    );
    all.insert(
        "Time",
        json!({"type": "string", "format": "date-time", "description": "RFC 3339; answers are in UTC with `Z` and microseconds."}),
    );
    all.insert(
        "Duration",
        json!({"type": "string", "examples": ["100ms", "90s", "5m", "1h30m", "1d"]}),
    );
    let fault = object(&[
        ("pointer", json!({"type": "string", "format": "json-pointer"})),
        ("detail", text()),
    ]);
    all.insert(
        "Problem",
        object(&[
            ("type", text()),
            ("title", text()),
            ("status", integer()),
            ("detail", text()),
            ("errors?", array(fault)),
            (
                "existing?",
                json!({"type": "string", "description": "The id of what is there already."}),
            ),
        ]),
    );
    all.insert("Health", object(&[("status", text())]));
}

fn scripts(all: &mut Schemas) {
    all.insert(
        "Wasm",
        json!({"description": "Wasm, or WebAssembly text; at most 64 MiB."}),
    );
    all.insert(
        "Source",
        json!({"type": "string", "description": "A script as text, in UTF-8; at most 1 MiB."}),
    );
}

fn groups(all: &mut Schemas) {
    let schedule = object(&[
        ("cron?", text()),
        ("cron_dialect?", one_of(&["unix", "quartz"])),
        ("every?", duration()),
        ("anchor?", text()),
        ("after?", duration()),
        ("once?", object(&[("at?", text()), ("delay?", duration())])),
        ("daily?", object(&[("every_days?", integer()), ("at", text())])),
        ("timezone?", text()),
        ("initial_delay?", duration()),
        ("starts_at?", text()),
        ("ends_at?", text()),
        ("misfire?", one_of(&["once", "skip", "all"])),
        ("grace?", duration()),
        ("enabled?", flag()),
        ("next?", nullable(time())),
    ]);
    all.insert("Schedule", schedule);
    let need = one_of(&["latest", "interval"]);
    let dependency = json!({"anyOf": [name(), object(&[("group", name()), ("need?", need.clone())])]});
    let spec = [
        ("description?", text()),
        ("category?", nullable(name())),
        ("timezone?", text()),
        ("history?", flag()),
        ("depends_on?", array(dependency)),
        ("overlap?", one_of(&["queue", "skip", "allow", "cancel_previous"])),
        ("max_active_runs?", nullable(integer())),
        ("max_waiting?", integer()),
        ("on_failure?", one_of(&["continue", "stop"])),
        ("deadline?", duration()),
        ("deadline_action?", one_of(&["alert", "cancel"])),
        ("priority?", integer()),
        ("schedules?", map(to("Schedule"))),
        ("params?", some_object()),
        ("template?", name()),
        ("labels?", map(text())),
        ("retention?", to("GroupRetention")),
        ("notify?", to("NotifyRules")),
        ("tasks", map(to("Task"))),
    ];
    all.insert(
        "GroupRetention",
        object(&[
            ("runs?", duration()),
            ("states?", map(duration())),
            ("logs?", duration()),
        ]),
    );
    let ignored = json!({"description": "As it was read; ignored."});
    let mut put = vec![
        (
            "name?",
            json!({"type": "string", "description": "The name in the path."}),
        ),
        (
            "enabled?",
            json!({"type": "boolean", "description": "Enables or disables the group; what is left out stays as it is."}),
        ),
        ("revision?", ignored.clone()),
        ("created_at?", ignored.clone()),
        ("updated_at?", ignored),
    ];
    put.extend(spec.clone());
    all.insert("GroupPut", object(&put));
    // Any part of it, with null for what is to go.
    all.insert("GroupPatch", some_object());
    all.insert("GroupSpec", object(&spec));
    let mut group = vec![
        ("name", name()),
        ("revision", integer()),
        ("enabled", flag()),
        ("created_at", time()),
        ("updated_at", time()),
    ];
    group.extend(spec);
    // In the answer to a PUT.
    let warning = object(&[("pointer", text()), ("detail", text())]);
    group.push(("warnings?", array(warning.clone())));
    all.insert("Group", object(&group));
    all.insert("GroupList", list_of(to("Group")));
    all.insert("Detached", object(&[("detached", array(name()))]));
    all.insert(
        "Validation",
        object(&[
            ("valid", flag()),
            ("errors", array(any())),
            ("warnings", array(warning)),
            ("changed", flag()),
            ("spec", to("GroupSpec")),
        ]),
    );
    all.insert(
        "Revision",
        object(&[
            ("group", name()),
            ("revision", integer()),
            ("spec", to("GroupSpec")),
            ("created_at", time()),
            ("created_by", text()),
        ]),
    );
    all.insert("RevisionList", list_of(to("Revision")));
    let link = object(&[
        ("group", name()),
        ("kind", one_of(&["depends_on", "sub_run"])),
        ("need", need),
    ]);
    let node = object(&[
        ("task", name()),
        ("executor", text()),
        ("trigger_rule", text()),
        ("mapped", flag()),
    ]);
    all.insert(
        "Graph",
        object(&[
            ("group", name()),
            ("revision", integer()),
            ("nodes", array(node)),
            ("edges", array(object(&[("from", name()), ("to", name())]))),
            ("upstream", array(link.clone())),
            ("downstream", array(link)),
        ]),
    );
    all.insert("DisableRequest", object(&[("mode?", one_of(&["drain", "stop"]))]));
    all.insert(
        "NextInstants",
        object(&[
            ("instants", array(time())),
            ("items", array(object(&[("at", time()), ("schedules", array(name()))]))),
            ("schedules", map(nullable(time()))),
        ]),
    );
}

fn tasks(all: &mut Schemas) {
    all.insert(
        "NotifyRules",
        object(&[
            ("on", array(text())),
            ("channels?", array(name())),
            ("to?", array(text())),
        ]),
    );
    all.insert(
        "Retry",
        object(&[
            (
                "strategy",
                one_of(&["fixed", "exponential", "fixed_then_exponential", "forever", "daily"]),
            ),
            ("retries?", integer()),
            ("interval?", duration()),
            ("max_interval?", duration()),
            ("fixed?", integer()),
            ("per_day?", integer()),
            ("days?", integer()),
            ("next_day_at?", text()),
            ("jitter?", any()),
        ]),
    );
    let http = object(&[
        ("method?", text()),
        ("url", text()),
        ("headers?", map(text())),
        ("body?", any()),
    ]);
    let audience = object(&[
        ("audience", text()),
        ("dispatch_times?", any()),
        ("mode?", one_of(&["single", "repeat"])),
        ("template?", name()),
        ("max_hold?", duration()),
    ]);
    let query = object(&[
        ("connection", name()),
        (
            "sql",
            json!({"type": "string", "examples": ["select id, total from orders where day = $1"]}),
        ),
        ("params?", array(any())),
        ("mode?", one_of(&["rows", "execute"])),
    ]);
    let size = json!({"type": ["integer", "string"], "examples": ["128MiB"]});
    let mut task = object(&[
        ("description?", text()),
        (
            "script?",
            json!({"type": "string", "examples": ["extract@1", "aggregate"]}),
        ),
        ("queue?", name()),
        ("tags?", array(text())),
        ("http?", http),
        ("query?", query),
        (
            "audience?",
            json!({"oneOf": [{"type": "string", "examples": ["gid_team"]}, audience]}),
        ),
        ("group?", name()),
        ("depends_on?", array(name())),
        (
            "trigger_rule?",
            one_of(&[
                "all_success",
                "all_done",
                "any_success",
                "any_failed",
                "none_failed",
                "all_failed",
                "none_failed_min_one_success",
                "all_skipped",
                "always",
            ]),
        ),
        (
            "when?",
            json!({"type": ["string", "boolean"], "examples": ["params.rows > 0"]}),
        ),
        ("params?", some_object()),
        ("retry?", to("Retry")),
        ("max_lost?", integer()),
        (
            "timeout?",
            json!({"type": "string", "description": "A duration, or `never`."}),
        ),
        ("queue_timeout?", duration()),
        ("allow_failure?", flag()),
        ("for_each?", json!({"type": ["array", "string"]})),
        (
            "shards?",
            json!({"type": ["integer", "string"], "description": "A number, or `workers`."}),
        ),
        ("concurrency?", integer()),
        ("fail_fast?", flag()),
        ("pools?", map(integer())),
        ("memory?", size.clone()),
        ("max_output?", size.clone()),
        ("max_log?", size),
        ("allow_hosts?", array(text())),
        ("sql?", array(name())),
        ("secrets?", array(name())),
        ("notify?", to("NotifyRules")),
    ]);
    task["description"] = json!("Exactly one executor: `script`, `queue`, `http`, `audience`, `group` or `query`.");
    all.insert("Task", task);
}

/// Adds the times that all named things have.
fn named(mut fields: Vec<(&'static str, Value)>) -> Value {
    fields.insert(0, ("name", name()));
    fields.push(("created_at", time()));
    fields.push(("updated_at", time()));
    object(&fields)
}

fn control(all: &mut Schemas) {
    let connection = vec![
        ("groups", array(text())),
        ("categories", array(text())),
        ("max_connections", integer()),
        ("read_only", flag()),
    ];
    let role = one_of(&["viewer", "operator", "author", "worker", "admin"]);
    let bound_to = |item: Value, what: &str| {
        let detail = format!(
            "A worker's {what}. Of a worker that names neither queues nor uids these are all, so a list that is given \
             is not empty unless the other names something."
        );
        let mut list = array(item);
        list["description"] = json!(detail);
        list
    };
    let session_role = role.clone();
    let token = [
        ("id", uuid()),
        ("name", name()),
        ("role", role),
        ("queues", array(name())),
        ("uids", array(text())),
        ("expires_at", nullable(time())),
        ("created_at", time()),
        ("last_used_at", nullable(time())),
    ];
    let mut new_token = token.to_vec();
    new_token.push(("token", json!({"type": "string", "description": "Shown this once."})));
    all.insert("SignIn", object(&[("token", text())]));
    all.insert(
        "Session",
        object(&[
            ("actor", text()),
            ("role", session_role),
            ("queues", array(name())),
            ("uids", array(text())),
            ("expires_at", nullable(time())),
        ]),
    );
    all.insert(
        "CompatibilityAnswer",
        object(&[("code", integer()), ("msg", text()), ("data", json!({}))]),
    );
    all.insert("TimerTaskId", object(&[("taskId", integer())]));
    timer_task(all);
}

/// What the compatibility calls take.
fn timer_task(all: &mut Schemas) {
    let kind = json!({"type": "integer", "enum": [1, 2, 3, 4]});
    let timer = object(&[
        ("timerType?", kind.clone()),
        ("type?", kind),
        ("cron?", text()),
        ("initDelay?", integer()),
        ("period?", integer()),
        ("delay?", integer()),
        ("startDateTime?", text()),
        ("endDateTime?", text()),
        ("status?", integer()),
    ]);
    let timers = object(&[("timerList?", array(timer))]);
    let task = || {
        vec![
            ("taskId?", integer()),
            ("taskName?", text()),
            ("appServiceName?", text()),
            ("apiServiceName?", text()),
            ("apiMethodName?", text()),
            ("timeout?", integer()),
            ("status?", integer()),
            ("subTaskList?", array(to("TimerTask"))),
        ]
    };
    all.insert("TimerTask", object(&task()));
    // The older shape has the tree's fields on the top level.
    let mut submission = task();
    submission.push(("taskInfoConf?", to("TimerTask")));
    submission.push(("taskScheduleConf?", timers));
    all.insert("TimerTaskSubmission", object(&submission));
}

fn admin(all: &mut Schemas) {
    all.insert("Stats", some_object());
    let audit = object(&[
        ("id", uuid()),
        ("at", time()),
        ("actor", text()),
        ("action", text()),
        ("kind", text()),
        ("name", text()),
        ("before", any()),
        ("after", any()),
    ]);
    let by_state = |of: fn() -> Value| object(&[("succeeded?", of()), ("failed?", of()), ("cancelled?", of())]);
    let mut kept: Vec<(&str, Value)> = ["hot?", "runs?", "audit?", "events?", "assignments?", "notifications?"]
        .into_iter()
        .map(|name| (name, duration()))
        .collect();
    kept.extend([("states?", by_state(duration)), ("logs?", nullable(duration()))]);
    let days = || array(json!({"type": "string", "format": "date"}));
}
