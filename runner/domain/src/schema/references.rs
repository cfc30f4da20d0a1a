//! The targets of a schema's references, without leaving the schema.
//!
//! A subschema with an `$id` is a resource with its own address, against which its references are resolved (JSON Schema
//! 2020-12, core, 8.2 and 9.3). All addresses and anchors are collected once; any other address is outside, and nothing
//! outside is ever read.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};
use url::Url;

use crate::fault::pointer_token;

/// The address of a schema that names none, as for the validator.
const NAMELESS: &str = "json-schema:///";

/// The addresses within one schema.
#[derive(Debug, Default)]
pub(super) struct References {
    /// For each schema with references, by its address in memory: its resource.
    bases: HashMap<usize, usize>,
    /// The addresses of resources.
    addresses: Vec<Url>,
    /// Pointers to resources by address, to anchors by address and name. Of several the first.
    resources: HashMap<String, String>,
    anchors: HashMap<(String, String), String>,
    /// Pointers to all schemas with a `$dynamicAnchor`, by its name.
    dynamic: HashMap<String, Vec<String>>,
    /// Schemas of draft 4 have their name in `id`; later `id` is no keyword.
    old: bool,
}

/// Calls `seen` with each subschema that a schema applies itself. The keywords are those of JSON Schema 2020-12 and its
/// predecessors from draft 4 on that have subschemas
/// (<https://json-schema.org/draft/2020-12/json-schema-core>, sections 10 and 11).
fn subschemas<'s>(schema: &'s Map<String, Value>, seen: &mut dyn FnMut(&'s Value)) {
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(all)) => {
                all.iter().for_each(&mut *seen)
            }
            ("dependentSchemas" | "dependencies" | "properties" | "patternProperties", Value::Object(all)) => {
                all.values().for_each(&mut *seen);
            }
            (
                "not"
                | "if"
                | "then"
                | "else"
                | "items"
                | "additionalItems"
                | "unevaluatedItems"
                | "contains"
                | "additionalProperties"
                | "unevaluatedProperties"
                | "propertyNames",
                one,
            ) => seen(one),
            _ => {}
        }
    }
}

/// The address of a value in memory.
fn address_of(value: &Value) -> usize {
    std::ptr::from_ref(value).addr()
}

/// The references of a schema itself, each with its keyword.
fn own(schema: &Map<String, Value>) -> impl Iterator<Item = (&'static str, &str)> {
    ["$ref", "$dynamicRef", "$recursiveRef"]
        .into_iter()
        .filter_map(|keyword| Some((keyword, schema.get(keyword)?.as_str()?)))
}

/// An address without its fragment.
fn bare(address: &Url) -> String {
    let mut bare = address.clone();
    bare.set_fragment(None);
    bare.into()
}

impl References {
    /// An error names a reference, among those of subschemas that apply, that leads out of a schema or to nothing.
    pub(super) fn check(root: &Value) -> Result<(), String> {
        let references = Self::of(root)?;
        let mut known = HashSet::new();
        let mut left = vec![root];
        while let Some(schema) = left.pop() {
            let Value::Object(fields) = schema else { continue };
            if known.insert(address_of(schema)) {
                subschemas(fields, &mut |one| left.push(one));
                left.extend(references.targets(root, schema)?);
            }
        }
        Ok(())
    }

    /// Collects the addresses of a schema, which must not be moved from then on.
    fn of(root: &Value) -> Result<Self, String> {
        let mut references = Self::default();
        let draft = root.get("$schema").and_then(Value::as_str);
        references.old = draft.is_some_and(|draft| draft.contains("draft-04"));
        let nameless = Url::parse(NAMELESS).map_err(|error| error.to_string())?;
        references.addresses.push(nameless.clone());
        references.resources.insert(bare(&nameless), String::new());
        references.collect(root, &mut String::new(), 0)?;
        Ok(references)
    }

    fn collect(&mut self, value: &Value, pointer: &mut String, mut base: usize) -> Result<(), String> {
        let length = pointer.len();
        match value {
            Value::Object(fields) => {
                let text = |key: &str| fields.get(key).and_then(Value::as_str);
                if let Some(id) = text(if self.old { "id" } else { "$id" }) {
                    base = self.name(id, pointer, base)?;
                }
                let address = bare(&self.addresses[base]);
                for name in [text("$anchor"), text("$dynamicAnchor")].into_iter().flatten() {
                    let key = (address.clone(), name.to_owned());
                    self.anchors.entry(key).or_insert_with(|| pointer.clone());
                }
                if let Some(name) = text("$dynamicAnchor") {
                    self.dynamic.entry(name.to_owned()).or_default().push(pointer.clone());
                }
                if own(fields).next().is_some() {
                    self.bases.insert(address_of(value), base);
                }
                for (key, inner) in fields {
                    pointer.push('/');
                    pointer.push_str(&pointer_token(key));
                    self.collect(inner, pointer, base)?;
                    pointer.truncate(length);
                }
            }
            Value::Array(all) => {
                for (index, inner) in all.iter().enumerate() {
                    pointer.push_str(&format!("/{index}"));
                    self.collect(inner, pointer, base)?;
                    pointer.truncate(length);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A schema names itself, or (in earlier drafts, by a fragment) an anchor; answers the resource that what lies
    /// within it is in.
    fn name(&mut self, id: &str, pointer: &str, base: usize) -> Result<usize, String> {
        // If it is no address, it may be the value of a member that is called `id`: it names nothing.
        let Ok(address) = self.addresses[base].join(id) else {
            return match pointer.is_empty() {
                true => Err(format!("the `$id` `{id}` is not a valid URI")),
                false => Ok(base),
            };
        };
        if let Some(name) = id.strip_prefix('#').filter(|name| !name.is_empty()) {
            let key = (bare(&address), name.to_owned());
            self.anchors.entry(key).or_insert_with(|| pointer.to_owned());
            return Ok(base);
        }
        self.resources
            .entry(bare(&address))
            .or_insert_with(|| pointer.to_owned());
        self.addresses.push(address);
        Ok(self.addresses.len() - 1)
    }

    /// The targets of the references of a schema. A dynamic one depends on the path to it: all possible targets are
    /// returned. An error names one that leads out of the schema, or to nothing.
    fn targets<'s>(&self, root: &'s Value, schema: &Value) -> Result<Vec<&'s Value>, String> {
        let Value::Object(fields) = schema else {
            return Ok(Vec::new());
        };
        let base = self.bases.get(&address_of(schema)).copied().unwrap_or_default();
        let mut targets = Vec::new();
        for (keyword, reference) in own(fields) {
            let target = self.target(root, base, reference).ok_or_else(|| {
                format!(
                    "the reference `{reference}` does not exist in this schema; it must be `#`, `#/...`, `#` and an \
                    anchor, or an `$id` of this schema"
                )
            })?;
            targets.push(target);
            let name = reference.rsplit_once('#').map_or("", |(_, name)| name);
            if keyword == "$dynamicRef" && target.get("$dynamicAnchor").and_then(Value::as_str) == Some(name) {
                let all = self.dynamic.get(name).into_iter().flatten();
                targets.extend(
                    all.filter_map(|pointer| root.pointer(pointer))
                        .filter(|other| address_of(other) != address_of(target)),
                );
            }
        }
        Ok(targets)
    }

    fn target<'s>(&self, root: &'s Value, base: usize, reference: &str) -> Option<&'s Value> {
        let address = self.addresses.get(base)?.join(reference).ok()?;
        let resource = bare(&address);
        let at = self.resources.get(&resource)?;
        let fragment = address.fragment().unwrap_or_default();
        let fragment = percent_encoding::percent_decode_str(fragment).decode_utf8().ok()?;
        if fragment.is_empty() || fragment.starts_with('/') {
            return root.pointer(&format!("{at}{fragment}"));
        }
        root.pointer(self.anchors.get(&(resource, fragment.into_owned()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Schema;
    use serde_json::{Value, json};

    fn check(schema: &Value, good: &Value, bad: &Value) {
        let compiled = Schema::compile(schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert!(compiled.check(good).is_empty(), "{schema} {good}");
        assert!(!compiled.check(bad).is_empty(), "{schema} {bad}");
    }

    #[test]
    fn references_within_subschemas_with_an_id() {
        let schema = json!({
            "$id": "https://example.com/order",
            "properties": {"item": {"$ref": "item"}, "again": {"$ref": "https://example.com/item#/$defs/size"},
                           "named": {"$ref": "item#small"}},
            "$defs": {
                "item": {"$id": "item", "properties": {"size": {"$ref": "#/$defs/size"}},
                         "$defs": {"size": {"type": "integer"}, "small": {"$anchor": "small", "maximum": 3}}},
            },
        });
        check(
            &schema,
            &json!({"item": {"size": 1}}),
            &json!({"item": {"size": "large"}}),
        );
        check(&schema, &json!({"again": 1}), &json!({"again": "x"}));
        check(&schema, &json!({"named": 3}), &json!({"named": 4}));
        // Without an address of the whole, and by URN.
        for id in ["leaf", "urn:example:leaf"] {
            let schema = json!({"$ref": id, "$defs": {"leaf": {"$id": id, "$ref": "#/$defs/n", "$defs": {"n": {"type": "null"}}}}});
            check(&schema, &json!(null), &json!(1));
        }
        // An anchor of an earlier draft.
        let old = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "definitions": {"a": {"$id": "#a", "type": "string"}}, "items": {"$ref": "#a"},
        });
        check(&old, &json!(["x"]), &json!([1]));
    }

    /// The example of the specification: a tree that its extension makes strict all the way down.
    #[test]
    fn dynamic_references() {
        let tree = json!({
            "$id": "https://example.com/tree", "$dynamicAnchor": "node", "type": "object",
            "properties": {"data": true, "children": {"type": "array", "items": {"$dynamicRef": "#node"}}},
        });
        let strict = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": "https://example.com/strict-tree", "$dynamicAnchor": "node",
            "$ref": "tree", "unevaluatedProperties": false,
            "$defs": {"tree": tree},
        });
        let deep = json!({"children": [{"data": 1, "children": [{"data": 2}]}]});
        let wrong = json!({"children": [{"data": 1, "children": [{"daat": 2}]}]});
        check(&strict, &deep, &wrong);
        let own = json!({
            "$dynamicAnchor": "node", "properties": {"next": {"$dynamicRef": "#node"}, "n": {"type": "integer"}},
        });
        check(
            &own,
            &json!({"next": {"next": {"n": 1}}}),
            &json!({"next": {"next": {"n": "x"}}}),
        );
    }

    #[test]
    fn nothing_outside_is_looked_at() {
        for reference in [
            "https://example.com/other",
            "other.json",
            "#nowhere",
            "#/nowhere",
            "https://json-schema.org/draft/2020-12/schema",
            "file:///etc/passwd",
        ] {
            let schema = json!({
                "$ref": "https://example.com/a", "$defs": {"a": {"$id": "https://example.com/a", "$ref": reference}},
            });
            let said = Schema::compile(&schema).unwrap_err();
            assert!(said.detail.contains("does not exist"), "{reference}: {said}");
        }
    }
}
