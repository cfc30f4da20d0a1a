//! Signing in and out, for the UI.

use axum::http::{StatusCode, header};
use axum::response::Response;
use heddle_api::{List, Session, SessionsEnded, SignIn, SignedIn};
use heddle_store::session::SignedInRow;

use crate::access::session::{self, SESSION_FOR};
use crate::access::{self, Access, Caller};
use crate::describe::of;
use crate::problem::Problem;
use crate::request::{Outcome, Request, answer, no_content, ok};
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
        Route::new(Method::Get, "/v1/session", Access::Any, "Who one is", get).answers(200, of::<Session>()),
        Route::new(
            Method::Post,
            "/v1/session",
            Access::Open,
            "Sign in with a token: a cookie for browsers",
            sign_in,
        )
        .detail(
            "The cookie is HttpOnly and SameSite=Lax, and ends after 12 hours or with its token. What a cookie vouches \
             for may write only when the request comes from a page of the same origin. `heddle dev` needs none.",
        )
        .takes(of::<SignIn>())
        .answers(201, of::<Session>())
        .problem(401, "the token is not in force"),
        Route::new(Method::Delete, "/v1/session", Access::Open, "Sign out", sign_out).answers_empty(204),
        Route::new(
            Method::Get,
            "/v1/sessions",
            Access::Admin,
            "List who is signed in",
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
            "By the name that the list and the audit have, such as `person:ann@example.com`. They end on all nodes, and \
             all open pages with them. A token stays in force, and somebody who still has an account at the provider may \
             sign in again: revoke the token, or remove the account, first.",
        )
        .answers(200, of::<SessionsEnded>())
        .problem(404, "nobody of that name is signed in"),
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
    ok(&List {
        items: page.items.into_iter().map(listed).collect(),
        next_cursor: page.next,
    })
}

async fn end(request: Request) -> Outcome {
    let actor = request.part("actor");
    if actor.contains('\0') {
        return Err(Problem::not_found("session", "with U+0000"));
    }
    let ended = request.app.store.end_all_sessions(request.by(), actor).await?;
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
    let body: SignIn = request.body(false).await?;
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
