//! Named SQL connections for scripts.

use heddle_api::{Connection, ConnectionSpec, List};
use heddle_engine::scripts::check_connection_url;
use heddle_store::connection::{CONNECTION_POOL_MAX, ConnectionOptions, ConnectionPut, ConnectionRow};
use heddle_store::secret::SECRET_BYTES_MAX;

use super::grants;
use crate::access::Access;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, found, list_of, put, typed};
use crate::table::{Method, Route};

fn shown(row: ConnectionRow) -> Connection {
    Connection {
        name: row.name,
        groups: row.options.grant.groups,
        categories: row.options.grant.categories,
        max_connections: row.options.max_connections,
        read_only: row.options.read_only,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    }
}

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::Get,
            "/v1/connections",
            Access::Admin,
            "List connections, without their URLs",
            list,
        )
        .list()
        .answers(200, of::<List<Connection>>()),
        Route::new(
            Method::Put,
            "/v1/connections/{name}",
            Access::Admin,
            "Create or change a connection",
            save,
        )
        .detail("The URL is stored encrypted and never shown again. A change without `url` keeps the stored URL.")
        .takes_spec(of::<ConnectionSpec>())
        .answers_put(of::<Connection>()),
        Route::new(
            Method::Get,
            "/v1/connections/{name}",
            Access::Admin,
            "Get a connection, without its URL",
            get,
        )
        .answers(200, of::<Connection>()),
        Route::new(
            Method::Delete,
            "/v1/connections/{name}",
            Access::Admin,
            "Delete a connection",
            delete,
        )
        .answers_empty(204)
        .problem(409, "Groups or topics use the connection; `detail` names them."),
    ]
}

async fn list(request: Request) -> Outcome {
    let page = request
        .app
        .store
        .connections(request.cursor(), request.limit()?)
        .await?;
    list_of(page, shown)
}

async fn save(mut request: Request) -> Outcome {
    let name = request.new_name("name")?;
    let body: ConnectionSpec = typed(grants::as_put(request.spec().await?, &name)?, "")?;
    if let Some(url) = &body.url {
        if !(url.starts_with("postgres://") || url.starts_with("postgresql://")) {
            return Err(Problem::invalid_at(
                "/url",
                "the URL must begin with postgres:// or postgresql://",
            ));
        }
        if url.len() > SECRET_BYTES_MAX {
            return Err(Problem::invalid_at(
                "/url",
                format!("a URL must have at most {SECRET_BYTES_MAX} bytes"),
            ));
        }
        check_connection_url(url).map_err(|why| Problem::invalid_at("/url", why))?;
    }
    if !(1..=CONNECTION_POOL_MAX).contains(&body.max_connections) {
        return Err(Problem::invalid_at(
            "/max_connections",
            format!("must be from 1 to {CONNECTION_POOL_MAX}"),
        ));
    }
    let options = ConnectionOptions {
        grant: grants::grant(body.groups, body.categories)?,
        max_connections: body.max_connections,
        read_only: body.read_only,
    };
    let app = &request.app;
    grants::require_common_key(app).await?;
    let done = app
        .store
        .put_connection(
            request.by(),
            &app.secret_keys,
            &*app.chance,
            &name,
            body.url.as_deref(),
            &options,
        )
        .await?;
    match done {
        ConnectionPut::UrlMissing => Err(Problem::invalid_at("/url", "a new connection needs `url`")),
        ConnectionPut::Done(done) => put(done.created, &shown(done.row)),
    }
}

async fn get(request: Request) -> Outcome {
    let name = request.name("name", "connection")?;
    found(request.app.store.connection(&name).await?, "connection", &name, shown)
}

async fn delete(request: Request) -> Outcome {
    let name = request.name("name", "connection")?;
    let removal = request.app.store.delete_connection(request.by(), &name).await?;
    grants::removed(removal, "connection", &name)
}
