//! JSON Schema: params against what a script or a template says of them.
//!
//! Wraps the `jsonschema` crate. Nothing outside a schema is ever fetched: a `$ref` that leads out of it is an error.
//! Patterns have a bound on backtracking. A schema is a program by strangers, so only schemas with a few harmless
//! keywords (`light`) are compiled and checked in this process. All others are computed with bounds on time and memory
//! from outside ([`crate::bounded`]), at each use.

pub mod changes;
pub(crate) mod library;
mod light;
mod references;

use std::fmt;
use std::sync::Arc;

use jsonschema::Validator;
use serde_json::{Number, Value};

use crate::bounded::{Answer, Stopped, Work, key_of, perform};
use crate::fault::pointer_token;
use crate::{Fault, Faults};
use library::{Open, asked_of, faults_of, validator};

/// A schema that values are checked with; cheap to clone.
#[derive(Clone)]
pub struct Schema(Arc<Inner>);

struct Inner {
    /// As it was written.
    source: Value,
    /// Its key among others.
    key: u64,
    kind: Kind,
}

enum Kind {
    /// Checked in this process, if the value is not too large.
    Light { validator: Box<Validator>, weight: u64 },
    /// Checked with bounds; an error names this owner if the schema turns out to be unusable.
    Heavy { whose: String },
    /// Nothing satisfies it, for this reason.
    Unusable(String),
}

impl fmt::Debug for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Schema")
    }
}

impl Inner {
    fn new(schema: &Value, kind: Kind) -> Self {
        Self {
            source: schema.clone(),
            key: key_of(schema.to_string().as_bytes()),
            kind,
        }
    }

    fn whose(&self) -> &str {
        match &self.kind {
            Kind::Heavy { whose } => whose,
            _ => "it",
        }
    }

    /// Whether this value can be checked in this process.
    fn in_process(&self, value: &Value, unknown: usize) -> Option<&Validator> {
        match &self.kind {
            // Each error is compared with each unknown part.
            Kind::Light { validator, weight } => {
                light::is_small(value, weight.saturating_mul(unknown.max(1) as u64)).then_some(validator)
            }
            _ => None,
        }
    }
}

/// Whether a value has the type of a schema.
fn is_one(value: &Value) -> bool {
    matches!(value, Value::Object(_) | Value::Bool(_))
}

/// The error of a value that does not.
fn none() -> Fault {
    Fault::at("", "a JSON Schema must be an object or a boolean")
}

fn cannot_be_used(whose: &str, why: &Fault) -> String {
    format!("the schema of {whose} is not valid: {why}")
}

/// The error for a schema, or a value, that needed too much time or memory.
fn too_much(what: &str, stopped: &Stopped) -> String {
    format!("{what} was stopped: {stopped}")
}

impl Schema {
    /// Compiles a schema (draft 2020-12 unless its `$schema` says otherwise); an error says what is wrong with it, and
    /// where in it.
    pub fn compile(schema: &Value) -> Result<Self, Fault> {
        if !is_one(schema) {
            return Err(none());
        }
        if let Some(light) = Self::light(schema) {
            return light;
        }
        let inner = Inner::new(schema, Kind::Heavy { whose: "it".into() });
        let work = Work::CompileSchema { schema: schema.into() };
        match perform(work, inner.key, inner.key) {
            Ok(Answer::Compiled(compiled)) => compiled.map(|()| Self(Arc::new(inner))),
            Ok(_) => Err(Fault::at("", "the schema was not compiled")),
            Err(stopped) => Err(Fault::at("", too_much("compiling the schema", &stopped))),
        }
    }

    fn light(schema: &Value) -> Option<Result<Self, Fault>> {
        let weight = light::weight(schema)?;
        Some(validator(schema).map(|validator| {
            let validator = Box::new(validator);
            Self(Arc::new(Inner::new(schema, Kind::Light { validator, weight })))
        }))
    }

    /// The same for a stored schema. If it cannot be used any more, no value satisfies it, and the error says why.
    /// `whose` names its owner in that error. A schema that may take long is not compiled before a value is checked.
    pub fn of_kept(schema: &Value, whose: &str) -> Self {
        if !is_one(schema) {
            let why = cannot_be_used(whose, &none());
            return Self(Arc::new(Inner::new(schema, Kind::Unusable(why))));
        }
        match Self::light(schema) {
            Some(Ok(light)) => light,
            Some(Err(why)) => {
                let why = cannot_be_used(whose, &why);
                Self(Arc::new(Inner::new(schema, Kind::Unusable(why))))
            }
            None => Self(Arc::new(Inner::new(schema, Kind::Heavy { whose: whose.into() }))),
        }
    }

    /// As it was written.
    pub fn source(&self) -> &Value {
        &self.0.source
    }

    /// Whether values are checked where that is bounded, however small they are.
    pub fn is_heavy(&self) -> bool {
        matches!(self.0.kind, Kind::Heavy { .. })
    }

    /// Everything that is wrong with a value, at most [`Faults::MAX`] things, each with the pointer of the value that
    /// is wrong; of something missing or surplus, the pointer of the object that lacks or has it.
    pub fn check(&self, value: &Value) -> Faults {
        self.check_except(value, &[])
    }

    /// The same, for a value of which some parts are not known yet: `unknown` are the pointers of those parts. An error
    /// that these parts may still remove is no fault.
    pub fn check_except(&self, value: &Value, unknown: &[String]) -> Faults {
        let parts = unknown.to_vec();
        self.check_open(value, Open { parts, keys: false })
    }

    /// The same, for an object that may still get more keys: that it lacks one is no fault. Within it, it is.
    pub(crate) fn check_begun(&self, value: &Value, unknown: &[String]) -> Faults {
        let parts = unknown.to_vec();
        self.check_open(value, Open { parts, keys: true })
    }

    fn check_open(&self, value: &Value, open: Open) -> Faults {
        if let Kind::Unusable(why) = &self.0.kind {
            return Fault::at("", why.clone()).into();
        }
        if let Some(validator) = self.0.in_process(value, open.parts.len()) {
            return faults_of(validator, value, &open);
        }
        let work = Work::CheckSchema {
            schema: (&self.0.source).into(),
            value: value.into(),
            open,
        };
        match perform(work, self.0.key, self.0.key) {
            Ok(Answer::Checked(Ok(faults))) => faults,
            Ok(Answer::Checked(Err(why))) => Fault::at("", cannot_be_used(self.0.whose(), &why)).into(),
            Ok(_) => Fault::at("", "the value was not checked").into(),
            Err(stopped) => Fault::at("", too_much("checking the value against its schema", &stopped)).into(),
        }
    }

    /// Writes whole numbers as integers wherever the schema asks for one.
    ///
    /// For JSON Schema `5.0` is an integer: people may write it, and a division in a template gives it (`{{ 10 / 2
    /// }}`). But many readers of the value, above all typed ones, do not accept it. Values that may be any number do
    /// not change, nor do numbers beyond 64 bits.
    pub fn write_integers(&self, value: &mut Value) {
        // Most params have none of them, and every attempt comes through here.
        if !has_whole_number(value) || matches!(self.0.kind, Kind::Unusable(_)) {
            return;
        }
        let mut whole = Vec::new();
        whole_numbers(value, &mut String::new(), &mut whole);
        // The validator says where an integer is required, through every `$ref` and `anyOf`, for a copy of the value
        // with fractions in these positions. (Only errors about the type are used: bounds and constants may well fail.)
        let mut probe = value.clone();
        for (pointer, _) in &whole {
            if let Some(found) = probe.pointer_mut(pointer) {
                *found = Value::from(0.5);
            }
        }
        let asked = match self.0.in_process(&probe, 0) {
            Some(validator) => asked_of(validator, &probe),
            None => {
                let work = Work::IntegersAsked {
                    schema: (&self.0.source).into(),
                    probe: (&probe).into(),
                };
                match perform(work, self.0.key, self.0.key) {
                    Ok(Answer::Asked(asked)) => asked.into_iter().collect(),
                    _ => return,
                }
            }
        };
        for (pointer, integer) in whole {
            if asked.contains(&pointer)
                && let Some(found) = value.pointer_mut(&pointer)
            {
                *found = Value::Number(integer);
            }
        }
    }
}

fn has_whole_number(value: &Value) -> bool {
    match value {
        Value::Number(number) => integer_of(number).is_some(),
        Value::Array(items) => items.iter().any(has_whole_number),
        Value::Object(fields) => fields.values().any(has_whole_number),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

/// The pointers of floats that are whole, with the integers that they are.
fn whole_numbers(value: &Value, pointer: &mut String, found: &mut Vec<(String, Number)>) {
    let length = pointer.len();
    match value {
        Value::Number(number) => found.extend(integer_of(number).map(|integer| (pointer.clone(), integer))),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointer.push_str(&format!("/{index}"));
                whole_numbers(item, pointer, found);
                pointer.truncate(length);
            }
        }
        Value::Object(fields) => {
            for (key, item) in fields {
                pointer.push('/');
                pointer.push_str(&pointer_token(key));
                whole_numbers(item, pointer, found);
                pointer.truncate(length);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// The integer that equals a float; `None` if there is none, if it is beyond 64 bits, or if the number is an integer
/// already.
fn integer_of(number: &Number) -> Option<Number> {
    // The smallest number that does not fit into 64 bits, without a sign; with a sign, half of it.
    const BEYOND: f64 = 18_446_744_073_709_551_616.0;
    let float = number
        .as_f64()
        .filter(|float| number.is_f64() && float.fract() == 0.0)?;
    if (0.0..BEYOND).contains(&float) {
        Some(Number::from(float as u64))
    } else if (-BEYOND / 2.0..0.0).contains(&float) {
        Some(Number::from(float as i64))
    } else {
        None
    }
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
    fn keys_that_may_come_are_not_missing() {
        // The error about a name as long as this does not end with the words about what is required.
        let long = "n".repeat(400);
        let light = json!({
            "type": "object", "required": ["n", long], "maxProperties": 0,
            "properties": {"in": {"type": "object", "required": ["m"]}},
        });
        let mut heavy = light.clone();
        heavy["patternProperties"] = json!({"^a": true});
        for (schema, is_heavy) in [(light, false), (heavy, true)] {
            let schema = Schema::compile(&schema).unwrap();
            assert_eq!(schema.is_heavy(), is_heavy);
            let value = json!({"in": {}});
            let faults = schema.check_begun(&value, &[]);
            let mut pointers: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
            pointers.sort_unstable();
            assert_eq!(pointers, ["", "/in"], "{faults}");
            assert_eq!(schema.check(&value).0.len(), 4);
            assert_eq!(schema.check_begun(&value, &["/in".into()]).0.len(), 1);
        }
    }

    #[test]
    fn a_missing_property_is_named() {
        // The error about a name as long as this does not contain it either.
        let long = "n".repeat(400);
        let light = json!({
            "type": "object", "required": ["a\"b", "n", long],
            "properties": {"n": {"type": "integer"}, "in": {"type": "object", "required": ["m"]}},
        });
        let mut heavy = light.clone();
        heavy["patternProperties"] = json!({"^z": true});
        for (schema, is_heavy) in [(light, false), (heavy, true)] {
            let schema = Schema::compile(&schema).unwrap();
            assert_eq!(schema.is_heavy(), is_heavy);
            let faults = schema.check(&json!({"n": "one", "in": {}}));
            let mut named: Vec<(&str, Option<&str>)> = faults
                .0
                .iter()
                .map(|fault| (fault.pointer.as_str(), fault.missing.as_deref()))
                .collect();
            named.sort_unstable();
            assert_eq!(
                named,
                [("", None), ("", Some("a\"b")), ("/in", Some("m")), ("/n", None)]
            );
        }
    }

    #[test]
    fn whole_numbers_are_written_as_the_schema_asks() {
        let integers = |schema: Value, value: &str| {
            let mut value: Value = serde_json::from_str(value).unwrap();
            Schema::compile(&schema).unwrap().write_integers(&mut value);
            value.to_string()
        };
        let schema = json!({
            "$defs": {"deep": {"type": "object", "properties": {"m": {"type": "integer", "maximum": 0}, "f": {"type": "number"}}}},
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": 1, "format": "uint32"},
                "maybe": {"type": ["integer", "null"]},
                "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "any": {"anyOf": [{"type": "integer"}, {"type": "number"}]},
                "all": {"allOf": [{"type": "integer"}]},
                "f": {"type": "number", "maximum": 10},
                "list": {"type": "array", "items": {"type": "integer"}},
                "deep": {"$ref": "#/$defs/deep"},
                "a/b~": {"type": "integer"},
                "kind": {"oneOf": [
                    {"properties": {"is": {"const": "x"}, "v": {"type": "integer"}}, "required": ["is", "v"]},
                    {"properties": {"is": {"const": "y"}, "v": {"type": "string"}}, "required": ["is", "v"]},
                ]},
            },
        });
        for (given, written) in [
            (r#"{"n":5.0}"#, r#"{"n":5}"#),
            (r#"{"n":5}"#, r#"{"n":5}"#),
            (r#"{"n":5.5}"#, r#"{"n":5.5}"#),
            (r#"{"n":1e3,"other":1e3}"#, r#"{"n":1000,"other":1000.0}"#),
            (r#"{"maybe":-7.0}"#, r#"{"maybe":-7}"#),
            (r#"{"either":7.0,"all":7.0}"#, r#"{"all":7,"either":7}"#),
            (r#"{"f":7.0,"any":7.0}"#, r#"{"any":7.0,"f":7.0}"#),
            (r#"{"list":[1.0,2,-0.0,"x"]}"#, r#"{"list":[1,2,0,"x"]}"#),
            (r#"{"deep":{"m":-3.0,"f":-3.0}}"#, r#"{"deep":{"f":-3.0,"m":-3}}"#),
            (r#"{"a/b~":1.0}"#, r#"{"a/b~":1}"#),
            (r#"{"kind":{"is":"x","v":2.0}}"#, r#"{"kind":{"is":"x","v":2}}"#),
            (r#"{"n":9007199254740992.0}"#, r#"{"n":9007199254740992}"#),
            (r#"{"n":18446744073709549568.0}"#, r#"{"n":18446744073709549568}"#),
            (r#"{"n":18446744073709551616.0}"#, r#"{"n":1.8446744073709552e+19}"#),
            (
                r#"{"maybe":-9223372036854775808.0}"#,
                r#"{"maybe":-9223372036854775808}"#,
            ),
            (r#"{"maybe":-1e300}"#, r#"{"maybe":-1e+300}"#),
        ] {
            assert_eq!(integers(schema.clone(), given), written, "{given}");
        }
        assert_eq!(integers(json!(true), r#"{"n":5.0}"#), r#"{"n":5.0}"#);
    }

    #[test]
    fn refuses_schemas() {
        for (schema, expect) in [
            (json!("string"), "a JSON Schema must be an object or a boolean"),
            (
                json!({"properties": {"a": {"type": "sting"}}}),
                "/properties/a/type: \"sting\"",
            ),
            (
                json!({"$ref": "https://example.com/schema.json"}),
                "https://example.com/schema.json",
            ),
            (json!({"$ref": "file:///etc/passwd"}), "file:///etc/passwd"),
            (json!({"pattern": "("}), "pattern"),
        ] {
            let got = Schema::compile(&schema).unwrap_err().to_string();
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
