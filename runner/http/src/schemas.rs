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

/// What the compatibility calls take and answer. A long function, since it is a list: a field each.
fn timer_tasks(all: &mut BTreeMap<&'static str, Value>) {
    let text = |said: &str| json!({"type": "string", "description": said});
    let integer = |said: &str| json!({"type": "integer", "description": said});
    let object = |fields: &[(&str, Value)]| {
        let fields = fields.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone()));
        json!({"type": "object", "properties": fields.collect::<Map<_, _>>()})
    };
    let kind = |said: &str| json!({"type": "integer", "enum": [1, 2, 3, 4], "description": said});
    let timer = object(&[
        (
            "timerType",
            kind("1: cron, 2: fixed rate, 3: fixed delay, 4: once after a delay."),
        ),
        ("type", kind("Another name of `timerType`.")),
        ("cron", text("For type 1: the cron expression.")),
        (
            "initDelay",
            integer("For types 2 and 3: the delay before the first run, in milliseconds."),
        ),
        (
            "period",
            integer("For type 2: the duration between two runs, in milliseconds."),
        ),
        (
            "delay",
            integer(
                "For type 3: the delay after the previous run ended; for type 4: the delay before the run. In milliseconds.",
            ),
        ),
        (
            "startDateTime",
            text("The start of the window, in the time zone of `--compat-timezone`."),
        ),
        (
            "endDateTime",
            text("The end of the window, in the time zone of `--compat-timezone`."),
        ),
        ("status", integer("1: enabled (default), -1: disabled.")),
    ]);
    let timers = object(&[("timerList", json!({"type": "array", "items": timer}))]);
    let reference = json!({"$ref": "#/components/schemas/TimerTask"});
    let mut task = vec![
        (
            "taskId",
            integer("The number of an existing task. Missing: a new task is created."),
        ),
        ("taskName", text("The name of the task. Names can occur several times.")),
        (
            "appServiceName",
            text("The queue of the task. Default: that of the parent task."),
        ),
        (
            "apiServiceName",
            text("Given to the worker as the param `apiServiceName`."),
        ),
        (
            "apiMethodName",
            text("Given to the worker as the param `apiMethodName`."),
        ),
        (
            "timeout",
            integer("The timeout in milliseconds, after which the task is retried. -1: no timeout."),
        ),
        ("status", integer("1: enabled (default), -1: disabled.")),
        ("subTaskList", json!({"type": "array", "items": reference})),
    ];
    all.insert("TimerTask", object(&task));
    // The older shape has the tree's fields on the top level.
    task.extend([("taskInfoConf", reference), ("taskScheduleConf", timers)]);
    all.insert("TimerTaskSubmission", object(&task));
    let mut id = object(&[("taskId", integer("The number of the task."))]);
    id["required"] = json!(["taskId"]);
    all.insert("TimerTaskId", id);
    let mut answer = object(&[
        (
            "code",
            integer("200, or the HTTP status that the problem has below /v1."),
        ),
        (
            "msg",
            text("Empty, or what the caller should know: the problem, or notes."),
        ),
        ("data", json!({"description": "The result. null: there is a problem."})),
    ]);
    answer["required"] = json!(["code", "msg", "data"]);
    all.insert("CompatibilityAnswer", answer);
}
