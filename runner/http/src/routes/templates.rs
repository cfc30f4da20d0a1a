//! Params templates: bare JSON Schemas.

use heddle_api::{List, Template, TemplateSpec};
use heddle_domain::bounded::or_trouble;
use heddle_domain::schema::Schema;
use heddle_store::template::TemplateRow;

use super::grants;
use crate::access::Access;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, found, list_of, put};
use crate::table::{Method, Route};

fn shown(row: TemplateRow) -> Template {
    Template {
        name: row.name,
        schema: row.schema,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    }
}

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::Get, "/v1/templates", Access::View, "List templates", list)
            .list()
            .answers(200, of::<List<Template>>()),
        Route::new(
            Method::Put,
            "/v1/templates/{name}",
            Access::Operate,
            "Create or change a template",
            save,
        )
        .detail("The body is the JSON Schema itself.")
        .takes_spec(of::<TemplateSpec>())
        .answers_put(of::<Template>())
        .problem(422, "The body is not a valid JSON Schema."),
        Route::new(Method::Get, "/v1/templates/{name}", Access::View, "Get a template", get)
            .answers(200, of::<Template>()),
        Route::new(
            Method::Delete,
            "/v1/templates/{name}",
            Access::Operate,
            "Delete a template",
            delete,
        )
        .answers_empty(204)
        .problem(409, "Groups or offers use the template; `detail` names them."),
    ]
}

async fn list(request: Request) -> Outcome {
    let page = request.app.store.templates(request.cursor(), request.limit()?).await?;
    list_of(page, shown)
}

async fn save(mut request: Request) -> Outcome {
    let name = request.new_name("name")?;
    let schema = request.spec().await?;
    or_trouble(|| Schema::compile(&schema))?.map_err(Problem::invalid)?;
    let done = request.app.store.put_template(request.by(), &name, &schema).await?;
    put(done.created, &shown(done.row))
}

async fn get(request: Request) -> Outcome {
    let name = request.name("name", "template")?;
    found(request.app.store.template(&name).await?, "template", &name, shown)
}

async fn delete(request: Request) -> Outcome {
    let name = request.name("name", "template")?;
    let removal = request.app.store.delete_template(request.by(), &name).await?;
    grants::removed(removal, "template", &name)
}
