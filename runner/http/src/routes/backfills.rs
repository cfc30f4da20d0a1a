//! Backfills: runs for instants of the past.

use axum::http::{HeaderValue, StatusCode, header};
use heddle_api::{Backfill, BackfillPlan, BackfillRequest, BackfillStarted, List};
use heddle_domain::Name;
use heddle_store::backfill::BackfillAction;
use uuid::Uuid;

use crate::access::Access;
use crate::adapter;
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, answer, ok, typed};
use crate::table::{Method, Route};

pub(crate) fn routes() -> Vec<Route> {
    let control = |path, summary, action: BackfillAction| {
        Route::new(Method::Post, path, Access::Operate, summary, move |request| {
            change(request, action)
        })
        .answers(200, of::<Backfill>())
        .problem(409, "The state of the backfill does not allow it.")
    };
    vec![
        Route::new(
            Method::Post,
            "/v1/groups/{name}/backfills",
            Access::Operate,
            "Start a backfill",
            start,
        )
        .detail(
            "Creates one run for each instant of the group's `cron`, `every` and `daily` schedules (or for \
                each `step`) from `from` to `to`, both included. Without `to`, it ends at the current time and \
                includes instants that become due in the meantime. `on_existing: skip` (default) creates only missing \
                runs. `dry_run: true` answers 200 with the instants that would get a run, and stores nothing.",
        )
        .takes(of::<BackfillRequest>())
        .answers(202, of::<Backfill>())
        .answers(200, of::<BackfillPlan>())
        .problem(
            409,
            "The group does not have `history: true`, or it is disabled (use `force: true` to start the \
                backfill anyway).",
        )
        .problem(
            422,
            "`to` is in the future, `from` is after `to`, the group has no schedule with instants and \
                `step` is missing, or there are more than 1,000,000 instants.",
        ),
        Route::new(
            Method::Get,
            "/v1/backfills",
            Access::View,
            "List backfills, newest first",
            list,
        )
        .query(
            "group",
            "Only backfills of these groups. For several, repeat the parameter or use commas.",
        )
        .list()
        .answers(200, of::<List<Backfill>>()),
        Route::new(
            Method::Get,
            "/v1/backfills/{id}",
            Access::View,
            "Get a backfill with its number of runs by state",
            get,
        )
        .answers(200, of::<Backfill>()),
        control(
            "/v1/backfills/{id}/cancel",
            "Cancel a backfill: create no more runs and cancel its active runs",
            BackfillAction::Cancel,
        ),
        control(
            "/v1/backfills/{id}/pause",
            "Pause a backfill: create no more runs until it is resumed",
            BackfillAction::Pause,
        ),
        control(
            "/v1/backfills/{id}/resume",
            "Resume a paused backfill",
            BackfillAction::Resume,
        ),
    ]
}

async fn start(mut request: Request) -> Outcome {
    let group = request.name("name", "group")?;
    let asked = request.json().await?;
    let wanted: BackfillRequest = typed(asked.clone(), "")?;
    let actor = request.caller.actor.clone();
    match adapter::backfills::start(&request.app.engine, group, wanted, asked, actor).await? {
        BackfillStarted::Planned(plan) => ok(&plan),
        BackfillStarted::Made(backfill) => {
            let mut response = answer(StatusCode::ACCEPTED, &*backfill)?;
            if let Ok(location) = HeaderValue::from_str(&format!("/v1/backfills/{}", backfill.id)) {
                response.headers_mut().insert(header::LOCATION, location);
            }
            Ok(response)
        }
    }
}

async fn list(request: Request) -> Outcome {
    let groups = request.query_all("group").into_iter().map(Name::sought).collect();
    let (cursor, limit) = (request.cursor_as::<Uuid>()?, request.limit()?);
    ok(&adapter::backfills::list(&request.app.engine, groups, cursor, limit).await?)
}

async fn get(request: Request) -> Outcome {
    let id = request.id("id", "backfill")?;
    ok(&adapter::backfills::get(&request.app.engine, id).await?)
}

async fn change(request: Request, action: BackfillAction) -> Outcome {
    let id = request.id("id", "backfill")?;
    let actor = request.caller.actor.clone();
    let done = adapter::backfills::change(&request.app.engine, id, action, actor)
        .await
        .map_err(Problem::from)?;
    ok(&done)
}
