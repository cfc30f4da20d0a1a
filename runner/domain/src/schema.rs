//! JSON Schema: params against what a script or a template says of them.
//!
//! Wraps the `jsonschema` crate. Nothing outside a schema is ever fetched: a `$ref` that leads out of it is an error.
//! Patterns run with a bound on backtracking, since both they and what they are matched with come from strangers; and
//! what a check comes to is reckoned before it is done (`effort`).

mod effort;

use std::fmt;
use std::sync::Arc;

use jsonschema::error::ValidationErrorKind;
use serde_json::Value;

use crate::{Fault, Faults};
use effort::Effort;

/// How many steps back one match of a pattern may take.
const BACKTRACK_MAX: usize = 10_000;
/// The memory that one compiled pattern may take.
const PATTERN_MAX_BYTES: usize = 1 << 20;
/// The longest detail of a fault.
const DETAIL_MAX_CHARS: usize = 300;

/// A compiled schema; cheap to clone.
#[derive(Clone)]
pub struct Schema(Arc<Inner>);

enum Inner {
    Usable {
        validator: Box<jsonschema::Validator>,
        effort: Effort,
    },
    /// Nothing satisfies it, for this reason.
    Unusable(String),
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Schema")
    }
}

impl Schema {
    /// Compiles a schema (draft 2020-12 unless its `$schema` says otherwise); an error says what is wrong with it.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
            return Err("a JSON Schema is an object".into());
        }
        let effort = Effort::of(schema)?;
        jsonschema::options()
            .offline()
            .should_validate_formats(true)
            .with_pattern_options(
                jsonschema::PatternOptions::fancy_regex()
                    .backtrack_limit(BACKTRACK_MAX)
                    .size_limit(PATTERN_MAX_BYTES)
                    .dfa_size_limit(PATTERN_MAX_BYTES),
            )
            .build(schema)
            .map(|validator| {
                let validator = Box::new(validator);
                Self(Arc::new(Inner::Usable { validator, effort }))
            })
            .map_err(|error| {
                let place = error.instance_path().to_string();
                bounded(&if place.is_empty() {
                    error.to_string()
                } else {
                    format!("{place}: {error}")
                })
            })
    }

    /// The same of a schema that was let in: if it cannot be used all the same, it is one that nothing satisfies and that
    /// says why. `whose` says whose it is.
    pub fn of_kept(schema: &Value, whose: &str) -> Self {
        Self::compile(schema).unwrap_or_else(|why| {
            let why = format!("the schema of {whose} cannot be used: {why}");
            Self(Arc::new(Inner::Unusable(why)))
        })
    }

    /// Everything that is wrong with a value, at most [`Faults::MAX`] things, each with the pointer of the value that
    /// is wrong; of something missing or surplus, the pointer of the object that lacks or has it.
    pub fn check(&self, value: &Value) -> Faults {
        self.check_except(value, &[])
    }

    /// The same, for a value of which some parts are not known yet: `unknown` are the pointers of those parts. What
    /// they could still mend is not a fault.
    pub fn check_except(&self, value: &Value, unknown: &[String]) -> Faults {
        let (validator, effort) = match &*self.0 {
            Inner::Usable { validator, effort } => (validator, effort),
            Inner::Unusable(why) => return Fault::at("", why.clone()).into(),
        };
        if !effort.is_bearable(value) {
            return Fault::at("", TOO_MUCH).into();
        }
        let mut faults = Faults::default();
        for error in validator.iter_errors(value) {
            let pointer = error.instance_path().to_string();
            if !is_certain(&error, &pointer, unknown) {
                continue;
            }
            let mut detail = error.to_string();
            if detail.chars().nth(DETAIL_MAX_CHARS).is_some() {
                // It repeats the value that is wrong, which is better left out if it is so long.
                detail = error.masked().to_string();
            }
            faults.push(Fault::at(pointer, bounded(&detail)));
            if faults.0.len() >= Faults::MAX {
                break;
            }
        }
        faults
    }
}

/// Why a value is not checked.
const TOO_MUCH: &str = "to check it against its schema takes more steps than are allowed: what the schema has \
                        alternatives of (anyOf, oneOf, allOf, $ref) multiplies";

/// Whether an error stays one whatever the unknown parts turn out to be.
fn is_certain(error: &jsonschema::ValidationError<'_>, pointer: &str, unknown: &[String]) -> bool {
    if unknown.is_empty() {
        return true;
    }
    let lies_in = |inner: &str, outer: &str| {
        inner
            .strip_prefix(outer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if unknown.iter().any(|part| lies_in(pointer, part)) {
        return false;
    }
    // Which branch applies may hang on something unknown anywhere in the value.
    const BRANCHES: [&str; 6] = ["anyOf", "oneOf", "not", "then", "else", "dependentSchemas"];
    let schema_path = error.schema_path().to_string();
    if schema_path.split('/').any(|segment| BRANCHES.contains(&segment)) {
        return false;
    }
    // An object with something unknown in it has the keys that it has nevertheless.
    !unknown.iter().any(|part| lies_in(part, pointer))
        || matches!(
            error.kind(),
            ValidationErrorKind::Required { .. }
                | ValidationErrorKind::AdditionalProperties { .. }
                | ValidationErrorKind::Type { .. }
                | ValidationErrorKind::MinProperties { .. }
                | ValidationErrorKind::MaxProperties { .. }
                | ValidationErrorKind::MinItems { .. }
                | ValidationErrorKind::MaxItems { .. }
                | ValidationErrorKind::AdditionalItems { .. }
        )
}

fn bounded(text: &str) -> String {
    if text.chars().nth(DETAIL_MAX_CHARS).is_none() {
        return text.to_owned();
    }
    text.chars().take(DETAIL_MAX_CHARS).chain(" ...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(schema: Value, value: Value, unknown: &[&str], expect: &[(&str, &str)]) {
        let unknown: Vec<_> = unknown.iter().map(|pointer| (*pointer).to_owned()).collect();
        let faults = Schema::compile(&schema).unwrap().check_except(&value, &unknown);
        assert_eq!(faults.0.len(), expect.len(), "{schema} {value}: {faults}");
        for (pointer, detail) in expect {
            let found = faults
                .0
                .iter()
                .any(|fault| fault.pointer == *pointer && fault.detail.contains(detail));
            assert!(found, "{pointer} {detail} not in {faults}");
        }
    }

    #[test]
    fn each_fault_has_a_pointer() {
        let schema = json!({
            "type": "object", "required": ["table"], "additionalProperties": false,
            "properties": {
                "table": {"type": "string", "pattern": "^[a-z]+$"},
                "rows": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                "a/b": {"type": "string"},
            }
        });
        check(schema.clone(), json!({"table": "orders", "rows": [1, 2]}), &[], &[]);
        check(
            schema.clone(),
            json!({}),
            &[],
            &[("", "\"table\" is a required property")],
        );
        check(
            schema.clone(),
            json!({"table": "X", "rows": [1, "two", -3], "a/b": 1, "more": true}),
            &[],
            &[
                ("/table", "does not match"),
                ("/rows/1", "is not of type \"integer\""),
                ("/rows/2", "less than the minimum"),
                ("/a~1b", "is not of type"),
                ("", "'more' was unexpected"),
            ],
        );
        check(schema, json!([1]), &[], &[("", "is not of type \"object\"")]);
        check(json!(true), json!({"anything": 1}), &[], &[]);
    }

    #[test]
    fn what_is_unknown_may_still_be_right() {
        let schema = json!({
            "type": "object", "required": ["n", "m"], "additionalProperties": false,
            "properties": {"n": {"type": "integer"}, "m": {"type": "integer"}, "o": {"properties": {"x": {"type": "null"}}}},
            "oneOf": [{"properties": {"n": {"const": 1}}}, {"properties": {"n": {"const": 2}}}],
        });
        check(schema.clone(), json!({"n": "{{ x }}", "m": 1}), &["/n"], &[]);
        check(
            schema.clone(),
            json!({"n": "{{ x }}"}),
            &["/n"],
            &[("", "\"m\" is a required property")],
        );
        check(
            schema.clone(),
            json!({"n": "{{ x }}", "m": "1"}),
            &["/n"],
            &[("/m", "is not of type")],
        );
        check(
            schema.clone(),
            json!({"n": "{{ x }}", "m": 1, "z": 1}),
            &["/n"],
            &[("", "'z' was unexpected")],
        );
        check(schema, json!({"n": 1, "m": 1, "o": {"x": "{{ x }}"}}), &["/o/x"], &[]);
    }

    #[test]
    fn refuses_schemas() {
        for (schema, expect) in [
            (json!("string"), "a JSON Schema is an object"),
            (json!({"type": "sting"}), "sting"),
            (
                json!({"$ref": "https://example.com/schema.json"}),
                "https://example.com/schema.json",
            ),
            (json!({"$ref": "file:///etc/passwd"}), "file:///etc/passwd"),
            (json!({"pattern": "("}), "pattern"),
        ] {
            let got = Schema::compile(&schema).unwrap_err();
            assert!(got.contains(expect), "{schema}: {got}");
        }
        Schema::compile(&json!({"$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"})).unwrap();
    }

    #[test]
    fn faults_are_bounded() {
        let schema = Schema::compile(&json!({"items": {"type": "string"}, "pattern": "^(a+)+$"})).unwrap();
        let faults = schema.check(&json!(vec![1; 10_000]));
        assert_eq!(faults.0.len(), Faults::MAX);
        let long = schema.check(&json!([["x".repeat(10_000)]]));
        assert!(long.0[0].detail.len() < 1_000);
        assert!(!schema.check(&json!(format!("{}!", "a".repeat(50)))).is_empty());
    }
}
