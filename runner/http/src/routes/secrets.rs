//! Routes of secrets. A value can be written, and is never shown.

use heddle_api::{List, RotatedKeys, Secret, SecretSpec};
use heddle_store::secret::{SECRET_BYTES_MAX, SecretRow};

use super::grants;
use crate::access::Access;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, found, list_of, ok, put, typed};
use crate::table::{Method, Route};

fn shown(row: SecretRow) -> Secret {
    Secret {
        name: row.name,
        groups: row.grant.groups,
        categories: row.grant.categories,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    }
}

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::Get,
            "/v1/secrets",
            Access::Admin,
            "List secrets, without their values",
            list,
        )
        .list()
        .answers(200, of::<List<Secret>>()),
        Route::new(
            Method::Put,
            "/v1/secrets/{name}",
            Access::Admin,
            "Create or change a secret",
            save,
        )
        .detail(
            "The value is stored encrypted and never shown again. Only the groups and categories that the \
                secret names may use it. `*` means all. If it names none, nothing can use it.",
        )
        .takes_spec(of::<SecretSpec>())
        .answers_put(of::<Secret>()),
        Route::new(
            Method::Get,
            "/v1/secrets/{name}",
            Access::Admin,
            "Get a secret, without its value",
            get,
        )
        .answers(200, of::<Secret>()),
        Route::new(
            Method::Post,
            "/v1/secrets-key/rotate",
            Access::Admin,
            "Encrypt secrets, connections and channels again with the current key",
            rotate_keys,
        )
        .detail("The last step of a change of the secrets key. Do it when all nodes use the new key.")
        .answers(200, of::<RotatedKeys>()),
        Route::new(
            Method::Post,
            "/v1/secrets-key/reseal",
            Access::Admin,
            "Another path of `POST /v1/secrets-key/rotate`, for older callers",
            rotate_keys,
        )
        .deprecated()
        .answers(200, of::<RotatedKeys>()),
        Route::new(
            Method::Delete,
            "/v1/secrets/{name}",
            Access::Admin,
            "Delete a secret",
            delete,
        )
        .answers_empty(204)
        .problem(409, "Groups or topics use the secret; `detail` names them."),
    ]
}

/// Seals with the current key what older ones sealed.
async fn rotate_keys(request: Request) -> Outcome {
    let app = &request.app;
    let done = app
        .store
        .rotate_keys(request.by(), &app.secret_keys, &*app.chance)
        .await?;
    ok(&RotatedKeys {
        key_id: app.secret_keys.current_id().to_string(),
        secrets: done.secrets,
        connections: done.connections,
        channels: done.channels,
    })
}

async fn list(request: Request) -> Outcome {
    let page = request.app.store.secrets(request.cursor(), request.limit()?).await?;
    list_of(page, shown)
}

async fn save(mut request: Request) -> Outcome {
    let name = request.new_name("name")?;
    let body: SecretSpec = typed(grants::as_put(request.spec().await?, &name)?, "")?;
    if body.value.is_empty() {
        return Err(Problem::invalid_at("/value", "a secret must not be empty"));
    }
    if body.value.len() > SECRET_BYTES_MAX {
        return Err(Problem::invalid_at(
            "/value",
            format!("a secret must have at most {SECRET_BYTES_MAX} bytes"),
        ));
    }
    let grant = grants::grant(body.groups, body.categories)?;
    let app = &request.app;
    grants::require_common_key(app).await?;
    let done = app
        .store
        .put_secret(request.by(), &app.secret_keys, &*app.chance, &name, &body.value, &grant)
        .await?;
    put(done.created, &shown(done.row))
}

async fn get(request: Request) -> Outcome {
    let name = request.name("name", "secret")?;
    found(request.app.store.secret(&name).await?, "secret", &name, shown)
}

async fn delete(request: Request) -> Outcome {
    let name = request.name("name", "secret")?;
    let removal = request.app.store.delete_secret(request.by(), &name).await?;
    grants::removed(removal, "secret", &name)
}
