//! The OpenAPI 3.1 description, made of the table of routes and the schemas of what goes in and comes out.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::describe::{Schemas, of, rename};
use crate::examples::Examples;
use crate::problem::PROBLEM_JSON;
use crate::schemas;
use crate::table::{Method, QueryParam, Route, Table};

pub fn document(table: &Table) -> Value {
    let mut bodies = Schemas::new();
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    let mut tags = Vec::new();
    for route in table.routes() {
        if !tags.contains(&route.tag) {
            tags.push(route.tag);
        }
        paths
            .entry(route.path)
            .or_default()
            .insert(route.method.as_str().to_lowercase(), operation(route, &mut bodies));
    }
    let (schemas, differ) = bodies.finish(schemas::all());
    let mut examples = Examples::new();
    for operation in paths.values_mut().flat_map(Map::values_mut) {
        if let Some(body) = operation.get_mut("requestBody") {
            rename(body, &differ);
        }
        examples.put_into(operation);
    }
    let tags: Vec<Value> = tags.into_iter().map(|name| json!({"name": name})).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Heddle",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Workflows whose tasks are WebAssembly scripts. Every error is a problem body (RFC 9457). An \
                empty value in a query means the same as no parameter; only a flag is then `true`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "tags": tags,
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {
                "type": "http", "scheme": "bearer",
                "description": "`heddle serve` needs a token, `heddle dev` does not.",
            }},
            "schemas": schemas,
            "examples": examples.finish(),
        },
    })
}

/// The parts of a path: `/v1/groups/{name}` has `name`.
fn path_params(path: &str) -> Vec<&str> {
    path.split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .collect()
}

/// What a part of a path is. The `id` of an offer is the only one that people choose.
fn path_schema(path: &str, name: &str) -> Value {
    match name {
        "id" if !path.starts_with("/v1/offers/") => json!({"type": "string", "format": "uuid"}),
        "day" => json!({"type": "string", "format": "date"}),
        "revision" | "version" => json!({"type": "integer", "minimum": 1}),
        _ => json!({"type": "string"}),
    }
}

fn operation(route: &Route, bodies: &mut Schemas) -> Value {
    let mut parameters: Vec<Value> = path_params(route.path)
        .into_iter()
        .map(|name| json!({"name": name, "in": "path", "required": true, "schema": path_schema(route.path, name)}))
        .collect();
    parameters.extend(route.query.iter().map(|param| {
        let QueryParam { name, schema, detail } = param;
        json!({"name": name, "in": "query", "description": detail, "schema": schema})
    }));
    if route.problems.iter().any(|(status, _)| *status == 412) {
        parameters.push(json!({
            "name": "If-Match",
            "in": "header",
            "description": "The revision that the change is based on, a list of revisions, or `*`: any. With another current \
                revision, the answer is 412 and nothing changes (RFC 9110, 13.1.1).",
            "schema": {"type": "string"},
            "example": "\"3\"",
        }));
        if route.method == Method::Put {
            parameters.push(json!({
                "name": "If-None-Match",
                "in": "header",
                "description": "`*`: only create. If it exists, the answer is 412 and nothing changes (RFC 9110, 13.1.2).",
                "schema": {"type": "string", "enum": ["*"]},
            }));
        }
    }
    if route.answers.iter().any(|(status, ..)| *status == 304) {
        parameters.push(json!({
            "name": "If-None-Match",
            "in": "header",
            "description": "The `ETag` of an earlier answer. If it is still the right one, the answer is 304 without a body \
                (RFC 9110, 13.1.2).",
            "schema": {"type": "string"},
        }));
    }
    let detail = [route.detail, route.access.described()]
        .into_iter()
        .filter(|text| !text.is_empty());
    let mut operation = json!({
        "operationId": operation_id(route),
        "tags": [route.tag],
        "summary": route.summary,
        "description": detail.collect::<Vec<_>>().join("\n\n"),
        "parameters": parameters,
        "responses": responses(route, bodies),
    });
    if !route.takes.is_empty() {
        let content: BTreeMap<&str, Value> = route
            .takes
            .iter()
            .map(|media| (media.media_type, json!({"schema": bodies.accepted(media.shape)})))
            .collect();
        operation["requestBody"] = json!({"content": content, "required": !route.body_optional});
    }
    if route.access == crate::access::Access::Open {
        operation["security"] = json!([]);
    }
    if route.deprecated {
        operation["deprecated"] = json!(true);
    }
    operation
}

fn responses(route: &Route, bodies: &mut Schemas) -> Map<String, Value> {
    let mut responses = Map::new();
    let conditional = |status: &u16| matches!(status, 304 | 412);
    let tagged = route.method != Method::Delete
        && (route.answers.iter().any(|(status, ..)| conditional(status))
            || route.problems.iter().any(|(status, _)| conditional(status)));
    for (status, media, _) in &route.answers {
        let response = responses
            .entry(status.to_string())
            .or_insert_with(|| json!({"description": described_status(*status)}));
        if tagged {
            response["headers"]["ETag"] = header("string", "What `If-Match` and `If-None-Match` name.");
        }
        if let Some(media) = media {
            response["content"][media.media_type] = json!({"schema": bodies.answered(media.shape)});
        }
    }
    for (status, when) in &route.problems {
        responses.insert(status.to_string(), problem(when, bodies));
    }
    let mut other = problem("Any other error.", bodies);
    let seconds = "With 429 and 503: after how many seconds to try again.";
    other["headers"]["Retry-After"] = header("integer", seconds);
    responses.insert("default".into(), other);
    responses
}

fn problem(when: &str, bodies: &mut Schemas) -> Value {
    json!({
        "description": when,
        "content": {PROBLEM_JSON: {"schema": bodies.answered(of::<heddle_api::Problem>())}},
    })
}

fn header(of: &str, detail: &str) -> Value {
    json!({"description": detail, "schema": {"type": of}})
}

fn described_status(status: u16) -> &'static str {
    match status {
        201 => "Created.",
        202 => "Accepted. The request is committed; the work continues in the background.",
        204 => "Done. The answer has no body.",
        304 => "`If-None-Match` names it: the caller has it already. The answer has no body.",
        _ => "Done.",
    }
}

/// `GET /v1/groups/{name}/next` is `get_groups_name_next`: unique because method and path are.
fn operation_id(route: &Route) -> String {
    let mut id = route.method.as_str().to_lowercase();
    for part in route
        .path
        .trim_start_matches("/v1")
        .split(['/', '{', '}', '.'])
        .filter(|part| !part.is_empty())
    {
        id.push('_');
        id.push_str(part);
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn references(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(entries) => {
                for (key, value) in entries {
                    match value {
                        Value::String(target) if key == "$ref" => found.push(target.clone()),
                        _ => references(value, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_schema_is_used() {
        let document = document(&crate::routes::table());
        let mut found = Vec::new();
        references(&document, &mut found);
        for target in &found {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target} leads nowhere");
        }
        for name in document["components"]["schemas"].as_object().unwrap().keys() {
            let used = format!("#/components/schemas/{name}");
            assert!(found.contains(&used), "{name} is not used");
        }
    }

    #[test]
    fn every_field_of_the_wire_is_described() {
        let document = document(&crate::routes::table());
        let written = schemas::all();
        let all = document["components"]["schemas"].as_object().unwrap();
        let mut silent = Vec::new();
        for (name, schema) in all.iter().filter(|(name, _)| !written.contains_key(name.as_str())) {
            for (field, property) in schema["properties"].as_object().into_iter().flatten() {
                if property["description"].as_str().is_none_or(str::is_empty) {
                    silent.push(format!("{name}.{field}"));
                }
            }
            assert!(!schema.to_string().contains("[`"), "{name} has links that lead nowhere");
        }
        assert!(silent.is_empty(), "nothing is said of {silent:?}");
        assert!(all.len() > 80, "only {} schemas", all.len());
    }

    #[test]
    fn params_have_their_types() {
        let document = document(&crate::routes::table());
        let check = |path: &str, name: &str, expect: Value| {
            let params = document["paths"][path]["get"]["parameters"].as_array().unwrap();
            let found = params.iter().find(|param| param["name"] == name).unwrap();
            assert_eq!(found["schema"], expect, "{path} {name}");
        };
        let number = |minimum: i64, maximum: i64| json!({"type": "integer", "minimum": minimum, "maximum": maximum});
        let paged = |maximum: i64, default: i64| {
            let mut schema = number(1, maximum);
            schema["default"] = default.into();
            schema
        };
        check("/v1/runs", "limit", paged(500, 50));
        check("/v1/audiences/{audience}/members", "limit", paged(500, 50));
        check("/v1/events", "limit", number(1, 1_000_000));
        check("/v1/topics/{topic}/messages", "bucket", number(0, 9_999));
        check("/v1/groups", "enabled", json!({"type": "boolean"}));
        check("/v1/runs", "history", json!({"type": "boolean"}));
        check("/v1/runs", "from", json!({"type": "string", "format": "date-time"}));
        check("/v1/runs", "state", json!({"type": "string"}));
        let logs = &document["paths"]["/v1/runs/{id}/logs"]["get"]["responses"]["200"]["content"];
        let media: Vec<&String> = logs.as_object().unwrap().keys().collect();
        assert_eq!(media, ["application/json", "text/event-stream"]);
    }

    #[test]
    fn all_forms_of_bodies_are_listed() {
        let document = document(&crate::routes::table());
        let media = |path: &str, method: &str| -> Vec<String> {
            let content = &document["paths"][path][method]["requestBody"]["content"];
            content.as_object().unwrap().keys().cloned().collect()
        };
        assert_eq!(
            media("/v1/audiences/{audience}/members", "patch"),
            ["application/json", "application/yaml"]
        );
        for call in ["timerTaskDel", "disableTask", "enableTask", "execTaskImmediately"] {
            assert_eq!(
                media(&format!("/task-scheduler/task/{call}"), "post"),
                [
                    "application/json",
                    "application/x-www-form-urlencoded",
                    "multipart/form-data"
                ]
            );
        }
        let forms = &document["components"]["schemas"]["TimerTaskNumber"]["anyOf"];
        assert_eq!(forms[0]["$ref"], "#/components/schemas/TimerTaskId");
        assert_eq!(
            (&forms[1]["type"], &forms[2]["type"]),
            (&json!("integer"), &json!("string"))
        );
    }

    #[test]
    fn the_kinds_of_waits_are_listed() {
        let document = document(&crate::routes::table());
        let schemas = &document["components"]["schemas"];
        let waits = &schemas["Run"]["properties"]["waiting_for"]["items"];
        assert_eq!(waits["$ref"], "#/components/schemas/RunWait");
        let kinds = schemas["RunWait"]["anyOf"].as_array().unwrap();
        let required: Vec<&Value> = kinds.iter().map(|kind| &kind["required"]).collect();
        assert_eq!(
            required,
            [&json!(["turn"]), &json!(["group", "instant", "need"]), &Value::Null]
        );
    }

    #[test]
    fn bounds_and_formats_are_told() {
        let document = document(&crate::routes::table());
        let schemas = &document["components"]["schemas"];
        let field = |name: &str, field: &str| &schemas[name]["properties"][field];
        assert_eq!(field("ClaimRequest", "max")["minimum"], 1);
        assert_eq!(field("ClaimRequest", "max")["maximum"], 1_000);
        assert_eq!(field("Submission", "priority")["minimum"], -1_000);
        assert_eq!(field("OfferSpec", "priority")["maximum"], 1_000);
        assert_eq!(field("StateOverride", "reason")["minLength"], 1);
        assert_eq!(field("StateOverride", "reason")["default"], Value::Null);
        assert_eq!(field("StateOverride", "state")["enum"], json!(["succeeded", "failed"]));
        let format = |path: &str| &document["paths"][path]["get"]["parameters"][0]["schema"]["format"];
        assert_eq!(format("/v1/runs/{id}"), "uuid");
        assert_eq!(*format("/v1/offers/{id}"), Value::Null);
        let wasm = &document["paths"]["/v1/scripts/{name}/versions/{version}/wasm"]["get"]["responses"]["200"];
        assert!(wasm["headers"]["ETag"].is_object(), "{wasm}");
    }

    #[test]
    fn an_older_path_is_marked() {
        let document = document(&crate::routes::table());
        let marked = |path: &str| document["paths"][path]["post"]["deprecated"].clone();
        assert_eq!(marked("/v1/secrets-key/reseal"), true);
        assert_eq!(marked("/v1/secrets-key/rotate"), Value::Null);
    }

    #[test]
    fn a_body_that_may_be_left_out_has_no_required_field() {
        let document = document(&crate::routes::table());
        let mut optional = Vec::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let Some(body) = operation.get("requestBody") else {
                    continue;
                };
                if body["required"] == true {
                    continue;
                }
                assert_eq!(body["required"], false, "{method} {path}");
                // Their number may be in the query instead.
                if path.starts_with("/task-scheduler/") {
                    continue;
                }
                let schema = &body["content"]["application/json"]["schema"];
                let target = schema["$ref"].as_str().and_then(|target| target.strip_prefix('#'));
                let schema = target.map_or(schema, |target| document.pointer(target).unwrap());
                assert_eq!(schema["required"], Value::Null, "{method} {path}");
                optional.push(format!("{method} {path}"));
            }
        }
        for known in ["post /v1/groups/{name}/runs", "put /v1/categories/{name}"] {
            assert!(
                optional.iter().any(|found| found == known),
                "{known} is not in {optional:?}"
            );
        }
        let required = &document["paths"]["/v1/groups/{name}"]["put"]["requestBody"]["required"];
        assert_eq!(*required, true);
    }

    #[test]
    fn every_operation_has_an_id_of_its_own_and_its_path_params() {
        let document = document(&crate::routes::table());
        let mut ids = std::collections::BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for operation in methods.as_object().unwrap().values() {
                assert!(
                    ids.insert(operation["operationId"].as_str().unwrap().to_owned()),
                    "{path}"
                );
                let declared = operation["parameters"].as_array().unwrap();
                let in_path = declared.iter().filter(|param| param["in"] == "path").count();
                assert_eq!(in_path, path.matches('{').count(), "{path}");
            }
        }
        assert_eq!(document["openapi"], "3.1.0");
    }
}
