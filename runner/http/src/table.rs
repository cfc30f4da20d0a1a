//! The table of routes. One entry says all that there is to say of a route (path, who may, what goes in, what comes
//! out, who handles it), and the router, the access rules and the OpenAPI description are all made of it; so none of
//! them can tell another story.

mod handle;

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::RangeInclusive;
use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::access::Access;
use crate::app::App;
use crate::describe::Shape;
use crate::guard;
use crate::problem::Problem;
use crate::request::{LIMIT_DEFAULT, LIMIT_MAX, Outcome, Request};

pub(crate) use handle::{READS_MAX, too_many_uploads, upload_slot};

use handle::serve;

/// The methods that routes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    Get,
    /// Creates, or does something.
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    /// In capitals, as in a request line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Put => MethodFilter::PUT,
            Self::Patch => MethodFilter::PATCH,
            Self::Delete => MethodFilter::DELETE,
        }
    }
}

/// How long a request may take, and hence which bound it counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    Quick,
    /// The request may wait or follow.
    Waits,
    Uploads,
    /// The request is never refused because of load: health.
    Free,
}

impl Pace {
    /// Whether thousands of such requests may be under way at the same time: then small amounts of memory count, too.
    pub(crate) fn is_of_many(self) -> bool {
        match self {
            Self::Waits => true,
            Self::Quick | Self::Uploads | Self::Free => false,
        }
    }
}

/// How a route writes a problem: some callers expect another shape than a problem body.
pub(crate) type Tell = fn(Problem) -> Response;

type Handler = Arc<dyn Fn(Request) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// A body that goes in or comes out.
#[derive(Clone, Copy, Debug)]
pub struct Media {
    pub media_type: &'static str,
    pub shape: Shape,
}

#[derive(Clone, Debug)]
pub struct QueryParam {
    pub name: &'static str,
    /// The JSON Schema of its values.
    pub schema: Value,
    /// One sentence of the API's description: meaning, bounds, default.
    pub detail: &'static str,
}

#[derive(Clone)]
pub struct Route {
    pub method: Method,
    /// Its path, with `{parts}`.
    pub path: &'static str,
    pub access: Access,
    /// The noun that it belongs to.
    pub tag: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// What the summary leaves out, for the description of the API; may be empty.
    pub detail: &'static str,
    /// The allowed query parameters; below `/v1`, any other is refused.
    pub query: Vec<QueryParam>,
    /// The bodies that it accepts, by media type.
    pub takes: Vec<Media>,
    /// Whether its body may be left out, which means `{}`.
    pub body_optional: bool,
    /// Its successful answers: the status, and the body (`None`: there is none).
    pub answers: Vec<(u16, Option<Media>, &'static str)>,
    /// Its possible problems, in addition to those of all routes.
    pub problems: Vec<(u16, &'static str)>,
    /// How long it may take.
    pub pace: Pace,
    /// Whether it changes something: all methods except GET, and a GET that says so. Then a cookie is checked more
    /// strictly, and with GET it is refused.
    pub acts: bool,
    /// Whether it is only for older callers; others have a newer path for it.
    pub deprecated: bool,
    /// Whether its answer is small, so that it is handled also for a caller who has no room for answers.
    pub(super) answers_little: bool,
    /// Whether it answers while the database does not: then a token counts that was valid not long ago.
    in_outage: bool,
    /// Writes problems that arise before the handler, such as a missing token.
    tell: Tell,
    handler: Handler,
}

impl Route {
    /// A route of a noun.
    pub fn new<F, R>(method: Method, path: &'static str, access: Access, summary: &'static str, handler: F) -> Self
    where
        F: Fn(Request) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        Self {
            method,
            path,
            access,
            tag: "",
            summary,
            detail: "",
            query: Vec::new(),
            takes: Vec::new(),
            body_optional: false,
            answers: Vec::new(),
            problems: Vec::new(),
            pace: Pace::Quick,
            acts: method != Method::Get,
            deprecated: false,
            answers_little: method == Method::Delete,
            in_outage: false,
            tell: Problem::into_response,
            handler: Arc::new(move |request| Box::pin(handler(request))),
        }
    }

    /// Sets what the summary leaves out.
    pub fn detail(mut self, detail: &'static str) -> Self {
        self.detail = detail;
        self
    }

    fn param(mut self, name: &'static str, schema: Value, detail: &'static str) -> Self {
        self.query.push(QueryParam { name, schema, detail });
        self
    }

    /// A query parameter that is a text, or a list of words.
    pub fn query(self, name: &'static str, detail: &'static str) -> Self {
        self.param(name, json!({"type": "string"}), detail)
    }

    /// A query parameter that is a text in one of JSON Schema's formats.
    pub fn formatted(self, name: &'static str, format: &'static str, detail: &'static str) -> Self {
        self.param(name, json!({"type": "string", "format": format}), detail)
    }

    /// A query parameter that is an instant.
    pub fn time(self, name: &'static str, detail: &'static str) -> Self {
        self.formatted(name, "date-time", detail)
    }

    /// A query parameter that is `true` or `false`.
    pub fn flag(self, name: &'static str, detail: &'static str) -> Self {
        self.param(name, json!({"type": "boolean"}), detail)
    }

    /// A query parameter that is a whole number.
    pub fn number(
        self,
        name: &'static str,
        bounds: RangeInclusive<i64>,
        default: Option<i64>,
        detail: &'static str,
    ) -> Self {
        let mut schema = json!({"type": "integer", "minimum": bounds.start(), "maximum": bounds.end()});
        if let Some(default) = default {
            schema["default"] = default.into();
        }
        self.param(name, schema, detail)
    }

    /// Where a page of a list begins.
    pub fn cursor(self) -> Self {
        self.query(
            "cursor",
            "The `next_cursor` of the previous page. Default: the first page.",
        )
    }

    /// The query parameters of a list.
    pub fn list(self) -> Self {
        self.number(
            "limit",
            1..=LIMIT_MAX,
            Some(LIMIT_DEFAULT),
            "The maximum number of items in the answer, 1 to 500. Default: 50.",
        )
        .cursor()
    }

    pub fn takes(self, shape: impl Into<Shape>) -> Self {
        self.takes_as("application/json", shape)
    }

    /// A spec: JSON or YAML.
    pub fn takes_spec(self, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        self.takes_as("application/json", shape)
            .takes_as("application/yaml", shape)
    }

    /// Its body may be left out.
    pub fn optional(mut self) -> Self {
        self.body_optional = true;
        self
    }

    /// A body of another media type.
    pub fn takes_as(mut self, media_type: &'static str, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        self.takes.push(Media { media_type, shape });
        self
    }

    pub fn answers(self, status: u16, shape: impl Into<Shape>) -> Self {
        self.answers_as(status, "application/json", shape)
    }

    /// An answer of another media type.
    pub fn answers_as(mut self, status: u16, media_type: &'static str, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        self.answers.push((status, Some(Media { media_type, shape }), ""));
        self
    }

    /// An answer without a body.
    pub fn answers_empty(mut self, status: u16) -> Self {
        self.answers.push((status, None, ""));
        self
    }

    /// 201 if it created, 200 if it changed or found nothing to change.
    pub fn answers_put(self, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        self.answers(201, shape).answers(200, shape)
    }

    /// A problem that it may answer.
    pub fn problem(mut self, status: u16, when: &'static str) -> Self {
        self.problems.push((status, when));
        self
    }

    /// Whether it could have a body and takes none.
    fn takes_nothing(&self) -> bool {
        self.takes.is_empty() && !matches!(self.method, Method::Get | Method::Delete)
    }

    /// It changes things, by GET. A session cookie is not enough for it.
    pub fn acts(mut self) -> Self {
        self.acts = true;
        self
    }

    /// It is only for older callers.
    pub fn deprecated(mut self) -> Self {
        self.deprecated = true;
        self
    }

    /// Its answer is small. It is handled also for a caller who does not read other answers: many workers may have one token,
    /// and the work of all must not be lost because of one.
    pub(crate) fn answers_little(mut self) -> Self {
        self.answers_little = true;
        self
    }

    /// It answers while the database does not. Then a token or session counts that was valid not long ago.
    pub(crate) fn in_outage(mut self) -> Self {
        self.in_outage = true;
        self
    }

    /// It writes all its problems in its own format.
    pub(crate) fn tells(mut self, tell: Tell) -> Self {
        self.tell = tell;
        self
    }

    /// How long it may take.
    pub fn pace(mut self, pace: Pace) -> Self {
        self.pace = pace;
        self
    }
}

pub struct Table {
    routes: Vec<Route>,
}

impl Table {
    /// Creates the table from the routes of all nouns.
    pub fn new(nouns: Vec<(&'static str, Vec<Route>)>) -> Self {
        let routes = nouns
            .into_iter()
            .flat_map(|(tag, routes)| routes.into_iter().map(move |route| Route { tag, ..route }))
            .collect();
        Self { routes }
    }

    /// In the order in which the nouns were given.
    pub fn routes(&self) -> &[Route] {
        &self.routes
    }

    /// The router; `elsewhere` answers for paths that no route has.
    pub fn router<E, R>(&self, app: App, elsewhere: E) -> Router
    where
        E: Fn(axum::extract::Request) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Response> + Send,
    {
        let mut paths: BTreeMap<&'static str, Vec<&Route>> = BTreeMap::new();
        for route in &self.routes {
            paths.entry(route.path).or_default().push(route);
        }
        let mut router = Router::new();
        for (path, routes) in paths {
            let mut methods = MethodRouter::new();
            let mut allowed: Vec<&str> = routes.iter().map(|route| route.method.as_str()).collect();
            if routes.iter().any(|route| route.method == Method::Get && !route.acts) {
                allowed.push("HEAD");
            }
            allowed.sort_unstable();
            let allowed: Arc<str> = allowed.join(", ").into();
            let tell = routes
                .first()
                .map_or(Problem::into_response as Tell, |route| route.tell);
            for route in routes {
                // Shared, not copied for each request.
                let route = Arc::new(route.clone());
                let allowed = allowed.clone();
                methods = methods.on(
                    route.method.filter(),
                    move |State(app): State<App>,
                          path: Result<RawPathParams, RawPathParamsRejection>,
                          request: axum::extract::Request| {
                        let (route, asked, allowed) = (route.clone(), app.clone(), allowed.clone());
                        async move {
                            let tell = route.tell;
                            // The router gives a GET route all HEAD requests, too; HEAD must change nothing (RFC 9110, 9.2.1).
                            if route.acts && request.method() == axum::http::Method::HEAD {
                                let refuse = async move |_| tell(not_allowed(&allowed));
                                return guard(&asked, request, tell, refuse).await;
                            }
                            guard(&asked, request, tell, |request| serve(app, route, path.ok(), request)).await
                        }
                    },
                );
            }
            methods = methods.fallback(move |State(app): State<App>, request: axum::extract::Request| {
                let allowed = allowed.clone();
                let refuse = async move |_| tell(not_allowed(&allowed));
                async move { guard(&app, request, tell, refuse).await }
            });
            router = router.route(path, methods);
        }
        let anywhere = move |State(app): State<App>, request: axum::extract::Request| async move {
            guard(&app, request, Problem::into_response, elsewhere).await
        };
        router.fallback(anywhere).with_state(app)
    }
}

fn not_allowed(allowed: &str) -> Problem {
    let mut problem = Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("this path allows only {allowed}"),
    );
    if let Ok(value) = HeaderValue::from_str(allowed) {
        problem.header = Some(Box::new((header::ALLOW, value)));
    }
    problem
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_route_is_described() {
        let table = crate::routes::table();
        let mut seen = std::collections::BTreeSet::new();
        for route in table.routes() {
            assert!(
                seen.insert((route.path, route.method)),
                "{} {} twice",
                route.method.as_str(),
                route.path
            );
            assert!(!route.summary.is_empty() && !route.tag.is_empty());
            assert!(
                !route.answers.is_empty(),
                "{} {} answers nothing",
                route.method.as_str(),
                route.path
            );
        }
    }
}
