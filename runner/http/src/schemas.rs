//! The schemas of bodies that are no types of the wire: bytes, text, counts, and what the compatibility calls take.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// All of them, by name.
pub fn all() -> BTreeMap<&'static str, Value> {
    let mut all = BTreeMap::from([
        ("Any", json!({})),
        ("Text", json!({"type": "string"})),
        ("Stats", json!({"type": "object"})),
        (
            "Wasm",
            json!({"description": "WebAssembly, binary or text. At most 64 MiB."}),
        ),
        (
            "Source",
            json!({"type": "string", "description": "A script as source text in UTF-8. At most 1 MiB."}),
        ),
    ]);
    timer_tasks(&mut all);
    all
}

/// What the compatibility calls take and answer.
fn timer_tasks(all: &mut BTreeMap<&'static str, Value>) {
    let (text, integer) = (|| json!({"type": "string"}), || json!({"type": "integer"}));
    let object = |fields: &[(&str, Value)]| {
        let fields = fields.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone()));
        json!({"type": "object", "properties": fields.collect::<Map<_, _>>()})
    };
    let kind = || json!({"type": "integer", "enum": [1, 2, 3, 4]});
    let timer = object(&[
        ("timerType", kind()),
        ("type", kind()),
        ("cron", text()),
        ("initDelay", integer()),
        ("period", integer()),
        ("delay", integer()),
        ("startDateTime", text()),
        ("endDateTime", text()),
        ("status", integer()),
    ]);
    let timers = object(&[("timerList", json!({"type": "array", "items": timer}))]);
    let reference = json!({"$ref": "#/components/schemas/TimerTask"});
    let mut task = vec![
        ("taskId", integer()),
        ("taskName", text()),
        ("appServiceName", text()),
        ("apiServiceName", text()),
        ("apiMethodName", text()),
        ("timeout", integer()),
        ("status", integer()),
        ("subTaskList", json!({"type": "array", "items": reference})),
    ];
    all.insert("TimerTask", object(&task));
    // The older shape has the tree's fields on the top level.
    task.extend([("taskInfoConf", reference), ("taskScheduleConf", timers)]);
    all.insert("TimerTaskSubmission", object(&task));
    let mut id = object(&[("taskId", integer())]);
    id["required"] = json!(["taskId"]);
    all.insert("TimerTaskId", id);
    let mut answer = object(&[("code", integer()), ("msg", text()), ("data", json!({}))]);
    answer["required"] = json!(["code", "msg", "data"]);
    all.insert("CompatibilityAnswer", answer);
}
