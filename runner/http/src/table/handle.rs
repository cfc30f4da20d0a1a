//! How a request passes through its route: the caller is known and allowed, has a slot, and its parameters are checked; then
//! the handler answers, and the request counts until all of its answer has been sent.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::RawPathParams;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use futures::FutureExt;
use heddle_domain::Faults;
use heddle_domain::fault::pointer_token;
use heddle_engine::FairSlot;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Pace, Route};
use crate::access::{Access, TokenWatch, authenticate, authenticate_in_outage, refused};
use crate::app::{App, UPLOADS_WAITING_MAX};
use crate::problem::Problem;
use crate::request::{Outcome, Request, parse_query};
use crate::sent::{self, Hold};

/// Seconds after which a caller who was turned away should come back.
const SHED_RETRY_SECONDS: u64 = 1;

pub(super) async fn serve(
    app: App,
    route: Arc<Route>,
    path: Option<RawPathParams>,
    request: axum::extract::Request,
) -> Response {
    let tell = route.tell;
    let answered = if route.pace == Pace::Waits {
        answer(app, route, path, request).await
    } else {
        // In a separate async task: if the client goes away, no transaction must be cut off.
        match tokio::spawn(answer(app, route, path, request)).await {
            Ok(answered) => answered,
            Err(error) => {
                tracing::error!(%error, "a handler panicked");
                Err(Problem::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "internal error: this request could not be handled; the log of this node has the cause",
                ))
            }
        }
    };
    match answered {
        Ok(response) => response,
        Err(problem) => tell(problem),
    }
}

/// How often a request that only reads is handled, if the connection to the database is cut each time. Once would do if all
/// connections were cut at the same instant; a server that goes down ends them within some milliseconds.
pub(crate) const READS_MAX: u32 = 3;

/// Handles a request; again if it only reads, and the connection to the database was cut meanwhile. So the caller of a read
/// does not notice that Postgres was restarted.
async fn answer(app: App, route: Arc<Route>, path: Option<RawPathParams>, request: axum::extract::Request) -> Outcome {
    let since = Instant::now();
    let path = path.map(Arc::new);
    let (parts, mut body) = request.into_parts();
    if !route.acts {
        for _ in 1..READS_MAX {
            let (app, route, path, parts) = (app.clone(), route.clone(), path.clone(), parts.clone());
            match handle(app, route, path, parts, body, since).await {
                Err(problem) if problem.cut => body = Body::empty(),
                outcome => return outcome,
            }
        }
    }
    handle(app, route, path, parts, body, since).await
}

/// How many uploads of one caller may wait for a slot, and for how long: they wait for each other, and do not block
/// others.
const UPLOADS_OF_ONE_MAX: usize = UPLOADS_WAITING_MAX / 2;
const UPLOAD_WAIT: std::time::Duration = std::time::Duration::from_secs(30);

pub(crate) fn too_many_uploads() -> Problem {
    Problem::overloaded(
        "too many uploads on this node at the same time; try again later",
        SHED_RETRY_SECONDS,
    )
}

/// A slot for an upload, when there is one.
pub(crate) async fn upload_slot(app: &App, actor: &str) -> Result<FairSlot, Problem> {
    let _waiting = app
        .uploads_waiting
        .clone()
        .try_acquire_owned()
        .map_err(|_| too_many_uploads())?;
    match tokio::time::timeout(UPLOAD_WAIT, app.uploads.take(actor, UPLOADS_OF_ONE_MAX)).await {
        Ok(Some(slot)) => Ok(slot),
        Ok(None) | Err(_) => Err(too_many_uploads()),
    }
}

/// A slot of the bound against which a route counts. The caller has to be known before, so that no caller takes all
/// slots.
async fn slot(app: &App, pace: Pace, actor: &str) -> Result<Option<FairSlot>, Problem> {
    let slots = match pace {
        Pace::Quick => &app.requests,
        Pace::Waits => &app.waits,
        Pace::Uploads => return upload_slot(app, actor).await.map(Some),
        Pace::Free => return Ok(None),
    };
    slots.try_take(actor).map(Some).ok_or_else(|| {
        Problem::overloaded(
            "too many requests on this node at the same time, in total or from this caller; try again later",
            SHED_RETRY_SECONDS,
        )
    })
}

async fn handle(
    app: App,
    route: Arc<Route>,
    path: Option<Arc<RawPathParams>>,
    parts: Parts,
    mut body: Body,
    since: Instant,
) -> Outcome {
    let now = app.clock.now();
    let peer = crate::access::Peer::of(&parts);
    let (caller, token_watch) = match route.access {
        Access::Open => {
            if route.pace != Pace::Free {
                body = crate::body::read_unknown(&app, peer, &parts.headers, body)
                    .await?
                    .into();
            }
            (Arc::new(crate::access::Caller::anyone()), None)
        }
        access => {
            let age = app.tokens.age();
            let admitted = match route.in_outage {
                true => authenticate_in_outage(&app, &parts, route.acts, now).await?,
                false => authenticate(&app, &parts, route.acts, now).await?,
            };
            let role = admitted.caller.role;
            if !access.allows(role) {
                return Err(Problem::forbidden(format!(
                    "a token with the role `{}` may not do this. {}",
                    role.as_str(),
                    access.described()
                )));
            }
            let token_watch = (!app.config.dev).then(|| TokenWatch::new(&admitted, peer, age));
            (admitted.caller, token_watch)
        }
    };
    let mut slot = slot(&app, route.pace, &caller.actor).await?;
    // Without params there is nothing to extract; with params, none means that they are not UTF-8.
    if path.is_none() && route.path.contains('{') {
        return Err(Problem::malformed("the path is not UTF-8"));
    }
    if path.iter().any(|path| path.iter().any(|(_, part)| part.contains('\0'))) {
        return Err(Problem::malformed("the path must not contain the character U+0000"));
    }
    let query = parse_query(parts.uri.query())?;
    check_query(&route, &query)?;
    if route.acts && !route.answers_little {
        sent::check_room(&app, &caller.actor)?;
    }
    // A waiting or following request ends with the token of its caller; so does an answer that takes long to be sent.
    let ends_with = token_watch.clone();
    let lasting = ends_with.as_ref().filter(|_| route.pace == Pace::Waits);
    let (shared, owner) = (app.clone(), caller.clone());
    let mut request = Request {
        app,
        caller,
        token_watch,
        peer,
        now,
        since,
        headers: parts.headers,
        path,
        query,
        body_optional: route.body_optional || route.takes.is_empty(),
        body: Mutex::new(body),
        body_memory: None,
        is_of_many: route.pace.is_of_many(),
        upload_slot: slot.take_if(|_| route.pace == Pace::Uploads),
    };
    if route.takes_nothing() {
        request.nothing().await?;
    }
    let handled = (route.handler)(request);
    let response = match lasting {
        None => handled.await?,
        Some(token_watch) => tokio::select! {
            biased;
            outcome = handled => outcome?,
            () = token_watch.ended(&shared) => return Err(refused()),
        },
    };
    sending(shared, &route, &owner.actor, ends_with, slot, response)
}

/// The answer, with which the request counts until all of it has been sent: a stream for as long as it is read. An answer
/// to somebody who is not known does not count any more.
fn sending(
    app: App,
    route: &Route,
    actor: &str,
    token_watch: Option<TokenWatch>,
    slot: Option<FairSlot>,
    mut response: Response,
) -> Outcome {
    // These answers are small, or texts that are in memory once. Nobody who is not known takes memory from others; nor a
    // slot, which would be one of all that are not known, for as long as the answer goes unread.
    if route.access == Access::Open {
        return Ok(response);
    }
    let memory = sent::count(&app, actor, route.acts, route.pace.is_of_many(), &mut response)?;
    let is_stream = http_body::Body::size_hint(response.body()).exact().is_none();
    if is_stream && !route.acts {
        sent::check_room(&app, actor)?;
    }
    let stream = is_stream.then(|| app.answers.of(actor));
    let end = token_watch
        .filter(|_| is_stream || memory.is_some())
        .map(|token_watch| async move { token_watch.ended(&app).await }.boxed());
    Ok(sent::held(response, Hold::new(slot, memory).of_stream(stream), end))
}

/// Refuses parameters that the route does not have, as unknown fields of a body are refused: `dryrun` for `dry_run`, or
/// `stat` for `state`, is an error, instead of silently doing something else. Routes that others define (health checks,
/// the calls of other schedulers) are not checked.
fn check_query(route: &Route, query: &[(String, String)]) -> Result<(), Problem> {
    /// How many characters of a given name an error repeats.
    const SHOWN_CHARS_MAX: usize = 100;
    if !route.path.starts_with("/v1/") {
        return Ok(());
    }
    let mut faults = Faults::default();
    for (name, _) in query {
        if route.query.iter().any(|known| known.name == name) {
            continue;
        }
        let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
        let there = match route.query.as_slice() {
            [] => "this path has no query parameters".to_owned(),
            known => {
                let names: Vec<_> = known.iter().map(|known| format!("`{}`", known.name)).collect();
                format!("the query parameters are {}", names.join(", "))
            }
        };
        faults.add(
            format!("/{}", pointer_token(&shown)),
            format!("unknown query parameter `{shown}`; {there}"),
        );
    }
    faults.or(()).map_err(Problem::invalid)
}
