//! The schemas of what goes in and comes out (JSON Schema 2020-12, as OpenAPI 3.1 has it).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// All of them, by name.
pub fn all() -> BTreeMap<&'static str, Value> {
    let mut all = BTreeMap::new();
    common(&mut all);
    scripts(&mut all);
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
