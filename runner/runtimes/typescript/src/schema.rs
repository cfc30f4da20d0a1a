//! The JSON Schema of a script's params, from the type of `run`'s first parameter.
//!
//! It is what the type says of JSON: interfaces, aliases, unions, literals, optional properties, arrays, tuples and
//! records of the same file, with their comments as descriptions. What it does not know (generics, conditional types,
//! types of other files), and what a schema cannot say exactly (overloads, intersections with what is no object), admits
//! anything: the types promise that much and no more.

use oxc_ast::ast::*;
use oxc_span::GetSpan;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How deep types may nest; below that, anything is admitted.
const MAX_DEPTH: u32 = 64;
/// Of TypeScript's own types, those that are objects.
const OF_OBJECTS: [&str; 6] = ["Omit", "Partial", "Pick", "Readonly", "Record", "Required"];

/// The schema of the params, if the first parameter of `run` has a type.
pub fn params(program: &Program<'_>) -> Option<Value> {
    let mut types = Types {
        program,
        named: HashMap::new(),
        exported: HashMap::new(),
        open: Vec::new(),
        recursive: BTreeSet::new(),
        defined: BTreeMap::new(),
        depth: 0,
    };
    types.collect();
    let parameter = type_of_params(program)?;
    // In the function, a type parameter hides a type of the same name.
    for generic in parameter.generics.iter().flat_map(|generics| &generics.params) {
        types.named.remove(generic.name.name.as_str());
    }
    let mut schema = types.schema(parameter.kind);
    for name in types.recursive.clone() {
        if !types.defined.contains_key(&name) {
            types.open.push(name.clone());
            let definition = types.definition(&name);
            types.open.pop();
            types.defined.insert(name, definition);
        }
    }
    let object = schema.as_object_mut()?;
    if !types.defined.is_empty() {
        object.insert("$defs".into(), json!(types.defined));
    }
    (!object.is_empty()).then_some(schema)
}

/// The first parameter of a function.
struct Parameter<'p> {
    kind: &'p TSType<'p>,
    /// The type parameters of the function.
    generics: Option<&'p TSTypeParameterDeclaration<'p>>,
}

impl<'p> Parameter<'p> {
    fn first(
        params: &'p FormalParameters<'p>,
        generics: Option<&'p TSTypeParameterDeclaration<'p>>,
    ) -> Option<Self> {
        let annotation = params.items.first()?.type_annotation.as_ref()?;
        Some(Self { kind: &annotation.type_annotation, generics })
    }

    fn of_function(function: &'p Function<'p>) -> Option<Self> {
        Self::first(&function.params, function.type_parameters.as_deref())
    }

    fn of_arrow(function: &'p ArrowFunctionExpression<'p>) -> Option<Self> {
        Self::first(&function.params, function.type_parameters.as_deref())
    }
}

/// The type of the first parameter of `export default function`, or of what is exported as `run`. A function with
/// overloads has none: each of them admits other params.
fn type_of_params<'p>(program: &'p Program<'p>) -> Option<Parameter<'p>> {
    let mut wanted = "run";
    for statement in &program.body {
        let Statement::ExportDefaultDeclaration(export) = statement else {
            continue;
        };
        match &export.declaration {
            // (An overload has no body, and stands before the one that has.)
            ExportDefaultDeclarationKind::FunctionDeclaration(function) if function.body.is_none() => return None,
            ExportDefaultDeclarationKind::FunctionDeclaration(function) => return Parameter::of_function(function),
            ExportDefaultDeclarationKind::ArrowFunctionExpression(function) => return Parameter::of_arrow(function),
            ExportDefaultDeclarationKind::FunctionExpression(function) => return Parameter::of_function(function),
            ExportDefaultDeclarationKind::Identifier(name) => wanted = name.name.as_str(),
            _ => {}
        }
    }
    for statement in &program.body {
        let (function, variables) = match statement {
            Statement::FunctionDeclaration(function) => (Some(function), None),
            Statement::VariableDeclaration(variables) => (None, Some(variables)),
            Statement::ExportDeclaration(export) => match &export.declaration {
                Declaration::FunctionDeclaration(function) => (Some(function), None),
                Declaration::VariableDeclaration(variables) => (None, Some(variables)),
                _ => continue,
            },
            _ => continue,
        };
        if let Some(function) = function
            && function.id.as_ref().is_some_and(|id| id.name.as_str() == wanted)
        {
            function.body.as_ref()?;
            return Parameter::of_function(function);
        }
        for variable in variables.iter().flat_map(|variables| &variables.declarations) {
            let BindingPattern::BindingIdentifier(id) = &variable.id else {
                continue;
            };
            if id.name.as_str() != wanted {
                continue;
            }
            match &variable.init {
                Some(Expression::ArrowFunctionExpression(function)) => return Parameter::of_arrow(function),
                Some(Expression::FunctionExpression(function)) => return Parameter::of_function(function),
                _ => {}
            }
        }
    }
    None
}

enum Named<'p> {
    Alias(&'p TSTypeAliasDeclaration<'p>),
    Interface(&'p TSInterfaceDeclaration<'p>),
}

struct Types<'p> {
    program: &'p Program<'p>,
    named: HashMap<&'p str, Vec<Named<'p>>>,
    /// Where the statement of an exported one begins, by where its declaration does.
    exported: HashMap<u32, u32>,
    /// Names whose definitions are being written.
    open: Vec<String>,
    recursive: BTreeSet<String>,
    defined: BTreeMap<String, Value>,
    depth: u32,
}

impl<'p> Types<'p> {
    fn collect(&mut self) {
        for statement in &self.program.body {
            let named = match statement {
                Statement::TSTypeAliasDeclaration(alias) => (alias.id.name.as_str(), Named::Alias(alias)),
                Statement::TSInterfaceDeclaration(one) => (one.id.name.as_str(), Named::Interface(one)),
                Statement::ExportDeclaration(export) => match &export.declaration {
                    Declaration::TSTypeAliasDeclaration(alias) => (alias.id.name.as_str(), Named::Alias(alias)),
                    Declaration::TSInterfaceDeclaration(one) => (one.id.name.as_str(), Named::Interface(one)),
                    _ => continue,
                },
                _ => continue,
            };
            if let Statement::ExportDeclaration(export) = statement {
                self.exported.insert(export.declaration.span().start, export.span.start);
            }
            self.named.entry(named.0).or_default().push(named.1);
        }
    }

    fn schema(&mut self, kind: &'p TSType<'p>) -> Value {
        if self.depth >= MAX_DEPTH {
            return json!({});
        }
        self.depth += 1;
        let schema = self.schema_of(kind);
        self.depth -= 1;
        schema
    }

    fn schema_of(&mut self, kind: &'p TSType<'p>) -> Value {
        match kind {
            TSType::TSStringKeyword(_) | TSType::TSTemplateLiteralType(_) => json!({"type": "string"}),
            TSType::TSNumberKeyword(_) => json!({"type": "number"}),
            TSType::TSBooleanKeyword(_) => json!({"type": "boolean"}),
            TSType::TSNullKeyword(_) => json!({"type": "null"}),
            TSType::TSObjectKeyword(_) => json!({"type": "object"}),
            TSType::TSNeverKeyword(_) => json!({"not": {}}),
            TSType::TSLiteralType(literal) => constant(&literal.literal).map_or(json!({}), |value| json!({"const": value})),
            TSType::TSParenthesizedType(inner) => self.schema(&inner.type_annotation),
            TSType::TSTypeOperatorType(inner) if inner.operator == TSTypeOperatorOperator::Readonly => {
                self.schema(&inner.type_annotation)
            }
            TSType::TSArrayType(array) => json!({"type": "array", "items": self.schema(&array.element_type)}),
            TSType::TSTupleType(tuple) => self.tuple(tuple),
            TSType::TSUnionType(union) => self.union(union),
            TSType::TSIntersectionType(all) => {
                let all: Vec<Value> = all.types.iter().map(|one| self.schema(one)).collect();
                // With another type (`string & { … }`, a brand) it says nothing of JSON, or it is `any`.
                if all.iter().all(is_object) { json!({"allOf": all}) } else { json!({}) }
            }
            TSType::TSTypeLiteral(literal) => self.object(&literal.members),
            TSType::TSTypeReference(reference) => self.reference(reference),
            _ => json!({}),
        }
    }

    fn tuple(&mut self, tuple: &'p TSTupleType<'p>) -> Value {
        let (mut items, mut required, mut rest) = (Vec::new(), 0, None);
        for element in &tuple.element_types {
            let (kind, optional) = match element {
                TSTupleElement::TSRestType(one) => {
                    // Of a second one nobody knows where it begins.
                    rest = Some(match rest {
                        None => self.rest(&one.type_annotation),
                        Some(_) => json!({}),
                    });
                    continue;
                }
                TSTupleElement::TSOptionalType(one) => (Some(&one.type_annotation), true),
                TSTupleElement::TSNamedTupleMember(member) => (member.element_type.as_ts_type(), member.optional),
                other => (other.as_ts_type(), false),
            };
            required += usize::from(!optional);
            if rest.is_some() {
                // It counts from the end, for which a schema has no word.
                rest = Some(json!({}));
            } else {
                items.push(kind.map_or_else(|| json!({}), |kind| self.schema(kind)));
            }
        }
        let mut schema = json!({"type": "array", "minItems": required, "items": rest.unwrap_or(json!(false))});
        if !items.is_empty() {
            schema["prefixItems"] = json!(items);
        }
        schema
    }

    /// What each item of a tuple's rest (`...string[]`) admits.
    fn rest(&mut self, kind: &'p TSType<'p>) -> Value {
        let all = self.schema(kind);
        // The items of a tuple differ.
        match (all.get("prefixItems"), all.get("items")) {
            (None, Some(items)) if items.is_object() => items.clone(),
            _ => json!({}),
        }
    }

    fn union(&mut self, union: &'p TSUnionType<'p>) -> Value {
        let (mut constants, mut others) = (Vec::new(), Vec::new());
        for one in &union.types {
            match one {
                TSType::TSUndefinedKeyword(_) | TSType::TSVoidKeyword(_) => {}
                TSType::TSNullKeyword(_) => constants.push(Value::Null),
                _ => {
                    let schema = self.schema(one);
                    match schema.as_object() {
                        Some(object) if object.len() == 1 && object.contains_key("const") => {
                            constants.push(object["const"].clone());
                        }
                        Some(object) if object.len() == 1 && object.get("enum").is_some_and(Value::is_array) => {
                            constants.extend(object["enum"].as_array().into_iter().flatten().cloned());
                        }
                        _ => others.push(schema),
                    }
                }
            }
        }
        // What admits anything makes the whole admit anything.
        if others.iter().any(|one| one.as_object().is_some_and(Map::is_empty)) {
            return json!({});
        }
        // One type and `null` is the commonest union, and forms know it in this shape.
        if let ([other], [Value::Null]) = (&others[..], &constants[..])
            && let Some(Value::String(kind)) = other.get("type")
        {
            let mut schema = other.clone();
            schema["type"] = json!([kind, "null"]);
            return schema;
        }
        match (others.len(), constants.len()) {
            (1, 0) => others.remove(0),
            (0, 0) => json!({}),
            (0, _) => json!({"enum": constants}),
            (_, 0) => json!({"anyOf": others}),
            _ => {
                others.push(json!({"enum": constants}));
                json!({"anyOf": others})
            }
        }
    }

    fn reference(&mut self, reference: &'p TSTypeReference<'p>) -> Value {
        let TSTypeName::IdentifierReference(name) = &reference.type_name else {
            return json!({});
        };
        let name = name.name.as_str();
        let arguments = reference.type_arguments.as_ref().map(|arguments| &arguments.params);
        let argument = |at: usize| arguments.and_then(|arguments| arguments.get(at));
        if self.named.contains_key(name) {
            if self.open.iter().any(|open| open == name) {
                self.recursive.insert(name.to_owned());
                return json!({"$ref": format!("#/$defs/{name}")});
            }
            self.open.push(name.to_owned());
            let definition = self.definition(name);
            self.open.pop();
            if self.recursive.contains(name) {
                self.defined.insert(name.to_owned(), definition);
                return json!({"$ref": format!("#/$defs/{name}")});
            }
            return definition;
        }
        match (name, argument(0), argument(1)) {
            ("Array" | "ReadonlyArray", Some(item), None) => json!({"type": "array", "items": self.schema(item)}),
            ("Set" | "Map" | "Date" | "Promise", ..) => json!({}),
            ("Record", Some(key), Some(value)) => {
                let value = self.schema(value);
                let keys = self.schema(key);
                match names_of(&keys) {
                    Some(names) => {
                        let properties: Map<String, Value> =
                            names.iter().map(|name| (name.clone(), value.clone())).collect();
                        json!({"type": "object", "properties": properties, "required": names})
                    }
                    None if keys == json!({"type": "string"}) => {
                        json!({"type": "object", "additionalProperties": value})
                    }
                    None => json!({"type": "object"}),
                }
            }
            ("Readonly" | "NonNullable", Some(inner), None) => self.schema(inner),
            ("Partial", Some(inner), None) => self.with_required(inner, |_, _| Vec::new()),
            ("Required", Some(inner), None) => self.with_required(inner, |names, _| names),
            ("Pick", Some(inner), Some(keys)) => self.with_keys(inner, keys, true),
            ("Omit", Some(inner), Some(keys)) => self.with_keys(inner, keys, false),
            _ => json!({}),
        }
    }

    fn with_required(
        &mut self,
        inner: &'p TSType<'p>,
        choose: impl FnOnce(Vec<Value>, Vec<Value>) -> Vec<Value>,
    ) -> Value {
        let mut schema = self.schema(inner);
        if schema.get("allOf").is_some() {
            return json!({});
        }
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            return json!({});
        };
        let names = properties.keys().map(|name| json!(name)).collect();
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        schema["required"] = json!(choose(names, required));
        schema
    }

    fn with_keys(&mut self, inner: &'p TSType<'p>, keys: &'p TSType<'p>, keep: bool) -> Value {
        let mut schema = self.schema(inner);
        // Of a union or an intersection, the keys are not in one place.
        if schema.get("type") != Some(&json!("object")) || schema.get("allOf").is_some() {
            return json!({});
        }
        let Some(keys) = names_of(&self.schema(keys)) else {
            return json!({"type": "object"});
        };
        let wanted = |name: &str| keys.iter().any(|key| key == name) == keep;
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.retain(|name, _| wanted(name));
        }
        if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|name| name.as_str().is_some_and(wanted));
        }
        if keep && let Some(object) = schema.as_object_mut() {
            object.remove("additionalProperties");
        }
        schema
    }

    fn definition(&mut self, name: &str) -> Value {
        let Some((key, declared)) = self.named.remove_entry(name) else {
            return json!({});
        };
        // Back at once: a definition may name itself.
        let mut schema = json!({});
        let alias = declared.iter().find_map(|one| match one {
            Named::Alias(alias) => Some(*alias),
            Named::Interface(_) => None,
        });
        let interfaces: Vec<&'p TSInterfaceDeclaration<'p>> = declared
            .iter()
            .filter_map(|one| match one {
                Named::Interface(one) => Some(*one),
                Named::Alias(_) => None,
            })
            .collect();
        self.named.insert(key, declared);
        if let Some(alias) = alias {
            if alias.type_parameters.is_none() {
                schema = self.schema(&alias.type_annotation);
            }
            self.describe(&mut schema, alias.span.start);
        } else {
            for one in interfaces {
                if one.type_parameters.is_some() {
                    return json!({});
                }
                for base in &one.extends {
                    let TSTypeName::IdentifierReference(base) = &base.type_name else {
                        continue;
                    };
                    let base = base.name.to_string();
                    // `Array` is a base too.
                    if !self.named.contains_key(base.as_str()) && !OF_OBJECTS.contains(&base.as_str()) {
                        return json!({});
                    }
                    if !self.open.contains(&base) {
                        self.open.push(base.clone());
                        let inherited = self.definition(&base);
                        self.open.pop();
                        if inherited != json!({}) && !is_object(&inherited) {
                            return json!({});
                        }
                        merge(&mut schema, inherited);
                    }
                }
                let own = self.object(&one.body.body);
                merge(&mut schema, own);
                self.describe(&mut schema, one.span.start);
            }
        }
        schema
    }

    fn object(&mut self, members: &'p [TSSignature<'p>]) -> Value {
        let (mut properties, mut required, mut others) = (Map::new(), Vec::new(), None);
        for member in members {
            match member {
                TSSignature::TSPropertySignature(property) => {
                    let name = match &property.key {
                        PropertyKey::StaticIdentifier(name) => name.name.to_string(),
                        PropertyKey::StringLiteral(name) => name.value.to_string(),
                        PropertyKey::NumericLiteral(name) => name.value.to_string(),
                        _ => continue,
                    };
                    let mut optional = property.optional;
                    let mut schema = json!({});
                    if let Some(annotation) = &property.type_annotation {
                        optional |= admits_undefined(&annotation.type_annotation);
                        schema = self.schema(&annotation.type_annotation);
                    }
                    self.describe(&mut schema, property.span.start);
                    if !optional {
                        required.push(json!(name));
                    }
                    properties.insert(name, schema);
                }
                TSSignature::TSIndexSignature(index) => {
                    others = Some(self.schema(&index.type_annotation.type_annotation));
                }
                _ => {}
            }
        }
        let mut schema = json!({"type": "object"});
        if !properties.is_empty() {
            schema["properties"] = Value::Object(properties);
        }
        if !required.is_empty() {
            schema["required"] = json!(required);
        }
        if let Some(others) = others {
            schema["additionalProperties"] = others;
        }
        schema
    }

    /// Adds what the comment (`/** … */`) before a place says.
    fn describe(&self, schema: &mut Value, at: u32) {
        let at = self.exported.get(&at).copied().unwrap_or(at);
        let comment = self.program.comments.iter().rev().find(|comment| comment.attached_to == at && comment.is_jsdoc());
        let Some(comment) = comment else { return };
        let span = comment.content_span();
        let text = self.program.source_text.get(span.start as usize..span.end as usize).unwrap_or_default();
        let lines: Vec<&str> = text
            .lines()
            .map(|line| line.trim().trim_start_matches('*').trim())
            .take_while(|line| !line.starts_with('@'))
            .collect();
        let text = lines.join(" ").trim().to_owned();
        if let Some(object) = schema.as_object_mut().filter(|_| !text.is_empty()) {
            object.insert("description".into(), json!(text));
        }
    }
}

fn admits_undefined(kind: &TSType<'_>) -> bool {
    match kind {
        TSType::TSUndefinedKeyword(_) => true,
        TSType::TSUnionType(union) => union.types.iter().any(admits_undefined),
        TSType::TSParenthesizedType(inner) => admits_undefined(&inner.type_annotation),
        _ => false,
    }
}

fn constant(literal: &TSLiteral<'_>) -> Option<Value> {
    Some(match literal {
        TSLiteral::StringLiteral(text) => json!(text.value.as_str()),
        TSLiteral::NumericLiteral(number) => number_of(number.value),
        TSLiteral::BooleanLiteral(one) => json!(one.value),
        TSLiteral::UnaryExpression(unary) => match &unary.argument {
            Expression::NumericLiteral(number) if unary.operator == UnaryOperator::UnaryNegation => {
                number_of(-number.value)
            }
            _ => return None,
        },
        _ => return None,
    })
}

fn number_of(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        json!(value as i64)
    } else {
        json!(value)
    }
}

/// Whether a schema admits objects alone.
fn is_object(schema: &Value) -> bool {
    let all = |name: &str| schema.get(name).and_then(Value::as_array).is_some_and(|all| all.iter().all(is_object));
    schema.get("type") == Some(&json!("object")) || all("allOf") || all("anyOf")
}

/// The names that a type of keys has: literals alone.
fn names_of(keys: &Value) -> Option<Vec<String>> {
    let name = |key: &Value| match key {
        Value::String(name) => Some(name.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    match (keys.get("enum"), keys.get("const")) {
        (Some(Value::Array(all)), _) => all.iter().map(name).collect(),
        (_, Some(one)) => Some(vec![name(one)?]),
        _ => None,
    }
}

/// What an interface adds to those that it extends, or to another declaration of the same name.
fn merge(into: &mut Value, from: Value) {
    let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) else {
        return;
    };
    for (name, value) in from {
        match (into.get_mut(&name), value) {
            (Some(Value::Object(old)), Value::Object(new)) => old.extend(new),
            (Some(Value::Array(old)), Value::Array(new)) => {
                for one in new {
                    if !old.contains(&one) {
                        old.push(one);
                    }
                }
            }
            (_, value) => drop(into.insert(name, value)),
        }
    }
}

#[cfg(test)]
mod tests;
