//! Heddle's HTTP API. Routes by noun, one error type, and a description of the API that is made of the
//! same table as the router.
//!
//! A request goes through [`router`]: in dev mode Host and Origin are checked; the table's entry says who may call it
//! and against which bound on concurrency it counts, until its answer has been sent (beyond that, the answer is 429 at
//! once, with `Retry-After`, and it is not queued); bodies are bounded in bytes and in time, and unread rests are
//! discarded; large bodies and large answers count against the memory for them; then the noun's handler reads it, calls
//! the store or the engine, and answers. Every error is a [`problem::Problem`].

#![cfg_attr(
    test,
    allow(clippy::too_many_lines, reason = "a test tells its story from begin to end")
)]

pub mod access;
mod adapter;
pub mod app;
mod body;
mod connection;
mod describe;
mod docs;
mod examples;
mod fair_bytes;
mod json;
mod kept;
mod limits;
pub mod metrics;
mod openapi;
pub mod problem;
mod progress;
pub mod request;
mod routes;
mod schemas;
mod sent;
pub mod serve;
mod starting;
mod table;
mod timer_task;
mod unread;

use std::sync::Arc;

use axum::Router;
use axum::extract::MatchedPath;
use axum::response::{IntoResponse, Response};

pub use adapter::shown_runs;
pub use app::{Answered, App, AppParts, HttpConfig, RequestTracer};
pub use limits::ServeLimits;
pub use serve::serve;

use problem::Problem;

/// The API of a node.
pub fn router(app: App) -> Router {
    routes::table().router(app, |request| async move { nothing_at(request.uri().path()) })
}

/// Answers all paths on the same listener that are not routes of the API: the pages.
pub type Elsewhere =
    std::sync::Arc<dyn Fn(axum::extract::Request) -> futures::future::BoxFuture<'static, Response> + Send + Sync>;

/// The API of a node, together with its pages. Paths that begin with `/v1/` stay the API's, whether there is such a
/// route or not.
pub fn router_with(app: App, pages: Elsewhere) -> Router {
    routes::table().router(app.clone(), move |request| {
        let (app, pages) = (app.clone(), pages.clone());
        async move {
            let path = request.uri().path();
            if path == "/v1" || path.starts_with("/v1/") {
                return nothing_at(path);
            }
            // Assets are in memory once.
            let connection = request.extensions().get::<Arc<connection::Connection>>();
            let connection = connection.filter(|_| !path.starts_with("/assets/")).cloned();
            match connection {
                Some(connection) => counted_page(&app, &pages, &connection, request).await,
                None => pages(request).await,
            }
        }
    })
}

/// The viewer of a page, as soon as [`admit`] knows who it is.
#[derive(Clone, Default)]
struct PageViewer(Arc<std::sync::OnceLock<Arc<access::Caller>>>);

/// Why a page that has been made is not sent. It is an extension of the request for the page that says so.
#[derive(Clone)]
struct NotSent(Problem);

/// A page, which counts for its viewer until it has been read: behind a proxy, all people have one address.
async fn counted_page(
    app: &App,
    pages: &Elsewhere,
    connection: &connection::Connection,
    request: axum::extract::Request,
) -> Response {
    let acts = !request.method().is_safe();
    let viewer = PageViewer::default();
    let (mut head, body) = request.into_parts();
    head.extensions.insert(viewer.clone());
    // The answer to a form is never refused.
    let again = (!acts).then(|| head.clone());
    let answer = pages(axum::extract::Request::from_parts(head, body)).await;
    // Nobody who is not known takes memory from others.
    if !connection.is_known() {
        return answer;
    }
    let counted = match viewer.0.get() {
        Some(caller) => sent::page(app, &caller.actor, acts, answer),
        None => sent::page(app, &format!("page of {}", connection.peer.address()), acts, answer),
    };
    let problem = match counted {
        Ok(answer) => return answer,
        Err(problem) => problem,
    };
    let Some(mut head) = again else {
        return problem.into_response();
    };
    // People get a page that says so, and loads itself again.
    head.extensions.insert(NotSent(problem));
    pages(axum::extract::Request::from_parts(head, axum::body::Body::empty())).await
}

fn nothing_at(path: &str) -> Response {
    let detail = format!("the path {path} does not exist");
    Problem::new(axum::http::StatusCode::NOT_FOUND, detail).into_response()
}

/// Authenticates the request of a page: [`access`] checks its headers, for pages that read and for forms that write. A
/// request to the API with the result among its extensions is not checked again. (Nothing from the network has any.)
/// Here it is checked each time, whatever is known of an earlier request from which this one was made. A form is refused if
/// its sender has no room for another answer: afterwards, that could not be refused. A page that could not be sent is refused
/// here, too, when it is asked for again.
pub async fn admit(app: &App, parts: &mut axum::http::request::Parts) -> Result<access::Vouched, Problem> {
    parts.extensions.remove::<access::Vouched>();
    if let Some(NotSent(problem)) = parts.extensions.get() {
        return Err(problem.clone());
    }
    let age = app.tokens.age();
    let acts = !parts.method.is_safe();
    let admitted = access::authenticate(app, parts, acts, app.clock.now()).await?;
    if acts {
        sent::check_room(app, &admitted.caller.actor)?;
    }
    if let Some(PageViewer(viewer)) = parts.extensions.get() {
        // Whoever has one request is one caller; the first check counts.
        let _ = viewer.set(Arc::clone(&admitted.caller));
    }
    let token_watch = (!app.config.dev).then(|| access::TokenWatch::new(&admitted, access::Peer::of(parts), age));
    Ok(access::Vouched::new(admitted, token_watch))
}

/// Reads the body of a form, for pages, within the bounds for `known` callers or for others. It counts against the memory
/// for bodies until it is dropped, unless the pages have a bound of their own for it.
pub async fn read_form(
    app: &App,
    parts: &axum::http::request::Parts,
    known: bool,
    body: axum::body::Body,
    bytes_max: usize,
    counted: bool,
) -> Result<bytes::Bytes, Problem> {
    if !known {
        return body::read_unknown(app, access::Peer::of(parts), &parts.headers, body).await;
    }
    body::check_head(&parts.headers, bytes_max)?;
    let vouched = parts.extensions.get::<access::Vouched>();
    let actor = vouched.map_or("", |vouched| vouched.caller().actor.as_str());
    // Pages have no slots: there may be as many forms as connections.
    let mut memory = counted.then(|| body::BodyMemory::of(app, actor, true));
    let (idle, whole) = (app.config.body_idle_timeout, app.config.body_timeout);
    let read = body::read(body, bytes_max, idle, whole, memory.as_mut()).await?;
    Ok(match memory {
        Some(memory) => memory.keep(read),
        None => read,
    })
}

/// The OpenAPI 3.1 description of the API.
pub fn openapi() -> serde_json::Value {
    openapi::document(&routes::table())
}

/// Rules for every path: dev mode answers only this machine, and nothing is sniffed or framed. It is a function around
/// each handler and not a layer of the router, which would cost every request some boxes.
async fn guard<F>(
    app: &App,
    request: axum::extract::Request,
    tell: table::Tell,
    next: impl FnOnce(axum::extract::Request) -> F,
) -> Response
where
    F: Future<Output = Response>,
{
    let request = unread::Discarding::wrap(request);
    if request.method() == axum::http::Method::CONNECT {
        // Here, because axum logs an error when a page answers it.
        let detail = "this server is no proxy: it does not implement CONNECT";
        return tell(Problem::new(axum::http::StatusCode::NOT_IMPLEMENTED, detail));
    }
    if app.config.dev {
        let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
        if let Err(problem) = access::check_local(request.headers(), authority.as_deref(), &app.config.dev_hosts) {
            return tell(problem);
        }
    }
    // Pages change things only through the API, whose routes follow their own changes.
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let is_change = route.is_some_and(|route| is_change(request.method(), route));
    app.counts.began();
    let under_way = UnderWay(app);
    let traced = app.tracer.as_ref().and_then(|tracer| Traced::of(tracer, &request));
    let mut response = next(request).await;
    under_way.answered(response.status().as_u16());
    if let Some(traced) = traced {
        traced.answered(response.status().as_u16(), app.clock.now());
    }
    if is_change && response.status().is_success() {
        adapter::node::follow(&app.engine).await;
    }
    let headers = response.headers_mut();
    let fixed = axum::http::HeaderValue::from_static;
    headers.insert(axum::http::header::X_CONTENT_TYPE_OPTIONS, fixed("nosniff"));
    headers.insert(axum::http::header::X_FRAME_OPTIONS, fixed("DENY"));
    response
}

/// A request of which a tracer gets a span.
struct Traced {
    tracer: app::RequestTracer,
    method: axum::http::Method,
    route: String,
    traceparent: Option<String>,
    since: tokio::time::Instant,
}

impl Traced {
    /// All except those that machines repeat every few seconds, and those without a route.
    fn of(tracer: &app::RequestTracer, request: &axum::extract::Request) -> Option<Self> {
        let route = request.extensions().get::<MatchedPath>()?.as_str();
        if matches!(route, "/healthz" | "/readyz" | "/metrics" | "/checkstatus") {
            return None;
        }
        let parent = request
            .headers()
            .get("traceparent")
            .and_then(|value| value.to_str().ok());
        Some(Self {
            tracer: tracer.clone(),
            method: request.method().clone(),
            route: route.to_owned(),
            traceparent: parent.map(str::to_owned),
            since: tokio::time::Instant::now(),
        })
    }

    fn answered(self, status: u16, at: heddle_domain::Time) {
        (self.tracer)(app::Answered {
            method: self.method.to_string(),
            route: self.route,
            status,
            at,
            took: self.since.elapsed(),
            traceparent: self.traceparent,
        });
    }
}

/// A request that is counted, also when its client goes away before the answer.
struct UnderWay<'a>(&'a App);

impl UnderWay<'_> {
    fn answered(self, status: u16) {
        self.0.counts.answered(status);
        std::mem::forget(self);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // 499, as others count it.
        self.0.counts.answered(499);
    }
}

/// Whether a request may change what nodes cache: everything that writes, but for the data plane. The route is that of
/// the table, not the path of the request: names in a path may be any words.
fn is_change(method: &axum::http::Method, route: &str) -> bool {
    // Some of the compatibility calls change things by GET.
    (!method.is_safe() || route.starts_with("/task-scheduler/"))
        && !route.contains("/runs")
        && !route.starts_with("/v1/dispatch/")
        && !route.starts_with("/v1/claims")
        && !route.ends_with("/messages")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_told_by_its_route() {
        let mut changes = 0;
        for route in routes::table().routes() {
            let method = route.method.as_str().parse().unwrap();
            let is_change = is_change(&method, route.path);
            let data_plane = ["/v1/runs", "/v1/groups/{name}/runs", "/v1/dispatch/", "/v1/claims"]
                .iter()
                .any(|prefix| route.path.starts_with(prefix))
                || route.path == "/v1/topics/{topic}/messages";
            assert_eq!(is_change, route.acts && !data_plane, "{method} {}", route.path);
            changes += usize::from(is_change);
        }
        assert!(changes > 30, "{changes}");
    }
}
