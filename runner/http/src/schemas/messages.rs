//! Topics, messages, days.

use serde_json::json;

use super::{
    Schemas, any, array, duration, flag, integer, list_of, name, nullable, object, one_of, some_object, text, time, to,
    uuid,
};

pub(super) fn messages(all: &mut Schemas) {
    let day = || json!({"type": "string", "format": "date"});
    let user = || json!({"type": "integer", "minimum": 0, "maximum": i64::MAX});
    let fields = [
        ("description?", text()),
        ("category?", name()),
        (
            "script?",
            json!({"type": "string", "description": "`name` or `name@3`, of the world `heddle:task/consumer`; or `queue`."}),
        ),
        ("queue?", name()),
        ("granularity?", one_of(&["day", "instant"])),
        ("timezone?", text()),
        ("send_at?", text()),
        ("batch?", json!({"type": "integer", "minimum": 1, "maximum": 1000})),
        ("concurrency?", nullable(integer())),
        (
            "rate?",
            json!({"anyOf": [object(&[("count", integer()), ("per", duration())]), {"type": "null"}]}),
        ),
        ("retry?", json!({"anyOf": [some_object(), {"type": "null"}]})),
        ("retention?", duration()),
        ("timeout?", duration()),
        ("max_payload?", any()),
        ("memory?", any()),
        ("sql?", array(name())),
        ("secrets?", array(name())),
        ("allow_hosts?", array(text())),
        ("enabled?", flag()),
    ];
    let mut spec = fields.to_vec();
    spec.insert(0, ("name?", name()));
    all.insert("TopicSpec", object(&spec));
    let mut topic = fields.to_vec();
    topic.insert(0, ("name", name()));
    topic.extend([
        ("problem", nullable(text())),
        ("created_at", time()),
        ("updated_at", time()),
    ]);
    all.insert("Topic", object(&topic));
    all.insert("TopicList", list_of(to("Topic")));
    let message = [
        ("sender", user()),
        ("receiver", user()),
        (
            "due",
            json!({"type": "string", "description": "A day such as 2026-11-21, or an instant, as the topic counts."}),
        ),
        ("payload?", any()),
        (
            "key?",
            json!({"type": ["string", "null"], "description": "Unique within its day."}),
        ),
    ];
    all.insert("Message", object(&message));
    all.insert("Messages", json!({"anyOf": [to("Message"), array(to("Message"))]}));
    all.insert(
        "MessagesAccepted",
        object(&[
            ("accepted", integer()),
            ("repeated", integer()),
            ("rejected", array(object(&[("line", integer()), ("detail", text())]))),
            ("rejected_total", integer()),
            ("ids?", array(uuid())),
        ]),
    );
    all.insert(
        "MessageView",
        object(&[
            ("id", uuid()),
            ("sender", user()),
            ("receiver", user()),
            ("due", text()),
            ("payload", any()),
            ("day", day()),
            ("bucket", integer()),
            (
                "state",
                one_of(&["scheduled", "sending", "retrying", "sent", "failed", "cancelled"]),
            ),
            ("attempts?", integer()),
            ("retry_at?", time()),
            ("error?", text()),
        ]),
    );
    all.insert("MessageList", list_of(to("MessageView")));
    all.insert(
        "MessageFilter",
        object(&[
            ("day?", day()),
            ("bucket?", integer()),
            ("sender?", user()),
            ("receiver?", user()),
        ]),
    );
    all.insert("Cancelled", object(&[("cancelled", integer())]));
    let counts = [
        ("day", day()),
        ("state", one_of(&["scheduled", "draining", "drained", "dropped"])),
        ("total", integer()),
        ("sent", integer()),
        ("failed", integer()),
        ("cancelled", integer()),
        ("in_hand", integer()),
        ("retrying", integer()),
        ("drained_at", nullable(time())),
        ("dropped_at", nullable(time())),
    ];
    let mut whole = counts.to_vec();
    whole.push((
        "buckets",
        array(object(&[
            ("bucket", integer()),
            ("total", integer()),
            ("sent", integer()),
            ("failed", integer()),
            ("cancelled", integer()),
            ("state", one_of(&["scheduled", "draining", "drained"])),
        ])),
    ));
    all.insert("MessageDay", object(&whole));
    all.insert("MessageDayList", list_of(object(&counts)));
}
