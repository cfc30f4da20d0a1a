//! Forms made of a JSON Schema, and what people filled in, read back as JSON.

use std::collections::{BTreeMap, BTreeSet};

use heddle_api::ProblemFault;
use heddle_domain::fault::pointer_token;
use maud::{Markup, html};
use serde::Serialize;
use serde_json::{Map, Number, Value};

use crate::elements::prose;
use crate::trouble::{fault, is_within};
use crate::words::{Arg, Lang, t};
use crate::{Ctx, Trouble};

/// The maximum number of fields of a form; further properties are written as JSON.
const FIELDS_MAX: usize = 60;

/// The prefix of a form's fields.
pub(crate) const PREFIX: &str = "p.";

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

/// The params that a schema requires.
pub(crate) fn required(whole: &Value) -> impl Iterator<Item = &str> {
    whole["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// What a form asks for, by the properties of a schema.
pub(crate) struct Asked<'a> {
    pub(crate) properties: &'a Map<String, Value>,
    /// The value that a run gets for a field that is left empty.
    pub(crate) values: &'a Map<String, Value>,
    /// What somebody has to write.
    pub(crate) required: &'a BTreeSet<String>,
    /// What stands under the fields.
    pub(crate) notes: &'a BTreeMap<String, String>,
}

impl Asked<'_> {
    /// Moves the error of a missing param to its field. In the API, it is an error of the object that lacks the param.
    pub(crate) fn placed(&self, trouble: Trouble) -> Trouble {
        trouble.retold(|one| {
            if one.pointer == "/params"
                && let Some(name) = &one.missing
                && self.properties.contains_key(name)
            {
                *one = fault(pointer_to(name), MISSING);
            }
        })
    }

    /// Errors that belong to no single field: they are shown at the field for all params.
    pub(crate) fn wrong_elsewhere(&self, trouble: &Trouble) -> Option<String> {
        let own: Vec<String> = self
            .properties
            .keys()
            .take(FIELDS_MAX)
            .map(|name| pointer_to(name))
            .collect();
        let others = trouble
            .errors
            .iter()
            .filter(|one| !own.iter().any(|own| is_within(one, own)));
        Trouble::of_faults(others.cloned().collect()).of_field("/params")
    }

    /// The values that were filled in, without those of empty fields. Values that cannot be read are added to the faults. If
    /// there are any, missing params are added too, so that all errors are shown at once.
    pub(crate) fn read(&self, form: &[(String, String)], faults: &mut Vec<ProblemFault>) -> Map<String, Value> {
        let mut params = Map::new();
        for (key, text) in form {
            let Some(name) = key.strip_prefix(PREFIX).filter(|_| !text.is_empty()) else {
                continue;
            };
            let Some(schema) = self.properties.get(name) else {
                continue;
            };
            match value(schema, text) {
                Ok(value) => drop(params.insert(name.to_owned(), value)),
                Err(what) => faults.push(fault(pointer_to(name), format!("`{text}` is not {what}"))),
            }
        }
        match object(form, "params") {
            Ok(given) => params.extend(given),
            Err(trouble) => faults.extend(trouble.errors.iter().cloned()),
        }
        // Params of single tasks may contain the params that these tasks require.
        if !faults.is_empty() && field(form, "task_params").is_none() {
            let lacks = |name: &&String| {
                !params.contains_key(*name) && faults.iter().all(|one| one.pointer != pointer_to(name))
            };
            let missing: Vec<&String> = self.required.iter().filter(lacks).collect();
            faults.extend(missing.into_iter().map(|name| fault(pointer_to(name), MISSING)));
        }
        params
    }
}

/// What the API says of a param that is missing, in the form of the others.
const MISSING: &str = "this is required";

fn pointer_to(name: &str) -> String {
    format!("/params/{}", pointer_token(name))
}

/// What is wrong with a field, under it: the field is described by it.
pub(crate) fn said_under(id: &str, wrong: Option<&str>) -> Markup {
    html! { @if let Some(wrong) = wrong { small.wrong id=(id) { (prose(wrong)) } } }
}

/// Fields for what a form asks for, each with what is wrong with it.
pub(crate) fn fields(ctx: &Ctx, asked: &Asked<'_>, given: &[(String, String)], trouble: Option<&Trouble>) -> Markup {
    html! {
        @for (index, (name, schema)) in asked.properties.iter().take(FIELDS_MAX).enumerate() {
            @let id = format!("{PREFIX}{name}");
            @let written = given.iter().find(|(key, _)| *key == id).map(|(_, value)| value.clone());
            @let preset = asked.values.get(name).map(shown).unwrap_or_default();
            @let needed = asked.required.contains(name).then_some("true");
            @let wrong = trouble.and_then(|trouble| trouble.of_field(&pointer_to(name)));
            @let told = format!("told-{index}");
            @let (invalid, described) = marks(&told, wrong.as_deref());
            div.field {
                label for=(id) {
                    (name)
                    @if let Some(title) = schema["title"].as_str().filter(|title| *title != name) { " · " span.muted { (title) } }
                    @if needed.is_some() { " · " span.muted { (t!(ctx, "needed")) } }
                }
                @match choices(schema) {
                    Some(among) => {
                        select id=(id) name=(id) aria-required=[needed] aria-invalid=[invalid] aria-describedby=[described] {
                            option value="" { (if preset.is_empty() { t!(ctx, "unset") } else { t!(ctx, "preset", value = &preset) }) }
                            @for one in among { option value=(one) selected[written.as_deref() == Some(one.as_str())] { (one) } }
                        }
                    }
                    None if kind(schema) == Kind::Json => {
                        textarea id=(id) name=(id) rows="2" placeholder=(preset) spellcheck="false" aria-required=[needed] aria-invalid=[invalid] aria-describedby=[described] { (written.unwrap_or_default()) }
                    }
                    None => {
                        input id=(id) name=(id) type="text" inputmode=[matches!(kind(schema), Kind::Integer | Kind::Number).then_some("decimal")] value=[written] placeholder=(preset) autocomplete="off" aria-required=[needed] aria-invalid=[invalid] aria-describedby=[described];
                    }
                }
                (said_under(&told, wrong.as_deref()))
                @if let Some(text) = schema["description"].as_str() { small { (prose(text)) } }
                @if let Some(bounds) = bounds(ctx.lang, schema, &preset) { small { (bounds) } }
                @if kind(schema) == Kind::Json && !schema["enum"].is_array() { small { (prose(&t!(ctx, "as-json", example = example(schema)))) } }
                @if let Some(note) = asked.notes.get(name) { small { (note) } }
            }
        }
    }
}

/// The numbers that a field takes, and the default of its schema: this holds only if there is no `preset`, which the field shows.
fn bounds(lang: Lang, schema: &Value, preset: &str) -> Option<String> {
    if !matches!(kind(schema), Kind::Integer | Kind::Number) || choices(schema).is_some() {
        return None;
    }
    let limit = |keyword: &str, key: &str| {
        let bound = &schema[keyword];
        bound.is_number().then(|| lang.t(key, &[("n", shown(bound).into())]))
    };
    let default = Some(shown(&schema["default"])).filter(|default| !default.is_empty() && preset.is_empty());
    let all: Vec<String> = [
        limit("minimum", "number-least"),
        limit("exclusiveMinimum", "number-above"),
        limit("maximum", "number-most"),
        limit("exclusiveMaximum", "number-below"),
        default.map(|default| lang.t("number-default", &[("value", default.into())])),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!all.is_empty()).then(|| all.join(lang.comma()))
}

/// The values of `aria-invalid` and `aria-describedby` of a field.
pub(crate) fn marks<'a>(id: &'a str, wrong: Option<&str>) -> (Option<&'static str>, Option<&'a str>) {
    (wrong.map(|_| "true"), wrong.map(|_| id))
}

/// The texts of the values among which one chooses, if a value is chosen.
fn choices(schema: &Value) -> Option<Vec<String>> {
    match (schema["enum"].as_array(), kind(schema)) {
        (Some(among), _) => Some(among.iter().map(shown).collect()),
        (None, Kind::Bool) => Some(vec!["true".to_owned(), "false".to_owned()]),
        (None, _) => None,
    }
}

/// An example in JSON of the type that a schema asks for.
fn example(schema: &Value) -> &'static str {
    let types = &schema["type"];
    let is_list = types == "array"
        || types
            .as_array()
            .is_some_and(|types| types.iter().any(|one| one == "array"));
    if is_list { "`[1, \"two\"]`" } else { "`{\"name\": 1}`" }
}

/// The value that somebody has written. The error names the type that it does not have.
fn value(schema: &Value, text: &str) -> Result<Value, &'static str> {
    // For an enumeration, the chosen value with its type.
    if let Some(among) = schema["enum"].as_array() {
        return among
            .iter()
            .find(|one| shown(one) == text)
            .cloned()
            .ok_or("one of the choices");
    }
    match kind(schema) {
        Kind::Text => Ok(Value::String(text.to_owned())),
        Kind::Integer => integer(text),
        Kind::Number => number(text),
        Kind::Bool => text.parse::<bool>().map(Value::from).map_err(|_| "true or false"),
        Kind::Loose => Ok(serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))),
        Kind::Json => serde_json::from_str(text).map_err(|_| "valid JSON"),
    }
}

/// What is said of a whole number that would lose digits.
const TOO_LONG: &str = "a whole number of at most 64 bits";

fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// A whole number with all its digits.
fn integer(text: &str) -> Result<Value, &'static str> {
    let signed = text.parse::<i64>().map(Value::from);
    let read = signed.or_else(|_| text.parse::<u64>().map(Value::from));
    read.map_err(|_| if is_whole(text) { TOO_LONG } else { "a whole number" })
}

/// A number. An integer stays an integer. What no number of JSON is, such as an infinite one, would become null.
fn number(text: &str) -> Result<Value, &'static str> {
    if is_whole(text) {
        return integer(text);
    }
    let read = text.parse::<f64>().map_err(|_| "a number")?;
    Number::from_f64(read).map(Value::Number).ok_or("a finite number")
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

/// The field for such a text.
pub(crate) fn object_field(
    form: &[(String, String)],
    name: &str,
    label: &str,
    wrong: Option<&str>,
    hint: Option<&str>,
) -> Markup {
    let told = format!("told-{name}");
    let (invalid, described) = marks(&told, wrong);
    html! {
        label.field {
            span { (label) }
            textarea name=(name) rows="4" spellcheck="false" placeholder="{}" aria-invalid=[invalid] aria-describedby=[described] { (field(form, name).unwrap_or_default()) }
            (said_under(&told, wrong))
            @if let Some(hint) = hint { small { (hint) } }
        }
    }
}

/// A body of the API, with the texts of these fields as somebody typed them. These are fields that only the API reads, such as
/// times and durations: it says what is wrong with a text, and a typed body has room only for what is right.
pub(crate) fn with_typed(body: &impl Serialize, form: &[(String, String)], names: &[&str]) -> Result<Value, Trouble> {
    let mut body = serde_json::to_value(body).map_err(|error| Trouble::new(500, error.to_string()))?;
    for name in names {
        if let Some(text) = field(form, name) {
            body[*name] = text.trim().into();
        }
    }
    Ok(body)
}

/// A field that is not empty.
pub(crate) fn field<'a>(form: &'a [(String, String)], name: &str) -> Option<&'a str> {
    form.iter()
        .find(|(key, value)| key == name && !value.trim().is_empty())
        .map(|(_, value)| value.as_str())
}

/// A field that the form has, even if somebody has emptied it.
pub(crate) fn sent<'a>(form: &'a [(String, String)], name: &str) -> Option<&'a str> {
    form.iter()
        .find(|(key, _)| key == name)
        .map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a form says, and what is wrong with it.
    fn read(schemas: &Value, required: &[&str], form: &[(&str, &str)]) -> (Value, Vec<String>) {
        let required: BTreeSet<String> = required.iter().map(|name| (*name).to_owned()).collect();
        let asked = Asked {
            properties: schemas.as_object().unwrap(),
            values: &Map::new(),
            required: &required,
            notes: &BTreeMap::new(),
        };
        let form: Vec<(String, String)> = form.iter().map(|(key, text)| ((*key).into(), (*text).into())).collect();
        let mut faults = Vec::new();
        let params = asked.read(&form, &mut faults);
        (params.into(), faults.iter().map(ToString::to_string).collect())
    }

    fn read_one(schema: Value, text: &str) -> Result<Value, String> {
        let (mut params, faults) = read(&json!({ "x": schema }), &[], &[("p.x", text)]);
        match faults.into_iter().next() {
            Some(fault) => Err(fault),
            None => Ok(params["x"].take()),
        }
    }

    #[test]
    fn a_number_says_what_it_may_be() {
        let said = |schema: Value, preset: &str| bounds(Lang::En, &schema, preset);
        let days = json!({"type": ["integer", "null"], "minimum": 1, "maximum": 12_000, "default": 7});
        assert_eq!(
            said(days.clone(), "").as_deref(),
            Some("at least 1, at most 12000, default 7")
        );
        assert_eq!(
            said(days.clone(), "7").as_deref(),
            Some("at least 1, at most 12000"),
            "the field shows it"
        );
        assert_eq!(
            said(days, "5").as_deref(),
            Some("at least 1, at most 12000"),
            "the group's own value holds"
        );
        let share = json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5});
        assert_eq!(said(share, "").as_deref(), Some("more than 0, less than 0.5"));
        assert_eq!(
            bounds(Lang::Zh, &json!({"type": "integer", "minimum": 2}), "").as_deref(),
            Some("不小于 2")
        );
        assert_eq!(said(json!({"type": "integer"}), ""), None);
        assert_eq!(said(json!({"type": "string", "minimum": 2, "default": "x"}), ""), None);
    }

    #[test]
    fn what_is_written_gets_the_type_of_its_schema() {
        assert_eq!(read_one(json!({"type": "string"}), "07"), Ok(json!("07")));
        assert_eq!(read_one(json!({"type": ["integer", "null"]}), "7"), Ok(json!(7)));
        assert_eq!(read_one(json!({"type": "number"}), "7.5"), Ok(json!(7.5)));
        assert_eq!(read_one(json!({"type": "number"}), "7"), Ok(json!(7)));
        assert_eq!(read_one(json!({"type": "number"}), "-.5e1"), Ok(json!(-5.0)));
        for kind in ["number", "integer"] {
            let read = |text: &str| read_one(json!({ "type": kind }), text);
            assert_eq!(read("18446744073709551615"), Ok(json!(u64::MAX)), "{kind}");
            assert_eq!(read("-9223372036854775808"), Ok(json!(i64::MIN)), "{kind}");
            for long in ["18446744073709551616", "-9223372036854775809"] {
                let wrong = format!("/params/x: `{long}` is not a whole number of at most 64 bits");
                assert_eq!(read(long), Err(wrong), "{kind}");
            }
        }
        for text in ["nan", "NaN", "inf", "-Infinity", "1e400"] {
            let wrong = format!("/params/x: `{text}` is not a finite number");
            assert_eq!(read_one(json!({"type": "number"}), text), Err(wrong));
        }
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
    fn all_that_is_wrong_is_said_at_once_each_at_its_field() {
        let schemas =
            json!({"n": {"type": "integer"}, "a/b": {}, "who": {"type": "string"}, "day": {"type": "string"}});
        let form = [("p.n", "x"), ("p.a/b", "{"), ("params", "{\"day\": \"1\"}")];
        let (params, faults) = read(&schemas, &["n", "who", "day"], &form);
        assert_eq!(params, json!({"day": "1"}));
        assert_eq!(
            faults,
            [
                "/params/n: `x` is not a whole number",
                "/params/a~1b: `{` is not valid JSON",
                "/params/who: this is required",
            ]
        );
        // The API says what is missing, if nothing else is wrong.
        assert_eq!(read(&schemas, &["who"], &[]), (json!({}), vec![]));
        let asked = Asked {
            properties: schemas.as_object().unwrap(),
            values: &Map::new(),
            required: &BTreeSet::new(),
            notes: &BTreeMap::new(),
        };
        let lacks = |name: &str| ProblemFault {
            missing: Some(name.to_owned()),
            ..fault("/params", format!("there is no {name}"))
        };
        let said = vec![
            lacks("who"),
            lacks("other"),
            // The words decide nothing.
            fault("/params", "\"day\" is a required property"),
            fault("/params/n", "low"),
        ];
        let trouble = asked.placed(Trouble::of_faults(said));
        assert_eq!(trouble.of_field("/params/who").as_deref(), Some(MISSING));
        assert_eq!(trouble.of_field("/params/day"), None);
        assert_eq!(
            asked.wrong_elsewhere(&trouble).as_deref(),
            Some("there is no other\n\"day\" is a required property")
        );
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
