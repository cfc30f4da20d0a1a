//! Where a form leads back to.

use crate::Ctx;
use crate::ctx::{UPLOAD, segment};

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
