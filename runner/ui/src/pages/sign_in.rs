//! Signing in with a token, and out.

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use maud::html;
use serde_json::json;

use super::Answer;
use crate::elements::glyph;
use crate::frame::{Page, languages};
use crate::words::t;
use crate::{Ctx, Trouble};

/// Where one wanted to go: an address of ours.
fn wanted(ctx: &Ctx, form: &[(String, String)]) -> String {
    let given = form.iter().find(|(key, _)| key == "to").map(|(_, to)| to.clone());
    let to = given.unwrap_or_else(|| match ctx.path.as_str() {
        "/sign-in" | "/sign-out" => "/".to_owned(),
        _ => ctx
            .head()
            .uri
            .path_and_query()
            .map_or("/".to_owned(), ToString::to_string),
    });
    if to.starts_with('/') && !to.starts_with("//") && !to.contains('\\') {
        to
    } else {
        "/".to_owned()
    }
}

/// Shown in place of every page to whoever has not signed in, so that one gets where one wanted to go.
pub(crate) async fn page(ctx: &Ctx) -> Result<Answer, Trouble> {
    let form = ctx.form();
    let token = form
        .iter()
        .find(|(key, _)| key == "token")
        .map(|(_, token)| token.trim().to_owned());
    let to = wanted(ctx, &form);
    let mut wrong = None;
    if let (true, Some(token)) = (ctx.posts() && ctx.path == "/sign-in", token) {
        let body = json!({ "token": token }).to_string();
        let answer = ctx
            .call(Method::POST, "/v1/session", "application/json", body.into())
            .await?;
        if answer.status() == StatusCode::CREATED {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::SEE_OTHER;
            for cookie in answer.headers().get_all(header::SET_COOKIE) {
                response.headers_mut().append(header::SET_COOKIE, cookie.clone());
            }
            if let Ok(value) = HeaderValue::from_str(&to) {
                response.headers_mut().insert(header::LOCATION, value);
            }
            return Ok(Answer::Raw(Box::new(response)));
        }
        wrong = Some(match answer.status().as_u16() {
            401 | 422 | 400 => t!(ctx, "sign-in-wrong"),
            403 => t!(ctx, "sign-in-elsewhere"),
            429 => t!(ctx, "busy-text"),
            _ => t!(ctx, "away-text"),
        });
    }
    let title = t!(ctx, "sign-in");
    let body = html! {
        main #main.sign-in tabindex="-1" {
            h1.brand { (glyph("heddle")) "Heddle" }
            form.panel method="post" action="/sign-in" {
                input type="hidden" name="to" value=(to);
                p.muted { (t!(ctx, "sign-in-text")) }
                @if let Some(wrong) = &wrong { p.error #wrong role="alert" { (wrong) } }
                label.field {
                    span { (t!(ctx, "token")) }
                    input type="password" name="token" required autocomplete="current-password" spellcheck="false" autofocus
                        placeholder="hdl_…" aria-describedby=[wrong.as_ref().map(|_| "wrong")];
                }
                button.primary type="submit" { (title) }
                details { summary { (t!(ctx, "sign-in-how")) } pre.code { "heddle token create --name me --role operator" } }
            }
            (languages(ctx))
        }
    };
    let status = if wrong.is_some() { 401 } else { 200 };
    Answer::page(Page {
        status,
        bare: true,
        ..Page::new("", title, body)
    })
}

/// Ends the session everywhere that it is known.
pub(super) async fn out(ctx: &Ctx) -> Result<Answer, Trouble> {
    if !ctx.posts() {
        return Ok(Answer::Go {
            to: "/".into(),
            said: None,
        });
    }
    let answer = ctx
        .call(Method::DELETE, "/v1/session", "application/json", bytes::Bytes::new())
        .await?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    for cookie in answer.headers().get_all(header::SET_COOKIE) {
        response.headers_mut().append(header::SET_COOKIE, cookie.clone());
    }
    response
        .headers_mut()
        .insert(header::LOCATION, HeaderValue::from_static("/sign-in"));
    Ok(Answer::Raw(Box::new(response)))
}
