//! Whether a node lives and takes work; metrics; the description of the API.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use heddle_api::{Health, Stats};

use crate::access::Access;
use crate::adapter;
use crate::app::App;
use crate::describe::of;
use crate::kept::Kept;
use crate::metrics::Page;
use crate::problem::Problem;
use crate::request::{Outcome, Request, ok};
use crate::table::{Method, Pace, Route};
use crate::{docs, openapi};

/// How long a scrape waits for what only the database knows.
const STATS_WAIT: Duration = Duration::from_secs(2);

/// The same if the database answers nothing else of this node either.
const SILENCE_MAX: Duration = Duration::from_millis(500);

/// Seconds after which to ask again whether a node is ready.
const READY_RETRY_SECONDS: u64 = 1;

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::Get,
            "/healthz",
            Access::Open,
            "Check that the process is alive",
            healthz,
        )
        .answers(200, of::<Health>())
        .pace(Pace::Free),
        Route::new(
            Method::Get,
            "/readyz",
            Access::Open,
            "Check that the node is ready for work",
            readyz,
        )
        .answers(200, of::<Health>())
        .problem(503, "The node is not ready; the answer says why.")
        .pace(Pace::Free),
        Route::new(Method::Get, "/metrics", Access::View, "Get Prometheus metrics", metrics)
            .answers_as(200, "text/plain", "Text")
            .detail(
                "While the database does not answer, the metrics of the cluster are missing, and a token counts that \
                    this node has accepted within the last hour.",
            )
            .in_outage()
            .pace(Pace::Free),
        Route::new(
            Method::Get,
            "/v1/openapi.json",
            Access::Open,
            "Get this description as OpenAPI 3.1",
            openapi_json,
        )
        .answers(200, "Any"),
        Route::new(
            Method::Get,
            "/docs",
            Access::Open,
            "Read this description as a page",
            docs_page,
        )
        .answers_as(200, "text/html", "Text"),
    ]
}

async fn healthz(_request: Request) -> Outcome {
    ok(&Health { status: "ok".into() })
}

async fn readyz(request: Request) -> Outcome {
    match adapter::node::ready(&request.app.engine).await {
        Ok(()) => ok(&Health { status: "ready".into() }),
        Err(missing) => Err(Problem::unavailable(missing, READY_RETRY_SECONDS)),
    }
}

async fn metrics(request: Request) -> Outcome {
    let page = Page::default();
    (request.app.metrics)(&page);
    request.app.counts.tell(&page);
    // If the database is away, its numbers are left out: then the other metrics are needed most.
    if let Some(stats) = stats_in_time(&request.app).await {
        cluster(&page, &stats);
    }
    Ok((
        StatusCode::OK,
        [(header::CONTENT_TYPE, crate::metrics::CONTENT_TYPE)],
        page.text(),
    )
        .into_response())
}

/// What only the database knows, if it answers soon.
async fn stats_in_time(app: &App) -> Option<Stats> {
    let too_late = async {
        tokio::time::sleep(SILENCE_MAX).await;
        let is_silent = !app.engine.is_healthy() || app.store.stalled_for() >= SILENCE_MAX / 2;
        if !is_silent {
            tokio::time::sleep(STATS_WAIT - SILENCE_MAX).await;
        }
    };
    tokio::select! {
        stats = adapter::node::stats(&app.engine) => stats.ok(),
        () = too_late => None,
    }
}

/// What the whole cluster has, as any of its nodes tells it.
fn cluster(page: &Page, stats: &Stats) {
    let count = |counted: i64| u64::try_from(counted).unwrap_or(0);
    let runs = |state: &str| count(stats.runs.get(state).copied().unwrap_or(0));
    page.gauges(
        "heddle_runs",
        "Runs in the cluster that have not ended, by state.",
        "state",
        ["waiting", "running", "paused"].map(|state| (state, runs(state))),
    );
    for (name, counted, help) in [
        (
            "heddle_task_runs_ready",
            stats.ready,
            "Task runs in the cluster that are ready for a node.",
        ),
        (
            "heddle_task_runs_running",
            stats.running,
            "Running attempts in the cluster.",
        ),
        (
            "heddle_task_runs_retrying",
            stats.retrying,
            "Task runs in the cluster that wait for a retry.",
        ),
    ] {
        page.gauge(name, help, count(counted) as f64);
    }
    let waiting = &stats.notifications.waiting;
    page.gauges(
        "heddle_notifications_waiting",
        "Notifications in the cluster that wait to be sent, by kind of channel.",
        "kind",
        waiting.iter().map(|(kind, waits)| (kind, count(*waits))),
    );
    page.gauge(
        "heddle_notices_waiting",
        "Events in the cluster that have not been processed for notifications yet.",
        count(stats.notifications.notices) as f64,
    );
}

async fn openapi_json(request: Request) -> Outcome {
    let made = || Kept::new("application/json", openapi::document(&super::table()).to_string());
    Ok(request.app.openapi.get_or_init(made).answer(&request.headers))
}

async fn docs_page(request: Request) -> Outcome {
    let made = || Kept::new("text/html; charset=utf-8", docs::page(&super::table()));
    let mut response = request.app.docs.get_or_init(made).answer(&request.headers);
    let policy = HeaderValue::from_str(&docs::policy()).map_err(|error| Problem::internal(&error))?;
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
    Ok(response)
}
