//! Forms made of a JSON Schema, and what people filled in, read back as JSON.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::{Map, Value};

use crate::elements::prose;
use crate::words::{Arg, Lang, t};
use crate::{Ctx, Trouble};

/// The maximum number of fields of a form; further properties are written as JSON.
const FIELDS_MAX: usize = 60;

/// The prefix of a form's fields.
const PREFIX: &str = "p.";

/// The kind of a property's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Integer,
    Number,
    Bool,
    /// A text, or something else that is written as JSON.
    Loose,
    Json,
}

fn kind(schema: &Value) -> Kind {
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many
            .iter()
            .filter_map(Value::as_str)
            .filter(|one| *one != "null")
            .collect(),
        _ => Vec::new(),
    };
    match types.as_slice() {
        ["string"] => Kind::Text,
        ["integer"] => Kind::Integer,
        ["number"] => Kind::Number,
        ["boolean"] => Kind::Bool,
        types if types.contains(&"string") => Kind::Loose,
        _ => Kind::Json,
    }
}

/// The properties of a schema, in the form that fields need. A reference is replaced by its definition, with the
/// keywords beside it. Alternatives that are all constants become an enumeration.
pub(crate) fn properties(whole: &Value) -> Map<String, Value> {
    let own = whole["properties"].as_object().into_iter().flatten();
    own.map(|(name, schema)| (name.clone(), resolved(schema, whole)))
        .collect()
}

fn resolved(schema: &Value, whole: &Value) -> Value {
    let reference = schema["$ref"].as_str().and_then(|text| text.strip_prefix('#'));
    let Some(definition) = reference.and_then(|pointer| whole.pointer(pointer)) else {
        return with_choices(schema.clone());
    };
    let mut found = definition.clone();
    if let (Value::Object(found), Value::Object(own)) = (&mut found, schema) {
        let said = own.iter().filter(|(name, _)| *name != "$ref");
        found.extend(said.map(|(name, value)| (name.clone(), value.clone())));
    }
    with_choices(found)
}

fn with_choices(mut schema: Value) -> Value {
    let constants: Option<Vec<Value>> = schema["oneOf"]
        .as_array()
        .filter(|among| !among.is_empty())
        .and_then(|among| among.iter().map(|one| one.get("const").cloned()).collect());
    if let Some(constants) = constants
        && schema["enum"].is_null()
    {
        schema["enum"] = Value::Array(constants);
    }
    schema
}

/// The text of a value in a field.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Fields for the properties of a schema. `values` are what a run gets if nothing is written; `notes` stand under the
/// fields.
pub(crate) fn fields(
    ctx: &Ctx,
    properties: &Map<String, Value>,
    values: &Map<String, Value>,
    notes: &BTreeMap<String, String>,
    given: &[(String, String)],
) -> Markup {
    html! {
        @for (name, schema) in properties.iter().take(FIELDS_MAX) {
            @let id = format!("{PREFIX}{name}");
            @let written = given.iter().find(|(key, _)| *key == id).map(|(_, value)| value.clone());
            @let preset = values.get(name).map(shown).unwrap_or_default();
            div.field {
                label for=(id) { (name) @if let Some(title) = schema["title"].as_str().filter(|title| *title != name) { " · " span.muted { (title) } } }
                @match (schema["enum"].as_array(), kind(schema)) {
                    (Some(among), _) => {
                        select id=(id) name=(id) {
                            option value="" { (if preset.is_empty() { t!(ctx, "unset") } else { t!(ctx, "preset", value = &preset) }) }
                            @for one in among { option value=(shown(one)) selected[written.as_deref() == Some(&shown(one))] { (shown(one)) } }
                        }
                    }
                    (None, Kind::Bool) => {
                        select id=(id) name=(id) {
                            option value="" { (if preset.is_empty() { t!(ctx, "unset") } else { t!(ctx, "preset", value = &preset) }) }
                            @for one in ["true", "false"] { option value=(one) selected[written.as_deref() == Some(one)] { (one) } }
                        }
                    }
                    (None, Kind::Json) => textarea id=(id) name=(id) rows="2" placeholder=(preset) spellcheck="false" { (written.unwrap_or_default()) },
                    (None, what) => input id=(id) name=(id) type="text" inputmode=[matches!(what, Kind::Integer | Kind::Number).then_some("decimal")] value=[written] placeholder=(preset) autocomplete="off";
                }
                @if let Some(text) = schema["description"].as_str() { small { (prose(text)) } }
                @if let Some(note) = notes.get(name) { small { (note) } }
            }
        }
    }
}

/// The values that were filled in; empty fields are left out.
pub(crate) fn read(properties: &Map<String, Value>, form: &[(String, String)]) -> Result<Map<String, Value>, Trouble> {
    let mut params = Map::new();
    for (key, text) in form {
        let Some(name) = key.strip_prefix(PREFIX).filter(|_| !text.is_empty()) else {
            continue;
        };
        let Some(schema) = properties.get(name) else { continue };
        let wrong = |what: &str| Trouble::at(format!("/params/{name}"), format!("`{text}` is not {what}"));
        let value = match kind(schema) {
            // For an enumeration, the chosen value with its type.
            _ if schema["enum"].is_array() => {
                let among = schema["enum"].as_array().map(Vec::as_slice).unwrap_or_default();
                among
                    .iter()
                    .find(|one| shown(one) == *text)
                    .cloned()
                    .ok_or_else(|| wrong("one of the choices"))?
            }
            Kind::Text => Value::String(text.clone()),
            Kind::Integer => text
                .parse::<i64>()
                .map(Value::from)
                .map_err(|_| wrong("a whole number"))?,
            // An integer stays an integer.
            Kind::Number => match text.parse::<i64>() {
                Ok(whole) => Value::from(whole),
                Err(_) => text.parse::<f64>().map(Value::from).map_err(|_| wrong("a number"))?,
            },
            Kind::Bool => text
                .parse::<bool>()
                .map(Value::from)
                .map_err(|_| wrong("true or false"))?,
            Kind::Loose => serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.clone())),
            Kind::Json => serde_json::from_str(text).map_err(|_| wrong("valid JSON"))?,
        };
        params.insert(name.to_owned(), value);
    }
    Ok(params)
}

/// A field whose text is a JSON object, or nothing.
pub(crate) fn object(form: &[(String, String)], name: &str) -> Result<Map<String, Value>, Trouble> {
    let text = field(form, name).unwrap_or_default();
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    let wrong = |detail: String| Trouble::at(format!("/{name}"), detail);
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(wrong("this must be a JSON object".into())),
        Err(error) => Err(wrong(error.to_string())),
    }
}

/// A field whose text is a whole number, or nothing.
pub(crate) fn whole(lang: Lang, form: &[(String, String)], name: &str) -> Result<Option<i64>, Trouble> {
    let Some(text) = field(form, name) else { return Ok(None) };
    let wrong = || Trouble::at(format!("/{name}"), lang.t("no-number", &[("text", Arg::from(text))]));
    text.trim().parse::<i64>().map(Some).map_err(|_| wrong())
}

/// The same for a number that may not be left out.
pub(crate) fn whole_given(lang: Lang, form: &[(String, String)], name: &str) -> Result<i64, Trouble> {
    let missing = || Trouble::at(format!("/{name}"), lang.t("number-missing", &[]));
    whole(lang, form, name)?.ok_or_else(missing)
}

/// A field that is not empty.
pub(crate) fn field<'a>(form: &'a [(String, String)], name: &str) -> Option<&'a str> {
    form.iter()
        .find(|(key, value)| key == name && !value.trim().is_empty())
        .map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read_one(schema: Value, text: &str) -> Result<Value, String> {
        let properties = Map::from_iter([("x".to_owned(), schema)]);
        read(&properties, &[("p.x".into(), text.into())])
            .map(|mut params| params.remove("x").unwrap_or(Value::Null))
            .map_err(|trouble| trouble.sentence())
    }

    #[test]
    fn what_is_written_gets_the_type_of_its_schema() {
        assert_eq!(read_one(json!({"type": "string"}), "07"), Ok(json!("07")));
        assert_eq!(read_one(json!({"type": ["integer", "null"]}), "7"), Ok(json!(7)));
        assert_eq!(read_one(json!({"type": "number"}), "7.5"), Ok(json!(7.5)));
        assert_eq!(read_one(json!({"type": "number"}), "7"), Ok(json!(7)));
        assert_eq!(read_one(json!({"type": "boolean"}), "true"), Ok(json!(true)));
        assert_eq!(read_one(json!({"enum": [1, "a"]}), "1"), Ok(json!(1)));
        assert_eq!(read_one(json!({"type": "array"}), "[1,2]"), Ok(json!([1, 2])));
        assert_eq!(read_one(json!({"type": "string"}), ""), Ok(Value::Null));
        let any = json!({"type": ["string", "number", "boolean"]});
        assert_eq!(read_one(any.clone(), "7"), Ok(json!(7)));
        assert_eq!(read_one(any.clone(), "Ada"), Ok(json!("Ada")));
        assert_eq!(read_one(any, "\"7\""), Ok(json!("7")));
    }

    #[test]
    fn a_definition_with_constants_is_a_choice() {
        let schema = json!({
            "properties": {"kind": {"$ref": "#/$defs/Kind", "description": "which"}, "n": {"type": "integer"}},
            "$defs": {"Kind": {"description": "a kind", "oneOf": [{"const": "a"}, {"const": "b", "type": "string"}]}},
        });
        let properties = properties(&schema);
        assert_eq!(properties["kind"]["enum"], json!(["a", "b"]));
        assert_eq!(properties["kind"]["description"], "which");
        assert_eq!(properties["n"], json!({"type": "integer"}));
        assert!(resolved(&json!({"$ref": "#/$defs/None"}), &schema)["enum"].is_null());
        assert!(resolved(&json!({"oneOf": [{"const": 1}, {"type": "null"}]}), &schema)["enum"].is_null());
    }

    #[test]
    fn what_is_no_number_is_not_zero() {
        let form = |text: &str| vec![("slots".to_owned(), text.to_owned())];
        let read = |text: &str| whole_given(Lang::En, &form(text), "slots").map_err(|trouble| trouble.said(Lang::En));
        assert_eq!(read(" 12 "), Ok(12));
        for (text, wrong) in [
            ("1e3", "Slots: “1e3” is not a whole number"),
            (
                "99999999999999999999",
                "Slots: “99999999999999999999” is not a whole number",
            ),
            ("", "Slots: a number is missing"),
        ] {
            assert_eq!(read(text), Err(wrong.to_owned()));
        }
        assert!(whole(Lang::En, &form(" "), "slots").is_ok_and(|number| number.is_none()));
    }

    #[test]
    fn what_cannot_be_read_is_said_with_its_place() {
        assert_eq!(
            read_one(json!({"type": "integer"}), "x"),
            Err("/params/x: `x` is not a whole number".into())
        );
        assert!(read_one(json!({}), "{").unwrap_err().starts_with("/params/x"));
        assert!(object(&[("params".into(), "[]".into())], "params").is_err());
    }
}
