//! Where a form leads back to.

use crate::Ctx;
use crate::ctx::{UPLOAD, segment};

/// Where a form without its own answer leads back: to its page, of this node only.
pub(crate) fn form_home(ctx: &Ctx) -> String {
    home_of(ctx.header("referer").unwrap_or_default())
}

/// The address of the page that a form was sent from, even if only the answer to another form is a page there.
pub(crate) fn form_address(ctx: &Ctx) -> String {
    address_of(ctx.header("referer").unwrap_or_default())
}

/// The page of ours for the address that a browser gives as `Referer`.
fn home_of(referer: &str) -> String {
    let of_form = url::Url::parse(referer).ok().and_then(|url| page_of_form(&url));
    of_form.unwrap_or_else(|| address_of(referer))
}

/// The page with the form that is sent to an address, if that address itself has no page: a form that was refused, or that is a
/// preview, is shown there, and nobody can come back to it.
fn page_of_form(url: &url::Url) -> Option<String> {
    let parts: Vec<&str> = url.path_segments()?.collect();
    Some(match parts.as_slice() {
        ["runs", "bulk"] => "/runs".to_owned(),
        ["scripts", "write"] => "/scripts".to_owned(),
        ["runs", run, "state"] => format!("/runs/{run}/override"),
        ["runs", run, "tasks", task, "state"] => {
            let task = percent_encoding::percent_decode_str(task).decode_utf8_lossy();
            let item = url.query_pairs().find(|(key, _)| key == "item");
            let item = item.map(|(_, item)| format!("&item={}", segment(&item)));
            format!(
                "/runs/{run}/override?task={}{}",
                segment(&task),
                item.unwrap_or_default()
            )
        }
        _ => return None,
    })
}

/// The address of ours that a browser gives as `Referer`.
fn address_of(referer: &str) -> String {
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
            ("http://h/runs/bulk", "/runs"),
            ("http://h/runs/7/state", "/runs/7/override"),
            ("http://h/runs/7/tasks/load/state", "/runs/7/override?task=load"),
            (
                "http://h/runs/7/tasks/a%2Bb/state?item=3",
                "/runs/7/override?task=a%2Bb&item=3",
            ),
            ("http://h/runs/7/override?task=load", "/runs/7/override?task=load"),
            ("http://h/scripts/write", "/scripts"),
            ("http://h/scripts?write=python", "/scripts?write=python"),
            ("http://h//evil.example", "/"),
            ("mailto:somebody", "/"),
            ("", "/"),
        ] {
            assert_eq!(home_of(referer), home, "{referer}");
        }
    }

    #[test]
    fn a_refused_form_knows_the_address_that_shows_it() {
        for address in ["/runs/bulk", "/runs/7/state", "/scripts/write"] {
            assert_eq!(address_of(&format!("http://h{address}")), address);
        }
        assert_eq!(address_of("http://h/scripts/upload?of=greet"), "/scripts/greet");
    }
}
