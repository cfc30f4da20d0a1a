//! How much work it is to check a value, reckoned before it is done.
//!
//! A schema is a program that strangers write: `anyOf` over `$ref` over `anyOf` doubles with each line, and the checker
//! can be neither interrupted nor charged. What it will do can be counted beforehand, since it looks at a subschema once
//! for each way that leads to it, whatever it finds: the number for a subschema at a place of the value is one and those
//! of the subschemas that it applies there and below. Each pair of a subschema and a place is reckoned once and
//! remembered, so that counting stays within what is allowed, however large the number becomes.
//!
//! The keywords are those of JSON Schema 2020-12 and its predecessors from draft 4 on that have subschemas
//! (<https://json-schema.org/draft/2020-12/json-schema-core>, sections 10 and 11).

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::references::{References, place};

/// How many subschemas may be looked at for a small value; each may take microseconds, and memory, if it fails.
const LOOKS_MIN: u64 = 50_000;

/// How many more for each place of the value.
const LOOKS_PER_PLACE: u64 = 10;

/// What a pattern counts that may go back: one with groups that look around or behind.
const PATTERN_LOOKS: u64 = 20;

/// How deep subschemas may lie in each other, `$ref`s followed: the checker recurses as deep.
const DEPTH_MAX: usize = 400;

/// Where a subschema is applied.
enum Where<'s> {
    /// To the same value.
    Here,
    /// To one member.
    Key(&'s str),
    /// To one element.
    Index(usize),
    /// To all members or elements, or to some of them.
    Each,
    /// To the names of all members.
    Names,
}

/// Calls `seen` with each subschema that a schema applies itself.
fn subschemas<'s>(schema: &'s Map<String, Value>, seen: &mut dyn FnMut(Where<'s>, &'s Value)) {
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            ("allOf" | "anyOf" | "oneOf", Value::Array(all)) => all.iter().for_each(|one| seen(Where::Here, one)),
            ("not" | "if" | "then" | "else", one) => seen(Where::Here, one),
            ("dependentSchemas" | "dependencies", Value::Object(all)) => {
                all.values().for_each(|one| seen(Where::Here, one));
            }
            ("properties", Value::Object(all)) => all.iter().for_each(|(key, one)| seen(Where::Key(key), one)),
            ("patternProperties", Value::Object(all)) => all.values().for_each(|one| seen(Where::Each, one)),
            ("prefixItems" | "items", Value::Array(all)) => {
                all.iter()
                    .enumerate()
                    .for_each(|(index, one)| seen(Where::Index(index), one));
            }
            (
                "items"
                | "additionalItems"
                | "unevaluatedItems"
                | "contains"
                | "additionalProperties"
                | "unevaluatedProperties",
                one,
            ) => seen(Where::Each, one),
            ("propertyNames", one) => seen(Where::Names, one),
            _ => {}
        }
    }
}

/// A schema whose references have been looked up.
#[derive(Debug)]
pub(super) struct Effort {
    /// In a place of its own, which does not change: the references are known by it.
    schema: Box<Value>,
    references: References,
    /// How many subschemas there are with all references written out; `u64::MAX`: no end of them.
    unfolded: u64,
}

/// How many places a value has.
fn places(value: &Value) -> u64 {
    match value {
        Value::Array(all) => 1 + all.iter().map(places).sum::<u64>(),
        Value::Object(all) => 1 + all.values().map(places).sum::<u64>(),
        _ => 1,
    }
}

/// Whether one match of a pattern may go back: the others take time in proportion to the text.
fn may_go_back(pattern: &str) -> bool {
    pattern.contains("(?")
        || pattern
            .as_bytes()
            .windows(2)
            .any(|two| two[0] == b'\\' && two[1].is_ascii_digit())
}

/// The patterns of a schema itself.
fn patterns(schema: &Map<String, Value>) -> u64 {
    let own = schema.get("pattern").and_then(Value::as_str).into_iter();
    let keys = schema.get("patternProperties").and_then(Value::as_object).into_iter();
    let all = own.chain(keys.flat_map(|all| all.keys().map(String::as_str)));
    all.filter(|pattern| may_go_back(pattern)).count() as u64 * PATTERN_LOOKS
}

impl Effort {
    /// Looks up the references of a schema. An error says what stands in the way of reckoning with it.
    pub(super) fn of(schema: &Value) -> Result<Self, String> {
        let schema = Box::new(schema.clone());
        let mut effort = Self {
            references: References::of(&schema)?,
            schema,
            unfolded: 0,
        };
        effort.unfolded = effort.unfold(&effort.schema, 0, &mut HashMap::new())?.looks;
        Ok(effort)
    }

    /// What a schema comes to with its references written out; one that it is within comes to no end.
    fn unfold<'s>(
        &'s self,
        schema: &'s Value,
        depth: usize,
        counts: &mut HashMap<usize, Option<Sum>>,
    ) -> Result<Sum, String> {
        let too_deep = || format!("its subschemas lie in each other more than {DEPTH_MAX} deep");
        let Value::Object(fields) = schema else {
            return Ok(Sum::ONE);
        };
        if depth > DEPTH_MAX {
            return Err(too_deep());
        }
        match counts.get(&place(schema)) {
            Some(Some(sum)) => return Ok(*sum),
            Some(None) => return Ok(Sum::ENDLESS),
            None => {}
        }
        counts.insert(place(schema), None);
        let mut inner: Vec<&Value> = Vec::new();
        subschemas(fields, &mut |_, one| inner.push(one));
        if References::has(fields) {
            inner.extend(self.references.targets(&self.schema, schema)?);
        }
        let mut sum = Sum::of(fields);
        for one in inner {
            sum.add(self.unfold(one, depth + 1, counts)?);
        }
        if sum.height > DEPTH_MAX {
            return Err(too_deep());
        }
        counts.insert(place(schema), Some(sum));
        Ok(sum)
    }

    /// Whether checking a value stays within what is allowed.
    pub(super) fn is_bearable(&self, value: &Value) -> bool {
        let places = places(value);
        if self.unfolded.saturating_mul(places) <= LOOKS_MIN {
            return true;
        }
        let mut reckoning = Reckoning {
            root: &self.schema,
            references: &self.references,
            left: LOOKS_MIN + LOOKS_PER_PLACE * places,
            known: HashMap::new(),
        };
        reckoning.looks(&self.schema, value, 0).is_some()
    }
}

/// What a subschema comes to.
#[derive(Clone, Copy)]
struct Sum {
    looks: u64,
    /// How deep they lie in each other.
    height: usize,
}

impl Sum {
    const ONE: Self = Self { looks: 1, height: 1 };
    /// How deep that is hangs on the value.
    const ENDLESS: Self = Self {
        looks: u64::MAX,
        height: 1,
    };

    /// Of a schema without its subschemas.
    fn of(schema: &Map<String, Value>) -> Self {
        Self {
            looks: 1 + patterns(schema),
            height: 1,
        }
    }

    fn add(&mut self, inner: Self) {
        self.looks = self.looks.saturating_add(inner.looks);
        self.height = self.height.max(inner.height + 1);
    }
}

struct Reckoning<'s> {
    root: &'s Value,
    references: &'s References,
    /// The most that anything may come to.
    left: u64,
    /// By subschema and place; `None`: being reckoned, so that it would have no end.
    known: HashMap<(usize, usize), Option<Sum>>,
}

/// What stands for the names of members: they have no place of their own.
static NAME: Value = Value::Null;

impl<'s> Reckoning<'s> {
    /// What a schema comes to at a value; `None`: to too much.
    fn looks(&mut self, schema: &'s Value, value: &Value, depth: usize) -> Option<Sum> {
        let Value::Object(fields) = schema else {
            return Some(Sum::ONE);
        };
        if depth > DEPTH_MAX {
            return None;
        }
        let key = (place(schema), place(value));
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        self.known.insert(key, None);
        let mut inner = Vec::new();
        subschemas(fields, &mut |at, one| inner.push((at, one)));
        if References::has(fields) {
            let led = self.references.targets(self.root, schema).unwrap_or_default();
            inner.extend(led.into_iter().map(|one| (Where::Here, one)));
        }
        let mut sum = Sum::of(fields);
        for (at, one) in inner {
            let mut more = |this: &mut Self, inner: &Value| -> Option<()> {
                sum.add(this.looks(one, inner, depth + 1)?);
                (sum.looks <= this.left && sum.height <= DEPTH_MAX).then_some(())
            };
            match (at, value) {
                (Where::Here, _) => more(self, value)?,
                (Where::Key(key), Value::Object(all)) => all.get(key).map_or(Some(()), |inner| more(self, inner))?,
                (Where::Index(index), Value::Array(all)) => {
                    all.get(index).map_or(Some(()), |inner| more(self, inner))?;
                }
                (Where::Each, Value::Array(all)) => all.iter().try_for_each(|inner| more(self, inner))?,
                (Where::Each, Value::Object(all)) => all.values().try_for_each(|inner| more(self, inner))?,
                (Where::Names, Value::Object(all)) => all.values().try_for_each(|_| more(self, &NAME))?,
                _ => {}
            }
        }
        self.known.insert(key, Some(sum));
        Some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Alternatives within alternatives: twice as many with each level.
    fn bomb(levels: usize) -> Value {
        let mut all = Map::new();
        for level in 0..levels {
            let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
            let one = |key: &str| json!({"allOf": [next, {"required": [key]}]});
            all.insert(format!("d{level}"), json!({"anyOf": [one("q"), one("r")]}));
        }
        all.insert(format!("d{levels}"), json!({"type": "object"}));
        json!({"$ref": "#/$defs/d0", "$defs": all})
    }

    fn is_bearable(schema: &Value, value: &Value) -> bool {
        Effort::of(schema).unwrap().is_bearable(value)
    }

    #[test]
    fn what_doubles_is_refused() {
        assert!(is_bearable(&bomb(8), &json!({})));
        for levels in [16, 24, 60] {
            assert!(!is_bearable(&bomb(levels), &json!({})), "{levels}");
        }
        // So is what doubles with each level of the value.
        let twice = json!({"anyOf": [{"properties": {"c": {"$ref": "#"}}}, {"properties": {"c": {"$ref": "#"}}, "required": ["x"]}]});
        let mut deep = json!({});
        assert!(is_bearable(&twice, &json!({"c": {"c": {}}})));
        for _ in 0..60 {
            deep = json!({"c": deep});
        }
        assert!(!is_bearable(&twice, &deep));
        // And what has no end.
        assert!(!is_bearable(&json!({"$ref": "#"}), &json!({})));
        let around =
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"});
        assert!(!is_bearable(&around, &json!(1)));
    }

    #[test]
    fn what_people_write_is_not() {
        let tree = json!({
            "$defs": {"node": {"type": "object", "properties": {
                "name": {"type": "string", "pattern": "^(?!_)[a-z]+$"},
                "left": {"$ref": "#/$defs/node"}, "right": {"$ref": "#/$defs/node"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            }}},
            "$ref": "#/$defs/node",
        });
        let leaf = json!({"name": "a"});
        let wide = json!({"left": leaf, "right": leaf, "children": vec![leaf.clone(); 1_000]});
        assert!(is_bearable(&tree, &wide));
        let rows = json!({"properties": {"rows": {"items": {"oneOf": [
            {"type": "integer"}, {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}},
        ]}}}});
        assert!(is_bearable(&rows, &json!({"rows": vec![json!({"id": 1}); 50_000]})));
        let named = json!({"$defs": {"a": {"$anchor": "here", "type": "null"}}, "$ref": "#here", "propertyNames": {"maxLength": 9}});
        assert!(is_bearable(&named, &json!({"a": 1})));
    }

    #[test]
    fn patterns_that_go_back_count() {
        let back = json!({"items": {"pattern": "^(a+)+\\1$"}});
        let texts = json!(vec!["a".repeat(40); 20_000]);
        assert!(!is_bearable(&back, &texts));
        assert!(is_bearable(&json!({"items": {"pattern": "^(a+)+$"}}), &texts));
    }

    #[test]
    fn what_cannot_be_reckoned_with_is_no_schema() {
        let mut long = Map::new();
        for number in 0..5_000 {
            long.insert(
                format!("d{number}"),
                json!({"$ref": format!("#/$defs/d{}", number + 1)}),
            );
        }
        long.insert("d5000".into(), json!(true));
        for (schema, expect) in [
            (json!({"$ref": "#/$defs/d0", "$defs": long}), "deep"),
            (json!({"$ref": "#/nowhere"}), "leads to nothing"),
            (json!({"$ref": "other.json"}), "leads to nothing"),
        ] {
            let said = Effort::of(&schema).unwrap_err();
            assert!(said.contains(expect), "{said}");
        }
    }
}
