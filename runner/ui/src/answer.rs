//! From a request to an answer: who comes in, which page, what the browser has already, and the headers that hold for all.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use flate2::Compression;
use heddle_domain::hex;
use heddle_engine::{FairSlot, FairSlots};
use maud::html;
use sha2::{Digest, Sha256};

use crate::ctx::{Ctx, UPLOAD, printable};
use crate::frame::{self, Page};
use crate::home::{form_address, form_home};
use crate::pages::answer::{Answer, set_cookie};
use crate::words::t;
use crate::{Role, Trouble, Turned, Ui, Viewer, assets, live, pages, typed};

/// The maximum bytes of a form, as browsers encode it. The longest text that people edit is a spec of 4 MiB; a browser sends
/// three bytes for each byte of it that is no letter or digit of ASCII.
const FORM_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The same for who may only look: such forms have settings and filters.
const SMALL_FORM_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The maximum bytes of an upload.
const UPLOAD_BYTES_MAX: usize = 80 * 1024 * 1024;

/// How many uploads a node has in memory at the same time. The API's own bound counts only the files that it compiles, after
/// the whole form has been read.
pub(crate) const UPLOADS_MAX: usize = 8;

/// How many of these places one caller may hold: whoever sends many files slowly leaves room for others.
pub(crate) const UPLOADS_OF_ONE_MAX: usize = UPLOADS_MAX / 2;

/// How many uploads of one caller may hold such a place or wait for one; further ones are refused at once.
const UPLOADS_OF_ONE_PRESENT_MAX: usize = 32;

/// How long an upload waits for one of these places before it is refused.
const UPLOAD_WAIT_MAX: Duration = Duration::from_secs(30);

/// The methods of pages, as the header `Allow` lists them (RFC 9110, 10.2.1).
const ALLOWED: &str = "GET, HEAD, POST";

/// The maximum bytes of the sentence that the next page shows, as it is encoded in its cookie. Browsers drop a cookie above
/// 4,096 bytes, and some proxies do not pass on an answer whose headers have more than that together.
const SAID_BYTES_MAX: usize = 3_400;

/// Shorter answers are not worth compressing.
const GZIP_FROM_BYTES: usize = 1_024;

/// Nothing inline, nothing from elsewhere, framed by nobody.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

pub(crate) async fn answer(ui: Ui, request: Request) -> Response {
    let (mut head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let headers = head.headers.clone();
    if let Some(answer) = without_page(&head, &path) {
        return answer;
    }
    let viewer = match ui.host.admit(&mut head).await {
        Ok(viewer) => Some(viewer),
        Err(turned) if turned.status == 401 => None,
        Err(turned) => {
            let ctx = Ctx::new(ui, nobody(), head, Bytes::new());
            let page = frame::trouble(&ctx, &Trouble::new(turned.status, turned.detail), false);
            return html_page(&ctx, page, &headers);
        }
    };
    let upload = path == UPLOAD;
    // Who may not upload is told so, and needs no large body for that.
    let may_upload = viewer.as_ref().is_some_and(Viewer::authors);
    let uploads = upload && head.method == Method::POST && may_upload;
    let limit = match &viewer {
        _ if uploads => UPLOAD_BYTES_MAX,
        Some(viewer) if viewer.tries() => FORM_BYTES_MAX,
        _ => SMALL_FORM_BYTES_MAX,
    };
    let place = match viewer.as_ref().filter(|_| uploads) {
        Some(viewer) => upload_place(&ui.uploads, &viewer.actor, UPLOAD_WAIT_MAX)
            .await
            .map(Some),
        None => Ok(None),
    };
    // The place is held until the answer is made: until then, the body is in memory.
    let (read, _place) = match place {
        Ok(place) => {
            // Places bound what uploads take, and nothing else does: all of them have room.
            let counted = place.is_none();
            (ui.host.read(&head, viewer.is_some(), body, limit, counted).await, place)
        }
        Err(turned) => (Err(turned), None),
    };
    let worker = viewer.as_ref().is_some_and(|viewer| viewer.role == Role::Worker);
    let viewer = viewer.filter(|_| !worker);
    let body = match read.and_then(|body| as_form(&head, upload, body)) {
        Ok(body) => body,
        Err(Turned { status, detail }) => {
            let known = viewer.is_some();
            let ctx = Ctx::new(ui, viewer.unwrap_or_else(nobody), head, Bytes::new());
            let page = frame::trouble(&ctx, &Trouble::new(status, detail), known);
            return html_page(&ctx, page, &headers);
        }
    };
    match viewer {
        Some(viewer) => to_viewer(Ctx::new(ui, viewer, head, body), &path, &headers).await,
        None => to_stranger(&Ctx::new(ui, nobody(), head, body), &path, &headers, worker).await,
    }
}

/// A place among the uploads that this node has in memory, for which an upload of `actor` waits at `most` so long. Another
/// upload gets it when it is dropped.
async fn upload_place(places: &Arc<FairSlots>, actor: &str, most: Duration) -> Result<FairSlot, Turned> {
    let place = places.take(actor, UPLOADS_OF_ONE_PRESENT_MAX);
    match tokio::time::timeout(most, place).await {
        Ok(Some(place)) => Ok(place),
        Ok(None) | Err(_) => Err(Turned {
            status: 429,
            detail: "too many uploads at the same time on this node, in total or from this caller; try again later"
                .to_owned(),
        }),
    }
}

/// The body of a form as browsers send it, whose fields are read. A body of another media type has none: it would be a form in
/// which nothing is filled in. A button without fields may send nothing.
fn as_form(head: &Parts, upload: bool, body: Bytes) -> Result<Bytes, Turned> {
    let wanted = if upload {
        "multipart/form-data"
    } else {
        "application/x-www-form-urlencoded"
    };
    let is_form = match head.headers.get(header::CONTENT_TYPE) {
        None => body.is_empty(),
        Some(value) => {
            let media = value.to_str().unwrap_or_default().split(';').next();
            media.unwrap_or_default().trim().eq_ignore_ascii_case(wanted)
        }
    };
    if is_form || head.method != Method::POST {
        return Ok(body);
    }
    Err(Turned {
        status: 415,
        detail: String::new(),
    })
}

/// The answer to what asks for no page, whoever asks.
fn without_page(head: &Parts, path: &str) -> Option<Response> {
    if let Some(file) = path.strip_prefix("/assets/") {
        let asset = assets::serve(file, &head.headers);
        return Some(asset.unwrap_or_else(|| plain(StatusCode::NOT_FOUND, "this asset does not exist")));
    }
    if !matches!(head.method, Method::GET | Method::HEAD | Method::POST) {
        let detail = format!("pages allow only {ALLOWED}");
        let mut refused = problem(StatusCode::METHOD_NOT_ALLOWED, &detail);
        let allowed = HeaderValue::from_static(ALLOWED);
        refused.headers_mut().insert(header::ALLOW, allowed);
        return Some(refused);
    }
    // Programs that ask for a missing path get an error, not a page.
    let accepts = head.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let wants_page = accepts.is_some_and(|text| text.contains("text/html"));
    let missing = || problem(StatusCode::NOT_FOUND, &format!("the path {path} does not exist"));
    (!pages::exists(path) && !wants_page).then(missing)
}

/// The answer to somebody who has not come in, or is a `worker`, whose token has no pages.
async fn to_stranger(ctx: &Ctx, path: &str, headers: &HeaderMap, worker: bool) -> Response {
    if path == "/live" {
        return live::signed_out();
    }
    // Where one of our scripts puts a piece, there is no room for a sign-in.
    if ctx.is_piece() {
        return plain(StatusCode::UNAUTHORIZED, "sign in again");
    }
    // Which language is chosen before one signs in.
    let answer = if ctx.posts() && path == "/preferences" {
        pages::page(ctx).await
    } else {
        pages::sign_in::page(ctx, worker).await
    };
    match answer {
        Ok(answer) => finish(ctx, answer, headers),
        Err(trouble) => html_page(ctx, frame::trouble(ctx, &trouble, false), headers),
    }
}

async fn to_viewer(ctx: Ctx, path: &str, headers: &HeaderMap) -> Response {
    if ctx.has_nul() {
        let page = frame::trouble(&ctx, &Trouble::new(400, t!(&ctx, "no-nul")), true);
        return html_page(&ctx, page, headers);
    }
    if path == "/live" {
        return live::stream(ctx).await;
    }
    if let Some(to) = ctx.with_instants() {
        return see(&to, None);
    }
    match pages::page(&ctx).await {
        Ok(answer) => finish(&ctx, answer, headers),
        Err(trouble) if ctx.posts() && !ctx.is_piece() => refused(&ctx, &trouble, headers).await,
        Err(trouble) => html_page(&ctx, instead(&ctx, &trouble).await, headers),
    }
}

/// The page that is shown in place of one that cannot be shown.
async fn instead(ctx: &Ctx, trouble: &Trouble) -> Page {
    let mut page = frame::trouble(ctx, trouble, true);
    if trouble.status == 404 {
        page.body = html! { (page.body) (pages::gone::shown(ctx).await) };
    }
    page
}

/// The viewer before anybody has signed in, who may see no page.
fn nobody() -> Viewer {
    Viewer {
        actor: String::new(),
        role: Role::Worker,
        dev: false,
    }
}

/// The answer to a form that failed, if its page gives none. What somebody typed is not lost: if the form was sent to its own
/// page, the page shows it again. If what the form is about does not exist any more, the page that says so shows the texts,
/// wherever the form was. All other forms are buttons; the page with the button shows the error.
async fn refused(ctx: &Ctx, trouble: &Trouble, headers: &HeaderMap) -> Response {
    let sentence = match trouble.said(ctx.lang) {
        nothing if nothing.is_empty() => frame::means(ctx, trouble.status).1,
        sentence => sentence,
    };
    let said = format!("!{sentence}");
    let home = form_address(ctx);
    // Another site must not write on our pages.
    let says_where = ctx.header("sec-fetch-site").is_some() || ctx.header("origin").is_some();
    let elsewhere = says_where && !ctx.is_from_our_page();
    let own = !elsewhere && has_form(home.split('?').next().unwrap_or_default(), &ctx.path);
    let keeps = trouble.status == 404 && !elsewhere && typed::is_any(ctx);
    let is_of_form = matches!(trouble.status, 400..500);
    if is_of_form && !own && !keeps {
        return see(&form_home(ctx), Some(&said));
    }
    // What is said at a field belongs to the form whatever the status: of several files, some may have been uploaded.
    if own
        && (is_of_form || !trouble.errors.is_empty())
        && let Some(again) = ctx.again(&home, trouble, said)
        && let Ok(Answer::Page(mut page)) = pages::page(&again).await
    {
        page.status = trouble.status;
        return html_page(&again, *page, headers);
    }
    let mut page = instead(ctx, trouble).await;
    if own || keeps {
        page.body = html! { (page.body) (typed::shown(ctx)) };
        // It would load the page without what was typed.
        page.refresh = None;
    }
    html_page(ctx, page, headers)
}

/// Whether the page at an address has the form that is sent to a path. Each form is on the page that gets it, but that for
/// files is on the list of scripts, and on the page of each script.
fn has_form(home: &str, path: &str) -> bool {
    let is_script = || {
        let name = home.strip_prefix("/scripts/");
        name.is_some_and(|name| !name.is_empty() && !name.contains('/'))
    };
    home == path || (path == UPLOAD && (home == "/scripts" || is_script()))
}

fn finish(ctx: &Ctx, answer: Answer, headers: &HeaderMap) -> Response {
    match answer {
        Answer::Page(page) => html_page(ctx, *page, headers),
        Answer::Piece(piece) => text_html(StatusCode::OK, printable(piece.into_string()).into(), headers),
        Answer::Go { to, said } => see(&to, said.as_deref()),
        Answer::Raw(response) => *response,
    }
}

/// 303 to another page, with a sentence that the next page shows once.
fn see(to: &str, said: Option<&str>) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    if let Ok(value) = HeaderValue::from_str(to) {
        response.headers_mut().insert(header::LOCATION, value);
    }
    if let Some(said) = said {
        let said = for_cookie(said);
        set_cookie(
            &mut response,
            &format!("heddle_said={said}; Path=/; Max-Age=60; HttpOnly; SameSite=Lax"),
        );
    }
    response
}

/// A sentence as the value of a cookie: as much of it as a browser keeps, and no part of a character.
fn for_cookie(said: &str) -> String {
    let mut value = String::new();
    let mut bytes = [0; 4];
    for letter in said.chars() {
        let letter: &str = letter.encode_utf8(&mut bytes);
        let encoded = percent_encoding::utf8_percent_encode(letter, percent_encoding::NON_ALPHANUMERIC).to_string();
        if value.len() + encoded.len() > SAID_BYTES_MAX {
            break;
        }
        value.push_str(&encoded);
    }
    value
}

fn html_page(ctx: &Ctx, page: Page, headers: &HeaderMap) -> Response {
    let status = StatusCode::from_u16(page.status).unwrap_or(StatusCode::OK);
    let once = page.once;
    let text = printable(frame::write(ctx, page).into_string());
    let mut response = text_html(status, text.into(), headers);
    if once {
        let answers = response.headers_mut();
        answers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answers.remove(header::ETAG);
    }
    if ctx.said.is_some() {
        set_cookie(&mut response, "heddle_said=; Path=/; Max-Age=0; HttpOnly; SameSite=Lax");
    }
    response
}

fn text_html(status: StatusCode, text: Bytes, headers: &HeaderMap) -> Response {
    let tag = format!("W/\"{}\"", hex(&Sha256::digest(&text)[..12]));
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let unchanged = status == StatusCode::OK && known.is_some_and(|known| known.split(", ").any(|one| one == tag));
    let gzip = text.len() >= GZIP_FROM_BYTES && assets::takes_gzip(headers);
    let body = match (unchanged, gzip) {
        (true, _) => Bytes::new(),
        (false, true) => assets::gzip(&text, Compression::fast()),
        (false, false) => text,
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = if unchanged { StatusCode::NOT_MODIFIED } else { status };
    let fixed = HeaderValue::from_static;
    let policy: HeaderName = header::CONTENT_SECURITY_POLICY;
    let answers = response.headers_mut();
    answers.insert(policy, fixed(POLICY));
    answers.insert(header::REFERRER_POLICY, fixed("same-origin"));
    answers.insert(header::CACHE_CONTROL, fixed("private, no-cache"));
    answers.insert(
        header::VARY,
        fixed("cookie, accept-encoding, accept-language, hx-request"),
    );
    if let Ok(value) = HeaderValue::from_str(&tag) {
        answers.insert(header::ETAG, value);
    }
    if !unchanged {
        answers.insert(header::CONTENT_TYPE, fixed("text/html; charset=utf-8"));
        if gzip {
            answers.insert(header::CONTENT_ENCODING, fixed("gzip"));
        }
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        answers.insert(header::RETRY_AFTER, fixed("5"));
    }
    response
}

fn plain(status: StatusCode, text: impl Into<Body>) -> Response {
    let mut response = Response::new(text.into());
    *response.status_mut() = status;
    let media = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}

/// An error for programs, which read no pages.
fn problem(status: StatusCode, detail: &str) -> Response {
    let body = serde_json::json!({
        "type": "about:blank", "title": status.canonical_reason(), "status": status.as_u16(),
        "detail": detail, "errors": [],
    });
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    let media = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, media);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_keeps_the_sentence_for_the_next_page() {
        // Each of these characters is nine bytes when it is encoded.
        let kept = for_cookie(&"停".repeat(600));
        assert!(kept.len() <= SAID_BYTES_MAX, "{}", kept.len());
        let read = percent_encoding::percent_decode_str(&kept).decode_utf8().unwrap();
        assert_eq!(read, "停".repeat(SAID_BYTES_MAX / 9), "no character is cut");
        assert_eq!(for_cookie("a 停"), "a%20%E5%81%9C");
        assert_eq!(for_cookie(&"a".repeat(5_000)).len(), SAID_BYTES_MAX);
    }

    #[tokio::test]
    async fn an_upload_without_a_place_is_refused_in_the_end() {
        let places = FairSlots::new(1, 1);
        let first = upload_place(&places, "ann", Duration::ZERO).await.unwrap();
        for actor in ["ann", "bob"] {
            let refused = upload_place(&places, actor, Duration::ZERO).await.unwrap_err();
            assert_eq!(refused.status, 429, "{actor}");
        }
        drop(first);
        assert!(upload_place(&places, "bob", Duration::ZERO).await.is_ok());
    }

    /// However many one caller sends, others upload too.
    #[tokio::test]
    async fn one_caller_holds_half_of_the_places() {
        let places = FairSlots::new(UPLOADS_MAX, UPLOADS_OF_ONE_MAX);
        let mut held = Vec::new();
        for actor in ["ann", "bob"] {
            for _ in 0..UPLOADS_MAX / 2 {
                held.push(upload_place(&places, actor, Duration::ZERO).await.unwrap());
            }
            let refused = upload_place(&places, actor, Duration::ZERO).await.unwrap_err();
            assert_eq!(refused.status, 429, "{actor}");
        }
        assert_eq!(held.len(), UPLOADS_MAX);
        assert!(upload_place(&places, "eve", Duration::ZERO).await.is_err());
        held.clear();
        assert!(upload_place(&places, "eve", Duration::ZERO).await.is_ok());
    }

    #[test]
    fn a_refused_form_is_shown_where_it_was_filled_in() {
        for (home, path, shown) in [
            ("/system/tokens", "/system/tokens", true),
            ("/groups", "/groups/set", false),
            ("/scripts", UPLOAD, true),
            ("/scripts/greet", UPLOAD, true),
            ("/scripts/greet/console", UPLOAD, false),
            ("/", UPLOAD, false),
        ] {
            assert_eq!(has_form(home, path), shown, "{home} {path}");
        }
    }
}
