//! The schemas of bodies that are no types of the wire: bytes, text, any JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// All of them, by name.
pub fn all() -> BTreeMap<&'static str, Value> {
    BTreeMap::from([
        ("Any", json!({})),
        ("Text", json!({"type": "string"})),
        (
            "TimerTaskNumber",
            json!({
                "description": "The number of a timer task: in an object, alone, or as a string.",
                "anyOf": [
                    {"$ref": "#/components/schemas/TimerTaskId"},
                    {"type": "integer"},
                    {"type": "string", "examples": ["122"]},
                ],
            }),
        ),
        (
            "Wasm",
            json!({"description": "WebAssembly, binary or text. At most 64 MiB."}),
        ),
        (
            "Source",
            json!({"type": "string", "description": "A script as source text in UTF-8. At most 1 MiB."}),
        ),
    ])
}
