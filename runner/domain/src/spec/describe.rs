//! JSON Schemas of values that have more than one form, which cannot be derived from Serde's attributes.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{AudienceSpec, ByteSize, STOCK_MAX, TimeoutSpec};

/// An audience alone, or with all that may be said of an offer to it.
pub(super) fn audience(generator: &mut SchemaGenerator) -> Schema {
    let spec = generator.subschema_for::<AudienceSpec>();
    json_schema!({"anyOf": [{"type": "string", "examples": ["gid_team"]}, spec]})
}

/// The stock of an occurrence, or of an offer that is a task.
pub fn stock(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [{"type": "integer", "minimum": 1, "maximum": STOCK_MAX}, {"const": "each"}, {"type": "null"}]})
}

/// A condition: an expression, or a constant.
pub(super) fn condition(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["string", "boolean"], "examples": ["params.rows > 0"]})
}

impl JsonSchema for TimeoutSpec {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Timeout".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "description": "A duration, or `never`.", "examples": ["90s", "never"]})
    }
}

impl JsonSchema for ByteSize {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": ["integer", "string"],
            "minimum": 0,
            "description": "Bytes: a number, or text such as `128MiB`.",
            "examples": ["128MiB"],
        })
    }
}
