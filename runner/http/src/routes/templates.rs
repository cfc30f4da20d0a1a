//! Params templates: bare JSON Schemas.

use heddle_api::{List, Moment};
use heddle_domain::schema::Schema;
use heddle_store::template::TemplateRow;
use serde::Serialize;
use serde_json::Value;

use super::grants;
use crate::access::Access;
use crate::problem::Problem;
use crate::request::{Outcome, Request, ok, put};
use crate::table::{Method, Route};

#[derive(Serialize)]
struct TemplateView {
    name: String,
    schema: Value,
    created_at: Moment,
    updated_at: Moment,
}

impl From<TemplateRow> for TemplateView {
    fn from(row: TemplateRow) -> Self {
        Self {
            name: row.name,
            schema: row.schema,
            created_at: row.created_at.into(),
            updated_at: row.updated_at.into(),
        }
    }
}

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::Get, "/v1/templates", Access::View, "List templates", list)
            .list()
            .answers(200, "TemplateList"),
        Route::new(
            Method::Put,
            "/v1/templates/{name}",
            Access::Operate,
            "Create or change a template",
            save,
        )
        .detail("The body is the JSON Schema itself.")
        .takes_spec("JsonSchema")
        .answers_put("Template")
        .problem(422, "not a JSON Schema"),
        Route::new(Method::Get, "/v1/templates/{name}", Access::View, "Get a template", get).answers(200, "Template"),
        Route::new(
            Method::Delete,
            "/v1/templates/{name}",
            Access::Operate,
            "Delete a template",
            delete,
        )
        .answers_empty(204)
        .problem(409, "groups or offers name it: says which"),
    ]
}

async fn list(request: Request) -> Outcome {
    let page = request.app.store.templates(request.cursor(), request.limit()?).await?;
    ok(&List::<TemplateView> {
        items: page.items.into_iter().map(Into::into).collect(),
        next_cursor: page.next,
    })
}

async fn save(mut request: Request) -> Outcome {
    let name = request.new_name("name")?;
    let schema = request.spec().await?;
    if !(schema.is_object() || schema.is_boolean()) {
        return Err(Problem::invalid_at("", "a JSON Schema is an object or a boolean"));
    }
    Schema::compile(&schema).map_err(|error| match error.split_once(": ") {
        // It begins with the place, where it has one.
        Some((place, detail)) if place.starts_with('/') => Problem::invalid_at(place, detail),
        _ => Problem::invalid_at("", error),
    })?;
    let done = request.app.store.put_template(request.by(), &name, &schema).await?;
    put(done.created, &TemplateView::from(done.row))
}

async fn get(request: Request) -> Outcome {
    let name = request.name("name", "template")?;
    let row = request
        .app
        .store
        .template(&name)
        .await?
        .ok_or_else(|| Problem::not_found("template", &name))?;
    ok(&TemplateView::from(row))
}

async fn delete(request: Request) -> Outcome {
    let name = request.name("name", "template")?;
    let removal = request.app.store.delete_template(request.by(), &name).await?;
    grants::removed(removal, "template", &name)
}
