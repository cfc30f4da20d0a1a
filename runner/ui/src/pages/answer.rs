//! What the function of a page answers with.

use axum::http::{HeaderValue, header};
use axum::response::Response;
use maud::Markup;

use crate::frame::Page;
use crate::home::form_home;
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

pub(crate) fn set_cookie(response: &mut Response, cookie: &str) {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}
