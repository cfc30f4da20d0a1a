//! The differences between the params schemas of two versions: for people, field by field.

use std::fmt;

use serde_json::{Map, Value};

/// How many changes are reported; a completely different schema is not read line by line.
pub const CHANGES_MAX: usize = 100;
/// How deep fields within fields are compared.
const DEPTH_MAX: usize = 8;
/// Longer values are cut where they are shown.
const VALUE_CHARS_MAX: usize = 60;

/// The change of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The field is new; whether it is required.
    Added {
        required: bool,
    },
    Removed,
    /// It has to be given now.
    Required,
    /// It may be left out now.
    Optional,
    /// A keyword of it (`type`, `minimum`, `default`, `description`, ...) has another value; `None`: it is absent.
    Keyword {
        keyword: String,
        from: Option<Value>,
        to: Option<Value>,
    },
}

/// A change of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemaChange {
    /// Its name; within an object `outer.inner`, within a list `list[]`. Empty: the params as a whole.
    pub field: String,
    /// What differs between the older and the newer schema.
    pub change: Change,
}

/// A value of a keyword, on one line and not too long.
pub fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= VALUE_CHARS_MAX {
        return text;
    }
    let mut cut: String = text.chars().take(VALUE_CHARS_MAX).collect();
    cut.push('…');
    cut
}

impl fmt::Display for SchemaChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field.as_str() {
            "" => f.write_str("params")?,
            field => write!(f, "`{field}`")?,
        }
        match &self.change {
            Change::Added { required: true } => f.write_str(" is new and required"),
            Change::Added { required: false } => f.write_str(" is new"),
            Change::Removed => f.write_str(" was removed"),
            Change::Required => f.write_str(" is now required"),
            Change::Optional => f.write_str(" is now optional"),
            Change::Keyword { keyword, from, to } => match (from, to) {
                (Some(from), Some(to)) => write!(f, ": `{keyword}` is {}, was {}", short(to), short(from)),
                (None, Some(to)) => write!(f, ": `{keyword}` is {}, was not set", short(to)),
                (Some(from), None) => write!(f, ": `{keyword}` is no longer set, was {}", short(from)),
                (None, None) => Ok(()),
            },
        }
    }
}

/// The differences between the schemas `old` and `new`, field by field, up to [`CHANGES_MAX`]. No schema counts as a
/// schema without fields.
pub fn changes(old: &Value, new: &Value) -> Vec<SchemaChange> {
    let mut found = Vec::new();
    compare("", old, new, 0, &mut found);
    found.truncate(CHANGES_MAX);
    found
}

fn object(value: &Value) -> Option<&Map<String, Value>> {
    value.as_object()
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    object(schema)?.get("properties").and_then(object)
}

fn requires(schema: &Value, name: &str) -> bool {
    let names = schema.get("required").and_then(Value::as_array);
    names.is_some_and(|names| names.iter().any(|one| one == name))
}

fn compare(field: &str, old: &Value, new: &Value, depth: usize, found: &mut Vec<SchemaChange>) {
    if old == new || found.len() >= CHANGES_MAX {
        return;
    }
    let mut tell = |change: Change| {
        found.push(SchemaChange {
            field: field.to_owned(),
            change,
        });
    };
    let empty = Map::new();
    let (was, is) = (object(old).unwrap_or(&empty), object(new).unwrap_or(&empty));
    // These keywords are compared field by field; all others are compared as a whole.
    let has_fields = depth < DEPTH_MAX && (properties(old).is_some() || properties(new).is_some());
    let has_items = depth < DEPTH_MAX
        && [was, is]
            .iter()
            .all(|schema| schema.get("items").is_some_and(Value::is_object));
    let apart = |keyword: &str| match keyword {
        "properties" | "required" => has_fields,
        "items" => has_items,
        // Params are always an object, so it is no change if a schema begins or ceases to say that.
        "type" => field.is_empty(),
        // The name of the schema itself.
        "$schema" | "title" | "$id" => true,
        _ => false,
    };
    let mut keywords: Vec<&String> = was
        .keys()
        .chain(is.keys().filter(|key| !was.contains_key(*key)))
        .collect();
    keywords.sort_unstable();
    for keyword in keywords.into_iter().filter(|keyword| !apart(keyword)) {
        let (from, to) = (was.get(keyword), is.get(keyword));
        if from != to {
            let change = Change::Keyword {
                keyword: keyword.clone(),
                from: from.cloned(),
                to: to.cloned(),
            };
            tell(change);
        }
    }
    // A schema may be `true` or `false` as well.
    if old.is_boolean() || new.is_boolean() {
        let said = |value: &Value| value.is_boolean().then(|| value.clone());
        let change = Change::Keyword {
            keyword: "schema".to_owned(),
            from: said(old),
            to: said(new),
        };
        tell(change);
    }
    if has_items {
        compare(&format!("{field}[]"), &was["items"], &is["items"], depth + 1, found);
    }
    if has_fields {
        compare_fields(field, old, new, depth, found);
    }
}

fn compare_fields(field: &str, old: &Value, new: &Value, depth: usize, found: &mut Vec<SchemaChange>) {
    let empty = Map::new();
    let (before, after) = (properties(old).unwrap_or(&empty), properties(new).unwrap_or(&empty));
    let mut names: Vec<&String> = before
        .keys()
        .chain(after.keys().filter(|name| !before.contains_key(*name)))
        .collect();
    names.sort_unstable();
    for name in names {
        let path = match field {
            "" => name.clone(),
            field => format!("{field}.{name}"),
        };
        let (must, must_now) = (requires(old, name), requires(new, name));
        let mut tell = |change: Change| {
            found.push(SchemaChange {
                field: path.clone(),
                change,
            });
        };
        match (before.get(name), after.get(name)) {
            (None, Some(_)) => tell(Change::Added { required: must_now }),
            (Some(_), None) => tell(Change::Removed),
            (Some(was), Some(is)) => {
                if must != must_now {
                    tell(if must_now { Change::Required } else { Change::Optional });
                }
                compare(&path, was, is, depth + 1, found);
            }
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(old: &Value, new: &Value) -> Vec<String> {
        changes(old, new).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn fields_that_come_go_and_change_are_described() {
        let old = json!({
            "type": "object",
            "required": ["region", "since"],
            "properties": {
                "region": {"type": "string", "description": "Where"},
                "days": {"type": "integer", "minimum": 1},
                "since": {"type": "string"},
                "old": {},
                "to": {"type": "object", "properties": {"mail": {"type": "string"}}},
                "rows": {"type": "array", "items": {"type": "integer"}},
            },
        });
        let new = json!({
            "type": "object",
            "required": ["region", "days", "token"],
            "properties": {
                "region": {"type": "string", "description": "Where"},
                "days": {"type": "number", "default": 7},
                "since": {"type": "string"},
                "token": {"type": "string"},
                "note": {},
                "to": {"type": "object", "properties": {"mail": {"type": "string"}, "cc": {}}},
                "rows": {"type": "array", "items": {"type": "string"}},
            },
            "additionalProperties": false,
        });
        assert_eq!(
            said(&old, &new),
            [
                "params: `additionalProperties` is false, was not set",
                "`days` is now required",
                "`days`: `default` is 7, was not set",
                "`days`: `minimum` is no longer set, was 1",
                "`days`: `type` is \"number\", was \"integer\"",
                "`note` is new",
                "`old` was removed",
                "`rows[]`: `type` is \"string\", was \"integer\"",
                "`since` is now optional",
                "`to.cc` is new",
                "`token` is new and required",
            ]
        );
        assert_eq!(said(&new, &new), [""; 0]);
    }

    #[test]
    fn what_had_no_schema_had_no_fields() {
        let some = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
        assert_eq!(said(&Value::Null, &some), ["`a` is new and required"]);
        assert_eq!(said(&some, &Value::Null), ["`a` was removed"]);
        assert_eq!(said(&Value::Null, &json!({"type": "object"})), [""; 0]);
    }

    #[test]
    fn as_much_is_described_as_people_read() {
        let many: Map<String, Value> = (0..1_000).map(|n| (format!("f{n}"), json!({}))).collect();
        assert_eq!(changes(&Value::Null, &json!({"properties": many})).len(), CHANGES_MAX);
        let mut deep = (json!(1), json!(2));
        for _ in 0..200 {
            deep = (
                json!({"properties": {"a": deep.0}}),
                json!({"properties": {"a": deep.1}}),
            );
        }
        let found = changes(&deep.0, &deep.1);
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().chars().count() < 300);
        // For a list that was a choice of schemas before.
        let tuple = json!({"properties": {"a": {"items": [{"type": "string"}]}}});
        let list = json!({"properties": {"a": {"items": {"type": "string"}}}});
        assert_eq!(said(&tuple, &list).len(), 1);
    }
}
