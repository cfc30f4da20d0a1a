//! Routes of categories. Groups name theirs; secrets and connections may be granted to a category.

use heddle_api::{Category, CategorySpec, List};
use heddle_store::category::CategoryRow;

use super::grants;
use crate::access::Access;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, found, list_of, put, typed};
use crate::table::{Method, Route};

fn shown(row: CategoryRow) -> Category {
    Category {
        name: row.name,
        description: row.description,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    }
}

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::Get, "/v1/categories", Access::View, "List categories", list)
            .list()
            .answers(200, of::<List<Category>>()),
        Route::new(
            Method::Put,
            "/v1/categories/{name}",
            Access::Operate,
            "Create or change a category",
            save,
        )
        .detail("A category is also created when a group names it.")
        .takes_spec(of::<CategorySpec>())
        .optional()
        .answers_put(of::<Category>()),
        Route::new(
            Method::Get,
            "/v1/categories/{name}",
            Access::View,
            "Get a category",
            get,
        )
        .answers(200, of::<Category>()),
        Route::new(
            Method::Delete,
            "/v1/categories/{name}",
            Access::Operate,
            "Delete a category",
            delete,
        )
        .answers_empty(204)
        .problem(409, "The category has groups; `detail` names them."),
    ]
}

/// The longest description, in characters.
const DESCRIPTION_CHARS_MAX: usize = 10_000;

async fn list(request: Request) -> Outcome {
    let page = request.app.store.categories(request.cursor(), request.limit()?).await?;
    list_of(page, shown)
}

async fn save(mut request: Request) -> Outcome {
    let name = request.new_name("name")?;
    let body: CategorySpec = typed(grants::as_put(request.spec().await?, &name)?, "")?;
    if body.description.chars().count() > DESCRIPTION_CHARS_MAX {
        return Err(Problem::invalid_at(
            "/description",
            format!("`description` must have at most {DESCRIPTION_CHARS_MAX} characters"),
        ));
    }
    let done = request
        .app
        .store
        .put_category(request.by(), &name, &body.description)
        .await?;
    put(done.created, &shown(done.row))
}

async fn get(request: Request) -> Outcome {
    let name = request.name("name", "category")?;
    found(request.app.store.category(&name).await?, "category", &name, shown)
}

async fn delete(request: Request) -> Outcome {
    let name = request.name("name", "category")?;
    let removal = request.app.store.delete_category(request.by(), &name).await?;
    grants::removed(removal, "category", &name)
}
