//! Signing in and out, for the UI.

use axum::http::{StatusCode, header};
use axum::response::Response;
use heddle_api::{List, Session, SessionsEnded, SignIn, SignedIn};
use heddle_store::session::SignedInRow;

use crate::access::session::{self, SESSION_FOR};
use crate::access::{self, Access, Caller};
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, answer, list_of, no_content, ok};
use crate::table::{Method, Route};

fn shown(caller: &Caller) -> Session {
    Session {
        actor: caller.actor.clone(),
        role: caller.role,
        queues: caller.queues.clone(),
        uids: caller.uids.clone(),
        expires_at: caller.expires_at.map(Into::into),
    }
}

pub(crate) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::Get, "/v1/session", Access::Any, "Get who you are", get).answers(200, of::<Session>()),
        Route::new(
            Method::Post,
            "/v1/session",
            Access::Open,
            "Sign in with a token: get a session cookie for a browser",
            sign_in,
        )
        .detail(
            "The cookie is HttpOnly and SameSite=Lax. It expires after 12 hours, or when its token expires or is \
            revoked. With a cookie, only requests from pages of the same origin can change something. `heddle dev` \
            needs no cookie.",
        )
        .takes(of::<SignIn>())
        .answers(201, of::<Session>())
        .problem(401, "The token is unknown, revoked or expired."),
        Route::new(Method::Delete, "/v1/session", Access::Open, "Sign out", sign_out).answers_empty(204),
        Route::new(
            Method::Get,
            "/v1/sessions",
            Access::Admin,
            "List the people who are signed in",
            list,
        )
        .list()
        .answers(200, of::<List<SignedIn>>()),
        Route::new(
            Method::Delete,
            "/v1/sessions/{actor}",
            Access::Admin,
            "End all sessions of a person or of a token",
            end,
        )
        .detail(
            "The name is the one in the list of sessions and in the audit, for example `person:ann@example.com`. The \
            sessions end on all nodes; open pages must sign in again. A token stays valid, and a person with an \
            account at the provider can sign in again. To prevent this, first revoke the token or remove the account. \
            If several people have this name, the sessions of all of them end, unless `issuer` and `subject` say whose.",
        )
        .query("issuer", "Only sessions of people of this provider, as the list shows it.")
        .query("subject", "Only sessions of the person with this id at the provider, as the list shows it.")
        .answers(200, of::<SessionsEnded>())
        .problem(404, "Nobody with this name is signed in."),
    ]
}

async fn get(request: Request) -> Outcome {
    ok(&shown(&request.caller))
}

fn listed(row: SignedInRow) -> SignedIn {
    SignedIn {
        actor: row.actor,
        role: row.role,
        issuer: row.issuer,
        subject: row.subject,
        sessions: row.sessions,
        signed_in_at: row.signed_in_at.into(),
        expires_at: row.expires_at.into(),
    }
}

async fn list(request: Request) -> Outcome {
    let (cursor, limit) = (request.cursor(), request.limit()?);
    let page = request.app.store.signed_in(cursor, request.now, limit).await?;
    list_of(page, listed)
}

async fn end(request: Request) -> Outcome {
    let actor = request.part("actor");
    let (issuer, subject) = (request.query("issuer"), request.query("subject"));
    let store = &request.app.store;
    let ended = store.end_all_sessions(request.by(), actor, issuer, subject).await?;
    if ended == 0 {
        return Err(Problem::not_found("session", actor));
    }
    request.app.forget_tokens();
    ok(&SessionsEnded { ended })
}

/// Whether a request comes from a browser, as far as headers tell.
fn from_a_page(request: &Request) -> bool {
    request.headers.contains_key(header::ORIGIN) || request.headers.contains_key("sec-fetch-site")
}

async fn sign_in(mut request: Request) -> Outcome {
    let body: SignIn = request.body().await?;
    if request.app.config.dev {
        return answer(StatusCode::CREATED, &shown(&Caller::dev()));
    }
    // Otherwise another site could sign somebody in as somebody else, and read later what was done.
    if from_a_page(&request) {
        session::check_origin(&request.headers, None)?;
    }
    let app = &request.app;
    let token = body.token.trim();
    let row = access::token(app, request.peer, token, request.now).await?;
    let mut caller = Caller::of(&row).ok_or_else(access::refused)?;
    let ends = request.now + SESSION_FOR;
    let expires_at = row.expires_at.map_or(ends, |at| at.min(ends));
    caller.expires_at = Some(expires_at);
    let (text, hash) = session::new(&*app.chance);
    let by = heddle_store::change::By {
        actor: &row.name,
        at: request.now,
    };
    app.store.begin_session(by, &hash, &row, expires_at).await?;
    let response = answer(StatusCode::CREATED, &shown(&caller))?;
    with_cookie(&request, response, Some((&text, request.now, expires_at)))
}

async fn sign_out(request: Request) -> Outcome {
    if let Some(hash) = session::hash_of(&request.headers)
        && !request.app.config.dev
    {
        session::check_origin(&request.headers, None)?;
        if request.app.store.end_session(request.now, &hash).await? {
            request.app.forget_tokens();
        }
    }
    let response = no_content()?;
    with_cookie(&request, response, None)
}

fn with_cookie(
    request: &Request,
    mut response: Response,
    session: Option<(&str, heddle_domain::Time, heddle_domain::Time)>,
) -> Outcome {
    let cookie = session::set_cookie(session::is_https(&request.headers), session)
        .ok_or_else(|| Problem::malformed("the cookie cannot be written"))?;
    response.headers_mut().insert(header::SET_COOKIE, cookie);
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, axum::http::HeaderValue::from_static("no-store"));
    Ok(response)
}
