//! The JSON Schema of a script's params, from the type of `run`'s first parameter.
//!
//! It is what the type says of JSON: interfaces, aliases, unions, literals, optional properties, arrays, tuples and
//! records of the same file, with their comments as descriptions. What it does not know (generics, conditional types,
//! types of other files) admits anything: the types promise that much and no more.

use oxc_ast::ast::*;
use oxc_span::GetSpan;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// How deep types may nest; below that, anything is admitted.
const MAX_DEPTH: u32 = 64;

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
    let kind = type_of_params(program)?;
    let mut schema = types.schema(kind);
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

/// The type of the first parameter of `export default function`, or of what is exported as `run`.
fn type_of_params<'p>(program: &'p Program<'_>) -> Option<&'p TSType<'p>> {
    let first = |params: &'p FormalParameters<'p>| {
        let annotation = params.items.first()?.type_annotation.as_ref()?;
        Some(&annotation.type_annotation)
    };
    let mut wanted = "run".to_owned();
    for statement in &program.body {
        let Statement::ExportDefaultDeclaration(export) = statement else {
            continue;
        };
        match &export.declaration {
            ExportDefaultDeclarationKind::FunctionDeclaration(function) => return first(&function.params),
            ExportDefaultDeclarationKind::ArrowFunctionExpression(function) => return first(&function.params),
            ExportDefaultDeclarationKind::FunctionExpression(function) => return first(&function.params),
            ExportDefaultDeclarationKind::Identifier(name) => wanted = name.name.to_string(),
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
            && function.body.is_some()
            && function.id.as_ref().is_some_and(|id| id.name.as_str() == wanted)
        {
            return first(&function.params);
        }
        for variable in variables.iter().flat_map(|variables| &variables.declarations) {
            let BindingPattern::BindingIdentifier(id) = &variable.id else {
                continue;
            };
            if id.name.as_str() != wanted {
                continue;
            }
            match &variable.init {
                Some(Expression::ArrowFunctionExpression(function)) => return first(&function.params),
                Some(Expression::FunctionExpression(function)) => return first(&function.params),
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
                json!({"allOf": all})
            }
            TSType::TSTypeLiteral(literal) => self.object(&literal.members),
            TSType::TSTypeReference(reference) => self.reference(reference),
            _ => json!({}),
        }
    }

    fn tuple(&mut self, tuple: &'p TSTupleType<'p>) -> Value {
        let (mut items, mut required, mut rest) = (Vec::new(), 0, json!(false));
        for element in &tuple.element_types {
            match element {
                TSTupleElement::TSOptionalType(one) => items.push(self.schema(&one.type_annotation)),
                TSTupleElement::TSRestType(one) => {
                    let all = self.schema(&one.type_annotation);
                    rest = all.get("items").cloned().unwrap_or(json!({}));
                }
                TSTupleElement::TSNamedTupleMember(member) => {
                    let schema = match member.element_type.as_ts_type() {
                        Some(kind) => self.schema(kind),
                        None => json!({}),
                    };
                    required += usize::from(!member.optional);
                    items.push(schema);
                }
                other => {
                    let schema = match other.as_ts_type() {
                        Some(kind) => self.schema(kind),
                        None => json!({}),
                    };
                    required += 1;
                    items.push(schema);
                }
            }
        }
        let mut schema = json!({"type": "array", "minItems": required, "items": rest});
        if !items.is_empty() {
            schema["prefixItems"] = json!(items);
        }
        schema
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
                match keys.get("enum").and_then(Value::as_array) {
                    Some(keys) => {
                        let names: Vec<&str> = keys.iter().filter_map(Value::as_str).collect();
                        let properties: Map<String, Value> =
                            names.iter().map(|name| ((*name).to_owned(), value.clone())).collect();
                        json!({"type": "object", "properties": properties, "required": names})
                    }
                    None => json!({"type": "object", "additionalProperties": value}),
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
        let keys = self.schema(keys);
        let keys: Vec<&str> = match (keys.get("enum"), keys.get("const")) {
            (Some(Value::Array(all)), _) => all.iter().filter_map(Value::as_str).collect(),
            (_, Some(Value::String(one))) => vec![one],
            _ => return json!({"type": "object"}),
        };
        let wanted = |name: &str| keys.contains(&name) == keep;
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.retain(|name, _| wanted(name));
        }
        if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|name| name.as_str().is_some_and(wanted));
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
                    if !self.open.contains(&base) {
                        self.open.push(base.clone());
                        let inherited = self.definition(&base);
                        self.open.pop();
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
mod tests {
    use crate::check::check;
    use serde_json::{Value, json};

    fn schema(source: &str) -> Option<Value> {
        check(source.as_bytes(), "typescript").unwrap_or_else(|fault| panic!("{source}: {fault:?}")).params
    }

    fn of(kind: &str) -> Value {
        let source = format!("export default function run(params: {kind}) {{}}");
        schema(&source).unwrap_or(json!({}))
    }

    #[test]
    fn what_types_say() {
        for (kind, expect) in [
            ("{ a: string; b?: number; c: boolean | undefined }",
             json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}, "c": {"type": "boolean"}}, "required": ["a"]})),
            ("{ a: 'x' | 'y' | 3 | -1 | null }", json!({"type": "object", "properties": {"a": {"enum": ["x", "y", 3, -1, null]}}, "required": ["a"]})),
            ("{ a: string | null }", json!({"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]})),
            ("{ a: string[]; b: Array<number>; c: readonly [string, number?] }",
             json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}, "b": {"type": "array", "items": {"type": "number"}},
                    "c": {"type": "array", "minItems": 1, "items": false, "prefixItems": [{"type": "string"}, {"type": "number"}]}}, "required": ["a", "b", "c"]})),
            ("Record<string, number>", json!({"type": "object", "additionalProperties": {"type": "number"}})),
            ("{ [k: string]: string }", json!({"type": "object", "additionalProperties": {"type": "string"}})),
            ("Partial<{ a: string }>", json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": []})),
            ("any", json!({})),
            ("{ a: string | number }", json!({"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "number"}]}}, "required": ["a"]})),
        ] {
            assert_eq!(of(kind), expect, "{kind}");
        }
    }

    #[test]
    fn names_and_comments() {
        let source = "
            type Mode = 'fast' | 'slow';
            interface Base { id: number }
            /** What to clean. */
            export interface Params extends Base {
                /** Which table. */
                table: string;
                mode?: Mode;
            }
            const run = async ({ table }: Params) => table;
            export default run;";
        assert_eq!(
            schema(source).unwrap(),
            json!({"type": "object", "description": "What to clean.", "required": ["id", "table"], "properties": {
                "id": {"type": "number"}, "table": {"type": "string", "description": "Which table."}, "mode": {"enum": ["fast", "slow"]}}})
        );
        let tree = "interface Tree { name: string; children?: Tree[] } export default function run(p: { tree: Tree }) {}";
        assert_eq!(
            schema(tree).unwrap(),
            json!({"type": "object", "required": ["tree"], "properties": {"tree": {"$ref": "#/$defs/Tree"}}, "$defs": {"Tree":
                {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}}})
        );
        assert_eq!(schema("export default function run() {}"), None);
        assert_eq!(schema("export function run(p: { a: string }) {}").unwrap()["required"], json!(["a"]));
    }
}
