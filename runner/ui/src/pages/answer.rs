//! What the function of a page answers with.

use axum::http::{HeaderValue, header};
use axum::response::Response;
use maud::Markup;

use crate::ctx::{UPLOAD, segment};
use crate::frame::Page;
use crate::{Ctx, Trouble};

/// The result of the function of a page.
pub(crate) enum Answer {
    Page(Box<Page>),
    /// A piece of a page, for a script that asked for it.
    Piece(Markup),
    /// A redirect, and perhaps a sentence that the next page shows first.
    Go {
        /// An address of ours.
        to: String,
        /// A sentence that the next page shows once.
        said: Option<String>,
    },
    /// Something that is no page.
    Raw(Box<Response>),
}

impl Answer {
    pub(crate) fn page(page: Page) -> Result<Self, Trouble> {
        Ok(Self::Page(Box::new(page)))
    }

    /// Back to the page with the form.
    pub(crate) fn back(ctx: &Ctx, said: Option<String>) -> Result<Self, Trouble> {
        Ok(Self::Go {
            to: form_home(ctx),
            said,
        })
    }
}

/// Where a form without its own answer leads back: to its page, of this node only.
pub(crate) fn form_home(ctx: &Ctx) -> String {
    home_of(ctx.header("referer").unwrap_or_default())
}

/// The page of ours at the address that a browser gives as `Referer`.
fn home_of(referer: &str) -> String {
    let Ok(url) = url::Url::parse(referer) else {
        return "/".to_owned();
    };
    // A form for files that was refused is shown under the address that got it, where there is no page to come back to: the
    // address says of which script that page was, if of one.
    if url.path() == UPLOAD {
        let of = url.query_pairs().find(|(key, name)| key == "of" && !name.is_empty());
        return of.map_or_else(
            || "/scripts".to_owned(),
            |(_, name)| format!("/scripts/{}", segment(&name)),
        );
    }
    let path = match url.query() {
        Some(query) => format!("{}?{query}", url.path()),
        None => url.path().to_owned(),
    };
    if path.starts_with('/') && !path.starts_with("//") {
        path
    } else {
        "/".to_owned()
    }
}

pub(crate) fn set_cookie(response: &mut Response, cookie: &str) {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_leads_back_to_its_page() {
        for (referer, home) in [
            ("http://h/runs?state=failed", "/runs?state=failed"),
            ("http://h/scripts/upload", "/scripts"),
            ("http://h/scripts/upload?of=", "/scripts"),
            ("http://h/scripts/upload?of=my%20job%2B1", "/scripts/my%20job%2B1"),
            ("http://h/scripts/greet", "/scripts/greet"),
            ("http://h//evil.example", "/"),
            ("mailto:somebody", "/"),
            ("", "/"),
        ] {
            assert_eq!(home_of(referer), home, "{referer}");
        }
    }
}
