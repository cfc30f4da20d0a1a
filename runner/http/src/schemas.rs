//! The schemas of what goes in and comes out (JSON Schema 2020-12, as OpenAPI 3.1 has it).

mod dispatch;
mod messages;
mod notify;

use std::collections::BTreeMap;

use heddle_domain::state::{AttemptState, ErrorKind, RunState, TaskState, Trigger};
use heddle_engine::heddle_sandbox::{Language, World};
use serde_json::{Map, Value, json};

/// All of them, by name.
pub fn all() -> BTreeMap<&'static str, Value> {
    let mut all = BTreeMap::new();
    common(&mut all);
    scripts(&mut all);
    groups(&mut all);
    tasks(&mut all);
    runs(&mut all);
    control(&mut all);
    queues(&mut all);
    admin(&mut all);
    dispatch::dispatch(&mut all);
    messages::messages(&mut all);
    notify::notify(&mut all);
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

fn number() -> Value {
    json!({"type": "number"})
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

/// What a script may be, in the words of the answers.
const WORLDS: [&str; 7] = [
    World::Task.as_str(),
    World::Consumer.as_str(),
    World::CommandP1.as_str(),
    World::CommandP2.as_str(),
    Language::JavaScript.world(),
    Language::TypeScript.world(),
    Language::Python.world(),
];

fn scripts(all: &mut Schemas) {
    all.insert(
        "Wasm",
        json!({"description": "Wasm, or WebAssembly text; at most 64 MiB."}),
    );
    all.insert(
        "Source",
        json!({"type": "string", "description": "A script as text, in UTF-8; at most 1 MiB."}),
    );
    let version = [
        ("name", name()),
        ("version", integer()),
        (
            "digest",
            json!({"type": "string", "description": "SHA-256 of the bytes as they were uploaded, in hexadecimal."}),
        ),
        ("world", one_of(&WORLDS)),
        (
            "runtime",
            json!({"type": ["string", "null"], "description": "The interpreter that a text was checked with; null for wasm."}),
        ),
        ("params_schema", any()),
        ("defaults", some_object()),
        ("description", text()),
        ("size", integer()),
        ("active", flag()),
        ("created_at", time()),
    ];
    all.insert("ScriptVersion", object(&version));
    let mut script = vec![
        ("active_version", nullable(integer())),
        ("latest_version", integer()),
        ("updated_at", time()),
    ];
    script.extend(version);
    all.insert("Script", object(&script));
    all.insert("ScriptList", list_of(to("Script")));
    all.insert("ScriptVersionList", list_of(to("ScriptVersion")));
    all.insert(
        "InvokeRequest",
        object(&[
            ("params?", some_object()),
            ("version?", integer()),
            ("timeout?", duration()),
        ]),
    );
    all.insert(
        "Invocation",
        object(&[
            ("state", attempt_state()),
            ("output", any()),
            ("error", nullable(to("Failure"))),
            (
                "logs",
                array(object(&[("level", text()), ("message", text()), ("fields?", any())])),
            ),
            ("duration_ms", number()),
            ("memory_bytes", integer()),
        ]),
    );
    all.insert("ActivateRequest", object(&[("version", integer())]));
    all.insert("FetchRequest", object(&[("url", text()), ("sha256", text())]));
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

fn queues(all: &mut Schemas) {
    let rate = object(&[("count", integer()), ("per", duration())]);
    all.insert(
        "ClaimRequest",
        object(&[
            ("worker", text()),
            ("max?", integer()),
            ("lease?", duration()),
            ("wait?", duration()),
            ("tags?", array(text())),
        ]),
    );
    let claim = object(&[
        ("id", uuid()),
        ("token", text()),
        ("run", uuid()),
        ("group", name()),
        ("task", name()),
        ("item", nullable(integer())),
        ("attempt", integer()),
        ("params", some_object()),
        ("context", some_object()),
        ("lease_expires_at", time()),
    ]);
    all.insert("Claim", claim);
    all.insert("Claims", object(&[("items", array(to("Claim")))]));
    type Fields = Vec<(&'static str, Value)>;
    let words: [(&str, &str, Fields); 4] = [
        (
            "Heartbeat",
            "Heartbeats",
            vec![
                ("lease?", duration()),
                ("progress?", json!({"type": "number", "minimum": 0, "maximum": 1})),
                ("note?", text()),
                (
                    "log?",
                    array(object(&[
                        ("message", text()),
                        ("level?", one_of(&["trace", "debug", "info", "warn", "error"])),
                        ("fields?", some_object()),
                        ("at?", time()),
                    ])),
                ),
            ],
        ),
        ("ClaimOutput", "ClaimOutputs", vec![("output?", any())]),
        (
            "ClaimError",
            "ClaimErrors",
            vec![
                ("error?", json!({"type": ["string", "object"]})),
                ("fatal?", flag()),
                ("retry_after?", duration()),
            ],
        ),
        ("ClaimToken", "ClaimTokens", Vec::new()),
    ];
    for (one, many, mut fields) in words {
        fields.insert(0, ("token", text()));
        all.insert(one, object(&fields));
        fields.insert(0, ("id", uuid()));
        all.insert(many, object(&[("items", array(object(&fields)))]));
    }
    let answer = [("id", uuid()), ("state", text()), ("lease_expires_at?", time())];
    all.insert("ClaimAnswer", object(&answer));
    let each = object(&[
        ("id", uuid()),
        ("status", integer()),
        ("state?", text()),
        ("lease_expires_at?", time()),
        ("detail?", text()),
    ]);
    all.insert("ClaimAnswers", object(&[("items", array(each))]));
    all.insert(
        "QueueSpec",
        object(&[("paused?", flag()), ("rate?", nullable(rate.clone()))]),
    );
    let worker = object(&[
        ("worker", name()),
        ("tags", array(text())),
        ("seen_at", nullable(time())),
        ("claimed", integer()),
    ]);
    let queue = object(&[
        ("name", name()),
        ("depth", integer()),
        ("depth_exact", flag()),
        ("oldest", nullable(time())),
        ("claimed", integer()),
        ("workers", integer()),
        ("paused", flag()),
        ("rate", nullable(rate)),
        ("connected?", array(worker)),
    ]);
    all.insert("Queue", queue);
    all.insert("QueueList", list_of(to("Queue")));
    all.insert(
        "QueueTask",
        object(&[
            ("run", uuid()),
            ("group", name()),
            ("task", name()),
            ("item", nullable(integer())),
            ("attempt", integer()),
            ("state", one_of(&["running", "ready"])),
            ("priority", integer()),
            ("tags", array(text())),
            ("since", time()),
            ("expires_at", nullable(time())),
            ("worker", nullable(text())),
            ("lease_expires_at", nullable(time())),
        ]),
    );
    all.insert("QueueTaskList", list_of(to("QueueTask")));
}

fn words<T: Copy>(all: &[T], word: impl Fn(T) -> &'static str) -> Value {
    json!({"enum": all.iter().map(|one| word(*one)).collect::<Vec<_>>()})
}

fn attempt_state() -> Value {
    words(AttemptState::ALL, AttemptState::as_str)
}

fn runs(all: &mut Schemas) {
    let run_state = words(RunState::ALL, RunState::as_str);
    let task_state = words(TaskState::ALL, TaskState::as_str);
    let trigger = words(Trigger::ALL, Trigger::as_str);
    all.insert(
        "Failure",
        object(&[
            ("kind", words(ErrorKind::ALL, ErrorKind::as_str)),
            ("message", text()),
            ("trace?", text()),
            ("task?", name()),
            ("item?", integer()),
        ]),
    );
    all.insert(
        "Override",
        object(&[
            ("state", task_state.clone()),
            ("reason", text()),
            ("actor", text()),
            ("at", time()),
        ]),
    );
    all.insert(
        "TaskWait",
        object(&[
            ("reason", one_of(&["pool", "rate_limit", "queue_paused", "worker"])),
            ("pools?", array(name())),
            ("queue?", name()),
            ("until", nullable(time())),
        ]),
    );
    let task_run = [
        ("task", name()),
        ("item", nullable(integer())),
        ("state", task_state),
        ("attempt", integer()),
        ("next_attempt_at", nullable(time())),
        ("waiting_for", nullable(to("TaskWait"))),
        ("started_at", nullable(time())),
        ("finished_at", nullable(time())),
        ("output", any()),
        ("error", nullable(to("Failure"))),
        ("node", nullable(text())),
        ("worker?", text()),
        ("override?", to("Override")),
        ("progress?", number()),
        ("note?", text()),
        ("items?", map(integer())),
    ];
    all.insert("TaskRun", object(&task_run));
    all.insert(
        "Attempt",
        object(&[
            ("attempt", integer()),
            ("state", attempt_state()),
            ("node", nullable(text())),
            ("worker?", text()),
            ("started_at", time()),
            ("finished_at", nullable(time())),
            ("error", nullable(to("Failure"))),
            ("memory_bytes", nullable(integer())),
            ("cpu_ms", nullable(integer())),
        ]),
    );
    let mut detail = task_run.to_vec();
    detail.push(("attempts", array(to("Attempt"))));
    all.insert("TaskDetail", object(&detail));
    all.insert(
        "Run",
        object(&[
            ("id", uuid()),
            ("group", name()),
            ("revision", integer()),
            ("logical_time", time()),
            ("data_interval", object(&[("start", time()), ("end", time())])),
            ("trigger", trigger.clone()),
            ("state", run_state.clone()),
            ("params", some_object()),
            ("task_params", some_object()),
            ("key", nullable(text())),
            ("priority", integer()),
            ("created_at", time()),
            ("started_at", nullable(time())),
            ("finished_at", nullable(time())),
            ("error", nullable(to("Failure"))),
            ("labels", map(text())),
            ("skipped", nullable(one_of(&["overlap", "max_waiting"]))),
            ("waiting_for", array(any())),
            ("source?", text()),
            ("override?", to("Override")),
            ("scripts?", map(text())),
            ("tasks?", array(to("TaskRun"))),
        ]),
    );
    all.insert("RunList", list_of(to("Run")));
    all.insert(
        "Submission",
        object(&[
            ("params?", some_object()),
            ("task_params?", map(some_object())),
            ("logical_time?", time()),
            ("key?", text()),
            ("dedupe?", one_of(&["params", "params_kept"])),
            ("priority?", integer()),
            ("labels?", map(text())),
            ("callback?", text()),
            ("force?", flag()),
        ]),
    );
    all.insert(
        "Batch",
        object(&[(
            "runs",
            json!({"type": "array", "maxItems": 10_000, "items": to("Submission")}),
        )]),
    );
    let result = object(&[
        ("status", integer()),
        ("id?", uuid()),
        ("key?", text()),
        ("existing?", text()),
        ("problem?", to("Problem")),
    ]);
    all.insert(
        "BatchResults",
        object(&[("accepted", integer()), ("items", array(result))]),
    );
    let line = object(&[
        ("cursor", text()),
        ("at", time()),
        ("task", name()),
        ("item", nullable(integer())),
        ("attempt", integer()),
        ("level", text()),
        ("message", text()),
        ("fields", any()),
    ]);
    all.insert("LogList", list_of(line));
    all.insert("ScriptsChoice", object(&[("scripts?", one_of(&["pinned", "active"]))]));
    all.insert(
        "StateOverride",
        object(&[("state", one_of(&["succeeded", "failed"])), ("reason", text())]),
    );
    all.insert(
        "TaskOverride",
        object(&[
            ("state", one_of(&["succeeded", "failed", "skipped"])),
            ("reason", text()),
            ("output?", any()),
        ]),
    );
    all.insert("ClearTask", object(&[("downstream?", flag()), ("reason?", text())]));
    let some = |one: Value| json!({"anyOf": [one.clone(), array(one)]});
    let filter = object(&[
        ("group?", some(name())),
        ("state?", some(run_state.clone())),
        ("trigger?", some(trigger)),
        ("label?", some(text())),
        ("labels?", map(text())),
        ("key?", text()),
        ("from?", time()),
        ("to?", time()),
        ("logical_from?", time()),
        ("logical_to?", time()),
        ("ids?", array(uuid())),
        ("queue?", some(name())),
        ("script?", some(text())),
    ]);
    all.insert(
        "Bulk",
        object(&[
            ("filter", filter),
            (
                "action",
                one_of(&[
                    "cancel", "pause", "resume", "restart", "rerun", "state", "override", "clear", "delete",
                ]),
            ),
            ("dry_run?", flag()),
            ("scripts?", one_of(&["pinned", "active"])),
            ("state?", run_state),
            ("reason?", text()),
            ("task?", name()),
            ("item?", integer()),
            ("downstream?", flag()),
        ]),
    );
    all.insert(
        "BulkReport",
        object(&[
            ("matched", integer()),
            ("changed", integer()),
            ("ids", array(uuid())),
            ("refused", array(object(&[("id", uuid()), ("detail", text())]))),
            ("dry_run", flag()),
        ]),
    );
}

/// Adds the times that all named things have.
fn named(mut fields: Vec<(&'static str, Value)>) -> Value {
    fields.insert(0, ("name", name()));
    fields.push(("created_at", time()));
    fields.push(("updated_at", time()));
    object(&fields)
}

fn control(all: &mut Schemas) {
    all.insert("CategorySpec", object(&[("name?", name()), ("description?", text())]));
    all.insert("Category", named(vec![("description", text())]));
    all.insert("CategoryList", list_of(to("Category")));
    all.insert(
        "JsonSchema",
        json!({"type": ["object", "boolean"], "description": "A JSON Schema."}),
    );
    all.insert("Template", named(vec![("schema", to("JsonSchema"))]));
    all.insert("TemplateList", list_of(to("Template")));
    all.insert(
        "SecretSpec",
        object(&[
            ("value", text()),
            ("groups?", array(text())),
            ("categories?", array(text())),
        ]),
    );
    all.insert(
        "Secret",
        named(vec![("groups", array(text())), ("categories", array(text()))]),
    );
    all.insert("SecretList", list_of(to("Secret")));
    all.insert(
        "ConnectionSpec",
        object(&[
            ("url?", text()),
            ("groups?", array(text())),
            ("categories?", array(text())),
            ("max_connections?", integer()),
            ("read_only?", flag()),
        ]),
    );
    let connection = vec![
        ("groups", array(text())),
        ("categories", array(text())),
        ("max_connections", integer()),
        ("read_only", flag()),
    ];
    all.insert("Connection", named(connection));
    all.insert("ConnectionList", list_of(to("Connection")));
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
    all.insert(
        "TokenSpec",
        object(&[
            ("name", name()),
            ("role", role.clone()),
            ("queues?", bound_to(name(), "queues")),
            ("uids?", bound_to(text(), "users")),
            ("expires_at?", time()),
        ]),
    );
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
    all.insert("Token", object(&token));
    let mut new_token = token.to_vec();
    new_token.push(("token", json!({"type": "string", "description": "Shown this once."})));
    all.insert("NewToken", object(&new_token));
    all.insert("TokenList", list_of(to("Token")));
    all.insert(
        "Resealed",
        object(&[
            ("key_id", text()),
            ("secrets", integer()),
            ("connections", integer()),
            ("channels", integer()),
        ]),
    );
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
        "BackfillRequest",
        object(&[
            ("from", text()),
            ("to?", text()),
            ("step?", text()),
            (
                "order?",
                json!({"type": "string", "enum": ["asc", "desc"], "default": "asc"}),
            ),
            (
                "max_active?",
                json!({"type": "integer", "minimum": 1, "maximum": heddle_domain::backfill::ACTIVE_MAX, "default": 1}),
            ),
            (
                "on_existing?",
                json!({"type": "string", "enum": ["skip", "failed", "all"], "default": "skip"}),
            ),
            ("include_downstream?", json!({"type": "boolean", "default": false})),
            (
                "scripts?",
                json!({"type": "string", "enum": ["active", "pinned"], "default": "active"}),
            ),
            ("priority?", integer()),
            ("params?", json!({"type": "object"})),
            ("dry_run?", json!({"type": "boolean", "default": false})),
            ("force?", json!({"type": "boolean", "default": false})),
        ]),
    );
    let time = || json!({"type": "string", "format": "date-time"});
    all.insert(
        "Backfill",
        object(&[
            ("id", json!({"type": "string", "format": "uuid"})),
            ("group", name()),
            (
                "state",
                json!({"type": "string", "enum": ["running", "paused", "succeeded", "failed", "cancelled"]}),
            ),
            ("from", time()),
            ("to", nullable(time())),
            ("step", nullable(text())),
            ("order", text()),
            ("max_active", integer()),
            ("on_existing", text()),
            ("include_downstream", json!({"type": "boolean"})),
            ("scripts", text()),
            ("priority", integer()),
            ("params", json!({"type": "object"})),
            ("total", integer()),
            ("counts", map(integer())),
            ("skipped", integer()),
            ("position", nullable(time())),
            ("note", nullable(text())),
            ("created_at", time()),
            ("created_by", text()),
            ("finished_at", nullable(time())),
        ]),
    );
    all.insert(
        "BackfillPlan",
        object(&[("instants", array(time())), ("total", integer())]),
    );
    all.insert("BackfillList", list_of(to("Backfill")));
    all.insert(
        "CompatibilityAnswer",
        object(&[("code", integer()), ("msg", text()), ("data", json!({}))]),
    );
    all.insert("TimerTaskId", object(&[("taskId", integer())]));
    timer_task(all);
    all.insert("PoolSpec", object(&[("name?", name()), ("slots", integer())]));
    all.insert("Pool", named(vec![("slots", integer())]));
    all.insert("PoolList", list_of(to("Pool")));
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
    let node = object(&[
        ("id", text()),
        ("name", text()),
        ("address", nullable(text())),
        ("state", one_of(&["active", "draining", "fenced", "stopped", "lost"])),
        ("version", text()),
        ("started_at", time()),
        ("heartbeat_at", time()),
        ("position", integer()),
        ("position_newest", integer()),
        ("slots", integer()),
        ("running", integer()),
    ]);
    all.insert("NodeList", list_of(node));
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
    all.insert("AuditList", list_of(audit));
    let by_state = |of: fn() -> Value| object(&[("succeeded?", of()), ("failed?", of()), ("cancelled?", of())]);
    let mut kept: Vec<(&str, Value)> = ["hot?", "runs?", "audit?", "events?", "assignments?", "notifications?"]
        .into_iter()
        .map(|name| (name, duration()))
        .collect();
    kept.extend([("states?", by_state(duration)), ("logs?", nullable(duration()))]);
    all.insert("Retention", object(&kept));
    all.insert(
        "RetentionOrPruned",
        json!({
            "anyOf": [to("Retention"), to("Pruned")],
            "description": "How long things are kept from now on; with `dry_run`, what would be removed now.",
        }),
    );
    all.insert(
        "Prune",
        object(&[("dry_run?", json!({"type": "boolean", "default": false}))]),
    );
    let days = || array(json!({"type": "string", "format": "date"}));
    all.insert(
        "Pruned",
        object(&[
            ("dry_run", json!({"type": "boolean"})),
            ("runs", integer()),
            ("by_state", by_state(integer)),
            ("days", days()),
            ("log_days", days()),
            ("logs", integer()),
            ("audit", integer()),
            ("events", integer()),
            ("assignments", integer()),
            ("notifications", integer()),
            ("occurrences", integer()),
            ("offers", integer()),
            ("backfills", integer()),
            ("tokens", integer()),
            ("more", json!({"type": "boolean"})),
        ]),
    );
}
