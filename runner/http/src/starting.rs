//! What a node answers while it starts: it has its address before it has a database. It says at once that it lives and that
//! it is not ready, so that whoever watches it does not take it for dead while the database is away. Other requests wait a
//! moment for the start to end, because most starts take less than a second.

use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use heddle_api::Health;
use tokio::sync::watch;
use tower::ServiceExt;

use crate::problem::Problem;
use crate::request::ok;

/// How long a request waits for the start to end.
const HELD_MAX: Duration = Duration::from_secs(10);

/// Seconds after which to ask again.
const RETRY_SECONDS: u64 = 1;

/// The answers until there is a router; afterwards those of the router, on connections that were opened before.
pub(crate) fn starting(routers: watch::Receiver<Option<Router>>) -> Router {
    holding(routers, HELD_MAX)
}

fn holding(routers: watch::Receiver<Option<Router>>, held_max: Duration) -> Router {
    Router::new().fallback(move |request: Request| answer(routers.clone(), held_max, request))
}

async fn answer(mut routers: watch::Receiver<Option<Router>>, held_max: Duration, request: Request) -> Response {
    let held = match request.uri().path() {
        "/healthz" | "/readyz" => Duration::ZERO,
        _ => held_max,
    };
    let started = tokio::time::timeout(held, routers.wait_for(Option::is_some)).await;
    let router = started.ok().and_then(Result::ok).and_then(|router| router.clone());
    match router {
        Some(router) => match router.oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        },
        None if request.uri().path() == "/healthz" => ok(&Health { status: "ok".into() }).into_response(),
        None => Problem::unavailable(
            "this node is still starting, and not yet connected to the database",
            RETRY_SECONDS,
        )
        .into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::StatusCode;
    use axum::routing::get;

    use super::*;

    async fn status(router: &Router, path: &str) -> StatusCode {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        router.clone().oneshot(request).await.expect("an answer").status()
    }

    #[tokio::test]
    async fn a_node_that_starts_lives_and_is_not_ready() {
        let (routers, served) = watch::channel(None);
        let router = holding(served, Duration::from_millis(1));
        assert_eq!(status(&router, "/healthz").await, StatusCode::OK);
        assert_eq!(status(&router, "/readyz").await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            status(&router, "/v1/groups").await,
            StatusCode::SERVICE_UNAVAILABLE,
            "nothing waits without end"
        );
        drop(routers);
        assert_eq!(status(&router, "/v1/groups").await, StatusCode::SERVICE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn a_request_waits_for_the_start_to_end() {
        let (routers, served) = watch::channel(None);
        let router = holding(served, Duration::from_secs(3600));
        let waits = tokio::spawn(async move { status(&router, "/v1/groups").await });
        tokio::task::yield_now().await;
        let started = Router::new().route("/v1/groups", get(async || StatusCode::IM_A_TEAPOT));
        routers.send_replace(Some(started));
        assert_eq!(waits.await.expect("it ends"), StatusCode::IM_A_TEAPOT);
    }
}
