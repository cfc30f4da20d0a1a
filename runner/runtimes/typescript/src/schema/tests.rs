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

/// What a schema cannot say exactly admits more, never less.
#[test]
fn what_has_no_exact_schema_admits_more() {
    let (a, b) = ("{ a: string }", "{ b: number }");
    let of_a = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
    let of_b = json!({"type": "object", "properties": {"b": {"type": "number"}}, "required": ["b"]});
    for (kind, expect) in [
        (format!("{a} & {b}"), json!({"allOf": [of_a, of_b]})),
        (format!("{a} & ({a} | {b})"), json!({"allOf": [of_a, {"anyOf": [of_a, of_b]}]})),
        (format!("{a} & any"), json!({})),
        (format!("Pick<{a} & {b}, 'a'>"), json!({})),
        (format!("Omit<{a} & {b}, 'b'>"), json!({})),
        (format!("Omit<{a} | {b}, 'b'>"), json!({})),
        (format!("Partial<{a} & {b}>"), json!({})),
        ("Omit<{ a: string; 1: number }, 1>".to_owned(), of_a.clone()),
        ("Pick<{ a: string; b: number }, 'a'>".to_owned(), of_a.clone()),
        ("Omit<{ a: string; b: number }, 'b'>".to_owned(), of_a.clone()),
        ("Record<'a', string>".to_owned(), of_a.clone()),
        (format!("Record<keyof {a}, string>"), json!({"type": "object"})),
    ] {
        assert_eq!(of(&kind), expect, "{kind}");
    }
    for (kind, expect) in [
        ("'red' | (string & {})", json!({})),
        ("string & { __brand: 'id' }", json!({})),
        ("[...string[], number]", json!({"type": "array", "minItems": 1, "items": {}})),
        ("[string, ...number[], boolean]", json!({"type": "array", "minItems": 2, "items": {}, "prefixItems": [{"type": "string"}]})),
        ("[string, ...[number, boolean]]", json!({"type": "array", "minItems": 1, "items": {}, "prefixItems": [{"type": "string"}]})),
        ("[string, ...number[]]", json!({"type": "array", "minItems": 1, "items": {"type": "number"}, "prefixItems": [{"type": "string"}]})),
        ("[a: string, b?: number]", json!({"type": "array", "minItems": 1, "items": false, "prefixItems": [{"type": "string"}, {"type": "number"}]})),
    ] {
        assert_eq!(of(&format!("{{ x: {kind} }}"))["properties"]["x"], expect, "{kind}");
    }
}

#[test]
fn functions_whose_params_may_be_anything() {
    for source in [
        "export default function run(p: { a: string }): void;
         export default function run(p: { b: string }): void;
         export default function run(p: any) {}",
        "export function run(p: { a: string }): void;
         export function run(p: { b: string }): void;
         export function run(p: { a: string }) {}",
        "function run(p: { a: string }): void;
         function run(p: { b: string }): void;
         function run(p: { a: string }) {}
         export default run;",
        "interface T { a: string } export default function run<T>(p: T) {}",
        "type T = { a: string }; export const run = <T,>(p: T) => p;",
        "interface Names extends Array<string> { a: string } export default function run(p: Names) {}",
        "type Names = string[]; interface More extends Names { a: string } export default function run(p: More) {}",
    ] {
        assert_eq!(schema(source), None, "{source}");
    }
    let source = "interface T { a: string } export default function run<U>(p: { t: T; u: U }) {}";
    assert_eq!(
        schema(source).unwrap()["properties"],
        json!({"t": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, "u": {}})
    );
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
