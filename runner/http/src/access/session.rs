//! Sessions of the UI: signed in with a token or by a provider, kept in a cookie.
//!
//! The cookie has its own 256 random bits, never the token: it is worth nothing once the session has ended, at
//! sign-out, after [`SESSION_FOR`], or with its token. `HttpOnly` hides it from scripts in pages; `SameSite=Lax` keeps
//! it out of requests that other sites make (except for links to us); `Secure` keeps it out of plain HTTP wherever
//! HTTPS is used.
//!
//! Pages of sibling domains may set cookies for all domains of a company, and so sign somebody in as somebody else. So
//! where HTTPS is used, our cookies are named `__Host-...`: browsers accept such a name only from the host itself. A
//! cookie without the prefix counts only if HTTPS may not be in use, and if there is none with it.
//!
//! `Lax` alone would allow pages of sibling domains, which count as the same site. So a writing request with a cookie
//! must come from our own origin: `Sec-Fetch-Site: same-origin`, which no page can forge, or an `Origin` with our own
//! host. Browsers send at least one of them with every writing request; a client that sends neither is no browser, and
//! can use a token.
//!
//! Where a request comes from does not help where a GET changes something: a redirect after a form of ours is such a
//! request, and so is a link on a page of ours. So these few routes accept no cookie at all.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use heddle_domain::{Chance, Time};

use crate::problem::Problem;

/// How long a session lasts.
pub(crate) const SESSION_FOR: std::time::Duration = std::time::Duration::from_secs(12 * 3_600);

/// The cookie of sessions.
const COOKIE: Cookie = Cookie {
    name: "heddle_session",
    host_name: "__Host-heddle_session",
    path: "/",
};

/// A cookie of ours.
pub(super) struct Cookie {
    /// Its name over plain HTTP.
    pub(super) name: &'static str,
    /// Its name over HTTPS: the same with the prefix `__Host-`.
    pub(super) host_name: &'static str,
    /// Its path over plain HTTP; over HTTPS it is always `/`, or browsers refuse the name.
    pub(super) path: &'static str,
}

impl Cookie {
    /// Its value in a request, if it is there; `https`: the browser surely speaks HTTPS.
    pub(super) fn read<'a>(&self, headers: &'a HeaderMap, https: bool) -> Option<&'a str> {
        let plain = || cookie_named(headers, self.name).filter(|_| !https);
        cookie_named(headers, self.host_name).or_else(plain)
    }

    /// `Set-Cookie` for so many seconds; `secure`: for browsers that speak HTTPS.
    pub(super) fn set(&self, value: &str, seconds: i64, secure: bool) -> Option<HeaderValue> {
        let (name, path, secure) = match secure {
            true => (self.host_name, "/", "; Secure"),
            false => (self.name, self.path, ""),
        };
        let text = format!("{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
        HeaderValue::from_str(&text).ok()
    }
}

/// The session that a request's cookies name.
pub(super) fn cookie(headers: &HeaderMap) -> Option<&str> {
    COOKIE.read(headers, is_forwarded_https(headers))
}

/// A cookie that is not empty.
fn cookie_named<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, value)| *name == wanted && !value.is_empty())
        .map(|(_, value)| value)
}

/// The text of a new session, and its hash.
pub(crate) fn new(chance: &dyn Chance) -> (String, [u8; 32]) {
    let text = super::tokens::new_session(chance);
    let hash = super::token_hash(&text);
    (text, hash)
}

/// The hash of the session that a request's cookies name.
pub(crate) fn hash_of(headers: &HeaderMap) -> Option<[u8; 32]> {
    cookie(headers).map(super::token_hash)
}

/// `Set-Cookie` for a session, or (`None`) for the end of one; `secure`: for browsers that speak HTTPS.
pub(crate) fn set_cookie(secure: bool, session: Option<(&str, Time, Time)>) -> Option<HeaderValue> {
    let (value, seconds) = match session {
        Some((text, now, until)) => (text, (until - now).num_seconds().max(0)),
        None => ("", 0),
    };
    COOKIE.set(value, seconds, secure)
}

/// Whether the browser uses HTTPS, as far as a node behind a proxy can tell. A client that lies about it only makes its
/// own cookie stricter.
pub(crate) fn is_https(headers: &HeaderMap) -> bool {
    let origin = headers.get(header::ORIGIN).and_then(|value| value.to_str().ok());
    is_forwarded_https(headers) || origin.is_some_and(|origin| origin.starts_with("https://"))
}

/// Whether a proxy says so: an `Origin` may be another site's.
fn is_forwarded_https(headers: &HeaderMap) -> bool {
    let said = headers.get("x-forwarded-proto").and_then(|value| value.to_str().ok());
    said.is_some_and(|said| said.eq_ignore_ascii_case("https"))
}

/// 403 for a request that changes something by GET, wherever it comes from.
pub(crate) fn check_acts(method: &Method) -> Result<(), Problem> {
    match method.is_safe() {
        true => Err(Problem::forbidden(
            "this call changes something by GET, for which a session cookie is not accepted; send the header \
            `Authorization: Bearer hdl_...`, or use POST",
        )),
        false => Ok(()),
    }
}

/// 403 unless a request comes from a page of our own.
pub(crate) fn check_origin(headers: &HeaderMap, authority: Option<&Authority>) -> Result<(), Problem> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let site = headers.get("sec-fetch-site").and_then(|value| value.to_str().ok());
    if site == Some("same-origin") {
        return Ok(());
    }
    let host = text(header::HOST).or(authority.map(Authority::as_str));
    let origin = text(header::ORIGIN).and_then(|origin| {
        origin
            .strip_prefix("https://")
            .or_else(|| origin.strip_prefix("http://"))
    });
    match (site, origin, host) {
        (None, Some(origin), Some(host)) if origin.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(Problem::forbidden(
            "a session cookie allows changes only from pages of the same origin; in a program, send the header \
            `Authorization: Bearer hdl_...`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&'static str, &str)]) -> HeaderMap {
        of.iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn what_a_cookie_vouches_for_comes_from_our_own_pages() {
        let check = |of: &[(&'static str, &str)], fine: bool| {
            assert_eq!(check_origin(&headers(of), None).is_ok(), fine, "{of:?}");
        };
        check(&[("host", "h.example"), ("sec-fetch-site", "same-origin")], true);
        // Behind a proxy that does not pass the name on.
        check(
            &[
                ("host", "10.0.0.1:8080"),
                ("origin", "https://h.example"),
                ("sec-fetch-site", "same-origin"),
            ],
            true,
        );
        check(&[("host", "h.example:8080"), ("origin", "http://h.example:8080")], true);
        check(&[("host", "h.example"), ("origin", "http://h.example:8080")], false);
        check(&[("host", "h.example"), ("origin", "https://evil.example")], false);
        check(&[("host", "h.example"), ("origin", "null")], false);
        check(&[("host", "h.example")], false);
        for site in ["cross-site", "same-site", "none"] {
            check(
                &[
                    ("host", "h.example"),
                    ("origin", "https://h.example"),
                    ("sec-fetch-site", site),
                ],
                false,
            );
        }
    }

    #[test]
    fn a_cookie_changes_nothing_by_get() {
        for (method, fine) in [(Method::GET, false), (Method::HEAD, false), (Method::POST, true)] {
            assert_eq!(check_acts(&method).is_ok(), fine, "{method}");
        }
    }

    #[test]
    fn cookies_are_read_and_written() {
        assert_eq!(
            cookie(&headers(&[("cookie", "a=b; heddle_session=hds_x; c=d")])),
            Some("hds_x")
        );
        assert_eq!(
            cookie(&headers(&[("cookie", "xheddle_session=hds_x; heddle_session=")])),
            None
        );
        // A cookie that others set for this domain does not count where ours has the other name.
        let tossed = ("cookie", "heddle_session=hds_evil");
        let both = ("cookie", "heddle_session=hds_evil; __Host-heddle_session=hds_x");
        let https = ("x-forwarded-proto", "https");
        assert_eq!(cookie(&headers(&[tossed])), Some("hds_evil"));
        assert_eq!(cookie(&headers(&[tossed, https])), None);
        assert_eq!(cookie(&headers(&[both])), Some("hds_x"));
        assert_eq!(cookie(&headers(&[both, https])), Some("hds_x"));
        let now = heddle_api::moment::parse_moment("2026-11-20T08:00:00Z").unwrap();
        let set = |of: &[(&'static str, &str)]| {
            let value = set_cookie(is_https(&headers(of)), Some(("hds_x", now, now + SESSION_FOR))).unwrap();
            value.to_str().unwrap().to_owned()
        };
        let plain = set(&[]);
        assert_eq!(
            plain,
            "heddle_session=hds_x; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax"
        );
        for https in [https, ("origin", "https://h.example")] {
            assert_eq!(
                set(&[https]),
                "__Host-heddle_session=hds_x; Path=/; Max-Age=43200; HttpOnly; SameSite=Lax; Secure"
            );
        }
        let end = set_cookie(false, None).unwrap();
        assert!(end.to_str().unwrap().starts_with("heddle_session=; Path=/; Max-Age=0"));
    }
}
