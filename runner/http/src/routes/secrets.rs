//! Secrets: write only.

use heddle_api::{List, Moment};
use heddle_store::secret::{SECRET_BYTES_MAX, SecretRow};
use serde::{Deserialize, Serialize};

use super::grants;
use crate::access::Access;
use crate::problem::Problem;
use crate::request::{Outcome, Request, ok, put, typed};
use crate::table::{Method, Route};

#[derive(Serialize)]
struct SecretView {
    name: String,
    groups: Vec<String>,
    categories: Vec<String>,
    created_at: Moment,
    updated_at: Moment,
}

impl From<SecretRow> for SecretView {
    fn from(row: SecretRow) -> Self {
        Self {
            name: row.name,
            groups: row.grant.groups,
            categories: row.grant.categories,
            created_at: row.created_at.into(),
            updated_at: row.updated_at.into(),
        }
    }
}

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::Get, "/v1/secrets", Access::Admin, "List secrets, without their values", list)
            .list()
            .answers(200, "SecretList"),
        Route::new(Method::Put, "/v1/secrets/{name}", Access::Admin, "Create or change a secret", save)
            .detail("Kept encrypted; never shown again. Only the groups and categories that it names may use it; `*` stands for all, and nobody may if it names none.")
            .takes_spec("SecretSpec")
            .answers_put("Secret"),
        Route::new(Method::Get, "/v1/secrets/{name}", Access::Admin, "Get a secret, without its value", get)
            .answers(200, "Secret"),
        Route::new(
            Method::Post,
            "/v1/secrets-key/reseal",
            Access::Admin,
            "Seal secrets, connections and channels with the current key",
            reseal,
        )
        .detail("The last step of changing the key, once every node seals with the new one.")
        .answers(200, "Resealed"),
        Route::new(Method::Delete, "/v1/secrets/{name}", Access::Admin, "Delete a secret", delete)
            .answers_empty(204)
            .problem(409, "groups name it: says which"),
    ]
}

/// Seals with the current key what older ones sealed.
async fn reseal(mut request: Request) -> Outcome {
    request.nothing().await?;
    let app = &request.app;
    let done = app.store.reseal(request.by(), &app.secret_keys, &*app.chance).await?;
    ok(&serde_json::json!({
        "key_id": app.secret_keys.current_id(),
        "secrets": done.secrets,
        "connections": done.connections,
        "channels": done.channels,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretBody {
    value: String,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    categories: Vec<String>,
}

async fn list(request: Request) -> Outcome {
    let page = request.app.store.secrets(request.cursor(), request.limit()?).await?;
    ok(&List::<SecretView> {
        items: page.items.into_iter().map(Into::into).collect(),
        next_cursor: page.next,
    })
}

async fn save(mut request: Request) -> Outcome {
    let name = request.new_name("name")?;
    let body: SecretBody = typed(grants::as_put(request.spec().await?, &name)?, "")?;
    if body.value.len() > SECRET_BYTES_MAX {
        return Err(Problem::invalid_at(
            "/value",
            format!("a secret may have at most {SECRET_BYTES_MAX} bytes"),
        ));
    }
    let grant = grants::grant(body.groups, body.categories)?;
    let app = &request.app;
    let done = app
        .store
        .put_secret(request.by(), &app.secret_keys, &*app.chance, &name, &body.value, &grant)
        .await?;
    put(done.created, &SecretView::from(done.row))
}

async fn get(request: Request) -> Outcome {
    let name = request.name("name", "secret")?;
    let row = request
        .app
        .store
        .secret(&name)
        .await?
        .ok_or_else(|| Problem::not_found("secret", &name))?;
    ok(&SecretView::from(row))
}

async fn delete(request: Request) -> Outcome {
    let name = request.name("name", "secret")?;
    let removal = request.app.store.delete_secret(request.by(), &name).await?;
    grants::removed(removal, "secret", &name)
}
