//! Signing in with a token or with an account at a provider, and out.

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use heddle_api::{Role, Session};
use maud::{Markup, html};
use serde_json::json;

use super::answer::Answer;
use super::exists;
use crate::elements::glyph;
use crate::frame::{Page, languages};
use crate::home::form_home;
use crate::words::t;
use crate::{Ctx, SignInFailed, Trouble, Turned, typed};

/// The page that the person wanted: an address of ours.
fn wanted(ctx: &Ctx, form: &[(String, String)]) -> String {
    let given = form.iter().find(|(key, _)| key == "to").map(|(_, to)| to.clone());
    // In other forms, a field of this name is a time.
    let given = given.filter(|_| ctx.path == "/sign-in");
    let to = given.unwrap_or_else(|| match ctx.path.as_str() {
        path if path == "/sign-out" || path.starts_with("/sign-in") => "/".to_owned(),
        // Many addresses of forms and buttons have no page.
        _ if ctx.posts() => form_home(ctx),
        _ => ctx
            .head()
            .uri
            .path_and_query()
            .map_or("/".to_owned(), ToString::to_string),
    });
    ours(to)
}

/// The address of a page of ours, whatever was given: another site could send here somebody who signs in, and so let
/// the browser ask for any address of this node with the new session. Browsers read `\` as `/`, and remove tabs and ends
/// of lines first: for them `/<tab>/evil.example` is another site.
fn ours(to: String) -> String {
    let plain = |c: char| c != '\\' && !c.is_control();
    if to.starts_with('/') && !to.starts_with("//") && to.chars().all(plain) && is_page(&to) {
        to
    } else {
        "/".to_owned()
    }
}

/// Whether a browser that is sent to this address asks for a page: it resolves `..` first, also if it is written `%2e%2e`.
fn is_page(to: &str) -> bool {
    let base = url::Url::parse("http://ours.invalid");
    let asked = base.and_then(|base| base.join(to));
    asked.is_ok_and(|asked| exists(asked.path()))
}

/// Shown instead of every page to a person who has not signed in, or as a `worker`, who has no pages; leads to the wanted
/// page afterwards.
pub(crate) async fn page(ctx: &Ctx, worker: bool) -> Result<Answer, Trouble> {
    match ctx.path.as_str() {
        "/sign-in/provider" => return begin(ctx).await,
        "/sign-in/callback" => return finish(ctx).await,
        _ => {}
    }
    let form = ctx.form();
    let token = form
        .iter()
        .find(|(key, _)| key == "token")
        .map(|(_, token)| token.trim().to_owned());
    let to = wanted(ctx, &form);
    let no_pages = || (403, t!(ctx, "sign-in-worker"));
    let mut wrong = worker.then(no_pages);
    if let (true, Some(token)) = (ctx.posts() && ctx.path == "/sign-in", token) {
        let body = json!({ "token": token }).to_string();
        let answer = ctx
            .call(Method::POST, "/v1/session", "application/json", body.into())
            .await?;
        if answer.status() == StatusCode::CREATED {
            let cookies: Vec<HeaderValue> = answer.headers().get_all(header::SET_COOKIE).iter().cloned().collect();
            let begun: Session = ctx.read("/v1/session", answer).await?;
            if begun.role == Role::Worker {
                end(ctx, &cookies).await?;
                return shown(ctx, &to, Some(no_pages()));
            }
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::SEE_OTHER;
            for cookie in cookies {
                response.headers_mut().append(header::SET_COOKIE, cookie);
            }
            if let Ok(value) = HeaderValue::from_str(&to) {
                response.headers_mut().insert(header::LOCATION, value);
            }
            return Ok(Answer::Raw(Box::new(response)));
        }
        let said = match answer.status().as_u16() {
            401 | 422 | 400 => t!(ctx, "sign-in-wrong"),
            403 => t!(ctx, "sign-in-elsewhere"),
            429 => t!(ctx, "busy-again"),
            _ => t!(ctx, "away-again"),
        };
        wrong = Some((401, said));
    }
    shown(ctx, &to, wrong)
}

/// A form that was sent after its session had ended. It is shown, and sent again when somebody who has signed in meanwhile
/// presses the button. Only a form of one of our own pages: otherwise, another site could write here, or prepare what
/// somebody sends.
fn kept(ctx: &Ctx) -> Option<Markup> {
    let is_signing = ctx.path.starts_with("/sign-");
    if is_signing || !ctx.posts_texts() || !ctx.is_from_our_page() {
        return None;
    }
    let action = ctx.head().uri.path_and_query()?.as_str();
    Some(html! {
        section.panel {
            p role="alert" { (t!(ctx, "session-kept")) }
            form method="post" action=(action) {
                @for (name, value) in ctx.form() { input type="hidden" name=(name) value=(value); }
                button type="submit" { (t!(ctx, "send-again")) }
            }
        }
        (typed::shown(ctx))
    })
}

/// Ends the session that has just begun: nobody has got its cookie.
async fn end(ctx: &Ctx, cookies: &[HeaderValue]) -> Result<(), Trouble> {
    for cookie in cookies {
        let pair = cookie.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        let mut request = ctx.request(Method::DELETE, "/v1/session", "application/json", bytes::Bytes::new())?;
        if let Ok(pair) = HeaderValue::from_bytes(pair) {
            request.headers_mut().insert(header::COOKIE, pair);
        }
        ctx.ui.host.call(request).await;
    }
    Ok(())
}

/// The form; `wrong`: why one is still here, with the answer's status.
fn shown(ctx: &Ctx, to: &str, wrong: Option<(u16, String)>) -> Result<Answer, Trouble> {
    let title = t!(ctx, "sign-in");
    let (status, wrong) = wrong.map_or((200, None), |(status, wrong)| (status, Some(wrong)));
    let provider = ctx.ui.host.provider().map(|name| {
        let query = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("to", to)
            .finish();
        (
            format!("/sign-in/provider?{query}"),
            t!(ctx, "sign-in-with", name = name),
        )
    });
    // Beside a form that is to be sent again, one signs in in another tab.
    let kept = kept(ctx).filter(|_| wrong.is_none());
    let target = kept.as_ref().map(|_| "_blank");
    let body = html! {
        main #main.sign-in tabindex="-1" {
            h1.brand { (glyph("heddle")) "Heddle" }
            @if let Some(kept) = &kept { (kept) }
            @if let Some((address, words)) = &provider {
                section.panel {
                    @if let Some(wrong) = &wrong { p.error role="alert" { (wrong) } }
                    a.button.primary href=(address) target=[target] { (words) }
                    p.muted { (t!(ctx, "sign-in-or")) }
                }
            }
            form.panel method="post" action="/sign-in" target=[target] {
                input type="hidden" name="to" value=(to);
                p.muted { (t!(ctx, "sign-in-text")) }
                @if let Some(wrong) = wrong.as_ref().filter(|_| provider.is_none()) { p.error #wrong role="alert" { (wrong) } }
                label.field {
                    span { (t!(ctx, "token")) }
                    input type="password" name="token" required autocomplete="current-password" spellcheck="false" autofocus[provider.is_none()]
                        placeholder="hdl_…" aria-describedby=[wrong.as_ref().filter(|_| provider.is_none()).map(|_| "wrong")];
                }
                button.primary[provider.is_none()] type="submit" { (title) }
                details { summary { (t!(ctx, "sign-in-how")) } pre.code { "heddle token create --name me --role operator" } }
            }
            (languages(ctx))
        }
    };
    Answer::page(Page {
        status,
        bare: true,
        ..Page::new("", title, body)
    })
}

/// On to a page of the provider, or back from it.
fn redirect(found: crate::Redirect) -> Result<Answer, Trouble> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    for cookie in found.cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    let to = HeaderValue::from_str(&found.to).unwrap_or(HeaderValue::from_static("/"));
    headers.insert(header::LOCATION, to);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(Answer::Raw(Box::new(response)))
}

/// A link, not a form: a form may lead to our own pages only.
async fn begin(ctx: &Ctx) -> Result<Answer, Trouble> {
    let to = ours(ctx.q("to").unwrap_or("/").to_owned());
    if ctx.method != Method::GET || ctx.ui.host.provider().is_none() {
        return shown(ctx, &to, None);
    }
    match ctx.ui.host.begin(ctx.head(), &to).await {
        Ok(found) => redirect(found),
        Err(failed) => shown(ctx, &to, Some(said(ctx, failed))),
    }
}

async fn finish(ctx: &Ctx) -> Result<Answer, Trouble> {
    if ctx.method != Method::GET || ctx.ui.host.provider().is_none() {
        return shown(ctx, "/", None);
    }
    match ctx.ui.host.finish(ctx.head()).await {
        Ok(found) => redirect(crate::Redirect {
            to: ours(found.to),
            ..found
        }),
        // A person who goes back in the browser's history has signed in already.
        Err(SignInFailed::NotBegun) if !ctx.viewer.actor.is_empty() => Ok(Answer::Go {
            to: "/".into(),
            said: None,
        }),
        Err(failed) => shown(ctx, "/", Some(said(ctx, failed))),
    }
}

/// Why somebody could not sign in, and the status of the answer.
fn said(ctx: &Ctx, failed: SignInFailed) -> (u16, String) {
    let name = ctx.ui.host.provider().unwrap_or_default();
    match failed {
        SignInFailed::Away => (503, t!(ctx, "provider-away", name = name)),
        SignInFailed::NotBegun => (400, t!(ctx, "provider-not-begun")),
        SignInFailed::Denied(code) => (403, t!(ctx, "provider-denied", name = name, code = code)),
        SignInFailed::NoRole(person) => (403, t!(ctx, "provider-no-role", name = name, person = person)),
        SignInFailed::Wrong("code") => (401, t!(ctx, "provider-code")),
        SignInFailed::Wrong(what) => {
            let why = match what {
                "key" => t!(ctx, "provider-key"),
                "signature" => t!(ctx, "provider-signature"),
                "issuer" => t!(ctx, "provider-issuer"),
                "audience" => t!(ctx, "provider-audience"),
                "expired" => t!(ctx, "provider-expired"),
                "nonce" => t!(ctx, "provider-nonce"),
                "person" => t!(ctx, "provider-person"),
                "control" => t!(ctx, "provider-control"),
                _ => t!(ctx, "provider-form"),
            };
            (401, t!(ctx, "provider-wrong", name = name, why = why))
        }
        SignInFailed::Turned(Turned { status, detail }) => match status {
            429 => (429, t!(ctx, "busy-again")),
            503 => (503, t!(ctx, "away-again")),
            500.. => (status, t!(ctx, "broken-text")),
            _ => (status, detail),
        },
    }
}

/// Ends the session, on all nodes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_sent_to_another_site() {
        for to in ["/", "/runs?state=failed&q=a%09b", "/groups/%E6%97%A5"] {
            assert_eq!(ours(to.into()), to);
        }
        for to in [
            "",
            "runs",
            "https://evil.example",
            "//evil.example",
            "/\\evil.example",
            "/\t/evil.example/",
            "/\n/evil.example/",
            "/\r\n/evil.example/",
            "/\u{0}/evil.example/",
            "/\u{7f}/evil.example/",
        ] {
            assert_eq!(ours(to.into()), "/", "{to:?}");
        }
    }

    #[test]
    fn nobody_is_sent_to_what_is_no_page() {
        for to in [
            "/task-scheduler/task/timerTaskDel?taskId=5",
            "/groups/../task-scheduler/task/timerTaskDel?taskId=5",
            "/groups/%2E%2e/task-scheduler/task/timerTaskDel?taskId=5",
            "/./task-scheduler/task/timerTaskDel?taskId=5",
            "/.//task-scheduler/task/timerTaskDel?taskId=5",
            "/v1/tokens",
            "/metrics",
        ] {
            assert_eq!(ours(to.into()), "/", "{to:?}");
        }
        for to in ["/?day=1", "/groups/a#spec", "/runs/../groups/%2F"] {
            assert_eq!(ours(to.into()), to);
        }
    }
}
