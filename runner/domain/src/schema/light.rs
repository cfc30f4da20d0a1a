//! Schemas that are checked in this process: those whose cost is bounded by their size times the value's, whatever
//! their content.
//!
//! This does not estimate the cost of a schema. It is a short list of keywords, each of which reads a position in the
//! value once and costs no more than its own text and that position. A schema with any other keyword, with more than a
//! few hundred lines when its references are written out, or with circular references, is not light, and is computed
//! with bounds from outside ([`crate::bounded`]). That only costs some hundred microseconds a check; so if in doubt, a
//! keyword is not on the list.

use serde_json::{Map, Value};

/// How many subschemas, members of lists and the like a light schema has, its references written out.
const WEIGHT_MAX: u64 = 2_000;
/// How deeply they may be nested, with references followed.
const DEPTH_MAX: usize = 32;
/// The largest product of a schema's weight and the number of a value's positions that is checked in this process: some
/// milliseconds of work.
const PRODUCT_MAX: u64 = 100_000;
/// This many bytes of a text count as one position.
const TEXT_BYTES: usize = 64;
/// The weight of a pattern, and its maximum length.
const PATTERN_WEIGHT: u64 = 20;
const PATTERN_MAX_BYTES: usize = 64;

/// Keywords that say something to people, and nothing to the validator.
const SAID: [&str; 8] = [
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$comment",
];
/// Keywords with a scalar value, which is compared with a scalar value.
const BOUNDS: [&str; 14] = [
    "type",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "enum",
    "const",
];
const FORMATS: [&str; 24] = [
    "date",
    "date-time",
    "time",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "int",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float",
    "double",
    "byte",
    "binary",
    "password",
];
/// The drafts in which the keywords have the meaning that this module assumes. Schemas of other drafts are not light.
const DRAFTS: [&str; 3] = [
    "https://json-schema.org/draft/2020-12/schema",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-07/schema",
];

/// The weight of a light schema; `None` of any other.
pub(super) fn weight(schema: &Value) -> Option<u64> {
    let mut weigher = Weigher {
        root: schema,
        left: WEIGHT_MAX,
    };
    weigher.weigh(schema, 0)?;
    Some(WEIGHT_MAX - weigher.left)
}

/// Whether a value is small enough to be checked in this process by a schema of this weight.
pub(super) fn is_small(value: &Value, weight: u64) -> bool {
    take_positions(value, &mut (PRODUCT_MAX / weight.max(1))).is_some()
}

/// Subtracts the positions in a value from the rest.
fn take_positions(value: &Value, left: &mut u64) -> Option<()> {
    let mut take = |count: usize| -> Option<()> {
        *left = left.checked_sub(count as u64)?;
        Some(())
    };
    match value {
        Value::String(text) => take(1 + text.len() / TEXT_BYTES),
        Value::Array(items) => {
            take(1)?;
            items.iter().try_for_each(|item| take_positions(item, left))
        }
        Value::Object(fields) => {
            take(1)?;
            fields.iter().try_for_each(|(key, item)| {
                *left = left.checked_sub((key.len() / TEXT_BYTES) as u64)?;
                take_positions(item, left)
            })
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => take(1),
    }
}

struct Weigher<'s> {
    root: &'s Value,
    left: u64,
}

impl<'s> Weigher<'s> {
    fn take(&mut self, count: u64) -> Option<()> {
        self.left = self.left.checked_sub(count)?;
        Some(())
    }

    fn weigh(&mut self, schema: &'s Value, depth: usize) -> Option<()> {
        self.take(1)?;
        let fields = match schema {
            Value::Bool(_) => return Some(()),
            Value::Object(fields) => fields,
            _ => return None,
        };
        if depth > DEPTH_MAX {
            return None;
        }
        fields
            .iter()
            .try_for_each(|(keyword, value)| self.keyword(keyword, value, depth))
    }

    fn keyword(&mut self, keyword: &str, value: &'s Value, depth: usize) -> Option<()> {
        match (keyword, value) {
            ("$schema", Value::String(draft)) if depth == 0 => DRAFTS.contains(&draft.as_str()).then_some(()),
            ("$ref", Value::String(reference)) => {
                let target = self.target(reference)?;
                self.weigh(target, depth + 1)
            }
            ("$defs" | "definitions" | "properties", Value::Object(all)) => {
                all.values().try_for_each(|one| self.weigh(one, depth + 1))
            }
            ("items" | "additionalProperties" | "not" | "if" | "then" | "else", one) => self.weigh(one, depth + 1),
            ("prefixItems" | "allOf" | "anyOf" | "oneOf", Value::Array(all)) => {
                all.iter().try_for_each(|one| self.weigh(one, depth + 1))
            }
            ("required", Value::Array(all)) => self.take(all.len() as u64),
            ("uniqueItems", Value::Bool(false)) => Some(()),
            ("format", Value::String(format)) => FORMATS.contains(&format.as_str()).then_some(()),
            ("pattern", Value::String(pattern)) => {
                is_plain_pattern(pattern).then_some(())?;
                self.take(PATTERN_WEIGHT)
            }
            (keyword, value) if BOUNDS.contains(&keyword) || SAID.contains(&keyword) || keyword.starts_with("x-") => {
                take_positions(value, &mut self.left)
            }
            _ => None,
        }
    }

    /// The target of a reference to one of the definitions, in the form that generators of schemas write.
    fn target(&self, reference: &str) -> Option<&'s Value> {
        ["$defs", "definitions"].into_iter().find_map(|keyword| {
            let name = reference.strip_prefix("#/")?.strip_prefix(keyword)?.strip_prefix('/')?;
            let plain = |char: char| char.is_ascii_alphanumeric() || matches!(char, '_' | '-' | '.');
            let all: &'s Map<String, Value> = self.root.get(keyword)?.as_object()?;
            name.chars().all(plain).then(|| all.get(name))?
        })
    }
}

/// Whether a pattern is a sequence of characters and classes, each perhaps repeated: without groups there is no nesting
/// and no backtracking over them.
fn is_plain_pattern(pattern: &str) -> bool {
    let plain = |char: char| char.is_ascii_alphanumeric() || " _-:./@,^$+*?[]\\".contains(char);
    let escaped = |window: &[u8]| window[0] != b'\\' || matches!(window[1], b'd' | b'w' | b's' | b'.' | b'-' | b'/');
    pattern.len() <= PATTERN_MAX_BYTES
        && pattern.chars().all(plain)
        && !pattern.ends_with('\\')
        && pattern.as_bytes().windows(2).all(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_people_write_is_light() {
        for schema in [
            json!(true),
            json!({"type": "object", "required": ["n"], "additionalProperties": false, "properties": {
                "n": {"type": ["integer", "null"], "minimum": 0, "format": "uint32", "title": "N", "default": 3},
                "name": {"type": "string", "pattern": "^[a-z][a-z0-9_-]*$", "maxLength": 20},
                "list": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 9},
            }}),
            // As schemars writes them.
            json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Params", "type": "object",
                   "properties": {"mode": {"$ref": "#/$defs/Mode"}, "maybe": {"anyOf": [{"$ref": "#/$defs/Mode"}, {"type": "null"}]}},
                   "$defs": {"Mode": {"oneOf": [{"const": "fast", "description": "x"}, {"const": "slow"}]}}}),
        ] {
            assert!(weight(&schema).is_some(), "{schema}");
        }
    }

    #[test]
    fn anything_else_is_not() {
        let doubling: Map<String, Value> = (0..20)
            .map(|level| {
                let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
                (format!("d{level}"), json!({"allOf": [next, next]}))
            })
            .chain([("d20".to_owned(), json!(true))])
            .collect();
        let mut deep = json!(true);
        for _ in 0..50 {
            deep = json!({"not": deep});
        }
        for schema in [
            json!({"$ref": "#/$defs/d0", "$defs": doubling}),
            json!({"$ref": "#"}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}),
            json!({"$ref": "#/$defs/nowhere"}),
            json!({"$ref": "other"}),
            json!({"$id": "a"}),
            json!({"unevaluatedProperties": false}),
            json!({"properties": {"a": {"$dynamicRef": "#a"}}}),
            json!({"patternProperties": {"^a": true}}),
            json!({"uniqueItems": true}),
            json!({"pattern": "(a+)+$"}),
            json!({"pattern": "a{1000}"}),
            json!({"pattern": "a\\b"}),
            json!({"format": "regex"}),
            json!({"whatever": 1}),
            json!({"properties": 1}),
            json!({"enum": vec![1; 3_000]}),
            json!({"$schema": "http://json-schema.org/draft-04/schema#"}),
            deep,
        ] {
            assert_eq!(weight(&schema), None, "{schema}");
        }
    }

    #[test]
    fn large_values_are_not_small() {
        assert!(is_small(&json!({"a": [1, 2, "x"]}), 30));
        assert!(!is_small(&json!(vec![0; 10_000]), 30));
        assert!(!is_small(&json!("x".repeat(1 << 20)), 30));
    }
}
