//! Routes of pools, whose slots bound how many attempts run at once.

use heddle_api::{List, Pool, PoolSpec};
use heddle_store::pool::{POOL_SLOTS_MAX, PoolRow};

use super::grants;
use crate::access::Access;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, found, list_of, put, typed};
use crate::table::{Method, Route};

fn shown(row: PoolRow) -> Pool {
    Pool {
        name: row.name,
        slots: row.slots,
        created_at: row.created_at.into(),
        updated_at: row.updated_at.into(),
    }
}

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::Get, "/v1/pools", Access::View, "List pools", list)
            .list()
            .answers(200, of::<List<Pool>>()),
        Route::new(
            Method::Put,
            "/v1/pools/{name}",
            Access::Admin,
            "Create or change a pool",
            save,
        )
        .detail(
            "If you make a pool smaller, slots that are in use stay in use. New slots are given only when fewer \
            than `slots` are in use.",
        )
        .takes_spec(of::<PoolSpec>())
        .answers_put(of::<Pool>()),
        Route::new(Method::Get, "/v1/pools/{name}", Access::View, "Get a pool", get).answers(200, of::<Pool>()),
        Route::new(
            Method::Delete,
            "/v1/pools/{name}",
            Access::Admin,
            "Delete a pool",
            delete,
        )
        .answers_empty(204)
        .problem(409, "Groups use the pool; `detail` names them."),
    ]
}

async fn list(request: Request) -> Outcome {
    let page = request.app.store.pools(request.cursor(), request.limit()?).await?;
    list_of(page, shown)
}

async fn save(mut request: Request) -> Outcome {
    let name = request.new_name("name")?;
    let body: PoolSpec = typed(grants::as_put(request.spec().await?, &name)?, "")?;
    let slots = i32::try_from(body.slots)
        .ok()
        .filter(|slots| (0..=POOL_SLOTS_MAX).contains(slots))
        .ok_or_else(|| Problem::invalid_at("/slots", format!("must be from 0 to {POOL_SLOTS_MAX}")))?;
    let done = request.app.store.put_pool(request.by(), &name, slots).await?;
    put(done.created, &shown(done.row))
}

async fn get(request: Request) -> Outcome {
    let name = request.name("name", "pool")?;
    found(request.app.store.pool_by_name(&name).await?, "pool", &name, shown)
}

async fn delete(request: Request) -> Outcome {
    let name = request.name("name", "pool")?;
    let removal = request.app.store.delete_pool(request.by(), &name).await?;
    grants::removed(removal, "pool", &name)
}
