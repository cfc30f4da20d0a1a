//! How bodies are described: by their types. A type of requests and answers may have two schemas, because a field that
//! a request may omit is always in the answer.

use std::collections::{BTreeMap, BTreeSet};

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// Where schemas are kept in an OpenAPI document.
const COMPONENTS: &str = "#/components/schemas/";
/// The suffix of the name of a type in requests, if its schema differs from that in answers.
const INPUT: &str = "Input";

/// What a body is.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// A body without a type of the wire, such as wasm, by its name in [`crate::schemas`].
    Named(&'static str),
    /// A type of the wire.
    Of(fn(&mut SchemaGenerator) -> Schema),
}

impl From<&'static str> for Shape {
    fn from(name: &'static str) -> Self {
        Self::Named(name)
    }
}

/// A type of the wire as a body.
pub fn of<T: JsonSchema>() -> Shape {
    Shape::Of(|generator| generator.subschema_for::<T>())
}

/// The schemas of all bodies, as they are asked for.
pub struct Schemas {
    accepted: Kind,
    answered: Kind,
}

/// The schemas of requests, or those of answers.
struct Kind {
    generator: SchemaGenerator,
    /// The names that bodies refer to.
    asked: BTreeSet<String>,
}

impl Kind {
    fn new(settings: SchemaSettings) -> Self {
        Self {
            generator: settings.into_generator(),
            asked: BTreeSet::new(),
        }
    }

    fn schema(&mut self, shape: Shape) -> Value {
        let schema = match shape {
            Shape::Named(name) => json!({"$ref": format!("{COMPONENTS}{name}")}),
            Shape::Of(describe) => describe(&mut self.generator).to_value(),
        };
        references(&schema, &mut self.asked);
        schema
    }

    /// The schemas to which bodies refer, and those to which these refer. (A type that another one replaces is left
    /// out.)
    fn finish(mut self) -> Map<String, Value> {
        let mut all = self.generator.take_definitions(true);
        let mut reached = Map::new();
        while let Some(name) = self.asked.pop_first() {
            if let Some(schema) = all.remove(&name) {
                references(&schema, &mut self.asked);
                reached.insert(name, schema);
            }
        }
        reached
    }
}

impl Schemas {
    pub fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12()
                .with(|settings| settings.definitions_path = "/components/schemas".into())
                .with_transform(RecursiveTransform(words_as_enum))
                .with_transform(RecursiveTransform(open))
        };
        Self {
            accepted: Kind::new(settings().for_deserialize()),
            answered: Kind::new(settings().for_serialize()),
        }
    }

    /// The schema of what goes in.
    pub fn accepted(&mut self, shape: Shape) -> Value {
        self.accepted.schema(shape)
    }

    /// The schema of what comes out.
    pub fn answered(&mut self, shape: Shape) -> Value {
        self.answered.schema(shape)
    }

    /// All referenced schemas by name, including those written by hand; and the names whose schema differs in requests,
    /// so that [`rename`] changes the references to them.
    pub fn finish(self, written: BTreeMap<&'static str, Value>) -> (Map<String, Value>, BTreeSet<String>) {
        let (accepted, answered) = (self.accepted.finish(), self.answered.finish());
        let differ = differing(&accepted, &answered);
        let mut all: Map<String, Value> = written
            .into_iter()
            .map(|(name, schema)| (name.into(), schema))
            .collect();
        all.extend(answered);
        for (name, mut schema) in accepted {
            rename(&mut schema, &differ);
            let name = if differ.contains(&name) { name + INPUT } else { name };
            all.insert(name, schema);
        }
        (all, differ)
    }
}

/// The names whose schemas in requests and answers differ, perhaps only within a referenced schema.
fn differing(accepted: &Map<String, Value>, answered: &Map<String, Value>) -> BTreeSet<String> {
    let both = || {
        accepted
            .iter()
            .filter_map(|(name, schema)| Some((name, schema, answered.get(name)?)))
    };
    let mut differ: BTreeSet<String> = both()
        .filter(|(_, accepted, answered)| accepted != answered)
        .map(|(name, ..)| name.clone())
        .collect();
    // Each round finds at least one more, or is the last.
    loop {
        let found = both().find(|(name, accepted, _)| {
            let mut named = BTreeSet::new();
            references(accepted, &mut named);
            !differ.contains(*name) && !named.is_disjoint(&differ)
        });
        match found {
            Some((name, ..)) => differ.insert(name.clone()),
            None => return differ,
        };
    }
}

/// The names that a schema refers to.
fn references(schema: &Value, found: &mut BTreeSet<String>) {
    match schema {
        Value::Object(entries) => {
            for (key, value) in entries {
                match value {
                    Value::String(target) if key == "$ref" => {
                        found.extend(target.strip_prefix(COMPONENTS).map(str::to_owned));
                    }
                    _ => references(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// Changes references in requests to schemas that differ there.
pub fn rename(schema: &mut Value, differ: &BTreeSet<String>) {
    match schema {
        Value::Object(entries) => {
            for (key, value) in entries {
                match value {
                    Value::String(target) if key == "$ref" => {
                        let other = target
                            .strip_prefix(COMPONENTS)
                            .is_some_and(|name| differ.contains(name));
                        if other {
                            target.push_str(INPUT);
                        }
                    }
                    _ => rename(value, differ),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rename(item, differ)),
        _ => {}
    }
}

/// Schemas do not forbid unknown fields: an answer may be sent back as a request, with fields that only answers have,
/// and a newer server may answer with more fields.
fn open(schema: &mut Schema) {
    for word in ["additionalProperties", "unevaluatedProperties"] {
        if schema.get(word).is_some_and(|more| *more == Value::Bool(false)) {
            schema.remove(word);
        }
    }
}

/// Alternatives that are single words with a description each become an `enum`, which more tools understand. Their
/// descriptions go into the description of the type.
fn words_as_enum(schema: &mut Schema) {
    fn words(schema: &Schema) -> Option<(Vec<Value>, String)> {
        let mut words = Vec::new();
        let mut meanings = String::new();
        for one in schema.get("oneOf")?.as_array()? {
            let fields = one.as_object()?;
            let plain = fields
                .keys()
                .all(|key| ["const", "enum", "type", "description"].contains(&key.as_str()));
            let these = match (fields.get("const"), fields.get("enum")) {
                (Some(word), None) => std::slice::from_ref(word),
                (None, Some(Value::Array(these))) => these.as_slice(),
                _ => return None,
            };
            if !plain {
                return None;
            }
            for word in these {
                if let (Some(word), Some(meaning)) = (word.as_str(), fields.get("description").and_then(Value::as_str))
                {
                    meanings.push_str(&format!("\n* `{word}`: {meaning}"));
                }
                words.push(word.clone());
            }
        }
        Some((words, meanings))
    }
    let Some((words, meanings)) = words(schema) else { return };
    schema.remove("oneOf");
    if words.iter().all(Value::is_string) {
        schema.insert("type".into(), json!("string"));
    }
    schema.insert("enum".into(), Value::Array(words));
    let said = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    let said = format!("{said}\n{meanings}").trim().to_owned();
    if !said.is_empty() {
        schema.insert("description".into(), said.into());
    }
}

#[cfg(test)]
mod tests {
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    use super::*;

    /// A thing.
    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Thing {
        #[serde(default)]
        count: u8,
        word: Word,
    }

    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Holder {
        thing: Thing,
        word: Word,
    }

    /// How much.
    #[derive(Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        /// A little.
        Little,
        /// Much.
        Much,
    }

    #[test]
    fn what_may_be_left_out_on_the_way_in_is_there_on_the_way_out() {
        let mut schemas = Schemas::new();
        let mut body = schemas.accepted(of::<Holder>());
        assert_eq!(schemas.answered(of::<Holder>()), body);
        let (all, differ) = schemas.finish(BTreeMap::new());
        rename(&mut body, &differ);
        assert_eq!(body, json!({"$ref": "#/components/schemas/HolderInput"}));
        let names: Vec<&String> = all.keys().collect();
        assert_eq!(names, ["Holder", "HolderInput", "Thing", "ThingInput", "Word"]);
        assert_eq!(all["Thing"]["required"], json!(["count", "word"]));
        assert_eq!(all["ThingInput"]["required"], json!(["word"]));
        assert_eq!(
            all["HolderInput"]["properties"]["thing"]["$ref"],
            "#/components/schemas/ThingInput"
        );
        assert_eq!(
            all["HolderInput"]["properties"]["word"],
            all["Holder"]["properties"]["word"]
        );
    }

    #[test]
    fn words_are_an_enum_with_their_meanings() {
        let mut schemas = Schemas::new();
        schemas.answered(of::<Word>());
        let (all, _) = schemas.finish(BTreeMap::new());
        assert_eq!(
            all["Word"],
            json!({
                "type": "string",
                "enum": ["little", "much"],
                "description": "How much.\n\n* `little`: A little.\n* `much`: Much.",
            })
        );
    }
}
